"""F of single cells, summed in float64, for the best templates of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.fstat.contract import CONDITION_BOUND, FALLBACK, Bank, MapJob
from skysieve.fstat.inputs.windows import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.fstat.inputs.grid import Schedule

__all__ = ["F_of_sums", "cell_F", "sums_of_cell"]


def cell_F(job: MapJob, bank: Bank, template: int, flat: int, window: Window) -> float:
    """F of one cell of one template, from all detectors or from one.

    Parameters
    ----------
    job : MapJob
    bank : Bank
        ``job.bank`` or one of ``job.detectors``.
    template : int
    flat : int
        ``m N_tau + n``.
    window : Window
    """
    given = bank if bank.source is None else bank.source  # in the scale of the atoms
    return F_of_sums(sums_of_cell(given.template(template), job.tatom, job.schedule, job.taus, flat, window))


def sums_of_cell(
    bins: Any, tatom: int, schedule: Schedule, taus: NDArray[Any], flat: int, window: Window
) -> NDArray[np.float64]:
    """Sums of a2, b2, ab, Re Fa, Im Fa, Re Fb, Im Fb over the bins (7, n) of one cell, in float64."""
    m, n = divmod(flat, schedule.shape[1])
    g, first = int(schedule.group[m]), int(schedule.first[m])
    a, b = max(first, 0), min(first + int(schedule.length[g, n]), bins.shape[1])
    if b <= a:
        return np.zeros(7)
    x = np.asarray(to_host(bins[:, a:b]), np.float64)
    since = int(schedule.offset[g]) + tatom * (np.arange(a, b) - first)
    w = window.weights(since / float(taus[n]))
    return np.concatenate([(x[:3] * w**2).sum(axis=1), (x[3:] * w).sum(axis=1)])


def F_of_sums(sums: NDArray[np.float64]) -> float:
    """F from the sums of a2, b2, ab, Re Fa, Im Fa, Re Fb, Im Fb."""
    size = float(sums[0] + sums[1])
    if not size > 0:
        return FALLBACK
    root = 1 / np.sqrt(size)  # scaled, since products of small sums would be zero
    A, B, C = (sums[:3] * root) * root
    ar, ai, br, bi = sums[3:] * root
    D = A * B - C * C
    if not D > CONDITION_BOUND * (A + B) ** 2:
        return FALLBACK
    return float((B * (ar * ar + ai * ai) + A * (br * br + bi * bi) - 2 * C * (ar * br + ai * bi)) / D)
