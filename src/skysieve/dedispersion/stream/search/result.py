"""The candidates that the search of a stream returns, and the events of which they consist."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skysieve.core.files import written
from skysieve.core.result import Result, npz_arrays
from skysieve.dedispersion.single_pulse.candidates import Events
from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_COLUMNS = {c.name: c for c in CANDIDATE_COLUMNS}


@dataclass(frozen=True, repr=False, eq=False)
class StreamCandidates(Result):
    """Candidates of a stream that have become final, the loudest first.

    Attributes
    ----------
    columns : dict of numpy.ndarray
        As `Candidates.columns`, with the additional column ``live``: the fraction of the samples of the window that
        arrived.
    events : Events
        The events of the candidates, in the order of DM, time and width.
    group : numpy.ndarray of int64
        Candidate to which each event belongs.

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> from skysieve.dedispersion.stream import StreamSearch
    >>> fb = fake(nchan=64, duration=4, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[1.5], width=4e-3, snr=20, seed=1)
    >>> with StreamSearch(fb.observation, np.arange(100, 300, 4), threads=1) as live:
    ...     found = live.execute([(0, fb.block(0, 4000).T)])
    >>> len(found), found.to_table().colnames[:3]
    (1, ['snr', 'dm', 'time'])
    """

    columns: dict[str, NDArray[Any]]
    events: Events
    group: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.columns["snr"])

    def __repr__(self) -> str:
        loudest = ""
        if len(self):
            loudest = f", loudest S/N {self.columns['snr'][0]:.1f} at DM {self.columns['dm'][0]:g}"
        return f"<StreamCandidates: {len(self)} of {len(self.events)} events{loudest}>"

    def to_table(self) -> Table:
        """The candidates as an astropy table, one row each."""
        from astropy.table import Table

        known = [_COLUMNS[name] for name in self.columns]
        return Table(
            self.columns, units={c.name: c.unit for c in known if c.unit}, descriptions={c.name: c.help for c in known}
        )

    def plot(self, **options: Any) -> Figure:
        """Draw the events in the plane of time and DM, and the candidates on top of them.

        Parameters
        ----------
        **options
            Keyword arguments of `matplotlib.figure.Figure`.
        """
        from matplotlib.figure import Figure

        figure = Figure(**dict[str, Any](figsize=(8, 5), layout="constrained") | options)
        axes = figure.add_subplot(xlabel="Time, s", ylabel="DM, pc/cm$^3$", title=f"{len(self)} candidates")
        axes.scatter(self.events.time, self.events.dm, s=np.square(self.events.snr) / 8, color="0.6", linewidths=0)
        axes.scatter(self.columns["time"], self.columns["dm"], marker="x", color="C3")
        return figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write columns, events and groups to a ``.npz`` file."""
        if Path(path).suffix.lower() != ".npz":
            raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in .npz")
        arrays: dict[str, Any] = {f"column_{name}": values for name, values in self.columns.items()}
        arrays |= {f"event_{f.name}": getattr(self.events, f.name) for f in fields(Events)}
        with written(path) as part:
            np.savez(part, group=self.group, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that `save` wrote."""
        try:
            arrays = npz_arrays(path)
            events = Events(**{f.name: arrays[f"event_{f.name}"] for f in fields(Events)})
            columns = {n.removeprefix("column_"): v for n, v in arrays.items() if n.startswith("column_")}
            return cls(columns, events, arrays["group"])
        except (ValueError, KeyError) as error:
            raise ValueError(f"{os.fspath(path)}: this is not a file of StreamCandidates: {error}") from None

    @classmethod
    def join(cls, parts: Sequence[StreamCandidates]) -> Self:
        """All candidates of several results, the loudest first."""
        if not parts:
            return cls.empty()
        columns = {n: np.concatenate([p.columns[n] for p in parts]) for n in parts[0].columns}
        order = np.lexsort((columns["time"], columns["dm"], -columns["snr"]))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        starts = np.cumsum([0, *map(len, parts)])
        group = place[np.concatenate([p.group + start for p, start in zip(parts, starts, strict=False)])]
        events = {f.name: np.concatenate([getattr(p.events, f.name) for p in parts]) for f in fields(Events)}
        rank = np.lexsort((events["width_samples"], events["time"], events["dm_index"]))
        return cls(
            {n: c[order] for n, c in columns.items()}, Events(**{n: e[rank] for n, e in events.items()}), group[rank]
        )

    @classmethod
    def empty(cls) -> Self:
        """No candidates."""
        none: Any = np.empty(0)
        return cls(dict.fromkeys(_NAMES, none), Events(*[none] * len(fields(Events))), np.empty(0, np.int64))


_NAMES = tuple(n for n in _COLUMNS if n not in ("beam", "segment", "beams", "flagged", "injected", "latency"))
"""Columns that a search makes; other stages of the stream add the others."""
