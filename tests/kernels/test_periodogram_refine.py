"""Peaks of the grid refined to maxima of the exact periodogram: against brute force in NumPy, on the shim and a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.periodogram.contract import Grids
from skysieve.periodogram.cpu import engine as cpu
from skysieve.periodogram.cuda import engine as cuda
from tests.gpu.batches import FlatSource, bands_engine, batch, default_spec, in_bands, run, shared_grid
from tests.kernels.devices import launched, on_gpu, one_order
from tests.truth.peaks import Exact, check_peaks, check_refined

F32 = np.dtype(np.float32)


def engine(runtime, **spec):
    return cuda.Engine(default_spec(**spec), runtime=runtime)


def rows_of(source, i):
    rows = slice(*source.offsets[i : i + 2])
    return source.t[rows], source.y[rows], None if source.dy is None else source.dy[rows]


@pytest.mark.parametrize("dtype", [np.dtype(np.float64), F32])
@pytest.mark.parametrize("spec", [{}, {"fit_mean": False}, {"fit_mean": False, "center_data": False}])
def test_peaks_are_maxima(runtime, dtype, spec):
    e = engine(runtime, dtype=dtype, **spec)
    source, grids = batch([7, 25, 60], seed=5), shared_grid(0.16, 0.2 / 120, 600)
    out = run(e, source, grids, power=False)
    for i in range(3):
        truth = Exact(*rows_of(source, i), **spec)
        assert check_refined(truth, grids.frequency(), out, i) == 5


@one_order
@pytest.mark.parametrize("df", [0.5 / 120, 0.9 / 120, 0.002 / 120])
def test_coarse_and_fine_grids(runtime, df):
    """Two samples a peak, where windows are searched; and a grid so fine that neighbours are equal in float32."""
    nf = min(4000, int(1.5 / df))
    e, source = engine(runtime, dtype=F32, n_peaks=3), batch([30, 12], seed=6)
    grids = shared_grid(0.3, df, nf)
    out = run(e, source, grids, power=False)
    for i in range(2):
        assert check_refined(Exact(*rows_of(source, i)), grids.frequency(), out, i) >= 1


@pytest.mark.slow
@one_order
def test_the_highest_maximum_may_belong_to_a_lower_sample(runtime):
    """Two samples a peak: the best of many objects is that of brute force over the whole grid."""
    e, source = engine(runtime, n_peaks=1), batch([40] * 30, seed=8)
    grids = shared_grid(0.3, 0.5 / 119.4, 240)
    out = run(e, source, grids, power=False)
    missed = 0
    for i in range(30):
        truth = Exact(*rows_of(source, i))
        _, power = truth.highest(grids.frequency()[0], grids.frequency()[-1], 2401)
        missed += abs(out.peak_power[i, 0] - power) > 1e-9
    assert missed == 0


@one_order
def test_list_of_frequencies(runtime):
    rng = np.random.default_rng(3)
    values = np.sort(np.concatenate([rng.random(300) * 2 + 0.1, [2.5, 2.50001, 2.9]]))
    grids = Grids(values[:1], np.zeros(1), np.array([len(values)]), True, values)
    e, source = engine(runtime), batch([50, 9], seed=7)
    out = run(e, source, grids, power=False)
    for i in range(2):
        assert check_refined(Exact(*rows_of(source, i)), values, out, i) == 5


@pytest.mark.slow
def test_longer_series(runtime):
    """A block, or several blocks, refine a peak of a longer series; a warp does it for short ones."""
    source, grids = batch([1500, 30, 5000], seed=9), shared_grid(0.9, 0.3 / 119.4, 150)
    e = engine(runtime, n_peaks=2)
    out = run(e, source, grids, power=False)
    assert launched(runtime) >= {"ls_refine"}
    for i in range(3):
        assert check_refined(Exact(*rows_of(source, i)), grids.frequency(), out, i) == 2
    alone = run(e, batch([1500, 30, 5000], seed=9), grids)
    assert np.array_equal(alone.peak_power, out.peak_power)


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("lengths", [[511, 512, 513], [60, 20]])
def test_more_peaks_than_a_block_takes_at_once(runtime, lengths):
    """More than there are teams of lanes, and than shared memory holds; series as long as a block takes, and longer."""
    peaks = 10 if lengths[0] > 500 else 90
    e = engine(runtime, n_peaks=peaks)
    source, grids = batch(lengths, seed=17), shared_grid(0.3, 0.1 / 119.4, 300 if peaks == 10 else 2500)
    out = run(e, source, grids, power=False)
    for i in range(len(lengths)):
        assert check_refined(Exact(*rows_of(source, i)), grids.frequency(), out, i) == peaks


@one_order
def test_slow_variations(runtime):
    """Less than a cycle in the whole span: cosines and sines hardly differ from a line, and the sums are centred."""
    e, source = engine(runtime, n_peaks=3), batch([40, 300, 700], seed=18)
    rows = np.repeat([0, 1, 2], [40, 300, 700])
    source.y[:] += 400 * np.sin(2 * np.pi * (0.2 / 119.4) * source.t + rows)
    grids = shared_grid(0.02 / 119.4, 0.04 / 119.4, 100)
    out = run(e, source, grids, power=False)
    for i in range(3):
        truth = Exact(*rows_of(source, i))
        assert check_refined(truth, grids.frequency(), out, i) == 3
        assert np.nanmin(out.peak_frequency[i]) < 0.35 / 119.4


def test_centred_sums_of_a_neighbour_change_nothing(runtime):
    """A warp refines four peaks of short series; where one has less than a cycle, its sums alone are centred."""
    e, grids = engine(runtime), shared_grid(0.02 / 119.4, 0.1 / 119.4, 300)
    source = batch([40, 12, 50, 30], seed=19)
    before = run(e, source, grids, power=False)
    source.y[:40] += 400 * np.sin(2 * np.pi * (0.2 / 119.4) * source.t[:40])
    out = run(e, source, grids, power=False)
    assert out.peak_frequency[0].min() < 0.5 / 119.4 < out.peak_frequency[0].max()
    for i in range(4):
        assert check_refined(Exact(*rows_of(source, i)), grids.frequency(), out, i) == 5
    for name in ("peak_index", "peak_frequency", "peak_power", "peak_curvature"):
        assert np.array_equal(getattr(before, name)[1:], getattr(out, name)[1:], equal_nan=True)


@one_order
def test_a_climb_goes_uphill(runtime):
    """Far from its maximum, the slope's series has a root on the other side: the maximum is that beside 0.1548."""
    t = np.array([0.0, 68.716, 86.319, 92.217, 110.576, 120.0])
    y = np.array([15.025, 6.412, 12.12, 14.462, 16.643, 6.541])
    dy = np.array([0.819, 0.747, 1.33, 1.136, 0.868, 0.922])
    grids = shared_grid(0.05, 0.5 / 120, 288)
    out = run(engine(runtime, fit_mean=False), FlatSource(t, y, dy, np.array([0, 6])), grids, power=False)
    assert check_refined(Exact(t, y, dy, fit_mean=False), grids.frequency(), out, 0) == 5
    assert abs(out.peak_frequency[0, 0] - 0.15481385) < 1e-7


