"""Equal samples in a stream count as lost, with any value and in pieces of any length."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.marks import slow

from skysieve.dedispersion import Filterbank, Losses, fake, find_dropped, inject, plan, search
from skysieve.dedispersion.clean import lookout
from skysieve.dedispersion.stream import StreamSearch

NCHAN, NSAMP, TSAMP, TOP, STEP = 96, 12000, 1e-3, 1500.0, -3.0
DMS = np.arange(0, 301, 10.0)
BLOCK = 1500
TIMES = (1.7, 4.0, 10.2)
OPTIONS = {"threshold": 6.5, "block": BLOCK * TSAMP, "threads": 1}
QUICK_KINDS = ("1", "2", "8", "float32")
OTHER_KINDS = ("int8", "uint16")
KINDS = [*QUICK_KINDS, *map(slow, OTHER_KINDS)]
EVERY = slice(0, NCHAN)


def bank(x, **options):
    return Filterbank.from_array(x, fch1=TOP, foff=STEP, tsamp=TSAMP, **options)


def noise(kind, seed, pulses=True):
    """Samples of noise with pulses, shape (samples, channels), and the largest value, 0 if unknown."""
    x = np.random.default_rng(seed).normal(size=(NCHAN, NSAMP)).astype(np.float32)
    for t in TIMES if pulses else ():
        x = inject(bank(x), dm=150, time=t, snr=26, width=6e-3).read()
    x = np.ascontiguousarray(x.T)
    if kind == "float32":
        return x * 3 + 7, 0
    if kind in ("int8", "uint16"):
        low, mean, sigma = {"int8": (-128, 0, 16), "uint16": (0, 5000, 300)}[kind]
        return np.clip(np.rint(x * sigma + mean), low, 2**15).astype(kind), 0
    bits = int(kind)
    mean, sigma = {1: (0.5, 0.5), 2: (1.5, 1.0), 8: (96, 16)}[bits]
    most = 2**bits - 1
    return np.clip(np.rint(x * sigma + mean), 0, most).astype(np.uint8), most


def stream(x, most=0, gulps=(700,), first=0, missing=(), **options):
    """Candidates, the rectangles that counted as lost, and the search."""
    found, at, i = [], first, 0
    stop = first + len(x)
    seen = []
    with StreamSearch(bank(x.T).observation, DMS, dtype=x.dtype.name, maximum=most, **{**OPTIONS, **options}) as live:
        note = live._note

        def noted(rects):
            seen.extend(rects.tolist())
            note(rects)

        live._note = noted
        while at < stop:
            n = min(gulps[i % len(gulps)], stop - at)
            rects = Losses(np.asarray(missing, int).reshape(-1, 4)).within(at, at + n)
            found += live.feed(at, x[at - first : at - first + n].copy(), rects)
            at, i = at + n, i + 1
        found += live.finish()
        assert live.equal == sum((b - a) * (h - w) for a, b, w, h in seen)
    return found, np.array(seen, np.int64).reshape(-1, 4), live


def columns(found):
    names = ("snr", "dm", "time", "width", "live")
    return {n: np.concatenate([np.empty(0), *(f.columns[n] for f in found)]) for n in names}


def cells(rects, shape):
    out = np.zeros(shape, np.int32)
    for a, b, low, high in rects.tolist():
        out[a:b, low:high] += 1
    assert out.max(initial=0) <= 1, "they overlap"
    return out > 0


WHERE = {
    "zeros": (slice(5800, 7900), EVERY, 0),
    "ones": (slice(5800, 7900), EVERY, 1),
    "held": (slice(5950, 6350), EVERY, "hold"),
    "subband": (slice(5800, 7900), slice(24, 60), 0),
    "few": (slice(5800, 8900), slice(40, 56), "hold"),
    "start": (slice(0, 3100), EVERY, 0),
    "start, inside the first block": (slice(0, 900), EVERY, 1),
    "subband at the start": (slice(0, 2600), slice(24, 60), 0),
    "edges of blocks": (slice(6000, 7500), EVERY, 0),
    "end": (slice(11000, NSAMP), EVERY, 0),
}


@cache
def undisturbed(kind):
    """Samples with pulses, their largest value, and the candidates in them."""
    x, most = noise(kind, 2)
    return x, most, columns(stream(x, most)[0])


@pytest.mark.few
@pytest.mark.parametrize("kind", QUICK_KINDS)
@pytest.mark.parametrize("name", ["zeros", "held", "few", "start, inside the first block"])
def test_noise_with_equal_samples_has_no_candidates(kind, name):
    where, rows, value = WHERE[name]
    x, most = noise(kind, 1, pulses=False)
    x[where, rows] = x[where.start, rows] if value == "hold" else value
    found, _, _ = stream(x, most)
    assert columns(found)["snr"].tolist() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WHERE)
def test_pulses_outside_are_found_as_before(kind, name):
    """In blocks without dropped data the S/N agrees within 3%; the dropped samples are those that were replaced."""
    where, rows, value = WHERE[name]
    x, most, before = undisturbed(kind)
    assert len(before["snr"]) == 3
    y = x.copy()
    y[where, rows] = x[where.start, rows] if value == "hold" else value
    some, dropped, _ = stream(y, most)
    found = columns(some)
    swept = 0.25
    for i, t in enumerate(TIMES):
        late = BLOCK if "start" in name else 0  # the baseline of the next block depends on the one that changes
        if where.start * TSAMP - swept < t < (-(-where.stop // BLOCK) * BLOCK + late) * TSAMP:
            continue  # its samples, or its level and noise, change
        near = np.flatnonzero(np.abs(found["time"] - t) < 0.3)
        assert len(near) == 1, t
        assert found["snr"][near[0]] == pytest.approx(before["snr"][i], rel=0.03), t
        assert abs(found["dm"][near[0]] - before["dm"][i]) < 0.5  # a mean over events, some of which change a little
    assert len(found["snr"]) <= 3
    if "start" in name:
        return
    truth = np.zeros(x.shape, bool)
    truth[where, rows] = True
    wrong = cells(dropped, x.shape) ^ truth
    # edges of single channels move by chance; with one bit by two samples in some channels
    assert wrong.sum() <= 0.01 * truth.sum() + 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["1", "8", "float32"])
def test_the_bits_are_those_of_a_file_with_these_losses(kind):
    """The rectangles that the stream finds, given to `search` as losses, give the same candidates."""
    x, most = noise(kind, 3)
    x[5800:7900, 10:50] = 0
    x[8300:8340] = 1
    found, dropped, _ = stream(x, most)
    offline = search(bank(x.T, nbits=1 if kind == "1" else None), DMS, losses=Losses(dropped), **OPTIONS)
    mine = columns(found)
    order, other = np.lexsort((mine["dm"], mine["time"])), np.lexsort((offline.dm, offline.time))
    assert len(order) == len(offline) >= 2
    for name in ("snr", "dm", "time", "width"):
        assert np.array_equal(mine[name][order], getattr(offline, name)[other]), name
    if kind != "1":
        assert np.array_equal(cells(dropped, x.shape), cells(find_dropped(bank(x.T)), x.shape))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [QUICK_KINDS, slow((*QUICK_KINDS, *OTHER_KINDS))])
@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    gulps=st.lists(st.integers(1, 3500), min_size=1, max_size=4),
    first=st.sampled_from([0, 1, 1400, 2999]), a=st.integers(0, 5000), n=st.integers(2, 4000),
    low=st.integers(0, NCHAN - 1), lost=st.booleans(),
)  # fmt: skip
def test_any_pieces_give_the_same_bits(kinds, data, gulps, first, a, n, low, lost):
    x, most = noise(data.draw(st.sampled_from(kinds)), 4)
    x = x[: 9000 if sum(gulps) > 300 else 6000]
    x[a : a + n, low:] = 1
    x[5500:5800] = 0
    missing = [[first + 3000, first + 3200, 0, NCHAN], [first + 4000, first + 4010, 5, 40]] if lost else ()
    if sum(gulps) < 50:
        gulps = [g + 50 for g in gulps]
    whole, rects, _ = stream(x, most, (len(x),), first=first, missing=missing)
    pieces, same, _ = stream(x, most, gulps, first=first, missing=missing)
    assert np.array_equal(rects, same)
    one, other = columns(whole), columns(pieces)
    for name in one:
        assert np.array_equal(one[name], other[name]), name


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
def test_clean_streams_lose_nothing(kind):
    x, most = noise(kind, 5)
    found, dropped, _ = stream(x, most)
    assert len(dropped) == 0
    offline = search(bank(x.T), DMS, losses=Losses([]), **OPTIONS)
    mine = columns(found)
    assert len(offline) == 3
    for name in ("snr", "dm", "time", "width"):
        assert np.array_equal(np.sort(mine[name]), np.sort(getattr(offline, name))), name


@pytest.mark.slow
def test_lost_packets_do_not_count_as_equal_samples():
    """Lost samples are zeros in the stream: they are counted once, and interrupt runs."""
    x, _ = noise("8", 6)
    rng = np.random.default_rng(0)
    missing = [[a, a + 20, 0, NCHAN] for a in np.flatnonzero(rng.random(NSAMP // 20) < 0.3) * 20]
    for a, b, _, _ in missing:
        x[a:b] = 0
    found, dropped, _ = stream(x, 255, missing=missing)
    assert len(dropped) == 0
    offline = search(bank(x.T), DMS, losses=Losses(missing), **OPTIONS)
    assert np.array_equal(np.sort(columns(found)["snr"]), np.sort(offline.snr))


@pytest.mark.slow
def test_bright_pulses_that_saturate_are_kept():
    x = np.random.default_rng(7).normal(size=(NCHAN, NSAMP)).astype(np.float32)
    x = inject(bank(x), dm=150, time=5.0, snr=30 * NCHAN**0.5 * 5, width=20e-3).read().T
    y = np.clip(np.rint(x * 16 + 96), 0, 255).astype(np.uint8)
    assert (y == 255).sum(axis=0).min() > 10
    found, dropped, _ = stream(y, 255)
    assert len(dropped) == 0
    assert columns(found)["snr"].max() > 40


@pytest.mark.slow
def test_a_frozen_channel_is_dropped_data_and_a_clipped_one_is_not():
    x, _ = noise("8", 8)
    x[6000:6040, 40] = 0
    x[6500:6900, 90] = 0
    assert len(stream(x, 255)[1]) == 0
    x[9000:9040, 40] = 77
    assert np.argwhere(cells(stream(x, 255)[1], x.shape)).tolist() == [[t, 40] for t in range(9000, 9040)]


@pytest.mark.slow
def test_a_stream_of_one_value_has_no_candidates():
    for dtype, most in (("uint8", 255), ("uint8", 1), ("float32", 0)):
        found, _, live = stream(np.full((NSAMP, NCHAN), 1, dtype), most)
        assert found == []
        assert live.equal == NSAMP * NCHAN


@pytest.mark.slow
def test_channels_that_never_change_stay_in_the_search():
    """Most channels are zeros throughout: pulses in the others are found, and nothing counts as lost."""
    x, _ = noise("8", 9)
    x[:, :60] = 0
    found, dropped, _ = stream(x, 255)
    assert len(dropped) == 0
    plain = search(bank(x.T), DMS, losses=Losses([]), **OPTIONS)
    assert len(plain) >= 3
    assert np.array_equal(np.sort(columns(found)["snr"]), np.sort(plain.snr))
    assert (columns(found)["live"] == 1).all()


@pytest.mark.slow
def test_candidates_are_not_delayed():
    """Samples without runs are searched within two pieces and a few samples."""
    x, most = noise("8", 10)
    with StreamSearch(bank(x.T).observation, DMS, maximum=most, clean=False, **OPTIONS) as live:
        live.feed(0, x[: 2 * BLOCK])
        for at in range(2 * BLOCK, NSAMP, 50):
            live.feed(at, x[at : at + 50])
            assert at + 50 - live.filled <= 2 * lookout.LEAST_PIECE


def test_a_block_that_is_too_short_is_refused():
    fb = fake(nchan=16, duration=8, tsamp=1e-3, fch1=1500, foff=-4, dm=0, times=[], width=1e-3, snr=1, seed=1)
    coarse = plan(fb, dms=[0.0, 5.0], downsamp=4)
    for block, made, least in ((2.0, coarse, "4.096"), (1.0, [0.0], "1.024")):
        message = rf"block={block}: expected at least {least} s"
        with pytest.raises(ValueError, match=message):
            search(fb, made, block=block)
        with pytest.raises(ValueError, match=message):
            StreamSearch(fb.observation, made, block=block)
    with StreamSearch(fb.observation, coarse) as live:
        assert live.length == 4096
    with StreamSearch(fb.observation, [0.0], usual_block=0.25) as live:
        assert live.length == 1024
    assert search(fb, coarse).searched == 8
