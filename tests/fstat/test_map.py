"""The public function `transient_map`: arguments, result, figure, files; and the simulator of atoms."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from skysieve.core.engine_cache import ENGINES
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.fstat import (
    Atoms,
    Grid,
    Injection,
    TransientPlan,
    TransientResult,
    WindowSum,
    search,
    synth_atoms,
    transient_map,
)
from skysieve.fstat.cpu import engine
from skysieve.fstat.inputs.detectors import DETECTORS, antenna_patterns, sidereal_angle

T = 1800
T0 = 1_000_000_000
ATOMS = synth_atoms(T0, 40 * T, seed=1)
SMALL = Grid(t0=T0, t0_band=20 * T, dt0=T, tau=2 * T, tau_band=10 * T, dtau=T)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window": "gauss"}, ValueError, "window='gauss'"),
        ({"window": 3}, TypeError, "window is a int"),
        ({"window": "exp", "efold": 0}, ValueError, "efold=0"),
        ({"window": "exp", "efold": 21}, ValueError, "efold=21"),
        ({"window": "exp", "efold": "3"}, TypeError, "efold='3'"),
        ({"window": "exp", "efold": 2, "compat": "lalpulsar"}, ValueError, "3 tau"),
        ({"window": np.cos, "compat": "lalpulsar"}, ValueError, "compat"),
        ({"compat": "lal"}, ValueError, "compat='lal'"),
        ({"dtype": "float16"}, ValueError, "dtype='float16'"),
        ({"dtype": "quad"}, TypeError, "dtype='quad'"),
        ({"device": "tpu"}, ValueError, "device='tpu'"),
        ({"rhohatmax": 0}, ValueError, "rhohatmax=0"),
        ({"memory": "much"}, ValueError, "memory='much'"),
        ({"threads": 0}, ValueError, "threads=0"),
        ({"progress": 3}, TypeError, "progress=3"),
        ({"window": lambda x: x[:1]}, ValueError, "returned shape"),
        ({"window": lambda x: x * np.nan}, ValueError, "not finite"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        transient_map(ATOMS, SMALL, **({"device": "cpu"} | options))


@pytest.mark.parametrize(
    ("atoms", "grid", "error", "message"),
    [
        ([], SMALL, ValueError, "empty"),
        (ATOMS, (1, 2), TypeError, "grid is a tuple"),
        (ATOMS, Grid(t0=T0, tau=T), ValueError, f"tau={T} holds fewer than two SFTs"),
        (ATOMS, Grid(t0=T0, t0_band=39 * T, tau=2 * T), ValueError, f"t0={T0 + 39 * T} leaves fewer"),
        (synth_atoms(T0, T), Grid(t0=T0, tau=2 * T), ValueError, "one SFT"),
    ],
)
def test_bad_input_is_refused(atoms, grid, error, message):
    with pytest.raises(error, match=message):
        transient_map(atoms, grid, device="cpu")


def test_without_strict_such_cells_are_nan():
    r = transient_map(ATOMS, Grid(t0=T0, t0_band=39 * T, tau=T, tau_band=2 * T, dtau=T), device="cpu", strict=False)
    assert np.isnan(r.F[:, 0]).all()
    assert np.isnan(r.F[39]).all()
    assert np.isfinite(r.F[:39, 1:]).all()
    assert r.n_cells == 39 * 2
    nothing = transient_map(synth_atoms(T0, T), Grid(t0=T0, tau=2 * T), device="cpu", strict=False)
    assert (nothing.index, nothing.t0_ml, nothing.n_cells) == (None, None, 0)
    assert np.isnan([nothing.max2F, nothing.lnBtSG]).all()
    assert "no cell" in repr(nothing)
    with pytest.raises(ValueError, match="no posterior"):
        _ = nothing.p_t0


@pytest.mark.parametrize("window", ["rect", "exp"])
def test_starts_of_which_no_window_reaches_the_data(window):
    """They are refused or NaN, as starts after the data are; other starts before the data keep their answers."""
    reach = 1 if window == "rect" else 3
    options = {"window": window, "device": "cpu"}
    for t0 in (900_000_000, T0 - 6 * reach * T + T):
        grid = Grid(t0=t0, tau=6 * T)
        with pytest.raises(ValueError, match=rf"t0={t0} and tau=10800.*first usable t0 is about \d+ .*--not-strict"):
            transient_map(ATOMS, grid, **options)
        assert transient_map(ATOMS, grid, strict=False, **options).n_cells == 0
    first = T0 - 6 * reach * T + 2 * T
    late = transient_map(ATOMS, Grid(t0=first, tau=6 * T), **options)
    assert np.isfinite(late.F).all()
    many = Grid(t0=first - 2 * T, t0_band=4 * T, dt0=T, tau=2 * T, tau_band=4 * T, dtau=4 * T)
    some = transient_map(ATOMS, many, strict=False, **options)
    assert np.isnan(some.F[:2]).all()
    assert some.F[2].tolist() == [2, late.F[0, 0]]  # the shorter window holds no data, as one in a gap
    assert some.n_cells == 6


def test_times_that_wrap_in_32_bits_are_right():
    """901 s before the data LALPulsar's start wraps to the last atom; 3 tau beyond 2^32 s wraps too."""
    for window in ("rect", "exp"):
        early = transient_map(ATOMS, Grid(t0=T0 - 901, tau=10 * T), window=window, device="cpu")
        assert early.max_F != 2
        long = transient_map(ATOMS, Grid(t0=T0, tau=2_000_000_000), window="rect", device="cpu")
        none = transient_map(ATOMS, window="none", device="cpu")
        assert long.max_F == pytest.approx(none.max_F, rel=1e-13)
        assert np.isfinite(transient_map(ATOMS, Grid(t0=T0, tau=2_000_000_000), window=window, device="cpu").max_F)


