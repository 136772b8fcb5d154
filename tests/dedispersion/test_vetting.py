"""The vetting of candidates in files and streams: interference is vetoed, pulses from the sky stay."""

from __future__ import annotations

import math

import numpy as np
import pytest

from skysieve.dedispersion import Candidates, Filterbank, fake, inject_pulses, plan, search
from skysieve.dedispersion.clean.blocks.records import BlockRecord, Records
from skysieve.dedispersion.injections.interference import with_interference
from skysieve.dedispersion.injections.pulses import Pulse
from skysieve.dedispersion.single_pulse.cpu_look import even, highest_sums, redness, strong_few
from skysieve.dedispersion.single_pulse.vetting import (
    IMPULSES,
    REASONS,
    RED,
    SURE,
    WEAK,
    Look,
    Vetting,
)
from skysieve.dedispersion.stream import StreamSearch

BAND = {"nchan": 128, "tsamp": 1e-3, "fch1": 1500.0, "foff": -2.34375}
DMS = np.arange(0, 301, 2.0)


def noise(duration=12.0, seed=1, **options):
    return fake(duration=duration, times=[], seed=seed, **BAND, **options)


def with_pulses(fb, *pulses):
    return inject_pulses(fb, list(pulses))[0]


def changed(fb, change):
    """The data after ``change(x)``, with ``x`` the samples as floats, shape (channels, samples)."""
    x = fb.read().astype(np.float64)
    change(x)
    return Filterbank.from_array(np.clip(np.rint(x), 0, 255).astype(np.uint8), fch1=1500.0, foff=-2.34375, tsamp=1e-3)


@pytest.mark.few
@pytest.mark.parametrize("band", [(0.0, 1.0), (0.0, 0.5), (0.7, 1.0)], ids=str)
@pytest.mark.parametrize("index", [0.0, -4.0])
def test_pulses_are_not_vetoed(band, index):
    sizes = [(2.0, 50, 4e-3), (4.0, 120, 10e-3), (6.0, 200, 3e-3), (8.0, 250, 20e-3), (10.0, 80, 8e-3)]
    pulses = [Pulse(dm=dm, time=t, width=w, snr=14.0, index=index, band=band) for t, dm, w in sizes]
    found = search(with_pulses(noise(), *pulses), DMS, threads=1)
    assert found.vetoed == {}
    assert len(found) >= len(pulses)


@pytest.mark.few
@pytest.mark.parametrize("where", [slice(0, 128), slice(40, 56)], ids=["band", "radar"])
def test_signals_without_dispersion_are_vetoed(where):
    """5 ms, and too weak for the cleaning, or not cleaned at all."""

    def change(x):
        for at in (2000, 5000, 8000):
            x[where, at : at + 5] += 16 * 15 / np.sqrt(5 * 128) * 128 / (where.stop - where.start)

    data = changed(with_pulses(noise(), Pulse(dm=150, time=10.0, width=5e-3, snr=20.0)), change)
    found = search(data, DMS, clean=False, veto=True, threads=1)
    every = search(data, DMS, clean=False, threads=1)
    assert len(every) >= 4
    assert every.vetoed == {}
    assert abs(found.dm - 150).max() < 20
    assert len(every) == len(found) + sum(found.vetoed.values())
    assert len(found.events) < len(every.events)
    assert (np.bincount(found.group, minlength=len(found)) == found.members).all()
    assert "vetoed" in found.summary()


def test_a_step_at_the_end_of_the_data_is_vetoed():
    def change(x):
        x[:, -40:] += 8

    found = search(changed(noise(), change), DMS[:50], clean=False, veto=True, threads=1)
    assert len(found) == 0
    assert found.vetoed["edge"] >= 1


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize(("kinds", "clean"), [("impulses", None), (("radar", "gain"), ("gain",))], ids=str)
def test_files_and_streams_veto_the_same(kinds, clean):
    pulses = [Pulse(dm=150, time=t, width=5e-3, snr=20.0) for t in (2.5, 6.2, 9.1)]
    fb = with_interference(with_pulses(noise(duration=14.0), *pulses), kinds, seed=3)
    offline = search(fb, DMS, block=1.024, clean=clean, threads=1)
    assert sum(offline.vetoed.values()) >= 1
    rows = fb.read().T
    with StreamSearch(fb.observation, DMS, block=1.024, clean=clean, threads=1) as live:
        found = [one for at in range(0, len(rows), 900) for one in live.feed(at, rows[at : at + 900])]
        found += live.finish()
        columns = {name: np.concatenate([one.columns[name] for one in found]) for name in ("snr", "dm", "time")}
        loudest_first = np.argsort(-columns["snr"], kind="stable")
        for name, values in columns.items():
            assert values[loudest_first].tolist() == getattr(offline, name).tolist()
        assert {name: count for name, count in live.vetoed.items() if count} == offline.vetoed


