"""Vector code of de-dispersion: sums of rows, transposed squares of samples, and a first look for pulses.

A row is a run of elements in a flat array.  Counts are in vectors of ``LANES`` elements: rows are padded, so that there
are no remainders.  See `skysieve.core.cpu.simd` for why this is written for LLVM directly.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from skysieve.core.cpu.simd import VectorBuilder, splat

LANES = 32
"""Elements of a vector: 64 bytes of uint16."""
WIDE = 64
"""Windows that are tested together: four vectors, for which the scale of a width is loaded once."""
SIDE = 16
"""Elements of the side of a square that is transposed."""


class Rows(VectorBuilder):
    """Vectors of ``lanes`` elements of one array."""

    def __init__(self, context: Any, builder: Any, array_type: Any, value: Any, lanes: int = LANES) -> None:
        super().__init__(context, builder, array_type, lanes)
        self.pointer = self.data(array_type, value)

    def get(self, index: Any, wanted: Any = None) -> Any:
        """Return the vector at element `index`, extended with zeros to the vector type `wanted` if that is wider."""
        value = self.load(self.pointer, index)
        return value if wanted is None or wanted == self.vector else self.builder.zext(value, wanted)

    def get_unless(self, fresh: Any, first: Any, index: Any) -> Any:
        """Return the vector `first` where `fresh` is true, otherwise the vector at element `index`."""
        with self.builder.if_else(fresh) as (new, more):
            with new:
                new_block = self.builder.block
            with more:
                old = self.get(index)
                old_block = self.builder.block
        chosen = self.builder.phi(self.vector)
        chosen.add_incoming(first, new_block)
        chosen.add_incoming(old, old_block)
        return chosen

    def put(self, value: Any, index: Any) -> None:
        """Store a vector at element `index`."""
        self.store(value, self.pointer, index)


@intrinsic
def add_rows(typingctx, dst, d, src, a, b, vectors):
    """``dst[d + i] = src[a + i] + src[b + i]`` for ``i < LANES * vectors``; integers are extended to ``dst``'s type."""
    sig = types.void(dst, types.intp, src, types.intp, types.intp, types.intp)

    def codegen(context, builder, signature, args):
        out = Rows(context, builder, signature.args[0], args[0])
        rows = Rows(context, builder, signature.args[2], args[2])
        real = isinstance(out.scalar, ir.FloatType)
        with cgutils.for_range(builder, args[5]) as loop:
            i = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            x = rows.get(builder.add(args[3], i), out.vector)
            y = rows.get(builder.add(args[4], i), out.vector)
            out.put(builder.fadd(x, y) if real else builder.add(x, y), builder.add(args[1], i))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def halve_rows(typingctx, dst, d, src, s, vectors):
    """``dst[d + i] = src[s + 2 i] + src[s + 2 i + 1]`` for ``i < LANES * vectors``, extended to the type of ``dst``.

    ``dst`` may be ``src`` if ``d`` is at most ``s``.
    """
    sig = types.void(dst, types.intp, src, types.intp, types.intp)

    def codegen(context, builder, signature, args):
        out = Rows(context, builder, signature.args[0], args[0])
        rows = Rows(context, builder, signature.args[2], args[2], lanes=2 * LANES)
        with cgutils.for_range(builder, args[4]) as loop:
            i = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            both = rows.get(builder.add(args[3], builder.add(i, i)))
            parts = []
            for k in range(2):
                mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [2 * j + k for j in range(LANES)])
                part = builder.shuffle_vector(both, ir.Constant(rows.vector, ir.Undefined), mask)
                parts.append(part if part.type == out.vector else builder.zext(part, out.vector))
            out.put(builder.add(parts[0], parts[1]), builder.add(args[1], i))
        return context.get_dummy_value()

    return sig, codegen


def _accumulate(count: int):
    @intrinsic
    def accumulate(typingctx, dst, d, src, starts, s, vectors, first):
        sig = types.void(dst, types.intp, src, starts, types.intp, types.intp, types.boolean)

        def codegen(context, builder, signature, args):
            out = Rows(context, builder, signature.args[0], args[0])
            rows = Rows(context, builder, signature.args[2], args[2])
            table = rows.data(signature.args[3], args[3])
            real = isinstance(out.scalar, ir.FloatType)
            at = [rows.item(table, args[4], k) for k in range(count)]
            zero = ir.Constant(out.vector, None)
            with cgutils.for_range(builder, args[5]) as loop:
                i = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
                here = builder.add(args[1], i)
                terms = [rows.get(builder.add(k, i), out.vector) for k in at]
                total = out.get_unless(args[6], zero, here)
                for term in terms:
                    total = builder.fadd(total, term) if real else builder.add(total, term)
                out.put(total, here)
            return context.get_dummy_value()

        return sig, codegen

    return accumulate


accumulate_1, accumulate_2, accumulate_4, accumulate_8 = (_accumulate(n) for n in (1, 2, 4, 8))


