"""The public functions for transient F-statistic maps: check arguments, choose the backend, build the result."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import real_dtype
from skysieve.core.device import Device, current, for_size, resolve
from skysieve.core.engine_cache import ENGINES
from skysieve.core.plan import Plan
from skysieve.core.progress import reporting
from skysieve.fstat.inputs.atoms import positive
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.checks import refuse_map, refuse_short
from skysieve.fstat.inputs.files import AtomsLike, as_list
from skysieve.fstat.inputs.grid import Grid, Schedule, Times, make_schedule, refuse_tables
from skysieve.fstat.inputs.window_kinds import Algorithm
from skysieve.fstat.inputs.windows import Window, WindowLike, resolve_window
from skysieve.fstat.result.map import Coverage, TransientResult

from .contract import Compat, Dtype, Engine, MapJob, Output, Spec, check_compat, make_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from skysieve.fstat.inputs.atoms import Atoms

__all__ = ["TransientPlan", "transient_map"]


SMALL_CELLS = 2**17
"""Below this number of cells, the device "auto" is the CPU for rectangular or exponential maps of atoms in host memory.
Such a map takes 0.6 ms on one core, less than the kernel launches and copies of a GPU."""


def make_engine(spec: Spec, device: Device, memory: str | float | None, threads: int | None) -> Engine:
    """An engine for a device; the backend is chosen here and nowhere else."""
    if device.kind == "cuda":
        from skysieve.fstat.cuda import engine as cuda

        with current(device):
            return cuda.Engine(spec, device=device, memory=memory, threads=threads)
    from skysieve.fstat.cpu import engine as cpu

    return cpu.Engine(spec, device=device, memory=memory, threads=threads)


def choose_device(device: str | Device, lal: bool) -> Device:
    """The device of a plan; "auto" is the CPU for LALPulsar's arithmetic."""
    found = resolve(device)[0]
    return resolve("cpu")[0] if lal and device == "auto" else found


def check_grid(grid: Grid | None) -> None:
    """Raise TypeError if `grid` is neither a `Grid` nor None."""
    if grid is not None and not isinstance(grid, Grid):
        raise TypeError(f"grid is a {type(grid).__name__}, expected a Grid")


def device_for(device: str | Device, atoms: list[Atoms], grid: Grid | None, window: Window) -> str | Device:
    """The device of one map: "auto" is the CPU for a small one, see `SMALL_CELLS`."""
    recurrent = window.algorithm in (Algorithm.RUNNING_SUMS, Algorithm.RECURRENCE)
    if device != "auto" or not recurrent or any(a.on_device for a in atoms):
        return device
    bins = Times.of([a.t for a in atoms], atoms[0].tatom).n
    cells = grid.cells if grid is not None else 0 if window.whole else bins**2
    return for_size(device, bins + cells, SMALL_CELLS + 1)


