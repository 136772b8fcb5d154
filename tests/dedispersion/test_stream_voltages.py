"""Voltages that are made of a filterbank: the receiver that channelises them gets the filterbank again."""

from __future__ import annotations

import numpy as np
import pytest
from tests.dedispersion.test_stream_pipeline import ListFeed, rows_of, run_feed

from skysieve.dedispersion import Filterbank, fake, plan, search
from skysieve.dedispersion.stream.channelise.channeliser import Channeliser
from skysieve.dedispersion.stream.command.emulate import emulate
from skysieve.dedispersion.stream.command.emulate_dada import emulate_ring
from skysieve.dedispersion.stream.intake import SocketFeed
from skysieve.dedispersion.stream.receive.file_source import source_geometry, source_steps
from skysieve.dedispersion.stream.receive.packets import packets
from skysieve.dedispersion.stream.receive.udp import UdpReceiver
from skysieve.dedispersion.stream.receive.voltages import Voltages
from skysieve.dedispersion.stream.records import Options

TIMES = [0.9, 2.1]


@pytest.fixture(scope="module")
def made():
    fb = fake(nchan=32, duration=3, tsamp=5e-4, fch1=1500, foff=-8, dm=100, times=TIMES, width=4e-3, snr=25, seed=4)
    return Filterbank.from_array(fb.read(), freqs=fb.freqs, tsamp=5e-4, tstart=60000.5)


def voltages_of(source):
    pairs = source.steps(0, source.nsamp).view(np.int8).reshape(source.nsamp, source.nsub, 2).astype(np.float32)
    return (pairs[..., 0] + 1j * pairs[..., 1])[:, None].astype(np.complex64)


@pytest.mark.parametrize(("channels", "spectra"), [(8, 1), (8, 3), (5, 1), (1, 2)])
def test_the_power_of_the_voltages_is_that_of_the_file(channels, spectra):
    fb = fake(nchan=40, duration=0.3, tsamp=1e-3, fch1=1500, foff=-4, dm=100, times=[0.1], width=4e-3, snr=60, seed=4)
    source = Voltages(fb, channels, spectra)
    c = Channeliser(
        source.fch1, source.foff, source.nsub, 1, source.tsamp, channels=channels, integrate=spectra, nbits=32
    )
    np.testing.assert_allclose(c.freqs, fb.freqs)
    assert c.tsamp == pytest.approx(fb.tsamp)
    _, rows, _ = c.feed(0, voltages_of(source))
    expected = fb.read().T.astype(float)
    ratio = rows.sum() / expected.sum()
    # rounding adds 1/6 to a power of 800 for each voltage, and mixes into a power P as 2 sqrt(P / 6) at random
    error = (rows / ratio - expected) / expected
    assert error.std() < 0.03
    assert np.corrcoef(rows.ravel(), expected.ravel())[0, 1] > 0.97


def test_the_pieces_of_voltages_do_not_matter(made):
    source = Voltages(made, 8, 2, seed=5)
    whole = source.steps(1000, 5000)
    np.testing.assert_array_equal(np.concatenate([source.steps(1000, 777), source.steps(1777, 4223)]), whole)
    assert not np.array_equal(Voltages(made, 8, 2, seed=6).steps(1000, 5000), whole)


def test_a_stream_of_voltages_finds_the_pulses_of_the_file(made, tmp_path):
    source = Voltages(made, 8)
    g = source_geometry(source, 2048)
    ((_, steps),) = source_steps(source, g, source.nsamp // g.nsamp * g.nsamp, 1)
    p = plan(made, dms=np.arange(0, 201, 10.0))
    options = Options(plan=p, search={"threshold": 7.0, "threads": 1}, channelise={"channels": 8}, gulp=0.1,
                      policy="block", cutouts=False)  # fmt: skip
    run_feed(lambda i: ListFeed(i, [packets(g, steps, 0)]), options, tmp_path)
    rows = sorted(rows_of(tmp_path), key=lambda row: float(row["time"]))
    expected = search(made, p, threshold=7.0, threads=1)
    assert [float(row["time"]) for row in rows] == [pytest.approx(t, abs=4e-3) for t in TIMES]
    np.testing.assert_allclose(sorted(float(r["snr"]) for r in rows), np.sort(expected.snr), rtol=0.1)


def test_voltages_are_sent_by_the_emulator(made, tmp_path):
    source = Voltages(made, 8)
    p = plan(made, dms=np.arange(0, 201, 10.0))
    options = Options(plan=p, search={"threshold": 7.0, "threads": 1}, channelise={"channels": 8}, gulp=0.1, window=500,
                      policy="block", cutouts=False)  # fmt: skip

    def send(pipeline):
        emulate(source, *receiver.address, packet_bytes=4096, rate=2.0)
        pipeline.stop()

    with UdpReceiver("127.0.0.1", 0) as receiver:
        run_feed(lambda i: SocketFeed(i, [receiver]), options, tmp_path, receivers=[receiver], before=send)
    times = sorted(float(row["time"]) for row in rows_of(tmp_path))
    assert times == [pytest.approx(t, abs=4e-3) for t in TIMES]


def test_floats_have_a_level_and_a_scatter(made):
    real = Filterbank.from_array(
        (made.read().astype(np.float32) - 96) / 16, freqs=made.freqs, tsamp=made.tsamp, tstart=60000.5
    )
    a, b = (Voltages(fb, 8).steps(0, 4000).view(np.int8).astype(float) for fb in (real, made))
    assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.99


def test_what_cannot_become_voltages_is_named(made):
    with pytest.raises(ValueError, match="channels=7: expected a divisor of 32"):
        Voltages(made, 7)
    with pytest.raises(ValueError, match="gives at least two subbands"):
        Voltages(made, 32)
    with pytest.raises(ValueError, match="spectra=0"):
        Voltages(made, 8, 0)
    with pytest.raises(ValueError, match="all its samples are 0"):
        Voltages(Filterbank.from_array(np.zeros((8, 50), np.uint8), fch1=1500, foff=-4, tsamp=1e-3), 4)
    with pytest.raises(ValueError, match="rate="):
        emulate_ring(Voltages(made, 8), 0x1234, rate=0)
    for seconds in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=r"seconds=.*: expected seconds, above 0"):
            emulate_ring(Voltages(made, 8), 0x1234, seconds=seconds)
