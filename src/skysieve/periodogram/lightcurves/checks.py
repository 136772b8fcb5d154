"""Checks of the public functions: arguments, rows of a light curve, memory."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import DTYPES, flag, one_of, remembered
from skysieve.core.device import resolve
from skysieve.core.errors import MemoryBudgetError
from skysieve.periodogram.contract import METHODS, Grids, Output, Scan, Spec, Status
from skysieve.periodogram.numerics.fourier import MAX_TERMS
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from skysieve.core.device import Device
    from skysieve.periodogram.contract import DtypeChoice, MethodName, NanPolicyName
    from skysieve.periodogram.numerics.grid import GridName
    from skysieve.periodogram.numerics.normalization import NormalizationName

    from .sources import CurveSet

COARSEST_PHASE = 0.01
"""Largest phase, in cycles at the highest frequency, of one step of the floating-point times."""

SMALL = 2**26
"""Below this size of the answers in bytes, skip the query of free memory, which takes longer than a small search."""
PEAK_BYTES = 24
"""Bytes of a peak: index, frequency, power."""


class PlanOptions(TypedDict, total=False):
    """Options of the grid and the search that plans for one band and for several bands share."""

    frequency: ArrayLike | None
    fmin: Any
    fmax: Any
    nf: int | None
    samples_per_peak: float
    nyquist_factor: float
    grid: GridName
    normalization: NormalizationName
    n_peaks: int
    return_power: bool
    nan_policy: NanPolicyName
    method: MethodName
    device: str | Device
    dtype: DtypeChoice
    memory: str | float | None
    threads: int | None


def make_spec(
    fit_mean: Any,
    center_data: Any,
    normalization: Any,
    n_peaks: Any,
    return_power: Any,
    method: Any,
    dtype: Any,
    nterms: Any = 1,
) -> Spec:
    """Check the options of a search; those of the last calls are remembered."""
    given = (fit_mean, center_data, normalization, n_peaks, return_power, method, dtype, nterms)
    return remembered(_checked_spec, *given)


def _checked_spec(
    fit_mean: Any, center_data: Any, normalization: Any, n_peaks: Any, return_power: Any, method: Any, dtype: Any,
    nterms: Any,
) -> Spec:  # fmt: skip
    check_terms("nterms", nterms)
    if nterms == 0 and not flag("fit_mean", fit_mean):
        raise ValueError("nterms=0 without fit_mean leaves nothing to fit; use nterms of 1 or more")
    if nterms != 1 and method == "finufft":
        raise ValueError("method='finufft' has one term; use 'auto', 'direct' or 'nufft' with other nterms")
    if isinstance(n_peaks, bool) or not isinstance(n_peaks, numbers.Integral):
        raise TypeError(f"n_peaks={n_peaks!r}: expected a whole number")
    if n_peaks < 0:
        raise ValueError(f"n_peaks={n_peaks}: expected 0 or more")
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(map(repr, DTYPES))}") from None
    one_of("dtype", kind.name if dtype is not None else None, DTYPES)
    return Spec(
        fit_mean=flag("fit_mean", fit_mean),
        center_data=flag("center_data", center_data),
        normalization=one_of("normalization", normalization, NORMALIZATIONS),
        n_peaks=max(1, int(n_peaks)),
        return_power=flag("return_power", return_power),
        method=one_of("method", method, METHODS),
        dtype=kind.newbyteorder("="),
        nterms=int(nterms),
    )


def check_terms(name: str, value: Any) -> int:
    """``value`` if it is a number of Fourier terms, else TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r}: expected a whole number of Fourier terms")
    if not 0 <= int(value) <= MAX_TERMS:
        raise ValueError(f"{name}={value}: expected 0 to {MAX_TERMS} Fourier terms")
    return int(value)


def _rows(curves: CurveSet, i: int) -> dict[str, NDArray[np.float64]]:
    """The raw columns of one object, by argument name."""
    t, y, dy, _ = curves.source.read(i, i + 1)
    return {name: to_host(x) for name, x in (("t", t), ("y", y), ("dy", dy)) if x is not None}


def _place(curves: CurveSet, i: int, j: int) -> str:
    row = curves.source.row(i, j)
    return f"[{row}]" if curves.single else f" of row {row} of {curves.name(i)}"


def refuse_missing(curves: CurveSet, scan: Scan) -> None:
    """Raise ValueError for the first row that is not finite (``nan_policy="raise"``)."""
    dropped = np.flatnonzero(scan.n_dropped)
    if dropped.size == 0:
        return
    i = int(dropped[0])
    columns = _rows(curves, i)
    bad = {name: ~np.isfinite(x) for name, x in columns.items()}
    name = min((name for name in bad if bad[name].any()), key=lambda name: int(np.argmax(bad[name])))
    j = int(np.argmax(bad[name]))
    masked = "masked, or without a band" if hasattr(curves.source, "bands") else "masked"
    raise ValueError(
        f"{name}{_place(curves, i, j)} is {columns[name][j]} (or {masked}), and nan_policy='raise'; "
        "nan_policy='omit' leaves such rows out"
    )


