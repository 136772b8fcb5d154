"""Demodulation's CUDA kernel on the host shim, against the CPU's kernel."""

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
@pytest.mark.parametrize(("dtype", "tolerance"), [("complex64", 2e-5), ("complex128", 2e-8)])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (33, 65), (70, 31)])
def test_projections_are_those_of_the_cpu(n, m, dtype, tolerance, order):
    # float64: phases are up to 5e6 cycles, whose rounding is 1e-9 cycles in each of a few operations
    rng = np.random.default_rng(n)
    data = (rng.standard_normal((n, 200)) + 1j * rng.standard_normal((n, 200))).astype(dtype)
    delay, rate = np.sort(rng.uniform(-1e7, 1e7, n)), 1 + 1e-4 * rng.standard_normal(n)
    a, b = rng.standard_normal((2, n)).astype(data.real.dtype)
    f0, f1, f2 = 0.5 + 1e-2 * rng.random(m), 1e-10 * rng.standard_normal(m), 1e-18 * rng.standard_normal(m)
    f0[0] = 900 / 1800  # at a bin
    expected, failed = projections(data, 800, delay, rate, 1800.0, f0, f1, f2)
    projector = Projector(data, 800, delay, rate, a, b, 1800.0, runtime=shim_runtime(order))
    Fa, Fb, mine = projector.project(f0, f1, f2)
    assert mine == failed == -1
    scale = np.abs(data).max()
    np.testing.assert_allclose(Fa, a * expected, rtol=0, atol=tolerance * scale)
    assert Fa.dtype == Fb.dtype == projector.zeros((2, n)).dtype == data.dtype
    assert not projector.zeros((2, n)).any()
    np.testing.assert_allclose(Fb, b * expected, rtol=0, atol=tolerance * scale)
    f0[m // 2] = 1
    assert projector.project(f0, f1, f2)[2] == projections(data, 800, delay, rate, 1800.0, f0, f1, f2)[1] == m // 2
    projector.close()


@pytest.mark.parametrize(("name", "expected"), [("TILE", launch.TILE), ("ROWS", launch.ROWS), ("DTERMS", DTERMS)])
def test_constants_are_those_of_the_kernel(name, expected):
    text = (Path(launch.__file__).parent / "demod.cu").read_text()
    found = re.search(rf"^#define {name} (\S+)", text, re.MULTILINE)
    assert found is not None
    assert int(found[1]) == expected


def test_distances_to_a_bin_are_those_of_the_kernel():
    text = (Path(launch.__file__).parent / "demod.cu").read_text()
    found = re.search(r"^#define NEAR \(sizeof\(T\) == 4 \? \(T\)(\S+) : \(T\)(\S+)\)", text, re.MULTILINE)
    assert found is not None
    assert {"float32": float(found[1]), "float64": float(found[2])} == NEAR
