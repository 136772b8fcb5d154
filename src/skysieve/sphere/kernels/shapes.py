"""Kernels given in angle, and wavelets: functions, tables, discs, Mexican hats, needlets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import GRID, Harmonic, Kernel, check_angle, check_eps, find_support
from .legendre import theta_nodes, window_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Function", "MexicanHat", "Needlet", "Profile", "TopHat", "from_function"]


class Function(Kernel):
    """A kernel given as a function of the angle.

    Parameters
    ----------
    function : callable
        ``function(theta)``: K per sr at an array of angles (rad).
    radius : float, optional
        Where it ends; pi by default.  A value well above zero there is an edge.
    normalize : bool
        Scale it to unit integral.
    edges : array_like, optional
        Angles where it is not smooth.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import from_function
    >>> k = from_function(lambda t: np.exp(-t / 0.01), normalize=True)
    >>> print(k.window(0).round(9))
    [1.]
    """

    def __init__(
        self,
        function: Callable[[NDArray[np.float64]], Any],
        radius: float = math.pi,
        *,
        normalize: bool = False,
        edges: Any = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function is a {type(function).__name__}, expected a function of the angle")
        self.radius = check_angle(radius, "radius", math.pi)
        self._function, self._scale = function, 1.0
        self.edges = None if edges is None else np.asarray(edges, np.float64)
        theta = np.concatenate([[0.0], np.geomspace(1e-7, self.radius, 4 * GRID)])
        f = self.profile(theta)
        if not np.isfinite(f).all() or f.shape != theta.shape:
            raise ValueError("function: expected one finite value for each angle from 0 to radius")
        if not f.any():
            raise ValueError("function: is zero at every angle")
        self.positive = bool((f >= 0).all())
        self.hard = bool(self.radius < math.pi and abs(f[-1]) > 1e-9 * np.abs(f).max())
        # panels that follow the function's own scale: a narrow kernel on the whole sphere
        size = np.cumsum(np.abs(f[1:]) * np.diff(theta) * np.sin(theta[1:]))
        inner = np.interp(np.linspace(0, 1, 9)[1:-1] * size[-1], size, theta[1:])
        scales = np.geomspace(max(inner[0] / 8, 1e-7), self.radius, 24)
        self._panels = np.unique(np.concatenate([scales, inner, [] if self.edges is None else self.edges]))
        if normalize:
            total = window_of(self.profile, self.radius, 0, self._panels)[0]
            if abs(total) < 1e-12 * np.abs(f).max() * self.radius**2:
                raise ValueError("normalize=True: the kernel's integral is zero")
            self._scale = 1 / total

    def profile(self, theta: Any) -> NDArray[np.float64]:
        """See `Kernel.profile`; zero beyond the radius."""
        t = np.asarray(theta, np.float64)
        inside = np.minimum(t, self.radius)
        return np.where(t <= self.radius, np.asarray(self._function(inside), np.float64) * self._scale, 0.0)

    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """See `Kernel.window`."""
        k = window_of(self.profile, self.radius, lmax, self._panels)
        k[:spin] = 0
        return k

    def gain(self) -> float:
        """See `Kernel.gain`: the integral of the modulus."""
        theta, w = theta_nodes(self.radius, 64.0, self._panels)
        return 2 * math.pi * float((np.abs(self.profile(theta)) * w).sum())

    def support(self, eps: float = 1e-6) -> float:
        """See `Kernel.support`."""
        check_eps(eps)
        if self.hard:
            return self.radius
        return find_support(self.profile, self.radius, eps, start=float(self._panels[0]) / 4)


def from_function(function: Callable[[NDArray[np.float64]], Any], radius: float = math.pi, **options: Any) -> Function:
    """A `Function` kernel: any function of the angle."""
    return Function(function, radius, **options)


class Profile(Function):
    """A tabulated kernel: a cubic spline through its values, zero beyond the last angle.

    Parameters
    ----------
    theta, values : array_like, shape (n,)
        Rising angles (rad) and K per sr; the first angle may be 0, and the value there is held down to 0 otherwise.
    normalize : bool
        Scale it to unit integral.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import Profile
    >>> t = np.linspace(0, 0.1, 200)
    >>> beam = Profile(t, np.exp(-0.5 * (t / 0.015) ** 2), normalize=True)
    >>> print(f"{beam.window(50)[50]:.4f} {np.exp(-0.5 * 50 * 51 * 0.015**2):.4f}")
    0.7506 0.7506
    """

    def __init__(self, theta: Any, values: Any, *, normalize: bool = False) -> None:
        from scipy.interpolate import CubicSpline

        t, v = np.asarray(theta, np.float64).ravel(), np.asarray(values, np.float64).ravel()
        if t.shape != v.shape or t.size < 4:
            raise ValueError(f"theta has {t.size} values, values {v.size}: expected the same number, at least 4")
        if not (np.isfinite(t).all() and np.isfinite(v).all() and (np.diff(t) > 0).all() and t[0] >= 0):
            raise ValueError("theta: expected rising angles from 0 on, with finite values")
        if t[0] == 0:
            spline = CubicSpline(t, v, bc_type=((1, 0.0), "not-a-knot"))
        else:
            spline = CubicSpline(t, v)
        first = t[0]
        super().__init__(
            lambda x: spline(np.maximum(x, first)),
            float(t[-1]),
            normalize=normalize,
            edges=t[1:] if t.size < 64 else None,
        )


class TopHat(Kernel):
    """The mean over a disc: ``1 / (2 pi (1 - cos r))`` out to radius ``r`` (rad), nothing beyond.

    Examples
    --------
    >>> from skysieve.sphere import TopHat
    >>> print(TopHat(0.1).window(1).round(5), TopHat(0.1).support())
    [1.     0.9975] 0.1
    """

    hard = positive = True

    def __init__(self, radius: float) -> None:
        self.radius = check_angle(radius, "radius", math.pi)

    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """See `Kernel.window`."""
        k = window_of(self.profile, self.radius, lmax)
        k[:spin] = 0
        return k

    def profile(self, theta: Any) -> NDArray[np.float64]:
        """See `Kernel.profile`."""
        t = np.asarray(theta, np.float64)
        return np.where(t <= self.radius, 1 / (4 * math.pi * math.sin(self.radius / 2) ** 2), 0.0)

    def support(self, eps: float = 1e-6) -> float:
        """The radius."""
        check_eps(eps)
        return self.radius


class MexicanHat(Function):
    """Spherical Mexican hat wavelet (Martinez-Gonzalez et al. 2002, MNRAS 336, 22, eq. 6), of scale ``scale`` (rad).

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import MexicanHat
    >>> print(abs(MexicanHat(0.02).window(0)[0]) < 1e-12)
    True
    """

    def __init__(self, scale: float) -> None:
        self.scale = s = check_angle(scale, "scale")
        norm = 1 / (math.sqrt(2 * math.pi) * s * math.sqrt(1 + s**2 / 2 + s**4 / 4))

        def function(theta: NDArray[np.float64]) -> NDArray[np.float64]:
            y2 = 4 * np.tan(np.minimum(theta, 3.1) / 2) ** 2
            value: NDArray[np.float64] = norm * (1 + y2 / 4) ** 2 * (2 - y2 / s**2) * np.exp(-y2 / (2 * s**2))
            return value

        super().__init__(function)


class Needlet(Harmonic):
    """Standard needlet of scale ``j`` (Marinucci et al. 2008, MNRAS 383, 539): window ``b(l / B^j)``, whose squares
    add up to 1 over all j.

    Parameters
    ----------
    j : int
        Scale: the window lives from ``B^(j - 1)`` to ``B^(j + 1)``.
    B : float
        Width, above 1.

    Examples
    --------
    >>> from skysieve.sphere import Needlet
    >>> print(sum(Needlet(j).window(100) ** 2 for j in range(9))[[1, 10, 100]].round(12))
    [1. 1. 1.]
    """

    def __init__(self, j: int, B: float = 2.0) -> None:
        if not isinstance(j, int | np.integer) or j < 0:
            raise ValueError(f"j={j!r}: expected a whole number of at least 0")
        if not 1 < B <= 16:
            raise ValueError(f"B={B!r}: expected a number above 1, at most 16")
        self.j, self.B = int(j), float(B)

    def _coefficients(self, spin: int = 0) -> NDArray[np.float64]:
        x = np.arange(int(self.B ** (self.j + 1)) + 2) / self.B**self.j
        k = np.sqrt(np.maximum(0, _falling(x / self.B, self.B) - _falling(x, self.B)))
        k[:spin] = 0
        return k


def _falling(x: NDArray[np.float64], B: float) -> NDArray[np.float64]:
    """1 up to 1/B, 0 from 1 on, smooth to all orders between."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    bump = np.exp(-1 / (1 - nodes**2))
    u = np.clip(1 - 2 * B / (B - 1) * (x - 1 / B), -1, 1)
    half = (u + 1) / 2
    inner = half[:, None] * (nodes + 1) - 1
    with np.errstate(divide="ignore"):
        f = np.where(np.abs(inner) < 1, np.exp(-1 / np.maximum(1 - inner**2, 1e-300)), 0.0)
    part: NDArray[np.float64] = half * (f @ weights) / float(bump @ weights)
    return part
