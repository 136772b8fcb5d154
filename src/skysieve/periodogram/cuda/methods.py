"""The interface of a GPU method, which is one way to compute the powers of an object, and the choice between methods.

Chunks, memory budgets and the engine know methods through `Method` and `Methods` alone.  Each model has its own:
``sinusoid/methods.py``, ``fourier/methods.py`` (several terms) and ``bands/methods.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from skysieve.core.gpu.staging import GROWTH
from skysieve.core.gpu.structs import Prepared
from skysieve.periodogram.contract import METHODS, Grids, Spec

from . import structs as cs
from .cost import Costs
from .parts import MethodPart, dealt

if TYPE_CHECKING:
    from skysieve.core.gpu.staging import Lane

    from .chunks import ChunkJob
    from .samples.stretches import Cut

MANY = np.iinfo(np.int32).max
SMALLEST_NUFFT = 64
"""Grids of fewer frequencies are summed directly."""
LONG = 1024
"""Series of more points are spread by a block for each 16 cells, shorter ones by a warp (``sinusoid/spread.cu``)."""


@dataclass(frozen=True)
class Method(ABC):
    """One way to compute the powers of an object on a GPU.

    A method is a value: it holds the sizes of its launches and no buffers, and two equal ones do the same.
    """

    direct: ClassVar[bool] = False
    """Whether it adds up all points for each frequency.  (Otherwise it is a non-uniform FFT.)"""
    rows: ClassVar[str] = ""
    """Name of the arrays of rows that `prepare_rows` makes; methods of one name share them.  Empty if it has none."""

    @property
    def code(self) -> int:
        """Number of the method in `Output.method`."""
        return METHODS.index("direct" if self.direct else "nufft")

    @property
    @abstractmethod
    def cycles(self) -> float:
        """Largest ``df * span`` of an object that it can serve."""

    @abstractmethod
    def cost(self, nf: Any) -> Any:
        """Relative cost of an object of ``nf`` frequencies, which decides between methods that can serve it."""

    @abstractmethod
    def object_bytes(self, methods: Any, nf: int, cycles: float) -> float:
        """Device bytes of one object beside its rows; ``methods`` are the `Methods` that it belongs to."""

    @abstractmethod
    def part(self, methods: Any, objects: Objects) -> MethodPart:
        """The part of a chunk with these objects: its blocks and the sizes of its buffers."""

    @abstractmethod
    def limits(self, part: MethodPart) -> dict[str, float]:
        """Fields of ``struct Limit`` for the part's objects: ``circle``, ``window`` and ``stretch``."""

    def kernels(self, spec: Spec, writes: bool, per_block: int) -> list[tuple[Any, ...]]:
        """Arguments of `Runtime.module` for its kernels, beside those of its model."""
        return []

    def small_arrays(self, job: ChunkJob, i: int, multiprocessors: int) -> tuple[Cut | None, dict[str, Any]]:
        """The `Cut` of part ``i``, if it has samples, and its arrays that are uploaded with the rows."""
        return None, {}

    def prepare_rows(self, worker: Any, chunk: DeviceChunk, stream: Any) -> None:
        """Launch the kernels that compute cells and weights of every row, in buffers of the name `rows`."""
        return

    @abstractmethod
    def launch(self, worker: Any, chunk: DeviceChunk, i: int, stream: Any) -> None:
        """Launch the kernels that compute the powers of part ``i`` of a chunk whose rows are prepared."""


@dataclass(frozen=True)
class Objects:
    """Objects of a chunk that one method serves.

    ``order`` holds their numbers in the chunk, longest first.  ``nf`` is for all objects of the chunk; it has length 1
    if the grid is shared.  No ``df * span`` is above ``largest_cycles``; ``spanless`` says whether one of them is 0.
    ``long`` says whether some object has many points.
    """

    order: NDArray[np.int32]
    nf: NDArray[np.int64]
    shared_grid: bool
    largest_cycles: float
    spanless: bool = False
    long: bool = False
    all_candidates: bool = False

    @classmethod
    def one(cls, nf: int, cycles: float, shared_grid: bool) -> Objects:
        """A single object."""
        return cls(np.zeros(1, np.int32), np.array([nf]), shared_grid, cycles, not cycles > 0)

    @property
    def largest_grid(self) -> int:
        return int(self.nf[0]) if self.shared_grid else int(self.nf[self.order].max())


