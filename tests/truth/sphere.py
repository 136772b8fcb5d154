"""Reference convolution on the sphere: the sum over pixels in float64, by a matrix of kernel values; for small maps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.sphere.grids.grid import RingTable

__all__ = ["angles", "convolve", "convolve_spin", "matrix"]


def angles(table: RingTable, rows: Any = slice(None)) -> NDArray[np.float64]:
    """Angle between pixels ``rows`` and every pixel, by haversines: accurate at all angles."""
    theta, phi, _ = table.pixels()
    t, p = theta[rows][:, None], phi[rows][:, None]
    h = np.sin((theta - t) / 2) ** 2 + np.sin(t) * np.sin(theta) * np.sin((phi - p) / 2) ** 2
    return np.asarray(2 * np.arcsin(np.minimum(1, np.sqrt(h))), np.float64)


def matrix(
    table: RingTable, profile: Callable[[Any], NDArray[np.float64]], radius: float = math.pi, rows: Any = slice(None)
) -> NDArray[np.float64]:
    """``K(p, q) w(q)`` for pixels p in ``rows`` and all q; zero beyond ``radius``."""
    alpha = angles(table, rows)
    near = alpha <= radius
    value = np.zeros_like(alpha)
    value[near] = profile(alpha[near])
    return value * table.pixels()[2]


def convolve(
    table: RingTable,
    profile: Callable[[Any], NDArray[np.float64]],
    maps: NDArray[Any],
    radius: float = math.pi,
    rows: Any = slice(None),
) -> NDArray[np.float64]:
    """``sum_q K(p, q) w(q) r(q)`` for pixels p in ``rows``: what every engine computes."""
    return np.asarray(maps, np.float64) @ matrix(table, profile, radius, rows).T


def convolve_spin(
    table: RingTable, window: NDArray[np.float64], maps: NDArray[Any], rows: Any = slice(None)
) -> NDArray[np.float64]:
    """Q and U (2, npix) convolved with a window of E and B, at pixels ``rows``.

    ``Q + i U`` of each pixel is carried along the great circle to the other one, turned by the difference of the
    circle's angles with the two meridians, and weighted by ``sum (2 l + 1) / 4 pi K_l d^l_22``.
    """
    from scipy.special import eval_jacobi

    theta, phi, weight = table.pixels()
    point = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], -1)
    south = np.stack([np.cos(theta) * np.cos(phi), np.cos(theta) * np.sin(phi), -np.sin(theta)], -1)
    east = np.stack([-np.sin(phi), np.cos(phi), 0 * phi], -1)
    alpha = angles(table, rows)
    degrees = np.arange(2, len(window))
    kernel = np.zeros_like(alpha)
    for k in degrees:
        kernel += (2 * k + 1) / (4 * math.pi) * window[k] * eval_jacobi(k - 2, 0, 4, np.cos(alpha))
    kernel *= np.cos(alpha / 2) ** 4
    # the direction of the great circle from q to p is p - (q . p) q at q, and (q . p) p - q at p
    at_pixel = np.arctan2(point[rows] @ east.T, point[rows] @ south.T)
    at_point = np.arctan2(-(east[rows] @ point.T), -(south[rows] @ point.T))
    frames = np.cos(theta[rows])[:, None] * (phi - phi[rows][:, None])  # for pixels at one place, such as a pole
    turn = np.exp(2j * np.where(alpha > 1e-12, at_point - at_pixel, frames))
    found = (kernel * turn * weight) @ (maps[0] + 1j * maps[1])
    return np.stack([found.real, found.imag])
