"""CUDA: demodulation of SFTs."""
