"""Result of a transient F-statistic map."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of
from skysieve.core.files import written
from skysieve.core.result import Result
from skysieve.fstat.archive import ARRAY, GRID, JSON, form, pack, read_archive, unpack, write_archive
from skysieve.fstat.inputs.grid import Grid

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["STYLES", "Coverage", "Style", "TransientResult"]

PRIOR = 70.0
"""Constant of the amplitude prior: ``ln B = ln(70 / cells) - 4 ln rhohatmax + ln sum exp F``."""
CONTENT = "skysieve.fstat.TransientResult 2"
"""Value that identifies files written by `TransientResult.save`."""


def ln_bayes(log_sum: Any, n_cells: int, rhohatmax: float) -> Any:
    """``ln B`` of a transient signal against noise, from ``ln sum exp F`` over `n_cells` cells; NaN without cells."""
    if n_cells == 0:
        return log_sum + np.nan
    return np.log(PRIOR / n_cells) - 4 * np.log(rhohatmax) + log_sum


@dataclass(frozen=True)
class TextStyle:
    """A text form of a map: one line for each cell.

    Attributes
    ----------
    header : str
        First line.
    line : str
        Format of the other lines, for `t0`, `tau` and `twoF`.
    endings : tuple of str
        Endings of the file names for which the command line takes this style.
    """

    header: str
    line: str
    endings: tuple[str, ...] = ()


STYLES = {
    "pyfstat": TextStyle("# t0[s]     tau[s]     2F\n", "  {t0:10d} {tau:10d} {twoF:< 11.8g}\n", (".dat", ".txt")),
    "lalpulsar": TextStyle("", "  {t0:10d} {tau:10d} {twoF:< 11.8g}\n"),
    "csv": TextStyle("t0,tau,twoF\n", "{t0},{tau},{twoF:.9g}\n", (".csv",)),
}
"""Text forms of a map."""
Style = Literal["pyfstat", "lalpulsar", "csv"]
"""Names of `STYLES`, for type checkers."""


@dataclass(frozen=True, eq=False)
class Coverage:
    """Time coverage of the data: start and width (seconds) of the time bins, and which bins hold data."""

    t_start: int = field(metadata=JSON)
    tatom: int = field(metadata=JSON)
    occupied: NDArray[np.bool_] = field(metadata=ARRAY)


COVERAGE = form(pack, lambda values: Coverage(**unpack(Coverage, values)))
INDEX = form(lambda index: {"": index}, lambda values: (int(values[""][0]), int(values[""][1])))


@dataclass(frozen=True, repr=False, eq=False)
class TransientResult(Result):
    """Map of the transient F-statistic of one template over start times and durations.

    Attributes
    ----------
    F : array, shape (N_t0, N_tau), or None
        The map (half of 2F); NaN in cells whose window holds fewer than two SFTs.  None with ``keep_map=False``.
    grid : Grid
        Start times and durations.
    max_F : float
        Largest F; NaN if no cell could be computed.
    index : tuple of int, or None
        Cell (m, n) of the largest F; the first one in the order of the map if several are equal.
    log_sum : float
        ``ln sum exp F`` over all cells.
    n_cells, n_fallback : int
        Number of cells computed, and number of those where F is set to 2: the window is empty or ill-conditioned.
    window : str
    efold : float
        End of the window in units of tau.
    device, dtype : str
    compat : str or None
    rhohatmax : float
    coverage : Coverage
        Time bins of the data.
    row_log, column_log : numpy.ndarray or None
        ``ln sum exp F`` over each row and each column.
    """

    F: Any = field(metadata=ARRAY)
    grid: Grid = field(metadata=GRID)
    max_F: float = field(metadata=JSON)
    index: tuple[int, int] | None = field(metadata=INDEX)
    log_sum: float = field(metadata=JSON)
    n_cells: int = field(metadata=JSON)
    n_fallback: int = field(metadata=JSON)
    window: str = field(metadata=JSON)
    efold: float = field(metadata=JSON)
    device: str = field(metadata=JSON)
    dtype: str = field(metadata=JSON)
    compat: str | None = field(metadata=JSON)
    rhohatmax: float = field(metadata=JSON)
    coverage: Coverage = field(metadata=COVERAGE)
    row_log: NDArray[np.float64] | None = field(metadata=ARRAY, default=None)
    column_log: NDArray[np.float64] | None = field(metadata=ARRAY, default=None)

    # ------------------------------------------------------------------ the map
    @property
    def twoF(self) -> Any:
        """``2F`` of every cell, shape (N_t0, N_tau).

        Raises
        ------
        ValueError
            The map was not kept.
        """
        if self.F is None:
            raise ValueError("the map was not kept (keep_map=False)")
        return 2 * self.F

    @property
    def max2F(self) -> float:
        """Largest 2F."""
        return 2 * self.max_F

    @property
    def t0_ml(self) -> int | None:
        """Start time of the largest F, GPS seconds."""
        return None if self.index is None else int(self.grid.t0s[self.index[0]])

    @property
    def tau_ml(self) -> int | None:
        """Duration of the largest F, seconds."""
        return None if self.index is None else int(self.grid.taus[self.index[1]])

    # ------------------------------------------------------------------ Bayes
    @property
    def lnBtSG(self) -> float:
        """Log Bayes factor of a transient signal against Gaussian noise, for a flat prior over the grid's cells."""
        return float(ln_bayes(self.log_sum, self.n_cells, self.rhohatmax))

    @property
    def p_t0(self) -> NDArray[np.float64]:
        """Posterior probabilities of the start times, shape (N_t0,); their sum is 1.

        Raises
        ------
        ValueError
            Posteriors were not requested, or no cell could be computed.
        """
        return self._posterior(self.row_log)

    @property
    def p_tau(self) -> NDArray[np.float64]:
        """Posterior probabilities of the durations, shape (N_tau,); their sum is 1."""
        return self._posterior(self.column_log)

    def _posterior(self, logs: NDArray[np.float64] | None) -> NDArray[np.float64]:
        if logs is None:
            raise ValueError("posteriors were not computed (posteriors=False)")
        if self.index is None:
            raise ValueError("no cell could be computed: there is no posterior")
        p = np.exp(logs - logs.max())
        return np.asarray(p / p.sum())

    @property
    def t0_mp(self) -> float:
        """Most probable start time: a point of the grid, or with ``compat="lalpulsar"`` the centre of its bin."""
        return self._mode("t0")

    @property
    def tau_mp(self) -> float:
        """Most probable duration."""
        return self._mode("tau")

    def _axis(self, name: str) -> tuple[NDArray[np.int64], int, NDArray[np.float64]]:
        if name not in ("t0", "tau"):
            raise ValueError(f"name={name!r}: expected 't0' or 'tau'")
        if name == "t0":
            return self.grid.t0s, self.grid.t0_band, self.p_t0
        return self.grid.taus, self.grid.tau_band, self.p_tau

    def _mode(self, name: str) -> float:
        if self.compat == "lalpulsar":
            return self.bin_mode(name)
        points, _, p = self._axis(name)
        return float(points[int(p.argmax())])

    def bin_mode(self, name: str) -> float:
        """The most probable "t0" or "tau" as in LALPulsar: the centre of a bin of `posterior_density`."""
        points, band, p = self._axis(name)
        return float(points[0] + (int(p.argmax()) + 0.5) * band / len(points))

    def posterior_density(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The posterior density in LALPulsar's bins: N equal bins over the band, with integral 1.

        Parameters
        ----------
        name : {"t0", "tau"}

        Returns
        -------
        edges, density : numpy.ndarray, shapes (N + 1,) and (N,)
            Edges in seconds and density per second.  The bins are ``band / N`` wide, not one step of the grid.

        Raises
        ------
        ValueError
            The band is 0, so that all probability is at one point.
        """
        points, band, p = self._axis(name)
        if band == 0:
            raise ValueError(f"the band of {name} is 0: its posterior is one point, {points[0]}")
        width = band / len(points)
        return points[0] + width * np.arange(len(points) + 1), p / width

    def credible_interval(self, name: str, level: float = 0.9) -> tuple[int, int]:
        """The central credible interval: the grid points between the tails of the posterior.

        Parameters
        ----------
        name : {"t0", "tau"}
        level : float
            Smallest probability of the interval.

        Returns
        -------
        low, high : int
            Seconds.

        Examples
        --------
        >>> from skysieve.fstat import Injection, synth_atoms, transient_map
        >>> atoms = synth_atoms(span=5 * 86400, inject=Injection(1000090000, 90000, snr=15), seed=1)
        >>> low, high = transient_map(atoms).credible_interval("t0")
        >>> low <= 1000090000 <= high
        True
        """
        if not 0 < level < 1:
            raise ValueError(f"level={level!r}: expected between 0 and 1")
        points, _, p = self._axis(name)
        total = np.cumsum(p)
        tail = 0.5 * (1 - level)
        low = int(np.searchsorted(total, tail, side="right"))
        high = int(np.searchsorted(total, 1 - tail, side="left"))
        last = len(points) - 1
        return int(points[min(low, last)]), int(points[min(high, last)])

    # ------------------------------------------------------------------ output
    def __repr__(self) -> str:
        where = f"{self.window}, {self.n_cells} cells on {self.device}, {self.dtype}"
        if self.index is None:
            return f"<TransientResult: no cell could be computed; {where}>"
        return (
            f"<TransientResult: max 2F {self.max2F:.6g} at t0 {self.t0_ml}, tau {self.tau_ml} s, "
            f"ln B {self.lnBtSG:.5g}; {where}>"
        )

    def to_table(self) -> Table:
        """A table of one row: the loudest cell, ln B, the number of cells and, if kept, the most probable values.

        Tables of several templates can be stacked (`astropy.table.vstack`); `write_text` writes the map itself.
        """
        from astropy.table import Table

        known = self.index is not None
        row: dict[str, Any] = {"window": self.window, "max2F": self.max2F}
        row |= {"t0_ml": self.t0_ml if known else -1, "tau_ml": self.tau_ml if known else -1}
        row |= {"lnBtSG": self.lnBtSG, "n_cells": self.n_cells, "n_fallback": self.n_fallback}
        if known and self.row_log is not None:
            row |= {"t0_mp": self.t0_mp, "tau_mp": self.tau_mp}
        table = Table([row])
        for name in table.colnames:
            if name.startswith(("t0_", "tau_")):
                table[name].unit = "s"
        table.meta.update(efold=self.efold, device=self.device, dtype=self.dtype, rhohatmax=self.rhohatmax)
        if self.compat is not None:
            table.meta["compat"] = self.compat
        return table

    def plot(self, **options: Any) -> Figure:
        """Draw 2F over start time and duration, with the posteriors beside it and the gaps of the data below.

        Parameters
        ----------
        **options
            See `skysieve.fstat.result.plot.map_figure`.
        """
        from . import plot

        return plot.map_figure(self, **options)

    def write_text(self, path: str | os.PathLike[str], style: Style = "pyfstat") -> None:
        """Write the map as text: start time, duration and 2F of every cell.

        Parameters
        ----------
        path : path
        style : {"pyfstat", "lalpulsar", "csv"}
            "pyfstat" begins with PyFstat's header line, "lalpulsar" has none; "csv" has commas and column names.

        Raises
        ------
        ValueError
            The style is unknown, or the map was not kept.
        """
        lines = self.text_lines(style)
        with written(path) as part, open(part, "w", encoding="utf-8") as file:
            file.writelines(lines)

    def text_lines(self, style: Style = "pyfstat") -> Iterator[str]:
        """The lines that `write_text` writes."""
        chosen = STYLES[one_of("style", style, STYLES)]
        twoF = to_host(self.twoF).astype(np.float64)
        taus = self.grid.taus.tolist()

        def lines() -> Iterator[str]:
            yield chosen.header
            for t0, row in zip(self.grid.t0s.tolist(), twoF, strict=True):
                for tau, value in zip(taus, row.tolist(), strict=True):
                    yield chosen.line.format(t0=t0, tau=tau, twoF=value)

        return lines()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole result to an ``.npz`` file; see `load`."""
        if Path(path).suffix.lower() != ".npz":
            raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in .npz")
        write_archive(Path(path), CONTENT, pack(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TransientResult:
        """Read a result that `save` wrote.

        Raises
        ------
        ValueError
            `save` did not write the file.
        """
        return cls(**unpack(cls, read_archive(Path(path), CONTENT)))
