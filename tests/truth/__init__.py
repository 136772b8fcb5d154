"""Reference implementations, with which tests compare the backends: direct sums, without any fast algorithm."""
