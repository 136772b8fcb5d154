"""Options of ``skysieve dedisp`` that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from skysieve.core.command import option

DMS, DATA, SEARCH, OUTPUT = "DMs", "Data", "Search", "Output"


class Rule(StrEnum):
    """Rules that choose DMs."""

    loss = "loss"
    presto = "presto"
    tolerance = "tolerance"


class Method(StrEnum):
    """Ways to form the sums."""

    auto = "auto"
    brute = "brute"
    exact_subband = "exact-subband"
    subband = "subband"
    tree = "tree"


class Noise(StrEnum):
    """Level and sigma of a block."""

    robust = "robust"
    moments = "moments"
    clipped = "clipped"


class Detector(StrEnum):
    """Detectors."""

    boxcar = "boxcar"
    threshold = "threshold"


class Series(StrEnum):
    """Files of a series."""

    dat = "dat"
    tim = "tim"


Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help=".fil, PSRFITS, .dat, .tim; several are joined.")]
DmMax = Annotated[float | None, option("--dm-max", "--hidm", help="Highest DM.", panel=DMS, metavar="DM")]
DmMin = Annotated[float, option("--dm-min", "--lodm", help="Lowest DM (0).", panel=DMS, metavar="DM")]
Step = Annotated[float | None, option("--dm-step", "--dmstep", help="Even spacing.", panel=DMS, metavar="DM")]
Count = Annotated[int | None, option("--num-dms", "--numdms", help="Number of them.", panel=DMS, metavar="N", min=1)]
Rules = Annotated[Rule | None, option("--rule", help="loss, presto (DDplan), tolerance (loss).", panel=DMS)]
Loss = Annotated[float, option("--max-loss", help="S/N lost between two DMs (0.1).", panel=DMS, metavar="X")]
Tol = Annotated[float, option("--tol", help="Tolerance of --rule tolerance (1.25).", panel=DMS, metavar="X")]
Width = Annotated[float, option("--width", help="Intrinsic width, s (4e-5).", panel=DMS, metavar="S")]
Nsub = Annotated[int, option("--nsub", help="Subbands of the two-stage method.", panel=DMS, metavar="N", min=0)]
Scatter = Annotated[bool, option("--scattering", help="Bhat et al. 2004 limits DM and binning.", panel=DMS)]
PlanFile = Annotated[Path | None, option("--plan", help="A plan that was saved.", panel=DMS, metavar="JSON")]
Downsamp = Annotated[int | None, option("--downsamp", help="Samples to add in time.", panel=DATA, metavar="N", min=1)]
ZeroDm = Annotated[bool, option("--zero-dm", "--zerodm", help="Zero-DM filter.", panel=DATA)]
MaskFile = Annotated[Path | None, option("--mask", help="rfifind's .mask.", panel=DATA, metavar="FILE")]
Rfi = Annotated[bool, option("--rfi", help="Mask by channel statistics and spectral kurtosis.", panel=DATA)]
Ignore = Annotated[
    str | None,
    option("--ignore", "--ignorechan", help="Channels, as 0,5:9; 0 is the highest.", panel=DATA, metavar="LIST"),
]  # fmt: skip
Requantise = Annotated[bool, option("--requantise", help="8 bits of equal noise in every channel.", panel=DATA)]
BitOrder = Annotated[str, option("--bit-order", help="little, big (little).", panel=DATA, metavar="ORDER")]
Ifs = Annotated[str, option("--ifs", help="Polarisation: sum, or a number from 0 (sum).", panel=DATA, metavar="WHICH")]
Methods = Annotated[Method, option("--method", help="How sums are formed (auto: exact).", panel=SEARCH)]
Constant = Annotated[
    float | None, option("--dm-constant", help="MHz^2 s cm^3/pc (1/2.41e-4).", panel=SEARCH, metavar="K")
]
Device = Annotated[
    str, option("--device", help="auto, cpu, cuda, cuda:1, cuda:all (auto).", panel=SEARCH, metavar="DEVICE")
]
Threads = Annotated[int | None, option("--threads", help="CPU threads.", panel=SEARCH, metavar="N", min=1)]
Memory = Annotated[str | None, option("--memory", help="Working memory: 2GiB, 50%.", panel=SEARCH, metavar="SIZE")]
Quiet = Annotated[bool, option("-q", "--quiet", help="Print errors only.", panel=OUTPUT)]
