"""The slow, obvious float64 truth: the pixel sum itself, one matrix of kernel values.  For tests and small maps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .grid import RingTable

__all__ = ["angles", "convolve", "matrix"]


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
