"""Highest peaks of resampled light curves, which have the same times and scatter but no signal.

Pairs (y, dy) are drawn with replacement and the times are kept, as in astropy; all resamples are one batch of
light curves on the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import SkysieveError
from skysieve.periodogram.contract import Status
from skysieve.periodogram.numerics.normalization import normalize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.periodogram.result.result import LombScargleResult

BATCH_VALUES = 2**25
"""Values of y in one batch (256 MiB, as much again of dy)."""
BLOCK_VALUES = 2**18
PEAKS = 16
"""Number of peaks of a resample, of which one has the highest sample of the grid."""


def resamples(
    y: NDArray[Any], dy: NDArray[Any] | None, n: int, seed: Any
) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
    """Resampled ``y`` and ``dy``, shape (k, n_points), in batches; the same draws as astropy's for the same seed."""
    rng = np.random.default_rng(seed)
    size = max(1, BATCH_VALUES // len(y))
    for first in range(0, n, size):
        rows = rng.integers(0, len(y), (min(size, n - first), len(y)))
        yield y[rows], None if dy is None else dy[rows]


def bootstrap_maxima(
    t: NDArray[Any],
    y: NDArray[Any],
    dy: NDArray[Any] | None,
    search: Callable[[Any, Any, Any], LombScargleResult],
    *,
    n: int,
    seed: Any,
    refined: bool,
    model: dict[str, Any],
) -> NDArray[np.float64]:
    """Power of the highest peak of each of ``n`` resamples, rising.

    Parameters
    ----------
    t, y, dy : numpy.ndarray, shape (n_points,)
        The light curve; `dy` may be None.
    search : callable
        ``search(t, y, dy)`` with `y` and `dy` of shape (k, n_points) gives a result of k objects on one grid; with
        `refined` one peak is enough, else some are wanted (`PEAKS`), of which one has the highest sample.
    n : int
        Resamples.
    seed : int, SeedSequence, Generator or None
        For `numpy.random.default_rng`.
    refined : bool
        True: maxima between the frequencies of the grid.  False: the highest sample of the grid (computed anew in
        float64 at that frequency).
    model : dict
        Arguments of `power_at` that define the model.

    Raises
    ------
    SkysieveError
        If no resample could be searched.
    """
    found = []
    for ys, dys in resamples(y, dy, n, seed):
        result = search(t, ys, dys)
        status = np.asarray(result.status)
        highest = np.asarray(result.best_power, np.float64).copy()
        if not refined:
            frequency = np.asarray(result.frequency, np.float64)
            first = np.flatnonzero((status == Status.OK) & (result.peaks.index[:, 0] >= 0))
            highest[first] = _at_samples(t, ys, dys, frequency, first, result.peaks.index[first, 0], model)
            # a lower peak may have a higher sample
            row, k = np.nonzero(np.asarray(result.peaks.power, np.float64)[:, 1:] > highest[:, None])
            more = _at_samples(t, ys, dys, frequency, row, result.peaks.index[row, k + 1], model)
            np.maximum.at(highest, row, more)
        highest[status == Status.CONSTANT_Y] = 0.0  # the same value was drawn every time: no signal
        found.append(highest)
    maxima = np.concatenate(found)
    maxima = np.sort(maxima[np.isfinite(maxima)])
    if maxima.size == 0:
        # pyrefly: ignore[unbound-name]  # n is at least 1
        raise SkysieveError(f"none of {n} resamples could be searched: {Status(int(status[0])).text}")
    return maxima


def _at_samples(
    t: NDArray[Any],
    y: NDArray[Any],
    dy: NDArray[Any] | None,
    frequency: NDArray[np.float64],
    row: NDArray[np.int64],
    index: NDArray[np.int64],
    model: dict[str, Any],
) -> NDArray[np.float64]:
    """Powers of light curves ``row`` at frequencies of the grid."""
    return power_at(t, y[row], None if dy is None else dy[row], frequency[index], **model)


def exceeding(maxima: NDArray[np.float64], power: Any) -> NDArray[np.float64]:
    """Fraction of the sorted maxima that reach each power; NaN for NaN.

    >>> exceeding(np.array([0.1, 0.2, 0.3, 0.4]), [0.25, 0.4, 0.5, np.nan])
    array([0.5 , 0.25, 0.  ,  nan])
    """
    z = np.asarray(power, np.float64)
    return np.where(np.isnan(z), np.nan, 1 - np.searchsorted(maxima, z) / len(maxima))[()]


def no_keywords(method: str, keywords: Mapping[str, Any] | None) -> None:
    """Refuse keywords where a formula takes none."""
    if keywords:
        raise TypeError(f"method_kwds has {next(iter(keywords))!r}, but method={method!r} takes none")


def power_at(
    t: NDArray[Any],
    y: NDArray[Any],
    dy: NDArray[Any] | None,
    frequency: NDArray[Any],
    *,
    fit_mean: bool = True,
    center_data: bool = True,
    nterms: int = 1,
    normalization: str = "standard",
    band: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """Power of many light curves on the same times, each at its own frequency, by solving the normal equations.

    Parameters
    ----------
    t : numpy.ndarray, shape (n_points,)
    y, dy : numpy.ndarray, shape (k, n_points)
        `dy` may be None.
    frequency : numpy.ndarray, shape (k,)
    fit_mean, center_data, nterms, normalization
        As for `skysieve.lombscargle`.
    band : numpy.ndarray, shape (n_points,), optional
        Each band has a mean of its own then, whatever `fit_mean` is.

    Returns
    -------
    numpy.ndarray, shape (k,)
        NaN where the fit is singular.

    Examples
    --------
    >>> t = np.linspace(0, 10, 30) ** 1.1
    >>> y = np.sin(2 * np.pi * 0.4 * t)
    >>> power_at(t, y[None], None, np.array([0.4])).round(12)
    array([1.])
    """
    out = np.empty(len(y))
    step = max(1, BLOCK_VALUES // len(t))
    early = t.min()
    groups = [np.ones(len(t))] if band is None else [1.0 * (band == b) for b in np.unique(band)]
    means = fit_mean or band is not None
    for first in range(0, len(y), step):
        rows = slice(first, first + step)
        block = y[rows]
        weight = np.ones_like(block) if dy is None else dy[rows] ** -2.0
        total = weight.sum(axis=1)
        if center_data or means:
            own = ((weight * block) @ g / (weight @ g) for g in groups)
            block = block - sum(np.multiply.outer(mean, g) for mean, g in zip(own, groups, strict=True))
        phase = frequency[rows, None] * (t - early)
        angle = 2 * np.pi * (phase - np.rint(phase))
        columns = [np.broadcast_to(g, block.shape) for g in groups] if means else []
        for k in range(1, nterms + 1):
            columns += [np.sin(k * angle), np.cos(k * angle)]
        x = np.stack(columns, axis=1)
        xw = x * weight[:, None, :]
        gram, right = xw @ x.transpose(0, 2, 1), (xw @ block[:, :, None])[..., 0]
        reference = (weight * block**2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            standard = _reduction(gram, right) / reference
        out[rows] = normalize(standard, normalization, reference / total, total, len(t))
    return out


def _reduction(gram: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """``right . gram^-1 right`` of each; NaN where the matrix is singular."""
    good = np.linalg.cond(gram) < 1e14
    reduced = np.full(len(gram), np.nan)
    solved = np.linalg.solve(gram[good], right[good, :, None])[..., 0]
    reduced[good] = (right[good] * solved).sum(axis=1)
    return reduced
