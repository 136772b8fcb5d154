"""False-alarm probabilities of a light curve's peaks."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.analysis import fap
from skysieve.periodogram.analysis.bootstrap import PEAKS, bootstrap_maxima, exceeding, no_keywords

from .fit import FittedCurve
from .light_curve import Rows, has_unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from skysieve.periodogram.contract import MethodName
    from skysieve.periodogram.result.result import LombScargleResult


class Significance(FittedCurve, ABC):
    """False-alarm probabilities of a light curve's periodogram."""

    def distribution(self, power: Any, cumulative: bool = False) -> NDArray[np.float64]:
        """Probability density (or cumulative probability) of the power at one frequency, of noise alone.

        Raises
        ------
        ValueError
            If `nterms` is 0, the normalisation is "scargle", or the light curve has fewer than 3 usable rows (2 without
            `fit_mean`) or equal times.
        """
        if self.nterms == 0:
            raise ValueError("nterms=0: the power of a model without a sinusoid has no distribution")
        of = (self._enough().t.size, self.normalization, self.nterms, bool(self.fit_mean or self.center_data))
        return 1 - fap.single(power, *of) if cumulative else fap.density(power, *of)

    def false_alarm_probability(
        self,
        power: Any,
        method: fap.FalseAlarmName = "baluev",
        samples_per_peak: float = 5,
        nyquist_factor: float = 5,
        minimum_frequency: Any = None,
        maximum_frequency: Any = None,
        method_kwds: Mapping[str, Any] | None = None,
        *,
        frequency: Any = None,
        full_band: bool = True,
    ) -> Any:
        """Probability that noise alone makes a highest peak of at least this power.

        Parameters
        ----------
        power : array_like
            Peak heights, in the normalisation of the object.
        method : {"baluev", "davies", "naive", "single", "bootstrap"}
            In this order: Baluev's alias-free approximation; Davies' bound; a formula with the number of independent
            frequencies; the probability at one frequency; resampled light curves.  All hold for several terms too.
        samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency : optional
            Grid, see `autofrequency`.
        method_kwds : dict, optional
            For "bootstrap": ``n_bootstraps`` (1000), ``random_seed`` (None), ``refined`` (False: the highest sample
            of the grid, as in ``power.max()``; True: peaks refined between samples, as `peaks` gives them).
        frequency : array_like or Quantity, optional
            Your own frequency grid.  "bootstrap" uses all its frequencies, the formulas only its two ends.
        full_band : bool
            True: the formulas count all frequencies from 0 to the highest, as astropy does.  False: from the lowest.

        Returns
        -------
        float, numpy.ndarray, Quantity or None
            None where no formula holds (``normalization="scargle"``, "psd" without errors, data that are not centred);
            a `NoFormulaWarning` says why.

        Raises
        ------
        ValueError
            If the light curve has fewer than 3 usable rows (2 without `fit_mean`), or equal times.

        References
        ----------
        .. [1] Baluev 2008, MNRAS 385, 1279, eqs. 5, 6 and table 1
        .. [2] Baluev 2009, MNRAS 395, 1541, for several terms

        Examples
        --------
        >>> import numpy as np, skysieve
        >>> rng = np.random.default_rng(1)
        >>> t, y = rng.uniform(0, 50, 60), rng.normal(size=60)
        >>> ls = skysieve.LombScargle(t, y, device="cpu")
        >>> options = {"n_bootstraps": 200, "random_seed": 1}
        >>> bool(0 < ls.false_alarm_probability(0.25, method="bootstrap", method_kwds=options) < 1)
        True
        """
        grid = (samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency)
        if not self._formula_holds(method):
            return None
        z = np.asarray(power, np.float64)
        if method == "bootstrap":
            bare = self._grid(frequency, grid)
            maxima = self._maxima(bare, self.normalization, frequency is None, dict(method_kwds or {}))
            return exceeding(maxima, z)
        no_keywords(method, method_kwds)
        ends = self._ends(frequency, grid)
        found = self._noise(ends, self.normalization, full_band).probability(z, method)[()]
        return self._dimensionless(found, method)

    def false_alarm_level(
        self,
        false_alarm_probability: Any,
        method: fap.FalseAlarmName = "baluev",
        samples_per_peak: float = 5,
        nyquist_factor: float = 5,
        minimum_frequency: Any = None,
        maximum_frequency: Any = None,
        method_kwds: Mapping[str, Any] | None = None,
        *,
        frequency: Any = None,
        full_band: bool = True,
    ) -> Any:
        """Power that the highest peak of noise reaches with a given probability; inverse of `false_alarm_probability`.

        Parameters
        ----------
        false_alarm_probability : array_like
            Numbers between 0 and 1.
        method, samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency, method_kwds : optional
            As for `false_alarm_probability`.
        frequency, full_band : optional
            As for `false_alarm_probability`.

        Returns
        -------
        float, numpy.ndarray, Quantity or None
            None if no formula holds, as for `false_alarm_probability`.

        Raises
        ------
        ValueError
            As for `false_alarm_probability`.
        """
        grid = (samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency)
        if not self._formula_holds(method):
            return None
        p = fap.checked(false_alarm_probability)
        if method == "bootstrap":
            bare = self._grid(frequency, grid)
            maxima = self._maxima(bare, self.normalization, frequency is None, dict(method_kwds or {}))
            position = np.clip(np.floor((1 - p) * len(maxima)).astype(int), 0, len(maxima) - 1)
            return maxima[position] * self._power_unit(self.normalization)
        no_keywords(method, method_kwds)
        ends = self._ends(frequency, grid)
        return self._noise(ends, self.normalization, full_band).level(p, method)[()]

    @abstractmethod
    def _search(
        self,
        frequency: NDArray[Any],
        normalization: str,
        method: MethodName,
        regular: bool,
        data: tuple[Any, Any, Any] | None = None,
        **options: Any,
    ) -> LombScargleResult:
        """The periodogram of ``data`` (the light curve's own rows by default), as `skysieve.lombscargle` gives it."""

    def _grid(self, frequency: Any, rule: tuple[Any, ...]) -> NDArray[np.float64]:
        """Bare frequencies: the user's, or those of the rule."""
        wanted = self._frequency(self.autofrequency(*rule) if frequency is None else frequency)
        bare = np.atleast_1d(np.asarray(getattr(wanted, "value", wanted), np.float64)).ravel()
        if bare.size == 0:
            low, high = rule[2:]
            reason = (
                "frequency is empty" if frequency is not None else f"the range from {low} to {high} holds no frequency"
            )
            raise ValueError(f"{reason}: expected a grid of at least one frequency")
        return bare

    def _formula_holds(self, method: str) -> bool:
        """Whether a probability can be computed; a warning says why not."""
        reason = self._no_formula(method, self.normalization)
        if reason:
            warnings.warn(reason, fap.NoFormulaWarning, stacklevel=3)
        return not reason

    def _no_formula(self, method: str, normalization: str) -> str:
        """Why the method gives no probability; empty if it gives one."""
        if method not in fap.METHODS:
            known = ", ".join(map(repr, fap.METHODS))
            raise ValueError(f"Unrecognized method: {method!r}; expected one of {known}")
        reason = fap.no_formula(
            normalization, self.nterms, self.dy is not None, bool(self.fit_mean or self.center_data)
        )
        if reason is None or method == "bootstrap":
            return ""
        return f"no formula gives false-alarm probabilities: {reason}; 'bootstrap' needs no formula"

    def _ends(self, frequency: Any, rule: tuple[Any, ...]) -> tuple[float, float]:
        """Lowest and highest frequency of `_grid`."""
        if frequency is None:
            low, step, count = self._rule(*rule)
            if count >= 1:
                first, last = low, low + step * (count - 1)
                if has_unit(self._relative):
                    first, last = self._frequency(first).value, self._frequency(last).value
                return float(first), float(last)
        grid = self._grid(frequency, rule)
        return float(grid.min()), float(grid.max())

    def _enough(self) -> Rows:
        """The usable rows; ValueError if they are too few for a search or have equal times."""
        rows = self._usable
        rows.refuse_few(self._fewest)
        return rows

    def _noise(self, ends: tuple[float, float], normalization: str, full_band: bool) -> fap.Noise:
        """The noise for a search between two frequencies."""
        noise = self._enough().noise
        band = ends[1] - (0.0 if full_band else ends[0])
        return fap.Noise(noise.n, noise.span, noise.effective_span, band, normalization, self.nterms)

    def _maxima(
        self, frequency: NDArray[Any], normalization: str, regular: bool, keywords: dict[str, Any]
    ) -> NDArray[np.float64]:
        """Highest powers of resampled light curves, on a grid."""
        self._enough()
        n, seed = keywords.pop("n_bootstraps", 1000), keywords.pop("random_seed", None)
        refined = keywords.pop("refined", False)
        if keywords:
            known = "n_bootstraps, random_seed or refined"
            raise TypeError(f"method_kwds has {next(iter(keywords))!r}; {known} is expected")
        if not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"n_bootstraps={n!r}; a whole number of at least 1 is expected")
        model = {"fit_mean": bool(self.fit_mean), "center_data": bool(self.center_data), "nterms": self.nterms}
        return bootstrap_maxima(
            *self._rows(),
            lambda t, y, dy: self._search(
                frequency,
                normalization,
                "auto",
                regular,
                (t, y, dy),
                n_peaks=1 if refined else PEAKS,
                return_power=False,
            ),
            n=int(n),
            seed=seed,
            refined=refined,
            model=model | {"normalization": normalization},
        )

    def _dimensionless(self, value: Any, method: str) -> Any:
        """Make the result a dimensionless Quantity if the times have a unit, as astropy does."""
        if method == "single" or not has_unit(self._relative):
            return value
        from astropy.units import dimensionless_unscaled

        return value * dimensionless_unscaled
