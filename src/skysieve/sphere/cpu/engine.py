"""The CPU backend: the choice between the methods, and the threads."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.tasks import TaskPool
from skysieve.sphere.contract import Spec
from skysieve.sphere.kernels.base import Harmonic
from skysieve.sphere.ring_pairs import NotBandLimited

from . import harmonic
from .arkcos import ArkcosEngine
from .direct import DirectEngine
from .harmonic import HarmonicEngine, harmonic_seconds
from .ring import RingEngine, pairs_of, ring_seconds, transform_seconds
from .spin import SpinEngine

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        cheap = harmonic.available() and all(isinstance(k, Harmonic) for k in self.spec.kernels)
        lmax = max(k.bandlimit(harmonic.band_eps(self.spec)) for k in self.spec.kernels) if cheap else np.inf
        by_harmonics = harmonic_seconds(self.spec, lmax)
        least = min(best.seconds(), by_harmonics)
        if transform_seconds(self.spec) < least:
            with suppress(NotBandLimited):
                pairs = pairs_of(self.spec)
                if ring_seconds(self.spec, pairs) < least:
                    return RingEngine(self.spec, self.pool, pairs)
        return best if best.seconds() <= by_harmonics else HarmonicEngine(self.spec, self.pool)

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
            "threads": self.pool.workers,
        }

    def close(self) -> None:
        """Free the threads."""
        self.pool.close()