def test_results_keep_the_numbers(tmp_path):
    found = search(changed(noise(), lambda x: x[:, 3000:3005].__iadd__(10)), DMS, clean=False, veto=True, threads=1)
    assert set(found.vetoed) <= set(REASONS)
    found.save(tmp_path / "a.npz")
    assert Candidates.load(tmp_path / "a.npz").vetoed == found.vetoed != {}


def test_samples_that_are_gone_veto_nothing():
    obs = noise(1.0).observation
    columns = {"snr": np.array([9.0]), "dm": np.array([0.0]), "time": np.array([0.5]), "width": np.array([5e-3])}
    vetting = Vetting(obs, obs.top, 4148.8, 300.0, 2000)
    records = Records((), obs.nchan, 512, 16)
    reasons, shifts = vetting.examine(columns, lambda *_: None, records, (0, 1000), beside=True)
    assert reasons.tolist() == [""]
    assert shifts.tolist() == [[0, 0]]


@pytest.mark.slow
def test_trains_of_pulses_are_not_vetoed():
    """Most windows beside a pulse touch another one; those between are quiet."""
    times = 1.5 + np.arange(15) * 30e-3
    found = search(fake(duration=4, times=times, dm=150, width=6e-3, snr=30, seed=3, **BAND), DMS, threads=1)
    assert found.vetoed == {}
    assert len(found) == 15


