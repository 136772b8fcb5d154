"""Conversion of other samples to 8-bit integers: the loss of S/N, and independence of the pieces."""

from __future__ import annotations

import numpy as np
import pytest
from tests.dedispersion.test_formats import psrfits
from tests.marks import slow

from skysieve.dedispersion import Filterbank, fake, inject, requantise, search
from skysieve.dedispersion.data.requantise import COUNTS, LEVEL, LOSS


def floats(x, tsamp=1e-3):
    return Filterbank.from_array(x, fch1=1500, foff=-2, tsamp=tsamp)


@pytest.fixture(scope="module")
def pulses():
    """20 pulses of S/N 20 in float32 noise of 64 channels, whose bandpass has levels to 500 and sigmas 2 to 6."""
    made = fake(nchan=64, duration=22, tsamp=1e-3, fch1=1500, foff=-2, nbits=32, period=None, seed=3)
    for i in range(20):
        made = inject(made, dm=100, time=1 + i, snr=20, width=8e-3, sigma=1.0)
    shape = 4 + 2 * np.sin(np.arange(64) / 9)
    return (made.read() * shape[:, None] + 500 * np.cos(np.arange(64) / 30)[:, None]).astype(np.float32)


@pytest.mark.slow
def test_it_costs_less_than_one_percent(pulses):
    """Required: at most 1% of S/N.  Against float32 of equal noise in every channel."""
    flat = (pulses - np.median(pulses, axis=1, keepdims=True)) / pulses.std(axis=1, keepdims=True)
    snr = {}
    for name, fb in (("flat", floats(flat)), ("made", requantise(floats(pulses))), ("raw", floats(pulses))):
        found = search(fb, [100.0], threshold=10)
        assert len(found) == 20
        snr[name] = found.snr.mean(dtype=np.float64)
    assert abs(snr["made"] / snr["flat"] - 1) < 0.01  # measured -0.5% to 0.2% over four seeds
    assert snr["made"] > 0.99 * snr["raw"]
    assert pytest.approx(1 / 2400, rel=1e-3) == LOSS
    assert requantise(floats(pulses)).observation.extra["requantise_loss"] == LOSS


@pytest.mark.parametrize("kind", ["f4", slow("u2"), slow("i1"), "u1"])
def test_every_channel_has_the_same_noise(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(60, 20, (16, 9000)) * np.linspace(0.5, 1, 16)[:, None]
    y = requantise(floats(np.rint(x).clip(-128 if kind == "i1" else 0, 127).astype(kind))).read()
    assert y.dtype == np.uint8
    np.testing.assert_allclose(y.std(axis=1), COUNTS, rtol=0.05)
    np.testing.assert_allclose(y.mean(axis=1), LEVEL, atol=1.2)  # 4 of its errors


def test_stationary_data_have_one_scale_and_jumps_are_followed():
    rng = np.random.default_rng(1)
    x = rng.normal(5, 1, (8, 12000)).astype(np.float32)
    reader = requantise(floats(x)).readers[0]
    assert all(np.array_equal(reader.levels(0), reader.levels(i)) for i in range(6))
    x[3, 6000:] = x[3, 6000:] * 4 + 100
    y = requantise(floats(x)).read().astype(float)
    for part in (y[3, :6000], y[3, 6000:]):
        assert abs(part.mean() - LEVEL) < 1.2
        assert part.std() == pytest.approx(COUNTS, rel=0.06)


def test_it_does_not_depend_on_how_it_is_read():
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (8, 9000)).astype(np.float32) * (1 + np.arange(9000) // 3000)
    whole = requantise(floats(x)).read()
    again = requantise(floats(x))
    assert np.array_equal(again.block(7001, 900), whole[:, 7001:7901])
    assert np.array_equal(again.block(1990, 20), whole[:, 1990:2010])
    short = requantise(floats(x[:, :6100])).read()
    assert np.array_equal(short[:, :6000], whole[:, :6000])  # blocks depend on none after them


def test_what_is_not_finite_or_constant_takes_the_middle():
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, (8, 6000)).astype(np.float32)
    x[1], x[2], x[3, 100], x[4, 200] = np.nan, 7.0, np.inf, np.nan
    x[5, 1500:4600] = 0.0  # gone for a while, a whole block among it
    y = requantise(floats(x)).read()
    assert (y[1:3] == LEVEL).all()
    assert y[3, 100] == y[4, 200] == LEVEL
    assert (y[5, 2000:4000] == LEVEL).all()
    assert y[5, 5000:].std() == pytest.approx(COUNTS, rel=0.1)
    assert y[[0, 3, 4, 6, 7]].std() == pytest.approx(COUNTS, rel=0.05)


def test_scaled_psrfits(tmp_path):
    """Scales and offsets that change from row to row: the integers below them are found again, to rounding."""
    rng = np.random.default_rng(5)
    raw = np.rint(rng.normal(100, 12, (6400, 1, 16))).astype(np.uint8)
    scl, offs = (np.tile(rng.uniform(*lim, 16), (400, 1)) for lim in ((0.5, 2), (-50, 50)))
    fb = Filterbank.open(psrfits(tmp_path / "a.fits", raw, 8, scl=scl, offs=offs))
    assert fb.dtype == np.float32
    y = requantise(fb).read().astype(float)
    for a, b in zip(y, raw[:, 0].T, strict=True):
        assert np.corrcoef(a, b)[0, 1] > 0.999


def test_refused():
    with pytest.raises(TypeError, match="data is a ndarray"):
        requantise(np.zeros((3, 4)))


@pytest.mark.parametrize("last", [5, 62, 250, 511])
def test_the_end_of_stationary_data_has_the_scale_of_the_rest(last):
    """Sigmas of few samples are small on average, so that a short last block had up to 1.5 times the noise."""
    x = np.random.default_rng(last).normal(100, 3, (32, 2000 + last)).astype(np.float32)
    made = requantise(floats(x)).read()
    scale = COUNTS / x[:, :2000].std(axis=1, keepdims=True)
    assert np.abs(made - (LEVEL + scale * (x - x[:, :2000].mean(axis=1, keepdims=True)))).max() < 6


@pytest.mark.parametrize("nsamp", [40, 100, 500])
def test_short_data_have_the_scale_of_long_data(nsamp):
    x = np.random.default_rng(nsamp).normal(100, 3, (256, nsamp)).astype(np.float32)
    made = requantise(floats(x)).read()
    assert abs(made.std(axis=1, dtype=np.float64).mean() / COUNTS - 1) < 0.03
