"""Series of several terms on the host shim and on a GPU: the kernels of ``fourier`` against the CPU's exact fits.

Powers from the combs are required to 1e-8; exact fits agree to 1e-9 (with pairs of float64 against Gram-Schmidt).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from skysieve.periodogram.contract import Grids, Status
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda.fourier import worker as fourier_worker
from skysieve.periodogram.cuda.fourier.methods import layouts
from skysieve.periodogram.cuda.samples.stretches import cut, stretches
from tests.gpu.batches import FlatSource, batch, default_spec, run, same_maxima, same_peaks, shared_grid
from tests.kernels.devices import launched, on_gpu, one_order
from tests.kernels.shim import run_sanitized

STEP = 1 / 1200
F32 = np.dtype(np.float32)


def engine(runtime, **spec):
    return cuda.Engine(default_spec(**spec), runtime=runtime)


def on_the_cpu(spec, source, grids):
    """The CPU's powers by direct sums."""
    from skysieve.periodogram.cpu import engine as cpu

    e = cpu.Engine(replace(spec, method="direct", dtype=np.dtype(np.float64)), threads=1)
    out = run(e, source, grids)
    e.close()
    return out


def check(e, source, grids, tolerance):
    """Powers and maxima against the CPU's, peaks alone against peaks with powers."""
    out, expected = run(e, source, grids), on_the_cpu(e.spec, source, grids)
    assert np.array_equal(out.status, expected.status)
    assert np.array_equal(np.isnan(out.power), np.isnan(expected.power))
    scale = np.maximum(1, np.nan_to_num(np.abs(expected.power)))
    assert np.nanmax(np.abs(out.power - expected.power) / scale, initial=0) <= tolerance
    same_maxima(out, expected)
    same_peaks(run(e, source, grids, power=False), out)
    return out


@pytest.mark.few
@pytest.mark.parametrize("nterms", [2, 4])
def test_combs(runtime, nterms):
    source, grids = batch([40, 90, 25], errors=False), shared_grid(0.16, STEP, 900)
    e = engine(runtime, nterms=nterms)
    assert e.describe(source, grids)["layout"].combs == 8
    out = check(e, source, grids, 1e-8)
    assert (out.method == 2).all()
    kernels = {"chi2_points", "chi2_samples", "chi2_taps", "chi2_powers", "chi2_refit", "chi2_exact"}
    assert launched(runtime) >= kernels


@pytest.mark.gpu
@pytest.mark.parametrize("runtime", ["gpu"], indirect=True)
@pytest.mark.parametrize("nterms", [2, 3, 4, 7, 8, 9])
def test_combs_of_long_series_and_many_terms(runtime, nterms):
    """Too slow for the shim: minutes at 9 terms."""
    few = 25 if nterms < 8 else 45  # 17 columns of 25 points reach a condition of 2e11
    source = batch([40, 90, 500, few, 1300], errors=False)
    out = check(engine(runtime, nterms=nterms), source, shared_grid(0.16, STEP, 3000), 1e-8)
    assert (out.method == 2).all()


@pytest.mark.gpu
@pytest.mark.parametrize("runtime", ["gpu"], indirect=True)
@pytest.mark.parametrize("cycles", [0.001, 0.01, 0.04, 0.25, 0.6])
def test_steps_of_long_series(runtime, cycles):
    check(engine(runtime, nterms=4), batch([60, 300], errors=False), shared_grid(0.16, cycles / 120, 4000), 1e-8)


@pytest.mark.slow
@one_order
@pytest.mark.parametrize(("step", "combs"), [(0.5 / 120, 1), (0.02 / 120, 32)])
def test_coarse_and_fine_grids(runtime, step, combs):
    source, grids = batch([60], errors=False), shared_grid(0.16, step, 700)
    e = engine(runtime, nterms=4)
    assert e.describe(source, grids)["layout"].combs == combs
    check(e, source, grids, 1e-8)


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("shared", [True, False])
def test_narrow_bands_far_from_zero(runtime, shared):
    """The low harmonics have separate stretches of samples; those of the others overlap."""
    source, some = batch([45, 25], errors=False), np.arange(2.0)
    grids = shared_grid(20.0, STEP, 300) if shared else Grids(5 + some, STEP + 1e-5 * some, np.array([300, 410]), False)
    assert len(np.unique(stretches(layouts(4, 232_448)[8], *(a[:1] for a in (grids.f0, grids.df, grids.nf))).at)) > 1
    check(engine(runtime, nterms=3), source, grids, 1e-8)
    if on_gpu(runtime) and shared:  # all warps of a block fit what is in doubt of long series
        check(engine(runtime, nterms=4), batch([60, 5000], errors=False), shared_grid(20.0, STEP, 600), 1e-8)
        rng = np.random.default_rng(5)
        t = np.sort(rng.choice(4000, 900, replace=False)) * 0.25
        source = FlatSource(t, rng.standard_normal(900), None, np.array([0, 900]))
        out = check(engine(runtime, nterms=2), source, shared_grid(0.875, 2.0**-13, 1500), 1e-8)
        assert np.isnan(out.power).sum() == 1  # 1 a day: sines of both terms vanish


