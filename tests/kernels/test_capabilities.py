"""Kernels and builds are chosen by what a GPU can do: one newer than all known ones gets the newest that it can run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from skysieve.core.device import Device
from skysieve.fstat.cuda.windows import SLOW_DOUBLES, changes_of
from skysieve.periodogram.cuda.sinusoid.methods import has_matrix_units
from skysieve.sphere.cuda.ring.sums import sum_build


def card(capability, double_ratio):
    return Device("cuda", 0, "a GPU", 2**30, capability, double_ratio=double_ratio)


@pytest.mark.parametrize(
    ("capability", "ratio", "matrix"),
    [
        ((7, 0), 2, False),
        ((7, 5), 32, False),
        ((8, 0), 2, True),
        ((8, 6), 64, False),
        ((9, 0), 2, True),
        ((10, 0), 2, True),
        ((10, 3), 64, False),
        ((12, 1), 64, False),
        ((13, 0), 2, True),
        ((13, 0), 64, False),
    ],
)
def test_float64_matrix_units_of_the_periodogram(capability, ratio, matrix):
    assert has_matrix_units(card(capability, ratio)) is matrix


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (12, 1), (13, 0)])
def test_tensor_cores_of_the_sphere(capability):
    runtime = SimpleNamespace(device=card(capability, 64))
    found = sum_build(runtime, SimpleNamespace(dtype=np.dtype(np.float32), spin=0)).file
    assert found == ("ring/band.cu" if capability < (8, 0) else "ring/tensor.cu")


def test_transforms_of_the_f_statistic():
    """On GPUs with slow float64, transforms replace sums of longer windows only."""
    count, columns = 1000, 400
    first, length = np.arange(count), np.geomspace(1, count, columns).astype(np.int64)
    host = SimpleNamespace(n=count, group=np.zeros(count, np.int64), first=first, length=length[None])

    def change(device):
        return next(iter(changes_of(host, np.dtype(np.float64), device, None)))[-1]

    known, new, slow = (change(card(*of)) for of in (((9, 0), 2), ((13, 0), 2), ((12, 1), 64)))
    assert SLOW_DOUBLES > 1
    assert 0 < new == known < slow
