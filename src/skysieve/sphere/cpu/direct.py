"""The direct engine on the CPU: the pixel sum within the kernel's support, by one of three algorithms for each ring.

See `cpu.stencil` for the algorithms: stencils, quarters, and single pixels.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import FirstAnswers, interpreted_if_small, is_ready
from skysieve.core.cpu.simd import BYTES
from skysieve.sphere.ring_pairs import reach

from . import stencil as kernels
from .simd import STENCIL_ROWS, STENCIL_VECTORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.tasks import TaskPool
    from skysieve.sphere.contract import Spec
    from skysieve.sphere.kernels.radial import Radial

TILE = 32
"""Output rings of one task of stencils."""
QUARTER_TILE = 8
"""Output rings of one task of quarters."""
SMALL_ANGLE = 0.11
"""Fraction of a turn within which the series of sin^2 in `cpu.simd.series_weights` is exact."""
NS_STENCIL, NS_QUARTER, NS_VALUE, NS_ADD, NS_PIXEL, NS_TASK = 0.05, 0.014, 12.5, 4.5, 2.0, 1e5
"""Nanoseconds of one core, measured in float32 with 64-byte vectors: for one term of the sum by stencils, by quarters
(for each term of the series, four quarters and both hemispheres together); for a kernel value and for one term of the
sum by single pixels; for one output pixel; for one task."""


FIRST_SECONDS = 1.0
"""Total seconds of sums by single pixels in one process, on all cores, before stencils and quarters are compiled;
compiling them takes longer."""
SPAN_STEPS = 30
"""Operations of `stencil.spans` for each pair of rings."""
first_answers = FirstAnswers(FIRST_SECONDS)


class DirectKernel:
    """One kernel of the direct engine: the algorithm of each output ring, and its layout in memory."""

    def __init__(self, spec: Spec, radial: Radial, mirrored: bool) -> None:
        t = spec.table
        self.radial = radial
        self.scale = len(radial.cells) / math.sqrt(radial.xmax)
        self.first, self.last = reach(t.theta, radial.radius)
        rings = len(t.n)
        outputs = np.arange((rings + 1) // 2 if mirrored else rings)
        if spec.rings is not None:
            used = spec.rings | spec.rings[::-1] if mirrored else spec.rings
            outputs = outputs[used[outputs]]
        self.series = None if radial.series is None else kernels.trimmed(radial.series, spec.dtype)
        low = np.array([t.n[a:b].min() for a, b in zip(self.first, self.last, strict=True)])
        high = np.array([t.n[a:b].max() for a, b in zip(self.first, self.last, strict=True)])
        self.floor = 0.0 if radial.positive else -float(np.finfo(spec.dtype).max)
        stencil, quarter, single = [], [], []
        halo = np.zeros(rings, np.int64)
        quarters = bool((t.n % 4 == 0).all()) and self.series is not None
        self.pixels = [0.0, 0.0, 0.0]
        run = interpreted_if_small(kernels.spans, SPAN_STEPS * float((self.last - self.first)[outputs].sum()))
        for o in outputs:
            most, azimuth, around, near = run(o, self.first[o], self.last[o], t.theta, t.n, radial.xmax)
            pixels = near * t.n[o]
            if low[o] == high[o]:
                stencil.append(int(o))
                self.pixels[0] += pixels
            elif quarters and not around and azimuth < SMALL_ANGLE:
                quarter.append(int(o))
                touched = slice(self.first[o], self.last[o])
                halo[touched] = np.maximum(halo[touched], int(most) + 8)
                self.pixels[1] += pixels
            else:
                single.append(int(o))
                self.pixels[2] += pixels
        self.quarter, self.single, self.halo, self.outputs = quarter, single, halo, outputs.tolist()
        size = np.where(halo > 0, (t.n // 4 + 2 * halo) * kernels.QUARTERS, 0)
        place = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
        self.place, self.packed = place[:-1].copy(), int(place[-1])
        self.groups = _groups(stencil, t.n, TILE)


def _groups(rings: list[int], n: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Ranges of at most ``most`` neighbouring rings of equal length."""
    if not rings:
        return []
    r = np.array(rings)
    cuts = np.concatenate([[0], np.flatnonzero((np.diff(r) != 1) | (np.diff(n[r]) != 0)) + 1, [len(r)]])
    return [(int(r[k]), int(r[k]) + min(most, b - k)) for a, b in pairwise(cuts.tolist()) for k in range(a, b, most)]