def test_grids_that_cannot_fit_are_refused_before_anything_is_made(monkeypatch):
    """A start and a duration each second: neither the axes, nor the tables of a schedule, nor a map are allocated."""
    import tracemalloc

    start = int(ATOMS[0].t[0])
    monkeypatch.setattr("skysieve.fstat.inputs.grid.available_host_memory", lambda: 8 << 30)
    monkeypatch.setattr("skysieve.fstat.inputs.checks.available_host_memory", lambda: 8 << 30)
    tracemalloc.start()
    with pytest.raises(MemoryBudgetError, match=r"1000000001 x 1000000001 cells.*larger dt0 and dtau"):
        Grid(t0=start, t0_band=10**9, dt0=1, tau=3600, tau_band=10**9, dtau=1)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    grid = Grid(t0=start, t0_band=864_000, dt0=1, tau=3600, tau_band=864_000, dtau=1)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with pytest.raises(MemoryBudgetError, match="keep_map=False"):
        transient_map(ATOMS, grid, strict=False, device="cpu")
    for window in ("rect", "exp"):
        with pytest.raises(MemoryBudgetError, match="larger dt0 and dtau"):
            transient_map(ATOMS, grid, window=window, strict=False, device="cpu", keep_map=False)
        with pytest.raises(MemoryBudgetError, match="larger dt0 and dtau"):
            search([ATOMS], grid, windows=(window,), strict=False, device="cpu")
    with TransientPlan(grid, device="cpu", strict=False) as plan, pytest.raises(MemoryBudgetError):
        plan.describe(ATOMS)
    assert tracemalloc.get_traced_memory()[1] - before < 50 << 20  # bits of the axes, not 12 GB of lengths
    tracemalloc.stop()


def test_a_map_beyond_memory_is_refused_with_advice():
    with pytest.raises(MemoryBudgetError, match="keep_map=False"):
        transient_map(ATOMS, Grid.full(ATOMS), device="cpu", memory=1000)
    assert transient_map(ATOMS, Grid.full(ATOMS), device="cpu", memory=1000, keep_map=False).F is None


def test_a_missing_gpu_is_reported():
    from skysieve.core.device import cuda_problem

    if cuda_problem() is None:
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceUnavailable):
        transient_map(ATOMS, SMALL, device="cuda")


def test_maps_and_posteriors_that_were_left_out_raise():
    r = transient_map(ATOMS, SMALL, device="cpu", keep_map=False, posteriors=False)
    for name in ("twoF", "p_t0", "t0_mp"):
        with pytest.raises(ValueError, match="not"):
            getattr(r, name)
    with pytest.raises(ValueError, match="not"):
        r.plot()


