"""Periods of the light curves of an LSDB catalogue (HATS), a partition at a time.

`periods` is a function for ``catalog.map_partitions`` of LSDB, which calls it with one partition: a data frame with
one row for each object and the light curves in a nested column (nested-pandas) or in columns of lists.  LSDB makes the
tasks, and Dask runs them; nothing here imports either of them.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import whole
from skysieve.core.errors import install_hint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skysieve.periodogram.lightcurves.io import LightCurves
    from skysieve.periodogram.survey import Found, Request

__all__ = ["meta", "periods"]

REFUSED = ("frequency", "return_power", "nan_policy", "grid")
"""Options of `skysieve.LombScarglePlan` that do not fit a result with one row for each object."""


def periods(
    partition: Any,
    nested: str | None = None,
    t: str | None = None,
    y: str | None = None,
    dy: str | None = None,
    bands: str | None = None,
    *,
    band: str | None = None,
    flags: Sequence[str] | None = None,
    quality_mask: int | None = None,
    columns: Sequence[str] | None = None,
    prefix: str = "",
    n_peaks: int = 1,
    threads: int | None = 1,
    **options: Any,
) -> Any:
    """Find the period of every object of a partition: the function for ``catalog.map_partitions``.

    Parameters
    ----------
    partition : NestedFrame or DataFrame
        One row for each object.  Its light curve is in a nested column (nested-pandas), in a column of structs of lists
        or of lists of structs (Arrow), or in columns of lists of equal lengths.
    nested : str, optional
        Name of the nested column.  The default is the first one that holds times and values.
    t, y, dy, bands : str, optional
        Fields of the nested column, or columns of lists: times, values, their errors, bands.  Those that are not named
        are found by their usual names, as by ``skysieve period``; `bands` may also be a column with one band an object.
        Times are in days.
    band : str, optional
        Use the rows of this band only.  The default is all bands, which are searched together as by
        `skysieve.lombscargle_multiband`.
    flags : sequence of str, optional
        Fields of quality flags; none for an empty list.  The default is to find them by their usual names.
    quality_mask : int, optional
        Leave out rows whose flags have one of these bits.  The default is what the survey recommends.
    columns : sequence of str, optional
        Columns of the partition to copy to the result.  The default is all columns without light curves.  LSDB needs
        the columns of right ascension and declination.
    prefix : str
        Beginning of the names of the new columns.
    n_peaks : int
        Peaks of each object.
    threads : int or None
        Threads of one partition; None for all cores.  The default is one, because Dask runs several partitions at the
        same time.
    **options
        ``fmin``, ``fmax``, ``nf``, ``samples_per_peak``, ``nyquist_factor``, ``fit_mean``, ``center_data``, ``nterms``,
        ``normalization``, ``method``, ``device``, ``dtype``, ``memory`` as for `skysieve.lombscargle`; with several
        bands also ``model`` of `skysieve.lombscargle_multiband`, or "none" to search all rows as one series.  As in
        ``skysieve period``, an end of the range that is not given is "auto", there are 10 samples a peak, and several
        bands are fitted with two terms and a mean for each band; here also if each object has rows of one band only.

    Returns
    -------
    NestedFrame or DataFrame
        The rows and the index of `partition` with the columns ``status``, ``n_used``, ``n_dropped``, ``method``,
        ``period`` (days), ``period_error``, ``frequency``, ``frequency_error``, ``power``, ``fap``, ``alias`` of the
        table of ``skysieve period``; those of further peaks end in _2, _3, ...  An empty partition gives an empty frame
        with the same columns and types, so that LSDB finds `meta` itself.

    Raises
    ------
    TypeError
        For an option that does not exist.
    ValueError
        For a column or a field that does not exist, for a new column that the partition has already, and for values
        of options as `skysieve.lombscargle` raises.

    Notes
    -----
    Rows of a light curve with a missing time, value, error or band are left out and counted in ``n_dropped``.  An
    object without enough rows, or whose lists differ in length, has NaN for a period and a ``status`` that says why.

    Examples
    --------
    >>> import numpy as np, pandas as pd, pyarrow as pa, skysieve.lsdb
    >>> t = np.sort(np.random.default_rng(1).uniform(0, 30, 80))
    >>> table = pa.table({"star": [7, 8], "mjd": [t, t], "mag": [np.sin(6 * t), np.sin(3 * t)]})
    >>> stars = table.to_pandas(types_mapper=pd.ArrowDtype)
    >>> found = skysieve.lsdb.periods(stars, fmin=0.1, fmax=2)
    >>> found[["star", "status", "period"]].round(3)
       star status  period
    0     7     ok   1.047
    1     8     ok   2.094

    With LSDB (the names of the nested column and of its fields are those of ZTF DR22)::

        stars = lsdb.open_catalog("ztf_dr22", columns=["objectid", "objra", "objdec", "lightcurve"])
        stars.map_partitions(skysieve.lsdb.periods, "lightcurve", "hmjd", "mag", "magerr").to_hats("periods")
    """
    request = _request(n_peaks, threads, options)
    nested_names = _nested_columns(partition)
    kept = [c for c in partition.columns if c not in nested_names] if columns is None else list(columns)
    missing = [c for c in kept if c not in partition.columns]
    if missing:
        raise ValueError(f"columns={missing[0]!r}: expected one of {', '.join(map(str, partition.columns))}")
    named = {"id": None, "time": t, "mag": y, "err": dy, "band": bands}
    rows = _light_curves(partition, nested, named, band, None if flags is None else tuple(flags), quality_mask)
    found = _answers(rows, request)
    new = _frame_columns(found, request, prefix)
    twice = [name for name in new if name in kept]
    if twice:
        raise ValueError(f"the partition has a column {twice[0]!r} already: expected another prefix, or other columns")
    return partition[kept].assign(**new)


def meta(partition: Any, *arguments: Any, **options: Any) -> Any:
    """Return the empty frame with the columns and types that `periods` gives for the same arguments.

    ``catalog.map_partitions(periods, ...)`` finds it itself; Dask's own ``map_partitions`` takes it as ``meta=``.

    Parameters
    ----------
    partition : NestedFrame or DataFrame
        A partition; only its columns and their types are used.
    *arguments, **options
        As for `periods`.

    Returns
    -------
    NestedFrame or DataFrame
        Without rows.

    Raises
    ------
    TypeError, ValueError
        As for `periods`.

    Examples
    --------
    >>> import pandas as pd, pyarrow as pa, skysieve.lsdb
    >>> stars = pa.table({"mjd": [[1.0]], "mag": [[2.0]]}).to_pandas(types_mapper=pd.ArrowDtype)
    >>> skysieve.lsdb.meta(stars).dtypes["period"]
    dtype('float64')
    """
    return periods(partition.iloc[:0], *arguments, **options)


# ---------------------------------------------------------------- options


def _request(n_peaks: int, threads: int | None, options: dict[str, Any]) -> Request:
    """The request to the search; the options are checked here, before any light curve is read."""
    import skysieve
    from skysieve.core.checks import one_of
    from skysieve.periodogram.contract import BAND_MODELS
    from skysieve.periodogram.lightcurves.checks import make_spec
    from skysieve.periodogram.multiband import DEFAULT, DEFAULT_TERMS
    from skysieve.periodogram.survey import OPEN_SAMPLES, Request

    given = dict(options)
    model = given.pop("model", None)
    known = [name for name in inspect.signature(skysieve.LombScarglePlan).parameters if name not in REFUSED]
    for name in given:
        if name not in known:
            raise TypeError(f"periods() has no option {name!r}: expected one of {', '.join(known)}, model")
    if model is not None:
        one_of("model", model, (*BAND_MODELS, "none"))
    terms = DEFAULT_TERMS if given.get("nterms") is None and model is None else None
    given["nterms"] = 1 if given.get("nterms") is None else given["nterms"]
    given = {"fmin": "auto", "fmax": "auto"} | given
    given.setdefault("samples_per_peak", OPEN_SAMPLES if "auto" in (given["fmin"], given["fmax"]) else 5)
    given |= {"n_peaks": whole("n_peaks", n_peaks, 1), "threads": threads}
    usual = {"fit_mean": True, "center_data": True, "normalization": "standard", "method": "auto", "dtype": "float64"}
    fit = {name: given.get(name, value) for name, value in usual.items()}
    make_spec(**fit, n_peaks=n_peaks, return_power=False, nterms=given["nterms"])
    alone = not given.get("fit_mean", True) or given.get("method") == "finufft"
    return Request(given, multiband=model or ("none" if alone else DEFAULT), band_terms=terms)


# ---------------------------------------------------------------- from the partition to light curves


def _nested_columns(partition: Any) -> list[str]:
    """Names of the columns of light curves: lists, or structs of lists, of Arrow or nested-pandas.

    LSDB may give the type null to a column without values, as in an empty margin.  Such columns are taken for light
    curves if there are no others.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError(f"light curves in nested columns need pyarrow: {install_hint('pyarrow')}") from None
    from skysieve.periodogram.lightcurves.parquet import is_list

    found, empty = [], []
    for name in partition.columns:
        if hasattr(partition[name].array, "__arrow_array__"):
            kind = pa.array(partition[name].array[:0]).type
            if is_list(kind) or (pa.types.is_struct(kind) and any(is_list(child.type) for child in kind)):
                found.append(name)
            elif pa.types.is_null(kind):
                empty.append(name)
    return found or empty


