"""Dropped data (constant or missing stretches) in files: found, filled with noise of the channel, reported."""

from __future__ import annotations

import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from tests.dedispersion.test_cli import run
from tests.dedispersion.test_formats import psrfits
from tests.kernels.shim import shim_runtime
from tests.marks import slow

from skysieve.core.tasks import TaskPool
from skysieve.dedispersion import (
    Filterbank,
    Losses,
    Mask,
    fill_dropped,
    find_dropped,
    inject,
    plan,
    rfi_mask,
    search,
    write_fil,
    zero_dm,
)
from skysieve.dedispersion.clean import dropouts, repair
from skysieve.dedispersion.clean.cuda import resident
from skysieve.dedispersion.clean.dropouts import Watch
from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.clean.repair import RepairedReader, repaired
from skysieve.dedispersion.contract import Resident, Room

TSAMP, NCHAN, NSAMP, TOP, STEP = 1e-3, 128, 16000, 1500.0, -2.4
DMS = np.arange(0, 401, 8.0)
TIMES = (2.0, 4.5, 8.5, 13.0)
BLOCK = slice(6000, 8000)


def bank(x, **options):
    return Filterbank.from_array(x, fch1=TOP, foff=STEP, tsamp=TSAMP, **options)


def noise(kind, seed):
    """Samples of noise of a kind, shape (channels, samples), and their bits."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NCHAN, NSAMP)).astype(np.float32)
    for t in TIMES if kind.endswith("pulses") else ():
        x = inject(bank(x), dm=200, time=t, snr=25, width=5e-3).read()
    name = kind.split()[0]
    if name == "float32":
        return (x * 3 + 7).astype(np.float32), None
    if name == "int8":
        return np.clip(np.rint(x * 16), -128, 127).astype(np.int8), None
    if name == "uint16":
        return np.clip(np.rint(x * 300 + 5000), 0, 65535).astype(np.uint16), None
    if name == "skew":  # one bit, 15% ones
        return (x > 1.04).astype(np.uint8), 1
    bits = int(name)
    mean, sigma = {1: (0.5, 0.5), 2: (1.5, 1.0), 4: (7.5, 2.5), 8: (96, 16)}[bits]
    return np.clip(np.rint(x * sigma + mean), 0, 2**bits - 1).astype(np.uint8), bits


@cache
def with_pulses(kind):
    """Read-only samples with pulses, their bits, and what a search finds in them."""
    x, bits = noise(kind + " pulses", 2)
    x.flags.writeable = False
    return x, bits, search(bank(x, nbits=bits), DMS, threshold=6.5)


def rectangles(rects, shape):
    cells = np.zeros(shape, bool)
    for first, last, low, high in rects.tolist():
        assert not cells[low:high, first:last].any(), "they overlap"
        cells[low:high, first:last] = True
    return cells


KINDS = ("1", "2", "4", "8", "int8", "uint16", "float32", "skew")


@pytest.mark.few
@pytest.mark.parametrize(
    "kind", ["1", slow("2"), slow("4"), "8", slow("int8"), slow("uint16"), "float32", slow("skew")]
)
@pytest.mark.parametrize("pulses", ["", " pulses"])
def test_noise_and_pulses_are_no_dropouts(kind, pulses):
    """Short runs of equal samples are natural in few bits; all samples are searched as they are."""
    x, bits = noise(kind + pulses, 1)
    fb = bank(x, nbits=bits)
    assert len(find_dropped(fb)) == 0
    found, plain = search(fb, DMS, threshold=6), search(fb, DMS, threshold=6, losses=Losses([]))
    assert len(found.dropped) == 0
    for name, column in found.columns().items():
        assert np.array_equal(column, plain.columns()[name]), name
    assert len(found) >= (4 if pulses else 0)


WHERE = {
    "zeros": (slice(6000, 8000), slice(0, NCHAN), 0),
    "ones": (slice(6000, 8000), slice(0, NCHAN), 1),
    "start": (slice(0, 2500), slice(0, NCHAN), 0),
    "end": (slice(14100, NSAMP), slice(0, NCHAN), 0),
    "held": (slice(6000, 6400), slice(0, NCHAN), "hold"),
    "some channels": (slice(6000, 8000), slice(20, 75), 0),
    "some at the start": (slice(0, 2500), slice(20, 75), 0),
}
CASES = [(kind, name) for name in WHERE for kind in ("1", "8", "float32")]
CASES += [slow(kind, name) for name in ("held", "some channels") for kind in KINDS if (kind, name) not in CASES]
"""All places with the narrowest, the usual and the widest type; two of them with the other types."""


@pytest.mark.few
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_stretch_is_found_and_gives_no_candidates(kind, name):
    where, rows, value = WHERE[name]
    x, bits, clean = with_pulses(kind)
    truth = np.zeros(x.shape, bool)
    truth[rows, where] = True
    y = x.copy()
    y[rows, where] = x[rows, where.start][:, None] if value == "hold" else value
    found = search(bank(y, nbits=bits), DMS, threshold=6.5)
    wrong = rectangles(found.dropped, x.shape) ^ truth
    # chance makes a run longer by k samples with Q**k; Q is 0.74 for 15% ones, and 4000 edges were drawn
    assert wrong.sum() <= {"skew": 0.02, "1": 0.004}.get(kind, 0.001) * truth.sum() + 2
    near = [np.abs(found.time - t).min() < 0.01 for t in TIMES]
    swept = 0.5  # s; the sweep of DM 200 takes 0.19 s
    for t, ok in zip(TIMES, near, strict=True):
        inside = where.start * TSAMP - swept < t < where.stop * TSAMP
        if not inside:
            assert ok, t
            a, b = (float(c.snr[np.abs(c.time - t).argmin()]) for c in (found, clean))
            assert a == pytest.approx(b, rel=0.03), t
    others = [s for s, t in zip(found.snr, found.time, strict=True) if np.abs(t - np.array(TIMES)).min() > 0.3]
    expected = [s for s, t in zip(clean.snr, clean.time, strict=True) if np.abs(t - np.array(TIMES)).min() > 0.3]
    assert len(others) <= len(expected) + 1
    assert max(others, default=0) < 7.2


@pytest.mark.few
@pytest.mark.parametrize("seed", range(3))
def test_short_dropouts(seed):
    """From 2 ms on in all channels, from 12 samples on in one; at the value that is the loudest for a search."""
    rng = np.random.default_rng(seed)
    x, _ = noise("8", 10 + seed)
    truth = np.zeros(x.shape, bool)
    for first in range(800, NSAMP - 800, 1500):
        length = int(rng.integers(2, 9))
        x[:, first : first + length] = 140
        truth[:, first : first + length] = True
    row = int(rng.integers(NCHAN))
    x[row, 1500:1512] = truth[row, 1500:1512] = 1
    x[row, 1500:1512] = 3
    found = search(bank(x), DMS)
    assert (rectangles(found.dropped, x.shape) ^ truth).sum() <= 0.05 * truth.sum()
    assert len(found) == 0
    assert len(search(bank(x), DMS, losses=Losses([]), clean=False)) > 0


@pytest.mark.slow
def test_a_pulse_beside_a_stretch_is_found():
    x, _ = noise("8", 4)
    fb = inject(bank(x), dm=200, time=5.7, snr=15, width=5e-3)  # its sweep takes 0.19 s
    x = fb.read().copy()
    before = search(bank(x), DMS)
    x[:, 5900:7900] = 96
    found = search(bank(x), DMS)
    assert len(found) == 1
    assert found.time[0] == pytest.approx(5.7, abs=5e-3)
    assert found.snr[0] == pytest.approx(before.snr[0], rel=0.03)


@pytest.mark.few
@pytest.mark.parametrize("threshold", [1.0, 100.0])
def test_bright_pulses_that_saturate_are_kept(threshold):
    """A run of the largest value is a bright pulse: of one bit, and of 8 bits with S/N of thousands."""
    x = np.random.default_rng(5).normal(size=(NCHAN, NSAMP)).astype(np.float32)
    x = inject(bank(x), dm=200, time=5.0, snr=30 * NCHAN**0.5 * threshold**0.3, width=20e-3).read()
    y = (x > 0).astype(np.uint8) if threshold == 1 else np.clip(np.rint(x * 16 + 96), 0, 255).astype(np.uint8)
    fb = bank(y, nbits=1 if threshold == 1 else 8)
    assert (np.diff(np.flatnonzero(np.diff(y[0] == y.max()))) > 8).any()
    assert len(find_dropped(fb)) == 0
    assert search(fb, DMS).snr[0] > 45


def test_what_is_constant_throughout():
    x, _ = noise("8", 6)
    x[10:20] = 7
    found = search(bank(x), DMS)
    assert len(found.dropped) == 0
    found = search(bank(np.full_like(x, 9)), DMS)
    assert (len(found), found.dropped.tolist()) == (0, [[0, NSAMP, 0, NCHAN]])


@pytest.mark.slow
def test_lost_floats_are_filled():
    """A long stretch of NaN is dropped data; a few values that are not finite take the mean, as in a stream."""
    x, _ = noise("float32", 7)
    x[:, 6000:8000] = np.nan
    x[5, 3000:3010] = np.inf
    x[7, 100] = np.nan
    found = search(bank(x), DMS)
    assert (rectangles(found.dropped, x.shape).mean(axis=1) * NSAMP >= 2000).all()
    assert len(found) == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["array", "file", "packed", "reversed"])
def test_no_bit_depends_on_chunks_threads_or_layout(tmp_path, layout):
    bits = 2 if layout == "packed" else 8
    x, _ = noise(f"{bits} pulses", 8)
    x[:, 3000:3900] = x[10:70, 6500:8000] = 0
    x[:, 15500:] = 1
    whole = search(bank(x, nbits=bits), DMS, threads=1)
    assert len(whole.dropped) >= 3
    if layout == "array":
        other = bank(x, nbits=bits)
    elif layout == "reversed":
        other = Filterbank.from_array(x[::-1].T.copy().T, fch1=TOP + STEP * (NCHAN - 1), foff=-STEP, tsamp=TSAMP)
    else:
        write_fil(tmp_path / "a.fil", bank(x, nbits=bits), nbits=bits)
        other = Filterbank.open(tmp_path / "a.fil")
    for options in ({"threads": 1, "memory": 12 * 2**20}, {"threads": 2}):
        found = search(other, DMS, **options)
        assert np.array_equal(found.dropped, whole.dropped)
        for name, column in whole.columns().items():
            assert np.array_equal(column, found.columns()[name]), name


@pytest.mark.slow
def test_filled_samples_look_like_the_others():
    """Histograms of filled and good samples agree; a channel that is missing at first takes its level from later."""
    for kind in KINDS:
        x, bits = noise(kind, 9)
        offset = np.arange(NCHAN)[:, None] / NCHAN * (30 if kind in ("8", "int8", "uint16", "float32") else 0)
        y = (x + offset).astype(x.dtype)
        z = y.copy()
        z[:, 5000:9000] = 1
        z[:60, :4000] = 0
        filled = fill_dropped(bank(z, nbits=bits)).read()
        kept = np.ones(x.shape, bool)
        kept[:, 4990:9010] = kept[:60, :4010] = False
        assert np.array_equal(filled[kept], y[kept]) or kind == "skew"
        # each channel's mean is that of 1000 samples or more; the means of 60 channels or more are looked at together
        sigma = float(y.std())
        assert filled[:, 5000:9000].mean() == pytest.approx(y.mean(), abs=0.01 * sigma)
        assert filled[:60, :4000].mean() == pytest.approx(y[:60].mean(), abs=0.02 * sigma)
        assert filled[:, 5000:9000].astype(float).std() == pytest.approx(sigma, rel=0.02)
        rows = filled[:, 5000:9000].astype(float)
        rows -= rows.mean(axis=1, keepdims=True)
        assert abs((rows[:, 1:] * rows[:, :-1]).mean()) < 0.01 * sigma**2
        assert abs((rows[1:] * rows[:-1]).mean()) < 0.01 * sigma**2


def test_a_drift_goes_on_where_samples_are_missing():
    """A sine of 1.7 s and 0.4 sigma in all channels, of which 0.2 s are zeros: its level there is that beside them."""
    t = np.arange(8000) * 1e-3
    drift = 0.4 * 16 * np.sin(2 * np.pi * t / 1.7)
    x = np.random.default_rng(4).normal(96, 16, (64, 8000)) + drift
    for at in (2500, 3000, 3400, 5100):
        z = np.rint(x).clip(1, 255).astype(np.uint8)
        z[:, at : at + 200] = 0
        filled = fill_dropped(Filterbank.from_array(z, fch1=1500, foff=-4, tsamp=1e-3)).read()
        level = (filled[:, at : at + 200] - 96.0).mean(axis=0) - drift[at : at + 200]
        for part in np.split(level, 4):  # a level of the whole block is wrong by up to 0.4 sigma
            assert abs(part.mean()) < 0.15 * 16


@pytest.mark.slow
def test_masked_cells_make_no_candidates():
    """`rfi_mask` of data with 0.4 s of zeros; and cells of a mask at random, of channels of different levels."""
    x, _ = noise("8 pulses", 11)
    x = np.clip(x + np.arange(NCHAN, dtype=np.uint8)[:, None] // 4, 0, 255).astype(np.uint8)
    plain = search(bank(x), DMS)
    cells = np.random.default_rng(0).random((NCHAN, NSAMP // 400)) < 0.1
    cells[:, 26] = True  # 10.4 to 10.8 s, no pulse
    masked = search(bank(x), DMS, mask=Mask(cells, 400))
    assert len(plain) == 4
    y = x.copy()
    y[:, 10400:10800] = 0
    found = search(bank(y), DMS, mask=rfi_mask(bank(y)))
    for c in (masked, found):
        assert max(np.abs(t - np.array(TIMES)).min() for t in c.time) < 0.2  # within the sweep of a pulse
        for t in TIMES:
            a, b = (float(f.snr[np.abs(f.time - t).argmin()]) for f in (c, plain))
            assert a == pytest.approx(b, rel=0.2)  # a tenth of the cells is noise alone, up to a fifth of a pulse's


@pytest.mark.slow
def test_padding_at_the_end_of_a_psrfits_file(tmp_path):
    x, _ = noise("8 pulses", 12)
    raw = x.T[:, None].copy()
    raw[15100:] = 0
    found = search(Filterbank.open(psrfits(tmp_path / "a.fits", raw, 8, nsblk=500, freqs=bank(x).freqs)), DMS)
    assert found.dropped.tolist() == [[15100, NSAMP, 0, NCHAN]]
    np.testing.assert_allclose(np.sort(found.time), TIMES, atol=5e-3)


@pytest.mark.slow
def test_filters_before_the_search_get_filled_data():
    x, _ = noise("8 pulses", 13)
    x[20:75, 6000:8000] = 0
    filled = fill_dropped(bank(x))
    assert filled.lost.tolist() == [[6000, 8000, 20, 75]]
    found = search(zero_dm(filled), DMS[5:])
    assert found.dropped.tolist() == filled.lost.tolist()
    assert len(found) == 4
    clean = bank(noise("8", 14)[0])
    assert fill_dropped(clean) is clean
    with pytest.raises(TypeError, match="data is a ndarray, expected a Filterbank or the path of a file"):
        fill_dropped(x)


@pytest.mark.slow
def test_results_and_tables_say_what_was_dropped(tmp_path):
    x, _ = noise("8 pulses", 15)
    x[:, 6000:8000] = 96
    write_fil(tmp_path / "a.fil", bank(x))
    found = search(Filterbank.open(tmp_path / "a.fil"), DMS)
    assert "dropped data, filled with noise: 6 to 8 s (all channels)" in found.summary()
    assert found.live == pytest.approx(1 - 2 / 16)
    said = run("search", tmp_path / "a.fil", "--dm-max", 400, "--dm-step", 8, "-o", tmp_path / "a.ecsv")
    assert "6 to 8 s (all channels)" in said
    assert "6 to 8 s (all channels)" in (tmp_path / "a.ecsv").read_text()
    found.write(tmp_path / "a.singlepulse")
    assert "# dropped data, filled with noise: 6 to 8 s" in (tmp_path / "a.singlepulse").read_text()


def test_the_end_of_the_search_is_stated():
    """A pulse whose sweep is cut by the end of the data is not searched at its DM, and that is said."""
    x, _ = noise("8", 16)
    found = search(bank(x), DMS)
    late = 4149.377593 * DMS * ((TOP + STEP * (NCHAN - 1)) ** -2 - TOP**-2)
    np.testing.assert_allclose(found.until, 16 - late, atol=1.5e-3)
    line = f"not searched: pulses of DM 400, the highest of the plan, that arrive after {found.until[-1]:.6g} s"
    assert line in found.summary()
    assert found.remarks()[0] in found.summary()
    assert search(bank(x), [0.0]).remarks() == []
    beyond = search(bank(x), plan(bank(x), 395))  # a DM of the plan, not the one that was asked for
    assert beyond.dms[-1] > 395
    assert f"pulses of DM {beyond.dms[-1]:g}, the highest of the plan, that arrive" in beyond.summary()


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("tsamp", [2e-3, 5e-4, 1.1e-4, 1e-5])
@pytest.mark.parametrize("kind", ["8", "float32"])
def test_pieces_layouts_threads_and_gpus_find_the_same_dropouts(tsamp, kind, monkeypatch):
    """In pieces of any length, either layout, by threads, or on a GPU (the host shim; in parts, of two arrays)."""
    x, _ = noise(kind, 17)
    x[:, 700:760] = x[3, 9000:] = 5
    if kind == "float32":  # bits are compared: 0 is not -0, and a NaN equals itself
        x[4, 2000:3000] = 0
        x[4, 2000:3000:2] *= -1
        x[5, 4000:5000] = np.nan
    fb = Filterbank.from_array(x, fch1=TOP, foff=STEP, tsamp=tsamp)
    rng = np.random.default_rng(0)

    class Held(Filterbank):
        def resident(self, start, count):
            for i, first, n in self._ranges(start, count):
                yield Resident(self.readers[i].x[:, first : first + n].T, 0), self.readers[i].order

    whole = Watch(fb, 2)
    whole.quiet = True
    whole.see(0, x.T)
    seen = []
    for layout in (x.T, np.ascontiguousarray(x.T)):
        seen.append(Watch(fb, 1))
        seen[-1].quiet = True
        while seen[-1].at < NSAMP:
            start = max(0, seen[-1].at - int(rng.integers(0, 20)))  # what was seen before is read again
            seen[-1].see(start, layout[start : seen[-1].at + int(rng.integers(1, 900))])
    for parts, most, order in (
        ([x], 2**26, "forwards"), ([np.asfortranarray(x)], 2**26, "backwards"),
        ([x[:, :5000], x[:, 5000:]], 3001 * NCHAN * x.itemsize, "forwards"),
    ):  # fmt: skip
        monkeypatch.setattr(resident, "BYTES", most)
        seen.append(Watch(fb, 1))
        seen[-1].quiet = True
        readers = [Filterbank.from_array(p, fch1=TOP, foff=STEP, tsamp=tsamp).readers[0] for p in parts]
        resident.watch_resident(seen[-1], Held(readers), shim_runtime(order))
    stride = whole.stride
    pairs = np.arange(0, NSAMP - 1, stride)
    bits = x.view(f"u{x.itemsize}")
    same = bits[:, pairs] == bits[:, pairs + 1]
    for watch in (whole, *seen):
        assert np.array_equal(np.concatenate(watch._many), same.sum(axis=0))
        assert np.array_equal(watch._equal, same.sum(axis=1))
        assert np.array_equal(watch._longest, whole._longest)
        assert np.array_equal(watch._run, whole._run)
        assert watch.suspicious()
        watch.close()
    assert whole._run[3] == same[3, np.flatnonzero(~same[3])[-1] + 1 :].sum()


def test_a_channel_that_interference_clips_is_no_dropout():
    """A radar drives single channels to the ends of their range; other values, or many channels, are dropped data."""
    x, _ = noise("8", 18)
    x[40, 3000:3040] = x[90, 5000:5400] = 0
    x[41, 8000:8200] = 255
    assert len(find_dropped(bank(x))) == 0
    x[40, 12000:12040] = 77
    x[90, 14000:14600] = 0
    x[30:34, 3000:3040] = 0
    assert find_dropped(bank(x)).tolist() == [
        [3000, 3040, 30, 34], [3000, 3040, 40, 41], [12000, 12040, 40, 41], [14000, 14600, 90, 91],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["parkes_1bit", "parkes_2bit", "parkes_4bit", "parkes_8bit_1", "parkes_8bit_2", "tutorial"]
)
def test_real_data_with_interference_have_no_dropouts(name, test_data):
    with Filterbank.open(test_data / "dedispersion" / f"{name}.fil") as fb:
        assert len(find_dropped(fb)) == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_threads_share_the_channels(dtype, monkeypatch):
    """They find and fill the same as one thread, also in slices of other lengths."""
    rng = np.random.default_rng(8)
    x = np.rint(rng.normal(100, 8, (200, 9000))).astype(dtype)
    for k in range(25):
        at, low = rng.integers(0, 8800), rng.integers(0, 150)
        x[low if k % 2 else 0 : low + 50 if k % 2 else 200, at : at + rng.integers(20, 150)] = 7
    fb = bank(x)
    with TaskPool(1) as one, TaskPool(3) as three:
        expected = dropouts.dropped_rectangles(fb, one)
        monkeypatch.setattr(dropouts, "SLICE", 100_000)
        found = dropouts.dropped_rectangles(fb, three)
    assert len(expected) >= 20
    assert found.tolist() == expected.tolist()
    filled = [repaired(fb, found, None, 2048, threads).read() for threads in (1, 3)]
    assert (filled[0] == filled[1]).all()
    assert (filled[0] != x).any()


@pytest.mark.parametrize("kind", ["8", slow("float32"), slow("2")])
def test_several_threads_read_repaired_files_into_memory_of_the_caller(kind, tmp_path):
    """They read the samples that one thread reads, and if the file has whole bytes, into their memory."""
    x, bits = noise(kind, 3)
    for at in range(500, NSAMP, 1300):
        x[:, at : at + 60] = 0
    x[20:75, 9000:9400] = 0
    write_fil(tmp_path / "x.fil", bank(x, nbits=bits))
    with Filterbank.open(tmp_path / "x.fil") as fb:
        lost = find_dropped(fb)
        assert len(lost) >= 12
        expected = repaired(bank(x, nbits=bits), lost, None, 2048, 1).read()
        assert (expected != x).any()
        filled = repaired(fb, lost, None, 2048, 2)
        assert filled.takes_room
        assert not repaired(bank(x, nbits=bits), lost, None, 2048).takes_room

        def read(start):
            count = min(3000, NSAMP - start)
            room = Room(np.empty(count * NCHAN * x.itemsize, np.uint8))
            ((rows, order),) = filled.raw(start, count, room)
            assert room.holds(rows) == (kind != "2")
            assert (order == np.arange(NCHAN)).all()
            return np.array_equal(rows.T, expected[:, start : start + count])

        starts = [*range(0, NSAMP, 3000), *range(15000, -1, -2500)]
        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(read, starts))


def peak(work):
    """Largest number of bytes that were allocated at a time in a call."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_memory_of_a_search_for_dropped_data_does_not_grow_with_its_slices(tmp_path, monkeypatch):
    """Results of slices are used as they come."""
    nchan, step = 512, 64
    monkeypatch.setattr(dropouts, "SLICE", nchan * step)
    rng, used = np.random.default_rng(0), []
    for nsamp in (4_000, 20_000):
        x = rng.integers(0, 256, (nchan, nsamp), np.uint8)
        write_fil(tmp_path / f"{nsamp}.fil", Filterbank.from_array(x, fch1=TOP, foff=-1.0, tsamp=TSAMP))
        with Filterbank.open(tmp_path / f"{nsamp}.fil") as fb, TaskPool(2) as pool:
            assert not len(dropouts.dropped_rectangles(fb, pool))  # compiles
            used.append(peak(lambda fb=fb, pool=pool: dropouts.dropped_rectangles(fb, pool)))
    assert used[1] - used[0] < 8 * nchan * 16_000 // step  # numbers of equal pairs, by channel, of all further slices


