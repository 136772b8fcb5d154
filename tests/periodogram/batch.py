"""The batch of the benchmarks: light curves for the asteroids of ``simobj.200724_1.dat``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from skysieve.periodogram.lightcurves.simulate import SimulatedLightCurves, simulate_light_curves

SEED = 200724


def benchmark_batch(folder: Path, span: int = 120) -> SimulatedLightCurves:
    """Simulated light curves of 1,000 asteroids over ``span`` nights; `test_simulate` tests their hash.

    The columns of the file are periods in hours, peak-to-peak amplitudes, numbers of observations and mean magnitudes.
    """
    _, _, hours, amplitude, n_obs, magnitude = np.loadtxt(folder / "simobj.200724_1.dat", unpack=True)
    n_obs = np.maximum(5, np.rint(n_obs)).astype(np.int64)
    return simulate_light_curves(hours / 24.0, amplitude, n_obs, magnitude=magnitude, span=span, seed=SEED)
