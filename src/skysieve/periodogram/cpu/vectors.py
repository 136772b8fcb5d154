"""First answers without compiled code: NumPy functions in place of kernels, for many frequencies at once.

The interpreter runs the sources of `search.search` and `search.conclude` (see `core.cpu.jit.interpreted`).  Their
innermost loops, over points, are NumPy's here; `exact_power` is its source for arrays of frequencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, interpreted
from skysieve.periodogram.contract import METHODS
from skysieve.periodogram.numerics.normalization import LOGARITHM, RATIO

from .climb import slope_sums
from .comb_simd import fma, outline
from .direct import TWO_PI, centred_sums, cos_sin, exact_power, grid_point, select, weighted_sums
from .finufft import Code
from .peaks import FLOOR, FULL, HERE, LEFT, LIMIT, choose, drop_low, find_candidates, grow
from .prepare import CONSTANT, EMPTY, HUGE, OK, SHRINK, SINGULAR, exact_origin, prepare_object, scan_object, status_of
from .search import conclude, exact_powers, normalize, replace_missing, search, sums_to_powers, whole_object

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIRECT, FINUFFT = METHODS.index("direct"), METHODS.index("finufft")
SPLIT = 2.0**27 + 1
ELEMENTS = 2**15
"""Elements of an array of points and frequencies: it stays in the second-level cache."""
FEWEST = 64
"""Least number of frequencies in an array: NumPy's cost for each call is then small."""
PAIR, FREQUENCY, OBJECT = 40e-9, 2e-6, 10e-3
"""Seconds of exact powers for each point and frequency, each frequency, and each object, whose peaks are refined."""
LOADED, MODE, POINT, REFINED = 0.2, 0.11e-6, 2.5e-6, 2e-3
"""Seconds of a search with finufft: to load it, for each frequency, each point and each object."""
SPARSE, TRIED = 8, 35e-3
"""Points up to which most powers are computed one by one and many maxima are refined, and the seconds of that."""
MODE_BYTES = 110
"""Memory of finufft for each frequency, in each thread."""
STRETCH = 2**14
"""Samples of a grid whose candidates are looked for at once."""
LARGEST = 1e150
"""Largest time or frequency: products of larger numbers, split into halves, would overflow."""


def sources() -> tuple[Any, Any]:
    """`search` and `conclude` for the interpreter."""
    return interpreted(search), interpreted(conclude)


def first(n: NDArray[Any], nf: NDArray[Any], modes: int) -> tuple[int, NDArray[np.float64]]:
    """Method of a first answer, and expected seconds of objects of ``n`` points and ``nf`` frequencies.

    finufft is used for regular grids of up to ``modes`` frequencies.
    """
    exact = PAIR * n * nf + FREQUENCY * nf + OBJECT
    fast = MODE * nf + POINT * n + REFINED + TRIED * (n <= SPARSE) + LOADED / len(n)
    if nf.max() <= modes and fast.sum() < exact.sum():
        return FINUFFT, fast
    return DIRECT, exact


def finufft_code() -> Code:
    """The functions that `finufft.finufft_object` needs, for the interpreter."""
    return Code(_cos_sin, interpreted(grid_point), interpreted(whole_object), interpreted(conclude), STRETCH)


@in_interpreter(outline)
def _outline() -> None:
    """Do nothing: it is for the compiler."""


in_interpreter(select)(np.where)


def _halves(a: Any) -> Any:
    """Two numbers of 26 bits whose sum is ``a`` (Dekker 1971, Numer. Math. 18, 224)."""
    large = SPLIT * a
    high = large - (large - a)
    return high, a - high


@in_interpreter(fma)
def _fma(a: Any, b: Any, c: Any) -> Any:
    """``a b + c`` where c is minus the rounded product: its rounding error, which a float64 holds exactly."""
    a1, a2 = _halves(a)
    b1, b2 = _halves(b)
    return ((a1 * b1 + c) + a1 * b2 + a2 * b1) + a2 * b2


@in_interpreter(cos_sin)
def _cos_sin(f: Any, f_low: Any, t: Any, first: int, n: int, c: Any, s: Any) -> None:
    """Rows are points; columns, where f is an array, its frequencies."""
    times = t[first : first + n]
    if np.ndim(f):
        times = times[:, None]
    high = f * times
    turns = (high - np.rint(high)) + (_fma(f, times, -high) + f_low * times)
    angle = TWO_PI * (turns - np.rint(turns))
    c[:n], s[:n] = np.cos(angle), np.sin(angle)


