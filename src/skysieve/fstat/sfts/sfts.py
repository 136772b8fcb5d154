"""Short Fourier transforms of one detector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import whole
from skysieve.fstat.inputs.atoms import positive

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SFTs", "Taper"]


@dataclass(frozen=True)
class Taper:
    """The window function by which the time series was multiplied before each transform.

    Attributes
    ----------
    kind : {"rectangular", "hann", "tukey", "unknown"}
    beta : float
        Tapered fraction of a Tukey window, 0 to 1.
    """

    kind: str = "rectangular"
    beta: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("rectangular", "hann", "tukey", "unknown"):
            raise ValueError(f"kind={self.kind!r}: expected rectangular, hann, tukey or unknown")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta={self.beta!r}: expected 0 to 1")


@dataclass(frozen=True, eq=False)
class SFTs:
    """Short Fourier transforms of one detector, in order of time.

    Parameters
    ----------
    detector : str
        Two characters, such as ``"H1"``.
    t : array_like of int, shape (n,)
        GPS seconds at which the transforms start.
    tsft : float
        Length of each SFT, seconds.
    first_bin : int
        Number of the first frequency bin: its frequency is ``first_bin / tsft``.
    data : array_like of complex, shape (n, bins)
        Fourier transforms of the strain, times the sampling interval: the one-sided power spectral density is
        ``2 |data|^2 / tsft``.  Stored as complex64.
    taper : Taper
        Window of the time series.

    Raises
    ------
    ValueError, TypeError
        The shapes or types of the arrays do not match, times do not rise, or transforms overlap.

    Examples
    --------
    >>> sfts = SFTs("H1", [0, 1800], 1800, 180_000, np.ones((2, 5)))
    >>> sfts
    <SFTs: H1, 2 of 1800 s from GPS 0, 100 to 100.002222 Hz>
    >>> float(sfts.frequencies[0])
    100.0
    """

    detector: str
    t: NDArray[np.int64]
    tsft: float
    first_bin: int
    data: NDArray[np.complex64]
    taper: Taper = field(default_factory=Taper)

    def __post_init__(self) -> None:
        t, data = np.asarray(self.t), np.asarray(self.data)
        if len(self.detector) != 2:
            raise ValueError(f"detector={self.detector!r}: expected two characters such as 'H1'")
        if t.ndim != 1 or t.size == 0 or (t != np.floor(t)).any():
            raise ValueError(f"t has shape {t.shape} and dtype {t.dtype}: expected whole GPS seconds, one for each SFT")
        if data.ndim != 2 or len(data) != t.size or data.shape[1] == 0:
            raise ValueError(f"data has shape {data.shape}: expected ({t.size}, bins)")
        positive(self.tsft, "tsft")
        whole("first_bin", self.first_bin, 0)
        if not isinstance(self.taper, Taper):
            raise TypeError(f"taper={self.taper!r}: expected a Taper")
        steps = np.diff(t.astype(np.int64))
        early = np.less(steps, self.tsft)
        if early.any():
            at = int(np.argmax(early))
            what = "do not rise" if steps[at] <= 0 else "overlap"
            raise ValueError(
                f"{self.detector}: SFTs at GPS {t[at]} and {t[at + 1]} {what}; each is {self.tsft:g} s long"
            )
        object.__setattr__(self, "t", t.astype(np.int64))
        object.__setattr__(self, "data", np.ascontiguousarray(data, np.complex64))
        object.__setattr__(self, "tsft", float(self.tsft))

    def __len__(self) -> int:
        return len(self.t)

    def __repr__(self) -> str:
        low, high = self.frequencies[[0, -1]]
        return (
            f"<SFTs: {self.detector}, {len(self)} of {self.tsft:g} s from GPS {self.t[0]}, {low:.9g} to {high:.9g} Hz>"
        )

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Frequencies of the bins, Hz."""
        return (self.first_bin + np.arange(self.data.shape[1])) / self.tsft

    def part(self, low: float, high: float) -> SFTs:
        """The bins from frequency `low` to `high`, Hz; the bins at the ends hold both.

        Raises
        ------
        ValueError
            The SFTs do not cover the band.
        """
        first, last = bins_of(low, high, self.tsft)
        start, stop = first - self.first_bin, last + 1 - self.first_bin
        refuse_narrow(first, last, self.first_bin, self.data.shape[1], self.tsft, self.detector)
        return SFTs(self.detector, self.t, self.tsft, first, self.data[:, start:stop], self.taper)


def bins_of(low: float, high: float, tsft: float) -> tuple[int, int]:
    """First and last bin of a band: the band lies between their frequencies."""
    if not (np.isfinite([low, high]).all() and 0 <= low <= high):
        raise ValueError(f"band=({low!r}, {high!r}): expected two rising frequencies in Hz")
    return round_down(low * tsft), -round_down(-high * tsft)


def round_down(x: float) -> int:
    """The floor of `x`, or the nearest integer if `x` differs from it only by rounding errors."""
    near = round(x)
    return int(near) if abs(x - near) <= 1e-9 * max(1.0, abs(x)) else int(np.floor(x))


def refuse_narrow(first: int, last: int, first_bin: int, n_bins: int, tsft: float, what: Any) -> None:
    """Raise ValueError unless the bins from `first` to `last` are among those that are available."""
    if text := missing_bins(first, last, first_bin, n_bins, tsft):
        raise ValueError(f"{what}: {text}")


def missing_bins(first: int, last: int, first_bin: int, n_bins: int, tsft: float) -> str:
    """Text that says how many Hz the available bins lack for `first` to `last`; empty if they suffice."""
    missing = []
    if first < first_bin:
        missing.append(f"{(first_bin - first) / tsft:.6g} Hz below")
    if last >= first_bin + n_bins:
        missing.append(f"{(last - first_bin - n_bins + 1) / tsft:.6g} Hz above")
    have = f"{first_bin / tsft:.9g} to {(first_bin + n_bins - 1) / tsft:.9g} Hz"
    return f"SFTs hold {have}, too narrow by {' and '.join(missing)}" if missing else ""
