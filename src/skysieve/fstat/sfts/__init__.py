"""Short Fourier transforms (SFTs): files, noise floors, simulation."""
