"""Radial kernels: what they are in angle and in harmonics, how far they reach, where their band ends.

Every kernel has ``window(lmax)`` (K_l), ``profile(theta)`` (K in 1/sr), ``support(eps)`` and ``bandlimit(eps)``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from .legendre import HEAT_SIGMA, heat_kernel, legendre_series, theta_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "FWHM", "GRID", "Gaussian", "Harmonic", "Kernel", "Window", "check_angle", "check_eps", "find_support",
    "matched_filter", "sqrt_cl",
]  # fmt: skip

FWHM = math.sqrt(8 * math.log(2))
"""Full width at half maximum of a Gaussian, in sigma."""
TINY = 1e-17
"""Window below which a series ends."""
GRID = 1024
_MAX_BAND = 16384
"""Where the search for the band limit of a kernel given in angle ends."""


class Kernel(ABC):
    """Base of the kernels.

    Attributes
    ----------
    hard : bool
        Whether the kernel has an edge: then its window never ends.
    positive : bool
        Whether the profile is nowhere negative.
    """

    hard = False
    positive = False
    edges: NDArray[np.float64] | None = None

    @abstractmethod
    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """``K_l`` for l from 0 to ``lmax``; ``spin=2``: that of E and B."""

    @abstractmethod
    def profile(self, theta: Any) -> NDArray[np.float64]:
        """``K(theta)`` per sr at angles theta (rad)."""

    def gain(self) -> float:
        """Largest modulus of the window, or a bound of it: by so much a harmonic can grow at most."""
        theta, w = theta_nodes(self.support(), 64.0, self.edges)
        return 2 * math.pi * float((np.abs(self.profile(theta)) * w).sum())

    def tensor(self, theta: Any) -> NDArray[np.float64] | None:
        """The sum of `legendre.jacobi_series` for the window of E and B, where there is a quicker way; else None."""
        return None

    @abstractmethod
    def support(self, eps: float = 1e-6) -> float:
        """Angle (rad) beyond which the kernel is dropped.

        What lies beyond it changes a map of white noise by at most ``eps / 2`` of its rms, and holds at most ``eps``
        of the integral of the kernel's modulus.
        """

    def bandlimit(self, eps: float = 1e-6) -> float:
        """Degree above which the window adds less than ``eps`` to the rms of white noise; infinite for hard edges."""
        if self.hard:
            return math.inf
        lmax = 64
        while True:
            k = (2 * np.arange(lmax + 1) + 1) * self.window(lmax) ** 2
            rest = np.cumsum(k[::-1])[::-1]
            below = np.flatnonzero(rest <= eps**2 * rest[0])
            if below.size and below[0] < 0.8 * lmax:
                return int(below[0])
            if lmax >= _MAX_BAND:
                return math.inf
            lmax *= 4

    def __repr__(self) -> str:
        values = ", ".join(f"{k}={v:.6g}" for k, v in vars(self).items() if isinstance(v, int | float))
        return f"{type(self).__name__}({values})"


class Harmonic(Kernel):
    """A kernel given by its window, which ends at some degree."""

    @abstractmethod
    def _coefficients(self, spin: int = 0) -> NDArray[np.float64]: ...

    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """See `Kernel.window`; zero beyond the last degree given."""
        k = self._coefficients(spin)[: lmax + 1]
        return np.concatenate([k, np.zeros(lmax + 1 - len(k))])

    def profile(self, theta: Any) -> NDArray[np.float64]:
        """See `Kernel.profile`: the sum over all degrees, never cut at a map's lmax (a cut would ring)."""
        return legendre_series(self._coefficients(), np.asarray(theta, np.float64))

    def gain(self) -> float:
        """See `Kernel.gain`."""
        return float(np.abs(self._coefficients()).max())

    def bandlimit(self, eps: float = 1e-6) -> float:
        """See `Kernel.bandlimit`."""
        k = self._coefficients()
        power = (2 * np.arange(len(k)) + 1) * k**2
        rest = np.cumsum(power[::-1])[::-1]
        below = np.flatnonzero(rest <= eps**2 * rest[0])
        return int(below[0]) if below.size else len(k)

    def support(self, eps: float = 1e-6) -> float:
        """See `Kernel.support`."""
        check_eps(eps)
        k = self._coefficients()
        return find_support(self.profile, math.pi, eps, start=0.3 / max(1, len(k)))


