"""Explicit SIMD for the adding kernels: whole rows of integers, by vectors that LLVM lowers to the machine's.

numba has no vector types; these intrinsics write LLVM's.  A row is a run of elements in a flat array; all counts are in
vectors of ``LANES`` elements, so that there are no tails: rows are padded instead.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 32
"""Elements of a vector: 64 bytes of uint16 sums."""


def _data(context: Any, builder: Any, array_type: Any, value: Any) -> Any:
    return context.make_array(array_type)(context, builder, value).data


class _Rows:
    """Loads and stores of ``LANES`` elements of one array."""

    def __init__(self, context: Any, builder: Any, array_type: Any, value: Any) -> None:
        self.builder = builder
        self.pointer = _data(context, builder, array_type, value)
        self.scalar = context.get_value_type(array_type.dtype)
        self.vector = ir.VectorType(self.scalar, LANES)
        self.bytes = array_type.dtype.bitwidth // 8

    def load(self, index: Any, wanted: Any = None) -> Any:
        """The vector at an element, made wider if ``wanted`` is."""
        at = self.builder.gep(self.pointer, [index])
        value = self.builder.load(self.builder.bitcast(at, self.vector.as_pointer()), align=self.bytes, typ=self.vector)
        if wanted is None or wanted == self.vector:
            return value
        return self.builder.zext(value, wanted)

    def store(self, value: Any, index: Any) -> None:
        at = self.builder.gep(self.pointer, [index])
        self.builder.store(value, self.builder.bitcast(at, self.vector.as_pointer()), align=self.bytes)


@intrinsic
def add_rows(typingctx, dst, d, src, a, b, vectors):
    """``dst[d + i] = src[a + i] + src[b + i]`` for ``i < LANES * vectors``; integers are made as wide as ``dst``'s."""
    sig = types.void(dst, types.intp, src, types.intp, types.intp, types.intp)

    def codegen(context, builder, signature, args):
        out = _Rows(context, builder, signature.args[0], args[0])
        rows = _Rows(context, builder, signature.args[2], args[2])
        real = isinstance(out.scalar, ir.FloatType)
        with cgutils.for_range(builder, args[5]) as loop:
            i = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            x = rows.load(builder.add(args[3], i), out.vector)
            y = rows.load(builder.add(args[4], i), out.vector)
            out.store(builder.fadd(x, y) if real else builder.add(x, y), builder.add(args[1], i))
        return context.get_dummy_value()

    return sig, codegen


def _accumulate(count: int):
    @intrinsic
    def accumulate(typingctx, dst, d, src, starts, s, vectors, first):
        sig = types.void(dst, types.intp, src, starts, types.intp, types.intp, types.boolean)

        def codegen(context, builder, signature, args):
            out = _Rows(context, builder, signature.args[0], args[0])
            rows = _Rows(context, builder, signature.args[2], args[2])
            table = _data(context, builder, signature.args[3], args[3])
            real = isinstance(out.scalar, ir.FloatType)
            at = [
                builder.load(builder.gep(table, [builder.add(args[4], ir.Constant(args[4].type, k))]))
                for k in range(count)
            ]
            zero = ir.Constant(out.vector, None)
            with cgutils.for_range(builder, args[5]) as loop:
                i = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
                here = builder.add(args[1], i)
                terms = [rows.load(builder.add(k, i), out.vector) for k in at]
                with builder.if_else(args[6]) as (fresh, more):
                    with fresh:
                        new_block = builder.block
                    with more:
                        old = out.load(here)
                        old_block = builder.block
                start = builder.phi(out.vector)
                start.add_incoming(zero, new_block)
                start.add_incoming(old, old_block)
                total: Any = start
                for term in terms:
                    total = builder.fadd(total, term) if real else builder.add(total, term)
                out.store(total, here)
            return context.get_dummy_value()

        return sig, codegen

    return accumulate


accumulate_1, accumulate_2, accumulate_4, accumulate_8 = (_accumulate(n) for n in (1, 2, 4, 8))


@intrinsic
def widen_rows(typingctx, dst, d, src, s, vectors, weight, start, fresh):
    """``dst[d + i] = start + weight * src[s + i]`` for ``i < LANES * vectors``, or ``+= weight * src[s + i]``.

    ``weight`` and ``start`` are of ``dst``'s type, the elements of ``src`` are made as wide.
    """
    sig = types.void(dst, types.intp, src, types.intp, types.intp, dst.dtype, dst.dtype, types.boolean)

    def codegen(context, builder, signature, args):
        out = _Rows(context, builder, signature.args[0], args[0])
        rows = _Rows(context, builder, signature.args[2], args[2])
        real = isinstance(out.scalar, ir.FloatType)

        def everywhere(scalar):
            one = builder.insert_element(ir.Constant(out.vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
            mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            return builder.shuffle_vector(one, ir.Constant(out.vector, ir.Undefined), mask)

        factor, origin = everywhere(args[5]), everywhere(args[6])
        with cgutils.for_range(builder, args[4]) as loop:
            i = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            here = builder.add(args[1], i)
            value = rows.load(builder.add(args[3], i), out.vector)
            value = builder.fmul(value, factor) if real else builder.mul(value, factor)
            with builder.if_else(args[7]) as (first, more):
                with first:
                    new_block = builder.block
                with more:
                    old = out.load(here)
                    old_block = builder.block
            base = builder.phi(out.vector)
            base.add_incoming(origin, new_block)
            base.add_incoming(old, old_block)
            out.store(builder.fadd(base, value) if real else builder.add(base, value), here)
        return context.get_dummy_value()

    return sig, codegen
