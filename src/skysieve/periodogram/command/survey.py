"""Periods of every object of a file, a chunk of objects at a time, as the command line needs them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import format_bytes
from skysieve.periodogram.analysis import fap
from skysieve.periodogram.analysis.bootstrap import power_at
from skysieve.periodogram.contract import BAND_MODELS, Status
from skysieve.periodogram.lightcurves.units import TimeUnit
from skysieve.periodogram.multiband import DEFAULT_PENALTY
from skysieve.periodogram.result.aliases import Alias, clean_rows, find_aliases
from skysieve.periodogram.result.columns import table_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.periodogram.lightcurves.io import LightCurves
    from skysieve.periodogram.result.result import LombScargleResult

FIRST_CHUNK, FIRST_WORK, CHUNK_GROWTH, CHUNK_SECONDS, MAX_ROWS = 500, 2e7, 4, 3.0, 20_000_000
"""A chunk takes some seconds, so that Ctrl-C loses little.  The first has so many objects, or so many
frequencies of them all together; every chunk is limited in rows."""
SHORT = 0.02
"""Shortest period in days that is assumed for the first chunk of a range without one."""


@dataclass(frozen=True)
class Request:
    """The request to the search: keyword arguments of `skysieve.lombscargle`, and how periods are shown.

    ``multiband`` is the model for light curves in several bands, of `skysieve.lombscargle_multiband`, or "none": all
    rows of an object are one series.  ``band_terms`` are its terms if neither a model nor terms were
    chosen; those above the first then have a penalty.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    unit: str = "d"
    asteroid: bool = False
    multiband: str = "none"
    band_terms: int | None = None

    def banded(self, curves: LightCurves) -> bool:
        """Whether there are several bands that the model distinguishes."""
        return self.multiband != "none" and curves.band is not None and bool((curves.band != curves.band[:1]).any())

    @property
    def band_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `skysieve.lombscargle_multiband`."""
        given = {k: v for k, v in self.arguments.items() if k != "fit_mean"} | {"model": self.multiband}
        if self.band_terms is None:
            return given
        return given | {"nterms": self.band_terms, "reg_terms": DEFAULT_PENALTY}

    def terms(self, banded: bool) -> int:
        """Fourier terms that are fitted to several bands, or to one."""
        return self.nterms if not banded or self.band_terms is None else self.band_terms

    @property
    def nterms(self) -> int:
        """Fourier terms of the model."""
        return int(self.arguments.get("nterms", 1))

    @property
    def doubled(self) -> bool:
        """Whether a rotation is two periods of the light curve: a sinusoid sees one of an asteroid's two humps."""
        return self.asteroid and self.nterms == 1

    @property
    def both_readings(self) -> bool:
        """Whether a period may be one rotation or half of one, as with several terms."""
        return self.asteroid and self.nterms > 1

    @property
    def scale(self) -> float:
        """Ratio of the period that is shown to the period of the light curve in days."""
        return TimeUnit.d.hours / TimeUnit[self.unit].hours * (2.0 if self.doubled else 1.0)

    @property
    def column_names(self) -> dict[str, str]:
        """Names of the columns of periods: they say whether it is a rotation, and the unit unless it is the day."""
        kind, unit = "rotation_period" if self.asteroid else "period", "" if self.unit == "d" else f"_{self.unit}"
        return {
            "period": kind + unit,
            "period_error": f"{kind}_error{unit}",
            "period_doubled": f"{kind}{unit}_doubled",
        }


