"""The server of the live page: requests that it answers and refuses."""

from __future__ import annotations

import asyncio
import http.client
import re
import signal
import socket
import threading
from contextlib import suppress

import pytest
from tests.dedispersion.test_stream_commands import command
from tests.dedispersion.test_stream_sink import wait_for

from skysieve.dedispersion.stream.web import process as web

pytest.importorskip("bokeh", reason="the extra 'web' is not installed")

from tests.dedispersion.test_stream_web import folder  # cannot be imported where that module is skipped

__all__ = ["folder"]


@pytest.fixture
def port(folder, monkeypatch):
    from skysieve.dedispersion.stream.web.server import quieten, serve

    monkeypatch.setenv("BOKEH_RESOURCES", "cdn")
    monkeypatch.setenv("BOKEH_ALLOW_WS_ORIGIN", "evil.example")
    quieten()
    started, stop = threading.Event(), []

    def run():
        async def main():
            over = asyncio.Event()
            stop.extend([asyncio.get_running_loop(), over])
            await serve(folder, "127.0.0.1", 0, ready, over)

        asyncio.run(main())

    def ready(number):
        stop.append(number)
        started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(120)
    yield stop[2]
    stop[0].call_soon_threadsafe(stop[1].set)
    thread.join(120)
    assert not thread.is_alive()


def get(port, path="/", **headers):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    link.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        link.putheader(name.replace("_", "-"), value)
    link.endheaders()
    answer = link.getresponse()
    body = answer.read()
    link.close()
    return answer, body


@pytest.mark.slow
def test_requests_from_other_pages_are_refused(port, folder):
    answer, body = get(port)
    assert answer.status == 200
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    places = re.findall(rb'(?:src|href)="([^"]*)"', body)
    assert len(places) >= 2
    assert all(re.match(rb"/?static/", place) for place in places), places
    for place in places:
        assert get(port, "/" + place.decode().lstrip("/"))[0].status == 200
    assert get(port, Host=f"localhost:{port}")[0].status == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        "a@127.0.0.1",
        "",
        "127.0.0.1:x",
    ):
        answer, body = get(port, Host=host)
        assert answer.status in (400, 403), host
        assert b"bokeh" not in body
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
               "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    for origin in ("http://evil.example", "null", f"http://localhost:{port}", "http://127.0.0.1:1"):
        assert get(port, "/ws", Origin=origin, **upgrade)[0].status == 403
    (folder / "pulses" / "1.5_dm1.0_beam0.png").write_bytes(b"\x89PNG")
    (folder / "pulses" / "1.5_dm1.0_beam0.fil").write_bytes(b"raw")
    answer, body = get(port, "/pulses/1.5_dm1.0_beam0.png")
    assert (answer.status, answer.headers["Content-Type"], body) == (200, "image/png", b"\x89PNG")
    for path in ("/pulses/1.5_dm1.0_beam0.fil", "/pulses/../candidates.csv", "/pulses/..%2fcandidates.csv", "/x.png",
                 "/pulses/", "/pulses/none.png", "/candidates.csv"):  # fmt: skip
        assert get(port, path)[0].status in (403, 404), path


def visit(port):
    """A visitor with a websocket."""
    from bokeh.client import pull_session

    return pull_session(url=f"http://127.0.0.1:{port}/")


@pytest.mark.slow
def test_visitors_are_counted_by_their_websockets(port, monkeypatch):
    """Pages that were only loaded do not count; visitors count until they leave."""
    monkeypatch.setattr("skysieve.dedispersion.stream.web.server.MOST_VISITORS", 2)
    assert [get(port)[0].status for _ in range(4)] == [200] * 4
    first, second = visit(port), visit(port)
    answer, body = get(port)
    assert answer.status == 503
    assert b"2 pages are open already" in body
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
               "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    assert get(port, "/ws", **upgrade)[0].status == 503
    assert first.document.roots
    assert second.document.roots
    first.close()
    wait_for(lambda: get(port)[0].status == 200)
    third = visit(port)
    assert third.document.roots
    assert get(port)[0].status == 503
    for one in (second, third):
        one.close()


