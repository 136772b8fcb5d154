"""The sphere's part of ``skysieve demo``: point sources on a simulated sky, smoothed without ringing."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skysieve.sphere.api import ConvolvePlan
from skysieve.sphere.grids.grid import Healpix
from skysieve.sphere.grids.healpix import pix2ang
from skysieve.sphere.kernels.shapes import Gaussian
from skysieve.sphere.maps.smoothing import smoothing

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    from skysieve.sphere.contract import Compat, Method

NSIDE = 256
FWHM = np.radians(37.6 / 60)
"""FWHM of 2.7 pixels, like the paper's 4.7 arcmin at nside 2048."""
PIXELS = (0, 40_000, 130_305, 400_000)
"""Positions of the sources: at the pole, in the polar cap, at its edge, in the equatorial belt."""
METHODS: tuple[Method, ...] = ("direct", "ring")
PAPER: dict[Compat, str] = {
    "arkcos": "the paper, zeros in the caps",
    "arkcos+duplicate+unshifted": "the paper, all its improvements",
}
RINGING = 1e-6
"""Largest value beyond the kernel's support that the default eps allows, relative to the peak."""


def sources() -> NDArray[np.float64]:
    """A map with four point sources of value 1."""
    sky = np.zeros(12 * NSIDE**2)
    sky[list(PIXELS)] = 1
    return sky


def ringing(smooth: NDArray[np.float64], radius: float) -> float:
    """Largest modulus of the pixels further than ``radius`` from every source, relative to the peak."""
    theta, phi = pix2ang(NSIDE, np.arange(smooth.size))
    far = np.ones(smooth.size, bool)
    for p in PIXELS:
        h = np.sin((theta - theta[p]) / 2) ** 2 + np.sin(theta) * np.sin(theta[p]) * np.sin((phi - phi[p]) / 2) ** 2
        far &= 2 * np.arcsin(np.sqrt(np.minimum(1, h))) > radius
    return float(np.abs(smooth[far]).max() / smooth.max())


def run(out: Path, console: Console, device: str = "auto") -> list[str]:
    """Smooth point sources by all methods and draw them; return one line for each result that rings too much."""
    console.print()
    console.rule("[bold]Point sources on the sphere, smoothed without ringing", align="left")
    sky = sources()
    radius = 1.05 * Gaussian(fwhm=FWHM).support()
    short, images = [], {}
    with console.status("Smoothing; the first run on a machine compiles for a while ..."):
        for method in METHODS:
            with ConvolvePlan(Gaussian(fwhm=FWHM), Healpix(NSIDE), method=method, device=device) as plan:
                plan.execute(sky)
                start = time.perf_counter()
                smooth = plan.execute(sky)
                seconds = time.perf_counter() - start
            left = ringing(smooth, radius)
            console.print(f"{method}: {seconds:.3f} s; beyond the beam at most {left:.1e} of the peak")
            if not left <= RINGING:
                short.append(f"sphere: {method} rings at {left:.1e} of the peak, expected {RINGING:g} at most")
            images[f"{method}: the pixel sum"] = smooth
        for compat, name in PAPER.items():
            with ConvolvePlan(Gaussian(fwhm=FWHM), Healpix(NSIDE), compat=compat, device="cpu") as plan:
                images[name] = plan.execute(sky)
            console.print(f"{name}: {ringing(images[name], radius):.1e} of the peak")
        if find_spec("ducc0") is not None:
            name = "harmonics up to 2 nside, as healpy"
            images[name] = smoothing(sky, fwhm=FWHM, lmax=2 * NSIDE, iter=0, device="cpu")
            console.print(f"{name}: {ringing(images[name], radius):.1e} of the peak")
    if find_spec("matplotlib") is not None:
        from skysieve.sphere.maps.plot import ringing as drawn

        places = [(float(t), float(p)) for t, p in zip(*pix2ang(NSIDE, np.array(PIXELS)), strict=True)]
        drawn(images, places, np.radians(13)).savefig(out / "sphere-ringing.png")
        console.print(f"The paper's figure 6 and ours: {out / 'sphere-ringing.png'}")
        _draw(out / "sphere.png", device)
        console.print(f"A simulated sky before and after: {out / 'sphere.png'}")
    return short


def _draw(path: Path, device: str) -> None:
    from skysieve.sphere.maps.io import SkyMaps
    from skysieve.sphere.maps.plot import before_after

    rng = np.random.default_rng(7)
    sky = smoothing(rng.normal(size=12 * NSIDE**2), fwhm=np.radians(8), device=device)
    sky += 0.3 * sky.std() * rng.normal(size=sky.size)
    sky[rng.integers(0, sky.size, 60)] += 40 * sky.std()
    before = SkyMaps(sky[None], False, ("sky",), ("",))
    after = SkyMaps(smoothing(sky, fwhm=np.radians(3), device=device)[None], False, ("sky",), ("",))
    before_after(before, after).savefig(path)
