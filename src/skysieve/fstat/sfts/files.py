"""SFT files of version 2 and 3 (LIGO-T040164): reading and writing.

A file holds blocks, one for each SFT: a header of 48 bytes, a comment, and the data (complex64).  Bytes are in
the order of the machine that wrote them, which the version number shows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.checks import check_path
from skysieve.core.files import expand, written
from skysieve.fstat.inputs.atoms import finite

from .sfts import SFTs, Taper, bins_of, missing_bins

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["read_sfts", "write_sfts"]

HEADER = np.dtype(
    [
        ("version", "f8"), ("gps_sec", "i4"), ("gps_nsec", "i4"), ("tbase", "f8"), ("first_frequency_index", "i4"),
        ("nsamples", "i4"), ("crc64", "u8"), ("detector", "S2"), ("window", "u2"), ("comment_length", "i4"),
    ]
)  # fmt: skip
VERSIONS = (2, 3)
TUKEY = 5001
"""Window specifications of version 3: 0 unknown, 1 rectangular, 2 Hann, and `TUKEY` + 5000 beta for a Tukey window."""
MOST_COMMENT = 1 << 20
LAST_START = 2**31 - 1
"""Latest GPS second at which an SFT of a file may start: the header has 32 bits for it."""


def read_sfts(
    pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    band: tuple[float, float] | None = None,
    detectors: Sequence[str] | None = None,
    *,
    min_start: float | None = None,
    max_start: float | None = None,
    check: bool = True,
    faults: list[str] | None = None,
) -> list[SFTs]:
    """Read SFT files.

    Parameters
    ----------
    pattern : path, str with wildcards, folder, or iterable of paths
        The files, with one or several SFTs each, in any order; for a folder, all its files ``*.sft``.  Several may be
        joined by ``;`` as in LALPulsar and PyFstat.  Narrow-band SFTs of one detector and time are joined if their bins
        adjoin; bins that two of them hold must be equal.
    band : (low, high), optional
        Frequencies in Hz; only these bins are kept.  By default all bins, which must be the same in all SFTs of a
        detector.
    detectors : sequence of str, optional
        Detectors to read, such as ``["H1", "L1"]``; by default all.
    min_start, max_start : float, optional
        GPS seconds: only SFTs that start at `min_start` or later, and before `max_start`, are read.
    check : bool
        Whether to compare checksums.
    faults : list of str, optional
        If given, SFTs that cannot be used are left out, and the reasons are added to this list.  An SFT is left out if
        it is truncated, damaged, zero, not finite or too narrow for `band`, if it overlaps an earlier one, or if its
        length, window or bins differ from those of most others.  A damaged header also excludes the rest of its file.

    Returns
    -------
    list of SFTs
        One for each detector, in alphabetical order, or in the order of `detectors`.

    Raises
    ------
    FileNotFoundError
        No file matches.
    ValueError
        A file is not an SFT file, or is truncated or damaged; SFTs differ in length, overlap or are too narrow for
        `band`; a detector is missing; or no SFT starts within the times.  The message names the file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from skysieve.fstat import SFTs
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> names = write_sfts(folder, SFTs("H1", [0, 1800], 1800, 180_000, np.ones((2, 5))))
    >>> read_sfts(folder, band=(100.0, 100.001))
    [<SFTs: H1, 2 of 1800 s from GPS 0, 100 to 100.001111 Hz>]
    """
    wanted = None if detectors is None else [detectors] if isinstance(detectors, str) else list(detectors)
    within = start_times(min_start, max_start)
    paths = files_of(pattern)
    found: dict[str, list[Found]] = {}
    for path in paths:
        for header, data in blocks(path, check, wanted, band, within, faults=faults):
            name = detector_in(header)
            found.setdefault(name, []).append((int(header["gps_sec"]), str(path), header, data))
    found = {name: _of_bands(many, band, faults) for name, many in found.items()}
    if faults is not None:
        found = _consistent(found, band, faults)
    missing = [name for name in wanted or () if name not in found]
    if missing or not found:
        refuse_missing(paths, wanted, missing, within, sorted(found), faults)
    made = [_joined(name, found[name], band) for name in wanted or sorted(found)]
    lengths = {sfts.tsft for sfts in made}
    if len(lengths) > 1:
        raise ValueError(f"SFTs of {' and '.join(f'{t:g}' for t in sorted(lengths))} s: expected one length")
    return made


def start_times(min_start: float | None, max_start: float | None) -> tuple[float, float]:
    """The range of times at which the SFTs to read start: from the first to before the second."""
    first = -np.inf if min_start is None else finite(min_start, "min_start", "GPS seconds")
    last = np.inf if max_start is None else finite(max_start, "max_start", "GPS seconds")
    if not first < last:
        raise ValueError(f"max_start={max_start!r}: expected a later time than min_start={min_start!r}")
    return first, last


def refuse_missing(
    paths: Sequence[Path], wanted: list[str] | None, missing: list[str], within: tuple[float, float],
    usable: list[str], faults: list[str] | None,
) -> None:  # fmt: skip
    """Raise ValueError that says why there are no SFTs, or none of some detectors."""
    if faults and not usable:
        raise ValueError(faults[0])
    headers = [header for path in paths for header, _ in blocks(path, False, data=False, faults=[])]
    starts = [int(header["gps_sec"]) for header in headers if wanted is None or detector_in(header) in missing]
    if starts and not any(within[0] <= t < within[1] for t in starts):
        limits = zip(("min_start", "max_start"), within, strict=True)
        given = ", ".join(f"{name}={t:.0f}" for name, t in limits if np.isfinite(t))
        of = f" of {', '.join(missing)}" if missing else ""
        raise ValueError(f"{given}: no SFT{of} starts then; they start from GPS {min(starts)} to {max(starts)}")
    names = sorted({*usable, *map(detector_in, headers)}.difference(missing))
    raise ValueError(f"detectors={wanted}: no SFT of {', '.join(missing)}, only of {', '.join(names) or 'no detector'}")


def divided(patterns: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Patterns one by one: several may be joined by ``;`` as in LALPulsar, except in the name of a file that exists."""
    found: list[str] = []
    for pattern in patterns:
        text = os.fspath(pattern)
        parts = [] if Path(text).exists() else [part for part in text.split(";") if part]
        found += parts or [text]
    return found


