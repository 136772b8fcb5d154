"""Convolution of maps with radial kernels: the plan, its arguments, and the choice of a backend."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.arrays import array_module, as_array, is_device_array
from skysieve.core.checks import one_of, real_dtype
from skysieve.core.device import Device, resolve
from skysieve.core.engine_cache import ENGINES
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError, format_bytes
from skysieve.core.machine import rates
from skysieve.core.plan import Plan
from skysieve.core.progress import Progress, Reporter, reporting
from skysieve.sphere.grids.grid import QUADRATURES, Grid, Healpix, Quadrature
from skysieve.sphere.grids.healpix import CHUNK, bad_pixels, in_pieces, nest2ring, npix2nside, reorder
from skysieve.sphere.grids.polar_correction import add_mean, mean_of
from skysieve.sphere.kernels.base import Kernel, check_eps
from skysieve.sphere.kernels.radial import make_radial

from .arguments import (
    check_out,
    devices_of,
    factors_of,
    quiet_eps,
    read_compat,
    read_kernels,
    read_mask,
    ring_table_of,
    white_error,
)
from .contract import METHODS, Compat, Engine, Method, RealType, Spec, Where

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from skysieve.core.tasks import TaskPool
    from skysieve.sphere.cpu.offset import Ones

__all__ = ["OFFSET", "ConservingPlan", "ConvolvePlan", "SmoothingPlan", "borrowed_plan"]

logger = logging.getLogger("skysieve")

OFFSET = 8.0
"""Mean over standard deviation above which a map's mean is convolved separately, in float64 and with a smaller eps.

