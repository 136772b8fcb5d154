"""Answers known beforehand: real asteroids and stars, a simulated batch, and hard cases of the mathematics."""

from __future__ import annotations

import csv
import warnings
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from tests.marks import slow
from tests.periodogram.batch import benchmark_batch
from tests.truth import periodogram as reference

import skysieve
from skysieve.periodogram.lightcurves.simulate import SimulatedLightCurves

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

BATCH_GRID: dict[str, Any] = {"fmin": 0.16, "fmax": 24.0, "nf": 28_608}
"""The paper's grid of the batch: 150 h to 1 h, df = 0.1/T for T = 120 d."""


Curve = tuple["NDArray[np.float64]", "NDArray[np.float64]", "NDArray[np.float64]"]


def random_curve(n: int, span: float, seed: int) -> Curve:
    """A weak sinusoid in noise with uneven errors, at random times."""
    rng = np.random.default_rng([seed, n])
    t = np.sort(rng.uniform(0, span, n))
    dy = rng.uniform(0.1, 0.3, n) * np.where(rng.random(n) < 0.2, 10, 1)
    return t, 15 + 0.3 * np.sin(2 * np.pi * 1.37 * t + 1) + dy * rng.standard_normal(n), dy


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Stripe82(NamedTuple):
    ids: NDArray[np.int64]
    t: list[NDArray[np.float64]]
    y: list[NDArray[np.float64]]
    dy: list[NDArray[np.float64]]
    period: NDArray[np.float64]


@pytest.fixture(scope="module")
def stripe82(test_data: Path) -> Stripe82:
    folder = test_data / "lomb_scargle"
    table = np.loadtxt(folder / "SDSS_stripe82_band_z.txt", delimiter=",")
    with (folder / "sdss_s82_known_periods.csv").open() as lines:
        known = {int(row["id"]): float(row["period_days"]) for row in csv.DictReader(lines)}
    ids = np.unique(table[:, 0]).astype(np.int64)
    rows = [table[table[:, 0] == i] for i in ids]
    columns = ([r[:, k].copy() for r in rows] for k in (1, 2, 3))
    return Stripe82(ids, *columns, np.array([known[int(i)] for i in ids]))


@pytest.fixture(scope="module")
def simulated(test_data: Path) -> SimulatedLightCurves:
    return benchmark_batch(test_data / "lomb_scargle")


def exact_power(t: Any, y: Any, dy: Any, frequency: NDArray[np.float64]) -> NDArray[Any]:
    """Standard power of one light curve by direct sums."""
    return reference.power(t, y, dy, frequency=frequency, precision=np.float64).power


def part(made: SimulatedLightCurves, chosen: NDArray[np.int64]) -> tuple[list[Any], list[Any], list[Any]]:
    """Some objects of a batch as lists."""
    slices = [slice(int(made.offsets[i]), int(made.offsets[i + 1])) for i in chosen]
    return [made.t[s] for s in slices], [made.y[s] for s in slices], [made.dy[s] for s in slices]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("fit_mean", "hours"), [(True, 2.3168), (False, 2.3169)])
