"""Checks of refined peaks, for any engine: they must be the maxima of the exact periodogram.

The exact periodogram comes from least squares with orthogonal columns, with phases reduced in long double; its maxima
are found by brute force.  Needs NumPy and SciPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from skysieve.periodogram.contract import Grids, Output, Source, Spec
from skysieve.periodogram.numerics.peaks import LEAST, LOWER

from .periodogram import peaks as grid_peaks
from .periodogram import usable

POWER = 1e-9
"""Required agreement of powers."""
PLACE = 2e-6
"""Largest distance from the maximum, in 1/(T harmonics); derived: the power there is within 1e-11 of the maximum."""
CURVATURE = 1e-4
"""Largest relative error of the second derivative.  Measured; `Exact.curvature` itself is accurate to 1e-6."""
AT_ONCE = 1 << 18
"""Number of elements of the columns that are computed at a time."""


class Exact:
    """Standard power of one light curve, by orthogonal columns in float64, at any frequencies.

    ``terms``: number of Fourier terms; ``band``: index of the band of each row.  Each band has its own constant.
    """

    def __init__(
        self, t: Any, y: Any, dy: Any = None, *, fit_mean: bool = True, center_data: bool = True, terms: int = 1,
        band: Any = None,
    ) -> None:  # fmt: skip
        keep = usable(t, y, dy)
        self.t = np.asarray(t, np.longdouble)[keep]
        self.t = self.t - self.t.min()
        self.span = float(self.t.max())
        self.terms = terms
        w = np.ones(len(self.t)) if dy is None else np.broadcast_to(np.asarray(dy, float), keep.shape)[keep] ** -2.0
        self.weight = float(w.sum())
        self.root = np.sqrt(w / w.sum())
        bands = np.zeros(len(self.t), int) if band is None else np.asarray(band)[keep]
        constants = np.linalg.qr(np.stack([self.root * (bands == b) for b in np.unique(bands)], 1))[0]
        self.first = constants[:, : constants.shape[1] * fit_mean]
        values = self.root * np.asarray(y, float)[keep]
        if fit_mean or center_data:
            values = values - constants @ (constants.T @ values)
        self.mean_square = float(np.sum(values**2))
        self.y = values / np.sqrt(self.mean_square)

    def __call__(self, frequency: Any) -> Any:
        """Power at a frequency, or at each of an array."""
        f = np.asarray(frequency, np.longdouble)
        parts = np.array_split(f.ravel(), 1 + f.size * len(self.t) * 2 * self.terms // AT_ONCE)
        found = np.concatenate([self._powers(part) for part in parts])
        return found.reshape(f.shape)[()]

    def _powers(self, f: Any) -> Any:
        phase = f[:, None] * self.t
        angle = (2 * np.pi * (phase - np.rint(phase))).astype(float)
        waves = [self.root * wave(k * angle) for k in range(1, self.terms + 1) for wave in (np.cos, np.sin)]
        columns = np.stack(waves, -1)
        for _ in range(2):  # twice, since rounding leaves a part the first time
            columns = columns - self.first @ (self.first.T @ columns)
        q, _ = np.linalg.qr(columns)
        return np.sum((self.y @ q) ** 2, axis=-1)

    def highest(self, low: float, high: float, steps: int = 101) -> tuple[float, float]:
        """Frequency and power of the highest maximum between two frequencies."""
        f = np.linspace(low, high, steps)
        p = self(f)
        j = int(np.argmax(p))
        ends = f[max(0, j - 1)], f[min(steps - 1, j + 1)]
        found = minimize_scalar(lambda x: -self(x), bounds=ends, method="bounded", options={"xatol": 1e-9 / self.span})
        return (found.x, -found.fun) if -found.fun > p[j] else (f[j], p[j])

    def curvature(self, f: float) -> float:
        """Second derivative with respect to frequency, from five powers."""
        h = 0.002 / (self.span * self.terms)
        a, b, c, d, e = self(f + h * np.arange(-2, 3))
        return float((16 * (b + d) - 30 * c - a - e) / (12 * h * h))


def check_peaks(spec: Spec, source: Source, grids: Grids, output: Output) -> int:
    """Compare every peak of ``output``, found with ``spec`` (of one band), with the exact periodogram.

    Returns the number of peaks.

    Raises
    ------
    AssertionError
        A power is wrong by more than 1e-9; or a peak is no maximum, lies outside the grid, occurs twice or out of
        order, or is lower than a maximum that should have been found.
    """
    checked = 0
    t, y, dy, offsets = source.read(0, source.n_objects)
    for i in np.flatnonzero(output.status == 0):
        rows = slice(int(offsets[i]), int(offsets[i + 1]))
        truth = Exact(
            t[rows], y[rows], None if dy is None else dy[rows], fit_mean=spec.fit_mean, center_data=spec.center_data,
            terms=spec.nterms,
        )  # fmt: skip
        assert np.isclose(output.mean_square[i], truth.mean_square, rtol=1e-9)
        assert np.isclose(output.weight[i], truth.weight, rtol=1e-12)
        frequency, width = grids.frequency(int(i)), 1 / (truth.span * spec.nterms)
        expected = grid_peaks(frequency, truth(frequency), spec.n_peaks, truth.span, truth, spec.nterms)
        index = output.peak_index[i]
        f, p, bend = output.peak_frequency[i], output.peak_power[i], output.peak_curvature[i]
        found = int(np.count_nonzero(index >= 0))
        assert found == np.count_nonzero(expected.index >= 0)
        assert np.all(index[found:] == -1)
        assert np.all(np.isnan(f[found:]) & np.isnan(p[found:]) & np.isnan(bend[found:]))
        f, p, bend = f[:found], p[:found], bend[:found]
        np.testing.assert_allclose(p, truth(f), rtol=0, atol=POWER, err_msg=f"object {i}")
        np.testing.assert_allclose(p, expected.power[:found], rtol=0, atol=POWER, err_msg=f"object {i}")
        assert np.all(p <= 1)
        assert np.all(np.diff(p) <= 0)
        ends = frequency[[0, -1]] + 4e-16 * frequency[-1] * np.array([-1, 1])
        assert np.all((f >= ends[0]) & (f <= ends[1]))
        assert found < 2 or np.min(np.diff(np.sort(f))) > 0.01 * width, "the same maximum twice"
        for k in range(found):
            if np.isnan(bend[k]):  # no maximum, but an end of the search interval
                assert truth(f[k] + PLACE * width) > p[k] or truth(f[k] - PLACE * width) > p[k]
                continue
            assert bend[k] < 0
            assert np.isclose(bend[k], truth.curvature(f[k]), rtol=CURVATURE), (i, k)
            beside = truth(f[k] + PLACE * width * np.array([-1, 1]))
            slope = (beside[1] - beside[0]) / (2 * PLACE * width)
            assert abs(slope / bend[k]) < PLACE * width, (i, k)
        checked += found
    return checked


def check_refined(truth, frequency, output, i, n_peaks=None):
    """Check that the peaks of object ``i`` are maxima of ``truth``: powers to 1e-9, and derivatives.

    Returns the number of peaks checked.
    """
    h = 1 / (truth.span * truth.terms)
    checked = 0
    powers = output.peak_power[i]
    found = np.flatnonzero(output.peak_index[i] >= 0)
    assert (powers[found] <= 1).all()
    assert (np.diff(powers[found]) <= 0).all()
    for r in found[:n_peaks]:
        j, f = output.peak_index[i, r], output.peak_frequency[i, r]
        below = frequency[j] - frequency[max(0, j - 1)]
        above = frequency[min(j + 1, len(frequency) - 1)] - frequency[j]
        low = max(frequency[0], frequency[j] - np.clip(below, LEAST * h, h))
        high = min(frequency[-1], frequency[j] + np.clip(above, LEAST * h, h))
        window = (low, high)
        if len(truth.t) < 6 * truth.terms:  # there may be several maxima: take the one at the peak
            window = max(low, f - 0.02 * h), min(high, f + 0.02 * h)
        best, power = truth.highest(*window)
        assert abs(truth(f) - powers[r]) <= 1e-9, (i, r, truth(f), powers[r])
        assert powers[r] >= power - 1e-9, (i, r, powers[r], power, f, best, low, high)
        assert powers[r] >= truth(frequency[j]) - LOWER, (i, r, powers[r], truth(frequency[j]), f)
        curvature = output.peak_curvature[i, r]
        if not np.isnan(curvature):
            assert curvature < 0
            rounding = 1e-4 if len(truth.t) >= 6 * truth.terms else 1e-3  # in the reference's five powers
            assert abs(curvature - truth.curvature(f)) <= rounding * abs(curvature), (i, r)
            slope = (truth(f + 1e-4 * h) - truth(f - 1e-4 * h)) / (2e-4 * h)
            assert abs(slope / curvature) * truth.span <= 1e-6, (i, r)
        else:
            assert min(f - low, high - f) <= 1e-6 * h, (i, r, f, low, high)
        checked += 1
    return checked
