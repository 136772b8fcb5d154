"""Injection campaigns: pulses of the stated S/N, honest counting, and the command."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from astropy.table import Table
from scipy.special import ndtr, ndtri
from tests.dedispersion.test_cli import run
from tests.marks import no_warnings, slow

from skysieve.core.parts import PartsFolder
from skysieve.dedispersion import (
    DM_CONSTANT,
    Completeness,
    Filterbank,
    Mask,
    Noise,
    PulseGrid,
    completeness,
    fake,
    inject,
    inject_grid,
    inject_pulses,
    plan,
    search,
    window_snr,
    write_fil,
    zero_dm,
)
from skysieve.dedispersion.data.simulate import PulseReader
from skysieve.dedispersion.injections.campaign import _already_there, _match
from skysieve.dedispersion.injections.cpu_noise import normal
from skysieve.dedispersion.injections.noise import QuickNoise, levels
from skysieve.dedispersion.injections.pulses import Pulse, record
from skysieve.dedispersion.injections.result import TRIALS
from skysieve.dedispersion.injections.segments import Maker, Placed, place
from skysieve.dedispersion.single_pulse.search import SearchPlan

RECEIVER = Noise(nchan=64, fch1=1500, foff=-4, tsamp=1e-3, duration=20)
DMS = np.arange(0, 400, 4.0)
OBS = RECEIVER.segment(0).observation


def brute(pulse: Pulse) -> np.ndarray:
    """Samples of a pulse of unit height before smearing, by sums over a fine grid of times."""
    fine, n = 50, 3000
    t = (np.arange(n * fine) + 0.5) / fine * OBS.tsamp
    out = np.empty((OBS.nchan, n))
    sigma = pulse.width / math.sqrt(8 * math.log(2))
    for row, f in enumerate(OBS.freqs):
        total = np.zeros(n * fine)
        parts = np.linspace(f - 2, f + 2, 81)
        for g in (parts[1:] + parts[:-1]) / 2:  # the channel's frequencies arrive one after the other
            centre = pulse.time + DM_CONSTANT * pulse.dm * (g**-2 - OBS.top**-2)
            near = slice(*np.searchsorted(t, [centre - 7 * sigma, centre + 7 * sigma]))
            total[near] += np.exp(-0.5 * ((t[near] - centre) / sigma) ** 2) / 80
        if pulse.scatter:
            tau = pulse.scatter * (f / OBS.centre) ** -4
            tail = np.exp(-t[: int(12 * tau / t[0] / 2)] / tau)
            from scipy.signal import fftconvolve

            total = fftconvolve(total, tail / tail.sum())[: n * fine]
        out[row] = total.reshape(n, fine).mean(1)
    return out


@pytest.mark.few
@pytest.mark.parametrize(
    ("dm", "width", "scatter"), [(100.0, 8e-3, 0.0), (300.0, 2e-3, 0.0), (50.0, 4e-3, 6e-3)],
)  # fmt: skip
def test_a_pulse_has_the_stated_signal_to_noise(dm, width, scatter):
    pulse = Pulse(dm, 0.5, width, 12.0, scatter)
    made = record(OBS, pulse, np.full(OBS.nchan, 3.0), DM_CONSTANT)
    whole = np.zeros((OBS.nchan, 3000))
    for row, first in enumerate(made.first):
        whole[row, first : first + made.counts.shape[1]] = made.counts[row]
    expected = brute(pulse)
    expected *= whole.sum() / expected.sum()
    # the brute sum takes delays within a channel from its frequencies, the record evenly: second order in 4 MHz / f
    assert np.abs(whole - expected).max() < 0.02 * whole.max()
    series = sum(np.roll(row, -delay) for row, delay in zip(whole, made.delays, strict=True))
    best = max(np.convolve(series, np.ones(w), "valid").max() / math.sqrt(w) for w in range(1, 80))
    assert best / (3.0 * 8) == pytest.approx(12.0, rel=2e-3)
    window = series[made.begin : made.begin + made.length]
    assert window.sum() / math.sqrt(made.length) / (3.0 * 8) == pytest.approx(12.0, rel=1e-9)


def test_part_of_the_band_and_a_spectrum_keep_the_signal_to_noise():
    made = record(OBS, Pulse(100, 0.5, 8e-3, 10.0, index=-3.0, band=(0.5, 1.0)), np.ones(64), DM_CONSTANT)
    filled = made.counts.sum(axis=1) > 0
    assert filled.tolist() == (OBS.freqs >= (OBS.freqs.min() + OBS.freqs.max()) / 2).tolist()
    heights = made.counts[filled].sum(axis=1)
    np.testing.assert_allclose(heights[-1] / heights[0], (OBS.freqs[filled][-1] / OBS.top) ** -3, rtol=1e-6)
    with pytest.raises(ValueError, match="band"):
        record(OBS, Pulse(100, 0.5, 8e-3, 10.0, band=(0.001, 0.002)), np.ones(64), DM_CONSTANT)


@pytest.fixture(scope="module")
def found() -> Completeness:
    return completeness(RECEIVER, DMS, n=60, snr=(5, 7, 25), dm=(60, 340), width=(4e-3, 1e-2), seed=3, threads=1)


@pytest.mark.slow
def test_recall_rises_with_the_signal_to_noise(found):
    table = found.recall()
    assert table["pulses"].tolist() == [20, 20, 20]
    assert table["recall"][2] == 1
    assert table["recall"][0] < 0.7
    assert 0.97 < table["ratio"][2] < 1.06
    assert table["time_error"][2] < 5e-3
    assert (table["low"] <= table["recall"]).all()
    assert (table["recall"] <= table["high"]).all()


@pytest.mark.slow
def test_an_ideal_detector_measures_the_injected_signal_to_noise(found):
    known = found.trials["snr_known"] - found.trials["snr"]
    assert abs(known.mean()) < 4 / math.sqrt(len(known))
    assert 0.7 < known.std() < 1.35  # 60 draws of unit noise: 0.5% to 99.5%
    some = found.recall()
    expected = ndtr(some["snr"] - found.threshold)
    assert np.abs(some["known"] - expected).max() < 0.4  # 20 draws


def test_the_best_window_near_a_pulse_is_that_of_direct_sums():
    """All DMs, windows and times that count as the pulse, one by one; the sums are those of the search."""
    fb, known, boxes = RECEIVER.segment(1), levels(RECEIVER.segment(1), RECEIVER), (1, 2, 3, 5, 8, 12, 20, 40)
    maker = Maker(True, known, DM_CONSTANT, [(DMS, 1, 0, 1)], boxes, (), 1.0, np.empty((0, 4), int), 1)
    segment = maker.make(fb, [Pulse(200, 3.0, 5e-3, 9.0), Pulse(100, 8.0, 8e-3, 9.0)], 0)
    per_dm = DM_CONSTANT * (OBS.freqs.min() ** -2 - OBS.top**-2)
    for one in segment.placed:
        wide, middle, best = one.made.length, one.made.begin + one.made.length / 2, -np.inf
        for dm in DMS[np.abs(DMS - one.pulse.dm) <= wide * OBS.tsamp / per_dm]:
            delays = np.rint(DM_CONSTANT * dm * (OBS.freqs**-2 - OBS.top**-2) / OBS.tsamp).astype(int)
            length = fb.nsamp - delays.max()
            y = sum(segment.searched.block(d, length)[c].astype(float) - known.level[c] for c, d in enumerate(delays))
            for w in (box for box in boxes if box <= 3 * wide):
                sums = np.convolve(y, np.ones(w), "valid") / math.sqrt(w * (known.sigma**2).sum())
                first = max(0, math.floor(middle - 2 * wide) - w // 2)
                best = max(best, sums[first : math.ceil(middle + 2 * wide) + 1 - w // 2].max())
        # delays are rounded from those of the pulse, by up to a sample
        assert one.near == pytest.approx(best, rel=0.05)
        assert one.near >= one.known - 0.5


def test_a_search_has_the_signal_to_noise_of_the_best_window(found):
    """Noise raises the S/N of the highest of many windows; the search adds nothing else, though its level and sigma
    are those of blocks."""
    t = found.trials[found.trials["found"] & (found.trials["snr"] > 6)]
    assert np.median(t["snr_near"] / t["snr_left"]) > 1
    assert abs(np.median(t["snr_found"] / t["snr_near"]) - 1) < 0.03
    table = found.recall()
    assert abs(table["ratio"][2] - table["expected_ratio"][2]) < 0.03
    assert "expected" in found.summary()[0]


def test_the_window_of_a_candidate_has_the_signal_to_noise_of_direct_sums(tmp_path):
    """Sums of single samples, with the true level and sigma; and the same from a file, for pulses at both ends."""
    pulses = [Pulse(200, 0.35, 5e-3, 15.0), Pulse(100, 8.0, 8e-3, 20.0), Pulse(300, 19.5, 5e-3, 15.0)]
    placed = [Placed(p, record(OBS, p, np.full(64, 16.0), DM_CONSTANT)) for p in pulses]
    added = [(one.made.first, one.made.counts.astype(np.float32)) for one in placed]
    fb = Filterbank([PulseReader(RECEIVER.segment(5).readers[0], added, analog=True)])
    found = search(fb, DMS, threads=1, ref_freq="bottom")
    assert len(found) == 3
    got, x = window_snr(fb, found), fb.read().astype(float) - 96
    for i in range(3):
        delays = np.rint(DM_CONSTANT * found.dm[i] * (OBS.freqs**-2 - OBS.top**-2) / OBS.tsamp).astype(int)
        middle = (found.time[i] - DM_CONSTANT * found.dm[i] * (OBS.freqs.min() ** -2 - OBS.top**-2)) / OBS.tsamp
        n = round(found.width[i] / OBS.tsamp)
        first = round(middle - n / 2)
        total = sum(x[c, first + d : first + d + n].sum() for c, d in enumerate(delays))
        # level and sigma of 2048 samples on each side: 1% of sigma, and sqrt(n / 4096) of the level
        square = total**2 / (64 * n * (256 + 1 / 12)) - 3  # what the choice of DM, time and width adds
        assert got[i] == pytest.approx(math.sqrt(square), rel=0.05, abs=0.15)
    write_fil(tmp_path / "a.fil", fb)
    np.testing.assert_array_equal(window_snr(tmp_path / "a.fil", found), got)
    cut = Filterbank.from_array(fb.read()[:, 1000:], freqs=fb.freqs, tsamp=fb.tsamp)
    assert np.isnan(window_snr(cut, found)[found.time > 19]).all()  # a window beyond the end of the data
    silent = Filterbank.from_array(np.full((64, 20000), 3, np.uint8), freqs=fb.freqs, tsamp=fb.tsamp)
    assert np.isnan(window_snr(silent, found)).all()


def test_masked_channels_do_not_change_the_window_of_a_candidate():
    data = fake(nchan=32, duration=4, tsamp=1e-3, fch1=1500, foff=-8, dm=100, times=[2.0], width=4e-3, snr=30, seed=2)
    x, rng = data.read(), np.random.default_rng(3)
    x[[4, 20], 1000:3000] = rng.integers(0, 255, (2, 2000))
    rest = np.delete(np.arange(32), [4, 20])
    few, loud = (Filterbank.from_array(x[i], freqs=data.freqs[i], tsamp=1e-3) for i in (rest, np.arange(32)))
    mask = Mask.channels(32, [4, 20])
    found = search(loud, [0.0, 100.0], mask=mask, threads=1)
    expected = window_snr(few, found)
    np.testing.assert_array_equal(window_snr(loud, found, mask=mask), expected)
    assert window_snr(loud, found)[0] < 0.9 * expected[0]
    cells = np.zeros((32, 4), bool)
    cells[[4, 20], 1:3] = True
    assert window_snr(loud, found, mask=Mask(cells, 1000))[0] > 0.95 * expected[0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_leave_the_window_of_a_candidate(bad):
    data = fake(nchan=32, duration=4, tsamp=1e-3, fch1=1500, foff=-8, dm=100, times=[2.0], width=4e-3, snr=30, seed=2)
    x = data.read().astype(np.float32)
    found = search(data, [0.0, 100.0], threads=1)
    [whole], few = window_snr(data, found), np.delete(np.arange(32), [4, 20])
    [without] = window_snr(Filterbank.from_array(x[few], freqs=data.freqs[few], tsamp=1e-3), found)
    x[[4, 20]] = bad
    [dead] = window_snr(Filterbank.from_array(x, freqs=data.freqs, tsamp=1e-3), found)
    assert dead == pytest.approx(without, rel=1e-6)
    x[:] = data.read()
    x[:, ::100] = bad
    [thinned] = window_snr(Filterbank.from_array(x, freqs=data.freqs, tsamp=1e-3), found)
    assert thinned == pytest.approx(whole, rel=0.1)


def test_noise_raises_the_window_less_than_the_highest_of_many(found):
    t = found.trials[found.trials["found"]]
    assert np.isfinite(t["snr_window"]).all()
    assert np.median(t["snr_window"] - t["snr_known"]) < np.median(t["snr_found"] - t["snr_known"])
    loud = t[t["snr"] == 25]
    assert abs(np.median(loud["snr_window"] / 25) - 1) < 0.06  # 20 draws of unit noise: 5 sigma are 5%
    table = found.recall()
    assert (table["window_ratio"][1:] <= table["ratio"][1:] + 0.01).all()
    assert np.isfinite(table["known_ratio"][1:]).all()
    changed = completeness(
        RECEIVER, DMS, n=2, snr=(25,), dm=(60, 340), prepare=lambda fb: (zero_dm(fb), None), threads=1
    )
    assert np.isnan(changed.trials["snr_window"]).all()


@pytest.fixture(scope="module")
def loud() -> Filterbank:
    """20 s of noise; channels 3, 4 and 40 have 20 times the noise of the others."""
    x = np.random.default_rng(8).normal(100, 2, (64, 20000))
    x[LOUD] = np.random.default_rng(9).normal(100, 40, (3, 20000))
    return Filterbank.from_array(np.clip(np.rint(x), 0, 255).astype(np.uint8), freqs=OBS.freqs, tsamp=1e-3)


LOUD = [3, 4, 40]


def test_a_masked_channel_has_neither_signal_nor_noise():
    sigma = np.full(64, 3.0)
    sigma[LOUD] = 0
    made = record(OBS, Pulse(100, 0.5, 8e-3, 12.0), sigma, DM_CONSTANT)
    assert not made.counts[LOUD].any()
    series = np.zeros(3000)
    for row, first, delay in zip(made.counts, made.first, made.delays, strict=True):
        series[first - delay : first - delay + len(row)] += row
    window = series[made.begin : made.begin + made.length]
    assert window.sum() / math.sqrt(made.length * 61) / 3 == pytest.approx(12, rel=1e-9)
    sigma[:32] = 0
    with pytest.raises(ValueError, match=r"band=\(0.5, 1.0\): all channels of this part of the band are masked"):
        record(OBS, Pulse(100, 0.5, 8e-3, 12.0, band=(0.5, 1.0)), sigma, DM_CONSTANT)


def test_injected_pulses_have_their_signal_to_noise_in_the_channels_that_are_searched(loud):
    """Of all channels, the sum of a pulse would be 5 times as large: sqrt((61 + 3 * 400) / 61)."""
    rest = np.delete(np.arange(64), LOUD)
    pulses = [Pulse(100, t, 8e-3, 40.0) for t in (4.0, 8.0, 12.0)]
    many, _ = inject_pulses(loud, pulses, ignore=LOUD)
    grid, _ = inject_grid(loud, PulseGrid([40.0], 100.0, 8e-3, time=[4.0, 8.0, 12.0]), ignore=LOUD)
    one = inject(loud, dm=100, time=8.0, snr=40, width=8e-3, ignore=LOUD)
    for made, count in ((many, 3), (grid, 3), (one, 1)):
        x = made.read()
        np.testing.assert_array_equal(x[LOUD], loud.read()[LOUD])
        few = Filterbank.from_array(x[rest], freqs=OBS.freqs[rest], tsamp=1e-3)
        found = search(made, DMS, mask=Mask.channels(64, LOUD), clean=False, threads=1)
        assert len(found) == count
        np.testing.assert_allclose(window_snr(few, found), 40, atol=5)  # unit noise
    with pytest.raises(ValueError, match="ignore has all 64 channels"):
        inject_pulses(loud, pulses, ignore=range(64))


@pytest.mark.parametrize("cells", [False, slow(True)])
def test_a_campaign_with_a_mask_has_the_signal_to_noise_of_the_channels_that_are_searched(loud, cells):
    masked = np.zeros((64, 20), bool)
    masked[LOUD] = True
    masked[:32, 10] |= cells  # half of the band, from 10 to 11 s
    options = {"n": 12, "snr": (20,), "dm": (60, 340), "width": (4e-3, 1e-2), "seed": 6, "threads": 1, "clean": False}
    found = completeness(loud, DMS, prepare=lambda fb: (fb, Mask(masked, 1000)), **options)
    t = found.trials
    whole = t["left"] == 1
    assert whole.all() != cells
    np.testing.assert_allclose(t["snr_left"][whole], 20, rtol=1e-6)
    assert (t["snr_left"][~whole] < 20).all()
    assert t["found"][whole].all()
    np.testing.assert_array_equal(np.isnan(t["snr_window"]), np.full(12, cells))
    assert abs((t["snr_known"] - t["snr_left"])[t["left"] > 0].mean()) < 4 / math.sqrt(12)
    assert np.median(t["snr_found"][whole]) == pytest.approx(20, abs=2)  # unit noise: 6 sigma of the median of 12
    if not cells:
        np.testing.assert_allclose(t["snr_window"], t["snr_known"], atol=4)
        simulated = completeness(RECEIVER, DMS, prepare=lambda fb: (fb, Mask(masked, 1000)), **options).trials
        assert (simulated["left"] == 1).all()
        assert abs((simulated["snr_known"] - 20).mean()) < 4 / math.sqrt(12)
        assert np.median(simulated["snr_found"] / simulated["snr_near"]) == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_noise_is_the_same_in_memory_and_when_it_is_read(monkeypatch):
    options = {"n": 6, "snr": (25,), "dm": (60, 340), "width": (4e-3, 1e-2), "seed": 3, "threads": 1}
    held = completeness(RECEIVER, DMS, **options).trials
    monkeypatch.setattr("skysieve.dedispersion.injections.segments.HELD", 0)
    assert completeness(RECEIVER, DMS, **options).trials.tobytes() == held.tobytes()


@pytest.mark.slow
def test_a_campaign_continues(tmp_path, monkeypatch):
    options = {"n": 30, "snr": (7, 25), "dm": (60, 340), "width": (4e-3, 1e-2), "seed": 3, "threads": 1}
    whole = completeness(RECEIVER, DMS, **options)
    parts, seen = tmp_path / "a", []

    def stop(done, total):
        seen.append(done)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        completeness(RECEIVER, DMS, parts=parts, progress=stop, **options)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["a-00000.npz", "a-00001.npz"]
    searched = []
    real = SearchPlan.execute
    monkeypatch.setattr(SearchPlan, "execute", lambda *a, **k: searched.append(1) or real(*a, **k))
    again = completeness(RECEIVER, DMS, parts=parts, **options)
    assert again.trials.tobytes() == whole.trials.tobytes()
    assert len(searched) == len(list(tmp_path.iterdir())) - 2
    assert again.hours == pytest.approx(whole.hours)


@pytest.mark.slow
def test_hours_of_noise_without_pulses():
    found = completeness(RECEIVER, DMS, n=0, hours=0.02, dm=(60, 340), threads=1)
    assert len(found) == 0
    assert 0.02 <= found.hours < 0.02 + 20 / 3600
    assert found.false_rate()[2] == pytest.approx(3.689 / found.hours, rel=1e-3)  # of none
    assert len(found.summary()) == 1
    with pytest.raises(ValueError, match="hours"):
        completeness(fake(nchan=8, duration=1, tsamp=1e-3), [10.0], n=1, hours=1)
    with pytest.raises(ValueError, match="n=0"):
        completeness(RECEIVER, DMS, n=0)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_pulses(found):
    again = completeness(RECEIVER, DMS, n=60, snr=(5, 7, 25), dm=(60, 340), width=(4e-3, 1e-2), seed=3, threads=1)
    assert again.trials.tobytes() == found.trials.tobytes()


@pytest.mark.parametrize("snr", [8.0, 100.0])
def test_pulses_are_two_sweeps_apart(snr):
    """Two of the longer of two neighbours; strong wide ones, which are found at all DMs, two of the highest DM."""
    per_dm = DM_CONSTANT * (OBS.freqs.min() ** -2 - OBS.top**-2)
    grid = PulseGrid((snr,), (10.0, 3000.0), 0.02)
    fb = Noise(nchan=64, fch1=1500, foff=-4, tsamp=1e-3, duration=600).segment(0)
    pulses = list(place(fb, grid.draw(500, np.random.default_rng(1)), DM_CONSTANT, 3000.0, np.random.default_rng(2)))
    times, dms = (np.array([getattr(pulse, name) for pulse in pulses]) for name in ("time", "dm"))
    least = 2 * per_dm * (np.maximum(dms[1:], dms[:-1]) if snr == 8 else np.full(len(dms) - 1, 3000.0))
    over = np.diff(times) - least
    assert len(pulses) > 40
    assert over.min() > 0
    assert over.max() < 2


@pytest.mark.slow
def test_candidates_of_the_data_themselves_are_not_false(tmp_path):
    """A file with a pulse of its own, found with every injection."""
    own = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[9.0], width=5e-3, snr=30, seed=1,
               path=tmp_path / "a.fil")  # fmt: skip
    assert len(search(own, DMS, threads=1)) == 1
    found = completeness(own, DMS, n=12, snr=(20,), dm=(60, 340), threads=1)
    assert len(found.false) == 0
    assert found.trials["found"].mean() > 0.8  # those on top of the file's own pulse may be lost in it
    np.testing.assert_array_equal(search(own, DMS, threads=1).time, [pytest.approx(9.0, abs=5e-3)])


@pytest.mark.slow
def test_times_at_another_frequency_and_a_plan_with_its_own_constant():
    """`Candidates.time` is that at ``ref_freq``, and a `DMPlan` has its own dispersion constant."""
    common = {"n": 6, "snr": (25,), "dm": (60, 340), "width": (4e-3, 1e-2), "seed": 3, "threads": 1}
    expected = completeness(RECEIVER, DMS, **common).trials
    assert expected["found"].all()
    for ref in ("bottom", "infinity", 1400.0):
        found = completeness(RECEIVER, DMS, ref_freq=ref, **common)
        assert len(found.false) == 0
        np.testing.assert_allclose(found.trials["time_error"], expected["time_error"], atol=4 * RECEIVER.tsamp)
    other = 1.1 * DM_CONSTANT  # would move a pulse by more than its width
    stages = plan(OBS, 400, step=4.0, downsamp=1, dm_constant=other)
    found = completeness(RECEIVER, stages, **common)
    assert found.trials["found"].all()
    assert np.abs(found.trials["dm_error"]).max() < 10  # with the other constant, up to 10% of 340


def test_a_candidate_of_the_data_is_no_find():
    """A faint pulse on the place of a loud one that the data have: only a change of the S/N would be a find."""
    own = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[9.0], width=5e-3, snr=30, seed=1)
    data = search(own, DMS, threads=1)
    placed = [
        Placed(Pulse(200, 9.0, 5e-3, 1.0), record(OBS, Pulse(200, 9.0, 5e-3, 1.0), np.ones(64), DM_CONSTANT), 0.0)
    ]
    for before, find in ((data, False), (None, True)):
        known = _already_there(data, before)
        (row,), false, _ = _match(own.observation, data, placed, DM_CONSTANT, known)
        assert row[TRIALS.names.index("found")] == find
        assert false == []
    beside = replace(data, dm=data.dm_high + 0.1)  # the second look may move a DM beyond those of the events
    assert _already_there(data, beside).all()
    far = replace(data.events, dm=data.events.dm + data.dm_high[0])
    assert not _already_there(data, replace(data, events=far)).any()


def test_intervals_are_those_of_binomial_and_poisson_counts():
    trials = np.zeros(20, TRIALS)
    trials["left"] = trials["snr_left"] = trials["snr_found"] = trials["effective_width"] = 1
    trials["snr"], trials["found"] = 10, np.arange(20) < 19
    none = np.zeros(0, [("snr", "f8"), ("dm", "f8"), ("time", "f8")])
    result = Completeness(trials, none, 24.0, 6.5, "", 1.0)
    row = result.recall()[0]
    assert (row["low"], row["high"]) == (pytest.approx(0.7513, abs=1e-4), pytest.approx(0.9987, abs=1e-4))
    assert result.false_rate() == (0, 0, pytest.approx(3.689 / 24, abs=1e-3))


def test_a_result_can_be_saved_and_plotted(found, tmp_path):
    found.save(tmp_path / "c.npz")
    again = Completeness.load(tmp_path / "c.npz")
    assert again.trials.tobytes() == found.trials.tobytes()
    assert again.false_rate() == found.false_rate()
    assert len(found.plot().axes) == 6
    assert repr(found).startswith("<Completeness: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dm": (300, 100)}, "dm="),
        ({"width": (0.0, 1.0)}, "width=0.0"),
        ({"snr": ()}, r"snr=\(\)"),
        ({"snr": (0,)}, "snr=0.0"),
        ({"snr": ("loud",)}, "snr="),
        ({"band": (0.5, 1.5)}, "band="),
        ({"interference": "thunder"}, "kinds='thunder'"),
        ({"prepare": lambda fb: (fb, Mask.channels(64, range(64)))}, "all channels are masked"),
        ({"n": 0}, "n=0"),
        ({"width": (12.0, 13.0)}, r"width=1\d\.\d+: the data last 20 s, too short for such a pulse"),
        ({"dm": (60, 500)}, "dm=500: such pulses cannot be found, because the search covers DM 0 to 396"),
        ({"dm": [1e9]}, r"dm=1e\+09: such pulses"),
        ({"hours": math.nan}, "hours=nan"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        completeness(RECEIVER, DMS, **{"n": 4, "dm": (60, 340), "threads": 1, **change})


def test_campaigns_of_different_seeds_share_no_noise():
    """Segments of seeds that follow each other: none has the noise of another."""
    drawn = [RECEIVER.segment(seed, number).block(0, 50) for seed in (3, 4, 5) for number in range(3)]
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / math.sqrt(a.size)
    np.testing.assert_array_equal(RECEIVER.segment(3, 2).block(100, 50), RECEIVER.segment(3, 2).block(90, 60)[:, 10:])


@pytest.mark.slow
def test_bits_become_normal_numbers():
    """All magnitudes of 31 bits, against the quantile function of scipy; and the numbers of a receiver are normal."""
    k = np.unique(np.concatenate([2**31 - 1 - np.arange(999), np.geomspace(1, 2**31 - 1, 99999).astype(np.int64), [0]]))
    p = (k + 0.5) / 2**32
    for sign in (1, -1):
        out = np.empty(len(k), np.float32)
        normal((k if sign > 0 else k - 2**31).astype(np.int32), out)
        np.testing.assert_allclose(out, -sign * ndtri(p), atol=2.5e-6)
    x = np.empty(1_000_001, np.float32)
    QuickNoise(OBS, 1, 0, 0.0, 1.0).draw(np.random.default_rng(2), x)
    from scipy.stats import kstest

    assert kstest(x, "norm").pvalue > 1e-3
    n = len(x)
    for power, variance in ((1, 1), (2, 2), (3, 15), (4, 96)):  # of the mean of this power of normal numbers, times n
        mean = {2: 1, 4: 3}.get(power, 0)
        assert abs((x.astype(float) ** power).mean() - mean) < 4 * math.sqrt(variance / n)
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 4 / math.sqrt(n)
    assert abs(np.corrcoef(x[2::2], x[:-2:2])[0, 1]) < 4 / math.sqrt(n / 2)
    counts = RECEIVER.segment(1).block(0, 20000).astype(float)
    assert abs(counts.mean() - 96) < 4 * 16 / math.sqrt(counts.size)
    assert counts.std() == pytest.approx(math.sqrt(256 + 1 / 12), rel=4 / math.sqrt(2 * counts.size))


def test_a_grid_has_every_combination_equally_often():
    grid = PulseGrid.parse("dm=100,200,300;snr=8,10;width=0.001:0.01;band=0:1,0:0.5")
    assert grid.combinations == 12
    drawn = grid.draw(36, np.random.default_rng(0))
    seen = [(one["dm"], one["snr"], one["band"]) for one in drawn]
    assert sorted(seen.count(one) for one in set(seen)) == [3] * 12
    widths = np.array([one["width"] for one in drawn])
    assert widths.min() >= 0.001
    assert widths.max() <= 0.01
    assert len(set(widths)) == 36
    with pytest.raises(ValueError, match="expected NAME=VALUES"):
        PulseGrid.parse("depth=3")
    with pytest.raises(ValueError, match="expected numbers or LOW:HIGH"):
        PulseGrid.parse("dm=deep")
    with pytest.raises(ValueError, match="lowest and a highest"):
        PulseGrid.parse("dm=300:100")
    with pytest.raises(ValueError, match="snr is given twice"):
        PulseGrid.parse("snr=20;dm=50;snr=30", snr=[8])


def test_fewer_pulses_than_combinations_are_drawn_evenly():
    """Live injections draw one pulse at a time."""
    grid = PulseGrid(snr=[8, 10, 15, 30])
    rng = np.random.default_rng(3)
    drawn = np.array([grid.draw(1, rng)[0]["snr"] for _ in range(400)])
    counts = [(drawn == snr).sum() for snr in (8, 10, 15, 30)]
    assert min(counts) > 100 - 5 * math.sqrt(75)  # binomial: five sigma
    three = [tuple(sorted(one["snr"] for one in grid.draw(3, rng))) for _ in range(50)]
    assert len(set(three)) == 4
    assert all(len(set(some)) == 3 for some in three)


@pytest.mark.slow
def test_a_campaign_over_a_grid():
    found = completeness(
        RECEIVER, DMS, n=16, snr=(25,), dm=[100.0, 300.0], width=[5e-3, 8e-3], index=[-2.0, 0.0],
        band=[(0.0, 1.0), (0.5, 1.0)], seed=5, threads=1,
    )  # fmt: skip
    t = found.trials
    combinations = {tuple(row) for row in t[["dm", "width", "index", "band_low"]].tolist()}
    assert len(combinations) == 16
    assert t["found"].all()
    np.testing.assert_array_equal(found.recall("dm")["pulses"], [8, 8])
    np.testing.assert_allclose(t["snr_left"], 25, rtol=1e-6)
    assert (t["left"] == 1).all()
    assert "by" not in found.summary("dm")[0]
    with pytest.raises(ValueError, match="by='colour'"):
        found.recall("colour")


@pytest.mark.slow
def test_what_interference_takes_is_counted():
    """Zeros cover some pulses: their ideal S/N is that of the rest, and those that lose over 20% do not count."""
    found = completeness(
        RECEIVER, DMS, n=40, snr=(30,), dm=(60, 340), width=(8e-3, 4e-2), interference=("zeros",), seed=5, threads=1
    )
    t = found.trials
    assert len(found.too_much_lost) == (t["left"] < 0.8).sum() > 0
    np.testing.assert_allclose(t["snr_left"][t["left"] == 1], 30, rtol=1e-6)
    assert (t["snr_left"][t["left"] < 1] < 30).all()
    assert sum(found.recall()["pulses"]) + len(found.too_much_lost) == 40
    assert any(line.startswith("not in the table:") for line in found.summary())
    whole = t[t["left"] == 1]
    assert whole["found"].mean() > 0.9
    # a detector on the samples that are left has their S/N, with unit noise
    some = t[t["left"] > 0]
    assert abs((some["snr_known"] - some["snr_left"]).mean()) < 5 / math.sqrt(len(some))


@pytest.mark.slow
def test_a_silent_stretch_of_a_file_is_counted():
    fb = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, period=None, seed=3)
    x = np.array(fb.read())
    x[:, 8000:14000] = 90
    silent = Filterbank.from_array(x, freqs=fb.freqs, tsamp=fb.tsamp)
    found = completeness(silent, DMS, n=24, snr=(20,), dm=(60, 340), width=(4e-3, 1e-2), seed=2, threads=1)
    inside = (found.trials["time"] > 8.1) & (found.trials["time"] < 13)
    assert inside.any()
    assert (found.trials["left"][inside] == 0).all()
    assert found.recall()["recall"][0] == 1


@pytest.mark.few
@pytest.mark.parametrize("value", [0, 7, 255, np.nan])
def test_a_file_that_does_not_vary_is_named(value):
    """Silent throughout, saturated throughout, or without numbers."""
    x = np.full((64, 20000), value, np.float32 if math.isnan(value) else np.uint8)
    dead = Filterbank.from_array(x, freqs=OBS.freqs, tsamp=1e-3)
    with pytest.raises(ValueError, match="the samples do not vary"):
        completeness(dead, DMS, n=2, dm=(60, 340), threads=1)
    with pytest.raises(ValueError, match="the samples do not vary"):
        inject_pulses(dead, [Pulse(100, 3.0, 5e-3, 9)])


@pytest.mark.slow
@no_warnings
def test_only_channels_without_numbers_and_saturated_ones_are_lost():
    fb = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, period=None, seed=3)
    x = np.array(fb.read())
    options = {"n": 8, "snr": (20,), "dm": (60, 340), "width": (4e-3, 1e-2), "threads": 1}
    lacking = x.astype(np.float32)
    lacking[5] = np.nan
    found = completeness(Filterbank.from_array(lacking, freqs=fb.freqs, tsamp=1e-3), DMS, **options)
    assert found.trials["found"].all()
    assert abs(np.median(found.trials["snr_found"] / 20) - 1) < 0.15
    full = x.copy()
    full[10:30] = 255  # the S/N is that in the other channels: 44 of 64
    found = completeness(Filterbank.from_array(full, freqs=fb.freqs, tsamp=1e-3), DMS, **options)
    assert len(found) == 8
    assert found.trials["found"].all()
    assert (found.trials["left"] == 1).all()
    assert abs((found.trials["snr_known"] - 20).mean()) < 4 / math.sqrt(8)


def test_files_that_are_too_short_are_named():
    fb = fake(nchan=64, duration=0.2, tsamp=1e-3, fch1=1500, foff=-4, period=None)
    with pytest.raises(ValueError, match="the delay of DM 396 across the band is 325 samples, but the data have"):
        completeness(fb, DMS, n=2, dm=(60, 340), threads=1)
    with pytest.raises(ValueError, match=r"covers samples 87 to 361; expected samples within 0 to 200"):
        inject_pulses(fb, [Pulse(300, 0.1, 5e-3, 10)])


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("nbits", [1, slow(2), slow(4), slow(8)])
def test_files_of_few_bits_have_the_injected_signal_to_noise(nbits):
    """Quartiles of 2 bits would give a sigma that is half as large again."""
    fb = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, period=None, nbits=nbits, seed=nbits)
    found = completeness(fb, DMS, n=8, snr=(14,), dm=(60, 340), width=(4e-3, 1e-2), seed=6, threads=1)
    t = found.trials
    assert t["found"].all()
    # the mean of 8 detections of unit noise is uncertain by 0.35
    assert abs((t["snr_known"] - 14).mean()) < 4 / math.sqrt(8)
    assert np.median(t["snr_found"] / 14) == pytest.approx(1, abs=0.15)


@pytest.mark.slow
def test_noise_that_channels_share_counts_in_what_a_detector_sees():
    fb = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, period=None, seed=3)
    shared = np.convolve(np.random.default_rng(1).normal(size=fb.nsamp + 15), np.ones(16) / 4, "valid")
    x = fb.read().astype(float)
    x += 0.3 * 1.4826 * np.median(np.abs(x - np.median(x))) * shared
    red = Filterbank.from_array(np.clip(np.rint(x), 0, 255).astype(np.uint8), freqs=fb.freqs, tsamp=fb.tsamp)
    options = {"n": 8, "snr": (40,), "dm": (4, 8), "width": (1.5e-2, 1.6e-2), "seed": 6, "threads": 1}
    plain, under = (completeness(data, DMS, **options).trials for data in (fb, red))
    assert abs((plain["snr_known"] - 40).mean()) < 4 / math.sqrt(8)
    # The sum of w samples of 64 channels has the variance 64 w, and 0.3^2 64^2 times that of w samples of the shared
    # noise; sigma, for which the pulses are made, includes it.
    w = int(np.median(under["effective_width"]) / fb.tsamp)
    together = sum((w - abs(k)) * (1 - abs(k) / 16) for k in range(-15, 16) if abs(k) < w)
    ratio = math.sqrt((64 * w + 0.09 * 64**2 * together) / (64 * w * 1.09))
    assert np.median(under["snr_known"]) == pytest.approx(40 / ratio, rel=0.25)  # 64 windows give it within 12%


def test_a_series_gets_pulses_of_its_own_dm(test_data):
    """A pulsar's series of 21 s: pulses are added at the DM at which it was de-dispersed, and counted there."""
    fb = Filterbank.open(test_data / "dedispersion" / "GBT_J1807-0847.dat")
    found = completeness(fb, [0.0], n=16, snr=(50,), dm=[0.0], width=(2e-3, 8e-3), seed=1, threads=1)
    np.testing.assert_allclose(found.trials["dm"], 112.3802)
    assert found.trials["found"].all()
    assert (found.trials["dm_error"] == 0).all()
    # pulses of the pulsar, S/N up to 63 and a tenth of the time, add to some
    assert np.median(found.trials["snr_found"]) == pytest.approx(50, rel=0.1)
    one = completeness(Noise(nchan=1, tsamp=1e-3, duration=20), [0.0], n=8, snr=(20,), dm=[0.0], threads=1)
    assert one.trials["found"].all()


