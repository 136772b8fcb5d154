"""The public functions of the periodogram: arguments checked, backend chosen, result assembled."""

from __future__ import annotations

import importlib
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from skysieve.core.arrays import is_device_array
from skysieve.core.checks import one_of, remembered, thread_count
from skysieve.core.device import Device, for_size, resolve
from skysieve.core.engine_cache import ENGINES
from skysieve.core.errors import SkysieveError
from skysieve.core.machine import rates
from skysieve.core.plan import Plan
from skysieve.core.progress import reporting
from skysieve.core.tasks import usable_cores
from skysieve.periodogram.analysis.sampling import highest_frequencies
from skysieve.periodogram.lightcurves import checks
from skysieve.periodogram.lightcurves.sources import CurveSet, light_curves, read_once
from skysieve.periodogram.lightcurves.units import Units, one_time_unit, strip_frequency
from skysieve.periodogram.numerics.grid import GridRule, grid_warnings, make_rule, nothing_to_warn_of, refusal
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS, UNIT
from skysieve.periodogram.result.assemble import assemble, settle

from .contract import NAN_POLICIES, Engine, Grids, Output, Scan, Source, Spec, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike

    from skysieve.periodogram.numerics.grid import GridName
    from skysieve.periodogram.numerics.normalization import NormalizationName
    from skysieve.periodogram.result.result import LombScargleResult

    from .contract import DtypeChoice, MethodName, NanPolicyName

__all__ = ["LombScarglePlan", "lombscargle"]


def make_engine(spec: Spec, devices: tuple[Device, ...], memory: str | float | None, threads: int | None) -> Engine:
    """The backend for the devices of `resolve`."""
    if devices[0].kind == "cpu" and spec.model is not None:
        from skysieve.periodogram.cpu.fourier.bands import MultibandEngine

        return MultibandEngine(spec, device=devices[0], memory=memory, threads=threads)
    if devices[0].kind == "cpu":
        from skysieve.periodogram.cpu.engine import Engine as CPUEngine

        return CPUEngine(spec, device=devices[0], memory=memory, threads=threads)
    from skysieve.periodogram.cuda.engine import Engine as CUDAEngine

    one = devices[0] if len(devices) == 1 else devices
    return CUDAEngine(spec, device=one, memory=memory, threads=threads)


class BorrowedEngine:
    """An engine of the cache for one call of a function: `close` gives it back, unless one of its methods raised."""

    def __init__(
        self, spec: Spec, devices: tuple[Device, ...], memory: str | float | None, threads: int | None
    ) -> None:
        cores = usable_cores() if threads is None else threads  # an engine of all cores has one thread for each
        self._key = ("periodogram", spec, devices, memory, threads, cores)
        self._make = lambda: make_engine(spec, devices, memory, threads)
        self._device = devices[0]
        self._borrow()

    def _borrow(self) -> None:
        self._error: BaseException | None = None
        self._engine = ENGINES.lend(self._key, self._make, self._device)

    def scan(self, source: Source) -> Scan:
        """See `contract.Engine.scan`."""
        with self._noticing():
            return self._engine.scan(source)

    def execute(self, source: Source, grids: Grids, output: Output, progress: Any = None) -> None:
        """See `contract.Engine.execute`; repeated with a new engine if memory was short and idle engines held some."""
        others = ENGINES.has_idle(self._device)
        try:
            return self._engine.execute(source, grids, output, progress)
        except BaseException as error:
            self._error = error
            if not others or not isinstance(error, MemoryError):
                raise
            with suppress(MemoryError):
                self.close()
            self._borrow()
        with self._noticing():
            self._engine.execute(source, grids, output, progress)

    def describe(self, source: Source, grids: Grids) -> dict[str, Any]:
        """See `contract.Engine.describe`."""
        return self._engine.describe(source, grids)

    @property
    def idle_bytes(self) -> int:
        """See `contract.Engine.idle_bytes`."""
        return self._engine.idle_bytes

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        """Give the engine back; after an error it is closed."""
        if self._error is None:
            ENGINES.take_back(self._key, self._engine, self._device, lambda engine: engine.idle_bytes)
        else:
            ENGINES.discard(self._engine, self._device, self._error)


_NO_UNITS = Units()


