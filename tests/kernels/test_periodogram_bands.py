"""Several bands on the host shim and on a GPU: the kernels of ``bands`` against the CPU's exact fits.

Powers from the combs are required to 1e-8; exact fits agree to 1e-9 (with pairs of float64 against Gram-Schmidt).
"""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.errors import SkysieveError
from skysieve.periodogram.contract import Grids, Status
from skysieve.periodogram.cuda.bands.methods import comb_methods
from skysieve.periodogram.multiband import _model
from tests.gpu.batches import BAND_MODELS, FlatSource, bands_engine, batch, check_bands, in_bands, run, shared_grid
from tests.kernels.devices import launched, on_gpu, one_order
from tests.kernels.shim import run_sanitized

STEP = 1 / 1200
FEWER = [name for name in BAND_MODELS if name != "flexible, 2 terms"]
"""The shim compiles each model: the last adds nothing to the others, and runs on small data."""
F64, F32 = np.dtype(np.float64), np.dtype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("model", BAND_MODELS)
def test_combs(runtime, model):
    if on_gpu(runtime):
        source, nf, bands = batch([40, 90, 500, 25, 1300]), 3000, 5
    elif model in FEWER:
        source, nf, bands = batch([60, 300, 45]), 500, 3
    else:
        source, nf, bands = batch([60]), 100, 2
    out = check_bands(bands_engine(model, bands, runtime), in_bands(source, bands), shared_grid(0.16, STEP, nf), 1e-8)
    assert (out.method == 2).all()
    kernel = "bands_offset" if model == "offsets" else "bands_comb"
    assert launched(runtime) >= {"bands_rows", "bands_centre", kernel, "bands_exact"}


@pytest.mark.slow
@one_order
@pytest.mark.parametrize(("step", "combs", "fold"), [(0.05, 16, 1), (0.2, 8, 2), (0.4, 8, 4), (2.0, 1, 4)])
def test_coarse_and_fine_grids(runtime, step, combs, fold):
    n, nf, bands = ([60, 300], 4000, 6) if on_gpu(runtime) else ([60], 700, 5)
    source, grids = in_bands(batch(n, errors=False), bands), shared_grid(0.16, step / 120, nf)
    e = bands_engine("offsets", bands, runtime)
    if not on_gpu(runtime):  # layouts depend on the GPU
        layout = e.describe(source, grids)["layout"]
        assert (layout.combs, layout.fold) == (combs, fold)
    check_bands(e, source, grids, 1e-8)
    check_bands(bands_engine("separate", bands, runtime), source, grids, 1e-8)


@pytest.mark.few
@one_order
@pytest.mark.parametrize("model", FEWER)
def test_exact_fits(runtime, model):
    lengths, nf = ([14, 40, 333], 700) if on_gpu(runtime) else ([14, 40], 260)
    source, grids = in_bands(batch(lengths), 2), shared_grid(0.16, STEP, nf)
    out = check_bands(bands_engine(model, 2, runtime, method="direct"), source, grids, 1e-9)
    assert (out.method == 1).all()


