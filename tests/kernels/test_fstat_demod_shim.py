"""Demodulation's CUDA kernel on the host, against the CPU's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from skysieve.fstat.cpu.demod import DTERMS, NEAR, projections
from skysieve.fstat.cuda.demod import launch
from skysieve.fstat.cuda.demod.launch import Projector
from tests.kernels.shim import shim_runtime


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (33, 65), (70, 31)])
def test_projections_are_those_of_the_cpu(n, m, order):
    rng = np.random.default_rng(n)
    data = (rng.standard_normal((n, 200)) + 1j * rng.standard_normal((n, 200))).astype(np.complex64)
    delay, rate = np.sort(rng.uniform(-1e7, 1e7, n)), 1 + 1e-4 * rng.standard_normal(n)
    a, b = rng.standard_normal((2, n)).astype(np.float32)
    f0, f1, f2 = 0.5 + 1e-2 * rng.random(m), 1e-10 * rng.standard_normal(m), 1e-18 * rng.standard_normal(m)
    f0[0] = 900 / 1800  # at a bin
    expected, failed = projections(data, 800, delay, rate, 1800.0, f0, f1, f2)
    projector = Projector(data, 800, delay, rate, a, b, 1800.0, runtime=shim_runtime(order))
    Fa, Fb, mine = projector.project(f0, f1, f2)
    assert mine == failed == -1
    scale = np.abs(data).max()
    np.testing.assert_allclose(Fa, a * expected, rtol=0, atol=2e-5 * scale)
    np.testing.assert_allclose(Fb, b * expected, rtol=0, atol=2e-5 * scale)
    f0[m // 2] = 1
    assert projector.project(f0, f1, f2)[2] == projections(data, 800, delay, rate, 1800.0, f0, f1, f2)[1] == m // 2
    projector.close()


@pytest.mark.parametrize(
    ("name", "expected"), [("TILE", launch.TILE), ("ROWS", launch.ROWS), ("DTERMS", DTERMS), ("NEAR", NEAR)]
)
def test_constants_are_those_of_the_kernel(name, expected):
    text = (Path(launch.__file__).parent / "demod.cu").read_text()
    found = re.search(rf"^#define {name} (\S+)", text, re.MULTILINE)
    assert found is not None
    assert float(found[1].rstrip("f")) == expected
