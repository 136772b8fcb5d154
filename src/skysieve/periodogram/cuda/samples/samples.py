"""Samples of sums over points on a coarse grid, from which all frequencies are interpolated: launches of
``fourier/grid.cu``'s first three kernels, for series of any number of terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from skysieve.core.gpu.runtime import Module, Runtime
from skysieve.core.gpu.staging import Lane
from skysieve.core.gpu.structs import fill, struct
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda import structs as cs
from skysieve.periodogram.cuda.fourier.layouts import Chi2Layout, sampler, tables
from skysieve.periodogram.cuda.layouts import POWERS_SPAN, Samples
from skysieve.periodogram.cuda.parts import Part

from .half_window import HALVES, shape_in_time
from .stretches import SAMPLE_WARPS, Cut

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
"""What the device is told of a `Cut`."""


@lru_cache(maxsize=16)
def one_term(layout: Samples) -> Chi2Layout:
    """Samples of one sinusoid, for blocks of ``ls_powers``."""
    tiles = POWERS_SPAN // (64 * max(1, layout.combs // 8))
    return Chi2Layout(1, layout.combs, tiles, layout.modes, layout.reach, layout.halves)


def small_arrays(cut: Cut, i: int) -> dict[str, Any]:
    """What the device is told of the cut of part ``i``."""
    found = cut.found
    values = (found.lead, found.at, found.bands, cut.place, cut.sample_tasks, cut.power_tasks)
    return {f"{name}{i}": value for name, value in zip(NAMES, values, strict=True)}


@dataclass(frozen=True)
class Sampled:
    """Objects ``member`` to ``member + members`` of a part whose samples are there: what a kernel of powers is given.

    ``tasks`` and ``blocks`` are the blocks of that kernel.
    """

    members: int
    blocks: int
    tasks: Any
    arguments: dict[str, Any]


class Sampler:
    """Makes samples on one GPU: of layouts that differ in how far they are apart alone, as ``like``."""

    def __init__(self, runtime: Runtime, package: str, like: Chi2Layout) -> None:
        self.runtime = runtime
        self.package, self._like = package, like
        self._tables: tuple[Any, ...] | None = None

    @property
    def kernels(self) -> tuple[Any, ...]:
        """What a runtime is asked for; other numbers of terms than those tested with are compiled as well."""
        like = self._like
        defines = {"TERMS": like.terms, "MODES": like.modes, "REACH": like.reach}
        if like.halves:
            defines["HALVES"] = 1
        return self.package, "fourier/grid.cu", "t4", defines

    @property
    def module(self) -> Module:
        """The kernels."""
        return self.runtime.module(*self.kernels)

    def close(self) -> None:
        """Give back the tables."""
        self._tables = None

    def _device_tables(self, lane: Lane) -> tuple[Any, ...]:
        if self._tables is None:
            with lane:
                made = tables(1, sampler(self._like.modes))
                if self._like.halves:  # how strengths are divided follows the spreading polynomials
                    made = (*made[:4], np.concatenate([made[4].ravel(), shape_in_time()]))
                self._tables = tuple(self.runtime.xp.asarray(a) for a in made)
                lane.synchronize()
        return self._tables

    def points(
        self, lane: Lane, data: dict[str, Any], info: Any, work: dict[str, Any], owner: Any, rows: int, stride: int,
        counts: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Cell, weights and strength of every point; ``counts`` are set to 0."""
        padded, beta = rows + PAD, self._like.beta
        out = {
            "cell": lane.array("chi2_cell", padded, np.int32),
            "weight": lane.array("chi2_weight", 16 * padded, np.float64),
            "strength": lane.array("chi2_strength", 2 * padded, np.float64),
            "spin": lane.array("chi2_spin", 2 * padded, np.float64),
        }
        args = fill(
            POINTS, owner=owner, info=info, taps=self._device_tables(lane)[4], df=data["df"], limit=data["limit"],
            beta=beta, scale=float(np.i0(beta)) / self._like.reach, rows=rows, padded=padded, grid_stride=stride,
            counts=counts, counters=0 if counts is None else len(counts), tp=work["tp"], wv=work["wv"], **out,
        )  # fmt: skip
        self.module.launch("chi2_points", (-(-padded // 128),), (128,), (args,), stream=lane.stream)
        return out | {"tp": work["tp"]}

    def groups(
        self, lane: Lane, stream: Any, i: int, fit: Chi2Layout, cut: Cut, order: Any, found: dict[str, Any],
        points: dict[str, Any], info: Any, grids: dict[str, Any],
    ) -> Iterator[Sampled]:  # fmt: skip
        """Launch what makes the samples of part ``i``, a group of objects after the other, for the caller to use."""
        first, second, _, deconvolve, _ = self._device_tables(lane)
        samples = lane.array(f"chi2_samples{i}", (cut.most_samples + SPARE) * fit.sample_bytes, np.uint8)
        done = [0, 0]
        for g in cut.groups:
            n = g.stop - g.first
            blocks = (g.sample_blocks, g.power_blocks)
            tasks = [
                None if found[name] is None else found[name].reshape(-1)[2 * d : 2 * (d + b)]
                for name, d, b in zip(("sample_tasks", "power_tasks"), done, blocks, strict=True)
            ]
            done = [d + b for d, b in zip(done, blocks, strict=True)]
            where = {"order": order, "grid_stride": grids["grid_stride"], "member": g.first}
            args = fill(
                SAMPLES, **points, tasks=tasks[0], first=first, second=second, deconvolve=deconvolve, out=samples,
                step=float(fit.combs), blocks=blocks[0] // n, offsets=grids["offsets"], df=grids["df"], info=info,
                **{k: found[k] for k in ("lead", "at", "bands", "place")}, **where,
            )  # fmt: skip
            threads = 32 * SAMPLE_WARPS
            self.module.launch("chi2_samples", (blocks[0],), (threads,), (args,), shared_mem=SHARED, stream=stream)
            given = {"samples": samples, "place": found["place"], "bands": found["bands"], **where}
            yield Sampled(n, blocks[1], tasks[1], given)

    def taps(
        self, lane: Lane, stream: Any, fit: Chi2Layout, cut: Cut, made: Sampled, found: dict[str, Any],
        grids: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """The coefficients that ``chi2_powers`` interpolates with: of each grid of the group, or of the one of all."""
        steps, stride, harmonics = int(fit.matrix_steps.sum()), grids["grid_stride"], 2 * fit.terms
        most = max(g.stop - g.first for g in cut.groups) if stride else 1
        known = {
            "taps": lane.array("chi2_taps", most * fit.octets * steps * 32, np.float64),
            "origin": lane.array("chi2_origin", most * harmonics, np.int32),
            "shift": lane.array("chi2_shift", most * fit.octets * harmonics, np.int32),
            "L": fit.combs, "octets": fit.octets, "steps": steps,
        }  # fmt: skip
        if stride or not made.arguments["member"]:
            blocks = 1 if stride else -(-fit.octets * steps // 8)
            args = fill(
                CHI2_TAPS, f0=grids["f0"], df=grids["df"], lead=found["lead"], at=found["at"], beta=fit.beta,
                inverse=1 / float(np.i0(fit.beta)), blocks=blocks, **known,
                **{k: made.arguments[k] for k in ("order", "grid_stride", "member")},
            )  # fmt: skip
            grid = made.members if stride else blocks
            self.module.launch("chi2_taps", (grid,), (256,), (args,), stream=stream)
        return known


def launch_taps(
    sampler: Sampler, lane: Lane, kept: str, i: int, spec: Spec, part: Part, found: dict[str, Any], order: Any,
    grids: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The coefficients that ``ls_powers`` interpolates with: of each grid of part ``i``, or of the one of all.

    They follow from the grids alone: of one grid a recorded launch finds them in the lane's buffers ``kept``, where the
    one before has left them.  Those of many grids take too much room for each launch to keep its own.
    """
    layout = part.layout
    assert isinstance(layout, Samples)
    stride, fit = grids["grid_stride"], one_term(layout)
    n = len(part.order) if stride else 1
    name = f"own_{i}" if stride else f"{kept}_{i}"
    taps = {
        "taps": lane.array(f"{name}_taps", 2 * n * layout.taps, np.float64),
        "origin": lane.array(f"{name}_origin", 2 * n, np.int32),
        "shift": lane.array(f"{name}_shift", 2 * n * layout.parts, np.int32),
    }
    if lane.recording and not stride:
        return taps
    blocks = 1 if stride else -(-layout.taps // 256)
    window = dict(zip(WINDOW, HALVES, strict=True)) if layout.halves else {"inverse": 1 / float(np.i0(fit.beta))}
    args = fill(
        HALVES_TAPS if layout.halves else TAPS, f0=grids["f0"], df=grids["df"], lead=found["lead"], at=found["at"],
        beta=fit.beta, blocks=blocks, member=0, order=order, grid_stride=stride, **window, **taps,
    )  # fmt: skip
    module = sampler.runtime.module(*powers_kernels(sampler.package, spec, layout))
    module.launch("ls_taps", (n * blocks,), (256,), (args,), stream=lane.stream)
    return taps


def powers_kernels(package: str, spec: Spec, layout: Samples) -> tuple[str, str, str]:
    """The kernels of powers of a layout: what a runtime is asked for."""
    build = ("f64" if spec.dtype == np.float64 else "f32") + ("" if layout.combs == 8 else f"s{layout.combs}")
    return package, "sinusoid/powers_half.cu" if layout.halves else "sinusoid/powers.cu", build


def launch_powers(
    sampler: Sampler, lane: Lane, stream: Any, i: int, spec: Spec, part: Part, cut: Cut, found: dict[str, Any],
    points: dict[str, Any], taps: dict[str, Any], *, guard: tuple[float, int], group: int, **more: Any,
) -> None:  # fmt: skip
    """Samples, then powers of one sinusoid, of a group of a part's objects after the other."""
    layout = part.layout
    assert isinstance(layout, Samples)
    order, info, grids = more["order"], more["info"], {k: more[k] for k in ("offsets", "df", "f0", "grid_stride")}
    own = {k: v for k, v in more.items() if k not in ("tasks", "order", "grid_stride")}
    module, fit = sampler.runtime.module(*powers_kernels(sampler.package, spec, layout)), one_term(layout)
    shared, stride = layout.shared_bytes(spec.dtype.itemsize, ""), grids["grid_stride"]
    each = {"taps": 2 * layout.taps, "origin": 2, "shift": 2 * layout.parts}
    for made in sampler.groups(lane, stream, i, fit, cut, order, found, points, info, grids):
        first = made.arguments["member"] if stride else 0
        args = fill(
            cs.SAMPLED, **made.arguments, **{k: a[first * each[k] :] for k, a in taps.items()}, **own, tasks=made.tasks,
            guard=guard[0], few=guard[1], mean=float(spec.fit_mean), modes=layout.modes, members=made.members,
            group=group, blocks=made.blocks // made.members,
        )  # fmt: skip
        grid: tuple[int, ...] = (made.blocks,)
        if layout.halves and made.tasks is None and 1 < made.blocks // made.members < 1 << 16:
            groups = -(-made.members // group)  # members of a group, their stretches, groups
            grid = (-(-made.members // groups), made.blocks // made.members, groups)
        module.launch("ls_powers", grid, (128,), (args,), shared_mem=shared, stream=stream)
