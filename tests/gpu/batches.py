"""Simulated light curves for tests of the periodogram on a GPU, and checks of powers and peaks against direct sums."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from skysieve.periodogram.contract import Grids, Output, Spec


@dataclass
class FlatSource:
    """Rows of all objects one after another (NumPy or CuPy)."""

    t: Any
    y: Any
    dy: Any
    offsets: np.ndarray

    @property
    def n_objects(self) -> int:
        return len(self.offsets) - 1

    @property
    def has_dy(self) -> bool:
        return self.dy is not None

    flat = True

    def read(self, start, stop, empty=None):
        a, b = int(self.offsets[start]), int(self.offsets[stop])
        dy = None if self.dy is None else self.dy[a:b]
        return self.t[a:b], self.y[a:b], dy, self.offsets[start : stop + 1] - a


def batch(lengths, span=120.0, seed=1, offset=0.0, errors=True):
    """Sinusoids with heteroscedastic noise, observed at night over ``span`` days; ``errors``: give the errors, too."""
    rng = np.random.default_rng(seed)
    t, y, dy = [], [], []
    for n in lengths:
        days = np.sort(rng.integers(0, int(span), n) + 0.3 + 0.4 * rng.random(n))
        days[0], days[-1] = 0.3, span - 0.3
        error = 0.02 + 0.05 * rng.random(n)
        error[rng.random(n) < 0.2] *= 10
        t.append(days + offset)
        y.append(
            15
            + 0.3 * rng.random() * np.sin(2 * np.pi * days / (0.1 + 2 * rng.random()))
            + error * rng.standard_normal(n)
        )
        dy.append(error)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return FlatSource(np.concatenate(t), np.concatenate(y), np.concatenate(dy) if errors else None, offsets)


def in_bands(source, bands=3, seed=3, codes=None):
    """The same light curves with a band for each row, at random unless ``codes`` are given."""
    from skysieve.periodogram.lightcurves.sources import BandedSource

    codes = np.random.default_rng(seed).integers(0, bands, len(source.t)) if codes is None else codes
    return BandedSource(source, np.asarray(codes, np.int64))


def log_normal_lengths(n, seed=1):
    """Numbers of points with median 110 and mean about 165."""
    rng = np.random.default_rng(seed)
    return np.clip(np.rint(np.exp(np.log(110) + 0.9 * rng.standard_normal(n))), 5, 1671).astype(int)


def shared_grid(f0, df, nf):
    return Grids(np.array([f0], float), np.array([df], float), np.array([nf], np.int64), True)


def run(engine, source, grids, power=True, xp=np):
    """Execute and return the output; its powers are in a new array that was filled with -7."""
    spec = engine.spec
    n = int(grids.offsets(source.n_objects)[-1])
    out = Output.allocate(source.n_objects, spec.n_peaks, xp.full(n, -7.0, spec.dtype) if power else None)
    engine.execute(source, grids, out)
    return out


def direct_power(source, i, frequency, fit_mean=True, center_data=True):
    """Standard power of one object and the determinant CC SS - CS^2, by sums in float64 of centred columns."""
    a, b = source.offsets[i], source.offsets[i + 1]
    t, y = source.t[a:b], source.y[a:b]
    w = np.ones_like(y) if source.dy is None else 1 / source.dy[a:b] ** 2
    w = w / w.sum()
    if fit_mean or center_data:
        y = y - (w * y).sum()
    yy = (w * y**2).sum()
    t = t - t.min()
    power, det = np.empty(len(frequency)), np.empty(len(frequency))
    step = max(1, 2**15 // len(t))  # the arrays of a block stay in the processor's cache: 3 times as fast
    for first in range(0, len(frequency), step):
        f = np.asarray(frequency[first : first + step], np.longdouble)[:, None]
        phase = f * t
        angle = (2 * np.pi * (phase - np.rint(phase))).astype(float)
        c, s = np.cos(angle), np.sin(angle)
        if fit_mean:
            c, s = c - (c @ w)[:, None], s - (s @ w)[:, None]
        cc, ss, cs, yc, ys = c**2 @ w, s**2 @ w, (c * s) @ w, c @ (w * y), s @ (w * y)
        d = cc * ss - cs**2
        power[first : first + step] = (ss * yc**2 + cc * ys**2 - 2 * cs * yc * ys) / d / yy
        det[first : first + step] = d
    return power, det


def only_samples(monkeypatch):
    """Let only methods of the class `Samples` be chosen in place of direct sums, whatever they cost."""
    from skysieve.periodogram.cuda import methods
    from skysieve.periodogram.cuda.sinusoid import methods as sinusoid

    choose, cheapest = methods.choose_among, sinusoid.cheapest

    def samples_of(known):
        return tuple(method for method in known if isinstance(method, sinusoid.Samples))  # they come first

    def among_samples(known, nf, cycles):
        return choose(samples_of(known), nf, cycles)

    def of_samples(numbered, nf):
        return cheapest([(i, method) for i, method in numbered if isinstance(method, sinusoid.Samples)], nf)

    monkeypatch.setattr(methods, "choose_among", among_samples)
    monkeypatch.setattr(sinusoid, "cheapest", of_samples)


def no_room_for_candidates(monkeypatch):
    """Let chunks have room for few candidates, so that all their objects are searched again."""
    from skysieve.periodogram.cuda.methods import Methods
    from skysieve.periodogram.cuda.sinusoid.methods import SinusoidMethods

    def tight(deal):
        def dealt(self, objects, lengths, cycles, all_candidates=False):
            parts, limits = deal(self, objects, lengths, cycles, all_candidates)
            for part in parts:
                object.__setattr__(part, "cap", part.cap if all_candidates else 5)
            return parts, limits

        return dealt

    for methods in (Methods, SinusoidMethods):
        monkeypatch.setattr(methods, "deal", tight(methods.deal))


def default_spec(**changes):
    return Spec(**({"n_peaks": 5} | changes))


def host(a):
    """A NumPy array from an array of any kind."""
    return a.get() if hasattr(a, "get") else np.asarray(a)


def tries_of(frequency, power, wanted, most, least):
    """The peaks to refine: the highest ``wanted`` at least `least` from one another, and the highest others."""
    before, after = np.r_[-np.inf, power[:-1]], np.r_[power[1:], -np.inf]
    taken = []
    peaks = np.flatnonzero(~np.isnan(power) & ~(before >= power) & ~(after > power))
    peaks = peaks[np.lexsort((peaks, -power[peaks]))]
    for j in peaks:
        if np.all(np.abs(frequency[j] - frequency[taken]) >= least):
            taken.append(j)
        if len(taken) == wanted:
            break
    return taken, [j for j in peaks if j not in taken][:most]


def check_peaks(frequency, power, exact, output, i):
    """Compare the peaks of object ``i`` with the maxima that the reference finds beside the highest samples."""
    from tests.truth import periodogram as reference

    from skysieve.periodogram.numerics.peaks import least_share, more_tries

    found, span, k = output.peak_power[i], float(output.span[i]), output.peak_index.shape[1]
    most = more_tries(int(output.n_used[i]), 1)
    first, others = tries_of(frequency, power, k, most, reference.least_distance(span))
    gaps = np.diff(frequency, prepend=frequency[0], append=frequency[-1])

    def refined(j):
        place, height = reference.refine(frequency, j, 1 / span, exact)
        return j, place, exact(frequency[j : j + 1])[0] if np.isnan(height) else height

    high = [j for j in others if power[j] >= least_share(max(gaps[j], gaps[j + 1]), span, 1) * power[first[0]]]
    expected = reference.with_highest([refined(j) for j in first], [refined(j) for j in high], span)[:k]
    index, place, height = (np.array(v) for v in zip(*expected, strict=True))
    n = len(index)
    assert (output.peak_index[i, n:] == -1).all()
    assert (found[:n] <= 1).all()
    if output.n_used[i] < 10:  # narrow maxima, several beside a sample
        samples = power[output.peak_index[i, :n]]
        assert (found[:n] >= samples - 1e-5).all()
        return
    text = f"powers of the peaks of object {i}; another rule chose them if one is missing (`tries_of`)"
    np.testing.assert_allclose(found[:n], height, rtol=0, atol=1e-9, err_msg=text)
    gaps = np.abs(np.diff(height, prepend=np.inf, append=-np.inf))
    clear = np.minimum(gaps[:-1], gaps[1:]) > 1e-8
    assert np.array_equal(index[clear], output.peak_index[i, :n][clear]), (i, expected, output.peak_index[i])
    off = np.abs(place - output.peak_frequency[i, :n]) * span
    assert (off[clear] <= 1e-5 / np.sqrt(height[clear])).all(), (i, off)  # the accuracy of the reference


def same_peaks(one, other):
    """Compare the peaks of two runs that computed the powers differently: refined maxima do not depend on that."""
    assert np.array_equal(one.peak_index, other.peak_index)
    for name in ("peak_frequency", "peak_power", "peak_curvature"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-5 if name[5] == "c" else 1e-9)


def check(engine, source, grids, tolerance, output=None, few_det=0.0, xp=np):
    """Compare powers with direct sums, and peaks with refined ones; peaks of a run without powers must be the same.

    ``tolerance`` holds where CC SS - CS^2 is above ``few_det``.  Returns the largest error at these frequencies.
    """
    spec = engine.spec
    output = run(engine, source, grids, xp=xp) if output is None else output
    start = grids.offsets(source.n_objects)
    power = host(output.power)
    plain = FlatSource(host(source.t), host(source.y), None if source.dy is None else host(source.dy), source.offsets)
    worst = 0.0
    for i in range(source.n_objects):
        assert output.status[i] == 0
        frequency = grids.frequency(i)
        mine = power[start[i] : start[i + 1]]
        if grids.values is None:
            f0, df, nf = grids.of(i)
            exact_frequency = np.longdouble(f0) + np.longdouble(df) * np.arange(nf)
        else:
            df, exact_frequency = float(np.diff(grids.values).min()), grids.values
        expected, det = direct_power(plain, i, exact_frequency, spec.fit_mean, spec.center_data)
        trusted = det > few_det
        error = float(np.abs(mine - expected)[trusted].max())
        assert error <= tolerance, (i, error)
        worst = max(worst, error)

        def exact(f, i=i):
            return direct_power(plain, i, f, spec.fit_mean, spec.center_data)[0]

        check_peaks(frequency, mine.astype(float), exact, output, i)
    alone = run(engine, source, grids, power=False)
    same_peaks(alone, output)
    assert np.array_equal(alone.method, output.method)
    return worst


ONE_AT_A_TIME = threading.Lock()
"""The host shim runs one kernel at a time; threads of several "devices" take turns."""


class FaultyModule:
    """A module in which chosen launches of one kernel fail."""

    def __init__(self, module, runtime):
        self._module, self._runtime = module, runtime

    def launch(self, kernel, *args, **kwargs):
        self._runtime.count(kernel)
        with ONE_AT_A_TIME:
            self._module.launch(kernel, *args, **kwargs)

    def attributes(self, kernel):
        return self._module.attributes(kernel)


class FaultyRuntime:
    """A runtime that raises ``error`` at the launches ``at`` of a kernel (counted from 1), or at all ``after`` one.

    ``until``: another such runtime.  Every launch waits for its first fault, for at most a minute.
    """

    def __init__(self, runtime, kernel="", error=None, at=(), after=None, until=None):
        self._runtime, self._kernel, self._error = runtime, kernel, error
        self._at, self._after, self._until = set(at), after, until
        self.faulty = threading.Event()
        self.launches, self.faults = 0, 0
        self.xp, self.device = runtime.xp, runtime.device

    def count(self, kernel):
        if kernel == self._kernel:
            self.launches += 1
            if self.launches in self._at or (self._after is not None and self.launches > self._after):
                self.faults += 1
                self.faulty.set()
                raise self._error
        if self._until is not None:
            self._until.faulty.wait(60)

    def compile_ahead(self, wanted):
        self._runtime.compile_ahead(wanted)

    def module(self, *args, **kwargs):
        return FaultyModule(self._runtime.module(*args, **kwargs), self)

    def synchronize(self):
        self._runtime.synchronize()


BAND_MODELS = {
    "offsets": ("offsets", 1, None, None, None),
    "offsets, 2 terms": ("offsets", 2, None, None, None),
    "default": ("offsets", 2, None, None, None),
    "separate": ("separate", 1, None, None, None),
    "flexible": ("flexible", 1, 1, None, 1e-6),
    "flexible, 2 terms": ("flexible", 2, 1, 1e-3, 1e-3),
}
"""Model, terms, terms of a band, and penalties, as `lombscargle_multiband` has them."""


def bands_engine(model, bands, runtime, memory=None, **spec):
    """A GPU engine for one of `BAND_MODELS`."""
    from skysieve.periodogram.cuda import engine as cuda
    from skysieve.periodogram.multiband import _model

    made, fewest = _model(*BAND_MODELS[model], bands, 0.02 if model == "default" else None)
    return cuda.Engine(default_spec(model=made, fewest=fewest, **spec), runtime=runtime, memory=memory)


def check_bands(engine, source, grids, tolerance):
    """Compare powers and peaks with direct sums on the CPU, and a run without powers with one that has them."""
    from dataclasses import replace

    from skysieve.periodogram.cpu.fourier.bands import MultibandEngine

    judge = MultibandEngine(replace(engine.spec, method="direct", dtype=np.dtype(np.float64)))
    out, expected = run(engine, source, grids), run(judge, source, grids)
    judge.close()
    assert np.array_equal(out.status, expected.status)
    assert np.array_equal(out.n_used, expected.n_used)
    assert np.array_equal(out.n_dropped, expected.n_dropped)
    assert np.array_equal(np.isnan(out.power), np.isnan(expected.power))
    scale = np.maximum(1, np.nan_to_num(np.abs(expected.power)))
    worst = float(np.nanmax(np.abs(out.power - expected.power) / scale, initial=0))
    assert worst <= tolerance, worst
    start = grids.offsets(source.n_objects)
    for i in np.flatnonzero(out.status == 0):
        if engine.spec.normalization == "standard":
            mine = out.power[start[i] : start[i + 1]].astype(float)
            found = out.peak_index[i][out.peak_index[i] >= 0]
            assert (out.peak_power[i, : len(found)] >= mine[found] - tolerance).all()
    same_maxima(out, expected)
    same_peaks(run(engine, source, grids, power=False), out)
    return out


def same_maxima(out, expected):
    """Compare the peaks of two backends, each of which has refined them itself."""
    np.testing.assert_allclose(out.peak_power, expected.peak_power, rtol=0, atol=1e-9)
    gaps = np.abs(np.diff(expected.peak_power, axis=1, prepend=np.inf, append=-np.inf))
    clear = ~(np.minimum(gaps[:, :-1], gaps[:, 1:]) < 1e-8)
    if clear.shape[1] > 1:
        clear[:, -1] = False  # a peak that is not in the list may be as high
    assert np.array_equal(out.peak_index[clear], expected.peak_index[clear])
    slack = 1e-5 / expected.span[:, None]
    assert not (np.abs(out.peak_frequency - expected.peak_frequency) > slack)[clear].any()
    np.testing.assert_allclose(out.peak_curvature[clear], expected.peak_curvature[clear], rtol=1e-3)


def check_peaks_of_many_candidates(engine, dtype):
    """Check peaks of grids of few frequencies, of more candidates than shared memory holds, and of more peaks than a
    warp has lanes; ``engine`` makes an engine from fields of `Spec`."""
    dtype = np.dtype(dtype)
    tolerance = 1e-9 if dtype == np.float64 else 2e-6
    few = engine(n_peaks=3, dtype=dtype)
    for nf in (1, 2, 3, 6, 7):
        check(few, batch([30]), shared_grid(0.5, 0.001, nf), tolerance)
    values = np.sort(np.random.default_rng(0).random(12_000)) * 400 + 0.1  # more than 2,700 maxima
    grids = Grids(values[:1], np.zeros(1), np.array([12_000]), True, values)
    check(few, batch([30]), grids, tolerance, few_det=0.01)
    for k in (40, 100):
        many = engine(n_peaks=k, method="direct", dtype=dtype)
        check(many, batch([40]), shared_grid(0.16, 0.2 / 120, 6000), tolerance, few_det=0.01)
