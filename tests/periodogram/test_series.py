"""Every form in which light curves may be given, and what the backends read of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from astropy import units as u
from astropy.table import MaskedColumn, QTable, Table
from astropy.time import Time, TimeDelta
from astropy.timeseries import TimeSeries
from astropy.utils.masked import Masked
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from skysieve.periodogram.lightcurves.arrays import group_rows
from skysieve.periodogram.lightcurves.sources import light_curves

T = np.array([3.0, 1.0, 2.0, 7.5, 4.0])
Y = np.array([0.5, 0.25, -1.0, 2.0, 9.0])
DY = np.array([0.1, 0.2, 0.3, 0.4, 0.5])


def whole(curves):
    return curves.source.read(0, curves.source.n_objects)


def check(curves, t, y, dy, offsets):
    """What is read is native float64 and equal to the numbers given, whole and object by object."""
    got_t, got_y, got_dy, got_offsets = whole(curves)
    for got, expected in ((got_t, t), (got_y, y), (got_dy, dy)):
        if expected is None:
            assert got is None
            continue
        assert got.dtype == np.float64
        assert got.dtype.isnative
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(got_offsets, offsets)
    np.testing.assert_array_equal(curves.source.offsets, offsets)
    assert curves.source.has_dy == (dy is not None)
    assert curves.source.n_objects == len(offsets) - 1
    for i in range(len(offsets) - 1):
        part = slice(offsets[i], offsets[i + 1])
        one_t, one_y, one_dy, one_offsets = curves.source.read(i, i + 1)
        np.testing.assert_array_equal(one_t, np.asarray(t)[part])
        np.testing.assert_array_equal(one_y, np.asarray(y)[part])
        np.testing.assert_array_equal(one_offsets, [0, offsets[i + 1] - offsets[i]])
        if dy is not None:
            np.testing.assert_array_equal(one_dy, np.asarray(dy)[part])


def test_one_light_curve_is_read_without_a_copy():
    for array in (T, Y, DY):
        array.flags.writeable = False
    curves = light_curves(T, Y, DY)
    check(curves, T, Y, DY, [0, 5])
    assert curves.single
    assert all(np.shares_memory(a, b) for a, b in zip(whole(curves), (T, Y, DY), strict=False))
    assert not light_curves(T, Y).source.has_dy


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        lambda x: x.astype(">f8"),
        lambda x: np.repeat(x, 2)[::2],
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.ma.MaskedArray(x),
        lambda x: Masked(x),
        pd.Series,
        lambda x: pd.Series(x, dtype="Float64"),
        lambda x: np.rec.fromarrays([np.zeros(5, "i1"), x]).f1,
        lambda x: x.astype(np.longdouble),
    ],
)
def test_any_container_of_numbers(form):
    check(light_curves(form(T), form(Y), form(DY)), T, Y, DY, [0, 5])


def test_whole_numbers_and_mixed_types_are_upcast():
    t, y, dy = np.array([5, 1, 3], ">i4"), np.array([1, 2, 3], "u1"), np.array([1, 1, 2], "f4")
    check(light_curves(t, y, dy), [5.0, 1.0, 3.0], [1.0, 2.0, 3.0], [1.0, 1.0, 2.0], [0, 3])


@pytest.mark.parametrize(
    "masked",
    [
        np.ma.MaskedArray(Y, mask=[0, 1, 0, 0, 1]),
        MaskedColumn(Y, mask=[0, 1, 0, 0, 1]),
        Masked(Y, mask=[False, True, False, False, True]),
        pd.Series([0.5, None, -1.0, 2.0, None], dtype="Float64"),
        [0.5, np.nan, -1.0, 2.0, np.nan],
    ],
)
def test_masked_values_become_nan(masked):
    expected = [0.5, np.nan, -1.0, 2.0, np.nan]
    check(light_curves(T, masked), T, expected, None, [0, 5])
    whole_numbers = np.ma.MaskedArray([1, 2, 3, 4, 5], mask=[0, 0, 0, 0, 1])
    check(light_curves(T, whole_numbers), T, [1.0, 2.0, 3.0, 4.0, np.nan], None, [0, 5])


@pytest.mark.parametrize(
    ("dy", "expected"),
    [
        (0.5, np.full(10, 0.5)),
        (DY, np.tile(DY, 2)),
        (np.arange(1.0, 11).reshape(2, 5), np.arange(1.0, 11)),
        (np.array([[1.0], [2.0]]), np.repeat([1.0, 2.0], 5)),
    ],
)
def test_many_on_the_same_times(dy, expected):
    y = np.stack([Y, Y + 1])
    curves = light_curves(T, y, dy)
    check(curves, np.tile(T, 2), y.ravel(), expected, [0, 5, 10])
    assert curves.same_times
    assert not curves.single
    assert np.shares_memory(whole(curves)[1], y)


def test_times_of_their_own_for_each_row():
    t, y = np.stack([T, T + 0.5]), np.stack([Y, Y + 1])
    curves = light_curves(t, y)
    check(curves, t.ravel(), y.ravel(), None, [0, 5, 10])
    assert not curves.same_times


def test_a_batch_of_one_is_no_single_light_curve():
    assert not light_curves(T, Y[None]).single
    assert light_curves(T, Y).single


def test_lists_of_arrays():
    t, y = [T, T[:2], T[:0], list(T[1:4])], [Y, Y[:2].astype("f4"), Y[:0], Y[1:4].astype(">f8")]
    offsets = [0, 5, 7, 7, 10]
    flat_t, flat_y = np.concatenate([T, T[:2], T[1:4]]), np.concatenate([Y, Y[:2], Y[1:4]])
    check(light_curves(t, y), flat_t, flat_y, None, offsets)
    dy = [DY, DY[:2], DY[:0], DY[1:4]]
    check(light_curves(tuple(t), y, dy), flat_t, flat_y, np.concatenate([DY, DY[:2], DY[1:4]]), offsets)
    check(light_curves(t, y, 0.3), flat_t, flat_y, np.full(10, 0.3), offsets)
    check(light_curves(t, y, [0.1, 0.2, 0.3, 0.4]), flat_t, flat_y, np.repeat([0.1, 0.2, 0.4], [5, 2, 3]), offsets)
    objects = np.empty(4, object)
    objects[:] = y
    check(light_curves(t, objects), flat_t, flat_y, None, offsets)
    shared = light_curves(T, [Y, Y + 1])
    check(shared, np.tile(T, 2), np.concatenate([Y, Y + 1]), None, [0, 5, 10])
    assert shared.same_times


def test_flat_arrays_with_offsets_are_read_without_a_copy():
    curves = light_curves(T, Y, 0.5, offsets=[0, 2, 2, 5])
    check(curves, T, Y, np.full(5, 0.5), [0, 2, 2, 5])
    t, y, _, _ = curves.source.read(1, 3)
    assert np.shares_memory(t, T)
    assert np.shares_memory(y, Y)


@settings(deadline=None)
@given(
    hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-3, 3)),
    st.sampled_from([np.int64, str, "S4", object]),
)
def test_rows_are_grouped_by_id_in_order_of_appearance(codes, kind):
    ids = codes.astype(str).astype(object) if kind is object else codes.astype(kind)
    names, offsets, order = group_rows(ids)
    order = np.arange(len(ids)) if order is None else order
    seen = list(dict.fromkeys(ids.tolist()))
    assert names.tolist() == [name.decode() if kind == "S4" else name for name in seen]
    assert offsets[0] == 0
    assert offsets[-1] == len(ids)
    for i, name in enumerate(seen):
        np.testing.assert_array_equal(order[offsets[i] : offsets[i + 1]], np.flatnonzero(ids == name))


def test_id_per_row():
    curves = light_curves(T, Y, DY, id=["b", "a", "b", "b", "a"])
    order = [0, 2, 3, 1, 4]
    check(curves, T[order], Y[order], DY[order], [0, 3, 5])
    assert curves.ids.tolist() == ["b", "a"]
    assert [curves.source.row(1, j) for j in (0, 1)] == [1, 4]
    together = light_curves(T, Y, id=np.array([7, 7, 3, 3, 3]))
    check(together, T, Y, None, [0, 2, 5])
    assert np.shares_memory(whole(together)[0], T)
    assert together.ids.tolist() == [7, 3]


COLUMNS = {"time": T, "mag": Y, "err": DY, "star": np.array(["b", "a", "b", "b", "a"])}


@pytest.mark.parametrize("make", [dict, Table, QTable, pd.DataFrame])
def test_tables_by_column_name(make):
    table = make(COLUMNS)
    order = [0, 2, 3, 1, 4]
    curves = light_curves("time", "mag", "err", data=table, id="star")
    check(curves, T[order], Y[order], DY[order], [0, 3, 5])
    assert curves.ids.tolist() == ["b", "a"]
    check(light_curves("time", "mag", 0.1, data=table), T, Y, np.full(5, 0.1), [0, 5])
    for wrong, argument in ((("when", "mag"), "t='when'"), (("time", "flux"), "y='flux'")):
        with pytest.raises(
            ValueError, match=rf"{argument} is not a column of data: expected one of time, mag, err, star"
        ):
            light_curves(*wrong, data=table)
    with pytest.raises(ValueError, match=r"id='name' is not a column"):
        light_curves("time", "mag", data=table, id="name")
    with pytest.raises(TypeError, match=r"t is a table; pass it as data="):
        light_curves(table, "mag")


def test_arrow_table():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"time": T, "mag": pyarrow.array([0.5, None, -1.0, 2.0, 9.0]), "star": list("baaab")})
    curves = light_curves("time", "mag", data=table, id="star")
    assert curves.ids.tolist() == ["b", "a"]
    np.testing.assert_array_equal(whole(curves)[1], [0.5, 9.0, np.nan, -1.0, 2.0])


def test_time_becomes_days_since_the_first_to_the_last_bit():
    days = np.array([0.1, 0.0, 3652.25, 1e-9])
    time = Time(2_460_000.5, days, format="jd", scale="tdb")
    curves = light_curves(time, Y[:4])
    assert curves.units.time == u.day
    np.testing.assert_allclose(whole(curves)[0], days - 0.1, rtol=0, atol=1e-12)
    delta = light_curves(TimeDelta(days, format="jd"), Y[:4])
    np.testing.assert_allclose(whole(delta)[0], days, rtol=0, atol=1e-12)
    series = TimeSeries(time=time, data={"flux": Y[:4] * u.Jy})
    from_series = light_curves("time", "flux", data=series)
    assert from_series.units.y == u.Jy
    assert np.ptp(whole(from_series)[0]) == pytest.approx(3652.25)


def test_masked_time():
    time = Time([2451545.0, 2451546.0, 2451548.0], format="jd")
    time[0] = np.ma.masked
    np.testing.assert_allclose(whole(light_curves(time, [1, 2, 3.0]))[0], [np.nan, 0.0, 2.0])


def test_units_are_taken_off_and_must_agree():
    curves = light_curves(T * u.hour, Y * u.mag, DY * 1000 * u.mmag if hasattr(u, "mmag") else DY * u.mag)
    check(curves, T, Y, whole(curves)[2], [0, 5])
    np.testing.assert_allclose(whole(curves)[2], DY)
    assert (curves.units.time, curves.units.y) == (u.hour, u.mag)
    scaled = light_curves(T, Y * u.Jy, DY * 1000 * u.mJy)
    np.testing.assert_allclose(whole(scaled)[2], DY)
    assert scaled.units.time is None
    many = light_curves([T * u.day, T * 24 * u.hour], [Y * u.Jy, Y * 1000 * u.mJy], [DY * u.Jy, DY * u.Jy])
    np.testing.assert_allclose(whole(many)[0], np.tile(T, 2))
    np.testing.assert_allclose(whole(many)[1], np.tile(Y, 2))
    magnitude = light_curves(T, Y * u.ABmag, DY * u.mag)
    assert magnitude.units.y == u.mag
    column = Table({"t": T, "y": Y}, units={"t": u.day})
    assert light_curves("t", "y", data=column).units.time == u.day
    masked = light_curves(Masked(T, mask=[1, 0, 0, 0, 0]) * u.s, Y)
    np.testing.assert_array_equal(whole(masked)[0], [np.nan, *T[1:]])


@pytest.mark.parametrize(
    ("t", "y", "dy", "words"),
    [
        (T, Y * u.mag, DY * u.Jy, "dy has the unit Jy; one that converts to mag"),
        (T, Y * u.mag, DY, "dy has no unit; one that converts to mag"),
        (T, Y, DY * u.mag, "dy has the unit mag, but y has none"),
        ([T * u.day, T * u.Jy], [Y, Y], None, r"t\[1\] has the unit Jy; one that converts to d"),
        ([T, T * u.day], [Y, Y], None, r"t\[1\] has the unit d, but t\[0\] has none"),
        ([T, T], [Y * u.mag, Y], None, r"y\[1\] has no unit"),
        ([T, T], [Y, Y * u.mag], None, r"y\[1\] has the unit mag, but y\[0\] has none"),
    ],
)
def test_units_that_do_not_agree(t, y, dy, words):
    with pytest.raises(ValueError, match=words):
        light_curves(t, y, dy)


def test_single_precision_times_are_reported_with_their_resolution():
    assert light_curves(T, Y).resolution == 0
    assert light_curves(np.arange(5), Y).resolution == 0
    jd = (2_458_652.0 + T).astype(np.float32)
    assert light_curves(jd, Y).resolution == 0.25
    assert light_curves([T, jd], [Y, Y]).resolution == 0.25
    assert light_curves(np.array([np.nan, 1.5, 3.0], ">f4"), Y[:3]).resolution == np.spacing(np.float32(3.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((T, Y[:4]), r"t has shape \(5,\), which does not fit y of shape \(4,\)"),
        ((T, Y, DY[:3]), r"dy has shape \(3,\), which does not fit y"),
        ((T[:2], np.ones((2, 5))), r"did you mean y\.T"),
        ((T, np.ones((2, 2, 5))), r"y has shape \(2, 2, 5\)"),
        ((3.0, 1.0), r"t has shape \(\)"),
        (([], []), r"t and y are empty"),
        ((T, np.ones((3, 0))), r"t has shape \(5,\)"),
        (([T, T], 3.0), r"t is a list of light curves, y is 3\.0"),
        (([T, T], [Y]), r"t has 2 light curves, y has 1"),
        (([T, T], [Y, Y], [DY]), r"dy has 1 light curves, y has 2"),
        (([T, T], [Y, Y[:3]]), r"t\[1\] has shape \(5,\) and y\[1\] has shape \(3,\)"),
        (([T, T], [Y, Y], [DY, DY[:2]]), r"dy\[1\] has shape \(2,\)"),
        (([T, [[1.0, 2.0]]], [Y, [[1.0, 2.0]]]), r"t\[1\] has shape \(1, 2\)"),
    ],
)
def test_shapes_that_do_not_fit(arguments, words):
    with pytest.raises(ValueError, match=words):
        light_curves(*arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"offsets": [0, 3]}, r"offsets go from 0 to 3; from 0 to the number of rows, 5"),
        ({"offsets": [1, 5]}, r"offsets go from 1 to 5"),
        ({"offsets": [0, 4, 3, 5]}, r"offsets\[2\] = 3 is below offsets\[1\] = 4"),
        ({"offsets": []}, r"offsets"),
        ({"offsets": [[0, 5]]}, r"offsets has shape \(1, 2\)"),
        ({"id": [1, 2]}, r"id has 2 rows, t and y have 5"),
        ({"id": np.ones((5, 1))}, r"id has shape \(5, 1\)"),
        ({"id": [1.0, 2.0, np.nan, 1.0, 1.0]}, r"id of row 2 is nan"),
        ({"id": np.ma.MaskedArray([1, 2, 3, 4, 5], mask=[0, 0, 0, 1, 0])}, r"id of row 3 is masked"),
        ({"id": [1] * 5, "offsets": [0, 5]}, r"offsets and id are both given"),
    ],
)
def test_offsets_and_ids_that_do_not_fit(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        light_curves(T, Y, **options)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (np.array(list("abcde")), "text"),
        (Y + 1j, "complex"),
        (np.array([1, {}, 2, 3, 4], object), "objects"),
        (Y > 0, "booleans"),
        (pd.Series(["a"] * 5), "text|objects"),
    ],
)
@pytest.mark.parametrize("name", ["t", "y", "dy"])
def test_what_is_no_number_is_a_type_error(bad, kind, name):
    arguments = {"t": T, "y": Y, "dy": DY, name: bad}
    with pytest.raises(TypeError, match=rf"^{name} holds .*({kind})"):
        light_curves(**arguments)


@pytest.mark.parametrize("name", ["y", "dy"])
def test_dates_are_times_and_no_values(name):
    dates = np.arange(5).astype("M8[D]")
    with pytest.raises(TypeError, match=f"^{name} holds dates"):
        light_curves(**{"t": T, "y": Y, "dy": DY, name: dates})
    np.testing.assert_array_equal(np.diff(light_curves(dates, Y).source.read(0, 1)[0]), 1.0)


def test_text_in_place_of_an_array():
    with pytest.raises(TypeError, match=r"t='time' is text; .* or a table as data="):
        light_curves("time", Y)
    with pytest.raises(TypeError, match=r"offsets has dtype float64"):
        light_curves(T, Y, offsets=[0.0, 5.0])
    with pytest.raises(TypeError, match=r"id of row 1 is None"):
        light_curves(T, Y, id=np.array(["a", None, "a", "a", "a"], object))
