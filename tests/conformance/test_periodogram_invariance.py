"""Changes of the data that must not change a Lomb-Scargle power, with random data by hypothesis, on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.conformance.test_periodogram import DEVICES, EVERY, SPAN, Curve, Grid, curve, single
from tests.conformance.tolerances import INVARIANCE, LOMB_SCARGLE
from tests.marks import slow

import skysieve

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("hypothesis", reason="the invariances are tried with hypothesis")

from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("ignore:.*1/T.*:UserWarning")


def cases(dtype: str) -> Any:
    """Number of points, seed, and (dtype, method)."""
    every = st.sampled_from([case for case in EVERY if case[0] == dtype])
    return st.tuples(st.integers(10, 60), st.integers(0, 10**6), every).filter(
        lambda case: case[0] >= LOMB_SCARGLE[case[2]].min_points
    )


DTYPES = pytest.mark.parametrize("dtype", ["float64", slow("float32")])

FEW = settings(max_examples=12, deadline=None, derandomize=True)
SMALL = Grid(0.02, 0.11 / SPAN, 400)
RASTER = 2.0**-24
"""Times that are whole multiples of this, shifted by whole days, stay exact in float64."""


def options_of(device: str, case: Any) -> dict[str, Any]:
    """The options of a case; the global NUFFT of finufft is a method of the CPU alone."""
    dtype, method = case[2]
    assume((device, method) != ("cuda", "finufft"))
    return {"dtype": dtype, "method": method, "device": device}


def powers(device: str, case: Any, change: Callable[[Curve], Curve]) -> tuple[Any, Any]:
    """The power before and after a change."""
    options = options_of(device, case) | SMALL.options
    before = curve(*case[:2])
    before = before._replace(t=np.round(before.t / RASTER) * RASTER)
    return single(before, **options).power, single(change(before), **options).power


def assert_same(device: str, case: Any, change: Callable[[Curve], Curve]) -> None:
    before, after = powers(device, case, change)
    assert np.max(np.abs(before - after)) <= INVARIANCE[case[2][0]]


@DTYPES
@pytest.mark.parametrize("device", DEVICES)
@FEW
@given(data=st.data(), days=st.integers(-(10**6), 3 * 10**6))
def test_time_shift(device: str, dtype: str, data: Any, days: int) -> None:
    """An exact shift leaves every phase difference as it was, but the origin may round."""
    assert_same(device, data.draw(cases(dtype)), lambda c: c._replace(t=c.t + days))


@DTYPES
@pytest.mark.parametrize("device", DEVICES)
@FEW
@given(data=st.data())
def test_time_reversal(device: str, dtype: str, data: Any) -> None:
    assert_same(device, data.draw(cases(dtype)), lambda c: c._replace(t=-c.t))


@DTYPES
@pytest.mark.parametrize("device", DEVICES)
@FEW
@given(data=st.data(), shift=st.floats(-100, 100))
def test_y_shift(device: str, dtype: str, data: Any, shift: float) -> None:
    """With a fitted mean; y + shift rounds by 1e-14 at most, far below the bound."""
    assert_same(device, data.draw(cases(dtype)), lambda c: c._replace(y=c.y + shift))


@DTYPES
@pytest.mark.parametrize("device", DEVICES)
@FEW
@given(data=st.data(), scale=st.floats(1e-6, 1e6), sign=st.sampled_from([-1, 1]))
def test_y_scale(device: str, dtype: str, data: Any, scale: float, sign: int) -> None:
    assert_same(device, data.draw(cases(dtype)), lambda c: c._replace(y=c.y * scale * sign))


@DTYPES
@pytest.mark.parametrize("device", DEVICES)
@FEW
@given(data=st.data(), scale=st.floats(1e-6, 1e6))
def test_dy_scale(device: str, dtype: str, data: Any, scale: float) -> None:
    assert_same(device, data.draw(cases(dtype)), lambda c: c._replace(dy=c.dy * scale))


@DTYPES
@pytest.mark.parametrize("device", DEVICES)
@FEW
@given(data=st.data(), factor=st.sampled_from([2.0**-30, 2.0**-3, 2.0, 2.0**40]))
def test_unit_of_time(device: str, dtype: str, data: Any, factor: float) -> None:
    """Times and frequencies in another unit: the same bits, as powers of two do not round."""
    case = data.draw(cases(dtype))
    options, c = options_of(device, case), curve(*case[:2])
    before = single(c, fmin=SMALL.fmin, fmax=SMALL.fmax, nf=SMALL.nf, **options)
    scaled = {"fmin": SMALL.fmin / factor, "fmax": SMALL.fmax / factor, "nf": SMALL.nf}
    after = skysieve.lombscargle(c.t * factor, c.y, c.dy, **scaled, **options)
    np.testing.assert_array_equal(before.power, after.power)
    assert after.period == before.period * factor


@DTYPES
@pytest.mark.parametrize("device", DEVICES)
@FEW
@given(data=st.data(), order=st.randoms(use_true_random=False))
def test_permutation(device: str, dtype: str, data: Any, order: Any) -> None:
    """Rows in any order: the same bits, since times are sorted and none is repeated."""
    case = data.draw(cases(dtype))
    rows = list(range(case[0]))
    order.shuffle(rows)
    before, after = powers(device, case, lambda c: Curve(*(a[rows] for a in c)))
    np.testing.assert_array_equal(before, after)
