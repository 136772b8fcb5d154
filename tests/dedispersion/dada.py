"""PSRDADA files for tests and benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skysieve.dedispersion.stream.receive.dada_file import header_text


def write_dada(path: Path, x: NDArray[np.int8], *, tsamp: float, fch1: float, foff: float, tstart: float = 0.0) -> None:
    """Write 8-bit voltages, shape (samples, polarisations, channels, 2), as a PSRDADA file."""
    _, npol, nchan, _ = x.shape
    with path.open("wb") as file:
        file.write(header_text(npol, nchan, tsamp=tsamp, fch1=fch1, foff=foff, tstart=tstart))
        file.write(np.ascontiguousarray(x.transpose(0, 2, 1, 3), np.int8).tobytes())
