"""The ring engine on the CPU: Fourier transforms of the rings, sums over rings for each mode, inverse transforms.

For each map the engine reads the map, writes the modes, reads them (once from memory, then from the cache), and writes
the result.  A pair of rings costs, for each mode, one multiply-add for each sample of the kernel (about ten, for any
width of the kernel) and four for the two hemispheres.  The kernel's coefficients are recomputed for every map, because
reading stored ones would need more memory bandwidth.
"""

from __future__ import annotations

import math
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

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
    from skysieve.sphere.grids.grid import RingTable

ROWS = 8
"""Output rings of one task."""
MOST_PIXELS, FEWEST_TASKS = 1 << 15, 64
"""Pixels of a task of transforms, and tasks into which a smaller map is divided."""
SMALL, PIXELS_A_THREAD = 1 << 14, 1 << 11
"""Mean pixels of a block below which few threads transform at a time, and number of them for which one more does."""
_BLOCK = 4
"""Calls of `band_sum` for each row of a task before the next row: the modes then stay in the cache."""
TURN = 1.2
"""Ratio of the time for Q and U to the time without `turn`."""
_SEED = 64
"""Steps after which the rotation in `phases` is restarted."""
WHOLE = 1e-10
"""eps above which equal rings use all modes in float64, because truncated modes would leave more than rounding errors
beyond the support."""
NS_TRANSFORM, NS_SUM, NS_RUN = 0.7, 0.06, 18_000
"""Nanoseconds of one core for a pixel of a transform, divided by log2 of its length, for one multiply-add of the sums,
and for the calls of the transforms of up to `ROWS` rings; float32, measured on a core with 64-byte vectors at nside 32
to 2048."""


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
def unfold_rings(z, rings, n, phi0, last, gap, weight, pr, pi, modes, place):
    """`unfold` for rings of one length, whose transforms are the rows of ``z``; ``pr`` and ``pi`` are overwritten."""
    known, angle = -1, 0.0
    for j, r in enumerate(rings):
        if phi0[r] != 0 and (known < last[r] or angle != phi0[r]):
            known, angle = last[r], phi0[r]
            phases(known + 1, angle, pr, pi)
        unfold(z[j], n, last[r], gap[r], weight[r], phi0[r] != 0, pr, pi, modes, place[r])


@njit(**JIT)
def fold_rings(sums, places, row, rings, n, phi0, last, pr, pi, z):
    """`fold` for output rings of one length, whose sums begin at ``places``; ``pr`` and ``pi`` are overwritten."""
    known, angle = -1, 0.0
    for j, r in enumerate(rings):
        if phi0[r] != 0 and (known < last[r] or angle != phi0[r]):
            known, angle = last[r], phi0[r]
            phases(known + 1, angle, pr, pi)
        fold(sums, places[j], row, last[r], n, phi0[r] != 0, pr, pi, z[j])


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
    return 1e-9 * passes * (NS_TRANSFORM * _cost_factor(spec) * work + NS_RUN * runs)


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


@dataclass(frozen=True)
class Block:
    """Rings of one length that are transformed together.

    Attributes
    ----------
    rings : numpy.ndarray of int64
    n : int
        Pixels of each ring.
    starts : list of int
        First pixel of each ring.
    neighbours : bool
        Whether the rings follow one another in a map.
    places : numpy.ndarray of int64
        Where the sums of each ring begin in those of a task.
    """

    rings: NDArray[np.int64]
    n: int
    starts: list[int]
    neighbours: bool
    places: NDArray[np.int64]

    @classmethod
    def of(cls, table: RingTable, rings: NDArray[np.int64], places: NDArray[np.int64]) -> Self:
        """The block of some rings, which have the same length."""
        n, starts = int(table.n[rings[0]]), table.start[rings].tolist()
        return cls(rings, n, starts, starts[-1] - starts[0] == (len(rings) - 1) * n, places)

    @property
    def pixels(self) -> int:
        """Pixels of all rings."""
        return self.n * len(self.rings)

    def of_map(self, x: NDArray[Any]) -> NDArray[Any]:
        """The rings of a map as rows: a view if they are neighbours, otherwise a copy."""
        if self.neighbours:
            return x[self.starts[0] : self.starts[0] + self.pixels].reshape(-1, self.n)
        return np.concatenate([x[k : k + self.n] for k in self.starts]).reshape(-1, self.n)

    def store(self, lines: NDArray[Any], w: NDArray[np.float64], y: NDArray[Any]) -> None:
        """Write rows, multiplied by the weights of their rings, to a map."""
        if self.neighbours:
            np.multiply(lines, w[self.rings, None], out=self.of_map(y), casting="same_kind")
            return
        for line, k, weight in zip(lines, self.starts, w[self.rings], strict=True):
            np.multiply(line, weight, out=y[k : k + self.n])


@dataclass(frozen=True)
class Task:
    """Output rings ``first`` to ``last`` - 1 of the list or, before the sums, input rings; and their blocks."""

    first: int
    last: int
    blocks: list[Block]

    @property
    def small(self) -> bool:
        """Whether the interpreter takes a good part of the time, because the blocks are small."""
        return sum(block.pixels for block in self.blocks) < SMALL * len(self.blocks)


