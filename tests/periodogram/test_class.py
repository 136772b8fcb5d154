"""`skysieve.LombScargle` compared with astropy's class: every method, unit and error."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from astropy import units as u
from astropy.table import MaskedColumn, Table
from astropy.time import Time, TimeDelta
from astropy.timeseries import BinnedTimeSeries, TimeSeries
from astropy.timeseries import LombScargle as Astropy
from astropy.utils.masked import Masked

import skysieve
from skysieve.periodogram import Alias, NoFormulaWarning, register_astropy

NORMALIZATIONS = ("standard", "model", "log", "psd")


def curve(n=60, span=40.0, seed=0, period=2.7, noise=0.5):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, span, n))
    dy = rng.uniform(0.5, 1.5, n) * noise
    return t, 12 + np.sin(2 * np.pi * t / period) + dy * rng.normal(size=n), dy


def ours(*args, **kwargs):
    return skysieve.LombScargle(*args, device="cpu", **kwargs)


FORMS = {
    "bare": lambda t, y, dy: (t, y, dy),
    "no errors": lambda t, y, dy: (t, y, None),
    "one error": lambda t, y, dy: (t, y, 0.3),
    "units": lambda t, y, dy: (t * u.d, y * u.mag, dy * 1e3 * u.mmag),
    "unit of t alone": lambda t, y, dy: (t * u.h, y, dy),
    "unit of y alone": lambda t, y, dy: (t, y * u.Jy, None),
    "Time": lambda t, y, dy: (Time(2459000.25 + t, format="jd"), y * u.mag, dy * u.mag),
    "TimeDelta": lambda t, y, dy: (TimeDelta(t, format="jd"), y, dy),
}


def like(mine, theirs, rtol=1e-9, atol=1e-9):
    """Check that two values have the same numbers, unit and type."""
    assert getattr(mine, "unit", None) == getattr(theirs, "unit", None)
    assert np.shape(mine) == np.shape(theirs)
    np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=rtol, atol=atol)


@pytest.mark.few
@pytest.mark.parametrize("form", FORMS)
def test_every_method_as_astropy(form):
    """1e-8 is the accuracy of astropy's own fast method here; the exact ones agree to 1e-10."""
    data = FORMS[form](*curve())
    mine, theirs = ours(*data), Astropy(*data)
    like(mine.autofrequency(), theirs.autofrequency(), 0, 0)
    like(mine.autofrequency(return_freq_limits=True)[1], theirs.autofrequency(return_freq_limits=True)[1], 0, 0)
    f, p = mine.autopower(samples_per_peak=3, nyquist_factor=2)
    f2, p2 = theirs.autopower(samples_per_peak=3, nyquist_factor=2, method="cython")
    like(f, f2, 0, 0)
    scale = float(np.max(np.asarray(p2)))
    like(p, p2, 1e-8, 1e-9 * scale)
    best = f[np.argmax(p)]
    at = data[0][:7] if form == "Time" else theirs._trel[:7] * 1.01
    like(mine.model(at, best), theirs.model(at, best))
    like(mine.offset(), theirs.offset())
    like(mine.model_parameters(best), theirs.model_parameters(best))
    like(mine.model_parameters(best, units=False), theirs.model_parameters(best, units=False))
    like(mine.design_matrix(best), theirs.design_matrix(best))
    like(mine.design_matrix(best, at), theirs.design_matrix(best, at))
    z = 0.3 + 0.1 * np.arange(3)
    like(mine.distribution(z), theirs.distribution(z))
    like(mine.distribution(z, cumulative=True), theirs.distribution(z, cumulative=True))
    for method in ("single", "naive", "davies", "baluev"):
        like(mine.false_alarm_probability(z, method=method), theirs.false_alarm_probability(z, method=method), 1e-10, 0)
        like(mine.false_alarm_level(0.05, method=method), theirs.false_alarm_level(0.05, method=method), 1e-7)
    assert skysieve.LombScargle.__init__.__code__.co_varnames[:8] == Astropy.__init__.__code__.co_varnames[:8]


