"""``skysieve dedisp search`` of several files, one by one: which files, the outputs, and how a run is resumed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from skysieve.core.command import FAILED_SOME, STDIO, USER_ERROR, Messages, check_output
from skysieve.core.errors import one_line
from skysieve.core.files import expand, is_pattern, save_figure
from skysieve.core.parts import PartsFolder, continues, fingerprint
from skysieve.dedispersion.data.readers import FILE_FORMATS

from .options import output_file

if TYPE_CHECKING:
    from skysieve.dedispersion.clean.masks import Mask
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.single_pulse.candidates import Candidates

SERIES = (".dat", ".tim")
"""Endings of files of time series; these are skipped when a folder is given."""


def stands_for_files(path: Path) -> bool:
    """Whether a name is a folder, or a pattern and no file."""
    return path.is_dir() or is_pattern(path)


def filterbanks(names: Iterable[Path]) -> list[Path]:
    """The filterbank and PSRFITS files that the user's names, folders and patterns select; see `core.files.expand`."""
    return expand(names, {suffix for form in FILE_FORMATS for suffix in form.suffixes} - set(SERIES))


def labels(files: list[Path]) -> list[str]:
    """Short names that differ: paths below the folder that all files share.

    >>> labels([Path("n/a.fil"), Path("n/b/a.fil")])
    ['a.fil', 'b/a.fil']
    """
    whole = [Path(os.path.abspath(f)) for f in files]
    common = os.path.commonpath([f.parent for f in whole])
    return [f.relative_to(common).as_posix() for f in whole]


@dataclass
class Outputs:
    """What is written of each file.

    Attributes
    ----------
    table : Path or None
        One table with a column of files, or a folder for a table of each.
    form : str
        Format of the tables.
    folder : bool
        Whether `table` is a folder.
    plots, cutouts : Path or None
        Folders.
    most : int
        Cut-outs of each file.
    resume, overwrite : bool
    """

    table: Path | None
    form: str
    folder: bool
    plots: Path | None
    cutouts: Path | None
    most: int
    resume: bool
    overwrite: bool

    def check(self, names: list[str]) -> None:
        """Refuse, before any work, what could not be written at its end."""
        replaces = self.overwrite or continues(self.table, self.resume)
        check_output(self.table, replaces, folder=self.folder)
        for name, folder in (("--plot", self.plots), ("--cutouts", self.cutouts)):
            check_output(folder, folder=True)
            if folder is not None and folder.suffix:
                raise ValueError(f"{name} {folder}: expected the name of a folder, because there are several files")
        if replaces:
            return
        for name in names:
            targets = [
                self.table_of(name) if self.folder else None,
                None if self.plots is None else self.plots / f"{name}.png",
                None if self.cutouts is None else self.cutouts / name,
            ]
            for path in targets:
                if path is not None and path.exists():
                    raise FileExistsError(f"{path}: exists; use --overwrite to replace it, or another name")

    def table_of(self, name: str) -> Path:
        """The table of one file."""
        assert self.table is not None
        return self.table / f"{name}.{self.form}"


Search = Callable[["Filterbank"], tuple["Filterbank", "Candidates", "Mask | None"]]
"""Searches the data of a file: the data as they were searched, the candidates, and the mask of all that is masked."""


