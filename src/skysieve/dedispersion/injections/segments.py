"""Segments of a campaign: noise with pulses, and the S/N of the pulses in ideal detectors.

Two segments of noise are made by several threads while the one before is searched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.filterbank import DeviceReader, Filterbank
from skysieve.dedispersion.data.simulate import NOISE_BLOCK, NoiseReader, PulseReader, whole_reader
from skysieve.dedispersion.single_pulse.refine import window_snr_of

from .interference import InterferenceReader
from .noise import Levels, level_near
from .pulses import Pulse, Recorded, extent, record, spread_per_dm, whole_counts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.dm_plan.arguments import Stages
    from skysieve.dedispersion.single_pulse.candidates import Candidates

    from .cuda.launch import DeviceNoise

AROUND = 256
"""Least samples before and after a pulse from which the level of data is measured."""
WINDOWS, LEAST_BESIDE, RED = 32, 2048, 3.5
"""The noise of data is measured in ``WINDOWS`` windows before and after a pulse, and in at least ``LEAST_BESIDE``
samples.  The scatter of the windows is used if it exceeds that of independent samples by more than ``RED`` over the
root of their number, which is three errors of a median deviation."""
MARGIN = 0.5
"""Most seconds before the first pulse, and between pulses in addition to their sweeps."""
FAINT = 4.0
"""S/N below which a pulse has no events.  At wrong DMs, a pulse of S/N s has events over its width times (s / 4)^2."""
HELD = 2**30
"""Most samples of a segment of noise that is made in memory; longer ones are made when they are read."""
FINE, MOST_SUMS = 64, 48
"""The best window near a pulse is sought in samples that are binned so that a long pulse has about ``FINE`` of them,
and in at most ``MOST_SUMS`` sums at different DMs."""
LATE, WIDEST = 2.0, 3.0
"""Largest distance of the centre, and largest length, of windows near a pulse, in effective widths of the pulse."""


@dataclass
class Placed:
    """A pulse that was added, and its S/N in ideal detectors.

    Attributes
    ----------
    pulse, made
    known : float
        S/N in a detector that knows DM, time and width, in the samples that are left.  In data, its noise is the
        scatter of such windows around the pulse, if that is larger than the scatter of independent samples.
    near : float
        Highest S/N of a detector that knows the level and sigma and tries the DMs, times and widths of the search that
        count as this pulse; NaN in data and under interference.
    left : float
        Fraction of the samples of its window, in the channels that are searched, that interference and gaps leave.
    snr_left : float
        Ideal S/N in these samples.
    clipped : float
        Fraction of the counts that exceed the range of the samples.
    """

    pulse: Pulse
    made: Recorded
    known: float = math.nan
    near: float = math.nan
    left: float = 1.0
    snr_left: float = 0.0
    clipped: float = 0.0


@dataclass
class Segment:
    """Data with pulses.

    Attributes
    ----------
    base, searched : Filterbank
        The data without, and with, pulses and interference.
    placed : list of Placed
    """

    base: Filterbank
    searched: Filterbank
    placed: list[Placed] = field(default_factory=list)


class HeldReader:
    """Samples in memory, shape (samples, channels)."""

    def __init__(self, like: NoiseReader, samples: NDArray[Any]) -> None:
        self.observation, self.nsamp, self.maximum = like.observation, like.nsamp, like.maximum
        self.order, self.dtype, self.samples = like.order, like.dtype, samples

    def close(self) -> None:
        """Free the samples."""
        self.samples = self.samples[:0].copy()

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``; a view."""
        return self.samples[start : start + count]


