"""The search of a stream equals that of a file, bit for bit, for any pieces, any start and any losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.marks import slow

from skysieve.core.cpu import jit
from skysieve.dedispersion import Filterbank, Mask, fake, plan, search
from skysieve.dedispersion.clean.missing import LEAST_LIVE, Losses
from skysieve.dedispersion.single_pulse import cpu_grouping
from skysieve.dedispersion.stream import StreamSearch
from skysieve.dedispersion.stream.search import cpu_series

NCHAN, TSAMP = 64, 1e-3
DMS = np.arange(0, 201, 10.0)
OPTIONS = {"threshold": 5.0, "block": 1.1, "threads": 1}


@pytest.fixture(scope="module")
def fb():
    """Seven pulses of DM 100 in 12 s, one across the edge of two blocks, one at the end."""
    made = fake(
        nchan=NCHAN, duration=12, tsamp=TSAMP, fch1=1500, foff=-4, dm=100, width=8e-3, snr=20, seed=5,
        times=[0.3, 2.0, 3.302, 4.7, 8.01, 9.9, 11.8],
    )  # fmt: skip
    return Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=TSAMP, tstart=60000.0)


def stream(fb, dms, gulps, *, losses=None, first=0, fill=0, **options):
    """Search a stream in pieces whose lengths repeat those of ``gulps``."""
    x = fb.read().T
    found, at, i = [], first, 0
    with StreamSearch(fb.observation, dms, dtype=fb.dtype.name, **{**OPTIONS, **options}) as live:
        while at < len(x):
            n = min(gulps[i % len(gulps)], len(x) - at)
            rows = np.array(x[at : at + n])
            rects = np.empty((0, 4), int) if losses is None else losses.within(at, at + n)
            rects[:, 3] = np.minimum(rects[:, 3], fb.nchan)
            for a, b, low, high in rects:
                rows[a - at : b - at, low:high] = fill
            found += live.feed(at, rows, rects)
            at, i = at + n, i + 1
        return found + live.finish()


def flat(found, names):
    return {n: np.concatenate([getattr(f.events, n) for f in found]) for n in names}


def same(found, offline):
    names = list(offline.events.__dataclass_fields__)
    events = flat(found, names)
    order = np.lexsort((events["width_samples"], events["time"], events["dm_index"]))
    assert len(order) == len(offline.events) > 0
    for name in names:
        assert np.array_equal(events[name][order], getattr(offline.events, name)), name
    columns = {n: np.concatenate([f.columns[n] for f in found]) for n in offline.columns()}
    rank = np.lexsort((columns["time"], columns["dm"], -columns["snr"]))
    again = np.lexsort((offline.time, offline.dm, -offline.snr))
    for name, column in offline.columns().items():
        assert np.array_equal(columns[name][rank], column[again]), name


@pytest.mark.few
@pytest.mark.parametrize("gulps", [[1024], slow([997]), [12000], slow([1]), [1, 2500, 37]])
def test_any_gulps_give_the_bits_of_a_file(fb, gulps):
    if gulps == [1]:
        fb = Filterbank.from_array(fb.block(0, 2600), freqs=fb.freqs, tsamp=TSAMP, tstart=60000.0)
    same(stream(fb, DMS, gulps), search(fb, DMS, **OPTIONS))


@pytest.mark.few
@pytest.mark.parametrize("step", [2, 5])
def test_blocks_at_a_time_and_binned_stages(fb, step):
    p = plan(fb, dms=DMS, downsamp=4)
    options = {"block": 4.2}
    same(stream(fb, p, [700], step=step, **options), search(fb, p, **{**OPTIONS, **options}))


@pytest.mark.few
@pytest.mark.parametrize(
    "options", [slow({"noise": "moments"}), {"detector": "threshold", "noise": "moments"}, {"method": "brute"}]
)
def test_options_are_those_of_the_file(fb, options):
    same(stream(fb, DMS, [513], **options), search(fb, DMS, **{**OPTIONS, **options}))


@pytest.mark.slow
def test_channels_left_out(fb):
    found = stream(fb, DMS, [513], ignore=[3, 40])
    same(found, search(fb, DMS, mask=Mask.channels(NCHAN, [3, 40]), **OPTIONS))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["uint16", slow("int8"), slow("float32")])
def test_types(fb, dtype):
    x = fb.read().astype(np.float32) - (96 if dtype == "int8" else 0)
    y = x.astype(dtype)
    if dtype == "float32":
        y[5, 3000:3010] = np.nan
        y[7, 100] = np.inf
    other = Filterbank.from_array(y, freqs=fb.freqs, tsamp=TSAMP, tstart=60000.0)
    same(stream(other, DMS, [777]), search(other, DMS, **OPTIONS))


def random_losses(rng, part, packet, start=0, chunks=1, nsamp=12000):
    numbers = np.flatnonzero(rng.random(nsamp // packet * chunks) < part)
    t, c = numbers // chunks * packet, numbers % chunks * (NCHAN // chunks)
    return Losses(np.stack([t, t + packet, c, c + NCHAN // chunks], axis=1), start)


@pytest.mark.few
@pytest.mark.parametrize("lost", [(0.01, 4, 1), (0.1, 16, 4), (0.5, 10, 1)])
@pytest.mark.parametrize("fill", [0, 255])
def test_losses_are_those_of_the_file(fb, lost, fill):
    part, packet, chunks = lost
    losses = random_losses(np.random.default_rng(1), part, packet, chunks=chunks)
    same(stream(fb, DMS, [513, 2048], losses=losses, fill=fill), search(fb, DMS, losses=losses, **OPTIONS))


@pytest.mark.few
@pytest.mark.parametrize("first", [1, slow(999), slow(1100), 1101, 3000])
def test_a_stream_that_starts_late(fb, first):
    losses = Losses(random_losses(np.random.default_rng(2), 0.02, 10).rects, first)
    same(stream(fb, DMS, [513], losses=losses, first=first), search(fb, DMS, losses=losses, **OPTIONS))


def noise(rng, count, dtype="uint8"):
    """Samples of noise of any level, shape (samples, channels)."""
    z = rng.normal(0, 1, (count, NCHAN))
    level, sigma = {"uint8": (96, 16), "int8": (-80, 10), "uint16": (30000, 300), "float32": (-100, 1)}[dtype]
    if dtype == "float32":
        return (level + sigma * z).astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(level + sigma * z), limits.min, limits.max).astype(dtype)


def live_candidates(x, first, dms, block, *, gulp=160, rects=()):
    """S/N, DM and time of the candidates of samples ``x``, the first of which is sample ``first``."""
    fb = fake(nchan=NCHAN, duration=0.1, tsamp=TSAMP, fch1=1500, foff=-4, dm=0, times=[], width=TSAMP, snr=1, seed=1)
    found = []
    with StreamSearch(fb.observation, dms, dtype=x.dtype.name, block=block, threads=1) as live:
        for at in range(first, first + len(x), gulp):
            end = min(at + gulp, first + len(x))
            some = [(max(a, at), min(b, end), low, high) for a, b, low, high in rects if a < end and b > at]
            found += live.feed(at, x[at - first : end - first].copy(), some)
        found += live.finish()
    return [tuple(float(f.columns[n][i]) for n in ("snr", "dm", "time")) for f in found for i in range(len(f))]


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("after", [0, 1, 7, 200, 1099])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "uint16", slow("int8")])
def test_noise_has_no_candidates_wherever_a_stream_begins(after, dtype):
    """A receiver joins ``after`` samples before the end of a noise block, for a moment or for seconds."""
    rng = np.random.default_rng(after)
    for count in (1, 3, 100, after + 60, after + 3000):
        first = 1100 * int(rng.integers(1, 2000)) - after
        assert live_candidates(noise(rng, count, dtype), first, np.arange(0, 1001, 50.0), 1.1) == [], count


@pytest.mark.few
@pytest.mark.parametrize("after", [0, 5, 90, 800])
@pytest.mark.parametrize("dm", [40.0, 100.0, 300.0])
def test_a_pulse_after_a_late_start_has_its_dm(after, dm):
    """The pulse is in the second block after the start; a file from sample 0 would give the same pulse."""
    first, at = 44 * 1100 - after, 1.7 + after * TSAMP
    made = fake(nchan=NCHAN, duration=6, tsamp=TSAMP, fch1=1500, foff=-4, dm=dm, times=[at], width=8e-3, snr=25,
                seed=int(dm) + after)  # fmt: skip
    found = live_candidates(np.ascontiguousarray(made.read().T), first, np.arange(0, 401, 10.0), 1.1)
    assert len(found) == 1
    snr, found_dm, time = found[0]
    assert snr > 15
    assert abs(found_dm - dm) <= 10
    assert abs(time - (first * TSAMP + at)) < 8e-3


@pytest.mark.slow
@pytest.mark.parametrize("joins", [30, 1050, 1150, 2190, 4000])
@pytest.mark.parametrize("channels", [(0, 32), (32, 64), (60, 64)])
def test_a_subband_that_joins_late_makes_no_candidates(joins, channels):
    low, high = channels
    """If the packets of some channels begin later, noise gives no candidates, and a pulse has the right DM."""
    rng = np.random.default_rng(joins + low)
    lost = [(0, joins, low, high)]
    edge = -(-joins // 1100) * 1100  # its level is known at this sample, or a block later
    for count in (7000, edge + 60, edge + 900, edge + 1200, edge + 2000):
        assert live_candidates(noise(rng, count), 0, np.arange(0, 1001, 50.0), 1.1, rects=lost) == [], count
    made = fake(nchan=NCHAN, duration=9, tsamp=TSAMP, fch1=1500, foff=-4, dm=100, times=[7.2], width=8e-3, snr=25,
                seed=joins)  # fmt: skip
    found = live_candidates(np.ascontiguousarray(made.read().T), 0, DMS, 1.1, rects=lost)
    assert len(found) == 1
    assert found[0][0] > 15
    assert abs(found[0][1] - 100) <= 10
    assert abs(found[0][2] - 7.2) < 8e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "joins"), [(1095, 1800), slow(2000, 4000), slow(0, 2190), slow(0, 3400), slow(3290, 3310)]
)
def test_a_subband_that_joins_late_is_as_in_the_file(fb, first, joins):
    losses = Losses([[0, joins, 16, 32], [5000, 5010, 0, 64], [0, 6000, 60, 64]], first)
    same(stream(fb, DMS, [513], losses=losses, first=first), search(fb, DMS, losses=losses, **OPTIONS))


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    gulps=st.lists(st.integers(1, 3000), min_size=1, max_size=4), first=st.integers(0, 2500),
    packet=st.integers(1, 40), part=st.sampled_from([0.0, 0.01, 0.2]), seed=st.integers(0, 99),
    end=st.integers(2600, 6000), step=st.integers(1, 3),
)  # fmt: skip
def test_any_pieces_and_any_losses(gulps, first, packet, part, seed, end, step):
    made = fake(
        nchan=NCHAN, duration=6, tsamp=TSAMP, fch1=1500, foff=-4, dm=100, width=8e-3, snr=25, seed=3,
        times=[0.4, 2.2, 2.55, 3.3],
    )  # fmt: skip
    cut = Filterbank.from_array(made.block(0, end), freqs=made.freqs, tsamp=TSAMP)
    if sum(gulps) < 200:
        gulps = [n + 200 for n in gulps]
    losses = Losses(random_losses(np.random.default_rng(seed), part, packet, nsamp=end).rects, first)
    offline = search(cut, DMS, losses=losses, **OPTIONS)
    found = stream(cut, DMS, gulps, losses=losses, first=first, step=step)
    if len(offline.events) or found:
        same(found, offline)


def test_a_gap_makes_no_candidates_and_keeps_time():
    quiet = fake(
        nchan=NCHAN, duration=20, tsamp=TSAMP, fch1=1500, foff=-4, dm=100, times=[17.0], width=8e-3, snr=25, seed=8
    )
    fb = Filterbank.from_array(quiet.read(), freqs=quiet.freqs, tsamp=TSAMP)
    losses = Losses([[5300, 7300, 0, NCHAN], [9100, 9600, 0, NCHAN], [12000, 16000, 20, 40]])
    found = stream(fb, DMS, [600], losses=losses, threshold=6.5)
    times = np.concatenate([f.columns["time"] for f in found])
    live = np.concatenate([f.columns["live"] for f in found])
    assert len(times) == 1
    assert abs(times[0] - 17.0) < 8e-3
    assert live[0] == 1.0


def test_a_pulse_that_lost_some_of_its_samples(fb):
    """The S/N is that of the samples that arrived, and the candidate says which fraction that is."""
    whole = search(fb, DMS, **OPTIONS)
    sample = int(whole.sample[0])
    losses = Losses([[sample, sample + 22, 0, 16]])  # the delay across these channels is 19 samples
    found = stream(fb, DMS, [512], losses=losses)
    columns = {n: np.concatenate([f.columns[n] for f in found]) for n in ("snr", "time", "live")}
    near = np.flatnonzero(np.abs(columns["time"] - whole.time[0]) < 0.02)
    best = near[np.argmax(columns["snr"][near])]
    assert LEAST_LIVE < columns["live"][best] < 1
    assert 0.6 * whole.snr[0] < columns["snr"][best] < whole.snr[0]


@pytest.mark.slow
def test_low_dms_do_not_wait_for_the_delay_of_high_ones(fb, monkeypatch):
    """A plan in ranges of similar delays: candidates of DM 100 come long before the delay of DM 1000 has passed."""
    from skysieve.dedispersion.stream.search import series

    monkeypatch.setattr(series, "LEAST_ROWS", 8)
    dms = np.concatenate([np.arange(0, 201, 10.0), np.arange(220, 1001, 20.0)])
    p = plan(fb, dms=dms, downsamp=2)
    options = {"threshold": 7.0, "block": 2.2}
    x = fb.read().T
    found, at = [], []
    with StreamSearch(fb.observation, p, threads=1, **options) as live:
        assert len(live._ranges) > 5
        for start in range(0, fb.nsamp, 100):
            some = live.feed(start, x[start : start + 100])
            found += some
            at += [start + 100] * len(some)
        found += live.finish()
    same(found, search(fb, p, threads=1, **options))
    assert live.job.overlap > 800
    first = next(t for t, f in zip(at, found, strict=False) if abs(f.columns["time"] - 2.0).min() < 8e-3)
    assert (
        first < 6600 + 470 + 500
    )  # its block, the next one for the baseline, the delay of DM 200 and of some DMs near it, and a piece


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_data_that_wait_are_searched_before_all_is_compiled_to_the_same_bits(fb, monkeypatch, dtype):
    """The level drifts, so that lines are subtracted by the interpreter; integers are summed directly."""
    rows = fb.read() + (20 * np.sin(np.arange(fb.nsamp) / 900)).astype(np.int64)
    made = Filterbank.from_array(
        np.clip(rows, 0, 255).astype(dtype), freqs=fb.freqs, tsamp=TSAMP, tstart=60000.0
    )  # fmt: skip
    offline = search(made, DMS, clean=False, **OPTIONS)
    run = []

    def interpreted(kernel, steps, worth=1.0):
        if math.isinf(steps):
            return kernel
        run.append(kernel)
        return jit.interpreted(kernel)

    monkeypatch.setattr(jit, "interpreted_if_small", interpreted)
    monkeypatch.setattr(jit, "is_ready", lambda kernel: False)
    with StreamSearch(made.observation, DMS, dtype=dtype, clean=False, expected=fb.nsamp, **OPTIONS) as live:
        assert (live.describe()["method"] == "brute") == (dtype == "uint8")
        found = [*live.feed(0, made.read().T), *live.finish()]
    same(found, offline)
    assert {cpu_series.subtract_drifts, cpu_grouping.explain} <= set(run)


def test_functions_are_compiled_ahead_for_the_types_of_a_stream(fb):
    kernels = list(cpu_series.USES.values())
    assert stream(fb, DMS, [3000])
    before = [set(kernel.overloads) for kernel in kernels]
    assert all(before)
    for name in cpu_series.USES:
        cpu_series.compile_one("uint32", name)
    assert [set(kernel.overloads) for kernel in kernels] == before


def test_bad_input(fb):
    for options, message in [
        ({"dtype": "complex64"}, "dtype='complex64'"), ({"step": 0}, "step=0"), ({"step": 1.5}, r"step=1\.5"),
        ({"history": -1}, "history=-1"),
        ({"ignore": [64]}, r"ignore=\[64\]"), ({"threshold": 0}, "threshold=0"), ({"memory": 1000}, "samples of 64"),
    ]:  # fmt: skip
        with pytest.raises((ValueError, MemoryError), match=message):
            StreamSearch(fb.observation, DMS, **options)
    with pytest.raises(TypeError, match="observation is a Filterbank, expected an Observation"):
        StreamSearch(fb, DMS)
    with StreamSearch(fb.observation, DMS, **OPTIONS) as live:
        assert live.finish() == []
        for start in (-1, 2.5):
            with pytest.raises(ValueError, match=f"start={start}: expected"):
                live.feed(start, np.zeros((5, NCHAN), np.uint8))
        live.feed(10, np.zeros((5, NCHAN), np.uint8))
        with pytest.raises(ValueError, match="start=20: expected 15"):
            live.feed(20, np.zeros((5, NCHAN), np.uint8))
        with pytest.raises(ValueError, match="rows has shape"):
            live.feed(15, np.zeros((5, 3), np.uint8))
        with pytest.raises(ValueError, match="rows has dtype float64, expected uint8"):
            live.feed(15, np.zeros((5, NCHAN)))
        with pytest.raises(ValueError, match="missing: expected"):
            live.feed(15, np.zeros((5, NCHAN), np.uint8), [[10, 16, 0, 4]])
    with pytest.raises(ValueError, match="rects: expected"):
        Losses([[5, 5, 0, 1]])
    with pytest.raises(ValueError, match="start=-1"):
        Losses([], start=-1)


@pytest.mark.slow
def test_a_storm_of_events_is_bounded(fb, monkeypatch):
    """If events are too many, the loudest are used; groups that last too long are returned in pieces."""
    from skysieve.dedispersion.stream.search import search as module
    from skysieve.dedispersion.stream.search import waiting

    monkeypatch.setattr(module, "MOST_EVENTS", 40)
    monkeypatch.setattr(waiting, "MOST_WAITING", 40)
    monkeypatch.setattr(waiting, "LONGEST", 0.5)
    found = []
    with StreamSearch(fb.observation, DMS, threshold=2.0, block=1.1, veto=False, threads=1) as live:
        for at in range(0, fb.nsamp, 500):
            found += live.feed(at, fb.block(at, 500).T)
        found += live.finish()
    assert live.dropped > 0
    assert live.forced > 0
    assert live.events == sum(len(f.events) for f in found)
    assert live.events <= 40 * -(-fb.nsamp // live.length)
    loudest = max(f.columns["snr"].max() for f in found)
    assert loudest == search(fb, DMS, **OPTIONS).snr.max()
