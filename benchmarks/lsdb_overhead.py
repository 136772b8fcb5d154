"""Cost of a partition of an LSDB catalogue beyond the search itself: ``python -m benchmarks.lsdb_overhead``.

For partitions of few and of many objects, the table gives the processor seconds of `skysieve.lombscargle` on flat
arrays, of `skysieve.lsdb.periods` on the same objects as one partition, and of ``map_partitions`` for each partition.
They are measured in this process, since LSDB uses Dask's synchronous scheduler, and are the lowest of some runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial

import dask
import lsdb
import nested_pandas
import numpy as np
import pandas as pd
import pyarrow as pa

import skysieve
import skysieve.lsdb

GRID = {"fmin": 0.01, "fmax": 20.0, "samples_per_peak": 5}
PARTITIONS = 8


def lowest(call: Callable[[], object], runs: int) -> float:
    """Return the processor seconds of a call, the lowest of some runs."""
    best = np.inf
    for _ in range(runs):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    """Measure and print a table."""
    rng = np.random.default_rng(1)
    print("objects  lombscargle      periods  map_partitions  beyond the function (s a partition)")
    for objects, runs in ((5, 20), (100, 10), (1000, 3)):
        n = objects * PARTITIONS
        sizes = rng.integers(250, 350, n)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        t = np.concatenate([np.sort(rng.uniform(0, 1500, m)) for m in sizes])
        y, dy = rng.normal(15, 0.1, len(t)), np.full(len(t), 0.1)
        rows = pa.StructArray.from_arrays([pa.array(c) for c in (t, y, dy)], ["mjd", "mag", "magerr"])
        lists = pa.ListArray.from_arrays(offsets, rows)
        column = pd.Series(lists, dtype=nested_pandas.NestedDtype(lists.type))
        ra = 45 + np.repeat(np.arange(PARTITIONS) * 40.0, objects) + rng.uniform(0, 1, n)
        stars = nested_pandas.NestedFrame({"ra": ra % 360, "dec": rng.uniform(2, 3, n), "lc": column})
        first = stars.iloc[:objects]
        end = offsets[objects]
        flat = (t[:end], y[:end], dy[:end])
        more = {"offsets": offsets[: objects + 1], "return_power": False, "n_peaks": 1, "threads": 1}
        bare = lowest(partial(skysieve.lombscargle, *flat, **more, **GRID), runs)
        mine = lowest(partial(skysieve.lsdb.periods, first, "lc", **GRID), runs)
        with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="synchronous"):
            made = lsdb.from_dataframe(stars, partition_rows=objects, margin_threshold=None)
            made.write_catalog(folder + "/stars")
            catalogue = lsdb.open_catalog(folder + "/stars")
            found = catalogue.map_partitions(skysieve.lsdb.periods, "lc", **GRID)
            parts = catalogue.npartitions
            whole = lowest(found.compute, max(1, runs // 3)) / parts
            read = lowest(catalogue.compute, max(1, runs // 3)) / parts
        print(
            f"{objects:7} {bare:12.4f} {mine:12.4f} {whole:15.4f}  {mine - bare:.4f} in periods, {read:.4f} to read, "
            f"{whole - mine * n / parts / objects - read:.4f} in LSDB and Dask; {parts} partitions"
        )


if __name__ == "__main__":
    main()
