"""`smoothing`, a replacement of ``healpy.smoothing`` with further arguments."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.arrays import array_module, as_array, is_device_array
from skysieve.core.checks import flag, one_of, real_dtype, thread_count, whole
from skysieve.core.device import for_size, resolve
from skysieve.core.engine_cache import ENGINES
from skysieve.core.progress import Progress, reporting
from skysieve.sphere.api import OFFSET, ConservingPlan, ConvolvePlan, SmoothingPlan, borrowed_plan, host, key_of
from skysieve.sphere.arguments import devices_of
from skysieve.sphere.contract import METHODS, Method, RealType, Where
from skysieve.sphere.grids.grid import QUADRATURES as RULES
from skysieve.sphere.grids.grid import Healpix, Quadrature
from skysieve.sphere.grids.healpix import UNSEEN, check_nside, npix2nside, reorder
from skysieve.sphere.kernels.base import Kernel, check_eps, read_angle
from skysieve.sphere.kernels.shapes import Gaussian, Window

from .fits_cards import stokes
from .harmonics import HealpySmoothing, at_other_pixels, resampled
from .io import ROW, SkyMaps, read_maps

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from skysieve.core.device import Device
    from skysieve.sphere.kernels.base import Angle

__all__ = ["FLUX", "MASKED", "QUADRATURES", "smooth_maps", "smoothing"]

SmoothingQuadrature = Literal["band", "ring", "none", "pixel", "healpy"]
QUADRATURES: dict[str, str] = {name: rule.help for name, rule in RULES.items()} | {
    "healpy": "harmonic transforms with healpy's iterations"
}
"""The quadratures of `smoothing`, with a description of each."""
Masked = Literal["zero", "normalize"]
MASKED: dict[str, str] = {
    "zero": "bad pixels count as 0",
    "normalize": "bad pixels are left out, and the sum is divided by the kernel's sum over good pixels",
}
"""Treatments of bad pixels."""
Flux = Literal["none", "conserve"]
FLUX: dict[str, str] = {
    "none": "nothing; the result is the plain sum",
    "conserve": "the sum over all pixels stays the same",
}
"""Rules for the sum over all pixels."""
SMALL_PIXELS = 12 * 16**2 + 1
"""If all maps together have fewer pixels, "auto" smooths maps in host memory on the CPU.  At nside 16 two cores take
0.65 ms; an H200 takes 0.8 ms up to nside 64, nearly all for launches and copies."""
DEVICE_COPIES = 12
"""Free memory of a GPU that is needed to smooth maps in host memory, as a multiple of the size of the maps."""
MOST_IN_CENTRE = 0.3
"""Fraction of a kernel in its central pixel above which a smoothed constant may be wrong by more than 0.01."""
MOST_ITERATIONS = 1000
"""Largest `iter`; after a few iterations nothing changes."""
MOST_KNOWN = 64
"""Number of kernels in the cache of `_in_centre`."""
LEAST_MEAN = 1e-3
"""Ratio of the integral of a kernel to that of its modulus below which neither flux nor mean can be restored."""


def smoothing(
    map_in: Any,
    fwhm: Angle = 0.0,
    sigma: Angle | None = None,
    beam_window: Any = None,
    pol: bool = True,
    iter: int | None = None,
    lmax: int | None = None,
    mmax: int | None = None,
    use_weights: bool | None = None,
    use_pixel_weights: bool = False,
    datapath: Any = None,
    verbose: Any = None,
    nest: bool = False,
    *,
    kernel: Kernel | None = None,
    method: Method = "auto",
    eps: float = 1e-6,
    quadrature: SmoothingQuadrature | None = None,
    masked: Masked = "zero",
    flux: Flux = "none",
    dtype: RealType | None = None,
    device: Where = "auto",
    memory: str | float | None = None,
    threads: int | None = None,
    nside_out: int | None = None,
    positive: bool = False,
    progress: bool | Progress = False,
) -> NDArray[Any]:
    """Smooth HEALPix maps with a radial kernel.

    The arguments up to ``nest`` are the same as in ``healpy.smoothing``.  By default the kernel is applied as a sum
    over pixels.  This is faster than harmonic transforms and causes no ringing; the result differs from healpy's by the
    errors of both quadratures and by the truncation at healpy's lmax.  With ``iter``, ``lmax``, ``mmax``, weights, or
    ``quadrature="healpy"``, harmonic transforms (by ducc0, an extra) reproduce healpy's result.

    Parameters
    ----------
    map_in : array_like, shape (npix,), (n, npix) or (..., n, npix), str or path
        Maps; n is 1 or 3 (I, Q, U) with ``pol``.  A map may also come as the rows of 1024 pixels of healpy's FITS
        files, of shape (npix / 1024, 1024).  Bad pixels are UNSEEN (-1.6375e30, in float32 too), NaN or infinite,
        or the masked pixels of a masked array.  A path is the name of a FITS file, whose maps are smoothed (all columns
        except numbers of observations, variances, weights, errors, flags and coordinates) and returned in the order
        given by ``nest``.  A Quantity gives a Quantity of the same unit, a list of them one of the first one's unit.
    fwhm, sigma : float, str or Quantity
        Width of a Gaussian (rad, or with its unit, such as ``"1 deg"``); ``sigma`` is used if both are given.  0 leaves
        the maps as they are.
    beam_window : array_like, shape (lmax + 1,), str or path
        Window b_l, used instead of a Gaussian for T, E and B.  A path is the name of a file with one window, or with
        windows of T, E and B; see `Window.from_file`.
    pol : bool
        Whether three maps are I, Q and U.  If False, each map is smoothed as a scalar map.
    iter : int, optional
        Number of iterations that improve the harmonics, 3 by default in healpy.  With pixel weights there are none.
    lmax, mmax : int, optional
        Highest degree (``3 nside - 1`` by default) and order.
    use_weights : bool
        Ring weights from healpy's tables, found in ``datapath``, in ``$HEALPIX/data`` or in an installed healpy.
    use_pixel_weights : bool
        Pixel weights from HEALPix's file, found in ``datapath``, in ``$HEALPIX/data`` or beside an installed
        healpy.  It is an error if there is no such file (healpy then downloads it, or continues without weights).
    datapath : path, optional
        Folder with ``weight_ring_n*.fits`` and ``full_weights/healpix_full_weights_nside_*.fits``.
    verbose : any
        Not used.
    nest : bool
        Whether pixels are in NESTED order.
    kernel : Kernel, optional
        Any kernel, instead of ``fwhm``, ``sigma`` and ``beam_window``.
    method : {"auto", "direct", "ring", "harmonic"}
        See `ConvolvePlan`; "harmonic" is healpy's way.
    eps : float
        See `ConvolvePlan`.
    quadrature : {"band", "ring", "none", "pixel", "healpy"}, optional
        How pixels are weighted.  "band" is the most accurate for maps whose harmonics end at degree 3 nside - 1: it
        corrects pixels around the poles, and the mean is multiplied by the kernel's integral.  "ring": ring weights;
        "none": equal weights; "pixel": pixel weights (from HEALPix's file, or computed up to nside 256); "healpy":
        healpy's iterations.  The default is "band", but "ring" with ``flux="conserve"``, ``positive``, ``nside_out``,
        or with ``masked="normalize"`` if there are bad pixels.
    masked : {"zero", "normalize"}
        "zero": bad pixels count as 0, as in healpy.  "normalize": bad pixels are left out, and the sum is divided by
        the kernel's sum over good pixels.
    flux : {"none", "conserve"}
        "conserve" preserves the sum of I over all pixels up to rounding.  The sum includes flux that is smoothed into
        bad pixels, although these pixels keep their values in the result.
    dtype : {"float64", "float32"}, optional
        Type of arithmetic and result; by default float32 for float32 maps, else float64.
    device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"} or sequence of GPUs
        See `ConvolvePlan`; healpy's way runs on the CPU, and so does "auto" for maps of up to 3,072 pixels in all
        (one of nside 16).  Maps in GPU memory give results in GPU memory.
    memory, threads : optional
        See `ConvolvePlan`; healpy's way takes no ``memory``.
    nside_out : int, optional
        nside of the result, which is evaluated at its pixels from the harmonics of the smoothed map (by ducc0, an
        extra).  A pixel is bad if its centre lies in a bad pixel.
    positive : bool
        Raise values of the result to at least the smallest normal number of its type, so that logarithms are finite.
        Good pixels and the kernel must not be negative, and Q and U are refused.  If False, "ring" and "harmonic" may
        give negative values of about 1e-9 of the peak (1e-6 in float32) where the result should be close to 0, and the
        correction of "band" may give larger ones around the poles.
    progress : bool or callable
        True draws a bar of the maps; a callable gets ``(done, total)``.

    Returns
    -------
    numpy.ndarray, numpy.ma.MaskedArray, Quantity, astropy's Masked or cupy.ndarray
        The smoothed maps, with the shape of ``map_in`` (and the number of pixels of ``nside_out``).  Bad pixels keep
        their values, and masked arrays keep their mask (with UNSEEN as fill value).  For a file the shape is (npix,)
        for one map and (n, npix) for several.

    Raises
    ------
    ValueError, TypeError
        An argument is invalid, such as a negative or NaN width, or a kernel too narrow for a sum over pixels.
    DeviceUnavailable
        The requested device cannot be used.

    Warns
    -----
    UserWarning
        The kernel is hardly wider than a pixel, such as a Gaussian with a FWHM below 1.7 pixels.

    Examples
    --------
    >>> import numpy as np
    >>> import skysieve
    >>> m = np.zeros(12 * 32**2)
    >>> m[5000] = 1
    >>> smooth = skysieve.smoothing(m, fwhm=np.radians(5), flux="conserve")
    >>> print(round(smooth.sum(), 12), smooth.argmax())
    1.0 5000
    """
    if isinstance(map_in, str | os.PathLike):
        given = dict(locals())
        return _smooth_file(given.pop("map_in"), given.pop("nest"), bool(given.pop("pol")), given)
    if isinstance(map_in, list | tuple) and any(hasattr(m, "to_value") for m in map_in):
        map_in = _one_quantity(map_in)
    if isinstance(map_in, np.ndarray) and hasattr(map_in, "unmasked"):
        given = dict(locals())
        return _smooth_masked(given.pop("map_in"), given)
    if isinstance(map_in, np.ndarray) and hasattr(map_in, "to_value"):
        given = dict(locals())
        quantity = given.pop("map_in")
        return smoothing(quantity.value, **given) << quantity.unit
    options: dict[str, Any] = {"eps": eps, "device": device, "memory": memory, "threads": threads}
    flag("positive", positive)
    by_healpy = _by_healpy(method, quadrature, iter, lmax, mmax, use_weights, use_pixel_weights)
    one_of("masked", masked, MASKED)
    one_of("flux", flux, FLUX)
    check_eps(eps)
    by_harmonics = by_healpy or nside_out is not None
    if by_harmonics:
        host(device)
    if isinstance(map_in, np.ndarray):
        device = options["device"] = for_size(device, map_in.size, SMALL_PIXELS)
    devices = devices_of(device, resolve)
    found = devices[0]
    if is_device_array(map_in) and (by_harmonics or found.kind != "cuda"):
        what = "harmonic transforms run" if by_harmonics else f"device={device!r} computes"
        raise TypeError(f"map_in is on a GPU, but {what} on the CPU: expected host arrays")
    threads = thread_count(threads)
    if by_harmonics and memory is not None:
        raise ValueError(f"memory={memory!r} cannot be combined with iter, lmax, mmax, weights, nside_out or harmonics")
    chosen = _kernel(kernel, fwhm, sigma, beam_window, zero=by_harmonics)
    if positive:
        _check_positive(chosen, by_harmonics, quadrature)
    simple = masked == "zero" and flux == "none" and not positive and not by_harmonics
    if chosen is not None and simple and not isinstance(map_in, np.ma.MaskedArray | list | tuple):
        options |= {"method": method, "quadrature": "band" if quadrature is None else _pixel_sum(quadrature)}
        with reporting(progress, "smoothing maps") as report:
            return _in_one_pass(as_array(map_in), chosen, bool(pol), nest, dtype, options, report)
    # several GPUs share maps in host memory
    on_device = (
        None if by_harmonics or (len(devices) > 1 and not is_device_array(map_in)) else _to_device(map_in, found)
    )
    maps, good, bad_values, mask = _read(map_in if on_device is None else on_device, dtype)
    npix = maps.shape[-1]
    nside = check_nside(npix2nside(npix), nest)
    polarised = _polarised(maps, pol)
    if positive and polarised:
        raise ValueError("positive=True: Q and U are of either sign, expected maps of I alone (or pol=False)")
    if positive and bool((maps < 0).any()):
        raise ValueError(f"positive=True: map_in holds {float(maps.min())!r}, expected no value below 0")
    if nside_out is not None:
        nside_out = check_nside(nside_out, nest, "nside_out")
        if method in ("direct", "ring") or flux != "none":
            raise ValueError(f"nside_out={nside_out} cannot be combined with method={method!r} and flux={flux!r}")
    on_host = on_device is None or not is_device_array(map_in)
    rows = np.shape(map_in)[-1] == ROW and nside_out is None  # no map has so many pixels
    if chosen is None:
        out = _restore(maps, good, bad_values, mask, on_host)
        return out.reshape(np.shape(map_in)) if rows else out
    turned = nest and isinstance(maps, np.ndarray)  # a GPU reorders maps itself
    if turned:
        maps, good = reorder(maps, to="ring"), None if good is None else reorder(good, to="ring")
    with reporting(progress, "smoothing maps") as report:
        if by_healpy:
            if masked != "zero" or flux != "none":
                raise ValueError(
                    "masked='normalize' and flux='conserve' cannot be combined with iter, lmax, mmax, weights or "
                    "harmonics"
                )
            if polarised and lmax is not None and lmax < 2:
                raise ValueError(f"lmax={lmax}: expected at least 2 for I, Q and U")
            run = HealpySmoothing(
                nside, chosen, iter, lmax, mmax, use_weights, use_pixel_weights, datapath, threads, nside_out
            )
            out = run(maps, polarised, report)
        elif nside_out is not None:
            weights = "ring" if quadrature is None else _pixel_sum(quadrature)
            out = resampled(
                maps, good, chosen, nside, nside_out, polarised, masked, weights, eps, threads, report
            )  # fmt: skip
        else:
            plain = (masked == "zero" or good is None) and flux == "none" and not positive
            weights = ("band" if plain else "ring") if quadrature is None else _pixel_sum(quadrature)
            options |= {"method": method, "quadrature": weights, "dtype": maps.dtype}
            grid = Healpix(nside, nest and not turned)
            out = _by_pixels(maps, good, chosen, grid, polarised, masked, flux, positive, options, report)
    if turned:
        out, good = reorder(out, to="nest"), None if good is None else reorder(good, to="nest")
    if nside_out is not None:
        if good is not None:
            good, bad_values = at_other_pixels(good, bad_values, nside, nside_out, nest)
        if mask is not None:
            mask = np.zeros(out.shape, bool) if good is None else ~good
    out = _restore(out, good, bad_values, mask, on_host)
    return out.reshape(np.shape(map_in)) if rows else out


# ------------------------------------------------------------------ files


def smooth_maps(sky: SkyMaps, pol: bool = True, **options: Any) -> SkyMaps:
    """Smooth the maps of a file; the result keeps its order, units and cards.

    Stokes U in the IAU's convention has the opposite sign of HEALPix's: the sign is changed before and after.

    Parameters
    ----------
    sky : SkyMaps
    pol : bool
        Smooth I, Q and U together, and refuse Q and U alone.
    **options
        See `smoothing`.

    Raises
    ------
    ValueError
        The maps include Q or U but are not I, Q and U: Q or U alone cannot be smoothed.
    """
    polarised = pol and sky.polarised
    stray = [n for n in sky.names if stokes(n) in ("Q", "U")]
    if pol and stray and not polarised:
        raise ValueError(
            f"columns {', '.join(sky.names)}: {' and '.join(stray)} can be smoothed together with I alone; "
            "expected I, Q and U (--fields I,Q,U), or none of Q and U (--fields I)"
        )
    bad, maps = sky.bad_pixels, sky.maps
    order = [0, 1, 2]
    if polarised:
        order = sorted(order, key=lambda k: "IQU".index(stokes(sky.names[k]) or ""))
        (_, q, u), (_, of_q, of_u) = ([given[k] for k in order] for given in (sky.names, sky.units))
        if of_q != of_u:
            raise ValueError(
                f"{q} is in {of_q!r}, {u} in {of_u!r}: expected one unit, since each goes into both results"
            )
        if order != [0, 1, 2]:
            maps, bad = maps[order], None if bad is None else bad[order]
        elif sky.iau:
            maps = maps.copy()
        if sky.iau:
            _change_sign(maps[2])
    if bad is not None and bad.any():
        maps = np.ma.MaskedArray(maps, bad)
    out = np.asarray(smoothing(maps, pol=polarised, nest=sky.nest, **options))
    if polarised and sky.iau:
        _change_sign(out[2])
    if order != [0, 1, 2]:
        out = out[np.argsort(order)]
    pixels, unchanged = sky.pixels, sky.unchanged
    if out.shape[-1] != sky.maps.shape[-1]:
        unchanged = ()  # these columns have the pixels of the old nside
    if pixels is not None and out.shape[-1] != sky.maps.shape[-1]:
        pixels = np.flatnonzero((np.abs(out - UNSEEN) > 1e25).any(axis=0)).astype(np.int64)
    return replace(sky, maps=out, pixels=pixels, unchanged=unchanged)


def _change_sign(u: NDArray[Any]) -> None:
    """Change the sign of U in place, except where it is UNSEEN."""
    seen = np.abs(u - UNSEEN) > 1e25
    u[seen] *= -1


def _smooth_file(path: str | os.PathLike[str], nest: bool, pol: bool, options: dict[str, Any]) -> NDArray[Any]:
    """The smoothed maps of a FITS file in NESTED or RING order."""
    found = smooth_maps(read_maps(path, auxiliary=False), pol, **options)
    maps = found.ordered(nest)
    return maps[0] if len(maps) == 1 else maps


# ------------------------------------------------------------------ arguments


def _one_quantity(maps: Any) -> Any:
    """A Quantity of maps of which at least one is a Quantity, in the unit of the first."""
    from astropy.units import Quantity

    try:
        return Quantity(maps)
    except (TypeError, ValueError) as error:
        raise ValueError(f"map_in: expected maps of one kind of unit ({error})") from None


def _smooth_masked(given: Any, options: dict[str, Any]) -> Any:
    """Smooth astropy's Masked arrays and Quantities, such as a column of a QTable."""
    from astropy.utils.masked import Masked

    plain = given.unmasked
    out: Any = smoothing(np.ma.MaskedArray(getattr(plain, "value", plain), given.mask), **options)
    found = Masked(out.data, mask=out.mask)
    return found << plain.unit if hasattr(plain, "unit") else found


def _pixel_sum(quadrature: SmoothingQuadrature) -> Quadrature:
    """A quadrature of the sum over pixels."""
    assert quadrature != "healpy"
    return quadrature


def _by_healpy(
    method: str, quadrature: str | None, iter: Any, lmax: Any, mmax: Any, use_weights: Any, use_pixel_weights: Any
) -> bool:
    one_of("method", method, METHODS)
    if quadrature is not None:
        one_of("quadrature", quadrature, QUADRATURES)
    if use_pixel_weights and use_weights:
        raise ValueError("use_pixel_weights=True cannot be combined with use_weights=True: expected one of them")
    for name, value, most in (("iter", iter, MOST_ITERATIONS), ("lmax", lmax, None), ("mmax", mmax, None)):
        if value is not None:
            whole(name, value, 0, most)
    named = (("iter", iter), ("lmax", lmax), ("mmax", mmax), ("use_weights", use_weights))
    given = [n for n, v in (*named, ("use_pixel_weights", use_pixel_weights or None)) if v is not None]
    wanted = bool(given) or quadrature == "healpy" or method == "harmonic"
    if wanted and method in ("direct", "ring"):
        raise ValueError(
            f"method={method!r} cannot be combined with {', '.join(given) or 'quadrature'}, which asks for harmonic "
            "transforms"
        )
    if wanted and quadrature in RULES:
        what = ", ".join(given) or "method='harmonic'"
        raise ValueError(
            f"quadrature={quadrature!r} cannot be combined with {what}: healpy does this by harmonic transforms"
        )
    return wanted


def _kernel(kernel: Any, fwhm: Any, sigma: Any, beam_window: Any, zero: bool) -> Kernel | None:
    """The kernel of the arguments; for a width of 0 it is None, or a window of ones with ``zero``."""
    if kernel is not None:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel is {kernel!r}, expected a kernel such as Gaussian(fwhm=0.01)")
        if beam_window is not None or sigma is not None or (np.ndim(fwhm) == 0 and fwhm != 0):
            raise ValueError("kernel: cannot be combined with fwhm, sigma or beam_window; expected one of them")
        return kernel
    if isinstance(beam_window, str | os.PathLike):
        return Window.from_file(beam_window)
    if beam_window is not None:
        try:
            return Window(beam_window)
        except (ValueError, TypeError) as error:  # the message names an argument of `Window`
            raise type(error)(f"beam_window{str(error).removeprefix('bl')}") from None
    if sigma is None:
        width = read_angle(fwhm, "fwhm", zero=True)
        found = None if width == 0 else Gaussian(fwhm=width)
    else:
        width = read_angle(sigma, "sigma", zero=True)
        found = None if width == 0 else Gaussian(sigma=width)
    return Window(np.ones(1 << 17)) if found is None and zero else found


def _to_device(map_in: Any, found: Device) -> Any:
    """Copy the maps to the GPU that will smooth them; None if they stay in host memory."""
    if is_device_array(map_in):
        return as_array(map_in)
    if found.kind != "cuda" or isinstance(map_in, np.ma.MaskedArray | list | tuple):
        return None
    a = np.asarray(map_in)
    if a.dtype.kind not in "buif" or DEVICE_COPIES * a.size * max(4, a.dtype.itemsize) > found.free_memory:
        return None
    import cupy

    with cupy.cuda.Device(found.index):
        return cupy.asarray(a)


def _read(map_in: Any, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Maps with bad pixels set to 0, the good pixels (None if all are), the original maps, and the given mask."""
    if isinstance(map_in, list | tuple) and any(isinstance(m, np.ma.MaskedArray) for m in map_in):
        map_in = np.ma.stack([np.ma.asarray(m) for m in map_in])
    mask = np.ma.getmaskarray(map_in) if isinstance(map_in, np.ma.MaskedArray) else None
    xp = array_module(map_in)
    try:
        a = map_in if xp is not np else np.asarray(np.ma.getdata(map_in))
    except ValueError as error:
        raise ValueError(f"map_in: expected maps of one length ({error})") from None
    a, mask = _checked(a), mask if mask is None else _whole(mask)
    real = _real(a, dtype)
    maps = xp.array(a, real, order="C")
    bad = ~xp.isfinite(maps) | (xp.abs(maps - real.type(UNSEEN)) <= 1e-5 * abs(UNSEEN))
    if mask is not None:
        bad |= mask
    if not bad.any():
        return maps, None, maps[:0], mask
    values = maps.copy()
    maps[bad] = 0
    return maps, ~bad, values, mask


def _checked(a: Any) -> Any:
    """Maps (..., npix) of real numbers."""
    if a.ndim < 1 or a.dtype.kind not in "buif":
        raise TypeError(f"map_in has dtype {a.dtype} and shape {a.shape}, expected maps of real numbers")
    a = _whole(a)
    npix2nside(a.shape[-1])
    return a


def _real(a: Any, dtype: Any) -> np.dtype[Any]:
    """The type of arithmetic and result."""
    if dtype is None:
        dtype = np.float32 if a.dtype.newbyteorder("=") == np.float32 else np.float64
    return real_dtype(dtype)


def _polarised(maps: Any, pol: bool) -> bool:
    """Whether maps (..., npix) are I, Q and U."""
    if pol and maps.ndim > 1 and maps.shape[-2] not in (1, 3):
        raise ValueError(f"map_in holds {maps.shape[-2]} maps: expected 1 or 3 (I, Q, U), or pol=False")
    return bool(pol) and maps.ndim > 1 and maps.shape[-2] == 3


def _whole(a: Any) -> Any:
    """Turn rows of 1024 pixels, as healpy's FITS files hold them, into maps (..., npix)."""
    in_rows = a.ndim > 1 and a.shape[-1] == ROW and 12 * math.isqrt(a.shape[-2] * ROW // 12) ** 2 == a.shape[-2] * ROW
    return a.reshape(*a.shape[:-2], -1) if in_rows and a.shape[-2] else a


def _restore(out: Any, good: Any, values: Any, mask: Any, on_host: bool) -> Any:
    """The result with the values of bad pixels and the mask of the input."""
    if good is not None:
        out = array_module(out).where(good, out, values)
    if on_host and not isinstance(out, np.ndarray):
        out = out.get()
    return out if mask is None else np.ma.MaskedArray(out, mask.copy(), fill_value=UNSEEN)  # healpy's


# ------------------------------------------------------------------ by the pixel sum


def _check_width(kernel: Kernel, grid: Healpix, polarised: bool) -> None:
    """Refuse kernels that the pixels do not resolve: the weight of the central pixel exceeds the kernel's gain."""
    own = _in_centre(kernel, grid, polarised)
    if own > 1:
        raise ValueError(
            f"kernel={kernel!r}: is narrower than the pixels of nside {grid.nside}: its sum over them would multiply "
            f"the maps by {own:.3g} or more; quadrature='healpy' (--quadrature healpy) smooths by harmonics"
        )
    if own > MOST_IN_CENTRE:
        warnings.warn(
            f"kernel={kernel!r}: is hardly wider than the pixels of nside {grid.nside} (a Gaussian's FWHM below 1.7 of "
            "them), so that its sum over them is no longer its integral, by 1 to 35 per cent; "
            "quadrature='healpy' (--quadrature healpy) smooths by harmonics",
            stacklevel=4,
        )


_KNOWN: dict[Hashable, float] = {}
"""Cache of `_in_centre`, which takes a tenth of the time of a small map on a GPU."""


def _in_centre(kernel: Kernel, grid: Healpix, polarised: bool) -> float:
    """The weight of the central pixel in units of the kernel's gain; results for recent kernels are cached."""
    key = key_of(kernel, grid, {"polarised": polarised})
    own = _KNOWN.get(key)
    if own is None:
        several = [kernel, *(kernel.components() if polarised else ())]
        own = max(abs(float(k.profile(0.0))) * math.pi / (3 * grid.nside**2 * k.gain()) for k in several)
        if key is not None:
            if len(_KNOWN) >= MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = own
    return own


def _in_one_pass(
    given: Any, kernel: Kernel, pol: bool, nest: bool, dtype: Any, options: dict[str, Any], report: Progress | None
) -> Any:
    """Smooth maps whose bad pixels count as 0: the plan handles these pixels, and reads each map once."""
    maps = _checked(given)
    grid = Healpix(npix2nside(maps.shape[-1]), nest)
    polarised = _polarised(maps, pol)
    options = {**options, "dtype": _real(maps, dtype)}
    _check_width(kernel, grid, polarised)

    def compute() -> Any:
        with borrowed_plan(kernel, grid, kind=SmoothingPlan, **options) as plan:
            if not polarised:
                return plan.execute(maps, progress=report or False).reshape(given.shape)
            skies = maps.reshape(-1, 3, plan.npix)
            out = plan.empty(maps, skies.shape)
            total = 2 * len(skies)
            with borrowed_plan(kernel, grid, kind=SmoothingPlan, spin=2, **options) as tensor:
                for b, (x, y) in enumerate(zip(skies, out, strict=True)):
                    plan.execute(x[:1], y[:1], progress=_shifted(report, 2 * b, total))
                    tensor.execute(x[None, 1:], y[None, 1:], progress=_shifted(report, 2 * b + 1, total))
            return out.reshape(given.shape)

    return ENGINES.retried(devices_of(options.get("device", "auto"), resolve)[0], compute)


def _by_pixels(
    maps: Any, good: Any, kernel: Kernel, grid: Healpix, polarised: bool, masked: str, flux: str, positive: bool,
    options: dict[str, Any], report: Progress | None,
) -> Any:  # fmt: skip
    """Smooth maps (..., npix), or (..., 3, npix) of I, Q and U, by the sum over pixels."""
    normalize = masked == "normalize" and good is not None
    if normalize and flux == "conserve":
        raise ValueError(
            "masked='normalize' cannot be combined with flux='conserve': the sum over part of the sky is not conserved"
        )
    _check_width(kernel, grid, polarised)
    scalar = (..., slice(0, 1), slice(None)) if polarised else (...,)
    xp = array_module(maps)
    out = xp.empty_like(maps)
    with borrowed_plan(kernel, grid, ConservingPlan if flux == "conserve" else ConvolvePlan, **options) as plan:
        x = maps[scalar]
        lift: Any = 0.0
        if normalize and not positive:  # constants are preserved: the mean would cost digits in the sums
            ok = good[scalar]
            lift = x.sum(axis=-1, keepdims=True, dtype=np.float64) / xp.maximum(ok.sum(axis=-1, keepdims=True), 1)
            x = xp.where(ok, x - lift, 0).astype(maps.dtype)
        if flux == "conserve":
            column = plan.adjoint(xp.ones(plan.npix))
            if column.min() < LEAST_MEAN * xp.abs(column).max():
                raise ValueError("flux='conserve': the kernel's integral is too close to zero to conserve the flux")
            lift = x.mean(axis=-1, keepdims=True, dtype=np.float64)
            lift = xp.where(xp.abs(lift) > OFFSET * x.std(axis=-1, keepdims=True, dtype=np.float64), lift, 0)
            x = (x - lift) / column  # a constant has the same sum after smoothing: a large one would cost digits
        count = math.prod(x.shape[:-1])
        total = 2 * count if polarised else count
        out[scalar] = plan.execute(x, progress=_shifted(report, 0, total))
        if polarised:
            with borrowed_plan(kernel, grid, spin=2, **options) as tensor:
                out[..., 1:, :] = tensor.execute(maps[..., 1:, :], progress=_shifted(report, count, total))
        if normalize and good is not None:
            share = plan.execute(good)
            if (share[good] < LEAST_MEAN * share.max()).any():
                raise ValueError("masked='normalize': the kernel's sum over good pixels is too close to zero somewhere")
            out = xp.where(good, out / xp.where(good, share, 1), out)
        if normalize or flux == "conserve":
            out[scalar] += lift
        if positive:
            _lift_to_positive(out, maps, flux == "conserve")
    return out


def _shifted(report: Progress | None, before: int, total: int) -> Progress | bool:
    """Progress of one of several plans; ``before`` maps were done by others."""
    return False if report is None else lambda done, _: report(before + done, total)


# ------------------------------------------------------------------ positive results


def _check_positive(kernel: Kernel | None, by_harmonics: bool, quadrature: str | None) -> None:
    """Refuse arguments that lead to negative values far beyond rounding."""
    if by_harmonics:
        raise ValueError(
            "positive=True cannot be combined with iter, lmax, mmax, weights, nside_out or harmonics: truncated "
            "harmonics oscillate below 0; expected the sum over pixels, without these arguments"
        )
    if quadrature is not None and RULES[quadrature].polar:
        raise ValueError(
            f"positive=True: quadrature={quadrature!r} has negative weights, expected 'ring', 'none' or 'pixel'"
        )
    if kernel is not None and not kernel.positive:
        raise ValueError(
            f"positive=True: kernel={kernel!r} is not known to be nowhere negative, expected such a kernel"
        )


def _lift_to_positive(out: Any, maps: Any, conserve: bool) -> None:
    """Raise values below 0, which are errors of the method, to the smallest normal number; maps of zeros stay zeros.

    With ``conserve`` the sum over all pixels does not change.
    """
    xp = array_module(out)
    for line, given in zip(out.reshape(-1, out.shape[-1]), maps.reshape(-1, maps.shape[-1]), strict=True):
        if not bool((given > 0).any()):
            line[...] = 0
            continue
        before = line.sum(dtype=np.float64)
        xp.maximum(line, np.finfo(out.dtype).tiny, out=line)
        if conserve:
            line *= (before / line.sum(dtype=np.float64)).astype(out.dtype)
            xp.maximum(line, np.finfo(out.dtype).tiny, out=line)
