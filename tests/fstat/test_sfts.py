"""SFT files against LALPulsar's reader and writer; errors name the fault of a file."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from skysieve.core.tasks import TaskPool
from skysieve.fstat import Demodulator, simulate_sfts
from skysieve.fstat.command.sfts import extent
from skysieve.fstat.sfts import cpu_median
from skysieve.fstat.sfts.cpu_crc64 import crc64
from skysieve.fstat.sfts.cpu_median import running_medians
from skysieve.fstat.sfts.files import HEADER, block_of, read_sfts, write_sfts
from skysieve.fstat.sfts.noise import median_bias, noise_floor, noise_weights, normalized
from skysieve.fstat.sfts.sfts import SFTs, Taper


def made(
    detector="H1", n=4, bins=60, first_bin=179_820, tsft=1800, start=1_000_000_000, seed=1, taper=None, scale=1e-22
):
    rng = np.random.default_rng(seed)
    data = scale * (rng.standard_normal((n, bins)) + 1j * rng.standard_normal((n, bins)))
    return SFTs(detector, start + tsft * np.arange(n), tsft, first_bin, data, taper or Taper())


def same(a, b):
    """Whether two sets of SFTs hold the same values."""
    facts = [(s.detector, s.tsft, s.first_bin, s.taper) for s in (a, b)]
    return facts[0] == facts[1] and np.array_equal(a.t, b.t) and np.array_equal(a.data, b.data)


def plain_crc(data):
    """The checksum bit by bit."""
    crc = (1 << 64) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xD800000000000000 if crc & 1 else 0)
    return crc


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 100])
def test_the_checksum_is_the_plain_one(n):
    data = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)
    assert crc64(data) == plain_crc(bytes(data)) == crc64(bytes(data[: n // 3]), data[n // 3 :])


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("taper", [Taper(), Taper("hann"), Taper("tukey", 0.25)])
def test_files_are_read_as_they_were_written(tmp_path, version, merged, taper):
    sets = [made("H1", taper=taper), made("L1", 3, seed=2, taper=taper)]
    files = write_sfts(tmp_path, sets, version=version, merged=merged, comment="made by a test")
    assert len(files) == (2 if merged else 7)
    for found, one in zip(read_sfts(tmp_path), sets, strict=True):
        expected = (
            one if version == 3 else SFTs(one.detector, one.t, one.tsft, one.first_bin, one.data, Taper("unknown"))
        )
        assert same(found, expected)
    (second,) = read_sfts(files, detectors=["L1"])
    assert second.detector == "L1"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("taper", [Taper(), Taper("hann"), Taper("tukey", 0.25)])
def test_lalpulsar_reads_what_we_write(tmp_path, version, taper):
    lalpulsar = pytest.importorskip("lalpulsar")
    one = made(taper=taper)
    (path,) = write_sfts(tmp_path, one, version=version, comment="x")
    catalog = lalpulsar.SFTdataFind(str(path), None)
    assert catalog.length == 4
    assert lalpulsar.CheckCRCSFTCatalog(catalog)
    theirs = lalpulsar.LoadSFTs(catalog, -1, -1)
    assert np.array_equal([sft.data.data for sft in theirs.data], one.data)
    assert [sft.epoch.gpsSeconds for sft in theirs.data] == list(one.t)
    assert theirs.data[0].f0 == pytest.approx(one.frequencies[0], rel=1e-15)
    if version == 3:
        assert catalog.data[0].window_type == one.taper.kind
        assert catalog.data[0].window_param == pytest.approx(one.taper.beta)


def test_we_read_what_lalpulsar_writes(tmp_path):
    lalpulsar = pytest.importorskip("lalpulsar")
    one = made(taper=Taper("tukey", 0.5))
    (path,) = write_sfts(tmp_path, one)
    theirs = lalpulsar.LoadSFTs(lalpulsar.SFTdataFind(str(path), None), -1, -1)
    (tmp_path / "lal").mkdir()
    lalpulsar.WriteSFTVector2NamedFile(theirs, str(tmp_path / "lal" / "a.sft"), "tukey", 0.5, "comment")
    (found,) = read_sfts(tmp_path / "lal")
    assert same(found, one)


def test_other_byte_order(tmp_path):
    one = made(n=1)
    raw = block_of(one, 0, 3, "")
    header = np.frombuffer(raw[:48], HEADER.newbyteorder("<")).astype(HEADER.newbyteorder(">"))
    header["crc64"] = 0
    data = one.data[0].astype(">c8").tobytes()
    header["crc64"] = crc64(header.tobytes(), data)
    path = tmp_path / "big.sft"
    path.write_bytes(header.tobytes() + data)
    assert same(read_sfts(path)[0], one)


def test_a_band_is_cut_out(tmp_path):
    write_sfts(tmp_path, made())
    (part,) = read_sfts(tmp_path, band=(99.905, 99.92))
    whole = read_sfts(tmp_path)[0]
    assert same(part, whole.part(99.905, 99.92))
    assert part.frequencies[0] <= 99.905 < part.frequencies[1]
    assert part.frequencies[-2] < 99.92 <= part.frequencies[-1]
    with pytest.raises(ValueError, match=r"at GPS 1000000000: SFTs hold 99\.9 to .* too narrow by 0\.4 Hz below"):
        read_sfts(tmp_path, band=(99.5, 99.92))
    with pytest.raises(ValueError, match=r"Hz below and .* Hz above"):
        read_sfts(tmp_path, band=(99.5, 102))


@pytest.mark.parametrize("overlap", [0, 3])
def test_narrow_bands_of_one_time_are_joined(tmp_path, overlap):
    """Files of neighbouring bands, as LALPulsar's splitSFTs writes them, are the SFTs that were split."""
    one = made(n=4)
    edges = [0, 5, 11, 12, one.data.shape[1]]
    for k, (a, b) in enumerate(pairwise(edges)):
        a = max(a - overlap, 0)
        write_sfts(tmp_path / f"{9 - k}.sft", SFTs("H1", one.t, 1800, one.first_bin + a, one.data[:, a:b], one.taper))
    assert same(read_sfts(tmp_path)[0], one)
    for first, last in ((0, 4), (4, 5), (6, 9), (3, 19), (10, 12), (13, 19)):
        band = ((one.first_bin + first) / 1800, (one.first_bin + last) / 1800)
        faults = []
        assert same(read_sfts(tmp_path, band, faults=faults)[0], one.part(*band))
        assert faults == []
    found = extent([str(tmp_path)])
    assert (found.low, found.high) == pytest.approx((one.frequencies[0], one.frequencies[-1]))
    (tmp_path / "8.sft").unlink()  # bins 5 to 7 of all times are missing
    with pytest.raises(ValueError, match="the band differs"):
        read_sfts(tmp_path)
    with pytest.raises(ValueError, match=r"at GPS 1000000000: SFTs hold .* too narrow by"):
        read_sfts(tmp_path, (one.first_bin / 1800, (one.first_bin + 11) / 1800))
    other = SFTs("H1", one.t, 1800, one.first_bin + 4, 2 * one.data[:, 4:11], one.taper)
    write_sfts(tmp_path / "8.sft", other)  # differs where it overlaps
    with pytest.raises(ValueError, match="the band differs"):
        read_sfts(tmp_path)


