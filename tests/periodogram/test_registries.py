"""Every name with variants is written once: types, choices of the command line, kernels and docs agree with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from typer.testing import CliRunner

import skysieve
from skysieve import lsdb
from skysieve.cli import app
from skysieve.core.checks import DTYPES
from skysieve.core.cpu.jit import interpreted
from skysieve.core.table_files import FORMATS
from skysieve.periodogram import contract
from skysieve.periodogram.analysis.phase_function import PHASE_FUNCTIONS, PhaseFunctionName
from skysieve.periodogram.cpu import search as kernels
from skysieve.periodogram.cpu import vectors  # noqa: F401  (it registers the replacements of kernels)
from skysieve.periodogram.numerics import grid, normalization
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS
from skysieve.periodogram.result import columns, plot

DOCS = (Path(__file__).parents[2] / "docs" / "periodogram.md").read_text(encoding="utf-8")
CHOICES = {
    "--normalization": tuple(NORMALIZATIONS),
    "--method": contract.METHODS,
    "--phase-model": tuple(PHASE_FUNCTIONS),
    "--multiband": (*contract.BAND_MODELS, "none"),
}


@pytest.mark.parametrize(
    ("literal", "names"),
    [
        (normalization.NormalizationName, NORMALIZATIONS),
        (contract.MethodName, contract.METHODS),
        (contract.NanPolicyName, contract.NAN_POLICIES),
        (contract.BandModelName, contract.BAND_MODELS),
        (grid.GridName, grid.LAYOUTS),
        (PhaseFunctionName, PHASE_FUNCTIONS),
        (plot.AxisName, plot.AXES),
        (get_args(contract.DtypeChoice)[0], DTYPES),
    ],
)
def test_types_agree_with_registries(literal, names):
    assert get_args(literal) == tuple(names)


@pytest.mark.parametrize("option", CHOICES)
def test_the_command_line_takes_what_exists(option):
    wrong = CliRunner().invoke(app, ["period", "none.csv", option, "wrong"], env={"COLUMNS": "200"})
    assert wrong.exit_code == 2
    assert f"'wrong': expected one of {', '.join(CHOICES[option])}" in " ".join(wrong.stderr.split())


def test_every_normalisation_is_a_function_of_the_standard_power():
    power = np.array([0.0, 0.3, 0.9])
    for name, kind in NORMALIZATIONS.items():
        assert kind.name == name
        np.testing.assert_allclose(kind.left(kind.from_standard(power)), 1 - power, rtol=1e-12)
        scale = kind.scale_of(np.array([2.0]), np.array([30.0]), np.array([10]))
        np.testing.assert_allclose(
            normalization.normalize(power, name, 2.0, 30.0, 10), scale * kind.from_standard(power), rtol=1e-14
        )


@pytest.mark.parametrize("name", NORMALIZATIONS)
@pytest.mark.parametrize("run", [kernels.normalize, interpreted(kernels.normalize)], ids=["compiled", "interpreted"])
def test_the_cpu_has_the_form_of_every_normalisation(run, name):
    """The kernel, and its replacement in the interpreter, which computes the first small jobs."""
    kind, power, out = NORMALIZATIONS[name], np.array([0.0, 0.3, 0.9]), np.full(5, np.nan)
    scale = 1.0 if kind.scale == normalization.UNIT else 2.5
    run(power, 3, kind.form, scale, out, 1)
    np.testing.assert_allclose(out[1:4], scale * kind.from_standard(power), rtol=1e-15)


ALL_COLUMNS = (
    columns.OBJECT_COLUMNS + columns.PEAK_COLUMNS + columns.CHANCE_COLUMNS + columns.ROTATION_COLUMNS
)  # fmt: skip


def test_tables_of_the_docs_have_every_entry():
    expected = [
        *(f'| `"{name}"` | {kind.formula.replace("|", "")} | {kind.help} |' for name, kind in NORMALIZATIONS.items()),
        *(f"| `{column.name}` | {column.help} |" for column in ALL_COLUMNS),
        *(f'| `"{name}"` | {text} |' for name, text in contract.METHOD_HELP.items()),
        *(f'"{name}"' for name in (*contract.NAN_POLICIES, *contract.BAND_MODELS)),
        *(f"| `{name}` | {model.help} |" for name, model in PHASE_FUNCTIONS.items()),
        *(f"`.{name}`" for name in FORMATS),
    ]
    missing = [line for line in expected if line not in DOCS]
    assert not missing, "docs/periodogram.md lacks\n" + "\n".join(missing)


def test_the_columns_of_partitions_are_documented():
    text = lsdb.periods.__doc__.split("Returns")[1].split("Raises")[0]
    written = [c.name for c in ALL_COLUMNS if c.name not in ("id", "span") and c not in columns.ROTATION_COLUMNS]
    assert re.findall("``(.*?)``", text)[: len(written)] == written


def test_tables_have_the_columns_of_the_registry(tmp_path):
    t = np.sort(np.random.default_rng(0).uniform(0, 20, 50))
    result = skysieve.lombscargle([t], [np.sin(t)], fmin=0.05, fmax=1, nf=200, n_peaks=2)
    of_peaks = [column.name for column in columns.PEAK_COLUMNS]
    expected = [c.name for c in columns.OBJECT_COLUMNS] + of_peaks + [f"{name}_2" for name in of_peaks]
    assert result.to_table().colnames == expected, "result/export.py gives the values"
    path = tmp_path / "a.csv"
    path.write_text("id,t,mag\n" + "".join(f"a,{x},{np.sin(x)}\n" for x in t))
    done = CliRunner().invoke(
        app, ["period", str(path), "-o", "-", "--peaks", "1", "--asteroid", "--nterms", "2", "-q"]
    )
    assert done.exit_code == 0, done.stderr
    header = done.stdout.splitlines()[0].split(",")
    names = [re.sub("_h(?=_|$)", "", name).replace("rotation_", "") for name in header]
    assert names == [c.name for c in ALL_COLUMNS if c.name != "span"], "`Found` of survey.py gives the values"
