"""PSRFITS files with gaps between rows, with last rows that are not full, and with wrong or empty keywords."""

from __future__ import annotations

import numpy as np
import pytest
from astropy.io import fits
from tests.dedispersion.test_formats import data, psrfits

from skysieve.dedispersion import Filterbank, dedisperse, fake, search, write_dat
from skysieve.dedispersion.data.sigproc import BadFile


def with_offsets(tmp_path, offsets, **keys):
    raw = np.random.default_rng(0).integers(0, 200, (16 * len(offsets), 1, 8)).astype(np.uint8)
    path = psrfits(tmp_path / "a.fits", raw, 8, **keys)
    with fits.open(path, mode="update") as file:
        file["SUBINT"].data["OFFS_SUB"] = offsets
    return raw[:, 0], path


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0.008, 0.024, 5.04, 5.056], "gaps of 5 s .* in 0.064 s of data; split the file after row 1"),
        ([0.008, 0.024, 0.024, 0.04], "row 2 begins 0.016 s before the end of row 1"),
        ([0.008, np.nan, 0.04, 0.056], "row 1"),
    ],
)
def test_times_that_cannot_be_are_refused(tmp_path, offsets, message):
    with pytest.raises(ValueError, match=message):
        Filterbank.open(with_offsets(tmp_path, offsets)[1])


@pytest.mark.parametrize(
    "offsets", [np.zeros(4), 0.016 * np.arange(4) + 1e-4, [0.01, 0.022, 0.046, 0.052]]
)  # no keyword names it; a late start; a clock that jitters
def test_rows_that_follow_each_other(tmp_path, offsets):
    fb = Filterbank.open(with_offsets(tmp_path, offsets)[1])
    assert fb.nsamp == 64
    assert fb.gaps.shape == (0, 2)


def test_a_gap_keeps_the_time_axis(tmp_path):
    """Two rows are missing after the second: means of the second replace them, and later samples keep their times."""
    raw, path = with_offsets(tmp_path, 0.016 * (np.array([0, 1, 4, 5]) + 0.5))
    with pytest.warns(UserWarning, match=r"1 gaps of 0\.032 s"):
        fb = Filterbank.open(path)
    assert fb.nsamp == 96
    assert fb.gaps.tolist() == [[32, 64]]
    whole = fb.read()
    assert np.array_equal(whole[:, :32], raw[:32].T)
    assert np.array_equal(whole[:, 64:], raw[32:].T)
    assert np.array_equal(whole[:, 32:64], np.repeat(np.rint(raw[16:32].mean(axis=0))[:, None], 32, axis=1))
    for start, count in ((30, 5), (40, 3), (60, 10), (0, 96), (95, 1)):
        assert np.array_equal(fb.block(start, count), whole[:, start : start + count])


@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize("lost", [1, 3])
def test_rows_that_are_missing_before_the_first_one_make_the_start_later(tmp_path, lost, before):
    """OFFS_SUB is the time of the middle of a row from STT_IMJD, STT_SMJD and STT_OFFS on; NSUBOFFS knows no losses."""
    raw, path = with_offsets(tmp_path, 0.016 * (np.arange(4) + before + lost + 0.5), NSUBOFFS=before)
    with pytest.warns(UserWarning, match=rf"means {before + lost} rows before it, but NSUBOFFS={before}"):
        fb = Filterbank.open(path)
    assert np.array_equal(fb.read(), raw.T)
    assert fb.gaps.shape == (0, 2)
    assert fb.observation.tstart == pytest.approx(58000 + (43200.5 + 0.016 * (before + lost)) / 86400, abs=2e-11)


@pytest.mark.parametrize(
    "offsets", [0.016 * (np.arange(4) + 0.5), 0.016 * (np.arange(4) + 6), np.full(4, 3.0), [np.inf]]
)  # counted from the first row of the file; at the ends of rows; not filled in; not a number
def test_nsuboffs_gives_the_start_unless_offs_sub_is_later(tmp_path, offsets):
    fb = Filterbank.open(with_offsets(tmp_path, offsets, NSUBOFFS=5)[1])
    assert fb.observation.tstart == pytest.approx(58000 + (43200.5 + 0.016 * 5) / 86400, abs=2e-11)


