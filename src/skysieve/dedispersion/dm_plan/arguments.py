"""Checks of the arguments for DMs and methods, and their conversion to tables of delays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import whole
from skysieve.dedispersion.contract import MOST_BINNED
from skysieve.dedispersion.data.delays import numbers
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import DM_CONSTANT, in_unit

from .delay_tables import SUBBANDS, Tabled, make_table, widest_call
from .plan import DMPlan, check_series, own_dm

if TYPE_CHECKING:
    from numpy.typing import NDArray

Stages = list[tuple["NDArray[np.float64]", int, int, int]]
"""For each stage of a plan, or for a list of DMs: DMs, binning, number of subbands, and of DMs that share them."""


def stages_of(fb: Filterbank, dms: Any, dm_constant: float | None, downsamp: int = 1) -> tuple[Stages, float]:
    """The stages of the argument ``dms``, a `DMPlan` or a list of DMs, and the dispersion constant.

    The DMs are copied, so that the caller may change the argument later.
    """
    constant = _dm_constant(dm_constant, dms)
    if isinstance(dms, DMPlan):
        dms.check(fb.observation)
        stages = [(s.dms.copy(), s.downsamp, dms.nsub, s.per_call) for s in dms.stages]
    else:
        stages = [(_dm_list(dms), whole("downsamp", downsamp, 1, MOST_BINNED), 0, 0)]
    if fb.observation.dm is not None:
        for listed, *_ in stages:
            listed[own_dm(fb.observation, listed)] = 0.0
            check_series(fb.observation, listed)
    return stages, constant


def _dm_list(dms: Any) -> NDArray[np.float64]:
    listed = np.array(numbers("dms", in_unit("dms", dms, "pc / cm3")), ndmin=1)
    if listed.ndim != 1 or listed.size == 0:
        raise ValueError(f"dms has shape {np.shape(dms)}, expected a list of at least one DM")
    if not np.isfinite(listed).all():
        raise ValueError("dms: expected finite numbers")
    if (listed < 0).any():
        raise ValueError(f"dms: {listed.min():g} is below 0; expected DMs of at least 0")
    return listed


def _dm_constant(given: float | None, dms: Any) -> float:
    if given is None:
        return dms.dm_constant if isinstance(dms, DMPlan) else DM_CONSTANT
    if not (math.isfinite(given) and given > 0):
        raise ValueError(f"dm_constant={given!r}: expected a number above 0")
    if isinstance(dms, DMPlan) and given != dms.dm_constant:
        raise ValueError(f"dm_constant={given!r}: expected {dms.dm_constant!r}, with which the plan was made")
    return float(given)


def check_binning(fb: Filterbank, downsamp: int) -> None:
    """Refuse a binning that is not a number of samples, is longer than the data, or whose sums overflow 32 bits."""
    whole("downsamp", downsamp, 1, MOST_BINNED)
    if downsamp > fb.nsamp:
        raise ValueError(f"downsamp={downsamp!r}: the data have only {fb.nsamp} samples")
    if fb.dtype.kind != "f":
        top = fb.maximum if fb.dtype.kind == "u" and fb.maximum else 256**fb.dtype.itemsize - 1
        if fb.nchan * downsamp * top >= 2 ** (32 if fb.dtype.kind == "u" else 31):
            raise ValueError(
                f"downsamp={downsamp}: sums of {fb.nchan} channels x {downsamp} samples up to {top} exceed 32 bits"
            )


def tabled(
    fb: Filterbank, dms: NDArray[np.float64], downsamp: int, method: str, max_loss: float, width: float | None,
    nsub: int, per_call: int, ref_freq: str | float, constant: float,
) -> Tabled:  # fmt: skip
    """The delays of one list of DMs; "auto" takes the exact ones, or an approximation that `max_loss` allows."""
    check_binning(fb, downsamp)
    obs = fb.observation
    if nsub and not 1 < nsub <= obs.nchan:
        raise ValueError(f"nsub={nsub}: expected 2 to the {obs.nchan} channels, or 0")
    common: dict[str, Any] = {"ref_freq": ref_freq, "dm_constant": constant, "width": width}
    if method == "tree":
        return make_table(obs, dms, downsamp, tree=True, **common)
    if obs.nchan >= 2 and (method == "subband" or (method == "auto" and max_loss > 0)):
        if method == "auto" and not nsub:
            made = make_table(obs, dms, downsamp, tree=True, **common)
            if made.loss <= max_loss:
                return made
        bands = nsub or min(SUBBANDS, max(2, obs.nchan // 4))
        call = per_call or widest_call(obs, dms, downsamp, bands, max_loss or 0.02, width, constant)
        if call or method == "subband":
            made = make_table(obs, dms, downsamp, nsub=bands, per_call=call or 1, **common)
            if method == "subband" or made.loss <= max_loss:
                return made
    return make_table(obs, dms, downsamp, ref_freq=ref_freq, dm_constant=constant)
