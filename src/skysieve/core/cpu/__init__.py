"""Kernels of the CPU: compilation, stored code, vector instructions."""
