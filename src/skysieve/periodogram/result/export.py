"""Results as tables and files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.files import write_parquet, written
from skysieve.periodogram.contract import Grids, Status
from skysieve.periodogram.lightcurves.units import Units, attach
from skysieve.periodogram.result.peaks import Peaks, Ragged

if TYPE_CHECKING:
    from collections.abc import Callable

    from .result import LombScargleResult

PEAK_COLUMNS = ("period", "period_error", "frequency", "frequency_error", "power")
_VERSION = 1


def _columns(result: LombScargleResult, what: str | None) -> dict[str, Any]:
    """Columns of the table; values may be Quantities."""
    what = what or ("peaks" if result.single else "objects")
    if what not in ("objects", "peaks", "power"):
        raise ValueError(f"what={what!r}; expected 'objects', 'peaks' or 'power'")
    if what == "power":
        if not result.single:
            raise ValueError("what='power' is for one light curve; take it of result[i]")
        if result.power is None:
            raise ValueError("the powers were not kept (return_power=False)")
        return {"frequency": result.frequency, "power": attach(to_host(_bare(result.power)), result.power_unit)}
    peaks = result.peaks
    if what == "peaks" and result.single:
        return {name: getattr(peaks, name) for name in PEAK_COLUMNS}
    if what == "peaks":
        raise ValueError("what='peaks' is for one light curve; the table of a batch holds the peaks of each object")
    n = 1 if result.single else len(result)
    method = result.method
    columns: dict[str, Any] = {}
    columns["id"] = np.arange(n) if result.ids is None else np.atleast_1d(np.asarray(result.ids))
    columns["status"] = np.array([Status(int(s)).name.lower() for s in np.atleast_1d(result.status)])
    columns["n_used"] = np.atleast_1d(result.n_used)
    columns["n_dropped"] = np.atleast_1d(result.n_dropped)
    columns["span"] = np.atleast_1d(result.span)
    columns["method"] = np.full(n, method) if isinstance(method, str) else method
    for j in range(len(peaks)):
        suffix = "" if j == 0 else f"_{j + 1}"
        for name in PEAK_COLUMNS:
            columns[name + suffix] = np.atleast_1d(getattr(peaks, name)[..., j])
    return columns


def to_table(result: LombScargleResult, what: str | None = None) -> Any:
    """See `LombScargleResult.to_table`."""
    from astropy.table import Table

    meta = {
        "device": result.device,
        "dtype": result.dtype,
        "normalization": result.normalization,
        "fit_mean": result.fit_mean,
        "nterms": result.nterms,
    }
    if isinstance(result.method, str):
        meta["method"] = result.method
    table = Table(_columns(result, what))
    table.meta.update(meta)
    return table


def save(result: LombScargleResult, path: str | os.PathLike[str]) -> None:
    """See `LombScargleResult.save`."""
    target = Path(path)
    write = WRITERS.get(target.suffix.lower())
    if write is None:
        raise ValueError(f"path={str(target)!r}; the name must end in one of {', '.join(WRITERS)}")
    with written(target) as part:
        write(result, part)


def _bare(x: Any) -> Any:
    return getattr(x, "value", x)


def _save_fits(result: LombScargleResult, path: Path) -> None:
    table = to_table(result)
    table.meta = {name[:8].upper(): value for name, value in table.meta.items()}  # the width of a FITS keyword
    table.convert_unicode_to_bytestring()  # text of FITS is ASCII for astropy; UTF-8 goes as bytes
    table.write(path, format="fits", overwrite=True)


def _save_parquet(result: LombScargleResult, path: Path) -> None:
    columns = _columns(result, None)
    units = {name: str(c.unit) for name, c in columns.items() if hasattr(c, "unit")}
    write_parquet({name: np.asarray(_bare(c)) for name, c in columns.items()}, path, units=units)


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
        "device": result.device,
        "dtype": result.dtype,
        "normalization": result.normalization,
        "fit_mean": result.fit_mean,
        "nterms": result.nterms,
        "shared": result.grids.shared,
        "units": {name: None if u is None else u.to_string() for name, u in unit.items()},
    }
    with path.open("wb") as file:
        np.savez(file, meta=np.array(json.dumps(meta)), **arrays)


WRITERS: dict[str, Callable[[LombScargleResult, Path], None]] = {
    ".npz": _save_npz,
    ".parquet": _save_parquet,
    ".csv": lambda result, path: to_table(result).write(path, format="ascii.csv", overwrite=True),
    ".ecsv": lambda result, path: to_table(result).write(path, format="ascii.ecsv", overwrite=True),
    ".fits": _save_fits,
}
"""The formats of a saved result, by the ending of the name."""


def _unit(text: str | None) -> Any:
    if text is None:
        return None
    from astropy.units import Unit

    return Unit(text)


def load(kind: type[LombScargleResult], path: str | os.PathLike[str]) -> LombScargleResult:
    """See `LombScargleResult.load`."""
    with np.load(path, allow_pickle=False) as file:
        if "meta" not in file.files or "peak_index" not in file.files:
            raise ValueError(f"{os.fspath(path)!r} was not written by LombScargleResult.save")
        held = {name: file[name] for name in file.files}
    meta = json.loads(str(held["meta"]))
    if meta["version"] != _VERSION:
        raise ValueError(f"{os.fspath(path)!r} has format {meta['version']}; this version reads {_VERSION}")
    single = held["peak_index"].ndim == 1
    units = Units(_unit(meta["units"]["time"]), _unit(meta["units"]["y"]))
    power_unit = _unit(meta["units"]["power"])
    grids = Grids(held["grid_f0"], held["grid_df"], held["grid_nf"], meta["shared"], held.get("grid_values"))
    power = held.get("power")
    if power is not None:
        n = held["peak_index"].shape[0]
        power = attach(power, power_unit) if grids.shared else Ragged(power, grids.offsets(n), power_unit)
    unknown = np.full(held["peak_index"].shape, np.nan)  # files of earlier versions have no errors
    peaks = Peaks(
        held["peak_index"],
        units.with_frequency(held["peak_frequency"]),
        units.with_time(held["peak_period"]),
        attach(held["peak_power"], power_unit),
        units.with_frequency(held.get("peak_frequency_error", unknown)),
        units.with_time(held.get("peak_period_error", unknown)),
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
        nterms=meta.get("nterms", 1),
    )