def test_the_memory_of_a_reader_of_repaired_data_does_not_grow_with_its_block(monkeypatch):
    """Where half of a block is missing, the good samples are counted in slices."""
    monkeypatch.setattr(repair, "SLICE", 64 * NCHAN)
    fb = bank(np.ones((NCHAN, NSAMP), np.uint8))
    lost = np.array([[1000, 9000, 0, NCHAN]])
    assert peak(lambda: repaired(fb, lost, None, NSAMP, 1)) < NCHAN * 8000 // 4


def test_few_threads_find_levels_at_a_time_if_there_are_many_channels(monkeypatch):
    """Each reads all channels beside a stretch."""
    x, bits = noise("8", 5)
    lost = np.array([[at, at + 60, 0, NCHAN] for at in range(500, NSAMP, 1300)])
    expected = repaired(bank(x, nbits=bits), lost, None, 2048, 1).read()
    find, lock, running, most = RepairedReader._beside, threading.Lock(), [0], []

    def beside(self, rect, held):
        with lock:
            running[0] += 1
            most.append(running[0])
        time.sleep(0.002)
        found = find(self, rect, held)
        with lock:
            running[0] -= 1
        return found

    monkeypatch.setattr(RepairedReader, "_beside", beside)
    monkeypatch.setattr(repair, "KEPT", 1)
    assert (repaired(bank(x, nbits=bits), lost, None, 2048, 4).read() == expected).all()
    assert len(most) >= len(lost)
    assert max(most) == 1


