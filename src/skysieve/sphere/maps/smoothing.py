"""`smoothing`: the arguments and meaning of ``healpy.smoothing``, and more."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import array_module, as_array, is_device_array
from skysieve.core.checks import flag, one_of, real_dtype, thread_count, whole
from skysieve.core.device import resolve
from skysieve.core.tasks import usable_cores
from skysieve.sphere.api import ConvolvePlan, host
from skysieve.sphere.arguments import devices_of
from skysieve.sphere.contract import METHODS
from skysieve.sphere.grids.grid import Healpix
from skysieve.sphere.grids.healpix import UNSEEN, check_nside, npix2nside, reorder
from skysieve.sphere.grids.pixel_weights import find_file, full_map, read_weights
from skysieve.sphere.kernels.base import FWHM, Gaussian, Kernel, Window, check_eps

from .positive import check_positive, lift_to_positive
from .resample import kept, resampled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.device import Device

__all__ = ["smoothing"]

QUADRATURES = ("band", "ring", "none", "pixel", "healpy")
MASKED = ("zero", "normalize")
FLUX = ("none", "conserve")
ROW = 1024
"""Pixels of a row of the tables that healpy writes."""
ROOM = 12
"""So many times the maps' bytes must be free on a GPU for all of the work to be done there."""
MOST_OWN = 0.3
"""Part of a kernel in the pixel at its centre above which its sum over pixels of 1 may differ from 1 by 0.01."""
LEAST_MEAN = 1e-3
"""Integral of a kernel over that of its modulus below which neither flux nor mean can be restored."""


