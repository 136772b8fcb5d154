"""GPU methods for one sinusoid: interpolation from samples, combs, direct sums (see `Method` for the interface).

An object's method follows from its own grid and time span alone, so that its answer does not depend on the others of
its chunk.  The mathematics of combs is in ``numerics.nufft``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from skysieve.core.device import Device
from skysieve.core.gpu.structs import fill, from_place
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda import structs as cs
from skysieve.periodogram.cuda.cost import Costs
from skysieve.periodogram.cuda.methods import (  # fmt: skip
    LONG,
    MANY,
    SMALLEST_NUFFT,
    DeviceChunk,
    Method,
    Methods,
    Objects,
    class_ends,
    classes_of,
)
from skysieve.periodogram.cuda.parts import (  # fmt: skip
    CANDIDATE_BYTES,
    DIRECT_SPAN,
    LIST_SPAN,
    SEARCH_SPAN,
    MethodPart,
    blocks_of,
    dealt,
    pruned_candidates,
    smooth_candidates,
)
from skysieve.periodogram.cuda.peaks.launch import PEAK_BYTES, tries
from skysieve.periodogram.cuda.samples.half_window import HALVES, HALVES_REACH
from skysieve.periodogram.cuda.samples.layout import FULLEST, POWERS_SPAN, SampleLayout, bessel_i0
from skysieve.periodogram.cuda.samples.samples import HALVES_TAPS, TAPS, WINDOW, sampler_kernels, small_arrays
from skysieve.periodogram.cuda.samples.stretches import Cut, cut, sample_bytes
from skysieve.periodogram.cuda.worker import PACKAGE
from skysieve.periodogram.numerics.nufft import TAPS as COMB_TAPS
from skysieve.periodogram.numerics.nufft import M

from .tables import COARSE, MODES, OUTPUTS, make_coarse_tables, make_tables

if TYPE_CHECKING:
    from skysieve.periodogram.cuda.chunks import ChunkJob

SHAPES = ((1, 8), (1, 4), (4, 4), *((1, 2**k) for k in range(5, 14)), (2, 8))
"""Circles and combs of the builds.  Powers of two: fractions of a comb are exact, and few shapes serve all spans."""
LONG_ALONE = (2, 8)
"""The build that only series of more than `LONG` points use: four combs of one circle serve the same grids, but all
points are spread twice as often."""
FLAT = 8
"""Bands of at most this many combs are staged whole and searched as one stretch; wider ones comb by comb."""
FINE = 64
"""In float64 bands of at least this many combs are interpolated from four of them (``sinusoid/fine.cu``)."""
COARSE_MODES = 192
"""Modes used where sums are interpolated: they need a few more on either side."""
TILE = 8
"""Intervals between coarse samples that a warp of ``ls_fine`` follows together."""
_WARPS = 8
SHORTEST_RUN = 48
"""Number of combs of a block below which it is better that its four warps share the two further combs."""
_FOLDING = {1: 1.0, 2: 1.15, 4: 1.5}
_FURTHER = 1.04
_SPREADING, _SPREADING_ALONE = 3.0, 8.0
"""Relative costs of a comb whose cells fold and of one whose neighbours are computed twice; of spreading the points of
a band pair in the comb's kernel and in a kernel of its own."""
STEPS = (32, 16, 8)
"""Frequencies between samples: closer ones cost more than a comb."""
SAMPLED_MODES = {np.dtype(np.float64): 160, np.dtype(np.float32): 208}
SAMPLED_REACH = {np.dtype(np.float64): 18, np.dtype(np.float32): HALVES_REACH}
"""Samples of a transform, and those that an interpolated value is made of."""
_SAMPLING = {160: (6.0, 1.6, 0.51), 208: (6.0, 2.3, 0.56)}
"""Costs of an object, of two bands, and of each frequency between their samples, in units of one comb; by the number of
samples of a transform."""
MATRIX_UNITS = (8, 0)
"""Lowest compute capability with float64 matrix units; they are faster than the plain ones where float64 is fast."""


def has_matrix_units(device: Device) -> bool:
    """Whether a GPU has float64 matrix units worth using."""
    return device.compute_capability >= MATRIX_UNITS and device.fast_doubles


SPREAD_CELLS = 2 * 1024
"""Complex cells of a pair of bands."""
GROUP = 256
"""Objects whose blocks follow one another: their first bands together, then their second, and so on, so that the
floor under the best peaks is known when the later ones are searched."""
BESIDE = 4
"""Tiles of a block of direct sums beside larger parts (``RUN`` of ``sinusoid/direct.cu``, at most): fewer blocks
leave more of the GPU to those."""
Guard = tuple[float, int]
"""Powers are computed again from exact centred sums if the determinant CC SS - CS^2 is at most the first number, or the
number of points at most the second: the errors of the sums are divided by the determinant.  Without a guard no error
passed 8e-10 with 25 points and more in float64, 1.7e-6 with 33 and more in float32; of sums interpolated from samples
7.2e-10 with 16 and more, 1.3e-6 with 18 and more, 8.5e-7 with 28 and more (30 light curves of each length, uniform and
nightly times, df*T 0.1)."""


