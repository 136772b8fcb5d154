"""CUDA kernels: their sources, compilation, launches and transfers."""
