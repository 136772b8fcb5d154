"""Candidates out to files: tables, PRESTO's ``.singlepulse``, Heimdall's ``.cand``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.files import write_parquet, written
from skysieve.dedispersion.data.write import said

if TYPE_CHECKING:
    from .candidates import Candidates

SUFFIXES = (".csv", ".ecsv", ".parquet", ".singlepulse", ".cand")
UNITS = {
    "dm": "pc / cm3", "time": "s", "width": "s", "mjd_top": "d", "mjd_infinite": "d", "dm_low": "pc / cm3",
    "dm_high": "pc / cm3", "time_first": "s", "time_last": "s",
}  # fmt: skip
FORMATS = {"snr": ".4f", "dm": ".9g", "mjd_top": ".12f", "mjd_infinite": ".12f"}


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of an output that can be written.

    Raises
    ------
    ValueError
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    return suffix


def write_candidates(found: Candidates, path: str | os.PathLike[str]) -> None:
    """Write candidates; the suffix tells the format.

    ``.csv``, ``.ecsv`` and ``.parquet`` have a row a candidate and the columns of `Candidates.columns`;
    ``.singlepulse`` has PRESTO's columns and a row an event; ``.cand`` Heimdall's: S/N, sample, time, log2 width, DM
    number, DM, members, first and last sample.  All but ``.cand``, which has no place for it, say which dispersion
    constant was used.
    """
    suffix = check_suffix(path)
    columns = found.columns()
    facts = {
        "dm_constant": found.dm_constant, "threshold": found.threshold, "noise": found.noise,
        "detector": found.detector, "method": found.method, "source": found.observation.source,
        "reference_frequency_mhz": found.ref_freq,
    }  # fmt: skip
    if remarks := found.remarks():
        facts["remarks"] = "; ".join(remarks)
    with written(path) as part:
        if suffix == ".csv":
            lines = [",".join((*columns, "dm_constant"))]
            for row in zip(*columns.values(), strict=True):
                cells = [_cell(n, v) for n, v in zip(columns, row, strict=True)]
                lines.append(",".join((*cells, repr(found.dm_constant))))
            part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        elif suffix == ".ecsv":
            from astropy.table import Table

            table = Table(columns, units=UNITS, meta=facts)
            table.write(part, format="ascii.ecsv")
        elif suffix == ".parquet":
            write_parquet(columns, part, facts={k: str(v) for k, v in facts.items()})
        elif suffix == ".singlepulse":
            part.write_text(_singlepulse(found), encoding="utf-8")
        else:
            part.write_text(_cand(found), encoding="utf-8")


def _cell(name: str, value: object) -> str:
    if isinstance(value, (float, np.floating)):
        return format(float(value), FORMATS.get(name, ".9f"))
    return str(value)


def _singlepulse(found: Candidates) -> str:
    e = found.events
    lines = ["# DM      Sigma      Time (s)     Sample    Downfact", f"# {said(found.dm_constant, found.ref_freq)}"]
    lines += [f"# {remark}" for remark in found.remarks()]
    for dm, snr, time, sample, width, b in zip(e.dm, e.snr, e.time, e.sample, e.width_samples, e.downsamp, strict=True):
        middle = sample + width * b // 2
        lines.append(f"{dm:7.2f} {snr:7.2f} {time:13.6f} {middle:10d}     {width * b:3d}")
    return "\n".join(lines) + "\n"


def _cand(found: Candidates) -> str:
    lines = []
    tsamp = found.observation.tsamp
    for i in range(len(found)):
        width = int(found.width_samples[i] * found.downsamp[i])
        number = int(np.searchsorted(found.dms, found.dm[i]))
        first, last = round(float(found.time_first[i]) / tsamp), round(float(found.time_last[i]) / tsamp)
        sample = int(found.sample[i]) + width // 2
        lines.append(
            f"{found.snr[i]:.4f}\t{sample}\t{found.time[i]:.6f}\t{round(np.log2(width))}\t{number}\t{found.dm[i]:.6g}\t"
            f"{found.members[i]}\t{first}\t{last}"
        )
    return "\n".join(lines) + ("\n" if lines else "")