@pytest.mark.few
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("fit_mean", [True, False])
@pytest.mark.parametrize("center_data", [True, False])
def test_options_as_astropy(normalization, fit_mean, center_data):
    t, y, dy = curve(40)
    options = {"fit_mean": fit_mean, "center_data": center_data, "normalization": normalization}
    mine, theirs = ours(t, y, dy, **options), Astropy(t, y, dy, **options)
    f = np.random.default_rng(1).uniform(0.05, 3, (4, 5))
    expected = theirs.power(f, method="cython")
    like(mine.power(f), expected, 1e-9, 1e-10)
    like(mine.power(-f[0]), expected[0], 1e-9, 1e-10)
    assert mine.power(f[0, 0]).shape == ()
    like(mine.power(f, normalization="log"), theirs.power(f, normalization="log", method="cython"), 1e-9, 1e-10)
    like(mine.model(t, 0.4), theirs.model(t, 0.4))
    like(mine.distribution(0.3), theirs.distribution(0.3))
    if not fit_mean and not center_data:
        with pytest.warns(NoFormulaWarning, match="the data are not centred"):
            assert mine.false_alarm_probability(0.3) is None
        return
    z = {"standard": 0.4, "model": 0.7, "log": 0.5, "psd": 9.0}[normalization]
    for method in ("single", "naive", "davies", "baluev"):
        for kwargs in ({}, {"maximum_frequency": 7.0, "minimum_frequency": 0.1}):
            mine_p = mine.false_alarm_probability(z, method=method, **kwargs)
            like(mine_p, theirs.false_alarm_probability(z, method=method, **kwargs), 1e-10, 0)
            level = mine.false_alarm_level([1e-3, 1e-12], method=method, **kwargs)
            assert np.allclose(mine.false_alarm_probability(level, method=method, **kwargs), [1e-3, 1e-12], rtol=1e-9)


@pytest.mark.parametrize(
    "method", ["auto", "slow", "cython", "scipy", "chi2", "fast", "fastchi2", "fastnifty", "nufft"]
)
def test_methods_by_astropys_names(method):
    t, y, dy = curve()
    f = np.linspace(0.1, 4, 700)
    expected = Astropy(t, y, dy).power(f, method="cython")
    np.testing.assert_allclose(ours(t, y, dy).power(f, method=method), expected, atol=1e-9)
    np.testing.assert_allclose(ours(t, y, dy).power(f.reshape(7, 100), method=method).ravel(), expected, atol=1e-9)
    got = ours(t, y, dy).power(f, method=method, assume_regular_frequency=True)
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_zero_frequency():
    t, y, dy = curve(30)
    assert np.isnan(ours(t, y, dy).power([0.0, 0.5])[0])
    free = ours(t, y, dy, fit_mean=False, center_data=False)
    got = free.power([0.0, 0.5])
    w = dy**-2
    np.testing.assert_allclose(got[0], np.sum(w * y) ** 2 / np.sum(w) / np.sum(w * y**2), rtol=1e-12)
    assert got[1] == free.power(0.5)
    assert ours(t, y, dy, nterms=0).power([0.0, 0.5]).tolist() == [0, 0]
    # the window by the old recipe (astropy #7875): ones, not centred
    assert ours(t, np.ones(30) + 1e-9 * t, fit_mean=False, center_data=False).power([0.0])[0] == pytest.approx(1)


def test_from_timeseries():
    t, y, dy = curve(20)
    y[3], dy[5] = np.nan, np.nan
    series = TimeSeries(time=Time(59000 + t, format="mjd"), data={"m": y * u.mag, "e": dy * u.mag})
    mine = skysieve.LombScargle.from_timeseries(series, "m", "e", device="cpu")
    theirs = Astropy.from_timeseries(series, "m", "e")
    like(mine.power(0.3 / u.d), theirs.power(0.3 / u.d, method="cython"))
    assert mine.dy.shape == (18,)
    one = skysieve.LombScargle.from_timeseries(series, signal_column_name="m", uncertainty=0.1 * u.mag, device="cpu")
    assert one.y.shape == (19,)
    series["masked"] = Masked(y * u.mag, mask=np.arange(20) == 7)
    series["plain"] = MaskedColumn(y, mask=np.arange(20) == 7)
    for name in ("masked", "plain"):
        assert np.isfinite(skysieve.LombScargle.from_timeseries(series, name, device="cpu").y).sum() == 18
    binned = BinnedTimeSeries(time_bin_start=series.time, time_bin_size=0.01 * u.d, data={"m": y * u.mag})
    mine = skysieve.LombScargle.from_timeseries(binned, "m", device="cpu")
    like(mine.offset(), Astropy.from_timeseries(binned, "m").offset())
    with pytest.raises(ValueError, match="signal_column_name"):
        skysieve.LombScargle.from_timeseries(series)
    with pytest.raises(TypeError, match="TimeSeries or BinnedTimeSeries"):
        skysieve.LombScargle.from_timeseries({"m": y}, "m")


