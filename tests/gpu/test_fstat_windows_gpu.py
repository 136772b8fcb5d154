"""The transient F-statistic on a GPU for windows of every kind, lines of many detectors, predicted times.

Judged by float64 sums of every cell; needs NumPy, SciPy, CuPy and pytest alone.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tests.gpu.test_fstat_gpu import CELL, GRIDS, T0, T, patchy
from tests.truth import fstat as reference

from skysieve.core.device import resolve
from skysieve.fstat import BSGL, Grid, TransientPlan, WindowSum, search, synth_atoms, timing, transient_map
from skysieve.fstat.contract import Lines, MapJob, Spec, make_job, make_schedule
from skysieve.fstat.cuda import engine as cuda
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.window_kinds import Algorithm
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.batch import AtomsBatch, bin_batch, groups

pytestmark = pytest.mark.gpu


def power_law(x):
    return (1 + x) ** -1.5


WINDOWS = {
    "two rates": WindowSum([(1, 1), (-1, 5)]),
    "polynomial": WindowSum([((0, 1, 0.5), 1), (0.3, 0)]),
    "damped tone": WindowSum([(1, 0.5 + 6j)]),
    "function": power_law,
}
BOUND = {"float64": 1e-10, "float32": 3e-4}
"""Required in float32; in float64 hundreds of roundings of 1e-16 in cells whose condition number is up to 1e4."""


@functools.cache
def truth_of(grid, window):
    return reference.transient_map(bin_atoms(patchy()), GRIDS[grid], resolve_window(WINDOWS[window], 3))


def engine(window, dtype, fourier=None, **options):
    made = cuda.Engine(Spec(resolve_window(window, 3), np.dtype(dtype), **options), device=resolve("cuda")[0])
    if made.algorithm == Algorithm.WEIGHTS:
        made.launcher.fourier = fourier
    return made


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("window", "fourier"), [(w, None) for w in WINDOWS] + [("function", True), ("function", False)]
)
@pytest.mark.parametrize("grid", ["full", "more tau than t0", "one tau", "coarse", "off the bins", "before the data"])
def test_maps(grid, window, fourier, dtype):
    w, truth = resolve_window(WINDOWS[window], 3), truth_of(grid, window)
    bins = [bin_atoms(patchy()), bin_atoms(patchy(seed=6, sky=0.2))]
    for options in ({}, {"keep_map": False}):
        e = engine(WINDOWS[window], dtype, fourier, **options)
        out = e.execute(make_job(bins, GRIDS[grid], w, np.dtype(dtype)))
        e.close()
        if out.F is not None:
            F, R = out.F[0].astype(float), truth.F
            assert np.array_equal(np.isnan(F), np.isnan(R))
            clear = np.isfinite(R) & ~(np.abs(truth.condition / 1e4 - 1) < 0.01)
            assert np.array_equal((F == 2)[clear], (R == 2)[clear])
            assert (np.abs(F - R)[clear] / np.maximum(1, np.abs(R[clear]))).max() <= BOUND[dtype]
        loose = dtype == "float32"
        assert out.max_F[0] == pytest.approx(truth.max_F, abs=1e-3 if loose else 1e-9)
        cells = int(np.isfinite(truth.F).sum())
        assert np.log(70 / cells) + out.log_sum[0] == pytest.approx(truth.ln_bayes, abs=1e-3 if loose else 1e-9)
        weights, most = truth.weights, 1e-5 + 1e-7 * truth.max_F if loose else 1e-10
        assert np.abs(np.exp(out.row_log[0] - out.log_sum[0]) - weights.sum(1)).max() <= most
        assert np.abs(np.exp(out.column_log[0] - out.log_sum[0]) - weights.sum(0)).max() <= most


@pytest.mark.parametrize("window", list(WINDOWS))
def test_half_a_year(window):
    """8,000 bins: random cells; of the function both methods take part of the columns."""
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


@pytest.mark.parametrize("window", ["two rates", "function"])
def test_a_glitch_leaves_nothing_in_windows_beside_it(window):
    atoms = synth_atoms(T0, 96 * T, seed=4)
    clean, w = bin_atoms(atoms), resolve_window(WINDOWS[window], 3)
    for a in atoms:
        a.Fa[48] *= np.float32(1e6)
        a.Fb[48] *= np.float32(1e6)
    grid = Grid(t0=T0, t0_band=90 * T, dt0=T, tau=4 * T, tau_band=2 * T, dtau=T)
    r = transient_map(atoms, grid, window=WINDOWS[window], dtype="float32", device="cuda")
    for row in (48 - 12, 49):
        assert r.F[row, 0] == pytest.approx(reference.cell(clean, T0 + row * T, 4 * T, w)[0], rel=CELL["float32"])


@pytest.mark.parametrize("detectors", [2, 5])
@pytest.mark.parametrize("window", ["rect", "exp", "two rates", "function"])
def test_lines(window, detectors):
    """Two detectors and five; a glitch in the first template of the first."""
    given = WINDOWS.get(window, window)
    w, dtype = resolve_window(given, 3), np.dtype(np.float32)
    lines = Lines(3.0, (-1.0, -1.3, -1.5, -2.0, -0.7)[:detectors])
    made = [
        AtomsBatch.stack([synth_atoms(T0, 48 * T, detectors=["H1"], seed=10 * x + i)[0] for i in range(3)])
        for x in range(detectors)
    ]
    made = [AtomsBatch(p.t, p.a2, p.b2, p.ab, p.Fa, p.Fb, p.tatom, f"D{x}") for x, p in enumerate(made)]
    made[0].Fa[0, 10] *= np.float32(1e4)
    (parts,) = groups(made, 0)
    binned = bin_batch(parts, dtype, each_detector=True)
    grid = Grid(t0=T0 - 5 * T - 901, t0_band=45 * T, dt0=2500, tau=2 * T, tau_band=30 * T, dtau=1100)
    job = MapJob(binned.bank, T, grid.taus.astype(float), make_schedule(grid, w, binned), binned.detectors)
    e = engine(given, dtype, keep_map=False, marginals=False, lines=lines)
    out = e.execute(job)
    e.close()
    for i in range(2):
        F, *each = (
            reference.transient_map(Bins(binned.t_start, T, b.template(i).astype(float), b.occupied), grid, w).F
            for b in (binned.bank, *binned.detectors)
        )
        weighed = [np.full_like(F, lines.log_gauss), *(p + f for p, f in zip(lines.log_line, each, strict=True))]
        with np.errstate(invalid="ignore"):
            truth = F - np.logaddexp.reduce(weighed)
        scale = max(1, np.nanmax(F))
        assert out.max_F[i] == pytest.approx(np.nanmax(F), abs=CELL["float32"] * scale)
        assert out.line_max[i] == pytest.approx(np.nanmax(truth), abs=CELL["float32"] * scale)
        assert truth.ravel()[out.line_index[i]] >= np.nanmax(truth) - CELL["float32"] * scale


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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with TransientPlan(window=WINDOWS.get(window, window), dtype="float32", device="cuda", keep_map=False) as plan:
        short, long = (plan.describe(synth_atoms(T0, n * T)) for n in (48, 4000))
        monkeypatch.setattr(timing, "measure", lambda cases: pytest.fail("measured again"))
        again = plan.describe(synth_atoms(T0, 48 * T))
    assert "cuda" in short["device"]
    assert again == short
    assert 1e-5 < short["seconds"] < long["seconds"] < 1
