"""Simulated SFTs: Gaussian noise and continuous or transient signals, without lalsuite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import one_of
from skysieve.fstat.inputs.atoms import finite, positive, positive_seconds, whole_seconds
from skysieve.fstat.inputs.detectors import antenna_patterns, detector_of, sky_position
from skysieve.fstat.inputs.simulate import check_orientation, listed, names_of, of_detector, sft_times
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.sfts.sfts import SFTs, bins_of

from .barycentre import EPHEMERIDES, EphemerisName
from .barycentre import barycentre as barycentric_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Signal", "inject", "simulate_sfts"]


@dataclass(frozen=True)
class Signal:
    """A gravitational wave of slowly changing frequency.

    Parameters
    ----------
    f0, f1dot, f2dot : float
        Frequency at `tref` and its derivatives; Hz, Hz/s, Hz/s^2.
    h0 : float
        Amplitude of the strain.
    ra, dec : float
        Position, radians.
    tref : float
        Time at the barycentre, GPS seconds.
    cosi, psi, phi0 : float
        Cosine of the inclination, polarisation angle and phase at `tref`.
    window : str
        "none": always on; or a window of `skysieve.fstat.transient_map` that starts at `t0` with the duration `tau`.
    t0, tau : int
        Start (GPS seconds) and duration of a transient; each SFT has the amplitude of the window at its start.
    efold : float
        End in units of tau of windows that have no fixed end, as for `transient_map`.
    """

    f0: float
    h0: float
    ra: float
    dec: float
    tref: float
    f1dot: float = 0.0
    f2dot: float = 0.0
    cosi: float = 0.3
    psi: float = 0.4
    phi0: float = 0.1
    window: str = "none"
    t0: int = 0
    tau: int = 1
    efold: float = 3

    def __post_init__(self) -> None:
        check_orientation(self.cosi, self.psi, self.phi0)
        finite(self.h0, "h0", "at least 0", lambda x: x >= 0)
        positive(self.tau, "tau")
        for name in ("f0", "tref", "f1dot", "f2dot", "t0"):
            finite(getattr(self, name), name)
        for name, value in zip(("ra", "dec"), sky_position(self.ra, self.dec), strict=True):
            object.__setattr__(self, name, value)
        resolve_window(self.window, self.efold)

    def amplitude(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """The window at the start of each SFT."""
        window = resolve_window(self.window, self.efold)
        if window.kind == "none":
            return np.ones(len(t))
        x = (t - self.t0) / self.tau
        inside = (x >= 0) & (x < window.efold)
        found = np.zeros(len(t))
        found[inside] = window.weights(x[inside])
        return found


def simulate_sfts(
    band: tuple[float, float],
    t_start: int = 1_000_000_000,
    span: int = 10 * 86400,
    *,
    detectors: Sequence[str] = ("H1", "L1"),
    tsft: int = 1800,
    noise: float | Mapping[str, Any] = 1e-23,
    signals: Signal | Sequence[Signal] = (),
    gaps: Sequence[tuple[int, int]] | Mapping[str, Sequence[tuple[int, int]]] = (),
    duty: float = 1.0,
    seed: int | np.random.Generator | None = 0,
    ephemeris: EphemerisName = "auto",
) -> list[SFTs]:
    """Make SFTs of Gaussian noise and signals.

    Parameters
    ----------
    band : (low, high)
        Frequencies, Hz.
    t_start, span : int
        GPS second of the first SFT and length of the data in seconds.
    detectors : sequence of str
        Names of `DETECTORS`.
    tsft : int
        Length of an SFT, seconds.
    noise : float, or dict by detector of float or array_like
        Square root of the one-sided power spectral density, in 1/sqrt(Hz); an array has one value for each SFT.
        0 makes SFTs of signals alone.
    signals : Signal or sequence of Signal
    gaps : sequence of (start, stop), or dict of them by detector
        GPS ranges without data.
    duty : float
        Fraction of the SFTs that are kept, chosen at random.
    seed : int or numpy.random.Generator
    ephemeris : {"auto", "lal", "de405", "builtin"}
        See `barycentre`.

    Returns
    -------
    list of SFTs
        One for each detector.

    Raises
    ------
    ValueError
        A detector is unknown or has no SFT; `band`, `duty` or `noise` has an invalid value; the ephemeris
        does not cover the times; or a signal misses the SFTs, see `inject`.

    Notes
    -----
    Signals are added in the frequency domain: within an SFT the frequency changes linearly in phase only, and the
    antenna patterns are those of its middle, which is what the F-statistic assumes as well.

    Examples
    --------
    >>> signal = Signal(f0=100.2, h0=1e-24, ra=0.5, dec=1.0, tref=1_000_000_000)
    >>> simulate_sfts((100, 100.4), span=86400, signals=signal, ephemeris="builtin")[0]
    <SFTs: H1, 48 of 1800 s from GPS 1000000000, 100 to 100.4 Hz>
    """
    rng = np.random.default_rng(seed)
    start, length, width = (
        whole_seconds(t_start, "t_start"), positive_seconds(span, "span"), positive_seconds(tsft, "tsft"),
    )  # fmt: skip
    first, last = bins_of(*band, width)
    wanted = listed(signals, Signal, "signals")
    finite(duty, "duty", "above 0, at most 1", lambda x: 0 < x <= 1)
    one_of("ephemeris", ephemeris, EPHEMERIDES)
    made = []
    seen = [NOT_SEEN] * len(wanted)
    for name in names_of(detectors):
        detector_of(name)
        t = sft_times(start, length, width, of_detector(gaps, name, "gaps", ()), duty, rng)
        if t.size == 0:
            raise ValueError(f"{name}: no SFT of {width} s fits into span={length} with these gaps")
        level = np.asarray(of_detector(noise, name, "noise"), np.float64)
        if level.shape not in ((), t.shape) or not (np.isfinite(level).all() and (level >= 0).all()):
            raise ValueError(f"noise of {name} has shape {level.shape}: expected one value or {t.size}, none below 0")
        values = rng.standard_normal((2, len(t), last - first + 1))
        data = (values[0] + 1j * values[1]) * np.broadcast_to(0.5 * np.sqrt(width) * level, t.shape)[:, None]
        seen = [
            _add(data, t, name, width, first, signal, ephemeris) | before
            for signal, before in zip(wanted, seen, strict=True)
        ]
        made.append(SFTs(name, t, width, first, data))
    _refuse_missed(wanted, seen, made)
    return made


def inject(sfts: Sequence[SFTs], signals: Signal | Sequence[Signal], ephemeris: EphemerisName = "auto") -> list[SFTs]:
    """Add signals to SFTs.

    Parameters
    ----------
    sfts : sequence of SFTs
        Of rectangular or unknown windows.
    signals : Signal or sequence of Signal
    ephemeris : {"auto", "lal", "de405", "builtin"}
        See `barycentre`.

    Returns
    -------
    list of SFTs
        New sets; the given sets do not change.

    Raises
    ------
    ValueError
        SFTs have another window; the ephemeris does not cover the times; or a signal has no amplitude at the start of
        any SFT, or its frequency is outside the band of the SFTs all the time.

    Examples
    --------
    >>> signal = Signal(f0=100.2, h0=1e-24, ra=0.5, dec=1.0, tref=1_000_000_000)
    >>> noise = simulate_sfts((100, 100.4), span=86400)
    >>> inject(noise, signal, "builtin")[0]
    <SFTs: H1, 48 of 1800 s from GPS 1000000000, 100 to 100.4 Hz>
    """
    wanted = listed(signals, Signal, "signals")
    made = []
    seen = [NOT_SEEN] * len(wanted)
    for one in sfts:
        if one.taper.kind not in ("rectangular", "unknown"):
            raise ValueError(f"sfts of {one.detector} have a {one.taper.kind} window: expected a rectangular one")
        data = one.data.astype(np.complex128)
        seen = [
            _add(data, one.t, one.detector, one.tsft, one.first_bin, signal, ephemeris) | before
            for signal, before in zip(wanted, seen, strict=True)
        ]
        made.append(replace(one, data=data.astype(np.complex64)))
    if made:
        _refuse_missed(wanted, seen, made)
    return made


class Seen(Flag):
    """Whether an SFT starts while a signal is on (`TIMES`), and whether the signal is then in the band (`BAND`)."""

    TIMES = auto()
    BAND = auto()


NOT_SEEN = Seen(0)


def _refuse_missed(signals: Sequence[Signal], seen: Sequence[Seen], sfts: Sequence[SFTs]) -> None:
    """Raise ValueError for a signal that is in no SFT."""
    for signal, what in zip(signals, seen, strict=True):
        name = f"signal of f0={signal.f0:.10g} Hz at tref={signal.tref:.10g}"
        if Seen.TIMES not in what:
            start, stop = min(int(one.t[0]) for one in sfts), max(one.t[-1] + one.tsft for one in sfts)
            raise ValueError(
                f"{name}, window {signal.window!r} with t0={signal.t0}, tau={signal.tau}: no SFT starts in it; the "
                f"SFTs are from GPS {start} to {stop:.10g}"
            )
        if Seen.BAND not in what:
            low = min(one.first_bin / one.tsft for one in sfts)
            high = max((one.first_bin + one.data.shape[1] - 1) / one.tsft for one in sfts)
            raise ValueError(f"{name} is outside the band of the SFTs, {low:.10g} to {high:.10g} Hz")


def _add(
    data: NDArray[np.complex128],
    t: NDArray[np.int64],
    name: str,
    tsft: float,
    first: int,
    signal: Signal,
    ephemeris: EphemerisName,
) -> Seen:
    """Add a signal to the SFTs of a detector, and return whether it was `Seen` in them."""
    middle = t + 0.5 * tsft
    delay, rate = barycentric_times(middle, name, signal.ra, signal.dec, ephemeris)
    since = middle - signal.tref + delay
    phase = signal.f0 * since + signal.f1dot * since**2 / 2 + signal.f2dot * since**3 / 6
    cycles = tsft * rate * (signal.f0 + signal.f1dot * since + signal.f2dot * since**2 / 2)
    a, b = antenna_patterns(middle, name, signal.ra, signal.dec)
    cos, sin = np.cos(2 * signal.psi), np.sin(2 * signal.psi)
    plus, cross = 0.5 * signal.h0 * (1 + signal.cosi**2), signal.h0 * signal.cosi
    wave = plus * (a * cos + b * sin) - 1j * cross * (b * cos - a * sin)
    start = np.exp(1j * (2 * np.pi * np.remainder(phase - 0.5 * cycles, 1) + signal.phi0))
    amplitude = signal.amplitude(t)
    scale = 0.5 * tsft * wave * start * amplitude
    off = cycles[:, None] - (first + np.arange(data.shape[1]))
    data += scale[:, None] * np.exp(1j * np.pi * off) * np.sinc(off)
    on = amplitude != 0
    within = (cycles >= first - 0.5) & (cycles <= first + data.shape[1] - 0.5)
    return (Seen.TIMES if on.any() else NOT_SEEN) | (Seen.BAND if (on & within).any() else NOT_SEEN)
