"""Several GPUs: they share the maps of a batch, or the rows of one map, each with the neighbouring rows that it needs.

A piece of the sky gets the same bits on every GPU.  If a GPU fails, another one repeats its work.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import is_device_array
from skysieve.core.gpu.sharing import Sharing, copy_rate, sharing
from skysieve.sphere.cuda.ring.engine import Piece, RingEngine
from skysieve.sphere.grids.healpix import bad_pixels, reorder

from .engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from skysieve.core.device import Device
    from skysieve.core.gpu.runtime import Runtime
    from skysieve.sphere.contract import Spec

__all__ = ["MultiGpuEngine"]

logger = logging.getLogger("skysieve")

MANY = 8
"""Number of maps for each GPU in the batch that `describe` assumes."""
MOST_MAPS = 4
"""Most maps of a batch that a GPU takes at a time."""


class MultiGpuEngine:
    """Convolution on several GPUs; see `cuda.engine.Engine`.

    Parameters
    ----------
    spec : Spec
    method : {"auto", "direct", "ring"}
    devices : sequence of Device
    memory : str or float, optional
        Budget of each GPU.
    threads : int, optional
        Not used; as for the CPU.
    runtimes : sequence of Runtime, optional
        Instead of ``devices``.
    """

    def __init__(
        self,
        spec: Spec,
        method: str = "auto",
        devices: Sequence[Device] = (),
        memory: str | float | None = None,
        threads: int | None = None,
        runtimes: Sequence[Runtime] = (),
    ) -> None:
        self.spec = spec
        first = Engine(
            spec,
            method,
            device=devices[0] if devices else None,
            memory=memory,
            runtime=runtimes[0] if runtimes else None,
        )
        self.engines = [first]
        others: list[dict[str, Any]] = [{"device": d} for d in devices[1:]] + [{"runtime": r} for r in runtimes[1:]]
        try:
            with ThreadPoolExecutor(max(1, len(others))) as pool:
                self.engines += pool.map(lambda where: Engine(spec, first.method, memory=memory, **where), others)
        except BaseException:
            first.close()
            raise
        self.method, self.parts = first.method, first.parts
        self.lost: list[Engine] = []
        self._pieces: dict[Engine, list[Piece]] = {}

    def close(self) -> None:
        """Free threads and memory."""
        for engine in self.engines:
            engine.close()
        self._pieces.clear()

    @property
    def nbytes(self) -> int:
        """See `contract.Engine.nbytes`."""
        return max(e.nbytes for e in self.engines)

    def describe(self) -> dict[str, Any]:
        """See `contract.Engine.describe`; ``bytes`` are those of one GPU, ``gpus`` and ``limit`` those of many maps in
        host memory."""
        first = self.engines[0].describe()
        batch = self._sharing(MANY * len(self.engines), self.spec.dtype.itemsize)
        shared = len(self.engines) if isinstance(self.engines[0]._engine, RingEngine) else 1
        return {
            **first,
            "device": ", ".join(str(e.runtime.device) for e in self.engines),
            "bytes": self.nbytes,
            "threads": shared,
            "gpus": batch.gpus,
            "limit": batch.limit,
        }

    def convolve(self, maps: Any, out: Any, w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """See `contract.Engine.convolve`: on the GPU that holds the maps."""
        self._owner(maps).convolve(maps, out, w_in, w_out)

    def ones(self, w_in: NDArray[Any], w_out: NDArray[Any]) -> Any:
        """See `cuda.engine.Engine.ones`."""
        return self._alive()[0].ones(w_in, w_out)

    def empty(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """See `cuda.engine.Engine.empty`."""
        return self._alive()[0].empty(shape)

    def run(
        self, maps: Any, out: Any, w_in: NDArray[Any], w_out: NDArray[Any], *, nest: bool = False,
        mask: NDArray[np.bool_] | None = None, steady: Callable[[], Any] | None = None, offset: float = 8.0,
        transposed: bool = False, skip_bad: bool = False,
    ) -> None:  # fmt: skip
        """See `cuda.engine.Engine.run`; maps in GPU memory are convolved on the GPU that holds them."""
        options: dict[str, Any] = {"nest": nest, "mask": mask, "steady": steady, "offset": offset}
        options["transposed"] = transposed
        if is_device_array(maps):
            self._owner(maps).run(maps, out, w_in, w_out, skip_bad=skip_bad, **options)
            return
        alive = self._alive()
        if len(maps) >= len(alive) or not isinstance(alive[0]._engine, RingEngine):
            step = max(1, min(MOST_MAPS, len(maps) // (2 * len(alive))))

            def some(engine: Engine, at: slice) -> None:
                engine.run(maps[at], out[at], w_in, w_out, skip_bad=skip_bad, **options)

            tasks = [slice(a, min(a + step, len(maps))) for a in range(0, len(maps), step)]
            self._deal(tasks, some, self._sharing(len(maps), maps.dtype.itemsize).gpus)
            return
        for x, y in zip(maps, out, strict=True):
            bad = bad_pixels(x, self.spec.dtype) if skip_bad else None
            self._sky(x if bad is None else np.where(bad, x.dtype.type(0), x), y, w_in, w_out, options)
            if bad is not None:
                np.copyto(y[0], x, where=bad, casting="unsafe")

    # ------------------------------------------------------------------ inside
    def _alive(self) -> list[Engine]:
        alive = [e for e in self.engines if e not in self.lost]
        if not alive:
            raise RuntimeError("every GPU of the plan has failed: make a new plan")
        return alive

    def _owner(self, maps: Any) -> Engine:
        """The engine of the GPU that holds the maps."""
        if not is_device_array(maps):
            return self._alive()[0]
        for engine in self.engines:
            if engine.runtime.device.index == int(maps.device.id):
                return engine
        raise ValueError(f"the maps are on cuda:{int(maps.device.id)}, expected one of the plan's GPUs")

    def _sharing(self, maps: int, itemsize: int) -> Sharing:
        """The number of GPUs to use for a number of maps in host memory."""
        alive = self._alive()
        planes = itemsize + len(self.spec.radials) * self.spec.dtype.itemsize
        nbytes = float(maps * self.parts * self.spec.table.npix * planes)
        return sharing(len(alive), maps * alive[0]._engine.seconds(), nbytes, copy_rate())

    def _deal(self, tasks: list[Any], work: Callable[[Engine, Any], None], most: int | None = None) -> None:
        """Run every task on some GPU that works, ``most`` at a time; raise the last error if all GPUs have failed."""
        queue, changed = deque(tasks), threading.Condition()
        running, stopped = 0, False
        failed: list[BaseException] = []

        def take() -> Any:
            """The next task; None if there is none, and no running task can be returned by a GPU that fails."""
            nonlocal running
            with changed:
                while not queue and running and not stopped:
                    changed.wait()
                if not queue or stopped:
                    return None
                running += 1
                return queue.popleft()

        def done(back: Any = None, stop: bool = False) -> None:
            nonlocal running, stopped
            with changed:
                running -= 1
                stopped = stopped or stop
                if back is not None:
                    queue.appendleft(back)
                changed.notify_all()

        def draw(engine: Engine) -> None:
            with places:
                serve(engine)

        def serve(engine: Engine) -> None:
            while (task := take()) is not None:
                finished = False
                try:
                    work(engine, task)
                    finished = True
                except (RuntimeError, MemoryError) as error:
                    logger.warning("%s failed (%s); the other GPUs repeat its work", engine.runtime.device, error)
                    failed.append(error)
                    self.lost.append(engine)
                    finished = True
                    done(back=task)
                    return
                finally:
                    if not finished:  # an error of the input: the other GPUs stop, and it is raised below
                        done(stop=True)
                done()

        alive = self._alive()
        places = threading.Semaphore(most or len(alive))  # a GPU beyond them takes the place of one that fails
        with ThreadPoolExecutor(len(alive), "skysieve-gpu") as pool:
            ends = [pool.submit(draw, engine) for engine in alive]
            try:
                for end in ends:
                    end.result()
            except BaseException:  # also an interruption: tasks that have not begun are dropped
                with changed:
                    stopped = True
                    changed.notify_all()
                raise
        if queue:
            raise failed[-1]

    def _by_one(self, work: Callable[[Engine], Any]) -> Any:
        """The result of ``work`` on one GPU that works."""
        found: list[Any] = []
        self._deal([()], lambda engine, _: found.append(work(engine)))
        return found[-1]

    def _sky(self, x: Any, y: Any, w_in: NDArray[Any], w_out: NDArray[Any], options: dict[str, Any]) -> None:
        """Convolve one map in host memory ([2,] npix) into ``y`` (K, [2,] npix), with its rows shared."""
        dtype, mask, steady = self.spec.dtype, options["mask"], options["steady"]
        given = x
        lines = x.shape[:-1]
        if options["nest"]:
            x = np.stack([reorder(np.ascontiguousarray(r), to="ring") for r in x.reshape(self.parts, -1)]).reshape(
                x.shape
            )
        if mask is not None:
            x = np.where(mask, x, x.dtype.type(0))
        mean = 0.0 if steady is None else self._mean(given, options["offset"])
        if mean:
            x = x.astype(dtype) - dtype.type(mean)
        sums: Any = None
        if self.spec.band and options["transposed"]:
            sums = self._by_one(lambda engine: engine.added_up(x))
        elif self.spec.band:
            x, sums = self._by_one(lambda engine: engine.prepared(x))
        ring = not options["nest"] and y.dtype == dtype and y.flags.c_contiguous
        target = y if ring else np.empty(y.shape, dtype)
        first = self._alive()[0]
        assert isinstance(first._engine, RingEngine)
        pieces = first._engine.pieces  # more than one if the budget requires it
        if len(pieces) <= len(self._alive()):
            tasks = [(int(a), int(b)) for a, b in pairwise(np.unique(first._engine.cuts(len(self._alive()))))]
        else:
            tasks = [(p.first, p.last) for p in pieces]
        flagged: list[bool] = []

        def work(engine: Engine, rows: tuple[int, int]) -> None:
            flagged.append(engine.rows(x, target, w_in, w_out, *rows))

        self._deal(tasks, work)
        if mean and steady is not None:
            constant = steady()
            constant = np.asarray(constant if isinstance(constant, np.ndarray) else constant.get())
            for k in range(len(target)):
                target[k] += mean * constant[k]
        if self.spec.band:
            target = self._by_one(lambda engine: engine.finished(target, sums, options["transposed"]))
        if any(flagged) and not np.isfinite(x if mask is not None else given).all():
            target[...] = np.nan
        if mask is not None:
            np.copyto(target, 0, where=np.broadcast_to(~mask, (*lines, len(mask))))
        if target is not y:
            for a, b in zip(target.reshape(-1, target.shape[-1]), y.reshape(-1, y.shape[-1]), strict=True):
                b[...] = reorder(a, to="nest") if options["nest"] else a

    def _mean(self, x: NDArray[Any], offset: float) -> float:
        """The mean of a map, as one GPU computes it from the whole map."""
        return self._alive()[0].mean_of(x, offset)
