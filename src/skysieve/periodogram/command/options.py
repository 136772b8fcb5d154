"""Options that ``skysieve period`` and ``skysieve alerts`` share."""

from __future__ import annotations

from typing import Annotated

from skysieve.core.command import option

SEARCH = "Search"
"""Panel of the help screens."""

PeaksOption = Annotated[
    int,
    option("--peaks", help="Number of peaks of each object. The default is 5.", panel=SEARCH, metavar="N", min=1),
]
SAMPLES_HELP = "Number of frequencies per 1/T, where T is the time span."
TERMS_HELP = "Number of Fourier terms. The default is 1, and 2 for objects in several bands"