class Gaussian(Harmonic):
    """Gaussian beam, ``K_l = exp(-l (l + 1) sigma^2 / 2)``, healpy's; E and B: ``exp(-(l (l + 1) - 4) sigma^2 / 2)``.

    Parameters
    ----------
    fwhm : float, optional
        Full width at half maximum (rad).
    sigma : float, optional
        Standard deviation (rad) instead.

    Raises
    ------
    ValueError
        Width not positive, or wider than the sphere.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import Gaussian
    >>> beam = Gaussian(fwhm=np.radians(1))
    >>> print(f"{np.degrees(beam.support(1e-6)):.3f} {beam.bandlimit(1e-6)} {beam.window(100)[100]:.4f}")
    2.288 710 0.7577
    """

    positive = True

    def __init__(self, fwhm: float | None = None, *, sigma: float | None = None) -> None:
        if (fwhm is None) == (sigma is None):
            raise ValueError(f"fwhm={fwhm!r}, sigma={sigma!r}: expected one of the two")
        name, value = ("fwhm", fwhm) if sigma is None else ("sigma", sigma)
        width = check_angle(value, name)
        self.sigma = width / FWHM if sigma is None else width

    def _coefficients(self, spin: int = 0) -> NDArray[np.float64]:
        lmax = int(math.sqrt(-2 * math.log(TINY)) / self.sigma) + 2
        ell = np.arange(lmax + 1.0)
        k = np.exp(-0.5 * (ell * (ell + 1) - spin**2) * self.sigma**2)
        k[:spin] = 0
        return k

    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """See `Kernel.window`."""
        ell = np.arange(lmax + 1.0)
        k = np.exp(-0.5 * (ell * (ell + 1) - spin**2) * self.sigma**2)
        k[:spin] = 0
        return k

    def gain(self) -> float:
        """See `Kernel.gain`: that of l = 0."""
        return 1.0

    def profile(self, theta: Any) -> NDArray[np.float64]:
        """See `Kernel.profile`."""
        if self.sigma > HEAT_SIGMA:
            return super().profile(theta)
        return heat_kernel(theta, self.sigma)

    def tensor(self, theta: Any) -> NDArray[np.float64] | None:
        """See `Kernel.tensor`."""
        if self.sigma > HEAT_SIGMA:
            return None
        return heat_kernel(theta, self.sigma, spin=2) * math.exp(2 * self.sigma**2)

    def support(self, eps: float = 1e-6) -> float:
        """See `Kernel.support`."""
        check_eps(eps)
        # int_R K^2 / int K^2 = exp(-R^2 / sigma^2) on a plane
        reach = self.sigma * math.sqrt(2 * math.log(2 / eps))
        return reach if reach < 0.5 else super().support(eps)


