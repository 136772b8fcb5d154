"""The periodogram's part of ``skysieve demo``: a real star, then a batch of asteroids with known periods."""

from __future__ import annotations

import time
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.errors import install_hint
from skysieve.core.files import save_figure
from skysieve.periodogram.lightcurves.io import read_light_curves
from skysieve.periodogram.lightcurves.simulate import SimulatedLightCurves, simulate_asteroids

from .plot_files import save_plot, search_with_units
from .report import clock, objects_per_second

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from rich.console import Console

    from skysieve.periodogram.result.result import LombScargleResult

STAR, STAR_PERIOD, STAR_TOLERANCE = "MACHO 1.3444.614", 0.93697, 1e-5
"""Days; the tolerance is one unit of the published period's last digit."""

N_ASTEROIDS = 200
FMIN, FMAX, NF = 0.16, 24.0, 28_608
"""Cycles a day; 28,608 frequencies are ten to each 1/T of 120 days."""

TOLERANCE_H = 0.1
MANY_POINTS = 100
LEAST_RATE = 0.95
"""Least fraction of the asteroids with `MANY_POINTS` observations or more whose light-curve period must be
within `TOLERANCE_H` hours of the truth.  Measured: 1.00 here (0.965 of all); 0.986 (0.968) over every
fourth object of the benchmark's batch."""

SHOWN = 10


def star_file() -> Path:
    """The file of the star's light curve; the README.md in its folder names the source."""
    return Path(str(resources.files("skysieve.periodogram.command") / "data" / "macho_1.3444.614_B.csv"))


