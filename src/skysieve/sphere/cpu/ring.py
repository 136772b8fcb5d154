"""The ring engine on the CPU: Fourier transforms of the rings, sums over rings for each mode, inverse transforms.

For each map the engine reads the map, writes the modes, reads them (once from memory, then from the cache), and writes
the result.  A pair of rings costs, for each mode, one multiply-add for each sample of the kernel (about ten, for any
width of the kernel) and four for the two hemispheres.  The kernel's coefficients are recomputed for every map, because
reading stored ones would need more memory bandwidth.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.core.cpu.simd import BYTES
from skysieve.sphere.ring_pairs import Pairs, make_pairs

from .simd import BAND_VECTORS, band_sum
from .tables import JIT, KernelTables, Places, make_tables, multiplications, padded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.tasks import TaskPool
    from skysieve.sphere.contract import Spec

ROWS = 8
"""Output rings of one task."""
_BLOCK = 4
"""Calls of `band_sum` for each row of a task before the next row: the modes then stay in the cache."""
TURN = 1.2
"""Ratio of the time for Q and U to the time without `turn`."""
_SEED = 64
"""Steps after which the rotation in `phases` is restarted."""
WHOLE = 1e-10
"""eps above which equal rings use all modes in float64, because truncated modes would leave more than rounding errors
beyond the support."""
NS_TRANSFORM, NS_SUM = 0.9, 0.06
"""Nanoseconds of one core for a pixel of a transform, divided by log2 of its length, and for one multiply-add of the
sums; float32, measured on a core with 64-byte vectors at nside 512 and 2048."""


@njit(**JIT)
def phases(m1, angle, out_re, out_im):
    """``exp(i m angle)`` for m = 0 .. m1 - 1 by rotation, restarted every `_SEED` steps."""
    c, s = math.cos(angle), math.sin(angle)
    x, y = 1.0, 0.0
    for m in range(m1):
        if m % _SEED == 0:
            x, y = math.cos(m * angle), math.sin(m * angle)
        out_re[m], out_im[m] = x, y
        x, y = x * c - y * s, x * s + y * c


@njit(**JIT)
def unfold(z, n, last, gap, weight, turned, pr, pi, modes, at):
    """Modes 0 .. ``last`` of one ring from its transform ``z`` (n // 2 + 1), with the phase of its first azimuth."""
    half = n // 2
    top = min(last, half)
    if turned:
        for m in range(top + 1):
            re, im = z[m].real * weight, z[m].imag * weight
            modes[at + m] = re * pr[m] + im * pi[m]
            modes[at + gap + m] = im * pr[m] - re * pi[m]
    else:
        for m in range(top + 1):
            modes[at + m] = z[m].real * weight
            modes[at + gap + m] = z[m].imag * weight
    q = top
    for m in range(top + 1, last + 1):
        q += 1
        if q == n:
            q = 0
        if q <= half:
            re, im = z[q].real * weight, z[q].imag * weight
        else:
            re, im = z[n - q].real * weight, -z[n - q].imag * weight
        if turned:
            re, im = re * pr[m] + im * pi[m], im * pr[m] - re * pi[m]
        modes[at + m] = re
        modes[at + gap + m] = im
    for m in range(last + 1, gap):
        modes[at + m] = modes[at + gap + m] = 0


@njit(**JIT)
def fold(sums, at, row, last, n, turned, pr, pi, z):
    """The transform (n // 2 + 1) of one output ring: modes beyond n / 2 are added to the modes that they repeat."""
    half = n // 2
    top = min(last, half)
    for m in range(top + 1):
        re, im = sums[at + m], sums[at + row + m]
        if turned:
            re, im = re * pr[m] - im * pi[m], re * pi[m] + im * pr[m]
        z[m] = complex(re, im)
    for m in range(top + 1, half + 1):
        z[m] = 0
    if 2 * half == n and top == half and half > 0:
        z[half] = complex(2 * z[half].real, 0.0)
    q = top
    for m in range(top + 1, last + 1):
        q += 1
        if q == n:
            q = 0
        re, im = sums[at + m], sums[at + row + m]
        if turned:
            re, im = re * pr[m] - im * pi[m], re * pi[m] + im * pr[m]
        if q == 0 or 2 * q == n:
            z[q] += complex(2 * re, 0.0)
        elif q <= half:
            z[q] += complex(re, im)
        else:
            z[n - q] += complex(re, -im)
    if n == 1:
        z[0] = complex(z[0].real, 0.0)


@njit(**JIT)
def turn(sums, rows, row):
    """Combine the even and odd sums A and B of q and u into Q and U: ``Q = A q + i B u``, ``U = A u - i B q``.

    The odd part changes its sign in the mirror image.  ``sums`` holds A q, A u, B q, B u; the first two become Q and U.
    """
    for r in range(rows):
        for side in range(2):
            sign = 1 if side == 0 else -1
            re = (4 * r + 2 * side) * row
            im = re + row
            for m in range(row):
                sums[0, re + m] -= sign * sums[3, im + m]
                sums[0, im + m] += sign * sums[3, re + m]
                sums[1, re + m] += sign * sums[2, im + m]
                sums[1, im + m] -= sign * sums[2, re + m]


@njit(**JIT)
def band(
    a, b, outputs, pair, first, last, place, mirror, gap, length, cosines, samples, first_sample, n_samples,
    first_cosine, cosine_row, modes, unit, sums, row,
):  # fmt: skip
    """Modes of output rings a .. b - 1 of the list, and of their mirror images, in rows of ``row`` elements."""
    most = 0
    for r in range(a, b):
        most = max(most, length[outputs[r]])
    for m0 in range(0, most, _BLOCK * unit):
        for r in range(a, b):
            o = outputs[r]
            for m in range(m0, min(length[o], m0 + _BLOCK * unit), unit):
                band_sum(
                    cosines, samples, first_sample, n_samples, first_cosine, cosine_row, modes, place, mirror, gap,
                    length, pair[r], first[o], last[o], m, sums, (r - a) * 4 * row, row,
                )  # fmt: skip


def transform_seconds(spec: Spec) -> float:
    """Expected seconds of one map on one core without the sums over rings; known before the engine is set up."""
    n, passes = spec.table.n, 1 + len(spec.kernels)
    work = float((n * np.log2(np.maximum(n, 2))).sum()) * (2 if spec.spin else 1)
    some = n[: (len(n) + 1) // 2] if spec.table.symmetric else n
    lengths = np.diff(np.flatnonzero(np.concatenate([[True], some[1:] != some[:-1], [True]])))
    runs = int((-(-lengths // ROWS)).sum())
    return passes * (1e-9 * NS_TRANSFORM * _cost_factor(spec) * work + 8e-5 * runs)


def pairs_of(spec: Spec) -> list[Pairs]:
    """The pairs of rings of each kernel.

    Raises
    ------
    NotBandLimited
    """
    whole = spec.dtype == np.float64 and spec.eps > WHOLE
    t = spec.table
    return [make_pairs(t, r, spec.eps, t.symmetric, spec.rings, spec.spin, whole) for r in spec.radials]


def ring_seconds(spec: Spec, pairs: list[Pairs]) -> float:
    """Expected seconds of one map on one core.  The kernels are not sampled, which takes longest for wide ones."""
    sums = sum(
        multiplications(p, Places.of(spec.table, r, p).n_samples) for r, p in zip(spec.radials, pairs, strict=True)
    )
    return _seconds(spec, sums * (4 if spec.spin else 1))


def _seconds(spec: Spec, sums: float) -> float:
    return transform_seconds(spec) + 1e-9 * NS_SUM * _cost_factor(spec) * sums


def _cost_factor(spec: Spec) -> float:
    """Time relative to that of a scalar map in float32: wider numbers, and combining the sums of Q and U."""
    return spec.dtype.itemsize / 4 * (TURN if spec.spin else 1.0)


class RingEngine:
    """Ring transforms and sums over rings for all kernels of a `Spec`.

    Parameters
    ----------
    spec : Spec
    pool : TaskPool
    pairs : list of Pairs, optional
        Result of `pairs_of`.
    """

    name = "ring"

    def __init__(self, spec: Spec, pool: TaskPool, pairs: list[Pairs] | None = None) -> None:
        self.spec, self.pool = spec, pool
        t = spec.table
        self.mirrored = t.symmetric
        rings = len(t.n)
        found = pairs_of(spec) if pairs is None else pairs
        tables = [make_tables(t, r, p, spec.dtype, spec.spin) for r, p in zip(spec.radials, found, strict=True)]
        self.tables: list[KernelTables] = [both[0] for both in tables]
        self.odd: list[KernelTables] = [both[1] for both in tables if spec.spin]
        self.parts = 2 if spec.spin else 1
        self.lengths = [padded(p.modes, spec.dtype) for p in found]
        self.modes = np.max([p.modes for p in found], axis=0)
        self.gap = padded(self.modes, spec.dtype)
        self.place = np.concatenate([[0], np.cumsum(2 * self.gap)]).astype(np.int64)
        self.size = int(self.place[-1])
        self.place = self.place[:-1].copy()
        self.outputs = found[0].outputs
        self.inputs = np.arange((rings + 1) // 2 if self.mirrored else rings, dtype=np.int64)
        # without symmetry the "mirror image" is the ring itself: its sums are computed and not used
        self.mirror = self.place[::-1].copy() if self.mirrored else self.place
        self.unit = BAND_VECTORS * BYTES // spec.dtype.itemsize
        self.row = int(self.gap.max())
        self.runs = _runs(t.n[self.inputs], ROWS)
        self.tiles = [(k, min(k + ROWS, len(self.outputs))) for k in range(0, len(self.outputs), ROWS)]
        self._modes: NDArray[Any] | None = None
        self._local = threading.local()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, without maps."""
        scratch = (4 * ROWS * self.parts**2 + 4) * self.row * self.spec.dtype.itemsize * self.pool.workers
        held = sum(t.nbytes for t in (*self.tables, *self.odd))
        return held + self.parts * self.size * self.spec.dtype.itemsize + scratch

    def seconds(self) -> float:
        """Expected seconds of one map on one core."""
        sums = self.parts * sum(k.multiplications for k in (*self.tables, *self.odd))
        return _seconds(self.spec, sums)

    def convolve(self, maps: NDArray[Any], out: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """See `contract.Engine.convolve`."""
        with self._lock:
            if self._modes is None:
                self._modes = np.empty((self.parts, self.size), self.spec.dtype)
            modes = self._modes
            for x, y in zip(maps, out, strict=True):
                for part, held in zip(x.reshape(self.parts, -1), modes, strict=True):
                    self.pool.run([partial(self._forward, part, w_in, held, run) for run in self.runs])
                for k in range(len(self.tables)):
                    parts = y[k].reshape(self.parts, -1)
                    self.pool.run([partial(self._back, k, modes, w_out, parts, tile) for tile in self.tiles])

    def _forward(self, x: NDArray[Any], w: NDArray[Any], modes: NDArray[Any], run: tuple[int, int]) -> None:
        from scipy.fft import rfft  # imported here, because it takes long and other methods do not need it

        t, (a, b) = self.spec.table, run
        rings = self._rings(self.inputs[a:b])
        used = self.spec.rings
        if used is not None:
            for r in rings:
                if not used[r]:
                    modes[self.place[r] : self.place[r] + 2 * self.gap[r]] = 0
            rings = [r for r in rings if used[r]]
            if not rings:
                return
        n = int(t.n[rings[0]])
        buffer = np.empty((len(rings), n), self.spec.dtype)
        for line, r in zip(buffer, rings, strict=True):
            line[:] = x[t.start[r] : t.start[r] + n]
        z = rfft(buffer, axis=-1, overwrite_x=True)
        pr, pi = self._phases()
        held = (0, 0.0)
        for line, r in zip(z, rings, strict=True):
            phi0, last = float(t.phi0[r]), int(self.modes[r])
            if phi0 and held != (last, phi0):
                phases(last + 1, phi0, pr, pi)
                held = (last, phi0)
            unfold(line, n, last, self.gap[r], w[r], phi0 != 0, pr, pi, modes, self.place[r])

    def _back(self, k: int, modes: NDArray[Any], w: NDArray[Any], out: NDArray[Any], tile: tuple[int, int]) -> None:
        a, b = tile
        size = 4 * ROWS * self.row
        sums = self._scratch("sums", self.parts**2 * size).reshape(-1, size)
        self._band(self.tables[k], k, tile, modes[0], sums[0])
        if self.parts == 2:
            self._band(self.tables[k], k, tile, modes[1], sums[1])
            self._band(self.odd[k], k, tile, modes[0], sums[2])
            self._band(self.odd[k], k, tile, modes[1], sums[3])
            turn(sums, b - a, self.row)
        for part, y in zip(sums, out, strict=False):
            self._store(k, part, w, y, tile)

    def _band(
        self, table: KernelTables, k: int, tile: tuple[int, int], modes: NDArray[Any], sums: NDArray[Any]
    ) -> None:
        p = table.pairs
        band(
            *tile, self.outputs, p.pair, p.first, p.last, self.place, self.mirror, self.gap, self.lengths[k],
            table.cosines, table.samples, table.first_sample, table.n_samples, table.first_cosine, table.cosine_row,
            modes, self.unit, sums, self.row,
        )  # fmt: skip

    def _store(self, k: int, sums: NDArray[Any], w: NDArray[Any], y: NDArray[Any], tile: tuple[int, int]) -> None:
        from scipy.fft import irfft

        t, p, (a, b) = self.spec.table, self.tables[k].pairs, tile
        pr, pi = self._phases()
        for c, d in _runs(t.n[self.outputs[a:b]], b - a):
            rings = self._rings(self.outputs[a + c : a + d])
            n = int(t.n[rings[0]])
            z = np.empty((len(rings), n // 2 + 1), np.result_type(self.spec.dtype, np.complex64))
            held = (0, 0.0)
            places = self._places(self.outputs[a + c : a + d], c)
            for j, r in enumerate(rings):
                phi0, last = float(t.phi0[r]), int(p.modes[r])
                if phi0 and held != (last, phi0):
                    phases(last + 1, phi0, pr, pi)
                    held = (last, phi0)
                fold(sums, places[j], self.row, last, n, phi0 != 0, pr, pi, z[j])
            lines = irfft(z, n, axis=-1, norm="forward", overwrite_x=True)
            for line, r in zip(lines, rings, strict=True):
                np.multiply(line, w[r], out=y[t.start[r] : t.start[r] + n])

    def _rings(self, north: NDArray[np.int64]) -> list[int]:
        """The rings of a list, followed by their mirror images."""
        total = len(self.spec.table.n)
        listed = [int(r) for r in north]
        return listed + [total - 1 - r for r in listed if 2 * r != total - 1] if self.mirrored else listed

    def _places(self, north: NDArray[np.int64], skipped: int) -> list[int]:
        """Start of the sums of each ring of `_rings`: each ring of the list has four rows, two for its mirror image."""
        total = len(self.spec.table.n)
        listed = [4 * (skipped + k) * self.row for k in range(len(north))]
        mirrored = [4 * (skipped + k) * self.row + 2 * self.row for k, r in enumerate(north) if 2 * r != total - 1]
        return listed + mirrored if self.mirrored else listed

    def _phases(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        both = self._scratch("phases", 2 * (self.row + 1), np.float64)
        return both[: self.row + 1], both[self.row + 1 :]

    def _scratch(self, name: str, size: int, dtype: Any = None) -> NDArray[Any]:
        held = self._local.__dict__.get(name)
        if held is None:
            held = self._local.__dict__[name] = np.empty(size, dtype or self.spec.dtype)
        return held


def _runs(n: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Ranges of at most ``most`` neighbouring rings of equal length."""
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(n)) + 1, [len(n)]])
    return [(int(k), int(min(k + most, b))) for a, b in pairwise(cuts) for k in range(a, b, most)]
