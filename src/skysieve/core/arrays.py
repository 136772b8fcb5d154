"""Arrays of NumPy, CuPy and other libraries: where they are, and how they are read without needless copies.

CuPy is imported only for an array on a GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["array_module", "as_array", "as_float64", "is_device_array", "to_host"]

_HOST = (np.ndarray, list, tuple, int, float, type(None))
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


def is_device_array(x: Any) -> bool:
    """Return whether `x` is an array in the memory of a GPU (of CuPy, Torch, Numba, JAX, ...)."""
    if isinstance(x, _HOST):
        return False
    if _attribute(x, "__cuda_array_interface__") is not None:
        return True
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