def test_asteroid_243_ida(test_data: Path, dtype: str, fit_mean: bool, hours: float, device: str) -> None:
    """Half of 4.634 h, from Julian dates; the powers were taken with astropy's ``slow``."""
    _, t, y = np.loadtxt(test_data / "lomb_scargle" / "243_normalized_ztf_filter2.txt", delimiter=",", unpack=True)
    found = skysieve.lombscargle(t, y, fmin=0.5, fmax=24, nf=200_001, fit_mean=fit_mean, dtype=dtype, device=device)
    assert found.period * 24 == pytest.approx(hours, abs=6e-5)
    assert 2 * found.period * 24 == pytest.approx(4.634, abs=5e-4)
    assert np.nanmax(found.power) == pytest.approx(0.95219 if fit_mean else 0.94351, abs=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_object_8205(test_data: Path, dtype: str, device: str) -> None:
    _, t, y, dy = np.loadtxt(test_data / "lomb_scargle" / "8205_normalized_with_error.txt", delimiter=",", unpack=True)
    found = skysieve.lombscargle(t, y, dy, fmin=0.5, fmax=24, nf=1_000_000, dtype=dtype, device=device)
    assert found.period == pytest.approx(0.5647356, abs=5e-7)
    assert found.power.max() == pytest.approx(0.7129047, abs=1e-6)
    plain = skysieve.lombscargle(t, y, fmin=0.5, fmax=24, nf=1_000_000, dtype=dtype, fit_mean=False, device=device)
    assert plain.power.max() == pytest.approx(0.7120005, abs=1e-6)


def test_stripe_82_stars(stripe82: Stripe82, device: str) -> None:
    """100 of 136 within 1% of the catalogue, 88 within 1/T in frequency; the other 12 are yearly aliases.

    So it is on a grid ten times finer, too: the highest samples of this grid, 105 and 92, are luck.
    """
    grid: dict[str, Any] = {"fmin": 1 / 1.2, "fmax": 1 / 0.15, "nf": 100_000}
    options: dict[str, Any] = {**grid, "return_power": False, "device": device}
    double = skysieve.lombscargle(stripe82.t, stripe82.y, stripe82.dy, **options)
    single = skysieve.lombscargle(stripe82.t, stripe82.y, stripe82.dy, dtype="float32", **options)
    np.testing.assert_array_equal(double.peaks.index[:, 0], single.peaks.index[:, 0])
    best = double.best_frequency
    np.testing.assert_allclose(best, single.best_frequency, rtol=0, atol=1e-9)
    span = np.array([np.ptp(t) for t in stripe82.t])
    assert np.count_nonzero(np.abs(1 / best - stripe82.period) < 0.01 * stripe82.period) == 100
    assert np.count_nonzero(np.abs(best - 1 / stripe82.period) <= 1 / span) == 88
    alias = int(np.flatnonzero(stripe82.ids == 2794912)[0])
    assert 1 / best[alias] == pytest.approx(0.52953, abs=5e-6)
    assert double.period[alias] == pytest.approx(0.52953, abs=5e-6)


def at_or_above_astropys(simulated: SimulatedLightCurves, chosen: NDArray[np.int64]) -> int:
    """Objects whose best peak has astropy's power at its frequency, at least that of astropy's highest sample."""
    from astropy.timeseries import LombScargle

    t, y, dy = part(simulated, chosen)
    found = skysieve.lombscargle(t, y, dy, return_power=False, **BATCH_GRID)
    frequency = np.linspace(BATCH_GRID["fmin"], BATCH_GRID["fmax"], BATCH_GRID["nf"])
    good = 0
    for i in range(len(chosen)):
        theirs = LombScargle(t[i], y[i], dy[i])
        highest = theirs.power(frequency, method="fast", assume_regular_frequency=True).max()
        power = theirs.power(found.best_frequency[i : i + 1], method="cython")[0]
        good += int(abs(found.best_power[i] - power) < 1e-9 and power > highest - 1e-9)
    return good


@pytest.mark.slow
def test_simulated_batch_has_astropys_peaks(simulated: SimulatedLightCurves) -> None:
    """30 of the 1,000 objects, every size of light curve among them."""
    if int(version("astropy").split(".")[0]) < 8:
        pytest.skip("the fast method of astropy before 8.0 is inexact")
    chosen = np.argsort(simulated.n_obs, kind="stable")[::34]
    assert len(chosen) == 30
    assert at_or_above_astropys(simulated, chosen) == 30


@pytest.mark.slow
def test_whole_simulated_batch_has_astropys_peaks(simulated: SimulatedLightCurves) -> None:
    assert at_or_above_astropys(simulated, np.arange(1000)) == 1000


def test_weights_matter(simulated: SimulatedLightCurves) -> None:
    """With the errors nearly all periods come out within 0.1 h of the truth; without them many fewer do."""
    chosen = np.flatnonzero(simulated.n_obs < 60)[:150]
    t, y, dy = part(simulated, chosen)
    truth = simulated.period[chosen] * 24
    options: dict[str, Any] = {**BATCH_GRID, "return_power": False}
    weighted = np.abs(skysieve.lombscargle(t, y, dy, **options).period * 24 - truth) < 0.1
    plain = np.abs(skysieve.lombscargle(t, y, **options).period * 24 - truth) < 0.1
    assert np.mean(weighted) > np.mean(plain) + 0.3


@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
@pytest.mark.parametrize("half_distance", [0.0075, 0.01, 0.02, 0.05, 0.0937, 0.2, 0.37])
def test_two_equal_peaks(method: str, half_distance: float, device: str) -> None:
    """On whole days power is symmetric about f = 1/2: two peaks of equal height, wherever bands divide the grid."""
    rng = np.random.default_rng(11)
    t = np.sort(rng.choice(200, 120, replace=False)).astype(float)
    y = np.sin(2 * np.pi * (0.5 - half_distance) * t + 0.3) + 0.01 * rng.standard_normal(120)
    found = skysieve.lombscargle(t, y, fmin=0.04, fmax=0.96, nf=1841, n_peaks=2, method=method, device=device)
    expected = 0.5 + half_distance * np.array([-1, 1])
    np.testing.assert_allclose(np.sort(found.peaks.frequency), expected, atol=2e-4)
    assert found.peaks.power[0] == pytest.approx(found.peaks.power[1], abs=2e-9)
    assert found.peaks.index.sum() == 1840
    np.testing.assert_allclose(found.power, found.power[::-1], atol=2e-9)


@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_peak_at_an_end_of_the_grid(method: str, end: str, device: str) -> None:
    """The highest sample is the first or the last: it is a peak, and stays where it is."""
    t, _, dy = random_curve(150, 40.0, 1)
    y = np.sin(2 * np.pi * 3.0 * t)
    fmin, fmax = (3.001, 7.0) if end == "first" else (0.5, 2.999)
    found = skysieve.lombscargle(t, y, dy, fmin=fmin, fmax=fmax, nf=1601, n_peaks=3, method=method, device=device)
    assert found.peaks.index[0] == (0 if end == "first" else 1600)
    assert found.peaks.frequency[0] == pytest.approx(fmin if end == "first" else fmax, rel=1e-15)
    assert found.peaks.power[0] == pytest.approx(found.power[found.peaks.index[0]], abs=1e-9)
    assert np.isnan(found.peaks.period_error[0])  # no maximum of the range
    assert np.all(found.peaks.period_error[1:] > 0)
    assert found.period == 1 / found.peaks.frequency[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "step"), [("float64", 500), slow("float32", 500), slow("float64", 83), slow("float32", 83)]
)
def test_k_peaks_are_those_of_the_full_power(
    simulated: SimulatedLightCurves, dtype: str, step: int, device: str
) -> None:
    """With and without the power kept: the same peaks as the slow finder reads off the whole periodogram."""
    t, y, dy = part(simulated, np.arange(0, 1000, step))
    full = skysieve.lombscargle(t, y, dy, dtype=dtype, device=device, **BATCH_GRID)
    options = {"dtype": dtype, "n_peaks": 8, "device": device, **BATCH_GRID}
    both = [skysieve.lombscargle(t, y, dy, return_power=keep, **options) for keep in (True, False)]
    exact_to = 1e-9 if device == "cuda" else 1e-12  # a GPU ends a climb by a series: see LOST in peaks/refine.cuh
    assert [found.power is None for found in both] == [False, True]
    for i in range(len(t)):
        exact = partial(exact_power, t[i], y[i], dy[i])
        expected = reference.peaks(full.frequency, full.power[i], 8, float(np.ptp(t[i])), exact)
        for found in both:
            np.testing.assert_array_equal(found.peaks.index[i], expected.index)
            np.testing.assert_allclose(found.peaks.frequency[i], expected.frequency, rtol=0, atol=1e-7 / np.ptp(t[i]))
            np.testing.assert_allclose(found.peaks.power[i], expected.power, rtol=0, atol=exact_to)
            distance = np.abs(np.subtract.outer(found.peaks.index[i], found.peaks.index[i])) * (23.84 / 28607)
            assert np.min(distance[~np.eye(8, dtype=bool)]) >= (1 - 1e-9) / np.ptp(t[i])


