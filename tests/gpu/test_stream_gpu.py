"""Streams searched on GPUs through the public class: the events and candidates of the CPU's search of a file.

The kernels are tested in tests/kernels/test_stream*.py.
"""

from __future__ import annotations

import csv
import subprocess
import sys

import numpy as np
import pytest
from tests.kernels.test_stream_chain import run, same_runs, write_voltages

from skysieve.dedispersion import Filterbank, Losses, Noise, PulseGrid, completeness, fake, plan, search
from skysieve.dedispersion.stream import LiveInjector, StreamSearch, beams

pytestmark = pytest.mark.gpu
DMS = np.arange(0, 201, 10.0)
OPTIONS = {"threshold": 5.0, "block": 1.1, "clean": False}


@pytest.fixture(scope="module")
def fb():
    made = fake(
        nchan=64, duration=12, tsamp=1e-3, fch1=1500, foff=-4, dm=100, width=8e-3, snr=20, seed=5,
        times=[0.3, 2.0, 3.302, 8.01],
    )  # fmt: skip
    return Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=1e-3, tstart=60000.0)


def same_events(found, offline):
    events = {k: np.concatenate([getattr(f.events, k) for f in found]) for k in offline.events.__dataclass_fields__}
    order = np.lexsort((events["width_samples"], events["time"], events["dm_index"]))
    assert len(order) == len(offline.events) > 0
    for name, column in events.items():
        assert np.array_equal(column[order], getattr(offline.events, name)), name
    assert sum(map(len, found)) == len(offline)


@pytest.mark.parametrize("device", ["cuda", "cuda:all"])
@pytest.mark.parametrize("gulps", [[1024], [997], [12000], [1, 2500, 37]])
@pytest.mark.parametrize(("downsamp", "first", "lossy"), [(1, 0, False), (4, 0, False), (1, 1500, True)])
def test_a_stream_gives_the_bits_of_a_file(fb, device, gulps, downsamp, first, lossy):
    p = plan(fb, dms=DMS, downsamp=downsamp)
    options = {**OPTIONS, "block": 1.1 * downsamp}
    gone = np.flatnonzero(np.random.default_rng(1).random(1200) < 0.05) * 10 if lossy else np.empty(0, int)
    losses = Losses(np.stack([gone, gone + 10, 0 * gone, 0 * gone + 64], axis=1), first)
    offline = search(fb, p, losses=losses, device="cpu", **options)
    x = fb.read().T
    found, at, i = [], first, 0
    with StreamSearch(fb.observation, p, device=device, **options) as live:
        live.warm()
        while at < len(x):
            n = min(gulps[i % len(gulps)], len(x) - at)
            rects = losses.within(at, at + n)
            rects[:, 3] = np.minimum(rects[:, 3], 64)
            found += live.feed(at, x[at : at + n], rects)
            at, i = at + n, i + 1
        found += live.finish()
    same_events(found, offline)


