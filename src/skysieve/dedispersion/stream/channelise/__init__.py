"""Voltages to power."""