@one_order
def test_a_climb_begins_at_the_sample_if_the_parabola_misses_the_maximum(runtime):
    """The power falls to half within a third of a step; a climb from the vertex would end at the neighbour's 0.463."""
    t = np.array([0.0, 4.195278814, 17.746576337, 27.048940188, 32.691027511])
    y = np.array([15.378627285, 15.397961697, 14.89853011, 14.942568823, 15.197015129])
    dy = np.array([0.062954471, 0.082402497, 0.171606105, 0.100146874, 0.166415094])
    grids = shared_grid(0.02, 1.98 / 299, 300)
    out = run(engine(runtime), FlatSource(t, y, dy, np.array([0, 5])), grids, power=False)
    assert check_refined(Exact(t, y, dy), grids.frequency(), out, 0) == 5
    assert abs(out.peak_frequency[0, 1] - 1.404029) < 1e-6


@pytest.mark.slow
@pytest.mark.few
@one_order
@pytest.mark.parametrize("seed", [23, 28])
def test_sharp_peaks_of_few_points(runtime, seed):
    """The power's series converge slowly: a climb must not end by one that has lost digits."""
    source, grids = batch([5, 6, 7, 8] * 20, seed=seed), shared_grid(0.16, 0.2 / 119.4, 300)
    out = run(engine(runtime, fit_mean=False), source, grids, power=False)
    for i in range(80):
        assert check_refined(Exact(*rows_of(source, i), fit_mean=False), grids.frequency(), out, i) >= 1


@pytest.mark.slow
@one_order
def test_very_long_series(runtime):
    source, grids = (
        batch([60_000, 50, 20_000] if on_gpu(runtime) else [17_000, 20], seed=10),
        shared_grid(1.0, 0.6 / 119.4, 40),
    )
    e = engine(runtime, n_peaks=1)
    out = run(e, source, grids, power=False)
    assert "ls_refine_long" in launched(runtime)
    for i in range(source.n_objects):
        assert check_refined(Exact(*rows_of(source, i)), grids.frequency(), out, i) == 1


@pytest.mark.few
@one_order
@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float64), F32])
@pytest.mark.parametrize("method", ["nufft", "direct"])
def test_every_normalisation_has_the_same_peaks(runtime, normalization, dtype, method):
    source, grids = batch([40, 11], seed=11), shared_grid(0.2, 0.1 / 120, 2500)
    plain, other = (
        run(engine(runtime, dtype=dtype, method=method, normalization=n), source, grids)
        for n in ("standard", normalization)
    )
    for name in ("peak_index", "peak_frequency", "peak_power", "peak_curvature"):
        assert np.array_equal(getattr(plain, name), getattr(other, name), equal_nan=True)
    assert not np.array_equal(plain.power, other.power)


