"""Values of Arrow arrays as NumPy arrays, and back, without pandas, which PyArrow's own conversions import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Words", "from_arrow", "to_arrow"]


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


def from_arrow(values: Any) -> NDArray[Any]:
    """An Arrow array, or chunked array, as a NumPy array.

    Parameters
    ----------
    values : pyarrow.Array or pyarrow.ChunkedArray

    Returns
    -------
    numpy.ndarray
        Numbers are a read-only view of Arrow's memory where it is in one piece; missing ones are NaN, and whole numbers
        then float64.  Text is an array of Python objects, None where it is missing; other types are converted by PyArrow.

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
