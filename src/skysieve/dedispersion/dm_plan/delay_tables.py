"""Tables of delays in whole samples: exact delays, and the delays of the approximate methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory
from skysieve.dedispersion.contract import Table
from skysieve.dedispersion.data.delays import delay_seconds, nearest, reference_frequency
from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_WIDTH = 10
"""Width in samples of the pulse for which a loss is stated, if no width is given."""
SUBBANDS = 32
"""Default number of subbands."""
BLOCK_VALUES = 2**17
"""Number of delays that are computed at a time, in float64."""


@dataclass(frozen=True)
class Tabled:
    """A table and its errors.

    Attributes
    ----------
    table : Table
    method : str
        "exact", "subband" or "tree".
    start : int
        First binned sample, at the reference frequency, for which all channels have data: 0 if the reference is the top
        of the band.
    delay_error : float
        Largest error of a delay, binned samples.
    loss : float
        Fraction of the S/N that is lost beyond the exact delays.
    """

    table: Table
    method: str
    start: int
    delay_error: float
    loss: float


def make_table(
    obs: Observation,
    dms: NDArray[np.float64],
    downsamp: int = 1,
    *,
    ref_freq: str | float = "top",
    dm_constant: float = DM_CONSTANT,
    nsub: int = 0,
    per_call: int = 0,
    tree: bool = False,
    width: float | None = None,
) -> Tabled:
    """Delays of every DM and channel, in binned samples.

    With ``nsub`` and ``per_call`` the delays are those of the two-stage subband method (section 3.2 of Magro et al.
    2011; PRESTO): ``per_call`` neighbouring DMs share the delays inside subbands.  These are the delays at the mean of
    the DMs, relative to the top of the subband, and are rounded separately.  Sums with such a table equal those of the
    two-stage method.  With ``tree`` the delays are those of `tree_delays`.
    """
    tsamp = obs.tsamp * downsamp
    ref = reference_frequency(obs.freqs, ref_freq)
    method = "subband" if nsub and per_call else "tree" if tree else "exact"
    group = per_call if method == "subband" else 1
    step = max(1, BLOCK_VALUES // (obs.nchan * group)) * group
    samples = DEFAULT_WIDTH if width is None else max(1.0, width / tsamp)  # a narrower pulse is one sample wide
    free = available_host_memory()
    if 4 * len(dms) * obs.nchan > free // 2:
        raise MemoryBudgetError(f"delays of {len(dms)} DMs x {obs.nchan} channels", 4 * len(dms) * obs.nchan, free // 2)
    delays = np.empty((len(dms), obs.nchan), np.int32)
    error, loss = 0.0, 0.0
    for m in range(0, len(dms), step):
        some = dms[m : m + step]
        true = delay_seconds(obs.freqs, some[:, None], ref, dm_constant) / tsamp
        exact = nearest(true)
        used = exact
        if method == "subband":
            used = _subband_delays(obs, some, tsamp, exact, nsub, per_call, dm_constant)
        elif method == "tree":
            used = tree_delays(obs, some, tsamp, true[:, 0], dm_constant)
        if method != "exact":
            loss = max(loss, 1 - float((_kept(used - true, samples) / _kept(exact - true, samples)).min()))
        error = max(error, float(np.abs(used - true).max()))
        delays[m : m + step] = used
    low = min(0, int(delays.min()))
    if low:
        delays -= low
    return Tabled(Table(delays, downsamp), method, -low, error, loss)


def _subband_delays(
    obs: Observation, dms: NDArray[np.float64], tsamp: float, exact: NDArray[np.int32], nsub: int, per_call: int,
    dm_constant: float,
) -> NDArray[np.int32]:  # fmt: skip
    """Exact delays of the tops of the subbands, plus delays inside them for the mean of each ``per_call`` DMs."""
    edges = np.linspace(0, obs.nchan, nsub + 1).round().astype(int)[:-1]
    band_of = np.searchsorted(edges, np.arange(obs.nchan), side="right") - 1
    tops = obs.freqs[edges][band_of]
    used = np.empty_like(exact)
    for m in range(0, len(dms), per_call):
        nominal = dms[m : m + per_call].mean()
        late = [delay_seconds(f, nominal, np.inf, dm_constant) / tsamp for f in (obs.freqs, tops)]
        inside = np.rint(late[0] - late[1]).astype(np.int32)
        used[m : m + per_call] = exact[m : m + per_call][:, edges][:, band_of] + inside
    return used


def tree_delays(
    obs: Observation, dms: NDArray[np.float64], tsamp: float, start: NDArray[np.float64], dm_constant: float
) -> NDArray[np.int32]:
    """Delays of a tree (FDMT, Zackay & Ofek 2017): delays in whole samples are repeatedly split in two.

    The delay across the band is rounded once.  A node of ``2^l`` channels divides its delay between its halves; the
    upper half gets its share by the dispersion law, rounded to whole samples.  So the sums of a node depend on one
    whole number only, and all DMs with that number share them.  ``start`` is the delay of the first channel in samples,
    not rounded.
    """
    nchan = obs.nchan
    last = 2 * obs.freqs[-1] - obs.freqs[-2] if nchan > 1 else obs.freqs[-1]
    law = delay_seconds(np.append(obs.freqs, max(last, obs.freqs[-1] / 2)), 1.0, obs.top, dm_constant) / tsamp
    out = np.empty((len(dms), nchan), np.int32)
    first = np.rint(start).astype(np.int64)
    whole = np.rint(start + dms * law[-1]).astype(np.int64) - first
    waiting = [(0, 1 << max(0, nchan - 1).bit_length(), first, whole)]
    while waiting:
        a, size, at, across = waiting.pop()
        if size == 1:
            out[:, a] = at
            continue
        half, end = size // 2, min(a + size, nchan)
        middle = a + half
        if middle >= nchan:
            waiting.append((a, half, at, across))
            continue
        span = law[end] - law[a]
        upper = np.rint(across * ((law[middle] - law[a]) / span)).astype(np.int64) if span > 0 else 0 * across
        waiting += [(a, half, at, upper), (middle, half, at + upper, across - upper)]
    return out


def _kept(error: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """For each DM, the fraction of a top-hat pulse of ``width`` samples that is inside a box of that width."""
    kept: NDArray[np.float64] = np.clip(1 - np.abs(error) / width, 0, 1).mean(axis=1)
    return kept


def widest_call(
    obs: Observation, dms: NDArray[np.float64], downsamp: int, nsub: int, max_loss: float, width: float | None,
    dm_constant: float,
) -> int:  # fmt: skip
    """Most DMs that may share subbands with a loss of at most ``max_loss``; 0 if not even two may."""
    found, per_call = 0, 2
    sample = dms if len(dms) <= 512 else dms[-512:]
    while per_call <= len(dms):
        made = make_table(obs, sample, downsamp, dm_constant=dm_constant, nsub=nsub, per_call=per_call, width=width)
        if made.loss > max_loss:
            break
        found, per_call = per_call, per_call + max(1, per_call // 4) * 2
    return found
