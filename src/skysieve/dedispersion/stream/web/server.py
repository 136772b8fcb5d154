"""The process of the live page: a Bokeh server for one folder, which serves all scripts itself.

`PageProcess` starts it as ``python -m skysieve.dedispersion.stream.web.server``.  It ends when its standard input is
closed, and therefore also when the run is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .folder import FolderReader
from .page import Page, template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAGES = ("/", "/autoload.js", "/ws")
MOST_VISITORS = 32
MOST_UNUSED = 32
"""Most pages that wait for their browser to open a websocket; if there are more, the oldest are discarded."""
MOST_WAITING = 256
"""Most open connections without a websocket; one more closes the oldest."""
IDLE = 10.0
"""Most seconds for the head of a request, and for its body."""
SILENT_MS = 30_000
"""Milliseconds after which a connection is closed if the other side has vanished or reads nothing."""
NICE = 10
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Load nothing from other hosts, send nothing to other hosts, appear in no frame."""


def host_of(netloc: str) -> str:
    """The host of ``HOST[:PORT]``; empty if the text is not of that form.

    >>> host_of("Localhost:80"), host_of("[::1]:80"), host_of("a/b")
    ('localhost', '::1', '')
    """
    try:
        parts = urlsplit(f"//{netloc}")
        port = parts.port
    except ValueError:
        return ""
    if parts.netloc != netloc or parts.username is not None or (port is not None and not 0 < port < 65536):
        return ""
    return (parts.hostname or "").rstrip(".")


def own_names() -> frozenset[str]:
    """The names of this machine."""
    return frozenset({"localhost", socket.gethostname().lower(), socket.getfqdn().lower()})


def admitted(host: str | None, origin: str | None, names: Iterable[str]) -> bool:
    """Whether a request comes from our own page.

    The host must be an address or one of ``names``, which excludes foreign pages whose name resolves to this machine
    (DNS rebinding).  The origin, if the browser sends one, must be the host.

    >>> admitted("127.0.0.1:80", None, ()), admitted("evil.example:80", None, ())
    (True, False)
    >>> admitted("[::1]:80", "http://[::1]:80", ()), admitted("127.0.0.1:80", "http://evil.example", ())
    (True, False)
    """
    name = host_of(host or "")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if name not in names:
            return False
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == (host or "").lower()


