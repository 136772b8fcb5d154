"""A stream searched by the CUDA engine on the host: the events of the CPU's search of the file."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.dedispersion import Filterbank, cuda, fake, plan, search
from skysieve.dedispersion.stream import StreamSearch
from skysieve.dedispersion.stream import search as module
from tests.kernels.shim import shim_runtime

DMS = np.arange(0, 201, 40.0)


@pytest.mark.parametrize("float_samples", [False, True])
@pytest.mark.parametrize("block", [1.1, 0.55])
def test_what_a_gpu_reads_again_is_held(monkeypatch, float_samples, block):
    """Overlaps that are no multiple of the engine's words, in pieces that make room for themselves."""
    made = fake(nchan=16, duration=6, tsamp=1e-3, fch1=1500, foff=-16, dm=100, width=8e-3, snr=25, seed=5, times=[2.0])
    x = made.read().astype(np.float32) if float_samples else made.read()
    fb = Filterbank.from_array(x, freqs=made.freqs, tsamp=1e-3, tstart=60000.0)
    p, options = plan(fb, dms=DMS), {"threshold": 6.0, "block": block, "widths": [1, 8, 30]}
    offline = search(fb, p, device="cpu", **options)

    def engine(source, tables, *, method, capacity, **_):
        return cuda.Engine(source, tables, method=method, capacity=capacity, runtimes=[shim_runtime()])

    monkeypatch.setattr(module, "make_engine", engine)
    found = []
    with StreamSearch(fb.observation, p, device="cpu", dtype=x.dtype, **options) as live:
        for at in range(0, x.shape[1], 1024):
            found += live.feed(at, x.T[at : at + 1024])
        found += live.finish()
    events = {k: np.concatenate([getattr(f.events, k) for f in found]) for k in offline.events.__dataclass_fields__}
    order = np.lexsort((events["width_samples"], events["time"], events["dm_index"]))
    assert len(order) == len(offline.events) > 0
    for name, column in events.items():
        assert np.array_equal(column[order], getattr(offline.events, name)), name