@one_order
@pytest.mark.parametrize(("f0", "nf"), [(0.16, 100_000), (20.0, 100_000), (20.0, 300)])
def test_memory_of_samples_is_counted(runtime, f0, nf):
    """In narrow bands every harmonic has samples of its own: several times those of one stretch."""
    source, grids = batch([45], errors=False), shared_grid(f0, STEP, nf)
    plan = engine(runtime, nterms=4).describe(source, grids)
    samples = 16 * cut(plan["layout"].layout, grids.f0, grids.df, grids.nf, 1, True, 132).most_samples
    assert samples + 24 * nf < plan["bytes"] < 1.5 * (samples + 48 * nf)


@one_order
def test_models_without_errors_or_mean_and_other_numbers_of_terms(runtime):
    source, grids = batch([35], errors=False), shared_grid(0.16, STEP, 300)
    check(engine(runtime, nterms=3, fit_mean=False), source, grids, 1e-8)
    check(engine(runtime, nterms=2, fit_mean=False, center_data=False), source, grids, 1e-8)
    if on_gpu(runtime):
        check(engine(runtime, nterms=2), batch([120, 400]), shared_grid(0.16, STEP, 2000), 1e-8)
        check(engine(runtime, nterms=3, fit_mean=False), batch([120, 400]), shared_grid(0.16, STEP, 2000), 1e-8)
        some = np.arange(3)
        each = Grids(0.1 + 0.3 * some, STEP * (1 + 0.1 * some), np.array([4000, 900, 2500]), False)
        check(engine(runtime, nterms=3), batch([50, 300, 90]), each, 1e-8)


@pytest.mark.few
@one_order
@pytest.mark.parametrize("nterms", [0, 2, 10])
def test_exact_fits(runtime, nterms):
    lengths, nf = ([12, 40, 333], 700) if on_gpu(runtime) else ([12, 40], 300 if nterms < 10 else 20)
    out = check(engine(runtime, nterms=nterms, method="direct"), batch(lengths), shared_grid(0.16, STEP, nf), 1e-9)
    assert set(out.method[out.status == 0]) == {1}  # 12 points have no fit of 21 columns


@one_order
def test_several_columns_nearly_dependent_on_the_earlier_ones(runtime):
    """Nights and 25 points: no pivot is small enough to be suspicious by itself, but their product is."""
    whole = batch([40, 90, 500, 25], errors=False)
    rows = slice(*whole.offsets[3:5])
    source = FlatSource(whole.t[rows], whole.y[rows], None, np.array([0, 25]))
    check(engine(runtime, nterms=4), source, shared_grid(0.16 + 1000 * STEP, STEP, 16), 1e-11)


@pytest.mark.slow
@one_order
def test_series_of_hardly_more_points_than_columns(runtime):
    """Columns made orthogonal, by half a warp and by a warp; 8 terms: two lanes solve together."""
    check(engine(runtime, nterms=4), batch([9, 12, 17, 33], errors=False), shared_grid(0.16, STEP, 300), 1e-8)
    check(engine(runtime, nterms=8), batch([40, 90], errors=False), shared_grid(0.16, STEP, 150), 1e-8)


@pytest.mark.few
@one_order
@pytest.mark.parametrize("many", [1, 2])
def test_best_peaks_of_grids_of_several_blocks(runtime, many, monkeypatch):
    """Powers below the floor are not read again; some of the best peaks lie where blocks and tops meet."""
    monkeypatch.setattr(fourier_worker, "MANY", many)
    source, grids = batch([40], errors=False), shared_grid(0.16, STEP, 4200)
    check(engine(runtime, nterms=2, n_peaks=12), source, grids, 1e-8)


