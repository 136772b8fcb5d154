"""Plots of a periodogram: the power with its peaks, and the light curve folded at a period.

matplotlib is imported in the functions.  Every function returns a new Figure and leaves pyplot's
state alone, so batches of pictures need no display and leave nothing open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of
from skysieve.core.errors import install_hint
from skysieve.periodogram.contract import Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from .result import LombScargleResult

INK, LINE, MARK = "#222222", "#3b5b7a", "#c2512f"
MOST_COLUMNS = 4000
"""Columns of a plot; longer curves are drawn by the lowest and highest value in each column."""
MOST_POINTS = 20_000
"""Largest number of points of a folded light curve that are drawn with errors; more are dots, then a sample."""

AxisName = Literal["auto", "period", "frequency"]
AXES = get_args(AxisName)


def decimate(x: NDArray[np.float64], y: NDArray[np.float64], columns: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most two points per column of a rising `x`: the lowest and the highest `y` of each, in order of `x`.

    Examples
    --------
    >>> x = np.linspace(0, 1, 100_001)
    >>> a, b = decimate(x, np.where(x == 0.5, 9.0, 0.0), 100)
    >>> bool(len(a) <= 200 and b.max() == 9)
    True
    """
    if x.size <= 2 * columns:
        return x, y
    edges = np.searchsorted(x, np.linspace(x[0], x[-1], columns + 1)[:-1])
    edges = np.unique(edges)
    low = np.where(np.isnan(y), np.inf, y)
    high = np.where(np.isnan(y), -np.inf, y)
    keep = np.zeros(x.size, bool)
    lengths = np.diff(np.append(edges, x.size))
    for values, extreme in ((low, np.minimum.reduceat(low, edges)), (high, np.maximum.reduceat(high, edges))):
        hits = np.flatnonzero(values == np.repeat(extreme, lengths))
        column = np.searchsorted(edges, hits, side="right")
        keep[hits[np.unique(column, return_index=True)[1]]] = True
    return x[keep], y[keep]


def periodogram(result: LombScargleResult, *, axis: AxisName = "auto", ax: Axes | None = None) -> Figure:
    """Power against period or frequency, with the peaks marked.

    Parameters
    ----------
    result : LombScargleResult
        Of one light curve, with powers.
    axis : {"auto", "period", "frequency"}
        Logarithmic period, or frequency; "auto" takes periods if the grid spans over a factor of 3.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        For a batch, or a result without powers.
    """
    if not result.single:
        raise ValueError("a batch is drawn one light curve at a time: result[i].plot()")
    if result.power is None:
        raise ValueError("the result has no powers: search with return_power=True to draw them")
    if result.power.size == 0:
        raise ValueError(f"there is no power to draw: {Status(int(result.status)).text}")
    one_of("axis", axis, AXES)
    frequency = np.asarray(_bare(result.frequency), dtype=np.float64)
    power = np.asarray(to_host(_bare(result.power)), dtype=np.float64)
    order = np.argsort(frequency, kind="stable") if np.any(np.diff(frequency) < 0) else slice(None)
    frequency, power = frequency[order], power[order]
    if axis == "auto":
        axis = "period" if frequency[-1] > 3 * frequency[0] else "frequency"
    figure, ax = _axes(ax)
    if axis == "period":
        x, y = decimate(-np.log(frequency[::-1]), power[::-1], MOST_COLUMNS)
        x = np.exp(x)
        ax.set_xscale("log")
        ax.set_xlabel(_label("Period", result.units.time))
        _plain_ticks(ax)
    else:
        x, y = decimate(frequency, power, MOST_COLUMNS)
        ax.set_xlabel(_label("Frequency", result.units.frequency))
    ax.plot(x, y, color=LINE, linewidth=0.8)
    if x.size > 1:
        ax.set_xlim(x[0], x[-1])
    _mark_peaks(ax, result, axis)
    ax.set_ylabel(_power_label(result))
    if np.isfinite(y).any():
        top, bottom = float(np.max(y[np.isfinite(y)])), float(np.min(y[np.isfinite(y)]))
        ax.set_ylim(min(0.0, bottom), top + 0.18 * (top - min(0.0, bottom)) if top > bottom else None)
    return figure


