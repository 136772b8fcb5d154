"""Periods of the objects that changed: one search for objects in one band, and one for objects in several bands."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.plan import Closing
from skysieve.periodogram.lightcurves.io import LightCurves
from skysieve.periodogram.multiband import DEFAULT_TERMS
from skysieve.periodogram.survey import Found, Request, finish, no_objects

from .history import searchable
from .surveys import band_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PeriodSearch"]


class PeriodSearch(Closing):
    """Finds the periods of batches of light curves, with the columns of ``skysieve period``.

    Parameters
    ----------
    min_period, max_period : float
        Range of periods in days.
    samples_per_peak : float
        Number of frequencies in an interval of 1/T, with T the time span of an object.
    n_peaks : int
        Peaks of each object.
    nterms : int, optional
        Fourier terms; by default 1 for objects in one band, and 2 with a penalty for those in several.
    min_rows : int
        Objects with fewer rows are not searched.
    forced : bool
        Whether forced photometry is used.
    device, threads, memory
        As for `skysieve.lombscargle`.

    Raises
    ------
    ValueError, TypeError
        For options that do not fit.
    """

    def __init__(
        self,
        *,
        min_period: float = 0.05,
        max_period: float = 50.0,
        samples_per_peak: float = 5.0,
        n_peaks: int = 5,
        nterms: int | None = None,
        min_rows: int = 20,
        forced: bool = True,
        device: str = "auto",
        threads: int | None = None,
        memory: str | None = None,
    ) -> None:
        if not 0 < min_period < max_period < float("inf"):
            raise ValueError(
                f"min_period={min_period:g}, max_period={max_period:g}: expected 0 < min_period < max_period"
            )
        self.settings = {
            "min_period": min_period, "max_period": max_period, "samples_per_peak": samples_per_peak,
            "n_peaks": n_peaks, "nterms": nterms, "min_rows": min_rows, "forced": forced,
        }  # fmt: skip
        self.min_rows, self.forced, self._n_peaks = min_rows, forced, n_peaks
        arguments = {
            "fmin": 1 / max_period, "fmax": 1 / min_period, "samples_per_peak": samples_per_peak, "n_peaks": n_peaks,
            "nterms": nterms or 1, "device": device, "threads": threads, "memory": memory,
        }  # fmt: skip
        self._one = Request(arguments)
        self._several = Request(arguments, multiband="offsets", band_terms=DEFAULT_TERMS if nterms is None else None)
        with ExitStack() as stack:
            self._plan = stack.enter_context(self._one.plan(banded=False))
            self._bands = stack.enter_context(self._several.plan(banded=True))
            self._open = stack.pop_all()

    def close(self) -> None:
        """Free threads and device memory."""
        self._open.close()

    def no_periods(self) -> dict[str, Any]:
        """The columns that a store's table of periods would have, without rows."""
        return self._no_periods(self._n_peaks)

    def most_peaks(self, columns: int) -> int:
        """The largest number of peaks for which the table of periods has at most `columns` columns."""
        one, two = (len(self._no_periods(n)) for n in (1, 2))
        return 1 + (columns - one) // (two - one)

    def _no_periods(self, n_peaks: int) -> dict[str, Any]:
        columns = no_objects(n_peaks).table(self._several)[0]
        return columns | {"bands": np.empty(0, str), "last_mjd": np.empty(0), "searched": np.empty(0)}

    def search(self, objects: Sequence[Any], rows: NDArray[Any], offsets: NDArray[np.int64]) -> dict[str, Any]:
        """Search light curves.

        Parameters
        ----------
        objects : sequence of int or str
        rows, offsets
            As of `history.merge`.

        Returns
        -------
        dict of str to array
            Columns of ``skysieve period`` for the objects with enough rows, ``bands`` and ``last_mjd``; empty if there
            are none.
        """
        rows, offsets = searchable(rows, offsets, self.forced)
        enough = np.diff(offsets) >= self.min_rows
        if not enough.any():
            return {}
        owners = np.repeat(np.arange(len(objects)), np.diff(offsets))
        rows, owners = rows[enough[owners]], owners[enough[owners]]
        numbers = np.flatnonzero(enough)
        owners = np.searchsorted(numbers, owners)
        codes, band = np.unique(rows["band"], return_inverse=True)
        seen = np.zeros((len(numbers), len(codes)), bool)
        seen[owners, band] = True
        parts = []
        for several in (False, True):
            wanted = np.flatnonzero((seen.sum(axis=1) > 1) == several)
            if len(wanted):
                mine = np.isin(owners, wanted)
                parts.append(
                    self._part([objects[numbers[k]] for k in wanted], rows[mine], owners[mine], band[mine], several)
                )
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        place = {objects[k]: i for i, k in enumerate(numbers.tolist())}
        order = np.array([place[o] for o in columns["id"]])
        names = [band_name(code) for code in codes]
        words = np.array(["".join(n for n, here in zip(names, row, strict=True) if here) for row in seen], object)
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        return columns | {"bands": words[order], "last_mjd": np.maximum.reduceat(rows["t"], starts)[order]}

    def _part(
        self, objects: list[Any], rows: NDArray[Any], owners: NDArray[np.int64], band: NDArray[np.int64], several: bool
    ) -> dict[str, Any]:
        ids = np.array(objects) if all(isinstance(o, int) for o in objects) else np.array(objects, object)
        _, counts = np.unique(owners, return_counts=True)
        curves = LightCurves(
            path=Path("alerts"), ids=ids, t=rows["t"].copy(), y=rows["y"].astype(np.float64),
            dy=rows["dy"].astype(np.float64), offsets=np.concatenate([[0], np.cumsum(counts)]), taken="",
            value_name="flux", band=band if several else None,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on grids, and on objects without a result: their status says why
            if several:
                result: Any = self._bands.execute(curves.t, curves.y, curves.band, curves.dy, offsets=curves.offsets)
            else:
                result = self._plan.execute(curves.t, curves.y, curves.dy, offsets=curves.offsets)
        found: Found = finish(curves, result, self._several if several else self._one, several)
        return found.table(self._several if several else self._one)[0] | {"id": ids.astype(object)}
