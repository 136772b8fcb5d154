"""The public functions: forms of input, grids, normalisations, plans; the CPU backend underneath."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.time import Time
from astropy.timeseries import LombScargle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.marks import slow
from tests.periodogram.standin import StandIn
from tests.truth import periodogram as reference

import skysieve
from skysieve.core import device
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError, SkysieveError
from skysieve.periodogram.api import Borrowing, LombScarglePlan, lombscargle
from skysieve.periodogram.contract import Status
from skysieve.periodogram.lightcurves import sources

GRID = {"fmin": 0.2, "fmax": 3.0, "nf": 600}
TOLERANCE = 1e-9
"""Default float64 of the project, N_t >= 10."""


def curve(n=60, seed=0, period=0.7, span=20.0):
    rng = np.random.default_rng([seed, n])
    t = rng.uniform(0, span, n)
    dy = rng.uniform(0.05, 0.2, n)
    return t, 10 + np.sin(2 * np.pi * t / period + seed) + dy * rng.standard_normal(n), dy


def frequencies(fmin=0.2, fmax=3.0, nf=600):
    return fmin + (fmax - fmin) / (nf - 1) * np.arange(nf)


def test_one_light_curve():
    t, y, dy = curve()
    result = lombscargle(t, y, dy, **GRID, n_peaks=4)
    truth = reference.power(t, y, dy, frequency=frequencies()).power
    assert result.power.shape == result.frequency.shape == (600,)
    np.testing.assert_allclose(result.power, truth.astype(float), atol=TOLERANCE)
    np.testing.assert_array_equal(result.frequency, frequencies())
    peaks = reference.peaks(
        frequencies(), truth, 4, np.ptp(t), lambda f: reference.power(t, y, dy, frequency=f, precision=np.float64).power
    )
    np.testing.assert_array_equal(result.peaks.index, peaks.index)
    np.testing.assert_allclose(result.peaks.frequency, peaks.frequency, rtol=1e-7)
    np.testing.assert_allclose(result.peaks.period, 1 / peaks.frequency, rtol=1e-7)
    np.testing.assert_allclose(result.peaks.power, peaks.power, rtol=0, atol=1e-12)
    assert result.period == pytest.approx(0.7, rel=5e-3)
    assert result.period == result.peaks.period[0] == 1 / result.best_frequency
    assert result.best_power == result.peaks.power[0]
    assert (result.status, result.n_used, result.n_dropped) == (Status.OK, 60, 0)
    assert result.span == np.ptp(t)
    assert isinstance(result.method, str)
    assert (result.device, result.dtype) == ("cpu", "float64")


@pytest.mark.parametrize("normalization", ["standard", "model", "log", "psd", "scargle"])
@pytest.mark.parametrize("errors", ["none", "number", "array"])
def test_normalisations(normalization, errors):
    t, y, dy = curve(seed=1)
    dy = {"none": None, "number": 0.1, "array": dy}[errors]
    result = lombscargle(t, y, dy, **GRID, normalization=normalization)
    truth = reference.power(t, y, dy, frequency=frequencies(), normalization=normalization).power.astype(float)
    np.testing.assert_allclose(result.power, truth, atol=TOLERANCE * max(1, truth.max()) ** 2)
    if normalization != "scargle":
        theirs = LombScargle(t, y, dy, normalization=normalization).power(frequencies(), method="slow")
        np.testing.assert_allclose(result.power, theirs, atol=TOLERANCE * max(1, truth.max()) ** 2)


def test_grid_of_the_data_is_that_of_astropy():
    t, y, dy = curve()
    result = lombscargle(t, y, dy)
    frequency, power = LombScargle(t, y, dy).autopower(method="slow")
    np.testing.assert_allclose(result.frequency, frequency, rtol=1e-15)
    np.testing.assert_allclose(result.power, power, atol=TOLERANCE)


def forms():
    """The same three objects on the same grid in every form of a batch."""
    curves = [curve(n, seed=n, period=0.5 + n / 100) for n in (30, 55, 41)]
    t, y, dy = ([c[k] for c in curves] for k in range(3))
    flat = [np.concatenate(x) for x in (t, y, dy)]
    offsets = np.array([0, 30, 85, 126])
    ids = np.repeat([5, 9, 2], [30, 55, 41])
    shuffle = np.argsort(np.concatenate([np.arange(n) * 100 / n for n in (30, 55, 41)]), kind="stable")
    mixed = [x[shuffle] for x in flat]
    return curves, {
        "lists": ((t, y, dy), {}),
        "offsets": (flat, {"offsets": offsets}),
        "ids": (flat, {"id": ids}),
        "mixed ids": (mixed, {"id": ids[shuffle]}),
        "table": (("a", "b", "c"), {"data": dict(zip("abcd", [*mixed, ids[shuffle]], strict=True)), "id": "d"}),
    }


@pytest.mark.parametrize("form", ["lists", "offsets", "ids", "mixed ids", "table"])
@pytest.mark.parametrize("options", [GRID, {"fmin": 0.2, "fmax": 3.0}, {}], ids=["shared", "per object", "automatic"])
def test_a_batch_is_its_light_curves(form, options):
    curves, given_as = forms()
    arguments, keywords = given_as[form]
    batch = lombscargle(*arguments, **keywords, **options, n_peaks=3)
    expected_ids = {"lists": None, "offsets": None}.get(form, [5, 9, 2])
    assert (None if batch.ids is None else sorted(batch.ids)) == (expected_ids and sorted(expected_ids))
    assert len(batch) == 3
    for i, (t, y, dy) in enumerate(curves):
        alone = lombscargle(t, y, dy, **options, n_peaks=3)
        one = batch[i] if batch.ids is None else batch.of([5, 9, 2][i])
        np.testing.assert_array_equal(one.frequency, alone.frequency)
        np.testing.assert_allclose(one.power, alone.power, atol=TOLERANCE)
        np.testing.assert_array_equal(one.peaks.index, alone.peaks.index)
        np.testing.assert_allclose(one.period, alone.period, rtol=1e-8)
        assert (one.n_used, one.span, one.status) == (len(t), np.ptp(t), Status.OK)


def test_many_on_the_same_times_share_their_grid():
    t, y, dy = curve()
    batch = lombscargle(t, np.stack([y, y[::-1]]), dy)
    assert batch.power.shape == (2, len(batch.frequency))
    for i, values in enumerate((y, y[::-1])):
        np.testing.assert_allclose(batch.power[i], lombscargle(t, values, dy).power, atol=TOLERANCE)
    each = lombscargle(t, np.stack([y, y]), grid="per-object")
    np.testing.assert_array_equal(each.frequency[1], batch.frequency)


def test_shared_grid_on_request():
    a, b = curve(40), curve(50, span=10.0)
    batch = lombscargle([a[0], b[0]], [a[1], b[1]], fmax=2.0, grid="shared")
    assert batch.power.shape == (2, len(batch.frequency))
    assert batch.frequency[1] - batch.frequency[0] == pytest.approx(1 / (5 * np.ptp(a[0])))


@pytest.mark.parametrize("policy", ["regular", "periods", "repeated"])
def test_listed_frequencies_keep_their_order(policy):
    t, y, dy = curve()
    listed = {
        "regular": np.linspace(0.3, 2.5, 300),
        "periods": 1 / np.linspace(0.4, 3.0, 300),
        "repeated": np.repeat(np.linspace(2.5, 0.3, 150), 2),
    }[policy]
    result = lombscargle(t, y, dy, frequency=listed, n_peaks=2)
    np.testing.assert_array_equal(result.frequency, listed)
    truth = reference.power(t, y, dy, frequency=listed).power.astype(float)
    np.testing.assert_allclose(result.power, truth, atol=TOLERANCE)
    assert result.peaks.index[0] == np.argmax(truth)
    assert abs(result.best_frequency - listed[result.peaks.index[0]]) < np.abs(np.diff(listed)).max()
    single = lombscargle(t, y, dy, frequency=listed[:1])
    np.testing.assert_allclose(single.power, truth[:1], atol=TOLERANCE)


def test_transforms_need_an_even_grid():
    t, y, _ = curve()
    with pytest.raises(ValueError, match=r"method='nufft' needs evenly spaced"):
        lombscargle(t, y, frequency=1 / np.linspace(0.4, 3, 50), method="nufft")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(8, 40), st.integers(0, 5))
def test_order_of_rows_and_rows_to_leave_out_change_nothing(seed, n, n_bad):
    t, y, dy = curve(n, seed=seed)
    rng = np.random.default_rng(seed)
    shuffle = rng.permutation(n + n_bad)
    hole = [np.nan, np.inf, -np.inf]
    worse = [np.append(x, rng.uniform(0, 1, n_bad))[shuffle] for x in (t, y, dy)]
    for row in np.flatnonzero(shuffle >= n):
        worse[rng.integers(3)][row] = hole[rng.integers(3)]
    before = [x.copy() for x in worse]
    clean, result = lombscargle(t, y, dy, **GRID), lombscargle(*worse, **GRID)
    np.testing.assert_allclose(result.power, clean.power, atol=TOLERANCE * 10)
    assert (result.n_used, result.n_dropped) == (n, n_bad)
    for x, copy in zip(worse, before, strict=True):
        np.testing.assert_array_equal(x, copy)


def test_units_go_through():
    t, y, dy = curve()
    bare = lombscargle(t, y, dy, **GRID, n_peaks=2)
    per_day = {"fmin": 0.2 / u.day, "fmax": 3 / u.day, "nf": 600}
    result = lombscargle(t * u.day, y * u.mag, dy * u.mag, **per_day, n_peaks=2)
    assert result.frequency.unit == result.peaks.frequency.unit == 1 / u.day
    assert result.period.unit == result.peaks.period.unit == result.span.unit == u.day
    assert result.power.unit == u.dimensionless_unscaled
    np.testing.assert_array_equal(result.power.value, bare.power)
    per_hour = {"fmin": 0.2 / 24 / u.hour, "fmax": 3 / 24 / u.hour, "nf": 600}
    hours = lombscargle(t * u.day, y * u.mag, dy * u.mag, **per_hour)
    np.testing.assert_allclose(hours.frequency.to_value(1 / u.day), bare.frequency, rtol=1e-12)
    dated = lombscargle(Time(2_460_000 + t, format="jd"), y, dy, **per_day)
    assert dated.period.to_value(u.day) == pytest.approx(bare.period, rel=1e-6)
    automatic = lombscargle(t * u.hour, y)
    assert automatic.frequency.unit == 1 / u.hour


@pytest.mark.parametrize(
    ("normalization", "errors", "unit"),
    [
        ("standard", True, u.dimensionless_unscaled),
        ("psd", False, u.mag**2),
        ("psd", True, u.dimensionless_unscaled),
        ("scargle", True, u.mag**2),
    ],
)
def test_unit_of_the_power(normalization, errors, unit):
    t, y, dy = curve()
    result = lombscargle(t, y * u.mag, dy * u.mag if errors else None, **GRID, normalization=normalization)
    assert result.power.unit == result.best_power.unit == unit


def test_peaks_without_powers():
    t, y, dy = curve()
    result = lombscargle([t, t], [y, y], [dy, dy], **GRID, return_power=False, n_peaks=5)
    full = lombscargle(t, y, dy, **GRID, n_peaks=5)
    assert result.power is None
    assert result.peaks.index.shape == (2, 5)
    np.testing.assert_array_equal(result.peaks.index[1], full.peaks.index)
    assert len(lombscargle(t, y, dy, **GRID).peaks) == 1


def test_float32():
    t, y, dy = curve()
    result = lombscargle(2_460_000 + t, y, dy, **GRID, dtype="float32")
    truth = reference.power(2_460_000 + t, y, dy, frequency=frequencies()).power.astype(float)
    if result.power.dtype == np.float32:
        np.testing.assert_allclose(result.power, truth, atol=2e-6)
    assert result.dtype == "float32"
    assert result.power.dtype == np.float32


def test_powers_into_an_array_of_the_user(tmp_path):
    t, y, dy = curve()
    expected = lombscargle(t, np.stack([y, y + 1]), dy, **GRID).power
    out = np.memmap(tmp_path / "power", np.float64, "w+", shape=(2, 600))
    result = lombscargle(t, np.stack([y, y + 1]), dy, **GRID, out=out)
    np.testing.assert_array_equal(out, expected)
    assert np.shares_memory(result.power, out)
    falling = np.empty(600)
    lombscargle(t, y, dy, frequency=frequencies()[::-1], out=falling)
    np.testing.assert_allclose(falling[::-1], expected[0], atol=TOLERANCE)
    ragged = np.empty(sum(len(f) for f in lombscargle([t, t[:30]], [y, y[:30]], fmax=1.0).frequency))
    assert np.shares_memory(lombscargle([t, t[:30]], [y, y[:30]], fmax=1.0, out=ragged).power.flat, ragged)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.empty(599), r"out is float64 of shape \(599,\); float64 of shape \(600,\) is expected"),
        (np.empty(600, np.float32), r"out is float32"),
        (np.empty(1200)[::2], r"C-contiguous"),
        ([0.0] * 600, r"out is list"),
    ],
)
def test_an_array_that_does_not_fit_the_powers(out, words):
    t, y, dy = curve()
    with pytest.raises(ValueError, match=words):
        lombscargle(t, y, dy, **GRID, out=out)


def test_out_without_powers():
    t, y, dy = curve()
    with pytest.raises(ValueError, match="return_power=False"):
        lombscargle(t, y, dy, **GRID, out=np.empty(600), return_power=False)


def test_powers_over_the_memory_are_refused_before_any_work(standin):
    y = np.broadcast_to(np.zeros(10), (10**8, 10))
    with pytest.raises(MemoryBudgetError, match=r"100000000 light curves .* \(return_power=False with n_peaks=5.* TiB"):
        lombscargle(np.arange(10.0), y, fmin=0.1, fmax=1, nf=10**6)
    assert standin["engine"].reads == []


@pytest.mark.parametrize(("n_peaks", "many"), [(10**12, 1), (10**9, 50_000)])
def test_peaks_over_the_memory_are_refused_before_any_work(standin, n_peaks, many):
    y = np.broadcast_to(np.arange(10.0), (many, 10))
    with pytest.raises(MemoryBudgetError, match=rf"n_peaks={n_peaks} of {many} light curves? needs .* [TP]iB"):
        lombscargle(np.arange(10.0), y, fmin=0.1, fmax=1, nf=100, n_peaks=n_peaks, return_power=False, grid="shared")
    assert standin["engine"].reads == []


def test_plan_serves_many_batches():
    first, second = curve(40), curve(52, seed=3)
    with LombScarglePlan(**GRID, n_peaks=2) as plan:
        for t, y, dy in (first, second):
            result, alone = plan.execute(t, y, dy), lombscargle(t, y, dy, **GRID, n_peaks=2)
            np.testing.assert_allclose(result.power, alone.power, atol=TOLERANCE)
            np.testing.assert_array_equal(result.peaks.index, alone.peaks.index)
        batch = plan.execute([first[0], second[0]], [first[1], second[1]])
        assert batch.power.shape == (2, 600)
        facts = plan.describe(first[0], first[1])
        assert (facts["n_objects"], facts["n_points"], facts["n_frequencies"]) == (1, 40, 600)
        assert facts["shared_grid"] is True
        assert plan.describe()["dtype"] == "float64"
        assert "standard" in repr(plan)
    assert "closed" in repr(plan)
    with pytest.raises(ValueError, match="the plan is closed"):
        plan.execute(*first)
    plan.close()


def test_plan_refuses_its_options_at_once():
    with pytest.raises(ValueError, match="nf=1"):
        LombScarglePlan(fmin=0.1, fmax=1, nf=1)
    with pytest.raises(ValueError, match=r"fmin=2 must be below fmax=1"):
        LombScarglePlan(fmin=2 / u.day, fmax=1 / u.day)


def test_progress():
    t, y, _ = curve()
    seen = []
    lombscargle([t] * 3, [y] * 3, **GRID, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, 3)
    assert seen == sorted(seen)
    with pytest.raises(TypeError, match="progress='yes'"):
        lombscargle(t, y, **GRID, progress="yes")


def test_progress_bar_goes_to_the_standard_error(capsys):
    t, y, _ = curve()
    lombscargle(t, y, **GRID, progress=True)
    assert capsys.readouterr().out == ""


def test_a_device_that_does_not_exist():
    t, y, _ = curve()
    with pytest.raises(ValueError, match=r"device='gpu'"):
        lombscargle(t, y, device="gpu")


def test_a_missing_gpu_is_reported(monkeypatch):
    monkeypatch.setattr(device, "cuda_problem", lambda: DeviceUnavailable("no CUDA driver was found", "install it"))
    t, y, _ = curve()
    with pytest.raises(DeviceUnavailable, match=r"no CUDA driver was found\. install it"):
        lombscargle(t, y, **GRID, device="cuda")
    assert lombscargle(t, y, **GRID, device="auto").device == "cpu"


def test_failure_of_the_device_is_an_error_for_one_object_and_a_status_in_a_batch(standin):
    t, y, _ = curve()
    standin["fail"] = (0,)
    with pytest.raises(SkysieveError, match="the device failed"):
        lombscargle(t, y, **GRID)
    batch = lombscargle([t, t], [y, y], **GRID)
    assert batch.status.tolist() == [Status.FAILED, Status.OK]
    assert np.isnan(batch.power[0]).all()
    assert np.isfinite(batch.power[1]).all()


def test_the_function_uses_its_engine_again(standin):
    """Also after data that were refused; options of their own have engines of their own."""
    t, y, _ = curve()
    lombscargle(t, y, **GRID)
    first = standin["engine"]
    with pytest.raises(ValueError, match="y is constant"):
        lombscargle(t, np.ones_like(y), **GRID)
    lombscargle([t, t[:30]], [y, y[:30]], **GRID)
    assert standin["engine"] is first
    lombscargle(t, y, **{**GRID, "n_peaks": 2})
    assert standin["engine"] is not first
    skysieve.clear_cache()
    assert first.closed


@pytest.mark.slow
def test_an_engine_of_all_cores_is_not_used_again_when_the_number_of_cores_changes(standin, monkeypatch):
    t, y, _ = curve()
    engines = []
    for cores, threads in ((2, None), (1, None), (2, None), (2, 3), (1, 3)):
        monkeypatch.setattr("skysieve.periodogram.api.usable_cores", lambda cores=cores: cores)
        with Borrowing(**GRID, threads=threads) as plan:
            plan.execute(t, y)
            engines.append(plan._engine._engine)
    assert engines[0] is engines[2]
    assert engines[1] is not engines[0]
    assert engines[3] is engines[4]
    assert engines[3] is not engines[0]


def test_an_engine_whose_search_raises_is_closed(standin, monkeypatch):
    def fail(*_args: object) -> None:
        raise RuntimeError("the GPU is lost")

    t, y, _ = curve()
    with monkeypatch.context() as patched:
        patched.setattr(StandIn, "execute", fail)
        with pytest.raises(RuntimeError, match="the GPU is lost"):
            lombscargle(t, y, **GRID)
    assert standin["engine"].closed
    assert lombscargle(t, y, **GRID).period > 0


def test_later_calls_do_not_change_earlier_results():
    t, y, dy = curve()
    results = [lombscargle(t, np.roll(y, k), dy, **GRID) for k in (0, 20)]
    expected = [LombScarglePlan(**GRID).execute(t, np.roll(y, k), dy) for k in (0, 20)]
    for found, alone in zip(results, expected, strict=True):
        np.testing.assert_array_equal(found.power, alone.power)
        np.testing.assert_array_equal(found.peaks.frequency, alone.peaks.frequency)


def test_warnings_point_at_the_call():
    t, y, _ = curve()
    with pytest.warns(UserWarning, match="under 1/T") as caught:
        lombscargle(t, y, fmin=0.001, fmax=1.0)
    assert caught[0].filename == __file__
    with LombScarglePlan(fmin=0.5, fmax=2.0, nf=5) as plan, pytest.warns(UserWarning, match="too coarse") as caught:
        plan.execute(t, y)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="too coarse for 2 of 2 objects"):
        lombscargle([t, t], [y, y], fmin=0.5, fmax=2.0, nf=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lombscargle(t, y)


def test_plain_arrays_need_neither_astropy_nor_matplotlib():
    script = (
        "import sys, numpy as np, skysieve; t = np.arange(30.0); "
        "r = skysieve.lombscargle(t, np.sin(t), fmin=0.05, fmax=0.4, nf=50, device='cpu'); assert r.period > 0; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'astropy', 'matplotlib', 'pandas', 'cupy', 'rich'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == "[]"


def environment():
    """The environment of this process, with the package that is tested here importable."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_read_only_light_curves_compile_nothing_new(monkeypatch) -> None:
    """Pandas, memory maps and FITS files give read-only arrays, for which numba would compile everything again."""
    from skysieve.core.cpu import jit
    from skysieve.periodogram.cpu import prepare, search
    from skysieve.periodogram.cpu.fourier import bands

    monkeypatch.setattr(jit, "INTERPRETED_SECONDS", 0.0)
    t, y, dy = curve(80)
    offsets, band, grid = np.array([0, 40, 80]), np.tile([0, 1], 40), {"fmax": 2.0, "nf": 300, "device": "cpu"}
    functions, compiled = (prepare.scan, prepare.prepare, bands.prepare_bands, search.search), None
    for names in ((), ("t",), ("y", "dy"), ("t", "y", "dy", "offsets", "band")):
        rows = {"t": t.copy(), "y": y.copy(), "dy": dy.copy(), "offsets": offsets.copy(), "band": band.copy()}
        for name in names:
            rows[name].flags.writeable = False
        lombscargle(rows["t"], rows["y"], rows["dy"], offsets=rows["offsets"], **grid)
        skysieve.lombscargle_multiband(rows["t"], rows["y"], rows["band"], rows["dy"], offsets=rows["offsets"], **grid)
        compiled = compiled or [list(function.signatures) for function in functions]
        assert [list(function.signatures) for function in functions] == compiled
    assert all(compiled)


