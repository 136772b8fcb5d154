"""Pictures of maps: Mollweide projections, before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.sphere.healpix import npix2nside, ring_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from skysieve.sphere.io import SkyMaps

__all__ = ["before_after", "mollweide"]


def mollweide(ring_map: NDArray[Any], width: int = 1000) -> NDArray[np.float64]:
    """Image (width / 2, width) of a RING map, longitude growing to the left; NaN outside and where pixels are bad.

    Each point of the image takes the pixel of the nearest ring whose centre is nearest in azimuth.

    Examples
    --------
    >>> image = mollweide(np.arange(12.0), 40)
    >>> image.shape, float(image[10, 20]), bool(np.isnan(image[0, 0]))
    ((20, 40), 4.0, True)
    """
    theta, n, phi0, start = ring_table(npix2nside(ring_map.size))
    y, x = np.mgrid[1 : -1 : (width // 2) * 1j, -1 : 1 : width * 1j]
    inside = x**2 + y**2 <= 1
    t = np.arcsin(y[inside])
    lat = np.arcsin((2 * t + np.sin(2 * t)) / np.pi)
    lon = -np.pi * x[inside] / np.maximum(np.cos(t), 1e-9)
    edges = (theta[1:] + theta[:-1]) / 2
    ring = np.searchsorted(edges, np.pi / 2 - lat)
    pixel = np.rint((lon - phi0[ring]) * n[ring] / (2 * np.pi)).astype(np.int64) % n[ring]
    values = np.asarray(ring_map, np.float64)[start[ring] + pixel]
    image = np.full(x.shape, np.nan)
    image[inside] = np.where(np.abs(values) < 1e29, values, np.nan)
    return image


def before_after(before: SkyMaps, after: SkyMaps) -> Figure:
    """One row of two pictures for each map."""
    from matplotlib.figure import Figure

    from skysieve.sphere.io import to_ring

    rows = len(before.maps)
    figure = Figure(figsize=(12, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    for line, name, unit, a, b in zip(axes, before.names, before.units, to_ring(before), to_ring(after), strict=True):
        images = [mollweide(a), mollweide(b)]
        low, high = np.nanpercentile(images[1], [0.5, 99.5])
        for axis, image, title in zip(line, images, (name, f"{name}, smoothed"), strict=True):
            shown = axis.imshow(image, vmin=low, vmax=high, extent=(-2, 2, -1, 1), interpolation="nearest")
            axis.set_axis_off()
            axis.set_title(title)
        figure.colorbar(shown, ax=line, shrink=0.7, label=unit)
    return figure
