"""Arguments of kernels that are structs by value: NumPy dtypes with C's layout, and their values."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["address", "fill", "struct"]

_KINDS = {"*": np.dtype(np.uint64), ".": np.dtype(np.float64), "#": np.dtype(np.int64)}
_INT = np.dtype(np.int32)


def struct(*fields: str) -> np.dtype[Any]:
    """Return the dtype of a C struct.

    Parameters
    ----------
    *fields : str
        Names in order.  A mark at the end gives the type: ``*`` a pointer, ``.`` a double, ``#`` a long long; without
        one, the field is an int.

    Examples
    --------
    >>> struct("values*", "count", "scale.").itemsize
    24
    """
    return np.dtype([(name.rstrip("*.#"), _KINDS.get(name[-1], _INT)) for name in fields], align=True)


def address(array: Any) -> int:
    """Return the address of the first element of an array on the device, or on the host for tests; 0 for None."""
    if array is None:
        return 0
    return int(array.ctypes.data) if isinstance(array, np.ndarray) else int(array.data.ptr)


def fill(kind: np.dtype[Any], **values: Any) -> np.void:
    """Return a struct of dtype `kind`, with a value for every field: a number, a struct, an array's address, or None.

    Raises
    ------
    TypeError
        A field has no value, or a value has no field.
    """
    if kind.fields is None or values.keys() != kind.fields.keys():
        fields = set(kind.names or ())
        missing, unknown = sorted(fields - set(values)), sorted(set(values) - fields)
        raise TypeError(f"fields without a value: {missing}; values without a field: {unknown}")
    out = np.zeros(1, kind)
    for name, value in values.items():
        out[name] = value if isinstance(value, int | float | np.number | np.void) else address(value)
    scalar: np.void = out[0]
    return scalar
