"""The command ``skysieve smooth`` and the sphere's part of the demo."""
