"""Any window on the CPU: sums by recurrences, by Fourier transforms or bin by bin, in float64, one tau at a time.

Each column takes the cheapest method that its window allows.  Recurrences come before transforms, whose errors are
relative to the largest sum of a column and not to each sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.fstat.contract import FALLBACK, Bank, MapJob, Spec, TilePart
from skysieve.fstat.inputs.window_kinds import Algorithm
from skysieve.fstat.inputs.windows import Window, WindowSum

from .exact import block_sums, fstat_exact
from .lanes import fstat_lal, fstat_lanes
from .state import Typed, lal_exp, padded, tiles
from .sum import Recurrence

if TYPE_CHECKING:
    from numpy.typing import NDArray

NS_DIRECT = 2.2
"""Nanoseconds for adding a bin to the seven sums in float64; measured on one core."""
NS_FOURIER = 0.7
"""Nanoseconds of a real transform for each point and factor of two in its length."""
NS_MOMENT = 5.0
"""Nanoseconds for one multiplication of a recurrence."""
TRANSFORMS = 9
"""Transforms of a column: of the weights, of their squares, and back for seven sums."""


@njit(nogil=True)
def weighted(x, first, starts, weights, squares, ends, S):
    """Sum the bins from ``first + starts`` (unsigned) on into ``S`` (7, rows), in the order of time.

    A lane is a row (a start time) of one group, whose windows share their weights.  The cost is a multiplication and an
    addition for each sum, cell and bin of the window.  Products and additions are computed in float64 and rounded to
    the type of ``S``, as in LALPulsar.
    """
    for i in range(7):
        row = S[i]
        w = squares if i < 3 else weights
        for j in range(row.size):
            row[j] -= row[j]
        for b in range(min(w.size, ends)):
            weight = w[b]
            if weight != 0.0:
                source = x[i, first + b :]
                for j in range(row.size):
                    row[j] += source[starts[j]] * weight


def by_columns(spec: Spec) -> bool:
    """Whether sums are formed one duration at a time, by the methods for any window."""
    algorithm = spec.window.algorithm
    special = algorithm in (Algorithm.MOMENTS, Algorithm.WEIGHTS)
    return special or (algorithm == Algorithm.RECURRENCE and spec.lal) or spec.sums == "exact"


@dataclass(frozen=True)
class Group:
    """Rows with the same offset from the bins, which therefore share their weights, and the bins.

    Attributes
    ----------
    x : numpy.ndarray, shape (7, before + n + after)
        Bins with zeros on both sides.
    occupied_before : numpy.ndarray of int64
        Number of occupied bins before each bin of `x`, with one more entry for the end.
    rows, first : numpy.ndarray of int64, shape (R,)
        Rows of the map and where their windows start in `x`, rising.
    end : int
        End of the data in `x`.
    length : numpy.ndarray of int64, shape (N_tau,)
    valid_from : int
    offset, tatom : int
        Seconds from t0 to the first bin, and seconds between bins.
    """

    x: NDArray[Any]
    occupied_before: NDArray[np.int64]
    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    end: int
    length: NDArray[np.int64]
    valid_from: int
    offset: int
    tatom: int

    def ends(self) -> NDArray[np.int64]:
        """Number of bins that the first row sums in each column."""
        return np.minimum(self.length, self.end - self.first[0])

    def seconds(self, window: Window) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predicted seconds of each column, bin by bin and by the other method that the window allows."""
        ends = self.ends().astype(np.float64)
        direct = NS_DIRECT * len(self.rows) * ends
        if isinstance(window.shape, WindowSum):
            span = float(self.first[-1] - self.first[0])
            steps = np.minimum(1.25 * span, len(self.rows) * ends) + ends
            other = NS_MOMENT * Recurrence(window.shape).work * steps
        else:
            size = self.x.shape[1] + float(ends.max(initial=1))
            other = np.full(len(ends), NS_FOURIER * TRANSFORMS * size * np.log2(size))
        return 1e-9 * direct, 1e-9 * other


def groups_of(job: MapJob, bank: Bank, i: int, rows: NDArray[np.int64], lal: bool) -> list[Group]:
    """The rows of template `i` of a bank in groups, in float64 unless `lal` asks for LALPulsar's arithmetic."""
    s = job.schedule
    if rows.size == 0:
        return []
    before = max(0, -int(s.first[rows].min()))
    after = int(s.first[rows].max() - s.first[rows].min()) + 1
    x = padded(bank, i, before, after)
    if not lal:
        x = x.astype(np.float64)
    counts = np.concatenate([np.zeros(before + 1, np.int64), np.cumsum(bank.occupied, dtype=np.int64)])
    counts = np.concatenate([counts, np.full(after, counts[-1])])
    return [
        Group(
            x, counts, piece, s.first[piece] + before, job.n + before, s.length[g], int(s.valid_from[g]),
            int(s.offset[g]), job.tatom,
        )
        for piece in tiles(s, rows, rows.size)
        for g in [int(s.group[piece[0]])]
    ]  # fmt: skip


