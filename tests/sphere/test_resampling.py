"""`smoothing` with another nside in one step, and pixel windows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sphere.skies import NPIX, NSIDE, RAD, harmonics

import skysieve
import skysieve.sphere
from skysieve.sphere import TopHat
from skysieve.sphere.grids.healpix import reorder

healpy = pytest.importorskip("healpy")
pytest.importorskip("ducc0")
UNSEEN = healpy.UNSEEN


@pytest.mark.few
@pytest.mark.parametrize(("nside_out", "nest"), [(16, True), (16, False), (64, True), (48, False)])
@pytest.mark.parametrize(
    "options", [{}, {"iter": 5, "lmax": 2 * NSIDE}, {"quadrature": "pixel"}], ids=["ring", "iter", "pixel"]
)
def test_another_nside_in_one_step(nside_out, nest, options):
    """Exact harmonics times the window, at the other pixels; I, Q and U."""
    alms = harmonics(3, seed=6)
    alms[1:, healpy.Alm.getlm(2 * NSIDE)[0] < 2] = 0
    maps = healpy.alm2map(alms, NSIDE, lmax=2 * NSIDE)
    truth = healpy.alm2map(healpy.smoothalm(alms, fwhm=12 * RAD), nside_out, lmax=2 * NSIDE)
    if nest:
        maps, truth = reorder(maps, to="nest"), reorder(truth, to="nest")
    found = skysieve.smoothing(maps, fwhm=12 * RAD, nest=nest, nside_out=nside_out, **options)
    assert found.shape == truth.shape
    for a, b in zip(found, truth, strict=True):
        assert (a - b).std() <= (1e-5 if "iter" in options else 1e-3) * b.std()


def test_bad_pixels_at_another_nside():
    m = np.full(NPIX, 2.0)
    m[:4000] = UNSEEN
    m[9000] = np.nan
    for nest in (False, True):
        given = reorder(m, to="nest") if nest else m
        found = skysieve.smoothing(given, fwhm=6 * RAD, nest=nest, nside_out=64, masked="normalize")
        ring = reorder(found, to="ring") if nest else found
        good = np.isfinite(ring) & (ring != UNSEEN)
        assert np.abs(ring[good] - 2).max() < 1e-2  # the share's own band limit is that of nside 32
        assert np.array_equal(ring == UNSEEN, healpy.ud_grade(m, 64) == UNSEEN)  # each pixel is in four parts
        assert np.isnan(ring).sum() == 4
    masked = skysieve.smoothing(np.ma.MaskedArray(m, m < 0), fwhm=6 * RAD, nside_out=16)
    assert masked.mask.sum() == pytest.approx(1000, abs=40)
    for options, message in (
        ({"method": "ring"}, "method='ring'"), ({"flux": "conserve"}, "flux='conserve'"), ({"memory": 1}, "nside_out"),
        ({"kernel": TopHat(0.3)}, "is not band-limited"), ({"nside_out": 0}, "nside_out=0"),
    ):  # fmt: skip
        given = {"fwhm": 0.0 if "kernel" in options else 0.2, "nside_out": 16, **options}
        with pytest.raises(ValueError, match=message):
            skysieve.smoothing(m, **given)


@pytest.mark.slow
def test_the_pixel_window_is_that_of_the_pixels():
    """Harmonics of every pixel's indicator, from a map 16 times finer."""
    nside, fine, lmax = 4, 64, 16
    power, size = np.zeros(lmax + 1), (fine // nside) ** 2
    for face, share in ((0, 2.0), (4, 1.0)):  # a face of the cap for eight, one of the belt for four
        for pixel in range(face * nside**2, (face + 1) * nside**2):
            m = np.zeros(12 * fine**2)
            m[pixel * size : (pixel + 1) * size] = 1
            power += share * healpy.alm2cl(healpy.map2alm(reorder(m, to="ring"), lmax=lmax, iter=0, use_weights=True))
    truth = np.sqrt(power / power[0]) * skysieve.sphere.pixel_window(fine, lmax)
    wrong = np.abs(skysieve.sphere.pixel_window(nside) - truth)
    assert wrong[: 2 * nside + 1].max() < 2e-5  # measured 7e-6, and 7e-5 at 4 nside: the pixels are 256 points each
    assert wrong.max() < 1e-4
    w = skysieve.sphere.pixel_window(64)
    assert w[0] == pytest.approx(1, abs=1e-12)
    assert (np.diff(w) < 0).all()
    with pytest.raises(ValueError, match="power of two"):
        skysieve.sphere.pixel_window(48)
