"""The interface between the public API of the periodogram and its backends.

``api`` checks the arguments and builds a :class:`Spec` (what to compute), :class:`Grids` (at which
frequencies) and an :class:`Output` (where the answers go); ``cpu.Engine`` and ``cuda.Engine`` take
them with a :class:`Source` (the light curves) and fill the output.  Nothing here computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.periodogram.numerics.fourier import Model

BAND_POINTS = 4
"""Fewest usable points of a light curve in several bands."""

DtypeChoice = Literal["float64", "float32"] | np.dtype[Any] | type[np.floating[Any]]
MethodName = Literal["auto", "direct", "nufft", "finufft"]
METHOD_HELP = {
    "auto": "The fastest for each object, by measured cost.",
    "direct": "Sums over all rows: exact, for any frequencies.",
    "nufft": "Non-uniform fast Fourier transforms of bands of frequencies.",
    "finufft": "One non-uniform fast Fourier transform by finufft, on the CPU.",
}
"""Description of every method, in one sentence."""
METHODS = tuple(METHOD_HELP)
"""Names of the methods; ``Output.method`` holds positions in this list."""
NanPolicyName = Literal["omit", "raise"]
NAN_POLICY_HELP = {
    "omit": "Rows with NaN, infinity or a mask are left out and counted.",
    "raise": "Such a row is an error.",
}
NAN_POLICIES = tuple(NAN_POLICY_HELP)
BandModelName = Literal["offsets", "separate", "flexible"]


@dataclass(frozen=True)
class BandModel:
    """A model of light curves in several bands.

    Attributes
    ----------
    name, help : str
        Name, and description in one sentence.
    one_series : bool
        Whether the bands differ only in their means; the false-alarm formula then holds.
    """

    name: BandModelName
    help: str
    one_series: bool


BAND_MODELS: dict[str, BandModel] = {
    model.name: model
    for model in (
        BandModel("offsets", "One series for all bands, and a mean for each.", one_series=True),
        BandModel("separate", "A series and a mean for each band.", one_series=False),
        BandModel("flexible", "A common series, and a small one for each band.", one_series=False),
    )
}


class Status(IntEnum):
    """Outcome for one object of a batch; the results are NaN unless it is ``OK``."""

    OK = 0
    EMPTY = 1
    TOO_FEW_POINTS = 2
    BAD_ERRORS = 3
    CONSTANT_Y = 4
    EQUAL_TIMES = 5
    BAD_GRID = 6
    FAILED = 7
    SINGULAR = 8

    @property
    def text(self) -> str:
        """The outcome in words."""
        return _STATUS_TEXT[self]


_STATUS_TEXT = {
    Status.OK: "ok",
    Status.EMPTY: "no usable rows",
    Status.TOO_FEW_POINTS: "too few usable rows",
    Status.BAD_ERRORS: "dy has values that are not positive",
    Status.CONSTANT_Y: "y is constant",
    Status.EQUAL_TIMES: "all times are equal",
    Status.BAD_GRID: "no usable frequency grid for this time span",
    Status.FAILED: "the device failed on this object",
    Status.SINGULAR: (
        "no frequency of the grid can be fitted (too few distinct times, all weight on too few points, or fewer rows "
        "than parameters)"
    ),
}


@dataclass(frozen=True)
class Spec:
    """What to compute, the same for every object of a plan.

    ``dtype`` is that of the arithmetic and of ``power``; times and phases are always reduced in
    float64.  ``n_peaks`` is at least 1: the best period is always computed.  ``nterms`` other than 1 is a Fourier
    series (see ``numerics.fourier``).  ``model`` is the model of light curves in several bands, whose sources have a
    method ``bands(start, stop)`` besides ``read``; ``nterms`` and ``fit_mean`` are then ignored, and bands of an object
    with fewer than ``fewest`` usable rows are left out.
    """

    fit_mean: bool = True
    center_data: bool = True
    normalization: str = "standard"
    n_peaks: int = 1
    return_power: bool = True
    method: str = "auto"
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))
    nterms: int = 1
    model: Model | None = None
    fewest: int = 1

    @property
    def sinusoid(self) -> bool:
        """Whether the model is one sinusoid for one band, for which there are special kernels."""
        return self.model is None and self.nterms == 1

    @property
    def centred(self) -> bool:
        """Whether a mean is subtracted from the values."""
        return self.model is not None or self.center_data or self.fit_mean

    @property
    def min_points(self) -> int:
        """Fewest usable points of a light curve: as many as one sinusoid, with its mean, has parameters."""
        return BAND_POINTS if self.model is not None else 3 if self.fit_mean else 2


@dataclass(frozen=True, eq=False)
class Grids:
    """Frequencies, cyclic, in 1/unit(t).

    Regular: frequency ``j`` of object ``i`` is ``f0[i] + j * df[i]`` for ``j < nf[i]``; with
    ``shared`` the three arrays have length 1 and serve every object.  Irregular: ``values`` holds
    the one shared list, ascending (then ``f0``, ``df``, ``nf`` are ``values[0]``, 0 and ``len(values)``).
    Objects without a usable grid have ``nf`` 0 and NaN in ``f0`` and ``df``: an engine leaves their
    answers as they are.
    """

    f0: NDArray[np.float64]
    df: NDArray[np.float64]
    nf: NDArray[np.int64]
    shared: bool
    values: NDArray[np.float64] | None = None

    def of(self, i: int) -> tuple[float, float, int]:
        """``f0, df, nf`` of object ``i``."""
        j = 0 if self.shared else i
        return float(self.f0[j]), float(self.df[j]), int(self.nf[j])

    def offsets(self, n_objects: int) -> NDArray[np.int64]:
        """Where the powers of each object start in a flat array; length ``n_objects + 1``."""
        ends = np.zeros(n_objects + 1, np.int64)
        np.cumsum(for_each(self.nf, n_objects), out=ends[1:])
        return ends

    def frequency(self, i: int = 0) -> NDArray[np.float64]:
        """The frequencies of object ``i`` as an array."""
        if self.values is not None:
            return self.values
        f0, df, nf = self.of(i)
        grid: NDArray[np.float64] = f0 + df * np.arange(nf, dtype=np.float64)
        return grid


def for_each(values: NDArray[Any], n: int) -> NDArray[Any]:
    """One value for each of ``n`` objects that share one (`numpy.broadcast_to` alone takes 5 us)."""
    return values if len(values) == n else np.broadcast_to(values, (n,))


class Source(Protocol):
    """Light curves of ``n_objects`` objects, which are read a range at a time, so that they are not all copied."""

    @property
    def n_objects(self) -> int: ...

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Raw rows of object ``i`` are ``offsets[i]:offsets[i+1]`` of the whole; length n_objects + 1."""

    @property
    def has_dy(self) -> bool: ...

    @property
    def flat(self) -> bool:
        """Whether `read` of any range of objects returns views: nothing is copied."""

    def row(self, i: int, j: int) -> int:
        """The user's row number of row ``j`` of object ``i``, for messages."""

    def read(
        self, start: int, stop: int, empty: Callable[[str, int], Any] | None = None
    ) -> tuple[Any, Any, Any, NDArray[np.int64]]:
        """Rows of objects ``start:stop``: contiguous native float64 ``t, y, dy`` (``dy`` may be None)
        and ``offsets`` that start at 0.  Raw: may hold NaN, inf, dy <= 0, unsorted and repeated times.
        NumPy arrays (views where the input allows it; never written to), or CuPy arrays when the
        user gave CuPy arrays.

        ``empty(name, rows)`` returns a float64 array in host memory, in which ``t``, ``y`` or ``dy`` may be put
        together where they are in pieces.
        """


