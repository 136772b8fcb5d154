"""Quadrature "band": corrected sums over HEALPix pixels, for maps with harmonics up to degree 3 nside - 1.

For such maps, the sum over pixels of kernel times map, weighted by solid angles, is accurate except at two places:

- at the two rings where caps and belt meet.  The step from ring to ring changes its slope there, and weights of some
  rings correct it (`seam_weights`);
- around the poles, where the rings have few pixels.  Weights of single pixels do not suffice there: a linear
  combination of pixels is added to each of the innermost pixels (`PolarCorrection`).

The combination is found by least squares: it minimises the expected square of the error of the smoothed map, for a
random map with a flat spectrum up to degree 3 nside - 1.  It depends only on the band limit of the map.  One correction
therefore serves all kernels, and Q and U too: in axes that do not rotate with the azimuth, Q + i U is smooth at a pole.

The mean of a map is subtracted before the sum, multiplied by the kernel's integral, and added after the sum.
`add_mean` is this last step on the CPU; `cuda.band_steps` has all steps on a GPU.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from skysieve.core.files import cache_folder, written
from skysieve.sphere.kernels.legendre import heat_kernel
from skysieve.sphere.kernels.shapes import FWHM

from .healpix import ring_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from skysieve.sphere.kernels.base import Kernel

__all__ = ["PolarCorrection", "polar_correction", "seam_weights"]

logger = logging.getLogger("skysieve")

LEAST_NSIDE = 8
"""Below this nside the rings around the poles reach the belt."""
CHANGED, READ = 16, 24
"""Number of rings around a pole that are corrected, and number of rings whose pixels the correction reads."""
WIDTH = 3.0
"""FWHM (pixels) of the Gaussian for which the correction is optimised."""
_ROOM, _NOISE = 3e-4, 1e-3
"""Relative variances that keep the least squares stable: of the smoothed map, and of white noise in the pixels."""
_SEAM, _SEAM_NSIDE = 16, 256
"""Number of rings with weights on each side of a seam, and nside for which these are computed (w - 1 ~ 1 / nside)."""
_NODES = 800
"""Angles at which the two functions of the angle are tabulated."""
_CHECK = 16
"""Bytes of the checksum of a stored matrix."""
_ONE_THREAD = 200_000
"""Multiply-adds of a matrix product that the BLAS library computes in one thread."""


@functools.lru_cache(maxsize=1)
def _seam() -> NDArray[np.float64]:
    """``nside`` times the correction of the weights of rings ``nside - 16 .. nside + 16``, for large nside.

    Least squares over waves in theta within a Gaussian envelope around the seam, whose integrals are known.
    """
    nside, width = _SEAM_NSIDE, 6.0
    theta, n, _, _ = ring_table(nside)
    area = math.pi / (3 * nside**2)
    seam = math.acos(2 / 3)
    s = width * 0.894 / nside
    near = np.flatnonzero(np.abs(theta - seam) < 11 * s)
    inner = np.searchsorted(near, np.arange(nside - 1 - _SEAM, nside + _SEAM))
    rows, right = [], []
    k = np.linspace(0, 3.4 * nside, 160)[:, None]
    for c in np.linspace(seam - 2 * s, seam + 2 * s, 9):
        x = theta[near] - c
        waves = n[near] * area * np.exp(-0.5 * (x / s) ** 2 + 1j * k * x)
        ends = [np.exp(1j * sign * c - 0.5 * (s * (k[:, 0] + sign)) ** 2) * sign for sign in (1, -1)]
        exact = 2 * math.pi * s * math.sqrt(2 * math.pi) * (ends[0] + ends[1]) / 2j
        for part in (np.real, np.imag):
            rows.append(part(waves[:, inner]))
            right.append(part(exact - waves.sum(axis=1)))
    a = np.concatenate(rows)
    scale = float(np.abs(a).max())
    a /= scale
    most = 1e-6 * len(a) / len(inner)
    found = np.linalg.solve(a.T @ a + most * np.eye(len(inner)), a.T @ (np.concatenate(right) / scale))
    return np.asarray(nside * found, np.float64)


def seam_weights(nside: int) -> NDArray[np.float64]:
    """Factors of the rings: 1 except around the two rings where caps and belt meet.

    Returns
    -------
    numpy.ndarray of float64, shape (4 nside - 1,)

    Examples
    --------
    >>> w = seam_weights(64)
    >>> print(w[0], round(64 * (w[63] - 1), 3))
    1.0 -0.126
    """
    weights = np.ones(4 * nside - 1)
    side = min(_SEAM, nside - 1)
    rings = np.arange(nside - 1 - side, nside + side)
    change = _seam()[_SEAM - side : _SEAM + side + 1] / nside
    weights[rings] += change
    weights[::-1][rings] += change
    return weights


class Lists(NamedTuple):
    """Pixels, shape (4, 2, n), and exp(2 i phi) at each (conjugated around the south pole)."""

    at: NDArray[np.int64]
    turn: NDArray[np.complex128]


class PolarCorrection:
    """The correction that is added to the pixels around the poles of maps in RING order.

    The grid is symmetric under quarter turns and under reflection at the equator, so that a small matrix is enough.

    Parameters
    ----------
    nside : int
    matrix : numpy.ndarray of float64, shape (a, b)
        ``matrix @ map[:b]`` is added to the ``a`` pixels of the first quarter of the rings around a pole.
    """

    def __init__(self, nside: int, matrix: NDArray[np.float64]) -> None:
        self.nside, self.matrix = nside, matrix
        _, n, phi0, start = ring_table(nside)
        changed, read = (_rings_of(count, nside) for count in (4 * len(matrix), matrix.shape[1]))
        rings, within = _ring_and_place(read)
        phi = phi0[rings] + 2 * math.pi * within / n[rings]
        self._turn = np.exp(2j * phi)
        south = start[::-1][rings] + within
        self._places = [np.arange(len(rings)), south]
        first = np.concatenate([start[r] + np.arange(r + 1) for r in range(changed)])
        self._read = np.stack([_turned(read, k) for k in range(4)])
        self._changed = np.stack([_turned(changed, k)[first] for k in range(4)])

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix and its tables."""
        return sum(a.nbytes for a in (self.matrix, *self._places, self._turn, self._read, self._changed))

    def pixels(self) -> tuple[Lists, Lists]:
        """The pixels that are read, and the pixels of the first quarter of the rings that are corrected.

        Each is listed after 0 to 3 quarter turns, and for both poles.
        """
        turns = (self._turn, self._turn.conj())
        read, changed = (
            Lists(*(np.array([[a[at] for a in both] for at in ways]) for both in (self._places, turns)))
            for ways in (self._read, self._changed)
        )
        return read, changed

    def before(self) -> NDArray[np.int64]:
        """For each pixel that is read, the pixel that 0 to 3 quarter turns move to its position, shape (4, read)."""
        return self._read[[0, 3, 2, 1]]

    def add(self, maps: NDArray[Any], spin: int = 0, transposed: bool = False) -> None:
        """Correct maps (..., [2,] npix) in place; with ``transposed`` apply the transposed operator."""
        of, to = (self._changed, self._read) if transposed else (self._read, self._changed)
        matrix = self.matrix if transposed else self.matrix.T
        for where, turn in zip(self._places, (self._turn, self._turn.conj()), strict=True):
            found = maps[..., where].astype(np.float64)
            if spin:
                smooth = (found[..., 0, :] + 1j * found[..., 1, :]) * turn
                found = np.stack([smooth.real, smooth.imag], axis=-2)
            found = _product(found[..., of], matrix)
            change = np.zeros((*maps.shape[:-1], len(where)), np.float64)
            for k in range(4):
                change[..., to[k]] += found[..., k, :]
            if spin:
                smooth = (change[..., 0, :] + 1j * change[..., 1, :]) * turn.conj()
                change = np.stack([smooth.real, smooth.imag], axis=-2)
            maps[..., where] += change.astype(maps.dtype)


