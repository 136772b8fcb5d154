"""The global NUFFT of finufft, with plans of each thread that are used again: the fastest method for very long series.

One transform spreads every point once, whatever the number of frequencies, where the comb spreads once a band;
beyond some 1e5 points that makes it faster.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.cpu.direct import cos_sin, grid_point

from .search import best_rows, conclude, whole_object

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .state import Answers, Curves, Frequencies, Work

TOLERANCE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-7}
"""Relative error asked of finufft.  It always runs in float64: with float32 points, whose phases are good to 1e-7 of
a turn of the *whole* grid, powers of the paper's batch were off by 4e-3."""
_local = threading.local()


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


def finufft_object(
    i: int,
    curves: Curves,
    grid: Frequencies,
    work: Work,
    answers: Answers,
    form: int,
    floating_mean: bool,
    guard: float,
) -> None:
    """Search object ``i``: sums by finufft, then the compiled search for powers and peaks."""
    j = 0 if grid.shared else i
    f0, df, nf = float(grid.f0[j]), float(grid.df[j]), int(grid.nf[j])
    lo, n = int(curves.start[i]), int(curves.n_used[i])
    t, w, wy = (a[lo : lo + n] for a in (curves.t, curves.w, curves.wy))
    dtype = work.block.dtype
    turns = df * t
    x = 2 * np.pi * (turns - np.rint(turns))
    # phase of the middle of the grid: finufft's modes run from -nf//2
    c, s = np.empty(n), np.empty(n)
    cos_sin(*grid_point(f0, df, float(nf // 2)), t, 0, n, c, s)
    turn = c + 1j * s
    channels = 2 if floating_mean else 1
    strengths = np.stack([wy * turn, w * turn][:channels])
    sums: NDArray[Any] = np.empty((1 + channels, nf), np.complex128)
    one = _execute(nf, channels, x, strengths, dtype)
    sums[0], sums[1] = one[0], _execute(nf, 1, 2 * x, (w * turn * turn)[None], dtype)[0]
    if floating_mean:
        sums[2] = one[1]
    best, taken = best_rows(answers, 1)
    taken[0] = whole_object(i, sums, 1.0, curves, grid, work, answers, form, floating_mean, guard, best[0])
    conclude(np.array([i]), curves, grid, floating_mean, best, taken, work.c, work.s, answers)


def _execute(
    nf: int, transforms: int, x: NDArray[np.float64], strengths: NDArray[Any], dtype: np.dtype[Any]
) -> NDArray[Any]:
    plan = _plan(nf, transforms, dtype)
    points = np.mod(x + np.pi, 2 * np.pi) - np.pi
    plan.setpts(points)
    out = plan.execute(strengths if transforms > 1 else strengths[0])
    return np.asarray(out).reshape(transforms, nf)
