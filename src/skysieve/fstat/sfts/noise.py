"""Noise floors of SFTs by a running median, and the weights of SFTs that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .sfts import SFTs

__all__ = ["assumed_floor", "median_bias", "noise_floor", "noise_weights", "normalized"]

WINDOW = 101
"""Width in bins of the running median that measures the noise."""
ROWS = 2048
"""Number of SFTs whose powers are in memory at the same time."""


def median_bias(n: int) -> float:
    """Expected median of ``n`` (odd) exponential variables of mean 1: the alternating harmonic sum.

    Examples
    --------
    >>> median_bias(1)
    1.0
    >>> round(median_bias(101), 4)  # log 2 for many
    0.6981
    """
    if n < 1 or n % 2 == 0:
        raise ValueError(f"n={n!r}: expected an odd number of bins")
    k = np.arange(1, n + 1)
    return float(((-1.0) ** (k + 1) / k).sum())


def noise_floor(sfts: SFTs, window: int = WINDOW, threads: int | None = None) -> NDArray[np.float64]:
    """One-sided power spectral density of the noise in every bin of every SFT.

    Parameters
    ----------
    sfts : SFTs
    window : int
        Width in bins of the running median, odd.  The bins at both ends get the nearest median.
    threads : int, optional
        CPU threads; all usable cores by default.

    Returns
    -------
    numpy.ndarray of float64, shape (n, bins)
        1/Hz.

    Raises
    ------
    ValueError
        The window is even, or wider than the band; an SFT has values that are not finite, or a noise floor of 0.
    """
    from .cpu_median import running_medians

    if whole("window", window, 1) % 2 == 0:
        raise ValueError(f"window={window!r}: expected an odd number of bins")
    bias = median_bias(int(window))
    n, bins = sfts.data.shape
    if bins < window:
        raise ValueError(
            f"{sfts.detector} has {bins} bins, expected at least {window}: the running median of the noise "
            f"has window={window}"
        )
    floor = np.empty((n, bins))
    for start in range(0, n, ROWS):
        data, scale = sfts.data[start : start + ROWS], _largest(sfts, start)
        median = running_medians(np.abs(data / scale) ** 2, window, threads)
        _refuse(sfts, start, median.min(axis=1) <= 0, f"holds zeros in more than half of {window} bins")
        floor[start : start + ROWS] = median * (2 * scale**2 / (bias * sfts.tsft))
    return floor


def assumed_floor(sfts: SFTs, level: float) -> NDArray[np.float64]:
    """`noise_floor` of noise whose power density has the square root `level`, 1/sqrt(Hz).

    Raises
    ------
    ValueError
        An SFT is zero or has values that are not finite.
    """
    for start in range(0, len(sfts), ROWS):
        _largest(sfts, start)
    return np.full(sfts.data.shape, level**2)


def _largest(sfts: SFTs, start: int) -> NDArray[np.float64]:
    """The largest part of a number of each of `ROWS` SFTs; ValueError if an SFT is zero or not finite."""
    data = sfts.data[start : start + ROWS]
    scale = np.abs(data.view(np.float32)).max(axis=1, keepdims=True).astype(np.float64)
    _refuse(sfts, start, ~np.isfinite(scale), "holds NaN or infinite values")
    _refuse(sfts, start, scale == 0, "holds zeros")
    return np.asarray(scale)


def _refuse(sfts: SFTs, start: int, bad: NDArray[np.bool_], what: str) -> None:
    if bad.any():
        raise ValueError(f"{sfts.detector}: the SFT at GPS {sfts.t[start + int(np.argmax(bad))]} {what}")


def noise_weights(
    floors: Sequence[NDArray[np.float64]], window: int = WINDOW
) -> tuple[list[NDArray[np.float64]], float]:
    """Weight of every SFT: the inverse of its noise floor, scaled to a mean of 1 over all SFTs of all detectors.

    Parameters
    ----------
    floors : sequence of numpy.ndarray
        For each detector, the result of `noise_floor`.  Each SFT is weighted by the mean over those bins that have
        their own median.
    window : int
        Width of the running median.

    Returns
    -------
    weights : list of numpy.ndarray
        For each detector.
    mean : float
        Inverse noise floor of weight 1, Hz.
    """
    half = window // 2
    inverse = [1 / floor[:, half : floor.shape[1] - half].mean(axis=1) for floor in floors]
    mean = float(np.concatenate(inverse).mean())
    return [one / mean for one in inverse], mean


def normalized(sfts: SFTs, floor: NDArray[np.float64], dtype: Any = np.complex64) -> NDArray[Any]:
    """Data in units of their noise: the mean square is 1 in pure noise."""
    return (sfts.data * np.sqrt(2 / (sfts.tsft * floor))).astype(dtype)
