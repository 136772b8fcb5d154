"""Make results from the answers of a backend."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.contract import METHODS, Grids, Output, Scan, Status
from skysieve.periodogram.lightcurves.units import Units, attach
from skysieve.periodogram.numerics.normalization import normalize
from skysieve.periodogram.numerics.peaks import frequency_error
from skysieve.periodogram.result.peaks import Peaks, Ragged
from skysieve.periodogram.result.result import LombScargleResult

if TYPE_CHECKING:
    from skysieve.periodogram.numerics.grid import FrequencyArray


OK = int(Status.OK)
NAMES = np.array(METHODS)


def settle(output: Output, grids: Grids, scan: Scan | None) -> None:
    """Objects without a grid get their status; objects without a result get NaN everywhere."""
    n = len(output.status)
    if scan is not None and not grids.nf.all():
        without = np.broadcast_to(grids.nf == 0, (n,))
        status = np.where(scan.status == Status.OK, Status.BAD_GRID, scan.status)
        output.status[without] = status[without]
        for name in ("n_used", "n_dropped", "t_min", "span"):
            getattr(output, name)[without] = getattr(scan, name)[without]
    bad = output.status.nonzero()[0]
    if not bad.size:
        return
    output.peak_index[bad] = -1
    for values in (output.peak_frequency, output.peak_power, output.peak_curvature, output.mean_square, output.weight):
        values[bad] = np.nan
    if output.power is not None:
        bounds = grids.offsets(n)
        for i in bad:
            output.power[bounds[i] : bounds[i + 1]] = np.nan


def assemble(
    output: Output,
    grids: Grids,
    *,
    single: bool,
    units: Units,
    ids: Any,
    frequencies: FrequencyArray | None,
    device: str,
    dtype: str,
    normalization: str,
    fit_mean: bool,
    has_dy: bool,
    parameters: Any,
    nterms: int = 1,
) -> LombScargleResult:
    """Make the result out of a settled output; ``frequencies`` are those that the user listed, ``parameters`` the
    number of parameters of the fit, one for all objects or one each."""
    unit = units.power(normalization, has_dy)
    index = output.peak_index
    position = None if frequencies is None else frequencies.position
    if frequencies is not None and frequencies.first is not None:
        index = np.where(index < 0, -1, frequencies.first[index])
    square, weight, n_used = (np.asarray(a)[:, None] for a in (output.mean_square, output.weight, output.n_used))
    power = normalize(output.peak_power, normalization, square, weight, n_used)
    pick: Any = 0 if single else slice(None)
    about = output.peak_power, output.peak_curvature, square, weight, n_used
    peaks = Peaks.found(
        index[pick],
        units.with_frequency(output.peak_frequency[pick]),
        attach(power[pick], unit),
        partial(_periods, output.peak_frequency, pick, units),
        partial(_errors, about, parameters, has_dy, output.peak_frequency, pick, units),
    )
    searched = output.method[output.status == OK] if np.count_nonzero(output.status) else output.method
    method: Any = "none"
    if len(searched):  # the names of a million objects take 12 ms
        same = bool((searched == searched[0]).all())
        method = METHODS[searched[0]] if same else partial(NAMES.take, output.method)
    samples = output.power
    if samples is not None:
        if not grids.shared:
            samples = Ragged(samples, grids.offsets(len(output.status)), unit)
        else:
            samples = samples.reshape(len(output.status), int(grids.nf[0]))
            samples = samples if position is None else samples[:, position]
            samples = attach(samples[pick], unit)
    return LombScargleResult(
        power=samples,
        peaks=peaks,
        status=Status(int(output.status[0])) if single else output.status,
        n_used=int(output.n_used[0]) if single else output.n_used,
        n_dropped=int(output.n_dropped[0]) if single else output.n_dropped,
        span=units.with_time(output.span[pick]),
        ids=ids,
        method=method,
        device=device,
        dtype=dtype,
        normalization=normalization,
        fit_mean=fit_mean,
        grids=grids,
        units=units,
        listed=None if frequencies is None else frequencies.listed,
        power_unit=unit,
        nterms=nterms,
    )


def _periods(frequency: Any, pick: Any, units: Units) -> Any:
    """Periods of every peak."""
    with np.errstate(divide="ignore", over="ignore"):
        return units.with_time((1.0 / frequency)[pick])


def _errors(
    about: tuple[Any, Any, Any, Any, Any], parameters: Any, has_dy: bool, frequency: Any, pick: Any, units: Units
) -> tuple[Any, Any]:
    """Errors of the frequency and of the period of every peak; ``about`` are arguments of `frequency_error`."""
    fitted = np.broadcast_to(np.asarray(parameters), (len(frequency),))[:, None]
    error = frequency_error(*about, fitted, has_dy)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        of_period = error * (1.0 / frequency) ** 2
    return units.with_frequency(error[pick]), units.with_time(of_period[pick])
