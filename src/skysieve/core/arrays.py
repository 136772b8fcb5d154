"""Arrays of NumPy, CuPy and other libraries: their location, conversion without needless copies, and the equality of
dataclasses with arrays.

CuPy is imported only for an array on a GPU.  Columns of Arrow are converted without pandas, which PyArrow's own
conversions import.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ByValue", "Words", "array_module", "as_array", "as_float64", "from_arrow", "is_device_array",
    "joined", "spacing_at", "to_arrow", "to_host",
]  # fmt: skip

_HOST = (np.ndarray, list, tuple, int, float, type(None))
_PLAIN = frozenset(_HOST)
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


def is_device_array(x: Any) -> bool:
    """Return whether `x` is an array in the memory of a GPU (of CuPy, Torch, Numba, JAX, ...)."""
    if type(x) in _PLAIN or isinstance(x, _HOST):  # the first test takes a third of the time of the second
        return False
    array = getattr(sys.modules.get("cupy"), "ndarray", None)
    if array is not None and isinstance(x, array):  # the attribute below is a new dictionary at each access
        return True
    if _attribute(x, "__cuda_array_interface__") is not None:
        return True
    if type(x).__module__.startswith("pyarrow"):  # PyArrow 16 refuses to say where an array with nulls is
        return False
    place = getattr(x, "__dlpack_device__", None)
    return place is not None and place()[0] in _DLPACK_CUDA


def array_module(x: Any) -> Any:
    """Return the module ``cupy`` for an array on a GPU, ``numpy`` for everything else.

    Examples
    --------
    >>> array_module([1.0, 2.0]).__name__
    'numpy'
    """
    if not is_device_array(x):
        return np
    import cupy

    return cupy


def as_array(x: Any) -> Any:
    """Return `x` as a NumPy or CuPy array in the same memory, without a copy if possible.

    Masked values of NumPy arrays become NaN.
    """
    if is_device_array(x):
        import cupy

        if isinstance(x, cupy.ndarray):
            return x
        return cupy.asarray(x) if _attribute(x, "__cuda_array_interface__") is not None else cupy.from_dlpack(x)
    if isinstance(x, np.ma.MaskedArray):
        data = np.asarray(x.data)
        mask = np.ma.getmaskarray(x)
        return np.where(mask, np.nan, data) if mask.any() else data
    if isinstance(x, np.ndarray):
        return x.view(np.ndarray)
    if not hasattr(x, "__array__") and hasattr(x, "__dlpack__"):
        return np.from_dlpack(x)
    return np.asarray(x)


def as_float64(x: Any, name: str) -> Any:
    """Return `x` as a C-contiguous float64 array of native byte order, in host memory or on its GPU.

    Parameters
    ----------
    x : array_like
        Numbers; a view is returned if it is such an array already.
    name : str
        Name of the argument, for the error.

    Raises
    ------
    TypeError
        `x` does not hold real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> as_float64(np.array([1, 2], dtype=">i2"), "t")
    array([1., 2.])
    """
    a = as_array(x)
    if a.dtype.kind not in "buif" and not (a.dtype.kind == "O" and a.size):
        raise TypeError(f"{name} has dtype {a.dtype}, expected real numbers")
    try:
        return array_module(a).asarray(a, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} has values that are not real numbers: {error}") from error


def spacing_at(kind: Any, value: float) -> float:
    """Spacing of the floating-point numbers of a type at a value; 0 for double precision and other types.

    >>> spacing_at("f4", 2459000.0), spacing_at("f8", 2459000.0)
    (0.25, 0.0)
    """
    kind = np.dtype(kind)
    if kind.kind != "f" or kind.itemsize >= 8:
        return 0.0
    return float(np.spacing(kind.newbyteorder("=").type(abs(value))))


def to_host(x: Any) -> np.ndarray[Any, Any]:
    """Return `x` as a NumPy array; an array on a GPU is copied."""
    a = as_array(x)
    if isinstance(a, np.ndarray):
        return a
    host: np.ndarray[Any, Any] = sys.modules["cupy"].asnumpy(a)
    return host


def _attribute(x: Any, name: str) -> Any:
    """Return an attribute or None; Torch tensors in host memory raise TypeError for those of CUDA."""
    try:
        return getattr(x, name, None)
    except (TypeError, RuntimeError):
        return None


@dataclass(frozen=True)
class Words:
    """A column of text that holds few different values.

    Attributes
    ----------
    codes : numpy.ndarray of int
        Position in `words` of each value.
    words : numpy.ndarray of str
    """

    codes: NDArray[Any]
    words: NDArray[Any]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def text(self) -> NDArray[Any]:
        """All values as one array."""
        values: NDArray[Any] = self.words[self.codes]
        return values


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays; the result is text if some are text, or if no integer type of NumPy holds all whole numbers.

    >>> joined([np.array([1]), np.array(["a"])]).tolist()
    ['1', 'a']
    >>> joined([np.array([-1]), np.array([2**63 + 1], np.uint64)]).tolist()  # float64 would lose digits
    ['-1', '9223372036854775809']
    """
    kind = np.result_type(*parts)
    if kind.kind in "USO" or (kind.kind == "f" and all(part.dtype.kind in "iu" for part in parts)):
        parts = [part if part.dtype.kind in "US" else part.astype(str) for part in parts]
    return np.concatenate(parts)


