"""Options of ``skysieve dedisp`` in groups that several commands share, and what the options do."""

from __future__ import annotations

import inspect
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from skysieve.core.checks import one_of
from skysieve.core.command import (
    OUTPUT,
    STDIO,
    DeviceOption,
    MemoryOption,
    Messages,
    ProgressOption,
    QuietOption,
    ThreadsOption,
    VerboseOption,
    needs,
    option,
    read_stdin,
    write_stdout,
)
from skysieve.dedispersion.contract import DETECTORS, DIP, EXCESS, SUMMATIONS, THRESHOLD
from skysieve.dedispersion.data.readers import FILE_FORMATS
from skysieve.dedispersion.data.sigproc import BIT_ORDERS
from skysieve.dedispersion.dm_plan.rules import FINEST, MOST_DMS, RULES
from skysieve.dedispersion.injections.interference import KINDS
from skysieve.dedispersion.result import SERIES_FORMATS
from skysieve.dedispersion.search_options import (
    DATA,
    SEARCH,
    DipOption,
    ExcessOption,
    IgnoreOption,
    MaxWidthOption,
    NoBaselineOption,
    NoiseOption,
    ThresholdOption,
    VetoOption,
    channel_numbers,
    listed,
    with_options,
)

if TYPE_CHECKING:
    from skysieve.dedispersion.clean.masks import Mask
    from skysieve.dedispersion.contract import Detector as DetectorName
    from skysieve.dedispersion.contract import Method as MethodName
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.data.sigproc import BitOrder as BitOrderName
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.dm_plan.rules import Rule as RuleName
    from skysieve.dedispersion.injections.grid import PulseGrid
    from skysieve.dedispersion.injections.noise import Noise
    from skysieve.dedispersion.result import SeriesFormat as SeriesName
else:

    def _choices(name: str, values: Any) -> type[StrEnum]:
        return StrEnum(name, {value: value for value in values})

    BitOrderName = _choices("BitOrder", BIT_ORDERS)
    DetectorName = _choices("Detector", DETECTORS)
    MethodName = _choices("Method", SUMMATIONS)
    RuleName = _choices("Rule", [name for name, rule in RULES.items() if not rule.needs])
    SeriesName = _choices("Series", SERIES_FORMATS)

