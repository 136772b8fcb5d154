"""Launches for windows that are neither rectangular nor a plain exponential.

Sums of polynomials times exponentials (`WindowSum`) use recurrences: one launch of ``sum.cu``, compiled for the number
of their terms.  For any other function the host computes the weights, for a tile of durations at a time.  Each column
takes the cheaper method: its windows are summed bin by bin (``cells.cu``, `DIRECT`), or correlated with the data by
Fourier transforms in float64 (`FOURIER`; in float32 their errors would be 3e-3 of F).  Weights stay on the device while
there is room.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.device import Device
from skysieve.core.gpu.staging import Lane
from skysieve.core.memory import parse_budget
from skysieve.fstat.contract import CONDITION_BOUND, MapJob
from skysieve.fstat.inputs.window_kinds import Algorithm
from skysieve.fstat.inputs.windows import Window, WindowSum

from .launch import LaunchedWork, Launcher, line_struct
from .tables import ROWS, USUAL_DETECTORS, DeviceTables, Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUM_THREADS, SUM_COLUMNS, SUM_TILE, SUM_RESIDENT = 224, 32, 7, 14
"""Threads, columns and rows of a block of ``sum.cu``, and its warps that fit a multiprocessor."""
CELL_THREADS, CELL_WARPS, CELL_COLUMNS = 128, 4, 128
"""Threads, warps and columns (of ``direct``) of a block of ``cells.cu``."""
EACH_COLUMNS = 8
"""Columns of a thread of the kernel ``cells``."""
DIRECT = {"float32": 1e-12, "float64": 2e-12}
"""Seconds for adding a bin of a window to the seven sums."""
FOURIER = 2.1e-12
"""Seconds of a real transform in float64 for each point and factor of two in its length."""
POINTS = 9
"""Transforms of a column: one of its weights, one of their squares, and inverse ones for seven sums."""
SLOW_DOUBLES = 8.0
"""Factor by which transforms take longer on GPUs with few float64 units; estimated."""
TILE_BYTES = 2**27
"""Bytes of the weights, or of the correlations, of a tile of columns."""
TILES = 16
"""Number of tiles for which the memory budget must suffice: a few are in use, the rest is for atoms and maps."""
KEPT_SHARE = 0.1
"""Share of that budget for weights that stay on the device."""
TILE = np.dtype([("column0", "i4"), ("width", "i4"), ("slot0", "i4"), ("each", "i4"), ("skip", "i4")])


@dataclass(frozen=True)
class Piece:
    """Rows of one group and some of its columns, and the method that sums them.

    ``low`` and ``high`` are indices in the list of rows; ``bins`` is the number of bins of the longest window, cut at
    the end of the data.
    """

    group: int
    low: int
    high: int
    a: int
    b: int
    bins: int
    fourier: bool
    each: int = 0
    slot0: int = 0
    slots: int = 0


class Terms:
    """A `WindowSum` for ``sum.cu``: rates and coefficients times ``d!``, of the window and then of its square.

    Of a pair of conjugate rates one is used with twice its coefficients, since the kernel takes real parts of the sums.
    """

    def __init__(self, window: WindowSum) -> None:
        self.complex = not window.real
        parts, self.shapes = [], []
        for found in (window.gathered(), window.squared()):
            half = {rate: c * (2 if rate.imag else 1) for rate, c in found.items() if rate.imag >= 0}
            degrees = max(len(c) for c in half.values())
            table = np.zeros((len(half), degrees), np.complex128)
            for row, c in zip(table, half.values(), strict=True):
                row[: len(c)] = c * [float(math.factorial(d)) for d in range(len(c))]
            parts += [np.array(list(half)), table.ravel()]
            self.shapes.append((len(half), degrees))
        values = np.concatenate(parts)
        self.values = values.view(np.float64) if self.complex else values.real.copy()

    def defines(self, banks: int) -> dict[str, object]:
        """Defines of the kernel."""
        (k, d), (k2, d2) = self.shapes
        sizes = {"RATES": k, "DEGREES": d, "RATES2": k2, "DEGREES2": d2}
        return {**sizes, "COMPLEX": int(self.complex), **bank_defines(banks)}


def bank_defines(banks: int) -> dict[str, object]:
    """Defines that follow from the number of detectors."""
    return {"BANKS": banks, "MOST_DETECTORS": max(USUAL_DETECTORS, banks - 1)}


class WindowLauncher(Launcher):
    """As `Launcher`, for sums of exponentials and for functions."""

    def begin(
        self, lane: Lane, job: MapJob, tables: DeviceTables, templates: NDArray[np.int64],
        reference: NDArray[np.float64], target: Any = None,
    ) -> LaunchedWork:  # fmt: skip
        """See `Launcher.begin`."""
        with lane:
            held = self._held_of(job, tables)
            if self.spec.window.algorithm == Algorithm.MOMENTS and self.spec.sums != "exact":
                return self._sum(lane, job, tables, held, templates, reference, target)
            return self._any_shape(lane, job, tables, held, templates, reference, target)

    def close(self) -> None:
        """Drop the data of the schedule."""
        self._held = None
        super().close()

    fourier: bool | None = None
    """Whether functions are summed by Fourier transforms; None chooses the faster method for each column."""
    memory: str | float | None = None
    """Budget of device memory, as for the engine."""
    _held: ScheduleData | None = None

    def _held_of(self, job: MapJob, tables: DeviceTables) -> ScheduleData:
        if self._held is None or self._held.tables is not tables:
            self._held = ScheduleData(self, job, tables)
            self.runtime.synchronize()  # the streams of the lanes do not wait for the stream that made the arrays
        return self._held

    def _rows(
        self, lane: Lane, job: MapJob, tables: DeviceTables, templates: NDArray[np.int64], shape: Any
    ) -> tuple[Any, int, Any]:
        """Packed atoms of the sum over detectors and of each detector, with an empty bin after the last; the number of
        such banks; flags of templates that are too loud."""
        host, count = tables.host, len(templates)
        banks = (job.bank, *job.detectors) if self.spec.lines else (job.bank,)
        shape["stored"] = stored = (host.n // ROWS + 1) * ROWS
        flags = None
        rows = lane.array("window", 8 * len(banks) * count * stored, self.dtype)
        for i, bank in enumerate(banks):
            antenna, data = self._upload(lane, bank, templates, str(i))
            flags = self._loud(lane, job, antenna, data, count, again=i > 0)
            away, step = self._away(lane, tables, bank, job, i)
            part = rows[8 * i * count * stored : 8 * (i + 1) * count * stored]
            self._pack(shape, antenna, data, away, step, job, 1, self.dtype.type(1), part, None)
        return rows, len(banks), flags

    # ------------------------------------------------------------------ sums of exponentials
    def _sum(
        self, lane: Lane, job: MapJob, tables: DeviceTables, held: ScheduleData, templates: NDArray[np.int64],
        reference: NDArray[np.float64], target: Any,
    ) -> LaunchedWork:  # fmt: skip
        assert isinstance(self.spec.window.shape, WindowSum)
        host, count, columns = tables.host, len(templates), job.schedule.shape[1]
        blocks = -(-columns // SUM_COLUMNS)
        chunks = min(65535, self._chunks(tables, blocks * count * SUM_THREADS // 32, SUM_RESIDENT))
        chunk = -(-host.count // (chunks * SUM_TILE)) * SUM_TILE
        chunks = -(-host.count // chunk)
        slots = blocks * chunks * SUM_THREADS // 32
        work, shape, arrays = self._frame(lane, job, tables, templates, reference, slots, target)
        shape["low"], shape["high"], shape["chunk"] = 0, host.count, chunk
        rows, banks, flags = self._rows(lane, job, tables, templates, shape)
        lines = line_struct(self.spec.lines, self.dtype, max(USUAL_DETECTORS, banks - 1))
        args = (
            rows, tables.length, held.taus, np.int32(job.tatom), held.terms, held.offsets, arrays["bases"],
            self.dtype.type(CONDITION_BOUND), lines, shape[0], *tables.rows, tables.more, tables.skip, work.map,
            arrays["rows"], arrays["columns"], arrays["slots"], arrays["line_slots"],
        )  # fmt: skip
        module = self.module("sum", Terms(self.spec.window.shape).defines(banks))
        shared = banks * 7 * SUM_TILE * SUM_COLUMNS * 8
        module.launch("sum_march", (blocks, count, chunks), (SUM_THREADS,), args, shared, lane.stream)
        self._best(lane, shape, arrays, flags)
        self._download(lane, work, arrays)
        return work

    # ------------------------------------------------------------------ any function
    def _any_shape(
        self, lane: Lane, job: MapJob, tables: DeviceTables, held: ScheduleData, templates: NDArray[np.int64],
        reference: NDArray[np.float64], target: Any,
    ) -> LaunchedWork:  # fmt: skip
        pieces = held.pieces
        slots = pieces[-1].slot0 + pieces[-1].slots
        work, shape, arrays = self._frame(lane, job, tables, templates, reference, slots, target)
        rows, banks, flags = self._rows(lane, job, tables, templates, shape)
        module = self.module("cells", bank_defines(banks))
        lines = line_struct(self.spec.lines, self.dtype, max(USUAL_DETECTORS, banks - 1))
        spectra: Any = None
        for i, p in enumerate(pieces):
            weights = held.weights(job, i)
            tile = np.zeros(1, TILE)
            tile["column0"], tile["width"], tile["slot0"] = p.a, p.b - p.a, p.slot0
            tile["each"], tile["skip"] = p.each, tables.host.skip[p.group]
            shape["low"], shape["high"] = p.low, p.high
            ends = (
                held.lengths[p.group], arrays["bases"], self.dtype.type(CONDITION_BOUND), lines, shape[0], tile[0],
                *tables.rows[:2], work.map, arrays["rows"], arrays["columns"], arrays["slots"], arrays["line_slots"],
            )  # fmt: skip
            if not p.fourier:
                blocks = (-(-(p.b - p.a) // CELL_COLUMNS), len(templates), strips(p))
                module.launch("direct", blocks, (CELL_THREADS,), (rows, weights, *ends), stream=lane.stream)
                continue
            if spectra is None:
                spectra = self._spectra(rows, banks, len(templates), shape, held.size)
            grid = (-(-(p.high - p.low) // CELL_THREADS), -(-(p.b - p.a) // EACH_COLUMNS))
            for t, sums in enumerate(self._correlations(spectra, weights, held.size)):
                args = (rows, sums, np.int32(held.size), np.int32(t), *ends)
                module.launch("cells", grid, (CELL_THREADS,), args, stream=lane.stream)
        self._best(lane, shape, arrays, flags)
        self._download(lane, work, arrays)
        return work

    def _spectra(self, rows: Any, banks: int, count: int, shape: Any, size: int) -> Any:
        """Fourier transforms of the atoms, shape (B, banks, 7, size / 2 + 1)."""
        stored, n = int(shape["stored"][0]), int(shape["n"][0])
        packed = rows.reshape(banks, count, stored, 8)[:, :, :n]
        sums = packed[..., [0, 1, 2, 4, 5, 6, 7]].astype(np.float64).transpose(1, 0, 3, 2)
        return self.xp.fft.rfft(sums, size, axis=-1)

    def _correlations(self, spectra: Any, weights: Any, size: int) -> Any:
        """Yield for each template the sums at every bin, shape (columns, banks, 7, size)."""
        xp = self.xp
        w = weights.T.astype(np.float64)
        once = xp.fft.rfft(w, size, axis=-1).conj() / size
        square = xp.fft.rfft(w * w, size, axis=-1).conj() / size
        found = xp.empty((w.shape[0], *spectra.shape[1:]), np.complex128)
        for spectrum in spectra:
            xp.multiply(spectrum[None, :, :3], square[:, None, None], out=found[:, :, :3])
            xp.multiply(spectrum[None, :, 3:], once[:, None, None], out=found[:, :, 3:])
            yield xp.ascontiguousarray(xp.fft.irfft(found, size, axis=-1, norm="forward"))


def strips(p: Piece) -> int:
    """Number of blocks of the kernel ``direct`` along the rows of a piece."""
    return -(-(p.high - p.low) // (p.each * CELL_WARPS))


class ScheduleData:
    """Terms, lengths and weights that a launcher keeps for one schedule."""

    def __init__(self, launcher: WindowLauncher, job: MapJob, tables: DeviceTables) -> None:
        xp, spec = launcher.xp, launcher.spec
        self.tables, self.window, self.dtype, self.xp = tables, spec.window, launcher.dtype, xp
        self._runtime = launcher.runtime
        if isinstance(spec.window.shape, WindowSum) and spec.sums != "exact":
            self.taus, self.offsets = xp.asarray(job.taus), xp.asarray(job.schedule.offset.astype(np.int32))
            self.terms = xp.asarray(Terms(spec.window.shape).values)
            return
        self.size = fast_length(2 * tables.host.n)
        device = launcher.runtime.device
        budget = parse_budget(launcher.memory, device.total_memory, default=0.8)
        tile = min(TILE_BYTES, budget // TILES)
        self.pieces = pieces_of(job, tables.host, self.dtype, device, launcher.fourier, tile)
        self.lengths = {p.group: xp.asarray(tables.host.length[p.group]) for p in self.pieces}
        held = sum(p.bins * (p.b - p.a) for p in self.pieces) * self.dtype.itemsize
        self._room = held <= KEPT_SHARE * budget
        self._weights: dict[int, Any] = {}

    def weights(self, job: MapJob, i: int) -> Any:
        """Weights of a piece in device memory, shape (bins, columns)."""
        found = self._weights.get(i)
        if found is None:
            found = self.xp.asarray(weights_of(job, self.pieces[i], self.window, self.tables.host.length, self.dtype))
            if self._room:
                self._runtime.synchronize()  # the streams of other lanes do not wait for this copy
                self._weights[i] = found
        return found


def weights_of(job: MapJob, p: Piece, window: Window, lengths: NDArray[np.int32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Weights of the columns of a piece, shape (bins, columns); each column is scaled to a largest weight in [1/2,
    1)."""
    width = p.b - p.a
    many = np.minimum(lengths[p.group, p.a : p.b], p.bins).astype(np.int64)
    inside = np.arange(p.bins) < many[:, None]
    since = int(job.schedule.offset[p.group]) + job.tatom * np.arange(p.bins, dtype=np.float64)
    w = np.zeros((width, p.bins))
    w[inside] = window.weights((since / job.taus[p.a : p.b, None])[inside])
    largest = np.abs(w).max(axis=1, initial=0.0, keepdims=True)
    w = np.ldexp(w, -np.frexp(largest)[1])
    return np.ascontiguousarray(w.T.astype(dtype))


