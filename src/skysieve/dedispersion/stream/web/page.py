"""The live page: a Bokeh document for each visitor, updated from a `FolderReader`.

This runs in the process of the page only.  Everything that is inserted as HTML goes through `html.escape`, or is a
number that was formatted here.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from skysieve.dedispersion.stream.metrics import METRICS, total

from .folder import MOST_CANDIDATES, MOST_POINTS, FolderReader, ShownCandidate, StatusPoint, View

if TYPE_CHECKING:
    from bokeh.document import Document

PERIOD_MS = 500
ROWS = 12
THUMBNAILS = 6
STALE = 5.0
"""If no new state arrives for this many seconds, the page says so."""
SPANS = (("1 min", 60.0), ("10 min", 600.0), ("1 h", 3600.0), ("all", math.inf))
BEAMS = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7", "#06b6d4", "#84cc16", "#ec4899", "#f97316", "#64748b")
GREY = "#9aa3af"
HELP = {m.name: m.help for m in METRICS}
STYLE = """
:host { display: block; width: 100%; } .bk-clearfix { display: block !important; width: 100%; }
.bar { display: flex; gap: 14px; align-items: baseline; flex-wrap: wrap; } .bar b { font-size: 18px; }
.bar span { color: var(--faint); } .bar .state { font-weight: 600; } .state.good { color: var(--good); }
.state.warn { color: var(--warn); } .problem { color: var(--bad); margin-top: 6px; font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; }
.tile i { font-style: normal; font-size: 12px; color: var(--faint); display: block; }
.tile b { font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile small { font-size: 12px; color: var(--faint); display: block; min-height: 1.45em; }
.tile.warn b { color: var(--warn); } .tile.bad b { color: var(--bad); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { font-weight: 500; color: var(--faint); font-size: 12px; } th, td { text-align: right; padding: 3px 8px; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } tr + tr td { border-top: 1px solid var(--line); }
tr.flagged td { color: var(--faint); }
.none { color: var(--faint); padding: 24px 0; }
h2 { font-size: 13px; font-weight: 600; margin: 0 0 6px; color: var(--faint); }
img { width: 100%; height: auto; border-radius: 4px; background: #fff; display: block; }
.thumbs { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 8px; }
a { color: var(--accent); text-decoration: none; }
.thumbs figcaption { font-size: 11px; color: var(--faint); } figure { margin: 0; }
"""


def clock(seconds: float) -> str:
    """Unix time as hours, minutes and seconds (UTC).

    >>> clock(3661.5)
    '01:01:01.500'
    """
    day = seconds % 86400
    return f"{int(day // 3600):02d}:{int(day // 60) % 60:02d}:{day % 60:06.3f}"


def date(seconds: float) -> str:
    """Unix time as a date (UTC).

    >>> date(0.0)
    '1970-01-01'
    """
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):
        return "?"


def duration(seconds: float) -> str:
    """A duration in words.

    >>> duration(75), duration(7500), duration(9.26)
    ('1 min 15 s', '2 h 05 min', '9 s')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds // 60) % 60:02d} min"


def head_html(view: View) -> str:
    """The head of the page: the name of the run, whether it is running, and problems."""
    about = view.about
    words = [str(about[k]) for k in ("source", "telescope") if about.get(k)]
    name = " · ".join(words) or "skysieve"
    if view.running is None:
        state, kind = "no status.json: only the table is shown", "warn"
    elif not view.running:
        state, kind = "ended", ""
    elif view.age > STALE:
        state, kind = f"no news for {duration(view.age)}", "warn"
    else:
        state, kind = "live", "good"
    more = [str(about["folder"])] if about.get("folder") else []
    if "seconds" in view.state and "data_seconds" in view.state:
        more.append(f"{duration(view.state['data_seconds'])} of data in {duration(view.state['seconds'])}")
    if view.state.get("mjd"):
        when = (view.state["mjd"] - 40587.0) * 86400
        more.append(f"searched up to {date(when)} {clock(when)[:8]} UTC")
    problems = [view.problem] if view.problem else []
    if lost := view.state.get("counts", {}).get("gpus_lost"):
        problems.append(f"{lost:.0f} GPUs have failed.")
    sink = view.state.get("sink", {})
    waiting = sink.get("candidates", 0) - sink.get("written", 0) - sink.get("dropped", 0)
    if sink.get("write_errors") and waiting > 0:
        problems.append(f"The disk refuses writes: {waiting:.0f} candidates wait to be written.")
    if view.bad:
        problems.append(f"{view.bad} lines of the table cannot be read.")
    return (
        f'<div class="bar"><b>{escape(name)}</b><span id="state" class="state {kind}">{escape(state)}</span>'
        + "".join(f"<span>{escape(m)}</span>" for m in more)
        + "</div>"
        + "".join(f'<div class="problem">{escape(p)}</div>' for p in problems)
    )


def tiles_html(view: View) -> str:
    """The tiles with the numbers that operators watch."""
    state, c = view.state, view.state.get("counts", {})
    recent = [m for m in view.points if view.points[-1].when - m.when < 60] if view.points else []
    last = view.candidates[-1] if view.candidates else None
    marks = [(sum(bool(getattr(one, name)) for one in view.candidates), name) for name in ("flagged", "injected")]
    words = "".join(f"{count} {name}, " for count, name in marks if count)
    words += f"last S/N {last.snr:.1f}" if last is not None else ""
    tiles = [("candidates", "Candidates", f"{view.total}", words, "")]
    if view.injections:
        part = view.injections_found / view.injections
        tiles.append(("injections", "Injected pulses found", f"{part:.0%}",
                      f"{view.injections_found} of {view.injections}", "warn" if part < 0.5 else ""))  # fmt: skip
    if not state:
        return _tiles(tiles)
    lost, came = c.get("lost", 0), c.get("accepted", 0)
    dropped, refused = total(c, "dropped"), total(c, "refused")
    real, ring = state.get("realtime", 0.0), state.get("ring_fill", 0.0)
    beams = int(state.get("beams", 0))
    tiles += [
        ("rate", "Received", f"{state.get('rate', 0.0) / 1e6:.1f}", "Mbit/s", ""),
        ("realtime", "Real time", f"{real:.2f} ×", f"CPU load {state.get('load', 0.0):.0%}",
         "bad" if 0 < real < 1 else ""),
        ("lost", "Lost", f"{lost:.0f}", f"{lost / max(lost + came, 1):.3%}",
         "warn" if any(m.lost for m in recent) else ""),
        ("late", "Late / duplicate", f"{c.get('late', 0):.0f} / {c.get('duplicate', 0):.0f}", "packets", ""),
        ("dropped", "Dropped", f"{dropped:.0f}", "packets, no room", "bad" if any(m.dropped for m in recent) else ""),
        ("ring", "Ring", f"{ring:.0%}", "in use", "bad" if ring > 0.8 else "warn" if ring > 0.5 else ""),
        ("latency", "Latency", f"{state.get('latency', 0.0):.2f} s", "pulse to candidate", ""),
        ("refused", "Refused", f"{refused:.0f}", f"packets; {beams} beam{'' if beams == 1 else 's'}", ""),
    ]  # fmt: skip
    return _tiles(tiles)


def _tiles(tiles: list[tuple[str, str, str, str, str]]) -> str:
    cells = (
        f'<div class="tile {kind}" id="{name}" title="{escape(HELP.get(name, ""), quote=True)}">'
        f"<i>{escape(title)}</i><b>{escape(value)}</b>"
        f"<small>{escape(words.strip())}</small></div>"
        for name, title, value, words, kind in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def table_html(view: View) -> str:
    """The table of the latest candidates."""
    latest = list(view.candidates)[: -ROWS - 1 : -1]
    latest.sort(key=lambda c: c.when, reverse=True)
    if not latest:
        return '<div class="none">None yet.</div>'
    rows = "".join(_row(c) for c in latest)
    heads = "".join(
        f"<th>{h}</th>" for h in ("Arrival, UTC", "S/N", "DM", "Width, ms", "Beam", "Arrived", "Latency, s", "")
    )
    return f"<table><tr>{heads}</tr>{rows}</table>"


def _row(c: ShownCandidate) -> str:
    kind, mark = ("flagged", f"{c.beams} beams") if c.flagged else ("", "")
    if c.injected:
        kind, mark = "flagged", f"injected {c.injected}"
    cells = (
        f"{date(c.when)} {clock(c.when)}", f"{c.snr:.1f}", f"{c.dm:.2f}", f"{c.width * 1e3:.3g}", f"{c.beam}",
        f"{c.live:.0%}", f"{c.latency:.2f}" if math.isfinite(c.latency) else "–", mark,
    )  # fmt: skip
    return f'<tr class="{kind}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def picture_html(name: str | None, chosen: ShownCandidate | None) -> str:
    """The large picture: of the candidate that was clicked, or the latest one."""
    if chosen is not None:
        title = f"Selected: S/N {chosen.snr:.1f}, DM {chosen.dm:.2f}, {clock(chosen.when)}"
    else:
        title = "Latest picture"
    if name is None:
        words = "This candidate has no picture." if chosen is not None else "No pictures yet."
        return f'<h2>{escape(title)}</h2><div class="none">{words}</div>'
    safe = escape(name, quote=True)
    return f'<h2>{escape(title)}</h2><a href="pulses/{safe}" target="_blank"><img src="pulses/{safe}" alt="{safe}"></a>'


def pictures_html(names: list[str]) -> str:
    """Small pictures of the candidates before the latest."""
    if len(names) < 2:
        return '<div class="none">None yet.</div>'
    cells = []
    for name in names[-THUMBNAILS - 1 : -1][::-1]:
        safe = escape(name, quote=True)
        mjd, _, rest = name.removesuffix(".png").partition("_dm")
        dm, _, beam = rest.partition("_beam")
        words = f"{clock((float(mjd) - 40587.0) * 86400)[:8]} DM {float(dm):.1f} beam {int(beam.partition('_')[0])}"
        cells.append(
            f'<figure><a href="pulses/{safe}" target="_blank"><img src="pulses/{safe}" alt="{safe}"></a>'
            f"<figcaption>{escape(words)}</figcaption></figure>"
        )
    return f'<div class="thumbs">{"".join(cells)}</div>'


def columns_of(some: list[ShownCandidate]) -> dict[str, list[Any]]:
    """Candidates as points of the plane of time and DM."""
    return {
        "when": [1e3 * c.when for c in some],
        "dm": [c.dm for c in some],
        "snr": [c.snr for c in some],
        "width": [1e3 * c.width for c in some],
        "beam": [c.beam for c in some],
        "size": [max(5.0, min(26.0, 2.2 * math.sqrt(max(c.snr, 0.0)))) for c in some],
        "color": [GREY if c.flagged or c.injected else BEAMS[c.beam % len(BEAMS)] for c in some],
        "marker": ["x" if c.flagged else "diamond" if c.injected else "circle" for c in some],
    }


def history_of(some: list[StatusPoint]) -> dict[str, list[float]]:
    """States as points of the small plots."""
    return {
        "when": [1e3 * m.when for m in some],
        "rate": [m.rate for m in some],
        "lost": [m.lost for m in some],
        "late": [m.late + m.duplicate for m in some],
        "dropped": [m.dropped for m in some],
        "ring": [100 * m.ring for m in some],
    }


class Page:
    """The document of one visitor."""

    def __init__(self, reader: FolderReader, document: Document) -> None:
        from bokeh.models import ColumnDataSource, Div, InlineStyleSheet, RadioButtonGroup

        self.reader, self.document = reader, document
        self.points = ColumnDataSource(columns_of([]))
        self.history = ColumnDataSource(history_of([]))
        self.shown: list[ShownCandidate] = []
        self.generation, self.seen, self.points_seen = -1, 0, 0
        self.follow, self.beats = True, 0
        sheet = InlineStyleSheet(css=STYLE)
        self.parts = {
            name: Div(name=name, stylesheets=[sheet], sizing_mode="stretch_width", disable_math=True)
            for name in ("head", "tiles", "table", "picture", "pictures")
        }
        self.parts["tiles"].margin = (12, 0, 0, 0)
        for name in ("table", "picture", "pictures", "head"):
            self.parts[name].margin = 0
        buttons = """.bk-btn { background: transparent; color: var(--faint); border-color: var(--line); }
            .bk-btn.bk-active { background: var(--line); color: var(--ink); border-color: var(--line); }"""
        self.span = RadioButtonGroup(
            name="span", labels=[label for label, _ in SPANS], active=1, stylesheets=[InlineStyleSheet(css=buttons)]
        )
        self.span.on_change("active", self._chosen_span)
        self.plane = self._plane()
        self.plots = [
            self._small("rate", [("rate", BEAMS[0])]),
            self._small("loss", [("lost", BEAMS[3]), ("late", BEAMS[1]), ("dropped", BEAMS[4])]),
            self._small("ring", [("ring", BEAMS[2])]),
        ]
        self.points.selected.on_change("indices", self._chosen)
        self.update()
        for root in (*self.parts.values(), self.span, self.plane, *self.plots):
            document.add_root(root)
        document.add_periodic_callback(self.update, PERIOD_MS)

    # ------------------------------------------------------------------ plots
    def _plane(self) -> Any:
        from bokeh.events import RangesUpdate
        from bokeh.models import DataRange1d, HoverTool, NumeralTickFormatter, Range1d
        from bokeh.plotting import figure

        plane = figure(
            name="plane", x_axis_type="datetime", height=430, sizing_mode="stretch_width", toolbar_location="above",
            tools="tap,box_zoom,xwheel_zoom,pan,reset", x_range=Range1d(0, 1),
            y_range=DataRange1d(start=0, range_padding=0.08),
        )  # fmt: skip
        plane.toolbar.logo = None
        plane.toolbar.autohide = True
        plane.yaxis.axis_label = "DM, pc/cm³"
        plane.yaxis.formatter = NumeralTickFormatter(format="0[.]0")
        plane.add_tools(
            HoverTool(
                tooltips=[("S/N", "@snr{0.0}"), ("DM", "@dm{0.00}"), ("width", "@width{0.00} ms"), ("beam", "@beam")]
            )
        )
        points = plane.scatter(
            "when", "dm", source=self.points, size="size", marker="marker", fill_color="color", line_color="color",
            fill_alpha=0.55, line_alpha=0.9,
        )  # fmt: skip
        points.selection_glyph = points.glyph.clone(line_color="#f43f5e", fill_color="#f43f5e", fill_alpha=0.9)
        points.nonselection_glyph = points.glyph.clone()
        plane.on_event(RangesUpdate, self._moved)
        return plane

    def _small(self, name: str, lines: list[tuple[str, str]]) -> Any:
        from bokeh.models import DataRange1d, NumeralTickFormatter
        from bokeh.plotting import figure

        plot = figure(
            name=name, x_axis_type="datetime", height=150, sizing_mode="stretch_width", toolbar_location=None, tools="",
            y_range=DataRange1d(start=0, min_interval=1.0),
        )  # fmt: skip
        plot.yaxis.formatter = NumeralTickFormatter(format="0[.]0a")
        plot.yaxis.ticker.desired_num_ticks = 4
        plot.xaxis.ticker.desired_num_ticks = 5
        for column, color in lines:
            plot.line("when", column, source=self.history, color=color, line_width=1.6)
        return plot

    # ------------------------------------------------------------------ actions of the visitor
    def _chosen_span(self, name: str, old: Any, new: Any) -> None:
        self.follow = True
        self._follow()

    def _moved(self, event: Any) -> None:
        """After the visitor has zoomed or moved the plane, leave it unchanged until a span is selected."""
        self.follow = False
        self.span.active = None

    def _chosen(self, name: str, old: Any, new: Any) -> None:
        self._picture()

    # ------------------------------------------------------------------ updates
    def update(self) -> None:
        """Update the document."""
        reader = self.reader
        self.beats += 1
        self.parts["head"].tags = [self.beats]
        with reader.lock:
            view = reader.view
            if view.generation != self.generation:
                new, fresh = list(view.candidates), True
            else:
                count = min(view.total - self.seen, len(view.candidates))
                new, fresh = (list(view.candidates)[-count:] if count > 0 else []), False
            self.generation, self.seen = view.generation, view.total
            count = min(view.points_seen - self.points_seen, len(view.points))
            points = list(view.points)[-count:] if count > 0 else []
            self.points_seen = view.points_seen
            html = {
                "head": head_html(view), "tiles": tiles_html(view), "table": table_html(view),
                "pictures": pictures_html(view.pictures),
            }  # fmt: skip
            title = f"{view.total} candidates · {view.about.get('source') or reader.folder.name}"
            self.end = (view.state.get("mjd", 0.0) - 40587.0) * 86400
        if fresh:
            self.shown = new
            self.points.selected.indices = []
            self.points.data = columns_of(new)
        elif new:
            self._add(new)
        if points:
            self.history.stream(history_of(points), rollover=MOST_POINTS)
        for name, text in html.items():
            if self.parts[name].text != text:
                self.parts[name].text = text
        if self.document.title != title:
            self.document.title = title
        self._picture()
        self._follow()

    def _add(self, new: list[ShownCandidate]) -> None:
        over = max(0, len(self.shown) + len(new) - MOST_CANDIDATES)
        chosen = self._selected()
        self.shown = (self.shown + new)[-MOST_CANDIDATES:]
        self.points.stream(columns_of(new), rollover=MOST_CANDIDATES)
        if over and chosen is not None:  # the indices have changed
            self.points.selected.indices = [self.shown.index(chosen)] if chosen in self.shown else []

    def _selected(self) -> ShownCandidate | None:
        """The candidate that the visitor has clicked; if there are several, the loudest."""
        some = [i for i in self.points.selected.indices if isinstance(i, int) and 0 <= i < len(self.shown)]
        return max((self.shown[i] for i in some), key=lambda c: c.snr) if some else None

    def _picture(self) -> None:
        chosen = self._selected()
        with self.reader.lock:
            latest = self.reader.view.pictures[-1] if self.reader.view.pictures else None
        text = picture_html(self.reader.picture_of(chosen) if chosen is not None else latest, chosen)
        if self.parts["picture"].text != text:
            self.parts["picture"].text = text

    def _follow(self) -> None:
        """Move the plane so that it ends at the current time of the search."""
        if not self.follow or self.span.active is None:
            return
        times = [c.when for c in self.shown]
        end = max([self.end, *times]) if self.end > -3e9 else max(times, default=time.time())
        span = SPANS[self.span.active][1]
        start = end - span if math.isfinite(span) else min(times, default=end - 60)
        edge = 0.02 * max(end - start, 1.0)
        start, end = 1e3 * (start - edge), 1e3 * (end + edge)
        if (self.plane.x_range.start, self.plane.x_range.end) != (start, end):
            self.plane.x_range.start, self.plane.x_range.end = start, end


def template() -> Any:
    """The template of the page around the plots."""
    import jinja2

    text = resources.files(str(__package__)).joinpath("page.html").read_text(encoding="utf-8")
    return jinja2.Template(text)
