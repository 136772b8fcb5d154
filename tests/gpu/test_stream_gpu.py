"""Streams searched on GPUs: the events and candidates of the CPU's search of a file."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.dedispersion import Filterbank, Losses, fake, plan, search
from skysieve.dedispersion.stream import StreamSearch

pytestmark = pytest.mark.gpu
DMS = np.arange(0, 201, 10.0)
OPTIONS = {"threshold": 5.0, "block": 1.1}


@pytest.fixture(scope="module")
def fb():
    made = fake(
        nchan=64, duration=12, tsamp=1e-3, fch1=1500, foff=-4, dm=100, width=8e-3, snr=20, seed=5,
        times=[0.3, 2.0, 3.302, 8.01],
    )  # fmt: skip
    return Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=1e-3, tstart=60000.0)


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
    events = {k: np.concatenate([getattr(f.events, k) for f in found]) for k in offline.events.__dataclass_fields__}
    order = np.lexsort((events["width_samples"], events["time"], events["dm_index"]))
    assert len(order) == len(offline.events) > 0
    for name, column in events.items():
        assert np.array_equal(column[order], getattr(offline.events, name)), name
    assert sum(map(len, found)) == len(offline)