def explain(curves: CurveSet, scan: Scan | Output, min_points: int, i: int = 0) -> str:
    """Why object ``i`` cannot be searched; names the row and value that are wrong."""
    status = Status(int(scan.status[i]))
    used, dropped = int(scan.n_used[i]), int(scan.n_dropped[i])
    columns = _rows(curves, i)
    kept = np.logical_and.reduce([np.isfinite(x) for x in columns.values()])
    few = " or in a band of too few rows" if dropped > np.count_nonzero(~kept) else ""
    left_out = (
        f" ({dropped} of {used + dropped} rows are not finite or masked{few} and were left out)" if dropped else ""
    )
    if status == Status.BAD_ERRORS:
        j = int(np.argmax(kept & (columns["dy"] <= 0)))
        return f"dy{_place(curves, i, j)} is {columns['dy'][j]:g}; every error must be positive"
    if status == Status.TOO_FEW_POINTS:
        return f"t and y have {used} usable row{'s'[: used != 1]}{left_out}; at least {min_points} are needed"
    if status == Status.EMPTY:
        return f"t and y have no usable row{left_out}; at least {min_points} are needed"
    if status == Status.EQUAL_TIMES:
        return f"all times t are equal ({float(columns['t'][kept][0])!r}){left_out}; a time span above 0 is needed"
    if status == Status.CONSTANT_Y and hasattr(curves.source, "bands") and np.ptp(columns["y"][kept]) > 0:
        return f"y is constant in every band{left_out}; there is no period to find"
    if status == Status.CONSTANT_Y:
        return f"y is constant ({float(columns['y'][kept][0])!r}){left_out}; there is no period to find"
    return f"{curves.name(i)}: {status.text}"


def highest_frequency(grids: Grids) -> float:
    """The highest frequency of all grids; 0 if they are empty."""
    if grids.values is not None:
        return float(grids.values[-1])
    ends = grids.f0 + grids.df * (grids.nf - 1)
    return float(np.max(ends[grids.nf > 0], initial=0.0))


def refuse_coarse_times(resolution: float, grids: Grids) -> None:
    """Refuse times in single precision whose spacing, ``resolution``, is too coarse for the grid."""
    if resolution:
        refuse_coarse_phases(resolution, highest_frequency(grids))


def refuse_coarse_phases(resolution: float, highest: float) -> None:
    """Refuse times whose spacing, ``resolution``, is too coarse for the frequency ``highest``."""
    step = resolution * highest
    if step > COARSEST_PHASE:
        raise ValueError(
            f"t came in single precision, where neighbouring numbers are {resolution:.3g} apart: "
            f"{step:.3g} cycles at the highest frequency, {highest:.6g}; at most {COARSEST_PHASE} is "
            "allowed. Read the times as float64, or subtract their start before they are rounded"
        )


def refuse_large_power(n_objects: int, n_values: int, needed: int, available: int) -> None:
    """Refuse powers that do not fit into the free memory, before any work."""
    if needed > available:
        raise MemoryBudgetError(
            f"the power of {n_objects} light curve{'s'[: n_objects != 1]} at {n_values} frequencies in all "
            "(return_power=False with n_peaks=5 keeps only the best peaks; out= can be a numpy.memmap)",
            needed,
            available,
        )


def refuse_many_peaks(n_objects: int, n_peaks: int) -> None:
    """Refuse peaks that do not fit into the free memory, before any work."""
    needed = PEAK_BYTES * n_objects * n_peaks
    if needed > SMALL and needed > (available := resolve("cpu")[0].free_memory):
        raise MemoryBudgetError(
            f"n_peaks={n_peaks} of {n_objects} light curve{'s'[: n_objects != 1]}", needed, available
        )


def check_out(out: Any, shape: tuple[int, ...], spec: Spec) -> None:
    """Check the kind, shape and layout of the user's array for the powers."""
    if not hasattr(out, "flags") or out.shape != shape or out.dtype != spec.dtype:
        found = f"{getattr(out, 'dtype', type(out).__name__)} of shape {getattr(out, 'shape', None)}"
        raise ValueError(f"out is {found}; {spec.dtype} of shape {shape} is expected")
    if not (out.flags.c_contiguous and getattr(out.flags, "writeable", True)):
        raise ValueError("out must be C-contiguous and writeable")