def test_units_that_do_not_fit():
    t, y, dy = curve(20)
    with_units = ours(t * u.d, y * u.mag)
    absolute = ours(Time(59000 + t, format="mjd"), y)
    cases = [
        (ValueError, lambda cls: cls(t * u.d, y * u.mag, dy * u.d)),
        (ValueError, lambda cls: cls(t, y * u.mag, dy)),
        (ValueError, lambda cls: cls(np.ones((2, 3)), np.ones((2, 3)))),
        (ValueError, lambda cls: cls(t, y[:-1])),
        (ValueError, lambda cls: cls(t * u.d, y).power(np.ones(3) * u.d)),
        (ValueError, lambda cls: cls(t, y).power(np.ones(3) / u.d)),
        (ValueError, lambda cls: cls(t * u.d, y).power(np.ones(3))),
        (ValueError, lambda cls: cls(t * u.d, y).model(t, 1 / u.d)),
        (ValueError, lambda cls: cls(t * u.d, y).model(t * u.d, 1.0)),
        (ValueError, lambda cls: cls(t * u.d, y).model(t * u.m, 1 / u.d)),
        (u.UnitConversionError, lambda cls: cls(t * u.d, y).autofrequency(maximum_frequency=3.0)),
        (TypeError, lambda cls: cls(t, y).model(Time(59000 + t, format="mjd"), 1.0)),
        (TypeError, lambda cls: cls(Time(59000 + t, format="mjd"), y).model(t * u.d, 1 / u.d)),
        (ValueError, lambda cls: cls(t, y).model(t, [1.0, 2.0])),
        (ValueError, lambda cls: cls(t, y, nterms=0, fit_mean=False).design_matrix(1.0)),
        (ValueError, lambda cls: cls(t, y).power(1.0, method="quick")),
        (ValueError, lambda cls: cls(t, y).power([1.0, 2.0, 2.5], method="fast")),
        (ValueError, lambda cls: cls(t, y).false_alarm_probability(0.5, method="guess")),
    ]
    for error, call in cases:
        for cls in (Astropy, ours):  # what astropy refuses, our class refuses
            with pytest.raises(error):
                call(cls)
    with pytest.raises(ValueError, match="the unit of dy, mag, does not convert to y, which has none"):
        ours(t, y, dy * u.mag)
    with pytest.raises(u.UnitConversionError, match=r"maximum_frequency=3\.0 has no unit, but t is in d"):
        with_units.peaks(maximum_frequency=3.0)
    with pytest.raises(u.UnitConversionError, match="minimum_frequency has the unit 1 / d, but t has none"):
        ours(t, y).false_alarm_level(0.1, minimum_frequency=0.1 / u.d)
    assert with_units.power(1 / u.h).unit == u.dimensionless_unscaled
    assert absolute.model(Time([59000, 59001], format="mjd"), 0.2 / u.d).shape == (2,)


def test_plain_times_beside_values_with_a_unit():
    """astropy then makes the times dimensionless, and plain frequencies suit them."""
    t, y, _ = curve(60)
    ends = {"minimum_frequency": 0.05, "maximum_frequency": 2.0}
    found, theirs, plain = ours(t, y * u.mag), Astropy(t, y * u.mag), ours(t, y)
    np.testing.assert_array_equal(found.autofrequency(**ends), theirs.autofrequency(**ends))
    np.testing.assert_allclose(found.autopower(**ends)[1], plain.autopower(**ends)[1], rtol=1e-12)
    np.testing.assert_allclose(found.false_alarm_level(0.1, **ends), theirs.false_alarm_level(0.1, **ends), rtol=1e-9)
    peaks, expected = found.peaks(3, **ends), plain.peaks(3, **ends)
    np.testing.assert_array_equal(peaks.frequency, expected.frequency)
    np.testing.assert_array_equal(peaks.alias, expected.alias)
    np.testing.assert_array_equal(found.prewhiten(1, **ends).frequency, plain.prewhiten(1, **ends).frequency)


