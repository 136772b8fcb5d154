"""`smoothing` against healpy; there is a test for each known defect of healpy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.sphere.skies import NPIX, NSIDE, RAD, harmonics, sky

import skysieve
from skysieve.sphere import MexicanHat, Needlet, TopHat, Window
from skysieve.sphere.grids.healpix import reorder

healpy = pytest.importorskip("healpy")
pytest.importorskip("ducc0")
UNSEEN = healpy.UNSEEN


@pytest.mark.few
@pytest.mark.parametrize(
    "options",
    [
        {"fwhm": 5 * RAD, "iter": 3},
        {"fwhm": 5 * RAD, "iter": 0, "lmax": 50},
        {"sigma": 2 * RAD, "fwhm": 0.3, "iter": 1},
        {"beam_window": np.exp(-np.arange(70) / 20.0), "iter": 2},
        {"fwhm": 0.0, "iter": 3},
        {"fwhm": 5 * RAD, "use_weights": True, "iter": 1},
    ],
    ids=lambda o: ",".join(o),
)
@pytest.mark.parametrize("pol", [True, False])
def test_healpys_arguments_give_healpys_numbers(options, pol):
    maps = sky(3) + 5
    ours, theirs = skysieve.smoothing(maps, pol=pol, **options), healpy.smoothing(maps, pol=pol, **options)
    assert np.abs(ours - theirs).max() <= 1e-9 * np.abs(theirs).max()
    if pol:  # it does not matter for one map
        one = skysieve.smoothing(maps[0], **options)
        assert np.abs(one - healpy.smoothing(maps[0], **options)).max() <= 1e-9 * np.abs(theirs).max()


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory):
    """A file of weights in the format of HEALPix, with our own numbers."""
    from astropy.io import fits

    from skysieve.sphere.grids.pixel_weights import NAME, solve

    folder = tmp_path_factory.mktemp("weights")
    (folder / "full_weights").mkdir()
    column = fits.Column("COMPRESSED PIXEL WEIGHTS", "D", array=solve(NSIDE))
    table = fits.BinTableHDU.from_columns([column])
    table.header["NSIDE"] = NSIDE
    table.writeto(folder / "full_weights" / NAME.format(NSIDE))
    return folder


@pytest.mark.parametrize("iterations", [0, 2])
def test_pixel_weights_are_used_as_healpy_uses_them(weights_file, iterations):
    """The file is read as healpy reads it; without a file there is an error."""
    m = sky() + 3
    options = {"fwhm": 5 * RAD, "use_pixel_weights": True, "datapath": weights_file, "iter": iterations}
    theirs = healpy.smoothing(m, **{**options, "datapath": str(weights_file)})
    assert np.abs(skysieve.smoothing(m, **options) - theirs).max() <= 1e-9 * np.abs(theirs).max()
    plain = healpy.smoothing(m, fwhm=5 * RAD, iter=iterations)
    assert np.abs(theirs - plain).max() > 1e-6


def test_pixel_weights_integrate_harmonics(weights_file, monkeypatch):
    """Up to degree 3 nside, as healpy integrates; computed, and from a file."""
    from skysieve.sphere.grids import pixel_weights as pixelweights

    alm = healpy.map2alm(pixelweights.healpix_pixel_weights(NSIDE), lmax=3 * NSIDE, iter=0)
    alm[0] -= np.sqrt(4 * np.pi)
    assert np.abs(alm).max() < 1e-8  # measured 2e-10: the residual of conjugate gradients
    computed = pixelweights.healpix_pixel_weights(NSIDE)
    pixelweights.healpix_pixel_weights.cache_clear()
    monkeypatch.setenv("HEALPIX", str(weights_file))
    (weights_file / "data").symlink_to(weights_file)
    assert np.array_equal(pixelweights.healpix_pixel_weights(NSIDE), computed)
    pixelweights.healpix_pixel_weights.cache_clear()
    with pytest.raises(ValueError, match="needs HEALPix's file"):
        skysieve.smoothing(np.zeros(12 * 512**2), fwhm=0.1, quadrature="pixel")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["direct", "ring"])
def test_pixel_weights_come_closest_to_the_truth(method):
    """A tenth of the error of ring weights, against exact harmonics times the window."""
    alm = harmonics()[0]
    m = sky()
    truth = healpy.alm2map(healpy.smoothalm(alm, fwhm=14 * RAD), NSIDE, lmax=2 * NSIDE)
    wrong = {}
    for q in ("none", "ring", "pixel"):
        found = skysieve.smoothing(m, fwhm=14 * RAD, method=method, quadrature=q, eps=1e-9)
        wrong[q] = (found - truth).std() / truth.std()
    assert wrong["pixel"] < 0.1 * wrong["ring"] < 0.1 * wrong["none"]


def test_quadrature_healpy_is_healpys_default():
    m = sky()
    theirs = healpy.smoothing(m, fwhm=4 * RAD)
    assert skysieve.smoothing(m, fwhm=4 * RAD, quadrature="healpy") == pytest.approx(theirs, abs=1e-10)


def test_mmax_works():
    """healpy raises an error."""
    import ducc0

    m, top = sky(), 40
    info = ducc0.healpix.Healpix_Base(NSIDE, "RING").sht_info()
    some = {"lmax": 3 * NSIDE - 1, "mmax": top, "spin": 0, "nthreads": 1, **info}
    alm = ducc0.sht.adjoint_synthesis(map=m[None] * 4 * np.pi / NPIX, **some)
    ell = np.concatenate([np.arange(k, 3 * NSIDE) for k in range(top + 1)])
    truth = ducc0.sht.synthesis(alm=alm * np.exp(-0.5 * ell * (ell + 1) * 0.02**2), **some)[0]
    assert skysieve.smoothing(m, sigma=0.02, iter=0, mmax=top) == pytest.approx(truth, abs=1e-12)


@pytest.mark.few
@pytest.mark.parametrize("method", ["direct", "ring"])
def test_the_fast_engines_are_close_to_the_truth(method):
    """Exact harmonics times the window: 2e-5 of the rms with ring weights (required), 2e-4 without (measured)."""
    nside = 256
    alm = harmonics(1, nside)[0]
    m = healpy.alm2map(alm, nside, lmax=2 * nside)
    truth = healpy.alm2map(healpy.smoothalm(alm, fwhm=RAD), nside, lmax=2 * nside)
    for quadrature, bound in (("ring", 2e-5), ("none", 2e-4)):
        found = skysieve.smoothing(m, fwhm=RAD, method=method, quadrature=quadrature)
        assert (found - truth).std() <= bound * truth.std()
    assert skysieve.smoothing(m.astype(np.float32), fwhm=RAD, method=method).dtype == np.float32


def test_plain_quadrature_is_the_harmonic_sum():
    import ducc0

    m, lmax = sky(), 3 * NSIDE - 1
    info = ducc0.healpix.Healpix_Base(NSIDE, "RING").sht_info()
    alm = ducc0.sht.adjoint_synthesis(map=m[None] * 4 * np.pi / NPIX, lmax=lmax, spin=0, nthreads=1, **info)
    ell = np.concatenate([np.arange(k, lmax + 1) for k in range(lmax + 1)])
    sigma = 18 * RAD / np.sqrt(8 * np.log(2))
    truth = ducc0.sht.synthesis(
        alm=alm * np.exp(-0.5 * ell * (ell + 1) * sigma**2), lmax=lmax, spin=0, nthreads=1, **info
    )[0]
    for method in ("ring", "direct"):
        found = skysieve.smoothing(m, fwhm=18 * RAD, method=method, quadrature="none", eps=1e-12)
        assert (found - truth).std() <= 1e-9 * truth.std()


def test_polarised_maps():
    """I, Q, U without healpy's iterations, against exact harmonics."""
    alms = harmonics(3, seed=4)
    alms[1:, healpy.Alm.getlm(2 * NSIDE)[0] < 2] = 0
    maps = healpy.alm2map(alms, NSIDE, lmax=2 * NSIDE)
    truth = healpy.alm2map(healpy.smoothalm(alms, fwhm=8 * RAD), NSIDE, lmax=2 * NSIDE)
    found = skysieve.smoothing(maps, fwhm=8 * RAD)
    for a, b in zip(found, truth, strict=True):
        assert (a - b).std() <= 1e-3 * b.std()  # measured 2.5e-4: the quadrature of nside 32
    batch = skysieve.smoothing(np.stack([maps, 2 * maps]), fwhm=8 * RAD)
    assert batch.shape == (2, 3, NPIX)
    assert np.array_equal(batch[0], found)


