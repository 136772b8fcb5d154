"""Files of atoms: npz and HDF5, which are exact, and the text of LALPulsar and PyFstat, which is rounded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import check_path
from skysieve.core.errors import install_hint
from skysieve.core.files import expand, hdf5_file, written
from skysieve.core.result import DAMAGED, npz_arrays

from .atoms import FIELDS, Atoms

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "FORMATS", "AtomsLike", "PathLike", "as_list", "atom_files", "doppler_of", "load_atoms", "read_any",
    "read_atoms", "save_atoms", "write_atoms",
]  # fmt: skip

PathLike = str | os.PathLike[str]
AtomsLike = Atoms | PathLike | Sequence[Atoms | PathLike]
"""The types that public functions accept as the atoms of one template: `Atoms`, a file, or several of either."""

TEXT_COLUMNS = 8
TEXT_HEADER = "%% tGPS    a2       b2        ab        Fa_re     Fa_im     Fb_re     Fb_im\n"
TEXT_LINE = "{:10d} {:8.6f} {:8.6f} {:9.6f} {:9.6f} {:9.6f} {:9.6f} {:9.6f}\n"
CONTENT = "skysieve.fstat.inputs.atoms 1"
"""Value of the entry ``format`` of npz and HDF5 files."""


def as_list(atoms: AtomsLike) -> list[Atoms]:
    """The atoms of one template as a list that is not empty and has one SFT length.

    Parameters
    ----------
    atoms : Atoms, path, or sequence of them
        Files are read by `read_any`; each may hold several detectors.
    """
    if isinstance(atoms, Atoms):
        return [atoms]
    if isinstance(atoms, str | os.PathLike):
        found = read_any(atoms)
    elif isinstance(atoms, bytes) or not isinstance(atoms, Iterable):
        raise TypeError(f"atoms is a {type(atoms).__name__}, expected Atoms, a path or a list of them")
    else:
        found = []
        for i, a in enumerate(atoms):
            if isinstance(a, str | os.PathLike):
                found += read_any(a)
            elif isinstance(a, Atoms):
                found.append(a)
            else:
                raise TypeError(f"atoms[{i}] is a {type(a).__name__}, expected Atoms or a path")
    if not found:
        raise ValueError("atoms is empty: there are no atoms")
    if len({a.tatom for a in found}) > 1:
        raise ValueError(f"atoms mix SFT lengths: { {a.detector: a.tatom for a in found} }")
    return found


# ---------------------------------------------------------------- text


USUAL_TATOM = 1800
"""SFT length in seconds that is assumed for text files, if the spacing of the SFTs agrees with it."""


def read_atoms(path: PathLike, *, tatom: int | None = None, detectors: Sequence[str] | None = None) -> list[Atoms]:
    """Read atoms from the text that LALPulsar and PyFstat write.

    Parameters
    ----------
    path : path
        Columns GPS time, a^2, b^2, a b, Re Fa, Im Fa, Re Fb, Im Fb; lines that start with ``%`` or ``#`` are
        comments.
    tatom : int, optional
        SFT length in seconds; the file does not contain it.  The default is 1800, if that is the smallest distance
        between two SFTs of a detector, or if no detector has two SFTs.
    detectors : sequence of str, optional
        Names of the detectors in the file, in its order.  The file has no column for them: a detector ends where the
        time does not rise.  The default is ``"D0"``, ``"D1"`` ...

    Returns
    -------
    list of Atoms
        One entry for each detector.  The text rounds to 6 decimals, which changes 2F by about 1e-5.

    Raises
    ------
    ValueError
        The file is not text (`load_atoms` reads ``.npz`` and ``.h5``), a line cannot be read (the error names it), the
        file holds no atoms, it has another number of detectors than `detectors`, or `tatom` is needed.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("atoms.dat").write_text("%% tGPS a2 b2 ab Fa_re Fa_im Fb_re Fb_im\\n"
    ...     "0 .5 .5 .1 1 2 3 4\\n1800 .5 .5 .1 1 2 3 4\\n0 .2 .2 .1 1 2 3 4\\n")
    >>> [(a.detector, len(a)) for a in read_atoms("atoms.dat", detectors=["H1", "L1"])]
    [('H1', 2), ('L1', 1)]
    """
    try:
        with open(path, encoding="utf-8") as file:
            table, lines = _table(path, file)
    except UnicodeDecodeError:
        if Path(path).suffix == ".sft":
            raise ValueError(f"{path}: holds SFTs, not atoms; expected --sfts before its name, or read_sfts") from None
        if any(Path(path).suffix.lower() in form.endings for form in FORMATS.values() if form.read is not None):
            raise ValueError(f"{path}: is not text; load_atoms reads .npz and .h5 files") from None
        raise ValueError(f"{path}: is not text; expected atoms as text that is not compressed, .npz or .h5") from None
    times = table[:, 0]
    starts = [0, *(np.flatnonzero(np.diff(times) <= 0) + 1).tolist(), len(times)]
    n = len(starts) - 1
    names = [f"D{i}" for i in range(n)] if detectors is None else list(detectors)
    if len(names) != n:
        raise ValueError(
            f"{path}: detectors={names}: expected as many names as detectors, {n}: another one begins where the time "
            "does not increase"
        )
    if tatom is None:
        steps = np.diff(times)
        closest = float(steps[steps > 0].min(initial=np.inf))
        if closest not in (USUAL_TATOM, np.inf):
            raise ValueError(
                f"{path}: the smallest distance of two SFTs is {closest:g} s, so that their length may not be "
                f"{USUAL_TATOM} s; expected tatom (--tatom), the SFT length in seconds"
            )
        tatom = USUAL_TATOM
    out = []
    for name, a, b in zip(names, starts[:-1], starts[1:], strict=True):
        t = table[a:b, 0]
        a2, b2, ab, far, fai, fbr, fbi = table[a:b, 1:].T.astype(np.float32)
        try:
            out.append(Atoms(t, a2, b2, ab, far + 1j * fai, fbr + 1j * fbi, tatom, name))
        except ValueError as error:
            raise ValueError(f"{path}, lines {lines[a]} to {lines[b - 1]}: {error}") from error
    return out


def _table(path: PathLike, text: Iterable[str]) -> tuple[NDArray[np.float64], list[int]]:
    """The numbers of a text file, one atom a row, and the line number of each row."""
    rows, lines = [], []
    for number, words in _words(text):
        if len(words) != TEXT_COLUMNS:
            raise ValueError(f"{path}, line {number}: expected atoms in {TEXT_COLUMNS} columns, found {len(words)}")
        try:
            rows.append([float(word) for word in words])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        lines.append(number)
    if not rows:
        raise ValueError(f"{path} holds no atoms")
    return np.array(rows), lines


def _words(text: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Number and words of each line that is neither empty nor a comment."""
    for number, line in enumerate(text, start=1):
        words = line.split()
        if words and words[0][0] not in "%#":
            yield number, words


