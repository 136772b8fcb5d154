"""The transient F-statistic on a GPU, against float64 sums of every cell; and PyFstat's case of 479 starts.

Needs NumPy, SciPy, CuPy, pytest and hypothesis alone.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.truth import fstat as reference

from skysieve.core.device import resolve
from skysieve.fstat import Atoms, Grid, Injection, TransientPlan, synth_atoms, transient_map
from skysieve.fstat.contract import Bank, Lines, MapJob, Spec, make_job, make_schedule
from skysieve.fstat.cuda import engine as cuda
from skysieve.fstat.cuda import launch as cuda_launch
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.batch import AtomsBatch, bin_batch, groups

pytestmark = pytest.mark.gpu

T = 1800
T0 = 1_000_000_000
CELL = {"float64": 1e-11, "float32": 3e-4}  # required in float32; float64 as in tests/conformance/test_fstat.py
RMS = {"float64": 1e-12, "float32": 1e-5}
GRIDS = {
    "full": Grid(t0=T0, t0_band=94 * T, dt0=T, tau=2 * T, tau_band=94 * T, dtau=T),
    "more t0 than tau": Grid(t0=T0, t0_band=94 * T, dt0=T, tau=2 * T, tau_band=7 * T, dtau=T),
    "more tau than t0": Grid(t0=T0 + 3 * T, t0_band=5 * T, dt0=T, tau=2 * T, tau_band=200 * T, dtau=T),
    "one t0": Grid(t0=T0 + 20 * T, tau=2 * T, tau_band=60 * T, dtau=T),
    "one tau": Grid(t0=T0, t0_band=94 * T, dt0=T, tau=9 * T),
    "long tau": Grid(t0=T0 + 30 * T, t0_band=64 * T, dt0=T, tau=35 * T, tau_band=50 * T, dtau=T),
    "coarse": Grid(t0=T0, t0_band=93 * T, dt0=3 * T, tau=4 * T, tau_band=60 * T, dtau=5 * T),
    "off the bins": Grid(t0=T0 + 700, t0_band=90 * T, dt0=2500, tau=4100, tau_band=60 * T, dtau=1100),
    "before the data": Grid(t0=T0 - 40 * T - 901, t0_band=130 * T, dt0=2 * T, tau=2 * T, tau_band=50 * T, dtau=3 * T),
    "lists": Grid.from_lists([T0 - 9 * T, T0, T0 + 1799, T0 + 90 * T], np.unique(np.geomspace(2, 300, 70).round()) * T),
    "too short and too late": Grid(t0=T0 - 2 * T, t0_band=105 * T, dt0=1700, tau=600, tau_band=6 * T, dtau=700),
}  # fmt: skip


def engine(window, dtype="float32", **options):
    return cuda.Engine(Spec(resolve_window(window, 3), np.dtype(dtype), **options), device=resolve("cuda")[0])


def patchy(seed=5, sky=0.0, inject=None, n=96):
    return synth_atoms(
        T0, n * T, inject=inject, gaps=[(T0 + 50 * T, T0 + 70 * T)], offsets=[0, 700], ra=0.5 + sky, seed=seed
    )  # fmt: skip


SIGNAL = Injection(t0=T0 + 20 * T, tau=15 * T, snr=9, window="exp")


@functools.cache
def truth_of(grid, window):
    """The map of `patchy` with the signal."""
    return reference.transient_map(bin_atoms(patchy(inject=SIGNAL)), GRIDS[grid], resolve_window(window, 3))


def compare(F, truth, dtype):
    F, R = np.asarray(F, float), truth.F
    assert np.array_equal(np.isnan(F), np.isnan(R))
    clear = np.isfinite(R) & ~(np.abs(truth.condition / 1e4 - 1) < 0.01)
    assert np.array_equal((F == 2)[clear], (R == 2)[clear])
    error = np.abs(F - R)[clear] / np.maximum(1, np.abs(R[clear]))
    assert error.max() <= CELL[dtype]
    assert np.sqrt(np.mean(error**2)) <= RMS[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("grid", list(GRIDS))
def test_maps(grid, window, dtype):
    atoms, truth = patchy(inject=SIGNAL), truth_of(grid, window)
    r = transient_map(atoms, GRIDS[grid], window=window, dtype=dtype, device="cuda", strict=False)
    compare(r.F, truth, dtype)
    loose = dtype == "float32"
    assert r.max_F == pytest.approx(truth.max_F, abs=1e-3 if loose else 1e-9)
    assert r.lnBtSG == pytest.approx(truth.ln_bayes, abs=1e-3 if loose else 1e-9)
    bound = 1e-5 + 1e-7 * truth.max_F if loose else 1e-11
    assert np.abs(r.p_t0 - truth.weights.sum(1)).max() <= bound
    assert np.abs(r.p_tau - truth.weights.sum(0)).max() <= bound
    for posteriors in (True, False):
        lean = transient_map(
            atoms, GRIDS[grid], window=window, dtype=dtype, device="cuda", strict=False, keep_map=False,
            posteriors=posteriors,
        )  # fmt: skip
        assert lean.max_F == pytest.approx(r.max_F, rel=1e-5 if loose else 1e-12)
        assert lean.lnBtSG == pytest.approx(r.lnBtSG, abs=1e-4 if loose else 1e-9)


@functools.cache
def batch_of(window, sky):
    """Ten templates, and their maps."""
    bins = [bin_atoms(patchy(seed=i, sky=sky * i)) for i in range(10)]
    return bins, [reference.transient_map(b, GRIDS["full"], resolve_window(window, 3)) for b in bins]


@pytest.mark.parametrize("sky", [0.0, 0.3])
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("options", [{}, {"keep_map": False}, {"keep_map": False, "marginals": False}])
@pytest.mark.parametrize("few", [cuda_launch.FEW, 0])
def test_a_batch_is_a_loop_of_singles(monkeypatch, window, sky, options, few):
    """Ten templates of one point of the sky, and each of its own (a wrong sharing fails).

    ``few`` 0: threads of several rows or taus, as where templates are many.
    """
    monkeypatch.setattr(cuda_launch, "FEW", few)
    grid = GRIDS["full"]
    bins, truths = batch_of(window, sky)
    e = engine(window, **options)
    w = resolve_window(window, 3)
    out = e.execute(make_job(bins, grid, w, np.float32))
    for i, truth in enumerate(truths):
        assert out.max_F[i] == pytest.approx(truth.max_F, abs=1e-3)
        assert out.log_sum[i] + np.log(70 / grid.cells) == pytest.approx(truth.ln_bayes, abs=1e-3)
        if out.F is not None:
            compare(out.F[i], truth, "float32")
        if out.row_log is not None:
            weights = truth.weights
            assert np.abs(np.exp(out.row_log[i] - out.log_sum[i]) - weights.sum(1)).max() < 1e-5
            assert np.abs(np.exp(out.column_log[i] - out.log_sum[i]) - weights.sum(0)).max() < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("marginals", [True, False])
def test_launches_that_are_started_again_see_new_data(window, dtype, marginals):
    """Batches of one size on one engine, recorded from the second on; small lanes, so that they take turns."""
    w = resolve_window(window, 3)
    e = engine(window, dtype, keep_map=False, marginals=marginals)
    many = [bin_atoms(patchy(seed=i)) for i in range(12)]
    truths = [reference.transient_map(b, GRIDS["one t0"], w) for b in many]
    for _ in range(3):
        for start in (0, 4, 8):
            job = make_job(many[start : start + 4], GRIDS["one t0"], w, np.dtype(dtype))
            out = e.execute(job)
            for i in range(4):
                assert out.max_F[i] == pytest.approx(truths[start + i].max_F, abs=1e-3)
    e._batch_size = lambda job: 4
    out = e.execute(make_job(many, GRIDS["one t0"], w, np.dtype(dtype)))
    e.close()
    assert out.max_F == pytest.approx([t.max_F for t in truths], abs=1e-3)
    assert [t.F.ravel()[i] for t, i in zip(truths, out.index, strict=True)] == pytest.approx(list(out.max_F), abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("detectors", [1, 2, 3])
def test_lines_of_detectors(detectors, window, dtype):
    """The maximum of the line-robust statistic; a glitch in the first template, so that it needs other sums."""
    w, kind = resolve_window(window, 3), np.dtype(dtype)
    lines = Lines(3.0, (-1.0, -1.3, -2.0)[:detectors])
    names = ("H1", "L1", "V1")[:detectors]
    made = [
        AtomsBatch.stack([synth_atoms(T0, 48 * T, detectors=[name], seed=10 * i + x)[0] for i in range(3)])
        for x, name in enumerate(names)
    ]
    made[0].Fa[0, 10] *= np.float32(1e4)
    (parts,) = groups(made, 0)
    binned = bin_batch(parts, kind, each_detector=True)
    for grid in (
        Grid(t0=T0, t0_band=46 * T, dt0=T, tau=2 * T, tau_band=40 * T, dtau=T),
        Grid(t0=T0 - 5 * T - 901, t0_band=45 * T, dt0=2500, tau=2 * T, tau_band=30 * T, dtau=1100),
    ):
        job = MapJob(binned.bank, T, grid.taus.astype(float), make_schedule(grid, w, binned), binned.detectors)
        e = engine(window, dtype, keep_map=False, marginals=False, lines=lines)
        out = e.execute(job)
        e.close()
        for i in range(2):
            F, *each = (
                reference.transient_map(Bins(binned.t_start, T, b.template(i).astype(float), b.occupied), grid, w).F
                for b in (binned.bank, *binned.detectors)
            )
            parts = [np.full_like(F, lines.log_gauss), *(p + f for p, f in zip(lines.log_line, each, strict=True))]
            truth = F - np.logaddexp.reduce(parts)
            scale = max(1, np.nanmax(F))
            assert out.max_F[i] == pytest.approx(np.nanmax(F), abs=CELL["float32"] * scale)
            assert out.line_max[i] == pytest.approx(np.nanmax(truth), abs=CELL["float32"] * scale)
            assert truth.ravel()[out.line_index[i]] >= np.nanmax(truth) - CELL["float32"] * scale


@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("width", [3, 14])
def test_a_glitch_just_outside_a_window_leaves_nothing(window, width):
    """A bin of 1e6 times the noise just before the first bin of a window, and just after its last."""
    w, at = resolve_window(window, 3), 48
    atoms = synth_atoms(T0, 96 * T, seed=4)
    clean = bin_atoms(atoms)
    for a in atoms:
        a.Fa[at] *= np.float32(1e6)
        a.Fb[at] *= np.float32(1e6)
    reach = width if window == "rect" else 3 * width
    grid = Grid(t0=T0 + (at - reach) * T, t0_band=(reach + 1) * T, dt0=(reach + 1) * T, tau=width * T)
    r = transient_map(atoms, grid, window=window, dtype="float32", device="cuda")
    truth = reference.transient_map(clean, grid, w)
    assert r.F.shape == truth.F.shape == (2, 1)
    assert np.abs(r.F - truth.F).max() <= CELL["float32"] * truth.F.max()
    whole = Grid(t0=T0, t0_band=94 * T, dt0=T, tau=width * T, tau_band=2 * T, dtau=T)  # as part of a map, too
    m = transient_map(atoms, whole, window=window, dtype="float32", device="cuda")
    for row in (at - reach, at + 1):
        assert m.F[row, 0] == pytest.approx(reference.cell(clean, T0 + row * T, width * T, w)[0], rel=CELL["float32"])


@pytest.mark.parametrize("window", ["rect", "exp"])
def test_many_starts(window):
    """1,300 starts (more than a block of threads) by 21 durations, and the year: random cells."""
    rng = np.random.default_rng(0)
    for n, taus in ((1300, np.arange(2, 23)), (17_520, np.arange(2, 17_000, 400))):
        atoms = synth_atoms(T0, n * T, duty=0.8, seed=8)
        grid = Grid.from_lists(T0 + T * np.arange(n - 2), taus * T)
        r = transient_map(atoms, grid, window=window, dtype="float32", device="cuda")
        bins, w, errors = bin_atoms(atoms), resolve_window(window, 3), []
        for m, c in zip(rng.integers(0, n - 2, 300), rng.integers(0, len(taus), 300), strict=True):
            F, condition = reference.cell(bins, int(grid.t0s[m]), int(grid.taus[c]), w)
            if abs(condition / 1e4 - 1) > 0.01:
                errors.append(abs(float(r.F[m, c]) - F) / max(1, F))
        assert max(errors) <= 3e-4
        assert np.sqrt(np.mean(np.square(errors))) <= 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", ["rect", "exp"])
def test_glitches_and_loud_signals(window, dtype):
    """One bin of 1e6 times the noise; 2F of 2,000; both in one batch with noise."""
    grid = GRIDS["full"]
    quiet = patchy(seed=2)
    broken = []
    for a in quiet:
        Fa, Fb = a.Fa.copy(), a.Fb.copy()
        at = int(np.searchsorted(a.t, T0 + 40 * T))
        Fa[at] *= np.float32(1e6)
        Fb[at] *= np.float32(1e6)
        broken.append(Atoms(a.t, a.a2, a.b2, a.ab, Fa, Fb, detector=a.detector))
    loud = patchy(seed=1, inject=Injection(t0=T0 + 10 * T, tau=20 * T, snr=45))
    bins = [bin_atoms(x) for x in (quiet, loud, broken)]
    w = resolve_window(window, 3)
    out = engine(window, dtype).execute(make_job(bins, grid, w, np.dtype(dtype)))
    for i, b in enumerate(bins):
        truth = reference.transient_map(b, grid, w)
        clear = np.abs(truth.condition / 1e4 - 1) > 0.01
        assert (np.abs(out.F[i] - truth.F) / np.maximum(1, truth.F))[clear].max() <= CELL[dtype]
        if i < 2:
            assert out.log_sum[i] + np.log(70 / grid.cells) == pytest.approx(truth.ln_bayes, abs=1e-3)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    n=st.integers(3, 60),
    start=st.integers(-100 * T, 60 * T),
    band=st.integers(0, 60 * T),
    dt0=st.integers(500, 4 * T),
    tau=st.integers(1, 3 * T),
    tau_band=st.integers(0, 80 * T),
    dtau=st.integers(900, 5 * T),
    window=st.sampled_from(["rect", "exp"]),
    seed=st.integers(0, 1000),
)
def test_any_grid(n, start, band, dt0, tau, tau_band, dtau, window, seed):
    atoms = synth_atoms(T0, n * T, seed=seed, gaps=[(T0 + 5 * T, T0 + min(9, n - 2) * T)])
    grid = Grid(t0=T0 + start, t0_band=band, dt0=dt0, tau=tau, tau_band=tau_band, dtau=dtau)
    truth = reference.transient_map(bin_atoms(atoms), grid, resolve_window(window, 3))
    r = transient_map(atoms, grid, window=window, dtype="float32", device="cuda", strict=False)
    F = np.asarray(r.F, float)
    assert np.array_equal(np.isnan(F), np.isnan(truth.F))
    clear = np.isfinite(truth.F) & (np.abs(truth.condition / 1e4 - 1) > 0.01)
    if clear.any():
        assert (np.abs(F - truth.F)[clear] / np.maximum(1, truth.F[clear])).max() <= 3e-4


def test_arrays_of_the_gpu_stay_there():
    import cupy

    atoms = [
        Atoms(a.t, *(cupy.asarray(getattr(a, f)) for f in ("a2", "b2", "ab", "Fa", "Fb")), detector=a.detector)
        for a in patchy()
    ]
    r = transient_map(atoms, GRIDS["full"], window="exp", device="cuda")
    assert isinstance(r.F, cupy.ndarray)
    host = transient_map(patchy(), GRIDS["full"], window="exp", device="cuda")
    assert np.array_equal(cupy.asnumpy(r.F), host.F)


@pytest.mark.parametrize("window", ["rect", "exp"])
def test_banks_of_the_gpu(window):
    """Batches whose atoms are on the GPU: the same answers, and maps that stay on the GPU."""
    import cupy

    w = resolve_window(window, 3)
    job = make_job([bin_atoms(patchy(seed=i)) for i in range(5)], GRIDS["full"], w, np.float32)
    on_device = Bank(cupy.asarray(job.bank.antenna), cupy.asarray(job.bank.data), job.occupied)
    e = engine(window)
    host = e.execute(job)
    out = e.execute(MapJob(on_device, job.tatom, job.taus, job.schedule))
    e.close()
    assert isinstance(out.F, cupy.ndarray)
    assert np.array_equal(cupy.asnumpy(out.F), host.F)
    assert np.array_equal(out.max_F, host.max_F)


def test_lalpulsars_arithmetic_is_the_cpus():
    with pytest.raises(ValueError, match="device='cpu'"):
        transient_map(patchy(), GRIDS["full"], window="exp", device="cuda", compat="lalpulsar")


def test_auto_takes_the_gpu_where_it_has_kernels():
    with TransientPlan(window="exp") as plan:
        assert plan.device.kind == "cuda"
    with TransientPlan(window=np.cos) as plan:
        assert plan.device.kind == "cuda"
    with TransientPlan(window="exp", compat="lalpulsar") as plan:
        assert plan.device.kind == "cpu"
