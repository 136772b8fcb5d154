"""Compile and launch the kernels of a domain.

A launcher receives a `Runtime`.  It takes arrays from ``runtime.xp`` and kernels from ``runtime.module(...)``, and
starts them with `Module.launch`.  Tests give it a runtime that runs the same sources on the host.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import numpy as np

from skysieve.core.device import Device
from skysieve.core.errors import DeviceUnavailable, KernelError
from skysieve.core.tasks import usable_cores

from .source import load_source
from .structs import address

__all__ = ["CudaModule", "CudaRuntime", "Module", "Runtime", "check_launch", "on_device"]

_MAX_THREADS = 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)
_PLAIN = frozenset((bool, int, float, complex))
_CODES: dict[Any, Literal["i", "q", "f", "d"]] = {np.int32: "i", np.int64: "q", np.float32: "f", np.float64: "d"}
"""Types of scalars that are stored directly; a copy of their bytes takes three times as long."""
_SLOTS, _SLOT = 32, 4096
"""Largest number of arguments of a kernel, and of bytes of one.  CUDA allows as many bytes for all of them together."""


class _Arguments(threading.local):
    """A thread's memory for the arguments of a launch and their addresses; the driver copies them during the launch.

    ``ready`` says whether the thread has a context of CUDA, which the driver's launch needs.
    """

    def __init__(self) -> None:
        self.ready = False
        self.room = bytearray(_SLOTS * _SLOT)
        first = address(np.frombuffer(self.room, np.uint8))
        self._places = np.arange(first, first + _SLOTS * _SLOT, _SLOT, dtype=np.uint64)
        self.address = address(self._places)
        memory = memoryview(self.room)
        self._addresses = memory.cast("Q")
        self._scalars = {kind: memory.cast(code) for kind, code in _CODES.items()}

    def put(self, args: Sequence[Any]) -> int:
        """Store the arguments of `Module.launch`; return the address of the array of their addresses."""
        if len(args) == 1 and type(args[0]) is np.void:  # a struct, as most kernels take
            data = args[0].tobytes()
            self.room[: len(data)] = data
            return self.address
        start, scalars = 0, self._scalars
        for a in args:
            numbers = scalars.get(type(a))
            if numbers is not None:
                numbers[start // numbers.itemsize] = a
            elif isinstance(a, np.generic):
                data = a.tobytes()
                self.room[start : start + len(data)] = data
            else:
                self._addresses[start // 8] = address(a)
            start += _SLOT
        return self.address


_arguments = _Arguments()


class Module(Protocol):
    """Compiled kernels of one source on one device."""

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        """Start a kernel.

        Parameters
        ----------
        kernel : str
        grid, block : sequence of int
            Number of blocks, and threads of a block: one to three numbers each.  An empty grid does nothing.
        args : sequence
            Arrays of the device, NumPy scalars of the parameter's type (with a structured dtype for a struct by value),
            or None for a null pointer.  Python's numbers are refused, because they have no width.
        shared_mem : int
            Bytes of dynamic shared memory; more than 48 KiB is allowed.
        stream : optional
            The current stream by default.
        """

    def attributes(self, kernel: str) -> dict[str, int]:
        """Return a kernel's ``registers``, ``shared`` and ``local`` bytes (static, per thread) and ``max_threads``."""


class Runtime(Protocol):
    """One device, as the launchers of a domain use it."""

    @property
    def xp(self) -> Any:
        """Array module of the kernels' arrays."""

    @property
    def device(self) -> Device: ...

    def module(
        self, package: str, name: str, build: str | None = None, defines: Mapping[str, object] | None = None
    ) -> Module:
        """Return the kernels of file `name` of `package` in one of its builds, by default the first."""

    def compile_ahead(self, wanted: Iterable[Sequence[Any]]) -> None:
        """Begin to compile modules that will be needed, each given by the arguments of `module`; return at once."""

    def synchronize(self) -> None:
        """Wait for all work of the device."""


