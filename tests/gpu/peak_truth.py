"""Maxima of the exact periodogram by brute force, in NumPy: what refined peaks are judged by."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar


class Exact:
    """Standard power of one light curve, by orthogonal columns in float64, whose phases are reduced in long double.

    ``terms``: Fourier terms; ``band``: number of the band of each row, each with a constant of its own.
    """

    def __init__(self, t, y, dy=None, *, fit_mean=True, center_data=True, terms=1, band=None):
        self.t = np.asarray(t, np.longdouble) - np.min(t)
        self.span = float(self.t.max())
        w = np.ones(len(t)) if dy is None else 1 / np.asarray(dy, float) ** 2
        self.root = np.sqrt(w / w.sum())
        self.terms = terms
        band = np.zeros(len(t), int) if band is None else np.asarray(band)
        constants = np.stack([self.root * (band == b) for b in np.unique(band)], 1)
        self.first = np.linalg.qr(constants)[0] if fit_mean else np.zeros((len(t), 0))
        centre = np.linalg.qr(constants)[0] if fit_mean or center_data else np.zeros((len(t), 0))
        y = self.root * np.asarray(y, float)
        y = y - centre @ (centre.T @ y)
        self.y = y / np.sqrt(y @ y)

    def __call__(self, f):
        """Power at a frequency, or at each of an array."""
        phase = np.asarray(f, np.longdouble)[..., None] * self.t
        angle = (2 * np.pi * (phase - np.rint(phase))).astype(float)
        both = [self.root * g(k * angle) for k in range(1, self.terms + 1) for g in (np.cos, np.sin)]
        columns = np.stack(both, -1)
        columns = columns - self.first @ (self.first.T @ columns)
        columns = columns - self.first @ (self.first.T @ columns)
        q, _ = np.linalg.qr(columns)
        return np.sum((self.y @ q) ** 2, axis=-1)

    def highest(self, low, high, steps=101):
        """Frequency and power of the highest maximum between two frequencies."""
        f = np.linspace(low, high, steps)
        p = np.concatenate([self(x) for x in np.array_split(f, 1 + steps * len(self.t) // 2**16)])
        j = int(np.argmax(p))
        ends = f[max(0, j - 1)], f[min(steps - 1, j + 1)]
        found = minimize_scalar(lambda x: -self(x), bounds=ends, method="bounded", options={"xatol": 1e-9 / self.span})
        return (found.x, -found.fun) if -found.fun > p[j] else (f[j], p[j])

    def curvature(self, f):
        """Second derivative by frequency, from five powers."""
        h = 0.002 / (self.span * self.terms)
        a, b, c, d, e = (self(f + k * h) for k in (-2, -1, 0, 1, 2))
        return (16 * (b + d) - 30 * c - a - e) / (12 * h * h)


def check_refined(truth, frequency, output, i, n_peaks=None):
    """Peaks of object ``i`` are maxima of ``truth``: power to 1e-9, and derivatives.

    Returns the number of peaks checked.
    """
    from skysieve.periodogram.numerics.peaks import LEAST

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
        if len(truth.t) < 6 * truth.terms:  # several maxima in a window: the one that is climbed to
            window = max(low, f - 0.02 * h), min(high, f + 0.02 * h)
        best, power = truth.highest(*window)
        assert abs(truth(f) - powers[r]) <= 1e-9, (i, r, truth(f), powers[r])
        assert powers[r] >= power - 1e-9, (i, r, powers[r], power, f, best, low, high)
        curvature = output.peak_curvature[i, r]
        if not np.isnan(curvature):
            assert curvature < 0
            rounding = 1e-4 if len(truth.t) >= 6 * truth.terms else 1e-3  # of five powers
            assert abs(curvature - truth.curvature(f)) <= rounding * abs(curvature), (i, r)
            slope = (truth(f + 1e-4 * h) - truth(f - 1e-4 * h)) / (2e-4 * h)
            assert abs(slope / curvature) * truth.span <= 1e-6, (i, r)
        else:
            assert min(f - low, high - f) <= 1e-6 * h, (i, r, f, low, high)
        checked += 1
    return checked
