"""The start of a stream: nothing is lost while kernels are loaded and searches are set up."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from tests.dedispersion.test_stream_pipeline import SEARCH, ListFeed, data, packets_of, rows_of, run_feed, same_as_file

from skysieve.dedispersion import Filterbank, search
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.command import warm_up
from skysieve.dedispersion.stream.intake import Intake
from skysieve.dedispersion.stream.records import Options

__all__ = ["data"]


@pytest.mark.slow
def test_nothing_is_lost_while_searches_are_set_up(data, tmp_path, monkeypatch):
    """4 s of two beams arrive while their searches are set up, in rings of 0.2 s, which may grow or not.

    With rings that may grow, half arrives during the set-up of each search.  Without, all arrives during the first one.
    """
    prepare = Segment.prepare

    class DuringSetUp(ListFeed):
        """A few packets, then a list of batches during the set-up of each beam's search."""

        def __init__(self, intake, lists):
            super().__init__(intake, lists)
            self.set_up, self.fed = ([threading.Event(), threading.Event()] for _ in range(2))

        def feed(self):
            for number, batches in enumerate(self.batches, start=-1):
                if number >= 0:
                    assert self.set_up[number].wait(300)
                for made in batches:
                    self.intake.take(made, np.full(len(made), made.shape[1]))
                if number >= 0:
                    self.fed[number].set()

    first = packets_of(data.fb)[1]
    second = first.copy()
    second[:, 8] = 1  # its beam
    both = np.stack([first, second], axis=1).reshape(-1, first.shape[1])
    batches = [both[a : a + 44] for a in range(0, len(both), 44)]
    for growing, middle in ((False, len(batches)), (True, len(batches) // 2)):
        feeds = []

        def after_its_part(segment, feeds=feeds):
            if segment.search is None:
                feeds[0].set_up[segment.beam].set()
                assert feeds[0].fed[segment.beam].wait(300)
            return prepare(segment)

        def make_feed(intake, feeds=feeds, middle=middle):
            feeds.append(DuringSetUp(intake, [batches[:1], batches[1:middle], batches[middle:]]))
            return feeds[0]

        monkeypatch.setattr(Segment, "prepare", after_its_part)
        options = replace(data.options, ring=0.2, policy="drop", growing=growing)
        summary, _ = run_feed(make_feed, options, tmp_path / str(growing))
        assert (summary["counts"]["overflow"] == 0) == growing
        assert all(event.is_set() for event in (*feeds[0].set_up, *feeds[0].fed))
    rows = rows_of(tmp_path / "True")
    whole = Filterbank.from_array(data.fb.block(0, 8000), freqs=data.fb.freqs, tsamp=5e-4, tstart=60000.5)
    found = search(whole, data.plan, **SEARCH)
    for beam in ("0", "1"):
        same_as_file([r for r in rows if r["beam"] == beam], found)


@pytest.mark.slow
def test_everything_is_loaded_before_packets_arrive():
    """In a separate process: after `warm` no function is loaded or compiled for packets of any kind."""
    code = """
import sys, tempfile
import numpy as np
from dataclasses import replace
from numba.core.dispatcher import Dispatcher
from skysieve.dedispersion.stream.beams import Options, Segment
from skysieve.dedispersion.stream.intake import FileFeed, Intake
from skysieve.dedispersion.stream.receive.packets import POWER, VOLTAGE, Geometry, SkysieveParser, packets
from skysieve.dedispersion.stream.pipeline import Pipeline
from skysieve.dedispersion.stream.report.sink import Sink
from skysieve.dedispersion.stream.command import warm_up

class Given(FileFeed):
    def __init__(self, intake, made):
        super(FileFeed, self).__init__(intake)
        self.made = made
    def feed(self):
        for a in range(0, len(self.made), 50):
            part = self.made[a : a + 50]
            self.intake.take(part, np.full(len(part), part.shape[1]))

def known():
    modules = [m for name, m in sys.modules.items() if name.startswith("skysieve")]
    return {(d, tuple(d.overloads)) for m in modules for d in vars(m).values() if isinstance(d, Dispatcher)}

options = Options(dm_max=30.0, search={"threshold": 6.5, "threads": 1}, policy="block", cutouts=False)
warm_up.warm(options)
before, rng = known(), np.random.default_rng(2)
assert len(before) > 20
for kind, bits, foff in [(POWER, 8, -1.0), (POWER, 16, -1.0), (POWER, 32, 1.0), (POWER, 2, 1.0), (VOLTAGE, 8, 1.0),
                         (VOLTAGE, 4, -1.0), (VOLTAGE, 32, -1.0)]:
    n = 16 * 3000 if kind == VOLTAGE else 3200
    x = rng.integers(90, 110, (n, 1, 32 * bits // 8 * (1 + kind)), np.uint8)
    x[n // 2 : n // 2 + 16] += 60
    if bits == 32:
        x = x[:, :, ::4].astype("<f4").view(np.uint8)
    g = Geometry(kind, bits, 1, 16, 32, 1, 10**18, 1e-3 / (8 if kind == VOLTAGE else 1), 1400.0, foff)
    made = np.delete(packets(g, x, 0), 7, axis=0)
    intake = Intake(SkysieveParser(), options)
    summary = Pipeline(intake, Given(intake, made), Sink(tempfile.mkdtemp(), pictures=False, raw=False), nice=0).run()
    assert summary["counts"]["accepted"] == len(made), summary
    more = {(d.__module__ + "." + d.__name__, s) for d, s in known() - before}
    assert not more, (kind, bits, more)
print("nothing")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "nothing\n", done.stderr


@pytest.mark.parametrize(("stored", "processes"), [(False, True), (False, False), (True, True)])
def test_code_for_rarer_packets_is_left_to_another_process(monkeypatch, stored, processes):
    """Unless it was compiled before, or no other process can be started."""
    here, given = [], []
    monkeypatch.setattr(warm_up, "is_ready", lambda kernel: stored)
    monkeypatch.setattr(warm_up, "run_beside", lambda line: given.append(line) or processes)
    monkeypatch.setattr(warm_up, "_run_through", lambda packets, options: here.append(packets.shape[1]))
    warm_up.warm(Options(dm_max=30.0, search={"threshold": 6.5, "threads": 1}))
    assert len(here) == (1 if processes and not stored else 5)
    assert len(given) == (0 if stored else 4)
    here.clear()
    for line in given:
        exec(line, {})
    assert len(here) == len(given)  # each line passes packets of one kind


@pytest.mark.slow
def test_long_spectra_need_little_memory(monkeypatch):
    """2 subbands of 4096 channels, 16 spectra added: a ring of a minute would exceed the memory."""
    ended = []
    end = Intake.end
    monkeypatch.setattr(Intake, "end", lambda intake: (ended.append(intake.counts()), end(intake)))
    options = Options(dm_max=30.0, search={"threads": 1}, channelise={"channels": 4096, "integrate": 16})
    monkeypatch.setattr("skysieve.dedispersion.stream.receive.ring.available_host_memory", lambda: 2**30)
    warm_up.warm(options)
    assert len(ended) == 5
    assert all(counts["accepted"] and not counts["refused"] for counts in ended)


def test_ctrl_c_while_the_command_is_loaded_is_quiet():
    code = """
import builtins, runpy, sys
before = builtins.__import__
def loaded(name, *more, **how):
    if name == "typer":
        raise KeyboardInterrupt
    return before(name, *more, **how)
builtins.__import__ = loaded
sys.argv = ["skysieve", "info"]
runpy.run_module("skysieve.__main__", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "skysieve: interrupted\n")
