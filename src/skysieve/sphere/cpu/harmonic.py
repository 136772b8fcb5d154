"""The harmonic engine on the CPU: analysis, product with the window, synthesis, by ducc0 (an extra: GPL).

Without iterations it computes the same pixel sum as the other engines, for band-limited kernels.  With iterations and a
given lmax it computes the same result as healpy.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import install_hint
from skysieve.sphere.arguments import QUIET
from skysieve.sphere.kernels.base import MAX_BAND, Kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.core.tasks import TaskPool
    from skysieve.sphere.contract import Spec
    from skysieve.sphere.grids.grid import RingTable

NS_LEGENDRE = 0.05
"""Nanoseconds of one core for one ring, degree and order of one transform."""


def available() -> bool:
    """Whether ducc0 is installed."""
    return importlib.util.find_spec("ducc0") is not None


class Transforms:
    """Spherical harmonic transforms on a grid of rings.

    Parameters
    ----------
    table : RingTable
    lmax, mmax : int
    threads : int

    Raises
    ------
    ValueError
        ducc0 is not installed.
    """

    def __init__(self, table: RingTable, lmax: int, mmax: int, threads: int) -> None:
        if not available():
            raise ValueError(
                "method='harmonic' (and iter, lmax, mmax, weights, quadrature='healpy', nside_out, different windows "
                f"of E and B) needs ducc0: {install_hint('ducc0')}"
            )
        import ducc0

        self._sht = ducc0.sht
        self.lmax, self.mmax = lmax, mmax
        self._rings: dict[str, Any] = {
            "theta": table.theta, "phi0": table.phi0, "nphi": table.n.astype(np.uint64),
            "ringstart": table.start.astype(np.uint64), "lmax": lmax, "mmax": mmax, "nthreads": threads,
        }  # fmt: skip
        self.ell = np.concatenate([np.arange(m, lmax + 1) for m in range(mmax + 1)])
        self._n = table.n
        self.npix = table.npix

    def analysis(self, maps: NDArray[Any], weight: NDArray[np.float64], spin: int) -> NDArray[Any]:
        """Harmonics of ``maps`` (1 or 2, npix): pixel sums, with one weight for each ring."""
        weighted = maps * np.repeat(weight, self._n).astype(maps.dtype)
        alm: NDArray[Any] = self._sht.adjoint_synthesis(map=weighted, spin=spin, **self._rings)
        return alm

    def synthesis(self, alm: NDArray[Any], spin: int) -> NDArray[Any]:
        """Maps (1 or 2, npix) from harmonics."""
        maps: NDArray[Any] = self._sht.synthesis(alm=alm, spin=spin, **self._rings)
        return maps

    def smooth(
        self, maps: NDArray[Any], weight: NDArray[np.float64], windows: Sequence[NDArray[np.float64]], spin: int,
        rounds: int, last: Transforms | None = None,
    ) -> NDArray[Any]:  # fmt: skip
        """Smooth maps: analysis with ``rounds`` corrections by residuals, windows (one for each component), synthesis.

        The result is on the rings of ``last``, which has the same degrees and orders; by default on these rings.
        """
        alm = self.analysis(maps, weight, spin)
        for _ in range(rounds):
            alm += self.analysis(maps - self.synthesis(alm, spin), weight, spin)
        for a, w in zip(alm, windows, strict=True):
            a *= w[self.ell].astype(maps.dtype)
        return (last or self).synthesis(alm, spin)


class HarmonicEngine:
    """The pixel sum by harmonic transforms, for all kernels of a `Spec`; see `cpu.ring.RingEngine`."""

    name = "harmonic"

    def __init__(self, spec: Spec, pool: TaskPool, lmax: int | None = None) -> None:
        if lmax is None:
            band = max(band_of(k, spec.spin, band_eps(spec)) for k in spec.kernels)
            if not np.isfinite(band):
                raise ValueError("the kernel's window does not end: method='harmonic' cannot be used")
            lmax = int(band)
        self.spec = spec
        self.lmax, self.threads = lmax, pool.workers
        self._transforms = Transforms(spec.table, self.lmax, self.lmax, pool.workers)
        self._windows = [
            np.stack(k.polarised(self.lmax) if spec.spin else [k.window(self.lmax)])[:, self._transforms.ell]
            for k in spec.kernels
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, without maps: harmonics, modes of all rings, a weighted map."""
        parts = 2 if self.spec.spin else 1
        item = 2 * self.spec.dtype.itemsize
        modes = len(self.spec.table.n) * (self.lmax + 1) * item
        degrees = self._transforms.ell.size
        return parts * (2 * degrees * item + modes + self.spec.table.npix * item) + 8 * degrees

    def seconds(self) -> float:
        """Expected seconds of one map on one core."""
        return harmonic_seconds(self.spec, self.lmax)

    def convolve(self, maps: NDArray[Any], out: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """See `contract.Engine.convolve`."""
        spin, t = self.spec.spin, self._transforms
        last = np.repeat(w_out, self.spec.table.n).astype(self.spec.dtype)
        parts = 2 if spin else 1
        for x, y in zip(maps, out, strict=True):
            alm = t.analysis(x.reshape(parts, -1), w_in, spin)
            for k, window in enumerate(self._windows):
                found = t.synthesis(alm * window.astype(self.spec.dtype), spin)
                np.multiply(found.reshape(y[k].shape), last, out=y[k])


def band_eps(spec: Spec) -> float:
    """Accuracy with which the window may be cut; in float64 on equal rings at most `QUIET`."""
    quiet = spec.dtype == np.float64 and spec.table.uniform
    return (min(spec.eps, QUIET) if quiet else spec.eps) / 4


def band_of(kernel: Kernel, spin: int, eps: float, most: int = MAX_BAND) -> float:
    """Degree where the window ends, with spin 2 those of E and B; infinite if it is larger than `most`."""
    return max(k.bandlimit(eps, most) for k in (kernel.components() if spin else (kernel,)))


def harmonic_seconds(spec: Spec, lmax: float) -> float:
    """Expected seconds of one map on one core."""
    n = spec.table.n
    transforms = (1 + len(spec.kernels)) * (2 if spec.spin else 1)
    fft = 0.65 * float((n * np.log2(np.maximum(n, 2))).sum()) * spec.dtype.itemsize / 4
    return 1e-9 * transforms * (NS_LEGENDRE * len(n) * lmax**2 + fft)