def test_more_peaks_requested_than_found(device: str) -> None:
    t, y, dy = random_curve(40, 10.0, 2)
    found = skysieve.lombscargle(t, y, dy, fmin=1, fmax=2, nf=50, n_peaks=30, device=device)
    expected = reference.peaks(found.frequency, found.power, 30, float(np.ptp(t)), partial(exact_power, t, y, dy))
    np.testing.assert_array_equal(found.peaks.index, expected.index)
    assert np.isnan(found.peaks.power[-1])
    assert found.peaks.index[-1] == -1


@pytest.mark.few
@pytest.mark.parametrize("normalization", ["standard", "model", "log", "psd"])
@pytest.mark.parametrize("errors", ["none", "scalar", "array"])
@pytest.mark.parametrize("center_data", [True, False])
@pytest.mark.parametrize("fit_mean", [True, False])
def test_agrees_with_astropy_slow(fit_mean: bool, center_data: bool, errors: str, normalization: str) -> None:
    from astropy.timeseries import LombScargle

    t, y, each = random_curve(70, 25.0, 3)
    y = y - 14.8  # a mean that is not zero and does not drown the signal
    dy = {"none": None, "scalar": 0.25, "array": each}[errors]
    frequency = np.linspace(0.013, 6.0, 900)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # 0.013 is below 1/T, on purpose
        for method in ("auto", "direct", "nufft", "finufft"):
            found = skysieve.lombscargle(
                t, y, dy, fmin=0.013, fmax=6.0, nf=900, fit_mean=fit_mean, center_data=center_data,
                normalization=normalization, method=method,
            )  # fmt: skip
            model = LombScargle(t, y, dy, fit_mean=fit_mean, center_data=center_data, normalization=normalization)
            expected = model.power(frequency, method="slow")
            standard = LombScargle(t, y, dy, fit_mean=fit_mean, center_data=center_data).power(frequency, method="slow")
            slope = {
                "standard": 1.0,
                "model": 1 / (1 - standard) ** 2,
                "log": 1 / (1 - standard),
                "psd": np.max(expected / standard),
            }[normalization]
            assert np.max(np.abs(found.power - expected) / slope) < 2e-9