class RingEngine:
    """Ring transforms and sums over rings for all kernels of a `Spec`.

    Parameters
    ----------
    spec : Spec
    pool : TaskPool
    pairs : list of Pairs, optional
        Result of `pairs_of`.

    Attributes
    ----------
    threads : int
        Threads that share a map.
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
        self.groups = [self._task(self.inputs, a, b, spec.rings) for a, b in _groups(t.n[self.inputs])]
        self.tiles = [
            self._task(self.outputs, k, min(k + ROWS, len(self.outputs))) for k in range(0, len(self.outputs), ROWS)
        ]
        small = [block.pixels for task in self.tiles if task.small for block in task.blocks]
        self._gate = threading.BoundedSemaphore(max(2, int(np.mean(small or [0])) // PIXELS_A_THREAD))
        self.threads = pool.sharing(self.seconds() / (1 + len(self.tables)))
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
                self._modes = np.zeros((self.parts, self.size), self.spec.dtype)  # those of unused rings stay 0
            modes = self._modes
            for x, y in zip(maps, out, strict=True):
                for part, held in zip(x.reshape(self.parts, -1), modes, strict=True):
                    tasks = [partial(self._forward, part, w_in, held, task) for task in self.groups]
                    self.pool.run(tasks, most=self.threads)
                for k in range(len(self.tables)):
                    parts = y[k].reshape(self.parts, -1)
                    tasks = [partial(self._back, k, modes, w_out, parts, tile) for tile in self.tiles]
                    self.pool.run(tasks, most=self.threads)

    def _forward(self, x: NDArray[Any], w: NDArray[np.float64], modes: NDArray[Any], task: Task) -> None:
        from scipy.fft import rfft  # imported here, because it takes long and other methods do not need it

        with self._turn_of(task):
            for block in task.blocks:
                z = rfft(block.of_map(x), axis=-1)
                unfold_rings(
                    z, block.rings, block.n, self.spec.table.phi0, self.modes, self.gap, w, *self._phases(), modes,
                    self.place,
                )  # fmt: skip

    def _turn_of(self, task: Task) -> AbstractContextManager[Any]:
        """What a task holds while it transforms rings: one of few places if its blocks are small.

        Many threads that need the interpreter often would wait for it, and for one another, most of the time.
        """
        return self._gate if task.small else nullcontext()

    def _back(self, k: int, modes: NDArray[Any], w: NDArray[Any], out: NDArray[Any], task: Task) -> None:
        size = 4 * ROWS * self.row
        sums = self._scratch("sums", self.parts**2 * size).reshape(-1, size)
        self._band(self.tables[k], k, task, modes[0], sums[0])
        if self.parts == 2:
            self._band(self.tables[k], k, task, modes[1], sums[1])
            self._band(self.odd[k], k, task, modes[0], sums[2])
            self._band(self.odd[k], k, task, modes[1], sums[3])
            turn(sums, task.last - task.first, self.row)
        with self._turn_of(task):
            for part, y in zip(sums, out, strict=False):
                self._store(k, part, w, y, task.blocks)

    def _band(self, table: KernelTables, k: int, task: Task, modes: NDArray[Any], sums: NDArray[Any]) -> None:
        p = table.pairs
        band(
            task.first, task.last, self.outputs, p.pair, p.first, p.last, self.place, self.mirror, self.gap,
            self.lengths[k], table.cosines, table.samples, table.first_sample, table.n_samples, table.first_cosine,
            table.cosine_row, modes, self.unit, sums, self.row,
        )  # fmt: skip

    def _store(self, k: int, sums: NDArray[Any], w: NDArray[np.float64], y: NDArray[Any], blocks: list[Block]) -> None:
        from scipy.fft import irfft

        for block in blocks:
            z = np.empty((len(block.rings), block.n // 2 + 1), np.result_type(self.spec.dtype, np.complex64))
            fold_rings(
                sums, block.places, self.row, block.rings, block.n, self.spec.table.phi0, self.tables[k].pairs.modes,
                *self._phases(), z,
            )  # fmt: skip
            block.store(irfft(z, block.n, axis=-1, norm="forward", overwrite_x=True), w, y)

    def _task(self, listed: NDArray[np.int64], first: int, last: int, used: NDArray[np.bool_] | None = None) -> Task:
        """The task of the rings ``listed[first:last]`` and their mirror images, if they are ``used``.

        Mirror images have blocks of their own, unless a block has a single ring.  Each ring has four rows of sums, two
        of them for its mirror image.
        """
        t, blocks = self.spec.table, list[Block]()
        for a, b in _runs(t.n[listed[first:last]], ROWS):
            north, places = listed[first + a : first + b], 4 * self.row * np.arange(a, b)
            parts = [(north, places)]
            if self.mirrored:
                south = len(t.n) - 1 - north[::-1]
                other = south > north[-1]  # not the equator
                parts.append((south[other], places[::-1][other] + 2 * self.row))
                if len(north) == 1:
                    parts = [(np.concatenate([r for r, _ in parts]), np.concatenate([k for _, k in parts]))]
            for rings, at in parts:
                wanted = slice(None) if used is None else used[rings]
                if len(rings[wanted]):
                    blocks.append(Block.of(t, rings[wanted], at[wanted]))
        return Task(first, last, blocks)

    def _phases(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        both = self._scratch("phases", 2 * (self.row + 1), np.float64)
        return both[: self.row + 1], both[self.row + 1 :]

    def _scratch(self, name: str, size: int, dtype: Any = None) -> NDArray[Any]:
        held = self._local.__dict__.get(name)
        if held is None:
            held = self._local.__dict__[name] = np.empty(size, dtype or self.spec.dtype)
        return held


def _groups(n: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of rings with about `MOST_PIXELS` pixels, or with fewer if these would be few ranges."""
    ends = np.cumsum(n)
    most = min(MOST_PIXELS, -(-int(ends[-1]) // FEWEST_TASKS))
    cuts = np.flatnonzero(np.diff((ends - 1) // most)) + 1
    return list(pairwise([0, *cuts.tolist(), len(n)]))


def _runs(n: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Ranges of at most ``most`` neighbouring rings of equal length."""
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(n)) + 1, [len(n)]])
    return [(int(k), int(min(k + most, b))) for a, b in pairwise(cuts) for k in range(a, b, most)]
