"""Several bands on the host shim: ``bands/bands.cu`` and its launches against the CPU's exact fits.

1e-8 is what is asked of powers from the combs; exact fits agree to 1e-9 (with pairs of float64 against Gram-Schmidt).
"""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.errors import SkysieveError
from skysieve.periodogram.contract import Grids, Status
from skysieve.periodogram.cuda.bands.methods import comb_methods
from skysieve.periodogram.multiband import _model
from tests.gpu.batches import BAND_MODELS, FlatSource, bands_engine, batch, check_bands, in_bands, run, shared_grid
from tests.kernels.shim import run_sanitized, shim_runtime

STEP = 1 / 1200
FEWER = [name for name in BAND_MODELS if name != "flexible, 2 terms"]
"""Each model is compiled: the last has nothing that the others have not, and runs on GPUs."""
F64, F32 = np.dtype(np.float64), np.dtype(np.float32)


def engine(model, bands, order="forwards", **spec):
    return bands_engine(model, bands, shim_runtime(order), **spec)


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize("model", FEWER)
def test_combs(model, order):
    source, grids = in_bands(batch([60, 300, 45]), 3), shared_grid(0.16, STEP, 500)
    e = engine(model, 3, order)
    out = check_bands(e, source, grids, 1e-8)
    assert (out.method == 2).all()
    names = {launch[0] for launch in e.workers[0].runtime.launches}
    assert names >= {
        "bands_rows",
        "bands_centre",
        "bands_offset" if model == "offsets" else "bands_comb",
        "bands_exact",
    }


@pytest.mark.parametrize(("step", "combs", "fold"), [(0.05, 16, 1), (0.2, 8, 2), (0.4, 8, 4), (2.0, 1, 4)])
def test_coarse_and_fine_grids(step, combs, fold):
    source, grids = in_bands(batch([60], errors=False), 5), shared_grid(0.16, step / 120, 700)
    e = engine("offsets", 5)
    layout = e.describe(source, grids)["layout"]
    assert (layout.combs, layout.fold) == (combs, fold)
    check_bands(e, source, grids, 1e-8)
    check_bands(engine("separate", 5), source, grids, 1e-8)


@pytest.mark.parametrize("model", FEWER)
def test_exact_fits(model):
    source, grids = in_bands(batch([14, 40]), 2), shared_grid(0.16, STEP, 260)
    out = check_bands(engine(model, 2, method="direct"), source, grids, 1e-9)
    assert (out.method == 1).all()


def test_a_grid_too_coarse_for_combs_and_a_list():
    source = in_bands(batch([40], errors=False), 2)
    assert (check_bands(engine("offsets", 2), source, shared_grid(0.16, 6 / 120, 100), 1e-9).method == 1).all()
    values = np.sort(np.random.default_rng(0).random(200)) * 3 + 0.1
    check_bands(engine("flexible", 2), source, Grids(values[:1], np.zeros(1), np.array([200]), True, values), 1e-9)


@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
def test_normalizations(normalization):
    source, grids = in_bands(batch([45]), 2), shared_grid(0.16, STEP, 300)
    check_bands(engine("offsets", 2, normalization=normalization), source, grids, 1e-7)


def test_float32_stores_what_float64_computes():
    source, grids = in_bands(batch([45], errors=False), 2), shared_grid(0.16, STEP, 300)
    wide, narrow = (run(engine("offsets", 2, dtype=dtype), source, grids) for dtype in (F64, F32))
    assert narrow.power.dtype == F32
    assert np.array_equal(narrow.power, wide.power.astype(F32))


@pytest.mark.parametrize("model", ["offsets", "separate", "flexible"])
def test_objects_that_lack_bands_and_broken_rows(model):
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
    out = check_bands(engine(model, 3), in_bands(source, codes=codes), grids, 1e-8)
    assert out.status.tolist() == [0, 0, Status.TOO_FEW_POINTS, 0, Status.BAD_ERRORS, Status.CONSTANT_Y]


def test_fewer_points_than_columns():
    source = in_bands(batch([6]), codes=np.array([0, 0, 1, 1, 2, 3]))
    out = check_bands(engine("offsets", 4), source, shared_grid(0.16, STEP, 100), 1e-8)
    assert out.status.tolist() == [0]
    few = in_bands(batch([5]), codes=np.array([0, 0, 1, 2, 3]))
    assert run(engine("offsets", 4), few, shared_grid(0.16, STEP, 100)).status.tolist() == [Status.SINGULAR]


def test_singular_frequencies_are_nan_alone():
    rng = np.random.default_rng(5)
    t = np.sort(rng.choice(200, 60, replace=False)).astype(float)
    source = in_bands(FlatSource(t, rng.standard_normal(60), None, np.array([0, 60])), 2)
    out = check_bands(engine("offsets", 2), source, shared_grid(0.5, 0.0025, 100), 1e-8)
    assert np.flatnonzero(np.isnan(out.power)).tolist() == [0]  # 1/2 a day: the sine is nought


def test_large_and_tiny_values_in_bands_of_very_different_levels():
    source = batch([80])
    codes = np.random.default_rng(1).integers(0, 2, 80)
    wave = np.sin(2 * np.pi * source.t / 3.1)
    grids = shared_grid(0.16, STEP, 300)
    expected = run(engine("offsets", 2), in_bands(FlatSource(source.t, wave, None, source.offsets), codes=codes), grids)
    for scale, level in ((1e-280, 0.0), (1e300, 0.0), (1.0, 1e6)):
        y = scale * (wave + level * codes)
        other = check_bands(
            engine("offsets", 2), in_bands(FlatSource(source.t, y, None, source.offsets), codes=codes), grids, 1e-8
        )
        np.testing.assert_allclose(other.power, expected.power, rtol=0, atol=1e-8)


def test_an_answer_does_not_depend_on_the_company():
    source, grids = in_bands(batch([45, 80]), 3), shared_grid(0.16, STEP, 500)
    for model in ("offsets", "flexible"):
        both = run(engine(model, 3), source, grids)
        for i in range(2):
            a, b = source.offsets[i : i + 2]
            rows = (x[a:b] for x in (source.source.t, source.source.y, source.source.dy))
            one = in_bands(FlatSource(*rows, np.array([0, b - a])), codes=source.codes[a:b])
            alone = run(engine(model, 3), one, grids)
            assert np.array_equal(alone.power, both.power[500 * i : 500 * (i + 1)])


def test_other_rows_in_a_kept_plan():
    """Light curves of the same lengths with other bands: only the chunks are remembered between calls."""
    source, grids = batch([45, 80]), shared_grid(0.16, STEP, 300)
    e = engine("offsets", 3)
    run(e, in_bands(source, 3), grids)
    other = in_bands(source, 3, seed=9)
    fresh = run(engine("offsets", 3), other, grids)
    assert np.array_equal(run(e, other, grids).power, fresh.power)


def test_more_bands_than_a_block_holds_are_refused():
    most = (shim_runtime().device.shared_per_block - 1024) // 16
    source, grids = in_bands(batch([20]), 2), shared_grid(0.16, STEP, 10)
    with pytest.raises(SkysieveError, match=f"band: {most + 1} different bands .* at most {most} bands"):
        run(engine("offsets", most + 1), source, grids)


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