def _light_curves(
    partition: Any, nested: str | None, named: dict[str, Any], band: str | None, flags: tuple[str, ...] | None,
    quality_mask: int | None,
) -> LightCurves:  # fmt: skip
    """The light curves of a partition, one for each of its rows; `ValueError` for columns that do not exist."""
    import pyarrow as pa

    from skysieve.periodogram.lightcurves import parquet
    from skysieve.periodogram.lightcurves.column_names import MissingColumn, Wanted
    from skysieve.periodogram.lightcurves.flags import mission
    from skysieve.periodogram.lightcurves.io import error_of_flux, marked

    of_lists = _nested_columns(partition)
    if nested is not None and nested not in of_lists:
        expected = ", ".join(of_lists) or "one of lists or structs"
        raise ValueError(f"nested={nested!r} is not a column of light curves: expected one of {expected}")
    table = pa.table({name: pa.array(partition[name].array) for name in ([nested] if nested else of_lists)})
    if of_lists and all(pa.types.is_null(kind) for kind in table.schema.types):
        nothing = np.empty(0)
        return _curves(len(partition) * [0], {"time": nothing, "mag": nothing}, "")
    try:
        _, lists = parquet.fields_of(table.schema)
        flat = [str(name) for name in partition.columns if name not in of_lists]
        wanted = Wanted(**named, flags=flags, quality_mask=quality_mask)
        names, chosen = parquet.choose_nested(flat, lists, wanted)
    except MissingColumn as error:
        raise ValueError(_without_options(str(error))) from None
    roles = {role: names[at] for role, at in chosen.parts().items() if role != "id"}
    rows = parquet.unpacked(table, roles, lists)
    data = {role: parquet.column_values(values, roles[role], role) for role, values in rows.values.items()}
    for role, name in roles.items():
        if name not in lists:
            column = partition[name]
            data[role] = np.repeat(parquet.column_values(_arrow(column), name, role), rows.counts)
    counts, resolution = rows.counts, parquet.resolution(rows.values["time"], data["time"])
    if band is not None:
        if "band" not in data:
            raise ValueError(f"band={band!r}: found no field of bands: expected its name as bands=")
        keep = data["band"].astype(str) == band
        counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[keep], minlength=len(counts))
        data = {role: values[keep] for role, values in data.items()}
    marked(names, chosen, data, wanted, mission(names), [], whole=False)
    error_of_flux(data)
    return replace(_curves(counts, data, roles["mag"]), time_resolution=resolution)


