"""A stream searched by the CUDA engine, on the host shim and on a GPU: the events of the CPU's search of the file."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.dedispersion import Filterbank, Losses, fake, plan, search
from skysieve.dedispersion.cuda import engine as cuda
from skysieve.dedispersion.stream import StreamCandidates, StreamSearch
from skysieve.dedispersion.stream.search import search as module
from tests.kernels.devices import one_order

DMS = np.arange(0, 201, 40.0)


@pytest.mark.slow
@pytest.mark.few
@one_order
@pytest.mark.parametrize("float_samples", [False, True])
@pytest.mark.parametrize("block", [1.1])
def test_samples_that_a_gpu_reads_again_are_stored(runtime, monkeypatch, float_samples, block):
    """Overlaps that are no multiple of the engine's words, in pieces that make room for themselves."""
    made = fake(nchan=16, duration=6, tsamp=1e-3, fch1=1500, foff=-16, dm=100, width=8e-3, snr=25, seed=5, times=[2.0])
    x = made.read().astype(np.float32) if float_samples else made.read()
    fb = Filterbank.from_array(x, freqs=made.freqs, tsamp=1e-3, tstart=60000.0)
    p, options = plan(fb, dms=DMS), {"threshold": 6.0, "block": block, "widths": [1, 8, 30]}
    offline = search(fb, p, device="cpu", **options)

    def engine(source, tables, *, method, capacity, **_):
        return cuda.Engine(source, tables, method=method, capacity=capacity, runtimes=[runtime])

    monkeypatch.setattr(module, "make_engine", engine)
    found = []
    with StreamSearch(fb.observation, p, device="cpu", dtype=x.dtype, **options) as live:
        for at in range(0, x.shape[1], 1024):
            found += live.feed(at, x.T[at : at + 1024])
        found += live.finish()
        live.execute([(0, np.zeros_like(x.T[:3000]))])  # other samples of the same numbers
        again = live.execute((at, x.T[at : at + 700]) for at in range(0, x.shape[1], 700))
    assert np.array_equal(again.events.snr, StreamCandidates.join(found).events.snr)
    events = {k: np.concatenate([getattr(f.events, k) for f in found]) for k in offline.events.__dataclass_fields__}
    order = np.lexsort((events["width_samples"], events["time"], events["dm_index"]))
    assert len(order) == len(offline.events) > 0
    for name, column in events.items():
        assert np.array_equal(column[order], getattr(offline.events, name)), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "first", "gulp", "joins"),
    [("forwards", 0, 1024, 0), ("backwards", 700, 331, 0), ("forwards", 1095, 400, 1500), ("backwards", 0, 600, 1500)]
    + [
        pytest.param("gpu", *case, marks=pytest.mark.gpu)
        for case in ((0, 1024, 0), (700, 331, 0), (1095, 400, 1500), (0, 600, 1500))
    ],
    indirect=["runtime"],
)
def test_samples_that_stay_on_a_gpu(runtime, monkeypatch, first, gulp, joins):
    """Lost packets, a lost stretch, late channels: the GPU fills and searches them, and cut-outs are copied back."""
    made = fake(nchan=16, duration=5, tsamp=1e-3, fch1=1500, foff=-16, dm=100, width=8e-3, snr=25, seed=5, times=[3.4])
    x = made.read()
    fb = Filterbank.from_array(x, freqs=made.freqs, tsamp=1e-3, tstart=60000.0)
    p, options = plan(fb, dms=DMS[1:4]), {"threshold": 6.0, "block": 1.1, "widths": [1, 8, 30], "clean": False}
    gone = np.flatnonzero(np.random.default_rng(1).random(500) < 0.1) * 10
    some = np.stack([gone, gone + 10, gone // 10 % 3, gone // 10 % 3 + 9], axis=1)
    before = some[(some[:, 0] < 2000) & ((some[:, 0] > joins) | (some[:, 2] >= 4))]
    late = [[0, joins, 0, 4]] if joins else np.empty((0, 4), int)
    lost = [late, before, [[2000, 2300, 0, 16]], some[some[:, 0] >= 2300]]
    losses = Losses(np.concatenate(lost), first)
    offline = search(fb, p, losses=losses, device="cpu", **options)
    runtimes = [runtime]

    def engine(source, tables, *, method, capacity, **_):
        return cuda.Engine(source, tables, method=method, capacity=capacity, runtimes=runtimes)

    monkeypatch.setattr(module, "make_engine", engine)
    found = []
    with StreamSearch(fb.observation, p, device="cpu", resident=True, history=900, **options) as live:
        live.warm()
        for at in range(first, x.shape[1], gulp):
            rows = np.ascontiguousarray(x.T[at : at + gulp])
            rects = losses.within(at, at + len(rows))
            rects[:, 3] = np.minimum(rects[:, 3], 16)
            found += live.feed(at, rows, rects)
            low, held = live.recent(at - 300, at + len(rows))
            true = np.ones(held.shape, bool)
            for a, b, c, d in losses.within(low, low + len(held)):
                true[a - low : b - low, c : min(d, 16)] = False
            if joins:  # hidden: a first block with too few samples, channels until their level is known
                true[: max(0, 1100 - low) if first else 0] = False
                true[: max(0, 2200 - low), :4] = False
            if at >= 2200 or not joins:  # nothing is returned before the first level is known
                assert len(held) >= min(300, at - first)
            assert np.array_equal(held[true], x.T[low : low + len(held)][true])
        found += live.finish()
    assert any(kernel == "fill" and shape[0] > 1 for kernel, shape, *_ in runtimes[0].launches)
    events = {k: np.concatenate([getattr(f.events, k) for f in found]) for k in offline.events.__dataclass_fields__}
    order_of = np.lexsort((events["width_samples"], events["time"], events["dm_index"]))
    assert len(order_of) == len(offline.events) > 0
    for name, column in events.items():
        assert np.array_equal(column[order_of], getattr(offline.events, name)), name


def test_samples_stay_where_a_gpu_is():
    fb = fake(nchan=16, duration=3, tsamp=1e-3, fch1=1500, foff=-16)
    with pytest.raises(ValueError, match=r"resident=True: expected a GPU"):
        StreamSearch(fb.observation, DMS, device="cpu", resident=True, threads=1)
    with pytest.raises(ValueError, match=r"resident=True, dtype='float32'"):
        StreamSearch(fb.observation, DMS, device="cpu", resident=True, dtype="float32")
