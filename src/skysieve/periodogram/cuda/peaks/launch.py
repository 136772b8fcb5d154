"""From peaks of the grid to maxima of the exact periodogram: launches of ``peaks/refine.cu``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.gpu.runtime import Module
from skysieve.core.gpu.staging import Lane
from skysieve.core.gpu.structs import fill
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda import structs as cs
from skysieve.periodogram.numerics.peaks import MORE_TRIES, MOST_TRIES

if TYPE_CHECKING:
    from skysieve.periodogram.cuda.methods import DeviceChunk

SHORT, LONG, VERY_LONG, SLICE = 256, 1024, 16_384, 4096
"""Most points of a series for which some lanes, a warp, and a block refine a peak; and points that a block takes of a
longer series.  As in the kernels."""
TURNS = 20
"""Trials of a peak of a longer series: a wide window has up to 11 places, from which a climb takes 3 to 5 steps."""
CLIMB_BYTES, SUMS = 224, 32
THREADS, PEAKS_AT_ONCE = 128, 16
"""Threads of a block of ``ls_refine``, and peaks of short series that it takes at once."""
PROBES, SEARCH_BYTES, PROBE_TURNS = 12, 80, 9
"""If a model's own kernel evaluates powers: powers of a peak at once, bytes of the state of a peak's search, and the
largest number of evaluations (mostly there are four)."""
PEAK_BYTES = 4 + 8 + 8 + 4 + 24 + 4
"""Device bytes of a peak that is tried."""
PROBE_BYTES = 8 * PROBES + SEARCH_BYTES + 3 * 4 + cs.INFO.itemsize + 2 * 8 + 4 + 8
"""Further bytes if a model's own kernel evaluates its powers."""


def tries(spec: Spec) -> int:
    """Most peaks of an object that are refined, of which the highest are kept."""
    return spec.n_peaks + MOST_TRIES


def harmonics(spec: Spec) -> int:
    """Highest multiple of the frequency in the model."""
    terms = (spec.nterms,) if spec.model is None else (spec.model.terms, spec.model.band_terms)
    return max(1, *terms)


def columns(spec: Spec) -> int:
    """Columns of the model, which fits as many points exactly; 0 for several bands with a penalty."""
    if spec.model is None:
        return 2 * spec.nterms + spec.fit_mean
    return 0 if spec.model.regularised else spec.model.columns


def longer_objects(lengths: NDArray[np.int64]) -> dict[str, NDArray[np.int32] | None]:
    """Numbers of the objects whose peaks take a warp or a block each, and of those whose peaks take several blocks.

    The longest come first, so that no long climb begins when all others end.
    """
    most = int(lengths.max(initial=0))

    def above(n: int) -> NDArray[np.int32] | None:
        if most <= n:
            return None
        which = np.flatnonzero(lengths > n)
        return which[np.argsort(-lengths[which])].astype(np.int32)

    return {"longer": above(SHORT), "longest": above(VERY_LONG)}


def refine(
    module: Module, chunk: DeviceChunk, objects: dict[str, Any], spec: Spec, multiprocessors: int,
    picks: dict[str, Any],
) -> None:  # fmt: skip
    """Refine peaks of one sinusoid; ``objects`` has the arrays of `longer_objects`."""
    lane, lengths, longer, longest = chunk.lane, chunk.job.lengths, objects["longer"], objects["longest"]
    first = 0 if longer is None else longer.size * spec.n_peaks

    def fixed() -> dict[str, Any]:
        return {
            **picks, "mean": spec.fit_mean, "few": SHORT, "middle": LONG, "many": VERY_LONG, "climbs": None,
            "sums": None, "counters": None, "slices": 0, "turns": 0, "each": spec.n_peaks,
        }  # fmt: skip

    args = chunk.struct("refine", cs.REFINE, fixed, order=longer, longer=first)
    blocks = first + min(-(-len(lengths) * (spec.n_peaks + MORE_TRIES) // PEAKS_AT_ONCE), 16 * multiprocessors)
    module.launch("ls_refine", (blocks,), (THREADS,), (args,), stream=lane.stream)
    if longest is None:
        return
    each, slices = spec.n_peaks + MORE_TRIES, -(-int(lengths.max()) // SLICE)
    slots = longest.size * each
    common = fixed() | {
        "each": each, "slices": slices, "turns": TURNS, "climbs": lane.array("climbs", slots * CLIMB_BYTES, np.uint8),
        "sums": lane.array("climb_sums", slots * slices * SUMS, np.float64),
        "counters": lane.array("climb_counters", slots, np.uint32, zero=True),
    }  # fmt: skip
    args = fill(cs.REFINE, **common, order=longest, longer=0)
    for turn in range(TURNS):
        module.launch("ls_refine_long", (slots * slices,), (256,), (args, np.int32(turn)), stream=lane.stream)


def probe(
    module: Module, lane: Lane, slots: int, n_objects: int, offsets: Any, picks: dict[str, Any],
    ranks: dict[str, Any], tried: dict[str, Any],
    evaluate: Callable[[dict[str, Any]], None],
) -> None:  # fmt: skip
    """Refine peaks of other models; ``evaluate`` computes exact powers of peaks, each an object with its own grid."""
    kinds = {
        "order": np.int32, "owner": np.int32, "lo": np.int32, "probed": cs.INFO, "probe_f0": np.float64,
        "probe_df": np.float64, "probe_nf": np.int32, "start": np.int64,
    }  # fmt: skip
    made = {name: lane.array(f"probes_{name}", slots, kind) for name, kind in kinds.items()}
    made["power"] = lane.array("probes_power", slots * PROBES, np.float64)
    searches = lane.array("searches", slots * SEARCH_BYTES, np.uint8)
    for turn in range(PROBE_TURNS + 1):
        if turn:
            evaluate(
                {
                    "order": made["order"], "owner": made["owner"], "offsets": made["lo"], "info": made["probed"],
                    "f0": made["probe_f0"], "df": made["probe_df"], "nf": made["probe_nf"], "start": made["start"],
                    "power": made["power"], "tried": tried["tried"], "grid_stride": 1,
                }
            )  # fmt: skip
        args = fill(
            cs.PROBE,
            **picks,
            **tried,
            **made,
            offsets=offsets,
            searches=searches,
            slots=slots,
            turn=turn,
            turns=PROBE_TURNS,
        )
        module.launch("ls_probe", (-(-slots // 128),), (128,), (args,), stream=lane.stream)
    args = fill(cs.SELECT, **picks, **ranks)
    module.launch("ls_select", (n_objects,), (32,), (args,), stream=lane.stream)
