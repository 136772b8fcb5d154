"""The CPU backend of light curves in several bands: groups rows by band, centres each, and fits series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import interpreted_if_small, njit, read_only
from skysieve.periodogram.contract import BAND_POINTS
from skysieve.periodogram.cpu import state
from skysieve.periodogram.cpu.engine import Engine
from skysieve.periodogram.cpu.prepare import (
    CONSTANT,
    EMPTY,
    EQUAL,
    HUGE,
    OK,
    SHORTEST_SPAN,
    SHRINK,
    SINGULAR,
    TOO_FEW,
    exact_origin,
    scan_object,
    sort_rows,
)

from .series import SeriesSearch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.periodogram.contract import Spec

STEPS = 60
"""Operations on one row in `prepare_bands`."""


@njit(nogil=True, error_model="numpy")
def prepare_bands(
    t, y, dy, has_dy, offsets, code, n_bands, fewest, first, last, tt, w, wy, row_of_band, n_used, t_min, span, status,
    yy, weight,
):  # fmt: skip
    """As ``cpu.prepare.prepare``, with the rows of each band together, sorted by time and centred on their own mean.

    Bands of fewer than ``fewest`` usable rows are left out.
    """
    count, at = np.zeros(n_bands, np.int64), np.zeros(n_bands, np.int64)
    for i in range(first, last):
        lo, hi = offsets[i], offsets[i + 1]
        n_used[i], t_min[i], span[i], status[i], _ = scan_object(t, y, dy, has_dy, lo, hi, BAND_POINTS, True)
        if status[i] != OK and status[i] != CONSTANT:
            continue
        for b in range(n_bands):
            count[b] = 0
        for j in range(lo, hi):
            if np.isfinite(t[j]) and np.isfinite(y[j]) and (not has_dy or np.isfinite(dy[j])):
                count[code[j]] += 1
        n = 0
        for b in range(n_bands):
            row_of_band[i, b] = at[b] = n
            if count[b] >= fewest:
                n += count[b]
            else:
                count[b] = 0
        row_of_band[i, n_bands] = n
        n_used[i] = n
        if n < BAND_POINTS:
            status[i] = TOO_FEW if n > 0 else EMPTY
            continue
        smallest, largest, biggest, early, late = np.inf, 0.0, 0.0, np.inf, -np.inf
        for j in range(lo, hi):
            if np.isfinite(y[j]):
                biggest = max(biggest, abs(y[j]))
        shrink = SHRINK if biggest > HUGE else 1.0
        for j in range(lo, hi):
            b = code[j]
            if count[b] > 0 and np.isfinite(t[j]) and np.isfinite(y[j]) and (not has_dy or np.isfinite(dy[j])):
                k = lo + at[b]
                at[b] += 1
                tt[k], wy[k], w[k] = t[j], y[j] * shrink, dy[j] if has_dy else 1.0
                smallest = min(smallest, w[k])
                early, late = min(early, t[j]), max(late, t[j])
        origin = exact_origin(early, late)
        t_min[i], span[i] = early, late - early
        if not late - early >= SHORTEST_SPAN:
            status[i] = EQUAL
            continue
        for k in range(lo, lo + n):
            tt[k] -= origin
        for b in range(n_bands):
            start, end = lo + row_of_band[i, b], lo + row_of_band[i, b + 1]
            for k in range(start + 1, end):
                if tt[k] <= tt[k - 1]:
                    sort_rows(tt, wy, w, start, end)
                    break
        total, weighty = 0.0, 0
        for k in range(lo, lo + n):
            r = smallest / w[k]
            w[k] = r * r
            total += w[k]
            weighty += w[k] > 0.0
        if weighty < 2:  # by the errors, one point alone has weight
            status[i] = SINGULAR
            continue
        for b in range(n_bands):
            start, end = lo + row_of_band[i, b], lo + row_of_band[i, b + 1]
            own = 0.0
            for k in range(start, end):
                own += w[k]
            for _ in range(2 if own > 0 else 0):  # the second round removes the rounding error of a large mean
                mean, base = 0.0, wy[start]
                for k in range(start, end):
                    mean += w[k] * (wy[k] - base)
                mean = base + mean / own
                for k in range(start, end):
                    wy[k] -= mean
            for k in range(start, end):
                largest = max(largest, abs(wy[k]))
        square = 0.0
        for k in range(lo, lo + n):
            w[k] /= total
            if largest > 0:
                wy[k] /= largest
            square += w[k] * wy[k] * wy[k]
        if not square > 0.0:
            status[i] = CONSTANT
            continue
        status[i] = OK
        for k in range(lo, lo + n):
            wy[k] *= w[k] / np.sqrt(square)
        yy[i] = square * (largest / shrink) * (largest / shrink)
        weight[i] = total / (smallest * smallest)


class MultibandEngine(Engine):
    """Lomb-Scargle in several bands on the host's cores; the source has ``bands(start, stop)`` beside ``read``.

    Parameters
    ----------
    spec : Spec
        What to compute, with its ``model``.
    device, memory, threads : optional
        As for `cpu.Engine`.
    """

    def __init__(
        self, spec: Spec, device: Any = None, memory: str | float | None = None, threads: int | None = None
    ) -> None:
        super().__init__(spec, device=device, memory=memory, threads=threads)
        self.model = spec.model
        self.fewest = max(1, spec.fewest)
        self._row_of_band: NDArray[np.int64] = np.zeros((0, 0), np.int64)

    def _cleaning(self, source: Any, start: int, stop: int, rows: int) -> Callable[..., None]:
        """See `cpu.Engine._cleaning`; the rows become grouped by band."""
        assert self.model is not None
        bands, fewest = self.model.n_bands, self.fewest
        (code,) = read_only(source.bands(start, stop))
        row_of_band = self._row_of_band = np.zeros((stop - start, bands + 1), np.int64)
        run = interpreted_if_small(prepare_bands, STEPS * rows)
        return lambda given, a, b, clean, objects: run(*given, code, bands, fewest, a, b, *clean, row_of_band, *objects)

    def _search_of(self, curves: state.Curves, grid: state.Frequencies, answers: state.Answers) -> Any:
        """The search of the objects of a chunk."""
        assert self.model is not None
        return SeriesSearch(self, self.model, curves, self._row_of_band, grid, answers)
