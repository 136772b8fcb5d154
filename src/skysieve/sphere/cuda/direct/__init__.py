"""CUDA: the direct sum over pixels."""
