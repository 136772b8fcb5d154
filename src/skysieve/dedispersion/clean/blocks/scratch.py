"""Memory for intermediate results, which is used again: to allocate new memory would take as long as the work in it."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Scratch", "SpareScratch", "scratch_array"]

Scratch = dict[str, Any]
"""Arrays by name; see `scratch_array`."""


class SpareScratch:
    """Scratch memory of threads, which other threads use again; any of them may call any method at any time."""

    def __init__(self) -> None:
        self._spare: deque[Scratch] = deque()

    def take(self) -> Scratch:
        """Return the memory that was given back last, or new memory."""
        try:
            return self._spare.pop()
        except IndexError:
            return {}

    def give_back(self, memory: Scratch) -> None:
        """Leave memory for the next thread that takes some."""
        self._spare.append(memory)

    def clear(self) -> None:
        """Free all memory that no thread uses."""
        self._spare.clear()


def scratch_array(memory: Scratch, name: str, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    """An uninitialised array in scratch memory."""
    held, size = memory.get(name), math.prod(shape)
    if held is None or held.size < size:
        held = memory[name] = np.empty(size, kind)
    return held[:size].reshape(shape)
