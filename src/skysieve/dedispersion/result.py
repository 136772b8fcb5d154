"""What de-dispersion gives back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.observation import Observation

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Dedispersed"]


@dataclass(frozen=True)
class Dedispersed:
    """De-dispersed series.

    Attributes
    ----------
    data : numpy.ndarray, shape (ndm, samples)
        Sums over the channels: uint32 (int32 of signed, float32 of floating-point samples).  Not scaled: a mean over
        channels and binned samples is ``data / (nchan * downsamp)``.  A CuPy array where the samples lie on a GPU.
    dms : numpy.ndarray of float64
        pc / cm^3.
    tsamp : float
        Seconds between samples, binned.
    start : int
        Sample of the filterbank (binned) that column 0 belongs to, at the reference frequency.
    downsamp : int
    method : str
        What ran: "brute", "exact-subband" or "subband".
    delay_error : float
        Largest difference of a channel's shift from its true delay, binned samples: 0.5 where only rounding enters.
    loss : float
        Part of the S/N that ``method`` is expected to lose beyond the exact sum for a pulse of ``width``; 0 if exact.
    dm_constant : float
        MHz^2 s cm^3 / pc.
    ref_freq : float
        MHz; arrival times are those at this frequency.
    device : str
    seconds : float
        Time it took, files included.
    observation : Observation
    gaps : numpy.ndarray of int64, shape (n, 2)
        Columns whose sample at the reference frequency the source does not hold: first, and last + 1.
    """

    data: NDArray[Any]
    dms: NDArray[np.float64]
    tsamp: float
    start: int
    downsamp: int
    method: str
    delay_error: float
    loss: float
    dm_constant: float
    ref_freq: float
    device: str
    seconds: float
    observation: Observation
    gaps: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))

    @property
    def times(self) -> NDArray[np.float64]:
        """Seconds since the start of the data at which the columns begin."""
        return (self.start + np.arange(self.data.shape[1], dtype=np.float64)) * self.tsamp

    @property
    def rate(self) -> float:
        """Channels x DMs x samples a second."""
        return self.observation.nchan * float(self.data.size) / max(self.seconds, 1e-9)

    @property
    def realtime(self) -> float:
        """Seconds of data for a second of work."""
        return self.data.shape[1] * self.tsamp / max(self.seconds, 1e-9)

    def __repr__(self) -> str:
        return (
            f"<Dedispersed {self.data.shape[0]} DMs x {self.data.shape[1]} samples of {self.tsamp * 1e6:g} us, "
            f"{self.method} on {self.device}>"
        )

    def write(self, stem: str | os.PathLike[str], *, format: str = "dat", digits: int | None = None) -> list[Path]:
        """Write each series to ``<stem>_DM<dm>.dat`` with its ``.inf``, or to ``.tim``.

        Parameters
        ----------
        stem : path
        format : {"dat", "tim"}
        digits : int, optional
            Digits of the DM after the point; by default as many as tell these DMs apart, at least 2.

        Returns
        -------
        list of Path
        """
        from skysieve.dedispersion.data.write import write_dat, write_tim

        if format not in ("dat", "tim"):
            raise ValueError(f"format={format!r}: expected 'dat' or 'tim'")
        base = Path(stem)
        obs = self.observation.replace(tstart=self.observation.tstart + self.start * self.tsamp / 86400)
        digits = name_digits(self.dms + (obs.dm or 0.0)) if digits is None else digits
        base_dm = self.observation.dm or 0.0  # of a series that was de-dispersed before
        paths = []
        ref = None if self.ref_freq == self.observation.top else self.ref_freq
        for dm, series in zip(self.dms + base_dm, self.data, strict=True):
            path = base.with_name(f"{base.name}_DM{dm:.{digits}f}.{format}")
            if format == "dat":
                write_dat(
                    path, series, obs, dm=dm, tsamp=self.tsamp, dm_constant=self.dm_constant, ref_freq=ref,
                    gaps=self.gaps,
                )  # fmt: skip
            else:
                write_tim(path, series, obs, dm=dm, tsamp=self.tsamp, dm_constant=self.dm_constant, ref_freq=ref)
            paths.append(path)
        return paths


def name_digits(dms: NDArray[np.float64]) -> int:
    """Digits after the point that tell DMs apart in file names: 2 to 9.

    >>> name_digits(np.array([1.001, 1.004]))
    3
    """
    digits = 2
    while digits < 9 and len({f"{dm:.{digits}f}" for dm in dms}) < len(np.unique(dms)):
        digits += 1
    return digits
