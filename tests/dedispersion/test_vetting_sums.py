"""Sums of a candidate's cut-out, their level and windows in them against NumPy and SciPy, compiled and interpreted."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from scipy.interpolate import BSpline

from skysieve.core.cpu.jit import interpreted
from skysieve.dedispersion import fake
from skysieve.dedispersion.single_pulse import cpu_look, cpu_vetting, vetting
from skysieve.dedispersion.single_pulse.vetting import Arrivals, Look, _windows

SIDE, WIDTH, GUARD, CHANNELS = 20, 6, 4, 40
EDGES = np.array([0, 9, 21, 40])


def cut_out(size, seed, dtype):
    """Samples, NaN or 0 where they do not count, and the bins by which each channel begins later."""
    rng = np.random.default_rng(seed)
    late = np.sort(rng.integers(0, 60, CHANNELS))
    bins = 2 * SIDE + WIDTH + int(late.max())
    rows = rng.normal(100, 10, (bins * size, CHANNELS)).astype(dtype)
    counts = rng.random(rows.shape) > 0.1
    rows[~counts] = np.nan if dtype == np.float32 else 0
    return rows, counts, late, bins


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("size", "dtype"), [(1, np.float32), (3, np.uint8)])
def test_sums_of_a_cut_out(size, dtype, compiled):
    how = (lambda kernel: kernel) if compiled else interpreted
    rows, counts, late, bins = cut_out(size, size, dtype)
    parts = [(0, slice(0, 7 * size)), (7, slice(7 * size, None))]
    sums, some = np.zeros((3, CHANNELS)), np.zeros((3, CHANNELS), np.int32 if dtype == np.uint8 else np.float64)
    for first, part in parts:
        how(cpu_vetting.channel_sums)(rows[part], ~counts[part], first, size, SIDE, late, WIDTH, GUARD, some, sums)
    x = np.where(counts, rows.astype(np.float64), 0.0)
    place = np.arange(len(rows))[:, None] // size - SIDE - late
    beside = (place < -GUARD) | (place >= WIDTH + GUARD)
    expected = [beside & counts, beside * x, beside * x**2]
    np.testing.assert_allclose(sums, [each.sum(axis=0) for each in expected], rtol=1e-13)
    one, full = np.zeros((2, 3, CHANNELS))
    never = np.arange(CHANNELS) % 3 == 0
    kept = np.where(never, 0, np.nan_to_num(rows)).astype(dtype)
    for gone, out in ((never[None], one), (np.repeat(never[None], len(rows), axis=0), full)):
        how(cpu_vetting.channel_sums)(kept, gone, 0, size, SIDE, late, WIDTH, GUARD, some, out)
    assert (one == full).all()
    assert not one[:, never].any()
    assert one[0, ~never].all()
    series = []
    for gone in (never[None], np.repeat(never[None], len(rows), axis=0)):
        series.append((np.zeros((2, 3, bins)), np.zeros((2, 3, 2 * SIDE + WIDTH))))
        (mean, var), left = np.empty((2, CHANNELS)), np.empty(CHANNELS, bool)
        how(cpu_vetting.band_series)(kept, gone, 0, size, late, EDGES, some, full, mean, var, left, *series[-1])
    for short, long in zip(*series, strict=True):
        assert (short == long).all()
        assert short[1].all()

    sums[:, 1], sums[:, 2] = (5, 500, 50100), (40, 4000, 400000)  # too few samples, and constant ones
    (mean, var), left = np.full((2, CHANNELS), np.nan), np.empty(CHANNELS, bool)

    flat, lined = np.zeros((2, 3, bins)), np.zeros((2, 3, 2 * SIDE + WIDTH))
    for first, part in parts:
        how(cpu_vetting.band_series)(
            rows[part], ~counts[part], first, size, late, EDGES, some, sums, mean, var, left, flat, lined
        )
    assert np.flatnonzero(left).tolist() == [1, 2]
    assert not mean[left].any()
    assert not var[left].any()
    for c in np.flatnonzero(~left):
        some = x[(beside & counts)[:, c], c]
        assert mean[c] == pytest.approx(some.mean(), rel=1e-12)
        assert var[c] == pytest.approx(some.var(), rel=1e-9)
    for i, values in enumerate(((x - mean) * counts * ~left, var * counts)):
        binned = values.reshape(bins, size, CHANNELS).sum(axis=1)
        wanted = np.add.reduceat(binned, EDGES[:-1], axis=1).T
        np.testing.assert_allclose(flat[i], wanted, atol=1e-10 * np.abs(wanted).max())
        moved = np.stack([binned[k : k + lined.shape[2], c] for c, k in enumerate(late)], axis=1)
        wanted = np.add.reduceat(moved, EDGES[:-1], axis=1).T
        np.testing.assert_allclose(lined[i], wanted, atol=1e-10 * np.abs(wanted).max())


@pytest.mark.parametrize("compiled", [True, False])
def test_the_level_of_a_sub_band_is_the_best_spline_beside_the_candidate(compiled):
    """Weighted least squares by NumPy, of the bins outside the candidate, with the small ridge that makes it unique."""
    how = (lambda kernel: kernel) if compiled else interpreted
    rng = np.random.default_rng(5)
    delays, edges, length, first, last = np.repeat([0, 7, 31], 4), np.array([0, 4, 8, 12]), 60, 25, 36
    bins = length + 31
    flat = np.stack([rng.normal(size=(3, bins)), rng.uniform(1, 2, (3, bins))])
    lined = np.stack([rng.normal(size=(3, length)), rng.uniform(1, 2, (3, length))])
    values, weights = flat.copy(), lined.copy()
    late = Arrivals.of(delays, edges)
    flat_sums, lined_sums = np.full((2, 3, bins + 1), np.nan), np.full((2, 3, length + 1), np.nan)
    how(cpu_vetting.flatten)(flat, lined, 5, first, last, late.early, late.late, late.mean, flat_sums, lined_sums)

    knots = np.linspace(0, bins, 6)
    knots = np.concatenate([[-knots[1]], knots, [bins + knots[1]]])
    spline = BSpline.basis_element([-2, -1, 0, 1, 2], extrapolate=False)
    model = 6 * np.nan_to_num(spline((np.arange(bins)[:, None] + 0.5 - knots) / knots[2]))
    for b, late in enumerate((0, 7, 31)):
        beside = np.ones(bins, bool)
        beside[first + late : last + late] = False
        root = np.sqrt(values[1, b])
        rows, data = (model * root[:, None])[beside], (values[0, b] / root)[beside]
        ridge = np.sqrt(1e-9 * ((rows**2).sum() + 1)) * np.eye(len(knots))
        found = np.linalg.lstsq(np.concatenate([rows, ridge]), np.concatenate([data, np.zeros(len(knots))]))[0]
        level = model @ found
        np.testing.assert_allclose(np.diff(flat_sums[0, b]), values[0, b] - level * values[1, b], atol=1e-9)
        moved = weights[0, b] - level[late : late + length] * weights[1, b]
        np.testing.assert_allclose(np.diff(lined_sums[0, b]), moved, atol=1e-9)
        np.testing.assert_allclose(np.diff(flat_sums[1, b]), values[1, b], rtol=1e-12)
    assert (flat_sums[..., 0] == 0).all()
    assert (lined_sums[..., 0] == 0).all()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("w", "sweep"), [(3, 0), (8, 6), (8, 90), (40, 30)])
def test_the_best_window_at_one_time(w, sweep, compiled):
    """Each window computed by itself, from samples with gaps, in parts of one to three sub-bands, one after another."""
    how = (lambda kernel: kernel) if compiled else interpreted
    rng = np.random.default_rng(w + sweep)
    edges, side = np.array([0, 1, 3, 6, 8, 9]), 130
    middle = side + np.linspace(0, sweep, len(edges) - 1)
    x = rng.normal(size=(edges[-1], 2 * side + w + sweep))
    v = rng.uniform(0.5, 2, x.shape) * (rng.random(x.shape) > 0.1)
    x[:, side : side + w] += 1.0
    power = rng.uniform(0, 3, len(middle))
    s, q = (np.concatenate([np.zeros((len(y), 1)), np.cumsum(y, axis=1)], axis=1) for y in (x, v))
    x, v = (np.add.reduceat(y, edges[:-1]) for y in (x, v))
    sizes, nears = np.array([w // 2 + 1, w, 2 * w]), np.array([16, 17, 18])
    best = 0.0
    for size, near in zip(sizes.tolist(), nears.tolist(), strict=True):
        gap = size // 2
        for at in range(max(near + gap, side - size), x.shape[1] - near - size - gap + 1, max(1, size // 16)):
            covered = np.minimum(at + size, middle + w) - np.maximum(at, middle)
            inside = covered >= 0.5 * min(w, size)
            if at > middle[-1] + w or power[inside].sum() < 0.5 * power.sum():
                continue
            around = np.r_[at - gap - near : at - gap, at + size + gap : at + size + gap + near]
            on, on_v = x[:, at : at + size].sum(axis=1), v[:, at : at + size].sum(axis=1)
            inside &= on_v > 0
            excess = on - x[:, around].sum(axis=1) * on_v / v[:, around].sum(axis=1)
            best = max(best, float((np.maximum(excess, 0)[inside] ** 2 / on_v[inside]).sum()))
    used, window = np.ones(len(power), bool), np.zeros(2, np.int64)
    found = how(cpu_look.undispersed)(s, q, edges, power, middle, w, side, sizes, nears, used, window)
    assert (best > 0) == (sweep < 90)  # no window covers half of the power of the widest sweep
    assert found == pytest.approx(best, rel=1e-9)
    assert (window[1] - window[0] in sizes) if best else (window == -1).all()
    # parts that are not looked at count as if they had no samples and no power
    used[1::2] = False
    of_band = np.repeat(used, np.diff(edges))[:, None]
    without = s * of_band, q * of_band, edges, power * used, middle, w, side, sizes, nears
    expected = how(cpu_look.undispersed)(*without, np.ones(len(power), bool), window.copy())
    found = how(cpu_look.undispersed)(s, q, edges, power, middle, w, side, sizes, nears, used, window)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_a_window_does_not_touch(compiled):
    """A pulse that begins upon a bump in the first half of the band: the other half has its S/N and powers alone."""
    how = (lambda kernel: kernel) if compiled else interpreted
    bands, side, w, far = 32, 200, 8, 300
    middle = np.where(np.arange(bands) < 16, 0.0, far + 20.0 * np.arange(bands)) + side
    flat = np.zeros((bands, 2 * side + w + int(middle.max())))
    for x, at in zip(flat, middle.astype(int), strict=True):
        x[at : at + w] += 1.0
    flat[:16, side - 2 : side + w + 2] += 2.0
    s, q = (np.concatenate([np.zeros((bands, 1)), np.cumsum(y, axis=1)], axis=1) for y in (flat, np.ones_like(flat)))
    excess, variance = np.full(bands, 1.0 * w), np.full(bands, 1.0 * w)
    excess[:16] += 2.0 * w
    aside = np.zeros(3)
    power, best = how(cpu_look.power_in_parts)(
        s, q, excess, variance, middle, 8, w, side, *_windows(w, side), aside
    )  # fmt: skip
    assert best > power / 2  # the bump
    assert aside[0] == pytest.approx(np.sqrt(16 * w))
    assert aside[1] == pytest.approx(16 * w)
    assert aside[2] < aside[1] / 2
    without = np.zeros(0)
    assert how(cpu_look.power_in_parts)(
        s, q, excess, variance, middle, 8, w, side, *_windows(w, side), without
    ) == (power, best)  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("w", "strong"), [(1, False), (6, False), (6, True), (13, False)])
def test_what_a_cut_out_shows(w, strong, compiled):
    """Each number by NumPy, of samples with gaps; ``strong``: two of 32 sub-bands have most of the power."""
    how = (lambda kernel: kernel) if compiled else interpreted
    rng = np.random.default_rng(w)
    bands, side, guard, size = 32, 16 * w + 112, w // 2 + 1, 2
    near, late = max(2 * w, 16), np.arange(bands) * 2.0
    x = rng.normal(size=(bands, 2 * side + w))
    v = rng.uniform(0.5, 2, x.shape) * (rng.random(x.shape) > 0.05)
    x[:, side : side + w] += 3 / np.sqrt(w)
    x[:2, side : side + w] += 30 * strong
    x[v == 0] = 0
    flat, flat_v = rng.normal(size=(2, bands, 2 * side + w + 62)) ** 2
    s, q, s0, q0 = (np.concatenate([np.zeros((bands, 1)), np.cumsum(y, axis=1)], axis=1) for y in (x, v, flat, flat_v))
    pulsed, var = np.arange(bands) >= 28, rng.uniform(0.2, 0.4, 2 * bands)
    numbers, windows, highest = np.empty(len(fields(Look))), _windows(w, side), cpu_look.highest_sums(bands)
    options = w, side, guard, near, var, size, *windows, highest
    how(cpu_look.see)(s0, q0, s, q, late + side, pulsed, *options, numbers)
    look = Look(*numbers.tolist())

    on = slice(side, side + w)
    low, high = side - guard + 1, side + w + guard - 1
    beside = np.r_[low - near : low, high : high + near]
    level = x[:, beside].sum(axis=1) / v[:, beside].sum(axis=1)
    variance = v[:, on].sum(axis=1)
    excess = x[:, on].sum(axis=1) - level * variance
    z = np.maximum(np.divide(excess, np.sqrt(variance), out=np.zeros(bands), where=variance > 0), 0)
    some = np.sort(np.argsort(-z)[2:]) if strong else np.arange(bands)
    assert ((z**2)[np.argsort(-z)[:2]].sum() / (z**2).sum() > 0.6) == strong
    known = pulsed | ~np.isin(np.arange(bands), some)
    snr = [excess[k].sum() / np.sqrt(variance[k].sum()) for k in (known, ~known)]
    share = np.sqrt(variance[known].sum() / variance[~known].sum())
    free = snr[1] * np.sqrt(variance.sum() / variance[~known].sum()) if snr[0] > snr[1] * share + 2 else np.nan
    assert np.isnan(free) != strong
    excess, variance, z = excess[some], variance[some], z[some]
    rest = np.sort(np.argsort(-excess)[round(0.19 * len(some)) :])
    middle = late[some]
    spread = np.average((middle - np.average(middle, weights=z**2)) ** 2, weights=z**2)
    parts = (
        np.array_split(np.arange(len(some)), 8) if not strong else np.split(np.arange(30), [4, 8, 11, 15, 19, 22, 26])
    )
    broad = sum(max(excess[p].sum(), 0) ** 2 / variance[p].sum() for p in parts)
    with_samples = np.flatnonzero(variance > 0)
    n = len(with_samples)
    k = round(n / 8)
    quieter = with_samples[np.argsort(-excess[with_samples])[k:]]
    even = excess[quieter].sum() / np.sqrt(variance[quieter].sum()) + highest[n] / np.sqrt(n - k)
    expected = {
        "snr": excess.sum() / np.sqrt(variance.sum()), "rest": excess[rest].sum() / np.sqrt(variance[rest].sum()),
        "free": free, "power": (z**2).sum(), "broad": broad, "sweep": np.sqrt(12 * spread) / w,
        "even": even * np.sqrt(n / (n - k)),
    }  # fmt: skip
    for name, value in expected.items():
        assert getattr(look, name) == pytest.approx(value, rel=1e-9, nan_ok=True), name
    args = w, side, *windows
    first = np.array([middle[p].mean() for p in parts]) + side
    edges = np.array([p[0] for p in parts] + [len(some)])
    power = np.array([max(excess[p].sum(), 0) ** 2 / variance[p].sum() for p in parts])
    every, window = np.ones(len(some), bool), np.empty(2, np.int64)
    best = cpu_look.undispersed(s0[some], q0[some], edges, power, first, *args, every, window)
    assert look.broad_undispersed == pytest.approx(best, rel=1e-9)
    edges = np.arange(len(some) + 1)
    best = cpu_look.undispersed(s0[some], q0[some], edges, z**2, middle + side, *args, every, window)
    assert look.undispersed == pytest.approx(best, rel=1e-9)

    differences = []
    for sign, start in ((-1, side - guard - w), (1, side + w + guard)):
        starts = start + sign * w * np.arange((side - guard) // w)
        on, power = (np.array([y[some, k : k + w].sum() for k in starts]) for y in (x, v))
        each = np.where(power > 0.5 * w * size * var.sum(), on * np.sqrt(w * size * var.sum()) / power, np.nan)
        differences.append(np.abs(each[1:-1] - (each[:-2] + each[2:]) / 2) / np.sqrt(1.5))
    assert look.red == pytest.approx(1.4826 * np.nanmedian(np.concatenate(differences)), rel=1e-9)


def test_second_differences_of_uneven_places():
    """The line through (0, 0) and (3, 3) has the value 1 at 1."""
    assert cpu_look.second_difference(np.array([0.0, 1.0, 9.0, 3.0]), 0, 1, 3) == 0.0


def test_windows_between_pulses_are_quiet():
    z, found = np.array([0.0, 0.1, 9.0, 0.2, 0.1, 9.0, 0.3]), np.empty(7, np.int64)
    count = cpu_look.quiet_places(z, np.arange(7), 7, found)
    assert found[:count].tolist() == [0, 1, 3, 4, 6]


@pytest.mark.parametrize(
    ("w", "smeared", "later"), [(8, 0.0, 0), (8, 10.4, -3), (8, -17.0, 2), (1, 1.5, 1), (15, 30.0, 6)]
)
def test_place_of_a_pulse(w, smeared, later):
    """A pulse without noise at a wrong DM and time, compiled and interpreted; ``smeared`` and ``later`` are in bins."""
    bands, side = 32, 10 * w + 20
    late = np.linspace(0, 1, bands) ** 2
    late -= late.mean()
    x = np.zeros((bands, 2 * side + w))
    for b in range(bands):
        first = side + later + round(smeared * late[b])
        x[b, first : first + w] = 1
    s, q = (np.concatenate([np.zeros((bands, 1)), np.cumsum(v, axis=1)], axis=1) for v in (x, np.ones_like(x)))
    found, again = np.empty((2, 2))
    cpu_look.place(s, q, late, side, w, found)
    interpreted(cpu_look.place)(s, q, late, side, w, again)
    np.testing.assert_allclose(found, [smeared, later], atol=w / 8 + 0.5)
    np.testing.assert_array_equal(found, again)


def test_the_best_dm_error_lies_within_the_range():
    """The windows get stronger up to the end of the range, as beside another pulse: the place is not changed."""
    bands, w, side = 32, 8, 100
    late = np.linspace(-0.5, 0.5, bands)
    x = np.zeros((bands, 2 * side + w))
    for b in range(bands):
        first = side + round(5 * w * late[b])
        x[b, first : first + w] = 1
    s, q = (np.concatenate([np.zeros((bands, 1)), np.cumsum(v, axis=1)], axis=1) for v in (x, np.ones_like(x)))
    found = np.ones(2)
    cpu_look.place(s, q, late, side, w, found)
    assert found.tolist() == [0, 0]


@pytest.mark.parametrize("compiled", [True, False])
def test_candidates_that_are_looked_at_together(compiled, monkeypatch):
    """They have the numbers of the candidates one by one; one whose samples are gone has none."""
    if not compiled:
        monkeypatch.setattr(vetting, "_run_by", lambda steps, some: [interpreted(kernel) for kernel in some])
    obs = fake(duration=1, nchan=64, tsamp=1e-3, fch1=1500, foff=-4, seed=1).observation
    look = vetting.Vetting(obs, obs.top, 4148.8, 300.0, 2000)
    rng = np.random.default_rng(4)
    rows, gone = rng.integers(0, 256, (6000, 64), np.uint8), rng.random((1, 64)) < 0.1
    cuts = [
        look._cut_out(lambda start, stop, memory=None: (rows[start:stop], gone), dm, at, width)
        for dm, at, width in ((10.0, 1500, 1), (80.0, 2000, 12), (300.0, 2500, 40))
    ]
    cuts.insert(1, look._cut_out(lambda *_: None, 50.0, 2000, 8))
    pulsed = rng.random((4, 16)) < 0.3
    sums = [vetting.sums_on_host(cut, cpu_vetting.channel_sums, cpu_vetting.band_series) for cut in cuts]
    sizes = [len(one.values) for one in sums]
    starts = np.where([cut.gone for cut in cuts], -1, np.cumsum([0, *sizes[:-1]]))
    assert (starts == -1).tolist() == [False, True, False, False]
    together = vetting.Sums(np.concatenate([one.values for one in sums]), starts)
    found = look._looked(cuts, together, pulsed)
    for i in (0, 2, 3):
        for several, one in zip(found, look._looked([cuts[i]], sums[i], pulsed[i : i + 1]), strict=True):
            assert np.array_equal(several[i], one[0], equal_nan=True)
        assert np.isfinite(np.delete(found[0][i], 2)).all()  # `Look.free` may be NaN
        assert np.isfinite(found[1][i]).all()
    assert len(np.unique(found[0][[0, 2, 3], 0])) == 3
