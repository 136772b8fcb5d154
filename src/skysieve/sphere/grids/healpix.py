"""HEALPix geometry (Gorski et al. 2005, ApJ 622, 759): rings, pixel centres, RING and NESTED numbers, in int64.

Rings are counted from 1 at the north pole to ``4 nside - 1`` at the south pole, as in the paper.
"""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.core.tasks import TaskPool

R = TypeVar("R")

__all__ = [
    "ORDERINGS", "ang2pix", "bad_pixels", "check_nside", "nest2ring", "npix2nside", "ordering", "pix2ang", "reorder",
    "ring_table",
]  # fmt: skip

MAX_NSIDE = 2**29
"""Largest nside whose pixel numbers fit in 64 bits."""
UNSEEN = -1.6375e30
"""Value of a pixel without data, the same in all HEALPix programs."""
ORDERINGS = {"RING": False, "NESTED": True, "NEST": True}
"""Orders of pixels, as in the card ORDERING, and whether the order is NESTED."""
CHUNK = 1 << 15
"""Number of pixels that are renumbered at a time; their numbers fit in the cache."""
PIECE = 8 * CHUNK
"""Pixels of a task of a thread."""


def bad_pixels(maps: Any, dtype: Any, pool: TaskPool | None = None) -> Any:
    """Pixels that are UNSEEN, NaN or infinite as numbers of ``dtype``; None if there are none.

    Parameters
    ----------
    maps : numpy.ndarray
    dtype : numpy.dtype
        float32 or float64.
    pool : TaskPool, optional
        Threads to look for them.

    Returns
    -------
    numpy.ndarray of bool or None

    Examples
    --------
    >>> print(bad_pixels(np.array([1.0, UNSEEN, np.inf]), np.dtype(np.float32)), bad_pixels(np.ones(3), np.float64))
    [False  True  True] None
    """
    flat = maps.reshape(-1)
    least, most = 0.9 * UNSEEN, float(np.finfo(dtype).max)

    def plain(a: int, b: int) -> bool:
        with np.errstate(invalid="ignore"):
            for k in range(a, b, CHUNK):  # pieces that fit in the cache
                piece = flat[k : min(k + CHUNK, b)]
                if not (float(piece.min()) > least and float(piece.max()) < most):  # NaN passes neither test
                    return False
        return True

    if all(in_pieces(plain, len(flat), pool)):
        return None
    bad = np.empty(len(flat), bool)

    def mark(a: int, b: int) -> bool:
        for k in range(a, b, CHUNK):
            with np.errstate(over="ignore"):
                piece = flat[k : min(k + CHUNK, b)].astype(dtype)
            bad[k : k + len(piece)] = ~np.isfinite(piece) | (np.abs(piece - piece.dtype.type(UNSEEN)) <= tolerance)
        return bool(bad[a:b].any())

    tolerance = 1e-5 * abs(UNSEEN)
    return bad.reshape(maps.shape) if any(in_pieces(mark, len(flat), pool)) else None


def in_pieces(work: Callable[[int, int], R], npix: int, pool: TaskPool | None) -> list[R]:
    """Call ``work(first, last)`` for ranges of pixels that cover a map, on threads if there are some."""
    tasks = [partial(work, a, min(a + PIECE, npix)) for a in range(0, npix, PIECE)]
    return [task() for task in tasks] if pool is None else pool.run(tasks)


def ordering(nest: bool) -> str:
    """The name of the order in `ORDERINGS`."""
    return next(name for name, nested in ORDERINGS.items() if nested == nest)


def check_nside(nside: Any, nest: bool = False, name: str = "nside") -> int:
    """Check ``nside`` and return it as an integer; ``name`` is the argument's name in errors.

    Raises
    ------
    ValueError
        ``nside`` is not a whole number of at least 1, or not a power of two although pixels are NESTED.

    Examples
    --------
    >>> check_nside(48)
    48
    """
    value = int(nside) if isinstance(nside, int | np.integer) and not isinstance(nside, bool) else 0
    if not 1 <= value <= MAX_NSIDE:
        raise ValueError(f"{name}={nside!r}: expected a whole number from 1 to 2**29")
    if nest and value & (value - 1):
        raise ValueError(f"{name}={value}: NESTED order needs a power of two")
    return value