@in_interpreter(weighted_sums)
def _weighted_sums(w: Any, wy: Any, c: Any, s: Any, n: int) -> Any:
    c, s = c[:n], s[:n]
    return w @ c, w @ s, wy @ c, wy @ s


@in_interpreter(centred_sums)
def _centred_sums(w: Any, wy: Any, c: Any, s: Any, n: int, mc: Any, ms: Any) -> Any:
    dc, ds = c[:n] - mc, s[:n] - ms
    return w @ (dc * dc), w @ (ds * ds), w @ (dc * ds), wy @ dc, wy @ ds


@in_interpreter(slope_sums)
def _slope_sums(
    t: Any, w: Any, wy: Any, c: Any, s: Any, n: int, mc: float, ms: float, a: float, b: float, middle: float
) -> Any:
    c, s, tau = c[:n], s[:n], TWO_PI * (t - middle)
    dc, ds = c - mc, s - ms
    r, u = wy - w * (a * dc + b * ds), tau * (b * c - a * s)
    rt, wu = r * tau, w * u
    return r @ u, (rt * tau) @ (a * c + b * s), wu @ u, wu.sum(), wu @ dc, wu @ ds, -(rt @ s), rt @ c


def pieces(m: int, elements: int) -> Any:
    """Cut ``m`` frequencies into pieces of arrays with ``elements`` for each: first and number."""
    per = max(FEWEST, ELEMENTS // elements)
    return ((first, min(per, m - first)) for first in range(0, m, per))


def frequencies(f0: float, df: float, samples: NDArray[np.int64], values: Any) -> Any:
    """Frequencies of samples in two parts."""
    if len(values):
        return values[samples], 0.0
    return interpreted(grid_point)(f0, df, samples.astype(np.float64))


@in_interpreter(exact_powers)
def _exact_powers(
    f0: float, df: float, base: int, m: int, values: Any, t: Any, w: Any, wy: Any, n: int, floating_mean: bool,
    work: Any,
) -> None:  # fmt: skip
    for first, count in pieces(m, n):
        f, f_low = frequencies(f0, df, np.arange(base + first, base + first + count), values)
        c, s = np.empty((n, count)), np.empty((n, count))
        work.block[first : first + count] = interpreted(exact_power)(f, f_low, t, w, wy, n, floating_mean, c, s)


def _rows(t: Any, y: Any, dy: Any, has_dy: bool, lo: int, hi: int) -> tuple[Any, Any, Any, Any]:
    """Rows of an object, with errors of 1 where there are none, and which of them are finite."""
    a, b = t[lo:hi], y[lo:hi]
    e = dy[lo:hi] if has_dy else np.ones(hi - lo)
    return a, b, e, np.isfinite(a) & np.isfinite(b) & np.isfinite(e)


@in_interpreter(scan_object)
def _scan_object(t: Any, y: Any, dy: Any, has_dy: bool, lo: int, hi: int, fewest: int, center: bool) -> Any:
    a, b, e, good = _rows(t, y, dy, has_dy, lo, hi)
    if not good.all():
        a, b, e = a[good], b[good], e[good]
    n = len(a)
    if n == 0:
        return 0, np.nan, np.nan, EMPTY, False
    first, last = a.min(), a.max()
    status = interpreted(status_of)(n, (e <= 0).any(), fewest, first, last, b.min(), b.max(), center)
    return n, first, last - first, status, n == hi - lo and bool((a[1:] > a[:-1]).all())


@in_interpreter(prepare_object)
def _prepare_object(
    t: Any, y: Any, dy: Any, has_dy: bool, lo: int, hi: int, fewest: int, center: bool, tt: Any, w: Any, wy: Any
) -> Any:
    n, t0, span, status, clean = _scan_object(t, y, dy, has_dy, lo, hi, fewest, center)
    if status != OK:
        return n, t0, span, status, 1.0, 1.0
    a, b, e, good = _rows(t, y, dy, has_dy, lo, hi)
    shrink = SHRINK if abs(b[np.isfinite(b)]).max() > HUGE else 1.0
    a, b = a[good] - interpreted(exact_origin)(t0, t0 + span), b[good] * shrink
    e = e[good]
    if not clean:
        order = np.lexsort((e, b, a))
        a, b, e = a[order], b[order], e[order]
    smallest = e.min()
    weights = (smallest / e) ** 2
    total = weights.sum()
    if np.count_nonzero(weights) < 2:
        return n, t0, span, SINGULAR, 1.0, 1.0
    weights /= total
    for _ in range(2 if center else 0):
        b = b - (b[0] + weights @ (b - b[0]))
    largest = abs(b).max()
    b = b / largest
    square = weights @ (b * b)
    if not square > 0.0:
        return n, t0, span, CONSTANT, 1.0, 1.0
    own = slice(lo, lo + n)
    tt[own], w[own], wy[own] = a, weights, b * (weights / np.sqrt(square))
    return n, t0, span, OK, square * (largest / shrink) * (largest / shrink), total / (smallest * smallest)


@in_interpreter(sums_to_powers)
def _sums_to_powers(block: Any, n: int, sums: Any, floating_mean: bool, guard: float) -> Any:
    (ch, sh), (c2, s2) = ((x.real, x.imag) for x in sums[:2])
    cc, ss, cs = 0.5 + 0.5 * c2, 0.5 - 0.5 * c2, 0.5 * s2
    if floating_mean:
        c, s = sums[2].real, sums[2].imag
        cc, ss, cs = cc - c * c, ss - s * s, cs - c * s
    det = cc * ss - cs * cs
    power = (ch * (ss * ch - cs * sh) + sh * (cc * sh - cs * ch)) / det
    block[:n] = np.where(det > guard, power, np.nan)
    return not (det > guard).all()


@in_interpreter(replace_missing)
def _replace_missing(
    block: Any, m: int, base: int, f0: float, df: float, t: Any, w: Any, wy: Any, n: int, floating_mean: bool, work: Any
) -> None:
    places = np.flatnonzero(np.isnan(block[:m]))
    for first, count in pieces(len(places), n):
        some = places[first : first + count]
        f, f_low = frequencies(f0, df, base + some, ())
        c, s = np.empty((n, count)), np.empty((n, count))
        block[some] = interpreted(exact_power)(f, f_low, t, w, wy, n, floating_mean, c, s)


@in_interpreter(normalize)
def _normalize(block: Any, n: int, form: int, scale: float, out: Any, at: int) -> None:
    power = block[:n]
    if form in (RATIO, LOGARITHM):
        power = np.minimum(power, 1 - np.finfo(block.dtype).epsneg)
    if form == RATIO:
        power = power / (1 - power)
    elif form == LOGARITHM:
        power = -np.log(1 - power)
    else:
        power = power * scale
    out[at : at + n] = power


@in_interpreter(find_candidates)
def _find_candidates(block: Any, n: int, base: int, state: Any, found: Any, count: int) -> Any:
    p = np.empty(n + 2)
    p[0], p[1], p[2:] = state[LEFT], state[HERE], block[:n]
    left, here, right = p[:-2], p[1:-1], p[2:]
    at = np.flatnonzero((here >= state[FLOOR]) & (here > -np.inf) & ~(here <= left) & ~(right > here))
    while count + len(at) > len(found):
        found = _grow(found)
    rows = found[count : count + len(at)]
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = base + at - 1, left[at], here[at], right[at]
    state[LEFT], state[HERE] = p[-2:]
    return found, count + len(at)


@in_interpreter(grow)
def _grow(found: Any) -> Any:
    return np.concatenate([found, np.empty_like(found)])


@in_interpreter(choose)
def _choose(
    found: Any, count: int, values: Any, distance: float, wanted: int, share: float, chosen: Any
) -> tuple[int, int]:
    power, places = found[:count, 2].copy(), found[:count, 0]
    if len(values):
        places = values[places.astype(np.int64)]
    others, least = power.copy(), -np.inf
    taken = first = 0
    while taken < len(chosen) and count:
        best = int(np.argmax(power))
        if power[best] == -np.inf or first == wanted:
            break
        if taken == 0:
            least = share * power[best]
        chosen[taken], others[best] = best, -np.inf
        power[abs(places - places[best]) < distance] = power[best] = -np.inf
        taken = first = taken + 1
    further = np.argsort(-others, kind="stable")[: len(chosen) - taken]
    further = further[(others[further] >= least) & (others[further] > -np.inf)]
    chosen[taken : taken + len(further)] = further
    return taken + len(further), first


@in_interpreter(drop_low)
def _drop_low(
    found: Any, count: int, values: Any, distance: float, wanted: int, share: float, chosen: Any, state: Any
) -> int:
    power, kept, floor = found[:count, 2], count, -np.inf
    taken, first = _choose(found, count, values, distance, wanted, share, chosen)
    if first == wanted:
        least = power[chosen[taken - 1]] if taken == len(chosen) else share * power[chosen[0]]
        floor = min(least, power[chosen[wanted - 1]])
    if floor > -np.inf:
        state[FLOOR] = floor
        high = found[:count][power >= floor]
        kept = len(high)
        found[:kept] = high
    state[LIMIT] = 2 * kept + FULL
    return kept