def pieces_of(
    job: MapJob, host: Tables, dtype: np.dtype[Any], device: Device, fourier: bool | None, tile: float
) -> list[Piece]:
    """Divide all cells into groups of rows and tiles of columns, with the cheaper method or the one given."""
    out: list[Piece] = []
    slot, banks, size = 0, 1 + len(job.detectors), fast_length(2 * host.n)
    for g, low, high, bins, change in changes_of(host, dtype, device, fourier):
        a = int(host.skip[g])
        while a < len(bins):
            by_fourier = a >= change
            if by_fourier:
                b = min(len(bins), a + max(EACH_COLUMNS, int(tile / (8 * banks * 14 * size))))
            else:
                b = max(change, a + 1)
                b = min(b, a + max(CELL_COLUMNS, int(tile / (dtype.itemsize * max(1, int(bins[b - 1]))))))
            piece = Piece(g, low, high, a, b, max(1, int(bins[b - 1])), by_fourier)
            if by_fourier:
                slots = -(-(high - low) // CELL_THREADS) * -(-(b - a) // EACH_COLUMNS) * CELL_WARPS
            else:
                blocks = -(-(b - a) // CELL_COLUMNS)
                each = max(2, min(32, (high - low) * blocks // (16 * device.sm_count) // 2 * 2))
                piece = replace(piece, each=each)
                slots = blocks * strips(piece) * CELL_WARPS
            out.append(replace(piece, slot0=slot, slots=slots))
            slot += slots
            a = b
    return out


def changes_of(
    host: Tables, dtype: np.dtype[Any], device: Device | None, fourier: bool | None
) -> Iterator[tuple[int, int, int, NDArray[np.int64], int]]:
    """Yield for each group its number, its range in the list of rows, the bins of its columns, and the first column for
    which transforms are faster."""
    size = fast_length(2 * host.n)
    slow = 1.0 if device is None or device.fast_doubles else SLOW_DOUBLES
    for g in np.unique(host.group):
        places = np.flatnonzero(host.group == g)
        low, high = int(places[0]), int(places[-1]) + 1
        bins = np.minimum(host.length[g], host.n - int(host.first[low]))
        if fourier is not None:
            change = 0 if fourier else len(bins)
        else:
            slower = DIRECT[dtype.name] * bins_summed(bins, host.n - host.first[low:high]) > slow * transform_seconds(
                size
            )
            change = int(np.argmax(slower)) if slower.any() else len(bins)
        yield int(g), low, high, bins, change


def work_of(job: MapJob, host: Tables, dtype: np.dtype[Any], fourier: bool | None = None) -> tuple[float, float]:
    """Bins summed one by one, and points transformed (times log2 of the length), for one template and all detectors."""
    direct = transformed = 0.0
    if host.count == 0:
        return direct, transformed
    points = POINTS * (size := fast_length(2 * host.n)) * float(np.log2(size))
    for g, low, high, bins, change in changes_of(host, dtype, None, fourier):
        start = int(host.skip[g])
        direct += float(bins_summed(bins, host.n - host.first[low:high])[start:change].sum())
        transformed += points * max(0, len(bins) - max(change, start))
    banks = 1 + len(job.detectors)
    return banks * direct, banks * transformed


def bins_summed(bins: NDArray[Any], left: NDArray[Any]) -> NDArray[np.float64]:
    """Bins that all rows sum in each column; `left` are the bins from each row to the end of the data."""
    ends = np.sort(np.asarray(left, np.float64))
    upto = np.concatenate([[0.0], np.cumsum(ends)])
    short = np.searchsorted(ends, bins)
    return np.asarray(upto[short] + bins * (len(ends) - short).astype(np.float64))


def transform_seconds(size: int) -> float:
    """Seconds for the transforms of one column."""
    return FOURIER * POINTS * size * float(np.log2(size))


def fast_length(n: int) -> int:
    """The smallest even ``2^a 3^b 5^c`` that is at least `n`."""
    best = 1 << max(1, (n - 1).bit_length())
    for five in range(14):
        for three in range(20):
            base = 5**five * 3**three
            if base > best:
                break
            twos = max(1, (-(-n // base) - 1).bit_length())
            best = min(best, base << twos)
    return best
