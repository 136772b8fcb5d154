"""Dispersion measures to try: plans and their tables of delays."""
