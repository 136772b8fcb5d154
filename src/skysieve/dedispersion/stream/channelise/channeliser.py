"""From voltages of subbands to power of channels: FFT or polyphase filter bank, sum of polarisations, integration.

Spectra begin at multiples of their length from sample 0, so that results do not depend on the length of the pieces.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.checks import one_of
from skysieve.dedispersion.data.observation import check_freqs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PfbWindow = Literal["hamming", "hann", "blackman", "rectangular"]
WINDOWS: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "hamming": np.hamming, "hann": np.hanning, "blackman": np.blackman, "rectangular": np.ones,
}  # fmt: skip
"""Windows of the polyphase filter bank."""
Sideband = Literal["upper", "lower"]
SIDEBANDS = ("upper", "lower")
MIDDLE, SCATTER = 96.0, 16.0
"""Mean and standard deviation of 8-bit power."""
ENOUGH = 4
"""The level of a channel is measured if at least one in this many samples of ``calibrate`` seconds arrived."""
PATIENCE = 4
"""A subband may begin up to this many times ``calibrate`` seconds after the other subbands."""


class Channeliser:
    """Divides subbands into channels and detects their power.

    Parameters
    ----------
    fch1, foff : float
        Centre of the first subband and step to the next, MHz; subbands are sampled at their width.
    nsub, pols : int
        Number of subbands and of polarisations.
    tsamp : float
        Seconds between voltages.
    channels : int
        Channels of each subband.
    taps : int
        1 for an FFT, more for a polyphase filter bank of ``taps * channels`` samples.
    window : {"hamming", "hann", "blackman", "rectangular"}
        Window of the filter bank's sinc.
    integrate : int
        Number of spectra to add.
    stokes : {"I"} or int
        "I" for the sum of the polarisations, or the number of one polarisation.
    sideband : {"upper", "lower"}
        Whether sky frequency rises or falls with the frequency of the voltages.
    nbits : {8, 32}
        Bits of the result.  With 8, the first ``calibrate`` seconds have mean 96 and standard deviation 16.
    calibrate : float
        Seconds of data in which the level of 8-bit power is measured.  If less than a quarter of them arrived in a
        subband, the channeliser waits for up to three more such periods.  A subband that begins later stays missing.

    Examples
    --------
    >>> c = Channeliser(1400.0, -1.0, 4, 1, 1e-6, channels=8, nbits=32)
    >>> x = np.exp(2j * np.pi * np.arange(64) * 0.25)[:, None, None] * [0, 1, 0, 0]
    >>> first, rows, _ = c.feed(0, x.astype(np.complex64))
    >>> rows.shape, float(c.freqs[rows[0].argmax()])
    ((8, 32), 1399.25)
    """

    def __init__(
        self, fch1: float, foff: float, nsub: int, pols: int, tsamp: float, *, channels: int = 8, taps: int = 1,
        window: PfbWindow = "hamming", integrate: int = 1, stokes: str | int = "I", sideband: Sideband = "upper",
        nbits: int = 8,
        calibrate: float = 0.5,
    ) -> None:  # fmt: skip
        for name, value in (("channels", channels), ("taps", taps), ("integrate", integrate), ("nsub", nsub)):
            if value < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        one_of("window", window, WINDOWS)
        one_of("sideband", sideband, SIDEBANDS)
        if nbits not in (8, 32):
            raise ValueError(f"nbits={nbits}: expected 8 or 32")
        if stokes != "I" and stokes not in range(pols):
            raise ValueError(f"stokes={stokes!r}: expected 'I' or a polarisation from 0 to {pols - 1}")
        if not calibrate > 0:
            raise ValueError(f"calibrate={calibrate!r}: expected seconds, above 0")
        self.nsub, self.channels, self.taps, self.integrate, self.nbits = nsub, channels, taps, integrate, nbits
        self.pick = None if stokes == "I" else int(stokes)
        self.pols = pols
        self.tsamp = tsamp * channels * integrate
        self.delay = (taps - 1) / 2 * channels * tsamp
        k = np.arange(channels)
        offset = np.where(k >= -(-channels // 2), k - channels, k) * (1 if sideband == "upper" else -1)
        width = abs(foff) if nsub > 1 else 1e-6 / tsamp
        freqs = fch1 + foff * np.arange(nsub) + offset[:, None] * (width / channels)
        order = np.argsort(-freqs.ravel(), kind="stable")
        self.freqs = freqs.ravel()[order]
        check_freqs(self.freqs, f"fch1={fch1!r}, foff={foff!r}")
        place = np.empty(freqs.size, np.int64)
        place[order] = np.arange(freqs.size)
        self.place = place.reshape(freqs.shape)
        self.rising = bool(self.place[0, 0] > self.place[0, -1])
        self._row_of = np.sort(self.place, axis=0)[0]
        self.filter = np.ones((1, channels), np.float32) if taps == 1 else prototype(channels, taps, window)
        self.passes, self.turns = np.array(radices(channels), np.int64), roots_of_unity(channels)
        self._tail: NDArray[np.complex64] | None = None
        self._gone: list[NDArray[np.int64]] = []
        self._at = self._out = -1
        self._held: list[NDArray[np.float32]] = []
        self._held_gone: list[NDArray[np.int64]] = []
        self._calibrate = max(16, round(calibrate / self.tsamp))
        self.level: NDArray[np.float32] | None = None
        self.scale: NDArray[np.float32] | None = None
        self._dead = np.empty((0, 2), np.int64)

    @property
    def nchan(self) -> int:
        """Number of channels."""
        return self.nsub * self.channels

    @property
    def dtype(self) -> str:
        """NumPy's name of the type of the power."""
        return "uint8" if self.nbits == 8 else "float32"

    def feed(
        self, start: int, voltages: NDArray[np.complex64], missing: Any = ()
    ) -> tuple[int, NDArray[Any], NDArray[np.int64]] | None:
        """Channelise the next voltages.

        Parameters
        ----------
        start : int
            Number of the first voltage.
        voltages : numpy.ndarray of complex64, shape (samples, polarisations, subbands)
            The voltages, 0 where samples are missing.
        missing : array_like of int, shape (n, 4)
            First sample, last + 1, first subband, last + 1.

        Returns
        -------
        (first, rows, missing) or None
            Number of the first row; power, shape (rows, channels), in falling order of frequency; missing rectangles,
            which include every spectrum with a missing sample.  None while there are no rows.
        """
        if self._tail is None:
            self._tail = np.empty((0, *voltages.shape[1:]), np.complex64)
        x = np.concatenate([self._tail, voltages])
        skip, n, begun = self.advance(start, len(voltages), len(self._tail), missing)
        x = x[skip:]
        used = n * self.channels * self.integrate
        self._tail = x[used:].copy()
        if n == 0:
            return None
        rows = self._power(x[: used + (self.taps - 1) * self.channels])
        return self.emit(begun, rows, self.missing_rows(begun, n))

    def advance(self, start: int, count: int, held: int, missing: Any = ()) -> tuple[int, int, int]:
        """Count the next ``count`` voltages, which follow ``held`` voltages of earlier calls.

        Returns
        -------
        skip, n, begun
            Number of voltages before the first whole spectrum, counted from the first held one; number of rows of
            output that can be made now; number of the first row.  Voltages before the end of these rows need not be
            held, except those for the taps.
        """
        each = self.channels * self.integrate
        if self._at < 0:
            self._out = -(-start // each)
            self._at = start
        self._gone.append(np.asarray(missing, np.int64).reshape(-1, 4))
        begun, have = self._out, held + count
        skip = min(have, max(0, begun * each - self._at))
        self._at += skip
        n = max(0, (have - skip - (self.taps - 1) * self.channels) // each)
        if self._at < begun * each:
            n = 0
        self._at += n * each
        self._out += n
        return skip, n, begun

    def finish(self) -> tuple[int, NDArray[Any], NDArray[np.int64]] | None:
        """The rows that are held for calibration, if the stream was shorter than that."""
        if not self._held:
            return None
        return self._emit(self._out, last=True)

    def _power(self, x: NDArray[np.complex64]) -> NDArray[np.float32]:
        """Power of whole spectra."""
        from . import cpu_power

        if self.pick is not None:
            x = x[:, self.pick : self.pick + 1]
        lines = np.ascontiguousarray(x).reshape(-1, self.channels, x.shape[1] * self.nsub)
        n = len(lines) - self.taps + 1
        out = np.empty((n // self.integrate, self.nchan), np.float32)
        cpu_power.filter_power(
            lines.view(np.float32), self.filter, self.passes, self.turns, self.place, self.integrate, self.nsub,
            out,
        )  # fmt: skip
        return out

    def missing_rows(self, first: int, count: int) -> NDArray[np.int64]:
        """Missing rectangles of the output."""
        each, reach = self.channels * self.integrate, (self.taps - 1) * self.channels
        gone = np.concatenate(self._gone)
        keep = gone[gone[:, 1] > (first + count) * each]
        self._gone = [keep]
        low = np.maximum((gone[:, 0] - reach) // each, first)
        high = np.minimum(-(-gone[:, 1] // each), first + count)
        rects = [[first, first + count, *dead] for dead in self._dead.tolist()]
        for a, b, c0, c1 in zip(low, high, gone[:, 2], gone[:, 3], strict=True):
            if a >= b:
                continue
            places = np.sort(self._row_of[c0:c1])
            runs = np.flatnonzero(np.diff(places) != self.channels)
            edges = np.concatenate([[0], runs + 1, [len(places)]])
            rects += [[a, b, places[e], places[f - 1] + self.channels] for e, f in pairwise(edges)]
        return disjoint(np.array(rects, np.int64).reshape(-1, 4))

    def emit(
        self, first: int, rows: NDArray[np.float32], rects: NDArray[np.int64]
    ) -> tuple[int, NDArray[Any], NDArray[np.int64]] | None:
        """Convert rows of power to their final form: bytes, once the level is known."""
        if self.nbits == 32:
            return first, rows, rects
        self._held.append(rows)
        self._held_gone.append(rects)
        if self.level is None and not self._enough(first + len(rows)):
            return None
        return self._emit(first + len(rows))

    def _enough(self, stop: int) -> bool:
        """Whether the level of all channels can be measured, or the longest waiting time is over."""
        held = sum(map(len, self._held))
        spans = min(held // self._calibrate, PATIENCE)
        if spans in (0, PATIENCE):
            return spans > 0
        came = np.full(self.nchan, spans * self._calibrate, np.int64)
        low = stop - held
        for a, b, c0, c1 in np.concatenate(self._held_gone).tolist():
            came[c0:c1] -= max(0, min(b, low + spans * self._calibrate) - a)
        return bool((came * ENOUGH >= self._calibrate).all())

    def _emit(self, stop: int, last: bool = False) -> tuple[int, NDArray[Any], NDArray[np.int64]]:
        from . import cpu_power

        rows, rects = np.concatenate(self._held), np.concatenate(self._held_gone)
        first = stop - len(rows)
        if self.level is None:
            self._measure(rows, first, rects, last)
        assert self.level is not None
        assert self.scale is not None
        out = np.empty(rows.shape, np.uint8)
        cpu_power.quantise(rows, self.level, self.scale, np.float32(MIDDLE), out)
        self._held.clear()
        self._held_gone.clear()
        if len(self._dead):
            rects = disjoint(np.concatenate([rects, [[first, stop, *dead] for dead in self._dead.tolist()]]))
        return first, out, rects

    def _measure(self, rows: NDArray[np.float32], first: int, rects: NDArray[np.int64], last: bool) -> None:
        """Measure level and scale of each channel, over the shortest time in which enough samples arrived.

        If ``last`` is True, the stream has ended, and any number of samples is enough.
        """
        from skysieve.dedispersion.clean import cpu_missing

        mean, variance = np.zeros(self.nchan), np.zeros(self.nchan)
        known = np.zeros(self.nchan, bool)
        for spans in range(1, PATIENCE + 1):
            some = rows[: spans * self._calibrate]
            count = np.zeros(self.nchan, np.int64)
            total, square = np.zeros(self.nchan), np.zeros(self.nchan)
            cpu_missing.blank(some, first, rects)
            cpu_missing.accumulate(some, first, rects, count, total, square)
            over = len(rows) <= spans * self._calibrate
            new = ~known & ((count * ENOUGH >= self._calibrate) | (last and over and (count > 0)))
            n = np.maximum(count, 1)
            mean[new] = (total / n)[new]
            variance[new] = np.maximum(square / n - (total / n) ** 2, 0)[new]
            known |= new
            if known.all() or over:
                break
        edges = np.flatnonzero(np.diff(np.concatenate([[False], ~known, [False]]).astype(np.int8)))
        self._dead = edges.reshape(-1, 2)
        self.level = mean.astype(np.float32)
        self.scale = np.where(variance > 0, SCATTER / np.sqrt(np.where(variance > 0, variance, 1)), 0).astype(
            np.float32
        )


def radices(n: int) -> list[int]:
    """Radices of the passes of a transform of length ``n``, in order.

    >>> radices(8), radices(360), radices(1)
    ([4, 2], [4, 2, 3, 3, 5], [])
    """
    found = []
    for r in (4, 2, 3, 5):
        while n % r == 0:
            found.append(r)
            n //= r
    r = 7
    while n > 1:
        while n % r == 0:
            found.append(r)
            n //= r
        r = r + 2 if r * r <= n else max(n, r + 2)
    return found


def roots_of_unity(n: int) -> NDArray[np.float32]:
    """``exp(-2 pi i k / n)`` for ``k < n`` as float32 pairs, shape (n, 2); multiples of a quarter are exact."""
    k = np.arange(n, dtype=np.int64)
    quarter, rest = 4 * k // n, 4 * k % n
    c, s = np.cos(np.pi / 2 * (rest / n)), np.sin(np.pi / 2 * (rest / n))
    re = np.choose(quarter, [c, -s, -c, s])
    im = np.choose(quarter, [-s, -c, s, c])
    return np.stack([re, im], axis=1).astype(np.float32)


def prototype(channels: int, taps: int, window: str) -> NDArray[np.float32]:
    """The filter of a polyphase filter bank, shape (taps, channels): a windowed sinc that keeps the power of noise.

    >>> h = prototype(8, 4, "hamming")
    >>> h.shape, round(float((h.astype(float) ** 2).sum()), 5)
    ((4, 8), 8.0)
    """
    n = channels * taps
    h = np.sinc((np.arange(n) - (n - 1) / 2) / channels) * WINDOWS[window](n)
    h *= np.sqrt(channels / (h**2).sum())
    return h.reshape(taps, channels).astype(np.float32)


def disjoint(rects: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rectangles that cover the same area without overlaps; overlaps occur if a spectrum misses several packets."""
    if len(rects) < 2:
        return rects
    cuts = np.unique(rects[:, :2])
    out: list[list[int]] = []
    for a, b in pairwise(cuts):
        some = rects[(rects[:, 0] <= a) & (rects[:, 1] >= b)]
        high = -1
        for low, top in sorted({(int(r[2]), int(r[3])) for r in some}):
            if top <= high:
                continue
            begin = max(low, high)
            if out and out[-1][1] == b and out[-1][0] == a and out[-1][3] == begin:
                out[-1][3] = top
            else:
                out.append([int(a), int(b), begin, top])
            high = top
    return np.array(out, np.int64).reshape(-1, 4)
