"""Compare predicted times of fixed jobs with their real times, in two steps: ``--predict`` and ``--run``.

``python -m benchmarks.predictions --predict`` makes the data, runs each command with ``--dry-run`` and writes the
predictions to ``benchmarks/results/predictions.json``.  This file is committed before the second step, ``--run``, which
runs the jobs and adds their times.  Rates come from ``skysieve info --measure``.  On a CPU predictions are compared
with the processor time of the process, since other programs may run; on a GPU with the elapsed time.  The lowest of
three runs (``--runs``) in one process is taken, so that imports and compilation are not included.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import skysieve
from skysieve.cli import application
from skysieve.core.command import show_prediction
from skysieve.core.device import resolve
from skysieve.core.machine.rates import processor

FILE = Path(__file__).parent / "results" / "predictions.json"
NEAR = 0.25
"""Largest relative error that is called a success."""


def survey(objects: int, seed: int) -> None:
    """Light curves of noise, one row an observation."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    sizes = rng.integers(100, 500, objects)
    t = np.concatenate([np.sort(rng.uniform(0, 1200, m)) for m in sizes])
    columns = {"objectid": np.repeat(np.arange(objects), sizes), "mjd": 58000 + t, "mag": rng.normal(16, 0.1, t.size)}
    pq.write_table(pa.table(columns | {"magerr": np.full(t.size, 0.1)}), "survey.parquet")


def sky(nside: int) -> None:
    """A map of noise."""
    from skysieve.sphere.command.rates import fits_of

    noise = np.random.default_rng(1).standard_normal((1, 12 * nside**2)).astype("f4")
    Path("map.fits").write_bytes(fits_of(noise))


def beam(channels: int, samples: int) -> None:
    """A filterbank file of 8-bit noise."""
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.data.write import write_fil

    x = np.clip(np.random.default_rng(1).normal(100, 10, (samples, channels)), 0, 255).astype(np.uint8)
    made = Filterbank.from_array(x.T, fch1=1600, foff=-400 / channels, tsamp=128e-6)
    write_fil("beam.fil", made)


def sfts(days: int) -> None:
    """SFTs of noise of two detectors."""
    command = ["fstat", "simulate", "sfts", "--freq", "99.9", "--freq-band", "0.4", "--days", str(days), "-q"]
    assert CliRunner().invoke(application("fstat"), command).exit_code == 0


SEARCH = "fstat search --sfts sfts --ra 0.5 --dec 1.0 --freq 100 --ephemeris builtin"
JOBS: dict[str, tuple[str, Callable[[], None], str]] = {
    "period, 2,000 light curves": (
        "cpu", lambda: survey(2000, 3), "period survey.parquet --fmin 0.01 --fmax 20 -o periods.parquet"
    ),
    "smooth, nside 1024, 1 degree": ("cpu", lambda: sky(1024), "smooth map.fits smooth.fits --fwhm 1deg"),
    "dedisp search, 1024 channels, 51 s": (
        "cpu", lambda: beam(1024, 400_000), "dedisp search beam.fil --dm-max 400 -o candidates.csv"
    ),
    "fstat search, 20 days, 1 mHz": (
        "cpu", lambda: sfts(20), f"{SEARCH} --freq-band 0.001 --dt0 7200 --dtau 7200 -o loudest.csv"
    ),
    "fstat search, 30 days, 0.4 mHz": (
        "cpu", lambda: sfts(30), f"{SEARCH} --freq-band 0.0004 --dt0 10800 --dtau 7200 -o loudest.csv"
    ),
    "fstat search, 15 days, 1 mHz": (
        "cpu",
        lambda: sfts(15),
        f"{SEARCH} --freq-band 0.001 --dt0 5400 --dtau 5400 -o loudest.csv",
    ),
    "period, 200,000 light curves": (
        "cuda", lambda: survey(200_000, 4), "period survey.parquet --fmin 0.01 --fmax 20 -o periods.parquet"
    ),
    "fstat search, 20 days, 30 mHz": (
        "cuda", lambda: sfts(20), f"{SEARCH} --freq-band 0.03 --dt0 7200 --dtau 7200 -o loudest.csv"
    ),
}  # fmt: skip
"""For each job the device, a function that makes the data in the working folder, and the command."""


def invoke(command: str, device: str, *more: str) -> tuple[float, float]:
    """Run a command in this process; return its processor seconds and its elapsed seconds."""
    words = [*command.split(), "--device", device, "--overwrite", "--quiet", *more]
    before, started = time.process_time(), time.perf_counter()
    done = CliRunner().invoke(application(words[0]), words)
    if done.exit_code:
        raise RuntimeError(f"{command}: {done.output}")
    return time.process_time() - before, time.perf_counter() - started


def predicted(command: str, device: str) -> dict[str, Any]:
    """The prediction of a command, as ``--dry-run`` prints it."""
    from unittest.mock import patch

    found: list[dict[str, Any]] = []
    with patch("skysieve.core.command.show_prediction", lambda facts, what: found.append(dict(facts))):
        import skysieve.fstat.command.rates as fstat_rates

        with patch.object(fstat_rates, "show_prediction", lambda facts, what: found.append(dict(facts))):
            invoke(command, device, "--dry-run")
            invoke(command, device, "--dry-run")  # the first time compiles
    facts = found[-1]
    return {name: facts[name] for name in ("method", "seconds", "processor_seconds", "bytes", "moved")}


def folder_of(job: str, parent: Path) -> Path:
    """The folder for the data of a job."""
    folder = parent.resolve() / re.sub(r"\W+", "-", job)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    """Predict, or run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--runs", type=int, default=3, help="runs of which the fastest counts")
    parser.add_argument("--only", default="", help="Jobs whose name holds this text.")
    parser.add_argument("--data", type=Path, help="Folder for the data; data that it holds are not made again.")
    parser.add_argument("--make", action="store_true", help="Make the data in --data, and do nothing else.")
    given = parser.parse_args()
    held: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    device = resolve(given.device)[0]
    name = "processor_seconds" if given.device == "cpu" else "seconds"
    for job, (where, make, command) in JOBS.items():
        if where != given.device or given.only not in job:
            continue
        entry = held.setdefault(job, {"device": where, "command": f"skysieve {command}"})
        with tempfile.TemporaryDirectory() as temporary, chdir(folder_of(job, given.data or Path(temporary))):
            if not any(Path().iterdir()):
                make()
            if given.make:
                continue
            if given.predict:
                made_on = {"machine": processor() if where == "cpu" else device.name, "version": skysieve.__version__}
                entry |= {"predicted": predicted(command, where) | made_on | {"date": str(date.today())}}
                entry.pop("took", None)
            if given.run:
                if "predicted" not in entry:
                    raise SystemExit(f"{job}: there is no prediction; --predict makes it")
                runs = [invoke(command, where) for _ in range(given.runs)]
                took = min(run[0 if where == "cpu" else 1] for run in runs)
                expected = entry["predicted"][name]
                entry["took"] = {name: took, "of_all_runs": [list(run) for run in runs], "date": str(date.today())}
                entry["ratio"] = None if expected is None else expected / took
                good = expected is not None and abs(expected / took - 1) <= NEAR
                said = "nothing" if expected is None else f"{expected:.3g} s"
                print(f"{job}: predicted {said}, took {took:.3g} s, {'' if good else 'NOT '}within 25%")
            else:
                show_prediction(entry["predicted"] | {"device": where, "missing": [], "threads": 1}, job)
        FILE.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
