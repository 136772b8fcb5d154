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

CASES: tuple[tuple[Any, int, float], ...] = (
    ("direct", 256, 40.0), ("direct", 512, 20.0), ("ring", 256, 120.0), ("ring", 512, 60.0), ("harmonic", 256, 120.0),
    ("harmonic", 512, 60.0),
)  # fmt: skip
"""Method, nside and width of the kernel in arc minutes."""
SPINS: tuple[Literal[0, 2], ...] = (0, 2)
LARGER = 4
"""Factor of nside on a GPU."""


def measure(device: Device) -> None:
    """Measure the rates of a device with small maps, and store them; `OSError` if they cannot be stored."""
    rng = np.random.default_rng(1)
    works, took = [], []
    for method, nside, width in CASES:
        if method == "harmonic" and (device.kind != "cpu" or find_spec("ducc0") is None):
            continue
        nside *= 1 if device.kind == "cpu" else LARGER
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
        nside, kernel = CASES[1][1], Gaussian(fwhm=np.radians(CASES[1][2] / 60))
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
