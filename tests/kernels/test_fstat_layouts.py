"""Structs and constants that the F-statistic's kernels share with Python have one layout and one value."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import skysieve.fstat.cuda
from skysieve.fstat import precision
from skysieve.fstat.contract import FALLBACK
from skysieve.fstat.cuda import tables, windows

FOLDER = Path(skysieve.fstat.cuda.__file__).parent
TYPES = {
    "int": np.int32, "unsigned": np.uint32, "unsigned int": np.uint32, "double": np.float64,
    "unsigned long long": np.uint64, "T": np.float32,
}  # fmt: skip


def source(name):
    """A source without comments."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return re.sub(r"//.*|/\*.*?\*/", "", text)


def fields(name, struct):
    """The (name, dtype) of the members of a struct; T is float32."""
    body = re.search(rf"struct\s+(?:\w+\(\d+\)\s+)?{struct}\s*{{([^}}]*)}}", source(name))
    assert body, f"{struct} is not in {name}"
    out = []
    for line in body[1].split(";"):
        if line.strip():
            kind, *members = re.split(r"\s*,\s*|\s+(?=\w+\s*(?:,|$))", line.strip())
            out += [(member.strip(), TYPES[kind]) for member in members]
    return out


def constant(name, which):
    """The value of a define or of a constexpr."""
    found = re.search(
        rf"(?:#define\s+{which}\s+|constexpr\s+\w+\s+{which}\s*=\s*)(?:\(\(T\)|\(T\))?(\w+)", source(name)
    )
    assert found, f"{which} is not in {name}"
    return int(found[1].rstrip("u"), 0)


@pytest.mark.parametrize(
    ("name", "struct", "dtype"),
    [
        ("common.cuh", "Shape", tables.SHAPE),
        ("common.cuh", "Answer", tables.ANSWER),
        ("cells.cu", "Tile", windows.TILE),
    ],
)
def test_structs(name, struct, dtype):
    assert np.dtype(fields(name, struct)) == dtype


def test_size_of_a_slot():
    """With alignment to 16 bytes, for T = float."""
    packed = np.dtype(fields("common.cuh", "Slot")).itemsize
    assert -(-packed // 16) * 16 == tables.SLOT


def test_constants():
    assert constant("common.cuh", "NOWHERE") == tables.NOWHERE
    assert constant("common.cuh", "FALLBACK") == FALLBACK
    assert constant("common.cuh", "FEWEST") == precision.FEWEST
    assert constant("exp.cu", "ROWS") == tables.ROWS
