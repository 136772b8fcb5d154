"""Atoms, their bins and their files."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from skysieve.fstat import (
    Atoms,
    Grid,
    from_lal,
    load_atoms,
    merge,
    read_atoms,
    save_atoms,
    synth_atoms,
    transient_map,
    write_atoms,
)
from skysieve.fstat.inputs.bins import bin_atoms

T = 1800
T0 = 1_000_000_000


def parts(n=4):
    return {
        "t": T0 + T * np.arange(n),
        "a2": np.full(n, 0.5, np.float32),
        "b2": np.full(n, 0.4, np.float32),
        "ab": np.full(n, 0.1, np.float32),
        "Fa": np.full(n, 1 + 2j, np.complex64),
        "Fb": np.full(n, 2 - 1j, np.complex64),
    }


def changed(name, value, at=None):
    p = parts()
    if at is None:
        p[name] = value
    else:
        p[name] = p[name].copy()
        p[name][at] = value
    return p


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (changed("t", []), ValueError, "a2 has shape"),
        ({k: np.array([], int) for k in parts()}, ValueError, "t is empty"),
        (changed("t", np.zeros((2, 2))), ValueError, "one dimension"),
        (changed("t", T0 + T * np.arange(4) + 0.5), ValueError, r"t\[0\] = 1\d+\.5 is not a whole GPS second"),
        (changed("t", np.array([0, np.nan, 1, 2])), ValueError, r"t\[1\]"),
        (changed("t", np.array([0, T, T, 2 * T])), ValueError, r"t\[2\] = 1800 is repeated"),
        (changed("t", np.array([0, 2 * T, T, 3 * T])), ValueError, r"t\[2\] = 1800 comes after 3600"),
        (changed("t", np.array([0, T, 2 * T, 2**60])), ValueError, "not a GPS time"),
        (changed("t", ["a", "b", "c", "d"]), TypeError, "t has dtype"),
        (changed("a2", np.nan, 2), ValueError, r"a2\[2\] = nan is not finite"),
        (changed("Fb", np.inf, 1), ValueError, r"Fb\[1\]"),
        (changed("b2", -0.1, 3), ValueError, r"b2\[3\] .* negative"),
        (changed("ab", 0.9, 0), ValueError, r"ab\[0\] .* above a2 b2"),
        (changed("a2", np.ones(3)), ValueError, "a2 has shape"),
        (changed("a2", np.full(4, 1j)), TypeError, "a2 has dtype"),
        (changed("Fa", ["x"] * 4), TypeError, "Fa has dtype"),
        (parts() | {"tatom": 0}, ValueError, "tatom=0"),
        (parts() | {"tatom": 1800.5}, ValueError, "tatom"),
        (parts() | {"tatom": "long"}, TypeError, "tatom"),
    ],
)
def test_bad_atoms_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        Atoms(**given)


def test_precision_and_copies():
    p = parts()
    a = Atoms(**p)
    assert (a.a2.dtype, a.Fa.dtype) == (np.float32, np.complex64)
    p["a2"][:] = 9
    assert a.a2[0] == np.float32(0.5)
    double = Atoms(**changed("Fa", np.full(4, 1j)))
    assert (double.a2.dtype, double.Fb.dtype) == (np.float64, np.complex128)
    swapped = Atoms(**{k: v.astype(v.dtype.newbyteorder(">")) for k, v in parts().items()})
    assert swapped == Atoms(**parts())
    assert swapped.a2.dtype.isnative
    assert a != double
    assert "H1, 4 SFTs" in repr(a)


def test_bins_add_what_falls_together_and_are_zero_elsewhere():
    h1 = Atoms(**parts())
    p = parts(2)
    l1 = Atoms(**(p | {"t": np.array([T0 - 100, T0 + 6 * T])}), detector="L1")
    bins = bin_atoms([h1, l1])
    assert (bins.t_start, bins.n, bins.t_end) == (T0 - 100, 7, T0 - 100 + 7 * T)
    assert bins.x[0].tolist() == [1.0, 0.5, 0.5, 0.5, 0, 0, 0.5]
    assert bins.occupied.tolist() == [True] * 4 + [False, False, True]
    both = merge([h1, l1])
    assert both.detector == "H1+L1"
    assert np.array_equal(bin_atoms(both).x, bins.x)
    assert merge([both]) == both


def test_lists_of_atoms_are_checked():
    a = Atoms(**parts())
    for given, error, message in [
        ([], ValueError, "empty"),
        ([a, 3], TypeError, r"\[1\] is a int"),
        (b"atoms.dat", TypeError, "is a bytes"),
        ("missing.dat", FileNotFoundError, "missing.dat"),
        ([a, Atoms(**parts(), tatom=900, detector="L1")], ValueError, "mix SFT lengths"),
        (Atoms(**changed("t", np.array([0, 1, 2, 2**50]))), ValueError, "is a time wrong"),
    ]:
        with pytest.raises(error, match=message):
            bin_atoms(given)


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_files_lose_nothing(tmp_path, suffix, dtype):
    if suffix == ".h5":
        pytest.importorskip("h5py")
    atoms = synth_atoms(span=20 * T, duty=0.7, dtype=dtype, seed=1)
    path = tmp_path / f"a{suffix}"
    save_atoms(path, atoms)
    assert load_atoms(path) == atoms
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    save_atoms(path, atoms[1])
    assert load_atoms(path) == [atoms[1]]


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        save_atoms(tmp_path / "a.txt", synth_atoms(span=4 * T))
    with pytest.raises(ValueError, match=r"ends in \.npz.*read_atoms and write_atoms are for text"):
        load_atoms(tmp_path / "a.txt")
    np.savez(tmp_path / "b.npz", x=1)
    with pytest.raises(ValueError, match=r"is not text; load_atoms reads \.npz"):
        read_atoms(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="not written by"):
        load_atoms(tmp_path / "b.npz")
    with pytest.raises(FileNotFoundError):
        load_atoms(tmp_path / "missing.npz")


def test_text_keeps_six_decimals_and_the_detectors(tmp_path):
    atoms = synth_atoms(span=20 * T, seed=2, duty=0.8)
    write_atoms(tmp_path / "a.dat", atoms)
    first, second = (tmp_path / "a.dat").read_text().splitlines()[:2]
    assert first.startswith("%% tGPS")
    assert len(second) == len("1000000000 0.500000 0.400000  0.100000  1.000000  0.000000 -1.500000  0.250000")
    back = read_atoms(tmp_path / "a.dat", detectors=["H1", "L1"])
    for a, b in zip(atoms, back, strict=True):
        assert np.array_equal(a.t, b.t)
        assert a.detector == b.detector
        for name in ("a2", "b2", "ab", "Fa", "Fb"):
            assert np.abs(getattr(a, name) - getattr(b, name)).max() < 1e-6


@pytest.mark.parametrize("length", [900, 3600])
def test_text_of_sfts_of_another_length_needs_it(tmp_path, length):
    """The file does not hold the length, and 1800 s would change every window."""
    atoms = synth_atoms(span=20 * length, seed=2, duty=0.8, tatom=length)
    write_atoms(tmp_path / "a.dat", atoms)
    with pytest.raises(
        ValueError, match=rf"a.dat: the smallest distance of two SFTs is {length} s, .*expected tatom \(--tatom\)"
    ):
        read_atoms(tmp_path / "a.dat")
    found = read_atoms(tmp_path / "a.dat", tatom=length, detectors=["H1", "L1"])
    assert {a.tatom for a in found} == {length}
    assert transient_map(found).max2F == pytest.approx(transient_map(atoms).max2F, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%% nothing\n", "holds no atoms"),
        ("1 2 3\n", "line 1: expected atoms in 8 columns, found 3"),
        ("# c\n0 1 1 0 1 1 1 x\n", "line 2"),
        ("0 1 1 0 1 1 1 1\n1800 nan 1 0 1 1 1 1\n", "lines 1 to 2: a2"),
        ("0 1 1 0 1 1 1 1\n0 1 1 0 1 1 1 1\n", "as many names as detectors, 2"),
    ],
)
def test_bad_text_is_named(tmp_path, text, message):
    (tmp_path / "a.dat").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_atoms(tmp_path / "a.dat", detectors=["H1"])


def test_lal_structures():
    """A stand-in with lalpulsar's attributes; the real one is met in the benchmarks."""

    class Thing:
        def __init__(self, **values):
            self.__dict__.update(values)

    (a, b) = synth_atoms(span=5 * T)
    names = ("timestamp", "a2_alpha", "b2_alpha", "ab_alpha", "Fa_alpha", "Fb_alpha")

    def vector(x):
        rows = [dict(zip(names, row, strict=True)) for row in zip(x.t, x.a2, x.b2, x.ab, x.Fa, x.Fb, strict=True)]
        return Thing(length=len(rows), TAtom=T, data=[Thing(**row) for row in rows])

    multi = Thing(length=2, data=[vector(a), vector(b)])
    assert from_lal(multi, ["H1", "L1"]) == [a, b]
    with pytest.raises(ValueError, match="names 1"):
        from_lal(multi, ["H1"])
    with pytest.raises(TypeError, match="MultiFstatAtomVector"):
        from_lal([a, b])


