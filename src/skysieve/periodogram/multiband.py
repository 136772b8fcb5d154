"""Lomb-Scargle periodograms of light curves in several bands: the public functions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of, whole
from skysieve.core.device import resolve
from skysieve.core.errors import SkysieveError
from skysieve.core.plan import Plan
from skysieve.periodogram.analysis.bootstrap import exceeding
from skysieve.periodogram.lightcurves import checks
from skysieve.periodogram.lightcurves.arrays import finite_rows
from skysieve.periodogram.lightcurves.checks import PlanOptions
from skysieve.periodogram.lightcurves.sources import light_curves, with_bands
from skysieve.periodogram.numerics.fourier import Model
from skysieve.periodogram.result.result import LombScargleResult

from .api import Borrowing, LombScarglePlan
from .contract import BAND_MODELS, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from skysieve.core.device import Device
    from skysieve.periodogram.lightcurves.sources import CurveSet

    from .contract import BandModelName, Engine, Output

__all__ = ["MultibandPlan", "MultibandResult", "lombscargle_multiband", "multiband_bootstrap"]

DEFAULT, DEFAULT_TERMS, DEFAULT_PENALTY = "offsets", 2, 0.02
"""Fitted if no model is named: it recovers most periods (``benchmarks/multiband_recovery.py``)."""
BAND_PENALTY = 1e-6
"""``reg_band`` of "flexible" by default, as in astropy."""
BATCH_VALUES = 2**23
"""Number of values of y that are resampled at a time."""


@dataclass(frozen=True, repr=False, eq=False)
class MultibandResult(LombScargleResult):
    """Result of `lombscargle_multiband`: that of `skysieve.lombscargle`, the bands and the model.

    Attributes
    ----------
    bands : tuple
        Names of the bands, sorted.
    model : str
        The model that was fitted.
    """

    _more: ClassVar[tuple[str, ...]] = ("bands", "model")

    bands: tuple[Any, ...] = ()
    model: str = "offsets"

    def __getitem__(self, i: int) -> MultibandResult:
        """Result of object ``i`` of a batch alone; views, no copies."""
        return _extended(LombScargleResult.__getitem__(self, i), self.bands, self.model, self.nterms)

    def plot(self, t: Any = None, y: Any = None, dy: Any = None, **options: Any) -> Figure:
        """Draw the periodogram with its peaks; see `LombScargleResult.plot`.

        Raises
        ------
        ValueError
            If a light curve is given: no one curve fits all bands.
        """
        if t is not None or y is not None:
            raise ValueError("several bands are not folded under one curve; plot() draws the periodogram")
        return super().plot(**options)


def _extended(result: LombScargleResult, bands: tuple[Any, ...], model: str, nterms: int) -> MultibandResult:
    values: dict[str, Any] = {f.name: getattr(result, f.name) for f in fields(LombScargleResult)} | {"nterms": nterms}
    return MultibandResult(**values, bands=bands, model=model)


def lombscargle_multiband(
    t: Any = None,
    y: Any = None,
    bands: Any = None,
    dy: Any = None,
    *,
    model: BandModelName | None = None,
    nterms: int | None = None,
    nterms_band: int | None = None,
    reg_base: float | None = None,
    reg_band: float | None = None,
    reg_terms: float | None = None,
    offsets: ArrayLike | None = None,
    id: Any = None,
    data: Any = None,
    progress: bool | Callable[[int, int], None] = False,
    out: Any = None,
    **options: Unpack[PlanOptions],
) -> MultibandResult:
    """Lomb-Scargle periodogram of light curves measured in several bands, one or many.

    Parameters
    ----------
    t, y, dy
        As for `skysieve.lombscargle`, rows of all bands together.
    bands : array_like of str or int, list of arrays, or str
        Band of each row, in the form of `t`; or the name of a column of `data`.  In a file, the column is also found by
        its usual names.  An object need not have every band.  Rows whose band is missing are left out and counted.
    model : {"offsets", "separate", "flexible"}, optional
        "offsets": one Fourier series of `nterms` terms for all bands, and a mean for each band.  "separate": a series
        and a mean for each band; the chi-squares are added up.  "flexible": a common series of `nterms` terms, and a
        series of `nterms_band` terms for each band, which `reg_band` keeps small (astropy's "flexible").  Default:
        "offsets", with two terms, of which the second has a penalty (see Notes).
    nterms : int, optional
        Fourier terms, 1 or more (with "flexible" 0 is allowed when `nterms_band` is not).  Default: 2 where no
        `model` is named, else 1.
    nterms_band : int, optional
        Terms of each band, with "flexible"; default 1.
    reg_base, reg_band : float, optional
        Regularisation: fractions of the trace of the normal matrix that are added to its diagonal, for the columns of
        the common series and of the bands' series.  Only with "flexible".  Default: 0 and 1e-6.
    reg_terms : float, optional
        The same for the terms above the first; only with "offsets".  With it, a sinusoid is found at its period rather
        than at twice that, where the second term alone would fit it as well.  Default: 0.02 where neither `model` nor
        `nterms` is given, else 0.
    offsets, id, data, progress, out
        As for `skysieve.lombscargle`.
    **options
        Grid (`frequency`, `fmin`, `fmax`, `nf`, `samples_per_peak`, `nyquist_factor`, `grid`) and search
        (`normalization`, `n_peaks`, `return_power`, `nan_policy`, `method`, `device`, `dtype`, `memory`, `threads`), as
        for `skysieve.lombscargle`; `method` is "auto", "direct" or "nufft".

    Returns
    -------
    MultibandResult
        As for `skysieve.lombscargle`; the standard power is the fraction of the bands' scatter about their own weighted
        means that the model explains.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit, as `skysieve.lombscargle`.
    MemoryBudgetError
        If the powers do not fit into memory, or a light curve by itself not into `memory`.
    DeviceUnavailable
        If the device asked for cannot be used.

    Notes
    -----
    Equations 8 to 17 of [1]_.  "separate" is the sum of the bands' periodograms, weighted with their chi-squares
    about the mean; it leaves out the bands of an object with fewer than ``2 nterms + 2``
    usable rows, which any series fits; they count as dropped.

    The default, two terms of "offsets" with ``reg_terms=0.02``, was chosen by the fraction of periods that is recovered
    within 1% (of eclipsing binaries also half of it): of 480 simulated RR Lyrae stars, Cepheids, eclipsing binaries and
    160 sinusoids with 25 to 300 visits in five or six bands (``benchmarks/multiband_recovery.py``, two busy cores):

    ======================================  =====  ========  ========  =========  =========  ============
    model                                   stars  RR Lyrae  Cepheids  eclipsing  sinusoids  ms an object
    ======================================  =====  ========  ========  =========  =========  ============
    the band with most rows alone           0.50   0.49      0.57      0.42       0.69       3.38
    "offsets", one term                     0.70   0.74      0.78      0.59       0.88       7.27
    default                                 0.81   0.79      0.87      0.78       0.87       25.4
    "offsets", two terms                    0.81   0.76      0.87      0.81       0.66       20.4
    "offsets", three terms                  0.77   0.78      0.82      0.70       0.53       25.2
    "separate", one term                    0.65   0.65      0.74      0.55       0.87       21.1
    "flexible", 1 + 1 terms, reg_band 1e-6  0.71   0.70      0.82      0.60       0.90       234
    "flexible", 1 + 1 terms, reg_band 1e-2  0.67   0.71      0.75      0.56       0.86       32.7
    "flexible", 2 + 1 terms, reg_band 1e-2  0.81   0.76      0.85      0.81       0.74       37
    ======================================  =====  ========  ========  =========  =========  ============

    Two terms without the penalty fit a sinusoid at twice its period as well as at its own.

    References
    ----------
    .. [1] VanderPlas & Ivezic 2015, ApJ 812, 18

    Examples
    --------
    >>> import numpy as np, skysieve
    >>> rng = np.random.default_rng(1)
    >>> t = np.sort(rng.uniform(0, 60, 200))
    >>> band = rng.choice(["g", "r", "i"], 200)
    >>> y = np.sin(2 * np.pi * t / 1.7) + np.where(band == "g", 3, 5) + rng.normal(0, 0.2, 200)
    >>> result = skysieve.lombscargle_multiband(t, y, band, 0.2, fmin=0.1, fmax=2, nf=2000)
    >>> round(float(result.period), 1), result.bands
    (1.7, ('g', 'i', 'r'))
    """
    with _Call(
        model=model,
        nterms=nterms,
        nterms_band=nterms_band,
        reg_base=reg_base,
        reg_band=reg_band,
        reg_terms=reg_terms,
        **options,
    ) as plan:
        return plan.execute(t, y, bands, dy, offsets=offsets, id=id, data=data, progress=progress, out=out)


class MultibandPlan(Plan):
    """A search of light curves in several bands that is set up once, for many batches.

    The engine is made for the number of bands of the first batch, and made again when that number changes.

    Parameters
    ----------
    model, nterms, nterms_band, reg_base, reg_band, reg_terms, **options
        As for `lombscargle_multiband`.

    Raises
    ------
    ValueError, TypeError
        For options that do not fit.
    DeviceUnavailable
        If the device asked for cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.periodogram import MultibandPlan
    >>> t = np.sort(np.random.default_rng(2).uniform(0, 30, 100))
    >>> band = np.tile(["g", "r"], 50)
    >>> with MultibandPlan(fmin=0.1, fmax=2, nf=1000) as plan:
    ...     periods = [float(plan.execute(t, np.sin(2 * np.pi * t / p), band).period) for p in (1.5, 3)]
    >>> [round(p, 2) for p in periods]
    [1.5, 3.0]
    """

    @property
    def _plan_type(self) -> type[_BandsPlan]:
        return _BandsPlan

    def __init__(
        self,
        *,
        model: BandModelName | None = None,
        nterms: int | None = None,
        nterms_band: int | None = None,
        reg_base: float | None = None,
        reg_band: float | None = None,
        reg_terms: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> None:
        for name in options:
            if name not in PlanOptions.__annotations__:
                raise TypeError(f"lombscargle_multiband() has no argument {name!r}")
        if model is None and nterms is None:
            nterms, reg_terms = DEFAULT_TERMS, DEFAULT_PENALTY if reg_terms is None else reg_terms
        nterms = 1 if nterms is None else nterms
        self._reg_terms = reg_terms
        self._name = DEFAULT if model is None else one_of("model", model, BAND_MODELS)
        self._terms = nterms, nterms_band, reg_base, reg_band
        self._options = options
        columns, fewest = _model(self._name, *self._terms, 1, self._reg_terms)
        self._checked = _OptionsOnly(columns, fewest, **options)
        self._plan: _BandsPlan | None = None
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else str(self._checked._device)
        spec = self._checked._spec
        return f"<MultibandPlan: {self._name}, {spec.normalization}, {spec.method}, {spec.dtype}; {state}>"

    def close(self) -> None:
        """Free threads and device memory; the plan cannot be used any more."""
        self._closed = True
        if self._plan is not None:
            self._plan.close()
            self._plan = None

    def execute(
        self,
        t: Any = None,
        y: Any = None,
        bands: Any = None,
        dy: Any = None,
        *,
        offsets: ArrayLike | None = None,
        id: Any = None,
        data: Any = None,
        progress: bool | Callable[[int, int], None] = False,
        out: Any = None,
    ) -> MultibandResult:
        """Search one light curve or a batch; arguments, result and errors as those of `lombscargle_multiband`.

        Raises
        ------
        ValueError
            As for `lombscargle_multiband`, or if the plan is closed.
        """
        plan, names, curves = self._prepared(t, y, bands, dy, offsets, id, data)
        result = plan._search(curves, progress, out, stacklevel=5)
        return _extended(result, names, self._name, int(self._terms[0]))

    def describe(
        self,
        t: Any = None,
        y: Any = None,
        bands: Any = None,
        dy: Any = None,
        *,
        offsets: ArrayLike | None = None,
        id: Any = None,
        data: Any = None,
    ) -> dict[str, Any]:
        """Describe the search of light curves without doing it; see `LombScarglePlan.describe`.

        Returns
        -------
        dict
            The keys of `LombScarglePlan.describe`, ``model`` and ``n_bands`` (0 without light curves).
        """
        if t is None and data is None:
            self._check_open()
            about, names = self._checked._description(None), ()
        else:
            plan, names, curves = self._prepared(t, y, bands, dy, offsets, id, data)
            about = plan._description(curves)
        return about | {"nterms": int(self._terms[0]), "model": self._name, "n_bands": len(names)}

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the plan is closed")

    def _prepared(
        self, t: Any, y: Any, bands: Any, dy: Any, offsets: Any, id: Any, data: Any
    ) -> tuple[_BandsPlan, tuple[Any, ...], CurveSet]:
        """A plan for the number of bands, their names, and the light curves with the band of each row."""
        self._check_open()
        of_table = bands if isinstance(bands, str) else None
        curves = light_curves(t, y, dy, offsets=offsets, id=id, data=data, bands=of_table)
        bands = curves.bands if curves.bands is not None else bands
        if bands is None:
            raise TypeError("bands is missing: expected the band of each row, or the name of a column")
        names, banded = with_bands(curves, bands)
        columns, fewest = _model(self._name, *self._terms, len(names), self._reg_terms)
        if self._plan is None or self._plan.model != columns:
            if self._plan is not None:
                self._plan.close()
            self._plan = self._plan_type(columns, fewest, **self._options)
        return self._plan, names, banded


def multiband_bootstrap(
    power: Any, t: Any, y: Any, bands: Any, dy: Any = None, *, n: int = 1000, seed: Any = None, **options: Any
) -> Any:
    """False-alarm probability of peaks of one light curve in several bands, by resampling.

    Pairs of `y` and `dy` are drawn with replacement within each band while the times stay; the result is the
    fraction of the resamples whose highest peak, on the same grid, reaches `power`.

    Parameters
    ----------
    power : float or array_like
        Heights of peaks, in the normalisation asked for in `options`.
    t, y, bands, dy : array_like, shape (n_rows,)
        One light curve, as for `lombscargle_multiband`.
    n : int
        Resamples; probabilities below some ``10 / n`` are poorly known.
    seed : int, SeedSequence, Generator or None
        For `numpy.random.default_rng`.
    **options
        Grid, model and normalisation as given to `lombscargle_multiband`.

    Returns
    -------
    float or numpy.ndarray
        Of the shape of `power`; NaN for a power that is NaN.

    Raises
    ------
    ValueError
        If `n` is not positive, for more than one light curve, or for one without a usable row.

    Examples
    --------
    >>> import numpy as np, skysieve
    >>> rng = np.random.default_rng(1)
    >>> t, band = np.sort(rng.uniform(0, 60, 80)), rng.choice(["g", "r"], 80)
    >>> y = rng.normal(size=80)
    >>> grid = {"fmin": 0.1, "fmax": 2.0, "nf": 600}
    >>> noise = skysieve.lombscargle_multiband(t, y, band, **grid)
    >>> bool(multiband_bootstrap(noise.best_power, t, y, band, n=100, seed=2, **grid) > 0.01)
    True
    """
    n = whole("n", n, 1)
    curves = light_curves(t, y, dy)
    if not curves.single:
        raise ValueError(f"t and y hold {curves.source.n_objects} light curves; one is expected")
    _, banded = with_bands(curves, bands)
    raw_t, raw_y, raw_dy, _ = banded.source.read(0, 1)
    times, values, errors = to_host(raw_t), to_host(raw_y), None if raw_dy is None else to_host(raw_dy)
    codes = banded.source.bands(0, 1)  # pyrefly: ignore[missing-attribute]  # from `with_bands`
    keep = finite_rows(times, values, errors)
    times, values, codes = times[keep], values[keep], codes[keep]
    errors = None if errors is None else errors[keep]
    if len(times) == 0:
        raise ValueError("t and y hold no usable row; finite values are expected")
    rng = np.random.default_rng(seed)
    options = {k: v for k, v in options.items() if k not in ("return_power", "n_peaks", "out", "progress")}
    if curves.units.time is not None:
        times = times << curves.units.time
    if curves.units.y is not None:
        values = values << curves.units.y
        errors = None if errors is None else errors << curves.units.y
    maxima = []
    for first in range(0, int(n), max(1, BATCH_VALUES // len(times))):
        size = min(max(1, BATCH_VALUES // len(times)), int(n) - first)
        rows = np.empty((size, len(times)), np.int64)
        for code in np.unique(codes):
            own = np.flatnonzero(codes == code)
            rows[:, own] = own[rng.integers(0, len(own), (size, len(own)))]
        drawn = None if errors is None else errors[rows]
        found = lombscargle_multiband(times, values[rows], codes, drawn, **options, return_power=False)
        height = np.asarray(found.best_power, np.float64)
        maxima.append(np.where(found.status == Status.CONSTANT_Y, 0.0, height))
    highest = np.concatenate(maxima)
    highest = np.sort(highest[np.isfinite(highest)])
    if highest.size == 0:
        raise SkysieveError(f"none of {n} resamples could be searched")
    share = exceeding(highest, getattr(power, "value", power))
    return float(share) if np.ndim(share) == 0 else share


def _model(
    name: str, nterms: Any, nterms_band: Any, reg_base: Any, reg_band: Any, n_bands: int, reg_terms: Any = None
) -> tuple[Model, int]:
    """Columns of the fit, and the fewest rows of a band that is used."""
    terms = checks.check_terms("nterms", nterms)
    if name != "offsets" and reg_terms is not None:
        raise ValueError(f"reg_terms={reg_terms!r} needs model='offsets'; model={name!r} has reg_base and reg_band")
    if name != "flexible":
        if terms < 1:
            raise ValueError(f"nterms=0; model={name!r} needs at least 1 term")
        if nterms_band is not None:
            raise ValueError(f"nterms_band={nterms_band!r} needs model='flexible'; model={name!r} has nterms alone")
        for argument, value in (("reg_base", reg_base), ("reg_band", reg_band)):
            if value is not None:
                raise ValueError(f"{argument}={value!r} needs model='flexible'; model={name!r} is not regularised")
        if name == "offsets":
            kept = _penalty("reg_terms", reg_terms) if terms > 1 else 0.0
            return Model(terms, n_bands=n_bands, penalty=kept, free_terms=int(kept > 0)), 1
        return Model(0, n_bands=n_bands, band_terms=terms), 2 * terms + 2
    own = checks.check_terms("nterms_band", 1 if nterms_band is None else nterms_band)
    if terms == own == 0:
        raise ValueError("nterms=0 and nterms_band=0 leave nothing to fit; at least one must be above 0")
    penalty = _penalty("reg_base", reg_base), _penalty("reg_band", BAND_PENALTY if reg_band is None else reg_band)
    if penalty == (0.0, 0.0):
        raise ValueError("reg_base=0 and reg_band=0: expected one above 0, without which the fit is singular")
    return Model(terms, True, n_bands, own, True, *penalty), 1


def _penalty(name: str, value: Any) -> float:
    try:
        number = 0.0 if value is None else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not (np.isfinite(number) and number >= 0):
        raise ValueError(f"{name}={value!r}; a number of 0 or more, or None, is expected")
    return number


class _BandsPlan(LombScarglePlan):
    """A plan for a fixed number of bands."""

    def __init__(self, model: Model, fewest: int, **options: Unpack[PlanOptions]) -> None:
        self.model, self._fewest = model, fewest
        super().__init__(**options)

    def _refuse_finufft(self) -> None:
        if self._spec.method == "finufft":
            raise ValueError("method='finufft' has one band; use 'auto', 'direct' or 'nufft'")

    def _make_engine(self, device: str | Device, memory: Any, threads: int | None) -> tuple[Engine | None, Device]:
        self._refuse_finufft()
        self._spec = replace(self._spec, model=self.model, fewest=self._fewest)
        return super()._make_engine(device, memory, threads)

    def _parameters(self, curves: CurveSet, output: Output) -> Any:
        """Parameters of the fit, by the bands in which each object has enough usable rows; columns with a penalty
        count in full."""
        m, source = self.model, curves.source
        n_rows = np.diff(source.offsets)
        out = np.empty(source.n_objects, np.int64)
        step = max(1, BATCH_VALUES // max(1, m.n_bands, int(n_rows.max(initial=1))))
        for first in range(0, source.n_objects, step):
            last = min(first + step, source.n_objects)
            codes = source.bands(first, last)  # pyrefly: ignore[missing-attribute]  # from `with_bands`
            owner = np.repeat(np.arange(last - first), n_rows[first:last])
            band = owner * m.n_bands + codes
            if (output.n_used[first:last] < n_rows[first:last]).any():
                t, y, dy, _ = source.read(first, last)
                band = band[to_host(finite_rows(t, y, dy))]
            rows = np.bincount(band, minlength=(last - first) * m.n_bands)
            out[first:last] = (rows.reshape(last - first, m.n_bands) >= self._fewest).sum(axis=1)
        return out * (m.band_constant + 2 * m.band_terms) + 2 * max(0, m.terms - m.band_terms)


class _BorrowingBands(Borrowing, _BandsPlan):
    """Light curves of one number of bands, with an engine of the cache."""

    _by_size = False


class _Call(MultibandPlan):
    """The plan of one call of `lombscargle_multiband`, with an engine of the cache."""

    @property
    def _plan_type(self) -> type[_BandsPlan]:
        return _BorrowingBands


class _OptionsOnly(_BandsPlan):
    """A plan that checks its options and computes nothing."""

    def _make_engine(self, device: str | Device, memory: Any, threads: int | None) -> tuple[Engine | None, Device]:
        self._refuse_finufft()
        return None, resolve(device)[0]