def test_the_fortran_reference(test_data):
    from astropy.io import fits

    def read(name):
        with fits.open(test_data / "sphere" / f"wmap_band_iqumap_r9_7yr_W_v4_udgraded32{name}.fits") as hdus:
            columns = [hdus[1].data.field(i).ravel().astype(np.float64) for i in range(3)]
            nested = hdus[1].header["ORDERING"].strip() == "NESTED"
        return reorder(np.array(columns), to="ring") if nested else np.array(columns)

    for suffix in ("", "_masked"):
        maps, truth = read(suffix), read(f"{suffix}_smoothed10deg_fortran")
        found = skysieve.smoothing(maps, fwhm=10 * RAD, lmax=64, iter=3)
        good = (np.abs(maps - UNSEEN) > 1e25) & (np.abs(truth - UNSEEN) > 1e25)
        assert good.mean() > 0.5
        for a, b, ok in zip(found, truth, good, strict=True):
            assert np.abs(a - b)[ok].max() <= 1e-6 * np.abs(b[ok]).max()


# ---------------------------------------------------------------- bad pixels


@pytest.mark.parametrize("options", [{}, {"iter": 1}])
def test_unseen_pixels_stay_where_they_are_nested(options):
    """healpy restores them at their RING numbers."""
    m = sky()
    bad = np.zeros(NPIX, bool)
    bad[healpy.query_disc(NSIDE, (1, 0.2, 0.3), 0.4)] = True
    ring = np.where(bad, UNSEEN, m)
    nest = reorder(ring, to="nest")
    found = skysieve.smoothing(nest, fwhm=5 * RAD, nest=True, **options)
    assert np.array_equal(found == UNSEEN, reorder(bad, to="nest"))
    assert reorder(found, to="ring") == pytest.approx(skysieve.smoothing(ring, fwhm=5 * RAD, **options), abs=1e-12)


