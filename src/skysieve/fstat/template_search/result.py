"""The result of a search (best templates, histogram, loudest template of each band) and its files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import one_of
from skysieve.core.files import write_parquet, written
from skysieve.core.result import Result
from skysieve.core.table_files import FORMATS as TABLE_FORMATS
from skysieve.core.table_files import Table as FileTable
from skysieve.core.table_files import TableFormat, ascii_text, check_format, json_text
from skysieve.fstat.archive import GRID, JSON, pack, read_archive, unpack
from skysieve.fstat.inputs.grid import Grid

from .checkpoint import FAULTS, LEDGERS
from .columns import unit
from .ledger import HISTOGRAM_EDGES, Ledger, Rows, join

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["FORMATS", "SearchResult"]

CONTENT = "skysieve.fstat.SearchResult 2"
"""Value that identifies ``.npz`` files written by `SearchResult.save`."""
FEWEST_BANDS = 16
"""Fewest bands from which `SearchResult.expected_loudest` is computed."""


@dataclass(frozen=True, repr=False, eq=False)
class SearchResult(Result):
    """The outcome of a search over many templates.

    Attributes
    ----------
    ledgers : dict of str to Ledger
        Counts, histogram and best templates, for each window.
    n_templates, n_bad : int
        Number of templates searched, and number of those that were left out because of their values.
    faults : dict of int to str
        Errors of the first thousand bad templates, by the number of the template.
    grid : Grid or None
    statistic : str
        The statistic that ranks the templates.
    threshold : float or None
    band, band_width : str or None, float
        The parameter that is divided into bands (None: the template's number) and the width of a band.
    settings : dict
        The options of the search.
    """

    ledgers: dict[str, Ledger] = field(metadata=LEDGERS)
    n_templates: int = field(metadata=JSON)
    n_bad: int = field(metadata=JSON)
    faults: dict[int, str] = field(metadata=FAULTS)
    grid: Grid | None = field(metadata=GRID)
    statistic: str = field(metadata=JSON)
    threshold: float | None = field(metadata=JSON)
    band: str | None = field(metadata=JSON)
    band_width: float = field(metadata=JSON)
    settings: dict[str, Any] = field(metadata=JSON)

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
        """Columns of the table of the best templates: for one window, or for all windows one after the other.

        The columns are ``template`` (the number in the stream, from 0), ``window``, the parameters of the batches, and
        those in `skysieve.fstat.template_search.columns.COLUMNS`: ``max2F``, ``t0_ml``, ``tau_ml``, ``lnBtSG``,
        ``n_fallback``, and with BSGL ``log10BSGL``, ``t0_bsgl``, ``tau_bsgl``, ``twoF_bsgl`` and ``twoF_H1_bsgl`` ...
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
        for name in table.colnames:
            if (found := unit(name)) is not None:
                table[name].unit = found
        table.meta.update(self.settings | self._counts())
        return table

    def histogram(self, window: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Edges (the last is infinite) and counts of max 2F over all templates."""
        return np.append(HISTOGRAM_EDGES, np.inf), self.ledgers[window].histogram

    def bands(self, window: str) -> dict[str, NDArray[Any]]:
        """The loudest template of each band: lower edge of the band, max 2F and number of the template."""
        found = sorted(self.ledgers[window].bands.items())
        return {
            "band": np.array([b * self.band_width for b, _ in found], np.float64),
            "max2F": np.array([v for _, (v, _) in found], np.float64),
            "template": np.array([n for _, (_, n) in found], np.int64),
        }

    def expected_loudest(self, window: str) -> tuple[float, float] | None:
        """Largest 2F that noise alone would have in this search: its mean and standard deviation.

        Returns
        -------
        mean, deviation : float
            None with fewer than `FEWEST_BANDS` bands, or if `exceeds_noise`.

        Notes
        -----
        The largest 2F of the bands follow a Gumbel distribution, whose location and scale are computed from the
        quartiles; signals and lines in a few bands change these little.  For the largest of `n` bands, the scale is the
        same and the location is higher by ``ln n`` times the scale.  Correlated templates are mostly in the same band
        and need no correction [1]_.

        References
        ----------
        .. [1] Tenorio, Modafferi, Keitel & Sintes 2022, Phys. Rev. D 105, 044029
        """
        return None if self.exceeds_noise(window) else self._gumbel(window)

    def exceeds_noise(self, window: str) -> bool:
        """Whether the bands are louder than noise can make them, as in a narrow search around a signal.

        Notes
        -----
        In Gaussian noise 2F of a cell exceeds ``x`` with the probability ``(1 + x / 2) exp(-x / 2)``.  This times the
        number of cells of all templates bounds the probability for the loudest one, also if cells are correlated, and
        its integral bounds the expected loudest 2F.  True if the mean of the Gumbel distribution, less its standard
        deviation, is above that bound.  In Gaussian noise this happens in 1% of the searches with `FEWEST_BANDS` bands
        and templates that are not correlated, and more rarely with more bands or correlated templates.
        """
        found = self._gumbel(window)
        if found is None:
            return False
        from scipy.special import gammainccinv

        cells = 1 if self.grid is None or window == "none" else len(self.grid.t0s) * len(self.grid.taus)
        half = float(gammainccinv(2, 1 / (cells * (self.n_templates - self.n_bad))))
        return found[0] - found[1] > 2 * half + 2 * (2 + half) / (1 + half)

    def _gumbel(self, window: str) -> tuple[float, float] | None:
        """Mean and standard deviation of the loudest of all bands; None with fewer than `FEWEST_BANDS`."""
        values = self.bands(one_of("window", window, self.windows))["max2F"]
        if len(values) < FEWEST_BANDS:
            return None
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        width = (high - low) / (np.log(np.log(4)) - np.log(np.log(4 / 3)))
        place = middle + width * np.log(np.log(2)) + width * np.log(len(values))
        return float(place + np.euler_gamma * width), float(np.pi / np.sqrt(6) * width)

    def posterior(self, window: str, template: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Posterior probabilities of the start times and of the durations of one of the best templates.

        Raises
        ------
        ValueError
            The posteriors of this template were not kept.
        """
        found = self.ledgers[window].posteriors
        if template not in found:
            raise ValueError(
                f"template={template}: posteriors are kept only for templates {sorted(found) or 'none'} (posteriors=)"
            )
        return found[template]

    def save(self, path: str | os.PathLike[str], *, format: str | None = None) -> None:
        """Write the result to a file; the file appears complete or not at all.

        ``.npz`` holds everything and is read by `load`.  The other formats hold the table: ``.parquet`` with histograms
        and bands in its metadata (JSON under ``skysieve``), ``.fits`` with histograms, bands and posteriors as further
        tables, ``.json`` with histograms and bands beside the rows, ``.csv`` and ``.ecsv`` without additions.

        Parameters
        ----------
        path : path
        format : str, optional
            Format, named by its file extension without the dot; by default the extension of `path`.

        Raises
        ------
        ValueError
            There is no such format.
        OSError
            The file cannot be written.
        """
        kind = check_format(path, format, FORMATS)
        columns = self.columns()
        units = {name: found for name in columns if (found := unit(name)) is not None}
        with written(path) as part:
            kind.write(FileTable(columns, units, self.settings | self._counts(), self), part)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SearchResult:
        """Read a result that `save` wrote as ``.npz``.

        Raises
        ------
        ValueError
            `save` did not write the file.
        """
        return cls(**unpack(cls, read_archive(Path(path), CONTENT)))

    def _counts(self) -> dict[str, Any]:
        expected = {w: self.expected_loudest(w) for w in self.windows}
        return {"n_templates": self.n_templates, "n_bad": self.n_bad, "expected_loudest": expected}

    def _facts(self) -> dict[str, Any]:
        bands = {w: {k: v.tolist() for k, v in self.bands(w).items()} for w in self.windows}
        counts = {w: self.ledgers[w].histogram.tolist() for w in self.windows}
        facts = self._counts() | {"faults": self.faults}
        return (
            self.settings | facts | {"histogram_edges": HISTOGRAM_EDGES.tolist(), "histogram": counts, "bands": bands}
        )

    def plot(self, **options: Any) -> Figure:
        """Draw the histogram of max 2F and the loudest template of each band.

        Parameters
        ----------
        **options
            See `skysieve.fstat.template_search.plot.search_figure`.
        """
        from .plot import search_figure

        return search_figure(self, **options)


def _write_npz(table: FileTable, path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, content=CONTENT, **pack(table.source))


def _write_parquet(table: FileTable, path: Path) -> None:
    write_parquet(table.columns, path, units=table.units, facts={"skysieve": json.dumps(table.source._facts())})


def _write_json(table: FileTable, path: Path) -> None:
    columns = {name: column.tolist() for name, column in table.columns.items()}
    for column in columns.values():
        column[:] = [None if value != value else value for value in column]  # JSON has no NaN
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text(json_text(table.source._facts() | {"rows": rows}) + "\n", encoding="utf-8")


def _write_fits(table: FileTable, path: Path) -> None:
    from astropy.io import fits
    from astropy.table import Table

    result: SearchResult = table.source
    best = result.to_table()
    best.meta = {}
    best.convert_unicode_to_bytestring()  # astropy writes text as ASCII; bytes keep UTF-8
    hdus = [fits.PrimaryHDU(), fits.table_to_hdu(best)]
    hdus[1].name = "BEST"
    for key, value in (result.settings | result._counts()).items():
        hdus[1].header.add_history(ascii_text(f"{key}: {value}"))
    for w in result.windows:
        parts = {
            "HISTOGRAM": {"from": HISTOGRAM_EDGES, "count": result.ledgers[w].histogram},
            "BANDS": result.bands(w),
        }
        found = sorted(result.ledgers[w].posteriors.items())
        if found:
            parts["POSTERIOR"] = {
                "template": np.array([n for n, _ in found]),
                "p_t0": np.stack([p[0] for _, p in found]),
                "p_tau": np.stack([p[1] for _, p in found]),
            }
        for name, columns in parts.items():
            hdu = fits.table_to_hdu(Table(columns))
            hdu.name = ascii_text(f"{name}_{w}".upper())
            hdus.append(hdu)
    fits.HDUList(hdus).writeto(path, overwrite=True)


FORMATS: dict[str, TableFormat] = {
    "npz": TableFormat("npz", "all of the result, for `SearchResult.load`", _write_npz),
    "parquet": replace(TABLE_FORMATS["parquet"], write=_write_parquet),
    "fits": replace(TABLE_FORMATS["fits"], write=_write_fits),
    "csv": TABLE_FORMATS["csv"],
    "ecsv": TABLE_FORMATS["ecsv"],
    "json": replace(TABLE_FORMATS["json"], write=_write_json),
}
"""File formats of a result by extension: those of `core.table_files`, of which some hold more than the table."""
