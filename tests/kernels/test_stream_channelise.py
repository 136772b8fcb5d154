"""The GPU's channeliser on the host shim and on a GPU: bit for bit the CPU's results from the same packets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from skysieve.core.errors import MemoryBudgetError
from skysieve.dedispersion.cuda.tensor_plan import to_numpy
from skysieve.dedispersion.stream.channelise import cuda_channeliser as cuda_channelise
from skysieve.dedispersion.stream.channelise.channeliser import Channeliser
from skysieve.dedispersion.stream.channelise.cuda_channeliser import DeviceChanneliser
from skysieve.dedispersion.stream.receive.packets import VOLTAGE, Geometry
from skysieve.dedispersion.stream.receive.ring import Ring, Unpacker
from tests.kernels.devices import one_order
from tests.kernels.shim import shim_runtime

NSUB, TSAMP = 6, 1e-6


def rings(g, data, numbers):
    """Two rings with the same packets ``numbers`` of ``data`` (packets, chunks, bytes)."""
    made = [Ring(g, seconds=2 * data.size / g.rate, window=0) for _ in range(2)]
    for ring in made:
        for n in numbers:
            for c in range(g.chunks):
                if c % 2 and n % 7 == 3:
                    continue  # a part of the band is lost too
                one = np.zeros(1, np.int64)
                ring.put(data[n, c][None], one, one + n, one + c, one)
        ring.end()
    return made


def joined(parts):
    """Join parts, which must follow each other: rows, and missing rectangles."""
    for (a, rows, _), (b, _, _) in pairwise(parts):
        assert a + len(rows) == b
    return parts[0][0], np.concatenate([rows for _, rows, _ in parts]), np.concatenate([r for _, _, r in parts])


def both(g, data, numbers, gulps, runtime, **options):
    """The results of the CPU and of a runtime for packets that are taken in gulps of these lengths."""
    on_host, on_device = rings(g, data, numbers)
    found = []
    a, b = (Channeliser(1400.0, -1.0, g.total, g.all_pols, TSAMP, **options) for _ in range(2))
    unpack = Unpacker(g)
    parts, i = [], 0
    while (gulp := on_host.take(gulps[i % len(gulps)], 0)) is not None:
        parts.append(a.feed(gulp.start, unpack.voltages(gulp), unpack.bands(gulp.missing)))
        i += 1
    parts.append(a.finish())
    found.append(joined([p for p in parts if p is not None]))
    device = DeviceChanneliser(b, g, runtime, max(gulps))
    parts, i = [], 0

    def end():
        loan, part = device.end()
        if part is not None:
            parts.append((part[0], to_numpy(part[1]).copy(), part[2]))
        on_device.give_back(loan)

    while (loan := on_device.lend(gulps[i % len(gulps)], 0)) is not None:
        if device.waiting == 2:
            end()
        device.begin(loan)
        i += 1
    while device.waiting:
        end()
    parts.append(b.finish())
    found.append(joined([p for p in parts if p is not None]))
    device.close()
    return found


def same(found):
    (first, rows, rects), (again, others, some) = found
    assert first == again
    assert rows.dtype == others.dtype
    assert np.array_equal(rows, others)
    assert np.array_equal(rects, some)
    return rows


def packets_of(g, count, seed=0):
    rng = np.random.default_rng(seed)
    if g.bits == 32:
        x = rng.standard_normal((count, g.chunks, g.packet_bytes // 4)).astype("<f4") * 9
        x[count // 2, 0, :3] = np.nan, np.inf, 1e13
        return x.view(np.uint8)
    return rng.integers(0, 256, (count, g.chunks, g.packet_bytes), dtype=np.uint8)


def geometry(bits=8, pols=2, nsamp=24, chunks=1, total=NSUB, offset=False, by_pol=False):
    return Geometry(VOLTAGE, bits, pols, nsamp, total, chunks, 10**18, TSAMP, 1400.0, -1.0, offset, by_pol)


CASES = [
        (geometry(), {"channels": 8}),
        (geometry(bits=4, offset=True, chunks=2), {"channels": 8, "taps": 3, "stokes": 1}),
        (geometry(bits=4, pols=1, total=8), {"channels": 5, "integrate": 3}),
        (geometry(offset=True, pols=1, chunks=2, by_pol=True), {"channels": 16, "taps": 2, "window": "hann"}),
        (geometry(bits=32, chunks=3), {"channels": 30, "nbits": 32}),
        (geometry(pols=1, total=1, nsamp=64), {"channels": 128, "taps": 4}),
        (geometry(pols=1, total=70, nsamp=8), {"channels": 1}),
        (geometry(pols=1, total=3, nsamp=32), {"channels": 7, "integrate": 2, "sideband": "lower", "nbits": 32}),
]  # fmt: skip


@pytest.mark.few
@one_order
@pytest.mark.parametrize(("g", "options"), CASES)
@pytest.mark.parametrize("gulps", [[700], [331, 2, 97]])
def test_the_bits_of_the_cpu(runtime, g, options, gulps):
    """Packets with losses."""
    data = packets_of(g, 2400 // g.nsamp)
    lost = {5, 6, 11, len(data) - 2}
    numbers = [n for n in range(1, len(data)) if n not in lost]
    options = {"calibrate": 600e-6, **options}
    rows = same(both(g, data, numbers, gulps, runtime, **options))
    assert len(rows) > 2000 // (options["channels"] * options.get("integrate", 1)) - 4
    assert rows.std() > 0


@pytest.mark.parametrize("runtime", ["backwards"], indirect=True)
def test_the_order_of_threads_does_not_matter(runtime):
    g = geometry(pols=1)
    data = packets_of(g, 60)
    options = {"channels": 24, "taps": 2, "calibrate": 200e-6}
    same(both(g, data, range(60), [500], runtime, **options))


@one_order
def test_transforms_too_long_for_shared_memory(runtime, monkeypatch):
    """Their passes go through the device's memory, a few blocks at a time."""
    monkeypatch.setattr(cuda_channelise, "SCRATCH", 2**20)
    g = geometry(pols=2, total=1, nsamp=512)
    data = packets_of(g, 50)
    same(both(g, data, range(50), [15000], runtime, channels=7000, calibrate=1e-3, nbits=32))
    launched = [(grid, shared) for kernel, grid, _, shared in runtime.launches if kernel == "channelise"]
    assert launched
    assert all(grid[0] <= 2 and shared == 0 for grid, shared in launched)


