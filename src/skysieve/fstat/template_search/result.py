"""What a search gives back: the table of the best templates, the histogram, the loudest of each band; its files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import one_of
from skysieve.fstat.inputs.grid import Grid

from .ledger import HISTOGRAM_EDGES, Ledger, Rows, join

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["SearchResult"]

FORMATS = (".parquet", ".fits", ".csv", ".ecsv")
UNITS = {"t0_ml": "s", "tau_ml": "s", "t0_bsgl": "s", "tau_bsgl": "s"}


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The outcome of a search over many templates.

    Attributes
    ----------
    n_templates, n_bad : int
        Templates seen, and those left out because of their values.
    faults : dict of int to str
        Number of a bad template to what is wrong; the first thousand.
    windows : tuple of str
    grid : Grid or None
    statistic : str
        By which templates are ranked.
    threshold : float or None
    band, band_width : str or None, float
        Parameter that the bands divide (None: the template's number) and their width.
    settings : dict
        What was asked, for the files.
    """

    ledgers: dict[str, Ledger]
    n_templates: int
    n_bad: int
    faults: dict[int, str]
    grid: Grid | None
    statistic: str
    threshold: float | None
    band: str | None
    band_width: float
    settings: dict[str, Any]

    @property
    def windows(self) -> tuple[str, ...]:
        """Names of the windows."""
        return tuple(self.ledgers)

    def __repr__(self) -> str:
        loud = ", ".join(f"{w} {self._loudest(w)}" for w in self.windows)
        bad = f", {self.n_bad:,} bad" if self.n_bad else ""
        return f"<SearchResult: {self.n_templates:,} templates{bad}; loudest 2F: {loud}>"

    def _loudest(self, window: str) -> str:
        bands = self.ledgers[window].bands.values()
        return f"{max(v for v, _ in bands):.2f}" if bands else "none"

    def columns(self, window: str | None = None) -> dict[str, NDArray[Any]]:
        """Columns of the table of the best templates, of one window or of all, one after the other.

        ``template`` (number in the stream, from 0), the batches' ``params``, ``window``, ``max2F``, ``t0_ml``,
        ``tau_ml``, ``lnBtSG``, ``n_fallback``; with BSGL ``log10BSGL`` (the largest of all cells), ``t0_bsgl``,
        ``tau_bsgl`` (its cell), and 2F of all detectors and of each in that cell.
        """
        if window is not None:
            one_of("window", window, self.windows)
        names = self.windows if window is None else (window,)
        parts: list[Rows] = [self.ledgers[w].best for w in names]
        out: Rows = {}
        for p in filter(None, parts):
            out = join(out, p)
        out = {key: column for key, column in out.items() if key != "statistic"}
        counts = [len(p["number"]) if p else 0 for p in parts]
        rows = {"template": out.pop("number", np.zeros(0, np.int64))}
        rows["window"] = np.repeat(np.array(names), counts)
        return rows | out

    def to_table(self, window: str | None = None) -> Table:
        """The table of the best templates; see `columns`."""
        from astropy.table import Table

        table = Table(self.columns(window))
        for name, unit in UNITS.items():
            if name in table.colnames:
                table[name].unit = unit
        table.meta.update(self.settings | {"n_templates": self.n_templates, "n_bad": self.n_bad})
        return table

    def histogram(self, window: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Edges (the last infinite) and counts of max 2F over all templates."""
        return np.append(HISTOGRAM_EDGES, np.inf), self.ledgers[window].histogram

    def bands(self, window: str) -> dict[str, NDArray[Any]]:
        """Loudest template of each band: its lower edge, max 2F, number."""
        found = sorted(self.ledgers[window].bands.items())
        return {
            "band": np.array([b * self.band_width for b, _ in found], np.float64),
            "max2F": np.array([v for _, (v, _) in found], np.float64),
            "template": np.array([n for _, (_, n) in found], np.int64),
        }

    def posterior(self, window: str, template: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Posterior probabilities of the start times and of the durations of one of the best templates.

        Raises
        ------
        ValueError
            If they were not kept.
        """
        found = self.ledgers[window].posteriors
        if template not in found:
            raise ValueError(f"template={template}: posteriors are kept of {sorted(found) or 'none'} (posteriors=)")
        return found[template]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to ``.parquet``, ``.fits``, ``.csv`` or ``.ecsv``; the file appears whole or not at all.

        FITS holds histograms, bands and posteriors as further tables; Parquet holds histograms and bands in its
        metadata, as JSON under ``skysieve``.

        Raises
        ------
        ValueError
            For another ending.
        """
        from skysieve.core.files import write_parquet, written

        check_path(path)
        suffix = Path(path).suffix.lower()
        with written(path) as part:
            if suffix == ".parquet":
                write_parquet(self.columns(), part, facts={"skysieve": json.dumps(self._facts())})
            elif suffix == ".fits":
                self._fits(part)
            else:
                self.to_table().write(part, format=f"ascii{suffix}", overwrite=True)

    def _facts(self) -> dict[str, Any]:
        bands = {w: {k: v.tolist() for k, v in self.bands(w).items()} for w in self.windows}
        counts = {w: self.ledgers[w].histogram.tolist() for w in self.windows}
        facts = {"n_templates": self.n_templates, "n_bad": self.n_bad, "faults": self.faults}
        return (
            self.settings | facts | {"histogram_edges": HISTOGRAM_EDGES.tolist(), "histogram": counts, "bands": bands}
        )

    def _fits(self, path: Path) -> None:
        from astropy.io import fits
        from astropy.table import Table

        table = self.to_table()
        table.meta = {}
        hdus = [fits.PrimaryHDU(), fits.table_to_hdu(table)]
        hdus[1].name = "BEST"
        for key, value in (self.settings | {"n_templates": self.n_templates, "n_bad": self.n_bad}).items():
            hdus[1].header.add_history(f"{key}: {value}")
        for w in self.windows:
            parts = {
                "HISTOGRAM": {"from": HISTOGRAM_EDGES, "count": self.ledgers[w].histogram},
                "BANDS": self.bands(w),
            }
            found = sorted(self.ledgers[w].posteriors.items())
            if found:
                parts["POSTERIOR"] = {
                    "template": np.array([n for n, _ in found]),
                    "p_t0": np.stack([p[0] for _, p in found]),
                    "p_tau": np.stack([p[1] for _, p in found]),
                }
            for name, columns in parts.items():
                hdu = fits.table_to_hdu(Table(columns))
                hdu.name = f"{name}_{w}".upper()
                hdus.append(hdu)
        fits.HDUList(hdus).writeto(path, overwrite=True)

    def plot(self) -> Figure:
        """Draw the histogram of max 2F and the loudest of each band."""
        from skysieve.fstat.result import plot

        return plot.search_figure(self)


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a name that no table can be written to."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in one of {', '.join(FORMATS)}")
    if not target.parent.is_dir():
        raise ValueError(f"path={os.fspath(path)!r}: there is no folder {target.parent}")
