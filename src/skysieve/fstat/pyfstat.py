"""Atoms from lalpulsar's structures, and PyFstat's searches on skysieve."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.fstat.inputs.atoms import Atoms
from skysieve.fstat.inputs.grid import Grid, Times, make_schedule
from skysieve.fstat.inputs.window_kinds import KINDS, WindowName
from skysieve.fstat.inputs.windows import Window
from skysieve.fstat.result.map import ln_bayes
from skysieve.fstat.template_search.cells import F_of_sums

from .api import TransientPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.device import Device

    from .contract import Compat, Dtype

__all__ = ["from_lal", "register_pyfstat"]

FIELDS = ("timestamp", "a2_alpha", "b2_alpha", "ab_alpha", "Fa_alpha", "Fb_alpha")
TYPES = (np.int64, np.float32, np.float32, np.float32, np.complex64, np.complex64)
STRUCT = np.dtype(list(zip(FIELDS, ("u4", "f4", "f4", "f4", "c8", "c8"), strict=True)))
"""LALPulsar's ``FstatAtom`` in memory."""


def from_lal(multi_atoms: Any, detectors: list[str] | None = None) -> list[Atoms]:
    """Atoms from a ``lalpulsar.MultiFstatAtomVector``.

    Parameters
    ----------
    multi_atoms : lalpulsar.MultiFstatAtomVector
        As ``ComputeFstat`` returns it in ``multiFatoms[0]``.
    detectors : list of str, optional
        Names; the default is ``"D0"``, ``"D1"`` ...

    Returns
    -------
    list of Atoms
        One entry for each detector; the numbers are copied.

    Raises
    ------
    TypeError
        `multi_atoms` is something else.
    ValueError
        The number of `detectors` is wrong.
    """
    if not hasattr(multi_atoms, "data") or not hasattr(multi_atoms, "length"):
        raise TypeError(f"multi_atoms is a {type(multi_atoms).__name__}, expected a lalpulsar MultiFstatAtomVector")
    n = int(multi_atoms.length)
    names = [f"D{i}" for i in range(n)] if detectors is None else list(detectors)
    if len(names) != n:
        raise ValueError(f"detectors={names} names {len(names)}, multi_atoms holds {n}")
    out = []
    for i, name in enumerate(names):
        vector = multi_atoms.data[i]
        found = _records(vector)
        columns: list[Any] = [found[f].astype(kind) for f, kind in zip(FIELDS, TYPES, strict=True)]
        t, a2, b2, ab, fa, fb = columns
        out.append(Atoms(t, a2, b2, ab, fa, fb, int(vector.TAtom), name))
    return out


def _records(vector: Any) -> NDArray[Any]:
    """Atoms of a ``FstatAtomVector`` as `STRUCT`: a view of its memory if that is possible, else atom by atom."""
    data, length = vector.data, int(vector.length)
    if isinstance(data, np.ndarray) and data.dtype.itemsize == STRUCT.itemsize and data.flags.c_contiguous:
        memory = (ctypes.c_char * data.nbytes).from_address(data.ctypes.data)
        return np.frombuffer(memoryview(memory), STRUCT, length)
    return np.array([tuple(getattr(data[j], f) for f in FIELDS) for j in range(length)], STRUCT)


def register_pyfstat(
    name: str = "skysieve",
    *,
    device: str | Device = "auto",
    dtype: Dtype = "float32",
    compat: Compat | None = None,
    threads: int | None = None,
) -> None:
    """Make PyFstat's own searches use skysieve, by ``tCWFstatMapVersion="skysieve"``.

    Parameters
    ----------
    name : str
        Its name in PyFstat; registering a name again replaces its options.
    device, dtype, compat, threads : optional
        As for `skysieve.fstat.transient_map`.

    Raises
    ------
    ModuleNotFoundError
        PyFstat is not installed.
    ValueError
        The name is one of PyFstat's own, or an option does not fit.

    Notes
    -----
    ``TransientGridSearch``, ``MCMCTransientSearch`` and everything else in PyFstat that makes transient maps accept the
    name.  Cells whose window holds fewer than two SFTs have F = 0; LALPulsar stops at them.  The most probable values
    are centres of LALPulsar's bins.

    Examples
    --------
    >>> register_pyfstat()                                              # doctest: +SKIP
    >>> pyfstat.TransientGridSearch(..., tCWFstatMapVersion="skysieve") # doctest: +SKIP
    """
    from pyfstat import tcw_fstat_map_funcs as maps

    if name in ("lal", "pycuda") or "cuda" in name:
        raise ValueError(f"name={name!r}: PyFstat has its own meaning for it")
    maker = MapMaker(maps.pyTransientFstatMap, device, dtype, compat, threads)
    maps.fstatmap_versions[name] = maker
    wrapped = getattr(maps.init_transient_fstat_map_features, "skysieve_names", None)
    if wrapped is not None:
        wrapped.add(name)
        return
    names = {name}
    features, init = maps._get_transient_fstat_map_features, maps.init_transient_fstat_map_features

    @functools.wraps(features)
    def features_too() -> dict[str, bool]:
        return {**features(), **dict.fromkeys(names, True)}

    @functools.wraps(init)
    def init_too(feature: str = "lal", cudaDeviceName: str | None = None) -> Any:
        if feature in names:
            return features_too(), None
        return init(feature, cudaDeviceName)

    init_too.skysieve_names = names  # type: ignore[attr-defined]
    maps._get_transient_fstat_map_features = features_too
    maps.init_transient_fstat_map_features = init_too


