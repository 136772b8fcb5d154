"""CUDA: Fourier series of several terms."""
