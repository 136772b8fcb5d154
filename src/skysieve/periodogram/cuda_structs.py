"""The argument structs of the kernels, as NumPy dtypes with C's layout; they repeat what the ``.cu`` files declare."""

from __future__ import annotations

from typing import Any

import numpy as np

_POINTER, _DOUBLE, _INT = np.dtype(np.uint64), np.dtype(np.float64), np.dtype(np.int32)

INFO = np.dtype(
    [
        ("n", "i4"),
        ("dropped", "i4"),
        ("status", "i4"),
        ("apart", "i4"),
        ("t_min", "f8"),
        ("span", "f8"),
        ("scale", "f8"),
    ]
)
"""``struct Info``: what prepare leaves for one object."""

RESPAN = 100
"""Status of an object whose span is beyond the tables of the launch; never leaves the backend."""

_PEAKS = ("list*", "count*", "floor*", "edge*", "cap", "wanted")


def _struct(*fields: str) -> np.dtype[Any]:
    """Names with a mark: ``*`` a pointer, ``.`` a double, none an int."""
    parts = []
    for name in fields:
        kind = _POINTER if name.endswith("*") else _DOUBLE if name.endswith(".") else _INT
        parts.append((name.rstrip("*."), kind))
    return np.dtype(parts, align=True)


PREPARE = _struct(
    "t*", "y*", "dy*", "offsets*", "df*", "tp*", "wv*", "owner*", "row*", "info*", "count*", "floor*",
    "most_cycles.", "circle.", "centre", "scale_kind", "grid_stride", "scan_only",
)  # fmt: skip
WEIGHTS = _struct("tp*", "owner*", "taps*", "df*", "cell*", "at_f*", "at_2f*", "cells.", "rows", "grid_stride")
SPREAD = _struct(
    "tp*", "wv*", "cell*", "at_f*", "at_2f*", "offsets*", "info*", "f0*", "df*", "out*",
    "modes", "P", "pairs", "grid_stride",
)  # fmt: skip
COMB = _struct(
    "tp*", "wv*", "cell*", "at_f*", "at_2f*", "offsets*", "info*", "order*", "tasks*", "spread*",
    "first*", "second*", "fold*", "deconvolve*", "f0*", "df*", "nf*", "start*", "power*", *_PEAKS,
    "guard.", "mean.", "modes", "P", "S", "pairs", "blocks", "grid_stride", "norm", "scaled",
    "zero", "edges",
)  # fmt: skip
DIRECT = _struct(
    "tp*", "wv*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "nf*", "frequencies*", "start*", "power*",
    *_PEAKS, "guard.", "blocks", "grid_stride", "norm", "scaled", "fit_mean", "edges",
)  # fmt: skip
BEST = _struct(
    "info*", "f0*", "df*", "nf*", "frequencies*", "order*", *_PEAKS, "index*", "frequency*", "best*", "flags*",
    "grid_stride", "stretch", "edges", "held",
)  # fmt: skip
SEARCH = _struct("power*", "start*", "info*", "nf*", "order*", *_PEAKS, "blocks", "grid_stride")


def address(a: Any) -> int:
    """Where an array of the device lives; 0 for None."""
    if a is None:
        return 0
    return int(a.ctypes.data) if isinstance(a, np.ndarray) else int(a.data.ptr)


def fill(struct: np.dtype[Any], **values: Any) -> np.void:
    """One struct from arrays (their addresses) and numbers; every field must be named."""
    out = np.zeros(1, struct)
    assert struct.names is not None
    for name in struct.names:
        value = values.pop(name)
        out[name] = value if isinstance(value, int | float | np.number) else address(value)
    if values:
        raise TypeError(f"no such fields: {sorted(values)}")
    scalar: np.void = out[0]
    return scalar