WINDOWS: dict[int, WindowName] = {
    number: name for name in get_args(WindowName) if (number := KINDS[name].lal) is not None
}
"""Names of the windows by LALPulsar's numbers."""


class MapMaker:
    """PyFstat calls ``maker(multiFstatAtoms, windowRange, BtSG)``; the plans are kept between calls."""

    def __init__(self, make: Any, device: str | Device, dtype: Any, compat: str | None, threads: int | None) -> None:
        self.make = make
        self.options: dict[str, Any] = {"device": device, "dtype": dtype, "compat": compat, "threads": threads}
        self.plans: dict[WindowName, TransientPlan] = {}
        self.plan("rect")  # raises now if an option does not fit

    def plan(self, window: WindowName) -> TransientPlan:
        """The plan for a window."""
        if window not in self.plans:
            self.plans[window] = TransientPlan(window=window, strict=False, **self.options)
        return self.plans[window]

    def __call__(self, multiFstatAtoms: Any, windowRange: Any, BtSG: bool = False) -> Any:
        window = WINDOWS.get(int(windowRange.type))
        if window is None:
            raise ValueError(f"windowRange.type={windowRange.type}: expected one of {sorted(WINDOWS)}")
        grid = grid_of_lal(windowRange, window)
        if grid is not None and grid.cells == 1 and self.options["compat"] is None:
            return self.one(multiFstatAtoms, grid, window, BtSG)
        result = self.plan(window).execute(from_lal(multiFstatAtoms), grid=grid)
        found = self.make(*result.grid.shape)
        found.F_mn = np.nan_to_num(to_host(result.F).astype(np.float32), nan=0.0)
        if result.index is None:
            return found
        found.maxF, found.t0_ML, found.tau_ML = result.max_F, float(result.t0_ml or 0), float(result.tau_ml or 0)
        if BtSG:
            found.lnBtSG = result.lnBtSG
            found.t0_MP, found.tau_MP = result.bin_mode("t0"), result.bin_mode("tau")
        return found

    def one(self, multiFstatAtoms: Any, grid: Grid, window: WindowName, BtSG: bool) -> Any:
        """A map of one cell, which a Markov chain needs at each step: its few bins are added here, in float64."""
        found = self.make(1, 1)
        F = cell_of_lal(multiFstatAtoms, grid, self.plan(window).window)
        if np.isnan(F):
            return found
        t0, tau = float(grid.t0s[0]), float(grid.taus[0])
        found.F_mn[0, 0] = F
        found.maxF, found.t0_ML, found.tau_ML = F, t0, tau
        if BtSG:
            found.lnBtSG, found.t0_MP, found.tau_MP = float(ln_bayes(F, 1, 1)), t0, tau
        return found


def cell_of_lal(multi_atoms: Any, grid: Grid, window: Window) -> float:
    """F of the first cell of a grid; NaN if its window holds fewer than two bins."""
    vectors = [multi_atoms.data[i] for i in range(int(multi_atoms.length))]
    streams = [_records(v) for v in vectors]
    times = [s["timestamp"].astype(np.int64) for s in streams]
    width = int(vectors[0].TAtom)
    bins = Times.of(times, width)
    start = bins.t_start
    schedule = make_schedule(grid, window, bins)
    if not schedule.n_valid():
        return float("nan")
    first, length, offset = int(schedule.first[0]), int(schedule.length[0, 0]), int(schedule.offset[0])
    tau = float(grid.taus[0])
    sums = np.zeros(7)
    for t, records in zip(times, streams, strict=True):
        a, b = np.searchsorted(t, (start + first * width, start + (first + length) * width))
        if a == b:
            continue
        w = window.weights((offset + width * ((t[a:b] - start) // width - first)) / tau)
        x = records[a:b].view("f4").reshape(b - a, 8)  # the time, then the seven numbers
        sums[:3] += (w * w) @ x[:, 1:4]
        sums[3:] += w @ x[:, 4:]
    if not np.isfinite(sums).all():
        raise ValueError("multiFstatAtoms holds values that are not finite")
    return F_of_sums(sums)


def grid_of_lal(window_range: Any, window: str) -> Grid | None:
    """The grid of a ``lalpulsar.transientWindowRange_t``; None for the window "none"."""
    if window == "none":
        return None
    names = {"t0": "t0", "t0_band": "t0Band", "dt0": "dt0", "tau": "tau", "tau_band": "tauBand", "dtau": "dtau"}
    values = {ours: int(getattr(window_range, theirs)) for ours, theirs in names.items()}
    for step, band in (("dt0", "t0_band"), ("dtau", "tau_band")):
        if values[step] == 0 and values[band] == 0:
            values[step] = 1  # for one cell the step has no meaning
    return Grid(**values)
