"""GPU methods for series of several terms: interpolation from samples, and exact fits (see `Method`).

An object's method follows from its own grid and time span alone, so that its answer does not depend on the others of
its chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from skysieve.core.gpu.structs import fill, struct
from skysieve.periodogram.cuda.methods import DeviceChunk, Method, Methods, Objects
from skysieve.periodogram.cuda.parts import (  # fmt: skip
    CANDIDATE_BYTES,
    Blocks,
    MethodPart,
    blocks_of,
    pruned_candidates,
    smooth_candidates,
)
from skysieve.periodogram.cuda.peaks.launch import PEAK_BYTES, PROBE_BYTES, tries
from skysieve.periodogram.cuda.samples.layout import SampleLayout
from skysieve.periodogram.cuda.samples.samples import NAMES, small_arrays
from skysieve.periodogram.cuda.samples.stretches import Cut, cut, sample_bytes
from skysieve.periodogram.numerics.nufft import M

if TYPE_CHECKING:
    from skysieve.periodogram.cuda.chunks import ChunkJob

EXACT_SPAN, FIND_SPAN = 256, 2048
"""Powers of a block of ``chi2_exact`` and of ``chi2_find``."""
STEPS = (256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1)
"""Frequencies from one sample to the next: multiples or parts of 8, the frequencies that a matrix has columns for."""
RESERVED = 1024
"""Bytes of shared memory left for the arrays that the kernel declares itself."""
TILES = 2
"""Largest number of tiles of a block, one for each warp: as in ``fourier/grid.cu``."""
TRUST = 3.0
"""Largest sum of squares of the parameters, over the square root of the number of points, for which an interpolated fit
is trusted: no error passed 6e-9 (124 light curves of 9 to 39 points)."""
EXACT_LIMIT = 3e5
"""As `TRUST`, for sums over all points: no power was more than 3e-9 off (12 light curves of 9 to 20 points)."""
TOP = 64
"""Number of consecutive powers of which the highest is kept, as in ``fourier/solve.cuh``."""
TOPS = ("tops*", "bins*", "width#")
NO_TOPS: dict[str, Any] = {"tops": None, "bins": None, "width": 0}
POWERS = struct(
    "samples*", "place*", "taps*", "origin*", "shift*", "bands*", "info*", "order*", "tasks*", "nf*", "start*",
    "power*", *TOPS, "doubts*", "doubted*", "room_doubts#", "limit.", "mean.", "L", "octets", "steps", "stride",
    "tiles", "turns", "room", "member", "blocks", "grid_stride",
)  # fmt: skip
REFIT = struct(
    "tp*", "wv*", "offsets*", "info*", "f0*", "df*", "start*", "power*", *TOPS, "doubts*", "doubted*", "room_doubts#",
    "left*", "n_left*", "room_left#", "limit.", "mean.", "grid_stride", "few",
)  # fmt: skip


@dataclass(frozen=True)
class SeriesPart(MethodPart):
    """Objects of one method, and the blocks of ``chi2_exact`` and ``chi2_find``."""

    method: SeriesMethod
    exact: Blocks = (None, 1)
    find: Blocks = (None, 1)


class SeriesMethod(Method):
    """Base class of the methods for several terms and for several bands."""

    @property
    def circle(self) -> float:
        """Cells of one circle times combs; 0 where there are none."""
        return 0

    @property
    def span(self) -> int:
        """Frequencies of a block."""
        return EXACT_SPAN

    def limits(self, part: MethodPart) -> dict[str, float]:
        return {"circle": self.circle, "window": 0, "stretch": FIND_SPAN}

    def part(self, methods: SeriesMethods, objects: Objects) -> SeriesPart:
        tasks, stretches = self.tasks(objects, self.span)
        exact, find = (self.tasks(objects, span) for span in (EXACT_SPAN, FIND_SPAN))
        nf, every = objects.largest_grid, objects.largest_grid // 2 + 1
        # nearly every maximum may be given: hardly more than one for each 1/T and term
        smooth = smooth_candidates(nf, objects.largest_cycles, max(1, methods.terms))
        few = not (objects.spanless or objects.all_candidates)  # a list of frequencies has no step
        cap = min(every, max(pruned_candidates(find[1], 8, methods.spec.n_peaks), smooth)) if few else every
        return SeriesPart(self, objects.order, stretches, tasks, cap, find[1], exact=exact, find=find)

    @staticmethod
    def tasks(objects: Objects, span: int) -> Blocks:
        """The blocks of a kernel that takes ``span`` frequencies a block."""
        return blocks_of(objects.order, objects.nf, objects.shared_grid, span)

    def object_bytes(self, methods: SeriesMethods, nf: int, cycles: float) -> float:
        spec, shared = methods.spec, methods.grids.shared
        part = self.part(methods, Objects.one(nf, cycles, shared))
        bands = 0 if spec.model is None else spec.model.n_bands
        tasks = 0 if shared else 8 * (part.stretches + part.exact[1] + part.find[1])
        narrow = 0 if spec.dtype.itemsize == 8 else spec.dtype.itemsize
        return (
            self.own_bytes(methods, nf) + nf * (8.0 + narrow) + part.cap * CANDIDATE_BYTES[8] + 16 * part.edges + tasks
            + 12 * bands + 280.0 + 28 * spec.n_peaks + (PEAK_BYTES + PROBE_BYTES) * tries(spec)
        )  # fmt: skip

    def own_bytes(self, methods: SeriesMethods, nf: int) -> float:
        """Device bytes of one object for samples."""
        return 0.0

    def tops(self, worker: Any, chunk: DeviceChunk) -> dict[str, Any]:
        """Struct fields of the highest powers, which the search for peaks reads; null unless the kernel stores them."""
        return NO_TOPS


@dataclass(frozen=True)
class ExactFits(SeriesMethod):
    """Every frequency fitted by itself (``fourier/exact.cu``)."""

    direct: ClassVar[bool] = True

    @property
    def cycles(self) -> float:
        return np.inf

    def cost(self, nf: Any) -> Any:
        """Infinite: this method serves the objects that no other method can serve."""
        return np.inf

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        worker.fit_exactly(chunk, i, {})


@dataclass(frozen=True)
class SampledSeries(SeriesMethod):
    """Sums on one regular grid for all harmonics, every frequency interpolated from samples (``fourier/grid.cu``)."""

    layout: SampleLayout
    rows: ClassVar[str] = "samples"

    @property
    def cycles(self) -> float:
        return self.layout.cycles

    @property
    def combs(self) -> int:
        """Frequencies from one sample to the next."""
        return self.layout.combs

    @property
    def modes(self) -> int:
        """Samples of a transform."""
        return self.layout.modes

    @property
    def circle(self) -> float:
        return M * self.combs

    @property
    def span(self) -> int:
        return self.layout.span

    def cost(self, nf: Any) -> Any:
        """The coarser the samples, the cheaper."""
        return 1 / self.combs

    def own_bytes(self, methods: SeriesMethods, nf: int) -> float:
        g, some = methods.grids, methods.some_grids()
        samples = sample_bytes(self.layout, g.f0[some], g.df[some], g.nf[some], g.shared)
        return samples + 2.1 * nf  # doubts, tops

    def small_arrays(self, job: ChunkJob, i: int, multiprocessors: int) -> tuple[Cut | None, dict[str, Any]]:
        order = job.parts[i].order
        own = slice(None) if job.shared else order
        made = cut(self.layout, job.f0[own], job.df[own], job.nf[own], len(order), job.shared, multiprocessors)
        return made, small_arrays(made, i)

    def prepare_rows(self, worker: Any, chunk: DeviceChunk, stream: Any) -> None:
        worker.sampler.points(chunk, stream, chunk.work["counts"])

    def tops(self, worker: Any, chunk: DeviceChunk) -> dict[str, Any]:
        spec, job = worker.spec, chunk.job
        if spec.normalization != "standard" or spec.nterms > 7 or self.layout.octets > 1:
            return NO_TOPS
        width = job.edges * FIND_SPAN // TOP
        tops = chunk.lane.array("tops", job.n_objects * width, np.uint32)
        return {"tops": tops, "bins": chunk.bins, "width": width}

    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        """Launch powers, one group of objects after another, and then exact fits of the powers that are not trusted."""
        lane, grids, tops = chunk.lane, worker.grids(chunk), self.tops(worker, chunk)
        cut_of_part, mean = chunk.cuts[i], float(worker.spec.fit_mean)
        assert cut_of_part is not None
        found = {name: chunk.data[f"{name}{i}"] for name in NAMES}
        to = {"info": chunk.info, "start": chunk.data["start"], "power": chunk.power, **tops}
        counts, room = chunk.work["counts"][2 * i : 2 * i + 2], chunk.job.n_powers // 8 + 65_536
        doubts = {name: lane.array(f"chi2_{name}", 2 * room, np.int32) for name in ("doubts", "left")}
        doubts |= {"doubted": counts[:1], "n_left": counts[1:]}
        for made in worker.sampler.groups(chunk, stream, i, 0, self.layout):
            taps = worker.sampler.taps(lane, stream, self.layout, cut_of_part, made, found, grids)
            args = fill(
                POWERS, tasks=made.tasks, limit=TRUST, mean=mean, stride=self.layout.stride, tiles=self.layout.tiles,
                turns=cut_of_part.turns, room=self.layout.room, blocks=made.blocks // made.members,
                doubts=doubts["doubts"], doubted=doubts["doubted"], room_doubts=room, nf=chunk.data["nf"],
                bands=found["bands"], grid_stride=chunk.stride,
                **made.arguments, **taps, **to,
            )  # fmt: skip
            worker.sampler.module.launch(
                "chi2_powers", (made.blocks,), (32 * self.layout.tiles,), (args,),
                shared_mem=self.layout.shared_bytes, stream=stream,
            )  # fmt: skip
        args = fill(
            REFIT, **doubts, room_doubts=room, room_left=room, limit=EXACT_LIMIT, mean=mean, few=worker.few,
            tp=chunk.work["tp"], wv=chunk.work["wv"], **grids, **to,
        )  # fmt: skip
        blocks = min(-(-room // 128), 4 * worker.runtime.device.sm_count)
        worker.fits.launch("chi2_refit", (blocks,), (128,), (args,), stream=stream)
        worker.fit_exactly(chunk, i, {k: doubts[k] for k in ("left", "n_left", "doubted")} | {"room": room})


@lru_cache(maxsize=64)
def layouts(terms: int, shared: int) -> tuple[SampleLayout, ...]:
    """Layouts for ``shared`` bytes of shared memory a block, the coarsest samples first; none without terms."""
    out: list[SampleLayout] = []
    for combs in STEPS if terms else ():
        made = [SampleLayout(terms, combs, tiles) for tiles in range(TILES, 0, -1)]
        two = [a for a in made if 2 * (a.shared_bytes + RESERVED) <= shared]  # two blocks a multiprocessor
        one = [a for a in made if a.shared_bytes + RESERVED <= shared]
        out += (two or one)[:1]
    return tuple(out)


@lru_cache(maxsize=64)
def sampled_methods(terms: int, shared: int) -> tuple[SampledSeries, ...]:
    """The method of each layout."""
    return tuple(SampledSeries(layout) for layout in layouts(terms, shared))


@dataclass(frozen=True)
class SeriesMethods(Methods):
    """The methods of series of several terms."""

    @property
    def terms(self) -> int:
        """The highest harmonic of the model."""
        return self.spec.nterms

    @property
    def known(self) -> tuple[SeriesMethod, ...]:
        return () if self.direct_only else sampled_methods(self.spec.nterms, self.shared)

    @property
    def direct(self) -> SeriesMethod:
        return ExactFits()

    def row_bytes(self) -> int:
        return 24 + 24 + 8 + 16 * 8 + 4 + 32

    def some_grids(self) -> NDArray[np.intp]:
        """Numbers of the longest grid and of some others."""
        nf = self.grids.nf
        return np.append(np.linspace(0, len(nf) - 1, 32).astype(np.intp), np.argmax(nf))
