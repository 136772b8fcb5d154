"""Significance of peaks, and corrections of light curves of moving objects."""