def _is_other_text(path: Path) -> bool:
    """Whether a text file certainly holds something else than atoms.

    Neither its name nor its first line is that of atoms, and its first row holds no number, or numbers that are not
    eight with a whole one first.
    """
    try:
        with open(path, encoding="utf-8") as file:
            head = file.readline()
            file.seek(0)
            _, words = next(_words(file), (0, []))
    except (OSError, UnicodeDecodeError):  # a fault of the file, which is reported when it is searched
        return False
    if not words or "tGPS" in head or "Fstatatoms" in path.name:
        return False
    numbers = [_number(word) for word in words]
    if None in numbers:
        return set(numbers) == {None}
    return len(numbers) != TEXT_COLUMNS or not float(words[0]).is_integer()


def _number(word: str) -> float | None:
    """The number that a word stands for, if it stands for one."""
    try:
        return float(word)
    except ValueError:
        return None


def write_atoms(path: PathLike, atoms: AtomsLike) -> None:
    """Write atoms as LALPulsar's text: 6 decimals, one detector after the other, without their names.

    `save_atoms` does not round.

    Parameters
    ----------
    path : path
        The file appears complete or not at all.
    atoms : Atoms, path, or sequence of them

    Raises
    ------
    TypeError
        `path` or `atoms` is something else.
    ValueError
        `atoms` is empty, or the detectors have SFTs of different lengths.
    OSError
        The file cannot be written.

    Examples
    --------
    >>> from skysieve.fstat import synth_atoms
    >>> atoms = synth_atoms(span=86400, detectors=["H1", "L1"])
    >>> write_atoms("atoms.dat", atoms)
    >>> [(a.detector, len(a)) for a in read_atoms("atoms.dat", detectors=["H1", "L1"])]
    [('H1', 48), ('L1', 48)]
    """
    check_path(path)
    found = as_list(atoms)
    with written(path) as part:
        _write_text(part, found)


