"""The direct engine on a GPU: which rings go which way, and the launches (``sp_direct.cu``, ``sp_belt.cu``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .cuda_profile import DeviceProfile, make_profile
from .healpix import ring_table
from .pairs import reach

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.kernels import Runtime

    from .grid import RingTable
    from .radial import Radial
    from .workload import Spec

PACKAGE = "skysieve.sphere"
RING = np.dtype(
    [("theta", "f8"), ("phi0", "f8"), ("start", "i8"), ("n", "i4"), ("first", "i4"), ("last", "i4"), ("used", "i4")],
    align=True,
)
SMALL_ANGLE = 0.09
"""Half of the largest difference of azimuth for `square_sine` of ``sp_common.cuh``."""
ROWS = 2
"""Rings of a thread of the kernel ``caps``."""
MOST_WIDTH, MOST_REACH = 16, 12
"""Rings and pixels to one side that a stencil can have: what registers hold."""
CAP_BLOCK, BELT_THREADS, THREADS = (32, 4), 64, 128
BELT_BLOCKS = 6
"""Blocks of the stencil kernel that a multiprocessor holds."""
LEAST_NSIDE = 16
NS_BELT, NS_CAPS, NS_ANY, LAUNCHES = 5e-5, 1.7e-4, 1.5e-3, 3e-5
"""Nanoseconds of one pixel of the sum by each way, in float32 on an H100, and seconds of the launches."""


@dataclass(frozen=True)
class Belt:
    """Rows low .. high - 1, which see rows of one length alone.

    ``need[d]`` distances are summed for rows d apart.
    """

    zero: int
    rows: int
    low: int
    high: int
    width: int
    need: tuple[int, ...]
    shifted: bool
    parity: int


@dataclass(frozen=True)
class Caps:
    """HEALPix rings low .. high - 1 (counted from 1) of the north, with their mirror images."""

    low: int
    high: int
    width: int
    halo: int


def healpix_nside(table: RingTable) -> int:
    """``nside`` of a whole HEALPix map's rings, 0 for others."""
    nside = (len(table.n) + 1) // 4
    if len(table.n) != 4 * nside - 1 or nside < 1 or table.npix != 12 * nside**2:
        return 0
    theta, n, phi0, start = ring_table(nside)
    same = np.array_equal(n, table.n) and np.array_equal(start, table.start)
    return nside if same and np.array_equal(phi0, table.phi0) and np.array_equal(theta, table.theta) else 0


def chord_ratios(
    theta: NDArray[np.float64], sine: NDArray[np.float64], xmax: float, low: int, high: int, d: int
) -> NDArray[np.float64]:
    """sin^2 of half the difference of azimuth at which ring o + d leaves the support of ring o, for o from ``low`` to
    ``high`` - 1; below 0 without any."""
    out = np.full(high - low, -1.0)
    a, b = max(low, -d), min(high, len(theta) - d)
    if b > a:
        half = np.sin(0.5 * (theta[a + d : b + d] - theta[a:b]))
        out[a - low : b - low] = (xmax / 4 - half * half) / np.maximum(sine[a + d : b + d] * sine[a:b], 1e-300)
    return out


def widest(table: RingTable, radial: Radial) -> NDArray[np.float64]:
    """Largest difference of azimuth within the support of each ring's pixels; pi where that holds a pole."""
    away = np.minimum(table.theta, math.pi - table.theta)
    with np.errstate(divide="ignore"):
        ratio = math.sin(min(radial.radius, math.pi / 2)) / np.sin(away)
    return np.where(away > radial.radius, np.arcsin(np.minimum(1, ratio)), math.pi)


