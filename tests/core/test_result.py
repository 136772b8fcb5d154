"""Damaged npz files are errors of one kind, wherever they end; results and inputs can be compared."""

from __future__ import annotations

import copy
import errno
import importlib
import pickle
from dataclasses import dataclass

import numpy as np
import pytest

import skysieve
from skysieve.core.arrays import ByValue
from skysieve.core.result import Result, npz_arrays
from skysieve.dedispersion import Candidates, fake, plan, search
from skysieve.dedispersion.clean.missing import Losses
from skysieve.dedispersion.data.observation import Observation
from skysieve.dedispersion.single_pulse.candidates import Events
from skysieve.fstat import Grid
from skysieve.periodogram.lightcurves.io import LightCurves
from skysieve.periodogram.result.peaks import Peaks


def test_arrays_of_a_whole_file(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(5), y=np.array("text"))
    held = npz_arrays(tmp_path / "a.npz")
    assert held["x"].tolist() == [0, 1, 2, 3, 4]
    assert str(held["y"]) == "text"


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_cut_short_anywhere_is_damaged(tmp_path, packed):
    path = tmp_path / "a.npz"
    (np.savez_compressed if packed else np.savez)(path, x=np.arange(50), y=np.ones((3, 4)))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"a.npz: damaged or cut short"):
            npz_arrays(path)


def test_other_files_are_named(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(ValueError, match=r"a.npy: expected a .npz file"):
        npz_arrays(tmp_path / "a.npy")
    with pytest.raises(FileNotFoundError):
        npz_arrays(tmp_path / "none.npz")


@pytest.mark.parametrize("length", [0, 300, -10])
def test_results_that_are_cut_short_are_one_error(tmp_path, length):
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 10, 50))
    found = skysieve.lombscargle(t, rng.normal(size=50), fmin=0.1, fmax=2, nf=100)
    pulses = search(fake(nchan=8, duration=2, tsamp=1e-3, fch1=1500, foff=-4, period=None), [0.0, 1.0])
    for result, kind in ((found, type(found)), (pulses, Candidates)):
        path = tmp_path / "a.npz"
        result.save(path)
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(ValueError, match=r"a.npz"):
            kind.load(path)


def test_an_error_of_the_disk_is_no_damage(tmp_path, monkeypatch):
    """What is there must not be taken for damaged, and deleted."""
    np.savez(tmp_path / "a.npz", x=np.arange(5))

    def fails(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("numpy.load", fails)
    with pytest.raises(OSError, match="Input/output error"):
        npz_arrays(tmp_path / "a.npz")


def _kinds(kind=Result):
    return [kind, *(sub for one in kind.__subclasses__() for sub in _kinds(one))]


def test_every_result_can_be_compared_and_hashed():
    """A dataclass would compare its arrays as a whole, which is an error."""
    places = (
        "periodogram.multiband", "periodogram.astropy_class.lombscargle", "periodogram.astropy_class.peaks",
        "dedispersion.result", "dedispersion.injections.result", "dedispersion.single_pulse.cutouts",
        "dedispersion.stream.search.result", "fstat.result.map", "fstat.template_search.result",
    )  # fmt: skip
    for place in places:
        importlib.import_module(f"skysieve.{place}")
    results = _kinds()
    assert len(results) >= 10
    for kind in (*results, Peaks, Events, LightCurves):
        base = ByValue if issubclass(kind, ByValue) else object
        assert kind.__eq__ is base.__eq__, kind
        assert kind.__hash__ is base.__hash__, kind


def test_results_are_compared_by_identity():
    t = np.linspace(0, 20, 50) ** 1.01
    one, other = (skysieve.lombscargle(t, np.sin(t), fmin=0.1, fmax=1, nf=50) for _ in range(2))
    assert one != other
    assert one in [other, one]
    assert len({one, other, one}) == 2


def _values():
    freqs = np.array([1400.0, 1399.0, 1398.0])
    observation = Observation(freqs, 1e-4, extra={"nbeams": 1, "lines": np.arange(3)})
    return {
        "Observation": (observation, observation.replace(freqs=freqs + 1), observation.replace(extra={})),
        "DMPlan": (
            plan(observation, dm_max=30),
            plan(observation, dm_max=40),
            plan(observation, dm_max=30, max_loss=0.2),
        ),
        "Grid": (Grid.from_lists([0, 1800], [3600]), Grid.from_lists([0, 1800], [3601]), Grid(t0=0)),
        "Losses": (Losses([(1, 5, 0, 2)]), Losses([(1, 6, 0, 2)]), Losses([(1, 5, 0, 2), (7, 8, 0, 2)])),
    }


@pytest.mark.parametrize("name", ["Observation", "DMPlan", "Grid", "Losses"])
def test_inputs_are_compared_by_value(name):
    first, *others = _values()[name]
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    assert hash(again) == hash(first)
    assert first in [*others, again]
    assert len({first, again, *others}) == 3
    for other in others:
        assert first != other
    assert first != "text"


def test_equal_values_of_fields():
    @dataclass(frozen=True, eq=False)
    class Held(ByValue):
        x: object

    same = [np.array([1.0, np.nan]), np.nan, (1, np.arange(2)), {"a": [np.arange(2)]}, None, "a", np.array(["a"])]
    for i, x in enumerate(same):
        assert Held(x) == Held(copy.deepcopy(x))
        assert all(Held(x) != Held(y) for j, y in enumerate(same) if j != i)
    assert Held(np.arange(2)) != Held(np.arange(3))
    assert Held([1]) != Held((1,))
    assert hash(Held(1)) == hash(Held(1.0))
    assert hash(Held(np.float64("nan"))) == hash(Held(float("nan")))
