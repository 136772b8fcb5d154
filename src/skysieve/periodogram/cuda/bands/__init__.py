"""CUDA: light curves in several bands."""
