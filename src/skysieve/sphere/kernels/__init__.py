"""Radial kernels."""
