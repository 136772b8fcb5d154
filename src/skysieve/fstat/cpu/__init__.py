"""The CPU backend of the transient F-statistic."""
