"""Runs of equal samples in the memory of a GPU; see ``runs.cu``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime, Runtime, on_device
from skysieve.core.gpu.structs import address

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE = "skysieve.dedispersion.clean.cuda"
THREADS = 256
LEAST, MOST_CHUNKS = 256, 128
"""Pairs of a chunk, at least; chunks, at most: the host joins them one after the other."""


@functools.cache
def runtime_of(index: int) -> CudaRuntime:
    """The runtime of a GPU, by its number."""
    return CudaRuntime(resolve(f"cuda:{index}")[0])


def runs(runtime: Runtime, x: Any, stride: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Compare every ``stride``-th sample with the one after it.

    Parameters
    ----------
    runtime : Runtime
    x : array on the device, shape (samples, channels)
    stride : int

    Returns
    -------
    many : int32, shape (pairs,)
        Equal channels of each pair.
    found : int32, shape (chunks, 4, channels)
        Of the pairs of a chunk, the number of equal ones; those before the first that is not equal; the longest run
        between two that are not; those after the last.
    lengths : int32, shape (chunks,)
        Pairs of each chunk.
    """
    xp, size = runtime.xp, x.dtype.itemsize
    samples, channels = x.shape
    pairs = len(range(0, samples - 1, stride))
    chunk = max(LEAST, -(-pairs // MOST_CHUNKS))
    chunks = -(-pairs // chunk)
    with on_device(runtime):
        many, found = xp.zeros(pairs, np.int32), xp.empty((chunks, channels, 4), np.int32)
        ts, cs = (np.int64(n // size) for n in x.strides)
        args = (
            np.uint64(address(x)), ts, cs, np.int32(stride), np.int64(pairs), np.int64(chunk),
            np.int32(channels), many, found,
        )  # fmt: skip
        runtime.module(PACKAGE, "runs.cu", f"u{8 * size}").launch(
            "runs", (-(-channels // THREADS), chunks), (THREADS,), args
        )
        lengths = np.diff(np.minimum(np.arange(chunks + 1) * chunk, pairs)).astype(np.int32)
        return to_host(many), to_host(found).transpose(0, 2, 1), lengths
