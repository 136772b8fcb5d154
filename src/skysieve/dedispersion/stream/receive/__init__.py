"""Packets, sockets and rings."""
