"""The CPU backend of convolution on the sphere."""
