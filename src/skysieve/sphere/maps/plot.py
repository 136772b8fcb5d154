"""Pictures of maps: Mollweide projections before and after smoothing, and patches around point sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.sphere.grids.healpix import ang2pix, npix2nside

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from .io import SkyMaps

__all__ = ["before_after", "mollweide", "patch", "ringing"]


def mollweide(ring_map: NDArray[Any], width: int = 1000) -> NDArray[np.float64]:
    """Mollweide image (width / 2, width) of a RING map; NaN outside the ellipse and in bad pixels.

    Longitude grows to the left.  Each point of the image shows the pixel in which it lies.

    Examples
    --------
    >>> image = mollweide(np.arange(12.0), 40)
    >>> image.shape, float(image[10, 20]), bool(np.isnan(image[0, 0]))
    ((20, 40), 4.0, True)
    """
    y, x = np.mgrid[1 : -1 : (width // 2) * 1j, -1 : 1 : width * 1j]
    inside = x**2 + y**2 <= 1
    t = np.arcsin(y[inside])
    lat = np.arcsin((2 * t + np.sin(2 * t)) / np.pi)
    lon = -np.pi * x[inside] / np.maximum(np.cos(t), 1e-9)
    values = np.asarray(ring_map, np.float64)[ang2pix(npix2nside(ring_map.size), np.pi / 2 - lat, lon)]
    image = np.full(x.shape, np.nan)
    image[inside] = np.where(np.abs(values) < 1e29, values, np.nan)
    return image


def before_after(before: SkyMaps, after: SkyMaps) -> Figure:
    """Draw two pictures of each map, in one row: before and after smoothing."""
    from matplotlib.figure import Figure

    rows = len(before.maps)
    figure = Figure(figsize=(12, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    for line, name, unit, a, b in zip(
        axes, before.names, before.units, before.ordered(False), after.ordered(False), strict=True
    ):
        images = [mollweide(a), mollweide(b)]
        low, high = np.nanpercentile(images[1], [0.5, 99.5])
        for axis, image, title in zip(line, images, (name, f"{name}, smoothed"), strict=True):
            axis.imshow(image, vmin=low, vmax=high, extent=(-2, 2, -1, 1), interpolation="nearest")
            axis.set_axis_off()
            axis.set_title(title)
        figure.colorbar(line[-1].images[0], ax=line, shrink=0.7, label=unit)
    return figure


def patch(ring_map: NDArray[Any], theta: float, phi: float, width: float, size: int = 200) -> NDArray[np.float64]:
    """Gnomonic image (size, size) of ``width`` rad around a point; it shows the pixel in which each point lies.

    Examples
    --------
    >>> patch(np.arange(12.0), 0.0, 0.0, 0.1, 2)
    array([[1., 2.],
           [0., 3.]])
    """
    y, x = np.mgrid[1 : -1 : size * 1j, -1 : 1 : size * 1j] * np.tan(width / 2)
    north, east, out = (
        np.array([-np.cos(theta) * np.cos(phi), -np.cos(theta) * np.sin(phi), np.sin(theta)]),
        np.array([-np.sin(phi), np.cos(phi), 0.0]),
        np.array([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)]),
    )
    point = out + y[..., None] * north - x[..., None] * east
    lon = np.arctan2(point[..., 1], point[..., 0])
    pixels = ang2pix(npix2nside(ring_map.size), np.arctan2(np.hypot(point[..., 0], point[..., 1]), point[..., 2]), lon)
    return np.asarray(ring_map, np.float64)[pixels]


def ringing(images: dict[str, NDArray[Any]], places: list[tuple[float, float]], width: float) -> Figure:
    """Draw point sources (columns) that were smoothed in different ways (rows), on a log10 scale relative to the peak.

    This is figure 6 of Elsner & Wandelt 2011 (A&A 532, A35), with a row for each image.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 * len(places) + 1, 2.4 * len(images)), layout="constrained")
    axes = figure.subplots(len(images), len(places), squeeze=False)
    for line, (name, image) in zip(axes, images.items(), strict=True):
        for axis, (theta, phi) in zip(line, places, strict=True):
            seen = np.log10(np.maximum(np.abs(patch(image, theta, phi, width)) / np.abs(image).max(), 1e-12))
            axis.imshow(seen, vmin=-10, vmax=0, cmap="inferno", interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_title(name, loc="left", fontsize="small")
    figure.colorbar(axes[-1, -1].images[0], ax=axes, shrink=0.5, label="power of ten of the peak")
    return figure