def from_arrow(values: Any) -> NDArray[Any]:
    """An Arrow array, or chunked array, as a NumPy array.

    Parameters
    ----------
    values : pyarrow.Array or pyarrow.ChunkedArray

    Returns
    -------
    numpy.ndarray
        Numbers are a read-only view of Arrow's memory where it is contiguous.  Missing numbers are NaN, and whole
        numbers then become float64.  Text is an array of Python objects, with None for missing values.  PyArrow
        converts other types.

    Examples
    --------
    >>> import pyarrow
    >>> from_arrow(pyarrow.array([1.5, None])), from_arrow(pyarrow.array(["a", "b"]))
    (array([1.5, nan]), array(['a', 'b'], dtype=object))
    """
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks != 1:
            parts = [from_arrow(chunk) for chunk in values.chunks]
            return np.concatenate(parts) if parts else np.empty(0)
        values = values.chunk(0)
    kind = values.type
    if not pa.types.is_integer(kind) and kind not in (pa.float32(), pa.float64()):
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return np.array(values.to_pylist(), object)
        other: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return other
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(str(kind), str(kind)))
    valid, data = values.buffers()
    if data is None:
        return np.empty(0, dtype)
    out = np.frombuffer(data, dtype, len(values), values.offset * dtype.itemsize)
    if values.null_count:
        bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
        missing = bits[values.offset : values.offset + len(values)] == 0
        out = np.where(missing, dtype.type(np.nan) if dtype.kind == "f" else np.nan, out)
    return out


def to_arrow(values: NDArray[Any] | Words) -> Any:
    """Numbers or text as an Arrow array; numbers share their memory.

    Examples
    --------
    >>> to_arrow(np.array([1.5, 2.5])).to_pylist(), to_arrow(np.array(["a", ""])).to_pylist()
    ([1.5, 2.5], ['a', ''])
    >>> to_arrow(Words(np.array([1, 0, 1]), np.array(["no", "yes"]))).to_pylist()
    ['yes', 'no', 'yes']
    """
    import pyarrow as pa

    if isinstance(values, Words):
        return to_arrow(values.words).take(to_arrow(values.codes))
    if values.ndim != 1:
        raise ValueError(f"values have shape {values.shape}, expected one dimension")
    native = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    if values.dtype.kind in "iuf" and values.dtype.itemsize <= 8 and values.dtype != np.float16:
        kind = pa.from_numpy_dtype(native.dtype)
        return pa.Array.from_buffers(kind, len(native), [None, pa.py_buffer(native)])
    if values.dtype.kind == "U":
        cells = [cell.encode() for cell in values.tolist()]
        ends = np.cumsum([0, *map(len, cells)])
        if ends[-1] < 2**31:
            buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(cells))]
            return pa.Array.from_buffers(pa.string(), len(cells), buffers)
    return pa.array(values.tolist())


class ByValue:
    """Base of dataclasses (with ``eq=False``) that are equal if all their fields are; NaN is equal to NaN.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False)
    ... class Band(ByValue):
    ...     freqs: np.ndarray
    >>> Band(np.arange(3)) == Band(np.arange(3)), Band(np.arange(3)) == Band(np.arange(4))
    (True, False)
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [f.name for f in fields(self) if f.compare]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    def __hash__(self) -> int:
        values = (getattr(self, f.name) for f in fields(self) if f.compare)
        return hash((type(self), *(x for x in values if isinstance(x, str | Real) and x == x)))


def _same(a: Any, b: Any) -> bool:
    """Whether two values of a field are equal."""
    if a is b:
        return True
    if _is_array(a) or _is_array(b):
        if not (_is_array(a) and _is_array(b)) or a.shape != b.shape:
            return False
        a, b = to_host(a), to_host(b)
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc" and b.dtype.kind in "fc")
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    return bool(a == b)


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) or is_device_array(x)
