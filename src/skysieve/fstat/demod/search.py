"""The whole search from SFTs to a table: templates are demodulated in batches and searched for transients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from skysieve.core.device import Device, resolve
from skysieve.fstat.template_search.search import search

from .bank import TemplateBank
from .demodulator import Demodulator

if TYPE_CHECKING:
    from skysieve.fstat.sfts.sfts import SFTs
    from skysieve.fstat.template_search.result import SearchResult

__all__ = ["search_sfts"]

BATCH_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}
"""Bytes of the atoms of a batch."""


def search_sfts(
    sfts: SFTs | Sequence[SFTs],
    ra: float,
    dec: float,
    bank: TemplateBank,
    tref: float | None = None,
    *,
    barycentre: str | dict[str, tuple[Any, Any]] = "auto",
    device: str | Device = "auto",
    **options: Any,
) -> SearchResult:
    """Search SFTs for transient signals from one point of the sky.

    Parameters
    ----------
    sfts : SFTs or sequence of SFTs
        As for `Demodulator`.
    ra, dec : float
        Position, radians.
    bank : TemplateBank
        Frequencies and their derivatives at `tref`.
    tref : float, optional
        Reference time of the bank, GPS seconds; by default the middle of the data.
    barycentre : str or dict
        As for `Demodulator`.
    device : {"auto", "cpu", "cuda", "cuda:N"} or Device
        Where templates are demodulated and searched.
    **options
        As for `skysieve.fstat.search`: `grid`, `windows`, `topk`, `threshold`, `checkpoint`, ...

    Returns
    -------
    SearchResult
        With the columns ``f0``, ``f1dot`` and ``f2dot``.

    Examples
    --------
    >>> from skysieve.fstat import Grid, Signal, TemplateBank, simulate_sfts
    >>> signal = Signal(f0=100.05, h0=3e-24, ra=0.5, dec=1.0, tref=1_000_043_200)
    >>> made = simulate_sfts((100, 100.1), span=86400, signals=signal, ephemeris="builtin")
    >>> bank = TemplateBank.grid((100.0499, 100.0501, 4e-6))
    >>> found = search_sfts(made, 0.5, 1.0, bank, windows=("rect",), barycentre="builtin", device="cpu")
    >>> best = found.columns("rect")
    >>> bool(abs(best["f0"][0] - 100.05) < 4e-6)
    True
    """
    chosen = resolve(device)[0]
    with Demodulator(sfts, ra, dec, tref, barycentre=barycentre, device=chosen) as demodulator:
        atoms = sum(len(one) for one in demodulator.sfts)
        size = max(1, BATCH_BYTES[chosen.kind] // (16 * atoms))

        def batches(start: int) -> Iterator[Any]:
            for at in range(start, len(bank), size):
                yield demodulator.batch(*bank.part(at, at + size).values())

        return search(batches, device=chosen, **{"total": len(bank), **options})
