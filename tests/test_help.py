"""Help screens: shared options are the same everywhere, texts agree with the registries, examples run."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_docs import commands

SHARED = {
    "--cluster", "--clean", "--dip", "--dry-run", "--excess", "--ifs", "--ignore", "--json", "--max-width", "--memory",
    "--metrics", "--no-baseline", "--overwrite", "--peaks", "--progress", "--quiet", "--resume", "--veto", "--verbose",
    "--zero-dm",
}  # fmt: skip
"""Options that mean the same in every command."""


def test_shared_options_are_the_same_in_every_command() -> None:
    """The same names, help, panel and default; every option of every command is described by sentences."""
    found: dict[str, set[Any]] = {name: set() for name in SHARED}
    for name, command in commands():
        if hasattr(command, "commands"):
            continue
        assert re.search(rf"Examples?:\s+.*skysieve {name}\b", command.help), name
        for p in command.params:
            if p.param_type_name == "argument":
                continue
            assert p.name == "help" or re.match(r"[A-Z0-9].*\.$", p.help, re.S), (name, p.name, p.help)
            for option in SHARED & set(p.opts):
                found[option].add((*p.opts, *p.secondary_opts, p.help, p.rich_help_panel, p.metavar, str(p.default)))
    assert {option: seen for option, seen in found.items() if len(seen) != 1} == {}


def test_help_states_what_the_registries_hold() -> None:
    """Help texts repeat names and defaults of the registries, since reading these would slow the command line."""
    from dataclasses import asdict

    from skysieve.dedispersion.contract import BLOCK_SECONDS
    from skysieve.dedispersion.dm_plan.plan import PLAN_FORMATS
    from skysieve.dedispersion.injections.grid import PulseGrid
    from skysieve.dedispersion.injections.noise import Noise
    from skysieve.dedispersion.injections.result import TRIALS
    from skysieve.dedispersion.single_pulse.files import TABLE_FORMATS
    from skysieve.dedispersion.single_pulse.search import WIDTHS
    from skysieve.first_use import PLACES
    from skysieve.fstat.demod.barycentre import EPHEMERIDES
    from skysieve.fstat.inputs.detectors import DETECTORS
    from skysieve.fstat.inputs.files import FORMATS as ATOMS
    from skysieve.fstat.result.map import STYLES
    from skysieve.fstat.template_search.columns import STATISTICS
    from skysieve.fstat.template_search.result import FORMATS as TABLES

    text = {(name, o): p.help for name, command in commands() for p in command.params for o in p.opts}
    for name, option, words in (
        ("period", "--nterms", ["--multiband", "--asteroid"]),
        ("period", "--multiband", ["--no-fit-mean", "--method finufft", "--phase"]),
        ("warm-up", "--only", PLACES),
        ("fstat synth", "--detectors", DETECTORS),
        ("fstat search", "--ephemeris", EPHEMERIDES),
        ("fstat search", "--statistic", STATISTICS),
        ("fstat search", "--output", [f".{ending}" for ending in TABLES]),
        ("fstat convert", "--format", ATOMS),
        ("fstat map", "--format", ["npz", *STYLES]),
        ("dedisp plan", "--output", [f".{ending}" for ending in PLAN_FORMATS]),
        ("dedisp search", "--output", [f".{ending}" for ending in TABLE_FORMATS]),
        ("dedisp search", "--max-width", [f"{WIDTHS[-1]} samples"]),
        ("dedisp search", "--block", [f"is {BLOCK_SECONDS:g},"]),
        ("dedisp completeness", "--grid", [f"{name}=" for name in asdict(PulseGrid()) if name != "time"]),
    ):
        missing = [word for word in words if word not in text[name, option]]
        assert missing == [], f"skysieve {name} {option}: {text[name, option]}"
    by = re.findall(r"printed: (.*)\. The default", text["dedisp completeness", "--by"])[0]
    assert set(re.split(r", | or ", by)) <= set(TRIALS.names)
    stated = text["dedisp completeness", "--grid"].split("not given: ")[1].rstrip(".")
    parsed = PulseGrid.parse(re.sub("dm=[^;]*;", "", stated))
    for name in ("snr", "width", "scatter", "index", "band"):
        assert np.array_equal(np.ravel(getattr(parsed, name)), np.ravel(getattr(PulseGrid(), name))), name
    for name, value in asdict(Noise()).items():
        if ("dedisp completeness", f"--{name}") in text:
            shown = float(re.findall(r"default is ([-\d.e]+)\.", text["dedisp completeness", f"--{name}"])[0])
            assert shown == value, name


def test_the_defaults_of_alerts_are_those_of_its_search() -> None:
    """The command line repeats the defaults of the classes, since importing these would slow every help screen."""
    from skysieve.alerts.search import PeriodSearch
    from skysieve.alerts.service import Service

    given = {p.name: p.default for p in dict(commands())["alerts"].params}
    found = {}
    for kind in (PeriodSearch, Service):
        for name, parameter in inspect.signature(kind).parameters.items():
            if name in given and isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
                found[name] = parameter.default
    assert {"min_period", "max_period", "samples_per_peak", "min_rows", "every", "table_every"} <= set(found)
    assert {name: given[name] for name in found} == found


NOT_RUN = re.compile(
    r"--cluster|--kafka|--avro|dada|--listen|--measure|10000|skysieve (demo|warm-up|dedisp watch|dedisp plot night)"
)
"""Examples that need a server, a ring or a scheduler, or that take minutes."""
PREPARED = """
dedisp fake -o a.fil --nchan 128 --fch1 1500 --foff -2 --tsamp 0.000512 --duration 6 --dm 100 --snr 20 --width 0.004
fstat synth atoms.npz --days 5
fstat convert atoms.npz CFS_Fstatatoms.dat
fstat simulate sfts --days 10 --signal 100.05,5e-25,0.5,1.0,-1e-10
"""
"""Commands that make inputs of the examples."""


def skysieve(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which ``skysieve`` is the command of this interpreter."""
    define = f'skysieve() {{ "{sys.executable}" -m skysieve "$@"; }}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{define}\n{line}"], cwd=folder, capture_output=True, text=True, timeout=300
    )


