"""The choice of devices, memory and chunks of a job, and plans that keep an engine.

This is the only module that knows both backends.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.device import Device, for_size, resolve
from skysieve.core.engine_cache import ENGINES
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.plan import Plan
from skysieve.dedispersion.contract import Engine, Room, Source, Table, sum_dtype
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import Observation, in_unit
from skysieve.dedispersion.dm_plan.delay_tables import Tabled
from skysieve.dedispersion.dm_plan.plan import DMPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.clean.blocks.cleaner import Cleaner

logger = logging.getLogger("skysieve")
R = TypeVar("R")
P = TypeVar("P", bound="EnginePlan")

LEAST_CHUNK = 8192
"""Fewest samples by which a chunk advances: with fewer, most of the work would be on the overlap."""


@dataclass(frozen=True)
class Target:
    """Devices that a job runs on, and the bytes of memory that it may use there.

    Attributes
    ----------
    devices : tuple of Device
    budget : int
        Bytes of host memory for the CPU; otherwise bytes of the memory of each GPU.
    """

    devices: tuple[Device, ...]
    budget: int

    @property
    def gpu(self) -> bool:
        """Whether the devices are GPUs."""
        return self.devices[0].kind == "cuda"

    def bytes_needed(self, source: Source, tables: Sequence[Table], samples: int) -> int:
        """Bytes for a chunk of ``samples`` samples."""
        if self.gpu:
            from skysieve.dedispersion.cuda import engine as cuda

            return cuda.bytes_needed(source, tables, samples)
        from skysieve.dedispersion.cpu import engine as cpu

        return cpu.bytes_needed(source, tables, samples)

    def cleaning_bytes(self, cleaner: Cleaner, samples: int) -> int:
        """Bytes that the cleaning of ``samples`` samples at a time takes on a GPU; 0 on the CPU."""
        if not self.gpu:
            return 0
        from skysieve.dedispersion.clean.cuda.launch import bytes_needed

        return bytes_needed(cleaner, samples)


def find_target(device: str | tuple[Device, ...], memory: str | float | None, reserved: int = 0) -> Target:
    """The requested devices and their memory budget; ``reserved`` bytes of host memory are left out of the budget."""
    devices = device if isinstance(device, tuple) else resolve(device)
    if devices[0].kind == "cpu":
        return Target(devices, parse_budget(memory, max(1, available_host_memory() - reserved)))
    from skysieve.dedispersion.cuda import engine as cuda

    free = cuda.free_memory(devices)
    return Target(devices, min(parse_budget(memory, free, default=0.8), int(0.95 * free)))


def device_for(fb: Filterbank, device: str) -> str:
    """``device`` for some data: "auto" and "cuda" mean the GPU in whose memory the samples are, if they are on one.

    Raises
    ------
    TypeError
        The samples are on a GPU, and the CPU was asked for.
    ValueError
        The samples are on another GPU than the one that was asked for.
    """
    if fb.gpu is None:
        return device
    if device == "cpu":
        raise TypeError("x is on a GPU, but the work is to be done on the CPU; use device='cuda' or a NumPy array")
    own = f"cuda:{fb.gpu}"
    if device in ("auto", "cuda", own):
        return own
    if device != "cuda:all":
        resolve(device)
        raise ValueError(f"device={device!r}: x lies on {own}; expected '{own}', 'cuda', 'cuda:all' or 'auto'")
    return device


def make_engine(
    source: Source,
    tables: Sequence[Table],
    *,
    method: str,
    device: str | Target,
    capacity: int,
    threads: int | None,
    budget: int | None = None,
    span: int | None = None,
    search: bool = False,
) -> Engine:
    """The engine of the backend for a device.

    Parameters
    ----------
    source, tables, method, capacity, threads, span
        See ``cpu.engine.Engine`` and ``cuda.engine.Engine``.
    device : str or Target
        A device, or devices with their memory budget.
    budget : int, optional
        Bytes of host memory, if `device` is a name.
    search : bool
        Whether the engine will search: then the search is compiled at the same time as the sums.
    """
    target = device if isinstance(device, Target) else Target(resolve(device), budget or 0)
    if target.gpu:
        from skysieve.dedispersion.cuda import engine as cuda

        return cuda.Engine(
            source, tables, method=method, capacity=capacity, devices=target.devices, budget=target.budget or None,
            search=search,
        )  # fmt: skip
    from skysieve.dedispersion.cpu import engine as cpu

    if search:
        cpu.compile_beside(sum_dtype(source.dtype))
    return cpu.Engine(
        source, tables, method=method, capacity=capacity, threads=threads, budget=target.budget or budget, span=span
    )


def engine_that_fits(make: Callable[[int], R], step: int, least: int, multiple: int, target: Target) -> tuple[R, int]:
    """``make(step)`` and `step`; if a GPU's memory is too small, with half the step, and so on down to ``least``."""
    while True:
        try:
            return make(step), step
        except MemoryBudgetError as error:
            if not target.gpu or step <= least:
                raise
            reason = str(error)  # a reference to the error would keep the memory of the failed attempt alive
        step = max(least, step // 2 // multiple * multiple)
        logger.warning("%s; using chunks of %d samples", reason, step)


def least_chunk(wanted: int, multiple: int) -> int:
    """Fewest samples by which a chunk advances."""
    return -(-min(wanted, LEAST_CHUNK) // multiple) * multiple


def chunk_samples(source: Source, tables: Sequence[Table], wanted: int, target: Target, multiple: int) -> int:
    """Samples by which a chunk may advance within the budget: a multiple of ``multiple``.

    Raises
    ------
    MemoryBudgetError
        The overlap of the highest DM and `least_chunk` do not fit.
    """
    overlap = max(t.maxshift * t.downsamp for t in tables)
    least = least_chunk(wanted, multiple)
    fixed = target.bytes_needed(source, tables, overlap + least)
    each = (target.bytes_needed(source, tables, overlap + least + 2**20) - fixed) / 2**20
    if fixed > target.budget:
        what = f"{overlap + least} samples of {source.nchan} channels (the delay of the highest DM and a little more)"
        raise MemoryBudgetError(what, fixed, target.budget)
    room = least + int((target.budget - fixed) / each)
    return max(least, min(-(-wanted // multiple), room // multiple) * multiple)


def result_array(fb: Filterbank, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array for series: on the GPU in whose memory the samples are, else on the host."""
    if fb.gpu is None:
        return np.empty(shape, dtype)
    from skysieve.dedispersion.cuda import engine as cuda

    found: NDArray[Any] = cuda.room(shape, dtype, fb.gpu)
    return found


@dataclass(frozen=True)
class Kind:
    """The properties that all data of a plan must share."""

    observation: Observation
    dtype: np.dtype[Any]
    maximum: int

    @classmethod
    def of(cls, fb: Filterbank) -> Kind:
        """The kind of some data."""
        return cls(fb.observation, fb.dtype.newbyteorder("="), fb.maximum)

    def check(self, fb: Filterbank, target: Target) -> None:
        """Refuse data of another kind, and data on a GPU if the plan runs on the CPU."""
        other, own = Kind.of(fb), self.observation
        same = np.array_equal(fb.freqs, own.freqs) and (fb.tsamp, fb.observation.dm) == (own.tsamp, own.dm)
        if not same or (other.dtype, other.maximum) != (self.dtype, self.maximum):
            raise ValueError(f"data: {other}; expected data like those that the plan was made for: {self}")
        if fb.gpu is not None and not target.gpu:
            raise TypeError("x is on a GPU, but the plan works on the CPU; make the plan with device='cuda'")

    def __str__(self) -> str:
        o = self.observation
        dm = "" if o.dm is None else f", de-dispersed at DM {o.dm:g}"
        highest = f" up to {self.maximum}" if self.maximum else ""
        return (
            f"{o.nchan} channels, {o.freqs[-1]:.9g}-{o.top:.9g} MHz, {o.tsamp * 1e6:.9g} us{dm}, "
            f"{self.dtype.name} samples{highest}"
        )


class EnginePlan(Plan):
    """A plan that keeps one engine.

    Attributes
    ----------
    _kind : Kind
        Kind of the data that the plan accepts.
    _step : int
        Samples by which a chunk advances.
    """

    _kind: Kind
    _step: int
    _engine: Engine | None = None

    def __init__(self) -> None:
        self._lock = Lock()

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise ValueError("the plan is closed; make a new one")
        return self._engine

    def _facts(self, made: Sequence[Tabled]) -> dict[str, Any]:
        """The description that all such plans share."""
        facts = self._open_engine().describe()
        approximate = sorted({one.method for one in made} - {"exact"})
        return {
            "method": " and ".join(approximate) or facts["method"], "device": facts["device"],
            "dtype": sum_dtype(self._kind.dtype).name, "bytes": int(facts["bytes"]), "seconds": None,
            "dms": sum(len(one.table.delays) for one in made), "chunk": self._step,
        }  # fmt: skip

    def _release_data(self) -> None:
        """Release the data that were read, which may be a large array or open files.

        After that the plan cannot be copied.
        """
        self._open_engine().rebind(NoData(self._kind))
        self._arguments = (), {}

    def _idle_bytes(self) -> int:
        """Bytes that an idle plan holds on its device, or on each of several."""
        return int(self._open_engine().describe()["held"])

    def close(self) -> None:
        """Free threads and memory; the plan cannot be used any more."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


class NoData:
    """A `contract.Source` without samples, which an idle engine holds instead of a user's data."""

    def __init__(self, kind: Kind) -> None:
        self.dtype, self.maximum, self.nsamp, self.nchan = kind.dtype, kind.maximum, 0, kind.observation.nchan

    def raw(self, start: int, count: int, room: Room | None = None) -> Iterator[Any]:
        """Return no samples."""
        return iter(())

    def packed(self, start: int, count: int, room: Room | None = None) -> None:
        """Return None: there are no packed samples."""

    def fills(self, start: int, count: int) -> Iterator[Any]:
        """Return no cells."""
        return iter(())


SMALL_SUMS = 2**24
"""Below this number of DMs times samples of all channels, "auto" works on data in host memory on the CPU: the sums take
two cores 0.3 ms of a search of 4 ms, less than the launches and copies of a GPU."""
LIKE = 1.25
"""Data whose lengths differ by at most about this factor share a cached plan; longer data are processed in chunks."""


def with_cached_plan(
    make: Callable[..., P], fb: Filterbank, dms: Any, device: str, options: dict[str, Any], use: Callable[[P], R]
) -> R:
    """Return ``use(plan)`` for the plan ``make(fb, dms, device=device, **options)``.

    If an earlier call with equal arguments has left an idle plan, that plan is used.  Wrong arguments have no cached
    plan: `make` refuses them.  Under "auto" small data are processed on the CPU, see `SMALL_SUMS`.
    """
    if fb.gpu is None:
        device = for_size(device, _trials(dms) * fb.nsamp * len(fb.observation.freqs), SMALL_SUMS)
    key, where = _plan_key(make, fb, dms, device, options)

    def compute() -> R:
        if where is None:
            with make(fb, dms, device=device, **options) as plan:
                return use(plan)
        with ENGINES.borrow(
            key, lambda: make(fb, dms, device=device, **options), where, lambda plan: plan._idle_bytes()
        ) as plan:
            found = use(plan)
            plan._release_data()
            return found

    return compute() if where is None else ENGINES.retried(where, compute)


def _trials(dms: Any) -> float:
    """Number of DMs; infinity if ``dms`` is not a list of numbers, which `make` refuses."""
    if isinstance(dms, DMPlan):
        return dms.ndm
    try:
        return float(np.size(dms))
    except ValueError:
        return math.inf


def _plan_key(
    make: Callable[..., Any], fb: Filterbank, dms: Any, device: str, options: dict[str, Any]
) -> tuple[Hashable, Device | None]:
    """Everything that a plan depends on, and its first device; (None, None) if an argument is wrong."""
    try:
        devices = resolve(device_for(fb, device))
        key = (make, devices, *_data_key(fb), _dms_key(dms), tuple((k, _plain(v)) for k, v in sorted(options.items())))
        hash(key)
    except (TypeError, ValueError, DeviceUnavailable):
        return None, None
    return key, devices[0]


def _data_key(fb: Filterbank) -> tuple[Hashable, ...]:
    """The properties of the data that a plan depends on."""
    o = fb.observation
    length = round(math.log(max(1, fb.nsamp)) / math.log(LIKE))
    return o.freqs.tobytes(), o.tsamp, o.nbits, o.dm, o.bandwidth, fb.dtype.str, fb.maximum, fb.gpu, length


def _dms_key(dms: Any) -> Hashable:
    if isinstance(dms, DMPlan):
        return dms.to_json()
    listed = np.asarray(in_unit("dms", dms, "pc / cm3"))
    if listed.dtype.kind not in "uif":
        raise TypeError(f"dms has dtype {listed.dtype}")
    return listed.shape, listed.dtype.str, listed.tobytes()


def _plain(value: Any) -> Hashable:
    """An option as part of a key, with its type (1 and True are different options) and with its unit, if it has one."""
    if getattr(value, "unit", None) is not None:
        return str(value.unit), _plain(value.value)
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(_plain(one) for one in value)
    return type(value), value
