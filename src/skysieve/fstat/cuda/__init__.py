"""The CUDA backend of the transient F-statistic."""