@pytest.mark.slow
def test_saturated_samples_are_counted():
    fb = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, period=None, nbits=2)
    found = completeness(fb, DMS, n=6, snr=(8, 300), dm=(60, 340), width=(4e-3, 5e-3), threads=1)
    lost = found.trials["clipped"]
    assert (lost[found.trials["snr"] == 300] > 0.2).all()
    assert (lost[found.trials["snr"] == 8] < lost[found.trials["snr"] == 300].min() / 2).all()
    assert any("saturated" in line for line in found.summary())


@pytest.mark.slow
def test_campaigns_of_several_files_are_joined(found):
    other = completeness(RECEIVER, DMS, n=4, snr=(25,), dm=(60, 340), seed=9, threads=1)
    both = Completeness.join([found, other])
    assert len(both) == 64
    assert both.hours == found.hours + other.hours
    with pytest.raises(ValueError, match="same threshold"):
        Completeness.join([found, completeness(RECEIVER, DMS, n=1, snr=(25,), dm=(60, 340), threshold=8, threads=1)])


@pytest.mark.slow
def test_a_grid_is_injected_into_a_file_with_a_table_of_truths():
    fb = fake(nchan=64, duration=30, tsamp=1e-3, fch1=1500, foff=-4, period=None, seed=4)
    made, truths = inject_grid(fb, PulseGrid(snr=[25], dm=[100.0, 200.0, 300.0], width=[5e-3]), seed=1)
    got = search(made, DMS, threads=1)
    assert len(got) == 3
    order = np.argsort(got.time)
    np.testing.assert_allclose(got.time[order], truths["time"], atol=5e-3)
    np.testing.assert_allclose(got.dm[order], truths["dm"], atol=8)
    np.testing.assert_allclose(got.mjd_top[order], truths["mjd_top"], atol=5e-3 / 86400)
    np.testing.assert_allclose(got.snr[order], 25, atol=4)
    timed, rows = inject_grid(fb, PulseGrid(snr=[25], dm=100.0, width=5e-3, time=[3.0, 9.0]))
    assert rows["time"].tolist() == [pytest.approx(3, abs=2e-3), pytest.approx(9, abs=2e-3)]
    assert len(search(timed, DMS, threads=1)) == 2


