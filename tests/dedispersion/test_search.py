"""The search against the reference `tests.truth.dedispersion`, against known pulses, in noise, and its invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.marks import slow
from tests.truth import dedispersion as reference

from skysieve.core.errors import MemoryBudgetError
from skysieve.dedispersion import (
    DM_CONSTANT,
    Filterbank,
    Mask,
    Noise,
    PulseGrid,
    dedisperse,
    fake,
    inject,
    inject_grid,
    plan,
    search,
)
from skysieve.dedispersion.contract import NOISE, block_parts
from skysieve.dedispersion.data.delays import delay_seconds, sample_delays, snr_kept
from skysieve.dedispersion.single_pulse.candidates import Events
from skysieve.dedispersion.single_pulse.refine import refined
from skysieve.dedispersion.single_pulse.search import WIDTHS
from skysieve.dedispersion.stream import StreamSearch

NOISES = tuple(NOISE)


def in_memory(fb):
    return Filterbank.from_array(fb.read(), freqs=fb.freqs, tsamp=fb.tsamp, tstart=fb.observation.tstart)


@pytest.fixture(scope="module")
def pulses():
    """Five pulses of DM 100 in 12 s of 128 channels at 1 ms."""
    made = fake(
        nchan=128, duration=12, tsamp=1e-3, fch1=1500, foff=-2, dm=100, times=[0.3, 2.0, 4.7, 8.01, 11.9], width=8e-3,
        snr=20, seed=5,
    )  # fmt: skip
    return in_memory(made)


def columns(found):
    return [getattr(found.events, n) for n in found.events.__dataclass_fields__]


def same(a, b):
    assert len(a.events) == len(b.events) > 0
    for x, y in zip(columns(a), columns(b), strict=True):
        assert np.array_equal(x, y)
    assert np.array_equal(a.group, b.group)
    for name, column in a.columns().items():
        assert np.array_equal(column, b.columns()[name]), name


# ---------------------------------------------------------------- against the reference


@pytest.mark.few
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("downsamp", [1, 4])
def test_every_event_of_the_slow_search(pulses, noise, downsamp):
    dms = np.arange(80, 121, 10.0)
    widths = (1, 2, 3, 5, 8, 13, 100)
    p = plan(pulses, dms=dms, downsamp=downsamp)
    block = 1100 if downsamp == 1 else 4096  # 1024 binned samples at least
    found = search(pulses, p, widths=widths, threshold=3.5, noise=noise, block=block * 1e-3, clean=False)
    delays = sample_delays(pulses.freqs, dms, 1e-3 * downsamp)
    x = pulses.read()
    n = x.shape[1] // downsamp
    binned = x[:, : n * downsamp].reshape(128, n, downsamp).sum(axis=2, dtype=np.int64)
    expected = []
    for m, row in enumerate(delays):
        valid = n - row.max()
        y = sum(binned[c, s : s + valid] for c, s in enumerate(row))
        parts = block_parts(block, 1e-3)
        expected += [(m, *e) for e in reference.row_events(y, block // downsamp, widths, 3.5, noise, parts)]
    e = found.events
    got = sorted(zip(e.dm_index, e.sample // downsamp, e.width_samples, e.snr, strict=True))
    assert len(expected) > 25
    close = np.array(got, float) - np.array(sorted(expected), float)
    assert np.abs(close[:, :3]).max() == 0
    assert np.abs(close[:, 3]).max() < 1e-5  # derived: float32 of S/N up to 30


def test_nothing_depends_on_chunks_threads_or_method(pulses):
    dms = np.arange(0, 201, 5.0)
    whole = search(pulses, dms, threshold=5, threads=1)
    assert len(whole) >= 4
    small = (129 * 13000 + 2 * 41 * 10200 * 4) * 1.05
    for options in ({"memory": small}, {"memory": 1.4 * small, "threads": 2}, {"method": "brute"}):
        same(whole, search(pulses, dms, threshold=5, **options))
    with pytest.raises(MemoryBudgetError, match="its neighbours"):
        search(pulses, dms, memory=100_000)


def test_files_give_what_arrays_give(pulses, tmp_path):
    from skysieve.dedispersion import write_fil

    write_fil(tmp_path / "a.fil", pulses)
    with Filterbank.open(tmp_path / "a.fil") as fb:
        same(search(fb, [90.0, 100.0, 110.0]), search(pulses, [90.0, 100.0, 110.0]))


@pytest.mark.few
@pytest.mark.parametrize("kind", ["float32", slow("int8"), "uint16"])
def test_other_types_find_the_same_pulses(pulses, kind):
    x = pulses.read()
    y = {
        "float32": x.astype(np.float32) / 7 - 3,
        "int8": (x.astype(int) - 128).astype(np.int8),
        "uint16": x * np.uint16(9),
    }
    fb = Filterbank.from_array(y[kind], freqs=pulses.freqs, tsamp=pulses.tsamp)
    dms = np.arange(80, 121, 4.0)
    a, b = search(pulses, dms, threshold=7), search(fb, dms, threshold=7)
    assert np.array_equal(a.events.sample, b.events.sample)
    assert np.array_equal(a.events.dm_index, b.events.dm_index)
    np.testing.assert_allclose(
        a.snr, b.snr, rtol=1e-2
    )  # measured 3e-3: quartiles of floats are not spread over a value


def test_a_prefix_of_the_data_gives_the_same_events(pulses):
    """All but the last three blocks of a shorter file have the events of the longer one, as in a stream."""
    dms = np.arange(80, 121, 10.0)
    whole = search(pulses, dms, threshold=4, block=1.1)
    part = Filterbank.from_array(pulses.block(0, 9000), freqs=pulses.freqs, tsamp=1e-3)
    short = search(part, dms, threshold=4, block=1.1)
    limit = (9000 - int(sample_delays(pulses.freqs, dms, 1e-3).max())) // 1100 * 1.1 - 1.8
    a, b = whole.events.time < limit, short.events.time < limit
    assert a.sum() == b.sum() > 15
    for x, y in zip(columns(whole), columns(short), strict=True):
        assert np.array_equal(x[a], y[b])


def drifting(period, amplitude, width=8e-3, snr=25.0, kind="uint8", times=(2.0, 4.5, 7.2, 9.4)):
    """Pulses in noise whose level in every channel is a sine of ``amplitude`` sigma."""
    band = {"nchan": 64, "duration": 12, "tsamp": 1e-3, "fch1": 1500, "foff": -4}
    made = fake(dm=200, times=times, width=width, snr=snr, seed=5, **band)
    x = made.read().astype(np.float64) + 16 * amplitude * np.sin(2 * np.pi * np.arange(made.nsamp) * 1e-3 / period)
    x = np.clip(np.rint(x), 0, 255) - (96 if kind == "int8" else 0)
    return Filterbank.from_array(x.astype(kind), freqs=made.freqs, tsamp=1e-3)


@pytest.mark.few
@pytest.mark.parametrize("drift", [(1.7, 0.5), (4.0, 1.0), (10.0, 1.0), (60.0, 1.0)])
@pytest.mark.parametrize("width", [3e-3, 50e-3, 20e-3])
def test_pulses_on_a_drift_have_their_signal_to_noise(drift, width):
    """Drifts of 4 and 8 sigma of the series: without a baseline they would be detected themselves, at S/N 20 to 100."""
    period, amplitude = drift
    dms = np.arange(150, 251, 5.0)
    flat, drifts = (drifting(period, a, width) for a in (0, amplitude))
    before, found = (search(fb, dms, threshold=7) for fb in (flat, drifts))
    assert len(search(drifts, dms, threshold=7, baseline=False, clean=False)) > 4
    for t in (2.0, 4.5, 7.2, 9.4):
        near, was = (c.snr[np.abs(c.time - t) < 0.03] for c in (found, before))
        assert near.max() == pytest.approx(was.max(), rel=0.08), t  # one sigma of noise is 4%
    assert found.snr.max() < 1.2 * before.snr.max()


@pytest.mark.few
@pytest.mark.parametrize("kind", ["uint8", slow("int8"), "float32"])
def test_drifts_are_removed_as_the_slow_search_does(kind):
    fb = drifting(1.7, 0.5, kind=kind)
    widths = (1, 2, 5, 13, 100)
    found = search(fb, [0.0, 200.0], widths=widths, threshold=4.5, block=2.0)
    x, delays = fb.read().astype(np.int64), sample_delays(fb.freqs, [0.0, 200.0], 1e-3)
    expected = []
    for m, row in enumerate(delays):
        y = sum(x[c, s : x.shape[1] - row.max() + s] for c, s in enumerate(row))
        assert reference.baseline(y, 2000, 64)[1].all()
        expected += [(m, *e) for e in reference.row_events(y, 2000, widths, 4.5, "robust", 64)]
    e = found.events
    got = sorted(zip(e.dm_index, e.sample, e.width_samples, e.snr, strict=True))
    close = np.array(got, float) - np.array(sorted(expected), float)
    assert len(got) > 4
    assert np.abs(close[:, :3]).max() == 0
    # floats are not rounded to whole numbers (sigma is 128), and their quartiles are samples
    assert np.abs(close[:, 3]).max() < (1e-5 if kind != "float32" else 0.3)


def test_the_widest_boxcar_in_seconds():
    band = {"nchan": 64, "duration": 8, "tsamp": 1e-3, "fch1": 1500, "foff": -4}
    fb = fake(dm=200, times=[3.5], width=0.4, snr=20, seed=1, **band)
    dms = np.arange(100, 300, 20.0)
    # beside a window of 0.1 s the level is that of the pulse, which the second look takes for red noise
    wide, narrow = (search(fb, dms, max_width=w, threads=1, veto=w == 0.5) for w in (0.5, 0.1))
    assert narrow.width.max() <= 0.1
    assert 0.3 < wide.width[0] <= 0.5
    assert wide.snr[0] > 1.4 * narrow.snr.max()
    for bad in (0.0, -1.0, 4.2, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"max_width=.*expected seconds from 0.001 to 4.096"):
            search(fb, dms, max_width=bad)
    with pytest.raises(ValueError, match="max_width and widths cannot be combined"):
        search(fb, dms, max_width=0.1, widths=[1, 2])


def test_a_wide_pulse_in_noise_loses_as_much_as_its_part_of_three_blocks():
    """Noise does not drift, so a pulse of 300 ms loses at most 300 ms / 6 s of its S/N; a block's level took 15%."""
    rng = np.random.default_rng(8)
    pulses = np.repeat(np.arange(60) % 20 == 5, 300)
    snr = {}
    y = rng.normal(0, 100, (12, len(pulses)))
    for on in (False, True):
        rows = y + np.where(pulses, 100 * 12 / math.sqrt(300), 0)
        found = [search(Filterbank.from_array(np.float32(r[None]), freqs=[1400.0], tsamp=1e-3), [0.0], widths=[300],
                        threshold=6.5, block=2.0, baseline=on, threads=1) for r in rows]  # fmt: skip
        snr[on] = np.concatenate([f.snr for f in found])
        assert len(snr[on]) > 30
    # 36 pulses; the search takes the highest of neighbouring windows
    assert np.median(snr[True]) > 11.4
    assert np.median(snr[False]) < 11


