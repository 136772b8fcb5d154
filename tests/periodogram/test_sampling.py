"""The range of an automatic grid: how it follows from the times, and that periods are found in it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from astropy import units as u
from astropy.table import Table
from astropy.timeseries import LombScargle
from typer.testing import CliRunner

import skysieve
from skysieve.cli import app
from skysieve.core.table_files import write_table
from skysieve.periodogram.analysis.sampling import HIGHEST, highest_frequency
from skysieve.periodogram.numerics.grid import MOST

KEPLER, TESS, MINUTE = 0.0204335, 120 / 86400, 1 / 1440


def rng(seed=0):
    return np.random.default_rng([18, seed])


def drifting(step, n, span=365.25):
    """Regular at the spacecraft, and moved by up to 499 s by the light's way to the Sun."""
    t = step * np.arange(n)
    return 2458000 + t + 499 / 86400 * np.sin(2 * np.pi * t / span)


def with_gaps(t, part, seed=1):
    return t[rng(seed).random(len(t)) < part]


@pytest.mark.parametrize(
    ("t", "step"),
    [
        (drifting(TESS, 19_000), TESS),
        (with_gaps(drifting(TESS, 19_000), 0.7), TESS),
        (with_gaps(drifting(TESS, 19_000), 0.3), TESS),
        (np.concatenate([drifting(TESS, 9_000), drifting(TESS, 9_000) + 13.7, drifting(TESS, 9_000) + 730.03]), TESS),
        (drifting(KEPLER, 60_000), KEPLER),
        (np.round(drifting(TESS, 19_000), 5), TESS),
        (np.sort(rng().permutation(np.repeat(drifting(TESS, 9_000), 2))), TESS),  # every stamp twice
        (np.arange(3000) * 0.1, 0.1),
        (rng().choice(700, 150, replace=False), 1.0),
        (2450000.5 + rng(2).choice(700, 60, replace=False), 1.0),
        (rng(3).choice(350, 60, replace=False) * 2.0 + 17, 2.0),
        (np.array([0.0, 2, 5, 8, 11, 13, 15, 20]) * 7, 7.0),  # no two weeks on end
        (np.repeat(rng(4).choice(700, 60, replace=False), 3), 1.0),
        (np.round(rng(5).uniform(0, 700, 300), 1), 0.1),
    ],
)
def test_regular_times_end_at_their_nyquist_frequency(t, step):
    frequency, regular = highest_frequency(np.asarray(t, np.float64))
    assert regular
    # the light's way changes the steps by 1e-4 at most, rounding to 1e-5 d those of two minutes by less than 1%
    assert frequency == pytest.approx(0.5 / step, rel=1e-4 if np.ptp(t) > 30 else 0.01)


def burst(n_nights, n, step, seed):
    nights = rng(seed).choice(2000, n_nights, replace=False) + 0.2 * rng(seed + 50).random(n_nights)
    return (nights[:, None] + step * np.arange(n)).ravel()


@pytest.mark.parametrize(
    "t",
    [
        rng(1).uniform(0, 700, 150),
        rng(2).uniform(0, 700, 5),
        rng(3).choice(700, 150, replace=False) + rng(4).normal(0, 0.01, 150),  # once a night, within minutes
        rng(5).choice(700, 100, replace=False) + 0.3 * rng(6).random(100),
        burst(60, 2, 33 * MINUTE, 7),  # Rubin
        burst(70, 4, 10 * MINUTE, 8),  # Catalina
        burst(200, 3, 5 * MINUTE, 9),  # radial velocities
        burst(100, 9, 40 / 86400, 10),  # deep drilling
        burst(40, 9, 4.85 / 86400, 11),  # Gaia's CCDs
        rng(12).uniform(0, 3650, 800),
        np.array([0.0, 0.13, 0.31, 0.5]),  # a short night
        np.round(rng(14).uniform(0, 700, 150), 2),
        np.array([3.0, 3.0, 3.0, 9.7, 4.1]),
    ],
)
def test_uneven_times_end_at_an_hour(t):
    assert highest_frequency(t) == (HIGHEST, False)


def test_dense_uneven_times_keep_what_astropy_would_search():
    t = rng(1).uniform(0, 3, 4000)
    frequency, regular = highest_frequency(t)
    assert (frequency, regular) == (pytest.approx(2.5 * 4000 / np.ptp(t)), False)
    nights = (np.arange(5)[:, None] + 30 / 86400 * np.arange(600)).ravel()  # every 30 s, five nights
    assert highest_frequency(nights) == (pytest.approx(1440), True)
    short = rng(2).uniform(0, 0.01, 6)
    assert highest_frequency(short)[0] * np.ptp(short) >= 1
    assert np.isnan(highest_frequency(np.full(5, 2.0))[0])


