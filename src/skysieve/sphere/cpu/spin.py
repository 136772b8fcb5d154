"""The direct engine for Q and U: the pixel sum with the closed kernel of spin 2, ``p^4 G(x)`` (see `legendre`).

``p = cos(phi / 2) cos((t_q - t_p) / 2) - i sin(phi / 2) cos((t_q + t_p) / 2)``, with ``phi = phi_p - phi_q``, rotates
Q + i U of an input pixel into the frame of the output pixel.  In the mirror image its imaginary part changes sign, so
that one value still serves both hemispheres and four quarters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import njit

from . import stencil as kernels
from .direct import NS_ADD, NS_VALUE, DirectEngine, DirectKernel
from .simd import STENCIL_ROWS, dot_lanes, series_weights
from .tables import JIT, radial_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPIN_TIME = 3.2
"""Measured ratio of the time of Q and U to the time of one scalar map."""


@njit(**JIT)
def turned(half_cos, half_sin, c0, c1):
    """``p^4`` of half the azimuth from the output to the input pixel."""
    re, im = half_cos * c0, half_sin * c1
    re, im = re * re - im * im, 2 * re * im
    return re * re - im * im, 2 * re * im


@njit(**JIT)
def one_by_one(
    o, first, last, theta, n, phi0, start, fold, flip, w_in, xmax, scale, cells, q_in, u_in, q_out, u_out, w_out
):
    """Output ring ``o`` of Q and U, or its mirror image, pixel by pixel; see `cpu.stencil.one_by_one`."""
    rings, quarter = len(n), n[o] // fold
    ring = rings - 1 - o if flip else o
    for p in range(n[o]):
        j, turns = p % quarter, p // quarter
        q_total, u_total = 0.0, 0.0
        azimuth = phi0[o] + 2 * math.pi * j / n[o]
        for i in range(first[o], last[o]):
            half = math.sin(0.5 * (theta[i] - theta[o]))
            a, b = 4 * half * half, 4 * math.sin(theta[i]) * math.sin(theta[o])
            if a > xmax:
                continue
            c0, c1 = math.cos(0.5 * (theta[i] - theta[o])), math.cos(0.5 * (theta[i] + theta[o]))
            if flip:
                c1 = -c1
            reach = kernels.span(a, b, xmax, n[i])
            u = (azimuth - phi0[i]) * n[i] / (2 * math.pi)
            q0 = math.ceil(u - reach - 1e-9)
            count = min(n[i], math.floor(u + reach + 1e-9) - q0 + 1)
            k = rings - 1 - i if flip else i
            moved = n[i] // fold * turns
            for e in range(count):
                q = q0 + e
                h = (q - u) * math.pi / n[i]
                s = math.sin(h)
                value = radial_value(a + b * s * s, xmax, scale, cells, False) * w_in[k]
                re, im = turned(math.cos(h), s, c0, c1)
                at = start[k] + (moved + q) % n[i]
                q_total += value * (re * q_in[at] - im * u_in[at])
                u_total += value * (im * q_in[at] + re * u_in[at])
        q_out[start[ring] + p] = q_total * w_out[ring]
        u_out[start[ring] + p] = u_total * w_out[ring]


@njit(**JIT)
def turn_stencil(o, rows, i0, i1, theta, n, phi0, w_start, count, low, even, odd):
    """Convert stencils of G (see `cpu.stencil.stencil_weights`) to stencils of the even and odd parts of the kernel."""
    for i in range(i0, i1):
        at = w_start[i - i0]
        for r in range(rows):
            c0, c1 = math.cos(0.5 * (theta[i] - theta[o + r])), math.cos(0.5 * (theta[i] + theta[o + r]))
            shift = (phi0[i] - phi0[o + r]) * n / (2 * math.pi)
            for e in range(count[i - i0]):
                h = (low[i - i0] + e + shift) * math.pi / n
                re, im = turned(math.cos(h), math.sin(h), c0, c1)
                k = even[at + e * STENCIL_ROWS + r]
                even[at + e * STENCIL_ROWS + r] = k * re
                odd[at + e * STENCIL_ROWS + r] = k * im
        for r in range(rows, STENCIL_ROWS):
            for e in range(count[i - i0]):
                odd[at + e * STENCIL_ROWS + r] = 0


@njit(**JIT)
def turn_lanes(frac, count, lanes, step, c0, c1, even, odd):
    """Convert values of G for one vector of output pixels to both parts of the kernel, for half azimuths below 0.36."""
    for e in range(count):
        for lane in range(lanes):
            h = (frac[lane] + e) * step
            y = h * h
            s = -1 / 39916800 + y * (1 / 6227020800)
            s = 1 / 120 + y * (-1 / 5040 + y * (1 / 362880 + y * s))
            s = h * (1 + y * (-1 / 6 + y * s))
            re, im = turned(math.sqrt(1 - s * s), s, c0, c1)
            k = even[e * lanes + lane]
            even[e * lanes + lane] = k * re
            odd[e * lanes + lane] = k * im


@njit(**JIT)
def quarter_ring(
    o, first, last, theta, n, phi0, place, halo, xmax, series, floor, lanes, q, u, frac, begin, even, odd, totals
):
    """Sums of output ring ``o`` and its mirror image into ``totals`` (4, 2 n): even Q, odd U, odd Q, even U."""
    quarter = n[o] // 4
    size = quarter * kernels.QUARTERS
    for part in range(4):
        for k in range(size):
            totals[part, k] = 0
    real = frac.dtype.type
    for i in range(first[o], last[o]):
        half = math.sin(0.5 * (theta[i] - theta[o]))
        a, b = 4 * half * half, 4 * math.sin(theta[i]) * math.sin(theta[o])
        if a > xmax:
            continue
        c0, c1 = math.cos(0.5 * (theta[i] - theta[o])), math.cos(0.5 * (theta[i] + theta[o]))
        reach = kernels.span(a, b, xmax, n[i])
        count = (int(2 * reach) + 1 + 3) // 4 * 4
        step = math.pi / n[i]
        for j0 in range(0, quarter, lanes):
            for lane in range(lanes):
                x = (phi0[o] + 2 * math.pi * (j0 + lane) / n[o] - phi0[i]) * n[i] / (2 * math.pi)
                q0 = math.ceil(x - reach)
                begin[lane] = q0
                frac[lane] = q0 - x
            series_weights(
                frac, count, real(step), real(a), real(b), real(2 / xmax), series, len(series), real(floor), even
            )
            turn_lanes(frac, count, lanes, step, c0, c1, even, odd)
            for lane in range(min(lanes, quarter - j0)):
                at = place[i] + (begin[lane] + halo[i]) * kernels.QUARTERS
                to = (j0 + lane) * kernels.QUARTERS
                dot_lanes(even, lane, lanes, count, q, at, totals[0], to)
                dot_lanes(odd, lane, lanes, count, u, at, totals[1], to)
                dot_lanes(odd, lane, lanes, count, q, at, totals[2], to)
                dot_lanes(even, lane, lanes, count, u, at, totals[3], to)
    for k in range(size):
        sign = 1 if k % kernels.QUARTERS < 4 else -1
        totals[0, k] -= sign * totals[1, k]
        totals[3, k] += sign * totals[2, k]


@njit(**JIT)
def quarter_rings(
    rings, mirrored, first, last, theta, n, phi0, start, place, halo, xmax, series, floor, lanes, q, u, frac, begin,
    even, odd, totals, q_out, u_out, w
):  # fmt: skip
    """`quarter_ring` for several output rings of a map, and their Q and U."""
    for o in rings:
        quarter_ring(
            o,
            first,
            last,
            theta,
            n,
            phi0,
            place,
            halo,
            xmax,
            series,
            floor,
            lanes,
            q,
            u,
            frac,
            begin,
            even,
            odd,
            totals,
        )
        kernels.store_ring(o, mirrored, n, start, totals[0], q_out, w)
        kernels.store_ring(o, mirrored, n, start, totals[3], u_out, w)


class SpinEngine(DirectEngine):
    """The pixel sum of Q and U for all kernels of a `Spec`; see `cpu.direct.DirectEngine`."""

    components = 2

    def seconds(self) -> float:
        """Expected seconds of one map of Q and U on one core."""
        return SPIN_TIME * super().seconds()

    def ns_single(self) -> float:
        """See `DirectEngine.ns_single`; a kernel value serves one pixel."""
        return (2 if self.mirrored else 1) * (NS_VALUE + NS_ADD)

    def _quarters(self, p: DirectKernel, rings: list[int], y: NDArray[Any], w: NDArray[Any]) -> None:
        t, dtype = self.spec.table, self.spec.dtype
        assert self._packed is not None
        totals = np.empty((4, int(t.n[rings].max()) // 4 * kernels.QUARTERS), dtype)
        frac, begin = np.empty(self.lanes, dtype), np.empty(self.lanes, np.int64)
        even, odd = (np.empty((2 * int(p.halo.max()) + 8) * self.lanes, dtype) for _ in range(2))
        quarter_rings(
            np.array(rings), self.mirrored, p.first, p.last, t.theta, t.n, t.phi0, t.start, p.place, p.halo,
            p.radial.xmax, p.series, p.floor, self.lanes, self._packed[0], self._packed[1], frac, begin, even, odd,
            totals, y[0], y[1], w,
        )  # fmt: skip

    def _single(
        self, p: DirectKernel, o: int, x: NDArray[Any], y: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]
    ) -> None:
        t, r = self.spec.table, p.radial
        for flip in range(1 + (self._south(o) != o)):
            one_by_one(
                o, p.first, p.last, t.theta, t.n, t.phi0, t.start, self.fold, flip, w_in, r.xmax, p.scale,
                r.cells, x[0], x[1], y[0], y[1], w_out,
            )  # fmt: skip

    def _odd(self, weights: NDArray[Any], plan: tuple[int, ...], *where: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        t, odd = self.spec.table, np.empty_like(weights)
        o, rows, first, last = plan
        turn_stencil(o, rows, first, last, t.theta, int(t.n[o]), t.phi0, *where, weights, odd)
        return (odd,)

    def _join(self, sums: NDArray[Any], side: int) -> None:
        # even Q, even U, odd Q, odd U
        if side:
            sums[0] += sums[3]
            sums[1] -= sums[2]
        else:
            sums[0] -= sums[3]
            sums[1] += sums[2]