The error of cutting the kernel is relative to the rms of the result; a large mean would multiply it."""
_LOOKED_AT = 1 << 16
"""Pixels from which mean and standard deviation are estimated."""
_NARROW = 16
"""Support (pixels along a ring) up to which all modes of equal rings cost less than a smaller eps."""


def host(device: Where) -> Device:
    """The CPU, for harmonic transforms, if ``device`` is "auto" or "cpu".

    Raises
    ------
    DeviceUnavailable
        ``device`` is a GPU.
    """
    found = devices_of(device, resolve)[0]
    if found.kind == "cuda":
        if device != "auto":
            raise DeviceUnavailable("harmonic transforms and compat run only on the CPU", "Use device='cpu'")
        found = resolve("cpu")[0]
    return found


def make_engine(
    spec: Spec, method: str, device: Where, memory: str | float | None, threads: int | None
) -> tuple[Engine, Device]:
    """Choose the backend for a device, and make its engine."""
    devices = (host(device),) if method == "harmonic" or spec.compat else devices_of(device, resolve)
    found = devices[0]
    if len(devices) > 1:
        from skysieve.sphere.cuda.multi_gpu import MultiGpuEngine

        return MultiGpuEngine(spec, method, devices, memory=memory, threads=threads), found
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


class ConvolvePlan(Plan):
    """Convolution with a radial kernel, set up once for any number of maps.

    All methods compute the pixel sum ``s_p = sum_q K(p . q) w_q r_q``, with the kernel cut where ``eps`` allows it.
    The result is a map, or maps, like the input: there is no result class.

    Use the plan as a context manager, or call `close`.  Plans can be copied and pickled; see `skysieve.core.plan.Plan`.

    Parameters
    ----------
    kernel : Kernel or sequence of Kernel
        A kernel, such as ``Gaussian(fwhm=0.01)``.  Several kernels share the transforms of the map; the result then has
        an additional axis.
    grid : Grid
        The pixels, such as ``Healpix(2048)``.
    spin : {0, 2}
        2: maps are Q and U, of shape (..., 2, npix).  If E and B have different windows, only the method "harmonic" can
        be used, and "auto" selects it.
    rings : slice, optional
        Range of rings that the maps cover; the whole sphere by default.
    mask : array_like of bool, shape (npix,), optional
        Valid pixels, in the order of the grid.  The others count as 0, and are 0 in the result.
    method : {"auto", "direct", "ring", "harmonic"}
        "direct": the sum over the pixels within the support; "ring": Fourier modes of the rings, summed over rings;
        "harmonic": spherical harmonic transforms by ducc0, for band-limited kernels; "auto": the method that is
        expected to be the fastest.
    eps : float
        Error from truncating the kernel and its modes, relative to the rms of the result for white noise.  In float64
        on equal rings (ECP, Gauss-Legendre), the result of "ring" beyond the support is at most 1e-10 of the peak:
        narrow kernels use all modes, and for wide ones (above 16 pixels) eps is reduced to at most 2e-11.
    quadrature : {"ring", "none", "pixel", "band"}
        Weights w.  "ring": one weight for each ring.  "none": the solid angle of a pixel; the sum is then self-adjoint.
        "pixel": HEALPix's pixel weights (see `pixel_weights.healpix_pixel_weights`); a large mean is then not convolved
        separately.  "band", for whole HEALPix maps with harmonics up to degree 3 nside - 1: solid angles, with
        corrections around the poles and where the polar caps meet the equatorial belt (see `polar_correction`); the
        mean is multiplied by the kernel's integral.
    dtype : {"float64", "float32"}
        Type of the arithmetic and of the result.
    device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"} or sequence of GPUs
        Maps may be in host memory or, with a plan on a GPU, in GPU memory (CuPy); results are where the maps are.
        "auto" takes a GPU if there is one with enough memory; "harmonic" runs on the CPU.  Several GPUs share maps in
        host memory: the maps of a batch and, with "ring", the rows of a single map.  The result is the same to the
        last bit as on one GPU.
    memory : str or float, optional
        Budget of the plan and its working memory: a share of the free memory ("80%"), a size ("2 GiB"), or bytes.
    threads : int, optional
        CPU threads; all cores by default.
    compat : {"arkcos", "arkcos+duplicate", "arkcos+unshifted", "arkcos+duplicate+unshifted"}, optional
        The algorithm of [1]_ as published, for comparison: HEALPix only, caps padded with zeros.  "duplicate" adds
        modes beyond the Nyquist frequency of cap rings, and "unshifted" the exact kernel between rings of the belt.

    Raises
    ------
    ValueError, TypeError
        An argument is invalid.
    MemoryBudgetError
        Plan and working memory exceed the budget.
    DeviceUnavailable
        The requested device cannot be used.

    Notes
    -----
    The ring method is that of [1]_, but uses all modes of the rings, not only the modes below the Nyquist frequency.
    Therefore there is no ringing, at the poles or elsewhere.

    References
    ----------
    .. [1] Elsner & Wandelt 2011, A&A 532, A35

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.sphere import ConvolvePlan, Gaussian, Healpix
    >>> source = np.zeros(12 * 64**2)
    >>> source[1000] = 1 / (4 * np.pi / source.size)
    >>> beam = Gaussian("3 deg")
    >>> with ConvolvePlan(beam, Healpix(64), quadrature="none") as plan:
    ...     image = plan.execute(source)
    >>> print(round(image[1000] / beam.profile(0), 6))
    1.0
    """

    def __init__(
        self,
        kernel: Kernel | Sequence[Kernel],
        grid: Grid,
        *,
        spin: Literal[0, 2] = 0,
        rings: slice | None = None,
        mask: Any = None,
        method: Method = "auto",
        eps: float = 1e-6,
        quadrature: Quadrature = "ring",
        dtype: RealType = "float64",
        device: Where = "auto",
        memory: str | float | None = None,
        threads: int | None = None,
        compat: Compat | None = None,
    ) -> None:
        self.kernels, self._many = read_kernels(kernel)
        if not isinstance(grid, Grid):
            raise TypeError(f"grid is a {type(grid).__name__}, expected a grid such as Healpix(nside)")
        chosen = one_of("method", method, METHODS)
        rule = QUADRATURES[one_of("quadrature", quadrature, QUADRATURES)]
        if spin not in (0, 2):
            raise ValueError(f"spin={spin!r}: expected 0 or 2")
        check_eps(eps)
        if threads is not None and (not isinstance(threads, int | np.integer) or threads < 1):
            raise ValueError(f"threads={threads!r}: expected a whole number of at least 1, or None for all cores")
        self.grid, self.eps, self.quadrature, self.dtype = grid, eps, quadrature, real_dtype(dtype)
        self._table = ring_table_of(grid, quadrature, rings)
        self._factors = factors_of(grid, self._table, rings) if rule.pixel_factors else None
        self._band = rule.polar
        self._polar = grid.polar_correction() if self._band else None
        if self._band and not (rings is None and mask is None and compat is None):
            raise ValueError(
                f"quadrature={quadrature!r}: corrects whole maps, expected no rings, mask or compat with it"
            )
        self._mask, used = read_mask(mask, self._table, grid.nest)
        self.spin = int(spin)
        if chosen == "auto" and self.spin and not all(k.equal_polarisation for k in self.kernels):
            chosen = "harmonic"  # the only method for different windows of E and B
        gpu = devices_of(device, resolve)[0].kind == "cuda" and chosen != "harmonic" and compat is None
        if chosen in ("auto", "ring"):
            eps = quiet_eps(self.kernels, self._table, self.dtype, float(eps), 0 if gpu else _NARROW)
        radials = () if chosen == "harmonic" else tuple(make_radial(k, eps, self.spin) for k in self.kernels)
        self._response: Any = None
        self._lock = threading.Lock()
        self._closed = False
        self._ones_response = None if gpu else self._make_ones_response(threads)
        staged = (2 if self.spin else 1) * self.npix * self.dtype.itemsize
        options = read_compat(compat, grid, chosen, self.spin, rings)
        extra = staged + (self._ones_response.nbytes if self._ones_response else 0)
        extra += 0 if self._factors is None else self._factors.nbytes
        extra += 0 if self._polar is None else self._polar.nbytes
        copies = (1 + len(self.kernels) if grid.nest else int(self._band)) + (used is not None) + self._skips_bad
        self._spec = Spec(
            self._table, self.kernels, radials, self.dtype, float(eps), self.spin, used, extra, options, copies,
            self._band, self._polar,
        )  # fmt: skip
        self._engine, self.device = make_engine(self._spec, chosen, device, memory, threads)
        if gpu and self.device.kind == "cpu":
            self._ones_response = self._make_ones_response(threads)
        self._options: dict[str, Any] = {"memory": memory, "threads": threads}
        self._ones = np.ones(len(self._table.n))
        if logger.isEnabledFor(logging.INFO):
            facts = self.describe()
            size, seconds = format_bytes(facts["bytes"]), facts["seconds"]
            expected = rates.ADVICE if seconds is None else f"expected {seconds:.2g} s for a map"
            logger.info("%r on %s: %s, %s", self, facts["device"], size, expected)

    _skips_bad = False
    """Whether bad pixels (UNSEEN, NaN, infinite) count as 0, and are copied into the result; for one kernel."""
    _separates_mean = True
    """Whether a large mean may be convolved separately."""

    def __repr__(self) -> str:
        kernel = list(self.kernels) if self._many else self.kernels[0]
        return f"ConvolvePlan({kernel!r}, {self.grid!r}, method={self.method!r}, dtype={self.dtype.name!r})"

    def close(self) -> None:
        """Free threads and memory; the plan cannot convolve any more."""
        self._closed = True
        self._engine.close()
        self._response = None

    def idle_bytes(self) -> int:
        """Bytes that the plan holds on its device between calls, working memory included."""
        return int(self._engine.nbytes)  # without the costs that `describe` computes

    @property
    def npix(self) -> int:
        """Pixels of a map."""
        return self._table.npix

    @property
    def method(self) -> str:
        """The method in use."""
        return self._engine.method

    def execute(self, maps: Any, out: Any = None, *, progress: bool | Progress = False) -> NDArray[Any]:
        """Convolve maps.

        Parameters
        ----------
        maps : array_like, shape (..., npix), with spin 2 (..., 2, npix)
            Any number of maps.  A map that holds NaN or infinite values becomes NaN; the other maps are not affected.
            UNSEEN has no special meaning here (see ``mask``, and `smoothing`).
        out : numpy.ndarray, optional
            Contiguous array for the result, of the right shape and dtype and on the same device as the maps.  It must
            not share memory with the maps.
        progress : bool or callable
            True draws a bar of the maps; a callable gets ``(done, total)``.  A GPU reports once, when all maps are
            done.

        Returns
        -------
        numpy.ndarray, of the shape of maps, or (..., K, npix), (..., K, 2, npix) for a sequence of K kernels
            The convolved maps, in the plan's dtype.

        Raises
        ------
        ValueError, TypeError
            The maps or ``out`` have a wrong shape or type, or the plan is closed.
        """
        with reporting(progress, "convolving maps") as report:
            return self._run(maps, self._table.weight, self._ones, out, report)

    def empty(self, maps: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """An uninitialised array for results of this shape, on the same device as ``maps``."""
        if is_device_array(maps):
            with maps.device:
                return array_module(maps).empty(shape, self.dtype)  # pyrefly: ignore[no-any-return]  # of CuPy
        if self.device.kind == "cuda":
            gpu: Any = self._engine
            return gpu.empty(shape)  # pyrefly: ignore[no-any-return]  # of CuPy
        return np.empty(shape, self.dtype)

    def adjoint(self, maps: Any, out: Any = None) -> NDArray[Any]:
        """Apply the transposed operator, ``r_q = w_q sum_p K(p . q) s_p``, of a plan with one kernel.

        Parameters
        ----------
        maps : array_like, shape (..., npix)
        out : numpy.ndarray, optional
            As for `execute`.

        Returns
        -------
        numpy.ndarray, shape (..., npix)
        """
        if self._many:
            raise ValueError("adjoint: expected a plan of one kernel, not of a sequence")
        return self._run(maps, self._ones, self._table.weight, out)

    def window(self, lmax: int) -> NDArray[np.float64]:
        """``b_l`` of the kernel, truncated as it is applied, for l from 0 to ``lmax``; for spin 2 that of E and B.

        Returns
        -------
        numpy.ndarray of float64, shape (lmax + 1,), or (K, lmax + 1) for a sequence of kernels
        """
        if not isinstance(lmax, int | np.integer) or lmax < 0:
            raise ValueError(f"lmax={lmax!r}: expected a whole number of at least 0")
        if self.spin and not all(k.equal_polarisation for k in self.kernels):
            raise ValueError("window: E and B have different windows; `Kernel.polarised` gives both")
        if self.method == "harmonic":
            found = np.stack([k.window(int(lmax), self.spin) for k in self.kernels])
        else:
            found = np.stack([r.window(int(lmax), self.spin) for r in self._spec.radials])
        return found if self._many else np.asarray(found[0])

    def truncation_error(self, cl: Any = None) -> float:
        """Rms error from truncating the kernel at its support, relative to the rms of the result (eq. 7 of the paper).

        Parameters
        ----------
        cl : array_like, shape (lmax + 1,), optional
            Power spectrum of the maps; white by default.

        Returns
        -------
        float
            The largest error of all kernels.
        """
        if cl is None:
            if self.method == "harmonic":
                return 0.0  # nothing is cut in angle
            return max(white_error(k, r.radius) for k, r in zip(self.kernels, self._spec.radials, strict=True))
        c = np.asarray(cl, np.float64)
        if c.ndim != 1 or not np.isfinite(c).all() or (c < 0).any() or not c.any():
            raise ValueError("cl: expected a power spectrum: a 1-D array without negative values")
        if self.method == "harmonic":
            return 0.0
        many = (2 * np.arange(len(c)) + 1) * c
        worst = 0.0
        for k, r in zip(self.kernels, self._spec.radials, strict=True):
            whole = k.window(len(c) - 1, self.spin)
            lost = whole - r.window(len(c) - 1, self.spin)
            worst = max(worst, math.sqrt(float((many * lost**2).sum()) / float((many * whole**2).sum())))
        return worst

    def describe(self) -> dict[str, Any]:
        """Describe the plan, with the same keys on every device.

        Returns
        -------
        dict
            ``method``, ``device`` and ``dtype``; ``bytes`` of the plan and its working memory on the device, including
            a copy of a map that has to be reordered or converted, but not the given maps and the result.  For one map:
            ``moved``, the bytes of the map and its results; ``seconds`` on an idle machine and ``processor_seconds`` of
            all threads (None before ``skysieve info --measure`` has run); ``work``, from which these times are
            predicted.  For many maps in host memory: ``gpus``, the number of GPUs that are used ("cuda:all" uses only
            as many as reduce the time), and ``limit``, which says what limits this number ("GPUs" or "host copies";
            None on a CPU).  ``support`` of the kernel (rad); ``truncation_error`` for white maps; ``npix``; the number
            of ``kernels``.
        """
        cut = self.method != "harmonic"
        support = max(r.radius for r in self._spec.radials) if cut else math.pi
        facts = self._engine.describe()
        times = rates.predicted("sphere", self.device, facts["work"], facts["threads"])
        planes = (1 + len(self.kernels)) * (2 if self.spin else 1)
        gpus = int(self.device.kind == "cuda")
        return {
            "gpus": gpus,
            "limit": "GPUs" if gpus else None,
            **facts,
            **times,
            "moved": planes * self.npix * self.dtype.itemsize,
            "dtype": self.dtype.name,
            "support": support,
            "truncation_error": self.truncation_error(),
            "npix": self.npix,
            "kernels": len(self.kernels),
        }

    # ------------------------------------------------------------------ internals
    def _run(
        self,
        maps: Any,
        w_in: NDArray[np.float64],
        w_out: NDArray[np.float64],
        out: NDArray[Any] | None,
        report: Progress | None = None,
    ) -> NDArray[Any]:
        if self._closed:
            raise ValueError("the plan is closed")
        if is_device_array(maps) and self.device.kind != "cuda":
            raise TypeError(
                f"maps are on a GPU, but the plan works on {self.device}: expected host arrays, or device='cuda'"
            )
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
        if out is None:
            out = self.empty(given, shape)
        else:
            check_out(out, given, shape, self.dtype)
        result = out.reshape(len(x), kernels, *parts, self.npix)
        reporter = Reporter(report, len(x))
        if self.device.kind == "cuda":
            self._on_gpu(x, result, w_in, w_out)
            reporter.add(len(x))
            return out
        if self._spec.rings is not None:
            result[...] = 0  # the engine does not write rings outside the mask
        for i in range(len(x)):
            self._one(x[i], result[i : i + 1], w_in, w_out)
            reporter.add(1)
        return out

    def _on_gpu(self, x: Any, result: Any, w_in: NDArray[np.float64], w_out: NDArray[np.float64]) -> None:
        """Convolve maps (B, [2,] npix) into ``result`` (B, K, [2,] npix)."""
        factors: Any = self._factors
        separate_mean = self._separates_mean and self._mask is None and not self.spin and w_out is self._ones
        separate_mean = separate_mean and factors is None and not self._band
        place = x.device if is_device_array(x) else contextlib.nullcontext()  # one of several GPUs
        if factors is not None:
            with place:
                ordered = reorder(factors, to="nest") if self.grid.nest else factors
                factors = array_module(x).asarray(ordered, self.dtype)
                x = x * factors if w_out is self._ones else x
        gpu: Any = self._engine
        steady = self._device_ones_response if separate_mean else None
        gpu.run(
            x, result, w_in, w_out, nest=self.grid.nest, mask=self._mask, steady=steady, offset=OFFSET,
            transposed=w_out is not self._ones, skip_bad=self._skips_bad,
        )  # fmt: skip
        with place:
            if factors is not None and w_out is not self._ones:
                result *= factors

    def _device_ones_response(self) -> Any:
        """The result for a map of ones, (K, npix) float64 on the GPU."""
        with self._lock:  # GPUs that share a batch ask at the same time
            if self._response is None:
                eps = max(1e-12, 1e-6 * self.eps)
                radials = tuple(make_radial(k, eps) for k in self.kernels)
                spec = Spec(self._table, self.kernels, radials, np.dtype(np.float64), eps)
                gpu: Any = make_engine(spec, self.method, self.device, **self._options)[0]
                try:
                    self._response = gpu.ones(self._table.weight, self._ones)
                finally:
                    gpu.close()
            return self._response

    def _one(self, x: NDArray[Any], out: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """Convolve one map ([2,] npix) on the CPU into ``out`` (1, K, [2,] npix), both in the order of the grid."""
        mean, pool = 0.0, self._pool
        transposed = w_out is not self._ones
        bad = bad_pixels(x, self.dtype, pool) if self._skips_bad else None
        given = x
        if bad is not None:
            x = without(given, bad, pool)
        if self._mask is None and not self._skips_bad and not all_finite(x, pool):
            out[...] = np.nan
            return
        if self._mask is None:
            if self._band:
                mean = mean_of(x, self.spin)
            elif self._ones_response is not None and not transposed:
                some = x[:: 1 + self.npix // _LOOKED_AT].astype(np.float64)
                mean = float(some.mean())
                if abs(mean) <= OFFSET * float(some.std()):
                    mean = 0.0
        plain = x.dtype == self.dtype and x.dtype.isnative and x.flags.c_contiguous
        before = None if transposed else self._factors
        off = 0.0 if self._band and transposed else mean
        if not plain or off or self._band or self.grid.nest or self._mask is not None or before is not None:
            x = self._stage(x, off, before)
            if self._polar is not None and not transposed:
                self._polar.add(x, self.spin)
            if self._mask is not None and not all_finite(x, pool):
                out[...] = np.nan
                return
        self._engine.convolve(x[None], out, w_in, w_out)
        del x  # frees the copy of the map, if there is one
        if self._band:
            add_mean(out[0], mean, self.kernels, self._polar, self.spin, transposed)
        elif mean and self._ones_response is not None:
            self._ones_response.add(mean, out[0])
        if self._mask is not None:
            mask = self._mask
            in_pieces(lambda a, b: np.multiply(out[..., a:b], mask[a:b], out=out[..., a:b]), self.npix, pool)
        if self._factors is not None and before is None:
            np.multiply(out, self._factors, out=out, casting="same_kind")
        if self.grid.nest:
            for row in out.reshape(-1, self.npix):
                row[:] = reorder(row, to="nest", pool=pool)
        if bad is not None:
            in_pieces(
                lambda a, b: np.copyto(out[0, ..., a:b], given[..., a:b], "unsafe", bad[..., a:b]), self.npix, pool
            )

    def _stage(self, x: NDArray[Any], mean: float, factors: NDArray[np.float64] | None) -> NDArray[Any]:
        """A copy of the map for the engine: in RING order, masked, without its mean, and in the plan's dtype."""
        staged = np.empty(x.shape, self.dtype)

        def stage(line: NDArray[Any], to: NDArray[Any], first: int, last: int) -> None:
            for a in range(first, last, CHUNK):
                piece = line[a : min(a + CHUNK, last)]
                at: Any = slice(a, a + len(piece))
                if self.grid.nest:
                    at = nest2ring(npix2nside(self.npix), np.arange(a, a + len(piece)))
                if mean:
                    piece = np.subtract(piece, mean, dtype=np.float64)
                if factors is not None:
                    piece = piece * factors[at]
                to[at] = piece if self._mask is None else np.where(self._mask[at], piece, 0)

        for line, to in zip(x.reshape(-1, self.npix), staged.reshape(-1, self.npix), strict=True):
            in_pieces(partial(stage, line, to), self.npix, self._pool)
        return staged

    @property
    def _pool(self) -> TaskPool:
        """The threads of the CPU's engine."""
        engine: Any = self._engine
        pool: TaskPool = engine.pool
        return pool

    def _make_ones_response(self, threads: int | None) -> Ones | None:
        """The object that smooths a large mean separately on the CPU; None if the mean is not treated separately."""
        if self._mask is not None or self.spin or self._factors is not None or self._band or not self._separates_mean:
            return None
        from skysieve.sphere.cpu.offset import Ones

        return Ones(self._table, self.kernels, float(self.eps), threads)


