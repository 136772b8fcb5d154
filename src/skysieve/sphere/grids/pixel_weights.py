"""Quadrature weights of HEALPix, one for each pixel: integrals of all harmonics up to degree 3 nside become exact.

The weights have the grid's symmetries (quarter turns, mirrors), so that a short list of distinct weights describes all
of them.  HEALPix's files of "full weights" hold this list.  If there is no file, conjugate gradients find the weights
with the least mean square of ``w - 1``, for small maps.
"""

from __future__ import annotations

import functools
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .healpix import ring_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["find_table", "full_map", "healpix_pixel_weights", "read_weights", "weights_file"]

MOST_NSIDE = 256
"""Largest nside for which weights are computed: it takes 250 MB of tables and a minute."""
FEW = 16
"""Below this nside the weights are made exact up to degree 2 nside only: up to 3 nside they would be far from 1."""
_ROUNDS, _RESIDUAL = 800, 1e-7
NAME = "healpix_full_weights_nside_{:04d}.fits"


def distinct(nside: int) -> int:
    """Number of distinct weights."""
    return (3 * nside + 1) * (nside + 1) // 4


def places(nside: int) -> list[NDArray[np.int64]]:
    """Indices into the list of distinct weights, for one quarter of each ring from the north pole to the equator."""
    found, first = [], 0
    for ring in range(1, 2 * nside + 1):
        n = min(nside, ring)
        shifted = ring < nside or (ring - nside) % 2 == 0
        j = np.arange(n)
        mirrored = np.minimum(j, n - j - 1) if shifted else np.minimum(j, n - j)
        found.append(first + mirrored)
        first += (n + 1) // 2 if shifted else n // 2 + 1
    assert first == distinct(nside)
    return found


def full_map(weights: NDArray[np.float64], nside: int) -> NDArray[np.float64]:
    """Factors of all pixels (RING) from the list of distinct weights, given as ``w - 1``."""
    north = [np.tile(1 + weights[p], 4) for p in places(nside)]
    return np.concatenate([*north, *north[-2::-1]])


def weights_file(nside: int, datapath: Any = None) -> Path:
    """HEALPix's file of pixel weights; see `find_table`."""
    return find_table(NAME.format(nside), datapath)


def find_table(name: str, datapath: Any = None) -> Path:
    """Find a table of HEALPix: in ``datapath`` if given, otherwise in ``$HEALPIX/data`` or in an installed healpy.

    Raises
    ------
    ValueError
        The file is in none of these folders or their subfolders ``full_weights``.
    """
    folders = [] if datapath is None else [Path(datapath)]
    if datapath is None and "HEALPIX" in os.environ:
        folders.append(Path(os.environ["HEALPIX"]) / "data")
    healpy = find_spec("healpy") if datapath is None else None
    if healpy is not None and healpy.origin is not None:
        folders.append(Path(healpy.origin).parent / "data")
    for folder in folders:
        for path in (folder / name, folder / "full_weights" / name):
            if path.is_file():
                return path
    where = ", ".join(map(str, folders)) or "datapath, $HEALPIX/data or an installed healpy"
    raise ValueError(f"weights: {name} was not found in {where}")


def read_weights(path: Path, nside: int) -> NDArray[np.float64]:
    """Read the list of distinct weights from a file of HEALPix, for `full_map`."""
    from astropy.io import fits

    with fits.open(path) as hdus:
        found = np.asarray(hdus[1].data.field(0), np.float64).ravel()
    if len(found) < distinct(nside) or not np.isfinite(found).all():
        raise ValueError(f"{path}: expected {distinct(nside)} weights of nside {nside}, found {len(found)}")
    return found[: distinct(nside)]


