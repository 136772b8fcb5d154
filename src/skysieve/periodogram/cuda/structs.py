"""The argument structs of the kernels, as NumPy dtypes with C's layout; they repeat what the ``.cu`` files declare."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.contract import Scan

_KINDS, _INT = {"*": np.dtype(np.uint64), ".": np.dtype(np.float64), "#": np.dtype(np.int64)}, np.dtype(np.int32)

INFO = np.dtype(
    [
        ("n", "i4"),
        ("dropped", "i4"),
        ("status", "i4"),
        ("apart", "i4"),
        ("t_min", "f8"),
        ("span", "f8"),
        ("scale", "f8"),
        ("mean_square", "f8"),
        ("weight", "f8"),
        ("share", "f8"),
    ]
)
"""``struct Info``: what prepare leaves for one object."""

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
"""``struct Limit``: what an object must be for its part (df * span in (least, most], few..many points), and its part's
cells, neighbouring indices between edge values (0: no edges) and window."""

UNLIKE = 100
"""Status of an object that is not what its part was made for; never leaves the backend."""

_PEAKS = ("list*", "count*", "floor*", "edge*", "share*", "cap", "wanted")


def _struct(*fields: str) -> np.dtype[Any]:
    """Names with a mark: ``*`` a pointer, ``.`` a double, ``#`` a long int, none an int."""
    parts = []
    for name in fields:
        parts.append((name.rstrip("*.#"), _KINDS.get(name[-1], _INT)))
    return np.dtype(parts, align=True)


PREPARE = _struct(
    "t*", "y*", "dy*", "offsets*", "df*", "limit*", "tp*", "wv*", "owner*", "row*", "info*", "count*", "floor*",
    "bins*", "share*", "tried*", "centre", "scale_kind", "grid_stride", "harmonics", "scan_only", "fewest",
)  # fmt: skip
WEIGHTS = _struct(
    "tp*", "owner*", "taps*", "df*", "limit*", "cell*", "at_f*", "at_2f*", "correction*", "rows", "grid_stride",
)  # fmt: skip
SPREAD = _struct(
    "tp*", "wv*", "cell*", "at_f*", "at_2f*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "out*",
    "mean.", "modes", "P", "pairs", "grid_stride",
)  # fmt: skip
COMB = _struct(
    "tp*", "wv*", "cell*", "at_f*", "at_2f*", "offsets*", "info*", "order*", "tasks*", "spread*",
    "first*", "second*", "fold*", "deconvolve*", "f0*", "df*", "nf*", "start*", "power*", *_PEAKS,
    "guard.", "few#", "mean.", "modes", "P", "S", "pairs", "members", "group", "blocks",
    "grid_stride", "norm", "scaled",
    "zero", "edges",
)  # fmt: skip
COARSE = _struct(
    "tp*", "wv*", "cell*", "at_f*", "at_2f*", "offsets*", "info*", "order*", "tasks*", "spread*",
    "first*", "second*", "fold*", "deconvolve*", "taps*", "f0*", "df*", "nf*", "start*", "power*", *_PEAKS,
    "guard.", "few#", "mean.", "modes", "P", "tiles", "pairs", "members", "group", "blocks",
    "grid_stride", "norm", "scaled", "edges",
)  # fmt: skip
SAMPLED = _struct(
    "samples*", "place*", "taps*", "origin*", "shift*", "bands*", "tp*", "wv*", "offsets*", "info*", "order*", "tasks*",
    "f0*", "df*", "nf*", "start*", "power*", *_PEAKS, "bins*", "guard.", "few#", "mean.",
    "modes", "member", "members", "group", "blocks", "grid_stride", "norm", "scaled", "edges",
)  # fmt: skip
DIRECT = _struct(
    "tp*", "wv*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "nf*", "frequencies*", "start*", "power*",
    *_PEAKS, "guard.", "few#", "blocks", "grid_stride", "norm", "scaled", "fit_mean", "edges", "each",
)  # fmt: skip
ANSWERS = ("answer_index*", "frequency*", "best*", "curvature*")
BEST = _struct(
    "info*", "limit*", "nf*", "frequencies*", *_PEAKS, "told*", "flags*", "index*", "here*", "vertex*", "found*",
    "left*", *ANSWERS, "tried*", "tries_list*", "tries", "fewer", "few", "grid_stride", "edges", "held",
)  # fmt: skip
PICKS = (
    "info*", "f0*", "df*", "nf*", "frequencies*", "index*", "here*", "vertex*", "found*", "refined*", "tries", "wanted",
    "grid_stride", "harmonics", "columns",
)  # fmt: skip
RANKS = ("rank*", "left*", *ANSWERS)
REFINE = _struct(
    *PICKS, *RANKS, "tp*", "wv*", "offsets*", "tried*", "tries_list*", "order*", "climbs*", "sums*", "counters*",
    "longer", "each", "mean", "few", "middle", "many", "slices", "turns",
)  # fmt: skip
PROBE = _struct(
    *PICKS, "tried*", "tries_list*", "offsets*", "searches*", "order*", "owner*", "lo*", "probed*", "probe_f0*",
    "probe_df*", "probe_nf*", "start*",
    "power*", "slots", "turn", "turns",
)  # fmt: skip
SELECT = _struct(*PICKS, *RANKS)
SCALE = _struct("power*", "start*", "info*", "nf*", "order*", "blocks", "grid_stride", "norm")
SEARCH = _struct("power*", "start*", "info*", "nf*", "order*", *_PEAKS, "blocks", "grid_stride")


def address(a: Any) -> int:
    """Where an array of the device lives; 0 for None."""
    if a is None:
        return 0
    return int(a.ctypes.data) if isinstance(a, np.ndarray) else int(a.data.ptr)


def fill(struct: np.dtype[Any], **values: Any) -> np.void:
    """One struct from arrays (their addresses), numbers and structs; every field must be named."""
    out = np.zeros(1, struct)
    assert struct.names is not None
    for name in struct.names:
        value = values.pop(name)
        out[name] = value if isinstance(value, int | float | np.number | np.void) else address(value)
    if values:
        raise TypeError(f"no such fields: {sorted(values)}")
    scalar: np.void = out[0]
    return scalar


def scan_of(info: NDArray[Any]) -> Scan:
    """A `Scan` from the kernels' records."""
    return Scan(
        n_used=info["n"].astype(np.int64),
        n_dropped=info["dropped"].astype(np.int64),
        t_min=info["t_min"].copy(),
        span=info["span"].copy(),
        status=info["status"].astype(np.uint8),
    )
