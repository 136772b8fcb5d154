"""Conversion of the columns of table files: native numbers, times in days, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.lightcurves.column_names import BadFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


def numbers(name: str, values: Any) -> NDArray[np.float64]:
    """A column as native float64: NaN for masked cells, times in days."""
    if hasattr(values, "mjd"):
        values = values.mjd
    unit = getattr(values, "unit", None)
    if unit is not None and getattr(unit, "physical_type", None) == "time":
        values = values.quantity.to("d") if hasattr(values, "quantity") else values.to("d")
    values = getattr(values, "value", values)
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), np.nan) if values.dtype.kind in "iufb" else np.asarray(values)
    array = np.asarray(values)
    if array.ndim != 1:
        raise BadFile(f"column {name!r} holds arrays; one number a row is expected")
    if array.dtype.kind == "c":
        raise BadFile(f"column {name!r} holds complex numbers; real ones are expected")
    if array.dtype.kind not in "iufb":
        for i, cell in enumerate(array):
            try:
                float(cell)
            except (TypeError, ValueError):
                text = cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)
                raise BadFile(f"row {i + 1}: {text!r} in column {name!r} is not a number") from None
    return np.ascontiguousarray(array, dtype=np.float64)


def labels(values: Any) -> NDArray[Any]:
    """A column of names or whole numbers; as text if cells are missing, with "" for these."""
    values = getattr(values, "value", values)
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        values = np.where(mask, "", labels(values.data)) if mask.any() else values.data
    array = np.asarray(values)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind in "iu":
        return array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "f":  # whole numbers that passed through a table with gaps
        whole = np.where(np.abs(array) < 2**53, array, 0.0).astype(np.int64)
        text = np.where(whole == array, whole.astype(str), array.astype(str))
        return np.where(np.isnan(array), "", text)
    return array.astype(str)


def unit_of_times(values: Any) -> str:
    """Unit of a column of times, or ""; `numbers` converts to days."""
    if hasattr(values, "mjd"):
        return str(getattr(values, "format", "mjd"))
    unit = getattr(values, "unit", None)
    return str(unit) if unit is not None and getattr(unit, "physical_type", None) == "time" else ""
