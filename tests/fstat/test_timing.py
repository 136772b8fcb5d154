"""The model of predicted times: its counts, its fit, and the cache of its constants."""

from __future__ import annotations

import json

import numpy as np
import pytest

from skysieve import __version__
from skysieve.core.device import resolve
from skysieve.core.machine import rates
from skysieve.fstat import Grid, TransientPlan, WindowSum, synth_atoms, timing
from skysieve.fstat.inputs.windows import resolve_window

T = 1800
RECT, EXP = resolve_window("rect", 3), resolve_window("exp", 3)


def test_what_is_counted():
    n = 200
    full = timing.sample(n, 1, 1, RECT, np.float64)
    # eq. A.5 of the paper for windows that the end of the data cuts: about N_t0 tau_max / (2 T)
    assert timing.steps(full.schedule, False) == sum(n - m for m in range(n - 1))
    assert timing.steps(full.schedule, True) == n * (n - 1)
    grid = Grid(t0=0, t0_band=50 * T, dt0=T, tau=2 * T, tau_band=18 * T, dtau=2 * T)
    inside = timing.make_job([timing.Bins(0, T, np.ones((7, n)), np.ones(n, bool))], grid, RECT, np.float64)
    assert timing.steps(inside.schedule, False) == 51 * 20  # 'embedded': N_t0 tau_max / T
    assert timing.terms(inside, False).tolist() == [1, n, 51 * 20, 51 * 10]


def counts_of(jobs, window):
    return np.array([timing.terms(job, window is EXP) for job in jobs])


@pytest.mark.parametrize("window", [RECT, EXP])
def test_the_fit_finds_the_constants(window):
    """The times follow the model exactly; those of small maps determine those of larger ones."""
    true = np.array([1e-4, 2e-8, 1.5e-9, 3e-9])
    counts = counts_of([timing.sample(*setup, window, np.float32) for setup in timing.SETUPS], window)
    found = rates.fit_counts(counts, counts @ true)
    larger = counts_of([timing.sample(*setup, window, np.float32) for setup in ((400, 2, 1), (3000, 1, 1))], window)
    assert larger @ found == pytest.approx(larger @ true, rel=1e-6)


