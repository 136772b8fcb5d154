"""CUDA: Fourier transforms of rings."""
