"""The argument ``device="auto" | "cpu" | "cuda" | "cuda:1" | "cuda:all"``, and the devices that it selects.

CUDA is not loaded before a GPU is requested.  If none can be used, `cuda_problem` distinguishes four causes: no driver,
a driver too old for the installed CuPy, no CuPy, no GPU.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import logging
import platform
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import DeviceUnavailable
from .memory import available_host_memory
from .tasks import usable_cores

__all__ = ["Device", "begin", "check_name", "cuda_problem", "current", "driver_version", "for_size", "resolve"]

D = TypeVar("D")

logger = logging.getLogger("skysieve")

_NAME = re.compile(r"cpu|auto|cuda(?::(\d+|all))?")
_EXPECTED = "expected 'auto', 'cpu', 'cuda', 'cuda:N' (N a device number) or 'cuda:all'"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE of the driver API
_DOUBLE_RATIO = 87  # cudaDevAttrSingleToDoublePrecisionPerfRatio
_FAST_RATIO = 4


@dataclass(frozen=True)
class Device:
    """The CPU or one GPU.

    Attributes
    ----------
    kind : {"cpu", "cuda"}
    index : int
        Number of the GPU; 0 for the CPU.
    name : str
    total_memory : int
        Bytes.
    compute_capability : tuple of int
        ``(major, minor)``; ``(0, 0)`` for the CPU.
    sm_count : int
        Multiprocessors of the GPU, or cores that this process may use.
    shared_per_block : int
        Most bytes of shared memory that a block can ask for; 0 for the CPU.
    double_ratio : int
        Speed of float32 arithmetic over that of float64, as the driver states it: 2 for the GPUs of data centres, 32 or
        64 for most others.
    """

    kind: str
    index: int
    name: str
    total_memory: int
    compute_capability: tuple[int, int] = (0, 0)
    sm_count: int = 1
    shared_per_block: int = 0
    double_ratio: int = 2

    @property
    def fast_doubles(self) -> bool:
        """Whether float64 arithmetic is at most four times slower than that of float32."""
        return self.double_ratio <= _FAST_RATIO

    @property
    def free_memory(self) -> int:
        """Bytes that are free now; on a GPU also those that CuPy's memory pool holds without using them."""
        if self.kind == "cpu":
            return available_host_memory()
        import cupy

        with cupy.cuda.Device(self.index):
            free, _ = cupy.cuda.runtime.memGetInfo()
            return int(free) + int(cupy.get_default_memory_pool().free_bytes())

    def __str__(self) -> str:
        return self.name if self.kind == "cpu" else f"cuda:{self.index} ({self.name})"


def resolve(device: str | Device = "auto") -> tuple[Device, ...]:
    """Return the devices that a request selects; more than one only for ``"cuda:all"``.

    Raises
    ------
    ValueError
        `device` is none of the names.
    DeviceUnavailable
        A GPU was requested by name and cannot be used; the error says what is missing and how to get it.

    Examples
    --------
    >>> resolve("cpu")[0].kind
    'cpu'
    """
    if isinstance(device, Device):
        return (device,)
    which = _number(device)
    if device == "cpu":
        return (_cpu(),)
    try:
        return _gpus(which)
    except DeviceUnavailable as problem:
        if device != "auto":
            raise
        _log_fallback(str(problem))
        return (_cpu(),)


def check_name(device: str) -> None:
    """Raise the errors of `resolve` that need neither CuPy nor the first GPU, which take up to a second to start.

    A command calls it before it reads a large file.

    Examples
    --------
    >>> check_name("auto")
    """
    which = _number(device)
    if device in ("auto", "cpu"):
        return
    if _load_driver() is None or importlib.util.find_spec("cupy") is None:
        problem = cuda_problem()
        if problem is not None:
            raise problem
    if which not in (None, "all"):
        _check_number(int(which), _ask_driver()[1])


def _number(device: str) -> str | None:
    """What follows ``cuda:`` in the name of a device; None if nothing does."""
    match = _NAME.fullmatch(device) if isinstance(device, str) else None
    if match is None:
        raise ValueError(f"device={device!r}: {_EXPECTED}")
    return match[1]


def _check_number(index: int, count: int) -> None:
    if count and index >= count:
        raise DeviceUnavailable(f"device='cuda:{index}': no such GPU", f"{count} found: cuda:0 to cuda:{count - 1}")


@functools.cache
def _gpus(which: str | None) -> tuple[Device, ...]:
    """The GPU with a number, the first GPU for None, or all GPUs; the result is cached."""
    problem = cuda_problem()
    if problem is not None:
        raise problem
    count = _device_count()
    if which == "all":
        return tuple(_cuda(i) for i in range(count))
    index = int(which or 0)
    _check_number(index, count)
    return (_cuda(index),)


def for_size(device: D, size: float, least: float) -> D | str:
    """Return ``"cpu"`` for a small job under ``"auto"``: the CPU has finished it before a GPU could answer.

    Parameters
    ----------
    device : str, Device or other
        The device that the user named; anything but ``"auto"`` is returned unchanged.
    size, least : float
        Size of the job, and the size from which a GPU is faster, in the same unit; each domain states its own.

    Examples
    --------
    >>> for_size("auto", 10, 100), for_size("auto", 100, 100), for_size("cuda", 10, 100)
    ('cpu', 'auto', 'cuda')
    """
    return "cpu" if isinstance(device, str) and device == "auto" and size < least else device


