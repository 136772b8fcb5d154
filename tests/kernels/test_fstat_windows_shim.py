"""Windows that are sums of exponentials, polynomials or any function, and lines of many detectors: the CUDA code on
the host, against the slow truth, in both orders of threads."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from skysieve.core import measured
from skysieve.fstat import Grid, WindowSum, synth_atoms, timing
from skysieve.fstat.contract import Lines, MapJob, Spec, make_job, make_schedule
from skysieve.fstat.cpu import engine as cpu
from skysieve.fstat.cuda import engine as cuda
from skysieve.fstat.cuda import windows as cuda_windows
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.grid import BYTES_T0, BYTES_TAU
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.batch import AtomsBatch, bin_batch, groups
from tests.kernels.shim import shim_runtime
from tests.kernels.test_fstat_shim import CELL, GRIDS, T0, T, check, runtime, templates
from tests.truth import fstat as reference

__all__ = ["runtime"]


def power_law(x):
    return (1 + x) ** -1.5


WINDOWS = {
    "two rates": WindowSum([(1, 1), (-1, 5)]),
    "polynomial": WindowSum([((0, 1, 0.5), 1), (0.3, 0)]),
    "damped tone": WindowSum([(1, 0.5 + 6j)]),
    "function": power_law,
}

BOUND = {"float64": 1e-10}
"""Sums of hundreds of roundings of 1e-16, in cells whose condition number is up to 1e4."""


@functools.cache
def truth_of(grid, window, seed=0):
    return reference.transient_map(templates(seed + 1)[seed], GRIDS[grid], resolve_window(WINDOWS[window], 3))


def engine(runtime, window, dtype, **options):
    return cuda.Engine(Spec(resolve_window(WINDOWS[window], 3), np.dtype(dtype), **options), runtime=runtime)


def cases():
    """Windows and grids; of functions also by transforms, but where many groups cost a host seconds."""
    both = [(grid, window, False) for grid in GRIDS for window in WINDOWS]
    few = [grid for grid in GRIDS if grid not in ("off the bins", "too short and too late")]
    return both + [(grid, "function", True) for grid in few]


@pytest.mark.parametrize(("grid", "window", "fourier"), cases())
def test_maps(runtime, grid, window, fourier):
    w = resolve_window(WINDOWS[window], 3)
    for dtype in ("float32", "float64"):
        e = engine(runtime, window, dtype)
        e.launcher.fourier = fourier
        out = e.execute(make_job(templates(1), GRIDS[grid], w, np.dtype(dtype)))
        check(out, 0, truth_of(grid, window), dtype, bound=BOUND)
    names = {name for name, *_ in runtime.launches}
    assert ("cells" if fourier else "sum_march" if window != "function" else "direct") in names
    assert "cells" not in names or fourier


@pytest.mark.parametrize("window", list(WINDOWS))
@pytest.mark.parametrize("marginals", [False, True])
def test_batches_without_a_map(runtime, window, marginals):
    """Templates at different points of the sky, twice on the same engine, which keeps its weights."""
    w, grid = resolve_window(WINDOWS[window], 3), GRIDS["more t0 than tau"]
    bins = templates(3, sky=True)
    e = engine(runtime, window, "float32", keep_map=False, marginals=marginals)
    for _ in range(2):
        out = e.execute(make_job(bins, grid, w, np.float32))
        for i, b in enumerate(bins):
            check(out, i, reference.transient_map(b, grid, w), "float32", marginals)
    e.close()


@pytest.mark.parametrize("window", list(WINDOWS))
def test_tiles_and_chunks_do_not_change_the_answer(runtime, monkeypatch, window):
    w, grid = resolve_window(WINDOWS[window], 3), GRIDS["full"]
    monkeypatch.setattr(cuda_windows, "TILE_BYTES", 1)
    monkeypatch.setattr(cuda_windows, "KEPT_SHARE", 0.0)
    monkeypatch.setattr(cuda_windows, "FOURIER", cuda_windows.DIRECT["float64"] * 1000 / 7460)  # from 1000 bins on
    monkeypatch.setattr("skysieve.fstat.cuda.launch.FEWEST_BINS", 7)
    monkeypatch.setattr("skysieve.fstat.cuda.windows.SUM_RESIDENT", 10**4)
    out = engine(runtime, window, "float64").execute(make_job(templates(1), grid, w, np.float64))
    check(out, 0, truth_of("full", window), "float64", bound=BOUND)
    if window == "function":
        assert {"direct", "cells"} <= {name for name, *_ in runtime.launches}


@pytest.mark.parametrize("window", ["two rates", "function"])
def test_a_glitch_leaves_nothing_in_windows_beside_it(runtime, window):
    atoms = synth_atoms(T0, 60 * T, seed=4)
    clean = bin_atoms(atoms)
    for a in atoms:
        a.Fa[30] *= np.float32(1e6)
        a.Fb[30] *= np.float32(1e6)
    w = resolve_window(WINDOWS[window], 3)
    grid = Grid(t0=T0, t0_band=50 * T, dt0=T, tau=4 * T, tau_band=2 * T, dtau=T)
    for dtype in ("float32", "float64"):
        out = engine(runtime, window, dtype).execute(make_job([bin_atoms(atoms)], grid, w, np.dtype(dtype)))
        for row in (30 - 12, 31):
            truth = reference.cell(clean, T0 + row * T, 4 * T, w)[0]
            assert out.F[0, row, 0] == pytest.approx(truth, rel=CELL["float32"])


def test_polynomials_of_high_degree(runtime):
    """x^8 exp(-x) spans 25 orders of magnitude: each cell has its own unit."""
    w = resolve_window(WindowSum([((0,) * 8 + (1,), 1)]), 3)
    bins, grid = templates(1), GRIDS["coarse"]
    spec = Spec(w, np.dtype("f4"))
    out = cuda.Engine(spec, runtime=runtime).execute(make_job(bins, grid, w, np.float32))
    check(out, 0, reference.transient_map(bins[0], grid, w), "float32")


LINE_GRIDS = (
    Grid(t0=T0, t0_band=38 * T, dt0=T, tau=2 * T, tau_band=8 * T, dtau=T),
    Grid(t0=T0 + 700, t0_band=36 * T, dt0=5000, tau=4100, tau_band=20 * T, dtau=3300),
)


@pytest.mark.parametrize(("order", "detectors"), [("forwards", 2), ("backwards", 2), ("forwards", 5)])
@pytest.mark.parametrize("window", ["rect", "exp", "two rates", "function"])
def test_lines(window, order, detectors):
    """Two detectors and five; a glitch in the first template of the first."""
    w, dtype, runtime = resolve_window(WINDOWS.get(window, window), 3), np.dtype(np.float32), shim_runtime(order)
    lines = Lines(3.0, (-1.0, -1.3, -1.5, -2.0, -0.7)[:detectors])
    made = [
        AtomsBatch.stack([synth_atoms(T0, 40 * T, detectors=["H1"], gaps=gaps, seed=10 * x + i)[0] for i in range(2)])
        for x, gaps in enumerate([[], [(T0 + 23 * T, T0 + 31 * T)], [], [], []][:detectors])
    ]
    made = [AtomsBatch(p.t, p.a2, p.b2, p.ab, p.Fa, p.Fb, p.tatom, f"D{x}") for x, p in enumerate(made)]
    made[0].Fa[0, 10] *= np.float32(1e4)
    (parts,) = groups(made, 0)
    binned = bin_batch(parts, dtype, each_detector=True)
    for grid in LINE_GRIDS[: 1 if window == "function" else 2]:
        job = MapJob(binned.bank, T, grid.taus.astype(float), make_schedule(grid, w, binned), binned.detectors)
        out = cuda.Engine(Spec(w, dtype, keep_map=False, marginals=False, lines=lines), runtime=runtime).execute(job)
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


def test_more_detectors_than_a_gpu_takes_are_refused():
    many = Lines(3.0, (-1.0,) * 9)
    with pytest.raises(ValueError, match="9 detectors"):
        cuda.Engine(Spec(resolve_window("exp", 3), np.dtype("f4"), lines=many), runtime=shim_runtime())


@pytest.mark.parametrize(
    ("window", "options"),
    [
        ("rect", {}),
        ("exp", {"keep_map": False}),
        ("two rates", {"keep_map": False, "marginals": False}),
        ("function", {}),
    ],
)
def test_predicted_times(monkeypatch, tmp_path, window, options):
    """The constants are measured on the device and stored: a second engine measures nothing."""
    runtime = shim_runtime()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measured, "_used", {})
    monkeypatch.setattr(timing, "GPU_SETUPS", ((12, 1, 1, 1), (24, 1, 1, 1), (24, 1, 1, 2)))
    monkeypatch.setattr(timing, "GPU_SETUPS_ALONE", ((12, 1, 1, 1), (24, 1, 1, 1)))
    w = resolve_window(WINDOWS.get(window, window), 3)
    job = make_job(templates(2), GRIDS["coarse"], w, np.float32)
    spec = Spec(w, np.dtype("f4"), **options)
    facts = cuda.Engine(spec, runtime=runtime).describe(job)
    host = cpu.Engine(spec, threads=1)
    assert facts.keys() == host.describe(job).keys()
    host.close()
    assert facts["seconds"] > 0
    one = make_job(templates(1), GRIDS["coarse"], w, np.float32)
    alone = cuda.Engine(spec, runtime=runtime).describe(one)["seconds"]
    names = [path.name for path in (tmp_path / "skysieve").iterdir()]
    assert sum("-alone" in name for name in names) == (window != "function")  # constants of its own
    assert alone > 0
    assert facts["method"] == w.algorithm
    rows, columns = GRIDS["coarse"].shape
    maps = job.n_templates * rows * columns * 4 * options.get("keep_map", True)
    assert facts["bytes"] == job.bank.nbytes + BYTES_T0 * rows + BYTES_TAU * columns + maps
    monkeypatch.setattr(timing, "measure", lambda cases: pytest.fail("measured again"))
    assert cuda.Engine(spec, runtime=runtime).describe(job) == facts
