"""Light curves: files, columns, units, simulation, and their conversion to flat arrays."""
