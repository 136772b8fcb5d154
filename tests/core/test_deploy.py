"""The recipes of ``deploy/``: they install the requirements of the package."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def check():
    """The script that installs a recipe."""
    spec = importlib.util.spec_from_file_location("deploy_check", FOLDER / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_environment_holds_every_requirement_with_its_bound(check):
    wanted, own = check.packages(FOLDER / "environment.yml")
    assert set(PROJECT["dependencies"]) <= set(wanted)
    extras = {
        r for name in ("plot", "tables", "hdf5", "harmonic", "cluster") for r in PROJECT["optional-dependencies"][name]
    }
    assert extras <= set(wanted)
    assert own[-1] == str(ROOT)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_containers_install_extras_that_exist(kind, check):
    [[one]] = check.packages(FOLDER / f"Containerfile.{kind}")
    extras = re.fullmatch(re.escape(str(ROOT)) + r"\[([a-z0-9,]+)\]", one)[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert ("cuda12" in extras) == (kind == "cuda")


def test_recipes_name_no_host():
    for path in FOLDER.iterdir():
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"https?://|FROM \S+\.\S+/", text), path.name