def _write_text(path: Path, atoms: Sequence[Atoms]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(TEXT_HEADER)
        for a in atoms:
            fa, fb = to_host(a.Fa), to_host(a.Fb)
            rows = zip(
                a.t, to_host(a.a2), to_host(a.b2), to_host(a.ab), fa.real, fa.imag, fb.real, fb.imag, strict=True
            )
            file.writelines(TEXT_LINE.format(*row) for row in rows)


# ---------------------------------------------------------------- npz and HDF5


def _pack(atoms: Sequence[Atoms]) -> dict[str, Any]:
    """The entries of an npz or HDF5 file."""
    values: dict[str, Any] = {"format": CONTENT, "n_detectors": len(atoms)}
    for i, a in enumerate(atoms):
        values |= {f"{i}/t": a.t, f"{i}/tatom": a.tatom, f"{i}/detector": a.detector}
        values |= {f"{i}/{name}": to_host(getattr(a, name)) for name in FIELDS}
    return values


def _unpack(path: PathLike, values: dict[str, Any]) -> list[Atoms]:
    if "format" not in values or _text(values["format"]) != CONTENT:
        raise ValueError(f"{path} was not written by skysieve's save_atoms")
    out = []
    try:
        for i in range(int(values["n_detectors"])):
            t, a2, b2, ab, fa, fb = (values[f"{i}/{name}"] for name in ("t", *FIELDS))
            out.append(Atoms(t, a2, b2, ab, fa, fb, int(values[f"{i}/tatom"]), _text(values[f"{i}/detector"])))
    except KeyError as error:
        raise ValueError(f"{path}: damaged or cut short (there is no entry {error})") from error
    return out


def _text(value: Any) -> str:
    plain = value.item() if isinstance(value, np.ndarray) else value
    return plain.decode() if isinstance(plain, bytes) else str(plain)


def _write_npz(path: Path, atoms: Sequence[Atoms]) -> None:
    with open(path, "wb") as file:
        np.savez(file, **_pack(atoms))


def _read_hdf5(path: PathLike) -> list[Atoms]:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"HDF5 files need h5py: {install_hint('h5py')}") from error
    found: dict[str, Any] = {}
    with open(path, "rb"):  # its OSError names the file, unlike that of h5py
        pass
    try:
        with h5py.File(path, "r") as file:
            file.visititems(lambda name, item: found.__setitem__(name, item[()]) if hasattr(item, "dtype") else None)
    except DAMAGED as error:
        raise ValueError(f"{path}: damaged or cut short, or no HDF5 file ({error})") from error
    return _unpack(path, found)


def _write_hdf5(path: Path, atoms: Sequence[Atoms]) -> None:
    with hdf5_file(path) as file:
        for name, value in _pack(atoms).items():
            file[name] = value


# ---------------------------------------------------------------- all formats


@dataclass(frozen=True)
class AtomsFormat:
    """One format of files of atoms.

    Attributes
    ----------
    endings : tuple of str
        Endings of the file names.
    write : callable
        ``write(path, atoms)``.
    read : callable or None
        ``read(path)`` of exact formats; None for text, which `read_atoms` reads.
    """

    endings: tuple[str, ...]
    write: Callable[[Path, Sequence[Atoms]], None]
    read: Callable[[PathLike], list[Atoms]] | None = None


FORMATS = {
    "npz": AtomsFormat((".npz",), _write_npz, lambda path: _unpack(path, npz_arrays(path))),
    "hdf5": AtomsFormat((".h5", ".hdf5", ".hdf"), _write_hdf5, _read_hdf5),
    "text": AtomsFormat((".dat", ".txt"), _write_text),
}
"""All formats; a file of any other ending is read as text."""


def _format_of(path: PathLike) -> AtomsFormat:
    """The format of a file without rounding, by the ending of its name."""
    known = [f for f in FORMATS.values() if f.read is not None]
    for found in known:
        if Path(path).suffix.lower() in found.endings:
            return found
    endings = ", ".join(ending for f in known for ending in f.endings)
    raise ValueError(
        f"path={os.fspath(path)!r}: expected a name that ends in {endings}; read_atoms and write_atoms are for text"
    )


