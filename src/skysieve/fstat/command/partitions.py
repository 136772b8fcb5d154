"""``skysieve fstat search`` as a job of partitions: ranges of templates, whose ledgers are joined."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.cluster.description import Job, Part, Prepared, Resources
from skysieve.core.arrays import from_arrow
from skysieve.core.command import STDIO, table_format
from skysieve.core.parts import files_of
from skysieve.fstat.inputs.grid import Grid
from skysieve.fstat.template_search.ledger import MOST_FAULTS, Ledger, Rows
from skysieve.fstat.template_search.result import FORMATS, SearchResult

from .cli import plan_of, source_of

if TYPE_CHECKING:
    from skysieve.cluster.folder import Parts

SHARE, LEAST, MOST = 100, 500, 100_000
"""Number of partitions of a search, and the fewest and most templates of one, if the user gives no number: each
partition takes 10 ms more."""


class SearchWork:
    """See `skysieve.cluster.description.Work`.  A partition is ``[first, last + 1]`` of the numbers of templates."""

    row = "row"
    needed = None
    at_once = 1

    def __init__(self, job: Job, resources: Resources) -> None:
        self.job, plan = job, job.plan
        options = job.options | {"device": job.device, "threads": resources.threads, "memory": resources.memory}
        options |= {"files": plan["files"], "files_from": None}
        self.options = options
        self.source = source_of(options, job.at)
        if self.source.facts() != plan["facts"]:
            raise ValueError("the SFTs or the templates differ from those of the job")
        self.plan = plan_of(options, _grid(plan["grid"]), plan["total"])

    @classmethod
    def prepare(cls, options: dict[str, Any], output: str) -> Prepared:
        """Divide the templates, and choose the grid that all share."""
        table_format(Path(output), options["format"], FORMATS)
        if options["templates"] == str(STDIO):
            raise ValueError("--templates -: --cluster needs a file")
        if str(STDIO) in map(str, options["files"] or ()):
            raise ValueError("-: --cluster needs files, since standard input cannot be read again")
        here = options | {"device": "cpu", "threads": 1, "memory": None}
        source = source_of(here)
        grid, total = source.grid(here), source.total
        with plan_of(here, grid, total) as plan:
            plan.check(source.first)
            settings = plan._settings() | source.facts()
        step = options["partition"] or min(MOST, max(LEAST, -(-total // SHARE)))
        inputs = files_of([*source.names, *([] if source.host is None else _sft_files(options))])
        files = options["files"] if source.host is not None else list(map(str, source.names))
        facts = {
            "grid": grid and {"t0s": grid.t0s.tolist(), "taus": grid.taus.tolist(),
                              "steps": [grid.t0_band, grid.tau_band, grid.dt0, grid.dtau]},
            "settings": settings, "facts": source.facts(), "total": total, "files": files,
        }  # fmt: skip
        partitions = [[low, min(low + step, total)] for low in range(0, total, step)]
        return Prepared(partitions, inputs, facts, [*source.notes, *source.left_out])

    def compute(self, partition: list[int]) -> Part:
        """Search a range of templates."""
        start, end = partition
        with ExitStack() as stack:
            batches = self.source.batches(stack, self.plan, end)
            found = self.plan.execute(batches, start=start, total=end - start)
        counts = {"templates": found.n_templates, "left out": found.n_bad}
        columns = found.columns()
        windows = {}
        for window, ledger in found.ledgers.items():
            windows[window] = {
                "types": {
                    name: column.dtype.str for name, column in ledger.best.items()
                    if name in columns or name in ("number", "statistic")
                },
                "histogram": ledger.histogram.tolist(), "n_above": ledger.n_above, "n_empty": ledger.n_empty,
                "bands": [[band, twoF, number] for band, (twoF, number) in ledger.bands.items()],
            }  # fmt: skip
        ranked = [ledger.best["statistic"] for ledger in found.ledgers.values() if ledger.best]
        if ranked:
            columns["statistic"] = np.concatenate(ranked)
        faults = [
            text if self.options["sfts"] and "template" in text else f"template {number}: {text}"
            for number, text in found.faults.items()
        ]
        facts = {"windows": windows, "n_bad": found.n_bad, "faults": found.faults, "n": found.n_templates}
        return Part(columns if ranked else {}, {}, counts, faults, facts)

    @classmethod
    def finish(cls, job: Job, parts: Parts, path: Path) -> None:
        """Join the ledgers, and write the table."""
        plan = job.plan
        here = job.options | {"device": "cpu", "threads": 1, "memory": None}
        with plan_of(here, _grid(plan["grid"]), plan["total"]) as made:
            options = made.options
            ledgers = {name: Ledger(options.topk, options.threshold, 0) for name in options.windows}
            threshold = made.threshold
        n_bad = n = 0
        faults: dict[int, str] = {}
        for table, facts in parts:
            n, n_bad = n + facts["n"], n_bad + facts["n_bad"]
            faults |= {int(k): text for k, text in list(facts["faults"].items())[: MOST_FAULTS - len(faults)]}
            columns = {name: from_arrow(table.column(name)) for name in table.column_names}
            for window, more in facts["windows"].items():
                _enter(ledgers[window], window, columns, more)
        found = SearchResult(
            ledgers, n, n_bad, faults, _grid(plan["grid"]), options.statistic, threshold, options.band,
            options.band_width, plan["settings"],
        )  # fmt: skip
        found.save(path, format=table_format(path, job.options["format"], FORMATS))


def _enter(ledger: Ledger, window: str, columns: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the ledger of a partition to the ledger of the job."""
    ledger.histogram += np.array(more["histogram"], np.int64)
    ledger.n_above += more["n_above"]
    ledger.n_empty += more["n_empty"]
    for band, twoF, number in more["bands"]:
        old = ledger.bands.get(band)
        if old is None or (twoF, -number) > (old[0], -old[1]):
            ledger.bands[band] = (twoF, number)
    if more["types"]:
        own = columns["window"] == window
        rows: Rows = {
            name: columns["template" if name == "number" else name][own].astype(kind)
            for name, kind in more["types"].items()
        }
        ledger.keep(rows, {})


def _grid(facts: dict[str, Any] | None) -> Grid | None:
    """The grid that a job recorded."""
    if facts is None:
        return None
    t0_band, tau_band, dt0, dtau = facts["steps"]
    if dt0 is None or dtau is None:
        return Grid.from_lists(np.array(facts["t0s"]), np.array(facts["taus"]))
    return Grid(t0=facts["t0s"][0], t0_band=t0_band, dt0=dt0, tau=facts["taus"][0], tau_band=tau_band, dtau=dtau)


def _sft_files(options: dict[str, Any]) -> list[Path]:
    from skysieve.fstat.sfts.files import files_of as sft_files

    listed = [] if options["templates"] is None else [Path(options["templates"])]
    return [*sft_files([*options["sfts"], *(options["files"] or [])]), *listed]
