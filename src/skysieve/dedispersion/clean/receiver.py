"""Cleaning of samples, block by block: bad channels, narrow-band signals, impulses, steps of the gain.

Blocks begin at fixed sample numbers, and the cleaning of a block depends only on this block, a few samples after it,
and earlier blocks.  Therefore files and streams are cleaned with the same result, whatever the amounts in which samples
are read or arrive.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation

from .masks import Mask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.filterbank import Filterbank

    from .dropouts import Watch

__all__ = [
    "CLEANING", "CleanReader", "Cleaner", "Removed", "Scratch", "SpareScratch", "cleaning_steps", "parse_steps",
    "scratch_array",
]  # fmt: skip

Scratch = dict[str, Any]
"""Arrays by name; see `scratch_array`."""


class SpareScratch:
    """Scratch memory of threads, which other threads use again; any of them may call any method at any time."""

    def __init__(self) -> None:
        self._spare: deque[Scratch] = deque()

    def take(self) -> Scratch:
        """Return the memory that was given back last, or new memory."""
        try:
            return self._spare.pop()
        except IndexError:
            return {}

    def give_back(self, memory: Scratch) -> None:
        """Leave memory for the next thread that takes some."""
        self._spare.append(memory)

    def clear(self) -> None:
        """Free all memory that no thread uses."""
        self._spare.clear()


@dataclass(frozen=True)
class Step:
    """A step of the cleaning.

    Attributes
    ----------
    help : str
    usual : bool
        Whether it is done by default: it costs less than 1% of the S/N in clean noise.
    """

    help: str
    usual: bool = True


StepName = Literal["gain", "channels", "cells", "impulses"]
CLEANING: dict[StepName, Step] = {
    "gain": Step("steps of the gain, in all or part of the band, are undone"),
    "channels": Step(
        "bad channels are left out; they are found by autocorrelation, slow or intermittent changes, and sigma"
    ),
    "cells": Step("narrow-band signals are replaced by noise, channel by channel in pieces of about 16 ms"),
    "impulses": Step(
        "pulses that are stronger at DM 0 than at any DM of 3 or more (10 or more in a part of the band), such as "
        "radar, are replaced by noise"
    ),
}
"""Steps of the cleaning, in the order in which they are done."""

PIECE_SECONDS, LEAST_PIECE, MOST_PIECE = 0.016, 16, 512
"""Length of the pieces from which statistics are computed: in seconds, and its limits in samples."""
PIECES = 32
"""Pieces of a block."""
LEAST_PIECES = 8
"""A last block of fewer pieces is cleaned with the statistics of the block before it."""
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
STEP_ERROR, STEEP, MOST_STEPS = 10.0, 0.6, 4
"""Smallest step of the gain in standard errors, smallest fraction of it that happens at once, and largest number of
steps in a block."""
STEP_BANDS = 1 + 3 + 7
"""Bands in which steps are sought: the widest ones."""
WIDE_BANDS = 1 + 3
"""Bands of these that have half of the channels or more."""
LEAST_FIT = 4
"""Fewest pieces on each side of a step to which a drift is fitted: a line, or a cubic with twice as many pieces."""
NOISE_SHARE, NOISE_ERROR = 2.0, 2.5
"""The logarithms of the changes of noise and level at a step of the gain differ by less than this factor (in unsigned
samples), and that of the noise is more than this many times its error."""
IMPULSIVE = 4.0
"""Differences of neighbouring samples do not count as noise if their sum over the band is larger than this many
standard deviations."""
NOISE_ROWS = 64
"""Rows of which differences are computed at a time, so that they stay in the caches."""
RESTORED = 4.0
"""A gain that is estimated from the noise, and is within this many errors of the gain at the beginning, is set to the
gain at the beginning."""
DRIFTED = 2.0
"""Standard errors from which on a drift counts."""
SAME = 0.02
"""If a step brings the gain back to that at the beginning, within this many sigma of a channel, that gain is restored
exactly."""
AHEAD = 8
"""Pieces after a block that are examined with it."""
ROUNDS, MOST_FOUND = 4, 512
KEPT = 2
"""Number of blocks that a reader holds, since an engine reads a few samples again for each chunk."""
MOMENT_STEPS, DETECT_STEPS, JUDGE_STEPS = 5.0, 2.0, 500.0
"""Steps of Python's interpreter for a sample, for a sample of a band, and for a group of an impulse."""
WORTH = {"remove": 4.0, "find_step": 8.0}
"""Compile time of functions that few data need, in units of `jit.INTERPRETED_SECONDS`."""
FEW = 2**20
"""Up to this number of values (samples times channels) the interpreter cleans the data before code is compiled."""


Clean = bool | StepName | Sequence[StepName] | None
"""Type of the argument of `cleaning_steps`."""


