"""Amplitude, inclination, polarisation angle and phase of a signal, from the sums of its atoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skysieve.fstat.contract import CONDITION_BOUND

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Amplitudes", "amplitudes_of"]


@dataclass(frozen=True)
class Amplitudes:
    """Most likely amplitudes of a signal, with standard errors.

    Attributes
    ----------
    h0 : float
        Amplitude of the strain; of a transient signal, at its start time.
    cosi : float
        Cosine of the inclination, -1 to 1.
    psi : float
        Polarisation angle, -pi/4 to pi/4.
    phi0 : float
        Phase at the reference time, 0 to 2 pi.
    a_plus, a_cross : float
        ``h0 (1 + cosi^2) / 2`` and ``h0 cosi``.
    twoF : float
        2F of the window.
    errors : dict of str to float
        Standard errors of the six amplitudes, by linear propagation of the noise of the data.  They are not reliable if
        the polarisation may be circular: if ``a_plus - abs(a_cross)`` is not well above the error of `a_plus`.
    """

    h0: float
    cosi: float
    psi: float
    phi0: float
    a_plus: float
    a_cross: float
    twoF: float
    errors: dict[str, float]


def amplitudes_of(sums: NDArray[np.float64], level: float, cycles: float) -> Amplitudes:
    """The amplitudes that follow from the sums of a2, b2, ab, Re Fa, Im Fa, Re Fb, Im Fb over a window.

    Parameters
    ----------
    sums : numpy.ndarray, shape (7,)
    level : float
        Length of an SFT times the inverse noise of weight 1, s Hz.
    cycles : float
        Phase of the template at the time to which the atoms refer minus that at the reference time, in cycles.

    Raises
    ------
    ValueError
        The sums do not determine the amplitudes.

    Notes
    -----
    A signal ``Re (a Za + b Zb) exp(i phi)`` with ``Za = exp(i phi0) (A+ cos 2psi + i Ax sin 2psi)`` and
    ``Zb = exp(i phi0) (A+ sin 2psi - i Ax cos 2psi)`` has the expectations ``Fa = s (A Za + C Zb)`` and
    ``Fb = s (C Za + B Zb)``, ``s^2 = level / 2``.  The circular amplitudes ``Za + i Zb`` and ``Za - i Zb`` are
    ``(A+ + Ax) exp(i (phi0 + 2 psi))`` and ``(A+ - Ax) exp(i (phi0 - 2 psi))``.  The noise of Fa and Fb has the
    covariance (A, C; C, B).
    """
    A, B, C = sums[:3]
    determinant = A * B - C * C
    if not determinant > CONDITION_BOUND * (A + B) ** 2:
        raise ValueError("the SFTs of the window do not determine the amplitudes: expected more SFTs")
    inverse = np.array([[B, -C], [-C, A]]) / determinant
    F = np.array([sums[3] + 1j * sums[4], sums[5] + 1j * sums[6]])
    Z = inverse @ F * np.sqrt(2 / level)
    circular = np.array([[1, 1j], [1, -1j]])
    values = circular @ Z
    (right, left), (alpha, beta) = np.abs(values), np.angle(values)
    p, q = np.sqrt(right), np.sqrt(left)
    shift = 2 * np.pi * np.remainder(cycles, 1)
    psi, phi0 = (alpha - beta) / 4, (alpha + beta) / 2 - shift
    turns = np.round(psi / (np.pi / 2))
    psi, phi0 = psi - turns * np.pi / 2, np.remainder(phi0 + turns * np.pi, 2 * np.pi)
    found = {
        "h0": (p + q) ** 2 / 2, "cosi": (p - q) / (p + q), "psi": psi, "phi0": phi0,
        "a_plus": (right + left) / 2, "a_cross": (right - left) / 2,
    }  # fmt: skip
    # covariance of the moduli and of the phases times the moduli
    turned = np.diag(np.exp(-1j * np.angle(values))) @ circular
    noise = turned @ inverse @ turned.conj().T * (2 / level)
    both = 0.5 * np.block([[noise.real, -noise.imag], [noise.imag, noise.real]])
    with np.errstate(divide="ignore"):
        slopes = {
            "h0": [(p + q) / (2 * p), (p + q) / (2 * q), 0, 0],
            "cosi": [q / (p * (p + q) ** 2), -p / (q * (p + q) ** 2), 0, 0],
            "psi": [0, 0, 1 / (4 * right), -1 / (4 * left)], "phi0": [0, 0, 1 / (2 * right), 1 / (2 * left)],
            "a_plus": [0.5, 0.5, 0, 0], "a_cross": [0.5, -0.5, 0, 0],
        }  # fmt: skip
    errors = {name: float(np.sqrt(np.array(slope) @ both @ np.array(slope))) for name, slope in slopes.items()}
    twoF = 2 * float((F.conj() @ inverse @ F).real)
    return Amplitudes(**{name: float(value) for name, value in found.items()}, twoF=twoF, errors=errors)
