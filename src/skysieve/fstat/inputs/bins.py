"""The atoms of all detectors of one template, added up in common time bins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host

from .atoms import Atoms
from .files import AtomsLike, as_list
from .grid import Times

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Bins", "bin_atoms", "merge"]

MOST_BINS = 10_000_000
"""Most bins of a data set: 570 years of half hours.  A larger number indicates a wrong time or a tiny `tatom`."""


@dataclass(frozen=True)
class Bins:
    """The sums of the atoms of all detectors in time bins of width `tatom`.

    Attributes
    ----------
    t_start : int
        GPS second at which bin 0 starts: the earliest SFT.
    tatom : int
        Width of a bin.
    x : numpy.ndarray, shape (7, n)
        Rows a2, b2, ab, Re Fa, Im Fa, Re Fb, Im Fb; exactly zero in bins without data.
    occupied : numpy.ndarray of bool, shape (n,)
        Bins with positive weight: an SFT with ``a2 = b2 = 0`` holds no data.
    """

    t_start: int
    tatom: int
    x: NDArray[Any]
    occupied: NDArray[np.bool_]

    @property
    def n(self) -> int:
        """Number of bins."""
        return int(self.x.shape[1])

    @property
    def t_end(self) -> int:
        """GPS second at which the last bin ends."""
        return self.t_start + self.n * self.tatom


def refuse_long(times: Times) -> None:
    """Raise ValueError for a data set of more than `MOST_BINS` bins."""
    if times.n > MOST_BINS:
        raise ValueError(f"atoms span {times.n} bins of {times.tatom} s: more than {MOST_BINS}; is a time wrong?")


def bin_atoms(atoms: AtomsLike) -> Bins:
    """Sum the atoms of all detectors in common bins, in the order of the detectors and in the precision of the atoms.

    An SFT that starts at ``s`` belongs to bin ``floor((s - t_start) / tatom)``, where ``t_start`` is the earliest start
    of all.  In float32 the sums are, bit for bit, those of LALPulsar's merged atoms.
    """
    found = as_list(atoms)
    width = found[0].tatom
    times = Times.of([a.t for a in found], width)
    start, n = times.t_start, times.n
    refuse_long(times)
    dtype = np.result_type(*(a.a2.dtype for a in found))
    x = np.zeros((7, n), dtype)
    for a in found:
        at = (a.t - start) // width
        fa, fb = to_host(a.Fa), to_host(a.Fb)
        rows = (to_host(a.a2), to_host(a.b2), to_host(a.ab), fa.real, fa.imag, fb.real, fb.imag)
        distinct = bool((np.diff(at) > 0).all())  # each bin has at most one atom: plain addition is correct, and faster
        whole = slice(int(at[0]), int(at[-1]) + 1) if distinct and at[-1] - at[0] == len(at) - 1 else at
        for row, values in zip(x, rows, strict=True):
            if distinct:
                row[whole] += values
            else:
                np.add.at(row, at, values)
    return Bins(start, width, x, (x[0] > 0) | (x[1] > 0))


def merge(atoms: AtomsLike) -> Atoms:
    """Merge the atoms of several detectors: all quantities are added in common time bins.

    Parameters
    ----------
    atoms : Atoms, path, or sequence of them
        One entry for each detector, all of one SFT length; their times need not be aligned.

    Returns
    -------
    Atoms
        One atom for each bin that holds an SFT, also of weight zero; merging it again changes nothing.

    Raises
    ------
    ValueError
        There are no atoms, or their SFT lengths differ.

    Examples
    --------
    >>> h1 = Atoms([0, 1800], [1, 1], [1, 1], [0, 0], [1, 1], [1, 1])
    >>> l1 = Atoms([700, 4300], [1, 1], [1, 1], [0, 0], [1, 1], [1, 1], detector="L1")
    >>> both = merge([h1, l1])
    >>> both.detector, both.t.tolist(), both.a2.tolist()
    ('H1+L1', [0, 1800, 3600], [2.0, 1.0, 1.0])
    """
    found = as_list(atoms)
    bins = bin_atoms(found)
    held = np.unique(np.concatenate([(a.t - bins.t_start) // bins.tatom for a in found]))
    a2, b2, ab, *f = bins.x[:, held]
    return Atoms(
        bins.t_start + held * bins.tatom,
        a2,
        b2,
        ab,
        f[0] + 1j * f[1],
        f[2] + 1j * f[3],
        tatom=bins.tatom,
        detector="+".join(a.detector for a in found),
    )
