"""PSRFITS search mode: the SUBINT table, scaled and unscaled, lazily."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.observation import Observation, check_freqs, check_tsamp
from skysieve.dedispersion.sigproc import BadFile, add_ifs, choose_ifs, unpack_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAY = 86400.0
COLUMNS = ("DAT_FREQ", "DAT_WTS", "DAT_OFFS", "DAT_SCL", "DATA")


class PsrfitsReader:
    """Samples of one PSRFITS file in search mode, channels in the file's order.

    Values are ``((raw - ZERO_OFF) DAT_SCL + DAT_OFFS) DAT_WTS``; where scales and weights are all 1 and offsets 0,
    the integers themselves.  Samples narrower than a byte have the first channel in the highest bits.

    Parameters
    ----------
    path : path
    ifs : {"sum"} or int
        "sum" adds the two polarisations of AABB and takes the first of other kinds (Stokes I); a number picks one.
    """

    def __init__(self, path: str | os.PathLike[str], ifs: str | int = "sum") -> None:
        from astropy.io import fits

        self.path = Path(path)
        try:
            self._hdus = fits.open(self.path, memmap=True, lazy_load_hdus=True)
        except OSError as error:
            raise BadFile(f"{self.path}: {error}") from None
        try:
            self._open(ifs)
        except BaseException:
            self._hdus.close()
            raise

    def _open(self, ifs: str | int) -> None:
        if "SUBINT" not in self._hdus:
            raise BadFile(f"{self.path}: has no SUBINT table, so it is no PSRFITS data file")
        primary, table = self._hdus[0].header, self._hdus["SUBINT"]
        head = table.header
        if str(primary.get("OBS_MODE", "SEARCH")).strip() not in ("SEARCH", "SRCH"):
            raise BadFile(f"{self.path}: OBS_MODE={primary['OBS_MODE']!r}; expected 'SEARCH'")
        missing = [c for c in COLUMNS if c not in table.columns.names]
        if missing:
            raise BadFile(f"{self.path}: SUBINT lacks {', '.join(missing)}")
        try:
            self.nbits, self.nchan = int(head["NBITS"]), int(head["NCHAN"])
            self.npol, self.nsblk = int(head["NPOL"]), int(head["NSBLK"])
            tsamp = check_tsamp(float(head["TBIN"]))
        except KeyError as error:
            raise BadFile(f"{self.path}: SUBINT lacks the key {error.args[0]}") from None
        except ValueError as error:
            raise BadFile(f"{self.path}: {error}") from None
        if self.nbits not in (1, 2, 4, 8, 16, 32):
            raise BadFile(f"{self.path}: NBITS={self.nbits}; expected 1, 2, 4, 8, 16 or 32")
        try:
            self._rows = table.data
        except (TypeError, ValueError, OSError) as error:
            raise BadFile(f"{self.path}: the SUBINT table is cut off or damaged: {error}") from None
        if min(self.nchan, self.npol, self.nsblk, len(self._rows)) < 1:
            raise BadFile(f"{self.path}: NCHAN={self.nchan}, NPOL={self.npol}, NSBLK={self.nsblk}: holds no data")
        freqs = np.atleast_1d(np.asarray(self._rows["DAT_FREQ"][0], np.float64))
        try:
            check_freqs(freqs, "DAT_FREQ")
        except ValueError as error:
            raise BadFile(f"{self.path}: {error}") from None
        if len(freqs) != self.nchan:
            raise BadFile(f"{self.path}: DAT_FREQ has {len(freqs)} channels, NCHAN={self.nchan}")
        self.order = np.argsort(-freqs, kind="stable")
        self.nsamp = len(self._rows) * self.nsblk
        self._check_gaps(self.nsblk * tsamp)
        self.signed = bool(head.get("SIGNINT", 0)) and self.nbits in (8, 16)
        self.zero = float(head.get("ZERO_OFF", 0) or 0)
        kind = str(head.get("POL_TYPE", "")).strip()
        if ifs == "sum" and self.npol > 1 and not kind.startswith("AABB"):
            ifs = 0
        self.ifs = choose_ifs(ifs, self.npol)
        self._read_scales()
        raw = {8: "i1" if self.signed else "u1", 16: ">i2" if self.signed else ">u2", 32: ">f4"}
        self._raw: np.dtype[Any] = np.dtype(raw.get(self.nbits, "u1"))
        self._table = unpack_table(self.nbits, "big") if self.nbits < 8 else None
        plain: np.dtype[Any] = np.dtype(np.float32) if self.nbits == 32 else self._raw.newbyteorder("=")
        self.dtype: np.dtype[Any] = np.dtype(np.float32) if self.scaled else plain
        self.maximum = 0 if self.scaled or self.nbits == 32 else (2**self.nbits - 1) * len(self.ifs)
        mjd = float(primary.get("STT_IMJD", 0)) + (primary.get("STT_SMJD", 0) + primary.get("STT_OFFS", 0.0)) / DAY
        first = float(head.get("NSUBOFFS", 0) or 0) * self.nsblk * tsamp
        self.observation = Observation(
            freqs[self.order], tsamp, self.nbits, mjd + first / DAY, str(primary.get("SRC_NAME", "")).strip(),
            str(primary.get("TELESCOP", "")).strip(), _degrees(primary.get("RA"), 15), _degrees(primary.get("DEC"), 1),
        )  # fmt: skip

    def _check_gaps(self, each: float) -> None:
        """Refuse rows that do not follow one another: all samples after a gap would be given wrong times."""
        if "OFFS_SUB" not in self._rows.names:
            return
        steps = np.diff(np.asarray(self._rows["OFFS_SUB"], np.float64))
        gaps = np.flatnonzero(~(np.abs(steps - each) <= 0.6 * each))
        if gaps.size and steps.any():  # all equal: the file does not say
            i = int(gaps[0])
            raise BadFile(
                f"{self.path}: rows {i} and {i + 1} are {steps[i]:.6g} s apart (OFFS_SUB), expected {each:.6g} s: "
                f"{gaps.size} gaps in time; split the file there"
            )

    def _read_scales(self) -> None:
        """Scales of every row, small beside the data; ``scaled`` is false where they do nothing."""
        rows, width = len(self._rows), self.nchan * self.npol
        self.weights = np.asarray(self._rows["DAT_WTS"], np.float32).reshape(rows, self.nchan)
        self.scales = np.asarray(self._rows["DAT_SCL"], np.float32).reshape(rows, width)
        self.offsets = np.asarray(self._rows["DAT_OFFS"], np.float32).reshape(rows, width)
        idle = (self.weights == 1).all() and (self.scales == 1).all() and (self.offsets == 0).all()
        self.scaled = not idle or self.zero != 0

    def close(self) -> None:
        """Close the file."""
        self._rows = None
        self._hdus.close()

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        wide = len(self.ifs) > 1
        kind = add_ifs(np.empty(0, self.dtype), np.empty(0, self.dtype)).dtype if wide else self.dtype
        out = np.empty((count, self.nchan), kind)
        at = 0
        while at < count:
            row, first = divmod(start + at, self.nsblk)
            n = min(self.nsblk - first, count - at)
            out[at : at + n] = self._row(row)[first : first + n]
            at += n
        return out

    def _row(self, row: int) -> NDArray[Any]:
        """One row of the table: shape (NSBLK, nchan)."""
        data = np.ascontiguousarray(self._rows["DATA"][row]).reshape(-1)
        raw = data.view(np.uint8).reshape(-1)
        if raw.size * 8 != self.nsblk * self.npol * self.nchan * self.nbits:
            raise BadFile(f"{self.path}: row {row} holds {raw.size} bytes, not NSBLK x NPOL x NCHAN samples")
        if self._table is not None:
            values = self._table[raw].reshape(self.nsblk, self.npol, self.nchan)
        else:
            values = raw.view(self._raw).reshape(self.nsblk, self.npol, self.nchan)
        if self.scaled:
            scale = self.scales[row].reshape(self.npol, self.nchan)
            offset = self.offsets[row].reshape(self.npol, self.nchan)
            values = ((values - np.float32(self.zero)) * scale + offset) * self.weights[row]
        values = values.astype(self.dtype, copy=False)
        if len(self.ifs) == 1:
            return values[:, self.ifs[0]]
        return add_ifs(values[:, self.ifs[0]], values[:, self.ifs[1]])


def _degrees(text: Any, unit: int) -> float:
    try:
        d, m, s = str(text).split(":")
        value = unit * (abs(float(d)) + float(m) / 60 + float(s) / 3600)
    except ValueError:
        return math.nan
    return -value if d.strip().startswith("-") else value
