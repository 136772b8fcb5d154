"""The choice of devices, memory and chunks of a job: the one place that knows both backends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.device import Device, resolve
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.dedispersion.contract import Engine, Source, Table
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import Observation

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger("skysieve")
R = TypeVar("R")

LEAST_CHUNK = 8192
"""Fewest samples by which a chunk advances: with fewer, most of the work would be on the overlap."""


@dataclass(frozen=True)
class Target:
    """Devices that a job runs on, and the bytes of memory that it may use there.

    Attributes
    ----------
    devices : tuple of Device
    budget : int
        Bytes of the host for the CPU; bytes of each GPU otherwise.
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


def find_target(device: str | tuple[Device, ...], memory: str | float | None, reserved: int = 0) -> Target:
    """The devices of a request and a memory budget there; ``reserved`` bytes of the host are left out of it."""
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
) -> Engine:
    """The engine of the backend for a device.

    Parameters
    ----------
    source, tables, method, capacity, threads, span
        See ``cpu.engine.Engine`` and ``cuda.engine.Engine``.
    device : str or Target
        A device, or devices with their memory budget.
    budget : int, optional
        Bytes of the host, where `device` is a name.
    """
    target = device if isinstance(device, Target) else Target(resolve(device), budget or 0)
    if target.gpu:
        from skysieve.dedispersion.cuda import engine as cuda

        return cuda.Engine(
            source, tables, method=method, capacity=capacity, devices=target.devices, budget=target.budget or None
        )
    from skysieve.dedispersion.cpu import engine as cpu

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
            reason = str(error)  # the error itself would keep the memory alive that the failed attempt took
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
    """What all data that a plan is executed on have in common."""

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
            raise ValueError(f"data: {other}; expected data as those that the plan was made for: {self}")
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
