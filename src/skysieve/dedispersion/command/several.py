"""``skysieve dedisp search`` of several files, each on its own: choice of files, outputs, and resumption of a run."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import typer

from skysieve.core.command import (
    FAILED_SOME,
    STDIO,
    USER_ERROR,
    Messages,
    check_output,
    counted,
    drop_stdout,
    with_option,
)
from skysieve.core.device import resolve
from skysieve.core.errors import one_line
from skysieve.core.files import expand, is_pattern, save_figure
from skysieve.core.parts import PartsFolder, continues, fingerprint
from skysieve.dedispersion.data.readers import FOLDER_SUFFIXES

from .options import DM_NAMES, output_file

if TYPE_CHECKING:
    from skysieve.dedispersion.clean.masks import Mask
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.single_pulse.candidates import Candidates

R = TypeVar("R")


def stands_for_files(path: Path) -> bool:
    """Whether a name is a folder, or a pattern and no file."""
    return path.is_dir() or is_pattern(path)


def filterbanks(names: Iterable[Path]) -> list[Path]:
    """The filterbank and PSRFITS files that the user's names, folders and patterns select; see `core.files.expand`."""
    return expand(names, FOLDER_SUFFIXES)


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
    """The outputs of a search of several files.

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
        """Refuse, before any work, outputs that could not be written at the end."""
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


Search = Callable[["Filterbank", str, bool], tuple["Filterbank", "Candidates", "Mask | None"]]
"""A function that searches the data of a file on a device, with or without a progress bar.  It returns the data as they
were searched, the candidates, and the mask of all masked cells."""


def search_each(
    files: list[Path], opened: Callable[[list[Path]], Any], search: Search, outputs: Outputs, asked: dict[str, Any],
    messages: Messages, device: str, limited: bool,
) -> int:  # fmt: skip
    """Search files, one after another or several at a time on GPUs; files that cannot be searched do not end the run.

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
    device : str
        Where to compute.  Each of several GPUs searches its own files.
    limited : bool
        Whether the user limits the memory of a search: each GPU then searches one file at a time.

    Returns
    -------
    int
        The exit code.
    """
    names = labels(files)
    outputs.check(names)
    with ExitStack() as stack:
        parts = None
        if outputs.resume:
            assert outputs.table is not None
            parts = PartsFolder(outputs.table, {"options": json.loads(json.dumps(asked, default=str))})
            stack.callback(parts.close)
            if parts.lock.note:
                messages.say(f"note: {parts.lock.note}")
        run = _Run(files, names, outputs, messages)
        left = run.resume(None if parts is None else parts.folder)
        devices = devices_for(device, [files[number] for number in left], limited)
        if devices[0].startswith("cuda"):
            messages.detail(f"{len(devices)} files at a time are searched on {', '.join(dict.fromkeys(devices))}")
        work = _searcher(files, names, opened, search, outputs, alone=len(devices) == 1)
        results = stack.enter_context(closing(results_of(work, list(left), devices)))
        for (number, part), result in zip(left.items(), results, strict=True):
            run.take(number, part, result)
        if not run.found:
            return USER_ERROR
        run.write_table()
        if run.failed:
            messages.say(f"{run.failed} of {counted(len(files), 'file')} could not be searched, or drawn")
        elif parts is not None:
            parts.remove()
    return FAILED_SOME if run.failed else 0


def _searcher(
    files: list[Path], names: list[str], opened: Callable[[list[Path]], Any], search: Search, outputs: Outputs,
    alone: bool,
) -> Callable[[int, str], tuple[Candidates, Exception | None]]:  # fmt: skip
    """Return a function that searches a file on a device and draws it.

    The function returns the candidates, and the error if they could not be drawn.  ``alone``: files are searched one
    after another, with a progress bar.
    """
    drawing = Lock()

    def searched(number: int, device: str) -> tuple[Candidates, Exception | None]:
        with opened([files[number]]) as fb:
            clean, one, mask = search(fb, device, alone)
            try:
                with drawing:
                    write_pictures(outputs, names[number], clean, one, mask)
            except FILE_ERRORS as error:  # the candidates are written all the same
                return one, error
        return one, None

    return searched


class _Run:
    """The candidates of the files of a run, what is printed about them, and the tables.

    Attributes
    ----------
    found : dict of int to Candidates
        The candidates of each file that is finished, without events.
    failed : int
        Number of files that could not be searched, or drawn.
    """

    def __init__(self, files: list[Path], names: list[str], outputs: Outputs, messages: Messages) -> None:
        self.files, self.names, self.outputs, self.messages = files, names, outputs, messages
        self.found: dict[int, Candidates] = {}
        self.failed = 0
        self._shown = outputs.table != STDIO and not messages.quiet

    def resume(self, folder: Path | None) -> dict[int, Path | None]:
        """Take the files that an earlier run finished.

        Returns
        -------
        dict of int to Path or None
            The files that are left to search, and where the candidates of each are to be stored in ``folder``.
        """
        left: dict[int, Path | None] = {}
        for number, file in enumerate(self.files):
            try:
                part = None if folder is None else part_of(folder, file)
                before = None if part is None else finished(part)
            except FILE_ERRORS as error:
                self._report(number, error)
                continue
            if before is not None and (not self.outputs.folder or self.outputs.table_of(self.names[number]).exists()):
                self.found[number] = before
                self.messages.say(f"{self._where(number)}: was finished before, {counted(len(before), 'candidate')}")
            else:
                left[number] = part
        return left

    def take(self, number: int, part: Path | None, result: Callable[[], tuple[Candidates, Exception | None]]) -> None:
        """Take the result of a file: write its table, store its candidates in ``part``, and print them."""
        from skysieve.dedispersion.single_pulse.files import write_candidates

        try:
            one, not_drawn = result()
        except FILE_ERRORS as error:
            self._report(number, error)
            return
        if not_drawn is not None:
            self._report(number, not_drawn)
        if self.outputs.folder:
            target = self.outputs.table_of(self.names[number])
            target.parent.mkdir(parents=True, exist_ok=True)
            write_candidates(one, target, self.outputs.form)
        self.found[number] = light = without_events(one)
        if part is not None and not_drawn is None:  # otherwise --resume searches it again, and draws it
            light.save(part)
        self._show(number, one)

    def write_table(self) -> None:
        """Write the table of all files, unless each has its own."""
        from skysieve.dedispersion.single_pulse.files import write_several

        table, found = self.outputs.table, self.found
        if table is None:
            return
        if not self.outputs.folder:
            with output_file(table, f".{self.outputs.form}") as path:
                write_several(
                    [(self.names[number], found[number]) for number in sorted(found)], path, self.outputs.form
                )
        self.messages.wrote(
            table, f"{counted(sum(map(len, found.values())), 'candidate')} of {counted(len(found), 'file')}"
        )

    def _show(self, number: int, one: Candidates) -> None:
        if self._shown:
            loudest = f", S/N {one.snr[0]:.2f} at DM {one.dm[0]:.3f}, {one.time[0]:.6f} s" if len(one) else ""
            try:
                typer.echo(f"{self._where(number)}: {counted(len(one), 'candidate')}{loudest}")
            except OSError:  # nobody reads it, or its disk is full: the table is written all the same
                if self.outputs.table is None:
                    raise
                self._shown = False
                drop_stdout()
        self.messages.detail(f"{one.seconds:.2f} s, {one.realtime:.3g} x real time")

    def _report(self, number: int, error: Exception) -> None:
        """Count and print an error of a file."""
        self.failed += 1
        text, file = with_option(one_line(error), DM_NAMES), str(self.files[number])
        typer.echo(f"skysieve: {text if file in text else f'{file}: {text}'}", err=True)

    def _where(self, number: int) -> str:
        return f"{number + 1}/{len(self.files)} {self.names[number]}"


FILE_ERRORS = OSError, ValueError, ArithmeticError, MemoryError
"""Errors in the search of a file that do not end the run: the next file is searched."""
BYTES_EACH = 4e9
"""Bytes of files for each further GPU.  Its first search begins 0.4 s later, and the GPUs share Python's lock: on two
H200s eight files of 0.24 GB take 2.39 s instead of 2.29, and eight of 0.96 GB with a pulse each second 3.6 instead of
4.4."""
AT_ONCE = 2
"""Files that are searched at the same time on each GPU.  One H200 takes 0.062 instead of 0.086 s for a file of 0.24 GB
with a pulse each second, 0.11 instead of 0.15 s for files of 0.96 GB, and 0.036 instead of 0.042 s for files of 0.24 GB
with one pulse; no less with three at a time."""
BYTES_AT_ONCE = 4e9
"""Largest file that is searched beside another one on the same GPU: a larger one keeps the GPU busy by itself."""
AHEAD = 2
"""Number of files for each search at a time that are being searched or wait until earlier files are written."""


def devices_for(device: str, files: Sequence[Path], limited: bool = False) -> list[str]:
    """The device of each search at a time: the requested device, or the GPUs that speed up these files.

    Each GPU stands `AT_ONCE` times in the list, except where the memory of a search is ``limited``.
    """
    if len(files) < 2:
        return [device]
    gpus = [found for found in resolve(device) if found.kind == "cuda"]
    if not gpus:
        return [device]
    sizes = [file.stat().st_size for file in files if file.exists()]
    used = [f"cuda:{gpu.index}" for gpu in gpus[: 1 + int(sum(sizes) / BYTES_EACH)]]
    together = 1 if limited or max(sizes, default=0) > BYTES_AT_ONCE else AT_ONCE
    return (together * used)[: len(files)]


def results_of(work: Callable[[int, str], R], numbers: list[int], devices: Sequence[str]) -> Generator[Callable[[], R]]:
    """Yield, for each number, a function that returns its result or raises its error.

    ``work(number, device)`` runs in the caller's thread if ``devices`` has one entry, otherwise in a thread for each
    entry, which takes the next number when it is idle.
    """
    if len(devices) == 1:
        for number in numbers:
            yield partial(work, number, devices[0])
        return
    idle: SimpleQueue[str] = SimpleQueue()
    for device in devices:
        idle.put(device)

    def run(number: int) -> R:
        device = idle.get()
        try:
            return work(number, device)
        finally:
            idle.put(device)

    coming: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(len(devices), "skysieve-file")
    try:
        for number in numbers:
            if len(coming) == AHEAD * len(devices):
                yield coming.popleft().result
            coming.append(pool.submit(run, number))
        while coming:
            yield coming.popleft().result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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
    """The path at which the candidates of a file are stored, from its name, size and modification time."""
    digest = hashlib.sha256(json.dumps(fingerprint(file)).encode()).digest()
    return folder / f"{int.from_bytes(digest[:8]):020d}.npz"


def finished(part: Path) -> Candidates | None:
    """The stored candidates of a finished file; None if it is not finished, or if the stored data are damaged."""
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
