"""A class with the methods of ``astropy.timeseries.LombScargle``, computed by this package."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import whole
from skysieve.periodogram.api import Borrowing
from skysieve.periodogram.lightcurves.sources import light_curves
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS, normalize

from .least_squares import FEW
from .light_curve import missing
from .prewhiten import Prewhitened, prewhiten
from .significance import Significance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from skysieve.periodogram.analysis.fap import FalseAlarmName
    from skysieve.periodogram.contract import MethodName
    from skysieve.periodogram.numerics.normalization import NormalizationName
    from skysieve.periodogram.result.result import LombScargleResult

    from .peaks import PeakList

METHODS: dict[str, MethodName] = {
    "auto": "auto",
    "skysieve": "auto",
    "skysieve_chi2": "auto",
    "slow": "direct",
    "cython": "direct",
    "scipy": "direct",
    "chi2": "direct",
    "direct": "direct",
    "fast": "nufft",
    "fastchi2": "nufft",
    "fastnifty": "nufft",
    "fastnifty_chi2": "nufft",
    "nufft": "nufft",
    "finufft": "finufft",
}
"""Names of methods, astropy's among them, and the methods of this package that they select."""
FEW_FREQUENCIES = 8
"""Most frequencies whose powers are fitted one by one with NumPy, without an engine."""
INDEPENDENT = 1e-3
"""Least determinant of a normal matrix, relative to the product of its diagonal, for such a fit."""
METHOD_KEYWORDS = frozenset({"use_fft", "oversampling", "trig_sum_kwds", "algorithm", "Mfft", "eps"})
"""Keywords of astropy's methods that set their accuracy; they have no effect here."""


