"""The global NUFFT of finufft, with plans of each thread that are used again: the fastest method for very long series.

One transform spreads every point once, whatever the number of frequencies, where the comb spreads once a band;
beyond some 1e5 points that makes it faster.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from skysieve.periodogram.cpu.direct import cos_sin, grid_point

from .search import IRREGULAR_STRETCH, best_rows, conclude, whole_object

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .state import Answers, Curves, Frequencies, Work

TOLERANCE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-7}
"""Relative error asked of finufft.  It always runs in float64: with float32 points, whose phases are good to 1e-7 of
a turn of the *whole* grid, powers of the paper's batch were off by 4e-3."""
LONGEST_SHARED = 1 << 18
"""Most frequencies of a grid that shares its plan with grids of other lengths."""
_local = threading.local()


class Code(NamedTuple):
    """The kernels that are called besides finufft, and the samples that `search.whole_object` takes at a time."""

    cos_sin: Any
    grid_point: Any
    whole_object: Any
    conclude: Any
    length: int


COMPILED = Code(cos_sin, grid_point, whole_object, conclude, IRREGULAR_STRETCH)


def _plan(nf: int, transforms: int, dtype: np.dtype[Any]) -> Any:
    """A type-1 plan of this thread; plans of the last eight sizes are stored."""
    import finufft

    plans = _local.__dict__.setdefault("plans", {})
    key = (nf, transforms, dtype)
    if key not in plans:
        if len(plans) >= 8:
            plans.pop(next(iter(plans)))
        plans[key] = finufft.Plan(
            1, (nf,), n_trans=transforms, eps=TOLERANCE[dtype], isign=1, dtype="complex128", nthreads=1, modeord=0
        )
    return plans[key]


def steps(df: float, t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Angles by which the points turn from one frequency to the next."""
    turns = df * t
    return np.asarray(2 * np.pi * (turns - np.rint(turns)))


def turns_at(f0: float, df: float, sample: int, t: NDArray[np.float64], code: Code) -> NDArray[np.complex128]:
    """``exp(2 pi i f t)`` at a sample of a grid: the middle one, from which finufft counts its modes."""
    c, s = np.empty(len(t)), np.empty(len(t))
    code.cos_sin(*code.grid_point(f0, df, float(sample)), t, 0, len(t), c, s)
    return np.asarray(c + 1j * s)


def finufft_object(
    i: int,
    curves: Curves,
    grid: Frequencies,
    work: Work,
    answers: Answers,
    form: int,
    floating_mean: bool,
    guard: float,
    code: Code,
) -> None:
    """Search object ``i``: sums by finufft, then powers and peaks by the kernels of `search`."""
    j = 0 if grid.shared else i
    f0, df, nf = float(grid.f0[j]), float(grid.df[j]), int(grid.nf[j])
    lo, n = int(curves.start[i]), int(curves.n_used[i])
    t, w, wy = (a[lo : lo + n] for a in (curves.t, curves.w, curves.wy))
    dtype = work.block.dtype
    x = steps(df, t)
    turn = turns_at(f0, df, nf // 2, t, code)
    channels = 2 if floating_mean else 1
    strengths = np.stack([wy * turn, w * turn][:channels])
    sums: NDArray[Any] = np.empty((1 + channels, nf), np.complex128)
    one = transform(nf, x, strengths, dtype)
    sums[0], sums[1] = one[0], transform(nf, 2 * x, (w * turn * turn)[None], dtype)[0]
    if floating_mean:
        sums[2] = one[1]
    best, taken = best_rows(answers, 1)
    taken[0] = code.whole_object(i, sums, code.length, curves, grid, work, answers, form, floating_mean, guard, best[0])
    code.conclude(np.array([i]), curves, grid, floating_mean, best, taken, work.c, work.s, answers)


def transform(nf: int, x: NDArray[np.float64], strengths: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``sum_j strengths[k, j] exp(i q x[j])`` for ``nf`` whole numbers q from ``-(nf // 2)`` on, a row for each k."""
    transforms, modes = len(strengths), planned(int(nf))
    plan = _plan(modes, transforms, dtype)
    points = np.mod(x + np.pi, 2 * np.pi) - np.pi
    plan.setpts(points)
    out = plan.execute(strengths if transforms > 1 else strengths[0])
    first = modes // 2 - nf // 2
    return np.asarray(out).reshape(transforms, modes)[:, first : first + nf]


def planned(nf: int) -> int:
    """Number of modes of the plan for ``nf`` frequencies: up to 3% more for short grids, so that objects of nearly the
    same time span share a plan, which takes as long to make as one of them.

    >>> planned(28_427), planned(28_600), planned(3_000_001)
    (28672, 28672, 3000001)
    """
    if nf > LONGEST_SHARED:
        return nf
    step = 1 << max(0, nf.bit_length() - 6)
    return -(-nf // step) * step
