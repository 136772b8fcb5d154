"""Packets: formats, hostile datagrams, the order and counts of the ring."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skysieve.core.cpu.jit import interpreted
from skysieve.dedispersion import fake
from skysieve.dedispersion.data.observation import epoch_of, mjd_of
from skysieve.dedispersion.stream.command.emulate import schedule
from skysieve.dedispersion.stream.receive import cpu_ring
from skysieve.dedispersion.stream.receive.file_source import source_geometry, source_steps
from skysieve.dedispersion.stream.receive.packets import POWER, REASONS, VOLTAGE, Geometry, SkysieveParser, packets
from skysieve.dedispersion.stream.receive.ring import HIGHEST, OPEN, Ring, Unpacker
from skysieve.dedispersion.stream.receive.vdif import VdifParser, vdif_frame

G = Geometry(POWER, 8, 1, 4, 16, 2, 10**18, 1e-3, 1500.0, -1.0)
PARSER = SkysieveParser()
VDIF = VdifParser(frames=1000, fch1=1400.0, foff=1.0, threads=2)


def parse(rows, parser=PARSER, lengths=None):
    rows = np.atleast_2d(rows)
    return parser.parse(rows, np.full(len(rows), rows.shape[1]) if lengths is None else np.asarray(lengths))


def place(ring, sent, order=None):
    """Put packets into a ring, through the parser."""
    sent = sent if order is None else sent[order]
    found = parse(sent)
    good = np.flatnonzero(found.status == 0)
    ring.put(sent, good, found.number, found.chunk, found.offset)
    return found


def drained(ring, count):
    ring.end()
    gulps = []
    while (gulp := ring.take(count)) is not None:
        gulps.append(gulp)
    return gulps


# ---------------------------------------------------------------- formats


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("foff", [-1.0, 1.0])
def test_power_is_read_as_sent(bits, foff):
    fb = fake(nchan=16, duration=0.1, tsamp=1e-3, fch1=1500.0, foff=-1.0, nbits=bits, seed=1)
    of_file = source_geometry(fb, 64)
    g = replace(of_file, fch1=1500.0 if foff < 0 else 1485.0, foff=foff)
    ((start, steps),) = source_steps(fb, of_file, 100 // g.nsamp * g.nsamp, 1)
    made = packets(g, steps, start)
    ring = Ring(g, seconds=1.0)
    found = place(ring, made)
    (gulp,) = drained(ring, 10**6)
    got = Unpacker(g).power(gulp)
    rows = fb.block(0, len(got)).T
    assert len(got) == 100 // g.nsamp * g.nsamp
    assert PARSER.geometry(made[0]) == g
    assert (found.status == 0).all()
    assert got.dtype == fb.dtype
    assert np.array_equal(got, rows if foff < 0 else rows[:, ::-1])


@pytest.mark.parametrize("bits", [4, 8, 32])
@pytest.mark.parametrize("pols", [1, 2])
def test_voltages_are_read_as_sent(bits, pols):
    rng = np.random.default_rng(bits)
    g = replace(G, kind=VOLTAGE, bits=bits, pols=pols)
    most = 7 if bits == 4 else 127
    x = rng.integers(-most - 1, most + 1, (24, pols, 16, 2))
    if bits == 4:
        steps = ((x[..., 0] & 15) | ((x[..., 1] & 15) << 4)).astype(np.uint8)
    else:
        steps = x.astype("i1" if bits == 8 else "<f4").view(np.uint8)
    made = packets(g, steps.reshape(24, pols, -1), 40)
    ring = Ring(g, seconds=1.0)
    place(ring, made)
    (gulp,) = drained(ring, 100)
    got = Unpacker(g).voltages(gulp)
    assert gulp.start == 40
    assert np.array_equal(got, (x[..., 0] + 1j * x[..., 1]).astype(np.complex64))


def test_vdif_is_read_as_sent():
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (2, 3, 8, 4, 2))  # threads, frames, samples, channels, parts
    frames = [
        vdif_frame(
            (x[t, f] + 128).astype(np.uint8).ravel(), second=7, number=f, epoch=40, log2_channels=2, bits=8, thread=t
        )
        for f in range(3) for t in range(2)
    ]  # fmt: skip
    made = np.stack(frames)
    found = parse(made, VDIF)
    assert found.status.tolist() == [0] * 6
    g = VDIF.geometry(made[0])
    assert (g.nsamp, g.total, g.all_pols, g.tsamp) == (8, 4, 2, 1 / 8000)
    assert mjd_of(g.epoch) == 58849  # 2020-01-01
    ring = Ring(g, seconds=1.0)
    ring.put(made, np.arange(6), found.number, found.chunk, found.offset)
    (gulp,) = drained(ring, 100)
    assert gulp.start == 7000 * 8
    got = Unpacker(g).voltages(gulp)
    assert np.array_equal(
        got, (x[..., 0] + 1j * x[..., 1]).transpose(1, 2, 0, 3).reshape(24, 2, 4).astype(np.complex64)
    )


def test_epochs():
    assert mjd_of(epoch_of(60123.456)) == 60123.456
    assert epoch_of(0.0) == 0
    assert mjd_of(0) == 0.0


# ---------------------------------------------------------------- hostile datagrams


@pytest.mark.few
@pytest.mark.parametrize("parser", [PARSER, VDIF], ids=["skysieve", "vdif"])
@settings(max_examples=150, deadline=None)
@given(
    data=st.binary(min_size=0, max_size=200), at=st.integers(0, 80), byte=st.integers(0, 255), cut=st.integers(0, 200),
    whole=st.booleans(),
)  # fmt: skip
@example(data=b"", at=10, byte=0, cut=200, whole=True)
@example(data=b"", at=20, byte=0, cut=200, whole=True)
def test_no_datagram_reaches_beyond_its_end(parser, data, at, byte, cut, whole):
    """Any datagram is either faulty, or within the received bytes and a ring of its geometry."""
    if parser is PARSER:
        good = packets(G, np.zeros((4, 1, 16), np.uint8), 100)[0]
    else:
        good = vdif_frame(np.zeros(64, np.uint8), second=1, number=3, epoch=40, log2_channels=2, bits=8)
    rows = np.zeros((1, 256), np.uint8)
    start = good.copy() if whole else np.frombuffer(data, np.uint8)
    length = min(len(start), cut)
    rows[0, : len(start)] = start
    rows[0, at] = byte
    found = parse(rows, parser, [length])
    assert 0 <= found.status[0] < len(REASONS)
    if found.status[0] == 0:
        g = parser.geometry(rows[0])
        assert found.offset[0] + g.packet_bytes == length
        assert 0 <= found.chunk[0] < g.chunks
        assert found.number[0] >= 0
        assert g.tsamp > 0


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [(0, 0, "foreign"), (4, 2, "version"), (5, 7, "fields"), (6, 3, "fields"), (7, 3, "fields"), (10, 7, "fields"),
     (12, 15, "fields"), (16, 4, "fields"), (16, 16, "fields"), (20, 0, "fields"), (24, 1, "fields"),
     (31, 255, "fields"), (47, 255, "fields"), (10, 2, "length")],
)  # fmt: skip
def test_each_field_is_checked(at, value, reason):
    made = packets(G, np.zeros((4, 1, 16), np.uint8), 100)[:1]
    assert parse(made).status[0] == 0
    made[0, at] = value
    assert REASONS[parse(made).status[0]] == reason


def test_lengths_are_checked():
    made = packets(G, np.zeros((4, 1, 16), np.uint8), 100)[:1]
    longer = np.pad(made, ((0, 0), (0, 9)))
    for length, reason in [
        (0, "short"),
        (63, "short"),
        (64, "length"),
        (95, "length"),
        (96, "good"),
        (97, "length"),
        (-1, "short"),
    ]:
        assert REASONS[parse(longer, PARSER, [length]).status[0]] == reason
    assert REASONS[parse(made[:, :20]).status[0]] == "short"


# ---------------------------------------------------------------- the ring


def truth(order, chunks, window, total):
    """Counts from the definitions in the documentation, packet by packet."""
    highest, have, late, double = -1, set(), 0, 0
    for i in order:
        n = i // chunks
        highest = max(highest, n)
        if n < highest - window:
            late += 1
        elif i in have:
            double += 1
        else:
            have.add(i)
    start = min(have) // chunks
    return len(have), late, double, (highest + 1 - start) * chunks - len(have)


def test_bad_datagrams_do_not_shift_good_ones():
    """Bad datagrams among good ones do not change their place, chunk or offset."""
    steps = np.arange(40 * 16, dtype=np.uint32).astype(np.uint8).reshape(40, 1, 16)
    made = packets(G, steps, 0)
    mixed = np.insert(made, [0, 3, 3, 11], 0, axis=0)
    ring = Ring(G, seconds=10.0)
    assert (place(ring, mixed).status != 0).sum() == 4
    (gulp,) = drained(ring, 40)
    assert len(gulp.missing) == 0
    assert np.array_equal(Unpacker(G).power(gulp), steps[:, 0])


@pytest.mark.parametrize("drop", [False, True])
def test_packets_are_placed_by_the_interpreter_as_by_compiled_code(drop):
    rng = np.random.default_rng(4)
    made = packets(G, rng.integers(0, 256, (160, 1, 16), dtype=np.uint8), 40)
    order, *_ = schedule(len(made), rng, 0.1, 0.2, 0.2, 12)
    found = parse(made)
    outcomes = []
    for run in (cpu_ring.place, interpreted(cpu_ring.place)):
        ring = Ring(G, window=3, seconds=0.06)
        fields = found.number, found.chunk, found.offset
        done = run(made, 0, order, *fields, 3, ring.most_jump, 9, drop, ring.ring, ring.seen, ring.state)
        outcomes.append((done, ring.ring.tobytes(), ring.seen.tobytes(), ring.state.tolist()))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] > 8


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 9999), loss=st.sampled_from([0.0, 0.01, 0.1, 0.5]), reorder=st.sampled_from([0.0, 0.3]),
    duplicate=st.sampled_from([0.0, 0.2]), reach=st.integers(1, 30), window=st.integers(0, 10), gulp=st.integers(1, 90),
    batch=st.integers(1, 50), first=st.integers(0, 10**12), pause=st.integers(0, 20),
)  # fmt: skip
def test_counts_and_samples_are_exact(seed, loss, reorder, duplicate, reach, window, gulp, batch, first, pause):
    """``pause`` batches arrive while nothing is taken, in a small ring that grows, and shrinks afterwards."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(0, 256, (240, 1, 16), dtype=np.uint8)
    made = packets(G, steps, first * 4)
    order, lost, _, _ = schedule(len(made), rng, loss, reorder, duplicate, reach)
    if len(order) == 0:
        return
    ring = Ring(G, window=window, seconds=0.02 if pause else 10.0)
    few = ring.places
    gulps = []
    for i, at in enumerate(range(0, len(order), batch)):
        ring.growing = pause > 0
        place(ring, made, order[at : at + batch])
        while pause == 0 or i % (2 * pause) >= pause:
            if (one := ring.take(gulp, timeout=0)) is None:
                break
            gulps.append(one)
        ring.growing = False
        place(ring, made, order[:0])
        assert ring.places == few or ring.state[HIGHEST] + 1 - ring.state[OPEN] > few // 2
    gulps += drained(ring, gulp)
    assert ring.counts()["overflow"] == 0
    accepted, late, double, missing = truth(order, 2, window, len(made))
    counts = ring.counts()
    assert (counts["accepted"], counts["late"], counts["duplicate"], counts["lost"]) == (
        accepted,
        late,
        double,
        missing,
    )
    unpack = Unpacker(G)
    at = gulps[0].start
    gone = 0
    for one in gulps:
        assert one.start == at
        rows = unpack.power(one)
        expected = steps[at - first * 4 : at - first * 4 + one.count, 0]
        received = np.ones(rows.shape, bool)
        for a, b, c, d in unpack.rects(one.missing):
            assert received[a - at : b - at, c:d].all(), "rectangles overlap"
            received[a - at : b - at, c:d] = False
        assert np.array_equal(rows[received], expected[received])
        gone += (~received).sum()
        at += one.count
    assert gone == missing * 4 * 8
    if late == 0 and lost == 0:
        assert missing == 0


