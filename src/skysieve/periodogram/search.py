"""Periods of every object of a file, a chunk of objects at a time, as the command line needs them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.workload import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.periodogram.io import LightCurves

HOURS = 24.0
UNIT_HOURS = {"d": 24.0, "h": 1.0, "min": 1 / 60, "s": 1 / 3600, "yr": 8766.0}
"""Hours in each unit of time that the command line knows."""


FIRST_CHUNK, CHUNK_SECONDS, MAX_ROWS = 500, 3.0, 20_000_000
"""A chunk is what takes some seconds, so that Ctrl-C loses little; it starts small and is limited in rows."""


@dataclass(frozen=True)
class Request:
    """What is asked of the search: keyword arguments of `skysieve.lombscargle`, and how periods are shown."""

    arguments: dict[str, Any] = field(default_factory=dict)
    unit: str = "d"
    asteroid: bool = False

    @property
    def scale(self) -> float:
        """Shown period over light-curve period in days."""
        return HOURS / UNIT_HOURS[self.unit] * (2.0 if self.asteroid else 1.0)

    @property
    def period_name(self) -> str:
        """Column of the periods; it names the unit where that is not the day."""
        name = "rotation_period" if self.asteroid else "period"
        return name if self.unit == "d" else f"{name}_{self.unit}"


@dataclass(frozen=True)
class Found:
    """Answers for a run of objects; ``frequency`` (1/d) and ``power`` have one column a peak."""

    ids: NDArray[Any]
    status: NDArray[Any]
    n_used: NDArray[Any]
    n_dropped: NDArray[Any]
    method: NDArray[Any]
    frequency: NDArray[np.float64]
    power: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def status_text(self) -> NDArray[np.str_]:
        """A word or a sentence an object."""
        return np.array([Status(int(s)).text for s in self.status], dtype=str)

    def table(self, request: Request, file: str | None = None) -> dict[str, NDArray[Any]]:
        """Columns of the output file, named as `LombScargleResult.save` names them; the frequency is in 1/d."""
        columns: dict[str, NDArray[Any]] = {} if file is None else {"file": np.full(len(self), file)}
        columns["id"] = self.ids
        columns["status"] = np.array([Status(int(s)).name.lower() for s in self.status], dtype=str)
        columns["n_used"], columns["n_dropped"], columns["method"] = self.n_used, self.n_dropped, self.method
        for k in range(self.frequency.shape[1]):
            end = "" if k == 0 else f"_{k + 1}"
            columns[request.period_name + end] = request.scale / self.frequency[:, k]
            columns["frequency" + end] = self.frequency[:, k]
            columns["power" + end] = self.power[:, k]
        return columns

    def units(self, request: Request) -> dict[str, str]:
        """Units of the output columns, for the formats that keep them."""
        names = self.table(request)
        return {n: request.unit for n in names if n.startswith(request.period_name)} | {
            n: "1 / d" for n in names if n.startswith("frequency")
        }


def join(parts: list[Found]) -> Found:
    """One after another."""
    return Found(*(np.concatenate([getattr(p, name) for p in parts]) for name in Found.__dataclass_fields__))


def search(
    curves: LightCurves,
    request: Request,
    *,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Iterator[Found]:
    """Search the objects of a file, yielding the answers of each chunk.

    ``progress(done, total)`` counts objects of the file.  ``note`` gets each warning of the search once,
    and at the end the range of periods where the user left an end of it open.
    """
    import skysieve

    told: set[str] = set()
    lowest, highest = np.inf, 0.0
    start, size = 0, FIRST_CHUNK
    with skysieve.LombScarglePlan(return_power=False, **request.arguments) as plan:
        while start < len(curves):
            stop = curves.stop_after(start, size, MAX_ROWS)
            t, y, dy, offsets = curves.rows(start, stop)

            def report(done: int, _total: int, before: int = start) -> None:
                if progress is not None:
                    progress(before + done, len(curves))

            started = time.monotonic()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = plan.execute(t, y, dy, offsets=offsets, progress=report)
            seconds = max(time.monotonic() - started, 1e-3)
            size = max(FIRST_CHUNK, min(4 * size, round((stop - start) * CHUNK_SECONDS / seconds)))
            for w in caught:
                if note is not None and str(w.message) not in told:
                    told.add(str(w.message))
                    note(str(w.message))
            grids = result.grids
            lowest = min(lowest, np.nanmin(grids.f0, initial=np.inf))
            highest = max(highest, np.nanmax(grids.f0 + grids.df * (grids.nf - 1), initial=0.0))
            n = stop - start
            yield Found(
                ids=curves.ids[start:stop],
                status=np.asarray(result.status),
                n_used=np.asarray(result.n_used),
                n_dropped=np.asarray(result.n_dropped),
                method=np.where(np.asarray(result.status) == Status.OK, result.method, "none").astype(str),
                frequency=np.asarray(result.peaks.frequency, np.float64).reshape(n, -1),
                power=np.asarray(result.peaks.power, np.float64).reshape(n, -1),
            )
            start = stop
    if note is not None and highest > 0 and None in (request.arguments.get("fmin"), request.arguments.get("fmax")):
        short, long = request.scale / highest, request.scale / lowest
        note(f"searched periods of {short:.4g} to {long:.4g} {request.unit}; --min-period and --max-period set others")
