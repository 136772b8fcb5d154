"""What a search is given: atoms, their files and simulation, grids of start times and durations, windows."""
