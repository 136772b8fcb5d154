"""Dropped data: runs of equal samples that are too long for noise.

A receiver or a writer that loses data leaves zeros, or repeats a value.  Noise of a few bits has short runs of equal
samples too, so that no fixed length separates the two.  Let ``Q`` be the fraction of a channel's neighbouring samples
that are equal.  Then ``n`` equal pairs in a row have the probability ``Q**n``, and a run counts as dropped if chance
makes it less than once in a million files of the same size.  If the samples of many channels are equal at the same
time, they are tested together, by Hoeffding's bound on the number of successes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.contract import Room
from skysieve.dedispersion.data.filterbank import Filterbank, Paths, opened

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Suspicious", "Watch", "find_dropped"]

R = TypeVar("R")

MARGIN = 14.0
"""Natural logarithm of the number of files in which chance produces one false dropout."""
STRANGE = 8.0
"""The same for a single pair of spectra, which may be part of a dropout of several."""
PROBE_SECONDS, MOST_STRIDE = 1.5e-3, 16
"""Largest distance between the pairs of spectra that are compared, in seconds and in samples.  A dropout of all
channels is certainly found if it is at least one sample longer."""
SATURATED = 0.1
"""Seconds for which samples at the top of their range must last to be dropped data: a bright pulse saturates, too."""
SLICE = 2**21
"""Samples x channels that are examined at a time."""
HELD = 16
"""Slices of each thread whose results are held at a time."""
SPLIT = 2**23
"""Number of bytes from which on several threads share a piece."""
ROUNDS = 3
"""Number of searches for long runs.  Each excludes the runs that earlier searches found from the statistics of the
channels."""
FEW = 0.25
"""Fewest channels that can share a dropout, in units of the square root of the number of channels."""
COARSE = 15
"""Largest sample of coarse data.  In coarse data interference can make a channel constant for a while, so that a run in
few channels never counts as dropped."""
CLIPPED = 0.5
"""Seconds for which few channels must stay at an end of their range to count as dropped data, since interference can
hold them there, too."""
MOST_SLACK = 512
"""Samples by which chance may move the edge of a run, at most."""
ISLAND = 2
"""Samples between two dropouts of a channel that are dropped with them, at most."""
SHORT = 8
"""Equal pairs in a row up to which runs are counted with operations on whole arrays."""
RUN_VALUES = 2**18
"""Number of values in which longer runs are counted at a time, to bound the memory."""
NEVER = 2**62
"""A length that no run reaches."""
NO_RECTANGLES: NDArray[np.int64] = np.empty((0, 4), np.int64)


CountRuns = Callable[[int, int, int, int], tuple["NDArray[np.int32]", "NDArray[np.int32]"]]
"""``count(per, first, stride, pairs)`` compares the pairs of samples (t, t + 1) at ``t = first + i * stride`` in units
of ``per`` neighbouring rows.  The first array has the shape (units, 4): the number of equal pairs before the first pair
that differs and after the last one, the longest run of equal pairs between these, and the number of equal pairs.  The
second array has, for each pair, the number of units in which it is equal."""


class Suspicious(Exception):
    """Samples that were just read may be dropped data: all data must be examined."""


class Watch:
    """A quick test for possible dropped data, which examines samples once and in order while they are read.

    It compares one pair of neighbouring spectra every 1.5 ms, or every 16 samples if that is less.  Bytes that hold
    several samples are compared as bytes.

    Parameters
    ----------
    fb : Filterbank
    threads : int, optional
    """

    def __init__(self, fb: Filterbank, threads: int | None = None) -> None:
        self.nsamp = fb.nsamp
        self.stride = min(MOST_STRIDE, max(1, int(PROBE_SECONDS / fb.tsamp)))
        self.at = self.probes = 0
        self.quiet = False
        self.threads = threads
        self._pool: TaskPool | None = None
        self._last: NDArray[Any] | None = None
        self._many: list[NDArray[np.int32]] = []
        self._run = self._longest = self._equal = np.zeros(0, np.int32)

    def see(self, start: int, rows: NDArray[Any]) -> None:
        """Take the next samples, shape (samples, channels or bytes); those that were taken before are skipped.

        Raises
        ------
        Suspicious
            Unless ``quiet`` is set.
        """
        rows = bits_of(rows[max(0, self.at - start) :])
        if not len(rows):
            return
        if self._last is not None:
            self._compare(self._last[None], rows[:1])
        first = -self.at % self.stride
        after = rows[first + 1 :: self.stride]
        self._compare(rows[first :: self.stride][: len(after)], after)
        self.at += len(rows)
        self._last = np.array(rows[-1]) if (self.at - 1) % self.stride == 0 else None
        if not self.quiet and self.suspicious():
            raise Suspicious

    def _begin(self, units: int) -> None:
        if not len(self._run):
            self._run, self._longest, self._equal = (np.zeros(units, np.int32) for _ in range(3))

    def _compare(self, spectra: NDArray[Any], after: NDArray[Any]) -> None:
        """Compare spectra with those after them."""
        pairs, units = spectra.shape
        self._begin(units)
        if not pairs:
            return
        count = 1
        if pairs * units * spectra.itemsize * self.stride >= SPLIT:
            if self._pool is None:
                self._pool = TaskPool(self.threads)
            count = min(units, self._pool.workers)
        edges = np.linspace(0, units, count + 1).astype(int).tolist()

        def part(low: int, high: int) -> NDArray[np.int32]:
            some = slice(low, high)
            return _count_runs(
                spectra[:, some] == after[:, some], self._run[some], self._longest[some], self._equal[some]
            )

        tasks = [partial(part, low, high) for low, high in pairwise(edges)]
        found = [tasks[0]()] if self._pool is None or count == 1 else self._pool.run(tasks)
        self._many.append(np.add.reduce(found, dtype=np.int32))
        self.probes += pairs

    def see_counted(self, runs: CountRuns, start: int, stop: int, fb: Filterbank) -> None:
        """Take samples up to ``stop``; those from ``start`` on are on a GPU, where ``runs`` counts equal pairs.

        ``start`` is not after the first sample that was not seen yet.

        Raises
        ------
        Suspicious
            Unless ``quiet`` is set.
        """

        per, order = 1, fb.readers[0].order
        packed = fb.packed(max(0, stop - 1), 1)
        if packed is not None:  # bytes are compared, as `see` does
            one = next(packed)
            per, order = 8 // one.bits, np.arange(one.data.shape[1])[:: -1 if one.down else 1]

        def spectrum(number: int) -> NDArray[Any]:
            held = fb.packed(number, 1)
            return bits_of(next(fb.raw(number, 1))[0]) if held is None else next(held).data

        if self._last is not None:
            self._compare(self._last[None], spectrum(self.at))
        first = -(-self.at // self.stride)
        pairs = max(0, (stop - 2) // self.stride + 1 - first)
        found, many = runs(per, first * self.stride - start, self.stride, pairs)
        self._begin(len(found))
        counted = np.empty_like(found)
        counted[order] = found
        before, after, longest, equal = counted.T
        whole = equal == pairs
        self._longest = np.maximum(self._longest, np.where(whole, 0, np.maximum(self._run + before, longest)))
        self._run = np.where(whole, self._run + before, after)
        self._equal += equal
        self._many.append(many)
        self.probes += pairs
        self.at = stop
        waits = stop < self.nsamp and (stop - 1) % self.stride == 0  # the last pair needs the next sample
        self._last = spectrum(stop - 1)[0].copy() if waits else None
        if not self.quiet and self.suspicious():
            raise Suspicious

    @property
    def units(self) -> int:
        """Samples, or bytes of packed ones, of a spectrum that was seen; 0 before the first."""
        return len(self._run)

    def close(self) -> None:
        """Free the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def suspicious(self) -> bool:
        """Whether the samples so far have equal pairs that chance does not explain."""
        live = self._equal < self.probes
        if not live.any():
            return self.quiet and self.probes > 0  # all channels are constant
        odd = odds(self._equal[live], self.probes)
        least = certain(self.probes, len(self._run))
        run = self._run[live]
        longest = np.maximum(self._longest[live], np.where((run < self.probes) & (self.at == self.nsamp), run, 0))
        if (longest * odd >= least).any():
            return True
        if len(self._many) > 64 and self.at < self.nsamp:
            self._many = [np.concatenate(self._many)]
        recent = self._many[-1] if self.at < self.nsamp else np.concatenate(self._many)
        each = np.arange(recent.max(initial=0) + 1) - (len(live) - live.sum())
        surprise = together(each, np.exp(-odd).sum(), int(live.sum()))[recent]
        strange = np.flatnonzero(surprise >= STRANGE)
        return bool(len(intervals(strange, surprise[strange], least)))


