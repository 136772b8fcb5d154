"""Metrics of a process that runs for long, for Prometheus."""
