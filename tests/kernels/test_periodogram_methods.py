"""The choice between GPU methods and the parts that chunks are divided into, for random objects (no kernel runs)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from skysieve.periodogram.contract import METHODS, Grids, Spec
from skysieve.periodogram.cuda.bands.methods import BandsMethods
from skysieve.periodogram.cuda.cost import DEFAULTS
from skysieve.periodogram.cuda.fourier.methods import SeriesMethods
from skysieve.periodogram.cuda.methods import SMALLEST_NUFFT, Methods, choose_among
from skysieve.periodogram.cuda.parts import dealt
from skysieve.periodogram.cuda.samples.layout import SampleLayout
from skysieve.periodogram.cuda.samples.stretches import cut, stretches
from skysieve.periodogram.cuda.sinusoid.methods import LONG, Samples, SinusoidMethods, nufft_methods
from skysieve.periodogram.multiband import _model
from tests.gpu.batches import BAND_MODELS

CARDS = ((132, 232_448, True), (20, 64 << 10, False))
"""Multiprocessors, shared memory of a block, and whether float64 matrix units are worth using."""
MODELS = ("one term", "three terms", "offsets", "flexible")


def methods_of(model: str, spec: Spec, grids: Grids, card: tuple[int, int, bool]) -> Methods:
    kind: type[Methods] = SinusoidMethods
    if model == "three terms":
        kind, spec = SeriesMethods, replace(spec, nterms=3)
    elif model != "one term":
        kind, spec = BandsMethods, replace(spec, model=_model(*BAND_MODELS[model], 3, None)[0])
    return kind(spec, grids, DEFAULTS[spec.dtype], *card)


def random_objects(rng: Any, n: int) -> tuple[Any, Any, Any]:
    """Numbers of points, of frequencies, and ``df * span``."""
    nf = np.maximum(1, 10 ** rng.uniform(0.5, 5.5, n)).astype(np.int64)
    return (10 ** rng.uniform(0.5, 3.6, n)).astype(np.int64), nf, 10 ** rng.uniform(-4, 0.5, n)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("method", ["auto", "nufft", "direct"])
@pytest.mark.parametrize("model", MODELS)
def test_every_object_is_in_one_part_that_serves_it(model, method, dtype):
    rng = np.random.default_rng(7)
    for card in CARDS:
        for _ in range(8):
            lengths, nf, cycles = random_objects(rng, 30)
            grids = Grids(rng.random(30), cycles / 120, nf, False)
            spec = Spec(method=method, dtype=np.dtype(dtype), n_peaks=5, return_power=False)
            parts, limits = methods_of(model, spec, grids, card).deal(slice(0, 30), lengths, cycles)
            assert sorted(i for part in parts for i in part.order) == list(range(30))
            assert ((limits["least"] < cycles) & (cycles <= limits["most"])).all()
            assert ((limits["few"] <= lengths) & (lengths <= limits["many"])).all()
            for part in parts:
                assert (cycles[part.order] <= part.method.cycles).all()
                assert (np.diff(lengths[part.order]) <= 0).all()
                assert part.method.direct or (nf[part.order] >= SMALLEST_NUFFT).all()
                assert METHODS[part.method.code] == ("direct" if part.method.direct else "nufft")
                assert method != "direct" or part.method.direct
                assert 1 <= part.cap <= nf[part.order].max() // 2 + 1
                assert part.tasks is not None
                counts = np.bincount(part.tasks[:, 0], minlength=30)[part.order]
                assert counts.max() == part.stretches
                assert (counts >= 1).all()
                stretch = limits["stretch"][part.order]
                assert (stretch == stretch[0]).all()
                assert part.edges == (-(-nf[part.order].max() // stretch[0]) if stretch[0] else 0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS)
def test_the_method_follows_from_the_object_alone(model, dtype):
    """Alone on a shared grid, or with others that have grids of their own: also what the limits allow."""
    rng = np.random.default_rng(11)
    spec = Spec(dtype=np.dtype(dtype), n_peaks=2, return_power=False)
    for card in CARDS:
        lengths, nf, cycles = random_objects(rng, 40)
        together = methods_of(model, spec, Grids(rng.random(40), cycles / 120, nf, False), card)
        parts, limits = together.deal(slice(0, 40), lengths, cycles)
        of_object = {int(i): part.method for part in parts for i in part.order}
        for i in range(40):
            own = Grids(np.array([0.1]), cycles[i : i + 1] / 120, nf[i : i + 1], True)
            alone = methods_of(model, spec, own, card)
            (part,), limit = alone.deal(slice(0, 1), lengths[i : i + 1], cycles[i : i + 1])
            assert part.method == of_object[i]
            assert [limit[k][0] for k in ("least", "most", "few", "many", "circle", "window")] == [
                limits[k][i] for k in ("least", "most", "few", "many", "circle", "window")
            ]
            for other in {max(1, int(limit["few"][0])), min(int(limit["many"][0]), 4 * LONG)}:
                (again,), _ = alone.deal(slice(0, 1), np.array([other]), cycles[i : i + 1])
                assert again.method == part.method


@pytest.mark.parametrize("method", ["nufft", "direct"])
@pytest.mark.parametrize("model", MODELS)
def test_an_object_needs_no_more_than_is_planned_for_it(model, method):
    """Room for its candidates and edges, whatever its number of points; on grids and lists of frequencies."""
    rng = np.random.default_rng(3)
    values = np.sort(rng.random(30_000))
    spec, one = Spec(n_peaks=5, method=method), np.ones(1, np.int64)
    for card in CARDS:
        for _, nf, cycles in (random_objects(rng, 1) for _ in range(25)):
            for grids in (
                Grids(np.array([0.1]), cycles / 120, nf, True),
                Grids(values[:1], np.zeros(1), np.array([len(values)]), True, values),
            ):
                methods = methods_of(model, spec, grids, card)
                span = cycles if grids.values is None else np.zeros(1)
                planned = methods.object_bytes(int(grids.nf[0]), float(span[0]))
                for points in (10, LONG, LONG + 1):
                    (part,), _ = methods.deal(slice(0, 1), points * one, span)
                    assert planned >= 32 * part.cap + 16 * part.edges


def test_expected_time_and_methods_to_compile():
    grids = Grids(np.array([0.1]), np.array([0.1 / 120]), np.array([20_000]), True)
    methods = methods_of("one term", Spec(n_peaks=5), grids, CARDS[0])
    method = methods.typical(20_000, 0.1, 200)
    assert not method.direct
    assert methods.typical(20_000, 0.1, 5).direct
    one, two = (methods.expected(method, 1000, 20_000, 200, gpus)["seconds"] for gpus in (1, 2))
    assert 0 < two < one
    ((wanted, per_block),) = methods.most_used(20_000, 0.1, 200, 1000)
    assert wanted == method
    assert per_block == methods.expected(method, 1000, 20_000, 200, 1)["combs_a_block"]
    assert methods.most_used(20, 0.1, 200, 1000) == []


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_grid_for_all_chooses_as_a_grid_for_each(dtype):
    rng, known = np.random.default_rng(9), nufft_methods(np.dtype(dtype), 227 * 1024, True)
    for nf in rng.integers(64, 200_000, 50):
        cycles = 10 ** rng.uniform(-5, 1, 40)
        shared = choose_among(known, np.array([nf]), cycles)
        assert np.array_equal(shared, choose_among(known, np.full(40, nf), cycles))
    assert len(np.unique(shared)) > 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("method", ["auto", "nufft", "direct"])
def test_objects_of_one_grid_are_dealt_kind_by_kind_as_one_by_one(method, dtype):
    """Also where their classes of ``df * span`` differ, with long ones and empty ones."""
    rng, kinds = np.random.default_rng(4), set()
    for trial in range(60):
        n, nf = int(rng.integers(1, 60)), int(10 ** rng.uniform(0.5, 6.5))
        lengths = random_objects(rng, n)[0] * (rng.random(n) > 0.05)
        cycles = 10 ** rng.uniform(-4, 0.3) * rng.uniform(0.3, 1, n) ** (trial % 3) * (rng.random(n) > 0.05)
        grids = Grids(np.array([0.1]), np.array([1e-3]), np.array([nf]), True)
        spec = Spec(method=method, dtype=np.dtype(dtype), n_peaks=5)
        methods = methods_of("one term", spec, grids, CARDS[trial % 2])
        given = (slice(0, n), lengths, cycles, trial % 7 == 0)
        parts, limits = methods.deal(*given)
        expected, bounds = Methods.deal(methods, *given)
        assert np.array_equal(limits, bounds)
        for part, other in zip(parts, expected, strict=True):
            assert np.array_equal(part.order, other.order)
            assert replace(part, order=other.order) == other
        kinds.add(len(parts))
    assert max(kinds) >= (1 if method == "direct" else 3)


@pytest.mark.slow
def test_samples_of_one_grid_lie_as_those_of_many():
    """One grid for all objects, computed with Python's numbers, against the same grid for each."""
    rng = np.random.default_rng(5)
    known = [nufft_methods(np.dtype(dtype), 227 * 1024, True) for dtype in ("float64", "float32")]
    layouts = [method.layout for methods in known for method in methods if isinstance(method, Samples)]
    layouts += [SampleLayout(terms, combs, 4) for terms in (1, 2, 3, 8, 12) for combs in (1, 4, 16)]
    divided = 0
    for _ in range(400):
        layout, members = layouts[rng.integers(len(layouts))], int(rng.integers(2, 60))
        f0, df = 10 ** rng.uniform((-5, -6), (3, 0))
        grid = np.array([f0]), np.array([df]), np.array([int(10 ** rng.uniform(0, 5.5))])
        each = tuple(np.repeat(a, members) for a in grid)
        one, many = stretches(layout, *grid), stretches(layout, *each)
        for name in ("lead", "at", "bands"):
            assert getattr(one, name).dtype == getattr(many, name).dtype
            assert np.array_equal(np.repeat(getattr(one, name), members, axis=0), getattr(many, name))
        size = int(10 ** rng.uniform(4, 9))
        shared = cut(layout, *grid, members, True, 1, size, turns=1)
        own = cut(layout, *each, members, False, 1, size, turns=1)
        assert shared.groups == own.groups
        assert np.array_equal(shared.place, own.place)
        divided += len(np.unique(one.at)) > 1
    assert 20 < divided < 380


def test_longest_objects_come_first():
    """A stable order in each part, for numbers of points below and above 16 bits; a kind may be empty."""
    rng = np.random.default_rng(8)
    for most in (0, 3, 1000, 65_535, 65_536, 10**7):
        lengths = np.append(rng.integers(0, most + 1, 200), most)
        for kind, parts in ((np.zeros(201, np.int64), [0]), (rng.choice([0, 2, 3], 201), [1, 0, 0, 1])):
            orders = dealt(lengths, kind, np.bincount(kind).tolist(), parts)
            assert len(orders) == max(parts) + 1
            for i, order in enumerate(orders):
                some = np.flatnonzero(np.array(parts)[kind] == i).tolist()
                assert order.tolist() == sorted(some, key=lambda j: -lengths[j])
