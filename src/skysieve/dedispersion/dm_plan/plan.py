"""`plan`, which chooses DMs and time binnings, and its result `DMPlan`."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.arrays import ByValue
from skysieve.core.checks import one_of
from skysieve.core.files import written
from skysieve.core.result import Result
from skysieve.dedispersion.data.delays import delay_seconds, numbers, scattering, smearing, snr_kept
from skysieve.dedispersion.data.filterbank import Filterbank, Paths, opened
from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation, in_unit

from .rules import RULES, Band, Rule, Stage, check_count, loss_stages, presto_stages, survey_stages, tolerance_dms

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["DMPlan", "plan"]

SCATTERING = {"bhat2004": "scattering time by DM of Bhat et al. 2004"}
"""Models of scattering."""
PLAN_FORMATS = {
    "json": "all of the plan, for --plan and DMPlan.load",
    "csv": "a row for each stage",
    "ecsv": "a row for each stage, with units",
}
"""Formats in which the command writes a plan."""
POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Binnings that the rules choose from by default."""
FORMAT = "skysieve.dedispersion.plan 2"
WIDE = 0.1
"""Seconds; few pulses are wider, and widths in milliseconds or microseconds are larger numbers."""


@dataclass(frozen=True, repr=False, eq=False)
class DMPlan(Result, ByValue):
    """DMs in stages, for one band and sampling time.

    Attributes
    ----------
    stages : tuple of Stage
        Each stage has ``dms``, ``step``, ``downsamp`` (samples that are added in time) and ``per_call`` (DMs that share
        subbands; 0 without subbands).
    top, bottom, centre, bandwidth : float
        MHz: centres of the highest and lowest channel, middle and width of the band.
    nchan : int
    tsamp : float
        Seconds.
    rule : str
        The rule that chose the DMs, a name of `RULES`.
    nsub : int
        Subbands of the two-stage method; 0 for none.
    dm_constant : float
        MHz^2 s cm^3 / pc.
    notes : tuple of str
        Sentences on the limits that shaped the plan.
    """

    stages: tuple[Stage, ...]
    top: float
    bottom: float
    centre: float
    bandwidth: float
    nchan: int
    tsamp: float
    rule: str
    nsub: int = 0
    dm_constant: float = DM_CONSTANT
    notes: tuple[str, ...] = ()

    @property
    def dms(self) -> NDArray[np.float64]:
        """All DMs, pc / cm^3."""
        return np.concatenate([s.dms for s in self.stages])

    @property
    def ndm(self) -> int:
        """Number of DMs."""
        return sum(len(s.dms) for s in self.stages)

    def maxshift(self, stage: int | None = None) -> int:
        """Largest delay across the band in samples (not binned), of one stage or of all."""
        chosen = self.stages if stage is None else (self.stages[stage],)
        highest = max(float(s.dms.max()) for s in chosen)
        seconds = delay_seconds(self.bottom, highest, self.top, self.dm_constant)
        return int(np.rint(seconds / self.tsamp))

    def adds(self, nsamp: int) -> float:
        """Number of additions of a brute-force run over ``nsamp`` samples: channels x DMs x binned samples."""
        return float(sum(self.nchan * len(s.dms) * max(0, nsamp) / s.downsamp for s in self.stages))

    def memory(self, nsamp: int, itemsize: int = 1) -> dict[str, int]:
        """Bytes of a buffer of ``nsamp`` valid samples, by part (eq. 6 to 8 of Magro et al. 2011).

        ``input``: the samples and the overlap, ``itemsize`` bytes each.  ``binned``: the samples of each binning,
        2 bytes each.  ``subbands``: the subbands of the nominal DMs, 4 bytes for a sample.  ``output``: all series,
        4 bytes for a sample (eq. 8 has a misprinted sum).
        """
        whole = nsamp + self.maxshift()
        binned = sum(whole * self.nchan / d * 2 for d in {s.downsamp for s in self.stages} if d > 1)
        subbands = sum(
            whole * self.nsub * math.ceil(len(s.dms) / s.per_call) / s.downsamp * 4 for s in self.stages if s.per_call
        )
        output = sum(len(s.dms) * nsamp / s.downsamp * 4 for s in self.stages)
        parts = {"input": whole * self.nchan * itemsize, "binned": binned, "subbands": subbands, "output": output}
        return {name: int(value) for name, value in parts.items()}

    def split(self, nsamp: int, room: int) -> list[DMPlan]:
        """Divide the DMs among several plans, whose series take at most ``room`` bytes each if possible.

        The series are those of ``nsamp`` unbinned samples.  DMs that share subbands stay together.

        Examples
        --------
        >>> from skysieve.dedispersion import Observation
        >>> p = plan(Observation(308 - np.arange(16.0), 64e-6), dms=np.arange(10.0))
        >>> [part.ndm for part in p.split(1000, 4 * 1000 * 4)]
        [4, 4, 2]
        """
        parts: list[DMPlan] = []
        for stage in self.stages:
            call = max(1, stage.per_call)
            count = max(1, room // (4 * max(1, nsamp // stage.downsamp)) // call) * call
            for i in range(0, len(stage.dms), count):
                some = replace(stage, dms=stage.dms[i : i + count])
                parts.append(replace(self, stages=(some,)))
        return parts

    def snr_kept(self, dm: Any, width: float) -> Any:
        """Fraction of the S/N that a pulse of this DM keeps in the nearest series of the plan.

        The pulse has a width of ``width`` seconds, broadened by smearing in a channel and by the sampling time.
        """
        dms = np.sort(self.dms)
        d = np.asarray(dm, np.float64)
        i = np.clip(np.searchsorted(dms, d), 1, max(1, len(dms) - 1))
        near = np.minimum(np.abs(dms[np.minimum(i, len(dms) - 1)] - d), np.abs(dms[i - 1] - d))
        channel = smearing(d, self.bandwidth / self.nchan, self.centre)
        return snr_kept(near, self.bandwidth, self.centre, np.sqrt(width**2 + self.tsamp**2 + channel**2))

    def __repr__(self) -> str:
        return f"<DMPlan {self.ndm} DMs up to {self.dms.max():g} in {len(self.stages)} stages ({self.rule})>"

    def summary(self) -> str:
        """A table with one line for each stage."""
        lines = [f"{'low DM':>10} {'high DM':>10} {'step':>9} {'bin':>4} {'DMs':>7} {'calls':>6}"]
        for s in self.stages:
            lines.append(
                f"{s.dms[0]:10.3f} {s.dms[-1]:10.3f} {s.step:9.4g} {s.downsamp:4d} {len(s.dms):7d} {s.calls:6d}"
            )
        lines.append(f"{self.ndm} DM{'s' * (self.ndm > 1)} ({self.rule}), longest shift {self.maxshift()} samples")
        return "\n".join([*lines, *self.notes])

    def to_table(self) -> Table:
        """A row for each stage: lowest and highest DM, step, binning, number of DMs, sets of subbands."""
        from astropy.table import Table

        rows = [(float(s.dms[0]), float(s.dms[-1]), s.step, s.downsamp, len(s.dms), s.calls) for s in self.stages]
        dm = "pc / cm3"
        return Table(
            rows=rows, names=("dm_low", "dm_high", "step", "downsamp", "dms", "calls"),
            units={"dm_low": dm, "dm_high": dm, "step": dm},
            meta={"rule": self.rule, "nsub": self.nsub, "dm_constant": self.dm_constant, "notes": list(self.notes)},
        )  # fmt: skip

    def to_json(self) -> str:
        """The plan as JSON, as `save` writes it."""
        facts = asdict(self)
        facts["stages"] = [{**asdict(s), "dms": s.dms.tolist()} for s in self.stages]
        return json.dumps({"format": FORMAT, **facts})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON; `load` reads the same bits."""
        with written(path) as part:
            part.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DMPlan:
        """Read a plan that `save` wrote.

        Raises
        ------
        ValueError
            The file holds something else.
        """
        return cls.from_json(Path(path).read_bytes(), os.fspath(path))

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "text") -> DMPlan:
        """The plan that `to_json` made `text` of; errors call it `name`."""
        try:
            try:
                facts = json.loads(text)
            except ValueError:  # its message depends on how bytes of another format are decoded
                raise ValueError("it is not JSON") from None
            if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
                raise ValueError(f"expected JSON with format {FORMAT!r}")
            stages = [Stage(np.array(s.pop("dms"), np.float64), **s) for s in facts.pop("stages")]
            made = cls(stages=tuple(stages), notes=tuple(facts.pop("notes")), **facts)
            made._check_loaded()
            return made
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{name}: is not a de-dispersion plan ({why})") from None

    def _check_loaded(self) -> None:
        if not self.stages:
            raise ValueError("it has no stages")
        for s in self.stages:
            if s.dms.ndim != 1 or not len(s.dms) or not (np.isfinite(s.dms) & (s.dms >= 0)).all():
                raise ValueError("the DMs of a stage are not finite numbers of at least 0")
            if not all(isinstance(n, int) and n >= least for n, least in ((s.downsamp, 1), (s.per_call, 0))):
                raise ValueError(f"a stage has downsamp={s.downsamp!r} and per_call={s.per_call!r}")
        if not (math.isfinite(self.dm_constant) and self.dm_constant > 0):
            raise ValueError(f"dm_constant={self.dm_constant!r}: expected a number above 0")

    def plot(self, **options: Any) -> Figure:
        """Smearing by cause against DM, and the step of each stage.

        Parameters
        ----------
        **options
            Options of `matplotlib.figure.Figure`.
        """
        from skysieve.dedispersion.dm_plan.plot import plan_figure

        return plan_figure(self, **options)

    def check(self, obs: Observation) -> None:
        """Refuse an observation with other channels or another sampling time than the plan was made for."""
        same = (
            obs.nchan == self.nchan
            and abs(obs.tsamp / self.tsamp - 1) < 1e-9
            and abs(obs.top - self.top) < 1e-6 * self.top
            and abs(float(obs.freqs[-1]) - self.bottom) < 1e-6 * self.top
        )
        if not same:
            raise ValueError(
                f"plan: made for {self.nchan} channels, {self.bottom:g}-{self.top:g} MHz, {self.tsamp * 1e6:g} us; the "
                f"data have {obs.nchan}, {obs.freqs[-1]:g}-{obs.top:g} MHz, {obs.tsamp * 1e6:g} us"
            )


def plan(
    data: Filterbank | Observation | Paths,
    dm_max: float | None = None,
    *,
    dm_min: float = 0.0,
    rule: Rule | None = None,
    max_loss: float = 0.1,
    tol: float = 1.25,
    width: float = 40e-6,
    dms: Any = None,
    step: float | None = None,
    stages: Any = None,
    nsub: int = 0,
    downsamp: int | Literal["auto"] | Sequence[int] = "auto",
    resolution: float = 0.0,
    scattering: Literal["bhat2004"] | None = None,
    longest: float = 0.1,
    dm_constant: float = DM_CONSTANT,
) -> DMPlan:
    """Choose the DMs of a search, and the time binning of each.

    Parameters
    ----------
    data : Filterbank, Observation, path or sequence of paths
        The channels and the sampling time; of a file only the header is read.
    dm_max, dm_min : float
        Range of the DMs, pc / cm^3.  If both are equal, this is the only DM.  With the rules "loss" and "tolerance",
        and with "presto" and subbands, the last DM may be above ``dm_max``, so that pulses up to ``dm_max`` are found.
    rule : {"loss", "presto", "tolerance", "survey", "list"}, optional
        "loss": a pulse between two DMs loses at most ``max_loss`` of its S/N (Cordes & McLaughlin 2003).
        "presto": the rules of PRESTO's DDplan; as there, the last DM is up to a step below ``dm_max``.
        "tolerance": the rule of dedisp and Heimdall, without binning.
        "survey": the rows of ``stages``.  "list": ``dms``, or an even ``step``.
        The default is "survey" with ``stages``, "list" with ``dms`` or ``step``, and otherwise "loss".
    max_loss : float
        Fraction of the S/N for the rule "loss", between 0 and 1.
    tol : float
        Factor by which the smearing grows from DM to DM for the rule "tolerance", above 1.
    width : float
        Intrinsic width of the pulses, seconds.
    dms : array_like, optional
        An explicit list, rising.
    step : float, optional
        An even spacing from ``dm_min`` to ``dm_max``.
    stages : sequence of rows, optional
        Low DM, high DM, step, binning, spacing of nominal DMs (optional): Table 1 of Magro et al. 2011.
    nsub : int
        Subbands of the two-stage method.
    downsamp : int, "auto" or sequence of int
        Time binning: a fixed number of samples; "auto" for powers of two where they fit; or a list of the numbers that
        are allowed, rising from 1.
    resolution : float
        "presto": smearing that is acceptable at all DMs, seconds.
    scattering : {None, "bhat2004"}
        "bhat2004" lowers ``dm_max`` to the DM at which the expected scattering at mid band reaches ``longest``; the
        rule "loss" also adds the scattering to the width when it chooses binnings.
    longest : float
        Longest pulses of interest, seconds.
    dm_constant : float
        MHz^2 s cm^3 / pc.

    Returns
    -------
    DMPlan

    Raises
    ------
    ValueError, TypeError

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import Observation
    >>> obs = Observation(308 - np.arange(1024) / 64, 64e-6)
    >>> survey = plan(obs, 150.66, rule="presto", nsub=32)
    >>> [(len(s.dms), s.step, s.downsamp, s.per_call) for s in survey.stages]
    [(1782, 0.03, 1, 22), (696, 0.05, 2, 24), (624, 0.1, 4, 24)]
    """
    if isinstance(data, Observation):
        obs = data
    else:
        with opened(data) as fb:
            obs = fb.observation
    dm_min, dm_max, dms, step = (
        in_unit(name, x, "pc / cm3")
        for name, x in (("dm_min", dm_min), ("dm_max", dm_max), ("dms", dms), ("step", step))
    )
    width, resolution, longest = (
        in_unit(name, x, "s") for name, x in (("width", width), ("resolution", resolution), ("longest", longest))
    )
    if isinstance(downsamp, np.ndarray | np.integer):
        downsamp = downsamp.tolist()
    chosen = _rule(rule, dms, step, stages)
    if chosen != "list" or dms is None:
        check_series(obs, (dm_min, np.inf if dm_max is None else dm_max))
    _check_numbers(dm_min=dm_min, width=width, resolution=resolution)
    for name, value, low, high in (
        ("max_loss", max_loss, 0, 1),
        ("tol", tol, 1, math.inf),
        ("longest", longest, 0, 1e9),
    ):
        if not low < value < high:
            raise ValueError(f"{name}={value!r}: expected a number above {low:g} and below {high:g}")
    if not (math.isfinite(dm_constant) and dm_constant > 0):
        raise ValueError(f"dm_constant={dm_constant!r}: expected a number above 0")
    if nsub and not 1 < nsub <= obs.nchan:
        raise ValueError(f"nsub={nsub}: expected 2 to the {obs.nchan} channels, or 0 for none")
    _check_meant(chosen, dms, downsamp, scattering)
    band = Band(obs.centre, obs.band, obs.nchan, obs.tsamp)
    notes: list[str] = []
    if scattering is not None:
        one_of("scattering", scattering, SCATTERING)
        dm_max = _scattering_limit(dm_max, obs.centre, longest, notes)
    if chosen == "survey":
        made = survey_stages(stages)
    elif chosen == "list":
        made = _list_stages(dms, step, dm_min, dm_max, downsamp)
        for stage in made:
            stage.dms[own_dm(obs, stage.dms)] = 0.0
    else:
        top = _dm_max(dm_max, dm_min)
        allowed = _downsamps(downsamp)
        if chosen == "presto":
            made = presto_stages(band, dm_min, top, nsub, allowed, resolution)
        elif chosen == "tolerance":
            spaced = tolerance_dms(dm_min, top, obs.tsamp, width, obs.top, obs.foff, obs.nchan, tol)
            made = [Stage(spaced, float(np.diff(spaced).mean()) if len(spaced) > 1 else 0.0)]
        else:
            made = loss_stages(band, dm_min, top, max_loss, width, allowed, scattering is not None)
        last = float(made[-1].dms[-1])
        if chosen != "presto" and width >= WIDE and last > 2 * top:
            warnings.warn(
                f"width={width:g} s: for pulses of this width the DMs have such large steps that the first one at or "
                f"above dm_max={top:g} is {last:g}; narrower pulses may be missed (is the width in seconds?)",
                stacklevel=2,
            )
    return DMPlan(
        tuple(made), obs.top, float(obs.freqs[-1]), obs.centre, obs.band, obs.nchan, obs.tsamp, chosen, nsub,
        float(dm_constant), tuple(notes),
    )  # fmt: skip


def check_series(obs: Observation, dms: Any) -> None:
    """Refuse DMs other than 0 for a time series, whose single channel has the same delay at all DMs.

    ``dms`` are relative to the DM at which the series was de-dispersed: 0 is that DM.
    """
    if obs.nchan == 1 and np.any(np.asarray(dms) != 0):
        own = "" if obs.dm is None else f", de-dispersed at DM {obs.dm:.12g}"
        which = "only DM 0" if obs.dm is None else f"only DM {obs.dm:.12g}, or 0 for the same DM"
        raise ValueError(f"the data are one channel{own}: they cannot be searched at several DMs; expected {which}")


def own_dm(obs: Observation, dms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask of DMs that equal the DM of a time series; all False if the data are not a de-dispersed time series."""
    same = np.zeros(len(dms), bool)
    if obs.nchan == 1 and obs.dm is not None:
        same = np.isclose(dms, obs.dm, rtol=1e-9, atol=0)
    return same


def _rule(rule: str | None, dms: Any, step: float | None, stages: Any) -> str:
    """The rule that is asked for, or that the arguments need."""
    given = {"list": dms is not None or step is not None, "survey": stages is not None}
    if rule is None:
        needed = [name for name, present in given.items() if present]
        if len(needed) > 1:
            raise ValueError("stages cannot be combined with dms or step: expected one of them")
        return needed[0] if needed else "loss"
    one_of("rule", rule, RULES)
    for name, present in given.items():
        if present != (rule == name):
            problem = "cannot be combined with it" if present else "is needed"
            raise ValueError(f"rule={rule!r}: {RULES[name].needs} {problem}")
    return rule


def _check_meant(chosen: str, dms: Any, downsamp: int | str | Sequence[int], scattering: str | None) -> None:
    """Refuse arguments that the rule would ignore."""
    whole = isinstance(downsamp, int) or downsamp == "auto"
    if chosen == "list" and not whole:
        raise ValueError(f"downsamp={downsamp!r}: a list of DMs has a single binning; expected a whole number")
    if chosen in ("tolerance", "survey") and downsamp not in ("auto", 1):
        has = "no binning" if chosen == "tolerance" else "the binnings of its stages"
        raise ValueError(f"downsamp={downsamp!r}: rule={chosen!r} has {has}; expected 'auto'")
    if scattering is not None and (chosen == "survey" or dms is not None):
        raise ValueError(f"scattering={scattering!r}: it limits dm_max, but the DMs themselves are given; leave it out")


def _check_numbers(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value!r}: expected a number of at least 0")


def _dm_max(dm_max: float | None, dm_min: float) -> float:
    if dm_max is None or not (math.isfinite(dm_max) and dm_max >= dm_min):
        raise ValueError(f"dm_max={dm_max!r}: expected a DM of at least dm_min={dm_min:g}")
    return float(dm_max)


def _downsamps(downsamp: int | str | Sequence[int]) -> tuple[int, ...]:
    if downsamp == "auto":
        return POWERS
    values: tuple[Any, ...] = (downsamp,) if isinstance(downsamp, int) else tuple(downsamp)
    bad = [v for v in values if isinstance(v, str) or v < 1 or v != int(v)]
    if not values or bad or list(values) != sorted(set(values)):
        raise ValueError(f"downsamp={downsamp!r}: expected 'auto', a whole number above 0, or a rising list of them")
    return tuple(int(v) for v in values)


def _list_stages(
    dms: Any, step: float | None, dm_min: float, dm_max: float | None, downsamp: int | str | Sequence[int]
) -> list[Stage]:
    binning = 1 if downsamp == "auto" else _downsamps(downsamp)[0]
    if dms is None:
        assert step is not None
        if not (math.isfinite(step) and step > 0):
            raise ValueError(f"step={step!r}: expected a DM step above 0")
        top = _dm_max(dm_max, dm_min)
        count = math.floor((top - dm_min) / step + 1e-9) + 1
        check_count(count, "step", step)
        return [Stage(np.round(dm_min + step * np.arange(count, dtype=np.float64), 9), float(step), binning)]
    listed = np.array(numbers("dms", dms), ndmin=1)
    if listed.ndim != 1 or len(listed) == 0 or not np.isfinite(listed).all():
        raise ValueError("dms: expected a list of finite numbers, at least one")
    if (listed < 0).any() or (np.diff(listed) <= 0).any():
        raise ValueError("dms: expected rising numbers of at least 0")
    check_count(len(listed))
    return [Stage(listed, float(np.diff(listed).mean()) if len(listed) > 1 else 0.0, binning)]


def _scattering_limit(dm_max: float | None, centre: float, longest: float, notes: list[str]) -> float | None:
    """The DM at which scattering reaches ``longest``, if that is below ``dm_max``."""
    trial = np.geomspace(1, 1e5, 20001)
    beyond = trial[scattering(trial, centre) > longest]
    if len(beyond) == 0 or (dm_max is not None and beyond[0] >= dm_max):
        return dm_max
    notes.append(f"dm_max lowered to {beyond[0]:.1f}: scattering there is {longest:g} s (Bhat et al. 2004)")
    return float(beyond[0])
