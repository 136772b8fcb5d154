"""Which part of the package may import which, read from the sources.

A *part* of a domain is a file or a folder in the domain's top folder; a part of ``stream`` is one in
``dedispersion/stream``.  `ORDER` lists the parts from the foundation upward.  A part may import those before it,
and those on its own line only where the line is a single part.  No cycle between files is allowed, not even through
names that a package's ``__init__`` loads when they are first used.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import skysieve

ROOT = Path(skysieve.__file__).parent
MOST_FILES = 16
"""Python files and kernels of one folder, its ``__init__.py`` among them."""

ORDER = {
    "periodogram": (
        "contract", "numerics", "cpu|cuda", "lightcurves", "result", "analysis", "api", "multiband", "astropy_class",
        "survey", "command",
    ),
    "sphere": ("contract", "kernels", "grids", "ring_pairs", "arguments", "cpu|cuda", "api", "maps", "command"),
    "dedispersion": (
        "contract", "cpu|cuda", "data", "dm_plan", "clean", "result", "dispatch", "api", "single_pulse", "injections",
        "search_options", "stream", "command",
    ),
    "dedispersion.stream": (
        "records", "metrics", "receive", "channelise", "search", "injection", "beams", "intake", "report", "pipeline",
        "web", "command",
    ),
    "fstat": (
        "inputs", "sfts", "archive", "contract", "cpu_residue", "precision", "timing", "cpu|cuda", "result", "api",
        "template_search", "demod", "pyfstat", "command",
    ),
}  # fmt: skip
"""Parts of each domain, lowest first; ``|`` joins parts that may not import each other."""

HEAVY = {"astropy", "bokeh", "cupy", "dask", "distributed", "h5py", "matplotlib", "numba", "pandas", "pyarrow"}
"""Packages that are imported inside the functions that need them.  numba may also stand at the top of a file in a
folder ``cpu``, of one whose name starts with ``cpu_``, and of those in `WITH_NUMBA`:
these are loaded when a CPU engine is made."""

WITH_NUMBA = {"skysieve.core.cpu.jit", "skysieve.core.cpu.simd"}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = ["skysieve", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def names() -> frozenset[str]:
    return frozenset(map(dotted, modules()))


@functools.cache
def public_names() -> dict[str, dict[str, str]]:
    """Names that are loaded when first used, for each package that has such names: name to module."""
    found = {}
    for path in modules():
        if path.name == "__init__.py":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOMES":
                    found[dotted(path)] = ast.literal_eval(node.value)
    return found


def imports(tree: ast.AST, package: str, top_only: bool = False) -> set[str]:
    """Modules that a module imports, but not under ``if TYPE_CHECKING``; ``top_only`` leaves functions out."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {_source(module, alias.name) for alias in node.names}
        waiting += [
            n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.excepthandler | ast.match_case)
        ]
    return found


def _source(module: str, name: str) -> str:
    """The module that ``from module import name`` takes the name from."""
    while name in public_names().get(module, {}):
        module = public_names()[module][name]
    return f"{module}.{name}" if f"{module}.{name}" in names() else module


def part(name: str) -> tuple[str, str]:
    """``(domain, part)`` of a module: ``skysieve.fstat.cpu.exp`` is in part ``cpu`` of ``fstat``; "" for a package."""
    words = name.split(".")[1:]
    if words[:2] == ["dedispersion", "stream"]:
        return "dedispersion.stream", words[2] if len(words) > 2 else ""
    if not words:
        return "", ""
    return words[0], words[1] if len(words) > 1 else ""


def backends(name: str) -> set[str]:
    """``cpu`` and ``cuda`` where a part of the path names one: ``stream/search/cpu_series.py`` belongs to ``cpu``."""
    return {b for b in ("cpu", "cuda") for word in name.split(".") if word == b or word.startswith(b + "_")}


def rank(order: tuple[str, ...], which: str) -> int:
    for number, line in enumerate(order):
        if which in line.split("|"):
            return number
    return -1


def faults(name: str, tree: ast.AST, package: str = "") -> list[str]:
    """Rules that a module breaks, in words; ``package`` is where its relative imports start."""
    package = package or name.rpartition(".")[0]
    domain, own = part(name)
    family = domain.split(".")[0]
    found = []
    for target in sorted(i for i in imports(tree, package) if i.split(".")[0] == "skysieve"):
        other_domain, other = part(target)
        other_family = other_domain.split(".")[0]
        if family == "core" and other_family not in ("core", ""):
            found.append(f"core imports {target}")
        if family == "cluster" and other_family in ORDER:
            found.append(f"cluster imports domain {other_family}: {target}")
        if family in ORDER and other_family in ORDER and family != other_family:
            found.append(f"domain {family} imports domain {other_family}: {target}")
        if {frozenset(backends(name)), frozenset(backends(target))} == {frozenset({"cpu"}), frozenset({"cuda"})}:
            found.append(f"{name} imports {target}: the backends do not know each other")
        if family not in ORDER or family != other_family or not own or not other:
            continue
        lower, upper, order = other, own, ORDER[domain]
        if domain != other_domain:  # stream is one part of dedispersion
            order = ORDER[family]
            lower, upper = ("stream" if d.endswith(".stream") else p for d, p in ((other_domain, other), (domain, own)))
        if -1 in (rank(order, lower), rank(order, upper)):
            found.append(f"{upper} or {lower} is not in ORDER[{domain!r}]")
        elif rank(order, lower) > rank(order, upper):
            found.append(f"{upper} imports {target}, which is above it")
        elif rank(order, lower) == rank(order, upper) and lower != upper:
            found.append(f"{upper} imports {target}: the backends do not know each other")
    stem = name.rsplit(".", 1)[-1]
    allowed = {"numba"} if "cpu" in name.split(".")[:-1] or stem.startswith("cpu_") or name in WITH_NUMBA else set()
    heavy = {i.split(".")[0] for i in imports(tree, package, top_only=True)} & HEAVY - allowed
    found += [f"{module} is imported when the module is" for module in sorted(heavy)]
    return found


