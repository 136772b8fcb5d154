"""What refined peaks must be, for any engine: maxima of the exact periodogram by the rules of ``periodogram.peaks``.

The judge knows columns and least squares alone, with phases reduced in long double.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.truth import periodogram as reference

from skysieve.periodogram.contract import Grids, Output, Source, Spec

POWER = 1e-9
"""Required agreement of powers."""
PLACE = 2e-6
"""Distance from the maximum in 1/(T harmonics), derived: a power that is short of its maximum by 1e-11 or less."""
CURVATURE = 1e-4
"""Relative error of the second derivative, measured: the truth's differences err by 1e-6."""


class Exact:
    """Standard power of one light curve with ``terms`` harmonics, at any frequencies."""

    def __init__(
        self, t: Any, y: Any, dy: Any = None, *, fit_mean: bool = True, center_data: bool = True, terms: int = 1
    ) -> None:
        keep = reference.usable(t, y, dy)
        self.t = np.asarray(t, np.longdouble)[keep]
        self.t = self.t - self.t.min()
        self.span = float(self.t.max())
        self.terms = terms
        w = np.ones(len(self.t)) if dy is None else np.broadcast_to(np.asarray(dy, float), keep.shape)[keep] ** -2.0
        self.weight = float(w.sum())
        self.root = np.sqrt(w / w.sum())
        values = np.asarray(y, float)[keep]
        values = values - np.average(values, weights=w) * (fit_mean or center_data)
        self.fit_mean = fit_mean
        self.mean_square = float(np.sum((self.root * values) ** 2))
        self.y = self.root * values / np.sqrt(self.mean_square)

    def __call__(self, frequency: Any) -> Any:
        frequency = np.atleast_1d(np.asarray(frequency, np.longdouble))
        found = np.empty(len(frequency))
        for first in range(0, len(frequency), 128):
            turns = frequency[first : first + 128, None] * self.t
            angle = (2 * np.pi * (turns - np.rint(turns))).astype(float)
            waves = [wave(k * angle) for k in range(1, self.terms + 1) for wave in (np.cos, np.sin)]
            columns = [np.ones_like(angle), *waves] if self.fit_mean else waves
            q, _ = np.linalg.qr(np.stack(columns, axis=-1) * self.root[:, None])
            found[first : first + 128] = np.sum((self.y @ q) ** 2, axis=-1)
        return found

    def curvature(self, f: float) -> float:
        """Second derivative with respect to frequency, from five powers."""
        h = 0.002 / (self.span * self.terms)
        a, b, c, d, e = self(f + h * np.arange(-2, 3))
        return float((16 * (b + d) - 30 * c - a - e) / (12 * h * h))


def check_peaks(spec: Spec, source: Source, grids: Grids, output: Output) -> int:
    """Every peak of ``output``, found with ``spec`` (of one band), against the truth; returns how many there were.

    Raises
    ------
    AssertionError
        Where a power is off by more than 1e-9, a peak is no maximum, lies outside of what it may reach, comes twice
        or out of order, or is lower than a maximum that should have been found.
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
        expected = reference.peaks(frequency, truth(frequency), spec.n_peaks, truth.span, truth, spec.nterms)
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
            if np.isnan(bend[k]):  # the end of what it may reach
                assert truth(f[k] + PLACE * width)[0] > p[k] or truth(f[k] - PLACE * width)[0] > p[k]
                continue
            assert bend[k] < 0
            assert np.isclose(bend[k], truth.curvature(f[k]), rtol=CURVATURE), (i, k)
            beside = truth(f[k] + PLACE * width * np.array([-1, 1]))
            slope = (beside[1] - beside[0]) / (2 * PLACE * width)
            assert abs(slope / bend[k]) < PLACE * width, (i, k)
        checked += found
    return checked