def test_a_gap_keeps_time():
    steps = np.arange(400 * 16, dtype=np.uint32).astype(np.uint8).reshape(400, 1, 16)
    made = packets(G, steps, 0)
    for policy, seconds in [("drop", 1.0), ("block", 0.1)]:
        ring = Ring(G, seconds=seconds, policy=policy)
        gulps = []
        taker = threading.Thread(target=lambda r=ring, out=gulps: taken(r, out))
        taker.start()
        place(ring, made[:40])
        place(ring, made[180:])
        ring.end()
        taker.join(60)
        total = sum(g.count for g in gulps)
        assert (gulps[0].start, total) == (0, 400)
        assert ring.counts()["lost"] == 140
        assert (
            sum(((g.missing[:, 1] - g.missing[:, 0]) * (g.missing[:, 3] - g.missing[:, 2])).sum() for g in gulps) == 560
        )


def taken(ring, out):
    while True:
        gulp = ring.take(17, timeout=0.05)
        if gulp is not None:
            out.append(gulp)
        elif ring.ended:
            return


def test_complete_samples_do_not_wait():
    """After the first samples only missing packets are waited for, until they are late."""
    made = packets(G, np.zeros((400, 1, 16), np.uint8), 0)
    ring = Ring(G, seconds=1.0, window=8)
    place(ring, made[:16])  # numbers 0 to 7, of two packets each
    assert ring.closed == 0
    place(ring, made[16:24])
    assert ring.take(12).start == 0
    assert ring.closed == 12 * 4
    place(ring, made[24:25])
    assert ring.closed == 12 * 4
    place(ring, made[26:30])  # the second packet of number 12 is missing
    assert ring.closed == 12 * 4
    place(ring, made[25:26])
    assert ring.closed == 15 * 4
    place(ring, made[32:46])  # up to number 22: number 15 may still come
    assert ring.closed == 15 * 4
    place(ring, made[46:60])
    assert ring.closed == 30 * 4
    place(ring, made[56:58])
    place(ring, made[30:32])
    counts = ring.counts()
    assert (counts["accepted"], counts["duplicate"], counts["late"]) == (58, 2, 2)