def test_a_list_of_frequencies_compiles_nothing_new() -> None:
    """numba compiles a function again for read-only arrays, which takes 15 s; lists of frequencies are read-only."""
    from skysieve.periodogram.cpu import search

    rng = np.random.default_rng(0)
    t, y = rng.random(40) * 30, rng.random(40)
    frequency = np.sort(rng.random(50)) + 0.1
    frequency.flags.writeable = False
    assert np.isfinite(lombscargle(t, y, frequency=frequency, device="cpu").power).all()
    assert search.search.signatures
    assert not any("readonly" in str(argument) for one in search.search.signatures for argument in one)


@pytest.mark.parametrize("kind", ["float64", ">f8", "float32", "int32", "mixed", "readonly", "strided"])
def test_lists_of_every_kind_are_the_flat_arrays(kind):
    rng = np.random.default_rng(5)
    curves = [[np.round(np.sort(rng.uniform(0, 999, n))), np.round(rng.normal(0, 99, n))] for n in (40, 7, 25)]
    flat = [np.concatenate(column) for column in zip(*curves, strict=True)]
    options = {"fmin": 0.01, "fmax": 0.2, "nf": 300, "device": "cpu"}
    expected = skysieve.lombscargle(*flat, offsets=[0, 40, 47, 72], **options)
    for i, curve in enumerate(curves):
        for k, column in enumerate(curve):
            if kind == "strided":
                curve[k] = np.repeat(column, 2)[::2]
            elif kind == "readonly":
                column.flags.writeable = False
            else:
                curve[k] = column.astype("float32" if kind == "mixed" and i == 1 else kind.replace("mixed", "float64"))
    t, y = (list(column) for column in zip(*curves, strict=True))
    found = skysieve.lombscargle(t, tuple(y), **options)
    np.testing.assert_array_equal(found.power, expected.power)


