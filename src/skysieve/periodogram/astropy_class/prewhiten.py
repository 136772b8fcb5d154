"""Iterative prewhitening: find the highest peak, fit all sinusoids found so far together, subtract them, repeat."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from skysieve.core.checks import whole
from skysieve.core.result import Result
from skysieve.periodogram.analysis.fap import Noise
from skysieve.periodogram.result.value_files import load_values, save_values

from .light_curve import has_unit, plain, unit_of

if TYPE_CHECKING:
    import os

    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from .lombscargle import LombScargle

STEPS = 20
"""Largest number of Gauss-Newton steps for the frequencies; from a peak, a few are enough."""
HALVINGS = 8
"""How often a step that raises chi-square is halved before the fit ends."""
CURVE = ("t", "y", "dy", "fit_mean", "center_data", "nterms", "normalization")
"""Arguments of `LombScargle` that a file of `Prewhitened` holds."""
ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""Error of a sinusoid over its amplitude times the radians it turned through, and of a constant over its size."""


@dataclass(frozen=True, repr=False, eq=False)
class Prewhitened(Result):
    """Sinusoids ``amplitude * sin(2 pi (frequency * t + phase))`` in the order in which they were found; shape (k,).

    Times are measured as in `LombScargle`: those of a Time from its first entry.

    Attributes
    ----------
    frequency, amplitude : numpy.ndarray or Quantity
    phase : numpy.ndarray
        In cycles, 0 to 1.
    frequency_error, amplitude_error : numpy.ndarray or Quantity
        Standard errors of the joint fit (Montgomery & O'Donoghue 1999, DSSN 13, 28, for one sinusoid), the errors
        scaled to the scatter of the residuals.
    power, fap : numpy.ndarray
        Standard power of each in the residuals in which it was found, and its false-alarm probability (Baluev).
    offset : float or Quantity
        Constant of the joint fit.
    residual : LombScargle
        The light curve without the sinusoids and the offset.
    """

    curve_class: ClassVar[type[LombScargle]]
    """Class of the residual, which the module of that class sets."""

    frequency: Any
    amplitude: Any
    phase: NDArray[np.float64]
    frequency_error: Any
    amplitude_error: Any
    power: NDArray[np.float64]
    fap: NDArray[np.float64]
    offset: Any
    residual: LombScargle

    def __len__(self) -> int:
        return len(self.phase)

    def __repr__(self) -> str:
        rows = [
            f"  {f:.8g}  {a:.5g}  {p:.4f}  {h:.5g}  {q:.2g}"
            for f, a, p, h, q in zip(self.frequency, self.amplitude, self.phase, self.power, self.fap, strict=True)
        ]
        return "\n".join(["<Prewhitened: frequency, amplitude, phase, power, fap", *rows]) + ">"

    def to_table(self) -> Table:
        """An astropy table with one row for each sinusoid."""
        from astropy.table import Table

        names = ("frequency", "frequency_error", "amplitude", "amplitude_error", "phase", "power", "fap")
        return Table({name: getattr(self, name) for name in names})

    def plot(self, **options: Any) -> Figure:
        """Draw the amplitudes against frequency.

        Parameters
        ----------
        **options
            ``ax``, a `matplotlib.axes.Axes` to draw in; a new figure by default.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from skysieve.periodogram.result.plot import sticks

        return sticks(self.frequency, self.amplitude, ("Frequency", "Amplitude"), **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to ``.npz`` (everything, see `load`), or the table to .csv, .parquet, .fits, .ecsv or .json."""
        curve = self.residual
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "residual"}
        values |= {f"residual.{name}": getattr(curve, name) for name in CURVE}
        save_values("Prewhitened", values, self.to_table, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote to an ``.npz`` file; ValueError if the file holds something else.

        Searches of the residual use the default device, whatever the device was before.
        """
        values = load_values("Prewhitened", path)
        residual = cls.curve_class(**{name: values.pop(f"residual.{name}") for name in CURVE})
        return cls(**values, residual=residual)

    def model(self, t: Any) -> Any:
        """The sum of the sinusoids and the offset at other times.

        Parameters
        ----------
        t : array_like, Quantity or Time
        """
        times = self.residual._times(t)
        bare = np.asarray(getattr(self.frequency, "value", self.frequency))
        turns = times[:, None] * bare + self.phase
        amplitude = np.asarray(getattr(self.amplitude, "value", self.amplitude))
        offset = float(getattr(self.offset, "value", self.offset))
        return (offset + np.sin(2 * np.pi * turns) @ amplitude) * unit_of(self.residual.y)


def _columns(t: NDArray[Any], f: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    angle = 2 * np.pi * np.multiply.outer(t, f)
    return np.sin(angle), np.cos(angle)


def joint_fit(
    t: NDArray[Any], y: NDArray[Any], weight: NDArray[Any], f: NDArray[Any], limit: float
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Least squares for a constant and sinusoids, their frequencies free (each within ``limit`` of its start).

    Gauss-Newton steps, with the amplitudes solved for in each; a step that raises chi-square is halved.  ``weight`` is
    1/dy.  Returns the frequencies, the parameters ``[c, a_1.., b_1..]`` (a sin + b cos), the residuals and the
    covariance of ``[c, a.., b.., f..]`` for errors of 1.
    """
    start, k = f, len(f)

    def solve(f: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        s, c = _columns(t, f)
        x = np.column_stack([np.ones_like(t), s, c])
        theta = np.linalg.lstsq(x * weight[:, None], y * weight, rcond=None)[0]
        slope = 2 * np.pi * t[:, None] * (c * theta[1 : k + 1] - s * theta[k + 1 :])
        return theta, y - x @ theta, np.column_stack([x, slope]) * weight[:, None]

    theta, left, jacobian = solve(f)
    for _ in range(STEPS):
        step = np.linalg.lstsq(jacobian, left * weight, rcond=None)[0][2 * k + 1 :]
        chi2 = np.sum((left * weight) ** 2)
        for halving in range(HALVINGS + 1):
            moved = np.clip(f + 0.5**halving * step, start - limit, start + limit)
            new_theta, new_left, new_jacobian = solve(moved)
            if np.sum((new_left * weight) ** 2) < chi2:
                break
        else:
            break
        settled = np.max(np.abs(moved - f)) < 1e-9 * limit
        f, theta, left, jacobian = moved, new_theta, new_left, new_jacobian
        if settled:
            break
    return f, theta, left, np.linalg.pinv(jacobian.T @ jacobian)


def prewhiten(curve: LombScargle, n: int, grid: NDArray[np.float64], fap_limit: float | None) -> Prewhitened:
    """See `LombScargle.prewhiten`; ``grid`` holds bare frequencies."""
    n = whole("n", n, 1)
    t, y, dy = curve._rows()
    if len(t) < 3 * n + 2:
        raise ValueError(
            f"n={n} sinusoids and a constant have {3 * n + 1} parameters; t and y have {len(t)} usable rows"
        )
    if curve.nterms != 1:
        raise ValueError(f"nterms={curve.nterms}: expected 1, because prewhitening subtracts one sinusoid at a time")
    early = t.min()
    times = t - early
    weight = np.ones_like(t) if dy is None else 1 / dy
    noise = Noise.of(t, dy, float(grid.max()), "standard")
    f, theta, left = np.empty(0), np.zeros(1), y
    covariance = np.ones((1, 1))
    power, chance = [], []
    turns = 2 * np.pi * float(grid.max()) * float(np.ptp(t))
    rounding = ROUNDING * float(turns * np.max(np.abs(y - y.mean())) + np.max(np.abs(y)))
    for found in range(n):
        if found and float(np.max(np.abs(left))) <= rounding:
            break
        result = curve._search(grid, "standard", "auto", True, (t, left, dy), return_power=False)
        height = float(result.best_power)
        probability = float(noise.probability(height))
        if fap_limit is not None and probability > fap_limit:
            break
        power.append(height)
        chance.append(probability)
        started = np.append(f, float(result.best_frequency))
        f, theta, left, covariance = joint_fit(times, y, weight, started, 0.5 / float(np.ptp(t)))
    k = len(f)
    a, b = theta[1 : k + 1], theta[k + 1 :]
    amplitude = np.hypot(a, b)
    scatter = np.sum((left * weight) ** 2) / max(len(t) - 3 * k - 1, 1)
    variance = np.diag(covariance) * scatter
    i, j = np.arange(1, k + 1), np.arange(k + 1, 2 * k + 1)
    along = a**2 * variance[i] + b**2 * variance[j] + 2 * a * b * covariance[i, j] * scatter
    share = np.where(amplitude > 0, amplitude, 1.0)
    y_unit = unit_of(curve.y)
    f_unit = 1 / curve._relative.unit if has_unit(curve._relative) else 1
    phase = np.arctan2(b, a) / (2 * np.pi) - f * early
    rest = _with_values(curve, left)
    return Prewhitened(
        f * f_unit,
        amplitude * y_unit,
        phase - np.floor(phase),
        np.sqrt(variance[2 * k + 1 :]) * f_unit,
        np.sqrt(np.maximum(along, 0)) / share * y_unit,
        np.array(power),
        np.array(chance),
        float(theta[0]) * y_unit,
        rest,
    )


def _with_values(curve: LombScargle, left: NDArray[Any]) -> LombScargle:
    """The same light curve with other values in its usable rows; the others are not changed."""
    from copy import copy

    y = np.array(plain(curve.y))
    y[curve._usable.good] = left
    rest = copy(curve)
    rest.y = y * unit_of(curve.y)
    return rest
