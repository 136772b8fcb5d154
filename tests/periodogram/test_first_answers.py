"""The first answers on a new machine: before the kernels are compiled, the interpreter runs their sources."""

import os
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import skysieve
from skysieve.cli import app
from skysieve.core.cpu.jit import FirstAnswers, interpreted, read_only
from skysieve.core.tasks import job_share, part_of_a_job
from skysieve.periodogram import lombscargle, lombscargle_multiband
from skysieve.periodogram.cpu import engine, finufft, peaks, prepare, search, vectors
from skysieve.periodogram.cpu.fourier import search as fourier_search
from skysieve.periodogram.cpu.fourier import series

GRID = {"fmin": 0.02, "fmax": 5.0, "nf": 3000, "n_peaks": 3, "device": "cpu"}


@pytest.fixture
def cold(monkeypatch):
    """Let the engine believe that nothing is compiled yet."""
    skysieve.clear_cache()
    monkeypatch.setattr(engine.first_answers, "seconds", 0.0)
    for kind in (engine.SinusoidSearch, series.SeriesSearch):
        monkeypatch.setattr(kind, "is_compiled", lambda *_: False)
    yield
    skysieve.clear_cache()


def curve(n=40, seed=3):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 60, n))
    return t, np.sin(2 * np.pi * t / 1.7) + 0.5 * rng.standard_normal(n), rng.uniform(0.3, 0.6, n)


def bands(n=40, **more):
    t, y, dy = curve(n)
    return lombscargle_multiband(t, y, np.arange(n) % 2, dy, **{**GRID, **more})


def batch(**more):
    """Three curves of different length, one of them constant."""
    curves = [curve(n, n) for n in (12, 25, 40)]
    curves[1] = (curves[1][0], np.ones(25), curves[1][2])
    return lombscargle(*map(list, zip(*curves, strict=True)), **GRID, **more)


CASES = {
    "one term": (lambda: lombscargle(*curve(), **GRID), 1e-9),
    "few points": (lambda: lombscargle(*curve(5), **GRID), 1e-9),
    "four terms": (lambda: lombscargle(*curve(), nterms=4, **GRID), 1e-8),
    "two bands": (bands, 1e-8),
    "flexible bands": (lambda: bands(model="flexible"), 1e-8),
    "no mean": (lambda: lombscargle(*curve(), fit_mean=False, nterms=2, **GRID), 1e-8),
    "a batch": (batch, 1e-9),
    "float32": (lambda: batch(dtype="float32"), 3e-6),
    "a list": (lambda: lombscargle(*curve(), frequency=np.geomspace(0.02, 3, 2500), n_peaks=3, device="cpu"), 1e-12),
    "long times": (lambda: lombscargle(curve()[0] + 2.45e6, *curve()[1:], **GRID), 1e-9),
}
"""Tolerances are those of the methods: `engine.GUARD`, `series.LIMIT`."""
FINE = {**GRID, "nf": 100_000}
LARGE = {
    "one term": (lambda: lombscargle(*curve(150), **FINE), 1e-9),
    "no mean": (lambda: lombscargle(*curve(150), fit_mean=False, **FINE), 1e-9),
    "float32": (lambda: lombscargle(*curve(150), dtype="float32", **FINE), 3e-6),
    "a logarithm": (lambda: lombscargle(*curve(150), normalization="log", **FINE), 1e-8),
    "a ratio": (lambda: lombscargle(*curve(150), normalization="model", **FINE), 1e-7),
    "a batch": (lambda: lombscargle([curve(150)[0]] * 3, [curve(150)[1]] * 3, **FINE), 1e-9),
    "four terms": (lambda: lombscargle(*curve(60), nterms=4, **FINE), 1e-8),
    "two terms, no mean": (lambda: lombscargle(*curve(60), nterms=2, fit_mean=False, **FINE), 1e-8),
    "two bands": (lambda: bands(60, nf=100_000), 1e-8),
    "separate bands": (lambda: bands(60, nf=100_000, model="separate"), 1e-8),
    "flexible bands": (lambda: bands(60, nf=100_000, model="flexible"), 1e-8),
}
"""Larger cases, for which finufft is faster."""


