"""Light curves that grow: rows of new packets joined to those that are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .surveys import DETECTION, ROW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["merge", "searchable"]


def merge(
    stored: Sequence[bytes], rows: NDArray[Any], owner: NDArray[np.int64]
) -> tuple[list[bytes], NDArray[Any], NDArray[np.int64]]:
    """Join new rows to the stored ones; of rows of an object with the same number and kind, the first is kept.

    Parameters
    ----------
    stored : sequence of bytes, length n
        The rows of each object (`ROW`), sorted by kind and number.
    rows : array of `ROW`
        New rows, in the order in which they came.
    owner : int64 array
        The object of each, 0 to n - 1.

    Returns
    -------
    joined : list of bytes, length n
        As `stored`.  The result does not depend on the order and the repetitions of the packets, if their rows agree.
    rows : array of `ROW`
        All rows, object after object.
    offsets : int64 array, shape (n + 1,)
        Rows of object ``i`` are ``offsets[i]:offsets[i + 1]``.

    Examples
    --------
    >>> new = np.zeros(3, ROW)
    >>> new["id"] = 7, 5, 7
    >>> joined, _, offsets = merge([b"", b""], new, np.array([1, 1, 1]))
    >>> offsets.tolist(), np.frombuffer(joined[1], ROW)["id"].tolist()
    ([0, 0, 2], [5, 7])
    """
    n = len(stored)
    before = np.frombuffer(b"".join(stored), ROW)
    lengths = np.fromiter(map(len, stored), np.int64, n) // ROW.itemsize
    together = np.concatenate([before, rows])
    owners = np.concatenate([np.repeat(np.arange(n), lengths), owner])
    order = np.lexsort((together["id"], together["kind"], owners))  # stable: the first of equal rows comes first
    together, owners = together[order], owners[order]
    first = np.ones(len(together), bool)
    first[1:] = (
        (owners[1:] != owners[:-1])
        | (together["kind"][1:] != together["kind"][:-1])
        | (together["id"][1:] != together["id"][:-1])
    )
    together, owners = together[first], owners[first]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=n))]).astype(np.int64)
    data, size = together.tobytes(), ROW.itemsize
    joined = [data[a * size : b * size] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    return joined, together, offsets


def searchable(
    rows: NDArray[Any], offsets: NDArray[np.int64], forced: bool = True
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The rows that are searched: all detections, and forced photometry of exposures without a detection.

    Parameters
    ----------
    rows, offsets : array of `ROW`, int64 array
        As of `merge`.
    forced : bool
        Whether forced photometry is used at all.

    Returns
    -------
    rows, offsets
    """
    n = len(offsets) - 1
    owners = np.repeat(np.arange(n), np.diff(offsets))
    detected = rows["kind"] == DETECTION
    use = detected.copy()
    if forced and not detected.all():
        exposures, codes = np.unique(rows["exposure"], return_inverse=True)
        place = owners * len(exposures) + codes
        use |= (rows["exposure"] < 0) | ~np.isin(place, place[detected])
    return rows[use], np.concatenate([[0], np.cumsum(np.bincount(owners[use], minlength=n))]).astype(np.int64)