@pytest.mark.parametrize("window", ["rect", "exp", "none", WindowSum([(1, 1), (-1, 5)])])
@pytest.mark.usefixtures("folder")
def test_more_work_is_predicted_to_take_longer(window):
    rates.keep("fstat", resolve("cpu")[0], {"weights": 1.0})
    with TransientPlan(window=window, dtype="float32", device="cpu", threads=1, keep_map=False) as plan:
        with timing.measuring():
            plan.describe(synth_atoms(span=20 * T))
        seconds = [plan.describe(synth_atoms(span=n * T))["seconds"] for n in (20, 400)]
    assert 0 < seconds[0] <= seconds[1] if window == "none" else 0 < seconds[0] < seconds[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder without constants."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    return tmp_path / "skysieve"


@pytest.mark.usefixtures("folder")
def test_calls_that_return_maps_are_timed_with_their_memory(monkeypatch):
    """Clearing memory costs as much as sums: calls that return maps are timed with maps, one larger than malloc
    reuses."""
    seen = []
    monkeypatch.setattr(timing, "measure", lambda cases, _: seen.append([(c, e) for c, e in cases]) or np.ones(4))
    atoms = synth_atoms(span=40 * T)
    for keep_map in (True, False):
        with (
            TransientPlan(window="rect", dtype="float32", device="cpu", threads=1, keep_map=keep_map) as plan,
            timing.measuring(),
        ):
            plan.describe(atoms)
    whole, other = ([call() for counts, call in cases if counts[3] < 1e5] for cases in seen)
    assert all(output.F is not None for output in whole)
    assert all(output.F is None for output in other)
    assert max(counts[3] for counts, _ in seen[0]) * 4 > 32 * 2**20


def test_constants_are_measured_when_that_is_wanted_and_stored(folder, monkeypatch):
    atoms = synth_atoms(span=40 * T)
    with TransientPlan(window="exp", dtype="float32", device="cpu", threads=1) as plan:
        assert plan.describe(atoms)["seconds"] is None
        assert not folder.exists()
        with timing.measuring():
            plan.describe(atoms)
        first = plan.describe(atoms)["seconds"]
        assert 1e-6 < first < 1
        (path,) = folder.iterdir()
        assert path.name.endswith(f"recurrence-map-float32-{__version__}-{timing.FORMAT}.json")
        assert list(json.loads(path.read_text())) == list(timing.COUNTED)
        for broken in ("{", "[1]", json.dumps({"call": "x"}), json.dumps({"call": 1, "sfts": 2})):
            path.write_text(broken)
            assert plan.describe(atoms)["seconds"] is None
        monkeypatch.setattr(timing, "measure", lambda *a: np.array([7.0, 0, 0, 0]))
        with timing.measuring():
            assert plan.describe(atoms)["seconds"] == 7


@pytest.mark.parametrize(
    ("options", "grid", "words"),
    [
        ({}, {"dt0": T}, "recurrence-map-float32"),
        ({"keep_map": False}, {"dt0": T}, "recurrence-float32"),
        ({}, {"dt0": 2 * T}, "recurrence-steps-map-float32"),
        ({}, {"dt0": T + 50}, "recurrence-groups-map-float32"),
        ({"window": "rect"}, {"dt0": T, "tau_band": 30 * T, "dtau": 15 * T}, "running-sums-sparse-map-float32"),
        ({"window": "rect", "dtype": "float64"}, {"dt0": 2 * T}, "running-sums-steps-map-float64"),
    ],
)
def test_each_kind_of_map_has_its_own_constants(options, grid, words, folder, monkeypatch):
    """Rows that do not begin in neighbouring bins take twice as long in the rectangular window."""
    seen = []
    monkeypatch.setattr(timing, "measure", lambda cases, _: seen.extend(c for c, _ in cases) or np.ones(4))
    grid = Grid(**{"t0": 1_000_000_000, "t0_band": 20 * T, "tau": 4 * T} | grid)
    given = {"window": "exp", "dtype": "float32", "device": "cpu", "threads": 1} | options
    with TransientPlan(grid, **given) as plan, timing.measuring():
        plan.describe(synth_atoms(1_000_000_000, 40 * T))
    assert [words in path.name for path in folder.iterdir()] == [True]
    assert len(seen) >= len(timing.COUNTED)


def test_every_kernel_that_is_compiled_beforehand_exists(monkeypatch):
    from skysieve.core.device import Device
    from skysieve.core.gpu import runtime
    from skysieve.core.gpu.source import load_source
    from skysieve.fstat.command import rates as fstat_rates

    class Runtime:
        """A runtime that records the requests."""

        def __init__(self, device):
            self.ahead, self.got = [], []
            made.append(self)

        def compile_ahead(self, wanted):
            self.ahead += wanted

        def module(self, package, name, build):
            assert build in load_source(package, name).builds
            self.got.append((package, name, build))

    made: list[Runtime] = []
    followed = []
    monkeypatch.setattr(runtime, "CudaRuntime", Runtime)
    monkeypatch.setattr(fstat_rates, "_around_maps", followed.append)
    gpu = Device("cuda", 0, "A card", 10**9)
    for job in fstat_rates.rehearsals(gpu):
        job()
    assert made[0].ahead == made[0].got
    assert len(made[0].got) == 10
    assert followed == [gpu]


@pytest.mark.parametrize("sfts", [24, 96])
def test_atoms_whose_search_is_timed_are_noise(sfts):
    """A loud template would be computed once more, alone, which takes a hundred times as long.

    The chance that one of these 2F, of chi-squared with four degrees of freedom, exceeds 60 is below 1e-8.
    """
    from skysieve.fstat.command.rates import T0, _batch
    from skysieve.fstat.template_search.search import SearchPlan

    grid = Grid(t0=T0, t0_band=0, dt0=T, tau=2 * T, tau_band=0, dtau=T)
    with SearchPlan(grid, windows=("rect",), device="cpu") as search:
        found = search.execute(iter([_batch(500, sfts)]))
    loudest = float(np.max(found.to_table()["max2F"]))
    assert 10 < loudest < 60


@pytest.mark.gpu
def test_a_rehearsal_on_a_gpu_needs_no_rates(tmp_path, monkeypatch):
    from skysieve.fstat.command import rates as fstat_rates

    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))
    [gpu] = resolve("cuda")
    with rates.rehearsal():
        fstat_rates._around_maps(gpu)
    assert not list(tmp_path.glob("rates-*"))
