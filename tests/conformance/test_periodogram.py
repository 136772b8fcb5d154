"""The Lomb-Scargle backends against the long-double reference and against one another, through the public function.

Each test runs on every device, with the same tolerances for all backends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from tests.conformance.tolerances import DET_FLOOR, LOMB_SCARGLE, STANDARD_EXCESS
from tests.marks import slow
from tests.truth import periodogram as reference

import skysieve
from skysieve.periodogram import Status
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
EVERY = list(LOMB_SCARGLE)
CASES = [slow(*case) if case == ("float32", "finufft") else case for case in EVERY]
"""Cases of tests.  That of finufft in float32 is slow, because it compiles the code of float64 for another type."""
SPAN = 37.0

pytestmark = pytest.mark.filterwarnings("ignore:.*1/T.*:UserWarning", "ignore:.*too coarse.*:UserWarning")


class Curve(NamedTuple):
    t: NDArray[np.float64]
    y: NDArray[np.float64]
    dy: NDArray[np.float64]


def curve(n: int, seed: int = 0) -> Curve:
    """A sinusoid in noise at random times over `SPAN`, a fifth of the points ten times worse."""
    rng = np.random.default_rng([n, seed])
    t = np.sort(rng.uniform(0, SPAN, n))
    dy = rng.uniform(0.1, 0.3, n) * np.where(rng.random(n) < 0.2, 10, 1)
    return Curve(t, 15 + 0.3 * np.sin(2 * np.pi * 1.37 * t + 1) + dy * rng.standard_normal(n), dy)


_TRUE: dict[tuple[Any, ...], reference.ReferencePower] = {}


def true_power(*arrays: Any, **options: Any) -> reference.ReferencePower:
    """`reference.power`, with a cache: it is slow, and methods, types and forms of input share its results."""
    parts: list[Any] = []
    for name, x in [*enumerate(arrays), *sorted(options.items())]:
        if np.ndim(x):  # the bytes of a long double are not all defined: take two of float64
            high = np.asarray(x, np.float64)
            x = (high.shape, high.tobytes(), np.asarray(x - high, np.float64).tobytes())
        parts.append((name, x))
    key = tuple(parts)
    if key not in _TRUE:
        _TRUE[key] = reference.power(*arrays, **options)
    return _TRUE[key]


class Grid(NamedTuple):
    fmin: float
    df: float
    nf: int

    @property
    def fmax(self) -> float:
        return self.fmin + self.df * (self.nf - 1)

    @property
    def options(self) -> dict[str, Any]:
        return {"fmin": self.fmin, "fmax": self.fmax, "nf": self.nf}

    def exact(self, index: Any = None) -> NDArray[Any]:
        """The frequencies of a grid with these options, in long double."""
        step = (self.fmax - self.fmin) / (self.nf - 1)
        return reference.regular(self.fmin, step, np.arange(self.nf) if index is None else index)


GRIDS = {
    "df*T 0.1": Grid(0.05, 0.1 / SPAN, 3000),
    "df*T 0.2, below 1/T": Grid(0.1 / SPAN, 0.2 / SPAN, 1200),
    "df*T 0.013": Grid(0.4, 0.013 / SPAN, 2500),
    "df*T 0.7": Grid(0.3, 0.7 / SPAN, 700),
    "df*T 1.9": Grid(2.0, 1.9 / SPAN, 350),
    "far out": Grid(990.0, 0.15 / SPAN, 900),
    "two frequencies": Grid(1.3, 0.07, 2),
}
PLAIN = GRIDS["df*T 0.1"]


def worst(found: Any, exact: reference.ReferencePower) -> float:
    return float(np.max(np.abs(np.asarray(found) - exact.power)))


def exactly(data: Curve) -> Callable[[Any], Any]:
    """The standard power of a light curve at any frequencies."""
    return lambda f: reference.power(*data, frequency=f, precision=np.float64).power


def single(data: Curve, **options: Any) -> Any:
    return skysieve.lombscargle(*data, **options)


def as_list(curves: list[Curve], **options: Any) -> Any:
    return skysieve.lombscargle([c.t for c in curves], [c.y for c in curves], [c.dy for c in curves], **options)


def as_flat(curves: list[Curve], **options: Any) -> Any:
    t, y, dy = (np.concatenate(column) for column in zip(*curves, strict=True))
    offsets = np.concatenate([[0], np.cumsum([c.t.size for c in curves])])
    return skysieve.lombscargle(t, y, dy, offsets=offsets, **options)


def as_table(curves: list[Curve], **options: Any) -> Any:
    """Rows of the objects mixed up, as a survey's table has them."""
    t, y, dy = (np.concatenate(column) for column in zip(*curves, strict=True))
    star = np.repeat(np.arange(len(curves)), [c.t.size for c in curves])
    order = np.random.default_rng(3).permutation(t.size)
    table = {"star": star[order], "mjd": t[order], "mag": y[order], "err": dy[order]}
    return skysieve.lombscargle("mjd", "mag", "err", data=table, id="star", **options)


