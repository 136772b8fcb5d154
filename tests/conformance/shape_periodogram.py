"""Plans and results of the periodogram for `test_api_shape`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

GRID: dict[str, Any] = {"fmin": 0.1, "fmax": 2.0, "nf": 200, "n_peaks": 2, "device": "cpu"}
FIELDS = ("n_used", "n_dropped", "span", "ids", "method", "status", "device", "dtype", "normalization", "fit_mean")


def curve(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    t = np.sort(rng.uniform(0, 30, n))
    return t, np.sin(2 * np.pi * t / 1.7) + rng.normal(0, 0.1, n)


def bands(n: int = 60) -> np.ndarray:
    return np.resize(["g", "r"], n)


def one_series() -> Any:
    from skysieve.periodogram import LombScarglePlan

    return LombScarglePlan(**GRID), lambda plan: plan.execute(*curve())


def batch() -> Any:
    from skysieve.periodogram import LombScarglePlan

    curves = [curve(n) for n in (60, 50, 2)]  # the last has too few points: a status
    plan = LombScarglePlan(**GRID, return_power=False)
    return plan, lambda plan: plan.execute([t for t, _ in curves], [y for _, y in curves])


def several_terms() -> Any:
    from skysieve.periodogram import LombScarglePlan

    t, y = curve()
    return LombScarglePlan(**GRID, nterms=2, normalization="psd"), lambda plan: plan.execute(t, np.stack([y, y]))


def several_bands() -> Any:
    from skysieve.periodogram import MultibandPlan

    return MultibandPlan(**GRID, model="separate"), lambda plan: plan.execute(*curve(), bands())


PLANS = {"one series": one_series, "batch": batch, "terms": several_terms, "bands": several_bands}


def result_of(name: str) -> Any:
    plan, execute = PLANS[name]()
    with plan:
        return execute(plan), ".npz"


def light_curve() -> Any:
    from astropy import units as u
    from astropy.time import Time

    from skysieve.periodogram import LombScargle

    t, y = curve()
    return LombScargle(Time(59000 + t, format="mjd"), y * u.mag, 0.1 * u.mag, device="cpu")


RESULTS = {name: lambda name=name: result_of(name) for name in PLANS} | {
    "peak list": lambda: (light_curve().peaks(2, maximum_frequency=2 / u_day()), ".npz"),
    "prewhitened": lambda: (light_curve().prewhiten(2, maximum_frequency=2 / u_day()), ".npz"),
}


def u_day() -> Any:
    from astropy.units import day

    return day


def describe(plan: Any) -> dict[str, Any]:
    if type(plan).__name__ == "MultibandPlan":
        return plan.describe(*curve(), bands())
    return plan.describe(*curve())


def equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a), np.asarray(b)
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f" == y.dtype.kind)


def same_values(a: Any, b: Any) -> bool:
    """Whether two results are equal: dataclasses of arrays, Quantities, text and a light curve."""
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name == "residual":
            pairs = [(x.t.jd, y.t.jd), (x.y, y.y), (x.dy, y.dy), (x.normalization, y.normalization)]
        else:
            pairs = [(x, y)]
        if not all(equal(p, q) and getattr(p, "unit", None) == getattr(q, "unit", None) for p, q in pairs):
            return False
    return type(a) is type(b)


def same(a: Any, b: Any) -> bool:
    if type(a).__name__ in ("PeakList", "Prewhitened"):
        return same_values(a, b)
    if type(a) is not type(b) or not equal(a.power, b.power):
        return False
    peaks = ("index", "frequency", "period", "power", "frequency_error", "period_error")
    more = [name for name in ("bands", "model") if hasattr(a, name)]
    return all(equal(getattr(a.peaks, name), getattr(b.peaks, name)) for name in peaks) and all(
        equal(getattr(a, name), getattr(b, name)) for name in (*FIELDS, *more)
    )
