"""Memory of the host that a GPU reads without a detour; where the system refuses, it stays as it is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Runtime

logger = logging.getLogger("skysieve")


def driver(runtime: Runtime) -> Any:
    """What locks pages; None for a runtime whose arrays are the host's."""
    return None if runtime.xp is np else runtime.xp.cuda.runtime


class PageLock:
    """Locks the pages of an array until `close`.

    Parameters
    ----------
    runtime : Runtime
    array : numpy.ndarray
        Contiguous; held until `close`.

    Attributes
    ----------
    refused : str
        The driver's reason where it refuses, as it does beyond what the system lets a process lock: copies are slower
        then, and everything else is the same.
    """

    def __init__(self, runtime: Runtime, array: NDArray[Any]) -> None:
        self._driver, self._array = driver(runtime), array
        self.refused = ""
        if self._driver is None:
            return
        try:
            self._driver.hostRegister(array.ctypes.data, array.nbytes, 0)
        except RuntimeError as error:
            self._driver, self.refused = None, str(error)

    def close(self) -> None:
        """Unlock them; the array stays."""
        if self._driver is not None:
            held, self._driver = self._driver, None
            try:
                held.hostUnregister(self._array.ctypes.data)
            except RuntimeError as error:  # a GPU that is gone
                logger.warning("%s", error)
