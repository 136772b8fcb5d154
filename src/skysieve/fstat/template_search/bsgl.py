"""The line-robust statistic: a signal against Gaussian noise or a line in a single detector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skysieve.fstat.contract import Lines
from skysieve.fstat.inputs.atoms import finite

__all__ = ["BSGL"]

LOG10E = float(np.log10(np.e))


@dataclass(frozen=True)
class BSGL:
    """Prior of the line-robust statistic ``B_S/GL``.

    Parameters
    ----------
    Fstar0 : float
        ``F*_0``, approximately the F at which a line is as likely as noise; ``Fstar0sc`` in LALPulsar.  It is a value
        of F, not its logarithm.  Any finite number is valid: with a negative one, noise counts for next to nothing.
    oLGX : sequence or dict of float, optional
        Prior odds of a line against Gaussian noise in each detector, in the order of the detectors or by their
        names.  By default all are equal and add up to 1, as in LALPulsar.  0 excludes lines in a detector.

    Raises
    ------
    ValueError, TypeError
        A value is not a finite number, or odds are negative.

    Notes
    -----
    With ``o = sum oLGX``, F of all detectors and ``F^X`` of each,

        ln B = F - ln( (exp F*_0 + sum_X oLGX exp F^X) / (1 + o) ),

    eq. 36 of [1]_.  ``F^X`` of a transient cell is summed over the time bins of that cell.  With a single detector a
    signal cannot be distinguished from a line, so that two or more are needed, as in LALPulsar.

    References
    ----------
    .. [1] Keitel, Prix, Papa, Leaci & Siddiqi 2014, Phys. Rev. D 89, 064023

    Examples
    --------
    >>> prior = BSGL(Fstar0=10)
    >>> line, signal = prior.log10(60, [62, 4]), prior.log10(60, [30, 32])
    >>> round(float(line), 2), round(float(signal), 2)
    (0.17, 6.54)
    """

    Fstar0: float
    oLGX: Sequence[float] | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        finite(self.Fstar0, "Fstar0")
        if self.oLGX is None:
            return
        odds = self.oLGX.values() if isinstance(self.oLGX, Mapping) else self.oLGX
        if isinstance(odds, str) or not isinstance(odds, Iterable):
            raise TypeError(f"oLGX={self.oLGX!r}: expected odds, one for each detector")
        for value in odds:
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise TypeError(f"oLGX={self.oLGX!r}: expected odds, one for each detector")
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"oLGX={self.oLGX!r}: expected odds of at least 0")

    def odds(self, detectors: Sequence[str]) -> list[float]:
        """Prior odds of the detectors.

        Raises
        ------
        ValueError
            There is only one detector, the odds were given for other detectors, or their sum is 0.
        """
        n = len(detectors)
        if n < 2:
            raise ValueError(
                f"Fstar0={self.Fstar0:g}: the line-robust statistic needs two or more detectors, found {n} "
                f"({', '.join(detectors)})"
            )
        if self.oLGX is None:
            found = [1.0 / n] * n
        elif isinstance(self.oLGX, Mapping):
            if sorted(self.oLGX) != sorted(detectors):
                raise ValueError(f"oLGX={dict(self.oLGX)!r}: expected the detectors {', '.join(detectors)}")
            found = [float(self.oLGX[d]) for d in detectors]
        else:
            found = [float(v) for v in self.oLGX]
            if len(found) != n:
                entries = "entry" if len(found) == 1 else "entries"
                raise ValueError(
                    f"oLGX={list(self.oLGX)!r} has {len(found)} {entries}, expected {n}, one for each detector"
                )
        if sum(found) == 0:
            raise ValueError(f"oLGX={self.oLGX!r}: expected odds above 0 for at least one detector")
        return found

    def lines(self, detectors: Sequence[str]) -> Lines:
        """The priors in the form of the backends."""
        odds = np.array(self.odds(detectors))
        with np.errstate(divide="ignore"):
            logs = np.log(odds) - np.log1p(odds.sum())
        return Lines(float(self.Fstar0 - np.log1p(odds.sum())), tuple(float(v) for v in logs))

    def log10(self, twoF: Any, twoFX: Any) -> Any:
        """``log10 B_S/GL`` from 2F of all detectors, shape (...), and of each detector, shape (D, ...).

        The detectors are in the order of `oLGX`.

        Raises
        ------
        ValueError
            The shapes do not match, or `oLGX` is for another number of detectors.
        """
        F, FX = 0.5 * np.asarray(twoF, np.float64), 0.5 * np.asarray(twoFX, np.float64)
        n = len(FX) if FX.ndim else 0
        if isinstance(self.oLGX, Mapping):
            n = len(self.oLGX)
        if FX.shape != (n, *F.shape):
            raise ValueError(f"twoFX has shape {FX.shape}: expected that of twoF, {F.shape}, for each detector")
        lines = self.lines([str(i) for i in range(len(FX))] if not isinstance(self.oLGX, Mapping) else list(self.oLGX))
        return LOG10E * lines.log_odds(F, FX)
