"""Interference, masks and missing samples."""
