"""The live page without a browser: what it reads, what it shows, whom it serves."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dedispersion.test_stream_commands import command
from tests.dedispersion.test_stream_sink import wait_for

from skysieve.dedispersion.stream import web, web_folder, web_page
from skysieve.dedispersion.stream.status import NAME, StatusFile
from skysieve.dedispersion.stream.tables import COLUMNS, Table, line_of
from skysieve.dedispersion.stream.web_folder import FolderReader, View, parsed

bokeh = pytest.importorskip("bokeh", reason="the extra 'web' is not installed")

MJD = 60000.5


def line(snr=9.0, seconds=0.0, dm=100.0, **more):
    columns = dict.fromkeys(COLUMNS, 0) | {
        "snr": snr, "dm": dm, "width": 4e-3, "mjd_top": MJD, "mjd_infinite": MJD + seconds / 86400, "live": 1.0,
        "latency": 0.5, "time": 1.0, "dm_low": 90.0, "dm_high": 110.0, "time_first": 1.0, "time_last": 2.0, **more,
    }  # fmt: skip
    return line_of(columns)


def state(seconds=1.0, **counts):
    return {
        "seconds": seconds, "data_seconds": seconds, "rate": 2e6, "realtime": 3.0, "load": 0.3, "ring_fill": 0.1,
        "latency": 0.4, "beams": 1, "mjd": MJD, "sink": {"candidates": 1, "written": 1},
        "counts": {"accepted": 100, "lost": 0, **counts},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    Table(tmp_path / "candidates.csv").append([line(9.0), line(12.0, 1.0)])
    (tmp_path / "pulses").mkdir()
    return tmp_path


def tell(folder, body=None, running=True, **about):
    with StatusFile(folder, lambda: state() if body is None else body, about):
        pass
    if running:  # as it is before its end
        text = json.loads((folder / NAME).read_text()) | {"running": True}
        (folder / NAME).write_text(json.dumps(text))


# ---------------------------------------------------------------- what is read


def test_a_table_is_followed(folder):
    reader = FolderReader(folder)
    reader.poll()
    view = reader.view
    assert (view.total, view.bad, [c.snr for c in view.candidates]) == (2, 0, [9.0, 12.0])
    assert view.candidates[1].when - view.candidates[0].when == pytest.approx(1.0, abs=1e-6)  # MJD: 0.6 us
    with open(folder / "candidates.csv", "a") as file:
        file.write(line(8.0, 2.0)[:20])
    reader.poll()
    assert view.total == 2
    with open(folder / "candidates.csv", "a") as file:
        file.write(
            line(8.0, 2.0)[20:] + "\nnonsense\n" + line(float("nan")) + "\n" + line(7.0, mjd_infinite=1e9) + "\n"
        )
    reader.poll()
    assert (view.total, view.bad, view.candidates[-1].snr) == (3, 3, 8.0)
    before = view.generation
    os.truncate(folder / "candidates.csv", len(",".join(COLUMNS)) + 1)
    Table(folder / "candidates.csv").append([line(20.0)])
    reader.poll()
    assert (view.generation, view.total, [c.snr for c in view.candidates]) == (before + 1, 1, [20.0])
    (folder / "candidates.csv").unlink()
    Table(folder / "candidates.csv").append([line(30.0), line(31.0), line(32.0)])
    reader.poll()
    assert (view.generation, view.total) == (before + 2, 3)


def test_a_table_of_many_pieces(folder, monkeypatch):
    """Pieces that end within lines; the last candidates alone are kept, all are counted; a line without end."""
    monkeypatch.setattr(web_folder, "PIECE", 501)
    Table(folder / "candidates.csv").append([line(10.0 + i) for i in range(100)])
    reader = FolderReader(folder)
    reader.poll()
    assert (reader.view.total, reader.view.bad) == (102, 0)
    assert [c.snr for c in reader.view.candidates][-100:] == [10.0 + i for i in range(100)]
    with open(folder / "candidates.csv", "a") as file:
        file.write("x" * 2000 + "\n" + line(7.5) + "\n")
    reader.poll()
    assert (reader.view.total, reader.view.candidates[-1].snr) == (103, 7.5)


@given(st.binary(max_size=300))
def test_lines_of_any_kind(data):
    one = parsed(data)
    assert one is None or abs(one.mjd) < 1e6


def test_what_is_no_folder_of_a_run(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        FolderReader(tmp_path / "none")
    with pytest.raises(ValueError, match=r"holds no candidates.csv and no status.json"):
        FolderReader(tmp_path)


def test_the_state_is_followed(folder):
    reader = FolderReader(folder)
    reader.poll()
    assert reader.view.running is None
    tell(folder, state(1.0, lost=1), source="Crab")
    reader.poll()
    tell(folder, state(3.0, lost=5, kernel_drops=1, overflow=3), source="Crab")
    reader.poll()
    view = reader.view
    assert view.running
    assert view.age < 60
    (moment,) = view.moments
    assert (moment.rate, moment.lost, moment.dropped) == (2.0, 2.0, 2.0)
    reader.poll()
    assert len(view.moments) == 1
    tell(folder, state(4.0), running=False)
    reader.poll()
    assert view.running is False
    for text in ("{", "[]", '{"now": 1, "running": true, "about": 3, "state": 4}'):
        (folder / NAME).write_text(text)
        reader.poll()
        assert "is no state of a run" in view.problem


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5,
)  # fmt: skip
NAMES = st.sampled_from(["seconds", "data_seconds", "rate", "realtime", "mjd", "counts", "sink", "beams"])


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(NAMES, JSON), st.dictionaries(st.sampled_from(["source", "folder"]), JSON), JSON)
def test_states_of_any_kind(tmp_path_factory, state, about, now):
    """What a broken disk or another program leaves in the file stops no page."""
    folder = tmp_path_factory.mktemp("any")
    Table(folder / "candidates.csv").append([line()])
    reader = FolderReader(folder)
    for body in ({"now": 1.0, "running": True, "about": about, "state": state}, {"now": now, "state": state}, now):
        (folder / NAME).write_text(json.dumps(body))
        reader.poll()
        seen = Tags(web_page.head_html(reader.view) + web_page.tiles_html(reader.view))
        assert seen.tags <= {"div", "b", "span", "i", "small"}


def test_the_state_is_written_while_the_disk_refuses(folder):
    said = []
    (folder / NAME).mkdir()
    with StatusFile(folder, lambda: {"beams": 1}, {}, said.append) as status:
        assert status.errors == 1
        (folder / NAME).rmdir()
        wait_for(lambda: (folder / NAME).is_file())
        wait_for(lambda: len(said) == 2)
        assert json.loads((folder / NAME).read_text())["running"] is True
    assert json.loads((folder / NAME).read_text())["running"] is False
    assert "tried again every second" in said[0]
    assert "written again" in said[1]


def test_pictures_find_their_candidates(folder):
    """Also where the DM in a name was rounded from more digits than the table has, and of later segments."""
    later = "60000.600000000_dm100.012_beam1_segment2.png"
    for name in ("60000.500000000_dm100.000_beam0.png", "60000.600000000_dm100.012_beam1.png", "x.png", "<b>.png",
                 later):  # fmt: skip
        (folder / "pulses" / name).write_bytes(b"")
    again = line(8.0, 8640.0, dm=100.0125, beam=1, segment=2)
    Table(folder / "candidates.csv").append([line(8.0, 8640.0, dm=100.0125, beam=1), line(8.0, 9000.0), again])
    reader = FolderReader(folder)
    reader.poll()
    found = [reader.picture_of(c) for c in reader.view.candidates]
    assert found == ["60000.500000000_dm100.000_beam0.png", None, "60000.600000000_dm100.012_beam1.png", None, later]
    assert reader.view.pictures[0] == found[0]
    assert set(reader.view.pictures) == {name for name in found if name}
    assert web_page.pictures_html([later, later]).count("beam 1") == 1


# ---------------------------------------------------------------- what is shown


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.words = set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data):
        self.words += data


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_names_are_text_and_nothing_else(source, telescope, problem):
    view = View(
        about={"source": "<script>" + source, "telescope": telescope, "folder": "<img onerror=x>"}, problem=problem
    )
    view.running, view.age = True, 0.0
    seen = Tags(web_page.head_html(view))
    assert seen.tags <= {"div", "b", "span"}
    assert "<script>" in seen.words
    assert "<img onerror=x>" in seen.words


def test_words_of_the_page(folder):
    tell(folder, state(1.0), source="Crab")
    reader = FolderReader(folder)
    reader.poll()
    view = reader.view
    head = Tags(web_page.head_html(view)).words
    assert head.startswith("Crablive")
    assert "searched up to 2023-02-25 12:00:00 UTC" in head
    view.age = 100.0
    assert "silent for 1 min 40 s" in web_page.head_html(view)
    view.running = False
    assert "ended" in web_page.head_html(view)
    view.state["sink"] = {"candidates": 9.0, "written": 4.0, "write_errors": 2.0}
    assert "The disk refuses: 5 candidates wait" in web_page.head_html(view)
    view.state["realtime"], view.state["ring_fill"] = 0.8, 0.6
    tiles = web_page.tiles_html(view)
    assert 'class="tile bad" id="realtime"' in tiles
    assert 'class="tile warn" id="ring"' in tiles
    assert "0.80 ×" in tiles
    table = web_page.table_html(view)
    assert Tags(table).tags == {"table", "tr", "th", "td"}
    assert table.index("12.0") < table.index("9.0")
    assert "None yet" in web_page.table_html(View())
    assert "0 · 0" not in web_page.tiles_html(View())


def test_a_document_is_kept_up_to_date(folder, monkeypatch):
    from bokeh.document import Document

    monkeypatch.setattr(web_page, "KEPT", 4)
    tell(folder)
    name = "60000.500000000_dm100.000_beam0.png"
    (folder / "pulses" / name).write_bytes(b"")
    reader = FolderReader(folder)
    reader.poll()
    page = web_page.Page(reader, Document())
    assert page.points.data["snr"] == [9.0, 12.0]
    assert name in page.parts["picture"].text
    assert page.plane.x_range.end >= page.points.data["when"][1]
    page.points.selected.indices = [1]
    assert "This candidate has no picture" in page.parts["picture"].text
    Table(folder / "candidates.csv").append([line(13.0, 2.0), line(14.0, 3.0, flagged=1), line(15.0, 4.0)])
    tell(folder, state(2.0, lost=3))
    reader.poll()
    page.update()
    assert list(page.points.data["snr"]) == [12.0, 13.0, 14.0, 15.0]
    assert page.points.selected.indices == [0]
    assert list(page.points.data["marker"]) == ["circle", "circle", "x", "circle"]
    assert list(page.history.data["lost"]) == [3.0]
    page.points.selected.indices = [99, -1]  # a visitor may send anything
    assert "Latest picture" in page.parts["picture"].text
    page._moved(None)
    page.plane.x_range.start, page.plane.x_range.end = 1.0, 2.0
    page.update()
    assert page.plane.x_range.end == 2.0
    page.span.active = 3
    assert page.plane.x_range.start < page.points.data["when"][0] < page.plane.x_range.end
    os.truncate(folder / "candidates.csv", len(",".join(COLUMNS)) + 1)
    reader.poll()
    page.update()
    assert len(page.points.data["snr"]) == 0
    assert page.document.title.startswith("0 candidates")


# ---------------------------------------------------------------- whom it serves


@pytest.fixture
def port(folder, monkeypatch):
    from skysieve.dedispersion.stream.web_server import serve, settle

    monkeypatch.setenv("BOKEH_RESOURCES", "cdn")
    monkeypatch.setenv("BOKEH_ALLOW_WS_ORIGIN", "evil.example")
    settle()
    told, stop = threading.Event(), []

    def run():
        async def main():
            over = asyncio.Event()
            stop.extend([asyncio.get_running_loop(), over])
            await serve(folder, "127.0.0.1", 0, ready, over)

        asyncio.run(main())

    def ready(number):
        stop.append(number)
        told.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert told.wait(120)
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


def test_whom_the_page_is_for(port, folder):
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


def test_visitors_are_those_with_a_socket(port, monkeypatch):
    """Pages that were asked for and not looked at keep nobody out; visitors do, until they leave."""
    monkeypatch.setattr("skysieve.dedispersion.stream.web_server.MOST_VISITORS", 2)
    assert [get(port)[0].status for _ in range(8)] == [200] * 8
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


def test_pages_that_nobody_looks_at_are_forgotten(port, monkeypatch):
    """They are let go of by the oldest; a browser that opens its websocket after that is served all the same."""
    from bokeh.client import pull_session
    from bokeh.server.contexts import ApplicationContext

    kept, create = [], ApplicationContext.create_session_if_needed

    async def creates(context, *args, **more):
        made = await create(context, *args, **more)
        kept.append(made)
        return made

    monkeypatch.setattr(ApplicationContext, "create_session_if_needed", creates)
    monkeypatch.setattr("skysieve.dedispersion.stream.web_server.MOST_UNUSED", 3)
    name = "a" * 44
    assert get(port, f"/?bokeh-session-id={name}")[0].status == 200
    for _ in range(10):
        assert get(port)[0].status == 200
    assert [one.expiration_requested for one in kept] == [True] * 8 + [False] * 3
    wait_for(lambda: all(one.destroyed for one in kept[:8]))
    with pull_session(session_id=name, url=f"http://127.0.0.1:{port}/") as late:
        assert late.document.roots


def closed(link):
    """Whether the other side has closed a connection; waits for it."""
    link.settimeout(300)
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_that_send_nothing_keep_nobody_out(port, monkeypatch):
    monkeypatch.setattr("skysieve.dedispersion.stream.web_server.MOST_WAITING", 8)
    parts = [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "]
    links = []
    for i in range(20):
        links.append(socket.create_connection(("127.0.0.1", port)))
        links[-1].sendall(parts[i % 2])
    assert get(port)[0].status == 200
    assert all(closed(link) for link in links[:12])
    session = visit(port)  # a websocket is no connection that waits
    for _ in range(10):
        links.append(socket.create_connection(("127.0.0.1", port)))
    assert get(port)[0].status == 200
    session.force_roundtrip()
    assert session.document.roots
    session.close()
    for link in links:
        link.close()


@pytest.mark.parametrize("part", [b"", b"GET / HTTP/1.1\r\nHost: ", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"])
def test_connections_that_dawdle_are_closed(folder, monkeypatch, request, part):
    monkeypatch.setattr("skysieve.dedispersion.stream.web_server.IDLE", 0.2)
    port = request.getfixturevalue("port")
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(part)
        link.settimeout(300)
        while link.recv(4096):  # a refusal may come first
            pass


def test_the_page_is_a_process_of_its_own(folder):
    said = []
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        taken = used.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot serve the page on 127.0.0.1:{taken}: Address already in use"):
            web.PageProcess(folder, "127.0.0.1", taken)
        done = command("watch", folder, "--port", taken)
        assert done.exit_code == 2
        assert "cannot serve the page" in done.output
        done = command("stream", "--listen", "0", "--dm-max", "10", "-o", folder, "--web", taken, "--no-plots")
        assert done.exit_code == 2
        assert "cannot serve the page" in done.output
    with web.PageProcess(folder, "127.0.0.1", 0, said.append) as page:
        assert get(page.port)[0].status == 200
        page._process.send_signal(signal.SIGINT)  # Ctrl-C is the run's: were it not ignored, no page would be left
        assert get(page.port)[0].status == 200
    assert not page.alive
    assert said == []
    with web.PageProcess(folder, "127.0.0.1", 0, said.append) as page:
        page._process.kill()
        wait_for(lambda: said)
    assert "the page's process ended (status -9)" in said[0]
    assert len(said) == 1


def test_without_the_extra(folder, monkeypatch):
    monkeypatch.setattr(web, "NEEDED", ("a_library_that_is_not_there",))
    for arguments in (["watch", folder], ["stream", "--listen", "0", "--dm-max", 9, "-o", folder / "x", "--web", 0]):
        done = command(*arguments)
        assert done.exit_code == 2
        assert "pip install 'skysieve[web]'" in done.output
    assert not (folder / "x").exists()
    for bad in ("x", "1:2:x", "99999"):
        assert "expected HOST:PORT" in command("watch", folder, "--port", bad).output


def test_a_folder_that_is_none(tmp_path):
    done = command("watch", tmp_path / "none", "--port", 0)
    assert done.exit_code == 2
    assert "no such folder" in done.output
    began = time.monotonic()
    with pytest.raises(OSError, match="no such folder"):
        web.PageProcess(tmp_path / "none", "127.0.0.1", 0)
    assert time.monotonic() - began < web.PATIENCE
