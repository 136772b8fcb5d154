"""Samples into the rows that the CPU adds: every width, order and layout of a file against `Filterbank.read`."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.dedispersion.test_formats import data, fil, psrfits
from tests.truth import dedispersion as reference

from skysieve.dedispersion import Filterbank, dedisperse, write_fil
from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.contract import Table
from skysieve.dedispersion.cpu import engine as cpu
from skysieve.dedispersion.cpu import load as cpu_load
from skysieve.dedispersion.data import sigproc, threads
from skysieve.dedispersion.data.delays import sample_delays
from skysieve.dedispersion.data.sigproc import pack


def held(fb, cuts=(0, 301, 700)):
    """The samples that an engine holds after loading the data in steps, without the offsets of signed types."""
    engine = cpu.Engine(
        Cleaned(fb, None, 100), [Table(np.zeros((1, fb.nchan), np.int32))], method="brute", capacity=fb.nsamp, threads=1
    )
    for stop in (*cuts[1:], fb.nsamp):
        engine.load(0, stop)
    x = engine._x[: fb.nchan, : fb.nsamp].astype(float) - engine.offset
    assert not engine._x[fb.nchan].any()
    engine.close()
    return x


@pytest.mark.parametrize("nchan", [8, 200])
@pytest.mark.parametrize("foff", [-1.0, 1.0])
@pytest.mark.parametrize("nbits", [1, 2, 4, 8, 16, 32])
def test_files_of_every_width(tmp_path, nbits, foff, nchan):
    kind = {16: "u2", 32: "f4"}.get(nbits, "u1")
    x = data(kind, (nchan, 777)) if nbits >= 8 else data("u1", (nchan, 777)) >> (8 - nbits)
    path = fil(tmp_path, pack(x.T, nbits), nbits=nbits, nchans=nchan, foff=foff)
    with Filterbank.open(path) as fb:
        assert np.array_equal(held(fb), fb.read())
    if nbits < 8:
        with Filterbank.open(path, bit_order="big") as fb:
            assert fb.packed(0, 1) is not None
            assert np.array_equal(held(fb), fb.read())


@pytest.mark.parametrize("nbits", [2, 8, 16])
def test_one_polarisation_of_two_and_signed_samples(tmp_path, nbits):
    kind = {16: "i2", 8: "i1"}.get(nbits, "u1")
    x = data(kind, (777, 2, 40))
    rows = pack((x >> 6 if nbits == 2 else x).reshape(777, 80), nbits)
    path = fil(tmp_path, rows, nbits=nbits, nchans=40, nifs=2, signed=b"\x01")
    for ifs in ("sum", 0, 1):
        with Filterbank.open(path, ifs=ifs) as fb:
            assert np.array_equal(held(fb), fb.read())


@pytest.mark.parametrize("nbits", [1, 4])
def test_channels_in_no_order(tmp_path, nbits):
    x = data("u1", (16, 777)) >> (8 - nbits)
    freqs = np.random.default_rng(0).permutation(1400.0 + np.arange(16)).tolist()
    path = fil(tmp_path, pack(x.T, nbits), nbits=nbits, nchans=16, fchannel=freqs)
    with Filterbank.open(path) as fb:
        assert fb.packed(0, 1) is None
        assert np.array_equal(held(fb), fb.read())


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("nbits", [1, 2, 4, 8])
def test_psrfits_rows(tmp_path, nbits, ascending):
    raw = data("u1", (768, 1, 48)) >> (8 - nbits)
    freqs = 1500.0 + (1 if ascending else -1) * np.arange(48)
    fb = Filterbank.open(psrfits(tmp_path / "a.fits", raw, nbits, freqs=freqs, NSTOT=761))
    assert (fb.packed(0, 1) is None) == (nbits == 8)
    assert np.array_equal(held(fb), fb.read())


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "f4"])
def test_arrays_of_either_order(kind):
    x = data(kind, (37, 777))
    for array in (x, np.asfortranarray(x)):
        for foff in (-1, 1):
            fb = Filterbank.from_array(array, fch1=1400, foff=foff, tsamp=1e-3)
            assert np.array_equal(held(fb), fb.read())


@pytest.mark.few
@pytest.mark.parametrize("nbits", [1, 2, 4])
def test_narrow_files_in_parts_summed_and_binned(tmp_path, nbits):
    """Two files that follow each other, in chunks: the sums are those of a triple loop."""
    x = data("u1", (64, 30_000)) >> (8 - nbits)
    a = fil(tmp_path, pack(x[:, :13_000].T, nbits), "a.fil", nbits=nbits, nchans=64)
    b = fil(tmp_path, pack(x[:, 13_000:].T, nbits), "b.fil", nbits=nbits, nchans=64, tstart=58000 + 13 / 86400)
    dms = np.linspace(0, 30, 40)
    with Filterbank.open([a, b]) as fb:
        for downsamp in (1, 2, 6, 16):
            truth = reference.sums(x, sample_delays(fb.freqs, dms, 1e-3 * downsamp), downsamp)
            got = dedisperse(fb, dms, downsamp=downsamp, memory=65 * 14_000 * 3, threads=2)
            assert np.array_equal(got.data, truth)


@pytest.mark.parametrize("foff", [-2.0, 2.0])
@pytest.mark.parametrize("nbits", [1, 2, 4, 8, 16, 32])
def test_an_impulse_in_every_channel_lines_up(tmp_path, nbits, foff):
    """At the impulse's DM one sample has it in all channels, at distant DMs no sample in many; two IFs are added."""
    kind = {16: "u2", 32: "f4"}.get(nbits, "u1")
    fch1 = 1500.0 if foff < 0 else 1500.0 - 2 * 63
    freqs = 1500 - 2 * np.arange(64.0)
    for i, (dm, ref) in enumerate(((0.0, "top"), (200.0, "top"), (200.0, "infinity"), (120.0, "bottom"))):
        delays = sample_delays(freqs, np.array([dm]), 1e-3, ref)[0]
        x = np.zeros((3000, 2, 64), kind)
        x[700 + delays, 1, np.arange(64) if foff < 0 else np.arange(64)[::-1]] = 1
        path = fil(tmp_path, pack(x.reshape(3000, 128), nbits), f"{i}.fil", nbits=nbits, nchans=64, nifs=2, fch1=fch1,
                   foff=foff)  # fmt: skip
        with Filterbank.open(path) as fb:
            y = dedisperse(fb, [dm, dm + 300], ref_freq=ref)
        at = int(y.data[0].argmax())
        assert y.data[0, at] == 64
        assert y.times[at] == pytest.approx(0.7)
        assert y.data[1].max() < 16
        assert (np.delete(y.data[0], at) == 0).all()


