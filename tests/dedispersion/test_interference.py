"""Simulated shapes of interference: independent of the division of the data, and with the stated height."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.tasks import TaskPool
from skysieve.dedispersion import fake
from skysieve.dedispersion.injections.interference import KINDS, InterferenceReader, interference, with_interference

GIVEN = {"tsamp": 1e-3, "level": 96.0, "sigma": 16.0, "seed": 3}


def noise(count: int = 8000, nchan: int = 32) -> np.ndarray:
    x = np.random.default_rng(0).normal(96, 16, (count, nchan))
    return np.clip(np.rint(x), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_interference_depends_on_the_numbers_of_samples_only(kind):
    whole, parts = noise(), noise()
    spoiled = interference(whole, kind, **GIVEN)
    found = [interference(parts[at : at + 777], kind, start=at, **GIVEN) for at in range(0, len(parts), 777)]
    assert (whole == parts).all()
    assert (np.concatenate(found) == spoiled).all()
    assert (whole != noise()).mean() > 1e-3


def test_what_is_of_no_use_is_marked():
    x = noise()
    spoiled = interference(x, ("zeros", "impulses", "radar", "bad"), **GIVEN)
    assert (x[~spoiled] == noise()[~spoiled]).all()
    assert 0.2 < spoiled.mean() < 0.4


def test_gain_steps_are_five_per_cent():
    x = np.full((8000, 32), 100.0, np.float32)
    interference(x, "gain", **GIVEN)
    assert set(np.unique(np.round(x, 3)).tolist()) == {100.0, 105.0, 110.25}


def test_a_reader_writes_the_same_interference():
    fb = fake(nchan=16, duration=3, tsamp=1e-3, fch1=1500, foff=-4, period=None)
    dirty = with_interference(fb, "all", seed=2)
    assert (dirty.read()[:, 1000:1400] == dirty.block(1000, 400)).all()


def test_held_samples_are_those_that_are_written_when_they_are_read(monkeypatch):
    monkeypatch.setattr("skysieve.dedispersion.injections.interference.HELD_PIECE", 16 * 300)
    fb = fake(nchan=16, duration=3, tsamp=1e-3, fch1=1500, foff=-4, period=None)
    reader, held = (InterferenceReader(fb, "all", 2, 1.0) for _ in range(2))
    with TaskPool(2) as pool:
        held.hold(pool)
    for one, other in zip(reader.write(700, 900), held.write(700, 900), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert np.array_equal(held.read(0, fb.nsamp), reader.read(0, fb.nsamp))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="kinds='hail'"):
        interference(noise(8, 2), "hail", **GIVEN)
    with pytest.raises(ValueError, match="tsamp"):
        interference(noise(8, 2), "zeros", tsamp=0, level=0, sigma=1)


def test_all_kinds_by_one_name():
    some = [np.full((2000, 32), 96, np.uint8) for _ in range(3)]
    for x, kinds in zip(some, ("all", ("all",), tuple(KINDS)), strict=True):
        interference(x, kinds, tsamp=1e-3, level=96, sigma=16)
    assert (some[0] == some[1]).all()
    assert (some[0] == some[2]).all()