def files_of(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files that match a pattern.

    Raises
    ------
    FileNotFoundError
        There are none.
    """
    found = expand(divided([pattern] if isinstance(pattern, str | os.PathLike) else pattern), (".sft",))
    for path in found:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file, and no file matches")
    return found


def blocks(
    path: Path, check: bool, detectors: Sequence[str] | None = None, band: tuple[float, float] | None = None,
    times: tuple[float, float] = (-np.inf, np.inf), *, data: bool = True, faults: list[str] | None = None,
) -> Iterator[tuple[Any, NDArray[np.complex64]]]:  # fmt: skip
    """Headers and values of the SFTs of a file that start within `times`; no values if `data` is False.

    Only values within `band` are read, if it is given.  With `faults`, damaged SFTs are left out and listed in
    `faults`.
    """
    raw: NDArray[np.uint8] = np.empty(0, np.uint8)
    if path.stat().st_size:
        raw = np.memmap(path, np.uint8, "r").view(np.ndarray)  # slices of a memmap take longer to make
    at, number = 0, 0
    while at < len(raw) or number == 0:
        where = f"{path}: SFT {number}"
        try:
            header, order, start = _header(raw, at, where)
        except ValueError as error:
            if faults is None:
                raise
            faults.append(str(error))
            return
        stop = start + 8 * int(header["nsamples"])
        if not times[0] <= header["gps_sec"] < times[1]:
            pass
        elif not data:
            yield header, np.empty(0, np.complex64)
        elif detectors is None or detector_in(header) in detectors:
            first, last = bins_in(header, band)
            try:
                if header["gps_nsec"]:
                    raise ValueError(
                        f"{where}: starts {header['gps_nsec']} ns after a full second: expected whole GPS seconds"
                    )
                values = np.array(raw[start:stop].view(f"{order}c8")[first:last], np.complex64)
                if check and len(values):
                    _check(where, bytes(raw[at : at + HEADER.itemsize]), raw[at + HEADER.itemsize : stop],
                           int(header["crc64"]))  # fmt: skip
                if not np.isfinite(values.view(np.float32)).all():
                    raise ValueError(f"{where}: the data hold NaN or infinite values")
                if faults is not None and len(values) and not values.any():
                    raise ValueError(f"{where}: the data are zero")
            except ValueError as error:
                if faults is None:
                    raise
                faults.append(str(error))
            else:
                yield header, values
        at, number = stop, number + 1


def detector_in(header: Any) -> str:
    """The detector that a header names."""
    name: bytes = header["detector"]
    return name.decode("ascii", "replace")


def bins_in(header: Any, band: tuple[float, float] | None) -> tuple[int, int]:
    """First and last + 1 of the bins of an SFT that lie in a band; equal if there are none."""
    n = int(header["nsamples"])
    if band is None:
        return 0, n
    first, last = (edge - int(header["first_frequency_index"]) for edge in bins_of(*band, float(header["tbase"])))
    return min(max(first, 0), n), min(max(last + 1, 0), n)


def _header(raw: NDArray[np.uint8], at: int, where: str) -> tuple[Any, Literal["<", ">"], int]:
    """Header of the SFT that begins at byte `at`, the order of its bytes, and the position of its data."""
    if at + HEADER.itemsize > len(raw):
        raise ValueError(f"{where}: the file ends within a header, at byte {len(raw)}")
    head = bytes(raw[at : at + HEADER.itemsize])
    orders: tuple[Literal["<", ">"], ...] = ("<", ">")
    order = next((o for o in orders if np.frombuffer(head, f"{o}f8", 1)[0] in VERSIONS), None)
    if order is None:
        raise ValueError(f"{where}: no header of an SFT of version 2 or 3 at byte {at}")
    header = np.frombuffer(head, HEADER.newbyteorder(order), 1)[0]
    comment, n = int(header["comment_length"]), int(header["nsamples"])
    if n <= 0 or not 0 <= comment <= MOST_COMMENT or comment % 8 or not header["tbase"] > 0:
        raise ValueError(
            f"{where}: nsamples={n}, comment_length={comment}, tbase={header['tbase']}: the header is damaged"
        )
    start = at + HEADER.itemsize + comment
    if start + 8 * n > len(raw):
        raise ValueError(f"{where}: the file ends {start + 8 * n - len(raw)} bytes before the end of the data")
    return header, order, start


def _check(where: str, head: bytes, rest: NDArray[np.uint8], expected: int) -> None:
    from .cpu_crc64 import crc64

    at = HEADER.fields["crc64"][1] if HEADER.fields else 0
    blank = head[:at] + bytes(8) + head[at + 8 :]
    if (found := crc64(blank, rest)) != expected:
        raise ValueError(f"{where}: checksum {found:#018x}, expected {expected:#018x}: the file is damaged")


Found = tuple[int, str, Any, Any]
"""GPS second of an SFT, its file, its header and its values."""


def _of_bands(found: list[Found], band: tuple[float, float] | None, faults: list[str] | None) -> list[Found]:
    """SFTs of a detector that cover a band; narrow-band SFTs of one time are joined.

    An SFT that is too narrow is an error, or is listed in `faults`.
    """
    times: dict[tuple[int, float, Taper], list[Found]] = {}
    for one in found:
        times.setdefault((one[0], float(one[2]["tbase"]), taper_of(one[2])), []).append(one)
    made: list[Found] = []
    for (t, tsft, _), several in times.items():
        pieces = _adjoined([one for one in several if len(one[3])] or several[:1], band)
        if band is None:
            made += pieces
            continue
        narrow = [missing_bins(*bins_of(*band, tsft), *_range(one[2]), tsft) for one in pieces]
        if all(narrow):
            text = f"{pieces[0][1]}: the SFT at GPS {t}: {narrow[0]}"
            if faults is None:
                raise ValueError(text)
            faults.append(text)
        made += [one for one, text in zip(pieces, narrow, strict=True) if not text]
    return made


def _range(header: Any) -> tuple[int, int]:
    """First bin of an SFT and number of bins."""
    return int(header["first_frequency_index"]), int(header["nsamples"])


def _adjoined(pieces: list[Found], band: tuple[float, float] | None) -> list[Found]:
    """SFTs of one time, of which those are joined whose bins adjoin; bins that two of them hold must be equal."""
    made: list[Found] = []
    for one in sorted(pieces, key=lambda one: _range(one[2])):
        joined = _both(made[-1], one, band) if made else None
        made[-1:] = [*made[-1:], one] if joined is None else [joined]
    return made


def _both(low: Found, high: Found, band: tuple[float, float] | None) -> Found | None:
    """Two SFTs of one time as one; None if they leave a gap, differ in a bin, or if `high` has no further bin."""
    (first, n), (start, m) = _range(low[2]), _range(high[2])
    shared = first + bins_in(low[2], band)[1] - start - bins_in(high[2], band)[0]
    if not 0 <= shared < len(high[3]) or not np.array_equal(low[3][len(low[3]) - shared :], high[3][:shared]):
        return None
    header = low[2].copy()
    header["nsamples"] = max(n, start + m - first)
    return low[0], low[1], header, np.concatenate([low[3], high[3][shared:]])


def _consistent(
    found: dict[str, list[Found]], band: tuple[float, float] | None, faults: list[str]
) -> dict[str, list[Found]]:
    """The SFTs that can be searched together; the others are listed in `faults`."""

    def length(one: Found) -> float:
        return float(one[2]["tbase"])

    def form(one: Found) -> tuple[Any, ...]:
        return taper_of(one[2]), *((int(one[2]["first_frequency_index"]), len(one[3])) if band is None else ())

    lengths = Counter(length(one) for many in found.values() for one in many)
    usual = max(lengths, key=lambda tsft: lengths[tsft], default=0.0)
    made = {}
    for name, many in found.items():
        forms = Counter(form(one) for one in many if length(one) == usual)
        accepted: list[Found] = []
        for one in sorted(many, key=lambda one: one[0]):
            text = f"{one[1]}: the SFT at GPS {one[0]} "
            if length(one) != usual:
                faults.append(f"{text}is {length(one):g} s long, most are {usual:g} s")
            elif forms[form(one)] < max(forms.values()):
                faults.append(f"{text}has another window or other bins than most of {name}")
            elif accepted and one[0] < accepted[-1][0] + usual:
                faults.append(f"{text}overlaps the one at GPS {accepted[-1][0]} of {accepted[-1][1]}")
            else:
                accepted.append(one)
        if accepted:
            made[name] = accepted
    return made


def _joined(name: str, found: list[Found], band: tuple[float, float] | None) -> SFTs:
    """All SFTs of a detector, in order of time."""
    found.sort(key=lambda one: one[0])
    first = found[0]
    tsft, start, taper = float(first[2]["tbase"]), int(first[2]["first_frequency_index"]), taper_of(first[2])
    for (_, before, _, _), (_, path, header, data) in pairwise(found):
        if float(header["tbase"]) != tsft:
            raise ValueError(
                f"{path}: the SFTs are {header['tbase']:g} s long, but those of {before} are {tsft:g} s long"
            )
        if band is None and (int(header["first_frequency_index"]) != start or len(data) != len(first[3])):
            raise ValueError(
                f"{path}: the band differs from that of {before}; select the common band with band=(low, high)"
            )
        if taper_of(header) != taper:
            raise ValueError(
                f"{path}: the window of the SFTs is {taper_of(header).kind}, but that of {before} is {taper.kind}"
            )
    times = np.array([t for t, *_ in found], np.int64)
    near = np.flatnonzero(np.diff(times) < tsft)
    if near.size:
        i = int(near[0])
        raise ValueError(
            f"{found[i + 1][1]}: the SFT at GPS {times[i + 1]} overlaps the one at GPS {times[i]} of {found[i][1]}"
        )
    if band is not None:
        start = bins_of(*band, tsft)[0]
    return SFTs(name, times, tsft, start, np.stack([data for *_, data in found]), taper)


def taper_of(header: Any) -> Taper:
    """The window that a header specifies; headers of version 2 do not specify any."""
    code = int(header["window"])
    if header["version"] == 2 or code == 0:
        return Taper("unknown")
    if code in (1, 2):
        return Taper("rectangular" if code == 1 else "hann")
    if TUKEY <= code <= TUKEY + 5000:
        return Taper("tukey", (code - TUKEY) / 5000)
    raise ValueError(f"window specification {code}: expected 0, 1, 2 or {TUKEY} to {TUKEY + 5000}")


def write_sfts(
    path: str | os.PathLike[str],
    sfts: SFTs | Sequence[SFTs],
    *,
    version: int = 3,
    comment: str = "",
    merged: bool = True,
    label: str = "skysieve",
) -> list[Path]:
    """Write SFT files that LALPulsar reads.

    Parameters
    ----------
    path : path
        A folder, in which files get the names of LIGO-T040164; or with `merged` the name of the file for one detector.
    sfts : SFTs or sequence of SFTs
        One set for each detector.
    version : {3, 2}
        Version of the format; version 2 does not say which window the SFTs have.
    comment : str
        Text in each header.
    merged : bool
        One file for each detector; otherwise one for each SFT.
    label : str
        Letters and digits in the names.

    Returns
    -------
    list of pathlib.Path
        The files.

    Raises
    ------
    TypeError
        `path` is no path, or `sfts` holds something else.
    ValueError
        The version, label or window cannot be written, a detector has several sets, or an SFT starts after GPS
        2147483647, the largest value that the header can hold.
    NotADirectoryError
        `path` is not a folder, and several files are written.

    Examples
    --------
    >>> import tempfile
    >>> from skysieve.fstat import SFTs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for file in write_sfts(folder, SFTs("H1", [0, 1800], 1800, 180_000, np.ones((2, 5))), label="test"):
    ...         print(file.name)
    H-2_H1_1800SFT_test-0-3600.sft
    """
    if version not in VERSIONS:
        raise ValueError(f"version={version!r}: expected 2 or 3")
    if not label.isalnum():
        raise ValueError(f"label={label!r}: expected letters and digits")
    check_path(path, "folder or file")
    many = [sfts] if isinstance(sfts, SFTs) else list(sfts)
    for i, one in enumerate(many):
        if not isinstance(one, SFTs):
            raise TypeError(f"sfts[{i}] is a {type(one).__name__}, expected SFTs")
    target = Path(path)
    names = {one.detector for one in many}
    if len(names) != len(many):
        raise ValueError(f"sfts: several sets of {', '.join(sorted(names))}, expected one set for each detector")
    for one in many:
        if one.t[-1] > LAST_START:
            raise ValueError(f"sfts of {one.detector}: one starts at GPS {one.t[-1]}, expected at most {LAST_START}")
    if not target.is_dir() and not (merged and len(many) == 1):
        raise NotADirectoryError(f"{target}: expected a folder")
    done = []
    for one in many:
        groups = [range(len(one))] if merged else [range(i, i + 1) for i in range(len(one))]
        for group in groups:
            file = target / file_name(one, group, label) if target.is_dir() else target
            with written(file) as part, part.open("wb") as out:
                for i in group:
                    out.write(block_of(one, i, version, comment))
            done.append(file)
    return done


def file_name(sfts: SFTs, group: range, label: str) -> str:
    """The name of LIGO-T040164 for some of the SFTs."""
    start = int(sfts.t[group[0]])
    span = int(sfts.t[group[-1]] - start + np.ceil(sfts.tsft))
    return f"{sfts.detector[0]}-{len(group)}_{sfts.detector}_{sfts.tsft:g}SFT_{label}-{start}-{span}.sft"


def block_of(sfts: SFTs, i: int, version: int, comment: str) -> bytes:
    """The bytes of one SFT."""
    from .cpu_crc64 import crc64

    text = comment.encode()
    text += bytes(-len(text) % 8)
    header = np.zeros(1, HEADER.newbyteorder("<"))
    kind = sfts.taper.kind
    code = round(TUKEY + 5000 * sfts.taper.beta) if kind == "tukey" else ("unknown", "rectangular", "hann").index(kind)
    header["version"], header["gps_sec"], header["tbase"] = version, sfts.t[i], sfts.tsft
    header["first_frequency_index"], header["nsamples"] = sfts.first_bin, sfts.data.shape[1]
    header["detector"], header["comment_length"] = sfts.detector.encode(), len(text)
    header["window"] = code if version == 3 else 0
    data = sfts.data[i].astype("<c8").tobytes()
    header["crc64"] = crc64(header.tobytes(), text, data)
    return header.tobytes() + text + data
