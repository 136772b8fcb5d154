"""Self-test of a GPU: a sum with a known result, compiled, launched and copied back."""

from __future__ import annotations

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.errors import KernelError

from .runtime import Runtime
from .staging import make_lane

__all__ = ["run_selftest"]


def run_selftest(runtime: Runtime, n: int = 10_000) -> None:
    """Add the whole numbers below `n` on the device, in float64 and float32.

    Raises
    ------
    KernelError
        The sum is wrong.
    """
    xp, lane = runtime.xp, make_lane(runtime)
    expected = n * (n - 1) // 2
    for build, dtype in (("f64", np.float64), ("f32", np.float32)):
        module = runtime.module("skysieve.core.gpu", "selftest.cu", build)
        with lane:  # so that, of several GPUs, the arrays are on this one
            x, total = xp.arange(n, dtype=np.float64), xp.zeros(1, dtype)
            module.launch("block_sum", (4,), (256,), (x, np.int32(n), dtype(1), total), stream=lane.stream)
            lane.synchronize()
            found = float(to_host(total)[0])
        # float32: each element takes part in fewer than 64 additions, with a rounding error of 2**-24 each
        if abs(found - expected) > (0 if build == "f64" else 64 * 2.0**-24 * expected):
            raise KernelError(f"{runtime.device} adds 0 to {n - 1} in {build} to {found!r}, not {expected}")
