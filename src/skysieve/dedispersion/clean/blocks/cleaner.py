"""Cleaning of samples, block by block: bad channels, narrow-band signals, impulses, steps of the gain.

Blocks begin at fixed sample numbers, and the cleaning of a block depends only on this block, a few samples after it,
and earlier blocks.  Therefore files and streams are cleaned with the same result, whatever the amounts in which samples
are read or arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.observation import Observation

from .gain import (
    LEAST_FIT,
    MOST_STEPS,
    NOISE_ERROR,
    STEEP,
    STEP_BANDS,
    STEP_ERROR,
    WIDE_BANDS,
    Gain,
    GainChange,
    change_of_noise,
    find_drift,
    noise_of,
    subtract_common,
)
from .records import BlockRecord, Records
from .scratch import Scratch, scratch_array
from .steps import AHEAD, LEAST_PIECES, PIECES, piece_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FEW", "LEAST_CHANNELS", "Cleaner", "can_clean"]

LEAST_CHANNELS = 16
"""Data of fewer channels are not cleaned: there is too little to compare."""
LIMIT, BRIGHT = 7.0, 90.0
"""A cell is bad from ``LIMIT`` standard errors on.  With few channels the limit is higher, so that a burst of S/N
``BRIGHT`` in the whole band has no bad cells."""
MOST_CELLS = 0.3
"""Fraction of bad cells from which a channel is bad."""
MOST_GROUPS, LEAST_GROUP = 32, 16
"""Most groups of channels, and fewest channels of a group of more than `FEW_GROUPS`."""
FEW_GROUPS, SMALL_GROUP = 8, 4
"""Number of groups in data of few channels, and the fewest channels of such a group: the groups are small, since radar
fills a small part of the band."""
LEAST_SNR, HARM = 5.5, 4.5
"""Least S/N of an impulse in its own band, and in the whole band."""
WHOLE_DM, PART_DM = 3.0, 10.0
"""Lowest DM of the bursts with which an impulse is compared: bursts in the whole band, and bursts in a part of it."""
MARGIN = 9.0
"""The square of the S/N of an impulse without dispersion exceeds that with dispersion by at least this."""
MOST_CUT, LEAST_CUTS = 0.2, 5
"""If impulses cover more than this part of a block, in at least this many windows, they are taken for hum and stay: to
replace them would remove more of a pulse than the hum does.  Fast radar covers at most a tenth of a block."""
REACH = 2
"""The baseline of the groups is a running median with this many pieces on each side.  It does not follow impulses as
wide as the widest window of the search, of two pieces, but does follow longer bumps of the level."""
ROUNDS, MOST_FOUND = 4, 512
"""How often a block is searched for impulses, and most impulses that are found at a time."""
MOMENT_STEPS, DETECT_STEPS, JUDGE_STEPS = 5.0, 2.0, 500.0
"""Steps of Python's interpreter for a sample, for a sample of a band, and for a group of an impulse."""
WORTH = {"remove": 4.0, "find_step": 8.0}
"""Compile time of functions that few data need, in units of `jit.INTERPRETED_SECONDS`."""
FEW = 2**20
"""Up to this number of values (samples times channels) the interpreter cleans the data before code is compiled."""


def can_clean(obs: Observation) -> bool:
    """Whether data are cleaned: they have enough channels, and are not de-dispersed."""
    return obs.nchan >= LEAST_CHANNELS and obs.dm is None


@dataclass(frozen=True)
class _Channels:
    """Level and sigma of channels, masks of good, bad, always constant and never constant channels, and bad cells."""

    level: NDArray[np.float64]
    sigma: NDArray[np.float64]
    good: NDArray[np.bool_]
    bad: NDArray[np.bool_]
    still: NDArray[np.bool_]
    alive: NDArray[np.bool_]
    cells: NDArray[np.bool_]


