"""``skysieve dedisp stream``, ``skysieve dedisp emulate`` and ``skysieve dedisp watch``."""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skysieve.core.command import number_list, option, report_errors
from skysieve.dedispersion.stream.receive.file_source import opened_source

if TYPE_CHECKING:
    from skysieve.dedispersion.stream.pipeline import Pipeline
    from skysieve.dedispersion.stream.receive.packets import Parser

BLOCK = 0.25
"""Seconds of noise blocks, where a search does not need longer ones."""
COMPILING = "loading kernels; a fresh environment compiles them first, which takes half a minute, once"
INPUT, VOLTAGES, SEARCH, OUTPUT, RUN = "Input", "Voltages", "Search", "Output", "Running"


class Policy(StrEnum):
    """What a full ring does."""

    drop = "drop"
    block = "block"


class Noise(StrEnum):
    """Level and sigma of a block."""

    robust = "robust"
    moments = "moments"
    clipped = "clipped"


def place(text: str, name: str) -> tuple[str, int]:
    """``HOST:PORT``, or ``PORT`` of the loopback.

    >>> place("[::1]:5000", "--listen"), place("5000", "--listen")
    (('::1', 5000), ('127.0.0.1', 5000))
    """
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (colon and not host):
        raise ValueError(f"{name} {text}: expected HOST:PORT")
    return (host.strip("[]") if colon else "127.0.0.1"), int(port)


