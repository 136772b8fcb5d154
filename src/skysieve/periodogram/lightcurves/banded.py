"""Light curves in several bands: sources that know the band of every row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host

from .arrays import is_ragged
from .sources import CurveSet, FlatSource, JoinedSource, ListSource, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.periodogram.contract import Source


@dataclass(frozen=True)
class BandedSource:
    """A source, and the number of the band of every row."""

    source: Source
    codes: Any

    @property
    def n_objects(self) -> int:
        return self.source.n_objects

    @property
    def offsets(self) -> NDArray[np.int64]:
        return self.source.offsets

    @property
    def has_dy(self) -> bool:
        return self.source.has_dy

    def row(self, i: int, j: int) -> int:
        """The user's number of row ``j`` of object ``i``."""
        return self.source.row(i, j)

    def read(self, start: int, stop: int) -> tuple[Any, Any, Any, NDArray[np.int64]]:
        """See `skysieve.periodogram.contract.Source`."""
        return self.source.read(start, stop)

    def bands(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers of the bands of the rows that `read` returns."""
        if self.codes.ndim == 1 and len(self.codes) != int(self.offsets[-1]):  # one list of bands for all light curves
            return np.tile(self.codes, stop - start)
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        codes: NDArray[np.int64] = self.codes[first:last]
        return codes


def read_once(curves: CurveSet) -> CurveSet:
    """Light curves whose lists are joined, see `joined`."""
    source = curves.source
    if isinstance(source, BandedSource):
        return replace(curves, source=replace(source, source=joined(source.source)))
    return replace(curves, source=joined(source))


SMALL_NUMBERS = 4096
"""Bands that are whole numbers below this are counted; others are sorted, which takes longer."""


def _unmasked(name: str, bands: Any) -> NDArray[Any]:
    """Bands as an array on the host; ValueError if one of them is masked."""
    mask = getattr(bands, "mask", None)  # a method of a pandas column, an array of a masked one
    if mask is not None and not callable(mask) and np.any(mask):
        raise ValueError(f"{name}: row {int(np.argmax(mask))} is masked; expected a band for every row")
    found: NDArray[Any] = np.asarray(to_host(getattr(bands, "unmasked", bands)))
    return found


def with_bands(curves: CurveSet, bands: Any) -> tuple[tuple[Any, ...], CurveSet]:
    """Names of the bands, and the light curves with the band of each row.

    Raises
    ------
    TypeError
        For bands that are neither text nor whole numbers.
    ValueError
        For bands of another shape than the rows, or masked ones.
    """
    source = curves.source
    rows = int(source.offsets[-1])
    if isinstance(source, ListSource | JoinedSource) and (is_ragged(bands) or _lists_among(bands)):
        if len(bands) != source.n_objects:
            raise ValueError(f"bands has {len(bands)} light curves, y has {source.n_objects}")
        for i, (one, size) in enumerate(zip(bands, np.diff(source.offsets), strict=True)):
            if np.shape(one) != (size,):
                raise ValueError(f"bands[{i}] has shape {np.shape(one)}; ({size},) is expected")
        each = [_unmasked(f"bands[{i}]", one) for i, one in enumerate(bands)]
        flat = np.concatenate([one for one in each if one.size] or [np.empty(0, int)])
    else:
        flat = _unmasked("bands", bands)
    if flat.dtype.kind == "O":
        for i, one in enumerate(flat.ravel()):
            if not isinstance(one, str):
                raise TypeError(f"bands: row {i} is {one!r}; expected a name for every row, or whole numbers")
        flat = flat.astype(str)
    if flat.dtype.kind == "S":
        flat = np.char.decode(flat)
    if flat.dtype.kind not in "Uiub":
        raise TypeError(f"bands has dtype {flat.dtype}; expected names or whole numbers")
    single_row = rows // max(1, source.n_objects)
    if flat.shape != (rows,) and not (
        not isinstance(source, FlatSource | ListSource)
        and flat.shape in ((single_row,), (source.n_objects, single_row))
    ):
        raise ValueError(f"bands has shape {flat.shape}; expected one band for each of {rows} rows")
    if flat.dtype.kind in "iu" and flat.size and flat.min() >= 0 and flat.max() < SMALL_NUMBERS:
        seen = np.bincount(flat.reshape(-1)) > 0
        names, codes = np.flatnonzero(seen), (np.cumsum(seen) - 1)[flat.reshape(-1)]
    else:
        names, codes = np.unique(flat, return_inverse=True)
    codes = codes.reshape(-1).astype(np.int64, copy=False)
    if isinstance(source, FlatSource) and source.order is not None:
        codes = codes[source.order]
    return tuple(names.tolist()), replace(curves, source=BandedSource(source, codes))


def _lists_among(bands: Any) -> bool:
    """Whether a list whose first entry is no list holds lists; the error then names the first entry."""
    if not isinstance(bands, list | tuple):
        return False
    return any(isinstance(one, list | tuple) or getattr(one, "ndim", 0) > 0 for one in bands[1:])
