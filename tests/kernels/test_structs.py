"""Structs that kernels take by value: the dtypes of the launchers against the declarations in the sources."""

from __future__ import annotations

import re

import numpy as np
import pytest

from skysieve.core.gpu.source import load_source
from skysieve.dedispersion.cuda import detect, rows, tensor_plan
from skysieve.dedispersion.cuda import worker as dedispersion_worker
from skysieve.dedispersion.stream.channelise import cuda_channeliser
from skysieve.fstat.cuda import tables, windows
from skysieve.periodogram.cuda import structs
from skysieve.periodogram.cuda.bands import worker as bands_worker
from skysieve.periodogram.cuda.fourier import worker as fourier_worker
from skysieve.periodogram.cuda.samples import samples
from skysieve.sphere.cuda.direct import engine as direct_engine
from skysieve.sphere.cuda.ring import rows as ring_rows
from skysieve.sphere.cuda.ring import sums

P, D, F, S = "skysieve.periodogram.cuda", "skysieve.dedispersion.cuda", "skysieve.fstat.cuda", "skysieve.sphere.cuda"
C = "skysieve.dedispersion.stream.channelise"
STRUCTS = [
    (structs.INFO, P, "prepare.cu", "Info"),
    (structs.LIMIT, P, "prepare.cu", "Limit"),
    (structs.PREPARE, P, "prepare.cu", "Prepare"),
    (structs.WEIGHTS, P, "prepare.cu", "Weights"),
    (structs.DIRECT, P, "sinusoid/direct.cu", "Direct"),
    (structs.COMB, P, "sinusoid/comb.cu", "Comb"),
    (structs.COARSE, P, "sinusoid/fine.cu", "Coarse"),
    (structs.SAMPLED, P, "sinusoid/powers.cu", "Sampled"),
    (structs.BEST, P, "peaks/peaks.cu", "Best"),
    (structs.SCALE, P, "peaks/peaks.cu", "Scale"),
    (structs.SEARCH, P, "peaks/peaks.cu", "Search"),
    (structs.REFINE, P, "peaks/refine.cu", "Refine"),
    (structs.PROBE, P, "peaks/refine.cu", "Probe"),
    (structs.SELECT, P, "peaks/refine.cu", "Select"),
    (fourier_worker.POWERS, P, "fourier/grid.cu", "Powers"),
    (fourier_worker.REFIT, P, "fourier/exact.cu", "Refit"),
    (fourier_worker.EXACT, P, "fourier/exact.cu", "Exact"),
    (fourier_worker.FIND, P, "fourier/exact.cu", "Find"),
    (samples.POINTS, P, "fourier/grid.cu", "Points"),
    (samples.SAMPLES, P, "fourier/grid.cu", "Samples"),
    (samples.CHI2_TAPS, P, "fourier/grid.cu", "Taps"),
    (bands_worker.ROWS, P, "bands/rows.cu", "Rows"),
    (bands_worker.CENTRE, P, "bands/rows.cu", "Centre"),
    (bands_worker.OFFSET, P, "bands/bands.cu", "Offset"),
    (bands_worker.COMB, P, "bands/comb.cu", "Comb"),
    (bands_worker.WEIGHTS, P, "bands/comb.cu", "Weights"),
    (bands_worker.EXACT, P, "bands/exact.cu", "Exact"),
    (dedispersion_worker.DIRECT, D, "direct.cu", "Shape"),
    (tensor_plan.SHAPE, D, "tensor.cu", "Shape"),
    (tensor_plan.CHUNK, D, "tensor.cu", "Chunk"),
    (tensor_plan.CHUNK, D, "plan.cu", "Chunk"),
    (detect.JOB, D, "search.cu", "Job"),
    (detect.EVENT, D, "search.cu", "Event"),
    (rows.ROWS, D, "load.cu", "Rows"),
    (rows.ROWS, D, "turn.cu", "Rows"),
    (cuda_channeliser.PACKETS, C, "channelise.cu", "Packets"),
    (cuda_channeliser.SHAPE, C, "channelise.cu", "Shape"),
    (tables.SHAPE, F, "exp.cu", "Shape"),
    (tables.ANSWER, F, "exp.cu", "Answer"),
    (windows.TILE, F, "cells.cu", "Tile"),
    (direct_engine.RING, S, "direct/direct.cu", "Ring"),
    (sums.TILE, S, "ring/band.cu", "Tile"),
    (sums.TILE, S, "ring/tensor.cu", "Tile"),
    (sums.TILE, S, "ring/split.cu", "Tile"),
    (ring_rows.ROW, S, "ring/ring.cu", "Row"),
]
TYPES = {
    "int": "i4", "unsigned": "i4", "u32": "i4", "float": "f4", "double": "f8", "long long": "i8", "i64": "i8",
    "unsigned long long": "i8", "T": "f8",
}  # fmt: skip
"""Types by their size and kind; signed and unsigned integers are not distinguished."""

