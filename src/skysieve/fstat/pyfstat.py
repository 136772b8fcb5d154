"""Atoms from lalpulsar's structures, and PyFstat's searches on skysieve."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from skysieve.core.arrays import to_host
from skysieve.fstat.inputs.atoms import Atoms
from skysieve.fstat.inputs.grid import Grid, Times, make_schedule
from skysieve.fstat.inputs.window_kinds import KINDS, WindowName
from skysieve.fstat.inputs.windows import Window
from skysieve.fstat.result.map import TransientResult, ln_bayes
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

    Examples
    --------
    >>> atoms = from_lal(results.multiFatoms[0], detectors=["H1", "L1"])  # doctest: +SKIP

    Any object with the fields of LALPulsar's structures is read:

    >>> from types import SimpleNamespace as Struct
    >>> one = {"timestamp": 1_000_000_000, "a2_alpha": 0.4, "b2_alpha": 0.3, "ab_alpha": 0.1}
    >>> vector = Struct(length=1, TAtom=1800, data=[Struct(**one, Fa_alpha=1 + 2j, Fb_alpha=3 + 4j)])
    >>> atoms = from_lal(Struct(length=1, data=[vector]), detectors=["H1"])
    >>> atoms[0].detector, atoms[0].t.tolist()
    ('H1', [1000000000])
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
    """Atoms of a ``FstatAtomVector`` as `STRUCT`: a view of its memory if possible, otherwise a copy atom by atom."""
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
        The name is one of PyFstat's own, or an option is invalid.

    Notes
    -----
    ``TransientGridSearch``, ``MCMCTransientSearch`` and everything else in PyFstat that makes transient maps accept the
    name.  Cells whose window holds fewer than two SFTs have F = 0; LALPulsar stops at them.  The most probable values
    are centres of LALPulsar's bins; for the window "none" they are the centre of the range that PyFstat asks for, as in
    LALPulsar, whereas ``t0_ML`` and ``tau_ML`` follow from the data.  PyFstat's searches need statistics only: ``F_mn``
    is computed when it is read (unless `compat` needs the map), from a copy of the atoms.

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

    init_too.skysieve_names = names  # pyrefly: ignore[missing-attribute]  # a second call reads it
    maps._get_transient_fstat_map_features = features_too
    maps.init_transient_fstat_map_features = init_too


WINDOWS: dict[int, WindowName] = {
    number: name for name in get_args(WindowName) if (number := KINDS[name].lal) is not None
}
"""Names of the windows by LALPulsar's numbers."""


class MapMaker:
    """The function that PyFstat calls: ``maker(multiFstatAtoms, windowRange, BtSG)``.  Later calls reuse the plans."""

    def __init__(self, make: Any, device: str | Device, dtype: Any, compat: str | None, threads: int | None) -> None:
        self.make = make
        self.options: dict[str, Any] = {"device": device, "dtype": dtype, "compat": compat, "threads": threads}
        self.plans: dict[tuple[WindowName, bool, bool], TransientPlan] = {}
        self.plan("rect")  # raises now if an option is invalid

    def plan(self, window: WindowName, keep_map: bool = False, posteriors: bool = False) -> TransientPlan:
        """The plan for a window."""
        key = window, keep_map, posteriors
        if key not in self.plans:
            self.plans[key] = TransientPlan(
                window=window, strict=False, keep_map=keep_map, posteriors=posteriors, **self.options
            )
        return self.plans[key]

    def __call__(self, multiFstatAtoms: Any, windowRange: Any, BtSG: bool = False) -> Any:
        window = WINDOWS.get(int(windowRange.type))
        if window is None:
            raise ValueError(f"windowRange.type={windowRange.type}: expected one of {sorted(WINDOWS)}")
        grid = grid_of_lal(windowRange, window)
        exact = self.options["compat"] is None
        if grid is not None and grid.cells == 1 and exact:
            return self.one(multiFstatAtoms, grid, window, BtSG)
        atoms = from_lal(multiFstatAtoms)
        result = self.plan(window, not exact, BtSG).execute(atoms, grid=grid)
        found = self.make(1, 1)
        found.F_mn = _map_of(result) if result.F is not None else LazyMap(self, atoms, result, window)
        if result.index is None:
            return found
        found.get_maxF_idx = partial(tuple, result.index)
        found.maxF, found.t0_ML, found.tau_ML = result.max_F, float(result.t0_ml or 0), float(result.tau_ml or 0)
        if BtSG:
            found.lnBtSG = result.lnBtSG
            if window == "none":  # LALPulsar's posterior is then uniform over the range that it was given
                found.t0_MP = windowRange.t0 + 0.5 * windowRange.t0Band
                found.tau_MP = windowRange.tau + 0.5 * windowRange.tauBand
            else:
                found.t0_MP, found.tau_MP = result.bin_mode("t0"), result.bin_mode("tau")
        return found

    def one(self, multiFstatAtoms: Any, grid: Grid, window: WindowName, BtSG: bool) -> Any:
        """A map of one cell, which a Markov chain needs at each step; its few bins are summed here, in float64."""
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


