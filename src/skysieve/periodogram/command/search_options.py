"""The options of ``skysieve period`` as the arguments of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from skysieve import __version__
from skysieve.core.memory import parse_budget
from skysieve.periodogram.analysis.phase_function import PHASE_FUNCTIONS
from skysieve.periodogram.lightcurves.checks import make_spec
from skysieve.periodogram.lightcurves.column_names import Wanted
from skysieve.periodogram.multiband import DEFAULT_TERMS
from skysieve.periodogram.numerics.fourier import MAX_TERMS
from skysieve.periodogram.numerics.grid import make_rule
from skysieve.periodogram.survey import OPEN_SAMPLES, Request

from .report import with_search_options
from .run import Treatment, UserError

AUTO = "auto"
MAX_PEAKS = 1000
"""Largest number of peaks: each is compared with all higher ones, and has seven columns of the table."""


@dataclass(frozen=True)
class SearchOptions:
    """The search, the changes to rows before it, and the columns of files."""

    request: Request
    treatment: Treatment
    wanted: Wanted

    def facts(self, partition: int | None) -> list[Any]:
        """Everything on which the results of a part of ``--resume`` depend, as JSON values."""
        arguments = {k: v for k, v in self.request.arguments.items() if k not in ("threads", "memory")}
        return [arguments, asdict(self.treatment), asdict(self.wanted), partition, __version__]


def read_options(options: Mapping[str, Any]) -> SearchOptions:
    """Read the options, which are JSON values by their names in Python.

    Raises
    ------
    UserError
        An option is wrong, or two contradict each other.
    """
    o = options
    unit = "h" if (o["hours"] or o["asteroid"]) and o["period_unit"] is None else o["period_unit"] or "d"
    if o["hours"] and unit != "h":
        raise UserError(f"--hours and --period-unit {unit} contradict each other")
    if o["err"] and o["no_err"]:
        raise UserError("--err and --no-err contradict each other")
    multiband, asteroid, method = o["multiband"], o["asteroid"], o["method"]
    # A sinusoid finds half of a rotation; two terms would find either half or all of it, object by object.
    band_terms = DEFAULT_TERMS if o["nterms"] is None and multiband is None and not asteroid else None
    nterms = o["nterms"] or 1
    for name, value, most in (("--nterms", nterms, MAX_TERMS), ("--peaks", o["peaks"], MAX_PEAKS)):
        if value > most:
            raise UserError(f"{name} {value}: expected 1 to {most}")
    arguments = _grid_arguments(
        o["min_period"], o["max_period"], o["fmin"], o["fmax"], o["nf"], Request({"nterms": nterms}, unit, asteroid)
    )
    samples = o["samples_per_peak"]
    if samples is not None and o["nf"] is not None:
        raise UserError("--samples-per-peak cannot be combined with --nf: both set the number of frequencies")
    if samples is None:
        samples = OPEN_SAMPLES if AUTO in arguments.values() else 5
    arguments |= {
        "samples_per_peak": samples, "fit_mean": not o["no_fit_mean"], "normalization": o["normalization"],
        "n_peaks": o["peaks"], "method": method, "device": o["device"], "dtype": o["dtype"], "nterms": nterms,
    }  # fmt: skip
    _check_search(arguments, o["memory"])
    model = _phase_model(o["r"], o["delta"], o["phase"], o["phase_model"])
    jitter = o["jitter"]
    if jitter is not None and not 0 <= jitter < float("inf"):
        raise UserError(f"--jitter {jitter:g}: expected a number of at least 0")
    bands = _bands(multiband, not o["no_fit_mean"], method, model)
    flags, bits = _flags(o["flag_column"], o["quality_mask"])
    return SearchOptions(
        Request(arguments | {"threads": o["threads"], "memory": o["memory"]}, unit, asteroid, bands, band_terms),
        Treatment(o["time_unit"], o["no_err"], o["band"], multiband, jitter, model),
        Wanted(
            o["id"], o["time"], o["mag"], o["err"], o["band_column"], o["r"], o["delta"], o["phase"],
            asteroid or model is not None, flags, bits,
        ),
    )  # fmt: skip


def _check_search(arguments: Mapping[str, Any], memory: str | None) -> None:
    """Refuse, before files are read, what the search would refuse for any light curve."""
    a = arguments
    try:
        make_spec(
            a["fit_mean"], True, a["normalization"], a["n_peaks"], False, a["method"], a["dtype"], a["nterms"]
        )  # fmt: skip
        make_rule(**{name: a[name] for name in ("fmin", "fmax", "nf", "samples_per_peak")})
        parse_budget(memory, 1)
    except (ValueError, TypeError) as e:
        raise UserError(with_search_options(str(e))) from None


def _grid_arguments(
    min_period: float | None,
    max_period: float | None,
    fmin: float | None,
    fmax: float | None,
    nf: int | None,
    request: Request,
) -> dict[str, Any]:
    """``fmin, fmax, nf`` in cycles a day from a range of periods or of frequencies; an open end is "auto"."""
    for name, value in (("--min-period", min_period), ("--max-period", max_period), ("--fmin", fmin), ("--fmax", fmax)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name} {value:g}: expected a positive number")
    by_period, by_frequency = (min_period, max_period) != (None, None), (fmin, fmax) != (None, None)
    if by_period and by_frequency:
        raise UserError("give the range as periods or as frequencies, not both")
    if min_period and max_period and min_period >= max_period:
        raise UserError(f"--min-period {min_period:g} is not below --max-period {max_period:g}")
    if fmin and fmax and fmin >= fmax:
        raise UserError(f"--fmin {fmin:g} is not below --fmax {fmax:g}")
    if by_period:
        scale = request.scale
        fmin = None if max_period is None else scale / max_period
        fmax = None if min_period is None else scale / min_period
    return {"fmin": AUTO if fmin is None else float(fmin), "fmax": AUTO if fmax is None else float(fmax), "nf": nf}


def _flags(columns: list[str] | None, mask: str) -> tuple[tuple[str, ...] | None, int | None]:
    """Columns of flags (None: find them) and the bits that mark bad rows (None: the usual bits of the survey)."""
    if mask == "none":
        if columns:
            raise UserError(f"--flag-column {columns[0]} and --quality-mask none contradict each other")
        return (), None
    named = None if not columns else tuple(columns)
    if mask == "default":
        return named, None
    try:
        bits = int(mask, 0)
    except ValueError:
        bits = 0
    if not 0 < bits < 2**63:
        raise UserError(f"--quality-mask {mask}: expected none, or a positive whole number such as 175 or 0xaf")
    return named, bits


def _phase_model(r: str | None, delta: str | None, phase: str | None, model: str | None) -> str | None:
    """The phase function to remove; None for objects that do not move."""
    if (r is None) != (delta is None):
        raise UserError("--r and --delta: both distances are needed")
    if r is None:
        if phase is not None or model is not None:
            raise UserError("--phase and --phase-model need the distances --r and --delta too")
        return None
    if model is None:
        return "hg1g2" if phase is not None else "none"
    if phase is not None and not PHASE_FUNCTIONS[model].needs_phase:
        raise UserError(f"--phase needs a --phase-model other than {model}")
    if PHASE_FUNCTIONS[model].needs_phase and phase is None:
        raise UserError(f"--phase-model {model} needs the column of phase angles: --phase")
    return model


def _bands(model: str | None, fit_mean: bool, method: str, phase_model: str | None) -> str:
    """The model of several bands: a mean for each, unless a phase function of each band has removed them already."""
    if model is None:
        levelled = phase_model is not None and PHASE_FUNCTIONS[phase_model].needs_phase
        return "none" if levelled or not fit_mean or method == "finufft" else "offsets"
    if model != "none" and not fit_mean:
        raise UserError(f"--multiband {model} fits a mean for each band; it cannot be combined with --no-fit-mean")
    if model != "none" and method == "finufft":
        raise UserError(f"--multiband {model} cannot be combined with --method finufft, which has one band")
    return model
