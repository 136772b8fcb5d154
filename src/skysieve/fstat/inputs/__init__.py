"""Input of the F-statistic: atoms, their files and simulation, grids of start times and durations, windows."""
