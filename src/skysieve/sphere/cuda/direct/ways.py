"""Which way a grid's rings go in the direct engine on a GPU: a belt of equal rings, HEALPix's caps, any others.

And what that costs, beside the ring engine: known before anything is set up or compiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skysieve.sphere.grids.healpix import ring_table
from skysieve.sphere.ring_pairs import reach

from .profile import gaussian

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.contract import Spec
    from skysieve.sphere.grids.grid import RingTable
    from skysieve.sphere.kernels.radial import Radial

__all__ = [
    "ROWS", "Belt", "Caps", "Ways", "direct_seconds", "find_belt", "find_caps", "find_ways", "healpix_nside",
    "prefers_direct", "ring_seconds", "split_from", "widest",
]  # fmt: skip

SMALL_ANGLE = 0.09
"""Half of the largest difference of azimuth for `square_sine` of ``common.cuh``."""
ROWS = 2
"""Rings of a thread of the kernel ``caps``."""
MOST_WIDTH, MOST_REACH = 16, 12
"""Rings and pixels to one side that a stencil can have: what registers hold."""
LEAST_NSIDE = 16
NS_BELT, NS_CAPS, NS_ANY = (2e-3, 3.5e-5), (6e-3, 1.35e-4), (0.0, 4e-3)
"""Nanoseconds of a pixel of the result, and of one pixel of its sum, by each way; in float32 on an H100."""
NS_RING, NS_SPLIT = (1.55e-2, 2.4), (7e-3, 4.5)
"""Of the ring engine: of a pixel of the map, and of one over the pixels of the support, to which modes go down; where
rows do not go by factors of rings and modes (see `split_from`), and where they do."""
WIDE = {"direct": 2.1, "ring": 2.7}
"""Time in float64 over that in float32."""
RING_SPIN = (4.0, 2.0)
"""Time of Q and U over that of one map, of both parts of ``NS_RING``."""
LAUNCHES = {"direct": 1e-4, "ring": 3e-4}
"""Seconds of the launches."""
PLANS = {"direct": (3e-3, 2e-7), "ring": (8e-3, 2.2e-6)}
"""Seconds of a plan, and of each of its rings."""
PLAN_SPIN = 1.5
"""Time of the direct plan of Q and U over that of one map."""
SPLIT_PART, GAUSSIAN_PART = 0.5, 0.25
"""Of ``eps``: rms errors that factors of rings and modes may bring about anywhere, and a Gaussian for the kernel."""
FEW, MANY = 1, 100
"""Maps that a plan may serve: the method is chosen to be near the faster one for both."""


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


class Angles:
    """Sines of a grid's rings, for `chord_ratios`."""

    def __init__(self, theta: NDArray[np.float64]) -> None:
        self.half_sine, self.half_cosine = np.sin(0.5 * theta), np.cos(0.5 * theta)
        self.sine = np.maximum(2 * self.half_sine * self.half_cosine, 1e-300)


def chord_ratios(angles: Angles, xmax: float, low: int, high: int, d: int) -> NDArray[np.float64]:
    """sin^2 of half the difference of azimuth at which ring o + d leaves the support of ring o, for o from ``low`` to
    ``high`` - 1; below 0 without any."""
    out = np.full(high - low, -1.0)
    a, b = max(low, -d), min(high, len(angles.sine) - d)
    if b > a:
        s, c = angles.half_sine, angles.half_cosine
        half = s[a + d : b + d] * c[a:b] - c[a + d : b + d] * s[a:b]
        out[a - low : b - low] = (xmax / 4 - half * half) / (angles.sine[a + d : b + d] * angles.sine[a:b])
    return out


def widest(table: RingTable, radial: Radial) -> NDArray[np.float64]:
    """Largest difference of azimuth within the support of each ring's pixels; pi where that holds a pole."""
    away = np.minimum(table.theta, math.pi - table.theta)
    with np.errstate(divide="ignore"):
        ratio = math.sin(min(radial.radius, math.pi / 2)) / np.sin(away)
    return np.where(away > radial.radius, np.arcsin(np.minimum(1, ratio)), math.pi)


