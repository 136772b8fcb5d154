"""The search of the objects of one chunk: whole objects, or one object in pieces on all threads."""

from __future__ import annotations

import _signal  # pyrefly: ignore[missing-import]  # without the enumerations of `signal`, which take longer than the rest
import threading
from abc import ABC, abstractmethod
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.cpu.jit import compile_together, is_compiled

from .search import CONCLUDED, best_rows, joined

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

    from numpy.typing import NDArray

    from . import state
    from .engine import Engine

TASKS_PER_THREAD = 4
R = TypeVar("R")


def interrupted_after(kernel: Callable[..., R], *arguments: Any) -> R:
    """The result of a compiled function; in the main thread, Ctrl-C and SIGTERM are handled after it.

    numba turns arrays that a function returns into Python objects by calling Python, where the signals that have come
    in the meantime are handled.  If a handler raises an exception, numba does not notice, and the process crashes.
    """
    if threading.current_thread() is not threading.main_thread():
        return kernel(*arguments)
    came: list[tuple[int, FrameType | None]] = []
    handlers = {number: _signal.getsignal(number) for number in (_signal.SIGTERM, _signal.SIGINT)}
    usual = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in usual:
            _signal.signal(number, lambda *about: came.append(about))
        result = kernel(*arguments)
    finally:
        for number, handler in usual.items():
            _signal.signal(number, handler)
    for number, frame in came[:1]:
        usual[number](number, frame)
    return result


class ChunkSearch(ABC):
    """The objects of one chunk, ready to be searched by any thread.

    Parameters
    ----------
    engine : Engine
        Its options and its threads.
    curves, grid, answers
        Prepared light curves, frequencies, and the arrays for the results.
    kernels : module
        With the compiled functions ``search`` and ``conclude``.
    first : module
        With ``sources()``, which returns both functions for the interpreter.

    Attributes
    ----------
    interpreted : bool
        Whether the interpreter searches, because nothing is compiled.
    """

    def __init__(
        self, engine: Engine, curves: state.Curves, grid: state.Frequencies, answers: state.Answers,
        kernels: ModuleType, first: ModuleType,
    ) -> None:  # fmt: skip
        self.engine, self.curves, self.grid, self.answers = engine, curves, grid, answers
        self.kernels, self.first = kernels, first
        self.interpreted = False

    @abstractmethod
    def length(self, method: int, combs: int) -> int:
        """Samples of one stretch."""

    @abstractmethod
    def arguments(
        self, method: int, combs: int, which: NDArray[np.int64], first: int, last: int, best: Any, taken: Any
    ) -> tuple[tuple[Any, ...], Any]:
        """Arguments of ``kernels.search``, and this thread's scratch, which is one of them."""

    @abstractmethod
    def ending(self, which: NDArray[np.int64], work: Any, best: Any, taken: Any) -> tuple[Any, ...]:
        """Arguments of ``kernels.conclude``."""

    @abstractmethod
    def work_of_one(self, i: int) -> Any:
        """This thread's scratch for the end of the search of object ``i``."""

    def is_compiled(self, method: int, combs: int, which: NDArray[np.int64]) -> bool:
        """Whether the search need not be compiled first."""
        arguments, _ = self.arguments(method, combs, which, 0, -1, *best_rows(self.answers, len(which)))
        return is_compiled(self.kernels.search, *arguments)

    def search(self, method: int, combs: int, which: NDArray[np.int64], first: int, last: int) -> tuple[Any, int, Any]:
        """Search stretches of one object, or whole objects (``last < 0``), whose peaks are then refined."""
        best, taken = best_rows(self.answers, len(which))
        arguments, work = self.arguments(method, combs, which, first, last, best, taken)
        ending = self.ending(which, work, best, taken)
        run, conclude = self.kernels.search, self.kernels.conclude
        if self.interpreted:
            run, conclude = self.first.sources()
            found, count, seam = run(*arguments)
        else:
            compile_together((run, arguments), (conclude, ending))
            found, count, seam = interrupted_after(run, *arguments)
        if last < 0:
            conclude(*ending)
        return found[:count], count, seam

    def _search_and_free(
        self, method: int, combs: int, which: NDArray[np.int64], first: int, last: int
    ) -> tuple[Any, int, Any]:
        """As `search`; the scratch of this thread is freed."""
        try:
            return self.search(method, combs, which, first, last)
        finally:
            self.engine.free_scratch()

    def objects(self, method: int, combs: int, which: NDArray[np.int64]) -> None:
        """Search whole objects."""
        for at in range(0, len(which), CONCLUDED):
            self.search(method, combs, which[at : at + CONCLUDED], 0, -1)

    def one(self, method: int, combs: int, i: int, nf: int) -> None:
        """Search one object with all threads."""
        which = np.array([i])
        length = self.length(method, combs)
        stretches = -(-nf // length)
        if stretches > 1 and nf - (stretches - 1) * length < 2:
            stretches -= 1  # a piece needs two samples: the last stretch joins the one before
        # every piece prepares its points again: few pieces of many stretches
        workers = self.engine.pool.workers
        threads = self.engine.threads_of_one(method, int(self.curves.n_used[i]))
        pieces = min(stretches, workers * max(1, min(TASKS_PER_THREAD, stretches // 32)))
        search = self.search
        if threads < workers:  # a piece for each; the next object may be searched by other threads
            pieces, search = min(stretches, threads), self._search_and_free
        if pieces < 2:
            self.objects(method, combs, which)
            return
        edges = np.linspace(0, stretches, pieces + 1).astype(int)
        edges[-1] = -(-nf // length)
        parts = self.engine.pool.run(
            [partial(search, method, combs, which, int(a), int(b)) for a, b in pairwise(edges)]
        )
        bounds = np.minimum(edges * length, nf)
        found = joined(np.concatenate([p[0] for p in parts]), np.stack([p[2] for p in parts]), bounds)
        self.kernels.conclude(*self.ending(which, self.work_of_one(i), found[None], np.array([len(found)])))