def within(found: NDArray[np.float64], true: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether light-curve periods (days) are recovered; NaN never is.

    >>> within(np.array([0.5, 0.51, np.nan]), np.array([0.501, 0.5, 0.5])).tolist()
    [True, False, False]
    """
    return np.abs(found - true) * 24 < TOLERANCE_H


def run(out: Path, console: Console, device: str = "auto", n_asteroids: int = N_ASTEROIDS) -> list[str]:
    """Run both searches, print and draw them.

    Returns
    -------
    list of str
        A line for each result that is not as expected.
    """
    return [*_star(out, console, device), *_asteroids(out, console, device, n_asteroids)]


def _draws() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def _star(out: Path, console: Console, device: str) -> list[str]:
    star = read_light_curves(star_file())
    console.rule(f"[bold]A real star: the eclipses of {STAR}", align="left")
    search = partial(
        search_with_units, star.t, star.y, star.dy, fmin=0.1, fmax=10, samples_per_peak=10, n_peaks=5, device=device
    )
    with console.status("Getting ready; the first run on a machine compiles for a while ..."):
        search()
        _search_batch(simulate_asteroids(8), device)
    started = time.perf_counter()
    result = search()
    seconds = time.perf_counter() - started
    found = float(result.period.value)
    console.print(f"{len(star.t):,} observations over {np.ptp(star.t):,.0f} d, {len(result.frequency):,} frequencies")
    console.print(f"period found {found:.5f} d, known {STAR_PERIOD:.5f} d; {clock(seconds)} ({result.method})")
    if _draws():
        save_plot(result, star.t, star.y, star.dy, out / "star.png", title=STAR, magnitudes=True)
        console.print(f"wrote {out / 'star.png'}", soft_wrap=True, markup=False)
    if abs(found - STAR_PERIOD) > STAR_TOLERANCE:
        return [f"{STAR}: period {found:.6f} d, {STAR_PERIOD} +- {STAR_TOLERANCE:g} d expected"]
    return []


def _search_batch(made: SimulatedLightCurves, device: str) -> LombScargleResult:
    import skysieve

    return skysieve.lombscargle(
        made.t, made.y, made.dy, offsets=made.offsets, fmin=FMIN, fmax=FMAX, nf=NF, return_power=False, device=device
    )


def _asteroids(out: Path, console: Console, device: str, n_asteroids: int) -> list[str]:
    made = simulate_asteroids(n_asteroids)
    console.print()
    console.rule(f"[bold]Rotation of {len(made)} simulated asteroids", align="left")
    started = time.perf_counter()
    result = _search_batch(made, device)
    seconds = time.perf_counter() - started
    found = np.asarray(result.period, np.float64)
    good, many = within(found, made.period), made.n_obs >= MANY_POINTS
    _table(made, found, good, console)
    console.print(
        f"{len(made)} objects, {len(made.t):,} observations in 120 nights, {NF:,} frequencies each: "
        f"{clock(seconds)}, {objects_per_second(len(made) / seconds)}"
    )
    rate = float(good[many].mean())
    console.print(
        f"light-curve period within {TOLERANCE_H} h of the truth: {good.mean():.1%} of all, {rate:.1%} of the "
        f"{many.sum()} with {MANY_POINTS} points or more (at least {LEAST_RATE:.0%} expected)"
    )
    if _draws():
        save_figure(_recovery_figure(made, found, good), out / "asteroids.png", dpi=120)
        pick = int(np.argmin(np.abs(made.n_obs - 150) + 1e6 * ~good))
        rows = slice(*made.offsets[pick : pick + 2])
        one = search_with_units(
            made.t[rows], made.y[rows], made.dy[rows], fmin=FMIN, fmax=FMAX, nf=NF, n_peaks=5, device=device
        )
        title = f"Simulated asteroid {pick}: rotation period {48 * found[pick]:.3f} h, twice the light curve's"
        save_plot(one, made.t[rows], made.y[rows], made.dy[rows], out / "asteroid.png", title=title, magnitudes=True)
        console.print(f"wrote {out / 'asteroids.png'} and {out / 'asteroid.png'}", soft_wrap=True, markup=False)
    else:
        console.print(f"no plots: {install_hint('matplotlib')}", markup=False)
    if rate < LEAST_RATE:
        return [f"asteroids with {MANY_POINTS} points or more: {rate:.1%} recovered, {LEAST_RATE:.0%} expected"]
    return []


def _table(made: SimulatedLightCurves, found: NDArray[np.float64], good: NDArray[np.bool_], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("asteroid", "points", "recovered, h", "true, h", "recovered?"):
        table.add_column(name, justify="right")
    for i in range(min(SHOWN, len(made))):
        mark = "[green]yes[/]" if good[i] else "[red]no[/]"
        table.add_row(str(i), f"{made.n_obs[i]:,}", f"{48 * found[i]:.3f}", f"{48 * made.period[i]:.3f}", mark)
    console.print("rotation periods, twice those of the light curves; the first few:")
    console.print(table)


def _recovery_figure(made: SimulatedLightCurves, found: NDArray[np.float64], good: NDArray[np.bool_]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.add_subplot()
    low, high = 2 * 24 / FMAX, 2 * 24 / FMIN
    axes.plot([low, 1.2 * high], [low, 1.2 * high], color="0.8", lw=1, zorder=0)
    size = 10 + 12 * np.sqrt(made.n_obs / 100)
    for which, colour, label in ((good, "#1f6fb4", "recovered"), (~good, "#d1495b", "missed")):
        axes.scatter(
            48 * made.period[which], 48 * found[which], s=size[which], color=colour, alpha=0.75, lw=0,
            label=f"{label}: {which.sum()}",
        )  # fmt: skip
    axes.axhspan(high, 1.5 * high, color="0.93", zorder=-1)
    axes.text(low * 1.1, high * 1.03, "beyond the searched range", color="0.45", fontsize=9)
    axes.set(
        xscale="log", yscale="log", xlabel="true rotation period [h]", ylabel="recovered rotation period [h]",
        title=f"{len(made)} simulated asteroids (larger: more observations)", ylim=(low, 1.2 * high),
        xlim=(low, max(1.2 * high, 48 * made.period.max() * 1.1)),
    )  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
    axes.legend(loc="lower right", frameon=False)
    return figure
