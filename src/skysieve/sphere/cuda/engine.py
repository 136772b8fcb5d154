"""The GPU backend: the choice between the methods, and the copies of maps to the device and of results to the host."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import is_device_array
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.core.gpu.runtime import CudaRuntime, Runtime, on_device
from skysieve.core.gpu.staging import ResultMemory
from skysieve.core.memory import parse_budget
from skysieve.sphere.contract import COPIED
from skysieve.sphere.cuda import PACKAGE
from skysieve.sphere.cuda.direct.engine import DirectEngine
from skysieve.sphere.cuda.direct.spin import SpinEngine
from skysieve.sphere.cuda.direct.zones import find_zones, healpix_nside
from skysieve.sphere.cuda.ring.engine import RingEngine
from skysieve.sphere.ring_pairs import NotBandLimited

from .band_steps import BandSteps
from .cost import prefers_direct
from .transfers import Threads, Transfers

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.core.device import Device
    from skysieve.sphere.contract import Spec

FEW_BLOCKS = 4096
"""Most blocks of threads that share the pixels of a map in a loop."""
RESULTS, LARGEST = 2, 1 << 32
"""Most results in page-locked memory, and bytes of the largest of them.  On the host of an H200, it takes 25 ms to
page-lock 200 MB, 18 ms to copy as much into pageable memory by `Transfers`, and 11 ms into memory that is locked
already.  For 16 maps of 200 MB on an H100, where each result is dropped before the next: 0.15 s instead of 0.36 s."""
LOOKS, MOST_SEEN = 64, 1 << 16
"""Blocks of threads that estimate a map's mean and standard deviation, and most pixels that they read."""


@functools.cache
def _runtime(device: Device) -> CudaRuntime:
    """The runtime of a GPU; plans share it, and the kernels that it has compiled."""
    return CudaRuntime(device)


