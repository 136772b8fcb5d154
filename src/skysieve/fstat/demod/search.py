"""The whole search from SFTs to a table: templates are demodulated in batches and searched for transients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from skysieve.core.device import Device
from skysieve.fstat.contract import Dtype
from skysieve.fstat.inputs.simulate import listed
from skysieve.fstat.sfts.sfts import SFTs
from skysieve.fstat.template_search.search import Devices, SearchPlan

from .bank import TemplateBank, long_sfts
from .barycentre import EphemerisName
from .demodulator import Demodulator, stream

if TYPE_CHECKING:
    from skysieve.fstat.template_search.result import SearchResult

__all__ = ["demodulators", "search_sfts"]


def search_sfts(
    sfts: SFTs | Sequence[SFTs],
    ra: float,
    dec: float,
    bank: TemplateBank,
    tref: float | None = None,
    *,
    barycentre: EphemerisName | dict[str, tuple[Any, Any]] = "auto",
    noise: float | Mapping[str, float] | None = None,
    dtype: Dtype = "float32",
    device: Devices = "auto",
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
    barycentre : {"auto", "lal", "de405", "builtin"} or dict
    noise : float or dict of float, optional
        As for `Demodulator`.
    dtype : {"float32", "float64"}
        Precision of the demodulation and of the search.
    device : str, Device or sequence of them
        Devices that demodulate and search the templates, as for `skysieve.fstat.search`.  Each of several GPUs
        demodulates the templates that it searches.
    **options
        As for `skysieve.fstat.search`: `grid`, `windows`, `topk`, `threshold`, `checkpoint`, ...

    Returns
    -------
    SearchResult
        With the columns ``f0``, ``f1dot`` and ``f2dot``.  Templates that leave the band of the SFTs, or that are not
        finite, are listed in ``faults``.

    Raises
    ------
    ValueError, TypeError
        As for `Demodulator` and `skysieve.fstat.search`: inconsistent SFTs, an unknown detector, times outside
        the range of the ephemeris, or an invalid argument.
    DeviceUnavailable
        A device that was named cannot be used.

    Warns
    -----
    UserWarning
        The SFTs are so long that the frequency of a template changes within them and 2F loses more than 5%.

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
    if not isinstance(bank, TemplateBank):
        raise TypeError(f"bank is a {type(bank).__name__}, expected a TemplateBank")
    names = "checkpoint", "checkpoint_every", "total", "facts", "progress"
    run: dict[str, Any] = {"total": len(bank)} | {name: options.pop(name) for name in names if name in options}
    many = listed(sfts, SFTs, "sfts")
    threads = options.get("threads")
    if many and (text := long_sfts(bank, many[0].tsft)):
        warnings.warn(text, stacklevel=2)
    with SearchPlan(dtype=dtype, device=device, **options) as plan:
        if plan.options.bsgl is not None:
            plan.options.bsgl.odds([one.detector for one in many])
        with (
            Demodulator(many, ra, dec, tref, barycentre=barycentre, noise=noise, dtype=dtype, threads=threads) as host,
            demodulators(host, plan.devices) as several,
        ):
            facts = host.facts(bank) | dict(run.pop("facts", None) or {})
            return plan.execute(stream(several, bank), facts=facts, **run)


@contextmanager
def demodulators(host: Demodulator, devices: Sequence[Device]) -> Iterator[list[Demodulator]]:
    """A demodulator for each device, made from `host`, which is on the CPU."""
    with ExitStack() as stack:
        yield [host if d.kind == "cpu" else stack.enter_context(host.on(d)) for d in devices]