@pytest.mark.slow
def test_injections_that_cannot_be_are_named():
    fb = fake(nchan=64, duration=4, tsamp=1e-3, fch1=1500, foff=-4, period=None)
    one = Pulse(100, 1.0, 5e-3, 10)
    with pytest.raises(ValueError, match=r"overlaps Pulse\(dm=100"):
        inject_pulses(fb, [one, Pulse(120, 1.01, 5e-3, 10)])
    with pytest.raises(ValueError, match="expected samples within 0 to 4000"):
        inject_pulses(fb, [Pulse(100, 3.95, 5e-3, 10)])
    with pytest.raises(ValueError, match="band="):
        inject_pulses(fb, [Pulse(100, 1.0, 5e-3, 10, band=(0.001, 0.002))])
    with pytest.raises(ValueError, match="expected samples within 0 to 4000"):
        inject_pulses(fb, [Pulse(1e9, 1.0, 5e-3, 10)])  # before samples of such a length are made
    for change in ({"width": 0.0}, {"width": -1.0}, {"snr": 0.0}, {"snr": math.nan}, {"dm": math.nan}, {"dm": -5.0},
                   {"time": math.inf}, {"scatter": -1e-3}):  # fmt: skip
        (name,) = change
        with pytest.raises(ValueError, match=f"{name}="):
            Pulse(**{"dm": 100.0, "time": 1.0, "width": 5e-3, "snr": 10.0, **change})
    with pytest.raises(ValueError, match="need more than the 4 s"):
        inject_grid(fb, PulseGrid(dm=[100.0, 300.0, 500.0]))
    with pytest.raises(ValueError, match="expected 2 times"):
        inject_grid(fb, PulseGrid(snr=[8, 9], dm=100.0, time=[1.0, 2.0, 3.0]), n=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "highest", "dm", "least"),
    [
        ("parkes_1bit.fil", 60.0, (5.0, 50.0), 0.8),
        ("parkes_4bit.fil", 60.0, (5.0, 50.0), 0.8),
        ("parkes_8bit_2.fil", 60.0, (5.0, 50.0), 0.8),
        ("tutorial.fil", 300.0, (20.0, 270.0), 0.9),
        ("GBT_J1807-0847.dat", 0.0, (0.0, 0.0), 0.9),
    ],
)
def test_injections_into_real_recordings(test_data, name, highest, dm, least):
    """S/N 25 and 50; measured over 48 pulses: recall 0.92 to 1, S/N 0.80 to 1.00 (Parkes' channels share noise)."""
    with Filterbank.open(test_data / "dedispersion" / name) as fb:
        dms = plan(fb, highest) if highest else [0.0]
        found = completeness(fb, dms, n=24, snr=(25, 50), dm=dm, width=(1e-3, 3e-2), seed=1)
    table = found.recall()
    assert found.trials["found"].mean() >= 0.85
    assert (table["window_ratio"] > 0.9 * least).all()
    assert (table["window_ratio"] < 1.15).all()