@pytest.mark.parametrize("period", [None, 3.7, 4.0, 5.0, 6.0, 8.0])
def test_the_scatter_beside_a_candidate(period):
    """Pulses of S/N 20 with a period of so many widths are certain, those in a random walk are not; 40 of each."""
    w, side = 8, 128
    counts = np.arange(2.0 * side + w + 1)
    red = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=2 * side + w)
        if period is None:
            x += np.cumsum(rng.normal(0, 2, len(x)))
        else:
            place = ((np.arange(len(x)) - side - w / 2 + 0.5) / w + period / 2) % period - period / 2
            x += 20 / np.sqrt(w) * (np.abs(place) < 0.5)
        found = redness(np.append(0, np.cumsum(x))[None], counts[None], w, side, w // 2 + 1, 1.0)
        red += found > RED and SURE * found > 20
    assert red >= 38 if period is None else red <= 2


@pytest.mark.few
@pytest.mark.parametrize("name", ["1bit", "2bit", "4bit", "8bit_1", "8bit_2"])
def test_bumps_of_the_baseline_are_vetoed(test_data, name):
    """The level of Parkes' recordings changes in most channels at once, within 158 ms."""
    with Filterbank.open(test_data / "dedispersion" / f"parkes_{name}.fil") as fb:
        found = search(fb, plan(fb, 200.0), threads=1)
        assert len(found) == 0
        assert sum(found.vetoed.values()) >= 1


@pytest.mark.parametrize(
    ("snr", "power", "broad", "flat", "sweep", "among", "why"),
    [
        (46.0, 2478.0, 2133.0, 1829.0, 0.66, True, ""),  # a bright burst of a short sweep, which was vetoed
        (9.3, 107.0, 86.0, 109.0, 0.9, True, "undispersed"),  # the residue of a step, which was not
        (9.3, 107.0, 86.0, 109.0, 0.9, False, ""),
        (67.0, 5329.0, 4904.0, 4549.0, 0.29, True, "undispersed"),  # an impulse that is stronger at high frequencies
        (67.0, 5329.0, 4904.0, 4549.0, 0.29, False, ""),
        (67.0, 5329.0, 4904.0, 4549.0, 0.6, True, ""),
        (6.5, 87.0, 53.5, 54.2, 2.0, False, ""),  # a pulse of S/N 8 and 0.2 s, which was vetoed
        (18.0, 380.0, 460.0, 473.9, 2.5, False, "undispersed"),  # a bump of Parkes' baseline
        (6.5, 87.0, 53.5, 54.2, 4.5, False, "undispersed"),
        (6.0, 60.0, 50.0, 30.0, 20.0, True, "red noise"),
        (6.0, 60.0, 50.0, 0.0, 8.0, True, "red noise"),
        (6.0, 60.0, 50.0, 0.0, 20.0, False, ""),
        (6.0, 60.0, 50.0, 30.0, 20.0, False, ""),
        (6.0, 60.0, 50.0, 0.0, 20.0, True, ""),  # a long sweep, and little power at one time
        (5.8, 60.0, 50.0, 0.0, 20.0, True, "red noise"),
    ],
)
def test_among_steps_a_candidate_has_to_be_dispersed(snr, power, broad, flat, sweep, among, why):
    obs = noise(1.0).observation
    look = Look(snr, 0.85 * snr, math.nan, power, 0.76 * power, broad, flat, sweep, 1.0, snr)
    assert Vetting(obs, obs.top, 4148.8, 300.0, 2000)._reason(look, snr + 0.7, 30.0, 60, among) == why


@pytest.mark.parametrize(
    ("aside", "power", "flat", "among", "why"),
    [
        (6.7, 48.0, 7.0, False, ""),  # a pulse of S/N 13 upon a bump of Parkes' baseline
        (6.7, 48.0, 7.0, True, ""),
        (6.7, 48.0, 40.0, False, "undispersed"),  # a second bump
        (5.4, 48.0, 7.0, False, "undispersed"),  # noise
        (0.0, 0.0, 0.0, False, "undispersed"),
    ],
)
def test_a_pulse_that_begins_upon_a_bump_is_dispersed_aside(aside, power, flat, among, why):
    """The best window without dispersion is stronger, and half of the pulse is far from it."""
    obs = noise(1.0).observation
    look = Look(13.1, 10.3, math.nan, 207.0, 340.0, 182.0, 339.0, 11.0, 1.0, 13.2, aside, power, flat)
    assert Vetting(obs, obs.top, 4148.8, 300.0, 2000)._reason(look, 13.0, 28.7, 22, among) == why


def drifting(x):
    """The level of all channels drifts by 0.2 sigma of 16, with a period of 1.7 s."""
    x += 0.2 * 16 * np.sin(2 * np.pi * np.arange(x.shape[1]) * 1e-3 / 1.7)


@pytest.mark.slow
def test_wide_pulses_on_a_drift_are_not_vetoed():
    """Windows without dispersion beside them are as strong, since the level changes."""
    pulses = [Pulse(dm=dm, time=t, width=0.05, snr=14.0) for t, dm in ((2.1, 120), (5.3, 200), (8.6, 250))]

    def change(x):
        drifting(x)
        for at in (1000, 4000, 7000, 9500):  # impulses, which are removed: there is interference in these data
            x[:, at : at + 5] += 12

    found = search(changed(with_pulses(noise(seed=3), *pulses), change), DMS, threads=1)
    near = [np.abs(found.time - (p.time or 0)).min() < 0.05 for p in pulses]
    assert near == [True, True, True]


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**40])
def test_the_unit_of_floats_changes_no_candidate(factor):
    """A power of 2 as a factor changes no bit but the exponents, also on a drift, which the second look subtracts."""
    fb = changed(with_pulses(noise(seed=3), Pulse(dm=150, time=5.3, width=0.02, snr=20.0)), drifting)
    grid = {k: v for k, v in BAND.items() if k != "nchan"}
    plain, scaled = (
        search(Filterbank.from_array(fb.read() * np.float32(x), **grid), DMS, threads=1) for x in (1.0, factor)
    )
    assert len(plain) == 1
    for name, column in plain.columns().items():
        assert np.array_equal(column, scaled.columns()[name]), name


@pytest.mark.slow
def test_a_narrow_signal_on_a_pulse_is_left_out():
    """A channel with as much power as the pulse, while the pulse crosses it."""

    def change(x):
        x[100, 5000:5400] += 60

    pulse = Pulse(dm=150, time=5.0, width=0.02, snr=14.0)
    found = search(changed(with_pulses(noise(), pulse), change), DMS, clean=False, veto=True, threads=1)
    assert [round(float(t), 1) for t in found.time[np.abs(found.dm - 150) < 20]] == [5.0]
    found = search(changed(noise(), change), DMS, clean=False, veto=True, threads=1)
    assert len(found) == 0
    assert found.vetoed


