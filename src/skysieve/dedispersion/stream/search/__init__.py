"""The search of a stream, block after block."""
