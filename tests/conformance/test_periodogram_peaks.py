"""Refined peaks of every engine against brute force: see `tests.truth.peaks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.marks import slow
from tests.truth.peaks import Exact, check_peaks

from skysieve.core.device import resolve
from skysieve.periodogram.contract import Grids, Output, Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SPAN = 60.0


class Flat:
    """Light curves one after another: sinusoids in noise, random and nightly times, some far from zero."""

    has_dy = True

    def __init__(self, sizes: list[int], seed: int) -> None:
        rng = np.random.default_rng([seed, *sizes])
        self.offsets: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        t = rng.uniform(0, SPAN, len(owner))
        self.t = np.where(owner % 2 == 0, t, np.floor(t) + 0.3 * (t % 1)) + 58_000.0 * (owner % 3 == 1)
        self.dy = rng.uniform(0.3, 1, len(owner))
        amplitude = np.array([0.0, 1.0, 5.0])[owner % 3]
        self.y = 15 + amplitude * np.sin(2 * np.pi * 0.77 * self.t) + self.dy * rng.standard_normal(len(owner))

    @property
    def n_objects(self) -> int:
        return len(self.offsets) - 1

    flat = True

    def row(self, i: int, j: int) -> int:
        return j

    def read(self, start: int, stop: int, empty: Any = None) -> Any:
        rows = slice(int(self.offsets[start]), int(self.offsets[stop]))
        return self.t[rows], self.y[rows], self.dy[rows], self.offsets[start : stop + 1] - self.offsets[start]


def regular(samples_per_peak: float, low: float = 0.1, high: float = 1.2) -> Grids:
    df = 1 / (samples_per_peak * SPAN)
    return Grids(np.array([low]), np.array([df]), np.array([int((high - low) / df)]), shared=True)


def run(device: str, spec: Spec, source: Flat, grids: Grids) -> Output:
    from skysieve.periodogram.api import make_engine

    engine = make_engine(spec, resolve(device)[:1], None, None)
    output = Output.allocate(source.n_objects, spec.n_peaks)
    engine.execute(source, grids, output)
    engine.close()
    return output


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("samples_per_peak", [2, 5, 10, 300])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_samples_per_peak(device: str, dtype: str, samples_per_peak: float) -> None:
    """Coarse grids, and grids so fine that the rounding of float32 chooses the highest sample."""
    spec = Spec(n_peaks=2, return_power=False, dtype=np.dtype(dtype))
    sizes = [34, 60, 200, 40] if samples_per_peak < 5 else [8, 12, 40, 200]
    source = Flat(sizes, 1)
    grids = regular(samples_per_peak, *((0.7, 0.8) if samples_per_peak > 100 else (0.1, 1.2)))
    assert check_peaks(spec, source, grids, run(device, spec, source, grids)) >= 4


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mean", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
def test_models_and_normalisations(device: str, normalization: str, mean: tuple[bool, bool]) -> None:
    """Peaks are the maxima of the standard power, whichever normalisation is returned."""
    spec = Spec(mean[0], mean[1], normalization, n_peaks=3, return_power=False)
    source, grids = Flat([9, 30, 75], 2), regular(5)
    assert check_peaks(spec, source, grids, run(device, spec, source, grids)) == 9


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nterms", [2, slow(4)])
def test_series(device: str, nterms: int) -> None:
    spec = Spec(n_peaks=2, return_power=False, nterms=nterms)
    source, grids = Flat([40, 90, 55], 3), regular(8, 0.3, 1.0)
    assert check_peaks(spec, source, grids, run(device, spec, source, grids)) == 6


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_peaks", [1, 6])
def test_the_highest_of_several_maxima_within_one_over_the_span(device: str, n_peaks: int) -> None:
    """Two short runs, one at each end: neighbouring maxima of two terms, half of 1/T from one another."""
    rng = np.random.default_rng(8)
    source, n = Flat([100] * 12, 9), 1200
    source.t = rng.uniform(0, 0.05 * SPAN, n) + 0.95 * SPAN * rng.integers(0, 2, n)
    source.y = 2 * np.sin(2 * np.pi * 0.77 * source.t) + rng.standard_normal(n)
    spec, grids = Spec(n_peaks=n_peaks, return_power=False, nterms=2), regular(5, 0.6, 1.0)
    output = run(device, spec, source, grids)
    assert check_peaks(spec, source, grids, output) == 12 * n_peaks
    for i in range(12):
        rows = slice(100 * i, 100 * i + 100)
        truth = Exact(source.t[rows], source.y[rows], source.dy[rows], terms=2)
        f = np.linspace(*grids.frequency()[[0, -1]], 2000)
        at = int(np.argmax(truth(f)))
        assert output.peak_power[i, 0] > truth.highest(f[max(at - 1, 0)], f[min(at + 1, 1999)])[1] - 1e-9


@pytest.mark.parametrize("device", DEVICES)
def test_lists_of_frequencies(device: str) -> None:
    values = np.sort(np.concatenate([np.random.default_rng(5).uniform(0.2, 1.2, 250), [2.0, 2.00001, 3.5]]))
    grids = Grids(values[:1], np.zeros(1), np.array([len(values)]), shared=True, values=values)
    spec, source = Spec(n_peaks=3, return_power=False), Flat([40, 120], 4)
    assert check_peaks(spec, source, grids, run(device, spec, source, grids)) == 6
