"""The argument structs of the kernels, as NumPy dtypes with C's layout; they repeat what the ``.cu`` files declare."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.gpu.structs import struct
from skysieve.periodogram.contract import Scan

INFO = np.dtype(
    [
        ("n", "i4"),
        ("dropped", "i4"),
        ("status", "i4"),
        ("exclusion", "i4"),
        ("t_min", "f8"),
        ("span", "f8"),
        ("scale", "f8"),
        ("mean_square", "f8"),
        ("weight", "f8"),
        ("share", "f8"),
    ]
)
"""``struct Info``: results of ``ls_prepare`` for one object."""

LIMIT = np.dtype(
    [
        ("least", "f8"),
        ("most", "f8"),
        ("circle", "f8"),
        ("few", "i4"),
        ("many", "i4"),
        ("stretch", "i8"),
        ("window", "i8"),
    ]
)
"""``struct Limit``: what its part requires of an object (df * span in (least, most], few..many points); and the part's
cells of a circle, neighbouring indices between edge values (0: no edges) and window."""

UNLIKE = 100
"""Status of an object that does not meet the limits of its part; used inside the backend only."""

PEAKS = ("list*", "count*", "floor*", "edge*", "share*", "cap", "wanted")


PREPARE = struct(
    "t*", "y*", "dy*", "offsets*", "df*", "limit*", "tp*", "wv*", "owner*", "row*", "info*", "count*", "floor*",
    "bins*", "share*", "tried*", "centre", "scale_kind", "grid_stride", "harmonics", "scan_only", "fewest",
)  # fmt: skip
CYCLES = struct("t*", "offsets*", "df*", "cycles*", "n", "grid_stride")
WEIGHTS = struct(
    "tp*", "owner*", "taps*", "df*", "limit*", "cell*", "at_f*", "at_2f*", "correction*", "rows", "grid_stride",
)  # fmt: skip
SPREAD = struct(
    "tp*", "wv*", "cell*", "at_f*", "at_2f*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "out*",
    "mean.", "modes", "P", "pairs", "grid_stride",
)  # fmt: skip
COMB = struct(
    "tp*", "wv*", "cell*", "at_f*", "at_2f*", "offsets*", "info*", "order*", "tasks*", "spread*",
    "first*", "second*", "fold*", "deconvolve*", "f0*", "df*", "nf*", "start*", "power*", *PEAKS,
    "guard.", "few#", "mean.", "modes", "P", "S", "pairs", "members", "group", "blocks",
    "grid_stride", "norm", "scaled",
    "zero", "edges",
)  # fmt: skip
COARSE = struct(
    "tp*", "wv*", "cell*", "at_f*", "at_2f*", "offsets*", "info*", "order*", "tasks*", "spread*",
    "first*", "second*", "fold*", "deconvolve*", "taps*", "f0*", "df*", "nf*", "start*", "power*", *PEAKS,
    "guard.", "few#", "mean.", "modes", "P", "tiles", "pairs", "members", "group", "blocks",
    "grid_stride", "norm", "scaled", "edges",
)  # fmt: skip
SAMPLED = struct(
    "samples*", "place*", "taps*", "origin*", "shift*", "bands*", "tp*", "wv*", "offsets*", "info*", "order*", "tasks*",
    "f0*", "df*", "nf*", "start*", "power*", *PEAKS, "bins*", "guard.", "few#", "mean.",
    "modes", "member", "members", "group", "blocks", "grid_stride", "norm", "scaled", "edges",
)  # fmt: skip
DIRECT = struct(
    "tp*", "wv*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "nf*", "frequencies*", "start*", "power*",
    *PEAKS, "guard.", "few#", "blocks", "grid_stride", "norm", "scaled", "fit_mean", "edges", "each",
)  # fmt: skip
ANSWERS = ("answer_index*", "frequency*", "best*", "curvature*")
BEST = struct(
    "info*", "limit*", "nf*", "frequencies*", *PEAKS, "host_info*", "flags*", "index*", "here*", "vertex*", "found*",
    "first*", "left*", *ANSWERS, "tried*", "tries_list*", "tries", "fewer", "few", "grid_stride", "edges", "held",
)  # fmt: skip
PICKS = (
    "info*", "f0*", "df*", "nf*", "frequencies*", "index*", "here*", "vertex*", "found*", "first*", "refined*", "tries",
    "wanted", "grid_stride", "harmonics", "columns",
)  # fmt: skip
RANKS = ("rank*", "left*", *ANSWERS)
REFINE = struct(
    *PICKS, *RANKS, "tp*", "wv*", "offsets*", "tried*", "tries_list*", "order*", "climbs*", "sums*", "counters*",
    "longer", "each", "mean", "few", "middle", "many", "slices", "turns",
)  # fmt: skip
PROBE = struct(
    *PICKS, "tried*", "tries_list*", "offsets*", "searches*", "order*", "owner*", "lo*", "probed*", "probe_f0*",
    "probe_df*", "probe_nf*", "start*",
    "power*", "slots", "turn", "turns",
)  # fmt: skip
SELECT = struct(*PICKS, *RANKS)
SCALE = struct("power*", "start*", "info*", "nf*", "order*", "blocks", "grid_stride", "norm")
SEARCH = struct("power*", "start*", "info*", "nf*", "order*", *PEAKS, "blocks", "grid_stride")


def scan_of(info: NDArray[Any]) -> Scan:
    """A `Scan` from the kernels' records."""
    return Scan(
        n_used=info["n"].astype(np.int64),
        n_dropped=info["dropped"].astype(np.int64),
        t_min=info["t_min"].copy(),
        span=info["span"].copy(),
        status=info["status"].astype(np.uint8),
    )