@dataclass(frozen=True)
class Sizes:
    """How many objects, rows, candidates and pairs of edge values a chunk has, or its buffers have room for."""

    objects: int
    rows: int
    listed: int
    edged: int

    @classmethod
    def of(cls, job: ChunkJob) -> Self:
        """The sizes of a job."""
        n = job.n_objects
        return cls(n, job.n_rows, n * job.cap, n * job.edges)

    def grown(self, other: Sizes | None) -> Sizes:
        """Sizes that are larger by `GROWTH`, and at least as large as ``other``."""
        mine = [int(GROWTH * size) + 1 for size in (self.objects, self.rows, self.listed, self.edged)]
        if other is None:
            return Sizes(*mine)
        return Sizes(*map(max, mine, (other.objects, other.rows, other.listed, other.edged)))

    def hold(self, other: Sizes) -> bool:
        """Whether none of the other sizes is larger."""
        return (
            other.objects <= self.objects and other.rows <= self.rows and other.listed <= self.listed
            and other.edged <= self.edged
        )  # fmt: skip


@dataclass
class DeviceChunk:
    """A chunk on its way through a lane: its arrays on the device.

    ``data`` holds the uploaded arrays, ``work`` the clean rows, ``peaks`` the buffers for candidates, and ``values`` a
    list of frequencies.  ``cuts`` says for each part where its samples lie.  ``largest`` is the number of the part with
    most objects.  ``prepared`` holds the `Method.rows` that are launched already, and ``buffers`` the results of
    `once`.  ``sizes`` are the sizes of its buffers.  ``structs`` holds the structs of kernels that are launched again
    for other objects, and for other chunks if its buffers serve these too (see `rooms`).
    """

    lane: Lane
    job: ChunkJob
    data: dict[str, Any]
    info: Any
    peaks: dict[str, Any]
    power: Any
    values: Any
    bins: Any = None
    work: dict[str, Any] = field(default_factory=dict)
    cuts: list[Cut | None] = field(default_factory=list)
    largest: int = 0
    prepared: set[str] = field(default_factory=set)
    buffers: dict[str, dict[str, Any]] = field(default_factory=dict)
    sizes: Sizes = field(kw_only=True)
    structs: dict[Hashable, Prepared] = field(default_factory=dict)

    @property
    def stride(self) -> int:
        """Number of grids from one object to the next: 0 if all objects share one."""
        return 0 if self.job.shared else 1

    @property
    def grids(self) -> dict[str, Any]:
        """Struct fields of the grids."""
        return {"f0": self.data["f0"], "df": self.data["df"], "grid_stride": self.stride}

    def struct(
        self, key: Hashable, kind: np.dtype[Any], make: Callable[[], dict[str, Any]], **changing: Any
    ) -> np.void:
        """A kernel's struct: the fields that ``make`` returns, and those that change from launch to launch.

        ``make`` is called once; its fields are the same for all launches with these buffers and this ``key``.
        """
        known = self.structs.get(key)
        if known is None:
            known = self.structs[key] = Prepared(kind, make() | changing)
        else:
            known.change(changing)
        return known.value

    def of_part(self, i: int) -> dict[str, Any]:
        """Fields that change from launch to launch, in the structs of all methods."""
        return {"order": self.data[f"order{i}"], "cap": self.job.cap, "edges": self.job.edges}

    def prepare_rows(self, worker: Any, method: Method, stream: Any) -> None:
        """Let a method prepare rows; methods that need the same arrays share them."""
        if method.rows and method.rows not in self.prepared:
            method.prepare_rows(worker, self, stream)
            self.prepared.add(method.rows)

    def once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The buffers of a name, for as many objects and rows as `sizes` says; ``make`` returns them the first time."""
        if name not in self.buffers:
            self.buffers[name] = make()
        return self.buffers[name]


@dataclass(frozen=True)
class Methods(ABC):
    """The methods that can compute a `Spec` on its grids, and the choice between them for each object.

    ``shared``: bytes of shared memory of a block; ``matrix``: whether the GPU has float64 matrix units worth using;
    ``writes``: whether powers are wanted.
    """

    spec: Spec
    grids: Grids
    costs: Costs
    multiprocessors: int
    shared: int
    matrix: bool = False
    writes: bool = False

    @property
    @abstractmethod
    def known(self) -> tuple[Method, ...]:
        """The methods to choose from, beside `direct`."""

    @property
    @abstractmethod
    def direct(self) -> Method:
        """The method that can serve every object."""

    @cached_property
    def ends(self) -> NDArray[np.float64]:
        """`class_ends` of the methods to choose from."""
        return class_ends(self.known)

    def end_of(self, cycles: float) -> float:
        """The largest ``df * span`` of the class to which ``cycles`` belongs."""
        return float(self.ends[self.ends.searchsorted(cycles)])

    @cached_property
    def alone(self) -> Self:
        """The same for a GPU of one multiprocessor, to find the needs of an object independently of other objects."""
        return replace(self, multiprocessors=1)

    @property
    def stores_powers(self) -> bool:
        """Whether powers pass through device memory, even if they are not wanted."""
        return True

    @property
    def direct_only(self) -> bool:
        """Whether there is no choice, because frequencies are a list or direct sums were requested."""
        return self.grids.values is not None or self.spec.method == "direct"

    @abstractmethod
    def row_bytes(self) -> int:
        """Device bytes of one row of a light curve: raw, prepared, and its weights."""

    def choose(
        self, nf: NDArray[np.int64], cycles: NDArray[np.float64], lengths: NDArray[np.int64] | None = None
    ) -> NDArray[np.intp]:
        """Number of the method of each object in `known`, -1 for `direct`; ``nf`` has length 1 for a shared grid."""
        return self.choose_of(self.known, nf, cycles)

    def choose_of(
        self, some: tuple[Method, ...], nf: NDArray[np.int64], cycles: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """As `choose`, among some of the methods."""
        if len(nf) > 1:
            return np.where(nf < SMALLEST_NUFFT, -1, choose_among(some, nf, cycles))
        if nf[0] < SMALLEST_NUFFT:
            return np.full(len(cycles), -1)
        first, classes, n = classes_of(self.ends, cycles)
        each = choose_among(some, nf, self.ends[first : first + n])
        return each[classes]

    def candidates(self, nf: int, cycles: float) -> list[Method]:
        """The methods that an object may be given to, whatever its number of points."""
        return [self.method(int(choose_among(self.known, np.array([nf]), np.array([cycles]))[0]))]

    def object_bytes(self, nf: int, cycles: float) -> float:
        """Most device bytes of one object beside its rows."""
        return max(method.object_bytes(self, nf, cycles) for method in self.candidates(nf, cycles))

    def method(self, number: int) -> Method:
        """The method of a number that `choose` has given."""
        return self.known[number] if number >= 0 else self.direct

    def assign(
        self, nf: NDArray[np.int64], lengths: NDArray[np.int64], cycles: NDArray[np.float64], limits: NDArray[Any]
    ) -> NDArray[np.intp]:
        """As `choose`, but by number of points too; store in ``limits`` the numbers of points for which it holds."""
        return self.choose(nf, cycles)

    def deal(
        self, objects: slice, lengths: NDArray[np.int64], cycles: NDArray[np.float64], all_candidates: bool = False
    ) -> tuple[list[MethodPart], NDArray[Any]]:
        """Parts of a chunk of these objects, and the limits (``structs.LIMIT``) that each object must meet."""
        nf = self.grids.nf if self.grids.shared else self.grids.nf[objects]
        limits = np.zeros(len(lengths), cs.LIMIT)
        limits["least"], limits["most"] = class_bounds(self.ends, cycles)
        limits["many"] = MANY
        numbers = self.assign(nf, lengths, cycles, limits)
        counts = np.bincount(numbers + 1).tolist()
        present = [i for i, count in enumerate(counts) if count]
        place = [present.index(i) if count else 0 for i, count in enumerate(counts)]
        parts, most = [], float(cycles.max(initial=0))
        for i, order in zip(present, dealt(lengths, numbers + 1, counts, place), strict=True):
            method = self.method(i - 1)
            some = Objects(
                order, nf, self.grids.shared, min(most, method.cycles), not cycles[order].min() > 0,
                bool(lengths[order].max() > LONG), all_candidates,
            )  # fmt: skip
            part = method.part(self, some)
            for name, value in method.limits(part).items():
                limits[name][order] = value
            parts.append(part)
        return parts, limits

    def typical(self, nf: int, cycles: float, mean_points: float) -> Method:
        """The method of an object of ``mean_points`` points."""
        return self.method(int(self.choose(np.array([nf]), np.array([cycles]))[0]))

    def most_used(self, nf: int, cycles: float, mean_points: int, n: int) -> list[tuple[Method, int]]:
        """Methods that most of ``n`` objects will need, and combs a block of each, to compile them early."""
        return []

    def expected(self, method: Method, n: int, nf: int, mean_points: float, workers: int) -> dict[str, Any]:
        """Further items of `Engine.describe`, for ``n`` objects of one method on ``workers`` GPUs."""
        return {"seconds": None}


def choose_among(known: tuple[Method, ...], nf: NDArray[np.int64], cycles: NDArray[np.float64]) -> NDArray[np.intp]:
    """The number of the cheapest method for each object; -1 where none serves its ``df * span``."""
    if not known:
        return np.full(len(cycles), -1)
    if len(nf) == 1 and len(cycles) <= FEW_CYCLES:
        numbered = list(enumerate(known))
        return np.array([cheapest(numbered, int(nf[0]), one) for one in cycles.tolist()], np.intp)
    costs = np.stack([np.where(cycles <= a.cycles, a.cost(nf), np.inf) for a in known])
    best = np.argmin(costs, axis=0)
    return np.where(np.isfinite(costs.min(axis=0)), best, -1)


FEW_CYCLES = 8
"""Up to this number, values of ``df * span`` are examined one by one, because NumPy takes longer."""


def cheapest(numbered: Iterable[tuple[int, Method]], nf: int, cycles: float = -math.inf) -> int:
    """The number of the cheapest of some methods on a grid of ``nf`` frequencies; of equal ones the first; -1 where
    none serves ``cycles``."""
    best, least = -1, math.inf
    for number, method in numbered:
        if cycles <= method.cycles and (cost := method.cost(nf)) < least:
            best, least = number, cost
    return best


def classes_of(ends: NDArray[np.float64], cycles: NDArray[np.float64]) -> tuple[int, NDArray[np.intp], int]:
    """The first class of ``df * span`` that occurs, the class of each object, counted from that one, and the number of
    classes up to the last that occurs.

    ``ends`` are those of `class_ends`.
    """
    if not cycles.size:
        return 0, np.zeros(0, np.intp), 1
    first, last = ends.searchsorted((cycles.min(), cycles.max())).tolist()
    if first == last:
        return first, np.zeros(len(cycles), np.intp), 1
    classes = (cycles > ends[first]).astype(np.intp)
    for end in ends[first + 1 : last]:  # there are few; to search for that of each object takes longer
        classes += cycles > end
    return first, classes, last - first + 1


def class_ends(known: tuple[Method, ...]) -> NDArray[np.float64]:
    """Values of ``df * span`` up to each of which the choice of a method is the same; the last is infinite."""
    return np.unique([*(a.cycles for a in known), np.inf])


def class_bounds(
    ends: NDArray[np.float64], cycles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds (least, most] of ``df * span`` between which the choice of a method is that of ``cycles``.

    ``ends`` are those of `class_ends`.
    """
    first, classes, _ = classes_of(ends, cycles)
    return np.append(-np.inf, ends)[first:][classes], ends[first:][classes]
