"""The kinds of transient windows: one list for the argument checks, both backends, the command line and the docs.

To add a window that users choose by name, add an entry to `KINDS`, its name to `WindowName` and to the docstring of
`transient_map`, and its row to the table in ``docs/fstat.md``.  The tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EFOLD", "KINDS", "NAMED", "Algorithm", "WindowKind", "WindowName"]

WindowName = Literal["rect", "exp", "none"]
"""Names of windows, for type checkers; a test compares them with `NAMED`."""


class Algorithm(StrEnum):
    """How the seven sums of a cell are formed; each has its kernels in both backends.

    ``describe()["method"]`` returns one of these values, or "fourier" for windows of any shape.
    """

    RUNNING_SUMS = "running sums"
    """All weights are 1: one addition for each new bin as the duration grows (``rect.py``, ``rect.cu``)."""
    RECURRENCE = "recurrence"
    """The weights are ``exp(-x)``: a recurrence in the start time (``exp.py``, ``exp.cu``)."""
    MOMENTS = "recurrence of moments"
    """Polynomials times exponentials: recurrences of their moments (``sum.py``, ``sum.cu``)."""
    WEIGHTS = "bin by bin"
    """Any weights, bin by bin or by Fourier transforms, whichever is faster (``any.py``, ``cells.cu``)."""


def _ones(x: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return np.ones_like(x)


def _decay(x: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return np.exp(-x)


@dataclass(frozen=True)
class WindowKind:
    """One kind of window.

    Attributes
    ----------
    name : str
    label : str
        The name in files, figures and ``skysieve info``.
    help : str
        One sentence for the documentation and help screens.
    algorithm : Algorithm
    shape : callable or None
        ``w(x)`` for ``x = (t - t0) / tau`` inside the window; None where the user gives it.
    whole : bool
        The window covers all data: there is one cell and no grid.
    end : float or None
        End of the window in units of tau; None if the argument `efold` sets it.
    lal : int or None
        LALPulsar's ``transientWindowType_t``; None where LALPulsar has no such window.
    """

    name: str
    label: str
    help: str
    algorithm: Algorithm
    shape: Callable[[Any], Any] | None = None
    whole: bool = False
    end: float | None = None
    lal: int | None = None


KINDS = {
    kind.name: kind
    for kind in (
        WindowKind(
            "rect", "rect", "The amplitude is constant from t0 to t0 + tau.", Algorithm.RUNNING_SUMS, _ones, end=1,
            lal=1,
        ),
        WindowKind(
            "exp", "exp", "The amplitude is exp(-(t - t0) / tau) and ends at t0 + efold tau.", Algorithm.RECURRENCE,
            _decay, lal=2,
        ),
        WindowKind(
            "none", "none", "The amplitude is constant over all data: the persistent F-statistic.",
            Algorithm.RUNNING_SUMS, _ones, whole=True, end=1, lal=0,
        ),
        WindowKind("sum", "sum of exponentials", "A `WindowSum` gives the amplitude.", Algorithm.MOMENTS),
        WindowKind("any", "any function", "A function of (t - t0) / tau gives the amplitude.", Algorithm.WEIGHTS),
    )
}  # fmt: skip
"""All kinds; those without a `shape` take it from the user."""

NAMED = tuple(kind.name for kind in KINDS.values() if kind.shape is not None)
"""Windows that are chosen by their name."""
EFOLD = tuple(name for name in NAMED if KINDS[name].end is None)
"""Those whose end the argument `efold` sets."""