def test_a_ring_grows_while_a_search_is_set_up_and_shrinks_afterwards():
    """Nothing is dropped; afterwards it has its first size, or keeps its memory if a GPU reads it."""
    steps = np.arange(4000 * 16, dtype=np.uint32).astype(np.uint8).reshape(4000, 1, 16)
    made = packets(G, steps, 0)
    for fixed in (False, True):
        ring = Ring(G, seconds=0.1, window=2)
        few, ring.growing = ring.places, True
        for a in range(0, 1600, 100):
            place(ring, made[a : a + 100])
        assert ring.places >= 800
        if fixed:
            assert ring.fix() is ring.ring
        held, ring.growing = ring.ring, False
        gulps = []
        for a in range(1600, len(made), 20):
            place(ring, made[a : a + 20])
            while (one := ring.take(40, timeout=0)) is not None:
                gulps.append(one)
        assert (ring.places == few, ring.ring is held) == (not fixed, fixed)
        gulps += drained(ring, 40)
        counts = ring.counts()
        assert (counts["accepted"], counts["overflow"], counts["lost"]) == (2000, 0, 0)
        unpack = Unpacker(G)
        assert np.array_equal(np.concatenate([unpack.power(g) for g in gulps]), steps[:, 0])


def test_packets_without_room_are_counted_or_wait():
    made = packets(G, np.zeros((400, 1, 16), np.uint8), 0)
    ring = Ring(G, seconds=0.1, window=2)
    place(ring, made)
    counts = ring.counts()
    assert counts["overflow"] == 200 - 2 * ring.places
    assert counts["accepted"] == 2 * ring.places
    gulps = drained(ring, 50)
    assert sum(g.count for g in gulps) == 400
    assert ring.counts()["lost"] == counts["overflow"]
    ring = Ring(G, seconds=0.1, window=2, policy="block")
    done = threading.Event()
    filler = threading.Thread(target=lambda: (place(ring, made), done.set()))
    filler.start()
    assert not done.wait(0.2)
    got = 0
    while not done.is_set() or ring.closed - max(ring.at, 0) > 0:
        gulp = ring.take(20, timeout=0.05)
        got += 0 if gulp is None else gulp.count
        if done.is_set():
            ring.end()
    filler.join()
    assert got == 400
    assert ring.counts()["lost"] == ring.counts()["overflow"] == 0


