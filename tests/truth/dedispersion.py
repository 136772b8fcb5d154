"""Reference implementation of de-dispersion and of the search in one series: loops, in integers or float64.

Tests compare the backends with it; nothing else imports it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sums(x: NDArray[Any], delays: NDArray[np.int32], downsamp: int = 1) -> NDArray[Any]:
    """De-dispersed sums ``y[m][t] = sum_c x[c][t + delays[m][c]]`` of samples that are binned by ``downsamp``.

    Only times at which all channels have samples are included.  Integers are summed as int64.
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
    """Quantile of integers, as if the samples of a value were spread evenly from 1/2 below to 1/2 above it."""
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


def _mad(values: NDArray[Any]) -> float:
    """Standard deviation of the normal distribution with the same median absolute deviation from 0 as the values."""
    return float(np.median(np.abs(values))) / NormalDist().inv_cdf(0.75)


def baseline(y: NDArray[Any], block: int, parts: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The level at each sample of a series, and whether it drifts there.

    The rules are those of the search; the cubic fits are SciPy's Savitzky-Golay filter.
    """
    edges = [b + k * block // parts for b in range(0, len(y), block) for k in range(parts)] + [10**9]
    edges = np.array([e for e in edges if e <= len(y)])
    means = np.array([y[a:b].mean() for a, b in pairwise(edges)])
    middles = (edges[1:] + edges[:-1]) / 2
    line, drifts = np.zeros(len(y)), np.zeros(len(y), bool)
    for b, first in enumerate(range(0, len(y), block)):
        here = slice(first, first + block)
        start, stop = max(0, (b - 1) * parts), min(len(means), (b + 2) * parts)
        m, group = means[start:stop], parts // 8
        sizes = np.abs(np.diff(m, 3))
        sigma = np.minimum(sizes, 3 * sizes.mean()).mean() / math.sqrt(20 * 2 / math.pi)
        groups = m[: len(m) // group * group].reshape(-1, group).mean(axis=1)
        middle = np.median(groups)
        if _mad(groups - middle) <= 2 * sigma / math.sqrt(group):
            for _ in range(2):
                middle = m[np.abs(m - middle) <= 3.5 * sigma].mean()
            line[here] = middle
            continue
        for d in (16, 4, 1):
            if 12 * d > parts or len(m) // d < 24:
                continue
            q, t = (v[: len(m) // d * d].reshape(-1, d).mean(axis=1) for v in (m, middles[start:stop]))
            x = q
            for turn in range(5):
                from scipy.signal import savgol_filter  # takes a second to import

                fit = savgol_filter(x, 23, 3, mode="interp")
                x = np.where(np.abs(q - fit) <= 3.5 * sigma / math.sqrt(d), q, fit) if turn < 4 else x
            own = (t >= first) & (t < first + block)
            if d == 1 or _mad((q - fit)[own]) <= 2 * sigma / math.sqrt(d):
                break
        where = np.arange(len(y)) + 0.5
        at = np.clip(np.searchsorted(t, where[here], "right") - 1, 0, len(t) - 2)
        line[here] = fit[at] + (fit[at + 1] - fit[at]) / (t[at + 1] - t[at]) * (where[here] - t[at])
        drifts[here] = True
    return line, drifts


def row_events(
    y: NDArray[Any], block: int, widths: tuple[int, ...], threshold: float, kind: str, parts: int = 0
) -> list[tuple[int, int, float]]:
    """Events of one whole series: (first sample of the window, width, S/N), in the order of their centres."""
    z = np.zeros(len(y), np.int64)
    held = (0.0, 0.0)
    line = None
    if parts:
        line, drifts = baseline(y, block, parts)
        fractions = np.arange(len(y)) % block * 2654435769 % 2**32 / 2**32
        y = np.where(drifts, y - np.floor(line + fractions), y).astype(np.int64)
        line = np.where(drifts, 0, line)
    for first in range(0, len(y), block):
        part = y[first : first + block]
        if first == 0 or 4 * len(part) >= block:
            held = noise(part, kind)
        level = held[0] if line is None else line[first : first + block]
        if held[1] > 0:
            z[first : first + block] = np.clip(np.rint(64 * ((part - level) / held[1])), -(2**18), 2**18)
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