def test_scargle_normalisation_is_the_papers() -> None:
    """``0.5 N YY p``: astropy's psd of unit errors, the fit itself weighted where errors are given."""
    t, y, dy = random_curve(60, 20.0, 4)
    grid: dict[str, Any] = {"fmin": 0.1, "fmax": 5.0, "nf": 500}
    plain = skysieve.lombscargle(t, y, normalization="scargle", **grid)
    np.testing.assert_allclose(plain.power, skysieve.lombscargle(t, y, normalization="psd", **grid).power, rtol=1e-12)
    weighted = skysieve.lombscargle(t, y, dy, normalization="scargle", **grid)
    truth = reference.power(t, y, dy, frequency=weighted.frequency, normalization="scargle").power
    np.testing.assert_allclose(weighted.power, truth.astype(float), atol=1e-9 * float(np.max(truth)))


@pytest.mark.few
@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
@pytest.mark.parametrize("width", [1e-8, 1e-6, 1e-4])
@pytest.mark.parametrize("with_errors", [False, True])
@pytest.mark.filterwarnings("ignore:the grid is too coarse:UserWarning")
def test_tightly_clustered_times(method: str, width: float, with_errors: bool, device: str) -> None:
    """All points but one within ``width`` of the span (astropy issue 20449 is 1e-8, without errors)."""
    rng = np.random.default_rng(0)
    span, count = 1094.6, 155
    t = np.sort(np.r_[rng.normal(0, span * width, count - 1), span])
    y = rng.normal(size=count)
    dy = rng.uniform(0.5, 1.5, count) if with_errors else None
    f0, df, nf = 0.8, 0.0037, 791
    found = skysieve.lombscargle(t, y, dy, fmin=f0, fmax=f0 + df * (nf - 1), nf=nf, method=method, device=device)
    frequency = reference.regular(found.frequency[0], (f0 + df * (nf - 1) - f0) / (nf - 1), np.arange(nf))
    truth = reference.power(t, y, dy, frequency=frequency).power
    assert np.max(np.abs(found.power - truth)) < 1e-9


