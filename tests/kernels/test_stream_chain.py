"""The live pipeline with GPU kernels on the host: voltages to candidates; GPUs that fail."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from skysieve.core.device import Device
from skysieve.core.errors import DeviceLost
from skysieve.dedispersion.cuda import engine as cuda
from skysieve.dedispersion.stream import beams
from skysieve.dedispersion.stream.intake import FileFeed, Intake
from skysieve.dedispersion.stream.pipeline import Pipeline
from skysieve.dedispersion.stream.receive import page_lock as pagelock
from skysieve.dedispersion.stream.receive.dada_file import DadaFile
from skysieve.dedispersion.stream.receive.packets import SkysieveParser
from skysieve.dedispersion.stream.records import Options
from skysieve.dedispersion.stream.report.sink import Sink
from skysieve.dedispersion.stream.search import search as search_module
from tests.dedispersion.dada import write_dada
from tests.kernels.shim import ShimRuntime, shim_runtime

SEARCH = {"clean": True, "threshold": 7.0, "block": 0.6, "threads": 1, "widths": [1, 4, 16]}
HOW = {"channels": 4, "integrate": 4, "calibrate": 0.2}
NSUB, TSAMP = 4, 3.2e-5
PULSES = (1.0, 2.0, 3.2, 4.4)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """See `write_voltages`."""
    return write_voltages(tmp_path_factory.mktemp("voltages") / "v.dada")


def write_voltages(path):
    """5.4 s of 8+8 bit voltages of 4 subbands with four bursts of DM 60."""
    rng = np.random.default_rng(1)
    n = round(5.4 / TSAMP)
    t = np.arange(n) * TSAMP
    delay = ((1400.0 - np.arange(NSUB) / 32) ** -2 - 1400.0**-2) * 60 / 2.41e-4
    near = np.min([np.abs(t[:, None] - at - delay) for at in PULSES], axis=0)
    sigma = np.where(near < 6e-3, 22.0, 12.0)
    x = np.clip(np.rint(rng.standard_normal((n, NSUB, 2)) * sigma[..., None]), -128, 127).astype(np.int8)
    write_dada(path, x[:, None], tsamp=TSAMP, fch1=1400.0, foff=-1 / 32, tstart=60000.0)
    return path


def run(file, folder, device="auto", **options):
    """Run the pipeline on a file; return the rows of the table, the messages and the summary."""
    said, search = [], {**SEARCH, "device": device}
    how = Options(plan=np.arange(0, 120, 60.0), search=search, channelise=HOW, gulp=0.2, policy="block", **options)
    intake = Intake(SkysieveParser(), how, say=said.append)
    sink = Sink(folder, pictures=False, raw=True, say=said.append)
    summary = Pipeline(intake, FileFeed(intake, DadaFile(file), 480), sink, nice=0).run()
    with open(folder / "candidates.csv", encoding="ascii") as table:
        rows = list(csv.DictReader(table))
    return rows, said, summary


class Fragile(ShimRuntime):
    """A GPU that fails at a launch of ``channelise`` and does not respond any more."""

    def __init__(self, number, after=10**9):
        super().__init__()
        self.device = Device("cuda", number, "host shim", 2**30, (9, 0), 2, 227 * 1024)
        self.left = after

    def module(self, package, name, build=None, defines=None):
        made, runtime = super().module(package, name, build, defines), self

        class Watched:
            attributes = made.attributes

            def launch(self, kernel, *args, **options):
                runtime.left -= kernel == "turn4"
                runtime.synchronize()
                made.launch(kernel, *args, **options)

        return Watched()

    def synchronize(self):
        if self.left < 0:
            raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure")


@pytest.fixture
def on_gpus(monkeypatch):
    """Make segments run on some shim runtimes."""
    shim_runtime()  # skips without g++

    def begin(runtimes):
        def engine(source, tables, *, method, device, capacity, **_):
            left = [r for r in runtimes if r.left >= 0]
            return cuda.Engine(source, tables, method=method, capacity=capacity, runtimes=left)

        monkeypatch.setattr(search_module, "make_engine", engine)
        monkeypatch.setattr(search_module, "find_target", lambda device, memory: find("cpu", memory))
        monkeypatch.setattr(beams, "uses_gpus", lambda device: True)

    find = search_module.find_target
    return begin


def without(rows, *names):
    gone = {"latency", *names}
    return sorted(tuple(v for k, v in r.items() if k not in gone) for r in rows)


def same_runs(cpu, gpu, folder):
    """Tables and samples of candidates, in ``folder / "cpu"`` and ``"gpu"``."""
    assert len(cpu[0]) >= 4
    assert without(gpu[0]) == without(cpu[0])
    assert gpu[2]["stages"]["channelise"] > 0
    assert gpu[2]["stages"]["unpack"] == 0
    cuts = sorted(p.name for p in (folder / "cpu").rglob("*.fil"))
    assert cuts == sorted(p.name for p in (folder / "gpu").rglob("*.fil"))
    assert len(cuts) >= 4
    for name in cuts:
        a, b = (next((folder / where).rglob(name)).read_bytes() for where in ("cpu", "gpu"))
        assert a == b


class Driver:
    """A driver that locks pages, or refuses to."""

    def __init__(self, refuses):
        self.refuses, self.locked, self.asked = refuses, {}, 0

    def hostRegister(self, address, size, flags):
        self.asked += 1
        if self.refuses:
            raise RuntimeError("cudaErrorMemoryAllocation: out of memory")
        self.locked[address] = size

    def hostUnregister(self, address):
        del self.locked[address]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_voltages_to_candidates_on_gpus(file, tmp_path, on_gpus, monkeypatch, count):
    """The table and the samples of candidates are those of the CPU, also if memory cannot be page-locked."""
    monkeypatch.setattr(beams, "HISTORY_BYTES", 2**20)
    cpu = run(file, tmp_path / "cpu", "cpu")
    driver = Driver(refuses=count == 1)
    monkeypatch.setattr(pagelock, "driver", lambda runtime: driver)
    on_gpus([Fragile(i) for i in range(count)])
    gpu = run(file, tmp_path / "gpu")
    same_runs(cpu, gpu, tmp_path)
    assert driver.asked == 1
    assert not driver.locked
    messages = [line for line in gpu[1] if "page-locked" in line]
    assert len(messages) == (count == 1)
    assert all("cudaErrorMemoryAllocation" in line for line in messages)


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("which", [0, 1])
def test_one_of_two_gpus_fails(file, tmp_path, on_gpus, which):
    """The other one continues with the next packets; pulses after that are found, and the gap is reported."""
    on_gpus([Fragile(i, 2 if i == which else 10**9) for i in range(2)])
    rows, said, summary = run(file, tmp_path, cutouts=False)
    assert summary["counts"]["gpus_lost"] == 1
    messages = [line for line in said if "does not respond" in line]
    assert len(messages) == 1
    assert f"cuda:{which} (host shim) failed" in messages[0]
    assert f"the search continues on cuda:{1 - which} (host shim)" in messages[0]
    found = {p for p in PULSES for r in rows if abs(float(r["time"]) - p) < 0.02 and float(r["snr"]) > 10}
    assert {PULSES[0], PULSES[-1]} <= found
    assert summary["counts"]["lost"] == 0


@pytest.mark.slow
def test_the_last_gpu_fails(file, tmp_path, on_gpus):
    """The run ends with the reason; what was announced is in the table."""
    on_gpus([Fragile(0, 5)])
    with pytest.raises(DeviceLost, match=r"cuda:0 \(host shim\) failed and does not respond: CUDA_ERROR_LAUNCH_FAILED"):
        run(file, tmp_path, cutouts=False)
    with open(tmp_path / "candidates.csv", encoding="ascii") as table:
        rows = list(csv.DictReader(table))
    assert any(abs(float(r["time"]) - PULSES[0]) < 0.02 for r in rows)