# ---------------------------------------------------------------- known answers


@pytest.mark.slow
def test_the_papers_test_signal():
    """Table 2 and figure 5: required, every pulse found, mean S/N 62.3 +- 3, width 54 to 66, DM within a step."""
    fb = in_memory(fake(duration=8, seed=1))
    found = search(fb, np.arange(72.5, 77.5, 0.1), threshold=5)
    expected = np.arange(0.5, 6.5, 1.0)  # the band's delay at DM 80 is 1.2 s: what arrives later is not whole
    top = found.snr > 40
    order = np.argsort(found.time[top])
    times = found.time[top][order][:6]
    np.testing.assert_allclose(times, expected, atol=5e-3)
    assert abs(found.snr[top].mean() - 62.3) < 3
    assert set(found.width_samples[top].tolist()) <= set(range(54, 67))
    assert np.abs(found.dm[top] - 75).max() < 0.1001
    assert found.mjd_top[0] == pytest.approx(56000 + found.time[0] / 86400, abs=1e-11)
    late = float(delay_seconds(fb.freqs[0], found.dm[0]))
    assert found.mjd_infinite[0] == pytest.approx(found.mjd_top[0] - late / 86400, abs=1e-11)


@pytest.mark.slow
def test_snr_falls_off_with_dm_as_theory_predicts():
    """Equation 12 of Cordes & McLaughlin, which is for the height of a Gaussian pulse: required within 5%."""
    freqs, fwhm, tsamp = 400 - 0.02 * np.arange(512), 16e-3, 2.56e-4
    noise = fake(nchan=512, duration=6, tsamp=tsamp, fch1=400, foff=-0.02, nbits=32, period=None, seed=2).read()
    t = np.arange(noise.shape[1]) * tsamp
    arrival = 2.0 + delay_seconds(freqs, 50.0, 400.0)
    pulse = np.exp(-4 * math.log(2) * ((t - arrival[:, None]) / fwhm) ** 2)
    fb = Filterbank.from_array(noise + 4 * pulse.astype(np.float32), freqs=freqs, tsamp=tsamp)
    dms = 50 + np.arange(-18, 18.1, 1.0)
    found = search(fb, dms, threshold=6, widths=(4,), clean=False)
    e = found.events
    best = np.array([e.snr[e.dm == d].max(initial=0) for d in dms])
    model = snr_kept(dms - 50, 512 * 0.02, 394.9, fwhm)
    near = model > 0.5
    assert near.sum() > 10
    assert np.abs(best[near] / best.max() / model[near] - 1).max() < 0.05
    assert np.argmax(best) == len(dms) // 2


