"""The counters and measurements of a running stream, listed once.

Prometheus, ``status.json``, ``summary.json``, the live page, the line on the terminal and the table in
``docs/streaming.md`` take names and help texts from `METRICS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["METRICS", "PREFIX", "SINK_COUNTERS", "Metric", "metric_values", "names_of", "total"]

Origin = Literal["parser", "intake", "ring", "receiver", "sink", "pipeline", "process"]
"""The part of the stream that counts or measures a metric."""


@dataclass(frozen=True)
class Metric:
    """A number that a running stream reports.

    Attributes
    ----------
    name : str
        Name in the state, and key in a dictionary of counts.
    help : str
        A sentence that describes the metric.
    origin : str
        The part of the stream that counts it: the packet parser, the intake, the rings of the beams, the sockets'
        receivers, the sink of candidates, the pipeline, or the process of the command.
    kind : {"counter", "gauge"}
    category : {"", "refused", "dropped"}
        Why packets were not used: because of their content ("refused"), or because there was no room ("dropped").
    """

    name: str
    help: str
    origin: Origin
    kind: Literal["counter", "gauge"] = "counter"
    category: Literal["", "refused", "dropped"] = ""

    @property
    def exported(self) -> str:
        """Name for Prometheus, without the prefix of all metrics.

        >>> METRICS[0].exported, Metric("written", "Lines written.", "sink").exported
        ('packets_total', 'sink_written_total')
        """
        return ("sink_" if self.origin == "sink" else "") + self.name + ("_total" if self.kind == "counter" else "")


PREFIX = "skysieve_stream_"
"""Prefix of all names in Prometheus."""
METRICS = (
    Metric("packets", "Datagrams received.", "intake"),
    Metric("bytes", "Bytes of the datagrams received.", "intake"),
    Metric("accepted", "Packets used.", "ring"),
    Metric("lost", "Packets that had not arrived when their samples were searched.", "ring"),
    Metric("late", "Packets that arrived too late.", "ring"),
    Metric("duplicate", "Packets that arrived a second time.", "ring"),
    Metric("overflow", "Packets dropped because the ring of their beam was full.", "ring", category="dropped"),
    Metric("jump", "Packets ignored because they are too far ahead of the others.", "ring", category="refused"),
    Metric("equal", "Samples (of one channel) that repeat one value and count as lost.", "ring"),
    Metric("short", "Datagrams shorter than a header.", "parser", category="refused"),
    Metric("foreign", "Datagrams of another format.", "parser", category="refused"),
    Metric("version", "Packets of another version of the format.", "parser", category="refused"),
    Metric("length", "Packets whose length differs from their header's.", "parser", category="refused"),
    Metric("fields", "Packets with impossible values in the header.", "parser", category="refused"),
    Metric("oversized", "Datagrams longer than --datagram-bytes.", "intake", category="refused"),
    Metric("changed", "Packets whose header differs from their stream's.", "intake", category="refused"),
    Metric("refused", "Packets of streams that cannot be searched.", "intake", category="refused"),
    Metric("restarts", "Senders that started again.", "intake"),
    Metric("gpus_lost", "GPUs that failed.", "intake"),
    Metric("datagrams", "Datagrams read from the sockets.", "receiver"),
    Metric("ring_overflow", "Datagrams dropped because the receiver's ring was full.", "receiver", category="dropped"),
    Metric("kernel_drops", "Datagrams dropped by the kernel; -1 if unknown.", "receiver", category="dropped"),
    Metric("candidates", "Candidates found.", "sink"),
    Metric("flagged", "Candidates flagged as interference.", "sink"),
    Metric("written", "Candidates written to candidates.csv.", "sink"),
    Metric("write_errors", "Failed writes to the tables.", "sink"),
    Metric("dropped", "Candidates dropped because they could not be written for too long.", "sink"),
    Metric("pictures", "Candidates whose picture was drawn or, without pictures, whose samples were stored.", "sink"),
    Metric("pictures_failed", "Pictures that failed.", "sink"),
    Metric("pictures_skipped", "Candidates without samples or picture for want of memory, disk space or time.", "sink"),
    Metric("pictures_later", "Pictures left for `skysieve dedisp plot` to draw.", "sink"),
    Metric("triggers", "Triggers sent.", "sink"),
    Metric("triggers_failed", "Triggers that failed.", "sink"),
    Metric("triggers_dropped", "Triggers dropped because too many waited, or because the run ended.", "sink"),
    Metric("triggers_unfinished", "Triggers still running when the run ended.", "sink"),
    Metric("injected", "Candidates that belong to injected pulses.", "sink"),
    Metric("injections", "Injected pulses that were searched for and of which at least 80% arrived.", "sink"),
    Metric("injections_found", "Injected pulses of `sink_injections_total` that were found.", "sink"),
    Metric("injections_skipped", "Pulses not injected because the noise before them could not be measured.", "pipeline",
           "counter"),
    Metric("rate", "Bits received per second.", "pipeline", "gauge"),
    Metric("realtime", "Seconds of data searched per second of processing.", "pipeline", "gauge"),
    Metric("load", "Processing time per second of wall time.", "pipeline", "gauge"),
    Metric("ring_fill", "Fraction of the fullest ring that is in use.", "pipeline", "gauge"),
    Metric("latency", "Latency of the latest candidate before the end of the data, in seconds.", "pipeline", "gauge"),
    Metric("beams", "Beams received.", "pipeline", "gauge"),
    Metric("data_seconds", "Seconds of data searched.", "pipeline", "gauge"),
    Metric("mjd", "MJD up to which the data of the most advanced beam are searched.", "pipeline", "gauge"),
    Metric("status_errors", "Failed writes of status.json.", "process"),
    Metric("page_up", "1 while the live page is served, 0 after it has failed.", "process", "gauge"),
)  # fmt: skip
"""All metrics.  A new one needs an entry here and the code that counts it."""


def names_of(*origins: Origin) -> tuple[str, ...]:
    """Names of the metrics of some origins.

    >>> names_of("receiver")
    ('datagrams', 'ring_overflow', 'kernel_drops')
    """
    return tuple(m.name for m in METRICS if m.origin in origins)


SINK_COUNTERS = names_of("sink")


def total(counts: Mapping[str, float], category: Literal["refused", "dropped"]) -> float:
    """Sum of the counters of a category; a counter that is missing or unknown (-1) adds nothing.

    >>> total({"overflow": 3, "kernel_drops": -1, "lost": 5}, "dropped")
    3
    """
    return sum(max(0, counts.get(m.name, 0)) for m in METRICS if m.category == category)


def metric_values(state: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a state (`Pipeline.state`) by the names that Prometheus shows.

    Counters and gauges that are not in the state are 0; metrics of the process are left out, because no state has them.
    """
    groups = {"sink": state.get("sink", {}), "pipeline": state}
    counts = state.get("counts", {})
    return {
        m.exported: float(groups.get(m.origin, counts).get(m.name, 0)) for m in METRICS if m.origin != "process"
    }  # fmt: skip
