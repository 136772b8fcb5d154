"""False-alarm probabilities of peaks, and their inverse.

Formulas of Baluev 2008 (MNRAS 385, 1279; table 1, eqs. 5 and 6) and, for several Fourier terms, 2009 (MNRAS 395, 1541),
in astropy's conventions: the null hypothesis is a constant with Gaussian noise of the given errors (of unknown scale
but for "psd"), the model one or several terms and a constant.  Small probabilities are precise relative to their
value.  Numbers have no units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from skysieve.periodogram.numerics.normalization import HALF_CHI2, Normalization, normalization_named

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

FalseAlarmName = Literal["single", "naive", "davies", "baluev", "bootstrap"]
METHODS = get_args(FalseAlarmName)
FORMULAS = tuple(name for name in METHODS if name != "bootstrap")
NULL_PARAMETERS = 1


class NoFormulaWarning(UserWarning):
    """No formula holds for this periodogram, so that a false-alarm probability is None."""


def no_formula(normalization: str, nterms: int, has_dy: bool, centred: bool) -> str | None:
    """Why no formula gives false-alarm probabilities; None if there is one."""
    kind = normalization_named(normalization)
    if nterms == 0:
        return "a model with nterms=0 has no sinusoid"
    if not centred:
        return "the data are not centred (neither fit_mean nor center_data)"
    if kind.has_distribution and not kind.has_unit(has_dy):
        return None
    errors = " without errors" if kind.has_distribution else ""
    return (
        f"the power of normalization {kind.name!r}{errors} depends on the unknown scatter of the values; "
        "that of 'standard' does not"
    )


def single(
    z: ArrayLike, n: Any, normalization: str = "standard", nterms: int = 1, constant: bool = True
) -> NDArray[Any]:
    """Probability that noise reaches ``z`` at one given frequency.

    Parameters
    ----------
    z : array_like
        Power.
    n : int or numpy.ndarray
        Points of the light curve.
    normalization : {"standard", "model", "log", "psd"}
        Of the power.
    nterms : int
        Fourier terms of the model.  The standard power of noise has a beta distribution: the model's 2 `nterms`
        directions take a part of all.
    constant : bool
        Whether a constant was fitted or subtracted.

    Returns
    -------
    numpy.ndarray
        Of the shape of `z`.  1 where the model has as many parameters as there are points.

    Examples
    --------
    >>> float(single(0.5, 23)), round(float(single(0.5, 23, nterms=2)), 8)
    (0.0009765625, 0.01074219)
    """
    kind, power, half = normalization_named(normalization), np.asarray(z, np.float64), _half(n, nterms, constant)
    with np.errstate(divide="ignore", invalid="ignore"):
        if nterms == 1:
            return kind.single(power, half)
        from scipy.special import betainc, gammaincc

        if kind.scale == HALF_CHI2:  # the scale of the noise is known
            return np.asarray(gammaincc(nterms, np.maximum(power, 0)))
        found = betainc(np.where(half > 0, half, 1), nterms, kind.left(power))
        return np.where((half == 0) & ~np.isnan(power), 1.0, found)


def density(
    z: ArrayLike, n: int, normalization: str = "standard", nterms: int = 1, constant: bool = True
) -> NDArray[Any]:
    """Probability density of the power at one frequency: minus the derivative of `single`.

    >>> round(float(density(0.5, 23)), 6)
    0.019531
    """
    kind, power, half = normalization_named(normalization), np.asarray(z, np.float64), _half(n, nterms, constant)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_one = kind.density(power, half, kind.single(power, half))
        if nterms == 1:
            return of_one
        if kind.scale == HALF_CHI2:
            return of_one * power ** (nterms - 1) / math.gamma(nterms)
        more = math.exp(math.lgamma(half + nterms) - math.lgamma(half + 1) - math.lgamma(nterms))
        return of_one * (1 - kind.left(power)) ** (nterms - 1) * more


def single_level(fap: ArrayLike, n: int, normalization: str = "standard") -> NDArray[Any]:
    """Power of a sinusoid to which `single` gives the probability ``fap``.

    >>> round(float(single_level(2.0**-10, 23)), 12)
    0.5
    """
    with np.errstate(divide="ignore"):
        log = np.log(np.asarray(fap, np.float64))
    return normalization_named(normalization).level(log, 0.5 * (n - 3))


def _half(n: Any, nterms: int, constant: bool) -> Any:
    """Half the degrees of freedom that the model leaves."""
    left = n - constant - 2 * nterms
    return 0.5 * max(left, 0) if isinstance(n, int) else 0.5 * np.maximum(left, 0)


@dataclass(frozen=True)
class Noise:
    """Quantities of a light curve that the formulas need; for many light curves, arrays that broadcast to the powers.

    Attributes
    ----------
    n : int or numpy.ndarray
        Points.
    span : float or numpy.ndarray
        Time span T.
    effective_span : float or numpy.ndarray
        ``sqrt(4 pi var(t))`` with the weights of the errors.
    bandwidth : float or numpy.ndarray
        Width of the range of frequencies, 0 to fmax in astropy's convention.
    normalization : str
        Of the power.
    nterms : int
        Fourier terms of the model.
    kept : float
        Part of the power of the second of two terms that a penalty leaves.
    """

    n: Any
    span: Any
    effective_span: Any
    bandwidth: Any
    normalization: str
    nterms: int = 1
    kept: float = 1.0

    @classmethod
    def of(cls, t: NDArray[Any], dy: NDArray[Any] | None, bandwidth: float, normalization: str) -> Noise:
        """From times and errors (finite numbers without units)."""
        weight = np.ones_like(t) if dy is None else np.broadcast_to(np.asarray(dy, np.float64), t.shape) ** -2.0
        weight = weight / weight.sum()
        from_middle = t - 0.5 * (t.min() + t.max())
        variance = float(weight @ (from_middle - weight @ from_middle) ** 2)
        return cls(len(t), float(np.ptp(t)), math.sqrt(4 * math.pi * variance), bandwidth, normalization)

    def tau(self, z: ArrayLike) -> NDArray[Any]:
        """Expected number of up-crossings of the level ``z`` (Baluev 2008, table 1; 2009 for several terms).

        Infinite where the model has as many parameters as there are points and the formula has no value.
        """
        return self._alone_and_tau(np.asarray(z, np.float64))[1]

    def _alone_and_tau(self, z: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Probability that noise reaches ``z`` at one frequency, and `tau`."""
        parameters = NULL_PARAMETERS + 2 * self.nterms
        alone = single(z, self.n, self.normalization, self.nterms)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.nterms == 1:
                crossings = self._kind.crossings(z, self.n - NULL_PARAMETERS, self.n - parameters)
            else:
                alone, crossings = self._of_series(z, alone)
            tau = np.asarray(self.bandwidth * self.effective_span * crossings)
        if not isinstance(self.n, int) or self.n <= parameters:
            tau = np.asarray(np.where(np.isnan(tau) & ~np.isnan(z) & (self.n <= parameters), np.inf, tau))
        return alone, tau

    def _of_series(self, z: NDArray[np.float64], alone: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Of several terms: ``alone`` with the penalty, and `tau` for a bandwidth of 1 over the effective time span.

        The number of up-crossings follows from that of a chi-square with ``2 nterms`` degrees of freedom, which is its
        mean over all lengths of the vector of the noise.  With a penalty, the distribution at one frequency is that of
        ``a + kept b`` with ``a`` and ``b`` the two terms' parts, and the up-crossings are taken to be fewer in the same
        ratio.
        """
        from scipy.special import gammaln

        terms, kept = self.nterms, self.kept
        if self._kind.scale == HALF_CHI2:  # the scale of the noise is known
            crossings = np.exp(-z) * z ** (terms - 0.5)
            held = np.exp(-z) - kept * np.exp(-z / kept)
        else:
            rest = np.asarray(self.n - NULL_PARAMETERS - 2 * terms, np.float64)
            rest = np.where(rest > 0, rest, np.nan)
            left = self._kind.left(z)
            log = gammaln(rest / 2 + terms) - gammaln((rest + 1) / 2) + 0.5 * (rest - 1) * np.log(left)
            crossings = np.exp(log) * (1 - left) ** (terms - 0.5)
            held = left ** (rest / 2 + 1) - kept * np.maximum(1 - (1 - left) / kept, 0.0) ** (rest / 2 + 1)
        crossings = crossings * _harmonic_factor(terms)
        if terms != 2 or kept == 1:
            return alone, crossings
        held = np.where(np.isnan(held), alone, held / max(1 - kept, 1e-9))
        return held, crossings * np.where(alone > 0, held / alone, 0.0)

    @property
    def _kind(self) -> Normalization:
        return normalization_named(self.normalization)

    def probability(self, z: ArrayLike, method: str = "baluev") -> NDArray[Any]:
        """Probability that the highest peak of noise reaches ``z``.

        Parameters
        ----------
        z : array_like
            Power.
        method : {"single", "naive", "davies", "baluev"}
            At one frequency; from ``bandwidth * span`` independent frequencies; Davies' bound (which may pass 1);
            the alias-free approximation.

        Returns
        -------
        numpy.ndarray

        Examples
        --------
        >>> noise = [Noise(100, 50.0, 51.2, 3.0, "standard", nterms) for nterms in (1, 2)]
        >>> [float(of.probability(0.3).round(8)) for of in noise]
        [2.159e-05, 0.00069035]
        """
        alone, tau = self._alone_and_tau(np.asarray(z, np.float64))
        if method == "single":
            return alone
        with np.errstate(divide="ignore"):
            if method == "naive":
                return np.asarray(-np.expm1(self.bandwidth * self.span * np.log1p(-alone)))
            if method == "davies":
                return np.asarray(alone + tau)
            if method == "baluev":
                return np.asarray(-np.expm1(-tau) + alone * np.exp(-tau))
        raise ValueError(f"Unrecognized method: {method!r}; expected one of {', '.join(map(repr, FORMULAS))}")

    def level(self, fap: ArrayLike, method: str = "baluev") -> NDArray[Any]:
        """Power that a peak of noise reaches with the probability ``fap``: the inverse of `probability`."""
        p = checked(fap)
        if self.nterms == 1 and method == "single":
            return single_level(p, self.n, self.normalization)
        if self.nterms == 1 and method == "naive":
            with np.errstate(divide="ignore"):
                alone = -np.expm1(np.log1p(-p) / (self.bandwidth * self.span))
            return single_level(alone, self.n, self.normalization)
        top = self._kind.top
        inside = np.clip(p, np.finfo(np.float64).tiny, 1.0)
        level = invert(lambda z: self.probability(z, method), inside, self._most_crossings(), top)
        return np.asarray(np.where(p == 0, top, np.where(p == 1, 0.0, level)))

    def _most_crossings(self) -> float:
        """Power at which `tau` is largest: every probability falls beyond it."""
        if self.nterms == 1:
            return self._kind.most_crossings(self.n - NULL_PARAMETERS, self.n - NULL_PARAMETERS - 2)
        twice = 2 * self.nterms - 1
        if self._kind.scale == HALF_CHI2:
            return 0.5 * twice
        return float(self._kind.from_standard(np.array(min(twice / max(self.n - 3, 1), 1.0))))


def _harmonic_factor(count: int) -> float:
    """How many more up-crossings a series of ``count`` terms has than a sinusoid (Baluev 2009).

    >>> [round(_harmonic_factor(n), 4) for n in (1, 2, 3)]
    [1.0, 1.5556, 1.0622]
    """
    total: float = sum(
        (-1.0) ** (count - k) * k ** (2 * count + 1) / (math.factorial(count + k) * math.factorial(count - k))
        for k in range(1, count + 1)
    )
    return 2.0**count / math.prod(range(1, 2 * count, 2)) * total


def checked(probability: ArrayLike) -> NDArray[np.float64]:
    """Probabilities as an array; ValueError if one is not between 0 and 1."""
    p = np.asarray(probability, np.float64)
    outside = ~((p >= 0) & (p <= 1))
    if np.any(outside):
        raise ValueError(f"false_alarm_probability={p[outside].flat[0]:g}: expected numbers from 0 to 1")
    return p


def invert(
    probability: Callable[[NDArray[Any]], NDArray[Any]], p: NDArray[Any], start: float, top: float
) -> NDArray[Any]:
    """The highest ``z`` of probability ``p`` up to ``top``, by halving an interval in which the probability falls."""
    low = np.full(p.shape, start)
    low = np.where(probability(low) > p, low, 0.0)
    high = np.maximum(2 * low, 2 * start)
    if math.isfinite(top):
        high = np.full(p.shape, top)
    else:
        while np.any(probability(high) > p):
            high = np.where(probability(high) > p, 2 * high, high)
    for _ in range(200):
        middle = 0.5 * (low + high)
        above = probability(middle) > p
        before = low, high
        low, high = np.where(above, middle, low), np.where(above, high, middle)
        if np.array_equal(low, before[0]) and np.array_equal(high, before[1]):  # the ends are neighbouring numbers
            break
    return np.asarray(0.5 * (low + high))
