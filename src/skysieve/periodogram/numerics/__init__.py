"""Frequency grids and the tables of the non-uniform Fourier transform."""
