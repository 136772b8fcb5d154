"""The default cleaning: residues of interference, noise and bursts that stay, equal results of files and streams."""

from __future__ import annotations

import numpy as np
import pytest
from tests.marks import slow

from skysieve.core.cpu import jit
from skysieve.dedispersion import Filterbank, Noise, fake, inject_pulses, read_rfifind, search, write_rfifind
from skysieve.dedispersion.clean.blocks import cpu_cleaner, cpu_impulses
from skysieve.dedispersion.clean.blocks.cleaner import Cleaner
from skysieve.dedispersion.clean.blocks.reader import CleanReader
from skysieve.dedispersion.clean.blocks.scratch import SpareScratch, scratch_array
from skysieve.dedispersion.clean.blocks.steps import cleaning_steps
from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.data.observation import DM_CONSTANT
from skysieve.dedispersion.injections.interference import interference
from skysieve.dedispersion.injections.pulses import Pulse
from skysieve.dedispersion.stream.search.search import StreamSearch

BAND = {"nchan": 64, "tsamp": 1e-3, "fch1": 1500.0, "foff": -4.0}
DMS = np.arange(0.0, 400.0, 8.0)


def data(kinds=(), seconds=8.0, snr=25.0, seed=1) -> tuple[Filterbank, np.ndarray]:
    """Noise with pulses of DM 200 at 2.5 and 5.5 s, and interference; which samples that spoils."""
    x = np.ascontiguousarray(
        fake(duration=seconds, times=[2.5, 5.5], dm=200, width=6e-3, snr=snr, seed=seed, **BAND).read().T
    )
    spoiled = interference(x, kinds, tsamp=BAND["tsamp"], level=96, sigma=16, seed=seed)
    f = {name: BAND[name] for name in ("fch1", "foff", "tsamp")}
    return Filterbank.from_array(x.T, **f), spoiled


def cleaned(fb: Filterbank, steps=True) -> tuple[np.ndarray, Cleaner]:
    cleaner = Cleaner(fb.observation, fb.dtype, fb.maximum, cleaning_steps(steps), (), DM_CONSTANT)
    return CleanReader(fb, cleaner).read(0, fb.nsamp), cleaner


def test_noise_and_pulses_are_not_changed():
    fb, _ = data(snr=50)
    out, cleaner = cleaned(fb)
    assert (out == fb.read().T).all()
    assert not any(cleaner.records.removed().parts.values())