def test_lists_of_unequal_lengths_name_the_light_curve():
    t = [np.arange(9.0), np.arange(8.0)]
    with pytest.raises(ValueError, match=r"t\[1\] has shape \(8,\) and y\[1\] has shape \(9,\)"):
        skysieve.lombscargle(t, [np.ones(9), np.ones(9)], device="cpu")


def test_lists_are_joined_once_for_grids_of_their_own(standin, monkeypatch):
    """The first look and the search read the same joined arrays; lists that are too long are joined each time."""
    joins = []
    read = sources.ListSource.read

    def counted(self, start, stop):
        joins.append((start, stop))
        return read(self, start, stop)

    monkeypatch.setattr(sources.ListSource, "read", counted)
    columns = list(zip(*(curve(n) for n in (60, 45, 80)), strict=True))
    t, y, dy = map(list, columns)
    once = lombscargle(t, y, dy, nyquist_factor=0.5)
    assert joins == [(0, 3)]
    monkeypatch.setattr(sources, "MOST_JOINED", 100)
    often = lombscargle(t, y, dy, nyquist_factor=0.5)
    assert len(joins) > 1 + 3
    np.testing.assert_array_equal(once.period, often.period)
    monkeypatch.setattr(sources, "MOST_JOINED", 2**30)
    y[1] = np.where(np.arange(45) == 7, np.nan, y[1])
    with pytest.raises(ValueError, match="y of row 7 of object 1"):
        lombscargle(t, y, dy, nyquist_factor=0.5, nan_policy="raise")


