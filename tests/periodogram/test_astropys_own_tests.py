"""astropy's own tests of its LombScargle, run with `skysieve.LombScargle` in its place, and with ``method="skysieve"``.

They run in a process of their own, from the files that astropy installs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skysieve

HOME = "astropy.timeseries.periodograms.lombscargle"

REGISTER = """
from skysieve.periodogram import register_astropy

register_astropy(device="cpu")
"""

STAND_IN = """
import skysieve


class LombScargle(skysieve.LombScargle):
    available_methods = ["auto", "slow"]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, device="cpu", **kwargs)
"""

BY_DESIGN = (
    "test_errors_on_unit_mismatch or test_model_units_mismatch or test_absolute_times"  # the errors' words are ours
    " or test_fast_approximations"  # wants different bits of different methods, and methods that refuse nterms
    " or (test_inverses and psd and False)"  # of the psd without errors the answer is None
)


def installed(name: str) -> Path:
    found = importlib.util.find_spec(f"{HOME}.tests.{name}")
    if found is None or found.origin is None:
        pytest.skip("astropy was installed without its tests")
    return Path(found.origin)


def run(folder: Path, *options: str) -> str:
    """The summary of a pytest run in a folder that knows nothing of this project's settings."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, "."]
    environment = os.environ | {"PYTHONPATH": str(Path(skysieve.__file__).parents[1])}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-500:]
    return done.stdout


@pytest.mark.slow
def test_the_method(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(REGISTER)
    (tmp_path / "test_it.py").write_text(installed("test_lombscargle").read_text())
    passed = re.search(r"(\d+) passed", run(tmp_path, "-k", "skysieve"))
    assert passed
    assert int(passed[1]) >= 300  # 412 in astropy 8.0: each of its checks with both names of the method


@pytest.mark.slow
def test_the_class(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    for name in ("test_lombscargle", "test_statistics"):
        text = installed(name).read_text()
        theirs = rf"^from {re.escape(HOME)} import LombScargle$"
        text, n = re.subn(theirs, "from stand_in import LombScargle", text, flags=re.M)
        assert n == 1, "astropy's tests import it in another way: adapt this test"
        (tmp_path / f"{name}.py").write_text(text)
    passed = re.search(r"(\d+) passed", run(tmp_path, "-k", f"not ({BY_DESIGN})"))
    assert passed
    assert int(passed[1]) >= 500
