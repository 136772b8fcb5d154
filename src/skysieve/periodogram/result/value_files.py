"""Files of named values: arrays, Quantities, times, numbers and text, as small results hold them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.files import written
from skysieve.core.result import npz_arrays
from skysieve.core.table_files import FORMATS, write_table
from skysieve.periodogram.lightcurves.units import is_date

if TYPE_CHECKING:
    from astropy.table import Table

COMPLETE = ".npz"
"""Ending of the files that hold all values; the others hold a table."""
PLAIN = (str, bool, int, float, tuple)
"""Types of values that JSON holds; NumPy's numbers are arrays."""


def save_values(kind: str, values: Mapping[str, Any], table: Callable[[], Table], path: str | os.PathLike[str]) -> None:
    """Write all values to ``.npz``, or the table to another format.

    Parameters
    ----------
    kind : str
        Name of the class whose values they are.
    values : mapping of str to array, Quantity, Time, number, str, bool, None, or tuple of numbers and str
    table : callable
        Returns the `astropy.table.Table`.
    path : path
    """
    target = Path(path)
    if target.suffix.lower() != COMPLETE:
        if target.suffix.lower().removeprefix(".") not in FORMATS:
            endings = ", ".join([COMPLETE, *(f".{name}" for name in FORMATS)])
            raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in one of {endings}")
        made = table()
        units = {name: made[name].unit.to_string() for name in made.colnames if made[name].unit is not None}
        write_table({name: np.asarray(made[name]) for name in made.colnames}, target, units=units, facts=made.meta)
        return
    arrays: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    units = {}
    times: dict[str, list[str]] = {}
    for name, value in values.items():
        if value is None or (isinstance(value, PLAIN) and not isinstance(value, np.generic)):
            plain[name] = value
        elif is_date(value):
            times[name] = [value.scale, value.format]
            arrays[f"{name}.jd1"], arrays[f"{name}.jd2"] = value.jd1, value.jd2
        else:
            if hasattr(value, "unit"):
                units[name] = value.unit.to_string()
            arrays[name] = np.asarray(getattr(value, "value", value))
    meta = json.dumps({"class": kind, "plain": plain, "units": units, "times": times})
    with written(target) as part, part.open("wb") as file:
        np.savez(file, meta=np.array(meta), **arrays)


def load_values(kind: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the values that `save_values` wrote to ``.npz`` for the class ``kind``."""
    if Path(path).suffix.lower().removeprefix(".") in FORMATS and Path(path).exists():
        raise ValueError(f"{os.fspath(path)!r} is a table, which does not hold all values: expected a {COMPLETE} file")
    held = npz_arrays(path)
    meta = json.loads(str(held.pop("meta", "{}")))
    if meta.get("class") != kind:
        raise ValueError(f"{os.fspath(path)!r} was not written by {kind}.save")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in meta["plain"].items()}
    for name, (scale, form) in meta["times"].items():
        from astropy.time import Time

        values[name] = Time(held.pop(f"{name}.jd1"), held.pop(f"{name}.jd2"), format="jd", scale=scale)
        values[name].format = form
    for name, value in held.items():
        if name in meta["units"]:
            from astropy.units import Quantity

            values[name] = Quantity(value, meta["units"][name], copy=False)
        else:
            values[name] = value[()] if value.ndim == 0 else value
    return values
