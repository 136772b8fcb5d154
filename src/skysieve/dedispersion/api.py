"""The public functions of de-dispersion: arguments checked, backend chosen, result assembled."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.checks import one_of, whole
from skysieve.core.device import Device, resolve
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.progress import Reporter
from skysieve.core.progress import reporting as reporting
from skysieve.dedispersion.clean.masks import Cleaned, Mask
from skysieve.dedispersion.contract import block_samples
from skysieve.dedispersion.data.delays import numbers, reference_frequency
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation
from skysieve.dedispersion.dm_plan.delay_tables import SUBBANDS, Tabled, make_table, widest_call
from skysieve.dedispersion.dm_plan.plan import DMPlan, check_series

from .contract import METHODS, MOST_BINNED, Engine, Source, Table, sum_dtype
from .result import Dedispersed

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["dedisperse"]

logger = logging.getLogger("skysieve")
R = TypeVar("R")

LEAST_CHUNK = 8192
"""Samples that a chunk advances by at least: less would mean to work on the overlap alone."""


@dataclass(frozen=True)
class Place:
    """Where a job runs, and the bytes that it may take there."""

    devices: tuple[Device, ...]
    budget: int

    @property
    def gpu(self) -> bool:
        """Whether it runs on GPUs; the budget is then that of each GPU's memory."""
        return self.devices[0].kind == "cuda"

    def bytes_needed(self, source: Source, tables: Sequence[Table], samples: int) -> int:
        """Bytes for so many samples at hand."""
        if self.gpu:
            from skysieve.dedispersion.cuda import engine as cuda

            return cuda.bytes_needed(source, tables, samples)
        from skysieve.dedispersion.cpu import engine as cpu

        return cpu.bytes_needed(source, tables, samples)


def find_place(device: str | tuple[Device, ...], memory: str | float | None, taken: int = 0) -> Place:
    """The devices that a request means, with a budget; ``taken`` bytes of the host are spoken for."""
    devices = device if isinstance(device, tuple) else resolve(device)
    if devices[0].kind == "cpu":
        return Place(devices, parse_budget(memory, max(1, available_host_memory() - taken)))
    from skysieve.dedispersion.cuda import engine as cuda

    free = cuda.free_memory(devices)
    return Place(devices, min(parse_budget(memory, free, default=0.8), int(0.95 * free)))


def chosen_device(fb: Filterbank, device: str) -> str:
    """``device`` for a filterbank: "auto" and "cuda" mean the GPU that its samples lie on.

    Raises
    ------
    TypeError
        The samples lie on a GPU, the work is to be done on the CPU.
    ValueError
        They lie on another GPU than the one named.
    """
    if fb.gpu is None:
        return device
    if device == "cpu":
        raise TypeError("x is on a GPU, but the work is to be done on the CPU; use device='cuda' or a NumPy array")
    here = f"cuda:{fb.gpu}"
    if device in ("auto", "cuda", here):
        return here
    if device != "cuda:all":
        resolve(device)
        raise ValueError(f"device={device!r}: x lies on {here}; expected '{here}', 'cuda', 'cuda:all' or 'auto'")
    return device


def make_engine(
    source: Source,
    tables: Sequence[Table],
    *,
    method: str,
    device: str | Place,
    capacity: int,
    threads: int | None,
    budget: int | None = None,
    span: int | None = None,
) -> Engine:
    """The backend for a device: the one place where it is chosen.

    ``budget`` counts on the host; a `Place` brings its own.  ``span``: see `cpu.Engine`.
    """
    place = device if isinstance(device, Place) else Place(resolve(device), budget or 0)
    if place.gpu:
        from skysieve.dedispersion.cuda import engine as cuda

        return cuda.Engine(
            source, tables, method=method, capacity=capacity, devices=place.devices, budget=place.budget or None
        )
    from skysieve.dedispersion.cpu import engine as cpu

    return cpu.Engine(
        source, tables, method=method, capacity=capacity, threads=threads, budget=place.budget or budget, span=span
    )


