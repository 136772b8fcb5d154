"""From SFTs to atoms: the F-statistic's projections of the data on templates."""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import real_dtype
from skysieve.core.device import Device, resolve
from skysieve.core.plan import Closing
from skysieve.fstat.contract import Dtype
from skysieve.fstat.inputs.atoms import Atoms, finite, positive
from skysieve.fstat.inputs.bins import bin_atoms
from skysieve.fstat.inputs.checks import refuse_short
from skysieve.fstat.inputs.detectors import antenna_patterns, sky_position
from skysieve.fstat.inputs.grid import Grid, make_schedule
from skysieve.fstat.inputs.simulate import listed, of_detector
from skysieve.fstat.inputs.windows import WindowLike, resolve_window
from skysieve.fstat.sfts.noise import WINDOW, assumed_floor, noise_floor, noise_weights, normalized
from skysieve.fstat.sfts.sfts import SFTs, missing_bins
from skysieve.fstat.template_search.batch import AtomsBatch
from skysieve.fstat.template_search.cells import sums_of_cell

from .amplitudes import Amplitudes, amplitudes_of
from .bank import NAMES, TemplateBank
from .barycentre import EPHEMERIDES, EphemerisName
from .barycentre import barycentre as barycentric_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Demodulator", "stream"]

BATCH_BYTES = {"cpu": 16 << 20, "cuda": 256 << 20}
"""Bytes of the atoms of a batch.  On a GPU a batch is as large as a chunk of a search, so that a search that continues
from a checkpoint computes the same chunks."""
TRIED = 500
"""Most templates that are tried until one lies in the band."""
SCREENED = 1 << 22
"""Number of pairs of an SFT and a template whose frequencies are computed at once to find the templates outside the
band."""


