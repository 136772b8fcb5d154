"""A server for Prometheus: the metrics of a run at ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skysieve.core.metrics.server import METRICS_TYPE, PageServer, exposition
from skysieve.dedispersion.stream.metrics import METRICS

PREFIX = "skysieve_stream_"


class MetricsServer(PageServer):
    """Serves the metrics of a run.

    Parameters
    ----------
    read : callable
        Returns the values by the names of `Metric.exported`.  It is called in several threads.
    host, port : str, int
        Port 0 takes a free one.

    Raises
    ------
    OSError
        The port is in use.

    Examples
    --------
    >>> import urllib.request
    >>> with MetricsServer(lambda: {"packets_total": 3}, "127.0.0.1", 0) as server:
    ...     text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
    >>> text.splitlines()[-1]
    'skysieve_stream_packets_total 3'
    """

    def __init__(self, read: Callable[[], Mapping[str, float]], host: str, port: int) -> None:
        super().__init__({"/metrics": lambda: (200, METRICS_TYPE, exposition(read(), METRICS, PREFIX))}, host, port)