def test_rows_that_are_not_finite_are_left_out():
    t, y, dy = curve(40)
    holes = y.copy()
    holes[[3, 9]] = np.nan, np.inf
    keep = np.isfinite(holes)
    whole, part = ours(t, holes, dy), ours(t[keep], y[keep], dy[keep])
    assert whole.power(0.4) == part.power(0.4)
    assert whole.offset() == part.offset()
    assert np.array_equal(whole.model(t, 0.4), part.model(t, 0.4))
    masked = np.ma.MaskedArray(y, mask=~keep)
    assert ours(t, masked, dy).power(0.4) == part.power(0.4)
    table = Table({"t": t * u.d, "y": MaskedColumn(y, mask=~keep, unit="mag"), "dy": dy * u.mag})
    assert ours(table["t"], table["y"], table["dy"]).power(0.4 / u.d) == part.power(0.4)
    assert ours(t * u.d, Masked(y * u.mag, mask=~keep), dy * u.mag).power(0.4 / u.d) == part.power(0.4)
    frame = {"t": t, "y": holes}
    assert ours(frame["t"], list(holes), dy).offset() == part.offset()


def test_a_time_whose_first_entry_is_masked() -> None:
    t, y, dy = curve()
    times = Time(t + 58000, format="mjd")
    times[0] = np.ma.masked
    found, rest = ours(times, y, dy), ours(Time(t[1:] + 58000, format="mjd"), y[1:], dy[1:])
    frequency, power = rest.autopower()
    assert np.array_equal(found.power(frequency), power)
    assert np.array_equal(found.model(times[1:4], frequency[3]), rest.model(times[1:4], frequency[3]))


def test_magnitudes_of_a_system_are_magnitudes() -> None:
    t, y, dy = curve()
    times, errors = t * u.day, dy * u.mag
    plain = ours(times, y * u.mag, errors)
    of_system = ours(times, y * u.ABmag, errors)
    assert of_system.offset() == plain.offset()
    assert np.array_equal(of_system.power([1.0, 2.0] / u.day), plain.power([1.0, 2.0] / u.day))


@pytest.mark.few
@pytest.mark.parametrize("nterms", [0, 2, 4])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_several_terms(nterms, normalization):
    t, y, dy = curve(60)
    mine = ours(t, y, dy, nterms=nterms, normalization=normalization)
    theirs = Astropy(t, y, dy, nterms=nterms, normalization=normalization)
    f = np.linspace(0.1, 3, 300)
    expected = theirs.power(f, method="chi2")
    np.testing.assert_allclose(mine.power(f), expected, atol=1e-8 * max(1, float(expected.max())))
    odd = f[[3, 200, 17]]
    np.testing.assert_allclose(mine.power(odd, method="chi2"), expected[[3, 200, 17]], rtol=1e-9, atol=1e-12)
    like(mine.model(t[:5], 0.37), theirs.model(t[:5], 0.37))
    like(mine.design_matrix(0.37), theirs.design_matrix(0.37))
    like(mine.model_parameters(0.37), theirs.model_parameters(0.37))
    if nterms != 2:
        return
    peaks = mine.peaks(2, maximum_frequency=3.0)
    chance = mine.false_alarm_probability(peaks.power, maximum_frequency=3.0)
    np.testing.assert_allclose(peaks.fap, chance, rtol=1e-9)
    keywords = {"n_bootstraps": 20, "random_seed": 0}
    drawn = mine.false_alarm_level(0.5, method="bootstrap", frequency=f, method_kwds=keywords)
    rng = np.random.default_rng(0)
    highest = []
    for _ in range(20):
        s = rng.integers(0, 60, 60)
        resampled = Astropy(t, y[s], dy[s], nterms=2, normalization=normalization)
        highest.append(resampled.power(f, method="chi2").max())
    assert drawn == pytest.approx(np.sort(highest)[10], rel=1e-9)


def test_bad_arguments():
    t, y, _ = curve(20)
    with pytest.raises(ValueError, match="constant"):
        ours(t, np.ones(20)).power([0.5])
    with pytest.raises(ValueError, match="all equal"):
        ours(np.ones(20), y).autopower()
    with pytest.raises(TypeError, match="use_cuda"):
        ours(t, y).power([0.5], method_kwds={"use_cuda": True})
    with pytest.raises(TypeError, match="n_boot"):
        ours(t, y).false_alarm_probability(0.5, method="bootstrap", method_kwds={"n_boot": 3})
    with pytest.raises(ValueError, match="n_bootstraps=0"):
        ours(t, y).false_alarm_probability(0.5, method="bootstrap", method_kwds={"n_bootstraps": 0})
    with pytest.raises(TypeError, match="takes none"):
        ours(t, y).false_alarm_probability(0.5, method_kwds={"n_bootstraps": 3})
    with pytest.raises(ValueError, match="from 0 to 1"):
        ours(t, y).false_alarm_level(1.5)
    with pytest.raises(ValueError, match="n=0"):
        ours(t, y).prewhiten(0)
    with pytest.raises(TypeError, match="dtype"):
        ours(t, np.array(["a"] * 20))
    assert ours(t, y).power([0.5], method="fast", method_kwds={"use_fft": True}).shape == (1,)