def test_channels_with_radar_do_not_make_a_candidate():
    """The S/N of the other sub-bands counts where these do not show the same."""
    obs = noise(1.0).observation
    vetting = Vetting(obs, obs.top, 4148.8, 300.0, 2000)
    pulsed, few = np.zeros(32, bool), np.zeros(32, bool)
    pulsed[:4] = True
    excess, variance = np.full(32, 0.8), np.ones(32)
    excess[:4] = 4.0
    free = strong_few(excess, variance, pulsed, few)
    assert not few.any()
    assert free == pytest.approx(0.8 * math.sqrt(32))
    look = Look(7.3, 4.0, free, 120.0, 40.0, 90.0, 20.0, 8.0, 1.0, 7.3)
    assert vetting._reason(look, 7.3, 50.0, 4, False) == "narrow"
    excess[:4] = 1.3
    assert math.isnan(strong_few(excess, variance, pulsed, few))  # a pulse shows in all sub-bands
    assert math.isnan(strong_few(excess, variance, ~pulsed & pulsed, few))


@pytest.mark.parametrize("bands", [16, 32])
def test_the_rest_of_the_band_suggests_the_same_snr(bands):
    """True for a burst that fills the band; false where an eighth of the sub-bands lifts noise over the threshold."""
    rng, variance = np.random.default_rng(2), np.ones(bands)
    excess = rng.normal(7 / math.sqrt(bands), 1, (2000, bands))
    excess += (7 - excess.sum(axis=1) / math.sqrt(bands))[:, None] / math.sqrt(bands)
    found = np.array([even(x, variance, highest_sums(bands)) for x in excess])
    assert abs(found.mean() - 7) < 0.1
    assert (found < WEAK * 6.7).mean() < 0.01
    excess[:, : bands // 8] += 7 / math.sqrt(bands / 8)
    excess -= excess.mean(axis=1)[:, None] - 7 / math.sqrt(bands)
    assert np.mean([even(x, variance, highest_sums(bands)) < WEAK * 6.7 for x in excess]) > 0.85


@pytest.mark.parametrize(("time", "stop", "span"), [(0.2, 6000, (0, 2205)), (2.5, 4000, (0, 4000))])
def test_impulses_after_a_candidate_count(time, stop, span):
    """Those in the block after it, as far as the data reach: at the beginning of the data none come before it."""

    class Counted:
        def impulses(self, *asked):
            return np.array([[span[0], 0, 128]] * IMPULSES if asked == span else [], np.int64).reshape(-1, 3)

    obs, x = noise(1.0).observation, noise(6.0).read().T.copy()
    at = round(1000 * time)
    x[at : at + 5] += 10

    def samples(start, stop, memory=None):
        rows, gone = np.zeros((stop - start, 128), np.uint8), np.ones((stop - start, 128), bool)
        low, high = max(start, 0), min(stop, len(x))
        rows[low - start : high - start], gone[low - start : high - start] = x[low:high], False
        return rows, gone

    columns = {
        "snr": np.array([15.0]),
        "dm": np.array([4.0]),
        "time": np.array([time + 2.5e-3]),
        "width": np.array([5e-3]),
    }
    vetting = Vetting(obs, obs.top, 4148.8, 300.0, 2000)
    reasons, shifts = vetting.examine(columns, samples, Counted(), (0, stop))
    assert reasons.tolist() == ["undispersed"]
    assert shifts.tolist() == [[0, 0]]


@pytest.mark.slow
def test_interference_does_not_take_a_pulse_with_it(monkeypatch):
    """A bump of the level explains the events of a pulse beside it; it is vetoed, and these are grouped again."""

    def change(x):
        x[:, 5000:5100] += 4.2

    def examine(self, columns, samples, cleaner, limits, threads=1, beside=False):
        asked.append((len(columns["snr"]), beside))
        return np.where(columns["width"] > 0.05, "undispersed", ""), np.zeros((len(columns["snr"]), 2))

    asked: list[tuple[int, bool]] = []
    pulse = Pulse(dm=60, time=5.12, width=12e-3, snr=10.0)
    data = changed(with_pulses(noise(), pulse), change)
    every = search(data, DMS, clean=False, threads=1)
    assert len(every) == 1
    assert every.width[0] > 0.05
    monkeypatch.setattr(Vetting, "examine", examine)
    found = search(data, DMS, clean=False, veto=True, threads=1)
    assert found.vetoed == {"undispersed": 1}
    assert len(found) == 1
    assert abs(found.dm[0] - 60) < 10
    assert abs(found.time[0] - 5.12) < 0.012
    assert asked[0] == (1, False)
    assert all(beside for _, beside in asked[1:])
    assert (found.group == 0).all()
    assert found.members[0] == len(found.events) < len(every.events)


@pytest.mark.slow
def test_the_second_look_measures_dm_and_time_again():
    """A step in DM of the search smears a pulse over 0.6 of its widths."""
    pulses = [
        Pulse(dm=dm, time=t, width=5e-3, snr=20.0) for t, dm in ((1.6, 63.0), (3.7, 118.0), (5.8, 171.0), (7.9, 239.0))
    ]
    fb = with_pulses(noise(), *pulses)
    per_dm = 4148.808 * (fb.observation.freqs.min() ** -2 - fb.observation.top**-2)
    width = 1.06 * 5e-3  # of the best boxcar; FWHM of the pulse
    errors = {}
    for veto in (True, False):
        found = search(fb, np.arange(0, 301, 3.0), veto=veto, clean=False, threads=1)
        assert len(found) == len(pulses)
        order = np.argsort(found.time)
        dm = (found.dm[order] - [pulse.dm for pulse in pulses]) * per_dm / width
        late = found.time[order] - [pulse.time for pulse in pulses]
        errors[veto] = math.sqrt(np.mean(dm**2)), math.sqrt(np.mean(late**2)) / width
        assert (found.mjd_top - fb.observation.tstart) * 86400 == pytest.approx(found.time, abs=1e-5)
    assert errors[True][0] < 0.12
    assert errors[True][0] < errors[False][0]
    assert errors[True][1] < 0.12


@pytest.mark.slow
def test_a_dm_is_not_measured_beyond_those_of_the_search():
    fb = with_pulses(noise(), Pulse(dm=301.5, time=5.0, width=10e-3, snr=25.0))
    for ref_freq in ("top", "bottom"):
        found = search(fb, DMS, ref_freq=ref_freq, clean=False, veto=True, threads=1)
        assert len(found) == 1
        assert 299 < found.dm[0] <= 300
        assert (found.mjd_top[0] - fb.observation.tstart) * 86400 == pytest.approx(5.0, abs=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.0, 5e5, -1e6])
