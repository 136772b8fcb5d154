"""Steps of the gain: how large they are, and the factors and offsets that undo them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .steps import PIECES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Gain", "GainChange", "change_of_noise", "find_drift", "noise_of", "subtract_common"]

STEP_ERROR, STEEP, MOST_STEPS = 10.0, 0.6, 4
"""Smallest step of the gain in standard errors, smallest fraction of it that happens at once, and largest number of
steps in a block."""
STEP_BANDS = 1 + 3 + 7
"""Bands in which steps are sought: the widest ones."""
WIDE_BANDS = 1 + 3
"""Bands of these that have half of the channels or more."""
LEAST_FIT = 4
"""Fewest pieces on each side of a step to which a drift is fitted: a line, or a cubic with twice as many pieces."""
FIT_ROUNDS = 4
"""How often the fit is repeated without the pieces that are far from it."""
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


@dataclass(frozen=True)
class GainChange:
    """A change of the gain of each channel from sample ``first`` of a block on.

    ``rough`` is a packed mask of channels with few levels, whose samples are rounded at random.
    """

    first: int
    factor: NDArray[np.float64]
    offset: NDArray[np.float64]
    rough: NDArray[np.uint8]


class Gain:
    """The factor and the offset by which the samples of each channel are corrected, after steps of the gain.

    Attributes
    ----------
    factor, offset : numpy.ndarray
        1 and 0 at the beginning.
    rough : numpy.ndarray of bool
        Channels with few levels, whose samples are rounded at random.
    """

    def __init__(self, channels: int) -> None:
        self.factor, self.offset, self.rough = np.ones(channels), np.zeros(channels), np.zeros(channels, bool)

    @property
    def changed(self) -> bool:
        """Whether the gain of any channel differs from that at the beginning."""
        return bool((self.factor != 1).any() or self.offset.any())

    def add(self, factor: NDArray[np.float64], offset: NDArray[np.float64], rough: NDArray[np.bool_]) -> None:
        """Correct the samples that follow by a further factor and offset."""
        self.rough = rough
        self.factor = self.factor * factor
        self.offset = self.offset * factor + offset

    def change(self, first: int, factor: NDArray[np.float64], offset: NDArray[np.float64]) -> GainChange:
        """A change from sample ``first`` of a block on, for the records."""
        return GainChange(first, factor.copy(), offset.copy(), np.packbits(self.rough))

    def from_levels(
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
        factor = np.ones(len(self.factor))
        factor[which] = ratio
        if abs(np.mean((self.factor[which] * ratio - 1) * before[which] / sigma[which])) < SAME:
            factor[which] = 1 / self.factor[which]
        return factor, np.zeros(len(self.factor))

    def from_noise(
        self, which: NDArray[np.bool_], before: NDArray[np.float64], after: NDArray[np.float64],
        sigma: NDArray[np.float64], change: float, error: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:  # fmt: skip
        """Factor and offset that undo a step of the gain, from the noise of the band.

        This replaces `from_levels` where the levels are not proportional to the gain, as after the mean was
        subtracted.  None if the noise and the level do not change in the same direction, or if the noise changes more
        than twofold.  If the gain is within `RESTORED` errors of the gain at the beginning, that gain is restored.
        """
        rise = float(np.median((before - after)[which] / sigma[which]))
        if change * rise <= 0 or abs(change) > math.log(2):
            return None
        factor = np.where(which, math.exp(change), 1.0)
        again = which & (np.abs(np.log(self.factor) + change) < RESTORED * error)
        factor[again] = 1 / self.factor[again]
        offset = np.where(which, after * factor - before, 0.0)
        if again.any() and abs(np.mean((self.offset * factor + offset)[again] / sigma[again])) < SAME:
            offset[again] = -self.offset[again] * factor[again]
        return factor, offset


def find_drift(
    series: NDArray[np.float32], members: NDArray[np.float64], at: int, pieces: tuple[int, int, int],
    past: float, piece: int,
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
    piece : int
        Samples of a piece.
    """
    early, late, used = pieces
    if min(early, late) < LEAST_FIT:
        return 0.0, 0.0
    part = series[:, at - early * piece : at + late * piece].reshape(len(series), -1, piece)
    y = np.median(part.mean(axis=2) / np.sqrt(members)[:, None], axis=0)
    error = 1.25 / math.sqrt(piece * members.sum())
    t = (np.arange(early + late) + 0.5 - early) / (PIECES // 2)
    order = 3 if min(early, late) >= 2 * LEAST_FIT else 1
    model = np.stack([np.ones(len(t)), t > 0, *(t**k for k in range(1, order + 1))], axis=1)
    keep = np.ones(len(y), bool)
    for _ in range(FIT_ROUNDS):
        found = np.linalg.lstsq(model[keep], y[keep], rcond=None)[0]
        keep = np.abs(y - model @ found) < 4 * error
        if min(keep[:early].sum(), keep[early:].sum()) <= order:
            return 0.0, 0.0
    drift = model[:, 2:] @ found[2:]  # pyrefly: ignore[unbound-name]  # there is a round
    after = float(np.median(drift[early:]))
    before = float(np.median(drift[early - used : early])) if math.isnan(past) else past - float(found[0])
    spread = math.sqrt(np.linalg.inv(model[keep].T @ model[keep])[1, 1]) * error
    return (before, after) if abs(after - before) > DRIFTED * spread else (0.0, 0.0)


def subtract_common(
    series: NDArray[np.float32], used: NDArray[np.float64], context: int, piece: int
) -> NDArray[np.float32]:
    """Series less what most groups have in common: the median of their means, joined by straight lines.

    ``used`` is the number of good channels of each group, ``context`` that of samples before the block.
    """
    some, skip = used > 0, context % piece
    root = np.sqrt(used)[:, None]
    whole = (series.shape[1] - skip) // piece * piece
    means = series[some, skip : skip + whole].reshape(some.sum(), -1, piece).mean(axis=2)
    common = np.median(means / root[some], axis=0)
    at = skip + piece * (np.arange(len(common)) + 0.5)
    line = np.interp(np.arange(series.shape[1]) + 0.5, at, common)
    return (series - root * line).astype(np.float32)


def noise_of(rows: NDArray[Any]) -> NDArray[np.float64]:
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


def change_of_noise(
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