def test_no_warnings_of_the_default_grid():
    t, y, dy = curve()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(t, y, dy).autopower()
        ours(t, y, dy).power(np.linspace(0.001, 30, 400))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_register_astropy(dtype):
    register_astropy(device="cpu", dtype=dtype)
    t, y, dy = curve()
    for options in ({}, {"fit_mean": False}, {"normalization": "psd"}, {"center_data": False, "fit_mean": False}):
        theirs = Astropy(t * u.d, y * u.mag, dy * u.mag, **options)
        f, p = theirs.autopower(method="skysieve")
        expected = theirs.power(f, method="cython")
        assert p.unit == expected.unit
        tolerance = 1e-9 if dtype == "float64" else 3e-6
        np.testing.assert_allclose(p.value, expected.value, atol=tolerance * float(expected.max()))
    assert "skysieve" in Astropy.available_methods
    with pytest.raises(ValueError, match="nterms"):
        Astropy(t, y, nterms=2).power([0.5], method="skysieve")


def test_window():
    t = np.repeat(np.arange(50.0), 3) + np.random.default_rng(0).uniform(0, 0.2, 150)
    dy = np.random.default_rng(1).uniform(1, 2, 150)
    ls = ours(2458000 + t, t % 1, dy)
    w = dy**-2 / np.sum(dy**-2)
    f = np.linspace(-3, 3, 600).reshape(3, -1)[:2]
    expected = np.abs(np.exp(2j * np.pi * f[..., None] * (t - 25)) @ w) ** 2
    np.testing.assert_allclose(ls.window(f), expected, atol=1e-9)  # JD: times are rounded to 5e-10 d
    many = np.linspace(0, 3, 20_000)
    one = np.concatenate([ls.window(many[i : i + 1000]) for i in range(0, 20_000, 1000)])
    np.testing.assert_allclose(ls.window(many), one, atol=1e-11)
    assert ls.window(0) == pytest.approx(1)
    assert ls.window(1.0) > 0.5
    assert ours(t * u.d, t).window(1 / u.d) == pytest.approx(ours(t, t).window(1.0))


def test_peaks():
    t, y, dy = curve(200, 60.0, noise=0.3)
    ls = ours(t * u.d, y * u.mag, dy * u.mag)
    peaks = ls.peaks(4, maximum_frequency=5 / u.d)
    assert peaks.period[0].unit == u.d
    assert peaks.period[0].value == pytest.approx(2.7, abs=0.01)
    assert np.all(np.diff(peaks.power.value) <= 0)
    assert peaks.fap[0] < 1e-30 < peaks.fap[1]
    expected = ls.false_alarm_probability(peaks.power.value, maximum_frequency=5 / u.d).value
    np.testing.assert_allclose(peaks.fap, expected, rtol=1e-2)  # the last frequency of the grid is not exactly 5
    assert "fap (baluev)" in repr(peaks)
    names = ["period", "period_error", "frequency", "frequency_error", "power", "fap"]
    assert peaks.to_table().colnames[:6] == names
    raw = ours(t, y).peaks(2, normalization="scargle", maximum_frequency=5.0)
    assert raw.fap is None
    assert "unknown scatter" in raw.reason
    assert ls.peaks(2, false_alarm=None, aliases=False, frequency=np.linspace(0.1, 3, 999) / u.d).alias is None
    boot = ls.peaks(2, false_alarm="bootstrap", maximum_frequency=2 / u.d, method_kwds={"n_bootstraps": 50})
    assert boot.fap[0] == 0
    with pytest.raises(ValueError, match="not a unit of time"):
        ours(t * u.m, y).peaks(1)
    assert Alias(int(peaks.alias[0])) in (Alias.NONE, Alias.SAMPLING)


