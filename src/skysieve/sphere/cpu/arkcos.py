"""Elsner & Wandelt's algorithm as they published it (2011, A&A 532, A35), for comparison.

The kernel is sampled at 4 nside azimuths for every pair of rings, and modes end at 2 nside.  In the first version a
ring of n pixels in a cap has no modes beyond n / 2 (they are padded with zeros), and shifted rings of the belt are
moved by a phase.  This causes ringing around point sources.  "duplicate" repeats the modes in the caps and folds the
modes of the result.  "unshifted" samples the kernel between a shifted and an unshifted ring of the belt at their own
azimuths.  The paper's direct sum for the eight polar pixels is not implemented.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.sphere.ring_pairs import chord_terms, reach

from .ring import NS_SUM, NS_TRANSFORM, fold, phases, unfold

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.tasks import TaskPool
    from skysieve.sphere.contract import Spec
    from skysieve.sphere.kernels.radial import Radial

ROWS = 16
"""Output rings of one task."""


class ArkcosEngine:
    """The published algorithm for all kernels of a `Spec`; see `cpu.ring.RingEngine`."""

    name = "ring"

    def __init__(self, spec: Spec, pool: TaskPool) -> None:
        self.spec, self.pool, self.threads = spec, pool, pool.workers
        self.duplicate, self.unshifted = "duplicate" in spec.compat, "unshifted" in spec.compat
        t = spec.table
        self.most = int(t.n.max()) // 2
        self.belt = t.n == t.n.max()
        self.reach = [reach(t.theta, r.radius) for r in spec.radials]
        self.modes: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, without maps: modes, and the kernel samples of the tasks."""
        rings = max(int((last - first).max()) for first, last in self.reach)
        row = 8 * (self.most + 1)
        held = 2 * (self.most + 1) * len(self.spec.table.n) * self.spec.dtype.itemsize
        return held + self.pool.workers * row * (8 * rings + 16)

    def seconds(self) -> float:
        """Expected seconds of one map on one core."""
        t = self.spec.table
        transforms = float((t.n * np.log2(np.maximum(t.n, 2))).sum()) * (1 + len(self.reach))
        pairs = sum(float((last - first).sum()) for first, last in self.reach) / 2
        samples = pairs * self.most
        return 1e-9 * (NS_TRANSFORM * transforms + samples * (100 + 40 * NS_SUM))

    def convolve(self, maps: NDArray[Any], out: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """See `contract.Engine.convolve`."""
        rings, half = len(self.spec.table.n), (len(self.spec.table.n) + 1) // 2
        modes = np.zeros((rings, 2, self.most + 1), self.spec.dtype)
        for x, y in zip(maps, out, strict=True):
            self.pool.run([partial(self._forward, x, w_in, modes, range(k, rings, 32)) for k in range(32)])
            for k, radial in enumerate(self.spec.radials):
                tasks = [
                    partial(self._back, k, radial, modes, w_out, y[k], range(a, min(a + ROWS, half)))
                    for a in range(0, half, ROWS)
                ]
                self.pool.run(tasks)

    def _forward(self, x: NDArray[Any], w: NDArray[Any], modes: NDArray[Any], rings: range) -> None:
        from scipy.fft import rfft

        t = self.spec.table
        pr, pi = np.empty(self.most + 1), np.empty(self.most + 1)
        for i in rings:
            n, phi0 = int(t.n[i]), float(t.phi0[i])
            last = self.most if self.duplicate else n // 2
            phases(last + 1, phi0, pr, pi)
            line = modes[i].reshape(-1)
            line[:] = 0
            z = rfft(x[t.start[i] : t.start[i] + n])
            unfold(z, n, last, self.most + 1, w[i], phi0 != 0, pr, pi, line, 0)

    def _back(
        self, k: int, radial: Radial, modes: NDArray[Any], w: NDArray[Any], y: NDArray[Any], rings: range
    ) -> None:
        from scipy.fft import irfft

        t = self.spec.table
        total = len(t.n)
        first, last = self.reach[k]
        pr, pi = np.empty(self.most + 1), np.empty(self.most + 1)
        for o in rings:
            kernel = self._kernel(radial, o, np.arange(first[o], last[o]))
            for ring in {o, total - 1 - o}:
                listed = np.arange(first[o], last[o])
                held = modes[listed] if ring == o else modes[total - 1 - listed]
                sums = np.einsum("im,ipm->pm", kernel, held)
                n, phi0 = int(t.n[ring]), float(t.phi0[ring])
                phases(self.most + 1, phi0, pr, pi)
                z = np.zeros(n // 2 + 1, np.result_type(self.spec.dtype, np.complex64))
                if self.duplicate:
                    fold(sums.reshape(-1), 0, self.most + 1, self.most, n, phi0 != 0, pr, pi, z)
                else:
                    kept = slice(0, n // 2 + 1)
                    z[:] = (sums[0, kept] + 1j * sums[1, kept]) * (pr[kept] + 1j * pi[kept])
                y[t.start[ring] : t.start[ring] + n] = irfft(z, n, norm="forward") * w[ring]

    def _kernel(self, radial: Radial, o: int, i: NDArray[np.int64]) -> NDArray[Any]:
        """Modes 0 .. 2 nside of the kernel for the pairs of ring ``o`` with rings ``i``."""
        from scipy.fft import dct

        t, most = self.spec.table, self.most
        a, b = chord_terms(t.theta, np.full(len(i), o), i)
        whole = np.arange(most + 1) * (np.pi / most)
        found = dct(radial(a[:, None] + b[:, None] * np.sin(whole / 2) ** 2), type=1) / (2 * most)
        if self.duplicate:
            found[:, most] *= 0.5  # folding adds both signs of this mode
        odd = self.belt[o] & self.belt[i] & ((i - o) % 2 == 1)
        if self.unshifted and odd.any():
            between = (np.arange(most) + 0.5) * (np.pi / most)
            x = a[odd, None] + b[odd, None] * np.sin(between / 2) ** 2
            found[odd, :most] = dct(radial(x), type=2) / (2 * most)
            found[odd, most] = 0
        return np.asarray(found, self.spec.dtype)
