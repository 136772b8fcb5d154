"""PSRFITS files in search mode: rows of the SUBINT table, scaled or not, are read when they are needed."""

from __future__ import annotations

import math
import os
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.contract import Packed, Room, direction

from .observation import Observation, check_freqs, check_tsamp
from .sigproc import BadFile, add_ifs, choose_ifs, largest, unpack_table, unpacked
from .threads import Threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAY = 86400.0
JITTER = 0.6
"""Fraction of a row by which OFFS_SUB may differ from the end of the row before: some writers take it from a clock."""
MOST_MISSING = 10
"""Total length of gaps, at most, relative to the length of the data."""
SUMMED = ("AABB", "XXYY", "RRLL", "LLRR", "YYXX", "BBAA")
"""Beginnings of POL_TYPE whose first two polarisations add up to the total power."""
STOKES = ("IQUV", "STOKES", "STOKE", "IQ", "IV")
"""Values of POL_TYPE whose first polarisation is the total power."""
COLUMNS = ("DAT_FREQ", "DATA")
"""Columns that a file must have."""
SCALES = {"DAT_WTS": 1.0, "DAT_SCL": 1.0, "DAT_OFFS": 0.0}
"""Columns of weights, scales and offsets, and the value in place of one that a file lacks."""
CODES = {"|u1": "B", ">i2": "I", ">i4": "J", ">f4": "E"}
"""Codes of TFORM for the types of the DATA column."""


