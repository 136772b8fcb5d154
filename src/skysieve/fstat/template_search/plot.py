"""Figure of a search.  Matplotlib is imported when a figure is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skysieve.fstat.result.plot import BAND, INK, LINE, MARK, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .result import SearchResult


def search_figure(result: SearchResult, *, title: str | None = None) -> Figure:
    """Draw the histogram of max 2F over all templates of a search, and the loudest template of each band.

    Parameters
    ----------
    result : SearchResult
    title : str, optional
        By default the number of templates.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = new_figure(figsize=(8.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    top = 10.0
    for window, colour in zip(result.windows, [LINE, MARK, INK, BAND] * len(result.windows), strict=False):
        edges, counts = result.histogram(window)
        last = np.flatnonzero(counts).max(initial=0) + 1
        left.stairs(counts[:last], np.minimum(edges[: last + 1], edges[-2] + 1), color=colour, label=window)
        bands = result.bands(window)
        right.plot(bands["band"], bands["max2F"], ".", color=colour, label=window)
        top = max(top, float(edges[min(last, len(edges) - 2)]))
    left.set(yscale="log", xlabel="largest 2F of a template", ylabel="templates", xlim=(0, 1.05 * top))
    left.set_ylim(bottom=0.5)
    right.set(xlabel=result.band or "template", ylabel="loudest 2F of the band")
    left.legend(frameon=False)
    if result.threshold is not None and result.statistic == "max2F":
        for axes, line in ((left, left.axvline), (right, right.axhline)):
            line(result.threshold, color=INK, lw=0.8, ls=":")
            axes.margins(0.05)
    figure.suptitle(title or f"{result.n_templates:,} templates", fontsize=11)
    return figure
