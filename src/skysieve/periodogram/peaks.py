"""Which samples of a periodogram become peaks, and how far each may move: the rules that both backends follow.

1. A candidate is a sample above its left and not below its right neighbour; the ends of the grid count.
2. Candidates are chosen greedily by the *standard* power of the sample: the highest (ties to the lower frequency),
   then the highest that is at least 1/T from all chosen ones.  ``n_peaks + MORE_TRIES`` are chosen at most, and
   behind the first ``n_peaks`` only those whose sample is at least `least_share` of the sample of number ``n_peaks``:
   their maximum may still be higher.
3. Each is refined to the highest maximum of the exact standard power between its two neighbouring samples, and no
   farther than ``1 / (T * harmonics)`` from its sample.  At an end of the grid the interval ends there; where the
   power rises towards that end, the end itself is the answer and the curvature is NaN.
4. The ``n_peaks`` with the highest refined powers are the answer, in falling order (ties to the lower frequency).

`harmonics` is the highest multiple of the frequency in the model.  Where the interval of rule 3 is wider than
``WIDE / (T * harmonics)``, it may hold several maxima: it is sampled in equal steps of at most
``STEP / (T * harmonics)`` first, and the highest sample is refined between its neighbours.
"""

from __future__ import annotations

import numpy as np

MORE_TRIES = 15
"""Candidates refined beside the peaks that are wanted."""
WIDE = 0.6
"""Widths of 1/(T harmonics) up to which an interval is taken to hold one maximum."""
STEP = 0.2
"""Step between trial frequencies in a wider interval, in 1/(T harmonics)."""


def least_share(step: float, span: float, harmonics: int) -> float:
    """Least power of the sample nearest to a maximum, in parts of that maximum.

    A function of exponential type ``2 pi T`` that is bounded by its maximum and not negative falls from it no faster
    than ``cos(pi T x)**2``; the nearest sample is at most half a step away.

    Parameters
    ----------
    step : float
        Step of the grid; the larger distance to a neighbour for a list of frequencies.
    span : float
        Time span T.
    harmonics : int
        Highest multiple of the frequency in the model.

    Examples
    --------
    >>> round(least_share(0.2, 1.0, 1), 3), round(least_share(0.5, 1.0, 1), 3), least_share(2.0, 1.0, 1)
    (0.905, 0.5, 0.0)
    """
    quarter_turns = step * span * harmonics
    return float(np.cos(0.5 * np.pi * quarter_turns) ** 2) if quarter_turns < 1 else 0.0