class PsrfitsReader:
    """Samples of one PSRFITS file in search mode, channels in the order of the file.

    Values are ``((raw - ZERO_OFF) DAT_SCL + DAT_OFFS) DAT_WTS``, or the integers themselves if all scales and weights
    are 1 and all offsets 0, or missing.  Samples of fewer than 8 bits have the first channel in the highest bits.
    OFFS_SUB gives the times of rows: missing rows are a gap, which is filled with the means of the row before it; if
    rows are missing before the first one, the data begin later.  The last row ends where NSTOT says.

    Parameters
    ----------
    path : path
    ifs : {"sum"} or int
        "sum" adds the first two polarisations if POL_TYPE begins with AABB, XXYY, RRLL or the like, and takes the first
        Stokes parameter (I).  Other values of POL_TYPE are refused if there are several polarisations.  A number picks
        one polarisation.
    """

    takes_room = True

    def __init__(self, path: str | os.PathLike[str], ifs: str | int = "sum") -> None:
        from astropy.io import fits

        self.path = Path(path)
        self._threads = Threads()
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
            raise BadFile(f"{self.path}: has no SUBINT table, so it is not a PSRFITS data file")
        primary, table = self._hdus[0].header, self._hdus["SUBINT"]
        head = table.header
        if str(primary.get("OBS_MODE", "SEARCH")).strip() not in ("SEARCH", "SRCH"):
            raise BadFile(f"{self.path}: OBS_MODE={primary['OBS_MODE']!r}; expected 'SEARCH'")
        columns = {name.upper() for name in table.columns.names}
        missing = [c for c in COLUMNS if c not in columns]
        if missing:
            raise BadFile(f"{self.path}: SUBINT lacks {', '.join(missing)}")
        self.nbits, self.nchan, self.npol, self.nsblk = (
            self._whole(head, key) for key in ("NBITS", "NCHAN", "NPOL", "NSBLK")
        )
        try:
            tsamp = check_tsamp(self._number(head, "TBIN"))
        except BadFile:
            raise
        except ValueError as error:
            raise BadFile(f"{self.path}: {error}") from None
        if self.nbits not in (1, 2, 4, 8, 16, 32):
            raise BadFile(f"{self.path}: NBITS={self.nbits}; expected 1, 2, 4, 8, 16 or 32")
        try:
            self._rows: Any = table.data
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
        self._place(head, tsamp)
        self.signed = self._number(head, "SIGNINT", 0) != 0 and self.nbits in (8, 16)
        self.zero = self._number(head, "ZERO_OFF", 0)
        self._read_scales()
        if ifs == "sum" and self.npol > 1 and not self._adds(str(head.get("POL_TYPE", ""))):
            ifs = 0
        self.ifs = choose_ifs(ifs, self.npol)
        self._raw = self._stored(table.columns["DATA"])
        self._table = unpack_table(self.nbits, "big") if self.nbits < 8 else None
        plain: np.dtype[Any] = np.dtype(np.float32) if self.nbits == 32 else self._raw.newbyteorder("=")
        self.dtype: np.dtype[Any] = np.dtype(np.float32) if self.scaled else plain
        bare = self.npol == 1 and not self.scaled and not len(self.gaps) and direction(self.order) != 0
        self.packs = self.nbits < 8 and self.nchan * self.nbits % 8 == 0 and bare
        pair = np.empty(0, self.dtype)
        self._kind: np.dtype[Any] = add_ifs(pair, pair).dtype if len(self.ifs) > 1 else self.dtype
        self.maximum = 0 if self.scaled or self.signed else largest(self.nbits, len(self.ifs))
        day, second, rest = (self._number(primary, key, 0) for key in ("STT_IMJD", "STT_SMJD", "STT_OFFS"))
        mjd = day + (second + rest) / DAY
        first = self._rows_before(head, tsamp) * self.nsblk * tsamp
        self.observation = Observation(
            freqs[self.order], tsamp, self.nbits, mjd + first / DAY, str(primary.get("SRC_NAME", "")).strip(),
            str(primary.get("TELESCOP", "")).strip(), _degrees(primary.get("RA"), 15), _degrees(primary.get("DEC"), 1),
        )  # fmt: skip

    def _stored(self, column: Any) -> np.dtype[Any]:
        """The type of the samples in the bytes of `_bytes`.

        FITS has no unsigned 16-bit integers and no signed bytes.  Writers subtract or add half of the range, which
        changes the highest bit of each sample only, and TZERO says so.
        """
        self._plain: Any = self._rows.view(np.recarray)[column.name]  # as in the file: TZERO is not added
        kind = self._plain.dtype.base.str
        usual = {16: (">i2",), 32: (">f4", ">i4")}.get(self.nbits, ("|u1",))
        zero, scale = column.bzero or 0, column.bscale or 1
        half = {"|u1": -128, ">i2": 2**15, ">i4": 2**31}.get(kind, 0)
        if kind not in usual or scale != 1 or zero not in (0, half):
            raise BadFile(
                f"{self.path}: DATA has TFORM={column.format!r}, TSCAL={scale:g}, TZERO={zero:g} with "
                f"NBITS={self.nbits}; expected the code {' or '.join(CODES[name] for name in usual)}, no TSCAL, and "
                f"TZERO={half} or none"
            )
        self.flips = zero != 0
        if self.nbits in (8, 16) and self.flips:
            self.signed = self.nbits == 8
        if self.nbits < 16:
            return np.dtype("i1" if self.signed else "u1")
        unsigned = not self.signed if self.nbits == 16 else self.flips
        return np.dtype(kind.replace("i", "u") if unsigned else kind)

    def _adds(self, kind: str) -> bool:
        """Whether the first two polarisations must be added; if not, the first is the total power."""
        name = "".join(c for c in kind.upper() if c.isalnum())
        if "+" not in kind and name.startswith(SUMMED):
            return True
        if name in STOKES:
            return False
        raise BadFile(
            f"{self.path}: POL_TYPE={kind.strip()!r} with NPOL={self.npol}; expected {', '.join(SUMMED)} (with or "
            f"without cross products; the first two are added) or {', '.join(STOKES)} (the first is taken); choose one "
            f"of the polarisations by its number, ifs=0 to {self.npol - 1} (--ifs 0)"
        )

    def _number(self, header: Any, key: str, default: float | None = None) -> float:
        """A number of a header; ``default`` if it is missing, empty or "*", which means "not filled in"."""
        value = header.get(key)
        if value is None or (isinstance(value, str) and value.strip() in ("", "*")):
            if default is None:
                raise BadFile(f"{self.path}: SUBINT lacks the key {key}")
            return default
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise BadFile(f"{self.path}: {key}={value!r}; expected a number") from None
        if not math.isfinite(number):
            raise BadFile(f"{self.path}: {key}={value!r}; expected a number")
        return number

    def _whole(self, header: Any, key: str) -> int:
        """A whole number of a header, which must be present."""
        number = self._number(header, key)
        if number != int(number):
            raise BadFile(f"{self.path}: {key}={number!r}; expected a whole number")
        return int(number)

    def _place(self, head: Any, tsamp: float) -> None:
        """Find the first sample of each row, the gaps between rows, and the number of samples.

        A row begins at its ``OFFS_SUB`` if that differs from the end of the row before by more than `JITTER` of a row.
        """
        rows = len(self._rows)
        self.starts = np.arange(rows, dtype=np.int64) * self.nsblk
        if "OFFS_SUB" in self._rows.names:
            offsets = np.asarray(self._rows["OFFS_SUB"], np.float64) / tsamp
            if np.diff(offsets).any():  # equal values are not filled in
                late = offsets - offsets[0] - self.starts
                held = 0
                for i in range(1, rows):
                    off = float(late[i]) - held
                    if not (off >= -JITTER * self.nsblk):
                        raise BadFile(
                            f"{self.path}: row {i} begins {-off * tsamp:.6g} s before the end of row {i - 1} (OFFS_SUB)"
                        )
                    if off > JITTER * self.nsblk:
                        held += round(off)
                        self.starts[i:] += round(off)
        ends = self.starts[:-1] + self.nsblk
        at = np.flatnonzero(self.starts[1:] > ends)
        self.gaps = np.stack([ends[at], self.starts[1:][at]], axis=1)
        self.nsamp = int(self.starts[-1]) + self._last_row(head, rows)
        missing = int(np.diff(self.gaps).sum())
        if missing > MOST_MISSING * rows * self.nsblk:
            raise BadFile(
                f"{self.path}: gaps of {missing * tsamp:.6g} s (OFFS_SUB) in {rows * self.nsblk * tsamp:.6g} s of "
                f"data; split the file after row {at[int(np.argmax(np.diff(self.gaps)))]}"
            )
        if missing:
            warnings.warn(
                f"{self.path}: {len(at)} gaps of {missing * tsamp:.6g} s in all, filled with channel means",
                stacklevel=4,
            )

    def _rows_before(self, head: Any, tsamp: float) -> float:
        """Rows between the start of the observation (STT_IMJD, STT_SMJD, STT_OFFS) and the first row of the file.

        NSUBOFFS gives their number.  If OFFS_SUB of the first row is later by more than `JITTER` of a row, rows were
        lost before it, and OFFS_SUB decides.
        """
        before = self._number(head, "NSUBOFFS", 0)
        if "OFFS_SUB" not in self._rows.names:
            return before
        offsets = np.asarray(self._rows["OFFS_SUB"], np.float64)
        if len(offsets) > 1 and not np.diff(offsets).any():  # equal values are not filled in
            return before
        late = float(offsets[0]) / (self.nsblk * tsamp) - 0.5 - before
        if not (math.isfinite(late) and late > JITTER):
            return before
        found = before + math.floor(late + 1 - JITTER)
        warnings.warn(
            f"{self.path}: OFFS_SUB={offsets[0]:g} of the first row means {found:g} rows before it, but "
            f"NSUBOFFS={before:g}; the data begin where OFFS_SUB says",
            stacklevel=5,
        )
        return found

    def _last_row(self, head: Any, rows: int) -> int:
        """Samples of the last row; NSTOT is the number of all samples, also if the last row is not full."""
        total = head.get("NSTOT")
        if not isinstance(total, int) or isinstance(total, bool) or total <= 1:
            return self.nsblk  # not filled in
        last = total - (rows - 1) * self.nsblk
        if not 1 <= last <= self.nsblk:
            warnings.warn(
                f"{self.path}: NSTOT={total}, but {rows} rows of {self.nsblk} samples; all of these are used",
                stacklevel=5,
            )
            return self.nsblk
        return last

    def _read_scales(self) -> None:
        """Read the scales of all rows; ``scaled`` is False if they change nothing."""
        rows, width = len(self._rows), self.nchan * self.npol
        found, held = [], {name.upper() for name in self._rows.names}
        for name, usual in SCALES.items():
            wide = self.nchan if name == "DAT_WTS" else width
            if name not in held:
                found.append(np.full((rows, wide), usual, np.float32))
                continue
            if self._rows[name].size != rows * wide:
                raise BadFile(
                    f"{self.path}: {name} has {self._rows[name].size // rows} numbers a row, expected {wide} "
                    f"(NCHAN={self.nchan}, NPOL={self.npol})"
                )
            found.append(np.asarray(self._rows[name], np.float32).reshape(rows, wide))
        self.weights, self.scales, self.offsets = found
        if missing := [f"{name} (taken as {usual:g})" for name, usual in SCALES.items() if name not in held]:
            warnings.warn(f"{self.path}: SUBINT lacks {', '.join(missing)}", stacklevel=4)
        idle = (self.weights == 1).all() and (self.scales == 1).all() and (self.offsets == 0).all()
        self.scaled = not idle or self.zero != 0

    def close(self) -> None:
        """Close the file, and end the threads that read it."""
        self._threads.close()
        self._rows = self._plain = None
        self._hdus.close()

    def read(self, start: int, count: int, room: Room | None = None) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan), in ``room`` if it is given.

        Several threads share the rows of the table.
        """
        nbytes = count * self.nchan * self._kind.itemsize
        memory = np.empty(nbytes, np.uint8) if room is None else room.take(nbytes)
        out = memory.view(self._kind).reshape(count, self.nchan)
        parts, at = [], 0
        while at < count:
            row = int(np.searchsorted(self.starts, start + at, side="right")) - 1
            first = start + at - int(self.starts[row])
            if first < self.nsblk:
                n = min(self.nsblk - first, count - at)
                parts.append(partial(self._convert, row, first, out[at : at + n]))
            else:
                n = min(int(self.starts[row + 1]) - start - at, count - at)
                parts.append(partial(self._bridge, row, out[at : at + n]))
            at += n
        self._threads.run(parts)
        return out

    def packed(self, start: int, count: int, room: Room | None = None) -> Packed:
        """The same samples, in the bits of the file; see `contract.Packed`."""
        rows = range(start // self.nsblk, (start + count - 1) // self.nsblk + 1 if count else 0)
        width = self.nchan * self.nbits // 8
        memory = np.empty(count * width, np.uint8) if room is None else room.take(count * width)
        out = memory.reshape(count, width)
        for row in rows:
            low, high = (min(max(row * self.nsblk + k - start, 0), count) for k in (0, self.nsblk))
            at = start + low - row * self.nsblk
            out[low:high] = self._bytes(row).reshape(self.nsblk, -1)[at : at + high - low]
        return Packed(out, direction(self.order) < 0, self.nbits, True)

    def _bytes(self, row: int) -> NDArray[np.uint8]:
        data = np.ascontiguousarray(self._plain[row : row + 1]).reshape(-1)  # a scalar would lose its byte order
        raw: NDArray[np.uint8] = data.view(np.uint8).reshape(-1)
        if self.flips:
            raw = raw.copy()
            raw[:: data.itemsize] ^= 0x80
        if raw.size * 8 != self.nsblk * self.npol * self.nchan * self.nbits:
            raise BadFile(f"{self.path}: row {row} holds {raw.size} bytes, not NSBLK x NPOL x NCHAN samples")
        return raw

    def _convert(self, row: int, first: int, out: NDArray[Any]) -> None:
        """Write samples of one row of the table, from number ``first`` on, to ``out``, shape (count, nchan)."""
        raw, last = self._bytes(row), first + len(out)
        bits = self.npol * self.nchan * self.nbits
        if bits % 8 == 0:  # otherwise samples begin within bytes
            raw, first, last = raw[first * bits // 8 : last * bits // 8], 0, len(out)
        flat = unpacked(raw, self._table) if self._table is not None else raw.view(self._raw)
        values = flat.reshape(-1, self.npol, self.nchan)[first:last]
        if not self.scaled:
            wanted = [values[:, k].astype(self.dtype, copy=False) for k in self.ifs]
            if len(wanted) == 1:
                out[...] = wanted[0]
            else:
                out[...] = add_ifs(*wanted)
            return
        self._scale(row, values, self.ifs[0], out)
        for k in self.ifs[1:]:
            more = np.empty(out.shape, np.float32)
            self._scale(row, values, k, more)
            np.add(out, more, out=out)

    def _scale(self, row: int, values: NDArray[Any], k: int, out: NDArray[np.float32]) -> None:
        """Write ``((values - ZERO_OFF) DAT_SCL + DAT_OFFS) DAT_WTS`` of polarisation ``k`` to ``out``.

        The numbers are those of one operation after the other in float32 (float64 for 32-bit integers); operations that
        change nothing are left out.
        """
        one = slice(k * self.nchan, (k + 1) * self.nchan)
        scale, offset, weight = self.scales[row, one], self.offsets[row, one], self.weights[row]
        given = values[:, k]
        kind = np.result_type(given.dtype, np.float32)
        work = out if kind == np.float32 else np.empty(out.shape, kind)
        if self.zero:
            given = np.subtract(given, np.float32(self.zero), out=work)
        np.multiply(given, scale, out=work)
        if offset.any():
            np.add(work, offset, out=work)
        if (weight != 1).any():
            np.multiply(work, weight, out=work)
        if work is not out:
            out[...] = work

    def _bridge(self, row: int, out: NDArray[Any]) -> None:
        """Fill samples of a gap with the mean of the row before it."""
        held = np.empty((self.nsblk, self.nchan), self._kind)
        self._convert(row, 0, held)
        mean = held.mean(axis=0, dtype=np.float64)
        out[...] = mean if self._kind.kind == "f" else np.rint(mean)


def _degrees(text: Any, unit: int) -> float:
    try:
        d, m, s = str(text).split(":")
        value = unit * (abs(float(d)) + float(m) / 60 + float(s) / 3600)
    except ValueError:
        return math.nan
    return -value if d.strip().startswith("-") else value