def best_peaks(result: LombScargleResult, *, axis: AxisName = "auto", ax: Axes | None = None) -> Figure:
    """The highest peak of each object of a batch: power against period or frequency.

    Parameters
    ----------
    result : LombScargleResult
        Of a batch.
    axis : {"auto", "period", "frequency"}
        Logarithmic period ("auto" too), or frequency.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.figure.Figure
    """
    one_of("axis", axis, AXES)
    figure, ax = _axes(ax)
    x = np.asarray(_bare(result.best_frequency if axis == "frequency" else result.period), np.float64)
    y = np.asarray(_bare(result.best_power), np.float64)
    found = np.isfinite(x) & np.isfinite(y)
    ax.plot(x[found], y[found], "o", color=LINE, ms=4 if found.sum() < 1000 else 1.5, mew=0)
    if axis == "frequency":
        ax.set_xlabel(_label("Frequency", result.units.frequency))
    else:
        if found.any():
            ax.set_xscale("log")
            _plain_ticks(ax)
        ax.set_xlabel(_label("Period", result.units.time))
    ax.set_ylabel(_power_label(result))
    ax.set_title(f"highest peaks of {int(found.sum()):,} of {len(result):,} objects", fontsize=10)
    return figure


def sticks(x: Any, y: Any, names: tuple[str, str], ax: Axes | None = None) -> Figure:
    """Vertical lines of heights ``y`` at ``x``, numbered from the first on; ``names`` label the axes."""
    figure, ax = _axes(ax)
    places, heights = (np.atleast_1d(np.asarray(_bare(v), np.float64)) for v in (x, y))
    found = np.isfinite(places) & np.isfinite(heights)
    ax.vlines(places[found], 0, heights[found], color=LINE, linewidth=1.2)
    for k in np.flatnonzero(found):
        ax.annotate(str(k + 1), (places[k], heights[k]), xytext=(0, 3), textcoords="offset points", ha="center")
    ax.set_ylim(bottom=0)
    ax.set_xlabel(_label(names[0], getattr(x, "unit", None)))
    unit = getattr(y, "unit", None)
    ax.set_ylabel(_label(names[1], None if unit is None or unit.is_equivalent("") else unit))
    return figure


def _power_label(result: LombScargleResult) -> str:
    name = "Power" if result.normalization == "standard" else f"Power ({result.normalization})"
    unit = result.power_unit
    return _label(name, None if unit is None or unit.is_equivalent("") else unit)


def _mark_peaks(ax: Axes, result: LombScargleResult, axis: str) -> None:
    """Markers on the peaks; the period is written beside the highest."""
    where = np.atleast_1d(_bare(result.peaks.period if axis == "period" else result.peaks.frequency))
    height = np.atleast_1d(_bare(result.peaks.power))
    found = np.isfinite(where) & np.isfinite(height)
    if not found.any():
        return
    ax.plot(where[found][1:], height[found][1:], "o", mfc="none", mec=MARK, ms=5, mew=1.0)
    ax.plot(where[0], height[0], "o", color=MARK, ms=5)
    low, high = ax.get_xlim()
    place = np.log(where[0] / low) / np.log(high / low) if axis == "period" else (where[0] - low) / (high - low)
    unit = "" if result.units.time is None else f" {result.units.time}"
    ax.annotate(
        f"P = {float(_bare(result.period)):.6g}{unit}",
        (where[0], height[0]),
        xytext=(6 if place < 0.7 else -6, 4),
        textcoords="offset points",
        ha="left" if place < 0.7 else "right",
        va="bottom",
        color=MARK,
        fontsize=9,
    )


