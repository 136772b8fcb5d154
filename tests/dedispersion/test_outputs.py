"""Candidates in files and pictures, cut-outs, and masks of interference."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from tests.marks import no_warnings

from skysieve.dedispersion import (
    BadFile,
    Filterbank,
    Mask,
    channel_statistics,
    cutout,
    dedisperse,
    fake,
    read_rfifind,
    rfi_mask,
    search,
    write_fil,
    z_dot,
    zero_dm,
)
from skysieve.dedispersion.data.observation import packed_to_degrees
from skysieve.dedispersion.single_pulse.cutouts import write_cutouts


@pytest.fixture(scope="module")
def data():
    made = fake(
        nchan=128, duration=8, tsamp=1e-3, fch1=1500, foff=-2, dm=150, times=[1.0, 3.5, 6.0], width=8e-3, snr=25,
        seed=5, source="J0000+00",
    )  # fmt: skip
    return Filterbank.from_array(
        made.read(), freqs=made.freqs, tsamp=made.tsamp, tstart=58000.5, source="J0000+00", telescope="Fake"
    )


@pytest.fixture(scope="module")
def found(data):
    return search(data, np.arange(100, 201, 5.0), threshold=6)


# ---------------------------------------------------------------- tables


def test_tables_hold_every_column(found, tmp_path):
    import pandas as pd
    from astropy.table import Table

    for suffix in ("csv", "ecsv", "parquet"):
        found.write(tmp_path / f"c.{suffix}")
    csv, parquet = pd.read_csv(tmp_path / "c.csv"), pd.read_parquet(tmp_path / "c.parquet")
    ecsv = Table.read(tmp_path / "c.ecsv")
    for name, column in found.columns().items():
        np.testing.assert_allclose(csv[name], column, rtol=1e-4, atol=1e-9)
        assert np.array_equal(parquet[name], column)
        np.testing.assert_allclose(ecsv[name], column, rtol=1e-6)
    assert str(ecsv["dm"].unit) == "pc / cm3"
    assert ecsv.meta["dm_constant"] == found.dm_constant
    assert set(csv["dm_constant"]) == {found.dm_constant}
    with pytest.raises(ValueError, match=r"ends in one of \.csv"):
        found.write(tmp_path / "c.txt")
    assert not (tmp_path / "c.txt").exists()


def test_singlepulse_and_cand_have_their_programs_columns(found, tmp_path):
    found.write(tmp_path / "c.singlepulse")
    lines = (tmp_path / "c.singlepulse").read_text().splitlines()
    assert lines[0].split() == ["#", "DM", "Sigma", "Time", "(s)", "Sample", "Downfact"]
    assert repr(found.dm_constant) in lines[1]
    rows = np.loadtxt(tmp_path / "c.singlepulse")
    assert rows.shape == (len(found.events), 5)
    np.testing.assert_allclose(rows[:, 2], found.events.time, atol=1e-6)
    np.testing.assert_allclose(rows[:, 3] * 1e-3, found.events.time, atol=1e-3)
    found.write(tmp_path / "c.cand")
    rows = np.loadtxt(tmp_path / "c.cand", ndmin=2)
    assert rows.shape == (len(found), 9)
    np.testing.assert_allclose(rows[:, 0], found.snr, atol=1e-3)
    np.testing.assert_allclose(rows[:, 1] * 1e-3, found.time, atol=1e-3)
    nearest = np.abs(found.dms - found.dm[:, None]).argmin(axis=1)
    np.testing.assert_array_equal(rows[:, 4], nearest)
    assert np.array_equal(rows[:, 6], found.members)


def test_no_candidates_make_empty_tables(data, tmp_path):
    none = search(data, [0.0], threshold=50)
    assert len(none) == 0
    assert "0 of 0 events" in repr(none)
    for suffix in ("csv", "ecsv", "parquet", "singlepulse", "cand"):
        none.write(tmp_path / f"n.{suffix}")
        assert (tmp_path / f"n.{suffix}").exists()
    pytest.importorskip("matplotlib")
    assert len(none.plot().axes) == 3


# ---------------------------------------------------------------- pictures


def test_figure_five(found):
    pytest.importorskip("matplotlib")
    axes = found.plot().axes
    assert [a.get_xlabel() for a in axes[:3]] == ["time [s]", "DM [pc cm$^{-3}$]", "time [s]"]
    assert len(axes[0].collections[0].get_offsets()) == len(found.events)
    assert "J0000+00" in axes[0].get_title()


def test_cutout_lines_the_pulse_up(data, found):
    c = cutout(data, dm=found.dm[0], time=found.time[0], width=found.width[0], snr=found.snr[0])
    assert c.dedispersed.shape == (128, 256)
    assert abs(c.times[c.profile.argmax()]) < 8e-3
    row, column = np.unravel_index(c.bowtie.argmax(), c.bowtie.shape)
    assert abs(c.dms[row] - 150) < 25
    assert abs(c.times[column]) < 12e-3
    inside = np.abs(c.times) < 4e-3
    assert c.dedispersed[:, inside].mean() > 5 * np.abs(c.dedispersed[:, ~inside].mean())
    late = c.raw_times[c.raw[96:].mean(axis=0).argmax()] - c.raw_times[c.raw[:32].mean(axis=0).argmax()]
    assert late > 0.03  # the band's delay is 123 ms
    pytest.importorskip("matplotlib")
    assert "150" in c.plot().axes[-1].texts[0].get_text()


def test_a_series_of_one_channel_has_the_same_profile_at_all_dms(data, tmp_path):
    dedisperse(data, [150.0]).write(tmp_path / "a")
    with Filterbank.open(tmp_path / "a_DM150.00.dat") as fb:
        c = cutout(fb, dm=150, time=4.0, width=8e-3)
    assert np.array_equal(c.bowtie, np.repeat(c.profile[None], len(c.dms), axis=0))
    assert c.profile.max() > 5


@pytest.mark.parametrize("when", [0.0, 7.999])
def test_cutouts_reach_past_the_ends(data, when):
    c = cutout(data, dm=150, time=when, width=8e-3)
    assert np.isfinite(c.raw).all()
    assert np.isfinite(c.bowtie).all()
    for options, message in (({"time": 9.0}, "time=9.0"), ({"width": 0.0}, "width=0.0")):
        with pytest.raises(ValueError, match=message):
            cutout(data, **{"dm": 1, "time": 1.0, "width": 1e-3, **options})


@pytest.mark.slow
def test_cutout_files_have_fetchs_layout(data, found, tmp_path):
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("matplotlib")
    paths = write_cutouts(data, found, tmp_path / "cands", most=2)
    assert sorted(p.suffix for p in paths) == [".h5", ".h5", ".png", ".png"]
    with h5py.File(paths[0]) as file:
        assert file["data_freq_time"].shape == (256, 256)
        assert file["data_dm_time"].shape == (256, 256)
        assert [d.label for d in file["data_freq_time"].dims] == ["time", "frequency"]
        assert [d.label for d in file["data_dm_time"].dims] == ["dm", "time"]
        assert file.attrs["dm"] == found.dm[0]
        assert file.attrs["dm_constant"] == found.dm_constant
        assert file.attrs["tcand"] == pytest.approx(found.time[0])
        assert {"cand_id", "snr", "width", "label", "nchans", "tsamp", "fch1", "foff"} <= set(file.attrs)


@pytest.mark.slow
def test_your_draws_the_files(data, found, tmp_path):
    plotter = pytest.importorskip("your.utils.plotter")
    [path] = write_cutouts(data, found, tmp_path, most=1, plots=False)
    plotter.plot_h5(str(path), outdir=f"{tmp_path}/theirs-")
    assert (tmp_path / f"theirs-{path.stem}.png").stat().st_size > 20_000


def test_cutouts_are_what_your_makes(tmp_path):
    """The same candidate in both programs: de-dispersed spectra and bow ties are equal, up to a scale of each row."""
    candidate = pytest.importorskip("your.candidate")
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.fil"
    fake(nchan=256, duration=6, tsamp=1e-3, fch1=1500, foff=-1, dm=400, times=[3.0], width=4e-3, snr=60, seed=5,
         path=path).close()  # fmt: skip
    theirs = candidate.Candidate(fp=str(path), dm=400.0, tcand=3.0, width=4, label=-1, snr=60.0, min_samp=256, device=0)
    theirs.get_chunk()
    theirs.dedisperse()
    theirs.dmtime()
    with Filterbank.open(path) as fb:
        cutout(fb, dm=400, time=3.0, width=4e-3, snr=60, dm_constant=4.148808e3).write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        ours = file["data_freq_time"][64:128], file["data_dm_time"][108:128, 64:128].T
    middle = len(theirs.data) // 2  # what `your` has after the pulse is rolled around
    for mine, other in zip(ours, (theirs.dedispersed, theirs.dmt[108:128].T), strict=True):
        same = []
        for first in range(middle - 134, middle - 122):
            binned = other[first : first + 128].astype(float).reshape(64, 2, -1).sum(axis=1)
            parts = [((a - a.mean(axis=0)) / a.std(axis=0)).ravel() for a in (binned, mine)]
            same.append(np.corrcoef(*parts)[0, 1])
        assert max(same) > 0.9999


def test_masked_cells_are_left_out_of_cutouts(data):
    x = data.read().copy()
    cells = np.zeros((128, 16), bool)
    cells[30], cells[40:60, 7] = True, True
    x[30] = 255 * (np.arange(8000) % 7 < 3)
    x[40:60, 3500:4000] = 250
    loud = Filterbank.from_array(x, freqs=data.freqs, tsamp=1e-3)
    mask = Mask(cells, 500)
    clean, masked, raw = (
        cutout(fb, dm=150, time=3.5, width=8e-3, mask=m) for fb, m in ((data, mask), (loud, mask), (loud, None))
    )
    assert not masked.dedispersed[30].any()
    for a, b in ((clean, masked), (masked, raw)):
        same = [np.array_equal(getattr(a, n), getattr(b, n)) for n in ("raw", "dedispersed", "bowtie", "profile")]
        assert same == [b is masked] * 4
    with pytest.raises(ValueError, match="mask has 4 channels"):
        cutout(data, dm=150, time=3.5, width=8e-3, mask=Mask.channels(4, [0]))


def test_cutouts_do_not_depend_on_memory(data):
    """Slices of time and groups of DMs: the same sums, of float32 samples added in float64."""
    whole, part = (cutout(data, dm=150, time=3.5, width=0.1, memory=m) for m in (None, "12 MiB"))
    for name in ("raw", "dedispersed", "bowtie", "profile"):
        np.testing.assert_allclose(getattr(part, name), getattr(whole, name), rtol=1e-5, atol=1e-4)


def test_wide_bands_are_shrunk():
    fb = fake(
        nchan=1000, duration=2, tsamp=1e-3, fch1=1500, foff=-0.3, dm=100, times=[1.0], width=20e-3, snr=60, seed=1
    )
    fb = Filterbank.from_array(fb.read(), freqs=fb.freqs, tsamp=fb.tsamp)  # made once, not for every DM
    c = cutout(fb, dm=100, time=1.0, width=20e-3)
    assert c.dedispersed.shape == (256, 256)
    assert c.freqs.shape == (256,)
    assert abs(c.times[c.profile.argmax()]) < 12e-3


# ---------------------------------------------------------------- interference


def test_statistics_of_known_noise():
    fb = fake(nchan=8, duration=20, tsamp=1e-3, fch1=1500, foff=-1, nbits=32, period=None, seed=3)
    x = fb.read() * 3 + 50
    stats = channel_statistics(Filterbank.from_array(x, freqs=fb.freqs, tsamp=1e-3), 2000)
    assert stats["mean"].shape == (8, 10)
    np.testing.assert_allclose(stats["mean"], 50, atol=5 * 3 / math.sqrt(2000))
    np.testing.assert_allclose(stats["std"], 3, rtol=5 / math.sqrt(4000))
    np.testing.assert_allclose(stats["kurtosis"], 1, atol=6 * math.sqrt(2 / 2000))
    with pytest.raises(ValueError, match="block=1"):
        channel_statistics(fb, 1)


@pytest.mark.slow
def test_interference_is_found_and_little_else():
    fb = fake(nchan=128, duration=30, tsamp=1e-3, fch1=1500, foff=-2, period=None, seed=7)
    x = fb.read()
    rng = np.random.default_rng(1)
    x[10] = np.clip(x[10] + 30 * (np.sin(np.arange(x.shape[1]) / 3) > 0), 0, 255)  # a carrier, all the time
    x[40, 6000:6500] = 200  # one cell, constant
    x[41, 12000:12500:4] = 255  # impulses: mean moves little
    x[90] = 77  # dead
    x[:, 20000:20500] = np.clip(x[:, 20000:20500] + rng.integers(0, 60, 500)[None], 0, 255)  # lightning
    made = Filterbank.from_array(x, freqs=fb.freqs, tsamp=1e-3)
    mask = rfi_mask(made, block=500)
    assert mask.cells.shape == (128, 60)
    assert mask.cells[10].all()
    assert mask.cells[90].all()
    assert mask.cells[40, 12]
    assert mask.cells[41, 24]
    assert mask.cells[:, 40].all()
    rest = mask.cells.copy()
    rest[[10, 90]] = rest[40, 12] = rest[41, 24] = rest[:, 40] = False
    assert rest.mean() < 2e-3
    assert rfi_mask(fb, block=500).cells.mean() < 2e-3
    for options, message in (
        ({"sigma": 0}, "sigma=0"), ({"most": 2}, "most=2"), ({"tests": ("peak",)}, "tests="), ({"tests": ()}, "tests="),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            rfi_mask(fb, **options)


def test_a_bright_pulse_survives_the_mask(data):
    plain = search(data, [150.0])
    masked = search(data, [150.0], mask=rfi_mask(data))
    assert masked.snr[0] == pytest.approx(plain.snr[0], rel=0.1)


def mask_bytes(nchan, nint, points, channels, intervals, cells):
    """An rfifind mask written as mask.c does; a full interval lists no channels."""
    parts = [struct.pack("<6d3i", 10, 4, 58000.0, points * 1e-3, 1200, 1, nchan, nint, points)]
    parts += [struct.pack(f"<i{len(v)}i", len(v), *v) for v in (channels, intervals)]
    parts.append(struct.pack(f"<{nint}i", *(len(c) for c in cells)))
    parts += [struct.pack(f"<{len(c)}i", *c) for c in cells if 0 < len(c) < nchan]
    return b"".join(parts)


def test_rfifind_masks(tmp_path):
    path = tmp_path / "a_rfifind.mask"
    whole = mask_bytes(8, 4, 100, [2], [3], [[2, 5], list(range(8)), [2], []])
    path.write_bytes(whole)
    mask = read_rfifind(path)
    expected = np.zeros((8, 4), bool)
    expected[[2], :] = expected[:, 3] = expected[:, 1] = expected[5, 0] = True
    assert np.array_equal(mask.cells, expected[::-1])  # PRESTO's channel 0 is the lowest
    assert mask.block == 100
    fb = Filterbank.from_array(np.zeros((4, 400), np.uint8), fch1=1500, foff=-1, tsamp=1e-3)
    with pytest.raises(BadFile, match="the mask has 8 channels, the data have 4"):
        read_rfifind(path, fb)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(BadFile, match="is not an rfifind mask"):
            read_rfifind(path)
    for wrong in (9, -1):
        path.write_bytes(mask_bytes(8, 1, 100, [0, wrong], [], [[]]))
        with pytest.raises(BadFile, match=f"number {wrong}, expected at least 0 and less than 8"):
            read_rfifind(path)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ((10, 4, 56000, 0.1, 1493, 1), None),
        ((10, 4, 0, 0.1, 0, 0), None),
        ((10, 4, 56001, 0.1, 1493, 1), "it begins at MJD 56001"),
        ((10, 4, 56000, 0.1, 1400, 1), "its lowest channel is at 1400 MHz, that of the data at 1493"),
        ((10, 4, 56000, 0.1, 1493, 0.5), "its channels are 0.5 MHz wide"),
    ],
)
def test_a_mask_of_another_observation(tmp_path, header, said, recwarn):
    path = tmp_path / "a.mask"
    path.write_bytes(struct.pack("<6d", *header) + mask_bytes(8, 4, 100, [2], [], [[]] * 4)[48:])
    fb = Filterbank.from_array(np.zeros((8, 400), np.uint8), fch1=1500, foff=-1, tsamp=1e-3, tstart=56000)
    read_rfifind(path, fb)
    assert [str(w.message) for w in recwarn] == [] if said is None else said in str(recwarn[0].message)


def test_masks_join():
    a = Mask(np.eye(4, 6, dtype=bool), 50)
    b = Mask(np.array([[0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0]], bool), 100)
    both = a.union(b)
    assert both.block == 50
    assert np.array_equal(both.cells, np.eye(4, 6, dtype=bool) | np.repeat(b.cells, 2, axis=1))
    assert np.array_equal(a.union(Mask.channels(4, [2])).cells[2], np.ones(6, bool))
    with pytest.raises(ValueError, match="one must be a multiple of the other"):
        a.union(Mask(np.zeros((4, 3), bool), 70))
    for cells, block in ((np.zeros(4), 5), (np.zeros((4, 4)), 0), (np.zeros((4, 4)), 2.5)):
        with pytest.raises(ValueError, match=r"cells has shape|block=0|block=2\.5"):
            Mask(cells, block)
    with pytest.raises(ValueError, match="from 0 to 3"):
        Mask.channels(4, [4])


@pytest.mark.parametrize("which", [[False, True, False, True], [1.7], [[0, 1]], "12"])
def test_channels_are_whole_numbers(which):
    """True and 1.7 would both be taken for channel 1."""
    with pytest.raises(TypeError, match="expected a list of whole numbers"):
        Mask.channels(4, which)


def test_what_is_no_mask_is_refused(data):
    with pytest.raises(TypeError, match="mask is a ndarray, expected a Mask"):
        dedisperse(data, [0.0], mask=np.zeros((data.nchan, 1), bool))


def test_the_weight_of_a_mask_counts_samples_of_the_data():
    cells = np.zeros((2, 4), bool)
    cells[:, 2:] = True
    assert Mask(cells, 10).weight == 0.5
    assert [Mask(cells, 10).weight_of(n) for n in (5, 20, 25, 40, 60)] == [1.0, 1.0, 0.8, 0.5, pytest.approx(1 / 3)]
    assert Mask.channels(4, [1]).weight_of(7) == 0.75


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "f4"])
def test_zero_dm_takes_the_mean_off(kind):
    rng = np.random.default_rng(2)
    x = rng.integers(40, 90, (32, 500)).astype(kind)
    fb = Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)
    z = zero_dm(fb).read().astype(float)
    expected = x - x.mean(axis=0, dtype=float)
    scaled = z - (0 if kind == "f4" else 128 if x.itemsize == 1 else 32768)
    np.testing.assert_allclose(scaled, expected, atol=1e-5 if kind == "f4" else 0.5)


def test_zero_dm_removes_what_is_not_dispersed(data):
    x = data.read().astype(int)
    x[:, 5000:5040] += 40
    loud = Filterbank.from_array(np.clip(x, 0, 255).astype(np.uint8), freqs=data.freqs, tsamp=1e-3)
    dms = np.arange(0, 201, 25.0)
    assert search(loud, dms, clean=False).dm[0] == 0
    found = search(zero_dm(loud), dms)
    assert abs(found.dm[0] - 150) < 5
    assert not (np.abs(found.time - 5.02) < 0.05).any()


@pytest.mark.parametrize("kind", ["u1", "i2", "f4"])
def test_z_dot_subtracts_the_least_squares_fit_of_each_block(kind):
    """Judge: `numpy.linalg.lstsq`; any range of samples is as it is in all data, the end as the block before it."""
    rng = np.random.default_rng(4)
    common = np.outer(rng.uniform(0, 3, 24), 10 * rng.normal(size=4500))
    x = (60 + 20 * rng.normal(size=(24, 4500)) + common).clip(0, 120).astype(kind)
    z = z_dot(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3))
    found = z.read() - float({"u1": 128, "i2": 32768, "f4": 0}[kind])
    for y, own in ((x[:, :2048], found[:, :2048]), (x[:, 2048:], found[:, 2048:])):
        fit = np.stack([y.mean(axis=0, dtype=float), np.ones(y.shape[1])], axis=1)
        expected = y - (fit @ np.linalg.lstsq(fit, y.T.astype(float), rcond=None)[0]).T
        np.testing.assert_allclose(own, expected, atol=1e-3 if kind == "f4" else 0.5 + 1e-9)
    assert np.array_equal(z.block(1000, 2500), z.read()[:, 1000:3500])


def test_z_dot_does_not_depend_on_the_unit_of_floats():
    """A power of 2 as a factor changes no bit but the exponents; channels that are constant become 0."""
    x = np.random.default_rng(4).normal(50, 3, (16, 3000)).astype(np.float32)
    plain, scaled = (
        z_dot(Filterbank.from_array(x * np.float32(s), fch1=1500, foff=-1, tsamp=1e-3)).read() for s in (1, 2.0**-60)
    )
    assert np.array_equal(plain, scaled * np.float32(2.0**60))
    flat = z_dot(Filterbank.from_array(np.full((16, 3000), 2.7e-9, np.float32), fch1=1500, foff=-1, tsamp=1e-3)).read()
    assert np.abs(flat).max() < 1e-6 * 2.7e-9


def test_z_dot_removes_interference_whose_strength_differs_by_channel(data):
    x, gains = data.read().astype(int), np.linspace(0, 3, data.nchan)[:, None]
    x[:, 5000:5040] += (gains * 30).astype(int)
    loud = Filterbank.from_array(np.clip(x, 0, 255).astype(np.uint8), freqs=data.freqs, tsamp=1e-3)
    dms = np.arange(0, 201, 25.0)
    assert search(loud, dms, clean=False).dm[0] == 0
    found, plain = search(z_dot(loud), dms, clean=False), search(data, dms, clean=False)
    assert len(search(zero_dm(loud), dms, clean=False)) > len(plain)
    assert len(found) == len(plain)
    assert (np.abs(found.dm - 150) < 5).all()
    np.testing.assert_allclose(np.sort(found.snr), np.sort(plain.snr), rtol=0.1)


@pytest.mark.parametrize("method", [zero_dm, z_dot])
@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_ignored_channels_do_not_enter_the_mean(method, kind):
    rng = np.random.default_rng(7)
    x = rng.integers(90, 110, (16, 3000)).astype(kind)
    loud = x.copy()
    loud[[2, 9]] = rng.integers(0, 250, (2, 3000))
    quiet, other = (
        method(Filterbank.from_array(a, fch1=1500, foff=-1, tsamp=1e-3), ignore=[2, 9]).read() for a in (x, loud)
    )
    rest = np.delete(np.arange(16), [2, 9])
    assert np.array_equal(quiet[rest], other[rest])
    alone = method(Filterbank.from_array(x[rest], freqs=1500.0 - rest, tsamp=1e-3)).read()
    assert np.array_equal(quiet[rest], alone)
    with pytest.raises(ValueError, match="ignore has all 16 channels"):
        method(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3), ignore=np.arange(16))


def test_z_dot_of_floats_leaves_out_what_is_not_finite():
    x, fb = unclean()
    z = z_dot(fb).read()
    good = np.isfinite(x)
    assert np.array_equal(np.isfinite(z), good)
    assert np.abs(z[0].astype(float).mean()) < 1e-3


def test_zero_dm_keeps_narrow_samples_fine():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 4, (64, 3000), dtype=np.uint8)
    fb = Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3, nbits=2)
    z = (zero_dm(fb).read() - 128.0) / (255 // 6)
    np.testing.assert_allclose(z, x - x.mean(axis=0), atol=0.5 / 42 + 1e-9)


def unclean():
    """Floats around 0 with an infinity in channel 3 and a channel 4 of NaN."""
    x = np.random.default_rng(5).normal(size=(16, 4000)).astype(np.float32)
    x[3, 500], x[4] = np.inf, np.nan
    return x, Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)


def test_replacements_of_masked_floats_are_finite():
    x, fb = unclean()
    cells = np.zeros((16, 4), bool)
    cells[3:5, 1] = True
    series = dedisperse(fb, [0.0], mask=Mask(cells, 1000), threads=1).data[0]
    x[3, 500] = np.delete(x[3, :2048], 500).mean()  # of its block of 2 s, as the data have it
    x[3, 1000:2000] = np.delete(x[3, :1000], 500).mean()  # of the block before
    x[4] = 0
    np.testing.assert_allclose(series, x.sum(axis=0), atol=1e-4)


def test_zero_dm_of_floats_leaves_out_what_is_not_finite():
    x, fb = unclean()
    good = np.isfinite(x)
    mean = np.where(good, x, 0).sum(axis=0) / good.sum(axis=0)
    np.testing.assert_allclose(zero_dm(fb).read()[good], (x - mean)[good], atol=1e-5)


def test_cutouts_of_floats_leave_out_what_is_not_finite():
    one = cutout(unclean()[1], dm=5, time=0.5, width=1e-2)
    assert all(np.isfinite(a).all() for a in (one.raw, one.dedispersed, one.bowtie, one.profile))
    with pytest.raises(ValueError, match="dm=-1"):
        cutout(unclean()[1], dm=-1, time=0.5, width=1e-2)


@pytest.mark.parametrize("kind", [np.float32, np.int8])
def test_data_without_a_mean_are_not_interference(kind):
    x = np.random.default_rng(6).normal(0, 16, (64, 8000)).clip(-127, 127).astype(kind)
    assert rfi_mask(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)).weight > 0.98


def test_a_long_list_of_channels_is_read_back(tmp_path):
    freqs = 1500 - np.cumsum(1 + 0.1 * np.arange(4096) % 0.3) / 8
    made = Filterbank.from_array(np.arange(3 * 4096).reshape(4096, 3).astype(np.uint8), freqs=freqs, tsamp=1e-3)
    write_fil(tmp_path / "a.fil", made)
    with Filterbank.open(tmp_path / "a.fil") as fb:
        np.testing.assert_array_equal(fb.freqs, made.freqs)
        np.testing.assert_array_equal(fb.read(), made.read())


def test_bits_between_those_of_files_are_widened(tmp_path):
    made = Filterbank.from_array(np.full((8, 9), 5, np.uint8), fch1=1500, foff=-1, tsamp=1e-3, nbits=3)
    write_fil(tmp_path / "a.fil", made)
    with Filterbank.open(tmp_path / "a.fil") as fb:
        assert fb.observation.nbits == 4
        np.testing.assert_array_equal(fb.read(), made.read())


def test_bits_are_widened_until_spectra_fill_bytes(tmp_path):
    made = Filterbank.from_array(np.eye(3, 9, dtype=bool), fch1=1500, foff=-1, tsamp=1e-3)
    write_fil(tmp_path / "a.fil", made)
    with Filterbank.open(tmp_path / "a.fil") as fb:
        assert fb.observation.nbits == 8
        np.testing.assert_array_equal(fb.read(), made.read())


@pytest.mark.parametrize(("value", "fits"), [(-128, True), (127, True), (-129, False), (128, False)])
def test_signed_bytes_reach_from_128_below_to_127(tmp_path, value, fits):
    made = Filterbank.from_array(np.full((2, 3), value, np.int16), fch1=1500, foff=-1, tsamp=1e-3)
    if not fits:
        with pytest.raises(ValueError, match=f"the data reach from {value} to {value}"):
            write_fil(tmp_path / "a.fil", made, nbits=8)
        return
    write_fil(tmp_path / "a.fil", made, nbits=8)
    with Filterbank.open(tmp_path / "a.fil") as fb:
        np.testing.assert_array_equal(fb.read(), made.read())


def test_a_position_that_is_no_number_is_unknown():
    assert all(math.isnan(packed_to_degrees(v)) for v in (math.inf, math.nan))


@no_warnings
@pytest.mark.parametrize("dead", [[2], range(16)])
def test_dead_channels_are_masked_in_silence(dead):
    x = np.random.default_rng(0).integers(90, 110, (16, 4000)).astype(np.float32)
    x[list(dead)] = 7
    x[5] = np.nan
    mask = rfi_mask(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3))
    assert mask.cells[sorted({*dead, 5})].all()
    assert mask.cells[0].all() == (0 in dead)


@pytest.mark.parametrize("call", [zero_dm, rfi_mask, lambda x: channel_statistics(x, 8)])
def test_arrays_are_no_filterbanks(call):
    with pytest.raises(TypeError, match="data is a ndarray, expected a Filterbank or the path of a file"):
        call(np.zeros((3, 30)))


def test_no_cutout_is_wider_than_the_data(data):
    with pytest.raises(ValueError, match="width=100000"):
        cutout(data, dm=10, time=1, width=100000)


def test_names_are_no_formulas(data):
    """Between two dollar signs matplotlib expects a formula, and would refuse these names."""
    named = Filterbank.from_array(data.read(), freqs=data.freqs, tsamp=data.tsamp, source=r"$\bad{$")
    cutout(named, dm=10, time=1, width=4e-3).plot().canvas.draw()
