"""Fourier transforms of many columns at a time, in single precision (numba, explicit vectors).

This is a Stockham transform: passes of radix 4, 2, 3, 5 and other primes, without reordering.  Every product and sum is
rounded separately, in a fixed order.  The GPU kernels (``channelise.cu``) do the same operations, so that the results
are equal bit for bit; the transform of a library guarantees neither the order nor the rounding.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from skysieve.core.cpu.jit import njit
from skysieve.dedispersion.cpu.simd import Rows

JIT = {"nogil": True, "error_model": "numpy"}
LANES = 16
"""Floats of a vector; columns are padded to a multiple of it."""


def _butterflies(radix: int, turned: bool):
    """Make a function for radix 2 or 4 butterflies of whole rows.

    Inputs ``x0 + k * xstep`` and outputs ``y0 + j * ystep`` are rows of ``LANES * vectors`` floats; if ``turned``,
    output ``j`` is multiplied by ``w[w0 + 2 (j - 1)] + i w[w0 + 2 (j - 1) + 1]``.
    """

    @intrinsic
    def butterflies(typingctx, yr, yi, y0, ystep, xr, xi, x0, xstep, vectors, w, w0):
        n = types.intp
        sig = types.void(yr, yi, n, n, xr, xi, n, n, n, w, n)

        def codegen(context, builder, signature, args):
            to = [Rows(context, builder, signature.args[k], args[k], LANES) for k in (0, 1)]
            given = [Rows(context, builder, signature.args[k], args[k], LANES) for k in (4, 5)]
            table = Rows(context, builder, signature.args[9], args[9], LANES)
            turn = []
            for k in range(2 * (radix - 1) if turned else 0):
                turn.append(table.splat(table.item(table.pointer, args[10], k)))
            ins = [builder.add(args[6], builder.mul(args[7], ir.Constant(args[7].type, k))) for k in range(radix)]
            outs = [builder.add(args[2], builder.mul(args[3], ir.Constant(args[3].type, k))) for k in range(radix)]
            with cgutils.for_range(builder, args[8]) as loop:
                i = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
                a = [tuple(rows.get(builder.add(at, i)) for rows in given) for at in ins]
                b = _two(builder, *a) if radix == 2 else _four(builder, *a)
                for j, (re, im) in enumerate(b):
                    if j and turned:
                        c, s = turn[2 * j - 2], turn[2 * j - 1]
                        re, im = (
                            builder.fsub(builder.fmul(re, c), builder.fmul(im, s)),
                            builder.fadd(builder.fmul(re, s), builder.fmul(im, c)),
                        )
                    to[0].put(re, builder.add(outs[j], i))
                    to[1].put(im, builder.add(outs[j], i))
            return context.get_dummy_value()

        return sig, codegen

    return butterflies


def _two(b: Any, p: Any, q: Any) -> list[Any]:
    """Sum and difference."""
    return [tuple(map(b.fadd, p, q)), tuple(map(b.fsub, p, q))]


def _four(b: Any, p: Any, q: Any, r: Any, s: Any) -> list[Any]:
    """The transform of four."""
    (t0, t1), (t2, t3) = _two(b, p, r), _two(b, q, s)
    second = b.fadd(t1[0], t3[1]), b.fsub(t1[1], t3[0])
    fourth = b.fsub(t1[0], t3[1]), b.fadd(t1[1], t3[0])
    even, odd = tuple(map(b.fadd, t0, t2)), tuple(map(b.fsub, t0, t2))
    return [even, second, odd, fourth]


plain2, turned2 = _butterflies(2, False), _butterflies(2, True)
plain4, turned4 = _butterflies(4, False), _butterflies(4, True)


@njit(**JIT)
def any_radix(yr, yi, xr, xi, r, m, wide, s, turns):
    """A pass of any radix; sums are in the order of the inputs."""
    n = len(turns)
    for p in range(m):
        for j in range(r):
            ar, ai = yr[wide * (r * p + j) : wide * (r * p + j + 1)], yi[wide * (r * p + j) : wide * (r * p + j + 1)]
            for k in range(r):
                br, bi = (
                    xr[wide * (p + m * k) : wide * (p + m * k + 1)],
                    xi[wide * (p + m * k) : wide * (p + m * k + 1)],
                )
                c, d = turns[j * k % r * (n // r), 0], turns[j * k % r * (n // r), 1]
                if k == 0:
                    for i in range(wide):
                        ar[i] = br[i]
                        ai[i] = bi[i]
                else:
                    for i in range(wide):
                        ar[i] += br[i] * c - bi[i] * d
                        ai[i] += br[i] * d + bi[i] * c
            if j and p:
                c, d = turns[s * p * j, 0], turns[s * p * j, 1]
                for i in range(wide):
                    v = ar[i]
                    ar[i] = v * c - ai[i] * d
                    ai[i] = v * d + ai[i] * c


@njit(**JIT)
def transform(xr, xi, yr, yi, columns, passes, turns, flat):
    """Transform ``columns`` columns (a multiple of `LANES`) of ``len(turns)`` values; returns whether ``y`` has the
    result.

    All arrays are flat, with value ``i`` of column ``w`` at ``i * columns + w``; ``x`` and ``y`` are both overwritten.
    ``flat``: memory for the factors of a butterfly.
    """
    n, s, swapped = len(turns), 1, False
    for r in passes:
        m, wide = n // r, s * columns
        vectors = wide // LANES
        if r == 4 or r == 2:
            for p in range(m):
                for j in range(1, r):
                    flat[2 * j - 2] = turns[s * p * j, 0]
                    flat[2 * j - 1] = turns[s * p * j, 1]
                y, x = r * p * wide, p * wide
                if r == 4 and p:
                    turned4(yr, yi, y, wide, xr, xi, x, m * wide, vectors, flat, 0)
                elif r == 4:
                    plain4(yr, yi, y, wide, xr, xi, x, m * wide, vectors, flat, 0)
                elif p:
                    turned2(yr, yi, y, wide, xr, xi, x, m * wide, vectors, flat, 0)
                else:
                    plain2(yr, yi, y, wide, xr, xi, x, m * wide, vectors, flat, 0)
        else:
            any_radix(yr, yi, xr, xi, r, m, wide, s, turns)
        xr, yr = yr, xr
        xi, yi = yi, xi
        swapped = not swapped
        n = m
        s *= r
    return swapped