def fit_sinusoid(
    t: NDArray[np.float64],
    y: NDArray[np.float64],
    dy: NDArray[np.float64] | None,
    period: float,
    fit_mean: bool = True,
    nterms: int = 1,
) -> NDArray[np.float64]:
    """Weighted least squares of ``c + a cos + b sin`` of phase ``t / period``: returns ``(c, a, b)``.

    More terms append the factors of 2, 3, ... times the phase.  Without `fit_mean`, ``c`` is the
    weighted mean and is not fitted together with the sinusoids.
    """
    phase = 2 * np.pi * np.mod(t / period, 1.0)
    weight = np.ones_like(y) if dy is None else 1.0 / dy
    design = np.stack([np.ones_like(phase), *_waves(phase, nterms)], axis=1)
    mean = 0.0
    if not fit_mean:
        mean = float(np.average(y, weights=weight**2))
        design = design[:, 1:]
    found: NDArray[Any] = np.linalg.lstsq(design * weight[:, None], (y - mean) * weight, rcond=None)[0]
    return found if fit_mean else np.append(mean, found)


def _waves(phase: NDArray[np.float64], nterms: int) -> list[NDArray[np.float64]]:
    """Cosine and sine of each multiple of a phase."""
    return [wave(k * phase) for k in range(1, nterms + 1) for wave in (np.cos, np.sin)]


def folded(
    t: Any,
    y: Any,
    dy: Any = None,
    *,
    period: Any,
    fit_mean: bool = True,
    nterms: int = 1,
    magnitudes: bool = False,
    labels: tuple[str, str] = ("Phase", "y"),
    ax: Axes | None = None,
) -> Figure:
    """A light curve folded at a period, two cycles, under the best-fit sinusoid (or series of `nterms`).

    Parameters
    ----------
    t, y, dy : array_like, shape (n,)
        One light curve, and its errors (or one number); rows that are not finite are left out.
    period : float
        In the unit of `t`.
    fit_mean : bool
        Fit the mean together with the sinusoid.
    nterms : int
        Fourier terms of the curve drawn.
    magnitudes : bool
        Invert the y axis, so that brighter is up.
    labels : tuple of str
        Names of the axes.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If the period is no positive number, or too few rows are usable.
    """
    from skysieve.periodogram.lightcurves.sources import light_curves

    curves = light_curves(t, y, dy)
    if not curves.single:
        raise ValueError("folded draws one light curve: 1-D t and y")
    raw_t, raw_y, raw_dy, _ = curves.source.read(0, 1)
    time, value, error = to_host(raw_t), to_host(raw_y), None if raw_dy is None else to_host(raw_dy)
    if curves.units.time is None and getattr(period, "unit", None) is not None:
        raise ValueError(f"t has no unit, but the period is in {period.unit}; give t a unit of time")
    cycle = float(period if curves.units.time is None else _in_unit(period, curves.units.time))
    if not (np.isfinite(cycle) and cycle > 0):
        raise ValueError(f"period={period!r}; a positive number is expected")
    keep = np.isfinite(time) & np.isfinite(value)
    if error is not None:
        keep &= np.isfinite(error) & (error > 0)
        error = error[keep]
    time, value = time[keep], value[keep]
    least = 3 if fit_mean else 2  # as for the search
    if time.size < least:
        raise ValueError(f"t and y have {time.size} usable rows; at least {least} are needed")
    time = time - time.min()
    constant, *factors = fit_sinusoid(time, value, error, cycle, fit_mean, nterms)
    figure, ax = _axes(ax)
    phase = np.mod(time / cycle, 1.0)
    if phase.size > 10 * MOST_POINTS:
        chosen = np.random.default_rng(0).choice(phase.size, 10 * MOST_POINTS, replace=False)
        phase, value, error = phase[chosen], value[chosen], None
    x, y2 = np.concatenate([phase, phase + 1]), np.concatenate([value, value])
    size = float(np.clip(60 / np.sqrt(phase.size), 0.8, 4.0))
    if error is not None and phase.size <= MOST_POINTS:
        bars = np.concatenate([error, error])
        faint = float(np.clip(12 / np.sqrt(phase.size), 0.1, 0.6))  # the bars of many points must not hide them
        ax.errorbar(x, y2, bars, fmt="none", ecolor=LINE, elinewidth=0.5, alpha=faint, zorder=1)
        ax.plot(x, y2, "o", ms=size, mew=0, color=LINE, alpha=0.7, zorder=2)
    else:
        ax.plot(x, y2, "o", ms=size, mew=0, color=LINE, alpha=0.5, zorder=2, rasterized=True)
    curve = np.linspace(0, 2, 401)
    waves = _waves(2 * np.pi * curve, nterms)
    model = constant + sum((a * wave for a, wave in zip(factors, waves, strict=True)), np.zeros_like(curve))
    ax.plot(curve, model, color=MARK, linewidth=1.6, zorder=3)
    _limit_to_points(ax, value, error)
    if magnitudes:
        ax.invert_yaxis()
    ax.set_xlim(0, 2)
    ax.set_xlabel(labels[0])
    ax.set_ylabel(_label(labels[1], curves.units.y))
    ax.set_title(
        f"folded at P = {cycle:.6g}{'' if curves.units.time is None else f' {curves.units.time}'}", fontsize=10
    )
    return figure


