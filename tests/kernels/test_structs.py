"""Structs and constants that kernels share with their launchers: the launcher's against the source, field by field."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from skysieve.core.gpu.source import load_source

PERIODOGRAM = "skysieve.periodogram.cuda"
STRUCTS = [  # package, kernel file, build, struct of the source, module of the launcher, name there
    *((PERIODOGRAM, "prepare.cu", build, *pair) for build in ("f64", "f32") for pair in (
        ("Info", "structs", "INFO"), ("Limit", "structs", "LIMIT"), ("Prepare", "structs", "PREPARE"),
        ("Weights", "structs", "WEIGHTS"), ("Cycles", "structs", "CYCLES"),
    )),
    (PERIODOGRAM, "sinusoid/spread.cu", None, "Spread", "structs", "SPREAD"),
    (PERIODOGRAM, "sinusoid/comb.cu", None, "Comb", "structs", "COMB"),
    (PERIODOGRAM, "sinusoid/fine.cu", None, "Coarse", "structs", "COARSE"),
    (PERIODOGRAM, "sinusoid/direct.cu", None, "Direct", "structs", "DIRECT"),
    (PERIODOGRAM, "sinusoid/powers.cu", None, "Sampled", "structs", "SAMPLED"),
    (PERIODOGRAM, "sinusoid/powers_half.cu", None, "Sampled", "structs", "SAMPLED"),
    (PERIODOGRAM, "sinusoid/powers.cu", None, "Taps", "samples.samples", "TAPS"),
    (PERIODOGRAM, "sinusoid/powers_half.cu", None, "Taps", "samples.samples", "HALVES_TAPS"),
    (PERIODOGRAM, "peaks/peaks.cu", None, "Best", "structs", "BEST"),
    (PERIODOGRAM, "peaks/peaks.cu", None, "Search", "structs", "SEARCH"),
    (PERIODOGRAM, "peaks/peaks.cu", None, "Scale", "structs", "SCALE"),
    (PERIODOGRAM, "peaks/refine.cu", None, "Refine", "structs", "REFINE"),
    (PERIODOGRAM, "peaks/refine.cu", None, "Probe", "structs", "PROBE"),
    (PERIODOGRAM, "peaks/refine.cu", None, "Select", "structs", "SELECT"),
    (PERIODOGRAM, "fourier/grid.cu", None, "Points", "samples.samples", "POINTS"),
    (PERIODOGRAM, "fourier/grid.cu", None, "Samples", "samples.samples", "SAMPLES"),
    (PERIODOGRAM, "fourier/grid.cu", None, "Taps", "samples.samples", "CHI2_TAPS"),
    (PERIODOGRAM, "fourier/grid.cu", None, "Powers", "fourier.methods", "POWERS"),
    (PERIODOGRAM, "fourier/exact.cu", None, "Refit", "fourier.methods", "REFIT"),
    (PERIODOGRAM, "fourier/exact.cu", None, "Exact", "fourier.worker", "EXACT"),
    (PERIODOGRAM, "fourier/exact.cu", None, "Find", "fourier.worker", "FIND"),
    (PERIODOGRAM, "bands/rows.cu", None, "Rows", "bands.worker", "ROWS"),
    (PERIODOGRAM, "bands/rows.cu", None, "Centre", "bands.worker", "CENTRE"),
    (PERIODOGRAM, "bands/exact.cu", None, "Exact", "bands.worker", "EXACT"),
    (PERIODOGRAM, "bands/bands.cu", None, "Offset", "bands.methods", "OFFSET"),
    (PERIODOGRAM, "bands/comb.cu", None, "Weights", "bands.methods", "WEIGHTS"),
    (PERIODOGRAM, "bands/comb.cu", None, "Comb", "bands.methods", "COMB"),
    ("skysieve.sphere.cuda", "direct/direct.cu", None, "Ring", "direct.engine", "RING"),
    ("skysieve.sphere.cuda", "direct/direct.cu", None, "Profile", "direct.profile", "structure"),
    ("skysieve.sphere.cuda", "ring/ring.cu", None, "Row", "ring.rows", "ROW"),
    *(("skysieve.sphere.cuda", f"ring/{name}.cu", None, "Tile", "ring.sums", "TILE") for name in (
        "band", "tensor",
    )),
    ("skysieve.fstat.cuda", "rect.cu", None, "Shape", "tables", "SHAPE"),
    ("skysieve.fstat.cuda", "rect.cu", None, "Answer", "tables", "ANSWER"),
    ("skysieve.fstat.cuda", "cells.cu", None, "Tile", "windows", "TILE"),
    ("skysieve.fstat.cuda", "demod/demod.cu", None, "Demod", "demod.launch", "DEMOD"),
    ("skysieve.dedispersion.cuda", "direct.cu", None, "Shape", "worker", "DIRECT"),
    ("skysieve.dedispersion.cuda", "tensor.cu", None, "Chunk", "tensor_plan", "CHUNK"),
    ("skysieve.dedispersion.cuda", "tensor.cu", None, "Shape", "tensor_plan", "SHAPE"),
    ("skysieve.dedispersion.cuda", "plan.cu", None, "Chunk", "tensor_plan", "CHUNK"),
    ("skysieve.dedispersion.cuda", "load.cu", None, "Rows", "rows", "ROWS"),
    ("skysieve.dedispersion.cuda", "turn.cu", None, "Rows", "rows", "ROWS"),
    ("skysieve.dedispersion.cuda", "search.cu", None, "Event", "detect", "EVENT"),
    ("skysieve.dedispersion.cuda", "search.cu", None, "Job", "detect", "JOB"),
    ("skysieve.dedispersion.cuda", "glance.cu", None, "Job", "detect", "JOB"),
    *(("skysieve.dedispersion.clean.cuda", "clean.cu", None, name.capitalize(), "launch", name)
      for name in ("JOB", "BLOCK", "WINDOW")),
    ("skysieve.dedispersion.injections.cuda", "noise.cu", None, "Job", "launch", "JOB"),
    ("skysieve.dedispersion.single_pulse.cuda", "look.cu", None, "Job", "launch", "JOB"),
    *(("skysieve.dedispersion.stream.channelise", "channelise.cu", None, name.capitalize(), "cuda_channeliser", name)
      for name in ("PACKETS", "SHAPE")),
]  # fmt: skip
CONSTANTS = [  # kernel file of the periodogram, macro, module of the launcher, name there
    ("prepare.cu", "CORRECTION", "sinusoid.tables", "CORRECTION"),
    ("sinusoid/comb.cu", "LONG", "sinusoid.methods", "LONG"),
    ("sinusoid/comb.cu", "GROUP", "sinusoid.methods", "FLAT"),
    ("sinusoid/direct.cu", "SPAN", "parts", "DIRECT_SPAN"),
    ("sinusoid/direct.cu", "POINTS", "cost", "DIRECT_POINTS"),
    ("sinusoid/direct.cu", "RUN", "sinusoid.methods", "BESIDE"),
    ("sinusoid/direct.cu", "GROUP", "sinusoid.methods", "GROUP"),
    ("sinusoid/fine.cu", "COARSE", "sinusoid.tables", "COARSE"),
    ("sinusoid/fine.cu", "WARPS", "sinusoid.methods", "_WARPS"),
    ("sinusoid/powers.cu", "SPAN", "samples.layout", "POWERS_SPAN"),
    ("sinusoid/powers.cu", "BINS", "samples.samples", "BINS"),
    ("sinusoid/powers_half.cu", "REACH", "samples.half_window", "HALVES_REACH"),
    ("fourier/grid.cu", "MODES", "samples.layout", "SAMPLES"),
    ("fourier/grid.cu", "REACH", "samples.layout", "REACH"),
    ("fourier/grid.cu", "TILES", "fourier.methods", "TILES"),
    ("fourier/grid.cu", "WARPS", "samples.stretches", "SAMPLE_WARPS"),
    ("fourier/grid.cu", "TOP", "fourier.methods", "TOP"),
    ("fourier/exact.cu", "SPAN", "fourier.methods", "EXACT_SPAN"),
    ("fourier/exact.cu", "FIND", "fourier.methods", "FIND_SPAN"),
    ("bands/comb.cu", "HALVES", "bands.methods", "HALVES"),
    ("bands/comb.cu", "SLOT", "bands.methods", "SLOT"),
    ("bands/comb.cu", "CHUNK", "bands.methods", "CHUNK"),
    ("bands/rows.cu", "WARPS_CENTRE", "bands.worker", "WARPS"),
    ("peaks/refine.cu", "PROBES", "peaks.launch", "PROBES"),
    ("peaks/refine.cu", "VERY_LONG", "peaks.launch", "VERY_LONG"),
    ("peaks/refine.cu", "SLICE", "peaks.launch", "SLICE"),
    ("peaks/refine.cu", "THREADS", "peaks.launch", "THREADS"),
]
BOTH_BACKENDS = [  # kernel file, and a module that has constants of the same names and values
    *(("dedispersion.clean.cuda", "clean.cu", f"dedispersion.clean.{module}", names) for module, names in (
        ("blocks.steps", "PIECES LEAST_PIECES MOST_PIECE"), ("blocks.cleaner", "MOST_CELLS REACH"),
        ("blocks.gain", "STEP_ERROR STEP_BANDS WIDE_BANDS"), ("blocks.cpu_impulses", "LEAST LATE"),
        ("blocks.cpu_cleaner", "NEIGHBOURS SAMPLED LIT TRACK LEAST_TRACK STEEP"),
        ("cpu_dropouts", "ROUGH"), ("cpu_missing", "SPREAD"), ("cuda.launch", "THREADS WIDE"),
    )),
    ("dedispersion.cuda", "baseline.cu", "dedispersion.cpu.baseline",
     "GROUPS DRIFTS OUTLIER REACH ROUNDS LEAST_STEPS TO_SIGMA DIFFERENCE SECOND FOURTH SIXTH CUBIC ODD GOLDEN "
     "FRACTION"),
    ("dedispersion.cuda", "search.cu", "dedispersion.cpu.detect",
     "BINS IQR CLIPS CLIP_AT CLIPPED_SIGMA PART VALLEY POINTED"),
    ("dedispersion.cuda", "search.cu", "dedispersion.contract", "UNIT CLIP"),
    ("dedispersion.cuda", "tensor.cu", "dedispersion.cuda.tensor_plan", "TILE PIECE FRONT BLOCK_WORDS WARPS"),
    ("dedispersion.single_pulse.cuda", "look.cu", "dedispersion.single_pulse.cpu_vetting", "LEAST_KNOWN ROUNDING"),
    ("periodogram.cuda", "prepare.cu", "periodogram.cpu.prepare", "SHORTEST_SPAN"),
    ("periodogram.cuda", "sinusoid/direct.cu", "periodogram.cpu.direct", "SINGULAR COLUMN_NOISE"),
    ("periodogram.cuda", "fourier/exact.cu", "periodogram.cpu.fourier.kernels", "PIVOT"),
    ("periodogram.cuda", "peaks/refine.cu", "periodogram.numerics.peaks", "HIGHER LEAST LOWER WIDE STEP"),
    ("periodogram.cuda", "peaks/refine.cu", "periodogram.cpu.climb", "SHARP"),
    ("fstat.cuda", "sum.cu", "fstat.cpu.sum", "RENEW"),
]  # fmt: skip
RENAMED = {  # the source's names of fields, where the launcher's differ to avoid those of other structs
    "guard.least": "guard", "first": "first_row", "index": "answer_index", "list": "tries_list", "info": "probed",
    "f0": "probe_f0", "df": "probe_df", "nf": "probe_nf", "tops.list": "tops", "doubts.list": "doubts",
    "doubts.count": "doubted", "doubts.room": "room_doubts", "first.list": "doubts", "first.count": "doubted",
    "first.room": "room_doubts", "second.list": "left", "second.count": "n_left", "second.room": "room_left",
    "some.list": "left", "some.count": "n_left",
}  # fmt: skip
SIZES = {
    "double": 8, "float": 4, "unsigned long long": 8, "long long": 8, "unsigned int": 4, "unsigned char": 1,
    "unsigned": 4, "int": 4,
}  # fmt: skip
WORDS = "|".join(SIZES)


@dataclass(frozen=True)
class Field:
    """A field of numbers or pointers: its name, place and size in bytes, and whether it is a floating-point number."""

    name: str
    offset: int
    size: int
    floating: bool


@cache
def source_of(package: str, file: str, build: str | None) -> str:
    """The source without comments; types and constants are looked up in it."""
    text = load_source(package, file).assemble(build)
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def number(source: str, text: str) -> int:
    """The value of an array's length: a number, or a macro or constant that stands for one."""
    for _ in range(20):
        if re.fullmatch(r"[\d\s+*()/-]+", text):
            return int(eval(text.replace("/", "//")))
        name = re.search(r"[A-Za-z_]\w*", text)
        assert name, text
        pattern = rf"#define {name[0]} +([^\n]+)|constexpr int {name[0]} = ([^;]+);"
        found = re.findall(pattern, source)
        assert found, f"{name[0]} has no value"
        text = re.sub(rf"\b{name[0]}\b", f"({found[0][0] or found[0][1]})", text)
    raise AssertionError(f"{text} has no end")