def arrow_columns(kind):
    """Arrow lists of three light curves, and the same as lists of arrays."""
    pa = pytest.importorskip("pyarrow")
    lists = [list(column) for column in zip(*(curve(n) for n in (60, 45, 80)), strict=True)]
    if kind == "float32":
        lists[1:] = [[x.astype(np.float32) for x in column] for column in lists[1:]]
    columns = []
    for column in lists:
        flat = pa.array(np.concatenate(column))
        made = pa.LargeListArray if kind == "large" else pa.ListArray
        columns.append(made.from_arrays([0, 60, 105, 185], flat))
    if kind == "chunks":
        columns = [pa.chunked_array([column[:1], column[1:]]) for column in columns]
    if kind == "pandas":
        pd = pytest.importorskip("pandas")
        columns = [pd.Series(column, dtype=pd.ArrowDtype(column.type)) for column in columns]
    if kind == "objects":
        pd = pytest.importorskip("pandas")
        columns = [pd.Series(column) for column in lists]
    return columns, lists


@pytest.mark.few
@pytest.mark.parametrize("kind", ["plain", slow("large"), "chunks", "float32", slow("pandas"), "objects"])
def test_columns_of_lists_are_searched_as_lists(kind, standin):
    columns, lists = arrow_columns(kind)
    grid = {"fmin": 0.2, "fmax": 0.6, "nf": 90}
    for error in (columns[2], 0.1, None) if kind == "plain" else (columns[2],):  # the others hold no column
        theirs = lists[2] if error is columns[2] else None if error is None else 0.1
        found = lombscargle(*columns[:2], error, **grid, n_peaks=1)
        expected = lombscargle(*lists[:2], theirs, **grid, n_peaks=1)
        np.testing.assert_array_equal(found.power, expected.power)
        np.testing.assert_array_equal(found.period, expected.period)