def _limit_to_points(ax: Axes, value: NDArray[np.float64], error: NDArray[np.float64] | None) -> None:
    """Set the limits by the points, not by a few huge error bars."""
    low, high = float(value.min()), float(value.max())
    margin = 0.05 * (high - low)
    if error is not None:
        margin = max(margin, min(float(np.median(error)) * 1.5, high - low))
    ax.set_ylim(low - margin, high + margin)


def summary(
    result: LombScargleResult,
    t: Any = None,
    y: Any = None,
    dy: Any = None,
    *,
    axis: AxisName = "auto",
    magnitudes: bool = False,
    labels: tuple[str, str] = ("Phase", "y"),
    title: str | None = None,
) -> Figure:
    """The periodogram, and under it the light curve folded at the best period if `t` and `y` are given.

    Parameters
    ----------
    result : LombScargleResult
        Of one light curve, with powers; or of a batch, whose highest peaks are drawn.
    t, y, dy : array_like, optional
        The light curve.
    axis : {"auto", "period", "frequency"}
        Of the periodogram.
    magnitudes : bool
        Invert the y axis of the folded curve.
    labels : tuple of str
        Axis labels of the folded curve.
    title : str, optional
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
    """
    if (t is None) != (y is None):
        raise ValueError("give both t and y, or neither")
    if t is None:
        figure = periodogram(result, axis=axis) if result.single else best_peaks(result, axis=axis)
    else:
        if not result.single:
            raise ValueError("a batch is drawn one light curve at a time: result[i].plot()")
        figure, panels = _new_figure((8.0, 7.0), 2)
        periodogram(result, axis=axis, ax=panels[0])
        if result.status == Status.OK:
            folded(
                t,
                y,
                dy,
                period=result.period,
                fit_mean=result.fit_mean,
                nterms=result.nterms,
                magnitudes=magnitudes,
                labels=labels,
                ax=panels[1],
            )
    if title is not None:
        figure.suptitle(title)
    return figure


def _bare(x: Any) -> Any:
    return getattr(x, "value", x)


def _in_unit(x: Any, unit: Any) -> float:
    return float(x.to_value(unit)) if hasattr(x, "to_value") else float(x)


def _label(name: str, unit: Any) -> str:
    return name if unit is None else f"{name} [{unit.to_string()}]"


def _new_figure(size: tuple[float, float], panels: int) -> tuple[Figure, list[Axes]]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"plots need matplotlib: {install_hint('matplotlib')}") from error
    figure = Figure(figsize=size, layout="constrained")
    axes = [figure.add_subplot(panels, 1, i + 1) for i in range(panels)]
    for ax in axes:
        _style(ax)
    return figure, axes


def _axes(ax: Axes | None) -> tuple[Any, Axes]:
    if ax is not None:
        _style(ax)
        return ax.figure, ax
    figure, axes = _new_figure((8.0, 4.0), 1)
    return figure, axes[0]


def _style(ax: Axes) -> None:
    ax.grid(True, which="major", color="#d9d9d9", linewidth=0.5)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(INK)
        ax.spines[side].set_linewidth(0.8)
    ax.tick_params(colors=INK, labelsize=9)


def _plain_ticks(ax: Axes) -> None:
    """Label periods as 0.5, 1, 2 rather than as powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
