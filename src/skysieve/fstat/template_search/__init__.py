"""Searches over many templates: batches, checkpoints, results."""