def as_singles(curves: list[Curve], **options: Any) -> Any:
    return [single(c, **options) for c in curves]


FORMS: dict[str, Callable[..., Any]] = {"list": as_list, "flat": as_flat, "table": as_table, "singles": as_singles}


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(("dtype", "method"), CASES)
def test_value(device: str, dtype: str, method: str, form: str) -> None:
    """Ragged batches in each form, sizes from the fewest promised to 2,000 points in one batch."""
    bound = LOMB_SCARGLE[dtype, method]
    curves = [curve(n, k) for k, n in enumerate((bound.min_points, 2000, 31, bound.min_points, 200, 64))]
    found = FORMS[form](curves, dtype=dtype, method=method, device=device, **PLAIN.options)
    index = np.arange(0, PLAIN.nf, 41)
    for i, c in enumerate(curves):
        result = found.of(i) if form == "table" else found[i]
        assert result.power.dtype == dtype
        rows = index if c.t.size > 100 else np.arange(PLAIN.nf)
        assert worst(result.power[rows], true_power(*c, frequency=PLAIN.exact(rows))) <= bound.error
        assert result.n_used == c.t.size
        assert np.all(result.power >= -STANDARD_EXCESS if dtype == "float64" else -bound.error)
        assert result.method == method or (method == "auto" and result.method in {"direct", "nufft", "finufft"})


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grid", list(GRIDS))
@pytest.mark.parametrize(("dtype", "method"), CASES)
def test_grids(device: str, dtype: str, method: str, grid: str) -> None:
    """Steps from far below to above 1/T, starts below 1/T and far from zero."""
    bound, g = LOMB_SCARGLE[dtype, method], GRIDS[grid]
    for n in (bound.min_points, 120):
        c = curve(n, 5)
        found = single(c, dtype=dtype, method=method, device=device, **g.options)
        assert worst(found.power, true_power(*c, frequency=g.exact())) <= bound.error


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "method"), CASES)
def test_same_times(device: str, dtype: str, method: str) -> None:
    """Many series on the same times (2-D y), errors for each, for none, and one row of them for all."""
    bound, c = LOMB_SCARGLE[dtype, method], curve(90)
    rng = np.random.default_rng(2)
    y = c.y + rng.standard_normal((5, 90))
    each = rng.uniform(0.1, 0.4, (5, 90))
    for dy in (each, None, c.dy, 0.3):
        found = skysieve.lombscargle(c.t, y, dy, dtype=dtype, method=method, device=device, **PLAIN.options)
        assert found.power.shape == (5, PLAIN.nf)
        index = np.arange(0, PLAIN.nf, 13)
        for i in range(5):
            error = dy[i] if isinstance(dy, np.ndarray) and dy.ndim == 2 else dy
            exact = true_power(c.t, y[i], error, frequency=PLAIN.exact(index))
            assert worst(found.power[i, index], exact) <= bound.error


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "method"), CASES)
@pytest.mark.parametrize("fit_mean", [True, False])
@pytest.mark.parametrize("center_data", [True, False])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_options(device: str, dtype: str, method: str, fit_mean: bool, center_data: bool, normalization: str) -> None:
    """Every option in every precision; the bound is that of the standard power times the normalisation's derivative."""
    c = curve(80)
    c = c._replace(y=c.y - 14.9)
    options: dict[str, Any] = {"fit_mean": fit_mean, "center_data": center_data}
    for dy in (c.dy, None):
        where: dict[str, Any] = {"dtype": dtype, "method": method, "device": device}
        found = skysieve.lombscargle(c.t, c.y, dy, normalization=normalization, **where, **options, **PLAIN.options)
        index = np.arange(0, PLAIN.nf, 7)
        exact = true_power(c.t, c.y, dy, frequency=PLAIN.exact(index), normalization=normalization, **options)
        standard = true_power(c.t, c.y, dy, frequency=PLAIN.exact(index), **options).power
        slope = {"standard": 1.0, "model": 1 / (1 - standard) ** 2, "log": 1 / (1 - standard)}.get(
            normalization, np.median(exact.power / standard)
        )
        bound = LOMB_SCARGLE[dtype, method].error + 4 * float(np.finfo(dtype).eps) * np.abs(exact.power / slope)
        assert np.all(np.abs(found.power[index] - exact.power) <= bound * slope)


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "method"), CASES)
def test_few_points(device: str, dtype: str, method: str) -> None:
    """Under the promised number of points the bound grows as 1/(CC SS - CS^2)."""
    bound = LOMB_SCARGLE[dtype, method]
    curves = [curve(n, seed) for n in range(5, bound.min_points) for seed in range(3)]
    found = as_list(curves, dtype=dtype, method=method, device=device, **PLAIN.options)
    for i, c in enumerate(curves):
        exact = true_power(*c, frequency=PLAIN.exact())
        allowed = bound.error * np.maximum(1, DET_FLOOR[dtype] / exact.det)
        assert np.all(np.abs(found.power[i] - exact.power) <= allowed), c.t.size


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", slow("float32")])
def test_irregular_frequencies(device: str, dtype: str) -> None:
    """A list of frequencies in no order, some twice, is answered in its own order."""
    rng = np.random.default_rng(4)
    frequency = rng.uniform(0.01, 9, 500)
    frequency[[3, 77]] = frequency[[200, 10]]
    curves = [curve(n) for n in (30, 300, 50)]
    found = as_list(curves, frequency=frequency, dtype=dtype, device=device)
    np.testing.assert_array_equal(found.frequency, frequency)
    for i, c in enumerate(curves):
        assert worst(found.power[i], true_power(*c, frequency=frequency)) <= LOMB_SCARGLE[dtype, "direct"].error
        rising = np.unique(frequency)
        expected = reference.peaks(rising, true_power(*c, frequency=rising).power, 1, float(np.ptp(c.t)), exactly(c))
        assert frequency[found.peaks.index[i, 0]] == rising[expected.index[0]]
        assert found.peaks.frequency[i, 0] == pytest.approx(expected.frequency[0], abs=1e-7 / SPAN)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "method"), CASES)
