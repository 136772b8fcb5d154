"""Vector code of the normal equations: every operation on ``WIDE`` neighbouring frequencies at once.

A *value* is ``WIDE`` float64 in a row: ``VECTORS`` vectors, enough to hide the latency of each behind the others.  The
structure of a model is given as lists of positions (``series.fit_of``), already multiplied by ``WIDE``, for tight
loops: computing bounds and strides in numba took five times as long as the arithmetic.  See
:mod:`skysieve.periodogram.cpu.comb_simd` for why this is written for LLVM directly.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from skysieve.periodogram.cpu.comb_simd import LANES, CombVectors

VECTORS = 4
WIDE = VECTORS * LANES
STEP = 8
"""Whole numbers of one step of the factorisation."""
FACTORS = 3


class _Values(CombVectors):
    """Loads, stores and splats of whole values."""

    def number(self, pointer: Any, row: Any, width: int, column: int) -> Any:
        """``pointer[row, column]`` of a table of ``width`` columns."""
        place = self.builder.mul(row, ir.Constant(row.type, width))
        return self.item(pointer, place, column)

    def value(self, pointer: Any, place: Any) -> list[Any]:
        return [self.load(pointer, place, k * LANES) for k in range(VECTORS)]

    def put(self, value: list[Any], pointer: Any, place: Any) -> None:
        for k, vector in enumerate(value):
            self.store(vector, pointer, place, k * LANES)


@intrinsic
def combine(typingctx, values, a, fa, b, fb, out, o):
    """``out[o:] = fa * values[a:] + fb * values[b:]``."""
    i, f = types.intp, types.float64
    sig = types.void(values, i, f, i, f, out, i)

    def codegen(context, builder, signature, args):
        e = _Values(context, builder, signature.args[0])
        v, d = e.data(signature.args[0], args[0]), e.data(signature.args[5], args[5])
        fa, fb = e.splat(args[2]), e.splat(args[4])
        pairs = zip(e.value(v, args[1]), e.value(v, args[3]), strict=True)
        e.put([e.fma(fa, x, builder.fmul(fb, y)) for x, y in pairs], d, args[6])
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def collect(typingctx, x, first, stride, vector_stride, channels, scale, s, scale_stride, out):
    """Values of the sums of all channels from the cells of their transforms, deconvolved.

    Vector ``v`` of channel ``k``: ``x[first + k stride + v vector_stride:]`` (cosine sums, then sine sums) times
    ``scale[s + v scale_stride:]``, to the values ``2 k`` and ``2 k + 1`` of ``out``.
    """
    i = types.intp
    sig = types.void(x, i, i, i, i, scale, i, i, out)

    def codegen(context, builder, signature, args):
        e = _Values(context, builder, signature.args[0])
        cells, k, d = (e.data(signature.args[n], args[n]) for n in (0, 5, 8))
        scales, places = [], []
        for v in range(VECTORS):
            times = ir.Constant(args[3].type, v)
            scales.append(e.load(k, builder.add(args[6], builder.mul(args[7], times))))
            places.append(builder.add(args[1], builder.mul(args[3], times)))
        with cgutils.for_range(builder, args[4]) as loop:
            source = builder.mul(loop.index, args[2])
            target = builder.mul(loop.index, ir.Constant(loop.index.type, 2 * WIDE))
            for v in range(VECTORS):
                at = builder.add(places[v], source)
                for part in range(2):
                    product = builder.fmul(scales[v], e.load(cells, at, part * LANES))
                    e.store(product, d, target, part * WIDE + v * LANES)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def factorise(typingctx, values, steps, factors, upper, lower, inverse, sound, noise):
    """LDL^T by a list of steps, one for each entry of the envelope, rows one after another.

    A step is (source a, source b, row of ``upper``, row of ``lower``, products, place, pivot, kind) and three factors;
    its entry is ``fa values[a] + fb values[b] + fc`` less the sum of the products.  Kind 0: an entry, kept in
    ``upper`` at its place, and times ``inverse[pivot]`` in ``lower``.  Kind 1: a pivot; ``inverse`` gets its inverse,
    or 0 where it is not above ``noise`` times the weight ``values[place]``; then ``sound`` becomes 0 too, except where
    that weight is 0 (a column of no rows).
    """
    sig = types.void(values, steps, factors, upper, lower, inverse, sound, types.float64)

    def codegen(context, builder, signature, args):
        e = _Values(context, builder, signature.args[0])
        v, p, f, u, w, inv, ok = (e.data(signature.args[n], args[n]) for n in range(7))
        noise, zero, one = e.splat(args[7]), e.constant(0.0), e.constant(1.0)
        origin = ir.Constant(ir.IntType(64), 0)
        array = context.make_array(signature.args[1])(context, builder, args[1])
        count = builder.extract_value(array.shape, 0)
        sums = [cgutils.alloca_once(builder, e.vector) for _ in range(VECTORS)]
        with cgutils.for_range(builder, count) as step:
            a, b, i, j, n, place, pivot, kind = (e.number(p, step.index, STEP, c) for c in range(STEP))
            fa, fb, fc = (e.splat(e.number(f, step.index, FACTORS, c)) for c in range(FACTORS))
            for cell, x, y in zip(sums, e.value(v, a), e.value(v, b), strict=True):
                builder.store(e.fma(fa, x, e.fma(fb, y, fc)), cell)
            with cgutils.for_range(builder, n) as loop:
                shift = builder.mul(loop.index, ir.Constant(loop.index.type, WIDE))
                left, right = e.value(u, builder.add(i, shift)), e.value(w, builder.add(j, shift))
                for cell, x, y in zip(sums, left, right, strict=True):
                    builder.store(e.fma(e.neg(x), y, builder.load(cell)), cell)
            entry = [builder.load(cell) for cell in sums]
            with builder.if_else(builder.icmp_signed("==", kind, ir.Constant(kind.type, 1))) as (then, otherwise):
                with then:
                    results, verdicts = [], []
                    for d, own, was in zip(entry, e.value(v, place), e.value(ok, origin), strict=True):
                        good = builder.fcmp_ordered(">", d, builder.fmul(noise, own))
                        results.append(builder.select(good, builder.fdiv(one, d), zero))
                        kept = builder.or_(good, builder.fcmp_ordered("==", own, zero))
                        verdicts.append(builder.select(kept, was, zero))
                    e.put(results, inv, pivot)
                    e.put(verdicts, ok, origin)
                with otherwise:
                    e.put(entry, u, place)
                    e.put([builder.fmul(x, y) for x, y in zip(entry, e.value(inv, pivot), strict=True)], w, place)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def substitute(typingctx, lower, pairs, beta):
    """``beta[j] -= lower[ij] * beta[i]`` for the rows (ij, i, j) of ``pairs``."""
    sig = types.void(lower, pairs, beta)

    def codegen(context, builder, signature, args):
        e = _Values(context, builder, signature.args[0])
        w, p, x = (e.data(signature.args[n], args[n]) for n in range(3))
        array = context.make_array(signature.args[1])(context, builder, args[1])
        with cgutils.for_range(builder, builder.extract_value(array.shape, 0)) as loop:
            ij, i, j = (e.number(p, loop.index, 3, c) for c in range(3))
            parts = zip(e.value(w, ij), e.value(x, i), e.value(x, j), strict=True)
            e.put([e.fma(e.neg(a), b, c) for a, b, c in parts], x, j)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def verdict(typingctx, upper, place, beta, columns, sound, limit, out):
    """``out = -upper[place]``; NaN where ``sound`` is 0, or the square sum of ``columns`` values of ``beta`` not below
    ``limit``."""
    n = types.intp
    sig = types.void(upper, n, beta, n, sound, types.float64, out)

    def codegen(context, builder, signature, args):
        e = _Values(context, builder, signature.args[0])
        u, x, ok, d = (e.data(signature.args[k], args[k]) for k in (0, 2, 4, 6))
        limit, zero, missing = e.splat(args[5]), e.constant(0.0), e.constant(float("nan"))
        origin = ir.Constant(ir.IntType(64), 0)
        sums = [cgutils.alloca_once(builder, e.vector) for _ in range(VECTORS)]
        for cell in sums:
            builder.store(zero, cell)
        with cgutils.for_range(builder, args[3]) as loop:
            at = builder.mul(loop.index, ir.Constant(loop.index.type, WIDE))
            for cell, b in zip(sums, e.value(x, at), strict=True):
                builder.store(e.fma(b, b, builder.load(cell)), cell)
        results = []
        for cell, power, good in zip(sums, e.value(u, args[1]), e.value(ok, origin), strict=True):
            below = builder.fcmp_ordered("<", builder.load(cell), limit)
            trusted = builder.and_(builder.fcmp_ordered(">", good, zero), below)
            results.append(builder.select(trusted, e.neg(power), missing))
        e.put(results, d, origin)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def sinusoid(typingctx, values, bands, inverse, limit, noise, out):
    """Powers of one term for all bands and a constant for each: the 2 x 2 case, solved outright.

    ``values`` are the sums of w at f of each band, of w at 2 f, and of w y at f, of all rows (cosine and sine each);
    ``inverse`` the reciprocal weights of the bands.  NaN where `solve` would say so.
    """
    sig = types.void(values, types.intp, inverse, types.float64, types.float64, out)

    def codegen(context, builder, signature, args):
        e = _Values(context, builder, signature.args[0])
        v, inv, d = (e.data(signature.args[k], args[k]) for k in (0, 2, 5))
        half, one, missing = (e.constant(x) for x in (0.5, 1.0, float("nan")))
        limit, noise = e.splat(args[3]), e.splat(args[4])
        origin = ir.Constant(ir.IntType(64), 0)
        width = ir.Constant(args[1].type, 2 * WIDE)
        behind = builder.mul(args[1], width)
        sums = [[cgutils.alloca_once(builder, e.vector) for _ in range(VECTORS)] for _ in range(3)]
        for k in range(VECTORS):
            c2, s2 = (e.load(v, behind, part * WIDE + k * LANES) for part in range(2))
            builder.store(e.fma(half, c2, half), sums[0][k])
            builder.store(e.fma(e.neg(half), c2, half), sums[1][k])
            builder.store(builder.fmul(half, s2), sums[2][k])
        with cgutils.for_range(builder, args[1]) as loop:
            place = builder.mul(loop.index, width)
            weight = e.load(inv, builder.mul(loop.index, ir.Constant(loop.index.type, WIDE)))
            for k in range(VECTORS):
                c, s = (e.load(v, place, part * WIDE + k * LANES) for part in range(2))
                scaled, other = e.neg(builder.fmul(c, weight)), e.neg(builder.fmul(s, weight))
                for cell, x, y in ((sums[0], scaled, c), (sums[1], other, s), (sums[2], scaled, s)):
                    builder.store(e.fma(x, y, builder.load(cell[k])), cell[k])
        right = builder.add(behind, width)
        for k in range(VECTORS):
            cc, ss, cs = (builder.load(cell[k]) for cell in sums)
            yc, ys = (e.load(v, right, part * WIDE + k * LANES) for part in range(2))
            det = e.fma(cc, ss, e.neg(builder.fmul(cs, cs)))
            scale = builder.fdiv(one, det)
            a = builder.fmul(scale, e.fma(ss, yc, e.neg(builder.fmul(cs, ys))))
            b = builder.fmul(scale, e.fma(cc, ys, e.neg(builder.fmul(cs, yc))))
            sound = builder.fcmp_ordered("<", e.fma(a, a, builder.fmul(b, b)), limit)
            sound = builder.and_(sound, builder.fcmp_ordered(">", cc, noise))
            sound = builder.and_(sound, builder.fcmp_ordered(">", det, builder.fmul(noise, cc)))
            power = e.fma(a, yc, builder.fmul(b, ys))
            e.store(builder.select(sound, power, missing), d, origin, k * LANES)
        return context.get_dummy_value()

    return sig, codegen
