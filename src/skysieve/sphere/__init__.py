"""Convolution of maps on the sphere with radial kernels: smoothing, wavelets, filters."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skysieve.sphere.api import ConvolvePlan
    from skysieve.sphere.grid import ECP, GaussLegendre, Healpix, Rings
    from skysieve.sphere.kernels import (
        Gaussian,
        Window,
        matched_filter,
        sqrt_cl,
    )
    from skysieve.sphere.shapes import MexicanHat, Needlet, Profile, TopHat, from_function
    from skysieve.sphere.smooth import smoothing

__all__ = [
    "ECP",
    "ConvolvePlan",
    "GaussLegendre",
    "Gaussian",
    "Healpix",
    "MexicanHat",
    "Needlet",
    "Profile",
    "Rings",
    "TopHat",
    "Window",
    "from_function",
    "matched_filter",
    "smoothing",
    "sqrt_cl",
]

_HOMES = {
    "ConvolvePlan": "skysieve.sphere.api",
    "ECP": "skysieve.sphere.grid",
    "GaussLegendre": "skysieve.sphere.grid",
    "Gaussian": "skysieve.sphere.kernels",
    "Healpix": "skysieve.sphere.grid",
    "MexicanHat": "skysieve.sphere.shapes",
    "Needlet": "skysieve.sphere.shapes",
    "Profile": "skysieve.sphere.shapes",
    "Rings": "skysieve.sphere.grid",
    "TopHat": "skysieve.sphere.shapes",
    "Window": "skysieve.sphere.kernels",
    "from_function": "skysieve.sphere.shapes",
    "matched_filter": "skysieve.sphere.kernels",
    "smoothing": "skysieve.sphere.smooth",
    "sqrt_cl": "skysieve.sphere.kernels",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
