"""Simulated data: noise that does not depend on how it is read, pulses of known area, scattering, RRATs, bad input."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from tests.dedispersion.test_cli import run

from skysieve.dedispersion import Filterbank, fake, inject, search, write_fil


def test_fake_is_the_same_however_it_is_read(tmp_path):
    fb = fake(
        nchan=32, duration=10, tsamp=1e-3, fch1=1500, foff=4, dm=60, times=[4.09], width=2e-2, scatter=1e-2, seed=2
    )
    whole = fb.read()
    assert np.array_equal(np.concatenate([b for _, b in fb.blocks(999)], axis=1), whole)
    on_disk = fake(nchan=32, duration=10, tsamp=1e-3, fch1=1500, foff=4, dm=60, times=[4.09], width=2e-2, scatter=1e-2,
                   seed=2, path=tmp_path / "a.fil")  # fmt: skip
    assert np.array_equal(on_disk.read(), whole)
    assert on_disk.freqs[0] == 1500 + 4 * 31


def test_scattering_keeps_the_area_and_grows_to_low_frequencies():
    quiet = {"nchan": 64, "duration": 4, "tsamp": 1e-3, "fch1": 400, "foff": -1, "nbits": 32, "dm": 0, "times": [1.0]}
    noise = fake(**quiet, width=1e-2, height=0.0).read()
    plain = fake(**quiet, width=1e-2, height=1.0).read() - noise
    tails = fake(**quiet, width=1e-2, height=1.0, scatter=2e-2).read() - noise
    np.testing.assert_allclose(plain.sum(axis=1), 10, rtol=1e-4)
    np.testing.assert_allclose(tails.sum(axis=1), 10, rtol=1e-3)
    mean = (tails * np.arange(4000)).sum(axis=1) / tails.sum(axis=1) - 999.5
    tau = 20 * ((400 - np.arange(64)) / 368.5) ** -4
    np.testing.assert_allclose(mean, tau, rtol=0.02)


def test_data_without_a_whole_pulse_are_reported(tmp_path):
    """At DM 60 a pulse takes 4149 * 60 * (1 / 400.5^2 - 1 / 431.5^2) = 0.215 s from the first channel to the last."""
    band = {"nchan": 32, "duration": 2, "tsamp": 1e-3, "fch1": 431.5, "foff": -1, "dm": 60, "width": 1e-3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fake(**band, times=[1.75, 1.95])
        fake(**band, period=None)
        fake(**band, rate=0.0)
    with pytest.warns(UserWarning, match=r"all channels of the 2 s of data: at DM 60 it takes 0\.215 s"):
        fake(**band, times=[1.8])
    for rule, words in (({"period": 5.0}, "with a period of 5 s"), ({"rate": 1e-9}, "at a rate of 1e-09 / s")):
        with pytest.warns(UserWarning, match=f"no pulse lies in the 2 s of data {words}"):
            fake(**band, **rule)
    out = tmp_path / "a.fil"
    said = run("fake", "-o", out, "--dm", 1e9, "--nchan", 8, "--duration", 1, "--tsamp", 1e-3)
    assert "note: no pulse lies in all channels of the 1 s of data: at DM 1e+09 it" in said
    assert "note" not in run("fake", "-o", out, "--dm", 1, "--nchan", 8, "--tsamp", 1e-3, "--overwrite")


def test_an_rrat_has_its_rate():
    fb = fake(nchan=4, duration=100, tsamp=1e-2, fch1=1500, foff=-1, dm=0, rate=0.5, width=0.05, height=50, seed=11)
    found = search(fb, [0.0], threshold=20, block=20.0)
    assert abs(len(found) - 50) < 5 * math.sqrt(50)
    assert len(search(fake(nchan=4, duration=9, tsamp=1e-2, fch1=1500, foff=-1, rate=0.0), [0.0])) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nbits": 3}, "nbits=3"),
        ({"times": [1], "rate": 1}, "expected one of them"),
        ({"height": 1, "snr": 1}, "expected one of them"),
        ({"duration": -1}, "duration=-1"),
        ({"width": 0}, "width=0"),
        ({"period": -1}, "period=-1"),
        ({"rate": -1}, "rate=-1"),
        ({"scatter": -1}, "scatter=-1"),
        ({"nchan": 0}, "nchan=0"),
        ({"nchan": 12.5}, "nchan=12.5: expected a whole number"),
        ({"nchan": math.nan}, "nchan=nan: expected a whole number"),
        ({"seed": -1}, "seed=-1: expected a whole number, at least 0"),
        ({"duration": 1e9}, "expected at most 100,000 pulses"),
        ({"duration": 1, "times": [0.5, 5.0]}, "times=5.0: expected seconds from 0 to the duration, 1"),
        ({"dm": math.nan}, "dm=nan"),
        ({"dm": -1.0}, "dm=-1.0: expected at least 0"),
        ({"snr": math.inf}, "snr=inf"),
        ({"snr": 0.0}, "snr=0.0: expected a number above 0"),
        ({"duration": 1, "width": 2}, "width=2: expected at most the duration, 1 s"),
        ({"times": [1, math.nan]}, "times=nan: expected seconds"),
    ],
)
def test_fake_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        fake(**options)


def test_fake_writes_the_bits_that_are_asked_for(tmp_path):
    assert fake(path=tmp_path / "a.fil", nbits=2, nchan=8, duration=0.1).observation.nbits == 2
    with pytest.raises(ValueError, match="nbits=1: 7 channels of this size do not fill whole bytes"):
        fake(path=tmp_path / "b.fil", nbits=1, nchan=7, duration=0.1)
    assert not (tmp_path / "b.fil").exists()


def test_inject_refuses():
    fb = fake(nchan=8, duration=1, tsamp=1e-3, fch1=400, foff=-1, period=None)
    for options, message in (
        ({"time": 0.999}, "expected samples within 0 to 1000"),
        ({"time": 0.0001, "width": 0.1}, "the pulse covers samples -"),
        ({"snr": -1}, "snr=-1"),
        ({"width": float("nan")}, "width=nan"),
    ):
        with pytest.raises(ValueError, match=message):
            inject(fb, **{"dm": 50, "time": 0.5, "snr": 10, "width": 5e-3, **options})


def test_a_pulse_in_data_without_noise_has_no_snr():
    fb = Filterbank.from_array(np.full((4, 100), 5, np.uint8), fch1=1500, foff=-1, tsamp=1e-3)
    with pytest.raises(ValueError, match="noise around the pulse is 0 counts"):
        inject(fb, dm=1, time=0.05, snr=10, width=2e-3)
    assert inject(fb, dm=1, time=0.05, snr=10, width=2e-3, sigma=1.0).read().max() > 5


@pytest.mark.few
@pytest.mark.parametrize(("nbits", "sigma"), [(8, 1.5), (4, 2.5), (2, 0.94), (8, 16.0)])
def test_a_pulse_in_coarse_samples_has_its_snr(nbits, sigma):
    """The counts that are added, compared with those that the S/N requires in the simulated, rounded noise."""
    rng = np.random.default_rng(nbits)
    top = 2**nbits - 1
    x = np.clip(np.rint(rng.normal(1.4 if nbits == 2 else top / 3, sigma, (256, 4000))), 0, top).astype(np.uint8)
    fb = Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3, nbits=nbits)
    added = inject(fb, dm=50, time=2.0, snr=25, width=8e-3).read().astype(int) - x
    asked = 25 * math.sqrt((x.std(axis=1) ** 2).sum() * 8)
    assert added.sum() == pytest.approx(asked, rel=0.02)  # measured: 0.983 to 1.011 in eight realisations


def test_data_that_are_saturated_elsewhere_get_the_same_pulse():
    """Pieces without variation must not limit a pulse elsewhere in the data."""
    x = np.random.default_rng(1).normal(100, 16, (64, 20_000)).round().astype(np.uint8)
    asked = inject(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3), dm=10, time=0.5, snr=30, width=8e-3)
    full = x.copy()
    full[:, 4096:] = 255
    found = inject(Filterbank.from_array(full, fch1=1500, foff=-1, tsamp=1e-3), dm=10, time=0.5, snr=30, width=8e-3)
    count = [int((fb.read()[:, :4096].astype(int) - x[:, :4096]).sum()) for fb in (asked, found)]
    assert count[1] == pytest.approx(count[0], rel=0.01)  # measured: 0.998 to 1.000


def test_what_is_not_finite_spoils_no_pulse():
    x = np.random.default_rng(0).normal(0, 1, (4, 1000)).astype(np.float32)
    clean = inject(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3), dm=1, time=0.5, snr=50, width=4e-3).read()
    holed = x.copy()
    holed[:, 900] = np.nan
    found = inject(Filterbank.from_array(holed, fch1=1500, foff=-1, tsamp=1e-3), dm=1, time=0.5, snr=50, width=4e-3)
    np.testing.assert_allclose(found.read()[:, :900], clean[:, :900], rtol=0.01, atol=0.1)
    assert np.isnan(found.read()[:, 900]).all()


@pytest.mark.parametrize("nbits", [8, 16])
def test_a_bright_pulse_saturates_signed_samples_of_a_file(tmp_path, nbits):
    top = 2 ** (nbits - 1) - 1
    x = np.random.default_rng(0).integers(top - 40, top - 20, (16, 2000)).astype(f"i{nbits // 8}")
    write_fil(tmp_path / "a.fil", Filterbank.from_array(x, fch1=1500, foff=-4, tsamp=1e-3))
    with Filterbank.open(tmp_path / "a.fil") as fb:
        y = inject(fb, dm=50, time=0.5, snr=300, width=5e-3).read()
        assert (fb.maximum, y.max()) == (0, top)
        assert (y >= x).all()
