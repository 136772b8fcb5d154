"""Phase functions of asteroids: brightness against phase angle, and their fit.  Pure NumPy and SciPy on one object.

H, G1, G2: Muinonen et al. 2010 (Icarus 209, 542), eqs. 17-19 with the spline nodes of its table 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

_DEGREES_12 = (7.5, 30.0, 60.0, 90.0, 120.0, 150.0)
_PHI_1 = (7.5e-1, 3.3486016e-1, 1.3410560e-1, 5.1104756e-2, 2.1465687e-2, 3.6396989e-3)
_PHI_2 = (9.25e-1, 6.2884169e-1, 3.1755495e-1, 1.2716367e-1, 2.2373903e-2, 1.6505689e-4)
_ENDS_1, _ENDS_2 = (-1.9098593, -9.1328612e-2), (-5.7295780e-1, -8.6573138e-8)
_DEGREES_3 = (0.0, 0.3, 1.0, 2.0, 4.0, 8.0, 12.0, 20.0, 30.0)
_PHI_3 = (
    1.0, 8.3381185e-1, 5.7735424e-1, 4.2144772e-1, 2.3174230e-1, 1.0348178e-1, 6.1733473e-2, 1.6107006e-2, 0.0,
)  # fmt: skip
_ENDS_3 = (-1.0630097e-1, 0.0)
"""Derivatives at the first and last node, per radian."""
STEPS = 30
STEEPEST = 50.0
"""Largest change of the logarithm of the flux over the phase angles that a slope may cause: 54 magnitudes."""


@lru_cache(maxsize=1)
def _splines() -> tuple[Any, Any, Any]:
    from scipy.interpolate import CubicSpline

    def spline(degrees: tuple[float, ...], values: tuple[float, ...], ends: tuple[float, float]) -> Any:
        return CubicSpline(np.deg2rad(degrees), values, bc_type=((1, ends[0]), (1, ends[1])))

    return (
        spline(_DEGREES_12, _PHI_1, _ENDS_1),
        spline(_DEGREES_12, _PHI_2, _ENDS_2),
        spline(_DEGREES_3, _PHI_3, _ENDS_3),
    )


def basis(phase: ArrayLike) -> NDArray[np.float64]:
    """The three basis functions of H, G1, G2.

    Parameters
    ----------
    phase : array_like, shape (n,)
        Phase angles in degrees, 0 to 150.

    Returns
    -------
    numpy.ndarray, shape (3, n)
        All 1 at 0 degrees.

    Examples
    --------
    >>> basis([0.0, 30.0]).round(4)
    array([[1.    , 0.3349],
           [1.    , 0.6288],
           [1.    , 0.    ]])
    """
    a = np.deg2rad(np.asarray(phase, np.float64))
    first, second, third = _splines()
    small = a < np.deg2rad(7.5)
    return np.stack(
        [
            np.where(small, 1 - 6 * a / np.pi, first(a)),
            np.where(small, 1 - 9 * a / (5 * np.pi), second(a)),
            np.where(a < np.deg2rad(30), third(a), 0.0),
        ]
    )


def fit_hg1g2(flux: NDArray[Any], error: NDArray[Any], phase: NDArray[Any]) -> NDArray[np.float64] | None:
    """Flux of the best-fit H, G1, G2 with non-negative amplitudes, at each phase angle; None if it is not positive."""
    from scipy.optimize import nnls

    shape = basis(phase)
    scale = np.max(np.abs(flux))
    if scale == 0:
        return None
    amplitude, _ = nnls((shape / (error / scale)).T, flux / error)
    model = scale * (amplitude @ shape)
    return model if np.all(model > 0) else None


def fit_linear(flux: NDArray[Any], error: NDArray[Any], phase: NDArray[Any]) -> NDArray[np.float64] | None:
    """Flux of the best ``F 10^(-0.4 b phase)`` at each phase angle, by Gauss-Newton; None if it is not positive.

    None if the steps diverge too, as they do for fluxes that are mostly noise.
    """
    scale = float(np.sum(flux / error**2) / np.sum(error**-2.0))
    if not scale > 0:
        return None
    theta = np.array([1.0, 0.4 * np.log(10) * 0.03])
    y, sigma = flux / scale, error / scale
    middle = phase - phase.mean()
    for _ in range(STEPS):
        slope = np.exp(-theta[1] * middle)
        left = (y - theta[0] * slope) / sigma
        jacobian = np.stack([slope, -theta[0] * middle * slope], axis=1) / sigma[:, None]
        step = np.linalg.lstsq(jacobian, left, rcond=None)[0]
        theta = theta + step
        if abs(theta[1]) * np.ptp(phase) > STEEPEST:
            return None
        if np.max(np.abs(step)) < 1e-12:
            break
    model = np.asarray(scale * theta[0] * np.exp(-theta[1] * middle))
    return model if np.all(model > 0) else None


@dataclass(frozen=True)
class PhaseFunction:
    """A phase function: its name, its description, its fit and the number of parameters that are fitted."""

    name: str
    help: str
    fit: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[np.float64] | None] | None
    parameters: int

    @property
    def needs_phase(self) -> bool:
        """Whether phase angles are needed."""
        return self.fit is not None


PhaseFunctionName = Literal["hg1g2", "linear", "none"]
PHASE_FUNCTIONS = {
    model.name: model
    for model in (
        PhaseFunction("hg1g2", "The H, G1, G2 function of Muinonen et al. 2010.", fit_hg1g2, 3),
        PhaseFunction("linear", "A magnitude that is linear in the phase angle.", fit_linear, 2),
        PhaseFunction("none", "No phase function: distances and light time alone are corrected.", None, 1),
    )
}
