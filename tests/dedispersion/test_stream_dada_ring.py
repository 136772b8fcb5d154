"""PSRDADA rings: layout, transfers, full rings, readers that are killed, other memory with the key."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.dedispersion.dada import write_dada
from tests.dedispersion.test_stream_commands import command
from tests.dedispersion.test_stream_pipeline import SEARCH, TIMES, data, rows_of, run_feed, same_as_file
from tests.dedispersion.test_stream_sink import wait_for

from skysieve.dedispersion import Filterbank, search, write_fil
from skysieve.dedispersion.stream.command import warm_up
from skysieve.dedispersion.stream.command.emulate_dada import emulate_ring, wait_until_read
from skysieve.dedispersion.stream.intake import DadaFeed
from skysieve.dedispersion.stream.receive import dada_ipc
from skysieve.dedispersion.stream.receive.dada_file import DadaFile, DadaHeader, header_text
from skysieve.dedispersion.stream.receive.dada_ipc import (
    EODACK,
    FULL,
    SODACK,
    NewSync,
    OldSync,
    RingError,
    RingGone,
    Sync,
)
from skysieve.dedispersion.stream.receive.dada_ring import DadaReader, DadaRings, DadaWriter, key_of

__all__ = ["data"]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not Path("/proc/sysvipc/shm").exists(), reason="no System V shared memory to be seen"
)
KEYS = iter(range(0x10000000, 0x70000000, 0x01000000))


@contextmanager
def rings(**options):
    """Rings with a key that no other process of these tests uses."""
    key = next(KEYS) + 2 * (os.getpid() % 0x7FFF)
    with DadaRings(key, **options) as made:
        yield made


def header(fb, **more):
    o = fb.observation
    known = {"tsamp": o.tsamp, "fch1": o.top, "foff": o.foff, "tstart": o.tstart, "voltages": False, **more}
    return header_text(1, o.nchan, **known)


def body(fb, nsamp=None):
    return np.ascontiguousarray(fb.read()[:, :nsamp].T).tobytes()


def stop_after(count):
    """Stop a pipeline after this many transfers."""

    def watch(pipeline):
        try:
            wait_for(lambda: sum(beam.next_segment for beam in pipeline.intake.beams.values()) >= count)
            wait_for(lambda: not any(beam.segments for beam in pipeline.intake.beams.values()))
        finally:
            pipeline.stop()

    return watch


# ---------------------------------------------------------------- layout


def test_the_structures_are_those_of_psrdada():
    """Offsets in the C structures on 64-bit machines, derived by hand from their public declarations."""
    head = {"semkey_connect": 0, "semkey_data": 4, "nbufs": 40, "bufsz": 48}
    rest = {
        "w_buf": 56, "w_state": 64, "w_xfer": 72, "r_bufs": 80, "r_states": 144, "r_xfers": 176, "n_readers": 240,
        "s_buf": 248, "s_byte": 312, "eod": 376, "e_buf": 384, "e_byte": 448,
    }  # fmt: skip
    later = {"taken": 56, **{name: at + 8 for name, at in rest.items()}}
    for kind, size, places in (
        (OldSync, 512, {**head, **rest}),
        (Sync, 520, {**head, **rest, "on_device_id": 512}),
        (NewSync, 528, {**head, **later, "on_device_id": 520}),
    ):
        assert {name: getattr(kind, name).offset for name in places} == places
        assert ctypes.sizeof(kind) == size
        assert len(kind._fields_) == len(places)


def test_a_new_ring_looks_like_one_of_dada_db():
    with rings(nbufs=3, bufsz=100, readers=2) as made:
        ring = made.data
        raw = ring._segment.bytes.tobytes()
        assert len(raw) == 528 + 5 * 3
        key = ring.key
        assert struct.unpack_from("=9i", raw) == tuple(key + 0x10000 * i for i in range(1, 10))
        assert struct.unpack_from("=2Q", raw, 40) == (3, 100)
        assert raw[384:392] == b"\1" * 8
        assert struct.unpack_from("=3i", raw, 528 + 3) == tuple(key + 0x10000 * i for i in range(10, 13))
        for one in ring.sets:
            assert [ring.value(one, i) for i in range(5)] == [8, 8, 0, 0, 1]
        assert [ring.value(ring.connections, i) for i in range(2)] == [1, 2]
    with pytest.raises(RingError, match="there is no shared memory with the key"):
        DadaReader(key)


@pytest.mark.parametrize("layout", [OldSync, Sync, NewSync])
def test_rings_of_every_version(layout):
    """Versions are recognised by the size of the structure; the rest of the memory follows it."""
    with rings(nbufs=2, bufsz=64, layout=layout) as made:
        assert made.data._segment.size == ctypes.sizeof(layout) + 5 * 2
        with DadaWriter(made.key) as writer, DadaReader(made.key) as reader:
            writer.send(b"A 1", [bytes(range(100))])
            assert isinstance(reader.data.ring.sync, layout)
            assert reader.header(10)[:3] == b"A 1"
            got = []
            while not got or not reader.data.last:
                got.append(reader.data.next(10).tobytes())
                reader.data.done()
            assert b"".join(got) == bytes(range(100))
            assert reader.data.ring.sync.w_buf == getattr(reader.data.ring.sync, "taken", 2) == 2


# ---------------------------------------------------------------- transfers


def test_transfers_of_every_length():
    """More transfers than the structure describes (8), shorter and longer than blocks and the ring; two readers."""
    rng = np.random.default_rng(1)
    sizes = [0, 1, 63, 64, 65, 128, 200, 256, 257, 1000, 64, 0, 5]
    sent = [rng.bytes(n) for n in sizes]
    with rings(nbufs=4, bufsz=64, readers=2) as made:
        got: list[list[tuple[bytes, bytes]]] = [[], []]

        def read(to):
            with DadaReader(made.key) as reader:
                while len(to) < len(sent):
                    head = reader.header(60)
                    parts = []
                    while not parts or not reader.data.last:
                        parts.append(reader.data.next(60).tobytes())
                        assert reader.data.offset == sum(map(len, parts[:-1]))
                        reader.data.done()
                    reader.end()
                    to.append((head.rstrip(b"\0"), b"".join(parts)))

        threads = [threading.Thread(target=read, args=(to,)) for to in got]
        for thread in threads:
            thread.start()
        with DadaWriter(made.key) as writer:
            for i, one in enumerate(sent):
                writer.send(b"N %d" % i, [one[:70], one[70:]], timeout=120)
        for thread in threads:
            thread.join(120)
        assert got[0] == got[1] == [(b"N %d" % i, one) for i, one in enumerate(sent)]
        for one in made.data.sets:
            assert [made.data.value(one, i) for i in (SODACK, EODACK, FULL)] == [8, 8, 0]


def test_a_writer_waits_for_a_full_ring():
    with rings(nbufs=3, bufsz=8) as made, DadaWriter(made.key) as writer, DadaReader(made.key) as reader:
        writer.begin(b"A 1")
        for i in range(3):
            writer.data.put(np.full(8, i, np.uint8), last=False)
        with pytest.raises(TimeoutError, match="no block of the ring"):
            writer.data.put(np.full(8, 3, np.uint8), last=False, timeout=0.05)
        assert reader.data.fill == 1.0
        assert reader.data.next(10)[0] == 0
        assert reader.data.next(10)[0] == 0
        reader.data.done()
        reader.data.done()
        assert reader.data.fill == pytest.approx(2 / 3)
        writer.data.put(np.full(8, 3, np.uint8), last=False, timeout=60)
        for value in (1, 2, 3):
            assert reader.data.next(10)[0] == value
            reader.data.done()
        assert reader.data.next(0.01) is None
        with pytest.raises(ValueError, match="expected 8, or fewer at the end"):
            writer.data.put(np.zeros(7, np.uint8), last=False)


def test_the_search_of_a_ring_is_that_of_the_file(data, tmp_path):
    """Blocks that end within samples; two transfers, of which the second is shorter and begins later."""
    later = Filterbank.from_array(data.fb.block(0, 6000), freqs=data.fb.freqs, tsamp=5e-4, tstart=60001.25)
    heads = [header(data.fb), header(later).rstrip(b"\0")]
    heads[1] = heads[1].replace(b"MJD_START 60001.25", b"UTC_START 2023-02-26-06:00:00")
    with rings(nbufs=4, bufsz=7001) as made, DadaWriter(made.key) as writer:

        def send():
            for head, fb in zip(heads, (data.fb, later), strict=True):
                writer.send(head, [body(fb)], timeout=120)

        threading.Thread(target=send, daemon=True).start()
        with DadaReader(made.key) as reader:
            summary, _ = run_feed(lambda i: DadaFeed(i, reader, 512), data.options, tmp_path, before=stop_after(2))
    rows = rows_of(tmp_path)
    for segment, fb in enumerate((data.fb, later)):
        same_as_file([r for r in rows if r["segment"] == str(segment)], search(fb, data.plan, **SEARCH))
    assert summary["counts"]["lost"] == 0
    assert summary["counts"]["accepted"] == 500 + 375
    assert summary["counts"]["changed"] == summary["counts"]["restarts"] == 0


def test_only_the_transfer_with_a_bad_header_is_lost(data, tmp_path):
    with rings(nbufs=2, bufsz=4096) as made, DadaWriter(made.key) as writer:

        def send():
            writer.send(header(data.fb).replace(b"NBIT", b"XBIT"), [bytes(20_000)], timeout=120)
            other = Filterbank.from_array(data.fb.block(0, 500)[:16], freqs=data.fb.freqs[:16], tsamp=5e-4)
            writer.send(header(other), [body(other)], timeout=120)  # does not match the plan
            writer.send(header(data.fb), [body(data.fb)], timeout=120)

        threading.Thread(target=send, daemon=True).start()
        with DadaReader(made.key) as reader:
            summary, said = run_feed(lambda i: DadaFeed(i, reader, 512), data.options, tmp_path, before=stop_after(1))
    assert summary["counts"]["fields"] == 1
    assert summary["counts"]["refused"] > 0
    assert any("the header lacks NBIT; the transfer is left out" in line for line in said)
    same_as_file(rows_of(tmp_path), search(data.fb, data.plan, **SEARCH))


def test_a_reader_that_is_killed_leaves_the_ring_to_the_next(data, tmp_path):
    """After kill -9 in a transfer the next reader continues at the right sample, to the end of the transfer."""
    code = """if True:
        import os, sys
        from skysieve.dedispersion.stream.receive.dada_ring import DadaReader
        reader = DadaReader(int(sys.argv[1]))
        assert reader.header(60)
        for _ in range(3):
            assert len(reader.data.next(60)) == 7000
            reader.data.done()
        assert len(reader.data.next(60)) == 7000
        print("ready", flush=True)
        os.read(0, 1)
    """
    raw = body(data.fb)
    with rings(nbufs=4, bufsz=7000) as made, DadaWriter(made.key) as writer:
        threading.Thread(target=writer.send, args=(header(data.fb), [raw], 120), daemon=True).start()
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(made.key)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(RingError, match=r"all readers of the ring .* are connected"):
            DadaReader(made.key)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with DadaReader(made.key) as reader:
            assert reader.header(60)
            assert reader.data.next(60).tobytes() == raw[21_000:28_000]
            assert reader.data.offset == 21_000
            seen = []
            run_feed(
                lambda i: DadaFeed(i, reader, 512), replace(data.options, cutouts=False), tmp_path,
                before=lambda pipeline: (seen.append(pipeline), stop_after(1)(pipeline)),
            )  # fmt: skip
            assert made.data.value(made.data.sets[0], FULL) == 0
    counts = seen[0].intake.counts()
    assert counts["accepted"] == 500 - 42  # 21,000 bytes are 41.02 packets of 512
    found = [float(r["time"]) for r in rows_of(tmp_path) if abs(float(r["dm"]) - 100) < 20]
    assert all(min(abs(one - t) for t in TIMES) < 0.01 for one in found)
    assert all(any(abs(one - t) < 0.01 for one in found) for t in TIMES)


# ---------------------------------------------------------------- other memory and missing rings


def test_memory_that_is_not_a_ring():
    with pytest.raises(RingError, match="there is no shared memory with the key 7fee0002"):
        DadaReader(0x7FEE0001)
    key = 0x70000000 + os.getpid() % 0x10000 * 0x100
    flags = dada_ipc.IPC_CREAT | dada_ipc.IPC_EXCL | 0o600
    for size, change in (
        (10, b""),
        (4096, b""),
        (520 + 15, struct.pack("=Q", 3)),
        (520 + 15, struct.pack("=Q", 2**40)),
    ):
        segment = dada_ipc.SharedMemory(dada_ipc.call("shmget", key + 1, size, flags))
        segment.bytes[40 : 40 + len(change)] = np.frombuffer(change, np.uint8)
        try:
            with pytest.raises(RingError, match="is not a PSRDADA ring of a known version"):
                DadaReader(key)
        finally:
            dada_ipc.call("shmctl", segment.identifier, dada_ipc.IPC_RMID, None)
            segment.detach()
    with rings(nbufs=2, bufsz=8) as made:
        with DadaWriter(made.key), pytest.raises(RingError, match="has another writer"):
            DadaWriter(made.key)
        with pytest.raises(RingError, match="cannot be used: File exists"):
            DadaRings(made.key)
        made.data.sync.on_device_id = 0
        with pytest.raises(RingError, match="lies on a GPU"):
            DadaReader(made.key)
        made.data.sync.on_device_id = -1
        with DadaReader(made.key) as reader:
            assert reader.header(0.01) is None
            made.data.sync.s_byte[0] = 2**60
            made.data.change(made.data.sets[0], (FULL, 1))
            with pytest.raises(RingError, match="is corrupt: bytes"):
                reader.data.next(1)
    with pytest.raises(ValueError, match="--dada-key xyz"):
        key_of("xyz")
    with pytest.raises(ValueError, match="expected at least 1"):
        DadaRings(key, nbufs=0)


def test_a_ring_that_is_removed(data, tmp_path):
    """Between transfers this ends the run; in a transfer it is an error, and the data that arrived are searched."""
    made = DadaRings(next(KEYS) + 2 * (os.getpid() % 0x7FFF), nbufs=2, bufsz=64)
    with DadaReader(made.key) as reader:
        made.close()
        summary, said = run_feed(lambda i: DadaFeed(i, reader), data.options, tmp_path)
    assert any("was removed" in line and line.endswith("; the run ends") for line in said)
    assert summary["counts"]["accepted"] == 0
    made = DadaRings(next(KEYS) + 2 * (os.getpid() % 0x7FFF), nbufs=4, bufsz=4096 * 32)
    with DadaWriter(made.key) as writer, DadaReader(made.key) as reader:
        writer.begin(header(data.fb))
        writer.data.put(np.frombuffer(body(data.fb, 4096), np.uint8), last=False)

        def remove(pipeline):
            wait_for(lambda: pipeline.intake.counts()["accepted"] == 256)
            made.close()

        with pytest.raises(RingGone, match="was removed"):
            run_feed(lambda i: DadaFeed(i, reader, 512), data.options, tmp_path, before=remove)
    assert rows_of(tmp_path)


def test_the_command_reads_a_ring(data, tmp_path, monkeypatch):
    monkeypatch.setattr(warm_up, "POWER_BITS", ())  # these packets of 8 bits need no code for other packets
    monkeypatch.setattr(warm_up, "VOLTAGE_BITS", ())
    data.plan.save(tmp_path / "a.json")
    common = ["stream", "-o", tmp_path / "out", "--plan", tmp_path / "a.json", "--no-plots", "--no-raw"]
    for arguments, message in [
        (["--dada-key", "7fee0001"], "there is no shared memory with the key 7fee0002"),
        (["--dada-key", "dada", "--listen", "0"], "expected one of --listen, --from and --dada-key"),
        (["--dada-key", "ring"], "--dada-key ring: expected a hexadecimal key"),
    ]:
        done = command(*common, *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.output
    made = DadaRings(next(KEYS) + 2 * (os.getpid() % 0x7FFF), nbufs=4, bufsz=7001)

    def send():
        with DadaWriter(made.key) as writer:
            writer.send(header(data.fb), [body(data.fb)], timeout=120)
        wait_until_read(made)
        made.close()  # which ends the run

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    done = command(*common, "--dada-key", f"{made.key:x}", "--block", 0.6, "-t", 7, "--threads", 1)
    assert done.exit_code == 0, done.output
    sender.join(120)
    nsamp = 8000 // 256 * 256
    whole = Filterbank.from_array(data.fb.block(0, nsamp), freqs=data.fb.freqs, tsamp=5e-4, tstart=60000.5)
    same_as_file(rows_of(tmp_path / "out"), search(whole, data.plan, **SEARCH))


def test_a_file_emulated_into_a_ring(data, tmp_path, monkeypatch):
    """A ring that does not exist is made, read and removed; voltages arrive as they are in the file."""
    key = next(KEYS) + 2 * (os.getpid() % 0x7FFF)
    write_fil(tmp_path / "a.fil", data.fb)
    results = []
    sender = threading.Thread(
        target=lambda: results.append(command("emulate", tmp_path / "a.fil", "--to", f"dada:{key:x}", "--rate", "20x"))
    )
    sender.start()
    reader = None
    until = time.monotonic() + 120
    while reader is None and time.monotonic() < until:
        with suppress(RingError):
            reader = DadaReader(key)
    with reader:
        run_feed(lambda i: DadaFeed(i, reader, 512), data.options, tmp_path / "out", before=stop_after(1))
    sender.join(120)
    assert results[0].exit_code == 0, results[0].output
    assert "sent 41 blocks in " in results[0].output  # of 0.1 s, and the end
    same_as_file(rows_of(tmp_path / "out"), search(data.fb, data.plan, **SEARCH))
    with pytest.raises(RingError, match="there is no shared memory"):
        DadaReader(key)

    x = np.random.default_rng(1).integers(-128, 128, (1000, 2, 4, 2), dtype=np.int8)
    write_dada(tmp_path / "v.dada", x, tsamp=1e-4, fch1=1402.0, foff=-1.0, tstart=60000.25)
    with rings(nbufs=8, bufsz=4096) as made, DadaReader(made.key) as reader:
        sent = emulate_ring(DadaFile(tmp_path / "v.dada"), made.key, rate=float("inf"), repeat=2)
        assert sent.bytes == 2 * x.size
        assert DadaHeader(reader.header(10), "a").tstart == 60000.25
        parts = []
        while not reader.data.last:
            parts.append(reader.data.next(10).tobytes())
            reader.data.done()
        assert b"".join(parts) == 2 * np.ascontiguousarray(x.transpose(0, 2, 1, 3)).tobytes()
    monkeypatch.setattr("skysieve.dedispersion.stream.command.emulate_dada.PATIENCE", 0.05)
    for arguments, message in [
        (["--to", f"dada:{key:x}", "--loss", "0.1"], "a ring loses no data"),
        (["--to", "dada:x"], "--to x: expected a hexadecimal key"),
        (["--to", f"dada:{key:x}", "--rate", "max"], "no block of the ring"),
    ]:
        done = command("emulate", tmp_path / "a.fil", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.output


def test_headers():
    """Headers of files and rings: time of the first sample, order of samples, impossible values."""
    text = header_text(2, 4, tsamp=1e-3, fch1=1402.0, foff=-1.0, tstart=60000.5)
    assert DadaHeader(text.replace(b"OBS_OFFSET 0", b"OBS_OFFSET 16000"), "a").tstart == 60000.5 + 1.0 / 86400
    utc = text.replace(b"MJD_START 60000.5", b"UTC_START 2023-02-25-12:00:00\nPICOSECONDS 500000000000")
    assert DadaHeader(utc, "a").tstart == pytest.approx(60000.5 + 0.5 / 86400, abs=1e-11)
    assert DadaHeader(text.replace(b"MJD_START", b"OTHER"), "a").tstart == 0
    single = header_text(1, 4, tsamp=1e-3, fch1=1402.0, foff=-1.0)
    assert DadaHeader(single.replace(b"ORDER TFP", b"ORDER TF"), "a").npol == 1
    with pytest.raises(ValueError, match="too large"):
        DadaHeader(utc.replace(b"PICOSECONDS 5", b"PICOSECONDS " + b"9" * 400), "a")
    for change, message in [
        ((b"TFP", b"TF"), "ORDER=TF"), ((b"OBS_OFFSET 0", b"OBS_OFFSET -1"), "OBS_OFFSET=-1"),
        ((b"60000.5", b"1e300"), "begins at MJD 1e"),
        ((b"OBS_OFFSET 0", b"OBS_OFFSET 9" + b"9" * 400), "OBS_OFFSET=999"),
        ((b"MJD_START 60000.5", b"MJD_START x"), "MJD_START=x; expected a number"),
        ((b"MJD_START 60000.5", b"UTC_START today"), "UTC_START=today; expected a time such as 2023-02-25-12:00:00"),
        ((b"NDIM 2", b"NDIM 1.5"), "NDIM=1.5; expected a whole number"),
        ((b"NCHAN 4", b"NCHAN 9999999"), "NCHAN=9999999"), ((b"TSAMP 1000.0", b"TSAMP nan"), "TSAMP=nan"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            DadaHeader(text.replace(*change), "a")