def test_a_large_mean_of_floats_hides_no_pulse(level):
    """Candidates of float32 data are those of the same data without the mean, as far as float32 holds them."""
    fb = with_pulses(noise(), Pulse(time=6.0, dm=100.0, width=0.01, snr=25.0))
    x = (fb.read().astype(np.float64) + level).astype(np.float32)
    found = search(Filterbank.from_array(x, **{k: v for k, v in BAND.items() if k != "nchan"}), DMS, device="cpu")
    assert len(found) == 1
    assert found.dm[0] == pytest.approx(100, abs=4)
    assert found.snr[0] == pytest.approx(25, abs=2.5)


def test_impulses_near_each_candidate():
    """Counted one by one, for each candidate and channel."""
    rng = np.random.default_rng(7)
    obs = noise(1.0).observation
    vetting, records = Vetting(obs, obs.top, 4148.8, 300.0, 2000), Records((), 128, 4096, 16)
    none, cells = np.zeros(128, bool), np.zeros((1, 128), bool)
    for start in range(0, 100_000, 4096):
        low, width = rng.integers(0, 100, 3), rng.choice([3, 10, 28, 90], 3)
        first = rng.integers(0, 4000, 3)
        windows = np.stack([first, first + 5, low, np.minimum(low + width, 128)], axis=1)
        records.add(BlockRecord.of(start, 4096, none, cells, windows, ()), none)
    records.jumps = [(70_000, 128), (20_000, 40)]
    every = [(block.start + w[0], w[2], w[3]) for block in records.blocks for w in block.windows.tolist()]
    every += [(at, 0, 128) for at, _ in records.jumps]
    first, size, limits = rng.integers(0, 95_000, 40), rng.integers(1, 300, 40), (500, 99_000)
    pulsed, among = vetting._interference(first, size, records, limits)
    for i in range(40):
        before, after = max(500, first[i] - 32_000), min(99_000, first[i] + size[i] + 2000)
        needed = max(1.0, min(IMPULSES, IMPULSES * (after - before) / 32_000))
        near = [(low, high) for at, low, high in every if before <= at < after]
        assert among[i] == (sum(high - low >= 64 for low, high in near) >= needed)
        counts = np.zeros(128, int)
        for low, high in near:
            counts[low:high] += high - low < 64
        assert pulsed[i].tolist() == (counts.reshape(32, 4).max(axis=1) >= needed).tolist()
    assert 0 < pulsed.mean() < 1
    assert 0 < among.mean() < 1