def damaged(raw, kind):
    if kind == "cut":
        return raw[:-8], "the file ends 8 bytes before the end of the data"
    if kind == "cut header":
        return raw[:20], "the file ends within a header"
    if kind == "bit":
        return raw[:100] + bytes([raw[100] ^ 1]) + raw[101:], "checksum 0x.* the file is damaged"
    if kind == "other":
        return b"SIMPLE  =                    T" * 3, "no header of an SFT"
    return b"", "the file ends within a header"


@pytest.mark.parametrize("kind", ["cut", "cut header", "bit", "other", "empty"])
def test_damaged_files_are_named(tmp_path, kind):
    raw, message = damaged(block_of(made(n=1), 0, 3, ""), kind)
    path = tmp_path / "bad.sft"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=rf"bad\.sft: SFT 0: {message}"):
        read_sfts(path)


def test_only_damaged_sfts_are_lost(tmp_path):
    """In a merged file, and in files of their own; after a damaged header the rest of its file is left out."""
    good = made(n=6)
    raw = [bytearray(block_of(good, i, 3, "")) for i in range(6)]
    raw[1][-1] ^= 1
    raw[4][:8] = bytes(8)
    (tmp_path / "merged.sft").write_bytes(b"".join(raw))
    later = made(start=1_000_100_000, n=3)
    later.data[1] = 0
    write_sfts(tmp_path / "later.sft", later)
    (tmp_path / "short.sft").write_bytes(block_of(made(start=1_000_200_000, n=1), 0, 3, "")[:-9])
    faults = []
    (found,) = read_sfts(tmp_path, faults=faults)
    assert found.t.tolist() == [*good.t[[0, 2, 3]], *later.t[[0, 2]]]
    assert np.array_equal(found.data, np.concatenate([good.data[[0, 2, 3]], later.data[[0, 2]]]))
    expected = ["later.sft: SFT 1: the data are zero", "merged.sft: SFT 1: checksum", "merged.sft: SFT 4: no header"]
    expected.append("short.sft: SFT 0: the file ends 9 bytes before")
    assert len(faults) == 4
    for text, part in zip(sorted(faults), expected, strict=True):
        assert part in text
    with pytest.raises(ValueError, match="ends 9 bytes before"):
        read_sfts(tmp_path / "short.sft", faults=[])


