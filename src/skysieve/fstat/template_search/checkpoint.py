"""The state of a search, and the file from which an interrupted search continues."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.fstat.archive import GRID, JSON, form, pack, read_archive, unpack, write_archive
from skysieve.fstat.inputs.grid import Grid

from .ledger import MOST_FAULTS, Ledger
from .worker import ChunkReport

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FAULTS", "LEDGERS", "Checkpoint", "State"]

CONTENT = "skysieve.fstat.search checkpoint 2"


def _pack_ledgers(ledgers: dict[str, Ledger]) -> dict[str, Any]:
    values: dict[str, Any] = {"windows": json.dumps(list(ledgers))}
    for i, ledger in enumerate(ledgers.values()):
        values |= pack(ledger, f"{i}/")
    return values


def _unpack_ledgers(values: dict[str, Any]) -> dict[str, Ledger]:
    names = json.loads(str(values["windows"]))
    return {name: Ledger(**unpack(Ledger, values, f"{i}/")) for i, name in enumerate(names)}


LEDGERS = form(_pack_ledgers, _unpack_ledgers)
"""Ledgers by the name of the window."""
FAULTS = form(
    lambda faults: {"": json.dumps(faults)}, lambda values: {int(n): t for n, t in json.loads(str(values[""])).items()}
)
"""Errors by the number of the template."""


@dataclass
class State:
    """The state of a search after the chunks entered so far.

    All fields with ``metadata`` are in the checkpoint; the results of a chunk come from its `ChunkReport`, by `enter`.

    Attributes
    ----------
    ledgers : dict of str to Ledger
        One for each window.
    grid : Grid or None
        None until the full grid is known from the first batch.
    templates, n_bad : int
        Number of templates entered, and number of those that were left out.
    faults : dict of int to str
    finished : bool
    whole : bool
        False while a chunk is being entered; such a state is not written to the file.
    """

    ledgers: dict[str, Ledger] = field(metadata=LEDGERS)
    grid: Grid | None = field(metadata=GRID, default=None)
    templates: int = field(metadata=JSON, default=0)
    n_bad: int = field(metadata=JSON, default=0)
    faults: dict[int, str] = field(metadata=FAULTS, default_factory=dict)
    finished: bool = field(metadata=JSON, default=False)
    whole: bool = True

    def enter(self, report: ChunkReport, band: str | None, width: float) -> None:
        """Add the report of a chunk; chunks come in order."""
        self.whole = False
        self.n_bad += len(report.faults)
        for number, text in report.faults.items():
            if len(self.faults) < MOST_FAULTS:
                self.faults[number] = text
        for name, found in report.windows.items():
            ledger = self.ledgers[name]
            ledger.count(found.twoF, found.statistic)
            ledger.loudest(_bands(report, band, width), found.twoF, report.numbers)
            ledger.keep(found.rows, found.posteriors)
        self.templates = report.start + report.count
        self.whole = True


def _bands(report: ChunkReport, band: str | None, width: float) -> NDArray[np.int64]:
    values = report.numbers if band is None else report.params[band]
    return np.floor(np.asarray(values, np.float64) / width).astype(np.int64)


class Checkpoint:
    """The checkpoint file of a search; without a path nothing is read or written."""

    def __init__(self, path: str | os.PathLike[str] | None, settings: dict[str, Any], every: float) -> None:
        self.path = None if path is None else Path(path)
        self.settings, self.every = settings, every
        self._next = time.monotonic() + every
        self._saved: tuple[int, bool] | None = None
        if self.path is not None:
            if self.path.suffix.lower() != ".npz":
                raise ValueError(f"checkpoint={os.fspath(self.path)!r}: expected a name that ends in .npz")
            if not self.path.parent.is_dir():
                raise ValueError(f"checkpoint={os.fspath(self.path)!r}: there is no folder {self.path.parent}")

    def restore(self, state: State) -> None:
        """Replace a new state by the state in the file, if the file exists.

        Raises
        ------
        ValueError
            The file is not a checkpoint, is damaged, or belongs to a search with other options.
        """
        if self.path is None or not self.path.exists():
            return
        try:
            values = read_archive(self.path, CONTENT)
        except ValueError as error:
            raise ValueError(
                f"checkpoint={os.fspath(self.path)!r} is not the checkpoint of a search, or is damaged; use another "
                "file, or delete it to start anew"
            ) from error
        old = json.loads(str(values["settings"]))
        for name, value in json.loads(json.dumps(self.settings)).items():
            if old.get(name) != value:
                raise ValueError(
                    f"checkpoint={os.fspath(self.path)!r} belongs to a search with {name}={old.get(name)!r}, this one "
                    f"has {value!r}; use another file"
                )
        found = unpack(State, values)
        found["ledgers"] = {name: found["ledgers"][name] for name in state.ledgers}  # in this search's order
        found["grid"] = state.grid or found.get("grid")
        for name, value in found.items():
            setattr(state, name, value)
        self._saved = (state.templates, state.finished)

    def save_if_due(self, state: State) -> None:
        """Write the file if it was last written at least `every` seconds ago."""
        if time.monotonic() >= self._next:
            self.save(state)

    def save(self, state: State) -> None:
        """Write the file, unless the state has not changed or a chunk has only partly been entered."""
        if self.path is None or not state.whole or self._saved == (state.templates, state.finished):
            return
        write_archive(self.path, CONTENT, {"settings": json.dumps(self.settings), **pack(state)})
        self._saved = (state.templates, state.finished)
        self._next = time.monotonic() + self.every
