"""A server for Prometheus: the metrics of a run at ``/metrics``, in the text format, version 0.0.4."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from skysieve.dedispersion.stream.metrics import METRICS

PREFIX = "skysieve_stream_"
SECONDS = 10.0
"""Longest time of a request."""
MOST_OPEN = 32
"""Most connections that are open at a time; one more closes the oldest."""


class MetricsServer:
    """Serves the metrics of a run.

    A connection is closed after ten seconds.  Of more than 32 the oldest are closed, so that clients that send nothing
    do not keep others waiting.

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
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                body = exposition(read()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are not logged."""

        try:
            self._server = _Server(host, port, Handler)
        except (OSError, OverflowError) as error:
            raise OSError(
                f"cannot serve metrics on {host}:{port}: {getattr(error, 'strerror', None) or error}"
            ) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Server(ThreadingMixIn, HTTPServer):
    """One thread per connection; connections that last too long, or are too many, are closed."""

    daemon_threads, block_on_close = True, False
    request_queue_size = 128
    server_bind = TCPServer.server_bind  # HTTPServer's looks up the host's name, which may take long

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        self._room = threading.Semaphore(2 * MOST_OPEN)  # threads: those of closed connections need time to end
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread."""
        with self._lock:
            self._open[request] = time.monotonic()
            oldest = list(self._open)[:-MOST_OPEN]
        self._shut_down(oldest)
        self._room.acquire()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system cannot start a thread
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The work of that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that have been open for too long, whatever they send."""
        with self._lock:
            late = [one for one, since in self._open.items() if time.monotonic() - since > SECONDS]
        self._shut_down(late)

    def _shut_down(self, connections: list[Any]) -> None:
        """Stop reading from and writing to connections; their threads close them."""
        for one in connections:
            with self._lock:
                self._open.pop(one, None)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def server_close(self) -> None:
        """Close everything."""
        super().server_close()
        with self._lock:
            left = list(self._open)
        self._shut_down(left)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are not reported."""


def exposition(values: Mapping[str, float]) -> str:
    """Values in Prometheus's text format, with the help of `METRICS`, in its order."""
    lines = []
    for metric in METRICS:
        name = metric.exported
        if name in values:
            lines += [
                f"# HELP {PREFIX}{name} {metric.help}", f"# TYPE {PREFIX}{name} {metric.kind}",
                f"{PREFIX}{name} {values[name]:.12g}",
            ]  # fmt: skip
    return "\n".join(lines) + "\n"
