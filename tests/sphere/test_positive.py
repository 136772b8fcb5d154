"""Maps of probabilities: no value below 0, and finite logarithms."""

from __future__ import annotations

import numpy as np
import pytest

import skysieve
from skysieve.sphere import Gaussian, MexicanHat, Profile, TopHat, Window
from skysieve.sphere.grids.healpix import UNSEEN

RAD = np.pi / 180


def probabilities(nside, seed):
    """A few sources of very different weights in an empty sky."""
    rng = np.random.default_rng(seed)
    m = np.zeros(12 * nside**2)
    m[rng.integers(0, m.size, 5)] = 10.0 ** rng.uniform(-8, 0, 5)
    m[0] = 0.1
    return m / m.sum()


@pytest.mark.few
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("method", ["auto", "direct", "ring"])
@pytest.mark.parametrize("width", [4.5, 9.0, 30.0, 90.0])
def test_the_logarithm_is_finite(dtype, method, width):
    """For every width and method; values above the method's error are the same as without ``positive``."""
    nside = 32 if width < 20 else 12
    m = probabilities(nside, int(width)).astype(dtype)
    options = {"fwhm": width * RAD, "method": method, "device": "cpu"}
    found = skysieve.smoothing(m, positive=True, **options)
    assert found.dtype == m.dtype
    assert np.isfinite(np.log(found)).all()
    plain = skysieve.smoothing(m, quadrature="ring", **options)
    assert found == pytest.approx(np.maximum(plain, 0), rel=1e-5, abs=1e-7 * float(plain.max()))


def test_values_below_0_without_it():
    """Methods that sum modes or harmonics leave values below 0."""
    m = probabilities(64, 1)
    low = {
        q: skysieve.smoothing(m, 10 * RAD, method="ring", quadrature=q, device="cpu").min() for q in ("ring", "band")
    }
    assert all(v < 0 for v in low.values())
    assert low["ring"] > -1e-7 * m.max()
    assert skysieve.smoothing(m, 10 * RAD, method="ring", device="cpu", positive=True).min() > 0


@pytest.mark.parametrize("method", ["direct", "ring"])
def test_the_sum_is_conserved_too(method):
    m = probabilities(32, 2)
    found = skysieve.smoothing(m, 8 * RAD, flux="conserve", positive=True, method=method, device="cpu")
    assert found.min() > 0
    assert found.sum() == pytest.approx(1, rel=1e-11)


@pytest.mark.parametrize("masked", ["zero", "normalize"])
def test_bad_pixels(masked):
    """Bad pixels keep their values, and count as 0 or do not count."""
    m = probabilities(32, 3)
    m[[5, 700]] = np.nan, UNSEEN
    holes = np.ma.MaskedArray(m, np.arange(m.size) % 97 == 3)
    for given in (m, holes):
        found = skysieve.smoothing(given, 15 * RAD, masked=masked, positive=True, device="cpu", method="ring")
        good = np.isfinite(m) & (m > -1) & ~np.ma.getmaskarray(given)
        assert np.isnan(np.ma.getdata(found)[5])
        assert np.isfinite(np.log(np.ma.getdata(found)[good])).all()


def test_empty_maps_widths_of_zero_and_batches():
    nside = 16
    batch = np.stack([np.zeros(12 * nside**2), probabilities(nside, 4)])
    found = skysieve.smoothing(batch, 20 * RAD, pol=False, positive=True, device="cpu")
    assert not found[0].any()
    assert found[1].min() > 0
    assert np.array_equal(skysieve.smoothing(batch, 0.0, pol=False, positive=True), batch)
    nested = skysieve.smoothing(batch[1], 20 * RAD, nest=True, positive=True, device="cpu")
    assert nested.min() > 0
    for kernel in (TopHat(0.3), Profile(np.linspace(0, 0.6, 9), np.exp(-np.arange(9.0)), normalize=True)):
        assert np.isfinite(np.log(skysieve.smoothing(batch[1], kernel=kernel, positive=True, device="cpu"))).all()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kernel": MexicanHat(0.3)}, "is not known to be nowhere negative"),
        ({"kernel": Window(np.ones(20))}, "is not known to be nowhere negative"),
        ({"fwhm": 0.2, "iter": 3}, "cannot be combined with iter"),
        ({"fwhm": 0.2, "method": "harmonic"}, "cannot be combined with iter"),
        ({"fwhm": 0.2, "nside_out": 8}, "nside_out or harmonics"),
        ({"fwhm": 0.2, "quadrature": "band"}, "quadrature='band' has negative weights"),
        ({"fwhm": 0.2, "quadrature": "healpy"}, "positive=True cannot be combined with"),
    ],
)
def test_arguments_that_positive_excludes(options, expected):
    with pytest.raises(ValueError, match=expected):
        skysieve.smoothing(np.ones(12 * 16**2), positive=True, device="cpu", **options)


def test_maps_that_are_not_positive():
    m = np.ones(12 * 16**2)
    with pytest.raises(ValueError, match="Q and U are of either sign"):
        skysieve.smoothing(np.stack([m, m, m]), 0.2, positive=True)
    m[7] = -1e-3
    with pytest.raises(ValueError, match=r"positive=True: map_in holds -0\.001"):
        skysieve.smoothing(m, 0.2, positive=True)
    with pytest.raises(TypeError, match="positive='yes': expected True or False"):
        skysieve.smoothing(np.ones(12), 2.0, positive="yes")
    m[7] = UNSEEN  # a bad pixel is no negative value
    assert skysieve.smoothing(m, 0.2, positive=True)[7] == UNSEEN
    assert Gaussian(fwhm=0.2).positive


@pytest.mark.parametrize("lead", [(), (2,)])
def test_rows_of_1024_pixels(lead):
    """The form in which healpy's FITS files hold a map; (3, 1024) is one map of nside 16."""
    for nside in (16, 32):
        m = np.random.default_rng(nside).normal(size=(*lead, 12 * nside**2))
        rows = m.reshape(*lead, -1, 1024)
        found = skysieve.smoothing(rows, 12 * RAD, pol=False, device="cpu")
        assert found.shape == rows.shape
        assert np.array_equal(found.reshape(m.shape), skysieve.smoothing(m, 12 * RAD, pol=False, device="cpu"))
    rows = np.ma.MaskedArray(rows, rows > 3)
    found = skysieve.smoothing(rows, 12 * RAD, pol=False)
    assert np.array_equal(found.mask, rows.mask)
    assert skysieve.smoothing(rows, 0.0, pol=False).shape == rows.shape
    for shape in ((5, 1024), (0, 1024), (1024,)):
        with pytest.raises(ValueError, match="is not a HEALPix map"):
            skysieve.smoothing(np.ones(shape), 0.2)