class LombScargle(Significance):
    """Lomb-Scargle periodogram of one light curve, with the methods of ``astropy.timeseries.LombScargle``.

    Arguments, units, absolute and relative times, grids and normalisations mean the same as in astropy.  Rows with a
    value that is masked or not finite are left out.  The object has read-only copies of the data.

    Parameters
    ----------
    t : array_like, Quantity, Time or TimeDelta, shape (n,)
        Times.  A Time is taken in days since its first entry.
    y : array_like or Quantity, shape (n,)
        Values.
    dy : float, array_like or Quantity, optional
        Errors of `y`.
    fit_mean : bool
        Fit a constant at every frequency.
    center_data : bool
        Subtract the weighted mean first.
    nterms : int
        Fourier terms of the model.
    normalization : {"standard", "model", "log", "psd", "scargle"}
        Normalisation of the power; astropy does not have "scargle", see `skysieve.lombscargle`.
    device, dtype, memory, threads : optional
        Options of the computation, as for `skysieve.lombscargle`.

    Raises
    ------
    ValueError
        For shapes that do not fit and units that do not convert.
    TypeError
        For arrays on a GPU: use `skysieve.lombscargle` for these.  With ``device="cuda"``, arrays in host memory are
        searched on a GPU.

    See Also
    --------
    skysieve.lombscargle : many light curves at once.

    References
    ----------
    .. [1] VanderPlas 2018, ApJS 236, 16

    Examples
    --------
    >>> import numpy as np, skysieve
    >>> rng = np.random.default_rng(42)
    >>> t = 100 * rng.random(100)
    >>> y = np.sin(2 * np.pi * t) + rng.standard_normal(100)
    >>> ls = skysieve.LombScargle(t, y, device="cpu")
    >>> frequency, power = ls.autopower()
    >>> round(float(frequency[np.argmax(power)]), 2)
    1.0
    >>> bool(ls.false_alarm_probability(power.max()) < 0.01)
    True
    """

    available_methods = tuple(METHODS)

    def __init__(
        self,
        t: Any,
        y: Any,
        dy: Any = None,
        fit_mean: bool = True,
        center_data: bool = True,
        nterms: int = 1,
        normalization: NormalizationName = "standard",
        *,
        device: Any = "auto",
        dtype: Any = "float64",
        memory: Any = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(t, y, dy, fit_mean, center_data, nterms, normalization)
        self.device, self.dtype, self.memory, self.threads = device, dtype, memory, threads

    @classmethod
    def from_timeseries(
        cls, timeseries: Any, signal_column_name: str | None = None, uncertainty: Any = None, **kwargs: Any
    ) -> LombScargle:
        """From an astropy ``TimeSeries`` or ``BinnedTimeSeries`` (the middles of its bins); NaN rows are dropped.

        Parameters
        ----------
        timeseries : TimeSeries or BinnedTimeSeries
        signal_column_name : str
            Column of the values.
        uncertainty : str, float or Quantity, optional
            Column of the errors, or one error for all.
        **kwargs
            Further arguments of the class.

        Raises
        ------
        ValueError
            Without a signal column.
        TypeError
            For other kinds of table.
        """
        from astropy.timeseries import BinnedTimeSeries, TimeSeries

        if signal_column_name is None:
            raise ValueError("signal_column_name=None; the name of a column of the time series is expected")
        if isinstance(timeseries, TimeSeries):
            times = timeseries.time
        elif isinstance(timeseries, BinnedTimeSeries):
            times = timeseries.time_bin_center
        else:
            raise TypeError(f"timeseries is a {type(timeseries).__name__}; TimeSeries or BinnedTimeSeries is expected")
        y = timeseries[signal_column_name]
        keep = ~missing(y)
        dy = uncertainty
        if isinstance(uncertainty, str):
            dy = timeseries[uncertainty]
            keep &= ~missing(dy)
            dy = dy[keep]
        return cls(times[keep], y[keep], dy=dy, **kwargs)

    # ------------------------------------------------------------------ periodogram
    def power(
        self,
        frequency: Any,
        normalization: str | None = None,
        method: str = "auto",
        assume_regular_frequency: bool = False,
        method_kwds: Mapping[str, Any] | None = None,
    ) -> Any:
        """Power at given frequencies.

        Parameters
        ----------
        frequency : array_like or Quantity
            Cyclic frequencies, of any shape and in any order.
        normalization : str, optional
            Normalisation of the power; that of the object by default.
        method : str
            ``"auto"``, ``"direct"``, ``"nufft"``, ``"finufft"``, or one of astropy's names: ``"slow"``, ``"cython"``,
            ``"scipy"`` and ``"chi2"`` are direct sums here, ``"fast"`` and ``"fastchi2"`` fast transforms of a regular
            grid.  Each method works with any `fit_mean`, `dy` and `nterms`.
        assume_regular_frequency : bool
            Assume that the grid is regular between its ends.
        method_kwds : dict, optional
            astropy's own accuracy settings are accepted and ignored.

        Returns
        -------
        numpy.ndarray or Quantity
            Of the shape of `frequency`.  A negative frequency has the power of its absolute value.  At 0 the model is a
            constant; the power is then NaN with `fit_mean`, which already fits a constant.

        Raises
        ------
        ValueError
            If the light curve has fewer than 3 usable rows (2 without `fit_mean`), equal times, constant values, or
            times in single precision that are too coarse for the frequencies.
        """
        shape = normalization or self.normalization
        wanted = self._frequency(frequency)
        bare = np.asarray(getattr(wanted, "value", wanted), np.float64)
        flat = np.abs(bare.ravel())
        self._enough()
        if self._resolution:
            self._refuse_coarse(float(np.max(flat, initial=0.0)))
        chosen = self._method(method, method_kwds)
        regular = assume_regular_frequency
        if chosen != "auto" and chosen != "direct" and flat.size:
            if not (regular or _is_regular(flat)):
                raise ValueError(f"method={method!r}: frequency must be a regular grid")
            regular = True
        if regular:
            regular = not (np.any(bare < 0) and np.any(bare > 0))  # absolute values of both signs are no regular grid
        if np.count_nonzero(flat) == flat.size:
            power = self._powers(flat, shape, chosen, regular)
        else:
            zero = flat == 0
            power = np.full(flat.shape, self._at_zero(shape), np.dtype(self.dtype))
            if not zero.all():
                power[~zero] = self._powers(flat[~zero], shape, "direct" if chosen == "direct" else "auto", False)
        return power.reshape(bare.shape) * self._power_unit(shape)

    def autopower(
        self,
        method: str = "auto",
        method_kwds: Mapping[str, Any] | None = None,
        normalization: str | None = None,
        samples_per_peak: float = 5,
        nyquist_factor: float = 5,
        minimum_frequency: Any = None,
        maximum_frequency: Any = None,
    ) -> tuple[Any, Any]:
        """Power at the frequencies of `autofrequency`.

        Returns
        -------
        frequency, power : numpy.ndarray or Quantity
        """
        frequency = self.autofrequency(samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency)
        return frequency, self.power(frequency, normalization, method, True, method_kwds)

    def peaks(
        self,
        n: int = 5,
        *,
        frequency: Any = None,
        samples_per_peak: float = 5,
        nyquist_factor: float = 5,
        minimum_frequency: Any = None,
        maximum_frequency: Any = None,
        normalization: str | None = None,
        method: str = "auto",
        false_alarm: FalseAlarmName | None = "baluev",
        method_kwds: Mapping[str, Any] | None = None,
        aliases: bool = True,
    ) -> PeakList:
        """The highest peaks with their false-alarm probabilities and alias flags.

        Parameters
        ----------
        n : int
            Peaks, at least 1/T apart.
        frequency : array_like or Quantity, optional
            Grid to search; by default that of `autofrequency` with the arguments that follow.
        samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency : optional
            See `autofrequency`.
        normalization, method : str, optional
            As for `power`.
        false_alarm : {"baluev", "davies", "naive", "single", "bootstrap", None}
            The k-th peak gets the probability that the *highest* peak of noise is as high as it is: an upper
            bound for peaks behind the first.
        method_kwds : dict, optional
            As for `false_alarm_probability`.
        aliases : bool
            Flag peaks that are aliases of others (`skysieve.periodogram.result.aliases`); times without a unit are
            days.

        Returns
        -------
        PeakList

        Examples
        --------
        >>> import numpy as np, skysieve
        >>> rng = np.random.default_rng(3)
        >>> t = np.repeat(np.arange(80), 3) + rng.uniform(0, 0.3, 240)
        >>> y = np.sin(2 * np.pi * 0.31 * t) + 0.3 * rng.normal(size=240)
        >>> peaks = skysieve.LombScargle(t, y, 0.3).peaks(2, maximum_frequency=2)
        >>> str(peaks.alias_text[1]), bool(peaks.fap[0] < 1e-20)
        ('1/d - #1', True)
        """
        from .peaks import make_peaks

        n = whole("n", n, 1)
        shape = normalization or self.normalization
        bare = self._grid(frequency, (samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency))
        result = self._search(bare, shape, self._method(method, None), frequency is None, n_peaks=n, return_power=False)
        return make_peaks(self, result, bare, shape, false_alarm, dict(method_kwds or {}), aliases)

    def prewhiten(
        self,
        n: int,
        *,
        samples_per_peak: float = 5,
        nyquist_factor: float = 5,
        minimum_frequency: Any = None,
        maximum_frequency: Any = None,
        fap_limit: float | None = None,
    ) -> Prewhitened:
        """Find a sinusoid, subtract it, find the next: up to ``n`` of them, all fitted together each time.

        It ends earlier if only rounding errors are left.

        Parameters
        ----------
        n : int
            Largest number of sinusoids.
        samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency : optional
            Grid of each search, see `autofrequency`.
        fap_limit : float, optional
            Stop before the first sinusoid whose false-alarm probability (Baluev) is above this.

        Returns
        -------
        Prewhitened
            Frequencies, amplitudes, phases, errors, and ``.residual``, a `LombScargle` of the residuals.
        """
        grid = self._grid(None, (samples_per_peak, nyquist_factor, minimum_frequency, maximum_frequency))
        return prewhiten(self, n, grid, fap_limit)

    # ------------------------------------------------------------------ inside
    def _method(self, method: str, keywords: Mapping[str, Any] | None) -> MethodName:
        if method not in METHODS:
            raise ValueError(f"invalid method: {method!r}; expected one of {', '.join(map(repr, METHODS))}")
        odd = set(keywords or {}) - METHOD_KEYWORDS
        if odd:
            raise TypeError(f"method_kwds has {sorted(odd)[0]!r}, which no method takes")
        return METHODS[method]

    def _search(
        self,
        frequency: NDArray[Any],
        normalization: str,
        method: MethodName,
        regular: bool,
        data: tuple[Any, Any, Any] | None = None,
        **options: Any,
    ) -> LombScargleResult:
        """`skysieve.lombscargle` of plain numbers; ``data`` replaces the light curve's rows."""
        if self.nterms == 0 and not self.fit_mean:
            raise ValueError("nterms=0 without fit_mean leaves nothing to fit; use nterms of 1 or more")
        if self._resolution:
            self._refuse_coarse(float(np.max(frequency, initial=0.0)))
        grid: dict[str, Any] = {"frequency": frequency}
        options |= {"normalization": normalization}
        if regular and frequency.size > 1 and frequency[-1] > frequency[0]:
            grid = {"fmin": frequency[0], "fmax": frequency[-1], "nf": frequency.size}
        elif frequency.size == 1 and method in ("nufft", "finufft"):
            method = "auto"
        with Borrowing(
            fit_mean=bool(self.fit_mean),
            center_data=bool(self.center_data),
            nterms=self.nterms,
            device=self.device,
            dtype=self.dtype,
            memory=self.memory,
            threads=self.threads,
            **grid,
            method=method,
            **options,
        ) as plan:
            t, y, dy = self._rows() if data is None else data
            return plan._search(
                light_curves(t, y, dy), False, None, stacklevel=0
            )  # no warnings on grids like astropy's

    def _powers(self, frequency: NDArray[Any], normalization: str, method: MethodName, regular: bool) -> NDArray[Any]:
        if frequency.size == 0:
            return np.empty(0, np.dtype(self.dtype))
        if frequency.size <= FEW_FREQUENCIES and method in ("auto", "direct") and not self._needs_engine:
            few = self._least_squares(frequency, normalization)
            if few is not None:
                return few
        return np.asarray(self._search(frequency, normalization, method, regular).power)

    @property
    def _needs_engine(self) -> bool:
        """Whether options were given that only an engine can serve or refuse."""
        defaults = self.dtype == "float64" and self.memory is None and self.threads is None
        return not (defaults and isinstance(self.device, str) and self.device in ("auto", "cpu"))

    def _least_squares(self, frequency: NDArray[Any], normalization: str) -> NDArray[Any] | None:
        """Powers at few frequencies by one least-squares fit each; None if an engine is needed.

        An engine is needed for light curves without variation in times or values, and for columns so similar that the
        normal equations lose accuracy.
        """
        rows, f = self._usable, frequency.tolist()
        if self.nterms != 1 or normalization not in NORMALIZATIONS or not all(map(math.isfinite, f)):
            return None
        if rows.t.size * len(f) > FEW or not rows.varies:
            return None
        weight, total = rows.weight, rows.total
        if not 0 < total < math.inf:
            return None
        columns = np.empty((3, rows.t.size))
        columns[2] = rows.centred if self.fit_mean or self.center_data else rows.y
        standard, yy = np.empty(len(f)), 0.0
        for i, one in enumerate(f):
            phase = rows.from_middle * (2 * math.pi * one)
            np.cos(phase, out=columns[0])
            np.sin(phase, out=columns[1])
            weighted = columns * weight
            (cc, cs, cy), (_, ss, sy), (_, _, yy) = (weighted @ columns.T).tolist()
            least = INDEPENDENT * cc * ss
            if self.fit_mean:  # take the weighted means off the columns
                c, s, y = weighted.sum(axis=1).tolist()
                cc, cs, ss = cc - c * c / total, cs - c * s / total, ss - s * s / total
                cy, sy = cy - c * y / total, sy - s * y / total
            determinant = cc * ss - cs * cs
            if not (determinant > least and 0 < yy < math.inf):
                return None
            standard[i] = (cy * cy * ss + sy * sy * cc - 2 * cy * sy * cs) / determinant / yy
        return normalize(standard, normalization, yy / total, total, rows.t.size)

    def _at_zero(self, normalization: str) -> float:
        """Power at frequency 0, where the cosine is constant and the sine is 0."""
        if self.nterms == 0:
            return 0.0
        if self.fit_mean:
            return math.nan
        rows = self._usable
        weight, total = rows.weight, rows.total
        y = rows.centred if self.center_data else rows.y
        reference = float(weight @ y**2)
        with np.errstate(divide="ignore", invalid="ignore"):
            standard = (weight @ y) ** 2 / total / np.float64(reference)
        return float(normalize(standard, normalization, reference / total, total, len(y)))


def _is_regular(frequency: NDArray[Any]) -> bool:
    """astropy's test of a regular grid."""
    step = np.diff(frequency)
    return step.size == 0 or bool(np.allclose(step[0], step))


Prewhitened.curve_class = LombScargle