@pytest.mark.slow
@one_order
def test_many_bands(runtime):
    """More bands than a GPU sums at once."""
    lengths, nf = ([300, 900], 900) if on_gpu(runtime) else ([300], 60)
    source = in_bands(batch(lengths), 40)
    check_bands(bands_engine("offsets", 40, runtime), source, shared_grid(0.16, STEP, nf), 1e-8)
    check_bands(bands_engine("separate", 40, runtime), source, shared_grid(0.16, STEP, nf // 3), 1e-8)


@one_order
def test_a_grid_too_coarse_for_combs_and_a_list(runtime):
    source = in_bands(batch([40], errors=False), 2)
    assert (
        check_bands(bands_engine("offsets", 2, runtime), source, shared_grid(0.16, 6 / 120, 100), 1e-9).method == 1
    ).all()
    values = np.sort(np.random.default_rng(0).random(200)) * 3 + 0.1
    check_bands(
        bands_engine("flexible", 2, runtime),
        source,
        Grids(values[:1], np.zeros(1), np.array([200]), True, values),
        1e-9,
    )


@one_order
@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
def test_normalizations(runtime, normalization):
    source, grids = in_bands(batch([45]), 2), shared_grid(0.16, STEP, 300)
    check_bands(bands_engine("offsets", 2, runtime, normalization=normalization), source, grids, 1e-7)


@one_order
def test_float32_stores_what_float64_computes(runtime):
    source, grids = in_bands(batch([45], errors=False), 2), shared_grid(0.16, STEP, 300)
    wide, narrow = (run(bands_engine("offsets", 2, runtime, dtype=dtype), source, grids) for dtype in (F64, F32))
    assert narrow.power.dtype == F32
    assert np.array_equal(narrow.power, wide.power.astype(F32))


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("model", ["offsets", "separate", "flexible"])
def test_objects_that_lack_bands_and_broken_rows(runtime, model):
    """A grid each; an object without the middle band, one of one band, short bands, unsorted rows, bad rows, errors."""
    source = batch([50, 30, 3, 60, 40, 40])
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, len(source.t))
    a = source.offsets
    codes[a[0] : a[1]] = 2 * (codes[a[0] : a[1]] > 0)
    codes[a[1] : a[2]] = 1
    codes[a[3] : a[4]][:3], codes[a[3] : a[4]][3:] = 0, 1 + (codes[a[3] : a[4]][3:] > 0)
    for i in range(6):
        turn = rng.permutation(a[i + 1] - a[i])
        for rows in (source.t, source.y, source.dy, codes):
            rows[a[i] : a[i + 1]] = rows[a[i] : a[i + 1]][turn]
    source.t[3], source.y[70] = np.nan, np.inf
    source.dy[a[4] + 5] = -1.0
    source.y[a[5] : a[6]] = codes[a[5] : a[6]]
    grids = Grids(
        0.1 + 0.01 * np.arange(6), STEP * np.linspace(1, 1.2, 6), np.array([400, 700, 300, 260, 90, 90]), False
    )
    out = check_bands(bands_engine(model, 3, runtime), in_bands(source, codes=codes), grids, 1e-8)
    assert out.status.tolist() == [0, 0, Status.TOO_FEW_POINTS, 0, Status.BAD_ERRORS, Status.CONSTANT_Y]


@one_order
def test_fewer_points_than_columns(runtime):
    source = in_bands(batch([6]), codes=np.array([0, 0, 1, 1, 2, 3]))
    out = check_bands(bands_engine("offsets", 4, runtime), source, shared_grid(0.16, STEP, 100), 1e-8)
    assert out.status.tolist() == [0]
    few = in_bands(batch([5]), codes=np.array([0, 0, 1, 2, 3]))
    assert run(bands_engine("offsets", 4, runtime), few, shared_grid(0.16, STEP, 100)).status.tolist() == [
        Status.SINGULAR
    ]


@one_order
def test_only_singular_frequencies_are_nan(runtime):
    rng = np.random.default_rng(5)
    t = np.sort(rng.choice(200, 60, replace=False)).astype(float)
    source = in_bands(FlatSource(t, rng.standard_normal(60), None, np.array([0, 60])), 2)
    out = check_bands(bands_engine("offsets", 2, runtime), source, shared_grid(0.5, 0.0025, 100), 1e-8)
    assert np.flatnonzero(np.isnan(out.power)).tolist() == [0]  # 1/2 a day: the sine is nought


@one_order
def test_large_and_tiny_values_in_bands_of_very_different_levels(runtime):
    source = batch([80])
    codes = np.random.default_rng(1).integers(0, 2, 80)
    wave = np.sin(2 * np.pi * source.t / 3.1)
    grids = shared_grid(0.16, STEP, 300)
    expected = run(
        bands_engine("offsets", 2, runtime),
        in_bands(FlatSource(source.t, wave, None, source.offsets), codes=codes),
        grids,
    )
    for scale, level in ((1e-280, 0.0), (1e300, 0.0), (1.0, 1e6)):
        y = scale * (wave + level * codes)
        other = check_bands(
            bands_engine("offsets", 2, runtime),
            in_bands(FlatSource(source.t, y, None, source.offsets), codes=codes),
            grids,
            1e-8,
        )
        np.testing.assert_allclose(other.power, expected.power, rtol=0, atol=1e-8)


@one_order
def test_an_answer_does_not_depend_on_the_other_objects(runtime):
    source, grids = in_bands(batch([45, 80]), 3), shared_grid(0.16, STEP, 500)
    for model in ("offsets", "flexible"):
        both = run(bands_engine(model, 3, runtime), source, grids)
        for i in range(2):
            a, b = source.offsets[i : i + 2]
            rows = (x[a:b] for x in (source.source.t, source.source.y, source.source.dy))
            one = in_bands(FlatSource(*rows, np.array([0, b - a])), codes=source.codes[a:b])
            alone = run(bands_engine(model, 3, runtime), one, grids)
            assert np.array_equal(alone.power, both.power[500 * i : 500 * (i + 1)])


@one_order
def test_other_rows_in_a_kept_plan(runtime):
    """Light curves of the same lengths, with other bands: the plan keeps the chunks between calls."""
    source, grids = batch([45, 80]), shared_grid(0.16, STEP, 300)
    e = bands_engine("offsets", 3, runtime)
    run(e, in_bands(source, 3), grids)
    other = in_bands(source, 3, seed=9)
    fresh = run(bands_engine("offsets", 3, runtime), other, grids)
    assert np.array_equal(run(e, other, grids).power, fresh.power)


@one_order
def test_more_bands_than_a_block_holds_are_refused(runtime):
    most = (runtime.device.shared_per_block - 1024) // 16
    source, grids = in_bands(batch([20]), 2), shared_grid(0.16, STEP, 10)
    with pytest.raises(SkysieveError, match=f"band: {most + 1} different bands .* at most {most} bands"):
        run(bands_engine("offsets", most + 1, runtime), source, grids)


def test_layouts_fit_the_shared_memory():
    for model in BAND_MODELS.values():
        for bands in (1, 5, 6, 40):
            for shared in (65_536, 101_376, 232_448):
                for layout in comb_methods(_model(*model, bands)[0], shared):
                    assert layout.shared_bytes <= shared - 1024
                    assert layout.together == 0 or layout.combs % layout.together == 0


@pytest.mark.slow
def test_sanitized():
    """The same under AddressSanitizer and UBSan, in a process of its own."""
    result = run_sanitized(
        __file__, "-k", "combs and forwards and (offsets or flexible) and not terms or lack_bands and separate"
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