def test_arrow_lists_are_not_copied():
    (t, y, _), _ = arrow_columns("plain")
    source = sources.light_curves(t, y).source
    assert source.read(0, 3)[1].__array_interface__["data"][0] == y.values.buffers()[1].address
    later = sources.light_curves(t[1:], y[1:]).source
    assert later.read(1, 2)[0].__array_interface__["data"][0] == t.values.buffers()[1].address + 105 * 8
    np.testing.assert_array_equal(later.offsets, [0, 45, 125])


def test_missing_lists_and_values_in_arrow_columns(standin):
    pa = pytest.importorskip("pyarrow")
    t, y, _ = curve()
    values = y.tolist()
    values[7] = None
    data = pa.table({"t": pa.array([t.tolist(), None, t.tolist()]), "y": pa.array([values, None, y.tolist()])})
    found = lombscargle("t", "y", data=data, **GRID)
    assert found.status.tolist() == [Status.OK, Status.EMPTY, Status.OK]
    assert found.n_dropped.tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="y of row 7 of object 0"):
        lombscargle("t", "y", data=data, **GRID, nan_policy="raise")
    with pytest.raises(ValueError, match=r"t\[1\] has shape \(2,\) and y\[1\] has shape \(1,\)"):
        lombscargle(pa.array([[1.0, 2.0], [1.0, 2.0]]), pa.array([[1.0, 2.0], [1.0]]), **GRID)
    with pytest.raises(TypeError, match="real numbers are expected"):
        lombscargle(pa.array([["a", "b"]]), pa.array([["a", "b"]]), **GRID)