def find_caps(table: RingTable, radial: Radial, nside: int, belt: Belt | None) -> Caps | None:
    """Rings of the caps from where all differences of azimuth are small up to the belt."""
    if nside < LEAST_NSIDE or belt is None or 2 * belt.zero + belt.low + belt.high != len(table.n):
        return None
    high = belt.zero + belt.low + 1
    o = np.arange(high - 1)
    first, last = reach(table.theta, radial.radius)
    width = int(max((o - first[o]).max(), (last[o] - 1 - o).max()))
    worst, pixels = np.zeros(len(o)), 0.0
    sine, most = np.sin(table.theta), math.sin(SMALL_ANGLE) ** 2
    for d in range(-width, width + 1):
        s = chord_ratios(table.theta, sine, radial.xmax, 0, len(o), d)
        np.maximum(worst, s, out=worst)
        # the arc is at most 1.002 times its sine, and ring o + d at most d / o longer than ring o
        reached = np.sqrt(np.where(s <= most, np.maximum(s, 0), 0)) * table.n[: len(o)]
        pixels = max(pixels, float((reached * (1 + max(0, d) / (1.0 + o))).max()) * 1.002 / math.pi)
    wide = np.flatnonzero(worst > most)
    low = 1 + (int(wide[-1]) + 1 if wide.size else 0)
    if low >= high or high + width + ROWS > 3 * nside or low < ROWS + 1:
        return None
    return Caps(low, high, width, math.ceil(pixels) + 4 + ROWS)


def find_belt(table: RingTable, radial: Radial, item: int) -> Belt | None:
    """The longest run of rings whose neighbours within the support all have one length and aligned pixels."""
    pixels = 16 // item
    n, rings = table.n, len(table.n)
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(n)) + 1, [rings]])
    k = int(np.diff(cuts).argmax())
    a, b = int(cuts[k]), int(cuts[k + 1])
    size = int(n[a])
    if size % pixels or table.start[a] % pixels or b - a < 3:
        return None
    turn = (table.phi0[a:b] - table.phi0[a]) * size / (2 * math.pi)
    off = float(np.rint(2 * turn[1]) / 2)  # by how many pixels every other row is off to the right
    if abs(off) not in (0.0, 0.5) or np.abs(turn[::2]).max() > 1e-9 or np.abs(turn[1::2] - off).max() > 1e-9:
        return None
    shifted = off != 0
    first, last = reach(table.theta, radial.radius)
    o = np.arange(a, b)
    distance = widest(table, radial)[a:b] * size / (2 * math.pi)
    fits = (first[o] >= a) & (last[o] <= b) & (distance < MOST_REACH - 1) & (2 * distance + 4 * pixels < size)
    fits &= np.maximum(o - first[o], last[o] - 1 - o) <= MOST_WIDTH
    if not fits.any():
        return None
    low, high = int(o[fits][0]), int(o[fits][-1]) + 1
    if not fits[low - a : high - a].all() or high - low < 2:
        return None
    o = np.arange(low, high)
    width = int(max((o - first[o]).max(), (last[o] - 1 - o).max()))
    need = []
    sine = np.sin(table.theta)
    for d in range(width + 1):
        both = (d,) if table.symmetric and low + high == rings else (d, -d)
        s = max(float(chord_ratios(table.theta, sine, radial.xmax, low, high, e).max()) for e in both)
        far = math.asin(math.sqrt(min(1.0, max(0.0, s)))) * size / math.pi
        need.append(max(1, math.floor(far - (0.5 if shifted and d % 2 else 0.0) + 1e-9) + 1))
    parity = int(off < 0)  # of the rows to the left
    return Belt(a, b - a, low - a, high - a, width, tuple(need), shifted, parity)


