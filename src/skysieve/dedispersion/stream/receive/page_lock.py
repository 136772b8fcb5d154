"""Page-locked host memory, which a GPU reads directly; if the system refuses to lock it, ordinary memory is used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Runtime

logger = logging.getLogger("skysieve")


def driver(runtime: Runtime) -> Any:
    """The driver's functions that lock pages; None for a runtime whose arrays lie on the host."""
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
        The driver's message if the pages cannot be locked, for example because the process may not lock that much
        memory.  Copies are then slower; nothing else changes.
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
        """Unlock the pages; the array stays."""
        if self._driver is not None:
            held, self._driver = self._driver, None
            try:
                held.hostUnregister(self._array.ctypes.data)
            except RuntimeError as error:  # a GPU that has failed
                logger.warning("%s", error)
