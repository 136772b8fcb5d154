"""Candidates' samples as files, and pictures of those, which a process of its own draws.

Samples are on the disk before their picture is begun, so that `undrawn` ones can be drawn at any time.
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

from .tables import COLUMNS, FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.observation import Observation

PATIENCE = 0.2
ENDS = 2.0
"""Seconds between looks at whether to go on; that the process has to end by itself."""


def name_of(columns: dict[str, Any]) -> str:
    """A file's name for a candidate: that which its line in the table gives.

    Segments after the first have their number in it: a sender that starts anew may send the same times again.

    >>> name_of({"mjd_infinite": 60000.5, "dm": 56.77123456789, "beam": 2, "segment": 0})
    '60000.500000000_dm56.771_beam2'
    >>> name_of({"mjd_infinite": 60000.5, "dm": 56.77123456789, "beam": 2, "segment": 3})
    '60000.500000000_dm56.771_beam2_segment3'
    """
    mjd, dm = (float(format(float(columns[name]), FORMATS[name])) for name in ("mjd_infinite", "dm"))
    segment = int(columns["segment"])
    return f"{mjd:.9f}_dm{dm:.3f}_beam{columns['beam']}" + (f"_segment{segment}" if segment else "")


@dataclass(frozen=True)
class Task:
    """A picture to draw: of a candidate, from its samples.

    Attributes
    ----------
    samples : str
        The file with them.
    dm, width, snr, mjd_top : float
        Of the candidate; ``mjd_top`` is its arrival at the top of the band.
    """

    samples: str
    dm: float
    width: float
    snr: float
    mjd_top: float

    @property
    def picture(self) -> Path:
        """Where it goes."""
        return Path(self.samples).with_suffix(".png")


def task_of(folder: Path, columns: dict[str, Any]) -> Task:
    """The picture of a candidate: of its line in the table."""
    samples = folder / "pulses" / f"{name_of(columns)}.fil"
    return Task(str(samples), *(float(columns[name]) for name in ("dm", "width", "snr", "mjd_top")))


def save_samples(path: str, raw: NDArray[Any], start: int, o: Observation) -> None:
    """Write the samples around a candidate, shape (samples, channels); ``start`` is the number of the first."""
    from skysieve.dedispersion.data.filterbank import Filterbank

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    fb = Filterbank.from_array(
        raw.T, freqs=o.freqs, tsamp=o.tsamp, tstart=o.tstart + start * o.tsamp / 86400,
        source=o.source, telescope=o.telescope,
    )  # fmt: skip
    write_fil(path, fb)


def draw(task: Task) -> None:
    """Write a picture."""
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.single_pulse.cutouts import cutout
    from skysieve.dedispersion.single_pulse.plot import QUICK_PNG

    with Filterbank.open(task.samples) as fb:
        since = (task.mjd_top - fb.observation.tstart) * 86400
        one = cutout(fb, dm=task.dm, time=min(max(since, 0.0), fb.duration), width=task.width, snr=task.snr)
        with written(task.picture) as part:
            one.plot().savefig(part, **QUICK_PNG)


def undrawn(folder: Path) -> Iterator[Task]:
    """Pictures that a run's folder lacks, of the candidates whose samples it has.

    Raises
    ------
    ValueError
        When it is no folder of a run.
    """
    path = folder / "candidates.csv"
    if not path.is_file():
        raise ValueError(f"{folder}: holds no candidates.csv; expected the --out of a stream")
    with open(path, encoding="ascii", newline="") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path} is no table of candidates of this version")
        for row in rows:
            if None in row.values() or None in row:
                continue  # a line that is being written, or was cut off
            task = task_of(folder, row)
            if Path(task.samples).is_file() and not task.picture.exists():
                yield task


class Painter:
    """Draws in a process of its own, of the lowest priority but one; ends with `close` or when this process does.

    Raises
    ------
    OSError
        When there is no room for a process.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # in a session of its own: the terminal's Ctrl-C is not for it
            # -P: modules of the same names in the folder where the command was given are not for it
            [sys.executable, "-P", "-m", "skysieve.dedispersion.stream.report.drawing"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def draw(self, task: Task, over: Callable[[], bool]) -> str | None:
        """Draw a picture.

        Returns
        -------
        str or None
            What went wrong; empty when all is well.  None when ``over()`` told to give up.

        Raises
        ------
        OSError
            When the process is gone, or talks nonsense.
        """
        p = self._process
        assert p.stdin is not None
        assert p.stdout is not None
        p.stdin.write(json.dumps(vars(task)) + "\n")
        p.stdin.flush()
        while not select.select([p.stdout], [], [], PATIENCE)[0]:
            if over():
                return None
        line = p.stdout.readline()
        if not line:
            raise OSError(f"the process that draws ended (status {p.wait()})")
        try:
            return str(json.loads(line))
        except ValueError:
            raise OSError(f"the process that draws answers {line.strip()!r}") from None

    def close(self) -> None:
        """End it, at once."""
        p = self._process
        p.terminate()
        try:
            p.wait(ENDS)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        assert p.stdout is not None
        p.stdout.close()
        assert p.stdin is not None
        with suppress(OSError):  # what it was told last may not have been taken
            p.stdin.close()


def main() -> None:
    """Draw what standard input asks for, a JSON object a line; answer each with a line: what went wrong, or nothing."""
    if hasattr(os, "nice"):
        os.nice(15)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # what is half written is removed
    for line in sys.stdin:
        wrong = ""
        try:
            draw(Task(**json.loads(line)))
        except (OSError, ValueError, ArithmeticError, ImportError, MemoryError, RuntimeError) as error:
            wrong = str(error) or type(error).__name__
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main()