@pytest.mark.parametrize("limits", [(None, None), (1800, None), (1799, 5400), (1801, 5401), (None, 1)])
def test_start_times_are_selected_as_by_lalpulsar(tmp_path, limits):
    lalpulsar = pytest.importorskip("lalpulsar")
    lal = pytest.importorskip("lal")
    write_sfts(tmp_path, [made(), made("L1", start=1_000_000_000 - 100, seed=2)])
    chosen, options = lalpulsar.SFTConstraints(), {}
    for name, ours, limit in zip(("minStartTime", "maxStartTime"), ("min_start", "max_start"), limits, strict=True):
        if limit is not None:
            options[ours] = 1_000_000_000 + limit
            setattr(chosen, name, lal.LIGOTimeGPS(options[ours]))
    catalogue = lalpulsar.SFTdataFind(str(tmp_path / "*.sft"), chosen)
    heads = [catalogue.data[i].header for i in range(catalogue.length)]
    for one in read_sfts(tmp_path, **options):
        assert one.t.tolist() == [h.epoch.gpsSeconds for h in heads if h.name[:2] == one.detector]


def test_times_without_sfts_are_named(tmp_path):
    write_sfts(tmp_path, [made(), made("L1", start=1_000_100_000)])
    for options, message in (
        ({"min_start": 2e9}, "min_start=2000000000: no SFT starts then; they start from GPS 1000000000 to 1000105400"),
        ({"max_start": 1_000_050_000, "detectors": ["H1", "L1"]}, "max_start=1000050000: no SFT of L1 starts then"),
        ({"min_start": 5, "max_start": 5}, "max_start=5: expected a later time than min_start=5"),
        ({"min_start": np.nan}, "min_start=nan: expected GPS seconds"),
        ({"min_start": 1_000_100_000, "detectors": "V1"}, "no SFT of V1, only of H1, L1"),
    ):
        with pytest.raises(ValueError, match=message):
            read_sfts(tmp_path, **options)


def test_an_sft_that_starts_within_a_second_is_lost_alone(tmp_path):
    """LALPulsar reads such a file; its later SFTs are not lost."""
    lalpulsar = pytest.importorskip("lalpulsar")
    good = made(n=4)
    raw = [bytearray(block_of(good, i, 3, "")) for i in range(4)]
    offset, checksum = HEADER.fields["gps_nsec"][1], HEADER.fields["crc64"][1]
    raw[1][offset : offset + 4] = (5).to_bytes(4, "little")
    raw[1][checksum : checksum + 8] = bytes(8)
    raw[1][checksum : checksum + 8] = crc64(bytes(raw[1])).to_bytes(8, "little")
    path = tmp_path / "H-4_H1_1800SFT_test-1000000000-7200.sft"
    path.write_bytes(b"".join(raw))
    catalogue = lalpulsar.SFTdataFind(str(path), None)
    assert [catalogue.data[i].header.epoch.gpsNanoSeconds for i in range(catalogue.length)] == [0, 5, 0, 0]
    faults = []
    (found,) = read_sfts(path, faults=faults)
    assert found.t.tolist() == good.t[[0, 2, 3]].tolist()
    assert len(faults) == 1
    with pytest.raises(ValueError, match="SFT 1: starts 5 ns after a full second: expected whole GPS seconds"):
        read_sfts(path)


