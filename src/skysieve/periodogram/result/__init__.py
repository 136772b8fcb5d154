"""Results of a periodogram: peaks, aliases, tables, plots."""
