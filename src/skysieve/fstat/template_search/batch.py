"""Batches: the atoms of many templates that share their times, in one detector or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import array_module, as_array, is_device_array, to_host
from skysieve.core.errors import one_line
from skysieve.fstat.contract import Bank, prepared
from skysieve.fstat.inputs.atoms import FIELDS, Atoms, above_schwarz, positive_seconds, times_of
from skysieve.fstat.inputs.bins import refuse_long
from skysieve.fstat.inputs.files import as_list, doppler_of, read_any
from skysieve.fstat.inputs.grid import Times

from .columns import is_reserved

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 64
"""Number of templates whose antenna factors are checked at once, in float64."""
GATHERED = 64
"""Most files with the same times that are searched as one batch."""

__all__ = ["AtomsBatch", "Binned", "bin_batch", "groups", "is_path", "read_files"]


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AtomsBatch:
    """Atoms of many templates seen by one detector.

    Parameters
    ----------
    t : array_like of int, shape (n,)
        GPS seconds at which each SFT starts, the same for all templates; rising, gaps allowed.
    a2, b2, ab : array_like, shape (n,) or (B, n)
        Noise-weighted antenna-pattern products, for one point of the sky or for each template.
    Fa, Fb : array_like of complex, shape (B, n)
        Projections of the data on the two halves of each template.
    tatom : int
        Length of an SFT in seconds.
    detector : str
    params : dict of array_like, shape (B,), optional
        Parameters of the templates, such as ``{"f0": ..., "f1": ...}``; they become columns of the table of a search.
        With several detectors, the parameters in the batch of the first one are used.
    errors : dict of int to str, optional
        Reasons why templates have no atoms, by the number of the template in the batch.  A search leaves these out.

    Raises
    ------
    ValueError, TypeError
        Times do not rise, shapes or types do not match, or `params` has the name of a column of the search.  Invalid
        values of a template do not raise: `faults` lists them, and a search leaves out only that template.

    Notes
    -----
    CuPy arrays stay on the GPU and are binned there.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.ones(3)
    >>> batch = AtomsBatch([0, 1800, 3600], one, one, 0 * one, np.ones((2, 3)), np.ones((2, 3)), params={"f0": [1, 2]})
    >>> len(batch), batch.shared
    (2, True)
    """

    t: NDArray[np.int64]
    a2: Any
    b2: Any
    ab: Any
    Fa: Any
    Fb: Any
    tatom: int
    detector: str
    params: dict[str, NDArray[Any]]
    errors: dict[int, str]

    def __init__(
        self, t: Any, a2: Any, b2: Any, ab: Any, Fa: Any, Fb: Any, tatom: int = 1800, detector: str = "H1",
        params: Mapping[str, Any] | None = None, errors: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        times = times_of(t)
        if times.size == 0:
            raise ValueError("t is empty: there are no atoms")
        given = dict(zip(FIELDS, (as_array(x) for x in (a2, b2, ab, Fa, Fb)), strict=True))
        count = given["Fa"].shape[0] if given["Fa"].ndim == 2 else 0
        double = any((x.dtype.kind, x.dtype.itemsize) in (("f", 8), ("c", 16)) for x in given.values())
        values: dict[str, Any] = {"t": times}
        for name in ("Fa", "Fb", "a2", "b2", "ab"):
            x, data = given[name], name in ("Fa", "Fb")
            if x.dtype.kind not in ("buifc" if data else "buif"):
                raise TypeError(f"{name} has dtype {x.dtype}, expected {'complex' if data else 'real'} numbers")
            shapes = ((count, times.size),) if data else ((times.size,), (count, times.size))
            if count == 0 or x.shape not in shapes:
                what = f"(templates, {times.size})" + ("" if data else f" or ({times.size},)")
                raise ValueError(f"{name} has shape {x.shape}, expected {what}: t has {times.size} times")
            wanted = (np.complex128 if double else np.complex64) if data else np.float64 if double else np.float32
            values[name] = x.astype(wanted, copy=False)
        if len({values[name].ndim for name in ("a2", "b2", "ab")}) > 1:
            raise ValueError("a2, b2 and ab differ in shape: give one row for all templates, or one each")
        values["params"] = {}
        for name, column in (params or {}).items():
            array = to_host(column)
            if is_reserved(str(name)):
                raise ValueError(f"params[{name!r}]: a search has a column of this name already; use another name")
            if array.dtype.kind not in "buifUS":
                raise TypeError(f"params[{name!r}] has dtype {array.dtype}, expected numbers or text")
            if array.shape != (count,):
                raise ValueError(f"params[{name!r}] has shape {array.shape}, expected ({count},)")
            values["params"][str(name)] = array
        values |= {"tatom": positive_seconds(tatom, "tatom"), "detector": str(detector), "errors": dict(errors or {})}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def stack(cls, templates: Sequence[Atoms], params: Mapping[str, Any] | None = None) -> AtomsBatch:
        """One batch from the atoms of several templates in one detector.

        Raises
        ------
        ValueError
            There are no templates, or their times differ.
        """
        found = as_list(templates)
        first = found[0]
        for i, a in enumerate(found):
            if a.tatom != first.tatom or not np.array_equal(a.t, first.t):
                raise ValueError(f"templates[{i}] has different times from templates[0]")
        xp = array_module(first.Fa)
        columns = {name: [getattr(a, name) for a in found] for name in FIELDS}
        shared = all(np.array_equal(to_host(x), to_host(columns[f][0])) for f in FIELDS[:3] for x in columns[f])
        a2, b2, ab = (columns[f][0] if shared else xp.stack(columns[f]) for f in FIELDS[:3])
        return cls(
            first.t, a2, b2, ab, xp.stack(columns["Fa"]), xp.stack(columns["Fb"]), first.tatom, first.detector, params
        )

    def __len__(self) -> int:
        return int(self.Fa.shape[0])

    def __repr__(self) -> str:
        return f"<AtomsBatch: {len(self)} templates, {self.detector}, {self.t.size} SFTs of {self.tatom} s>"

    @property
    def shared(self) -> bool:
        """Whether the templates share a2, b2 and ab."""
        return bool(self.a2.ndim == 1)

    @property
    def on_device(self) -> bool:
        """Whether the projections are in GPU memory."""
        return is_device_array(self.Fa)

    def part(self, rows: Any) -> AtomsBatch:
        """Some of the templates: a slice or an array of numbers."""
        one = AtomsBatch.__new__(AtomsBatch)
        values = {name: getattr(self, name) for name in ("t", "tatom", "detector")}
        values |= {name: getattr(self, name) if self.shared else getattr(self, name)[rows] for name in FIELDS[:3]}
        values |= {"Fa": self.Fa[rows], "Fb": self.Fb[rows], "params": {k: v[rows] for k, v in self.params.items()}}
        numbers = np.arange(len(self))[rows].tolist() if self.errors else []
        values["errors"] = {k: self.errors[i] for k, i in enumerate(numbers) if i in self.errors}
        for name, value in values.items():
            object.__setattr__(one, name, value)
        return one

    def template(self, i: int) -> Atoms:
        """Atoms of template `i`."""
        if i in self.errors:
            raise ValueError(f"template {i}: {self.errors[i]}")
        a2, b2, ab = (x if self.shared else x[i] for x in (self.a2, self.b2, self.ab))
        return Atoms(self.t, a2, b2, ab, self.Fa[i], self.Fb[i], self.tatom, self.detector)

    def faults(self) -> dict[int, str]:
        """Errors in the values, by the number of the template."""
        xp = array_module(self.Fa)
        found = dict(self.errors)
        for name in ("a2", "b2", "ab", "Fa", "Fb"):
            x = getattr(self, name)
            # a finite sum shows that all values are finite; `_not_finite` examines the others, some of which overflowed
            with np.errstate(over="ignore", invalid="ignore"):
                good = xp.isfinite(x.sum(axis=-1))
            self._note(found, ~good, lambda row, n=name: _not_finite(row, n), x)
            if name in ("a2", "b2"):
                self._note(found, x.min(axis=-1) < 0, lambda row, n=name: _negative(row, n), x)
        for start in range(0, 1 if self.shared else len(self), ROWS):
            a2, b2, ab = (
                (x if self.shared else x[start : start + ROWS]).astype(np.float64) for x in (self.a2, self.b2, self.ab)
            )
            with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite were found above
                over = above_schwarz(a2, b2, ab)
            self._note(found, over.any(axis=-1), _schwarz, over, start)
        return found

    def _note(self, found: dict[int, str], bad: Any, describe: Any, x: Any, start: int = 0) -> None:
        """Add the errors of rows `bad`; ``describe(row)`` is the text of an error, or empty."""
        which = np.atleast_1d(to_host(bad))
        if not which.any():
            return
        for k in np.flatnonzero(which):
            text = describe(to_host(x if x.ndim == 1 else x[k]))
            rows = range(len(self)) if x.ndim == 1 else [start + int(k)]
            for i in rows:
                if text:
                    found.setdefault(i, f"{self.detector}: {text}")


def _not_finite(row: NDArray[Any], name: str) -> str:
    bad = np.flatnonzero(~np.isfinite(row))
    return f"{name}[{bad[0]}] = {row[bad[0]]} is not finite" if bad.size else ""


def _negative(row: NDArray[Any], name: str) -> str:
    bad = np.flatnonzero(row < 0)
    return f"{name}[{bad[0]}] = {row[bad[0]]} is negative; it is a square"


def _schwarz(row: NDArray[np.bool_]) -> str:
    return f"ab[{np.flatnonzero(row)[0]}]: its square is above a2 b2"


def groups(item: Any, number: int) -> Iterator[tuple[AtomsBatch, ...]]:
    """Split one item of a stream into batches of templates with the same times; each is a tuple over the detectors.

    An item is an `AtomsBatch`, a list of them (one for each detector), `Atoms` or a list of `Atoms` (detectors of one
    template), or a list of such lists (templates).

    Raises
    ------
    TypeError, ValueError
        The item has another type, or the detectors differ in their number of templates.
    """
    parts = [item] if isinstance(item, AtomsBatch | Atoms) else item
    if not isinstance(parts, list | tuple) or not parts:
        raise TypeError(f"batches: item {number} is {_kind(item)}; expected AtomsBatch, Atoms or lists of them")
    if all(isinstance(p, AtomsBatch) for p in parts):
        _same(parts, number)
        yield tuple(parts)
    elif all(isinstance(p, Atoms) for p in parts):
        yield tuple(AtomsBatch.stack([a]) for a in parts)
    elif all(isinstance(p, list | tuple) and p and all(isinstance(a, Atoms) for a in p) for p in parts):
        start = 0
        for stop in range(1, len(parts) + 1):
            if stop == len(parts) or not same_times(parts[start], parts[stop]):
                yield tuple(AtomsBatch.stack(list(one)) for one in zip(*parts[start:stop], strict=True))
                start = stop
    else:
        wrong = next(
            p for p in parts if not isinstance(p, type(parts[0])) or not isinstance(p, AtomsBatch | Atoms | list)
        )
        raise TypeError(f"batches: item {number} holds {_kind(wrong)}; expected AtomsBatch, Atoms or lists of Atoms")


def _kind(item: Any) -> str:
    return "an empty list" if isinstance(item, list | tuple) and not item else f"a {type(item).__name__}"


def same_times(a: Sequence[Atoms], b: Sequence[Atoms]) -> bool:
    """Whether two templates have the same detectors and times."""
    return len(a) == len(b) and all(
        (x.tatom, x.detector) == (y.tatom, y.detector) and np.array_equal(x.t, y.t) for x, y in zip(a, b, strict=True)
    )


def _same(parts: Sequence[AtomsBatch], number: int) -> None:
    for p in parts[1:]:
        if len(p) != len(parts[0]):
            raise ValueError(
                f"batches: item {number} has {len(parts[0])} templates in {parts[0].detector} and {len(p)} in "
                f"{p.detector}"
            )
        if p.tatom != parts[0].tatom:
            raise ValueError(f"batches: item {number} mixes SFT lengths {parts[0].tatom} and {p.tatom} s")


def is_path(item: Any) -> bool:
    """Whether an item of a stream is the name of a file."""
    return isinstance(item, str | os.PathLike)


def read_files(source: Iterable[Any], read: Callable[[Any], list[Atoms]] = read_any) -> Iterator[Any]:
    """Replace the paths in a stream of batches by the atoms in these files.

    The file names become the parameter ``file``, and ``f0``, ``f1dot`` ... in LALPulsar's file names become parameters
    too, see `doppler_of`.  Consecutive files with the same times are gathered into one batch.  A file that cannot be
    read is replaced by its error.  Items that are not paths are passed on unchanged.
    """
    waiting: list[list[Atoms]] = []
    names: list[str] = []

    def batch() -> Iterator[list[AtomsBatch]]:
        if waiting:
            found = [doppler_of(name) for name in names]
            params: dict[str, Any] = {key: [f.get(key, np.nan) for f in found] for key in dict.fromkeys(chain(*found))}
            yield [AtomsBatch.stack(list(one), {"file": names} | params) for one in zip(*waiting, strict=True)]
            waiting.clear()
            names.clear()

    for item in source:
        if not is_path(item):
            yield from batch()
            yield item
            continue
        try:
            found = read(item)
        except (ValueError, OSError) as error:
            yield from batch()
            text = one_line(error)
            yield error if str(item) in text else ValueError(f"{item}: {text}")
            continue
        if waiting and (len(waiting) == GATHERED or not same_times(waiting[0], found)):
            yield from batch()
        waiting.append(found)
        names.append(str(item))
    yield from batch()


@dataclass(frozen=True)
class Binned:
    """Templates in common time bins: the sum over the detectors and, on request, each single detector."""

    t_start: int
    tatom: int
    n: int
    bank: Bank
    detectors: tuple[Bank, ...]


def bin_batch(parts: Sequence[AtomsBatch], dtype: Any, each_detector: bool = False) -> Binned:
    """Add the atoms of each template in the bins of `bins.bin_atoms`, and scale them for the backends.

    Parameters
    ----------
    parts : sequence of AtomsBatch
        One for each detector.
    dtype : dtype
        Type of the bins; the sums are formed in the type of the atoms.
    each_detector : bool
        Make the bins of each detector too.
    """
    width = parts[0].tatom
    times = Times.of([p.t for p in parts], width)
    start, n = times.t_start, times.n
    refuse_long(times)
    kind = np.result_type(*(p.a2.dtype for p in parts))
    shared = all(p.shared for p in parts)
    xp = array_module(parts[0].Fa)
    count = len(parts[0])

    def empty() -> Bank:
        antenna = xp.zeros((1 if shared else count, 3, n), kind)
        return Bank(antenna, xp.zeros((count, 4, n), kind), np.zeros(n, np.bool_))

    total, alone = empty(), []
    for p in parts:
        one = empty() if each_detector and len(parts) > 1 else None
        for where in _passes((p.t - start) // width):
            for bank in (total, one) if one is not None else (total,):
                _add(bank, p, where)
        if one is not None:
            alone.append(one)
    if len(total.antenna) > 1 and bool((total.antenna == total.antenna[:1]).all()):
        total = replace(total, antenna=total.antenna[:1])
        if all(bool((b.antenna == b.antenna[:1]).all()) for b in alone):
            alone = [replace(b, antenna=b.antenna[:1]) for b in alone]
    banks = prepared([total, *alone], dtype)
    return Binned(start, width, n, banks[0], tuple(banks[1:]) if len(parts) > 1 else (banks[0],) * each_detector)


def _passes(at: NDArray[np.int64]) -> list[list[tuple[slice, slice]] | tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Divide atoms and their bins into passes in which each bin occurs once; as slices if few slices suffice."""
    turn = np.arange(at.size) - np.searchsorted(at, at, side="left")
    out: list[Any] = []
    for k in range(int(turn.max()) + 1):
        atoms = np.flatnonzero(turn == k)
        bins = at[atoms]
        cuts = [0, *(np.flatnonzero((np.diff(bins) != 1) | (np.diff(atoms) != 1)) + 1).tolist(), atoms.size]
        if len(cuts) * 16 > atoms.size:
            out.append((atoms, bins))
            continue
        pairs = pairwise(cuts)
        out.append(
            [(slice(int(atoms[a]), int(atoms[b - 1]) + 1), slice(int(bins[a]), int(bins[b - 1]) + 1)) for a, b in pairs]
        )
    return out


def _add(bank: Bank, p: AtomsBatch, where: Any) -> None:
    """Add atoms to bins, each bin at most once."""
    for atoms, bins in where if isinstance(where, list) else [where]:
        for k, x in enumerate((p.a2, p.b2, p.ab)):
            bank.antenna[:, k, bins] += x[..., atoms]
        for k, x in ((0, p.Fa), (2, p.Fb)):
            bank.data[:, k, bins] += x.real[:, atoms]
            bank.data[:, k + 1, bins] += x.imag[:, atoms]
