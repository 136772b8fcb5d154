"""Pixelisations and their weights."""
