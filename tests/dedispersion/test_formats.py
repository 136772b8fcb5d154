"""Reading and writing files: every width and order, comparisons with other readers, and headers that are wrong."""

from __future__ import annotations

import struct
import warnings

import numpy as np
import pytest

from skysieve.dedispersion import BadFile, Filterbank, dedisperse, write_dat, write_fil, write_tim
from skysieve.dedispersion.data.delays import sample_delays
from skysieve.dedispersion.data.observation import degrees_to_packed, packed_to_degrees
from skysieve.dedispersion.data.psrfits import PsrfitsReader
from skysieve.dedispersion.data.sigproc import header_bytes, pack


def word(text):
    encoded = text.encode()
    return struct.pack("<i", len(encoded)) + encoded


def header(**keys):
    """A SIGPROC header made by hand: integers, floats, text by their Python types; bytes as they are."""
    parts = [word("HEADER_START")]
    for key, value in keys.items():
        values = value if isinstance(value, list) else [value]
        if isinstance(value, list):
            parts.append(word("FREQUENCY_START"))
        for v in values:
            if isinstance(v, bytes):
                parts.append(word(key) + v)
            elif isinstance(v, str):
                parts.append(word(key) + word(v))
            else:
                parts.append(word(key) + struct.pack("<i" if isinstance(v, int) else "<d", v))
        if isinstance(value, list):
            parts.append(word("FREQUENCY_END"))
    return b"".join([*parts, word("HEADER_END")])


PLAIN = {"nbits": 8, "nchans": 4, "nifs": 1, "fch1": 1500.0, "foff": -1.0, "tsamp": 1e-3, "tstart": 58000.0}


def fil(tmp_path, rows, name="a.fil", **keys):
    """A file of these rows (samples x channels, in file order)."""
    path = tmp_path / name
    path.write_bytes(header(**{**PLAIN, "nchans": rows.shape[-1], **keys}) + rows.tobytes())
    return path