@pytest.mark.slow
def test_500_injections():
    """The recall is at least that of an ideal detector on the same noise, within three sigma.

    Where both see the same noise only pulses near the threshold differ: about 7 of 125, so that 8 points are 3.8 sigma.
    At S/N 10 the boxcars lose at most 5% of a pulse and the largest of neighbouring windows adds up to half a sigma;
    the median of 125 is uncertain by 1%.
    """
    receiver = Noise(nchan=256, fch1=1500, foff=-300 / 256, tsamp=512e-6, duration=60)
    found = completeness(receiver, plan(receiver.segment(0), 500), n=500, seed=1)
    table = found.recall()
    assert table["pulses"].tolist() == [125] * 4
    assert (table["recall"] >= table["known"] - 0.08).all()
    assert 0.92 < table["ratio"][3] < 1.08
    assert 0.96 < table["window_ratio"][3] < 1.05  # the median of 125 draws of unit noise at S/N 10: 1.2% sigma
    assert (table["candidates"] <= 1.03).all()


NOISE = ("--nchan", 64, "--foff", -4, "--tsamp", 1e-3, "--duration", 20)


def rows_of(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def test_the_command(tmp_path):
    table, picture = tmp_path / "c.csv", tmp_path / "c.png"
    said = run("completeness", "--dm-max", 300, "--pulses", 8, *NOISE, "--grid", "snr=20;dm=100,200", "--by", "dm",
               "-o", table, "--plot", picture, "--threads", 1)  # fmt: skip
    assert "false candidates" in said
    rows = rows_of(table)
    assert [float(row["snr"]) for row in rows] == [20.0] * 8
    assert sorted(float(row["dm"]) for row in rows) == [100.0] * 4 + [200.0] * 4
    assert picture.stat().st_size > 1000
    assert "expected numbers" in run("completeness", "--dm-max", 300, "--grid", "snr=loud", code=2)
    assert "'inject'" in run("completeness", "--dm-max", 300, "--grid", "time=3", code=2)
    assert "'narrow', " in (said := run("completeness", "--dm-max", 300, "--interference", "thunder", code=2))
    assert "'all'" in said


@pytest.mark.slow
def test_the_command_continues_and_takes_the_options_of_the_search(tmp_path):
    table = tmp_path / "c.csv"
    words = ("completeness", "--dm-max", 300, "--pulses", 6, *NOISE, "--grid", "snr=20;dm=100", "--threads", 1)
    whole = run(*words, "--excess", 5, "--dip", 8, "--no-baseline", "--block", 2.5)
    assert "false candidates" in whole
    folder = PartsFolder(table, {"asked": "something else"})
    np.savez(folder.folder / "00000-00000.npz", x=1)
    folder.close()
    assert "other" in run(*words, "-o", table, "--resume", code=2)
    folder.remove()
    run(*words, "-o", table, "--resume")
    assert len(rows_of(table)) == 6
    assert [p.name for p in tmp_path.iterdir()] == ["c.csv"]
    assert "--resume needs -o" in run(*words, "--resume", code=2)


@pytest.mark.slow
def test_the_command_on_the_files_of_a_folder(tmp_path):
    for i in range(2):
        fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, period=None, seed=i,
             path=tmp_path / f"{i}.fil").close()  # fmt: skip
    (tmp_path / "2.fil").write_bytes(b"no filterbank")
    said = run("completeness", tmp_path, "--dm-max", 300, "--dm-step", 4, "--pulses", 9, "--grid", "snr=20;dm=60:200",
               "--threads", 1, "--rfi", "-o", tmp_path / "c.ecsv", code=1)  # fmt: skip
    assert "1 of 3 files could not be used" in said
    assert "2.fil: " in said
    found = Table.read(tmp_path / "c.ecsv")
    assert len(found) == 6
    assert found["found"].all()


