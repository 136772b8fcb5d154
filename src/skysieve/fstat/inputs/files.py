"""Files of atoms: LALPulsar's and PyFstat's text, and lossless npz and HDF5."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.files import written

from .atoms import FIELDS, Atoms, as_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["load_atoms", "read_atoms", "save_atoms", "write_atoms", "written"]

COLUMNS = 8
ATOM_LINE = "{:10d} {:8.6f} {:8.6f} {:9.6f} {:9.6f} {:9.6f} {:9.6f} {:9.6f}\n"
HDF5 = (".h5", ".hdf5", ".hdf")
FORMAT = "skysieve.fstat.inputs.atoms 1"


def read_atoms(
    path: str | os.PathLike[str], *, tatom: int = 1800, detectors: Sequence[str] | None = None
) -> list[Atoms]:
    """Read atoms from the text that LALPulsar and PyFstat write.

    Parameters
    ----------
    path : path
        Columns GPS time, a^2, b^2, a b, Re Fa, Im Fa, Re Fb, Im Fb; lines that start with ``%`` or ``#`` are
        comments.
    tatom : int
        SFT length in seconds; the file does not say it.
    detectors : sequence of str, optional
        Names of the detectors in the file, in its order.  The file has no column for them: the next one starts where
        the time goes back.  Default: ``"D0"``, ``"D1"`` ...

    Returns
    -------
    list of Atoms
        One a detector.  The text rounds to 6 decimals: 2F of such atoms is good to about 1e-5.

    Raises
    ------
    ValueError
        If a line cannot be read (it is named), nothing is in the file, or `detectors` are not as many as are in it.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("atoms.dat").write_text("%% tGPS a2 b2 ab Fa_re Fa_im Fb_re Fb_im\\n"
    ...     "0 .5 .5 .1 1 2 3 4\\n1800 .5 .5 .1 1 2 3 4\\n0 .2 .2 .1 1 2 3 4\\n")
    >>> [(a.detector, len(a)) for a in read_atoms("atoms.dat", detectors=["H1", "L1"])]
    [('H1', 2), ('L1', 1)]
    """
    table, lines = _table(path)
    times = table[:, 0]
    starts = [0, *(np.flatnonzero(np.diff(times) <= 0) + 1).tolist(), len(times)]
    n = len(starts) - 1
    names = [f"D{i}" for i in range(n)] if detectors is None else list(detectors)
    if len(names) != n:
        raise ValueError(
            f"{path}: the times go back {n - 1} times, which makes {n} detectors; detectors={names} names {len(names)}"
        )
    out = []
    for name, a, b in zip(names, starts[:-1], starts[1:], strict=True):
        t = table[a:b, 0]
        a2, b2, ab, far, fai, fbr, fbi = table[a:b, 1:].T.astype(np.float32)
        try:
            out.append(Atoms(t, a2, b2, ab, far + 1j * fai, fbr + 1j * fbi, tatom, name))
        except ValueError as error:
            raise ValueError(f"{path}, lines {lines[a]} to {lines[b - 1]}: {error}") from error
    return out


def _table(path: str | os.PathLike[str]) -> tuple[NDArray[np.float64], list[int]]:
    rows, lines = [], []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            text = line.strip()
            if not text or text[0] in "%#":
                continue
            parts = text.split()
            if len(parts) != COLUMNS:
                raise ValueError(f"{path}, line {number}: {len(parts)} columns, expected {COLUMNS}")
            try:
                rows.append([float(p) for p in parts])
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            lines.append(number)
    if not rows:
        raise ValueError(f"{path} holds no atoms")
    return np.array(rows), lines


def write_atoms(path: str | os.PathLike[str], atoms: Atoms | Sequence[Atoms]) -> None:
    """Write atoms as LALPulsar's text: 6 decimals, detectors one after the other without a label.

    `save_atoms` loses nothing.
    """
    with written(path) as part, open(part, "w", encoding="utf-8") as file:
        file.write("%% tGPS    a2       b2        ab        Fa_re     Fa_im     Fb_re     Fb_im\n")
        for a in as_list(atoms):
            fa, fb = to_host(a.Fa), to_host(a.Fb)
            rows = zip(
                a.t, to_host(a.a2), to_host(a.b2), to_host(a.ab), fa.real, fa.imag, fb.real, fb.imag, strict=True
            )
            file.writelines(ATOM_LINE.format(*row) for row in rows)


def save_atoms(path: str | os.PathLike[str], atoms: Atoms | Sequence[Atoms]) -> None:
    """Write the atoms of one or several detectors to ``.npz`` or ``.h5``; nothing is lost.

    Parameters
    ----------
    path : path
        The file appears whole or not at all.
    atoms : Atoms or sequence of Atoms

    Raises
    ------
    ValueError
        For another ending.

    Examples
    --------
    >>> from skysieve.fstat import synth_atoms
    >>> atoms = synth_atoms(span=86400)
    >>> save_atoms("atoms.npz", atoms)
    >>> load_atoms("atoms.npz") == atoms
    True
    """
    found = as_list(atoms)
    values: dict[str, Any] = {"format": FORMAT, "n_detectors": len(found)}
    for i, a in enumerate(found):
        values |= {f"{i}/t": a.t, f"{i}/tatom": a.tatom, f"{i}/detector": a.detector}
        values |= {f"{i}/{name}": to_host(getattr(a, name)) for name in FIELDS}
    suffix = Path(path).suffix.lower()
    if suffix not in (".npz", *HDF5):
        raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in .npz, {', '.join(HDF5)}")
    with written(path) as part:
        if suffix == ".npz":
            np.savez(part, **values)
            return
        h5py = _h5py()
        with h5py.File(part, "w") as file:
            for name, value in values.items():
                file[name] = value


def load_atoms(path: str | os.PathLike[str]) -> list[Atoms]:
    """Read what `save_atoms` wrote.

    Raises
    ------
    ValueError
        If the file is something else.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return _unpack(path, {name: file[name] for name in file.files})
    if suffix not in HDF5:
        raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in .npz, {', '.join(HDF5)}")
    h5py = _h5py()
    with h5py.File(path, "r") as file:
        found: dict[str, Any] = {}
        file.visititems(lambda name, item: found.__setitem__(name, item[()]) if hasattr(item, "dtype") else None)
    return _unpack(path, found)


def _unpack(path: str | os.PathLike[str], values: dict[str, Any]) -> list[Atoms]:
    if "format" not in values or _text(values["format"]) != FORMAT:
        raise ValueError(f"{path} was not written by skysieve's save_atoms")
    out = []
    for i in range(int(values["n_detectors"])):
        t, a2, b2, ab, fa, fb = (values[f"{i}/{name}"] for name in ("t", *FIELDS))
        out.append(Atoms(t, a2, b2, ab, fa, fb, int(values[f"{i}/tatom"]), _text(values[f"{i}/detector"])))
    return out


def _text(value: Any) -> str:
    plain = value.item() if isinstance(value, np.ndarray) else value
    return plain.decode() if isinstance(plain, bytes) else str(plain)


def _h5py() -> Any:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("HDF5 files need h5py: pip install 'skysieve[hdf5]'") from error
    return h5py
