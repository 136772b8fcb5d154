"""The search of a stream, block by block."""
