"""Facts that are written once (windows, columns, statistics, formats), and the effects of a new entry."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.core.machine import rates
from skysieve.fstat import (
    AtomsBatch,
    Grid,
    SearchPlan,
    SearchResult,
    TransientResult,
    search,
    simulate_sfts,
    synth_atoms,
    timing,
    transient_map,
)
from skysieve.fstat.archive import JSON, pack, unpack
from skysieve.fstat.contract import COMPAT, Compat
from skysieve.fstat.demod.barycentre import EPHEMERIDES, EphemerisName
from skysieve.fstat.inputs import window_kinds, windows
from skysieve.fstat.inputs.detectors import DETECTORS
from skysieve.fstat.inputs.files import FORMATS, as_list, read_any, save_atoms
from skysieve.fstat.inputs.window_kinds import KINDS, NAMED, Algorithm, WindowKind, WindowName
from skysieve.fstat.pyfstat import WINDOWS
from skysieve.fstat.result.map import STYLES, Style
from skysieve.fstat.template_search import columns, result
from skysieve.fstat.template_search.columns import COLUMNS, STATISTICS, Column, StatisticName

T = 1800
T0 = 1_000_000_000
GRID = Grid(t0=T0, t0_band=6 * T, tau=2 * T, tau_band=6 * T)
ATOMS = [synth_atoms(T0, 12 * T, seed=i) for i in range(3)]
PAGE = (Path(__file__).parents[2] / "docs" / "fstat.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("alias", "names"),
    [(WindowName, NAMED), (StatisticName, STATISTICS), (Style, STYLES), (Compat, COMPAT), (EphemerisName, EPHEMERIDES)],
    ids=["windows", "statistics", "styles", "compat", "ephemerides"],
)
def test_types_name_what_the_registries_hold(alias, names):
    assert sorted(get_args(alias)) == sorted(names)


@pytest.mark.parametrize(
    ("of", "argument", "names"),
    [
        (transient_map, "window", NAMED),
        (search, "statistic", STATISTICS),
        (TransientResult.write_text, "style", STYLES),
        (simulate_sfts, "ephemeris", EPHEMERIDES),
    ],
    ids=["windows", "statistics", "styles", "ephemerides"],
)
def test_docstrings_name_what_the_registries_hold(of, argument, names):
    [listed] = re.findall(rf"^ *{argument} : {{(.*?)}}", of.__doc__, re.M)
    assert sorted(re.findall('"(.*?)"', listed)) == sorted(names)


def test_the_page_has_the_tables_of_the_registries():
    names = [f'`"{kind.name}"`' if kind.shape else kind.label for kind in KINDS.values()]
    rows = [f"| {name} | {kind.help} | {kind.algorithm} |" for name, kind in zip(names, KINDS.values(), strict=True)]
    rows += [f"| `{c.name}` | {c.help} | {f'{c.unit} ' if c.unit else ''}|" for c in COLUMNS]
    assert [row for row in rows if row not in PAGE] == [], "rows that docs/fstat.md lacks"


def test_help_screens_name_what_the_registries_hold():
    def text(command):
        return CliRunner().invoke(app, ["fstat", command, "--help"], env={"COLUMNS": "400"}).stdout

    expected = {
        "map": (*NAMED, *STYLES, *COMPAT),
        "search": (*NAMED, *STATISTICS, *result.FORMATS),
        "convert": FORMATS,
        "synth": (*FORMATS, *DETECTORS),
    }
    for command, names in expected.items():
        shown = text(command)
        assert [name for name in names if name not in shown] == [], command


def test_lalpulsars_numbers_of_the_windows():
    assert WINDOWS == {0: "none", 1: "rect", 2: "exp"}


def test_a_new_window_is_one_entry(monkeypatch):
    """Its name then works in maps and searches, with the numbers of the same function."""

    def ramp(x):
        return 1 - x / 3

    monkeypatch.setitem(KINDS, "ramp", WindowKind("ramp", "ramp", "It falls to 0.", Algorithm.WEIGHTS, ramp))
    half = WindowKind("sine", "half sine", "It ends at tau.", Algorithm.WEIGHTS, lambda x: np.sin(np.pi * x), end=1)
    monkeypatch.setitem(KINDS, "sine", half)
    monkeypatch.setattr(windows, "NAMED", (*window_kinds.NAMED, "ramp", "sine"))
    expected = transient_map(ATOMS[0], GRID, window=ramp, device="cpu")
    found = transient_map(ATOMS[0], GRID, window="ramp", device="cpu")
    assert np.array_equal(found.F, expected.F)
    assert found.window == "ramp"
    sine = transient_map(ATOMS[0], GRID, window="sine", efold=2, device="cpu")
    assert sine.efold == 1
    assert np.array_equal(sine.F, transient_map(ATOMS[0], GRID, window=half.shape, efold=1, device="cpu").F)
    table = search(ATOMS, GRID, windows="ramp", device="cpu", topk=1).columns("ramp")
    by_function = search(ATOMS, GRID, windows={"ramp": ramp}, device="cpu", topk=1).columns("ramp")
    assert table["max2F"] == by_function["max2F"]


def test_a_new_column_is_one_entry(monkeypatch, tmp_path):
    """It is in the table with its unit, in files, and no longer free as the name of a parameter."""
    stop = Column("t_end", "End.", lambda a, which, _: a.start(a.output.index[which]) + T, "s")
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, stop))
    found = search(ATOMS, GRID, windows="rect", device="cpu")
    assert np.array_equal(found.columns()["t_end"], found.columns()["t0_ml"] + T)
    assert found.to_table()["t_end"].unit == "s"
    found.save(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines()[0].endswith(",t_end")
    assert columns.is_reserved("t_end")


@pytest.mark.parametrize("name", ["max2F", "number", "window", "twoF_bsgl", "twoF_H1_bsgl"])
def test_names_of_columns_are_reserved(name):
    assert columns.is_reserved(name)
    assert not columns.is_reserved("f0")


def test_a_new_stored_field_is_one_entry():
    @dataclasses.dataclass
    class Old:
        a: int = dataclasses.field(metadata=JSON)

    @dataclasses.dataclass
    class New(Old):
        b: str = dataclasses.field(default="x", metadata=JSON)

    assert unpack(New, pack(New(1, "y"))) == {"a": 1, "b": "y"}
    assert New(**unpack(New, pack(Old(1)))) == New(1, "x")


def test_a_search_plan_is_used_again_after_an_error_and_for_other_times():
    later = [synth_atoms(T0 + 5000 * T, 20 * T, seed=7)]
    with SearchPlan(windows="exp", topk=3, device="cpu", threads=2) as plan:
        first = plan.execute(ATOMS)
        with pytest.raises(TypeError, match="item 1 is a int"):
            plan.execute([AtomsBatch.stack([ATOMS[0][0]]), 3])
        other = plan.execute(later)
        assert other.grid == Grid.full(later[0])
        assert (
            other.columns()["max2F"].tolist() == search(later, windows="exp", device="cpu").columns()["max2F"].tolist()
        )
        again = plan.execute(ATOMS)
    assert again.columns()["max2F"].tolist() == first.columns()["max2F"].tolist()
    with pytest.raises(ValueError, match="closed"):
        plan.describe(ATOMS[0])


# ---------------------------------------------------------------- files


def test_paths_are_accepted_as_atoms(tmp_path):
    pair = ATOMS[0]
    save_atoms(tmp_path / "both.npz", pair)
    for name, atoms in (("h1.npz", pair[0]), ("l1.npz", pair[1])):
        save_atoms(tmp_path / name, atoms)
    expected = transient_map(pair, GRID, device="cpu").F
    for given in (str(tmp_path / "both.npz"), tmp_path / "both.npz", [tmp_path / "h1.npz", str(tmp_path / "l1.npz")]):
        assert np.array_equal(transient_map(given, GRID, device="cpu").F, expected)
        assert as_list(given) == pair
    assert Grid.full(tmp_path / "both.npz") == Grid.full(pair)


def test_files_are_templates_of_a_search(tmp_path):
    paths = [tmp_path / f"{i}.npz" for i in range(3)]
    for path, atoms in zip(paths, ATOMS, strict=True):
        save_atoms(path, atoms)
    expected = search(ATOMS, GRID, device="cpu").columns()
    found = search(paths, GRID, device="cpu")
    assert np.array_equal(found.columns()["max2F"], expected["max2F"])
    assert found.columns("rect")["file"].tolist() == [str(paths[i]) for i in found.columns("rect")["template"]]
    mixed = search(iter([paths[0], ATOMS[1], paths[2]]), GRID, device="cpu").columns()
    assert np.array_equal(mixed["max2F"], expected["max2F"])
    assert search(str(paths[1]), GRID, device="cpu").n_templates == 1
    paths[1].write_text("not a file of atoms")
    found = search(paths, GRID, device="cpu")
    assert (found.n_templates, list(found.faults)) == (3, [1])
    assert str(paths[1]) in found.faults[1]
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        search(tmp_path / "none.npz", GRID, device="cpu")


def test_a_search_of_files_continues_without_reading_them_again(tmp_path):
    paths = [tmp_path / f"{i}.npz" for i in range(3)]
    for path, atoms in zip(paths, ATOMS, strict=True):
        save_atoms(path, atoms)
    options = {"device": "cpu", "windows": "rect", "checkpoint": tmp_path / "run.npz"}
    whole = search(paths, GRID, **options)
    for path in paths:
        path.write_text("no longer a file of atoms")
    again = search(paths, GRID, **options)
    assert (again.n_templates, again.n_bad) == (3, 0)
    assert again.columns()["max2F"].tolist() == whole.columns()["max2F"].tolist()


@pytest.mark.parametrize(("form", "ending"), [(f, e) for f in FORMATS.values() for e in f.endings])
def test_every_format_of_atoms_is_written_and_read(tmp_path, form, ending):
    if "h" in ending:
        pytest.importorskip("h5py")
    path = tmp_path / f"a{ending}"
    form.write(path, as_list(ATOMS[0]))
    back = read_any(path, detectors=["H1", "L1"])
    assert [a.detector for a in back] == ["H1", "L1"]
    assert np.abs(back[1].Fb - ATOMS[0][1].Fb).max() < 1e-6  # the text has 6 decimals
    with pytest.raises(ValueError, match=r"expected a name that ends in \.npz"):
        save_atoms(tmp_path / "a.xyz", ATOMS[0])


def test_a_loaded_search_result_equals_the_saved_one(tmp_path):
    with SearchPlan(GRID, topk=2, posteriors=1, device="cpu") as plan:
        found = plan.execute(ATOMS)
    found.save(tmp_path / "a.npz")
    back = SearchResult.load(tmp_path / "a.npz")
    assert repr(back) == repr(found)
    assert back.settings == found.settings
    assert back.grid == GRID
    assert back.ledgers["exp"].bands == found.ledgers["exp"].bands
    assert np.array_equal(back.posterior("exp", int(back.columns("exp")["template"][0]))[0],
                          found.posterior("exp", int(back.columns("exp")["template"][0]))[0])  # fmt: skip
    found.save(tmp_path / "table", format="csv")
    assert (tmp_path / "table").read_text().startswith("template,window,max2F")
    with pytest.raises(ValueError, match="format='xls'"):
        found.save(tmp_path / "table", format="xls")
    np.savez(tmp_path / "x.npz", a=1)
    with pytest.raises(ValueError, match="SearchResult"):
        SearchResult.load(tmp_path / "x.npz")


def test_a_search_plan_predicts_its_work(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    with SearchPlan(device="cpu", threads=1) as plan:
        one, three = plan.describe(ATOMS[0]), plan.describe(ATOMS)
        assert one["method"] == "running sums, recurrence"
        assert three["templates"] == 3
        assert three["cells"] == 3 * one["cells"] == 3 * 2 * 11 * 11
        assert one["seconds"] is None  # nothing is measured, and nothing measures itself
        assert not (tmp_path / "skysieve").exists()
        with timing.measuring():
            plan.describe(ATOMS)
        rates.keep("fstat", plan.devices[0], {"templates": 1e-5, "atoms": 1e-8})
        one, three = plan.describe(ATOMS[0]), plan.describe(ATOMS)
        assert 0 < one["seconds"] < three["seconds"] == three["processor_seconds"]
        with pytest.raises(TypeError, match="item 0"):
            plan.describe(3)