def transient_map(
    atoms: AtomsLike,
    grid: Grid | None = None,
    *,
    window: WindowLike = "rect",
    efold: float = 3,
    dtype: Dtype = "float64",
    device: str | Device = "auto",
    compat: Compat | None = None,
    keep_map: bool = True,
    posteriors: bool = True,
    strict: bool = True,
    rhohatmax: float = 1,
    memory: str | float | None = None,
    threads: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> TransientResult:
    """F-statistic of transient signals that start at any t0 and last for any tau of a grid.

    Parameters
    ----------
    atoms : Atoms, path, or sequence of them
        Atoms of one template: one entry for each detector, or files of atoms.
    grid : Grid, optional
        Start times and durations; `Grid.full` by default.  Not needed for the window "none".
    window : {"rect", "exp", "none"}, WindowSum or callable
        Amplitude of the signal as a function of ``x = (t - t0) / tau``: "rect" is 1, "exp" is ``exp(-x)``, "none" is 1
        over all data.  A `WindowSum` is a sum of polynomials times exponentials; a callable takes and returns an array.
    efold : float
        Windows without a fixed end ("exp", a `WindowSum`, a callable) end at ``t0 + efold tau``.
    dtype : {"float64", "float32"}
        Type of the computation and of the map.
    device : {"auto", "cpu", "cuda", "cuda:N"}
        "auto" is a GPU if a usable one is found, `compat` is None and the map is large enough to be faster there.
        With atoms in CuPy arrays and a GPU the map is a CuPy array.
    compat : {None, "lalpulsar"}
        "lalpulsar" reproduces LALPulsar's F of every cell bit for bit, and ln B to 1e-12: the same float32 operations
        in the same order, the same table of exponentials (which is off by up to 0.5%, and F by up to 1.8%), and the
        same most probable values.
    keep_map : bool
        Return F of every cell.  If False, no array of the size of the map is allocated, except with `compat`.
    posteriors : bool
        Compute the posteriors of t0 and tau.
    strict : bool
        Raise if a cell's window holds fewer than two SFTs; otherwise such cells are NaN and the others are computed.
    rhohatmax : float
        Largest signal-to-noise ratio of the amplitude prior of `lnBtSG`.
    memory : str or float, optional
        Limit of the working memory: a share of the free memory ("80%"), a size ("2 GiB"), or a number of bytes.
    threads : int, optional
        CPU threads; all cores by default.
    progress : bool or callable
        Show a progress bar, or call ``progress(done, total)`` from time to time.

    Returns
    -------
    TransientResult
        ``.F``, ``.twoF``, ``.max2F``, ``.t0_ml``, ``.tau_ml``, ``.lnBtSG``, ``.p_t0``, ``.p_tau``, ``.t0_mp``,
        ``.tau_mp``, ``.credible_interval()``, ``.plot()``, ``.write_text()``, ``.save()``.

    Raises
    ------
    ValueError, TypeError
        An argument is invalid.
    MemoryBudgetError
        The map does not fit into memory.
    DeviceUnavailable
        The device that was named cannot be used.

    Notes
    -----
    F and the rules for the bins of a window follow [1]_ and LALPulsar; times before the data count as empty.  For
    rectangular windows, the sums for one tau are extended to the next.  For exponential windows, [2]_ sums every cell
    separately; here a recurrence in t0 gives the sums at a cost of a few operations for each cell.  F is set to 2, its
    mean in noise, where the antenna-pattern matrix has a condition number above 1e4 or the window holds no data.

    References
    ----------
    .. [1] Prix, Giampanis & Messenger 2011, Phys. Rev. D 84, 023007
    .. [2] Keitel & Ashton 2018, Class. Quantum Grav. 35, 205003

    Examples
    --------
    >>> from skysieve.fstat import Injection, synth_atoms, transient_map
    >>> signal = Injection(t0=1000180000, tau=108000, snr=15, window="exp")
    >>> result = transient_map(synth_atoms(inject=signal, seed=3), window="exp")
    >>> abs(result.t0_ml - signal.t0) <= 7200, result.max2F > 150
    (True, True)
    """
    found, shape = as_list(atoms), resolve_window(window, efold)
    check_grid(grid)
    chosen = choose_device(device_for(device, found, grid, shape), compat is not None)
    options: dict[str, Any] = {
        "window": window, "efold": efold, "dtype": dtype, "device": chosen, "compat": compat, "keep_map": keep_map,
        "posteriors": posteriors, "strict": strict, "rhohatmax": rhohatmax, "memory": memory, "threads": threads,
    }  # fmt: skip

    def make() -> TransientPlan:
        return TransientPlan(**options)

    if shape.kind == "any":  # a function may return other values at the next call
        with make() as plan:
            return plan.execute(found, grid=grid, progress=progress)
    key = (TransientPlan, *options.items())

    def compute() -> TransientResult:
        with ENGINES.borrow(key, make, chosen, TransientPlan.idle_bytes) as plan:
            return plan.execute(found, grid=grid, progress=progress)

    return ENGINES.retried(chosen, compute)


class TransientPlan(Plan):
    """Transient F-statistic maps that are set up once, for many templates on one grid.

    Use the plan as a context manager, or call `close`.

    Parameters
    ----------
    grid, window, efold, dtype, device, compat, keep_map, posteriors, strict, rhohatmax, memory, threads : optional
        As for `transient_map`.

    Raises
    ------
    ValueError, TypeError
        An option is invalid.
    DeviceUnavailable
        The device that was named cannot be used.

    Examples
    --------
    >>> from skysieve.fstat import TransientPlan, synth_atoms
    >>> with TransientPlan(window="exp", dtype="float32", keep_map=False) as plan:
    ...     loudest = [plan.execute(synth_atoms(span=86400, seed=i)).max2F for i in range(3)]
    >>> all(4 < twoF < 60 for twoF in loudest)
    True
    """

    def __init__(
        self,
        grid: Grid | None = None,
        *,
        window: WindowLike = "rect",
        efold: float = 3,
        dtype: Dtype = "float64",
        device: str | Device = "auto",
        compat: Compat | None = None,
        keep_map: bool = True,
        posteriors: bool = True,
        strict: bool = True,
        rhohatmax: float = 1,
        memory: str | float | None = None,
        threads: int | None = None,
    ) -> None:
        check_grid(grid)
        self.window = resolve_window(window, efold)
        if compat is not None:
            check_compat(compat, self.window)
        self._memory = memory
        self.grid, self.compat, self.strict = grid, compat, bool(strict)
        self.rhohatmax = positive(rhohatmax, "rhohatmax")
        real = np.dtype(np.float32) if compat else real_dtype(dtype)
        self.spec = Spec(self.window, real, bool(keep_map), bool(posteriors), compat is not None)
        self._last: tuple[Times, Grid, Schedule] | None = None
        self.device = choose_device(device, self.spec.lal)
        self._engine: Engine | None = make_engine(self.spec, self.device, memory, threads)

    def __repr__(self) -> str:
        grid = "full grid" if self.grid is None else "{} x {} cells".format(*self.grid.shape)
        return f"<TransientPlan: {self.window.name}, {grid} on {self.device}, {self.spec.dtype.name}>"

    def close(self) -> None:
        """Free threads and device memory; the plan cannot be used any more."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def idle_bytes(self) -> int:
        """Bytes that the plan holds on its device between calls."""
        return 0 if self._engine is None else self._engine.nbytes

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise ValueError("this TransientPlan is closed")
        return self._engine

    def describe(self, atoms: AtomsLike) -> dict[str, Any]:
        """Method, device, type, bytes and predicted seconds for these atoms, without computing the map.

        Further keys are ``window``, ``grid`` (its shape), ``cells`` and ``paper_bytes``.  ``paper_bytes`` is the memory
        by eq. 9 of Keitel & Ashton 2018: 4 bytes for each cell and for each of the 7 numbers of an SFT.  ``bytes`` is
        the size of the atoms, the axes and the map here; ``moved`` is the size of the atoms and the map.  ``seconds``
        (on an idle machine) and ``processor_seconds`` (of all threads) follow the model in appendix A of the paper,
        with constants measured on this machine; they are None before ``skysieve info --measure`` has run.
        """
        engine = self._open_engine()
        _, grid, job = self._prepare(atoms, None)
        further = {"window": self.window.name, "grid": grid.shape, "paper_bytes": 4 * (7 * job.n + grid.cells)}
        return engine.describe(job) | further

    def execute(
        self,
        atoms: AtomsLike,
        *,
        grid: Grid | None = None,
        progress: bool | Callable[[int, int], None] = False,
    ) -> TransientResult:
        """The map of one template, on the plan's grid or on another; see `transient_map`."""
        engine, found = self._open_engine(), as_list(atoms)
        check_grid(grid)
        on_device = self.device.kind == "cuda" and any(a.on_device for a in found)
        map_on_host = (self.spec.keep_map or self.spec.lal) and not on_device
        bins, grid, job = self._prepare(found, grid, map_on_host)
        if on_device:
            job = _on_gpu(job, self.device)  # then the map stays on the GPU too
        with current(self.device), reporting(progress, "transient F-statistic") as report:
            output = engine.execute(job, progress=report)
        return self._result(bins, grid, job, output)

    def _prepare(self, atoms: AtomsLike, grid: Grid | None, map_on_host: bool = False) -> tuple[Bins, Grid, MapJob]:
        found = as_list(atoms)
        bins = bin_atoms(found)
        if self.window.whole:
            grid = Grid.whole(bins)
        elif grid is None:
            grid = Grid.full(found) if self.grid is None else self.grid
        host = self._memory if self.device.kind == "cpu" else None  # on a GPU, the budget limits device memory
        if map_on_host:
            refuse_map(grid.shape, grid.cells * self.spec.dtype.itemsize, self.spec.lal, host)
        job = make_job([bins], grid, self.window, self.spec.dtype, self._schedule(bins, grid, host))
        if self.strict:
            refuse_short(bins, grid, self.window, job.schedule)
        return bins, grid, job

    def _schedule(self, bins: Bins, grid: Grid, memory: str | float | None) -> Schedule:
        """The bins of every cell; the schedule of the last call is cached."""
        times = Times(bins.t_start, bins.tatom, bins.n)
        if self._last is None or self._last[0] != times or self._last[1] != grid:
            refuse_tables(grid, bins.tatom, memory)
            self._last = times, grid, make_schedule(grid, self.window, bins)
        return self._last[2]

    def _result(self, bins: Bins, grid: Grid, job: MapJob, output: Output) -> TransientResult:
        flat = int(output.index[0])
        return TransientResult(
            F=None if output.F is None else output.F[0],
            grid=grid,
            max_F=float(output.max_F[0]),
            index=None if flat < 0 else (flat // grid.shape[1], flat % grid.shape[1]),
            log_sum=float(output.log_sum[0]),
            n_cells=job.schedule.n_valid(),
            n_fallback=int(output.n_fallback[0]),
            window=self.window.name,
            efold=self.window.efold,
            device=str(self.device),
            dtype=self.spec.dtype.name,
            compat=self.compat,
            rhohatmax=self.rhohatmax,
            coverage=Coverage(bins.t_start, bins.tatom, bins.occupied),
            row_log=None if output.row_log is None else output.row_log[0],
            column_log=None if output.column_log is None else output.column_log[0],
        )


def _on_gpu(job: MapJob, device: Device) -> MapJob:
    """The job with its bins copied to a GPU."""
    import cupy

    with current(device):
        bank = replace(job.bank, antenna=cupy.asarray(job.bank.antenna), data=cupy.asarray(job.bank.data))
    return replace(job, bank=bank)
