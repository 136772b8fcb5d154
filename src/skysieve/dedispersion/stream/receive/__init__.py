"""Receive packets: parsers, sockets, rings of packets, PSRDADA files and rings."""
