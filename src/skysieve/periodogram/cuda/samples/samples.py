"""Samples of sums over points on a coarse grid, from which all frequencies are interpolated: launches of
``fourier/grid.cu``'s first three kernels, for series of any number of terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.runtime import Module, Runtime
from skysieve.core.gpu.staging import Lane
from skysieve.core.gpu.structs import Place, fill, from_place, struct

from .half_window import shape_in_time
from .layout import SampleLayout, bessel_i0, comb_tables, sampler
from .stretches import SAMPLE_WARPS, Cut

if TYPE_CHECKING:
    from skysieve.periodogram.cuda.methods import DeviceChunk

SPARE = 16
"""Samples that may be read past the last one."""
PAD = 64
"""Rows of weights that may be read past the last one."""
SHARED = SAMPLE_WARPS * 8 * 35 * (12 + 2 * 20)
"""Bytes of shared memory of a block of ``chi2_samples``: strengths and weights of some points."""

POINTS = struct(
    "tp*", "wv*", "owner*", "info*", "taps*", "df*", "limit*", "cell*", "weight*", "strength*", "spin*", "counts*",
    "beta.", "scale.", "rows", "padded", "grid_stride", "counters",
)  # fmt: skip
SAMPLES = struct(
    "tp*", "strength*", "spin*", "cell*", "weight*", "offsets*", "info*", "order*", "tasks*", "lead*", "at*", "bands*",
    "place*", "first*", "second*", "deconvolve*", "df*", "out*", "step.", "member", "blocks", "grid_stride",
)  # fmt: skip
CHI2_TAPS = struct(
    "f0*", "df*", "order*", "lead*", "at*", "taps*", "origin*", "shift*", "beta.", "inverse.", "L", "octets", "steps",
    "member", "blocks", "grid_stride",
)  # fmt: skip
WINDOW = ("inverse", "twice", "shape0", "shape1", "shape2", "shape3")
BINS = 32
"""Places of an object for the best peaks of parts of its grid."""
TAPS, HALVES_TAPS = (
    struct(
        "f0*", "df*", "order*", "lead*", "at*", "taps*", "origin*", "shift*", "beta.", "inverse.", *more, "member",
        "blocks", "grid_stride",
    ) for more in ((), ("twice.", "shape0.", "shape1.", "shape2.", "shape3."))
)  # fmt: skip
NAMES = ("lead", "at", "bands", "place", "sample_tasks", "power_tasks")
"""Names of the arrays of a `Cut` that are uploaded."""


def small_arrays(cut: Cut, i: int) -> dict[str, Any]:
    """The arrays of the cut of part ``i`` that are uploaded."""
    found = cut.found
    values = (found.lead, found.at, found.bands, cut.place, cut.sample_tasks, cut.power_tasks)
    return {f"{name}{i}": value for name, value in zip(NAMES, values, strict=True)}


def sampler_kernels(package: str, layout: SampleLayout) -> tuple[Any, ...]:
    """Arguments of `Runtime.module` for samples; numbers of terms that are not tested are compiled as well."""
    defines = {"TERMS": layout.terms, "MODES": layout.modes, "REACH": layout.reach}
    if layout.halves:
        defines["HALVES"] = 1
    return package, "fourier/grid.cu", "t4", defines


@dataclass(frozen=True)
class Sampled:
    """Objects ``member`` to ``member + members`` of a part, whose samples are made: the input of a kernel of powers.

    ``tasks`` and ``blocks`` are the blocks of that kernel.
    """

    members: int
    blocks: int
    tasks: Any
    arguments: dict[str, Any]


class Sampler:
    """Makes samples on one GPU, of layouts that differ from ``layout`` only in the distance of the samples."""

    def __init__(self, runtime: Runtime, package: str, layout: SampleLayout) -> None:
        self.runtime = runtime
        self.package, self._layout = package, layout
        self._tables: dict[str, Any] | None = None

    @property
    def kernels(self) -> tuple[Any, ...]:
        return sampler_kernels(self.package, self._layout)

    @cached_property
    def module(self) -> Module:
        """The kernels."""
        return self.runtime.module(*self.kernels)

    def close(self) -> None:
        """Give back the tables."""
        self._tables = None

    def _device_tables(self, lane: Lane) -> dict[str, Any]:
        if self._tables is None:
            with lane:
                kernel = sampler(self._layout.modes)
                taps = kernel.coefficients()
                if self._layout.halves:  # the divisors of strengths follow the spreading polynomials
                    taps = np.concatenate([taps.ravel(), shape_in_time()])
                made = comb_tables(1, kernel) | {"taps": np.ascontiguousarray(taps)}
                self._tables = {name: Place.of(self.runtime.xp.asarray(a)) for name, a in made.items()}
                lane.synchronize()
        return self._tables

    def points(self, chunk: DeviceChunk, stream: Any, counts: Any = None) -> None:
        """Cell, weights and strength of every point; ``counts`` are set to 0."""
        lane, padded, beta = chunk.lane, chunk.job.n_rows + PAD, self._layout.beta
        out = chunk.once("samples", lambda: self._places_of_points(lane, chunk.sizes.rows + PAD))

        def fixed() -> dict[str, Any]:
            return {
                "info": chunk.info, "taps": self._device_tables(lane)["taps"], "df": chunk.data["df"],
                "limit": chunk.data["limit"], "beta": beta, "scale": bessel_i0(beta) / self._layout.reach,
                "grid_stride": chunk.stride, "counts": counts, "counters": 0 if counts is None else len(counts),
                **{name: chunk.work[name] for name in ("owner", "tp", "wv")}, **out,
            }  # fmt: skip

        args = chunk.struct("points", POINTS, fixed, rows=chunk.job.n_rows, padded=padded)
        self.module.launch("chi2_points", (-(-padded // 128),), (128,), (args,), stream=stream)

    def _places_of_points(self, lane: Lane, rows: int) -> dict[str, Any]:
        return {
            "cell": lane.place("chi2_cell", rows, np.int32),
            "weight": lane.place("chi2_weight", 16 * rows, np.float64),
            "strength": lane.place("chi2_strength", 2 * rows, np.float64),
            "spin": lane.place("chi2_spin", 2 * rows, np.float64),
        }

    def groups(self, chunk: DeviceChunk, stream: Any, i: int, buffer: int, fit: SampleLayout) -> Iterator[Sampled]:
        """Launch the kernel that makes the samples of part ``i``; yield one group of objects after another.

        ``buffer``: the number of the samples' buffer.
        """
        lane, data, cut = chunk.lane, chunk.data, chunk.cuts[i]
        assert cut is not None
        found, order = {name: data[f"{name}{i}"] for name in NAMES}, data[f"order{i}"]
        nbytes = (cut.most_samples + SPARE) * fit.sample_bytes
        samples = lane.place(f"chi2_samples{buffer}", nbytes, np.uint8, followed=True)

        def fixed() -> dict[str, Any]:
            tables = {k: v for k, v in self._device_tables(lane).items() if k in ("first", "second", "deconvolve")}
            return {
                "tp": chunk.work["tp"], **chunk.buffers["samples"], **tables, "step": float(fit.combs),
                "offsets": data["offsets"], "df": data["df"], "info": chunk.info, "grid_stride": chunk.stride,
                **{k: found[k] for k in ("lead", "at", "bands")},
            }  # fmt: skip

        done = [0, 0]
        for g in cut.groups:
            n = g.stop - g.first
            blocks = (g.sample_blocks, g.power_blocks)
            tasks = [
                None if found[name] is None else from_place(found[name], 2 * d)
                for name, d in zip(("sample_tasks", "power_tasks"), done, strict=True)
            ]
            done = [d + b for d, b in zip(done, blocks, strict=True)]
            where = {"order": order, "place": found["place"], "member": g.first}
            args = chunk.struct(
                ("samples", fit.combs, i), SAMPLES, fixed, tasks=tasks[0], out=samples, blocks=blocks[0] // n, **where
            )
            threads = 32 * SAMPLE_WARPS
            self.module.launch("chi2_samples", (blocks[0],), (threads,), (args,), shared_mem=SHARED, stream=stream)
            yield Sampled(n, blocks[1], tasks[1], {"samples": samples, **where})

    def taps(
        self, lane: Lane, stream: Any, fit: SampleLayout, cut: Cut, made: Sampled, found: dict[str, Any],
        grids: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """The coefficients that ``chi2_powers`` interpolates with, of each grid of the group or of the shared grid."""
        steps, stride, harmonics = int(fit.matrix_steps.sum()), grids["grid_stride"], 2 * fit.terms
        most = max(g.stop - g.first for g in cut.groups) if stride else 1
        known = {
            "taps": lane.place("chi2_taps", most * fit.octets * steps * 32, np.float64),
            "origin": lane.place("chi2_origin", most * harmonics, np.int32),
            "shift": lane.place("chi2_shift", most * fit.octets * harmonics, np.int32),
            "L": fit.combs, "octets": fit.octets, "steps": steps,
        }  # fmt: skip
        if stride or not made.arguments["member"]:
            blocks = 1 if stride else -(-fit.octets * steps // 8)
            args = fill(
                CHI2_TAPS, f0=grids["f0"], df=grids["df"], lead=found["lead"], at=found["at"], beta=fit.beta,
                inverse=1 / bessel_i0(fit.beta), blocks=blocks, **known,
                grid_stride=stride, **{k: made.arguments[k] for k in ("order", "member")},
            )  # fmt: skip
            grid = made.members if stride else blocks
            self.module.launch("chi2_taps", (grid,), (256,), (args,), stream=stream)
        return known
