"""Where an array lives, and how it enters: NumPy, CuPy, DLPack; never a copy without need.

CuPy is imported only when an object that lives on a GPU is met.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["array_module", "as_array", "as_float64", "is_device_array", "to_host"]

_HOST = (np.ndarray, list, tuple, int, float, type(None))
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


def is_device_array(x: Any) -> bool:
    """True when ``x`` lives in the memory of a GPU (CuPy, Torch, Numba, JAX... arrays)."""
    if isinstance(x, _HOST):
        return False
    if _attribute(x, "__cuda_array_interface__") is not None:
        return True
    place = getattr(x, "__dlpack_device__", None)
    return place is not None and place()[0] in _DLPACK_CUDA


def array_module(x: Any) -> Any:
    """``cupy`` for what lives on a GPU, ``numpy`` for everything else.

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
    """``x`` as a NumPy or CuPy array in the memory it lives in, without a copy where its kind allows it.

    Masked NumPy arrays lose their mask: masked values become NaN.
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
    """``x`` as a C-contiguous float64 array of native byte order, in the memory it lives in.

    Parameters
    ----------
    x : array_like
        Numbers; a view is returned when it already is such an array.
    name : str
        The argument's name, for the error.

    Raises
    ------
    TypeError
        When ``x`` does not hold real numbers.

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


def to_host(x: Any) -> np.ndarray[Any, Any]:
    """``x`` as a NumPy array; copied only when it lives on a GPU."""
    a = as_array(x)
    if isinstance(a, np.ndarray):
        return a
    host: np.ndarray[Any, Any] = sys.modules["cupy"].asnumpy(a)
    return host


def _attribute(x: Any, name: str) -> Any:
    """The attribute or None; a Torch tensor in host memory raises TypeError when asked for CUDA's."""
    try:
        return getattr(x, name, None)
    except (TypeError, RuntimeError):
        return None