class Window(Harmonic):
    """A kernel given by its window (beam transfer function).

    Parameters
    ----------
    bl : array_like, shape (lmax + 1,)
        ``K_l`` from l = 0 on; zero beyond.
    e, b : array_like, optional
        Windows of E and B for polarisation; ``bl`` by default, and ``b`` follows ``e``.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import Window
    >>> Window(np.exp(-np.arange(200.0) / 10)).window(2).round(4)
    array([1.    , 0.9048, 0.8187])
    """

    def __init__(self, bl: Any, e: Any = None, b: Any = None) -> None:
        self._bl = _window(bl, "bl")
        self._e = self._bl if e is None else _window(e, "e")
        self._b = self._e if b is None else _window(b, "b")

    @classmethod
    def from_fits(cls, path: Any, column: str | int | None = None) -> Window:
        """Read a FITS window: the table ``BEAMWINDOW`` or the first one, its columns T (or TEMPERATURE), E, B.

        Parameters
        ----------
        path : str or path
        column : str or int, optional
            Column of the temperature window, by name or number: that named T, TEMPERATURE or BL, or the first one that
            holds no degrees.  E and B are read where they are there.

        Raises
        ------
        ValueError
            No such table or column.
        """
        from astropy.io import fits

        with fits.open(path) as hdus:
            tables = [h for h in hdus if isinstance(h, fits.BinTableHDU | fits.TableHDU)]
            if not tables:
                raise ValueError(f"{path}: holds no table, expected a window function such as BEAMWINDOW")
            named = [h for h in tables if "WINDOW" in h.name.upper() or "BEAM" in h.name.upper()]
            table = (named or tables)[0]
            names = table.columns.names
            found = {n.strip().upper(): table.data[n] for n in names}
            if column is None:
                plain = [n for n in found if n not in ("L", "ELL", "MULTIPOLE", "INDEX")]
                named_so = [n for n in ("T", "TEMPERATURE", "TT", "BL", "B_L", "INTENSITY") if n in found]
                if not plain:
                    raise ValueError(f"{path}: has columns {names}, expected a window")
                main = found[(named_so or plain)[0]]
            elif column in names or (isinstance(column, int) and 0 <= column < len(names)):
                main = table.data.field(column)
            else:
                raise ValueError(f"{path}: column={column!r}, expected one of {names} or its number")
            e = next((found[n] for n in ("E", "GRAD", "GRADIENT") if n in found), None)
            b = next((found[n] for n in ("B", "CURL") if n in found), None)
            return cls(*(None if v is None else np.asarray(v, np.float64).ravel() for v in (main, e, b)))

    def __repr__(self) -> str:
        return f"Window(lmax={self.degrees})"

    @property
    def degrees(self) -> int:
        """Highest degree of any of the windows."""
        return max(len(self._bl), len(self._e), len(self._b)) - 1

    @property
    def equal_polarisation(self) -> bool:
        """Whether E and B have the same window: what the fast engines need."""
        n = min(len(self._e), len(self._b))
        return bool(np.array_equal(self._e[:n], self._b[:n]) and not self._e[n:].any() and not self._b[n:].any())

    def _coefficients(self, spin: int = 0) -> NDArray[np.float64]:
        if spin and not self.equal_polarisation:
            raise ValueError("kernel: E and B have different windows; only method='harmonic' can apply them")
        k = (self._e if spin else self._bl).copy()
        k[:spin] = 0
        return k

    def polarised(self, lmax: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Windows of E and B up to ``lmax``."""
        e, b = (np.concatenate([k[: lmax + 1], np.zeros(max(0, lmax + 1 - len(k)))]) for k in (self._e, self._b))
        return e, b


def sqrt_cl(cl: Any) -> Window:
    """The kernel that turns white noise of unit variance per sr into a map of power spectrum ``cl``.

    Examples
    --------
    >>> from skysieve.sphere import sqrt_cl
    >>> print(sqrt_cl([4.0, 9.0]).window(1))
    [2. 3.]
    """
    c = _window(cl, "cl")
    if (c < 0).any():
        raise ValueError("cl: holds negative values, expected a power spectrum")
    return Window(np.sqrt(c))


def matched_filter(beam: Any, cl: Any, noise: Any) -> Window:
    """The filter that finds point sources best: ``K_l = b_l / (b_l^2 C_l + N_l)``, so scaled that a source's peak
    in a map smoothed by ``beam`` keeps its value (Tegmark & de Oliveira-Costa 1998, ApJ 500, L83, eq. 3 on the sphere).

    Parameters
    ----------
    beam : Kernel or array_like
        The instrument's beam, or its window.
    cl, noise : array_like, shape (lmax + 1,)
        Power spectra of the sky before the beam, and of the noise; ``noise`` may be one number.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import Gaussian, matched_filter
    >>> f = matched_filter(Gaussian(fwhm=0.1), 1 / (np.arange(200.0) + 1) ** 2, 1e-4)
    >>> b, many = Gaussian(fwhm=0.1).window(199), 2 * np.arange(200) + 1
    >>> print(round((many * b * f.window(199)).sum() / (many * b).sum(), 12))
    1.0
    """
    c = _window(cl, "cl")
    lmax = len(c) - 1
    b = beam.window(lmax) if isinstance(beam, Kernel) else _window(beam, "beam")
    if len(b) != len(c):
        raise ValueError(f"beam has {len(b)} degrees, cl {len(c)}: expected the same number")
    n = np.broadcast_to(np.asarray(noise, np.float64), c.shape)
    if not (np.isfinite(n).all() and (n > 0).all() and (c >= 0).all()):
        raise ValueError("noise: expected positive values, and cl none below 0")
    k = b / (b * b * c + n)
    many = 2 * np.arange(lmax + 1) + 1
    kept = float((many * b * k).sum()) / float((many * b).sum())
    return Window(k / kept)


def find_support(profile: Callable[[Any], NDArray[np.float64]], radius: float, eps: float, start: float) -> float:
    """Least angle of a fine grid beyond which little is left."""
    edges = np.geomspace(start, radius, GRID + 1)
    theta, w = theta_nodes(start, 8.0)
    f = profile(np.concatenate([theta, np.sqrt(edges[1:] * edges[:-1])]))
    inner, outer = f[: len(theta)], f[len(theta) :]
    area = np.cos(edges[:-1]) - np.cos(edges[1:])
    left = []
    for power in (1, 2):
        rest = np.cumsum((np.abs(outer) ** power * area)[::-1])[::-1]
        left.append(rest / (rest[0] + float((np.abs(inner) ** power * w).sum())))
    small = (left[1] <= (eps / 2) ** 2) & (left[0] <= eps)
    return float(edges[:-1][small][0]) if small.any() else radius


def check_angle(value: Any, name: str, limit: float = math.pi) -> float:
    """An angle of a kernel, in rad."""
    if not isinstance(value, int | float | np.floating | np.integer) or not 0 < value <= limit:
        raise ValueError(f"{name}={value!r}: expected an angle above 0 and at most {limit:.6g} (rad)")
    return float(value)


def check_eps(eps: Any) -> None:
    """Refuse what is no accuracy."""
    if not isinstance(eps, int | float | np.floating) or not 1e-15 <= eps < 1:
        raise ValueError(f"eps={eps!r}: expected a number from 1e-15 to below 1")


def _window(values: Any, name: str) -> NDArray[np.float64]:
    k = np.asarray(values)
    if k.dtype.kind not in "buif":
        raise ValueError(f"{name} has dtype {k.dtype}: expected a row of finite numbers, from l = 0 on")
    k = k.astype(np.float64)
    if k.ndim != 1 or not k.size or not np.isfinite(k).all():
        raise ValueError(f"{name}: expected a row of finite numbers, from l = 0 on")
    if name in ("bl", "cl") and not k.any():
        raise ValueError(f"{name}: is zero at every degree")
    return k