def test_units_batches_and_missing_rows():
    t = np.sort(rng(1).uniform(0, 700, 150))
    y = np.sin(2 * np.pi * t / 0.568) + 0.1 * rng(2).normal(size=150)
    auto = {"fmin": "auto", "fmax": "auto", "return_power": False}
    one = skysieve.lombscargle(t, y, 0.1, **auto)
    f0, df, nf = one.grids.of(0)
    assert (f0, df) == (pytest.approx(1 / np.ptp(t)), pytest.approx(0.2 / np.ptp(t)))
    assert f0 + df * (nf - 1) == pytest.approx(24, abs=df)
    assert one.period == pytest.approx(0.568, rel=1e-3)
    hours = skysieve.lombscargle(t * 24 * u.h, y, 0.1, **auto)
    assert hours.period.to_value(u.d) == pytest.approx(one.period, rel=1e-9)
    assert hours.grids.nf[0] == nf
    daily = rng(3).choice(700, 80, replace=False) * 1.0
    wave = np.sin(2 * np.pi * daily / 7.7)
    # a row that is left out does not count: without it the times are regular
    odd, value = np.append(daily, 0.123), np.append(wave, np.nan)
    batch = skysieve.lombscargle([t, odd, [1.0, 1, 1, 1]], [y, value, [1.0, 2, 3, 4]], **auto)
    ends = (batch.grids.f0 + batch.grids.df * (batch.grids.nf - 1))[:2]
    np.testing.assert_allclose(ends, [24, 0.5], rtol=0.01)
    np.testing.assert_allclose(batch.period[:2], [0.568, 7.7], rtol=0.01)
    assert batch.status.tolist() == [0, 0, 5]
    same = skysieve.lombscargle(daily, np.stack([wave, wave[::-1]]), **auto)
    assert same.grids.shared
    assert same.grids.f0[0] + same.grids.df[0] * (same.grids.nf[0] - 1) == pytest.approx(0.5, rel=0.01)
    # an end that is given is kept; a longest period above T too
    kept = skysieve.lombscargle(t, y, fmin="auto", fmax=0.9 / np.ptp(t), return_power=False).grids
    assert kept.f0[0] == pytest.approx(0.1 / np.ptp(t))
    assert skysieve.lombscargle(t, y, fmin=3.0, fmax="auto", return_power=False).grids.f0[0] == 3


def test_number_of_frequencies_is_bounded_and_a_cut_is_reported():
    t = np.sort(rng(1).uniform(0, 3e5, 40))
    y = np.sin(t)
    with pytest.warns(UserWarning, match="no more than 5,000,000 frequencies"):
        found = skysieve.lombscargle(t, y, fmax="auto", return_power=False, method="nufft")
    assert found.grids.nf[0] == MOST
    with pytest.raises(ValueError, match=r"start at fmin = 100 and end at the limit of its sampling = 24"):
        skysieve.lombscargle(t, y, fmin=100, fmax="auto")
    with pytest.raises(TypeError, match="fmax='high'; a positive number or 'auto'"):
        skysieve.lombscargle(t, y, fmax="high")
    with pytest.raises(ValueError, match="not a unit of time"):
        skysieve.lombscargle(t * u.m, y, fmax="auto")


def test_python_without_a_range_keeps_astropys():
    t = rng(1).uniform(0, 700, 150)
    expected = LombScargle(t, t).autofrequency()
    np.testing.assert_array_equal(skysieve.LombScargle(t, t).autofrequency(), expected)
    np.testing.assert_allclose(skysieve.lombscargle(t, np.sin(t)).frequency, expected, rtol=4e-16)


# ---------------------------------------------------------------- the command


