"""False-alarm probabilities of peaks, and their inverse.

Formulas of Baluev 2008 (MNRAS 385, 1279; table 1, eqs. 5 and 6) in astropy's conventions: the null hypothesis
is a constant with Gaussian noise of the given errors (of unknown scale but for "psd"), the model a sinusoid and
a constant.  Small probabilities are precise relative to their value.  Pure NumPy on numbers without units.
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
NULL_PARAMETERS, MODEL_PARAMETERS = 1, 3


class NoFormulaWarning(UserWarning):
    """No formula holds for this periodogram, so that a false-alarm probability is None."""


BOOTSTRAP = "method='bootstrap' of LombScargle.false_alarm_probability"


def no_formula(method: str, normalization: str, nterms: int, centred: bool, has_dy: bool) -> str | None:
    """Why no formula gives this probability; None if one does, and for the bootstrap, which needs no formula."""
    if method not in METHODS:
        raise ValueError(f"Unrecognized method: {method!r}; expected one of {', '.join(map(repr, METHODS))}")
    kind = normalization_named(normalization)
    if method == "bootstrap":
        return None
    if nterms != 1:
        return f"no formula of the false-alarm probability holds for nterms={nterms}; {BOOTSTRAP} gives one"
    if not centred:
        return (
            "the false-alarm probability is known for centred data only (fit_mean or center_data); "
            f"{BOOTSTRAP} gives one"
        )
    if not kind.has_distribution:
        return (
            f"the distribution of normalization={normalization!r} depends on the unknown scatter of the data; "
            "use 'standard', or method='bootstrap'"
        )
    if kind.has_unit(has_dy):
        return (
            f"normalization={normalization!r} without dy has the unit of y**2, whose scatter is unknown; "
            "give dy, use 'standard', or method='bootstrap'"
        )
    return None


def single(z: ArrayLike, n: Any, normalization: str = "standard", parameters: int = MODEL_PARAMETERS) -> NDArray[Any]:
    """Probability that noise reaches ``z`` at one given frequency.

    Parameters
    ----------
    z : array_like
        Power.
    n : int
        Points of the light curve.
    normalization : {"standard", "model", "log", "psd"}
        Of the power.
    parameters : int
        Parameters of the model, 3 with a constant.

    Returns
    -------
    numpy.ndarray
        Of the shape of `z`.

    Examples
    --------
    >>> float(single(0.5, 23))
    0.0009765625
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        half = 0.5 * max(n - parameters, 0) if isinstance(n, int) else 0.5 * np.maximum(n - parameters, 0)
        return normalization_named(normalization).single(np.asarray(z, np.float64), half)


def density(z: ArrayLike, n: int, normalization: str = "standard", parameters: int = MODEL_PARAMETERS) -> NDArray[Any]:
    """Probability density of the power at one frequency: minus the derivative of `single`.

    >>> round(float(density(0.5, 23)), 6)
    0.019531
    """
    alone = single(z, n, normalization, parameters)
    return normalization_named(normalization).density(np.asarray(z, np.float64), 0.5 * (n - parameters), alone)