def search_each(
    files: list[Path], opened: Callable[[list[Path]], Any], search: Search, outputs: Outputs, asked: dict[str, Any],
    messages: Messages,
) -> int:  # fmt: skip
    """Search files one after another; after a file that cannot be searched, the next one follows.

    Parameters
    ----------
    files : list of Path
    opened : callable
        ``opened([file])`` is a context manager whose value is the data.
    search : callable
    outputs : Outputs
    asked : dict
        The options that change candidates, as JSON holds them: a run that continues must have the same.
    messages : Messages

    Returns
    -------
    int
        The exit code.
    """
    from skysieve.dedispersion.single_pulse.files import write_candidates, write_several

    names = labels(files)
    outputs.check(names)
    found: list[tuple[str, Candidates]] = []
    failed = 0
    with ExitStack() as stack:
        parts = None
        if outputs.resume:
            assert outputs.table is not None
            parts = PartsFolder(outputs.table, {"options": json.loads(json.dumps(asked, default=str))})
            stack.callback(parts.close)
            if parts.lock.note:
                messages.say(f"note: {parts.lock.note}")
        for number, (file, name) in enumerate(zip(files, names, strict=True), 1):
            where = f"{number}/{len(files)} {name}"
            try:
                part = None if parts is None else part_of(parts.folder, file)
                before = None if part is None else finished(part)
                if before is not None and (not outputs.folder or outputs.table_of(name).exists()):
                    found.append((name, before))
                    messages.say(f"{where}: was finished before, {len(before)} candidates")
                    continue
                with opened([file]) as fb:
                    clean, one, mask = search(fb)
                    write_pictures(outputs, name, clean, one, mask)
            except (OSError, ValueError, ArithmeticError, MemoryError) as error:
                failed += 1
                text = one_line(error)
                typer.echo(f"skysieve: {text if str(file) in text else f'{file}: {text}'}", err=True)
                continue
            if outputs.folder:
                target = outputs.table_of(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                write_candidates(one, target, outputs.form)
            light = without_events(one)
            if part is not None:
                light.save(part)
            found.append((name, light))
            if outputs.table != STDIO and not messages.quiet:
                loudest = f", S/N {one.snr[0]:.2f} at DM {one.dm[0]:.3f}, {one.time[0]:.6f} s" if len(one) else ""
                typer.echo(f"{where}: {len(one)} candidates{loudest}")
            messages.detail(f"{one.seconds:.2f} s, {one.realtime:.3g} x real time")
        if not found:
            return USER_ERROR
        if outputs.table is not None and not outputs.folder:
            with output_file(outputs.table, f".{outputs.form}") as path:
                write_several(found, path, outputs.form)
        if outputs.table is not None:
            messages.wrote(outputs.table, f"{sum(len(one) for _, one in found)} candidates of {len(found)} files")
        if failed:
            messages.say(f"{failed} of {len(files)} files could not be searched")
        elif parts is not None:
            parts.remove()
    return FAILED_SOME if failed else 0


def write_pictures(outputs: Outputs, name: str, clean: Filterbank, one: Candidates, mask: Mask | None) -> None:
    """The picture and the cut-outs of one file."""
    from skysieve.dedispersion.single_pulse.cutouts import write_cutouts

    if outputs.plots is not None:
        target = outputs.plots / f"{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        save_figure(one.plot(), target, dpi=120)
    if outputs.cutouts is not None and len(one):
        folder = outputs.cutouts / name
        folder.mkdir(parents=True, exist_ok=True)
        write_cutouts(clean, one, folder, most=outputs.most, mask=mask)


def part_of(folder: Path, file: Path) -> Path:
    """Where the candidates of a file are kept: by its name, size and time of change."""
    digest = hashlib.sha256(json.dumps(fingerprint(file)).encode()).digest()
    return folder / f"{int.from_bytes(digest[:8]):020d}.npz"


def finished(part: Path) -> Candidates | None:
    """The candidates of a finished file; None if it is not finished, or the disk has damaged what was kept."""
    from skysieve.dedispersion.single_pulse.candidates import Candidates

    if not part.exists():
        return None
    try:
        return Candidates.load(part)
    except (ValueError, EOFError):
        part.unlink()
        return None


def without_events(one: Candidates) -> Candidates:
    """The same candidates without their events, which only two formats of tables hold."""
    from dataclasses import fields

    events = replace(one.events, **{f.name: getattr(one.events, f.name)[:0] for f in fields(one.events)})
    return replace(one, events=events, group=np.empty(0, np.int64))
