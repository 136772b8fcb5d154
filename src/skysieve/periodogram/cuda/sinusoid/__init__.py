"""CUDA: one sinusoid."""
