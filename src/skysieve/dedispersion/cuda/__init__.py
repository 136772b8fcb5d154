"""The CUDA backend of de-dispersion."""
