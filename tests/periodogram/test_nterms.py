"""Series of several terms on the CPU: against astropy's chi2, the explicit least squares, and themselves.

1e-8 of the power is what is asked; errors measured over 6 to 1,000 points were up to 7.4e-9 (fast transforms) and
1e-10 (direct sums), those of astropy's own normal equations up to 7e-9 where few points carry the weight.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from astropy.timeseries import LombScargle
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.truth import periodogram as reference

from skysieve.periodogram.api import LombScarglePlan, lombscargle
from skysieve.periodogram.contract import Status
from skysieve.periodogram.cpu.fourier.series import DIRECT, LIMIT, NUFFT
from skysieve.periodogram.numerics import fourier as chi2
from skysieve.periodogram.result.result import LombScargleResult

GRID = {"fmin": 0.2, "fmax": 3.0, "nf": 900}
TOLERANCE = 1e-8


def curve(n=80, seed=0, span=40.0):
    rng = np.random.default_rng([seed, n])
    t = rng.uniform(0, span, n)
    dy = rng.uniform(0.1, 0.3, n)
    y = 10 + np.sin(2 * np.pi * t / 0.9) + 0.5 * np.cos(4 * np.pi * t / 0.9) + dy * rng.standard_normal(n)
    return t, y, dy


def frequencies(grid=GRID):
    return grid["fmin"] + (grid["fmax"] - grid["fmin"]) / (grid["nf"] - 1) * np.arange(grid["nf"])


def least_squares(t, y, dy, frequency, nterms, fit_mean=True):
    """Standard power by ``numpy.linalg.lstsq`` of the columns."""
    w = 1 / np.broadcast_to(1.0 if dy is None else dy, y.shape)
    value = (y - np.average(y, weights=w**2)) * w
    out = []
    for f in frequency:
        columns = [np.ones_like(t)] if fit_mean else []
        for k in range(1, nterms + 1):
            columns += [np.sin(2 * np.pi * k * f * t), np.cos(2 * np.pi * k * f * t)]
        x = np.stack(columns, 1) * w[:, None]
        rest = value - x @ np.linalg.lstsq(x, value, rcond=None)[0]
        out.append(1 - rest @ rest / (value @ value))
    return np.array(out)


@pytest.mark.few
@pytest.mark.parametrize("method", ["auto", "nufft", "direct"])
@pytest.mark.parametrize("fit_mean", [True, False])
@pytest.mark.parametrize("nterms", [0, 1, 2, 3, 4, 6])
def test_power_is_that_of_astropy(nterms, fit_mean, method):
    if nterms == 0 and not fit_mean:
        pytest.skip("nothing to fit")
    t, y, dy = curve()
    result = lombscargle(t, y, dy, **GRID, nterms=nterms, fit_mean=fit_mean, method=method)
    theirs = LombScargle(t, y, dy, nterms=nterms, fit_mean=fit_mean).power(frequencies(), method="chi2")
    np.testing.assert_allclose(result.power, theirs, rtol=0, atol=TOLERANCE)
    assert result.nterms == nterms
    if nterms != 1:
        assert result.method == ("direct" if method == "direct" or nterms == 0 else "nufft")


@pytest.mark.few
@pytest.mark.parametrize("normalization", ["standard", "model", "log", "psd"])
@pytest.mark.parametrize("errors", ["none", "number", "array"])
@pytest.mark.parametrize("center_data", [True, False])
def test_normalisations(normalization, errors, center_data):
    t, y, dy = curve(seed=1)
    y = y - 9.7
    dy = {"none": None, "number": 0.1, "array": dy}[errors]
    options = {"nterms": 3, "normalization": normalization, "center_data": center_data, "fit_mean": center_data}
    result = lombscargle(t, y, dy, **GRID, **options)
    theirs = LombScargle(t, y, dy, **options).power(frequencies(), method="chi2")
    np.testing.assert_allclose(result.power, theirs, rtol=TOLERANCE, atol=TOLERANCE * max(1, theirs.max()))


def test_scargle_is_psd_of_unit_weights():
    t, y, _ = curve(seed=2)
    psd = lombscargle(t, y, **GRID, nterms=2, normalization="psd")
    np.testing.assert_allclose(lombscargle(t, y, **GRID, nterms=2, normalization="scargle").power, psd.power)


def test_own_frequencies_in_any_order():
    t, y, dy = curve(seed=3)
    chosen = np.random.default_rng(0).uniform(0.1, 4, 333)
    result = lombscargle(t, y, dy, frequency=chosen, nterms=4)
    theirs = LombScargle(t, y, dy, nterms=4).power(chosen, method="chi2")
    np.testing.assert_allclose(result.power, theirs, rtol=0, atol=TOLERANCE)
    assert result.method == "direct"


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("method", ["nufft", "direct"])
def test_peaks_and_a_ragged_batch_that_equals_singles(method):
    curves = [curve(n, seed=n) for n in (200, 30, 57, 1, 90)]
    t, y, dy = ([c[i] for c in curves] for i in range(3))
    grid = {"fmin": 0.9, "fmax": 1.3, "nf": 130}  # few frequencies, because the judge is slow
    options = {**grid, "nterms": 3, "n_peaks": 4, "method": method}
    batch = lombscargle(t, y, dy, **options)
    assert batch.status.tolist() == [0, 0, 0, Status.TOO_FEW_POINTS, 0]
    assert np.isnan(batch.power[3]).all()
    for i in (0, 1, 2, 4):
        one = lombscargle(*curves[i], **options)
        np.testing.assert_array_equal(one.power, batch.power[i])
        np.testing.assert_array_equal(one.peaks.power, batch.peaks.power[i])
        if i > 1:
            continue
        theirs = LombScargle(*curves[i], nterms=3)
        peaks = reference.peaks(
            frequencies(grid), one.power, 4, np.ptp(t[i]), lambda f, s=theirs: s.power(f, method="chi2"), harmonics=3
        )
        np.testing.assert_array_equal(batch.peaks.index[i], peaks.index)
        np.testing.assert_allclose(batch.peaks.frequency[i], peaks.frequency, rtol=1e-7)
        np.testing.assert_allclose(batch.peaks.power[i], peaks.power, rtol=0, atol=1e-11)
    alone = lombscargle(t, y, dy, **options, return_power=False)
    np.testing.assert_array_equal(alone.peaks.index, batch.peaks.index)


def test_grids_of_their_own_and_a_plan():
    curves = [curve(n, seed=n, span=s) for n, s in ((60, 20.0), (90, 35.0))]
    with LombScarglePlan(fmin=0.3, fmax=2, grid="per-object", nterms=2) as plan:
        assert plan.describe()["nterms"] == 2
        batch = plan.execute(*([c[i] for c in curves] for i in range(3)))
        facts = plan.describe(*curves[0])
    assert facts["method"] == "nufft"
    assert facts["work"]["calls"] == 1
    assert sum(facts["work"].values()) > 1
    for i, (t, y, dy) in enumerate(curves):
        theirs = LombScargle(t, y, dy, nterms=2).power(batch.frequency[i], method="chi2")
        np.testing.assert_allclose(batch.power[i], theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nufft", "direct"])
def test_one_long_curve_is_the_same_on_any_number_of_threads(method):
    """It is cut into stretches for the threads; the answer does not show where."""
    t, y, dy = curve(400, span=300.0)
    options = {"fmin": 0.05, "fmax": 3.0, "nf": 20_000, "nterms": 4, "n_peaks": 6, "method": method}
    one, two = (lombscargle(t, y, dy, **options, threads=n) for n in (1, 2))
    np.testing.assert_array_equal(one.power, two.power)
    np.testing.assert_array_equal(one.peaks.index, two.peaks.index)
    some = np.arange(0, 20_000, 531)
    theirs = least_squares(t, y, dy, one.frequency[some], 4)
    np.testing.assert_allclose(one.power[some], theirs, rtol=0, atol=TOLERANCE)


def test_only_singular_frequencies_are_nan():
    """Whole days: at 1/2 and 1 a day (and for two terms at 1/4 too) the columns depend on one another."""
    rng = np.random.default_rng(5)
    t = np.sort(rng.choice(200, 60, replace=False)).astype(float)
    y = rng.standard_normal(60)
    frequency = np.array([0.11, 0.25, 0.3, 0.5, 0.63, 1.0, 1.17])
    power = lombscargle(t, y, frequency=frequency, nterms=2).power
    assert np.isnan(power).tolist() == [False, True, False, True, False, True, False]
    good = np.isfinite(power)
    np.testing.assert_allclose(power[good], least_squares(t, y, None, frequency[good], 2), atol=1e-9)


def test_fewer_points_than_columns_is_singular():
    t, y, dy = curve(6)
    with pytest.raises(ValueError, match="can be fitted"):
        lombscargle(t, y, dy, **GRID, nterms=3)
    batch = lombscargle([t, curve(30)[0]], [y, curve(30)[1]], **GRID, nterms=3)
    assert batch.status.tolist() == [Status.SINGULAR, Status.OK]
    assert "fewer rows than parameters" in Status(batch.status[0]).text
    np.testing.assert_allclose(lombscargle(*curve(7), fmin=0.31, fmax=0.9, nf=50, nterms=3).power, 1, atol=1e-7)


def test_too_coarse_for_the_comb_is_summed_directly():
    t, y, dy = curve(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = lombscargle(t, y, dy, fmin=0.2, fmax=40, nf=30, nterms=2, method="nufft")
    assert result.method == "direct"
    theirs = LombScargle(t, y, dy, nterms=2).power(result.frequency, method="chi2")
    np.testing.assert_allclose(result.power, theirs, rtol=0, atol=TOLERANCE)


def test_errors_are_in_proportion_to_the_limit_of_trust(monkeypatch):
    """The rule behind `LIMIT`: up to 7e-10 of a power for each unit of it was measured; a GPU's limit has its own."""
    rng = np.random.default_rng(4)
    for n in (12, 20, 33):
        t = np.sort(rng.integers(0, 120, n) + 0.3 + 0.4 * rng.random(n))
        dy = (0.02 + 0.05 * rng.random(n)) * np.where(rng.random(n) < 0.2, 10, 1)
        y = np.sin(2 * np.pi * t / 0.9) + dy * rng.standard_normal(n)
        grid = {"fmin": 0.16, "fmax": 6.0, "nf": 7000, "nterms": 4, "device": "cpu"}
        monkeypatch.setitem(LIMIT, DIRECT, 0.0)  # every power by orthogonal columns
        exact = lombscargle(t, y, dy, method="direct", **grid).power
        for limit in (1.0, 3.0, 10.0):
            monkeypatch.setitem(LIMIT, NUFFT, limit)
            found = lombscargle(t, y, dy, method="nufft", **grid).power
            assert np.array_equal(np.isnan(found), np.isnan(exact))
            assert np.nanmax(np.abs(found - exact)) <= 1e-9 * limit