def test_threshold_detector_is_the_papers(pulses):
    """Every sample over mean + n sigma of its buffer, with its value in sigma."""
    dms = [0.0, 100.0]
    found = search(pulses, dms, detector="threshold", buffer=3000, threshold=4)
    x = pulses.read().astype(np.int64)
    expected = []
    for m, row in enumerate(sample_delays(pulses.freqs, np.array(dms), 1e-3)):
        valid = x.shape[1] - row.max()
        y = sum(x[c, s : s + valid] for c, s in enumerate(row)).astype(float)
        for first in range(0, valid, 3000):
            part = y[first : first + 3000]
            z = (part - part.mean()) / part.std()
            expected += [(m, first + i, z[i]) for i in np.flatnonzero(z >= 4)]
    e = found.events
    got = np.array([e.dm_index, e.sample, e.snr]).T
    expected = np.array(expected)
    edge = np.abs(expected[:, 2] - 4) > 0.01  # derived: samples are rounded to 1/64 sigma
    assert len(expected) > 30
    assert {(int(a), int(b)) for a, b, _ in expected[edge]} <= {(int(a), int(b)) for a, b, _ in got}
    assert len(got) <= len(expected) + (~edge).sum() + 3
    assert found.detector == "threshold"
    assert len(search(pulses, dms, detector="threshold", buffer=3000, threshold=1e4)) == 0