def test_the_command_that_injects_a_grid(tmp_path):
    out = tmp_path / "n.fil"
    run("inject", *NOISE, "--grid", "dm=100,200;snr=25;width=0.005", "-o", out)
    truths = rows_of(tmp_path / "n.csv")
    assert [float(row["dm"]) for row in truths] in ([100, 200], [200, 100])
    run("search", out, "--dm-max", 300, "--dm-step", 4, "--threads", 1, "-o", tmp_path / "found.csv", "-q")
    got = sorted(float(row["time"]) for row in rows_of(tmp_path / "found.csv"))
    np.testing.assert_allclose(got, [float(row["time"]) for row in truths], atol=5e-3)
    run("inject", out, "--grid", "dm=100;snr=25;width=0.005", "--interference", "zeros", "-o", tmp_path / "z.fil",
        "--truth", tmp_path / "z.ecsv")  # fmt: skip
    assert (Filterbank.open(tmp_path / "z.fil").read() == 0).any()
    assert len(Table.read(tmp_path / "z.ecsv")) == 1
    said = run("inject", out, *NOISE, "--grid", "dm=100", "-o", tmp_path / "y.fil", code=2)
    assert "expected no files with them" in said
    assert "no pulses are given" in run("inject", out, "-o", tmp_path / "y.fil", code=2)
    run("inject", out, "--grid", "dm=100;snr=25;width=0.005", "--ignore", "0:9", "-o", tmp_path / "i.fil")
    run(
        "inject",
        out,
        "--dm",
        100,
        "--time",
        9,
        "--snr",
        25,
        "--width",
        0.005,
        "--ignore",
        "0:9",
        "-o",
        tmp_path / "j.fil",
    )
    for name in "ij":
        same = (Filterbank.open(tmp_path / f"{name}.fil").read() == Filterbank.open(out).read()).all(axis=1)
        assert same.tolist() == [True] * 10 + [False] * 54
    said = run("inject", *NOISE, "--grid", "dm=100", "--ignore", "0:63", "-o", tmp_path / "y.fil", code=2)
    assert "--ignore 0:63: all channels are left out" in said
    said = run("inject", out, "--dm", 3, "--grid", "dm=9", "-o", tmp_path / "y.fil", code=2)
    assert "cannot be combined with --grid" in said


def test_pulses_have_dms_that_are_searched_by_default():
    found = completeness(
        Noise(nchan=64, fch1=1500, foff=-4, tsamp=1e-3, duration=20), np.arange(20, 120, 4), n=4, snr=[30], threads=1
    )
    assert ((found.trials["dm"] >= 29.6) & (found.trials["dm"] <= 106.4)).all()