@pytest.mark.gpu
@pytest.mark.parametrize("runtime", ["gpu"], indirect=True)
def test_long_transforms_and_many_subbands(runtime):
    """Too large for the shim: 2,048 channels of a subband in shared memory, 32,768 in the device's; 256 subbands."""
    g = geometry(pols=2, total=1, nsamp=512)
    data = packets_of(g, 600)
    for options in ({"channels": 2048, "taps": 4}, {"channels": 32768, "nbits": 32}, {"channels": 1009}):
        same(both(g, data, range(600), [100_000], runtime, calibrate=0.05, **options))
    g = geometry(pols=2, total=256, nsamp=8)
    data = packets_of(g, 2000)
    same(both(g, data, range(2000), [7001], runtime, channels=8, calibrate=1e-3))


def test_a_channeliser_that_does_not_fit():
    with pytest.raises(MemoryBudgetError, match="gulps of 100000 times of 6 subbands on cuda:0"):
        DeviceChanneliser(Channeliser(1400.0, -1.0, NSUB, 2, TSAMP), geometry(), shim_runtime(), 100_000, 2**20)


def test_a_gulp_that_is_too_long_and_a_third_one():
    g = geometry()
    data = packets_of(g, 40)
    ring = rings(g, data, range(40))[0]
    device = DeviceChanneliser(Channeliser(1400.0, -1.0, NSUB, 2, TSAMP), g, shim_runtime(), 100)
    with pytest.raises(ValueError, match="101 voltages: expected at most 100"):
        device.begin(ring.lend(101, 0))
    for _ in range(2):
        device.begin(ring.lend(100, 0))
    with pytest.raises(ValueError, match="two gulps are started"):
        device.begin(ring.lend(100, 0))
    device.close()
