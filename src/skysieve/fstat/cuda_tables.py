"""What the F-statistic's kernels read: atoms in quadruples, lengths, weights, lists of rows.  NumPy on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .workload import Job, loud_bins

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPE = np.dtype(
    [
        (name, np.int32)
        for name in (
            "n", "columns", "rows", "templates", "shared", "marginals", "map", "low", "high", "chunk", "row0", "step",
            "fine", "length0", "skip",
        )
    ]
)  # fmt: skip
"""``struct Shape`` of ``tf_common.cuh``."""
FAR = 2**24
"""A distance beyond any data, exact in float32."""


@dataclass(frozen=True)
class Tables:
    """Of one schedule: which rows are computed, in which order, and how.

    Attributes
    ----------
    rows, start : numpy.ndarray of int64
        Live rows, rising, and the first valid column of each.
    order : numpy.ndarray of int64
        The rows in the kernels' order.
    first, group : numpy.ndarray of int32
        In that order; ``first`` counts the `pad` empty bins before the data.
    length : numpy.ndarray of int32
        Of the exponential window the lengths that all groups have, else those of each group.
    more : numpy.ndarray of uint8 or None
        Where a group has one bin more.
    unit : bool
        One row a bin, one group, lengths that rise by a constant step (of rectangles: by 1).
    """

    rows: NDArray[np.int64]
    start: NDArray[np.int64]
    order: NDArray[np.int64]
    first: NDArray[np.int32]
    group: NDArray[np.int32]
    length: NDArray[np.int32]
    more: NDArray[np.uint8] | None
    skip: NDArray[np.int32]
    pad: int
    n: int
    step: int
    unit: bool
    loud: bool

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.rows)

    @property
    def fine(self) -> int:
        """Places of a phase in the sorted copies."""
        return -(-self.n // self.step) if self.step else 0

    def shape(
        self, columns: int, rows: int, templates: int, shared: bool, marginals: bool, keep: bool, chunks: int
    ) -> Any:
        """The kernels' `SHAPE`."""
        by_bin = self.unit and not self.loud
        low, high = (int(self.first.min()), int(self.first.max()) + 1) if by_bin else (0, self.count)
        s = np.zeros(1, SHAPE)
        s["n"], s["columns"], s["rows"], s["templates"] = self.n, columns, rows, templates
        s["shared"], s["marginals"], s["map"] = shared, marginals, keep
        s["low"], s["high"], s["chunk"] = low, high, -(-(high - low) // chunks)
        s["row0"] = low - int(self.rows[0])
        s["step"], s["fine"] = self.step, self.fine
        s["length0"], s["skip"] = int(self.length.ravel()[0]), int(self.skip[self.group[0]])
        return s[0]


def make_tables(job: Job, rows: NDArray[np.int64], exponential: bool, loud: bool) -> Tables:
    """The tables of the live rows of a job."""
    s = job.schedule
    pad = max(0, -int(s.first[rows].min()))
    used = np.unique(s.group[rows])
    length, more = s.length, None
    if exponential:
        order = rows[np.argsort(-s.first[rows], kind="stable")]
        length = s.length[used].min(axis=0)
        longer = s.length > length
        more = longer.astype(np.uint8) if longer[used].any() else None
        steps = np.unique(np.diff(length))
    else:
        order = rows
        steps = np.unique(np.diff(s.length[used[0]]))
    step = 1 if steps.size == 0 else int(steps[0]) if steps.size == 1 else 0
    line = used.size == 1 and np.all(np.diff(s.first[rows]) == 1) and np.all(np.diff(rows) == 1)
    unit = bool(line and more is None and (step > 0 if exponential else step == 1))
    if not exponential and unit:
        length = s.length[used]
    return Tables(
        rows=rows,
        start=s.valid_from[s.group[rows]],
        order=order,
        first=(s.first[order] + pad).astype(np.int32),
        group=s.group[order].astype(np.int32),
        length=np.minimum(length, 2**30).astype(np.int32),
        more=more,
        skip=s.valid_from.astype(np.int32),
        pad=pad,
        n=job.n + pad,
        step=step,
        unit=unit,
        loud=loud,
    )


def quads(job: Job, templates: list[int], pad: int, chosen: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Antenna factors (with the distance to the next bin that holds data) and data of bins `chosen`, as quadruples.

    Shapes (1 or B, n, 4) and (B, n, 4); `chosen` is of shape (1 or B, n): bins that are not are empty.
    """
    n = job.n + pad
    one = job.shared and len(chosen) == 1
    antenna = np.zeros((1 if one else len(templates), n, 4), job.dtype)
    data = np.zeros((len(templates), n, 4), job.dtype)
    for k, i in enumerate(templates):
        mine = chosen[min(k, len(chosen) - 1)]
        x = np.where(mine, job.bank.template(i), job.dtype.type(0))
        data[k, pad:] = x[3:].T
        if k < len(antenna):
            antenna[k, pad:, :3] = x[:3].T
            at = np.where(np.concatenate([np.zeros(pad, np.bool_), mine & job.occupied]), np.arange(n), FAR)
            nearest = np.minimum.accumulate(at[::-1])[::-1]
            antenna[k, :, 3] = np.where(nearest == FAR, FAR, nearest - np.arange(n))
    return antenna, data


class Sweep:
    """The tables of one launch on the device."""

    def __init__(self, xp: Any, job: Job, templates: list[int], tables: Tables, dtype: np.dtype[Any]) -> None:
        loud: Any = np.zeros((1, job.n), np.bool_)
        if tables.loud:
            loud = np.stack([loud_bins(job.bank.template(i)) for i in templates])
            if job.shared:
                loud = loud.any(axis=0, keepdims=True)
        quiet = quads(job, templates, tables.pad, ~loud)
        self.quiet = tuple(xp.asarray(q) for q in quiet)
        self.loud = tuple(xp.asarray(q) for q in quads(job, templates, tables.pad, loud)) if tables.loud else None
        self.fine: tuple[Any, ...] = ()
        if tables.unit and tables.step and not tables.loud and tables.more is None:
            self.fine = tuple(xp.asarray(sorted_by_phase(q, tables.step)) for q in quiet)
        self.length = xp.asarray(tables.length)
        length = tables.length if tables.length.ndim == 1 else tables.length[0]
        rate = job.tatom / job.taus
        decays = [-np.expm1(-rate), np.exp(-rate * length), -np.expm1(-2 * rate), np.exp(-2 * rate * length)]
        self.weights = xp.asarray(np.stack(decays).astype(dtype))
        self.rows = tuple(xp.asarray(a) for a in (tables.order.astype(np.int32), tables.first, tables.group))
        self.more = None if tables.more is None else xp.asarray(tables.more)
        self.skip = xp.asarray(tables.skip)


def sorted_by_phase(q: NDArray[Any], step: int) -> NDArray[Any]:
    """Bins (t, n, 4) as (t, step, places, 4): bin ``b`` at ``[b % step, b // step]``."""
    t, n, _ = q.shape
    places = -(-n // step)
    wide = np.zeros((t, places * step, 4), q.dtype)
    wide[:, :n] = q
    return np.ascontiguousarray(wide.reshape(t, places, step, 4).transpose(0, 2, 1, 3))