def all_finite(x: NDArray[Any], pool: TaskPool) -> bool:
    """Whether no pixel of a map is NaN or infinite.  (A sum takes a third of the time of a test of all pixels.)"""

    def finite(a: int, b: int) -> bool:
        piece = x[..., a:b]
        return math.isfinite(float(piece.sum())) or bool(np.isfinite(piece).all())

    return all(in_pieces(finite, x.shape[-1], pool))


def without(x: NDArray[Any], bad: NDArray[np.bool_], pool: TaskPool) -> NDArray[Any]:
    """A copy of a map with 0 in bad pixels."""
    good = np.empty(x.shape, x.dtype)

    def copy(a: int, b: int) -> None:
        good[..., a:b] = np.where(bad[..., a:b], x.dtype.type(0), x[..., a:b])

    in_pieces(copy, x.shape[-1], pool)
    return good


class SmoothingPlan(ConvolvePlan):
    """A plan of one kernel for which bad pixels (UNSEEN, NaN, infinite) count as 0 and keep their values."""

    _skips_bad = True


class ConservingPlan(ConvolvePlan):
    """A plan that applies the transpose of `ConvolvePlan.adjoint` to every map, so that the flux can be conserved."""

    _separates_mean = False


@contextlib.contextmanager
def borrowed_plan(
    kernel: Kernel, grid: Healpix, kind: type[ConvolvePlan] = ConvolvePlan, **options: Any
) -> Iterator[ConvolvePlan]:
    """A plan of the cache for one call of a function.

    Kernels that hold a Python function have plans of their own: a function may change between calls.
    """
    key = key_of(kernel, grid, options)
    if key is None:
        with kind(kernel, grid, **options) as plan:
            yield plan
        return
    key = (kind, key)
    device = devices_of(options.get("device", "auto"), resolve)[0]
    with ENGINES.borrow(key, lambda: kind(kernel, grid, **options), device, ConvolvePlan.idle_bytes) as plan:
        yield plan


def key_of(kernel: Kernel, grid: Healpix, options: dict[str, Any]) -> Hashable | None:
    """Everything that a plan depends on; None where a value cannot be compared."""
    values: list[Hashable] = []
    for name, value in sorted(vars(kernel).items()):
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            values.append((name, value.dtype.str, value.shape, value.tobytes()))
        elif value is None or isinstance(value, bool | int | float | str | np.number):
            values.append((name, value))
        else:
            return None
    key = ("sphere", type(kernel), *values, grid.nside, grid.nest, *sorted(options.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key