DMS, PULSE = "DMs", "Pulse"
"""Panels of the help screens."""
HUGE = 1e9
"""Largest number of an option; with numbers near the largest float the arithmetic overflows."""
DM_NAMES = {"step": "--dm-step"}
"""Options of arguments that have another name."""


Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help=f"The data: {', '.join(f.name for f in FILE_FORMATS)}. Several files are joined by their times; '-' reads "
        "one from standard input.",
        show_default=False,
    ),
]
FilOutput = Annotated[
    Path, option("-o", "--output", help="The .fil to write; '-' is standard output.", panel=OUTPUT, metavar="OUT.fil")
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are dataclasses of options become these options.

    Choices reach the command as plain strings.
    """
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))
            continue
        inner = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=inner[f.name])
            for f in fields(groups[name])
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        plain = {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}
        made = {name: group(**{f.name: plain.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**plain, **made)

    run.__signature__ = inspect.Signature(parameters)  # pyrefly: ignore[missing-attribute]  # `inspect` reads it
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


@dataclass
class Reports:
    """What a command prints."""

    quiet: QuietOption = False
    verbose: VerboseOption = False
    progress: ProgressOption = None

    def messages(self) -> Messages:
        """See `Messages`."""
        return Messages(self.quiet, self.verbose, self.progress)


@dataclass
class Computation:
    """Where a command computes."""

    device: DeviceOption = "auto"
    threads: ThreadsOption = None
    memory: MemoryOption = None


@dataclass
class DataOptions:
    """How files are read."""

    bit_order: Annotated[
        BitOrderName,
        option(
            "--bit-order",
            help=f"Order of SIGPROC samples of 1, 2 or 4 bits: {listed(BIT_ORDERS)}. The default is little.",
            panel=DATA,
        ),
    ] = "little"
    ifs: Annotated[
        str,
        option(
            "--ifs",
            help="Polarisation to use: sum, or a number from 0. The default is sum.",
            panel=DATA,
            metavar="WHICH",
        ),
    ] = "sum"

    @contextmanager
    def open(self, files: list[Path]) -> Iterator[Filterbank]:
        """The files as one filterbank; standard input is copied to a temporary file first."""
        from skysieve.dedispersion.data.filterbank import Filterbank

        if self.ifs != "sum" and not self.ifs.isdecimal():
            raise ValueError(f"--ifs {self.ifs}: expected sum or the number of a polarisation, from 0")
        with ExitStack() as stack:
            if STDIO in files:
                if len(files) > 1:
                    raise ValueError("'-' (standard input) cannot be combined with files")
                path = Path(stack.enter_context(TemporaryDirectory(prefix="skysieve-"))) / "stdin.fil"
                with open(path, "wb") as file:
                    shutil.copyfileobj(sys.stdin.buffer, file)
                    if not file.tell():
                        raise ValueError("stdin: is empty")
                files = [path]
            with warnings_as_notes():
                fb = Filterbank.open(
                    files[0] if len(files) == 1 else files,
                    bit_order=self.bit_order,
                    ifs="sum" if self.ifs == "sum" else int(self.ifs),
                )
            yield stack.enter_context(fb)


@dataclass
class Cleaning:
    """Interference and filters."""

    zero_dm: Annotated[
        bool,
        option(
            "--zero-dm", "--zerodm", help="Subtract the mean over the channels from each sample (zero-DM filter). "
            "Off by default.", panel=DATA,
        ),
    ] = False  # fmt: skip
    z_dot: Annotated[
        bool,
        option(
            "--z-dot", "--zdot", help="Subtract from each channel its projection on the mean over the channels (z-dot "
            "filter), instead of --zero-dm. Off by default.", panel=DATA,
        ),
    ] = False  # fmt: skip
    mask: Annotated[
        Path | None,
        option(
            "--mask",
            help="Mask that PRESTO's rfifind wrote (.mask). By default no mask is read.",
            panel=DATA,
            metavar="FILE",
        ),
    ] = None
    rfi: Annotated[
        bool,
        option(
            "--rfi",
            help="Mask interference by mean, standard deviation and spectral kurtosis. Off by default.",
            panel=DATA,
        ),
    ] = False
    ignore: IgnoreOption = None

    def given(self) -> bool:
        """Whether any of the options was given."""
        return self != Cleaning()

    def check(self) -> None:
        """Refuse both filters."""
        if self.zero_dm and self.z_dot:
            raise ValueError("--zero-dm and --z-dot: expected one of the two filters")

    def masked(self, fb: Filterbank, messages: Messages) -> Mask | None:
        """The union of all masks that the options name; None without any."""
        from skysieve.dedispersion.clean.masks import Mask
        from skysieve.dedispersion.clean.rfi import read_rfifind, rfi_mask

        parts: list[Mask] = []
        if self.mask is not None:
            with warnings_as_notes():
                parts.append(read_rfifind(self.mask, fb))
        if self.ignore:
            parts.append(Mask.channels(fb.nchan, channel_numbers(self.ignore, fb.nchan)))
        if self.rfi:
            parts.append(rfi_mask(fb, block=None if self.mask is None else parts[0].block))
        if not parts:
            return None
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.union(part)
        messages.say(f"masked: {1 - whole.weight_of(fb.nsamp):.2%} of the data")
        return whole

    def prepared(
        self, fb: Filterbank, messages: Messages, to_bytes: bool = False
    ) -> tuple[Filterbank, Mask | None, Mask | None]:
        """The data, filtered and requantised if ``to_bytes``, the mask that they need, and the mask of all that is
        masked.

        Dropped and masked samples are replaced before the mean over the channels is subtracted, and channels that are
        masked throughout are left out of it, so that they do not change it.
        """
        from skysieve.dedispersion.clean.repair import fill_dropped, repaired, split_mask
        from skysieve.dedispersion.clean.rfi import zero_dm
        from skysieve.dedispersion.clean.zdot import z_dot
        from skysieve.dedispersion.contract import block_samples
        from skysieve.dedispersion.data.requantise import LOSS, requantise

        self.check()
        changes = to_bytes or self.zero_dm or self.z_dot
        if self.rfi or changes:
            fb = fill_dropped(fb)
        every = cut = self.masked(fb, messages)
        ignore: Any = ()
        if cut is not None and changes:
            cut, cells = split_mask(cut, fb)
            if cells is not None:
                fb = repaired(fb, fb.lost, cells, block_samples(fb.tsamp))
            if cut is not None:
                ignore = cut.cells[:, 0].nonzero()[0]
        if to_bytes:
            fb = requantise(fb)
            messages.say(f"requantised to 8 bits, which costs {LOSS:.2%} of the S/N")
        if self.zero_dm or self.z_dot:
            fb = (z_dot if self.z_dot else zero_dm)(fb, ignore=ignore)
        return fb, cut, every


@dataclass
class DmOptions:
    """Which DMs."""

    dm_max: Annotated[
        float | None, option("--dm-max", "--hidm", help="Highest DM in pc/cm^3.", panel=DMS, metavar="DM")
    ] = None
    dm_min: Annotated[
        float, option("--dm-min", "--lodm", help="Lowest DM in pc/cm^3. The default is 0.", panel=DMS, metavar="DM")
    ] = 0.0
    dm_step: Annotated[
        float | None,
        option(
            "--dm-step",
            "--dmstep",
            help="Equal spacing of the DMs in pc/cm^3, instead of a rule.",
            panel=DMS,
            metavar="DM",
        ),
    ] = None
    num_dms: Annotated[
        int | None,
        option(
            "--num-dms", "--numdms", help="Number of DMs, with --dm-step, instead of --dm-max.", panel=DMS,
            metavar="N", min=1,
        ),
    ] = None  # fmt: skip
    rule: Annotated[
        RuleName | None,
        option(
            "--rule",
            help="Rule that chooses the DMs: "
            f"{with_options(listed({n: r for n, r in RULES.items() if not r.needs}))}. The default is loss.",
            panel=DMS,
        ),
    ] = None
    max_loss: Annotated[
        float,
        option(
            "--max-loss", help="Fraction of the S/N that may be lost between two DMs. The default is 0.1.", panel=DMS,
            metavar="X",
        ),
    ] = 0.1  # fmt: skip
    tol: Annotated[
        float,
        option(
            "--tol",
            help="Factor by which the smearing grows from DM to DM with --rule tolerance. The default is 1.25.",
            panel=DMS,
            metavar="X",
        ),
    ] = 1.25
    width: Annotated[
        float,
        option("--width", help="Intrinsic width of pulses in seconds. The default is 4e-5.", panel=DMS, metavar="S"),
    ] = 40e-6
    nsub: Annotated[
        int,
        option(
            "--nsub", help="Number of subbands of the two-stage method. The default is 0, for none.", panel=DMS,
            metavar="N", min=0,
        ),
    ] = 0  # fmt: skip
    scattering: Annotated[
        bool,
        option(
            "--scattering",
            help="Limit DMs and binning by the scattering of Bhat et al. (2004). Off by default.",
            panel=DMS,
        ),
    ] = False
    downsamp: Annotated[
        int | None,
        option(
            "--downsamp",
            help="Number of samples to add in time. By default the rule decides; with --dm-step it is 1.",
            panel=DMS,
            metavar="N",
            min=1,
        ),
    ] = None
    stages: Annotated[
        str | None,
        option(
            "--stages",
            help="A survey plan, instead of a rule: rows of low DM, high DM, step, binning and (with --nsub) spacing "
            "of nominal DMs, with ';' between the rows and ',' between the numbers; or a text file with a row in each "
            "line.",
            panel=DMS,
            metavar="ROWS|FILE",
        ),
    ] = None
    dm_constant: Annotated[
        float | None,
        option(
            "--dm-constant", help="Dispersion constant, MHz^2 s cm^3/pc. The default is 1/2.41e-4.", panel=DMS,
            metavar="K",
        ),
    ] = None  # fmt: skip

    def check(self, saved: Path | None = None) -> None:
        """Refuse options that contradict each other, or that name no DMs; this needs no data."""
        if saved is not None:
            ignored = ("max_loss", "tol", "width")
            if any(getattr(self, f.name) != f.default for f in fields(self) if f.name not in ignored):
                raise ValueError(
                    "--plan cannot be combined with --dm-min, --dm-max, --dm-step, --num-dms, --rule, --nsub, "
                    "--scattering, --downsamp, --stages and --dm-constant: the plan contains these"
                )
            needs("a rule, not --plan", False, "--max-loss", "--tol", "--width")
            return
        if self.stages is not None:
            others = (self.dm_max, self.dm_step, self.num_dms, self.rule, self.downsamp)
            if any(value is not None for value in others) or self.dm_min != 0 or self.scattering:
                raise ValueError(
                    "--stages cannot be combined with --dm-min, --dm-max, --dm-step, --num-dms, --rule, --scattering "
                    "and --downsamp: the rows contain these"
                )
            self.stage_rows()
        if self.num_dms is not None and self.dm_max is not None:
            raise ValueError(
                "--num-dms cannot be combined with --dm-max: --dm-min, --dm-step and --num-dms give the highest DM"
            )
        if self.rule is not None and (self.num_dms is not None or self.dm_step is not None):
            raise ValueError("--rule cannot be combined with --dm-step and --num-dms: it chooses the steps")
        if self.num_dms is not None and self.num_dms > 1 and self.dm_step is None:
            raise ValueError("--num-dms needs --dm-step")
        if not (math.isfinite(self.dm_min) and self.dm_min >= 0):
            raise ValueError(f"--dm-min {self.dm_min:g}: expected a number of at least 0")
        if self.dm_step is not None and not FINEST <= self.dm_step < math.inf:
            raise ValueError(f"--dm-step {self.dm_step:g}: expected a DM step of at least {FINEST:g}")
        if self.num_dms is not None and self.num_dms > MOST_DMS:
            raise ValueError(f"--num-dms {self.num_dms}: expected at most {MOST_DMS} DMs")
        ruled = self.stages is None and self.num_dms is None and self.dm_step is None
        refuse_huge({
            "--dm-max": self.dm_max, "--dm-min": self.dm_min, "--dm-step": self.dm_step, "--width": self.width,
            "--tol": self.tol, "--dm-constant": self.dm_constant,
        })  # fmt: skip
        needs("--rule loss", ruled and self.rule in (None, "loss"), "--max-loss")
        needs("--rule tolerance", self.rule == "tolerance", "--tol")
        needs("a rule, not --stages, --dm-step or --num-dms", ruled, "--width")

    def stage_rows(self) -> list[list[float]]:
        """The rows of the option --stages."""
        text = self.stages or ""
        name = f"--stages {text}"
        try:
            file = Path(text).is_file()
        except (OSError, ValueError):  # rows can be longer than a file's name may be
            file = False
        if file:
            lines = [line.partition("#")[0] for line in Path(text).read_text(encoding="utf-8").splitlines()]
        elif not any(c in text for c in ",; ") and not text.replace(".", "").isdigit():
            raise FileNotFoundError(f"{name}: expected rows of numbers, or the name of an existing file")
        else:
            lines = text.split(";")
        rows = []
        for line in lines:
            words = line.replace(",", " ").split()
            try:
                row = [float(word) for word in words]
            except ValueError:
                row = []
            if words and len(row) not in (4, 5):
                raise ValueError(
                    f"{name}: '{line.strip()}' is not a row of low DM, high DM, step, binning and (with --nsub) "
                    "nominal spacing"
                )
            if row:
                rows.append(row)
        if not rows or len({len(row) for row in rows}) > 1:
            raise ValueError(f"{name}: expected one or more rows of equal length")
        return rows

    def plan(self, fb: Filterbank, saved: Path | None = None) -> DMPlan:
        """The plan of the options, or the one that was saved."""
        from skysieve.dedispersion.data.observation import DM_CONSTANT
        from skysieve.dedispersion.dm_plan.plan import DMPlan
        from skysieve.dedispersion.dm_plan.plan import plan as make

        self.check(saved)
        if saved is not None:
            return DMPlan.from_json(read_stdin(), "--plan -") if saved == STDIO else DMPlan.load(saved)
        k = DM_CONSTANT if self.dm_constant is None else self.dm_constant
        if self.stages is not None:
            return make(fb, stages=self.stage_rows(), nsub=self.nsub, dm_constant=k)
        if fb.observation.dm is not None and (self.num_dms, self.dm_step) == (None, None):
            if self.dm_max is None:
                return make(fb, dms=[0.0], downsamp=self.downsamp or 1, dm_constant=k)
            if self.dm_max == self.dm_min:  # a rule would add a DM above the highest
                return make(fb, dms=[self.dm_max], downsamp=self.downsamp or 1, dm_constant=k)
        common: dict[str, Any] = {
            "nsub": self.nsub, "scattering": "bhat2004" if self.scattering else None, "dm_constant": k,
        }  # fmt: skip
        if self.num_dms is not None:
            values = [round(self.dm_min + i * (self.dm_step or 0.0), 9) for i in range(self.num_dms)]
            return make(fb, dms=values, downsamp=self.downsamp or 1, **common)
        if self.dm_max is None:
            raise ValueError("no highest DM is given; expected --dm-max, --num-dms with --dm-step, --stages or --plan")
        if self.dm_step is not None:
            step = self.dm_step
            return make(fb, self.dm_max, dm_min=self.dm_min, step=step, downsamp=self.downsamp or 1, **common)
        with warnings_as_notes():
            return make(
                fb, self.dm_max, dm_min=self.dm_min, rule=self.rule or "loss", max_loss=self.max_loss, tol=self.tol,
                width=self.width, downsamp="auto" if self.downsamp is None else self.downsamp, **common,
            )  # fmt: skip


MethodOption = Annotated[
    MethodName,
    option(
        "--method",
        help=f"How channels are summed: {with_options(listed(SUMMATIONS))}. The default is auto.",
        panel=SEARCH,
    ),
]
DetectorOption = Annotated[
    DetectorName,
    option("--detector", help=f"How pulses are detected: {listed(DETECTORS)}. The default is boxcar.", panel=SEARCH),
]


@dataclass
class Grouping:
    """Which events are one candidate."""

    excess: ExcessOption = EXCESS
    dip: DipOption = DIP

    def check(self) -> None:
        """Refuse numbers that no file allows."""
        for name, value in (("excess", self.excess), ("dip", self.dip)):
            if not value > 0:
                raise ValueError(f"{name}={value!r}: expected an S/N above 0; inf is allowed")
        refuse_huge({"--excess": self.excess, "--dip": self.dip})


@dataclass
class Searching:
    """How series are searched."""

    threshold: ThresholdOption = THRESHOLD
    noise: NoiseOption = "robust"
    detector: DetectorOption = "boxcar"
    buffer: Annotated[
        int | None,
        option(
            "--buffer",
            help="Length of a buffer of --detector threshold in samples. The default is the length of a noise block.",
            panel=SEARCH,
            metavar="N",
        ),
    ] = None
    block: Annotated[
        float | None,
        option(
            "--block", help="Length of the noise blocks in seconds. The default is 2, or longer if pulses need it.",
            panel=SEARCH, metavar="S",
        ),
    ] = None  # fmt: skip
    max_width: MaxWidthOption = None
    no_baseline: NoBaselineOption = False
    veto: VetoOption = None
    method: MethodOption = "auto"

    def check(self) -> None:
        """Refuse options that the detector does not have, and numbers that no file allows."""
        if not 0 < self.threshold < math.inf:
            raise ValueError(f"threshold={self.threshold!r}: expected a number above 0")
        if self.block is not None and self.buffer is not None:
            raise ValueError("--block and --buffer: expected one of them")
        refuse_huge({"--threshold": self.threshold, "--block": self.block, "--max-width": self.max_width})
        boxcar = self.detector == "boxcar"
        needs("--detector threshold", not boxcar, "--buffer")
        needs("--detector boxcar", boxcar, "--max-width")
        needs("--detector boxcar", boxcar or not self.veto, "--veto")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `search`."""
        given = dict(vars(self))
        return {"baseline": not given.pop("no_baseline"), **given}


@dataclass
class Injected:
    """Which pulses are injected."""

    grid: Annotated[
        str | None,
        option(
            "--grid",
            help="Pulses: NAME=VALUES with ';' between names. Of values with commas between them every combination is "
            "injected; LOW:HIGH is a range to draw from. Names: snr, dm, width (FWHM, s), scatter (s at mid band), "
            "index (spectral), band (LOW:HIGH, parts from 0, the bottom, to 1, the top), time (s; 'inject' only). "
            "Defaults of names that are not given: snr=7,8,9,10;dm=10% to 90% of those searched;width=0.001:0.01;"
            "scatter=0;index=0;band=0:1.",
            panel=PULSE, metavar="GRID",
        ),
    ] = None  # fmt: skip
    pulses: Annotated[int | None, option("--pulses", panel=PULSE, metavar="N", min=0, help="Number of pulses. The "
                                         "default of 'completeness' is 1000, that of 'inject' one of each combination.")
    ] = None  # fmt: skip
    interference: Annotated[
        str | None,
        option(
            "--interference",
            help="Kinds of interference to add, with commas between, or all: "
            f"{'; '.join(f'{name} ({kind.help})' for name, kind in KINDS.items())}. The default is none.",
            panel=PULSE, metavar="KINDS",
        ),
    ] = None  # fmt: skip
    seed: Annotated[
        int,
        option("--seed", help="Seed of the random numbers. The default is 0.", panel=PULSE, metavar="N", min=0),
    ] = 0

    def pulse_grid(self, dms: tuple[float, float]) -> PulseGrid:
        """The grid; DMs are drawn between ``dms`` if it has none."""
        from skysieve.dedispersion.injections.grid import PulseGrid

        try:
            return PulseGrid.parse(self.grid or "", dm=dms)
        except ValueError as error:
            raise ValueError(f"--grid: {error}") from None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of interference."""
        if self.interference is None:
            return ()
        names = tuple(name.strip() for name in self.interference.split(","))
        for name in names:
            one_of("--interference", name, (*KINDS, "all"))
        return tuple(KINDS) if "all" in names else names


@dataclass
class Receiver:
    """The receiver of simulated noise."""

    nchan: Annotated[
        int, option("--nchan", help="Number of channels. The default is 256.", panel=DATA, metavar="N", min=1)
    ] = 256
    fch1: Annotated[
        float,
        option("--fch1", help="Centre of the first channel in MHz. The default is 1500.", panel=DATA, metavar="F"),
    ] = 1500.0
    foff: Annotated[
        float,
        option(
            "--foff", help="Step from channel to channel in MHz. The default is -1.171875.", panel=DATA, metavar="F"
        ),
    ] = -1.171875
    tsamp: Annotated[
        float, option("--tsamp", help="Sampling time in seconds. The default is 256e-6.", panel=DATA, metavar="S")
    ] = 256e-6
    nbits: Annotated[int, option("--nbits", help="Bits per sample. The default is 8.", panel=DATA, metavar="N")] = 8
    duration: Annotated[
        float,
        option(
            "--duration", help="Seconds of noise; 'completeness' searches this many at a time. The default is 60.",
            panel=DATA, metavar="S",
        ),
    ] = 60.0  # fmt: skip

    def noise(self, files: object) -> Noise:
        """The receiver, unless there are files."""
        from skysieve.dedispersion.injections.noise import Noise

        if files and self != Receiver():
            raise ValueError(
                "--nchan, --fch1, --foff, --tsamp, --nbits and --duration describe noise; expected no files with them"
            )
        refuse_huge({
            "--fch1": self.fch1, "--foff": self.foff, "--tsamp": self.tsamp, "--duration": self.duration,
        })  # fmt: skip
        made = Noise(**vars(self))
        if self.duration / self.tsamp >= 2**53:
            raise ValueError(f"--duration {self.duration:g}, --tsamp {self.tsamp:g}: expected fewer than 2^53 samples")
        return made


PlanFile = Annotated[
    Path | None,
    option(
        "--plan", help="A plan that 'skysieve dedisp plan' saved, instead of a rule; '-' is standard input.", panel=DMS,
        metavar="JSON",
    ),
]  # fmt: skip
Requantise = Annotated[
    bool,
    option(
        "--requantise",
        help="First convert the samples to 8 bits, with equal noise in every channel. Off by default.",
        panel=DATA,
    ),
]
SeriesOption = Annotated[
    SeriesName, option("--format", help=f"Format of the series: {listed(SERIES_FORMATS)}. The default is dat.",
                       panel=OUTPUT)
]  # fmt: skip


Scatter = Annotated[
    float,
    option("--scatter", help="Scattering time at mid band in seconds. The default is 0.", panel=PULSE, metavar="S"),
]


_CATCHING = Lock()
"""Held while warnings are caught, which threads can do in turn only."""


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print warnings as notes, a line each."""
    with _CATCHING, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        typer.echo(f"note: {warning.message}", err=True)


@contextmanager
def output_file(path: Path, suffix: str) -> Iterator[Path]:
    """A file to write: ``path`` itself, or a temporary one that is copied to standard output at the end."""
    if path != STDIO:
        yield path
        return
    with TemporaryDirectory(prefix="skysieve-") as folder:
        file = Path(folder) / f"output{suffix}"
        yield file
        write_stdout(file.read_bytes())


def refuse_huge(values: Mapping[str, float | None]) -> None:
    """Refuse finite values of options that exceed `HUGE`; infinite ones have messages of their own, or are allowed."""
    for name, value in values.items():
        if value is not None and HUGE < abs(value) < math.inf:
            raise ValueError(f"{name} {value:g}: expected at most {HUGE:g}")


def speed(rate: float, realtime: float, method: str, device: str, seconds: float) -> str:
    """Method, device, rate and real-time factor in a line."""
    return f"{method} on {device}: {seconds:.2f} s, {rate / 1e9:.3g} Gadd/s, {realtime:.3g} x real time"
