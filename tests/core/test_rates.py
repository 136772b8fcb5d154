"""Rates of the machine: stored, fitted, read; and that no search measures any."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from skysieve import first_use
from skysieve.cli import application
from skysieve.core.command import format_seconds, show_prediction
from skysieve.core.device import Device, resolve
from skysieve.core.machine import rates
from skysieve.core.machine.measured import path_of, stored

CPU = resolve("cpu")[0]
GPU = Device("cuda", 0, "A card", 10**9)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    return tmp_path / "skysieve"


def test_nothing_is_predicted_without_rates(folder):
    assert rates.rates_of("sphere", CPU) == {}
    assert rates.predicted("sphere", CPU, {"sums": 3.0}) == {"seconds": None, "processor_seconds": None}
    assert rates.missing("sphere", CPU, {"sums": 3.0, "none": 0.0}) == ["sums"]
    assert not folder.exists()


def test_rates_are_stored_for_a_domain_and_a_device(folder):
    rates.keep("sphere", CPU, {"sums": 2.0, "alone files": 5.0})
    assert rates.predicted("sphere", CPU, {"sums": 3.0, "alone files": 1.0}, threads=4) == {
        "seconds": 5 + 6 / 4, "processor_seconds": 11.0
    }  # fmt: skip
    assert rates.predicted("sphere", CPU, {"other": 0.0}) == {"seconds": 0.0, "processor_seconds": 0.0}
    assert rates.predicted("sphere", GPU, {"sums": 3.0})["seconds"] is None
    assert rates.predicted("fstat", CPU, {"sums": 3.0})["seconds"] is None
    rates.keep("sphere", GPU, {"sums": 1.0})
    assert rates.predicted("sphere", GPU, {"sums": 3.0}) == {"seconds": 3.0, "processor_seconds": None}
    assert rates.rates_of("sphere", replace(GPU, index=1)) == {"sums": 1.0}
    rates.keep("sphere", CPU, {"sums": 7.0})
    assert rates.rates_of("sphere", CPU) == {"sums": 7.0}
    assert len(list(folder.iterdir())) == 2


def test_another_version_or_another_machine_has_no_rates(monkeypatch):
    rates.keep("sphere", CPU, {"sums": 2.0})
    with monkeypatch.context() as other:
        other.setattr("skysieve.__version__", "9.9")
        assert rates.rates_of("sphere", CPU) == {}
    with monkeypatch.context() as other:
        other.setattr(rates, "processor", lambda: "another")
        assert rates.rates_of("sphere", CPU) == {}
    assert rates.rates_of("sphere", CPU) == {"sums": 2.0}


@pytest.mark.parametrize("broken", ["{", "[1]", json.dumps({"sums": "x"}), ""])
def test_a_damaged_file_is_no_rates(broken):
    rates.keep("sphere", CPU, {"sums": 2.0})
    [name] = [rates._name("sphere", CPU)]
    path_of(name).write_text(broken)
    assert stored(name) is None
    assert rates.rates_of("sphere", CPU) == {}


def test_a_folder_that_cannot_be_written(folder):
    folder.write_text("a file")
    with pytest.raises(OSError, match="skysieve"):
        rates.keep("sphere", CPU, {"sums": 2.0})


def test_the_fit_is_exact_where_the_model_is():
    rng = np.random.default_rng(1)
    true = {"a": 2e-9, "b": 3e-6, "c": 0.0}
    works = [{name: float(rng.uniform(0, 1e6)) for name in true} for _ in range(8)]
    found = rates.fit(works, [sum(true[name] * w[name] for name in true) for w in works])
    for name, value in true.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-18)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_work_that_cannot_be_counted_has_no_rate(caplog, bad):
    works = [{"calls": 1.0, "sums": 10.0}, {"calls": 1.0, "sums": 30.0}, {"calls": 1.0, "terms": bad}]
    found = rates.fit(works, [21.0, 61.0, 5.0])
    assert found == {"calls": pytest.approx(1.0), "sums": pytest.approx(2.0)}
    assert "no rate can be computed for terms" in caplog.text
    rates.keep("sphere", CPU, found | {"terms": 1.0})
    assert rates.predicted("sphere", CPU, works[0])["seconds"] == pytest.approx(21.0)
    assert rates.predicted("sphere", CPU, works[2])["seconds"] is None
    assert rates.missing("sphere", CPU, works[2]) == ["terms"]


@pytest.mark.parametrize("took", [np.nan, np.inf, 0.0])
def test_a_job_without_a_usable_time_is_left_out(caplog, took):
    assert rates.fit([{"sums": 10.0}, {"sums": 1.0}], [20.0, took]) == {"sums": pytest.approx(2.0)}
    assert not caplog.text
    assert rates.fit([{"sums": 1.0}], [took]) == {}
    assert "no rate can be computed for sums" in caplog.text


@pytest.mark.parametrize(
    ("took", "best", "calls"),
    [([9.0, 0.2, 0.1], 0.2, 2), ([0.1, 0.2, 0.1], 0.1, 2), ([9.0, 0.08, 0.07, 0.01], 0.07, 3), ([0.01] * 9, 0.01, 4)],
)
def test_the_fastest_run_counts(took, best, calls):
    made = []
    ticks = iter(np.cumsum([0.0, *(x for one in took for x in (one, 0.0))]).tolist())
    assert rates.fastest(lambda: made.append(1), lambda: next(ticks), 0.1) == pytest.approx(best)
    assert len(made) == calls
    assert 0 <= rates.timed(CPU, lambda: None) < 0.1


def test_a_rehearsal_runs_each_job_once_and_stores_nothing(folder):
    made = []
    with rates.rehearsal():
        assert rates.timed(CPU, lambda: made.append(1)) > 0
        rates.keep("sphere", CPU, {"sums": 2.0})
        assert rates.rates_of("sphere", CPU) == {"sums": 2.0}  # later jobs may need them
    assert made == [1]
    assert rates.rates_of("sphere", CPU) == {}
    assert not folder.exists()
    rates.timed(CPU, lambda: made.append(1))
    assert len(made) > 2


def domain_of(monkeypatch, name, measure, rehearsals=lambda device: []):
    """A domain with this module of rates."""
    made = types.ModuleType(f"skysieve.{name}.command.rates")
    vars(made).update(measure=measure, rehearsals=rehearsals)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(first_use, "DOMAINS", (*(d for d in first_use.DOMAINS if d in TOYS), name))


TOYS = ("one", "two")


def test_a_domain_that_cannot_be_measured_costs_itself(monkeypatch):
    def fails(device):
        raise MemoryError("no room for a map")

    domain_of(monkeypatch, "one", fails)
    domain_of(monkeypatch, "two", lambda device: rates.keep("two", device, {"sums": 1.0}))
    done = CliRunner().invoke(application("info"), ["info", "--measure", "--device", "cpu"])
    said = done.output.splitlines()
    assert done.exit_code == 1
    assert said[0] == f"measuring one on {CPU}"
    assert said[1].startswith(f"one: rates of {CPU} cannot be measured: ")
    assert "no room" in said[1]
    assert said[2] == f"measuring two on {CPU}"
    assert said[3].startswith(f"two: rates of {CPU} measured in 0.")
    assert rates.rates_of("two", CPU) == {"sums": 1.0}


@pytest.mark.parametrize("good", [True, False])
def test_what_a_gpu_needs_is_compiled_once_for_the_present_sources(good, monkeypatch):
    domain_of(monkeypatch, "one", lambda device: None)
    monkeypatch.setattr(first_use, "resolve", lambda name: (GPU,))
    compiled = []

    def run(*words):
        compiled.append(words)
        return "" if good else "ValueError: no such kernel"

    monkeypatch.setattr(first_use, "_compiled", run)
    said = []
    for _ in range(2):
        assert [one[:2] for one in first_use.measure_rates("cuda", said.append)] == [("one", str(GPU))]
    assert compiled == [("--rehearse", "one", "cuda:0")] * (1 if good else 2)
    problem = "one: not all could be compiled beforehand: ValueError: no such kernel"
    assert said[:3] == [f"compiling for {GPU}", *([] if good else [problem]), f"measuring one on {GPU}", *said[2:]][:3]


def test_an_error_of_a_rehearsal_is_raised_after_all_jobs(monkeypatch):
    done = []

    def fails():
        raise ValueError("no such kernel")

    domain_of(monkeypatch, "one", lambda device: None, lambda device: [fails, lambda: done.append(1)])
    with pytest.raises(ValueError, match="no such kernel"):
        first_use._rehearse("one", "cpu")
    assert done == [1]


def test_the_other_cores_are_released():
    import threading

    with rates.others_busy():
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("skysieve-busy") == rates.usable_cores() - 1
    assert "skysieve-busy" not in [thread.name for thread in threading.enumerate()]


FACTS = {"method": "ring", "device": "cpu", "bytes": 2**20, "moved": 0, "missing": ["sums"]}


def test_what_cannot_be_predicted_is_not_printed(capsys):
    show_prediction(FACTS | {"seconds": None, "processor_seconds": None}, "one map")
    text = capsys.readouterr().out
    assert "time  " not in text
    assert "moved" not in text
    assert "skysieve info --measure" in text
    assert "no rate was measured for sums" in text
    show_prediction(FACTS | {"seconds": 90.0, "processor_seconds": 180.0}, "one map")
    assert capsys.readouterr().out.splitlines() == [
        "one map", "method      ring on cpu", "time        90 s on an idle machine", "processor   180 s of all threads",
        "memory      1.0 MiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"), [(1e-4, "0.1 ms"), (2.0, "2 s"), (3030, "50.5 min"), (5400, "1.5 h"), (1e6, "11.6 d")]
)
def test_units_of_time(seconds, text):
    assert format_seconds(seconds) == text
