"""Sky maps: FITS files, smoothing, resampling, plots."""