def lombscargle(
    t: Any = None,
    y: Any = None,
    dy: Any = None,
    *,
    frequency: ArrayLike | None = None,
    fmin: Any = None,
    fmax: Any = None,
    nf: int | None = None,
    samples_per_peak: float = 5,
    nyquist_factor: float = 5,
    grid: GridName = "auto",
    fit_mean: bool = True,
    center_data: bool = True,
    nterms: int = 1,
    normalization: NormalizationName = "standard",
    n_peaks: int = 0,
    return_power: bool = True,
    nan_policy: NanPolicyName = "omit",
    method: MethodName = "auto",
    device: str | Device = "auto",
    dtype: DtypeChoice = "float64",
    offsets: ArrayLike | None = None,
    id: Any = None,
    data: Any = None,
    memory: str | float | None = None,
    threads: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
    out: Any = None,
) -> LombScargleResult:
    """Lomb-Scargle periodogram of one light curve or of many, with its best periods.

    Parameters
    ----------
    t, y : array_like, Quantity, Time, list of arrays, str or path
        Times and values, or as `t` alone the path of a file of light curves (see `data`).  One light curve: both of
        shape (n_times,).  Many on the same times: `y` of shape (n, n_times), `t` of shape (n_times,) or that of `y`.
        Many of unequal length: lists of n 1-D arrays; or flat arrays with `offsets` or `id`; or the names of columns
        of `data`.  A Time is taken in days since its first entry.  Any order, repeated times allowed.
    dy : float, array_like, Quantity, list or str, optional
        Standard errors of `y`, in the same form, or one number; rows are weighted by ``dy**-2``.
    frequency : array_like, shape (nf,), optional
        Frequencies to try, cyclic, in 1/unit(t), in any order; instead of the rules below.  Evenly
        spaced ones are recognised and are much faster.
    fmin, fmax : float, Quantity or "auto", optional
        Ends of the grid.  Default: astropy's, ``fmin = df / 2`` and ``fmax = nyquist_factor * N / (2 T)``, with N
        the usable rows and T the time span.  "auto": from 1/T to what the sampling calls for (see Notes).
    nf : int, optional
        Number of frequencies, both ends included.  Default: ``df = 1 / (samples_per_peak * T)``.
    samples_per_peak, nyquist_factor : float
        See above.
    grid : {"auto", "shared", "per-object"}
        One grid for all objects of a batch, or one each from its own N and T.  "auto" shares it when
        it does not depend on the data (`frequency`, or all of `fmin`, `fmax`, `nf`) and when the
        objects share their times.  "shared" takes the longest T and the median of N/T.
    fit_mean : bool
        Fit a constant at every frequency (the generalised periodogram).
    center_data : bool
        Subtract the weighted mean first.
    nterms : int
        Fourier terms of the fit: sinusoids at 1, 2, ... times each frequency.  0 (the mean alone) only with
        `fit_mean`.
    normalization : {"standard", "model", "log", "psd", "scargle"}
        The four of astropy, and the unnormalised power ``N/2 sum(w (y - mean)^2) P`` of [3]_.
    n_peaks : int
        Peaks to return: the highest local maxima of the exact periodogram, at least 1/T apart; at least one.
    return_power : bool
        Return the powers.  Without them, no memory of size objects x frequencies is needed.
    nan_policy : {"omit", "raise"}
        Rows with NaN, inf or a mask are left out and counted, or refused.
    method : {"auto", "direct", "nufft", "finufft"}
        "direct" sums over all rows (exact), "nufft" and "finufft" use fast transforms on regular grids;
        "auto" takes the one that is fastest by measured cost; ``result.method`` says which.
    device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"}
        "auto" is a GPU if a usable one is found, but the CPU for one light curve of less than 1,000 rows at less than
        5,000 frequencies; "cuda:all" distributes the objects of a batch over all GPUs.
    dtype : {"float64", "float32"}
        Arithmetic and powers; phases are reduced in float64 either way.
    offsets : array_like of int, shape (n + 1,), optional
        Rows of object ``i`` are ``offsets[i]:offsets[i + 1]`` of flat `t`, `y`, `dy`.
    id : array_like or str, optional
        Object of each row of flat `t`, `y`, `dy`, whose rows need not stand together; or one id for each light curve of
        lists or of 2-D `y`, of which those with the same id are joined.
    data : Table, TimeSeries, DataFrame, structured array, dict or path, optional
        Table or file in which `t`, `y`, `dy` and `id` name columns, or fields of nested columns as ``"column.field"``.
        In a file (CSV, text, JSON, Parquet, FITS, ECSV, VOTable), columns that are not named are found by their usual
        names, as by ``skysieve period``; times are then in days, rows that quality flags mark as bad are left out, and
        a file without a column of ids is one light curve.
    memory : str or float, optional
        Working memory: "80%" of what is free, "2 GiB", or bytes.
    threads : int, optional
        CPU threads; default all.
    progress : bool or callable
        Show a bar, or call ``progress(done, total)`` now and then.
    out : ndarray, optional
        Array for the powers: C-contiguous, of `dtype`, shape (nf,), (n, nf), or (total,) for grids per object.

    Returns
    -------
    LombScargleResult
        ``.period``, ``.peaks``, ``.frequency``, ``.power``, ``.status``, ``.plot()``, ``.to_table()``,
        ``.save()``.  Quantities where `t` (or `y`) had a unit.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit; for one light curve also if it has under 3 usable rows (2 without `fit_mean`),
        equal times, constant `y` or an error that is not positive.  In a batch such an object gets NaN and a
        `Status`, and the others are searched.
    MemoryBudgetError
        If the powers do not fit into memory, or a light curve by itself not into `memory`.
    DeviceUnavailable
        If the device asked for cannot be used.

    Notes
    -----
    With weights ``w = dy^-2 / sum(dy^-2)`` the power is the reduction of chi-square by a sinusoid
    relative to a constant [1]_ (eqs. 5-15); the grid and the normalisations are those of [2]_; the
    batch of unequal light curves on a GPU follows [3]_.  With more terms it is the reduction by a Fourier series, from
    sums at multiples of the frequency [4]_ (eqs. 8-11), computed in float64 for any `dtype` of the powers; it is NaN at
    frequencies at which the columns of the fit are linearly dependent.  ``fmax="auto"`` is the Nyquist frequency of
    regular times, else 24 cycles a day (times without a unit are days) or ``2.5 N / T`` if that is more ([2]_, section
    7); lowered, with a warning, where it needs over 5,000,000 frequencies.

    References
    ----------
    .. [1] Zechmeister & Kuerster 2009, A&A 496, 577
    .. [2] VanderPlas 2018, ApJS 236, 16
    .. [3] Gowanlock et al. 2021, Astronomy and Computing 36, 100472
    .. [4] Palmer 2009, ApJ 695, 496

    Examples
    --------
    >>> import numpy as np, skysieve
    >>> rng = np.random.default_rng(1)
    >>> t = np.sort(rng.uniform(0, 50, 300))
    >>> y = 15 + 0.3 * np.sin(2 * np.pi * t / 0.7) + rng.normal(0, 0.1, 300)
    >>> result = skysieve.lombscargle(t, y, 0.1, fmin=0.1, fmax=5, nf=5000, n_peaks=3)
    >>> round(float(result.period), 2)
    0.7

    A batch of unequal light curves, peaks only:

    >>> batch = skysieve.lombscargle([t, t[:200]], [y, y[:200]], fmin=0.1, fmax=5, nf=5000, return_power=False)
    >>> [round(float(p), 2) for p in batch.period]
    [0.7, 0.7]
    """
    with Borrowing(
        frequency=frequency,
        fmin=fmin,
        fmax=fmax,
        nf=nf,
        samples_per_peak=samples_per_peak,
        nyquist_factor=nyquist_factor,
        grid=grid,
        fit_mean=fit_mean,
        center_data=center_data,
        nterms=nterms,
        normalization=normalization,
        n_peaks=n_peaks,
        return_power=return_power,
        nan_policy=nan_policy,
        method=method,
        device=device,
        dtype=dtype,
        memory=memory,
        threads=threads,
    ) as plan:
        curves = one_band(light_curves(t, y, dy, offsets=offsets, id=id, data=data), y)
        return plan._search(curves, progress, out, stacklevel=4)


