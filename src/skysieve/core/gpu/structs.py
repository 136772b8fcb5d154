"""Arguments of kernels: structs passed by value (NumPy dtypes with C's layout) and plain ints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from struct import Struct
from typing import Any

import numpy as np

__all__ = ["Place", "Prepared", "address", "fill", "from_place", "ints", "struct"]

_KINDS = {"*": np.dtype(np.uint64), ".": np.dtype(np.float64), "#": np.dtype(np.int64)}
_INT = np.dtype(np.int32)
_CODES = {np.dtype(np.uint64): "Q", np.dtype(np.float64): "d", np.dtype(np.int64): "q", _INT: "i"}
_NUMBERS = frozenset({int, float, bool})


@dataclass(slots=True)
class Place:
    """The address and size of a device array, which a kernel needs.  CuPy takes ten times as long to make a view."""

    pointer: int
    size: int
    itemsize: int
    held: Any = None
    """An array that stays in memory as long as this place."""

    @classmethod
    def of(cls, array: Any) -> Place:
        """Return the place of an array, and hold the array."""
        return cls(address(array), array.size, array.itemsize, array)

    def __len__(self) -> int:
        return self.size


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
    if type(array) is Place:
        return array.pointer
    if array is None:
        return 0
    if isinstance(array, np.ndarray):
        start: int = array.__array_interface__["data"][0]  # half the time of array.ctypes.data
        return start
    return int(array.data.ptr)


def from_place(array: Any, start: int) -> Place:
    """Return the place of an array, or of a `Place`, from element `start` on."""
    return Place(address(array) + start * array.itemsize, array.size - start, array.itemsize)


def ints(*values: Any) -> tuple[np.int32, ...]:
    """Return arguments that are ints of C, one after another."""
    return tuple(np.int32(v) for v in values)


def fill(kind: np.dtype[Any], **values: Any) -> np.void:
    """Return a struct of dtype `kind`, with a value for every field: a number, a struct, an array's address, or None.

    Raises
    ------
    TypeError
        A field has no value, or a value has no field.
    """
    scalar: np.void = np.frombuffer(_filled(kind, values), kind)[0]
    return scalar


def _filled(kind: np.dtype[Any], values: dict[str, Any]) -> bytearray:
    """The bytes of a struct."""
    known, in_order, packer = _packer(kind)
    if len(values) != len(known) or values.keys() != known:
        missing, unknown = sorted(known - values.keys()), sorted(values.keys() - known)
        raise TypeError(f"fields without a value: {missing}; values without a field: {unknown}")
    return bytearray(
        packer.pack(
            *[
                v.pointer if type(v) is Place else v if type(v) in _NUMBERS else 0 if v is None else _packed(v)
                for v in in_order(values)
            ]
        )
    )


class Prepared:
    """A struct that is filled once; some of its fields are changed for each launch.

    Parameters
    ----------
    kind : numpy.dtype
    values : dict
        A value for every field, as `fill` takes them.

    Attributes
    ----------
    value : numpy.void
        The struct; `change` modifies it in place.
    """

    __slots__ = ("_bytes", "_fields", "value")

    def __init__(self, kind: np.dtype[Any], values: dict[str, Any]) -> None:
        self._bytes, self._fields = _filled(kind, values), _fields(kind)
        self.value: np.void = np.frombuffer(self._bytes, kind)[0]

    def change(self, values: dict[str, Any]) -> None:
        """Set some fields."""
        for name, v in values.items():
            write, start = self._fields[name]
            v = v.pointer if type(v) is Place else v if type(v) in _NUMBERS else 0 if v is None else _packed(v)
            write(self._bytes, start, v)


@cache
def _fields(kind: np.dtype[Any]) -> dict[str, tuple[Callable[..., None], int]]:
    """For each field that is a number or an address: the function that writes it, and its offset."""
    assert kind.fields is not None
    plain = {name: (field[0], field[1]) for name, field in kind.fields.items() if field[0] in _CODES}
    return {name: (Struct(f"={_CODES[field]}").pack_into, start) for name, (field, start) in plain.items()}


def _packed(value: Any) -> Any:
    """Convert the value of a field to the form that `Struct` packs."""
    if isinstance(value, np.void):
        return value.tobytes()
    return value.item() if isinstance(value, np.generic) else address(value)


@cache
def _packer(kind: np.dtype[Any]) -> tuple[frozenset[str], Callable[[dict[str, Any]], Iterable[Any]], Struct]:
    """Names of a struct's fields, a function that puts their values in order, and the `Struct` with C's offsets."""
    assert kind.names is not None
    fields: Any = kind.fields  # NumPy's annotation takes literal strings only
    names, code, end = kind.names, "=", 0
    for name in names:
        field, start = fields[name][:2]
        code += f"{start - end}x" + (_CODES[field] if field.fields is None else f"{field.itemsize}s")
        end = start + field.itemsize
    in_order: Callable[[dict[str, Any]], Iterable[Any]] = (
        itemgetter(*names) if len(names) > 1 else lambda values: [values[name] for name in names]
    )
    return frozenset(names), in_order, Struct(f"{code}{kind.itemsize - end}x")