@pytest.mark.slow
def test_injected_pulses_are_recovered():
    """Required: recall of at least 99% at threshold + 3; S/N in [0.9, 1.02] of what is expected, +- the noise's 1."""
    rng = np.random.default_rng(8)
    base = in_memory(fake(nchan=128, duration=60, tsamp=1e-3, fch1=1500, foff=-2, period=None, seed=9))
    truth = []
    fb = base
    for i in range(57):
        dm, width = rng.uniform(20, 380), rng.choice([3e-3, 8e-3, 20e-3, 60e-3])
        snr, t = rng.choice([9.5, 12.0, 20.0, 50.0]), 1.0 + i + rng.uniform(0, 0.4)
        fb = inject(fb, dm=dm, time=t, snr=snr, width=width, sigma=16.0)
        truth.append((dm, width, snr, t))
    found = search(fb, plan(fb, 400, max_loss=0.02, width=3e-3, downsamp=1), threshold=6.5)
    hit, ratio = 0, []
    for dm, width, snr, t in truth:
        near = np.abs(found.time - t) < max(width, 4e-3)
        if not near.any():
            continue
        i = np.flatnonzero(near)[0]
        hit += 1
        assert snr_kept(found.dm[i] - dm, 256.0, 1372.0, width) > 0.6 or snr < 15
        ratio.append((found.snr[i] / snr, snr))
    assert hit >= 0.99 * len(truth)
    for r, snr in ratio:
        assert 0.9 - 4 / snr < r < 1.02 + 4 / snr
    assert 0.92 < np.mean([r for r, snr in ratio if snr > 15]) < 1.03


@pytest.mark.parametrize("nbits", [2, 8, 32])
def test_an_injected_pulse_adds_exactly_its_counts(nbits):
    fb = in_memory(fake(nchan=64, duration=4, tsamp=1e-3, fch1=400, foff=-0.5, nbits=nbits, period=None))
    one = inject(fb, dm=30, time=1.0, snr=8, width=5.5e-3, sigma=1.0)
    added = one.read().astype(float) - fb.read()
    wanted = 8 * math.sqrt(64) * math.sqrt(5.5)
    if nbits == 8:
        assert added.sum() == round(wanted)
    else:  # 2-bit data clip; floats round
        assert added.sum() == pytest.approx(wanted, abs=1e-3) if nbits == 32 else added.sum() <= wanted
    first = np.array([np.flatnonzero(a)[0] for a in added if a.any()])
    begin = (1.0 - 2.75e-3 + delay_seconds(fb.freqs, 30, fb.freqs[0])) / 1e-3
    rows = added.any(axis=1)
    assert (first >= np.floor(begin[rows])).all()
    assert (first <= begin[rows] + 6.5).all()


def test_a_pulse_at_the_very_end_is_found_at_low_dm():
    """The band's delay is 40 samples at DM 25 and 400 at DM 250; a pulse 60 samples before the end."""
    fb = in_memory(
        fake(nchan=64, duration=6, tsamp=1e-3, fch1=1500, foff=-4, dm=25, times=[5.93], width=8e-3, snr=15, seed=3)
    )
    found = search(fb, np.arange(0, 260, 12.5))
    assert found.dm[0] == pytest.approx(25, abs=5)  # smears by the width
    assert found.time[0] == pytest.approx(5.93, abs=4e-3)
    with pytest.raises(ValueError, match=r"delay of DM .* across the band is \d+ samples, but the data have only 6000"):
        search(fb, [50000.0])