def test_batch_is_a_loop_of_singles(device: str, dtype: str, method: str) -> None:
    """To the last bit; and the place of an object in the batch does not matter."""
    curves = [curve(n, k) for k, n in enumerate((12, 700, 33, 5, 150, 40, 90, 12))]
    options: dict[str, Any] = {"dtype": dtype, "method": method, "device": device, "n_peaks": 4, **PLAIN.options}
    batch = as_list(curves, **options)
    order = np.random.default_rng(1).permutation(len(curves))
    shuffled = as_list([curves[i] for i in order], **options)
    for i, c in enumerate(curves):
        alone = single(c, **options)
        for other in (alone, shuffled[int(np.flatnonzero(order == i)[0])]):
            np.testing.assert_array_equal(batch.power[i], other.power)
            np.testing.assert_array_equal(batch.peaks.index[i], other.peaks.index)
            np.testing.assert_array_equal(batch.peaks.frequency[i], other.peaks.frequency)
            np.testing.assert_array_equal(batch.peaks.power[i], other.peaks.power)


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "method"), CASES)
@pytest.mark.parametrize("return_power", [True, False])
def test_chunks_and_threads(device: str, dtype: str, method: str, return_power: bool) -> None:
    """A small memory, another number of threads: the same bits."""
    curves = [curve(20 + 7 * (k % 30), k) for k in range(60)]
    options: dict[str, Any] = {"dtype": dtype, "method": method, "device": device, "n_peaks": 3}
    options |= {"return_power": return_power, **PLAIN.options}
    plain = as_flat(curves, **options)
    for change in ({"memory": "3 MiB"}, {"threads": 1}, {"threads": 2}, {"memory": "3 MiB", "threads": 2}):
        other = as_flat(curves, **options, **change)
        np.testing.assert_array_equal(plain.peaks.index, other.peaks.index)
        np.testing.assert_array_equal(plain.peaks.frequency, other.peaks.frequency)
        np.testing.assert_array_equal(plain.peaks.power, other.peaks.power)
        if return_power:
            np.testing.assert_array_equal(plain.power, other.power)
        else:
            assert other.power is None


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
def test_one_grid_an_object(device: str, method: str) -> None:
    """Grids from each object's own time span: each equals the object alone."""
    curves = [curve(n, k) for k, n in enumerate((12, 60, 31))]
    curves = [c._replace(t=c.t * (1 + k)) for k, c in enumerate(curves)]
    found = as_list(curves, method=method, device=device, n_peaks=2)
    for i, c in enumerate(curves):
        alone = single(c, method=method, device=device, n_peaks=2)
        np.testing.assert_array_equal(found.frequency[i], alone.frequency)
        np.testing.assert_array_equal(found.power[i], alone.power)
        exact = true_power(*c, frequency=alone.frequency)
        assert worst(alone.power, exact) <= LOMB_SCARGLE["float64", method].error + 1e-12
        peaks = reference.peaks(alone.frequency, alone.power, 2, float(np.ptp(c.t)), exactly(c))
        np.testing.assert_array_equal(found.peaks.index[i], peaks.index)


