"""Pairs of rings and their modes, which the ring engine prepares before the first map (Elsner & Wandelt 2011, 2-3).

For an output ring o and an input ring i the kernel is a function of the difference of azimuth, with coefficients
``k_m``; the output's modes are ``S_o(m) = sum_i k_m(o, i) F_i(m)``.

- A ring of n pixels also has modes beyond n / 2, which repeat the lower ones.  If all modes up to the one where k_m
  vanishes are used, and the output's modes are folded back, the result is the pixel sum itself, without ringing.
- Rings of equal length whose pixels are aligned, or shifted by half a pixel, need no modes beyond n / 2: the kernel
  sampled at the differences between the pixels gives the pixel sum, however narrow or sharp the kernel is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.grids.grid import RingTable
    from skysieve.sphere.kernels.radial import Radial

__all__ = ["NotBandLimited", "Pairs", "chord_terms", "highest_mode", "make_pairs", "mode_bounds", "reach"]

LADDER = 1.06
"""Ratio between successive numbers of azimuths at which kernels are sampled."""
_FLOOR = 4e-13
"""Smallest eps that modes can reach, because kernel values are rounded."""
_CURVE = 1.12
"""Ratio between successive values of sin(theta) at which the highest mode is determined."""
_SOME, _LOOKS = 12, 3
"""Number of rings of a polar zone (and of their neighbours) whose pairs are examined, and number in the first check."""
_MOST_MODES = 8
"""Highest mode that is considered, as a multiple of the longest ring's pixels."""


class NotBandLimited(ValueError):
    """The kernel is not band-limited, and the grid's rings differ in length."""


@dataclass(frozen=True)
class Pairs:
    """The pairs of one kernel on one grid.

    Attributes
    ----------
    first, last : numpy.ndarray of int64, shape (R,)
        Rings ``first[o] .. last[o] - 1`` lie within the support of ring o.
    modes : numpy.ndarray of int64, shape (R,)
        Highest mode of each ring.
    outputs : numpy.ndarray of int64
        Rings whose pairs are listed: the output rings; on a symmetric grid only the output rings of the northern half.
    pair : numpy.ndarray of int64
        Index of the first pair of each output ring.
    table : numpy.ndarray of int64
        Index of the table of cosines that each pair uses.
    tables : tuple of (int, int)
        ``(n, h)`` of each table, which has the azimuths ``2 pi (j + h / 2) / n``.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    modes: NDArray[np.int64]
    outputs: NDArray[np.int64]
    pair: NDArray[np.int64]
    table: NDArray[np.int64]
    tables: tuple[tuple[int, int], ...]


def reach(theta: NDArray[np.float64], radius: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each ring, the first ring within ``radius`` and one past the last."""
    slack = 1e-14
    first = np.searchsorted(theta, theta - radius - slack, side="left")
    last = np.searchsorted(theta, theta + radius + slack, side="right")
    return first.astype(np.int64), last.astype(np.int64)


