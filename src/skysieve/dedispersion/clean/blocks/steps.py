"""The steps of the default cleaning, the options that choose them, and the blocks of data on which they work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = [
    "AHEAD", "CLEANING", "CLEAN_HELP", "LEAST_PIECES", "PIECES", "Clean", "Step", "StepName",
    "cleaning_steps", "parse_steps", "piece_samples",
]  # fmt: skip

PIECE_SECONDS, LEAST_PIECE, MOST_PIECE = 0.016, 16, 512
"""Length of the pieces from which statistics are computed: in seconds, and its limits in samples."""
PIECES = 32
"""Pieces of a block."""
LEAST_PIECES = 8
"""A last block of fewer pieces is cleaned with the statistics of the block before it."""
AHEAD = 8
"""Pieces after a block that are examined with it."""


@dataclass(frozen=True)
class Step:
    """A step of the cleaning.

    Attributes
    ----------
    help : str
    usual : bool
        Whether it is done by default: it costs less than 1% of the S/N in clean noise.
    """

    help: str
    usual: bool = True


StepName = Literal["gain", "channels", "cells", "impulses"]
CLEANING: dict[StepName, Step] = {
    "gain": Step("steps of the gain, in all or part of the band, are undone"),
    "channels": Step(
        "bad channels are left out; they are found by autocorrelation, slow or intermittent changes, and sigma"
    ),
    "cells": Step("narrow-band signals are replaced by noise, channel by channel in pieces of about 16 ms"),
    "impulses": Step(
        "pulses that are stronger at DM 0 than at any DM of 3 or more (10 or more in a part of the band), such as "
        "radar, are replaced by noise"
    ),
}
"""Steps of the cleaning, in the order in which they are done."""
Clean = bool | Literal["all", "none"] | StepName | Sequence[StepName] | None
"""Type of the argument of `cleaning_steps`."""


def cleaning_steps(clean: Clean) -> tuple[StepName, ...]:
    """The names of the requested steps, in the order in which they are done.

    Parameters
    ----------
    clean : bool, str, sequence of str or None
        None, True or "all" for the usual steps, False or "none" for none, or names of `CLEANING`.

    Raises
    ------
    ValueError
        A name is not one of `CLEANING`.

    Examples
    --------
    >>> cleaning_steps(None), cleaning_steps(["impulses", "channels"]), cleaning_steps("none")
    (('gain', 'channels', 'cells', 'impulses'), ('channels', 'impulses'), ())
    """
    if isinstance(clean, str) and clean in ("all", "none"):
        clean = clean == "all"
    if clean is None or isinstance(clean, (bool, np.bool_)):
        return tuple(name for name, step in CLEANING.items() if step.usual) if clean is None or clean else ()
    given = [clean] if isinstance(clean, str) else list(clean)
    unknown = [name for name in given if name not in CLEANING]
    if unknown:
        expected = f"None, True, False, 'all', 'none' or some of {', '.join(map(repr, CLEANING))}"
        raise ValueError(f"clean={clean!r}: expected {expected}")
    return tuple(name for name in CLEANING if name in given)


CLEAN_HELP = (
    "What to remove before the search: all, none, or a list of: "
    + "; ".join(f"{name} ({step.help})" for name, step in CLEANING.items())
    + f". The default is all: {','.join(cleaning_steps(None))}."
)
"""Help of the option ``--clean``."""


def parse_steps(text: str | None) -> tuple[StepName, ...] | None:
    """Read the option ``--clean``: ``all``, ``none``, or a list of steps; None, where it is not given, stays None.

    >>> parse_steps("channels,impulses")
    ('channels', 'impulses')
    """
    if text is None:
        return None
    if text in ("all", "none"):
        return cleaning_steps(text == "all")
    given: Any = [part.strip() for part in text.split(",")]
    if any(part not in CLEANING for part in given):
        raise ValueError(f"--clean {text}: expected all, none, or some of {','.join(CLEANING)}")
    return cleaning_steps(given)


def piece_samples(tsamp: float) -> int:
    """Samples of a piece: a power of two.

    >>> piece_samples(512e-6)
    32
    """
    return int(min(max(2 ** round(math.log2(PIECE_SECONDS / tsamp)), LEAST_PIECE), MOST_PIECE))
