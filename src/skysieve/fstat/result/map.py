"""Result of a transient F-statistic map."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of
from skysieve.fstat.inputs.grid import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["Coverage", "TransientResult"]

PRIOR = 70.0
"""``ln B`` under the F-statistic's amplitude prior is ``ln(70 / cells) - 4 ln rhohatmax + ln sum exp F``."""
STYLES = ("pyfstat", "lalpulsar")
FORMAT = "skysieve.fstat.result.map 1"


@dataclass(frozen=True)
class Coverage:
    """Where there is data: start and width (seconds) of the time bins, and which of them hold any."""

    t_start: int
    tatom: int
    occupied: NDArray[np.bool_]


@dataclass(frozen=True, repr=False)
class TransientResult:
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
        Cell (m, n) of the largest F, the first one in that order if several are equal.
    log_sum : float
        ``ln sum exp F`` over all cells.
    n_cells, n_fallback : int
        Cells computed, and those of them whose window is empty or ill-conditioned, where F is set to 2.
    window : str
    efold : float
        Where the window ends, in units of tau.
    device, dtype : str
    compat : str or None
    """

    F: Any
    grid: Grid
    max_F: float
    index: tuple[int, int] | None
    log_sum: float
    n_cells: int
    n_fallback: int
    window: str
    efold: float
    device: str
    dtype: str
    compat: str | None
    rhohatmax: float
    coverage: Coverage
    row_log: NDArray[np.float64] | None = field(default=None, metadata={"internal": True})
    column_log: NDArray[np.float64] | None = field(default=None, metadata={"internal": True})

    # ------------------------------------------------------------------ the map
    @property
    def twoF(self) -> Any:
        """``2F`` of every cell, shape (N_t0, N_tau).

        Raises
        ------
        ValueError
            If the map was not kept.
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
        if self.n_cells == 0:
            return float("nan")
        return float(np.log(PRIOR / self.n_cells) - 4 * np.log(self.rhohatmax) + self.log_sum)

    @property
    def p_t0(self) -> NDArray[np.float64]:
        """Posterior probabilities of the start times, shape (N_t0,); their sum is 1.

        Raises
        ------
        ValueError
            If they were not asked for, or no cell could be computed.
        """
        return self._posterior(self.row_log)

    @property
    def p_tau(self) -> NDArray[np.float64]:
        """Posterior probabilities of the durations, shape (N_tau,); their sum is 1."""
        return self._posterior(self.column_log)

    def _posterior(self, logs: NDArray[np.float64] | None) -> NDArray[np.float64]:
        if logs is None:
            raise ValueError("posteriors were not asked for (posteriors=False)")
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
        """Most probable "t0" or "tau" as LALPulsar gives it: the centre of a bin of `posterior_density`."""
        points, band, p = self._axis(name)
        return float(points[0] + (int(p.argmax()) + 0.5) * band / len(points))

    def posterior_density(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Posterior density as LALPulsar bins it: N equal bins over the band, its integral 1.

        Parameters
        ----------
        name : {"t0", "tau"}

        Returns
        -------
        edges, density : numpy.ndarray, shapes (N + 1,) and (N,)
            Per second.  The bins are ``band / N`` wide, not one step of the grid.

        Raises
        ------
        ValueError
            If the band is 0: all probability is at one point.
        """
        points, band, p = self._axis(name)
        if band == 0:
            raise ValueError(f"the band of {name} is 0: its posterior is one point, {points[0]}")
        width = band / len(points)
        return points[0] + width * np.arange(len(points) + 1), p / width

    def credible_interval(self, name: str, level: float = 0.9) -> tuple[int, int]:
        """Central credible interval: the points of the grid between the tails of the posterior.

        Parameters
        ----------
        name : {"t0", "tau"}
        level : float
            Its probability, at least.

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

    # ------------------------------------------------------------------ out
    def __repr__(self) -> str:
        where = f"{self.window}, {self.n_cells} cells on {self.device}, {self.dtype}"
        if self.index is None:
            return f"<TransientResult: no cell could be computed; {where}>"
        return (
            f"<TransientResult: max 2F {self.max2F:.6g} at t0 {self.t0_ml}, tau {self.tau_ml} s, "
            f"ln B {self.lnBtSG:.5g}; {where}>"
        )

    def plot(self, **options: Any) -> Figure:
        """Draw 2F over start time and duration, the posteriors on its sides and the gaps of the data below.

        Parameters
        ----------
        **options
            See `skysieve.fstat.result.plot.map_figure`.
        """
        from . import plot

        return plot.map_figure(self, **options)

    def write_text(self, path: str | os.PathLike[str], style: str = "pyfstat") -> None:
        """Write the map as text: start time, duration and 2F of every cell.

        Parameters
        ----------
        path : path
        style : {"pyfstat", "lalpulsar"}
            With PyFstat's header line, or without one as LALPulsar.

        Raises
        ------
        ValueError
            For another style, or if the map was not kept.
        """
        from skysieve.core.files import written

        one_of("style", style, STYLES)
        twoF = to_host(self.twoF).astype(np.float64)
        with written(path) as part, open(part, "w", encoding="utf-8") as file:
            if style == "pyfstat":
                file.write("# t0[s]     tau[s]     2F\n")
            for t0, row in zip(self.grid.t0s.tolist(), twoF.tolist(), strict=True):
                taus = zip(self.grid.taus.tolist(), row, strict=True)
                file.writelines(_map_line(t0, tau, value) for tau, value in taus)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to ``.npz``; see `load`."""
        from skysieve.core.files import written

        if Path(path).suffix.lower() != ".npz":
            raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in .npz")
        g, c = self.grid, self.coverage
        steps = [-1 if s is None else s for s in (g.dt0, g.dtau)]
        values: dict[str, Any] = {
            "format": FORMAT, "t0s": g.t0s, "taus": g.taus, "bands": [g.t0_band, g.tau_band], "steps": steps,
            "index": [-1, -1] if self.index is None else list(self.index), "compat": self.compat or "",
            "t_start": c.t_start, "tatom": c.tatom, "occupied": c.occupied,
        }  # fmt: skip
        values |= {name: getattr(self, name) for name in _PLAIN}
        for name in ("F", "row_log", "column_log"):
            if getattr(self, name) is not None:
                values[name] = to_host(getattr(self, name))
        with written(path) as part:
            np.savez(part, **values)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TransientResult:
        """Read back what `save` wrote.

        Raises
        ------
        ValueError
            If the file is something else.
        """
        with np.load(path, allow_pickle=False) as file:
            if "format" not in file.files or str(file["format"]) != FORMAT:
                raise ValueError(f"{path} was not written by TransientResult.save")
            v = {name: file[name] for name in file.files}
        steps = [None if s < 0 else int(s) for s in v["steps"]]
        if None in steps:
            grid = Grid.from_lists(v["t0s"], v["taus"])
        else:
            first = {"t0": int(v["t0s"][0]), "t0_band": int(v["bands"][0]), "dt0": steps[0]}
            grid = Grid(**first, tau=int(v["taus"][0]), tau_band=int(v["bands"][1]), dtau=steps[1])  # type: ignore[arg-type]
        plain = {name: v[name].item() for name in _PLAIN}
        index = tuple(int(i) for i in v["index"])
        return cls(
            F=v.get("F"),
            grid=grid,
            index=None if index[0] < 0 else (index[0], index[1]),
            compat=str(v["compat"]) or None,
            coverage=Coverage(int(v["t_start"]), int(v["tatom"]), v["occupied"]),
            row_log=v.get("row_log"),
            column_log=v.get("column_log"),
            **plain,
        )


def _map_line(t0: int, tau: int, twoF: float) -> str:
    """``%10d %10d %- 11.8g``: the number with a space for its sign, flush left."""
    return f"  {t0:10d} {tau:10d} {twoF:< 11.8g}\n"


_PLAIN = ("max_F", "log_sum", "n_cells", "n_fallback", "window", "efold", "device", "dtype", "rhohatmax")