def smoothing(
    map_in: Any,
    fwhm: Any = 0.0,
    sigma: Any = None,
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
    method: str = "auto",
    eps: float = 1e-6,
    quadrature: str | None = None,
    masked: str = "zero",
    flux: str = "none",
    dtype: Any = None,
    device: Any = "auto",
    memory: str | float | None = None,
    threads: int | None = None,
    nside_out: int | None = None,
    positive: bool = False,
) -> Any:
    """Smooth HEALPix maps with a radial kernel.

    The arguments up to ``nest`` are those of ``healpy.smoothing``.  Without ``iter``, ``lmax``, ``mmax`` and weights,
    the kernel is applied as a sum over pixels: faster, without ringing, and different from healpy by the errors of both
    quadratures and by the cut at healpy's lmax.  With any of them, or
    ``quadrature="healpy"``, harmonic transforms (by ducc0, an extra) give healpy's numbers.

    Parameters
    ----------
    map_in : array_like, shape (npix,), (n, npix) or (..., n, npix)
        Maps; n is 1 or 3 (I, Q, U) with ``pol``.  A map may also come as the rows of 1024 pixels of healpy's FITS
        files, of shape (npix / 1024, 1024).  Bad pixels are UNSEEN (-1.6375e30, in float32 too), NaN or infinite,
        or those of a masked array.
    fwhm, sigma : float or Quantity
        Width of a Gaussian (rad); ``sigma`` is used if both are given.  0 leaves the maps as they are.
    beam_window : array_like, shape (lmax + 1,)
        Window b_l, used instead of a Gaussian for all of T, E and B.
    pol : bool
        Three maps are I, Q and U.  Otherwise every map stands for itself.
    iter : int, optional
        Rounds of improvement of the harmonics; healpy's default is 3, and with pixel weights it makes none.
    lmax, mmax : int, optional
        Highest degree (``3 nside - 1`` by default) and order.
    use_weights : bool
        Ring weights from healpy's tables, found in ``datapath``, in ``$HEALPIX/data`` or beside an installed healpy.
    use_pixel_weights : bool
        Pixel weights from HEALPix's file, found in ``datapath``, in ``$HEALPIX/data`` or beside an installed healpy; an
        error without it (healpy goes on without weights when it cannot download them).
    datapath : path, optional
        Folder of ``weight_ring_n*.fits``, and of ``full_weights/healpix_full_weights_nside_*.fits``.
    verbose : any
        Not used.
    nest : bool
        Pixels are in NESTED order.
    kernel : Kernel, optional
        Any kernel, in the place of ``fwhm``, ``sigma`` and ``beam_window``.
    method : {"auto", "direct", "ring", "harmonic"}
        See `ConvolvePlan`; "harmonic" is healpy's way.
    eps : float
        See `ConvolvePlan`.
    quadrature : {"band", "ring", "none", "pixel", "healpy"}, optional
        How pixels are weighted.  "band" is the most accurate for maps whose harmonics end at degree 3 nside - 1: it
        corrects pixels around the poles, and the mean is multiplied by the kernel's integral.  "ring": ring weights;
        "none": equal weights; "pixel": pixel weights (from HEALPix's file, or computed up to nside 256); "healpy":
        healpy's iterations.  By default "band"; "ring" with ``flux="conserve"``, ``positive``, ``nside_out``, or
        ``masked="normalize"`` where there are bad pixels.
    masked : {"zero", "normalize"}
        Bad pixels count as 0 (healpy), or do not count: the sum is divided by the kernel's sum over good pixels.
    flux : {"none", "conserve"}
        "conserve" keeps the sum over all pixels, to rounding: of I, and with what reaches bad pixels, which is not in
        the result.
    dtype : {"float64", "float32"}, optional
        Of arithmetic and result; by default float32 for float32 maps, else float64.
    device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"} or sequence of GPUs
        See `ConvolvePlan`; healpy's way runs on the CPU.  Maps in GPU memory give results there.
    memory, threads : optional
        See `ConvolvePlan`; healpy's way takes no ``memory``.
    nside_out : int, optional
        nside of the result, which is evaluated at its pixels from the harmonics of the smoothed map (by ducc0, an
        extra).  A pixel is bad whose centre lies in a bad one.
    positive : bool
        No value of the result is below the smallest normal number of its type, so that its logarithm is finite; good
        pixels must not be negative, the kernel must be nowhere negative, and Q and U are refused.  Without it,
        "ring" and "harmonic" leave values down to some 1e-9 of the peak below 0 where the result should be close to 0
        (float32: 1e-6), and the correction of "band" may leave more around the poles.

    Returns
    -------
    numpy.ndarray, numpy.ma.MaskedArray or cupy.ndarray
        Of the shape of ``map_in``, but for the pixels of ``nside_out``; bad pixels keep their values, masked arrays
        their mask (with UNSEEN as fill value).

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit: negative or NaN widths, and kernels so narrow that their sum over pixels would
        be no smoothing, among them.
    DeviceUnavailable
        If the device asked for cannot be used.

    Warns
    -----
    UserWarning
        If the kernel is hardly wider than the pixels, a Gaussian below 1.7 of them (FWHM).

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
    options = {"eps": eps, "device": device, "memory": memory, "threads": threads}
    flag("positive", positive)
    by_healpy = _by_healpy(method, quadrature, iter, lmax, mmax, use_weights, use_pixel_weights)
    one_of("masked", masked, MASKED)
    one_of("flux", flux, FLUX)
    check_eps(eps)
    by_harmonics = by_healpy or nside_out is not None
    if by_harmonics:
        host(device)
    devices = devices_of(device, resolve)
    found = devices[0]
    if is_device_array(map_in) and (by_harmonics or found.kind != "cuda"):
        what = "what is done by harmonics runs" if by_harmonics else f"device={device!r} computes"
        raise TypeError(f"map_in lives on a GPU, and {what} on the CPU: expected host arrays")
    threads = thread_count(threads)
    if by_harmonics and memory is not None:
        raise ValueError(f"memory={memory!r} does not go with iter, lmax, mmax, weights, nside_out or harmonics")
    chosen = _kernel(kernel, fwhm, sigma, beam_window, zero=by_harmonics)
    if positive:
        check_positive(chosen, by_harmonics, quadrature)
    # several GPUs share what lies on the host
    given = None if by_harmonics or (len(devices) > 1 and not is_device_array(map_in)) else _to_device(map_in, found)
    maps, good, bad_values, mask = _read(map_in if given is None else given, dtype)
    npix = maps.shape[-1]
    nside = check_nside(npix2nside(npix), nest)
    polarised = bool(pol) and maps.ndim > 1 and maps.shape[-2] == 3
    if pol and maps.ndim > 1 and maps.shape[-2] not in (1, 3):
        raise ValueError(f"map_in holds {maps.shape[-2]} maps: expected 1 or 3 (I, Q, U), or pol=False")
    if positive and polarised:
        raise ValueError("positive=True: Q and U are of either sign, expected maps of I alone (or pol=False)")
    if positive and bool((maps < 0).any()):
        raise ValueError(f"positive=True: map_in holds {float(maps.min())!r}, expected no value below 0")
    if nside_out is not None:
        nside_out = check_nside(nside_out, nest, "nside_out")
        if method in ("direct", "ring") or flux != "none":
            raise ValueError(f"nside_out={nside_out} does not go with method={method!r} and flux={flux!r}")
    on_host = given is None or not is_device_array(map_in)
    rows = np.shape(map_in)[-1] == ROW and nside_out is None  # no map has so many pixels
    if chosen is None:
        out = _restore(maps, good, bad_values, mask, on_host)
        return out.reshape(np.shape(map_in)) if rows else out
    turned = nest and isinstance(maps, np.ndarray)  # a GPU turns them itself
    if turned:
        maps, good = reorder(maps, to="ring"), None if good is None else reorder(good, to="ring")
    if by_healpy:
        if masked != "zero" or flux != "none":
            raise ValueError(
                "masked='normalize' and flux='conserve' do not go with iter, lmax, mmax, weights or harmonics"
            )
        if polarised and lmax is not None and lmax < 2:
            raise ValueError(f"lmax={lmax}: expected at least 2 for I, Q and U")
        run = _Healpy(nside, chosen, iter, lmax, mmax, use_weights, use_pixel_weights, datapath, threads, nside_out)
        out = run(maps, polarised)
    elif nside_out is not None:
        q = "ring" if quadrature is None else quadrature
        out = resampled(maps, good, chosen, nside, nside_out, polarised, masked, q, eps, threads)
    else:
        usual = (masked == "zero" or good is None) and flux == "none" and not positive
        q = ("band" if usual else "ring") if quadrature is None else quadrature
        plain = {"method": method, "quadrature": q, "dtype": maps.dtype, **options}
        grid = Healpix(nside, nest and not turned)
        out = _by_pixels(maps, good, chosen, grid, polarised, masked, flux, positive, plain)
    if turned:
        out, good = reorder(out, to="nest"), None if good is None else reorder(good, to="nest")
    if nside_out is not None:
        if good is not None:
            good, bad_values = kept(good, bad_values, nside, nside_out, nest)
        if mask is not None:
            mask = np.zeros(out.shape, bool) if good is None else ~good
    out = _restore(out, good, bad_values, mask, on_host)
    return out.reshape(np.shape(map_in)) if rows else out


# ------------------------------------------------------------------ arguments


def _by_healpy(
    method: str, quadrature: str | None, iter: Any, lmax: Any, mmax: Any, use_weights: Any, use_pixel_weights: Any
) -> bool:
    one_of("method", method, METHODS)
    if quadrature is not None:
        one_of("quadrature", quadrature, QUADRATURES)
    if use_pixel_weights and use_weights:
        raise ValueError("use_pixel_weights=True does not go with use_weights=True: expected one of them")
    for name, value in (("iter", iter), ("lmax", lmax), ("mmax", mmax)):
        if value is not None:
            whole(name, value, 0)
    named = (("iter", iter), ("lmax", lmax), ("mmax", mmax), ("use_weights", use_weights))
    given = [n for n, v in (*named, ("use_pixel_weights", use_pixel_weights or None)) if v is not None]
    wanted = bool(given) or quadrature == "healpy" or method == "harmonic"
    if wanted and method in ("direct", "ring"):
        raise ValueError(
            f"method={method!r} does not go with {', '.join(given) or 'quadrature'}: which are of harmonics"
        )
    if wanted and quadrature in ("band", "ring", "none", "pixel"):
        what = ", ".join(given) or "method='harmonic'"
        raise ValueError(f"quadrature={quadrature!r} does not go with {what}: that is healpy's way, by harmonics")
    return wanted


def _kernel(kernel: Any, fwhm: Any, sigma: Any, beam_window: Any, zero: bool) -> Kernel | None:
    """The kernel meant; None for a width of 0 (with ``zero``, a window of ones stands for it)."""
    if kernel is not None:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel is {kernel!r}, expected a kernel such as Gaussian(fwhm=0.01)")
        if beam_window is not None or sigma is not None or (np.ndim(fwhm) == 0 and fwhm != 0):
            raise ValueError("kernel: does not go with fwhm, sigma or beam_window; expected one of them")
        return kernel
    if beam_window is not None:
        try:
            return Window(beam_window)
        except (ValueError, TypeError) as error:  # which name the window's own argument
            raise type(error)(f"beam_window{str(error).removeprefix('bl')}") from None
    name, value = ("fwhm", fwhm) if sigma is None else ("sigma", sigma)
    width = value.to_value("rad") if hasattr(value, "to_value") else value
    if not isinstance(width, int | float | np.number | np.ndarray) or np.ndim(width) or not 0 <= width <= math.pi:
        raise ValueError(f"{name}={value!r}: expected an angle of at least 0 and at most pi (rad)")
    if width == 0:
        return Window(np.ones(1 << 17)) if zero else None
    return Gaussian(sigma=float(width) / (FWHM if sigma is None else 1))


def _to_device(map_in: Any, found: Device) -> Any:
    """Plain maps in the memory of the GPU that will smooth them, where there is room; None where not."""
    if is_device_array(map_in):
        return as_array(map_in)
    if found.kind != "cuda" or isinstance(map_in, np.ma.MaskedArray | list | tuple):
        return None
    a = np.asarray(map_in)
    if a.dtype.kind not in "buif" or ROOM * a.size * max(4, a.dtype.itemsize) > found.free_memory:
        return None
    import cupy

    with cupy.cuda.Device(found.index):
        return cupy.asarray(a)


def _read(map_in: Any, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Maps with bad pixels at 0, the good ones (None where all are), what stood there, and the mask given."""
    if isinstance(map_in, list | tuple) and any(isinstance(m, np.ma.MaskedArray) for m in map_in):
        map_in = np.ma.stack([np.ma.asarray(m) for m in map_in])
    mask = np.ma.getmaskarray(map_in) if isinstance(map_in, np.ma.MaskedArray) else None
    xp = array_module(map_in)
    try:
        a = map_in if xp is not np else np.asarray(np.ma.getdata(map_in))
    except ValueError as error:
        raise ValueError(f"map_in: expected maps of one length ({error})") from None
    if a.ndim < 1 or a.dtype.kind not in "buif":
        raise TypeError(f"map_in has dtype {a.dtype} and shape {a.shape}, expected maps of real numbers")
    a, mask = _whole(a), mask if mask is None else _whole(mask)
    npix2nside(a.shape[-1])
    if dtype is None:
        dtype = np.float32 if a.dtype.newbyteorder("=") == np.float32 else np.float64
    real = real_dtype(dtype)
    maps = xp.array(a, real, order="C")
    bad = ~xp.isfinite(maps) | (xp.abs(maps - real.type(UNSEEN)) <= 1e-5 * abs(UNSEEN))
    if mask is not None:
        bad |= mask
    if not bad.any():
        return maps, None, maps[:0], mask
    values = maps.copy()
    maps[bad] = 0
    return maps, ~bad, values, mask