def test_nan_pixels_are_bad_pixels():
    """In healpy one of them makes the whole map NaN."""
    m = sky()
    m[100], m[7], m[8] = np.nan, np.inf, UNSEEN
    found = skysieve.smoothing(m, fwhm=5 * RAD)
    good = np.ones(NPIX, bool)
    good[[100, 7, 8]] = False
    assert np.isfinite(found[good]).all()
    assert np.isnan(found[100])
    assert (found[7], found[8]) == (np.inf, UNSEEN)
    assert found[good] == pytest.approx(skysieve.smoothing(np.where(good, m, 0), fwhm=5 * RAD)[good], abs=1e-12)


def test_float32_unseen_is_seen():
    m = sky().astype(np.float32)
    m[50] = np.float32(UNSEEN)
    assert np.float64(m[50]) != UNSEEN
    for maps in (m, m.astype(np.float64)):
        found = skysieve.smoothing(maps, fwhm=5 * RAD)
        assert np.abs(np.delete(found, 50)).max() < 10
        assert found[50] == m[50]


@pytest.mark.slow
def test_masked_arrays_come_back_masked():
    m = sky(3)
    mask = m > 0.5 * m.max()
    found = skysieve.smoothing(np.ma.MaskedArray(m, mask), fwhm=5 * RAD)
    assert isinstance(found, np.ma.MaskedArray)
    assert np.array_equal(found.mask, mask)
    zeroed = skysieve.smoothing(np.where(mask, 0, m), fwhm=5 * RAD)
    assert found.data[~mask] == pytest.approx(zeroed[~mask], abs=1e-12)
    several = skysieve.smoothing([np.ma.MaskedArray(a, b) for a, b in zip(m, mask, strict=True)], fwhm=5 * RAD)
    assert np.array_equal(several.mask, mask)
    assert found.fill_value == healpy.smoothing(np.ma.MaskedArray(m, mask), fwhm=5 * RAD).fill_value == UNSEEN


