"""Filterbank data: SIGPROC, PSRFITS and PRESTO files, and simulation."""
