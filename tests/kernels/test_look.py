"""Sums of cut-outs for the vetting of candidates, on the host shim and on a GPU: the CPU's sums except for rounding."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.tasks import TaskPool
from skysieve.dedispersion import Filterbank, fake, search, write_fil
from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.contract import Table
from skysieve.dedispersion.cuda import engine as cuda
from skysieve.dedispersion.single_pulse import cpu_vetting, vetting
from skysieve.dedispersion.single_pulse.cuda import launch
from skysieve.dedispersion.single_pulse.cuda.launch import DeviceSums
from skysieve.dedispersion.single_pulse.vetting import Arrivals, CutOut, sums_on_host
from tests.kernels.devices import one_order

CHANNELS, SIDE, WIDTH = 75, 20, 6
EDGES = np.array([0, 33, 40, CHANNELS])  # a sub-band of more channels than a warp has lanes


class Held:
    """Samples with a mask of those that do not count, in the form of `vetting.Samples`."""

    def __init__(self, dtype, by_channel, seed=1):
        rng = np.random.default_rng(seed)
        self.rows = rng.normal(100, 10, (2000, CHANNELS)).astype(dtype)
        self.rows[:, 3] = 7  # constant: it is left out
        self.gone = np.zeros((1, CHANNELS), bool) if by_channel else rng.random(self.rows.shape) < 0.1
        self.gone[..., 5] = True
        if dtype == np.float32:
            self.rows[rng.random(self.rows.shape) < 0.05] = np.nan
        self.calls = 0

    def __call__(self, start, stop, memory=None):
        self.calls += 1
        rows = self.rows[start:stop]
        if memory is not None and rows.dtype == np.uint8:
            room = memory(rows.size)[: rows.size].reshape(rows.shape)
            room[:] = rows
            rows = room
        return rows, (self.gone if len(self.gone) == 1 else self.gone[start:stop]).copy()


def by_cpu(cut):
    """The sums of a cut-out on the CPU."""
    return sums_on_host(cut, cpu_vetting.channel_sums, cpu_vetting.band_series).of(cut)


def copies(sums, cuts):
    """The sums of a batch of cut-outs, of which ``cuts`` begins with those of the batch."""
    return [tuple(x.copy() for x in sums.of(cuts[i], i)) for i in range(len(sums.starts))]


@pytest.mark.few
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize(("dtype", "by_channel"), [(np.uint8, True), (np.uint8, False), (np.float32, True)])
@pytest.mark.parametrize("size", [1, 5])
def test_sums_are_the_cpus(runtime, monkeypatch, dtype, by_channel, size, slices):
    """Four candidates, two at a time, or one after the other in several slices."""
    held, rng = Held(dtype, by_channel), np.random.default_rng(size)
    late = [np.sort(rng.integers(0, most, CHANNELS)) for most in (40, 1, 70, 20)]

    def cut_outs():
        return [
            CutOut(held, Arrivals.of(delays, EDGES), EDGES, 150 + 7 * i, size, SIDE, WIDTH + i)
            for i, delays in enumerate(late)
        ]

    cuts = cut_outs()
    if slices > 1:
        monkeypatch.setattr(vetting, "SLICE", CHANNELS * size * (min(cut.count for cut in cuts) // slices + 1))
    sums = DeviceSums(runtime, np.dtype(dtype))
    monkeypatch.setattr(launch, "BATCH", 2 * max(sums._given(cut).nbytes(np.dtype(dtype).itemsize) for cut in cuts))
    expected = [by_cpu(cut) for cut in cut_outs()]
    held.calls = 0
    batches = []
    with TaskPool(2) as pool:
        for _ in range(2):  # the second time in memory that was used
            found = []
            cuts = cut_outs()
            for some in sums(cuts, pool):
                found += copies(some, cuts[len(found) :])
                batches.append(len(some.starts))
            for one, other in zip(found, expected, strict=True):
                for a, b in zip(one, other, strict=True):
                    assert a.shape == b.shape
                    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-11 * np.abs(b).max())
        assert held.calls == 2 * sum(1 if slices == 1 else 2 * cut.parts for cut in cut_outs())
        assert batches == 2 * ([2, 2] if slices == 1 else [1, 1, 1, 1])
        again, cuts = [], cut_outs()
        for some in sums(cuts, pool):
            again += copies(some, cuts[len(again) :])
    for one, other in zip(found, again, strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))  # in a fixed order
    assert found[0][0][3] == found[0][0][5] == 0
    assert sums.nbytes > 0
    sums.close()


@pytest.mark.few
@pytest.mark.parametrize("by_channel", [True, False])
@pytest.mark.parametrize("nchan", [CHANNELS, 64])
@pytest.mark.parametrize("samples", [vetting.SLICE, 100 * CHANNELS])
def test_rows_of_an_engine_are_not_read_again(runtime, monkeypatch, by_channel, nchan, samples):
    """All but the candidates that reach beyond its samples, of which the last has a slice of fewer."""
    monkeypatch.setattr(vetting, "SLICE", samples)
    edges = np.array([0, 33, 40, nchan])
    held = Held(np.uint8, by_channel)
    held.rows, held.gone = held.rows[:, :nchan], held.gone[:, :nchan]
    fb = Filterbank.from_array(held.rows.T, fch1=1500.0, foff=-1.0, tsamp=1e-3)
    some = [Table(np.zeros((1, nchan), np.int32))]
    engine = cuda.Engine(Cleaned(fb, None, 128), some, method="brute", capacity=1900, runtimes=[runtime])
    engine.load(48, 1900)
    delays = np.sort(np.random.default_rng(3).integers(0, 40, nchan))
    cuts = [CutOut(held, Arrivals.of(delays, edges), edges, at, size, SIDE, WIDTH) for at, size in (
        (48 + SIDE, 1), (47 + SIDE, 1), (301, 5), (1703, 3), (1900 - 26 - int(delays[-1]), 1)
    )]  # fmt: skip
    expected = [by_cpu(cut) for cut in cuts]
    sums, held.calls = DeviceSums(runtime, np.dtype(np.uint8), engine.workers[0].store), 0

    def hidden(start, stop):
        return held.gone if by_channel else held.gone[start:stop]

    with TaskPool(2) as pool:
        (some,) = sums(cuts, pool, hidden=hidden)
    found = copies(some, cuts)
    assert held.calls == 1
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-11 * np.abs(b).max())
    sums.close()
    engine.close()


@pytest.mark.slow
@one_order
def test_samples_that_are_gone(runtime):
    """They cost that candidate, not the others of the batch."""
    some, held = Arrivals.of(np.zeros(CHANNELS, np.int64), EDGES), Held(np.uint8, True)
    cuts = [CutOut(samples, some, EDGES, 150, 1, SIDE, WIDTH) for samples in (lambda *_: None, held)]
    expected = by_cpu(cuts[1])
    sums = DeviceSums(runtime, np.dtype(np.uint8))
    with TaskPool(1) as pool:
        (found,) = sums(cuts, pool)
    assert found.starts[0] == -1
    np.testing.assert_allclose(found.of(cuts[1], 1)[2], expected[2], rtol=1e-12, atol=1e-9)
    sums.close()


@one_order
def test_too_little_memory_is_an_error(runtime, monkeypatch):
    class Full(Exception):
        pass

    def full(*_):
        raise Full

    monkeypatch.setattr(launch, "memory_errors", lambda runtime: (Full,))
    monkeypatch.setattr(type(runtime.device), "free_memory", 1000)
    sums = DeviceSums(runtime, np.dtype(np.uint8))
    monkeypatch.setattr(sums, "_sums", full)
    cut = CutOut(Held(np.uint8, True), Arrivals.of(np.zeros(CHANNELS, np.int64), EDGES), EDGES, 150, 1, SIDE, WIDTH)
    with TaskPool(1) as pool, pytest.raises(MemoryBudgetError, match="the samples around candidates"):
        next(sums([cut], pool))
    sums.close()


@pytest.mark.gpu
def test_a_search_vetoes_on_a_gpu_what_it_vetoes_on_the_cpu(tmp_path):
    """Pulses and impulses, of a file and in memory; the same candidates remain, several at a time."""
    band = {"nchan": 128, "tsamp": 1e-3, "fch1": 1500.0, "foff": -2.0}
    data = fake(duration=40, dm=80, times=list(np.arange(1, 39, 2.0)), width=6e-3, snr=25, seed=2, **band)
    x = data.read().copy()
    for at in range(2000, 39000, 4000):
        x[:, at : at + 5] += 9
    path = tmp_path / "a.fil"
    write_fil(path, type(data).from_array(x, freqs=data.freqs, tsamp=data.tsamp))
    expected = search(path, np.arange(0, 200, 2.0), device="cpu", clean=False, veto=True)
    assert expected.vetoed
    assert len(expected) >= 19
    for given in (path, type(data).from_array(x, freqs=data.freqs, tsamp=data.tsamp)):
        found = search(given, np.arange(0, 200, 2.0), device="cuda", clean=False, veto=True)
        assert found.vetoed == expected.vetoed
        for name in ("snr", "dm", "time", "width"):
            assert (getattr(found, name) == getattr(expected, name)).all(), name
