"""Results as tables and files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of
from skysieve.periodogram.contract import Grids, Status
from skysieve.periodogram.lightcurves.units import Units, attach
from skysieve.periodogram.result.columns import TableName, peak_names, table_columns
from skysieve.periodogram.result.peaks import Peaks, Ragged
from skysieve.periodogram.result.value_files import load_values, save_values

if TYPE_CHECKING:
    from .result import LombScargleResult

R = TypeVar("R", bound="LombScargleResult")

GRID_FIELDS = ("f0", "df", "nf", "shared", "values")
SAME_FIELDS = (
    "n_used", "n_dropped", "span", "device", "dtype", "normalization", "fit_mean", "nterms", "listed",
)  # fmt: skip
"""Fields of results that files hold as they are."""


def _columns(result: LombScargleResult, what: str | None) -> dict[str, Any]:
    """Columns of the table; values may be Quantities."""
    what = what or ("peaks" if result.single else "objects")
    one_of("what", what, get_args(TableName))
    if what == "power":
        if not result.single:
            raise ValueError("what='power' is for one light curve; take it from result[i]")
        if result.power is None:
            raise ValueError("the result has no powers: search with return_power=True for what='power'")
        return {"frequency": result.frequency, "power": attach(to_host(_bare(result.power)), result.power_unit)}
    peaks = result.peaks
    if what == "peaks" and result.single:
        return {name: getattr(peaks, name) for name in peak_names()}
    if what == "peaks":
        raise ValueError("what='peaks' is for one light curve; the table of a batch holds the peaks of each object")
    n = 1 if result.single else len(result)
    method = result.method
    objects = {
        "id": np.arange(n) if result.ids is None else np.atleast_1d(np.asarray(result.ids)),
        "status": np.array([Status(int(s)).name.lower() for s in np.atleast_1d(result.status)]),
        "n_used": np.atleast_1d(result.n_used),
        "n_dropped": np.atleast_1d(result.n_dropped),
        "span": np.atleast_1d(result.span),
        "method": np.full(n, method) if isinstance(method, str) else method,
    }
    of_peaks = {name: getattr(peaks, name)[None] if result.single else getattr(peaks, name) for name in peak_names()}
    return table_columns(objects, of_peaks, len(peaks))[0]


def to_table(result: LombScargleResult, what: str | None = None) -> Any:
    """See `LombScargleResult.to_table`."""
    from astropy.table import Table

    table = Table(_columns(result, what))
    for name in ("device", "dtype", "normalization", "fit_mean", "nterms"):
        table.meta[name] = getattr(result, name)
    if isinstance(result.method, str):
        table.meta["method"] = result.method
    return table


def save(result: LombScargleResult, path: str | os.PathLike[str]) -> None:
    """See `LombScargleResult.save`."""
    peaks, grids, power = result.peaks, result.grids, result.power
    if power is not None:
        power = to_host(_bare(power.flat if isinstance(power, Ragged) else power))
    unit = {"time": result.units.time, "y": result.units.y, "power": result.power_unit}
    values = {
        **{f"peaks.{name}": getattr(peaks, name) for name in ("index", *peak_names())},
        **{f"grids.{name}": getattr(grids, name) for name in GRID_FIELDS},
        **{f"unit.{name}": None if u is None else u.to_string() for name, u in unit.items()},
        **{name: getattr(result, name) for name in (*SAME_FIELDS, *result._more)},
        "status": np.asarray(result.status, np.uint8),
        "method": np.asarray(result.method, dtype=str),
        "ids": None if result.ids is None else np.asarray(result.ids),
        "power": power,
    }
    save_values(type(result).__name__, values, lambda: to_table(result), path)


def _bare(x: Any) -> Any:
    return getattr(x, "value", x)


def _unit(text: str | None) -> Any:
    if text is None:
        return None
    from astropy.units import Unit

    return Unit(text)


def load(kind: type[R], path: str | os.PathLike[str]) -> R:
    """See `LombScargleResult.load`."""
    held = load_values(kind.__name__, path)
    single = held["peaks.index"].ndim == 1
    units, power_unit = Units(_unit(held["unit.time"]), _unit(held["unit.y"])), _unit(held["unit.power"])
    grids = Grids(**{name: held[f"grids.{name}"] for name in GRID_FIELDS})
    power = held["power"]
    if power is not None:
        n = len(held["peaks.index"])
        power = attach(power, power_unit) if grids.shared else Ragged(power, grids.offsets(n), power_unit)
    return kind(
        power=power,
        peaks=Peaks(**{name: held[f"peaks.{name}"] for name in ("index", *peak_names())}),
        status=Status(int(held["status"])) if single else held["status"],
        method=held["method"] if isinstance(held["method"], np.ndarray) else str(held["method"]),
        ids=held["ids"],
        grids=grids,
        units=units,
        power_unit=power_unit,
        **{name: held[name] for name in (*SAME_FIELDS, *kind._more)},
    )