def save_atoms(path: PathLike, atoms: AtomsLike) -> None:
    """Write the atoms of one or several detectors to ``.npz`` or ``.h5``, without rounding.

    Parameters
    ----------
    path : path
        The file appears complete or not at all.
    atoms : Atoms, path, or sequence of them

    Raises
    ------
    TypeError
        `path` or `atoms` is something else.
    ValueError
        The name has another ending, or `atoms` is empty.

    Examples
    --------
    >>> from skysieve.fstat import synth_atoms
    >>> atoms = synth_atoms(span=86400)
    >>> save_atoms("atoms.npz", atoms)
    >>> load_atoms("atoms.npz") == atoms
    True
    """
    check_path(path)
    chosen, found = _format_of(path), as_list(atoms)
    with written(path) as part:
        chosen.write(part, found)


def load_atoms(path: PathLike) -> list[Atoms]:
    """Read what `save_atoms` wrote.

    Parameters
    ----------
    path : path
        A file ``.npz``, ``.h5``, ``.hdf5`` or ``.hdf``.

    Returns
    -------
    list of Atoms
        One entry for each detector.

    Raises
    ------
    ValueError
        The name has another ending, or `save_atoms` did not write the file.
    OSError
        The file cannot be read.
    ModuleNotFoundError
        The file is HDF5, and h5py is missing.

    Examples
    --------
    >>> from skysieve.fstat import synth_atoms
    >>> save_atoms("atoms.npz", synth_atoms(span=86400, detectors=["H1"]))
    >>> load_atoms("atoms.npz")[0].detector
    'H1'
    """
    read = _format_of(path).read
    assert read is not None
    return read(path)


def read_any(path: PathLike, tatom: int | None = None, detectors: Sequence[str] | None = None) -> list[Atoms]:
    """Read a file of atoms of any format.

    For text files, `tatom` and `detectors` are as in `read_atoms`.  Other formats store both; an argument that differs
    from the file raises ValueError.
    """
    for found in FORMATS.values():
        if found.read is not None and Path(path).suffix.lower() in found.endings:
            atoms = found.read(path)
            lengths, names = {a.tatom for a in atoms}, [a.detector for a in atoms]
            if tatom is not None and lengths != {tatom}:
                raise ValueError(f"{path}: tatom (--tatom) {tatom}: the file says {', '.join(map(str, lengths))} s")
            if detectors is not None and names != list(detectors):
                raise ValueError(
                    f"{path}: detectors (--detectors) {','.join(detectors)}: the file holds {','.join(names)}; "
                    "only text files need their names"
                )
            return atoms
    return read_atoms(path, tatom=tatom, detectors=detectors)


def atom_files(names: Iterable[PathLike], others: list[Path] | None = None) -> list[Path]:
    """The files of atoms that the user's names, folders and patterns select; see `core.files.expand`.

    Text files of a folder that hold something else, such as PyFstat's tables and maps, are left out and added to
    `others`.
    """
    endings = {ending for form in FORMATS.values() for ending in form.endings}
    out, rest = list[Path](), list[Path]()
    for name in names:
        found = expand([name], endings)
        if Path(name).is_dir():
            texts = [path for path in found if path.suffix.lower() in FORMATS["text"].endings]
            left = {path for path in texts if _is_other_text(path)}
            found = [path for path in found if path not in left]
            if not found:
                raise FileNotFoundError(f"{name}: no file in it holds atoms")
            rest += sorted(left)
        out += found
    chosen = expand(out, ())
    if others is not None:
        others += [path for path in expand(rest, ()) if path not in chosen]
    return chosen


NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?"
DOPPLER = re.compile(
    rf"tRef(?P<tref>{NUMBER})_RA(?P<ra>{NUMBER})_DEC(?P<dec>{NUMBER})_Freq(?P<f0>{NUMBER})"
    rf"(?:_f1dot(?P<f1dot>{NUMBER}))?(?:_f2dot(?P<f2dot>{NUMBER}))?"
)
"""Parameters of a template in the file names of LALPulsar and PyFstat, which omit derivatives that are 0."""


def doppler_of(path: PathLike) -> dict[str, float]:
    """Parameters of a template from its file name; empty if the name holds none.

    Examples
    --------
    >>> doppler_of("atoms_tRef1000000000_RA0.5_DEC-1_Freq100.00001_f1dot-1e-10.dat")["f0"]
    100.00001
    """
    found = DOPPLER.search(Path(path).name)
    if found is None:
        return {}
    return {name: float(text or 0) for name, text in found.groupdict().items()}
