"""The contract between the public API of the F-statistic and its backends.

The API checks the arguments and builds a `Spec` (what to compute) and a `MapJob` (the binned atoms and the bins of
every cell); ``cpu.Engine`` and ``cuda.Engine`` take them and return an `Output`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from skysieve.core.arrays import array_module, to_host
from skysieve.core.checks import one_of
from skysieve.fstat.inputs.bins import Bins
from skysieve.fstat.inputs.grid import BYTES_T0, BYTES_TAU, Grid, Schedule, make_schedule
from skysieve.fstat.inputs.window_kinds import KINDS, NAMED
from skysieve.fstat.inputs.windows import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

Dtype = Literal["float64", "float32"] | np.dtype[Any] | type[np.float64] | type[np.float32]
"""The argument `dtype` of the public functions."""
Compat = Literal["lalpulsar"]
"""Names of `COMPAT`, for type checkers."""
COMPAT = {"lalpulsar": "LALPulsar's float32 operations in its order, and its table of exponentials."}
"""Programs whose numbers can be reproduced bit for bit, with what that means."""
LAL_EFOLD = 3.0
"""LALPulsar's exponential window ends at 3 tau."""
FALLBACK = 2.0
"""F of a cell whose antenna-pattern matrix is ill-conditioned or empty: half of the mean of 2F in noise."""
MAX_CONDITION = 1e4
"""Largest condition number of a cell that is not set to `FALLBACK`, as in LALPulsar."""
CONDITION_BOUND = MAX_CONDITION / (MAX_CONDITION + 1) ** 2
"""The condition number ``(s + d) / (s - d)``, ``s = A + B``, ``d^2 = s^2 - 4 D``, is below its bound where
``D > CONDITION_BOUND * s^2``.  This needs no square root and no division, and is false for an empty window."""


@dataclass(frozen=True)
class Lines:
    """Priors of the line-robust statistic (Keitel et al. 2014, eq. 36), as natural logarithms.

    For every cell, with F from all detectors and ``F^X`` from detector X alone in the bins of that cell (``F^X`` is the
    fallback 2 if X alone is ill-conditioned or has no data in the cell),

        ln B_S/GL = F - ln(exp(log_gauss) + sum_X exp(log_line[X] + F^X)).

    The second term is at least ``m = max(log_gauss, log_line[X] + F^X)``.  A cell whose ``F - m`` is not above the
    largest ``ln B_S/GL`` so far is therefore skipped without an exponential.

    Attributes
    ----------
    log_gauss : float
        ``F*_0 - ln(1 + o)``, where ``o`` is the sum of the prior odds of lines ``oLGX``.
    log_line : tuple of float
        ``ln(oLGX / (1 + o))``, one for each detector in the order of `MapJob.detectors`; -inf where a line is excluded.
    """

    log_gauss: float
    log_line: tuple[float, ...]

    def log_odds(self, F: Any, FX: Any) -> NDArray[np.float64]:
        """``ln B_S/GL`` from F, shape (...), and ``F^X``, shape (D, ...)."""
        logs = [np.full(np.shape(F), self.log_gauss)]
        logs += [prior + np.asarray(f) for prior, f in zip(self.log_line, FX, strict=True)]
        return np.asarray(F - np.logaddexp.reduce(logs))


@dataclass(frozen=True)
class Spec:
    """What to compute, the same for every template of a plan.

    Attributes
    ----------
    window : Window
    dtype : dtype
    keep_map : bool
        Return F of every cell.
    marginals : bool
        Return the sums over rows and columns.  A search uses a second engine with this option for its few best
        templates.
    lal : bool
        Reproduce LALPulsar's arithmetic: its order of operations in float32 and its table of exponentials.
    lines : Lines or None
        Priors of the line-robust statistic, or None if it is not computed; never together with `lal`.
    sums : {"usual", "double", "exact"}
        How the sums are formed.  "usual" is the fastest way.  Templates for which it is not accurate enough (see
        ``precision.py``) go to an engine with "double" (the same sums in float64) or "exact" (sums without
        subtraction, and a separate scale for every cell); both have the `dtype` float64.
    """

    window: Window
    dtype: np.dtype[Any]
    keep_map: bool = True
    marginals: bool = True
    lal: bool = False
    lines: Lines | None = None
    sums: str = "usual"


