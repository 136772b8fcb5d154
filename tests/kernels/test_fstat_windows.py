"""Windows that are sums of exponentials, polynomials or any function, and lines of many detectors: the CUDA code
against `tests.truth.fstat`, on the host shim and on a GPU."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from skysieve.fstat import Grid, WindowSum, synth_atoms, timing
from skysieve.fstat.contract import Lines, Spec, make_job
from skysieve.fstat.cpu import engine as cpu
from skysieve.fstat.cuda import engine as cuda
from skysieve.fstat.cuda import windows as cuda_windows
from skysieve.fstat.inputs.bins import bin_atoms
from skysieve.fstat.inputs.grid import BYTES_T0, BYTES_TAU
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.batch import AtomsBatch
from tests.kernels.devices import launched, on_gpu, one_order
from tests.kernels.shim import shim_runtime
from tests.kernels.test_fstat import CELL, GRIDS, LEAN, T0, T, bins_of, check, check_lines, grids, templates
from tests.marks import slow
from tests.truth import fstat as reference


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
SLOW = ("off the bins", "too short and too late")
"""Grids whose many groups of columns take the shim seconds by Fourier transforms."""


@functools.cache
def truth_of(n, grid, window):
    return reference.transient_map(templates(1, n=n)[0], grids(n)[grid], resolve_window(WINDOWS[window], 3))


def engine(runtime, window, dtype, **options):
    w = resolve_window(WINDOWS.get(window, window), 3)
    return cuda.Engine(Spec(w, np.dtype(dtype), **options), runtime=runtime)


@pytest.mark.few
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_maps(runtime, grid, window):
    """Windows of any function by direct sums, by Fourier transforms, and by what is chosen."""
    n = bins_of(runtime)
    w, bins = resolve_window(WINDOWS[window], 3), templates(1, n=n)
    if on_gpu(runtime):
        bins += templates(1, seed=6, n=n)
    ways = [False]
    if window == "function":
        ways = [None, False, True] if on_gpu(runtime) else [False] if grid in SLOW else [False, True]
    for fourier in ways:
        runtime.launches.clear()
        for dtype in CELL:
            for options in ({}, LEAN[0]) if on_gpu(runtime) else ({},):
                e = engine(runtime, window, dtype, **options)
                if window == "function":
                    e.launcher.fourier = fourier
                out = e.execute(make_job(bins, grids(n)[grid], w, np.dtype(dtype)))
                e.close()
                check(out, 0, truth_of(n, grid, window), dtype, bound=BOUND)
        if fourier is not None:
            assert ("cells" if fourier else "sum_march" if window != "function" else "direct") in launched(runtime)
            assert "cells" not in launched(runtime) or fourier


@pytest.mark.few
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


@pytest.mark.slow
@pytest.mark.parametrize("window", list(WINDOWS))
def test_tiles_and_chunks_do_not_change_the_answer(runtime, monkeypatch, window):
    w, n = resolve_window(WINDOWS[window], 3), bins_of(runtime)
    monkeypatch.setattr(cuda_windows, "TILE_BYTES", 1)
    monkeypatch.setattr(cuda_windows, "KEPT_SHARE", 0.0)
    monkeypatch.setattr(cuda_windows, "FOURIER", cuda_windows.DIRECT["float64"] * 1000 / 7460)  # from 1000 bins on
    monkeypatch.setattr("skysieve.fstat.cuda.launch.FEWEST_BINS", 7)
    monkeypatch.setattr("skysieve.fstat.cuda.windows.SUM_RESIDENT", 10**4)
    out = engine(runtime, window, "float64").execute(make_job(templates(1, n=n), grids(n)["full"], w, np.float64))
    check(out, 0, truth_of(n, "full", window), "float64", bound=BOUND)
    if window == "function":
        assert {"direct", "cells"} <= launched(runtime)


@pytest.mark.few
@pytest.mark.parametrize("window", ["rect", "exp", "two rates", "function"])
@pytest.mark.parametrize("width", [3, 4, 14])
def test_a_glitch_leaves_nothing_in_windows_beside_it(runtime, window, width):
    """A bin of 1e6 times the noise just before the first bin of a window, and just after its last."""
    w, at = resolve_window(WINDOWS.get(window, window), 3), 48
    atoms = synth_atoms(T0, 96 * T, seed=4)
    clean = bin_atoms(atoms)
    for a in atoms:
        a.Fa[at] *= np.float32(1e6)
        a.Fb[at] *= np.float32(1e6)
    reach = width if window == "rect" else 3 * width
    alone = Grid(t0=T0 + (at - reach) * T, t0_band=(reach + 1) * T, dt0=(reach + 1) * T, tau=width * T)
    whole = Grid(t0=T0, t0_band=90 * T, dt0=T, tau=width * T, tau_band=2 * T, dtau=T)
    truths = [reference.cell(clean, T0 + row * T, width * T, w)[0] for row in (at - reach, at + 1)]
    for dtype in CELL:
        for grid, rows in ((alone, (0, 1)), (whole, (at - reach, at + 1))):
            out = engine(runtime, window, dtype).execute(make_job([bin_atoms(atoms)], grid, w, np.dtype(dtype)))
            for row, truth in zip(rows, truths, strict=True):
                assert out.F[0, row, 0] == pytest.approx(truth, rel=CELL["float32"])


@pytest.mark.slow
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
    Grid(t0=T0 - 5 * T - 901, t0_band=45 * T, dt0=2500, tau=2 * T, tau_band=30 * T, dtau=1100),
    Grid(t0=T0, t0_band=38 * T, dt0=T, tau=2 * T, tau_band=40 * T, dtau=T),
)
"""The last two are large for the shim."""


LINE_WINDOWS = ("rect", "exp", "two rates", "function")


@pytest.mark.few
@pytest.mark.parametrize(
    ("window", "runtime", "detectors"),
    [
        *((window, order, 2) for window in LINE_WINDOWS for order in ("forwards", "backwards")),
        ("rect", "forwards", 5),
        *(slow(window, "forwards", 5) for window in LINE_WINDOWS[1:]),
        *(pytest.param(window, "gpu", n, marks=pytest.mark.gpu) for window in LINE_WINDOWS for n in (1, 2, 3, 5)),
    ],
    indirect=["runtime"],
)
def test_lines(runtime, window, detectors):
    """One detector to five; a glitch in the first template of the first."""
    w = resolve_window(WINDOWS.get(window, window), 3)
    lines = Lines(3.0, (-1.0, -1.3, -1.5, -2.0, -0.7)[:detectors])
    made = [
        AtomsBatch.stack([synth_atoms(T0, 40 * T, detectors=["H1"], gaps=gaps, seed=10 * x + i)[0] for i in range(2)])
        for x, gaps in enumerate([[], [(T0 + 23 * T, T0 + 31 * T)], [], [], []][:detectors])
    ]
    made = [AtomsBatch(p.t, p.a2, p.b2, p.ab, p.Fa, p.Fb, p.tatom, f"D{x}") for x, p in enumerate(made)]
    made[0].Fa[0, 10] *= np.float32(1e4)
    some = 4 if on_gpu(runtime) else 1 if window == "function" else 2
    for dtype in CELL if on_gpu(runtime) else ("float32",):
        for grid in LINE_GRIDS[:some]:
            check_lines(runtime, made, grid, w, lines, dtype)


def test_more_detectors_than_a_gpu_takes_are_refused():
    many = Lines(3.0, (-1.0,) * 9)
    with pytest.raises(ValueError, match="9 detectors"):
        cuda.Engine(Spec(resolve_window("exp", 3), np.dtype("f4"), lines=many), runtime=shim_runtime())


@pytest.mark.few
@one_order
@pytest.mark.parametrize(
    ("window", "options"),
    [
        ("rect", {}),
        ("exp", {"keep_map": False}),
        ("two rates", {"keep_map": False, "marginals": False}),
        ("function", {}),
    ],
)
def test_predicted_times(runtime, monkeypatch, tmp_path, window, options):
    """The constants are measured on the device and stored: a second engine measures nothing."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    monkeypatch.setattr(timing, "GPU_STEP_SETUPS", ((12, 2, 1, 1), (24, 2, 1, 1), (24, 2, 1, 2)))
    monkeypatch.setattr(timing, "GPU_STEP_SETUPS_ALONE", ((12, 2, 1, 1), (24, 2, 1, 1)))
    monkeypatch.setattr(timing, "GPU_SETUPS", ((12, 1, 1, 1), (24, 1, 1, 1), (24, 1, 1, 2)))
    monkeypatch.setattr(timing, "GPU_SETUPS_ALONE", ((12, 1, 1, 1), (24, 1, 1, 1)))
    w = resolve_window(WINDOWS.get(window, window), 3)
    job = make_job(templates(2), GRIDS["coarse"], w, np.float32)
    spec = Spec(w, np.dtype("f4"), **options)
    assert cuda.Engine(spec, runtime=runtime).describe(job)["seconds"] is None
    with timing.measuring():
        facts = cuda.Engine(spec, runtime=runtime).describe(job)
    host = cpu.Engine(spec, threads=1)
    assert facts.keys() == host.describe(job).keys()
    host.close()
    assert facts["seconds"] > 0
    one = make_job(templates(1), GRIDS["coarse"], w, np.float32)
    with timing.measuring():
        alone = cuda.Engine(spec, runtime=runtime).describe(one)["seconds"]
    facts = cuda.Engine(spec, runtime=runtime).describe(job)  # a function has one set of constants, measured twice
    names = [path.name for path in (tmp_path / "skysieve").iterdir()]
    assert sum("-alone" in name for name in names) == (window != "function")  # constants of its own
    assert alone > 0
    assert facts["method"] == w.algorithm
    rows, columns = GRIDS["coarse"].shape
    maps = job.n_templates * rows * columns * 4 * options.get("keep_map", True)
    assert facts["bytes"] == job.bank.nbytes + BYTES_T0 * rows + BYTES_TAU * columns + maps
    monkeypatch.setattr(timing, "measure", lambda *a: pytest.fail("measured again"))
    assert cuda.Engine(spec, runtime=runtime).describe(job) == facts
