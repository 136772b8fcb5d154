"""The live page of a stream, served by a separate process."""
