"""Explicit SIMD for numba kernels: a builder of LLVM vector code.

numba has no vector types, and LLVM's own vectoriser gives up on long loop bodies or keeps their running sums in memory.
The intrinsics in the domains therefore write vector instructions with `VectorBuilder`.  A vector holds
`BYTES` bytes unless a number of lanes is given; LLVM lowers it to the machine's registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

__all__ = ["BYTES", "VectorBuilder", "splat"]

BYTES = 64
"""Bytes of a vector."""


def splat(builder: Any, scalar: Any, vector: Any) -> Any:
    """Return a vector of type `vector` with `scalar` in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, undefined, mask)


class VectorBuilder:
    """Write vector instructions for the elements of one array type.

    Parameters
    ----------
    context, builder
        Arguments of the same names of an intrinsic's ``codegen``.
    array_type : numba.types.Array
        Its elements are the lanes.
    lanes : int, optional
        Lanes of a vector; as many as `BYTES` holds by default.

    Attributes
    ----------
    scalar, vector : llvmlite types
        Of one element, and of `lanes` of them.
    size : int
        Bytes of an element.
    """

    def __init__(self, context: Any, builder: Any, array_type: Any, lanes: int | None = None) -> None:
        self.context, self.builder = context, builder
        self.size = array_type.dtype.bitwidth // 8
        self.scalar = context.get_value_type(array_type.dtype)
        self.lanes = lanes or BYTES // self.size
        self.vector = ir.VectorType(self.scalar, self.lanes)

    def data(self, array_type: Any, value: Any) -> Any:
        """Return the pointer to the first element of an array argument."""
        return self.context.make_array(array_type)(self.context, self.builder, value).data

    def plus(self, index: Any, constant: int) -> Any:
        """Return ``index + constant``."""
        return self.builder.add(index, ir.Constant(index.type, constant)) if constant else index

    def at(self, pointer: Any, index: Any, constant: int = 0) -> Any:
        """Return the pointer to element ``index + constant``."""
        return self.builder.gep(pointer, [self.plus(index, constant)], inbounds=True)

    def item(self, pointer: Any, index: Any, constant: int = 0) -> Any:
        """Return element ``index + constant``."""
        return self.builder.load(self.at(pointer, index, constant))

    def load(self, pointer: Any, index: Any, constant: int = 0) -> Any:
        """Return the vector that begins at element ``index + constant``; it need not be aligned."""
        at = self.builder.bitcast(self.at(pointer, index, constant), self.vector.as_pointer())
        return self.builder.load(at, align=self.size, typ=self.vector)

    def store(self, value: Any, pointer: Any, index: Any, constant: int = 0) -> None:
        """Store a vector at element ``index + constant``; it need not be aligned."""
        at = self.builder.bitcast(self.at(pointer, index, constant), self.vector.as_pointer())
        self.builder.store(value, at, align=self.size)

    def splat(self, scalar: Any) -> Any:
        """Return a vector with `scalar` in every lane."""
        return splat(self.builder, scalar, self.vector)

    def constant(self, x: float) -> Any:
        """Return a vector with the number `x` in every lane."""
        return ir.Constant(self.vector, [x] * self.lanes)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a * b + c`` with one rounding (vectors of floats)."""
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fma.v{self.lanes}f{8 * self.size}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c])

    def neg(self, a: Any) -> Any:
        """Return ``-a`` (a vector of floats)."""
        return self.builder.fneg(a)

    def variables(self, count: int) -> list[Any]:
        """Return `count` pointers to vectors of zeros, which loops can update; LLVM keeps them in registers."""
        found = [cgutils.alloca_once(self.builder, self.vector) for _ in range(count)]
        for pointer in found:
            self.builder.store(self.constant(0), pointer)
        return found

    def loop(self, start: Any, stop: Any, step: int, body: Callable[[Any], None]) -> None:
        """Call ``body(index)`` for the indices of ``range(start, stop, step)``."""
        size = ir.Constant(start.type, step)
        with cgutils.for_range_slice(self.builder, start, stop, size, start.type) as (index, _):
            body(index)