class LombScarglePlan(Plan):
    """A periodogram search set up once, for many batches on one grid.

    The plan checks the options, chooses the device, and keeps its tables, buffers and compiled kernels between calls.
    Use it as a context manager, or call `close`.

    Parameters
    ----------
    frequency, fmin, fmax, nf, samples_per_peak, nyquist_factor, grid : optional
        Grid, as for `lombscargle`.
    fit_mean, center_data, nterms, normalization, n_peaks, return_power, nan_policy, method, device, dtype : optional
        As for `lombscargle`.
    memory, threads : optional
        As for `lombscargle`.

    Raises
    ------
    ValueError, TypeError
        For options that do not fit.
    DeviceUnavailable
        If the device asked for cannot be used.

    Examples
    --------
    >>> import numpy as np, skysieve
    >>> t = np.sort(np.random.default_rng(2).uniform(0, 30, 100))
    >>> with skysieve.LombScarglePlan(fmin=0.1, fmax=2, nf=1000) as plan:
    ...     periods = [float(plan.execute(t, np.sin(2 * np.pi * t / p)).period) for p in (1.5, 3)]
    >>> [round(p, 2) for p in periods]
    [1.5, 3.0]
    """

    def __init__(
        self,
        *,
        frequency: ArrayLike | None = None,
        fmin: Any = None,
        fmax: Any = None,
        nf: int | None = None,
        samples_per_peak: float = 5,
        nyquist_factor: float = 5,
        grid: GridName = "auto",
        fit_mean: bool = True,
        center_data: bool = True,
        nterms: int = 1,
        normalization: NormalizationName = "standard",
        n_peaks: int = 0,
        return_power: bool = True,
        nan_policy: NanPolicyName = "omit",
        method: MethodName = "auto",
        device: str | Device = "auto",
        dtype: DtypeChoice = "float64",
        memory: str | float | None = None,
        threads: int | None = None,
    ) -> None:
        self._spec = checks.make_spec(
            fit_mean, center_data, normalization, n_peaks, return_power, method, dtype, nterms
        )
        self._nan_policy = one_of("nan_policy", nan_policy, NAN_POLICIES)
        self._bounds = {"frequency": frequency, "fmin": fmin, "fmax": fmax}
        self._rule_options = (nf, samples_per_peak, nyquist_factor, grid)
        self._rules: dict[str, GridRule] = {}
        unit = one_time_unit(self._bounds)  # errors now rather than at the first batch
        self._rule(_NO_UNITS if unit is None else Units(time=unit))
        self._engine: Engine | None
        self._engine, self._device = self._make_engine(device, memory, thread_count(threads))

    def _make_engine(
        self, device: str | Device, memory: str | float | None, threads: int | None
    ) -> tuple[Engine | None, Device]:
        devices = resolve(device)
        return self._engine_for(devices, memory, threads), devices[0]

    def _engine_for(self, devices: tuple[Device, ...], memory: str | float | None, threads: int | None) -> Engine:
        return make_engine(self._spec, devices, memory, threads)

    def __repr__(self) -> str:
        state = "closed" if self._engine is None else str(self._device)
        return f"<LombScarglePlan: {self._spec.normalization}, {self._spec.method}, {self._spec.dtype}; {state}>"

    def close(self) -> None:
        """Free threads and device memory; the plan cannot be used any more."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def execute(
        self,
        t: Any = None,
        y: Any = None,
        dy: Any = None,
        *,
        offsets: ArrayLike | None = None,
        id: Any = None,
        data: Any = None,
        progress: bool | Callable[[int, int], None] = False,
        out: Any = None,
    ) -> LombScargleResult:
        """Search one light curve or a batch; arguments, result and errors as those of `lombscargle`.

        Raises
        ------
        ValueError
            As for `lombscargle`, or if the plan is closed.
        """
        curves = one_band(light_curves(t, y, dy, offsets=offsets, id=id, data=data), y)
        return self._search(curves, progress, out, stacklevel=4)

    def describe(
        self,
        t: Any = None,
        y: Any = None,
        dy: Any = None,
        *,
        offsets: ArrayLike | None = None,
        id: Any = None,
        data: Any = None,
    ) -> dict[str, Any]:
        """Describe the search of light curves without doing it.

        Parameters
        ----------
        t, y, dy, offsets, id, data : optional
            Light curves, as for `lombscargle`.  Without them, ``method`` is the requested one, ``bytes`` and the
            numbers of objects, points and frequencies are 0, and ``seconds`` is None.

        Returns
        -------
        dict
            ``method``, ``device``, ``dtype`` (str), ``bytes`` of memory that the work takes on the device, ``moved``
            bytes of rows and answers, which cross the bus of a GPU (int); ``seconds`` that are expected on an idle
            machine and ``processor_seconds`` of all threads (float; None before ``skysieve info --measure``, see
            `core.machine.rates`), ``work`` (the counts from which they are predicted) and ``threads`` that share it,
            ``gpus`` that are used for arrays in host memory (int; "cuda:all" uses no more than help) and their
            ``limit`` ("GPUs" or "host copies"; None on a CPU),
            ``normalization``, ``nterms``, ``n_peaks``, ``return_power``, ``n_objects``, ``n_points``,
            ``n_frequencies``, ``shared_grid``.

        Raises
        ------
        ValueError
            If the plan is closed, or as for `lombscargle`.
        """
        if t is None and data is None:
            self._open()
            return self._description(None)
        return self._description(one_band(light_curves(t, y, dy, offsets=offsets, id=id, data=data), y))

    def _description(self, curves: CurveSet | None) -> dict[str, Any]:
        spec = self._spec
        description: dict[str, Any] = {
            "method": spec.method,
            "device": str(self._device),
            "dtype": spec.dtype.name,
            "bytes": 0,
            "moved": 0,
            "seconds": None,
            "processor_seconds": None,
            "work": {},
            "threads": 0,
            "gpus": 0,
            "limit": None,
            "normalization": spec.normalization,
            "nterms": spec.nterms,
            "n_peaks": spec.n_peaks,
            "return_power": spec.return_power,
            "n_objects": 0,
            "n_points": 0,
            "n_frequencies": 0,
            "shared_grid": None,
        }
        if curves is None:
            return description
        engine = self._open()
        grids, _ = self._grids(engine, curves, curves.single or self._scans(curves))
        n = curves.source.n_objects
        about = engine.describe(curves.source, grids)
        return description | {
            **{key: about[key] for key in ("method", "device", "bytes", "work", "threads")},
            **rates.predicted("periodogram", self._device, about["work"], about["threads"]),
            "gpus": about.get("gpus", 0),
            "limit": about.get("limit"),
            "moved": self._moved(curves, n, int(grids.offsets(n)[-1])),
            "n_objects": n,
            "n_points": int(curves.source.offsets[-1]),
            "n_frequencies": int(grids.offsets(n)[-1]),
            "shared_grid": grids.shared,
        }

    def _moved(self, curves: CurveSet, n: int, frequencies: int) -> int:
        """Bytes of rows that are read, and of answers: five numbers of each peak, eight bytes for each object."""
        columns = 3 if curves.source.has_dy else 2
        powers = frequencies * self._spec.dtype.itemsize if self._spec.return_power else 0
        return 8 * (columns * int(curves.source.offsets[-1]) + n * (1 + 5 * max(1, self._spec.n_peaks))) + powers

    def _open(self) -> Engine:
        if self._engine is None:
            raise ValueError("the plan is closed")
        return self._engine

    def _rule(self, units: Units) -> GridRule:
        """The grid in the unit of these times; it is cached for the next batch."""
        key = "" if units.time is None else str(units.time)
        rule = self._rules.get(key)
        if rule is None:
            bounds = [strip_frequency(value, name, units) for name, value in self._bounds.items()]
            rule = self._rules[key] = remembered(make_rule, *bounds, *self._rule_options)
        return rule

    def _scans(self, curves: CurveSet, out: Any = None) -> bool:
        """Whether the light curves are read once before the search, because grids or errors depend on them."""
        if self._rule(curves.units).needs_spans or self._nan_policy == "raise":
            return True
        return curves.single and (out is not None or self._spec.model is not None)

    def _grids(self, engine: Engine, curves: CurveSet, scans: bool) -> tuple[Grids, Scan | None]:
        """Grids for these light curves, and with ``scans`` the result of the first pass over them."""
        rule = self._rule(curves.units)
        scan = None
        span, n_used = np.empty(0), np.empty(0, np.int64)
        if scans:
            scan = engine.scan(curves.source)
            if self._nan_policy == "raise":
                checks.refuse_missing(curves, scan)
            if curves.single and scan.status[0] != Status.OK:
                raise ValueError(checks.explain(curves, scan, self._spec.min_points))
            good = scan.status == Status.OK
            span, n_used = np.where(good, scan.span, np.nan), np.where(good, scan.n_used, 0)
        shared = curves.single or rule.is_shared(curves.same_times)
        highest = highest_frequencies(curves, np.isfinite(span))[0] if rule.auto_max else None
        grids = rule.build(span, n_used, shared=shared, highest=highest)
        if grids.shared and grids.nf[0] == 0 and np.isfinite(span).any():
            raise ValueError(refusal(rule, np.nanmax(span), n_used[np.nanargmax(span)], highest))
        if grids.values is not None and self._spec.method not in ("auto", "direct"):
            raise ValueError(f"method={self._spec.method!r} needs evenly spaced frequencies; use 'auto' or 'direct'")
        checks.refuse_coarse_times(curves.resolution, grids)
        return grids, scan

    def _search(
        self, curves: CurveSet, progress: bool | Callable[[int, int], None], out: Any, stacklevel: int
    ) -> LombScargleResult:
        engine, spec = self._open(), self._spec
        if curves.on_device and self._device.kind == "cpu":
            raise TypeError("t, y or dy is on a GPU, but the search runs on the CPU; use device='cuda' or NumPy arrays")
        if scans := self._scans(curves, out):
            curves = read_once(curves)
        grids, scan = self._grids(engine, curves, scans)
        rule, n = self._rule(curves.units), curves.source.n_objects
        listed = rule.frequencies
        if scan is not None:
            _warn(rule, grids, scan, stacklevel)
        power = self._power(curves, grids, n, out, None if listed is None else listed.position)
        checks.refuse_many_peaks(n, spec.n_peaks)
        output = Output.allocate(n, spec.n_peaks, power)
        if n and grids.nf.any():
            if progress is False:
                engine.execute(curves.source, grids, output)
            else:
                with reporting(progress, "Lomb-Scargle") as callback:
                    engine.execute(curves.source, grids, output, callback)
        settle(output, grids, scan if scan is not None or grids.nf.any() else engine.scan(curves.source))
        if curves.single and output.status[0] != Status.OK:
            raise _failure(curves, output, spec.min_points)
        if scan is None:
            _warn(rule, grids, output, stacklevel)
        _warn_of_range(spec, output, stacklevel)
        result = assemble(
            output,
            grids,
            single=curves.single,
            units=curves.units,
            ids=curves.ids,
            frequencies=listed,
            device="cpu" if self._device.kind == "cpu" else f"cuda:{self._device.index}",
            dtype=spec.dtype.name,
            normalization=spec.normalization,
            fit_mean=spec.fit_mean,
            has_dy=curves.source.has_dy,
            parameters=self._parameters(curves, output),
            nterms=spec.nterms,
        )
        if out is not None and listed is not None and listed.position is not None:
            out[...] = getattr(result.power, "value", result.power)
        return result

    def _parameters(self, curves: CurveSet, output: Output) -> Any:
        """Number of parameters of the fit, with the subtracted mean; one for all objects, or one for each."""
        return 2 * self._spec.nterms + (self._spec.fit_mean or self._spec.center_data)

    def _power(self, curves: CurveSet, grids: Grids, n: int, out: Any, position: Any) -> Any:
        """A flat array for the powers, in the memory of the input's device: `out`, or a new one if it fits."""
        if not self._spec.return_power:
            if out is not None:
                raise ValueError("out is given, but return_power=False")
            return None
        total = n * int(grids.nf[0]) if grids.shared else int(grids.nf.sum())
        if out is not None:
            n_listed = int(grids.nf[0]) if position is None else len(position)
            shape = (n_listed,) if curves.single else (n, n_listed)
            checks.check_out(out, shape if grids.shared else (total,), self._spec)
            if position is None:
                return out.reshape(-1)
        xp: Any = importlib.import_module("cupy") if curves.on_device else np
        needed = total * self._spec.dtype.itemsize * (1 if position is None else 2)
        if needed > checks.SMALL:
            free = self._device.free_memory if curves.on_device else resolve("cpu")[0].free_memory
            checks.refuse_large_power(n, total, needed, free)
        return xp.empty(total, self._spec.dtype)


