"""CUDA: the best peaks, and their refinement."""
