"""Structs that kernels take by value."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.gpu.structs import Place, Prepared, address, fill, from_place, struct

POINT = struct("x*", "count", "scale.", "stride#")


def test_the_layout_is_that_of_c():
    assert POINT.names == ("x", "count", "scale", "stride")
    assert [POINT.fields[name][1] for name in POINT.names] == [0, 8, 16, 24]
    assert POINT.itemsize == 32
    assert struct("a", "b.").itemsize == 16


def test_values():
    x = np.arange(4.0)
    made = fill(POINT, scale=0.5, x=x[1:], count=np.int32(3), stride=7)
    assert made.tolist() == (x.ctypes.data + 8, 3, 0.5, 7)
    assert fill(POINT, scale=0.5, x=None, count=3, stride=7)["x"] == 0
    outer = np.dtype([("n", np.int32), ("point", POINT)], align=True)
    assert fill(outer, n=1, point=made)["point"] == made
    assert address(x) == x.ctypes.data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": ...}, r"fields without a value: \['count'\]"),
        ({"other": 1}, r"values without a field: \['other'\]"),
    ],
)
def test_fields_and_values_must_match(change, message):
    values = {"x": None, "count": 1, "scale": 1.0, "stride": 1} | change
    with pytest.raises(TypeError, match=message):
        fill(POINT, **{name: value for name, value in values.items() if value is not ...})


def test_a_prepared_struct_is_what_fill_returns():
    x = np.arange(4.0)
    values = {"x": x, "count": 1, "scale": 0.5, "stride": 7}
    prepared = Prepared(POINT, values)
    assert prepared.value == fill(POINT, **values)
    changed = {"x": Place(x.ctypes.data + 16, 2, 8), "count": np.int32(5), "scale": 2.5}
    prepared.change(changed)
    assert prepared.value.tobytes() == fill(POINT, **values | changed).tobytes()
    prepared.change({"x": None})
    assert prepared.value["x"] == 0
    with pytest.raises(KeyError, match="other"):
        prepared.change({"other": 1})


def test_places():
    x = np.arange(6, dtype=np.float32)
    part = from_place(x, 2)
    assert (part.pointer, len(part), part.itemsize) == (x.ctypes.data + 8, 4, 4)
    assert from_place(part, 1) == Place(x.ctypes.data + 12, 3, 4)
    assert fill(POINT, scale=0.5, x=part, count=True, stride=7).tolist() == (part.pointer, 1, 0.5, 7)
