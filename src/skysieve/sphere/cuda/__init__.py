"""The CUDA backend of convolution on the sphere."""

PACKAGE = __name__
"""The package of the kernel files, for `Runtime.module`."""
