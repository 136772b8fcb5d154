"""GPU methods for light curves in several bands: combs, and exact fits (see `Method` for the interface).

The channels are those of ``numerics.fourier.tables``, band after band.  An object's method follows from its own grid
and time span alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from skysieve.core.gpu.structs import fill, struct
from skysieve.periodogram.cuda.fourier.methods import RESERVED, ExactFits, SeriesMethod, SeriesMethods
from skysieve.periodogram.cuda.methods import DeviceChunk
from skysieve.periodogram.cuda.samples.layout import comb_tables
from skysieve.periodogram.cuda.samples.samples import PAD
from skysieve.periodogram.cuda.sinusoid.tables import MODES, make_tables
from skysieve.periodogram.numerics.fourier import Model
from skysieve.periodogram.numerics.fourier import tables as columns_of_sums
from skysieve.periodogram.numerics.nufft import KERNELS, TAPS, M

if TYPE_CHECKING:
    from skysieve.periodogram.cuda.chunks import ChunkJob
    from skysieve.periodogram.cuda.samples.stretches import Cut

F64 = np.dtype(np.float64)
COMB_KERNEL = KERNELS[F64]
OFFSET_SHAPES = ((1, 16), (1, 8), (2, 8), (4, 8), (4, 4), (4, 2), (4, 1))
"""Circles of w at f and combs of ``bands_offset``, the best first."""
EXCHANGE = 8 * (16 * 17 + 8)
"""Numbers that the half warps of ``bands_offset`` exchange: as in ``bands/bands.cu``."""
HALVES, SLOT, CHUNK = 24, COMB_KERNEL.modes, 64
"""Half warps of a block of ``bands_comb``, complex numbers of a slot, points held: as in ``bands/bands.cu``."""
COMBS = (16, 12, 8, 6, 4, 3, 2, 1)
SPREADING = 4.0
"""Cost of spreading the points, in units of one round of transforms."""


LIMIT = 10.0
"""Largest sum of squares of the parameters, over the square root of the number of points, for which a fit by combs is
trusted; as ``cpu.fourier.series.LIMIT``."""
GRID = ("offsets*", "info*", "order*", "tasks*")
FREQUENCIES = ("f0*", "df*", "nf*")
_TABLES = ("first*", "second*", "fold*", "deconvolve*")
BANDS = struct("pick*", "first_row*", "share*", "bands")
"""``struct Bands``: the rows of each band."""
WEIGHTS = struct("tp*", "owner*", "taps*", "df*", "limit*", "cell*", "weight*", "rows", "stride", "grid_stride")


def with_bands(before: tuple[str, ...], after: tuple[str, ...]) -> np.dtype[Any]:
    """A struct with ``struct Bands`` between two lists of fields."""
    a, b = struct(*before), struct(*after)
    assert a.names is not None
    assert b.names is not None
    fields = [(n, a[n]) for n in a.names] + [("rows", BANDS)] + [(n, b[n]) for n in b.names]
    return np.dtype(fields, align=True)


OFFSET = with_bands(
    ("tp*", "wv*", "cell*", "at_f*", "at_2f*"),
    (
        *GRID, *_TABLES, *FREQUENCIES, "start*", "power*", "odd*", "limit.", "P", "S", "blocks", "stretches",
        "circles", "grid_stride", "zero",
    ),
)  # fmt: skip
COMB = with_bands(
    ("tp*", "wv*", "cell*", "weight*"),
    (
        *GRID, *_TABLES, *FREQUENCIES, "start*", "power*", "odd*", "limit.", "penalty.", "band_penalty.", "P", "G",
        "stretches", "stride", "grid_stride", "room", "slots", "regularised",
    ),
)  # fmt: skip


class BandsMethod(SeriesMethod):
    """Base class of the methods for several bands."""

    def small_arrays(self, job: ChunkJob, i: int, multiprocessors: int) -> tuple[Cut | None, dict[str, Any]]:
        return None, {f"tasks{i}": job.parts[i].tasks}


@dataclass(frozen=True)
class ExactBands(BandsMethod, ExactFits):
    """Every frequency fitted by itself (``bands/exact.cu``)."""


@dataclass(frozen=True)
class BandsCombs(BandsMethod):
    """Combs of a band of frequencies, for light curves of up to ``most_cycles`` = df T (``bands/comb.cu``).

    A band has ``combs`` combs.  ``together`` of them are transformed at a time, in ``slots`` of shared memory.  The
    points are spread to ``room`` complex cells.  ``price`` is the relative cost of a frequency.
    """

    combs: int
    most_cycles: float
    shared_bytes: int
    modes: int
    price: float
    together: int = 0
    room: int = 0
    slots: int = 0
    rows: ClassVar[str] = "weights"

    @property
    def cycles(self) -> float:
        return self.most_cycles

    @property
    def circle(self) -> float:
        return M * self.combs

    @property
    def span(self) -> int:
        """Frequencies of a band."""
        return self.modes * self.combs

    def cost(self, nf: Any) -> Any:
        return self.price

    def prepare_rows(self, worker: Any, chunk: DeviceChunk, stream: Any) -> None:
        lane, data, rows = chunk.lane, chunk.data, chunk.job.n_rows
        padded, top = rows + PAD, int(harmonics(worker.model).max())
        out = {
            "cell": lane.array("bands_cell", top * padded, np.int32),
            "weight": lane.array("bands_weight", 16 * top * padded, np.float64),
        }
        taps = worker.on_device(lane, "bands_taps", lambda: {"taps": COMB_KERNEL.coefficients()})
        args = fill(
            WEIGHTS, tp=chunk.work["tp"], owner=chunk.work["owner"], df=data["df"], limit=data["limit"], rows=rows,
            stride=padded, grid_stride=chunk.stride, **taps, **out,
        )  # fmt: skip
        worker.bands("bands/comb.cu").launch("bands_weights", (-(-rows // 16),), (256,), (args,), stream=stream)
        chunk.once(self.rows, lambda: {**out, "stride": padded})

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        model, part = worker.model, chunk.job.parts[i]
        tables = worker.on_device(chunk.lane, ("bands", self.combs), lambda: comb_tables(self.combs, COMB_KERNEL))
        args = fill(
            COMB, penalty=model.penalty, band_penalty=model.band_penalty, G=self.together, room=self.room,
            slots=self.slots, regularised=int(model.regularised), **self._arguments(worker, chunk, i), **tables,
        )  # fmt: skip
        worker.bands("bands/comb.cu").launch(
            "bands_comb", (part.launches,), (384,), (args,), shared_mem=self.shared_bytes, stream=stream
        )
        worker.fit_exactly(chunk, i, {})

    def _arguments(self, worker: Any, chunk: DeviceChunk, i: int) -> dict[str, Any]:
        return {
            "order": chunk.data[f"order{i}"], "tasks": chunk.data[f"tasks{i}"], "limit": LIMIT, "P": self.combs,
            "stretches": chunk.job.parts[i].stretches, **chunk.buffers[self.rows], **worker.arguments(chunk),
        }  # fmt: skip


@dataclass(frozen=True)
class OffsetCombs(BandsCombs):
    """Combs of one sinusoid and a mean for each band, whose cells of f wind round ``fold`` circles
    (``bands/bands.cu``)."""

    fold: int = 1

    def prepare_rows(self, worker: Any, chunk: DeviceChunk, stream: Any) -> None:
        worker.weights(chunk, stream)

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        part = chunk.job.parts[i]
        tables = worker.on_device(chunk.lane, ("offset", self.combs), lambda: make_tables(self.combs, F64))
        args = fill(
            OFFSET, S=self.combs, blocks=1, circles=self.fold, zero=0, **self._arguments(worker, chunk, i), **tables
        )
        worker.bands("bands/bands.cu").launch(
            "bands_offset", (part.launches,), (128,), (args,), shared_mem=self.shared_bytes, stream=stream
        )
        worker.fit_exactly(chunk, i, {})


def most_terms(model: Model) -> int:
    """The highest harmonic that the model has."""
    return max(1, model.terms, model.band_terms)


def is_offset(model: Model) -> bool:
    """Whether the model is one sinusoid and a mean for each band, which has a kernel of its own."""
    return (model.terms, model.band_terms, model.constant, model.regularised) == (1, 0, False, False)


def harmonics(model: Model) -> NDArray[np.int64]:
    """Harmonic of each channel."""
    found: NDArray[np.int64] = columns_of_sums(model).channel[:, 0]
    return found


def spread_bytes(model: Model) -> int:
    """Device bytes of the kernel weights of one row."""
    return 2 * (16 * 8 + 4) if is_offset(model) else int(harmonics(model).max()) * (16 * 8 + 4)


@lru_cache(maxsize=32)
def comb_methods(model: Model, shared: int) -> tuple[BandsCombs, ...]:
    """Combs that a GPU with ``shared`` bytes of shared memory a block can run, the cheapest first."""
    return _offset_combs(model, shared) if is_offset(model) else _general_combs(model, shared)


def _offset_combs(model: Model, shared: int) -> tuple[BandsCombs, ...]:
    out = []
    for price, (fold, combs) in enumerate(OFFSET_SHAPES):
        size = 16 * M * fold * (model.n_bands + 3) + 8 * EXCHANGE
        if size <= shared - RESERVED:
            cycles = ((M * fold - TAPS) / M - 1e-9) / combs
            out.append(OffsetCombs(combs, cycles, size, MODES[F64], price, fold=fold))
    return tuple(out)


def circles(harmonic: NDArray[np.int64], combs: int, cycles: float) -> NDArray[np.int64]:
    """Largest number of circles that the cells of each harmonic wind round."""
    highest = harmonic * (M * combs * cycles) + 8 * harmonic - 7
    found: NDArray[np.int64] = np.floor((highest + 15) / M).astype(np.int64) + 1
    return found


def _general_combs(model: Model, shared: int) -> tuple[BandsCombs, ...]:
    channel = harmonics(model)
    top = int(channel.max())
    points = 16 * CHUNK * (top + 1) + 4 * CHUNK

    def room(combs: int, cycles: float) -> int:
        return int(M * circles(channel, combs, cycles).sum())

    def price(combs: int, together: int) -> float:
        """Cost of a frequency, in rounds of transforms."""
        transforms = -(-together * len(channel) // HALVES)
        equations = -(-together * SLOT // (16 * HALVES)) * (1 + model.band_terms)
        return (SPREADING + combs // together * (transforms + equations)) / combs

    out = []
    for together in (1, 2, 3, 4, 6, 8):
        slots = max(2 * -(-together * len(channel) // 2), 2 * -(-points // (32 * SLOT)))
        fixed = 16 * SLOT * slots + 4 * (len(channel) + 1)
        left = (shared - RESERVED - fixed) // 16
        for combs in (c for c in COMBS if c % together == 0):
            if room(combs, 0.0) > left:
                continue
            low, high = 0.0, 64.0 / combs
            for _ in range(50):
                middle = (low + high) / 2
                low, high = (middle, high) if room(combs, middle) <= left else (low, middle)
            size = room(combs, low)
            cost = price(combs, together)
            out.append(BandsCombs(combs, low, 16 * size + fixed, SLOT, cost, together, size, slots))
    out.sort(key=lambda a: a.price)
    return tuple(out)


@dataclass(frozen=True)
class BandsMethods(SeriesMethods):
    """The methods of light curves in several bands."""

    @property
    def model(self) -> Model:
        assert self.spec.model is not None
        return self.spec.model

    @property
    def terms(self) -> int:
        return most_terms(self.model)

    @property
    def known(self) -> tuple[BandsCombs, ...]:
        return () if self.direct_only else comb_methods(self.model, self.shared)

    @property
    def direct(self) -> SeriesMethod:
        return ExactBands()

    def row_bytes(self) -> int:
        return 24 + 24 + 8 + 24 + spread_bytes(self.model)