@pytest.mark.few
@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
@pytest.mark.parametrize("hours", [3.7, 200.0, 1500.0])
def test_asteroid_range_of_1_to_2000_hours(method: str, hours: float, device: str) -> None:
    """Frequencies below 1/T are searched, with a warning; 1,500 h is more than the 30 days seen."""
    rng = np.random.default_rng(8)
    t = np.sort(np.floor(rng.uniform(0, 30, 200)) + rng.uniform(0.25, 0.7, 200))
    dy = rng.uniform(0.01, 0.03, 200)
    y = 17 + 0.4 * np.sin(2 * np.pi * t * 24 / hours + 0.5) + dy * rng.standard_normal(200)
    fmin, fmax, nf = 24 / 2000, 24.0, 10_001
    with pytest.warns(UserWarning, match="1/T"):
        found = skysieve.lombscargle(t, y, dy, fmin=fmin, fmax=fmax, nf=nf, method=method, device=device)
    low = np.r_[0:200, 200:nf:37]
    truth = reference.power(t, y, dy, frequency=reference.regular(fmin, (fmax - fmin) / (nf - 1), low)).power
    assert np.max(np.abs(found.power[low] - truth)) < 1e-9
    tolerance = 0.003 if hours < 10 else 0.02 if hours < 1000 else 0.1
    assert found.period * 24 == pytest.approx(hours, rel=tolerance)


ACCURACY = [
    ("float64", "auto", 10, 1e-9),
    ("float64", "nufft", 10, 1e-9),
    ("float64", "finufft", 10, 1e-9),
    ("float64", "direct", 10, 1e-12),
    ("float32", "auto", 30, 2e-6),
    ("float32", "nufft", 30, 2e-6),
    ("float32", "finufft", 30, 2e-6),
    ("float32", "direct", 30, 2e-6),
]


class Truth(NamedTuple):
    t: NDArray[np.float64]
    y: NDArray[np.float64]
    dy: NDArray[np.float64]
    index: NDArray[np.int64]
    power: NDArray[Any]


@pytest.fixture(
    scope="module",
    params=[pytest.param(0.0, id="from zero", marks=pytest.mark.slow), pytest.param(2_460_000.5, id="raw JD")],
)
def truths(request: pytest.FixtureRequest) -> list[Truth]:
    """Light curves of 10 to 3,000 points over 120 nights and their long-double power; the short ones everywhere."""
    made = []
    for n in (10, 10, 10, 11, 13, 17, 23, 30, 30, 45, 70, 165, 500, 3000):
        rng = np.random.default_rng([n, len(made)])
        night = np.floor(rng.uniform(0, 120, n)) + rng.uniform(0.25, 0.7, n)
        t = np.sort(night) + request.param
        _, y, dy = random_curve(n, 120.0, len(made))
        every = np.arange(BATCH_GRID["nf"])
        index = every if n <= 30 else np.sort(rng.choice(every, 2_000_000 // (30 * n), replace=False))
        step = (BATCH_GRID["fmax"] - BATCH_GRID["fmin"]) / (BATCH_GRID["nf"] - 1)
        frequency = reference.regular(BATCH_GRID["fmin"], step, index)
        made.append(Truth(t, y, dy, index, reference.power(t, y, dy, frequency=frequency).power))
    return made


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize(("dtype", "method", "least", "bound"), ACCURACY)
def test_error_against_long_double(
    truths: list[Truth], dtype: str, method: str, least: int, bound: float, device: str
) -> None:
    """The promise to users, on the paper's grid (df*T = 0.1), times from zero and as Julian dates."""
    chosen = [case for case in truths if case.t.size >= least]
    found = skysieve.lombscargle(
        [c.t for c in chosen],
        [c.y for c in chosen],
        [c.dy for c in chosen],
        dtype=dtype,
        method=method,
        device=device,
        **BATCH_GRID,
    )
    errors = [
        (float(np.max(np.abs(power[c.index] - c.power))), f"{c.t.size} points")
        for c, power in zip(chosen, found.power, strict=True)
    ]
    assert max(errors)[0] <= bound, sorted(errors, reverse=True)
