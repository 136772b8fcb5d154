"""The commands of live streams."""
