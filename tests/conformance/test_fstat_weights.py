"""The transient F-statistic for noise weights of any size, gaps and blanked SFTs, against sums in long double."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.fstat_truth import T0, WINDOWS, T
from tests.conformance.fstat_weights import LIMIT, any_weights, error_of, long_map, some_sfts, weighed
from tests.marks import slow

from skysieve.fstat import (
    BSGL,
    Atoms,
    AtomsBatch,
    Grid,
    TransientPlan,
    merge,
    precision,
    search,
    synth_atoms,
    transient_map,
)
from skysieve.fstat.contract import Spec, make_job
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.batch import bin_batch
from skysieve.fstat.template_search.cells import F_of_sums

CPU = {"device": "cpu", "strict": False}


def grids(start, n):
    """Grids whose starts lie on bins, and at several places between them."""
    step = max(1, n // 25)
    return (
        Grid(t0=start - 2 * T, t0_band=(n - 2) * T, dt0=T, tau=3 * T, tau_band=n * T, dtau=step * T),
        Grid(t0=start + 700, t0_band=(n - 3) * T, dt0=2500, tau=3 * T + 100, tau_band=n * T, dtau=step * T + 300),
    )


def check(atoms, grid, window, efold=3, **options):
    """Maps in both types of arithmetic, and what follows from them, against long double."""
    bins, w = bin_atoms(atoms), resolve_window(window, efold)
    truth = long_map(bins, grid, w)
    for dtype, limit in LIMIT.items():
        r = transient_map(atoms, grid, window=window, efold=efold, dtype=dtype, **CPU, **options)
        error, wrong = error_of(r.F, truth)
        assert error <= limit, dtype
        assert wrong == 0, dtype
        clear = np.isfinite(truth.F) & (np.abs(truth.condition / 1e4 - 1) > 0.01)
        if clear.sum() == np.isfinite(truth.F).sum():
            assert r.max_F == pytest.approx(truth.max_F, rel=limit, abs=limit)
            assert r.lnBtSG == pytest.approx(truth.ln_bayes, abs=2 * limit * max(1, truth.max_F))
            assert np.abs(r.p_t0 - truth.weights.sum(1)).max() <= 2 * limit * max(1, truth.max_F)
            assert r.n_fallback == np.count_nonzero(truth.F == 2)
    return truth


# ---------------------------------------------------------------- weights


@pytest.mark.few
@pytest.mark.parametrize("decades", [2, 4, 9, 16, 30])
@pytest.mark.parametrize("window", WINDOWS)
def test_any_weights(window, decades):
    """Random levels and single SFTs, gaps, weights of zero, detectors that come and go; atoms of both precisions."""
    for seed in range(6):
        rng = np.random.default_rng([seed, decades, list(WINDOWS).index(window)])
        n = int(rng.integers(20, 130))
        atoms = any_weights(rng, n, ("H1", "L1")[: 1 + seed % 2], decades, ("float32", "float64")[seed // 2 % 2])
        grid = grids(bin_atoms(atoms).t_start, n)[seed % 2]
        check(atoms, grid, WINDOWS[window], (3, 3, 0.8, 1.5, 8, 20)[seed])


@pytest.mark.slow
@pytest.mark.parametrize(
    "weight", [1e-3, *map(slow, (1e-5, 1e-7)), 1e-8, *map(slow, (1e-10, 1e-12, 1e-15, 1e-25)), 1e-34]
)
def test_a_stretch_of_small_weights(weight):
    """Noise alone; exponential windows gave 2F of hundreds where all loud SFTs have left."""
    atoms = synth_atoms(T0, 220 * T, detectors=["H1"], seed=3, dtype="float64")[0]
    factor = np.ones(len(atoms))
    factor[70:140] = weight
    for dtype in ("float32", "float64"):
        made = weighed(atoms, factor, dtype)
        grid = Grid(t0=T0, t0_band=218 * T, dt0=T, tau=2 * T, tau_band=216 * T, dtau=4 * T)
        for window in ("rect", "exp"):
            truth = check([made], grid, window)
            assert truth.max_F < 20


@pytest.mark.few
@pytest.mark.parametrize("weight", [slow(1e-6), 1e-8, slow(1e-9), 1e-10, slow(1e-20)])
def test_a_poor_detector_through_the_gap_of_another(weight):
    h1, g1 = synth_atoms(T0, 200 * T, detectors=["H1", "L1"], seed=1)
    atoms = [some_sfts(h1, np.r_[0:60, 120:200]), weighed(g1, np.full(len(g1), weight))]
    grid = Grid.full(atoms, dtau=3 * T)
    truth = check(atoms, grid, "exp")
    found = search([atoms, [h1, g1], atoms], grid, windows=("rect", "exp"), topk=3, device="cpu").columns("exp")
    poor = found["template"] != 1
    assert found["max2F"][poor] == pytest.approx([2 * truth.max_F] * 2, rel=3e-4)
    best = int(np.nanargmax(truth.F))
    assert int(found["t0_ml"][poor][0]) == grid.t0s[best // grid.shape[1]]


@pytest.mark.parametrize("window", ["rect", "exp", "sum", "any"])
def test_the_whole_range_of_float64(window):
    """Weights of 1e150 and 1e-150, and of 1e-280 alone; also with a result in float32."""
    atoms = synth_atoms(T0, 60 * T, detectors=["H1", "L1"], seed=2, dtype="float64")
    factor = np.ones(60)
    factor[20:40] = 1e-300
    spread = [weighed(a, factor[: len(a)] * 1e150, "float64") for a in atoms]
    faint = [weighed(a, np.full(len(a), 1e-280), "float64") for a in atoms]
    for made in (spread, faint):
        check(made, Grid.full(made, dtau=3 * T), WINDOWS[window])


def test_scale_of_the_atoms_does_not_matter_in_float32():
    """Weights of 1e-60 were zero in float32; F is that of weights of 1, and so are those of a search."""
    plain = synth_atoms(T0, 50 * T, seed=4, dtype="float64")
    power = 2.0**-200
    faint = [weighed(a, np.full(len(a), power), "float64") for a in plain]
    grid = Grid.full(plain)
    for window in ("rect", "exp"):
        a, b = (transient_map(x, grid, window=window, dtype="float32", **CPU) for x in (plain, faint))
        assert np.array_equal(a.F, b.F)
        both = search([plain, faint], grid, windows=(window,), topk=2, device="cpu").columns(window)
        assert both["max2F"][0] == both["max2F"][1]


@pytest.mark.few
@pytest.mark.parametrize("size", [1e2, 1e5, 1e7, 1e12])
def test_glitches_of_several_sizes(size):
    """A glitch, another 1e3 times smaller beside it: what the first leaves must not show in the second's windows."""
    atoms = synth_atoms(T0, 90 * T, detectors=["H1", "L1"], seed=6)
    for a in atoms:
        for x in (a.Fa, a.Fb):
            x[45] *= np.float32(size)
            x[40] *= np.float32(size / 1e3)
    for window in ("rect", "exp", "sum", "any"):
        check(atoms, grids(T0, 90)[0], WINDOWS[window])