def test_result_numbers():
    r = transient_map(ATOMS, SMALL, window="exp", device="cpu")
    assert r.twoF.max() == r.max2F
    assert r.F[r.index] == r.max_F
    assert (r.t0_ml, r.tau_ml) == (SMALL.t0s[r.index[0]], SMALL.taus[r.index[1]])
    assert r.p_t0.sum() == pytest.approx(1, abs=1e-12)
    assert r.t0_mp == SMALL.t0s[r.p_t0.argmax()]
    edges, density = r.posterior_density("tau")
    assert (density * np.diff(edges)).sum() == pytest.approx(1, abs=1e-12)
    low, high = r.credible_interval("tau", 0.5)
    inside = (SMALL.taus >= low) & (SMALL.taus <= high)
    assert r.p_tau[inside].sum() >= 0.5
    loud = transient_map(ATOMS, SMALL, window="exp", device="cpu", rhohatmax=10)
    assert r.lnBtSG - loud.lnBtSG == pytest.approx(4 * np.log(10))
    for call in (lambda: r.credible_interval("t0", 1.0), lambda: r.posterior_density("x")):
        with pytest.raises(ValueError, match="expected"):
            call()
    one = transient_map(ATOMS, Grid(t0=T0, tau=5 * T), device="cpu")
    assert (one.t0_mp, one.credible_interval("t0")) == (T0, (T0, T0))
    with pytest.raises(ValueError, match="band of t0 is 0"):
        one.posterior_density("t0")


def test_equal_windows_past_the_end_give_the_shortest():
    """Truncated windows are equal: the first maximum, of the smallest tau, wins."""
    signal = Injection(t0=T0 + 20 * T, tau=20 * T, snr=30)
    r = transient_map(synth_atoms(T0, 40 * T, inject=signal, noise=0), device="cpu")
    assert (r.t0_ml, r.tau_ml) == (signal.t0, signal.tau)


def test_save_and_text(tmp_path):
    for grid in (SMALL, Grid.from_lists(SMALL.t0s, SMALL.taus)):
        r = transient_map(ATOMS, grid, window="exp", device="cpu")
        r.save(tmp_path / "r.npz")
        back = TransientResult.load(tmp_path / "r.npz")
        assert np.array_equal(back.F, r.F)
        assert (back.grid == r.grid, back.index, back.lnBtSG, back.compat) == (True, r.index, r.lnBtSG, None)
        assert np.array_equal(back.p_tau, r.p_tau)
    with pytest.raises(ValueError, match=r"\.npz"):
        r.save(tmp_path / "r.txt")
    np.savez(tmp_path / "x.npz", a=1)
    with pytest.raises(ValueError, match=r"expected skysieve\.fstat\.TransientResult"):
        TransientResult.load(tmp_path / "x.npz")
    r.write_text(tmp_path / "p.txt")
    r.write_text(tmp_path / "l.txt", style="lalpulsar")
    pyfstat, lal = ((tmp_path / n).read_text().splitlines() for n in ("p.txt", "l.txt"))
    assert pyfstat[0] == "# t0[s]     tau[s]     2F"
    assert pyfstat[1:] == lal
    assert lal[0] == "  %10d %10d %- 11.8g" % (T0, 2 * T, r.twoF[0, 0])  # noqa: UP031
    table = np.loadtxt(tmp_path / "l.txt")
    assert table[:, 2] == pytest.approx(r.twoF.ravel(), rel=1e-7)
    with pytest.raises(ValueError, match="style='xml'"):
        r.write_text(tmp_path / "c", style="xml")


