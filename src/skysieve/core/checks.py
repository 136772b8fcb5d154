"""Checks of arguments.  Every error names the argument, its value and what was expected."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Collection
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np

__all__ = ["DTYPES", "check_path", "flag", "one_of", "real_dtype", "remembered", "thread_count", "whole"]

T = TypeVar("T")

DTYPES = ("float64", "float32")


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """Return `value` if it is one of the names `allowed`; ValueError otherwise.

    >>> one_of("method", "fft", ("auto", "direct"))
    Traceback (most recent call last):
    ValueError: method='fft': expected one of 'auto', 'direct'
    """
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")
    return value


def check_path(path: Any, what: str = "file") -> None:
    """Raise TypeError if `path` is no path; the message says that the name of a `what` was expected."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is a {type(path).__name__}, expected the name of a {what}")


def flag(name: str, value: Any) -> bool:
    """Return `value` if it is a bool; TypeError otherwise."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r}: expected True or False")
    return bool(value)


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return `value` if it is a whole number from `least` to `most`; ValueError otherwise.

    >>> whole("n", 2.5, 1)
    Traceback (most recent call last):
    ValueError: n=2.5: expected a whole number, at least 1
    """
    number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if number is not None and number >= least and (most is None or number <= most):
        return number
    limits = f", at least {least}" if most is None else f" from {least} to {most}"
    raise ValueError(f"{name}={value!r}: expected a whole number{limits}")


def thread_count(threads: Any) -> int | None:
    """Return `threads` if it is a number of threads, or None for all cores; TypeError or ValueError otherwise."""
    if threads is None:
        return None
    expected = f"threads={threads!r}: expected a whole number, at least 1, or None for all cores"
    if isinstance(threads, bool) or not isinstance(threads, numbers.Integral):
        raise TypeError(expected)
    if threads < 1:
        raise ValueError(expected)
    return int(threads)


def real_dtype(dtype: Any) -> np.dtype[Any]:
    """Return float64 or float32 as a NumPy dtype; TypeError if `dtype` is no dtype, ValueError if it is another."""
    expected = f"dtype={dtype!r}: expected 'float64' or 'float32'"
    try:
        real: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(expected) from error
    if real.name not in DTYPES:
        raise ValueError(expected)
    return real


def remembered(check: Callable[..., T], *given: Any) -> T:
    """Return ``check(*given)``, cached for equal arguments of the same types.

    For checks that return immutable values: they take longer than the rest of a small call.

    >>> remembered(real_dtype, "float32") is remembered(real_dtype, "float32")
    True
    """
    try:
        hash(given)
    except TypeError:  # an array, for example
        return check(*given)
    found: T = _with_memory(check)(*given)
    return found


@cache
def _with_memory(check: Callable[..., T]) -> Callable[..., T]:
    return lru_cache(maxsize=64, typed=True)(check)