def test_normalized_masks_keep_a_constant():
    m = np.full(NPIX, 3.7)
    m[: NPIX // 3] = UNSEEN
    m[9000] = np.nan
    found = skysieve.smoothing(m, fwhm=6 * RAD, masked="normalize")
    good = np.isfinite(m) & (m != UNSEEN)
    assert np.abs(found[good] - 3.7).max() < 1e-12
    assert np.array_equal(found[~good], m[~good], equal_nan=True)
    assert skysieve.smoothing(m, fwhm=6 * RAD)[NPIX // 3] < 2.5  # an edge without it


@pytest.mark.parametrize("method", ["direct", "ring"])
def test_normalized_masks_keep_digits_beside_a_large_mean(method):
    """A monopole of 27,000 times the rest, in float32, changes the result by rounding only."""
    m, bad = sky(), np.arange(NPIX) < 2000
    m *= 1e-4 / m.std()
    options = {"fwhm": 10 * RAD, "masked": "normalize", "method": method}
    plain = skysieve.smoothing(np.where(bad, UNSEEN, m), **options)[~bad]
    found = skysieve.smoothing(np.where(bad, UNSEEN, m + 2.725).astype(np.float32), **options)[~bad]
    assert found.dtype == np.float32
    # a rounding of the result: measured 1.4e-7; 1.2e-6 and 5.7e-6 with the mean left in
    assert np.abs(found.astype(np.float64) - 2.725 - plain).max() <= 3e-7


def test_kernels_hardly_wider_than_pixels_warn():
    """Their sum is not their integral; from a FWHM of 1.7 pixels on a constant changes by less than 1 per cent."""
    one, pixel = np.ones(NPIX), np.sqrt(4 * np.pi / NPIX)
    with pytest.warns(UserWarning, match="hardly wider than the pixels of nside 32"):
        found = skysieve.smoothing(one, fwhm=1.1 * pixel, quadrature="ring")
    assert np.abs(found - 1).max() > 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.abs(skysieve.smoothing(one, fwhm=1.72 * pixel) - 1).max() < 0.01


@pytest.mark.parametrize("quadrature", ["ring", "none"])
def test_flux_of_a_map_with_a_large_mean_is_conserved(quadrature):
    """A plan convolves a large mean with another eps: this changed the sum by 3e-7 of itself."""
    m = np.random.default_rng(5).normal(size=(2, 12 * 8**2)) + np.array([[2.7e6], [-50]])
    found = skysieve.smoothing(m, fwhm=0.6, pol=False, flux="conserve", quadrature=quadrature, method="direct")
    assert found.sum(axis=1) == pytest.approx(m.sum(axis=1), rel=1e-12)
    moved = skysieve.smoothing(m - m.mean(axis=1, keepdims=True), fwhm=0.6, pol=False, flux="conserve",
                               quadrature=quadrature, method="direct")  # fmt: skip
    assert found - m.mean(axis=1, keepdims=True) == pytest.approx(moved, abs=1e-8)  # rounding of 2.7e6


@pytest.mark.parametrize("method", ["direct", "ring"])
def test_flux_is_conserved(method):
    """healpy: 1.0956 for a source at the pole at nside 64, FWHM 2 degrees."""
    for pixel in (0, 4, 5000):
        m = np.zeros(NPIX)
        m[pixel] = 2.5
        found = skysieve.smoothing(m, fwhm=4 * RAD, flux="conserve", method=method, eps=1e-8)
        assert found.sum() == pytest.approx(2.5, rel=1e-12)
        assert found.min() >= (0 if method == "direct" else -1e-8 * found.max())


def test_a_real_sky_map_stays_positive(test_data):
    """BAYESTAR: NESTED, a range of 1e37, whose sum is a probability."""
    from astropy.io import fits

    with fits.open(test_data / "sphere" / "bayestar.fits.gz") as hdus:
        m = np.asarray(hdus[1].data.field(0), np.float64).ravel()
        assert hdus[1].header["ORDERING"].strip() == "NESTED"
    m = m.reshape(-1, 64).sum(axis=1)  # nside 64
    found = skysieve.smoothing(m, fwhm=3 * RAD, nest=True, flux="conserve", method="direct")
    assert found.min() >= 0
    assert found.sum() == pytest.approx(m.sum(), rel=1e-12)


# ---------------------------------------------------------------- arguments


def test_a_width_of_nothing_is_no_smoothing():
    m = sky()
    m[3] = UNSEEN
    found = skysieve.smoothing(m)
    assert np.array_equal(found, m)
    assert found is not m


def test_units_and_shapes():
    from astropy import units

    m = sky(2)
    found = skysieve.smoothing(m, fwhm=5 * units.deg, pol=False)
    assert found == pytest.approx(skysieve.smoothing(m, fwhm=5 * RAD, pol=False), abs=1e-14)
    assert skysieve.smoothing(list(m), fwhm=0.1, pol=False).shape == (2, NPIX)
    assert skysieve.smoothing(m[:1], fwhm=0.1).shape == (1, NPIX)
    assert skysieve.smoothing(np.arange(12), fwhm=2.0).dtype == np.float64
    assert skysieve.smoothing(m[0], kernel=TopHat(0.1)).std() < m[0].std()
    assert skysieve.smoothing(m[0], fwhm=0.1, dtype="float32").dtype == np.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fwhm": -0.1}, "fwhm=-0.1"),
        ({"fwhm": np.nan}, "fwhm=nan"),
        ({"sigma": 4.0}, "sigma=4.0"),
        ({"fwhm": "5"}, "fwhm='5'"),
        ({"fwhm": 0.1, "use_pixel_weights": True}, "nside_0032.fits was not found"),
        ({"fwhm": 0.1, "use_pixel_weights": True, "use_weights": True}, "cannot be combined with use_weights"),
        ({"fwhm": 0.1, "use_pixel_weights": True, "quadrature": "pixel"}, "cannot be combined with use_pixel_weights"),
        ({"fwhm": 0.1, "iter": -1}, "iter=-1"),
        ({"fwhm": 0.1, "lmax": 200}, "lmax=200"),
        ({"fwhm": 0.1, "lmax": 20, "mmax": 30}, "mmax=30"),
        ({"fwhm": 0.1, "lmax": 20, "method": "ring"}, "cannot be combined with lmax"),
        ({"fwhm": 0.1, "iter": 2, "quadrature": "ring"}, "cannot be combined with iter"),
        ({"fwhm": 0.1, "use_weights": True, "datapath": "/nowhere"}, "weight_ring_n00032.fits was not found"),
        ({"fwhm": 0.1, "method": "fft"}, "method='fft'"),
        ({"fwhm": 0.1, "quadrature": "simpson"}, "quadrature='simpson'"),
        ({"fwhm": 0.1, "masked": "fill"}, "masked='fill'"),
        ({"fwhm": 0.1, "flux": "keep"}, "flux='keep'"),
        ({"fwhm": 0.1, "iter": 1, "flux": "conserve"}, "flux='conserve' cannot be combined with iter"),
        ({"kernel": MexicanHat(0.1), "flux": "conserve"}, "integral is too close to zero"),
        ({"fwhm": 0.1, "dtype": "int32"}, "dtype='int32'"),
        ({"fwhm": 0.1, "method": "harmonic", "quadrature": "ring"}, "cannot be combined with method='harmonic'"),
        ({"fwhm": 0.1, "iter": 1, "device": "tpu"}, "device='tpu'"),
        ({"fwhm": 0.1, "iter": 1, "threads": 0}, "threads=0"),
        ({"fwhm": 0.1, "iter": 1, "eps": 5.0}, "eps=5.0"),
        ({"fwhm": 0.1, "iter": 1, "memory": 10}, "memory=10 cannot be combined with iter"),
        ({"fwhm": 0.1, "kernel": TopHat(0.1)}, "cannot be combined with fwhm"),
        ({"fwhm": 0.003}, "narrower than the pixels of nside 32"),
        ({"kernel": TopHat(0.01)}, "narrower than the pixels of nside 32"),
        ({"beam_window": np.exp(-1e-6 * np.arange(3000.0) ** 2)}, "narrower than the pixels of nside 32"),
        ({"kernel": MexicanHat(0.002)}, "narrower than the pixels of nside 32"),
        ({"kernel": Needlet(9)}, "narrower than the pixels of nside 32"),
        ({"fwhm": 0.1, "dtype": "foo"}, "dtype='foo'"),
        ({"fwhm": 0.1, "threads": "2"}, "threads='2'"),
        ({"fwhm": 0.1, "threads": 1.5}, "threads=1.5"),
        ({"beam_window": ["abc"]}, "beam_window has dtype"),
        ({"beam_window": [1, np.nan]}, "beam_window: expected a 1-D array of finite numbers"),
    ],
)
def test_bad_arguments_raise(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        skysieve.smoothing(np.zeros(NPIX), **options)


@pytest.mark.filterwarnings("ignore:kernel=.*is hardly wider")
def test_gaussians_from_94_hundredths_of_a_pixel_are_accepted():
    """The limit that the documentation gives, and the error that the warning gives for it."""
    pixel = (4 * np.pi / NPIX) ** 0.5
    with pytest.raises(ValueError, match="narrower than the pixels of nside 32"):
        skysieve.smoothing(np.ones(NPIX), fwhm=0.939 * pixel)
    for quadrature in ("ring", "none"):
        found = skysieve.smoothing(np.ones(NPIX), fwhm=0.94 * pixel, quadrature=quadrature)
        assert 0.25 < abs(found - 1).max() < 0.35


def test_bad_maps_raise():
    with pytest.raises(ValueError, match="not a HEALPix map"):
        skysieve.smoothing(np.zeros(100), fwhm=0.1)
    with pytest.raises(ValueError, match="power of two"):
        skysieve.smoothing(np.zeros(108), fwhm=0.1, nest=True)
    with pytest.raises(ValueError, match="expected 1 or 3"):
        skysieve.smoothing(np.zeros((2, 48)), fwhm=0.1)
    with pytest.raises(ValueError, match="map_in: expected maps of one length"):
        skysieve.smoothing([np.zeros(48), np.zeros(12)], fwhm=0.1)
    with pytest.raises(TypeError, match="complex128"):
        skysieve.smoothing(np.zeros(48, complex), fwhm=0.1)
    with pytest.raises(TypeError, match="expected a kernel"):
        skysieve.smoothing(np.zeros(48), kernel="beam")


def test_without_ducc0(monkeypatch):
    from skysieve.sphere.cpu import harmonic as cpu_harmonic

    monkeypatch.setattr(cpu_harmonic, "available", lambda: False)
    m = sky()
    assert skysieve.smoothing(m, fwhm=0.1).std() < m.std()
    assert skysieve.smoothing(np.stack([m, m, m]), fwhm=0.1).std() < m.std()
    with pytest.raises(ValueError, match="pip install"):
        skysieve.smoothing(m, fwhm=0.1, iter=3)


def test_unequal_windows_of_e_and_b_are_done_right():
    """A Window with different E and B, by harmonics, against healpy's alm2map of the multiplied harmonics."""
    lmax = 2 * NSIDE
    alms = harmonics(3, seed=5)
    alms[1:, healpy.Alm.getlm(lmax)[0] < 2] = 0
    maps = healpy.alm2map(alms, NSIDE, lmax=lmax)
    e, b = np.exp(-np.arange(lmax + 1) / 9.0), np.exp(-np.arange(lmax + 1) / 5.0)
    t = np.exp(-np.arange(lmax + 1) / 7.0)
    truth = healpy.alm2map([healpy.almxfl(a, w) for a, w in zip(alms, (t, e, b), strict=True)], NSIDE, lmax=lmax)
    found = skysieve.smoothing(maps, kernel=Window(t, e, b), lmax=lmax, iter=5)
    assert np.abs(found - truth).max() < 1e-6 * np.abs(truth).max()
    fast = skysieve.smoothing(maps, kernel=Window(t, e, b))  # without healpy's iterations: the quadrature of nside 32
    for x, y in zip(fast, truth, strict=True):
        assert (x - y).std() <= 2e-3 * y.std()
    with pytest.raises(ValueError, match="E and B have different windows"):
        skysieve.smoothing(maps, kernel=Window(t, e, b), method="ring")


def test_a_beam_below_a_pixel_goes_by_harmonics():
    """Its pixel sum would multiply the map by 80."""
    m = sky() + 5
    found = skysieve.smoothing(m, fwhm=0.2 * RAD, quadrature="healpy")
    assert np.abs(found - m).max() < 0.02 * np.abs(m).max()


def test_float32_of_files_stays_float32():
    """FITS holds big-endian numbers."""
    m = sky().astype(np.float32)
    found = skysieve.smoothing(m.astype(">f4"), fwhm=0.1)
    assert found.dtype == np.float32
    assert np.array_equal(found, skysieve.smoothing(m, fwhm=0.1))


def test_the_mask_is_a_copy():
    m = np.ma.MaskedArray(sky(), np.arange(NPIX) < 9)
    found = skysieve.smoothing(m, fwhm=0.1)
    found.mask[:] = True
    assert m.mask.sum() == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": TopHat(0.1)}, "has an edge"),
        ({"kernel": Window([1.0, 0.5])}, "zero from l = 2 on"),
        ({"fwhm": 0.1, "lmax": 1}, "lmax=1"),
        ({"fwhm": 1e-9}, "narrower than the pixels"),
    ],
)
def test_kernels_that_q_and_u_refuse(options, message):
    with pytest.raises(ValueError, match=message):
        skysieve.smoothing(np.zeros((3, NPIX)), **options)


