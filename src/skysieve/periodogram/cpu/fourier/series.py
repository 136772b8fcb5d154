"""Series fits on the CPU: costs, scratch, and the search of the objects of a chunk by the engine's threads."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.contract import METHODS
from skysieve.periodogram.cpu.chunk import ChunkSearch
from skysieve.periodogram.cpu.comb_simd import GROUP, LANES, STEP
from skysieve.periodogram.cpu.cost import GROUPS
from skysieve.periodogram.cpu.state import ROW
from skysieve.periodogram.cpu.vectors import LOADED
from skysieve.periodogram.numerics import fourier, nufft

from . import kernels, search, vectors
from .simd import WIDE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.periodogram.cpu import state
    from skysieve.periodogram.cpu.engine import Engine

F64 = np.dtype(np.float64)
NUFFT, DIRECT, FINUFFT = (METHODS.index(m) for m in ("nufft", "direct", "finufft"))
LIMIT = {NUFFT: kernels.NUFFT_LIMIT, FINUFFT: kernels.NUFFT_LIMIT, DIRECT: 1e4}
"""Square sum of the parameters (of a light curve of unit variance), over the square root of the number of points, up
to which a power is trusted.  Errors of the sums count in proportion to it (see ``kernels.solve``): measured 7e-10 of a
power for each unit with combs, 2e-9 with the interpolation of a GPU.  So the limits, 10 here and 3 in
``cuda.fourier.worker``, are one rule: errors stay under 1e-8.  finufft's sums have smaller errors than the combs'."""
MOST_FOLDS = 128
"""Largest number of circles that the cells of f may cover; on coarser grids sums are direct."""
KEPT_BYTES = 64 << 20
_scratch = threading.local()
# Nanoseconds: a point's kernel weights, a point spread, a transform of a group, one more circle of one, a group's
# equations of four terms, a band.
POINT, SPREAD, TRANSFORM, CIRCLE, EQUATIONS, BAND = 30.0, 7.0, 5_500.0, 150.0, 55_000.0, 2_000.0
SUM, PAIR = 0.45, 3.0
"""Nanoseconds of a direct sum over one point in one channel, and of its sine and cosine."""


def fit_of(model: fourier.Model) -> kernels.Fit:
    """`fourier.Tables` for numba."""
    tables = fourier.tables(model)
    column = np.array(fourier.columns_of(model), np.int64).reshape(-1, 3)
    steps, factors, pairs = factorisation(model, column)
    return kernels.Fit(
        tables.channel, tables.derived, tables.penalty, column, steps, factors, pairs, int(tables.row[-1]) * WIDE,
        constants(model), constants(model) > 0 and model.terms == 1, model.regularised, model.n_bands,
    )  # fmt: skip


def constants(model: fourier.Model) -> int:
    """Leading columns that are constants of one band each: their sums over rows are known without computing them."""
    return model.n_bands if model.band_constant and not model.band_terms and not model.regularised else 0


def factorisation(
    model: fourier.Model, column: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Steps, factors and pairs: what ``simd.factorise`` and ``substitute`` run through."""
    tables = fourier.tables(model)
    first, row, n = tables.first, tables.row, model.columns
    known = constants(model)  # their pivots are weights, and their right-hand sides are 0 because y is centred
    weight = 2 * tables.n_sums + np.where(column[:, 0] >= 0, column[:, 0], model.n_bands)
    # of a cosine and a sine column the squares add up to the weight: the trace does not depend on the frequency
    trace = model.constant + model.terms + float(model.band_constant + model.band_terms)
    steps: list[tuple[int, ...]] = []
    factors: list[tuple[float, float, float]] = []
    pairs: list[tuple[int, int, int]] = []
    for i in range(n + 1):
        for j in range(max(first[i], known if i == n else 0), min(i + 1, n)):
            if i == j < known:
                continue
            at = row[i] + j - first[i]
            low = max(first[i], first[j], known if i == n else 0)
            place, kind = (weight[i], 1) if i == j else (at, 0)
            up, down = row[i] + low - first[i], row[j] + low - first[j]
            steps.append((*tables.source[at], up, down, (j - low), place, j, kind))
            factors.append((*tables.factor[at], tables.penalty[i] * trace if i == j else 0.0))
    zero = tables.n_values - 1
    steps.append((zero, zero, row[n] + known, row[n] + known, n - known, row[n] + n, 0, 0))
    factors.append((0.0, 0.0, 0.0))
    for i in range(n - 1, -1, -1):
        pairs += [(row[i] + j - first[i], i, j) for j in range(max(first[i], known), i)]
    wide = np.array(steps, np.int64)
    wide[:, [0, 1, 2, 3, 5, 6]] *= WIDE
    return wide, np.array(factors, np.float64), np.array(pairs, np.int64).reshape(-1, 3) * WIDE