def test_prewhiten():
    """Three sinusoids of known frequency come out within their errors."""
    rng = np.random.default_rng(5)
    t = np.sort(rng.uniform(0, 80, 500))
    truth = np.array([0.71, 1.9, 3.3]), np.array([1.0, 0.6, 0.25])
    y = 5 + sum(a * np.sin(2 * np.pi * (f * t + 0.1 * k)) for k, (f, a) in enumerate(zip(*truth, strict=True)))
    y = y + rng.normal(0, 0.2, t.size)
    ls = ours(Time(59000 + t, format="mjd"), y * u.mag, 0.2 * u.mag)
    found = ls.prewhiten(5, maximum_frequency=5 / u.d, fap_limit=1e-3)
    assert len(found) == 3
    np.testing.assert_array_less(np.abs(found.frequency.value - truth[0]), 5 * found.frequency_error.value)
    np.testing.assert_array_less(np.abs(found.amplitude.value - truth[1]), 5 * found.amplitude_error.value)
    # one sinusoid: sigma_f = sqrt(6/N) sigma / (pi T A) (Montgomery & O'Donoghue 1999, eq. 4)
    expected = np.sqrt(6 / 500) * 0.2 / (np.pi * 80 * truth[1])
    np.testing.assert_allclose(found.frequency_error.value, expected, rtol=0.15)
    assert found.residual.y.std().value == pytest.approx(0.2, rel=0.1)
    rebuilt = found.model(Time(59000 + t, format="mjd")) + found.residual.y
    np.testing.assert_allclose(rebuilt.value, y, atol=1e-9)
    assert "amplitude" in repr(found)
    assert len(ours(t, rng.normal(size=500)).prewhiten(3, maximum_frequency=3.0, fap_limit=1e-6)) == 0
    with pytest.raises(ValueError, match="have 6 usable rows"):
        ours(t[:6], y[:6]).prewhiten(2)


# ---------------------------------------------------------------- odd input


def odd(**changes):
    rng = np.random.default_rng(5)
    t = np.sort(rng.uniform(0, 30, 60))
    data = {"t": t, "y": np.sin(2 * np.pi * 0.7 * t) + 0.2 * rng.normal(size=60), "dy": np.full(60, 0.2)}
    return skysieve.LombScargle(**(data | changes), device="cpu")


@pytest.mark.parametrize(
    "ask",
    [
        lambda ls: ls.window([0.5]),
        lambda ls: ls.model([1.0], 0.7),
        lambda ls: ls.offset(),
        lambda ls: ls.power([0.7]),
        lambda ls: ls.false_alarm_probability(0.5, maximum_frequency=2),
    ],
)
def test_errors_that_are_none_and_rows_that_are_none(ask) -> None:
    """Every method says what is wrong; none answers NaN."""
    with pytest.raises(ValueError, match=r"dy\[3\] is 0; every error must be positive"):
        ask(odd(dy=np.where(np.arange(60) == 3, 0.0, 0.2)))
    with pytest.raises(ValueError, match="no usable row: of 60 none is finite in t, y and dy"):
        ask(odd(y=np.full(60, np.nan)))


def test_prewhitening_shortens_steps_that_raise_chi_square():
    """Of these 40 points the first Gauss-Newton step with three sinusoids is too long."""
    rng = np.random.default_rng(64)
    t = np.sort(rng.uniform(0, 1, 40))
    frequency = np.array([3.4, 5.1, 8.3])
    y = np.sin(2 * np.pi * (np.outer(t, frequency) + rng.random(3))).sum(axis=1) + 0.02 * rng.normal(size=40)
    found = ours(t, y).prewhiten(3, maximum_frequency=20)
    np.testing.assert_allclose(np.sort(found.frequency), frequency, atol=5 * found.frequency_error.max())
    assert found.frequency_error.max() < 0.01
    assert np.std(found.residual.y) < 0.025


def test_masked_rows_are_not_prewhitened() -> None:
    whole = odd()
    y = np.ma.MaskedArray(whole.y, mask=np.arange(60) < 5)
    found = odd(y=y).prewhiten(1, maximum_frequency=2)
    alone = odd(t=whole.t[5:], y=whole.y[5:], dy=whole.dy[5:]).prewhiten(1, maximum_frequency=2)
    np.testing.assert_allclose(found.frequency, alone.frequency, rtol=1e-9)
    assert np.isnan(found.residual.y[:5]).all()
    np.testing.assert_allclose(found.residual.y[5:], alone.residual.y, atol=1e-6)


def test_prewhitening_ends_where_rounding_begins() -> None:
    t = odd().t
    found = odd(y=15 + np.sin(2 * np.pi * 0.7 * t), dy=None).prewhiten(3, maximum_frequency=2)
    np.testing.assert_allclose(found.frequency, [0.7], rtol=1e-9)


