"""Structs that the sphere's kernels take have the fields of their NumPy types, in the same order."""

from __future__ import annotations

import re
from importlib.resources import files

import numpy as np
import pytest

from skysieve.sphere.cuda import PACKAGE
from skysieve.sphere.cuda.direct import engine, profile
from skysieve.sphere.cuda.ring import rows, spreading, sums

C_TYPES = {"double": "f8", "i64": "i8", "int": "i4", "REAL": "f4"}
SINGLE = np.dtype("f4")
WINDOW = spreading.polynomial(8)


def sources():
    folder = files(PACKAGE)
    listed = [*folder.rglob("*.cu"), *folder.rglob("*.cuh")]
    return {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in listed}


def structs(name):
    """Fields ``(name, type)`` of the structs of some name, by file."""
    found = {}
    for path, text in sources().items():
        for body in re.findall(rf"struct\s+{name}\s*\{{(.*?)\}};", text, re.S):
            plain = re.sub(r"//[^\n]*", "", body)
            declarations = [d.split(None, 1) for d in plain.split(";") if d.strip()]
            found[path] = [(field.strip(), c_type) for c_type, names in declarations for field in names.split(",")]
    return found


def fields_of(dtype):
    return [(name, dtype[name].base.str[1:], dtype[name].shape) for name in dtype.names]


def as_numpy(fields, lengths):
    """Fields of a struct as those of a NumPy type; ``lengths`` are those of arrays, by the name in brackets."""
    found = []
    for field, c_type in fields:
        name, bracket, length = field.partition("[")
        shape = (lengths[length.rstrip("]")],) if bracket else ()
        found.append((name, C_TYPES[c_type], shape))
    return found


@pytest.mark.parametrize(
    ("name", "paths", "dtype", "lengths"),
    [
        ("Row", {"ring/rows.cuh"}, rows.ROW, {}),
        ("Ring", {"healpix.cuh"}, engine.RING, {}),
        ("Tile", {"ring/band.cu", "ring/tensor.cu"}, sums.TILE, {}),
        ("Profile", {"common.cuh"}, profile.structure(SINGLE), {"MOST_TERMS": profile.MOST_TERMS}),
        ("Window", {"ring/grid.cu"}, WINDOW.struct(SINGLE).dtype, {"DEGREE + 1": WINDOW.degree + 1}),
    ],
)
def test_fields_are_the_same_on_both_sides(name, paths, dtype, lengths):
    found = structs(name)
    assert paths <= set(found)
    for path in paths:
        assert as_numpy(found[path], lengths) == fields_of(dtype), path
    assert dtype.isalignedstruct


def test_lengths_are_the_same_on_both_sides():
    (defined,) = re.findall(r"#define MOST_TERMS (\d+)", sources()["common.cuh"])
    assert int(defined) == profile.MOST_TERMS
