"""Options of ``skysieve fstat search`` that concern SFTs, and ``skysieve fstat simulate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skysieve.core.checks import one_of
from skysieve.core.command import (
    STDIO,
    Messages,
    OverwriteOption,
    QuietOption,
    check_output,
    counted,
    option,
    read_stdin,
    report_errors,
)
from skysieve.fstat.inputs.window_kinds import NAMED

if TYPE_CHECKING:
    from skysieve.fstat.contract import Dtype
    from skysieve.fstat.demod.bank import TemplateBank
    from skysieve.fstat.demod.barycentre import EphemerisName
    from skysieve.fstat.demod.demodulator import Demodulator
    from skysieve.fstat.demod.simulate import Signal
    from skysieve.fstat.template_search.bsgl import BSGL

SFTS, TEMPLATES = "SFTs", "Templates"
"""Panels of the help screen."""


def _source(name: str) -> EphemerisName:
    """The name of a source of arrival times that the user gives."""
    from skysieve.fstat.demod.barycentre import EPHEMERIDES

    if name not in EPHEMERIDES:
        raise ValueError(f"--ephemeris {name}: expected one of {', '.join(EPHEMERIDES)}")
    return name


def _number(name: str, help: str, metavar: str, panel: str = TEMPLATES, **more: Any) -> Any:
    return option(name, help=help, metavar=metavar, panel=panel, **more)


Patterns = Annotated[
    list[str] | None,
    option(
        "--sfts", help="Search SFT files instead of files of atoms: a file, a folder or a quoted pattern such as "
                       "'H-*.sft'; several may be joined by ';'. May be repeated; more names may follow.",
        panel=SFTS, metavar="PATTERN",
    ),
]  # fmt: skip
Ra = Annotated[float | None, _number("--ra", "Right ascension; required with --sfts.", "RADIANS", SFTS)]
Dec = Annotated[float | None, _number("--dec", "Declination; required with --sfts.", "RADIANS", SFTS)]
MinStart = Annotated[
    int | None,
    _number("--min-start", "Use only SFTs that start at this time or later. By default all are used.", "GPS", SFTS),
]
MaxStart = Annotated[
    int | None,
    _number("--max-start", "Use only SFTs that start before this time. By default all are used.", "GPS", SFTS),
]
Tref = Annotated[
    float | None,
    _number("--tref", "Reference time of the frequencies. The default is the middle of the data.", "GPS", SFTS),
]
Ephemeris = Annotated[
    str,
    option(
        "--ephemeris", help="Source of arrival times: lal (LALPulsar), de405 (tables of solar_system_ephemerides) or "
                            "builtin. The default is auto, the first of these that is installed.",
                            panel=SFTS, metavar="NAME",
    ),
]  # fmt: skip
AssumedNoise = Annotated[
    str | None,
    _number(
        "--noise", "Square root of the noise's power density, one value or one for each detector. By default it is "
                   "measured by a running median.", "1/SQRT(HZ)", SFTS,
    ),
]  # fmt: skip
TemplateFreq = Annotated[float | None, _number("--freq", "Frequency; required with --sfts.", "HZ")]
TemplateF1 = Annotated[float, _number("--f1dot", "First derivative. The default is 0.", "HZ/S")]
TemplateF2 = Annotated[float, _number("--f2dot", "Second derivative. The default is 0.", "HZ/S^2")]
Freq = Annotated[float | None, _number("--freq", "Lowest frequency; required with --sfts.", "HZ")]
FreqBand = Annotated[float, _number("--freq-band", "Range of frequencies. The default is 0.", "HZ")]
Df = Annotated[float | None, _number("--df", "Step of frequencies. The default follows from --mismatch.", "HZ")]
F1 = Annotated[float, _number("--f1dot", "Lowest first derivative. The default is 0.", "HZ/S")]
F1Band = Annotated[float, _number("--f1dot-band", "Range of first derivatives. The default is 0.", "HZ/S")]
Df1 = Annotated[
    float | None, _number("--df1dot", "Step of first derivatives. The default follows from --mismatch.", "HZ/S")
]
F2 = Annotated[float, _number("--f2dot", "Lowest second derivative. The default is 0.", "HZ/S^2")]
F2Band = Annotated[float, _number("--f2dot-band", "Range of second derivatives. The default is 0.", "HZ/S^2")]
Df2 = Annotated[
    float | None, _number("--df2dot", "Step of second derivatives. The default follows from --mismatch.", "HZ/S^2")
]
AXES = (
    ("--freq", "--freq-band", "--df"),
    ("--f1dot", "--f1dot-band", "--df1dot"),
    ("--f2dot", "--f2dot-band", "--df2dot"),
)
"""Options of the lowest value, range and step of the frequency and its derivatives."""
GRID_OPTIONS = ("--freq-band", "--df", *AXES[1], *AXES[2], "--mismatch")
"""Options of a grid of templates, besides --freq."""
DATA_OPTIONS = ("--min-start", "--max-start", "--ra", "--dec", "--tref", "--ephemeris", "--noise", "--freq")
"""Options of SFTs and of their position and frequency."""
OPTIONS = (*DATA_OPTIONS, *GRID_OPTIONS, "--templates", "--inject")
"""Options of ``skysieve fstat search`` that concern SFTs."""
MAP_OPTIONS = (*DATA_OPTIONS, "--f1dot", "--f2dot", "--atoms")
"""Options of ``skysieve fstat map`` that concern SFTs."""
Mismatch = Annotated[
    float,
    _number(
        "--mismatch",
        "Largest fraction of 2F that is lost between templates, for a signal as long as the data. The default is 0.1.",
        "M",
    ),
]
TemplateList = Annotated[
    Path | None,
    option(
        "--templates", help="List of templates instead of a grid: lines of f0, f1dot and f2dot, a CSV file with these "
                            "column names, or a table of PyFstat or LALPulsar; '-' is standard input.",
        panel=TEMPLATES, metavar="FILE",
    ),
]  # fmt: skip
Inject = Annotated[
    list[str] | None,
    option(
        "--inject", help="Add a signal to the SFTs, given as for 'simulate --signal' but with its frequency at --tref. "
                         "May be repeated. The default is none.",
                         panel=SFTS, metavar="F0,H0,RA,DEC[,F1DOT[,WINDOW,T0,TAU]]",
    ),
]  # fmt: skip
EXTRA = 1.05e-4
"""Largest relative Doppler shift from the motion of the Earth, with a margin."""
LIGHT_TIME = 600.0
"""Seconds by which times at the barycentre may differ from those at the detector, with a margin."""
BINS, FEW_BINS = 60, 10
"""Bins beyond the templates' frequencies on each side, for the running median and the sum over bins, or for the sum
alone."""


def opened(
    patterns: list[str], detectors: str | None, times: tuple[int | None, int | None], ra: float | None,
    dec: float | None, tref: float | None, ephemeris: str, noise: str | None,
    axes: tuple[tuple[float | None, float, float | None], ...],
    mismatch: float, listed: Path | None, signals: Sequence[str], faults: list[str], dtype: Dtype, prior: BSGL | None,
) -> tuple[Demodulator, TemplateBank]:  # fmt: skip
    """Read the SFTs that templates need, and make the templates.

    Parameters
    ----------
    axes : three of (lowest, range, step)
        Ranges of the frequency and its derivatives.
    listed : pathlib.Path or None
        List of templates, instead of `axes`.
    signals : sequence of str
        Signals to add to the SFTs.
    faults : list of str
        Receives the reasons for which SFTs are left out.
    dtype : {"float32", "float64"}
        Precision of the demodulation.
    prior : BSGL or None
        Prior of the line-robust statistic, which must fit the detectors.

    Raises
    ------
    ValueError, OSError
        An option is missing or wrong, or the files cannot be used.
    """
    from skysieve.fstat.demod.bank import NAMES, TemplateBank, spacing
    from skysieve.fstat.demod.demodulator import Demodulator
    from skysieve.fstat.demod.simulate import inject
    from skysieve.fstat.inputs.detectors import sky_position
    from skysieve.fstat.sfts.files import read_sfts

    lowest, grid = axes[0][0], None
    if ra is None or dec is None or (lowest is None and listed is None):
        found = _found(ra=ra, dec=dec, freq=lowest, templates=listed)
        raise ValueError(f"--sfts needs --ra, --dec and --freq or --templates; found {found}")
    _check_numbers(axes, {"--ra": ra, "--dec": dec, "--tref": tref})
    if lowest is not None and lowest <= 0:
        raise ValueError(f"--freq {lowest}: expected a number above 0")
    if listed is not None and lowest is not None:
        raise ValueError("--freq and --templates: expected one of them")
    sky_position(ra, dec)
    source = _source(ephemeris)
    added = [_signal("--inject", text, tref or 0.0) for text in signals]
    names = detectors.split(",") if detectors else None
    levels = _levels(noise)
    whole = extent(patterns, names, times)
    if prior is not None:
        prior.odds(names or whole.detectors)
    if listed is not None:
        bank = _list_of(listed)
    else:
        span = whole.span
        steps = spacing(span, mismatch, max(1, sum(width > 0 for _, width, _ in axes)))
        grid = [(start or 0.0, (start or 0.0) + width, step or usual) for (start, width, step), usual in zip(
            axes, steps, strict=True)]  # fmt: skip
        try:
            bank = TemplateBank.grid(*grid)
        except ValueError as error:  # "f1dot=(0.0, 1.0, 1e-18): ..."
            name, text = str(error).split("=")[0], str(error).split("): ", 1)[-1]
            at = NAMES.index(name)
            raise ValueError(f"{AXES[at][1]} {axes[at][1]:g}, {AXES[at][2]} {grid[at][2]:.3g}: {text}") from None
    bins = BINS if noise is None else FEW_BINS
    band = _band(whole, bank, tref, grid is None, bins)
    if grid is not None:
        _check_band(whole, band, axes, bins)
    made = read_sfts(patterns, detectors=names, band=band, min_start=times[0], max_start=times[1], faults=faults)
    if added:
        middle = 0.5 * (min(one.t[0] for one in made) + max(one.t[-1] for one in made) + made[0].tsft)
        at = round(middle) if tref is None else tref
        made = inject(made, [replace(one, tref=at) for one in added], source)
    used = [one.detector for one in made]
    if len(levels) not in (0, 1, len(used)):
        raise ValueError(f"--noise {noise}: expected one value, or {len(used)}, of {', '.join(used)}")
    known = None if not levels else dict(zip(used, levels * len(used) if len(levels) == 1 else levels, strict=True))
    return Demodulator(made, ra, dec, tref, barycentre=source, noise=known, dtype=dtype), bank


def _levels(noise: str | None) -> list[float]:
    """The numbers of ``--noise``; empty if it is not given."""
    if noise is None:
        return []
    try:
        found = [float(text) for text in noise.split(",")]
    except ValueError:
        found = [0.0]
    if not all(0 < level < float("inf") for level in found):
        raise ValueError(f"--noise {noise}: expected numbers above 0, with a comma between")
    return found


def of_one_template(
    patterns: list[str], detectors: str | None, times: tuple[int | None, int | None], ra: float | None,
    dec: float | None, tref: float | None, ephemeris: str, noise: str | None, freq: float | None,
    derivatives: tuple[float, float], faults: list[str], dtype: Dtype,
) -> Demodulator:  # fmt: skip
    """Read the SFTs that one template needs; the arguments are those of `opened`."""
    if ra is None or dec is None or freq is None:
        raise ValueError(f"--sfts needs --ra, --dec and --freq; found {_found(ra=ra, dec=dec, freq=freq)}")
    axes = tuple((value, 0.0, None) for value in (freq, *derivatives))
    return opened(
        patterns, detectors, times, ra, dec, tref, ephemeris, noise, axes, 0.1, None, (), faults, dtype, None
    )[0]  # fmt: skip


def _found(**values: Any) -> str:
    """The options that are given, with their values."""
    return ", ".join(f"--{name} {value}" for name, value in values.items() if value is not None) or "none of them"


def seconds_of(days: float) -> int:
    """The option --days in seconds."""
    from skysieve.fstat.sfts.files import LAST_START

    most = LAST_START / 86400
    if not 0 < days <= most:
        raise ValueError(f"--days {days:g}: expected a number above 0, at most {most:.9g}")
    return round(days * 86400)


def _check_numbers(axes: Sequence[tuple[float | None, float, float | None]], others: dict[str, float | None]) -> None:
    for (first, given_width, given_step), (lowest, width, step) in zip(AXES, axes, strict=False):
        if width < 0:
            raise ValueError(f"{given_width} {width}: expected at least 0")
        if step is not None and step <= 0:
            raise ValueError(f"{given_step} {step}: expected a number above 0")
        others |= {first: lowest, given_width: width, given_step: step}
    check_finite(others)


def check_finite(given: Mapping[str, float | None]) -> None:
    """Refuse values of options that are infinite or NaN."""
    for name, value in given.items():
        if value is not None and not isfinite(value):
            raise ValueError(f"{name} {value}: expected a finite number")


def _list_of(path: Path) -> TemplateBank:
    from skysieve.fstat.demod.bank import TemplateBank

    if path == STDIO:
        return TemplateBank.read(read_stdin().decode().splitlines(), "standard input")
    with path.open(encoding="utf-8") as lines:
        return TemplateBank.read(lines, str(path))


@dataclass(frozen=True)
class Extent:
    """Extent of SFT files: start and span in seconds, length of an SFT, frequencies of all SFTs and of any SFT, and
    detectors."""

    start: float
    span: float
    tsft: float
    low: float
    high: float
    lowest: float
    highest: float
    detectors: list[str]


def extent(
    patterns: list[str], names: Sequence[str] | None = None, times: tuple[int | None, int | None] = (None, None)
) -> Extent:
    """The `Extent` of SFT files, from their headers; only of the detectors `names`, if there are SFTs of them."""
    import numpy as np

    from skysieve.fstat.sfts.files import blocks, detector_in, files_of, refuse_missing, start_times

    within, paths = start_times(*times), files_of(patterns)
    faults: list[str] = []
    fields = ("gps_sec", "tbase", "first_frequency_index", "nsamples")
    found, detectors = [], []
    for path in paths:
        for header, _ in blocks(path, False, times=within, data=False, faults=faults):
            found.append([float(header[name]) for name in fields])
            detectors.append(detector_in(header))
    if not found:
        refuse_missing(paths, None, [], within, [], faults)
    t, tsft, first, bins = np.array(found).T
    known, which = np.unique(detectors, return_inverse=True)
    wanted = np.isin(detectors, names or detectors)
    wanted |= not wanted.any()  # read_sfts reports that there are no SFTs of `names`
    lengths, counts = np.unique(tsft[wanted], return_counts=True)
    wanted &= tsft == lengths[np.argmax(counts)]  # read_sfts leaves out SFTs of other lengths
    t, tsft, first, bins, which = (x[wanted] for x in (t, tsft, first, bins, which))
    # narrow-band SFTs of one detector and time are joined
    _, one = np.unique(np.stack([which, t]), axis=1, return_inverse=True)
    low, high = np.full(one.max() + 1, np.inf), np.zeros(one.max() + 1)
    np.minimum.at(low, one, first / tsft)
    np.maximum.at(high, one, (first + bins - 1) / tsft)
    start, stop = float(t.min()), float((t + tsft).max())
    return Extent(
        start, stop - start, float(tsft[0]), float(low.max()), float(high.min()), float(low.min()), float(high.max()),
        known.tolist(),
    )  # fmt: skip


def _band(extent: Extent, bank: TemplateBank, tref: float | None, within: bool, bins: int) -> tuple[float, float]:
    """Frequencies that the templates may need during the data: with the Doppler shift, and `bins` on each side.

    With `within`, the band is cut to the frequencies in the files, so that only the templates outside it are lost.  The
    band is at least as wide as the running median of the noise.
    """
    import numpy as np

    from skysieve.fstat.sfts.noise import WINDOW

    first = extent.start - tref if tref is not None else -0.5 * extent.span
    most = 2**31 / extent.tsft
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = bank.frequencies(first - LIGHT_TIME, first + extent.span + LIGHT_TIME)
    if not (within or high < most):
        raise ValueError(
            f"--freq, --f1dot, --f2dot and --tref: templates reach {high:.9g} Hz during the data, expected frequencies "
            f"below {most:.9g} Hz"
        )
    margin = EXTRA * max(high, 0.0) + bins / extent.tsft
    low, high = max(0.0, low - margin), max(0.0, high + margin)
    if within:
        if max(low, extent.low) >= min(high, extent.high):
            raise ValueError(
                f"--templates: no template is within {extent.low:.9g} to {extent.high:.9g} Hz, the band of the SFTs"
            )
        room = 2 * WINDOW / extent.tsft
        low, high = max(min(low, extent.high - room), extent.low), min(max(high, extent.low + room), extent.high)
    return low, high


def _check_band(
    extent: Extent, band: tuple[float, float], axes: Sequence[tuple[float | None, float, float | None]], bins: int
) -> None:
    """Raise ValueError, with the options of the grid, if no SFT has the band that the templates need."""
    from skysieve.fstat.sfts.sfts import bins_of, missing_bins

    (first, last), (start, stop) = (bins_of(*ends, extent.tsft) for ends in (band, (extent.lowest, extent.highest)))
    if text := missing_bins(first, last, start, stop + 1 - start, extent.tsft):
        pairs = [pair for names, values in zip(AXES, axes, strict=True) for pair in zip(names, values, strict=True)]
        given = " ".join(f"{name} {value:.10g}" for name, value in pairs if value)
        raise ValueError(
            f"{given}: the templates need {band[0]:.9g} to {band[1]:.9g} Hz, which includes the Doppler shift and "
            f"{bins} bins on either side; the {text}"
        )


def simulate(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the SFT files; it is created if it does "
                                                                  "not exist.")],
    freq: Annotated[float, _number("--freq", "Lowest frequency. The default is 100.", "HZ", SFTS)] = 100.0,
    freq_band: Annotated[float, _number("--freq-band", "Range of frequencies. The default is 0.2.", "HZ", SFTS)] = 0.2,
    days: Annotated[float, _number("--days", "Length of the data. The default is 2.", "DAYS", SFTS)] = 2.0,
    start: Annotated[int, _number("--start", "Start time of the first SFT. The default is 1000000000.",
                                             "GPS", SFTS)] = 1_000_000_000,
    tsft: Annotated[int, _number("--tsft", "SFT length. The default is 1800.", "SECONDS", SFTS, min=1)] = 1800,
    detectors: Annotated[str, _number("--detectors", "Detectors. The default is H1,L1.", "H1,L1", SFTS)] = "H1,L1",
    noise: Annotated[
        float, _number("--noise", "Square root of the noise's power density. The default is 1e-23.", "1/SQRT(HZ)", SFTS)
    ] = 1e-23,
    signal: Annotated[
        list[str] | None,
        option(
            "--signal", help="Add a signal: frequency (Hz, at --start), amplitude, right ascension and declination "
                             "(radians), then first derivative (Hz/s), then window, start and duration of a transient. "
                             "May be repeated. By default the data are noise.",
                             panel=SFTS, metavar="F0,H0,RA,DEC[,F1DOT[,WINDOW,T0,TAU]]",
        ),
    ] = None,
    seed: Annotated[int, _number("--seed", "Seed of the random numbers. The default is 0.", "N", SFTS, min=0)] = 0,
    ephemeris: Ephemeris = "auto",
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Make SFT files of Gaussian noise and signals.

    Example: skysieve fstat simulate sfts --days 10 --signal 100.05,5e-25,0.5,1.0,-1e-10
    """
    with report_errors(names={"detector": "--detectors"}):
        messages = Messages(quiet)
        import numpy as np

        from skysieve.fstat.demod.simulate import simulate_sfts
        from skysieve.fstat.sfts.files import LAST_START, file_name, write_sfts

        check_output(folder, folder=True)
        span = seconds_of(days)
        _check_numbers(((freq, freq_band, None),), {"--noise": noise})
        if noise < 0:
            raise ValueError(f"--noise {noise:g}: expected at least 0")
        if freq < 0:
            raise ValueError(f"--freq {freq:g}: expected at least 0")
        if (freq + freq_band) * tsft >= 2**31:
            raise ValueError(
                f"--freq {freq:g}: expected frequencies below {2**31 / tsft:.9g} Hz for an SFT length of {tsft} s"
            )
        if not 0 <= start <= LAST_START - span:
            raise ValueError(f"--start {start}: expected 0 to {LAST_START} less the length of the data")
        with np.errstate(over="ignore", invalid="ignore"):
            made = simulate_sfts(
                (freq, freq + freq_band), start, span, detectors=detectors.split(","), tsft=tsft,
                noise=noise, signals=[_signal("--signal", text, start) for text in signal or ()], seed=seed,
                ephemeris=_source(ephemeris),
            )  # fmt: skip
        if not all(np.isfinite(one.data).all() for one in made):
            raise ValueError(f"--noise {noise:g} and --signal: the values do not fit into float32")
        for one in made:
            check_output(folder / file_name(one, range(len(one)), "skysieve") if folder.is_dir() else None, overwrite)
        folder.mkdir(exist_ok=True)
        for path, one in zip(write_sfts(folder, made, comment="skysieve fstat simulate"), made, strict=True):
            messages.wrote(path, f"{counted(len(one), 'SFT')} of {one.detector}")


def _signal(option_name: str, text: str, tref: float) -> Signal:
    from skysieve.fstat.demod.simulate import Signal

    parts = text.split(",")
    if len(parts) not in (4, 5, 8):
        raise ValueError(f"{option_name} {text}: expected 4, 5 or 8 values, found {len(parts)}")
    try:
        f0, h0, ra, dec, f1dot = (float(part) for part in (*parts[:5], *["0"] * (5 - len(parts[:5]))))
        when: dict[str, Any] = {} if len(parts) < 8 else {"window": parts[5], "t0": int(parts[6]), "tau": int(parts[7])}
    except ValueError:
        raise ValueError(f"{option_name} {text}: expected numbers, and for a transient WINDOW,T0,TAU") from None
    try:
        one_of("window", when.get("window", "none"), NAMED)
        return Signal(f0=f0, h0=h0, ra=ra, dec=dec, tref=tref, f1dot=f1dot, **when)
    except ValueError as error:
        raise ValueError(f"{option_name} {text}: {error}") from error
