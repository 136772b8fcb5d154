"""The choice between the CPU methods."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.tasks import TaskPool
from skysieve.sphere import ConvolvePlan, Gaussian, Healpix
from skysieve.sphere.cpu import engine
from skysieve.sphere.cpu.ring import RingEngine, transform_seconds


@pytest.mark.parametrize(("nside", "spin", "dtype"), [(16, 0, "float32"), (17, 2, "float64")])
def test_the_transforms_are_a_lower_limit_of_the_ring_engine(nside, spin, dtype):
    with ConvolvePlan(
        Gaussian(fwhm=0.3), Healpix(nside), spin=spin, dtype=dtype, method="direct", device="cpu"
    ) as plan:
        spec = plan._spec
    with TaskPool(1) as pool:
        ring = RingEngine(spec, pool)
    runs = 8e-5 * 2 * len(ring.runs)
    assert runs < transform_seconds(spec) < ring.seconds() < 3 * transform_seconds(spec)


def test_auto_does_not_set_up_the_ring_engine_to_learn_that_harmonics_are_faster(monkeypatch):
    """nside 512 and 240 arcmin: setting up the ring engine took three times as long as the harmonics."""
    pytest.importorskip("ducc0")

    def refuse(*args):
        raise AssertionError("the ring engine was set up")

    monkeypatch.setattr(engine, "RingEngine", refuse)
    with ConvolvePlan(Gaussian(fwhm=np.radians(4)), Healpix(512), device="cpu") as plan:
        assert plan.method == "harmonic"
