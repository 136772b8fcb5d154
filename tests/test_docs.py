"""Every example runs: the blocks of README and docs, the scripts of examples/, the public docstrings."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
FILES = {name: importlib.util.find_spec(name) for name in NAMES if not name.rpartition(".")[2].startswith("cuda")}
MODULES = sorted(name for name, spec in FILES.items() if spec and ">>> " in Path(spec.origin or "").read_text("utf-8"))


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


def commands() -> Iterator[tuple[str, Any]]:
    """All commands, by the words after ``skysieve``."""
    from typer.main import get_command

    from skysieve.cli import app

    waiting: list[tuple[str, Any]] = [("", get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield name, command
        waiting += [(f"{name} {word}".strip(), below) for word, below in getattr(command, "commands", {}).items()]


def test_readme_names_real_commands() -> None:
    """Commands and options that the pages show exist."""
    known = {name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)} for name, command in commands()}
    checked = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^\$? ?(?:.*\| )?skysieve (.*)$", text, re.M):
            for call in re.split(r"\| *skysieve ", line.partition("#")[0]):
                words = call.partition("|")[0].split()
                name = max((n for n in known if words[: len(n.split())] == n.split()), key=len)
                for option in re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", " ".join(words)):
                    checked += 1
                    assert option in known[name] | {"--help"}, f"{page.name}: skysieve {name}: {option}"
    assert checked > 100


def test_help_shows_examples_as_they_are_written() -> None:
    """Markdown takes stars and underscores in pairs for emphasis."""
    from typer.testing import CliRunner

    from skysieve.cli import app

    shown = 0
    for name, command in commands():
        examples = re.findall(r"skysieve [a-z].*", command.help or "")
        if examples:
            wide = {"COLUMNS": "400", "TERMINAL_WIDTH": "400"}
            screen = " ".join(CliRunner().invoke(app, [*name.split(), "--help"], env=wide).output.split())
            for example in examples:
                shown += 1
                assert " ".join(example.split()) in screen, f"skysieve {name} --help"
    assert shown > 10
