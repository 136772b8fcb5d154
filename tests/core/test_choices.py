"""The choices of the command lines are the names that the functions of the package accept."""

from __future__ import annotations

import astropy.units as u
import pytest

from skysieve.core import checks, command
from skysieve.dedispersion import contract as dedispersion
from skysieve.dedispersion.command import options as dedisp
from skysieve.dedispersion.dm_plan.plan import METHODS as DM_RULES
from skysieve.dedispersion.single_pulse.search import DETECTORS
from skysieve.dedispersion.stream.command import commands as stream
from skysieve.fstat.command import cli as fstat
from skysieve.fstat.result.map import STYLES
from skysieve.periodogram import contract as periodogram
from skysieve.periodogram import multiband
from skysieve.periodogram.analysis import phase_function
from skysieve.periodogram.command import cli as period
from skysieve.periodogram.lightcurves.units import TimeUnit


@pytest.mark.parametrize(
    ("choices", "accepted"),
    [
        (command.Dtype, checks.DTYPES),
        (period.Normalization, periodogram.NORMALIZATIONS),
        (period.Method, periodogram.METHODS),
        (period.PhaseModel, phase_function.MODELS),
        (period.Multiband, (*multiband.MODELS, "none")),
        (dedisp.Method, dedispersion.METHODS),
        (dedisp.Noise, dedispersion.NOISE),
        (stream.Noise, dedispersion.NOISE),
        (dedisp.Detector, DETECTORS),
        (fstat.Style, STYLES),
    ],
    ids=lambda x: f"{x.__module__}.{x.__name__}" if isinstance(x, type) else None,
)
def test_choices(choices, accepted):
    assert {c.value for c in choices} == set(accepted)


def test_rules_of_dispersion_measures():
    assert {r.value for r in dedisp.Rule} == set(DM_RULES) - {"survey", "list"}  # these need stages, or DMs


@pytest.mark.parametrize("unit", TimeUnit)
def test_units_of_time(unit):
    assert unit.hours == pytest.approx(u.Unit(unit.value).to(u.h), rel=1e-15)
    assert unit.days == pytest.approx(u.Unit(unit.value).to(u.d), rel=1e-15)