@pytest.mark.slow
@one_order
def test_list_of_frequencies(runtime):
    n, nterms = (900, 3) if on_gpu(runtime) else (300, 2)
    values = np.sort(np.random.default_rng(0).random(n)) * 3 + 0.1
    check(
        engine(runtime, nterms=nterms),
        batch([50, 30]),
        Grids(values[:1], np.zeros(1), np.array([n]), True, values),
        1e-9,
    )


@pytest.mark.slow
@one_order
def test_a_step_that_no_comb_serves(runtime):
    source, grids = batch([30], errors=False), shared_grid(0.16, 3 / 120, 100)
    assert (check(engine(runtime, nterms=4), source, grids, 1e-9).method == 1).all()


@one_order
@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
def test_normalizations(runtime, normalization):
    check(engine(runtime, nterms=2, normalization=normalization), batch([45, 90]), shared_grid(0.16, STEP, 300), 1e-7)


@one_order
def test_float32_stores_what_float64_computes(runtime):
    source, grids = batch([45], errors=False), shared_grid(0.16, STEP, 300)
    wide, narrow = (run(engine(runtime, nterms=2, dtype=dtype), source, grids) for dtype in (np.dtype(np.float64), F32))
    assert narrow.power.dtype == F32
    assert np.array_equal(narrow.power, wide.power.astype(F32))


@one_order
def test_singular_frequencies_and_too_few_points(runtime):
    rng = np.random.default_rng(5)
    t = np.sort(rng.choice(200, 60, replace=False)).astype(float)
    few = np.sort(rng.random(4)) * 150
    source = FlatSource(np.append(t, few), rng.standard_normal(64), None, np.array([0, 60, 64]))
    frequency = np.array([0.11, 0.25, 0.3, 0.5, 0.63, 1.0, 1.17])
    grids = Grids(frequency[:1], np.zeros(1), np.array([7]), True, frequency)
    out = check(engine(runtime, nterms=2), source, grids, 1e-9)
    assert np.isnan(out.power[:7]).tolist() == [False, True, False, True, False, True, False]
    assert out.status.tolist() == [Status.OK, Status.SINGULAR]
    regular = check(engine(runtime, nterms=2), source, shared_grid(0.25, 0.0025, 200), 1e-8)
    assert np.isnan(regular.power[:200]).sum() == 2  # 1/4 and 1/2 a day


@one_order
def test_unsorted_and_broken_rows_with_a_grid_each(runtime):
    source = batch([50, 30, 2, 60], errors=False)
    rng = np.random.default_rng(0)
    for i in range(4):
        a, b = source.offsets[i : i + 2]
        turn = rng.permutation(b - a)
        source.t[a:b], source.y[a:b] = source.t[a:b][turn], source.y[a:b][turn]
    source.t[3] = np.nan
    grids = Grids(0.1 + 0.01 * np.arange(4), STEP * np.linspace(1, 1.2, 4), np.array([400, 900, 300, 30]), False)
    out = check(engine(runtime, nterms=2), source, grids, 1e-8)
    assert out.status.tolist() == [0, 0, Status.TOO_FEW_POINTS, 0]
    assert out.n_used.tolist() == [49, 30, 2, 60]


@one_order
def test_an_answer_does_not_depend_on_the_other_objects(runtime):
    source, grids = batch([45, 80], errors=False), shared_grid(0.16, STEP, 500)
    e = engine(runtime, nterms=2)
    both = run(e, source, grids)
    for i in range(2):
        a, b = source.offsets[i : i + 2]
        one = run(
            engine(runtime, nterms=2), FlatSource(source.t[a:b], source.y[a:b], None, np.array([0, b - a])), grids
        )
        assert np.array_equal(one.power, both.power[500 * i : 500 * (i + 1)])


def test_layouts_fit_the_shared_memory():
    for terms in (2, 4, 9, 20):
        for shared in (65_536, 101_376, 232_448):
            for layout in layouts(terms, shared):
                assert layout.shared_bytes <= shared - 512
                assert layout.span == 64 * layout.tiles * layout.octets
    assert layouts(0, 232_448) == ()


@pytest.mark.slow
def test_sanitized():
    """The same under AddressSanitizer and UBSan, in a process of its own."""
    result = run_sanitized(__file__, "-k", "(combs or exact or singular) and forwards")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