@dataclass(frozen=True)
class Found:
    """Answers for a run of objects; ``frequency`` and its error (1/d), ``power``, ``fap`` and the aliases have one
    column a peak.

    ``delta_chi2`` is chi-square at the best frequency less that at half of it, where both readings are wanted.
    """

    ids: NDArray[Any]
    status: NDArray[Any]
    n_used: NDArray[Any]
    n_dropped: NDArray[Any]
    method: NDArray[Any]
    frequency: NDArray[np.float64]
    frequency_error: NDArray[np.float64]
    power: NDArray[np.float64]
    fap: NDArray[np.float64]
    alias: NDArray[np.uint8]
    alias_of: NDArray[np.int64]
    alias_text: NDArray[np.str_]
    delta_chi2: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def status_text(self) -> NDArray[np.str_]:
        """The status of each object in words."""
        return np.array([Status(int(s)).text for s in self.status], dtype=str)

    def ambiguity(self, i: int) -> str:
        """Doubts about the best period of object ``i``: its highest alias, or a rhythm of the sampling."""
        doubts = [str(self.alias_text[i, 0])] if self.alias[i, 0] & Alias.SAMPLING else []
        real = Alias.DAY | Alias.MONTH | Alias.YEAR
        for k in np.flatnonzero((self.alias_of[i] == 0) & (self.alias[i] & int(real) > 0))[:1]:
            doubts.append(
                f"{self.power[i, k] / self.power[i, 0]:.2f} at {str(self.alias_text[i, k]).removeprefix('#1 ')}"
            )
        return "; ".join(doubts)

    def table(self, request: Request, file: str | None = None) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        """Columns of the output file (see `result.columns`), and the units of those that have one."""
        frequency, scale = self.frequency, request.scale
        objects = {
            "id": self.ids,
            "status": np.array([Status(int(s)).name.lower() for s in self.status], dtype=str),
            "n_used": self.n_used,
            "n_dropped": self.n_dropped,
            "method": self.method,
        }
        if request.both_readings:
            objects |= {"period_doubled": 2 * scale / frequency[:, 0], "delta_chi2": self.delta_chi2}
        peaks = {
            "period": scale / frequency,
            "period_error": scale / frequency**2 * self.frequency_error,
            "frequency": frequency,
            "frequency_error": self.frequency_error,
            "power": self.power,
            "fap": self.fap,
            "alias": self.alias_text,
        }
        columns, kinds = table_columns(objects, peaks, frequency.shape[1], request.column_names)
        units = {"time": request.unit, "frequency": "1 / d"}
        named = {} if file is None else {"file": np.full(len(self), file)}
        return named | columns, {name: units[kind] for name, kind in kinds.items() if kind in units}


def join(parts: list[Found]) -> Found:
    """Join answers, one after another."""
    return Found(*(np.concatenate([getattr(p, name) for p in parts]) for name in Found.__dataclass_fields__))