def on_device(runtime: Runtime) -> AbstractContextManager[Any]:
    """A context in which this thread allocates and works on the runtime's device; it does nothing on the host."""
    if runtime.xp is np:
        return nullcontext()
    found: AbstractContextManager[Any] = runtime.xp.cuda.Device(runtime.device.index)
    return found


class CudaRuntime:
    """A GPU through CuPy; compiled code is cached in this process and in CuPy's disk cache.

    Parameters
    ----------
    device : Device
        A device of kind ``"cuda"``, from `skysieve.core.device.resolve`.
    """

    def __init__(self, device: Device) -> None:
        import cupy

        self.xp: Any = cupy
        self.device = device
        self._modules: dict[tuple[Any, ...], CudaModule] = {}
        self._coming: dict[tuple[Any, ...], Future[CudaModule]] = {}

    def module(
        self, package: str, name: str, build: str | None = None, defines: Mapping[str, object] | None = None
    ) -> CudaModule:
        """See `Runtime.module`.

        Raises
        ------
        KernelError
            The source is missing or does not compile; the message contains the compiler's output.
        DeviceUnavailable
            The compiler (NVRTC) cannot be loaded.
        """
        key = _key(package, name, build, defines)
        if key not in self._modules:
            coming = self._coming.pop(key, None)
            self._modules[key] = coming.result() if coming else self._compile(package, name, build, defines)
        return self._modules[key]

    def compile_ahead(self, wanted: Iterable[Sequence[Any]]) -> None:
        """See `Runtime.compile_ahead`.  Other threads compile; `module` raises their errors."""
        new = {_key(*each): each for each in wanted}
        new = {key: each for key, each in new.items() if key not in self._modules and key not in self._coming}
        if new:
            pool = ThreadPoolExecutor(min(len(new), usable_cores()), "skysieve-compile")
            self._coming |= {key: pool.submit(self._compile, *each) for key, each in new.items()}
            pool.shutdown(wait=False)

    def _compile(
        self, package: str, name: str, build: str | None = None, defines: Mapping[str, object] | None = None
    ) -> CudaModule:
        source = load_source(package, name)
        return CudaModule(self.xp, self.device, name, source.assemble(build, defines), source.options)

    def synchronize(self) -> None:
        """See `Runtime.synchronize`."""
        with recording, on_device(self):
            self.xp.cuda.runtime.deviceSynchronize()


recording = threading.RLock()
"""Held while a stream is recorded: CUDA refuses to wait for a device while any thread records one of its streams."""


def _key(
    package: str, name: str, build: str | None = None, defines: Mapping[str, object] | None = None
) -> tuple[Any, ...]:
    return package, name, build, tuple(sorted((k, str(v)) for k, v in defines.items())) if defines else ()