@pytest.mark.parametrize("times", [1, 2, 5, 7])
@pytest.mark.parametrize("kind", ["u1", "u2"])
def test_binning_by_halves(kind, times):
    b = 2**times
    x = data(kind, (5, 40 * b + 90)) >> (8 * np.dtype(kind).itemsize - 8)
    out = np.full((5, 80), 7, np.uint16)
    cpu_load.halve_often(x.reshape(-1), x.shape[1], 3, 40, times, out.reshape(-1), 80, 1, 4)
    assert np.array_equal(out[1:4, :40], x[1:4, 3 : 3 + 40 * b].reshape(3, 40, b).sum(axis=2))
    assert (out[[0, 4]] == 7).all()


def test_several_threads_read_a_file_and_notice_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("skysieve.dedispersion.data.sigproc.THREAD_BYTES", 1000)
    monkeypatch.setattr("skysieve.dedispersion.data.threads.usable_cores", lambda: 4)
    x = np.random.default_rng(3).integers(0, 256, (16, 5000)).astype(np.uint8)
    path = tmp_path / "a.fil"
    write_fil(path, Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3))
    with Filterbank.open(path) as fb:
        assert np.array_equal(fb.read(), x)
        assert np.array_equal(fb.block(7, 4001), x[:, 7:4008])
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - 20_000)
        with pytest.raises(ValueError, match="bytes early; it was cut off after it was opened"):
            fb.read()
        assert np.array_equal(fb.block(0, 3000), x[:, :3000])


def test_threads_that_read_one_file_share_its_readers(tmp_path, monkeypatch):
    x = data("u1", (8, 5000))
    path = fil(tmp_path, x.T, nbits=8, nchans=8)
    monkeypatch.setattr(sigproc, "THREAD_BYTES", 1000)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    made = []

    class Counted(ThreadPoolExecutor):
        def __init__(self, *given):
            made.append(self)
            time.sleep(0.02)  # both threads are here
            super().__init__(*given)

    monkeypatch.setattr(threads, "ThreadPoolExecutor", Counted)
    both = threading.Barrier(2)

    def read(fb):
        both.wait()
        return fb.read()

    with Filterbank.open(path) as fb, ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(read, fb) for _ in range(2)]:
            assert np.array_equal(found.result(), x)
    assert len(made) == 1
