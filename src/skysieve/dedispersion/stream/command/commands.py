"""``skysieve dedisp stream``, ``skysieve dedisp emulate`` and ``skysieve dedisp watch``."""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skysieve.core.command import (
    ADDRESS,
    OUTPUT,
    RUN,
    DeviceOption,
    MemoryOption,
    Messages,
    MetricsOption,
    ProgressOption,
    QuietOption,
    ThreadsOption,
    VerboseOption,
    check_output,
    counted,
    in_options,
    needs,
    option,
    report_errors,
)
from skysieve.core.metrics.server import PageServer, format_address, metrics_page, parse_address
from skysieve.dedispersion.clean.blocks.steps import parse_steps
from skysieve.dedispersion.contract import DIP, EXCESS, THRESHOLD
from skysieve.dedispersion.data.observation import DM_CONSTANT
from skysieve.dedispersion.search_options import (
    SEARCH,
    CleanOption,
    DipOption,
    ExcessOption,
    IgnoreOption,
    MaxWidthOption,
    NoBaselineOption,
    NoiseOption,
    ThresholdOption,
    VetoOption,
    channel_numbers,
)
from skysieve.dedispersion.stream.channelise.channeliser import SIDEBANDS, WINDOWS
from skysieve.dedispersion.stream.metrics import METRICS, PREFIX
from skysieve.dedispersion.stream.receive.formats import FORMATS
from skysieve.dedispersion.stream.records import POLICIES
from skysieve.dedispersion.stream.report.triggers import TRIGGERS

if TYPE_CHECKING:
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.injections.grid import PulseGrid
    from skysieve.dedispersion.stream.pipeline import Pipeline
    from skysieve.dedispersion.stream.receive.dada_file import DadaFile
    from skysieve.dedispersion.stream.receive.voltages import Voltages

    PolicyChoice = str
    PfbWindowChoice = str
    SidebandChoice = str
else:  # typer takes choices from enumerations
    PolicyChoice = StrEnum("PolicyChoice", {name: name for name in POLICIES})
    PfbWindowChoice = StrEnum("PfbWindowChoice", {name: name for name in WINDOWS})
    SidebandChoice = StrEnum("SidebandChoice", {name: name for name in SIDEBANDS})

MOST_SECONDS = 1e10
"""Longest ring, gulp and noise block in seconds."""
BLOCK = 0.25
"""Seconds of a noise block, unless the search needs a longer one."""
LIVE_SNR = 8.0, 10.0, 15.0, 30.0
"""S/N of injected pulses, unless --inject-grid specifies it."""
INJECT_NAMES = {"every": "--inject-every", "grid": "--inject-grid"}
"""Options of arguments that have another name."""
INPUT, VOLTAGES = "Input", "Voltages"


def parse_rate(text: str) -> float:
    """Read ``1x``, ``2.5x`` or ``max``.

    >>> parse_rate("2.5x"), parse_rate("max")
    (2.5, inf)
    """
    if text == "max":
        return math.inf
    try:
        return float(text.removesuffix("x"))
    except ValueError:
        raise ValueError(f"--rate {text}: expected max, or a multiple of the data's own rate, such as 1x") from None


def listed(registry: dict[str, str]) -> str:
    """The entries of a registry as a clause: ``drop (...) or block (...)``.

    >>> listed({"a": "one", "b": "two"})
    'a (one) or b (two)'
    """
    return " or ".join(f"{name} ({help})" for name, help in registry.items())


FORMAT_HELP = (
    f"Format of the packets: {listed({name: form.help for name, form in FORMATS.items()})}, or MODULE:NAME of your own "
    "parser. The default is skysieve."
)
TRIGGER_HELP = (
    "Send each candidate to a program or an address; may be repeated. "
    + " ".join(f"{name}:{kind.target_name} {kind.help}." for name, kind in TRIGGERS.items())
    + " By default nothing is sent."
)


