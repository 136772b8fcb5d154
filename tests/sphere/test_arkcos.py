"""The published algorithm and ours: ringing of point sources (figure 6), spectrum of the error (figure 5)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.truth import sphere as reference

import skysieve
from skysieve.sphere import ECP, ConvolvePlan, Gaussian, Healpix

NSIDE = 64
FWHM = np.radians(37.6 / 60 * 256 / NSIDE)
"""2.7 pixels, as 4.7 arcmin at nside 2048."""
GRID = Healpix(NSIDE)
T = GRID.table("none")
PIXELS = {
    "pole": 0,
    "cap": int(T.start[NSIDE // 2]) + 7,
    "belt, shifted": int(T.start[NSIDE + NSIDE // 2 - 1]) + 30,
    "belt, unshifted": int(T.start[NSIDE + NSIDE // 2]) + 30,
    "equator": int(T.start[2 * NSIDE - 1]) + 9,
}
ALL = "arkcos+duplicate+unshifted"


def error(pixel, compat):
    """Largest difference from the kernel, relative to the peak."""
    k, x = Gaussian(fwhm=FWHM), np.zeros(T.npix)
    x[pixel] = 1
    with ConvolvePlan(k, GRID, quadrature="none", compat=compat, method="ring", device="cpu", threads=1) as plan:
        assert plan.method == "ring"
        y = plan.execute(x)
    truth = k.profile(reference.angles(T, [pixel])[0]) * T.weight[0]
    return float(np.abs(y - truth).max() / truth.max())


@pytest.mark.few
@pytest.mark.parametrize("place", list(PIXELS))
def test_no_ringing_where_the_published_method_rings(place):
    """Figure 6 of the paper: zeros in the caps, phases in the belt; with all improvements the belt is exact."""
    pixel = PIXELS[place]
    assert error(pixel, None) <= 1e-6
    assert error(pixel, ALL) <= 1e-6
    if place in ("pole", "cap"):
        assert error(pixel, "arkcos") > 1e-3  # measured 4e-2 at the pole
        assert error(pixel, "arkcos+duplicate") <= 1e-6
    else:
        assert error(pixel, "arkcos") > 5e-3  # measured 1e-2
        assert error(pixel, "arkcos+unshifted") <= 1e-6
        assert error(pixel, "arkcos+duplicate") > 5e-3


def test_smooth_maps_see_no_difference():
    """If all rings hold the kernel's modes, the published algorithm is the pixel sum, except for the caps' modes."""
    x = np.random.default_rng(0).normal(size=T.npix)
    k = Gaussian(fwhm=np.radians(12))
    found = {}
    for compat in (None, ALL):
        with ConvolvePlan(k, GRID, compat=compat, method="ring", device="cpu") as plan:
            found[compat] = plan.execute(np.stack([x, x + 3]))
            assert plan.describe()["bytes"] > 0
    assert np.abs(found[None] - found[ALL]).max() <= 2e-6 * np.abs(found[None]).max()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "quadrature"), [("ring", "ring"), ("direct", "ring"), ("ring", "none")])
def test_the_spectrum_of_the_error(method, quadrature):
    """Figure 5 of the paper, FWHM of 3.5 pixels: errors of the map, and of the spectra over 8 degrees, below 1e-3.

    Measured 3e-6 and 5e-4 of the signal's; the paper's algorithm as written: 0.03 and 0.13.
    """
    healpy = pytest.importorskip("healpy")
    lmax = 2 * NSIDE
    rng, ell = np.random.default_rng(5), healpy.Alm.getlm(lmax)[0]
    alm = (rng.normal(size=(ell.size, 2)) @ [1, 1j]) / np.sqrt(2 * ell * (ell + 1) + 20.0)
    alm[: lmax + 1] = alm[: lmax + 1].real * np.sqrt(2)
    k = Gaussian(fwhm=np.radians(0.1 * 2048 / NSIDE))
    truth = healpy.alm2map(healpy.almxfl(alm, k.window(lmax)), NSIDE, lmax=lmax)
    found = skysieve.smoothing(healpy.alm2map(alm, NSIDE, lmax=lmax), kernel=k, method=method, quadrature=quadrature)
    signal, wrong, ours = (healpy.anafast(m, lmax=lmax, iter=3)[2:] for m in (truth, found - truth, found))
    assert signal.max() / signal.min() > 1e6
    assert (wrong / signal).max() < 1e-3
    several = np.ones(8) / 8
    assert np.abs(np.convolve(ours / signal - 1, several, mode="valid")).max() < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compat": "libpsht"}, "compat='libpsht'"),
        ({"compat": "arkcos+fast"}, "expected one of 'arkcos', 'arkcos.duplicate'"),
        ({"compat": "arkcos", "method": "direct"}, "expected a whole HEALPix grid"),
        ({"compat": "arkcos", "grid": ECP(8, 16)}, "expected a whole HEALPix grid"),
        ({"compat": "arkcos", "spin": 2}, "expected a whole HEALPix grid"),
    ],
)
def test_the_published_algorithm_is_for_whole_scalar_healpix_maps(options, message):
    grid = options.pop("grid", Healpix(8))
    with pytest.raises(ValueError, match=message):
        ConvolvePlan(Gaussian(fwhm=0.3), grid, device="cpu", **options)