RENAMED = {("probed", "info"), ("first_row", "first")}
"""Names in Python and in C that differ because Python's structs have no inner ones."""


def declared(text: str, name: str) -> list[tuple[str, str]]:
    """``(path, type)`` of the fields of a struct in order, those of inner structs too."""
    match = re.search(rf"\bstruct (?:__align__\(\w+\) )?{name} \{{(.*?)\}};", text, re.S)
    assert match, name
    found = []
    for statement in re.sub(r"//[^\n]*", "", match[1]).split(";"):
        words = " ".join(statement.replace("__restrict__", "").replace("const ", "").replace("struct ", "").split())
        if not words:
            continue
        kind = re.match(r"(unsigned long long|long long|\w+)", words)[0]
        for field in words[len(kind) :].split(","):
            pointer, label = "*" in field, field.replace("*", " ").split()[0]
            label, _, count = label.partition("[")
            if pointer:
                found.append((label, "i8"))
            elif kind in TYPES:
                found += [(label, TYPES[kind])] * (int(constant(text, count[:-1])) if count else 1)
            else:
                found += [(f"{label}.{inner}", t) for inner, t in declared(text, kind)]
    return found


def constant(text: str, name: str) -> str:
    return name if name.isdigit() else re.search(rf"(?:#define {name}|int {name} =) (\d+)", text)[1]


def flat(dtype: np.dtype) -> list[tuple[str, int, str]]:
    """``(name, offset, type)`` of all fields, those of inner structs and arrays too."""
    found = []
    for name in dtype.names:
        field, offset = dtype.fields[name][:2]
        base, shape = (field.subdtype[0], field.subdtype[1][0]) if field.subdtype else (field, 1)
        for k in range(shape):
            at = offset + k * base.itemsize
            if base.names:
                found += [(f"{name}.{inner}", at + more, t) for inner, more, t in flat(base)]
            else:
                found.append((name, at, base.str[1:].replace("u", "i")))
    return found


@pytest.mark.parametrize(("dtype", "package", "file", "name"), STRUCTS, ids=[f"{f}-{n}" for _, _, f, n in STRUCTS])
def test_layout(dtype, package, file, name):
    source = declared(load_source(package, file).text, name)
    ours = flat(dtype)
    expected, at = [], 0
    for _, kind in source:
        at = -(-at // int(kind[1])) * int(kind[1])
        expected.append((at, kind))
        at += int(kind[1])
    assert [(offset, kind) for _, offset, kind in ours] == expected
    names = [(a, b) for (a, *_), (b, _) in zip(ours, source, strict=True)]
    # such a name may also have a prefix in Python, as tries_list for the field list
    other = [(a, b) for a, b in names if "." not in a + b and a != b and not a.endswith(f"_{b}")]
    assert set(other) <= RENAMED


@pytest.mark.parametrize("change", ["type", "order"])
def test_a_wrong_field_is_seen(change):
    names = list(tables.ANSWER.names)
    kinds = [tables.ANSWER[name].str for name in names]
    if change == "type":
        kinds[-1] = "f4"
    else:
        names[0], names[1] = names[1], names[0]
    with pytest.raises(AssertionError):
        test_layout(np.dtype(list(zip(names, kinds, strict=True))), F, "exp.cu", "Answer")
