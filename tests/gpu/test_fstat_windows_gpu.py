"""Searches and plans of the transient F-statistic on a GPU with windows of every kind, through the public functions.

Every kernel is tested in tests/kernels/test_fstat_windows.py.  Needs NumPy, SciPy, CuPy and pytest alone.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.test_fstat_windows import T0, WINDOWS, T
from tests.truth import fstat as reference

from skysieve.fstat import BSGL, Grid, TransientPlan, search, synth_atoms, timing
from skysieve.fstat.inputs.bins import bin_atoms
from skysieve.fstat.inputs.windows import resolve_window

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("window", list(WINDOWS))
def test_half_a_year(window):
    """8,000 bins, random cells.  For the window that is a function, each of two methods takes some of the columns."""
    n, w = 8000, resolve_window(WINDOWS[window], 3)
    atoms = synth_atoms(T0, n * T, duty=0.8, seed=8)
    grid = Grid.from_lists(T0 + T * np.arange(n - 2), np.unique(np.geomspace(2, n, 60).round()) * T)
    with TransientPlan(grid, window=WINDOWS[window], dtype="float32", device="cuda") as plan:
        r = plan.execute(atoms)
    bins, rng, errors = bin_atoms(atoms), np.random.default_rng(0), []
    for m, c in zip(rng.integers(0, n - 2, 300), rng.integers(0, grid.shape[1], 300), strict=True):
        F, condition = reference.cell(bins, int(grid.t0s[m]), int(grid.taus[c]), w)
        if abs(condition / 1e4 - 1) > 0.01:
            errors.append(abs(float(r.F[m, c]) - F) / max(1, F))
    assert max(errors) <= 3e-4
    assert np.sqrt(np.mean(np.square(errors))) <= 1e-5


def test_searches_with_all_windows():
    """The same table as the CPU's."""
    items = [synth_atoms(T0, 60 * T, seed=i) for i in range(20)]
    grid = Grid(t0=T0, t0_band=56 * T, dt0=2 * T, tau=3 * T, tau_band=50 * T, dtau=3 * T)
    options = {"windows": {**WINDOWS, "exp": "exp"}, "topk": 5, "posteriors": 2, "bsgl": BSGL(10.0)}
    gpu, host = (search(list(items), grid, device=device, **options) for device in ("cuda", "cpu"))
    for name in (*WINDOWS, "exp"):
        a, b = gpu.columns(name), host.columns(name)
        assert np.array_equal(a["template"], b["template"])
        assert np.array_equal(a["t0_ml"], b["t0_ml"])
        np.testing.assert_allclose(a["max2F"], b["max2F"], rtol=1e-4)
        np.testing.assert_allclose(a["log10BSGL"], b["log10BSGL"], atol=1e-3)


@pytest.mark.parametrize("window", ["rect", "exp", "two rates", "function"])
def test_predicted_times(window, tmp_path, monkeypatch):
    """Constants are measured on the device and stored; more work takes longer."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    with TransientPlan(window=WINDOWS.get(window, window), dtype="float32", device="cuda", keep_map=False) as plan:
        with timing.measuring():
            short, long = (plan.describe(synth_atoms(T0, n * T)) for n in (48, 4000))
        short = plan.describe(synth_atoms(T0, 48 * T))
        monkeypatch.setattr(timing, "measure", lambda *a: pytest.fail("measured again"))
        again = plan.describe(synth_atoms(T0, 48 * T))
    assert "cuda" in short["device"]
    assert again == short
    assert 0 < short["seconds"] <= long["seconds"] < np.inf  # constants measured on a busy machine may be 0
