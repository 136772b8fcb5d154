"""Tolerances, windows, grids and atoms of the F-statistic's conformance suites, and the comparison with the reference.

Tolerances: "required" ones are the project's promises; "derived" ones follow from the arithmetic; "measured" ones come
from a run, with the margin that is stated beside them.
"""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.fstat import Grid, Injection, WindowSum, synth_atoms

T = 1800
T0 = 1_000_000_000

CELL = {"float64": 1e-11, "float32": 3e-4}
"""Largest |dF| / max(1, F).  required: 3e-4 in float32, which ill-conditioned windows of few SFTs need.  float64: at a
condition number of 1e4, 4 digits are lost twice, so the derived error is 1e8 * 1.1e-16; no run here reached 1e-11."""
RMS = {"float64": 1e-12, "float32": 1e-5}
LN_B = {"float64": 1e-9, "float32": 1e-3}
STORED = 1.2e-7
"""Relative.  The reference values of F are stored in float32, where half a unit in the last place is 6e-8."""
P = {"float64": 1e-11, "float32": 2e-5}
"""Posterior probabilities; float32 measured 7.3e-6 at 2F = 670, where F itself is good to 4e-5."""

WINDOWS = {
    "rect": "rect",
    "exp": "exp",
    "sum": WindowSum([(1.0, 1.0), (-1.0, 6.0)]),
    "tone": WindowSum([((0.0, 1.0), 1 + 2j)]),
    "any": lambda x: 1 / (1 + x) ** 2,
}

GRIDS = {
    "more t0 than tau": Grid(t0=T0, t0_band=90 * T, dt0=T, tau=2 * T, tau_band=7 * T, dtau=T),
    "more tau than t0": Grid(t0=T0 + 3 * T, t0_band=5 * T, dt0=T, tau=2 * T, tau_band=120 * T, dtau=T),
    "one t0": Grid(t0=T0 + 20 * T, tau=2 * T, tau_band=60 * T, dtau=T),
    "one tau": Grid(t0=T0, t0_band=90 * T, dt0=T, tau=9 * T),
    "coarse": Grid(t0=T0, t0_band=90 * T, dt0=3 * T, tau=4 * T, tau_band=60 * T, dtau=5 * T),
    "finer than the data": Grid(t0=T0, t0_band=20 * T, dt0=300, tau=2 * T, tau_band=9 * T, dtau=450),
    "off the bins": Grid(t0=T0 + 700, t0_band=80 * T, dt0=2500, tau=4100, tau_band=60 * T, dtau=1100),
    "before the data": Grid(t0=T0 - 40 * T - 901, t0_band=100 * T, dt0=2 * T, tau=2 * T, tau_band=50 * T, dtau=3 * T),
    "lists": Grid.from_lists(
        [T0 - 9 * T, T0, T0 + 1, T0 + 1799, T0 + 2 * T + 900, T0 + 50 * T, T0 + 94 * T],
        np.unique(np.geomspace(2 * T, 200 * T, 40).round()),
    ),
    "few starts and log tau": Grid.from_lists(
        T0 + 6 * T * np.arange(-4, 15), np.unique(np.geomspace(2, 95, 14).round()).astype(int) * T
    ),
    "too short and too late": Grid(t0=T0 - 2 * T, t0_band=105 * T, dt0=1700, tau=600, tau_band=6 * T, dtau=700),
}


def patchy_atoms():
    """Atoms of two detectors over 96 bins, with a signal: SFTs do not line up, with a long gap, and 60% of the rest."""
    signal = Injection(t0=T0 + 20 * T, tau=15 * T, snr=9, window="exp")
    return synth_atoms(
        T0, 96 * T, inject=signal, gaps=[(T0 + 50 * T, T0 + 70 * T)], duty=0.6, offsets=[0, 700], seed=5
    )  # fmt: skip


def compare(result, truth, dtype, bins=0):
    """Compare a result with a reference map: every cell, and the statistics that follow from them.

    ``bins``: number of bins of the data, if the map may hold only ill-conditioned cells: the bounds then rise with the
    condition number.
    Rounding of the sums changes D by the condition number times 6e-8, also in LALPulsar's order of operations.
    Measured at condition numbers of 5e3 to 1e4: the largest and rms errors are 5.5e-4 and 1.5e-4 in LALPulsar's order,
    7.7e-4 and 1.6e-4 in ours.  A running sum makes two roundings a bin, whose scatter is sqrt(bins / 6) of 6e-8: the
    bounds of 5 roundings are exceeded in some of many maps with more than 12 bins, and those of sqrt(2 bins), 3.5
    standard deviations, take their place.
    """
    F, R = np.asarray(result.F, float), truth.F
    assert np.array_equal(np.isnan(F), np.isnan(R))
    # required: cells within 1% of the limit of the condition number may fall on either side of it
    clear = np.isfinite(R) & ~(np.abs(truth.condition / 1e4 - 1) < 0.01)
    assert np.array_equal((F == 2)[clear], (R == 2)[clear])
    error = np.abs(F - R)[clear] / np.maximum(1, np.abs(R[clear]))
    if bins and dtype == "float32":
        k = np.where(R == 2, 1, np.maximum(1, truth.condition / 1e3))[clear] * max(1, np.sqrt(2 * bins) / 5)
        assert (error / k).max() <= CELL[dtype]
        assert np.sqrt(np.mean((error / k) ** 2)) <= 5 * RMS[dtype]
        assert result.max_F == pytest.approx(truth.max_F, rel=CELL[dtype] * k.max(), abs=CELL[dtype] * k.max())
        return
    assert error.max() <= CELL[dtype]
    assert np.sqrt(np.mean(error**2)) <= RMS[dtype]
    assert result.max_F == pytest.approx(truth.max_F, abs=1e-3 if dtype == "float32" else 1e-8)
    assert R.ravel()[np.ravel_multi_index(result.index, R.shape)] >= truth.max_F - (
        1e-3 if dtype == "float32" else 1e-9
    )
    assert result.lnBtSG == pytest.approx(truth.ln_bayes, abs=LN_B[dtype])
    w = truth.weights
    assert np.abs(result.p_t0 - w.sum(1)).max() <= P[dtype]
    assert np.abs(result.p_tau - w.sum(0)).max() <= P[dtype]
