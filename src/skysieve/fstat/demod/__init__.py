"""Demodulation of SFTs: from Fourier transforms to atoms of the F-statistic."""