CADENCES = {
    "uniform": lambda r, n: r.uniform(0, 700, n),
    "one visit a night": lambda r, n: r.choice(700, n, replace=False) + 0.3 * r.random(n),
    "two visits a night": lambda r, n: np.add.outer(
        [0.0, 0.03], r.choice(700, -(-n // 2), replace=False) + 0.25 * r.random(-(-n // 2))
    ).ravel()[:n],
    "seasons": lambda r, n: r.choice(np.flatnonzero(np.arange(700) % 365 < 200), min(n, 380)) + 0.3 * r.random(n),
    "the same hour every night": lambda r, n: r.choice(700, n, replace=False) + r.normal(0, 0.03, n),
}


def stars(cadence, n_stars, seed, ratio=10.0):
    """Sinusoids with periods of 0.2 to 100 d, evenly in the logarithm; ``ratio`` is amplitude over noise."""
    r = rng(seed)
    period = np.exp(r.uniform(np.log(0.2), np.log(100), n_stars))
    columns = {"id": [], "mjd": [], "mag": [], "magerr": []}
    for i, p in enumerate(period):
        t = np.sort(CADENCES[cadence](r, int(r.integers(60, 301))))
        amplitude = r.uniform(0.05, 0.5)
        y = 15 + amplitude * np.sin(2 * np.pi * (t / p + r.random())) + amplitude / ratio * r.normal(size=len(t))
        for name, x in zip(
            columns, (np.full(len(t), i), 58000 + t, y, np.full(len(t), amplitude / ratio)), strict=True
        ):
            columns[name].append(x)
    return period, {name: np.concatenate(x) for name, x in columns.items()}


def share_found(tmp_path: Path, cadence: str, n_stars: int, seed: int, ratio: float = 10.0) -> float:
    period, columns = stars(cadence, n_stars, seed, ratio)
    file, out = tmp_path / "stars.csv", tmp_path / "periods.ecsv"
    write_table(columns, file)
    result = CliRunner().invoke(app, ["period", str(file), "-o", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return float(np.mean(np.abs(np.asarray(Table.read(out)["period"]) / period - 1) < 0.01))


@pytest.mark.few
@pytest.mark.parametrize("cadence", ["uniform", "one visit a night"])
def test_periods_are_found_without_options(tmp_path: Path, cadence: str) -> None:
    assert share_found(tmp_path, cadence, 30, 1) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [10.0, 3.0])
@pytest.mark.parametrize("cadence", CADENCES)
def test_of_200_stars_nine_in_ten_are_found_without_options(tmp_path: Path, cadence: str, ratio: float) -> None:
    assert share_found(tmp_path, cadence, 200, 2, ratio) >= 0.9


def test_the_sparse_star(tmp_path: Path) -> None:
    """150 points in 700 days: astropy's rule ends at 1.9 d, and the best period above that is 4.18 d."""
    t = np.sort(rng(7).uniform(0, 700, 150))
    y = 15 + np.sin(2 * np.pi * t / 0.568) + 0.1 * rng(8).normal(size=150)
    file = tmp_path / "star.csv"
    write_table({"mjd": 58000 + t, "mag": y, "magerr": np.full(150, 0.1)}, file)
    result = CliRunner().invoke(app, ["period", str(file)], catch_exceptions=False)
    first = result.stderr.splitlines()[0]
    assert f"1 object, 150 rows; periods of 0.04167 to {np.ptp(t):.4g} d (" in first
    best = re.search(r"^1 +(\S+)", result.stdout, re.M)
    assert best
    assert float(best[1]) == pytest.approx(0.568, rel=1e-3)


def test_ends_that_leave_nothing_and_long_ranges(tmp_path: Path) -> None:
    file = tmp_path / "star.csv"
    t = np.sort(rng(7).uniform(0, 3e5, 40))
    write_table({"mjd": t, "mag": np.sin(t)}, file)
    result = CliRunner().invoke(app, ["period", str(file), "--max-period", "0.01"])
    assert result.exit_code == 2
    assert (
        "the longest period, 0.01 d, is not above the shortest period of the automatic range, 0.04167 d"
        in result.stderr
    )
    cut = CliRunner().invoke(app, ["period", str(file), "--method", "nufft"], catch_exceptions=False)
    assert "(5,000,000 frequencies; --min-period" in cut.stderr.splitlines()[0]
    assert "note: the highest frequency is lowered so that no more than 5,000,000 frequencies" in cut.stderr
    longer = CliRunner().invoke(app, ["period", str(file), "--min-period", "4e5"], catch_exceptions=False)
    shortest = re.search(r"periods of (\S+) to ", longer.stderr.splitlines()[0])
    assert shortest
    assert float(shortest[1]) > np.ptp(t)  # as asked, to half a step of the grid
    assert longer.exit_code == 0


@pytest.mark.slow
def test_regular_times_are_reported(tmp_path: Path) -> None:
    t = drifting(TESS, 5000)
    file = tmp_path / "tess.csv"
    write_table({"bjd": t, "flux": 1 + 0.01 * np.sin(2 * np.pi * t / 0.0123)}, file)
    result = CliRunner().invoke(app, ["period", str(file), "--plot", str(tmp_path)], catch_exceptions=False)
    assert "periods of 0.002778 to 6.944 d" in result.stderr.splitlines()[0]
    assert "note: the times are regular: the range ends at their Nyquist frequency" in result.stderr
    assert re.search(r"^1 +0\.0123\d* ", result.stdout, re.M)


@pytest.mark.parametrize("name", ["01_ztf_irsa.csv", "OGLE-LMC-RRLYR-00001.dat", "19_qlp.fits", "04_gaia_dr3.csv"])
def test_files_of_surveys_without_a_range(test_data: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "p.ecsv"
    file = test_data / "lightcurve_formats" / name
    result = CliRunner().invoke(app, ["period", str(file), "-o", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    np.testing.assert_allclose(Table.read(out)["period"][0], 0.56789, rtol=1e-3)


def test_an_asteroid_without_a_range(test_data: Path) -> None:
    """243 Ida, 29 points, turns in 4.634 h."""
    file = test_data / "lomb_scargle" / "243_normalized_ztf_filter2.txt"
    result = CliRunner().invoke(app, ["period", str(file), "--asteroid"], catch_exceptions=False)
    assert "rotation periods of 2 to " in result.stderr.splitlines()[0]
    assert re.search(r"^1 +4\.63[34]", result.stdout, re.M)
