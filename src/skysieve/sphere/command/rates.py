"""The jobs by which ``skysieve info --measure`` measures the rates of smoothing, and the prediction of a run."""

from __future__ import annotations

import time
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.machine import rates
from skysieve.sphere.api import ConvolvePlan
from skysieve.sphere.grids.grid import Healpix
from skysieve.sphere.kernels.shapes import Gaussian
from skysieve.sphere.maps.io import SkyMaps, fits_bytes, read_maps
from skysieve.sphere.maps.smoothing import smooth_maps

if TYPE_CHECKING:
    from skysieve.core.device import Device
    from skysieve.sphere.kernels.base import Kernel

__all__ = ["measure", "prediction"]

CASES: dict[str, tuple[tuple[Any, int, float], ...]] = {
    "cpu": (("direct", 384, 27.0), ("ring", 384, 80.0), ("harmonic", 384, 80.0)),
    "cuda": (("direct", 1024, 40.0), ("direct", 2048, 20.0), ("ring", 1024, 120.0), ("ring", 2048, 60.0)),
}
"""Method, nside and width of the kernel in arc minutes.  On maps of nside 256 calls cost more than pixels do."""
FILE = 512, 20.0
"""Nside and width of the maps with which the work around them is timed."""
SPINS: tuple[Literal[0, 2], ...] = (0, 2)


def measure(device: Device) -> None:
    """Measure the rates of a device with small maps, and store them; `OSError` if they cannot be stored."""
    rng = np.random.default_rng(1)
    works, took = [], []
    for method, nside, width in CASES[device.kind]:
        if method == "harmonic" and find_spec("ducc0") is None:
            continue
        for dtype in ("float32", "float64"):
            for spin in SPINS:
                kernel, grid, npix = Gaussian(fwhm=np.radians(width / 60)), Healpix(nside), 12 * nside**2
                one = rng.standard_normal((2, npix) if spin else npix).astype(dtype)
                with ConvolvePlan(kernel, grid, method=method, dtype=dtype, spin=spin, device=device) as plan:
                    works.append(plan.describe()["work"])
                    took.append(rates.timed(device, partial(plan.execute, one)))
    found = rates.fit(works, took)
    kind: Any
    for kind in (np.float32, np.float64):
        dtype = np.dtype(kind)
        nside, kernel = FILE[0], Gaussian(fwhm=np.radians(FILE[1] / 60))
        sky = read_maps(fits_of(rng.standard_normal((1, 12 * nside**2)).astype(dtype)))
        with ConvolvePlan(kernel, Healpix(nside), dtype=dtype, device=device) as plan:
            alone = rates.timed(device, partial(plan.execute, sky.maps))
        whole = rates.timed(device, partial(smooth_maps, sky, kernel=kernel, device=device))
        found[f"{rates.ALONE}pixels {dtype.name}"] = max(0.0, whole - alone) / sky.maps.size
        made = fits_bytes(sky)
        found[f"{rates.ALONE}written {dtype.name}"] = rates.timed(device, partial(fits_bytes, sky)) / sky.maps.size
        found[f"{rates.ALONE}read {dtype.name}"] = rates.timed(device, partial(read_maps, made)) / sky.maps.size
    rates.keep("sphere", device, found)


def fits_of(maps: Any) -> bytes:
    """Maps as a FITS file in RING order."""
    from astropy.io import fits

    columns = [
        fits.Column(f"MAP{i}", {"float32": "E", "float64": "D"}[maps.dtype.name], array=one)
        for i, one in enumerate(maps)
    ]
    table = fits.BinTableHDU.from_columns(columns)
    nside = round((maps.shape[-1] / 12) ** 0.5)
    table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": nside, "INDXSCHM": "IMPLICIT"})
    out = BytesIO()
    fits.HDUList([fits.PrimaryHDU(), table]).writeto(out)
    return out.getvalue()


def prediction(
    sky: SkyMaps, kernel: Kernel, simple: bool, read: float, maps: int = 1, **options: Any
) -> dict[str, Any]:
    """Predict the smoothing of the maps of a file.

    Parameters
    ----------
    sky : SkyMaps
    kernel : Kernel
    simple : bool
        Whether maps are smoothed in one pass by sums over pixels; other ways are not predicted.
    read : float
        Processor seconds that reading took.
    maps : int
        Files of this form.
    **options
        ``method``, ``eps``, ``quadrature``, ``dtype``, ``device``, ``memory``, ``threads`` of `ConvolvePlan`.

    Returns
    -------
    dict
        ``method``, ``device``, ``bytes``, ``moved``, ``seconds``, ``processor_seconds``, ``work``, ``missing``.
    """
    given: Any
    quadrature: Any
    quadrature, given = options.pop("quadrature") or "band", options.pop("dtype")
    dtype = np.dtype(given or ("float32" if sky.maps.dtype == np.float32 else "float64"))
    work: dict[str, float] = {}
    size, moved, methods, setup, threads = 0, 0, [], 0.0, 1
    if not simple:
        return {"method": "", "device": "", "bytes": 0, "moved": 0, "seconds": None, "processor_seconds": None,
                "work": {}, "missing": ["these options"], "threads": 1}  # fmt: skip
    spins: list[tuple[Literal[0, 2], int]] = (
        ([(0, 1), (2, 1)] if sky.polarised else [(0, len(sky.maps))]) if simple else []
    )
    for spin, count in spins:
        grid = Healpix(sky.nside, sky.nest)
        ConvolvePlan(kernel, grid, spin=spin, quadrature=quadrature, dtype=dtype, **options).close()  # compiles
        started = time.process_time()
        with ConvolvePlan(kernel, grid, spin=spin, quadrature=quadrature, dtype=dtype, **options) as plan:
            setup += time.process_time() - started
            facts, where = plan.describe(), plan.device
        threads = facts["threads"]
        size, moved = max(size, facts["bytes"]), moved + facts["moved"] * count * maps
        methods.append(facts["method"])
        device = facts["device"]
        for name, value in facts["work"].items():
            work[name] = work.get(name, 0.0) + value * count * maps
    for step in ("pixels", "written"):
        work[f"{rates.ALONE}{step} {dtype.name}"] = float(sky.maps.size * maps)
    times = rates.predicted("sphere", where, work, threads)
    for name in times:
        if times[name] is not None:
            times[name] += setup + read * maps  # type: ignore[operator]
    return {
        "method": ", ".join(dict.fromkeys(methods)), "device": device, "bytes": size, "moved": moved, **times,
        "work": work, "missing": rates.missing("sphere", where, work), "threads": threads,
    }  # fmt: skip