@dataclass(frozen=True)
class Rows:
    """Rows of a run of objects, and which of them the search used."""

    t: NDArray[np.float64]
    y: NDArray[np.float64]
    dy: NDArray[np.float64] | None
    offsets: NDArray[np.int64]
    usable: NDArray[np.bool_]
    band: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, curves: LightCurves, banded: bool = False) -> Rows:
        """Rows in which nothing is missing; ``banded``: the bands are numbers."""
        t, y, dy = curves.t, curves.y, curves.dy
        usable = np.isfinite(t) & np.isfinite(y) & (True if dy is None else np.isfinite(dy))
        return cls(t, y, dy, curves.offsets, usable, curves.band if banded else None)

    def more_means(self) -> NDArray[np.int64]:
        """Means of each object beyond its first: the number of its bands less one."""
        n = len(self.offsets) - 1
        if self.band is None:
            return np.zeros(n, np.int64)
        owner = np.repeat(np.arange(n), np.diff(self.offsets))[self.usable]
        bands = int(self.band.max()) + 1
        pairs = np.unique(owner * bands + self.band[self.usable])
        return np.maximum(np.bincount(pairs // bands, minlength=n) - 1, 0)

    def band_of(self, i: int) -> NDArray[np.int64] | None:
        """Bands of the usable rows of object ``i``."""
        part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        return None if self.band is None else self.band[part][self.usable[part]]

    def one(self, i: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """Usable rows of object ``i``."""
        part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        keep = self.usable[part]
        return self.t[part][keep], self.y[part][keep], None if self.dy is None else self.dy[part][keep]


def no_formula(request: Request, has_dy: bool, banded: bool) -> str | None:
    """Why there are no false-alarm probabilities; None if there are."""
    arguments = request.arguments
    if banded and not BAND_MODELS[request.multiband].one_series:
        return f"no formula of the false-alarm probability holds for --multiband {request.multiband}"
    normalization = arguments.get("normalization", "standard")
    return fap.no_formula("baluev", normalization, 1 if banded else request.nterms, True, has_dy)


def probabilities(rows: Rows, power: NDArray[Any], result: LombScargleResult, request: Request) -> NDArray[np.float64]:
    """Baluev's false-alarm probability of each peak; NaN where no formula holds.

    A mean for each band takes a degree of freedom each, and nothing else changes (Baluev 2008: the model to compare
    with may be any linear one).
    """
    out = np.full(power.shape, np.nan)
    if no_formula(request, rows.dy is not None, rows.band is not None) is not None:
        return out
    relative, weight, _ = clean_rows(rows.t, rows.dy, rows.offsets, rows.usable)
    ok = np.flatnonzero(np.asarray(result.status) == Status.OK)
    if ok.size == 0:
        return out
    lengths = np.diff(rows.offsets)
    counted = np.repeat(np.asarray(result.status) == Status.OK, lengths)  # rows of objects with a result
    w, x = weight[counted], relative[counted]
    starts = np.concatenate([[0], np.cumsum(lengths[ok])[:-1]])
    mean = np.add.reduceat(w * x, starts)
    square = np.add.reduceat(w * x**2, starts)
    grids = result.grids
    highest = np.broadcast_to(grids.f0 + grids.df * (grids.nf - 1), (len(power),))[ok]
    noise = fap.Noise(
        (np.asarray(result.n_used) - rows.more_means())[ok, None],
        np.asarray(result.span, np.float64)[ok, None],
        np.sqrt(4 * np.pi * np.maximum(square - mean**2, 0))[:, None],
        highest[:, None],
        request.arguments.get("normalization", "standard"),
    )
    terms = request.terms(rows.band is not None)
    if terms == 1:
        out[ok] = noise.probability(power[ok])
    else:  # the penalty is in parts of the trace, 3, and a column's square is half the weight
        left = 1.0 if request.band_terms is None else 1 / (1 + 6 * DEFAULT_PENALTY)
        out[ok] = fap.series_probability(power[ok], noise, terms, left)
    return out


def half_frequency(rows: Rows, frequency: NDArray[Any], request: Request) -> NDArray[np.float64]:
    """Chi-square of the fit at the best frequency less that at half of it; NaN unless both readings are shown.

    Without errors, the scatter about the better of the two fits takes their place.  Each of several bands has a mean.
    """
    out = np.full(len(frequency), np.nan)
    if not request.both_readings or (rows.band is not None and not BAND_MODELS[request.multiband].one_series):
        return out
    fit_mean = bool(request.arguments.get("fit_mean", True))
    for i in np.flatnonzero(np.isfinite(frequency)):
        t, y, dy = rows.one(int(i))
        band = rows.band_of(int(i))
        both = np.array([frequency[i], frequency[i] / 2])
        errors = None if dy is None else np.stack([dy, dy])
        share = power_at(t, np.stack([y, y]), errors, both, fit_mean=fit_mean, nterms=request.nterms, band=band)
        if np.isnan(share).any():  # fewer points than the model has parameters
            continue
        weight = np.ones_like(y) if dy is None else dy**-2.0
        series = [slice(None)] if band is None else [band == b for b in np.unique(band)]
        total = sum(float(weight[k] @ (y[k] - weight[k] @ y[k] / weight[k].sum()) ** 2) for k in series)
        free = len(y) - 2 * request.nterms - (fit_mean if band is None else len(series))
        if dy is None and free > 0:
            total /= total * (1 - np.max(share)) / free
        out[i] = total * (share[1] - share[0])
    return out


def first_chunk(curves: LightCurves, request: Request) -> int:
    """Number of objects of the first chunk, for which some seconds are enough."""
    asked = request.arguments
    nf = asked.get("nf")
    if nf is None:
        times = curves.t[np.isfinite(curves.t)]
        span = float(np.ptp(times)) if times.size else 0.0
        fmin, fmax = (asked.get(name) for name in ("fmin", "fmax"))
        low = 0.0 if fmin is None or isinstance(fmin, str) else fmin
        high = 1 / SHORT if fmax is None or isinstance(fmax, str) else fmax
        nf = asked.get("samples_per_peak", 5) * span * (high - low)
    return int(np.clip(FIRST_WORK / max(1.0, nf * max(1, request.nterms)), 1, FIRST_CHUNK))


def search(
    curves: LightCurves,
    request: Request,
    *,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    detail: Callable[[str], None] | None = None,
    prepare: Callable[[LightCurves], LightCurves] | None = None,
    banded: bool | None = None,
) -> Iterator[Found]:
    """Search the objects of a file, yielding the answers of each chunk.

    ``progress(done, total)`` counts objects of the file.  ``note`` gets each warning of the search once, ``detail`` a
    line on each chunk.  ``prepare`` is called with each chunk before it is searched.  ``banded`` says whether the
    file has several bands that are fitted as such, where ``curves`` are a part of it.
    """
    import skysieve
    from skysieve.periodogram.multiband import MultibandPlan

    noted: set[str] = set()
    start, size = 0, first_chunk(curves, request)
    banded = request.banded(curves) if banded is None else banded
    if banded and curves.band is not None:
        curves = replace(curves, band=np.unique(curves.band, return_inverse=True)[1].reshape(-1))
    several = MultibandPlan(return_power=False, **request.band_arguments) if banded else None
    with several or skysieve.LombScarglePlan(return_power=False, **request.arguments) as plan:
        while start < len(curves):
            stop = curves.stop_after(start, size, MAX_ROWS)

            def report(done: int, _total: int, before: int = start) -> None:
                if progress is not None:
                    progress(before + done, len(curves))

            started = time.monotonic()
            part = curves.part(start, stop)
            part = part if prepare is None else prepare(part)
            t, y, dy, offsets = part.t, part.y, part.dy, part.offsets
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result: LombScargleResult
                if several is not None:
                    result = several.execute(t, y, part.band, dy, offsets=offsets, progress=report)
                else:
                    result = plan.execute(t, y, dy, offsets=offsets, progress=report)
            seconds = max(time.monotonic() - started, 1e-3)
            size = max(1, min(CHUNK_GROWTH * size, round((stop - start) * CHUNK_SECONDS / seconds)))
            for w in caught:
                if note is not None and str(w.message) not in noted:
                    noted.add(str(w.message))
                    note(str(w.message))
            n = stop - start
            if detail is not None:
                if several is not None:
                    about = several.describe(t, y, part.band, dy, offsets=offsets)
                else:
                    about = plan.describe(t, y, dy, offsets=offsets)
                expected = "" if about["seconds"] is None else f", {about['seconds']:.3g} s expected"
                detail(f"memory of {format_bytes(about['bytes'])}{expected}")
                used = ", ".join(sorted({*np.atleast_1d(result.method).tolist()}))
                what = f"{n:,} object{'s' if n != 1 else ''} by {used}"
                detail(f"{what} on {result.device} in {result.dtype}: {seconds:.3g} s")
            frequency = np.asarray(result.peaks.frequency, np.float64).reshape(n, -1)
            power = np.asarray(result.peaks.power, np.float64).reshape(n, -1)
            rows = Rows.of(part, banded)
            aliases = find_aliases(t, frequency, result.span, dy, offsets=offsets, usable=rows.usable)
            yield Found(
                ids=curves.ids[start:stop],
                status=np.asarray(result.status),
                n_used=np.asarray(result.n_used),
                n_dropped=np.asarray(result.n_dropped),
                method=np.where(np.asarray(result.status) == Status.OK, result.method, "none").astype(str),
                frequency=frequency,
                frequency_error=np.asarray(result.peaks.frequency_error, np.float64).reshape(n, -1),
                power=power,
                fap=probabilities(rows, power, result, request),
                alias=aliases.flag,
                alias_of=aliases.of,
                alias_text=aliases.text,
                delta_chi2=half_frequency(rows, frequency[:, 0], request),
            )
            start = stop
    if note is not None and (reason := no_formula(request, curves.dy is not None, banded)):
        note(reason)
