"""Dataclasses in npz files: each field declares how it is stored.

A class declares a field as ``name: kind = field(metadata=ARRAY)``; `pack` and `unpack` then write and read it.  Nothing
else is needed to add a field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.files import written
from skysieve.core.result import npz_arrays

from .inputs.grid import Grid

__all__ = ["ARRAY", "COLUMNS", "GRID", "JSON", "form", "pack", "read_archive", "unpack", "write_archive"]


@dataclass(frozen=True)
class Form:
    """How a value is stored: as one array or several named arrays.  A single array has the name ``""``.

    A value of None is not stored; the field is None after reading.
    """

    pack: Callable[[Any], dict[str, Any]]
    unpack: Callable[[dict[str, Any]], Any]


def form(pack: Callable[[Any], dict[str, Any]], unpack: Callable[[dict[str, Any]], Any]) -> dict[str, Form]:
    """Metadata of a dataclass field with the given form."""
    return {"form": Form(pack, unpack)}


def _single(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> dict[str, Form]:
    return form(lambda value: {"": pack(value)}, lambda values: unpack(values[""]))


def _pack_grid(grid: Grid) -> dict[str, Any]:
    return {"t0s": grid.t0s, "taus": grid.taus, "steps": json.dumps([grid.t0_band, grid.tau_band, grid.dt0, grid.dtau])}


def _unpack_grid(values: dict[str, Any]) -> Grid:
    t0_band, tau_band, dt0, dtau = json.loads(str(values["steps"]))
    if dt0 is None or dtau is None:
        return Grid.from_lists(values["t0s"], values["taus"])
    t0, tau = int(values["t0s"][0]), int(values["taus"][0])
    return Grid(t0=t0, t0_band=t0_band, dt0=dt0, tau=tau, tau_band=tau_band, dtau=dtau)


JSON = _single(json.dumps, lambda value: json.loads(str(value)))
"""Numbers, text, None, and lists and dicts of them."""
ARRAY = _single(to_host, lambda value: value)
"""A NumPy or CuPy array; it is read as a NumPy array."""
COLUMNS = form(dict, dict)
"""A dict of arrays."""
GRID = form(_pack_grid, _unpack_grid)
"""A `Grid`."""


def _fields(kind: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(kind) if "form" in f.metadata]


def pack(item: Any, prefix: str = "") -> dict[str, Any]:
    """The stored fields of a dataclass instance as arrays, whose names begin with `prefix`."""
    out: dict[str, Any] = {}
    for field in _fields(item):
        value, at = getattr(item, field.name), f"{prefix}{field.name}"
        if value is not None:
            parts = field.metadata["form"].pack(value)
            out |= {f"{at}/{part}" if part else at: array for part, array in parts.items()}
    return out


def unpack(kind: type[Any], values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of a dataclass by name, from the arrays that `pack` returned for an instance.

    A field that was not stored gets its default, or None if it has no default.
    """
    found: dict[str, Any] = {}
    for field in _fields(kind):
        at = f"{prefix}{field.name}"
        parts = {key[len(at) + 1 :]: value for key, value in values.items() if key == at or key.startswith(f"{at}/")}
        if parts:
            found[field.name] = field.metadata["form"].unpack(parts)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            found[field.name] = None
    return found


def write_archive(path: Path, content: str, values: dict[str, Any]) -> None:
    """Write arrays to a new ``.npz`` file; `content` names the kind of content."""
    with written(path) as part:
        np.savez(part, content=content, **values)


def read_archive(path: Path, content: str) -> dict[str, Any]:
    """Read what `write_archive` wrote.

    Raises
    ------
    ValueError
        `write_archive` did not write the file, or not with this `content`.
    """
    try:
        values = npz_arrays(path)
    except ValueError as error:
        raise ValueError(f"{path}: expected {content}; this is another file, or it is damaged") from error
    if str(values.pop("content", "")) != content:
        raise ValueError(f"{path}: expected {content}, not another file")
    return values