class Cleaner:
    """Cleans the blocks of one observation, one after the other.

    Channels that are 0 from the beginning are not changed before the first block in which they are never constant,
    because their data have not begun.

    Parameters
    ----------
    obs : Observation
    dtype : numpy.dtype
    maximum : int
        Largest value of unsigned samples; 0 if it is not known.
    steps : sequence of str
        Names of `steps.CLEANING`.
    ignore : sequence of int
        Channels that are left out of the statistics and are not changed.
    dm_constant : float

    Attributes
    ----------
    given : tuple
        These arguments.
    few : bool
        Whether the data are so few that the interpreter finishes before code is compiled.
    waits : bool
        Whether the data can wait, as those of a file can.  Then functions that few blocks need may be interpreted.
    records : Records
        What was removed so far.
    """

    few = waits = False

    def __init__(
        self, obs: Observation, dtype: np.dtype[Any], maximum: int, steps: Sequence[str], ignore: Iterable[int],
        dm_constant: float,
    ) -> None:  # fmt: skip
        self.given = obs, dtype, maximum, tuple(steps), tuple(ignore), dm_constant
        compared = obs.nchan >= 2 * LEAST_GROUP  # a group alone shows no dispersion
        self.steps = tuple(s for s in steps if compared or s != "impulses") if can_clean(obs) else ()
        self.nchan, self.piece = obs.nchan, piece_samples(obs.tsamp)
        self.block = PIECES * self.piece
        self.ahead = AHEAD * self.piece
        self.positive = np.dtype(dtype).kind == "u"
        dtype = np.dtype(dtype)
        self.dtype = dtype
        self.wide = None if dtype.itemsize == 1 else True
        self.whole = dtype.kind != "f"
        bits = 8 * dtype.itemsize
        self.low = -(2.0 ** (bits - 1)) if dtype.kind == "i" else 0.0
        self.high = 2.0 ** (bits - 1) - 1 if dtype.kind == "i" else float(maximum or 2**bits - 1)
        self._use = np.ones(obs.nchan, bool)
        self._use[list(self.given[4])] = False
        G = max(1, min(MOST_GROUPS, max(obs.nchan // LEAST_GROUP, min(FEW_GROUPS, obs.nchan // SMALL_GROUP))))
        self._edges = np.linspace(0, obs.nchan, G + 1).round().astype(np.int64)
        self._group = np.repeat(np.arange(G), np.diff(self._edges))
        sweep = delay_seconds(obs.freqs, 1.0, obs.top, dm_constant) / obs.tsamp
        late = np.array([sweep[a:b].mean() for a, b in zip(self._edges[:-1], self._edges[1:], strict=True)])
        self._unit = max(float(late[-1] - late[0]), 1e-9)
        self._phase = (late - late[0]) / self._unit
        self._bands, self._thresholds = bands_of(G)
        self._limit = max(LIMIT, BRIGHT / math.sqrt(obs.nchan))
        self._widths = 2 + int(math.log2(self.piece))
        self._memory: Scratch = {}
        self.reset()

    @property
    def groups(self) -> int:
        """Number of groups of channels."""
        return len(self._edges) - 1

    def reset(self) -> None:
        """Forget all blocks."""
        C = self.nchan
        self._known = np.zeros(C, bool)
        self._begun = np.zeros(C, bool)
        self._held = np.zeros(C)
        self._sigma = np.zeros(C)
        self._bad = np.zeros(C, bool)
        self._before: NDArray[np.float32] | None = None
        self._plain: tuple[NDArray[np.float32], NDArray[np.float64]] | None = None
        self._used = np.zeros(self.groups)
        self.records = Records(self.steps, C, self.block, self.piece)
        self._gain = Gain(C)
        self._changes: list[GainChange] = []  # those of the block that is being cleaned

    def clean(self, start: int, rows: NDArray[Any], count: int, writable: bool = False) -> NDArray[Any]:
        """Clean the next block.

        Parameters
        ----------
        start : int
            Number of its first sample: a multiple of ``block``, except in the first one.
        rows : numpy.ndarray, shape (samples, channels)
            The block, and ``ahead`` samples after it, fewer at the end of the data.
        count : int
            Samples of the block, which are cleaned.
        writable : bool
            Whether the samples of the block may be changed in place.

        Returns
        -------
        numpy.ndarray
            The cleaned samples: a view of ``rows`` if nothing was removed, or if they may be changed.
        """
        if not self.steps or not count:
            return rows[:count]
        finite = None
        if not self.whole and not np.isfinite(rows).all():
            finite = np.isfinite(rows)
            rows = np.where(finite, rows, _means(rows, finite)).astype(rows.dtype)
            writable = True
        cleaned = self._clean(start, np.ascontiguousarray(rows), count, writable)
        if finite is not None:
            cleaned[~finite[:count]] = np.nan
        return cleaned

    def _clean(self, start: int, rows: NDArray[Any], n: int, writable: bool) -> NDArray[Any]:
        from . import cpu_cleaner

        q = self.piece
        P = max(1, n // q)
        x = rows
        if self._gain.changed:
            x = rows.copy()
            self._regain(start, x, 0, self._gain.factor, self._gain.offset)
        if P < LEAST_PIECES:
            bad = self._bad & self._use
            level, sigma, fresh = self._held, self._sigma, bad
            cells, windows = np.zeros((P, self.nchan), bool), np.empty((0, 4), np.int64)
            base, size = np.zeros((len(self._used), P)), np.ones(len(self._used))
        else:
            found = self._channels(x[:n])
            windows, base, size = np.empty((0, 4), np.int64), np.zeros((len(self._used), P)), np.ones(len(self._used))
            grouped = found.good.any() and {"impulses", "gain"} & set(self.steps)
            series, context = self._series(x, n, found) if grouped else (np.empty((0, 0), np.float32), 0)
            if "gain" in self.steps and found.good.any():
                x, found, series, context = self._without_steps(start, x, n, found, series, context)
            level, sigma, bad, cells = found.level, found.sigma, found.bad, found.cells
            self._begun |= found.alive
            fresh = found.good | ~self._known
            self._held[fresh], self._sigma[fresh] = level[fresh], sigma[fresh]
            self._known[:] = True
            level[bad] = self._held[bad]
            self._bad = bad.copy()
            if grouped and found.good.any():
                end = context + n
                self._plain = series[:, max(0, end - self.block // 2) : end].copy(), np.where(found.good, level, np.nan)
                if "impulses" in self.steps:
                    windows, base, size = self._impulses(np.ascontiguousarray(series[:, context:]), n, P)
            fresh = bad & ~(found.still & (x[0] == np.rint(level)))  # the others have their value already
        self._note(start, n, bad, cells, windows)
        if not (fresh.any() or cells.any() or len(windows)):
            return x[:n]
        out = x[:n].copy() if x is rows and not writable else x[:n]
        cpu_cleaner.replace(
            out, start, q, fresh, cells, windows, self._group, level, sigma, size, base, self.low, self.high, self.whole
        )
        return out

    def _channels(self, rows: NDArray[Any]) -> _Channels:
        """Level and sigma of the channels of a block, the bad ones, and bad cells."""
        from . import cpu_cleaner

        n, C, q = len(rows), self.nchan, self.piece
        P = n // q
        counts = np.full(P, q, np.int64)
        counts[-1] = n - (P - 1) * q
        kind = np.int32 if self.wide is None else np.float64
        total, square, lag = (np.zeros((P, C), kind) for _ in range(3))
        how = self._how
        how(cpu_cleaner.moments, MOMENT_STEPS * n)(rows, q, self.wide, total, square, lag)
        ends = cpu_cleaner.ends_of(rows, counts)
        mean, var, level, sigma, rho = cpu_cleaner.level_of(total, square, lag, ends, counts)
        dead = ~(sigma > 0) & self._use
        live, bad, cells = self._use & ~dead, np.zeros(C, bool), np.zeros((P, C), bool)
        if {"channels", "cells"} & set(self.steps):
            slow, burst = cpu_cleaner.judge_cells(
                mean, var, counts, level, sigma, live, self._limit, cells, self._rarely
            )
            if "channels" in self.steps:
                cpu_cleaner.judge_channels(n, P, sigma, rho, slow, burst, cells, live, MOST_CELLS, bad)
        if "cells" not in self.steps:
            cells[:] = False
        alive: NDArray[np.bool_] = np.asarray((var > 0).all(axis=0))
        hidden = ~(self._begun | alive) & np.where(self._known, self._held == 0, level == 0)
        bad[hidden] = cells[:, hidden] = False
        good = live & ~bad & ~hidden
        if "channels" in self.steps:
            bad |= dead & ~hidden
        still: NDArray[np.bool_] = np.asarray((total == rows[0] * counts[:, None]).all(axis=0) & (var == 0).all(axis=0))
        return _Channels(level, sigma, good, bad, still, alive, cells)

    def _how(self, kernel: Any, steps: float) -> Callable[..., Any]:
        """A function that runs a kernel that each block needs; ``steps`` is its cost in steps of the interpreter."""
        from skysieve.core.cpu.jit import interpreted_if_small

        return interpreted_if_small(kernel, steps) if self.few else kernel

    def _rarely(self, kernel: Any, steps: float) -> Callable[..., Any]:
        """A function that runs a kernel that few blocks need; ``steps`` is its cost in steps of the interpreter."""
        from skysieve.core.cpu.jit import interpreted_if_small

        return interpreted_if_small(kernel, steps, WORTH.get(kernel.__name__, 1.0)) if self.waits else kernel

    def _note(
        self, start: int, n: int, bad: NDArray[np.bool_], cells: NDArray[np.bool_], windows: NDArray[np.int64]
    ) -> None:
        """Record what is removed from a block of ``n`` samples; ``cells`` are by piece and channel."""
        counts = np.full(len(cells), self.piece, np.int64)
        counts[-1] = n - (len(cells) - 1) * self.piece
        gone = counts @ cells
        cut = np.zeros(self.nchan, np.int64)
        for first, last, low, high in windows.tolist():
            cut[low:high] += last - first
        cut[bad] = 0
        removed = {"channels": n * int(bad.sum()), "cells": int(gone.sum()), "impulses": int(cut.sum())}
        self.records.count(start, n, removed)
        self._add(start, n, bad, cells, windows, bad | (2 * (gone + cut) >= n))

    def _add(
        self, start: int, n: int, bad: NDArray[np.bool_], cells: NDArray[np.bool_], windows: NDArray[np.int64],
        lost: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Add the record of a block, with the changes of the gain in it."""
        self.records.add(BlockRecord.of(start, n, bad, cells, windows, self._changes), lost)
        self._changes = []

    def _regain(
        self, start: int, rows: NDArray[Any], first: int, factor: NDArray[np.float64], offset: NDArray[np.float64]
    ) -> None:
        from . import cpu_cleaner

        cpu_cleaner.regain(rows, start, first, factor, offset, self._gain.rough, self.low, self.high, self.whole)
        self._changes.append(self._gain.change(first, factor, offset))

    def _series(self, rows: NDArray[Any], n: int, found: _Channels) -> tuple[NDArray[np.float32], int]:
        """Sums of groups of channels, from up to half a block before the block to the last of ``rows``.

        Returns them, in units of their noise, and the number of samples before the block.
        """
        from . import cpu_cleaner

        good, sigma = found.good, found.sigma
        weights = np.zeros(self.nchan, np.int32)
        if good.any():
            weights[good] = np.clip(np.rint(16 * np.median(sigma[good]) / sigma[good]), 1, 64)
        ahead = len(rows) - n
        P = len(found.cells)
        cells = np.concatenate([found.cells, np.zeros((max(0, (ahead + n) // self.piece - P), self.nchan), bool)])
        power = (weights * sigma) ** 2
        size = cpu_cleaner.group_sizes(power, cells, self._edges)
        self._used = np.add.reduceat(good.astype(np.float64), self._edges[:-1])
        context = 0 if self._plain is None else self._plain[0].shape[1]
        series = np.empty((len(self._used), context + len(rows)), np.float32)
        self._how(cpu_cleaner.group_series, cpu_cleaner.SERIES_STEPS * series.size + cells.size)(
            rows, self.piece, self.wide, weights, cells, found.level, self._edges, size, context, series
        )
        self._join(series, context, found.level, weights, power)
        return series, context

    def _join(
        self, series: NDArray[np.float32], context: int, level: NDArray[np.float64], weights: NDArray[np.int32],
        power: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Set the first samples of ``series`` to the samples before the block, in the units of the block's noise."""
        if self._plain is not None:
            before, past = self._plain
            shift = np.add.reduceat(np.nan_to_num((past - level) * weights), self._edges[:-1])
            whole = np.sqrt(np.add.reduceat(power, self._edges[:-1]))
            np.divide(shift, whole, out=shift, where=whole > 0)  # a group without channels has no shift
            series[:, :context] = before + shift[:, None]

    def _without_steps(
        self, start: int, rows: NDArray[Any], n: int, found: _Channels, series: NDArray[np.float32], context: int
    ) -> tuple[NDArray[Any], _Channels, NDArray[np.float32], int]:
        """Rows whose steps of the gain are undone, their channels, and the results of `_series` for them.

        Steps are found one after the other, the strongest first.  Each step is measured between the steps before and
        after it; the step after it may lie after the block.  As long as there may be more steps, only few pieces beside
        a step are used.
        """
        strongest, places = self._find_step(series, context, n), list[tuple[int, int]]()
        if strongest is None:
            return rows, found, series, context
        gain, jumps = self._gain, self.records.jumps
        before = gain.factor, gain.offset, len(self._changes), len(jumps)

        def undone(stop: int, reach: int) -> tuple[NDArray[Any], _Channels, NDArray[np.float32], int]:
            gain.factor, gain.offset = before[0].copy(), before[1].copy()
            del self._changes[before[2] :], jumps[before[3] :]
            out = rows.copy()
            for i, one in enumerate(places):
                ends = places[i - 1][0] if i else -1, places[i + 1][0] if i + 1 < len(places) else -1
                step = None
                if one[0] < context + stop:
                    step = self._step(start, rows, series, context, found, one, ends, reach)
                if step is not None:
                    self._regain(start, out, step[0], *step[1:])
            if len(self._changes) == before[2]:
                return rows, found, series, context
            now = self._channels(out[:n])
            return (out, now, *self._series(out, n, now))

        result = rows, found, series, context
        while strongest is not None and len(places) < MOST_STEPS:
            if any(abs(strongest[0] - at) < self.piece for at, _ in places):
                break
            places = sorted([*places, strongest])
            result = undone(len(rows), LEAST_FIT)
            strongest = self._find_step(result[2], context, len(rows)) if result[0] is not rows else None
        return undone(n, PIECES // 2)

    def _step(
        self, start: int, rows: NDArray[Any], series: NDArray[np.float32], context: int, found: _Channels,
        place: tuple[int, int], ends: tuple[int, int], reach: int,
    ) -> tuple[int, NDArray[np.float64], NDArray[np.float64]] | None:  # fmt: skip
        """The first sample after a step of the gain, and the factor and offset that undo it; None if no group shows it.

        Parameters
        ----------
        start, rows, series, context, found
            As for `_without_steps`.
        place : (int, int)
            Sample of the series, and number of the band.
        ends : (int, int)
            Samples of the steps before and after it; -1 for none.
        reach : int
            Largest number of pieces on each side from which the size of the step is measured.
        """
        from . import cpu_cleaner, cpu_impulses

        (at, band), C, q = place, self.nchan, self.piece
        begin, end = max(ends[0], 0), ends[1] if ends[1] >= 0 else series.shape[1]
        jumps, error = np.zeros(len(series)), np.zeros(1)
        low, high = self._bands[band]
        groups: NDArray[np.bool_] = np.zeros(len(series), bool)
        seen = np.ascontiguousarray(series[:, begin:end])
        if band >= WIDE_BANDS:  # is the step in this part of the band alone?
            other = np.ascontiguousarray(subtract_common(series, self._used, context, q)[:, begin:end])
            own = np.zeros(len(series))
            cpu_impulses.group_jumps(seen, at - begin, LEAST_FIT * q, jumps, error)
            cpu_impulses.group_jumps(other, at - begin, LEAST_FIT * q, own, error)
            seen = other if abs(own[low:high].sum()) > 0.5 * abs(jumps[low:high].sum()) else seen
        for far in (LEAST_FIT * q, self.block // 2):
            cpu_impulses.group_jumps(seen, at - begin, far, jumps, error)
            groups |= jumps * np.sign(jumps[low:high].sum()) > 4 * error[0]
        groups &= self._used > 0
        which = found.good & groups[self._group]
        first = max(0, at - context)
        before, after = np.zeros(C), np.zeros(C)
        later = min(reach, (end - context - first) // q)
        earlier = min(reach, (first - max(0, begin - context)) // q)
        if later < 1 or not which.any():
            return None
        held = earlier < 4 and ends[0] < context
        if not held and min(earlier, later) < LEAST_FIT:
            earlier, later = min(earlier, LEAST_FIT), min(later, LEAST_FIT)
        cpu_cleaner.level_beside(rows, first, q, np.empty((later, C)), after)
        if held:
            which &= self._known
            before = self._held.copy()
        else:
            cpu_cleaner.level_beside(rows, first - earlier * q, q, np.empty((earlier, C)), before)
        past = math.nan
        if held and which.any():
            past = float(np.median((before[which] - found.level[which]) / found.sigma[which]))
        drifted = find_drift(
            series[groups], self._used[groups], at, (min(reach, (at - begin) // q), later, earlier), past, q
        )
        before -= drifted[0] * found.sigma
        after -= drifted[1] * found.sigma
        if self.positive:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = before / after
            which &= (ratio > 0.5) & (ratio < 2)
        if not which.any():
            return None
        if held:
            noise, counts = (self._sigma, found.sigma), (len(rows), len(rows))
        else:
            counts = min(first, first - begin + context, self.block // 2), min(len(rows), end - context) - first
            counts = counts[0], min(counts[1], self.block // 2)
            noise = noise_of(rows[first - counts[0] : first]), noise_of(rows[first : first + counts[1]])
        change, unsure = change_of_noise(noise[0][which], noise[1][which], counts)
        undo = self._gain.from_levels if self.positive else self._gain.from_noise
        undone = undo(which, before, after, found.sigma, change, unsure) if abs(change) > NOISE_ERROR * unsure else None
        if undone is None:
            return None
        factor, offset = undone
        self._gain.add(factor, offset, found.sigma < cpu_cleaner.ROUGH)
        self.records.jumps.append((start + first, int(which.sum())))
        return first, factor, offset

    def _find_step(self, series: NDArray[np.float32], context: int, n: int) -> tuple[int, int] | None:
        """The sample of the series at which the strongest step of the gain is, and the number of its band.

        A step in a part of the band is sought relative to the rest of the band, so that drifts of the level cancel.
        """
        from . import cpu_cleaner, cpu_impulses

        out = np.zeros(2, np.int64)
        groups, n_all = series.shape
        whole = (n_all - context % self.piece) // self.piece
        each = np.zeros((groups + 1, whole))
        sought = (self.piece, context, n, STEP_ERROR)
        work = np.empty(whole), np.empty(whole), np.empty(n_all), np.empty(n_all), np.empty(16), np.empty(groups)
        find = self._rarely(cpu_impulses.find_step, 2 * cpu_cleaner.SERIES_STEPS * series.size)
        for first in (0, WIDE_BANDS):
            some = self._bands[first:STEP_BANDS]
            if first:
                series = subtract_common(series, self._used, context, self.piece)
            if not len(some) or not cpu_impulses.changes(series, self._used, some, *sought, each):
                return None
            if find(series, self._used, some, each, *sought, STEEP, work, out):
                return int(out[0]), first + int(out[1])
        return None

    def _impulses(
        self, series: NDArray[np.float32], n: int, pieces: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Windows of impulses (samples and channels), the baseline of the groups, and its unit in sigma.

        ``series`` are those of the block and of the samples after it.
        """
        base = self._flatten(series, pieces)
        return self._examine(series, n), base, 1 / np.sqrt(np.maximum(self._used, 1.0))

    def _flatten(self, series: NDArray[np.float32], pieces: int) -> NDArray[np.float64]:
        """Subtract the running median from the groups of a block of ``pieces`` pieces; returns the median by piece."""
        from . import cpu_cleaner

        base = np.zeros((len(series), max(pieces, series.shape[1] // self.piece)))
        how = self._how(cpu_cleaner.baseline, 2 * cpu_cleaner.SERIES_STEPS * series.size)
        how(series, self.piece, REACH, base)
        return base

    def _examine(self, series: NDArray[np.float32], n: int) -> NDArray[np.int64]:
        """Windows of impulses (samples and channels) in series without their baseline; the next block needs them."""
        windows, self._before = self._examined(series, n, self._before, self._used, self._memory)
        return windows

    def _examined(
        self, series: NDArray[np.float32], n: int, before: NDArray[np.float32] | None, used: NDArray[np.float64],
        memory: Scratch,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:  # fmt: skip
        """The windows of impulses in a block, and the last half of it without them.

        Parameters
        ----------
        series
            Series of the block of ``n`` samples, and of the samples after it.
        before
            The last half of the block before it.
        used
            Good channels of each group.
        memory
            Arrays that are used again for each block.
        """
        from . import cpu_cleaner, cpu_impulses

        groups, context = len(used), 0 if before is None else before.shape[1]
        joined = scratch_array(memory, "series", (groups, context + series.shape[1]), np.float32)
        if before is not None:
            joined[:, :context] = before
        joined[:, context:] = series
        found = np.zeros((MOST_FOUND, 4))
        kept: list[NDArray[np.int64]] = []
        cut_room, left_room, done = (np.zeros((MOST_FOUND, 4), np.int64) for _ in range(3))
        y, sums = np.empty(n, np.float32), scratch_array(memory, "sums", (groups + 1, n), np.float32)
        prefix = scratch_array(memory, "prefix", (groups, joined.shape[1] + 1), np.float64)
        place = np.zeros(2, np.int64)
        sums[0] = prefix[:, 0] = 0
        steps = cpu_cleaner.SERIES_STEPS * joined.size
        for _ in range(ROUNDS):
            count = self._how(cpu_impulses.detect, steps + DETECT_STEPS * n * len(self._bands))(
                joined, used, self._bands, self._thresholds, context, context + n, self._widths, y, sums, found
            )
            if not count:
                break
            order = np.argsort(-found[:count, 0], kind="stable")  # the strongest first
            cut, _ = self._rarely(cpu_impulses.remove, steps + JUDGE_STEPS * count * groups)(
                joined, used, self._bands, found, order, context, context + n, self._phase, self._unit, WHOLE_DM,
                PART_DM, MARGIN, prefix, done, place, cut_room, left_room,
            )  # fmt: skip
            if not cut:
                break
            kept.append(cut_room[:cut].copy())
        windows = np.concatenate(kept) if kept else np.empty((0, 4), np.int64)
        windows[:, 2:] = self._edges[windows[:, 2:]]
        if len(windows) >= LEAST_CUTS:
            cut = (windows[:, 1] - windows[:, 0]) @ (windows[:, 3] - windows[:, 2])
            if cut > MOST_CUT * n * self.nchan:
                windows, joined[:, context:] = windows[:0], series
                self.records.hum.append(n)
        return windows, self._last_half(joined, context + n)

    def _last_half(self, series: NDArray[np.float32], end: int) -> NDArray[np.float32]:
        """A copy of the samples of half a block before ``end``."""
        return series[:, max(0, end - self.block // 2) : end].copy()

    def regained(self, start: int, rows: NDArray[Any]) -> NDArray[Any]:
        """Samples from ``start`` on, read again, with the gains that they had when they were cleaned."""
        from . import cpu_cleaner

        out = rows
        for block in self.records.touched(start, start + len(rows)):
            for gain in block.gains:
                out = rows.copy() if out is rows else out
                low = max(start, block.start)
                part = out[low - start : block.start + block.count - start]
                rough = np.unpackbits(gain.rough, count=self.nchan).astype(bool)
                first = max(0, gain.first - (low - block.start))
                cpu_cleaner.regain(
                    part, low, first, gain.factor, gain.offset, rough, self.low, self.high, self.whole
                )  # fmt: skip
        return out


def bands_of(groups: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Bands of groups in which impulses are sought, each half as wide as the one before, and their thresholds.

    >>> bands_of(4)[0].tolist()
    [[0, 4], [0, 2], [1, 3], [2, 4]]
    """
    found: list[tuple[int, int]] = []
    width = groups
    while width >= max(1, groups // 16) and (width > 1 or not found):
        step = max(1, width // 2)
        found += [(low, low + width) for low in range(0, groups - width + 1, step)]
        width //= 2
    bands = np.array(found, np.int64)
    part = (bands[:, 1] - bands[:, 0]) / groups
    return bands, np.maximum(LEAST_SNR, HARM / np.sqrt(part))


def _means(rows: NDArray[Any], finite: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean of the finite values of each channel; 0 without any."""
    total = np.where(finite, rows, 0).sum(axis=0, dtype=np.float64)
    means: NDArray[np.float64] = total / np.maximum(finite.sum(axis=0), 1)
    return means
