"""Damaged npz files are errors of one kind, wherever they end."""

from __future__ import annotations

import errno

import numpy as np
import pytest

import skysieve
from skysieve.core.result import npz_arrays
from skysieve.dedispersion import Candidates, fake, search


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
