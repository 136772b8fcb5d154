"""The CPU backend of Fourier series with several terms or bands."""