def place(
    fb: Filterbank, wanted: Sequence[dict[str, Any]], constant: float, highest: float, rng: np.random.Generator
) -> Iterator[Pulse]:
    """Yield pulses with arrival times, one after the other, as long as they fit into the data.

    Two neighbouring pulses are separated by at least two sweeps of the longer one, and by more if a strong pulse has
    events at wrong DMs for a longer time.
    """
    obs, length = fb.observation, fb.nsamp * fb.tsamp
    bottom = float(obs.freqs.min())
    longest = float(delay_seconds(bottom, highest, obs.top, constant))
    margin = min(MARGIN, length / 20)
    at = margin + float(rng.uniform()) * min(2 * longest, max(0.0, length - longest - 4 * margin))
    before = 0.0  # seconds that the pulse before needs
    for i, parameters in enumerate(wanted):
        sweep = float(delay_seconds(bottom, parameters["dm"], obs.top, constant))
        smeared = (parameters["snr"] / FAINT) ** 2 * (parameters["width"] + parameters.get("scatter", 0.0))
        needs = min(2 * longest, max(2 * sweep, smeared))
        at += max(before, needs) if i else 0.0
        before = needs
        pulse = Pulse(time=at + margin * float(rng.uniform()), **parameters)
        first, samples = extent(obs, pulse, constant)
        if first.min() < 0:  # a wide pulse: begin later
            at -= float(first.min()) * obs.tsamp
            pulse = Pulse(time=at + margin, **parameters)
            first, samples = extent(obs, pulse, constant)
        if int(first.max()) + samples > fb.nsamp:
            if i:
                return
            early = float(int(first.max()) + samples - fb.nsamp) * obs.tsamp
            pulse = Pulse(time=pulse.time - early, **parameters)
            first, samples = extent(obs, pulse, constant)
            if first.min() < 0:
                return
        yield pulse
        at = pulse.time + margin + samples * obs.tsamp


def counts_of(fb: Filterbank, made: Recorded, known: Levels, analog: bool) -> NDArray[Any]:
    """The counts that are added to the samples: whole numbers unless they are added before rounding."""
    fractions = analog or fb.dtype.kind == "f"
    return made.counts.astype(np.float32) if fractions else whole_counts(made.counts, known.room)