@pytest.mark.parametrize("efold", [1.5, 3])
@pytest.mark.parametrize("detectors", [["H1"], ["H1", "L1"]])
def test_windows_that_start_in_a_long_gap(detectors, efold):
    """Few SFTs at the far end of a window, after thousands have left it: in float32 it was wrong by 1e-3 and more."""
    n = 1500
    gap = [(T0 + 500 * T, T0 + 1000 * T)]
    atoms = synth_atoms(T0, n * T, detectors=detectors, seed=1, gaps=gap)
    grid = Grid.from_lists(T0 + T * np.arange(480, 1010), (np.arange(2, n, 24) + 1) * T)
    a, b = (transient_map(atoms, grid, window="exp", efold=efold, dtype=d, **CPU).F for d in LIMIT)
    error = np.abs(a - b) / np.maximum(1, a)
    assert np.count_nonzero((a == 2) != (b == 2)) <= 2  # cells at the limit of the condition number
    assert error[(a != 2) & (b != 2)].max() <= LIMIT["float32"]  # measured 4e-5


def test_ordinary_atoms_take_the_usual_sums():
    """Ordinary data take the fast sums: two detectors, gaps, signals, and noise 3 times as loud."""
    grid = Grid.full(synth_atoms(T0, 480 * T))
    for i in range(6):
        made = synth_atoms(T0, 480 * T, ra=i, dec=1 - 0.3 * i, duty=0.7, seed=i, gaps=[(T0 + 100 * T, T0 + 190 * T)])
        made[0] = weighed(made[0], np.full(len(made[0]), 9.0))
        for window in WINDOWS.values():
            for dtype in LIMIT:
                w = resolve_window(window, 3)
                job = make_job([bin_atoms(made)], grid, w, np.dtype(dtype))
                assert precision.levels_of(job, Spec(w, np.dtype(dtype))).tolist() == [precision.USUAL]