def _curves(counts: Any, data: dict[str, Any], value_name: str) -> LightCurves:
    """Light curves with these numbers of rows, with the names of bands as numbers."""
    from skysieve.periodogram.lightcurves.column_names import missing_in
    from skysieve.periodogram.lightcurves.io import LightCurves

    codes = names = None
    if "band" in data:
        names, codes = np.unique(data["band"].astype(str), return_inverse=True)
        data["mag"] = np.where(missing_in(names)[codes], np.nan, data["mag"])
    return LightCurves(
        path=Path("partition"), ids=np.arange(len(counts)), t=data["time"], y=data["mag"], dy=data.get("err"),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), taken="", value_name=value_name, band=codes,
        band_names=names,
    )  # fmt: skip


def _without_options(text: str) -> str:
    """A message of the readers, with the command's options replaced by the arguments of `periods`."""
    for option, argument in (("--band-column", "bands="), ("--time", "t="), ("--mag", "y="), ("--err", "dy=")):
        text = text.replace(option, argument)
    return text


def _arrow(column: Any) -> Any:
    """A flat column as an Arrow array."""
    import pyarrow as pa

    found = pa.Array.from_pandas(column)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


# ---------------------------------------------------------------- the search, and its answers as columns


def _answers(rows: LightCurves, request: Request) -> Found:
    """Answers for all objects of a partition, which may be empty."""
    from skysieve.periodogram.survey import join, no_objects, search

    if len(rows):
        banded = rows.band is not None and request.multiband != "none"  # also with rows of one band in this partition
        return join(list(search([rows], request, total=len(rows), banded=banded)))
    return no_objects(request.arguments["n_peaks"])


def _frame_columns(found: Found, request: Request, prefix: str) -> dict[str, Any]:
    """New columns of the frame; text has Arrow's string type, as in the catalogues that LSDB reads."""
    import pandas as pd
    import pyarrow as pa

    columns, _ = found.table(request)
    text = pd.ArrowDtype(pa.string())
    return {
        prefix + name: pd.array(values.astype(str), dtype=text) if values.dtype.kind in "OU" else values
        for name, values in columns.items()
        if name != "id"
    }