def emulate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A filterbank, or a PSRDADA file with voltages or power.")
    ],
    to: Annotated[
        str,
        option("--to", help="Where to send: a UDP address, or a PSRDADA ring by its hexadecimal key.", panel=INPUT,
               metavar="HOST:PORT|dada:KEY"),
    ],
    rate: Annotated[
        str,
        option("--rate", help="Multiple of the data's own rate, such as 2.5x, or max. The default is 1x.", panel=INPUT,
               metavar="RATE"),
    ] = "1x",
    loss: Annotated[
        float, option("--loss", help="Fraction of the packets to leave out. The default is 0.", panel=INPUT,
                      metavar="P", min=0, max=1)
    ] = 0.0,
    reorder: Annotated[
        float, option("--reorder", help="Fraction of the packets to send out of order. The default is 0.", panel=INPUT,
                      metavar="P", min=0, max=1)
    ] = 0.0,
    duplicate: Annotated[
        float, option("--duplicate", help="Fraction of the packets to send twice. The default is 0.", panel=INPUT,
                      metavar="P", min=0, max=1)
    ] = 0.0,
    reach: Annotated[
        int,
        option("--reach", help="Packets out of order and repeated packets are sent at most this many places later. The "
                                "default is 4.", panel=INPUT, metavar="N", min=1),
    ] = 4,
    packet_bytes: Annotated[
        int,
        option("--packet-bytes", help="Largest number of bytes of samples in a packet. The default is 8192.",
                                      panel=INPUT,
               metavar="N", min=1),
    ] = 8192,
    beam: Annotated[
        int, option("--beam", help="Number of the beam. The default is 0.", panel=INPUT, metavar="N", min=0, max=65535)
    ] = 0,
    voltages: Annotated[
        int | None,
        option("--voltages", help="Send voltages with the power of a filterbank, in subbands of this many channels; "
                                  "the receiver needs --channels with the same number. By default power is sent.",
               panel=VOLTAGES, metavar="C", min=1),
    ] = None,
    spectra: Annotated[
        int,
        option("--spectra", help="With --voltages: number of spectra for each sample of the file; the receiver needs "
                                 "--integrate with the same number. The default is 1.",
                                 panel=VOLTAGES, metavar="N", min=1),
    ] = 1,
    first: Annotated[
        int,
        option("--first", help="Number of the first sample, rounded down to whole packets. The default is 0.",
               panel=INPUT, metavar="N", min=0, max=2**55),
    ] = 0,
    repeat: Annotated[
        int,
        option("--repeat", help="Number of times to send the file; 0 means forever. The default is 1.",
               panel=INPUT, metavar="N"),
    ] = 1,
    seconds: Annotated[
        float,
        option("--seconds", help="Stop after this many seconds. By default everything is sent.", panel=INPUT,
               metavar="S"),
    ] = math.inf,
    seed: Annotated[
        int, option("--seed", help="Seed of the random faults. The default is 0.", panel=INPUT, metavar="N", min=0)
    ] = 0,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:  # fmt: skip
    """Send a file as UDP packets, or into a PSRDADA ring, as a telescope would.

    Examples:

    - skysieve dedisp emulate a.fil --to 127.0.0.1:5000 --rate 1x --loss 0.01
    - skysieve dedisp emulate a.fil --to dada:dada
    - skysieve dedisp emulate a.fil --to 127.0.0.1:5000 --voltages 8
    """
    from . import emulate as sender

    with report_errors():
        messages = Messages(quiet, verbose)
        needs("--voltages", voltages, "--spectra")
        needs("--reorder or --duplicate", reorder or duplicate, "--reach")
        if to.startswith("dada:"):
            from skysieve.dedispersion.stream.receive.dada_ring import key_of

            from .emulate_dada import emulate_ring

            needs("a UDP address", False, "--packet-bytes")
            if loss or reorder or duplicate:
                raise ValueError("--loss, --reorder, --duplicate: expected 0, because a ring loses no data")
            if beam or first:
                raise ValueError("--beam, --first: expected 0, because a ring has one beam that begins at sample 0")
            key = key_of(to.removeprefix("dada:"), "--to")
            with messages.notes():
                source = opened_source(file, voltages, spectra, seed)
            messages.detail(f"{source.nsamp} samples to PSRDADA ring {key:x}")
            done = emulate_ring(source, key, rate=parse_rate(rate), repeat=repeat, seconds=seconds)
            speed = 8e-6 * done.bytes / max(done.seconds, 1e-9)
            messages.say(f"sent {done.sent} blocks in {done.seconds:.2f} s: {speed:.1f} Mbit/s")
            return
        host, port = parse_address(to, "--to")
        with messages.notes():
            source = opened_source(file, voltages, spectra, seed)
        messages.detail(f"{source.nsamp} samples to {format_address(host, port)}")
        done = sender.emulate(
            source, host, port, rate=parse_rate(rate), loss=loss, reorder=reorder, duplicate=duplicate, reach=reach,
            packet_bytes=packet_bytes, beam=beam, first=first, repeat=repeat, seconds=seconds, seed=seed,
        )  # fmt: skip
        messages.say(
            f"sent {counted(done.sent, 'packet')} ({done.lost} left out, {done.moved} out of order, "
            f"{done.doubled} twice) in {done.seconds:.2f} s: {8e-6 * done.bytes / max(done.seconds, 1e-9):.1f} Mbit/s, "
            f"{done.cpu / max(done.seconds, 1e-9):.0%} of a core"
        )
        if done.over:
            messages.say(f"not sent: the last {counted(done.over, 'sample')} of the file, which do not fill a packet")
        if done.refused:
            typer.echo(f"skysieve: {done.refused} packets were refused: is anything listening on {to}?", err=True)