async def serve(
    folder: str | os.PathLike[str], host: str, port: int, ready: Callable[[int], None], over: asyncio.Event
) -> None:
    """Serve the page of a folder until ``over`` is set.

    Parameters
    ----------
    folder : path
    host, port : str, int
        Port 0 takes a free one.
    ready : callable
        Is called with the port when the page can be visited.
    over : asyncio.Event

    Raises
    ------
    OSError
        The port is in use.
    ValueError
        The folder is not the folder of a run.
    """
    from bokeh.protocol.exceptions import ProtocolError
    from bokeh.server.server import BaseServer
    from bokeh.server.tornado import BokehTornado
    from tornado.httpserver import HTTPServer
    from tornado.ioloop import IOLoop
    from tornado.netutil import bind_sockets
    from tornado.routing import AnyMatches, Matcher, Rule, RuleRouter
    from tornado.web import Application, OutputTransform, RequestHandler, StaticFileHandler

    reader = FolderReader(folder)
    names, page_template = own_names(), template()

    def visit(document: Any) -> None:
        document.template = page_template
        Page(reader, document)

    class Headers(OutputTransform):
        def transform_first_chunk(self, status_code: int, headers: Any, chunk: bytes, finishing: bool) -> Any:
            headers["Content-Security-Policy"] = POLICY
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Referrer-Policy"] = "no-referrer"
            headers["Cross-Origin-Resource-Policy"] = "same-origin"
            headers["Server"] = "skysieve"
            return status_code, headers, chunk

    def visitors() -> int:
        return sum(one.connection_count for one in bokeh.get_sessions("/"))

    class Foreign(Matcher):
        def match(self, request: Any) -> dict[str, Any] | None:
            ours = admitted(request.headers.get("Host"), request.headers.get("Origin"), names)
            return None if ours else {}

    class Crowded(Matcher):
        def match(self, request: Any) -> dict[str, Any] | None:
            if request.path not in PAGES:
                return None
            unused = [one for one in bokeh.get_sessions("/") if not one.connection_count]
            for one in unused[: max(0, len(unused) + 1 - MOST_UNUSED)]:
                one.request_expiration()  # if its browser comes later, it gets a new page
            return {} if visitors() >= MOST_VISITORS else None

    class Refuse(RequestHandler):
        def initialize(self, status: int, message: str) -> None:
            self.status, self.message = status, message

        def prepare(self) -> None:
            self.set_status(self.status)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(self.message + "\n")

    def refusal(status: int, message: str) -> Application:
        return Application([(r".*", Refuse, {"status": status, "message": message})], transforms=[Headers])

    class Assets(BokehTornado):
        def resources(self, absolute_url: str | bool | None = None) -> Any:
            found = super().resources(absolute_url)
            found.components = ["bokeh", "bokeh-widgets"]
            return found

        def new_connection(self, protocol: Any, socket: Any, application_context: Any, session: Any) -> Any:
            if visitors() >= MOST_VISITORS:  # too many at the same time, or without loading the page
                raise ProtocolError(f"{MOST_VISITORS} pages are open already")
            return super().new_connection(protocol, socket, application_context, session)

    class Server(HTTPServer):
        def initialize(self, *args: Any, **options: Any) -> None:
            super().initialize(*args, **options)
            self.waiting: dict[Any, None] = {}

        def handle_stream(self, stream: Any, address: Any) -> None:
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_MS)
            self.waiting[stream] = None
            for one in list(self.waiting)[:-MOST_WAITING]:
                del self.waiting[one]
                one.close()
            super().handle_stream(stream, address)

        def on_close(self, server_conn: Any) -> None:  # also when it has become a websocket
            self.waiting.pop(server_conn.stream, None)
            super().on_close(server_conn)

    pictures = (r"/pulses/([-0-9a-z_.]+\.png)", StaticFileHandler, {"path": str(reader.folder / "pulses")})
    bokeh = Assets(  # `Foreign` has checked the origin already
        {"/": visit}, extra_websocket_origins=["*"], use_index=False, websocket_max_message_size_bytes=2**20,
        extra_patterns=[pictures], check_unused_sessions_milliseconds=1000,
    )  # fmt: skip
    bokeh.add_transform(Headers)
    router = RuleRouter([
        Rule(Foreign(), refusal(403, "Use an address or a name of this machine, and its own page.")),
        Rule(Crowded(), refusal(503, f"{MOST_VISITORS} pages are open already.")),
        Rule(AnyMatches(), bokeh),
    ])  # fmt: skip
    http = Server(router, max_body_size=2**16, max_header_size=2**16, idle_connection_timeout=IDLE, body_timeout=IDLE)
    try:
        sockets = bind_sockets(port, host)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot serve the page on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
    http.add_sockets(sockets)
    server = BaseServer(IOLoop.current(), bokeh, http)
    reader.start()
    server.start()
    try:
        ready(int(sockets[0].getsockname()[1]))
        await over.wait()
    finally:
        server.stop()
        http.stop()
        reader.close()


def watch(folder: str | os.PathLike[str], host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve the page of a folder until SIGINT or SIGTERM."""

    async def run() -> None:
        over = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
        await serve(folder, host, port, ready, over)

    quieten()
    asyncio.run(run())


def quieten() -> None:
    """Log errors of Bokeh and tornado only, and unset Bokeh's environment variables, which could add other hosts."""
    for name in [name for name in os.environ if name.startswith("BOKEH_")]:
        del os.environ[name]
    for name in ("bokeh", "tornado"):
        logging.getLogger(name).setLevel(logging.ERROR)


def main(arguments: list[str] | None = None) -> int:
    """Run the process of a page; prints "ready PORT" or "error MESSAGE" on standard output, then nothing more."""
    given = argparse.ArgumentParser()
    given.add_argument("folder")
    given.add_argument("host")
    given.add_argument("port", type=int)
    asked = given.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    if hasattr(os, "nice"):
        os.nice(NICE)
    quieten()

    async def run() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()

        def wait_for_the_end() -> None:
            while os.read(0, 4096):  # nothing is ever sent; the input is closed when the run ends
                pass
            with suppress(RuntimeError):  # the loop may have ended already
                loop.call_soon_threadsafe(over.set)

        threading.Thread(target=wait_for_the_end, daemon=True).start()
        await serve(asked.folder, asked.host, asked.port, lambda port: print(f"ready {port}", flush=True), over)

    try:
        asyncio.run(run())
    except (OSError, ValueError) as error:
        print(f"error {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
