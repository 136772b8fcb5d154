"""Noise weights of any size, gaps and blanked SFTs: the F-statistic's CUDA code against sums in long double."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.fstat import Atoms, AtomsBatch, Grid, WindowSum, precision, synth_atoms
from skysieve.fstat.contract import Lines, MapJob, Spec, make_job, make_schedule
from skysieve.fstat.cuda import engine as cuda
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.batch import bin_batch, groups
from tests.conformance.fstat_weights import LIMIT, any_weights, error_of, long_map, some_sfts, weighed
from tests.kernels.devices import on_gpu, one_order

T = 1800
T0 = 1_000_000_000
WINDOWS = {"rect": "rect", "exp": "exp", "sum": WindowSum([(1, 1), (-1, 5)]), "any": lambda x: (1 + x) ** -1.5}


def grids(start, n):
    step = max(1, n // 12)
    return (
        Grid(t0=start, t0_band=(n - 2) * T, dt0=T, tau=2 * T, tau_band=n * T, dtau=step * T),
        Grid(t0=start + 700, t0_band=(n - 3) * T, dt0=5000, tau=3 * T + 100, tau_band=n * T, dtau=step * T + 300),
    )


def check(runtime, atoms, grid, window, efold=3):
    """Maps of one template, and the same in a batch beside an ordinary one."""
    bins, w = bin_atoms(atoms), resolve_window(window, efold)
    truth = long_map(bins, grid, w)
    if np.isnan(truth.F).all():
        return
    for dtype, limit in LIMIT.items():
        out = cuda.Engine(Spec(w, np.dtype(dtype)), runtime=runtime).execute(make_job([bins], grid, w, np.dtype(dtype)))
        assert out.F.dtype == dtype
        error, wrong = error_of(out.F[0], truth)
        assert error <= limit, dtype
        assert wrong == 0, dtype
        assert out.max_F[0] == pytest.approx(truth.max_F, rel=2 * limit, abs=2 * limit)
        cells = np.isfinite(truth.F).sum()
        slack = 2 * limit * max(1, truth.max_F)
        assert np.log(70 / cells) + out.log_sum[0] == pytest.approx(truth.ln_bayes, abs=slack)
        assert np.abs(np.exp(out.row_log[0] - out.log_sum[0]) - truth.weights.sum(1)).max() <= slack


@pytest.mark.few
@pytest.mark.parametrize("window", list(WINDOWS))
@pytest.mark.parametrize("decades", [3, 9, 30])
def test_any_weights(runtime, window, decades):
    for seed in (0, 1) if on_gpu(runtime) else (int(runtime.order == "backwards"),):
        rng = np.random.default_rng([seed, decades, list(WINDOWS).index(window), 7])
        n = int(rng.integers(20, 70))
        atoms = any_weights(rng, n, ("H1", "L1")[: 1 + seed], decades, ("float32", "float64")[seed])
        check(runtime, atoms, grids(bin_atoms(atoms).t_start, n)[seed], WINDOWS[window], (3, 1.5)[seed])


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("weight", [1e-6, 1e-9, 1e-13, 1e-30])
def test_a_poor_detector_through_the_gap_of_another(runtime, weight):
    h1, g1 = synth_atoms(T0, 90 * T, detectors=["H1", "L1"], seed=1)
    atoms = [some_sfts(h1, np.r_[0:30, 55:90]), weighed(g1, np.full(len(g1), weight))]
    for window in ("rect", "exp"):
        check(runtime, atoms, Grid.full(atoms, dtau=5 * T), window)


@pytest.mark.slow
@one_order
def test_a_glitch_among_faint_sfts_and_one_beside_a_gap(runtime):
    """See the tests of these names in tests/conformance."""
    atoms = synth_atoms(T0, 70 * T, detectors=["H1", "L1"], seed=4, dtype="float64")
    faint = [weighed(a, 10 ** np.linspace(0, -6, len(a)), "float64") for a in atoms]
    for a in faint:
        for x in (a.Fa, a.Fb):
            x[60] *= 1e7
    check(runtime, faint, Grid(t0=T0, t0_band=68 * T, dt0=T, tau=2 * T, tau_band=20 * T, dtau=2 * T), "exp", 1.5)
    factor = np.ones(70)
    factor[30] = 1e-60
    alone = [some_sfts(weighed(a, factor, "float64"), np.r_[0:22, 30:70]) for a in atoms]
    grid = Grid(t0=T0 - 6 * T, t0_band=68 * T, dt0=T, tau=3 * T, tau_band=24 * T, dtau=4 * T)
    for window in WINDOWS.values():
        check(runtime, alone, grid, window, 0.8)


@pytest.mark.few
@pytest.mark.parametrize("off", [0, 700])
def test_windows_that_start_in_a_long_gap(runtime, off):
    """Few SFTs at the far end of a window, after hundreds have left it; the kernels of every bin and of any grid."""
    n = 1400
    atoms = synth_atoms(T0, n * T, seed=1, gaps=[(T0 + 500 * T, T0 + 1000 * T)])
    starts = T0 + off + T * np.arange(600, 1002)
    grid = Grid.from_lists(starts, (np.arange(40, 340, 5)) * T)
    w, bins = resolve_window("exp", 3), bin_atoms(atoms)
    a, b = (
        cuda.Engine(Spec(w, np.dtype(d)), runtime=runtime).execute(make_job([bins], grid, w, np.dtype(d))).F[0]
        for d in LIMIT
    )
    error = np.abs(a - b) / np.maximum(1, a)
    assert np.count_nonzero((a == 2) != (b == 2)) <= 2  # cells at the limit of the condition number
    assert error[(a != 2) & (b != 2)].max() <= LIMIT["float32"]


@pytest.mark.few
@one_order
@pytest.mark.parametrize("sky", [False, True])
@pytest.mark.parametrize("window", list(WINDOWS))
def test_a_batch_of_all_kinds(runtime, window, sky):
    """Ordinary templates, uneven ones and glitches in one batch, without maps: each has its own answer."""
    n, w = 60, resolve_window(WINDOWS[window], 3)
    factors = [np.ones(n) for _ in range(5)]
    if sky:
        factors[1][20:40] = 1e-5
        factors[2][20:40] = 1e-12
        factors[4][30:45] = 0
    templates = []
    for i, f in enumerate(factors):
        atoms = weighed(synth_atoms(T0, n * T, detectors=["H1"], ra=0.4, seed=i)[0], f)
        if i == 3:
            for x in (atoms.Fa, atoms.Fb):
                x[30] *= np.float32(1e7)
        templates.append(atoms)
    grid = Grid.full(templates[0], dtau=4 * T)
    binned = bin_batch([AtomsBatch.stack(templates)], np.float32)
    job = MapJob(binned.bank, T, grid.taus.astype(float), make_schedule(grid, w, binned))
    out = cuda.Engine(Spec(w, np.dtype("f4"), keep_map=False), runtime=runtime).execute(job)
    for i, atoms in enumerate(templates):
        truth = long_map(bin_atoms(atoms), grid, w)
        assert out.max_F[i] == pytest.approx(truth.max_F, rel=LIMIT["float32"])
        assert out.n_fallback[i] == np.count_nonzero(truth.F == 2)
        cells = np.isfinite(truth.F).sum()
        slack = LIMIT["float32"] * max(1, truth.max_F)
        assert np.log(70 / cells) + out.log_sum[i] == pytest.approx(truth.ln_bayes, abs=slack)


@pytest.mark.few
@one_order
@pytest.mark.parametrize("weight", [1e-8, 1e-20])
@pytest.mark.parametrize("window", list(WINDOWS))
def test_lines_with_a_poor_detector(runtime, window, weight):
    h1, l1 = synth_atoms(T0, 50 * T, detectors=["H1", "L1"], seed=8, dtype="float64")
    atoms = [some_sfts(h1, np.r_[0:15, 30:50]), weighed(l1, np.full(len(l1), weight), "float64")]
    grid, lines, w = Grid.full(atoms, dtau=4 * T), Lines(3.0, (-1.0, -1.3)), resolve_window(WINDOWS[window], 3)
    (parts,) = groups([AtomsBatch.stack([a]) for a in atoms], 0)
    binned = bin_batch(parts, np.float32, each_detector=True)
    job = MapJob(binned.bank, T, grid.taus.astype(float), make_schedule(grid, w, binned), binned.detectors)
    spec = Spec(w, np.dtype("f4"), keep_map=False, marginals=False, lines=lines)
    assert precision.levels_of(job, spec)[0] > precision.USUAL
    out = cuda.Engine(spec, runtime=runtime).execute(job)
    total = bin_atoms(atoms)
    each = []
    for a in atoms:
        one, x = bin_atoms(a), np.zeros_like(total.x)
        x[:, (one.t_start - total.t_start) // T :][:, : one.n] = one.x
        each.append(Bins(total.t_start, T, x, x[0] > 0))
    F, *FX = (long_map(b, grid, w).F for b in (total, *each))
    truth = F - np.logaddexp.reduce(
        [np.full_like(F, lines.log_gauss), *(p + f for p, f in zip(lines.log_line, FX, strict=True))]
    )
    assert out.line_max[0] == pytest.approx(np.nanmax(truth), abs=LIMIT["float32"] * max(1, np.nanmax(F)))


@pytest.mark.slow
@one_order
def test_blanked_sfts_are_no_data(runtime):
    whole = synth_atoms(T0, 60 * T, detectors=["H1"], seed=1)[0]
    columns = [x.copy() for x in (whole.a2, whole.b2, whole.ab, whole.Fa, whole.Fb)]
    for x in columns:
        x[10:32] = 0
    blanked, without = Atoms(whole.t, *columns), some_sfts(whole, np.r_[0:10, 32:60])
    grid = Grid.full(whole, dtau=3 * T)
    for window in WINDOWS.values():
        w = resolve_window(window, 3)
        a, b = (
            cuda.Engine(Spec(w, np.dtype("f4")), runtime=runtime).execute(make_job([bin_atoms(x)], grid, w, np.float32))
            for x in (blanked, without)
        )
        assert np.array_equal(a.F, b.F)
        assert a.n_fallback[0] == b.n_fallback[0]
