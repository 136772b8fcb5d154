"""The choice of the method on a GPU against measured times of both methods (no GPU needed)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skysieve.periodogram.contract import Grids, Spec
from skysieve.periodogram.cuda.cost import DEFAULTS
from skysieve.periodogram.cuda.sinusoid.methods import SinusoidMethods, nufft_methods

H100 = {"multiprocessors": 132, "shared": 232_448}
TIMES = np.genfromtxt(
    Path(__file__).with_name("h100_times.csv"), delimiter=",", names=True, dtype=None, encoding="utf-8"
)
"""Milliseconds on an H100 of direct sums, of combs and of what its matrix units serve, samples where they can.

Random sizes that the costs were not fitted to, 1 to 4,000 objects.
"""


def methods_of(dtype, nf, cycles, method="auto", matrix=False):
    grids = Grids(np.array([0.2]), np.array([cycles / 120]), np.array([nf], np.int64), True)
    spec = Spec(method=method, dtype=np.dtype(dtype), return_power=False)
    return SinusoidMethods(spec, grids, DEFAULTS[spec.dtype], matrix=matrix, **H100)


def choice(methods, points, cycles):
    number = methods.choose(methods.grids.nf, np.array([cycles]))
    return "direct" if number[0] < 0 or points <= methods.few(methods.grids.nf, number)[0] else "nufft"


@pytest.mark.parametrize("nufft", ["combs", "samples"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_choice_is_at_most_a_quarter_slower(dtype, nufft):
    rows = TIMES[TIMES["dtype"] == dtype]
    assert len(rows) > 60
    all_methods = [methods_of(dtype, r["nf"], r["cycles"], matrix=nufft == "samples") for r in rows]
    chosen = [choice(p, r["points"], r["cycles"]) for p, r in zip(all_methods, rows, strict=True)]
    names = {"direct": "direct", "nufft": nufft}
    ratios = [r[names[c]] / min(r["direct"], r[nufft]) for r, c in zip(rows, chosen, strict=True)]
    assert max(ratios) <= 1.25
    assert np.mean(ratios) <= 1.02
    assert set(chosen) == {"direct", "nufft"}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_method_of_every_card_has_costs(dtype):
    """Shared memory of a block from 48 KiB (old cards) to 227 KiB; more points never turn a choice back."""
    for shared in (48 << 10, 64 << 10, 99 << 10, 163 << 10, 227 << 10):
        for method in nufft_methods(np.dtype(dtype), shared):
            base, point = method.line(DEFAULTS[np.dtype(dtype)], np.array([64, 700, 1_000_000]))
            assert (base > 0).all()
            assert (point > 0).all()


def test_the_choice_follows_from_the_object_alone():
    """Shared grids and one grid an object, alone or in company: the same number of points decides."""
    nf, cycles = np.array([300, 700, 9000, 250_000]), np.array([0.15, 0.3, 0.06, 0.004])
    grids = Grids(np.full(4, 0.2), cycles / 120, nf, False)
    together = SinusoidMethods(Spec(return_power=False), grids, DEFAULTS[np.dtype(np.float64)], **H100)
    few = together.few(nf, together.choose(nf, cycles))
    for i in range(4):
        alone = methods_of("float64", nf[i], cycles[i])
        assert alone.few(alone.grids.nf, alone.choose(alone.grids.nf, cycles[i : i + 1]))[0] == few[i]