def real(source: str, name: str) -> float:
    """The value of a macro, from numbers and other macros; rounded to float32 if it is written with an f."""
    found = re.search(rf"#define {name} +([^\n]+)", source)
    assert found, f"{name} has no value"
    text = found[1].strip()
    if text.endswith("f"):
        return float(np.float32(text.removesuffix("f")))
    text = re.sub(r"\b[A-Z]\w*", lambda other: repr(real(source, other[0])), text.removesuffix("u"))
    return float(eval(text))


def scalar(source: str, kind: str) -> tuple[int, bool] | None:
    """Size of a type of numbers, and whether they are floating-point; None for structs."""
    for _ in range(5):
        if kind in SIZES:
            return SIZES[kind], kind in ("double", "float")
        found = re.search(rf"typedef ([\w ]+?) {kind};|#define {kind} ([\w ]+)", source)
        if not found:
            return None
        kind = (found[1] or found[2]).strip()
    raise AssertionError(kind)


def layout(source: str, struct: str) -> tuple[list[Field], int, int]:
    """Fields, size and alignment of a struct, by C's rules."""
    start = re.search(rf"\bstruct (?:__align__\(([^{{]*)\) )?{struct} *{{", source)
    assert start, f"no struct {struct}"
    depth, end = 1, start.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(source[end], 0)
        end += 1
    fields: list[Field] = []
    at, alignment = 0, 1
    for statement in source[start.end() : end - 1].split(";"):
        words = " ".join(statement.split())
        if not words or ("(" in words and ")" in words and "[" not in words):
            continue
        match = re.match(rf"(?:const )?(?:struct )?((?:{WORDS})\b|\w+)(.*)", words)
        assert match, words
        kind, rest = match[1], match[2]
        for one in rest.split(","):
            name = one.replace("*", "").replace("__restrict__", "").strip()
            dims = re.findall(r"\[(.*?)\]", name)
            name, many = name.split("[")[0], int(np.prod([number(source, d) for d in dims] or [1]))
            inner: list[Field]
            if "*" in one:
                size, step, inner = 8, 8, [Field(name, 0, 8, False)]
            elif (found := scalar(source, kind)) is not None:
                size, step = found[0], found[0]
                inner = [Field(name, 0, size, found[1])]
            else:
                nested, size, step = layout(source, kind)
                inner = [Field(f"{name}.{f.name}", f.offset, f.size, f.floating) for f in nested]
            at = -(-at // step) * step
            fields += [Field(f.name, at + i * size + f.offset, f.size, f.floating) for i in range(many) for f in inner]
            at, alignment = at + many * size, max(alignment, step)
    if start[1]:
        alignment = max(alignment, int(start[1]) if start[1].isdigit() else alignment)
    return fields, -(-at // alignment) * alignment, alignment


def flat(dtype: np.dtype[Any], before: str = "", at: int = 0) -> list[Field]:
    """The fields of a NumPy dtype, in the form of `layout`."""
    found: list[Field] = []
    for name in dtype.names or ():
        kind, offset = dtype[name], at + dtype.fields[name][1]
        base, many = kind.base, int(np.prod(kind.shape, dtype=int))
        for i in range(many):
            place = offset + i * base.itemsize
            if base.names:
                found += flat(base, f"{before}{name}.", place)
            else:
                found.append(Field(before + name, place, base.itemsize, base.kind == "f"))
    return found


def same_name(ours: str, theirs: str) -> bool:
    """Whether ``theirs`` is the source's name of our field; the names of enclosing structs may be omitted."""
    short = theirs.rsplit(".", 1)[-1]
    return ours.rstrip("0123456789") == short or ours in (theirs, short, RENAMED.get(theirs), RENAMED.get(short))


@pytest.mark.parametrize(
    ("package", "file", "build", "struct", "module", "name"), STRUCTS, ids=lambda value: str(value).rsplit(".", 1)[-1]
)
def test_a_launchers_struct_is_the_sources(package, file, build, struct, module, name):
    ours = getattr(importlib.import_module(f"{package}.{module}"), name)
    source = source_of(package, file, build)
    if not isinstance(ours, np.dtype):
        ours = ours(np.dtype({8: "f8", 4: "f4"}[scalar(source, "REAL")[0]]))
    theirs, size, _ = layout(source, struct)
    mine = flat(ours)
    assert [(f.offset, f.size, f.floating) for f in mine] == [(f.offset, f.size, f.floating) for f in theirs], (
        [f.name for f in mine],
        [f.name for f in theirs],
    )
    assert ours.itemsize == size
    names = [(a.name.rsplit(".", 1)[-1], b.name) for a, b in zip(mine, theirs, strict=True)]
    wrong = [pair for pair in names if not same_name(*pair)]
    assert not wrong


@pytest.mark.parametrize(("file", "macro", "module", "name"), CONSTANTS)
def test_a_launchers_constant_is_the_sources(file, macro, module, name):
    ours = getattr(importlib.import_module(f"{PERIODOGRAM}.{module}"), name)
    assert ours == number(source_of(PERIODOGRAM, file, None), macro)


@pytest.mark.parametrize(("package", "file", "module", "names"), BOTH_BACKENDS, ids=lambda value: str(value))
def test_constants_of_a_kernel_file_are_those_of_the_cpu(package, file, module, names):
    source, ours = source_of(f"skysieve.{package}", file, None), importlib.import_module(f"skysieve.{module}")
    expected = {name: float(getattr(ours, name)) for name in names.split()}
    assert {name: real(source, name) for name in expected} == expected, f"{file} differs from {module}"


def test_steps_of_the_gain_are_sought_a_little_more_closely_on_a_gpu():
    from skysieve.dedispersion.clean.blocks.cpu_impulses import ROUGHLY

    source = source_of("skysieve.dedispersion.clean.cuda", "clean.cu", None)
    assert 0.98 * ROUGHLY < real(source, "ROUGHLY") < ROUGHLY


def test_candidates_and_status_of_the_kernels():
    """`CANDIDATE_BYTES` is the size of ``struct Candidate``, `UNLIKE` the status that ``ls_prepare`` gives."""
    parts, structs = (importlib.import_module(f"{PERIODOGRAM}.{name}") for name in ("parts", "structs"))
    for build, size in (("f64", 8), ("f32", 4)):
        source = source_of(PERIODOGRAM, "prepare.cu", build)
        assert layout(source, "Candidate")[1] == parts.CANDIDATE_BYTES[size]
        assert f"info.status = {structs.UNLIKE};" in source


def test_the_reader_of_structs():
    source = """
#define ROWS 3
typedef float T;
struct Two { T x, y; };
struct __align__(16) All { const double* p; int n, of[ROWS + 1]; Two two; unsigned long long big; T last; };
"""
    fields, size, alignment = layout(source, "All")
    assert [(f.name, f.offset) for f in fields] == [
        ("p", 0), ("n", 8), ("of", 12), ("of", 16), ("of", 20), ("of", 24), ("two.x", 28), ("two.y", 32), ("big", 40),
        ("last", 48),
    ]  # fmt: skip
    assert (size, alignment) == (64, 16)
    with pytest.raises(AssertionError, match="no struct"):
        layout(source, "Nothing")
