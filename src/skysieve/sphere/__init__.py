"""Convolution of maps on the sphere with radial kernels: smoothing, wavelets, filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.sphere.api import ConvolvePlan
    from skysieve.sphere.grid import ECP, GaussLegendre, Healpix, Rings
    from skysieve.sphere.kernels import (
        Gaussian,
        Window,
        matched_filter,
        sqrt_cl,
    )
    from skysieve.sphere.pixelwindow import pixel_window
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
    "pixel_window",
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
    "pixel_window": "skysieve.sphere.pixelwindow",
    "smoothing": "skysieve.sphere.smooth",
    "sqrt_cl": "skysieve.sphere.kernels",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
