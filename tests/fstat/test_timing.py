"""The model of predicted times: its counts, its fit, and the cache of its constants."""

from __future__ import annotations

import json

import numpy as np
import pytest

from skysieve.core import measured
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
    """Of times that follow the model exactly; the setups determine what larger maps take."""
    true = np.array([1e-4, 2e-8, 1.5e-9, 3e-9])
    counts = counts_of([timing.sample(*setup, window, np.float32) for setup in timing.SETUPS], window)
    found = timing.fit(counts, counts @ true)
    larger = counts_of([timing.sample(*setup, window, np.float32) for setup in ((400, 2, 1), (3000, 1, 1))], window)
    assert larger @ found == pytest.approx(larger @ true, rel=1e-6)


@pytest.mark.parametrize("window", ["rect", "exp", "none", WindowSum([(1, 1), (-1, 5)])])
@pytest.mark.usefixtures("folder")
def test_more_work_is_predicted_to_take_longer(window):
    with TransientPlan(window=window, dtype="float32", device="cpu", threads=1, keep_map=False) as plan:
        seconds = [plan.describe(synth_atoms(span=n * T))["seconds"] for n in (20, 400)]
    assert 0 < seconds[0] <= seconds[1] if window == "none" else 0 < seconds[0] < seconds[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache folder, for a process that has used no constants yet."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    monkeypatch.setattr(measured, "_used", {})
    return tmp_path / "skysieve"


@pytest.mark.usefixtures("folder")
def test_calls_that_return_maps_are_timed_with_their_memory(monkeypatch):
    """Clearing memory costs as much as sums: calls that return maps are timed with maps, one larger than malloc
    reuses."""
    seen = []
    monkeypatch.setattr(timing, "measure", lambda cases: seen.append([(c, e) for c, e in cases]) or np.ones(4))
    atoms = synth_atoms(span=40 * T)
    for keep_map in (True, False):
        with TransientPlan(window="rect", dtype="float32", device="cpu", threads=1, keep_map=keep_map) as plan:
            plan.describe(atoms)
    whole, other = ([call() for counts, call in cases if counts[3] < 1e5] for cases in seen)
    assert all(output.F is not None for output in whole)
    assert all(output.F is None for output in other)
    assert max(counts[3] for counts, _ in seen[0]) * 4 > 32 * 2**20


def test_constants_are_stored(folder, monkeypatch):
    atoms = synth_atoms(span=40 * T)
    with TransientPlan(window="exp", dtype="float32", device="cpu", threads=1) as plan:
        first = plan.describe(atoms)["seconds"]
        assert 1e-6 < first < 1
        (path,) = folder.iterdir()
        assert path.name.endswith(f"recurrence-map-float32-{timing.FORMAT}.json")
        assert list(json.loads(path.read_text())) == list(timing.COUNTED)
        monkeypatch.setattr(timing, "measure", lambda *a: pytest.fail("measured again"))
        monkeypatch.setattr(measured, "_used", {})
        assert plan.describe(atoms)["seconds"] == first
        monkeypatch.setattr(timing, "measure", lambda *a: np.array([7.0, 0, 0, 0]))
        for broken in ("{", "[1]", json.dumps({"call": "x"}), json.dumps({"call": 1, "sfts": 2})):
            monkeypatch.setattr(measured, "_used", {})
            path.write_text(broken)
            assert plan.describe(atoms)["seconds"] == 7
        off = Grid(t0=int(atoms[0].t[0]) + 100, t0_band=20 * T, dt0=T + 50, tau=4 * T)
    with TransientPlan(off, window="exp", dtype="float32", device="cpu", threads=1) as plan:
        assert plan.describe(atoms)["seconds"] == 7
        assert any("groups" in path.name for path in folder.iterdir())
    with TransientPlan(window="exp", dtype="float32", device="cpu", threads=1, keep_map=False) as plan:
        assert plan.describe(atoms)["seconds"] == 7  # calls without a map have constants of their own
        assert any(path.name.endswith(f"recurrence-float32-{timing.FORMAT}.json") for path in folder.iterdir())