def package_of(path: Path) -> str:
    return ".".join(["skysieve", *path.relative_to(ROOT).parts[:-1]])


@functools.cache
def tree_of(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage while the trees exist: the collector would visit their millions of objects again and again."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


def test_layers():
    found = {dotted(path): faults(dotted(path), tree_of(path), package_of(path)) for path in modules()}
    assert {name: broken for name, broken in found.items() if broken} == {}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import one another in a circle."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen, waiting = set(), list(graph[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += graph.get(node, ())
        reach[start] = seen
    groups = {tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in graph if a in reach[a]}
    return sorted(map(list, groups))


def test_no_file_is_part_of_a_cycle():
    graph = {dotted(p): imports(tree_of(p), package_of(p)) & names() - {dotted(p), "skysieve"} for p in modules()}
    assert cycles(graph) == []


def test_no_folder_is_crowded():
    folders = {p.parent for p in ROOT.rglob("*") if p.suffix in (".py", ".cu", ".cuh")}
    counts = {f: sum(p.suffix in (".py", ".cu", ".cuh") for p in f.iterdir()) for f in folders}
    assert {f.relative_to(ROOT).as_posix(): n for f, n in counts.items() if n > MOST_FILES} == {}


def test_no_file_repeats_the_name_of_its_folder():
    """``cuda/cuda_x.py`` and the like: the folder says it already."""
    repeated = [
        p.relative_to(ROOT).as_posix()
        for p in ROOT.rglob("*")
        if p.suffix in (".py", ".cu", ".cuh") and p.stem.startswith(p.parent.name + "_")
    ]
    assert repeated == []


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("skysieve.core.memory", "import skysieve.periodogram.numerics.grid", "core imports"),
        ("skysieve.periodogram.cpu.engine", "def f():\n    from skysieve.periodogram.cuda import engine", "backends"),
        ("skysieve.periodogram.cuda.parts", "from skysieve.periodogram.cpu.peaks import x", "backends"),
        ("skysieve.periodogram.cpu.engine", "from skysieve.periodogram.api import lombscargle", "above it"),
        ("skysieve.periodogram.cpu.engine", "from skysieve.periodogram import lombscargle", "above it"),
        ("skysieve.periodogram.numerics.grid", "from skysieve.periodogram.cpu import engine", "above it"),
        ("skysieve.core.memory", "from ..periodogram.contract import x", "core imports skysieve.periodogram.contract"),
        ("skysieve.fstat.new_part", "from skysieve.fstat.api import x", "not in ORDER"),
        ("skysieve.periodogram.api", "import astropy.units as u", "astropy is imported"),
        ("skysieve.periodogram.cuda.engine", "try:\n    import cupy\nexcept ImportError: pass", "cupy is imported"),
        ("skysieve.periodogram.api", "class A:\n    import numba", "numba is imported"),
        ("skysieve.sphere.api", "import skysieve.fstat.grids.grid", "domain sphere imports domain fstat"),
        ("skysieve.cluster.folder", "from skysieve.sphere.api import x", "cluster imports domain sphere"),
        (
            "skysieve.dedispersion.stream.search.cpu_series",
            "from skysieve.dedispersion.stream.search import cuda_samples",
            "backends",
        ),
        (
            "skysieve.dedispersion.stream.receive.udp",
            "from skysieve.dedispersion.stream.command import emulate",
            "above it",
        ),
        ("skysieve.dedispersion.data.sigproc", "from skysieve.dedispersion.stream.receive import udp", "above it"),
    ],
)
def test_a_broken_rule_is_seen(name, source, message):
    assert any(message in fault for fault in faults(name, ast.parse(source)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("skysieve.periodogram.cpu.comb", "import numba\nfrom skysieve.core.memory import x"),
        ("skysieve.core.cpu.simd", "from numba.core import cgutils"),
        ("skysieve.periodogram.api", "def f():\n    import astropy\n    from skysieve.periodogram.cpu import engine"),
        ("skysieve.periodogram.api", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cupy"),
        ("skysieve.periodogram.command.cli", "from skysieve.periodogram.api import lombscargle"),
        ("skysieve.dedispersion.stream.search.cpu_series", "import numba"),
    ],
)
def test_what_is_allowed(name, source):
    assert faults(name, ast.parse(source)) == []


def test_a_cycle_is_seen():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
