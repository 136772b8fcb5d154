"""An engine of direct sums, for tests of the layer above the backends: slow and obvious.  Tests can make it fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tests.truth import periodogram as reference

from skysieve.periodogram.contract import METHODS, Grids, Output, Scan, Source, Spec, Status

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StandIn:
    """A `skysieve.periodogram.contract.Engine` that reads one object at a time and records the requests."""

    def __init__(self, spec: Spec, fail: tuple[int, ...] = ()) -> None:
        self.spec, self.fail = spec, fail
        self.reads: list[tuple[int, int]] = []
        self.grids: Grids | None = None
        self.closed = False

    def scan(self, source: Source) -> Scan:
        n = source.n_objects
        output = Output.allocate(n, 1)
        for i in range(n):
            self._usable(source, i, output)
        return Scan(output.n_used, output.n_dropped, output.t_min, output.span, output.status)

    def _usable(self, source: Source, i: int, output: Output) -> list[NDArray[np.float64] | None]:
        t, y, dy, offsets = source.read(i, i + 1)
        assert offsets[0] == 0
        assert offsets[-1] == len(t) == len(y)
        assert all(x.dtype == np.float64 and x.flags.c_contiguous and x.dtype.isnative for x in (t, y))
        self.reads.append((i, i + 1))
        keep = reference.usable(t, y, dy)
        kept = [None if x is None else x[keep] for x in (t, y, dy)]
        times, values, errors = kept
        output.n_used[i], output.n_dropped[i] = keep.sum(), (~keep).sum()
        if len(times):
            output.t_min[i], output.span[i] = times.min(), np.ptp(times)
        if len(times) == 0:
            status = Status.EMPTY
        elif errors is not None and np.any(errors <= 0):
            status = Status.BAD_ERRORS
        elif len(times) < self.spec.min_points:
            status = Status.TOO_FEW_POINTS
        elif np.ptp(times) == 0:
            status = Status.EQUAL_TIMES
        elif np.ptp(values) == 0 and (self.spec.centred or values[0] == 0):
            status = Status.CONSTANT_Y
        else:
            status = Status.OK
        output.status[i] = status
        return kept

    def execute(self, source: Source, grids: Grids, output: Output, progress: Any = None) -> None:
        self.grids = grids
        bounds = grids.offsets(source.n_objects)
        for i in range(source.n_objects):
            t, y, dy = self._usable(source, i, output)
            if progress is not None:
                progress(i + 1, source.n_objects)
            if i in self.fail:
                output.status[i] = Status.FAILED
            if output.status[i] != Status.OK or bounds[i] == bounds[i + 1]:
                continue
            frequency = grids.frequency(i)
            power = reference.power(
                t,
                y,
                dy,
                frequency=frequency,
                fit_mean=self.spec.fit_mean,
                center_data=self.spec.center_data,
                normalization=self.spec.normalization,
                precision=np.float64,
            ).power
            output.method[i] = METHODS.index("direct")
            if output.power is not None:
                output.power[bounds[i] : bounds[i + 1]] = power
            options = {"fit_mean": self.spec.fit_mean, "center_data": self.spec.center_data, "precision": np.float64}

            def exact(f, rows=(t, y, dy), options=options):
                return reference.power(*rows, frequency=f, **options).power

            found = reference.peaks(frequency, exact(frequency), self.spec.n_peaks, output.span[i], exact)
            output.peak_index[i], output.peak_frequency[i] = found.index, found.frequency
            output.peak_power[i] = found.power
            output.weight[i] = len(t) if dy is None else np.sum(dy**-2.0)
            output.mean_square[i] = reference.power(t, y, dy, frequency=frequency[:1], **options).yy

    def describe(self, source: Source, grids: Grids) -> dict[str, Any]:
        return {"method": "direct", "device": "cpu", "bytes": 8, "work": {}, "threads": 1}

    idle_bytes = 0

    def close(self) -> None:
        self.closed = True