def npix2nside(npix: int) -> int:
    """``nside`` of a map of ``npix`` pixels.

    Raises
    ------
    ValueError
        ``npix`` is not 12 nside^2.

    Examples
    --------
    >>> npix2nside(12 * 48**2)
    48
    """
    nside = math.isqrt(max(0, int(npix)) // 12)
    if nside < 1 or 12 * nside * nside != npix:
        raise ValueError(f"a map of {npix} pixels is not a HEALPix map: expected 12 nside^2: 12, 48, 108, 192, ...")
    return nside


def ring_table(
    nside: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Colatitude, pixels, azimuth of the first pixel (rad) and number of the first pixel of each ring.

    Returns
    -------
    theta : numpy.ndarray of float64, shape (4 nside - 1,)
        Mirrored exactly about the equator: ``theta[i] + theta[-1 - i]`` rounds to pi.
    n, start : numpy.ndarray of int64
    phi0 : numpy.ndarray of float64

    Examples
    --------
    >>> theta, n, phi0, start = ring_table(2)
    >>> n.tolist(), start.tolist()
    ([4, 8, 8, 8, 8, 8, 4], [0, 4, 12, 20, 28, 36, 44])
    """
    theta, n, phi0, start = _ring_table(nside)
    return theta.copy(), n.copy(), phi0.copy(), start.copy()


@functools.lru_cache(4)
def _ring_table(
    nside: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    north = np.arange(1, 2 * nside + 1, dtype=np.int64)
    cap = 2 * np.arcsin(np.minimum(north, nside) / (math.sqrt(6) * nside))
    belt = np.arccos(np.clip(4 / 3 - 2 * north / (3 * nside), -1, 1))
    t = np.where(north < nside, cap, belt)
    t[-1] = math.pi / 2
    theta = np.concatenate([t, math.pi - t[-2::-1]])
    length = 4 * np.minimum(north, nside)
    n = np.concatenate([length, length[-2::-1]])
    shifted = (north < nside) | ((north - nside) % 2 == 0)
    first = np.where(shifted, math.pi / length, 0.0)
    phi0 = np.concatenate([first, first[-2::-1]])
    start = np.concatenate([[0], np.cumsum(n)[:-1]]).astype(np.int64)
    return theta, n, phi0, start


def nest2ring(nside: int, pix: Any) -> NDArray[np.int64]:
    """RING numbers of NESTED pixels.

    Parameters
    ----------
    nside : int
        A power of two.
    pix : array_like of int
        From 0 to ``12 nside^2 - 1``.

    Examples
    --------
    >>> nest2ring(2, [0, 1, 2, 3]).tolist()
    [13, 5, 4, 0]
    """
    nside = check_nside(nside, nest=True)
    p = np.asarray(pix, np.int64)
    if p.size and not (p.min() >= 0 and p.max() < 12 * nside * nside):
        raise ValueError(f"pix holds {p.min()} to {p.max()}: expected 0 to {12 * nside * nside - 1}")
    from .cpu_healpix import ring_numbers

    out = np.empty(p.shape, np.int64)
    ring_numbers(nside, np.ascontiguousarray(p).reshape(-1), out.reshape(-1))
    return out


def reorder(maps: NDArray[Any], *, to: str, pool: TaskPool | None = None) -> NDArray[Any]:
    """Copy maps of shape (..., npix) from NESTED order to ``to="ring"``, or from RING order to ``to="nest"``.

    The threads of a ``pool`` share the pixels.

    Examples
    --------
    >>> import numpy as np
    >>> m = np.arange(48.0)
    >>> bool((reorder(reorder(m, to="ring"), to="nest") == m).all())
    True
    """
    if to not in ("ring", "nest"):
        raise ValueError(f"to={to!r}: expected 'ring' or 'nest'")
    npix = maps.shape[-1]
    nside = npix2nside(npix)
    out = np.empty_like(maps)

    def move(first: int, last: int) -> None:
        for a in range(first, last, CHUNK):
            b = min(last, a + CHUNK)
            ring = nest2ring(nside, np.arange(a, b))
            if to == "ring":
                out[..., ring] = maps[..., a:b]
            else:
                out[..., a:b] = maps[..., ring]

    in_pieces(move, npix, pool)
    return out


def pix2ang(nside: int, pix: Any, nest: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Colatitude and azimuth (rad) of pixel centres.

    Examples
    --------
    >>> theta, phi = pix2ang(1, [4])
    >>> print(theta[0] == np.pi / 2, phi[0])
    True 0.0
    """
    p = nest2ring(nside, pix) if nest else np.asarray(pix, np.int64)
    nside = check_nside(nside, nest)
    if p.size and not (p.min() >= 0 and p.max() < 12 * nside * nside):
        raise ValueError(f"pix holds {p.min()} to {p.max()}: expected 0 to {12 * nside * nside - 1}")
    theta, n, phi0, start = ring_table(nside)
    ring = np.searchsorted(start, p, side="right") - 1
    return theta[ring], phi0[ring] + 2 * math.pi * (p - start[ring]) / n[ring]


def ang2pix(nside: int, theta: Any, phi: Any) -> NDArray[np.int64]:
    """RING pixels in which points lie, given by colatitude and azimuth (rad).

    In the belt the edges of pixels are straight lines in ``cos(theta)`` and azimuth.  In a cap they are lines of
    constant ``r f`` and ``r (1 - f)``, where r is the number of the ring, as a continuous function of the colatitude,
    and f the fraction of the quarter of the sky (Gorski et al. 2005, section 4).

    Examples
    --------
    >>> ang2pix(2, [0.0, np.pi / 2], [0.8, 0.0]).tolist()
    [0, 20]
    """
    nside = check_nside(nside)
    t, p = np.broadcast_arrays(np.asarray(theta, np.float64), np.asarray(phi, np.float64))
    quarters = np.mod(p / (math.pi / 2), 4)
    # belt: twice the azimuth in pixels plus and minus the number of the ring, each in intervals of length 2
    along, down = 2 * nside * quarters, nside * (2 - 1.5 * np.cos(t))
    rising = np.floor((along + down - nside) / 2).astype(np.int64)
    falling = np.floor((along - down - nside) / 2).astype(np.int64)
    ring = np.clip(rising - falling, nside, 3 * nside)
    column = (nside + 1 + rising + falling) // 2 % (4 * nside)
    belt = 2 * nside * (nside - 1) + (ring - nside) * 4 * nside + column
    # caps, with rings counted from the nearer pole; minimum guards against rounding on the edge of the belt
    south = t > math.pi / 2
    r = math.sqrt(6) * nside * np.sin(np.where(south, math.pi - t, t) / 2)
    whole = np.floor(quarters)
    f = quarters - whole
    east, west = np.floor(r * f).astype(np.int64), np.floor(r * (1 - f)).astype(np.int64)
    ring = np.minimum(east + west + 1, nside)
    column = whole.astype(np.int64) % 4 * ring + np.minimum(east, ring - 1)
    cap = np.where(south, 12 * nside**2 - 2 * ring * (ring + 1), 2 * ring * (ring - 1)) + column
    return np.asarray(np.where(r < nside, cap, belt), np.int64)
