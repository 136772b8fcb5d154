"""Vector code of the comb NUFFT: 16-point transforms, direct sums and powers of several combs at once.

A lane is a comb: a vector holds the same cell of ``LANES`` combs, and no data cross lanes.  See `core.cpu.simd`
for why this is written for LLVM directly.

Arrays of lanes hold, for each complex cell, ``LANES`` real parts and then ``LANES`` imaginary parts.

A 16-point DFT with a shift, ``X[b] = sum_j v[j] exp(2 pi i j (b + phi) / 16)``, is four stages of
butterflies ``a, b -> a + k b, a - k b`` in which every twiddle factor, the shift included, is one of
eight constants: k0 = e(phi/2), k1 = e(phi/4), k2, k3 = e((phi + {0, 1})/8),
k4..7 = e((phi + {0, 1, 2, 3})/16), with e(x) = exp(2 pi i x).  Decimation in time; 32 butterflies of
6 fused multiply-adds (``a - k b`` as ``2 a - (a + k b)``); the constants of the other half of a stage
are i times these.  Outputs come in the order of :func:`position`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from skysieve.core.cpu.simd import VectorBuilder

LANES = 8
"""Combs of a vector: 64 bytes of float64, 32 of float32 (with more combs in float32, cells would fold more often)."""
CELL = 2 * LANES
STEP = 16 * CELL
GROUP = 16 * STEP
"""Elements of a complex cell of all lanes, of 16 of them, and of 256."""

OUTPUTS = {64: 12, 32: 10}
"""Of the 16 outputs of a second-stage transform, those inside the band: by bits of the element (``nufft.KERNELS``)."""

CONSTANTS = 8
"""Complex constants of one shifted 16-point DFT."""


def position(b: int) -> int:
    """Register that holds output ``b`` after the butterflies."""
    return _eight(0, b) if b < 8 else _eight(1, b - 8)


def _four(j: int, b: int) -> int:
    return j + (8 if b & 1 else 0) + (4 if b & 2 else 0)


def _eight(j: int, b: int) -> int:
    return _four(j, b) if b < 4 else _four(j + 2, b - 4)


class CombVectors(VectorBuilder):
    """Vector instructions of the transforms: complex pairs of vectors, and the 16-point transform."""

    def __init__(self, context: Any, builder: Any, array_type: Any) -> None:
        super().__init__(context, builder, array_type, LANES)
        self.outputs = OUTPUTS[8 * self.size]

    # ------------------------------------------------------------ the transform
    def dft16(self, v: list[Any], k: list[Any]) -> None:
        """In place: ``v`` holds 16 (re, im) pairs, ``k`` the 8 constants."""
        two = self.constant(2.0)

        def butterfly(i: int, j: int, kx: Any, ky: Any, nkx: Any, nky: Any, rotated: bool) -> None:
            if rotated:  # k -> i k
                kx, ky, nky = nky, kx, nkx
            (ax, ay), (bx, by) = v[i], v[j]
            tx = self.fma(nky, by, self.fma(kx, bx, ax))
            ty = self.fma(ky, bx, self.fma(kx, by, ay))
            v[j] = (self.fma(two, ax, self.neg(tx)), self.fma(two, ay, self.neg(ty)))
            v[i] = (tx, ty)

        def constants(i: int) -> tuple[Any, Any, Any, Any]:
            x, y = k[i]()
            return x, y, self.neg(x), self.neg(y)

        c = constants(0)
        for j in range(8):
            butterfly(j, j + 8, *c, False)
        c = constants(1)
        for j in range(4):
            butterfly(_four(j, 0), _four(j, 2), *c, False)
            butterfly(_four(j, 1), _four(j, 3), *c, True)
        for half in range(2):
            c = constants(2 + half)
            for j in range(2):
                butterfly(_eight(j, half), _eight(j, half + 4), *c, False)
                butterfly(_eight(j, half + 2), _eight(j, half + 6), *c, True)
        for b in range(4):
            c = constants(4 + b)
            butterfly(position(b), position(b + 8), *c, False)
            butterfly(position(b + 4), position(b + 12), *c, True)

    def constants(self, table: Any, offset: Any) -> list[Any]:
        """Loaders of the eight constants that start at ``table[offset]``."""

        def loader(i: int) -> Any:
            base = 2 * self.lanes * i
            return lambda: self.load_pair(table, offset, base)

        return [loader(i) for i in range(CONSTANTS)]

    def load_pair(self, pointer: Any, offset: Any, constant: int) -> tuple[Any, Any]:
        return self.load(pointer, offset, constant), self.load(pointer, offset, constant + self.lanes)

    def splat_pair(self, pointer: Any, re: Any, im: Any, constant: int) -> tuple[Any, Any]:
        x, y = (self.splat(self.item(pointer, i, constant)) for i in (re, im))
        return x, y

    def multiply_add(self, r: tuple[Any, Any], z: tuple[Any, Any], a: tuple[Any, Any]) -> tuple[Any, Any]:
        """Complex ``a + r z``."""
        x = self.fma(self.neg(r[1]), z[1], self.fma(r[0], z[0], a[0]))
        return x, self.fma(r[1], z[0], self.fma(r[0], z[1], a[1]))

    def store_pair(self, pair: tuple[Any, Any], pointer: Any, offset: Any, constant: int) -> None:
        self.store(pair[0], pointer, offset, constant)
        self.store(pair[1], pointer, offset, constant + self.lanes)


@intrinsic
def outline(typingctx):
    """Keep LLVM from inlining the function that calls this into its callers.

    numba optimises a function again in every module that calls it; with large bodies inlined at each level, the first
    compilation takes three times as long.
    """

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """``a * b + c`` with one rounding (float64 scalars)."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic(prefer_literal=True)
def dft16_lanes(typingctx, src, s0, s_stride, table, k0, dst, d0, d_stride, last):
    """Compute shifted 16-point DFTs of all lanes.

    ``src`` and ``dst`` are lane arrays; input ``j`` is at ``src[s0 + j * s_stride]`` and output ``b`` goes to
    ``dst[d0 + b * d_stride]`` (elements; strides are literal integers); with ``last``
    (literal 0 or 1) only the first ``OUTPUTS`` are written.  ``table[k0:]`` holds the constants.
    """
    sig = types.void(src, types.intp, s_stride, table, types.intp, dst, types.intp, d_stride, last)

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[0])
        a, k, d = (e.data(signature.args[i], args[i]) for i in (0, 3, 5))
        ss, ds, last_ = (signature.args[i].literal_value for i in (2, 7, 8))
        v = [e.load_pair(a, args[1], j * ss) for j in range(16)]
        e.dft16(v, e.constants(k, args[4]))
        for b in range(e.outputs if last_ else 16):
            e.store_pair(v[position(b)], d, args[6], b * ds)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic(prefer_literal=True)