@intrinsic
def widen_rows(typingctx, dst, d, src, s, vectors, weight, start, fresh):
    """``dst[d + i] = start + weight * src[s + i]`` for ``i < LANES * vectors``, or ``+= weight * src[s + i]``.

    ``weight`` and ``start`` have the type of ``dst``, to which the elements of ``src`` are extended.
    """
    sig = types.void(dst, types.intp, src, types.intp, types.intp, dst.dtype, dst.dtype, types.boolean)

    def codegen(context, builder, signature, args):
        out = Rows(context, builder, signature.args[0], args[0])
        rows = Rows(context, builder, signature.args[2], args[2])
        real = isinstance(out.scalar, ir.FloatType)

        factor, origin = (splat(builder, v, out.vector) for v in args[5:7])
        with cgutils.for_range(builder, args[4]) as loop:
            i = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            here = builder.add(args[1], i)
            value = rows.get(builder.add(args[3], i), out.vector)
            value = builder.fmul(value, factor) if real else builder.mul(value, factor)
            base = out.get_unless(args[7], origin, here)
            out.put(builder.fadd(base, value) if real else builder.add(base, value), here)
        return context.get_dummy_value()

    return sig, codegen


def _turn(per: int):
    @intrinsic
    def turn(typingctx, dst, d, far, near, src, s, stride, offset):
        sig = types.void(dst, types.intp, types.intp, types.intp, src, types.intp, types.intp, dst.dtype)
        n = SIDE

        def codegen(context, builder, signature, args):
            out, rows = (Rows(context, builder, signature.args[i], args[i], lanes=n) for i in (0, 4))
            at = args[5]
            lines = []
            for i in range(n):
                step = builder.mul(args[6], ir.Constant(args[6].type, i))
                lines.append(rows.get(builder.add(at, step)))
            for _ in range(n.bit_length() - 1):
                lines = [
                    builder.shuffle_vector(lines[i // 2], lines[i // 2 + n // 2], _interleave(n, i % 2))
                    for i in range(n)
                ]
            if isinstance(rows.scalar, ir.IntType):
                lines = [builder.add(v, splat(builder, args[7], rows.vector)) for v in lines]
            bits = 8 // per
            for j, line in enumerate(lines):
                row = builder.add(args[1], builder.mul(args[2], ir.Constant(args[2].type, j)))
                for k in range(per):
                    part = line
                    if per > 1:
                        part = builder.lshr(line, ir.Constant(rows.vector, [k * bits] * n))
                        part = builder.and_(part, ir.Constant(rows.vector, [(1 << bits) - 1] * n))
                    out.put(part, builder.add(row, builder.mul(args[3], ir.Constant(args[3].type, k))))
            return context.get_dummy_value()

        return sig, codegen

    return turn


def _interleave(n: int, high: int) -> Any:
    """Mask that interleaves the low (or high) halves of two vectors."""
    pairs = [(i + high * n // 2, i + high * n // 2 + n) for i in range(n // 2)]
    return ir.Constant(ir.VectorType(ir.IntType(32), n), [v for pair in pairs for v in pair])


turn_1, turn_2, turn_4, turn_8 = (_turn(n) for n in (1, 2, 4, 8))
"""``turn_p(dst, d, far, near, src, s, stride, offset)``: transpose a square of 16 x 16 samples (or bytes).

Row ``i`` of the square begins at ``src[s + i stride]``; its column ``j`` goes to ``dst[d + j far]``, ``offset`` added.
With ``p`` samples in a byte, lowest bits first, sample ``k`` of column ``j`` goes to ``dst[d + j far + k near]``.
"""


@intrinsic
def any_window(typingctx, prefix, at, blocks, widths, scales, count, threshold):
    """Return a mask of `WIDE` bits: whether any window centred on ``at + bit + WIDE * block`` reaches a threshold.

    The window of width ``w = widths[k]`` that is centred on sample ``t`` begins at ``s = t - w // 2``; its S/N is
    ``(prefix[s + w] - prefix[s]) * scales[k]``, where the difference of int32 is converted to float32.
    """
    sig = types.uint64(prefix, types.intp, types.intp, widths, scales, types.intp, scales.dtype)

    def codegen(context, builder, signature, args):
        rows = Rows(context, builder, signature.args[0], args[0], lanes=WIDE)
        sizes, factors = (rows.data(signature.args[i], args[i]) for i in (3, 4))
        floats, bits = ir.VectorType(ir.FloatType(), WIDE), ir.IntType(WIDE)
        best, hits = (cgutils.alloca_once(builder, t) for t in (floats, bits))
        builder.store(ir.Constant(bits, 0), hits)
        limit = splat(builder, args[6], floats)
        with cgutils.for_range(builder, args[2]) as outer:
            t = builder.add(args[1], builder.mul(outer.index, ir.Constant(outer.index.type, WIDE)))
            builder.store(ir.Constant(floats, [0.0] * WIDE), best)
            with cgutils.for_range(builder, args[5]) as inner:
                size, factor = (rows.item(table, inner.index) for table in (sizes, factors))
                start = builder.sub(t, builder.lshr(size, ir.Constant(size.type, 1)))
                sums = builder.sub(rows.get(builder.add(start, size)), rows.get(start))
                snr = builder.fmul(builder.sitofp(sums, floats), splat(builder, factor, floats))
                held = builder.load(best)
                builder.store(builder.select(builder.fcmp_ordered(">", snr, held), snr, held), best)
            reached = builder.fcmp_ordered(">=", builder.load(best), limit)
            builder.store(builder.or_(builder.load(hits), builder.bitcast(reached, bits)), hits)
        return builder.load(hits)

    return sig, codegen