def opened_source(file: Path, channels: int | None, spectra: int, seed: int) -> Filterbank | DadaFile | Voltages:
    """The file to send, or voltages with its power."""
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.stream.receive.file_source import open_source
    from skysieve.dedispersion.stream.receive.voltages import Voltages

    source = open_source(file)
    if channels is None:
        return source
    if not isinstance(source, Filterbank):
        raise ValueError(f"--voltages: expected a filterbank; {file} is a PSRDADA file, whose samples are sent")
    nchan = source.observation.nchan
    if nchan % channels or nchan < 2 * channels:
        raise ValueError(f"--voltages {channels}: expected a divisor of the {nchan} channels, at most half of them")
    return Voltages(source, channels, spectra, seed)


def stream(
    output: Annotated[
        Path,
        option("-o", "--output", panel=OUTPUT, metavar="DIR",
               help="Folder for candidates, samples and pictures. If it exists, the run adds to its tables and "
               "replaces nothing."),
    ],
    listen: Annotated[
        list[str] | None,
        option("--listen", help="UDP address to receive packets on; may be repeated.", panel=INPUT,
               metavar=ADDRESS),
    ] = None,
    file: Annotated[
        Path | None,
        option("--from", help="Search a filterbank or PSRDADA file as a stream, instead of packets.", panel=INPUT,
               metavar="FILE"),
    ] = None,
    dada_key: Annotated[
        str | None,
        option("--dada-key", help="Read the PSRDADA ring with this hexadecimal key, instead of packets.", panel=INPUT,
               metavar="HEX"),
    ] = None,
    packet_format: Annotated[str, option("--packet-format", help=FORMAT_HELP, panel=INPUT, metavar="FORMAT")]
    = "skysieve",
    fch1: Annotated[
        float | None, option("--fch1", help="VDIF: centre of the first channel in MHz.", panel=INPUT, metavar="F")
    ] = None,
    foff: Annotated[
        float | None, option("--foff", help="VDIF: step to the next channel in MHz.", panel=INPUT, metavar="F")
    ] = None,
    vdif_frames: Annotated[
        int | None, option("--vdif-frames", help="VDIF: frames per second of one thread.", panel=INPUT, metavar="N")
    ] = None,
    vdif_threads: Annotated[
        int,
        option("--vdif-threads", help="VDIF: number of threads, which are polarisations. The default is 1.",
               panel=INPUT, metavar="N"),
    ] = 1,
    window: Annotated[
        int,
        option("--window", help="Number of packets to wait for a missing one; a packet that comes later is dropped as "
                                "late. The default is 8.", panel=INPUT, metavar="N", min=0),
    ] = 8,
    ring: Annotated[
        float,
        option("--ring", help="Seconds of data that the ring of a beam holds. The default is 2.", panel=INPUT,
               metavar="S"),
    ] = 2.0,
    policy: Annotated[
        PolicyChoice,
        option("--policy", panel=INPUT,
               help=f"What happens when a ring is full: {listed(POLICIES)}. The default is drop."),
    ] = "drop",
    beams: Annotated[
        int,
        option("--beams", help="Largest number of beams; packets of further beams are refused. The default is 16.",
                               panel=INPUT,
               metavar="N", min=1),
    ] = 16,
    datagram_bytes: Annotated[
        int,
        option("--datagram-bytes", help="Largest datagram in bytes, including its header. The default is 9216.",
                                        panel=INPUT,
               metavar="N", min=64, max=65535),
    ] = 9216,
    socket_buffer: Annotated[
        int | None,
        option("--socket-buffer", help="Bytes of socket buffer to request from the operating system. The default is as "
                                       "many as it grants.", panel=INPUT, metavar="N", min=0),
    ] = None,
    channels: Annotated[
        int, option("--channels", help="Channels per subband. The default is 8.", panel=VOLTAGES, metavar="N", min=1)
    ] = 8,
    taps: Annotated[
        int,
        option("--taps", help="Taps of the polyphase filter bank; 1 means an FFT. The default is 1.", panel=VOLTAGES,
               metavar="N", min=1),
    ] = 1,
    pfb_window: Annotated[
        PfbWindowChoice,
        option("--pfb-window", panel=VOLTAGES,
               help=f"Window of the filter bank: {', '.join(WINDOWS)}. The default is hamming."),
    ] = "hamming",
    integrate: Annotated[
        int, option("--integrate", help="Number of spectra to add. The default is 1.",
                                        panel=VOLTAGES, metavar="N", min=1)
    ] = 1,
    stokes: Annotated[
        str,
        option("--stokes", help="I for the sum of the polarisations; 0 or 1 for one of them. The default is I.",
               panel=VOLTAGES, metavar="WHICH"),
    ] = "I",
    sideband: Annotated[
        SidebandChoice,
        option("--sideband", panel=VOLTAGES,
               help="Whether sky frequency rises (upper) or falls (lower) with that of the voltages. The default is "
               "upper."),
    ] = "upper",
    plan: Annotated[
        Path | None,
        option("--plan", help="A plan that 'skysieve dedisp plan' saved, instead of --dm-max.", panel=SEARCH,
               metavar="JSON"),
    ] = None,
    dm_max: Annotated[
        float | None,
        option("--dm-max", "--hidm", help="Highest DM in pc/cm^3; the rule 'loss' chooses the DMs.", panel=SEARCH,
               metavar="DM"),
    ] = None,
    threshold: ThresholdOption = THRESHOLD,
    noise: NoiseOption = "robust",
    block: Annotated[
        float | None,
        option("--block", help="Length of the noise blocks in seconds. The default is "
               f"{BLOCK:g}, or longer if pulses need it.", panel=SEARCH, metavar="S"),
    ] = None,
    clean: CleanOption = None,
    max_width: MaxWidthOption = None,
    veto: VetoOption = None,
    no_baseline: NoBaselineOption = False,
    excess: ExcessOption = EXCESS,
    dip: DipOption = DIP,
    step: Annotated[
        int,
        option("--step", help="Number of blocks to search at a time; more blocks need less work but increase the "
                              "latency. The default is 1.", panel=SEARCH, metavar="N", min=1),
    ] = 1,
    gulp: Annotated[
        float,
        option("--gulp", help="Longest stretch of data in seconds to process at a time. The default is 0.125.",
                              panel=SEARCH,
               metavar="S"),
    ] = 0.125,
    ignore: IgnoreOption = None,
    inject_every: Annotated[
        float | None,
        option("--inject-every", help="Add a pulse of known S/N to the samples of each beam, on average once in this "
                                      "many seconds. Its candidates are marked and never trigger; injections.csv says "
                                      "which pulses were found. By default none is added.", panel=SEARCH, metavar="S"),
    ] = None,
    inject_grid: Annotated[
        str | None,
        option("--inject-grid", help="Pulses of --inject-every, written as --grid of 'skysieve dedisp completeness'. "
               f"The default is snr={','.join(f'{snr:g}' for snr in LIVE_SNR)} and the DMs of the search.",
               panel=SEARCH, metavar="GRID"),
    ] = None,
    inject_seed: Annotated[
        int,
        option("--inject-seed", help="Seed of the injected pulses. The default is 0.", panel=SEARCH, metavar="N",
               min=0),
    ] = 0,
    source: Annotated[
        str, option("--source", help="Name of the source, for headers and VOEvents. The default is that in the "
                    "header of the filterbank of --from, or none.", panel=OUTPUT, metavar="NAME")
    ] = "",
    telescope: Annotated[
        str, option("--telescope", help="Name of the telescope. The default is as for --source.", panel=OUTPUT,
                    metavar="NAME")
    ] = "",
    ra: Annotated[
        float, option("--ra", help="Right ascension in degrees. The default is as for --source.", panel=OUTPUT,
                      metavar="DEG")
    ] = math.nan,
    dec: Annotated[
        float, option("--dec", help="Declination in degrees. The default is as for --source.", panel=OUTPUT,
                      metavar="DEG")
    ] = math.nan,
    plots: Annotated[
        bool,
        option("--plots/--no-plots", help="Draw a picture of each candidate. The default is to draw them.",
               panel=OUTPUT),
    ] = True,
    raw: Annotated[
        bool,
        option("--raw/--no-raw", help="Keep the samples around each candidate (.fil). The default is to keep them.",
               panel=OUTPUT),
    ] = True,
    trigger: Annotated[
        list[str] | None, option("--trigger", help=TRIGGER_HELP, panel=OUTPUT, metavar="KIND:TARGET")
    ] = None,
    ivorn: Annotated[
        str,
        option("--ivorn", help="Authority and stream in the identifiers of VOEvents. The default is skysieve/stream.",
               panel=OUTPUT, metavar="NAME"),
    ] = "skysieve/stream",
    test: Annotated[
        bool,
        option("--test", help="Send VOEvents with the role 'test' instead of 'observation'.", panel=OUTPUT),
    ] = False,
    min_snr: Annotated[
        float,
        option("--min-snr", help="Least S/N for pictures, samples and triggers. The default is 0: all candidates.",
               panel=OUTPUT, metavar="X"),
    ] = 0.0,
    coincident: Annotated[
        float,
        option("--coincident", help="Flag candidates that more than this fraction of the beams detect at the same "
                                    "time. The default is 0.5.", panel=OUTPUT, metavar="P"),
    ] = 0.5,
    metrics: MetricsOption = None,
    web: Annotated[
        str | None,
        option("--web", help="Serve a live page at this address; PORT alone means 127.0.0.1. By default no page is "
                             "served.", panel=RUN, metavar=ADDRESS),
    ] = None,
    seconds: Annotated[
        float,
        option("--seconds", help="Stop after this many seconds. By default the command runs until the data end, or "
                                 "until Ctrl-C.", panel=RUN, metavar="S"),
    ] = math.inf,
    grace: Annotated[
        float,
        option("--grace", help="Longest time in seconds to wait for pictures and triggers at the end. The default is "
                               "30.",
               panel=RUN, metavar="S", min=0),
    ] = 30.0,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    memory: MemoryOption = None,
    progress: ProgressOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:  # fmt: skip
    """Search a stream of packets for dispersed pulses as they arrive; SIGINT or SIGTERM ends it with a summary.

    Examples:

    - skysieve dedisp stream --listen 127.0.0.1:5000 --plan a.json -o found
    - skysieve dedisp stream --from a.fil --dm-max 500 -o found --no-plots
    - skysieve dedisp stream --dada-key dada --dm-max 500 -o found --trigger voevent:http://broker.example/
    """
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.stream.channelise.channeliser import Channeliser
    from skysieve.dedispersion.stream.intake import DadaFeed, Feed, FileFeed, Intake, SocketFeed
    from skysieve.dedispersion.stream.pipeline import Pipeline, live_line
    from skysieve.dedispersion.stream.receive.dada_ring import DadaReader, key_of
    from skysieve.dedispersion.stream.receive.file_source import open_source
    from skysieve.dedispersion.stream.receive.formats import make_parser
    from skysieve.dedispersion.stream.receive.packets import MOST_CHANNELS
    from skysieve.dedispersion.stream.receive.udp import UdpReceiver, check_free
    from skysieve.dedispersion.stream.records import Options
    from skysieve.dedispersion.stream.report.previous_run import PreviousRun
    from skysieve.dedispersion.stream.report.sink import Sink
    from skysieve.dedispersion.stream.report.status import StatusFile
    from skysieve.dedispersion.stream.report.triggers import make_trigger
    from skysieve.dedispersion.stream.web.process import PageProcess, check_extra

    from .warm_up import warm

    with report_errors(names=INJECT_NAMES), ExitStack() as stack:
        screen = Screen(quiet, verbose, progress)
        page: PageProcess | None = None
        page_address = None if web is None else parse_address(web, "--web")
        if page_address is not None:
            check_extra()
        if [bool(listen), file is not None, dada_key is not None].count(True) != 1:
            raise ValueError("expected one of --listen, --from and --dada-key")
        needs("--listen", listen, "--packet-format", "--window", "--policy", "--beams", "--datagram-bytes",
              "--socket-buffer")  # fmt: skip
        for one in sorted({name for form in FORMATS.values() for name in form.options.values()}):
            those = [name for name, form in FORMATS.items() if one in form.options.values()]
            needs(f"--packet-format {' or '.join(those)}", packet_format in those, one)
        needs("--inject-every", inject_every is not None, "--inject-grid", "--inject-seed")
        needs("--plots, --raw or --trigger", plots or raw or trigger, "--min-snr")
        needs("--trigger voevent:URL", any(one.startswith("voevent:") for one in trigger or ()), "--ivorn", "--test")
        check_numbers(seconds, coincident, grace, block)
        if math.isnan(min_snr):
            raise ValueError(f"--min-snr {min_snr:g}: expected an S/N")
        for name, value in (("--ring", ring), ("--gulp", gulp), ("--block", block or 0.0)):
            if MOST_SECONDS < value < math.inf:
                raise ValueError(f"{name} {value:g}: expected at most {MOST_SECONDS:g} seconds")
        if (plan is None) == (dm_max is None):
            raise ValueError("expected one of --plan and --dm-max")
        addresses = [parse_address(text, "--listen") for text in listen or ()]
        metrics_address = None if metrics is None else parse_address(metrics, "--metrics")
        check_output(output, folder=True)
        check_free(addresses)
        for address, purpose in ((metrics_address, "serve metrics"), (page_address, "serve the page")):
            check_free([] if address is None else [address], socket.SOCK_STREAM, purpose)
        dada_ring = None if dada_key is None else stack.enter_context(DadaReader(key_of(dada_key)))
        ignored = channel_numbers(ignore, MOST_CHANNELS)
        search = {
            "threshold": threshold, "noise": str(noise), "block": block, "usual_block": BLOCK, "ignore": ignored,
            "clean": parse_steps(clean), "max_width": max_width, "baseline": not no_baseline,
            "veto": veto, "excess": excess, "dip": dip, "device": device, "step": step, "threads": threads,
            "memory": memory,
        }  # fmt: skip
        loaded = None if plan is None else DMPlan.load(plan)
        inject = None
        if inject_every is not None:
            highest = float(loaded.dms.max()) if loaded is not None else dm_max or 0.0
            inject = {"every": inject_every, "grid": live_grid(inject_every, inject_grid, highest), "seed": inject_seed}
        with screen.notes():
            given = None if file is None else open_source(file)
        if isinstance(given, Filterbank):
            needs("voltages, not a filterbank", False, "--channels", "--taps", "--pfb-window", "--integrate",
                  "--stokes", "--sideband")  # fmt: skip
            check_filterbank(given, ignore, loaded, dm_max or 0.0)
            header = given.observation
            source, telescope = source or header.source, telescope or header.telescope
            if math.isnan(ra) and math.isnan(dec):
                ra, dec = header.ra, header.dec
        options = Options(
            plan=loaded, dm_max=dm_max, inject=inject, expected=0 if given is None else given.nsamp, window=window,
            ring=ring, gulp=gulp,
            # pyrefly: ignore[bad-argument-type]  # typer has checked it
            policy=str(policy) if listen else "block", growing=bool(listen),
            channelise={
                "channels": channels, "taps": taps, "window": str(pfb_window), "integrate": integrate, "sideband":
                str(sideband), "stokes": "I" if stokes == "I" else int(stokes) if stokes.isdecimal() else stokes,
            },
            search=search, cutouts=plots or raw, source=source, telescope=telescope, ra=ra, dec=dec,
        )  # fmt: skip
        Channeliser(1400.0, -1.0, 2, 2, 1e-6, **options.channelise)  # report mistakes now, and not when packets arrive
        parser = make_parser(
            packet_format, {"frames": vdif_frames, "threads": vdif_threads, "fch1": fch1, "foff": foff}
        )
        triggers = [make_trigger(text, ivorn=ivorn, role="test" if test else "observation") for text in trigger or ()]
        if plots:
            importlib.import_module("matplotlib")
        compiling = "loading kernels; in a new environment they are compiled first, which takes up to half a minute"
        with if_longer(2.0, partial(screen.say, compiling)):
            warm(options, given.dtype.name if isinstance(given, Filterbank) else "uint8")
        sink = Sink(output, pictures=plots, raw=raw, min_snr=min_snr, triggers=triggers, say=screen.say)
        stack.callback(sink.close, 5.0, 0.0)
        previous = PreviousRun.read(sink.folder, sink.table.segments)
        if previous.killed and previous.unmarked:
            screen.say(unknown_gap(previous.unmarked))
        intake = Intake(
            parser, options, most_beams=beams, say=screen.say, next_segment=previous.next_segment,
            describe=in_options(INJECT_NAMES),
        )  # fmt: skip
        if page_address is not None:
            page = stack.enter_context(PageProcess(output, *page_address, screen.say))
            screen.say(f"the live page is on http://{format_address(page_address[0], page.port)}/")
        receivers = [
            stack.enter_context(
                UdpReceiver(
                    *address,
                    slot_bytes=datagram_bytes,
                    socket_buffer=socket_buffer,
                    policy=str(policy),  # pyrefly: ignore[bad-argument-type]  # typer has checked it
                )
            )
            for address in addresses
        ]
        if dada_ring is not None:
            feed: Feed = DadaFeed(intake, dada_ring)
        else:
            feed = FileFeed(intake, given) if given is not None else SocketFeed(intake, receivers)
        pipeline = Pipeline(
            intake, feed, sink, receivers=receivers, coincident=coincident, grace=grace,
            status=lambda state: screen.line(live_line(state)), previous=previous,
        )  # fmt: skip
        about = {"source": source, "telescope": telescope, "folder": str(output)}
        status = stack.enter_context(StatusFile(output, pipeline.state, about, screen.say, pipeline.streams))

        def all_metrics() -> dict[str, float]:
            served = {} if page is None else {"page_up": float(page.alive)}
            return {**pipeline.metrics(), "status_errors_total": float(status.errors), **served}

        if metrics_address is not None:
            pages = {"/metrics": metrics_page(all_metrics, METRICS, PREFIX)}
            server = stack.enter_context(PageServer(pages, *metrics_address))
            screen.say(f"metrics are on http://{format_address(metrics_address[0], server.port)}/metrics")
        stack.enter_context(stop_on_signals(pipeline, seconds))
        for receiver in receivers:
            priority = "real-time" if receiver.real_time else "ordinary"
            screen.detail(
                f"{len(receiver.sockets)} x {receiver.granted // 1024} KiB of socket buffers, {priority} priority"
            )
            screen.say(f"listening on {format_address(*receiver.address)}")
        summary = pipeline.run()
        screen.end()
        if not quiet:
            show(summary)
        pipeline.save_summary(summary)
        screen.wrote(sink.table.path, counted(summary["sink"]["written"], "candidate"))
        screen.wrote(sink.folder / "summary.json")
        if dropped := summary["sink"]["dropped"]:
            raise OSError(f"{sink.table.path}: {counted(dropped, 'candidate')} could not be written")
        if intake.refusal and not summary["data_seconds"]:
            raise ValueError(f"nothing was searched; {intake.refusal}")


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --output of a stream that runs or has ended.")],
    web: Annotated[
        str,
        option("--web", help="Address of the live page; PORT alone means 127.0.0.1. The default is 8780.",
               panel=RUN, metavar=ADDRESS),
    ] = "8780",
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:  # fmt: skip
    """Serve the live page of the folder of a stream until Ctrl-C.

    Examples:

    - skysieve dedisp watch night --web 8780
    """
    from skysieve.dedispersion.stream.web.process import check_extra

    with report_errors():
        messages = Messages(quiet, verbose)
        host, number = parse_address(web, "--web")
        check_extra()
        from skysieve.dedispersion.stream.web.server import watch as serve

        serve(
            folder, host, number,
            lambda port: messages.say(f"the live page is on http://{format_address(host, port)}/"),
        )  # fmt: skip


def check_numbers(seconds: float, coincident: float, grace: float, block: float | None) -> None:
    """Refuse values of options of `stream` that are out of range or NaN."""
    if not seconds > 0:
        raise ValueError(f"--seconds {seconds:g}: expected a number above 0")
    if not 0 < coincident <= 1:
        raise ValueError(f"--coincident {coincident:g}: expected a fraction of the beams, above 0 and at most 1")
    if math.isnan(grace):
        raise ValueError(f"--grace {grace:g}: expected at least 0 seconds")
    if block is not None and not 0 < block < math.inf:
        raise ValueError(f"--block {block:g}: expected a number of seconds above 0")


def live_grid(every: float, text: str | None, dm_max: float) -> PulseGrid:
    """The pulses of ``--inject-every``; ``text`` is the option ``--inject-grid``, and ``dm_max`` the highest DM."""
    from skysieve.dedispersion.injections.grid import PulseGrid

    try:
        grid = PulseGrid.parse(text or "", snr=LIVE_SNR, dm=(0.1 * dm_max, 0.9 * dm_max))
    except ValueError as error:
        raise ValueError(f"--inject-grid: {error}") from None
    if not every > 0:
        raise ValueError(f"--inject-every {every:g}: expected a number of seconds above 0")
    if grid.time is not None:
        raise ValueError(f"--inject-grid {text}: expected a grid without 'time'")
    return grid


def check_filterbank(data: Filterbank, ignore: str | None, plan: DMPlan | None, dm_max: float) -> None:
    """Refuse a file that does not have the channels of ``--ignore``, does not fit the plan, or is too short."""
    channel_numbers(ignore, data.nchan)
    if plan is not None:
        plan.check(data.observation)
        check_reach(data, "--plan", float(plan.dms.max()), plan.dm_constant)
    else:
        check_reach(data, "--dm-max", dm_max)


def unknown_gap(beams: Iterable[int]) -> str:
    """A note that the data between two runs, which were not searched, are unknown for these beams."""
    return (
        "the previous run in this folder was killed before it noted how far it had searched (beam "
        f"{', '.join(map(str, beams))}): the gap between that run and this one is not known"
    )


def check_reach(data: Filterbank, name: str, dm: float, dm_constant: float = DM_CONSTANT) -> None:
    """Refuse a highest DM, given by an option, whose delay is longer than the data."""
    from skysieve.dedispersion.data.delays import delay_seconds

    if not math.isfinite(dm):
        return  # `Options` refuses it
    delay = float(delay_seconds(data.freqs, dm, data.observation.top, dm_constant).max())
    if delay >= data.duration:
        fits = f"{dm * data.duration / delay:.4g}"
        raise ValueError(
            f"{name}: the delay of DM {dm:g} across the band is {delay:.6g} s, but the data last only "
            f"{data.duration:g} s; expected DMs below {fits}"
        )


@contextmanager
def if_longer(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call a function if the block takes longer than ``seconds``."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def stop_on_signals(pipeline: Pipeline, seconds: float) -> Iterator[None]:
    """Stop the pipeline on SIGINT, SIGTERM and after ``seconds``; a second signal ends it at once."""

    def stop(number: int, frame: object) -> None:
        if pipeline.feed.stop.is_set():
            raise KeyboardInterrupt
        pipeline.stop()

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with if_longer(seconds, pipeline.stop) if math.isfinite(seconds) else nullcontext():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Screen(Messages):
    """Messages from several threads, and a status line: redrawn on a terminal, elsewhere every tenth is printed."""

    def __init__(self, quiet: bool = False, verbose: bool = False, progress: bool | None = None) -> None:
        super().__init__(quiet, verbose, progress)
        self.terminal, self.count, self.drawn = os.isatty(2), 0, False
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Print a line, unless the command is quiet."""
        if self.quiet:
            return
        with self._lock:
            self._clear()
            self._write(text + "\n")

    def line(self, text: str) -> None:
        """Show the status of this second."""
        self.count += 1
        if not self.progress or not (self.terminal or self.count % 10 == 1):
            return
        with self._lock:
            self._clear()
            self._write(text if self.terminal else text + "\n")
            self.drawn = self.terminal

    def _clear(self) -> None:
        if self.drawn:
            self._write("\r\x1b[K")
            self.drawn = False

    @staticmethod
    def _write(text: str) -> None:
        """Write to standard error; if the terminal is closed, the search continues without it."""
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the status line."""
        with self._lock:
            self._clear()


def show(summary: dict[str, Any]) -> None:
    """Print the summary of a run."""
    c, s = summary["counts"], summary["sink"]
    typer.echo(
        f"{summary['data_seconds']:.2f} s of data in {summary['seconds']:.2f} s, {summary['realtime']:.2f} x real time"
    )
    counts = [f"{number} {name}" for name, number in c.items() if number and name not in ("bytes", "packets")]
    typer.echo(f"packets: {', '.join(counts) or 'none'}")
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in summary["stages"].items())
    typer.echo(f"processing: {stages}")
    if summary["latency_most"] is not None:
        typer.echo(
            f"latency: median {summary['latency_median']:.2f} s, largest {summary['latency_most']:.2f} s, "
            f"of {counted(summary['latency_candidates'], 'candidate')} before the end of the data"
        )
    if summary["end_latency_most"] is not None:
        typer.echo(
            f"latency at the end of the data: largest {summary['end_latency_most']:.2f} s, "
            f"of {counted(summary['end_latency_candidates'], 'candidate')}"
        )
    for what in ("pictures", "triggers"):  # only if something went wrong
        bad = {name.removeprefix(f"{what}_"): v for name, v in s.items() if name.startswith(f"{what}_") and v}
        if bad:
            typer.echo(f"{what}: {s[what]}, " + ", ".join(f"{number} {state}" for state, number in bad.items()))
    if s["injections"]:
        typer.echo(
            f"injected pulses: {s['injections_found']} of {s['injections']} found, "
            f"with {counted(s['injected'], 'candidate')}"
        )
    typer.echo(f"{counted(s['candidates'], 'candidate')}, {s['written']} written, {s['flagged']} flagged")