class SinusoidMethod(Method):
    """Base class of the methods for one sinusoid."""

    guards: ClassVar[dict[int, Guard]]
    """The guard by the bytes of a power."""
    window: ClassVar[int] = 0
    """The window with which sums are interpolated between frequencies: 0 for none, -1 for samples."""

    @property
    def circle(self) -> float:
        """Cells of one circle times combs; 0 where there are none."""
        return 0

    def limits(self, part: MethodPart) -> dict[str, float]:
        return {"circle": self.circle, "window": self.window, "stretch": self.stretch(part.per_block)}

    def stretch(self, per_block: int) -> int:
        """Neighbouring frequencies between edge values; 0 where there are none."""
        return DIRECT_SPAN

    def object_bytes(self, methods: Methods, nf: int, cycles: float) -> float:
        size, k = methods.spec.dtype.itemsize, methods.spec.n_peaks
        part = self.part(methods.alone, Objects.one(nf, cycles, True))
        power = nf * size if methods.stores_powers else 0
        return (
            power + self.own_bytes(methods, part) + part.cap * CANDIDATE_BYTES[size] + 2 * part.edges * size + 268.0
            + 28 * k + PEAK_BYTES * tries(methods.spec)
        )  # fmt: skip

    def own_bytes(self, methods: Methods, part: MethodPart) -> float:
        """Device bytes of one object for samples or cells."""
        return 0

    def line(self, costs: Costs, nf: Any) -> tuple[Any, Any]:
        """Nanoseconds of an object of ``nf`` frequencies: without points, and of each point."""
        return costs.direct_line(nf)

    def arguments(self, worker: Any, chunk: DeviceChunk, i: int) -> dict[str, Any]:
        """Fields that the structs of all methods have, beside `DeviceChunk.of_part`."""
        guard, few = self.guards[worker.itemsize]
        return {
            "tp": chunk.work["tp"], "wv": chunk.work["wv"], "offsets": chunk.data["offsets"], "info": chunk.info,
            "nf": chunk.data["nf"], "tasks": chunk.data[f"tasks{i}"], "start": chunk.data["start"],
            "power": chunk.power, "norm": worker.norm, "scaled": worker.scaled, "guard": guard, "few": few,
            **chunk.peaks, **chunk.grids,
        }  # fmt: skip


