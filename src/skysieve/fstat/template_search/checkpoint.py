"""The state of a search, and the file from which it goes on."""

from __future__ import annotations

import json
import os
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.files import written
from skysieve.fstat.inputs.grid import Grid

from .ledger import MOST_FAULTS, Ledger
from .worker import Report

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = "skysieve.fstat.search 1"


@dataclass
class State:
    """What all chunks entered so far have left.

    Attributes
    ----------
    ledgers : dict of str to Ledger
        One a window.
    grid : Grid or None
        None until the first batch tells the full grid.
    templates, n_bad : int
        Templates entered, and those of them that were left out.
    faults : dict of int to str
    finished : bool
    whole : bool
        False while a chunk is being entered: such a state is not written.
    """

    ledgers: dict[str, Ledger]
    grid: Grid | None = None
    templates: int = 0
    n_bad: int = 0
    faults: dict[int, str] = field(default_factory=dict)
    finished: bool = False
    whole: bool = True

    def enter(self, report: Report, band: str | None, width: float) -> None:
        """Add a chunk; chunks come in order."""
        self.whole = False
        self.n_bad += len(report.faults)
        for number, text in report.faults.items():
            if len(self.faults) < MOST_FAULTS:
                self.faults[number] = text
        for name, seen in report.seen.items():
            ledger = self.ledgers[name]
            ledger.count(seen.twoF, seen.statistic)
            ledger.loudest(_bands(report, band, width), seen.twoF, report.numbers)
            ledger.keep(seen.rows, seen.posteriors)
        self.templates = report.start + report.count
        self.whole = True


def _bands(report: Report, band: str | None, width: float) -> NDArray[np.int64]:
    values = report.numbers if band is None else report.params[band]
    return np.floor(np.asarray(values, np.float64) / width).astype(np.int64)


class Checkpoint:
    """The file of a state; nothing happens where there is no path."""

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
        """Take up what the file holds, if there is one.

        Raises
        ------
        ValueError
            If it is no such file, or of a search that asked for something else.
        """
        if self.path is None or not self.path.exists():
            return
        try:
            with np.load(self.path, allow_pickle=False) as file:
                values = {name: file[name] for name in file.files}
            meta = json.loads(str(values["meta"]))
            if meta["format"] != FORMAT:
                raise ValueError(meta["format"])
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"checkpoint={os.fspath(self.path)!r} is not the checkpoint of a search") from error
        for name, value in json.loads(json.dumps(self.settings)).items():
            old = meta["settings"].get(name)
            if old != value:
                raise ValueError(
                    f"checkpoint={os.fspath(self.path)!r} belongs to a search with {name}={old!r}, this one has "
                    f"{value!r}; take another file"
                )
        for key in ("templates", "n_bad", "finished"):
            setattr(state, key, meta[key])
        state.faults = {int(n): text for n, text in meta["faults"].items()}
        if "t0s" in values and state.grid is None:
            state.grid = _grid(values, meta["grid"])
        order = list(meta["settings"]["windows"])  # the same windows may come in another order
        for name, ledger in state.ledgers.items():
            i = order.index(name)
            _unpack(ledger, values, f"{i}/", meta["ledgers"][i])
        self._saved = (state.templates, state.finished)

    def save_now_and_then(self, state: State) -> None:
        """Write the file if the time has come."""
        if time.monotonic() >= self._next:
            self.save(state)

    def save(self, state: State) -> None:
        """Write the file under another name and rename it; not amid a chunk, whose counts would come twice."""
        if self.path is None or not state.whole or self._saved == (state.templates, state.finished):
            return
        values: dict[str, Any] = {}
        meta: dict[str, Any] = {"format": FORMAT, "settings": self.settings, "faults": state.faults, "ledgers": []}
        meta |= {key: getattr(state, key) for key in ("templates", "n_bad", "finished")}
        if state.grid is not None:
            g = state.grid
            values |= {"t0s": g.t0s, "taus": g.taus}
            meta["grid"] = [g.t0_band, g.tau_band, g.dt0, g.dtau]
        for i, ledger in enumerate(state.ledgers.values()):
            meta["ledgers"].append({"n_above": ledger.n_above, "n_empty": ledger.n_empty})
            values |= _pack(ledger, f"{i}/")
        values["meta"] = json.dumps(meta)
        with written(self.path) as part:
            np.savez(part, **values)
        self._saved = (state.templates, state.finished)
        self._next = time.monotonic() + self.every


def _grid(values: dict[str, Any], facts: list[Any]) -> Grid:
    t0_band, tau_band, dt0, dtau = facts
    if dt0 is None or dtau is None:
        return Grid.from_lists(values["t0s"], values["taus"])
    return Grid(
        t0=int(values["t0s"][0]), t0_band=t0_band, dt0=dt0, tau=int(values["taus"][0]), tau_band=tau_band, dtau=dtau
    )


def _pack(ledger: Ledger, at: str) -> dict[str, Any]:
    bands = sorted(ledger.bands.items())
    values = {f"{at}best/{name}": column for name, column in ledger.best.items()}
    values[f"{at}histogram"] = ledger.histogram
    values[f"{at}bands"] = np.array([(b, n) for b, (_, n) in bands], np.int64).reshape(-1, 2)
    values[f"{at}loudest"] = np.array([v for _, (v, _) in bands], np.float64)
    for n, (p_t0, p_tau) in ledger.posteriors.items():
        values |= {f"{at}p_t0/{n}": p_t0, f"{at}p_tau/{n}": p_tau}
    return values


def _unpack(ledger: Ledger, values: dict[str, Any], at: str, facts: dict[str, int]) -> None:
    ledger.n_above, ledger.n_empty = facts["n_above"], facts["n_empty"]
    ledger.histogram = values[f"{at}histogram"]
    pairs = zip(values[f"{at}bands"].tolist(), values[f"{at}loudest"].tolist(), strict=True)
    ledger.bands = {b: (v, n) for (b, n), v in pairs}
    ledger.best = {k.removeprefix(f"{at}best/"): v for k, v in values.items() if k.startswith(f"{at}best/")}
    numbers = [k.removeprefix(f"{at}p_t0/") for k in values if k.startswith(f"{at}p_t0/")]
    ledger.posteriors = {int(n): (values[f"{at}p_t0/{n}"], values[f"{at}p_tau/{n}"]) for n in numbers}
