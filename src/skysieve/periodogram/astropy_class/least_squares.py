"""The fit at one frequency as linear algebra, and the spectral window: small NumPy work on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW = 2**20
"""Largest product of points and frequencies that is summed directly."""
BLOCK = 2**18
WINDOW_ERROR = 1e-13


def design_matrix(
    t: NDArray[Any], frequency: float, dy: NDArray[Any] | None, fit_mean: bool, nterms: int
) -> NDArray[np.float64]:
    """Columns 1 (with `fit_mean`), sin and cos of ``2 pi k f t`` for k = 1 to `nterms`, rows over ``dy``.

    Raises
    ------
    ValueError
        If the matrix has no column.

    Examples
    --------
    >>> design_matrix(np.array([0.0, 0.25]), 1.0, None, True, 1).round(12)
    array([[1., 0., 1.],
           [1., 1., 0.]])
    """
    if nterms == 0 and not fit_mean:
        raise ValueError("nterms=0 without fit_mean leaves nothing to fit; use nterms of 1 or more")
    turns = [2 * np.pi * k * frequency * t for k in range(1, nterms + 1)]
    columns = [np.ones_like(t)] if fit_mean else []
    for angle in turns:
        columns += [np.sin(angle), np.cos(angle)]
    matrix = np.stack(columns, axis=1)
    return matrix if dy is None else matrix / dy[:, None]


def fit(
    t: NDArray[Any], y: NDArray[Any], dy: NDArray[Any] | None, frequency: float, fit_mean: bool, nterms: int
) -> NDArray[Any]:
    """Least-squares parameters of `design_matrix`'s columns.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the columns depend on one another.
    """
    x = design_matrix(t, frequency, dy, fit_mean, nterms)
    scaled = y if dy is None else y / dy
    return np.asarray(np.linalg.solve(x.T @ x, x.T @ scaled))


def spectral_window(t: NDArray[Any], dy: NDArray[Any] | None, frequency: NDArray[Any]) -> NDArray[np.float64]:
    """``|sum w exp(2 pi i f t)|^2`` with ``w = dy^-2 / sum(dy^-2)``.

    Direct sums for small jobs; finufft's transform of type 3 (any frequencies, relative error 1e-13) for others.
    """
    weight = np.ones_like(t) if dy is None else dy**-2.0
    weight = weight / weight.sum()
    middle = t - 0.5 * (t.min() + t.max())
    if t.size * frequency.size <= FEW:
        out = np.empty(frequency.size)
        step = max(1, BLOCK // t.size)
        for first in range(0, frequency.size, step):
            phase = np.multiply.outer(frequency[first : first + step], middle)
            angle = 2 * np.pi * (phase - np.rint(phase))
            out[first : first + step] = (np.cos(angle) @ weight) ** 2 + (np.sin(angle) @ weight) ** 2
        return out
    import finufft

    sums = finufft.nufft1d3(
        2 * np.pi * middle, weight.astype(np.complex128), np.ascontiguousarray(frequency), eps=WINDOW_ERROR, isign=1
    )
    return np.asarray(sums.real**2 + sums.imag**2, np.float64)
