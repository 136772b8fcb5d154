"""Samples that lie on a GPU already, through de-dispersion's CUDA code on the host shim and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.gpu.staging import Copier, HostLane
from skysieve.dedispersion.contract import Resident
from skysieve.dedispersion.cuda import engine as cuda
from skysieve.dedispersion.cuda import rows as cuda_rows
from tests.kernels.devices import one_order
from tests.kernels.shim import shim_runtime
from tests.kernels.test_dedispersion import bank, table
from tests.truth import dedispersion as reference


@one_order
@pytest.mark.parametrize("kind", ["u1", "i2", "f4"])
@pytest.mark.parametrize("by_time", [False, True])
def test_samples_that_lie_on_the_device(runtime, kind, by_time):
    """Channels x samples or the other way round, in chunks: never through the host."""
    fb = bank(kind, 12, 400, order=[3, 0, 2, 5, 1, 4, 6, 7, 11, 9, 8, 10])
    x = runtime.xp.asarray(fb.readers[0].x)
    x = runtime.xp.asfortranarray(x) if by_time else x

    class There:
        dtype, maximum, nsamp, nchan = fb.dtype, fb.maximum, fb.nsamp, fb.nchan

        def resident(self, start, count):
            yield Resident(x[:, start : start + count].T, 0), fb.readers[0].order

        def fills(self, start, count):
            return iter(())

    t = table(fb, np.linspace(0, 2, 5))
    engine = cuda.Engine(There(), [t], method="brute", capacity=400, runtimes=[runtime])
    truth = reference.sums(fb.read(), t.delays)
    for first, stop in ((0, 250), (100, 400)):
        engine.load(first, stop)
        out = np.empty((5, stop - first - t.maxshift), engine.dtype)
        engine.sums(0, first, out.shape[1], out)
        most = 1e-4 if kind == "f4" else 0
        np.testing.assert_allclose(out, truth[:, first : first + out.shape[1]], rtol=0, atol=most)
    engine.close()


@pytest.mark.parametrize("begin", [0, 1])
def test_samples_on_the_device_are_read_as_words_only_where_words_lie(begin):
    """A view may begin at any byte, as after a file's header; a GPU cannot load words from such an address."""
    runtime, fb = shim_runtime(), bank("u1", 12, 256)
    rows = np.zeros(12 * 256 + 1, np.uint8)[begin : begin + 12 * 256].reshape(256, 12)
    rows[...] = fb.read().T
    lanes = [HostLane(runtime)]
    store = cuda_rows.Store(runtime, fb, [1], 256, {}, lanes, Copier(1))
    taken = []
    launch = store.bytes.launch
    store.bytes.launch = lambda kernel, *args, **options: (taken.append(kernel), launch(kernel, *args, **options))
    try:
        store.begin(0, 256)
        store.put(Resident(rows, 0), np.arange(12), 0)
    finally:
        del store.bytes.launch
    assert taken == ([] if begin else ["turn4"])