def _count_runs(
    same: NDArray[np.bool_], run: NDArray[np.int32], longest: NDArray[np.int32], equal: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Update counts of equal pairs with ``same``, which tells where the next pairs are equal, shape (pairs, channels).

    ``run`` counts the equal pairs of the run that is open, ``longest`` those of the longest run that has ended, and
    ``equal`` all equal pairs.  Returns the number of equal channels of each pair.  This is done with NumPy, which is
    fast enough, so that a search on a GPU need not load numba.
    """
    for at in range(0, len(same), 255):  # sums of up to 255 pairs fit bytes
        equal += np.add.reduce(same[at : at + 255].view(np.uint8), axis=0, dtype=np.uint8)
    hard = same[-1] | (run > 0)  # runs that are open
    inside = same  # whether ``length`` pairs in a row are equal
    for length in range(1, SHORT + 1):
        seen = inside.any(axis=0)
        np.maximum(longest, length, out=longest, where=seen & ~hard)
        if not seen.any():
            break
        inside = inside[1:] & inside[:-1]
    open_or_long = np.flatnonzero(hard | inside.any(axis=0))
    number = np.arange(1, len(same) + 1, dtype=np.int32)[:, None]
    each = max(1, RUN_VALUES // len(same))
    for at in range(0, len(open_or_long), each):
        which = open_or_long[at : at + each]
        before, some = run[which], same[:, which]
        last = np.where(some, np.iinfo(np.int32).min, number)  # the last pair so far that is not equal
        last[0] = np.where(some[0], -before, 1)
        np.maximum.accumulate(last, axis=0, out=last)
        run[which] = len(same) - last[-1]
        ended = np.max(number - last, axis=0, where=number <= last[-1], initial=0)
        longest[which] = np.maximum(longest[which], np.maximum(ended, np.where(some[0], 0, before)))
    return same.sum(axis=1, dtype=np.int32)


def bits_of(rows: NDArray[Any]) -> NDArray[Any]:
    """Samples as unsigned integers of the same size, to compare their bits."""
    return rows if rows.dtype == np.uint8 else rows.view(f"u{rows.itemsize}")


def odds(equal: NDArray[Any], pairs: Any) -> NDArray[np.float64]:
    """``-ln Q`` of channels with ``equal`` equal pairs of ``pairs``."""
    found: NDArray[np.float64] = -np.log((equal + 0.5) / (np.maximum(pairs, 0) + 1.0))
    return np.maximum(found, 1e-12)


def certain(pairs: int, channels: int) -> float:
    """``-ln`` of the probability below which chance is excluded, for some pairs of some channels."""
    return math.log(max(1, pairs) * max(1, channels)) + MARGIN


def together(many: NDArray[Any], expected: Any, live: Any) -> NDArray[np.float64]:
    """``-ln`` of a bound on the probability of ``many`` equal channels, if more than expected; 0 otherwise.

    >>> together(np.array([3, 64]), 32.0, 64).round(1).tolist()
    [0.0, 44.4]
    """
    n = np.maximum(np.broadcast_to(live, many.shape), 1)
    p = np.clip(np.broadcast_to(expected, many.shape) / n, 1e-9, 1 - 1e-9)
    a = np.clip(many / n, 1e-12, 1 - 1e-12)
    found = n * (a * np.log(a / p) + (1 - a) * np.log((1 - a) / (1 - p)))
    return np.where(a > p, found, 0.0)


def strange_pairs(
    many: NDArray[np.float64], expected: NDArray[np.float64], live: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Pairs in which ``many`` equal channels have a surprise of at least `STRANGE`, and their surprise.

    The surprise is at most ``(many - expected)**2`` in units of the variance, which is computed faster.

    >>> which, surprise = strange_pairs(np.array([40.0, 64.0]), np.full(2, 32.0), np.full(2, 64.0))
    >>> which.tolist(), surprise.round(1).tolist()
    ([1], [44.4])
    """
    excess = many - expected
    variance = expected * (1 - expected / np.maximum(live, 1))
    which = np.flatnonzero((excess > 0) & (excess * excess >= 0.99 * STRANGE * variance))
    surprise = together(many[which], expected[which], live[which])
    enough = surprise >= STRANGE
    return which[enough], surprise[enough]


def intervals(strange: NDArray[np.int64], surprise: NDArray[np.float64], least: float) -> NDArray[np.int64]:
    """Ranges (first, last + 1) of neighbouring ``strange`` pairs whose total surprise is at least ``least``.

    >>> intervals(np.array([3, 4, 9]), np.array([20.0, 30.0, 20.0]), 40.0).tolist()
    [[3, 5]]
    """
    if not len(strange):
        return np.empty((0, 2), np.int64)
    fresh = np.flatnonzero(np.concatenate([[True], np.diff(strange) > 1]))
    good = np.add.reduceat(surprise, fresh) >= least
    stop = strange[np.concatenate([fresh[1:], [len(strange)]]) - 1] + 1
    return np.stack([strange[fresh][good], stop[good]], axis=1).astype(np.int64)


def find_dropped(data: Filterbank | Paths) -> NDArray[np.int64]:
    """Find dropped data: runs of equal samples that are too long for noise.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths

    Returns
    -------
    numpy.ndarray of int64, shape (n, 4)
        First sample, last + 1, first row, last + 1.  The rectangles do not overlap, and leave out `Filterbank.gaps`.
        Channels that are constant throughout are not listed, unless all are: then one rectangle holds all data.

    Raises
    ------
    TypeError
        `data` is neither a filterbank nor the path of one.
    OSError, ValueError
        A file cannot be read, or is damaged (`BadFile`).

    Examples
    --------
    >>> from skysieve.dedispersion import Filterbank
    >>> x = np.random.default_rng(0).integers(80, 120, (8, 4000)).astype(np.uint8)
    >>> x[2:5, 1000:1500] = 7
    >>> find_dropped(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)).tolist()
    [[1000, 1500, 2, 5]]
    """
    with opened(data) as fb, TaskPool() as pool:
        return dropped_rectangles(fb, pool)


def dropped_rectangles(fb: Filterbank, pool: TaskPool) -> NDArray[np.int64]:
    """The rectangles of `find_dropped`."""
    if fb.nsamp < 2:
        return NO_RECTANGLES
    top = top_value(fb.dtype, fb.maximum)
    equal, many, pairs = _count(fb, top, pool)
    live = equal < pairs
    if not live.any():
        return np.array([[0, fb.nsamp, 0, fb.nchan]])
    least = certain(pairs, fb.nchan)
    runs, odd = _long_runs(fb, top, equal, pairs, least, pool)
    runs = np.concatenate([runs, _shared(fb, top, live, many, runs, odd, least)])
    coarse, long = 0 < fb.maximum <= COARSE, math.ceil(CLIPPED / fb.tsamp)
    return _outside(rectangles_of(runs, odd, coarse, long), fb.gaps)


def top_value(dtype: np.dtype[Any], maximum: int) -> int:
    """Bits of ``maximum``, or of the type's largest value if it is 0; for floats of NaN, which `Cleaned` replaces."""
    if dtype.kind == "f":
        return int(np.float32(np.nan).view(np.uint32))
    if dtype.kind == "u" and maximum:
        return maximum
    return 2 ** (8 * dtype.itemsize - (dtype.kind == "i")) - 1


def _each(fb: Filterbank, look: Callable[[int, NDArray[Any]], R], pool: TaskPool, step: int) -> Iterator[R]:
    """``look(at, rows)`` for slices of the data, which threads share; the results in the order of the slices.

    ``rows`` are the bits of the samples from ``at`` on: ``step`` samples and the first of the next slice, as far as
    there are any.  A thread reads its slices itself if several threads may read at once.
    """
    memory = threading.local()

    def read(at: int) -> NDArray[Any]:
        count = min(step + 1, fb.nsamp - at)
        nbytes = count * fb.nchan * fb.dtype.itemsize
        if len(getattr(memory, "held", ())) < nbytes:
            memory.held = np.empty(nbytes, np.uint8)
        return fb.block(at, count, Room(memory.held))

    def part(at: int, block: NDArray[Any] | None = None) -> R:
        rows = np.ascontiguousarray((read(at) if block is None else block).T)
        return look(at, bits_of(rows.astype(rows.dtype.newbyteorder("="), copy=False)))

    starts = range(0, fb.nsamp - 1, step)
    each = pool.workers * (HELD if fb.takes_room else 1)
    for first in range(0, len(starts), each):
        some = starts[first : first + each]
        if fb.takes_room:
            yield from pool.run([partial(part, at) for at in some])
            continue
        block = fb.block(some[0], min(len(some) * step + 1, fb.nsamp - some[0]))
        yield from pool.run([partial(part, at, block[:, at - some[0] :][:, : step + 1]) for at in some])


def _count(fb: Filterbank, top: int, pool: TaskPool) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Equal pairs of each channel; equal channels of each pair, except at the largest value; the number of pairs."""
    from .cpu_dropouts import equal_pairs

    equal, many = np.zeros(fb.nchan, np.int64), np.zeros(fb.nsamp - 1, np.int32)

    def look(at: int, rows: NDArray[Any]) -> NDArray[np.int64]:
        some = np.zeros(fb.nchan, np.int64)
        equal_pairs(rows, rows.dtype.type(top), some, many[at : at + len(rows) - 1])
        return some

    for some in _each(fb, look, pool, max(64, SLICE // fb.nchan)):
        equal += some
    return equal, many, fb.nsamp - 1


def _long_runs(
    fb: Filterbank, top: int, equal: NDArray[np.int64], pairs: int, least: float, pool: TaskPool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Runs that are too long for their channel; and ``-ln Q`` of each channel without these runs."""
    from .cpu_dropouts import TOP

    most = math.ceil(SATURATED / fb.tsamp)
    odd = odds(equal, pairs)
    runs = listed = np.empty((0, 4), np.int64)
    need = shortest = np.full(fb.nchan, NEVER)
    for _ in range(ROUNDS):
        wanted = np.ceil(np.minimum(least / odd, 2**60)).astype(np.int64) + 1
        wanted[equal >= pairs] = NEVER
        if (wanted >= need).all():
            break
        need = np.minimum(need, wanted)
        if (need < shortest).any():  # half of it, so that later rounds need not read the data again
            shortest = np.maximum(need // 2, 2)
            listed = _runs(fb, top, shortest, pool)
        at_top = listed[:, 3] == TOP
        enough = np.where(at_top, np.maximum(need, most)[listed[:, 0]], need[listed[:, 0]])
        runs = listed[listed[:, 2] - listed[:, 1] >= enough]
        length = np.bincount(runs[:, 0], runs[:, 2] - runs[:, 1], fb.nchan)
        count = np.bincount(runs[:, 0], minlength=fb.nchan)
        odd = odds(np.maximum(equal - (length - count), 0), np.maximum(pairs - length, 1))
        odd[equal >= pairs] = 1e-12
    runs[:, 3] = runs[:, 3] > 0
    return runs, odd


def _runs(fb: Filterbank, top: int, need: NDArray[np.int64], pool: TaskPool) -> NDArray[np.int64]:
    """Runs of at least ``need`` samples, in the order of their ends, then of channels.

    The columns are channel, first sample, last + 1, and `TOP`, `BOTTOM` or 0 for the value.
    """
    from .cpu_dropouts import BOTTOM, TOP, long_runs

    bottom = 2 ** (8 * fb.dtype.itemsize - 1) if fb.dtype.kind == "i" else 0 if fb.dtype.kind == "u" else top
    shortest = int(need.min())

    def look(at: int, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
        found = np.empty((fb.nchan * (len(rows) // shortest + 1), 4), np.int64)
        ends, edges = np.zeros((2, fb.nchan), np.int64), rows[[0, -1]]
        kinds = rows.dtype.type(top), rows.dtype.type(bottom)
        return found[: long_runs(rows, at, need, shortest - 1, *kinds, found, ends)].copy(), ends, edges

    step = max(64, SLICE // fb.nchan)
    opened = np.zeros(fb.nchan, np.int64)  # equal pairs of the runs that are open
    found = []

    def close(at: int, after: NDArray[np.int64], edge: NDArray[Any], some: NDArray[np.bool_]) -> None:
        """Runs that are open at a sample, and have ``after`` equal pairs after it, end."""
        c = np.flatnonzero(some & (opened + after + 1 >= need))
        value = np.where(edge[c] == edge.dtype.type(top), TOP, np.where(edge[c] == edge.dtype.type(bottom), BOTTOM, 0))
        found.append(np.stack([c, at - opened[c], at + after[c] + 1, value], axis=1))

    for i, (inner, (before, after), edges) in enumerate(_each(fb, look, pool, step)):
        found.append(inner)
        at, pairs = i * step, min(step, fb.nsamp - 1 - i * step)
        ended = before < pairs
        close(at, before, edges[0], ended)
        opened = np.where(ended, after, opened + pairs)
    close(fb.nsamp - 1, np.zeros_like(opened), edges[1], np.ones(fb.nchan, bool))
    runs = np.concatenate(found)
    return runs[np.lexsort((runs[:, 0], runs[:, 2]))]


def _shared(
    fb: Filterbank, top: int, live: NDArray[np.bool_], many: NDArray[np.int32], runs: NDArray[np.int64],
    odd: NDArray[np.float64], least: float,
) -> NDArray[np.int64]:  # fmt: skip
    """Short runs that many channels have at the same time."""
    from . import cpu_dropouts

    p = np.where(live, np.exp(-odd), 0.0)
    dead = int((~live).sum())
    # changes, by pair, of the number of channels in long runs, and of the sum of their probabilities of equal pairs
    when = np.concatenate([runs[:, 1], runs[:, 2] - 1])
    sign = np.repeat([1.0, -1.0], len(runs))
    order = np.argsort(when, kind="stable")
    when, weight = when[order], np.stack([sign, sign * np.tile(p[runs[:, 0]], 2)])[:, order]
    before = np.zeros((2, 1))
    strange, surprise = [], []
    for at in range(0, len(many), SLICE // 8):
        some = many[at : at + SLICE // 8].astype(np.int64)
        a, b = np.searchsorted(when, (at, at + len(some)))
        change = np.stack([np.bincount(when[a:b] - at, w[a:b], len(some)) for w in weight])
        known, chance = before + np.cumsum(change, axis=1)
        before += change.sum(axis=1, keepdims=True)
        which, value = strange_pairs(
            np.maximum(some - known - dead, 0), np.maximum(p.sum() - chance, 0), live.sum() - known
        )
        strange.append(at + which)
        surprise.append(value)
    found = []
    for a, b in intervals(np.concatenate(strange), np.concatenate(surprise), least).tolist():
        if b - a > SLICE // fb.nchan:
            continue  # the runs of single channels are long enough to be found
        rows = np.ascontiguousarray(fb.block(a, b + 1 - a).T)
        rows = bits_of(rows.astype(rows.dtype.newbyteorder("="), copy=False))
        first, length = np.zeros(fb.nchan, np.int64), np.zeros(fb.nchan, np.int64)
        cpu_dropouts.longest_run(rows, rows.dtype.type(top), first, length)
        which = np.flatnonzero(length >= max(2, len(rows) // 2))
        inner = np.zeros(len(which), np.int64)
        found.append(np.stack([which, a + first[which], a + first[which] + length[which], inner], axis=1))
    return np.concatenate(found) if found else np.empty((0, 4), np.int64)


def rectangles_of(
    runs: NDArray[np.int64], odd: NDArray[np.float64], coarse: bool, long: int, until: int = -1,
    before: NDArray[np.int64] = NO_RECTANGLES,
) -> NDArray[np.int64]:  # fmt: skip
    """Runs as rectangles.

    Runs of a channel that touch are joined, edges that chance moved are corrected to those of other channels, and
    neighbouring channels with the same edges are joined.  Runs that fewer channels than `FEW` share do not count in
    ``coarse`` data, and at the top or the bottom of the range only from ``long`` samples on.

    Parameters
    ----------
    runs : numpy.ndarray of int64, shape (n, 4)
        Channel, first sample, last + 1, and whether the value is at the top or the bottom of the range.  -1 in the last
        column marks a run that is known to be dropped.
    odd : numpy.ndarray
        ``-ln Q`` of each channel.
    coarse : bool
    long : int
    until : int
        End of the data so far: runs that end there share no end with others.
    before : numpy.ndarray of int64, shape (m, 4)
        Earlier runs of other channels, whose edges count, too.
    """
    if not len(runs):
        return NO_RECTANGLES
    slack = np.minimum(np.ceil(8.0 / odd), MOST_SLACK).astype(np.int64)
    starts = _Edges(np.concatenate([runs[:, 1], before[:, 1]]))
    stops = _Edges(np.concatenate([runs[runs[:, 2] != until, 2], before[before[:, 2] != until, 2]]))
    c, a, b, end = runs[np.lexsort((runs[:, 2], runs[:, 1], runs[:, 0]))].T
    shift = c * (int(b.max()) + ISLAND + 1)  # so that the latest end so far is that of a run of the same channel
    latest = np.maximum.accumulate(b + shift)
    fresh = np.flatnonzero(np.append(True, a[1:] + shift[1:] > latest[:-1] + ISLAND))
    c, a, b, end = c[fresh], a[fresh], np.maximum.reduceat(b, fresh), np.minimum.reduceat(end, fresh)
    first = starts.shared(a, np.minimum(b - 1, a + slack[c]))
    last = stops.shared(b, np.maximum(first + 1, b - slack[c]))
    starts = _Edges(np.concatenate([first, before[:, 1]]))
    stops = _Edges(np.concatenate([last[last != until], before[before[:, 2] != until, 2]]))
    alone = np.maximum(starts.count(first), stops.count(last)) < max(2, math.ceil(FEW * math.sqrt(len(odd))))
    dropped = ~alone | (end < 0) | (not coarse and ((end == 0) | (last - first >= long)))
    order = np.lexsort((c, last, first))
    first, last, c = (x[order[dropped[order]]] for x in (first, last, c))
    fresh = (np.diff(first) != 0) | (np.diff(last) != 0) | (np.diff(c) != 1)
    begin, stop = np.append(True, fresh)[: len(c)], np.append(fresh, True)[: len(c)]
    return np.stack([first[begin], last[begin], c[begin], c[stop] + 1], axis=1).astype(np.int64)


class _Edges:
    """First samples of runs, or their ends, with the number of runs that have each."""

    def __init__(self, edges: NDArray[np.int64]) -> None:
        self.values, self.counts = np.unique(edges, return_counts=True)

    def count(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of runs that have each of these edges."""
        if not len(self.values):
            return np.zeros(len(edges), np.int64)
        at = np.minimum(np.searchsorted(self.values, edges), len(self.values) - 1)
        return np.where(self.values[at] == edges, self.counts[at], 0)

    def shared(self, own: NDArray[np.int64], far: NDArray[np.int64]) -> NDArray[np.int64]:
        """The edge that most runs share among those from ``own`` to ``far``, a little inside each run.

        >>> _Edges(np.array([3, 4, 4, 9])).shared(np.array([3, 3, 9]), np.array([5, 3, 4])).tolist()
        [4, 3, 4]
        """
        best, most = own.copy(), self.count(own)
        step, away = np.sign(far - own), np.abs(far - own)
        for distance in range(1, int(away.max(initial=0)) + 1):
            some = np.flatnonzero(away >= distance)
            at = own[some] + distance * step[some]
            count = self.count(at)
            better = count > most[some]
            best[some[better]], most[some[better]] = at[better], count[better]
        return best


def _outside(rects: NDArray[np.int64], gaps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rectangles without the samples in gaps.

    >>> _outside(np.array([[0, 10, 0, 4]]), np.array([[2, 5], [8, 20]])).tolist()
    [[0, 2, 0, 4], [5, 8, 0, 4]]
    """
    if not len(gaps):
        return rects
    found = []
    for first, last, low, high in rects.tolist():
        at = first
        for a, b in gaps.tolist():
            if b <= at or a >= last:
                continue
            if a > at:
                found.append([at, a, low, high])
            at = max(at, b)
        if at < last:
            found.append([at, last, low, high])
    return np.array(found, np.int64).reshape(-1, 4)
