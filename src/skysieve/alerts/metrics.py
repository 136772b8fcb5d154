"""The counters and measurements of ``skysieve alerts``, listed once."""

from __future__ import annotations

from skysieve.core.metrics.server import Metric

__all__ = ["METRICS", "PREFIX", "TOTALS"]

PREFIX = "skysieve_alerts_"
METRICS = (
    Metric("packets", "Packets that were read, since the store was made."),
    Metric("without_object", "Packets without an object, such as those of asteroids."),
    Metric("set_aside", "Packets, or damaged parts of files, that could not be read; the store holds their bytes."),
    Metric("rows_added", "Rows of light curves that were added."),
    Metric("rows_repeated", "Rows that the store had already."),
    Metric("rows_left_out", "Rows without a value, an error or a band."),
    Metric("searches", "Searches of an object."),
    Metric("lost", "Messages that the broker had deleted before they were read, in this run."),
    Metric("batches", "Transactions of this run."),
    Metric("store_errors", "Transactions that failed and were tried again, in this run."),
    Metric("table_errors", "Failed writes of the table of periods, in this run."),
    Metric("sent", "Messages that the broker took, in this run."),
    Metric("send_errors", "Messages that the broker did not take, which are sent again, in this run."),
    Metric("broker_errors", "Errors of the broker or of the network, in this run."),
    Metric("files_failed", "Files that cannot be read, or only in part.", "gauge"),
    Metric("waiting", "Packets that were read but not yet searched.", "gauge"),
    Metric("behind", "Messages at the broker that have not been read.", "gauge"),
    Metric("partitions", "Partitions of the topic that this process reads.", "gauge"),
    Metric("latency_seconds", "Longest time from arrival to commit of the packets of the last batch.", "gauge"),
    Metric("batch_seconds", "Duration of the last batch: search and commit.", "gauge"),
    Metric("last_commit_seconds", "Time of the last commit, in seconds since 1970.", "gauge"),
    Metric("healthy", "1 while the service works, 0 while it has a fault; /health names the fault.", "gauge"),
)
"""All metrics, with the prefix `PREFIX`."""
TOTALS = tuple(metric.name for metric in METRICS[:7])
"""Names of the metrics that the store holds and updates in its transactions."""