def find_caps(
    table: RingTable, radial: Radial, nside: int, belt: Belt | None, near: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> Caps | None:
    """Rings of the caps from where all differences of azimuth are small up to the belt; ``near`` is of `reach`."""
    if nside < LEAST_NSIDE or belt is None or 2 * belt.zero + belt.low + belt.high != len(table.n):
        return None
    high = belt.zero + belt.low + 1
    o = np.arange(high - 1)
    first, last = near[0][: high - 1], near[1][: high - 1]
    width = int(max((o - first).max(), (last - 1 - o).max()))
    worst, pixels = np.zeros(len(o)), 0.0
    angles, most = Angles(table.theta[: high + width]), math.sin(SMALL_ANGLE) ** 2
    for d in range(-width, width + 1):
        s = chord_ratios(angles, radial.xmax, 0, len(o), d)
        np.maximum(worst, s, out=worst)
        # the arc is at most 1.002 times its sine, and ring o + d at most d / o longer than ring o
        reached = np.sqrt(np.where(s <= most, np.maximum(s, 0), 0)) * table.n[: len(o)]
        pixels = max(pixels, float((reached * (1 + max(0, d) / (1.0 + o))).max()) * 1.002 / math.pi)
    wide = np.flatnonzero(worst > most)
    low = 1 + (int(wide[-1]) + 1 if wide.size else 0)
    if low >= high or high + width + ROWS > 3 * nside or low < ROWS + 1:
        return None
    return Caps(low, high, width, math.ceil(pixels) + 4 + ROWS)


def find_belt(
    table: RingTable, radial: Radial, item: int, near: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> Belt | None:
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
    first, last = near
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
    angles = Angles(table.theta)
    mirrored = table.symmetric and low + high == rings
    for d in range(width + 1):
        both = (d,) if mirrored else (d, -d)
        s = max(float(chord_ratios(angles, radial.xmax, low, high, e).max()) for e in both)
        far = math.asin(math.sqrt(min(1.0, max(0.0, s)))) * size / math.pi
        need.append(max(1, math.floor(far - (0.5 if shifted and d % 2 else 0.0) + 1e-9) + 1))
    parity = int(off < 0)  # of the rows to the left
    return Belt(a, b - a, low - a, high - a, width, tuple(need), shifted, parity)


@dataclass(frozen=True)
class Ways:
    """Which way each ring goes.

    ``near`` is of `pairs.reach`; ``listed`` are the rings, of ``few`` pixels, that go pixel by pixel.
    """

    near: tuple[NDArray[np.int64], NDArray[np.int64]]
    belt: Belt | None
    caps: Caps | None
    listed: NDArray[np.int32]
    few: int


def find_ways(spec: Spec, radial: Radial, nside: int) -> Ways:
    """The quickest way of each ring; ``nside`` is that of `healpix_nside`."""
    t, item = spec.table, spec.dtype.itemsize
    near = reach(t.theta, radial.radius)
    aligned = not spec.spin or t.npix % (16 // item) == 0  # U begins where 16 bytes can be read at once
    belt = find_belt(t, radial, item, near) if aligned else None
    caps = find_caps(t, radial, nside, belt, near)
    left = np.ones(len(t.n), bool) if spec.rings is None else spec.rings.copy()
    if belt is not None:
        left[belt.zero + belt.low : belt.zero + belt.high] = False
    if caps is not None:
        left[caps.low - 1 : caps.high - 1] = False
        left[len(t.n) - caps.high + 1 : len(t.n) - caps.low + 1] = False
    listed = np.flatnonzero(left).astype(np.int32)
    return Ways(near, belt, caps, listed, int(t.n[listed].sum()))


def _inside(spec: Spec, radial: Radial) -> float:
    """Pixels of the support."""
    return radial.xmax / 4 * spec.table.npix


def direct_seconds(spec: Spec, radial: Radial, ways: Ways) -> float:
    """Expected seconds of one scalar map."""
    t, inside = spec.table, _inside(spec, radial)
    pixels = [(NS_ANY, float(ways.few))]
    if ways.belt is not None:
        pixels.append((NS_BELT, (ways.belt.high - ways.belt.low) * float(t.n[ways.belt.zero])))
    if ways.caps is not None:
        pixels.append((NS_CAPS, 4.0 * (ways.caps.high - ways.caps.low) * (ways.caps.high + ways.caps.low)))
    total = sum(n * (alone + each * inside) for (alone, each), n in pixels)
    return 1e-9 * total * _wide(spec, "direct") + LAUNCHES["direct"]


def split_from(spec: Spec, radial: Radial) -> tuple[float, float, float]:
    """From which colatitude on rows go by factors of rings and modes, and those of which Gaussian: 1 / sigma^2 and
    amplitude; pi / 2 and zeros for none.

    Their error is 3/16 (sigma cot theta)^2 of the kernel's rms: ``ln k_m`` of two rings is the mean of theirs but for
    its curvature, half of ``-m^2 sigma^2 / (sin sin)`` times the square of half the difference of their ``ln sin``.
    """
    if spec.dtype.itemsize != 4 or spec.spin or not spec.table.symmetric:
        return math.pi / 2, 0.0, 0.0
    inverse, amplitude = gaussian(radial, GAUSSIAN_PART * spec.eps)
    if not inverse:
        return math.pi / 2, 0.0, 0.0
    return math.atan(math.sqrt(3 / 16 / (inverse * SPLIT_PART * spec.eps))), inverse, amplitude


def ring_seconds(spec: Spec) -> float:
    """Expected seconds of the ring engine for one map."""
    total = 0.0
    for r in spec.radials:
        share = math.cos(split_from(spec, r)[0])
        alone, modes = (a + share * (b - a) for a, b in zip(NS_RING, NS_SPLIT, strict=True))
        if spec.spin:
            alone, modes = alone * RING_SPIN[0], modes * RING_SPIN[1]
        # a map is transformed once for all kernels
        total += (1 + 1 / len(spec.radials)) / 2 * (alone + modes / max(1.0, _inside(spec, r)))
    return 1e-9 * spec.table.npix * total * _wide(spec, "ring") + LAUNCHES["ring"]


def _wide(spec: Spec, method: str) -> float:
    return WIDE[method] if spec.dtype.itemsize == 8 else 1.0


def prefers_direct(spec: Spec, direct: float) -> bool:
    """Whether the direct engine, of so many seconds a map, is never further behind than the ring engine would be."""

    def cost(method: str, seconds: float, maps: int) -> float:
        fixed, each = PLANS[method]
        spin = PLAN_SPIN if spec.spin and method == "direct" else 1.0
        return spin * (fixed + each * len(spec.table.n)) + maps * seconds

    ratios = [cost("direct", direct, maps) / cost("ring", ring_seconds(spec), maps) for maps in (FEW, MANY)]
    return max(ratios) <= 1 / min(ratios)
