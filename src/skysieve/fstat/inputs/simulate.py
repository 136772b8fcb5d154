"""Simulated atoms: Gaussian noise and transient signals in real detectors, without lalsuite.

The atoms are drawn directly, without time series: for a noise-weighted pair ``(a, b)`` the projections are ``Fa = a z``
and ``Fb = b z``, with one complex ``z`` of unit variance for each SFT, plus the signal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.checks import real_dtype

from .atoms import Atoms, finite, positive_seconds, whole_seconds
from .detectors import antenna_patterns, sky_position
from .windows import Window, WindowLike, resolve_window

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Injection", "synth_atoms"]

T = TypeVar("T")


@dataclass(frozen=True)
class Injection:
    """A transient signal.

    Parameters
    ----------
    t0, tau : int
        Start (GPS seconds) and duration.
    snr : float
        Optimal signal-to-noise ratio over all detectors: without noise ``2F = snr^2``, in noise ``4 + snr^2``
        on average.
    window : str, WindowSum or callable
        As for `skysieve.fstat.transient_map`.
    efold : float
        End in units of tau of windows that have no fixed end, as for `transient_map`.
    cosi, psi, phi0 : float
        Cosine of the inclination, polarisation angle and initial phase.
    """

    t0: int
    tau: int
    snr: float
    window: WindowLike = "rect"
    efold: float = 3
    cosi: float = 0.3
    psi: float = 0.4
    phi0: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "t0", whole_seconds(self.t0, "t0"))
        object.__setattr__(self, "tau", positive_seconds(self.tau, "tau"))
        finite(self.snr, "snr", "at least 0", lambda x: x >= 0)
        check_orientation(self.cosi, self.psi, self.phi0)
        if self._window().whole:
            raise ValueError("window='none' has no start: inject a rect over all data")

    def _window(self) -> Window:
        return resolve_window(self.window, self.efold)

    def amplitude(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """The window at the start of each SFT, 0 outside."""
        window = self._window()
        x = (t - self.t0) / self.tau
        inside = (x >= 0) & (x < window.efold)
        out = np.zeros(len(t))
        if inside.any():
            out[inside] = window.weights(x[inside])
        return out

    def polarisations(self) -> tuple[complex, complex]:
        """Complex amplitudes of the signal along ``a`` and ``b``."""
        plus, cross = 0.5 * (1 + self.cosi**2), self.cosi
        cos, sin = np.cos(2 * self.psi), np.sin(2 * self.psi)
        phase = np.exp(1j * self.phi0)
        return complex((plus * cos - 1j * cross * sin) * phase), complex((plus * sin + 1j * cross * cos) * phase)


def check_orientation(cosi: float, psi: float, phi0: float) -> None:
    """Raise an error if an amplitude parameter of a signal is out of range."""
    finite(cosi, "cosi", "-1 to 1", lambda x: -1 <= x <= 1)
    finite(psi, "psi", "a finite angle in radians")
    finite(phi0, "phi0", "a finite angle in radians")


def names_of(detectors: Sequence[str]) -> list[str]:
    """The names of the detectors of simulated data: one or more, each once."""
    names = [detectors] if isinstance(detectors, str) else list(detectors)
    if not names:
        raise ValueError(f"detectors={detectors!r}: expected at least one name")
    if len(set(names)) < len(names):
        raise ValueError(f"detectors={detectors!r}: expected each name once")
    return names


def listed(values: Any, kind: type[T], name: str) -> list[T]:
    """The values of an argument that is one object of a kind, or a sequence of them."""
    found = [values] if isinstance(values, kind) or not isinstance(values, Iterable) else list(values)
    for one in found:
        if not isinstance(one, kind):
            raise TypeError(f"{name} holds a {type(one).__name__}, expected {kind.__name__}")
    return found


def of_detector(values: Any, detector: str, name: str, missing: Any = None) -> Any:
    """The value of an argument for a detector, which may be a dict of them; `missing` if it may lack the detector."""
    if not isinstance(values, Mapping):
        return values
    if detector not in values and missing is None:
        raise ValueError(f"{name}={values!r}: expected a value for {detector}")
    return values.get(detector, missing)


def sft_times(
    t_start: int, span: int, tatom: int, gaps: Sequence[tuple[int, int]], duty: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Starts of the SFTs of a detector: equally spaced from `t_start`, without SFTs in gaps and a random share."""
    t = t_start + tatom * np.arange(span // tatom, dtype=np.int64)
    keep = rng.random(t.size) < duty
    for a, b in gaps:
        if not a < b:
            raise ValueError(f"gaps: ({a!r}, {b!r}): expected the end after the beginning")
        keep &= (t + tatom <= a) | (t >= b)
    return t[keep]


def synth_atoms(
    t_start: int = 1_000_000_000,
    span: int = 10 * 86400,
    *,
    detectors: Sequence[str] = ("H1", "L1"),
    tatom: int = 1800,
    ra: float = 0.5,
    dec: float = 1.0,
    inject: Injection | Sequence[Injection] | None = None,
    gaps: Sequence[tuple[int, int]] | Mapping[str, Sequence[tuple[int, int]]] = (),
    duty: float = 1.0,
    offsets: Sequence[int] | None = None,
    noise: float | dict[str, float] = 1.0,
    seed: int | np.random.Generator | None = 0,
    dtype: Any = "float32",
) -> list[Atoms]:
    """Atoms of a perfectly matched template in Gaussian noise, with signals.

    Parameters
    ----------
    t_start, span : int
        GPS second of the first SFT and length of the data in seconds.
    detectors : sequence of str
        Names of `DETECTORS`.
    tatom : int
        SFT length.
    ra, dec : float
        Sky position, radians.
    inject : Injection or sequence of Injection, optional
        Signals.
    gaps : sequence of (start, stop), or dict of them by detector
        GPS ranges without data.
    duty : float
        Fraction of the SFTs that are kept, chosen at random.
    offsets : sequence of int, optional
        Delay of the SFTs of each detector, in seconds.
    noise : float or dict by detector
        Relative noise amplitudes, from which the detectors' weights follow.  0 everywhere gives signals without noise.
    seed : int or numpy.random.Generator
        The same seed gives the same atoms.
    dtype : {"float32", "float64"}

    Returns
    -------
    list of Atoms
        One entry for each detector.

    Raises
    ------
    ValueError, TypeError
        A detector is unknown or has no SFT, a number is out of range, or no SFT starts in the window of a signal.

    Notes
    -----
    In noise alone 2F of every cell follows a chi-square distribution with four degrees of freedom.  Signals are scaled
    so that the squared SNR summed over detectors and the window is ``snr**2``.

    Examples
    --------
    >>> signal = Injection(t0=1000180000, tau=108000, snr=12, window="exp")
    >>> h1, l1 = synth_atoms(inject=signal, gaps={"L1": [(1000200000, 1000300000)]}, seed=3)
    >>> len(h1), len(l1)
    (480, 424)
    """
    start, length = whole_seconds(t_start, "t_start"), positive_seconds(span, "span")
    width, real = positive_seconds(tatom, "tatom"), real_dtype(dtype)
    finite(duty, "duty", "above 0, at most 1", lambda x: 0 < x <= 1)
    ra, dec = sky_position(ra, dec)
    names = names_of(detectors)
    delays = [0] * len(names) if offsets is None else [whole_seconds(o, "offsets") for o in offsets]
    if len(delays) != len(names):
        raise ValueError(f"offsets has {len(delays)} entries, expected {len(names)}, one for each detector")
    signals = listed(inject if inject is not None else (), Injection, "inject")
    rng = np.random.default_rng(seed)
    levels = _levels(noise, names)
    quiet = all(level == 0 for level in levels)
    weights = np.ones(len(names)) if quiet else np.mean([v**-2.0 for v in levels]) ** -1 * np.array(levels) ** -2.0
    found = []
    for name, delay, weight in zip(names, delays, weights, strict=True):
        holes = of_detector(gaps, name, "gaps", ())
        t = sft_times(start + delay, length, width, holes, duty, rng)
        if t.size == 0:
            raise ValueError(f"detector {name} has no SFT: gaps or duty leave nothing of the {length} s")
        a, b = antenna_patterns(t + 0.5 * width, name, ra, dec)
        found.append((name, t, a * np.sqrt(weight), b * np.sqrt(weight)))
    z = [np.zeros(t.size, np.complex128) for _, t, _, _ in found]
    for signal in signals:
        pa, pb = signal.polarisations()
        h = [signal.amplitude(t) * (a * pa + b * pb) for _, t, a, b in found]
        power = float(sum(np.sum(np.abs(v) ** 2) for v in h))
        if power > 0:
            # 2F without noise is 2 sum |h|^2 for unit amplitude; see `Injection`
            z = [v + w * signal.snr / np.sqrt(2 * power) for v, w in zip(z, h, strict=True)]
        elif signal.snr > 0:
            first, stop = min(int(t[0]) for _, t, _, _ in found), max(int(t[-1]) for _, t, _, _ in found) + width
            raise ValueError(
                f"inject: signal of t0={signal.t0}, tau={signal.tau}: no SFT starts in its window; the SFTs are from "
                f"GPS {first} to {stop}"
            )
    if not quiet:
        scale = np.sqrt(0.5)
        z = [v + scale * (rng.standard_normal(v.size) + 1j * rng.standard_normal(v.size)) for v in z]
    out = []
    for (name, t, a, b), v in zip(found, z, strict=True):
        a2, b2, ab = (x.astype(real) for x in (a * a, b * b, a * b))
        pair = np.complex64 if real == np.float32 else np.complex128
        out.append(Atoms(t, a2, b2, ab, (a * v).astype(pair), (b * v).astype(pair), width, name))
    return out


def _levels(noise: float | dict[str, float], names: Sequence[str]) -> list[float]:
    levels = [float(of_detector(noise, n, "noise")) for n in names]
    zero = [v == 0 for v in levels]
    if not np.all(np.isfinite(levels)) or min(levels) < 0 or (any(zero) and not all(zero)):
        raise ValueError(f"noise={noise!r}: expected positive levels, or 0 everywhere")
    return levels
