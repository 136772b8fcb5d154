"""The result for a map of ones, in float64; times the mean, it is the result for a large mean.

The sum of a kernel over a ring of n pixels is n times its mean on the ring, plus its modes n, 2n, ...  The mean gives a
Legendre series in the ring's colatitude; the modes matter for kernels narrower than four pixels and around the poles.
If the symmetry of the grid allows it, only a quarter of each northern ring is stored.  For kernels that are not
band-limited the direct engine is used, for a band of rings at a time.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.core.tasks import TaskPool
from skysieve.sphere.contract import Spec
from skysieve.sphere.kernels.base import Harmonic
from skysieve.sphere.kernels.radial import make_radial
from skysieve.sphere.ring_pairs import highest_mode, mode_bounds, reach

from .direct import DirectEngine
from .stencil import span
from .tables import JIT, radial_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.sphere.grids.grid import RingTable
    from skysieve.sphere.kernels.base import Kernel
    from skysieve.sphere.kernels.radial import Radial

EPS = 1e-12
"""Relative error of the smoothed mean: an offset of 1e4 rms then adds an error of 1e-8 rms."""
BAND = 64
"""Output rings of one band of the direct engine."""
MOST_DEGREES = 1 << 18
"""Largest highest mode at the equator; for kernels with higher modes the direct engine is used."""
_SCRATCH = 1 << 19
"""Bytes for the kernel's tables, and for the modes."""


@njit(**JIT)
def zonal(window, theta, ring_weight, out):
    """``sum_l (2 l + 1) / 4 pi K_l P_l(theta_o) sum_i W_i P_l(theta_i)`` for all rings o.

    The recurrence runs on differences, with ``x = 1 - cos theta``, so that no digits are lost at the poles.
    """
    rings = len(theta)
    x, p, d = np.empty(rings), np.ones(rings), np.zeros(rings)
    south = np.empty(rings, np.bool_)
    for i in range(rings):
        south[i] = theta[i] > 0.5 * math.pi
        half = math.sin(0.5 * (math.pi - theta[i] if south[i] else theta[i]))
        x[i] = 2 * half * half
        out[i] = 0
    for k in range(len(window)):
        moment = 0.0
        for i in range(rings):
            moment += -ring_weight[i] * p[i] if south[i] and k % 2 else ring_weight[i] * p[i]
        c = moment * window[k] * (2 * k + 1) / (4 * math.pi)
        for i in range(rings):
            out[i] += -c * p[i] if south[i] and k % 2 else c * p[i]
            d[i] = (k * d[i] - (2 * k + 1) * x[i] * p[i]) / (k + 1)
            p[i] += d[i]


