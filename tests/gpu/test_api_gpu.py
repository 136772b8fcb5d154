"""The public functions on arrays that live on a GPU (imports only what a GPU machine has)."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.periodogram.api import LombScarglePlan, lombscargle

GRID = {"fmin": 0.2, "fmax": 3.0, "nf": 600}
TOLERANCE = 1e-9
"""Default float64 of the project, N_t >= 10."""


def curve(n=60, seed=0, period=0.7, span=20.0):
    rng = np.random.default_rng([seed, n])
    t = np.sort(rng.uniform(0, span, n))
    dy = rng.uniform(0.1, 0.3, n)
    return t, 15 + 0.4 * np.sin(2 * np.pi * t / period) + dy * rng.standard_normal(n), dy


@pytest.mark.gpu
@pytest.mark.parametrize("options", [GRID, {"fmin": 0.2, "fmax": 3.0}], ids=["shared", "per object"])
def test_arrays_on_a_gpu_stay_on_it(options):
    import cupy

    curves = [curve(30, 1), curve(55, 2), curve(41, 3)]
    host = [np.concatenate([c[k] for c in curves]) for k in range(3)]
    offsets = np.array([0, 30, 85, 126])
    expected = lombscargle(*host, offsets=offsets, device="cpu", **options)
    result = lombscargle(*map(cupy.asarray, host), offsets=offsets, **options)
    power = result.power if options is GRID else result.power.flat
    assert isinstance(power, cupy.ndarray)
    right = expected.power if options is GRID else expected.power.flat
    np.testing.assert_allclose(power.get(), right, atol=TOLERANCE)
    np.testing.assert_array_equal(result.peaks.index, expected.peaks.index)
    with pytest.raises(TypeError, match="on a GPU, but the search runs on the CPU"):
        lombscargle(*map(cupy.asarray, host), offsets=offsets, device="cpu", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("grid", [GRID, {}], ids=["plan", "first look"])
def test_values_still_in_the_making_are_waited_for(grid):
    """The values are written late on the caller's stream; a plan has recorded its launches by then."""
    import cupy

    t, y, dy = (cupy.asarray(x) for x in curve())
    late, slow = cupy.zeros_like(y), cupy.ones(1 << 24)
    with LombScarglePlan(device="cuda", **grid) as plan:
        expected = cupy.asnumpy(plan.execute(t, y, dy).power)
        for _ in range(4):
            late[...] = cupy.cos(t)
            plan.execute(t, late, dy)
            cupy.cuda.Device().synchronize()
            for _ in range(200):
                cupy.sin(slow, out=slow)
            late[...] = y + 0 * slow[0]
            np.testing.assert_array_equal(cupy.asnumpy(plan.execute(t, late, dy).power), expected)


@pytest.mark.gpu
def test_one_light_curve_on_a_gpu_and_its_errors():
    import cupy

    t, y, dy = (cupy.asarray(x) for x in curve())
    result = lombscargle(t, y, dy, **GRID)
    assert isinstance(result.power, cupy.ndarray)
    assert result.period == pytest.approx(0.7, rel=5e-3)
    dy[7] = 0
    with pytest.raises(ValueError, match=r"dy\[7\] is 0"):
        lombscargle(t, y, dy, **GRID)


@pytest.mark.gpu
def test_every_form_of_a_batch_gives_the_same_bits():
    """Batches that never repeat and batches that do: lists (joined in page-locked memory), flat arrays, CuPy arrays."""
    import cupy

    rng = np.random.default_rng(12)
    options = {"fmin": 0.16, "fmax": 8.0, "n_peaks": 3, "return_power": False, "device": "cuda"}
    for k, (n, most) in enumerate([(60, 200), (40, 300), (70, 150), (3, 4000), (300, 1500)]):
        lengths = rng.integers(30, most, n)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        t = [np.sort(rng.uniform(0, 100, m)) for m in lengths]
        y = [np.sin(2 * np.pi * a / rng.uniform(0.2, 5)) + rng.standard_normal(len(a)) for a in t]
        dy = [np.full(len(a), 0.5) for a in t]
        flat = [np.concatenate(x) for x in (t, y, dy)]
        grid = {**options, "nf": 3000 + 17 * k}
        expected = lombscargle(*flat, offsets=offsets, **grid)
        for _ in range(3):
            for found in (
                lombscargle(t, y, dy, **grid),
                lombscargle(*flat, offsets=offsets, **grid),
                lombscargle(*map(cupy.asarray, flat), offsets=offsets, **grid),
            ):
                for name in ("frequency", "power", "frequency_error", "index"):
                    assert np.array_equal(
                        getattr(found.peaks, name), getattr(expected.peaks, name), equal_nan=name != "index"
                    )
                assert np.array_equal(found.n_used, expected.n_used)


@pytest.mark.gpu
def test_auto_on_a_machine_with_a_gpu():
    t = np.sort(np.random.default_rng(3).uniform(0, 50, 200))
    assert lombscargle(t, np.sin(t), **GRID).device == "cpu"
    assert lombscargle(t, np.sin(t), **GRID, device="cuda").device == "cuda:0"
    assert lombscargle(t, np.sin(t), fmin=0.1, fmax=5.0, nf=20_000).device == "cuda:0"
    assert lombscargle([t, t], [np.sin(t)] * 2, **GRID).device == "cuda:0"
