"""The direct engine on a GPU: tables and launches of ``direct.cu`` and ``belt.cu``; see `zones` for its zones."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.structs import ints
from skysieve.sphere.cuda import PACKAGE
from skysieve.sphere.cuda.cost import direct_seconds
from skysieve.sphere.cuda.transfers import upload

from .profile import DeviceProfile, make_profile
from .zones import ROWS, find_zones, healpix_nside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skysieve.core.gpu.runtime import Runtime
    from skysieve.sphere.contract import Spec
    from skysieve.sphere.kernels.radial import Radial

    from .zones import Belt, Caps, Zones

RING = np.dtype(
    [("theta", "f8"), ("phi0", "f8"), ("start", "i8"), ("n", "i4"), ("first", "i4"), ("last", "i4"), ("used", "i4")],
    align=True,
)
CAP_BLOCK, BELT_THREADS, THREADS = (32, 4), 64, 128
SHARE = 8
"""Threads that share a pixel in the kernel ``any``."""
BELT_BLOCKS = 6
"""Blocks of the stencil kernel that run on a multiprocessor at a time."""


class DirectKernel:
    """One radial kernel: its tables on the device, and its zones."""

    SOURCE, BELT, PLANES = "direct/direct.cu", "direct/belt.cu", 2

    def __init__(self, runtime: Runtime, spec: Spec, radial: Radial, zones: Zones, tables: SharedTables) -> None:
        t = spec.table
        self.runtime, self.spec, self.radial = runtime, spec, radial
        self.profile = self._profile()
        self.module = runtime.module(PACKAGE, self.SOURCE, self.profile.build, self._defines())
        self.zones, self.belt, self.caps, listed = zones, zones.belt, zones.caps, zones.listed
        before = np.concatenate([[0], np.cumsum(t.n[listed])]).astype(np.int64)
        self.few, self.many = zones.few, len(listed)
        given = [self.profile.cells, listed, before]
        if self.belt is not None:
            terms = self._terms(self.belt)
            line = 16 // spec.dtype.itemsize
            self.count, self.stride = len(terms), -(-len(terms) // line) * line
            given += [radial.cells, np.array(terms, np.int32)]
        if self.few:
            ring = np.zeros(len(t.n), RING)
            ring["theta"], ring["phi0"], ring["start"], ring["n"] = t.theta, t.phi0, t.start, t.n
            ring["first"], ring["last"] = zones.near
            ring["used"] = 1 if spec.rings is None else spec.rings
            given.append(ring.view(np.uint8))
        held = upload(runtime, given)
        self.cells, self.listed, self.ends = held[:3]
        self.rings = held[-1]
        if self.belt is not None:
            self._plan_belt(self.belt, tables.theta, *held[3:5])
        if self.caps is not None:
            self._plan_caps(self.caps, tables)
        self.nbytes = sum(a.nbytes for a in given) + sum(
            getattr(self, name).nbytes for name in ("weights", "table") if hasattr(self, name)
        )

    def _profile(self) -> DeviceProfile:
        return make_profile(self.radial, self.spec.dtype)

    @property
    def _pixels(self) -> int:
        """Pixels that a thread of the stencil computes."""
        return 16 // self.spec.dtype.itemsize

    def _terms(self, belt: Belt) -> list[tuple[int, int]]:
        """Output ring (from ``width`` above) and distance (half pixels) of each weight of a row."""
        return [
            (k, 2 * e + (belt.shifted and (k - belt.width) % 2))
            for e in range(max(belt.need))
            for k in range(2 * belt.width + 1)
            if e < belt.need[abs(k - belt.width)]
        ]

    def _floor(self) -> tuple[Any, ...]:
        return (np.float64(0.0 if self.radial.positive else -1e300),)

    def _defines(self) -> dict[str, object]:
        """Defines with which both source files are compiled."""
        return {}

    def _plan_belt(self, belt: Belt, theta: Any, cells: Any, terms: Any) -> None:
        dtype = self.spec.dtype
        self.weights = self.runtime.xp.empty((belt.high - belt.low + 2 * belt.width + 2) * self.stride, dtype)
        self.module.launch(
            "belt_plan", (-(-len(self.weights) // THREADS),), (THREADS,),
            (theta[belt.zero :], cells, terms, self.weights, np.float64(self.radial.xmax), *self._floor(),
             *ints(self.spec.table.n[belt.zero], belt.low, belt.high, belt.width, self.count, self.stride,
                   len(self.radial.cells))),
        )  # fmt: skip
        defines = {
            "REAL": "float" if dtype.itemsize == 4 else "double", "WIDTH": belt.width, "FARTHEST": max(belt.need),
            "NEED": ",".join(map(str, belt.need)), "SHIFTED": int(belt.shifted), **self._defines(),
        }  # fmt: skip
        self.stencil = self.runtime.module(PACKAGE, self.BELT, "f32", defines)

    def _plan_caps(self, caps: Caps, tables: SharedTables) -> None:
        count, row = caps.high - caps.low, 2 * caps.width + 1
        self.table = self.runtime.xp.empty((count * row, 4), self.spec.dtype)
        self.module.launch(
            "caps_plan", (-(-count * row // THREADS),), (THREADS,),
            (tables.theta, self.table, np.float64(self.radial.xmax), *ints(tables.nside, caps.low, count, caps.width)),
        )  # fmt: skip

    def _npix(self) -> tuple[Any, ...]:
        """Further arguments of kernels that read two maps."""
        return ()

    def run_belt(self, x: Any, y: Any, w_in: Any, w_out: Any, flag: Any, stream: Any) -> None:
        """Sum the rings of the belt."""
        belt = self.belt
        if belt is None:
            return
        t = self.spec.table
        n, start = int(t.n[belt.zero]), int(t.start[belt.zero])
        columns = -(-n // (self._pixels * BELT_THREADS))
        rows = belt.high - belt.low
        held = self.runtime.device.sm_count * BELT_BLOCKS
        waves = max(1, rows * columns // (held * (12 * belt.width + 8)))
        pieces = max(1, waves * held // columns)
        segment = max(2 * belt.width, -(-rows // pieces))
        self.stencil.launch(
            "belt", (columns, -(-rows // segment)), (BELT_THREADS,),
            (x, y, self.weights, w_in[belt.zero :], w_out[belt.zero :], flag, np.int64(start), *self._npix(),
             *ints(n, belt.rows, belt.low, belt.high, segment, belt.parity)),
            stream=stream,
        )  # fmt: skip

    def run_any(self, x: Any, y: Any, w_in: Any, w_out: Any, flag: Any, stream: Any) -> None:
        """Sum the rings outside of belt and caps."""
        each = THREADS // SHARE  # pixels of a block
        most = each * (2**31 - 1)
        for offset in range(0, self.few, most):
            blocks = -(-min(most, self.few - offset) // each)
            self.module.launch(
                "any", (blocks,), (THREADS,),
                (x, y, self.rings, self.listed, self.ends, self.cells, w_in, w_out, flag, self.profile.struct,
                 *self._npix(), np.float64(self.radial.xmax), np.int32(self.many), np.int64(offset)),
                stream=stream,
            )  # fmt: skip

    def run_caps(self, packed: Any, y: Any, w_out: Any, flag: Any, tables: SharedTables) -> None:
        """Sum the rings of the caps."""
        c = self.caps
        if c is None:
            return
        wide, tall = CAP_BLOCK
        columns = -(-(tables.nside // 2 + 1) // wide)
        self.module.launch(
            "caps", (columns, -(-(c.high - c.low) // (self._rows() * tall))), CAP_BLOCK,
            (packed, tables.place, self.table, self.cells, w_out, *self._height(tables), y, flag, self.profile.struct,
             *self._npix(), *ints(tables.nside, c.low, c.high, c.width, tables.low, tables.halo)),
        )  # fmt: skip

    def _rows(self) -> int:
        """Rings that a thread of the kernel ``caps`` sums."""
        return ROWS

    def _height(self, tables: SharedTables) -> tuple[Any, ...]:
        return ()


@dataclass
class SharedTables:
    """Tables that all radial kernels of an engine share: angles, and the layout of the caps' pixels.

    ``place`` holds the start of each of the rings low .. high - 1 in memory of ``size`` times four pixels.
    """

    nside: int
    theta: Any
    height: Any = None
    place: Any = None
    size: int = 0
    low: int = 1
    high: int = 0
    halo: int = 0


class DirectEngine:
    """The pixel sum of all kernels of a `Spec`.

    Parameters
    ----------
    runtime : Runtime
    spec : Spec
    zones : list of Zones, optional
        Zones of all kernels, if they are known already.
    """

    name = "direct"
    KERNEL: type[DirectKernel] = DirectKernel

    def __init__(self, runtime: Runtime, spec: Spec, zones: list[Zones] | None = None) -> None:
        self.runtime, self.spec = runtime, spec
        t, nside = spec.table, healpix_nside(spec.table)
        zones = zones or [find_zones(spec, r, nside) for r in spec.radials]
        tables = self.tables = SharedTables(nside, runtime.xp.asarray(t.theta))
        self.parts = [self.KERNEL(runtime, spec, r, w, tables) for r, w in zip(spec.radials, zones, strict=True)]
        caps = [p.caps for p in self.parts if p.caps is not None]
        if caps:
            tables.halo = max(c.halo for c in caps)
            tables.low = max(1, min(c.low - c.width for c in caps))
            tables.high = max(c.high + c.width + ROWS for c in caps)
            m = np.minimum(np.arange(tables.low, tables.high), tables.nside)
            place = np.concatenate([[0], np.cumsum(self.KERNEL.PLANES * (m + 2 * tables.halo))]).astype(np.int64)
            tables.place, tables.size = runtime.xp.asarray(place[:-1]), int(place[-1])
            self._heights(tables)
        self._packed: Any = None
        self._third: Any = None

    def _heights(self, tables: SharedTables) -> None:
        """Add further tables of the rings; none here."""

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, without maps."""
        return sum(p.nbytes for p in self.parts) + 4 * self.tables.size * self.spec.dtype.itemsize

    def seconds(self) -> float:
        """Expected seconds of one map."""
        return self.expected(self.spec, [p.zones for p in self.parts])

    @classmethod
    def expected(cls, spec: Spec, zones: list[Zones]) -> float:
        """Expected seconds of one map, before an engine is set up."""
        return sum(direct_seconds(spec, r, w) for r, w in zip(spec.radials, zones, strict=True))

    @property
    def amplitudes(self) -> list[float]:
        """Amplitudes of the kernels, for rings outside of the belt."""
        return [p.profile.amplitude for p in self.parts]

    def free(self) -> None:
        """Free the working memory."""
        self._packed = None

    def one(self, x: Any, out: Any, w_in: Any, w_out: list[Any], flags: Any, side: Any) -> None:
        """Convolve one map ([2,] npix) into ``out`` (K, [2,] npix); the belt is summed on the stream ``side``.

        ``w_out[1 + k]`` includes the amplitude of kernel k, for rings outside of the belt.
        """
        tables = self.tables
        self._begin(side)
        for k, p in enumerate(self.parts):
            p.run_belt(x, out[k], w_in, w_out[0], flags[k:], side)
        with self._beside(side) as other:
            for k, p in enumerate(self.parts):
                p.run_any(x, out[k], w_in, w_out[1 + k], flags[k:], other)
        if not tables.size:
            return
        if self._packed is None:
            self._packed = self.runtime.xp.empty(4 * tables.size, self.spec.dtype)
        first, wide = self.parts[0], tables.nside + 2 * tables.halo
        first.module.launch(
            "pack", (-(-wide // THREADS), tables.high - tables.low), (THREADS,),
            (x, self._packed, tables.place, w_in, *first._height(tables), *first._npix(),
             *ints(tables.nside, tables.low, tables.halo)),
        )  # fmt: skip
        for k, p in enumerate(self.parts):
            p.run_caps(self._packed, out[k], w_out[1 + k], flags[k:], tables)

    @contextlib.contextmanager
    def _beside(self, side: Any) -> Iterator[Any]:
        """A third stream, which starts at the event of `_begin`; ``side`` waits for it at the end."""
        if side is None:
            yield None
            return
        third, start, end = self._third
        third.wait_event(start)
        yield third
        end.record(third)
        side.wait_event(end)

    def _begin(self, side: Any) -> None:
        if side is None:
            return
        if self._third is None:
            cuda = self.runtime.xp.cuda
            events = [cuda.Event(disable_timing=True) for _ in range(2)]
            self._third = (cuda.Stream(non_blocking=True), *events)
        self._third[1].record(side)