@pytest.mark.parametrize("means", [np.logspace(0, 5, 64), np.linspace(-300, 300, 64), np.zeros(64)])
def test_levels_of_channels_do_not_affect_their_autocorrelation(means):
    """A channel is not bad for a high mean; the autocorrelation is that of the samples less their mean."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((9216, 64)) + rng.permutation(means)).astype(np.float32)
    fb = Filterbank.from_array(x.T, fch1=1500.0, foff=-3.0, tsamp=1e-3)
    assert not search(fb, [0.0, 10.0], device="cpu").removed.mask.cells.any()
    counts = np.full(9, 1024)
    total, square, lag = (np.zeros((9, 64)) for _ in range(3))
    cpu_cleaner.moments(x, 1024, np.float64(0), total, square, lag)
    *_, rho = cpu_cleaner.level_of(total, square, lag, cpu_cleaner.ends_of(x, counts), counts)
    pieces = x.astype(np.float64).reshape(9, 1024, 64)
    off = pieces - pieces.mean(axis=1, keepdims=True)
    up = (off[:, 1:] * off[:, :-1]).sum(axis=(0, 1)) + pieces.var(axis=1).sum(axis=0)
    expected = up / (1023 * pieces.var(axis=1).sum(axis=0))
    # sums of products of 1e10, rounded 1e3 times, over the variance of a piece
    np.testing.assert_allclose(rho, expected, rtol=0, atol=1e3 * 2.0**-53 * np.abs(means).max() ** 2 + 1e-12)


def test_bad_channels_are_found():
    fb, spoiled = data("bad")
    out, cleaner = cleaned(fb)
    removed = cleaner.records.removed()
    truth = spoiled.all(axis=0)
    assert (removed.cells[truth].mean(axis=1) > 0.5).mean() > 0.9
    assert removed.cells[~truth].mean() < 0.01
    assert (out[:, ~truth] == fb.read().T[:, ~truth]).mean() > 0.99


def test_impulses_go_and_dispersed_pulses_stay():
    x, _ = data(snr=40)
    rows = np.array(x.read().T)
    level = rows[4000:4004].astype(float)
    rows[4000:4004] = np.clip(level + 30, 0, 255).astype(np.uint8)
    fb = Filterbank.from_array(rows.T, fch1=1500.0, foff=-4.0, tsamp=1e-3)
    out, cleaner = cleaned(fb)
    windows = cleaner.records.removed().windows
    assert len(windows) == 1
    assert windows[0, 0] <= 4000
    assert windows[0, 1] >= 4004
    assert (out[:3900] == rows[:3900]).all()
    assert (out[4100:] == rows[4100:]).all()
    assert abs(out[4000:4004].mean() - 96) < 6 * 16 / np.sqrt(256)


@pytest.mark.few
@pytest.mark.parametrize("frequency", [50, 60, 100])
def test_pulses_are_found_in_hum_of_the_mains(frequency):
    """Each half of its periods looks like an impulse.  Without them all, less than half of the data would be left."""
    fb, _ = data()
    rows = fb.read().T + 16 * np.sin(2 * np.pi * frequency * 1e-3 * np.arange(fb.nsamp))[:, None]
    humming = Filterbank.from_array(np.rint(rows).clip(0, 255).astype(np.uint8).T, fch1=1500.0, foff=-4.0, tsamp=1e-3)
    plain, found = (search(x, DMS, threads=1) for x in (fb, humming))
    for at in (2.5, 5.5):
        expected, snr = (x.snr[(np.abs(x.time - at) < 0.02) & (np.abs(x.dm - 200) < 30)].max() for x in (plain, found))
        assert snr > 0.9 * expected
    removed = found.removed
    assert removed.hum >= 10
    assert removed.parts["impulses"] < 0.1
    assert f"hum in {removed.hum} blocks of 512 samples was not removed" in removed.summary()
    assert removed.summary() in found.remarks()


@pytest.mark.parametrize("piece", [100, 3000, 8192])
def test_each_block_is_cleaned_once_if_values_are_missing(monkeypatch, piece):
    """The mean that replaces a NaN is that of a block of the noise, which is longer than one of the cleaning.

    It is read while the piece with the NaN is held.
    """
    x = np.random.default_rng(2).standard_normal((64, 8192)).astype(np.float32)
    x[::7, 10::300] = np.nan
    fb, once, starts = Filterbank.from_array(x, fch1=1500.0, foff=-4.0, tsamp=1e-3), Cleaner.clean, []

    def clean(self, start, *more):
        starts.append(start)
        return once(self, start, *more)

    monkeypatch.setattr(Cleaner, "clean", clean)
    cleaner = Cleaner(fb.observation, fb.dtype, fb.maximum, cleaning_steps(True), (), DM_CONSTANT)
    source = Cleaned(Filterbank([CleanReader(fb, cleaner, again=3000)]), None, 3000)
    for at in range(0, 8192, piece):
        for rows, _ in source.raw(at, min(piece, 8192 - at)):
            assert np.isfinite(rows).all()
    assert starts == list(range(0, 8192, cleaner.block))


@pytest.mark.parametrize("every", [60, 100])
def test_impulses_of_a_fast_radar_are_no_hum(every):
    fb, _ = data()
    rows = fb.read().T.astype(int)
    for at in range(20, len(rows), every):
        rows[at : at + 3] += 40
    radar = Filterbank.from_array(rows.clip(0, 255).astype(np.uint8).T, fch1=1500.0, foff=-4.0, tsamp=1e-3)
    _, cleaner = cleaned(radar)
    removed = cleaner.records.removed()
    assert removed.hum == 0
    assert len(removed.windows) >= 0.9 * len(rows) / every


@pytest.mark.parametrize(
    ("dm", "width", "snr", "bump"), [(20, 3, 14, 16), (20, 8, 10, 16), (36, 3, 14, 30), (36, 8, 10, 30)]
)
def test_a_pulse_on_a_faint_bump_stays_in_a_wide_band(dm, width, snr, bump):
    # half of the band from 700 to 4030 MHz arrives within 6% of the sweep
    obs = fake(nchan=512, duration=0.1, tsamp=512e-6, fch1=4030.0, foff=-6.5).observation
    cleaner = Cleaner(obs, np.dtype(np.uint8), 255, ["impulses"], (), DM_CONSTANT)
    G, at = cleaner.groups, 300
    cleaner._used = np.full(G, 16.0)
    series = np.zeros((G, 1024), np.float32)
    series[:, at - bump // 2 : at + bump // 2] += 5 / np.sqrt(G * bump)
    impulse = series * 2
    for line, late in zip(series, np.rint(dm * cleaner._unit * cleaner._phase).astype(int), strict=True):
        line[at + late : at + late + width] += snr / np.sqrt(G * width)
    assert not len(cleaner._examine(series, 1024))
    cleaner.reset()
    cleaner._used = np.full(G, 16.0)
    assert len(cleaner._examine(impulse, 1024)) == 1


def without_mean(rows, dtype) -> np.ndarray:
    """Samples, shape (samples, channels), without the mean of each channel; whole numbers in sixteenths."""
    x = rows - rows.mean(axis=0)
    return np.rint(16 * x).astype(dtype) if np.dtype(dtype).kind == "i" else x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, slow(np.int16), slow(np.float32)])
def test_steps_of_the_gain_are_undone(dtype):
    x = np.random.default_rng(0).normal(96, 16, (8192, 64))
    x[3000:6000] *= 1.1
    rows, unit = np.rint(x).clip(0, 255).astype(np.uint8), 16 if dtype == np.int16 else 1
    if dtype != np.uint8:
        rows = without_mean(rows, dtype)
    out, cleaner = cleaned(Filterbank.from_array(rows.T, fch1=1500, foff=-4, tsamp=1e-3))
    assert [at for at, _ in cleaner.records.jumps] == [pytest.approx(3000, abs=3), pytest.approx(6000, abs=3)]
    before, after = out[2000:3000], out[3100:5900]
    assert abs(after.mean() - before.mean()) < 0.02 * 96 / 2 * unit
    assert abs(out[6100:].mean() - before.mean()) < 0.02 * 96 / 2 * unit
    assert after.std(axis=0).mean() == pytest.approx(before.std(axis=0).mean(), rel=0.02)  # its error is 0.008


def test_the_unit_of_floats_changes_no_step_of_the_gain():
    """A power of 2 as a factor changes no bit but the exponents."""
    fb, _ = data("gain", seconds=5.7, seed=2)
    rows, made = fb.read().astype(np.float32), []
    for factor in (np.float32(1), np.float32(2.0**-60)):
        out, cleaner = cleaned(Filterbank.from_array(rows * factor, fch1=1500, foff=-4, tsamp=1e-3))
        made.append((cleaner.records.jumps, out / factor))
    assert len(made[0][0]) > 0
    assert made[0][0] == made[1][0]
    assert np.array_equal(made[0][1], made[1][1])


@pytest.mark.slow
@pytest.mark.parametrize("impulses", [0, 27])
def test_steps_among_impulses_are_undone(impulses):
    """The noise beside a step is that without impulses, which are removed only later.

    With 64 channels and 250 samples on each side its change, 0.049, is known to 0.010, so that the rule leaves a step
    now and then: 1 of these 12, measured.  Where impulses count as noise and the median
    of the channels is taken, it leaves 8 among impulses and 3 without them.
    """
    undone = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = rng.normal(96, 8, (8192, 64))
        x[4500:] *= 1.05
        for at in rng.permutation(8192)[:impulses]:
            x[at : at + 3] += 32
        fb = Filterbank.from_array(np.rint(x).clip(0, 255).astype(np.uint8).T, fch1=1500, foff=-4, tsamp=1e-3)
        _, cleaner = cleaned(fb, "gain")
        undone += any(abs(at - 4500) < 40 for at, _ in cleaner.records.jumps)
    assert undone >= 10


@pytest.mark.parametrize(("bits", "dtype"), [(4, np.uint8), (8, np.uint8), slow(8, np.int16), (8, np.float32)], ids=str)
def test_changes_of_the_level_alone_are_no_steps_of_the_gain(bits, dtype):
    """A level that rises for 0.4 s or for good, while the noise stays: such bumps are in recordings of Parkes."""
    unit = 1.3 if bits == 4 else 20.0
    x = np.random.default_rng(2).normal(7.5 if bits == 4 else 128, unit, (8192, 64))
    x[3000:3400] += 0.6 * unit
    x[5000:] += 0.6 * unit
    rows = np.rint(x).clip(0, 2**bits - 1).astype(np.uint8)
    if dtype != np.uint8:
        rows = without_mean(rows, dtype)
    out, cleaner = cleaned(Filterbank.from_array(rows.T, fch1=1500, foff=-4, tsamp=1e-3), "gain")
    assert cleaner.records.jumps == []
    assert np.array_equal(out, rows)


@pytest.mark.parametrize("mean", [True, False])
def test_bumps_of_a_recording_in_float32_are_no_steps_of_the_gain(test_data, mean):
    """As in its 8-bit form: some were taken for steps, and of pulses of S/N 50 half were lost."""
    with Filterbank.open(test_data / "dedispersion" / "parkes_8bit_1.fil") as fb:
        rows = fb.read().T.astype(np.float32)
        given = Filterbank.from_array((rows if mean else without_mean(rows, np.float32)).T, freqs=fb.observation.freqs,
                                      tsamp=fb.observation.tsamp)  # fmt: skip
    assert cleaned(given, "gain")[1].records.jumps == []


@pytest.mark.few
@pytest.mark.parametrize(("slope", "second"), [(0.6, None), (-0.6, None), (0.0, 3150)], ids=str)
def test_steps_are_measured_beside_drifts_and_other_steps(slope, second):
    """A drift of 0.6 sigma a second in all channels; or a step of the upper half of the band 0.15 s after the first.

    The residue of a step scatters by 1.2 (measured: 0.2 to 2.0), so the test takes the mean of three.
    """
    t = np.arange(8192) * 1e-3
    left = []
    for seed in (1, 2, 3):
        x = np.random.default_rng(seed).normal(96, 16, (8192, 64)) + (16 * slope * (t - 3))[:, None]
        gain = np.ones((8192, 64))
        gain[3000:] *= 1.1
        if second is not None:
            gain[second:, :32] *= 1.1
        wanted = x.copy()
        x *= gain
        fb = Filterbank.from_array(np.rint(x).clip(0, 255).astype(np.uint8).T, fch1=1500, foff=-4, tsamp=1e-3)
        out, cleaner = cleaned(fb, "gain")
        assert [at for at, _ in cleaner.records.jumps] == [pytest.approx(at, abs=3) for at in (3000, second) if at]
        rest = (out - wanted)[:, :32].mean(axis=1)
        far, near = rest[2850:2990].mean(), rest[3010:3140].mean()
        left.append((near - far, 0.0 if second is None else rest[3160:3290].mean() - near))
    assert (np.abs(np.mean(left, axis=0)) < 0.07 * 16).all()  # the step is 0.6 sigma


@pytest.mark.few
@pytest.mark.parametrize("snr", [40, 80])
def test_the_edges_of_a_long_rectangular_pulse_are_no_steps_of_the_gain(snr):
    """Each channel of it looks like a channel with a step, but the channels step at different times."""
    fb = fake(
        duration=8, nchan=64, fch1=1500, foff=-4.6875, tsamp=512e-6, times=[1.5, 4.0], dm=50, width=0.2, snr=snr, seed=1
    )
    with_gain, without = (
        search(fb, np.arange(0, 100, 4.0), threads=1, max_width=0.5, clean=c) for c in ("gain", False)
    )
    assert len(with_gain) == 2
    np.testing.assert_array_equal(with_gain.snr, without.snr)
    assert (cleaned(fb, "gain")[0] == fb.read().T).all()


@pytest.mark.few
@pytest.mark.parametrize("shift", [0.0, 0.064, 0.128, 0.32])
def test_bright_pulses_are_no_steps_of_the_gain(shift):
    """Their sweep, 0.17 s, is as long as the pieces by which steps are judged."""
    times = [t + shift for t in (2.0, 4.5, 7.2, 9.4)]
    fb = fake(duration=12, times=times, dm=200, width=20e-3, snr=60, seed=5, **BAND)
    out, cleaner = cleaned(fb, "gain")
    assert cleaner.records.jumps == []
    assert (out == fb.read().T).all()


def bright(dm, sizes, nchan=256, nbits=8, **options) -> tuple[Filterbank, list[tuple[float, float, float]]]:
    """Noise with a pulse of each size (S/N, seconds), 2.4 s apart; time, width and S/N of each."""
    made = [(2.0 + 2.4 * i, width, snr) for i, (snr, width) in enumerate(sizes)]
    noise = Noise(nchan, foff=-300 / nchan, tsamp=512e-6, nbits=nbits, duration=2.4 * len(sizes) + 1.5).segment(1)
    pulses = [Pulse(dm=dm, time=t, width=width, snr=snr, **options) for t, width, snr in made]
    return inject_pulses(noise, pulses)[0], made


def check_bright(dm, sizes, **options):
    """The default search finds each pulse at 0.95 of the S/N that the bare search has, and of the injected one."""
    fb, made = bright(dm, sizes, **options)
    dms = np.linspace(0.8 * dm, 1.2 * dm, 21)
    found, bare = (search(fb, dms, threads=1, **how) for how in ({}, {"clean": False}))
    for t, width, snr in made:
        best, without = (c.snr[np.abs(c.time - t) < 0.02 + width].max(initial=0) for c in (found, bare))
        assert best >= 0.95 * without > 0, (t, width, snr)
        if options.get("nbits") == 32:  # 8-bit samples saturate; S/N has a standard error of 1
            assert best >= 0.95 * snr - 3, (t, width, snr)


@pytest.mark.slow
@pytest.mark.parametrize("dm", [slow(30), 200])
def test_bright_pulses_stay(dm):
    """The step for narrow-band signals, and that for the gain, removed some of these."""
    check_bright(dm, [(20, 1e-3), (200, 1e-3), (1000, 1e-3), (400, 5e-3), (1000, 20e-3), (400, 50e-3)], nchan=128)


@pytest.mark.slow
@pytest.mark.parametrize("nbits", [8, 32])
@pytest.mark.parametrize("band", [(0.0, 1.0), (0.5, 1.0), (0.0, 0.25)], ids=str)
@pytest.mark.parametrize("dm", [30, 200, 500])
def test_bright_pulses_of_all_sizes_stay(dm, band, nbits):
    widths = (1e-3, 5e-3, 20e-3) if band == (0.0, 1.0) or dm > 30 else (1e-3,)  # a sweep of a width at least
    check_bright(dm, [(snr, w) for snr in (20, 50, 100, 200, 400, 1000, 3000) for w in widths], nbits=nbits, band=band)


@pytest.mark.few
@pytest.mark.parametrize("snr", [200, 1000])
def test_the_scintles_of_a_bright_pulse_stay(snr):
    """Its brightness differs by scintles of 4.7 MHz, as an exponential distribution."""
    fb, _ = bright(200, [(snr, 5e-3)])
    noise = Noise(256, foff=-300 / 256, tsamp=512e-6, duration=3.9).segment(1).read()
    gains = np.repeat(np.random.default_rng(2).exponential(1, 64), 4)[:, None]
    x = np.rint(noise + (fb.read() - noise.astype(float)) * gains).clip(0, 255).astype(np.uint8)
    data = Filterbank.from_array(x, freqs=fb.freqs, tsamp=fb.tsamp)
    dms = np.linspace(180, 220, 21)
    found, bare = (search(data, dms, threads=1, **how).snr.max(initial=0) for how in ({}, {"clean": False}))
    assert found >= 0.95 * bare > 100


@pytest.mark.few
@pytest.mark.parametrize("kinds", [(), "bad", "impulses", "gain", ("narrow", "radar")], ids=str)
def test_files_and_streams_are_cleaned_to_the_same_bits(kinds):
    fb, _ = data(kinds)
    offline = search(fb, DMS, block=1.024, threads=1)
    rows = fb.read().T
    for size in (700, 3001):
        with StreamSearch(fb.observation, DMS, block=1.024, threads=1) as live:
            found = [one for at in range(0, len(rows), size) for one in live.feed(at, rows[at : at + size])]
            found += live.finish()
            snr = np.concatenate([one.columns["snr"] for one in found])
            assert sorted(snr.tolist(), reverse=True) == offline.snr.tolist()
            if kinds != "bad":  # a stream hides channels that are constant from the start, and does not count them
                assert live.removed.parts == offline.removed.parts
            assert (live.removed.windows == offline.removed.windows).all()


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["all", "impulses"])
@pytest.mark.parametrize("dtype", [np.uint8, *map(slow, (np.uint16, np.float32))])
def test_few_data_are_cleaned_by_the_interpreter_to_the_same_bits(monkeypatch, kinds, dtype):
    made, _ = data(kinds, seconds=6.3)
    values = made.read() if dtype == np.uint8 else (made.read() * np.float32(1.7)).astype(dtype)
    fb = Filterbank.from_array(values, fch1=1500.0, foff=-4.0, tsamp=1e-3)
    compiled, one = cleaned(fb)
    run = []

    def interpreted(kernel, steps, worth=1.0):
        run.append(kernel)
        return jit.interpreted(kernel)

    monkeypatch.setattr(jit, "interpreted_if_small", interpreted)
    monkeypatch.setattr(Cleaner, "few", True)
    monkeypatch.setattr(Cleaner, "waits", True)
    ours, other = cleaned(fb)
    assert {cpu_impulses.detect, cpu_impulses.remove, cpu_impulses.find_step, cpu_cleaner.moments} <= set(run)
    assert ours.tobytes() == compiled.tobytes()
    assert len(one.records.removed().windows) > 0
    assert (one.records.removed().windows == other.records.removed().windows).all()
    assert one.records.removed().parts == other.records.removed().parts


def test_reading_in_pieces_changes_no_bit():
    fb, _ = data("all")
    whole, cleaner = cleaned(fb)
    reader = CleanReader(fb, cleaner)
    parts = [reader.read(at, min(333, fb.nsamp - at)) for at in range(0, fb.nsamp, 333)]
    assert (np.concatenate(parts) == whole).all()
    assert (reader.read(100, 50) == whole[100:150]).all()


@pytest.mark.parametrize("kinds", ["gain", "all"])
def test_samples_that_are_read_again_are_as_they_were_cleaned(kinds):
    fb, _ = data(kinds)
    out, cleaner = cleaned(fb)
    rows = fb.read().T
    again, gone = cleaner.regained(0, rows), cleaner.records.replaced(0, fb.nsamp)
    assert (again == out)[~gone].all()
    assert cleaner.records.jumps
    assert 0 <= gone.mean() < 0.5
    assert (cleaner.regained(777, rows[777:2100]) == again[777:2100]).all()
    assert (cleaner.records.replaced(777, 2100) == gone[777:2100]).all()


@pytest.mark.parametrize(("kinds", "rows"), [((), 5), ("bad", 1), ("all", 0)])
def test_channels_that_are_replaced_throughout_are_one_row(kinds, rows):
    fb, _ = data(kinds)
    _, cleaner = cleaned(fb)
    known = 0
    for start, stop in ((0, 300), (100, 1200), (600, 2600), (4000, 8000), (7000, 8500)):
        row, gone = cleaner.records.replaced_channels(start, stop), cleaner.records.replaced(start, stop)
        assert row is None or (gone == row).all()
        known += row is not None
    assert known == rows


def test_few_channels_and_single_series_are_left_alone():
    x = np.random.default_rng(0).integers(80, 120, (8, 4000)).astype(np.uint8)
    fb = Filterbank.from_array(x, fch1=1500, foff=-4, tsamp=1e-3)
    assert search(fb, [0.0, 10.0], threads=1).removed is None


def test_steps_are_chosen_by_name():
    assert cleaning_steps("impulses") == ("impulses",)
    with pytest.raises(ValueError, match="clean='hail'"):
        cleaning_steps("hail")
    fb, _ = data("bad")
    assert search(fb, DMS, threads=1, clean=False).removed is None
    assert search(fb, DMS, threads=1, clean=["impulses"]).removed.steps == ("impulses",)


def test_masks_are_written_as_rfifind_does(tmp_path):
    fb, _ = data("bad")
    mask = search(fb, DMS, threads=1).removed.mask
    write_rfifind(mask, tmp_path / "a.mask", fb)
    again = read_rfifind(tmp_path / "a.mask", fb)
    assert again.block == mask.block
    assert (again.cells == mask.cells).all()


@pytest.mark.parametrize(("clean", "steps"), [(None, 4), (True, 4), ("all", 4), (False, 0), ("none", 0), ("cells", 1)])
def test_cleaning_is_the_default(clean, steps):
    assert len(cleaning_steps(clean)) == steps


def test_a_single_group_of_channels_has_no_impulses():
    """Nothing in it shows whether a pulse is dispersed."""
    x = np.random.default_rng(1).normal(96, 16, (2000, 24))
    x[900:904] += 40
    fb = Filterbank.from_array(np.rint(x).clip(0, 255).astype(np.uint8).T, fch1=1500, foff=-4, tsamp=1e-3)
    out, cleaner = cleaned(fb)
    assert cleaner.steps == ("gain", "channels", "cells")
    assert (out == fb.read().T).all()


def test_what_was_removed_is_saved_with_the_candidates(tmp_path):
    found = search(data("bad")[0], np.arange(0, 300, 50.0), clean=True, threads=1)
    found.save(tmp_path / "found.npz")
    again = type(found).load(tmp_path / "found.npz")
    assert again.removed.steps == found.removed.steps == cleaning_steps(True)
    assert np.array_equal(again.removed.cells, found.removed.cells)
    assert again.removed.parts == found.removed.parts


@pytest.mark.slow
def test_steps_of_a_part_of_the_band_are_undone_on_a_drift():
    """The level of all channels drifts by 0.2 sigma in 1.7 s; the gain of a quarter of the band steps by 5%.

    A step is seen against the rest of the band.  9 of these 12 are found, and 5 in the sums of the quarter alone.
    """
    t = np.arange(24000) * 1e-3
    x = np.random.default_rng(4).normal(96, 16, (len(t), 256)) + 3.2 * np.sin(2 * np.pi * t / 1.7)[:, None]
    wanted = [1500 + 1830 * i for i in range(12)]
    for first, last in zip(wanted[::2], wanted[1::2], strict=True):
        x[first:last, 64:128] *= 1.05
    fb = Filterbank.from_array(np.rint(x).clip(0, 255).astype(np.uint8).T, fch1=1500, foff=-1, tsamp=1e-3)
    _, cleaner = cleaned(fb, "gain")
    found = np.array([at for at, _ in cleaner.records.jumps], np.float64)
    assert sum(np.abs(found - at).min(initial=np.inf) < 20 for at in wanted) >= 8
    assert len(found) <= 13
    assert all(count <= 96 for _, count in cleaner.records.jumps)


def test_radar_in_data_of_few_channels_is_removed_without_the_rest_of_the_band():
    """8 of 64 channels, across the middle of a quarter: three in eight channels are replaced at most."""
    rng = np.random.default_rng(5)
    x = rng.normal(96, 16, (8192, 64))
    for at in range(100, 8192, 120):
        x[at : at + 4, 12:20] += 64
    fb = Filterbank.from_array(np.rint(x).clip(0, 255).astype(np.uint8).T, fch1=1500, foff=-4, tsamp=1e-3)
    _, cleaner = cleaned(fb, "impulses")
    windows = cleaner.records.removed().windows
    assert len(windows) >= 60
    assert np.median(windows[:, 3] - windows[:, 2]) <= 24
    first, low, high = cleaner.records.impulses(0, 8192).T
    assert (np.diff(first) >= 0).all()
    counts = np.array([((low <= c) & (c < high)).sum() for c in range(64)])
    assert counts[12:20].min() >= 60
    assert counts[32:].max() <= 3
    assert (2 * (high - low) < 64).all()
    part = cleaner.records.impulses(1000, 5000)
    assert part.tolist() == [row for row in cleaner.records.impulses(0, 8192).tolist() if 1000 <= row[0] < 5000]


def test_spare_scratch_is_never_short():
    spare, memory = SpareScratch(), {}
    assert spare.take() == {}
    scratch_array(memory, "a", (2, 3), np.float32)[:] = 7
    spare.give_back(memory)
    assert spare.take() is memory
    assert (scratch_array(memory, "a", (5,), np.float32) == 7).all()
    assert spare.take() == {}