class Engine:
    """Convolution on one GPU; see `contract.Engine`.

    Parameters
    ----------
    spec : Spec
    method : {"auto", "direct", "ring", "harmonic"}
    device : Device, optional
        A GPU of `skysieve.core.device.resolve`.
    memory : str or float, optional
        Budget of the plan, its working memory and the maps on the GPU; 80% of the free memory by default.
    threads : int, optional
        Not used; for the same arguments as the CPU's engine.
    runtime : Runtime, optional
        Where the kernels run, instead of ``device``.

    Raises
    ------
    ValueError
        The method or the kernel does not run on a GPU.
    MemoryBudgetError
    DeviceUnavailable
    """

    def __init__(
        self,
        spec: Spec,
        method: str = "auto",
        device: Device | None = None,
        memory: str | float | None = None,
        threads: int | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if runtime is None:
            if device is None:
                raise DeviceUnavailable("no GPU was given to the engine", "Use device='cuda'")
            runtime = _runtime(device)
        self.spec, self.runtime = spec, runtime
        self.parts = 2 if spec.spin else 1
        with on_device(self.runtime):
            self._engine = self._choose(method)
            item = spec.dtype.itemsize
            self._maps = runtime.module(PACKAGE, "maps.cu", "f32" if item == 4 else "f64")
            self._band = BandSteps(runtime, spec, self._maps) if spec.band else None
            tables = 0 if self._band is None else self._band.nbytes
            free = runtime.device.total_memory if runtime.xp is np else runtime.device.free_memory
            budget = parse_budget(memory, free, default=0.8)
            one = self.parts * spec.table.npix * item
            for ahead in (1, 0):  # with the next map of a batch or without it
                maps = (1 + ahead + len(spec.radials) + spec.copies) * one + tables
                if isinstance(self._engine, RingEngine):
                    self._engine.fit(budget - maps)
                self.nbytes, self._ahead = self._engine.nbytes + maps, bool(ahead)
                if self.nbytes <= budget:
                    break
            else:
                raise MemoryBudgetError(f"the plan on the GPU (method={self._engine.name!r})", self.nbytes, budget)
            self._flags = runtime.xp.zeros(len(spec.radials), np.int32)
        self.method = self._engine.name
        self._weights: list[tuple[Any, Any, Any]] = []
        self._pieces: dict[tuple[int, int], Any] = {}
        self._buffers: dict[str, Any] = {}
        self._side: Any = None
        self._lock = threading.Lock()
        self._threads = Threads()
        self._up, self._down = Transfers(runtime, self._threads), Transfers(runtime, self._threads)
        self._results = ResultMemory(runtime, RESULTS, LARGEST)
        self._pool: ThreadPoolExecutor | None = None

    def _choose(self, method: str) -> DirectEngine | RingEngine:
        """The engine of the method, or the one that is expected to be the fastest."""
        spec, runtime = self.spec, self.runtime
        if method == "harmonic":
            raise ValueError("method='harmonic': harmonic transforms run on the CPU; use device='cpu'")
        if method == "ring":
            return RingEngine(runtime, spec)
        kind = SpinEngine if spec.spin else DirectEngine
        if method == "direct" or any(r.hard for r in spec.radials):
            return kind(runtime, spec)
        nside = healpix_nside(spec.table)
        zones = [find_zones(spec, r, nside) for r in spec.radials]
        if prefers_direct(spec, kind.expected(spec, zones)):
            return kind(runtime, spec, zones)
        try:
            return RingEngine(runtime, spec)
        except NotBandLimited:
            return kind(runtime, spec, zones)

    def close(self) -> None:
        """Free threads and memory."""
        self._up.close()
        self._down.close()
        self._results.close()
        self._threads.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        self._buffers.clear()
        self._weights.clear()
        self._pieces.clear()
        self._engine.free()

    def describe(self) -> dict[str, Any]:
        """See `contract.Engine.describe`; ``bytes`` includes the maps on the GPU."""
        planes = (1 + len(self.spec.radials)) * (2 if self.spec.spin else 1)
        return {
            "method": self.method,
            "device": str(self.runtime.device),
            "bytes": int(self.nbytes),
            "work": {
                f"{self.method} {self.spec.dtype.name}{' spin' * bool(self.spec.spin)}": self._engine.seconds(),
                COPIED: float(planes * self.spec.table.npix * self.spec.dtype.itemsize),
            },
            "threads": 1,
        }

    # ------------------------------------------------------------------ one map on the device
    def convolve(self, maps: Any, out: Any, w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """See `contract.Engine.convolve`; maps are convolved one after the other on the current stream."""
        with self._lock, on_device(self.runtime):
            weights = self._ring_weights(w_in, w_out)
            for x, y in zip(maps, out, strict=True):
                self._one(x, y, *weights, self._flags)

    def ones(self, w_in: NDArray[Any], w_out: NDArray[Any]) -> Any:
        """The result for a map of ones, (K, npix) on the device; it is complete."""
        with on_device(self.runtime):
            npix, dtype = self.spec.table.npix, self.spec.dtype
            out = self.runtime.xp.empty((1, len(self.spec.radials), npix), dtype)
            self.convolve(self.runtime.xp.ones((1, npix), dtype), out, w_in, w_out)
            self.runtime.synchronize()  # it may be read on other streams and GPUs
            return out[0]

    def _one(self, x: Any, y: Any, w_in: Any, w_out: list[Any], flags: Any) -> None:
        side = self._fork()
        self._engine.one(x, y, w_in, w_out, flags, side)
        self._join(side)

    def _ring_weights(self, w_in: NDArray[Any], w_out: NDArray[Any]) -> tuple[Any, list[Any]]:
        """Both weights on the device; ``w_out`` also multiplied by each kernel's amplitude."""
        for a, b, found in self._weights:
            if a is w_in and b is w_out:
                return found
        xp, dtype = self.runtime.xp, self.spec.dtype
        scaled = [w_out, *(w_out * a for a in self._engine.amplitudes)]
        found = (xp.asarray(w_in.astype(dtype)), [xp.asarray(w.astype(dtype)) for w in scaled])
        self._weights = [*self._weights[-3:], (w_in, w_out, found)]
        return found

    def _fork(self) -> Any:
        """A second stream, which starts after the work given to the current stream so far."""
        if self.runtime.xp is np:
            return None
        cuda = self.runtime.xp.cuda
        if self._side is None:
            self._side = cuda.Stream(non_blocking=True)
            self._events = [cuda.Event(disable_timing=True) for _ in range(2)]
        self._events[0].record(cuda.get_current_stream())
        self._side.wait_event(self._events[0])
        return self._side

    def _join(self, side: Any) -> None:
        if side is not None:
            self._events[1].record(side)
            self.runtime.xp.cuda.get_current_stream().wait_event(self._events[1])

    # ------------------------------------------------------------------ maps in any memory
    def run(
        self, maps: Any, out: Any, w_in: NDArray[Any], w_out: NDArray[Any], *, nest: bool = False,
        mask: NDArray[np.bool_] | None = None, steady: Callable[[], Any] | None = None, offset: float = 8.0,
        transposed: bool = False, skip_bad: bool = False,
    ) -> None:  # fmt: skip
        """Convolve maps (B, [2,] npix) of any real dtype into ``out`` (B, K, [2,] npix).

        Both are in host memory, or both in the memory of this GPU.

        Parameters
        ----------
        nest : bool
            Whether pixels of both are in NESTED order.
        mask : numpy.ndarray of bool, optional
            In RING order: the pixels that count.  The others count as 0, and are 0 in the result.
        steady : callable, optional
            Gives the result for a map of ones, (K, npix) float64 on the device.  A mean of more than ``offset``
            standard deviations is then subtracted from a map and convolved separately.
        transposed : bool
            Whether this is the transposed operator, for which `Spec.band` corrects the result and not the map.
        skip_bad : bool
            Whether UNSEEN, NaN and infinite pixels count as 0 and are copied into the result, of one kernel.
        """
        if is_device_array(maps) and int(maps.device.id) != self.runtime.device.index:
            raise ValueError(
                f"the maps are on cuda:{int(maps.device.id)}, expected {self.runtime.device}: the plan's GPU"
            )
        if not len(maps):
            return
        with self._lock, on_device(self.runtime):
            weights = self._ring_weights(w_in, w_out)
            good = None if mask is None else self.runtime.xp.asarray(mask)
            options = (weights, nest, good, steady, offset, transposed)
            some = self._good_pixels if skip_bad else self._on_device_maps
            if is_device_array(maps) or self.runtime.xp is np:
                some(maps, out, *options)
                return
            if self._pool is None and len(maps) > 1 and self._ahead:
                self._pool = ThreadPoolExecutor(1, "skysieve-upload")
            down = self._down if len(maps) > 1 else self._up
            following = self._upload(maps, 0)
            try:
                for b in range(len(maps)):
                    x = following() if callable(following) else following
                    following = self._upload(maps, b + 1) if self._ahead else None
                    y = self._buffer("result", (len(self.spec.radials), *maps.shape[1:]))
                    some([x], [y], *options)
                    self.runtime.xp.cuda.get_current_stream().synchronize()
                    down.down(out[b].reshape(-1), y.reshape(-1))
                    if not self._ahead:
                        following = self._upload(maps, b + 1)
            finally:
                if callable(following):  # after an error: the next call must not use the buffer during the copy
                    following()

    def rows(
        self, x: NDArray[Any], out: NDArray[Any], w_in: NDArray[Any], w_out: NDArray[Any], first: int, last: int
    ) -> bool:
        """Convolve rows first .. last - 1 of one map in host memory, in RING order; only the rows it needs are copied.

        Parameters
        ----------
        x, out : numpy.ndarray, shape ([2,] npix) and (K, [2,] npix)
            The whole map and result; some rows are read and written.

        Returns
        -------
        bool
            Whether any value of the result is not finite.
        """
        assert isinstance(self._engine, RingEngine)
        xp, dtype = self.runtime.xp, self.spec.dtype
        with self._lock, on_device(self.runtime):
            w, scaled = self._ring_weights(w_in, w_out)
            if (first, last) not in self._pieces:
                self._pieces[first, last] = self._engine.piece(first, last, alone=True)
            p = self._pieces[first, last]
            given, found = (
                xp.empty((self.parts, p.npix_read), dtype),
                xp.empty((len(out), self.parts, p.npix_written), dtype),
            )
            self._settle()
            for line, source in zip(given, x.reshape(self.parts, -1), strict=True):
                at = 0
                for a, b in p.read:
                    self._copy_up(line[at : at + b - a], source[a:b])
                    at += b - a
            flags = xp.zeros(len(out), np.int32)
            side = self._fork()
            shape = () if self.parts == 1 else (self.parts,)
            self._engine.some(p, given.reshape(*shape, -1), found.reshape(len(out), *shape, -1), w, scaled, flags, side)
            self._join(side)
            flagged = bool(self._host(flags).any())
            for lines, targets in zip(found, out.reshape(len(out), self.parts, -1), strict=True):
                for line, target in zip(lines, targets, strict=True):
                    at = 0
                    for a, b in p.written:
                        self._copy_down(target[a:b], line[at : at + b - a])
                        at += b - a
            return flagged

    def prepared(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """With `Spec.band`: prepare a RING map in host memory ([2,] npix); the second result is for `finished`."""
        assert self._band is not None
        found = np.empty(x.shape, self.spec.dtype)
        with self._lock, on_device(self.runtime):
            held = self._buffer("map 0", x.shape)
            self._move(held, x, self._copy_up)
            self._band.prepare(held, held)
            self.runtime.synchronize()
            self._move(found, held, self._copy_down)
            return found, self._host(self._band.sums).copy()

    def added_up(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """With `Spec.band`: the sums of a map in host memory that `finished` needs for the transposed operator."""
        assert self._band is not None
        with self._lock, on_device(self.runtime):
            held = self._buffer("map 0", x.shape)
            self._move(held, x, self._copy_up)
            self._band.add_up(held)
            return self._host(self._band.sums).copy()

    def finished(self, out: NDArray[Any], sums: NDArray[np.float64], transposed: bool) -> NDArray[Any]:
        """With `Spec.band`: RING results in host memory (K, [2,] npix) after the last steps; ``out`` is not changed."""
        assert self._band is not None
        with self._lock, on_device(self.runtime):
            held = self._buffer("result", out.shape)
            self._move(held, out, self._copy_up)
            self._band.sums[...] = self.runtime.xp.asarray(sums)
            self._band.finish(held, transposed)
            self.runtime.synchronize()
            found = np.empty_like(out)
            self._move(found, held, self._copy_down)
            return found

    def _move(self, target: Any, source: Any, copy: Callable[[Any, Any], None]) -> None:
        npix = self.spec.table.npix
        for to, row in zip(target.reshape(-1, npix), source.reshape(-1, npix), strict=True):
            copy(to, row)

    def _copy_up(self, target: Any, source: NDArray[Any]) -> None:
        if self.runtime.xp is np:
            target[...] = source
        else:
            self._up.up(target, source)

    def _copy_down(self, target: NDArray[Any], source: Any) -> None:
        if self.runtime.xp is np:
            target[...] = source
        else:
            self._down.down(target, source)

    def mean_of(self, x: NDArray[Any], offset: float) -> float:
        """The mean of a map in host memory (npix,), as `run` computes it; 0 if it is not large."""
        xp = self.runtime.xp
        count = min(x.size, MOST_SEEN)
        with self._lock, on_device(self.runtime):
            some = xp.asarray(x[:: x.size // count][:count].astype(self.spec.dtype))
            found = xp.zeros(2 * LOOKS + 1, np.float64)
            self._look(some, found)
            (mean,) = self._means(self._host(found)[None], x.size, offset)
        return mean

    def empty(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array in host memory for results of `run`; see `ResultMemory`."""
        with self._lock, on_device(self.runtime):
            return self._results.empty(shape, self.spec.dtype)

    def _upload(self, maps: Any, b: int) -> Any:
        """Copy map ``b`` to the device: the array, or a function that waits for it; None after the last map."""
        if b >= len(maps):
            return None
        target = self._buffer(f"map {b % 2 if self._ahead else 0}", maps.shape[1:])

        def copy() -> None:
            with on_device(self.runtime):
                for part, row in zip(target.reshape(self.parts, -1), maps[b].reshape(self.parts, -1), strict=True):
                    self._up.up(part, row)

        if b == 0 or self._pool is None:
            copy()
            return target
        future = self._pool.submit(copy)

        def wait() -> Any:
            future.result()
            return target

        return wait

    def _buffer(self, name: str, shape: tuple[int, ...]) -> Any:
        held = self._buffers.get(name)
        if held is None or held.shape != shape:
            held = self._buffers[name] = self.runtime.xp.empty(shape, self.spec.dtype)
            self._settle()
        return held

    def _settle(self) -> None:
        """Wait for the current stream before new memory is filled by copies, which run on other streams.

        CuPy returns memory that was freed while work of this stream may still write to it.
        """
        if self.runtime.xp is not np:
            self.runtime.xp.cuda.get_current_stream().synchronize()

    def _good_pixels(self, maps: Any, out: Any, *options: Any) -> None:
        """Convolve maps on the device as `_on_device_maps` does; bad pixels count as 0 and are copied to the results.

        The host does not wait to learn whether there are any: if not, `restore_bad` returns at once.
        """
        xp, dtype = self.runtime.xp, self.spec.dtype
        found = xp.zeros(len(maps), np.int32)
        for i, (x, y) in enumerate(zip(maps, out, strict=True)):
            bad = found[i : i + 1]
            x = xp.ascontiguousarray(x, dtype)
            cleaned = self._buffer("cleaned", x.shape)
            size, grid = np.int64(x.size), (min(FEW_BLOCKS, -(-x.size // 256)),)
            self._maps.launch("clean", grid, (256,), (x, cleaned, bad, size))
            self._on_device_maps([cleaned], [y], *options)
            target = y if y.dtype == dtype and y.flags.c_contiguous else xp.ascontiguousarray(y, dtype)
            self._maps.launch("restore_bad", grid, (256,), (x, target, bad, size))
            if target is not y:
                y[...] = target

    def _on_device_maps(
        self, maps: Any, out: Any, weights: tuple[Any, list[Any]], nest: bool, good: Any, steady: Any, offset: float,
        transposed: bool,
    ) -> None:  # fmt: skip
        """Convolve maps on the device: arrays, or lists of one map each, which need no views by CuPy.

        The host reads the sums for their means and the flags once.  A single map is convolved before its mean is known,
        and again in the rare case that the mean is large.
        """
        count, kernels = len(maps), len(self.spec.radials)
        state = self.runtime.xp.zeros(count * (8 * (2 * LOOKS + 1) + 4 * kernels), np.uint8)

        def parts(state: Any) -> tuple[Any, Any]:
            sums = state[: 8 * count * (2 * LOOKS + 1)].view(np.float64).reshape(count, -1)
            return sums, state[8 * sums.size :].view(np.int32).reshape(count, kernels)

        sums, flags = parts(state)
        means = [0.0] * count
        if steady is not None:
            for x, found in zip(maps, sums, strict=True):
                self._look(x, found)
            if count > 1:
                means = self._means(self._host(sums), maps[0].shape[-1], offset)
        for x, y, mean, flag in zip(maps, out, means, flags, strict=True):
            self._whole(x, y, weights, nest, good, steady, mean, flag, transposed)
        sums_on_host, marked = parts(self._host(state))
        if steady is not None and count == 1:
            (mean,) = self._means(sums_on_host, maps[0].shape[-1], offset)
            if mean:
                flags[...] = 0
                self._whole(maps[0], out[0], weights, nest, good, steady, mean, flags[0], transposed)
                marked = self._host(flags)
        for b in np.flatnonzero(marked.any(axis=1)):
            if not bool(self.runtime.xp.isfinite(maps[b] if good is None else self._clean(maps[b], nest, good)).all()):
                out[b][...] = np.nan

    def _host(self, a: Any) -> NDArray[Any]:
        return np.asarray(a if self.runtime.xp is np else a.get())

    def _clean(self, x: Any, nest: bool, good: Any) -> Any:
        """A map in RING order, with masked pixels set to 0."""
        if nest:
            x = self._reorder(self.runtime.xp.ascontiguousarray(x, self.spec.dtype), back=False)
        return self.runtime.xp.where(good, x, self.spec.dtype.type(0))

    def _whole(
        self, x: Any, y: Any, weights: tuple[Any, list[Any]], nest: bool, good: Any, steady: Any, mean: float,
        flag: Any, transposed: bool,
    ) -> None:  # fmt: skip
        """Convolve one map ([2,] npix) into ``y`` (K, [2,] npix), both in the order of the grid."""
        xp, dtype = self.runtime.xp, self.spec.dtype
        x = xp.ascontiguousarray(x, dtype)
        if xp is not np and x.data.ptr % 16:
            x = x.copy()
        target = y
        if y.dtype != dtype or not y.flags.c_contiguous or (xp is not np and y.data.ptr % 16):
            target = xp.empty(y.shape, dtype)
        if good is not None:
            x = self._clean(x, nest, good)
        elif nest:
            x = self._reorder(x, back=False)
        if mean:
            x = x - dtype.type(mean)
        if self._band is not None and transposed:
            self._band.add_up(x)
        elif self._band is not None:  # a copy is changed in place, the caller's map is not
            staged = x if nest else self._buffer("band", x.shape)
            self._band.prepare(x, staged)
            x = staged
        self._one(x, target, *weights, flag)
        if self._band is not None:
            self._band.finish(target, transposed)
        if mean:
            constant = steady()
            if xp is not np and int(constant.device.id) != self.runtime.device.index:
                constant = constant.copy()  # from another GPU of the plan to this one
            for k in range(len(target)):
                target[k] += mean * constant[k]
        if good is not None:
            xp.copyto(target, 0, where=~good)  # rings outside of the mask are not written
        if nest:
            target = self._reorder(target, back=True)
        if target is not y:
            y[...] = target

    def _look(self, x: Any, found: Any) -> None:
        """Write sums of some pixels of a map (npix,) to ``found``, for its mean and standard deviation."""
        count = min(x.size, MOST_SEEN)
        seen = self.runtime.xp.ascontiguousarray(x, self.spec.dtype)
        self._maps.launch("look", (LOOKS,), (256,), (seen, found, np.int64(count), np.int64(x.size // count)))

    def _means(self, sums: NDArray[np.float64], npix: int, most: float) -> list[float]:
        """Means of maps of npix pixels, rounded to the dtype; 0 if they are below ``most`` standard deviations."""
        means = []
        for row in sums:
            s, t = row[:-1].reshape(LOOKS, 2).sum(axis=0) / min(npix, MOST_SEEN)
            mean, deviation = float(row[-1] + s), float(np.sqrt(max(0.0, t - s * s)))
            means.append(float(self.spec.dtype.type(mean)) if abs(mean) > most * deviation else 0.0)
        return means

    def _reorder(self, x: Any, back: bool) -> Any:
        out = self.runtime.xp.empty_like(x)
        npix = x.shape[-1]
        nside = np.int32(round((npix / 12) ** 0.5))
        for a, b in zip(x.reshape(-1, npix), out.reshape(-1, npix), strict=True):
            self._maps.launch(
                "reorder", (-(-npix // 256),), (256,), (a, b, nside, np.int32(back))
            )  # fmt: skip
        return out
