"""Channelisers against numpy's FFT and each other; the length of the pieces does not matter."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.dedispersion.dada import write_dada

from skysieve.dedispersion.data.sigproc import BadFile
from skysieve.dedispersion.stream.channelise.channeliser import Channeliser, disjoint, prototype
from skysieve.dedispersion.stream.receive.dada_file import DadaFile, is_dada

NSUB, POLS, TSAMP = 6, 2, 1e-6


@pytest.fixture(scope="module")
def voltages():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5003, POLS, NSUB, 2)).astype(np.float32)
    return np.ascontiguousarray(x.view(np.complex64)[..., 0])


def run(x, cuts, start=0, missing=(), **options):
    """Channelise voltages in pieces whose lengths repeat those of ``cuts``."""
    c = Channeliser(1400.0, options.pop("foff", -1.0), NSUB, POLS, TSAMP, **options)
    parts, rects, at, i = [], [], 0, 0
    missing = np.asarray(missing, np.int64).reshape(-1, 4)
    while at < len(x):
        n = min(cuts[i % len(cuts)], len(x) - at)
        some = missing[(missing[:, 0] < start + at + n) & (missing[:, 1] > start + at)].copy()
        some[:, :2] = np.clip(some[:, :2], start + at, start + at + n)
        found = c.feed(start + at, x[at : at + n], some)
        if found is not None:
            parts.append(found[:2])
            rects.append(found[2])
        at, i = at + n, i + 1
    last = c.finish()
    if last is not None:
        parts.append(last[:2])
        rects.append(last[2])
    for (a, rows), (b, _) in pairwise(parts):
        assert a + len(rows) == b
    return c, parts[0][0], np.concatenate([rows for _, rows in parts]), np.concatenate(rects)


@pytest.mark.few
@pytest.mark.parametrize("channels", [1, 5, 8, 128])
@pytest.mark.parametrize("foff", [-1.0, 1.0])
def test_fft_is_numpys(voltages, channels, foff):
    c, first, rows, _ = run(voltages, [5003], channels=channels, nbits=32, foff=foff)
    n = 5003 // channels
    y = np.fft.fft(voltages[: n * channels].reshape(n, channels, POLS, NSUB).astype(np.complex128), axis=1)
    power = (np.abs(y) ** 2).sum(axis=2)  # (n, channels, subbands)
    freqs = 1400 + foff * np.arange(NSUB) + np.fft.fftfreq(channels)[:, None]
    order = np.argsort(-freqs.ravel(), kind="stable")
    assert first == 0
    assert np.allclose(c.freqs, freqs.ravel()[order])
    expected = power.reshape(n, -1)[:, order]
    assert np.abs(rows - expected).max() < 1e-5 * expected.max()  # measured: 5e-7; float32


def test_a_tone_is_in_the_right_channel():
    """A tone 0.25 MHz above the centre of subband 2; sidebands mirror it; filter banks leak less than FFTs."""
    t = np.arange(4096)
    leak = {}
    for taps in (1, 8):
        x = np.zeros((4096, POLS, NSUB), np.complex64)
        x[:, 0, 2] = np.exp(2j * np.pi * t * (0.25 + 0.4 / 16))
        for sideband, expected in (("upper", 1398.25), ("lower", 1397.75)):
            c, _, rows, _ = run(x, [4096], channels=16, taps=taps, sideband=sideband, nbits=32)
            mean = rows.mean(axis=0)
            assert c.freqs[mean.argmax()] == pytest.approx(expected, abs=1e-9)
        near = np.abs(c.freqs - expected) < 2.5 / 16
        leak[taps] = mean[~near].sum() / mean.sum()
    assert leak[8] < 1e-3 * leak[1]


def test_polyphase_filter_is_its_definition(voltages):
    N, taps = 8, 4
    _, _, rows, _ = run(voltages, [5003], channels=N, taps=taps, stokes=1, nbits=32)
    h = prototype(N, taps, "hamming").ravel().astype(np.float64)
    for j in (0, 3, 100):
        x = (voltages[j * N : (j + taps) * N, 1].astype(np.complex128) * h[:, None]).reshape(taps, N, NSUB).sum(axis=0)
        power = np.abs(np.fft.fft(x, axis=0)) ** 2
        freqs = 1400 - np.arange(NSUB) + np.fft.fftfreq(N)[:, None]
        expected = power.ravel()[np.argsort(-freqs.ravel(), kind="stable")]
        assert np.abs(rows[j] - expected).max() < 1e-5 * expected.max()
    assert len(rows) == 5003 // N - taps + 1


@pytest.mark.parametrize(
    "options",
    [{"channels": 8}, {"channels": 8, "taps": 4, "window": "hann"}, {"channels": 8, "integrate": 3}, {"channels": 100},
     {"channels": 8, "nbits": 32, "stokes": 0}],
)  # fmt: skip
def test_pieces_of_any_length_give_the_same_bits(voltages, options):
    options = {"calibrate": 200e-6 * options.get("integrate", 1), **options}
    for start in (0, 37):
        missing = np.array([[700, 760, 0, NSUB], [1001, 1002, 2, 4], [3000, 3000 + 64, 1, 2]])
        missing[:, :2] += start
        x = voltages.copy()
        for a, b, low, high in missing - [start, start, 0, 0]:
            x[a:b, :, low:high] = 0
        _, first, whole, rects = run(x, [5003], start, missing, **options)
        gone = grid(rects, first, whole.shape)
        for cuts in ([64], [997], [1, 300, 41]):
            _, again, rows, some = run(x, cuts, start, missing, **options)
            assert again == first
            assert np.array_equal(rows, whole)
            assert np.array_equal(grid(some, first, whole.shape), gone)


def grid(rects, first, shape):
    out = np.zeros(shape, np.int64)
    for a, b, low, high in rects:
        out[a - first : b - first, low:high] += 1
    assert out.max() <= 1, "rectangles overlap"
    return out


@pytest.mark.parametrize("taps", [1, 4])
def test_a_spectrum_without_one_sample_is_missing(voltages, taps):
    """Exactly the spectra that use a missing voltage are missing."""
    N = 8
    missing = np.array([[801, 802, 2, 3], [1600, 1608, 0, NSUB]])
    rows = []
    for value in (0, 9):
        x = voltages.copy()
        for a, b, low, high in missing:
            x[a:b, :, low:high] = value
        c, first, power, rects = run(x, [333], missing=missing, channels=N, taps=taps, nbits=32)
        rows.append(power)
    changed = rows[0] != rows[1]
    marked = grid(rects, first, changed.shape).astype(bool)
    assert not (changed & ~marked).any()
    assert (marked.reshape(len(marked), NSUB, N).all(axis=2) == marked.reshape(len(marked), NSUB, N).any(axis=2)).all()
    assert marked.sum() == taps * N + taps * N * NSUB
    assert c.freqs.shape == (NSUB * N,)


def test_bytes_have_the_documented_mean_and_scatter(voltages):
    c, _, rows, _ = run(voltages, [640], channels=8, calibrate=5e-3)
    assert rows.dtype == np.uint8
    assert abs(rows.mean() - 96) < 0.5
    assert abs(rows.std() - 16) < 0.5
    assert c.dtype == "uint8"


@pytest.mark.parametrize("begins", [0, 100, 460, 700, 1700])
def test_a_subband_that_begins_late_has_its_own_level(voltages, begins):
    """A quarter of half a second (here 500 rows) gives the level; up to four such periods are waited for."""
    x = np.tile(voltages, (4, 1, 1))[:16000]  # 2000 rows of 8 channels
    x[: 8 * begins, :, 2] = 0
    lost = [(0, 8 * begins, 2, 3)] if begins else []
    options = {"channels": 8, "calibrate": 500 * 8 * TSAMP, "missing": lost}
    c, first, rows, rects = run(x, [1000], **options)
    for cuts in ([16000], [333, 4000]):
        _, again, others, gone = run(x, cuts, **options)
        assert again == first
        assert np.array_equal(others, rows)
        assert covered(gone, rows.shape).tolist() == covered(rects, rows.shape).tolist()
    late = np.flatnonzero((c.freqs > 1397.4) & (c.freqs < 1398.5))
    came = rows[begins:]
    assert abs(came[:, late].mean() - 96) < 2
    assert abs(came[:, late].std() - 16) < 2
    assert not covered(rects, rows.shape)[begins:].any()


@pytest.mark.parametrize("begins", [1950, 3000])
def test_a_subband_that_begins_too_late_is_missing(voltages, begins):
    x = np.tile(voltages, (6, 1, 1))[:28000]
    lost = [(0, 8 * begins, 2, 3)]
    gone = []
    for cuts in ([1000], [28000], [777, 5000]):
        c, _, rows, rects = run(x, cuts, channels=8, calibrate=500 * 8 * TSAMP, missing=lost)
        gone.append(covered(rects, rows.shape))
        late = np.flatnonzero((c.freqs > 1397.4) & (c.freqs < 1398.5))
        assert gone[-1][:, late].all()
        assert gone[-1].sum() == len(late) * len(rows)
    _, _, rows, rects = run(x[: 8 * 1960], [900], channels=8, calibrate=500 * 8 * TSAMP, missing=[(0, 15600, 2, 3)])
    assert not covered(rects, rows.shape)[1950:].any()  # the stream ends before: ten rows are enough


def covered(rects, shape):
    """Mask of the cells that the rectangles cover; rectangles may not overlap."""
    found = np.zeros(shape, int)
    for a, b, c0, c1 in rects:
        found[a:b, c0:c1] += 1
    assert found.max(initial=0) <= 1
    return found.astype(bool)


def test_disjoint_keeps_the_area():
    rng = np.random.default_rng(3)
    for _ in range(50):
        low = rng.integers(0, 20, (6, 2))
        rects = np.stack(
            [low[:, 0], low[:, 0] + rng.integers(1, 9, 6), low[:, 1], low[:, 1] + rng.integers(1, 9, 6)], axis=1
        )
        area = np.zeros((40, 40), bool)
        for a, b, c, d in rects:
            area[a:b, c:d] = True
        assert np.array_equal(grid(disjoint(rects), 0, (40, 40)).astype(bool), area)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"channels": 0}, "channels=0"), ({"window": "kaiser"}, "window='kaiser'"), ({"nbits": 4}, "nbits=4"),
     ({"sideband": "both"}, "sideband='both'"), ({"stokes": 2}, "stokes=2"), ({"taps": 0}, "taps=0"),
     ({"calibrate": 0.0}, "calibrate=0.0")],
)  # fmt: skip
def test_bad_channelisers(options, message):
    with pytest.raises(ValueError, match=message):
        Channeliser(1400.0, -1.0, NSUB, POLS, TSAMP, **options)


# ---------------------------------------------------------------- PSRDADA


def test_dada_files_are_read_as_written(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (50, 2, 4, 2), dtype=np.int8)
    path = tmp_path / "a.dada"
    write_dada(path, x, tsamp=1e-6, fch1=1402.0, foff=-1.0, tstart=60000.25)
    assert is_dada(path)
    d = DadaFile(path)
    assert (d.nsamp, d.nchan, d.npol, d.complex, d.tstart) == (50, 4, 2, True, 60000.25)
    assert (d.fch1, d.foff, d.tsamp) == (1402.0, -1.0, pytest.approx(1e-6))
    assert np.array_equal(d.steps(0, 50).view(np.int8).reshape(50, 2, 4, 2), x)
    assert d.geometry(64).packet_bytes == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [((b"NBIT", b"XBIT"), "lacks NBIT"), ((b"NDIM 2", b"NDIM 3"), "NDIM=3"), ((b"TFP", b"FTP"), "ORDER=FTP"),
     ((b"HDR_SIZE 4096", b"HDR_SIZE 9"), "HDR_SIZE=9"), ((b"NCHAN 4", b"NCHAN x"), "expected a whole number"),
     ((b"TSAMP", b"TSAMP -"), "expected a number")],
)  # fmt: skip
def test_bad_dada(tmp_path, change, message):
    path = tmp_path / "a.dada"
    write_dada(path, np.zeros((5, 1, 4, 2), np.int8), tsamp=1e-6, fch1=1402.0, foff=-1.0)
    path.write_bytes(path.read_bytes().replace(*change))
    with pytest.raises(BadFile, match=message):
        DadaFile(path)
    empty = tmp_path / "b.dada"
    empty.write_bytes(path.read_bytes()[:4096].replace(change[1], change[0]))
    with pytest.raises(BadFile, match="no whole sample"):
        DadaFile(empty)