SMALL_ROWS, SMALL_GRID = 1_000, 5_000
"""Below these numbers of rows and of frequencies, "auto" computes a call for one light curve in host memory on the CPU.
For 100 rows this takes 0.25 ms (in a loop) to 1.1 ms on two cores, about as long as the launches and copies of a GPU,
whose context is not made then."""


class Borrowing(LombScarglePlan):
    """A plan for one call of a function, with an engine of the cache.

    Under "auto" the device is chosen when the light curves are known, see `SMALL_ROWS`.
    """

    _by_size: ClassVar[bool] = True
    """Whether "auto" depends on the size of the job."""
    _later: Callable[[tuple[Device, ...]], Engine] | None = None
    """Makes an engine for the devices that are chosen."""

    def _make_engine(
        self, device: str | Device, memory: str | float | None, threads: int | None
    ) -> tuple[Engine | None, Device]:
        devices = resolve(device)
        if devices[0].kind == "cpu" or device != "auto" or not self._by_size:
            return super()._make_engine(device, memory, threads)
        self._later = partial(self._engine_for, memory=memory, threads=threads)
        return None, devices[0]

    def _search(
        self, curves: CurveSet, progress: bool | Callable[[int, int], None], out: Any, stacklevel: int
    ) -> LombScargleResult:
        if self._later is not None:
            self._choose(self._later, curves, out)
        return super()._search(curves, progress, out, stacklevel and stacklevel + 1)

    def _choose(self, make: Callable[[tuple[Device, ...]], Engine], curves: CurveSet, out: Any) -> None:
        """Choose the CPU for a small light curve in host memory, otherwise a GPU."""
        gpu, on_device = self._device, curves.on_device or is_device_array(out)
        rows = int(curves.source.offsets[-1])
        if curves.single and not on_device and for_size("auto", rows, SMALL_ROWS) == "cpu":
            devices = resolve("cpu")
            self._engine, self._device = make(devices), devices[0]
            grids, _ = self._grids(self._engine, curves, self._scans(curves, out))
            if for_size("auto", int(grids.nf[0]), SMALL_GRID) == "cpu":
                return
            self.close()
        self._engine, self._device = make((gpu,)), gpu

    def _engine_for(
        self, devices: tuple[Device, ...], memory: str | float | None, threads: int | None
    ) -> BorrowedEngine:
        return BorrowedEngine(self._spec, devices, memory, threads)