@dataclass(frozen=True)
class Bank:
    """Binned atoms of B templates that share their times.

    The arrays are contiguous and of the engine's dtype; they are NumPy arrays or, for an engine on a GPU, also CuPy.

    Attributes
    ----------
    antenna : array, shape (1, 3, n) or (B, 3, n)
        Rows a2, b2, ab of one point of the sky, or of each template.
    data : array, shape (B, 4, n)
        Rows Re Fa, Im Fa, Re Fb, Im Fb.
    occupied : numpy.ndarray of bool, shape (n,)
        Bins with positive weight in at least one template.
    span : numpy.ndarray of float64, shape (2, 1) or (2, B), or None
        For each point of the sky, the largest a2 + b2 of a bin, and the smallest sum of a2 + b2 over an occupied bin
        and a neighbouring bin.
    source : Bank or None
        The same bins in the precision and the scale of the atoms; None if this bank has them already.
    """

    antenna: Any
    data: Any
    occupied: NDArray[np.bool_]
    span: NDArray[np.float64] | None = None
    source: Bank | None = None

    @property
    def shared(self) -> bool:
        """Whether the templates share their antenna factors."""
        return bool(self.antenna.shape[0] == 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.antenna.nbytes + self.data.nbytes)

    def template(self, i: int) -> Any:
        """Bins of template `i`, shape (7, n)."""
        return array_module(self.data).concatenate([self.antenna[0 if self.shared else i], self.data[i]])

    def fill(self, some: slice | NDArray[np.int64], x: NDArray[Any]) -> None:
        """Copy the bins of some templates to ``x`` (templates, 7, n)."""
        x[:, :3], x[:, 3:] = self.antenna if self.shared else self.antenna[some], self.data[some]

    def part(self, chosen: Any) -> Bank:
        """Some of the templates: a slice or an array of numbers."""
        span = self.span if self.span is None or self.shared else self.span[:, chosen]
        source = None if self.source is None else self.source.part(chosen)
        antenna = self.antenna if self.shared else self.antenna[chosen]
        return Bank(antenna, self.data[chosen], self.occupied, span, source)