def chord_terms(theta: NDArray[np.float64], o: NDArray[np.int64], i: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
    """``a`` and ``b`` of the squared chord ``a + b sin^2(dphi / 2)`` between points of rings o and i.

    This is an exact form of the paper's eq. 9.
    """
    return 4 * np.sin((theta[i] - theta[o]) / 2) ** 2, 4 * np.sin(theta[i]) * np.sin(theta[o])


def _reachable(radial: Radial, eps: float, spin: int) -> float:
    """The eps to which modes are cut.

    With spin 2 it is not below the error of the table, which is largest around the antipode, where the kernel is 0.
    """
    return max(eps, _FLOOR, 4 * radial.error if spin else 0.0)


def _mode_curve(
    radial: Radial, eps: float, limit: float, most: int, spin: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values of sin(theta), falling from 1, and the highest mode of a ring there, for an error of ``eps / 2``."""
    sines, modes = [], []
    s = 1.0
    smallest = limit / _CURVE
    while s > smallest:
        sines.append(s)
        modes.append(highest_mode(radial, s, eps, most, spin))
        s /= _CURVE
    sines.append(s)
    modes.append(highest_mode(radial, s, eps, most, spin))
    return np.array(sines), np.maximum.accumulate(np.array(modes)[::-1])[::-1]


def highest_mode(radial: Radial, s: float, eps: float, most: int, spin: int) -> float:
    """Highest mode of a ring at ``sin(theta) = s``; infinite if it is above ``most``."""
    ratio = math.sqrt(radial.xmax) / (2 * s)
    half = 2 * math.asin(ratio) if ratio < 1 else math.pi
    n = 1 << max(7, math.ceil(math.log2(32 * math.pi / half)))
    most = max(most, n)
    eps = _reachable(radial, eps, spin)
    while n <= 4 * most:
        near = min(n // 2, int(half * n / (2 * math.pi)) + 1) + 1  # samples within the support
        x = 4 * s * s * np.sin(np.arange(near) * (math.pi / n)) ** 2
        values = np.zeros(n // 2 + 1)
        values[:near] = radial(x) * (1 - x / 4) ** spin  # cos^4 of half the angle belongs to a kernel of spin 2
        k = np.fft.irfft(values, n)[: n // 2 + 1]
        rest = np.cumsum((k * k)[::-1])[::-1]
        below = np.flatnonzero(rest <= (eps / 2) ** 2 * (2 * rest[0] - k[0] ** 2))
        # modes beyond n / 2 are aliased into the last quarter
        if below.size and below[0] < 0.75 * (n // 2):
            return float(below[0])
        n *= 2
    return math.inf


def mode_bounds(table: RingTable, radial: Radial, eps: float, spin: int = 0) -> NDArray[np.float64]:
    """Highest mode of each ring; infinite where modes do not fall below ``eps``.

    If the kernel falls off as fast as a Gaussian, a pair of rings needs no more modes than each ring with itself.
    Other kernels may need more modes around a pole, where one ring may lie completely inside the support and another
    at its edge.
    """
    sine = np.sin(table.theta)
    least = float(sine[sine > 1e-12].min()) if (sine > 1e-12).any() else 1.0
    most = _MOST_MODES * int(table.n.max())
    sines, highest = _mode_curve(radial, eps, least, most, spin)
    bound = np.asarray(np.interp(sine, sines[::-1], highest[::-1]), np.float64)
    if not np.isfinite(bound).all():
        return bound
    first, last = reach(table.theta, radial.radius)
    north = np.flatnonzero(table.theta <= radial.radius)
    south = np.flatnonzero(table.theta >= math.pi - radial.radius)[::-1]
    if table.symmetric:
        south = south[:0]
    raised = bound.copy()
    for zone in (north, south):
        if zone.size and not _enough(table, radial, eps, spin, bound, zone, first, last):
            _raise(table, radial, eps, spin, most, raised, zone, first, last)
    return np.maximum(raised, raised[::-1]) if table.symmetric else raised


def _with_margin(bound: NDArray[np.float64], spin: int) -> NDArray[np.int64]:
    """Highest modes that are used: the bounds and a small margin."""
    return np.ceil(np.minimum(bound, 1e9) * 1.01).astype(np.int64) + (8 if spin else 2)


def _spread(count: int, wanted: int) -> NDArray[np.int64]:
    """Indices of some of ``count`` rings, denser at the beginning, with both ends."""
    return np.unique(np.rint(np.linspace(0, 1, wanted) ** 1.5 * (count - 1)).astype(np.int64))


def _some_rings(table: RingTable, o: int, first: int, last: int, wanted: int) -> NDArray[np.int64]:
    """Some of the rings within the support of ring o, with the opposite one, where a kernel may have a cusp."""
    some = np.linspace(first, last - 1, wanted).astype(np.int64)
    opposite = int(np.abs(table.theta - (math.pi - table.theta[o])).argmin())
    return np.unique([*some, opposite] if first <= opposite < last else some)


def _powers(
    table: RingTable, radial: Radial, spin: int, o: int, i: NDArray[np.int64], n: int
) -> tuple[NDArray[np.float64], float]:
    """Power that modes above m = 0, 1, ... of rings ``i`` add to a white map's result at ring ``o``.

    The second return value is the power that all modes of a large ring add.
    """
    a, b = chord_terms(table.theta, np.full(len(i), o), i)
    x = a[:, None] + b[:, None] * np.sin(np.arange(n // 2 + 1) * (math.pi / n)) ** 2
    k = np.fft.irfft(radial(x) * (1 - x / 4) ** spin, n)[:, : n // 2 + 1]
    power = (table.n[i] * table.weight[i] ** 2)[:, None] * k**2
    rest = np.zeros_like(power)
    rest[:, :-1] = 2 * np.cumsum(power[:, :0:-1], axis=1)[:, ::-1]
    whole = rest[:, 0] + power[:, 0]
    return rest, float(min(whole.max(), 6 * whole.mean()))


def _enough(
    table: RingTable, radial: Radial, eps: float, spin: int, bound: NDArray[np.float64], zone: NDArray[np.int64],
    first: NDArray[np.int64], last: NDArray[np.int64],
) -> bool:  # fmt: skip
    """Quick check of a polar zone: whether no pair omits more than 0.6 ``eps`` of the contribution of a large ring."""
    for o in zone[np.unique(np.linspace(0, zone.size - 1, _LOOKS + 2).astype(np.int64)[1:-1])]:
        i = _some_rings(table, o, first[o], last[o], _SOME)
        kept = _with_margin(np.minimum(bound[o], bound[i]), spin)
        n = 1 << max(7, math.ceil(math.log2(4 * float(kept.max()) + 1)))
        rest, whole = _powers(table, radial, spin, int(o), i, n)
        if (rest[np.arange(len(i)), kept] > (0.6 * _reachable(radial, eps, spin)) ** 2 * whole).any():
            return False
    return True


def _raise(
    table: RingTable, radial: Radial, eps: float, spin: int, most: int, raised: NDArray[np.float64],
    zone: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64],
) -> None:  # fmt: skip
    """Raise the highest modes of rings around a pole to the modes that pairs need; infinite if these do not end."""
    least = (_reachable(radial, eps, spin) / 4) ** 2
    places = zone[_spread(zone.size, _SOME)]
    wanted = []
    for o in places:
        i = _some_rings(table, o, first[o], last[o], 2 * _SOME)
        n = 1 << max(8, math.ceil(math.log2(3 * float(raised[i].max()) + 1)))
        while True:
            rest, whole = _powers(table, radial, spin, int(o), i, n)
            need = (rest > least * whole).sum(axis=1).astype(np.float64)
            if need.max() < 0.75 * (n // 2):  # modes beyond n / 2 are aliased into the rest
                break
            if n > 4 * most:
                raised[first[o] : last[o]] = math.inf
                return
            n *= 2
        wanted.append(need.max())
        rings = np.arange(first[o], last[o])
        right = np.clip(np.searchsorted(i, rings), 0, len(i) - 1)
        near = np.maximum(need[right], need[np.maximum(right - (i[right] != rings), 0)])
        raised[rings] = np.maximum(raised[rings], 1.05 * near)
    for k in range(len(places) - 1):
        a, b = sorted((int(places[k]), int(places[k + 1])))
        raised[a : b + 1] = np.maximum(raised[a : b + 1], max(wanted[k], wanted[k + 1]))
    raised[places[-1]] = max(raised[places[-1]], wanted[-1])


def make_pairs(
    table: RingTable,
    radial: Radial,
    eps: float,
    mirrored: bool,
    wanted_rings: NDArray[np.bool_] | None = None,
    spin: int = 0,
    whole: bool = False,
) -> Pairs:
    """The pairs of a kernel on a grid.

    Parameters
    ----------
    table : RingTable
    radial : Radial
        With ``spin`` 2 the radial part of `legendre.jacobi_series`.
    eps : float
        Accuracy to which modes are cut.
    mirrored : bool
        Whether southern rings are mirror images of northern ones, so that only northern pairs are listed.
    wanted_rings : numpy.ndarray of bool, optional
        Rings whose output is wanted, or whose mirror image's output.
    spin : int
        0 or 2.
    whole : bool
        Whether a grid of equal, aligned rings uses all its modes; beyond the support only rounding errors then remain.

    Raises
    ------
    NotBandLimited
        Rings of different lengths lie within the support of a kernel whose modes do not end.
    """
    theta, n = table.theta, table.n
    rings = len(theta)
    first, last = reach(theta, radial.radius)
    outputs = np.arange((rings + 1) // 2 if mirrored else rings, dtype=np.int64)
    if wanted_rings is not None:
        used = wanted_rings | wanted_rings[::-1] if mirrored else wanted_rings
        outputs = outputs[used[outputs]]
    counts = (last - first)[outputs]
    pair = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    o = np.repeat(outputs, counts)
    i = np.arange(len(o)) - np.repeat(pair, counts) + np.repeat(first[outputs], counts)

    shift = (table.phi0[i] - table.phi0[o]) * n[o] / (2 * math.pi)
    half_shift = np.abs(np.abs(shift - np.rint(shift)) - 0.5) < 1e-9
    no_shift = np.abs(shift - np.rint(shift)) < 1e-9
    aligned = (n[o] == n[i]) & (no_shift | (half_shift & (n[o] % 2 == 0)))
    free = np.ones(rings, bool)
    free[o[~aligned]] = free[i[~aligned]] = False
    if mirrored:
        free &= free[::-1]
    modes: NDArray[np.int64] = n // 2
    if radial.hard and not free.all():
        raise NotBandLimited(
            "the kernel has an edge, so that its modes do not end, and the grid's rings differ in length: "
            "method='ring' cannot be used; use method='direct' or 'auto'"
        )
    if not radial.hard and not (whole and free.all()):
        bound = mode_bounds(table, radial, eps, spin)
        if not np.isfinite(bound[~free]).all():
            raise NotBandLimited(
                f"the kernel's modes do not fall below eps={eps:g}, and the grid's rings differ in length: "
                "method='ring' cannot be used; use method='direct' or 'auto'"
            )
        most = _with_margin(bound, spin)
        modes = np.where(free, np.minimum(modes, most), most)
    if mirrored:
        modes = np.maximum(modes, modes[::-1])

    wanted = 2 * np.minimum(modes[o], modes[i]) + 2
    # rings get a table of their own length only if a whole zone has that length
    own = aligned & (n[o] <= 1.1 * wanted) & np.isin(n[o], n[free])
    step = np.ceil(np.log(np.maximum(wanted, 8)) / math.log(LADDER)).astype(np.int64)
    sampled = 2 * np.ceil(LADDER**step / 2).astype(np.int64)
    key = np.where(own, 4 * n[o] + 2 * (~no_shift), 4 * sampled + 1)
    keys, which = np.unique(key, return_inverse=True)
    tables = tuple((int(k) // 4, int(k) // 2 % 2 if k % 4 != 1 else -1) for k in keys)
    return Pairs(first, last, modes.astype(np.int64), outputs, pair, which.astype(np.int64), tables)