def data(kind, shape=(24, 37), seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(kind).kind == "f":
        return rng.normal(size=shape).astype(kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)


# ---------------------------------------------------------------- SIGPROC


@pytest.mark.parametrize("nbits", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("foff", [-1.0, 1.0])
def test_every_width_and_channel_order(tmp_path, nbits, foff):
    kind = {16: "u2", 32: "f4"}.get(nbits, "u1")
    x = data(kind) if nbits >= 8 else data("u1") >> (8 - nbits)
    path = tmp_path / "a.fil"
    path.write_bytes(header(**{**PLAIN, "nbits": nbits, "nchans": 24, "foff": foff}) + pack(x.T, nbits).tobytes())
    with Filterbank.open(path) as fb:
        expected = x if foff < 0 else x[::-1]
        assert fb.dtype == np.dtype(kind)
        assert fb.nsamp == 37
        assert fb.observation.nbits == nbits
        assert np.array_equal(fb.freqs, 1500 - np.arange(24) if foff < 0 else 1523 - np.arange(24))
        assert np.array_equal(fb.read(), expected)
        assert np.array_equal(fb.block(5, 11), expected[:, 5:16])
        assert fb.maximum == (0 if nbits == 32 else 2**nbits - 1)


@pytest.mark.parametrize("nbits", [1, 2, 4])
def test_the_other_bit_order(tmp_path, nbits):
    x = data("u1") >> (8 - nbits)
    packed = pack(x.T.reshape(37, -1, 8 // nbits)[:, :, ::-1].reshape(37, 24), nbits)
    path = fil(tmp_path, packed, nbits=nbits, nchans=24)
    assert np.array_equal(Filterbank.open(path, bit_order="big").read(), x)
    assert not np.array_equal(Filterbank.open(path).read(), x)
    with pytest.raises(ValueError, match="bit_order='middle'"):
        Filterbank.open(path, bit_order="middle")


@pytest.mark.parametrize("kind", ["i1", "i2"])
def test_the_signed_key_is_one_byte(tmp_path, kind):
    x = data(kind)
    path = fil(tmp_path, x.T, nbits=8 * x.itemsize, signed=b"\x01")
    assert np.array_equal(Filterbank.open(path).read(), x)


def test_ifs(tmp_path):
    x = data("u1", (37, 2, 6))
    path = fil(tmp_path, x, nifs=2)
    both = Filterbank.open(path)
    assert np.array_equal(both.read(), x.sum(axis=1, dtype=np.uint16).T)
    assert (both.dtype, both.maximum) == (np.uint16, 510)
    for i in range(2):
        assert np.array_equal(Filterbank.open(path, ifs=i).read(), x[:, i].T)
        assert np.array_equal(Filterbank.open(path, ifs=np.int64(i)).read(), x[:, i].T)
    with pytest.raises(ValueError, match="ifs=2: expected 'sum' or a number from 0 to 1"):
        Filterbank.open(path, ifs=2)


def test_irregular_channels(tmp_path):
    freqs = [1400.0, 1500.0, 1410.0, 1320.0]
    x = data("u1", (9, 4))
    keys = {k: v for k, v in PLAIN.items() if k not in ("fch1", "foff")}
    path = tmp_path / "a.fil"
    path.write_bytes(header(**keys, fchannel=freqs) + x.tobytes())
    fb = Filterbank.open(path)
    assert fb.freqs.tolist() == [1500.0, 1410.0, 1400.0, 1320.0]
    assert np.array_equal(fb.read(), x.T[[1, 2, 0, 3]])
    again = tmp_path / "b.fil"
    write_fil(again, fb)
    assert Filterbank.open(again).freqs.tolist() == fb.freqs.tolist()
    assert np.array_equal(Filterbank.open(again).read(), fb.read())


def test_header_facts(tmp_path):
    path = fil(
        tmp_path, data("u1", (5, 4)), source_name="J1745-2900 \xe9", telescope_id=4, src_raj=174540.0,
        src_dej=-290028.1, machine_id=2, barycentric=0, az_start=1.0, za_start=2.0,
    )  # fmt: skip
    o = Filterbank.open(path).observation
    assert (o.source, o.telescope) == ("J1745-2900 \xe9", "Parkes")
    assert o.ra == pytest.approx(15 * (17 + 45 / 60 + 40 / 3600))
    assert o.dec == pytest.approx(-(29 + 28.1 / 3600))
    assert o.extra["za_start"] == 2.0


def test_written_files_keep_beam_pointing_and_barycentre(tmp_path):
    kept = {"barycentric": 1, "pulsarcentric": 0, "nbeams": 13, "ibeam": 5, "az_start": 12.5, "za_start": 30.0}
    fb = Filterbank.open(fil(tmp_path, data("u1", (50, 4)), **kept))
    write_fil(tmp_path / "b.fil", fb)
    write_tim(tmp_path / "b.tim", fb.read()[0], fb.observation, dm=3)
    for name in ("b.fil", "b.tim"):
        extra = Filterbank.open(tmp_path / name).observation.extra
        assert {key: extra[key] for key in kept} == kept
    write_dat(tmp_path / "b.dat", fb.read()[0], fb.observation, dm=3)
    again = Filterbank.open(tmp_path / "b.dat")
    write_dat(tmp_path / "c.dat", again.read()[0], again.observation, dm=3)
    for name in ("b.inf", "c.inf"):
        line = next(line for line in (tmp_path / name).read_text().splitlines() if "Barycentered?" in line)
        assert line.split("=")[1].strip() == "1"


@pytest.mark.parametrize("value", [0.0, 123456.789, -95959.9999999, 595959.9999999])
def test_packed_angles_return(value):
    assert degrees_to_packed(packed_to_degrees(value)) == pytest.approx(value, abs=2e-7)


@pytest.mark.parametrize(
    ("kind", "nbits"), [("u1", 1), ("u1", 4), ("u1", 8), ("i1", 8), ("u2", 16), ("i2", 16), ("f4", 32)]
)
def test_writing_and_reading_back(tmp_path, kind, nbits):
    x = data(kind) if nbits >= 8 else data("u1") >> (8 - nbits)
    fb = Filterbank.from_array(x, fch1=1400, foff=0.5, tsamp=6.4e-5, tstart=59000.25, source="fake", nbits=None)
    write_fil(tmp_path / "a.fil", fb, nbits=nbits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = Filterbank.open(tmp_path / "a.fil")
    assert np.array_equal(back.read(), x[::-1])
    assert back.observation.tstart == 59000.25
    assert back.observation.source == "fake"
    assert [p.name for p in tmp_path.iterdir()] == ["a.fil"]


def test_what_does_not_fit_is_not_written(tmp_path):
    fb = Filterbank.from_array(data("u1"), fch1=1400, foff=-1, tsamp=1e-3)
    for nbits, message in ((4, "which needs more bits"), (3, "nbits=3: expected one of 1, 2, 4")):
        with pytest.raises(ValueError, match=message):
            write_fil(tmp_path / "a.fil", fb, nbits=nbits)
    with pytest.raises(ValueError, match="need 32"):
        write_fil(tmp_path / "a.fil", Filterbank.from_array(data("f4"), fch1=1400, foff=-1, tsamp=1e-3), nbits=8)
    with pytest.raises(ValueError, match="do not fill whole bytes"):
        write_fil(tmp_path / "a.fil", Filterbank.from_array(data("u1")[:3], fch1=1400, foff=-1, tsamp=1e-3), nbits=1)
    assert list(tmp_path.iterdir()) == []


def test_files_that_follow_each_other(tmp_path):
    x = data("u1", (40, 4))
    a = fil(tmp_path, x[:13], "a.fil")
    b = fil(tmp_path, x[13:], "b.fil", tstart=58000 + 13e-3 / 86400)
    fb = Filterbank.open([b, a])
    assert np.array_equal(fb.read(), x.T)
    assert np.array_equal(fb.block(10, 7), x.T[:, 10:17])
    assert [(s, blk.shape[1]) for s, blk in fb.blocks(16, overlap=4)] == [(0, 16), (12, 16), (24, 16)]
    late = fil(tmp_path, x[13:], "late.fil", tstart=58000 + 23e-3 / 86400)
    with pytest.raises(BadFile, match=r"a gap of 0\.01\d* s \(10\.\d samples\)"):
        Filterbank.open([a, late])
    other = fil(tmp_path, x[13:], "other.fil", tstart=58000 + 13e-3 / 86400, fch1=1400.0)
    with pytest.raises(BadFile, match="channels differ"):
        Filterbank.open([a, other])
    with pytest.raises(ValueError, match="at least one file"):
        Filterbank.open([])
    for name, dm, start in (("a", 10, 58000), ("b", 20, 58000 + 4e-3 / 86400)):
        write_tim(tmp_path / f"{name}.tim", np.ones(4), fb.observation.replace(tstart=start), dm=dm, tsamp=1e-3)
    with pytest.raises(BadFile, match=r"DM=20\.0, but 10\.0 in"):
        Filterbank.open([tmp_path / "a.tim", tmp_path / "b.tim"])


def test_real_widths_agree(test_data):
    """Measured when the data were collected: correlations with the 8-bit file, lowest bits first."""
    folder = test_data / "dedispersion"
    truth = Filterbank.open(folder / "parkes_8bit_1.fil").read().astype(float)
    for nbits, expected in ((1, 0.797), (2, 0.938), (4, 0.975)):
        x = Filterbank.open(folder / f"parkes_{nbits}bit.fil").read().astype(float)
        live = (x.std(axis=1) > 0) & (truth.std(axis=1) > 0)
        r = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(x[live], truth[live], strict=True)])
        assert r == pytest.approx(expected, abs=0.01)
    two = Filterbank.open([folder / "parkes_8bit_1.fil", folder / "parkes_8bit_2.fil"])
    assert two.nsamp == 8192
    assert np.array_equal(two.block(4090, 12)[:, :6], truth[:, 4090:])


def test_real_file_as_your_reads_it(test_data):
    your = pytest.importorskip("your")
    folder = test_data / "dedispersion"
    for name in ("parkes_8bit_1.fil", "parkes_8bit_2.fil"):  # narrower ones it refuses
        theirs = your.Your(str(folder / name))
        ours = Filterbank.open(folder / name)
        assert np.array_equal(ours.block(100, 500), theirs.get_data(100, 500).T)
        assert ours.freqs[0] == pytest.approx(theirs.your_header.fch1)


# ---------------------------------------------------------------- PSRFITS


def psrfits(
    path, raw, nbits, *, npol=1, pol="AA+BB", freqs=None, scl=None, offs=None, wts=None, zero=0, nsblk=16, **keys
):
    """A search-mode file; ``raw``: (samples, npol, nchan) integers."""
    from astropy.io import fits

    n, _, nchan = raw.shape
    rows = n // nsblk
    freqs = 1500.0 - np.arange(nchan) if freqs is None else freqs
    step = float(freqs[1] - freqs[0]) if nchan > 1 else -1.0
    cells = raw.reshape(rows, nsblk, npol, nchan)
    if nbits < 8:
        per = 8 // nbits
        parts = cells.reshape(rows, -1, per).astype(np.uint8)
        shifts = (nbits * np.arange(per)[::-1]).astype(np.uint8)
        cells = np.bitwise_or.reduce(parts << shifts, axis=2)
    width = npol * nchan
    scl = np.ones((rows, width)) if scl is None else scl
    offs = np.zeros((rows, width)) if offs is None else offs
    wts = np.ones((rows, nchan)) if wts is None else wts
    flat = cells.reshape(rows, -1)
    letter = {16: "I"}.get(nbits, "B")
    columns = [
        fits.Column("TSUBINT", "D", array=np.full(rows, nsblk * 1e-3)),
        fits.Column("OFFS_SUB", "D", array=nsblk * 1e-3 * (np.arange(rows) + 0.5)),
        fits.Column("DAT_FREQ", f"{nchan}D", array=np.tile(freqs, (rows, 1))),
        fits.Column("DAT_WTS", f"{nchan}E", array=wts),
        fits.Column("DAT_OFFS", f"{width}E", array=offs),
        fits.Column("DAT_SCL", f"{width}E", array=scl),
        fits.Column("DATA", f"{flat.shape[1]}{letter}", array=flat),
    ]
    primary = fits.PrimaryHDU()
    for key, value in {
        "FITSTYPE": "PSRFITS", "OBS_MODE": "SEARCH", "STT_IMJD": 58000, "STT_SMJD": 43200, "STT_OFFS": 0.5,
        "SRC_NAME": "B0531+21", "TELESCOP": "Parkes", "RA": "05:34:31.97", "DEC": "-22:00:52.1",
        "OBSFREQ": freqs.mean(), "OBSBW": step * nchan, "OBSNCHAN": nchan,
        "BACKEND": "x", "FRONTEND": "x",
        "HDRVER": "5.4", "PROJID": "x", "STT_LST": 0.0, "FD_POLN": "LIN", "BE_DCC": 0, "CHAN_DM": 0.0, "OBSERVER": "x",
        "COORD_MD": "J2000", "EQUINOX": 2000.0, "STT_CRD1": "05:34:31.97", "STT_CRD2": "-22:00:52.1",
        "TRK_MODE": "TRACK", "BE_PHASE": 0,
        "BMIN": 0.1, "BMAJ": 0.1, "DATE-OBS": "2017-09-04T12:00:00", "ANT_X": 0.0, "ANT_Y": 0.0, "ANT_Z": 0.0,
    }.items():  # fmt: skip
        primary.header[key] = value
    table = fits.BinTableHDU.from_columns(columns, name="SUBINT")
    for key, value in {
        "NBITS": nbits, "NCHAN": nchan, "NPOL": npol, "POL_TYPE": pol, "TBIN": 1e-3, "NSBLK": nsblk, "NSTOT": n,
        "CHAN_BW": step, "ZERO_OFF": zero, "SIGNINT": 0, "NSUBOFFS": 0, "NCHNOFFS": 0, **keys,
    }.items():  # fmt: skip
        table.header[key] = value
    fits.HDUList([primary, table]).writeto(path)
    return path


def test_psrfits_without_weights_and_scales(tmp_path):
    from astropy.io import fits

    raw = data("u1", (48, 1, 16))
    whole = psrfits(tmp_path / "a.sf", raw, 8)
    with fits.open(whole) as file:
        for name in ("DAT_WTS", "DAT_SCL", "DAT_OFFS"):
            file["SUBINT"].columns.del_col(name)
        file.writeto(tmp_path / "b.sf")
    with pytest.warns(UserWarning, match=r"lacks DAT_WTS \(taken as 1\), DAT_SCL .* DAT_OFFS \(taken as 0\)"):
        fb = Filterbank.open(tmp_path / "b.sf")
    with fb:
        assert fb.dtype == np.uint8
        assert np.array_equal(fb.read().T, raw[:, 0])


def test_names_of_psrfits_columns_may_be_in_lower_case(tmp_path):
    from astropy.io import fits

    raw = data("u1", (48, 1, 16))
    with fits.open(psrfits(tmp_path / "a.sf", raw, 8, scl=np.full((3, 16), 2.0))) as file:
        for number, name in enumerate(file["SUBINT"].columns.names, start=1):
            file["SUBINT"].header[f"TTYPE{number}"] = name.lower()
        file.writeto(tmp_path / "b.sf")
    with Filterbank.open(tmp_path / "b.sf") as fb:
        assert np.array_equal(fb.read().T, 2.0 * raw[:, 0])


@pytest.mark.parametrize("nbits", [1, 2, 4, 8])
@pytest.mark.parametrize("ascending", [False, True])
def test_psrfits_integers(tmp_path, nbits, ascending):
    raw = data("u1", (48, 1, 16)) >> (8 - nbits)
    freqs = 1500.0 - np.arange(16) if not ascending else 1485.0 + np.arange(16)
    fb = Filterbank.open(psrfits(tmp_path / "a.fits", raw, nbits, freqs=freqs))
    expected = raw[:, 0].T if not ascending else raw[:, 0, ::-1].T
    assert fb.dtype == np.uint8
    assert fb.maximum == 2**nbits - 1
    assert np.array_equal(fb.read(), expected)
    assert np.array_equal(fb.block(13, 21), expected[:, 13:34])
    assert fb.observation.tstart == pytest.approx(58000 + 43200.5 / 86400, abs=1e-11)
    assert (fb.observation.dec, fb.observation.source) == (pytest.approx(-22.014472, abs=1e-6), "B0531+21")
    fb.close()


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_psrfits_samples_that_begin_within_bytes(tmp_path, scale):
    raw = data("u1", (48, 1, 6)) >> 6
    fb = Filterbank.open(psrfits(tmp_path / "a.fits", raw, 2, scl=np.full((3, 6), scale)))
    expected = raw[:, 0].T * np.float32(scale)
    assert np.array_equal(fb.read(), expected)
    for start, count in ((0, 1), (13, 21), (17, 3), (47, 1)):
        assert np.array_equal(fb.block(start, count), expected[:, start : start + count])
    fb.close()


def with_samples(path, samples, letter, zero):
    """A copy of a PSRFITS file whose DATA column has these samples and this TZERO, as astropy writes them."""
    from astropy.io import fits

    with fits.open(path) as file:
        table = file["SUBINT"]
        columns = [c for c in table.columns if c.name != "DATA"]
        rows = samples.reshape(len(table.data), -1)
        columns.append(fits.Column("DATA", f"{rows.shape[1]}{letter}", array=rows, bzero=zero))
        new = fits.BinTableHDU.from_columns(columns, name="SUBINT")
        for key in ("NBITS", "NCHAN", "NPOL", "POL_TYPE", "TBIN", "NSBLK"):
            new.header[key] = table.header[key]
        fits.HDUList([file[0], new]).writeto(path.with_name("z.fits"))
    return path.with_name("z.fits")


@pytest.mark.parametrize(
    ("kind", "nbits", "letter", "zero"), [("u2", 16, "I", 2**15), ("i1", 8, "B", -128), ("i4", 32, "J", None)]
)
def test_psrfits_samples_as_astropy_stores_them(tmp_path, kind, nbits, letter, zero):
    raw = data(kind, (48, 1, 16)) if nbits < 32 else data("i2", (48, 1, 16)).astype("i4")
    path = psrfits(tmp_path / "a.fits", raw, nbits)
    with Filterbank.open(with_samples(path, raw, letter, zero)) as fb:
        assert fb.dtype == (np.float32 if nbits == 32 else np.dtype(kind))
        assert np.array_equal(fb.read(), raw[:, 0].T)


def test_psrfits_samples_of_another_type_are_refused(tmp_path):
    raw = data("u1", (48, 1, 16))
    path = psrfits(tmp_path / "a.fits", raw, 8)
    with pytest.raises(ValueError, match=r"DATA has TFORM='256I'.*TZERO=0 with NBITS=8; expected the code B"):
        Filterbank.open(with_samples(path, raw.astype("i2"), "I", None))


@pytest.mark.parametrize("kind", ["u2", "i2"])
def test_psrfits_rows_of_one_sample_keep_their_byte_order(tmp_path, kind):
    raw = np.array([[[1]], [[2]], [[300]], [[32000]]], kind)
    path = psrfits(tmp_path / "a.fits", raw, 16, nsblk=1)
    with Filterbank.open(path) as fb:
        assert fb.read().tolist() == [[1, 2, 300, 32000]]


def test_psrfits_scales_polarisations_and_weights(tmp_path):
    raw = data("u1", (32, 2, 8))
    rng = np.random.default_rng(1)
    scl, offs = rng.uniform(0.5, 2, (2, 16)), rng.normal(size=(2, 16))
    wts = np.ones((2, 8))
    wts[1, 3] = 0
    path = psrfits(tmp_path / "a.fits", raw, 8, npol=2, pol="AABB", scl=scl, offs=offs, wts=wts, zero=3.5)
    fb = Filterbank.open(path)
    per = [np.repeat(a.reshape(2, 2, 8), 16, axis=0) for a in (scl, offs)]
    value = ((raw - 3.5) * per[0] + per[1]) * np.repeat(wts, 16, axis=0)[:, None]
    assert fb.dtype == np.float32
    # derived: a handful of float32 operations on values up to 600
    np.testing.assert_allclose(fb.read(), value.sum(axis=1).T, atol=600 * 5 * 2**-24)
    np.testing.assert_allclose(Filterbank.open(path, ifs=1).read(), value[:, 1].T, atol=600 * 5 * 2**-24)
    assert isinstance(fb.readers[0], PsrfitsReader)


def test_psrfits_stokes_takes_total_power(tmp_path):
    raw = data("u1", (16, 4, 8))
    fb = Filterbank.open(psrfits(tmp_path / "a.fits", raw, 8, npol=4, pol="IQUV"))
    assert np.array_equal(fb.read(), raw[:, 0].T)


@pytest.mark.parametrize("nbits", [2, 4, 8])
def test_psrfits_as_your_reads_it(tmp_path, nbits):
    your = pytest.importorskip("your")
    raw = data("u1", (48, 1, 16)) >> (8 - nbits)
    path = psrfits(tmp_path / "a.fits", raw, nbits)
    assert np.array_equal(Filterbank.open(path).block(7, 30), your.Your(str(path)).get_data(7, 30).T)


# ---------------------------------------------------------------- time series


def test_real_time_series(test_data):
    folder = test_data / "dedispersion"
    dat, tim = Filterbank.open(folder / "GBT_J1807-0847.dat"), Filterbank.open(folder / "GBT_J1807-0847.tim")
    assert (dat.nsamp, tim.nsamp) == (131072, 131130)
    a, b = dat.read()[0], tim.read()[0]  # made by two programs, one sample apart; measured: 0.873
    assert np.corrcoef(a[:131000], b[1:131001])[0, 1] > 0.85
    assert dat.observation.dm == tim.observation.dm == 112.3802
    assert dat.observation.top == 720.78125 + 255 * 0.78125
    assert dat.observation.dec == pytest.approx(tim.observation.dec, abs=1e-7)
    assert Filterbank.open(folder / "presto" / "tutorial_DM30.00.inf").nsamp == 187200  # the rest is padding


def test_time_series_out_and_in(tmp_path):
    fb = Filterbank.from_array(data("u1"), fch1=1400, foff=-0.5, tsamp=6.4e-5, tstart=59000.25, source="fake")
    series = fb.read().sum(axis=0)
    write_dat(tmp_path / "s.dat", series, fb.observation, dm=12.5, tsamp=1.28e-4)
    write_tim(tmp_path / "s.tim", series, fb.observation, dm=12.5, tsamp=1.28e-4)
    for name in ("s.dat", "s.tim"):
        back = Filterbank.open(tmp_path / name)
        assert np.array_equal(back.read(), [series])
        assert (back.tsamp, back.observation.dm, back.observation.top) == (1.28e-4, 12.5, 1400.0)
    assert "4149.377593" in (tmp_path / "s.inf").read_text()
    assert Filterbank.open(tmp_path / "s.dat").observation.band == 12.0
    again = Filterbank.open(tmp_path / "s.dat")
    write_dat(tmp_path / "t.dat", again.read()[0], again.observation, dm=12.5)
    third = Filterbank.open(tmp_path / "t.dat")
    assert (third.observation.top, third.observation.band) == (1400.0, 12.0)
    with pytest.raises(ValueError, match="one dimension"):
        write_dat(tmp_path / "u.dat", np.zeros((2, 3)), fb.observation, dm=0)


@pytest.mark.parametrize("ref_freq", ["top", "infinity", "bottom", "centre", 385.0])
@pytest.mark.parametrize("kind", ["dat", "tim"])
def test_times_of_written_series_are_those_at_the_top(tmp_path, ref_freq, kind):
    x = np.zeros((32, 9000), np.uint8)
    fb = Filterbank.from_array(x, fch1=400, foff=-1, tsamp=1e-3, tstart=59000.25)
    for row, late in zip(x, sample_delays(fb.freqs, np.array([60.0]), 1e-3)[0], strict=True):
        row[4000 + late : 4004 + late] = 1
    for downsamp in (1, 4):
        result = dedisperse(fb, [30.0, 60.0], ref_freq=ref_freq, downsamp=downsamp)
        series = Filterbank.open(result.write(tmp_path / f"s{downsamp}", format=kind)[1])
        peak = int(series.read()[0].argmax())
        seconds = (series.observation.tstart - 59000.25) * 86400 + peak * series.tsamp
        assert abs(seconds - 4.0) < 2e-3 * downsamp  # derived: shifts are rounded, and so are MJDs


def test_inconsistent_time_series_are_refused(tmp_path):
    fb = Filterbank.from_array(data("u1"), fch1=1400, foff=-0.5, tsamp=6.4e-5)
    write_dat(tmp_path / "s.dat", fb.read()[0], fb.observation, dm=0)
    whole = (tmp_path / "s.dat").read_bytes()
    (tmp_path / "s.dat").write_bytes(whole[:40])
    with pytest.raises(BadFile, match=r"10 samples, but its \.inf claims 37"):
        Filterbank.open(tmp_path / "s.dat")
    text = (tmp_path / "s.inf").read_text()
    for number in ("-5", "nan", "inf"):
        (tmp_path / "s.inf").write_text(text.replace("=  37", f"=  {number}"))
        with pytest.raises(BadFile, match=f"Number of bins in the time series' is '{number}'"):
            Filterbank.open(tmp_path / "s.dat")
    for value, message in (("nan", "reaches nan MHz"), ("1.4", "in MHz, not GHz")):
        lines = [
            f" Central freq of low channel (MHz) =  {value}" if "Central" in line else line for line in text.split("\n")
        ]
        (tmp_path / "s.inf").write_text("\n".join(lines).replace("Number of channels  ", "Number of them  "))
        with pytest.raises(BadFile, match=message):
            Filterbank.open(tmp_path / "s.dat")
    (tmp_path / "s.inf").unlink()
    with pytest.raises(BadFile, match="missing"):
        Filterbank.open(tmp_path / "s.dat")


# ---------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"nbits": 3}, "nbits=3; expected one of 1, 2, 4, 8, 16, 32"),
        ({"nchans": 0}, "nchans=0"),
        ({"tsamp": 0.0}, "tsamp=0.0"),
        ({"tsamp": float("nan")}, "tsamp=nan"),
        ({"foff": 0.0}, "foff=0.0"),
        ({"fch1": 1.5, "foff": -0.01}, "in MHz, not GHz"),
        ({"fch1": 2.0}, "expected frequencies above 0"),
        ({"nifs": 0}, "nifs=0"),
        ({"data_type": 9}, "data_type=9"),
        ({"nonsense": 1}, "unknown header key 'nonsense'"),
        ({"fchannel": [1500.0, 1400.0]}, "nchans=4, but 2 fchannel"),
        ({"nbits": 1, "nchans": 5}, "does not fill whole bytes"),
        ({"nchans": 1000}, "holds no whole spectrum"),
    ],
)
def test_inconsistent_headers_are_refused(tmp_path, keys, message):
    path = tmp_path / "a.fil"
    path.write_bytes(header(**{**PLAIN, **keys}) + bytes(64))
    with pytest.raises(BadFile, match=message) as caught:
        Filterbank.open(path)
    assert "a.fil" in str(caught.value)


def test_every_truncated_header_is_refused(tmp_path):
    whole = header(**PLAIN, source_name="x")
    for end in range(len(whole)):
        path = tmp_path / "a.fil"
        path.write_bytes(whole[:end])
        with pytest.raises(BadFile, match=r"cut off|not a SIGPROC|is empty|no whole"):
            Filterbank.open(path)


def test_damaged_lengths_are_refused(tmp_path):
    whole = bytearray(header(**PLAIN) + bytes(64))
    struct.pack_into("<i", whole, 16, 2**30)
    (tmp_path / "a.fil").write_bytes(bytes(whole))
    with pytest.raises(BadFile, match="1073741824 bytes"):
        Filterbank.open(tmp_path / "a.fil")


def test_cut_and_growing_data(tmp_path):
    x = data("u1", (20, 4))
    path = fil(tmp_path, x, nsamples=50)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match=r"last 1 bytes are part|claims 50 samples") as seen:
        fb = Filterbank.open(path)
    assert len(seen) == 2
    assert fb.nsamp == 19
    with path.open("ab") as file:
        file.write(bytes(40))
    assert fb.nsamp == 19
    assert np.array_equal(fb.read(), x[:19].T)
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(BadFile, match="cut off after it was opened"):
        fb.read()