@pytest.mark.parametrize("window", ["rect", "exp", "any"])
def test_weights_below_the_normal_numbers_of_float32(window):
    """The weights of the atoms keep their digits when they are scaled; before, F was 2 in 63 cells in float64."""
    atoms = synth_atoms(T0, 60 * T, detectors=["H1", "L1"], seed=2, dtype="float64")
    factor = np.where((np.arange(60) > 20) & (np.arange(60) < 40), 1e-42, 1e3)
    made = [weighed(a, factor[: len(a)]) for a in atoms]
    assert 0 < made[0].a2.min() < np.finfo(np.float32).tiny
    check(made, Grid.full(made, dtau=3 * T), WINDOWS[window])


@pytest.mark.parametrize("window", ["rect", "exp"])
@pytest.mark.parametrize("width", [0.011, 0.03])
def test_stretches_with_nearly_singular_antenna_matrices(window, width):
    """Antenna factors that hardly change, unlike any detector's: condition numbers of 8,264 and 1,111 in all windows.

    In float32 the errors were up to 2.8e-3.
    """
    atoms = synth_atoms(T0, 120 * T, detectors=["H1"], seed=2, dtype="float64")[0]
    size, c, s = atoms.a2 + atoms.b2, np.cos(0.6), np.sin(0.6)
    a2, b2 = size * (c**2 + width**2 * s**2), size * (s**2 + width**2 * c**2)
    flat = Atoms(atoms.t, a2, b2, size * c * s * (1 - width**2), atoms.Fa, atoms.Fb, atoms.tatom, atoms.detector)
    made = weighed(flat, 10 ** np.linspace(0, -3, 120), "float64")
    check([made], Grid.full(made, dtau=7 * T), window, efold=1.5)


@pytest.mark.parametrize("efold", [1.5, 3])
@pytest.mark.parametrize(("depth", "size"), [(3.5, 300), (6, 1e7)])
def test_a_glitch_among_faint_sfts(efold, depth, size):
    """The glitch is loud for the weights around it, but not for the largest weight: the error in float64 was 4e-9."""
    atoms = synth_atoms(T0, 120 * T, detectors=["H1", "L1"], seed=4, dtype="float64")
    made = [weighed(a, 10 ** np.linspace(0, -depth, len(a)), "float64") for a in atoms]
    for a in made:
        for x in (a.Fa, a.Fb):
            x[100] *= size
    grid = Grid(t0=T0, t0_band=118 * T, dt0=T, tau=2 * T, tau_band=20 * T, dtau=T)
    check(made, grid, "exp", efold)


