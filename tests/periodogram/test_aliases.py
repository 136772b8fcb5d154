"""Alias flags: made samplings with a known rhythm, and the RR Lyrae of Stripe 82, whose periods are known."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from tests.marks import slow

import skysieve
from skysieve.core.cpu.jit import interpreted
from skysieve.periodogram import Alias, find_aliases
from skysieve.periodogram.cpu import aliases as kernels
from skysieve.periodogram.result.aliases import Sampling, alias_relations, compiled_relations, rhythms, window_power


def times(rhythm, n=400, cycles=60, seed=0, share=0.25):
    """Random times within the first quarter of each cycle."""
    rng = np.random.default_rng(seed)
    return np.sort((rng.integers(0, cycles, n) + share * rng.random(n)) / rhythm)


@pytest.mark.parametrize(
    ("rhythm", "flag", "text"),
    [
        (1.0, Alias.DAY, "1/d"),
        (1 / 29.530589, Alias.MONTH, "1/month"),
        (1 / 365.25, Alias.YEAR, "1/yr"),
        (1 + 1 / 365.25, Alias.DAY | Alias.YEAR, "(1/d + 1/yr)"),
    ],
)
def test_each_rhythm(rhythm, flag, text):
    t = times(rhythm, cycles=60 if rhythm < 0.9 else 800)
    f = 2.34567
    found = find_aliases(t, [f, f + rhythm, f - rhythm, f + 0.37], np.ptp(t))
    assert found.flag.tolist() == [0, flag, flag, 0]
    assert found.of.tolist() == [-1, 0, 0, -1]
    assert [str(x) for x in found.text] == ["", f"#1 + {text}", f"#1 - {text}", ""]
    assert found.window[1] > 0.7
    far = np.sort(np.random.default_rng(1).uniform(0, np.ptp(t), len(t)))
    none = find_aliases(far, [f, f + rhythm, f - rhythm], np.ptp(t))
    assert not none.flag.any()  # the same distances mean nothing without that rhythm in the times
    mirrored = find_aliases(t, [0.4 * rhythm, 0.6 * rhythm], np.ptp(t))
    assert str(mirrored.text[1]) == f"{text.strip('()')} - #1"
    own = find_aliases(t, [rhythm], np.ptp(t))
    assert own.flag[0] == Alias.SAMPLING
    assert str(own.text[0]) == text.strip("()")


def test_short_spans_have_no_aliases_of_long_rhythms():
    """60 days: a day's alias is not called a year's, nor a month's."""
    t = times(1.0)
    found = find_aliases(t, [0.31, 1.31 + 1 / 365.25, 1.31 - 0.3 / 60], np.ptp(t))
    assert found.flag.tolist() == [0, Alias.DAY, Alias.DAY]


def test_multiples():
    t = np.sort(np.random.default_rng(0).uniform(0, 100, 200))
    found = find_aliases(t, [0.9, 1.8, 0.3, 2.7, 0.45, 1.234], np.ptp(t))
    assert [str(x) for x in found.text] == ["", "2 x #1", "#1 / 3", "3 x #1", "#1 / 2", ""]
    assert (found.flag == [0, 8, 8, 8, 8, 0]).all()


@pytest.mark.slow
def test_peaks_that_no_object_has_take_no_time():
    """20,000 peaks are requested and three exist; comparing pairs of the others would take minutes."""
    t = times(1.0)
    f = np.full((2, 20_000), np.nan)
    f[0, :3] = 0.31, 1.31, 0.77
    found = find_aliases(np.tile(t, 2), f, np.ptp(t), offsets=[0, t.size, 2 * t.size])
    assert found.flag.shape == f.shape
    assert found.flag[0, :4].tolist() == [0, Alias.DAY, 0, 0]
    assert not find_aliases(t, f[1], np.ptp(t)).flag.any()


def test_batch_equals_singles():
    rng = np.random.default_rng(3)
    sizes = [40, 0, 7, 300, 90]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    t = np.concatenate([59000 + rng.integers(0, 900, n) + 0.2 * rng.random(n) for n in sizes])
    dy = rng.uniform(0.5, 2, t.size)
    t[45], dy[300] = np.nan, np.inf
    f = 0.37 + np.array([0, 1, 1 / 365.25, 2.5, np.nan]) + np.zeros((5, 1))
    span = np.array([890.0, np.nan, 800, 895, 880])
    batch = find_aliases(t, f, span, dy, offsets=offsets)
    assert batch.flag[:, 1].any()
    for i, n in enumerate(sizes):
        rows = slice(offsets[i], offsets[i + 1])
        if n == 0:
            assert not batch.flag[i].any()
            continue
        one = find_aliases(t[rows], f[i], span[i], dy[rows])
        for name in ("flag", "of", "text"):
            assert np.array_equal(getattr(batch[i], name), getattr(one, name))
        np.testing.assert_allclose(batch.window[i], one.window, rtol=1e-9)
    with pytest.raises(ValueError, match="2 objects"):
        find_aliases(t, f, span, dy, offsets=[0, 3, 9])