def test_nstot_ends_the_last_row(tmp_path):
    """`your` reads all rows; what lies past NSTOT was never observed."""
    raw = np.random.default_rng(0).integers(0, 200, (64, 1, 8)).astype(np.uint8)
    fb = Filterbank.open(psrfits(tmp_path / "a.fits", raw, 8, NSTOT=53))
    assert np.array_equal(fb.read(), raw[:53, 0].T)
    for said in (0, 1):
        assert Filterbank.open(psrfits(tmp_path / f"{said}.fits", raw, 8, NSTOT=said)).nsamp == 64
    for said in (40, 99):
        with pytest.warns(UserWarning, match=f"NSTOT={said}, but 4 rows of 16 samples"):
            assert Filterbank.open(psrfits(tmp_path / f"{said}.fits", raw, 8, NSTOT=said)).nsamp == 64


def test_a_search_finds_nothing_in_a_gap_and_all_beside_it(tmp_path):
    """A fifth of the time is missing: noise stands in for the search; pulses beside it are found at their times."""
    made = fake(nchan=64, duration=16.384, tsamp=1e-3, fch1=1500, foff=-1, dm=50, times=[3.0, 12.0], width=8e-3, snr=25,
                seed=1)  # fmt: skip
    path = psrfits(tmp_path / "a.fits", made.read().T[:, None], 8, nsblk=512, freqs=made.freqs)
    offsets = 0.512 * (np.arange(32) + 0.5)
    offsets[16:] += 4.096
    with fits.open(path, mode="update") as file:
        file["SUBINT"].data["OFFS_SUB"] = offsets
    with pytest.warns(UserWarning, match="1 gaps"):
        fb = Filterbank.open(path)
    found = search(fb, np.arange(0, 101, 10.0), threshold=6)
    assert len(found) == 2
    np.testing.assert_allclose(np.sort(found.time), [3.0, 12.0 + 4.096], atol=4e-3)
    np.testing.assert_allclose(found.snr, 25, atol=3)
    assert found.live == pytest.approx(1 - 4.096 / 20.48)


def test_breaks_of_a_series_are_gaps(tmp_path):
    fb = Filterbank.from_array(data("u1"), fch1=1400, foff=-0.5, tsamp=6.4e-5)
    write_dat(tmp_path / "s.dat", fb.read()[0], fb.observation, dm=0)
    text = (tmp_path / "s.inf").read_text()
    pairs = "".join(
        f" On/Off bin pair #{i + 1:3} = {a}, {b}\n" for i, (a, b) in enumerate([(0, 9), (15, 30), (36, 36)])
    )
    (tmp_path / "s.inf").write_text(text.replace(" Type of obs", pairs + " Type of obs"))
    series = Filterbank.open(tmp_path / "s.dat")
    assert series.nsamp == 31  # the last pair says that what lies between is padding
    assert series.gaps.tolist() == [[10, 15]]


