"""CUDA: samples of sums on a coarse grid of frequencies, from which others are interpolated."""