def _whole(a: Any) -> Any:
    """Maps in rows of 1024 pixels, as FITS files of healpy hold them, as maps (..., npix)."""
    in_rows = a.ndim > 1 and a.shape[-1] == ROW and 12 * math.isqrt(a.shape[-2] * ROW // 12) ** 2 == a.shape[-2] * ROW
    return a.reshape(*a.shape[:-2], -1) if in_rows and a.shape[-2] else a


def _restore(out: Any, good: Any, values: Any, mask: Any, on_host: bool) -> Any:
    if good is not None:
        out = array_module(out).where(good, out, values)
    if on_host and not isinstance(out, np.ndarray):
        out = out.get()
    return out if mask is None else np.ma.MaskedArray(out, mask.copy(), fill_value=UNSEEN)  # healpy's


# ------------------------------------------------------------------ by the pixel sum


def _check_width(kernel: Kernel, grid: Healpix, polarised: bool) -> None:
    """Refuse kernels that the pixels do not resolve: no convolution gives a pixel more of itself than its gain."""
    several = [kernel]
    if polarised and isinstance(kernel, Window):
        several += [Window(k) for k in kernel.polarised(kernel.degrees) if k.any()]
    own = max(abs(float(k.profile(0.0))) * math.pi / (3 * grid.nside**2 * k.gain()) for k in several)
    if own > 1:
        raise ValueError(
            f"kernel={kernel!r}: is narrower than the pixels of nside {grid.nside}: its sum over them would multiply "
            f"the maps by {own:.3g} or more; quadrature='healpy' smooths by harmonics"
        )
    if own > MOST_OWN:
        warnings.warn(
            f"kernel={kernel!r}: is hardly wider than the pixels of nside {grid.nside} (a Gaussian's FWHM below 1.7 of "
            "them), so that its sum over them is no longer its integral, by 1 to 25 per cent; "
            "quadrature='healpy' smooths by harmonics",
            stacklevel=4,
        )


def _by_pixels(
    maps: Any, good: Any, kernel: Kernel, grid: Healpix, polarised: bool, masked: str, flux: str, positive: bool,
    options: dict[str, Any],
) -> Any:  # fmt: skip
    normalize = masked == "normalize" and good is not None
    if normalize and flux == "conserve":
        raise ValueError("masked='normalize' does not go with flux='conserve': a sum over part of the sky is not kept")
    _check_width(kernel, grid, polarised)
    scalar = (..., slice(0, 1), slice(None)) if polarised else (...,)
    xp = array_module(maps)
    out = xp.empty_like(maps)
    with ConvolvePlan(kernel, grid, **options) as plan:
        x = maps[scalar]
        lift: Any = 0.0
        if (
            normalize and not positive
        ):  # constants are kept: a large mean would only cost digits, and 0 in bad pixels is no part of it
            ok = good[scalar]
            lift = x.sum(axis=-1, keepdims=True, dtype=np.float64) / xp.maximum(ok.sum(axis=-1, keepdims=True), 1)
            x = xp.where(ok, x - lift, 0).astype(maps.dtype)
        if flux == "conserve":
            column = plan.adjoint(xp.ones(plan.npix))
            if column.min() < LEAST_MEAN * xp.abs(column).max():
                raise ValueError("flux='conserve': the kernel's integral is too close to zero for it")
            x = x / column
        out[scalar] = plan(x)
        if polarised:
            with ConvolvePlan(kernel, grid, spin=2, **options) as tensor:
                out[..., 1:, :] = tensor(maps[..., 1:, :])
        if normalize and good is not None:
            share = plan(good)
            if (share[good] < LEAST_MEAN * share.max()).any():
                raise ValueError("masked='normalize': the kernel's sum over good pixels is too close to zero somewhere")
            out = xp.where(good, out / xp.where(good, share, 1), out)
            out[scalar] += lift
        if positive:
            lift_to_positive(out, maps, flux == "conserve")
    return out


# ------------------------------------------------------------------ as healpy does it


class _Healpy:
    """Harmonic transforms with healpy's iterations, in float64."""

    def __init__(
        self, nside: int, kernel: Kernel, iter: int | None, lmax: int | None, mmax: int | None, use_weights: Any,
        use_pixel_weights: bool, datapath: Any, threads: int | None, nside_out: int | None,
    ) -> None:  # fmt: skip
        self.lmax = 3 * nside - 1 if lmax is None else int(lmax)
        if self.lmax > 4 * nside:
            raise ValueError(f"lmax={lmax}: expected at most 4 nside = {4 * nside}")
        self.mmax = self.lmax if mmax is None else int(mmax)
        if self.mmax > self.lmax:
            raise ValueError(f"mmax={mmax}: expected at most lmax = {self.lmax}")
        # with pixel weights healpy does not iterate, whatever iter says
        self.rounds = 0 if use_pixel_weights else 3 if iter is None else int(iter)
        table = Healpix(nside).table("none")
        self.weight = table.weight
        if use_weights:
            self.weight = table.weight * _ring_weights(nside, datapath)
        self.factors = None
        if use_pixel_weights:
            self.factors = full_map(read_weights(find_file(nside, datapath), nside), nside)
        from skysieve.sphere.cpu.harmonic import Transforms, pair

        threads = threads or usable_cores()
        self._transforms = self._last = Transforms(table, self.lmax, self.mmax, threads)
        if nside_out is not None:
            self._last = Transforms(Healpix(nside_out).table("none"), self.lmax, self.mmax, threads)
        self.windows = (kernel.window(self.lmax), *pair(kernel, self.lmax))

    def __call__(self, maps: NDArray[Any], polarised: bool) -> NDArray[Any]:
        flat = maps.reshape(-1, 3 if polarised else 1, maps.shape[-1])
        out = np.empty((*flat.shape[:2], self._last.npix), maps.dtype)
        for x, y in zip(flat.astype(np.float64), out, strict=True):
            if self.factors is not None:
                x *= self.factors
            y[:1] = self._transforms.smooth(x[:1], self.weight, self.windows[:1], 0, self.rounds, self._last)
            if polarised:
                y[1:] = self._transforms.smooth(x[1:], self.weight, self.windows[1:], 2, self.rounds, self._last)
        return out.reshape(*maps.shape[:-1], self._last.npix)


def _ring_weights(nside: int, datapath: Any) -> NDArray[np.float64]:
    """healpy's table of ring weights, one a ring."""
    from importlib.util import find_spec

    from astropy.io import fits

    folders = [] if datapath is None else [Path(datapath)]
    if datapath is None and "HEALPIX" in os.environ:
        folders.append(Path(os.environ["HEALPIX"]) / "data")
    healpy = find_spec("healpy") if datapath is None else None
    if healpy is not None and healpy.origin is not None:
        folders.append(Path(healpy.origin).parent / "data")
    name = f"weight_ring_n{nside:05d}.fits"
    for folder in folders:
        if (folder / name).is_file():
            with fits.open(folder / name) as hdus:
                north = 1 + np.asarray(hdus[1].data.field(0), np.float64).ravel()[: 2 * nside]
            return np.concatenate([north, north[-2::-1]])
    places = ", ".join(map(str, folders)) or "datapath, $HEALPIX/data or an installed healpy"
    raise ValueError(f"use_weights=True: {name} was not found in {places}; quadrature='ring' needs no file")