@pytest.mark.parametrize(
    ("gap", "weight", "seed"), [(6, 6e3, 1), (9, 3e3, 4), (12, 3e3, 3), (12, 6e3, 2), (12, 6e3, 10)]
)
def test_a_faint_sft_between_a_gap_and_a_heavy_one(gap, weight, seed):
    """The heavy SFT has left windows that hold only the faint one, which are singular, or that and little else.

    In float32, singular windows had an F other than 2, and others were wrong by 1.3e-3.
    """
    atoms = synth_atoms(T0, 40 * T, detectors=["H1"], seed=seed, ra=0.4 * seed, dec=0.1 * seed - 0.6, dtype="float64")[
        0
    ]
    factor = np.where(np.arange(40) == 20, weight, 1.0)
    made = some_sfts(weighed(atoms, factor), np.r_[0 : 19 - gap, 19:22, 30:40])
    grid = Grid(t0=T0 + (8 - gap) * T, t0_band=(12 + gap) * T, dt0=T, tau=2 * T, tau_band=4 * T, dtau=T // 3)
    check([made], grid, "exp")


@pytest.mark.parametrize("length", [2, 4])
def test_long_windows_of_a_heavy_sft_after_a_short_gap(length):
    """Windows of many decay times lose the heavy SFT while they hold one faint SFT: they were wrong by 2%."""
    atoms = synth_atoms(T0, 40 * T, detectors=["H1", "L1"], seed=5, dtype="float64")
    factor = np.where(np.arange(40) == 24, 1e6, 1.0)
    made = [some_sfts(weighed(a, factor[: len(a)]), np.r_[0:12, 23:25, 30:40]) for a in atoms]
    grid = Grid(t0=T0, t0_band=30 * T, dt0=T, tau=T * length // 5, tau_band=2 * T, dtau=T // 3)
    check(made, grid, "exp", efold=8)


@pytest.mark.parametrize("window", list(WINDOWS))
def test_one_faint_bin_beside_a_gap(window):
    """Some windows hold only this bin: they end there or start before the data.  F was 2 for windows of a function."""
    atoms = synth_atoms(T0, 64 * T, detectors=["H1", "L1"], seed=9, dtype="float64")
    factor = np.ones(64)
    factor[[0, 30]] = 1e-60
    keep = np.setdiff1d(np.arange(64), np.arange(22, 30))
    made = [some_sfts(weighed(a, factor, "float64"), keep) for a in atoms]
    grid = Grid(t0=T0 - 6 * T, t0_band=68 * T, dt0=T, tau=3 * T, tau_band=40 * T, dtau=4 * T)
    check(made, grid, WINDOWS[window], efold=0.8)


# ---------------------------------------------------------------- SFTs of weight zero


@pytest.mark.few
@pytest.mark.parametrize("window", list(WINDOWS))
@pytest.mark.parametrize("where", [slice(10, 42), slice(0, 9), slice(70, 96), slice(3, None, 7)])
def test_blanked_sfts_are_no_data(window, where):
    """Maps, and a search, are those of the atoms without them."""
    whole = synth_atoms(T0, 96 * T, detectors=["H1"], seed=1)[0]
    columns = [x.copy() for x in (whole.a2, whole.b2, whole.ab, whole.Fa, whole.Fb)]
    for x in columns:
        x[where] = 0
    blanked = Atoms(whole.t, *columns)
    without = some_sfts(whole, np.setdiff1d(np.arange(96), np.arange(96)[where]))
    grid = Grid.full(whole, dtau=2 * T)
    for dtype in LIMIT:
        a, b = (transient_map(x, grid, window=WINDOWS[window], dtype=dtype, **CPU) for x in (blanked, without))
        inside = ~np.isnan(b.F)  # without its last SFTs the data end earlier
        assert np.isfinite(a.F).all()
        assert np.abs(a.F - b.F)[inside].max() <= 1e-6
        assert np.array_equal((a.F == 2)[inside], (b.F == 2)[inside])
        assert np.all(a.F[~inside] == 2) or where != slice(70, 96)
        assert a.coverage.occupied.sum() == len(without)
        found = search([[blanked]] * 2, grid, windows={"w": WINDOWS[window]}, topk=2, dtype=dtype, device="cpu")
        assert found.columns("w")["max2F"] == pytest.approx([a.max2F] * 2, rel=1e-6)
        assert found.n_bad == 0


def test_nothing_but_blanked_sfts():
    zero = np.zeros(40, np.float32)
    atoms = Atoms(T0 + T * np.arange(40), zero, zero, zero, zero * 1j, zero * 1j)
    for window in WINDOWS.values():
        for dtype in LIMIT:
            r = transient_map(atoms, window=window, dtype=dtype, **CPU)
            assert np.all(r.F == 2)
            assert r.n_fallback == r.n_cells
    assert len(merge([atoms, atoms])) == 40


def test_blanked_in_one_template_of_a_batch():
    """The times are common to the batch, the weights are each template's own."""
    a = synth_atoms(T0, 80 * T, detectors=["H1"], seed=5)[0]
    cut = [x.copy() for x in (a.a2, a.b2, a.ab, a.Fa, a.Fb)]
    for x in cut:
        x[20:50] = 0
    batch = AtomsBatch.stack([a, Atoms(a.t, *cut), a])
    grid = Grid.full(a)
    assert bin_batch([batch], np.float32).bank.occupied.all()
    found = search([batch], grid, windows=("exp",), topk=3, device="cpu").columns("exp")
    order = np.argsort(found["template"])
    for i, atoms in enumerate([a, Atoms(a.t, *cut), a]):
        truth = long_map(bin_atoms(atoms), grid, resolve_window("exp", 3))
        assert found["max2F"][order[i]] == pytest.approx(2 * truth.max_F, rel=3e-4)
        assert found["n_fallback"][order[i]] == np.count_nonzero(truth.F == 2)


def test_data_without_weight_are_summed_as_they_are():
    atoms = synth_atoms(T0, 70 * T, seed=5)
    for a in atoms:
        for x in (a.a2, a.b2, a.ab):
            x[25:50] = 0
    check(atoms, grids(T0, 70)[0], "exp")


# ---------------------------------------------------------------- lines, plans, single cells


@pytest.mark.few
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", ["rect", "exp", "sum"])
@pytest.mark.parametrize("weight", [1e-7, slow(1e-11), 1e-22])
def test_lines_with_a_poor_detector(window, weight, dtype):
    """Each detector alone has windows of its own; the largest ln B of all cells."""
    # float64: the sums of both detectors are added from those of each, not from bins that were rounded after adding
    h1, l1 = synth_atoms(T0, 80 * T, detectors=["H1", "L1"], seed=8, dtype="float64")
    atoms = [some_sfts(h1, np.r_[0:25, 50:80]), weighed(l1, np.full(len(l1), weight), "float64")]
    grid, prior, w = Grid.full(atoms, dtau=2 * T), BSGL(Fstar0=3), resolve_window(WINDOWS[window], 3)
    total = bin_atoms(atoms)
    alone = []
    for a in atoms:
        x = np.zeros_like(total.x)
        one = bin_atoms(a)
        x[:, (one.t_start - total.t_start) // T :][:, : one.n] = one.x
        alone.append(Bins(total.t_start, T, x, x[0] > 0))
    F, *FX = (long_map(b, grid, w).F for b in (total, *alone))
    truth = prior.log10(2 * F, [2 * x for x in FX])
    found = search([atoms], grid, windows={"w": WINDOWS[window]}, bsgl=prior, dtype=dtype, device="cpu")
    row = found.columns("w")
    assert row["log10BSGL"][0] == pytest.approx(np.nanmax(truth), abs=LIMIT[dtype] * max(1, np.nanmax(F)))
    m, n = np.searchsorted(grid.t0s, row["t0_bsgl"][0]), np.searchsorted(grid.taus, row["tau_bsgl"][0])
    for name, values in (("twoF_bsgl", F), ("twoF_H1_bsgl", FX[0]), ("twoF_L1_bsgl", FX[1])):
        assert row[name][0] == pytest.approx(2 * values[m, n], rel=1e-5)


def test_a_plan_takes_uneven_and_ordinary_templates_in_turn():
    plain = synth_atoms(T0, 90 * T, seed=1)
    factor = np.where(np.arange(90) < 40, 1.0, 1e-9)
    uneven = [weighed(a, factor[: len(a)]) for a in plain]
    grid = Grid.full(plain)
    with TransientPlan(grid, window="exp", dtype="float32", device="cpu") as plan:
        for atoms in (plain, uneven, plain, uneven):
            r = plan.execute(atoms)
            assert r.F.dtype == np.float32
            assert error_of(r.F, long_map(bin_atoms(atoms), grid, plan.window))[0] <= LIMIT["float32"]
            assert r.max_F == np.nanmax(r.F)


@pytest.mark.parametrize("size", [1e-300, 1e-100, 1.0, 1e100])
def test_F_of_sums_of_any_size(size):
    sums = np.array([1.0, 2.0, 0.5, 0.3, -0.2, 1.5, 0.7])
    expected = F_of_sums(sums)
    assert F_of_sums(np.concatenate([sums[:3] * size, sums[3:] * np.sqrt(size)])) == pytest.approx(expected, rel=1e-13)
    assert F_of_sums(np.zeros(7)) == 2