def test_grids_without_frequencies() -> None:
    for ask in (
        lambda **grid: odd().peaks(2, **grid),
        lambda **grid: odd().prewhiten(1, **grid),
        lambda **grid: odd().false_alarm_probability(0.5, **grid),
    ):
        with pytest.raises(ValueError, match="from 2 to 1 holds no frequency: expected a grid of at least one"):
            ask(minimum_frequency=2, maximum_frequency=1)
    with pytest.raises(ValueError, match="frequency is empty"):
        odd().peaks(2, frequency=[])


def test_negative_and_positive_frequencies_said_to_be_regular() -> None:
    frequency = np.linspace(-1, 2, 101)
    np.testing.assert_allclose(
        odd().power(frequency, assume_regular_frequency=True), odd().power(np.abs(frequency)), rtol=1e-8, atol=1e-10
    )


def test_bootstrap_of_what_is_no_number() -> None:
    few = {"n_bootstraps": 10, "random_seed": 1}
    assert np.isnan(odd().false_alarm_probability(np.nan, "bootstrap", maximum_frequency=2, method_kwds=few))
    for method, keywords in (("bootstrap", few), ("baluev", None)):
        for wrong in (2, -1, np.nan):
            with pytest.raises(ValueError, match="expected numbers from 0 to 1"):
                odd().false_alarm_level(wrong, method, maximum_frequency=2, method_kwds=keywords)


def test_density_at_the_end_of_the_range() -> None:
    from astropy.timeseries import LombScargle

    ls = odd()
    with np.errstate(all="raise", under="ignore"):
        got = ls.distribution([0.0, 0.3, 1.0])
    np.testing.assert_allclose(got, LombScargle(ls.t, ls.y, ls.dy).distribution([0.0, 0.3, 1.0]), rtol=1e-12)


def test_arguments_are_not_ignored() -> None:
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="expected a whole number, at least 1"):
            odd().peaks(wrong)
    with pytest.raises(TypeError, match="'n_bootstraps', but method='baluev' takes none"):
        odd().peaks(1, maximum_frequency=2, method_kwds={"n_bootstraps": 9})
    with pytest.raises(ValueError, match="normalization='bogus': expected one of"):
        odd(normalization="bogus").false_alarm_probability(0.1)
    with pytest.raises(ValueError, match=r"equal length are expected; the shapes are t \(60,\), y \(5,\), dy \(60,\)"):
        odd(y=np.zeros(5))


def test_errors_of_a_sinusoid_are_those_of_theory() -> None:
    """Many points at random times: Montgomery & O'Donoghue 1999, whatever the phase.

    The times are random: sums over 2,000 of them are off by some 1/sqrt(2000) = 2%.
    """
    rng = np.random.default_rng(2)
    n, span, sigma = 2000, 50.0, 0.2
    t = rng.uniform(0, span, n)
    for phase in (0.0, 0.1, 0.3):
        y = 0.5 * np.sin(2 * np.pi * (0.77 * t + phase)) + sigma * rng.normal(size=n)
        found = skysieve.LombScargle(t, y, sigma, device="cpu").prewhiten(1, maximum_frequency=1)
        expected = np.sqrt(2 / n) * sigma
        assert found.amplitude_error[0] == pytest.approx(expected, rel=0.06)
        assert found.frequency_error[0] == pytest.approx(np.sqrt(3) / np.pi * expected / (0.5 * span), rel=0.06)


@pytest.mark.parametrize("normalization", ["standard", "model", "log", "psd", "scargle"])
@pytest.mark.parametrize("fit_mean", [True, False])
@pytest.mark.parametrize("with_dy", [True, False])
def test_one_frequency_is_that_of_a_grid(normalization, fit_mean, with_dy):
    """Few frequencies are fitted without an engine; the direct sums of an engine are exact to 1e-12."""
    rng = np.random.default_rng(8)
    t = np.sort(rng.uniform(2_459_000, 2_459_050, 30))
    y = 15 + np.sin(t) + rng.normal(0, 0.3, 30)
    dy = rng.uniform(0.1, 0.4, 30) if with_dy else None
    ls = skysieve.LombScargle(t, y, dy, fit_mean=fit_mean, normalization=normalization, device="cpu")
    frequency = np.array([1e-4, 0.01, 0.159, 0.5, 0.73, 1.0, 2.9, 3.1, 7.7, 12.3])
    expected = ls.power(frequency, method="direct")
    found = [float(ls.power(f)) for f in frequency]
    np.testing.assert_allclose(found, expected, rtol=3e-9, atol=1e-12)