def shown(host: str, port: int) -> str:
    """What `place` reads.

    >>> shown("::1", 5000)
    '[::1]:5000'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parser_of(form: str, frames: int, threads: int, fch1: float | None, foff: float | None) -> Parser:
    """The parser that ``--format`` means."""
    from skysieve.dedispersion.stream.receive.packets import SkysieveParser
    from skysieve.dedispersion.stream.receive.vdif import VdifParser

    if form == "skysieve":
        return SkysieveParser()
    if form == "vdif":
        if fch1 is None or foff is None or not frames:
            raise ValueError("--format vdif needs --vdif-frames, --fch1 and --foff: its frames do not tell them")
        return VdifParser(frames=frames, fch1=fch1, foff=foff, threads=threads)
    module, colon, name = form.partition(":")
    if not colon:
        raise ValueError(f"--format {form}: expected skysieve, vdif, or MODULE:NAME of a parser")
    found = getattr(importlib.import_module(module), name, None)
    made: Any = found() if isinstance(found, type) else found
    if not (hasattr(made, "parse") and hasattr(made, "geometry")):
        raise ValueError(f"--format {form}: is no parser (no parse and geometry)")
    parser: Parser = made
    return parser


def times_rate(text: str) -> float:
    """``1x``, ``2.5x`` or ``max``.

    >>> times_rate("2.5x"), times_rate("max")
    (2.5, inf)
    """
    if text == "max":
        return math.inf
    try:
        return float(text.removesuffix("x"))
    except ValueError:
        raise ValueError(f"--rate {text}: expected max, or times the rate of the data, such as 1x") from None


Faults = Annotated[float, option("--loss", help="Part of the packets to leave out.", panel=INPUT, metavar="P")]


def emulate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Filterbank, or PSRDADA (voltages, power).")],
    to: Annotated[str, option("--to", help="Where to send.", panel=INPUT, metavar="HOST:PORT|dada:KEY")],
    rate: Annotated[str, option("--rate", help="1x, 2.5x, max (1x).", panel=INPUT, metavar="RATE")] = "1x",
    loss: Faults = 0.0,
    reorder: Annotated[float, option("--reorder", help="Part to send later.", panel=INPUT, metavar="P")] = 0.0,
    duplicate: Annotated[float, option("--duplicate", help="Part to send twice.", panel=INPUT, metavar="P")] = 0.0,
    reach: Annotated[int, option("--reach", help="Places later, at most (4).", panel=INPUT, metavar="N", min=1)] = 4,
    packet_bytes: Annotated[
        int, option("--packet-bytes", help="Samples of a packet, bytes (8192).", panel=INPUT, metavar="N", min=1)
    ] = 8192,
    beam: Annotated[int, option("--beam", help="Beam (0).", panel=INPUT, metavar="N", min=0, max=65535)] = 0,
    first: Annotated[
        int, option("--first", help="Number of the first sample.", panel=INPUT, metavar="N", min=0, max=2**55)
    ] = 0,
    repeat: Annotated[int, option("--repeat", help="Times to send it; 0: for ever (1).", panel=INPUT, metavar="N")] = 1,
    seconds: Annotated[float, option("--seconds", help="Stop after so many.", panel=INPUT, metavar="S")] = math.inf,
    seed: Annotated[int, option("--seed", help="Of the faults (0).", panel=INPUT, metavar="N")] = 0,
) -> None:
    """Send a file as UDP packets, or into a PSRDADA ring, as a telescope would.

    - skysieve dedisp emulate a.fil --to 127.0.0.1:5000 --rate 1x --loss 0.01
    - skysieve dedisp emulate a.fil --to dada:dada
    """
    from . import emulate as sender

    with report_errors():
        if to.startswith("dada:"):
            from skysieve.dedispersion.stream.receive.dada_ring import key_of

            from .emulate_dada import emulate_ring

            if loss or reorder or duplicate:
                raise ValueError("--loss, --reorder, --duplicate: a ring loses nothing")
            if beam or first:
                raise ValueError("--beam, --first: a ring has one beam, its samples begin at 0")
            key = key_of(to.removeprefix("dada:"), "--to")
            source = opened_source(file)
            done = emulate_ring(source, key, rate=times_rate(rate), repeat=repeat, seconds=seconds)
            speed = 8e-6 * done.bytes / max(done.seconds, 1e-9)
            typer.echo(f"sent {done.sent} blocks in {done.seconds:.2f} s: {speed:.1f} Mbit/s")
            return
        host, port = place(to, "--to")
        source = opened_source(file)
        done = sender.emulate(
            source, host, port, rate=times_rate(rate), loss=loss, reorder=reorder, duplicate=duplicate, reach=reach,
            packet_bytes=packet_bytes, beam=beam, first=first, repeat=repeat, seconds=seconds, seed=seed,
        )  # fmt: skip
        typer.echo(
            f"sent {done.sent} packets ({done.lost} left out, {done.moved} moved, {done.doubled} doubled) in "
            f"{done.seconds:.2f} s: {8e-6 * done.bytes / max(done.seconds, 1e-9):.1f} Mbit/s, "
            f"{done.cpu / max(done.seconds, 1e-9):.0%} of a core"
        )
        if done.refused:
            typer.echo(f"skysieve: {done.refused} packets were refused: does anybody listen on {to}?", err=True)


def stream(
    out: Annotated[Path, option("-o", "--out", help="Folder for what is found.", panel=OUTPUT, metavar="DIR")],
    listen: Annotated[
        list[str] | None, option("--listen", help="Socket; may be given often.", panel=INPUT, metavar="HOST:PORT")
    ] = None,
    file: Annotated[Path | None, option("--from", help="A file instead.", panel=INPUT, metavar="FILE")] = None,
    dada_key: Annotated[
        str | None, option("--dada-key", help="A PSRDADA ring instead.", panel=INPUT, metavar="HEX")
    ] = None,
    form: Annotated[
        str, option("--format", help="skysieve, vdif, MODULE:NAME (skysieve).", panel=INPUT, metavar="FORMAT")
    ] = "skysieve",
    fch1: Annotated[float | None, option("--fch1", help="VDIF: first channel, MHz.", panel=INPUT, metavar="F")] = None,
    foff: Annotated[float | None, option("--foff", help="VDIF: step, MHz.", panel=INPUT, metavar="F")] = None,
    vdif_frames: Annotated[int, option("--vdif-frames", help="VDIF: frames a second.", panel=INPUT, metavar="N")] = 0,
    vdif_threads: Annotated[int, option("--vdif-threads", help="VDIF: polarisations (1).", panel=INPUT)] = 1,
    window: Annotated[int, option("--window", help="Packets that one may be late by (8).", panel=INPUT, min=0)] = 8,
    ring: Annotated[float, option("--ring", help="Seconds of data that rings hold (2).", panel=INPUT)] = 2.0,
    policy: Annotated[Policy, option("--policy", help="Full rings: drop, block (drop).", panel=INPUT)] = Policy.drop,
    beams: Annotated[int, option("--beams", help="Beams at most (16).", panel=INPUT, metavar="N", min=1)] = 16,
    packet_bytes: Annotated[
        int, option("--packet-bytes", help="Longest datagram (9216).", panel=INPUT, metavar="N", min=64, max=65535)
    ] = 9216,
    socket_buffer: Annotated[
        int | None, option("--socket-buffer", help="Bytes to ask the kernel for (most).", panel=INPUT, min=0)
    ] = None,
    channels: Annotated[int, option("--channels", help="Of a subband (8).", panel=VOLTAGES, metavar="N", min=1)] = 8,
    taps: Annotated[int, option("--taps", help="Polyphase filter bank; 1: FFT (1).", panel=VOLTAGES, min=1)] = 1,
    pfb_window: Annotated[
        str, option("--pfb-window", help="hamming, hann, blackman, rectangular.", panel=VOLTAGES, metavar="NAME")
    ] = "hamming",
    integrate: Annotated[int, option("--integrate", help="Spectra to add (1).", panel=VOLTAGES, min=1)] = 1,
    stokes: Annotated[str, option("--stokes", help="I, or a polarisation: 0, 1 (I).", panel=VOLTAGES)] = "I",
    sideband: Annotated[str, option("--sideband", help="upper, lower (upper).", panel=VOLTAGES)] = "upper",
    plan: Annotated[Path | None, option("--plan", help="A plan that was saved.", panel=SEARCH, metavar="JSON")] = None,
    dm_max: Annotated[float | None, option("--dm-max", help="Highest DM, without a plan.", panel=SEARCH)] = None,
    threshold: Annotated[float, option("-t", "--threshold", help="S/N (6.5).", panel=SEARCH, metavar="X")] = 6.5,
    noise: Annotated[Noise, option("--noise", help="robust, moments, clipped (robust).", panel=SEARCH)] = Noise.robust,
    block: Annotated[float | None, option("--block", help="Noise blocks, s (0.25).", panel=SEARCH, metavar="S")] = None,
    step: Annotated[
        int, option("--step", help="Blocks searched at a time: less work, later news (1).", panel=SEARCH, min=1)
    ] = 1,
    gulp: Annotated[float, option("--gulp", help="Data worked on at a time, s (0.125).", panel=SEARCH)] = 0.125,
    ignore: Annotated[
        str | None, option("--ignore", help="Channels, as 0,5:9; 0 is the highest.", panel=SEARCH, metavar="LIST")
    ] = None,
    device: Annotated[
        str, option("--device", help="auto, cpu, cuda, cuda:1, cuda:all (auto).", panel=SEARCH, metavar="DEVICE")
    ] = "auto",
    threads: Annotated[int | None, option("--threads", help="CPU threads.", panel=SEARCH, metavar="N", min=1)] = None,
    memory: Annotated[str | None, option("--memory", help="Working memory: 2GiB, 50%.", panel=SEARCH)] = None,
    source: Annotated[str, option("--source", help="Name of the field.", panel=OUTPUT)] = "",
    telescope: Annotated[str, option("--telescope", help="Its name.", panel=OUTPUT)] = "",
    ra: Annotated[float, option("--ra", help="Degrees.", panel=OUTPUT)] = math.nan,
    dec: Annotated[float, option("--dec", help="Degrees.", panel=OUTPUT)] = math.nan,
    plots: Annotated[bool, option("--plots/--no-plots", help="A picture of each.", panel=OUTPUT)] = True,
    raw: Annotated[bool, option("--raw/--no-raw", help="The samples around each (.fil).", panel=OUTPUT)] = True,
    trigger: Annotated[
        str | None, option("--trigger", help="Run for each; gets it as JSON.", panel=OUTPUT, metavar="COMMAND")
    ] = None,
    voevent: Annotated[
        str | None, option("--voevent", help="POST each as a VOEvent 2.0 packet.", panel=OUTPUT, metavar="URL")
    ] = None,
    ivorn: Annotated[str, option("--ivorn", help="Stream of VOEvents.", panel=OUTPUT)] = "skysieve/stream",
    test: Annotated[bool, option("--test", help="VOEvents with the role of a test.", panel=OUTPUT)] = False,
    least: Annotated[float, option("--least", help="S/N for plots and triggers (all).", panel=OUTPUT)] = 0.0,
    coincident: Annotated[
        float, option("--coincident", help="Part of the beams that mean interference (0.5).", panel=OUTPUT, metavar="P")
    ] = 0.5,
    metrics: Annotated[
        str | None, option("--metrics", help="Prometheus; PORT is the loopback's.", panel=RUN, metavar="[HOST:]PORT")
    ] = None,
    web: Annotated[
        str | None, option("--web", help="A live page; PORT is the loopback's.", panel=RUN, metavar="[HOST:]PORT")
    ] = None,
    seconds: Annotated[float, option("--seconds", help="Stop after so many.", panel=RUN, metavar="S")] = math.inf,
    grace: Annotated[
        float, option("--grace", help="Seconds at the end for pictures, triggers (30).", panel=RUN, metavar="S", min=0)
    ] = 30.0,
    quiet: Annotated[bool, option("-q", "--quiet", help="Print errors only.", panel=RUN)] = False,
) -> None:  # fmt: skip
    """Search a stream of packets for dispersed pulses, as they come; ends on SIGINT or SIGTERM, with a summary.

    - skysieve dedisp stream --listen 127.0.0.1:5000 --plan a.json --out found
    """
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.stream.channelise.channeliser import Channeliser
    from skysieve.dedispersion.stream.intake import DadaFeed, Feed, FileFeed, Intake, SocketFeed
    from skysieve.dedispersion.stream.pipeline import Pipeline, live_line
    from skysieve.dedispersion.stream.receive.dada_ring import DadaReader, key_of
    from skysieve.dedispersion.stream.receive.file_source import opened_source
    from skysieve.dedispersion.stream.receive.packets import MOST_CHANNELS
    from skysieve.dedispersion.stream.receive.udp import UdpReceiver, check_free
    from skysieve.dedispersion.stream.records import Options
    from skysieve.dedispersion.stream.report.earlier import Earlier
    from skysieve.dedispersion.stream.report.metrics import MetricsServer
    from skysieve.dedispersion.stream.report.sink import Sink
    from skysieve.dedispersion.stream.report.status import StatusFile
    from skysieve.dedispersion.stream.web.process import PageProcess, check_extra

    from .warm_up import warm

    screen = Screen(quiet)
    with report_errors(), ExitStack() as stack:
        page = None if web is None else place(web, "--web")
        served: PageProcess | None = None
        if page is not None:
            check_extra()
        if [bool(listen), file is not None, dada_key is not None].count(True) != 1:
            raise ValueError("one of --listen, --from and --dada-key is needed: where the data come from")
        if not seconds > 0 or math.isnan(grace):
            raise ValueError(f"--seconds {seconds:g}, --grace {grace:g}: expected seconds, above 0 and at least 0")
        if (plan is None) == (dm_max is None):
            raise ValueError("--plan or --dm-max is needed, and not both: how far to search")
        places = [place(text, "--listen") for text in listen or ()]
        told_at = None if metrics is None else place(metrics, "--metrics")
        check_free(places)
        check_free([] if told_at is None else [told_at], socket.SOCK_STREAM)
        dada_ring = None if dada_key is None else stack.enter_context(DadaReader(key_of(dada_key)))
        ignored = number_list(ignore, "--ignore", MOST_CHANNELS, "channel numbers") if ignore else []
        search = {
            "threshold": threshold, "noise": noise.value, "block": block, "usual_block": BLOCK, "ignore": ignored,
            "device": device, "step": step, "threads": threads, "memory": memory,
        }  # fmt: skip
        options = Options(
            plan=None if plan is None else DMPlan.load(plan), dm_max=dm_max, window=window, ring=ring, gulp=gulp,
            policy=policy.value if listen else "block", growing=bool(listen),
            channelise={
                "channels": channels, "taps": taps, "window": pfb_window, "integrate": integrate, "sideband": sideband,
                "stokes": "I" if stokes == "I" else int(stokes) if stokes.isdecimal() else stokes,
            },
            search=search, cutouts=plots or raw, source=source, telescope=telescope, ra=ra, dec=dec,
        )  # fmt: skip
        Channeliser(1400.0, -1.0, 2, 2, 1e-6, **options.channelise)  # mistakes are told now, not when packets come
        parser = parser_of(form, vdif_frames, vdif_threads, fch1, foff)
        if plots:
            importlib.import_module("matplotlib")
        given = None if file is None else opened_source(file)
        sink = Sink(
            out, pictures=plots, raw=raw, least=least, command=trigger, url=voevent, ivorn=ivorn,
            role="test" if test else "observation", say=screen.say,
        )  # fmt: skip
        stack.callback(sink.close, 5.0, 0.0)
        earlier = Earlier.read(sink.folder, sink.table.segments)
        intake = Intake(parser, options, most_beams=beams, say=screen.say, made=earlier.made)
        if page is not None:
            host, port = page
            served = stack.enter_context(PageProcess(out, host, port, screen.say))
            screen.say(f"page on http://{shown(host, served.port)}/")
        with soon(2.0, partial(screen.say, COMPILING)):
            warm(options, kinds=file is None)
        receivers = [
            stack.enter_context(
                UdpReceiver(*where, slot_bytes=packet_bytes, policy=policy.value, socket_buffer=socket_buffer)
            )
            for where in places
        ]
        if dada_ring is not None:
            feed: Feed = DadaFeed(intake, dada_ring)
        else:
            feed = FileFeed(intake, given) if given is not None else SocketFeed(intake, receivers)
        pipeline = Pipeline(
            intake, feed, sink, receivers=receivers, part=coincident, grace=grace,
            status=lambda state: screen.line(live_line(state)), earlier=earlier,
        )  # fmt: skip
        about = {"source": source, "telescope": telescope, "folder": str(out)}
        told_state = stack.enter_context(StatusFile(out, pipeline.state, about, screen.say, pipeline.streams))

        def all_metrics() -> dict[str, tuple[str, str, float]]:
            found = {**pipeline.metrics(), "status_errors_total": told_state.metric()}
            return found if served is None else {**found, "page_up": served.metric()}

        if told_at is not None:
            server = stack.enter_context(MetricsServer(all_metrics, *told_at))
            screen.say(f"metrics on http://{shown(told_at[0], server.port)}/metrics")
        stack.enter_context(stopping(pipeline, seconds))
        for receiver in receivers:
            urgent = "real-time" if receiver.real_time else "ordinary"
            screen.say(
                f"{len(receiver.sockets)} x {receiver.granted // 1024} KiB of socket buffers, {urgent} priority; "
                f"listening on {shown(*receiver.address)}"
            )
        summary = pipeline.run()
        screen.end()
        if not quiet:
            show(summary)
        pipeline.save_summary(summary)


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a stream, running or ended.")],
    port: Annotated[
        str, option("--port", help="Where; PORT is the loopback's (8780).", panel=RUN, metavar="[HOST:]PORT")
    ] = "8780",
) -> None:
    """Serve the live page of a folder that `skysieve dedisp stream` writes or has written, until Ctrl-C.

    - skysieve dedisp watch night --port 8780
    """
    from skysieve.dedispersion.stream.web.process import check_extra

    with report_errors():
        host, number = place(port, "--port")
        check_extra()
        from skysieve.dedispersion.stream.web.server import watch as serve

        serve(folder, host, number, lambda free: typer.echo(f"page on http://{shown(host, free)}/", err=True))


@contextmanager
def soon(seconds: float, do: Callable[[], None]) -> Iterator[None]:
    """Do a thing where the work lasts longer."""
    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def stopping(pipeline: Pipeline, seconds: float) -> Iterator[None]:
    """SIGINT, SIGTERM and the end of ``seconds`` stop the pipeline; a second signal ends it at once."""

    def stop(number: int, frame: object) -> None:
        if pipeline.feed.stop.is_set():
            raise KeyboardInterrupt
        pipeline.stop()

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    timer = threading.Timer(seconds, pipeline.stop) if math.isfinite(seconds) else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


class Screen:
    """Lines for the operator: one that is redrawn on a terminal; every tenth elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.terminal, self.count, self.drawn = quiet, os.isatty(2), 0, False
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        with self._lock:
            self._clear()
            self._write(text + "\n")

    def line(self, text: str) -> None:
        """The line of this second."""
        self.count += 1
        if self.quiet or not (self.terminal or self.count % 10 == 1):
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
        """Onto standard error; a terminal that has gone away ends no search."""
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the line that is redrawn."""
        with self._lock:
            self._clear()


def show(summary: dict[str, Any]) -> None:
    """The summary."""
    c, s = summary["counts"], summary["sink"]
    typer.echo(
        f"{summary['data_seconds']:.2f} s of data in {summary['seconds']:.2f} s, {summary['realtime']:.2f} x real time"
    )
    typer.echo("packets: " + ", ".join(f"{v} {k}" for k, v in c.items() if v and k not in ("bytes", "packets")))
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in summary["stages"].items())
    typer.echo(f"work: {stages}")
    if summary["latency_most"] is not None:
        typer.echo(f"latency: median {summary['latency_median']:.2f} s, most {summary['latency_most']:.2f} s")
    for what, states in (("pictures", "failed skipped later"), ("triggers", "failed dropped unfinished")):
        bad = {state: s[f"{what}_{state}"] for state in states.split()}
        if any(bad.values()):  # of all that went well nobody need be told
            typer.echo(f"{what}: {s[what]}, " + ", ".join(f"{number} {state}" for state, number in bad.items()))
    typer.echo(f"{s['candidates']} candidates, {s['written']} written, {s['flagged']} flagged")