def _product(x: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """``x @ matrix`` in pieces small enough that BLAS does not start threads, which would cost more than they save."""
    rows = x.reshape(-1, x.shape[-1])
    out = np.empty((len(rows), matrix.shape[1]))
    step = max(1, _ONE_THREAD // (4 * len(matrix)))
    for a in range(0, len(rows), 4):
        for b in range(0, out.shape[1], step):
            out[a : a + 4, b : b + step] = rows[a : a + 4] @ matrix[:, b : b + step]
    return out.reshape(*x.shape[:-1], matrix.shape[1])


def _rings_of(pixels: int, nside: int) -> int:
    """Number of rings around a pole that hold ``pixels`` pixels."""
    rings = round((math.sqrt(1 + 2 * pixels) - 1) / 2)
    assert 2 * rings * (rings + 1) == pixels
    assert rings <= nside
    return rings


def _ring_and_place(rings: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ring (from 0) of each pixel of the innermost rings, and number of the pixel on its ring."""
    ring = np.repeat(np.arange(rings), 4 * np.arange(1, rings + 1))
    return ring, np.arange(len(ring)) - 2 * ring * (ring + 1)


def _turned(rings: int, quarters: int) -> NDArray[np.int64]:
    """The pixels to which quarter turns move the pixels of the innermost rings."""
    ring, within = _ring_and_place(rings)
    return np.asarray(2 * ring * (ring + 1) + (within + quarters * (ring + 1)) % (4 * ring + 4), np.int64)


@functools.lru_cache(maxsize=8)
def polar_correction(nside: int) -> PolarCorrection | None:
    """The correction of a grid, computed at its first use on this machine; None below `LEAST_NSIDE`."""
    if nside < LEAST_NSIDE:
        return None
    path = _path(nside)
    matrix = _read(path, nside)
    if matrix is None:
        matrix = _matrix(nside)
        _write(path, matrix)
    return PolarCorrection(nside, matrix)


def _path(nside: int) -> Path:
    """The file of a matrix in the user's cache folder; another version of the package has another file."""
    from skysieve import __version__

    return cache_folder() / f"polar-correction-{__version__}-{CHANGED}-{READ}-{WIDTH:g}-{nside}.bin"


def _read(path: Path, nside: int) -> NDArray[np.float64] | None:
    """The matrix in a file of `_write`; None if there is no such file, or if it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    check, data = content[:_CHECK], content[_CHECK:]
    rings = min(READ, nside)
    inner = min(CHANGED, rings)
    shape = inner * (inner + 1) // 2, 2 * rings * (rings + 1)
    if len(data) != 8 * shape[0] * shape[1] or hashlib.blake2b(data, digest_size=_CHECK).digest() != check:
        logger.info("%s is damaged: the correction is computed again", path)
        return None
    return np.frombuffer(data, "<f8").astype(np.float64, copy=False).reshape(shape)


def _write(path: Path, matrix: NDArray[np.float64]) -> None:
    """Store a checksum and a matrix; if the folder cannot be written, nothing is stored."""
    data = matrix.astype("<f8").tobytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written(path) as part:
            part.write_bytes(hashlib.blake2b(data, digest_size=_CHECK).digest() + data)
    except OSError as error:
        logger.info("%s cannot be written: the next process computes the correction again (%s)", path, error)


@functools.lru_cache(maxsize=4)
def _matrix(nside: int) -> NDArray[np.float64]:
    """The matrix of `PolarCorrection`, by least squares; see the module's docstring."""
    from scipy.interpolate import CubicSpline
    from scipy.linalg import cho_factor, cho_solve
    from scipy.special import eval_jacobi

    theta, n, phi0, start = ring_table(nside)
    rings = min(READ, nside)
    inner = min(CHANGED, rings)
    changed, read = 2 * inner * (inner + 1), 2 * rings * (rings + 1)
    sigma = WIDTH * math.sqrt(math.pi / 3) / nside / FWHM
    wide = math.sqrt(2) * sigma  # the kernel, applied twice
    last = min(int(np.searchsorted(theta, theta[inner - 1] + 6.5 * wide)), len(theta))
    count = int(start[last - 1] + n[last - 1])
    ring = np.repeat(np.arange(last), n[:last])
    phi = phi0[ring] + 2 * math.pi * (np.arange(count) - start[ring]) / n[ring]
    sine = np.sin(theta[ring])
    at = np.stack([sine * np.cos(phi), sine * np.sin(phi), 2 * np.sin(theta[ring] / 2) ** 2], axis=1)
    weight = math.pi / (3 * nside**2) * seam_weights(nside)[ring]

    top = 3 * nside - 1
    reach = min(math.pi, theta[last - 1] + theta[rings - 1] + 1e-3 / nside)
    angle = np.linspace(0, reach, _NODES)
    band = (top + 1) / (4 * math.pi) * eval_jacobi(top, 1, 0, np.cos(angle))  # the sum of all P_l up to the top
    chord = 2 * np.sin(angle / 2)
    band_of, kernel_of = CubicSpline(chord, band), CubicSpline(chord, heat_kernel(angle, wide))

    def table(values: Any, a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        square = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1)
        return np.asarray(values(np.minimum(np.sqrt(square), chord[-1])), np.float64)

    quarter = np.concatenate([start[r] + np.arange(r + 1) for r in range(inner)])
    wrong = (table(kernel_of, at[quarter], at) * weight) @ table(band_of, at, at[:read])
    wrong -= table(kernel_of, at[quarter], at[:read])
    whole = np.empty((changed, read))
    for k in range(4):  # the grid is symmetric under quarter turns
        whole[np.ix_(_turned(inner, k)[quarter], _turned(rings, k))] = wrong
    smooth = table(kernel_of, at[:changed], at[:changed])
    smooth[np.diag_indices(changed)] *= 1 + _ROOM
    known = table(band_of, at[:read], at[:read])
    known[np.diag_indices(read)] *= 1 + _NOISE
    half = cho_solve(cho_factor(smooth), whole)[quarter]
    matrix = np.ascontiguousarray(-cho_solve(cho_factor(known), half.T).T / weight[quarter, None])
    matrix.flags.writeable = False
    return matrix


def mean_of(x: NDArray[Any], spin: int) -> Any:
    """The mean of one map; 0 for Q and U."""
    return 0.0 if spin else x.mean(dtype=np.float64)


def add_mean(
    out: NDArray[Any], mean: Any, kernels: Sequence[Kernel], polar: PolarCorrection | None, spin: int, transposed: bool
) -> None:
    """Add the smoothed mean to the results (K, [2,] npix) of one map, which were made without its mean.

    With ``transposed``, the results are from the transposed operator, whose last step is the polar correction.
    """
    if transposed and polar is not None:
        polar.add(out, spin, transposed=True)
    if spin:
        return
    for kernel, row in zip(kernels, out, strict=True):
        row += (mean * float(kernel.window(0)[0]) - (mean_of(row, 0) if transposed else 0.0)).astype(row.dtype)
