"""The jobs by which ``skysieve info --measure`` measures the rates of periodograms, and the prediction of a run."""

from __future__ import annotations

import time
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
from skysieve.periodogram.multiband import MultibandPlan
from skysieve.periodogram.survey import MAX_ROWS, Request, finish, finishers, first_chunk

if TYPE_CHECKING:
    from skysieve.core.device import Device
    from skysieve.periodogram.lightcurves.stream import CurveStream

__all__ = ["Clocks", "clocks", "measure", "prediction"]

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
"""Times as many objects on a GPU."""
ANSWERS = ((300, 60, 5), (20, 2000, 5), (300, 60, 1))
"""Objects, rows and peaks of the chunks whose answers are timed."""


def _curves(objects: int, rows: int) -> LightCurves:
    """Light curves of noise in two bands."""
    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(0, SPAN, (objects, rows)), axis=1).ravel()
    return LightCurves(
        path=Path("made"), ids=np.arange(objects), t=t, y=rng.normal(15, 0.1, t.size), dy=np.full(t.size, 0.1),
        offsets=rows * np.arange(objects + 1), taken="", value_name="mag", band=np.arange(t.size) % 2,
        band_names=np.array(["g", "r"]),
    )  # fmt: skip


def measure(device: Device) -> None:
    """Measure the rates of a device with small searches, and store them; `OSError` if they cannot be stored."""
    works, took = [], []
    for kind, options, objects, rows, nf in CASES:
        many = objects * (1 if device.kind == "cpu" else MORE)
        if device.kind != "cpu" and (options["method"] == "finufft" or kind != "one"):
            continue  # on a GPU the first does not exist, and the work of several terms or bands is not counted
        made = _curves(many, rows)
        grid = {"fmin": 2 / SPAN, "fmax": (2 + nf / 5) / SPAN, "nf": nf}
        for dtype in ("float64", "float32") if kind == "one" else ("float64",):
            given = {**grid, **options, "n_peaks": 5, "return_power": False, "device": device, "dtype": dtype}
            arrays: tuple[Any, ...] = (made.t, made.y, made.dy)
            plan: Any = LombScarglePlan(**given) if kind != "bands" else MultibandPlan(**given)
            if kind == "bands":
                arrays = (made.t, made.y, made.band, made.dy)
            with plan:
                works.append(plan.describe(*arrays, offsets=made.offsets)["work"])
                took.append(rates.timed(device, partial(plan.execute, *arrays, offsets=made.offsets)))
    found = rates.fit(works, took)
    works, took = [], []
    for objects, rows, peaks in ANSWERS:
        made, request = _curves(objects, rows), Request({"n_peaks": peaks})
        with LombScarglePlan(fmin=0.01, fmax=2.0, nf=10_000, n_peaks=peaks, return_power=False, device="cpu") as plan:
            result = plan.execute(made.t, made.y, made.dy, offsets=made.offsets)
        works.append(_answers(made.n_rows, objects, peaks))
        took.append(rates.timed(device, partial(finish, made, result, request, False)))
    rates.keep("periodogram", device, found | rates.fit(works, took))


def _answers(rows: int, objects: int, peaks: int) -> dict[str, float]:
    return {"rows answered": float(rows), "peaks answered": float(objects * peaks)}


@dataclass(frozen=True)
class Clocks:
    """Processor seconds of this process, and seconds of the day; or durations in both."""

    processor: float
    wall: float

    def elapsed(self) -> Clocks:
        """What has passed since."""
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
        What it took to read the file; of a stream, to open it.

    Returns
    -------
    dict
        ``method``, ``device``, ``bytes`` (of one chunk), ``moved``, ``seconds``, ``processor_seconds``, ``work``,
        ``missing`` (work for which there is no rate).  Objects of later pieces are taken to be like those of the first.
    """
    with curves.pieces() as pieces:  # the first time imports and compiles
        first = next(pieces)
    streamed = not isinstance(curves, LightCurves)
    reading = Reading(0.0, 0.0, 0.0) if isinstance(curves, LightCurves) else Reading.of(curves)
    banded = request.banded(curves)
    part = first.part(0, first.stop_after(0, max(first_chunk(first, request), SEEN), MAX_ROWS))
    if banded and part.band is not None and part.band.dtype.kind not in "iu":
        part.band[:] = np.unique(part.band, return_inverse=True)[1].reshape(-1)
    plan: Any = (
        MultibandPlan(return_power=False, **request.band_arguments)
        if banded
        else LombScarglePlan(return_power=False, **request.arguments)
    )
    with plan:
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
        if streamed:
            times["seconds"] = opened.wall + reading.first + slowest(reading.wall, alone, after, usable_cores())
        else:
            times["seconds"] = opened.wall + alone + after / finishers(usable_cores())
    return {
        "method": facts["method"], "device": facts["device"], "bytes": facts["bytes"], **times,
        "moved": round(facts["moved"] * whole), "work": work, "threads": threads,
        "missing": rates.missing("periodogram", device, work),
    }  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What reading the pieces of a file takes."""

    processor: float
    """Processor seconds of all threads."""
    wall: float
    """Seconds from the first piece to the last, where nothing holds up the readers."""
    first: float
    """Seconds to the first piece."""

    @classmethod
    def of(cls, curves: CurveStream) -> Reading:
        """Read up to `PIECES` pieces.  Readers work ahead: processor time is that of all rows that they decoded."""
        before, decoded = clocks(), curves.share_decoded
        with curves.pieces() as pieces:
            objects = len(next(pieces))
            first, more = before.elapsed(), sum(map(len, islice(pieces, PIECES - 1)))
            seen = before.elapsed()
        done = curves.share_decoded - decoded
        left = (len(curves) - objects) / more if more else 0.0
        return cls(before.elapsed().processor / done, (seen.wall - first.wall) * left, first.wall)


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


PIECES = 12
"""Pieces that are read for a prediction."""
SEEN = 2000
"""Number of objects (if the file has as many) from which the time of the whole file is estimated."""
