"""Zones of a grid in the direct engine on a GPU: a belt of equal rings, HEALPix's caps, and all other rings.

Each zone has its own kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skysieve.sphere.grids.healpix import ring_table
from skysieve.sphere.ring_pairs import reach

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.contract import Spec
    from skysieve.sphere.grids.grid import RingTable
    from skysieve.sphere.kernels.radial import Radial

__all__ = ["ROWS", "Belt", "Caps", "Zones", "find_belt", "find_caps", "find_zones", "healpix_nside", "widest"]

SMALL_ANGLE = 0.09
"""Half of the largest difference of azimuth that `square_sine` of ``common.cuh`` allows."""
ROWS = 2
"""Rings that a thread of the kernel ``caps`` sums."""
MOST_WIDTH, MOST_REACH = 16, 12
"""Most rings and pixels on one side of a stencil; registers hold no more."""
LEAST_NSIDE = 16
"""Least nside of a grid whose caps get a kernel of their own."""


@dataclass(frozen=True)
class Belt:
    """A zone of rings of equal length, whose neighbours within the support have the same length.

    Attributes
    ----------
    zero, rows : int
        First ring of that length, and number of rings of that length.
    low, high : int
        The zone is rings low .. high - 1, counted from ``zero``.
    width : int
        Rings of the support to one side.
    need : tuple of int
        Number of distances that are summed for rings 0, 1, ... apart.
    shifted : bool
        Whether every other ring is shifted by half a pixel.
    parity : int
        Parity of the rings that are shifted to the left.
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
    """A zone of HEALPix rings low .. high - 1 (counted from 1) in the north, and their mirror images."""

    low: int
    high: int
    width: int
    halo: int


def healpix_nside(table: RingTable) -> int:
    """``nside`` of the rings of a whole HEALPix map; 0 for other rings."""
    nside = (len(table.n) + 1) // 4
    if len(table.n) != 4 * nside - 1 or nside < 1 or table.npix != 12 * nside**2:
        return 0
    theta, n, phi0, start = ring_table(nside)
    same = np.array_equal(n, table.n) and np.array_equal(start, table.start)
    return nside if same and np.array_equal(phi0, table.phi0) and np.array_equal(theta, table.theta) else 0


class Angles:
    """Sines and cosines of a grid's rings, for `chord_ratios`."""

    def __init__(self, theta: NDArray[np.float64]) -> None:
        self.half_sine, self.half_cosine = np.sin(0.5 * theta), np.cos(0.5 * theta)
        self.sine = np.maximum(2 * self.half_sine * self.half_cosine, 1e-300)


def chord_ratios(angles: Angles, xmax: float, low: int, high: int, d: int) -> NDArray[np.float64]:
    """sin^2 of half the difference of azimuth at which ring o + d leaves the support of ring o.

    The result is for o from ``low`` to ``high`` - 1; it is negative if the ring is outside of the support.
    """
    out = np.full(high - low, -1.0)
    a, b = max(low, -d), min(high, len(angles.sine) - d)
    if b > a:
        s, c = angles.half_sine, angles.half_cosine
        half = s[a + d : b + d] * c[a:b] - c[a + d : b + d] * s[a:b]
        out[a - low : b - low] = (xmax / 4 - half * half) / (angles.sine[a + d : b + d] * angles.sine[a:b])
    return out


def widest(table: RingTable, radial: Radial) -> NDArray[np.float64]:
    """Largest difference of azimuth within the support of each ring's pixels; pi if the support contains a pole."""
    away = np.minimum(table.theta, math.pi - table.theta)
    with np.errstate(divide="ignore"):
        ratio = math.sin(min(radial.radius, math.pi / 2)) / np.sin(away)
    return np.where(away > radial.radius, np.arcsin(np.minimum(1, ratio)), math.pi)


def find_caps(
    table: RingTable, radial: Radial, nside: int, belt: Belt | None, near: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> Caps | None:
    """The rings of the caps, from the first with small differences of azimuth up to the belt.

    ``near`` is the result of `ring_pairs.reach`.
    """
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
    """The longest range of rings whose neighbours within the support have equal length and aligned pixels."""
    pixels = 16 // item
    n, rings = table.n, len(table.n)
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(n)) + 1, [rings]])
    k = int(np.diff(cuts).argmax())
    a, b = int(cuts[k]), int(cuts[k + 1])
    size = int(n[a])
    if size % pixels or table.start[a] % pixels or b - a < 3:
        return None
    turn = (table.phi0[a:b] - table.phi0[a]) * size / (2 * math.pi)
    off = float(np.rint(2 * turn[1]) / 2)  # shift of every other ring to the right, in pixels
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
    parity = int(off < 0)
    return Belt(a, b - a, low - a, high - a, width, tuple(need), shifted, parity)


@dataclass(frozen=True)
class Zones:
    """The zone of each ring.

    Attributes
    ----------
    near : tuple of numpy.ndarray
        The result of `ring_pairs.reach`.
    belt, caps : Belt or None, Caps or None
    listed : numpy.ndarray
        All other rings, which are summed pixel by pixel.
    few : int
        Number of their pixels.
    """

    near: tuple[NDArray[np.int64], NDArray[np.int64]]
    belt: Belt | None
    caps: Caps | None
    listed: NDArray[np.int32]
    few: int


def find_zones(spec: Spec, radial: Radial, nside: int) -> Zones:
    """The zones of a grid for one kernel; ``nside`` is the result of `healpix_nside`."""
    t, item = spec.table, spec.dtype.itemsize
    near = reach(t.theta, radial.radius)
    aligned = not spec.spin or t.npix % (16 // item) == 0  # 16-byte reads of U are aligned
    belt = find_belt(t, radial, item, near) if aligned else None
    caps = find_caps(t, radial, nside, belt, near)
    left = np.ones(len(t.n), bool) if spec.rings is None else spec.rings.copy()
    if belt is not None:
        left[belt.zero + belt.low : belt.zero + belt.high] = False
    if caps is not None:
        left[caps.low - 1 : caps.high - 1] = False
        left[len(t.n) - caps.high + 1 : len(t.n) - caps.low + 1] = False
    listed = np.flatnonzero(left).astype(np.int32)
    return Zones(near, belt, caps, listed, int(t.n[listed].sum()))