class CudaModule:
    """Kernels compiled by NVRTC through CuPy for one GPU."""

    def __init__(self, cupy: Any, device: Device, name: str, code: str, options: tuple[str, ...]) -> None:
        self._cupy = cupy
        self._index = device.index
        self._name = name
        self._kernels: dict[str, Any] = {}
        self._dynamic: dict[str, int] = {}
        self._pointers: dict[str, tuple[int, int]] = {}
        self._launch_kernel = cupy.cuda.driver.launchKernel
        self._raw = cupy.RawModule(code=code, options=options, backend="nvrtc")
        try:
            with cupy.cuda.Device(self._index):
                self._raw.compile()
        except cupy.cuda.compiler.CompileException as error:
            raise KernelError(f"{name} does not compile for {device}:\n{error}") from error
        except (ImportError, OSError) as error:
            raise _no_compiler(error) from error
        except RuntimeError as error:
            if any(library in str(error) for library in ("libnvrtc", "nvrtc64")):
                raise _no_compiler(error) from error
            raise KernelError(f"{name} cannot be loaded on {device}: {error}") from error

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        """See `Module.launch`."""
        if not check_launch(kernel, grid, block, args):
            return
        if self._cupy.cuda.runtime.getDevice() == self._index:  # entering a device's context takes as long as a launch
            self._start(kernel, grid, block, args, shared_mem, stream)
            return
        with self._cupy.cuda.Device(self._index):
            self._start(kernel, grid, block, args, shared_mem, stream)

    def _start(
        self, kernel: str, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared_mem: int, stream: Any
    ) -> None:
        """Start a kernel on the current device, which is this module's."""
        if not _arguments.ready:  # a new thread is on device 0 without a context until it calls CUDA's runtime
            self._cupy.cuda.runtime.setDevice(self._index)
            _arguments.ready = True
        known = self._pointers.get(kernel)
        if known is None or shared_mem > known[1]:
            known = self._ready(kernel, shared_mem)
        queue = (self._cupy.cuda.get_current_stream() if stream is None else stream).ptr
        x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        u, v, w = block if len(block) == 3 else (*block, 1, 1)[:3]
        # a third of the time of CuPy's own call, which converts each argument
        self._launch_kernel(known[0], x, y, z, u, v, w, shared_mem, queue, _arguments.put(args), 0)

    def _ready(self, kernel: str, shared_mem: int) -> tuple[int, int]:
        """Return a kernel's address and its limit of dynamic shared memory, which is at least ``shared_mem``."""
        function = self._kernel(kernel)
        if shared_mem > self._dynamic.get(kernel, 0):
            # CuPy shares a loaded kernel between modules with the same text: never lower the other's limit
            function.max_dynamic_shared_size_bytes = max(shared_mem, function.max_dynamic_shared_size_bytes)
            self._dynamic[kernel] = shared_mem
        found = self._pointers[kernel] = function.kernel.ptr, self._dynamic.get(kernel, 0)
        return found

    def attributes(self, kernel: str) -> dict[str, int]:
        """See `Module.attributes`."""
        with self._cupy.cuda.Device(self._index):
            a = self._kernel(kernel).attributes
        return {
            "registers": int(a["num_regs"]),
            "shared": int(a["shared_size_bytes"]),
            "local": int(a["local_size_bytes"]),
            "max_threads": int(a["max_threads_per_block"]),
        }

    def _kernel(self, kernel: str) -> Any:
        if kernel not in self._kernels:
            try:
                self._kernels[kernel] = self._raw.get_function(kernel)
            except self._cupy.cuda.driver.CUDADriverError as error:
                raise KernelError(f"{self._name} has no kernel {kernel!r}: {error}") from error
        return self._kernels[kernel]


def check_launch(kernel: str, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> bool:
    """Refuse a launch that no device accepts; return False if the grid is empty and there is nothing to do."""
    usual = len(args) == 1 and type(args[0]) is np.void and len(grid) == 1 == len(block)
    if usual and 1 <= grid[0] <= _MAX_GRID[0] and 1 <= block[0] <= _MAX_THREADS:
        return True
    if not 1 <= len(grid) <= 3 or not 1 <= len(block) <= 3:
        raise KernelError(f"{kernel}: grid {tuple(grid)} and block {tuple(block)} have one to three numbers each")
    if min(block) < 1 or math.prod(block) > _MAX_THREADS:
        raise KernelError(f"{kernel}: block {tuple(block)} does not hold 1 to {_MAX_THREADS} threads")
    for n, most in zip(grid, _MAX_GRID, strict=False):
        if not 0 <= n <= most:
            raise KernelError(f"{kernel}: grid {tuple(grid)} is outside {_MAX_GRID}")
    if len(args) > _SLOTS:
        raise KernelError(f"{kernel}: {len(args)} arguments, expected at most {_SLOTS}")
    if not _PLAIN.isdisjoint(map(type, args)):
        i = next(i for i, a in enumerate(args) if type(a) in _PLAIN)
        raise TypeError(
            f"{kernel}: argument {i} is the Python number {args[i]!r}, expected a NumPy scalar with a width"
        )
    return min(grid) > 0


def _no_compiler(error: Exception) -> DeviceUnavailable:
    return DeviceUnavailable(
        f"CUDA's run-time compiler (NVRTC) cannot be loaded: {error}",
        "pip install 'skysieve[cuda13]' (or [cuda12], as your driver needs) brings it",
    )
