"""A candidate's picture and raw samples, made by a process of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.io import written

if TYPE_CHECKING:
    from skysieve.dedispersion.stream.beams import Row


def name_of(row: Row) -> str:
    """A file's name for a candidate."""
    c = row.columns
    return f"{c['mjd_infinite']:.9f}_dm{c['dm']:.3f}_beam{c['beam']}"


def attend(parent: int) -> None:
    """Begin a process that draws: everything else goes first, Ctrl-C is the parent's, and it ends when that has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(15)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def draw(
    raw: Any, start: int, observation: Any, columns: dict[str, Any], top_time: float, stem: str, keep: bool,
    picture: bool,
) -> None:  # fmt: skip
    """Write ``stem.fil`` and ``stem.png``."""
    from skysieve.dedispersion.cutouts import cutout
    from skysieve.dedispersion.filterbank import Filterbank
    from skysieve.dedispersion.io import write_fil

    o = observation
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    begin = start * o.tsamp
    fb = Filterbank.from_array(
        np.ascontiguousarray(raw.T), freqs=o.freqs, tsamp=o.tsamp, tstart=o.tstart + begin / 86400, source=o.source,
        telescope=o.telescope,
    )  # fmt: skip
    if keep:
        write_fil(f"{stem}.fil", fb)
    if picture:
        inside = min(max(top_time - begin, 0.0), fb.duration)
        one = cutout(fb, dm=columns["dm"], time=inside, width=columns["width"], snr=columns["snr"])
        with written(f"{stem}.png") as part:
            one.plot().savefig(part, dpi=100)