def test_ranges_and_missing_files(tmp_path):
    fb = Filterbank.open(fil(tmp_path, data("u1", (20, 4))))
    for start, count in ((-1, 3), (18, 3), (0, -1)):
        with pytest.raises(ValueError, match="expected samples within 0 to 20"):
            fb.block(start, count)
    with pytest.raises(ValueError, match="overlap=5"):
        next(fb.blocks(5, overlap=5))
    with pytest.raises(FileNotFoundError):
        Filterbank.open(tmp_path / "nothing.fil")
    (tmp_path / "b.txt").write_text("a line that is no filterbank")
    with pytest.raises(BadFile, match=r"is not a SIGPROC .* \(\.dat\) file$"):
        Filterbank.open(tmp_path / "b.txt")
    (tmp_path / "b.dada").write_text("HEADER DADA\nHDR_SIZE 4096\nNBIT 8\n")
    with pytest.raises(BadFile, match="PSRDADA files are searched as streams, by 'dedisp stream --from'"):
        Filterbank.open(tmp_path / "b.dada")


# ---------------------------------------------------------------- arrays


def test_arrays():
    x = data("u1")
    fb = Filterbank.from_array(x, fch1=1400, foff=-1, tsamp=1e-3)
    assert np.shares_memory(fb.block(3, 4), x)
    up = Filterbank.from_array(x, fch1=1400, foff=1, tsamp=1e-3)
    assert np.array_equal(up.read(), x[::-1])
    mixed = Filterbank.from_array(x[:3], freqs=[1400, 1500, 1450], tsamp=1e-3)
    assert np.array_equal(mixed.read(), x[[1, 2, 0]])
    assert Filterbank.from_array(x.astype(float), fch1=1400, foff=-1, tsamp=1e-3).dtype == np.float32
    assert Filterbank.from_array(x > 127, fch1=1400, foff=-1, tsamp=1e-3).maximum == 1
    swapped = Filterbank.from_array(data("i2").astype(">i2"), fch1=1400, foff=-1, tsamp=1e-3)
    assert swapped.dtype == np.int16
    assert np.array_equal(swapped.read(), data("i2"))


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        (np.zeros(4, np.uint8), {}, ValueError, "1 dimensions"),
        (np.zeros((0, 4), np.uint8), {}, ValueError, "at least one channel"),
        (np.zeros((2, 4), np.int64), {}, TypeError, "dtype int64"),
        (np.zeros((2, 4), np.uint8), {"tsamp": -1.0}, ValueError, "tsamp=-1.0"),
        (np.zeros((2, 4), np.uint8), {"foff": 0.0}, ValueError, "foff"),
        (np.zeros((2, 4), np.uint8), {"fch1": 1.4, "foff": -0.1}, ValueError, "not GHz"),
        (np.zeros((2, 4), np.uint8), {"fch1": None}, ValueError, "fch1 and foff, or freqs"),
        (np.zeros((2, 4), np.uint8), {"freqs": [1, 2, 3]}, ValueError, r"shape \(3,\)"),
        (np.zeros((2, 4), np.uint8), {"freqs": [1400, 1400]}, ValueError, "same frequency"),
        (np.full((2, 4), 9, np.uint8), {"nbits": 2}, ValueError, "reaches 9"),
        (np.zeros((2, 4), np.float32), {"nbits": 2}, ValueError, "nbits=2"),
    ],
)
def test_bad_arrays(x, options, error, message):
    with pytest.raises(error, match=message):
        Filterbank.from_array(x, **{"fch1": 1400.0, "foff": -1.0, "tsamp": 1e-3, **options})


def test_written_headers_are_short_and_ascii():
    fb = Filterbank.from_array(np.zeros((2, 4), np.uint8), fch1=1400, foff=-1, tsamp=1e-3, source="é" * 400)
    assert len(header_bytes(fb.observation, 8, signed=False)) < 700


def test_arguments_of_writers_in_the_wrong_order_are_named(tmp_path):
    fb = Filterbank.from_array(np.eye(4, 8, dtype=np.uint8), fch1=1500, foff=-1, tsamp=1e-3)
    with pytest.raises(TypeError, match=r"^path is a Filterbank, expected the name of a file$"):
        write_fil(fb, tmp_path / "a.fil")
    for write in (write_dat, write_tim):
        with pytest.raises(TypeError, match=r"^path is a ndarray, expected the name of a file$"):
            write(np.ones(8), tmp_path / "a.dat", fb.observation, dm=0)
    assert not list(tmp_path.iterdir())
