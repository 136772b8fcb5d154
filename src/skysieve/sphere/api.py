"""Convolution of maps with radial kernels: arguments checked, backend chosen, maps brought into its order."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from skysieve.core.arrays import array_module, as_array, is_device_array
from skysieve.core.device import Device, resolve
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.sphere.grids.band_quadrature import finish, mean_of
from skysieve.sphere.grids.grid import QUADRATURES, Grid
from skysieve.sphere.grids.healpix import CHUNK, nest2ring, npix2nside, reorder
from skysieve.sphere.kernels.base import Kernel, Window, check_eps
from skysieve.sphere.kernels.radial import make_radial

from .arguments import (
    check_out,
    devices_of,
    factors_of,
    quiet_eps,
    read_compat,
    read_dtype,
    read_kernels,
    read_mask,
    ring_table_of,
    white_error,
)
from .contract import METHODS, Engine, Spec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from skysieve.sphere.cpu.offset import Ones

__all__ = ["ConvolvePlan"]

Where: TypeAlias = "str | Device | list[str | Device] | tuple[str | Device, ...]"

logger = logging.getLogger("skysieve")

OFFSET = 8.0
"""Mean over standard deviation from which a map's mean is convolved apart, in float64 and with a smaller eps: what is
cut off the kernel is relative to the rms of the result, and a large offset would multiply it."""
_SOME = 1 << 16
"""Pixels that tell mean and deviation."""
_NARROW = 16
"""Pixels along a ring: with supports up to here, all modes of equal rings cost less than a smaller eps."""


def host(device: Where) -> Device:
    """The host, for harmonic transforms: "auto" and "cpu".

    Raises
    ------
    DeviceUnavailable
        For a GPU.
    """
    found = devices_of(device, resolve)[0]
    if found.kind == "cuda":
        if device != "auto":
            raise DeviceUnavailable("harmonic transforms and compat run on the CPU alone", "Use device='cpu'")
        found = resolve("cpu")[0]
    return found


def make_engine(
    spec: Spec, method: str, device: Where, memory: str | float | None, threads: int | None
) -> tuple[Engine, Device]:
    """The backend for a device: the one place where it is chosen."""
    devices = (host(device),) if method == "harmonic" or spec.compat else devices_of(device, resolve)
    found = devices[0]
    if len(devices) > 1:
        from skysieve.sphere.cuda.several import SeveralEngine

        return SeveralEngine(spec, method, devices, memory=memory, threads=threads), found
    if found.kind == "cuda":
        from skysieve.sphere.cuda import engine as cuda

        try:
            return cuda.Engine(spec, method, device=found, memory=memory, threads=threads), found
        except MemoryBudgetError as error:
            if device != "auto" or memory is not None:
                raise
            logger.info("device='auto' takes the CPU: %s", error)
        found = resolve("cpu")[0]
    from skysieve.sphere.cpu import engine as cpu

    return cpu.Engine(spec, method, device=found, memory=memory, threads=threads), found


class ConvolvePlan:
    """Convolution with a radial kernel, set up once for any number of maps.

    Every engine computes the same thing, the pixel sum ``s_p = sum_q K(p . q) w_q r_q`` with the kernel cut where
    ``eps`` allows.

    Use it as a context manager, or call `close`.

    Parameters
    ----------
    kernel : Kernel or sequence of Kernel
        Such as ``Gaussian(fwhm=0.01)``; several share the transforms of the map, and the result has an axis for them.
    grid : Grid
        Such as ``Healpix(2048)``.
    spin : {0, 2}
        2: maps are Q and U, of shape (..., 2, npix).  Different windows of E and B need "harmonic", which "auto" takes.
    rings : slice, optional
        Neighbouring rings that the maps consist of; the whole sphere by default.
    mask : array_like of bool, shape (npix,), optional
        Pixels that count, in the grid's order: the others are taken as 0, and are 0 in the result.
    method : {"auto", "direct", "ring", "harmonic"}
        "direct": the sum over the pixels within the support; "ring": modes of the rings, summed over rings; "harmonic":
        transforms by ducc0, for kernels whose window ends; "auto": what is expected to be the fastest.
    eps : float
        What is dropped of the kernel and of its modes, relative to the rms of a white map's result.  In float64 on
        equal rings (ECP, Gauss-Legendre), "ring" leaves at most 1e-10 of the peak beyond the support: narrow kernels
        keep all modes, wide ones (above 16 pixels) are set up for eps = 2e-11 at most.
    quadrature : {"ring", "none", "pixel", "band"}
        Weights w: ring weights, the pixels' solid angles (with which the sum is self-adjoint), or those times HEALPix's
        pixel weights (see `pixelweights.healpix_pixel_weights`), with which a large mean is not convolved apart.
        "band" is for whole HEALPix maps whose harmonics end at degree 3 nside - 1: solid angles, with corrections
        around the poles and where caps and belt meet (see `polar`); the mean is multiplied by the kernel's integral.
    dtype : {"float64", "float32"}
        Arithmetic and result.
    device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"} or sequence of GPUs
        Maps may live on the host or, with a plan on a GPU, in GPU memory (CuPy); results live where the maps do.
        "auto" takes a GPU where there is one with room; "harmonic" runs on the CPU.  Several GPUs share maps of the
        host: those of a batch and, with "ring", the rows of a single one, with the bits of one GPU.
    memory : str or float, optional
        Budget of plan and working memory: "80%" of what is free, "2 GiB", or bytes.
    threads : int, optional
        CPU threads; default all.
    compat : {"arkcos", "arkcos+duplicate", "arkcos+unshifted", "arkcos+duplicate+unshifted"}, optional
        The algorithm of [1]_ as it is published, to compare with: HEALPix alone, caps padded with zeros.  Its options
        are "duplicate", the modes beyond the Nyquist frequency of cap rings, and "unshifted", the exact kernel between
        rings of the belt.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit.
    MemoryBudgetError
        If plan and working memory exceed the budget.
    DeviceUnavailable
        If the device asked for cannot be used.

    Notes
    -----
    The ring method is that of [1]_ with all modes of the rings, not those below the Nyquist frequency alone: there is
    no ringing, at the poles or elsewhere.

    References
    ----------
    .. [1] Elsner & Wandelt 2011, A&A 532, A35

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import ConvolvePlan, Gaussian, Healpix
    >>> source = np.zeros(12 * 64**2)
    >>> source[1000] = 1 / (4 * np.pi / source.size)
    >>> beam = Gaussian(fwhm=np.radians(3))
    >>> with ConvolvePlan(beam, Healpix(64), quadrature="none") as plan:
    ...     image = plan(source)
    >>> print(round(image[1000] / beam.profile(0), 6))
    1.0
    """

    def __init__(
        self,
        kernel: Kernel | Sequence[Kernel],
        grid: Grid,
        *,
        spin: int = 0,
        rings: slice | None = None,
        mask: Any = None,
        method: str = "auto",
        eps: float = 1e-6,
        quadrature: str = "ring",
        dtype: Any = "float64",
        device: Where = "auto",
        memory: str | float | None = None,
        threads: int | None = None,
        compat: str | None = None,
    ) -> None:
        self.kernels, self._many = read_kernels(kernel)
        if not isinstance(grid, Grid):
            raise TypeError(f"grid is a {type(grid).__name__}, expected a grid such as Healpix(nside)")
        if method not in METHODS:
            raise ValueError(f"method={method!r}: expected one of {METHODS}")
        if quadrature not in QUADRATURES:
            raise ValueError(f"quadrature={quadrature!r}: expected one of {QUADRATURES}")
        if spin not in (0, 2):
            raise ValueError(f"spin={spin!r}: expected 0 or 2")
        check_eps(eps)
        if threads is not None and (not isinstance(threads, int | np.integer) or threads < 1):
            raise ValueError(f"threads={threads!r}: expected a whole number of at least 1, or None for all cores")
        self.grid, self.eps, self.quadrature, self.dtype = grid, eps, quadrature, read_dtype(dtype)
        self._table = ring_table_of(grid, quadrature, rings)
        self._factors = factors_of(grid, self._table, rings) if quadrature == "pixel" else None
        self._polar = grid.polar_correction() if quadrature == "band" else None
        if quadrature == "band" and not (rings is None and mask is None and compat is None):
            raise ValueError("quadrature='band': corrects whole maps, expected no rings, mask or compat with it")
        self._mask, used = read_mask(mask, self._table, grid.nest)
        self.spin = int(spin)
        if (
            method == "auto"
            and self.spin
            and any(isinstance(k, Window) and not k.equal_polarisation for k in self.kernels)
        ):
            method = "harmonic"  # the one that keeps E and B apart
        gpu = devices_of(device, resolve)[0].kind == "cuda" and method != "harmonic" and compat is None
        if method in ("auto", "ring"):
            eps = quiet_eps(self.kernels, self._table, self.dtype, float(eps), 0 if gpu else _NARROW)
        radials = () if method == "harmonic" else tuple(make_radial(k, eps, self.spin) for k in self.kernels)
        self._response: Any = None
        self._lock = threading.Lock()
        self._means = None if gpu else self._apart(threads)
        staged = (2 if self.spin else 1) * self.npix * self.dtype.itemsize
        options = read_compat(compat, grid, method, self.spin, rings)
        extra = staged + (self._means.nbytes if self._means else 0)
        extra += 0 if self._factors is None else self._factors.nbytes
        extra += 0 if self._polar is None else self._polar.nbytes
        copies = (1 + len(self.kernels) if grid.nest else int(quadrature == "band")) + (used is not None)
        self._spec = Spec(
            self._table, self.kernels, radials, self.dtype, float(eps), self.spin, used, extra, options, copies,
            quadrature == "band", self._polar,
        )  # fmt: skip
        self._engine, self.device = make_engine(self._spec, method, device, memory, threads)
        if gpu and self.device.kind == "cpu":
            self._means = self._apart(threads)
        self._options: dict[str, Any] = {"memory": memory, "threads": threads}
        self._ones = np.ones(len(self._table.n))

    def __enter__(self) -> ConvolvePlan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back threads and memory."""
        self._engine.close()
        self._response = None

    @property
    def npix(self) -> int:
        """Pixels of a map."""
        return self._table.npix

    @property
    def method(self) -> str:
        """The method in use."""
        return self._engine.method

    def __call__(self, maps: Any, out: Any = None) -> NDArray[Any]:
        """Convolve maps.

        Parameters
        ----------
        maps : array_like, shape (..., npix), with spin 2 (..., 2, npix)
            Any number of maps.  A map that holds NaN or infinite values comes back as NaN, the others unharmed; UNSEEN
            is a number like others here (see ``mask``, and `smoothing`).
        out : numpy.ndarray, optional
            Where to write the result: contiguous, of its shape and dtype, where the maps are, and apart from them.

        Returns
        -------
        numpy.ndarray, of the shape of maps, or (..., K, npix), (..., K, 2, npix) for a sequence of K kernels
            Of the plan's dtype.
        """
        return self._run(maps, self._table.weight, self._ones, out)

    def adjoint(self, maps: Any, out: Any = None) -> NDArray[Any]:
        """The transposed operator, ``r_q = w_q sum_p K(p . q) s_p``, for one kernel.

        Parameters
        ----------
        maps : array_like, shape (..., npix)
        out : numpy.ndarray, optional
            As in a call.

        Returns
        -------
        numpy.ndarray, shape (..., npix)
        """
        if self._many:
            raise ValueError("adjoint: expected a plan of one kernel, not of a sequence")
        return self._run(maps, self._ones, self._table.weight, out)

    def window(self, lmax: int) -> NDArray[np.float64]:
        """``b_l`` of the kernel as it is applied, cut at its support, for l from 0 to ``lmax``; with spin 2 of E and B.

        Returns
        -------
        numpy.ndarray of float64, shape (lmax + 1,), or (K, lmax + 1) for a sequence of kernels
        """
        if not isinstance(lmax, int | np.integer) or lmax < 0:
            raise ValueError(f"lmax={lmax!r}: expected a whole number of at least 0")
        if self.spin and any(isinstance(k, Window) and not k.equal_polarisation for k in self.kernels):
            raise ValueError("window: those of E and B differ, there is no one b_l; `Window.polarised` gives both")
        if self.method == "harmonic":
            found = np.stack([k.window(int(lmax), self.spin) for k in self.kernels])
        else:
            found = np.stack([r.window(int(lmax), self.spin) for r in self._spec.radials])
        return found if self._many else np.asarray(found[0])

    def truncation_error(self, cl: Any = None) -> float:
        """Rms error that the cut of the kernel brings about, relative to the rms of the result (the paper's eq. 7).

        Parameters
        ----------
        cl : array_like, shape (lmax + 1,), optional
            Power spectrum of the maps; white by default.  The largest error of all kernels is given.
        """
        if cl is None:
            if self.method == "harmonic":
                return 0.0  # nothing is cut in angle
            return max(white_error(k, r.radius) for k, r in zip(self.kernels, self._spec.radials, strict=True))
        c = np.asarray(cl, np.float64)
        if c.ndim != 1 or not np.isfinite(c).all() or (c < 0).any() or not c.any():
            raise ValueError("cl: expected a power spectrum, a row of values none below 0")
        if self.method == "harmonic":
            return 0.0
        many = (2 * np.arange(len(c)) + 1) * c
        worst = 0.0
        for k, r in zip(self.kernels, self._spec.radials, strict=True):
            whole = k.window(len(c) - 1, self.spin)
            lost = whole - r.window(len(c) - 1, self.spin)
            worst = max(worst, math.sqrt(float((many * lost**2).sum()) / float((many * whole**2).sum())))
        return worst

    def info(self) -> dict[str, Any]:
        """Method, device, support (rad), truncation error for white maps, bytes and expected seconds of one map.

        ``bytes`` are those of the plan and its working memory, a copy of a map that has to be turned into the plan's
        order or type among them; maps given and results are apart.
        """
        cut = self.method != "harmonic"
        support = max(r.radius for r in self._spec.radials) if cut else math.pi
        facts = {"support": support, "truncation_error": self.truncation_error(), "dtype": self.dtype.name}
        return {**self._engine.describe(), **facts, "npix": self.npix, "kernels": len(self.kernels)}

    # ------------------------------------------------------------------ inside
    def _run(self, maps: Any, w_in: NDArray[np.float64], w_out: NDArray[np.float64], out: Any) -> NDArray[Any]:
        if is_device_array(maps) and self.device.kind != "cuda":
            raise TypeError(f"maps live on a GPU, the plan on {self.device}: expected host arrays, or device='cuda'")
        if isinstance(maps, np.ma.MaskedArray):
            raise TypeError("maps are a masked array: expected plain arrays and a plan with mask=, or `smoothing`")
        given = as_array(maps)
        if given.dtype.kind not in "buif":
            raise TypeError(f"maps have dtype {given.dtype}, expected real numbers")
        if given.ndim < 1 or given.shape[-1] != self.npix:
            raise ValueError(f"maps have shape {given.shape}: expected (..., {self.npix})")
        parts = (2,) if self.spin else ()
        if self.spin and (given.ndim < 2 or given.shape[-2] != 2):
            raise ValueError(f"maps have shape {given.shape}: expected (..., 2, {self.npix}), Q and U")
        batch = given.shape[: given.ndim - 1 - len(parts)]
        x = given.reshape(-1, *parts, self.npix)
        kernels = len(self.kernels)
        shape = (*batch, *((kernels,) if self._many else ()), *parts, self.npix)
        if out is not None:
            check_out(out, given, shape, self.dtype)
            if self.device.kind == "cpu":
                out[...] = 0  # rings that are not wanted
        elif is_device_array(given):
            with given.device:
                out = array_module(given).empty(shape, self.dtype)
        else:
            gpu: Any = self._engine
            out = gpu.empty(shape) if self.device.kind == "cuda" else np.zeros(shape, self.dtype)
        result = out.reshape(len(x), kernels, *parts, self.npix)
        if self.device.kind == "cuda":
            self._on_gpu(x, result, w_in, w_out)
            return out  # type: ignore[no-any-return]
        result[...] = 0
        for i in range(len(x)):
            self._one(x[i], result[i : i + 1], w_in, w_out)
        return out  # type: ignore[no-any-return]

    def _on_gpu(self, x: Any, result: Any, w_in: NDArray[np.float64], w_out: NDArray[np.float64]) -> None:
        """Maps (B, [2,] npix) into ``result`` (B, K, [2,] npix)."""
        factors: Any = self._factors
        apart = self._mask is None and not self.spin and w_out is self._ones
        apart = apart and self.quadrature not in ("pixel", "band")
        place = x.device if is_device_array(x) else contextlib.nullcontext()  # one of several GPUs
        if factors is not None:
            with place:
                ordered = reorder(factors, to="nest") if self.grid.nest else factors
                factors = array_module(x).asarray(ordered, self.dtype)
                x = x * factors if w_out is self._ones else x
        gpu: Any = self._engine
        steady = self._steady if apart else None
        gpu.run(
            x, result, w_in, w_out, nest=self.grid.nest, mask=self._mask, steady=steady, offset=OFFSET,
            transposed=w_out is not self._ones,
        )  # fmt: skip
        with place:
            if factors is not None and w_out is not self._ones:
                result *= factors

    def _steady(self) -> Any:
        """The result for a map of ones, (K, npix) float64 on the GPU."""
        with self._lock:  # GPUs that share a batch ask at once
            if self._response is None:
                eps = max(1e-12, 1e-6 * self.eps)
                radials = tuple(make_radial(k, eps) for k in self.kernels)
                spec = Spec(self._table, self.kernels, radials, np.dtype(np.float64), eps)
                gpu: Any
                gpu, _ = make_engine(spec, self.method, self.device, **self._options)
                try:
                    self._response = gpu.ones(self._table.weight, self._ones)
                finally:
                    gpu.close()
            return self._response

    def _one(self, x: NDArray[Any], out: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """One map ([2,] npix) into ``out`` (1, K, [2,] npix), both in the grid's order."""
        mean = 0.0
        band = self.quadrature == "band"
        if self._mask is None:
            total = float(x.sum())
            if not math.isfinite(total) and not np.isfinite(x).all():
                out[...] = np.nan
                return
            if band:
                mean = mean_of(x, self.spin)
            elif self._means is not None and w_out is self._ones:
                some = x[:: 1 + self.npix // _SOME].astype(np.float64)
                mean = float(some.mean())
                if abs(mean) <= OFFSET * float(some.std()):
                    mean = 0.0
        plain = x.dtype == self.dtype and x.dtype.isnative and x.flags.c_contiguous
        before = self._factors if w_out is self._ones else None
        off = 0.0 if band and w_out is not self._ones else mean
        if not plain or off or band or self.grid.nest or self._mask is not None or before is not None:
            x = self._stage(x, off, before)
            if self._polar is not None and w_out is self._ones:
                self._polar.add(x, self.spin)
            if self._mask is not None and not np.isfinite(x).all():
                out[...] = np.nan
                return
        self._engine.convolve(x[None], out, w_in, w_out)
        del x  # a copy of a map, where it was staged
        if band:
            finish(out[0], mean, self.kernels, self._polar, self.spin, w_out is not self._ones)
        elif mean and self._means is not None:
            from skysieve.sphere.cpu.offset import add_mean

            add_mean(self._means, mean, out[0])
        if self._mask is not None:
            out *= self._mask
        if self._factors is not None and before is None:
            np.multiply(out, self._factors, out=out, casting="same_kind")
        if self.grid.nest:
            for row in out.reshape(-1, self.npix):
                row[:] = reorder(row, to="nest")

    def _stage(self, x: NDArray[Any], mean: float, factors: NDArray[np.float64] | None) -> NDArray[Any]:
        """The map as the engine takes it: less its mean, in RING order, without what is masked, of the plan's dtype."""
        staged = np.empty(x.shape, self.dtype)
        lines = zip(x.reshape(-1, self.npix), staged.reshape(-1, self.npix), strict=True)
        for line, to in lines:
            for a in range(0, self.npix, CHUNK):
                piece = line[a : a + CHUNK]
                at: Any = slice(a, a + len(piece))
                if self.grid.nest:
                    at = nest2ring(npix2nside(self.npix), np.arange(a, a + len(piece)))
                if mean:
                    piece = np.subtract(piece, mean, dtype=np.float64)
                if factors is not None:
                    piece = piece * factors[at]
                to[at] = piece if self._mask is None else np.where(self._mask[at], piece, 0)
        return staged

    def _apart(self, threads: int | None) -> Ones | None:
        """What a map's mean becomes, where it is convolved apart: maps without mask and pixel weights, of spin 0."""
        if self._mask is not None or self.spin or self._factors is not None or self.quadrature == "band":
            return None
        from skysieve.sphere.cpu.offset import Ones

        return Ones(self._table, self.kernels, float(self.eps), threads)