def weights_of(group: Group, window: Window, tau: float, length: int, lal: bool) -> NDArray[np.float64]:
    """Weights of the first `length` bins of a window."""
    x = (group.offset + group.tatom * np.arange(length, dtype=np.float64)) / tau
    return lal_exp(x) if lal and window.algorithm == Algorithm.RECURRENCE else window.weights(x)


def any_columns(
    group: Group, window: Window, taus: NDArray[np.float64], typed: Typed, lal: bool, exact: bool = False
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield ``(column, F of the rows)`` for every valid column of a group.

    With ``exact`` nothing is subtracted from the sums and each cell has its own scale.
    """
    sums = np.zeros((7, len(group.rows)), typed.dtype)
    F = np.zeros(len(group.rows), typed.dtype)
    starts = (group.first - group.first[0]).astype(np.uint64)
    most = group.end - int(group.first[0])
    by_bins = np.ones(len(taus), np.bool_)
    if not (lal or exact):
        direct, other = group.seconds(window)
        by_bins = direct <= other
    in_blocks = exact and window.algorithm in (Algorithm.RUNNING_SUMS, Algorithm.RECURRENCE)
    ahead, bins = np.zeros((0, 8)), np.zeros((0, 8))
    if in_blocks:
        ahead, bins = np.zeros((most + 1, 8)), np.zeros((group.x.shape[1], 8))
        bins[:, :7] = group.x.T
    recurrence = transform = None
    if not by_bins[group.valid_from :].all():
        if isinstance(window.shape, WindowSum):
            recurrence = Recurrence(window.shape)
        else:
            transform = Transform(group, most)
    for c in range(group.valid_from, len(taus)):
        length = min(int(group.length[c]), most)
        if in_blocks:
            decay = np.exp(-group.tatom / taus[c]) if window.algorithm == Algorithm.RECURRENCE else 1.0
            block_sums(bins, group.first, length, group.end, decay, ahead, sums)
        elif recurrence is not None and not by_bins[c]:
            h, delta = group.tatom / float(taus[c]), group.offset / float(taus[c])
            recurrence.sums(group.x, group.first, group.end, int(group.length[c]), delta, h, sums)
        else:
            w = weights_of(group, window, float(taus[c]), length, lal)
            if transform is not None and not by_bins[c]:
                transform.sums(w, sums)
            else:
                weighted(group.x, int(group.first[0]), starts, w, w * w, most, sums)
        stop = np.minimum(group.first + length, group.x.shape[1])
        sums[:, group.occupied_before[stop] == group.occupied_before[group.first]] = 0
        if lal:
            fstat_lal(sums, F)
        elif exact:
            fstat_exact(sums, typed.bound, F)
        else:
            fstat_lanes(sums, typed.bound, typed.k, F)
        yield c, F


class Transform:
    """Correlations of the bins with weights, by real Fourier transforms."""

    def __init__(self, group: Group, most: int) -> None:
        from scipy.fft import next_fast_len, rfft

        self.size = next_fast_len(group.x.shape[1] + most, real=True)
        self.first = group.first
        self.x = rfft(group.x.astype(np.float64), self.size, axis=1)

    def sums(self, w: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        """Write the sums with weights `w` to ``out`` (7, R)."""
        from scipy.fft import irfft, rfft

        w2 = rfft(w * w, self.size).conj()
        out[:3] = irfft(self.x[:3] * w2, self.size, axis=1)[:, self.first]
        out[3:] = irfft(self.x[3:] * rfft(w, self.size).conj(), self.size, axis=1)[:, self.first]


class Tally:
    """Maximum, fallbacks and sums of exponentials of columns that are added one after the other."""

    def __init__(self, rows: NDArray[np.int64], n_columns: int) -> None:
        self.rows, self.n = rows, n_columns
        self.ref, self.total = -np.inf, 0.0
        self.best, self.n_fallback = (-np.inf, 0, 0), 0
        self.row_sums = np.zeros(len(rows))
        self.column_log = np.full(n_columns, -np.inf)

    def add(self, c: int, F: NDArray[Any]) -> None:
        """Add F of a column."""
        values = F.astype(np.float64)
        j = int(values.argmax())
        high = float(values[j])
        if (high, -self.rows[j], -c) > (self.best[0], -self.best[1], -self.best[2]):
            self.best = (high, int(self.rows[j]), c)
        if high > self.ref:
            self.row_sums *= np.exp(self.ref - high)
            self.ref = high
        e = np.exp(values - self.ref)
        self.row_sums += e
        with np.errstate(divide="ignore"):
            self.column_log[c] = self.ref + np.log(e.sum())
        self.n_fallback += int(np.count_nonzero(values == FALLBACK))

    def part(self) -> TilePart:
        """The results of all columns that were added."""
        with np.errstate(divide="ignore"):
            row_log = self.ref + np.log(self.row_sums)
        columns = np.arange(self.n)
        return TilePart(
            self.rows,
            columns,
            *self.best,
            self.n_fallback,
            float(np.logaddexp.reduce(row_log)),
            row_log,
            self.column_log,
        )
