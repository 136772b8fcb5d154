"""Measurements of this machine: costs of methods and rates of searches."""
