"""Trial dispersion measures: plans, and their tables of delays."""
