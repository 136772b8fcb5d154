"""Real sockets: order and counts, ports in use, several sockets on one port."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest
from tests.dedispersion.test_stream_packets import parse
from tests.dedispersion.test_stream_sink import wait_for

from skysieve.dedispersion import fake
from skysieve.dedispersion.stream.command.emulate import emulate
from skysieve.dedispersion.stream.intake import Feed
from skysieve.dedispersion.stream.receive.file_source import source_geometry
from skysieve.dedispersion.stream.receive.udp import UdpReceiver


def receive_all(receiver, expected, seconds=60.0):
    rows, until = [], time.monotonic() + seconds
    while sum(map(len, rows)) < expected and time.monotonic() < until:
        buffers, lengths = receiver.batch(100)
        assert (lengths == 128).all()
        rows.append(buffers[:, :128].copy())
        receiver.release(len(lengths))
        if not len(lengths):
            time.sleep(0.002)
    return np.concatenate(rows)


def test_a_file_through_a_socket():
    fb = fake(nchan=16, duration=0.4, tsamp=1e-3, fch1=1500, foff=-1, dm=10, times=[0.1], seed=3)
    with UdpReceiver("127.0.0.1", 0) as receiver:
        result = emulate(fb, *receiver.address, packet_bytes=64, rate=1.0, duplicate=0.1, seed=2)
        rows = receive_all(receiver, result.sent)
        counts = receiver.counts()
    assert result.sent == 100 + result.doubled > 100
    assert result.seconds > 0.39  # paced: 400 samples of 1 ms
    assert counts["datagrams"] == result.sent
    assert counts["kernel_drops"] == counts["ring_overflow"] == counts["oversized"] == 0
    found = parse(rows)
    assert not found.status.any()
    assert sorted(set(found.number.tolist())) == list(range(100))


def test_nearly_all_samples_of_a_file_are_sent():
    """Packets are a little shorter than asked for, so that few samples remain at the end; these are counted."""
    fb = fake(nchan=16, duration=0.397, tsamp=1e-3, fch1=1500, foff=-1, dm=10, times=[0.1], seed=3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        result = emulate(fb, *listening.getsockname(), packet_bytes=1024, rate=1.0)
    assert (result.sent, result.over) == (9, 1)  # of 44 samples; with 64 samples in a packet, 13 would remain


def test_long_datagrams_and_full_rings_are_counted():
    with (
        UdpReceiver("127.0.0.1", 0, slot_bytes=64, memory=1, sockets=1) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out,
    ):
        out.sendto(bytes(65), receiver.address)
        for sent in range(10, 301, 10):
            for _ in range(10):
                out.sendto(bytes(10), receiver.address)
            wait_for(lambda n=sent: receiver.counts()["datagrams"] == n + 1)
        receiver.halt()
        counts = receiver.counts()
        _, lengths = receiver.batch(1)
        assert lengths.tolist() == [-1]
        assert counts["oversized"] == 1
        assert counts["datagrams"] == 301
        assert counts["ring_overflow"] == counts["datagrams"] - receiver.slots


def test_a_port_in_use():
    with UdpReceiver("127.0.0.1", 0) as receiver, pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:"):
        UdpReceiver("127.0.0.1", receiver.address[1])
    with pytest.raises(OSError, match="cannot listen on 192"):
        UdpReceiver("192.0.2.1", 5000)


def test_sockets_that_share_a_port_hold_more_and_lose_no_order():
    """Bursts are read in order, also after the ring of slots has wrapped many times."""
    with (
        UdpReceiver("127.0.0.1", 0, slot_bytes=64, memory=1, socket_buffer=0, sockets=16) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out,
    ):
        with pytest.raises(OSError, match="cannot listen"):
            UdpReceiver("127.0.0.1", receiver.address[1], sockets=16)
        got: list[int] = []

        def read(count: int) -> bool:
            buffers, lengths = receiver.batch(77)
            got.extend(buffers[:, :2].copy().view("<u2").ravel()[receiver.order(len(lengths))].tolist())
            receiver.release(len(lengths))
            return len(got) == count

        for first in range(0, 2000, 20):
            for i in range(first, first + 20):
                out.sendto(i.to_bytes(2, "little"), receiver.address)
            wait_for(lambda n=first + 20: read(n))
            # within 20 the order may differ: a sweep may miss some that arrive while it lasts
            assert sorted(got[first:]) == list(range(first, first + 20))
        assert receiver.counts()["kernel_drops"] == 0
    for count in (0, 65):
        with pytest.raises(ValueError, match=f"sockets={count}"):
            UdpReceiver("127.0.0.1", 0, sockets=count)


def test_bad_faults():
    fb = fake(nchan=16, duration=0.1, tsamp=1e-3, fch1=1500, foff=-1)
    for options, message in [({"loss": 2}, "loss=2"), ({"rate": 0}, "rate=0"), ({"repeat": -1}, "repeat=-1")]:
        with pytest.raises(ValueError, match=message):
            emulate(fb, "127.0.0.1", 9, **options)
    with pytest.raises(ValueError, match="packet_bytes=0"):
        source_geometry(fb, 0)


@pytest.mark.parametrize(("policy", "sockets"), [("drop", 1), ("block", 1), ("drop", 7)])
def test_datagrams_in_the_kernel_are_received_at_the_end(policy, sockets):
    """In the order of arrival, whichever socket the kernel chose."""
    with (
        UdpReceiver("127.0.0.1", 0, policy=policy, sockets=sockets) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out,
    ):
        for i in range(100):
            out.sendto(bytes([i]), receiver.address)
        receiver.halt()
        buffers, lengths = receiver.batch(200)
        assert lengths.tolist() == [1] * 100
        order = receiver.order(100)
        assert (order is None) == (sockets == 1)
        assert buffers[slice(None) if order is None else order, 0].tolist() == list(range(100))


def test_systems_without_real_time_priority(monkeypatch):
    def unknown(*args):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("os.sched_setscheduler", unknown)
    with UdpReceiver("127.0.0.1", 0) as receiver:
        assert not receiver.real_time


def test_an_exit_of_a_parser_is_no_end_of_the_data():
    class Leaving(Feed):
        def feed(self):
            raise SystemExit("no such packet")

    feed = Leaving(SimpleNamespace(end=lambda: None))
    feed.start()
    feed.join(60)
    assert isinstance(feed.error, SystemExit)