def test_maps_of_float16_raise_no_warning():
    maps = np.random.default_rng(1).normal(size=12 * 8**2).astype(np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = skysieve.smoothing(maps, fwhm="20deg", device="cpu")
    assert np.array_equal(found, skysieve.smoothing(maps.astype(np.float64), fwhm="20deg", device="cpu"))


@pytest.mark.parametrize("options", [{}, {"masked": "normalize"}, {"iter": 0}])
def test_a_quantity_keeps_its_unit(options):
    units = pytest.importorskip("astropy.units")
    m = np.random.default_rng(4).standard_normal(NPIX)
    m[5] = healpy.UNSEEN
    expected = skysieve.smoothing(m, fwhm=0.2, **options)
    found = skysieve.smoothing(m << units.uK, fwhm=0.2, **options)
    assert found.unit == units.uK
    assert np.array_equal(found.value, expected)


def test_lists_of_quantities_and_masked_quantities():
    """I in K with Q and U in mK, and a column of a QTable."""
    u = pytest.importorskip("astropy.units")
    from astropy.utils.masked import Masked

    maps = np.random.default_rng(8).normal(size=(3, 12 * 8**2))
    truth = skysieve.smoothing(maps, fwhm=0.5)
    found = skysieve.smoothing([maps[0] * u.K, 1e3 * maps[1] * u.mK, 1e3 * maps[2] * u.mK], fwhm=0.5)
    assert found.unit == u.K
    assert found.value == pytest.approx(truth, abs=1e-12)
    with pytest.raises(ValueError, match="map_in: expected maps of one kind of unit"):
        skysieve.smoothing([maps[0] * u.K, maps[1] * u.Jy, maps[2] * u.K], fwhm=0.5)
    mask = np.arange(maps[0].size) < 100
    truth = skysieve.smoothing(np.ma.MaskedArray(maps[0], mask), fwhm=0.5)
    for unit in (None, u.K):
        given = Masked(maps[0], mask=mask) if unit is None else Masked(maps[0] * unit, mask=mask)
        found = skysieve.smoothing(given, fwhm=0.5)
        assert type(found) is type(given)
        assert getattr(found, "unit", None) == unit
        assert np.array_equal(found.mask, mask)
        assert np.array_equal(np.asarray(found.unmasked), truth.data)
