"""Period of one real star, its five best periods, and a picture."""

import skysieve
from skysieve.periodogram.command.demo import star_file
from skysieve.periodogram.lightcurves.io import read_light_curves

star = read_light_curves(star_file())
result = skysieve.lombscargle(star.t, star.y, star.dy, fmin=0.1, fmax=10, samples_per_peak=10, n_peaks=5)
for period, power in zip(result.peaks.period, result.peaks.power, strict=True):
    print(f"{period:.5f} d   power {power:.3f}")
result.plot(star.t, star.y, star.dy, magnitudes=True, title="MACHO 1.3444.614").savefig("star.png")

assert abs(result.period - 0.93697) < 1e-5