def test_columns_of_structured_arrays_and_fits_tables(tmp_path):
    t, y, dy = curve()
    records = np.rec.fromarrays([t.astype(">f8"), y, dy], names="t,m,e")
    fits.BinTableHDU(records).writeto(tmp_path / "a.fits")
    wanted = lombscargle(t, y, dy, **GRID).period
    for data in (records, fits.getdata(tmp_path / "a.fits"), np.asarray(records)):
        assert lombscargle("t", "m", "e", data=data, **GRID).period == wanted
    with pytest.raises(ValueError, match="y='y' is not a column of data: expected one of t, m, e"):
        lombscargle("t", "y", data=records, **GRID)


def test_columns_of_one_name_are_refused():
    pd = pytest.importorskip("pandas")
    t, y, dy = curve()
    frame = pd.DataFrame(np.stack([t, y, dy, dy], axis=1), columns=["t", "m", "e", "e"])
    with pytest.raises(ValueError, match="dy='e': data has 2 columns 'e'; expected one"):
        lombscargle("t", "m", "e", data=frame, **GRID)
    assert lombscargle("t", "m", data=frame, **GRID).period == lombscargle(t, y, **GRID).period


@pytest.mark.parametrize("kind", ["arrays", "nested lists", "objects", "plain"])
def test_ids_of_lists_join_those_of_one_object(kind, standin):
    """A table with one row of lists for each object and band is the table with one row for each observation."""
    columns, lists = arrow_columns(kind)
    if kind in ("arrays", "nested lists"):
        columns = lists if kind == "arrays" else [[one.tolist() for one in column] for column in lists]
    grid = {"fmin": 0.2, "fmax": 0.6, "nf": 90}
    for ids in (["c", "a", "b"], ["b", "a", "b"]):
        found = lombscargle(*columns, id=ids, **grid)
        flat = [np.concatenate(column) for column in lists]
        expected = lombscargle(*flat, id=np.repeat(ids, [60, 45, 80]), **grid)
        np.testing.assert_array_equal(found.power, expected.power)
        assert found.ids.tolist() == list(dict.fromkeys(ids))
    with pytest.raises(ValueError, match="id has 2 entries, y has 3 light curves"):
        lombscargle(*columns, id=["c", "a"], **grid)


