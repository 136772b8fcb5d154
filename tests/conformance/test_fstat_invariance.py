"""The transient F-statistic: random problems against the reference, invariances, statistics, batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.conformance.fstat_truth import GRIDS, T0, WINDOWS, T, compare, patchy_atoms
from tests.marks import slow
from tests.truth import fstat as reference

from skysieve.fstat import Atoms, Grid, Injection, TransientPlan, synth_atoms, transient_map
from skysieve.fstat.inputs.bins import bin_atoms
from skysieve.fstat.inputs.windows import resolve_window

# ---------------------------------------------------------------- properties

SOME = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw):
    """Atoms of one or two detectors, and a grid that may start before them, lie off the bins and end anywhere."""
    n = draw(st.integers(3, 60))
    width = draw(st.sampled_from([1800, 600, 1801, 7]))
    options = {
        "tatom": width,
        "duty": draw(st.sampled_from([1.0, 0.7, 0.3])),
        "seed": draw(st.integers(0, 10**6)),
        "detectors": draw(st.sampled_from([["H1"], ["V1", "K1"]])),
        "noise": draw(st.sampled_from([1.0, 1e-3])),
    }
    try:
        atoms = synth_atoms(T0, n * width, **options)
    except ValueError:  # the duty left no SFT
        reject()
    t0 = T0 + draw(st.integers(-2 * n * width, n * width))
    grid = Grid(
        t0=t0, t0_band=draw(st.integers(0, n * width)), dt0=draw(st.integers(max(1, width // 3), 4 * width)),
        tau=draw(st.integers(1, 3 * width)), tau_band=draw(st.integers(0, n * width)),
        dtau=draw(st.integers(max(1, width // 2), 5 * width)),
    )  # fmt: skip
    return atoms, grid


# Start times in several groups use another compiled function of the window "exp", which float64 would compile again.
@pytest.mark.parametrize(
    "kinds", [[("rect", "float64"), ("rect", "float32"), ("exp", "float32")], slow([("exp", "float64")])]
)
@SOME
@given(problem=problems(), data=st.data())
def test_any_problem_is_the_truth(kinds, problem, data):
    atoms, grid = problem
    window, dtype = data.draw(st.sampled_from(kinds))
    truth = reference.transient_map(bin_atoms(atoms), grid, resolve_window(window, 3))
    r = transient_map(atoms, grid, window=window, dtype=dtype, device="cpu", strict=False)
    if np.isnan(truth.F).all():
        assert r.index is None
        assert np.isnan(r.F).all()
        assert np.isnan(r.max_F)
        return
    compare(r, truth, dtype, bins=bin_atoms(atoms).n)


@SOME
@given(
    n=st.integers(3, 90),
    starts=st.sets(st.integers(-30, 100), min_size=1, max_size=40),
    taus=st.sets(st.integers(1, 120), min_size=1, max_size=40),
    duty=st.sampled_from([1.0, 0.8, 0.4]),
    seed=st.integers(0, 1000),
    window=st.sampled_from(["rect", "exp"]),
    dtype=st.sampled_from(["float64", "float32"]),
)
def test_starts_at_any_bins_and_durations_of_any_lengths(n, starts, taus, duty, seed, window, dtype):
    """Blocks of bins in which some are rows of the map, lengths with and without a common step, gaps."""
    try:
        atoms = synth_atoms(T0, n * T, duty=duty, seed=seed)
    except ValueError:  # the duty left no SFT
        reject()
    t0 = min(int(a.t[0]) for a in atoms)
    grid = Grid.from_lists(t0 + T * np.array(sorted(starts)), T * np.array(sorted(taus)))
    truth = reference.transient_map(bin_atoms(atoms), grid, resolve_window(window, 3))
    r = transient_map(atoms, grid, window=window, dtype=dtype, device="cpu", strict=False)
    if np.isnan(truth.F).all():
        assert r.index is None
        return
    compare(r, truth, dtype, bins=bin_atoms(atoms).n)
    assert r.n_fallback == np.count_nonzero(np.asarray(r.F) == 2)


@SOME
@given(phase=st.floats(0, 6.3), power=st.floats(-8, 8), seed=st.integers(0, 1000))
def test_phase_and_scale_do_not_matter(phase, power, seed):
    atoms = synth_atoms(T0, 40 * T, detectors=["L1"], seed=seed, dtype="float64")[0]
    s = 10.0**power
    turned = Atoms(
        atoms.t, atoms.a2 * s**2, atoms.b2 * s**2, atoms.ab * s**2,
        atoms.Fa * s * np.exp(1j * phase), atoms.Fb * s * np.exp(1j * phase),
    )  # fmt: skip
    swapped = Atoms(atoms.t, atoms.b2, atoms.a2, atoms.ab, atoms.Fb, atoms.Fa)
    for window in ("rect", "exp"):
        F = transient_map(atoms, window=window, device="cpu").F
        good = F != 2
        for other in (turned, swapped):
            G = transient_map(other, window=window, device="cpu").F
            # rounding of the inputs (1e-16) times the condition number squared (1e8), as CELL
            assert np.abs(G - F)[good & (G != 2)].max() <= 1e-8 * F.max()
            assert np.count_nonzero((G == 2) != (F == 2)) <= 2  # cells at the bound itself


def test_the_order_of_detectors_does_not_matter():
    patchy = patchy_atoms()
    for window in ("rect", "exp"):
        a = transient_map(patchy, GRIDS["coarse"], window=window, device="cpu").F
        b = transient_map(patchy[::-1], GRIDS["coarse"], window=window, device="cpu").F
        assert a == pytest.approx(b, rel=3e-4)  # atoms are added in float32


def test_one_plan_serves_many_templates():
    grid = Grid.full(synth_atoms(T0, 50 * T))
    with TransientPlan(grid, window="exp", device="cpu") as plan:
        for seed in range(3):
            atoms = synth_atoms(T0, 50 * T, seed=seed)
            assert np.array_equal(plan.execute(atoms).F, transient_map(atoms, grid, window="exp", device="cpu").F)


def test_threads_do_not_change_the_answer():
    atoms = synth_atoms(T0, 300 * T, seed=3)
    for window in ("rect", "exp"):
        a, b = (transient_map(atoms, window=window, dtype="float32", device="cpu", threads=k) for k in (1, 2))
        assert np.array_equal(a.F, b.F)
        assert (a.max_F, a.index) == (b.max_F, b.index)


# ---------------------------------------------------------------- statistics


@pytest.mark.slow
def test_noise_follows_chi_square():
    """2F of 1,000 draws, one cell each: chi-square with 4 degrees of freedom."""
    from scipy import stats

    for window in ("rect", "exp"):
        grid = Grid(t0=T0 + 10 * T, tau=20 * T)
        with TransientPlan(grid, window=window, device="cpu") as plan:
            twoF = [plan.execute(synth_atoms(T0, 96 * T, seed=seed)).max2F for seed in range(1000)]
        assert stats.kstest(twoF, stats.chi2(4).cdf).pvalue > 1e-3


def test_ln_b_of_noise_and_of_one_cell():
    """One cell has ln B = ln 70 + F.  For many it is between the values for one large F and for all F equal to it."""
    atoms = synth_atoms(T0, 96 * T, seed=1)
    for window in ("rect", "exp"):
        one = transient_map(atoms, Grid(t0=T0 + 10 * T, tau=20 * T), window=window, device="cpu")
        assert one.lnBtSG == pytest.approx(np.log(70) + one.max_F, rel=1e-14)
        many = transient_map(atoms, window=window, device="cpu")
        assert np.log(70 / many.n_cells) + many.max_F < many.lnBtSG < np.log(70) + many.max_F
        mean = float(np.mean(np.exp(many.F)))  # B is 70 times the mean of exp F over the prior
        assert many.lnBtSG == pytest.approx(np.log(70 * mean), rel=1e-12)


@pytest.mark.parametrize("window", ["rect", "exp"])
def test_an_injection_is_found(window):
    signal = Injection(t0=T0 + 100 * T, tau=60 * T, snr=20, window=window)
    r = transient_map(synth_atoms(T0, 480 * T, inject=signal, seed=11), window=window, dtype="float32", device="cpu")
    assert abs(r.t0_ml - signal.t0) <= 2 * T
    assert abs(r.tau_ml - signal.tau) <= (2 if window == "rect" else 12) * T  # decay of SNR 20: tau to about 10%
    assert r.max2F == pytest.approx(404, abs=5 * 2 * 20)  # 4 + snr^2; its deviation is 2 snr
    for name, value in (("t0", signal.t0), ("tau", signal.tau)):
        low, high = r.credible_interval(name, 0.999)
        assert low <= value <= high


def test_a_signal_without_noise_has_its_snr():
    signal = Injection(t0=T0 + 40 * T, tau=50 * T, snr=12, window="exp")
    atoms = synth_atoms(T0, 300 * T, inject=signal, noise=0, dtype="float64")
    grid = Grid(t0=signal.t0, tau=signal.tau)
    assert transient_map(atoms, grid, window="exp", device="cpu").max2F == pytest.approx(144, rel=1e-10)


@pytest.mark.parametrize("window", list(WINDOWS))
def test_a_batch_is_a_loop_of_singles(window):
    """The CPU's engine on five templates of different skies."""
    from skysieve.fstat.contract import Spec, make_job
    from skysieve.fstat.cpu import engine as cpu

    bins = [bin_atoms(synth_atoms(T0, 60 * T, ra=0.3 * i, seed=i, gaps=[(T0, T0 + 9 * T)])) for i in range(5)]
    w, grid = resolve_window(WINDOWS[window], 3), Grid(t0=T0, t0_band=40 * T, dt0=T, tau=2 * T, tau_band=30 * T)
    engine = cpu.Engine(Spec(w, np.dtype("f4")), threads=2)
    out = engine.execute(make_job(bins, grid, w, np.float32))
    for i, b in enumerate(bins):
        one = engine.execute(make_job([b], grid, w, np.float32))
        assert np.array_equal(out.F[i], one.F[0])
        assert (out.max_F[i], out.index[i], out.n_fallback[i]) == (one.max_F[0], one.index[0], one.n_fallback[0])
        assert out.log_sum[i] == one.log_sum[0]
        assert np.array_equal(out.row_log[i], one.row_log[0])
    engine.close()
    with pytest.raises(ValueError, match="template 1 has different times"):
        make_job([bins[0], bin_atoms(synth_atoms(T0, 60 * T))], grid, w, np.float32)
