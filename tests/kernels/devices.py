"""The devices that a kernel test runs on: the host shim, in both orders of threads, and a GPU.

A test asks for the fixture ``runtime`` (`tests/conftest.py`).  ``make test`` gives it the shim twice, ``pytest -m gpu``
a GPU.  ``@one_order`` leaves out the shim's second order.  Needs NumPy and pytest alone, and CuPy for the GPU.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime
from tests.kernels.shim import shim_runtime

GPU = pytest.param("gpu", marks=pytest.mark.gpu)

one_order = pytest.mark.parametrize("runtime", ["forwards", GPU], indirect=True)
"""The shim with its threads forwards, and a GPU: for cases whose kernels other tests run backwards."""

only_shim = pytest.mark.parametrize("runtime", ["forwards", "backwards"], indirect=True)
"""Both orders of the shim, and no GPU.  Each test with this mark says why."""


class CountedModule:
    """A module of a GPU that appends its launches to a list of its runtime."""

    def __init__(self, module: Any, launches: list[Any]) -> None:
        self._module, self._launches = module, launches

    def launch(self, kernel: str, grid: Any, block: Any, args: Any, shared_mem: int = 0, stream: Any = None) -> None:
        self._launches.append((kernel, tuple(grid), tuple(block), int(shared_mem)))
        self._module.launch(kernel, grid, block, args, shared_mem, stream)

    def attributes(self, kernel: str) -> dict[str, int]:
        return self._module.attributes(kernel)


class CountedRuntime:
    """The runtime of a GPU, with a list ``launches`` as in `tests.kernels.shim.ShimRuntime`."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self.xp, self.device = runtime.xp, runtime.device
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []

    def module(self, *args: Any, **kwargs: Any) -> CountedModule:
        return CountedModule(self._runtime.module(*args, **kwargs), self.launches)

    def compile_ahead(self, wanted: Any) -> None:
        self._runtime.compile_ahead(wanted)

    def synchronize(self) -> None:
        self._runtime.synchronize()


@functools.cache
def gpu() -> CudaRuntime:
    """The runtime of the first GPU, cached so that kernels are compiled once in a session."""
    return CudaRuntime(resolve("cuda:0")[0])


def make_runtime(name: str) -> Any:
    """The runtime "forwards" or "backwards" (orders of the host shim), or "gpu".  Each lists its launches."""
    return CountedRuntime(gpu()) if name == "gpu" else shim_runtime(name)


def on_gpu(runtime: Any) -> bool:
    """Whether the runtime is that of a GPU, where a case may be large."""
    return runtime.xp is not np


def launched(runtime: Any) -> set[str]:
    """Names of the kernels that ran."""
    return {launch[0] for launch in runtime.launches}


def another(runtime: Any) -> Any:
    """Another runtime on the same device, for tests of several GPUs.

    The shim runs one kernel at a time; `tests.gpu.batches.FaultyRuntime` lets the threads take turns.
    """
    from tests.gpu.batches import FaultyRuntime

    return CudaRuntime(runtime.device) if on_gpu(runtime) else FaultyRuntime(shim_runtime(runtime.order))
