"""Searches over many templates: batches, checkpoints, columns, results."""
