"""De-dispersion: `dedisperse` and `DedispersionPlan`.  The search is in ``single_pulse/search.py``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from skysieve.core.checks import one_of
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory
from skysieve.core.progress import Reporter, reporting
from skysieve.dedispersion.clean.masks import Cleaned, Mask, check_mask
from skysieve.dedispersion.data.delays import Reference, reference_frequency
from skysieve.dedispersion.data.filterbank import Filterbank, Paths, opened
from skysieve.dedispersion.data.observation import Observation, in_unit
from skysieve.dedispersion.dm_plan.arguments import check_binning, stages_of, tabled
from skysieve.dedispersion.dm_plan.delay_tables import Tabled, make_table
from skysieve.dedispersion.dm_plan.plan import DMPlan

from .contract import METHODS, Engine, Method, Source, block_samples, sum_dtype
from .dispatch import (
    EnginePlan,
    Kind,
    chunk_samples,
    device_for,
    engine_that_fits,
    find_target,
    least_chunk,
    make_engine,
    result_array,
    with_cached_plan,
)
from .result import Dedispersed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["DedispersionPlan", "dedisperse"]


class DedispersionPlan(EnginePlan):
    """De-dispersion of many data of one kind: delays, engine and memory are set up once.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        Data with the channels, the sampling time and the type of samples of all data that `execute` will get.
        Give a path if the plan is to be pickled: open files cannot be.
    dms, method, max_loss, width, downsamp, nsub, per_call, ref_freq, dm_constant, device, memory, threads
        As for `dedisperse`.

    Raises
    ------
    ValueError, TypeError, MemoryBudgetError
        As `dedisperse`.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import Filterbank
    >>> x = np.zeros((16, 300), np.uint8)
    >>> x[:, 100] = 1
    >>> fb = Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)
    >>> with DedispersionPlan(fb, [0.0, 50.0], threads=1) as plan:
    ...     [found] = plan.execute(fb)
    >>> int(found.data[0].argmax())
    100
    """

    def __init__(
        self,
        data: Filterbank | Paths,
        dms: ArrayLike | DMPlan,
        *,
        method: Method = "auto",
        max_loss: float = 0.0,
        width: float | None = None,
        downsamp: int = 1,
        nsub: int = 0,
        per_call: int = 0,
        ref_freq: Reference | float = "top",
        dm_constant: float | None = None,
        device: str = "auto",
        memory: str | float | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        one_of("method", method, METHODS)
        if not 0 <= max_loss < 1:
            raise ValueError(f"max_loss={max_loss!r}: expected 0 to below 1")
        width = in_unit("width", width, "s")
        if width is not None and not (math.isfinite(width) and width > 0):
            raise ValueError(f"width={width!r}: expected seconds, above 0")
        with opened(data) as fb:
            stages, self._dm_constant = stages_of(fb, dms, dm_constant, downsamp)
            self._dms = [listed for listed, *_ in stages]
            made = [
                tabled(
                    fb, listed, binning, method, max_loss, width, nsub or bands, per_call or call, ref_freq,
                    self._dm_constant,
                )
                for listed, binning, bands, call in stages
            ]  # fmt: skip
            counts = _valid(fb, self._dms, made, ref_freq)
            self._kind, self._ref_freq = Kind.of(fb), in_unit("ref_freq", ref_freq, "MHz")
            reserved, where = _check_result(fb, self._dms, counts), device_for(fb, device)
            # the memory budget of a GPU leaves room for results on it
            results = self._result_arrays(fb, counts) if fb.gpu is not None else []
            self._target = find_target(where, memory, reserved)
            self._block = block_samples(fb.tsamp)
            source = Cleaned(fb, None, self._block)
            self._multiple = math.lcm(*(one.table.downsamp for one in made))
            wanted = max(n * one.table.downsamp for n, one in zip(counts, made, strict=True))
            how = "brute" if method == "brute" else None
            if method == "auto" and any(one.method != "exact" for one in made):
                exact = [self._exact(fb.observation, *one) for one in zip(self._dms, made, strict=True)]
                self._made, (self._engine, self._step) = self._cheapest(source, made, exact, wanted, threads)
            else:
                self._made, (self._engine, self._step) = made, self._fitted(source, made, wanted, threads, how)
            results.clear()

    def _result_arrays(self, fb: Filterbank, counts: list[int]) -> list[NDArray[Any]]:
        """Arrays for the series of each stage."""
        kind = sum_dtype(fb.dtype)
        return [result_array(fb, (len(dms), n), kind) for dms, n in zip(self._dms, counts, strict=True)]

    def _exact(self, obs: Observation, dms: NDArray[np.float64], made: Tabled) -> Tabled:
        """The exact delays of a table."""
        if made.method == "exact":
            return made
        return make_table(obs, dms, made.table.downsamp, ref_freq=self._ref_freq, dm_constant=self._dm_constant)

    def _cheapest(
        self, source: Source, made: list[Tabled], exact: list[Tabled], wanted: int, threads: int | None
    ) -> tuple[list[Tabled], tuple[Engine, int]]:
        """Choose between the approximate and the exact delays of each table; return the tables and their engine.

        The exact delays are taken if they cost hardly more, and always on GPUs.
        """
        if self._target.gpu:
            return exact, self._fitted(source, exact, wanted, threads)
        first, second = (self._fitted(source, tables, wanted, threads) for tables in (made, exact))
        costs = zip(*(engine.describe()["costs"] for engine, _ in (first, second)), strict=True)
        better = [theirs * 0.9 <= ours for ours, theirs in costs]
        chosen = [b if wins else a for a, b, wins in zip(made, exact, better, strict=True)]
        for tables, engine in ((made, first), (exact, second)):
            if all(a is b for a, b in zip(tables, chosen, strict=True)):
                (second if engine is first else first)[0].close()
                return chosen, engine
        for engine in (first, second):
            engine[0].close()
        return chosen, self._fitted(source, chosen, wanted, threads)

    def _fitted(
        self, source: Source, made: list[Tabled], wanted: int, threads: int | None, method: str | None = None
    ) -> tuple[Engine, int]:
        """An engine that fits the memory budget, and the samples by which its chunks advance."""
        tables = [one.table for one in made]
        # an engine of the method "tree" tries larger groups of channels
        how = method or ("tree" if any(one.method == "tree" for one in made) else "exact-subband")
        overlap = max(t.maxshift * t.downsamp for t in tables)

        def make(step: int) -> Engine:
            return make_engine(
                source, tables, method=how, device=self._target, capacity=step + overlap, threads=threads
            )

        step = chunk_samples(source, tables, wanted, self._target, self._multiple)
        return engine_that_fits(make, step, least_chunk(wanted, self._multiple), self._multiple, self._target)

    def execute(
        self,
        data: Filterbank | Paths,
        *,
        mask: Mask | None = None,
        progress: bool | Callable[[int, int], None] = False,
    ) -> list[Dedispersed]:
        """De-disperse data.

        Parameters
        ----------
        data : Filterbank, path or sequence of paths
            Data of the kind that the plan was made for, of any length.
        mask, progress
            As for `dedisperse`.

        Returns
        -------
        list of Dedispersed
            One result for each stage of a `DMPlan`; one result for a list of DMs.
        """
        with self._lock, opened(data) as fb:
            engine = self._open_engine()
            self._kind.check(fb, self._target)
            return self._execute(engine, fb, mask, progress)

    def _execute(
        self, engine: Engine, fb: Filterbank, mask: Mask | None, progress: bool | Callable[[int, int], None]
    ) -> list[Dedispersed]:
        began = time.perf_counter()
        for one in self._made:
            check_binning(fb, one.table.downsamp)
        counts = _valid(fb, self._dms, self._made, self._ref_freq)
        _check_result(fb, self._dms, counts)
        outs = self._result_arrays(fb, counts)
        engine.rebind(Cleaned(fb, mask, self._block))
        tables = [one.table for one in self._made]
        with reporting(progress, "de-dispersion") as report:
            reporter = Reporter(report, sum(len(dms) * n for dms, n in zip(self._dms, counts, strict=True)))
            for low in range(0, max(n * t.downsamp for n, t in zip(counts, tables, strict=True)), self._step):
                parts = []
                for i, (table, n) in enumerate(zip(tables, counts, strict=True)):
                    first = low // table.downsamp
                    count = min(self._step // table.downsamp, n - first)
                    if count > 0:
                        parts.append((i, first, count, (first + count + table.maxshift) * table.downsamp))
                engine.load(low, max(stop for *_, stop in parts))
                for i, first, count, _ in parts:
                    engine.sums(i, first, count, outs[i], first)
                    reporter.add(len(self._dms[i]) * count)
        facts = engine.describe()
        seconds, adds = time.perf_counter() - began, [out.size for out in outs]
        obs = fb.observation
        return [
            Dedispersed(
                out, dms.copy(), obs.tsamp * made.table.downsamp, made.start, made.table.downsamp,
                facts["method"] if made.method == "exact" else made.method, made.delay_error, made.loss,
                self._dm_constant, reference_frequency(obs.freqs, self._ref_freq), facts["device"],
                seconds * out.size / sum(adds), obs, columns_missing(fb.gaps, made.table.downsamp, made.start, n),
            )
            for out, dms, made, n in zip(outs, self._dms, self._made, counts, strict=True)
        ]  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """The properties of the plan.

        Returns
        -------
        dict
            ``method``, ``device``, ``dtype`` (of the series), ``bytes`` (of memory that the plan holds), ``seconds``
            (None: times are not predicted), ``dms`` (their number), ``chunk`` (samples at a time).
        """
        return self._facts(self._made)

    def __repr__(self) -> str:
        state = ", closed" if self._engine is None else ""
        return f"<DedispersionPlan {sum(map(len, self._dms))} DMs, {self._kind}{state}>"


@overload
def dedisperse(
    data: Filterbank | Paths,
    dms: DMPlan,
    *,
    method: Method = ...,
    max_loss: float = ...,
    width: float | None = ...,
    downsamp: int = ...,
    nsub: int = ...,
    per_call: int = ...,
    ref_freq: Reference | float = ...,
    dm_constant: float | None = ...,
    mask: Mask | None = ...,
    device: str = ...,
    memory: str | float | None = ...,
    threads: int | None = ...,
    progress: bool | Callable[[int, int], None] = ...,
) -> list[Dedispersed]: ...


@overload
def dedisperse(
    data: Filterbank | Paths,
    dms: ArrayLike,
    *,
    method: Method = ...,
    max_loss: float = ...,
    width: float | None = ...,
    downsamp: int = ...,
    nsub: int = ...,
    per_call: int = ...,
    ref_freq: Reference | float = ...,
    dm_constant: float | None = ...,
    mask: Mask | None = ...,
    device: str = ...,
    memory: str | float | None = ...,
    threads: int | None = ...,
    progress: bool | Callable[[int, int], None] = ...,
) -> Dedispersed: ...


def dedisperse(
    data: Filterbank | Paths,
    dms: ArrayLike | DMPlan,
    *,
    method: Method = "auto",
    max_loss: float = 0.0,
    width: float | None = None,
    downsamp: int = 1,
    nsub: int = 0,
    per_call: int = 0,
    ref_freq: Reference | float = "top",
    dm_constant: float | None = None,
    mask: Mask | None = None,
    device: str = "auto",
    memory: str | float | None = None,
    threads: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Dedispersed | list[Dedispersed]:
    """Sum the channels of a filterbank along the delays of many DMs.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        The data.  Several files are read one after the other, as one observation.
    dms : array_like or DMPlan
        pc / cm^3.  A plan gives one result for each of its stages, with their binnings and subbands.
    method : {"auto", "brute", "exact-subband", "subband", "tree"}
        "brute": the direct sum.  "exact-subband": bit-identical, with sums of neighbouring channels shared between DMs.
        "subband": the two-stage approximation of PRESTO and Magro et al. 2011.  "tree": the approximation of the FDMT,
        which halves delays repeatedly.  "auto" is exact, unless ``max_loss`` allows an approximation that is cheaper.
    max_loss : float
        Fraction of the S/N of a pulse of ``width`` that an approximation may lose beyond the exact sum.
    width : float, optional
        Seconds; 10 (binned) samples by default.
    downsamp : int
        Samples that are added in time first; at most 128.  A plan has its own.
    nsub, per_call : int
        "subband": number of subbands (by default 32, or the plan's) and of DMs that share them (by default as many as
        ``max_loss``, or 0.02 if that is 0, allows; or the plan's).
    ref_freq : {"top", "centre", "bottom", "infinity"} or float
        Frequency (MHz) at which arrival times are given.  Columns begin at the start of the data or later: with a
        frequency above the band, pulses that would have arrived before the start of the data are left out.
    dm_constant : float, optional
        MHz^2 s cm^3 / pc; by default 1/2.41e-4 (PRESTO, TEMPO), or the plan's.
    mask : Mask, optional
        Cells that are replaced by the mean of their channel.
    device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"}
        Where to compute.  GPUs give bit-identical results, and always sum exactly under ``method="auto"``; "cuda:all"
        divides the DMs among all GPUs.  "auto" takes a GPU if one can be used.
    memory : str or float, optional
        Working memory beside the result: "2 GiB", "50%", or bytes.  The default is half of the free memory; for GPUs it
        is 80% of the free memory of each.  A chunk that does not fit a GPU is halved, with a warning.
    threads : int, optional
        Number of CPU threads; by default one for each core.
    progress : bool or callable
        Show a bar, or call ``progress(done, total)``.

    Returns
    -------
    Dedispersed, or list of Dedispersed for a plan
        ``.data`` has shape (DMs, valid samples): the samples for which every channel of every DM has data.  It is on
        the host, or on the GPU that holds the samples (a CuPy array).

    Raises
    ------
    ValueError, TypeError
        An argument is wrong.  If the delay of the highest DM is longer than the data, the error states both.  Samples
        on a GPU are not summed on the CPU, nor on another single GPU.
    MemoryBudgetError
        The result, or one chunk, does not fit.

    See Also
    --------
    DedispersionPlan : the same for many data, with one set-up

    Notes
    -----
    The result is ``y[m][t] = sum_c x[c][t + n(c, m)]``.  The delay ``n`` is ``dm_constant DM (f_c^-2 - f_ref^-2) /
    tsamp``, computed in float64 and rounded to the nearest whole number of samples, halves to even (eq. 1, 4 and 5 of
    Magro et al. 2011).  Integers are summed exactly, so that for given delays the bits do not depend on method, threads
    or chunks.  float32 samples are added in a fixed order.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros((16, 300), np.uint8)
    >>> x[:, 100] = 1
    >>> fb = Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)
    >>> found = dedisperse(fb, [0.0, 50.0], threads=1)
    >>> found.data.shape, int(found.data[0].argmax()), int(found.data[0].max())
    ((2, 298), 100, 16)
    """
    with opened(data) as fb:
        if mask is not None:
            check_mask(mask, fb)
        options: dict[str, Any] = {
            "method": method, "max_loss": max_loss, "width": width, "downsamp": downsamp, "nsub": nsub,
            "per_call": per_call, "ref_freq": ref_freq, "dm_constant": dm_constant, "memory": memory,
            "threads": threads,
        }  # fmt: skip
        found: list[Dedispersed] = with_cached_plan(
            DedispersionPlan, fb, dms, device, options, lambda plan: plan.execute(fb, mask=mask, progress=progress)
        )
    return found if isinstance(dms, DMPlan) else found[0]


def _valid(
    fb: Filterbank, dms: list[NDArray[np.float64]], made: list[Tabled], ref_freq: Reference | float
) -> list[int]:
    """Binned samples of each stage's series, for which all channels have data.

    Raises
    ------
    ValueError
        The delay of the highest DM of a stage is longer than the data.
    """
    counts = []
    for listed, one in zip(dms, made, strict=True):
        table = one.table
        counts.append(fb.nsamp // table.downsamp - table.maxshift)
        if counts[-1] < 1:
            ref, where = reference_frequency(fb.freqs, ref_freq), "across the band"
            if ref > fb.freqs.max():
                where = f"from ref_freq={ref_freq!r} to the bottom of the band"
            elif ref < fb.freqs.min():
                where = f"from the top of the band to ref_freq={ref_freq!r}"
            raise ValueError(
                f"dms: the delay of DM {listed.max():g} {where} is {table.maxshift * table.downsamp} samples, but "
                f"the data have only {fb.nsamp}; expected lower DMs or longer data"
            )
    return counts


def _check_result(fb: Filterbank, dms: list[NDArray[np.float64]], counts: list[int]) -> int:
    """Bytes of host memory that the result takes; MemoryBudgetError if it does not fit."""
    if fb.gpu is not None:
        return 0
    size = sum(len(listed) * n for listed, n in zip(dms, counts, strict=True)) * sum_dtype(fb.dtype).itemsize
    free = int(0.9 * available_host_memory())
    if size > free:
        raise MemoryBudgetError(f"the result of {sum(map(len, dms))} DMs x {max(counts)} samples", size, free)
    return size


def columns_missing(gaps: NDArray[np.int64], downsamp: int, start: int, count: int) -> NDArray[np.int64]:
    """Columns, of ``count`` binned samples from ``start`` on, that are partly in gaps: sorted ranges (first, last + 1).

    >>> columns_missing(np.array([[10, 12], [13, 20]]), 4, 1, 100).tolist()
    [[1, 4]]
    """
    if not len(gaps):
        return np.empty((0, 2), np.int64)
    first, stop = gaps[:, 0] // downsamp - start, -(-gaps[:, 1] // downsamp) - start
    first, stop = np.clip(first, 0, count), np.clip(stop, 0, count)
    fresh = np.concatenate([[True], first[1:] > stop[:-1]])
    joined = np.stack([first[fresh], np.maximum.reduceat(stop, np.flatnonzero(fresh))], axis=1)
    return joined[joined[:, 0] < joined[:, 1]]
