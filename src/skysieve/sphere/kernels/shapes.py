"""Radial kernels: Gaussian beams, windows, tables, functions, discs, wavelets, filters.

A new kernel is a class here, an entry in `KERNELS`, which gives it an option of ``skysieve smooth``, its name in the
three lists of ``sphere/__init__.py``, a line in ``docs/api.rst`` and in the table of ``docs/sphere.md``, and an example
in `MADE` of ``tests/sphere/test_registries.py``.
"""

from __future__ import annotations

import functools
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import SUPPORT_STEPS, Harmonic, Kernel, check_eps, find_end, find_support, read_angle
from .legendre import HEAT_SIGMA, heat_kernel, theta_nodes, window_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .base import Angle

__all__ = [
    "FWHM", "KERNELS", "Function", "Gaussian", "KernelOption", "MexicanHat", "Needlet", "Profile", "TopHat", "Window",
    "from_function", "matched_filter", "sqrt_cl",
]  # fmt: skip

FWHM = math.sqrt(8 * math.log(2))
"""Full width at half maximum of a Gaussian, in sigma."""
_NO_WINDOW = 1e-17
"""Value of a Gaussian's window below which its series ends."""
_FITS = (".fits", ".fit", ".gz")
"""Endings of the names of FITS files."""
_EXTENSION = re.compile(r"(.+)\[([^\[\]]+)\]", re.DOTALL)
"""The name of a FITS file, and of one of its extensions."""
_DEGREES = ("L", "ELL", "MULTIPOLE", "INDEX")
"""Names of columns of degrees; an INDEX may count from 1."""
_LARGEST_ERROR = 0.5
"""Columns beside a window are errors if they are nowhere larger than this fraction of its maximum."""


