"""skysieve as a method of astropy's own ``LombScargle``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from skysieve.periodogram.numerics.normalization import NormalizationName

NAMES = ("skysieve", "skysieve_chi2")


def _method(device: Any, dtype: Any) -> Any:
    def method(
        t: Any,
        y: Any,
        dy: Any,
        frequency: Any,
        center_data: bool = True,
        fit_mean: bool = True,
        normalization: NormalizationName = "standard",
        nterms: int = 1,
        device: Any = device,
        dtype: Any = dtype,
    ) -> Any:
        from .lombscargle import LombScargle

        curve = LombScargle(t, y, dy, fit_mean, center_data, nterms, normalization, device=device, dtype=dtype)
        return np.asarray(curve.power(frequency), np.float64)

    return method


def register_astropy(*, device: Any = "auto", dtype: Any = "float64") -> None:
    """Add ``method="skysieve"`` to ``astropy.timeseries.LombScargle``, for this session.

    Then ``LombScargle(t, y, dy).power(f, method="skysieve")`` and ``autopower(method="skysieve")`` are computed by
    skysieve.  lightkurve can use it too: ``lc.to_periodogram(ls_method="skysieve")``.  astropy accepts several terms
    (``nterms``) only for methods whose name ends in "chi2"; use ``method="skysieve_chi2"`` for these.

    Parameters
    ----------
    device, dtype : optional
        Device and precision, as for `skysieve.lombscargle`.  A single call may set them by ``method_kwds={"device":
        "cuda"}``.

    Examples
    --------
    >>> import numpy as np
    >>> from astropy.timeseries import LombScargle
    >>> from skysieve.periodogram import register_astropy
    >>> register_astropy(device="cpu")
    >>> t = np.random.default_rng(0).uniform(0, 40, 100)
    >>> f, p = LombScargle(t, np.sin(2 * t), 0.1).autopower(method="skysieve")
    >>> bool(np.allclose(p, LombScargle(t, np.sin(2 * t), 0.1).power(f, method="slow"), atol=1e-8))
    True
    """
    from astropy.timeseries import LombScargle
    from astropy.timeseries.periodograms.lombscargle.implementations import main

    call = _method(device, dtype)
    for name in NAMES:
        main.METHODS[name] = call
        if name not in LombScargle.available_methods:
            LombScargle.available_methods.append(name)
