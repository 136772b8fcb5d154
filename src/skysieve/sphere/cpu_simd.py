"""Explicit SIMD for the convolution kernels: numba intrinsics that write LLVM vector code.

numba has no vector types, and LLVM's own vectoriser keeps the running sums of these loops in memory.  Vectors are 64
bytes: 16 float32 or 8 float64 lanes; LLVM lowers them to whatever the machine has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BYTES = 64
BAND_VECTORS = 4
"""Vectors of modes that one call of `band_sum` covers."""
STENCIL_VECTORS, STENCIL_ROWS = 4, 4
"""Vectors of pixels and output rings that one call of `stencil_sum` covers."""


class _Code:
    """Emits vector instructions for one element type into one IR builder."""

    def __init__(self, context: Any, builder: Any, array_type: Any, lanes: int | None = None) -> None:
        self.context, self.builder = context, builder
        self.bits = array_type.dtype.bitwidth
        self.scalar = context.get_value_type(array_type.dtype)
        self.lanes = lanes or 8 * BYTES // self.bits
        self.vector = ir.VectorType(self.scalar, self.lanes)
        name = f"llvm.fma.v{self.lanes}f{self.bits}"
        fnty = ir.FunctionType(self.vector, [self.vector] * 3)
        self._fma = cgutils.get_or_insert_function(builder.module, fnty, name)

    def data(self, array_type: Any, value: Any) -> Any:
        return self.context.make_array(array_type)(self.context, self.builder, value).data

    def item(self, pointer: Any, index: Any) -> Any:
        return self.builder.load(self.builder.gep(pointer, [index], inbounds=True))

    def load(self, pointer: Any, index: Any, constant: int = 0) -> Any:
        at = self.builder.gep(pointer, [self.plus(index, constant)], inbounds=True)
        return self.builder.load(
            self.builder.bitcast(at, self.vector.as_pointer()), align=self.bits // 8, typ=self.vector
        )

    def store(self, value: Any, pointer: Any, index: Any, constant: int = 0) -> None:
        at = self.builder.gep(pointer, [self.plus(index, constant)], inbounds=True)
        self.builder.store(value, self.builder.bitcast(at, self.vector.as_pointer()), align=self.bits // 8)

    def plus(self, index: Any, constant: int) -> Any:
        return self.builder.add(index, ir.Constant(index.type, constant)) if constant else index

    def splat(self, scalar: Any) -> Any:
        undef = ir.Constant(self.vector, ir.Undefined)
        one = self.builder.insert_element(undef, scalar, ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(one, undef, mask)

    def zero(self) -> Any:
        return ir.Constant(self.vector, [0.0] * self.lanes)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])

    def variable(self, count: int) -> list[Any]:
        """Registers that loops carry, set to zero here."""
        held = [cgutils.alloca_once(self.builder, self.vector) for _ in range(count)]
        for v in held:
            self.builder.store(self.zero(), v)
        return held

    def loop(self, start: Any, stop: Any, step: int, body: Callable[[Any], None]) -> None:
        size = ir.Constant(start.type, step)
        with cgutils.for_range_slice(self.builder, start, stop, size, start.type) as (index, _):
            body(index)


@intrinsic
def band_sum(
    typingctx, cosines, samples, first_sample, n_samples, first_cosine, cosine_row, modes, place, mirror, gap, length,
    pair, i0, i1, m, out, o0, row,
):  # fmt: skip
    """Sums over rings for ``BAND_VECTORS`` vectors of modes from ``m`` on, of one output ring and its mirror image.

    Ring ``i`` of i0 .. i1 is pair ``pair + i - i0``, whose kernel is
    ``k(m) = sum_j samples[first_sample + j] cosines[first_cosine + j cosine_row + m]``.  Its modes begin at
    ``place[i]``, those of its mirror image at ``mirror[i]``: ``length[i]`` real parts that count, and ``gap[i]`` after
    each its imaginary part.
    ``out[o0 + k row + m]`` gets the sums, k = 0 .. 3: real and imaginary part, then those of the mirror image.
    """
    args = (
        cosines, samples, first_sample, n_samples, first_cosine, cosine_row, modes, place, mirror, gap, length,
        types.intp, types.intp, types.intp, types.intp, out, types.intp, types.intp,
    )  # fmt: skip
    sig = types.void(*args)

    def codegen(context, builder, signature, given):
        e = _Code(context, builder, signature.args[0])
        pointers = [e.data(t, v) for t, v in zip(signature.args[:11], given[:11], strict=True)]
        cos, smp, first, count, base, step, f, here, there, imaginary, size = pointers
        p0, a, b, mode = given[11:15]
        target, o, plane = e.data(signature.args[15], given[15]), given[16], given[17]
        total = e.variable(4 * BAND_VECTORS)
        k = [cgutils.alloca_once(builder, e.vector) for _ in range(BAND_VECTORS)]

        def ring(i):
            length_i = e.item(size, i)
            with cgutils.if_likely(builder, builder.icmp_signed("<", mode, length_i)):
                p = builder.add(p0, builder.sub(i, a))
                s0, n, stride = e.item(first, p), e.item(count, p), e.item(step, p)
                c0 = builder.add(e.item(base, p), mode)
                for v in k:
                    builder.store(e.zero(), v)

                def sample(j):
                    s = e.splat(e.item(smp, builder.add(s0, j)))
                    at = builder.add(c0, builder.mul(j, stride))
                    for v in range(BAND_VECTORS):
                        builder.store(e.fma(s, e.load(cos, at, v * e.lanes), builder.load(k[v])), k[v])

                e.loop(ir.Constant(n.type, 0), n, 1, sample)
                for side, start in enumerate((e.item(here, i), e.item(there, i))):
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