def dft16_cells(typingctx, cells, re, im, s_stride, table, k0, dst, d0, d_stride):
    """Do as `dft16_lanes`, for scalars ``cells[re + j s_stride], cells[im + j s_stride]`` that all lanes share."""
    sig = types.void(cells, types.intp, types.intp, s_stride, table, types.intp, dst, types.intp, d_stride)

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[0])
        g, k, d = (e.data(signature.args[i], args[i]) for i in (0, 4, 6))
        ss, ds = (signature.args[i].literal_value for i in (3, 8))
        v = [e.splat_pair(g, args[1], args[2], j * ss) for j in range(16)]
        e.dft16(v, e.constants(k, args[5]))
        for b in range(16):
            e.store_pair(v[position(b)], d, args[7], b * ds)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic(prefer_literal=True)
def dft16_twice(typingctx, cells, re, im, s_stride, circle, fold, f0, table, k0, dst, d0, d_stride):
    """Do as `dft16_cells`, for cells that fold once: ``cell[j] + fold[1] * cell[j + circle]``."""
    sig = types.void(
        cells, types.intp, types.intp, s_stride, circle, fold, types.intp, table, types.intp, dst, types.intp, d_stride
    )

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[0])
        g, f, k, d = (e.data(signature.args[i], args[i]) for i in (0, 5, 7, 9))
        ss, turn, ds = (signature.args[i].literal_value for i in (3, 4, 11))
        r = e.load_pair(f, args[6], 2 * e.lanes)
        v = []
        for j in range(16):
            once, again = (e.splat_pair(g, args[1], args[2], j * ss + s * turn) for s in range(2))
            v.append(e.multiply_add(r, again, once))
        e.dft16(v, e.constants(k, args[8]))
        for b in range(16):
            e.store_pair(v[position(b)], d, args[10], b * ds)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic(prefer_literal=True)
