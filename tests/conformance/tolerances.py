"""Every tolerance of the conformance suites, and where each number comes from.

Powers are "standard" ones, in [0, 1]; the bound is on ``max |power - long-double direct sum|``.
"required" numbers are the project's promises to users; "derived" ones follow from the arithmetic;
"measured" ones come from a run, with the margin that is stated beside them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """A bound and the fewest points for which it is promised."""

    error: float
    min_points: int


LOMB_SCARGLE: dict[tuple[str, str], Tolerance] = {
    # Keys are (dtype, method).  required: 1e-9 in float64 and 1e-12 for "direct", both for N_t >= 10; 2e-6 in float32
    # for N_t >= 30
    ("float64", "auto"): Tolerance(1e-9, 10),
    ("float64", "nufft"): Tolerance(1e-9, 10),
    ("float64", "finufft"): Tolerance(1e-9, 10),
    ("float64", "direct"): Tolerance(1e-12, 10),
    ("float32", "auto"): Tolerance(2e-6, 30),
    ("float32", "nufft"): Tolerance(2e-6, 30),
    ("float32", "finufft"): Tolerance(2e-6, 30),
    ("float32", "direct"): Tolerance(2e-6, 30),
}

DET_FLOOR = {"float64": 1e-3, "float32": 0.06}
"""Below ``min_points`` the bound grows as 1/det: error <= bound * DET_FLOOR / det, det = CC SS - CS^2.  measured: the
smallest det of the suite's curves of 10 points is 1.1e-3, of 30 points 0.063; there the plain bound must still hold."""

STANDARD_EXCESS = 1e-9
"""By how much a float64 standard power may leave [0, 1]: the required error itself."""

INVARIANCE = {"float64": 2e-9, "float32": 4e-6}
"""Largest difference of two powers that are mathematically equal.  derived: twice the required error, as each may have
the full error."""
