"""The choice between the CPU methods."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from skysieve.core.tasks import TaskPool
from skysieve.sphere import ConvolvePlan, Gaussian, Healpix, Window, from_function
from skysieve.sphere.cpu import engine
from skysieve.sphere.cpu.ring import NS_RUN, RingEngine, pairs_of, ring_seconds, transform_seconds


@pytest.mark.parametrize(("nside", "spin", "dtype"), [(16, 0, "float32"), (17, 2, "float64")])
def test_the_transforms_are_a_lower_limit_of_the_ring_engine(nside, spin, dtype):
    with ConvolvePlan(
        Gaussian(fwhm=0.3), Healpix(nside), spin=spin, dtype=dtype, method="direct", device="cpu"
    ) as plan:
        spec = plan._spec
    with TaskPool(1) as pool:
        ring = RingEngine(spec, pool)
    calls = 1e-9 * NS_RUN * 2 * sum(len(task.blocks) for task in ring.groups) / 2
    assert calls < transform_seconds(spec) < ring.seconds() < 3 * transform_seconds(spec)
    assert ring_seconds(spec, pairs_of(spec)) == ring.seconds()


@pytest.fixture
def no_ring_engine(monkeypatch):
    def refuse(*args):
        raise AssertionError("the ring engine was set up")

    pytest.importorskip("ducc0")
    monkeypatch.setattr(engine, "RingEngine", refuse)


@pytest.mark.usefixtures("no_ring_engine")
def test_auto_does_not_set_up_the_ring_engine_to_learn_that_harmonics_are_faster():
    """nside 512 and 240 arcmin: setting up the ring engine took three times as long as the harmonics."""
    with ConvolvePlan(Gaussian(fwhm=np.radians(4)), Healpix(512), device="cpu") as plan:
        assert plan.method == "harmonic"


@pytest.mark.slow
@pytest.mark.usefixtures("no_ring_engine")
def test_auto_does_not_set_up_the_ring_engine_for_a_beam_that_does_not_end():
    """With a window of 4e-4 at the largest l the kernel is 0 nowhere.  At nside 256 the ring engine needed 23 s."""
    window = np.exp(-0.5 * np.arange(384) ** 2 * (1.3 * np.sqrt(4 * np.pi / 12) / 128) ** 2)
    with ConvolvePlan(Window(window), Healpix(128), device="cpu") as plan:
        assert plan.method == "harmonic"


@pytest.mark.slow
def test_auto_uses_harmonics_for_a_profile_with_wide_wings():
    """Moffat's profile, whose support is the sphere: 20 times as fast as rings at nside 64."""
    pytest.importorskip("ducc0")
    pixel = np.sqrt(4 * np.pi / 12) / 64
    kernel = from_function(lambda theta: (1 + (theta / (2 * pixel)) ** 2) ** -2.5, normalize=True)
    values = np.random.default_rng(0).standard_normal(12 * 64**2).astype(np.float32)
    with (
        ConvolvePlan(kernel, Healpix(64), dtype="float32", device="cpu") as plan,
        ConvolvePlan(kernel, Healpix(64), dtype="float32", device="cpu", method="ring") as other,
    ):
        assert plan.method == "harmonic"
        found, expected = plan.execute(values), other.execute(values)
    assert np.abs(found - expected).max() < 1e-5 * expected.std()  # measured: 2e-6 to 4e-6


def test_the_window_of_a_cusp_is_not_followed_to_high_degrees(monkeypatch):
    """It ends at no degree; 16384 of them took 60 s."""
    pytest.importorskip("ducc0")
    degrees, pixel = [], np.sqrt(4 * np.pi / 12) / 64
    kernel = from_function(lambda theta: np.exp(-theta / (2 * pixel)), normalize=True)
    window = type(kernel).window
    monkeypatch.setattr(type(kernel), "window", lambda k, lmax, *more: degrees.append(lmax) or window(k, lmax, *more))
    with ConvolvePlan(kernel, Healpix(64), device="cpu") as plan:
        assert plan.method == "direct"
    assert 64 <= max(degrees) <= 1024


@pytest.mark.parametrize(("seconds", "most"), [(1e9, 16384), (100.0, 16384), (1.0, 4096), (0.1, 1024)])
def test_a_window_takes_no_longer_than_a_few_maps(monkeypatch, seconds, most):
    pytest.importorskip("ducc0")
    asked = []
    monkeypatch.setattr(engine, "harmonic_seconds", lambda spec, lmax: 0.0)
    monkeypatch.setattr(engine.harmonic, "band_of", lambda kernel, spin, eps, degree: asked.append(degree) or np.inf)
    spec = SimpleNamespace(
        table=SimpleNamespace(npix=12 * 2048**2, uniform=False), eps=1e-6, dtype=np.dtype("f4"), spin=0, kernels=[None]
    )
    assert engine.Engine._lmax(SimpleNamespace(spec=spec), seconds) == np.inf
    assert asked == [most]
