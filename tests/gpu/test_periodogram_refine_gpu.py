"""Refined peaks on a GPU, at sizes that are too large for the shim: against brute force, and against the CPU's.

The kernels are tested in tests/kernels/test_periodogram_refine.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.batches import bands_engine, batch, default_spec, in_bands, run, same_maxima, shared_grid
from tests.truth.peaks import Exact, check_refined

from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.periodogram.cpu import engine as cpu
from skysieve.periodogram.cuda import engine as cuda

pytestmark = pytest.mark.gpu

F32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def runtime():
    return CudaRuntime(resolve("cuda:0")[0])


def check(runtime, source, grids, some=None, peaks=3, **spec):
    e = cuda.Engine(default_spec(**spec), runtime=runtime)
    out = run(e, source, grids, power=False)
    e.close()
    model = {k: v for k, v in spec.items() if k in ("fit_mean", "center_data")}
    for i in range(source.n_objects) if some is None else some:
        rows = slice(*source.offsets[i : i + 2])
        truth = Exact(source.t[rows], source.y[rows], source.dy[rows], terms=spec.get("nterms", 1), **model)
        assert check_refined(truth, grids.frequency(i), out, i, peaks) == peaks


@pytest.mark.parametrize("normalization", ["standard", "model"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float64), F32], ids=str)
@pytest.mark.parametrize("offset", [0.0, 60_000.0])
def test_one_sinusoid(runtime, dtype, offset, normalization):
    source = batch([8, 20, 165, 900, 1500], offset=offset)
    check(runtime, source, shared_grid(0.16, 1 / 1200, 6000), dtype=dtype, normalization=normalization)


def test_two_samples_a_peak(runtime):
    check(runtime, batch([40, 165, 3000]), shared_grid(0.16, 0.5 / 119.4, 1200))


@pytest.mark.parametrize("nterms", [2, 4, 7])
def test_several_terms(runtime, nterms):
    check(runtime, batch([60, 165, 900]), shared_grid(0.16, 1 / 1200, 1500), nterms=nterms)


@pytest.mark.parametrize("model", ["offsets", "flexible"])
def test_bands(runtime, model):
    from skysieve.periodogram.cpu.fourier.bands import MultibandEngine

    e, source = bands_engine(model, 5, runtime), in_bands(batch([100, 165, 800]), bands=5)
    grids, judge = shared_grid(0.16, 1 / 1200, 3000), MultibandEngine(e.spec)
    same_maxima(run(e, source, grids, power=False), run(judge, source, grids, power=False))
    e.close()
    judge.close()


@pytest.mark.parametrize("dtype", [np.dtype(np.float64), F32], ids=str)
def test_a_batch_against_the_cpu(runtime, dtype):
    source, grids = batch(np.random.default_rng(1).integers(20, 400, 200)), shared_grid(0.16, 1 / 1200, 20_000)
    e, judge = cuda.Engine(default_spec(dtype=dtype), runtime=runtime), cpu.Engine(default_spec())
    same_maxima(run(e, source, grids, power=False), run(judge, source, grids, power=False))
    e.close()
    judge.close()
