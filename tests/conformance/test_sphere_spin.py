"""Q and U: every method against the sum of vectors that are transported along great circles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.conformance.sphere_truth import EPS, ERROR, METHODS, error, sky, some
from tests.truth import sphere as reference

from skysieve.sphere import ECP, ConvolvePlan, Gaussian, GaussLegendre, Healpix, MexicanHat, Needlet, Window
from skysieve.sphere.kernels.radial import make_radial

SPIN_GRIDS = {
    "healpix 8": Healpix(8),
    "healpix 3": Healpix(3),
    "ecp": ECP(16, 24),
    "ecp poles": ECP(13, 21, poles=True, phi0=0.3),  # pixels at one place with frames of their own
    "gauss": GaussLegendre(12, 22),
}


@pytest.mark.few
@pytest.mark.parametrize("grid", list(SPIN_GRIDS))
@pytest.mark.parametrize("fwhm", [0.35, 0.8])
def test_spin_2_is_the_sum_of_transported_vectors(grid, fwhm):
    k, g = Gaussian(fwhm=fwhm), SPIN_GRIDS[grid]
    table = g.table()
    x = sky(table.npix, count=2)
    rows = some(table.npix, 30)
    truth = reference.convolve_spin(table, k.window(60, spin=2), x, rows)
    for dtype, method in itertools.product(("float64", "float32"), METHODS):
        with ConvolvePlan(k, g, spin=2, eps=EPS[dtype], dtype=dtype, method=method, device="cpu", threads=1) as plan:
            assert error(plan.execute(x)[:, rows], truth) <= ERROR[dtype], (dtype, method)


@pytest.mark.few
@pytest.mark.parametrize("pixel", [0, 2, 150, 180, 310, 340, 767])
@pytest.mark.parametrize("part", [0, 1], ids="QU")
def test_single_pixels_of_q_and_u(pixel, part):
    """Pole, cap, edge and belt: errors of phases that maps of E or B alone would not reveal."""
    k, g = Gaussian(fwhm=0.35), Healpix(8)
    x = np.zeros((2, 768))
    x[part, pixel] = 1
    rows = np.unique(np.concatenate([some(768, 12), [pixel]]))
    truth = reference.convolve_spin(g.table("none"), k.window(60, spin=2), x, rows)
    for method in METHODS:
        with ConvolvePlan(k, g, spin=2, method=method, quadrature="none", device="cpu", threads=1) as plan:
            found = plan.execute(x)
            assert plan.method == method
        assert np.abs(found[:, rows] - truth).max() <= 1e-6 * np.abs(truth).max(), method


@pytest.fixture(scope="module")
def narrow():
    """A narrow beam, maps, pixels at the pole, at the cap's edge and in the belt, and the sums at these pixels."""
    k, g = Gaussian(fwhm=0.133), Healpix(24)
    x, rows = sky(g.table().npix, count=2), np.array([1, 1127, 3420])
    return k, g, x, rows, reference.convolve_spin(g.table(), k.window(143, spin=2), x, rows)


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_spin_2_of_narrow_beams(dtype, narrow):
    """One kernel value serves four quarters and two hemispheres: pole, edge, belt; ring and direct agree."""
    k, g, x, rows, truth = narrow
    found = {}
    for method in METHODS:
        with ConvolvePlan(k, g, spin=2, eps=EPS[dtype], method=method, dtype=dtype, device="cpu", threads=1) as plan:
            assert error(plan.execute(x)[:, rows], truth) <= ERROR[dtype]
        with ConvolvePlan(k, g, spin=2, method=method, dtype=dtype, device="cpu") as plan:  # the default eps
            found[method] = plan.execute(x)
    assert error(found["ring"], found["direct"]) <= 3e-6


def test_spin_2_by_harmonics():
    pytest.importorskip("ducc0")
    x = sky(3072, count=4).reshape(2, 2, 3072)
    plans = [
        ConvolvePlan(Gaussian(fwhm=0.3), Healpix(16), spin=2, method=m, eps=1e-12, device="cpu")
        for m in ("ring", "harmonic", "direct")
    ]
    a, b, c = (p.execute(x) for p in plans)
    assert a.shape == x.shape
    assert max(error(a, b), error(a, c)) < 1e-10
    assert all(error(plans[0].adjoint(x), p.adjoint(x)) < 1e-10 for p in plans[1:])
    left, right = np.sum(x[0] * plans[0].execute(x[1])), np.sum(plans[0].adjoint(x[0]) * x[1])
    assert left == pytest.approx(right, abs=1e-12 * np.linalg.norm(x))
    for p in plans:
        p.close()


def test_different_windows_of_e_and_b_take_harmonics():
    pytest.importorskip("ducc0")
    lmax = 40
    e, b = np.exp(-np.arange(lmax + 1) / 5.0), np.exp(-np.arange(lmax + 1) / 9.0)
    g, x = Healpix(8), sky(768, count=2)
    with ConvolvePlan(Window(e, e, b), g, spin=2, device="cpu") as plan:
        assert plan.method == "harmonic"
        found = plan.execute(x)
    whole = np.zeros((2, 768))  # E alone with its window, and B alone with its own
    for w, keep in ((e, (1, 0)), (b, (0, 1))):
        with ConvolvePlan(Window(w, keep[0] * w + 1e-300, keep[1] * w + 1e-300), g, spin=2, device="cpu") as plan:
            whole += plan.execute(x)
    assert error(found, whole) < 1e-5
    with ConvolvePlan(Window(e), g, spin=2, method="ring", eps=1e-12, device="cpu") as plan:
        equal = plan.execute(x)
    with ConvolvePlan(Window(e, e, e), g, spin=2, method="harmonic", eps=1e-12, device="cpu") as plan:
        assert error(plan.execute(x), equal) < 1e-10
    assert error(found, equal) > 1e-2


def test_mistakes_with_spin_2_raise():
    k = Gaussian(fwhm=0.3)
    with pytest.raises(ValueError, match="spin=1"):
        ConvolvePlan(k, Healpix(8), spin=1)
    for method in METHODS:
        with pytest.raises(ValueError, match="E and B have different windows"):
            ConvolvePlan(Window([1, 1, 1], [1, 1, 1], [1, 1, 0.5]), Healpix(8), spin=2, method=method, device="cpu")
    with (
        ConvolvePlan(k, Healpix(8), spin=2, device="cpu") as plan,
        pytest.raises(ValueError, match=r"expected \(\.\.\., 2, 768\)"),
    ):
        plan.execute(np.zeros(768))


@pytest.mark.parametrize("kernel", [Gaussian(fwhm=0.3), MexicanHat(0.15)], ids=["gaussian", "mexican hat"])
def test_the_window_of_spin_2_is_that_of_e_and_b(kernel):
    with ConvolvePlan(kernel, Healpix(16), spin=2, method="ring", device="cpu", threads=1) as plan:
        truth = kernel.window(60, spin=2)
        assert np.abs(plan.window(60) - truth).max() < 1e-6 * np.abs(truth).max()
        assert plan.truncation_error(np.ones(60)) < 1e-6


@pytest.mark.slow
def test_spin_2_of_a_window_that_begins_late():
    """The window of a needlet of scale 9 is not zero from l = 256 to 1024."""
    found = make_radial(Needlet(9), 1e-4, 2)
    truth = Needlet(9).window(600, spin=2)
    assert np.abs(found.window(600, 2) - truth).max() < 1e-3 * truth.max()