_MAKING = threading.Lock()


@dataclass
class Output:
    """Arrays that a backend fills; row ``i`` belongs to object ``i``.

    ``power`` is flat, object after object at ``Grids.offsets``, of ``Spec.dtype`` and normalised as ``Spec``
    says; None without powers.

    Peaks are exact: an engine moves each to the maximum of the exact periodogram, whatever ``Spec.dtype`` and
    ``Spec.normalization`` are (see ``peaks``).  Row ``i`` of the peak arrays is in falling order of refined power;
    index is -1 and the others NaN past the last peak found.  ``peak_index`` is the sample of the grid from which the
    refinement started.  ``peak_power`` is the *standard* power at ``peak_frequency``, in float64 and never above 1.
    ``peak_curvature`` is the second derivative of the standard power with respect to frequency there; it is negative,
    or NaN where the peak is no maximum (at the end of the grid, with the power still rising outwards) or the second
    derivative is not defined.

    ``mean_square`` is the weighted mean of the squared residuals of ``y`` about its constant model (the weighted mean
    of ``y`` where it is subtracted, that of its band in several bands, otherwise 0) and ``weight`` is
    the sum of ``dy**-2`` (``n_used`` without ``dy``), both of the used rows in the units of the input.  Their product
    is the chi-square of the constant model.  They may be inf for extreme ``y`` or ``dy``.
    """

    status: NDArray[np.uint8]
    n_used: NDArray[np.int64]
    n_dropped: NDArray[np.int64]
    t_min: NDArray[np.float64]
    span: NDArray[np.float64]
    method: NDArray[np.uint8]
    peak_index: NDArray[np.int64]
    peak_frequency: NDArray[np.float64]
    peak_power: NDArray[np.float64]
    peak_curvature: NDArray[np.float64]
    mean_square: NDArray[np.float64]
    weight: NDArray[np.float64]
    power: Any = None

    @classmethod
    def allocate(cls, n_objects: int, n_peaks: int, power: Any = None) -> Output:
        """New arrays on the host, in which every answer is missing.

        They are made at the first access to one of them, when a GPU has already begun its work.
        """
        output = object.__new__(cls)
        output.__dict__.update(power=power, _sizes=(n_objects, n_peaks))
        return output

    def __getattr__(self, name: str) -> Any:
        """Make the arrays, unless another thread has made them meanwhile."""
        self.make()
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None

    def make(self, fill: Callable[[NDArray[Any], float], None] = np.ndarray.fill) -> None:
        """Make the arrays, unless they are made; ``fill`` writes a number to all elements of a 1-D array."""
        with _MAKING:
            sizes = self.__dict__.get("_sizes")
            if sizes is not None:
                n_objects, n_peaks = sizes
                self.__dict__.update(_missing(n_objects, n_peaks, fill))
                del self.__dict__["_sizes"]


