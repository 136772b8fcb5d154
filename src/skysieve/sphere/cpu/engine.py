"""The CPU backend: the choice between the methods, and the threads."""

from __future__ import annotations

import math
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.tasks import TaskPool
from skysieve.sphere.contract import Spec
from skysieve.sphere.kernels.base import MAX_BAND, Harmonic
from skysieve.sphere.ring_pairs import NotBandLimited

from . import harmonic
from .arkcos import ArkcosEngine
from .direct import DirectEngine
from .harmonic import HarmonicEngine, harmonic_seconds
from .ring import RingEngine, pairs_of, ring_seconds, transform_seconds
from .spin import SpinEngine

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW_SECONDS = 0.05
"""Seconds of one map on one core by the fastest other method from which the window of a kernel given by its profile is
computed: harmonics may then be faster."""
NS_WINDOW, MOST_MAPS = 60.0, 4
"""Nanoseconds of a window over the square of its degrees, and the time that it may take, in units of that of a map."""


class Engine:
    """Convolution on the CPU; see `contract.Engine`.

    Parameters
    ----------
    spec : Spec
    method : {"auto", "direct", "ring", "harmonic"}
    device : Device, optional
        Not used; there is one CPU.
    memory : str or float, optional
        Budget of the plan and its working memory; 80% of the free memory by default.
    threads : int, optional
        All usable cores by default.
    """

    def __init__(
        self,
        spec: Spec,
        method: str = "auto",
        device: Any = None,
        memory: str | float | None = None,
        threads: int | None = None,
    ) -> None:
        self.spec = spec
        self.pool = TaskPool(threads)
        with ExitStack() as failed:
            failed.callback(self.pool.close)
            self._engine = self._choose(method)
            budget = parse_budget(memory, available_host_memory(), default=0.8)
            if self.nbytes > budget:
                raise MemoryBudgetError(f"the plan (method={self._engine.name!r})", self.nbytes, budget)
            failed.pop_all()
        self.method = self._engine.name

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, without maps and results."""
        return self._engine.nbytes + self.spec.extra

    def _choose(self, method: str) -> RingEngine | DirectEngine | HarmonicEngine | ArkcosEngine:
        """The engine of the method, or the one that is expected to be the fastest.

        The ring engine takes longest to set up.  It is set up only if it is expected to be the fastest.
        """
        if self.spec.compat:
            return ArkcosEngine(self.spec, self.pool)
        if method == "harmonic":
            return HarmonicEngine(self.spec, self.pool)
        if method == "ring":
            return RingEngine(self.spec, self.pool)
        direct = SpinEngine if self.spec.spin else DirectEngine
        best: RingEngine | DirectEngine | HarmonicEngine = direct(self.spec, self.pool)
        if method == "direct":
            return best
        known = all(isinstance(k, Harmonic) for k in self.spec.kernels)
        lmax = self._lmax(best.seconds()) if known else np.inf
        by_harmonics = harmonic_seconds(self.spec, lmax)
        pairs, by_rings = [], np.inf
        if transform_seconds(self.spec) < min(best.seconds(), by_harmonics):
            with suppress(NotBandLimited):
                pairs = pairs_of(self.spec)
                by_rings = ring_seconds(self.spec, pairs)
        least = min(best.seconds(), by_rings)
        if not known and least > WINDOW_SECONDS:
            lmax = self._lmax(least)
            by_harmonics = harmonic_seconds(self.spec, lmax)
        if by_harmonics < least:
            return HarmonicEngine(self.spec, self.pool, int(lmax))
        return RingEngine(self.spec, self.pool, pairs) if by_rings < best.seconds() else best

    def _lmax(self, seconds: float) -> float:
        """Degree where the windows end; infinite without ducc0, and if they end beyond the degree that is searched.

        That degree is 64, times 4 until harmonics of it would take `seconds`, or the window a few times as long.
        """
        if not harmonic.available():
            return np.inf
        most, last = 64, min(MAX_BAND, 4 * math.sqrt(self.spec.table.npix))
        while most < last and harmonic_seconds(self.spec, most) < seconds:
            if 1e-9 * NS_WINDOW * (4 * most) ** 2 > MOST_MAPS * seconds:
                break
            most *= 4
        eps = harmonic.band_eps(self.spec)
        return max(harmonic.band_of(k, self.spec.spin, eps, most) for k in self.spec.kernels)

    def convolve(self, maps: NDArray[Any], out: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """See `contract.Engine.convolve`."""
        self._engine.convolve(maps, out, np.asarray(w_in), np.asarray(w_out))

    def describe(self) -> dict[str, Any]:
        """See `contract.Engine.describe`."""
        return {
            "method": self.method,
            "device": "cpu",
            "bytes": self.nbytes,
            "work": {f"{self.method} {self.spec.dtype.name}{' spin' * bool(self.spec.spin)}": self._engine.seconds()},
            "threads": self._engine.threads,
        }

    def close(self) -> None:
        """Free the threads."""
        self.pool.close()
