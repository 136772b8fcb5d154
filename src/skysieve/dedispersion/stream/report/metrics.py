"""Numbers of a running pipeline for Prometheus: the text format, version 0.0.4, at ``/metrics``."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

PREFIX = "skysieve_stream_"
SECONDS = 10.0
"""Longest time of a request."""
MOST_OPEN = 32
"""Connections that are open at a time: one more closes the oldest."""


class MetricsServer:
    """Serves the numbers that ``read`` gives.

    A connection is closed after ten seconds; of more than 32 the oldest are closed, so that those that send nothing
    keep nobody else waiting.

    Parameters
    ----------
    read : callable
        Gives ``{name: (help, kind, value)}``; kind is "counter" or "gauge".  It is called in several threads.
    host, port : str, int
        The loopback unless told otherwise; port 0 takes a free one.

    Raises
    ------
    OSError
        When the port is taken.

    Examples
    --------
    >>> import urllib.request
    >>> with MetricsServer(lambda: {"packets_total": ("Datagrams.", "counter", 3)}, "127.0.0.1", 0) as server:
    ...     text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
    >>> text.splitlines()[-1]
    'skysieve_stream_packets_total 3'
    """

    def __init__(self, read: Callable[[], dict[str, tuple[str, str, float]]], host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                body = text(read()).encode()
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
    """A thread a connection; connections that take too long, or are too many, are closed from here."""

    daemon_threads, block_on_close = True, False
    request_queue_size = 128
    server_bind = TCPServer.server_bind  # HTTPServer's asks for the host's name, which may take long

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        self._room = threading.Semaphore(2 * MOST_OPEN)  # threads: those of closed connections need time to end
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        with self._lock:
            self._open[request] = time.monotonic()
            oldest = list(self._open)[:-MOST_OPEN]
        self._cut_off(oldest)
        self._room.acquire()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no thread
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The work of that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def shutdown_request(self, request: Any) -> None:
        """A connection is done with."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that are open for too long: whoever sends or takes a byte now and then, or none."""
        with self._lock:
            late = [one for one, since in self._open.items() if time.monotonic() - since > SECONDS]
        self._cut_off(late)

    def _cut_off(self, some: list[Any]) -> None:
        """End what reads from or writes to connections; their threads close them."""
        for one in some:
            with self._lock:
                self._open.pop(one, None)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def server_close(self) -> None:
        """Close everything."""
        super().server_close()
        with self._lock:
            left = list(self._open)
        self._cut_off(left)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are no news."""


def text(numbers: dict[str, tuple[str, str, float]]) -> str:
    """The exposition format."""
    lines = []
    for name, (words, kind, value) in numbers.items():
        lines += [f"# HELP {PREFIX}{name} {words}", f"# TYPE {PREFIX}{name} {kind}", f"{PREFIX}{name} {value:.12g}"]
    return "\n".join(lines) + "\n"