BAD_OBJECTS: dict[str, tuple[Curve, Status]] = {
    "empty": (Curve(np.empty(0), np.empty(0), np.empty(0)), Status.EMPTY),
    "all NaN": (curve(20)._replace(y=np.full(20, np.nan)), Status.EMPTY),
    "one row": (curve(1), Status.TOO_FEW_POINTS),
    "two rows": (curve(2), Status.TOO_FEW_POINTS),
    "two good rows": (curve(20)._replace(t=np.r_[np.full(18, np.inf), 1.0, 2]), Status.TOO_FEW_POINTS),
    "equal times": (curve(20)._replace(t=np.full(20, 3.0)), Status.EQUAL_TIMES),
    "constant y": (curve(20)._replace(y=np.full(20, 0.1)), Status.CONSTANT_Y),
    "dy zero": (curve(20)._replace(dy=np.r_[np.full(19, 0.1), 0.0]), Status.BAD_ERRORS),
    "dy negative": (curve(20)._replace(dy=np.r_[-1.0, np.full(19, 0.1)]), Status.BAD_ERRORS),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "method"), CASES)
def test_bad_objects_do_not_spoil_a_batch(device: str, dtype: str, method: str) -> None:
    """NaN and a status for each bad object; the good ones between them as if alone."""
    good = curve(50, 9)
    curves = [good]
    for bad, _ in BAD_OBJECTS.values():
        curves += [bad, good]
    options: dict[str, Any] = {"dtype": dtype, "method": method, "device": device, "n_peaks": 2, **PLAIN.options}
    found, alone = as_list(curves, **options), single(good, **options)
    for i, (_, status) in enumerate(BAD_OBJECTS.values()):
        assert found.status[2 * i + 1] == status, list(BAD_OBJECTS)[i]
        assert np.all(np.isnan(found.power[2 * i + 1]))
        assert np.all(np.isnan(found.peaks.period[2 * i + 1]))
        assert np.all(found.peaks.index[2 * i + 1] == -1)
    for i in range(0, len(curves), 2):
        assert found.status[i] == Status.OK
        np.testing.assert_array_equal(found.power[i], alone.power)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(BAD_OBJECTS))
