"""The live page without a browser: the files that it reads and the data that it shows."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dedispersion.test_stream_sink import wait_for

from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS
from skysieve.dedispersion.stream.report.status import NAME, StatusFile
from skysieve.dedispersion.stream.report.tables import Table, line_of
from skysieve.dedispersion.stream.web import folder as web_folder
from skysieve.dedispersion.stream.web import page as web_page
from skysieve.dedispersion.stream.web.folder import FolderReader, View, parse_line

bokeh = pytest.importorskip("bokeh", reason="the extra 'web' is not installed")

MJD = 60000.5


def row(snr=9.0, seconds=0.0, dm=100.0, **more):
    return dict.fromkeys((c.name for c in CANDIDATE_COLUMNS), 0) | {
        "snr": snr, "dm": dm, "width": 4e-3, "mjd_top": MJD, "mjd_infinite": MJD + seconds / 86400, "live": 1.0,
        "latency": 0.5, "time": 1.0, "dm_low": 90.0, "dm_high": 110.0, "time_first": 1.0, "time_last": 2.0, **more,
    }  # fmt: skip


def line(*values, **more):
    return line_of(row(*values, **more))


def state(seconds=1.0, **counts):
    return {
        "seconds": seconds, "data_seconds": seconds, "rate": 2e6, "realtime": 3.0, "load": 0.3, "ring_fill": 0.1,
        "latency": 0.4, "beams": 1, "mjd": MJD, "sink": {"candidates": 1, "written": 1},
        "counts": {"accepted": 100, "lost": 0, **counts},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    Table(tmp_path / "candidates.csv").append([row(9.0), row(12.0, 1.0)])
    (tmp_path / "pulses").mkdir()
    return tmp_path


def tell(folder, body=None, running=True, **about):
    with StatusFile(folder, lambda: state() if body is None else body, about):
        pass
    if running:  # as before the end of a run
        text = json.loads((folder / NAME).read_text()) | {"running": True}
        (folder / NAME).write_text(json.dumps(text))


# ---------------------------------------------------------------- reading


def test_a_growing_table_is_read(folder):
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
    os.truncate(folder / "candidates.csv", len(",".join(web_folder.COLUMN_NAMES)) + 1)
    Table(folder / "candidates.csv").append([row(20.0)])
    reader.poll()
    assert (view.generation, view.total, [c.snr for c in view.candidates]) == (before + 1, 1, [20.0])
    (folder / "candidates.csv").unlink()
    Table(folder / "candidates.csv").append([row(30.0), row(31.0), row(32.0)])
    reader.poll()
    assert (view.generation, view.total) == (before + 2, 3)


def test_a_table_is_read_in_pieces(folder, monkeypatch):
    """Pieces end within lines; the last candidates are shown, all are counted; one line is very long."""
    monkeypatch.setattr(web_folder, "PIECE", 501)
    Table(folder / "candidates.csv").append([row(10.0 + i) for i in range(100)])
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
    one = parse_line(data)
    assert one is None or abs(one.mjd) < 1e6


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such folder"):
        FolderReader(tmp_path / "none")
    with pytest.raises(ValueError, match=r"has no candidates.csv and no status.json"):
        FolderReader(tmp_path)


def test_the_state_is_read_again(folder):
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
    (point,) = view.points
    assert (point.rate, point.lost, point.dropped) == (2.0, 2.0, 2.0)
    reader.poll()
    assert len(view.points) == 1
    tell(folder, state(4.0), running=False)
    reader.poll()
    assert view.running is False
    for text in ("{", "[]", '{"now": 1, "running": true, "about": 3, "state": 4}'):
        (folder / NAME).write_text(text)
        reader.poll()
        assert "this is not a state" in view.problem


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5,
)  # fmt: skip
NAMES = st.sampled_from(["seconds", "data_seconds", "rate", "realtime", "mjd", "counts", "sink", "beams"])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.dictionaries(NAMES, JSON), st.dictionaries(st.sampled_from(["source", "folder"]), JSON), JSON)
def test_states_of_any_kind(tmp_path_factory, state, about, now):
    """Any contents of the file leave the page working."""
    folder = tmp_path_factory.mktemp("any")
    Table(folder / "candidates.csv").append([row()])
    reader = FolderReader(folder)
    for body in ({"now": 1.0, "running": True, "about": about, "state": state}, {"now": now, "state": state}, now):
        (folder / NAME).write_text(json.dumps(body))
        reader.poll()
        seen = Tags(web_page.head_html(reader.view) + web_page.tiles_html(reader.view))
        assert seen.tags <= {"div", "b", "span", "i", "small"}


@pytest.mark.slow
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
    assert "trying again every second" in said[0]
    assert "written again" in said[1]


def test_pictures_find_their_candidates(folder):
    """Also if the DM in the name was rounded from more digits than the table has, and in later segments."""
    later = "60000.600000000_dm100.012_beam1_segment2.png"
    for name in ("60000.500000000_dm100.000_beam0.png", "60000.600000000_dm100.012_beam1.png", "x.png", "<b>.png",
                 later):  # fmt: skip
        (folder / "pulses" / name).write_bytes(b"")
    again = row(8.0, 8640.0, dm=100.0125, beam=1, segment=2)
    Table(folder / "candidates.csv").append([row(8.0, 8640.0, dm=100.0125, beam=1), row(8.0, 9000.0), again])
    reader = FolderReader(folder)
    reader.poll()
    found = [reader.picture_of(c) for c in reader.view.candidates]
    assert found == ["60000.500000000_dm100.000_beam0.png", None, "60000.600000000_dm100.012_beam1.png", None, later]
    assert reader.view.pictures[0] == found[0]
    assert set(reader.view.pictures) == {name for name in found if name}
    assert web_page.pictures_html([later, later]).count("beam 1") == 1


# ---------------------------------------------------------------- display


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


@pytest.mark.slow
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


def test_text_of_the_page(folder):
    tell(folder, state(1.0), source="Crab")
    reader = FolderReader(folder)
    reader.poll()
    view = reader.view
    head = Tags(web_page.head_html(view)).words
    assert head.startswith("Crablive")
    assert "searched up to 2023-02-25 12:00:00 UTC" in head
    view.age = 100.0
    assert "no news for 1 min 40 s" in web_page.head_html(view)
    view.running = False
    assert "ended" in web_page.head_html(view)
    view.state["sink"] = {"candidates": 9.0, "written": 4.0, "write_errors": 2.0}
    assert "The disk refuses writes: 5 candidates wait" in web_page.head_html(view)
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


@pytest.mark.slow
def test_a_document_is_updated(folder, monkeypatch):
    from bokeh.document import Document

    monkeypatch.setattr(web_page, "MOST_CANDIDATES", 4)
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
    Table(folder / "candidates.csv").append([row(13.0, 2.0), row(14.0, 3.0, flagged=1), row(15.0, 4.0)])
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
    os.truncate(folder / "candidates.csv", len(",".join(web_folder.COLUMN_NAMES)) + 1)
    reader.poll()
    page.update()
    assert len(page.points.data["snr"]) == 0
    assert page.document.title.startswith("0 candidates")