def test_noise_is_normal_at_every_width():
    """Required: mean 0, standard deviation 1 +- 1% (and the scatter of 2e5 / width independent windows)."""
    from skysieve.dedispersion.contract import Detection
    from skysieve.dedispersion.cpu.engine import _Rows

    fb = in_memory(fake(nchan=64, duration=200, tsamp=1e-3, fch1=1500, foff=-1, period=None, seed=4))
    y = fb.read().sum(axis=0, dtype=np.uint32)
    n = len(y)
    for kind in NOISES:
        rows = _Rows(y[None], Detection(2000, WIDTHS, 6.0, kind, False, np.array([n]), parts=64))
        rows.find_levels(0, n)
        rows.normalise(0, n)
        prefix = rows.prefix
        for w in WIDTHS[:16]:
            s = (prefix[w:] - prefix[:-w])[::w].astype(float) / (64 * math.sqrt(w))
            spread = 1 / math.sqrt(2 * len(s))
            # the level is that of 6000 samples: sigma falls by w / 2 / 6000
            assert abs(s.std() - math.sqrt(1 - w / 6000)) < 0.01 + 4 * spread
            assert abs(s.mean()) < 0.01 + 4 / math.sqrt(len(s)) + 0.02 * math.sqrt(w)


def quartiles_of_floats(y):
    from skysieve.dedispersion.cpu.detect import BINS, float_quartiles

    out = np.zeros(3)
    float_quartiles(y, 0, len(y), np.zeros(BINS + 1, np.int64), np.empty(len(y), np.float32), out)
    return out


