"""The CUDA backend of convolution on the sphere."""
