"""`Dedispersed`, the result of de-dispersion, and the ``.npz`` files that store results."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of
from skysieve.core.files import written
from skysieve.core.result import Result, npz_arrays
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.observation import Observation

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["Dedispersed"]

SeriesFormat = Literal["dat", "tim"]
SERIES_FORMATS = {
    "dat": "PRESTO's .dat of float32 with its .inf",
    "tim": "SIGPROC's .tim of float32",
}
"""Formats of series: names of `SeriesFormat`, which are the endings of the files."""
MOST_DRAWN = 2000
"""Most columns and rows of a picture of series."""


@dataclass(frozen=True, repr=False, eq=False)
class Dedispersed(Result):
    """De-dispersed series.

    Attributes
    ----------
    data : numpy.ndarray, shape (ndm, samples)
        Sums over the channels: uint32, or int32 for signed and float32 for floating-point samples.  They are not
        scaled: the mean over channels and binned samples is ``data / (nchan * downsamp)``.  This is a CuPy array if the
        samples are on a GPU.
    dms : numpy.ndarray of float64
        pc / cm^3.
    tsamp : float
        Seconds between (binned) samples.
    start : int
        Binned sample of the filterbank that column 0 belongs to, at the reference frequency.
    downsamp : int
        Samples that were added in time.
    method : str
        The method that was used: "brute", "exact-subband", "subband" or "tree".
    delay_error : float
        Largest difference of a channel's shift from its true delay, in binned samples: 0.5 if only delays are rounded.
    loss : float
        Fraction of the S/N that ``method`` is expected to lose beyond the exact sum, for a pulse of ``width``; 0 if it
        is exact.
    dm_constant : float
        MHz^2 s cm^3 / pc.
    ref_freq : float
        MHz; times are arrival times at this frequency.
    device : str
    seconds : float
        Time that the computation took, including the reading of files.  The time of a plan is divided among its stages
        in proportion to their size.
    observation : Observation
    gaps : numpy.ndarray of int64, shape (n, 2)
        Columns whose sample at the reference frequency is missing in the data: first, and last + 1.
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
        """Start times of the columns, in seconds from the start of the data."""
        return (self.start + np.arange(self.data.shape[1], dtype=np.float64)) * self.tsamp

    @property
    def rate(self) -> float:
        """Channels x DMs x samples per second of computation."""
        return self.observation.nchan * float(self.data.size) / max(self.seconds, 1e-9)

    @property
    def realtime(self) -> float:
        """Real-time factor: seconds of data per second of computation."""
        return self.data.shape[1] * self.tsamp / max(self.seconds, 1e-9)

    def __repr__(self) -> str:
        return (
            f"<Dedispersed {self.data.shape[0]} DMs x {self.data.shape[1]} samples of {self.tsamp * 1e6:g} us, "
            f"{self.method} on {self.device}>"
        )

    def to_table(self) -> Table:
        """A row for each DM: the DM and its series."""
        from astropy.table import Table

        facts = {
            "tsamp": self.tsamp, "start": self.start, "downsamp": self.downsamp, "method": self.method,
            "dm_constant": self.dm_constant, "ref_freq": self.ref_freq, "source": self.observation.source,
        }  # fmt: skip
        return Table({"dm": self.dms, "series": to_host(self.data)}, units={"dm": "pc / cm3"}, meta=facts)

    def plot(self, **options: Any) -> Figure:
        """The series against time and DM, in sigma over the median of each.

        Parameters
        ----------
        **options
            Options of `matplotlib.figure.Figure`.
        """
        from matplotlib.figure import Figure

        figure = Figure(**dict[str, Any](figsize=(8, 5), layout="constrained") | options)
        axes = figure.subplots()
        bins = -(-self.data.shape[1] // MOST_DRAWN)
        rows = -(-len(self.dms) // MOST_DRAWN)
        count = self.data.shape[1] // bins
        x = to_host(self.data[::rows, : count * bins]).astype(np.float64).reshape(-1, count, bins).sum(axis=2)
        low, middle, high = np.percentile(x, [25, 50, 75], axis=1, keepdims=True)
        sigma = np.where(high > low, (high - low) / 1.349, 1.0)
        ends = self.start * self.tsamp, (self.start + count * bins) * self.tsamp
        lines = np.concatenate([self.dms[::rows], self.dms[-1:]])
        edges = lines if np.ptp(lines) > 0 and len(lines) > 2 else self.dms[0] + np.linspace(-0.5, 0.5, len(x) + 1)
        image = axes.pcolormesh(
            np.linspace(*ends, count + 1), edges, (x - middle) / sigma, cmap="viridis", rasterized=True
        )
        axes.set(xlabel="time [s]", ylabel="DM [pc cm$^{-3}$]", title=f"{len(self.dms)} DMs, {self.method}")
        figure.colorbar(image, ax=axes, label="sigma")
        return figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to an ``.npz`` file that `load` reads."""
        save_fields(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Dedispersed:
        """Read a result that `save` wrote.

        Raises
        ------
        ValueError
            The file holds something else.
        """
        return cls(**load_fields(cls, path, {"observation": Observation}))

    def write(
        self, stem: str | os.PathLike[str], *, format: SeriesFormat = "dat", digits: int | None = None
    ) -> list[Path]:
        """Write each series to ``<stem>_DM<dm>.dat`` with its ``.inf``, or to ``.tim``.

        Parameters
        ----------
        stem : path
        format : {"dat", "tim"}
        digits : int, optional
            Digits of the DM after the point; by default 2, or as many as make the names different.

        Returns
        -------
        list of Path

        Notes
        -----
        Times in these files are those at the top of the band: with another ``ref_freq`` the start time of each series
        is later, or earlier, by the delay of its DM between the two frequencies.
        """
        from skysieve.dedispersion.data.write import write_dat, write_tim

        one_of("format", format, SERIES_FORMATS)
        late = delay_seconds(self.observation.top, self.dms, self.ref_freq, self.dm_constant)
        starts = self.observation.tstart + (self.start * self.tsamp + late) / 86400
        digits = name_digits(self.dms + (self.observation.dm or 0.0)) if digits is None else digits
        base_dm = self.observation.dm or 0.0  # the data may be a series that was de-dispersed before
        paths = []
        for dm, begin, series in zip(self.dms + base_dm, starts, self.data, strict=True):
            obs = self.observation.replace(tstart=float(begin))
            path = series_path(stem, dm, digits, format)
            if format == "dat":
                write_dat(
                    path, series, obs, dm=dm, tsamp=self.tsamp, dm_constant=self.dm_constant, gaps=self.gaps
                )  # fmt: skip
            else:
                write_tim(path, series, obs, dm=dm, tsamp=self.tsamp, dm_constant=self.dm_constant)
            paths.append(path)
        return paths


def series_path(stem: str | os.PathLike[str], dm: float, digits: int, format: str) -> Path:
    """The file of a series.

    >>> series_path("out/a", 60.0, 2, "dat").name
    'a_DM60.00.dat'
    """
    base = Path(stem)
    return base.with_name(f"{base.name}_DM{dm:.{digits}f}.{format}")


def name_digits(dms: NDArray[np.float64]) -> int:
    """Number of decimals, 2 to 9, from which on all DMs in file names differ.

    >>> name_digits(np.array([1.001, 1.004]))
    3
    """
    digits = 2
    while digits < 9 and len({f"{dm:.{digits}f}" for dm in dms}) < len(np.unique(dms)):
        digits += 1
    return digits


def save_fields(result: Any, path: str | os.PathLike[str]) -> None:
    """Write all fields of a dataclass to ``.npz``; fields that are dataclasses themselves are written field by field.

    Raises
    ------
    ValueError
        The name does not end in ``.npz``.
    """
    if Path(path).suffix.lower() != ".npz":
        raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in .npz")
    arrays: dict[str, Any] = {}
    facts: dict[str, Any] = {}

    def take(thing: Any, prefix: str) -> None:
        for one in fields(thing):
            value = getattr(thing, one.name)
            if hasattr(value, "__dataclass_fields__"):
                take(value, f"{prefix}{one.name}.")
            elif hasattr(value, "dtype"):
                arrays[prefix + one.name] = to_host(value)
            else:
                facts[prefix + one.name] = value

    take(result, "")
    text = json.dumps({"format": _format(type(result)), **facts}, default=lambda v: v.item())
    with written(path) as part, open(part, "wb") as file:
        np.savez(file, facts=np.array(text), **arrays)


def load_fields(kind: type, path: str | os.PathLike[str], parts: Mapping[str, type]) -> dict[str, Any]:
    """The fields of a dataclass that `save_fields` wrote; ``parts`` are the fields that are dataclasses.

    Raises
    ------
    ValueError
        The file holds something else.
    """
    try:
        values = npz_arrays(path)
        facts = json.loads(str(values.pop("facts")))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: was not written by {kind.__name__}.save") from error
    if facts.pop("format", "") != _format(kind):
        raise ValueError(f"{path}: was not written by {kind.__name__}.save")
    values |= facts
    for name, part in parts.items():
        own = [key for key in values if key.startswith(f"{name}.")]
        if own:
            values[name] = part(**{key.partition(".")[2]: values.pop(key) for key in own})
    return values


def _format(kind: type) -> str:
    return f"skysieve.dedispersion.{kind.__name__} 1"
