"""Facts that are listed once: their readers, the defaults and the documentation agree with them."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.dedispersion import Candidates, fake
from skysieve.dedispersion.clean import cpu_missing
from skysieve.dedispersion.contract import NOISE
from skysieve.dedispersion.search_options import NoiseName
from skysieve.dedispersion.stream import StreamCandidates, StreamSearch
from skysieve.dedispersion.stream.channelise.channeliser import SIDEBANDS, WINDOWS, Channeliser, PfbWindow, Sideband
from skysieve.dedispersion.stream.command import commands
from skysieve.dedispersion.stream.command.emulate import emulate
from skysieve.dedispersion.stream.intake import Intake
from skysieve.dedispersion.stream.metrics import METRICS, names_of
from skysieve.dedispersion.stream.pipeline import Pipeline
from skysieve.dedispersion.stream.receive.formats import FORMATS, make_parser
from skysieve.dedispersion.stream.receive.packets import REASONS
from skysieve.dedispersion.stream.receive.ring import Ring
from skysieve.dedispersion.stream.receive.udp import UdpReceiver
from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS, INJECTION_COLUMNS, POLICIES, Options, Policy
from skysieve.dedispersion.stream.report.previous_run import GAP_COLUMNS, Ending
from skysieve.dedispersion.stream.report.sink import GRACE, Sink
from skysieve.dedispersion.stream.report.triggers import TRIGGERS, make_trigger
from skysieve.dedispersion.stream.search.cuda_samples import SPREAD

DOCS = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"


def defaults(function):
    return {n: p.default for n, p in inspect.signature(function).parameters.items() if p.default is not p.empty}


STREAM, EMULATE = defaults(commands.stream), defaults(commands.emulate)


@pytest.mark.parametrize(
    ("options", "target", "names"),
    [
        (STREAM, Options, ("window", "ring", "policy", "gulp", "source", "telescope")),
        (STREAM, Ring, ("window", "policy")),
        (STREAM, Channeliser, ("channels", "taps", "integrate", "stokes", "sideband")),
        (STREAM, StreamSearch, ("threshold", "noise", "step", "block", "device", "threads", "memory")),
        (STREAM, Sink, ("min_snr", "raw")),
        (STREAM, make_trigger, ("ivorn",)),
        (EMULATE, emulate, ("loss", "reorder", "duplicate", "reach", "packet_bytes", "beam", "first", "repeat",
                            "seconds", "seed")),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_defaults_of_the_commands_are_those_of_the_classes(options, target, names):
    known = defaults(target)
    assert {name: options[name] for name in names} == {name: known[name] for name in names}


def test_other_defaults():
    assert STREAM["pfb_window"] == defaults(Channeliser)["window"]
    assert STREAM["datagram_bytes"] == defaults(UdpReceiver)["slot_bytes"]
    assert STREAM["beams"] == defaults(Intake)["most_beams"]
    assert STREAM["coincident"] == defaults(Pipeline)["coincident"]
    assert STREAM["grace"] == GRACE
    assert STREAM["ring"] == defaults(Ring)["seconds"]


@pytest.mark.parametrize("command", ["stream", "emulate", "watch"])
def test_help_is_full_sentences_with_defaults(command):
    """Every option says what it does and its default, the same as that of the function; there is an example."""
    function = getattr(commands, command)
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if name == "return":
            continue
        option = hint.__metadata__[0]
        assert option.help[0].isupper(), name
        assert option.help.endswith("."), name
        default = inspect.signature(function).parameters[name].default
        number = isinstance(default, int | float) and not isinstance(default, bool) and np.isfinite(default)
        if number or (isinstance(default, str) and default):
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            assert re.search(rf"default is {re.escape(shown)}\b", option.help), (name, option.help)
    assert f"- skysieve dedisp {command} " in inspect.getdoc(function)
    assert CliRunner().invoke(app, ["dedisp", command, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("names", "registry"),
    [(Policy, POLICIES), (PfbWindow, WINDOWS), (Sideband, SIDEBANDS)],
)
def test_types_name_the_entries_of_their_registries(names, registry):
    assert typing.get_args(names) == tuple(registry)


def test_choices_of_the_command_are_the_registries():
    for choice, registry in (
        (commands.PolicyChoice, POLICIES), (NoiseName, NOISE), (commands.PfbWindowChoice, WINDOWS),
        (commands.SidebandChoice, SIDEBANDS),
    ):  # fmt: skip
        assert [one.value for one in choice] == list(registry)
    for kind, trigger in TRIGGERS.items():
        assert f"{kind}:{trigger.target_name} {trigger.help}." in commands.TRIGGER_HELP
    for name, form in FORMATS.items():
        assert f"{name} ({form.help})" in commands.FORMAT_HELP


def test_packet_formats():
    options = {"frames": 10, "threads": 1, "fch1": 1400.0, "foff": 1.0}
    help_text = {p: h.__metadata__[0] for p, h in typing.get_type_hints(commands.stream, include_extras=True).items()
                 if p != "return"}  # fmt: skip
    declared = {name for option in help_text.values() for name in (option.default, *(option.param_decls or ()))}
    for name, form in FORMATS.items():
        assert make_parser(name, options).name == name
        assert set(form.options.values()) <= declared
        if form.options:
            with pytest.raises(ValueError, match=f"{name} needs {', '.join(form.options.values())}"):
                make_parser(name)


def test_reasons_of_the_parser_are_metrics():
    assert REASONS[1:] == names_of("parser")


def test_names_are_used_once():
    for names in ([m.exported for m in METRICS], [c.name for c in CANDIDATE_COLUMNS], [c.name for c in GAP_COLUMNS]):
        assert len(set(names)) == len(names)
    assert all(m.help.endswith(".") for m in METRICS)


def test_columns_of_candidates():
    """They are those of a search of a file, and one for the samples that arrived; the other stages add the rest."""
    fb = fake(nchan=16, duration=3, tsamp=1e-3, fch1=1500, foff=-16, dm=50, times=[1.0], width=8e-3, snr=25, seed=1)
    with StreamSearch(fb.observation, np.arange(0, 100, 10.0), block=1.1, threads=1) as live:
        found = live.execute([(0, fb.read().T)])
    names = [c.name for c in CANDIDATE_COLUMNS]
    assert list(found.columns) == [n for n in names if n in found.columns]
    assert set(found.columns) == set(names) & set(Candidates.__dataclass_fields__)
    assert set(names) - set(found.columns) == {"beam", "segment", "beams", "flagged", "injected", "latency"}
    assert StreamCandidates.join([]).columns.keys() == found.columns.keys()
    assert len(StreamCandidates.join([])) == 0
    assert str(found.to_table()["dm"].unit) == "pc / cm3"
    joined = StreamCandidates.join([found, found])
    assert len(joined) == 2 * len(found)
    assert np.array_equal(np.bincount(joined.group), np.repeat(found.columns["members"], 2))


def test_a_stream_can_be_searched_again():
    """Other samples of the same numbers, without a new search; shorter ones too."""
    made = [fake(nchan=16, duration=3, tsamp=1e-3, fch1=1500, foff=-16, dm=50, times=[t], width=8e-3, snr=25, seed=1)
            for t in (1.0, 2.0)]  # fmt: skip
    with StreamSearch(made[0].observation, np.arange(0, 100, 10.0), block=1.1, threads=1) as live:
        times = [live.execute([(0, fb.read().T[:n])]).columns["time"] for fb in made for n in (3000, 2500)]
    assert [len(t) for t in times] == [1, 1, 1, 1]
    assert np.abs(np.concatenate(times) - [1, 1, 2, 2]).max() < 8e-3


def test_noise_for_missing_samples_has_one_scale():
    assert SPREAD == cpu_missing.SPREAD


def tables_of(text):
    """First cells of the rows of each table of a page."""
    rows = [re.match(r"\| `([\w:]+)` \|", line) for line in text.splitlines()]
    return [m[1] if m else "" for m in rows]


def test_the_docs_list_every_metric_column_format_trigger_and_policy():
    text = DOCS.read_text(encoding="utf-8")
    columns = (*CANDIDATE_COLUMNS, *GAP_COLUMNS, *INJECTION_COLUMNS)
    rows = [f"| `{m.exported}` | {m.help} |" for m in METRICS]
    rows += [f"| `{column.name}` | {column.unit} | {column.help} |" for column in columns]
    for name, form in FORMATS.items():
        rows.append(f"| `{name}` | {form.help} | {' '.join(f'`{o}`' for o in form.options.values())} |")
    rows += [f"| `{name}:{trigger.target_name}` | {trigger.help} |" for name, trigger in TRIGGERS.items()]
    rows += [f"| `{name}` | {help_text} |" for name, help_text in POLICIES.items()]
    assert [row for row in rows if row not in text] == [], "rows that docs/streaming.md lacks"
    documented = {row for row in tables_of(text) if row}
    known = {m.exported for m in METRICS} | {c.name for c in columns}
    known |= set(FORMATS)
    known |= {f"{name}:{trigger.target_name}" for name, trigger in TRIGGERS.items()} | set(POLICIES)
    assert documented == known
    for ending in typing.get_args(Ending):
        assert ending in GAP_COLUMNS[-1].help