# ---------------------------------------------------------------- grids


def test_grid_counts_as_lalpulsar():
    grid = Grid(t0=T0, t0_band=5000, dt0=1800, tau=3600, tau_band=3599, dtau=1200)
    assert grid.t0s.tolist() == [T0, T0 + 1800, T0 + 3600]
    assert grid.taus.tolist() == [3600, 4800, 6000]
    assert grid == Grid(t0=T0, t0_band=5000, dt0=1800, tau=3600, tau_band=3599, dtau=1200)
    assert grid != Grid.from_lists(grid.t0s, grid.taus)
    assert not grid.t0s.flags.writeable
    assert Grid.full(synth_atoms(T0, 10 * T)).shape == (9, 9)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"dt0": 0}, ValueError, "dt0=0"),
        ({"dtau": -5}, ValueError, "dtau=-5"),
        ({"tau": 0}, ValueError, "tau=0"),
        ({"t0_band": -1}, ValueError, "t0_band=-1"),
        ({"t0": 0.5}, ValueError, r"t0=0\.5"),
        ({"t0": float("nan")}, ValueError, "t0=nan"),
        ({"tau": "1 d"}, TypeError, "tau='1 d'"),
        ({"tau": True}, TypeError, "tau=True"),
        ({"t0_band": 2**50, "dt0": 1}, ValueError, "too many"),
    ],
)
def test_bad_grids_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        Grid(**({"t0": T0, "tau": 3600} | given))


