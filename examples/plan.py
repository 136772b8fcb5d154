"""Night after night on one grid: a plan keeps its tables, buffers and compiled code between calls."""

import skysieve
from skysieve.periodogram.lightcurves.simulate import simulate_asteroids

with skysieve.LombScarglePlan(fmin=0.16, fmax=24, nf=28_608, n_peaks=3, return_power=False) as plan:
    for night in range(3):
        made = simulate_asteroids(20, seed=night)
        result = plan.execute(made.t, made.y, made.dy, offsets=made.offsets)
        print(f"night {night}: {result}")
        assert result.peaks.period.shape == (20, 3)
