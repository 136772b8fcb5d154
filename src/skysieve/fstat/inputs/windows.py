"""Transient windows: how the amplitude of a signal changes between its start and its end.

A window is a function ``w(x)`` of ``x = (t - t0) / tau``, 0 before ``x = 0`` and after its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .atoms import finite
from .window_kinds import KINDS, NAMED, Algorithm, WindowName

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Window", "WindowLike", "WindowSum", "resolve_window"]

METHODS = tuple(kind.label for kind in KINDS.values())
"""Labels of all kinds of windows, for ``skysieve info``."""
LARGEST_EFOLD = 20.0
"""Largest `efold`: float32 still resolves ``exp(-20)`` squared beside 1 in products of two sums."""
MOST_DEGREE = 8
"""Largest degree of a polynomial of `WindowSum`."""


@dataclass(frozen=True)
class WindowSum:
    """A window that is a sum of polynomials times exponentials: ``w(x) = Re sum_k P_k(x) exp(-rate_k x)``.

    Parameters
    ----------
    terms : sequence of (coefficients, rate)
        ``coefficients`` of the polynomial from the constant up, or one number; ``rate`` is per tau, real or complex
        (a damped tone), with a real part of at least 0.

    Raises
    ------
    ValueError, TypeError
        There are no terms, a number is not finite, the real part of a rate is negative, or a degree is over 8.

    Notes
    -----
    The recurrence of the plain exponential holds for such windows too: every term costs a few operations for each
    cell, whatever the length of the window.

    Examples
    --------
    A rise followed by a decay, ``exp(-x) - exp(-5 x)``, and ``x exp(-x)``:

    >>> rise = WindowSum([(1, 1), (-1, 5)])
    >>> round(float(rise(0.5)), 4)
    0.5244
    >>> WindowSum([((0, 1), 1)])([0.0, 1.0]).round(4).tolist()
    [0.0, 0.3679]
    """

    terms: tuple[tuple[tuple[complex, ...], complex], ...]

    def __init__(self, terms: Sequence[tuple[Any, Any]]) -> None:
        found = []
        for i, term in enumerate(terms):
            try:
                coefficients, rate = term
                c = tuple(complex(v) for v in np.atleast_1d(coefficients))
                rate = complex(rate)
            except (TypeError, ValueError) as error:
                raise TypeError(f"terms[{i}] = {term!r}: expected (coefficients, rate)") from error
            if not np.all(np.isfinite(c)) or not np.isfinite(rate):
                raise ValueError(f"terms[{i}] = {term!r} is not finite")
            if rate.real < 0:
                raise ValueError(f"terms[{i}]: rate {rate} grows with time; its real part must be at least 0")
            if not 1 <= len(c) <= MOST_DEGREE + 1:
                raise ValueError(f"terms[{i}] has degree {len(c) - 1}, expected 0 to {MOST_DEGREE}")
            found.append((c, rate))
        if not found:
            raise ValueError("terms is empty: a window needs at least one term")
        object.__setattr__(self, "terms", tuple(found))

    def __call__(self, x: Any) -> NDArray[np.float64]:
        """The window at ``x = (t - t0) / tau``, without its ends."""
        at = np.asarray(x, dtype=np.float64)
        total = np.zeros(at.shape, np.complex128)
        for c, rate in self.terms:
            total += np.polynomial.polynomial.polyval(at, np.asarray(c)) * np.exp(-rate * at)
        return np.asarray(total.real)

    @property
    def real(self) -> bool:
        """Whether all coefficients and rates are real."""
        return all(rate.imag == 0 and all(v.imag == 0 for v in c) for c, rate in self.terms)

    def gathered(self) -> dict[complex, NDArray[np.complex128]]:
        """Coefficients by rate: terms of equal rate are added, and complex windows are completed by conjugate terms."""
        out: dict[complex, NDArray[np.complex128]] = {}
        for c, rate in self.terms:
            parts: list[tuple[NDArray[Any], complex]] = [(np.asarray(c), rate)]
            if not self.real:
                parts = [(0.5 * np.asarray(c), rate), (0.5 * np.conj(c), rate.conjugate())]
            for values, r in parts:
                out[r] = _add(out.get(r, np.zeros(1, np.complex128)), values)
        return out

    def squared(self) -> dict[complex, NDArray[np.complex128]]:
        """The square of the window in the form of `gathered`."""
        once = self.gathered()
        out: dict[complex, NDArray[np.complex128]] = {}
        for r1, c1 in once.items():
            for r2, c2 in once.items():
                rate = r1 + r2
                out[rate] = _add(out.get(rate, np.zeros(1, np.complex128)), np.convolve(c1, c2))
        return out


def _add(a: NDArray[np.complex128], b: NDArray[np.complex128]) -> NDArray[np.complex128]:
    total = np.zeros(max(len(a), len(b)), np.complex128)
    total[: len(a)] += a
    total[: len(b)] += b
    return total


WindowLike = WindowName | WindowSum | Callable[[Any], Any]
"""The argument `window` of the public functions."""


@dataclass(frozen=True)
class Window:
    """A window in the form that the backends use.

    Attributes
    ----------
    kind : str
        A key of `window_kinds.KINDS`.
    efold : float
        End of the window in units of tau: that of its kind, or else the argument of this name.
    function : callable or None
        ``w(x)``, where the user gives it.
    """

    kind: str
    efold: float = 1.0
    function: Callable[[Any], Any] | None = None

    @property
    def algorithm(self) -> Algorithm:
        """How the sums of this window are formed."""
        return KINDS[self.kind].algorithm

    @property
    def whole(self) -> bool:
        """Whether the window covers all data, so that there is no grid."""
        return KINDS[self.kind].whole

    @property
    def shape(self) -> Callable[[Any], Any]:
        """``w(x)`` inside the window."""
        found = KINDS[self.kind].shape or self.function
        assert found is not None
        return found

    @property
    def name(self) -> str:
        """The label for files and figures."""
        return KINDS[self.kind].label

    def weights(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """``w(x)`` for `x` inside the window.

        Raises
        ------
        ValueError
            The user's function returned values of another shape, or values that are not finite.
        """
        if self.function is None:
            return np.asarray(self.shape(x))
        w = np.asarray(self.function(x), dtype=np.float64)
        if w.shape != x.shape:
            raise ValueError(f"window: the function returned shape {w.shape} for x of shape {x.shape}")
        if not np.all(np.isfinite(w)):
            raise ValueError("window: the function returned values that are not finite")
        return w


def resolve_window(window: Any, efold: float) -> Window:
    """The `Window` for the public arguments `window` and `efold`.

    Raises
    ------
    ValueError, TypeError
        For an unknown name, something that is neither a name nor callable, or an `efold` outside (0, 20].
    """
    finite(efold, "efold", f"a positive number, at most {LARGEST_EFOLD:g}", lambda x: 0 < x <= LARGEST_EFOLD)
    if isinstance(window, str):
        if window not in NAMED:
            names = ", ".join(map(repr, NAMED))
            raise ValueError(f"window={window!r}: expected {names}, a WindowSum or a function of (t - t0) / tau")
        end = KINDS[window].end
        return Window(window, float(efold if end is None else end))
    if isinstance(window, WindowSum):
        return Window("sum", float(efold), window)
    if callable(window):
        return Window("any", float(efold), window)
    raise TypeError(f"window is a {type(window).__name__}; expected a name, a WindowSum or a function")