@pytest.mark.slow
def test_figure(tmp_path):
    pytest.importorskip("matplotlib")
    signal = Injection(t0=T0 + 10 * T, tau=10 * T, snr=12)
    atoms = synth_atoms(T0, 60 * T, inject=signal, gaps=[(T0 + 30 * T, T0 + 35 * T)])
    for grid in (None, Grid.from_lists(T0 + T * np.arange(50), [2 * T, 4 * T, 16 * T]), Grid(t0=T0, tau=4 * T)):
        r = transient_map(atoms, grid, device="cpu")
        figure = r.plot(injection=signal, title="one")
        figure.savefig(tmp_path / "f.png", dpi=40)
        assert len(figure.axes) == 5
        assert figure.axes[0].get_yscale() == ("log" if grid is not None and grid.dtau is None else "linear")
    assert (tmp_path / "f.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="tau_scale"):
        r.plot(tau_scale="cubic")


def test_plan_describes_and_reports(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    seen = []
    with TransientPlan(SMALL, window="exp", dtype="float32", device="cpu", threads=1) as plan:
        facts = plan.describe(ATOMS)
        assert facts["paper_bytes"] == 4 * (7 * 40 + SMALL.cells)
        assert facts["method"] == "recurrence"
        assert facts["seconds"] is None
        assert facts["moved"] > 0
        plan.execute(ATOMS, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    with TransientPlan(SMALL, window=WindowSum([(1, 1)]), device="cpu") as plan:
        assert plan.describe(ATOMS)["method"] in ("bin by bin", "recurrence of moments")


@pytest.mark.parametrize(
    ("terms", "error", "message"),
    [
        ([], ValueError, "empty"),
        ([(1, -1)], ValueError, "grows"),
        ([(np.nan, 1)], ValueError, "not finite"),
        ([1], TypeError, r"terms\[0\]"),
        ([(np.ones(12), 1)], ValueError, "degree 11"),
    ],
)
def test_bad_window_sums_are_refused(terms, error, message):
    with pytest.raises(error, match=message):
        WindowSum(terms)


def test_window_sums_and_their_squares():
    x = np.linspace(0, 3, 50)
    for w in (WindowSum([(1, 1), ((0, 2), 0.5)]), WindowSum([((1, 1), 1 + 2j)])):
        for parts, expected in ((w.gathered(), w(x)), (w.squared(), w(x) ** 2)):
            total = sum(np.polynomial.polynomial.polyval(x, c) * np.exp(-r * x) for r, c in parts.items())
            assert np.abs(total - expected).max() < 1e-13 * max(1, np.abs(expected).max())


# ---------------------------------------------------------------- simulator


def test_synthetic_atoms():
    a, b = synth_atoms(T0, 100 * T, seed=4, gaps={"L1": [(T0 + 10 * T + 5, T0 + 12 * T)]}, offsets=[0, 600])
    assert a == synth_atoms(T0, 100 * T, seed=4, offsets=[0, 600])[0]
    assert a != synth_atoms(T0, 100 * T, seed=5)[0]
    assert len(a) == 100
    assert len(b) == 97  # bins 9 to 11 of L1 touch the gap
    assert np.abs(a.ab**2 - a.a2 * a.b2).max() < 1e-6
    noisy = synth_atoms(T0, 100 * T, noise={"H1": 1.0, "L1": 3.0})
    assert noisy[0].a2.sum() > 5 * noisy[1].a2.sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"detectors": ["X9"]}, "X9"),
        ({"detectors": []}, "at least one name"),
        ({"duty": 0}, "duty=0"),
        ({"duty": 1e-9}, "no SFT"),
        ({"offsets": [1]}, "offsets"),
        ({"noise": -1.0}, "noise"),
        ({"noise": {"H1": 0, "L1": 1}}, "noise"),
        ({"noise": {"H1": 1}}, "expected a value for L1"),
        ({"gaps": [(T0 + 9 * T, T0)]}, "expected the end after the beginning"),
        ({"dec": 45.0}, r"dec=45\.0: expected an angle in radians"),
        ({"ra": np.nan}, "ra=nan"),
        ({"span": 0}, "span=0"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_bad_simulations_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        synth_atoms(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snr": -1}, "snr"),
        ({"cosi": 2}, "cosi"),
        ({"window": "none"}, "no start"),
        ({"psi": np.nan}, "psi=nan"),
        ({"phi0": np.inf}, "phi0=inf"),
    ],
)
def test_bad_injections_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Injection(**({"t0": T0, "tau": T, "snr": 5} | options))


@pytest.mark.parametrize(("t0", "tau"), [(2_000_000_000, 86400), (T0 - 9 * T, 9 * T), (T0 + 5, T - 10)])
def test_signals_that_miss_the_data_are_refused(t0, tau):
    """Before the data, after them, and between two SFTs; in a gap of one detector, the other one sees the signal."""
    with pytest.raises(ValueError, match=rf"t0={t0}, tau={tau}: no SFT starts .* GPS {T0} to {T0 + 20 * T}"):
        synth_atoms(T0, 20 * T, inject=Injection(t0, tau, snr=5))
    assert synth_atoms(T0, 20 * T, inject=Injection(t0, tau, snr=0)) == synth_atoms(T0, 20 * T)
    synth_atoms(T0, 20 * T, inject=Injection(T0 + T, T, snr=5), gaps={"H1": [(T0, T0 + 5 * T)]})


def test_antenna_patterns_keep_their_invariants():
    """Over a sidereal day the mean of a^2 + b^2 does not depend on right ascension; |a| and |b| are at most 1."""
    t = T0 + np.arange(0, 86164, 120)
    for name in DETECTORS:
        sums = []
        for ra in (0.0, 2.0):
            a, b = antenna_patterns(t, name, ra, 0.4)
            assert max(np.abs(a).max(), np.abs(b).max()) <= 1
            sums.append(np.mean(a**2 + b**2))
        assert sums[0] == pytest.approx(sums[1], rel=5e-3)  # the last step of 120 s is not whole: 1.4e-3 of a day
    with pytest.raises(ValueError, match="detector='Z1'"):
        antenna_patterns(t, "Z1", 0, 0)


LAL = {
    "H1": [(0.398298, -0.218198), (0.089093, -0.947585)],
    "L1": [(-0.170236, 0.320254), (0.043383, 0.777744)],
    "V1": [(-0.775581, -0.585589), (-0.073467, -0.09017)],
    "G1": [(0.660642, -0.741707), (0.384702, -0.313502)],
    "K1": [(0.104193, 0.513761), (0.323804, -0.472031)],
    "I1": [(0.54181, 0.271301), (-0.29943, 0.387894)],
}
"""XLALComputeDetAMResponse of LALSuite 7.26.16: GPS 1e9, (ra, dec) = (0.5, 1); 40,000 s later, (4, -0.6)."""


@pytest.mark.parametrize("name", list(LAL))
def test_antenna_patterns_are_those_of_lalsuite(name):
    for (ra, dec, t), expected in zip([(0.5, 1.0, T0), (4.0, -0.6, T0 + 40_000)], LAL[name], strict=True):
        a, b = antenna_patterns([t], name, ra, dec)
        assert (a[0], b[0]) == pytest.approx(expected, abs=1e-6)  # the digits of the table


def test_antenna_pattern_at_the_zenith():
    """Right above an interferometer one polarisation is seen in full: a^2 + b^2 = 1."""
    d = DETECTORS["V1"]
    ra = sidereal_angle([T0])[0] + d.longitude
    a, b = antenna_patterns([T0], "V1", ra, d.latitude)
    assert a[0] ** 2 + b[0] ** 2 == pytest.approx(1, abs=1e-12)


def test_atoms_of_one_array_kind_only():
    a = ATOMS[0]
    with pytest.raises(TypeError, match="atoms"):
        transient_map(a.Fa, SMALL, device="cpu")
    assert isinstance(a, Atoms)


# ---------------------------------------------------------------- the engines behind the function


@pytest.fixture
def engines():
    """The cache of the functions, empty before and after."""
    ENGINES.clear()
    yield ENGINES
    ENGINES.clear()


def test_repeated_calls_share_an_engine_and_give_the_answers_of_a_plan(engines):
    streams = [synth_atoms(T0, 40 * T, seed=i) for i in range(3)]
    grids = [None, Grid(t0=T0, t0_band=20 * T, dt0=T, tau=2 * T, tau_band=9 * T, dtau=T)]
    for dtype in ("float32", "float64"):
        for grid in grids:
            with TransientPlan(grid, window="exp", dtype=dtype, device="cpu") as plan:
                for atoms in streams:
                    a, b = plan.execute(atoms), transient_map(atoms, grid, window="exp", dtype=dtype, device="cpu")
                    assert np.array_equal(a.F, b.F)
                    assert (a.lnBtSG, a.t0_ml, a.grid) == (b.lnBtSG, b.t0_ml, b.grid)
    assert len(engines) == 2  # one for each dtype; grids and atoms do not matter


def test_options_have_engines_of_their_own(engines):
    atoms = synth_atoms(T0, 20 * T, seed=0)
    first = transient_map(atoms, device="cpu")
    assert transient_map(atoms, device="cpu", keep_map=False).F is None
    assert transient_map(atoms, device="cpu", rhohatmax=2.0).lnBtSG == pytest.approx(first.lnBtSG - 4 * np.log(2))
    assert transient_map(atoms, device="cpu", window="exp", efold=2).efold == 2
    assert len(engines) == 4
    with pytest.raises(ValueError, match="dtype='int8'"):
        transient_map(atoms, device="cpu", dtype="int8")
    with pytest.raises(TypeError, match="grid is a int"):
        transient_map(atoms, 5)
    assert len(engines) == 4


def test_a_function_as_window_is_called_anew(engines):
    """Its values may have changed since the last call."""
    atoms = synth_atoms(T0, 20 * T, seed=0)
    found = [transient_map(atoms, window=lambda x, p=p: x**p, device="cpu").max_F for p in (0, 2)]
    assert found[0] != found[1]
    assert len(engines) == 0


def test_threads_and_a_fork_have_engines_of_their_own(engines):
    made = [synth_atoms(T0, (20 + i) * T, seed=i) for i in range(8)]
    with TransientPlan(window="exp", dtype="float32", device="cpu") as plan:
        expected = [plan.execute(atoms).max_F for atoms in made]

    def work(i):
        return [transient_map(made[(i + k) % 8], window="exp", dtype="float32", device="cpu").max_F for k in range(8)]

    with ThreadPoolExecutor(4) as pool:
        for i, found in enumerate(pool.map(work, range(8))):
            assert found == [expected[(i + k) % 8] for k in range(8)]
    assert 1 <= len(engines) <= 4
    if hasattr(os, "fork"):
        pid = os.fork()
        if pid == 0:  # the parent's threads do not exist here
            os._exit(0 if work(3)[0] == expected[3] else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_only_the_call_with_bad_atoms_fails(engines):
    good = synth_atoms(T0, 20 * T, seed=0)
    first = transient_map(good, device="cpu")
    with pytest.raises(ValueError, match="leaves fewer than two SFTs"):
        transient_map(good, Grid(t0=T0 + 19 * T, tau=2 * T), device="cpu")
    assert transient_map(good, device="cpu").max_F == first.max_F


@pytest.mark.usefixtures("engines")
def test_auto_takes_the_cpu_for_small_maps(monkeypatch):
    from skysieve.core.device import Device
    from skysieve.fstat import api

    gpu, chosen = Device("cuda", 0, "a GPU", 1 << 34), []
    resolve = api.resolve

    def stand_in(device):
        return (gpu,) if device in ("auto", "cuda") else resolve(device)

    def make(spec, device, memory, threads):
        chosen.append(device.kind)
        raise RuntimeError("no engine")

    monkeypatch.setattr(api, "resolve", stand_in)
    monkeypatch.setattr(api, "make_engine", make)
    small, large = synth_atoms(T0, 48 * T, seed=0), synth_atoms(T0, 400 * T, seed=0)
    for atoms, options in (
        (small, {}), (small, {"device": "cuda"}), (large, {}), (large, {"compat": "lalpulsar"}),
        (large, {"grid": Grid(t0=T0, tau=9 * T)}), (small, {"window": WindowSum([(1, 1), (-1, 5)])}),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="no engine"):
            transient_map(atoms, **options)
    assert chosen == ["cpu", "cuda", "cuda", "cpu", "cpu", "cuda"]


@pytest.mark.parametrize("window", ["rect", "exp"])
def test_a_plan_on_the_cpu_counts_the_tables_of_its_grid(window):
    with TransientPlan(window=window, device="cpu") as plan:
        assert plan.idle_bytes() == 0
        rows = plan.execute(ATOMS, grid=SMALL).F.shape[0]
        assert 8 * rows <= plan.idle_bytes() <= 1000 * rows


def test_starts_that_are_scattered_within_bins_are_summed_row_by_row(monkeypatch):
    """Tiles of a row each would leave the lanes of vectors empty."""
    atoms = synth_atoms(T0, 8 * 86400, seed=1)
    grid = Grid(t0=T0, t0_band=6 * 86400, dt0=1801, tau=3600, tau_band=6 * 86400, dtau=1800)
    expected = transient_map(atoms, grid, dtype="float64", device="cpu", keep_map=True).F
    monkeypatch.setattr(engine.Engine, "_rect", None)
    found = transient_map(atoms, grid, dtype="float32", device="cpu", keep_map=True).F
    assert (np.abs(found - expected) / np.maximum(1, expected)).max() < 1e-5  # as for other grids in float32