def test_an_implausible_jump_of_the_counter_is_refused():
    made = packets(G, np.zeros((40, 1, 16), np.uint8), 0)
    far = packets(G, np.zeros((4, 1, 16), np.uint8), 4 * 10**9)
    ring = Ring(G, seconds=1.0, longest_gap=60.0)
    place(ring, made[:10])
    place(ring, far)
    place(ring, made[10:])
    assert ring.counts()["jump"] == 2
    assert sum(g.count for g in drained(ring, 100)) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [({"policy": "wait"}, "policy='wait'"), ({"window": -1}, "window=-1"), ({"seconds": 0.0}, "seconds=0.0")],
)
def test_bad_rings(options, message):
    with pytest.raises(ValueError, match=message):
        Ring(G, **options)


def test_bad_formats():
    with pytest.raises(ValueError, match="frames=0"):
        VdifParser(frames=0, fch1=1400.0, foff=1.0)
    with pytest.raises(ValueError, match="threads=3"):
        VdifParser(frames=1, fch1=1400.0, foff=1.0, threads=3)
    with pytest.raises(ValueError, match="16 bits"):
        Unpacker(replace(G, bits=16, pols=2))
    with pytest.raises(ValueError, match="whole packets"):
        packets(G, np.zeros((5, 1, 16), np.uint8), 0)