def test_ids_of_rows_on_the_same_times(standin):
    t, y, dy = curve()
    several = np.stack([y, y[::-1], y + 1])
    found = lombscargle(t, several, dy, id=["c", "a", "b"], **GRID)
    np.testing.assert_array_equal(found.power, lombscargle(t, several, dy, **GRID).power)
    assert found.ids.tolist() == ["c", "a", "b"]
    assert lombscargle(t, several, dy, id=["c", "a", "c"], **GRID).n_used.tolist() == [2 * len(t), len(t)]


def test_lists_of_polars(standin):
    pl = pytest.importorskip("polars")
    _, lists = arrow_columns("plain")
    frame = pl.DataFrame(dict(zip("tye", ([x.tolist() for x in column] for column in lists), strict=True)))
    found = lombscargle("t", "y", "e", data=frame, **GRID)
    np.testing.assert_array_equal(found.power, lombscargle(*lists, **GRID).power)


@pytest.mark.parametrize("banded", ["each row", "each list"])
def test_bands_of_lists_of_one_object(banded):
    _, lists = arrow_columns("plain")
    sizes, names = [60, 45, 80], ["g", "r", "r"]
    bands = names if banded == "each list" else [[name] * n for name, n in zip(names, sizes, strict=True)]
    options = {"fmin": 0.5, "fmax": 2.0, "nf": 100, "device": "cpu"}
    found = skysieve.lombscargle_multiband(*lists[:2], bands, lists[2], id=["b", "b", "a"], **options)
    flat, ids = [np.concatenate(column) for column in lists], np.repeat(["b", "b", "a"], sizes)
    expected = skysieve.lombscargle_multiband(*flat[:2], np.repeat(names, sizes), flat[2], id=ids, **options)
    np.testing.assert_array_equal(found.power, expected.power)
    assert found.ids.tolist() == ["b", "a"]


def test_bands_of_arrow_lists():
    (t, y, dy), lists = arrow_columns("plain")
    bands = [np.array(["g", "r"])[np.arange(len(x)) % 2].tolist() for x in lists[0]]
    options = {"fmin": 0.5, "fmax": 2.0, "nf": 100, "device": "cpu"}
    expected = skysieve.lombscargle_multiband(*lists[:2], bands, lists[2], **options)
    found = skysieve.lombscargle_multiband(t, y, bands, dy, **options)
    np.testing.assert_allclose(found.period, expected.period, rtol=1e-12)
