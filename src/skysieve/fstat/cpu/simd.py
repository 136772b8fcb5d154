"""Vector code of the recurrence for exponential windows.

A lane is a duration.  Sums stay in registers for `ROWS` consecutive start times; separate loops for the steps of a cell
would spend most of their time on loads and stores.  See `skysieve.core.cpu.simd` for why this is written in LLVM.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from skysieve.core.cpu.simd import BYTES, VectorBuilder, splat

from .lanes import LOG2E

ROWS = 4
"""Start times of a block."""
SERIES = {
    # 2^r for |r| <= 1/2: the polynomial of least relative error, 1.5e-7, and the Taylor series, 2e-16
    4: (1.0000001192092896, 0.6931469440460205, 0.24022120237350464, 0.05550713464617729, 0.009675540961325169,
        0.0013276468962430954),
    8: tuple(math.log(2) ** i / math.factorial(i) for i in range(13)),
}  # fmt: skip
LOWEST = {4: -125.0, 8: -1021.0}
MANTISSA = {4: 23, 8: 52}


def lanes_of(itemsize: int) -> int:
    """Return the number of lanes of a vector of numbers of `itemsize` bytes."""
    return BYTES // itemsize


class Vectors(VectorBuilder):
    """Vector instructions, also of masks and integers of the same width; F of a cell."""

    def __init__(self, context: Any, builder: Any, array_type: Any) -> None:
        super().__init__(context, builder, array_type)
        self.whole = ir.VectorType(ir.IntType(8 * self.size), self.lanes)
        self.mask = ir.VectorType(ir.IntType(1), self.lanes)

    def cell(self, S: list[Any], bound: Any) -> tuple[Any, Any]:
        """Return F of the sums A, B, C, Re Fa, Im Fa, Re Fb, Im Fb, and a mask: where it is not the fallback."""
        b, fma = self.builder, self.fma
        A, B, C, ar, ai, br, bi = S
        s = b.fadd(A, B)
        d = fma(A, B, b.fneg(b.fmul(C, C)))
        good = b.fcmp_ordered(">", d, b.fmul(b.fmul(s, s), bound))
        fa = fma(ar, ar, b.fmul(ai, ai))
        fb = fma(br, br, b.fmul(bi, bi))
        cross = fma(ar, br, b.fmul(ai, bi))
        top = fma(B, fa, fma(A, fb, b.fneg(b.fmul(b.fadd(C, C), cross))))
        # in float32 LLVM may estimate 1/D and refine it by a Newton step: an error of one unit in the last place
        flags = ("fast",) if self.size == 4 else ()
        return b.select(good, b.fdiv(top, d, flags=flags), self.constant(2.0)), good


def make_block(tail: bool, zero: bool) -> Any:
    """Return the intrinsic that advances the recurrence by `ROWS` bins, on the lanes from ``j0`` to ``j1``.

    With ``tail``, windows lose the bins ``fine[tails[r] + lane]``; with ``zero``, the first ``empty[r]`` lanes have no
    data.
    """

    @intrinsic
    def block(typingctx, S, weights, x, at, fine, tails, stride, empty, bound, F, high, bad, j0, j1):
        sig = types.void(
            S, weights, x, types.intp, fine, tails, types.intp, empty, bound, F, high, bad, types.intp, types.intp
        )

        def codegen(context, builder, signature, args):
            v = Vectors(context, builder, signature.args[0])
            t = signature.args
            sums, decays, bins, thin = (v.data(t[i], args[i]) for i in (0, 1, 2, 4))
            out, top, flags = (v.data(t[i], args[i]) for i in (9, 10, 11))
            starts, gone = (v.data(t[i], args[i]) for i in (5, 7))
            intp = args[3].type
            number = lambda k: ir.Constant(intp, k)  # noqa: E731

            def width(i: int) -> Any:
                shape = context.make_array(t[i])(context, builder, args[i]).shape
                return builder.extract_value(shape, 1)

            lanes, length = width(0), width(2)
            limit = v.splat(args[8])
            entering = [
                [
                    builder.load(builder.gep(bins, [builder.add(builder.mul(number(i), length),
                                                                builder.sub(args[3], number(r)))], inbounds=True))
                    for i in range(7)
                ]
                for r in range(ROWS)
            ]  # fmt: skip
            tail_at = [builder.load(builder.gep(starts, [number(r)])) for r in range(ROWS)]
            highest, wrong = cgutils.alloca_once(builder, v.vector), cgutils.alloca_once(builder, v.mask)
            builder.store(v.load(top, number(0)), highest)
            builder.store(ir.Constant(v.mask, [0] * v.lanes), wrong)
            step = number(v.lanes)
            with cgutils.for_range_slice(builder, args[12], args[13], step, intp=intp) as (j, _):
                p, w, p2, w2 = (v.load(decays, builder.add(builder.mul(number(i), lanes), j)) for i in range(4))
                down, down2, lose, lose2 = (builder.fneg(a) for a in (p, p2, w, w2))
                state = [v.load(sums, builder.add(builder.mul(number(i), lanes), j)) for i in range(7)]
                peak, failed = builder.load(highest), builder.load(wrong)
                for r in range(ROWS):
                    for i in range(7):
                        fall, depart = (down2, lose2) if i < 3 else (down, lose)
                        value = v.fma(fall, state[i], builder.fadd(state[i], v.splat(entering[r][i])))
                        if tail:
                            offset = builder.add(builder.add(builder.mul(number(i), args[6]), tail_at[r]), j)
                            value = v.fma(depart, v.load(thin, offset), value)
                        state[i] = value
                    if zero:
                        left = builder.sub(builder.load(builder.gep(gone, [number(r)])), j)
                        low = splat(builder, builder.trunc(left, v.whole.element) if v.size == 4 else left, v.whole)
                        lane = ir.Constant(v.whole, list(range(v.lanes)))
                        has = builder.icmp_signed(">=", lane, low)
                        state = [builder.select(has, a, v.constant(0.0)) for a in state]
                    value, good = v.cell(state, limit)
                    peak = builder.select(builder.fcmp_ordered(">", value, peak), value, peak)
                    failed = builder.or_(failed, builder.not_(good))
                    v.store(value, out, builder.add(builder.mul(number(r), lanes), j))
                for i in range(7):
                    v.store(state[i], sums, builder.add(builder.mul(number(i), lanes), j))
                builder.store(peak, highest)
                builder.store(failed, wrong)
            v.store(builder.load(highest), top, number(0))
            ones = builder.select(builder.load(wrong), v.constant(1.0), v.load(flags, number(0)))
            v.store(ones, flags, number(0))
            return context.get_dummy_value()

        return sig, codegen

    return block


plain_block = make_block(False, False)
tail_block = make_block(True, False)
zero_block = make_block(False, True)
tail_zero_block = make_block(True, True)


@intrinsic
def exp_block(typingctx, F, ref, row_sums, lane_sums, width):
    """Sum ``exp(F - ref)`` of `ROWS` rows into ``row_sums`` (ROWS, lanes of a vector), and add it to ``lane_sums``.

    ``width`` is a multiple of the lanes.  In float32 F may exceed ``ref`` by up to 60.
    """
    sig = types.void(F, ref, row_sums, lane_sums, types.intp)

    def codegen(context, builder, signature, args):
        v = Vectors(context, builder, signature.args[0])
        t = signature.args
        source, rows, columns = (v.data(t[i], args[i]) for i in (0, 2, 3))
        intp = args[4].type
        number = lambda k: ir.Constant(intp, k)  # noqa: E731
        lanes = builder.extract_value(context.make_array(t[0])(context, builder, args[0]).shape, 1)
        base = v.splat(args[1])
        magic = v.constant(1.5 * 2.0 ** MANTISSA[v.size])
        shift = ir.Constant(v.whole, [MANTISSA[v.size]] * v.lanes)
        floor, series = v.constant(LOWEST[v.size]), [v.constant(c) for c in SERIES[v.size]]
        totals = [cgutils.alloca_once(builder, v.vector) for _ in range(ROWS)]
        for total in totals:
            builder.store(v.constant(0.0), total)
        with cgutils.for_range_slice(builder, number(0), args[4], number(v.lanes), intp=intp) as (j, _):
            here = v.load(columns, j)
            for r, total in enumerate(totals):
                f = v.load(source, builder.add(builder.mul(number(r), lanes), j))
                y = builder.fmul(builder.fsub(f, base), v.constant(LOG2E))
                y = builder.select(builder.fcmp_ordered(">", y, floor), y, floor)
                z = builder.fadd(y, magic)
                part = builder.fsub(y, builder.fsub(z, magic))
                e = series[-1]
                for c in series[-2::-1]:
                    e = v.fma(e, part, c)
                power = builder.shl(builder.bitcast(z, v.whole), shift)
                e = builder.bitcast(builder.add(builder.bitcast(e, v.whole), power), v.vector)
                builder.store(builder.fadd(builder.load(total), e), total)
                here = builder.fadd(here, e)
            v.store(here, columns, j)
        for r, total in enumerate(totals):
            v.store(builder.load(total), rows, number(r * v.lanes))
        return context.get_dummy_value()

    return sig, codegen
