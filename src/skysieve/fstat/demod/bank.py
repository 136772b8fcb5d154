"""Templates of a search at one point of the sky: a grid of frequencies and their derivatives, or a list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import whole
from skysieve.fstat.inputs.atoms import finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TemplateBank", "spacing"]

NAMES = ("f0", "f1dot", "f2dot")
ALIASES = {
    "freq": "f0", "frequency": "f0", "f1": "f1dot", "f2": "f2dot", "fkdot[1]": "f1dot", "fkdot[2]": "f2dot",
}  # fmt: skip
"""Names of columns in the tables of LALPulsar and PyFstat."""
ACCELERATION = 1.3e-10
"""Largest relative change of frequency in a second, from the rotation and the orbit of the Earth."""
MOST_VALUES = 10**9
"""Most values of one parameter in a grid."""
MOST_LOST = 0.05
"""Part of 2F that may be lost within an SFT without a note, as in LALPulsar."""
ROUNDING = 1e-3
"""Fraction of a step by which the last template may miss the end of its range."""


def spacing(span: float, mismatch: float = 0.1, dimensions: int = 1) -> tuple[float, float, float]:
    """Steps of frequency and its first and second derivatives that lose a given part of the signal's power.

    Parameters
    ----------
    span : float
        Duration of the signal, seconds.
    mismatch : float
        Largest lost part of the squared signal-to-noise ratio, shared by the dimensions in equal parts.
    dimensions : int
        Number of dimensions of the grid.

    Returns
    -------
    df0, df1dot, df2dot : float
        Hz, Hz/s, Hz/s^2.

    Notes
    -----
    The steps follow from the diagonal of the phase metric about the middle of the data.  The variances of ``2 pi x``,
    ``pi x^2`` and ``pi x^3 / 3`` over the span are ``pi^2 T^2 / 3``, ``pi^2 T^4 / 180`` and ``pi^2 T^6 / 4032``.  In
    each dimension, the nearest template is at most half a step away.

    Examples
    --------
    >>> df0, df1dot, _ = spacing(10 * 86400, mismatch=0.1)
    >>> f"{df0:.3g}", f"{df1dot:.3g}"
    ('4.04e-07', '3.62e-12')
    """
    finite(span, "span", "a positive number of seconds", lambda x: x > 0)
    finite(mismatch, "mismatch", "between 0 and 1", lambda x: 0 < x < 1)
    whole("dimensions", dimensions, 1)
    each = 2 * np.sqrt(mismatch / dimensions) / np.pi
    metric = (1 / 3, 1 / 180, 1 / 4032)
    df0, df1dot, df2dot = (float(each / np.sqrt(g) / span ** (k + 1)) for k, g in enumerate(metric))
    return df0, df1dot, df2dot


def long_sfts(bank: TemplateBank, tsft: float) -> str:
    """Text that says how much of the power the sums over bins may lose because the SFTs are long; empty if little.

    The frequency of a signal changes within an SFT, but the sums take its phase as linear in time.  The variance of the
    other phase, ``pi f' x^2``, over an SFT is ``pi^2 f'^2 T^4 / 180``: the lost part of 2F, if it is small.
    """
    rate = ACCELERATION * (bank.f0 if bank.listed else bank.f0.max()) + np.abs(bank.f1dot)
    largest = rate.max(where=np.isfinite(rate), initial=0)
    lost = (np.pi * largest * tsft**2) ** 2 / 180
    if lost <= MOST_LOST:
        return ""
    return (
        f"SFTs of {tsft:g} s are long for a frequency that may change by {largest:.3g} Hz/s, which costs up to "
        f"{min(lost, 1):.0%} of 2F; expected at most {tsft * (MOST_LOST / lost) ** 0.25:.0f} s, for {MOST_LOST:.0%}"
    )


def _names(words: list[str]) -> list[str]:
    """Names of columns in lower case, without units, and those of `ALIASES` as in `NAMES`."""
    plain = [word.lower() for word in words]
    bare = [word if word in ALIASES else word.split("[")[0] for word in plain]
    return [ALIASES.get(word, word) for word in bare]


@dataclass(frozen=True, eq=False)
class TemplateBank:
    """An ordered set of templates: a rectangular grid, in which the frequency varies fastest, or a list.

    Parameters
    ----------
    f0, f1dot, f2dot : array_like
        Values at the reference time (Hz, Hz/s, Hz/s^2): of each axis of a grid, or of each template of a list.
    listed : bool
        Whether the arrays are a list of templates; they then have the same length.

    Raises
    ------
    ValueError
        An axis is empty or has values that are not finite, or the arrays of a list differ in length.  A list may hold
        values that are not finite: a search leaves out such templates.

    Examples
    --------
    >>> bank = TemplateBank.grid(f0=(100.0, 100.001, 1e-4), f1dot=(-1e-9, 0.0, 5e-10))
    >>> len(bank), bank.shape
    (33, (11, 3, 1))
    >>> bank.part(11, 13)["f1dot"]
    array([-5.e-10, -5.e-10])
    """

    f0: NDArray[np.float64]
    f1dot: Any = 0.0
    f2dot: Any = 0.0
    listed: bool = False

    def __post_init__(self) -> None:
        for name in NAMES:
            x = np.atleast_1d(np.asarray(getattr(self, name), np.float64))
            if x.ndim != 1 or x.size == 0:
                raise ValueError(f"{name} has shape {x.shape}: expected numbers in one row, one at least")
            if not self.listed and not np.isfinite(x).all():
                i = int(np.argmin(np.isfinite(x)))
                raise ValueError(f"{name}[{i}] = {x[i]}: expected a finite number")
            object.__setattr__(self, name, x)
        if self.listed:
            size = max(self.shape)
            for name in NAMES:
                x = getattr(self, name)
                if x.size not in (1, size):
                    raise ValueError(f"{name} has {x.size} values: expected {size}, one for each template")
                object.__setattr__(self, name, np.broadcast_to(x, size))

    @classmethod
    def grid(
        cls, f0: tuple[float, float, float], f1dot: tuple[float, float, float] = (0.0, 0.0, 1.0),
        f2dot: tuple[float, float, float] = (0.0, 0.0, 1.0),
    ) -> TemplateBank:  # fmt: skip
        """A grid from ranges ``(first, last, step)``; the last value is at most `last`."""
        axes: list[Any] = []
        for name, given in zip(NAMES, (f0, f1dot, f2dot), strict=True):
            if not isinstance(given, tuple | list | np.ndarray) or len(given) != 3:
                raise ValueError(f"{name}={given!r}: expected a range (first, last, step)")
            first, last, step = given
            for value in given:
                finite(value, name, "a range (first, last, step) of finite numbers")
            if step <= 0 or last < first:
                raise ValueError(f"{name}=({first!r}, {last!r}, {step!r}): expected first <= last and a step above 0")
            steps = (last - first) / step
            if steps >= MOST_VALUES:
                raise ValueError(
                    f"{name}=({first!r}, {last!r}, {step!r}): the grid would have {steps:.3g} values, expected at most "
                    f"{MOST_VALUES:,}"
                )
            axes.append(first + step * np.arange(int(steps + ROUNDING) + 1))
        return cls(*axes)

    @classmethod
    def read(cls, lines: Iterable[str], name: str = "the list") -> TemplateBank:
        """A list of templates from text.

        Parameters
        ----------
        lines : iterable of str
            Lines of text, such as an open file.  Each line holds f0, f1dot and f2dot (or only the first one or two),
            separated by spaces or commas; lines that begin with ``#`` or ``%`` are comments.  The first line may hold
            the names of the columns, in any order; columns with other names are ignored.  The names may also be in the
            comment before the first template, as in the tables of LALPulsar and PyFstat.
        name : str
            Name of the file in error messages.

        Raises
        ------
        ValueError
            A line cannot be read, or there are no templates.

        Examples
        --------
        >>> bank = TemplateBank.read(["# two templates", "100.0 -1e-9", "100.1 -2e-9"])
        >>> len(bank), bank.f1dot.tolist()
        (2, [-1e-09, -2e-09])
        """
        columns: list[int] | None = None
        comment: list[str] = []
        found: list[list[float]] = []
        for number, line in enumerate(lines, start=1):
            words = line.replace(",", " ").split()
            if not words or words[0][0] in "#%":
                comment = _names(line.replace(",", " ").strip(" #%").split())
                continue
            if columns is None and words[0][0].isalpha() and words[0].lower() not in ("nan", "inf"):
                names = _names(words)
                if "f0" not in names:
                    raise ValueError(f"{name}, line {number}: columns {', '.join(words)}: expected one named f0")
                columns = [names.index(one) if one in names else -1 for one in NAMES]
                continue
            if columns is None and len(comment) == len(words) and {"f0", "f1dot"} <= set(comment):
                columns = [comment.index(one) if one in comment else -1 for one in NAMES]
            if columns is None:
                columns = [k if k < len(words) else -1 for k in range(len(NAMES))]
            try:
                found.append([float(words[k]) if k >= 0 else 0.0 for k in columns])
            except (ValueError, IndexError):
                raise ValueError(f"{name}, line {number}: {line.strip()!r}: expected f0, f1dot, f2dot") from None
        if not found:
            raise ValueError(f"{name} holds no templates")
        f0, f1dot, f2dot = np.array(found).T
        return cls(f0, f1dot, f2dot, listed=True)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sizes of the arrays."""
        return self.f0.size, self.f1dot.size, self.f2dot.size

    def __len__(self) -> int:
        n0, n1, n2 = self.shape
        return n0 if self.listed else n0 * n1 * n2

    def frequencies(self, first: float, last: float) -> tuple[float, float]:
        """Bounds of the frequencies of all templates from `first` to `last`, seconds since the reference time.

        Raises
        ------
        ValueError
            No template of a list has only finite values.
        """
        good = np.isfinite(self.f0 + self.f1dot + self.f2dot) if self.listed else slice(None)
        f0, f1, f2 = (x[good] for x in (self.f0, self.f1dot, self.f2dot))
        if f0.size == 0:
            raise ValueError("f0, f1dot, f2dot: no template has only finite values")
        ends = np.array([first, last, 0.0] if first < 0 < last else [first, last])
        shifts = np.multiply.outer(ends, f1), np.multiply.outer(ends**2 / 2, f2)
        low, high = ([f0, *(bound(x, axis=0) for x in shifts)] for bound in (np.min, np.max))
        if self.listed:
            return float(np.add.reduce(low).min()), float(np.add.reduce(high).max())
        return float(sum(x.min() for x in low)), float(sum(x.max() for x in high))

    def part(self, start: int, stop: int) -> dict[str, NDArray[np.float64]]:
        """Templates `start` to ``stop - 1``: three arrays by name."""
        at = np.arange(start, min(stop, len(self)))
        if self.listed:
            return {name: getattr(self, name)[at] for name in NAMES}
        n0, n1, _ = self.shape
        return {"f0": self.f0[at % n0], "f1dot": self.f1dot[at // n0 % n1], "f2dot": self.f2dot[at // (n0 * n1)]}
