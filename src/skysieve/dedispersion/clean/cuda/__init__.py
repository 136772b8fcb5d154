"""Cleaning of samples in the memory of a GPU."""
