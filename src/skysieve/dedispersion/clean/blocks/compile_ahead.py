"""Compilation of functions of the cleaning in another process, before they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.cpu import jit
from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation

from . import cpu_impulses
from .cleaner import Cleaner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .steps import StepName

__all__ = ["compile_beside", "examine_one", "find_one"]


def compile_beside(steps: bool = False) -> None:
    """Start to compile the functions that examine blocks for impulses in another process, if they are not stored.

    ``steps``: also the one that finds steps of the gain on a CPU.
    """
    jit.compile_beside(f"from {__name__} import examine_one; examine_one()", cpu_impulses.detect, cpu_impulses.remove)
    if steps:
        jit.compile_beside(f"from {__name__} import find_one; find_one()", cpu_impulses.find_step)


def examine_one() -> None:
    """Examine a block with an impulse."""
    cleaner, series = _one_block("impulses")
    series[:, 100:104] = 9
    cleaner._examined(series, cleaner.block, None, np.full(cleaner.groups, 8.0), {})


def find_one() -> None:
    """Find a step of the gain in a block."""
    cleaner, series = _one_block("gain")
    cleaner._used[:] = 1
    series[:, cleaner.block // 2 :] = 99
    cleaner._find_step(series, 0, cleaner.block)


def _one_block(step: StepName) -> tuple[Cleaner, NDArray[np.float32]]:
    """A cleaner that does one step, and the series of a block of zeros."""
    obs = Observation(np.linspace(1500.0, 1400.0, 64), 1e-3)
    cleaner = Cleaner(obs, np.dtype(np.uint8), 255, (step,), (), DM_CONSTANT)
    return cleaner, np.zeros((cleaner.groups, cleaner.block), np.float32)
