"""A light curve with the fit at one frequency: parameters, model, spectral window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.lightcurves.checks import refuse_coarse_phases
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS

from .least_squares import design_matrix, fit, spectral_window
from .light_curve import Curve, has_unit, unit_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FittedCurve(Curve):
    """A light curve and the model that is fitted to it."""

    def __init__(
        self, t: Any, y: Any, dy: Any, fit_mean: bool, center_data: bool, nterms: int, normalization: str
    ) -> None:
        super().__init__(t, y, dy)
        self.fit_mean, self.center_data = fit_mean, center_data
        self.nterms, self.normalization = nterms, normalization

    @property
    def _fewest(self) -> int:
        """Fewest usable rows, as of `skysieve.lombscargle`."""
        return 3 if self.fit_mean else 2

    def _refuse_coarse(self, highest: float) -> None:
        """Raise ValueError for times in single precision that are too coarse for a frequency."""
        if self._resolution:
            refuse_coarse_phases(self._resolution, abs(highest))

    def offset(self) -> Any:
        """Weighted mean of `y`, or 0 without `center_data`."""
        return (self._usable.mean if self.center_data else 0) * unit_of(self.y)

    def design_matrix(self, frequency: Any, t: Any = None) -> NDArray[np.float64]:
        """Columns of the model: 1 with `fit_mean`, then sin and cos of each term.

        Parameters
        ----------
        frequency : float or Quantity
        t : array_like, Quantity or Time, optional
            Times.  By default they are those of the light curve, and each row is divided by its error.

        Returns
        -------
        numpy.ndarray, shape (n_times, fit_mean + 2 nterms)
        """
        f = self._one_frequency(frequency)
        if t is None:
            times, _, dy = self._rows()
        else:
            times, dy = self._times(t), None
        return design_matrix(times, f, dy, self.fit_mean, self.nterms)

    def model_parameters(self, frequency: Any, units: bool = True) -> Any:
        """Best-fit parameters of the columns of `design_matrix`, fitted to the data minus `offset`.

        Parameters
        ----------
        frequency : float or Quantity
        units : bool
            Whether to return a Quantity with the unit of `y`.
        """
        theta = self._parameters(self._one_frequency(frequency))
        return theta * unit_of(self.y) if units else theta

    def _parameters(self, f: float) -> NDArray[np.float64]:
        rows = self._usable
        rows.refuse_few(max(self._fewest, bool(self.fit_mean) + 2 * self.nterms))
        self._refuse_coarse(f)
        y = rows.centred if self.center_data else rows.y
        return fit(rows.t, y, rows.dy, f, self.fit_mean, self.nterms)

    def model(self, t: Any, frequency: Any) -> Any:
        """The fitted model at other times.

        Parameters
        ----------
        t : array_like, Quantity or Time, shape (n_times,)
        frequency : float or Quantity

        Returns
        -------
        numpy.ndarray or Quantity, shape (n_times,)

        Raises
        ------
        TypeError
            For absolute times where the light curve's are relative, or the other way round.
        ValueError
            If the light curve has fewer usable rows than the model has parameters, or equal times.
        """
        f = self._one_frequency(frequency)
        times = self._times(t)
        values = design_matrix(times, f, None, self.fit_mean, self.nterms) @ self._parameters(f)
        if self.center_data:
            values += self._usable.mean
        return values * self.y.unit if has_unit(self.y) else values

    def window(self, frequency: Any) -> NDArray[np.float64]:
        """Spectral window function: ``|sum w exp(2 pi i f t)|^2`` with the weights of the errors, 1 at frequency 0.

        Parameters
        ----------
        frequency : array_like or Quantity
            Cyclic frequencies, of any shape; 0 and negative ones too.

        Returns
        -------
        numpy.ndarray, float64
            Of the shape of `frequency`; computed on the host.

        Examples
        --------
        >>> import numpy as np, skysieve
        >>> nights = np.arange(100) + 0.1 * np.random.default_rng(0).random(100)
        >>> skysieve.LombScargle(nights, np.sin(nights)).window([0, 1, 1.5]).round(1)
        array([1., 1., 0.])
        """
        wanted = self._frequency(frequency)
        bare = np.asarray(getattr(wanted, "value", wanted), np.float64)
        t, _, dy = self._rows()
        return spectral_window(t, dy, bare.ravel()).reshape(bare.shape)

    def autofrequency(
        self,
        samples_per_peak: float = 5,
        nyquist_factor: float = 5,
        minimum_frequency: Any = None,
        maximum_frequency: Any = None,
        return_freq_limits: bool = False,
    ) -> Any:
        """Frequencies from the time span and the number of points.

        Parameters
        ----------
        samples_per_peak : float
            Number of frequencies in an interval of 1/T, with T the time span.
        nyquist_factor : float
            Multiple of the mean sampling's Nyquist frequency at which the grid ends.
        minimum_frequency, maximum_frequency : float or Quantity, optional
            Ends of the grid, in place of those of the rule.
        return_freq_limits : bool
            Return only the first and the last frequency.

        Returns
        -------
        numpy.ndarray or Quantity

        Raises
        ------
        ValueError
            If the times are all equal.
        """
        low, step, count = self._rule(samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency)
        if return_freq_limits:
            return low, low + step * (count - 1)
        return low + step * np.arange(count)

    def _rule(
        self, samples_per_peak: float, nyquist_factor: float, minimum_frequency: Any, maximum_frequency: Any
    ) -> tuple[Any, Any, int]:
        """First frequency, step and number of frequencies of `autofrequency`."""
        if self._sampling is None:
            t = self._relative
            good = np.isfinite(np.asarray(t, np.float64))
            if not np.any(good) or np.ptp(np.asarray(t, np.float64)[good]) == 0:
                raise ValueError("the times t are all equal; a time span above 0 is needed")
            self._sampling = int(good.sum()), t[good].max() - t[good].min()
        for name, end in (("minimum_frequency", minimum_frequency), ("maximum_frequency", maximum_frequency)):
            _refuse_unit(name, end, self._relative)
        n, baseline = self._sampling
        step = 1.0 / baseline / samples_per_peak
        low = 0.5 * step if minimum_frequency is None else minimum_frequency
        high = nyquist_factor * (0.5 * n / baseline) if maximum_frequency is None else maximum_frequency
        return low, step, 1 + round(float((high - low) / step))

    def _power_unit(self, normalization: str) -> Any:
        if not has_unit(self.y):
            return 1
        return self.y.unit**2 if NORMALIZATIONS[normalization].has_unit(self.dy is not None) else self.y.unit**0


def _refuse_unit(name: str, frequency: Any, t: Any) -> None:
    """Raise UnitConversionError if an end of the grid has a unit and the times have none, or the other way round.

    Dimensionless times, which plain ones become beside values with a unit, take plain numbers too.
    """
    if frequency is None or has_unit(frequency) == has_unit(t) or (has_unit(t) and t.unit.is_unity()):
        return
    from astropy.units import UnitConversionError

    if has_unit(t):
        raise UnitConversionError(f"{name}={frequency!r} has no unit, but t is in {t.unit}; give it one such as 1/d")
    raise UnitConversionError(f"{name} has the unit {frequency.unit}, but t has none; give both a unit or neither")
