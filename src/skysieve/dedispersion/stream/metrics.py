"""Numbers of a running pipeline for Prometheus: the text format, version 0.0.4, at ``/metrics``."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer

PREFIX = "skysieve_stream_"
SECONDS = 2.0
"""Longest time of a request."""


class MetricsServer:
    """Serves the numbers that ``read`` gives; one request at a time, each cut off after two seconds.

    Parameters
    ----------
    read : callable
        Gives ``{name: (help, kind, value)}``; kind is "counter" or "gauge".
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
            def setup(self) -> None:
                super().setup()
                self.limit = threading.Timer(SECONDS, self.cut_off)
                self.limit.daemon = True
                self.limit.start()

            def cut_off(self) -> None:
                """Whoever takes or sends a byte now and then must not hold the others up, nor the end of the run."""
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

            def finish(self) -> None:
                self.limit.cancel()
                super().finish()

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

        class Server(HTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            server_bind = TCPServer.server_bind  # HTTPServer's asks for the host's name, which may take long

            def handle_error(self, request: object, client_address: object) -> None:
                """Clients that go away are no news."""

        try:
            self._server = Server((host, port), Handler)
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


def text(numbers: dict[str, tuple[str, str, float]]) -> str:
    """The exposition format."""
    lines = []
    for name, (words, kind, value) in numbers.items():
        lines += [f"# HELP {PREFIX}{name} {words}", f"# TYPE {PREFIX}{name} {kind}", f"{PREFIX}{name} {value:.12g}"]
    return "\n".join(lines) + "\n"
