"""A type checker finds a misspelt choice."""

from __future__ import annotations

import sys
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
GOOD = ("standard", "direct", "shared", "offsets", "raise", "de405")
BAD = ("standrad", "fats", "shard", "offset", "rise", "de504")


@pytest.mark.slow
@pytest.mark.parametrize("names", [GOOD, BAD])
def test_mypy_reads_the_choices(names, tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    path = tmp_path / "snippet.py"
    path.write_text(CODE.format(*names))
    monkeypatch.setenv("MYPYPATH", str(Path(skysieve.__file__).parents[1]))
    options = ("--ignore-missing-imports", "--follow-imports=silent", "--no-error-summary")
    where = ("--cache-dir", str(tmp_path / "cache"), "--python-executable", sys.executable)
    out, err, code = api.run([str(path), *options, *where])
    assert not err
    wrong = [name for name in names if repr(name) in out]
    assert (wrong, code) == (([], 0) if names is GOOD else (list(BAD), 1)), out