def test_sfts_that_differ_from_most_are_left_out(tmp_path):
    """Another length, other bins, an overlap, a band too narrow: each is named and left out."""
    good = made(n=6)
    write_sfts(tmp_path / "good.sft", good)
    start = good.t[-1] + 100_000
    write_sfts(tmp_path / "long.sft", SFTs("H1", [start], 3600, good.first_bin, good.data[:1]))
    write_sfts(tmp_path / "fewer.sft", SFTs("H1", [start + 10_000], 1800, good.first_bin, good.data[:1, :-3]))
    write_sfts(tmp_path / "over.sft", SFTs("H1", [good.t[2] + 900], 1800, good.first_bin, good.data[:1]))
    faults = []
    (found,) = read_sfts(tmp_path, faults=faults)
    assert np.array_equal(found.t, good.t)
    assert np.array_equal(found.data, good.data)
    text = "\n".join(sorted(faults))
    assert re.search(
        r"fewer\.sft.*other bins.*\n.*long\.sft.*is 3600 s long, most are 1800.*\n.*over\.sft.*overlaps.*good\.sft",
        text,
    )
    high = (good.first_bin + good.data.shape[1] - 2) / 1800
    faults = []
    (found,) = read_sfts(tmp_path, (good.first_bin / 1800, high), faults=faults)
    assert np.array_equal(found.t, good.t)
    assert any("fewer.sft" in one and "too narrow" in one for one in faults), faults


def test_wrong_sets_are_named(tmp_path):
    def refused(message, *sets, **options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for i, one in enumerate(sets):
            write_sfts(folder / f"{i}.sft", one)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            read_sfts(folder, **options)

    refused("no file in it ends in .sft")
    refused(r"detectors=\['H1', 'V1'\]: no SFT of V1, only of H1", made(), detectors=["H1", "V1"])
    refused(r"\['V1'\]: no SFT of V1, only of H1, L1", made(), made("L1"), detectors="V1")
    refused(r"\['H1', 'V1'\]: no SFT of V1, only of H1, L1", made(), made("L1"), detectors=["H1", "V1"])
    refused("overlaps the one at GPS 1000000000", made(), made(start=1_000_000_900))
    refused("overlaps", made(), made())
    refused("the band differs from that of", made(), made(start=1_000_100_000, first_bin=179_000))
    refused("the SFTs are 900 s long, but those of .* are 1800 s long", made(), made(start=1_000_100_000, tsft=900))
    refused("SFTs of 900 and 1800 s: expected one length", made(), made("L1", tsft=900))
    refused("SFTs is hann, but that of .* is rectangular", made(), made(start=1_000_100_000, taper=Taper("hann")))
    bad = made()
    bad.data[1, 3] = np.nan
    refused("SFT 1: the data hold NaN", bad)


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="starts at GPS 9000005400, expected at most 2147483647"):
        write_sfts(tmp_path, made(start=9_000_000_000))
    with pytest.raises(ValueError, match="version=1: expected 2 or 3"):
        write_sfts(tmp_path, made(), version=1)
    with pytest.raises(ValueError, match="label='a b': expected letters and digits"):
        write_sfts(tmp_path, made(), label="a b")
    with pytest.raises(NotADirectoryError, match="expected a folder"):
        write_sfts(tmp_path / "none", [made(), made("L1")])
    with pytest.raises(ValueError, match="several sets of H1"):
        write_sfts(tmp_path, [made(), made()])
    with pytest.raises(ValueError, match=r"SFTs at GPS 10 and 11 overlap"):
        SFTs("H1", [10, 11], 1800, 0, np.ones((2, 3)))
    with pytest.raises(ValueError, match="first_bin=nan"):
        SFTs("H1", [10], 1800, np.nan, np.ones((1, 3)))
    with pytest.raises(ValueError, match="detector='H11'"):
        SFTs("H11", [10], 1800, 0, np.ones((1, 3)))


