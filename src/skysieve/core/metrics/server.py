"""An HTTP server for short pages, such as Prometheus metrics (text format, version 0.0.4) and a health check."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Literal, Protocol

from skysieve.core.plan import Closing

__all__ = ["Metric", "PageServer", "exposition", "format_address", "metrics_page", "parse_address"]

SECONDS = 10.0
"""Longest time of a request."""
MOST_OPEN = 32
"""Largest number of open connections; a further one closes the oldest."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of metrics."""


def parse_address(text: str, name: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, or ``PORT`` of the loopback interface.

    >>> parse_address("[::1]:5000", "--listen"), parse_address("5000", "--listen")
    (('::1', 5000), ('127.0.0.1', 5000))
    """
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (colon and not host):
        raise ValueError(f"{name} {text}: expected HOST:PORT, or PORT alone, of at most 65535")
    return (host.strip("[]") if colon else "127.0.0.1"), int(port)


def format_address(host: str, port: int) -> str:
    """The inverse of `parse_address`.

    >>> format_address("::1", 5000)
    '[::1]:5000'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Exported(Protocol):
    """The description of a metric that `exposition` prints."""

    @property
    def exported(self) -> str:
        """Name, without the prefix of all metrics."""

    @property
    def help(self) -> str:
        """Description in one sentence."""

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """Kind: "counter" if the value only grows, otherwise "gauge"."""


@dataclass(frozen=True)
class Metric:
    """A number that a process reports.

    Attributes
    ----------
    name, help : str
        Name in the program, and description in one sentence.
    kind : {"counter", "gauge"}
    """

    name: str
    help: str
    kind: Literal["counter", "gauge"] = "counter"

    @property
    def exported(self) -> str:
        """Its name for Prometheus, without the prefix of all metrics."""
        return self.name + ("_total" if self.kind == "counter" else "")


def exposition(values: Mapping[str, float], metrics: Iterable[Exported], prefix: str) -> str:
    """Values in Prometheus's text format.

    Parameters
    ----------
    values : mapping
        Values by exported name; metrics without a value are left out.
    metrics : iterable of Metric
    prefix : str
        Prefix of all names.

    Examples
    --------
    >>> print(exposition({"packets_total": 3}, [Metric("packets", "Packets read.")], "x_"), end="")
    # HELP x_packets_total Packets read.
    # TYPE x_packets_total counter
    x_packets_total 3
    """
    lines: list[str] = []
    for metric in metrics:
        name = metric.exported
        if name in values:
            lines += [
                f"# HELP {prefix}{name} {metric.help}", f"# TYPE {prefix}{name} {metric.kind}",
                f"{prefix}{name} {values[name]:.12g}",
            ]  # fmt: skip
    return "\n".join(lines) + "\n"


def metrics_page(
    read: Callable[[], Mapping[str, float]], metrics: Iterable[Exported], prefix: str
) -> Callable[[], tuple[int, str, str]]:
    """Return a page of `PageServer` with the values that `read` returns; see `exposition`."""
    return lambda: (200, METRICS_TYPE, exposition(read(), metrics, prefix))


class PageServer(Closing):
    """Serves pages over HTTP.

    A connection is closed after ten seconds.  If more than 32 are open, the oldest are closed, so that clients that
    send nothing do not keep others waiting.

    Parameters
    ----------
    pages : mapping of str to callable
        For the path of each page, a function that returns the HTTP status, the content type and the text.  It is called
        in several threads.
    host, port : str, int
        Address of the server; port 0 selects a free port.

    Raises
    ------
    OSError
        The port is in use.

    Examples
    --------
    >>> import urllib.request
    >>> with PageServer({"/health": lambda: (200, "text/plain", "ok")}, "127.0.0.1", 0) as server:
    ...     urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health").read()
    b'ok'
    """

    def __init__(self, pages: Mapping[str, Callable[[], tuple[int, str, str]]], host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path not in pages:
                    self.send_error(404)
                    return
                status, kind, text = pages[self.path]()
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
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


class _Server(ThreadingMixIn, HTTPServer):
    """One thread per connection; connections that last too long, or are too many, are closed."""

    daemon_threads, block_on_close = True, False
    request_queue_size = 128
    server_bind = TCPServer.server_bind  # HTTPServer's looks up the host's name, which may take long

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        self._room = threading.Semaphore(2 * MOST_OPEN)  # threads of closed connections need time to end
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
        """Serve a connection; runs in the connection's own thread."""
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
