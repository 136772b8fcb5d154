"""The host shim: the CPU in place of a GPU.  It runs the package's ``.cu`` files and their launchers on NumPy arrays.

``ShimRuntime`` stands in for `skysieve.core.gpu.runtime.CudaRuntime`.  g++ compiles the sources with the header
``shim/cuda_shim.h``, whose first lines list its checks.  ``build/shim`` keeps the libraries for later runs and for
other processes.
Tests get it from the fixture ``runtime`` of `tests/conftest.py`, or::

    runtime = shim_runtime()            # skips the test, with the reason, without g++
    engine = cuda.Engine(spec, runtime=runtime)

With ``order="backwards"`` the threads run in reverse order: if the result differs, the kernel has a race condition.
With SKYSIEVE_SHIM_SANITIZE=1 everything is built with AddressSanitizer and UBSan; `run_sanitized` starts pytest so.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from skysieve.core.device import Device
from skysieve.core.errors import KernelError
from skysieve.core.gpu.runtime import check_launch
from skysieve.core.gpu.source import load_source

ROOT = Path(__file__).resolve().parents[2]
HEADERS = Path(__file__).resolve().parent / "shim"
HEADER, MACHINE = "cuda_shim.h", "machine.cpp"
BUILD = ROOT / "build" / "shim"
SANITIZE = "SKYSIEVE_SHIM_SANITIZE"
FLAGS = ("-std=c++17", "-Og", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas", "-Wno-attributes")
SANITIZER_FLAGS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")

_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+((?:__align__|alignas)\s*\(\s*\w+\s*\)\s*)?([A-Za-z_][\w:<> ]*?)\s+(\w+)\s*\[\s*\]\s*;"
)


def shim_runtime(order: str = "forwards", sm: tuple[int, int] = (9, 0)) -> ShimRuntime:
    """Return a shim runtime; skip the calling test where g++ is missing."""
    if compiler() is None:
        pytest.skip("the host shim needs g++ (apt install g++)")
    return ShimRuntime(order, sm)


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


class ShimRuntime:
    """See `skysieve.core.gpu.runtime.Runtime`; ``xp`` is NumPy."""

    xp = np

    def __init__(self, order: str = "forwards", sm: tuple[int, int] = (9, 0)) -> None:
        if order not in ("forwards", "backwards"):
            raise ValueError(f"order={order!r}")
        self.order = order
        ratio = 2 if sm in ((8, 0), (9, 0), (10, 0)) else 64
        self.device = Device("cuda", 0, "host shim", 2**30, sm, 2, 227 * 1024, ratio)
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []

    def module(self, package, name, build=None, defines=None) -> ShimModule:
        source = load_source(package, name)
        return ShimModule(self, name, source.assemble(build, defines), source.kernels)

    def compile_ahead(self, wanted) -> None:
        """Only check that the sources exist: `module` compiles them."""
        for package, name, *rest in wanted:
            load_source(package, name).assemble(*rest)

    def text_module(self, text: str, kernels: tuple[str, ...], name: str = "text.cu") -> ShimModule:
        """Kernels from a string, for tests of the shim itself."""
        return ShimModule(self, name, f'#line 1 "{name}"\n{text}', kernels)

    def synchronize(self) -> None:
        """Do nothing: `ShimModule.launch` returns when the kernel has ended."""


class ShimModule:
    """See `skysieve.core.gpu.runtime.Module`."""

    def __init__(self, runtime: ShimRuntime, name: str, text: str, kernels: tuple[str, ...]) -> None:
        self._runtime = runtime
        self._name = name
        self._kernels = kernels
        self._library = _load(text, kernels)
        self._library.shim_error.restype = ctypes.c_char_p
        self._parameters: dict[str, list[int]] = {}

    def launch(self, kernel, grid, block, args, shared_mem=0, stream=None) -> None:
        """Run a kernel to its end.

        Raises
        ------
        KernelError
            The kernel did something whose result is undefined on a GPU: see ``cuda_shim.h``.
        """
        if not check_launch(kernel, grid, block, args):
            return
        self._runtime.launches.append((kernel, tuple(grid), tuple(block), int(shared_mem)))
        sizes = self._sizes(kernel)
        if len(args) != len(sizes):
            raise KernelError(f"{kernel} takes {len(sizes)} arguments, {len(args)} given")
        values = [_value(kernel, i, a, size) for i, (a, size) in enumerate(zip(args, sizes, strict=True))]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*[v.ctypes.data for v in values])
        config = (ctypes.c_uint * 7)(*_three(grid), *_three(block), shared_mem)
        self._library.shim_set_order(int(self._runtime.order == "backwards"))
        if getattr(self._library, f"shim_launch_{kernel}")(config, pointers):
            raise KernelError(f"{self._name}: {kernel}: {self._library.shim_error().decode()}")

    def attributes(self, kernel: str) -> dict[str, int]:
        self._sizes(kernel)
        return {"registers": 32, "shared": 0, "local": 0, "max_threads": 1024}

    def _sizes(self, kernel: str) -> list[int]:
        if kernel not in self._kernels:
            raise KernelError(f"{self._name} has no kernel {kernel!r}")
        if kernel not in self._parameters:
            sizes = (ctypes.c_int * 64)()
            count = getattr(self._library, f"shim_parameters_{kernel}")(sizes)
            self._parameters[kernel] = list(sizes[:count])
        return self._parameters[kernel]


def _three(numbers) -> tuple[int, int, int]:
    x, y, z = (*map(int, numbers), 1, 1)[:3]
    return x, y, z


def _value(kernel: str, i: int, a, size: int) -> np.ndarray:
    """Bytes of argument ``i``, in a new array; ``size`` is that of the kernel's parameter, negative for a pointer."""
    if size < 0:
        if a is None:
            return np.zeros(1, np.uintp)
        if isinstance(a, np.ndarray):
            if not a.flags.c_contiguous or not a.dtype.isnative:
                raise KernelError(f"{kernel}: argument {i} is not a contiguous array of native byte order")
            return np.array([a.ctypes.data], np.uintp)
        if isinstance(a, np.uintp | np.uint64 | np.int64):
            return np.array([a])
        raise KernelError(f"{kernel}: argument {i} is a {type(a).__name__}, the parameter is a pointer")
    if not isinstance(a, np.generic):
        raise KernelError(f"{kernel}: argument {i} is a {type(a).__name__}, expected a NumPy scalar of {size} bytes")
    if a.dtype.itemsize != size:
        raise KernelError(f"{kernel}: argument {i} has {a.dtype.itemsize} bytes ({a.dtype}), the parameter {size}")
    return np.frombuffer(np.asarray(a).tobytes(), np.uint8)


