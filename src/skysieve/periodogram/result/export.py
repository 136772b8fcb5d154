"""Results as tables and files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of
from skysieve.core.files import written
from skysieve.periodogram.contract import Grids, Status
from skysieve.periodogram.lightcurves.units import Units, attach
from skysieve.periodogram.result.columns import TableName, peak_names, table_columns
from skysieve.periodogram.result.peaks import Peaks, Ragged
from skysieve.periodogram.result.table_files import FORMATS, write_table
from skysieve.periodogram.result.value_files import COMPLETE

if TYPE_CHECKING:
    from .result import LombScargleResult

R = TypeVar("R", bound="LombScargleResult")

_VERSION = 1


def _columns(result: LombScargleResult, what: str | None) -> dict[str, Any]:
    """Columns of the table; values may be Quantities."""
    what = what or ("peaks" if result.single else "objects")
    one_of("what", what, get_args(TableName))
    if what == "power":
        if not result.single:
            raise ValueError("what='power' is for one light curve; take it of result[i]")
        if result.power is None:
            raise ValueError("the powers were not kept (return_power=False)")
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


def _facts(result: LombScargleResult) -> dict[str, Any]:
    """Metadata of tables."""
    return {
        "device": result.device,
        "dtype": result.dtype,
        "normalization": result.normalization,
        "fit_mean": result.fit_mean,
        "nterms": result.nterms,
    }


def to_table(result: LombScargleResult, what: str | None = None) -> Any:
    """See `LombScargleResult.to_table`."""
    from astropy.table import Table

    meta = _facts(result)
    if isinstance(result.method, str):
        meta["method"] = result.method
    table = Table(_columns(result, what))
    table.meta.update(meta)
    return table


def save(result: LombScargleResult, path: str | os.PathLike[str]) -> None:
    """See `LombScargleResult.save`."""
    target = Path(path)
    if target.suffix.lower() == COMPLETE:
        with written(target) as part:
            _save_npz(result, part)
        return
    if target.suffix.lower().removeprefix(".") not in FORMATS:
        endings = ", ".join([COMPLETE, *(f".{name}" for name in FORMATS)])
        raise ValueError(f"path={str(target)!r}: expected a name that ends in one of {endings}")
    columns = _columns(result, None)
    units = {name: c.unit.to_string() for name, c in columns.items() if hasattr(c, "unit")}
    bare = {name: np.asarray(_bare(c)) for name, c in columns.items()}
    write_table(bare, target, units=units, facts=_facts(result))


def _bare(x: Any) -> Any:
    return getattr(x, "value", x)


def _save_npz(result: LombScargleResult, path: Path) -> None:
    ids = result.ids
    if ids is not None:
        ids = np.asarray(ids)
    arrays: dict[str, Any] = {
        "peak_index": result.peaks.index,
        "peak_frequency": _bare(result.peaks.frequency),
        "peak_period": _bare(result.peaks.period),
        "peak_power": _bare(result.peaks.power),
        "peak_frequency_error": _bare(result.peaks.frequency_error),
        "peak_period_error": _bare(result.peaks.period_error),
        "status": np.asarray(result.status, np.uint8),
        "n_used": np.asarray(result.n_used),
        "n_dropped": np.asarray(result.n_dropped),
        "span": _bare(result.span),
        "method": np.asarray(result.method, dtype=str),
        "grid_f0": result.grids.f0,
        "grid_df": result.grids.df,
        "grid_nf": result.grids.nf,
    }
    power = result.power.flat if isinstance(result.power, Ragged) else result.power
    optional = {"ids": ids, "listed": result.listed, "grid_values": result.grids.values}
    optional["power"] = None if power is None else to_host(_bare(power))
    arrays.update({name: value for name, value in optional.items() if value is not None})
    unit = {"time": result.units.time, "y": result.units.y, "power": result.power_unit}
    meta = {
        "version": _VERSION,
        "class": type(result).__name__,
        "more": {name: getattr(result, name) for name in result._more},
        **_facts(result),
        "shared": result.grids.shared,
        "units": {name: None if u is None else u.to_string() for name, u in unit.items()},
    }
    with path.open("wb") as file:
        np.savez(file, meta=np.array(json.dumps(meta)), **arrays)


def _unit(text: str | None) -> Any:
    if text is None:
        return None
    from astropy.units import Unit

    return Unit(text)


def load(kind: type[R], path: str | os.PathLike[str]) -> R:
    """See `LombScargleResult.load`."""
    with np.load(path, allow_pickle=False) as file:
        if "meta" not in file.files or "peak_index" not in file.files:
            raise ValueError(f"{os.fspath(path)!r} was not written by {kind.__name__}.save")
        held = {name: file[name] for name in file.files}
    meta = json.loads(str(held["meta"]))
    if meta["version"] != _VERSION:
        raise ValueError(f"{os.fspath(path)!r} has format {meta['version']}; this version reads {_VERSION}")
    if meta["class"] != kind.__name__:
        raise ValueError(f"{os.fspath(path)!r} was written by {meta['class']}.save; use {meta['class']}.load")
    single = held["peak_index"].ndim == 1
    units = Units(_unit(meta["units"]["time"]), _unit(meta["units"]["y"]))
    power_unit = _unit(meta["units"]["power"])
    grids = Grids(held["grid_f0"], held["grid_df"], held["grid_nf"], meta["shared"], held.get("grid_values"))
    power = held.get("power")
    if power is not None:
        n = held["peak_index"].shape[0]
        power = attach(power, power_unit) if grids.shared else Ragged(power, grids.offsets(n), power_unit)
    peaks = Peaks(
        held["peak_index"],
        units.with_frequency(held["peak_frequency"]),
        units.with_time(held["peak_period"]),
        attach(held["peak_power"], power_unit),
        units.with_frequency(held["peak_frequency_error"]),
        units.with_time(held["peak_period_error"]),
    )
    ids, method = held.get("ids"), held["method"]
    return kind(
        power=power,
        peaks=peaks,
        status=Status(int(held["status"])) if single else held["status"],
        n_used=int(held["n_used"]) if single else held["n_used"],
        n_dropped=int(held["n_dropped"]) if single else held["n_dropped"],
        span=units.with_time(held["span"][()]),
        ids=ids[()] if ids is not None and ids.ndim == 0 else ids,
        method=str(method) if method.ndim == 0 else method,
        device=meta["device"],
        dtype=meta["dtype"],
        normalization=meta["normalization"],
        fit_mean=meta["fit_mean"],
        grids=grids,
        units=units,
        listed=held.get("listed"),
        power_unit=power_unit,
        nterms=meta["nterms"],
        **{name: tuple(value) if isinstance(value, list) else value for name, value in meta["more"].items()},
    )
