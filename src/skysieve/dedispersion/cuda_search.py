"""Events of series that lie on the GPU (``dd_search.cu``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.kernels import Runtime
from skysieve.core.staging import Lane

from .cuda_plan import PACKAGE
from .workload import UNIT, Detection, check_events

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOM = 1 << 16
"""Events that there is room for at first."""
BUILDS = {"u": "u32", "i": "i32", "f": "f32"}
KINDS = {"robust": 0, "moments": 1, "clipped": 2}
NOISE_BYTES = 4 * (8192 + 512)
"""Shared memory of the kernel that takes the noise: counts, or sums of parts."""
SHORT = 12
"""Windows of fewer samples are looked at one by one."""
DENSE = (1, 2, 3, 4, 5, 6, 8, 10)
"""Those of them for which the kernel has a way of its own."""
MOST_KEPT = 160 * 1024
"""Shared memory that a block of samples may be kept in."""
EVENT = np.dtype([("row", np.int32), ("column", np.int32), ("width", np.int32), ("snr", np.float32)])
JOB = np.dtype(
    [
        ("pitch", np.int64), ("rows", np.int32), ("columns", np.int32), ("block", np.int32), ("blocks", np.int32),
        ("noise", np.int32), ("every", np.int32), ("low", np.int32), ("high", np.int32), ("segment", np.int32),
        ("look", np.int32), ("widths", np.int32), ("widest", np.int32), ("room", np.int32), ("shorter", np.int32),
        ("dense", np.int32), ("kept", np.int32), ("threshold", np.float32),
    ],
    align=True,
)  # fmt: skip
"""``struct Job``."""


class Detector:
    """Noise and boxcars of one type of sums on one GPU."""

    def __init__(self, runtime: Runtime, kind: str) -> None:
        self.runtime = runtime
        self.module = runtime.module(PACKAGE, "dd_search.cu", BUILDS[kind])

    def run(
        self,
        lane: Lane,
        sums: Any,
        pitch: int,
        valid: NDArray[np.int64],
        count: int,
        low: int,
        high: int,
        what: Detection,
    ) -> NDArray[np.float64]:
        """Events of series, columns counted from a block's first sample: (row, column, width number, S/N), sorted."""
        rows, widest = len(valid), what.widths[-1]
        j = np.zeros(1, JOB)
        j["pitch"], j["rows"], j["columns"] = pitch, rows, count
        j["block"], j["blocks"] = what.block, -(-count // what.block)
        j["noise"], j["every"], j["low"], j["high"] = KINDS[what.noise], what.every, low, high
        j["look"], j["widths"], j["widest"] = max(1, widest // 2), len(what.widths), widest
        j["segment"], j["threshold"] = 4080 if widest <= 1024 else 1024, what.threshold
        j["shorter"] = sum(w < SHORT for w in what.widths)
        j["dense"] = what.widths[: len(DENSE)] == DENSE and int(j["shorter"][0]) == len(DENSE) and widest >= 32
        looked = int(j["segment"][0]) + 2 * int(j["look"][0])
        shared = 4 * (2 * looked + widest + 40 + 16)
        kept = NOISE_BYTES + 4 * what.block
        j["kept"] = kept <= min(self.runtime.device.shared_per_block - 1024, MOST_KEPT)
        counting = kept if j["kept"][0] else NOISE_BYTES
        widths = np.array(what.widths, np.int32)
        scales = (1 / (UNIT * np.sqrt(widths.astype(np.int64)))).astype(np.float32)
        room = ROOM
        with lane:
            xp = self.runtime.xp
            held = [
                xp.asarray(a) for a in (valid.astype(np.int32), widths, scales, sums_reached(scales, what.threshold))
            ]
            levels = lane.array("levels", 2 * rows * int(j["blocks"][0]), np.float64)
            args: tuple[Any, ...] = (sums, held[0], levels, j[0])
            grid = (int(j["blocks"][0]), rows)
            self.module.launch("noise", grid, (512,), args, shared_mem=counting, stream=lane.stream)
            while True:
                found = lane.array("events", 4 * room, np.int32)
                number = xp.asarray(np.zeros(1, np.uint32))
                j["room"] = room
                args = (sums, held[0], levels, held[1], held[2], held[3], found, number, j[0])
                grid = (-(-(high - low) // int(j["segment"][0])), rows)
                self.module.launch("detect", grid, (256,), args, shared_mem=shared, stream=lane.stream)
                pinned = lane.pinned("number", 1, np.uint32)
                lane.to_host(pinned, number)
                lane.synchronize()
                n = int(pinned[0])
                check_events(n, what)
                if n <= room:
                    break
                room = n
            home = lane.pinned("events", 4 * max(1, n), np.int32)
            if n:
                lane.to_host(home[: 4 * n], found[: 4 * n])
                lane.synchronize()
        events = home[: 4 * n].view(EVENT)
        events = events[np.lexsort((events["column"], events["row"]))]
        return np.stack([events[name].astype(np.float64) for name in ("row", "column", "width", "snr")], axis=1)


def sums_reached(scales: NDArray[np.float32], threshold: float) -> NDArray[np.int32]:
    """The smallest sum of each width's window whose S/N, as float32 gives it, reaches the threshold."""
    wanted, most = np.float32(threshold), 2**31 - 1
    found = []
    for scale in scales:
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            if np.float32(middle) * scale >= wanted:
                high = middle
            else:
                low = middle + 1
        found.append(low)
    return np.array(found, np.int32)
