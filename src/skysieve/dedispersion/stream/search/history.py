"""The latest samples of a stream, as the engine of a search reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import Observation

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENDLESS = 2**60
"""Number of samples that stands for an unknown end of the stream."""


class History:
    """The latest samples of a stream, shape (samples, channels), as a `filterbank.Reader` by sample numbers."""

    def __init__(self, obs: Observation, dtype: np.dtype[Any], maximum: int, keep: int, room: int = 1) -> None:
        self.observation, self.dtype, self.maximum, self.nsamp = obs, dtype, maximum, ENDLESS
        self.order = np.arange(obs.nchan)
        self.keep = keep
        self.rows = np.zeros((keep + room, obs.nchan), dtype)
        self.base = self.stop = 0
        self.trial = False

    def begin(self, start: int) -> None:
        """Forget all samples; the next one is ``start``."""
        self.base = self.stop = start

    def append(self, rows: Any, needed: int) -> None:
        """Add samples; samples before ``needed`` that are not among the ``keep`` latest may be dropped."""
        if self.stop - self.base + len(rows) > len(self.rows):
            first = max(self.base, min(needed, self.stop + len(rows) - self.keep))
            left = self.rows[first - self.base : self.stop - self.base]
            if len(left) + len(rows) > len(self.rows):
                bigger = np.zeros((2 * (len(left) + len(rows)), self.rows.shape[1]), self.dtype)
                bigger[: len(left)] = left
                self.rows = bigger
            else:
                self.rows[: len(left)] = left
            self.base = first
        at = self.stop - self.base
        self.rows[at : at + len(rows)] = rows
        self.stop += len(rows)

    def view(self, start: int, stop: int) -> Any:
        """A view of samples that are held."""
        return self.rows[start - self.base : stop - self.base]

    def copy(self, start: int, stop: int) -> NDArray[Any]:
        """A copy of samples that are held, on the host."""
        found: NDArray[Any] = self.view(start, stop).copy()
        return found

    def change(self, start: int, stop: int, ahead: int, work: Callable[[int, Any, int, bool], Any]) -> None:
        """Replace samples by ``work(start, rows, count, True)``, where ``rows`` has ``ahead`` further samples."""
        rows = self.view(start, stop + ahead)
        changed = work(start, rows, stop - start, True)
        if not np.may_share_memory(changed, rows):
            rows[: stop - start] = changed

    def synchronize(self) -> None:
        """Wait until the arrays given to `append` have been read."""

    def touch(self) -> None:
        """Map every page of the memory now, and not while data arrive."""
        self.rows.fill(0)

    def read(self, start: int, count: int) -> Any:
        """Samples ``start : start + count``, shape (count, nchan)."""
        if self.trial or count == 0:
            return np.zeros((count, len(self.order)), self.dtype)
        self.check(start, count)
        return self.view(start, start + count)

    def check(self, start: int, count: int) -> None:
        """Raise ValueError unless the samples are held."""
        if start < self.base or start + count > self.stop:
            raise ValueError(f"samples {start} to {start + count}: {self.base} to {self.stop} are held")

    def close(self) -> None:
        """Free device memory; there is none here."""


class LiveSource(Cleaned):
    """The source of an engine: the history, with ignored channels masked."""

    def __init__(self, fb: Filterbank, ignore: Sequence[int], block: int) -> None:
        super().__init__(fb, None, block)
        self.ignore = ignore

    def fills(self, start: int, count: int) -> Iterator[tuple[int, int, int, float]]:
        """See `contract.Source`."""
        for row in self.ignore if count else ():
            yield row, 0, count, 0.0
