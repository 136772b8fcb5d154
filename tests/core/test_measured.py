"""Measured figures that are stored: the first measurement counts, in a process and between processes."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skysieve.core.files import cache_folder
from skysieve.core.machine import measured

LIKE = {"a": 1.0, "b": 2.0}


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """An empty cache folder, and a process that has not used any measured figures yet."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    monkeypatch.setattr(measured, "_used", {})


def another_process(monkeypatch):
    monkeypatch.setattr(measured, "_used", {})


def never():
    pytest.fail("measured again")


def test_measured_once_and_stored(monkeypatch):
    assert measured.figures("a card: 1", lambda: {"a": 3.0, "b": 4.0}, LIKE) == {"a": 3.0, "b": 4.0}
    assert measured.path_of("a card: 1").name == "a-card-1.json"
    another_process(monkeypatch)
    assert measured.figures("a card: 1", never, LIKE) == {"a": 3.0, "b": 4.0}
    assert [p.name for p in cache_folder().iterdir()] == ["a-card-1.json"]  # no temporary file is left


def test_a_process_keeps_what_it_used_first():
    """The figures stay the same if the file or the caller's copy changes."""
    first = measured.figures("card", lambda: {"a": 3.0, "b": 4.0}, LIKE)
    first["a"] = 9.0
    measured.path_of("card").write_text(json.dumps({"a": 5.0, "b": 6.0}))
    assert measured.figures("card", never, LIKE) == {"a": 3.0, "b": 4.0}
    measured.path_of("card").unlink()
    assert measured.figures("card", never, LIKE) == {"a": 3.0, "b": 4.0}


def test_the_first_process_wins(monkeypatch):
    """Another process finishes while this one measures: its figures are taken, and stay."""

    def measure():
        measured.path_of("card").parent.mkdir(parents=True, exist_ok=True)
        measured.path_of("card").write_text(json.dumps({"a": 5.0, "b": 6.0}))
        return {"a": 3.0, "b": 4.0}

    assert measured.figures("card", measure, LIKE) == {"a": 5.0, "b": 6.0}
    another_process(monkeypatch)
    assert measured.figures("card", never, LIKE) == {"a": 5.0, "b": 6.0}


@pytest.mark.parametrize("broken", ["", "{", "[1]", "7", '{"a": 1}', '{"a": 1, "b": "x"}', '{"a": 1, "b": 2, "c": 3}'])
def test_a_broken_file_is_replaced(monkeypatch, broken):
    measured.path_of("card").parent.mkdir(parents=True)
    measured.path_of("card").write_text(broken)
    assert measured.figures("card", lambda: {"a": 3.0, "b": 4.0}, LIKE) == {"a": 3.0, "b": 4.0}
    another_process(monkeypatch)
    assert measured.figures("card", never, LIKE) == {"a": 3.0, "b": 4.0}


def test_implausible_figures_are_measured_again(monkeypatch):
    """The defaults serve this process and are not stored; what another process has stored meanwhile is better."""
    assert measured.figures("card", lambda: None, LIKE) == LIKE
    assert measured.figures("card", never, LIKE) == LIKE
    assert not measured.path_of("card").exists()
    another_process(monkeypatch)

    def measure():
        measured.path_of("card").write_text(json.dumps({"a": 5.0, "b": 6.0}))

    measured.path_of("card").parent.mkdir(parents=True, exist_ok=True)
    assert measured.figures("card", measure, LIKE) == {"a": 5.0, "b": 6.0}


def test_a_folder_that_cannot_be_written(tmp_path, caplog):
    (tmp_path / "skysieve").write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, "skysieve"):
        assert measured.figures("card", lambda: {"a": 3.0, "b": 4.0}, LIKE) == {"a": 3.0, "b": 4.0}
    assert "cannot be stored" in caplog.text
    assert measured.figures("card", never, LIKE) == {"a": 3.0, "b": 4.0}


def test_a_file_system_without_links(monkeypatch):
    """The figures are stored nevertheless, and the first process's still count."""

    def no_links(*a):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert measured.figures("card", lambda: {"a": 3.0, "b": 4.0}, LIKE) == {"a": 3.0, "b": 4.0}
    another_process(monkeypatch)
    assert measured.figures("card", never, LIKE) == {"a": 3.0, "b": 4.0}
    measured.path_of("other").write_text(json.dumps({"a": 5.0, "b": 6.0}))
    assert measured._keep(measured.path_of("other"), {"a": 7.0, "b": 8.0}, LIKE) == {"a": 5.0, "b": 6.0}
    assert sorted(p.name for p in cache_folder().iterdir()) == ["card.json", "other.json"]


def test_a_full_disk_leaves_no_temporary_files(monkeypatch):
    def full(self, *a, **k):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert measured.figures("card", lambda: {"a": 3.0, "b": 4.0}, LIKE) == {"a": 3.0, "b": 4.0}
    assert list(cache_folder().iterdir()) == []


@pytest.mark.parametrize("named", [None, ""])
def test_a_user_without_a_home(monkeypatch, named):
    """In a container, the number of the user may be in no list of users; each process then measures anew."""
    for variable in ("SKYSIEVE_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
        if named is not None:
            monkeypatch.setenv(variable, named)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert measured.figures("card", lambda: {"a": 3.0, "b": 4.0}, LIKE) == {"a": 3.0, "b": 4.0}
    assert cache_folder().is_absolute()


def test_threads_measure_once():
    calls = []

    def measure():
        calls.append(1)
        return {"a": float(len(calls)), "b": 0.0}

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: measured.figures("card", measure, LIKE)["a"], range(32)))
    assert found == [1.0] * 32


@pytest.mark.slow
def test_processes_that_measure_at_once_agree():
    """Each measures something else, all are released together: one set of figures for all."""
    code = (
        "import sys; from skysieve.core.machine import measured\n"
        "def measure():\n"
        "    print('ready', flush=True); sys.stdin.readline()\n"
        "    return {'a': float(sys.argv[1])}\n"
        "print(measured.figures('card', measure, {'a': 0.0})['a'])"
    )
    each = [
        subprocess.Popen([sys.executable, "-c", code, str(k)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for k in range(1, 4)
    ]
    assert [p.stdout.readline() for p in each] == ["ready\n"] * 3
    for p in each:
        p.stdin.write("go\n")
        p.stdin.flush()
    found = {float(p.communicate(timeout=600)[0]) for p in each}
    assert len(found) == 1
    assert found <= set(range(1, 4))
    assert json.loads(measured.path_of("card").read_text()) == {"a": found.pop()}