def cleaning_steps(clean: Clean) -> tuple[StepName, ...]:
    """The names of the requested steps, in the order in which they are done.

    Parameters
    ----------
    clean : bool, str, sequence of str or None
        None or True for the usual steps, False for none, or names of `CLEANING`.

    Raises
    ------
    ValueError
        A name is not one of `CLEANING`.

    Examples
    --------
    >>> cleaning_steps(None), cleaning_steps(["impulses", "channels"]), cleaning_steps(False)
    (('gain', 'channels', 'cells', 'impulses'), ('channels', 'impulses'), ())
    """
    if clean is None or isinstance(clean, (bool, np.bool_)):
        return tuple(name for name, step in CLEANING.items() if step.usual) if clean is None or clean else ()
    given = [clean] if isinstance(clean, str) else list(clean)
    unknown = [name for name in given if name not in CLEANING]
    if unknown:
        raise ValueError(f"clean={clean!r}: expected None, True, False or some of {', '.join(map(repr, CLEANING))}")
    return tuple(name for name in CLEANING if name in given)


CLEAN_HELP = (
    "What to remove before the search: all, none, or a list of: "
    + "; ".join(f"{name} ({step.help})" for name, step in CLEANING.items())
    + f". The default is all: {','.join(cleaning_steps(None))}."
)
"""Help of the option ``--clean``."""
VETO_HELP = (
    "Check each candidate again, and leave out those that look like interference: as strong at DM 0, in a narrow part "
    "of the band, at the end of the data, or beside an uneven level. The default is --veto, and --no-veto with --clean "
    "none."
)
"""Help of the option ``--veto``."""


def parse_steps(text: str | None, name: str) -> tuple[StepName, ...] | None:
    """Read ``all``, ``none``, or a list of steps; None, where no option is given, stays None.

    >>> parse_steps("channels,impulses", "--clean")
    ('channels', 'impulses')
    """
    if text is None:
        return None
    if text in ("all", "none"):
        return cleaning_steps(text == "all")
    given: Any = [part.strip() for part in text.split(",")]
    if any(part not in CLEANING for part in given):
        raise ValueError(f"{name} {text}: expected all, none, or some of {','.join(CLEANING)}")
    return cleaning_steps(given)


def piece_samples(tsamp: float) -> int:
    """Samples of a piece: a power of two.

    >>> piece_samples(512e-6)
    32
    """
    return int(min(max(2 ** round(math.log2(PIECE_SECONDS / tsamp)), LEAST_PIECE), MOST_PIECE))


def can_clean(obs: Observation) -> bool:
    """Whether data are cleaned: they have enough channels, and are not de-dispersed."""
    return obs.nchan >= LEAST_CHANNELS and obs.dm is None


@dataclass(frozen=True, eq=False)
class Removed:
    """What was removed from data.

    Attributes
    ----------
    steps : tuple of str
        The steps that were done.
    cells : numpy.ndarray of bool, shape (nchan, nblocks)
        Blocks of channels of which at least half of the samples were removed.
    block : int
        Samples of a block.
    windows : numpy.ndarray of int64, shape (n, 4)
        Impulses: first sample, last + 1, first row, last + 1.
    parts : dict of str to float
        Fraction of the samples that each step removed.
    hum : int
        Number of blocks whose impulses were not removed, because there were so many of them: hum of the mains, or a
        noise diode.
    """

    steps: tuple[str, ...]
    cells: NDArray[np.bool_]
    block: int
    windows: NDArray[np.int64]
    parts: dict[str, float]
    hum: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))  # files hold lists

    @property
    def any(self) -> bool:
        """Whether the summary says more than that nothing was removed."""
        return any(self.parts.values()) or self.hum > 0

    @property
    def mask(self) -> Mask:
        """The cells as a mask, which `write_rfifind` saves."""
        return Mask(self.cells, self.block)

    def summary(self) -> str:
        """A line for people."""
        if not self.steps:
            return "not cleaned"
        names = [f"{name} {self.parts[name]:.2%}" for name in self.steps]
        if "impulses" in self.steps:
            names[self.steps.index("impulses")] += f" ({len(self.windows)})"
        text = f"cleaned: {', '.join(names)} of the data"
        if self.hum:
            text += f"; hum in {self.hum} block{'s' if self.hum != 1 else ''} of {self.block} samples was not removed"
        return text


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


@dataclass(frozen=True)
class _Gain:
    """A change of the gain of each channel from sample ``first`` of a block on.

    ``rough`` is a packed mask of channels with few levels, whose samples are rounded at random.
    """

    first: int
    factor: NDArray[np.float64]
    offset: NDArray[np.float64]
    rough: NDArray[np.uint8]


