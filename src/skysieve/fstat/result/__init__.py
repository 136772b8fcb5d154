"""Maps of the transient F-statistic and their plots."""
