"""The transient F-statistic on a GPU through the public functions: large maps, any grid, arrays on the GPU.

Every kernel is tested in tests/kernels/test_fstat.py.  What is here is too large for the host shim, or needs CuPy.
Needs NumPy, SciPy, CuPy, pytest and hypothesis alone.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels.test_fstat import CELL, MANY_BINS, RMS, T0, T, grids
from tests.truth import fstat as reference

import skysieve
from skysieve.core.device import resolve
from skysieve.fstat import Atoms, Grid, Injection, TransientPlan, synth_atoms, transient_map
from skysieve.fstat.contract import Bank, MapJob, Spec, make_job
from skysieve.fstat.cuda import engine as cuda
from skysieve.fstat.inputs.bins import bin_atoms
from skysieve.fstat.inputs.windows import resolve_window

pytestmark = pytest.mark.gpu

GRIDS = grids(MANY_BINS)


def engine(window, dtype="float32", **options):
    return cuda.Engine(Spec(resolve_window(window, 3), np.dtype(dtype), **options), device=resolve("cuda")[0])


def patchy(seed=5, sky=0.0, inject=None, n=96):
    return synth_atoms(
        T0, n * T, inject=inject, gaps=[(T0 + 50 * T, T0 + 70 * T)], offsets=[0, 700], ra=0.5 + sky, seed=seed
    )


SIGNAL = Injection(t0=T0 + 20 * T, tau=15 * T, snr=9, window="exp")


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
def test_the_public_function(window, dtype):
    atoms = patchy(inject=SIGNAL)
    truth = reference.transient_map(bin_atoms(atoms), GRIDS["full"], resolve_window(window, 3))
    r = transient_map(atoms, GRIDS["full"], window=window, dtype=dtype, device="cuda", strict=False)
    compare(r.F, truth, dtype)
    loose = dtype == "float32"
    assert r.max_F == pytest.approx(truth.max_F, abs=1e-3 if loose else 1e-9)
    assert r.lnBtSG == pytest.approx(truth.ln_bayes, abs=1e-3 if loose else 1e-9)
    bound = 1e-5 + 1e-7 * truth.max_F if loose else 1e-11
    assert np.abs(r.p_t0 - truth.weights.sum(1)).max() <= bound
    assert np.abs(r.p_tau - truth.weights.sum(0)).max() <= bound
    for posteriors in (True, False):
        lean = transient_map(
            atoms, GRIDS["full"], window=window, dtype=dtype, device="cuda", strict=False, keep_map=False,
            posteriors=posteriors,
        )  # fmt: skip
        assert lean.max_F == pytest.approx(r.max_F, rel=1e-5 if loose else 1e-12)
        assert lean.lnBtSG == pytest.approx(r.lnBtSG, abs=1e-4 if loose else 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("marginals", [True, False])
def test_launches_that_are_started_again_see_new_data(window, dtype, marginals):
    """Batches of one size on one engine, whose launches are recorded from the second on; small lanes take turns."""
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


@pytest.mark.parametrize("window", ["rect", "exp"])
def test_many_starts(window):
    """1,300 starts (more than a block has threads) by 21 durations, and a year of data: random cells."""
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
    gaps = [(T0 + 5 * T, T0 + min(9, n - 2) * T)] if n > 7 else []
    atoms = synth_atoms(T0, n * T, seed=seed, gaps=gaps)
    grid = Grid(t0=T0 + start, t0_band=band, dt0=dt0, tau=tau, tau_band=tau_band, dtau=dtau)
    truth = reference.transient_map(bin_atoms(atoms), grid, resolve_window(window, 3))
    r = transient_map(atoms, grid, window=window, dtype="float32", device="cuda", strict=False)
    F = np.asarray(r.F, float)
    assert np.array_equal(np.isnan(F), np.isnan(truth.F))
    clear = np.isfinite(truth.F) & (np.abs(truth.condition / 1e4 - 1) > 0.01)
    if clear.any():
        assert (np.abs(F - truth.F)[clear] / np.maximum(1, truth.F[clear])).max() <= 3e-4


def test_arrays_on_the_gpu_stay_on_it():
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maps_on_the_host_survive_later_calls(dtype):
    """Memory of maps serves later ones, but never while a map or a view of it is held."""
    made = [patchy(seed=i, n=700) for i in range(3)]
    truth = [transient_map(atoms, window="exp", dtype=dtype, device="cpu").F for atoms in made]
    held = [transient_map(atoms, window="exp", dtype=dtype, device="cuda").F for atoms in made]
    views = [F[5:60] for F in held]
    del held
    for atoms in made:
        transient_map(atoms, window="exp", dtype=dtype, device="cuda")
    for view, F in zip(views, truth, strict=True):
        assert np.abs(view - F[5:60]).max() <= CELL[dtype] * F.max()


def test_the_function_and_a_plan_give_the_same_numbers():
    atoms = patchy(inject=SIGNAL)
    for keep_map in (True, False):
        options = {"window": "exp", "dtype": "float32", "device": "cuda", "keep_map": keep_map}
        with TransientPlan(GRIDS["full"], strict=False, **options) as plan:
            expected = plan.execute(atoms)
        for _ in range(3):
            r = transient_map(atoms, GRIDS["full"], strict=False, **options)
            assert (r.max_F, r.log_sum, r.index) == (expected.max_F, expected.log_sum, expected.index)
    skysieve.clear_cache()
    assert transient_map(atoms, GRIDS["full"], strict=False, **options).max_F == expected.max_F
