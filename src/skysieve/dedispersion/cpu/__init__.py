"""The CPU backend of de-dispersion."""
