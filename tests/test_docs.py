"""Every example runs: the blocks of README and docs, the scripts of examples/, the public docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import skysieve

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"lsdb_catalogue.py": "lsdb"}
"""Packages that an example needs and that the tests do not."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
WITH_BLOCKS = [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))]
NAMES = [m.name for m in pkgutil.walk_packages(skysieve.__path__, "skysieve.")]
MODULES = sorted(name for name in NAMES if not name.rpartition(".")[2].startswith("cuda"))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda p: p.name)
def test_page(page: Path, elsewhere: Path) -> None:
    """Blocks of a page run one after the other, as a reader would."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        exec(compile("\n" * line + block[1], str(page), "exec"), names)


@pytest.mark.parametrize(
    "script",
    [pytest.param(p, id=p.name, marks=[pytest.mark.slow] if p.name == "lsdb_catalogue.py" else []) for p in SCRIPTS],
)
def test_example(script: Path, elsewhere: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip(NEEDS.get(script.name, "skysieve"))
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("module", MODULES)
def test_docstrings(module: str, elsewhere: Path) -> None:
    imported = importlib.import_module(module)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in finder.find(imported, module):
        runner.run(test)
    assert runner.failures == 0


def test_pages_hold_no_dead_links() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} points at {target}"


def test_readme_names_real_commands() -> None:
    """Options that the pages show exist."""
    from typer.testing import CliRunner

    from skysieve.cli import app

    shown = CliRunner().invoke(app, ["period", "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}).stdout
    for page in PAGES:
        for line in re.findall(r"^\$? ?skysieve period .*$", page.read_text(encoding="utf-8"), re.M):
            for option in re.findall(r"--[a-z-]+", line):
                assert option == "--help" or option in shown, f"{page.name}: {option}"
