"""Options of the search that ``skysieve dedisp search``, ``completeness`` and ``stream`` share."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from skysieve.core.command import option

from .clean.blocks.steps import CLEAN_HELP
from .contract import DIP_HELP, EXCESS_HELP, NOISE, THRESHOLD

if TYPE_CHECKING:
    from .contract import Noise as NoiseName
else:  # typer takes choices from enumerations
    NoiseName = StrEnum("Noise", {name: name for name in NOISE})

DATA, SEARCH = "Data", "Search"
"""Panels of the help screens."""


def listed(registry: Any) -> str:
    """The entries of a registry for a help text: ``name (help); name (help)``.

    >>> listed({"median": "robust", "mean": "fast"})
    'median (robust); mean (fast)'
    """
    return "; ".join(f"{name} ({getattr(entry, 'help', entry)})" for name, entry in registry.items())


def with_options(text: str) -> str:
    """A help text in which arguments of Python's functions are options of the command.

    >>> with_options("at most `max_loss` of the S/N")
    'at most --max-loss of the S/N'
    """
    return re.sub(r"`(\w+)`", lambda found: "--" + found[1].replace("_", "-"), text)


ThresholdOption = Annotated[
    float,
    option("-t", "--threshold", help=f"Least S/N of an event. The default is {THRESHOLD}.", panel=SEARCH, metavar="X"),
]
NoiseOption = Annotated[
    NoiseName, option("--noise", help=f"Noise estimator: {listed(NOISE)}. The default is robust.", panel=SEARCH)
]
MaxWidthOption = Annotated[
    float | None,
    option(
        "--max-width", help="Widest boxcar in seconds, for DMs with the least binning. The default is 308 samples.",
        panel=SEARCH, metavar="S",
    ),
]  # fmt: skip
NoBaselineOption = Annotated[
    bool, option("--no-baseline", help="Do not remove slow drifts of the level from the series.", panel=SEARCH)
]
IgnoreOption = Annotated[
    str | None,
    option(
        "--ignore", "--ignorechan",
        help="Channels to leave out, such as 0,5:9. Channel 0 has the highest frequency, whatever the order in the "
        "file; for PRESTO's -ignorechan, it has the lowest. The default is none.",
        panel=DATA, metavar="LIST",
    ),
]  # fmt: skip


def channel_numbers(text: str | None, nchan: int) -> list[int]:
    """Read the option ``--ignore``: a list of channels and ranges, with both ends; nothing if it is not given.

    Raises
    ------
    ValueError
        `text` is not such a list, a range is descending, a number is not in 0 ... ``nchan - 1``, or all are listed.

    Examples
    --------
    >>> channel_numbers("0,5:9", 64)
    [0, 5, 6, 7, 8, 9]
    """
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, colon, last = part.partition(":")
        try:
            low = int(first)
            high = int(last) if colon else low
        except ValueError:
            raise ValueError(f"--ignore {text}: expected channels such as 0,5:9") from None
        if not 0 <= low <= high < nchan:
            raise ValueError(
                f"--ignore {text}: expected channels from 0 to {nchan - 1}, and no range whose end is below its start"
            )
        found += range(low, high + 1)
    if len(set(found)) == nchan:
        raise ValueError(f"--ignore {text}: all channels are left out, so that nothing can be found")
    return found


CleanOption = Annotated[str | None, option("--clean", help=CLEAN_HELP, panel=DATA, metavar="STEPS")]
VETO_HELP = (
    "Check each candidate again, and leave out those that look like interference: as strong at DM 0, in a narrow part "
    "of the band, at the end of the data, or beside an uneven level. The default is --veto, and --no-veto with --clean "
    "none."
)
VetoOption = Annotated[bool | None, option("--veto/--no-veto", help=VETO_HELP, panel=SEARCH)]
ExcessOption = Annotated[float, option("--excess", help=EXCESS_HELP, panel=SEARCH, metavar="X")]
DipOption = Annotated[float, option("--dip", help=DIP_HELP, panel=SEARCH, metavar="X")]
