"""The second look at candidates, on a GPU."""
