"""Noise of a campaign, without and with pulses, in the memory of a GPU; see ``noise.cu``."""

from __future__ import annotations

import functools
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.runtime import Runtime
from skysieve.core.gpu.staging import Lane, make_lane
from skysieve.core.gpu.structs import fill, struct
from skysieve.dedispersion.data.simulate import NOISE_BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.simulate import NoiseReader

PACKAGE = "skysieve.dedispersion.injections.cuda"
JOB = struct("generators*", "jumps*", "out*", "samples#", "level.", "sigma.", "highest.", "channels")
"""``struct Job``."""
MULTIPLIER = 2549297995355413924 << 64 | 4865540595714422341
"""Multiplier of PCG64."""
WORD, BIG = 2**64 - 1, 2**128 - 1
DIGITS, THREADS, ROUNDS = 4, 256, 16
"""Digits, in base 256, of the length of a jump; threads of a block; groups of four numbers that a thread makes."""
MOST_ROWS = 65535
"""Blocks of noise of a launch."""
LANES = 2
"""Segments that are made at the same time."""


def _after(first: tuple[int, int], then: tuple[int, int]) -> tuple[int, int]:
    """Combine two jumps, each a factor of the generator's state and a factor (a sum of powers) of its increment."""
    return first[0] * then[0] & BIG, (first[1] * then[0] + then[1]) & BIG


def jump(steps: int) -> tuple[int, int]:
    """Factors of the state and of the increment (see `_after`) for a number of steps of the generator."""
    found, once = (1, 0), (MULTIPLIER, 1)
    while steps:
        if steps & 1:
            found = _after(found, once)
        once, steps = _after(once, once), steps >> 1
    return found


def _words(numbers: Sequence[int]) -> list[int]:
    """The high and the low word of each number."""
    return [word for number in numbers for word in (number >> 64, number & WORD)]


@functools.lru_cache(maxsize=8)
def jumps(stride: int) -> NDArray[np.uint64]:
    """``jumps`` of ``struct Job``, whose last entry is for ``stride`` steps."""
    listed: list[int] = []
    for digit in range(DIGITS):
        found, once = (1, 0), jump(256**digit)
        for _ in range(256):
            listed += _words(found)
            found = _after(found, once)
    return np.array([*listed, *_words(jump(stride))], np.uint64)


def generators(reader: NoiseReader) -> NDArray[np.uint64]:
    """The state and the increment of the generator of each block of noise."""
    found = []
    for number in range(-(-reader.nsamp // NOISE_BLOCK)):
        state: Any = np.random.PCG64(np.random.SeedSequence([reader.seed, number])).state
        found += _words([state["state"]["state"], state["state"]["inc"]])
    return np.array(found, np.uint64)


class DeviceNoise:
    """Makes segments of 8-bit noise on a GPU, from several threads.

    Parameters
    ----------
    runtime : Runtime
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.module = runtime.module(PACKAGE, "noise.cu")
        self._lanes: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for _ in range(LANES):
            self._lanes.put(make_lane(runtime))

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        lane = self._lanes.get()
        try:
            with lane:
                yield lane
        finally:
            lane.settle()
            self._lanes.put(lane)

    def close(self) -> None:
        """Free the buffers."""
        for _ in range(LANES):
            self._lanes.get().free()

    def make(
        self, reader: NoiseReader, added: Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]
    ) -> tuple[Any, Any]:
        """Make noise without and with pulses, which do not overlap, on the device; without pulses both are one array.

        Parameters
        ----------
        reader : NoiseReader
            A reader of `noise.QuickNoise` in bytes, which defines the noise.
        added : sequence of (first sample of each row, what is added to it)

        Returns
        -------
        base, made : uint8 arrays, shape (samples, channels)
        """
        xp, n, channels = self.runtime.xp, reader.nsamp, reader.observation.nchan
        words = NOISE_BLOCK * channels // 2
        width = max(1, words // (2 * THREADS * ROUNDS))
        with self._lane() as lane:
            base = xp.empty((n, channels), np.uint8)
            job = {
                "generators": xp.asarray(generators(reader)), "jumps": xp.asarray(jumps(2 * THREADS * width)),
                "samples": n, "channels": channels, "level": float(np.float32(reader.level)),
                "sigma": float(np.float32(reader.sigma)), "highest": float(reader.maximum),
            }  # fmt: skip
            blocks = -(-n // NOISE_BLOCK)
            if blocks > MOST_ROWS:
                raise ValueError(f"{n} samples: expected at most {MOST_ROWS * NOISE_BLOCK}")
            self.module.launch(
                "noise", (width, blocks), (THREADS,), (fill(JOB, out=base, **job),), stream=lane.stream
            )  # fmt: skip
            if not added:
                lane.synchronize()
                return base, base
            made = base.copy()
            held = [(xp.asarray(np.ascontiguousarray(first)), xp.asarray(np.ascontiguousarray(counts)))
                    for first, counts in added]  # fmt: skip
            for first, counts in held:
                length = counts.shape[1]
                args = (fill(JOB, out=made, **job), counts, first, np.int32(length))
                self.module.launch("pulse", (-(-length // THREADS), channels), (THREADS,), args, stream=lane.stream)
            lane.synchronize()
        return base, made
