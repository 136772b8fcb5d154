"""The transient F-statistic against the reference `tests.truth.fstat` and against values from LALPulsar."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.fstat_truth import CELL, GRIDS, RMS, STORED, T0, WINDOWS, T, compare, patchy_atoms
from tests.truth import fstat as reference

from skysieve.fstat import Atoms, Grid, WindowSum, synth_atoms, transient_map
from skysieve.fstat.inputs.bins import bin_atoms
from skysieve.fstat.inputs.windows import resolve_window

CASES = ("d1_H1_1d_nogap_rect", "d2_H1L1_10d_gaps_exp", "d3_H1_2d_biggap_noise_unaligned")


def load(folder, name):
    with np.load(folder / "fstat" / f"{name}.npz") as z:
        z = dict(z)
    atoms = [
        Atoms(*(z[f"atoms{i}_{k}"] for k in ("t", "a2", "b2", "ab", "Fa", "Fb")), int(z["TAtom"]), str(d))
        for i, d in enumerate(z["detectors"])
    ]
    w = {k: int(z[f"win_{k}"]) for k in ("t0", "t0Band", "dt0", "tau", "tauBand", "dtau")}
    grid = Grid(
        t0=w["t0"], t0_band=w["t0Band"], dt0=w["dt0"], tau=w["tau"], tau_band=w["tauBand"], dtau=w["dtau"]
    )  # fmt: skip
    return z, atoms, grid


@pytest.fixture(scope="module")
def cases(test_data):
    return {name: load(test_data, name) for name in CASES}


# ---------------------------------------------------------------- LALPulsar's cases


@pytest.mark.parametrize("name", CASES)
def test_merged_bins_are_those_of_lalpulsar(cases, name):
    z, atoms, _ = cases[name]
    bins = bin_atoms(atoms)
    assert bins.t_start == int(z["merged_t0"])
    assert np.array_equal(bins.x.T, z["merged_M"])


@pytest.mark.few
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("name", CASES)
def test_exact_maps(cases, name, window):
    z, atoms, grid = cases[name]
    r = transient_map(atoms, grid, window=window, device="cpu")
    reference_F = z[f"{window}_F_exact64"].astype(float)
    assert np.abs(r.F / reference_F - 1).max() <= STORED
    assert np.array_equal(r.F == 2, reference_F == 2)
    assert r.n_fallback == np.count_nonzero(reference_F == 2)
    assert r.max_F == pytest.approx(float(z[f"{window}_exact_maxF"]), rel=1e-12)
    assert (r.t0_ml, r.tau_ml) == (int(z[f"{window}_exact_t0_ML"]), int(z[f"{window}_exact_tau_ML"]))
    assert r.lnBtSG == pytest.approx(float(z[f"{window}_exact_lnBtSG"]), rel=1e-12)
    assert np.abs(r.p_t0 - z[f"{window}_exact_p_t0"]).max() < 1e-12
    assert np.abs(r.p_tau - z[f"{window}_exact_p_tau"]).max() < 1e-12


@pytest.mark.few
@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("name", CASES)
def test_float32_maps(cases, name, window):
    z, atoms, grid = cases[name]
    r = transient_map(atoms, grid, window=window, dtype="float32", device="cpu")
    R = z[f"{window}_F_exact64"].astype(float)
    error = np.abs(r.F - R) / np.maximum(1, R)
    assert error.max() <= CELL["float32"]
    assert np.sqrt(np.mean(error**2)) <= RMS["float32"]
    assert np.array_equal(r.F == 2, R == 2)
    assert r.lnBtSG == pytest.approx(float(z[f"{window}_exact_lnBtSG"]), abs=1e-3)
    assert (r.t0_ml, r.tau_ml) == (int(z[f"{window}_exact_t0_ML"]), int(z[f"{window}_exact_tau_ML"]))


@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("name", CASES)
def test_compat_is_lalpulsar_to_the_last_bit(cases, name, window):
    z, atoms, grid = cases[name]
    r = transient_map(atoms, grid, window=window, compat="lalpulsar")
    assert r.F.dtype == np.float32
    assert np.array_equal(r.F, z[f"{window}_F_lal"])
    lal = {k: float(z[f"{window}_lal_{k}"]) for k in ("maxF", "t0_ML", "tau_ML", "lnBtSG", "t0_MP", "tau_MP")}
    assert (r.max_F, r.t0_ml, r.tau_ml) == (lal["maxF"], lal["t0_ML"], lal["tau_ML"])
    assert r.lnBtSG == pytest.approx(lal["lnBtSG"], abs=1e-12)
    assert (r.t0_mp, r.tau_mp) == (pytest.approx(lal["t0_MP"], abs=1e-6), pytest.approx(lal["tau_MP"], abs=1e-6))
    for axis in ("t0", "tau"):
        edges, density = r.posterior_density(axis)
        expected = z[f"{window}_lal_pdf_{axis}"]
        assert edges == pytest.approx(z[f"{window}_lal_pdfx_{axis}"], rel=1e-15)
        assert density == pytest.approx(expected, rel=1e-10, abs=1e-10 * expected.max())  # exp(ln) of F = 360


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("compat", [None, "lalpulsar"])
def test_window_none_is_the_persistent_statistic(cases, name, compat):
    z, atoms, grid = cases[name]
    r = transient_map(atoms, grid, window="none", compat=compat)
    assert r.F.shape == (1, 1)
    # required: 2e-6; two methods of LALPulsar differ by 1e-6
    assert float(r.twoF[0, 0]) == pytest.approx(float(z["twoF_total"]), rel=2e-6)
    if compat:
        assert float(r.F[0, 0]) == float(z["none_F"][0, 0])


# ---------------------------------------------------------------- the reference maps


@pytest.fixture(scope="module")
def patchy():
    return patchy_atoms()


@pytest.mark.few
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_against_the_truth(patchy, grid, window):
    truth = reference.transient_map(bin_atoms(patchy), GRIDS[grid], resolve_window(WINDOWS[window], 3))
    options = {"window": WINDOWS[window], "device": "cpu", "strict": False}
    for dtype in ("float64", "float32"):
        r = transient_map(patchy, GRIDS[grid], dtype=dtype, **options)
        compare(r, truth, dtype)
        assert r.n_cells == np.isfinite(truth.F).sum()
        lean = transient_map(patchy, GRIDS[grid], dtype=dtype, keep_map=False, threads=1, **options)
        assert lean.F is None
        assert (lean.max_F, lean.index, lean.n_fallback) == (r.max_F, r.index, r.n_fallback)
        assert lean.lnBtSG == pytest.approx(r.lnBtSG, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("efold", [0.7, 2.5, 20.0])
@pytest.mark.parametrize("window", ["exp", "sum"])
def test_other_ends(patchy, window, efold):
    grid = GRIDS["off the bins"]
    truth = reference.transient_map(bin_atoms(patchy), grid, resolve_window(WINDOWS[window], efold))
    compare(
        transient_map(patchy, grid, window=WINDOWS[window], efold=efold, device="cpu", strict=False), truth, "float64"
    )


@pytest.mark.slow
def test_many_starts_and_a_long_map():
    """1,200 start times (more than a block of threads) by 40 durations; random cells."""
    atoms = synth_atoms(T0, 1202 * T, duty=0.7, seed=8)
    grid = Grid(t0=T0, t0_band=1199 * T, dt0=T, tau=2 * T, tau_band=39 * 30 * T, dtau=30 * T)
    bins = bin_atoms(atoms)
    rng = np.random.default_rng(0)
    for name in ("rect", "exp"):
        window = resolve_window(name, 3)
        maps = {d: transient_map(atoms, grid, window=name, dtype=d, device="cpu").F for d in CELL}
        for m, n in zip(rng.integers(0, 1200, 200), rng.integers(0, 40, 200), strict=True):
            F, condition = reference.cell(bins, int(grid.t0s[m]), int(grid.taus[n]), window)
            if abs(condition / 1e4 - 1) > 0.01:
                for dtype, values in maps.items():
                    assert values[m, n] == pytest.approx(F, rel=CELL[dtype], abs=CELL[dtype])


def test_year_in_float32_keeps_its_digits():
    """N = 17,520: required 3e-4 at most and 1e-5 rms in sampled cells."""
    n = 17_520
    atoms = synth_atoms(T0, n * T, duty=0.8, seed=4)
    taus = np.unique(np.geomspace(2, n, 24).round()) * T
    grid = Grid.from_lists(T0 + T * np.arange(n - 1), taus)
    bins = bin_atoms(atoms)
    rng = np.random.default_rng(1)
    for name in ("rect", "exp"):
        F = transient_map(atoms, grid, window=name, dtype="float32", device="cpu").F
        window, errors = resolve_window(name, 3), []
        for m, c in zip(rng.integers(0, n - 1, 300), rng.integers(0, len(taus), 300), strict=True):
            R, condition = reference.cell(bins, int(grid.t0s[m]), int(taus[c]), window)
            if abs(condition / 1e4 - 1) > 0.01:
                errors.append(abs(F[m, c] - R) / max(1, R))
        assert max(errors) <= 3e-4
        assert np.sqrt(np.mean(np.square(errors))) <= 1e-5


# ---------------------------------------------------------------- gaps and glitches


@pytest.mark.few
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("window", list(WINDOWS))
def test_a_window_in_a_gap_is_the_fallback(window, dtype):
    """10,000 empty bins between two loud stretches (x 1e6 in amplitude): nothing of them is left in the gap."""
    loud = synth_atoms(T0, 20 * T, noise=1, seed=2)[0]
    late = T0 + 10_020 * T
    atoms = Atoms(
        np.concatenate([loud.t, loud.t + 10_020 * T]),
        *(np.concatenate([x, x]) for x in (loud.a2, loud.b2, loud.ab)),
        *(np.concatenate([x, x]) * np.float32(1e6) for x in (loud.Fa, loud.Fb)),
    )
    taus = np.array([2, 3, 10, 100, 1000]) * T
    grid = Grid.from_lists(T0 + T * np.array([0, 19, 20, 21, 300, 5000, 10_000, 10_018, 10_019]), taus)
    r = transient_map(atoms, grid, window=WINDOWS[window], dtype=dtype, device="cpu")
    reach = taus if window == "rect" else 3 * taus
    empty = (grid.t0s >= T0 + 20 * T)[:, None] & (grid.t0s[:, None] + reach <= late)
    assert empty.sum() > 15
    assert np.all(r.F[empty] == 2)
    assert np.all(np.isfinite(r.F))
    assert np.all(r.F[0] > 1e6)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("window", ["rect", "exp", "sum", "any"])
def test_a_glitch_outside_the_window_does_not_reach_it(window, dtype):
    """One SFT of 1e6 times the noise, then windows that start right after it, and windows that end right before it."""
    quiet = synth_atoms(T0, 200 * T, seed=6)[0]
    F = [x.copy() for x in (quiet.Fa, quiet.Fb)]
    at = 80
    for x in F:
        x[at] *= np.float32(1e6)
    glitched = Atoms(quiet.t, quiet.a2, quiet.b2, quiet.ab, *F)
    shape = {"window": WINDOWS[window], "dtype": dtype, "device": "cpu"}
    taus = np.arange(2, 40) * T
    after = Grid.from_lists(T0 + T * np.arange(at + 1, 150), taus)
    for grid in (after, Grid.from_lists(T0 + T * np.arange(0, 40), np.arange(2, 14) * T)):
        a, b = transient_map(quiet, grid, **shape).F, transient_map(glitched, grid, **shape).F
        error = np.abs(a - b) / np.maximum(1, a)
        # running sums: the same operations.  Transforms spread 1e6 * 1e-16 over all cells; condition numbers below
        # 1e4 may multiply that by 1e4
        assert error.max() <= (0 if window == "rect" else 1e-6 if window in ("any", "sum") else CELL[dtype])


def test_a_wild_bin_and_few_cells():
    """1e15 times the noise: sums in float64 from the start of the data on would lose everything after it."""
    quiet = synth_atoms(T0, 200 * T, seed=6)[0]
    F = [x.copy() for x in (quiet.Fa, quiet.Fb)]
    for x in F:
        x[50] *= np.float32(1e15)
    wild = Atoms(quiet.t, quiet.a2, quiet.b2, quiet.ab, *F)
    grid = Grid.from_lists(T0 + T * np.array([60, 90, 120]), np.array([2, 5, 40]) * T)
    for window in ("rect", "exp"):
        a, b = (transient_map(x, grid, window=window, dtype="float32", device="cpu").F for x in (quiet, wild))
        assert (np.abs(a - b) / np.maximum(1, a)).max() <= CELL["float32"]


def test_one_detector_silent_for_months():
    h1 = synth_atoms(T0, 100 * T, detectors=["H1"], seed=1)
    l1 = synth_atoms(T0 + 4000 * T, 100 * T, detectors=["L1"], seed=2)
    grid = Grid.from_lists(T0 + T * np.array([0, 60, 2000, 4000]), np.array([2, 50, 3000, 4090]) * T)
    for window in ("rect", "exp"):
        truth = reference.transient_map(bin_atoms([*h1, *l1]), grid, resolve_window(window, 3))
        for dtype in CELL:
            compare(transient_map([*h1, *l1], grid, window=window, dtype=dtype, device="cpu"), truth, dtype)


SUMS = {
    "rise": WindowSum([(1, 1), (-1, 6)]),
    "x exp(-x)": WindowSum([((0, 1), 1)]),
    "damped tone": WindowSum([((0, 1), 1 + 2j)]),
    "polynomial": WindowSum([((1, -0.2, 0.01), 0)]),
}


@pytest.mark.few
@pytest.mark.parametrize("name", list(SUMS))
@pytest.mark.parametrize("forced", ["recurrence", "bins"])
def test_window_sums_by_either_method(monkeypatch, name, forced):
    """400 bins, so that sums are formed anew in between; cells are compared with sums of the window as a function."""
    from skysieve.fstat.cpu import any as cpu_any

    atoms = synth_atoms(T0, 400 * T, duty=0.8, seed=3, gaps=[(T0 + 100 * T, T0 + 150 * T)])
    for grid in (
        Grid(t0=T0 - 3 * T, t0_band=395 * T, dt0=T, tau=2 * T, tau_band=380 * T, dtau=27 * T),
        Grid(t0=T0 + 333, t0_band=390 * T, dt0=5 * T // 2, tau=4321, tau_band=300 * T, dtau=50_000),
    ):
        monkeypatch.setattr(cpu_any, "NS_MOMENT", 5.0 if forced == "bins" else 0.0)
        monkeypatch.setattr(cpu_any, "NS_DIRECT", 0.0 if forced == "bins" else 2.2)
        r = transient_map(atoms, grid, window=SUMS[name], device="cpu", strict=False)
        w, bins = resolve_window(SUMS[name], 3), bin_atoms(atoms)
        rng = np.random.default_rng(2)
        for m, n in zip(rng.integers(0, grid.shape[0], 150), rng.integers(0, grid.shape[1], 150), strict=True):
            F, condition = reference.cell(bins, int(grid.t0s[m]), int(grid.taus[n]), w)
            if np.isnan(F):
                assert np.isnan(r.F[m, n])
            elif abs(condition / 1e4 - 1) > 0.01:
                # measured at most 1.4e-11 in maps of 480 x 480: moments cancel where a window rises from 0
                assert r.F[m, n] == pytest.approx(F, rel=1e-9, abs=1e-9)
