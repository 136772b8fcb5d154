"""Samples of a kernel at azimuths of every pair of rings, and the cosines that transform them into modes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.core.cpu.simd import BYTES
from skysieve.sphere.ring_pairs import Pairs, chord_terms

from .simd import BAND_VECTORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.grids.grid import RingTable
    from skysieve.sphere.kernels.radial import Radial

JIT: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def radial_value(x, xmax, scale, cells, positive):
    """The value of a `Radial` at one squared chord, from its table."""
    if x > xmax:
        return 0.0
    t = math.sqrt(max(x, 0.0)) * scale
    c = min(int(t), cells.shape[0] - 1)
    u = 2.0 * (t - c) - 1.0
    v = cells[c, 5]
    v = v * u + cells[c, 4]
    v = v * u + cells[c, 3]
    v = v * u + cells[c, 2]
    v = v * u + cells[c, 1]
    v = v * u + cells[c, 0]
    return max(v, 0.0) if positive else v


@njit(**JIT)
def count_samples(a, b, xmax, n, h, out):
    """Number of samples of each pair within the support; ``h`` is 1 for azimuths that are shifted by half a step."""
    for p in range(len(a)):
        if a[p] > xmax:
            out[p] = 0
            continue
        s = (xmax - a[p]) / b[p] if b[p] > 0 else 2.0
        most = n[p] // 2 if h[p] else n[p] // 2 + 1
        if s >= 1.0:
            out[p] = most
        else:
            last = math.asin(math.sqrt(s)) * n[p] / math.pi - (0.5 if h[p] else 0.0)
            out[p] = min(most, max(0, math.floor(last + 1e-9) + 1))


@njit(**JIT)
def fill_samples(a, b, xmax, scale, cells, positive, n, h, first, count, out):
    """``K / n`` at the azimuths of each pair, doubled if an azimuth and its negative are different points."""
    for p in range(len(a)):
        step = math.pi / n[p]
        for j in range(count[p]):
            s = math.sin(step * (j + 0.5 * h[p]))
            once = h[p] == 0 and (j == 0 or 2 * j == n[p])
            k = radial_value(a[p] + b[p] * s * s, xmax, scale, cells, positive)
            out[first[p] + j] = k * ((1.0 if once else 2.0) / n[p])


@njit(**JIT)
def fill_spin_samples(
    ta, tb, a, b, xmax, scale, cells, n, h, first, count, even, odd
):  # fmt: skip
    """As `fill_samples` for spin 2, where the kernel rotates Q and U by the angle between the two pixels' meridians.

    The kernel is ``p^4 G(x)``, ``p = cos(phi/2) cos((ta - tb)/2) - i sin(phi/2) cos((ta + tb)/2)``; its real part is
    even in phi and its imaginary part odd.
    """
    for p in range(len(a)):
        step = math.pi / n[p]
        c0, c1 = math.cos(0.5 * (ta[p] - tb[p])), math.cos(0.5 * (ta[p] + tb[p]))
        for j in range(count[p]):
            half = step * (j + 0.5 * h[p])
            s = math.sin(half)
            once = h[p] == 0 and (j == 0 or 2 * j == n[p])
            k = radial_value(a[p] + b[p] * s * s, xmax, scale, cells, False) * ((1.0 if once else 2.0) / n[p])
            re, im = math.cos(half) * c0, -s * c1
            re, im = re * re - im * im, 2 * re * im
            re, im = re * re - im * im, 2 * re * im
            even[first[p] + j] = k * re
            odd[first[p] + j] = k * im


@njit(**JIT)
def fill_cosines(n, h, own, last, rows, width, cosines, out, start):
    """Write ``cos(2 pi m (j + h / 2) / n)``, looked up in ``cosines``, which holds cosines (or sines) of ``pi k / n``.

    For a ring's own azimuths the value at m = n / 2 is halved, and values above it are 0.
    """
    for j in range(rows):
        twice = 2 * j + h
        for m in range(width):
            value = 0.0
            if m <= last:
                value = cosines[(m * twice) % (2 * n)]
                if own and 2 * m == n:
                    value *= 0.5
            out[start + j * width + m] = value


@dataclass(frozen=True)
class KernelTables:
    """The pairs of one kernel with their samples, in the form that `cpu.simd.band_sum` needs."""

    pairs: Pairs
    cosines: NDArray[Any]
    samples: NDArray[Any]
    first_sample: NDArray[np.int64]
    n_samples: NDArray[np.int64]
    first_cosine: NDArray[np.int64]
    cosine_row: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        held = (self.cosines, self.samples, self.first_sample, self.n_samples, self.first_cosine, self.cosine_row)
        return sum(x.nbytes for x in held)

    @property
    def multiplications(self) -> float:
        """Fused multiply-adds for one component of one map."""
        return multiplications(self.pairs, self.n_samples)


def multiplications(pairs: Pairs, n_samples: NDArray[np.int64]) -> float:
    """Fused multiply-adds for one component of one map."""
    counts = (pairs.last - pairs.first)[pairs.outputs]
    modes = np.repeat(pairs.modes[pairs.outputs], counts).astype(np.float64)
    return float((modes * (n_samples + 4)).sum())


def padded(modes: NDArray[np.int64], dtype: Any) -> NDArray[np.int64]:
    """Elements of a row for modes 0 .. ``modes``: a multiple of the number of modes of one call of `band_sum`."""
    unit = BAND_VECTORS * BYTES // np.dtype(dtype).itemsize
    return np.asarray(-(-(modes + 1) // unit) * unit, np.int64)


@dataclass(frozen=True)
class Places:
    """Where the kernel of each pair is sampled.

    Attributes
    ----------
    o, i : numpy.ndarray
        Output and input ring.
    a, b : numpy.ndarray
        See `chord_terms`.
    n, h : numpy.ndarray
        Number of azimuths of the circle, and 1 if they are shifted by half a step.
    n_samples : numpy.ndarray
        Number of samples within the support.
    """

    o: NDArray[np.int64]
    i: NDArray[np.int64]
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    n: NDArray[np.int64]
    h: NDArray[np.int64]
    n_samples: NDArray[np.int64]

    @classmethod
    def of(cls, table: RingTable, radial: Radial, pairs: Pairs) -> Places:
        """The places of all pairs."""
        counts = (pairs.last - pairs.first)[pairs.outputs]
        o = np.repeat(pairs.outputs, counts)
        i = np.arange(len(o)) - np.repeat(pairs.pair, counts) + np.repeat(pairs.first[pairs.outputs], counts)
        a, b = chord_terms(table.theta, o, i)
        sizes, halves = np.array(pairs.tables, np.int64).reshape(-1, 2).T
        n, h = sizes[pairs.table], np.maximum(halves, 0)[pairs.table]
        n_samples = np.empty(len(o), np.int64)
        count_samples(a, b, radial.xmax, n, h, n_samples)
        return cls(o, i, a, b, n, h, n_samples)


def make_tables(table: RingTable, radial: Radial, pairs: Pairs, dtype: Any, spin: int = 0) -> list[KernelTables]:
    """Sample the kernel for all pairs; angles and samples are computed in float64.

    The result has one table of cosines and, for spin 2, a second table of sines for the odd part of the kernel.
    """
    p = Places.of(table, radial, pairs)
    o, i, n, h, n_samples, sizes = p.o, p.i, p.n, p.h, p.n_samples, len(pairs.tables)
    first = np.concatenate([[0], np.cumsum(n_samples)]).astype(np.int64)
    samples = [np.zeros(max(1, int(first[-1])), np.float64) for _ in range(2 if spin else 1)]
    scale = len(radial.cells) / math.sqrt(radial.xmax)
    shared = (p.a, p.b, radial.xmax, scale, radial.cells)
    if spin:
        fill_spin_samples(table.theta[i], table.theta[o], *shared, n, h, first[:-1], n_samples, *samples)
    else:
        fill_samples(*shared, radial.positive, n, h, first[:-1], n_samples, samples[0])

    lengths = padded(pairs.modes, dtype)
    width, rows = np.zeros(sizes, np.int64), np.zeros(sizes, np.int64)
    np.maximum.at(width, pairs.table, np.minimum(lengths[o], lengths[i]))
    np.maximum.at(rows, pairs.table, n_samples)
    starts = np.concatenate([[0], np.cumsum(width * rows)]).astype(np.int64)
    found = []
    for part, wave in zip(samples, (np.cos, np.sin), strict=False):
        cosines = np.zeros(max(1, int(starts[-1])), dtype)
        for t, (size, half) in enumerate(pairs.tables):
            own = half >= 0
            last = size // 2 if own else size // 2 - 1  # higher modes of the samples repeat lower ones
            turn = wave(np.arange(2 * size) * (math.pi / size))
            fill_cosines(size, max(half, 0), own, last, rows[t], width[t], turn, cosines, starts[t])
        found.append(
            KernelTables(
                pairs, cosines, part.astype(dtype), first[:-1].copy(), n_samples, starts[:-1][pairs.table],
                width[pairs.table],
            )
        )  # fmt: skip
    return found
