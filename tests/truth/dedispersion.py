"""The slow, obvious truth: loops and float64; imported by tests alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sums(x: NDArray[Any], delays: NDArray[np.int32], downsamp: int = 1) -> NDArray[Any]:
    """A triple loop: ``y[m][t] = sum_c x[c][t + n(c, m)]`` of samples binned by ``downsamp``, all channels valid.

    Integers of Python: they cannot overflow.
    """
    n = x.shape[1] // downsamp
    wide = x[:, : n * downsamp].astype(np.int64 if x.dtype.kind != "f" else np.float64)
    binned = wide.reshape(len(x), n, downsamp).sum(axis=2)
    valid = n - int(delays.max())
    out = np.zeros((len(delays), valid), binned.dtype)
    for m, row in enumerate(delays):
        for c, shift in enumerate(row):
            out[m] += binned[c, shift : shift + valid]
    return out


def quartile(values: NDArray[Any], part: float) -> float:
    """Quantile of integers as if the samples of each value were spread evenly over +-1/2 of it."""
    wanted = part * len(values)
    total = 0
    for value, count in zip(*np.unique(values, return_counts=True), strict=True):
        if total + count >= wanted:
            return float(value) - 0.5 + (wanted - total) / count
        total += int(count)
    raise AssertionError("no quantile")


def noise(values: NDArray[Any], kind: str) -> tuple[float, float]:
    """Level and sigma of a block."""
    if kind == "robust":
        low, middle, high = (quartile(values, p) for p in (0.25, 0.5, 0.75))
        return middle, (high - low) / 1.3489795003921634
    kept = values.astype(np.float64)
    if kind == "clipped":
        level, sigma = kept.mean(), kept.std()
        for _ in range(5):
            inside = kept[np.abs(kept - level) <= 3 * sigma]
            level, sigma = inside.mean(), inside.std() / 0.98657826
        return float(level), float(sigma)
    return float(kept.mean()), float(kept.std())


def row_events(
    y: NDArray[Any], block: int, widths: tuple[int, ...], threshold: float, kind: str
) -> list[tuple[int, int, float]]:
    """Events of one whole series: (first sample of the window, width, S/N), in the order of their centres."""
    z = np.zeros(len(y), np.int64)
    held = (0.0, 0.0)
    for first in range(0, len(y), block):
        part = y[first : first + block]
        if first == 0 or 4 * len(part) >= block:
            held = noise(part, kind)
        if held[1] > 0:
            z[first : first + block] = np.clip(np.rint(64 * ((part - held[0]) / held[1])), -(2**18), 2**18)
    running = np.concatenate([[0], np.cumsum(z)])
    best = np.zeros(len(y))
    which = np.zeros(len(y), int)
    for w in widths:
        if w > len(y):
            continue
        snr = (running[w:] - running[:-w]) / (64 * np.sqrt(w))
        centres = np.arange(len(snr)) + w // 2
        more = snr > best[centres]
        best[centres[more]], which[centres[more]] = snr[more], w
    found = []
    for t in np.flatnonzero(best >= threshold):
        r = max(1, which[t] // 2)
        if best[max(0, t - r) : t].max(initial=-1) < best[t] and best[t + 1 : t + r + 1].max(initial=-1) <= best[t]:
            found.append((int(t - which[t] // 2), int(which[t]), float(best[t])))
    return found
