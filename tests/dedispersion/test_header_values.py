"""Polarisations by their name, headers with missing keys or senseless values, series that have a DM."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.dedispersion.test_formats import PLAIN, data, header, psrfits

from skysieve.dedispersion import (
    BadFile,
    Filterbank,
    cutout,
    dedisperse,
    fake,
    inject,
    plan,
    search,
    write_dat,
    write_tim,
)
from skysieve.dedispersion.injections.pulses import Pulse


@pytest.mark.parametrize(
    ("pol", "npol", "expected"),
    [
        ("XXYY", 2, "sum"), ("XX,YY", 2, "sum"), ("AABB", 2, "sum"), ("AABBCRCI", 4, "sum"), ("XXYYCRCI", 4, "sum"),
        ("RRLL", 2, "sum"), ("aabb", 2, "sum"), ("STOKES", 4, "first"), ("IQUV", 4, "first"), ("INTEN", 1, "first"),
        ("AA+BB", 1, "first"), ("whatever", 1, "first"), ("", 1, "first"),
    ],
)  # fmt: skip
def test_polarisations_by_pol_type(tmp_path, pol, npol, expected):
    """Total power is the sum of the two hands, or Stokes I."""
    raw = np.random.default_rng(3).integers(0, 200, (32, npol, 8)).astype(np.uint8)
    fb = Filterbank.open(psrfits(tmp_path / "a.fits", raw, 8, npol=npol, pol=pol))
    truth = raw[:, :2].sum(axis=1, dtype=np.uint16) if expected == "sum" else raw[:, 0]
    assert np.array_equal(fb.read(), truth.T)


@pytest.mark.parametrize(("pol", "npol"), [("HHVV", 2), ("", 2), ("INTEN", 2), ("AA+BB", 2), ("CRCI", 4)])
def test_unknown_polarisations_are_refused(tmp_path, pol, npol):
    raw = np.random.default_rng(4).integers(0, 200, (32, npol, 8)).astype(np.uint8)
    path = psrfits(tmp_path / "a.fits", raw, 8, npol=npol, pol=pol)
    with pytest.raises(BadFile, match=re.escape(f"POL_TYPE={pol!r} with NPOL={npol}; expected AABB, XXYY")):
        Filterbank.open(path)
    for i in range(npol):
        assert np.array_equal(Filterbank.open(path, ifs=i).read(), raw[:, i].T)


@pytest.mark.parametrize("key", ["nchans", "nbits", "tsamp", "fch1", "foff"])
def test_a_filterbank_without_a_needed_key_is_refused(tmp_path, key):
    keys = {**PLAIN, "nchans": 6}
    del keys[key]
    path = tmp_path / "a.fil"
    path.write_bytes(header(**keys) + data("u1", (30, 6)).tobytes())
    with pytest.raises(BadFile, match=f"the header lacks {key}"):
        Filterbank.open(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("nchans", 0, "nchans=0"), ("nchans", -4, "nchans=-4"), ("nbits", 0, "nbits=0"), ("nbits", -8, "nbits=-8"),
        ("tsamp", 0.0, "tsamp=0"), ("tsamp", -1.0, "tsamp=-1"), ("tsamp", np.nan, "tsamp=nan"), ("foff", 0.0, "foff=0"),
        ("fch1", -1400.0, "fch1=-1400"), ("fch1", np.inf, "fch1=inf"), ("tstart", np.nan, "tstart=nan"),
        ("nifs", 0, "nifs=0"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(tmp_path, key, value, message):
    path = tmp_path / "a.fil"
    path.write_bytes(header(**{**PLAIN, "nchans": 6, key: value}) + data("u1", (30, 6)).tobytes())
    with pytest.raises(BadFile, match=message):
        Filterbank.open(path)


@pytest.mark.parametrize("kind", ["dat", "tim"])
def test_a_series_is_searched_at_its_own_dm_only(tmp_path, kind):
    """One channel has no delays between channels, so other DMs would be meaningless."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=20000).astype(np.float32)
    values[7000:7010] += 10
    fb = Filterbank.from_array(data("u1"), fch1=1400, foff=-0.5, tsamp=1e-3)
    {"dat": write_dat, "tim": write_tim}[kind](tmp_path / f"a.{kind}", values, fb.observation, dm=112.5)
    series = Filterbank.open(tmp_path / f"a.{kind}")
    found = search(series, [0.0])
    assert (found.dm[0], found.time[0]) == (112.5, pytest.approx(7.005, abs=2e-3))
    assert search(series, [112.5]).dm.tolist() == search(series, plan(series, dms=[112.5])).dm.tolist() == [112.5]
    assert np.array_equal(dedisperse(series, [112.5]).data[0], values)
    assert plan(series, dms=[112.5]).dms.tolist() == [0]
    said = "one channel, de-dispersed at DM 112.5: they cannot be searched at several DMs; expected only DM 112.5, or 0"
    for work in (
        lambda: search(series, [0.0, 10.0]), lambda: dedisperse(series, [5.0]), lambda: plan(series, 500),
        lambda: plan(series, dm_max=500, step=1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            work()


def test_quantities_are_converted():
    """Frequencies in GHz or Hz, a sampling time in ms and DMs in another unit are those in MHz, s and pc / cm3."""
    from astropy import units as u

    x = np.random.default_rng(1).integers(0, 200, (16, 4000)).astype(np.uint8)
    plain = Filterbank.from_array(x, fch1=400, foff=-1, tsamp=1e-3)
    freqs = plain.observation.freqs
    expected = dedisperse(plain, [0.0, 7.0])
    for made in (
        Filterbank.from_array(x, fch1=0.4 * u.GHz, foff=-1e3 * u.kHz, tsamp=1 * u.ms),
        Filterbank.from_array(x, freqs=freqs * 1e6 * u.Hz, tsamp=1e-3),
    ):
        np.testing.assert_allclose(made.observation.freqs, freqs, rtol=1e-15)
        found = dedisperse(made, [0.0, 7e6] * u.pc / u.m**3)
        assert np.array_equal(found.data, expected.data)
        assert found.dms == pytest.approx([0, 7])
    dms = plan(plain, 30e6 * u.pc / u.m**3)
    assert dms.dms.max() == pytest.approx(plan(plain, 30).dms.max())
    with pytest.raises(ValueError, match="fch1 has the unit s; one that converts to MHz is expected"):
        Filterbank.from_array(x, fch1=400 * u.s, foff=-1, tsamp=1e-3)


def test_quantities_of_pulses_plans_and_references_are_converted():
    from astropy import units as u

    x, dm = np.random.default_rng(1).integers(90, 110, (32, 6000)).astype(np.uint8), u.pc / u.m**3
    plain = Filterbank.from_array(x, fch1=400, foff=-1, tsamp=1e-3)
    with pytest.raises(ValueError, match=r"dm=-30.*expected a number of at least 0"):
        inject(plain, dm=-30, time=2.5, snr=30, width=4e-3)
    one = inject(plain, dm=30, time=2.5, snr=30, width=4e-3, scatter=1e-3)
    fb = inject(plain, dm=30e6 * dm, time=2500 * u.ms, snr=30, width=4 * u.ms, scatter=1 * u.ms)
    assert np.array_equal(fb.read(), one.read())
    for given, same in (
        ({"dm_min": 10e6 * dm, "step": 1e6 * dm}, {"dm_min": 10, "step": 1}),
        ({"width": 2 * u.ms}, {"width": 2e-3}),
        ({"rule": "presto", "resolution": 1 * u.ms}, {"rule": "presto", "resolution": 1e-3}),
        ({"scattering": "bhat2004", "longest": 2 * u.ms}, {"scattering": "bhat2004", "longest": 2e-3}),
    ):
        np.testing.assert_allclose(plan(fb, 50, **given).dms, plan(fb, 50, **same).dms, rtol=1e-12)
    for _ in range(2):  # the second time with the plan of the first
        a, b = (dedisperse(fb, [30.0], ref_freq=f, width=w) for f, w in ((0.5 * u.GHz, 1 * u.ms), (500, 1e-3)))
        assert np.array_equal(a.data, b.data)
        assert a.ref_freq == b.ref_freq == 500
        a, b = (search(fb, [30.0], ref_freq=f, max_width=w, block=t) for f, w, t in (
            (0.5 * u.GHz, 0.1 * u.s, 3000 * u.ms), (500, 0.1, 3.0)))  # fmt: skip
        assert a.time.tolist() == b.time.tolist() != []
    for name, bad in (("time", 5 * u.m), ("width", 1 * u.GHz)):
        with pytest.raises(ValueError, match=f"{name} has the unit"):
            inject(plain, **{"dm": 30, "time": 2.5, "snr": 30, "width": 4e-3, name: bad})
    for name in ("dm_min", "step", "width"):
        with pytest.raises(ValueError, match=f"{name} has the unit m;"):
            plan(fb, 50, **{name: 1 * u.m})
    for work in (search, dedisperse):
        with pytest.raises(ValueError, match="ref_freq has the unit m;"):
            work(fb, [30.0], ref_freq=1 * u.m)


def test_frequencies_in_hz_are_refused():
    x = np.zeros((4, 100), np.uint8)
    with pytest.raises(ValueError, match=r"band begins at 1.397e\+09 MHz; frequencies are expected in MHz"):
        Filterbank.from_array(x, fch1=1.4e9, foff=-1e6, tsamp=1e-3)


def test_quantities_of_made_data_and_cut_outs_are_converted():
    from astropy import units as u

    dm = u.pc / u.m**3
    plain = {"nchan": 16, "seed": 3, "snr": 40, "scatter": 2e-3, "width": 4e-3, "dm": 30, "duration": 3.0}
    given = {**plain, "scatter": 2 * u.ms, "width": 4 * u.ms, "dm": 30e6 * dm, "duration": 0.05 * u.min}
    band, same = (
        {"fch1": 400, "foff": -1, "tsamp": 1e-3},
        {"fch1": 0.4 * u.GHz, "foff": -1e3 * u.kHz, "tsamp": 1 * u.ms},
    )
    for when, units in (
        ({"times": [0.5, 2]}, {"times": [500, 2000] * u.ms}),
        ({"period": 0.75}, {"period": 750 * u.ms}),
        ({"rate": 2.0}, {"rate": 2 * u.Hz}),
    ):
        one, other = fake(**plain, **band, **when), fake(**given, **same, **units)
        assert np.array_equal(one.read(), other.read())
        assert one.observation.freqs == pytest.approx(other.observation.freqs, rel=1e-15)
    a, b = cutout(one, dm=30, time=0.5, width=4e-3), cutout(one, dm=30e6 * dm, time=500 * u.ms, width=4 * u.ms)
    assert np.array_equal(a.dedispersed, b.dedispersed)
    np.testing.assert_allclose(a.dms, b.dms, rtol=1e-14)
    one = Pulse(30 * u.pc / u.cm**3, 500 * u.ms, 4 * u.ms, 20, scatter=1 * u.ms)
    assert one == Pulse(30, 0.5, 4e-3, 20, scatter=1e-3)
    for make in (
        lambda: fake(width=1 * u.m),
        lambda: cutout(other, dm=30, time=0.5, width=1 * u.m),
        lambda: Pulse(30, 0.5, 1 * u.m, 20),
    ):
        with pytest.raises(ValueError, match="width has the unit m; one that converts to s is expected"):
            make()