@pytest.mark.slow
def test_unused_pages_are_forgotten(port, monkeypatch):
    """The oldest are forgotten first; a browser that opens its websocket after that is still served."""
    from bokeh.client import pull_session
    from bokeh.server.contexts import ApplicationContext

    kept, create = [], ApplicationContext.create_session_if_needed

    async def creates(context, *args, **more):
        made = await create(context, *args, **more)
        kept.append(made)
        return made

    monkeypatch.setattr(ApplicationContext, "create_session_if_needed", creates)
    monkeypatch.setattr("skysieve.dedispersion.stream.web.server.MOST_UNUSED", 2)
    name = "a" * 44
    assert get(port, f"/?bokeh-session-id={name}")[0].status == 200
    for _ in range(4):
        assert get(port)[0].status == 200
    assert [one.expiration_requested for one in kept] == [True] * 3 + [False] * 2
    wait_for(lambda: all(one.destroyed for one in kept[:3]))
    with pull_session(session_id=name, url=f"http://127.0.0.1:{port}/") as late:
        assert late.document.roots


def closed(link):
    """Whether the other side has closed a connection; waits for it."""
    link.settimeout(300)
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.slow
def test_idle_connections_do_not_keep_others_out(port, monkeypatch):
    monkeypatch.setattr("skysieve.dedispersion.stream.web.server.MOST_WAITING", 8)
    parts = [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "]
    links = []
    for i in range(20):
        links.append(socket.create_connection(("127.0.0.1", port)))
        links[-1].sendall(parts[i % 2])
    assert get(port)[0].status == 200
    assert all(closed(link) for link in links[:12])
    session = visit(port)  # a websocket does not count as an idle connection
    for _ in range(10):
        links.append(socket.create_connection(("127.0.0.1", port)))
    assert get(port)[0].status == 200
    session.force_roundtrip()
    assert session.document.roots
    session.close()
    for link in links:
        link.close()


@pytest.mark.slow
@pytest.mark.parametrize("part", [b"", b"GET / HTTP/1.1\r\nHost: ", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"])
def test_slow_connections_are_closed(folder, monkeypatch, request, part):
    monkeypatch.setattr("skysieve.dedispersion.stream.web.server.IDLE", 0.2)
    port = request.getfixturevalue("port")
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(part)
        link.settimeout(300)
        with suppress(ConnectionResetError):
            while link.recv(4096):  # a refusal may come first
                pass


def test_a_port_in_use_is_refused_before_any_work(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as used:
        taken = used.getsockname()[1]
        done = command("stream", "--listen", "0", "--dm-max", "10", "-o", tmp_path / "unmade", "--web", taken)
    assert done.exit_code == 2
    assert f"cannot serve the page on 127.0.0.1:{taken}: Address already in use" in done.output.replace("\n", " ")
    assert not (tmp_path / "unmade").exists()


@pytest.mark.slow
def test_the_page_is_a_separate_process(folder):
    said = []
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        taken = used.getsockname()[1]
        done = command("watch", folder, "--web", taken)
        assert done.exit_code == 2
        assert f"cannot serve the page on 127.0.0.1:{taken}: Address already in use" in done.output.replace("\n", " ")
    with web.PageProcess(folder, "127.0.0.1", 0, said.append) as page:
        assert get(page.port)[0].status == 200
        page._process.send_signal(signal.SIGINT)  # Ctrl-C is for the run; the page must ignore it
        assert get(page.port)[0].status == 200
    assert not page.alive
    assert said == []
    with web.PageProcess(folder, "127.0.0.1", 0, said.append) as page:
        page._process.kill()
        wait_for(lambda: said)
    assert "the process of the live page ended (status -9)" in said[0]
    assert len(said) == 1


def test_without_the_extra(folder, monkeypatch):
    monkeypatch.setattr(web, "NEEDED", ("a_missing_library",))
    for arguments in (["watch", folder], ["stream", "--listen", "0", "--dm-max", 9, "-o", folder / "x", "--web", 0]):
        done = command(*arguments)
        assert done.exit_code == 2
        assert "pip install 'skysieve[web]'" in done.output
    assert not (folder / "x").exists()
    for bad in ("x", "1:2:x", "99999"):
        assert "expected HOST:PORT" in command("watch", folder, "--web", bad).output


@pytest.mark.slow
def test_a_folder_that_does_not_exist(tmp_path):
    done = command("watch", tmp_path / "none", "--web", 0)
    assert done.exit_code == 2
    assert "there is no such folder" in done.output
    with pytest.raises(OSError, match="there is no such folder"):
        web.PageProcess(tmp_path / "none", "127.0.0.1", 0)
