"""The device of array arguments and their conversion, with NumPy and with stand-ins for a GPU's arrays."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from skysieve.core.arrays import (
    Words,
    array_module,
    as_array,
    as_float64,
    from_arrow,
    is_device_array,
    to_arrow,
    to_host,
)


def test_float64_comes_back_without_a_copy():
    a = np.linspace(0, 1, 7)
    a.flags.writeable = False
    assert np.shares_memory(as_float64(a, "t"), a)


@pytest.mark.parametrize(
    "given",
    [
        [1, 2, 3],
        (1.0, 2.0, 3.0),
        np.array([1, 2, 3], ">f8"),
        np.array([1, 2, 3], ">i4"),
        np.array([1, 0, 2, 0, 3, 0], "f4")[::2],
        np.array([1, 2, 3], object),
        np.array([[1.0, 2.0, 3.0], [0, 0, 0]]).T[:, 0],
        np.ma.array([1.0, 2.0, 3.0]),
        memoryview(np.array([1.0, 2.0, 3.0])),
    ],
)
def test_numbers_of_any_kind(given):
    a = as_float64(given, "t")
    assert a.dtype == np.float64
    assert a.dtype.isnative
    assert a.flags.c_contiguous
    assert type(a) is np.ndarray
    assert np.array_equal(a, [1, 2, 3])


def test_scalars_keep_their_shape():
    assert as_float64(2.5, "dy").shape == ()


def test_masked_values_become_nan():
    a = as_float64(np.ma.array([1, 2, 3], mask=[0, 1, 0]), "y")
    assert np.array_equal(a, [1, np.nan, 3], equal_nan=True)


@pytest.mark.parametrize(
    "given",
    [["a", "b"], np.array([1j]), np.array(["2020-01-01"], "M8[D]"), np.array(["x", None], object), [[1], [1, 2]]],
)
def test_what_is_not_a_number_is_refused(given):
    with pytest.raises((TypeError, ValueError), match=r"dy has|inhomogeneous"):
        as_float64(given, "dy")


class DLPackOnly:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, a):
        self.a = a

    def __dlpack__(self, **kwargs):
        return self.a.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.a.__dlpack_device__()


def test_dlpack_in_without_a_copy():
    a = np.arange(5.0)
    assert np.shares_memory(as_array(DLPackOnly(a)), a)
    assert array_module(DLPackOnly(a)) is np


@pytest.fixture
def fake_cupy(monkeypatch):
    """A module named cupy, with a class of arrays that is unrelated to NumPy's."""

    class ndarray:
        def __init__(self, a):
            self.a = np.asarray(a)
            self.dtype = self.a.dtype
            self.__cuda_array_interface__ = {"version": 3}

    module = types.ModuleType("cupy")
    module.ndarray = ndarray
    module.asarray = lambda x, dtype=None, order=None: ndarray(np.asarray(getattr(x, "a", x), dtype, order=order))
    module.from_dlpack = lambda x: ndarray(x.a)
    module.asnumpy = lambda x: x.a.copy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_arrays_on_a_gpu_stay_on_it(fake_cupy):
    x = fake_cupy.ndarray([1, 2])
    assert is_device_array(x)
    assert array_module(x) is fake_cupy
    assert as_array(x) is x
    assert isinstance(as_float64(x, "t"), fake_cupy.ndarray)
    assert as_float64(x, "t").dtype == np.float64
    assert np.array_equal(to_host(x), [1, 2])


def test_other_libraries_on_a_gpu(fake_cupy):
    torch_like = types.SimpleNamespace(__cuda_array_interface__={}, a=np.ones(2))
    jax_like = DLPackOnly(np.ones(2))
    jax_like.__dlpack_device__ = lambda: (2, 0)
    assert isinstance(as_array(torch_like), fake_cupy.ndarray)
    assert isinstance(as_array(jax_like), fake_cupy.ndarray)


def test_a_tensor_of_the_host_that_refuses_the_question_is_of_the_host():
    class HostTensor:
        @property
        def __cuda_array_interface__(self):
            raise TypeError("not a CUDA tensor")

        def __array__(self, dtype=None, copy=None):
            return np.ones(3)

    assert array_module(HostTensor()) is np
    assert np.array_equal(as_float64(HostTensor(), "t"), np.ones(3))


def test_to_host_does_not_copy_arrays_of_the_host():
    a = np.ones(3)
    assert np.shares_memory(to_host(a), a)


@pytest.mark.parametrize("dtype", ["i1", "u8", "i8", ">i4", "f4", "f8", ">f8", "f2", "?", "U3", "O"])
def test_arrow_and_back(dtype):
    pa = pytest.importorskip("pyarrow")
    values = np.array(["a", "", "\u00e9a"] if dtype in ("U3", "O") else [1, 0, 3]).astype(dtype)
    column = to_arrow(values)
    column.validate(full=True)
    back = from_arrow(column)
    assert back.tolist() == values.tolist()
    assert from_arrow(pa.chunked_array([column[1:], column[:0], column])).tolist() == [*values[1:], *values]
    if dtype in ("i1", "u8", "i8", "f4", "f8"):
        assert back.dtype == values.dtype
        assert np.shares_memory(back, values)


def test_missing_values_of_arrow():
    pa = pytest.importorskip("pyarrow")
    whole, real = pa.array([7, None, 2**53], pa.int64()), pa.array([None, 1.5, 2.5], pa.float32())
    np.testing.assert_array_equal(from_arrow(whole[1:]), [np.nan, 2.0**53])
    np.testing.assert_array_equal(from_arrow(real), np.array([np.nan, 1.5, 2.5], np.float32))
    assert from_arrow(real).dtype == np.float32
    assert from_arrow(pa.array(["a", None])).tolist() == ["a", None]
    assert from_arrow(pa.array([], pa.float64())).tolist() == []
    assert from_arrow(pa.chunked_array([], pa.float64())).tolist() == []


def test_columns_of_text():
    pytest.importorskip("pyarrow")
    column = Words(np.array([2, 0, 2], np.uint8), np.array(["", "no", "yes"]))
    assert column.text.tolist() == to_arrow(column).to_pylist() == ["yes", "", "yes"]
    assert len(column) == 3


def test_a_column_of_arrow_has_one_dimension():
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        to_arrow(np.zeros((3, 2)))