class DirectEngine:
    """The pixel sum for all kernels of a `Spec`; see `cpu.ring.RingEngine`."""

    name = "direct"
    components = 1
    """Maps that are convolved together: two (Q and U) in `cpu.spin.SpinEngine`."""

    def __init__(self, spec: Spec, pool: TaskPool) -> None:
        self.spec, self.pool = spec, pool
        self.mirrored = spec.table.symmetric
        self.fold = 4 if (spec.table.n % 4 == 0).all() else 1
        self.parts = [DirectKernel(spec, r, self.mirrored) for r in spec.radials]
        self.block = STENCIL_VECTORS * BYTES // spec.dtype.itemsize
        self.lanes = BYTES // spec.dtype.itemsize
        self.threads = pool.sharing(self.seconds() / len(self.parts))
        self._packed: NDArray[Any] | None = None
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, without maps."""
        held = max(p.packed for p in self.parts) * self.spec.dtype.itemsize
        t = self.spec.table
        lines = 0
        for p in self.parts:
            for a, b in p.groups:
                rings = int(p.last[b - 1] - p.first[a])
                lines = max(lines, (2 * rings + 2 * STENCIL_ROWS) * (2 * int(t.n[a]) + 2 * self.block))
        return self.components * (held + lines * self.spec.dtype.itemsize * self.pool.workers)

    def seconds(self) -> float:
        """Expected seconds of one map on one core."""
        wide = self.spec.dtype.itemsize / 4
        total = 0.0
        for p in self.parts:
            terms = 1 if p.series is None else len(p.series) + 10
            sides = 2 if self.mirrored else 1
            stencil, quarter, single = p.pixels
            total += wide * (sides * stencil * NS_STENCIL + quarter * NS_QUARTER * terms)
            total += single * self.ns_single()
            total += NS_TASK * (len(p.groups) + len(p.quarter) / QUARTER_TILE + len(p.single))
            total += NS_PIXEL * wide * self.spec.table.npix
        return 1e-9 * total

    def ns_single(self) -> float:
        """Nanoseconds of one core for one term of a single pixel, and of its mirror image."""
        return NS_VALUE / self.fold + (2 if self.mirrored else 1) * NS_ADD

    def convolve(self, maps: NDArray[Any], out: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """See `contract.Engine.convolve`."""
        with self._lock:
            for x, y in zip(maps, out, strict=True):
                for k, part in enumerate(self.parts):
                    lines = x.reshape(self.components, -1), y[k].reshape(self.components, -1)
                    self._one(part, *lines, w_in, w_out)

    def _one(self, p: DirectKernel, x: NDArray[Any], y: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        tasks, costs = [], []
        single = p.outputs if self._first(p) else p.single
        if p.quarter and single is p.single:
            if self._packed is None:
                size = max(q.packed for q in self.parts)
                self._packed = np.empty((self.components, size), self.spec.dtype)
            rings = np.flatnonzero(p.halo)
            self.pool.run([partial(self._pack, p, x, w_in, rings[k : k + 64]) for k in range(0, len(rings), 64)])
            for k in range(0, len(p.quarter), QUARTER_TILE):
                listed = p.quarter[k : k + QUARTER_TILE]
                tasks.append(partial(self._quarters, p, listed, y, w_out))
                costs.append(float(self.spec.table.n[listed].sum()) * 3)
        for a, b in p.groups if single is p.single else ():
            tasks.append(partial(self._stencils, p, a, b, x, y, w_in, w_out))
            costs.append(float(self.spec.table.n[a]) * (b - a))
        for o in single:
            tasks.append(partial(self._single, p, o, x, y, w_in, w_out))
            costs.append(float(self.spec.table.n[o]) * 50)
        self.pool.run(tasks, costs=costs, most=None if single is p.outputs else self.threads)

    def _first(self, p: DirectKernel) -> bool:
        """Whether all pixels are summed one by one, because compiling the other algorithms would take longer."""
        needed = [kernels.quarter_layouts] * bool(p.quarter) + [kernels.stencil_line] * bool(p.groups)
        if all(is_ready(kernel) for kernel in needed):
            return False
        return first_answers.take(1e-9 * self.ns_single() * sum(p.pixels) * self.components / self.pool.workers)

    def _south(self, o: int) -> int:
        return len(self.spec.table.n) - 1 - o if self.mirrored else o

    def _line(self, x: NDArray[Any], o: int) -> NDArray[Any]:
        t = self.spec.table
        return x[t.start[o] : t.start[o] + t.n[o]]

    def _pack(self, p: DirectKernel, x: NDArray[Any], w: NDArray[Any], rings: NDArray[np.int64]) -> None:
        t = self.spec.table
        assert self._packed is not None
        for line, packed in zip(x, self._packed, strict=True):
            kernels.quarter_layouts(rings, self.mirrored, t.n, t.start, p.halo, p.place, line, w, packed)

    def _quarters(self, p: DirectKernel, rings: list[int], y: NDArray[Any], w: NDArray[Any]) -> None:
        t, dtype = self.spec.table, self.spec.dtype
        total = np.empty(int(t.n[rings].max()) // 4 * kernels.QUARTERS, dtype)
        frac, begin = np.empty(self.lanes, dtype), np.empty(self.lanes, np.int64)
        weights = np.empty((2 * int(p.halo.max()) + 8) * self.lanes, dtype)
        assert self._packed is not None
        kernels.quarter_rings(
            np.array(rings), self.mirrored, p.first, p.last, t.theta, t.n, t.phi0, t.start, p.place, p.halo,
            p.radial.xmax, p.series, p.floor, self.lanes, self._packed[0], frac, begin, weights, total, y[0], w,
        )  # fmt: skip

    def _single(
        self, p: DirectKernel, o: int, x: NDArray[Any], y: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]
    ) -> None:
        t, r = self.spec.table, p.radial
        kernels.one_by_one(
            o, p.first, p.last, t.theta, t.n, t.phi0, t.start, self.fold, self._south(o) != o, w_in, r.xmax, p.scale,
            r.cells, r.positive, x[0], y[0], w_out,
        )  # fmt: skip

    def _stencils(
        self, p: DirectKernel, a: int, b: int, x: NDArray[Any], y: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]
    ) -> None:
        """Convolve output rings a .. b - 1, which have equal length, and their mirror images."""
        t, r, dtype = self.spec.table, p.radial, self.spec.dtype
        n, i0, i1 = int(t.n[a]), int(p.first[a]), int(p.last[b - 1])
        rings = i1 - i0
        start, count, low = (np.zeros(rings, np.int64) for _ in range(3))
        geometry = (t.theta, n, t.phi0, r.xmax, p.scale, r.cells, r.positive)
        plans = []
        left, right, most = 0, 0, 0
        for o in range(a, b, STENCIL_ROWS):
            rows = min(STENCIL_ROWS, b - o)
            first, last = int(p.first[o]), int(p.last[o + rows - 1])
            none = np.empty(0, dtype)
            size = kernels.stencil_weights(o, rows, first, last, *geometry, start, count, low, none, False)
            used = slice(0, last - first)
            left, right = min(left, int(low[used].min())), max(right, int((low + count)[used].max()))
            most = max(most, size)
            plans.append((o, rows, first, last))
        row = -(-n // self.block) * self.block
        halo, size = -left, row - left + max(0, right) + self.block
        sides = 2 if self.mirrored else 1
        lines = np.empty((self.components, sides * rings * size), dtype)
        weights = np.empty(max(1, most), dtype)
        sums = np.empty((self.components**2, STENCIL_ROWS * row), dtype)
        places = np.arange(rings) * size + halo
        for part in range(self.components):
            for side in range(sides):
                for k in range(rings):
                    i = self._south(i0 + k) if side else i0 + k
                    at = (side * rings + k) * size
                    kernels.stencil_line(n, self._line(x[part], i), w_in[i], halo, lines[part], at, size)
        for plan in plans:
            o, rows, first, last = plan
            kernels.stencil_weights(o, rows, first, last, *geometry, start, count, low, weights, True)
            both = (weights, *self._odd(weights, plan, start, count, low))
            for side in range(sides):
                begin = places[first - i0 : last - i0] + low[: last - first] + side * rings * size
                for k, (w, line) in enumerate((w, line) for w in both for line in lines):
                    kernels.stencil_rows(n, self.block, w, start, count, line, begin, last - first, sums[k], row)
                self._join(sums, side)
                for k in range(rows):
                    ring = self._south(o + k) if side else o + k
                    for part in range(self.components):
                        np.multiply(sums[part, k * row : k * row + n], w_out[ring], out=self._line(y[part], ring))

    def _odd(self, weights: NDArray[Any], plan: tuple[int, ...], *where: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """The weights of the odd part of a spin-2 kernel; none here."""
        return ()

    def _join(self, sums: NDArray[Any], side: int) -> None:
        """Combine the sums of even and odd parts into Q and U; nothing to do here."""
