"""Measurement of the rates of smoothing, for ``skysieve info --measure``, and the prediction of a run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.device import current
from skysieve.core.machine import rates
from skysieve.sphere.api import ConvolvePlan
from skysieve.sphere.contract import COPIED
from skysieve.sphere.grids.grid import Healpix
from skysieve.sphere.kernels.shapes import Gaussian
from skysieve.sphere.maps.io import SkyMaps, fits_bytes, read_maps
from skysieve.sphere.maps.smoothing import smooth_maps

if TYPE_CHECKING:
    from skysieve.core.device import Device
    from skysieve.sphere.kernels.base import Kernel

__all__ = ["measure", "prediction", "rehearsals"]

CASES: dict[str, tuple[tuple[Any, int, float], ...]] = {
    "cpu": (("direct", 192, 53.0), ("ring", 192, 160.0), ("harmonic", 256, 120.0)),
    "cuda": (("direct", 1024, 40.0), ("ring", 1024, 120.0)),
}
"""Method, nside, and width of the kernel in arc minutes."""
MOVED = 512, 80.0
"""Nside and kernel width for the maps that are copied to a GPU and back."""
FILE = 384, 27.0
"""Nside and kernel width for the maps that time the work other than the convolution."""
DTYPES: tuple[Literal["float32", "float64"], ...] = ("float32", "float64")
SPINS: tuple[Literal[0, 2], ...] = (0, 2)
NOISE = 1_000_003
"""Number of random numbers that all maps repeat, because random numbers take longer to make than a map to smooth."""


def measure(device: Device) -> None:
    """Measure the rates of a device with small maps, and store them; `OSError` if they cannot be stored."""
    works, took = zip(*(job() for job in _jobs(device)), strict=True)
    found = rates.fit(works, took)
    for dtype in DTYPES:
        found |= _files(device, dtype)
    rates.keep("sphere", device, found)


def rehearsals(device: Device) -> list[Callable[[], object]]:
    """The parts of `measure`, each of which may run in a thread of its own (`core.machine.rates.rehearsal`)."""
    return [*_jobs(device), *(partial(_files, device, dtype) for dtype in DTYPES)]


def _jobs(device: Device) -> list[Callable[[], tuple[dict[str, float], float]]]:
    """Functions that return the work of a plan and the seconds that a map took."""
    found: list[Callable[[], tuple[dict[str, float], float]]] = [
        partial(_map, device, method, nside, width, dtype, spin)
        for (method, nside, width), dtype, spin in product(CASES[device.kind], DTYPES, SPINS)
        if method != "harmonic" or find_spec("ducc0") is not None
    ]
    if device.kind == "cuda":
        found += [partial(_map, device, "direct", *MOVED, dtype, 0, copied=True) for dtype in DTYPES]
    return found


def _map(
    device: Device, method: Any, nside: int, width: float, dtype: Literal["float32", "float64"], spin: Literal[0, 2],
    copied: bool = False,
) -> tuple[dict[str, float], float]:  # fmt: skip
    """Time one map; on a GPU the map is in its memory already, unless it is ``copied``."""
    one = _noise((2, 12 * nside**2) if spin else (12 * nside**2,), dtype)
    on_gpu = device.kind == "cuda" and not copied
    with current(device):
        if on_gpu:
            import cupy

            one = cupy.asarray(one)
        options = {"method": method, "dtype": dtype, "spin": spin, "device": device}
        with ConvolvePlan(Gaussian(fwhm=np.radians(width / 60)), Healpix(nside), **options) as plan:
            work = plan.describe()["work"]
            if on_gpu:
                del work[COPIED]

            def once() -> None:
                plan.execute(one)
                if on_gpu:
                    cupy.cuda.get_current_stream().synchronize()

            return work, rates.timed(device, once)


def _files(device: Device, dtype: str) -> dict[str, float]:
    """Rates of the work other than the convolution: reading and writing files, and the steps of `smooth_maps`."""
    nside, kernel = FILE[0], Gaussian(fwhm=np.radians(FILE[1] / 60))
    sky = read_maps(fits_of(_noise((1, 12 * nside**2), dtype)))
    options: dict[str, Any] = {"device": device, "method": "direct"}

    def convolve() -> None:
        with ConvolvePlan(kernel, Healpix(nside), dtype=sky.maps.dtype, **options) as plan:
            plan.execute(sky.maps)

    alone = rates.timed(device, convolve)
    whole = rates.timed(device, partial(smooth_maps, sky, kernel=kernel, **options))
    made = fits_bytes(sky)
    return {
        f"{rates.ALONE}pixels {dtype}": max(0.0, whole - alone) / sky.maps.size,
        f"{rates.ALONE}written {dtype}": rates.timed(device, partial(fits_bytes, sky)) / sky.maps.size,
        f"{rates.ALONE}read {dtype}": rates.timed(device, partial(read_maps, made)) / sky.maps.size,
    }


def _noise(shape: tuple[int, ...], dtype: str) -> Any:
    return np.resize(_numbers().astype(dtype), shape)


@functools.cache
def _numbers() -> Any:
    return np.random.default_rng(1).standard_normal(NOISE)


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
        Whether maps are smoothed in one pass by sums over pixels; other methods are not predicted.
    read : float
        Processor seconds that reading took.
    maps : int
        Number of such files.
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
    size, moved, methods, setup, threads, device = 0, 0, [], 0.0, 1, ""
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
    times = rates.predicted("sphere", where, work, threads)  # pyrefly: ignore[unbound-name]  # there is a spin
    for name, seconds in times.items():
        if seconds is not None:
            times[name] = seconds + (setup + read * maps)
    return {
        "method": ", ".join(dict.fromkeys(methods)), "device": device, "bytes": size, "moved": moved, **times,
        "work": work, "missing": rates.missing("sphere", where, work), "threads": threads,
    }  # fmt: skip
