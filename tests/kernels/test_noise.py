"""The noise of injection campaigns on the host shim and on a GPU: equal to the noise on the CPU, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.arrays import to_host
from skysieve.core.tasks import TaskPool
from skysieve.dedispersion import Noise
from skysieve.dedispersion.data.simulate import NOISE_BLOCK
from skysieve.dedispersion.injections.cuda.launch import DeviceNoise, jump
from skysieve.dedispersion.injections.pulses import Pulse, record
from skysieve.dedispersion.injections.segments import held_noise
from tests.kernels.devices import one_order


@pytest.mark.parametrize("steps", [0, 1, 255, 256, 10**9])
def test_a_jump_is_that_of_numpy(steps):
    generator = np.random.PCG64(7)
    state = generator.state["state"]
    factor, total = jump(steps)
    generator.advance(steps)
    assert (factor * state["state"] + total * state["inc"]) % 2**128 == generator.state["state"]["state"]


@pytest.mark.parametrize(("channels", "nbits"), [(16, 8), (7, 8), (33, 4)])
def test_noise_and_pulses_have_the_bits_of_the_cpu(runtime, channels, nbits):
    receiver = Noise(nchan=channels, foff=-256 / channels, tsamp=1e-3, nbits=nbits, duration=(NOISE_BLOCK + 1001) / 1e3)
    fb = receiver.segment(3, 5)
    pulses = [Pulse(100.0, 0.6, 0.02, 15.0), Pulse(300.0, 4.0, 0.05, 400.0)]  # the second is clipped
    added = [(one.first, one.counts.astype(np.float32)) for one in (
        record(fb.observation, pulse, np.full(channels, 16.0), 1 / 2.41e-4) for pulse in pulses
    )]  # fmt: skip
    device = DeviceNoise(runtime)
    base, made = (to_host(x) for x in device.make(fb.readers[0], added))
    device.close()
    with TaskPool(1) as pool:
        expected = held_noise(fb.readers[0], added, pool)
    assert base.std() > 1
    assert (base != made).any()
    assert np.array_equal(base, expected[0])
    assert np.array_equal(made, expected[1])


@one_order
def test_noise_without_pulses_is_one_array(runtime):
    reader = Noise(nchan=8, foff=-20, tsamp=1e-3, duration=0.5).segment(1).readers[0]
    device = DeviceNoise(runtime)
    base, made = device.make(reader, [])
    device.close()
    assert base is made
    assert np.array_equal(to_host(base), reader.read(0, 500))
