"""Series of several terms on the host shim: ``fourier/exact.cu`` and its launches against the CPU's exact fits.

1e-8 is what is asked of powers from the combs; exact fits agree to 1e-9 (with pairs of float64 against Gram-Schmidt).
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
from tests.kernels.shim import run_sanitized, shim_runtime

STEP = 1 / 1200
F32 = np.dtype(np.float32)


def engine(order="forwards", **spec):
    return cuda.Engine(default_spec(**spec), runtime=shim_runtime(order))


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


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize("nterms", [2, 4])
def test_combs(nterms, order):
    source, grids = batch([40, 90, 25], errors=False), shared_grid(0.16, STEP, 900)
    e = engine(order, nterms=nterms)
    assert e.describe(source, grids)["layout"].combs == 8
    out = check(e, source, grids, 1e-8)
    assert (out.method == 2).all()
    kernels = {"chi2_points", "chi2_samples", "chi2_taps", "chi2_powers", "chi2_refit", "chi2_exact"}
    assert {launch[0] for launch in e.workers[0].runtime.launches} >= kernels


@pytest.mark.parametrize(("step", "combs"), [(0.5 / 120, 1), (0.02 / 120, 32)])
def test_coarse_and_fine_grids(step, combs):
    source, grids = batch([60], errors=False), shared_grid(0.16, step, 700)
    e = engine(nterms=4)
    assert e.describe(source, grids)["layout"].combs == combs
    check(e, source, grids, 1e-8)


@pytest.mark.parametrize("shared", [True, False])
def test_narrow_bands_far_from_zero(shared):
    """The samples of the low harmonics are separate stretches; those of the others join."""
    source, some = batch([45, 25], errors=False), np.arange(2.0)
    grids = shared_grid(20.0, STEP, 300) if shared else Grids(5 + some, STEP + 1e-5 * some, np.array([300, 410]), False)
    assert len(np.unique(stretches(layouts(4, 232_448)[8], *(a[:1] for a in (grids.f0, grids.df, grids.nf))).at)) > 1
    check(engine(nterms=3), source, grids, 1e-8)


@pytest.mark.parametrize(("f0", "nf"), [(0.16, 100_000), (20.0, 100_000), (20.0, 300)])
def test_memory_of_samples_is_asked_for(f0, nf):
    """In narrow bands every harmonic has samples of its own: several times those of one stretch."""
    source, grids = batch([45], errors=False), shared_grid(f0, STEP, nf)
    asked = engine(nterms=4).describe(source, grids)
    samples = 16 * cut(asked["layout"].layout, grids.f0, grids.df, grids.nf, 1, True, 132).most_samples
    assert samples + 24 * nf < asked["bytes"] < 1.5 * (samples + 48 * nf)


def test_models_without_errors_or_mean_and_other_numbers_of_terms():
    source, grids = batch([35], errors=False), shared_grid(0.16, STEP, 300)
    check(engine(nterms=3, fit_mean=False), source, grids, 1e-8)
    check(engine(nterms=2, fit_mean=False, center_data=False), source, grids, 1e-8)


@pytest.mark.parametrize("nterms", [0, 2])
def test_exact_fits(nterms):
    source, grids = batch([12, 40]), shared_grid(0.16, STEP, 300)
    out = check(engine(nterms=nterms, method="direct"), source, grids, 1e-9)
    assert (out.method == 1).all()


def test_several_columns_nearly_dependent_on_the_earlier_ones():
    """Nights and 25 points: no pivot is small enough to be suspicious by itself, but their product is."""
    whole = batch([40, 90, 500, 25], errors=False)
    rows = slice(*whole.offsets[3:5])
    source = FlatSource(whole.t[rows], whole.y[rows], None, np.array([0, 25]))
    check(engine(nterms=4), source, shared_grid(0.16 + 1000 * STEP, STEP, 16), 1e-11)


def test_series_of_hardly_more_points_than_columns():
    """Columns made orthogonal, by half a warp and by a warp; 8 terms: two lanes solve together."""
    check(engine(nterms=4), batch([9, 12, 17, 33], errors=False), shared_grid(0.16, STEP, 300), 1e-8)
    check(engine(nterms=8), batch([40, 90], errors=False), shared_grid(0.16, STEP, 150), 1e-8)


@pytest.mark.parametrize("many", [1, 2])
def test_best_peaks_of_grids_of_several_blocks(many, monkeypatch):
    """Powers below the floor are not read again; some of the best peaks lie where blocks and tops meet."""
    monkeypatch.setattr(fourier_worker, "MANY", many)
    source, grids = batch([40], errors=False), shared_grid(0.16, STEP, 4200)
    check(engine(nterms=2, n_peaks=12), source, grids, 1e-8)


def test_list_of_frequencies():
    values = np.sort(np.random.default_rng(0).random(300)) * 3 + 0.1
    check(engine(nterms=2), batch([50, 30]), Grids(values[:1], np.zeros(1), np.array([300]), True, values), 1e-9)


def test_a_step_that_no_comb_serves():
    source, grids = batch([30], errors=False), shared_grid(0.16, 3 / 120, 100)
    assert (check(engine(nterms=4), source, grids, 1e-9).method == 1).all()


@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
def test_normalizations(normalization):
    check(engine(nterms=2, normalization=normalization), batch([45]), shared_grid(0.16, STEP, 300), 1e-7)


def test_float32_stores_what_float64_computes():
    source, grids = batch([45], errors=False), shared_grid(0.16, STEP, 300)
    wide, narrow = (run(engine(nterms=2, dtype=dtype), source, grids) for dtype in (np.dtype(np.float64), F32))
    assert narrow.power.dtype == F32
    assert np.array_equal(narrow.power, wide.power.astype(F32))


def test_singular_frequencies_and_too_few_points():
    rng = np.random.default_rng(5)
    t = np.sort(rng.choice(200, 60, replace=False)).astype(float)
    few = np.sort(rng.random(4)) * 150
    source = FlatSource(np.append(t, few), rng.standard_normal(64), None, np.array([0, 60, 64]))
    frequency = np.array([0.11, 0.25, 0.3, 0.5, 0.63, 1.0, 1.17])
    grids = Grids(frequency[:1], np.zeros(1), np.array([7]), True, frequency)
    out = check(engine(nterms=2), source, grids, 1e-9)
    assert np.isnan(out.power[:7]).tolist() == [False, True, False, True, False, True, False]
    assert out.status.tolist() == [Status.OK, Status.SINGULAR]
    regular = check(engine(nterms=2), source, shared_grid(0.25, 0.0025, 200), 1e-8)
    assert np.isnan(regular.power[:200]).sum() == 2  # 1/4 and 1/2 a day


def test_unsorted_and_broken_rows_with_a_grid_each():
    source = batch([50, 30, 2, 60], errors=False)
    rng = np.random.default_rng(0)
    for i in range(4):
        a, b = source.offsets[i : i + 2]
        turn = rng.permutation(b - a)
        source.t[a:b], source.y[a:b] = source.t[a:b][turn], source.y[a:b][turn]
    source.t[3] = np.nan
    grids = Grids(0.1 + 0.01 * np.arange(4), STEP * np.linspace(1, 1.2, 4), np.array([400, 900, 300, 30]), False)
    out = check(engine(nterms=2), source, grids, 1e-8)
    assert out.status.tolist() == [0, 0, Status.TOO_FEW_POINTS, 0]
    assert out.n_used.tolist() == [49, 30, 2, 60]


def test_an_answer_does_not_depend_on_the_company():
    source, grids = batch([45, 80], errors=False), shared_grid(0.16, STEP, 500)
    e = engine(nterms=2)
    both = run(e, source, grids)
    for i in range(2):
        a, b = source.offsets[i : i + 2]
        one = run(engine(nterms=2), FlatSource(source.t[a:b], source.y[a:b], None, np.array([0, b - a])), grids)
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
    result = run_sanitized(__file__, "-k", "combs and forwards or exact or singular")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
