"""The single-pulse search: candidates, grouping, cut-outs, plots."""