def fold_cell(typingctx, cells, re, im, circle, folds, fold, f0, dst, d0):
    """``dst[d0:]`` (one cell of all lanes) = sum over ``s < folds`` of ``fold[s] * cell[s * circle]``."""
    sig = types.void(cells, types.intp, types.intp, circle, types.intp, fold, types.intp, dst, types.intp)

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[0])
        g, f, d = (e.data(signature.args[i], args[i]) for i in (0, 5, 7))
        turn = ir.Constant(args[1].type, signature.args[3].literal_value)
        wide = ir.Constant(args[1].type, 2 * e.lanes)
        sums = [cgutils.alloca_once(builder, e.vector) for _ in range(2)]
        for cell in sums:
            builder.store(e.constant(0.0), cell)
        with cgutils.for_range(builder, args[4]) as loop:
            step = builder.mul(loop.index, turn)
            value = e.splat_pair(g, builder.add(args[1], step), builder.add(args[2], step), 0)
            r = e.load_pair(f, builder.add(args[6], builder.mul(loop.index, wide)), 0)
            so_far = (builder.load(sums[0]), builder.load(sums[1]))
            for cell, part in zip(sums, e.multiply_add(r, value, so_far), strict=True):
                builder.store(part, cell)
        e.store_pair((builder.load(sums[0]), builder.load(sums[1])), d, args[8], 0)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic(prefer_literal=True)
def tap_weights(typingctx, coefficients, u, n_coefficients, taps, dst, d0):
    """``dst[d0 + a] = sum_k coefficients[k, a] u**k`` for ``a < taps``; evaluated in float64, stored in dst's type."""
    sig = types.void(coefficients, types.float64, n_coefficients, taps, dst, types.intp)

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[0])
        c = e.data(signature.args[0], args[0])
        d = e.data(signature.args[4], args[4])
        n, taps_ = (signature.args[i].literal_value for i in (2, 3))
        zero = ir.Constant(ir.IntType(64), 0)
        u_ = e.splat(args[1])
        for first in range(0, taps_, e.lanes):
            acc = e.load(c, zero, (n - 1) * taps_ + first)
            for k in range(n - 2, -1, -1):
                acc = e.fma(acc, u_, e.load(c, zero, k * taps_ + first))
            narrow = context.get_value_type(signature.args[4].dtype)
            if narrow != e.scalar:
                vector = ir.VectorType(narrow, e.lanes)
                acc = builder.fptrunc(acc, vector)
                pointer = builder.bitcast(e.at(d, args[5], first), vector.as_pointer())
                builder.store(acc, pointer, align=4)
            else:
                e.store(acc, d, args[5], first)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic(prefer_literal=True)
def spread(typingctx, cells, re, im, weights, w0, length, x, y):
    """``cells[re + a] += weights[w0 + a] * x``, ``cells[im + a] += weights[w0 + a] * y`` for ``a < length`` (a
    literal, whole vectors)."""
    sig = types.void(cells, types.intp, types.intp, weights, types.intp, length, cells.dtype, cells.dtype)

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[0])
        g, w = e.data(signature.args[0], args[0]), e.data(signature.args[3], args[3])
        parts = [(args[1], e.splat(args[6])), (args[2], e.splat(args[7]))]
        for first in range(0, signature.args[5].literal_value, e.lanes):
            weight = e.load(w, args[4], first)
            for base, value in parts:
                e.store(e.fma(weight, value, e.load(g, base, first)), g, base, first)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic(prefer_literal=True)