def test_the_noise_floor_is_that_of_the_noise():
    one = made(n=30, bins=1001, scale=1e-22)
    floor = noise_floor(one)
    # |data|^2 has the mean 2e-44; a median of 101 varies by about 1 / sqrt(101)
    assert floor.mean() == pytest.approx(2 * 2e-44 / 1800, rel=0.02)
    assert np.abs(normalized(one, floor)[:, 50:-50].astype(complex) ** 2).mean() == pytest.approx(1, rel=0.02)
    assert np.array_equal(floor[:, :51], np.repeat(floor[:, :1], 51, axis=1))
    loud = SFTs("L1", one.t, 1800, one.first_bin, one.data * 3)
    (quiet, weak), _ = noise_weights([floor, noise_floor(loud)])
    np.testing.assert_allclose(weak / quiet, 1 / 9, rtol=1e-5)
    assert np.concatenate([quiet, weak]).mean() == pytest.approx(1)


def test_the_bias_of_a_median_of_exponentials():
    draws = np.random.default_rng(1).exponential(size=(40_000, 11))
    assert median_bias(11) == pytest.approx(np.median(draws, axis=1).mean(), abs=0.006)
    with pytest.raises(ValueError, match="expected an odd number"):
        median_bias(10)


def test_silent_sfts_are_named():
    one = made(bins=200)
    one.data[2] = 0
    with pytest.raises(ValueError, match="the SFT at GPS 1000003600 holds zeros"):
        noise_floor(one)
    one.data[2, :20] = 1
    with pytest.raises(ValueError, match="the SFT at GPS 1000003600 holds zeros in more than half of 101 bins"):
        noise_floor(one)
    with pytest.raises(ValueError, match="H1 has 60 bins, expected at least 101"):
        noise_floor(made())
    one.data[2] = 1
    for bad in (np.nan, complex(0, np.inf)):
        one.data[1, 7] = bad
        with pytest.raises(ValueError, match="the SFT at GPS 1000001800 holds NaN or infinite values"):
            noise_floor(one)


@pytest.mark.parametrize(("bins", "width"), [(9, 9), (10, 9), (300, 1), (300, 3), (600, 101), (150, 149)])
def test_running_medians_are_the_plain_ones(bins, width):
    values = np.random.default_rng(bins).exponential(size=(300, bins))
    values[::3] = np.round(values[::3])  # equal values
    values[1::7, bins // 2] = 1e300
    inner = np.median(np.lib.stride_tricks.sliding_window_view(values, width, axis=1), axis=-1)
    expected = np.pad(inner, ((0, 0), (width // 2, width // 2)), mode="edge")
    assert np.array_equal(running_medians(values, width), expected)
    assert np.array_equal(running_medians(values, width, threads=1), expected)


def test_the_noise_floor_uses_the_threads_that_are_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(cpu_median, "TaskPool", lambda threads: asked.append(threads) or TaskPool(threads))
    made = simulate_sfts((100, 100.2), 1_000_000_000, 7200, ephemeris="builtin")
    Demodulator(made, 0.5, 1.0, barycentre="builtin", threads=1).close()
    assert asked == [1, 1]  # of each detector


def test_arguments_of_write_sfts_in_the_wrong_order_are_named(tmp_path):
    sfts = SFTs("H1", [0, 1800], 1800, 180_000, np.ones((2, 5)))
    with pytest.raises(TypeError, match=r"^path is a SFTs, expected the name of a folder or file$"):
        write_sfts(sfts, tmp_path)
    with pytest.raises(TypeError, match=r"^sfts\[1\] is a str, expected SFTs$"):
        write_sfts(tmp_path, [sfts, "L1"])
    assert not list(tmp_path.iterdir())