class Demodulator(Closing):
    """Atoms of templates at one point of the sky.

    The method is that of Williams & Schutz 2000 (gr-qc/9912029): in each SFT the phase of a template is linear in time,
    so that a few bins around its frequency hold the signal.

    Parameters
    ----------
    sfts : SFTs or sequence of SFTs
        One set for each detector, all of the same SFT length; see `skysieve.fstat.read_sfts`.
    ra, dec : float
        Right ascension and declination of the source, radians.
    tref : float, optional
        Time at the barycentre (GPS seconds) to which frequencies and their derivatives refer; by default the middle of
        the data.
    barycentre : {"auto", "lal", "de405", "builtin"} or dict
        Source of the arrival times, see `barycentre`.  A dict maps a detector to two arrays for the middles of its
        SFTs: barycentric time minus GPS time, and the rate of barycentric time.
    noise : float or dict of float, optional
        Square root of the noise's power density (1/sqrt(Hz)), of all detectors or by their names, as ``assumeSqrtSX``
        in LALPulsar.  By default it is measured by a running median.
    window : int
        Width in bins of the running median.
    dtype : {"float32", "float64"}
        Precision of the normalised SFTs, of the sums over bins and of the atoms.  Phases are always float64.
    device : {"cpu", "cuda", "cuda:N", "auto"} or Device
        Device that computes the projections and holds the atoms.  On a CPU several threads may use one demodulator.
    threads : int, optional
        CPU threads that measure the noise; one for each core by default.

    Raises
    ------
    ValueError
        The SFTs differ in length, a detector is unknown or has several sets, or a band is narrower than `window`.

    Notes
    -----
    As in LALPulsar, SFTs are divided by their noise floor, bin by bin, and weighted by the inverse of its mean over the
    bins; the weights have the mean 1.  A template's sum takes eight bins to either side of its frequency.  In float32 a
    frequency within 2e-4 of a bin counts as that bin, as in LALPulsar.  Float32 atoms agree with those of
    ``ComputeFstat`` to 5e-5 of the largest when the SFTs hold the same bins.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> noise = rng.standard_normal((20, 400)) + 1j * rng.standard_normal((20, 400))
    >>> sfts = SFTs("H1", 1_000_000_000 + 1800 * np.arange(20), 1800, 180_000, noise)
    >>> atoms = Demodulator(sfts, ra=0.5, dec=1.0, barycentre="builtin").atoms(100.1, -1e-9)
    >>> len(atoms), atoms[0].detector
    (1, 'H1')
    """

    def __init__(
        self, sfts: SFTs | Sequence[SFTs], ra: float, dec: float, tref: float | None = None, *,
        barycentre: EphemerisName | dict[str, tuple[Any, Any]] = "auto",
        noise: float | Mapping[str, float] | None = None, window: int = WINDOW, dtype: Dtype = "float32",
        device: str | Device = "cpu", threads: int | None = None,
    ) -> None:  # fmt: skip
        many = listed(sfts, SFTs, "sfts")
        if not many:
            raise ValueError("sfts is empty: expected the SFTs of at least one detector")
        if len({one.detector for one in many}) < len(many):
            raise ValueError("sfts: several sets are of the same detector; expected one set for each detector")
        lengths = sorted({one.tsft for one in many})
        if len(lengths) > 1 or lengths[0] != round(lengths[0]):
            raise ValueError(
                f"sfts are {', '.join(f'{t:g}' for t in lengths)} s long: expected one whole number of seconds"
            )
        self.ra, self.dec = sky_position(ra, dec)
        self.sfts, self.tsft = many, lengths[0]
        first, last = min(one.t[0] for one in many), max(one.t[-1] for one in many)
        self.middle = float(np.rint(0.5 * (first + last + self.tsft)))
        """GPS second to which the phases refer inside."""
        self.tref = self.middle if tref is None else finite(tref, "tref", "GPS seconds")
        found = resolve(device)
        if len(found) > 1:
            raise ValueError(f"device={device!r}: a Demodulator takes one device; search_sfts takes several")
        self.device = found[0]
        if not isinstance(barycentre, Mapping) and barycentre not in EPHEMERIDES:
            raise ValueError(f"barycentre={barycentre!r}: expected one of {', '.join(EPHEMERIDES)}, or a dict")
        self.noise = noise
        levels = [
            None if noise is None else positive(of_detector(noise, one.detector, "noise"), "noise") for one in many
        ]
        self._times: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        patterns = []
        for one in many:
            at = one.t + 0.5 * self.tsft
            patterns.append(antenna_patterns(at, one.detector, self.ra, self.dec))
            if isinstance(barycentre, str):
                delay, rate = barycentric_times(at, one.detector, self.ra, self.dec, barycentre)
            else:
                delay, rate = _given(barycentre, one)
            self._times.append((at - self.middle + delay, rate))
        floors = [
            noise_floor(one, window, threads) if level is None else assumed_floor(one, level)
            for one, level in zip(many, levels, strict=True)
        ]
        weights, inverse = noise_weights(floors, window if noise is None else 1)
        self._level = self.tsft * inverse
        roots = [np.sqrt(weight) for weight in weights]
        self.dtype = real_dtype(dtype)
        complex_ = np.result_type(self.dtype, np.complex64)
        self._data = [normalized(one, floor, complex_) for one, floor in zip(many, floors, strict=True)]
        self._factors = [(a * root, b * root) for (a, b), root in zip(patterns, roots, strict=True)]
        self._projectors: list[Any] = []
        if self.device.kind == "cuda":
            self._on_gpu()

    def _on_gpu(self, runtime: Any = None) -> None:
        """Move the data to the GPU."""
        from skysieve.fstat.cuda.demod.launch import Projector

        for one, data, times, factors in zip(self.sfts, self._data, self._times, self._factors, strict=True):
            self._projectors.append(
                Projector(data, one.first_bin, *times, *factors, self.tsft, device=self.device, runtime=runtime)
            )

    def close(self) -> None:
        """Free the memory of a GPU."""
        for projector in self._projectors:
            projector.close()
        self._projectors.clear()

    def __repr__(self) -> str:
        names = ", ".join(f"{one.detector} ({len(one)})" for one in self.sfts)
        return f"<Demodulator: {names} SFTs of {self.tsft:g} s, ra {self.ra:.6g}, dec {self.dec:.6g}>"

    def atoms(self, f0: float, f1dot: float = 0.0, f2dot: float = 0.0) -> list[Atoms]:
        """Atoms of one template, for each detector.

        Parameters
        ----------
        f0 : float
            Frequency at `tref`, Hz.
        f1dot, f2dot : float
            Its first and second derivatives there, Hz/s and Hz/s^2.
        """
        return [batch.template(0) for batch in self.batch([f0], [f1dot], [f2dot])]

    def amplitudes(
        self, f0: float, f1dot: float = 0.0, f2dot: float = 0.0, *, window: WindowLike = "none", t0: int | None = None,
        tau: int | None = None, efold: float = 3,
    ) -> Amplitudes:  # fmt: skip
        """Most likely h0, cosi, psi and phi0 of one template, with errors.

        Parameters
        ----------
        f0, f1dot, f2dot : float
            As for `atoms`.
        window, efold : optional
            As for `skysieve.fstat.transient_map`.
        t0, tau : int
            Start time and duration of the window, seconds, such as those of the largest 2F; not for "none".

        Raises
        ------
        ValueError
            As for `batch`; or the window holds too few SFTs.

        Notes
        -----
        The SFTs are taken as those of a rectangular window.  A taper ``w`` lowers h0 by ``mean(w) / sqrt(mean(w^2))``.

        Examples
        --------
        >>> from skysieve.fstat import Signal, simulate_sfts
        >>> signal = Signal(100.05, h0=2e-24, cosi=0.3, ra=0.5, dec=1.0, tref=1_000_000_000)
        >>> sfts = simulate_sfts((100, 100.1), signals=signal, ephemeris="builtin")
        >>> found = Demodulator(sfts, 0.5, 1.0, 1_000_000_000, barycentre="builtin").amplitudes(100.05)
        >>> bool(abs(found.h0 - 2e-24) < 3 * found.errors["h0"])
        True
        """
        shape = resolve_window(window, efold)
        if shape.whole and (t0 is not None or tau is not None):
            raise ValueError(f"t0={t0}, tau={tau}: the window {window!r} covers all data; expected neither")
        bins = bin_atoms(self.atoms(f0, f1dot, f2dot))
        if shape.whole:
            grid = Grid.whole(bins)
        elif t0 is None or tau is None:
            raise ValueError(f"t0={t0}, tau={tau}: expected the start time and duration of the window {window!r}")
        else:
            grid = Grid(t0=t0, tau=tau)
        schedule = make_schedule(grid, shape, bins)
        refuse_short(bins, grid, shape, schedule)
        dt = self.middle - self.tref
        cycles = f0 * dt + f1dot * dt**2 / 2 + f2dot * dt**3 / 6
        return amplitudes_of(sums_of_cell(bins.x, bins.tatom, schedule, grid.taus, 0, shape), self._level, cycles)

    def batch(self, f0: Any, f1dot: Any = 0.0, f2dot: Any = 0.0, *, strict: bool = True) -> list[AtomsBatch]:
        """Atoms of many templates, for each detector; `skysieve.fstat.search` takes them.

        Parameters
        ----------
        f0, f1dot, f2dot : array_like
            Frequencies at `tref` and their derivatives, of shapes that broadcast to (B,).
        strict : bool
            Raise for a template without atoms; otherwise ``AtomsBatch.errors`` lists such templates.

        Returns
        -------
        list of AtomsBatch
            With columns ``f0``, ``f1dot`` and ``f2dot``.

        Raises
        ------
        ValueError
            Values that are not finite, or a template that leaves the band of the SFTs; the message says by how much.
        """
        given = [np.atleast_1d(np.asarray(x, np.float64)) for x in (f0, f1dot, f2dot)]
        spins = [np.ascontiguousarray(x) for x in np.broadcast_arrays(*given)]
        if spins[0].ndim != 1 or spins[0].size == 0:
            raise ValueError(f"f0, f1dot, f2dot have shapes {', '.join(str(x.shape) for x in given)}: expected (B,)")
        errors: dict[int, str] = {}
        for name, x in zip(NAMES, spins, strict=True):
            for i in np.flatnonzero(~np.isfinite(x)).tolist():
                if strict:
                    raise ValueError(f"{name}[{i}] = {x[i]}: expected a finite number")
                errors.setdefault(i, f"{name} = {x[i]}: expected a finite number")
        dt = self.middle - self.tref
        f, f1, f2 = spins
        with np.errstate(invalid="ignore"):
            inside = f + f1 * dt + 0.5 * f2 * dt**2, f1 + f2 * dt, f2
        while True:
            made = [self._projected(k, inside, errors) for k in range(len(self.sfts))]
            failed = {k: first for k, (*_, first) in enumerate(made) if first >= 0}
            if not failed:
                break
            found: dict[int, str] = {}
            for k, first in failed.items():
                found = {first: self._at_edge(k)} | self._outside(k, inside) | found
            if strict:
                first = next(iter(failed.values()))
                raise ValueError(f"template {first}, {found[first]}")
            errors = found | errors
        params = dict(zip(NAMES, spins, strict=True))
        out = []
        for k, (one, (Fa, Fb, _)) in enumerate(zip(self.sfts, made, strict=True)):
            a2, b2, ab = self._antenna(k)
            out.append(AtomsBatch(one.t, a2, b2, ab, Fa, Fb, int(self.tsft), one.detector, params, errors))
        return out

    def facts(self, bank: TemplateBank) -> dict[str, Any]:
        """The data that identify a search: position, reference time, and digests of the SFTs and the templates."""
        digests = {"sfts": hashlib.sha256(), "templates": hashlib.sha256(repr((bank.shape, bank.listed)).encode())}
        for one, (delay, _) in zip(self.sfts, self._times, strict=True):
            digests["sfts"].update(f"{one!r} {one.first_bin}".encode())
            for x in (one.t, one.data, delay):
                digests["sfts"].update(np.ascontiguousarray(x).data)
        for name in NAMES:
            digests["templates"].update(np.ascontiguousarray(getattr(bank, name)).data)
        found: dict[str, Any] = {"ra": self.ra, "dec": self.dec, "tref": self.tref}
        if self.noise is not None:
            found["noise"] = str(self.noise)
        return found | {name: digest.hexdigest()[:16] for name, digest in digests.items()}

    def first(self, bank: TemplateBank) -> list[Atoms]:
        """Atoms of a template of a bank that lies in the band: the first one, or one of `TRIED` others.

        Raises
        ------
        ValueError
            None of these templates lies in the band; the message gives the reason for the first one.
        """
        reason = ""
        for i in np.unique(np.linspace(0, len(bank) - 1, min(len(bank), TRIED)).astype(int)).tolist():
            made = self.batch(*bank.part(i, i + 1).values(), strict=False)
            if not made[0].errors:
                return [batch.template(0) for batch in made]
            reason = reason or made[0].errors[0]
        raise ValueError(f"template 0, {reason}")

    def on(self, device: Device) -> Demodulator:
        """The same demodulation on another device."""
        other = copy.copy(self)
        other.device, other._projectors = device, []
        if device.kind == "cuda":
            other._on_gpu()
        return other

    def stream(self, bank: TemplateBank) -> Callable[[int], Iterator[list[AtomsBatch]]]:
        """A function ``batches(start)`` for `skysieve.fstat.search`: it yields the batches from template `start` on."""
        return stream([self], bank)

    def _projected(self, k: int, inside: Sequence[Any], errors: dict[int, str]) -> tuple[Any, Any, int]:
        """Fa and Fb of templates in one detector, and a template that needs bins outside its data, or -1.

        Templates in `errors` get the values of another template, or zeros if all templates are in `errors`.
        """
        count = len(inside[0])
        other = next((i for i in range(count) if i not in errors), -1)
        if other < 0:
            return *self._zeros(k, count), -1
        if errors:
            rows = sorted(errors)
            inside = [np.array(x) for x in inside]
            for x in inside:
                x[rows] = x[other]
        Fa, Fb, failed = self._computed(k, inside)
        return Fa, Fb, other if failed in errors else failed

    def _antenna(self, k: int) -> list[Any]:
        """The sums a2, b2 and ab of a detector, in the memory of its Fa and Fb."""
        a, b = (x.astype(self.dtype) for x in self._factors[k])
        products = [a * a, b * b, a * b]
        return self._projectors[k].copies(products) if self._projectors else products

    def _zeros(self, k: int, count: int) -> list[Any]:
        """Fa and Fb of templates without atoms."""
        shape = count, len(self.sfts[k])
        if self._projectors:
            return [self._projectors[k].zeros(shape) for _ in range(2)]
        return [np.zeros(shape, self._data[k].dtype) for _ in range(2)]

    def _computed(self, k: int, inside: Sequence[Any]) -> tuple[Any, Any, int]:
        """Fa and Fb of templates in one detector, and the first template that needs bins outside its data, or -1."""
        one = self.sfts[k]
        if self._projectors:
            found: tuple[Any, Any, int] = self._projectors[k].project(*inside)
            return found
        from skysieve.fstat.cpu.demod import projections

        made, failed = projections(self._data[k], one.first_bin, *self._times[k], self.tsft, *inside)
        if failed >= 0:
            return None, None, failed
        a, b = (x.astype(self.dtype) for x in self._factors[k])
        return a * made, b * made, failed

    def _outside(self, k: int, inside: Sequence[Any]) -> dict[int, str]:
        """Templates that leave the band of a detector, with the reason."""
        from skysieve.fstat.cpu.demod import DTERMS

        one, (delay, rate), found = self.sfts[k], self._times[k], {}
        n_bins, step = one.data.shape[1], max(1, SCREENED // len(one))
        for start in range(0, len(inside[0]), step):
            f, f1, f2 = (x[start : start + step, None] for x in inside)
            with np.errstate(invalid="ignore"):
                bins = self.tsft * rate * (f + f1 * delay + 0.5 * f2 * delay**2)
            first, last = np.floor(bins.min(axis=1)) - DTERMS + 1, np.floor(bins.max(axis=1)) + DTERMS
            for i in np.flatnonzero((first < one.first_bin) | (last >= one.first_bin + n_bins)).tolist():
                text = missing_bins(int(first[i]), int(last[i]), one.first_bin, n_bins, self.tsft)
                found[start + i] = f"{one.detector}: {text}"
        return found

    def _at_edge(self, k: int) -> str:
        return f"{self.sfts[k].detector}: the template needs bins outside the band of the SFTs"


def _given(barycentre: dict[str, tuple[Any, Any]], one: SFTs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if one.detector not in barycentre:
        raise ValueError(f"barycentre has no times of {one.detector}, only of {', '.join(barycentre) or 'none'}")
    delay, rate = (np.asarray(x, np.float64) for x in barycentre[one.detector])
    for name, x in (("delays", delay), ("rates", rate)):
        if x.shape != one.t.shape or not np.isfinite(x).all():
            raise ValueError(
                f"barycentre[{one.detector!r}]: {name} of shape {x.shape}, expected {one.t.shape}, all finite"
            )
    return delay, rate


def batch_size(one: Demodulator) -> int:
    """Number of templates of a batch of `stream`."""
    return max(1, BATCH_BYTES[one.device.kind] // (4 * one.dtype.itemsize * sum(map(len, one.sfts))))


def stream(
    demodulators: Sequence[Demodulator], bank: TemplateBank, end: int | None = None
) -> Callable[[int], Iterator[list[AtomsBatch]]]:
    """As `Demodulator.stream`, with several demodulators in turn; each works in its own thread, one batch ahead.

    ``end`` is the last template + 1; by default the end of the bank.
    """
    first, last = demodulators[0], len(bank) if end is None else end
    size = batch_size(first)

    def batches(start: int) -> Iterator[list[AtomsBatch]]:
        pools = [ThreadPoolExecutor(1, "skysieve-demod") for _ in demodulators]
        ahead: deque[Future[list[AtomsBatch]]] = deque()
        try:
            for k, at in enumerate(range(start, last, size)):
                if len(ahead) == len(demodulators):
                    yield ahead.popleft().result()
                chosen = k % len(demodulators)
                spins = bank.part(at, min(at + size, last)).values()
                ahead.append(pools[chosen].submit(partial(demodulators[chosen].batch, *spins, strict=False)))
            while ahead:
                yield ahead.popleft().result()
        finally:
            for pool in pools:
                pool.shutdown(wait=True, cancel_futures=True)

    return batches