def one_band(curves: CurveSet, y: Any) -> CurveSet:
    """Light curves whose bands are not needed; ValueError for a file of several bands in which no values are named."""
    if curves.bands is None or y is not None:
        return curves
    names = np.unique(np.asarray(curves.bands).astype(str))
    if len(names) > 1:
        raise ValueError(
            f"the file has rows of {len(names)} bands ({', '.join(names[:8])}): use lombscargle_multiband, or name the "
            "column of values as y to search all rows as one light curve"
        )
    return curves


def _failure(curves: CurveSet, output: Output, min_points: int) -> Exception:
    """The error for a single light curve without a result."""
    status = Status(int(output.status[0]))
    if status in (Status.FAILED, Status.SINGULAR, Status.BAD_GRID):
        kind = SkysieveError if status == Status.FAILED else ValueError
        return kind(f"the light curve could not be searched: {status.text}")
    return ValueError(checks.explain(curves, output, min_points))


def _warn_of_range(spec: Spec, output: Output, stacklevel: int) -> None:
    """Warn if numbers of the dtype of the powers cannot hold them."""
    kind = NORMALIZATIONS[spec.normalization]
    if not stacklevel or kind.scale == UNIT:
        return
    numbers = np.finfo(np.float64 if output.power is None else output.power.dtype)
    scale = kind.scale_of(output.mean_square, output.weight, output.n_used)
    inside = (scale >= numbers.tiny / numbers.eps) & (scale <= numbers.max)
    lost = np.count_nonzero(~inside & (output.status == Status.OK))
    if lost:
        names = "" if len(scale) == 1 else f" of {lost:,} of {len(scale):,} light curves"
        wider = ", dtype='float64'" if numbers.dtype == np.float32 else ""
        warnings.warn(
            f"normalization={spec.normalization!r}: the power{names} is too small or too large for {numbers.dtype}; "
            f"use another unit of y{wider} or normalization='standard'",
            UserWarning,
            stacklevel=stacklevel,
        )


def _warn(rule: GridRule, grids: Grids, seen: Scan | Output, stacklevel: int) -> None:
    if not stacklevel or (not np.count_nonzero(seen.status) and nothing_to_warn_of(rule, grids, seen.span)):
        return
    span = np.where(seen.status == Status.OK, seen.span, np.nan)
    for message in grid_warnings(rule, grids, span, seen.n_used):
        warnings.warn(message, UserWarning, stacklevel=stacklevel)
