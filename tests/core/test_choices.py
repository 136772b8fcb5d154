"""The choices that all commands share are the names that the functions of the package accept; units of time."""

from __future__ import annotations

import astropy.units as u
import pytest

from skysieve.core import checks, command
from skysieve.periodogram.lightcurves.units import TimeUnit


def test_types_of_the_computation():
    assert {c.value for c in command.Dtype} == set(checks.DTYPES)


@pytest.mark.parametrize("unit", TimeUnit)
def test_units_of_time(unit):
    assert unit.hours == pytest.approx(u.Unit(unit.value).to(u.h), rel=1e-15)
    assert unit.days == pytest.approx(u.Unit(unit.value).to(u.d), rel=1e-15)
    assert u.Unit(unit.value).to_string("fits") == unit.value, "FITS tables of periods need a unit that FITS knows"
