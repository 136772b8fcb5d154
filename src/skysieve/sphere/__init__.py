"""Convolution of maps on the sphere with radial kernels: smoothing, wavelets, filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.sphere.grids.grid import ECP, GaussLegendre, Healpix, Rings
    from skysieve.sphere.grids.pixel_window import pixel_window
    from skysieve.sphere.kernels.shapes import (
        Gaussian,
        MexicanHat,
        Needlet,
        Profile,
        TopHat,
        Window,
        from_function,
        matched_filter,
        sqrt_cl,
    )
    from skysieve.sphere.maps.smoothing import smoothing

    from .api import ConvolvePlan

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
    "ECP": "skysieve.sphere.grids.grid",
    "GaussLegendre": "skysieve.sphere.grids.grid",
    "Gaussian": "skysieve.sphere.kernels.shapes",
    "Healpix": "skysieve.sphere.grids.grid",
    "MexicanHat": "skysieve.sphere.kernels.shapes",
    "Needlet": "skysieve.sphere.kernels.shapes",
    "Profile": "skysieve.sphere.kernels.shapes",
    "Rings": "skysieve.sphere.grids.grid",
    "TopHat": "skysieve.sphere.kernels.shapes",
    "Window": "skysieve.sphere.kernels.shapes",
    "from_function": "skysieve.sphere.kernels.shapes",
    "matched_filter": "skysieve.sphere.kernels.shapes",
    "pixel_window": "skysieve.sphere.grids.pixel_window",
    "smoothing": "skysieve.sphere.maps.smoothing",
    "sqrt_cl": "skysieve.sphere.kernels.shapes",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