def _map_of(result: TransientResult) -> NDArray[np.float32]:
    """The map as PyFstat stores it: F is 0 in cells that cannot be computed."""
    return np.nan_to_num(to_host(result.F).astype(np.float32, copy=False), nan=0.0)


class LazyMap(NDArrayOperatorsMixin):
    """F of every cell, float32, in place of PyFstat's array; the map is computed when more than one cell is read.

    PyFstat's searches read maxima, which need no map, and for BSGL a single cell of each detector.
    """

    dtype, ndim = np.dtype(np.float32), 2

    def __init__(self, maker: MapMaker, atoms: list[Atoms], result: TransientResult, window: WindowName) -> None:
        self.shape = result.grid.shape
        self._maker, self._atoms, self._result, self._window = maker, atoms, result, window
        self._values: NDArray[np.float32] | None = None

    @property
    def values(self) -> NDArray[np.float32]:
        """The whole map."""
        if self._values is None:
            grid = None if self._window == "none" else self._result.grid
            self._values = _map_of(self._maker.plan(self._window, keep_map=True).execute(self._atoms, grid=grid))
        return self._values

    def __getitem__(self, key: Any) -> Any:
        if self._values is not None or not (
            isinstance(key, tuple) and len(key) == 2 and all(isinstance(k, int | np.integer) for k in key)
        ):
            return self.values[key]
        if key == self._result.index:
            return np.float32(self._result.max_F)
        whole = self._result.grid
        cell = Grid.from_lists(whole.t0s[[key[0]]], whole.taus[[key[1]]])
        streams = [(a.t, _numbers_of(a)) for a in self._atoms]
        window = self._maker.plan(self._window).window
        return np.float32(np.nan_to_num(_cell(streams, self._atoms[0].tatom, cell, window), nan=0.0))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values[key] = value

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype) if copy else np.asarray(self.values, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        def plain(given: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(x.values if isinstance(x, LazyMap) else x for x in given)

        out = options.get("out", ())
        if out:
            options["out"] = plain(out)
        found = getattr(ufunc, method)(*plain(inputs), **options)
        return out[0] if len(out) == 1 else found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.values, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (self.values,)


Numbers = Callable[[int, int], Any]
"""``numbers(a, b)`` returns a2, b2, ab, Re Fa, Im Fa, Re Fb, Im Fb of atoms `a` to ``b - 1`` of a detector in rows."""


def _numbers_of(atoms: Atoms) -> Numbers:
    columns = (atoms.a2, atoms.b2, atoms.ab, atoms.Fa.real, atoms.Fa.imag, atoms.Fb.real, atoms.Fb.imag)
    return lambda a, b: np.stack([column[a:b] for column in columns], axis=1)


def _numbers_of_lal(records: NDArray[Any]) -> Numbers:
    return lambda a, b: records[a:b].view("f4").reshape(b - a, 8)[:, 1:]  # the first number is the time


def cell_of_lal(multi_atoms: Any, grid: Grid, window: Window) -> float:
    """F of the first cell of a grid; NaN if its window holds fewer than two bins."""
    vectors = [multi_atoms.data[i] for i in range(int(multi_atoms.length))]
    streams = [(records["timestamp"].astype(np.int64), _numbers_of_lal(records)) for records in map(_records, vectors)]
    return _cell(streams, int(vectors[0].TAtom), grid, window)


def _cell(streams: list[tuple[NDArray[np.int64], Numbers]], width: int, grid: Grid, window: Window) -> float:
    """F of the first cell of a grid, from the times and numbers of each detector."""
    bins = Times.of([t for t, _ in streams], width)
    start = bins.t_start
    schedule = make_schedule(grid, window, bins)
    if not schedule.n_valid():
        return float("nan")
    first, length, offset = int(schedule.first[0]), int(schedule.length[0, 0]), int(schedule.offset[0])
    tau = float(grid.taus[0])
    sums = np.zeros(7)
    for t, numbers in streams:
        a, b = np.searchsorted(t, (start + first * width, start + (first + length) * width))
        if a == b:
            continue
        w = window.weights((offset + width * ((t[a:b] - start) // width - first)) / tau)
        x = numbers(a, b)
        sums[:3] += (w * w) @ x[:, :3]
        sums[3:] += w @ x[:, 3:]
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
