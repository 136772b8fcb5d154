"""Prometheus metrics of a long-running process."""
