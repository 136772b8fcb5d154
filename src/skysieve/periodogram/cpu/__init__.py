"""The CPU backend of the periodogram."""
