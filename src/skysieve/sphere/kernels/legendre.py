"""Transforms between a radial kernel and its window: Legendre and Jacobi series, and their inverse.

A kernel is ``K(theta) = sum_l (2 l + 1) / 4 pi  K_l P_l(cos theta)`` (per sr), its window
``K_l = 2 pi int K P_l dcos(theta)``.  Convolving a map with K multiplies its harmonics by K_l.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["heat_kernel", "jacobi_series", "legendre_series", "theta_nodes", "window_of"]

HEAT_REACH, HEAT_SIGMA = 1.5, 0.1
"""Angle beyond which `heat_kernel` is zero (below 1e-48 of its peak), and the largest sigma for which it holds."""
_NODES = 24
"""Gauss nodes in one panel of the integrals over theta."""


def legendre_series(window: NDArray[np.float64], theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """``sum (2 l + 1) / 4 pi K_l P_l(cos theta)`` by Clenshaw's recurrence.

    The recurrence runs on differences, with ``2 sin^2(theta / 2)`` for ``1 - cos theta``, so that no digits are lost at
    small angles (Reinsch's form).  Beyond pi / 2 it runs from the other pole.

    Examples
    --------
    >>> import numpy as np
    >>> print(legendre_series(np.array([4 * np.pi]), np.array([0.3])))
    [1.]
    """
    c = (2 * np.arange(len(window)) + 1) / (4 * math.pi) * window
    shape = np.shape(theta)
    t = np.asarray(theta, np.float64).ravel()
    north = t <= math.pi / 2
    out = np.empty_like(t)
    out[north] = _clenshaw(c, t[north])
    out[~north] = _clenshaw(np.where(np.arange(len(c)) % 2, -c, c), math.pi - t[~north])
    return out.reshape(shape)


def _clenshaw(c: NDArray[np.float64], theta: NDArray[np.float64]) -> NDArray[np.float64]:
    x = 2 * np.sin(theta / 2) ** 2
    if not x.size:
        return x
    b, d = np.zeros_like(x), np.zeros_like(x)
    t = np.empty_like(x)
    for k in range(len(c) - 1, 0, -1):
        # b_k = (2k+1)/(k+1) (1 - x) b_{k+1} - (k+1)/(k+2) b_{k+2} + c_k, written for d = b_k - b_{k+1}
        np.multiply(x, b, out=t)
        t *= -(2 * k + 1) / (k + 1)
        d *= (k + 1.0) / (k + 2.0)
        d += t
        d += c[k] - b * (1.0 / ((k + 1.0) * (k + 2.0)))
        b += d
    # sum = c_0 + b_1 (1 - x) - b_2 / 2, and b_2 = b_1 - d
    value: NDArray[np.float64] = c[0] + b * (0.5 - x) + 0.5 * d
    return value


@functools.cache
def _hermite_nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The positive nodes of 32-point Gauss-Hermite quadrature, and their weights."""
    u, w = np.polynomial.hermite.hermgauss(32)
    return u[16:], w[16:]


def heat_kernel(theta: NDArray[np.float64], sigma: float, spin: int = 0) -> NDArray[np.float64]:
    """The sum of `legendre_series` for ``K_l = exp(-l (l + 1) sigma^2 / 2)``, for ``sigma`` up to 0.1, as an integral.

    With ``t = sigma^2 / 2`` it is ``sqrt(2) / (4 pi t)^1.5 exp(t / 4) int_theta phi exp(-phi^2 / 4 t) / sqrt(cos theta
    - cos phi) dphi`` (images at phi + 2 pi k are below 1e-200).  The integrand is smooth in ``u^2 = (phi^2 - theta^2) /
    4 t``, so that Gauss-Hermite quadrature is exact to rounding.  With ``spin=2`` it gives the sum of `jacobi_series`:
    the integrand also holds the Chebyshev polynomial ``T_4(cos(phi / 2) / cos(theta / 2))``, as in the
    Mehler-Dirichlet integral of the Wigner function d^l_22.

    Examples
    --------
    >>> import numpy as np
    >>> ell = np.arange(200.0)
    >>> series = legendre_series(np.exp(-ell * (ell + 1) * 0.1**2 / 2), np.array([0.0, 0.2]))
    >>> print(np.abs(heat_kernel(np.array([0.0, 0.2]), 0.1) / series - 1).max() < 1e-13)
    True
    """
    u, w = _hermite_nodes()
    t = sigma**2 / 2
    given = np.asarray(theta, np.float64)
    near = np.minimum(given, HEAT_REACH).reshape(-1, 1)
    phi = np.sqrt(near * near + 4 * t * u * u)
    a, b = (phi + near) / 2, 2 * t * u * u / (phi + near)
    f = 1 / np.sqrt(np.sinc(a / math.pi) * np.sinc(b / math.pi))
    if spin:
        c, here = np.cos(phi / 2) ** 2, np.cos(near / 2) ** 2
        f *= (8 * c * (c - here) + here * here) / here**4
    value = (f @ w).reshape(given.shape) * np.exp(t / 4 - given * given / (4 * t))
    return np.asarray(np.where(given <= HEAT_REACH, value, 0.0) * (4 * math.sqrt(t) / (4 * math.pi * t) ** 1.5))


def jacobi_series(window: NDArray[np.float64], theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """``G = sum_{l >= 2} (2 l + 1) / 4 pi K_l P^{(0,4)}_{l-2}(cos theta)``: the spin-2 kernel without its phase.

    The Wigner function is ``d^l_{22}(theta) = cos^4(theta / 2) P^{(0,4)}_{l-2}(cos theta)``.

    Examples
    --------
    >>> import numpy as np
    >>> print(jacobi_series(np.array([0, 0, 4 * np.pi / 5]), np.array([0.3])))
    [1.]
    """
    z = np.cos(np.asarray(theta, np.float64))
    c = ((2 * np.arange(len(window)) + 1) / (4 * math.pi) * window)[2:]
    before, now = np.zeros_like(z), np.ones_like(z)
    out = np.zeros_like(z)
    for n in range(len(c)):
        out += c[n] * now
        before, now = now, _next_jacobi(n, z, before, now)
    return out


def _next_jacobi(
    n: int, z: NDArray[np.float64], before: NDArray[np.float64], now: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``P^{(0,4)}_{n+1}`` from the polynomials of degree n - 1 and n."""
    s = 2.0 * n + 4.0
    a1 = 2.0 * (n + 1) * (n + 5) * s
    a2 = -(s + 1) * 16.0
    a3 = s * (s + 1) * (s + 2)
    a4 = 2.0 * n * (n + 4) * (s + 2)
    return np.asarray(((a2 + a3 * z) * now - a4 * before) / a1, np.float64)


def theta_nodes(radius: float, waves: float, edges: NDArray[np.float64] | None = None) -> tuple[NDArray, NDArray]:
    """Nodes and weights of ``int f(theta) sin(theta) dtheta`` from 0 to ``radius``, for ``f`` with ``waves`` periods.

    ``edges`` are angles where ``f`` is not smooth.
    """
    x, w = np.polynomial.legendre.leggauss(_NODES)
    cuts = np.linspace(0, radius, 2 + int(waves / (_NODES / 6)))
    if edges is not None:
        cuts = np.unique(np.concatenate([cuts, edges[(edges > 0) & (edges < radius)]]))
    half = np.diff(cuts) / 2
    theta = ((cuts[1:] + cuts[:-1]) / 2)[:, None] + half[:, None] * x
    return theta.ravel(), (half[:, None] * w * np.sin(theta)).ravel()


def window_of(
    profile: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    radius: float,
    lmax: int,
    edges: NDArray[np.float64] | None = None,
    waves: float = 8.0,
    spin: int = 0,
) -> NDArray[np.float64]:
    """``K_l`` for l from 0 to ``lmax`` of a profile that ends at ``radius``.

    With ``spin=2`` the profile is the sum of `jacobi_series`, and the window is the window of E and B.

    Examples
    --------
    >>> import numpy as np
    >>> print(window_of(lambda t: np.full_like(t, 1 / (4 * np.pi)), np.pi, 1).round(14) + 0.0)
    [1. 0.]
    """
    theta, w = theta_nodes(radius, waves + lmax * radius / (2 * math.pi), edges)
    f = 2 * math.pi * w * profile(theta)
    z = np.cos(theta)
    out = np.zeros(lmax + 1)
    before, now = np.zeros_like(z), np.ones_like(z)
    if spin:
        f *= np.cos(theta / 2) ** 8  # cos^4 of the kernel times cos^4 of the Wigner function
        for n in range(lmax - 1):
            out[n + 2] = f @ now
            before, now = now, _next_jacobi(n, z, before, now)
        return out
    for k in range(lmax + 1):
        out[k] = f @ now
        before, now = now, ((2 * k + 1) * z * now - k * before) / (k + 1)
    return out
