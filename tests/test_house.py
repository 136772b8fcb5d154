"""The package as a whole: the cost of importing it, public names, contents of the wheel, form of the files."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import skysieve
from tests.lowest_versions import lowest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("astropy", "cupy", "finufft", "matplotlib", "numba", "numpy", "pandas", "pyarrow", "rich", "scipy", "typer")


def _loaded_after(statement: str) -> set[str]:
    """The modules of HEAVY that a new Python process has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*[m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "src")
    return set(result.stdout.split())


def test_import_loads_nothing_heavy():
    assert _loaded_after("import skysieve, skysieve.periodogram, skysieve.fstat; dir(skysieve.fstat)") == set()


CORE = ["arrays", "checks", "device", "errors", "files", "gpu.runtime", "memory", "progress", "tasks"]


def test_core_imports_numpy_only():
    assert _loaded_after(f"import {', '.join(f'skysieve.core.{module}' for module in CORE)}") <= {"numpy"}


@pytest.mark.parametrize("name", ["skysieve", "skysieve.periodogram", "skysieve.fstat", "skysieve.sphere"])
def test_public_names_resolve(name):
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted({*module.__all__})
    for public in module.__all__:
        assert getattr(module, public) is not None
        assert public in dir(module)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


PACKAGES = sorted(p for p in (ROOT / "src").rglob("__init__.py") if "_HOMES = {" in p.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PACKAGES, ids=lambda p: p.parent.name)
def test_a_public_name_is_listed_three_times(path):
    """In ``__all__`` for readers and ``import *``, in ``_HOMES`` for lazy loading, and once for type checkers."""
    tree, listed, homes = ast.parse(path.read_text(encoding="utf-8")), [], {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("__all__", "_HOMES"):
            value = ast.literal_eval(node.value)
            listed, homes = (value, homes) if isinstance(value, list) else (listed, value)
    (checked,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    typed = {a.name for node in ast.walk(checked) if isinstance(node, ast.ImportFrom) for a in node.names}
    assert set(homes) == set(listed) - {"__version__"} == typed


def test_version_is_kept_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert f"## [{skysieve.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {skysieve.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_wheel_is_pure_and_holds_the_kernels(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"skysieve-{skysieve.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    expected = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.suffix in (".py", ".cu", ".cuh")}
    assert expected <= names
    assert {"skysieve/py.typed", "skysieve/core/gpu/selftest.cu"} <= names


def _sources() -> list[Path]:
    folders = [ROOT / "src", ROOT / "tests", ROOT / "benchmarks"]
    return sorted(p for f in folders for p in f.rglob("*") if p.suffix in (".py", ".cu", ".cuh", ".h"))


def test_no_file_is_left_unfinished():
    mark = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
    unfinished = [p.name for p in _sources() if mark.search(p.read_text(encoding="utf-8"))]
    assert unfinished == []


def test_instructions_of_the_gpu_stand_in_one_header():
    """An empty text is a note to the compiler, not an instruction."""
    kernels = [p for p in (ROOT / "src").rglob("*.cu*") if p.name != "ptx.cuh"]
    assert len(kernels) > 40
    with_text = re.compile(r'\basm\s*(?:volatile\s*)?\(\s*(?!"")')
    assert [p.name for p in kernels if with_text.search(p.read_text(encoding="utf-8"))] == []


def test_every_requirement_has_a_lower_bound():
    """`make test-lowest` reads the bounds; numba before 0.61 and typer before 0.16 break every command."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = lowest(project)
    assert len([r for r in project["dependencies"] if r.split(">=")[0] in found]) == len(project["dependencies"])
    assert tuple(map(int, found["numba"].split("."))) >= (0, 61)
    assert tuple(map(int, found["typer"].split("."))) >= (0, 16)
    project["dependencies"].append("numpy")
    with pytest.raises(ValueError, match=r"'numpy' of pyproject\.toml has no lower bound"):
        lowest(project)


def test_every_file_of_the_map_exists():
    """The table of CONTRIBUTING.md: a row in bold names a folder, the rows after it name files below that folder."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## Where to change what")[1].split("\n## ")[0]
    rows = [row for row in re.findall(r"^\| (.+?) \| (.+) \|$", table, re.M) if "---" not in row[0]][1:]
    folder, missing, files = "", [], 0
    for change, cell in rows:
        names = re.findall(r"`(\w[\w/]*\.(?:py|cuh?))`", cell)
        if change.startswith("**"):
            folder = cell.strip("`")
            missing += [f"{change}: {folder}"] if not (ROOT / folder).is_dir() else []
            continue
        files += len(names)
        found = [any((ROOT / base / name).is_file() for base in (folder, "src/skysieve")) for name in names]
        missing += [f"{change}: {cell}"] if not names or not all(found) else []
    assert missing == []
    assert files >= 40
