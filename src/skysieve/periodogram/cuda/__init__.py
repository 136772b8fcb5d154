"""The CUDA backend of the periodogram."""