@pytest.mark.parametrize(("case", "method"), [(n, "direct") for n in CASES] + [(n, "finufft") for n in LARGE])
def test_the_first_answer_agrees_with_later_ones(case, method, cold, monkeypatch):
    run, tolerance = (CASES if method == "direct" else LARGE)[case]
    first = run()
    assert set(np.atleast_1d(first.method)) == {method}
    assert engine.first_answers.seconds > 0
    monkeypatch.setattr(
        engine.first_answers, "seconds", engine.FIRST_SECONDS
    )  # from now on the fast methods are compiled
    skysieve.clear_cache()
    later = run()
    assert np.allclose(first.power, later.power, rtol=0, atol=tolerance, equal_nan=True)
    assert np.allclose(first.peaks.power, later.peaks.power, rtol=0, atol=tolerance, equal_nan=True)
    if np.isfinite(later.peaks.power).any():
        assert np.allclose(first.period, later.period, rtol=1e-6, equal_nan=True)


@pytest.mark.slow
def test_first_answers_take_no_more_memory_than_is_given(cold):
    need = vectors.MODE_BYTES * FINE["nf"]
    for memory, method in ((4 * need, "finufft"), (need // 2, "direct")):
        assert lombscargle(*curve(150), memory=memory, threads=1, **FINE).method == method


def test_nothing_is_compiled_for_first_answers(tmp_path):
    code = """
import numpy as np
from skysieve.periodogram import lombscargle, lombscargle_multiband
t = np.sort(np.random.default_rng(1).uniform(0, 60, 30))
y, grid = np.sin(t), {"fmin": 0.05, "fmax": 5, "nf": 3000, "device": "cpu"}
print(lombscargle(t, y, **grid).method, lombscargle(t, y, nterms=3, **grid).method)
print(lombscargle_multiband(t, y, np.arange(30) % 2, **grid).method)
"""
    folder = tmp_path / "cache"
    environment = {**os.environ, "SKYSIEVE_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["direct"] * 3
    assert list(folder.rglob("*.bin")) == []


@pytest.mark.parametrize("how", [(), ("--resume",), ("--cluster", "serial")], ids=["whole", "resume", "cluster"])
def test_runs_that_can_be_continued_wait_for_compiled_code(how, cold, tmp_path):
    """A run that continues would find compiled code, and its other parts would have other last bits."""
    np.savetxt(tmp_path / "star.txt", np.transpose(curve(150)))
    words = ("period", tmp_path / "star.txt", "--min-period", "0.01", "--max-period", "20", "--device", "cpu", *how)
    done = CliRunner().invoke(app, [str(word) for word in (*words, "-o", tmp_path / "out.csv")])
    assert done.exit_code == 0, done.output
    assert (engine.first_answers.seconds > 0) == (how == ())
    assert FirstAnswers.allowed


def test_numbers_whose_halves_overflow_are_left_to_the_compiled_search(cold):
    t, y, dy = curve()
    found = lombscargle(1e155 * t, y, dy, fmin=2e-157, fmax=5e-155, nf=3000, device="cpu")
    assert engine.first_answers.seconds == 0
    assert np.isfinite(found.power).all()


def test_the_product_of_halves_is_exact():
    rng = np.random.default_rng(5)
    for a, b in rng.uniform(-1e6, 1e6, (200, 2)):
        product = a * b
        assert Fraction(vectors._fma(a, b, -product)) == Fraction(a) * Fraction(b) - Fraction(product)


def test_candidates_are_found_and_chosen_as_by_the_kernels():
    """In samples with equal neighbours, infinite ones and NaN; in one block or several."""
    rng = np.random.default_rng(12)
    find, choose = interpreted(peaks.find_candidates), interpreted(peaks.choose)
    for trial in range(60):
        power = np.round(rng.standard_normal(700), 1 if trial % 2 else 6)
        power[rng.integers(0, 700, 20)] = rng.choice([np.nan, -np.inf, 3.0], 20)
        length = int(rng.choice([1, 64, 100, 700]))
        results = []
        for function in (find, vectors._find_candidates):
            state, found, count = np.empty(4), np.empty((8, 4)), 0
            interpreted(peaks.begin)(state)
            state[peaks.FLOOR] = -np.inf if trial % 3 else 0.5
            for base in range(0, 700, length):
                block = power[base : base + length]
                found, count = function(block, len(block), base, state, found, count)
            results.append((found[:count].copy(), state))
        for a, b in zip(*results, strict=True):
            assert np.array_equal(a, b, equal_nan=True)
        found = results[0][0]
        values = np.sort(rng.uniform(0, 1, 700)) if trial % 4 == 0 else np.empty(0)
        distance, share = (0.01, 0.5) if len(values) else (7.0, 0.3)
        for wanted, room in ((1, 1), (3, 20), (5, 400)):
            rows = [np.full(room, -1), np.full(room, -1)]
            taken = [
                f(found, len(found), values, distance, wanted, share, row)
                for f, row in zip((choose, vectors._choose), rows, strict=True)
            ]
            assert taken[0] == taken[1] > (0, 0)
            assert np.array_equal(rows[0][: taken[0][0]], rows[1][: taken[0][0]])
        assert vectors._choose(found, 0, values, distance, 3, share, np.empty(5, np.int64)) == (0, 0)


def test_large_jobs_and_chosen_methods_are_not_summed_one_by_one(cold):
    assert set(np.atleast_1d(lombscargle(*curve(), method="nufft", **GRID).method)) == {"nufft"}
    engine.first_answers.seconds = engine.FIRST_SECONDS - 1e-6
    assert set(np.atleast_1d(lombscargle(*curve(), **GRID).method)) == {"nufft"}


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("has_dy", [True, False])
def test_rows_are_prepared_by_numpy_as_by_the_kernel(has_dy, center):
    """The same rows, in the same order; sums are added in another order."""
    rng = np.random.default_rng(8)
    offsets = np.concatenate([[0], np.cumsum([*rng.integers(0, 5, 12), *rng.integers(30, 90, 24)])])
    n, objects = int(offsets[-1]), len(offsets) - 1
    t, y, dy = rng.uniform(0, 50, n), rng.standard_normal(n), rng.uniform(0.1, 1, n)
    parts = [slice(*offsets[i : i + 2]) for i in range(objects)]
    for own in parts[::2]:
        t[own] = np.sort(t[own])
    for own in parts[1::4]:
        t[own] = np.round(t[own])  # equal times
    y[parts[14]], t[parts[15]], y[parts[16]] = 2.0, 3.0, 0.0
    y[parts[17]] *= 1e200
    y[parts[18]] += 1e9
    t[parts[19]] = rng.choice([-1e308, 1e308], len(t[parts[19]]))
    dy[parts[20]] *= np.geomspace(1, 1e300, len(t[parts[20]]))
    dy[parts[21]][3] = -1.0
    dy[parts[22]][1:] = 1e200  # only one row has weight
    t[parts[23]] *= 1e-300
    for bad in (parts[24], parts[25], parts[26]):
        t[bad][3], y[bad][5], dy[bad][7] = np.nan, np.inf, np.nan

    def run(function):
        out = [np.zeros(n) for _ in range(3)]
        each = [np.zeros(objects, np.int64), np.zeros(objects), np.zeros(objects), np.zeros(objects, np.uint8)]
        more = [np.ones(objects), np.ones(objects)]
        rows = read_only(t, y, dy if has_dy else t[:0])
        function(*rows, has_dy, *read_only(offsets), 0, objects, 3, center, *out, *each, *more)
        good = np.repeat(each[3] == prepare.OK, np.diff(offsets))
        return [a * good for a in out], each, more

    (kernel, each, more), (numpy, same, close) = run(prepare.prepare), run(interpreted(prepare.prepare))
    for a, b in zip(each, same, strict=True):
        assert a.tobytes() == b.tobytes()
    assert kernel[0].tobytes() == numpy[0].tobytes()
    assert len(np.unique(each[3])) >= 5 + has_dy
    for a, b in zip([*kernel[1:], *more], [*numpy[1:], *close], strict=True):
        assert np.allclose(a, b, rtol=1e-13, atol=2e-14)

    def look(function):
        out = [np.zeros(objects, np.int64), np.zeros(objects), np.zeros(objects), np.zeros(objects, np.uint8)]
        function(t, y, dy if has_dy else t[:0], has_dy, offsets, 0, objects, 3, center, *out)
        return b"".join(a.tobytes() for a in out)

    assert look(prepare.scan) == look(interpreted(prepare.scan))


@pytest.mark.parametrize("n", [3, 40])
def test_powers_that_are_missing_are_computed_as_by_the_kernel(n):
    t, y, dy = curve(n)
    w = dy**-2 / np.sum(dy**-2)
    wy = w * y
    found = []
    for function in (interpreted(search.replace_missing), vectors._replace_missing):
        power = np.where(np.arange(900) % 7 < 4, np.nan, 2.0)
        work = SimpleNamespace(c=np.empty(n), s=np.empty(n))
        function(power, 800, 50, 0.01, 0.003, t - t[0], w, wy, n, True, work)
        found.append(power)
    assert np.isnan(found[0][800:]).any()
    assert (found[0][4:7] == 2).all()
    assert np.allclose(*found, rtol=0, atol=1e-12, equal_nan=True)


def test_objects_of_few_points_count_for_what_they_take(cold):
    """Most of their powers are computed one by one, and many of their maxima are refined."""
    n = np.repeat([3, 5, 7, 8, 40], 100)
    seconds = vectors.first(n, np.full(500, 30_000), 100_000)[1]
    assert seconds[:400].min() > 5 * seconds[-1]


def test_low_candidates_are_dropped_as_by_the_kernel():
    rng = np.random.default_rng(2)
    for trial in range(40):
        found = np.zeros((400, 4))
        found[:, 0], found[:, 2] = np.arange(400), np.round(rng.exponential(size=400), 2)
        outcomes = []
        for function in (interpreted(peaks.drop_low).__wrapped__, vectors._drop_low):
            rows, state, chosen = found.copy(), np.zeros(4), np.zeros(5 + trial, np.int64)
            state[peaks.FLOOR] = -np.inf
            kept = function(rows, 300 + trial, np.empty(0), 3.0, 1 + trial % 5, 0.4, chosen, state)
            outcomes.append((kept, rows[:kept].tobytes(), state.tobytes()))
        assert outcomes[0] == outcomes[1]


def test_candidates_that_are_dropped_would_not_be_chosen():
    """Those that come in order of frequency are dropped again and again, as the floor rises."""
    rng = np.random.default_rng(3)
    for trial in range(60):
        found = np.zeros((300, 4))
        found[:, 0] = np.cumsum(rng.integers(1, 4, 300))
        found[:, 2] = np.round(rng.exponential(size=300), 1 + trial % 3)
        wanted, share, distance = 1 + trial % 6, rng.choice([0.0, 0.4, 0.9]), float(rng.integers(1, 40))
        chosen, state = np.zeros(wanted + 1 + trial % 9, np.int64), np.zeros(4)
        state[peaks.FLOOR] = -np.inf
        rest = found[:0]
        for row in found:
            if row[2] >= state[peaks.FLOOR]:
                rest = np.vstack([rest, row])
                rest = rest[: vectors._drop_low(rest, len(rest), np.empty(0), distance, wanted, share, chosen, state)]
        results = []
        for rows in (found, rest):
            taken, first = vectors._choose(rows, len(rows), np.empty(0), distance, wanted, share, chosen)
            results.append((first, rows[chosen[:taken], 0].tolist()))
        assert results[0] == results[1]


def test_a_job_in_parts_is_allowed_as_a_whole(cold):
    """Of the same light curve once as half and once as a tenth of a job."""
    lombscargle(*curve(), **GRID)
    engine.first_answers.seconds = engine.FIRST_SECONDS - 3 * engine.first_answers.seconds
    for objects, left, method in ((1, 10, "nufft"), (1, 2, "direct")):
        skysieve.clear_cache()
        with part_of_a_job(objects, left):
            assert lombscargle(*curve(), **GRID).method == method
    assert job_share() == 1


def test_the_search_is_compiled_beside_after_a_job(cold, monkeypatch):
    """Not while parts of the job are left, nor after little work."""
    given = []
    monkeypatch.setattr(engine, "compile_beside", lambda *what: given.append(what))
    lombscargle(*curve(), **GRID)
    assert given == []
    monkeypatch.setattr(engine, "BESIDE_SECONDS", 0.0)
    with part_of_a_job(1, 2):
        lombscargle(*curve(), **GRID)
    assert given == []
    lombscargle(*curve(), dtype="float32", **GRID)
    assert given == [("from skysieve.periodogram.command.warm_up import later; later('float32')", search.search)]


@pytest.mark.slow
def test_what_is_compiled_beside_serves_the_next_process(tmp_path):
    environment = {**os.environ, "SKYSIEVE_CACHE_DIR": str(tmp_path)}
    ask = """
from skysieve.core.cpu import jit
from skysieve.periodogram.cpu import prepare, search
print(*(jit.is_ready(f) for f in (prepare.prepare, search.search, search.conclude)))
"""
    for code in (engine.LATER.format("float64"), ask):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3


def test_grids_of_nearly_the_same_length_share_a_plan(cold):
    """Their powers are those of plans of their own."""
    lengths = 99_000, 99_997, 100_001
    assert len({finufft.planned(nf) for nf in lengths}) == 1
    for nf in lengths:
        found = lombscargle(*curve(150), **{**FINE, "nf": nf})
        assert found.method == "finufft"
        other = lombscargle(*curve(150), method="direct", **{**FINE, "nf": nf})
        assert np.allclose(found.power, other.power, rtol=0, atol=1e-9)
        skysieve.clear_cache()


def test_peaks_of_both_types_are_refined_by_the_same_code():
    counts = []
    for dtype in ("float64", "float32"):
        lombscargle(*curve(), dtype=dtype, **GRID)
        lombscargle(*curve(), nterms=4, dtype=dtype, return_power=False, **GRID)
        counts.append([len(kernel.signatures) for kernel in (search.conclude, fourier_search.conclude)])
    assert counts[0] == counts[1]
