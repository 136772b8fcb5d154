"""Searches over many templates on GPUs against the CPU's: atoms on either side, lines, several GPUs.

Tolerance: 2F in float32 to 1e-4 of itself (a third of what a cell may err); the best cells are signals, far above
their neighbours.
"""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.device import resolve
from skysieve.fstat import BSGL, AtomsBatch, Grid, Injection, search, synth_atoms

pytestmark = pytest.mark.gpu

T = 1800
T0 = 1_000_000_000
GRID = Grid(t0=T0, t0_band=46 * T, dt0=T, tau=2 * T, tau_band=46 * T, dtau=T)
COUNT = 150
LOUD = {5: 11.0, 17: 13.0, 77: 12.0, 140: 15.0}


def atoms(i, sky):
    signal = Injection(T0 + 10 * T, 12 * T, snr=LOUD[i], window="exp") if i in LOUD else None
    return synth_atoms(T0, 48 * T, seed=i, inject=signal, gaps=[(T0 + 30 * T, T0 + 33 * T)], ra=0.5 + 0.01 * i * sky)


def batches(xp=np, sky=0.0, size=40):
    """Batches of two detectors; each template at a point of the sky of its own where ``sky`` is not 0."""
    for start in range(0, COUNT, size):
        some = [atoms(i, sky) for i in range(start, min(start + size, COUNT))]
        params = {"f0": 30 + 0.01 * np.arange(start, start + len(some))}
        host = [AtomsBatch.stack([t[d] for t in some], params) for d in range(2)]
        yield [
            AtomsBatch(
                b.t, *(xp.asarray(getattr(b, f)) for f in ("a2", "b2", "ab", "Fa", "Fb")), detector=b.detector,
                params=params,
            )
            for b in host
        ]  # fmt: skip


def compare(found, expected, lines=False):
    assert (found.n_templates, found.n_bad) == (expected.n_templates, expected.n_bad) == (COUNT, 0)
    for window in ("rect", "exp"):
        a, b = found.columns(window), expected.columns(window)
        assert a["template"].tolist() == b["template"].tolist()
        assert set(a["template"][:4]) == set(LOUD)
        for name in ("t0_ml", "tau_ml", "f0"):
            assert np.array_equal(a[name], b[name]), name
        np.testing.assert_allclose(a["max2F"], b["max2F"], rtol=1e-4)
        np.testing.assert_allclose(a["lnBtSG"], b["lnBtSG"], atol=1e-2)
        if lines:
            np.testing.assert_allclose(a["log10BSGL"], b["log10BSGL"], atol=1e-3)
        assert found.histogram(window)[1].sum() == COUNT


@pytest.mark.parametrize("sky", [0.0, 1.0])
@pytest.mark.parametrize("on_device", [False, True])
def test_search(on_device, sky):
    cupy = pytest.importorskip("cupy")
    options = {"topk": 4, "posteriors": 2}
    expected = search(batches(sky=sky), GRID, device="cpu", **options)
    found = search(batches(cupy if on_device else np, sky), GRID, device="cuda", **options)
    compare(found, expected)
    for n in found.columns("exp")["template"][:2]:
        for p, q in zip(found.posterior("exp", n), expected.posterior("exp", n), strict=True):
            np.testing.assert_allclose(p, q, atol=1e-3)


def test_search_with_lines():
    options = {"topk": 4, "bsgl": BSGL(10.0)}
    compare(search(batches(), GRID, device="cuda", **options), search(batches(), GRID, device="cpu", **options), True)


def test_all_gpus():
    """One GPU or several: the same table, also when the search continues from a checkpoint."""
    one = search(batches(size=11), GRID, device="cuda:0", topk=4)
    compare(search(batches(size=11), GRID, device="cuda:all", topk=4), one)
    if len(resolve("cuda:all")) > 1:
        compare(search(batches(size=11), GRID, device=["cuda:0", "cuda:1"], topk=4), one)