@dataclass(frozen=True)
class _Block:
    """A record of the cleaning of a block.

    It has masks of bad channels and of bad cells by piece (both packed), the windows of impulses relative to the start
    of the block, and changes of the gain.
    """

    start: int
    count: int
    bad: NDArray[np.uint8] | None
    cells: NDArray[np.uint8] | None
    windows: NDArray[np.int64] | None
    gains: tuple[_Gain, ...]

    @classmethod
    def of(
        cls, start: int, count: int, bad: NDArray[np.bool_], cells: NDArray[np.bool_], windows: NDArray[np.int64],
        gains: Sequence[_Gain],
    ) -> _Block:  # fmt: skip
        return cls(
            start, count, np.packbits(bad) if bad.any() else None, np.packbits(cells, axis=1) if cells.any() else None,
            windows if len(windows) else None, tuple(gains),
        )  # fmt: skip

    def show(self, out: NDArray[np.bool_], start: int, piece: int) -> None:
        """Set what was replaced in ``out``, shape (samples, channels), whose first sample is ``start``."""
        at, nchan = self.start - start, out.shape[1]
        rows = out[max(0, at) : max(0, at + self.count)]
        if self.bad is not None:
            rows[:, np.unpackbits(self.bad, count=nchan).astype(bool)] = True
        if self.cells is not None and len(rows):
            cells = np.unpackbits(self.cells, axis=1, count=nchan).astype(bool)
            which = np.minimum((np.arange(len(rows)) + max(0, at) - at) // piece, len(cells) - 1)
            rows |= cells[which]
        if self.windows is not None:
            for first, last, low, high in self.windows.tolist():
                out[max(0, at + first) : max(0, at + last), low:high] = True


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
        Names of `CLEANING`.
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
        self._factor, self._offset, self._rough = np.ones(C), np.zeros(C), np.zeros(C, bool)
        self._used = np.zeros(self.groups)
        self.jumps: list[tuple[int, int]] = []
        self._samples = 0
        self._counts = dict.fromkeys(self.steps, 0)
        self._cells: list[NDArray[np.uint8]] = []
        self._windows: list[NDArray[np.int64]] = []
        self._hum: list[int] = []  # an entry for each block with hum; several threads append
        self._first = -1
        self._blocks: list[_Block] = []
        self._gains: list[_Gain] = []

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
        from . import cpu_receiver

        q = self.piece
        P = max(1, n // q)
        x = rows
        if self._changed():
            x = rows.copy()
            self._regain(start, x, 0, self._factor, self._offset)
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
        counts = np.full(P, q, np.int64)
        counts[-1] = n - (P - 1) * q
        self._note(start, n, bad, cells, counts, windows)
        self._keep_record(start, n, bad, cells, windows)
        if not (fresh.any() or cells.any() or len(windows)):
            return x[:n]
        out = x[:n].copy() if x is rows and not writable else x[:n]
        cpu_receiver.replace(
            out, start, q, fresh, cells, windows, self._group, level, sigma, size, base, self.low, self.high, self.whole
        )
        return out

    def _channels(self, rows: NDArray[Any]) -> _Channels:
        """Level and sigma of the channels of a block, the bad ones, and bad cells."""
        from . import cpu_receiver

        n, C, q = len(rows), self.nchan, self.piece
        P = n // q
        counts = np.full(P, q, np.int64)
        counts[-1] = n - (P - 1) * q
        kind = np.int32 if self.wide is None else np.float64
        total, square, lag = (np.zeros((P, C), kind) for _ in range(3))
        how = self._how
        how(cpu_receiver.moments, MOMENT_STEPS * n)(rows, q, self.wide, total, square, lag)
        mean, var, level, sigma, rho = cpu_receiver.level_of(total, square, lag, counts)
        dead = ~(sigma > 0) & self._use
        live, bad, cells = self._use & ~dead, np.zeros(C, bool), np.zeros((P, C), bool)
        if {"channels", "cells"} & set(self.steps):
            slow, burst = cpu_receiver.judge_cells(
                mean, var, counts, level, sigma, live, self._limit, cells, self._rarely
            )  # fmt: skip
            if "channels" in self.steps:
                cpu_receiver.judge_channels(n, P, sigma, rho, slow, burst, cells, live, MOST_CELLS, bad)
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

    def _changed(self) -> bool:
        """Whether the gain of any channel differs from that at the beginning."""
        return bool((self._factor != 1).any() or self._offset.any())

    def _regain(
        self, start: int, rows: NDArray[Any], first: int, factor: NDArray[np.float64], offset: NDArray[np.float64]
    ) -> None:  # fmt: skip
        from . import cpu_receiver

        cpu_receiver.regain(rows, start, first, factor, offset, self._rough, self.low, self.high, self.whole)
        self._gains.append(self._gain(first, factor, offset))

    def _gain(self, first: int, factor: NDArray[np.float64], offset: NDArray[np.float64]) -> _Gain:
        """A change of the gain, as it is kept."""
        return _Gain(first, factor.copy(), offset.copy(), np.packbits(self._rough))

    def _series(self, rows: NDArray[Any], n: int, found: _Channels) -> tuple[NDArray[np.float32], int]:
        """Sums of groups of channels, from up to half a block before the block to the last of ``rows``.

        Returns them, in units of their noise, and the number of samples before the block.
        """
        from . import cpu_receiver

        good, sigma = found.good, found.sigma
        weights = np.zeros(self.nchan, np.int32)
        if good.any():
            weights[good] = np.clip(np.rint(16 * np.median(sigma[good]) / sigma[good]), 1, 64)
        ahead = len(rows) - n
        P = len(found.cells)
        cells = np.concatenate([found.cells, np.zeros((max(0, (ahead + n) // self.piece - P), self.nchan), bool)])
        power = (weights * sigma) ** 2
        size = cpu_receiver.group_sizes(power, cells, self._edges)
        self._used = np.add.reduceat(good.astype(np.float64), self._edges[:-1])
        context = 0 if self._plain is None else self._plain[0].shape[1]
        series = np.empty((len(self._used), context + len(rows)), np.float32)
        self._how(cpu_receiver.group_series, cpu_receiver.SERIES_STEPS * series.size + cells.size)(
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
            series[:, :context] = before + (shift / np.maximum(whole, 1e-9))[:, None]

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
        before = self._factor, self._offset, len(self._gains), len(self.jumps)

        def undone(stop: int, reach: int) -> tuple[NDArray[Any], _Channels, NDArray[np.float32], int]:
            self._factor, self._offset = before[0].copy(), before[1].copy()
            del self._gains[before[2] :], self.jumps[before[3] :]
            out = rows.copy()
            for i, one in enumerate(places):
                ends = places[i - 1][0] if i else -1, places[i + 1][0] if i + 1 < len(places) else -1
                step = None
                if one[0] < context + stop:
                    step = self._step(start, rows, series, context, found, one, ends, reach)
                if step is not None:
                    self._regain(start, out, step[0], *step[1:])
            if len(self._gains) == before[2]:
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
        from . import cpu_impulses, cpu_receiver

        (at, band), C, q = place, self.nchan, self.piece
        begin, end = max(ends[0], 0), ends[1] if ends[1] >= 0 else series.shape[1]
        jumps, error = np.zeros(len(series)), np.zeros(1)
        low, high = self._bands[band]
        groups: NDArray[np.bool_] = np.zeros(len(series), bool)
        seen = np.ascontiguousarray(series[:, begin:end])
        if band >= WIDE_BANDS:  # is the step in this part of the band alone?
            other, own = np.ascontiguousarray(self._against_rest(series, context)[:, begin:end]), np.zeros(len(series))
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
        cpu_receiver.level_beside(rows, first, q, np.empty((later, C)), after)
        if held:
            which &= self._known
            before = self._held.copy()
        else:
            cpu_receiver.level_beside(rows, first - earlier * q, q, np.empty((earlier, C)), before)
        past = math.nan
        if held and which.any():
            past = float(np.median((before[which] - found.level[which]) / found.sigma[which]))
        drifted = self._drifted(
            series[groups], self._used[groups], at, (min(reach, (at - begin) // q), later, earlier), past
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
            noise = _noise(rows[first - counts[0] : first]), _noise(rows[first : first + counts[1]])
        change, unsure = _change_of_noise(noise[0][which], noise[1][which], counts)
        undo = self._from_levels if self.positive else self._from_noise
        undone = undo(which, before, after, found.sigma, change, unsure) if abs(change) > NOISE_ERROR * unsure else None
        if undone is None:
            return None
        factor, offset = undone
        self._rough = found.sigma < cpu_receiver.ROUGH
        self._factor = self._factor * factor
        self._offset = self._offset * factor + offset
        self.jumps.append((start + first, int(which.sum())))
        return first, factor, offset

    def _from_levels(
        self, which: NDArray[np.bool_], before: NDArray[np.float64], after: NDArray[np.float64],
        sigma: NDArray[np.float64], change: float, error: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:  # fmt: skip
        """Factor and offset that undo a step of the gain, from the levels of the channels ``which``.

        None if the noise, whose logarithm changes by ``change``, does not change with the levels.
        """
        ratio = before[which] / after[which]
        level = float(np.median(np.log(ratio)))
        if not 1 / NOISE_SHARE < (change / level if level else math.inf) < NOISE_SHARE:
            return None
        factor = np.ones(self.nchan)
        factor[which] = ratio
        if abs(np.mean((self._factor[which] * ratio - 1) * before[which] / sigma[which])) < SAME:
            factor[which] = 1 / self._factor[which]
        return factor, np.zeros(self.nchan)

    def _from_noise(
        self, which: NDArray[np.bool_], before: NDArray[np.float64], after: NDArray[np.float64],
        sigma: NDArray[np.float64], change: float, error: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:  # fmt: skip
        """Factor and offset that undo a step of the gain, from the noise of the band.

        This replaces `_from_levels` where the levels are not proportional to the gain, as after the mean was
        subtracted.  None if the noise and the level do not change in the same direction, or if the noise changes more
        than twofold.  If the gain is within `RESTORED` errors of the gain at the beginning, that gain is restored.
        """
        rise = float(np.median((before - after)[which] / sigma[which]))
        if change * rise <= 0 or abs(change) > math.log(2):
            return None
        factor = np.where(which, math.exp(change), 1.0)
        again = which & (np.abs(np.log(self._factor) + change) < RESTORED * error)
        factor[again] = 1 / self._factor[again]
        offset = np.where(which, after * factor - before, 0.0)
        if again.any() and abs(np.mean((self._offset * factor + offset)[again] / sigma[again])) < SAME:
            offset[again] = -self._offset[again] * factor[again]
        return factor, offset

    def _drifted(
        self, series: NDArray[np.float32], members: NDArray[np.float64], at: int, pieces: tuple[int, int, int],
        past: float,
    ) -> tuple[float, float]:  # fmt: skip
        """The change of the measured levels before and after a step that a drift has caused, in sigma.

        A step and a line, or a cubic, are fitted to the means of the pieces beside the step; each is a median over the
        groups, which spares bursts.

        Parameters
        ----------
        series : array of float32, shape (groups, samples)
            Series of the groups that show the step, in units of their noise.
        members : numpy.ndarray
            Number of channels of each group.
        at : int
            Sample of the step.
        pieces : (int, int, int)
            Number of pieces before the step, after it, and before it from which the level was measured.
        past : float
            The level before the step relative to that of the block, in sigma, if it was not measured from these pieces;
            NaN otherwise.
        """
        early, late, used = pieces
        if min(early, late) < LEAST_FIT:
            return 0.0, 0.0
        q = self.piece
        part = series[:, at - early * q : at + late * q].reshape(len(series), -1, q)
        y = np.median(part.mean(axis=2) / np.sqrt(members)[:, None], axis=0)
        error = 1.25 / math.sqrt(q * members.sum())
        t = (np.arange(early + late) + 0.5 - early) / (PIECES // 2)
        order = 3 if min(early, late) >= 2 * LEAST_FIT else 1
        model = np.stack([np.ones(len(t)), t > 0, *(t**k for k in range(1, order + 1))], axis=1)
        keep = np.ones(len(y), bool)
        for _ in range(ROUNDS):
            found = np.linalg.lstsq(model[keep], y[keep], rcond=None)[0]
            keep = np.abs(y - model @ found) < 4 * error
            if min(keep[:early].sum(), keep[early:].sum()) <= order:
                return 0.0, 0.0
        drift = model[:, 2:] @ found[2:]
        after = float(np.median(drift[early:]))
        before = float(np.median(drift[early - used : early])) if math.isnan(past) else past - float(found[0])
        spread = math.sqrt(np.linalg.inv(model[keep].T @ model[keep])[1, 1]) * error
        return (before, after) if abs(after - before) > DRIFTED * spread else (0.0, 0.0)

    def _find_step(self, series: NDArray[np.float32], context: int, n: int) -> tuple[int, int] | None:
        """The sample of the series at which the strongest step of the gain is, and the number of its band.

        A step in a part of the band is sought relative to the rest of the band, so that drifts of the level cancel.
        """
        from . import cpu_impulses, cpu_receiver

        out = np.zeros(2, np.int64)
        groups, n_all = series.shape
        whole = (n_all - context % self.piece) // self.piece
        each = np.zeros((groups + 1, whole))
        sought = (self.piece, context, n, STEP_ERROR)
        work = np.empty(whole), np.empty(whole), np.empty(n_all), np.empty(n_all), np.empty(16), np.empty(groups)
        find = self._rarely(cpu_impulses.find_step, 2 * cpu_receiver.SERIES_STEPS * series.size)
        for first in (0, WIDE_BANDS):
            some = self._bands[first:STEP_BANDS]
            if first:
                series = self._against_rest(series, context)
            if not len(some) or not cpu_impulses.changes(series, self._used, some, *sought, each):
                return None
            if find(series, self._used, some, each, *sought, STEEP, work, out):
                return int(out[0]), first + int(out[1])
        return None

    def _against_rest(self, series: NDArray[np.float32], context: int) -> NDArray[np.float32]:
        """Series less what most groups have in common: the median of their means, joined by straight lines."""
        q, used = self.piece, self._used > 0
        skip = context % q
        root = np.sqrt(self._used)[:, None]
        means = series[used, skip : skip + (series.shape[1] - skip) // q * q].reshape(used.sum(), -1, q).mean(axis=2)
        common = np.median(means / root[used], axis=0)
        at = skip + q * (np.arange(len(common)) + 0.5)
        line = np.interp(np.arange(series.shape[1]) + 0.5, at, common)
        return (series - root * line).astype(np.float32)

    def _impulses(
        self, series: NDArray[np.float32], n: int, pieces: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
        """Windows of impulses (samples and channels), the baseline of the groups, and its unit in sigma.

        ``series`` are those of the block and of the samples after it.
        """
        base = self._flatten(series, pieces)
        return self._examine(series, n), base, 1 / np.sqrt(np.maximum(self._used, 1.0))

    def _flatten(self, series: NDArray[np.float32], pieces: int) -> NDArray[np.float64]:
        """Subtract the running median from the groups of a block of ``pieces`` pieces; returns the median by piece."""
        from . import cpu_receiver

        base = np.zeros((len(series), max(pieces, series.shape[1] // self.piece)))
        how = self._how(cpu_receiver.baseline, 2 * cpu_receiver.SERIES_STEPS * series.size)
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
        from . import cpu_impulses, cpu_receiver

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
        steps = cpu_receiver.SERIES_STEPS * joined.size
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
                self._hum.append(n)
        return windows, self._last_half(joined, context + n)

    def _last_half(self, series: NDArray[np.float32], end: int) -> NDArray[np.float32]:
        """A copy of the samples of half a block before ``end``."""
        return series[:, max(0, end - self.block // 2) : end].copy()

    def _note(
        self, start: int, n: int, bad: NDArray[np.bool_], cells: NDArray[np.bool_], counts: NDArray[np.int64],
        windows: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Count what is removed."""
        if self._first < 0:
            self._first = start // self.block
        self._samples += n * self.nchan
        gone = counts @ cells
        cut = np.zeros(self.nchan, np.int64)
        for first, last, low, high in windows.tolist():
            cut[low:high] += last - first
        cut[bad] = 0
        for name, value in (("channels", n * int(bad.sum())), ("cells", int(gone.sum())), ("impulses", int(cut.sum()))):
            if name in self._counts:
                self._counts[name] += value
        self._cells.append(np.packbits(bad | (2 * (gone + cut) >= n)))
        if len(windows):
            self._windows.append(windows + np.array([start, start, 0, 0]))

    def _keep_record(
        self, start: int, n: int, bad: NDArray[np.bool_], cells: NDArray[np.bool_], windows: NDArray[np.int64]
    ) -> None:  # fmt: skip
        """Keep a record of the cleaning of a block; ``cells`` are by piece and channel."""
        self._blocks.append(_Block.of(start, n, bad, cells, windows, self._gains))
        self._gains = []

    def _touched(self, start: int, stop: int) -> Iterator[_Block]:
        """Records of the blocks that contain samples of ``start : stop``."""
        first = bisect_right(self._blocks, start, key=lambda block: block.start) - 1
        for block in self._blocks[max(0, first) :]:
            if block.start >= stop:
                break
            if block.start + block.count > start:
                yield block

    def replaced(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which samples of ``start : stop`` were replaced: shape (samples, channels).

        Blocks that `forget` dropped, and those that are not cleaned yet, count as not replaced.
        """
        out = np.zeros((stop - start, self.nchan), bool)
        for block in self._touched(start, stop):
            block.show(out, start, self.piece)
        return out

    def replaced_channels(self, start: int, stop: int) -> NDArray[np.bool_] | None:
        """Channels of which all samples in ``start : stop`` were replaced; None if a channel was replaced in part."""
        at, found = start, set[bytes]()
        for block in self._touched(start, stop):
            if block.cells is not None or block.windows is not None:
                return None
            if block.start > at:
                found.add(b"")
            at = block.start + block.count
            found.add(b"" if block.bad is None else block.bad.tobytes())
        if at < stop:
            found.add(b"")
        if len(found) > 1:
            return None
        bad = np.frombuffer(found.pop() or bytes(-(-self.nchan // 8)), np.uint8)
        return np.unpackbits(bad, count=self.nchan).astype(bool)

    def regained(self, start: int, rows: NDArray[Any]) -> NDArray[Any]:
        """Samples from ``start`` on, read again, with the gains that they had when they were cleaned."""
        from . import cpu_receiver

        out = rows
        for block in self._touched(start, start + len(rows)):
            for gain in block.gains:
                out = rows.copy() if out is rows else out
                low = max(start, block.start)
                part = out[low - start : block.start + block.count - start]
                rough = np.unpackbits(gain.rough, count=self.nchan).astype(bool)
                first = max(0, gain.first - (low - block.start))
                cpu_receiver.regain(
                    part, low, first, gain.factor, gain.offset, rough, self.low, self.high, self.whole
                )  # fmt: skip
        return out

    def impulses(self, start: int, stop: int) -> int:
        """Number of steps of the gain, and of impulses in half of the band or more, removed between two samples."""
        count = sum(start <= at < stop for at, _ in self.jumps)
        for block in self._touched(start, stop):
            if block.windows is not None:
                first, wide = block.start + block.windows[:, 0], block.windows[:, 3] - block.windows[:, 2]
                count += int(((first >= start) & (first < stop) & (2 * wide >= self.nchan)).sum())
        return count

    def pulses(self, start: int, stop: int) -> NDArray[np.int64]:
        """By channel, the number of impulses in less than half of the band that were removed between two samples."""
        counts = np.zeros(self.nchan, np.int64)
        for block in self._touched(start, stop):
            if block.windows is not None:
                for first, _, low, high in block.windows.tolist():
                    if start <= block.start + first < stop and 2 * (high - low) < self.nchan:
                        counts[low:high] += 1
        return counts

    def forget(self, before: int) -> None:
        """Drop the records of blocks that end before a sample."""
        while self._blocks and self._blocks[0].start + self._blocks[0].count <= before:
            del self._blocks[0]
        self.jumps = [jump for jump in self.jumps if jump[0] >= before]

    def removed(self) -> Removed:
        """What was removed so far."""
        cells = np.zeros((self.nchan, max(1, self._first + len(self._cells))), bool)
        if self._cells:
            cells[:, self._first :] = np.unpackbits(np.stack(self._cells), axis=1, count=self.nchan).T
        windows = np.concatenate(self._windows) if self._windows else np.empty((0, 4), np.int64)
        parts = {name: count / max(1, self._samples) for name, count in self._counts.items()}
        return Removed(self.steps, cells, self.block, windows, parts, len(self._hum))


class CleanReader:
    """A reader of a filterbank that is cleaned while it is read, from the beginning to the end.

    The latest `KEPT` blocks stay in memory, or those of the samples that are read and of ``again`` samples before them.
    To read earlier samples again, the cleaning starts from the beginning.

    Parameters
    ----------
    fb : Filterbank
    cleaner : Cleaner
    begin : int
        Samples before this one are not changed, and do not count.
    watch : Watch, optional
        Gets the samples before they are cleaned, to look for dropped data.
    again : int
        Number of samples that may be read again: those before the samples that were read last.
    """

    def __init__(
        self, fb: Filterbank, cleaner: Cleaner, begin: int = 0, watch: Watch | None = None, again: int = 0
    ) -> None:
        self._again, self._kept = again, KEPT
        self.fb, self.cleaner, self.begin, self.watch = fb, cleaner, begin, watch
        self.observation, self.nsamp, self.maximum = fb.observation, fb.nsamp, fb.maximum
        self.order = np.arange(fb.nchan)
        self.dtype = fb.dtype.newbyteorder("=")
        self.gaps, self.lost = fb.gaps, fb.lost
        self._next = begin
        self._blocks: dict[int, NDArray[Any]] = {}
        cleaner.reset()

    def close(self) -> None:
        """Close the filterbank."""
        self.fb.close()

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        if self._again:  # the earlier samples are read while these are held
            self._kept = max(self._kept, -(-(self._again + count) // self.cleaner.block) + 2)
        out = np.empty((count, self.fb.nchan), self.dtype)
        at, stop = start, start + count
        while at < stop:
            if at < self.begin:
                end = min(stop, self.begin)
                out[at - start : end - start] = self._raw(at, end - at)
            else:
                number = at // self.cleaner.block
                rows, first = self._block(number), max(number * self.cleaner.block, self.begin)
                end = min(stop, first + len(rows))
                out[at - start : end - start] = rows[at - first : end - first]
            at = end
        return out

    def _raw(self, start: int, count: int) -> NDArray[Any]:
        parts, at = [], start
        for rows, order in self.fb.raw(start, count):
            if self.watch is not None:
                self.watch.see(at, rows)
            parts.append(rows if np.array_equal(order, self.order) else rows[:, order])
            at += len(rows)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block(self, number: int) -> NDArray[Any]:
        """A cleaned block."""
        size = self.cleaner.block
        if number not in self._blocks and number * size < self._next - size:
            self.cleaner.reset()
            self._next = self.begin
            self._blocks.clear()
        while number not in self._blocks:
            at = self._next
            self._next = min((at // size + 1) * size, self.nsamp)
            rows = self._raw(at, min(self._next + self.cleaner.ahead, self.nsamp) - at)
            rows = self.cleaner.clean(at, rows, self._next - at)
            while len(self._blocks) >= self._kept:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[at // size] = rows
        return self._blocks[number]


def scratch_array(memory: Scratch, name: str, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    """An uninitialised array in scratch memory; to allocate new memory would take as long as the work in it."""
    held, size = memory.get(name), math.prod(shape)
    if held is None or held.size < size:
        held = memory[name] = np.empty(size, kind)
    return held[:size].reshape(shape)


def compile_beside(steps: bool = False) -> None:
    """Start to compile the functions that examine blocks for impulses in another process, if they are not stored.

    ``steps``: also the one that finds steps of the gain on a CPU.
    """
    from skysieve.core.cpu import jit

    from . import cpu_impulses

    jit.compile_beside(f"from {__name__} import examine_one; examine_one()", cpu_impulses.detect, cpu_impulses.remove)
    if steps:
        jit.compile_beside(f"from {__name__} import find_one; find_one()", cpu_impulses.find_step)


def examine_one() -> None:
    """Examine a block with an impulse."""
    cleaner, series = _one_block("impulses")
    series[:, 100:104] = 9
    cleaner._examined(series, cleaner.block, None, np.full(cleaner.groups, 8.0), {})


def find_one() -> None:
    """Find a step of the gain in a block."""
    cleaner, series = _one_block("gain")
    cleaner._used[:] = 1
    series[:, cleaner.block // 2 :] = 99
    cleaner._find_step(series, 0, cleaner.block)


def _one_block(step: StepName) -> tuple[Cleaner, NDArray[np.float32]]:
    """A cleaner that does one step, and the series of a block of zeros."""
    obs = Observation(np.linspace(1500.0, 1400.0, 64), 1e-3)
    cleaner = Cleaner(obs, np.dtype(np.uint8), 255, (step,), (), DM_CONSTANT)
    return cleaner, np.zeros((cleaner.groups, cleaner.block), np.float32)


def _noise(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Sigma of each channel, from differences of neighbouring samples: slow changes of the level do not matter.

    Samples at which the differences of the band are large are left out: those of impulses, which are removed later.
    """
    n, total = len(rows) - 1, np.zeros(rows.shape[1])
    if n < 1:
        return total
    kind: Any = np.float32 if rows.dtype.itemsize == 1 else np.float64  # exact for bytes

    def squares(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
        found = after.astype(kind)
        found -= before
        found *= found
        return found

    pieces = [(at, min(at + NOISE_ROWS, n)) for at in range(0, n, NOISE_ROWS)]
    for low, high in pieces:
        total += squares(rows[low:high], rows[low + 1 : high + 1]).sum(axis=0, dtype=np.float64)
    band: NDArray[Any] = np.empty(n, kind)
    weights: NDArray[Any] = np.zeros(len(total), kind)
    np.divide(n, total, out=weights, where=total > 0, casting="same_kind")
    for low, high in pieces:
        np.einsum("tc,c->t", squares(rows[low:high], rows[low + 1 : high + 1]), weights, out=band[low:high])
    above = band - np.median(band)
    kept = above <= IMPULSIVE * 1.4826 * np.median(np.abs(above))
    if not kept.all():
        total[:] = 0
        for low, high in pieces:
            total += squares(rows[low:high], rows[low + 1 : high + 1])[kept[low:high]].sum(axis=0, dtype=np.float64)
    sigma: NDArray[np.float64] = np.sqrt(total / (2 * kept.sum()))
    return sigma


def _change_of_noise(
    before: NDArray[np.float64], after: NDArray[np.float64], counts: tuple[int, int]
) -> tuple[float, float]:
    """The logarithm of the noise before over that after a step, and its standard error.

    The noise changes with the gain; a pulse or a bump adds to the level alone.

    Parameters
    ----------
    before, after : numpy.ndarray
        Sigma of each channel before and after the step.
    counts : (int, int)
        Number of samples from which they were estimated.
    """
    good = (before > 0) & (after > 0)
    if not good.any() or min(counts) < 2:
        return 0.0, math.inf
    changes = np.sort(np.log(before[good] / after[good]))
    noise = float(changes[len(changes) // 4 : len(changes) - len(changes) // 4].mean())
    # The variance of the logarithm of a sigma from differences of n samples is 3/(4n); that of the mean of the middle
    # half is 1.2 times that of a mean.
    return noise, math.sqrt(1.2 * 0.75 * (1 / counts[0] + 1 / counts[1]) / good.sum())


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
