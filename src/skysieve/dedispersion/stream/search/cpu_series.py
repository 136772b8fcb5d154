"""Noise and events of de-dispersed series that continue from call to call (numba).

The arithmetic is the same as in `cpu.detect`, which searches whole blocks at once.  Here a search may begin at any
sample, and the noise of the blocks is known.  Prefix sums wrap on overflow, so that their start affects no window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu import jit
from skysieve.core.cpu.jit import ZERO, njit
from skysieve.dedispersion.contract import KINDS, LEAST_PARTS, UNIT, Detection
from skysieve.dedispersion.cpu.baseline import (
    FLAT,
    LANES,
    UNSIGNED,
    find_level,
    fit_baseline,
    part_means,
    strided_sum,
    subtract_line,
)
from skysieve.dedispersion.cpu.detect import BINS, SEGMENT, block_noise, find_events, fixed_points
from skysieve.dedispersion.cpu.engine import BASELINE_STEPS, BASELINE_WORTH
from skysieve.dedispersion.cpu.simd import WIDE

if TYPE_CHECKING:
    from numpy.typing import NDArray

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def whole_parts(count, block, parts):
    """Number of parts of a block that are complete in its first ``count`` samples."""
    return min(parts, ((max(ZERO, count) + 1) * parts - 1) // block)


@njit(**JIT)
def known_parts(count, first, number, begin, block, means, m):
    """Copy the means of the parts of a block and its two neighbours to ``m``; return the first known one and last + 1.

    ``count`` is the number of samples of the row, and ``first`` the first sample of the block.
    """
    slots, parts = means.shape
    before, slot, after = (number - 1) % slots, number % slots, (number + 1) % slots
    for k in range(parts):
        m[k] = means[before, k]
        m[parts + k] = means[slot, k]
        m[2 * parts + k] = means[after, k]
    high = parts + whole_parts(count - first, block, parts)
    if count - first >= block:
        high += whole_parts(count - first - block, block, parts)
    return parts if number == begin else ZERO, high


@njit(**JIT)
def levels_of_block(sums, valid, origin, number, block, begin, fit, work, lanes, m, means, drifts, levels):
    """With a baseline, write the levels of a block of rows to ``levels[:, number % slots, 0]``; return how many drift.

    Columns count from sample ``origin``; row ``i`` has samples up to ``valid[i]``.  The samples of the next block are
    known too, unless the row ends before it.  ``begin`` is the first block.  ``means[:, number % slots]`` receive the
    means of the parts of the block, and ``drifts`` the result of `baseline.find_level`.
    """
    slots, parts = means.shape[1:]
    slot, after = number % slots, (number + 1) % slots
    first = number * block
    found = ZERO
    for i in range(len(sums)):
        y, level = sums[i], levels[i, slot]
        n = min(block, valid[i] - first)
        drifts[i] = -1.0
        if n <= 0:
            continue
        if number == begin:
            part_means(y, first - origin, n, block, parts, means[i, slot], lanes)
        if n == block:
            part_means(
                y, first + block - origin, min(block, valid[i] - first - block), block, parts, means[i, after], lanes
            )
        low, high = known_parts(valid[i], first, number, begin, block, means[i], m)
        if high <= low:
            level[0] = strided_sum(y, first - origin, n, lanes) / np.float64(n)
        else:
            drifts[i] = find_level(m, low, high, parts, fit, work, lanes, level)
            found += drifts[i] >= 0
    return found


@njit(**JIT)
def subtract_drifts(sums, valid, origin, number, block, begin, kind, fit, work, m, means, drifts, levels):
    """Subtract a line from the blocks of rows whose level drifts, and set their levels; after `levels_of_block`."""
    slots, parts = means.shape[1:]
    first = number * block
    for i in range(len(sums)):
        if drifts[i] < 0:
            continue
        y = sums[i]
        low, high = known_parts(valid[i], first, number, begin, block, means[i], m)
        d = fit_baseline(m, low, high, parts, drifts[i], fit, work)
        if d:
            n = min(block, valid[i] - first)
            subtract_line(y, first - origin, n, block, parts, low, high, d, fit, kind, y)
            levels[i, number % slots, 0] = FLAT if kind == UNSIGNED else 0.0


@njit(**JIT)
def noise_of_block(sums, valid, origin, number, block, begin, noise, parts, counts, spare, out, levels):
    """Write sigma of a block of each row to ``levels[:, number % slots, 1]`` and, without a baseline, the level.

    A last block shorter than a quarter of a block takes the noise of the block before, unless it is the first block,
    ``begin``.
    """
    slots = levels.shape[1]
    slot, before = number % slots, (number - 1) % slots
    first = number * block
    for i in range(len(sums)):
        level = levels[i, slot]
        n = min(block, valid[i] - first)
        if n > 0 and (number == begin or 4 * n >= block):
            block_noise(sums[i], first - origin, n, noise, counts, spare, out)
            level[1] = out[1]
        else:
            out[0], level[1] = levels[i, before, 0], levels[i, before, 1]
        if not parts or n <= 0:
            level[0] = out[0]


@njit(**JIT)
def search_series(
    sums, valid, origin, begin, low, high, block, newest, levels, widths, scales, threshold, every, dip,
    prefix, best, which, found
):  # fmt: skip
    """Events of rows whose windows are centred on samples ``low : high``, from samples ``begin`` on.

    As `cpu.detect.find_events`; blocks after ``newest`` take its noise.  ``found`` receives (row, sample, width number,
    S/N).  Samples that cannot affect a window are not used.
    """
    slots = levels.shape[1]
    n = ZERO
    for i in range(len(sums)):
        last = min(valid[i], high + widths[-1])
        count = last - begin
        if count < 2:
            continue
        total = np.int32(0)
        prefix[0] = 0
        for b in range(begin // block, (last + block - 1) // block):
            first, stop = max(begin, b * block), min(last, (b + 1) * block)
            slot = min(b, newest) % slots
            total = fixed_points(
                sums[i], first - origin, stop - first, levels[i, slot, 0], levels[i, slot, 1], total, prefix,
                first - begin,
            )  # fmt: skip
        before = n
        n = find_events(
            prefix, count, low - begin, high - begin, widths, scales, threshold, every, dip, best, which, i, found, n
        )
        for k in range(before, min(n, len(found))):
            found[k, 1] += begin
    return n


class Rows:
    """The search of some rows of a table.

    The functions are compiled separately, so that two processes can compile them at the same time.  The function for
    drifts is compiled only when a level drifts.

    Parameters
    ----------
    sums, valid, means, levels : numpy.ndarray
        Of these rows; see `series.TableSeries`, and `Detection` for ``valid``.
    origin, begin : int
        The sample of column 0, and the first block.
    what : Detection
    """

    def __init__(
        self, sums: NDArray[Any], valid: NDArray[np.int64], means: NDArray[np.float64], levels: NDArray[np.float64],
        origin: int, begin: int, what: Detection,
    ) -> None:  # fmt: skip
        self.sums, self.valid, self.means, self.levels = sums, valid, means, levels
        self.origin, self.block, self.begin, self.what = origin, what.block, begin, what
        parts = what.parts
        self.fit, self.work, self.m = np.empty(3 * parts), np.empty(10 * parts), np.empty(3 * parts)
        self.drifts = np.empty(len(sums))

    def find_levels(self, number: int) -> int:
        """Find the levels of a block; returns in how many rows they drift."""
        found: int = levels_of_block(
            self.sums, self.valid, self.origin, number, self.block, self.begin, self.fit, self.work,
            np.empty(LANES), self.m, self.means, self.drifts, self.levels,
        )  # fmt: skip
        return found

    def subtract_drifts(self, number: int, drifting: float) -> None:
        """Subtract the drifts of a block in ``drifting`` rows; if these are few, without compiled code."""
        subtract = jit.interpreted_if_small(subtract_drifts, BASELINE_STEPS * drifting, BASELINE_WORTH)
        subtract(
            self.sums, self.valid, self.origin, number, self.block, self.begin, KINDS.index(self.sums.dtype.kind),
            self.fit, self.work, self.m, self.means, self.drifts, self.levels,
        )  # fmt: skip

    def find_noise(self, number: int) -> None:
        """Find the noise of a block."""
        what = self.what
        noise_of_block(
            self.sums, self.valid, self.origin, number, self.block, self.begin, what.noise_kind, what.parts,
            np.empty(BINS + 1, np.int64), what.scratch(self.sums.dtype), np.empty(3), self.levels,
        )  # fmt: skip

    def find(self, begin: int, low: int, high: int, newest: int, found: NDArray[np.float64]) -> int:
        """Write the events to ``found``; returns their number, which may be larger than the room."""
        what, widest = self.what, self.what.widths[-1]
        widths, room = np.array(what.widths, np.int64), SEGMENT + widest + WIDE + 1
        scales = (1 / (UNIT * np.sqrt(widths))).astype(np.float32)
        n: int = search_series(
            self.sums, self.valid, self.origin, begin, low, high, self.block, newest, self.levels, widths, scales,
            np.float32(what.threshold), what.every, np.float32(what.dip),
            np.empty(self.sums.shape[1] + widest + WIDE + 1, np.int32), np.empty(room, np.float32),
            np.empty(room, np.int32), found,
        )  # fmt: skip
        return n


USES = {"search_series": search_series, "noise_of_block": noise_of_block, "levels_of_block": levels_of_block}
"""The functions that `compile_one` calls, starting with the one that takes longest to compile; the search itself may
compile the last one in the meantime."""


def compile_beside(dtype: np.dtype[Any]) -> None:
    """Start to compile the search for sums of a type in other processes, unless the compiled code is cached."""
    for name, kernel in USES.items():
        jit.compile_beside(f"from {__name__} import compile_one; compile_one({dtype.name!r}, {name!r})", kernel)


def compile_one(dtype: str, function: str) -> None:
    """Compile a function of the search for sums of a type, by a call without rows."""
    parts = LEAST_PARTS if function == "levels_of_block" else 0
    what = Detection(2, (1,), 1.0, "robust", False, np.zeros(0, np.int64), parts=parts)
    rows = Rows(
        np.zeros((0, 2), dtype), what.valid, np.zeros((0, 2, parts)), np.zeros((0, 2, 2)), origin=0, begin=0, what=what
    )
    if function == "search_series":
        rows.find(0, 0, 2, 0, np.empty((1, 4)))
    elif function == "levels_of_block":
        rows.find_levels(0)
    else:
        rows.find_noise(0)