@one_order
def test_chi_square_of_the_constant_is_returned(runtime):
    source = batch([40, 11], seed=12, offset=1e4)
    out = run(engine(runtime), source, shared_grid(0.2, 0.1 / 120, 300))
    for i in range(2):
        _, y, dy = rows_of(source, i)
        w = dy**-2.0
        mean = np.average(y, weights=w)
        np.testing.assert_allclose(out.weight[i], w.sum(), rtol=1e-12)
        np.testing.assert_allclose(out.mean_square[i], np.average((y - mean) ** 2, weights=w), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("terms", "dtype"), [(2, F32), (4, np.dtype(np.float64))])
def test_series_of_several_terms(runtime, terms, dtype):
    e = engine(runtime, nterms=terms, dtype=dtype, n_peaks=3)
    source, grids = batch([30, 60, 14], seed=13), shared_grid(0.2, 0.2 / 120, 400)
    out = run(e, source, grids, power=False)
    for i in range(3):
        assert check_refined(Exact(*rows_of(source, i), terms=terms), grids.frequency(), out, i) == 3


@one_order
def test_a_constant_has_no_maxima(runtime):
    out = run(engine(runtime, nterms=0), batch([30], seed=13), shared_grid(0.2, 0.2 / 120, 100), power=False)
    assert out.peak_power[0, 0] <= 1e-12
    assert np.isnan(out.peak_curvature).all()


def test_several_bands(runtime):
    source, grids = in_bands(batch([40, 90], seed=14), bands=5), shared_grid(0.2, 0.2 / 120, 300)
    e = bands_engine("offsets", 5, runtime, n_peaks=3)
    out = run(e, source, grids, power=False)
    for i in range(2):
        rows = slice(*source.offsets[i : i + 2])
        truth = Exact(*rows_of(source.source, i), band=source.codes[rows])
        assert check_refined(truth, grids.frequency(), out, i) == 3


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("model", ["offsets, 2 terms", "separate", "flexible, 2 terms"])
def test_other_models_of_bands(runtime, model):
    """Against the powers of a grid through each peak, which the backend computes."""
    source, grids = in_bands(batch([60, 90], seed=15), bands=3), shared_grid(0.2, 0.2 / 120, 200)
    e = bands_engine(model, 3, runtime, n_peaks=2)
    out = run(e, source, grids, power=False)
    for i in range(2):
        for r in range(2):
            if out.peak_index[i, r] == 199 and out.peak_frequency[i, r] == grids.frequency()[199]:
                assert np.isnan(out.peak_curvature[i, r])  # the power rises beyond the end of the grid
                continue
            step = 1e-3 / out.span[i]
            values = out.peak_frequency[i, r] + step * np.arange(-2, 3)
            near = run(e, source, Grids(values[:1], np.zeros(1), np.array([5]), True, values))
            p = near.power[5 * i : 5 * i + 5]
            assert abs(p[2] - out.peak_power[i, r]) <= 1e-9
            curvature = (16 * (p[1] + p[3]) - 30 * p[2] - p[0] - p[4]) / (12 * step**2)
            assert abs(curvature / out.peak_curvature[i, r] - 1) <= 1e-3
            slope = (8 * (p[3] - p[1]) - p[4] + p[0]) / (12 * step)
            assert abs(slope / curvature) * out.span[i] <= 1e-6


@pytest.mark.few
@one_order
@pytest.mark.parametrize("spec", [{}, {"nterms": 2}, {"normalization": "log", "dtype": F32}])
def test_by_the_judge_of_every_engine(runtime, spec):
    e = engine(runtime, n_peaks=2, **spec)
    source, grids = batch([14, 60], seed=16), shared_grid(0.16, 0.2 / 120, 300)
    assert check_peaks(e.spec, source, grids, run(e, source, grids, power=False)) == 4


@one_order
@pytest.mark.parametrize("seed", [9, 33, 35, 58])
def test_a_peak_is_exact_where_the_power_changes_fast(runtime, seed):
    """As tests/periodogram/test_peaks.py: peaks are narrower than 1e-5 of 1/T, and their columns nearly dependent."""
    rng = np.random.default_rng(seed)
    t, y = np.sort(np.r_[0.0, 1000.0, 500 + 1e-3 * rng.random(18)]), rng.normal(size=20)
    source = FlatSource(t, y, None, np.array([0, 20]))
    out = run(engine(runtime, n_peaks=1), source, shared_grid(1e-3, 0.049 / 199, 200), power=False)
    assert out.peak_power[0, 0] == pytest.approx(Exact(t, y)(out.peak_frequency[0, 0]), abs=1e-6)


@pytest.mark.parametrize(("points", "step", "nf"), [(16, 0.5, 3000), (30, 0.5, 2500), (12, 0.1, 9000)])
def test_few_points_have_many_high_peaks(runtime, points, step, nf):
    """Hundreds of further candidates, of which the highest are refined: the best peak is that of the CPU."""
    source, grids = batch([points, points + 1], seed=points), shared_grid(0.16, step / 119.4, nf)
    out = run(engine(runtime), source, grids, power=False)
    judge = cpu.Engine(default_spec())
    expected = run(judge, source, grids, power=False)
    judge.close()
    np.testing.assert_allclose(out.peak_power[:, 0], expected.peak_power[:, 0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(out.peak_power, expected.peak_power, rtol=0, atol=1e-8)