def single_level(fap: ArrayLike, n: int, normalization: str = "standard") -> NDArray[Any]:
    """Power that `single` gives the probability ``fap``.

    >>> round(float(single_level(2.0**-10, 23)), 12)
    0.5
    """
    with np.errstate(divide="ignore"):
        log = np.log(np.asarray(fap, np.float64))
    return normalization_named(normalization).level(log, 0.5 * (n - MODEL_PARAMETERS))


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
    """

    n: Any
    span: Any
    effective_span: Any
    bandwidth: Any
    normalization: str

    @classmethod
    def of(cls, t: NDArray[Any], dy: NDArray[Any] | None, bandwidth: float, normalization: str) -> Noise:
        """From times and errors (finite numbers without units)."""
        weight = np.ones_like(t) if dy is None else np.broadcast_to(np.asarray(dy, np.float64), t.shape) ** -2.0
        weight = weight / weight.sum()
        from_middle = t - 0.5 * (t.min() + t.max())
        variance = float(weight @ (from_middle - weight @ from_middle) ** 2)
        return cls(len(t), float(np.ptp(t)), math.sqrt(4 * math.pi * variance), bandwidth, normalization)

    def tau(self, z: ArrayLike) -> NDArray[Any]:
        """Expected number of up-crossings of the level ``z`` (Baluev 2008, table 1).

        Infinite where the model has as many parameters as there are points and the formula has no value.
        """
        tau = self._tau(z)
        if isinstance(self.n, int) and self.n > MODEL_PARAMETERS:
            return tau
        return np.asarray(np.where(np.isnan(tau) & ~np.isnan(z) & (self.n <= MODEL_PARAMETERS), np.inf, tau))

    def _tau(self, z: ArrayLike) -> NDArray[Any]:
        null, model = self.n - NULL_PARAMETERS, self.n - MODEL_PARAMETERS
        with np.errstate(divide="ignore", invalid="ignore"):
            crossings = self._kind.crossings(np.asarray(z, np.float64), null, model)
            return np.asarray(self.bandwidth * self.effective_span * crossings)

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
        """
        alone = single(z, self.n, self.normalization)
        if method == "single":
            return alone
        with np.errstate(divide="ignore"):
            if method == "naive":
                return np.asarray(-np.expm1(self.bandwidth * self.span * np.log1p(-alone)))
            if method == "davies":
                return np.asarray(alone + self.tau(z))
            if method == "baluev":
                tau = self.tau(z)
                return np.asarray(-np.expm1(-tau) + alone * np.exp(-tau))
        raise ValueError(f"Unrecognized method: {method!r}; expected one of {', '.join(map(repr, FORMULAS))}")

    def level(self, fap: ArrayLike, method: str = "baluev") -> NDArray[Any]:
        """Power that a peak of noise reaches with the probability ``fap``: the inverse of `probability`."""
        p = checked(fap)
        if method == "single":
            return single_level(p, self.n, self.normalization)
        if method == "naive":
            with np.errstate(divide="ignore"):
                alone = -np.expm1(np.log1p(-p) / (self.bandwidth * self.span))
            return single_level(alone, self.n, self.normalization)
        top = self._kind.top
        inside = np.clip(p, np.finfo(np.float64).tiny, 1.0)
        # tau is largest at the start: every probability falls beyond it
        start = self._kind.most_crossings(self.n - NULL_PARAMETERS, self.n - MODEL_PARAMETERS)
        level = invert(lambda z: self.probability(z, method), inside, start, top)
        return np.asarray(np.where(p == 0, top, np.where(p == 1, 0.0, level)))


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


def series_probability(z: ArrayLike, noise: Noise, nterms: int, kept: float = 1.0) -> NDArray[Any]:
    """Probability that the highest peak of noise reaches ``z`` where a series of ``nterms`` is fitted.

    Baluev 2009 (MNRAS 395, 1541); for one term the same as ``noise.probability(z)``.  The standard power of noise at
    one frequency has a beta distribution: of N - 1 directions it is the part in ``2 nterms``.  The number of
    up-crossings follows from that of a chi-square with ``2 nterms`` degrees of freedom, which is its mean over all
    lengths of the vector of the noise.

    The second of two terms may have a penalty that leaves the fraction ``kept`` of its power: the distribution at one
    frequency is then that of ``a + kept b`` with ``a`` and ``b`` the two terms' parts, and the up-crossings are taken
    to be fewer in the same ratio.

    >>> noise = Noise(100, 50.0, 51.2, 3.0, "standard")
    >>> [float(series_probability(0.3, noise, n).round(8)) for n in (1, 2)], float(noise.probability(0.3).round(8))
    ([2.159e-05, 0.00069035], 2.159e-05)
    """
    from scipy.special import betainc, gammaincc, gammaln

    power: NDArray[Any] = np.asarray(z, np.float64)
    kind = normalization_named(noise.normalization)
    w = noise.bandwidth * noise.effective_span * _harmonic_factor(nterms)
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind.scale == HALF_CHI2:  # the scale of the noise is known
            alone, tau = gammaincc(nterms, power), w * np.exp(-power) * power ** (nterms - 0.5)
            held = (np.exp(-power) - kept * np.exp(-power / kept)) / max(1 - kept, 1e-9)
        else:
            power = kind.to_standard(power)
            null = np.asarray(noise.n - NULL_PARAMETERS, np.float64)
            rest = np.where(null > 2 * nterms, null - 2 * nterms, np.nan)
            left = 1 - np.clip(power, 0.0, 1.0)
            log = gammaln(null / 2) - gammaln((rest + 1) / 2) + 0.5 * (rest - 1) * np.log(left)
            alone, tau = betainc(rest / 2, nterms, left), w * np.exp(log) * power ** (nterms - 0.5)
            held = left ** (rest / 2 + 1) - kept * np.maximum(1 - power / kept, 0.0) ** (rest / 2 + 1)
            held /= max(1 - kept, 1e-9)
        if nterms == 2 and kept < 1:
            alone, tau = held, tau * np.where(alone > 0, held / alone, 0.0)
        return np.asarray(-np.expm1(-tau) + alone * np.exp(-tau))


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
