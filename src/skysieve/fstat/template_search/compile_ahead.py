"""First search on a new machine: a second process compiles exponential windows while other windows are searched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from skysieve.core.device import Device

__all__ = ["compile_exponential"]

USE = "from skysieve.fstat.command.warm_up import exponential_search; exponential_search('cpu')"


def compile_exponential(windows: Any, devices: Iterable[Device], dtype: Any) -> None:
    """Start to compile exponential windows in another process, if CPUs search them and other windows in float32."""
    several = not isinstance(windows, str) and len(windows) > 1 and "exp" in windows
    if several and all(d.kind == "cpu" for d in devices) and np.dtype(dtype) == np.float32:
        from skysieve.core.cpu.jit import compile_beside
        from skysieve.fstat.cpu.exp import exp_blocks

        compile_beside(USE, exp_blocks)
