"""Load or compile what a stream needs before its sockets are open, so that packets do not wait for it.

In a new environment compiling takes 10 to 30 s, once; the compiled code is stored on the disk.  For a search on a CPU,
other processes compile a part of it.  They compile the code for packets of rarer kinds last, while the sockets are
open.  For a file, which can wait, nothing is loaded before it is needed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import is_ready, run_beside
from skysieve.dedispersion.clean.blocks import compile_ahead
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation
from skysieve.dedispersion.single_pulse import grouping
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.channelise.cpu_power import quantise
from skysieve.dedispersion.stream.intake import Intake
from skysieve.dedispersion.stream.receive.packets import POWER, VOLTAGE, Geometry, SkysieveParser, packets
from skysieve.dedispersion.stream.records import Options
from skysieve.dedispersion.stream.search.search import StreamSearch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

USUAL_BITS, POWER_BITS, VOLTAGE_BITS = 8, (16, 32), (4, 8)
"""Numbers of bits per sample for which different functions are compiled."""
BINNED_DM = 40.0
"""Highest DM of a plan with binning by 1 and 2, for 64 channels of 1 MHz from 400 MHz on, and a sample every ms."""
SWEEP = 64
"""Most samples of the sweep of a pulse."""
NARROW = 64
"""Length of the narrow-band signal in samples."""
NICE = 10
"""Niceness of the process that compiles while the stream runs, whose search has 5."""
LONG_BLOCK = 60.0
"""Length of a noise block in seconds that is longer than any data need."""


def warm(options: Options, dtype: str = "uint8") -> None:
    """Load the kernels for any kind of datagrams, and report mistakes in the options of the search.

    On a CPU, kernels for all kinds but 8-bit power are left to other processes, if they were never compiled.  For data
    that can wait (``options.expected``) nothing is loaded; functions are compiled when they are used.

    Parameters
    ----------
    options : Options
    dtype : str
        Type of the samples, if it is known.
    """
    if not options.expected:
        compile_ahead.compile_beside(steps=True)
        grouping.compile_beside(dtype)
    plan, search = options.plan, options.search
    if plan is not None and plan.nchan > 1:
        observation = Observation(np.linspace(plan.top, plan.bottom, plan.nchan), plan.tsamp)
    else:  # the size of the data is not known yet, but the kernels do not depend on it
        observation, plan = Observation(np.linspace(1500, 1400, 64), 1e-3), np.arange(20.0)
        search = without_channels(search)
    expected = min(options.expected, 1)
    with StreamSearch(observation, plan, dtype=dtype, expected=expected, **search) as made:
        if expected:
            return
        made.warm()
        highest = float(max(listed[-1] for listed, *_ in made.job.stages))
        rows = signals(made.length, observation.freqs, observation.tsamp, highest)
        rows = np.clip(100 + 16 * rows, 0, 255).astype(np.uint8)
        for at in (0, made.length):  # with missing samples, whose functions are loaded too
            made.feed(at, rows, [[at, at + 4, 0, observation.nchan]])
        made.finish()
        on_gpu = bool(getattr(made.engine, "runtimes", None))
    search, channelise = without_channels(options.search), options.channelise
    warm_power(USUAL_BITS, search)
    rarer: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        *((warm_power, (bits, search)) for bits in POWER_BITS),
        *((warm_voltages, (bits, search, channelise)) for bits in VOLTAGE_BITS),
    ]
    here = on_gpu or is_ready(quantise)  # the last function of these that is compiled
    for function, given in rarer:
        name = function.__name__
        if here or not run_beside(f"from {__name__} import later, {name}; later({name}, *{given!r})"):
            function(*given)


def later(function: Callable[..., None], *given: Any) -> None:
    """Call a function with low priority, because the stream runs meanwhile."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    function(*given)


def warm_power(bits: int, search: dict[str, Any]) -> None:
    """Pass packets of total power with this number of bits through all stages; ``search``: as in `Options`."""
    _run_through(power_packets(bits), Options(dm_max=BINNED_DM, policy="block", search=search, cutouts=False))


