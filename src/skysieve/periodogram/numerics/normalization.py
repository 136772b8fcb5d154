"""The normalisations of the power: one class each, with its name, code numbers, formula and distribution in noise.

To add one, write a class and list it in `NORMALIZATIONS` and `NormalizationName`.  The argument checks, the command
line, the units of the power, the numba and CUDA kernels and the false-alarm formulas read this registry.  Kernels know
a normalisation by two numbers: the *form*, a function of the standard power, and the *scale*, a factor of each object.
A new form needs a branch in ``normalize`` of ``cpu/search.py``, in its replacement ``_normalize`` of ``cpu/vectors.py``
and in both ``normalise`` of ``cuda/common.cuh`` as well; without it they compute another form.

The distributions are those of Baluev 2008 (MNRAS 385, 1279; table 1), with "points" ``N``: of noise alone, for a
sinusoid and a constant against a constant.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from skysieve.core.checks import one_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROPORTIONAL, RATIO, LOGARITHM = 0, 1, 2
"""Forms, as functions of the standard power P: P times the scale, P / (1 - P), -ln(1 - P)."""
UNIT, HALF_CHI2, HALF_ROWS = 0, 1, 2
"""Scales of an object: 1; half the chi-square of the constant model; half the number of rows times the mean square."""
TINY = 2.0**-1022
"""Smallest normal number of double precision."""
BELOW_ONE = 1 - 2.0**-53
"""Largest power for which the ratio and the logarithm are finite."""

NormalizationName = Literal["standard", "model", "log", "psd", "scargle"]


class Normalization:
    """A normalisation of the power.

    Attributes
    ----------
    name, help, formula : str
        Name, description in one sentence, and formula in terms of the standard power P.
    form, scale : int
        Code numbers of the kernels, see above.
    has_distribution : bool
        Whether the distribution of the power of noise is known.
    top : float
        Largest possible power.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    formula: ClassVar[str]
    form: ClassVar[int] = PROPORTIONAL
    scale: ClassVar[int] = UNIT
    has_distribution: ClassVar[bool] = True
    top: ClassVar[float] = math.inf

    def scale_of(self, mean_square: Any, weight: Any, n_used: Any) -> Any:
        """The scale of light curves; the arguments are those of `contract.Output`."""
        if self.scale == UNIT:
            return np.ones_like(np.asarray(mean_square, np.float64))
        if self.scale == HALF_CHI2:
            return 0.5 * chi_square(mean_square, weight)
        return 0.5 * np.multiply(mean_square, np.asarray(n_used, np.float64))

    def has_unit(self, has_dy: bool) -> bool:
        """Whether the power has the unit of ``y**2``, rather than none."""
        return self.scale == HALF_ROWS or (self.scale == HALF_CHI2 and not has_dy)

    def from_standard(self, power: NDArray[np.float64]) -> NDArray[np.float64]:
        """The power of scale 1 from the standard power."""
        return power

    def left(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """1 - P of a power of scale 1: the part of chi-square that the model leaves."""
        return 1 - np.clip(z, 0.0, 1.0)

    def single(self, z: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        """Probability that noise reaches `z` at one frequency; `half` is half the degrees of freedom left by the model.

        It is 1 where there are as many parameters as points.
        """
        found = np.exp(self._log_single(z, half))
        if isinstance(half, float) and half != 0:
            return np.asarray(found)
        return np.where((half == 0) & ~np.isnan(z), 1.0, found)

    def _log_single(self, z: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        raise self._unknown()

    def _unknown(self) -> ValueError:
        known = ", ".join(map(repr, with_distribution()))
        return ValueError(f"normalization={self.name!r}: expected one of {known}, whose distribution is known")

    def density(self, z: NDArray[np.float64], half: Any, single: NDArray[np.float64]) -> NDArray[np.float64]:
        """Minus the derivative of `single` with respect to `z`, whose value is given."""
        raise self._unknown()

    def level(self, log: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        """Power at which `single` has the logarithm `log`."""
        raise self._unknown()

    def crossings(self, z: NDArray[np.float64], null: Any, model: Any) -> NDArray[np.float64]:
        """Expected up-crossings of the level `z` for a bandwidth of 1 over the effective time span.

        `null` and `model` are the degrees of freedom that a constant, and a sinusoid with a constant, leave.
        """
        raise self._unknown()

    def most_crossings(self, null: Any, model: Any) -> float:
        """Power at which `crossings` is largest."""
        return float(1.0 / max(null - 2, 1))


class Standard(Normalization):
    """Reduction of chi-square, relative to the chi-square of the constant model."""

    name = "standard"
    help = "The fraction by which the model reduces chi-square, from 0 to 1."
    formula = "P"
    top = 1.0

    def _log_single(self, z: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        return np.asarray(half * np.log1p(-np.minimum(z, 1.0)))

    def density(self, z: NDArray[np.float64], half: Any, single: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Normalization.density`."""
        with np.errstate(divide="ignore"):
            inside = half * np.exp((half - 1) * np.log1p(-np.minimum(z, 1.0)))
        return np.where(z < 1, inside, np.where(np.isnan(z), np.nan, 0.0))

    def level(self, log: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        """See `Normalization.level`."""
        return np.asarray(-np.expm1(log / half))

    def crossings(self, z: NDArray[np.float64], null: Any, model: Any) -> NDArray[np.float64]:
        """See `Normalization.crossings`."""
        log = _log_gamma_factor(null) + 0.5 * (model - 1) * np.log1p(-np.minimum(z, 1.0))
        return np.asarray(np.exp(log) * np.sqrt(0.5 * null * z))

    def most_crossings(self, null: Any, model: Any) -> float:
        """See `Normalization.most_crossings`."""
        return float(1.0 / max(model, 1))


class Model(Normalization):
    """Reduction of chi-square, relative to the chi-square of the fit."""

    name = "model"
    help = "The reduction of chi-square by the model, divided by the chi-square of the fit."
    formula = "P / (1 - P)"
    form = RATIO

    def from_standard(self, power: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Normalization.from_standard`."""
        power = np.minimum(power, BELOW_ONE)
        return power / (1 - power)

    def left(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Normalization.left`."""
        return 1 / (1 + np.maximum(z, 0.0))

    def _log_single(self, z: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        return np.asarray(-half * np.log1p(z))

    def density(self, z: NDArray[np.float64], half: Any, single: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Normalization.density`."""
        return np.asarray(half * single / (1 + z))

    def level(self, log: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        """See `Normalization.level`."""
        return np.asarray(np.expm1(-log / half))

    def crossings(self, z: NDArray[np.float64], null: Any, model: Any) -> NDArray[np.float64]:
        """See `Normalization.crossings`."""
        log = _log_gamma_factor(model) - 0.5 * model * np.log1p(z)
        return np.asarray(np.exp(log) * np.sqrt(0.5 * model * z))


class Log(Normalization):
    """Logarithm of the ratio of the two chi-squares."""

    name = "log"
    help = "The logarithm of the chi-square of the constant model over that of the fit."
    formula = "-ln(1 - P)"
    form = LOGARITHM

    def from_standard(self, power: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Normalization.from_standard`."""
        return -np.log1p(-np.minimum(power, BELOW_ONE))

    def left(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Normalization.left`."""
        return np.exp(-np.maximum(z, 0.0))

    def _log_single(self, z: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        return np.asarray(-half * z)

    def density(self, z: NDArray[np.float64], half: Any, single: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Normalization.density`."""
        return np.asarray(half * single)

    def level(self, log: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        """See `Normalization.level`."""
        return np.asarray(-log / half)

    def crossings(self, z: NDArray[np.float64], null: Any, model: Any) -> NDArray[np.float64]:
        """See `Normalization.crossings`."""
        # sqrt(sinh(z/2)) = e^(z/4) sqrt((1 - e^-z) / 2), which does not overflow
        log = _log_gamma_factor(model) - 0.5 * z * (model - 0.5) + 0.25 * z
        return np.asarray(np.exp(log) * np.sqrt(-0.5 * model * np.expm1(-z)))


class PSD(Normalization):
    """Half the reduction of chi-square."""

    name = "psd"
    help = "Half the reduction of chi-square."
    formula = "P chi2_0 / 2"
    scale = HALF_CHI2

    def single(self, z: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        """See `Normalization.single`; the scale of the noise is known, so the number of points does not matter."""
        return np.asarray(np.exp(-z))

    def density(self, z: NDArray[np.float64], half: Any, single: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Normalization.density`."""
        return single

    def level(self, log: NDArray[np.float64], half: Any) -> NDArray[np.float64]:
        """See `Normalization.level`."""
        return np.asarray(-log)

    def crossings(self, z: NDArray[np.float64], null: Any, model: Any) -> NDArray[np.float64]:
        """See `Normalization.crossings`."""
        return np.asarray(np.exp(-z) * np.sqrt(z))

    def most_crossings(self, null: Any, model: Any) -> float:
        """See `Normalization.most_crossings`."""
        return 0.5


class Scargle(Normalization):
    """The unnormalised power of Gowanlock et al. 2021."""

    name = "scargle"
    help = "The unnormalised power of Gowanlock et al. 2021."
    formula = "P (N / 2) sum(w (y - mean)^2)"
    scale = HALF_ROWS
    has_distribution = False


NORMALIZATIONS: dict[str, Normalization] = {kind.name: kind for kind in (Standard(), Model(), Log(), PSD(), Scargle())}


def normalization_named(name: str) -> Normalization:
    """The normalisation of that name; ValueError lists those that exist."""
    return NORMALIZATIONS[one_of("normalization", name, NORMALIZATIONS)]


def with_distribution() -> tuple[str, ...]:
    """Names of the normalisations whose distribution in noise is known."""
    return tuple(name for name, kind in NORMALIZATIONS.items() if kind.has_distribution)


def chi_square(mean_square: Any, weight: Any) -> NDArray[np.float64]:
    """Chi-square of the constant model; the arguments are those of `contract.Output`.

    NaN if one of them is inf, or has lost digits below the smallest normal number, and the other does not confirm that
    the product is large, or small, as well.

    Examples
    --------
    >>> chi_square(np.array([4.0, 0.0, np.inf]), np.array([100.0, np.inf, 1.0])).tolist()
    [400.0, nan, inf]
    """
    square, total = np.asarray(mean_square, np.float64), np.asarray(weight, np.float64)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        product = np.asarray(square * total)
        if square.size and total.size and min(square.min(), total.min()) >= TINY and product.max() < math.inf:
            return product
        lost = ((square < TINY) & (total > 1)) | ((total < TINY) & (square > 1))
        lost |= ((square == math.inf) & (total < 1)) | ((total == math.inf) & (square < 1))
    return np.where(lost, np.nan, product)


def normalize(standard: Any, normalization: str, mean_square: Any, weight: Any, n_used: Any) -> NDArray[np.float64]:
    """Standard power in another normalisation (VanderPlas 2018, ApJS 236, 16, section 5).

    Parameters
    ----------
    standard : array_like
    normalization : str
        One of `NORMALIZATIONS`.
    mean_square, weight, n_used : array_like
        Of the light curve of each power, see `contract.Output`.

    Examples
    --------
    >>> float(normalize(0.5, "model", 1.0, 1.0, 10)), float(normalize(0.5, "psd", 4.0, 100.0, 10))
    (1.0, 100.0)
    """
    kind = NORMALIZATIONS[normalization]
    power = kind.from_standard(np.asarray(standard, np.float64))
    return power if kind.scale == UNIT else np.asarray(kind.scale_of(mean_square, weight, n_used) * power)


def _log_gamma_factor(n: Any) -> Any:
    """Logarithm of ``sqrt(2/n) Gamma(n/2) / Gamma((n-1)/2)``."""
    return _log_gamma_factor_of_one(n) if isinstance(n, int) else _log_gamma_factors(n)


@lru_cache(64)
def _log_gamma_factor_of_one(n: int) -> Any:
    return _log_gamma_factors(n)


def _log_gamma_factors(n: Any) -> Any:
    values, place = np.unique(np.asarray(n, np.float64), return_inverse=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 0.5 * np.log(2.0 / values) + _log_gamma(values / 2) - _log_gamma((values - 1) / 2)
    return found[place].reshape(np.shape(n))[()]


def _log_gamma(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """As scipy.special.gammaln for numbers that are not large negative; loading it takes longer than a search."""
    return np.array([math.inf if x <= 0 and x == int(x) else math.lgamma(x) for x in values.tolist()])
