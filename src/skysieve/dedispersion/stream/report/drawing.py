"""The samples of candidates as files, and pictures of them, which a separate process draws.

Samples are written to the disk before their picture is drawn, so that missing pictures can be drawn later.
"""

from __future__ import annotations

import csv
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skysieve.core.files import written
from skysieve.dedispersion.data.write import write_fil
from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.observation import Observation

CHECK_SECONDS = 0.2
"""Seconds between checks whether to go on waiting for a picture."""
END_SECONDS = 2.0
"""Seconds that the process has to end before it is killed."""
_FORMATS = {c.name: c.format for c in CANDIDATE_COLUMNS}


def name_of(columns: dict[str, Any]) -> str:
    """The name of a candidate's files, from the values in its line of the table.

    Segments after the first have their number in the name, because a restarted sender may send the same times again.

    >>> name_of({"mjd_infinite": 60000.5, "dm": 56.77123456789, "beam": 2, "segment": 0})
    '60000.500000000_dm56.771_beam2'
    >>> name_of({"mjd_infinite": 60000.5, "dm": 56.77123456789, "beam": 2, "segment": 3})
    '60000.500000000_dm56.771_beam2_segment3'
    """
    mjd, dm = (float(format(float(columns[name]), _FORMATS[name])) for name in ("mjd_infinite", "dm"))
    segment = int(columns["segment"])
    return f"{mjd:.9f}_dm{dm:.3f}_beam{columns['beam']}" + (f"_segment{segment}" if segment else "")


@dataclass(frozen=True)
class PictureTask:
    """A picture to draw.

    Attributes
    ----------
    samples : str
        The file with the samples around a candidate.
    dm, width, snr, mjd_top : float
        Values of the candidate; ``mjd_top`` is its arrival at the top of the band.
    """

    samples: str
    dm: float
    width: float
    snr: float
    mjd_top: float

    @property
    def picture(self) -> Path:
        """The file of the picture."""
        return Path(self.samples).with_suffix(".png")


def task_of(folder: Path, columns: dict[str, Any]) -> PictureTask:
    """The task to draw a candidate, from its line in the table."""
    samples = folder / "pulses" / f"{name_of(columns)}.fil"
    return PictureTask(str(samples), *(float(columns[name]) for name in ("dm", "width", "snr", "mjd_top")))


def save_samples(path: str, raw: NDArray[Any], start: int, o: Observation) -> None:
    """Write the samples around a candidate, shape (samples, channels); ``start`` is the number of the first."""
    from skysieve.dedispersion.data.filterbank import Filterbank

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    fb = Filterbank.from_array(raw.T, freqs=o.freqs, tsamp=o.tsamp)
    fb.observation = o.replace(tstart=o.tstart + start * o.tsamp / 86400, nbits=fb.observation.nbits)
    write_fil(path, fb)


def draw(task: PictureTask) -> None:
    """Write a picture."""
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.single_pulse.cutouts import cutout
    from skysieve.dedispersion.single_pulse.plot import QUICK_PNG

    with Filterbank.open(task.samples) as fb:
        since = (task.mjd_top - fb.observation.tstart) * 86400
        one = cutout(fb, dm=task.dm, time=min(max(since, 0.0), fb.duration), width=task.width, snr=task.snr)
        with written(task.picture) as part:
            one.plot().savefig(part, **QUICK_PNG)


def undrawn(folder: Path) -> Iterator[PictureTask]:
    """Tasks for the pictures that are missing in the folder of a run although the samples are there.

    Raises
    ------
    ValueError
        The folder is not the folder of a run.
    """
    path = folder / "candidates.csv"
    if not path.is_file():
        raise ValueError(f"{folder}: has no candidates.csv; expected the output folder of 'skysieve dedisp stream'")
    with open(path, encoding="ascii", newline="") as file:
        rows = csv.DictReader(file)
        if list(rows.fieldnames or ()) != list(_FORMATS):
            raise ValueError(f"{path} is not a table of this version of skysieve")
        for row in rows:
            if None in row.values() or None in row:
                continue  # an incomplete line
            task = task_of(folder, row)
            if Path(task.samples).is_file() and not task.picture.exists():
                yield task


class PictureProcess:
    """A process of low priority that draws; it ends with `close`, or when this process ends.

    Raises
    ------
    OSError
        The process cannot be started.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # in its own session, so that Ctrl-C at the terminal does not reach it
            # -P: do not import modules from the current folder
            [sys.executable, "-P", "-m", "skysieve.dedispersion.stream.report.drawing"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def draw(self, task: PictureTask, over: Callable[[], bool]) -> str | None:
        """Draw a picture.

        Returns
        -------
        str or None
            The error message; empty if the picture was drawn.  None if ``over()`` became true before that.

        Raises
        ------
        OSError
            The process has ended, or its answer cannot be read.
        """
        p = self._process
        assert p.stdin is not None
        assert p.stdout is not None
        p.stdin.write(json.dumps(vars(task)) + "\n")
        p.stdin.flush()
        while not select.select([p.stdout], [], [], CHECK_SECONDS)[0]:
            if over():
                return None
        line = p.stdout.readline()
        if not line:
            raise OSError(f"the drawing process ended (status {p.wait()})")
        try:
            return str(json.loads(line))
        except ValueError:
            raise OSError(f"the drawing process answered {line.strip()!r}") from None

    def close(self) -> None:
        """End the process at once."""
        p = self._process
        p.terminate()
        try:
            p.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        assert p.stdout is not None
        p.stdout.close()
        assert p.stdin is not None
        with suppress(OSError):  # it may not have read the last task
            p.stdin.close()


def main() -> None:
    """Draw the tasks on standard input, a JSON object per line; answer each with its error message, or an empty one."""
    if hasattr(os, "nice"):
        os.nice(15)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # removes unfinished files
    for line in sys.stdin:
        wrong = ""
        try:
            draw(PictureTask(**json.loads(line)))
        except (OSError, ValueError, ArithmeticError, ImportError, MemoryError, RuntimeError) as error:
            wrong = str(error) or type(error).__name__
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main()