def test_one_frequency_of_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match="y is constant"):
        skysieve.LombScargle(np.arange(9.0), np.ones(9), device="cpu").power(0.2)
    with pytest.raises(ValueError, match=r"no such"):
        skysieve.LombScargle(np.arange(9.0), np.arange(9.0), device="cpu").power(0.2, normalization="no such")


def test_the_object_has_data_of_its_own():
    """Changes of the user's arrays change no answer, and its own arrays cannot be written to."""
    t, y, dy = curve()
    ls = skysieve.LombScargle(t, y, dy)
    before = ls.power(0.4), ls.model(t, 0.4), ls.false_alarm_probability(0.2)
    frequency, times, values, errors = 0.4, t.copy(), y.copy(), dy.copy()
    t *= 1.5
    y += 1
    dy *= 2
    fresh = skysieve.LombScargle(times, values, errors)
    for ours in (ls, fresh):
        assert ours.power(frequency) == before[0]
        np.testing.assert_array_equal(ours.model(times, frequency), before[1])
        assert ours.false_alarm_probability(0.2) == before[2]
    for column in (ls.y, ls.dy):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 3.0


def test_rows_that_are_masked_later_are_left_out():
    t, y, _ = curve()
    ls = skysieve.LombScargle(t, np.ma.array(y))
    before = ls.power(0.4)
    ls.y[5] = np.ma.masked
    left = np.arange(len(t)) != 5
    assert ls.power(0.4) == skysieve.LombScargle(t[left], y[left]).power(0.4) != before


def test_new_columns_and_options_of_an_object_count_at_once():
    t, y, dy = curve()
    ls = skysieve.LombScargle(t, y, dy)
    assert ls.offset() == pytest.approx(np.average(y, weights=dy**-2))
    ls.power(0.4)
    ls.y = y**2
    ls.center_data = False
    new = skysieve.LombScargle(t, y**2, dy, center_data=False)
    assert ls.power(0.4) == new.power(0.4)
    assert ls.offset() == 0
    np.testing.assert_array_equal(ls.model(t, 0.4), new.model(t, 0.4))


@pytest.mark.parametrize("fit_mean", [False, True])
@pytest.mark.parametrize("center_data", [False, True])
@pytest.mark.parametrize("errors", [False, True])
@pytest.mark.parametrize("normalization", ["standard", "model", "log", "psd"])
def test_few_frequencies_have_the_powers_of_astropy(fit_mean, center_data, errors, normalization):
    t, y, dy = curve()
    options = (fit_mean, center_data, 1, normalization)
    f = np.array([0.31, 0.05, 2.7])
    ours = skysieve.LombScargle(t, y + 5, dy if errors else None, *options).power(f)
    theirs = Astropy(t, y + 5, dy if errors else None, *options).power(f, method="slow")
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_ends_of_the_rule_are_those_of_the_grid():
    t, y, dy = curve()
    ls = skysieve.LombScargle(t, y, dy)
    for options in ({}, {"maximum_frequency": 2.0}, {"minimum_frequency": 0.2, "samples_per_peak": 3}):
        grid = ls.autofrequency(**options)
        for full in (True, False):
            found = ls.false_alarm_probability(0.2, **options, full_band=full)
            assert found == ls.false_alarm_probability(0.2, frequency=grid, full_band=full)
    with pytest.raises(ValueError, match="holds no frequency"):
        ls.false_alarm_probability(0.2, minimum_frequency=5.0, maximum_frequency=1.0)


def test_single_precision_times_are_refused():
    t, y, _ = curve()
    coarse = ours((2459000 + t).astype(np.float32) * u.d, y)
    calls = (
        lambda f: coarse.power(f),
        lambda f: coarse.autopower(maximum_frequency=f),
        lambda f: coarse.peaks(maximum_frequency=f),
        lambda f: coarse.model(t * u.d, f),
        lambda f: coarse.model_parameters(f),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"0\.25 apart: 0\.75 cycles|0\.25 apart: 0\.7"):
            call(3 / u.d)
    fine = ours(t.astype(np.float32), y)
    like(fine.power([0.3, 0.4]), ours(t, y).power([0.3, 0.4]), 1e-3)
