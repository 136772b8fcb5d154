"""CPU threads of a plan: their number changes no bit."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core import tasks
from skysieve.sphere import ConvolvePlan, Gaussian, Healpix
from skysieve.sphere.cpu import ring
from skysieve.sphere.grids import healpix

KERNELS = Gaussian(fwhm=0.3), Gaussian(fwhm=0.5)


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch):
    """All threads share even these small maps, and pixels are shared too."""
    monkeypatch.setattr(tasks, "HANDOFF_SECONDS", 1e-9)
    monkeypatch.setattr(healpix, "PIECE", 1000)
    monkeypatch.setattr(healpix, "CHUNK", 300)
    monkeypatch.setattr(ring, "MOST_PIXELS", 500)


@pytest.mark.parametrize("method", ["ring", "direct"])
@pytest.mark.parametrize("nest", [False, True])
@pytest.mark.parametrize(("spin", "dtype"), [(0, "float32"), (2, "float64")])
def test_threads_change_no_bit(method, nest, spin, dtype):
    rng = np.random.default_rng(7)
    grid = Healpix(16, nest=nest)
    maps = rng.standard_normal((3, *([2] if spin else []), 12 * 16**2)).astype(dtype)
    mask = rng.random(12 * 16**2) < 0.8
    mask[: 12 * 16**2 // 3] = False  # whole rings are unused in RING order
    plans = {"kernels": (KERNELS, None), "masked": (KERNELS, mask), "adjoint": (KERNELS[0], None)}
    for name, (kernels, some) in plans.items():
        found = []
        for threads in (1, 5):
            with ConvolvePlan(
                kernels, grid, spin=spin, dtype=dtype, mask=some, method=method, threads=threads, device="cpu"
            ) as plan:
                found.append(plan.adjoint(maps) if name == "adjoint" else plan.execute(maps))
        np.testing.assert_array_equal(found[0], found[1], err_msg=name)
        assert np.abs(found[0]).max() > 0.01


def test_bad_pixels_are_those_of_one_thread():
    rng = np.random.default_rng(8)
    maps = rng.standard_normal(12 * 16**2)
    maps[rng.random(len(maps)) < 0.01] = healpix.UNSEEN
    maps[5], maps[-1] = np.nan, np.inf
    with tasks.TaskPool(4) as pool:
        bad = healpix.bad_pixels(maps, np.dtype(np.float32), pool)
        assert healpix.bad_pixels(np.zeros(3000), np.dtype(np.float32), pool) is None
        np.testing.assert_array_equal(healpix.reorder(maps, to="ring", pool=pool), healpix.reorder(maps, to="ring"))
    np.testing.assert_array_equal(bad, (maps == healpix.UNSEEN) | ~np.isfinite(maps))
    np.testing.assert_array_equal(bad, healpix.bad_pixels(maps, np.dtype(np.float32)))
