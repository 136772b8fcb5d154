"""Samples and pictures of a stream's candidates when something goes wrong."""

from __future__ import annotations

import os
import threading

import pytest
from tests.dedispersion.test_stream_sink import fb, row, wait_for

from skysieve.dedispersion.stream.report.drawing import PictureProcess
from skysieve.dedispersion.stream.report.sink import Sink

__all__ = ["fb"]


@pytest.mark.slow
def test_samples_that_a_disk_takes_too_long_for_are_counted(fb, tmp_path, monkeypatch):
    from skysieve.dedispersion.stream.report import pictures as module

    go_on, said = threading.Event(), []
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.2)
    monkeypatch.setattr(module, "save_samples", lambda *given: go_on.wait(60))
    sink = Sink(tmp_path, pictures=False, say=said.append)
    for i in range(3):
        sink.add(row(fb, raw=fb.block(1000, 400).T.copy(), mjd_infinite=60001.0 + i))
    wait_for(lambda: sink.drawing._candidates.qsize() == 2)
    sink.close(grace=0.0)
    assert sink.counts["pictures_skipped"] == 2
    assert sum("could not be written in time" in line for line in said) == 1
    go_on.set()
    wait_for(lambda: not any(thread.is_alive() for thread in sink.drawing._threads))
    assert sink._raw_bytes == 0


def test_unfinished_files_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "pulses").mkdir()
    old = [tmp_path / "pulses" / ".60001.5_dm56.771_beam0-01234abc.fil", tmp_path / ".summary-01234abc.json"]
    others = [tmp_path / "pulses" / ".mine.fil", tmp_path / "pulses" / ".60001.5_dm56.771_beam0-01234abd.png"]
    for path in (*old, *others):
        path.touch()
        if path is not others[1]:  # this one may still be written
            os.utime(path, (0, 0))
    Sink(tmp_path).close()
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in others)


def test_a_signal_at_the_end_leaves_no_process(fb, tmp_path, monkeypatch):
    """If closing is interrupted, threads continue; the drawing process ends when it is closed again."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(PictureProcess, "draw", lambda painter, task, over: wait_for(over))
    sink = Sink(tmp_path)
    sink.add(row(fb, raw=fb.block(1000, 400).T.copy()))
    wait_for(lambda: sink.drawing.process is not None)
    ended, signals = sink.drawing._threads[1].ended, [KeyboardInterrupt]
    wait = ended.wait

    def interrupted(seconds):
        if signals:
            raise signals.pop()
        return wait(seconds)

    monkeypatch.setattr(ended, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sink.close(grace=60.0)
    sink.close(5.0, 0.0)
    assert sink.drawing.process._process.poll() is not None
    assert sink.counts["pictures_later"] == 1
