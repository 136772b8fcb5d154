"""Vector code of the normal equations: every operation on ``WIDE`` neighbouring frequencies at once.

A *value* is ``WIDE`` float64 in a row: ``VECTORS`` vectors, enough of them that one's latency hides behind the others.
See :mod:`skysieve.periodogram.simd` for why this is written for LLVM directly.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .simd import LANES, _Lanes

VECTORS = 4
WIDE = VECTORS * LANES


@intrinsic
def combine(typingctx, values, a, fa, b, fb, out, o):
    """``out[o:] = fa * values[a:] + fb * values[b:]``."""
    i, f = types.intp, types.float64
    sig = types.void(values, i, f, i, f, out, i)

    def codegen(context, builder, signature, args):
        e = _Lanes(context, builder, signature.args[0])
        v, d = e.data(signature.args[0], args[0]), e.data(signature.args[5], args[5])
        fa, fb = e.splat(args[2]), e.splat(args[4])
        for k in range(0, WIDE, LANES):
            part = builder.fmul(fb, e.load(e.at(v, args[3], k)))
            e.store(e.fma(fa, e.load(e.at(v, args[1], k)), part), e.at(d, args[6], k))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def scaled(typingctx, x, a, scale, s, out, o):
    """One vector: ``out[o:] = x[a:] * scale[s:]``."""
    i = types.intp
    sig = types.void(x, i, scale, i, out, i)

    def codegen(context, builder, signature, args):
        e = _Lanes(context, builder, signature.args[0])
        v, k, d = (e.data(signature.args[n], args[n]) for n in (0, 2, 4))
        product = builder.fmul(e.load(e.at(v, args[1])), e.load(e.at(k, args[3])))
        e.store(product, e.at(d, args[5]))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def less_products(typingctx, a, i, b, j, count, out, o):
    """``out[o:] -= sum over k < count of a[i + k WIDE:] * b[j + k WIDE:]``."""
    n = types.intp
    sig = types.void(a, n, b, n, n, out, n)

    def codegen(context, builder, signature, args):
        e = _Lanes(context, builder, signature.args[0])
        x, y, d = (e.data(signature.args[k], args[k]) for k in (0, 2, 5))
        sums = [cgutils.alloca_once(builder, e.vector) for _ in range(VECTORS)]
        for k, cell in enumerate(sums):
            builder.store(e.load(e.at(d, args[6], k * LANES)), cell)
        with cgutils.for_range(builder, args[4]) as loop:
            step = builder.mul(loop.index, ir.Constant(loop.index.type, WIDE))
            at, to = builder.add(args[1], step), builder.add(args[3], step)
            for k, cell in enumerate(sums):
                left = e.neg(e.load(e.at(x, at, k * LANES)))
                builder.store(e.fma(left, e.load(e.at(y, to, k * LANES)), builder.load(cell)), cell)
        for k, cell in enumerate(sums):
            e.store(builder.load(cell), e.at(d, args[6], k * LANES))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def times(typingctx, a, i, b, j, out, o):
    """``out[o:] = a[i:] * b[j:]``."""
    n = types.intp
    sig = types.void(a, n, b, n, out, n)

    def codegen(context, builder, signature, args):
        e = _Lanes(context, builder, signature.args[0])
        x, y, d = (e.data(signature.args[k], args[k]) for k in (0, 2, 4))
        for k in range(0, WIDE, LANES):
            e.store(builder.fmul(e.load(e.at(x, args[1], k)), e.load(e.at(y, args[3], k))), e.at(d, args[5], k))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def invert(typingctx, a, i, noise, scale, s, out, o, sound, k):
    """``out[o:] = 1 / a[i:]``, 0 where it is not above ``noise * scale[s:]``; then ``sound[k:]`` becomes 0 too, but
    where the scale is 0: a column of no rows."""
    n = types.intp
    sig = types.void(a, n, types.float64, scale, n, out, n, sound, n)

    def codegen(context, builder, signature, args):
        e = _Lanes(context, builder, signature.args[0])
        x, y, d, w = (e.data(signature.args[k], args[k]) for k in (0, 3, 5, 7))
        noise, zero, one = e.splat(args[2]), e.constant(0.0), e.constant(1.0)
        for k in range(0, WIDE, LANES):
            pivot, own = e.load(e.at(x, args[1], k)), e.load(e.at(y, args[4], k))
            sound = builder.fcmp_ordered(">", pivot, builder.fmul(noise, own))
            e.store(builder.select(sound, builder.fdiv(one, pivot), zero), e.at(d, args[6], k))
            kept = builder.or_(sound, builder.fcmp_ordered("==", own, zero))
            e.store(builder.select(kept, e.load(e.at(w, args[8], k)), zero), e.at(w, args[8], k))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def verdict(typingctx, z, i, squares, s, sound, k, limit, out, o, v):
    """Vector ``v`` of a value: ``out[o:] = -z[i:]``; NaN where ``sound`` is 0, or ``-squares`` not below ``limit``."""
    n = types.intp
    sig = types.void(z, n, squares, n, sound, n, types.float64, out, n, n)

    def codegen(context, builder, signature, args):
        e = _Lanes(context, builder, signature.args[0])
        x, q, w, d = (e.data(signature.args[k], args[k]) for k in (0, 2, 4, 7))
        shift = builder.mul(args[9], ir.Constant(args[9].type, LANES))
        power = e.neg(e.load(e.at(x, builder.add(args[1], shift))))
        square = e.neg(e.load(e.at(q, builder.add(args[3], shift))))
        good = builder.fcmp_ordered(">", e.load(e.at(w, builder.add(args[5], shift))), e.constant(0.0))
        good = builder.and_(good, builder.fcmp_ordered("<", square, e.splat(args[6])))
        e.store(builder.select(good, power, e.constant(float("nan"))), e.at(d, args[8]))
        return context.get_dummy_value()

    return sig, codegen
