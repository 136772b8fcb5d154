"""Quadrature weights of rings: HEALPix by conjugate gradients, Fejer and Clenshaw-Curtis in closed form."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from .healpix import ring_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["clenshaw_curtis", "fejer", "healpix_ring_weights"]

DEGREE = 3.0
"""Integrals of zonal harmonics are exact up to this multiple of nside; for a larger one the weights would diverge."""
_ROUNDS = 60
_RESIDUAL = 1e-11


@functools.lru_cache(maxsize=8)
def healpix_ring_weights(nside: int) -> NDArray[np.float64]:
    """Factors close to 1, one for each ring, that make the pixel sum exact for zonal harmonics up to degree 3 nside.

    Of all such factors these have the least mean square of ``w - 1``.  The harmonics are nearly orthonormal on the
    grid, so that conjugate gradients on their Gram matrix need few iterations.

    Parameters
    ----------
    nside : int

    Returns
    -------
    numpy.ndarray of float64, shape (4 nside - 1,)
        Symmetric about the equator; read-only.

    Examples
    --------
    >>> w = healpix_ring_weights(16)
    >>> theta, n, _, _ = ring_table(16)
    >>> print(round(float((n * w * np.cos(theta) ** 2).sum() / n.sum()), 12))
    0.333333333333
    """
    theta, n, _, _ = ring_table(nside)
    half = 2 * nside
    area = math.pi / (3.0 * nside**2)
    count = 2.0 * n[:half]
    count[-1] /= 2
    root = np.sqrt(area * count)
    z = np.cos(theta[:half])
    z[-1] = 0.0
    degrees = int(DEGREE * nside) // 2 + 1

    right = -_moments(z, root * root, degrees)
    right[0] += math.sqrt(4 * math.pi)
    solution, residual = np.zeros(degrees), right
    direction, norm = residual.copy(), float(residual @ residual)
    first = norm
    for _ in range(_ROUNDS):
        if norm <= _RESIDUAL**2 * max(first, 1e-300):
            break
        image = _moments(z, root * (root * _series(z, direction)), degrees)
        step = norm / float(direction @ image)
        solution = solution + step * direction
        residual = residual - step * image
        new = float(residual @ residual)
        direction, norm = residual + new / norm * direction, new
    w = 1 + _series(z, solution)
    whole = np.concatenate([w, w[-2::-1]])
    whole.flags.writeable = False
    return whole


def _rows(z: NDArray[np.float64], degrees: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield normalised Legendre functions of degrees 0, 2, 4, ... at ``z``."""
    square = z * z
    n = np.arange(2 * degrees + 2)
    alpha = n / np.sqrt(4.0 * n * n - 1 + 2 * (n == 0))  # z p_n = alpha_{n+1} p_{n+1} + alpha_n p_{n-1}
    before, now, work = np.zeros_like(z), np.full_like(z, math.sqrt(0.25 / math.pi)), np.empty_like(z)
    for k in range(degrees):
        yield k, now
        m = 2 * k
        np.subtract(square, alpha[m + 1] ** 2 + alpha[m] ** 2, out=work)
        work *= now
        if m:
            before *= alpha[m] * alpha[m - 1]
            work -= before
        work *= 1 / (alpha[m + 1] * alpha[m + 2]) if m + 2 < len(alpha) else 1.0
        before, now, work = now, work, before


def _moments(z: NDArray[np.float64], x: NDArray[np.float64], degrees: int) -> NDArray[np.float64]:
    out = np.empty(degrees)
    for k, p in _rows(z, degrees):
        out[k] = p @ x
    return out


def _series(z: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.zeros_like(z)
    term = np.empty_like(z)
    for k, p in _rows(z, len(c)):
        np.multiply(p, c[k], out=term)
        out += term
    return out


def fejer(n: int) -> NDArray[np.float64]:
    """Weights of Fejer's first rule at ``theta = (j + 1/2) pi / n`` for integrals over cos(theta); their sum is 2.

    Examples
    --------
    >>> print(fejer(2))
    [1. 1.]
    """
    k = np.arange(1, n // 2 + 1)
    theta = (np.arange(n) + 0.5) * math.pi / n
    return np.asarray(2 / n * (1 - 2 * np.cos(2 * np.outer(theta, k)) @ (1 / (4.0 * k * k - 1))), np.float64)


def clenshaw_curtis(n: int) -> NDArray[np.float64]:
    """Weights of Clenshaw and Curtis at ``theta = j pi / (n - 1)``, both poles included.

    Examples
    --------
    >>> print(clenshaw_curtis(3) * 3)
    [1. 4. 1.]
    """
    m = n - 1
    k = np.arange(1, m // 2 + 1)
    b = np.where(2 * k == m, 1.0, 2.0) / (4.0 * k * k - 1)
    theta = np.arange(n) * math.pi / m
    w = 2 / m * (1 - np.cos(2 * np.outer(theta, k)) @ b)
    w[[0, -1]] /= 2
    return np.asarray(w, np.float64)
