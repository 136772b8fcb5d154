"""Who may import whom, read from the sources: the table of the package's layers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import skysieve

ROOT = Path(skysieve.__file__).parent
NOT_DOMAINS = {"core"}
DOMAINS = sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists() and p.name not in NOT_DOMAINS)

HEAVY = {"astropy", "cupy", "dask", "h5py", "matplotlib", "numba", "pandas", "pyarrow"}
"""Imported where they are used, never when a module is."""
NUMBA_AT_TOP = ("cpu", "simd")
"""Files whose name starts so hold numba kernels; they are themselves imported only when a CPU engine is made."""

FRONT = ("api", "io", "simulate", "interop", "demo", "outcome")


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = ["skysieve", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, package: str, top_only: bool = False) -> set[str]:
    """Dotted names that a module imports, but not under ``if TYPE_CHECKING``; ``top_only`` leaves functions out."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*home, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        waiting += ast.iter_child_nodes(node)
    return found


def layer(name: str) -> tuple[str, str]:
    """``(domain or "", role)`` of a dotted module name."""
    parts = name.split(".")[1:]
    if not parts:
        return "", "package"
    if parts[0] not in DOMAINS:
        return "", parts[0]
    stem = parts[1] if len(parts) > 1 else "package"
    role = next((r for r in ("cpu", "cuda") if stem == r or stem.startswith(r + "_")), stem)
    return parts[0], role


def faults(name: str, tree: ast.AST, package: str = "") -> list[str]:
    """Broken rules of one module, in words; ``package`` is where its relative imports start."""
    package = package or name.rpartition(".")[0]
    domain, role = layer(name)
    found = []
    for target in sorted(i for i in imports(tree, package) if i.split(".")[0] == "skysieve"):
        other, other_role = layer(target)
        if role == "core" and other_role != "core" and target != "skysieve":
            found.append(f"core imports {target}")
        if domain and other and other != domain:
            found.append(f"domain {domain} imports domain {other}: {target}")
        if not other:
            continue
        if {role, other_role} == {"cpu", "cuda"}:
            found.append(f"{role} imports {target}")
        if role in ("cpu", "cuda") and other_role in (*FRONT, "cli", "plot", "result", "series", "reference"):
            found.append(f"{role} imports {target}")
        if role in ("grid", "workload", "reference") and other_role in (*FRONT, "cli", "plot", "result", "cpu", "cuda"):
            found.append(f"{role} imports {target}")
        if role != "cli" and role != "reference" and other_role == "reference":
            found.append(f"reference is for tests: {name} imports {target}")
        if other_role == "cli" and role != "cli":
            found.append(f"{name} imports {target}")
    stem = name.rsplit(".", 1)[-1]
    allowed = {"numba"} if stem.startswith(NUMBA_AT_TOP) else set()
    heavy = {i.split(".")[0] for i in imports(tree, package, top_only=True)} & HEAVY - allowed
    found += [f"{module} is imported when the module is" for module in sorted(heavy)]
    return found


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_layers(path):
    package = ".".join(["skysieve", *path.relative_to(ROOT).parts[:-1]])
    assert faults(dotted(path), ast.parse(path.read_text(encoding="utf-8")), package) == []


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("skysieve.core.memory", "import skysieve.periodogram.grid", "core imports"),
        ("skysieve.periodogram.cpu", "def f():\n    from skysieve.periodogram import cuda", "cpu imports"),
        ("skysieve.periodogram.cuda_plan", "from skysieve.periodogram.cpu_peaks import x", "cuda imports"),
        ("skysieve.periodogram.cpu", "from skysieve.periodogram.api import lombscargle", "cpu imports"),
        ("skysieve.periodogram.grid", "from skysieve.periodogram import cpu", "grid imports"),
        ("skysieve.periodogram.cuda", "from .cpu import x", "cuda imports skysieve.periodogram.cpu"),
        ("skysieve.periodogram.cuda", "from . import api", "cuda imports skysieve.periodogram.api"),
        ("skysieve.core.memory", "from ..periodogram.grid import x", "core imports skysieve.periodogram.grid"),
        ("skysieve.periodogram.api", "from skysieve.periodogram import reference", "for tests"),
        ("skysieve.periodogram.api", "import astropy.units as u", "astropy is imported"),
        ("skysieve.periodogram.cuda", "try:\n    import cupy\nexcept ImportError: pass", "cupy is imported"),
        ("skysieve.periodogram.api", "class A:\n    import numba", "numba is imported"),
    ],
)
def test_a_broken_rule_is_seen(name, source, message):
    assert any(message in fault for fault in faults(name, ast.parse(source)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("skysieve.periodogram.cpu_comb", "import numba\nfrom skysieve.core.memory import x"),
        ("skysieve.periodogram.api", "def f():\n    import astropy\n    from skysieve.periodogram import cpu"),
        ("skysieve.periodogram.api", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cupy"),
        ("skysieve.periodogram.cli", "from skysieve.periodogram.api import lombscargle"),
    ],
)
def test_what_is_allowed(name, source):
    assert faults(name, ast.parse(source)) == []


def test_domains_never_meet(monkeypatch):
    monkeypatch.setitem(globals(), "DOMAINS", ["periodogram", "sphere"])
    tree = ast.parse("import skysieve.sphere.grid")
    expected = ["domain periodogram imports domain sphere: skysieve.sphere.grid"]
    assert faults("skysieve.periodogram.grid", tree) == expected