class Maker:
    """Makes segments.

    Parameters
    ----------
    analog : bool
        Whether the data are noise to which pulses are added before it is rounded.
    known : Levels
    constant : float
        Dispersion constant.
    stages, widths
        DMs with their binning, and boxcars in binned samples, of the search.
    kinds, strength
        Interference.
    lost : numpy.ndarray of int64, shape (n, 4)
        Rectangles of the data that are lost or masked.
    threads : int, optional
    device : DeviceNoise, optional
        Generator of 8-bit noise in the memory of the GPU that searches it; the noise is bit-identical.
    """

    def __init__(
        self, analog: bool, known: Levels, constant: float, stages: Stages, widths: Sequence[int],
        kinds: Sequence[str], strength: float, lost: NDArray[np.int64], threads: int | None,
        device: DeviceNoise | None = None,
    ) -> None:  # fmt: skip
        self.analog, self.known, self.constant = analog, known, constant
        self.stages, self.widths = stages, np.array(widths, np.int64)
        self.kinds, self.strength, self.lost = tuple(kinds), strength, lost
        self.pool = TaskPool(threads)
        self.device = device

    def close(self) -> None:
        """End the threads, and free the memory of the device."""
        self.pool.close()
        if self.device is not None:
            self.device.close()

    def making(self, fb: Filterbank, pulses: Sequence[Pulse], seed: int) -> Iterator[Segment]:
        """Iterator with one item, the result of `make`, which is computed when the item is taken."""
        yield self.make(fb, pulses, seed)

    def make(self, fb: Filterbank, pulses: Sequence[Pulse], seed: int) -> Segment:
        """Add pulses, and interference with this seed, to the noise or data ``fb``."""
        obs, known = fb.observation, self.known

        def recorded(pulse: Pulse) -> tuple[Placed, NDArray[Any]]:
            made = record(obs, pulse, known.sigma, self.constant)
            return Placed(pulse, made), counts_of(fb, made, known, self.analog)

        both = self.pool.run([lambda p=pulse: recorded(p) for pulse in pulses])
        placed = [one for one, _ in both]
        added = [(one.made.first, counts) for one, counts in both]
        if self.analog and fb.nsamp * fb.nchan <= HELD:
            base, made = self._held(fb, added)
        else:
            base, made = fb, Filterbank([PulseReader(whole_reader(fb), added, analog=self.analog)])
        reader = None
        if self.kinds:
            reader = InterferenceReader(made, self.kinds, seed, self.strength)
            if base is not fb:  # noise in memory; other data are read again
                reader.hold(self.pool)
            made = Filterbank([reader])

        def looked(one: Placed, counts: NDArray[Any]) -> None:
            ideal(one, base, counts, reader, self.lost, known, self.analog)
            if self.analog and reader is None:
                one.near = self._best_near(one, made)

            one.made = replace(one.made, counts=one.made.counts[:, :0])  # they may be large

        self.pool.run([lambda a=one, b=counts: looked(a, b) for one, counts in both])
        return Segment(base, made, placed)

    def window_snr(
        self, fb: Filterbank, found: Candidates, shared: bool, ignore: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """See `refine.window_snr`, without channels ``ignore``; with several threads if they may share the reader."""
        rows = None if ignore is None else np.setdiff1d(np.arange(fb.nchan), ignore)
        tasks = [lambda i=i: window_snr_of(fb, found, i, rows) for i in range(len(found))]
        return np.array(self.pool.run(tasks) if shared else [task() for task in tasks], np.float64)

    def _held(
        self, fb: Filterbank, added: list[tuple[NDArray[np.int64], NDArray[Any]]]
    ) -> tuple[Filterbank, Filterbank]:
        """Noise without and with pulses, in the memory of the host or of the GPU that searches it."""
        reader = fb.readers[0]
        assert isinstance(reader, NoiseReader)
        if self.device is None or fb.dtype != np.uint8:
            base, made = held_noise(reader, added, self.pool)
            return Filterbank([HeldReader(reader, base)]), Filterbank([HeldReader(reader, made)])
        arrays = self.device.make(reader, added)
        like = reader.observation, reader.order, reader.maximum
        return Filterbank([DeviceReader(arrays[0].T, *like)]), Filterbank([DeviceReader(arrays[1].T, *like)])

    def _best_near(self, one: Placed, searched: Filterbank) -> float:
        """See `Placed.near`."""
        from .cpu_segments import aligned, highest_window

        obs, made, pulse = searched.observation, one.made, one.pulse
        squares = obs.freqs**-2 - obs.top**-2
        half = made.length * obs.tsamp / spread_per_dm(obs, self.constant)
        before = math.ceil((LATE + WIDEST / 2 + 1) * made.length)  # DM errors shift the lowest channel by a width
        begin = made.begin + made.delays - before
        low = max(0, int(begin.min()))
        high = min(searched.nsamp, int(begin.max()) + 2 * before + made.length)
        # From a GPU, copy no more samples than are needed.
        if searched.gpu is not None and begin.min() >= 0 and int(begin.max()) + 2 * before + made.length <= high:
            block, offset = searched.shifted(begin, 2 * before + made.length).T, np.zeros_like(begin)
        else:
            block, offset = searched.block(low, high - low).T, begin - low
        best = 0.0  # at no DM of the search would a candidate be identified with this pulse
        for listed, binning, *_ in self.stages:
            dms = listed[np.abs(listed - pulse.dm) <= half]
            dms = dms[:: -(-len(dms) // MOST_SUMS) or 1]
            if not len(dms):
                continue
            step = binning * max(1, made.length // (FINE * binning))
            x = np.empty((obs.nchan, (2 * before + made.length) // step), np.float32)
            aligned(block, offset, step, self.known.level, x)
            x[self.known.sigma == 0] = 0.0  # channels that are not searched
            shifts = np.rint(self.constant * (dms[:, None] - pulse.dm) * squares / (obs.tsamp * step)).astype(np.int64)
            widths = np.unique(np.rint(self.widths * (binning / step)).astype(np.int64))
            widths = widths[(widths > 0) & (widths <= max(1, WIDEST * made.length / step))]
            middle, late = (before + made.length / 2) / step, LATE * made.length / step
            sigma = math.sqrt(float((self.known.sigma**2).sum()) * step)
            first, last = math.floor(middle - late), math.ceil(middle + late) + 1
            best = max(best, float(highest_window(x, shifts, widths, first, last, sigma)))
        return best


def held_noise(
    reader: NoiseReader, added: Sequence[tuple[NDArray[np.int64], NDArray[Any]]], pool: TaskPool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Noise without and with pulses, shape (samples, channels); the same array twice if there are no pulses."""
    from .cpu_segments import add_level, add_pulse

    level, sigma, highest = (np.float32(x) for x in (reader.level, reader.sigma, reader.maximum))
    base = np.empty((reader.nsamp, reader.observation.nchan), reader.dtype)
    made = np.empty_like(base) if added else base
    ends = [(int(first.min()), int(first.max()) + counts.shape[1]) for first, counts in added]

    def fill(number: int) -> None:
        for start, values in reader.drawn(number):
            stop = start + len(values)
            add_level(values, sigma, level, highest, base[start:stop])
            if added:
                made[start:stop] = base[start:stop]
            for (first, counts), (begin, end) in zip(added, ends, strict=True):
                if begin < stop and end > start:
                    add_pulse(values, start, first, counts, highest, made[start:stop])

    pool.run([lambda i=i: fill(i) for i in range(-(-reader.nsamp // NOISE_BLOCK))])
    return base, made


def ideal(
    one: Placed, fb: Filterbank, counts: NDArray[Any], reader: InterferenceReader | None, lost: NDArray[np.int64],
    known: Levels, analog: bool,
) -> None:  # fmt: skip
    """Set the S/N of a pulse in a detector that knows DM, time and width: the sum over the window of the ideal boxcar.

    Samples that interference covers, samples that are missing or masked, and channels whose sigma is 0 do not count.
    In data, which may drift and have red noise, level and noise are measured around the pulse.
    """
    made, length = one.made, one.made.length
    begin = made.begin + made.delays
    low, high = max(0, int(begin.min())), min(fb.nsamp, int(begin.max()) + length)
    begin = np.clip(begin, low, high - length)  # a delay that is rounded can end a sample after the pulse
    at = (begin - low)[:, None] + np.arange(length)
    rows = np.arange(fb.nchan)[:, None]
    level, sigma, red = known.level, known.sigma, 1.0
    if not analog:
        more = max(AROUND, 2 * length)
        reach = 2 * more + max(WINDOWS * length, LEAST_BESIDE)
        first, last = max(0, low - reach), min(fb.nsamp, high + reach)
        block = fb.block(first, last - first)
        red = redness(block[sigma > 0], (begin - first)[sigma > 0], length, more, sigma[sigma > 0])
        near = (begin - first)[:, None] + np.arange(-more, length + more)
        level = level_near(block[rows, np.clip(near, 0, last - first - 1)], known)
        values = block[rows, at + low - first].astype(np.float64)
    else:
        values = fb.shifted(begin, length).astype(np.float64)
    steps = at + low - made.first[:, None]
    inside = (steps >= 0) & (steps < counts.shape[1])
    steps = np.clip(steps, 0, counts.shape[1] - 1)
    wanted, added = (np.where(inside, x[rows, steps], 0.0) for x in (made.counts, counts))
    if fb.dtype.kind != "f":
        info = np.iinfo(fb.dtype)
        added = np.minimum(added, (fb.maximum or info.max) - values)
    one.clipped = max(0.0, 1 - float(np.nansum(added)) / float(wanted.sum()))
    good = np.isfinite(values)
    if reader is not None:
        good &= ~reader.write(low, high - low)[1].T[rows, at]
    for first, last, top, bottom in lost[(lost[:, 0] < high) & (lost[:, 1] > low)]:
        good[top:bottom] &= (at[top:bottom] + low < first) | (at[top:bottom] + low >= last)
    searched = sigma > 0
    good &= searched[:, None]
    one.left = float(good[searched].mean())
    spread = math.sqrt(float((good * sigma[:, None] ** 2).sum()))
    if spread > 0:
        one.known = float(((values - level[:, None] + added)[good]).sum()) / (red * spread)
        one.snr_left = float(wanted[good].sum()) / spread


def redness(
    block: NDArray[Any], begin: NDArray[np.int64], length: int, more: int, sigma: NDArray[np.float64]
) -> float:  # fmt: skip
    """Ratio of the scatter of de-dispersed windows beside a pulse to that of independent samples; 1 if not significant.

    Parameters
    ----------
    block : numpy.ndarray, shape (channels, samples)
    begin : numpy.ndarray of int64
        The first sample of the pulse in each channel.
    length, more : int
        Samples of a window, and samples on each side of it from which its level is taken.
    sigma : numpy.ndarray
        Sigma of each channel.
    """
    if not len(block):
        return 1.0
    before, after = int(begin.min()), block.shape[1] - int(begin.max())
    series = np.zeros(before + after)
    for row, at in zip(block, begin.tolist(), strict=True):
        series += np.nan_to_num(row[at - before : at + after])
    sums = np.append(0.0, np.cumsum(series - series.mean()))
    first = np.arange(more, len(series) - more - length + 1, max(1, length // 2))
    first = first[np.abs(first - before) >= length + more]
    if not len(first):
        return 1.0
    last = first + length
    windows = sums[last] - sums[first] - length * (sums[last + more] - sums[first - more]) / (length + 2 * more)
    scatter = 1.4826 * float(np.median(np.abs(windows - np.median(windows))))
    ratio = scatter / math.sqrt(float((sigma**2).sum()) * length)
    independent = len(first) * max(1, length // 2) / length  # neighbouring windows share half of their samples
    return ratio if ratio > 1 + RED / math.sqrt(independent) else 1.0
