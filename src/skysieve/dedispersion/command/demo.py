"""The part of ``skysieve demo`` for dedispersion: a simulated RRAT is searched and drawn."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.simulate import fake
from skysieve.dedispersion.dm_plan.plan import plan
from skysieve.dedispersion.single_pulse.search import search

if TYPE_CHECKING:
    from rich.console import Console

DM, WIDTH, SNR = 60.0, 8e-3, 20.0
TIMES = (1.3, 4.62, 5.5, 9.87, 13.2)
"""Arrival times, seconds, as irregular as a rotating radio transient's."""
TOLERANCE_DM = 1.5
"""Limit of the check; ten seeds gave 0.9 at most."""
LOUD = 8.0
"""S/N above which every candidate must be a pulse; below, the wings of a pulse far from its DM may be candidates."""


def run(out: Path, console: Console, device: str = "auto", duration: float = 16.0) -> list[str]:
    """Simulate the file, search it, print and draw the result.

    Returns
    -------
    list of str
        Failures; empty if all is as expected.
    """
    console.print()
    console.rule("[bold]A rotating radio transient in a filterbank file", align="left")
    path = out / "rrat.fil"
    fake(
        nchan=256, duration=duration, tsamp=512e-6, fch1=430, foff=-0.1, dm=DM, times=TIMES, width=WIDTH, snr=SNR,
        seed=7, source="fake RRAT", path=path,
    ).close()  # fmt: skip
    with Filterbank.open(path) as fb:
        dms = plan(fb, 120, max_loss=0.05, width=2e-3)
        with console.status("Getting ready; the first run on a machine compiles for a while ..."):
            search(fb, dms, device=device)
        started = time.perf_counter()
        found = search(fb, dms, device=device)
        seconds = time.perf_counter() - started
        console.print(
            f"{fb.nchan} channels, {fb.duration:.0f} s, {dms.ndm} DMs: {seconds:.2f} s, "
            f"{found.realtime:,.0f} x real time"
        )
        for i in range(min(len(TIMES), len(found))):
            console.print(f"S/N {found.snr[i]:5.1f}  DM {found.dm[i]:6.2f}  {found.time[i]:8.4f} s")
        if find_spec("matplotlib") is not None:
            from skysieve.dedispersion.single_pulse.cutouts import cutout

            found.plot().savefig(out / "rrat.png", dpi=120)
            written = "rrat.png"
            if len(found):
                one = cutout(
                    fb, dm=float(found.dm[0]), time=float(found.time[0]), width=float(found.width[0]),
                    snr=float(found.snr[0]),
                )  # fmt: skip
                one.plot().savefig(out / "rrat-pulse.png", dpi=120)
                written += " and rrat-pulse.png"
            console.print(f"wrote {written} into {out}", soft_wrap=True, markup=False)
    short = []
    for t in TIMES:
        near = (np.abs(found.time - t) < WIDTH) & (np.abs(found.dm - DM) < TOLERANCE_DM)
        if not near.any():
            short.append(f"the pulse at {t} s was not found at DM {DM:g} +- {TOLERANCE_DM:g}")
    loud = int((found.snr > LOUD).sum())
    if loud != len(TIMES):
        short.append(f"{loud} candidates above S/N {LOUD:g}, {len(TIMES)} expected")
    return short