@dataclass(frozen=True)
class MapJob:
    """Templates of one data set on one grid.

    Attributes
    ----------
    bank : Bank
        The sum over all detectors, scaled by powers of two so that the largest a2 + b2 lies in [1/4, 1).
    tatom : int
    taus : numpy.ndarray of float64, shape (N_tau,)
    schedule : Schedule
    detectors : tuple of Bank
        With ``Spec.lines``, the bins of each single detector, with the scale of `bank`; their sum is `bank` up to
        rounding.  Otherwise empty.
    """

    bank: Bank
    tatom: int
    taus: NDArray[np.float64]
    schedule: Schedule
    detectors: tuple[Bank, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether a2, b2 and ab are the same for all templates (one point of the sky)."""
        return self.bank.shared

    @property
    def occupied(self) -> NDArray[np.bool_]:
        """Bins that hold data of any detector, shape (n,)."""
        return self.bank.occupied

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the bins."""
        return np.dtype(self.bank.data.dtype)

    @property
    def n_templates(self) -> int:
        """Number of templates."""
        return int(self.bank.data.shape[0])

    @property
    def n(self) -> int:
        """Bins of data."""
        return int(self.bank.data.shape[2])

    def part(self, chosen: Any) -> MapJob:
        """Some of the templates: a slice or an array of numbers."""
        return replace(self, bank=self.bank.part(chosen), detectors=tuple(d.part(chosen) for d in self.detectors))


@dataclass
class Output:
    """Answers of a backend, on the host; row ``i`` of each array belongs to template ``i``.

    On a CPU the answers for a template do not depend on the other templates, bit for bit.  On a GPU they depend on them
    within the rounding of the dtype: the number of templates and the size of a launch determine the bins at which
    recurrences start and the order in which exponentials are added.

    Attributes
    ----------
    max_F : numpy.ndarray of float64, shape (B,)
    index : numpy.ndarray of int64, shape (B,)
        Flat cell ``m N_tau + n`` of the maximum (the first one if several are equal); -1 if no cell could be computed.
    log_sum : numpy.ndarray of float64, shape (B,)
        ``ln sum exp F`` over all cells.
    row_log, column_log : numpy.ndarray of float64, shape (B, N_t0) and (B, N_tau), or None
        ``ln sum exp F`` over each row and each column; with ``Spec.marginals``.
    n_fallback : numpy.ndarray of int64, shape (B,)
        Number of cells that are `FALLBACK`.
    F : array, shape (B, N_t0, N_tau), or None
        F of every cell, NaN in cells that hold fewer than two bins; with ``Spec.keep_map``.
    line_max : numpy.ndarray of float64, shape (B,), or None
        Largest ``ln B_S/GL`` of all cells that can be computed, fallbacks included; NaN if no cell can be computed.
        With ``Spec.lines``.
    line_index : numpy.ndarray of int64, shape (B,), or None
        Flat cell of ``line_max``; -1 if no cell can be computed.
    """

    max_F: NDArray[np.float64]
    index: NDArray[np.int64]
    log_sum: NDArray[np.float64]
    row_log: NDArray[np.float64] | None
    column_log: NDArray[np.float64] | None
    n_fallback: NDArray[np.int64]
    F: Any = None
    line_max: NDArray[np.float64] | None = None
    line_index: NDArray[np.int64] | None = None

    @classmethod
    def allocate(cls, n_templates: int, shape: tuple[int, int], spec: Spec) -> Output:
        """New host arrays in which every answer is marked as missing; the map is uninitialised."""
        rows, columns = shape
        b = n_templates
        return cls(
            max_F=np.full(b, np.nan),
            index=np.full(b, -1, np.int64),
            log_sum=np.full(b, -np.inf),
            row_log=np.full((b, rows), -np.inf) if spec.marginals else None,
            column_log=np.full((b, columns), -np.inf) if spec.marginals else None,
            n_fallback=np.zeros(b, np.int64),
            F=np.empty((b, rows, columns), spec.dtype) if spec.keep_map else None,
            line_max=np.full(b, np.nan) if spec.lines else None,
            line_index=np.full(b, -1, np.int64) if spec.lines else None,
        )


def check_compat(compat: str, window: Window) -> None:
    """Raise ValueError if the numbers of another program cannot be reproduced for a window."""
    one_of("compat", compat, COMPAT)
    known = [name for name in NAMED if KINDS[name].lal is not None]
    if window.kind not in known:
        raise ValueError(f"compat={compat!r} supports the windows {', '.join(map(repr, known))}")
    if KINDS[window.kind].end is None and window.efold != LAL_EFOLD:
        raise ValueError(f"efold={window.efold!r}: compat={compat!r} ends the window at {LAL_EFOLD:g} tau")


def description(
    job: MapJob, method: str, device: str, dtype: np.dtype[Any], map_bytes: int, times: Mapping[str, float | None]
) -> dict[str, Any]:
    """The answer of ``Engine.describe``; its bytes count the atoms, the axes of the grid and the maps."""
    rows, columns = job.schedule.shape
    atoms = sum(bank.nbytes for bank in (job.bank, *job.detectors))
    return {
        "method": method,
        "device": device,
        "dtype": dtype.name,
        "bytes": atoms + BYTES_T0 * rows + BYTES_TAU * columns + map_bytes,
        "moved": atoms + map_bytes,
        **times,
        "cells": rows * columns * job.n_templates,
    }


def blank(F: NDArray[Any], schedule: Schedule) -> None:
    """Set cells of a map (..., N_t0, N_tau) that hold fewer than two bins to NaN."""
    F[..., schedule.late, :] = np.nan
    for g in np.flatnonzero(schedule.valid_from):
        rows = np.flatnonzero(schedule.group == g)
        F[..., rows, : schedule.valid_from[g]] = np.nan


class Engine(Protocol):
    """The interface of ``cpu.Engine`` and ``cuda.Engine``, made by ``Engine(spec, device=, memory=, threads=)``.

    An engine is used by one thread at a time; several engines, also on one device, may be used at once.
    """

    def execute(self, job: MapJob, progress: Any = None) -> Output:
        """Compute what `Spec` asks for, for all templates; ``progress(done, total)`` is called from time to time.

        A batch may be larger than the device's memory; the engine then splits it.
        """

    def describe(self, job: MapJob) -> dict[str, Any]:
        """Method, device, dtype, bytes, predicted seconds and cells, without computing; see `description`."""

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the engine holds between calls."""

    def close(self) -> None:
        """Free threads and device memory."""


def make_job(
    templates: Sequence[Bins], grid: Grid, window: Window, dtype: Any, schedule: Schedule | None = None
) -> MapJob:
    """Prepare the binned atoms of templates that share their times for a backend.

    Parameters
    ----------
    templates : sequence of Bins
    grid : Grid
    window : Window
    dtype : dtype
    schedule : Schedule, optional
        The schedule of the grid for the times of the templates, if it is known.

    Raises
    ------
    ValueError
        The templates differ in their times.
    """
    first = templates[0]
    for i, b in enumerate(templates):
        if (b.t_start, b.tatom, b.n) != (first.t_start, first.tatom, first.n):
            raise ValueError(f"template {i} has different times from template 0: search it in another call")
    shared = all(np.array_equal(first.x[:3], b.x[:3]) for b in templates[1:])
    antenna = np.stack([b.x[:3] for b in templates[: 1 if shared else None]])
    data = np.stack([b.x[3:] for b in templates])
    occupied = np.logical_or.reduce([b.occupied for b in templates])
    if schedule is None:
        schedule = make_schedule(grid, window, first)
    (bank,) = prepared([Bank(antenna, data, occupied)], dtype)
    return MapJob(bank, first.tatom, grid.taus.astype(np.float64), schedule)


def prepared(banks: Sequence[Bank], dtype: Any) -> list[Bank]:
    """Prepare banks for the backends: find the occupied bins and the spans, scale the numbers, convert to `dtype`.

    The first bank is the sum over all detectors; the other banks get its scale.
    """
    out: list[Bank] = []
    power: NDArray[np.int32] = np.zeros(1, np.int32)
    for i, b in enumerate(banks):
        weight = weights_of_bins(b.antenna)
        occupied = to_host((weight > 0) if len(weight) == 1 else (weight > 0).any(axis=0)).reshape(-1)
        span = span_of(weight, occupied)
        if i == 0:
            power = powers(span[0])
        given = Bank(b.antenna, b.data, occupied, span)
        wide = given
        if np.result_type(dtype, b.antenna.dtype) != b.antenna.dtype:  # before scaling: tiny numbers keep their digits
            wide = replace(given, antenna=b.antenna.astype(dtype), data=b.data.astype(dtype))
        found = scaled(wide, power if len(b.antenna) == len(power) else power[:1])
        antenna, data = (x.astype(dtype, copy=False) for x in (found.antenna, found.data))
        same = antenna is b.antenna and data is b.data
        out.append(given if same else Bank(antenna, data, occupied, span, given))
    return out


def weights_of_bins(antenna: Any) -> Any:
    """``a2 + b2`` of every bin, shape (S, n); in float64 if it overflows the dtype of the bins."""
    with np.errstate(over="ignore"):
        weight = antenna[:, 0] + antenna[:, 1]
    if not np.isfinite(float(weight.max())):
        weight = antenna[:, 0].astype(np.float64) + antenna[:, 1]
    return weight


def span_of(weight: Any, occupied: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Compute `Bank.span` from the weights of the bins, shape (S, n)."""
    if len(weight) == 1 and occupied.all() and weight.shape[1] > 1:  # a fast path for the usual case
        least = min(float((weight[0, :-1] + weight[0, 1:]).min()), float(weight[0, 0]), float(weight[0, -1]))
        return np.array([[float(weight.max())], [least]])
    if not occupied.any():
        return np.zeros((2, len(weight)))
    xp = array_module(weight)
    # a window may start and end at any bin: beside a gap, and at both ends of the data, it may hold a single bin
    pairs = xp.stack([weight, weight])
    pairs[0, :, :-1] += weight[:, 1:]
    pairs[1, :, 1:] += weight[:, :-1]
    if not occupied.all():
        some = xp.asarray(np.flatnonzero(occupied))
        weight, pairs = weight[:, some], pairs[:, :, some]
    smallest = pairs.min(axis=(0, 2))
    if len(weight) > 1:  # in a single row all occupied bins have weight
        smallest = xp.where(weight.min(axis=1) > 0, smallest, 0)
    span = np.empty((2, len(weight)))
    span[0], span[1] = to_host(weight.max(axis=1)), to_host(smallest)
    return span


def powers(largest: NDArray[np.float64]) -> NDArray[np.int32]:
    """Exponents ``k`` of each point of the sky such that ``2^(2k)`` brings the largest a2 + b2 to [1/4, 1)."""
    if largest.size == 1:
        return np.array([-math.frexp(largest[0])[1] // 2], np.int32)  # the exponent of 0 is 0
    return np.where(largest > 0, -np.frexp(largest)[1] // 2, 0).astype(np.int32)


def scaled(bank: Bank, power: NDArray[np.int32]) -> Bank:
    """Multiply antenna factors by ``2^(2 power)`` and data by ``2^power``, which leaves F unchanged bit for bit."""
    if not power.any():
        return bank
    xp = array_module(bank.data)
    at = xp.asarray(power)[:, None, None]
    with np.errstate(over="ignore"):  # `precision.level_of_data` finds data that become infinite
        return replace(bank, antenna=xp.ldexp(bank.antenna, 2 * at), data=xp.ldexp(bank.data, at))


def live_rows(schedule: Schedule) -> NDArray[np.int64]:
    """The rows of a schedule to compute: those that hold a valid cell."""
    return np.flatnonzero(~schedule.late & (schedule.valid_from[schedule.group] < schedule.shape[1]))


@dataclass
class TilePart:
    """Answers for a tile of a map: the maximum and its cell, the number of fallbacks, and ``ln sum exp F``."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    max_F: float
    row: int
    column: int
    n_fallback: int
    log_sum: float
    row_log: NDArray[np.float64]
    column_log: NDArray[np.float64]


def write_tiles(parts: Sequence[TilePart], n: int, output: Output, i: int) -> None:
    """Combine all tiles of the map of template `i`, which has ``n`` columns, and write its results."""
    if not parts:
        return
    best = max(parts, key=lambda p: (p.max_F, -(p.row * n + p.column)))
    output.max_F[i], output.index[i] = best.max_F, best.row * n + best.column
    output.n_fallback[i] = sum(p.n_fallback for p in parts)
    output.log_sum[i] = np.logaddexp.reduce([p.log_sum for p in parts])
    if output.row_log is not None and output.column_log is not None:
        first = parts[0].rows
        if len(parts) > 1 and all(p.rows is first for p in parts):
            output.row_log[i, first] = log_sums(np.stack([p.row_log for p in parts]))
            for p in parts:
                output.column_log[i, p.columns] = p.column_log
            return
        for p in parts:
            add_log(output.row_log[i], p.rows, p.row_log)
            add_log(output.column_log[i], p.columns, p.column_log)


def log_sums(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """``ln sum exp`` of the values along the first axis."""
    high = logs.max(axis=0)
    high[~np.isfinite(high)] = 0
    with np.errstate(divide="ignore"):
        return np.asarray(high + np.log(np.exp(logs - high).sum(axis=0)))


def add_log(total: NDArray[np.float64], at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    """``total[at] = ln(exp total[at] + exp values)``."""
    total[at] = np.logaddexp(total[at], values)