@functools.lru_cache(maxsize=4)
def healpix_pixel_weights(nside: int) -> NDArray[np.float64]:
    """Factors close to 1, one for each pixel (RING), read from a file or computed.

    Raises
    ------
    ValueError
        There is no file, and nside is above 256.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere.grids.healpix import pix2ang
    >>> w, (theta, phi) = healpix_pixel_weights(4), pix2ang(4, np.arange(192))
    >>> print(abs((w * np.sin(theta) ** 4 * np.cos(4 * phi)).mean()) < 1e-8)
    True
    """
    try:
        path = weights_file(nside)
    except ValueError as error:
        if nside > MOST_NSIDE:
            raise ValueError(
                f"quadrature='pixel' at nside {nside} needs HEALPix's file of weights (without one they are computed "
                f"up to nside {MOST_NSIDE}): {error}"
            ) from None
        whole = full_map(solve(nside), nside)
    else:
        whole = full_map(read_weights(path, nside), nside)
    whole.flags.writeable = False
    return whole


def solve(nside: int) -> NDArray[np.float64]:
    """Find the distinct weights minus 1 by conjugate gradients on a Gram matrix of harmonics.

    Only harmonics that have the grid's symmetries matter: even l, m = 0, 4, 8, ..., and a cosine in azimuth.
    """
    theta, n, phi0, _ = ring_table(nside)
    listed = places(nside)
    half, lmax = 2 * nside, (3 if nside >= FEW else 2) * nside
    degrees = [_legendre(theta[:half], m, lmax) for m in range(0, lmax + 1, 4)]
    sizes = np.concatenate([[0], np.cumsum([len(p) for p in degrees])])
    m = 4 * np.arange(len(degrees))
    count = np.zeros(distinct(nside))
    first, waves = [], []
    for r, p in enumerate(listed):
        np.add.at(count, p, 8.0 if r < half - 1 else 4.0)
        first.append(int(p[0]))
        azimuth = phi0[r] + 2 * math.pi * np.arange(p.max() - p[0] + 1) / n[r]
        waves.append(np.cos(np.outer(azimuth, m)))
    first.append(len(count))
    root = np.sqrt(count * math.pi / (3.0 * nside**2))

    def synthesis(c: NDArray[np.float64]) -> NDArray[np.float64]:
        rings = np.stack([p.T @ c[a:b] for p, a, b in zip(degrees, sizes[:-1], sizes[1:], strict=True)], axis=1)
        return np.concatenate([w @ f for w, f in zip(waves, rings, strict=True)])

    def analysis(x: NDArray[np.float64]) -> NDArray[np.float64]:
        rings = np.stack([w.T @ x[a:b] for w, a, b in zip(waves, first[:-1], first[1:], strict=True)])
        return np.concatenate([p @ rings[:, k] for k, p in enumerate(degrees)])

    residual = -analysis(root * root)
    residual[0] += math.sqrt(4 * math.pi)
    solution, direction = np.zeros_like(residual), residual.copy()
    norm = least = float(residual @ residual)
    for _ in range(_ROUNDS):
        if norm <= _RESIDUAL**2 * max(least, 1e-300):
            break
        image = analysis(root * (root * synthesis(direction)))
        step = norm / float(direction @ image)
        solution += step * direction
        residual -= step * image
        new = float(residual @ residual)
        direction, norm = residual + new / norm * direction, new
    return synthesis(solution)


def _legendre(theta: NDArray[np.float64], m: int, lmax: int) -> NDArray[np.float64]:
    """Normalised associated Legendre functions of even l = m, m + 2, ... up to ``lmax``, (L, R)."""
    z, sine = np.cos(theta), np.sin(theta)
    k = np.arange(1, m + 1)
    top = 0.5 * (math.log((2 * m + 1) / (4 * math.pi)) + float(np.log((2 * k - 1) / (2.0 * k)).sum()))
    before, now = np.zeros_like(z), np.exp(top + m * np.log(sine))
    rows = []
    for degree in range(m, lmax + 1):
        if (degree - m) % 2 == 0:
            rows.append(now * (1 if m == 0 else math.sqrt(2)))
        a = math.sqrt((4.0 * (degree + 1) ** 2 - 1) / ((degree + 1) ** 2 - m * m))
        b = math.sqrt(max(0.0, (degree * degree - m * m) / (4.0 * degree * degree - 1))) if degree else 0.0
        before, now = now, a * (z * now - b * before)
    return np.array(rows)