def _missing(n_objects: int, n_peaks: int, fill: Callable[[NDArray[Any], float], None]) -> dict[str, NDArray[Any]]:
    """Arrays of an `Output` in which every answer is missing."""
    n, k = n_objects, (n_objects, n_peaks)
    numbers = np.empty(n * (4 + 3 * n_peaks))  # one array for all is made in a fifth of the time of seven
    fill(numbers, np.nan)
    t_min, span, mean_square, weight = numbers[: 4 * n].reshape(4, n)
    frequency, height, curvature = numbers[4 * n :].reshape(3, *k)
    counts = np.empty((2 + n_peaks, n), np.int64)
    counts[:2] = 0
    fill(counts[2:].reshape(-1), -1)
    codes = np.zeros((2, n), np.uint8)
    codes[0] = Status.FAILED
    return {
        "status": codes[0],
        "n_used": counts[0],
        "n_dropped": counts[1],
        "t_min": t_min,
        "span": span,
        "method": codes[1],
        "peak_index": counts[2:].reshape(k),
        "peak_frequency": frequency,
        "peak_power": height,
        "peak_curvature": curvature,
        "mean_square": mean_square,
        "weight": weight,
    }


@dataclass(frozen=True)
class Scan:
    """Result of the first pass over every object: usable rows, time span, status (before any frequency is tried)."""

    n_used: NDArray[np.int64]
    n_dropped: NDArray[np.int64]
    t_min: NDArray[np.float64]
    span: NDArray[np.float64]
    status: NDArray[np.uint8]


class Engine(Protocol):
    """Interface of ``cpu.Engine`` and ``cuda.Engine``, which are made by ``Engine(spec, device=, memory=, threads=)``.

    Both give the same answers for the same inputs, within the tolerances of the conformance suite.  An engine keeps its
    tables, buffers and compiled kernels between calls.
    """

    def scan(self, source: Source) -> Scan:
        """Rows used and dropped, time spans and status of every object."""

    def execute(self, source: Source, grids: Grids, output: Output, progress: Any = None) -> None:
        """Fill ``output``; ``progress(done_objects, n_objects)`` is called from time to time."""

    def describe(self, source: Source, grids: Grids) -> dict[str, Any]:
        """Describe the search without doing it.

        The keys that every backend has are ``method`` and ``device`` (str), ``bytes`` (int; on the device), ``work``
        (dict of counts, see `core.machine.rates`) and ``threads`` (int).
        """

    @property
    def idle_bytes(self) -> int:
        """Bytes that the engine holds on its (first) device between calls."""

    def close(self) -> None:
        """Free threads and device memory."""