def test_bad_object_alone_raises(device: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"\w{3}"):
        single(BAD_OBJECTS[name][0], device=device, **PLAIN.options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
def test_rows_that_are_not_finite_are_dropped(device: str, method: str) -> None:
    """NaN and inf anywhere in a row, and masked rows: the row is left out, and counted."""
    c = curve(60)
    keep = np.ones(60, bool)
    keep[[0, 13, 14, 40, 59]] = False
    t, y, dy = (a.copy() for a in c)
    t[0], t[59], y[13], y[14], dy[40] = np.nan, np.inf, np.nan, -np.inf, np.nan
    expected = single(Curve(c.t[keep], c.y[keep], c.dy[keep]), method=method, device=device, **PLAIN.options)
    masked = np.ma.array(c.y, mask=~keep)
    for found in (
        skysieve.lombscargle(t, y, dy, method=method, device=device, **PLAIN.options),
        skysieve.lombscargle(c.t, masked, c.dy, method=method, device=device, **PLAIN.options),
    ):
        assert (found.n_used, found.n_dropped) == (55, 5)
        np.testing.assert_array_equal(found.power, expected.power)
    with pytest.raises(ValueError, match=r"t|y|dy"):
        skysieve.lombscargle(t, y, dy, nan_policy="raise", method=method, device=device, **PLAIN.options)


def unsorted(c: Curve) -> Curve:
    order = np.random.default_rng(5).permutation(c.t.size)
    return Curve(*(a[order] for a in c))


def read_only(c: Curve) -> Curve:
    copies = Curve(*(a.copy() for a in c))
    for a in copies:
        a.flags.writeable = False
    return copies


DISGUISES: dict[str, Callable[[Curve], Any]] = {
    "reversed": lambda c: Curve(*(a[::-1] for a in c)),
    "unsorted": unsorted,
    "big-endian": lambda c: Curve(*(a.astype(">f8") for a in c)),
    "strided": lambda c: Curve(*(np.repeat(a, 3)[::3] for a in c)),
    "read-only": read_only,
    "lists": lambda c: tuple(a.tolist() for a in c),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("disguise", list(DISGUISES))
@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
def test_the_same_data_in_other_containers(device: str, method: str, disguise: str) -> None:
    c = curve(70)
    expected = single(c, method=method, device=device, **PLAIN.options)
    found = skysieve.lombscargle(*DISGUISES[disguise](c), method=method, device=device, **PLAIN.options)
    np.testing.assert_array_equal(found.power, expected.power)
    np.testing.assert_array_equal(found.peaks.frequency, expected.peaks.frequency)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "method"), CASES)
def test_integers_and_duplicates(device: str, dtype: str, method: str) -> None:
    """Whole-number columns, and times that occur more than once."""
    rng = np.random.default_rng(6)
    t, y, dy = rng.integers(0, 40, 60), rng.integers(-50, 50, 60), rng.integers(1, 9, 60)
    assert np.unique(t).size < 60
    g = Grid(0.0123, 0.0025, 190)  # below 1/2 a day, where the sine vanishes on whole days
    found = skysieve.lombscargle(t, y, dy, dtype=dtype, method=method, device=device, **g.options)
    assert worst(found.power, true_power(t, y, dy, frequency=g.exact())) <= LOMB_SCARGLE[dtype, method].error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
def test_one_column_fits_are_finite_or_nan(device: str, method: str) -> None:
    """At f = 1/2 on whole days the sine vanishes: the power is that of the cosine, or NaN; never noise."""
    rng = np.random.default_rng(6)
    t = np.sort(rng.choice(100, 60, replace=False)).astype(float)
    y = rng.standard_normal(60)
    found = skysieve.lombscargle(t, y, fmin=0.25, fmax=1.0, nf=4, method=method, device=device)
    exact = true_power(t, y, frequency=[0.25, 0.5, 0.75, 1.0]).power
    assert np.all(np.isnan(found.power) | (np.abs(found.power - exact) < 1e-9))
    assert np.all(np.isfinite(found.power[[0, 2]]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
def test_inputs_are_never_changed(device: str, method: str) -> None:
    c = unsorted(curve(70))
    c.y[3], c.t[11], c.dy[20] = np.nan, np.inf, np.nan
    copies = [a.copy() for a in c]
    single(c, method=method, device=device, **PLAIN.options)
    as_list([c, c], method=method, device=device, return_power=False, **PLAIN.options)
    flat = Curve(*(np.concatenate([a, a]) for a in c))
    skysieve.lombscargle(*flat, offsets=np.array([0, 70, 140]), method=method, device=device, **PLAIN.options)
    for a, b, f in zip(c, copies, flat, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(f, np.concatenate([b, b]))


@pytest.mark.parametrize("device", DEVICES)
def test_extreme_scales(device: str) -> None:
    """Brightness and errors far from 1, and a mean far above the signal: the same power."""
    c = curve(80)
    for factor in (1e-150, 1e-30, 1e30, 1e150):
        found = skysieve.lombscargle(c.t, c.y * factor, c.dy * factor, device=device, **PLAIN.options)
        assert worst(found.power, true_power(*c, frequency=PLAIN.exact())) <= LOMB_SCARGLE["float64", "auto"].error
    far = c._replace(y=c.y + 1e6)  # rounds y itself: the reference sees the rounded one
    found = single(far, device=device, **PLAIN.options)
    assert worst(found.power, true_power(*far, frequency=PLAIN.exact())) <= LOMB_SCARGLE["float64", "auto"].error