def test_quartiles_of_floats_are_those_of_sorting():
    rng = np.random.default_rng(3)
    cases = [
        rng.normal(0, 30, 12121), np.zeros(1000), [1.0, 2, 3, 4], rng.standard_cauchy(9999), rng.permutation(5000),
        [1e30, *rng.normal(size=600)], [np.inf, 1, 2, 3, 4, 5],
    ]  # fmt: skip
    for case in cases:
        y = np.array(case, np.float32)
        n = len(y)
        assert np.array_equal(quartiles_of_floats(y), np.sort(y)[[n // 4, n // 2, 3 * n // 4]])
    nan = quartiles_of_floats(np.array([1.0] * 100 + [np.nan] * 50 + [2.0], np.float32))
    assert ((nan[np.isfinite(nan)] >= 0.5) & (nan[np.isfinite(nan)] <= 2.5)).all()


def test_equal_floats_are_spread_between_their_neighbours():
    """The distribution is interpolated between the middles of neighbouring values."""
    from skysieve.dedispersion.cpu.detect import BINS, quartiles

    rng = np.random.default_rng(4)
    cases = [
        rng.integers(0, 3, 5000), rng.binomial(64, 0.5, 9999), rng.choice([-5.0, -1.0, 0.5, 20.0], 777),
        [-3.4e38, 3.4e38] * 50, [-0.0, 0.0, 1.0, -1.0] * 40,
    ]  # fmt: skip
    for case in cases:
        y = np.array(case, np.float32)
        values, counts = np.unique(y.astype(np.float64), return_counts=True)
        around = np.concatenate([[2 * values[0] - values[1]], values, [2 * values[-1] - values[-2]]])
        middles = (around[1:] + around[:-1]) / 2
        wanted = np.interp(len(y) * np.array([0.25, 0.5, 0.75]), np.concatenate([[0], np.cumsum(counts)]), middles)
        np.testing.assert_allclose(quartiles_of_floats(y), wanted, rtol=1e-12, atol=1e-12)
    assert quartiles_of_floats(np.array([1.0] * 9 + [np.inf] * 9, np.float32)).tolist() == [1.0, np.inf, np.inf]
    whole, out = np.rint(rng.normal(300, 4, 20_000)), np.zeros(3)
    quartiles(whole.astype(np.uint32), 0, len(whole), np.zeros(BINS + 1, np.int64), out)
    assert np.array_equal(quartiles_of_floats(whole.astype(np.float32)), out)


@pytest.mark.slow
def test_false_alarms_are_those_of_normal_noise():
    """Single samples over 4 sigma: 3.2e-5 of them; DMs far apart are independent.  Poisson, 5 sigma."""
    fb = fake(nchan=64, duration=60, tsamp=1e-3, fch1=1500, foff=-4, period=None, seed=6)
    dms = np.arange(0, 500, 25.0)
    found = search(in_memory(fb), dms, detector="threshold", threshold=4)
    trials = sum(60000 - int(d.max()) for d in sample_delays(fb.freqs, dms, 1e-3)[:, None])
    expected = trials * 3.167e-5
    assert abs(len(found.events) - expected) < 5 * math.sqrt(expected)
    assert len(search(in_memory(fb), dms, threshold=6.5)) == 0


@pytest.mark.slow
def test_boxcars_have_the_false_alarms_of_white_noise():
    """Windows of all widths overlap, so the number of trials comes from the reference search of white noise.

    4 sigma; Poisson, 5 sigma of both counts.
    """
    fb = fake(nchan=64, duration=60, tsamp=1e-3, fch1=1500, foff=-4, period=None, seed=12)
    dms = np.array([0.0, 60.0, 150.0, 300.0, 450.0])
    found = search(in_memory(fb), dms, threshold=4)
    rng = np.random.default_rng(13)
    expected = 0
    for shift in sample_delays(fb.freqs, dms, 1e-3).max(axis=1):
        white = np.rint(rng.normal(6000, 128, 60000 - int(shift))).astype(np.int64)
        expected += len(reference.row_events(white, 2000, WIDTHS, 4.0, "robust"))
    assert expected > 30
    assert abs(len(found.events) - expected) < 5 * math.sqrt(2 * expected)


def test_nothing_can_be_found_in_masked_data(pulses):
    with pytest.raises(ValueError, match="all channels are masked"):
        search(pulses, [0.0], mask=Mask.channels(pulses.nchan, range(pulses.nchan)))
    with pytest.raises(ValueError, match="ignore: all channels are left out"):
        StreamSearch(pulses.observation, plan(pulses, 50.0), dtype="uint8", ignore=range(pulses.nchan))


def test_masked_channels_lower_the_signal_to_noise(pulses):
    """Without half of the channels the S/N falls by the square root of two; masked samples have no influence."""
    dms = [100.0]
    half = search(pulses, dms, mask=Mask.channels(128, np.arange(0, 128, 2)))
    full = search(pulses, dms)
    assert half.snr[0] / full.snr[0] == pytest.approx(math.sqrt(0.5), abs=0.1)
    assert half.live == 0.5
    loud = pulses.read().copy()
    loud[7] = np.where(np.arange(loud.shape[1]) % 1000 < 500, 255, 0)
    fb = Filterbank.from_array(loud, freqs=pulses.freqs, tsamp=1e-3, tstart=pulses.observation.tstart)
    mask = Mask.channels(128, [7])
    same(search(fb, dms, mask=mask), search(pulses, dms, mask=mask))


def test_constant_and_saturated_data_are_quiet():
    for value in (0, 255):
        fb = Filterbank.from_array(np.full((16, 5000), value, np.uint8), fch1=1500, foff=-4, tsamp=1e-3)
        assert len(search(fb, [0.0, 50.0])) == 0


# ---------------------------------------------------------------- real data


def test_real_pulsar(test_data):
    """The brightest pulses of J1807-0847: known with another baseline, S/N 63 +- 3 at 19.8805 s and 15.6203 s."""
    fb = Filterbank.open(test_data / "dedispersion" / "GBT_J1807-0847.dat")
    found = search(fb, [0.0], block=4096 * fb.tsamp)
    starts = found.sample * fb.tsamp
    assert set(found.dm) == {112.3802}  # the series' own
    for t in (19.8805, 15.6203):
        i = np.argmin(np.abs(starts - t))
        assert abs(starts[i] - t) < 2e-3
        assert abs(found.snr[i] - 63) < 3
        assert i < 3


def test_real_pulses_of_the_tutorial(test_data):
    """An injected pulsar of 250 ms and DM 30 whose single pulses are of S/N 6 to 8 (9.7 with a boxcar that fits)."""
    fb = Filterbank.open(test_data / "dedispersion" / "tutorial.fil")
    found = search(fb, np.arange(0, 60, 1.0), threshold=7)
    assert len(found) > 60
    phase = found.time / 0.25 % 1
    centre = np.angle(np.exp(2j * np.pi * phase).mean()) / (2 * np.pi)
    off = np.abs((phase - centre + 0.5) % 1 - 0.5)
    assert np.median(off) < 0.02
    assert (off < 0.06).mean() > 0.95


def test_real_widths_share_the_top_event(test_data):
    """The Parkes files hold strong RFI; the loudest event is the same in 2, 4 and 8 bits."""
    tops = []
    for name in ("parkes_8bit_1.fil", "parkes_4bit.fil", "parkes_2bit.fil"):
        found = search(
            Filterbank.open(test_data / "dedispersion" / name), np.arange(0, 100, 1.0), threshold=6, clean=False
        )
        tops.append((found.time_first[0], found.time_last[0]))
    assert max(a for a, _ in tops) < min(b for _, b in tops)


# ---------------------------------------------------------------- grouping


def test_candidates_are_their_loudest_members(pulses):
    found = search(pulses, np.arange(60, 141, 2.0), threshold=5.5)
    e = found.events
    assert (np.diff(found.snr) <= 0).all()
    assert found.members.sum() == len(e)
    for i in range(len(found)):
        mine = found.group == i
        top = np.flatnonzero(mine)[np.argmax(e.snr[mine])]
        assert (found.snr[i], found.width[i], found.sample[i]) == (e.snr[top], e.width[top], e.sample[top])
        smear = DM_CONSTANT * abs(found.dm[i] - e.dm[top]) * np.ptp(pulses.freqs**-2)
        assert smear < e.width[top]
        assert abs(found.time[i] - e.time[top]) < e.width[top]
        assert found.dm_low[i] == e.dm[mine].min()
        assert found.time_last[i] == (e.time + e.width / 2)[mine].max()
    for t in (0.3, 2.0, 4.7, 8.01, 11.9):
        assert (np.abs(found.time[:5] - t) < 5e-3).sum() == 1


def events_of(rows: list[tuple[int, float, float, float]], dms: np.ndarray) -> Events:
    """Events from (DM number, time, width, S/N), sorted."""
    index, time, width, snr = (np.array(c, float) for c in zip(*rows, strict=True))
    index, whole = index.astype(int), np.rint(width / 1e-3).astype(int)
    sample = np.rint((time - width / 2) / 1e-3).astype(int)
    return Events(index, dms[index], snr.astype(np.float32), time, width, sample, whole, np.ones(len(rows), int))


def test_the_dm_of_a_candidate_is_the_middle_of_its_events(pulses):
    """A bow tie that is symmetric around DM 101, between two DMs of the search, with its peak thrown to one side."""
    obs, dms = pulses.observation, np.arange(80, 123, 2.0)
    per_dm, mid = DM_CONSTANT * np.ptp(obs.freqs**-2), DM_CONSTANT * ((obs.freqs**-2).mean() - obs.top**-2)
    rows = []
    for i, d in enumerate(dms):
        snr = 20 - abs(d - 101) / 2 + 1e-3 * (d == 102)
        rows.append((i, 3.0 - mid * (d - 101), 30 * per_dm, snr))
    events, group = events_of(rows, dms), np.zeros(len(dms), int)
    best = np.array([np.argmax(events.snr)])
    dm, time = refined(events, group, best, dms, obs, obs.top, DM_CONSTANT)
    assert events.dm[best[0]] == 102
    assert dm[0] == pytest.approx(101, abs=0.1)
    assert time[0] == pytest.approx(3.0, abs=0.1 * mid)
    at = np.array([0])  # a peak at the lowest DM stays there: there is nothing on its other side
    dm, time = refined(events, group, at, dms, obs, obs.top, DM_CONSTANT)
    assert (dm[0], time[0]) == (events.dm[0], events.time[0])


@pytest.mark.slow
def test_the_dm_of_candidates_is_nearer_to_the_truth_than_that_of_their_peaks():
    noise = Noise(nchan=64, foff=-4, tsamp=1e-3, duration=90)
    fb, _ = inject_grid(noise, PulseGrid(snr=[10.0], dm=[101.0], width=[1e-2]), n=50, seed=1)
    found = search(fb, np.arange(60, 141, 2.0))
    e = found.events
    peaks = [np.flatnonzero(found.group == i)[np.argmax(e.snr[found.group == i])] for i in range(len(found))]
    assert len(found) == 50
    after, before = found.dm - 101, e.dm[peaks] - 101
    assert np.sqrt(np.mean(after**2)) < 0.8 * np.sqrt(np.mean(before**2))  # seeds 1 to 8: 0.56 to 0.74


def test_stages_with_binning_find_one_pulse_once():
    fb = in_memory(
        fake(nchan=128, duration=8, tsamp=5e-4, fch1=1500, foff=-2, dm=200, times=[3.0], width=8e-3, snr=25, seed=7)
    )
    p = plan(fb, stages=[(0, 150, 5, 1), (150, 200, 5, 2), (200, 400, 10, 4)])
    found = search(fb, p)
    assert found.dm[0] == pytest.approx(200, abs=2.5)
    assert (found.downsamp[0], found.width[0]) == (4, pytest.approx(8e-3, rel=0.3))
    assert abs(found.time[0] - 3.0) < 3e-3
    assert found.snr[0] == pytest.approx(25, abs=3)
    assert found.dm_low[0] < 150
    assert len(found) == 1


@pytest.mark.few
@pytest.mark.parametrize("ref_freq", ["centre", "infinity", 2000.0])
def test_arrival_times_do_not_depend_on_the_reference(pulses, ref_freq):
    dms = np.arange(80, 120, 4.0)
    top, other = (search(pulses, dms, threshold=8, threads=1, ref_freq=r) for r in ("top", ref_freq))
    a, b = np.sort(top.mjd_top[:2]), np.sort(other.mjd_top[:2])
    np.testing.assert_allclose(b * 86400, a * 86400, rtol=0, atol=float(top.width[:2].max()))
    late = delay_seconds(pulses.observation.top, other.dm, math.inf)
    np.testing.assert_allclose((other.mjd_top - other.mjd_infinite) * 86400, late, atol=2e-6)  # the step of an MJD


@pytest.mark.few
@pytest.mark.parametrize("ref_freq", ["centre", "bottom", "infinity", 300.0])
def test_what_is_found_does_not_depend_on_the_reference(ref_freq):
    """Also pulses that would have arrived before the data at that frequency."""
    fb = in_memory(fake(
        nchan=32, duration=10, tsamp=1e-3, fch1=400, foff=-2, dm=60, times=[0.4, 1.2, 7.3, 8.9], width=4e-3, snr=30,
        seed=3,
    ))  # fmt: skip
    dms = plan(fb, stages=[(50, 60, 5, 1), (60, 70, 5, 2)])
    top, other = (search(fb, dms, threads=1, ref_freq=r) for r in ("top", ref_freq))
    assert len(top) == 4
    for name in ("snr", "width", "members", "downsamp"):
        assert np.array_equal(getattr(top, name), getattr(other, name))
    for name in ("dm", "mjd_top", "mjd_infinite"):
        np.testing.assert_allclose(getattr(other, name), getattr(top, name), rtol=1e-12, atol=1e-11)
    late = delay_seconds(400.0, other.dm, other.ref_freq)
    np.testing.assert_allclose(other.time + late, top.time, atol=1e-9)
    e, binned = other.events, 1e-3 * other.events.downsamp
    np.testing.assert_allclose(e.time + delay_seconds(400.0, e.dm, other.ref_freq), top.events.time, atol=1e-9)
    assert np.all(np.abs((e.sample + e.width_samples * e.downsamp / 2) * 1e-3 - e.time) <= binned / 2 + 1e-9)
    np.testing.assert_allclose(other.until + delay_seconds(400.0, top.dms, other.ref_freq), top.until, atol=1e-9)
    with StreamSearch(fb.observation, dms, threads=1, ref_freq=ref_freq) as live:
        found = live.execute([(0, fb.block(0, fb.nsamp).T)])
    for name in ("snr", "dm", "time", "mjd_top", "sample"):
        assert np.array_equal(found.columns[name], getattr(other, name))


def test_more_events_than_memory_stop_the_search(pulses, monkeypatch):
    monkeypatch.setattr("skysieve.dedispersion.single_pulse.search.EVENT_BYTES", 2**20)
    with pytest.raises(ValueError, match=r"threshold=0\.5: more than 64 events"):
        search(pulses, [0.0, 5.0], threshold=0.5, threads=1, memory="64 MiB")


def test_dms_longer_than_the_data_are_refused_before_memory_is_checked(pulses):
    with pytest.raises(
        ValueError, match=r"the delay of DM 1e\+06 .* the data have only 12000; the highest DM that fits is 9000$"
    ):
        search(pulses, [0.0, 100.0, 9000.0, 1e6], memory="20 MiB")
    with pytest.raises(ValueError, match=r"across the band is \d+ samples, but the data have only 12000"):
        search(pulses, plan(pulses, 1e6, step=1e3), memory="20 MiB")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"threshold": 0}, ValueError, "threshold=0"),
        ({"threshold": float("nan")}, ValueError, "threshold=nan"),
        ({"noise": "median"}, ValueError, "noise='median'"),
        ({"detector": "sum"}, ValueError, "detector='sum'"),
        ({"widths": [3, 2]}, ValueError, "widths="),
        ({"widths": []}, ValueError, "widths="),
        ({"widths": [1, 2.5]}, ValueError, "widths="),
        ({"widths": [5000]}, ValueError, "from 1 to 4096"),
        ({"detector": "threshold", "widths": [1]}, ValueError, "no boxcars"),
        ({"buffer": 100}, ValueError, "detector='threshold'"),
        ({"detector": "threshold", "buffer": 1}, ValueError, "buffer=1"),
        ({"block": 0}, ValueError, "block=0"),
        ({"excess": -1.0}, ValueError, "excess=-1.0"),
        ({"dip": 0.0}, ValueError, "dip=0.0"),
        ({"method": "tree2"}, ValueError, "method='tree2'"),
        ({"dms": "all"}, TypeError, "dms='all': expected real numbers"),
        ({"mask": Mask.channels(4, [0])}, ValueError, "mask has 4 channels"),
    ],
)
def test_bad_arguments(pulses, options, error, message):
    with pytest.raises(error, match=message):
        search(pulses, **{"dms": [0.0, 1.0], **options})


@pytest.mark.few
@pytest.mark.parametrize(("nbits", "nchan"), [(1, 64), (1, 96), (2, 32)])
def test_a_series_of_few_bits_has_the_signal_to_noise_of_the_channels(tmp_path, nbits, nchan):
    """The series is of floating-point numbers with few values."""
    band = {"nchan": nchan, "fch1": 1500, "foff": -256 / nchan}
    fb = fake(duration=9, tsamp=1e-3, nbits=nbits, dm=100, times=[5.0], width=8e-3, snr=20, **band)
    found = search(fb, [100.0], clean=False, threads=1)
    [path] = dedisperse(fb, [100.0], threads=1).write(tmp_path / "a")
    again = search(path, [0.0], threads=1)
    assert len(found) == 1
    np.testing.assert_array_equal(again.snr, found.snr)


def test_a_plan_of_other_data_is_refused(pulses):
    other = fake(nchan=8, duration=1, tsamp=1e-3, fch1=400, foff=-1)
    with pytest.raises(ValueError, match="plan: made for 8 channels"):
        search(pulses, plan(other, 10))