def test_of_a_result():
    from astropy import units as u

    t = times(1.0, cycles=90)
    y = np.sin(2 * np.pi * 0.43 * t)
    grid = {"n_peaks": 3, "nf": 4000, "device": "cpu"}
    one = skysieve.lombscargle(t, y, fmin=0.2, fmax=2, **grid)
    flags = one.aliases(t, y)
    assert flags.flag.shape == (3,)
    assert flags.flag[1] == flags.flag[2] == Alias.DAY
    hours = skysieve.lombscargle(t * 24 * u.h, y, fmin=0.2 / u.d, fmax=2 / u.d, **grid)
    assert np.array_equal(hours.aliases(t * 24 * u.h, y).text, flags.text)
    table = {
        "t": np.concatenate([t, t]),
        "y": np.concatenate([y, np.full(t.size, np.nan)]),
        "id": np.repeat([1, 2], 400),
    }
    batch = skysieve.lombscargle("t", "y", data=table, id="id", fmin=0.2, fmax=2, return_power=False, **grid)
    found = batch.aliases("t", "y", data=table, id="id")
    assert np.array_equal(found.text[0], flags.text)
    assert not found.flag[1].any()
    with pytest.raises(ValueError, match="hold 1 light curve, but 2 light curves were searched"):
        batch.aliases(t, y)
    with pytest.raises(ValueError, match="not a unit of time"):
        one.aliases(t * u.m, y)


def test_window_power_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    t, w = rng.uniform(0, 50, 90), rng.uniform(0, 1, 90)
    offsets, which = np.array([0, 30, 50, 90]), np.array([0, 0, 1, 2, 2, 1])
    f = rng.uniform(0, 3, 6)
    expected = [
        abs(np.sum(w[offsets[i] : offsets[i + 1]] * np.exp(2j * np.pi * x * t[offsets[i] : offsets[i + 1]]))) ** 2
        for i, x in zip(which, f, strict=True)
    ]
    for rows in (1, 45, 10**6):
        monkeypatch.setattr("skysieve.periodogram.result.aliases.BLOCK_ROWS", rows)
        np.testing.assert_allclose(window_power(t, w, offsets, which, f), expected, rtol=1e-9)


@pytest.mark.parametrize(("compiled", "objects"), [(False, 9), slow(True, 900)])
@pytest.mark.parametrize("has_dy", [True, False])
def test_compiled_code_finds_the_same(compiled, objects, has_dy, monkeypatch):
    """Empty objects, one without a usable row, one of 600 rows, rows that are not used, and peaks of all kinds."""
    if not compiled:
        monkeypatch.setattr(kernels, "relate", interpreted(kernels.relate))
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 60, objects)
    sizes[:4] = 0, 600, 9, 137
    sizes[-1] = 0
    offsets = np.append(0, np.cumsum(sizes))
    n = int(offsets[-1])
    t = 58000 + rng.integers(0, 900, n) + 0.2 * rng.random(n)
    y, dy = rng.normal(size=n), rng.uniform(0.1, 1, n) if has_dy else None
    t[::41], y[3::50], y[offsets[2] : offsets[3]] = np.nan, np.inf, np.nan
    if dy is not None:
        dy[7::60], dy[9::60] = np.nan, -1
    f = rng.uniform(0.2, 8, objects)
    peaks = np.stack([f, abs(1 - f), 1 + f, f + 1 / 365.25, 2 * f, np.ones(objects)], axis=1)
    peaks = np.where(rng.random(peaks.shape) < 0.2, rng.uniform(0.2, 8, peaks.shape), peaks)
    peaks[sizes == 0], peaks[1, 4:] = np.nan, np.nan
    spans = np.where(rng.random(objects) < 0.2, 40.0, 900.0)
    sampling = Sampling.of(t, dy, offsets, np.isfinite(y))
    expected = alias_relations(sampling, peaks, spans)
    found, mean, mean_square = compiled_relations(t, y, dy, offsets, peaks, spans)
    assert len(np.unique(expected.flag)) >= 4
    for name in ("flag", "of", "relation"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.window, expected.window, rtol=1e-9)
    np.testing.assert_array_equal(mean, sampling.mean)  # the order of the sums is NumPy's
    np.testing.assert_array_equal(mean_square, sampling.mean_square)


def test_rhythms_are_what_their_names_say():
    known = rhythms()
    assert np.all(np.diff(known.frequency) > 0)
    assert len(set(known.name)) == len(known.name)
    values = {"d": 1.0, "yr": 1 / 365.25, "month": 1 / 29.530589}
    for f, name in zip(known.frequency, known.name, strict=True):
        terms = name.replace("- ", "-").replace("+ ", "+").split()
        assert f == pytest.approx(sum(float(k.split("/")[0]) * values[k.split("/")[1]] for k in terms))


def test_stripe_82(test_data):
    """If the catalogue's period is among the five best peaks but not the first, the flags lead to it."""
    from skysieve.periodogram.lightcurves.io import read_light_curves

    folder = test_data / "lomb_scargle"
    curves = read_light_curves(folder / "SDSS_stripe82_band_z.txt")
    with (folder / "sdss_s82_known_periods.csv").open() as file:
        truth = {row[0]: 1 / float(row[-1]) for row in csv.reader(file) if row[0].isdigit()}
    found = skysieve.lombscargle(
        curves.t, curves.y, curves.dy, offsets=curves.offsets, fmin=1 / 1.2, fmax=1 / 0.15, nf=100_000, n_peaks=5,
        return_power=False, device="cpu",
    )  # fmt: skip
    flags = find_aliases(curves.t, found.peaks.frequency, found.span, curves.dy, offsets=curves.offsets)
    misled = led = yearly = named = 0
    for i, f0 in enumerate(truth[str(name)] for name in curves.ids):
        f, near = found.peaks.frequency[i], 0.5 / found.span[i]
        at = np.flatnonzero(np.abs(f - f0) < near)
        if at.size and at[0] > 0:
            misled += 1
            led += flags.of[i, at[0]] >= 0
        for k in range(1, 5):
            if abs(f[0] - f0) < near and abs(abs(f[k] - f[0]) - 1 / 365.25) < 0.5 * near:
                yearly += 1
                named += flags.flag[i, k] == Alias.YEAR and flags.of[i, k] == 0
    assert misled >= 30
    assert led >= misled - 1  # measured: 37 of 38
    assert yearly >= 20
    assert named == yearly