def warm_voltages(bits: int, search: dict[str, Any], channelise: dict[str, Any]) -> None:
    """Pass packets of voltages through all stages; ``search`` and ``channelise``: as in `Options`."""
    options = Options(np.arange(4.0), policy="block", search=search, channelise=channelise, cutouts=False)
    _run_through(voltage_packets(bits, channelise), options)


def without_channels(search: dict[str, Any]) -> dict[str, Any]:
    """The options of a search for data with other channels: no ignored channels, and no short noise blocks."""
    block = search.get("block")
    return {**search, "ignore": (), "block": block if block is not None and block > LONG_BLOCK else None}


def _run_through(made: NDArray[np.uint8], options: Options) -> None:
    """Pass datagrams, except one, through all stages."""
    parser = SkysieveParser()
    g = parser.geometry(made[0])
    room = 2 * len(made) * g.nsamp * g.tsamp  # for all packets, because nothing is taken before the last one
    intake = Intake(parser, replace(options, ring=room))
    kept = np.delete(made, len(made) // 3, axis=0) if len(made) > 2 else made
    intake.take(kept, np.full(len(kept), kept.shape[1]))
    intake.end()
    for beam in intake.beams.values():
        segment: Segment = beam.segments[0]
        try:
            while (gulp := segment.take()) is not None:
                segment.step(gulp)
            segment.finish()
        finally:
            segment.close()


def signals(n: int, freqs: NDArray[np.float64], tsamp: float, highest: float) -> NDArray[np.float32]:
    """Noise with signals that use all functions: dispersed and undispersed pulses, a narrow-band signal, and a step.

    Parameters
    ----------
    n : int
        Samples.
    freqs : numpy.ndarray, shape (channels,)
        MHz.
    tsamp, highest : float
        Seconds of a sample, and the highest DM that is searched.

    Returns
    -------
    numpy.ndarray of float32, shape (samples, channels)
        In units of the noise.
    """
    x = np.random.default_rng(1).normal(0, 1, (n, len(freqs))).astype(np.float32)
    sweep = delay_seconds(freqs, 1.0, float(freqs.max()), DM_CONSTANT) / tsamp
    for c, late in enumerate(np.rint(sweep * min(highest, SWEEP / max(float(sweep.max()), 1e-9))).astype(int).tolist()):
        x[n // 4 + late : n // 4 + late + 4, c] += 4
    x[n // 2] += 8
    x[3 * n // 5 : 3 * n // 5 + NARROW, 0] += 4
    x[7 * n // 10 :] += 1
    return x


def power_packets(bits: int) -> NDArray[np.uint8]:
    """Packets with 6 s of noise and `signals`, in rising order of frequency."""
    n, nchan = 6144, 64
    x = signals(n, np.arange(400.0, 400.0 + nchan, dtype=np.float64), 1e-3, BINNED_DM)
    steps: NDArray[Any] = x if bits == 32 else np.clip(100 + 16 * x, 0, 255).astype(f"<u{bits // 8}")
    return packets(
        Geometry(POWER, bits, 1, 32, nchan, 1, 0, 1e-3, 400.0, 1.0), steps.view(np.uint8).reshape(n, 1, -1), 0
    )


def voltage_packets(bits: int, channelise: dict[str, Any]) -> NDArray[np.uint8]:
    """Packets with a few spectra of two polarisations of two subbands."""
    spectrum = channelise.get("channels", 8) * channelise.get("integrate", 1)
    n = 4 * spectrum + channelise.get("channels", 8) * channelise.get("taps", 1)
    steps = np.random.default_rng(1).integers(0, 256, (n, 2, 2 * 2 * bits // 8), np.uint8)
    tsamp = 1e-3 / spectrum
    g = Geometry(VOLTAGE, bits, 2, 1, 2, 1, 0, tsamp, 1400.0, 1e-6 / tsamp)
    size = next(k for k in range(min(n, 512), 0, -1) if n % k == 0)
    return packets(replace(g, nsamp=size), steps, 0)
