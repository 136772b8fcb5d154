"""`PulseGrid`, the parameters of the pulses of a campaign: values that are all combined, and ranges to draw from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

__all__ = ["PulseGrid", "usual_dms"]

Axis = Sequence[float] | float
"""A tuple of two numbers is a range to draw from; a list, or one number, are values."""


@dataclass(frozen=True)
class PulseGrid:
    """Values and ranges of the parameters of pulses.

    If parameters are values, every combination of them is injected.  If a parameter is a range (a tuple of two
    numbers), it is drawn for each pulse: the width uniformly in its logarithm, the other parameters uniformly.

    Attributes
    ----------
    snr : sequence of float
        S/N of the ideal boxcar, after smearing within channels and sampling.
    dm, width, scatter, index : tuple, list or float
        As in `Pulse`.
    band : (float, float) or list of them
        Parts of the band that pulses fill, from its bottom, 0, to its top, 1.
    time : list or float, optional
        Seconds at which pulses arrive at the top of the band.  By default they follow each other, two sweeps apart.

    Raises
    ------
    ValueError
        A value is not a number, or is out of the range of its parameter.

    Examples
    --------
    >>> grid = PulseGrid.parse("dm=100,300;width=0.001:0.01;snr=10")
    >>> grid.dm, grid.width, grid.combinations
    ([100.0, 300.0], (0.001, 0.01), 2)
    """

    snr: Sequence[float] = (7.0, 8.0, 9.0, 10.0)
    dm: Axis = (50.0, 500.0)
    width: Axis = (1e-3, 1e-2)
    scatter: Axis = 0.0
    index: Axis = 0.0
    band: Any = (0.0, 1.0)
    time: Sequence[float] | float | None = None

    def __post_init__(self) -> None:
        for name in ("dm", "width", "scatter", "index", "snr", "time"):
            given = getattr(self, name)
            values = [] if given is None else self._values(name)
            if not all(map(math.isfinite, values)):
                raise ValueError(f"{name}={given!r}: expected finite numbers")
            if name != "snr" and self._drawn(name) and values[0] > values[1]:
                raise ValueError(f"{name}={given!r}: expected a lowest and a highest value")
            if not values and given is not None:
                raise ValueError(f"{name}={given!r}: expected at least one number")
            least = min(values, default=1.0)
            if (name in ("snr", "width") and least <= 0) or (name in ("dm", "scatter", "time") and least < 0):
                raise ValueError(
                    f"{name}={least!r}: expected values {'above' if name in ('snr', 'width') else 'from'} 0"
                )
        for low, high in self._bands():
            if not 0 <= low < high <= 1:
                raise ValueError(f"band=({low!r}, {high!r}): expected a part of the band, between 0 and 1")

    @classmethod
    def parse(cls, text: str, **usual: Any) -> PulseGrid:
        """Read a grid from text: ``name=values``, separated by ``;``.

        Values are separated by commas.  ``low:high`` is a range to draw from, or for ``band`` a part of the band.

        Parameters
        ----------
        text : str
        **usual
            Parameters that are used where the text has none.
        """
        given: dict[str, Any] = {}
        known = [f.name for f in fields(cls)]
        for part in filter(None, (p.strip() for p in text.split(";"))):
            name, equals, words = part.partition("=")
            name = name.strip()
            if not equals or name not in known:
                raise ValueError(f"{part!r}: expected NAME=VALUES with NAME one of {', '.join(known)}")
            if name in given:
                raise ValueError(f"{part!r}: {name} is given twice")
            try:
                if name == "band":
                    given[name] = [tuple(float(n) for n in pair.split(":")) for pair in words.split(",")]
                    if any(len(pair) != 2 for pair in given[name]):
                        raise ValueError
                elif ":" in words:
                    low, high = words.split(":")
                    given[name] = float(low), float(high)
                    if name in ("snr", "time"):
                        raise ValueError
                else:
                    given[name] = [float(word) for word in words.split(",")]
            except ValueError:
                form = "LOW:HIGH" if name == "band" else "numbers" if name in ("snr", "time") else "numbers or LOW:HIGH"
                raise ValueError(f"{part!r}: expected {form}, with commas between several") from None
        return cls(**{**usual, **given})

    def _drawn(self, name: str) -> bool:
        """Whether a parameter is drawn from a range."""
        given = getattr(self, name)
        return name in ("dm", "width", "scatter", "index") and isinstance(given, tuple) and len(given) == 2

    def _values(self, name: str) -> list[float]:
        given = getattr(self, name)
        try:
            return [float(v) for v in given] if hasattr(given, "__len__") else [float(given)]
        except (TypeError, ValueError):
            raise ValueError(f"{name}={given!r}: expected numbers") from None

    def _bands(self) -> list[tuple[float, float]]:
        listed = self.band if len(self.band) and hasattr(self.band[0], "__len__") else [self.band]
        if not all(len(pair) == 2 for pair in listed):
            raise ValueError(f"band={self.band!r}: expected a lowest and a highest value")
        return [(float(low), float(high)) for low, high in listed]

    @property
    def highest_dm(self) -> float:
        """The highest DM that can be drawn."""
        return max(self._values("dm"))

    @property
    def lowest_dm(self) -> float:
        """The lowest DM that can be drawn."""
        return min(self._values("dm"))

    @property
    def widest(self) -> float:
        """The largest width or scattering time that can be drawn, seconds."""
        return max(*self._values("width"), *self._values("scatter"))

    @property
    def combinations(self) -> int:
        """Number of the combinations of all values."""
        return len(self._combinations())

    def _combinations(self) -> list[dict[str, Any]]:
        listed: dict[str, list[Any]] = {"snr": self._values("snr"), "band": self._bands()}
        for name in ("dm", "width", "scatter", "index"):
            if not self._drawn(name):
                listed[name] = self._values(name)
        return [dict(zip(listed, some, strict=True)) for some in itertools.product(*listed.values())]

    def draw(self, n: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Parameters of ``n`` pulses in random order.

        The numbers of pulses of any two combinations differ by at most one; the combinations that occur once more are
        chosen at random.
        """
        combinations = self._combinations()
        count = len(combinations)
        each = np.arange(n - n % count) % count
        rest = rng.permutation(count)[: n % count] if n % count else each[:0]
        chosen = rng.permutation(np.concatenate([each, rest]))
        found = []
        for i in chosen:
            one = dict(combinations[i])
            for name in ("dm", "scatter", "index"):
                if self._drawn(name):
                    low, high = self._values(name)
                    one[name] = float(rng.uniform(low, high))
            if self._drawn("width"):
                low, high = map(math.log, self._values("width"))
                one["width"] = math.exp(rng.uniform(low, high))
            found.append(one)
        return found

    @property
    def times(self) -> list[float] | None:
        """Times, if they are given."""
        return None if self.time is None else self._values("time")


def usual_dms(lowest: float, highest: float) -> tuple[float, float]:
    """The range of DMs that are injected by default: from 10% to 90% of those that are searched.

    >>> usual_dms(0.0, 500.0)
    (50.0, 450.0)
    """
    reach = highest - lowest
    return lowest + 0.1 * reach, lowest + 0.9 * reach
