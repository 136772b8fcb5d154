"""Registries agree with the types, with constants of the kernels, with columns and with tables of the documentation."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from skysieve.dedispersion import Candidates, Filterbank, dedisperse, fake, plan, search
from skysieve.dedispersion.clean import rfi
from skysieve.dedispersion.contract import DETECTORS, METHODS, NOISE, SUMMATIONS, Detector, Method, Noise
from skysieve.dedispersion.cpu import detect
from skysieve.dedispersion.data import sigproc
from skysieve.dedispersion.data.delays import REFERENCES, Reference
from skysieve.dedispersion.data.readers import FILE_FORMATS
from skysieve.dedispersion.dm_plan.rules import RULES, Rule
from skysieve.dedispersion.result import SERIES_FORMATS, SeriesFormat
from skysieve.dedispersion.single_pulse.files import TABLE_FORMATS
from skysieve.dedispersion.single_pulse.vetting import REASONS
from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "dedispersion.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("literal", "registry"),
    [
        (Method, METHODS),
        (Method, SUMMATIONS),
        (Noise, NOISE),
        (Detector, DETECTORS),
        (Rule, RULES),
        (Reference, REFERENCES),
        (SeriesFormat, SERIES_FORMATS),
        (sigproc.BitOrder, sigproc.BIT_ORDERS),
        (rfi.Statistic, rfi.STATISTICS),
    ],
)
def test_names_for_the_type_checker_are_those_of_the_registry(literal, registry):
    assert get_args(literal) == tuple(registry)


@pytest.mark.parametrize(
    ("of", "argument", "registry"),
    [
        (dedisperse, "method", SUMMATIONS),
        (dedisperse, "ref_freq", REFERENCES),
        (search, "noise", NOISE),
        (search, "detector", DETECTORS),
        (plan, "rule", RULES),
    ],
    ids=["method", "ref_freq", "noise", "detector", "rule"],
)
def test_docstrings_name_what_the_registries_hold(of, argument, registry):
    [listed] = re.findall(rf"^ *{argument} : {{(.*?)}}", of.__doc__, re.M)
    assert sorted(re.findall('"(.*?)"', listed)) == sorted(registry)


def test_numbers_of_noise_estimators_are_those_of_the_kernels():
    source = (ROOT / "src/skysieve/dedispersion/cuda/detect.cuh").read_text(encoding="utf-8")
    [names] = re.findall(r"enum \{ (ROBUST .*?) \};", source)
    assert dict(pair.split(" = ") for pair in names.split(", ")) == {
        name.upper(): str(estimator.code) for name, estimator in NOISE.items()
    }
    assert (NOISE["robust"].code, NOISE["clipped"].code) == (0, detect.CLIPPED)  # 0: see `Detection.noise_kind`


@pytest.fixture(scope="module")
def found():
    made = fake(nchan=16, duration=3, tsamp=1e-3, fch1=1500, foff=-8, dm=60, times=[1.0], width=8e-3, snr=25, seed=2)
    return search(made, [50.0, 60.0], threads=1)


def test_columns_have_their_types_units_and_descriptions(found):
    assert [f.name for f in fields(Candidates)][: len(Candidates.COLUMNS)] == [c.name for c in Candidates.COLUMNS]
    table = found.to_table()
    assert table.colnames == [c.name for c in Candidates.COLUMNS] == list(found.columns())
    for column in Candidates.COLUMNS:
        assert getattr(found, column.name).dtype == np.dtype(column.dtype)
        assert str(table[column.name].unit or "") == column.unit
        assert table[column.name].description == column.help


def test_the_table_of_a_stream_has_the_columns_of_candidates():
    names = [c.name for c in Candidates.COLUMNS]
    stream = [column.name for column in CANDIDATE_COLUMNS]
    at = stream.index(names[0])
    assert stream[at : at + len(names)] == names


@pytest.mark.parametrize("name", TABLE_FORMATS)
def test_every_table_format_is_written(found, name, tmp_path):
    found.write(tmp_path / f"c.{name}")
    assert (tmp_path / f"c.{name}").stat().st_size > 0


@pytest.mark.parametrize(
    ("heading", "rows"),
    [
        ("method", {f'"{name}"': method.help for name, method in SUMMATIONS.items()}),
        ("rule", {f'"{name}"': rule.help for name, rule in RULES.items()}),
        ("noise", {f'"{name}"': estimator.help for name, estimator in NOISE.items()}),
        ("detector", {f'"{name}"': kind.help for name, kind in DETECTORS.items()}),
        ("column", {column.name: column.help for column in Candidates.COLUMNS}),
        ("table", {f".{name}": form.help for name, form in TABLE_FORMATS.items()}),
        ("reason", REASONS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_of_the_documentation_are_the_registries(heading, rows):
    table = PAGE.split(f"\n| {heading} |")[1].split("\n\n")[0]
    shown = dict(re.findall(r"^\| `([^`]+)`(?: \(default\))? \| (.+?) \|", table, re.M))
    assert shown == rows


def test_the_documentation_names_every_file_format():
    names = [name for form in FILE_FORMATS for name in (form.name, *(f"`{suffix}`" for suffix in form.suffixes))]
    assert [name for name in names if name not in PAGE] == [], "names that docs/dedispersion.md lacks"


def test_functions_take_paths(tmp_path, found):
    from skysieve.dedispersion import (
        channel_statistics,
        cutout,
        fill_dropped,
        find_dropped,
        inject,
        requantise,
        rfi_mask,
        write_fil,
        z_dot,
        zero_dm,
    )

    path = tmp_path / "a.fil"
    fake(nchan=16, duration=3, tsamp=1e-3, fch1=1500, foff=-8, dm=60, times=[1.0], width=8e-3, snr=25, seed=2,
         path=path).close()  # fmt: skip
    pulse = {"dm": 60.0, "time": 1.5, "snr": 20.0, "width": 4e-3}
    with Filterbank.open(path) as fb:
        assert np.array_equal(search(path, [50.0, 60.0], threads=1).events.snr, found.events.snr)
        assert np.array_equal(dedisperse(str(path), [60.0]).data, dedisperse(fb, [60.0]).data)
        assert np.array_equal(plan([path], 100).dms, plan(fb, 100).dms)
        for change in (zero_dm, z_dot, requantise, fill_dropped, lambda data: inject(data, **pulse)):
            with change(path) as changed:
                assert np.array_equal(changed.read(), change(fb).read())
        assert np.array_equal(rfi_mask(path).cells, rfi_mask(fb).cells)
        assert np.array_equal(find_dropped(path), find_dropped(fb))
        assert np.array_equal(channel_statistics(path, 500)["mean"], channel_statistics(fb, 500)["mean"])
        assert np.array_equal(
            cutout(path, dm=60, time=1, width=8e-3).bowtie, cutout(fb, dm=60, time=1, width=8e-3).bowtie
        )
        write_fil(tmp_path / "b.fil", path)
        assert (tmp_path / "b.fil").read_bytes() == path.read_bytes()
    for call in (lambda data: search(data, [0.0]), lambda data: dedisperse(data, [0.0]), requantise):
        with pytest.raises(TypeError, match="data is a list, expected a Filterbank or the path of a file"):
            call([1, 2])


@pytest.mark.slow
def test_a_plan_searches_data_of_any_length_and_refuses_other_kinds():
    from skysieve.dedispersion import DedispersionPlan, Losses, Mask, SearchPlan, dedisperse

    kind = {"nchan": 16, "tsamp": 1e-3, "fch1": 1500, "foff": -8, "dm": 60, "width": 8e-3, "snr": 25}
    nights = [fake(duration=d, times=[d / 2], seed=s, **kind) for s, d in enumerate((3, 10, 1))]
    mask, losses = Mask.channels(16, [3]), Losses([[700, 900, 0, 16]])
    with SearchPlan(nights[0], [50.0, 60.0], threads=1) as one, DedispersionPlan(nights[0], [0.0, 60.0]) as two:
        for night in nights:
            for options in ({}, {"mask": mask}, {"losses": losses}):
                again = one.execute(night, **options)
                alone = search(night, [50.0, 60.0], threads=1, **options)
                assert again.group.tolist() == alone.group.tolist()
                assert np.array_equal(again.events.snr, alone.events.snr)
            [series] = two.execute(night, mask=mask)
            assert np.array_equal(series.data, dedisperse(night, [0.0, 60.0], mask=mask).data)
        for change in ({"nchan": 8}, {"tsamp": 2e-3}, {"foff": -4}, {"nbits": 16}):
            for plan in (one, two):
                with pytest.raises(
                    ValueError, match="expected data like those that the plan was made for: 16 channels"
                ):
                    plan.execute(fake(duration=3, **{**kind, **change}))
