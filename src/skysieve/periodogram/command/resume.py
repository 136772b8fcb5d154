"""Files of the finished parts of a long run, from which an interrupted run continues; see `core.parts`.

The folder holds the partitions of each file, and the answers of each finished one.  A part that was damaged on the disk
is searched again.
"""

from __future__ import annotations

import io
import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.files import written
from skysieve.core.parts import InUse, OtherRun, PartsFolder, files_of, read_json
from skysieve.core.result import npz_arrays
from skysieve.periodogram.survey import Found

if TYPE_CHECKING:
    from skysieve.periodogram.lightcurves.io import LightCurves
    from skysieve.periodogram.lightcurves.stream import CurveStream

__all__ = ["CUT", "PARTITION", "PARTITION_ROWS", "InUse", "OtherRun", "Parts", "files_of"]

PARTITION, PARTITION_ROWS = 20_000, 4_000_000
"""Objects and rows of a partition: seconds to a minute of work."""
CUT = "rows of large Parquet files, objects of others"
"""The unit of the edges of partitions.  It is stored, so that a run does not continue from parts with other edges:
earlier versions counted objects in all files."""


class Parts(PartsFolder):
    """The partitions of one run."""

    def edges(self, file: int) -> list[int] | None:
        """Where the partitions of a file start (and the last ends), if the file was cut before."""
        path = self.folder / f"{file:05d}.json"
        edges = read_json(path) if path.exists() else None
        if not isinstance(edges, list) or not all(isinstance(edge, int) for edge in edges):
            return None  # a damaged list is made again, and is the same
        return edges if edges[:1] == [0] and edges == sorted(set(edges)) else None

    def cut(self, file: int, curves: LightCurves | CurveStream, objects: int) -> list[int]:
        """Cut a file into partitions, or find where it was cut."""
        known = self.edges(file)
        if known is not None:
            return known
        edges = curves.edges(objects, PARTITION_ROWS)
        with written(self.folder / f"{file:05d}.json") as part:
            part.write_text(json.dumps(edges), encoding="utf-8")
        return edges

    def complete(self, file: int) -> int:
        """Number of partitions of a file if all of them are done, else 0."""
        edges = self.edges(file)
        if edges is None:
            return 0
        n = len(edges) - 1
        return n if all(self.load(file, k) is not None for k in range(n)) else 0

    def _path(self, file: int, k: int) -> Path:
        return self.folder / f"{file:05d}-{k:06d}.npz"

    def load(self, file: int, k: int) -> Found | None:
        """Results of a partition; None if it is unfinished or damaged (removed, and listed in ``damaged``)."""
        path = self._path(file, k)
        if not path.exists():
            return None
        try:
            held = npz_arrays(path)
            return Found(**{f.name: held[f.name] for f in fields(Found)})
        except (KeyError, ValueError):
            path.unlink()
            self.damaged.append(path.name)
            return None

    def save(self, file: int, k: int, found: Found) -> None:
        """Write the answers of a partition."""
        arrays = {f.name: getattr(found, f.name) for f in fields(Found)}
        whole = io.BytesIO()  # the ZIP archive tries to write again when it is deleted
        np.savez(whole, **{n: a.astype(str) if a.dtype.kind == "O" else a for n, a in arrays.items()})
        with written(self._path(file, k)) as part:
            part.write_bytes(whole.getvalue())