@pytest.mark.slow
def test_float32_stores_what_float64_computes():
    """Slow, because the fits are compiled once more for this type of powers; `tests/kernels` tests those of a GPU."""
    t, y, dy = curve()
    wide, narrow = (lombscargle(t, y, dy, **GRID, nterms=3, dtype=d) for d in ("float64", "float32"))
    assert narrow.power.dtype == np.float32
    np.testing.assert_array_equal(narrow.power, wide.power.astype(np.float32))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"nterms": -1}, ValueError, "nterms=-1"),
        ({"nterms": chi2.MAX_TERMS + 1}, ValueError, "0 to 32"),
        ({"nterms": 2.0}, TypeError, "nterms=2.0"),
        ({"nterms": True}, TypeError, "whole number"),
        ({"nterms": 0, "fit_mean": False}, ValueError, "nothing to fit"),
        ({"nterms": 2, "method": "finufft"}, ValueError, "one term"),
    ],
)
def test_bad_options(options, error, match):
    with pytest.raises(error, match=match):
        LombScarglePlan(**options)


def test_saved_and_drawn_with_its_terms(tmp_path):
    t, y, dy = curve()
    result = lombscargle(t, y, dy, **GRID, nterms=2)
    result.save(tmp_path / "r.npz")
    assert LombScargleResult.load(tmp_path / "r.npz").nterms == 2
    figure = result.plot(t, y, dy)
    model = figure.axes[1].lines[-1].get_ydata()
    period = float(result.period)
    columns = [np.ones_like(t)]
    for k in (1, 2):
        columns += [np.cos(2 * np.pi * k * (t - t.min()) / period), np.sin(2 * np.pi * k * (t - t.min()) / period)]
    x = np.stack(columns, 1) / dy[:, None]
    theta = np.linalg.lstsq(x, y / dy, rcond=None)[0]
    np.testing.assert_allclose(model[0], theta[[0, 1, 3]].sum(), rtol=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(12, 60),
    nterms=st.integers(2, 4),
    seed=st.integers(0, 1000),
    shift=st.floats(-1e4, 1e4),
    scale=st.sampled_from([1e-6, 0.5, 1e5]),
)
def test_shifts_and_scales_do_not_matter(n, nterms, seed, shift, scale):
    t, y, dy = curve(n, seed=seed)
    options = {"fmin": 0.21, "fmax": 1.3, "nf": 200, "nterms": nterms}
    power = lombscargle(t, y, dy, **options).power
    moved = lombscargle(t + shift, (y - 3) * scale, dy * scale, **options).power
    np.testing.assert_allclose(moved, power, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "model", [chi2.Model.single(3, True), chi2.Model(2, True, 3, 1, True), chi2.Model(1, n_bands=4)]
)
def test_tables_give_the_normal_matrix(model):
    rng = np.random.default_rng(0)
    tables, columns = chi2.tables(model), chi2.columns_of(model)
    n, f = 50, 0.73
    t, w, band = rng.uniform(0, 10, n), rng.uniform(0.5, 1, n), rng.integers(0, model.n_bands, n)
    wy = w * rng.standard_normal(n)
    values = np.zeros(tables.n_values)
    for c, (m, b, odd) in enumerate(tables.channel):
        rows = (band == b) | (b == chi2.ALL)
        z = (wy if odd else w)[rows] @ np.exp(2j * np.pi * m * f * t[rows])
        values[2 * c : 2 * c + 2] = z.real, z.imag
    for d, (first, stride) in enumerate(tables.derived, start=len(tables.channel)):
        for part in range(2):
            values[2 * d + part] = sum(values[2 * (first + stride * b) + part] for b in range(tables.n_bands))
    for b in range(model.n_bands):
        values[2 * tables.n_sums + b] = w[band == b].sum()
    values[2 * tables.n_sums + model.n_bands] = w.sum()
    entries = (tables.factor * values[tables.source]).sum(1)
    design = [
        ((band == b) | (b == chi2.ALL)) * (np.sin if odd else np.cos)(2 * np.pi * k * f * t) for b, k, odd in columns
    ]
    normal = np.array(design) * w @ np.array(design).T
    for i in range(model.columns):
        first, row = tables.first[i], tables.row[i]
        np.testing.assert_allclose(entries[row : row + i + 1 - first], normal[i, first : i + 1], atol=1e-12)
        assert np.all(normal[i, :first] == 0)
    right = np.array(design) @ wy
    fitted = [k > 0 for _, k, _ in columns]
    np.testing.assert_allclose(entries[tables.row[-1] :][fitted], right[fitted], atol=1e-12)