@pytest.mark.parametrize(
    ("gaps", "downsamp", "expected", "kept"),
    [
        ([[100, 130], [300, 301]], 1, [[100, 130], [300, 301]], 0),
        ([[0, 40], [100, 130]], 4, [[0, 10], [25, 33]], 0),
        ([[101, 103], [105, 107]], 4, [[25, 27]], 0),
        ([[100, 130], [590, 640]], 1, [[100, 130], [590, 640]], 590),
        ([[2, 3]], 1, [[2, 3]], 0),
    ],
)
def test_gaps_of_the_data_are_breaks_of_the_series(tmp_path, gaps, downsamp, expected, kept):
    """PRESTO's on/off pairs, which come back as gaps; a gap at the end is what PRESTO takes for padding."""
    fb = Filterbank.from_array(np.ones((4, 640), np.uint8), fch1=1400, foff=-0.5, tsamp=6.4e-5)
    fb.readers[0].gaps = np.array(gaps, np.int64)
    found = dedisperse(Filterbank(fb.readers), [0.0], downsamp=downsamp, device="cpu")
    assert found.gaps.tolist() == expected
    [path] = found.write(tmp_path / "s")
    text = path.with_suffix(".inf").read_text()
    assert " Any breaks in the data? (1 yes, 0 no)  =  1\n On/Off bin pair #  1" in text
    again = Filterbank.open(path)
    assert again.nsamp == (kept or 640 // downsamp)
    assert again.gaps.tolist() == [g for g in expected if g[1] < 640 // downsamp]


def test_no_more_on_off_pairs_than_presto_reads(tmp_path):
    """Its readinf() ends the program from 40 pairs on: the longest gaps are kept."""
    fb = Filterbank.from_array(np.ones((1, 1000), np.uint8), fch1=1400, tsamp=1e-3)
    gaps = np.array([[20 * i, 20 * i + (3 if i % 10 else 2)] for i in range(50)])
    with pytest.warns(UserWarning, match=r"at most 39 on/off pairs: the \.inf lists the 38 longest of 50 gaps"):
        write_dat(tmp_path / "s.dat", fb.read()[0], fb.observation, dm=0, gaps=gaps)
    assert (tmp_path / "s.inf").read_text().count("On/Off bin pair") <= 39
    long = [g for g in gaps.tolist() if g[1] - g[0] == 3]
    assert Filterbank.open(tmp_path / "s.dat").gaps.tolist() == long[:38]


def test_gaps_that_are_none_are_refused(tmp_path):
    fb = Filterbank.from_array(np.ones((1, 20), np.uint8), fch1=1400, tsamp=1e-3)
    for gaps in ([[5, 3]], [[1, 4], [3, 6]], [[-1, 2]], [[10, 21]], [[0.5, 1.5]], [[1, 2, 3]], [1, 2], "ab"):
        with pytest.raises(ValueError, match="expected rising ranges of samples from 0 to 20"):
            write_dat(tmp_path / "s.dat", fb.read()[0], fb.observation, dm=0, gaps=gaps)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("NBITS", None, "lacks the key NBITS"),
        ("NCHAN", "abc", "NCHAN='abc'; expected a number"),
        ("NPOL", 1.5, "NPOL=1.5; expected a whole number"),
        ("NPOL", 2, "DAT_SCL has 8 numbers a row, expected 16"),
        ("TBIN", "*", "lacks the key TBIN"),
        ("TBIN", -1.0, "tsamp=-1.0"),
        ("ZERO_OFF", "x", "ZERO_OFF='x'; expected a number"),
        ("STT_SMJD", "x", "STT_SMJD='x'; expected a number"),
    ],
)
def test_inconsistent_psrfits_headers_name_the_key(tmp_path, key, value, message):
    path = psrfits(tmp_path / "a.fits", np.zeros((32, 1, 8), np.uint8), 8)
    with fits.open(path, mode="update") as file:
        file["PRIMARY" if key.startswith("STT") else "SUBINT"].header[key] = value
    with pytest.raises(BadFile, match=f"a.fits: .*{message}"):
        Filterbank.open(path)


@pytest.mark.parametrize("value", ["*", "", None])
def test_psrfits_keys_that_are_not_filled_in(tmp_path, value):
    """The standard's template writes "*": no sign, no offset."""
    raw = np.random.default_rng(0).integers(0, 256, (32, 1, 8)).astype(np.uint8)
    path = psrfits(tmp_path / "a.fits", raw, 8)
    with fits.open(path, mode="update") as file:
        for key in ("SIGNINT", "ZERO_OFF", "NSUBOFFS", "NSTOT"):
            file["SUBINT"].header[key] = value
        file[0].header["STT_OFFS"] = value
    with Filterbank.open(path) as fb:
        assert fb.dtype == np.uint8
        assert np.array_equal(np.sort(fb.read(), axis=0), np.sort(raw[:, 0].T, axis=0))


@pytest.mark.filterwarnings("ignore::astropy.utils.exceptions.AstropyUserWarning")  # its own word on the same
def test_inconsistent_psrfits_files_are_refused(tmp_path):
    raw = data("u1", (32, 1, 8))
    with pytest.raises(BadFile, match="NBITS=3"):
        Filterbank.open(psrfits(tmp_path / "a.fits", raw, 8, NBITS=3))
    fb = Filterbank.open(psrfits(tmp_path / "b.fits", raw, 8, NSBLK=32))
    with pytest.raises(BadFile, match="row 0 holds 128 bytes"):
        fb.read()
    whole = (tmp_path / "b.fits").read_bytes()
    for part, message in ((2880, "END card"), (5760, "no SUBINT table"), (len(whole) - 2880, "cut off")):
        (tmp_path / "c.fits").write_bytes(whole[:part])
        with pytest.raises(BadFile, match=message):
            Filterbank.open(tmp_path / "c.fits")