def inputs(folder: Path) -> None:
    """Small files with the names that the examples have."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from astropy.table import Table

    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(0, 30, 120))
    star = {"time": t, "mag": 10 + 0.3 * np.sin(2 * np.pi * t / 1.37) + rng.normal(0, 0.05, 120), "err": 0.05 + 0 * t}
    Table(star).write(folder / "star.csv")
    ids = np.repeat(["a", "b"], 120)
    stars = {"id": ids} | {name: np.tile(column, 2) for name, column in star.items()}
    pq.write_table(pa.table(stars), folder / "survey.parquet")
    Table(stars).write(folder / "asteroids.txt", format="ascii.no_header")
    distances = {"rh": np.full(240, 2.5), "delta": np.full(240, 1.7), "alpha": np.tile(np.linspace(2, 20, 120), 2)}
    pq.write_table(pa.table(stars | distances), folder / "sources.parquet")
    sky = Table({name: rng.standard_normal(12 * 128**2) for name in "IQU"})
    sky.meta |= {"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": 128}
    sky.write(folder / "planck.fits")
    for line in filter(None, PREPARED.splitlines()):
        done = skysieve(f"skysieve {line}", folder)
        assert done.returncode == 0, done.stderr
    for name, copies in {"a.fil": ("night/1.fil", "older/2.fil"), "atoms.npz": ("atoms/1.npz",)}.items():
        for copy in copies:
            (folder / copy).parent.mkdir(exist_ok=True)
            shutil.copy(folder / name, folder / copy)
    shutil.copy(folder / "CFS_Fstatatoms.dat", folder / "atoms" / "2.dat")
    (folder / "out").mkdir()


@pytest.mark.slow
def test_examples_of_help_screens_run(tmp_path: Path) -> None:
    """Each example ends without an error, and makes the files that it names."""
    pytest.importorskip("matplotlib")
    inputs(tmp_path)
    failed, ran = [], 0
    for name, command in commands():
        if hasattr(command, "commands"):
            continue
        for line in re.findall(r"(?:- |Example: )(.*skysieve [a-z].*)", command.help):
            if NOT_RUN.search(line):
                continue
            ran += 1
            again = " --overwrite" if "--overwrite" in {o for p in command.params for o in p.opts} else ""
            done = skysieve(line + again, tmp_path)
            files = re.findall(r"(?:-o|--output|--plot|--truth) ([\w.-]+\.\w+)", line)
            if done.returncode or not all((tmp_path / file).exists() for file in files):
                failed.append(f"{name}: {line}: {done.stderr[-300:]}")
    assert failed == [], "\n".join(failed)
    assert ran >= 25
