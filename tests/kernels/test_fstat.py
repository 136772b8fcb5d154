"""The F-statistic's CUDA code, kernels and launches: against `tests.truth.fstat`, on the host shim and on a GPU.

Needs NumPy, SciPy, numba and pytest alone, and CuPy for the GPU.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from skysieve.fstat import Atoms, Grid, synth_atoms
from skysieve.fstat.contract import Lines, MapJob, Spec, make_job, make_schedule
from skysieve.fstat.cpu import engine as cpu
from skysieve.fstat.cuda import engine as cuda
from skysieve.fstat.cuda import launch as cuda_launch
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.simulate import Injection
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.batch import AtomsBatch, bin_batch, groups
from tests.kernels.devices import launched, on_gpu
from tests.kernels.shim import shim_runtime
from tests.truth import fstat as reference

T = 1800
T0 = 1_000_000_000


def grids(n):
    """Grids over ``n`` bins of data."""
    return {
        "full": Grid(t0=T0, t0_band=(n - 2) * T, dt0=T, tau=2 * T, tau_band=(n - 2) * T, dtau=T),
        "more t0 than tau": Grid(t0=T0, t0_band=(n - 2) * T, dt0=T, tau=2 * T, tau_band=6 * T, dtau=T),
        "more tau than t0": Grid(t0=T0 + 3 * T, t0_band=3 * T, dt0=T, tau=2 * T, tau_band=(2 * n + 30) * T, dtau=T),
        "one t0": Grid(t0=T0 + 20 * T, tau=2 * T, tau_band=(n - 20) * T, dtau=T),
        "one tau": Grid(t0=T0, t0_band=(n - 2) * T, dt0=T, tau=9 * T),
        "long tau": Grid(t0=T0 + 30 * T, t0_band=(n - 32) * T, dt0=T, tau=25 * T, tau_band=(n - 48) * T, dtau=T),
        "coarse": Grid(t0=T0, t0_band=(n - 3) * T, dt0=3 * T, tau=4 * T, tau_band=60 * T, dtau=5 * T),
        "off the bins": Grid(t0=T0 + 700, t0_band=(n - 5) * T, dt0=2500, tau=4100, tau_band=60 * T, dtau=1100),
        "before the data": Grid(
            t0=T0 - 80 * T - 901, t0_band=(n + 70) * T, dt0=2 * T, tau=2 * T, tau_band=50 * T, dtau=3 * T
        ),
        "before the data, by bins": Grid(
            t0=T0 - 8 * T, t0_band=(n - 10) * T, dt0=T, tau=2 * T, tau_band=(n - 10) * T, dtau=T
        ),
        "lists": Grid.from_lists(
            [T0 - 9 * T, T0, T0 + 1799, T0 + (n - 10) * T], np.unique(np.geomspace(2, 3.3 * n, n // 3).round()) * T
        ),
        "too short and too late": Grid(t0=T0 - 2 * T, t0_band=(n + 4) * T, dt0=1700, tau=600, tau_band=6 * T, dtau=700),
    }


BINS = 60
"""Bins of data on the shim; a GPU has `MANY_BINS`."""
MANY_BINS = 96
GRIDS = grids(BINS)
CELL = {"float64": 1e-11, "float32": 3e-4}
"""Largest error of a cell in units of max(1, F): required in float32; float64 as in tests/conformance/test_fstat.py."""
RMS = {"float64": 1e-12, "float32": 1e-5}
LEAN = ({"keep_map": False}, {"keep_map": False, "marginals": False})


def bins_of(runtime):
    return MANY_BINS if on_gpu(runtime) else BINS


def templates(count, seed=5, sky=False, n=BINS, signal=1):
    """Binned atoms of templates at one point of the sky, or each at its own; with a gap, one with a signal."""
    injection = Injection(t0=T0 + 20 * T, tau=10 * T, snr=8, window="exp")
    gap = (T0 + 33 * T, T0 + 41 * T) if n == BINS else (T0 + 50 * T, T0 + 70 * T)
    return [
        bin_atoms(
            synth_atoms(
                T0, n * T, inject=injection if i == signal else None, gaps=[gap], offsets=[0, 700],
                ra=(0.5 + sky * i) % 6, seed=seed + i,
            )
        )
        for i in range(count)
    ]  # fmt: skip


@functools.cache
def signal_and_truth(n, grid, window):
    """A template with a signal, and its map."""
    bins = templates(1, n=n, signal=0)
    return bins, reference.transient_map(bins[0], grids(n)[grid], resolve_window(window, 3))


@functools.cache
def batch_and_truths(count, n, grid, window, sky):
    bins = templates(count, n=n, sky=sky)
    return bins, [reference.transient_map(b, grids(n)[grid], resolve_window(window, 3)) for b in bins]


def run(runtime, bins, grid, window, dtype, **spec):
    w = resolve_window(window, 3)
    engine = cuda.Engine(Spec(w, np.dtype(dtype), **spec), runtime=runtime)
    return engine.execute(make_job(bins, grid, w, np.dtype(dtype)))


def check(out, i, truth, dtype, marginals=True, bound=None):
    """Compare map ``i`` of an output with its reference.

    ``bound`` replaces `CELL` for windows whose sums have larger rounding errors than those of exponentials.
    """
    limit = {**CELL, **(bound or {})}[dtype]
    R = truth.F
    if out.F is not None:
        F = out.F[i].astype(float)
        assert np.array_equal(np.isnan(F), np.isnan(R))
        clear = np.isfinite(R) & ~(np.abs(truth.condition / 1e4 - 1) < 0.01)
        assert np.array_equal((F == 2)[clear], (R == 2)[clear])
        error = np.abs(F - R)[clear] / np.maximum(1, np.abs(R[clear]))
        assert error.max() <= limit
        if bound is None:
            assert np.sqrt(np.mean(error**2)) <= RMS[dtype]
        if clear[np.isfinite(R)].all():
            assert out.n_fallback[i] == np.count_nonzero(R == 2)
    loose = dtype == "float32"
    assert out.max_F[i] == pytest.approx(truth.max_F, abs=1e-3 if loose else 1e-9)
    assert R.ravel()[out.index[i]] >= truth.max_F - (1e-3 if loose else 1e-9)
    cells = int(np.isfinite(R).sum())
    assert np.log(70 / cells) + out.log_sum[i] == pytest.approx(truth.ln_bayes, abs=1e-3 if loose else 1e-9)
    if marginals:
        w = truth.weights
        most = 1e-5 + 1e-7 * truth.max_F if loose else 1e-11  # derived: dp = p dF, dF = 6e-8 F
        assert np.abs(np.exp(out.row_log[i] - out.log_sum[i]) - w.sum(1)).max() <= most
        assert np.abs(np.exp(out.column_log[i] - out.log_sum[i]) - w.sum(0)).max() <= most


@pytest.mark.few
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("grid", list(GRIDS))
def test_maps(runtime, grid, window):
    n = bins_of(runtime)
    bins, truth = signal_and_truth(n, grid, window)
    for dtype in CELL:
        check(run(runtime, bins, grids(n)[grid], window, dtype), 0, truth, dtype)
        for options in LEAN if dtype == "float32" or on_gpu(runtime) else ():
            out = run(runtime, bins, grids(n)[grid], window, dtype, **options)
            check(out, 0, truth, dtype, options.get("marginals", True))


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["full", "long tau", "off the bins"])
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("sky", [False, True])
def test_batches(runtime, grid, window, sky):
    """Templates of one point of the sky share their antenna factors, others must not."""
    n = bins_of(runtime)
    bins, truths = batch_and_truths(10 if on_gpu(runtime) else 5, n, grid, window, sky)
    assert make_job(bins, grids(n)[grid], resolve_window(window, 3), np.float32).shared is not sky
    for options in ({}, *LEAN):
        out = run(runtime, bins, grids(n)[grid], window, "float32", **options)
        for i, truth in enumerate(truths):
            check(out, i, truth, "float32", options.get("marginals", True))


@pytest.mark.few
@pytest.mark.parametrize("options", [{}, *LEAN])
@pytest.mark.parametrize("window", ["rect", "exp"])
def test_maps_long_enough_for_the_loops_without_tests(runtime, window, options):
    """260 starts and 230 durations: whole blocks of rows, ends and lines of the map; a gap; shared and alone."""
    span = 260
    grid = Grid(t0=T0, t0_band=(span - 2) * T, dt0=T, tau=2 * T, tau_band=229 * T, dtau=T)
    made = [
        bin_atoms(synth_atoms(T0, span * T, gaps=[(T0 + 150 * T, T0 + 161 * T)], offsets=[0, 700], seed=i))
        for i in range(2)
    ]
    w = resolve_window(window, 3)
    judge = cpu.Engine(Spec(w, np.dtype("f8")), threads=1)
    truth = judge.execute(make_job(made, grid, w, np.float64))
    judge.close()
    marginals = options.get("marginals", True)
    for count in (1, 2):
        out = run(runtime, made[:count], grid, window, "float32", **options)
        for i in range(count):
            if out.F is not None:
                error = np.abs(out.F[i] - truth.F[i]) / np.maximum(1, truth.F[i])
                assert error.max() <= CELL["float32"]
                assert np.array_equal(out.F[i] == 2, truth.F[i] == 2)
            assert out.n_fallback[i] == truth.n_fallback[i]
            assert out.max_F[i] == pytest.approx(truth.max_F[i], abs=1e-4)
            assert out.index[i] == truth.index[i]
            assert out.log_sum[i] == pytest.approx(truth.log_sum[i], abs=1e-4)
            if marginals:
                assert np.abs(out.row_log[i] - truth.row_log[i]).max() <= 1e-4
                assert np.abs(out.column_log[i] - truth.column_log[i]).max() <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loud_templates_and_glitches(runtime, window, dtype):
    """2F of 2,000 (exp F overflows float32), and one bin of 1e6 times the noise, in one batch with quiet templates."""
    n = bins_of(runtime)
    some = {"offsets": [0, 700], "gaps": [(T0 + (n - 9) * T, T0 + (n - 4) * T)]}
    loud = synth_atoms(T0, n * T, inject=Injection(t0=T0 + 10 * T, tau=20 * T, snr=45), seed=1, **some)
    quiet = synth_atoms(T0, n * T, seed=2, **some)
    broken = []
    for a in quiet:
        Fa, Fb = a.Fa.copy(), a.Fb.copy()
        Fa[30] *= np.float32(1e6)
        Fb[30] *= np.float32(1e6)
        broken.append(Atoms(a.t, a.a2, a.b2, a.ab, Fa, Fb, detector=a.detector))
    bins = [bin_atoms(x) for x in (quiet, loud, broken)]
    grid = grids(n)["full"]
    out = run(runtime, bins, grid, window, dtype)
    for i in range(3):
        truth = reference.transient_map(bins[i], grid, resolve_window(window, 3))
        if i < 2:
            check(out, i, truth, dtype)
        clear = np.abs(truth.condition / 1e4 - 1) > 0.01
        error = np.abs(out.F[i] - truth.F) / np.maximum(1, truth.F)
        assert error[clear].max() <= CELL[dtype]


def test_a_window_in_a_gap_is_the_fallback(runtime):
    bins = templates(2)
    grid = Grid(t0=T0 + 33 * T, t0_band=5 * T, dt0=T, tau=2 * T)
    for window in ("rect", "exp"):
        out = run(runtime, bins, grid, window, "float32")
        assert out.F[0][1, 0] == 2  # bins 34 and 35 (rect), 34 to 39 (exp)


@pytest.mark.parametrize("window", ["rect", "exp"])
def test_no_cell_holds_two_bins(runtime, window):
    """Nothing is launched: the map is NaN all the same."""
    out = run(runtime, templates(1), Grid(t0=T0 + 500, t0_band=3 * T, dt0=500, tau=1), window, "float32")
    assert np.isnan(out.F).all()
    assert out.index[0] == -1


@pytest.mark.slow
def test_chunks_of_starts_do_not_change_the_answer(runtime, monkeypatch):
    bins = templates(1)
    whole = run(runtime, bins, GRIDS["full"], "exp", "float64")
    for name, value in (
        ("FEWEST_BINS", 7),
        ("ANY_WAVES", 10**6),
        ("RESIDENT", dict.fromkeys(cuda_launch.RESIDENT, 10**4)),
    ):
        monkeypatch.setattr(cuda_launch, name, value)
    for grid in ("full", "off the bins"):
        cut = run(runtime, bins, GRIDS[grid], "exp", "float64")
        check(cut, 0, reference.transient_map(bins[0], GRIDS[grid], resolve_window("exp", 3)), "float64")
    again = run(runtime, bins, GRIDS["full"], "exp", "float64")
    assert pytest.approx(whole.F, rel=1e-11) == again.F


@pytest.mark.slow
@pytest.mark.parametrize("window", ["rect", "exp"])
def test_threads_of_several_rows_or_taus(runtime, monkeypatch, window):
    """Many templates have several rows or taus in each thread; the single templates of the other tests have one."""
    monkeypatch.setattr(cuda_launch, "FEW", 0)
    n = bins_of(runtime)
    for sky in (False, True) if on_gpu(runtime) else (True,):
        bins, truths = batch_and_truths(10 if on_gpu(runtime) else 5, n, "full", window, sky)
        for options in ({}, *LEAN) if on_gpu(runtime) else LEAN[1:]:
            out = run(runtime, bins, grids(n)["full"], window, "float32", **options)
            for i, truth in enumerate(truths):
                check(out, i, truth, "float32", options.get("marginals", True))
    assert f"{window}_lean" in launched(runtime)
    assert f"{window}_small" not in launched(runtime)


def check_lines(runtime, made, grid, w, lines, dtype="float32"):
    """Maxima of the line-robust statistic of batches of atoms, one for each detector."""
    dtype = np.dtype(dtype)
    (parts,) = groups(made, 0)
    binned = bin_batch(parts, dtype, each_detector=True)
    job = MapJob(binned.bank, T, grid.taus.astype(float), make_schedule(grid, w, binned), binned.detectors)
    engine = cuda.Engine(Spec(w, dtype, keep_map=False, marginals=False, lines=lines), runtime=runtime)
    out = engine.execute(job)
    engine.close()
    for i in range(len(made[0].Fa)):
        F, *FX = (
            reference.transient_map(Bins(binned.t_start, T, b.template(i).astype(float), b.occupied), grid, w).F
            for b in (binned.bank, *binned.detectors)
        )
        parts = [np.full_like(F, lines.log_gauss), *(p + f for p, f in zip(lines.log_line, FX, strict=True))]
        with np.errstate(invalid="ignore"):
            truth = F - np.logaddexp.reduce(parts)
        bound = CELL["float32"] * max(1, np.nanmax(F))
        assert out.max_F[i] == pytest.approx(np.nanmax(F), abs=bound)
        assert out.line_max[i] == pytest.approx(np.nanmax(truth), abs=bound)
        assert truth.ravel()[out.line_index[i]] >= np.nanmax(truth) - bound


LINES = Lines(3.0, (-1.0, -1.3))


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["full", "off the bins", "lists", "before the data"])
@pytest.mark.parametrize("window", ["rect", "exp"])
def test_lines_against_the_truth(runtime, grid, window):
    """Two detectors; a glitch in the first template, which is a line where it is."""
    made = [
        AtomsBatch.stack([synth_atoms(T0, 60 * T, offsets=[0, 700], gaps=gaps, seed=i)[x] for i in range(3)])
        for x, gaps in enumerate(([], [(T0 + 33 * T, T0 + 41 * T)]))
    ]
    made[0].Fa[0, 10] *= np.float32(1e4)
    check_lines(runtime, made, GRIDS[grid], resolve_window(window, 3), LINES)


def test_what_a_gpu_cannot_do_is_refused():
    with pytest.raises(ValueError, match="compat='lalpulsar'"):
        cuda.Engine(Spec(resolve_window("exp", 3), np.dtype("f4"), lal=True), runtime=shim_runtime())
