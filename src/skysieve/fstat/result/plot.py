"""Figures of a transient F-statistic map.  Matplotlib is imported when a figure is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of
from skysieve.core.errors import install_hint

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from .map import TransientResult

DAY = 86400.0
MOST_PIXELS = 1200
"""Most cells on a side of the picture; for larger maps the largest value of each block is drawn."""
LINE = "#1f5582"
MARK = "#c44e24"
INK = "#333333"
BAND = "#9cc3dd"
SCALES = ("auto", "linear", "log")


def coarsen(values: NDArray[Any], most: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Reduce a map to at most `most` cells on a side, each the largest value of a block; also return the edges of the
    blocks."""
    edges = [np.unique(np.linspace(0, n, min(n, most) + 1).astype(np.int64)) for n in values.shape]
    filled = np.where(np.isfinite(values), values, -np.inf)
    small = np.maximum.reduceat(np.maximum.reduceat(filled, edges[0][:-1], axis=0), edges[1][:-1], axis=1)
    return np.where(np.isfinite(small), small, np.nan), edges[0], edges[1]


def cell_edges(points: NDArray[np.int64], log: bool = False) -> NDArray[np.float64]:
    """Edges of the cells around grid points, half way to the neighbours."""
    x = points.astype(np.float64)
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5]) if not log else x[0] * np.array([0.95, 1.05])
    if log:
        return np.exp(_around(np.log(x)))
    return _around(x)


def _around(x: NDArray[np.float64]) -> NDArray[np.float64]:
    middle = 0.5 * (x[1:] + x[:-1])
    return np.concatenate([[2 * x[0] - middle[0]], middle, [2 * x[-1] - middle[-1]]])


def map_figure(
    result: TransientResult,
    *,
    injection: Any = None,
    tau_scale: str = "auto",
    level: float = 0.9,
    title: str | None = None,
    cmap: str = "viridis",
) -> Figure:
    """Draw 2F over start time and duration, with the posteriors beside it and the coverage of the data below.

    Parameters
    ----------
    result : TransientResult
        With its map and posteriors.
    injection : Injection or (t0, tau), optional
        A known signal to mark.
    tau_scale : {"auto", "linear", "log"}
        Axis of the duration; "auto" is logarithmic for durations with unequal steps.
    level : float
        Probability of the credible intervals that are shaded.
    title : str, optional
    cmap : str
        Name of the colour map.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        The map or the posteriors were not kept.

    Examples
    --------
    >>> from skysieve.fstat import Injection, synth_atoms, transient_map
    >>> signal = Injection(t0=1000090000, tau=90000, snr=15)
    >>> result = transient_map(synth_atoms(span=5 * 86400, inject=signal))
    >>> result.plot(injection=signal).savefig("map.png")
    """
    one_of("tau_scale", tau_scale, SCALES)
    twoF = to_host(result.twoF).astype(np.float64)
    p_t0, p_tau = result.p_t0, result.p_tau
    grid, cover = result.grid, result.coverage
    log = tau_scale == "log" or (tau_scale == "auto" and grid.dtau is None and len(grid.taus) > 2)
    figure = new_figure(figsize=(9.0, 6.5))
    layout = figure.add_gridspec(
        3, 3, width_ratios=(5, 1.1, 0.15), height_ratios=(1.1, 4, 0.22), hspace=0.05, wspace=0.05
    )
    main = figure.add_subplot(layout[1, 0])
    top = figure.add_subplot(layout[0, 0], sharex=main)
    side = figure.add_subplot(layout[1, 1], sharey=main)
    gaps = figure.add_subplot(layout[2, 0], sharex=main)
    bar = figure.add_subplot(layout[1, 2])

    start = cover.t_start
    x = (cell_edges(grid.t0s) - start) / DAY
    y = cell_edges(grid.taus, log) / DAY
    small, rows, columns = coarsen(twoF, MOST_PIXELS)
    image = main.pcolormesh(x[rows], y[columns], small.T, cmap=cmap, shading="flat", rasterized=True)
    if log:
        main.set_yscale("log")
    figure.colorbar(image, cax=bar, label="2F")
    if result.t0_ml is not None and result.tau_ml is not None:
        label = f"max 2F = {result.max2F:.1f}"
        place = ((result.t0_ml - start) / DAY, result.tau_ml / DAY)
        main.plot(*place, "+", color="white", ms=13, mew=2.6)
        main.plot(*place, "+", color=MARK, ms=12, mew=1.6, label=label)
    if injection is not None:
        t0, tau = (injection.t0, injection.tau) if hasattr(injection, "t0") else injection
        main.plot((t0 - start) / DAY, tau / DAY, "o", mfc="none", mec="white", ms=11, mew=1.5, label="injected")
        top.axvline((t0 - start) / DAY, color=INK, linewidth=0.8, linestyle=":")
        side.axhline(tau / DAY, color=INK, linewidth=0.8, linestyle=":")
    main.legend(loc="upper right", fontsize=8, framealpha=0.6)
    main.set_ylabel("Duration tau [days]")

    t0_days = (grid.t0s - start) / DAY
    top.step(t0_days, p_t0 / p_t0.max(), where="mid", color=LINE, linewidth=1.0)
    side.plot(*_upright(p_tau / p_tau.max(), y), color=LINE, linewidth=1.0)
    low, high = ((v - start) / DAY for v in result.credible_interval("t0", level))
    top.axvspan(low, high, color=BAND, alpha=0.4, linewidth=0)
    low, high = (v / DAY for v in result.credible_interval("tau", level))
    side.axhspan(low, high, color=BAND, alpha=0.4, linewidth=0)
    top.set_ylabel("p(t0)")
    side.set_xlabel("p(tau)")
    for panel in (top, side):
        panel.spines[["top", "right"]].set_visible(False)
    top.tick_params(labelbottom=False)
    side.tick_params(labelleft=False)
    top.set_yticks([])
    side.set_xticks([])

    bins = (np.arange(len(cover.occupied) + 1) * cover.tatom) / DAY
    shown, edges, _ = coarsen(cover.occupied[:, None].astype(float), MOST_PIXELS)
    gaps.pcolormesh(bins[edges], [0, 1], shown.T, cmap="Greys", vmin=0, vmax=1.4, rasterized=True)
    gaps.set_yticks([])
    gaps.set_ylabel("data", rotation=0, ha="right", va="center", fontsize=8)
    gaps.set_xlabel(f"Start t0 [days since GPS {start}]")
    main.tick_params(labelbottom=False)
    main.set_xlim(min(x[0], bins[0]), max(x[-1], bins[-1]))
    main.set_ylim(y[0], y[-1])
    top.set_title(title or f"{result.window} window, ln B = {result.lnBtSG:.2f}", fontsize=10)
    return figure


def _upright(p: NDArray[np.float64], edges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The points of a step curve along the vertical axis."""
    return np.repeat(p, 2), np.repeat(edges, 2)[1:-1]


def new_figure(**options: Any) -> Figure:
    """A Matplotlib figure, or an error that says how to install Matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"plots need matplotlib: {install_hint('matplotlib')}") from error
    return Figure(**options)
