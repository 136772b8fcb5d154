"""The command ``skysieve period`` and the periodogram's part of the demo."""
