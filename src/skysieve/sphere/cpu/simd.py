"""Vector code of the convolution kernels.

Vectors have 64 bytes: 16 lanes of float32 or 8 of float64.  See `core.cpu.simd` for why this is written for LLVM
directly.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from skysieve.core.cpu.simd import VectorBuilder

BAND_VECTORS = 4
"""Vectors of modes that one call of `band_sum` covers."""
STENCIL_VECTORS, STENCIL_ROWS = 4, 4
"""Vectors of pixels and output rings that one call of `stencil_sum` covers."""


@intrinsic
def band_sum(
    typingctx, cosines, samples, first_sample, n_samples, first_cosine, cosine_row, modes, place, mirror, gap, length,
    pair, i0, i1, m, out, o0, row,
):  # fmt: skip
    """Sum over rings for ``BAND_VECTORS`` vectors of modes from ``m`` on, of one output ring and its mirror image.

    Ring ``i`` of i0 .. i1 is pair ``pair + i - i0``, whose kernel is
    ``k(m) = sum_j samples[first_sample + j] cosines[first_cosine + j cosine_row + m]``.  Its modes begin at
    ``place[i]``, and the modes of its mirror image at ``mirror[i]``: ``length[i]`` real parts, and each imaginary part
    ``gap[i]`` elements behind its real part.
    The sums go to ``out[o0 + k row + m]``, k = 0 .. 3: real and imaginary part, then those of the mirror image.
    """
    args = (
        cosines, samples, first_sample, n_samples, first_cosine, cosine_row, modes, place, mirror, gap, length,
        types.intp, types.intp, types.intp, types.intp, out, types.intp, types.intp,
    )  # fmt: skip
    sig = types.void(*args)

    def codegen(context, builder, signature, given):
        e = VectorBuilder(context, builder, signature.args[0])
        pointers = [e.data(t, v) for t, v in zip(signature.args[:11], given[:11], strict=True)]
        cos, smp, first, count, base, step, f, place, mirror, imaginary, size = pointers
        p0, a, b, mode = given[11:15]
        target, o, plane = e.data(signature.args[15], given[15]), given[16], given[17]
        total = e.variables(4 * BAND_VECTORS)
        k = [cgutils.alloca_once(builder, e.vector) for _ in range(BAND_VECTORS)]

        def ring(i):
            length_i = e.item(size, i)
            with cgutils.if_likely(builder, builder.icmp_signed("<", mode, length_i)):
                p = builder.add(p0, builder.sub(i, a))
                s0, n, stride = e.item(first, p), e.item(count, p), e.item(step, p)
                c0 = builder.add(e.item(base, p), mode)
                for v in k:
                    builder.store(e.constant(0.0), v)

                def sample(j):
                    s = e.splat(e.item(smp, builder.add(s0, j)))
                    at = builder.add(c0, builder.mul(j, stride))
                    for v in range(BAND_VECTORS):
                        builder.store(e.fma(s, e.load(cos, at, v * e.lanes), builder.load(k[v])), k[v])

                e.loop(ir.Constant(n.type, 0), n, 1, sample)
                for side, start in enumerate((e.item(place, i), e.item(mirror, i))):
                    for part in range(2):
                        at = builder.add(start, mode)
                        if part:
                            at = builder.add(at, e.item(imaginary, i))
                        for v in range(BAND_VECTORS):
                            t = total[(2 * side + part) * BAND_VECTORS + v]
                            value = e.fma(builder.load(k[v]), e.load(f, at, v * e.lanes), builder.load(t))
                            builder.store(value, t)

        e.loop(a, b, 1, ring)
        for part in range(4):
            at = builder.add(o, builder.add(mode, builder.mul(plane, ir.Constant(plane.type, part))))
            for v in range(BAND_VECTORS):
                e.store(builder.load(total[part * BAND_VECTORS + v]), target, at, v * e.lanes)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def series_weights(typingctx, start, count, step, a, b, scale, series, terms, floor, out):
    """Compute kernel values for one vector of output pixels and ``count`` neighbouring input pixels of one ring.

    Pixel ``e`` lies ``(start[lane] + e) step`` (half radians, small) from the output pixel; its squared chord is
    ``x = a + b sin^2`` and the value the Chebyshev series at ``scale x - 1``, zero where that is above 1, at least
    ``floor``.  ``count`` is a multiple of four; ``out[e lanes + lane]``.
    """
    real = start.dtype
    sig = types.void(start, types.intp, real, real, real, real, series, types.intp, real, out)
    unroll = 4
    sine = [1.0, -1 / 3, 2 / 45, -1 / 315, 2 / 14175, -2 / 467775, 4 / 42567525]

    def codegen(context, builder, signature, given):
        e = VectorBuilder(context, builder, signature.args[0])
        origin, n, h, a_, b_, c_, ser, k, low, target = given
        origin, ser = e.data(signature.args[0], origin), e.data(signature.args[6], ser)
        target = e.data(signature.args[9], target)
        zero = ir.Constant(n.type, 0)
        first = e.load(origin, zero)
        h, a_, b_, c_, low = (e.splat(v) for v in (h, a_, b_, c_, low))
        one, minus = e.constant(1.0), e.constant(-1.0)
        lanes = ir.Constant(n.type, e.lanes)

        def four(index):
            t = []
            for u in range(unroll):
                at = builder.sitofp(e.plus(index, u), e.scalar)
                d = builder.fmul(builder.fadd(first, e.splat(at)), h)
                y = builder.fmul(d, d)
                p = e.constant(sine[-1])
                for s in sine[-2::-1]:
                    p = e.fma(p, y, e.constant(s))
                x = e.fma(b_, builder.fmul(p, y), a_)
                t.append(e.fma(c_, x, minus))
            held = e.variables(2 * unroll)
            twice = [builder.fadd(v, v) for v in t]

            def term(j):
                coefficient = e.splat(e.item(ser, builder.sub(k, j)))
                for u in range(unroll):
                    b1, b2 = builder.load(held[2 * u]), builder.load(held[2 * u + 1])
                    builder.store(e.fma(twice[u], b1, builder.fsub(coefficient, b2)), held[2 * u])
                    builder.store(b1, held[2 * u + 1])

            e.loop(ir.Constant(n.type, 1), k, 1, term)
            c0 = e.splat(e.item(ser, zero))
            for u in range(unroll):
                b1, b2 = builder.load(held[2 * u]), builder.load(held[2 * u + 1])
                value = e.fma(t[u], b1, builder.fsub(c0, b2))
                value = builder.select(builder.fcmp_ordered(">", value, low), value, low)
                value = builder.select(builder.fcmp_ordered("<=", t[u], one), value, e.constant(0.0))
                e.store(value, target, builder.mul(e.plus(index, u), lanes))

        e.loop(zero, n, unroll, four)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def dot_lanes(typingctx, weights, w0, stride, count, x, x0, out, o0):
    """``out[o0 + k] += sum_e weights[w0 + e stride] x[x0 + 8 e + k]`` for k = 0 .. 7; ``count`` a multiple of four."""
    sig = types.void(weights, types.intp, types.intp, types.intp, x, types.intp, out, types.intp)

    def codegen(context, builder, signature, given):
        e = VectorBuilder(context, builder, signature.args[0], lanes=8)
        w, w_0, step, n, data, x_0, target, o_0 = given
        w, data, target = (e.data(signature.args[i], v) for i, v in ((0, w), (4, data), (6, target)))
        total = e.variables(4)
        eight = ir.Constant(n.type, 8)

        def four(index):
            for u in range(4):
                i = e.plus(index, u)
                s = e.splat(e.item(w, builder.add(w_0, builder.mul(i, step))))
                value = e.load(data, builder.add(x_0, builder.mul(i, eight)))
                builder.store(e.fma(s, value, builder.load(total[u])), total[u])

        e.loop(ir.Constant(n.type, 0), n, 4, four)
        left, right = (builder.fadd(builder.load(total[u]), builder.load(total[u + 1])) for u in (0, 2))
        old = e.load(target, o_0)
        e.store(builder.fadd(old, builder.fadd(left, right)), target, o_0)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def stencil_sum(typingctx, weights, w_start, count, lines, line_start, i0, i1, j, out, o0, row):
    """Sum ``STENCIL_ROWS`` output rings at ``STENCIL_VECTORS`` vectors of pixels from ``j`` on.

    Ring ``i`` adds ``sum_e weights[w_start[i] + e STENCIL_ROWS + r] lines[line_start[i] + j + e]`` to output ring r;
    sums go to ``out[o0 + r row + j]``.
    """
    sig = types.void(
        weights, w_start, count, lines, line_start, types.intp, types.intp, types.intp, out, types.intp, types.intp
    )

    def codegen(context, builder, signature, given):
        e = VectorBuilder(context, builder, signature.args[0])
        w, ws, n, x, xs = (e.data(t, v) for t, v in zip(signature.args[:5], given[:5], strict=True))
        a, b, j = given[5:8]
        target, o, plane = e.data(signature.args[8], given[8]), given[9], given[10]
        total = e.variables(STENCIL_ROWS * STENCIL_VECTORS)

        def ring(i):
            w0, length, x0 = e.item(ws, i), e.item(n, i), builder.add(e.item(xs, i), j)

            def pixel(k):
                at = builder.add(x0, k)
                values = [e.load(x, at, v * e.lanes) for v in range(STENCIL_VECTORS)]
                base = builder.add(w0, builder.mul(k, ir.Constant(k.type, STENCIL_ROWS)))
                for r in range(STENCIL_ROWS):
                    s = e.splat(e.item(w, e.plus(base, r)))
                    for v in range(STENCIL_VECTORS):
                        t = total[r * STENCIL_VECTORS + v]
                        builder.store(e.fma(s, values[v], builder.load(t)), t)

            e.loop(ir.Constant(length.type, 0), length, 1, pixel)

        e.loop(a, b, 1, ring)
        for r in range(STENCIL_ROWS):
            at = builder.add(o, builder.add(j, builder.mul(plane, ir.Constant(plane.type, r))))
            for v in range(STENCIL_VECTORS):
                e.store(builder.load(total[r * STENCIL_VECTORS + v]), target, at, v * e.lanes)
        return context.get_dummy_value()

    return sig, codegen