def test_a_gap_longer_than_the_ring_loses_no_packet():
    """With "drop" too: packets after the gap wait until it has been taken."""
    made = packets(G, np.zeros((4000, 1, 16), np.uint8), 0)
    ring = Ring(G, seconds=0.4, policy="drop")
    gulps = []
    taker = threading.Thread(target=lambda: taken(ring, gulps))
    taker.start()
    for a in [*range(0, 400, 20), *range(1600, 2000, 20)]:
        place(ring, made[a : a + 20])
        until = time.monotonic() + 60
        while ring.state[8] > 30 and time.monotonic() < until:
            time.sleep(0.001)
    ring.end()
    taker.join(60)
    counts = ring.counts()
    assert (counts["overflow"], counts["accepted"], counts["lost"]) == (0, 800, 1200)
    assert sum(g.count for g in gulps) == 4000


def test_voltages_that_are_not_finite_are_zero():
    """A power of NaN or 1e30 would stay in the level of its channel."""
    g = replace(G, kind=VOLTAGE, bits=32)
    sent = np.arange(40 * 32, dtype="<f4").reshape(40, 1, 32)
    sent[3, 0, 5], sent[9, 0, 0], sent[20, 0, 31], sent[21, 0, 30] = np.nan, np.inf, -np.inf, 1e30
    ring = Ring(g, seconds=10.0)
    place(ring, packets(g, sent.view(np.uint8), 0))
    (gulp,) = drained(ring, 40)
    expected = np.where(np.abs(sent) < 1e12, sent, 0).view(np.complex64)
    assert np.array_equal(Unpacker(g).voltages(gulp), expected)