def choose(
    model: fourier.Model, n: NDArray[Any], nf: NDArray[Any], cycles: NDArray[Any], method: str, regular: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float64]]:
    """Method (index in METHODS), combs and expected seconds of each object; see ``cpu.cost.choose``.

    If no number of combs is possible for the grid, sums are direct whatever ``method`` is.
    """
    tables = fourier.tables(model)
    harmonic = tables.channel[:, 0].astype(float)
    share = np.where(tables.channel[:, 1] >= 0, 1.0 / model.n_bands, 1.0)
    equations = EQUATIONS * (0.3 + 0.7 * len(tables.source) / 54)
    direct = 1e-9 * n * nf * (PAIR + SUM * (float(share.sum()) + 2 * tables.highest)) + nf * equations * 1e-9 / 1536
    if not regular or not len(harmonic) or method == "direct":
        return np.full(len(n), DIRECT, np.uint8), np.full(len(n), LANES), direct
    best, combs = np.full(len(n), np.inf), np.full(len(n), LANES, np.int64)
    for groups in GROUPS:
        cells = nufft.M * groups * LANES * cycles
        circles = np.ceil((np.multiply.outer(harmonic, cells) + 8 * harmonic[:, None] + 9) / nufft.M)
        bands = np.ceil(nf / (nufft.KERNELS[F64].modes * groups * LANES))
        transforms = len(harmonic) * TRANSFORM + CIRCLE * (circles - 1).sum(axis=0) + equations
        each = BAND + SPREAD * n * share.sum() + groups * transforms
        seconds = 1e-9 * (10_000 + POINT * tables.highest * n + bands * each)
        seconds = np.where(np.ceil((cells + 17) / nufft.M) <= MOST_FOLDS, seconds, np.inf)
        combs = np.where(seconds < best, groups * LANES, combs)
        best = np.minimum(best, seconds)
    fast = np.isfinite(best) & ((best <= direct) | (method == "nufft"))
    return np.where(fast, NUFFT, DIRECT).astype(np.uint8), combs, np.where(fast, best, direct)


def first(model: fourier.Model, n: NDArray[Any], nf: NDArray[Any], regular: bool) -> tuple[int, NDArray[np.float64]]:
    """As `cpu.vectors.first`."""
    tables, columns = fourier.tables(model), model.columns
    products = float(columns * (columns + 3))
    refined = vectors.REFINED * (1 + n / 300) * products
    exact = vectors.PRODUCT * products * n * nf + refined
    fast = (vectors.MODE * len(tables.channel) + vectors.STEP * len(tables.source)) * nf + refined + LOADED / len(n)
    if regular and len(tables.channel) and fast.sum() < exact.sum():
        return FINUFFT, fast
    return DIRECT, exact


