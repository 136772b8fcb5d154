"""The commands ``skysieve fstat`` and the F-statistic's part of the demo."""
