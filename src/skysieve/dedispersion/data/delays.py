"""Delays, smearing, scattering, and the loss of S/N at a wrong DM; all in float64."""

from __future__ import annotations

import math
import reprlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.arrays import as_float64, to_host

from .observation import DM_CONSTANT, in_unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMEAR = 0.0001205
"""PRESTO's rounded constant of DM smearing: seconds are ``DM BW / (SMEAR f^3)``, MHz."""
BHAT = (-6.46, 0.154, 1.07, 3.86)
"""Bhat et al. 2004, eq. 8: log10 tau[ms] = a + b log10 DM + c (log10 DM)^2 - alpha log10 f[GHz]."""
LOSS = 6.91e-3
"""Cordes & McLaughlin 2003, eq. 13."""
HALVINGS = 60
"""Number of bisections that invert `snr_kept`: enough to reach rounding errors from a ratio of 1e8."""
Reference = Literal["top", "centre", "bottom", "infinity"]
REFERENCES = ("top", "centre", "bottom", "infinity")
"""Frequencies of the band at which arrival times can be given: names of `Reference`."""


def numbers(name: str, given: object) -> NDArray[np.float64]:
    """The argument ``name`` as float64 on the host.

    Raises
    ------
    TypeError
        It holds anything but real numbers.
    """
    try:
        found: NDArray[np.float64] = to_host(as_float64(given, name))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}={reprlib.repr(given)}: expected real numbers") from error
    return found


def reference_frequency(freqs: NDArray[np.float64], ref_freq: str | float) -> float:
    """``"top" | "centre" | "bottom" | "infinity"`` or MHz, as MHz (``inf`` for infinity)."""
    ref_freq = in_unit("ref_freq", ref_freq, "MHz")
    if isinstance(ref_freq, str):
        if ref_freq not in REFERENCES:
            raise ValueError(
                f"ref_freq={ref_freq!r}: expected one of {', '.join(map(repr, REFERENCES))}, or a frequency in MHz"
            )
        ends = float(freqs.max()), float(freqs.min())
        return {"top": ends[0], "centre": (ends[0] + ends[1]) / 2, "bottom": ends[1], "infinity": math.inf}[ref_freq]
    if not float(ref_freq) > 0:
        raise ValueError(f"ref_freq={ref_freq!r}: expected a frequency above 0, in MHz")
    return float(ref_freq)


def delay_seconds(
    freqs: Any, dm: Any, ref_freq: float = math.inf, dm_constant: float = DM_CONSTANT
) -> NDArray[np.float64]:
    """Delay of frequencies behind ``ref_freq``: ``dm_constant DM (f^-2 - ref^-2)`` (eq. 1 of Magro et al. 2011).

    The difference of inverse squares is computed as ``(ref - f)(ref + f) / (f ref)^2``, to avoid loss of precision.

    Parameters
    ----------
    freqs : array_like
        MHz.
    dm : array_like
        pc / cm^3; broadcast against ``freqs``.
    ref_freq : float
        MHz, or inf.
    dm_constant : float
        MHz^2 s cm^3 / pc.

    Examples
    --------
    >>> round(float(delay_seconds(1400.0, 100.0)), 6)
    0.211703
    """
    f = np.asarray(freqs, np.float64)
    if math.isinf(ref_freq):
        law = 1 / (f * f)
    else:
        law = (ref_freq - f) * (ref_freq + f) / (f * ref_freq) ** 2
    seconds: NDArray[np.float64] = dm_constant * np.asarray(dm, np.float64) * law
    return seconds


def sample_delays(
    freqs: NDArray[np.float64],
    dms: NDArray[np.float64],
    tsamp: float,
    ref_freq: str | float = "top",
    dm_constant: float = DM_CONSTANT,
) -> NDArray[np.int32]:
    """Delays in whole samples: nearest, halves to even.

    Returns
    -------
    numpy.ndarray of int32, shape (len(dms), len(freqs))
        Negative for channels above ``ref_freq``.

    Raises
    ------
    ValueError
        A delay is beyond 2**30 samples.

    Examples
    --------
    >>> sample_delays(np.array([1500.0, 1400.0]), np.array([0.0, 100.0]), 1e-3).tolist()
    [[0, 0], [0, 27]]
    """
    ref = reference_frequency(freqs, ref_freq)
    return nearest(delay_seconds(freqs, np.asarray(dms, np.float64)[:, None], ref, dm_constant) / tsamp)


def nearest(samples: NDArray[np.float64]) -> NDArray[np.int32]:
    """Delays rounded to whole samples, halves to even; ValueError beyond 2**30."""
    rounded = np.rint(samples)
    if rounded.size and max(-float(rounded.min()), float(rounded.max())) >= 2**30:
        raise ValueError(f"dms: a delay of {np.abs(rounded).max():.3g} samples; expected less than 2**30")
    return rounded.astype(np.int32)


def smearing(dm: Any, bandwidth: float, centre: float) -> Any:
    """Seconds over which ``dm`` smears a pulse in a band; MHz.

    >>> round(float(smearing(100.0, 1.0, 1000.0)) * 1e3, 4)
    0.8299
    """
    return np.abs(dm) * bandwidth / (SMEAR * centre**3)


def scattering(dm: Any, freq: float) -> Any:
    """Expected scattering time, seconds (Bhat et al. 2004, eq. 8); 0 at DM 0.

    The parabola in log DM has its minimum at DM 0.85 and rises towards DM 0; below this DM its minimum is used.

    >>> round(float(scattering(100.0, 1000.0)) * 1e3, 5)
    0.01343
    """
    d = np.asarray(dm, np.float64)
    a, b, c, alpha = BHAT
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.maximum(np.log10(d), -b / (2 * c))
        tau = 10 ** (a + b * log + c * log**2 - alpha * math.log10(freq / 1000)) / 1000
    return np.where(d > 0, tau, 0.0)


def snr_kept(dm_error: Any, bandwidth: float, centre: float, width: Any) -> Any:
    """Fraction of the S/N that remains at a wrong DM (Cordes & McLaughlin 2003, eq. 12): ``sqrt(pi)/2 erf(z)/z``.

    Parameters
    ----------
    dm_error : array_like
        pc / cm^3.
    bandwidth, centre : float
        MHz.
    width : array_like
        Width of the pulse, seconds (FWHM).

    Examples
    --------
    >>> [round(float(snr_kept(z, 1.0, 1000.0, 6.91e-6)), 3) for z in (0.25, 0.5, 1, 2, 5)]
    [0.98, 0.923, 0.747, 0.441, 0.177]
    """
    from scipy.special import erf

    z = LOSS * np.abs(dm_error) * bandwidth / (np.asarray(width) * 1e3 * (centre / 1e3) ** 3)
    small = z < 1e-4
    z = np.where(small, 1.0, z)
    return np.where(small, 1.0, math.sqrt(math.pi) / 2 * erf(z) / z)


def error_for_loss(max_loss: float, bandwidth: float, centre: float, width: float) -> float:
    """Largest DM error that costs no more than ``max_loss``: the inverse of `snr_kept`.

    >>> round(error_for_loss(0.253, 1.0, 1000.0, 6.91e-6), 2)
    1.0
    """
    return _root(max_loss) * width * 1e3 * (centre / 1e3) ** 3 / (LOSS * bandwidth)


@lru_cache(16)
def _root(max_loss: float) -> float:
    """The z of `snr_kept`; importing scipy.optimize takes longer than a search."""
    low, high = 1e-4, 1e4
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        if math.sqrt(math.pi) / 2 * math.erf(middle) / middle > 1 - max_loss:
            low = middle
        else:
            high = middle
    return low
