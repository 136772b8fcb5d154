"""Rotation periods of a batch of unequal light curves, without keeping their periodograms."""

import numpy as np

import skysieve
from skysieve.periodogram.lightcurves.simulate import simulate_asteroids

made = simulate_asteroids(60, seed=5)
result = skysieve.lombscargle(
    made.t, made.y, made.dy, offsets=made.offsets, fmin=0.16, fmax=24, nf=28_608, return_power=False
)
rotation = 48 * result.period  # hours; an asteroid shows two humps a turn
good = np.abs(rotation - 48 * made.period) < 0.2
print(f"{good.mean():.0%} of all recovered, {good[made.n_obs >= 100].mean():.0%} with 100 points or more")
result.save("asteroids.ecsv")

assert good[made.n_obs >= 100].mean() >= 0.9
