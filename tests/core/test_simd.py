"""The builder of vector code, in small intrinsics compiled by numba."""

from __future__ import annotations

import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic

from skysieve.core.cpu.jit import njit
from skysieve.core.cpu.simd import BYTES, VectorBuilder


@intrinsic
def sums_of_squares(typingctx, x, first, stop, factor, out):
    """``out[lane]`` = ``factor`` times the sum of ``x[i + lane]**2``, minus 1, for ``i`` from ``first`` in vectors."""
    sig = types.void(x, types.intp, types.intp, x.dtype, out)

    def codegen(context, builder, signature, args):
        e = VectorBuilder(context, builder, signature.args[0])
        source, target = e.data(signature.args[0], args[0]), e.data(signature.args[4], args[4])
        (total,) = e.variables(1)

        def body(index):
            value = e.load(source, index)
            builder.store(e.fma(value, value, builder.load(total)), total)

        e.loop(args[1], args[2], e.lanes, body)
        scaled = builder.fmul(builder.load(total), e.splat(args[3]))
        zero = args[1].type(0)
        e.store(builder.fadd(scaled, e.neg(e.constant(1.0))), target, zero, 2)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def item_behind(typingctx, x, index):
    """``x[index + 3]``."""

    def codegen(context, builder, signature, args):
        e = VectorBuilder(context, builder, signature.args[0], lanes=4)
        assert (e.lanes, e.size) == (4, 4)
        return e.item(e.data(signature.args[0], args[0]), args[1], 3)

    return x.dtype(x, types.intp), codegen


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_loop_over_vectors(dtype):
    lanes = BYTES // np.dtype(dtype).itemsize
    x = np.random.default_rng(1).integers(-9, 10, 5 * lanes + 1).astype(dtype)
    out = np.full(lanes + 3, 7, dtype)
    njit(lambda x, a, b, f, out: sums_of_squares(x, a, b, f, out))(x, 1, 1 + 4 * lanes, dtype(2), out)
    expected = 2 * (x[1 : 1 + 4 * lanes].reshape(4, lanes) ** 2).sum(axis=0) - 1
    assert np.array_equal(out, np.concatenate([[7, 7], expected, [7]]).astype(dtype))


def test_one_element():
    x = np.arange(10, dtype=np.uint32)
    assert njit(lambda x, i: item_behind(x, i))(x, 4) == 7
