"""The jobs by which ``skysieve info --measure`` measures the rates of periodograms, and the prediction of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.machine import rates
from skysieve.core.tasks import usable_cores
from skysieve.periodogram.api import LombScarglePlan
from skysieve.periodogram.lightcurves.io import LightCurves
from skysieve.periodogram.lightcurves.stream import PIECE_ROWS, READERS
from skysieve.periodogram.multiband import MultibandPlan
from skysieve.periodogram.survey import MAX_ROWS, Request, finish, finishers, first_chunk, search

from .ranges import range_of

if TYPE_CHECKING:
    from skysieve.core.device import Device
    from skysieve.periodogram.lightcurves.stream import CurveStream

__all__ = ["Clocks", "clocks", "measure", "prediction", "rehearsals"]

SPAN = 1000.0
CASES: tuple[tuple[str, dict[str, Any], int, int, int], ...] = (
    ("one", {"method": "nufft"}, 100, 60, 10_000),
    ("one", {"method": "nufft"}, 20, 300, 50_000),
    ("one", {"method": "nufft"}, 2, 3000, 200_000),
    ("one", {"method": "direct"}, 20, 60, 2_000),
    ("one", {"method": "direct"}, 4, 500, 4_000),
    ("one", {"method": "finufft"}, 4, 500, 20_000),
    ("terms", {"nterms": 2, "method": "nufft"}, 8, 300, 20_000),
    ("terms", {"nterms": 2, "method": "direct"}, 4, 100, 2_000),
    ("bands", {"method": "nufft"}, 8, 300, 20_000),
    ("bands", {"method": "nufft"}, 30, 60, 5_000),
    ("bands", {"method": "direct"}, 4, 100, 2_000),
)
"""Kind, options, and numbers of objects, of rows of each and of frequencies."""
MORE = 200
"""Factor by which searches on a GPU have more objects."""
ANSWERS = ((300, 60, 5), (20, 2000, 5), (300, 60, 1))
"""Objects, rows and peaks of the chunks whose answers are timed."""
METHODS = ("nufft", "direct", "finufft")


def _curves(objects: int, rows: int) -> LightCurves:
    """Light curves of noise in two bands; if there are many, they repeat the first ones."""
    rng = np.random.default_rng(1)
    few = min(objects, 500)
    t = np.resize(np.sort(rng.uniform(0, SPAN, (few, rows)), axis=1), (objects, rows)).ravel()
    y = np.resize(rng.normal(15, 0.1, few * rows), t.size)
    return LightCurves(
        path=Path("made"), ids=np.arange(objects), t=t, y=y, dy=np.full(t.size, 0.1),
        offsets=rows * np.arange(objects + 1), taken="", value_name="mag", band=np.arange(t.size) % 2,
        band_names=np.array(["g", "r"]),
    )  # fmt: skip


def measure(device: Device) -> None:
    """Measure the rates of a device with small searches, and store them; `OSError` if they cannot be stored."""
    jobs = [job for method in METHODS for dtype in ("float64", "float32") for job in _searches(device, method, dtype)]
    works, took = zip(*jobs, strict=True)
    rates.keep("periodogram", device, rates.fit(works, took) | _after(device))


def rehearsals(device: Device) -> list[Callable[[], object]]:
    """The parts of `measure`, each of which may run in a thread of its own (`core.machine.rates.rehearsal`)."""
    return [
        *(partial(_searches, device, method, dtype) for method in METHODS for dtype in ("float64", "float32")),
        partial(_after, device),
    ]


def _searches(device: Device, method: str, dtype: str) -> list[tuple[dict[str, float], float]]:
    """The work of each search by a method, and the seconds that it took."""
    found = []
    for kind, options, objects, rows, nf in CASES:
        if options["method"] != method or (kind != "one" and dtype != "float64"):
            continue
        many = objects * (1 if device.kind == "cpu" else MORE)
        if device.kind != "cpu" and (method == "finufft" or kind != "one"):
            continue  # on a GPU the first does not exist, and the work of several terms or bands is not counted
        made = _curves(many, rows)
        grid = {"fmin": 2 / SPAN, "fmax": (2 + nf / 5) / SPAN, "nf": nf}
        given = dict[str, Any](grid | options, n_peaks=5, return_power=False, device=device, dtype=dtype)
        arrays: tuple[Any, ...] = (made.t, made.y, made.dy)
        plan: Any = LombScarglePlan(**given) if kind != "bands" else MultibandPlan(**given)
        if kind == "bands":
            arrays = (made.t, made.y, made.band, made.dy)
        with plan:
            work = plan.describe(*arrays, offsets=made.offsets)["work"]
            found.append((work, rates.timed(device, partial(plan.execute, *arrays, offsets=made.offsets))))
    return found


def _after(device: Device) -> dict[str, float]:
    """Rates of the work that follows a search: the answers for its objects."""
    works, took = [], []
    if compiled := device.kind == "cpu":  # a search on a GPU loads this code for large files alone
        from skysieve.periodogram.cpu import aliases

        aliases.use()
    for objects, rows, peaks in ANSWERS:
        made, request = _curves(objects, rows), Request({"n_peaks": peaks})
        given: dict[str, Any] = {"fmin": 0.01, "fmax": 2.0, "nf": 10_000, "method": "nufft", "n_peaks": peaks}
        with LombScarglePlan(**given, return_power=False, device=device) as plan:
            result = plan.execute(made.t, made.y, made.dy, offsets=made.offsets)
        works.append(_answers(made.n_rows, objects, peaks))
        took.append(rates.timed(device, partial(finish, made, result, request, False, compiled)))
    return rates.fit(works, took)


def _answers(rows: int, objects: int, peaks: int) -> dict[str, float]:
    return {"rows answered": float(rows), "peaks answered": float(objects * peaks)}


@dataclass(frozen=True)
class Clocks:
    """Processor seconds of this process, and seconds of the day; or durations in both."""

    processor: float
    wall: float

    def elapsed(self) -> Clocks:
        """The time that has passed since."""
        now = clocks()
        return Clocks(now.processor - self.processor, now.wall - self.wall)


def clocks() -> Clocks:
    """The time now."""
    return Clocks(time.process_time(), time.perf_counter())


def prediction(curves: LightCurves | CurveStream, request: Request, opened: Clocks) -> dict[str, Any]:
    """Predict the search of the objects of a file, of which `PIECES` pieces are read at most.

    Parameters
    ----------
    curves : LightCurves or CurveStream
    request : Request
    opened : Clocks
        Time that it took to read the file, or to open a stream.

    Returns
    -------
    dict
        ``method``, ``device``, ``bytes`` (of one chunk), ``moved``, ``seconds``, ``processor_seconds``, ``work``,
        ``missing`` (work for which there is no rate).  Objects of later pieces are taken to be like those of the first.

    Raises
    ------
    ValueError
        The search would refuse the file after its first piece; see `range_of`.
    """
    with curves.pieces() as pieces:  # the first time imports and compiles
        first = next(pieces)
    streamed = not isinstance(curves, LightCurves)
    reading = Reading(0.0, 0.0, 0.0) if isinstance(curves, LightCurves) else Reading.of(curves)
    banded = request.banded(curves)
    part = first.part(0, first.stop_after(0, max(first_chunk(first, request), SEEN), MAX_ROWS))
    if banded and part.band is not None and part.band.dtype.kind not in "iu":
        part.band[:] = np.unique(part.band, return_inverse=True)[1].reshape(-1)
    range_of(part, request)
    with request.plan(banded) as plan:
        arrays = (part.t, part.y, part.band, part.dy) if banded else (part.t, part.y, part.dy)
        facts = plan.describe(*arrays, offsets=part.offsets)
        device = plan._device if not banded else plan._checked._device
    whole = len(curves) / len(part)
    searched = {name: count * whole for name, count in facts["work"].items()}
    searched["calls"] = whole
    answers = _answers(curves.n_rows, len(curves), int(request.arguments["n_peaks"]))
    work, threads = searched | answers, facts["threads"]
    times = rates.predicted("periodogram", device, work, threads)
    if times["seconds"] is not None and device.kind == "cpu":
        assert times["processor_seconds"] is not None
        read = opened.processor + reading.processor
        times["processor_seconds"] += read
        times["seconds"] += read / threads if streamed else read
    elif times["seconds"] is not None:
        alone, after = (rates.predicted("periodogram", device, one)["seconds"] for one in (searched, answers))
        assert alone is not None
        assert after is not None
        if not isinstance(curves, LightCurves):
            held_up = slowest(reading.wall, alone, after, usable_cores())
            if alone * PIECES * PIECE_ROWS < SAMPLE_SECONDS * curves.n_rows:
                held_up = max(held_up, sampled(curves, request, banded) or 0.0)
            times["seconds"] = opened.wall + reading.first + held_up
        else:
            times["seconds"] = opened.wall + alone + after / finishers(usable_cores())
    return {
        "method": facts["method"], "device": facts["device"], "bytes": facts["bytes"], **times,
        "moved": round(facts["moved"] * whole), "work": work, "threads": threads,
        "missing": rates.missing("periodogram", device, work),
    }  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """Times to read the pieces of a file."""

    processor: float
    """Processor seconds of all threads."""
    wall: float
    """Seconds from the first piece to the last, where nothing holds up the readers."""
    first: float
    """Seconds to the first piece."""

    @classmethod
    def of(cls, curves: CurveStream) -> Reading:
        """Read up to `PIECES` pieces.

        Readers work ahead: processor time is that of all rows that they decoded, and the first pieces, one of each
        reader, come at about the same time.
        """
        before, decoded = clocks(), curves.share_decoded
        with curves.pieces() as pieces:
            one, first = len(next(pieces)), before.elapsed()
            together = min(READERS, usable_cores())
            early, ready = sum(map(len, islice(pieces, together - 1))), before.elapsed()
            more, seen = sum(map(len, islice(pieces, max(1, PIECES - together)))), before.elapsed()
        done = curves.share_decoded - decoded
        left = (len(curves) - one - early) / more if more else 0.0
        wall = ready.wall - first.wall + (seen.wall - ready.wall) * left
        return cls(before.elapsed().processor / done, wall, first.wall)


def slowest(read: float, search: float, answers: float, cores: int) -> float:
    """Seconds of a file that is read in pieces while a GPU searches earlier ones and threads make their answers.

    Parameters
    ----------
    read : float
        Seconds of all readers.
    search : float
        Seconds of the GPU.
    answers : float
        Seconds of one core.
    cores : int

    Examples
    --------
    >>> slowest(2.0, 1.0, 4.0, cores=16), slowest(2.0, 1.0, 6.0, cores=2), slowest(0.1, 1.0, 0.2, cores=16)
    (2.0, 6.0, 1.0)
    """
    return max(read, search, answers / finishers(cores))


def sampled(curves: CurveStream, request: Request, banded: bool) -> float | None:
    """Seconds of the search of a file on a GPU after its first piece, from the search of `PIECES` pieces.

    Readers, copies to the GPU and answers share the interpreter and the memory of the host: where the GPU waits for
    them, they take longer together than each does alone.  None for few pieces.
    """
    times: list[float] = []
    sizes: list[int] = []

    def handed(pieces: Iterable[LightCurves]) -> Iterator[LightCurves]:
        for piece in pieces:
            times.append(clocks().wall)
            sizes.append(len(piece))
            yield piece

    with curves.pieces() as pieces:
        for _ in search(handed(islice(pieces, PIECES)), request, total=len(curves), banded=banded, rows=curves.n_rows):
            pass
    if len(times) < READERS + 2:
        return None
    return (times[-1] - times[READERS]) / sum(sizes[READERS:-1]) * len(curves)


SAMPLE_SECONDS = 2.0
"""A file is not sampled if the search of the pieces takes longer than this on the GPU."""
PIECES = 12
"""Pieces that are read for a prediction."""
SEEN = 2000
"""Number of objects (if the file has as many) from which the time of the whole file is estimated."""
