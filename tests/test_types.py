"""A type checker finds a misspelt choice, and docstrings list the choices that the types allow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skysieve

CODE = """
import skysieve

plan = skysieve.LombScarglePlan(normalization="{0}", method="{1}", grid="{2}")
result: skysieve.periodogram.LombScargleResult = plan.execute([1.0], [2.0])
skysieve.lombscargle_multiband([1.0], [2.0], ["g"], model="{3}", nan_policy="{4}")
bank = skysieve.fstat.TemplateBank.grid((1.0, 1.0, 1.0))
skysieve.fstat.search_sfts([], 0.0, 0.0, bank, barycentre="{5}")
"""
SOURCES = Path(skysieve.__file__).parent
GOOD = ("standard", "direct", "shared", "offsets", "raise", "de405")
BAD = ("standrad", "fats", "shard", "offset", "rise", "de504")


@pytest.mark.parametrize("names", [GOOD, BAD])
def test_pyrefly_reads_the_choices(names, tmp_path):
    pytest.importorskip("pyrefly")
    path = tmp_path / "snippet.py"
    path.write_text(CODE.format(*names))
    options = ("-c", SOURCES.parents[1] / "pyproject.toml", "--python-interpreter-path", sys.executable)
    command = (sys.executable, "-m", "pyrefly", "check", path, *options, "--output-format=min-text")
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wrong = [name for name in names if repr(name) in run.stdout]
    assert (wrong, run.returncode) == (([], 0) if names is GOOD else (list(BAD), 1)), run.stdout + run.stderr


SET = re.compile(r"^ *([\w, ]+) : \{(.*?)\}", re.M)
"""Parameters of a docstring with their choices, as in ``method : {"auto", "direct"}``."""


def _choices(node: ast.AST | None) -> tuple[object, ...] | None:
    """The values of ``Literal[...]``; None for anything else."""
    if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
        found = ast.literal_eval(node.slice)
        return found if isinstance(found, tuple) else (found,)
    return None


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions and their docstrings; that of ``__init__`` is the docstring of its class."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):  # statements are in these fields only
            waiting += getattr(node, field, [])
        if isinstance(node, ast.FunctionDef):
            yield node, ast.get_docstring(node) or ""
        elif isinstance(node, ast.ClassDef):
            made = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
            yield from ((f, ast.get_docstring(node) or "") for f in made)


def test_docstrings_list_the_choices_of_their_types() -> None:
    """A new choice in a type such as `NormalizationName` belongs into the docstrings of the arguments of this type."""
    types: dict[str, list[tuple[object, ...]]] = {}
    functions: list[tuple[str, ast.arguments, dict[str, str]]] = []
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "Literal[" not in source and not SET.search(source):
            continue
        tree = ast.parse(source)
        for function, text in _functions(tree):
            stated = {name.strip(): m[2] for m in SET.finditer(text) for name in m[1].split(",")}
            if stated:
                functions.append((f"{path.relative_to(SOURCES)}:{function.lineno}", function.args, stated))
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and (found := _choices(getattr(node, "value", None))) is not None:
                types.setdefault(target.id, []).append(found)
    different, compared = [], 0
    for where, arguments, stated in functions:
        for argument in (*arguments.args, *arguments.kwonlyargs):
            if argument.arg not in stated or argument.annotation is None:
                continue
            shown = ast.literal_eval(f"({stated[argument.arg]},)")
            annotation = argument.annotation
            inline = _choices(annotation)
            allowed = types.get(ast.unparse(annotation), []) if inline is None else [inline]
            compared += bool(allowed)
            if allowed and set(shown) not in map(set, allowed):  # the docstring puts the default first
                name = f"{where}: {argument.arg}"
                different.append(f"{name}: the docstring lists {shown}, {ast.unparse(annotation)} is {allowed[0]}")
    assert not different, "\n".join(different)
    assert compared > 20
