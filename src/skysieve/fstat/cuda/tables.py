"""Input of the kernels other than the atoms: structs, window lengths, weights, lists of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.fstat.contract import MapJob, live_rows
from skysieve.fstat.inputs.window_kinds import Algorithm

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPE = np.dtype(
    [
        (name, np.int32)
        for name in (
            "n", "columns", "rows", "templates", "stored", "pitch", "marginals", "map", "low", "high", "chunk",
            "row0", "step", "fine", "length0", "skip", "slots", "width", "stride",
        )
    ]
)  # fmt: skip
"""``struct Shape`` of ``common.cuh``."""
SLOT = 32
"""Bytes of ``struct Slot``."""
ANSWER = np.dtype([("top", "f8"), ("sum", "f8"), ("lost", "u8"), ("cell", "u4"), ("flag", "u4")])
"""``struct Answer``."""
NOWHERE = 2**32 - 1
"""The flat cell of a template of which no cell could be computed."""
FAR = 2**24
"""A distance that is larger than any data and exact in float32."""
ROWS = 16
"""Rows of a block of ``exp.cu``."""
STEEPEST = 24.0
"""Largest exponent, to base 2, by which weights may grow in a block of rows: their squares enter A D."""
USUAL_DETECTORS = 3
"""Detectors up to which the kernels of the line-robust statistic are prebuilt; others are compiled at first use."""
MOST_DETECTORS = 8
"""Most detectors of the line-robust statistic."""


@dataclass(frozen=True)
class Tables:
    """The tables of one schedule: the rows to compute and their order, window lengths and weights.

    Attributes
    ----------
    rows : numpy.ndarray of int64
        Rows to compute, in rising order.
    order : numpy.ndarray of int64
        The rows in the kernels' order.
    first, group : numpy.ndarray of int32
        First bin and group of each row, in the kernels' order; ``first`` counts the `pad` empty bins before the data.
    length : numpy.ndarray of int32
        For the exponential window the lengths common to all groups, otherwise those of each group.
    more : numpy.ndarray of uint8 or None
        1 where windows of a group hold one bin more than the common length.
    weights : tuple of two numpy.ndarray of float64
        For the exponential window: ``log2(e) T / tau`` and ``q^L``; ``1 - q``, ``q^L``, ``1 - q^2``, ``q^2L``.
    away : numpy.ndarray of int32
        Distance from each bin to the next one with data.
    unit : bool
        Whether there is one row for each bin, one group, and lengths that rise by a constant step (by 1 for
        rectangular windows).
    """

    rows: NDArray[np.int64]
    order: NDArray[np.int64]
    first: NDArray[np.int32]
    group: NDArray[np.int32]
    length: NDArray[np.int32]
    more: NDArray[np.uint8] | None
    skip: NDArray[np.int32]
    weights: tuple[NDArray[np.float64], NDArray[np.float64]]
    away: NDArray[np.int32]
    pad: int
    n: int
    step: int
    unit: bool

    @property
    def count(self) -> int:
        """Number of rows to compute."""
        return len(self.rows)

    @property
    def stored(self) -> int:
        """Number of stored bins, a multiple of the block size."""
        return -(-self.n // ROWS) * ROWS

    @property
    def fine(self) -> int:
        """Blocks of 32 bins of each phase in the copies that are sorted by phase."""
        return -(-self.n // (32 * self.step)) if self.step else 0

    @property
    def low(self) -> int:
        """First bin of the first row."""
        return int(self.first.min())

    @property
    def high(self) -> int:
        """One more than the first bin of the last row."""
        return int(self.first.max()) + 1

    def warm(self, high: int) -> tuple[float, float]:
        """Mean and largest number of bins that a chunk of rows below `high` sums before its first row."""
        some = np.minimum(self.length.ravel()[:: max(1, self.length.size // 64)], self.n - high)
        return float(some.mean()), float(some.max())


def make_tables(job: MapJob, algorithm: Algorithm) -> Tables:
    """The tables of a job's schedule, for the kernels of an algorithm.

    Rows are in rising order for running sums, in falling order of their first bin for the two recurrences, and by group
    and first bin for windows of any shape.
    """
    exponential = algorithm in (Algorithm.RECURRENCE, Algorithm.MOMENTS)
    s, rows = job.schedule, live_rows(job.schedule)
    if rows.size == 0:
        none = np.zeros(0, np.int32)
        nothing = np.zeros((0, 0))
        return Tables(rows, rows, none, none, none, None, none, (nothing, nothing), none, 0, job.n, 0, False)
    pad = max(0, -int(s.first[rows].min()))
    n = job.n + pad
    used = np.unique(s.group[rows])
    length, more = s.length, None
    rate = job.tatom / job.taus
    if exponential:
        order = rows[np.argsort(-s.first[rows], kind="stable")]
        length = s.length[used].min(axis=0)
        longer = s.length > length
        more = longer.astype(np.uint8) if longer[used].any() else None
        steps = np.unique(np.diff(length))
    else:
        order = rows if algorithm == Algorithm.RUNNING_SUMS else rows[np.lexsort((s.first[rows], s.group[rows]))]
        steps = np.unique(np.diff(s.length[used[0]]))
    step = 1 if steps.size == 0 else int(steps[0]) if steps.size == 1 else 0
    line = used.size == 1 and np.all(np.diff(s.first[rows]) == 1) and np.all(np.diff(rows) == 1)
    good = step > 0 and rate.max() * ROWS * np.log2(np.e) <= STEEPEST if exponential else step == 1
    unit = bool(line and more is None and good and algorithm in (Algorithm.RUNNING_SUMS, Algorithm.RECURRENCE))
    if not exponential and unit:
        length = s.length[used]
    length = np.minimum(length, 2**30)
    weights = np.zeros((2, 0)), np.zeros((4, 0))
    if algorithm == Algorithm.RECURRENCE:
        lose = np.exp(-rate * length)
        weights = (
            np.stack([rate * np.log2(np.e), lose]),
            np.stack([-np.expm1(-rate), lose, -np.expm1(-2 * rate), lose**2]),
        )
    return Tables(
        rows=rows,
        order=order,
        first=(s.first[order] + pad).astype(np.int32),
        group=s.group[order].astype(np.int32),
        length=length.astype(np.int32),
        more=more,
        skip=s.valid_from.astype(np.int32),
        weights=weights,
        away=distance(job.occupied, pad)[0],
        pad=pad,
        n=n,
        step=step,
        unit=unit,
    )


def distance(occupied: NDArray[np.bool_], pad: int) -> NDArray[np.int32]:
    """Distance in bins from each bin, `pad` empty bins first, to the next occupied bin; `FAR` if there is none.

    ``occupied`` has shape (n,) or (B, n); the result has shape (B, pad + n).
    """
    some = np.atleast_2d(occupied)
    n = some.shape[1] + pad
    at = np.full((len(some), n), FAR)
    at[:, pad:][some] = np.broadcast_to(np.arange(pad, n), some.shape)[some]
    nearest = np.minimum.accumulate(at[:, ::-1], axis=1)[:, ::-1]
    return np.where(nearest == FAR, FAR, nearest - np.arange(n)).astype(np.int32)


class DeviceTables:
    """`Tables` in device memory, for all calls with the same schedule."""

    def __init__(self, xp: Any, tables: Tables, dtype: np.dtype[Any]) -> None:
        self.host = tables
        self.chunks: dict[tuple[int, int], int] = {}
        if tables.count == 0:
            return
        blocks = np.full(tables.stored, FAR, np.int32)
        blocks[: tables.n] = tables.away
        self.away = xp.asarray(tables.away)
        self.gaps = xp.asarray(np.ascontiguousarray(blocks.reshape(-1, ROWS).max(axis=1)))
        self.length = xp.asarray(tables.length)
        self.unit_weights, self.any_weights = (xp.asarray(w.astype(dtype)) for w in tables.weights)
        self.rows = tuple(xp.asarray(a) for a in (tables.order.astype(np.int32), tables.first, tables.group))
        self.more = None if tables.more is None else xp.asarray(tables.more)
        self.skip = xp.asarray(tables.skip)


def same_schedule(a: MapJob, b: MapJob) -> bool:
    """Whether two jobs have the same tables."""
    if a is b:
        return True
    s, t = a.schedule, b.schedule
    if (a.tatom, s.n, s.shape) != (b.tatom, t.n, t.shape):
        return False
    pairs = ((a.taus, b.taus), (a.occupied, b.occupied))
    names = ("first", "group", "length", "valid_from", "late")
    if s is not t:
        pairs += tuple((getattr(s, name), getattr(t, name)) for name in names)
    return all(x is y or np.array_equal(x, y) for x, y in pairs)
