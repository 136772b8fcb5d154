"""Results of transient F-statistic maps, and their figures."""