class Gaussian(Harmonic):
    """Gaussian beam, ``K_l = exp(-l (l + 1) sigma^2 / 2)`` as in healpy.

    E and B have ``K_l = exp(-(l (l + 1) - 4) sigma^2 / 2)``.

    Parameters
    ----------
    fwhm : float, str or Quantity, optional
        Full width at half maximum (rad, or with its unit, such as ``"4.7 arcmin"``).
    sigma : float, str or Quantity, optional
        Standard deviation instead.

    Raises
    ------
    ValueError
        The width is not positive, or wider than the sphere.

    Examples
    --------
    >>> from skysieve.sphere import Gaussian
    >>> beam = Gaussian("1 deg")
    >>> print(f"{beam.support(1e-6):.5f} {beam.bandlimit(1e-6)} {beam.window(100)[100]:.4f}")
    0.03993 710 0.7577
    """

    positive = True

    def __init__(self, fwhm: Angle | None = None, *, sigma: Angle | None = None) -> None:
        if (fwhm is None) == (sigma is None):
            raise ValueError(f"fwhm={fwhm!r}, sigma={sigma!r}: expected one of the two")
        self.sigma = read_angle(fwhm, "fwhm") / FWHM if sigma is None else read_angle(sigma, "sigma")

    def _coefficients(self, spin: int = 0) -> NDArray[np.float64]:
        return self.window(int(math.sqrt(-2 * math.log(_NO_WINDOW)) / self.sigma) + 2, spin)

    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """See `Kernel.window`."""
        ell = np.arange(lmax + 1.0)
        k = np.exp(-0.5 * (ell * (ell + 1) - spin**2) * self.sigma**2)
        k[:spin] = 0
        return k

    def gain(self) -> float:
        """See `Kernel.gain`; it is ``K_0``."""
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
        ``K_l`` from l = 0 on; zero beyond the last degree.
    e, b : array_like, optional
        Windows of E and B for polarisation.  ``e`` is ``bl`` by default, and ``b`` is ``e``.

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
    def from_file(cls, path: str | os.PathLike[str]) -> Window:
        """Read a window from a FITS file (see `from_fits`) or a text file with columns b_l, or l and b_l.

        Columns of errors may follow b_l, as in the files of WMAP and ACT; they are not used.  ``#`` begins a comment.
        Brackets after the name of a FITS file select one of its extensions: ``"RIMO.fits[BEAMWF_030X030]"``.

        Raises
        ------
        OSError, ValueError
            The file cannot be read, or holds no window.
        """
        named = _EXTENSION.fullmatch(os.fspath(path))
        if named is not None and not Path(path).exists():
            return cls.from_fits(named[1], extension=named[2])
        if Path(path).suffix.lower() in _FITS:
            return cls.from_fits(path)
        return cls(_window_column(_read_table(path), os.fspath(path)))

    @classmethod
    def from_fits(
        cls, path: str | os.PathLike[str], column: str | int | None = None, extension: str | int | None = None
    ) -> Window:
        """Read a window from a FITS table, with columns T (TEMPERATURE, INT_BEAM), E (GRADIENT, POL_BEAM) and B (CURL).

        Parameters
        ----------
        path : str or path
        column : str or int, optional
            Column of the temperature window, by name or number.  By default the column T, TEMPERATURE, INT_BEAM or BL,
            or the first column that holds no degrees.  E and B are read if the table has them.
        extension : str or int, optional
            Name or number of the table.  By default the one whose name contains BEAM or WINDOW, or the first one that
            holds no HEALPix map.

        Raises
        ------
        ValueError
            The file has no such table or column, or has several windows and no ``extension`` is given, or the degrees
            of the table are not 0, 1, 2, ...
        """
        from astropy.io import fits

        with fits.open(path) as hdus:
            table = _window_table(hdus, path, extension)
            names = table.columns.names
            found = {n.strip().upper(): table.data[n] for n in names}
            degrees = [n for n in found if n in _DEGREES and n != "INDEX"]
            if column is None:
                plain = [n for n in found if n not in _DEGREES]
                usual = [n for n in ("T", "TEMPERATURE", "TT", "INT_BEAM", "BL", "B_L", "INTENSITY") if n in found]
                if not plain:
                    raise ValueError(f"{path}: has columns {names}, expected a window")
                main = found[(usual or plain)[0]]
            elif column in names or (isinstance(column, int) and 0 <= column < len(names)):
                main = table.data.field(column)
            else:
                raise ValueError(f"{path}: column={column!r}, expected one of {names} or its number")
            if degrees:
                _check_degrees(np.asarray(found[degrees[0]]).ravel(), os.fspath(path))
            e = next((found[n] for n in ("E", "GRAD", "GRADIENT", "POL_BEAM") if n in found), None)
            b = next((found[n] for n in ("B", "CURL") if n in found), None)
            if any(v is not None and np.asarray(v).dtype.kind not in "iuf" for v in (main, e, b)):
                raise ValueError(f"{path}: has columns {', '.join(names)} that hold no numbers, expected a window")
            return cls(*(None if v is None else np.asarray(v, np.float64).ravel() for v in (main, e, b)))

    def __repr__(self) -> str:
        return f"Window(lmax={max(len(self._bl), len(self._e), len(self._b)) - 1})"

    @property
    def equal_polarisation(self) -> bool:
        """See `Kernel.equal_polarisation`."""
        n = min(len(self._e), len(self._b))
        return bool(np.array_equal(self._e[:n], self._b[:n]) and not self._e[n:].any() and not self._b[n:].any())

    def _coefficients(self, spin: int = 0) -> NDArray[np.float64]:
        if spin and not self.equal_polarisation:
            raise ValueError("kernel: E and B have different windows; only method='harmonic' can apply them")
        k = (self._e if spin else self._bl).copy()
        k[:spin] = 0
        return k

    def polarised(self, lmax: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See `Kernel.polarised`."""
        e, b = (np.concatenate([k[: lmax + 1], np.zeros(max(0, lmax + 1 - len(k)))]) for k in (self._e, self._b))
        e[:2] = b[:2] = 0
        return e, b

    def components(self) -> tuple[Kernel, ...]:
        """See `Kernel.components`; a window of zeros is left out."""
        return tuple(Window(k) for k in (self._e, self._b) if k.any())


def sqrt_cl(cl: Any) -> Window:
    """The kernel that turns white noise of unit variance per sr into a map of power spectrum ``cl``.

    Parameters
    ----------
    cl : array_like, shape (lmax + 1,)
        Power spectrum from l = 0 on; finite values that are not negative.

    Returns
    -------
    Window
        ``K_l = sqrt(C_l)``.

    Raises
    ------
    ValueError
        A value is negative, NaN or infinite, all are zero, or ``cl`` is not a 1-D array of numbers.

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
    """The optimal filter for point sources, ``K_l = b_l / (b_l^2 C_l + N_l)``.

    The filter is scaled so that the peak of a source in a map smoothed by ``beam`` keeps its value (Tegmark & de
    Oliveira-Costa 1998, ApJ 500, L83, eq. 3 on the sphere).

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
        raise ValueError("noise: expected positive values, and a cl without negative values")
    k = b / (b * b * c + n)
    many = 2 * np.arange(lmax + 1) + 1
    peak = float((many * b * k).sum()) / float((many * b).sum())
    return Window(k / peak)


class Function(Kernel):
    """A kernel given as a function of the angle.

    Parameters
    ----------
    function : callable
        ``function(theta)``: K per sr at an array of angles (rad).
    radius : float, str or Quantity, optional
        Angle at which the kernel ends; pi by default.  If the function is exactly 0 from a smaller angle on, the kernel
        ends there.  If the value at its end is well above zero, the kernel has an edge.
    normalize : bool
        Scale the kernel to unit integral.
    edges : array_like, optional
        Angles where the function is not smooth.

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
        radius: Angle = math.pi,
        *,
        normalize: bool = False,
        edges: Any = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function is a {type(function).__name__}, expected a function of the angle")
        self.radius = read_angle(radius, "radius")
        self._function, self._scale = function, 1.0
        self.edges = None if edges is None else np.sort(np.asarray(edges, np.float64).ravel())
        theta, f = self._sample()
        if not np.isfinite(f).all() or f.shape != theta.shape:
            raise ValueError("function: expected one finite value for each angle from 0 to radius")
        if not f.any():
            raise ValueError("function: is zero at every angle")
        last = int(np.flatnonzero(f)[-1])
        if last == 0:
            raise ValueError(f"function: is zero at every angle from {theta[1]:g} rad on, expected a wider kernel")
        if last < len(f) - 1:  # the kernel ends before the radius
            self.radius = find_end(self.profile, float(theta[last]), float(theta[last + 1]))
            theta, f = self._sample()
        self.positive = bool((f >= 0).all())
        self.hard = bool(self.radius < math.pi and abs(f[-1]) > 1e-9 * np.abs(f).max())
        # panels of the integrals follow the scale of the function, which may be narrow although it ends at pi
        size = np.cumsum(np.abs(f[1:]) * np.diff(theta) * np.sin(theta[1:]))
        inner = np.interp(np.linspace(0, 1, 9)[1:-1] * size[-1], size, theta[1:])
        scales = np.geomspace(max(inner[0] / 8, 1e-7), self.radius, 24)
        self._panels = np.unique(np.concatenate([scales, inner, [] if self.edges is None else self.edges]))
        if normalize:
            total = window_of(self.profile, self.radius, 0, self._panels)[0]
            if abs(total) < 1e-12 * np.abs(f).max() * self.radius**2:
                raise ValueError("normalize=True: the kernel's integral is zero")
            self._scale = 1 / total

    def _sample(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Angles from 0 to the radius, with those around the edges, and the profile there."""
        edges = np.zeros(0) if self.edges is None else self.edges
        between = (edges[1:] + edges[:-1]) / 2
        grid = np.geomspace(1e-7, self.radius, 4 * SUPPORT_STEPS)
        theta = np.concatenate([[0.0], grid, edges, between])
        theta = np.unique(theta[(theta >= 0) & (theta <= self.radius)])
        return theta, self.profile(theta)

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
        return find_support(self.profile, self.radius, eps, start=float(self._panels[0]) / 4, smooth=False)


def from_function(
    function: Callable[[NDArray[np.float64]], Any],
    radius: Angle = math.pi,
    *,
    normalize: bool = False,
    edges: Any = None,
) -> Function:
    """A kernel from any function of the angle.

    Parameters
    ----------
    function : callable
        ``function(theta)``: K per sr at an array of angles (rad).
    radius : float, str or Quantity
        Angle at which the kernel ends (rad, or with its unit).  If the function is exactly 0 from a smaller angle on,
        the kernel ends there.  If the value at its end is well above zero, the kernel has an edge.
    normalize : bool
        Whether to scale the kernel to unit integral.
    edges : array_like, optional
        Angles (rad) where the function is not smooth.

    Returns
    -------
    Kernel
        Plans with this kernel can be pickled only if the function can: it must be defined in a module, not by
        ``lambda``.

    Raises
    ------
    TypeError
        `function` is not callable.
    ValueError
        The function does not return one finite value for each angle, or is zero at all angles from 1e-7 on; `radius`
        is not an angle; or `normalize` is True and the integral is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import from_function
    >>> kernel = from_function(lambda theta: np.exp(-theta / 0.01), "5 deg", normalize=True)
    >>> print(kernel.window(100)[[0, 100]].round(3))
    [1.    0.352]
    """
    return Function(function, radius, normalize=normalize, edges=edges)


class Profile(Function):
    """A tabulated kernel: a cubic spline through its values, zero beyond the last angle.

    Parameters
    ----------
    theta, values : array_like, shape (n,)
        Rising angles (rad) and K per sr.  If the first angle is above 0, its value also applies to smaller angles.
    normalize : bool
        Scale the kernel to unit integral.

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
        self._first = t[0]
        self._spline = CubicSpline(t, v, bc_type=((1, 0.0), "not-a-knot") if t[0] == 0 else "not-a-knot")
        super().__init__(self._values, float(t[-1]), normalize=normalize, edges=t[1:] if t.size < 64 else None)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a text file with columns angle (rad) and value, and scale the kernel to unit integral.

        Raises
        ------
        OSError, ValueError
            The file cannot be read, or holds no such table.
        """
        table = _read_table(path)
        if table.shape[1] != 2:
            raise ValueError(f"{path}: expected two columns, angle (rad) and value")
        return cls(table[:, 0], table[:, 1], normalize=True)

    def _values(self, theta: NDArray[np.float64]) -> Any:
        return self._spline(np.maximum(theta, self._first))


class TopHat(Kernel):
    """The mean over a disc: ``1 / (2 pi (1 - cos r))`` up to radius ``r``, and 0 beyond.

    Parameters
    ----------
    radius : float, str or Quantity
        Radius of the disc (rad, or with its unit).

    Examples
    --------
    >>> from skysieve.sphere import TopHat
    >>> print(TopHat(0.1).window(1).round(5), TopHat(0.1).support())
    [1.     0.9975] 0.1
    """

    hard = positive = True

    def __init__(self, radius: Angle) -> None:
        self.radius = read_angle(radius, "radius")

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
    """Spherical Mexican hat wavelet (Martinez-Gonzalez et al. 2002, MNRAS 336, 22, eq. 6).

    Parameters
    ----------
    scale : float, str or Quantity
        Scale (rad, or with its unit).

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import MexicanHat
    >>> print(abs(MexicanHat(0.02).window(0)[0]) < 1e-12)
    True
    """

    def __init__(self, scale: Angle) -> None:
        self.scale = read_angle(scale, "scale")
        super().__init__(self._values)

    def _values(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        s = self.scale
        norm = 1 / (math.sqrt(2 * math.pi) * s * math.sqrt(1 + s**2 / 2 + s**4 / 4))
        y2 = 4 * np.tan(np.minimum(theta, 3.1) / 2) ** 2
        value: NDArray[np.float64] = norm * (1 + y2 / 4) ** 2 * (2 - y2 / s**2) * np.exp(-y2 / (2 * s**2))
        return value


class Needlet(Harmonic):
    """Standard needlet of scale ``j`` (Marinucci et al. 2008, MNRAS 383, 539).

    The window is ``b(l / B^j)``; the squares of all windows add up to 1.

    Parameters
    ----------
    j : int
        Scale: the window is nonzero between ``B^(j - 1)`` and ``B^(j + 1)``.
    B : float
        Width of the window, above 1.

    Raises
    ------
    ValueError
        The window reaches degrees above 131,072, higher than those of any map (nside 32,768).

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
        if (j + 1) * math.log(B) > math.log(HIGHEST_DEGREE) + 1e-9:
            raise ValueError(f"j={j!r}: reaches degree {B:g}^{j + 1}, expected at most {HIGHEST_DEGREE:,}")
        self.j, self.B = int(j), float(B)

    def _coefficients(self, spin: int = 0) -> NDArray[np.float64]:
        x = np.arange(int(self.B ** (self.j + 1)) + 2) / self.B**self.j
        k = np.sqrt(np.maximum(0, _falling(x / self.B, self.B) - _falling(x, self.B)))
        k[:spin] = 0
        return k


HIGHEST_DEGREE = 2**17
"""The highest degree of a needlet; memory and time for its window grow with the degree."""


@dataclass(frozen=True)
class KernelOption:
    """A kernel on the command line.

    Attributes
    ----------
    metavar, help : str
        What the help screen shows for the value, such as ANGLE, and the help text of the option.
    read : callable
        Makes the kernel from the text of the option.
    """

    metavar: str
    help: str
    read: Callable[[str], Kernel]


KERNELS: dict[str, KernelOption] = {
    "fwhm": KernelOption(
        "ANGLE", "Smooth with a Gaussian of this full width at half maximum, such as 4.7arcmin.", Gaussian
    ),
    "bl": KernelOption(
        "FILE", "Smooth with the window b_l of a file: FITS, also as FILE[EXTENSION], or text with the column b_l, or "
        "with l, b_l and perhaps its errors.",
        Window.from_file,
    ),
    "profile": KernelOption(
        "FILE", "Smooth with the kernel of a text file: angle (rad) and value. It is scaled to unit integral.",
        Profile.from_file,
    ),
    "tophat": KernelOption("ANGLE", "Take the mean over a disc of this radius, such as 1deg.", TopHat),
    "mexican-hat": KernelOption(
        "ANGLE", "Filter with a spherical Mexican hat wavelet of this scale, such as 1deg.", MexicanHat
    ),
    "needlet": KernelOption(
        "J", "Filter with the standard needlet of scale J: degrees 2^(J-1) to 2^(J+1).",
        # pyrefly: ignore[bad-argument-type]  # it refuses other text
        lambda text: Needlet(int(text) if text.isdecimal() else text),
    ),
}  # fmt: skip
"""Kernels of ``skysieve smooth``, by the names of their options."""


def _falling(x: NDArray[np.float64], B: float) -> NDArray[np.float64]:
    """1 up to 1/B, 0 from 1 on, and infinitely differentiable between."""
    nodes, weights, total = _bump()
    u = np.clip(1 - 2 * B / (B - 1) * (x - 1 / B), -1, 1)
    half = (u + 1) / 2
    inner = half[:, None] * (nodes + 1) - 1
    with np.errstate(divide="ignore"):
        f = np.where(np.abs(inner) < 1, np.exp(-1 / np.maximum(1 - inner**2, 1e-300)), 0.0)
    part: NDArray[np.float64] = half * (f @ weights) / total
    return part


@functools.cache
def _bump() -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Gauss-Legendre nodes and weights, and the integral of exp(-1 / (1 - x^2)) from -1 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights, float(np.exp(-1 / (1 - nodes**2)) @ weights)


def _window(values: Any, name: str) -> NDArray[np.float64]:
    k = np.asarray(values)
    if k.dtype.kind not in "buif":
        raise ValueError(f"{name} has dtype {k.dtype}: expected a 1-D array of finite numbers, from l = 0")
    k = k.astype(np.float64)
    if k.ndim != 1 or not k.size or not np.isfinite(k).all():
        raise ValueError(f"{name}: expected a 1-D array of finite numbers, from l = 0")
    if name in ("bl", "cl") and not k.any():
        raise ValueError(f"{name}: is zero at every degree; expected a value above or below 0")
    return k


def _window_table(hdus: Any, path: str | os.PathLike[str], extension: str | int | None) -> Any:
    """The table of a FITS file that holds the window."""
    from astropy.io import fits

    tables = [h for h in hdus if isinstance(h, fits.BinTableHDU | fits.TableHDU)]
    if extension is not None:
        word = str(extension).strip().upper()
        chosen = [h for h in tables if word in (h.name.upper(), str(hdus.index(h)))]
        if not chosen:
            known = ", ".join(h.name or str(hdus.index(h)) for h in tables) or "none"
            raise ValueError(f"{path}: extension={extension!r}, expected the name or number of a table: {known}")
        return chosen[0]
    named = [h for h in tables if "WINDOW" in h.name.upper() or "BEAM" in h.name.upper()]
    if len(named) > 1:
        known = ", ".join(h.name for h in named)
        raise ValueError(
            f"{path}: holds several windows ({known}), expected one of them, as in {path}[{named[0].name}]"
        )
    found = named or [h for h in tables if str(h.header.get("PIXTYPE", "")).strip().upper() != "HEALPIX"]
    if not found:
        what = "a map and no window" if tables else "no table"
        raise ValueError(f"{path}: holds {what}, expected a window function such as BEAMWINDOW")
    return found[0]


def _window_column(table: NDArray[np.float64], path: str) -> NDArray[np.float64]:
    """The window in a table of text: b_l alone, or l and b_l, which columns of errors may follow."""
    if table.shape[1] == 1:
        return table[:, 0]
    _check_degrees(table[:, 0], path)
    bl = table[:, 1]
    if (np.abs(table[:, 2:]).max(axis=0, initial=0) > _LARGEST_ERROR * np.abs(bl).max()).any():
        raise ValueError(
            f"{path}: has {table.shape[1]} columns, of which several are as large as a window: expected b_l alone, or "
            "l and b_l, or l, b_l and its errors"
        )
    return bl


def _check_degrees(degrees: NDArray[Any], path: str) -> None:
    """Refuse a column of degrees other than 0, 1, 2, ..."""
    if degrees.dtype.kind in "iuf" and degrees.tolist() == list(range(len(degrees))):
        return
    begins = ", ".join(f"{value:g}" if isinstance(value, float) else f"{value}" for value in degrees[:3].tolist())
    raise ValueError(
        f"{path}: expected l = 0, 1, 2, ... in the column of degrees, which is the first of several, found {begins}, "
        "...; give b_l at every degree from 0 on"
    )


def _read_table(path: str | os.PathLike[str]) -> NDArray[np.float64]:
    """Numbers of a text file; ``#`` begins a comment."""
    rows = [r for r in (line.partition("#")[0].split() for line in Path(path).read_text().splitlines()) if r]
    if not rows or any(len(r) != len(rows[0]) for r in rows):
        raise ValueError(f"{path}: expected a table of numbers, with the same number of columns in each line")
    try:
        return np.array([[float(v) for v in r] for r in rows])
    except ValueError as error:
        raise ValueError(f"{path}: expected numbers between spaces, with # before comments ({error})") from None