@njit(**JIT)
def beyond_the_mean(
    o, first, last, theta, n, phi0, modes, weight, xmax, scale, cells, positive, out
):  # fmt: skip
    """Add the modes n_i, 2 n_i, ... of the input rings to the first ``len(out)`` pixels of ring ``o``."""
    for i in range(first, last):
        top = min(modes[o], modes[i])
        if top < n[i]:
            continue
        half = math.sin(0.5 * (theta[i] - theta[o]))
        a, b = 4 * half * half, 4 * math.sin(theta[i]) * math.sin(theta[o])
        if a > xmax:
            continue
        for h in range(1, top // n[i] + 1):
            fine = 2 * (top // n[i]) + 2
            total = 0.0
            most = min(int(span(a, b, xmax, fine * n[i])), fine * n[i] // 2)
            for j in range(most + 1):
                s = math.sin(j * math.pi / (fine * n[i]))
                twice = 1.0 if j == 0 or 2 * j == fine * n[i] else 2.0
                total += (
                    twice
                    * radial_value(a + b * s * s, xmax, scale, cells, positive)
                    * math.cos(2 * math.pi * ((h * j) % fine) / fine)
                )
            total *= 2.0 * weight[i] / fine
            start = h * (phi0[o] - phi0[i]) * n[i]
            if n[o] == n[i]:
                term = total * math.cos(start)
                for p in range(len(out)):
                    out[p] += term
            else:
                for p in range(len(out)):
                    out[p] += total * math.cos(start + 2 * math.pi * ((h * p * n[i]) % n[o]) / n[o])


class Ones:
    """Results for a map of ones, for each kernel; they are computed when they are first needed.

    Parameters
    ----------
    table : RingTable
    kernels : sequence of Kernel
    eps : float
        Accuracy of the plan.
    threads : int, optional
    """

    def __init__(self, table: RingTable, kernels: Sequence[Kernel], eps: float, threads: int | None) -> None:
        self.table, self.kernels, self.threads = table, tuple(kernels), threads
        self.eps = min(EPS, eps)
        self.mirrored = table.symmetric
        rings = len(table.n)
        self.half = (rings + 1) // 2 if self.mirrored else rings
        self.fold = 4 if (table.n % 4 == 0).all() else 1
        stored = np.ones(self.half, np.int64) if table.uniform else table.n[: self.half] // self.fold
        self._place = np.concatenate([[0], np.cumsum(stored)]).astype(np.int64)
        self._direct = [self._endless(k) for k in self.kernels]
        self._values: NDArray[np.float64] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the results, and of the working memory that computes them."""
        t = self.table
        held = 8 * len(self.kernels) * int(self._place[-1])
        banded = 0
        for k, direct in zip(self.kernels, self._direct, strict=True):
            if direct:
                halo = int(k.support(self.eps) / max(1e-9, float(np.diff(t.theta).min()))) + 1 if len(t.n) > 1 else 1
                rings = min(len(t.n), BAND + 2 * halo)
                banded = max(banded, 8 * 5 * rings * int(t.n.max()))
        return held + banded + _SCRATCH

    def _endless(self, kernel: Kernel) -> bool:
        """Whether the kernel is not band-limited, so that the direct engine is needed."""
        if kernel.hard or isinstance(kernel, Harmonic):
            return kernel.hard
        return not math.isfinite(highest_mode(make_radial(kernel, self.eps), 1.0, EPS, self._most(kernel), 0))

    def _most(self, kernel: Kernel) -> int:
        """Upper limit in the search for the highest mode; for kernels given as functions it depends on the grid."""
        return MOST_DEGREES if isinstance(kernel, Harmonic) else 8 * int(self.table.n.max())

    def ring(self, kernel: int, r: int) -> NDArray[np.float64]:
        """The result on ring ``r``, (n,), or (1,) if it is the same for all pixels of a ring."""
        values = self._all()[kernel]
        o = len(self.table.n) - 1 - r if self.mirrored and r >= self.half else r
        part = values[self._place[o] : self._place[o + 1]]
        return part if len(part) == 1 else np.tile(part, self.fold)

    def add(self, mean: float, out: NDArray[Any]) -> None:
        """Add ``mean`` times the stored results to the results ``out`` (K, npix) of a map without its mean."""
        t = self.table
        for k, row in enumerate(out):
            for r in range(len(t.n)):
                line = row[t.start[r] : t.start[r] + t.n[r]]
                np.add(line, mean * self.ring(k, r), out=line, casting="same_kind")

    def _all(self) -> NDArray[np.float64]:
        if self._values is None:
            found = np.zeros((len(self.kernels), int(self._place[-1])))
            pool = TaskPool(self.threads)
            try:
                for kernel, direct, out in zip(self.kernels, self._direct, found, strict=True):
                    self._form(kernel, direct, out, pool)
            finally:
                pool.close()
            self._values = found
        return self._values

    def _form(self, kernel: Kernel, direct: bool, out: NDArray[np.float64], pool: TaskPool) -> None:
        t = self.table
        radial = make_radial(kernel, self.eps)
        modes = np.full(1, math.inf) if direct else mode_bounds(t, radial, EPS)
        band = highest_mode(radial, 1.0, EPS, self._most(kernel), 0) if np.isfinite(modes).all() else math.inf
        if not math.isfinite(band):
            self._banded(kernel, radial, out, pool)
            return
        highest = np.ceil(modes * 1.01).astype(np.int64) + 2
        mean = np.empty(len(t.n))
        zonal(kernel.window(int(1.05 * band) + 8), t.theta, t.weight * t.n, mean)
        first, last = reach(t.theta, radial.radius)
        scale = len(radial.cells) / math.sqrt(radial.xmax)

        def rings(listed: range) -> None:
            for o in listed:
                part = out[self._place[o] : self._place[o + 1]]
                part += mean[o]
                beyond_the_mean(
                    o, first[o], last[o], t.theta, t.n, t.phi0, highest, t.weight, radial.xmax, scale, radial.cells,
                    radial.positive, part,
                )  # fmt: skip

        pool.run([partial(rings, range(k, self.half, 16)) for k in range(16)])

    def _banded(self, kernel: Kernel, radial: Radial, out: NDArray[np.float64], pool: TaskPool) -> None:
        t = self.table
        first, last = reach(t.theta, radial.radius)
        for a in range(0, self.half, BAND):
            b = min(a + BAND, self.half)
            i0, i1 = int(first[a]), int(last[b - 1])
            near = t.select(slice(i0, i1))
            wanted = np.zeros(i1 - i0, bool)
            wanted[a - i0 : b - i0] = True
            spec = Spec(near, (kernel,), (radial,), np.dtype(np.float64), self.eps, 0, wanted)
            result = np.empty((1, 1, near.npix))
            DirectEngine(spec, pool).convolve(
                np.ones((1, near.npix)), result, near.weight, np.ones(len(near.n))
            )  # fmt: skip
            for o in range(a, b):
                at = int(near.start[o - i0])
                size = int(self._place[o + 1] - self._place[o])
                out[self._place[o] : self._place[o + 1]] = result[0, 0, at : at + size]
