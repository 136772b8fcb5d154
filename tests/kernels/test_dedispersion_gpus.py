"""De-dispersion on several GPUs, simulated by host shims: order of work, errors, release of resources."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from skysieve.core.errors import MemoryBudgetError
from skysieve.dedispersion import Filterbank, write_fil
from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.contract import Detection, Table
from skysieve.dedispersion.cpu import engine as cpu
from skysieve.dedispersion.cuda import engine as cuda
from tests.kernels.shim import shim_runtime
from tests.kernels.test_dedispersion import bank, table


def test_an_error_on_one_gpu_closes_the_engines_of_both(monkeypatch):
    closed = []

    class Half:
        def __init__(self, runtime, *args):
            if len(args[1][0].delays) == 2:  # the first GPU gets two of the three DMs
                self.runtime = runtime
                return
            raise MemoryBudgetError("rows", 2, 1)

        def close(self):
            closed.append(self)

    monkeypatch.setattr(cuda, "Worker", Half)
    fb = bank("u1", 4, 100)
    two, tables = [shim_runtime(), shim_runtime()], [table(fb, [0.0, 1.0, 2.0])]
    with pytest.raises(MemoryBudgetError):
        cuda.Engine(Cleaned(fb, None, 64), tables, method="brute", capacity=100, runtimes=two)
    assert [worker.runtime for worker in closed] == two[:1]


def test_the_first_sums_of_every_gpu_start_before_its_thread(monkeypatch):
    fb = bank("u1", 4, 500)
    t, two = table(fb, np.linspace(0, 0.2, 6)), [shim_runtime(), shim_runtime()]
    what = Detection(250, (1, 2), 2.0, "robust", False, 500 - t.delays.max(axis=1).astype(np.int64))
    engine = cuda.Engine(Cleaned(fb, None, 250), [t], method="brute", capacity=500, runtimes=two)
    engine.load(0, 500)
    each, seen = engine._each, []

    def watched(work):
        seen.append([[launch[0] for launch in r.launches if launch[0] != "delays"] for r in two])
        return each(work)

    monkeypatch.setattr(engine, "_each", watched)
    found = engine.search(0, 0, 500 - t.maxshift, 0, 500, what)
    engine.close()
    assert [names[-1] for names in seen[0]] == 2 * [engine.describe()["kernels"][0]]
    judge = cpu.Engine(Cleaned(fb, None, 250), [t], method="brute", capacity=500, threads=1)
    judge.load(0, 500)
    assert np.array_equal(found, judge.search(0, 0, 500 - t.maxshift, 0, 500, what))
    judge.close()


def test_an_error_of_a_first_sum_waits_for_the_other_gpus(monkeypatch):
    fb = bank("u1", 3, 400)
    t, waited = table(fb, [0.0, 0.1]), []
    what = Detection(200, (1, 2), 0.5, "robust", True, np.array([400, 399]))
    engine = cuda.Engine(
        Cleaned(fb, None, 200), [t], method="brute", capacity=400, runtimes=[shim_runtime(), shim_runtime()]
    )
    engine.load(0, 400)

    def refuse(*args):
        raise MemoryBudgetError("sums", 2, 1)

    monkeypatch.setattr(engine.workers[1], "_launch", refuse)
    for i, worker in enumerate(engine.workers):
        monkeypatch.setattr(worker.store, "wait", lambda i=i: waited.append(i))
    with pytest.raises(MemoryBudgetError):
        engine.search(0, 0, 400 - t.maxshift, 0, 400, what)
    assert waited == [0, 1]
    engine.close()


def test_an_error_of_one_gpu_waits_for_the_others():
    engine = object.__new__(cuda.Engine)
    engine.runtimes = [shim_runtime(), shim_runtime()]
    ended = []

    def work(i):
        if i == 0:
            raise MemoryBudgetError("rows", 2, 1)
        time.sleep(0.05)
        ended.append(i)

    with ThreadPoolExecutor(2) as pool:
        engine._pool = pool
        with pytest.raises(MemoryBudgetError):
            engine._each(work)
        assert ended == [1]


@pytest.mark.parametrize("bits", [2, 8])
def test_pieces_are_read_while_others_are_copied(tmp_path, monkeypatch, bits):
    """Many pieces, an error in the reading thread, and a load after it; results are the CPU's, bit for bit."""
    monkeypatch.setattr(cuda, "READ", 4096)
    x = np.random.default_rng(5).integers(0, 2**bits, (16, 3000)).astype(np.uint8)
    path = tmp_path / "a.fil"
    write_fil(path, Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3, nbits=bits))
    table = Table(np.arange(48, dtype=np.int32).reshape(3, 16))
    expected = np.array([sum(x[c, n : n + 2900].astype(np.uint32) for c, n in enumerate(d)) for d in table.delays])
    with Filterbank.open(path) as fb:
        source = Cleaned(fb, None, 128)
        made = cuda.Engine(source, [table], method="brute", capacity=3000, runtimes=[shim_runtime(sm=(7, 5))])
        reads = []
        read = made._read

        def failing(start, count, room):
            reads.append(start)
            if len(reads) == 5:
                raise OSError("the disk is gone")
            return read(start, count, room)

        made._read = failing
        with pytest.raises(OSError, match="the disk is gone"):
            made.load(0, 3000)
        made.load(0, 3000)
        assert len(reads) > 10
        out = np.zeros((3, 2900), np.uint32)
        made.sums(0, 0, 2900, out)
        made.close()
    assert np.array_equal(out, expected)
