"""Atoms with noise weights of any size, and maps of them by sums in long double, bin by bin."""

from __future__ import annotations

import numpy as np
from tests.conformance.fstat_truth import T0, T
from tests.truth.fstat import Truth

from skysieve.fstat import Atoms, synth_atoms
from skysieve.fstat.inputs.grid import make_schedule

L = np.longdouble
LIMIT = {"float64": 1e-9, "float32": 3e-4}
"""required: largest |dF| / max(1, F), whatever the weights are."""


def weighed(atoms, factor, dtype="float32"):
    """Atoms whose noise weights (antenna factors) are multiplied by `factor`, and their data by its square root."""
    f = np.asarray(factor, float)
    kind = np.complex64 if dtype == "float32" else np.complex128
    a2, b2, ab = ((x * f).astype(dtype) for x in (atoms.a2, atoms.b2, atoms.ab))
    data = ((x * np.sqrt(f)).astype(kind) for x in (atoms.Fa, atoms.Fb))
    return Atoms(atoms.t, a2, b2, ab, *data, atoms.tatom, atoms.detector)


def some_sfts(atoms, which):
    """Some of the SFTs."""
    parts = (x[which] for x in (atoms.t, atoms.a2, atoms.b2, atoms.ab, atoms.Fa, atoms.Fb))
    return Atoms(*parts, atoms.tatom, atoms.detector)


def any_weights(rng, n, detectors=("H1", "L1"), decades=30, dtype="float32"):
    """Detectors of random weights that come and go: levels that last, single SFTs, gaps, weights of zero."""
    out = []
    for atoms in synth_atoms(T0, n * T, detectors=list(detectors), seed=int(rng.integers(2**31)), dtype="float64"):
        edges = np.sort(rng.choice(n, rng.integers(1, 6), replace=False))
        levels = rng.uniform(-decades, 0, len(edges) + 1)
        power = levels[np.searchsorted(edges, np.arange(len(atoms)), side="right")]
        if rng.random() < 0.4:
            power = power + rng.uniform(-decades / 3, 0, len(atoms)) * (rng.random(len(atoms)) < rng.random())
        factor = 10.0 ** np.maximum(power, -decades)
        for _ in range(rng.integers(0, 3)):
            a = rng.integers(0, n)
            factor[a : a + rng.integers(1, n)] = 0 if rng.random() < 0.5 else factor[a]
        keep = rng.random(len(atoms)) < rng.choice([1.0, 0.6, 0.2])
        a = rng.integers(0, n)
        keep[a : a + rng.integers(0, n // 2)] = False
        keep[rng.integers(0, len(atoms))] = True
        out.append(some_sfts(weighed(atoms, factor, dtype), keep))
    return out


def long_sums(x, schedule, window, taus, tatom):
    """The seven sums of every cell in long double, shape (7, N_t0, N_tau)."""
    bins = x.astype(L)
    out = np.zeros((7, *schedule.shape), L)
    at = np.arange(x.shape[1])
    for c, tau in enumerate(taus):
        since = at[None, :] - schedule.first[:, None]
        inside = (since >= 0) & (since < schedule.length[schedule.group, c][:, None])
        time = (since * tatom + schedule.offset[schedule.group][:, None]) / float(tau)
        w = np.zeros(inside.shape, L)
        if window.kind == "exp":
            w[inside] = np.exp(-time[inside].astype(L))
        else:
            w[inside] = window.weights(time[inside])
        out[:3, :, c] = (bins[:3, None, :] * w * w).sum(axis=2)
        out[3:, :, c] = (bins[3:, None, :] * w).sum(axis=2)
    return out


def long_map(bins, grid, window):
    """`Truth` of a grid, by sums in long double."""
    s = make_schedule(grid, window, bins)
    A, B, C, ar, ai, br, bi = long_sums(bins.x, s, window, grid.taus, bins.tatom)
    size = A + B
    with np.errstate(divide="ignore", invalid="ignore"):
        A, B, C = (np.where(size > 0, x / size, L(0)) for x in (A, B, C))
        d = A * B - C * C
        split = np.sqrt((A - B) ** 2 + 4 * C * C)
        condition = np.where(4 * d > 0, (1 + split) ** 2 / (4 * d), np.inf)
        top = B * (ar**2 + ai**2) + A * (br**2 + bi**2) - 2 * C * (ar * br + ai * bi)
        F = np.where((size > 0) & (condition <= 1e4), top / d / np.where(size > 0, size, L(1)), L(2))
    valid = ~s.late[:, None] & (np.arange(s.shape[1]) >= s.valid_from[s.group][:, None])  # two bins or more
    F, condition = np.where(valid, F, L(np.nan)), np.where(valid, condition, L(np.nan))
    return Truth(F.astype(np.float64), condition.astype(np.float64))


def error_of(F, truth):
    """Largest error of a map, and the number of cells where map and reference differ in having the fallback F = 2."""
    F, R = np.asarray(F, np.float64), truth.F
    assert np.array_equal(np.isnan(F), np.isnan(R))
    # required: cells within 1% of the limit of the condition number may fall on either side of it
    clear = np.isfinite(R) & ~(np.abs(truth.condition / 1e4 - 1) < 0.01)
    wrong = int(((F == 2) != (R == 2))[clear].sum())
    error = np.abs(F - R)[clear] / np.maximum(1, np.abs(R[clear]))
    return float(error.max(initial=0)), wrong
