"""The F-statistic's part of ``skysieve demo``: from simulated SFT files of two detectors to a transient in a table."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skysieve.core.errors import install_hint
from skysieve.fstat.api import transient_map
from skysieve.fstat.demod.bank import TemplateBank, spacing
from skysieve.fstat.demod.demodulator import Demodulator
from skysieve.fstat.demod.search import search_sfts
from skysieve.fstat.demod.simulate import Signal, simulate_sfts
from skysieve.fstat.inputs.grid import Grid
from skysieve.fstat.sfts.files import read_sfts, write_sfts

if TYPE_CHECKING:
    from rich.console import Console

DAYS, START = 10, 1_000_000_000
GAPS = {"H1": [(START + 5 * 86400, START + 6 * 86400)], "L1": [(START + 2 * 86400, START + 2 * 86400 + 43_200)]}
SIGNAL = Signal(
    f0=22.4, h0=8e-25, ra=2.2486, dec=-0.7885, tref=START + 4 * 86400, f1dot=-3.12e-11, window="exp",
    t0=START + 3 * 86400, tau=2 * 86400,
)  # fmt: skip
"""A signal such as might follow a glitch of a pulsar like Vela."""
BAND = (22.3, 22.5)
STEPS = 20, 2
"""Number of templates to either side of the signal, in frequency and in its derivative."""
OFF = 0.5 / SIGNAL.tau
"""Hz by which the loudest template may be off: half of the resolution of a signal of this duration."""
TOLERANCE = 86400
"""Seconds by which t0 and tau may be off.  Measured with this seed: 0.00 and 0.33 days."""


def templates() -> TemplateBank:
    """A grid of templates around the signal, for a mismatch of 0.1 over the four days that hold most of the signal."""
    df0, df1dot, _ = spacing(4 * 86400, 0.1, 2)
    (n0, n1), f0, f1 = STEPS, SIGNAL.f0, SIGNAL.f1dot
    return TemplateBank.grid((f0 - n0 * df0, f0 + n0 * df0, df0), (f1 - n1 * df1dot, f1 + n1 * df1dot, df1dot))


def run(out: Path, console: Console, device: str = "auto", signal: Signal = SIGNAL) -> list[str]:
    """Make SFT files, search them, print the results and draw a map.

    Returns
    -------
    list of str
        Results that are not as expected; empty if all are.
    """
    console.print()
    console.rule("[bold]A transient gravitational wave in the noise of two detectors", align="left")
    folder = out / "sfts"
    folder.mkdir(exist_ok=True)
    made = simulate_sfts(BAND, START, DAYS * 86400, signals=signal, gaps=GAPS, seed=11, ephemeris="builtin")
    files = write_sfts(folder, made, comment="skysieve demo")
    console.print(f"wrote {len(files)} files of SFTs to {folder}", soft_wrap=True, markup=False)
    sfts, bank = read_sfts(folder), templates()
    place: dict[str, Any] = {"ra": SIGNAL.ra, "dec": SIGNAL.dec, "tref": SIGNAL.tref, "barycentre": "builtin"}
    with console.status("Getting ready; the first run on a machine compiles for a while ..."):
        search_sfts(sfts, bank=TemplateBank(bank.f0[:1]), device=device, grid=Grid(t0=START, tau=86400), **place)

    started = time.perf_counter()
    found = search_sfts(sfts, bank=bank, device=device, band_width=1, **place)
    seconds = time.perf_counter() - started
    grid = found.grid
    assert grid is not None
    rows, columns = grid.shape
    console.print(
        f"{len(bank)} templates in {', '.join(f'{len(one)} SFTs of {one.detector}' for one in sfts)}, {rows:,} start "
        f"times x {columns:,} durations, rectangular and exponential windows: {seconds:.2f} s, "
        f"{2 * len(bank) * grid.cells / seconds:,.0f} cells/s"
    )
    short = []
    for window in found.windows:
        best = found.columns(window)
        console.print(
            f"{window}: the loudest template has f0 = {best['f0'][0]:.7f} Hz, f1dot = {best['f1dot'][0]:.3g} Hz/s, "
            f"2F = {best['max2F'][0]:.1f} and ln B = {best['lnBtSG'][0]:.1f}"
        )
        if abs(best["f0"][0] - SIGNAL.f0) > OFF or best["max2F"][0] < 60:
            short.append(
                f"{window} window: f0 = {best['f0'][0]:.7f} Hz with 2F = {best['max2F'][0]:.1f}, {SIGNAL.f0} Hz with "
                "at least 60 expected"
            )
    with Demodulator(sfts, **place) as demodulator:
        atoms = demodulator.atoms(SIGNAL.f0, SIGNAL.f1dot)
    result = transient_map(atoms, grid, window="exp", dtype="float32", device=device)
    for name, value, true in (("t0", result.t0_ml, SIGNAL.t0), ("tau", result.tau_ml, SIGNAL.tau)):
        shift = START if name == "t0" else 0
        low, high = (v - shift for v in result.credible_interval(name))
        assert value is not None
        console.print(
            f"{name} found {(value - shift) / 86400:.2f} d (90% between {low / 86400:.2f} and {high / 86400:.2f}), "
            f"injected {(true - shift) / 86400:.2f} d"
        )
        if abs(value - true) > TOLERANCE:
            short.append(f"{name} is off by {abs(value - true) / 86400:.2f} d, at most {TOLERANCE / 86400:g} expected")
    if find_spec("matplotlib") is None:
        console.print(f"no plot: {install_hint('matplotlib')}", markup=False)
        return short
    from skysieve.core.files import save_figure

    figure = result.plot(injection=SIGNAL, title="2F of the template that matches, exponential window")
    save_figure(figure, out / "transient.png", dpi=120)
    console.print(f"wrote {out / 'transient.png'}", soft_wrap=True, markup=False)
    return short