def engine_that_fits(make: Callable[[int], R], step: int, least: int, multiple: int, place: Place) -> tuple[R, int]:
    """``make(step)``; where a GPU's memory does not hold it, with half the step, and so on down to ``least``."""
    while True:
        try:
            return make(step), step
        except MemoryBudgetError as error:
            if not place.gpu or step <= least:
                raise
            reason = str(error)  # the error itself would keep alive what was taken on the way to it
        step = max(least, step // 2 // multiple * multiple)
        logger.warning("%s; going on with chunks of %d samples", reason, step)


def dedisperse(
    fb: Filterbank,
    dms: Any,
    *,
    method: str = "auto",
    max_loss: float = 0.0,
    width: float | None = None,
    downsamp: int = 1,
    nsub: int = 0,
    per_call: int = 0,
    ref_freq: str | float = "top",
    dm_constant: float | None = None,
    mask: Mask | None = None,
    device: str = "auto",
    memory: str | float | None = None,
    threads: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Any:
    """Sum the channels of a filterbank along the delays of many DMs.

    Parameters
    ----------
    fb : Filterbank
    dms : array_like or DMPlan
        pc / cm^3.  A plan gives one result for each of its stages, with their binnings and subbands.
    method : {"auto", "brute", "exact-subband", "subband", "tree"}
        "brute": the direct sum.  "exact-subband": the same bits, with sums of neighbouring channels shared between DMs.
        "subband": the two-stage approximation of PRESTO and the paper.  "tree": delays split in two again and again
        (FDMT).  "auto" is exact, unless ``max_loss`` allows one of the approximations and that is cheaper.
    max_loss : float
        Part of the S/N of a pulse of ``width`` that may be lost beyond the exact sum.
    width : float, optional
        Seconds; 10 (binned) samples by default.
    downsamp : int
        Samples to add in time first; at most 128.  With a plan, the plan's.
    nsub, per_call : int
        "subband": number of subbands (32, or the plan's) and DMs that share them (as ``max_loss`` allows; 0.02 if that
        is 0; or the plan's).
    ref_freq : {"top", "centre", "bottom", "infinity"} or float
        Frequency (MHz) at which a pulse's time is its arrival time.
    dm_constant : float, optional
        MHz^2 s cm^3 / pc; by default 1/2.41e-4 (PRESTO, TEMPO), or the plan's.
    mask : Mask, optional
        Cells to replace by their channel's mean.
    device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"}
        GPUs give the same bits, and always sum exactly under ``method="auto"``; "cuda:all" deals the DMs over all of
        them.  "auto": a GPU where one can be used.
    memory : str or float, optional
        Working memory beside the result: "2 GiB", "50%", or bytes; half of what is free by default.  On GPUs that of
        each GPU, 80% by default; a chunk that does not fit is halved, with a warning.
    threads : int, optional
        All cores by default.
    progress : bool or callable
        Show a bar, or call ``progress(done, total)``.

    Returns
    -------
    Dedispersed, or list of Dedispersed for a plan
        ``.data`` has shape (DMs, valid samples): those for which every channel of every DM has data.  It lives where
        the samples do: a CuPy array for those of a GPU.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit; names the samples needed when the highest DM reaches beyond the data.  Samples
        that live on a GPU are not summed on the CPU, nor on another single GPU.
    MemoryBudgetError
        When the result, or one chunk, does not fit.

    Notes
    -----
    ``y[m][t] = sum_c x[c][t + n(c, m)]`` with ``n`` the nearest whole number of samples (halves to even, float64) to
    ``dm_constant DM (f_c^-2 - f_ref^-2) / tsamp`` (eq. 1, 4 and 5 of Magro et al. 2011).  Integers are summed exactly:
    the bits do not depend on method, threads or chunks.  float32 samples are added in a fixed order.

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
    one_of("method", method, METHODS)
    if not 0 <= max_loss < 1:
        raise ValueError(f"max_loss={max_loss!r}: expected 0 to below 1")
    if width is not None and not (math.isfinite(width) and width > 0):
        raise ValueError(f"width={width!r}: expected seconds, above 0")
    stages, constant = stages_of(fb, dms, dm_constant, downsamp)
    stages = [(listed, binning, nsub or bands, per_call or call) for listed, binning, bands, call in stages]
    results = []
    for listed, binning, bands, call in stages:
        made = tabled(fb, listed, binning, method, max_loss, width, bands, call, ref_freq, constant)
        results.append(
            _dedisperse_one(fb, listed, made, method, ref_freq, constant, mask, device, memory, threads, progress)
        )
    return results if isinstance(dms, DMPlan) else results[0]


def tabled(
    fb: Filterbank, dms: NDArray[np.float64], downsamp: int, method: str, max_loss: float, width: float | None,
    nsub: int, per_call: int, ref_freq: str | float, constant: float,
) -> Tabled:  # fmt: skip
    """Checked delays of one list of DMs."""
    check_binning(fb, downsamp)
    obs = fb.observation
    if nsub and not 1 < nsub <= obs.nchan:
        raise ValueError(f"nsub={nsub}: expected 2 to the {obs.nchan} channels, or 0")
    common: dict[str, Any] = {"ref_freq": ref_freq, "dm_constant": constant, "width": width}
    if method == "tree":
        return make_table(obs, dms, downsamp, tree=True, **common)
    if obs.nchan >= 2 and (method == "subband" or (method == "auto" and max_loss > 0)):
        if method == "auto" and not nsub:
            made = make_table(obs, dms, downsamp, tree=True, **common)
            if made.loss <= max_loss:
                return made
        bands = nsub or min(SUBBANDS, max(2, obs.nchan // 4))
        call = per_call or widest_call(obs, dms, downsamp, bands, max_loss or 0.02, width, constant)
        if call or method == "subband":
            made = make_table(obs, dms, downsamp, nsub=bands, per_call=call or 1, **common)
            if method == "subband" or made.loss <= max_loss:
                return made
    return make_table(obs, dms, downsamp, ref_freq=ref_freq, dm_constant=constant)


def _dedisperse_one(
    fb: Filterbank, dms: NDArray[np.float64], made: Tabled, method: str, ref_freq: str | float, constant: float,
    mask: Mask | None, device: str, memory: str | float | None, threads: int | None,
    progress: bool | Callable[[int, int], None],
) -> Dedispersed:  # fmt: skip
    began = time.perf_counter()
    obs, table = fb.observation, made.table
    b = table.downsamp
    total = fb.nsamp // b
    valid = total - table.maxshift
    if valid < 1:
        raise ValueError(
            f"dms reach {dms.max():g}: its delay across the band is {table.maxshift * b} samples, "
            f"the data have {fb.nsamp}"
        )
    device = chosen_device(fb, device)
    out, taken = _room(fb, (len(dms), valid), device)
    place = find_place(device, memory, taken)
    source = Cleaned(fb, mask, block_samples(obs.tsamp))
    step = chunk_samples(source, [table], valid * b, place, b)
    least = least_chunk(valid * b, b)
    (engine, made), step = engine_that_fits(
        lambda n: _cheapest(source, made, method, obs, dms, ref_freq, constant, n, threads, place),
        step,
        least,
        b,
        place,
    )
    table = made.table
    if out is None:
        out = np.empty((len(dms), valid), sum_dtype(fb.dtype))
    try:
        with reporting(progress, "de-dispersion") as report:
            told = Reporter(report, len(dms) * valid)
            for first in range(0, valid, step // b):
                count = min(step // b, valid - first)
                engine.load(first * b, (first + count + table.maxshift) * b)
                engine.sums(0, first, count, out, first)
                told.add(len(dms) * count)
    finally:
        engine.close()
    ran = engine.describe()["method"] if made.method == "exact" else made.method
    return Dedispersed(
        out, dms, obs.tsamp * b, made.start, b, ran, made.delay_error, made.loss, constant,
        reference_frequency(obs.freqs, ref_freq), engine.describe()["device"], time.perf_counter() - began, obs,
        columns_missing(fb.gaps, b, made.start, valid),
    )  # fmt: skip


def _room(fb: Filterbank, shape: tuple[int, int], device: str) -> tuple[Any, int]:
    """Room for the result: an array of the GPU that the samples lie on, or None and bytes of the host."""
    dtype = sum_dtype(fb.dtype)
    size = shape[0] * shape[1] * dtype.itemsize
    if fb.gpu is not None:
        from skysieve.dedispersion.cuda import engine as cuda

        return cuda.room(shape, dtype, fb.gpu), 0
    free = available_host_memory()
    if size > 0.9 * free:
        raise MemoryBudgetError(f"the result of {shape[0]} DMs x {shape[1]} samples", size, int(0.9 * free))
    return None, size


def columns_missing(gaps: NDArray[np.int64], downsamp: int, start: int, count: int) -> NDArray[np.int64]:
    """Binned samples from ``start`` on that have a part in gaps: rising ranges of 0 to ``count``.

    >>> columns_missing(np.array([[10, 12], [13, 20]]), 4, 1, 100).tolist()
    [[1, 4]]
    """
    if not len(gaps):
        return np.empty((0, 2), np.int64)
    first, stop = gaps[:, 0] // downsamp - start, -(-gaps[:, 1] // downsamp) - start
    first, stop = np.clip(first, 0, count), np.clip(stop, 0, count)
    fresh = np.concatenate([[True], first[1:] > stop[:-1]])
    kept = np.stack([first[fresh], np.maximum.reduceat(stop, np.flatnonzero(fresh))], axis=1)
    return kept[kept[:, 0] < kept[:, 1]]


def _cheapest(
    source: Source, made: Tabled, method: str, obs: Observation, dms: NDArray[np.float64], ref_freq: str | float,
    constant: float, step: int, threads: int | None, place: Place,
) -> tuple[Engine, Tabled]:  # fmt: skip
    """The engine for a table; under "auto" the exact one where the approximation is not cheaper, as on GPUs."""
    b = made.table.downsamp

    def engine(of: Tabled) -> Engine:
        capacity = step + of.table.maxshift * b
        how = "brute" if method == "brute" else "tree" if of.method == "tree" else "exact-subband"
        return make_engine(source, [of.table], method=how, device=place, capacity=capacity, threads=threads)

    if method != "auto" or made.method == "exact":
        return engine(made), made
    exact = make_table(obs, dms, b, ref_freq=ref_freq, dm_constant=constant)
    if place.gpu:
        return engine(exact), exact
    first = engine(made)
    second = engine(exact)
    if second.describe()["gain"] >= 0.9 * first.describe()["gain"]:
        first.close()
        return second, exact
    second.close()
    return first, made


# ---------------------------------------------------------------- checks and sizes


def check_binning(fb: Filterbank, downsamp: int) -> None:
    """Refuse binnings that are none, longer than the data, or whose sums would not fit 32 bits."""
    whole("downsamp", downsamp, 1, MOST_BINNED)
    if downsamp > fb.nsamp:
        raise ValueError(f"downsamp={downsamp!r}: the data have {fb.nsamp} samples")
    if fb.dtype.kind != "f":
        top = fb.maximum if fb.dtype.kind == "u" and fb.maximum else 256**fb.dtype.itemsize - 1
        if fb.nchan * downsamp * top >= 2 ** (32 if fb.dtype.kind == "u" else 31):
            raise ValueError(
                f"downsamp={downsamp}: sums of {fb.nchan} channels x {downsamp} samples up to {top} pass 32 bits"
            )


def least_chunk(wanted: int, multiple: int) -> int:
    """Samples that a chunk advances by at least."""
    return -(-min(wanted, LEAST_CHUNK) // multiple) * multiple


def chunk_samples(source: Source, tables: Sequence[Table], wanted: int, place: Place, multiple: int) -> int:
    """Samples that a chunk may advance by within the budget: a multiple of ``multiple``.

    Raises
    ------
    MemoryBudgetError
        When the overlap of the highest DM and a little more do not fit.
    """
    overlap = max(t.maxshift * t.downsamp for t in tables)
    least = least_chunk(wanted, multiple)
    fixed = place.bytes_needed(source, tables, overlap + least)
    each = (place.bytes_needed(source, tables, overlap + least + 2**20) - fixed) / 2**20
    if fixed > place.budget:
        what = f"{overlap + least} samples of {source.nchan} channels (the delay of the highest DM and a little more)"
        raise MemoryBudgetError(what, fixed, place.budget)
    room = least + int((place.budget - fixed) / each)
    return max(least, min(-(-wanted // multiple), room // multiple) * multiple)


def stages_of(
    fb: Filterbank, dms: Any, dm_constant: float | None, downsamp: int = 1, name: str = "dms"
) -> tuple[list[tuple[NDArray[np.float64], int, int, int]], float]:
    """DMs, binning, subbands and DMs a call of each stage of a plan or of a list; and the dispersion constant.

    ``name`` is that of the argument ``dms``, for errors.
    """
    if not isinstance(fb, Filterbank):
        raise TypeError(f"fb is a {type(fb).__name__}, expected a Filterbank")
    constant = _dm_constant(dm_constant, dms)
    if isinstance(dms, DMPlan):
        dms.check(fb.observation)
        return [(s.dms, s.downsamp, dms.nsub, s.per_call) for s in dms.stages], constant
    listed = _dm_list(dms, name)
    if fb.observation.dm is not None:
        check_series(fb.observation, listed)
    return [(listed, downsamp, 0, 0)], constant


def _dm_list(dms: Any, name: str) -> NDArray[np.float64]:
    listed = np.atleast_1d(numbers(name, dms))
    if listed.ndim != 1 or listed.size == 0:
        raise ValueError(f"{name} has shape {np.shape(dms)}, expected a list of at least one DM")
    if not np.isfinite(listed).all():
        raise ValueError(f"{name}: expected finite numbers")
    if (listed < 0).any():
        raise ValueError(f"{name}: {listed.min():g} is below 0")
    return listed


def _dm_constant(given: float | None, dms: Any) -> float:
    if given is None:
        return dms.dm_constant if isinstance(dms, DMPlan) else DM_CONSTANT
    if not (math.isfinite(given) and given > 0):
        raise ValueError(f"dm_constant={given!r}: expected a number above 0")
    if isinstance(dms, DMPlan) and given != dms.dm_constant:
        raise ValueError(f"dm_constant={given!r}: the plan was made with {dms.dm_constant!r}")
    return float(given)