@pytest.mark.parametrize(
    ("t0s", "taus", "error", "message"),
    [
        ([], [3600], ValueError, "t0s has shape"),
        ([0, 0], [3600], ValueError, r"t0s\[1\]"),
        ([0], [3600, 1800], ValueError, r"taus\[1\]"),
        ([0], [0, 1800], ValueError, "must be positive"),
        ([0.5], [1800], ValueError, "whole number"),
        (["now"], [1800], TypeError, "t0s has dtype"),
        ([[0]], [1800], ValueError, "one dimension"),
    ],
)
def test_bad_lists_are_refused(t0s, taus, error, message):
    with pytest.raises(error, match=message):
        Grid.from_lists(t0s, taus)


def test_a_full_grid_needs_two_sfts():
    with pytest.raises(ValueError, match="one SFT"):
        Grid.full(synth_atoms(T0, T))


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_files_cut_short_at_any_length_are_named(tmp_path, suffix):
    if suffix == ".h5":
        pytest.importorskip("h5py")
    path = tmp_path / f"a{suffix}"
    save_atoms(path, synth_atoms(T0, 4 * T))
    whole = path.read_bytes()
    for length in (0, 1, 3, 30, *range(100, len(whole), 97), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"a{suffix}: damaged or cut short"):
            load_atoms(path)


def test_damaged_archives_are_named(tmp_path):
    """Bytes that differ, a lost entry and a single array: zipfile, zlib and NumPy raise errors of their own."""
    path = tmp_path / "a.npz"
    save_atoms(path, synth_atoms(T0, 4 * T))
    with np.load(path) as file:
        values = {name: file[name] for name in file.files}
    with path.open("wb") as file:
        np.savez_compressed(file, **values)
    whole = path.read_bytes()
    for at in range(0, len(whole), 53):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with contextlib.suppress(ValueError):  # other bytes may not matter; other errors are not expected
            load_atoms(path)
    del values["1/Fb"]
    np.savez(path, **values)
    with pytest.raises(ValueError, match=r"a\.npz: damaged or cut short .*1/Fb"):
        load_atoms(path)
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(ValueError, match="not a single array"):
        load_atoms(path)


@pytest.mark.parametrize("kind", ["f4", ">f4"])
def test_times_rounded_to_single_precision_are_refused(kind):
    times, flat = 1_000_000_000 + 1800 * np.arange(8), [np.ones(8), np.ones(8), np.zeros(8), np.ones(8), np.ones(8)]
    with pytest.raises(ValueError, match=r"t is of float32, whose numbers near 10\d+ are 64 s apart"):
        Atoms(times.astype(kind), *flat)
    with pytest.raises(ValueError, match=r"t0s is of float32.*64 s apart"):
        Grid.from_lists(times.astype(kind), [3600])
    with pytest.raises(ValueError, match=r"t0 is of float32.*64 s apart"):
        Grid(t0=times.astype(kind)[0])
    since = times - times[0]
    assert np.array_equal(Atoms(since.astype(kind), *flat).t, since)
    assert Grid.from_lists(since.astype(kind), np.array([3600], kind)).shape == (8, 1)


@pytest.mark.parametrize("write", [save_atoms, write_atoms])
def test_arguments_in_the_wrong_order_are_named(tmp_path, write):
    atoms = synth_atoms(1_000_000_000, 20 * 1800, seed=1)
    with pytest.raises(TypeError, match=r"^path is a list, expected the name of a file$"):
        write(atoms, tmp_path / "a.npz")