def begin(device: str, *modules: str, before: Sequence[str] = ()) -> threading.Thread | None:
    """Load CuPy and make the contexts of the GPUs of a request in another thread, while the caller does other work.

    Commands call it before they read their input.  It raises no error: `resolve` reports problems with `device`.

    Parameters
    ----------
    device : str
    *modules : str
        Modules that this thread imports, too, if the request means a GPU.
    before : sequence of str
        Modules that it imports before CuPy.  Importing astropy after CuPy takes longer, because it looks at all modules
        and so loads parts of CuPy that nobody needs.

    Returns
    -------
    threading.Thread or None
        The thread; None if the request means the CPU, or no driver is installed.
    """
    if device == "cpu" or _load_driver() is None:
        return None
    thread = threading.Thread(target=_make_contexts, args=(device, modules, before), name="skysieve-device")
    thread.start()
    return thread


def _make_contexts(device: str, modules: Sequence[str], before: Sequence[str]) -> None:
    count = _ask_driver()[1]
    if not count:
        return
    _retain_contexts(device, count)
    try:
        for module in before:
            importlib.import_module(module)
        devices = [each for each in resolve(device) if each.kind == "cuda"]
    except (ValueError, ImportError, DeviceUnavailable) as error:
        logger.info("no GPU was prepared ahead: %s", error)
        return
    for each in devices:
        try:
            with current(each):
                _touch_device()
        except (RuntimeError, MemoryError) as error:  # the GPU is full, or in exclusive use by another process
            logger.info("no context was made ahead on %s: %s", each, error)
    for module in modules if devices else ():
        importlib.import_module(module)


def _retain_contexts(device: str, count: int) -> None:
    """Make the contexts that CuPy will use by calls of the driver, during which other Python threads can run."""
    match = _NAME.fullmatch(device)
    cuda = _load_driver()
    if match is None or importlib.util.find_spec("cupy") is None:
        return
    for index in range(count) if match[1] == "all" else [int(match[1] or 0)]:
        number, context = ctypes.c_int(0), ctypes.c_void_p()
        if cuda.cuDeviceGet(ctypes.byref(number), index) == 0:
            status = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
            if status:
                logger.info("no context was made ahead on cuda:%d: error %d of the driver", index, status)


def _touch_device() -> None:
    import cupy

    cupy.cuda.runtime.deviceSynchronize()  # the first call of the runtime makes the context


def current(device: Device) -> AbstractContextManager[Any]:
    """A context manager in which CuPy allocates and works on `device` in this thread; it does nothing for a CPU."""
    if device.kind != "cuda":
        return nullcontext()
    import cupy

    found: AbstractContextManager[Any] = cupy.cuda.Device(device.index)
    return found


def cuda_problem() -> DeviceUnavailable | None:
    """Return why no GPU can be used, as an error to raise; None if one can be used."""
    driver, found = _ask_driver()
    if driver is None:
        return DeviceUnavailable(
            "no CUDA driver was found (libcuda is missing)",
            "Install the driver of your NVIDIA GPU, or use device='cpu'",
        )
    if found == 0:
        return DeviceUnavailable("the CUDA driver finds no GPU", "Check nvidia-smi and CUDA_VISIBLE_DEVICES")
    if importlib.util.find_spec("cupy") is None:
        return DeviceUnavailable("CuPy is not installed", f"pip install '{_extra(driver)}'")
    try:
        import cupy

        built = int(cupy.cuda.runtime.runtimeGetVersion())
    except (ImportError, RuntimeError) as error:  # a library of the CUDA runtime is missing or broken
        return DeviceUnavailable(f"CuPy cannot be loaded: {error}", f"pip install '{_extra(driver)}'")
    if driver // 1000 < built // 1000:
        return DeviceUnavailable(
            f"the CUDA driver is too old: it supports CUDA {_text(driver)}, the installed CuPy needs {_text(built)}",
            f"Update the driver, or: pip uninstall cupy-cuda{built // 1000}x; pip install '{_extra(driver)}'",
        )
    return None


def driver_version() -> str | None:
    """Return the CUDA version that the installed driver supports, such as ``"13.0"``; None without a driver."""
    driver, _ = _ask_driver()
    return None if driver is None else _text(driver)


def _text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _extra(driver: int) -> str:
    return "skysieve[cuda13]" if driver >= 13000 else "skysieve[cuda12]"


def _load_driver() -> Any:
    """The library of the driver; None without one."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


@functools.cache
def _ask_driver() -> tuple[int | None, int]:
    """Ask the driver, without CuPy, for its CUDA version (None without a driver) and the number of GPUs."""
    cuda = _load_driver()
    if cuda is None:
        return None, 0
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    if cuda.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
        return None, 0
    status = cuda.cuInit(0)
    if status == 0:
        status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status not in (0, _NO_DEVICE):
        logger.warning("the CUDA driver returned error %d", status)
    return version.value, count.value


@functools.cache
def _log_fallback(reason: str) -> None:
    """Log why the CPU is used, once for each reason."""
    logger.info("device='auto' takes the CPU: %s", reason)


def _device_count() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


@functools.cache
def _cpu() -> Device:
    name = platform.processor() or platform.machine()
    return Device("cpu", 0, f"CPU ({name}, {usable_cores()} cores)", available_host_memory(), sm_count=usable_cores())


@functools.cache
def _cuda(index: int) -> Device:
    import cupy

    p: dict[str, Any] = cupy.cuda.runtime.getDeviceProperties(index)
    name = p["name"].decode() if isinstance(p["name"], bytes) else str(p["name"])
    return Device(
        "cuda",
        index,
        name,
        int(p["totalGlobalMem"]),
        (int(p["major"]), int(p["minor"])),
        int(p["multiProcessorCount"]),
        int(p["sharedMemPerBlockOptin"]),
        int(cupy.cuda.runtime.deviceGetAttribute(_DOUBLE_RATIO, index)),
    )