def host_source(text: str, kernels: tuple[str, ...]) -> str:
    """The source for g++: dynamic shared arrays become pointers on the same line, and launchers are appended."""
    text = _DYNAMIC.sub(r"\2* const \3 = reinterpret_cast<\2*>(shim::dynamic_shared);", text)
    return "\n".join(
        [text, '#line 1 "launchers"', "SHIM_COMMON", *(f"SHIM_KERNEL({kernel})" for kernel in kernels), ""]
    )


@functools.cache
def _load(text: str, kernels: tuple[str, ...]) -> ctypes.CDLL:
    sanitize = SANITIZER_FLAGS if os.environ.get(SANITIZE) else ()
    code = host_source(text, kernels)
    key = _key(code, *sanitize)
    library = BUILD / f"{key}.so"
    BUILD.mkdir(parents=True, exist_ok=True)
    with locked(BUILD / f"{key}.lock"):  # processes of parallel tests wait for the one that compiles
        if not library.exists():
            _compile(code, library, sanitize)
    return ctypes.CDLL(str(library))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file.  The system releases it at the latest when the process ends."""
    import fcntl

    with open(path, "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(code: str, library: Path, sanitize: tuple[str, ...]) -> None:
    source, made = library.with_suffix(".cpp"), library.with_suffix(".new")
    source.write_text(code)
    try:
        folder = _precompiled(sanitize)
        result = _gxx(
            sanitize, "-shared", *_linker(), "-I", folder, "-I", HEADERS, "-include", HEADER, "-o", made, source,
            folder / f"{MACHINE}.o",
        )  # fmt: skip
    finally:
        source.unlink()
    if result.returncode:
        raise KernelError(f"g++ does not compile this kernel source:\n{result.stderr[:4000]}")
    made.replace(library)


@functools.cache
def _precompiled(sanitize: tuple[str, ...]) -> Path:
    """Folder of the two parts that all kernels share: the precompiled header, and the object file of `MACHINE`.

    They halve the time of compiling a small kernel.  g++ ignores a header that another version has precompiled.
    """
    folder = BUILD / f"header-{_key(*sanitize)}"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        for made, arguments in (
            (folder / f"{HEADER}.gch", ("-x", "c++-header", HEADERS / HEADER)),
            (folder / f"{MACHINE}.o", ("-c", HEADERS / MACHINE)),
        ):
            if not made.exists():
                new = made.with_suffix(".new")
                result = _gxx(sanitize, "-o", new, *arguments)
                if result.returncode:
                    raise KernelError(f"g++ does not compile {arguments[-1]}:\n{result.stderr[:4000]}")
                new.replace(made)
    return folder


@functools.cache
def _linker() -> tuple[str, ...]:
    """The option for a linker that is faster than the usual one, if it is installed."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


def _gxx(sanitize: tuple[str, ...], *others: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    command = [str(compiler()), *FLAGS, *sanitize, *map(str, others)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _key(*parts: str) -> str:
    """A hash of texts, of the shim's files and of the compiler's options."""
    files = (p.read_text() for p in sorted(HEADERS.iterdir()))
    return hashlib.sha256("\0".join([*parts, *files, *FLAGS, str(compiler())]).encode()).hexdigest()[:24]


def run_sanitized(*pytest_args: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in another process, with every kernel under AddressSanitizer and UBSan.

    Skips the calling test where g++ or its sanitizers are missing.
    """
    if compiler() is None:
        pytest.skip("the host shim needs g++ (apt install g++)")
    libraries = []
    for name in ("libasan.so", "libstdc++.so"):
        found = subprocess.run(
            [str(compiler()), f"-print-file-name={name}"], capture_output=True, text=True, check=True
        )
        path = Path(found.stdout.strip())
        if not path.is_absolute():
            pytest.skip(f"this g++ has no {name}")
        libraries.append(str(path.resolve()))
    environment = dict(os.environ)
    environment |= {SANITIZE: "1", "LD_PRELOAD": " ".join(libraries)}
    environment |= {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *pytest_args,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=3600)