@lru_cache(maxsize=16)
def _combs(n_combs: int, folds: int) -> kernels.Combs:
    """Tables of ``n_combs`` combs with ``folds`` fold factors."""
    made = nufft.tables(n_combs, LANES, F64)
    r = np.arange(n_combs) / n_combs
    factors = nufft.unit(np.arange(folds)[:, None] * r)
    parts = np.stack([factors.real, factors.imag], 1).reshape(folds, 2, n_combs // LANES, LANES)
    fold = np.ascontiguousarray(np.moveaxis(parts, 2, 0)).ravel()
    return kernels.Combs(made.first, made.second, fold, made.deconvolve, made.taps, folds)


def make_work(
    tables: fourier.Tables, points: int, cells: int, nufft: bool, block: int, old: kernels.SeriesWork | None
) -> kernels.SeriesWork:
    """Scratch of one thread; ``old`` is returned if it is large enough."""
    channels, columns, top = len(tables.channel), len(tables.penalty), max(1, tables.highest)
    rows = points * top * ROW if nufft else 1
    entries = len(tables.source)
    want = {
        "c": points, "s": points, "shifted": points, "cell": points * top if nufft else 1, "weight": rows,
        "re": points * top, "im": points * top, "cells": cells if nufft else 1,
        "scratch": (channels + 1) * GROUP if nufft else 1, "x": max(1, channels) * STEP,
        "values": tables.n_values * WIDE, "upper": (entries + 1) * WIDE, "lower": (entries + 1) * WIDE,
        "inverse": columns * WIDE, "beta": columns * WIDE, "sound": WIDE, "small": WIDE, "block": block,
    }  # fmt: skip
    shape = (columns + 1, points + columns)
    if old is not None:
        if all(len(getattr(old, name)) >= size for name, size in want.items()) and (
            old.design.shape[0] >= shape[0] and old.design.shape[1] >= shape[1]
        ):
            return old
        want = {name: max(size, len(getattr(old, name))) for name, size in want.items()}
        shape = (max(shape[0], old.design.shape[0]), max(shape[1], old.design.shape[1]))
    arrays: dict[str, Any] = {
        name: np.empty(size, np.int64 if name == "cell" else np.float64) for name, size in want.items()
    }
    return kernels.SeriesWork(**arrays, design=np.empty(shape))


def bytes_of_row(model: fourier.Model, nufft: bool) -> int:
    """Bytes of `make_work` for each row of a light curve."""
    tables = fourier.tables(model)
    top = max(1, tables.highest)
    return 24 + 16 * top + 8 * (len(tables.penalty) + 1) + (8 * top * (1 + ROW) if nufft else 0)


def free_scratch() -> None:
    """Free large scratch of this thread."""
    work = getattr(_scratch, "work", None)
    if work is not None and sum(a.nbytes for a in work) > KEPT_BYTES:
        _scratch.work = None


class SeriesSearch(ChunkSearch):
    """The search of the objects of one chunk for series."""

    def __init__(
        self,
        engine: Engine,
        model: fourier.Model,
        curves: state.Curves,
        row_of_band: NDArray[np.int64],
        grid: state.Frequencies,
        answers: state.Answers,
    ) -> None:
        super().__init__(engine, curves, grid, answers, search, vectors)
        self.model, self.row_of_band = model, row_of_band
        self.fit, self.tables = fit_of(model), fourier.tables(model)

    def length(self, method: int, combs: int) -> int:
        """Samples of one stretch."""
        if method == FINUFFT:
            return vectors.STRETCH
        return combs * nufft.KERNELS[F64].modes if method == NUFFT else search.DIRECT_LENGTH

    def arguments(
        self, method: int, combs: int, which: NDArray[np.int64], first: int, last: int, best: Any, taken: Any
    ) -> tuple[tuple[Any, ...], kernels.SeriesWork]:
        """Arguments of `search.search`, and this thread's scratch."""
        points = int(self.curves.n_used[which].max())
        length, cells, folds = self.length(method, combs), 0, 1
        if method == NUFFT:
            df = self.grid.df[0] if self.grid.shared else self.grid.df[which]
            rows = zip(self.curves.start[which], self.curves.n_used[which], strict=True)
            ends = np.array([self.curves.t[a : a + n].max() for a, n in rows])
            highest_cell = nufft.M * combs * float((df * ends).max())
            harmonic = self.tables.channel[:, 0]
            circles = np.ceil((harmonic * highest_cell + 8.0 * harmonic + 9.0) / nufft.M).astype(np.int64)
            cells = int((2 * (nufft.M * circles + ROW)).sum())
            folds = 16 * -(-(int(circles.max()) + 1) // 16)
        work = self._scratch(points, cells, method == NUFFT, length)
        tables = None if self.interpreted else _combs(combs if method == NUFFT else LANES, folds)
        arguments = (
            method, which, first, last, length, combs, nufft.KERNELS[F64].modes, self.curves, self.row_of_band,
            self.grid, self.fit, tables, work, self.answers, self.engine.form, LIMIT[method], LIMIT[DIRECT],
            bool(self.engine.spec.fit_mean), best, taken,
        )  # fmt: skip
        return arguments, work

    def ending(self, which: NDArray[np.int64], work: kernels.SeriesWork, best: Any, taken: Any) -> tuple[Any, ...]:
        """Arguments of `search.conclude`."""
        return (
            which, self.curves, self.row_of_band, self.grid, self.fit, LIMIT[DIRECT], work, best, taken,
            self.answers.peaks_alone(),
        )  # fmt: skip

    def work_of_one(self, i: int) -> kernels.SeriesWork:
        """This thread's scratch for the end of the search of object ``i``."""
        return self._scratch(int(self.curves.n_used[i]), 1, False, search.DIRECT_LENGTH)

    def _scratch(self, points: int, cells: int, nufft: bool, block: int) -> kernels.SeriesWork:
        """This thread's scratch, made anew where it is too small."""
        work = make_work(self.tables, points, cells, nufft, block, getattr(_scratch, "work", None))
        _scratch.work = work
        self.engine.largest_scratch = max(self.engine.largest_scratch, sum(a.nbytes for a in work))
        return work
