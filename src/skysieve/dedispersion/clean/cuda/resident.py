"""The search for dropped data in samples in the memory of a GPU."""

from __future__ import annotations

import functools

from skysieve.core.device import resolve
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import CudaRuntime, Runtime, on_device
from skysieve.core.gpu.staging import Copier, make_lane
from skysieve.dedispersion.clean.dropouts import Watch
from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.cuda.rows import Store, bytes_of, planes_for
from skysieve.dedispersion.cuda.worker import memory_errors
from skysieve.dedispersion.data.filterbank import Filterbank

BYTES = 2**26
"""Bytes of rows that are loaded at a time, about."""


@functools.cache
def runtime_of(index: int) -> CudaRuntime:
    """The runtime of a GPU, by its number."""
    return CudaRuntime(resolve(f"cuda:{index}")[0])


def watch_resident(watch: Watch, fb: Filterbank, runtime: Runtime | None = None) -> None:
    """Examine the samples of a filterbank in the memory of a GPU with ``watch``, on that GPU.

    The samples are loaded into rows, as for a search, and compared there, one part after another.

    Raises
    ------
    MemoryBudgetError
        The rows of a part do not fit.
    Suspicious
        Samples may be dropped data, and the watch is not quiet.
    """
    if runtime is None:
        assert fb.gpu is not None
        runtime = runtime_of(fb.gpu)
    source = Cleaned(fb, None, 1)
    spectrum = fb.nchan * (planes_for(source, 1) or 4)
    step = max(1, BYTES // spectrum // watch.stride) * watch.stride
    capacity = min(step, fb.nsamp)
    with on_device(runtime):
        lane = make_lane(runtime)
        try:
            store = Store(runtime, source, (), capacity, {}, [lane], Copier())
            while watch.at < fb.nsamp:
                start, stop = watch.at, min(watch.at + step, fb.nsamp)
                store.begin(start, stop)
                column = 0
                pieces = fb.resident(start, stop - start)
                assert pieces is not None
                for rows, order in pieces:
                    store.put(rows, order, column)
                    column += len(rows)
                watch.see_counted(store.equal_pairs, start, stop, fb)
        except memory_errors(runtime) as error:
            what = f"{capacity} samples of {fb.nchan} channels on {runtime.device}"
            raise MemoryBudgetError(what, bytes_of(source, capacity, 1, 0), runtime.device.free_memory) from error
        finally:
            lane.free()