@dataclass(frozen=True)
class DirectSums(SinusoidMethod):
    """Sums over all points for every frequency of a grid (``sinusoid/direct.cu``)."""

    direct: ClassVar[bool] = True
    guards: ClassVar[dict[int, Guard]] = {8: (1e-3, 0), 4: (0.02, 0)}

    @property
    def cycles(self) -> float:
        return np.inf

    def cost(self, nf: Any) -> Any:
        """Infinite: `SinusoidMethods.few` chooses direct sums, by the number of points."""
        return np.inf

    def part(self, methods: Methods, objects: Objects) -> MethodPart:
        tasks, stretches = blocks_of(objects.order, objects.nf, objects.shared_grid, DIRECT_SPAN)
        nf, every = objects.largest_grid, objects.largest_grid // 2 + 1
        smooth = smooth_candidates(nf, objects.largest_cycles)
        cap = min(every, max(pruned_candidates(stretches, 8, methods.spec.n_peaks), smooth))
        return MethodPart(
            self, objects.order, stretches, tasks, every if objects.all_candidates else cap, -(-nf // DIRECT_SPAN)
        )

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        part = chunk.job.parts[i]
        args = self._arguments(worker, chunk, i)
        worker.module("sinusoid/direct.cu").launch("ls_direct", (part.launches,), (256,), (args,), stream=stream)

    def _arguments(self, worker: Any, chunk: DeviceChunk, i: int) -> np.void:
        def fixed() -> dict[str, Any]:
            return {
                "frequencies": chunk.values, "fit_mean": worker.spec.fit_mean, **self.arguments(worker, chunk, i)
            }  # fmt: skip

        return chunk.struct(
            "direct", cs.DIRECT, fixed, blocks=chunk.job.parts[i].stretches,
            each=0 if i == chunk.largest else BESIDE, **chunk.of_part(i),
        )  # fmt: skip


@dataclass(frozen=True)
class ListSums(DirectSums):
    """As `DirectSums`, for a list of frequencies; separate kernels search the powers for peaks."""

    def stretch(self, per_block: int) -> int:
        return 0

    def part(self, methods: Methods, objects: Objects) -> MethodPart:
        tasks, stretches = blocks_of(objects.order, objects.nf, objects.shared_grid, LIST_SPAN)
        return MethodPart(self, objects.order, stretches, tasks, objects.largest_grid // 2 + 1, 0)

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        part, module = chunk.job.parts[i], worker.module("sinusoid/direct.cu")
        args = self._arguments(worker, chunk, i)
        module.launch("ls_list", (part.launches,), (LIST_SPAN,), (args,), stream=stream)
        blocks = -(-(part.stretches * LIST_SPAN) // SEARCH_SPAN)
        given = {**self.arguments(worker, chunk, i), **chunk.of_part(i)}
        args = fill(cs.SEARCH, blocks=blocks, **{k: v for k, v in given.items() if k in (cs.SEARCH.names or ())})
        grid, peaks = (len(part.order) * blocks,), worker.module("peaks/peaks.cu")
        peaks.launch("ls_candidates", grid, (SEARCH_SPAN,), (args,), stream=stream)
        if worker.scaled:
            args = fill(cs.SCALE, blocks=blocks, **{k: v for k, v in given.items() if k in (cs.SCALE.names or ())})
            peaks.launch("ls_scale", grid, (SEARCH_SPAN,), (args,), stream=stream)


@dataclass(frozen=True)
class NufftMethod(SinusoidMethod):
    """Base class of combs and samples.

    ``build`` names the kernels, ``combs`` are the combs of a band (or the frequencies from one sample to the next),
    ``fold`` the circles that cells wind round, and ``modes`` the outputs used of a transform.
    """

    build: str
    combs: int
    fold: int
    modes: int
    warps: ClassVar[int] = 4
    """Warps that look for peaks in a stretch."""
    good_floors: ClassVar[bool] = False
    """Whether a warp sees so many neighbours that few maxima reach its floor."""
    for_long_series: ClassVar[bool] = False
    """Whether several blocks share the cells of an object, so that a separate kernel spreads long series."""
    partly: ClassVar[bool] = False
    """Whether it leaves out the unwanted frequencies of a band.  (Otherwise bands are computed whole.)"""

    @property
    def kind(self) -> str:
        """Its row in the table of costs (`cost.Shares`)."""
        return self.build

    @property
    @abstractmethod
    def price(self) -> tuple[float, float]:
        """Relative costs of an object and of a pair of bands, in units of one comb."""

    def cost(self, nf: Any) -> Any:
        """Time in units of one comb."""
        base, each = self.price
        return base + self.pairs(nf) * each

    def line(self, costs: Costs, nf: Any) -> tuple[Any, Any]:
        return costs.comb_line(self, nf)

    @cached_property
    def span(self) -> int:
        """Frequencies of a pair of bands."""
        return 2 * self.modes * self.combs

    @property
    def long_alone(self) -> bool:
        """Whether it is for series of more than `LONG` points only."""
        return False

    def pairs(self, nf: Any) -> Any:
        """Pairs of bands of ``nf`` frequencies."""
        return -(-nf // self.span)

    def per_block(self, pairs: int, multiprocessors: int) -> int:
        """Combs of a block, or tiles of intervals: all, or fewer where that fills the GPU."""
        return self.combs

    def blocks(self, per_block: int) -> int:
        """Blocks that a band pair is cut into."""
        return 1

    def blocks_of(self, objects: Objects) -> tuple[NDArray[np.int32] | None, int]:
        """(object, pair of bands) of every block where grids differ, and the pairs of the longest grid."""
        return blocks_of(objects.order, objects.nf, objects.shared_grid, self.span)

    def part(self, methods: Methods, objects: Objects) -> MethodPart:
        tasks, stretches = self.blocks_of(objects)
        nf, every = objects.largest_grid, objects.largest_grid // 2 + 1
        pairs = len(objects.order) * stretches if tasks is None else len(tasks)
        per_block = self.per_block(pairs, methods.multiprocessors)
        pruned = pruned_candidates(stretches, self.warps, methods.spec.n_peaks)
        # without good floors nearly every maximum may be given
        most = 256 if self.good_floors else smooth_candidates(nf, objects.largest_cycles)
        stretch = self.stretch(per_block)
        return MethodPart(
            self, objects.order, stretches, tasks, every if objects.all_candidates else min(every, max(pruned, most)),
            -(-nf // stretch) if stretch else 0, per_block, objects.long,
        )  # fmt: skip


@dataclass(frozen=True)
class Comb(NufftMethod):
    """Combs of frequencies, each one FFT (``sinusoid/comb.cu``); a band is searched as a whole."""

    rows: ClassVar[str] = "weights"
    guards: ClassVar[dict[int, Guard]] = {8: (0.005, 30), 4: (0.02, 36)}
    good_floors: ClassVar[bool] = True

    @property
    def long_alone(self) -> bool:
        return (self.fold, self.combs) == LONG_ALONE

    @property
    def kind(self) -> str:
        return "flat" if self.fold == 1 else f"x{self.fold}"

    @cached_property
    def cycles(self) -> float:
        """Largest ``df * span`` for which every tap of every point falls on a cell."""
        return ((M * self.fold - COMB_TAPS) / M - 1e-9) / self.combs

    @property
    def circle(self) -> float:
        return M * self.combs

    def stretch(self, per_block: int) -> int:
        return self.span

    @cached_property
    def price(self) -> tuple[float, float]:
        return 0.0, self.combs * _FOLDING[self.fold] + _SPREADING

    def form(self, writes: bool, per_block: int) -> str:
        """The build to launch."""
        return self.build

    def file(self) -> str:
        return "sinusoid/comb.cu"

    def shared_bytes(self, itemsize: int, writes: bool = False, per_block: int = 0) -> int:
        """Dynamic shared memory of a block: cells, exchange, staged powers."""
        split = itemsize == 8
        staged = _plane(self.modes) if self.combs == FLAT else 0
        return _cells_and_exchange(self.fold, itemsize, split) + staged * itemsize

    def most_shared_bytes(self, itemsize: int) -> int:
        """Most dynamic shared memory of a block in any of its launches."""
        return self.shared_bytes(itemsize)

    def kernels(self, spec: Spec, writes: bool, per_block: int) -> list[tuple[Any, ...]]:
        return [(PACKAGE, self.file(), self.form(writes, per_block))]

    def tables(self, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        """Tables that the kernel reads for each comb."""
        return make_tables(self.combs, dtype)

    def prepare_rows(self, worker: Any, chunk: DeviceChunk, stream: Any) -> None:
        worker.weights(chunk, stream)

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        part, form = chunk.job.parts[i], self.form(chunk.power is not None, chunk.job.parts[i].per_block)
        args = chunk.struct(
            ("comb", self), cs.COMB, lambda: {"zero": 0, **self._comb_arguments(worker, chunk, i)}, S=part.per_block,
            spread=self._long_cells(worker, chunk, i, stream), **self._comb_of_part(chunk, i),
        )  # fmt: skip
        worker.module(self.file(), form).launch(
            "ls_comb", (part.launches * self.blocks(part.per_block),), (128,), (args,),
            shared_mem=self.shared_bytes(worker.itemsize, chunk.power is not None, part.per_block), stream=stream,
        )  # fmt: skip

    def _comb_arguments(self, worker: Any, chunk: DeviceChunk, i: int) -> dict[str, Any]:
        tables = worker.on_device(chunk.lane, (type(self), self.combs), lambda: self.tables(worker.spec.dtype))
        return {
            "modes": self.modes, "P": self.combs, "group": GROUP, "mean": float(worker.spec.fit_mean), **tables,
            **chunk.buffers[self.rows], **self.arguments(worker, chunk, i),
        }  # fmt: skip

    def _comb_of_part(self, chunk: DeviceChunk, i: int) -> dict[str, Any]:
        """Arguments that change from chunk to chunk."""
        part = chunk.job.parts[i]
        return {
            "pairs": part.stretches, "members": len(part.order), "blocks": self.blocks(part.per_block),
            **chunk.of_part(i),
        }  # fmt: skip

    def _long_cells(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> Any:
        """Launch the spreading of long series whose cells blocks share; return the cells, or None."""
        part, names = chunk.job.parts[i], cs.SPREAD.names or ()
        if not self.for_long_series or not part.long:
            return None
        cells = chunk.lane.place(f"cells{i}", part.launches * SPREAD_CELLS * 2, worker.spec.dtype, followed=True)
        given = {**self._comb_arguments(worker, chunk, i), **self._comb_of_part(chunk, i)}
        args = fill(cs.SPREAD, out=cells, **{k: v for k, v in given.items() if k in names})
        module = worker.module("sinusoid/spread.cu")
        module.launch("ls_spread", (part.launches * 48,), (256,), (args,), stream=stream)
        return cells

    def own_bytes(self, methods: Methods, part: MethodPart) -> float:
        if not self.for_long_series:
            return 0
        return part.launches * SPREAD_CELLS * 2 * methods.spec.dtype.itemsize


def _plane(modes: int) -> int:
    """Powers of a plane: four combs of two bands of ``modes``, with padding."""
    return 17 * ((2 * modes + 3) // 4)


def _cells_and_exchange(fold: int, itemsize: int, split: bool) -> int:
    """Bytes of a block's cells, and of what its transforms exchange: real, then imaginary parts where ``split``."""
    pad = 16 * 17 + (4 if itemsize == 8 and not split else 8)
    exchange = 4 * pad * (1 if split else 2)
    return (2 * 1024 * fold + exchange) * 2 * itemsize


@dataclass(frozen=True)
class ColumnComb(Comb):
    """Many combs of a band, divided among blocks; powers are followed from comb to comb, in float32."""

    for_long_series: ClassVar[bool] = True
    good_floors: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        return "columns"

    def stretch(self, per_block: int) -> int:
        return 0

    def per_block(self, pairs: int, multiprocessors: int) -> int:
        wave = multiprocessors * 4  # MINB of the builds with columns
        blocks = max(1, wave // max(1, pairs))
        if blocks == 1:
            return self.combs
        run = 4 * -(-self.combs // (4 * blocks))
        shared = max(
            10, 4 * -(-(self.combs - 2 * blocks) // (4 * blocks)) + 2
        )  # with two further combs a multiple of 4
        return min(self.combs, run if run >= SHORTEST_RUN else shared)

    def blocks(self, per_block: int) -> int:
        return -(-self.combs // per_block)

    @cached_property
    def price(self) -> tuple[float, float]:
        return 0.0, self.combs * _FURTHER + _SPREADING_ALONE

    def form(self, writes: bool, per_block: int) -> str:
        """Columns become runs where no power is written and a warp's run is long enough."""
        return self.build.replace("columns", "runs") if not writes and per_block >= SHORTEST_RUN else self.build

    def shared_bytes(self, itemsize: int, writes: bool = False, per_block: int = 0) -> int:
        runs = self.form(writes, per_block).endswith("runs")
        staged = 4 * 2 * 2 * OUTPUTS if runs else 2 * _plane(self.modes) + 2 * 2 * self.modes
        return _cells_and_exchange(self.fold, itemsize, False) + staged * itemsize

    def most_shared_bytes(self, itemsize: int) -> int:
        return max(self.shared_bytes(itemsize, writes, self.combs) for writes in (False, True))


@dataclass(frozen=True)
class FineComb(Comb):
    """Four of many combs are transformed, and the frequencies between them interpolated (``sinusoid/fine.cu``)."""

    window: ClassVar[int] = 1
    for_long_series: ClassVar[bool] = True
    good_floors: ClassVar[bool] = False
    partly: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        return self.build

    def file(self) -> str:
        return "sinusoid/fine.cu"

    def form(self, writes: bool, per_block: int) -> str:
        return "f64"

    def stretch(self, per_block: int) -> int:
        return per_block * TILE * self.combs // COARSE

    def per_block(self, pairs: int, multiprocessors: int) -> int:
        tiles = COARSE * self.modes // TILE
        most = 2 * pairs * tiles // (12 * max(1, multiprocessors))
        return max([t for t in range(_WARPS, tiles + 1, _WARPS) if tiles % t == 0 and t <= most] or [_WARPS])

    def blocks(self, per_block: int) -> int:
        return 2 * COARSE * self.modes // TILE // per_block

    def shared_bytes(self, itemsize: int, writes: bool = False, per_block: int = 0) -> int:
        tiles = per_block or COARSE * self.modes // TILE
        return max(1024 * 16 + 2 * _WARPS * (16 * 17 + 8) * 8, 3 * 784 * 16 + tiles * TILE * 4 * 8)

    @cached_property
    def price(self) -> tuple[float, float]:
        return 0.0, 0.39 * self.combs + 21.0

    def tables(self, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        return make_coarse_tables(self.combs, self.modes)

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        part = chunk.job.parts[i]
        args = chunk.struct(
            ("fine", self), cs.COARSE, lambda: self._comb_arguments(worker, chunk, i), tiles=part.per_block,
            spread=self._long_cells(worker, chunk, i, stream), **self._comb_of_part(chunk, i),
        )  # fmt: skip
        worker.module(self.file()).launch(
            "ls_fine", (part.launches * self.blocks(part.per_block),), (256,), (args,),
            shared_mem=self.shared_bytes(worker.itemsize, False, part.per_block), stream=stream,
        )  # fmt: skip


@dataclass(frozen=True)
class Samples(NufftMethod):
    """Sums on one regular grid for all harmonics, and every frequency interpolated from ``reach`` of their samples
    (``sinusoid/powers.cu``, and in float32 ``sinusoid/powers_half.cu``)."""

    reach: int
    halves: bool
    """Whether each sample is a pair of half-precision numbers (``cuda.samples.half_window``)."""
    rows: ClassVar[str] = "samples"
    window: ClassVar[int] = -1
    guards: ClassVar[dict[int, Guard]] = {8: (0.02, 15), 4: (0.05, 16)}
    warps: ClassVar[int] = 8
    partly: ClassVar[bool] = True

    @cached_property
    def layout(self) -> SampleLayout:
        """The layout of the samples, for blocks of ``ls_powers``."""
        tiles = POWERS_SPAN // (64 * max(1, self.combs // 8))
        return SampleLayout(1, self.combs, tiles, self.modes, self.reach, self.halves)

    @cached_property
    def cycles(self) -> float:
        """Largest ``df * span`` for which samples are close enough."""
        return FULLEST / self.combs

    @property
    def circle(self) -> float:
        return M * self.combs

    @cached_property
    def taps(self) -> int:
        """Number of pairs of interpolation coefficients of one grid."""
        return self.parts * sum(self.steps) * 32

    @cached_property
    def parts(self) -> int:
        """Rows of 16 frequencies after which samples lie at the same places between frequencies again."""
        return self.combs // 8 if self.halves else max(1, self.combs // 16)

    @cached_property
    def steps(self) -> tuple[int, int]:
        """Groups of four samples, of eight halves, that a row of 16 frequencies is made of, at f and at 2f."""
        if self.halves:
            return 3, 3
        at_f, at_2f = (-(-(self.reach * self.combs + 15 * h) // (4 * self.combs)) for h in (1, 2))
        return at_f, at_2f

    def stretch(self, per_block: int) -> int:
        return POWERS_SPAN

    def blocks_of(self, objects: Objects) -> tuple[NDArray[np.int32] | None, int]:
        return blocks_of(objects.order, objects.nf, objects.shared_grid, POWERS_SPAN)

    def shared_bytes(self, itemsize: int) -> int:
        """Dynamic shared memory of a block of powers: samples, or what the search lists in their place, and powers."""
        rows = POWERS_SPAN // (16 * self.parts) - 1
        stride, spare, group = (2, 2, 8) if self.halves else (max(1, 16 // self.combs), 1, 4)
        at_f, at_2f = (
            rows * h * stride + spare * (h + 1) * (self.parts > 1) + group * step
            for h, step in enumerate(self.steps, 1)
        )
        if self.halves:
            at_f, at_2f = ((samples + 13) // 8 for samples in (at_f, at_2f))  # octets, from any place on
            return max(64 * (2 * at_f + at_2f), 4 * POWERS_SPAN) + itemsize * POWERS_SPAN * 20 // 16
        return max(16 * (2 * at_f + at_2f), 4 * POWERS_SPAN) + itemsize * POWERS_SPAN * 17 // 16

    @cached_property
    def price(self) -> tuple[float, float]:
        each, start, comb = _SAMPLING[self.modes]
        return each, start + comb * self.combs

    def own_bytes(self, methods: Methods, part: MethodPart) -> float:
        g, i = methods.grids, int(np.argmax(methods.grids.nf))
        samples = sample_bytes(self.layout, g.f0[i : i + 1], g.df[i : i + 1], g.nf[i : i + 1], True)
        return samples + (0 if g.shared else 16 * self.taps + 8 * (1 + self.parts))

    def kernels(self, spec: Spec, writes: bool, per_block: int) -> list[tuple[Any, ...]]:
        return [sampler_kernels(PACKAGE, self.layout), self._kernel(spec)]

    def _kernel(self, spec: Spec) -> tuple[str, str, str]:
        """Arguments of `Runtime.module` for the kernels of powers."""
        build = ("f64" if spec.dtype == np.float64 else "f32") + ("" if self.combs == 8 else f"s{self.combs}")
        return PACKAGE, "sinusoid/powers_half.cu" if self.halves else "sinusoid/powers.cu", build

    def small_arrays(self, job: ChunkJob, i: int, multiprocessors: int) -> tuple[Cut | None, dict[str, Any]]:
        order = job.parts[i].order
        own = slice(None) if job.shared else order
        made = cut(self.layout, job.f0[own], job.df[own], job.nf[own], len(order), job.shared, 1, turns=1)
        return made, small_arrays(made, i)

    def _taps(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> dict[str, Any]:
        """Launch the computation of the interpolation coefficients of ``ls_powers``, for each grid or the shared one.

        The coefficients of a shared grid are computed by the launch before the recorded one, in buffers of that launch.
        Those of many grids take too much memory for each launch to have its own: recorded launches compute them.
        """
        lane, data, stride, layout = chunk.lane, chunk.data, chunk.stride, self.layout
        n = len(chunk.job.parts[i].order) if stride else 1
        name = f"own_{i}" if stride else f"{worker.data_buffer}_{i}_{self.combs}"  # of one size: the buffer never moves

        def places() -> dict[str, Any]:
            return {
                "taps": lane.place(f"{name}_taps", 2 * n * self.taps, np.float64),
                "origin": lane.place(f"{name}_origin", 2 * n, np.int32),
                "shift": lane.place(f"{name}_shift", 2 * n * self.parts, np.int32),
            }

        taps = chunk.once(f"taps{i} {self.combs}", places)
        if lane.recording and not stride:
            return taps
        blocks = 1 if stride else -(-self.taps // 256)

        def fixed() -> dict[str, Any]:
            window = dict(zip(WINDOW, HALVES, strict=True)) if self.halves else {"inverse": 1 / bessel_i0(layout.beta)}
            return {
                "lead": data[f"lead{i}"], "at": data[f"at{i}"], "beta": layout.beta, "blocks": blocks, "member": 0,
                **chunk.grids, **window, **taps,
            }  # fmt: skip

        kind = HALVES_TAPS if self.halves else TAPS
        args = chunk.struct(("taps", self.combs, i), kind, fixed, order=data[f"order{i}"])
        module = worker.module(*self._kernel(worker.spec)[1:])
        module.launch("ls_taps", (n * blocks,), (256,), (args,), stream=stream)
        return taps

    def prepare_rows(self, worker: Any, chunk: DeviceChunk, stream: Any) -> None:
        worker.sampler.points(chunk, stream)

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        """Launch samples, then powers, for one group of the part's objects after another."""
        taps, module = self._taps(worker, chunk, i, stream), worker.module(*self._kernel(worker.spec)[1:])

        def fixed() -> dict[str, Any]:
            own = {k: v for k, v in self.arguments(worker, chunk, i).items() if k != "tasks"}
            return {
                **own, "bands": chunk.data[f"bands{i}"], "mean": float(worker.spec.fit_mean), "modes": self.modes,
                "group": GROUP, "bins": chunk.bins,
            }  # fmt: skip

        each = {"taps": 2 * self.taps, "origin": 2, "shift": 2 * self.parts}
        for made in worker.sampler.groups(chunk, stream, i, i, self.layout):
            first = made.arguments["member"]
            own = {k: from_place(a, first * each[k]) for k, a in taps.items()} if chunk.stride and first else taps
            args = chunk.struct(
                ("powers", self.combs, i), cs.SAMPLED, fixed, **made.arguments, **own, tasks=made.tasks,
                members=made.members, blocks=made.blocks // made.members, cap=chunk.job.cap, edges=chunk.job.edges,
            )  # fmt: skip
            grid: tuple[int, ...] = (made.blocks,)
            if self.halves and made.tasks is None and 1 < made.blocks // made.members < 1 << 16:
                groups = -(-made.members // GROUP)  # members of a group, their stretches, groups
                grid = (-(-made.members // groups), made.blocks // made.members, groups)
            shared = self.shared_bytes(worker.itemsize)
            module.launch("ls_powers", grid, (128,), (args,), shared_mem=shared, stream=stream)


_DIRECT, _LISTED = DirectSums(), ListSums()


@lru_cache(maxsize=8)
def nufft_methods(dtype: np.dtype[Any], shared: int, matrix: bool = False) -> tuple[NufftMethod, ...]:
    """Every method but direct sums that a GPU with ``shared`` bytes of shared memory a block can run.

    ``matrix``: whether it has float64 matrix units worth using.
    """
    sampled = (SAMPLED_MODES[dtype], SAMPLED_REACH[dtype], dtype == np.float32)
    out: list[NufftMethod] = [Samples("ls_powers", step, 1, *sampled) for step in STEPS if matrix]
    name = "f64" if dtype == np.float64 else "f32"
    for fold, combs in SHAPES:
        comb: Comb
        if combs <= FLAT:
            build = name + (f"x{fold}" if fold > 1 else "") + ("p4" if combs < FLAT else "")
            comb = Comb(build, combs, fold, MODES[dtype])
        elif dtype == np.float32:
            comb = ColumnComb(name + "columns", combs, fold, MODES[dtype])
        elif combs >= FINE:  # bands of `FLAT` combs cost as little as those between
            comb = FineComb("ls_fine", combs, fold, COARSE_MODES)
        else:
            continue
        if comb.most_shared_bytes(dtype.itemsize) <= shared:
            out.append(comb)
    return tuple(out)


def cheapest(numbered: Iterable[tuple[int, NufftMethod]], nf: int) -> int:
    """The number of the cheapest of some methods on a grid of ``nf`` frequencies; of equal ones the first; -1 for none.

    As `methods.cheapest`, in a third of the time: each new grid needs several calls.
    """
    best, least = -1, math.inf
    for number, method in numbered:
        base, each = method.price
        if (cost := base + -(-nf // method.span) * each) < least:
            best, least = number, cost
    return best


_LIMIT = Struct("=3d2i2q")
"""Packs records of ``structs.LIMIT``; NumPy takes five times as long to make them from tuples."""
_NO_LIMIT: tuple[float, ...] = (0.0, 0.0, 0.0, 0, 0, 0, 0)


class Choice:
    """Methods to choose from, and tables that depend on them alone.

    Attributes
    ----------
    short, combs : tuple of NufftMethod
        Methods for short series, which come first, and combs, which come last.
    samples : int
        Number of the first comb.
    serving : list of tuple
        For each class of ``df * span`` the numbered methods for short series that serve it, and the numbered combs.
    """

    def __init__(self, known: tuple[NufftMethod, ...]) -> None:
        self.known, self.ends = known, class_ends(known)
        self.end_list: list[float] = self.ends.tolist()
        self.short = tuple(a for a in known if not a.long_alone)
        assert self.short == known[: len(self.short)]
        self.combs = tuple(a for a in known if not isinstance(a, Samples))
        self.samples = len(known) - len(self.combs)
        numbered = [[(i, a) for i, a in enumerate(known) if a in some] for some in (self.short, self.combs)]
        self.serving = [tuple([m for m in some if end <= m[1].cycles] for some in numbered) for end in self.ends]


@lru_cache(maxsize=8)
def _choice(dtype: np.dtype[Any], shared: int, matrix: bool, direct_only: bool) -> Choice:
    return Choice(() if direct_only else nufft_methods(dtype, shared, matrix))


def sample_layout(dtype: np.dtype[Any]) -> SampleLayout:
    """A layout for a precision; all its layouts differ in the distance of samples alone."""
    return Samples("ls_powers", STEPS[0], 1, SAMPLED_MODES[dtype], SAMPLED_REACH[dtype], dtype == np.float32).layout


@dataclass(frozen=True)
class SinusoidMethods(Methods):
    """The methods of one sinusoid."""

    @cached_property
    def choice(self) -> Choice:
        """The methods to choose from."""
        return _choice(self.spec.dtype, self.shared, self.matrix, self.direct_only)

    @property
    def known(self) -> tuple[NufftMethod, ...]:
        return self.choice.known

    @property
    def ends(self) -> NDArray[np.float64]:
        return self.choice.ends

    def end_of(self, cycles: float) -> float:
        return self.choice.end_list[bisect_left(self.choice.end_list, cycles)]

    @property
    def direct(self) -> DirectSums:
        return _DIRECT if self.grids.values is None else _LISTED

    @property
    def stores_powers(self) -> bool:
        return self.writes or self.grids.values is not None

    def row_bytes(self) -> int:
        samples = 16 * 8 + 4 + 32 if self.matrix else 0
        return 24 + 24 + 8 + 8 + 2 * 16 * self.spec.dtype.itemsize + samples

    def candidates(self, nf: int, cycles: float) -> list[Method]:
        return [self.method(i) for i in set(self._of_class(nf, int(self.ends.searchsorted(cycles))))]

    def choose(
        self, nf: NDArray[np.int64], cycles: NDArray[np.float64], lengths: NDArray[np.int64] | None = None
    ) -> NDArray[np.intp]:
        """Number of the method of each object in `known`, -1 for direct sums; ``nf`` of length 1 for a shared grid.

        For samples, one warp takes all points of an object.  Objects of more than `LONG` points (``lengths``) are
        therefore given to combs whose cells are spread by a separate kernel, if there are any for their grid, or to
        more combs of two circles (`LONG_ALONE`).
        """
        short, long = self._choices(nf, cycles)
        return short if lengths is None else np.where(lengths > LONG, long, short)

    def _choices(self, nf: NDArray[np.int64], cycles: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The numbers that `choose` gives each object if it has up to `LONG` points, and if it has more."""
        if len(nf) > 1:
            return self._short_and_long(nf, cycles)
        first, classes, n = classes_of(self.ends, cycles)
        short, long = zip(*(self._of_class(int(nf[0]), first + k) for k in range(n)), strict=True)
        chosen = np.array(short)[classes]
        return chosen, chosen if short == long else np.array(long)[classes]

    def _of_class(self, nf: int, number: int) -> tuple[int, int]:
        """As `_choices`, for a class of ``df * span`` on a grid that all objects share."""
        if (nf, number) not in self._of_classes:
            self._of_classes[nf, number] = self._find_of_class(nf, number)
        return self._of_classes[nf, number]

    def _find_of_class(self, nf: int, number: int) -> tuple[int, int]:
        if nf < SMALLEST_NUFFT:
            return -1, -1
        short, other = (cheapest(some, nf) for some in self.choice.serving[number])
        if other < 0:
            return short, short
        comb, sampled = self.known[other], 0 <= short < self.choice.samples
        return short, other if comb.long_alone or (sampled and comb.for_long_series) else short

    @cached_property
    def _of_classes(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Results of `_of_class` so far."""
        return {}

    def _short_and_long(
        self, nf: NDArray[np.int64], cycles: NDArray[np.float64]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        choice = self.choice
        short, other = self.choose_of(choice.short, nf, cycles), self.choose_of(choice.combs, nf, cycles)
        alone = np.array([a.long_alone for a in choice.combs] + [False])  # the last entry is that of direct sums
        shared = np.array([a.for_long_series for a in choice.combs] + [False])
        better = alone[other] | (shared[other] & (short >= 0) & (short < choice.samples))
        return short, np.where(better, other + choice.samples, short)

    def few(self, nf: NDArray[np.int64], numbers: NDArray[np.intp]) -> NDArray[np.int64]:
        """Most points of objects summed directly though another method serves them; 0 unless `Spec.method` is "auto".

        ``numbers`` are those that `choose` has given.
        """
        if self.spec.method != "auto" or not self.known:
            return np.zeros(len(numbers), np.int64)
        known, size = self.known, self.spec.dtype.itemsize
        most = np.zeros((len(known) + 1, len(nf)), np.int64)  # the last row is that of direct sums, number -1
        for i in (np.flatnonzero(np.bincount(numbers + 1)[1:])).tolist():
            inexact = known[i].guards[size][1]  # every power would be computed again
            few = self.costs.few(known[i], int(nf[0]) if len(nf) == 1 else nf)
            most[i] = np.maximum(few, inexact)
        return most[numbers, 0 if len(nf) == 1 else np.arange(len(numbers))]

    def deal(
        self, objects: slice, lengths: NDArray[np.int64], cycles: NDArray[np.float64], all_candidates: bool = False
    ) -> tuple[list[MethodPart], NDArray[Any]]:
        """As `Methods.deal`, but on a shared grid each kind of objects is examined once; there are few kinds.

        The kind of an object follows from its class, from whether it is summed directly, and from whether it is long.
        """
        if not self.grids.shared or not len(lengths):
            return super().deal(objects, lengths, cycles, all_candidates)
        nf, ends = int(self.grids.nf[0]), self.choice.end_list
        most = float(np.maximum.reduce(cycles))
        first, last = bisect_left(ends, float(np.minimum.reduce(cycles))), bisect_left(ends, most)
        both = [self._of_class(nf, k) for k in range(first, last + 1)]
        fews = {number: self._few_of(nf, number) for number in {number for each in both for number in each}}
        kind = (lengths > LONG).view(np.int8)
        if first < last:
            classes = (cycles > ends[first]).view(np.int8)
            for end in ends[first + 1 : last]:  # there are few; to search for that of each object takes longer
                classes += (cycles > end).view(np.int8)
            kind += classes << 1
        few = np.array([fews[number] for each in both for number in each])
        kind = (kind << 1) + (lengths <= few.take(kind))
        numbers = [number for each in both for one in each for number in (one, -1)]
        counts = np.bincount(kind, minlength=len(numbers)).tolist()
        present = [j for j, count in enumerate(counts) if count]
        chosen = sorted({numbers[j] for j in present})
        place = [chosen.index(number) if count else 0 for number, count in zip(numbers, counts, strict=True)]
        long = {numbers[j] for j in present if j & 2}
        parts, known = [], dict[int, dict[str, float]]()
        for number, order in zip(chosen, dealt(lengths, kind, counts, place), strict=True):
            method = self.method(number)
            some = Objects(
                order, self.grids.nf, True, min(most, method.cycles), long=number in long, all_candidates=all_candidates
            )
            part = method.part(self, some)
            known[number] = method.limits(part)
            parts.append(part)
        rows = [_NO_LIMIT] * len(counts)
        for j in present:
            rows[j] = self._limit(first, j, both[j // 4], fews, known)
        packed = b"".join([_LIMIT.pack(*row) for row in rows])
        table = np.frombuffer(packed, np.int64).reshape(len(rows), -1)
        return parts, table.take(kind, 0).view(cs.LIMIT).ravel()  # to take records takes 30 times as long

    def _limit(
        self, first: int, kind: int, both: tuple[int, int], fews: dict[int, int], known: dict[int, dict[str, float]]
    ) -> tuple[float, ...]:
        """Limits that an object of a kind must meet (``structs.LIMIT``); ``both``: the numbers of its class."""
        number, long, summed = both[kind // 2 % 2], kind // 2 % 2, kind % 2
        fewest, most = (0, fews[number]) if summed else (fews[number] + 1, MANY)
        if both[0] != both[1]:  # another number of points may want another method
            fewest, most = (max(fewest, LONG + 1), most) if long else (fewest, most if summed else LONG)
        about, end = known[-1 if summed else number], first + kind // 4
        ends = self.choice.end_list
        least = ends[end - 1] if end else -math.inf
        return least, ends[end], about["circle"], fewest, most, about["stretch"], about["window"]

    def _few_of(self, nf: int, number: int) -> int:
        """As `few`, for one grid and one number."""
        if number < 0 or self.spec.method != "auto":
            return 0
        method = self.known[number]  # with fewer points than its guard says, every power would be computed again
        return max(int(self.costs.few(method, nf)), method.guards[self.spec.dtype.itemsize][1])

    def assign(
        self, nf: NDArray[np.int64], lengths: NDArray[np.int64], cycles: NDArray[np.float64], limits: NDArray[Any]
    ) -> NDArray[np.intp]:
        short, long = self._choices(nf, cycles)
        numbers = short if short is long else np.where(lengths > LONG, long, short)
        few = self.few(nf, numbers)
        direct = lengths <= few
        limits["few"], limits["many"] = np.where(direct, 0, few + 1), np.where(direct, few, MANY)
        if short is not long:  # another number of points may want another method
            swapped = (lengths > LONG) & (numbers != short)
            limits["few"][swapped] = np.maximum(limits["few"][swapped], LONG + 1)
            limits["many"][(lengths <= LONG) & (numbers != long) & ~direct] = LONG
        return np.where(direct, -1, numbers)

    def typical(self, nf: int, cycles: float, mean_points: float) -> Method:
        grid = np.array([nf])
        number = self.choose(grid, np.array([cycles]), np.array([int(mean_points)]))
        return self.direct if mean_points <= int(self.few(grid, number)[0]) else self.method(int(number[0]))

    def most_used(self, nf: int, cycles: float, mean_points: int, n: int) -> list[tuple[Method, int]]:
        number = int(self.choose(np.array([nf]), np.array([cycles]), np.array([mean_points]))[0])
        return [(self.known[number], self._per_block(self.known[number], n, nf))] if number >= 0 else []

    def _per_block(self, method: NufftMethod, n: int, nf: int) -> int:
        """Combs of a block for ``n`` objects."""
        return method.per_block(n * -(-nf // method.span), self.multiprocessors)

    def expected(self, method: Method, n: int, nf: int, mean_points: float, workers: int) -> dict[str, Any]:
        assert isinstance(method, SinusoidMethod)
        base, point = method.line(self.costs, nf)
        return {
            "seconds": 1e-9 * n * float(base + mean_points * point) / workers,
            "combs_a_block": self._per_block(method, n, nf) if isinstance(method, NufftMethod) else 0,
        }