def test_a_read_that_is_interrupted_leaves_the_reader_usable(monkeypatch):
    """Also if the interrupt comes when the levels of the first of several blocks are known already."""
    x, bits = noise("8", 5)
    lost = np.array([[at, at + 60, 0, NCHAN] for at in range(500, NSAMP, 1300)])
    filled = repaired(bank(x, nbits=bits), lost, None, 2048, 1)
    expected, learn = filled.read(), RepairedReader._learned

    class Interrupted(dict):
        def items(self):
            yield next(iter(super().items()))
            raise KeyboardInterrupt

    filled = repaired(bank(x, nbits=bits), lost, None, 2048, 1)
    monkeypatch.setattr(RepairedReader, "_learned", lambda *given: Interrupted(learn(*given)))
    with pytest.raises(KeyboardInterrupt):
        filled.read()
    monkeypatch.undo()
    assert (filled.read() == expected).all()


def test_threads_that_replace_values_that_are_not_finite_get_the_means_of_their_block(monkeypatch):
    """The means of a block are kept; another thread may replace them at any time."""
    x = np.stack([np.repeat([1.0, 5.0], 100)] * 2).astype(np.float32)
    x[:, ::10] = np.nan
    data = Cleaned(bank(x), None, 100)

    class Last(Cleaned):
        """Another thread stores other means after each of this one."""

        @property
        def _last(self):
            return vars(self).get("last")

        @_last.setter
        def _last(self, value):
            vars(self)["last"] = value and (1 - value[0], 6 - value[1])

    assert [data._mean(number).tolist() for number in (0, 1)] == [[1, 1], [5, 5]]
    assert [Last(bank(x), None, 100)._mean(number).tolist() for number in (0, 1)] == [[1, 1], [5, 5]]
