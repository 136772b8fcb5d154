"""The noise of campaigns, made on a GPU."""
