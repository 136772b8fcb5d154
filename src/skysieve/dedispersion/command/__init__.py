"""The commands ``skysieve dedisp`` and the de-dispersion part of the demo."""
