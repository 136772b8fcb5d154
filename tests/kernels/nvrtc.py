"""Compile CUDA sources without a GPU, and read the resources of each kernel from the report of ptxas.

``build/nvrtc`` keeps the reports for later runs: a source is compiled again when it, the options or NVRTC have changed.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import skysieve
from skysieve.core.gpu.source import COMPILE_OPTIONS, KernelSource, load_source

BUILD = Path(__file__).resolve().parents[2] / "build" / "nvrtc"
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)\w?'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


@dataclass(frozen=True)
class Usage:
    """Resources of a kernel: registers per thread; bytes of static shared memory per block, of stack and spills per
    thread."""

    regs: int
    smem: int
    stack: int
    spills: int


def package_sources() -> list[KernelSource]:
    """Every ``.cu`` of the package."""
    root = Path(skysieve.__file__).parent
    return [load_source(*package_and_name(path.relative_to(root))) for path in sorted(root.rglob("*.cu"))]


def package_and_name(path: Path) -> tuple[str, str]:
    """Package of a kernel file (the folder ``cuda`` above it, else its own folder), and the file's path in there."""
    parts = path.parts
    depth = parts.index("cuda") + 1 if "cuda" in parts else len(parts) - 1
    return ".".join(["skysieve", *parts[:depth]]), "/".join(parts[depth:])


def compile_for(code: str, name: str, arch: int, options: tuple[str, ...] = COMPILE_OPTIONS) -> dict[str, Usage]:
    """Resources of every kernel of ``code`` on ``sm_<arch>``.

    Raises
    ------
    AssertionError
        The code does not compile.  The message holds the compiler's log.
    """
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc")
    given = [o.encode() for o in (*options, f"--gpu-architecture=sm_{arch}", "--ptxas-options=-v")]
    found = nvrtc_version()
    key = hashlib.sha256(repr((code, name, given, found, nvrtc.nvrtcVersion()[1:])).encode()).hexdigest()[:24]
    stored = BUILD / f"{key}.log"
    if found is not None and stored.exists():
        return usage(stored.read_text(encoding="utf-8"))
    _, program = nvrtc.nvrtcCreateProgram(code.encode(), name.encode(), 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    text = log.decode(errors="replace").rstrip("\0 ")
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, f"{name} for sm_{arch}:\n{text}"
    if found is not None:
        BUILD.mkdir(parents=True, exist_ok=True)
        new = stored.with_suffix(f".{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.replace(stored)
    return usage(text)


def nvrtc_version() -> str | None:
    """Version of the installed package nvidia-cuda-nvrtc, with its patch number; None if there is no such package."""
    try:
        return version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return None


def usage(log: str) -> dict[str, Usage]:
    """`Usage` by the kernel's name, from the output of ``ptxas -v``."""
    found: dict[str, Usage] = {}
    kernel, stack, spills = "", 0, 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            kernel, stack, spills = match[1], 0, 0
        elif match := _SPILLS.search(line):
            stack, spills = int(match[1]), int(match[2])
        elif kernel and (match := _USED.search(line)):
            found[kernel] = Usage(int(match[1]), int(match[2] or 0), stack, spills)
            kernel = ""
    return found
