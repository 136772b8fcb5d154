"""Pixels, rings and weights, against healpy and known integrals."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.sphere import ECP, GaussLegendre, Healpix, Rings
from skysieve.sphere.grids.healpix import ang2pix, nest2ring, npix2nside, pix2ang, reorder, ring_table


@pytest.mark.parametrize("nside", [1, 2, 8, 64])
def test_nested_numbers_are_healpys(nside):
    healpy = pytest.importorskip("healpy")
    pix = np.arange(12 * nside**2)
    assert np.array_equal(nest2ring(nside, pix), healpy.nest2ring(nside, pix))
    m = np.random.default_rng(0).normal(size=pix.size)
    assert np.array_equal(reorder(m, to="ring"), healpy.reorder(m, n2r=True))
    assert np.array_equal(reorder(m, to="nest"), healpy.reorder(m, r2n=True))


def test_nested_numbers_beyond_32_bits():
    healpy = pytest.importorskip("healpy")
    nside = 2**20
    pix = np.random.default_rng(1).integers(0, 12 * nside**2, 1000)
    assert np.array_equal(nest2ring(nside, pix), healpy.nest2ring(nside, pix))


@pytest.mark.parametrize("nside", [1, 2, 3, 48, 128])
def test_pixel_centres_are_healpys(nside):
    healpy = pytest.importorskip("healpy")
    pix = np.arange(12 * nside**2)
    for mine, theirs in zip(pix2ang(nside, pix), healpy.pix2ang(nside, pix), strict=True):
        assert np.abs(mine - theirs).max() < 3e-15  # derived: a few roundings of numbers below 2 pi


@pytest.mark.parametrize("nside", [1, 3, 16, 1000])
def test_pixels_of_points_are_healpys(nside):
    healpy = pytest.importorskip("healpy")
    rng = np.random.default_rng(nside)
    theta, phi = np.arccos(rng.uniform(-1, 1, 5000)), rng.uniform(-10, 10, 5000)
    assert np.array_equal(ang2pix(nside, theta, phi), healpy.ang2pix(nside, theta, phi))
    # an azimuth that rounds to a whole turn
    at = [0, np.pi, 0.3, 2.9]
    assert np.array_equal(ang2pix(nside, at, -1e-20), healpy.ang2pix(nside, at, 0.0))
    if nside < 100:
        whole = np.arange(12 * nside**2)
        assert np.array_equal(ang2pix(nside, *pix2ang(nside, whole)), whole)


def test_rings_of_a_large_map_are_counted_in_64_bits():
    _, n, _, start = ring_table(16384)
    assert start[-1] + n[-1] == 12 * 16384**2 > 2**31


def test_rings_mirror_exactly():
    theta, n, phi0, _ = ring_table(37)
    assert np.array_equal(n, n[::-1])
    assert np.array_equal(phi0, phi0[::-1])
    assert np.array_equal(np.pi - theta[:73], theta[:-74:-1])
    assert Healpix(37).table().symmetric


@pytest.mark.parametrize("grid", [Healpix(16), ECP(24, 48), ECP(25, 50, poles=True), GaussLegendre(12, 25)], ids=repr)
def test_weights_add_up_to_the_sphere(grid):
    for quadrature in ("ring", "none"):
        t = grid.table(quadrature)
        assert (t.weight * t.n).sum() == pytest.approx(4 * np.pi, rel=1e-13)


@pytest.mark.parametrize(
    ("grid", "degree"),
    [(Healpix(16), 48), (ECP(24, 48), 23), (ECP(25, 50, poles=True), 24), (GaussLegendre(12, 25), 23)],
    ids=repr,
)
def test_ring_weights_integrate_zonal_harmonics(grid, degree):
    from scipy.special import eval_legendre

    t = grid.table("ring")
    integrals = [(t.weight * t.n * eval_legendre(k, np.cos(t.theta))).sum() for k in range(1, degree + 1)]
    assert np.abs(integrals).max() < 1e-11  # measured 2e-13: the residual of conjugate gradients


def test_ring_weights_stay_close_to_one():
    area = 4 * np.pi / (12 * 64**2)
    ratio = Healpix(64).table("ring").weight / area
    assert 0.9 < ratio.min() < ratio.max() < 1.2  # measured 0.944 to 1.157 at nside 256


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Healpix(0), "nside=0"),
        (lambda: Healpix(2.5), "nside=2.5"),
        (lambda: Healpix(True), "nside=True"),
        (lambda: Healpix(48, nest=True), "power of two"),
        (lambda: npix2nside(100), "12 nside"),
        (lambda: nest2ring(2, [48]), "pix holds 48"),
        (lambda: reorder(np.zeros(12), to="galactic"), "to='galactic'"),
        (lambda: ECP(0, 4), "nlat=0"),
        (lambda: ECP(4, 8, phi0=np.nan), "phi0=nan"),
        (lambda: GaussLegendre(4, -1), "nlon=-1"),
        (lambda: Rings([1.0, 0.5], 4), "rising"),
        (lambda: Rings([0.5, 4.0], 4), "from 0 to pi"),
        (lambda: Rings([0.5], 0), "nphi=0"),
        (lambda: Healpix(4).table("simpson"), "quadrature='simpson'"),
        (lambda: Healpix(4).table().select(slice(3, 3)), "none of the 15 rings"),
        (lambda: Healpix(4).table().select(slice(0, 9, 2)), "neighbouring"),
    ],
)
def test_bad_geometry_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()