def power_lanes(typingctx, x, xw, xy, x2, scale, s0, out, o0, floating_mean, worst, guard):
    """Compute the Lomb-Scargle power of one cell of all lanes from its three transforms.

    ``x[xw:]``, ``x[xy:]``, ``x[x2:]`` are the cells of the transforms of w, w y at f and of w at 2f, each to be
    multiplied by the real ``scale[s0:]`` of its lane.  Power goes to ``out[o0:]``, NaN where CC SS - CS^2 is not
    above ``guard``; ``worst`` keeps the smallest CC SS - CS^2 of each lane.  Without ``floating_mean``
    (literal 0) the transform of w at f is not read.
    """
    sig = types.void(
        x, types.intp, types.intp, types.intp, scale, types.intp, out, types.intp, floating_mean, worst, x.dtype
    )

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[0])
        xs, sc, ou, wo = (e.data(signature.args[i], args[i]) for i in (0, 4, 6, 9))
        zero = ir.Constant(ir.IntType(64), 0)
        half, guard, missing = e.constant(0.5), e.splat(args[10]), e.constant(float("nan"))
        k = e.load(sc, args[5])
        hk = builder.fmul(half, k)
        wx, wy = e.load_pair(xs, args[3], 0)
        yx, yy = e.load_pair(xs, args[2], 0)
        cc, ss, cs = e.fma(hk, wx, half), e.fma(e.neg(hk), wx, half), builder.fmul(hk, wy)
        if signature.args[8].literal_value:
            c, s = (builder.fmul(k, p) for p in e.load_pair(xs, args[1], 0))
            nc, ns = e.neg(c), e.neg(s)
            cc, ss, cs = e.fma(nc, c, cc), e.fma(ns, s, ss), e.fma(nc, s, cs)
        det = e.fma(cc, ss, e.neg(builder.fmul(cs, cs)))
        ch, sh = builder.fmul(k, yx), builder.fmul(k, yy)
        # num = ch (SS ch - CS sh) + sh (CC sh - CS ch)
        first = e.fma(ss, ch, e.neg(builder.fmul(cs, sh)))
        second = e.fma(cc, sh, e.neg(builder.fmul(cs, ch)))
        num = e.fma(ch, first, builder.fmul(sh, second))
        safe = builder.fcmp_ordered(">", det, guard)
        e.store(builder.select(safe, builder.fdiv(num, det), missing), ou, args[7])
        worst_ = e.load(wo, zero)
        e.store(builder.select(builder.fcmp_ordered("<", det, worst_), det, worst_), wo, zero)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic(prefer_literal=True)
def direct_tile(typingctx, left, l0, right, r0, n, acc, a0, channels):
    """Sum the products of a coarse and a fine phase table over ``n`` points.

    ``left[l0 + 2 * channels * j + 2 * h]``, ``+ 1``: strength times cosine and sine of the coarse phase, channel
    ``h``, point ``j``.  ``right[r0 + 4 * lanes * j:]``: lane vectors cos b, sin b, cos 2b, sin 2b of the fine
    phases; channel 1 (w at 2f) takes the doubled ones.  ``acc[a0:]`` gains, for each channel, four lane
    vectors: sums of (cos cos), (sin sin), (sin cos), (cos sin).
    """
    sig = types.void(left, types.intp, right, types.intp, types.intp, acc, types.intp, channels)

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[2])
        a, b, c = (e.data(signature.args[i], args[i]) for i in (0, 2, 5))
        n_channels = signature.args[7].literal_value
        sums = [cgutils.alloca_once(builder, e.vector) for _ in range(4 * n_channels)]
        for i, cell in enumerate(sums):
            builder.store(e.load(c, args[6], i * e.lanes), cell)
        with cgutils.for_range(builder, args[4]) as loop:
            width = ir.Constant(args[1].type, 2 * n_channels)
            at_left = builder.add(args[1], builder.mul(loop.index, width))
            at_right = builder.add(args[3], builder.mul(loop.index, ir.Constant(args[3].type, 4 * e.lanes)))
            fine = [e.load(b, at_right, i * e.lanes) for i in range(4)]
            for h in range(n_channels):
                cos_b, sin_b = (fine[2], fine[3]) if h == 1 else (fine[0], fine[1])
                x, y = (e.splat(e.item(a, at_left, 2 * h + i)) for i in range(2))
                for i, (p, q) in enumerate(((x, cos_b), (y, sin_b), (y, cos_b), (x, sin_b))):
                    cell = sums[4 * h + i]
                    builder.store(e.fma(p, q, builder.load(cell)), cell)
        for i, cell in enumerate(sums):
            e.store(builder.load(cell), c, args[6], i * e.lanes)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic(prefer_literal=True)
def both_signs(typingctx, acc, a0, x, x0):
    """Compute complex sums at ``fc - d`` and ``fc + d`` of all lanes from the four real sums of `direct_tile`.

    ``acc[a0:]`` holds the vectors (cos cos), (sin sin), (sin cos), (cos sin) of one channel; the cell of ``fc - d``
    goes to ``x[x0:]`` and that of ``fc + d`` behind it.
    """
    sig = types.void(acc, types.intp, x, types.intp)

    def codegen(context, builder, signature, args):
        e = CombVectors(context, builder, signature.args[0])
        a, d = e.data(signature.args[0], args[0]), e.data(signature.args[2], args[2])
        cc, ss, sc, cs = (e.load(a, args[1], i * e.lanes) for i in range(4))
        e.store_pair((builder.fadd(cc, ss), builder.fsub(sc, cs)), d, args[3], 0)
        e.store_pair((builder.fsub(cc, ss), builder.fadd(sc, cs)), d, args[3], 2 * e.lanes)
        return context.get_dummy_value()

    return sig, codegen
