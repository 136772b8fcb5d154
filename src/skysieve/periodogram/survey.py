"""Periods of every object of a survey, a chunk of objects at a time: for the commands, alert streams and LSDB."""

from __future__ import annotations

import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import Words, joined
from skysieve.core.errors import format_bytes
from skysieve.core.tasks import part_of_a_job, usable_cores
from skysieve.periodogram.analysis import fap
from skysieve.periodogram.analysis.bootstrap import power_at
from skysieve.periodogram.api import LombScarglePlan
from skysieve.periodogram.contract import BAND_MODELS, METHODS, Status
from skysieve.periodogram.lightcurves.arrays import finite_rows
from skysieve.periodogram.lightcurves.checks import refuse_coarse_times
from skysieve.periodogram.lightcurves.units import TimeUnit
from skysieve.periodogram.multiband import DEFAULT_PENALTY, MultibandPlan
from skysieve.periodogram.result.aliases import (
    Alias,
    Sampling,
    alias_relations,
    compiled_relations,
    is_compiled,
    relation_texts,
)
from skysieve.periodogram.result.columns import table_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.periodogram.lightcurves.io import LightCurves
    from skysieve.periodogram.lightcurves.stream import CurveStream
    from skysieve.periodogram.result.result import LombScargleResult

FIRST_CHUNK, FIRST_WORK, CHUNK_GROWTH, CHUNK_SECONDS, MAX_ROWS = 500, 2e7, 4, 3.0, 2_000_000
"""Limits of chunks: objects of the first chunk, and frequencies of all these objects together; growth from one chunk to
the next, and seconds of later chunks, so that Ctrl-C loses little; rows of a chunk, because the answers for a chunk are
made while the next one is searched."""
FINISHERS = 8
"""Largest number of threads that make the answers for chunks."""
COMPILED_ROWS, LOADED_ROWS = 10_000_000, 50_000_000
"""Rows of a file from which finding aliases with NumPy takes longer than compiling the code for it; and, if
numba is not loaded, than loading numba."""
METHOD_NAMES = np.array(["none", *METHODS])
OPEN_SAMPLES = 10
"""Frequencies in an interval of 1/T, for an open range: with 5, daily aliases that are nearly as high as a peak come
out higher."""
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

    def banded(self, curves: LightCurves | CurveStream) -> bool:
        """Whether an object has several bands that the model distinguishes; all objects of a file have one model."""
        return self.multiband != "none" and curves.several_bands

    @property
    def band_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `skysieve.lombscargle_multiband`."""
        given = {k: v for k, v in self.arguments.items() if k != "fit_mean"} | {"model": self.multiband}
        if self.band_terms is None:
            return given
        return given | {"nterms": self.band_terms, "reg_terms": DEFAULT_PENALTY}

    def plan(self, banded: bool) -> Any:
        """The plan of the search, without powers; ``banded``: for several bands."""
        if banded:
            return MultibandPlan(return_power=False, **self.band_arguments)
        return LombScarglePlan(return_power=False, **self.arguments)

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

    ``method_number`` holds positions in `METHOD_NAMES`, ``relation`` those in `result.aliases.relation_texts`.
    ``delta_chi2`` is chi-square at the best frequency less that at half of it, where both readings are wanted.
    """

    ids: NDArray[Any]
    status: NDArray[Any]
    n_used: NDArray[Any]
    n_dropped: NDArray[Any]
    method_number: NDArray[np.uint8]
    frequency: NDArray[np.float64]
    frequency_error: NDArray[np.float64]
    power: NDArray[np.float64]
    fap: NDArray[np.float64]
    alias: NDArray[np.uint8]
    alias_of: NDArray[np.int64]
    relation: NDArray[np.int32]
    delta_chi2: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def alias_text(self) -> NDArray[np.str_]:
        """The alias relation of each peak in words."""
        return relation_texts(self.relation.shape[1])[self.relation]

    def ambiguity(self, i: int) -> str:
        """Doubts about the best period of object ``i``: its highest alias, or a rhythm of the sampling."""
        texts = relation_texts(self.relation.shape[1])[self.relation[i]]
        doubts = [str(texts[0])] if self.alias[i, 0] & Alias.SAMPLING else []
        real = Alias.DAY | Alias.MONTH | Alias.YEAR
        for k in np.flatnonzero((self.alias_of[i] == 0) & (self.alias[i] & int(real) > 0))[:1]:
            doubts.append(f"{self.power[i, k] / self.power[i, 0]:.2f} at {str(texts[k]).removeprefix('#1 ')}")
        return "; ".join(doubts)

    def table(
        self, request: Request, file: Words | None = None, coded: bool = False
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Columns of the output file (see `result.columns`), and the units of those that have one.

        ``file`` names the file of each object.  Columns of few different words are `Words` if ``coded``, else arrays.
        """
        frequency, scale = self.frequency, request.scale
        objects = {
            "id": self.ids,
            "status": Words(self.status, np.array([status.name.lower() for status in Status])),
            "n_used": self.n_used,
            "n_dropped": self.n_dropped,
            "method": Words(self.method_number, METHOD_NAMES),
        }
        if request.both_readings:
            objects |= {"period_doubled": 2 * scale / frequency[:, 0], "delta_chi2": self.delta_chi2}
        texts = relation_texts(self.relation.shape[1])
        peaks = {
            "period": scale / frequency,
            "period_error": scale / frequency**2 * self.frequency_error,
            "frequency": frequency,
            "frequency_error": self.frequency_error,
            "power": self.power,
            "fap": self.fap,
            "alias": Words(self.relation, texts),
        }
        columns, kinds = table_columns(objects, peaks, frequency.shape[1], request.column_names)
        columns = ({} if file is None else {"file": file}) | columns
        if not coded:
            columns = {name: c.text if isinstance(c, Words) else c for name, c in columns.items()}
        units = {"time": request.unit, "frequency": "1 / d"}
        return columns, {name: units[kind] for name, kind in kinds.items() if kind in units}


def join(parts: list[Found]) -> Found:
    """Join answers, one after another."""
    if len(parts) == 1:
        return parts[0]
    return Found(*(joined([getattr(p, name) for p in parts]) for name in Found.__dataclass_fields__))


def no_objects(n_peaks: int) -> Found:
    """Answers for no object, which give a table its columns."""
    none, peaks = np.empty(0, np.int64), np.empty((0, n_peaks))
    return Found(
        none, none, none, none, none.astype(np.uint8), peaks, peaks, peaks, peaks, peaks.astype(np.uint8),
        peaks.astype(np.int64), peaks.astype(np.int32), np.empty(0),
    )  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Rows of a run of objects."""

    t: NDArray[np.float64]
    y: NDArray[np.float64]
    dy: NDArray[np.float64] | None
    offsets: NDArray[np.int64]
    band: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, curves: LightCurves, banded: bool = False) -> Rows:
        """The rows of light curves; ``banded``: the bands are numbers."""
        return cls(curves.t, curves.y, curves.dy, curves.offsets, curves.band if banded else None)

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Rows in which nothing is missing."""
        return np.asarray(finite_rows(self.t, self.y, self.dy))

    def more_means(self) -> NDArray[np.int64]:
        """Means of each object beyond its first: the number of its bands less one."""
        n = len(self.offsets) - 1
        if self.band is None:
            return np.zeros(n, np.int64)
        owner = np.repeat(np.arange(n), np.diff(self.offsets))[self.usable]
        seen = np.zeros((n, int(self.band.max(initial=0)) + 1), bool)
        seen[owner, self.band[self.usable]] = True
        return np.maximum(seen.sum(axis=1) - 1, 0)

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
    given = request.arguments
    centred = bool(given.get("fit_mean", True) or given.get("center_data", True))
    reason = fap.no_formula(given.get("normalization", "standard"), request.terms(banded), has_dy, centred)
    if banded and not BAND_MODELS[request.multiband].one_series:
        reason = f"no formula holds for --multiband {request.multiband}"
    return None if reason is None else f"no false-alarm probabilities: {reason}"


def probabilities(
    rows: Rows, variance: NDArray[Any], power: NDArray[Any], result: LombScargleResult, request: Request
) -> NDArray[np.float64]:
    """Baluev's false-alarm probability of each peak; NaN where no formula holds.  ``variance``: of the times.

    A mean for each band takes a degree of freedom each, and nothing else changes (Baluev 2008: the model to compare
    with may be any linear one).
    """
    out = np.full(power.shape, np.nan)
    if no_formula(request, rows.dy is not None, rows.band is not None) is not None:
        return out
    ok = np.flatnonzero(np.asarray(result.status) == Status.OK)
    if ok.size == 0:
        return out
    grids = result.grids
    highest = np.broadcast_to(grids.f0 + grids.df * (grids.nf - 1), (len(power),))[ok]
    terms, penalty = request.terms(rows.band is not None), rows.band is not None and request.band_terms is not None
    noise = fap.Noise(
        (np.asarray(result.n_used) - rows.more_means())[ok, None],
        np.asarray(result.span, np.float64)[ok, None],
        np.sqrt(4 * np.pi * np.maximum(variance[ok], 0))[:, None],
        highest[:, None],
        request.arguments.get("normalization", "standard"),
        terms,
        # the penalty is in parts of the trace, 3, and a column's square is half the weight
        1 / (1 + 6 * DEFAULT_PENALTY) if penalty else 1.0,
    )
    out[ok] = noise.probability(power[ok])
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


def finishers(cores: int) -> int:
    """Number of threads that make the answers of chunks."""
    return max(1, min(FINISHERS, cores // 2))


def search(
    pieces: Iterable[LightCurves],
    request: Request,
    *,
    total: int,
    banded: bool,
    rows: int = 0,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    detail: Callable[[str], None] | None = None,
    prepare: Callable[[LightCurves], LightCurves] | None = None,
) -> Iterator[Found]:
    """Search objects, yielding the answers of each chunk.

    While a chunk is searched, threads make the answers of those before it.  After an error or Ctrl-C the answers of all
    chunks that were searched are yielded before it is raised.

    Parameters
    ----------
    pieces : iterable of LightCurves
    request : Request
    total : int
        Number of objects in all pieces.
    banded : bool
        Whether the file has several bands that are fitted as such.
    rows : int
        Number of rows of all pieces, and of others that are searched like them before or after.  If there are many,
        compiled code finds the aliases.
    progress : callable, optional
        ``progress(done, total)`` counts objects.
    note : callable, optional
        Gets the first warning of each kind.
    detail : callable, optional
        Gets a line on each chunk.
    prepare : callable, optional
        Called with each chunk before it is searched.
    """
    noted: set[str] = set()
    done, size = 0, 0
    has_dy, compiled = True, False
    workers = finishers(request.arguments.get("threads") or usable_cores())
    waiting: deque[Future[Found]] = deque()
    with request.plan(banded) as plan, ThreadPoolExecutor(workers, "skysieve-finish") as pool:
        try:
            for piece in pieces:
                if not size:
                    size = first_chunk(piece, request)
                    compiled = rows >= LOADED_ROWS or "skysieve.core.cpu.jit" in sys.modules
                    if compiled:
                        pool.submit(compile_ahead, rows)
                has_dy = piece.dy is not None
                if banded and piece.band is not None and piece.band_names is None:
                    piece = replace(piece, band=np.unique(piece.band, return_inverse=True)[1].reshape(-1))
                start = 0
                while start < len(piece):
                    stop = piece.stop_after(start, size, MAX_ROWS)

                    def report(found: int, _total: int, before: int = done + start) -> None:
                        if progress is not None:
                            progress(before + found, total)

                    started = time.monotonic()
                    part = piece.part(start, stop)
                    part = part if prepare is None else prepare(part)
                    columns = (part.t, part.y, part.band, part.dy) if banded else (part.t, part.y, part.dy)
                    share = part_of_a_job(stop - start, total - done - start)
                    with warnings.catch_warnings(record=True) as caught, share:
                        warnings.simplefilter("always")
                        result: LombScargleResult = plan.execute(*columns, offsets=part.offsets, progress=report)
                    refuse_coarse_times(part.time_resolution, result.grids)
                    seconds = max(time.monotonic() - started, 1e-3)
                    size = max(1, min(CHUNK_GROWTH * size, round((stop - start) * CHUNK_SECONDS / seconds)))
                    waiting.append(pool.submit(finish, part, result, request, banded, compiled))
                    for w in caught:
                        text = str(w.message)
                        if note is not None and kind_of_note(text) not in noted:
                            noted.add(kind_of_note(text))
                            counted = f" (counted among the first {done + stop:,} objects)"
                            note(text if stop - start == total else text + counted)
                    if detail is not None:
                        about = plan.describe(*columns, offsets=part.offsets)
                        for line in chunk_lines(about, result, stop - start, seconds):
                            detail(line)
                    while waiting and (waiting[0].done() or len(waiting) > workers):
                        yield waiting.popleft().result()
                    start = stop
                done += len(piece)
        except (Exception, KeyboardInterrupt):
            while waiting:  # the answers of what was searched are not lost
                yield waiting.popleft().result()
            raise
        while waiting:
            yield waiting.popleft().result()
    if note is not None and (reason := no_formula(request, has_dy, banded)):
        note(reason)


def kind_of_note(text: str) -> str:
    """The kind of a note: its beginning, before the numbers."""
    return text[:20]


def chunk_lines(about: dict[str, Any], result: LombScargleResult, n: int, seconds: float) -> list[str]:
    """Lines on the search of a chunk of ``n`` objects."""
    expected = "" if about["seconds"] is None else f", {about['seconds']:.3g} s expected"
    used = ", ".join(sorted({*np.atleast_1d(result.method).tolist()}))
    what = f"{n:,} object{'s' if n != 1 else ''} by {used}"
    return [
        f"memory of {format_bytes(about['bytes'])}{expected}",
        f"{what} on {result.device} in {result.dtype}: {seconds:.3g} s",
    ]


def compile_ahead(rows: int) -> None:
    """Load the compiled code of the aliases; if it is not stored and rows are many, let another process compile it."""
    from skysieve.periodogram.cpu import aliases

    if rows >= COMPILED_ROWS:
        aliases.compile_beside()


def finish(
    part: LightCurves, result: LombScargleResult, request: Request, banded: bool, compiled: bool = False
) -> Found:
    """The answers of a chunk: peaks with their aliases and false-alarm probabilities.

    ``compiled``: compiled code finds the aliases, as soon as it is stored.
    """
    n = len(part)
    frequency = np.asarray(result.peaks.frequency, np.float64).reshape(n, -1)
    power = np.asarray(result.peaks.power, np.float64).reshape(n, -1)
    rows = Rows.of(part, banded)
    spans = np.asarray(result.span, np.float64)
    if compiled and is_compiled():
        aliases, mean, mean_square = compiled_relations(rows.t, rows.y, rows.dy, rows.offsets, frequency, spans)
    else:
        sampling = Sampling.of(rows.t, rows.dy, rows.offsets, rows.usable)
        aliases, mean, mean_square = alias_relations(sampling, frequency, spans), sampling.mean, sampling.mean_square
    status = np.asarray(result.status)
    method = np.zeros(n, np.uint8)
    for number, name in enumerate(METHOD_NAMES):
        method[(status == Status.OK) & (np.asarray(result.method) == name)] = number
    return Found(
        ids=part.ids,
        status=status,
        n_used=np.asarray(result.n_used),
        n_dropped=np.asarray(result.n_dropped),
        method_number=method,
        frequency=frequency,
        frequency_error=np.asarray(result.peaks.frequency_error, np.float64).reshape(n, -1),
        power=power,
        fap=probabilities(rows, mean_square - mean**2, power, result, request),
        alias=aliases.flag,
        alias_of=aliases.of,
        relation=aliases.relation,
        delta_chi2=half_frequency(rows, frequency[:, 0], request),
    )