class Part:
    """One kernel: its tables on the device, and which rings go which way."""

    def __init__(self, runtime: Runtime, spec: Spec, radial: Radial, nside: int, theta: Any) -> None:
        xp, t, dtype = runtime.xp, spec.table, spec.dtype
        self.runtime, self.spec, self.radial = runtime, spec, radial
        self.profile: DeviceProfile = make_profile(radial, dtype)
        self.cells = xp.asarray(self.profile.cells)
        self.module = runtime.module(
            PACKAGE, "sp_direct.cu", self.profile.build, {"ROWS": ROWS, "CAPS_THREADS": CAP_BLOCK[0] * CAP_BLOCK[1]}
        )
        self.belt = find_belt(t, radial, dtype.itemsize)
        self.caps = find_caps(t, radial, nside, self.belt)
        left = np.ones(len(t.n), bool) if spec.rings is None else spec.rings.copy()
        if self.belt is not None:
            left[self.belt.zero + self.belt.low : self.belt.zero + self.belt.high] = False
            self._plan_belt(self.belt, theta)
        if self.caps is not None:
            left[self.caps.low - 1 : self.caps.high - 1] = False
            left[len(t.n) - self.caps.high + 1 : len(t.n) - self.caps.low + 1] = False
            self._plan_caps(self.caps, nside, theta)
        listed = np.flatnonzero(left).astype(np.int32)
        self.before = np.concatenate([[0], np.cumsum(t.n[listed])]).astype(np.int64)
        if listed.size:
            ring = np.zeros(len(t.n), RING)
            ring["theta"], ring["phi0"], ring["start"], ring["n"] = t.theta, t.phi0, t.start, t.n
            ring["first"], ring["last"] = reach(t.theta, radial.radius)
            ring["used"] = 1 if spec.rings is None else spec.rings
            self.rings = xp.asarray(ring.view(np.uint8))
            self.listed, self.ends = xp.asarray(listed), xp.asarray(self.before)
        self.few = int(self.before[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        total = self.cells.nbytes
        for name in ("weights", "table", "rings", "listed", "ends"):
            total += getattr(self, name).nbytes if hasattr(self, name) else 0
        return int(total)

    def seconds(self) -> float:
        """Expected seconds of one map."""
        t = self.spec.table
        area = math.pi * self.radial.xmax / 4 / (4 * math.pi / t.npix)  # pixels of the support
        total = 0.0
        if self.belt is not None:
            total += NS_BELT * (self.belt.high - self.belt.low) * float(t.n[self.belt.zero]) * area
        if self.caps is not None:
            total += NS_CAPS * 4 * (self.caps.high - self.caps.low) * (self.caps.high + self.caps.low) * area
        total += NS_ANY * self.few * area
        return 1e-9 * total * self.spec.dtype.itemsize / 4 + LAUNCHES

    def _plan_belt(self, belt: Belt, theta: Any) -> None:
        xp, dtype = self.runtime.xp, self.spec.dtype
        pixels, tall = 16 // dtype.itemsize, 2 * belt.width + 1
        terms = [
            (k, 2 * e + (belt.shifted and (k - belt.width) % 2))
            for e in range(max(belt.need))
            for k in range(tall)
            if e < belt.need[abs(k - belt.width)]
        ]
        self.stride = -(-len(terms) // pixels) * pixels
        self.weights = xp.empty((belt.high - belt.low + 2 * belt.width + 2) * self.stride, dtype)
        cells = xp.asarray(self.radial.cells)
        floor = 0.0 if self.radial.positive else -1e300
        pairs = np.array([*terms, *[(0, 0)] * (self.stride - len(terms))], np.int32)
        self.module.launch(
            "belt_plan", (-(-len(self.weights) // THREADS),), (THREADS,),
            (theta[belt.zero :], cells, xp.asarray(pairs), self.weights, np.float64(self.radial.xmax),
             np.float64(floor), *_ints(self.spec.table.n[belt.zero], belt.low, belt.high, belt.width, len(terms),
                                       self.stride, len(self.radial.cells))),
        )  # fmt: skip
        defines = {
            "REAL": "float" if dtype.itemsize == 4 else "double", "W": belt.width, "J": max(belt.need),
            "NEED": ",".join(map(str, belt.need)), "SHIFTED": int(belt.shifted),
        }  # fmt: skip
        self.stencil = self.runtime.module(PACKAGE, "sp_belt.cu", "f32", defines)

    def _plan_caps(self, caps: Caps, nside: int, theta: Any) -> None:
        count, row = caps.high - caps.low, 2 * caps.width + 1
        self.table = self.runtime.xp.empty((count * row, 4), self.spec.dtype)
        self.module.launch(
            "caps_plan", (-(-count * row // THREADS),), (THREADS,),
            (theta, self.table, np.float64(self.radial.xmax), *_ints(nside, caps.low, count, caps.width)),
        )  # fmt: skip

    def run_belt(self, x: Any, y: Any, w_in: Any, w_out: Any, flag: Any, stream: Any) -> None:
        """Rings of one length."""
        belt = self.belt
        if belt is None:
            return
        t, pixels = self.spec.table, 16 // self.spec.dtype.itemsize
        n, start = int(t.n[belt.zero]), int(t.start[belt.zero])
        columns = -(-n // (pixels * BELT_THREADS))
        rows = belt.high - belt.low
        waves = max(1, round(rows * columns / (self.runtime.device.sm_count * BELT_BLOCKS * (12 * belt.width + 8))))
        pieces = max(1, waves * self.runtime.device.sm_count * BELT_BLOCKS // columns)
        segment = max(2 * belt.width, -(-rows // pieces))
        self.stencil.launch(
            "belt", (columns, -(-rows // segment)), (BELT_THREADS,),
            (x, y, self.weights, w_in[belt.zero :], w_out[belt.zero :], flag, np.int64(start),
             *_ints(n, belt.rows, belt.low, belt.high, segment, belt.parity)),
            stream=stream,
        )  # fmt: skip

    def run_any(self, x: Any, y: Any, w_in: Any, w_out: Any, flag: Any, stream: Any) -> None:
        """Rings left over."""
        most = THREADS * (2**31 - 1)
        for offset in range(0, self.few, most):
            blocks = -(-min(most, self.few - offset) // THREADS)
            self.module.launch(
                "any", (blocks,), (THREADS,),
                (x, y, self.rings, self.listed, self.ends, self.cells, w_in, w_out, flag, self.profile.struct,
                 np.float64(self.radial.xmax), np.int32(len(self.before) - 1), np.int64(offset)),
                stream=stream,
            )  # fmt: skip


class DirectEngine:
    """The pixel sum of all kernels of a `Spec`.

    Parameters
    ----------
    runtime : Runtime
    spec : Spec
    """

    name = "direct"

    def __init__(self, runtime: Runtime, spec: Spec) -> None:
        self.runtime, self.spec = runtime, spec
        xp, t = runtime.xp, spec.table
        theta = xp.asarray(t.theta)
        self.nside = healpix_nside(t)
        self.parts = [Part(runtime, spec, r, self.nside, theta) for r in spec.radials]
        self.any_module = self.parts[0].module
        caps = [p.caps for p in self.parts if p.caps is not None]
        self.halo = max((c.halo for c in caps), default=0)
        self.low = max(1, min((c.low - c.width for c in caps), default=1))
        self.high = max((c.high + c.width + ROWS for c in caps), default=0)
        self.place: Any = None
        self.packed_size = 0
        if caps:
            m = np.minimum(np.arange(self.low, self.high), self.nside)
            size = 2 * (m + 2 * self.halo)
            place = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
            self.place, self.packed_size = xp.asarray(place[:-1]), int(place[-1])
        self._packed: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, maps apart."""
        return sum(p.nbytes for p in self.parts) + 4 * self.packed_size * self.spec.dtype.itemsize

    def seconds(self) -> float:
        """Expected seconds of one map."""
        return sum(p.seconds() for p in self.parts) + 1e-9 * self.packed_size * self.spec.dtype.itemsize * 3e-3

    @property
    def amplitudes(self) -> list[float]:
        """Of the kernels, for rings that do not go by stencil."""
        return [p.profile.amplitude for p in self.parts]

    def free(self) -> None:
        """Give back the working memory."""
        self._packed = None

    def one(self, x: Any, out: Any, w_in: Any, w_out: list[Any], flags: Any, side: Any) -> None:
        """One map (npix,) into ``out`` (K, npix); ``w_out[k]`` holds kernel k's amplitude for rings not by stencil."""
        for k, p in enumerate(self.parts):
            p.run_belt(x, out[k], w_in, w_out[0], flags[k:], side)
        if self.packed_size:
            if self._packed is None:
                self._packed = self.runtime.xp.empty(4 * self.packed_size, self.spec.dtype)
            wide = self.nside + 2 * self.halo
            self.any_module.launch(
                "pack", (-(-wide // THREADS), self.high - self.low), (THREADS,),
                (x, self._packed, self.place, w_in, *_ints(self.nside, self.low, self.halo)),
            )  # fmt: skip
        for k, p in enumerate(self.parts):
            p.run_any(x, out[k], w_in, w_out[1 + k], flags[k:], side)
            if p.caps is not None:
                c = p.caps
                wide, tall = CAP_BLOCK
                columns = -(-(self.nside // 2 + 1) // wide)
                p.module.launch(
                    "caps", (columns, -(-(c.high - c.low) // (ROWS * tall))), CAP_BLOCK,
                    (self._packed, self.place, p.table, p.cells, w_out[1 + k], out[k], flags[k:], p.profile.struct,
                     *_ints(self.nside, c.low, c.high, c.width, self.low, self.halo)),
                )  # fmt: skip


def _ints(*values: Any) -> tuple[np.int32, ...]:
    return tuple(np.int32(v) for v in values)