@pytest.mark.parametrize("device", ["cuda", "cuda:all"])
@pytest.mark.parametrize(("first", "gulp", "clean"), [(0, 1024, False), (700, 331, False), (700, 331, True)])
def test_samples_that_stay_on_the_gpu(fb, device, first, gulp, clean):
    """Rows of CuPy and of NumPy in turn, with losses: the events of the file."""
    import cupy

    gone = np.flatnonzero(np.random.default_rng(1).random(1200) < 0.1) * 10
    some = np.stack([gone, gone + 10, gone // 10 % 30, gone // 10 % 30 + 34], axis=1)
    losses = Losses(np.concatenate([some[some[:, 0] < 5000], [[5000, 5400, 0, 64]], some[some[:, 0] >= 5400]]), first)
    p = plan(fb, dms=DMS)
    options = {**OPTIONS, "clean": clean}
    offline = search(fb, p, losses=losses, device="cpu", **options)
    x = np.ascontiguousarray(fb.read().T)
    found = []
    with StreamSearch(fb.observation, p, device=device, resident=True, history=2000, **options) as live:
        live.warm()
        for at in range(first, len(x), gulp):
            rows = x[at : at + gulp]
            rects = losses.within(at, at + len(rows))
            rects[:, 3] = np.minimum(rects[:, 3], 64)
            given = cupy.asarray(rows) if at // gulp % 2 else rows
            cupy.cuda.runtime.deviceSynchronize()
            found += live.feed(at, given, rects)
        low, held = live.recent(9000, 9050)
        assert low == 9000
        assert held.shape == (50, 64)
        found += live.finish()
    same_events(found, offline)


# ---------------------------------------------------------------- injections

GRID = PulseGrid(snr=(20.0, 30.0), dm=(50.0, 150.0), width=(3e-3, 6e-3))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("pieces", [512, 997])
def test_pulses_are_added_to_samples_of_a_gpu(fb, dtype, pieces):
    """The same values as in the memory of the host, in place."""
    import cupy

    x, gone = np.ascontiguousarray(fb.read().T.astype(dtype)), np.array([[7600, 7650, 0, 64]])
    live = [LiveInjector(fb.observation, every=3, grid=GRID, seed=2, dtype=dtype) for _ in range(2)]
    changed = 0
    for at in range(0, len(x), pieces):
        host, given = x[at : at + pieces].copy(), cupy.asarray(x[at : at + pieces])
        expected, found = live[0].add(at, host, gone), live[1].add(at, given, gone)
        assert found is given
        np.testing.assert_array_equal(cupy.asnumpy(found), expected)
        changed += int((expected != x[at : at + pieces]).sum())
    rows = [one.due(np.inf) for one in live]
    assert len(rows[0]) == 4
    assert repr(rows[0]) == repr(rows[1])  # they have NaN
    assert changed > 1000


def test_pulses_that_are_injected_on_a_gpu_are_found(fb):
    """From samples on the GPU to candidates: those of a search of a file with the same pulses."""
    import cupy

    x = np.ascontiguousarray(fb.read().T)
    live = [LiveInjector(fb.observation, every=3, grid=GRID, seed=2) for _ in range(2)]
    made = np.concatenate([live[0].add(at, x[at : at + 500].copy()) for at in range(0, len(x), 500)])
    both = Filterbank.from_array(made.T.copy(), freqs=fb.freqs, tsamp=1e-3, tstart=60000.0)
    offline = search(both, plan(fb, dms=DMS), losses=Losses([]), device="cpu", **OPTIONS)
    found = []
    with StreamSearch(fb.observation, plan(fb, dms=DMS), device="cuda", resident=True, **OPTIONS) as stream:
        stream.warm()
        for at in range(0, len(x), 500):
            rows = live[1].add(at, cupy.asarray(x[at : at + 500]))
            cupy.cuda.runtime.deviceSynchronize()
            found += stream.feed(at, rows, np.empty((0, 4), np.int64))
        found += stream.finish()
    same_events(found, offline)
    names = ("time", "dm", "snr", "width")
    for one in found:
        for values in zip(*(one.columns[name] for name in names), strict=True):
            live[1].match(*map(float, values))
    rows = live[1].due(np.inf)
    assert len(rows) == 4
    assert all(row.found for row in rows)


def test_a_campaign_counts_the_same_on_a_gpu():
    receiver = Noise(nchan=64, fch1=1500, foff=-4, tsamp=1e-3, duration=20)
    options = {"n": 24, "snr": (7, 8, 20), "dm": (60, 340), "width": (4e-3, 1e-2), "seed": 3}
    cpu, gpu = (completeness(receiver, np.arange(0, 400, 4.0), device=d, **options) for d in ("cpu", "cuda"))
    assert len(cpu) == 24
    assert cpu.trials.tobytes() == gpu.trials.tobytes()
    assert cpu.false.tobytes() == gpu.false.tobytes()


# ---------------------------------------------------------------- the whole pipeline


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_voltages(tmp_path_factory.mktemp("voltages") / "v.dada")


@pytest.mark.parametrize("device", ["cuda", "cuda:all"])
def test_voltages_to_candidates(file, tmp_path, device, monkeypatch):
    """The table and the samples of candidates are those of the CPU; packets go from the ring itself."""
    monkeypatch.setattr(beams, "HISTORY_BYTES", 2**20)
    cpu = run(file, tmp_path / "cpu", "cpu")
    same_runs(cpu, run(file, tmp_path / "gpu", device), tmp_path)


FAULT = """
import sys
from pathlib import Path

import cupy

from skysieve.core.errors import DeviceLost
from skysieve.dedispersion.stream.channelise.cuda_channeliser import DeviceChanneliser
from tests.kernels.test_stream_chain import run

begin, calls = DeviceChanneliser.begin, []


def broken(self, loan):
    calls.append(loan)
    if len(calls) == 22:
        cupy.RawKernel('extern "C" __global__ void fault() { asm("trap;"); }', "fault")((1,), (1,), ())
    begin(self, loan)


DeviceChanneliser.begin = broken
try:
    run(Path(sys.argv[1]), Path(sys.argv[2]), "cuda:0", cutouts=False)
except DeviceLost as error:
    print(f"ended: {error}", flush=True)
    sys.exit(7)
"""


def test_a_gpu_that_fails_ends_the_run_with_its_name(file, tmp_path):
    """In a separate process, because the GPU cannot be used after the fault: the table has what was announced."""
    done = subprocess.run(
        [sys.executable, "-c", FAULT, str(file), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert "ended: cuda:0 (" in done.stdout, done.stderr[-2000:]
    assert "failed and does not respond: " in done.stdout
    assert done.returncode == 7
    with open(tmp_path / "candidates.csv", encoding="ascii") as table:
        rows = list(csv.DictReader(table))
    assert any(abs(float(r["time"]) - 1.0) < 0.02 for r in rows)
