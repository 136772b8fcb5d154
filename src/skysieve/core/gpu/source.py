"""Read a kernel file: its header block, the project headers that it includes, its builds.

A kernel file begins with comment lines that the loader and the tests read::

    // archs: 75 80 86 89 90 100 120
    // build: f64 -DREAL=double -DND=12
    // build: f32 -DREAL=float -DND=12
    // budget: f64 kernel=ls_main regs<=168 smem<=33024 spills<=64 arch=90
    // split: no

``archs`` lists the compute capabilities for which the tests compile the file; it runs on newer ones too.  Each
``build`` names a set of defines; a launcher asks for a build by its name, so that the tested code is the code that
runs.  A ``budget`` limits one kernel of one build: registers per thread, bytes of static shared memory, bytes of spill
stores (0 by default), on every architecture or on the given one.  All cores optimise the functions of a file, each
function by itself, unless ``split`` is ``no``: the kernels of a few files would become slower, or use more local
memory.

Only project headers can be included (``#include "x.cuh"``, a path below the domain's ``cuda`` folder or below
``core/gpu``): NVRTC comes without CUDA's own headers.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

from skysieve.core.errors import KernelError

__all__ = ["COMPILE_OPTIONS", "Budget", "KernelSource", "load_source"]

COMPILE_OPTIONS = ("-std=c++17",)
"""Options of every compilation, also in tests that compile without a GPU."""
SPLIT_OPTIONS = (*COMPILE_OPTIONS, "--split-compile=0")
"""Options for files that all cores compile; they need NVRTC of CUDA 12.0 or later."""

_HEADER = re.compile(r"^//\s*(archs|build|budget|split):\s*(.*)$")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|(<[^>]*>)).*$')
_DEFINE = re.compile(r"-D(\w+)(?:=(.*))?")
_LIMIT = re.compile(r"(regs|smem|spills)<=(\d+)")
_BOUNDS = r"(?:__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*)?"
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+' + _BOUNDS + r"(\w+)\s*\(")


@dataclass(frozen=True)
class Budget:
    """Limits of one kernel of one build; None means no limit."""

    build: str
    kernel: str
    regs: int | None = None
    smem: int | None = None
    spills: int = 0
    arch: int | None = None


@dataclass(frozen=True)
class KernelSource:
    """A kernel file after the inclusion of its project headers.

    Attributes
    ----------
    package, name : str
        Where it was found, such as ``"skysieve.core.gpu"``, ``"selftest.cu"``.
    text : str
        The source after inclusion; ``#line`` gives the compiler's messages the original files and lines.
    kernels : tuple of str
        Names of its ``extern "C" __global__`` functions.
    archs : tuple of int
    builds : dict
        Defines of each build by its name; ``{"default": {}}`` if the file names no build.
    budgets : tuple of Budget
    options : tuple of str
        Options of the compiler.
    """

    package: str
    name: str
    text: str
    kernels: tuple[str, ...]
    archs: tuple[int, ...] = ()
    builds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()
    options: tuple[str, ...] = SPLIT_OPTIONS

    def assemble(self, build: str | None = None, defines: Mapping[str, object] | None = None) -> str:
        """Return the text to compile: the defines of a build, then further ones, then the source.

        Raises
        ------
        KernelError
            The file has no such build.
        """
        build = build or next(iter(self.builds))
        if build not in self.builds:
            raise KernelError(f"{self.name} has no build {build!r}; it has: {', '.join(self.builds)}")
        merged = {**self.builds[build], **{k: str(v) for k, v in (defines or {}).items()}}
        lines = [f"#define {key} {value}" for key, value in merged.items()]
        return "\n".join([*lines, f'#line 1 "{self.name}"', self.text])

    @property
    def digest(self) -> str:
        """SHA-256 of the text, headers included."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@functools.cache
def load_source(package: str, name: str) -> KernelSource:
    """Read the kernel file `name` of `package`, and parse its header block.

    Examples
    --------
    >>> load_source("skysieve.core.gpu", "selftest.cu").kernels
    ('block_sum',)
    """
    raw = _read(package, name)
    archs: tuple[int, ...] = ()
    builds: dict[str, dict[str, str]] = {}
    budgets: list[Budget] = []
    options: tuple[str, ...] = SPLIT_OPTIONS
    for line in raw.splitlines():
        match = _HEADER.match(line)
        if match is None:
            continue
        kind, words = match[1], match[2].split()
        if kind == "archs":
            archs = tuple(int(word) for word in words)
        elif kind == "build":
            builds[words[0]] = _defines(words[1:], name)
        elif kind == "split":
            options = _split(words, name)
        else:
            budgets.append(_budget(words, name))
    text = _include(package, name, raw, ())
    kernels = tuple(_KERNEL.findall(text))
    for budget in budgets:
        if budget.kernel not in kernels or budget.build not in (builds or {"default": {}}):
            raise KernelError(
                f"{name}: the budget names {budget.build} {budget.kernel}, which the file does not define"
            )
    return KernelSource(package, name, text, kernels, archs, builds or {"default": {}}, tuple(budgets), options)


def _read(package: str, name: str) -> str:
    path = resources.files(package) / name
    if not path.is_file():
        raise KernelError(f"kernel source {name} is missing from {package}: the installation is incomplete")
    return path.read_text(encoding="utf-8")


def _include(package: str, name: str, text: str, stack: tuple[str, ...]) -> str:
    """Replace ``#include`` lines by the project headers, each with a guard and with ``#line``."""
    if name in stack:
        raise KernelError(f"{name} includes itself: {' -> '.join([*stack, name])}")
    out: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            out.append("" if line.strip() == "#pragma once" else line)
            continue
        if match[2]:
            raise KernelError(f"{name}:{number}: {match[2]} cannot be included; kernels include project headers only")
        header = match[1]
        folder = next((p for p in (package, "skysieve.core.gpu") if (resources.files(p) / header).is_file()), None)
        if folder is None:
            raise KernelError(f"{name}:{number}: header {header} is neither in {package} nor in skysieve.core.gpu")
        guard = "SKYSIEVE_" + re.sub(r"\W", "_", header).upper()
        body = _include(folder, header, _read(folder, header), (*stack, name))
        out += [f"#ifndef {guard}", f"#define {guard}", f'#line 1 "{header}"', body, "#endif"]
        out.append(f'#line {number + 1} "{name}"')
    return "\n".join(out)


def _split(words: list[str], name: str) -> tuple[str, ...]:
    if words != ["no"]:
        raise KernelError(f"{name}: split: {' '.join(words)}: expected 'no', or no line with split")
    return COMPILE_OPTIONS


def _defines(words: list[str], name: str) -> dict[str, str]:
    found = {}
    for word in words:
        match = _DEFINE.fullmatch(word)
        if match is None:
            raise KernelError(f"{name}: a build takes -DNAME or -DNAME=VALUE, not {word!r}")
        found[match[1]] = "1" if match[2] is None else match[2]
    return found


def _budget(words: list[str], name: str) -> Budget:
    limits: dict[str, int] = {}
    kernel = ""
    for word in words[1:]:
        key, _, value = word.partition("=")
        if match := _LIMIT.fullmatch(word):
            limits[match[1]] = int(match[2])
        elif key == "kernel":
            kernel = value
        elif key == "arch":
            limits["arch"] = int(value)
        else:
            raise KernelError(f"{name}: cannot read {word!r} in a budget")
    return Budget(words[0], kernel, **limits)
