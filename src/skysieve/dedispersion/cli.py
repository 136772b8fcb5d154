"""``skysieve dedisp``: from filterbank files to candidates and their pictures."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skysieve.dedispersion.cli_options import (
    DATA,
    OUTPUT,
    SEARCH,
    BitOrder,
    Constant,
    Count,
    Detector,
    Device,
    DmMax,
    DmMin,
    Downsamp,
    Files,
    Ignore,
    Loss,
    MaskFile,
    Memory,
    Method,
    Methods,
    Noise,
    Nsub,
    PlanFile,
    Quiet,
    Requantise,
    Rfi,
    Rule,
    Rules,
    Scatter,
    Series,
    Step,
    Threads,
    Tol,
    Width,
    ZeroDm,
    option,
)

if TYPE_CHECKING:
    from skysieve.dedispersion.dmplan import DMPlan
    from skysieve.dedispersion.filterbank import Filterbank
    from skysieve.dedispersion.masks import Mask

USER_ERROR, INTERRUPTED = 2, 130

dedisp = typer.Typer(help="Dispersed radio pulses: de-dispersion and single-pulse search.", no_args_is_help=True)


@contextmanager
def told() -> Iterator[None]:
    """Mistakes of the user's and limits of the machine as one line and exit status 2.

    SIGTERM ends a command as ^C does: what was half written is removed.
    """
    ends = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (ValueError, TypeError, OSError, MemoryError, RuntimeError, ModuleNotFoundError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        typer.echo(f"skysieve: {text}", err=True)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        typer.echo("skysieve: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if ends:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def noted() -> Iterator[None]:
    """Warnings of what reads files, each told in a line."""
    import warnings

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for warning in said:
        typer.echo(f"note: {warning.message}", err=True)


def opened(files: list[Path], bit_order: str = "little") -> Filterbank:
    """The files as one filterbank."""
    from skysieve.dedispersion.filterbank import Filterbank

    with noted():
        return Filterbank.open(files[0] if len(files) == 1 else files, bit_order=bit_order)


def numbers(text: str, nchan: int) -> list[int]:
    """``"0,5:9"`` as 0, 5, 6, 7, 8, 9."""
    found: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        try:
            low = int(first)
            high = int(last) if colon else low
        except ValueError:
            raise ValueError(f"--ignore {text}: expected channel numbers such as 0,5:9") from None
        if not 0 <= low <= high < nchan:
            raise ValueError(f"--ignore {text}: expected numbers from 0 to {nchan - 1}, ranges rising")
        found += range(low, high + 1)
    return found


def masked(fb: Filterbank, mask: Path | None, rfi: bool, ignore: str | None, quiet: bool) -> Mask | None:
    """All masks asked for, joined."""
    from skysieve.dedispersion.masks import Mask
    from skysieve.dedispersion.rfi import read_rfifind, rfi_mask

    parts: list[Mask] = []
    if mask is not None:
        with noted():
            parts.append(read_rfifind(mask, fb))
    if ignore:
        parts.append(Mask.channels(fb.nchan, numbers(ignore, fb.nchan)))
    if rfi:
        parts.append(rfi_mask(fb, block=None if mask is None else parts[0].block))
    if not parts:
        return None
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.union(part)
    if not quiet:
        typer.echo(f"masked: {1 - whole.weight_of(fb.nsamp):.2%} of the data", err=True)
    return whole


def cleaned(fb: Filterbank, requantised: bool, without_mean: bool, quiet: bool) -> Filterbank:
    """The data as they are asked for: requantised, less the mean over the channels."""
    from skysieve.dedispersion.requantise import LOSS, requantise
    from skysieve.dedispersion.rfi import zero_dm

    if requantised:
        fb = requantise(fb)
        if not quiet:
            typer.echo(f"requantised to 8 bits, which costs {LOSS:.2%} of the S/N", err=True)
    return zero_dm(fb) if without_mean else fb


def planned(
    fb: Filterbank, plan: Path | None, dm_min: float, dm_max: float | None, step: float | None, count: int | None,
    rule: Rule | None, max_loss: float, tol: float, width: float, nsub: int, scattering: bool, downsamp: int | None,
    constant: float | None,
) -> DMPlan:  # fmt: skip
    """The plan that the options mean."""
    from skysieve.dedispersion.dmplan import DMPlan
    from skysieve.dedispersion.dmplan import plan as make
    from skysieve.dedispersion.observation import DM_CONSTANT

    if plan is not None:
        if (dm_max, step, count, rule, downsamp, constant) != (None,) * 6 or dm_min or nsub or scattering:
            raise ValueError(
                "--plan goes without --dm-min, --dm-max, --dm-step, --num-dms, --rule, --nsub, --scattering, "
                "--downsamp and --dm-constant: the plan has them"
            )
        return DMPlan.load(plan)
    if count is not None and dm_max is not None:
        raise ValueError("--num-dms goes without --dm-max: --dm-min, --dm-step and --num-dms give the highest DM")
    if rule is not None and (count is not None or step is not None):
        raise ValueError("--rule goes without --dm-step and --num-dms: it chooses the steps")
    k = DM_CONSTANT if constant is None else constant
    if fb.observation.dm is not None and dm_max is None and count is None:
        return make(fb, dms=[0.0], downsamp=downsamp or 1, dm_constant=k)
    common: dict[str, Any] = {"nsub": nsub, "scattering": "bhat2004" if scattering else None, "dm_constant": k}
    if count is not None:
        if step is None and count > 1:
            raise ValueError("--num-dms needs --dm-step")
        values = [dm_min + i * (step or 0.0) for i in range(count)]
        return make(fb, dms=[round(v, 9) for v in values], downsamp=downsamp or 1, **common)
    if dm_max is None:
        raise ValueError("--dm-max (or --num-dms with --dm-step, or --plan) is needed: how far to search")
    if step is not None:
        return make(fb, dm_max, dm_min=dm_min, step=step, downsamp=downsamp or 1, **common)
    chosen = "loss" if rule is None else rule.value
    return make(
        fb, dm_max, dm_min=dm_min, method=chosen, max_loss=max_loss, tol=tol, width=width,
        downsamp="auto" if downsamp is None else downsamp, **common,
    )  # fmt: skip


def speed(rate: float, realtime: float, method: str, device: str, seconds: float) -> str:
    """Method, device, rate and real-time factor in a line."""
    return f"{method} on {device}: {seconds:.2f} s, {rate / 1e9:.3g} Gadd/s, {realtime:.3g} x real time"


def bar(quiet: bool) -> bool:
    """Whether to draw a progress bar: on a terminal."""
    return not quiet and os.isatty(2)


@dedisp.command()
def info(files: Files, bit_order: BitOrder = "little") -> None:
    """What files hold: channels, sampling, time, source.

    - skysieve dedisp info a.fil
    """
    import numpy as np

    with told(), opened(files, bit_order) as fb:
        o = fb.observation
        rows = [
            ("source", o.source or "unnamed"), ("telescope", o.telescope or "unknown"),
            ("RA, Dec", f"{o.ra:.6f}, {o.dec:.6f} deg"), ("start", f"MJD {o.tstart:.12f}"),
            ("channels", f"{o.nchan}{'' if o.regular else ' (unevenly spaced)'}"),
            ("frequencies", f"{o.freqs[-1]:.6f} to {o.freqs[0]:.6f} MHz (centres)"),
            ("channel width", f"{abs(o.foff):.6g} MHz"), ("sampling", f"{o.tsamp * 1e6:.6g} us"),
            ("samples", f"{fb.nsamp} ({fb.duration:.6g} s)"), ("bits", f"{o.nbits} ({fb.dtype.name})"),
        ]  # fmt: skip
        if len(fb.gaps):
            missing = int(np.diff(fb.gaps).sum())
            rows.append(("gaps", f"{len(fb.gaps)}, of {missing * o.tsamp:.6g} s in all"))
        if o.dm is not None:
            rows.append(("DM", f"{o.dm:g} (de-dispersed)"))
        for name, value in rows:
            typer.echo(f"{name:14s} {value}")


@dedisp.command()
def plan(
    files: Files, dm_max: DmMax = None, dm_min: DmMin = 0.0, dm_step: Step = None, num_dms: Count = None,
    rule: Rules = None, max_loss: Loss = 0.1, tol: Tol = 1.25, width: Width = 40e-6, nsub: Nsub = 0,
    scattering: Scatter = False, downsamp: Downsamp = None, dm_constant: Constant = None,
    output: Annotated[Path | None, option("-o", "--output", help="Save it.", panel=OUTPUT, metavar="JSON")] = None,
    plot: Annotated[Path | None, option("--plot", help="Picture.", panel=OUTPUT, metavar="PNG")] = None,
) -> None:  # fmt: skip
    """Choose DMs, time binning and subbands for files.

    - skysieve dedisp plan a.fil --dm-max 500 --rule presto --nsub 32 -o a.json --plot a.png
    """
    from skysieve.core.errors import format_bytes

    with told(), opened(files) as fb:
        check_places(output, plot)
        made = planned(
            fb, None, dm_min, dm_max, dm_step, num_dms, rule, max_loss, tol, width, nsub, scattering, downsamp,
            dm_constant,
        )  # fmt: skip
        typer.echo(made.describe())
        parts = made.memory(fb.nsamp)
        typer.echo(f"{made.adds(fb.nsamp) / 1e9:.4g} G additions by brute force; all series: "
                   f"{format_bytes(parts['output'])}")  # fmt: skip
        if output is not None:
            made.save(output)
        if plot is not None:
            save_figure(made.plot(), plot)


@dedisp.command()
def dedisperse(
    files: Files,
    output: Annotated[Path, option("-o", "--output", help="Start of the names.", panel=OUTPUT, metavar="STEM")],
    dm_max: DmMax = None, dm_min: DmMin = 0.0, dm_step: Step = None, num_dms: Count = None, rule: Rules = None,
    max_loss: Loss = 0.1, tol: Tol = 1.25, width: Width = 40e-6, nsub: Nsub = 0, scattering: Scatter = False,
    plan_file: PlanFile = None, downsamp: Downsamp = None, zero_dm: ZeroDm = False, mask: MaskFile = None,
    rfi: Rfi = False, ignore: Ignore = None, requantise: Requantise = False, bit_order: BitOrder = "little",
    method: Methods = Method.auto,
    dm_constant: Constant = None, device: Device = "auto", threads: Threads = None, memory: Memory = None,
    form: Annotated[Series, option("--format", help="dat (with .inf), tim (dat).", panel=OUTPUT)] = Series.dat,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """De-disperse files into a time series for each DM.

    - skysieve dedisp dedisperse a.fil --lodm 10 --dmstep 0.5 --numdms 40 -o out/a
    """
    from skysieve.core.device import resolve
    from skysieve.core.memory import available_host_memory, parse_budget
    from skysieve.dedispersion import api
    from skysieve.dedispersion.result import name_digits

    with told(), opened(files, bit_order) as fb:
        made = planned(
            fb, plan_file, dm_min, dm_max, dm_step, num_dms, rule, max_loss, tol, width, nsub, scattering, downsamp,
            dm_constant,
        )  # fmt: skip
        if len(set(made.dms.tolist())) < made.ndm:
            raise ValueError("the plan has a DM in two stages, whose files would have one name")
        digits = name_digits(made.dms)
        data = cleaned(fb, requantise, zero_dm, quiet)
        cut = masked(fb, mask, rfi, ignore, quiet)
        output.parent.mkdir(parents=True, exist_ok=True)
        budget = parse_budget(memory, available_host_memory())
        beside = memory if resolve(device)[0].kind == "cuda" else budget // 2
        for part in made.split(fb.nsamp, budget // 2):
            [result] = api.dedisperse(
                data, part, method=method.value, mask=cut, device=device, threads=threads, memory=beside,
                progress=bar(quiet),
            )  # fmt: skip
            paths = result.write(output, format=form.value, digits=digits)
            if not quiet:
                typer.echo(speed(result.rate, result.realtime, result.method, result.device, result.seconds))
                typer.echo(f"wrote {paths[0]}" + (f" ... {paths[-1].name} ({len(paths)})" if len(paths) > 1 else ""))


@dedisp.command()
def search(
    files: Files, dm_max: DmMax = None, dm_min: DmMin = 0.0, dm_step: Step = None, num_dms: Count = None,
    rule: Rules = None, max_loss: Loss = 0.1, tol: Tol = 1.25, width: Width = 40e-6, nsub: Nsub = 0,
    scattering: Scatter = False, plan_file: PlanFile = None, downsamp: Downsamp = None, zero_dm: ZeroDm = False,
    mask: MaskFile = None, rfi: Rfi = False, ignore: Ignore = None, requantise: Requantise = False,
    bit_order: BitOrder = "little",
    threshold: Annotated[float, option("-t", "--threshold", help="S/N (6.5).", panel=SEARCH, metavar="X")] = 6.5,
    noise: Annotated[Noise, option("--noise", help="robust, moments, clipped (robust).", panel=SEARCH)] = Noise.robust,
    detector: Annotated[
        Detector, option("--detector", help="boxcar, threshold (the paper's; boxcar).", panel=SEARCH)
    ] = Detector.boxcar,
    buffer: Annotated[int | None, option("--buffer", help="Its samples.", panel=SEARCH, metavar="N")] = None,
    block: Annotated[float, option("--block", help="Noise blocks, s (2).", panel=SEARCH, metavar="S")] = 2.0,
    method: Methods = Method.auto, dm_constant: Constant = None, device: Device = "auto", threads: Threads = None,
    memory: Memory = None,
    output: Annotated[
        Path | None,
        option("-o", "--output", help=".csv .ecsv .parquet .singlepulse .cand", panel=OUTPUT, metavar="OUT"),
    ] = None,
    plot: Annotated[Path | None, option("--plot", help="Picture of all.", panel=OUTPUT, metavar="PNG")] = None,
    cutouts: Annotated[
        Path | None,
        option("--cutouts", help="Folder for pictures and HDF5 of the loudest.", panel=OUTPUT, metavar="DIR"),
    ] = None,
    most: Annotated[int, option("--most", help="How many of them (10).", panel=OUTPUT, metavar="N", min=1)] = 10,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Search files for dispersed single pulses: from data to candidates and pictures in one command.

    - skysieve dedisp search a.fil --dm-max 500 -o a.csv --plot a.png --cutouts a-pulses
    """
    from skysieve.dedispersion import searching
    from skysieve.dedispersion.cutouts import write_cutouts
    from skysieve.dedispersion.tablefiles import check_suffix

    with told(), opened(files, bit_order) as fb:
        if output is not None:
            check_suffix(output)
        check_places(output, plot)
        if cutouts is not None and cutouts.exists() and not cutouts.is_dir():
            raise ValueError(f"--cutouts {cutouts}: is a file, expected a folder")
        made = planned(
            fb, plan_file, dm_min, dm_max, dm_step, num_dms, rule, max_loss, tol, width, nsub, scattering, downsamp,
            dm_constant,
        )  # fmt: skip
        data = cleaned(fb, requantise, zero_dm, quiet)
        cut = masked(fb, mask, rfi, ignore, quiet)
        found = searching.search(
            data, made, threshold=threshold, noise=noise.value,
            detector=detector.value, buffer=buffer, block=block, method=method.value, mask=cut, device=device,
            threads=threads, memory=memory, progress=bar(quiet),
        )  # fmt: skip
        if not quiet:
            show(found)
            typer.echo(speed(found.rate, found.realtime, found.method, found.device, found.seconds))
        if output is not None:
            found.write(output)
        if plot is not None:
            save_figure(found.plot(), plot)
        if cutouts is not None:
            paths = write_cutouts(data, found, cutouts, most=most, mask=cut, memory=memory)
            if not quiet:
                typer.echo(f"wrote {len(paths)} files into {cutouts}")


def show(found: Any, most: int = 10) -> None:
    """The loudest candidates as a table."""
    typer.echo(f"{len(found)} candidates ({len(found.events)} events above {found.threshold:g} sigma)")
    if len(found):
        typer.echo(
            f"{'S/N':>8} {'DM':>10} {'time, s':>12} {'width, ms':>10} {'members':>8}  MJD at the top of the band"
        )
    for i in range(min(most, len(found))):
        typer.echo(
            f"{found.snr[i]:8.2f} {found.dm[i]:10.3f} {found.time[i]:12.6f} {found.width[i] * 1e3:10.4g} "
            f"{found.members[i]:8d}  {found.mjd_top[i]:.9f}"
        )


def check_places(output: Path | None, plot: Path | None) -> None:
    """Refuse, before any work, files that could not be written after it."""
    for path in (output, plot):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise ValueError(f"{path}: is a folder, expected the name of a file")
    if plot is not None:
        from matplotlib.backend_bases import FigureCanvasBase

        forms = FigureCanvasBase.get_supported_filetypes()
        if plot.suffix.lower().lstrip(".") not in forms:
            raise ValueError(f"{plot}: expected a name that ends in one of {', '.join('.' + f for f in sorted(forms))}")


def save_figure(figure: Any, path: Path) -> None:
    """A picture, under its name only when whole."""
    from skysieve.dedispersion.io import written

    with written(path) as part:
        figure.savefig(part, dpi=120)


@dedisp.command()
def fake(
    output: Annotated[Path, typer.Argument(metavar="OUT.fil", help="File to write.")],
    dm: Annotated[float, option("--dm", help="DM (75).", panel=DATA, metavar="DM")] = 75.0,
    period: Annotated[float | None, option("--period", help="Seconds between pulses (1).", panel=DATA)] = None,
    rate: Annotated[float | None, option("--rate", help="Pulses a second, at random: an RRAT.", panel=DATA)] = None,
    width: Annotated[float, option("--width", help="Seconds (0.01).", panel=DATA, metavar="S")] = 1e-2,
    snr: Annotated[float | None, option("--snr", help="S/N of a pulse (62).", panel=DATA, metavar="X")] = None,
    scatter: Annotated[float, option("--scatter", help="Scattering at mid band, s.", panel=DATA, metavar="S")] = 0.0,
    duration: Annotated[float, option("--duration", help="Seconds (10).", panel=DATA, metavar="S")] = 10.0,
    nchan: Annotated[int, option("--nchan", help="Channels (1024).", panel=DATA, metavar="N")] = 1024,
    fch1: Annotated[float, option("--fch1", help="First channel, MHz (156).", panel=DATA, metavar="F")] = 156.0,
    foff: Annotated[float, option("--foff", help="Step, MHz (-0.005941).", panel=DATA, metavar="F")] = -5.941e-3,
    tsamp: Annotated[float, option("--tsamp", help="Sampling, s (1.65e-4).", panel=DATA, metavar="S")] = 165e-6,
    nbits: Annotated[int, option("--nbits", help="Bits (8).", panel=DATA, metavar="N")] = 8,
    seed: Annotated[int, option("--seed", help="Seed (0).", panel=DATA, metavar="N")] = 0,
) -> None:
    """Make a file of noise and pulses; by default the test signal of the paper's Table 2.

    - skysieve dedisp fake rrat.fil --rate 0.5 --snr 20 --dm 60 --duration 30
    """
    from skysieve.dedispersion.simulate import fake as make

    with told():
        if rate is not None and period is not None:
            raise ValueError("--rate goes without --period: pulses come at random, or evenly")
        made = make(
            nchan=nchan, duration=duration, tsamp=tsamp, fch1=fch1, foff=foff, nbits=nbits, dm=dm,
            period=None if rate is not None else 1.0 if period is None else period, rate=rate, width=width, snr=snr,
            scatter=scatter, seed=seed, path=output,
        )  # fmt: skip
        typer.echo(f"wrote {output}: {made.nchan} channels x {made.nsamp} samples")


@dedisp.command()
def inject(
    files: Files,
    output: Annotated[Path, option("-o", "--output", help="File to write.", panel=OUTPUT, metavar="OUT.fil")],
    dm: Annotated[float, option("--dm", help="DM.", panel=DATA, metavar="DM")],
    time: Annotated[float, option("--time", help="Arrival at the top of the band, s.", panel=DATA, metavar="S")],
    snr: Annotated[float, option("--snr", help="S/N.", panel=DATA, metavar="X")],
    width: Annotated[float, option("--width", help="Seconds.", panel=DATA, metavar="S")],
    scatter: Annotated[float, option("--scatter", help="Scattering at mid band, s.", panel=DATA, metavar="S")] = 0.0,
    bit_order: BitOrder = "little",
) -> None:
    """Add a pulse of known S/N to files.

    - skysieve dedisp inject a.fil --dm 100 --time 3.2 --snr 12 --width 0.004 -o b.fil
    """
    from skysieve.dedispersion.io import write_fil
    from skysieve.dedispersion.simulate import inject as make

    with told(), opened(files, bit_order) as fb:
        if any(output.resolve() == f.resolve() for f in files):
            raise ValueError(f"{output} is one of the files to read")
        write_fil(output, make(fb, dm=dm, time=time, snr=snr, width=width, scatter=scatter))
        typer.echo(f"wrote {output}")


@dedisp.command()
def plot(
    files: Files,
    output: Annotated[Path, option("-o", "--output", help="Picture.", panel=OUTPUT, metavar="PNG")],
    dm: Annotated[float, option("--dm", help="DM.", panel=DATA, metavar="DM")],
    time: Annotated[float, option("--time", help="Arrival at the top of the band, s.", panel=DATA, metavar="S")],
    width: Annotated[float, option("--width", help="Width, s.", panel=DATA, metavar="S")],
    snr: Annotated[float, option("--snr", help="S/N, for the label.", panel=DATA, metavar="X")] = float("nan"),
    hdf5: Annotated[Path | None, option("--hdf5", help="The cut-out, for FETCH.", panel=OUTPUT, metavar="H5")] = None,
    zero_dm: ZeroDm = False, mask: MaskFile = None, rfi: Rfi = False, ignore: Ignore = None,
    bit_order: BitOrder = "little", memory: Memory = None,
) -> None:  # fmt: skip
    """Picture of one pulse: profile, dynamic spectra, bow tie.

    - skysieve dedisp plot a.fil --dm 100 --time 3.2 --width 0.004 -o pulse.png
    """
    from skysieve.dedispersion.cutouts import cutout

    with told(), opened(files, bit_order) as fb:
        check_places(hdf5, output)
        data, cut = cleaned(fb, False, zero_dm, quiet=False), masked(fb, mask, rfi, ignore, quiet=False)
        one = cutout(data, dm=dm, time=time, width=width, snr=snr, mask=cut, memory=memory)
        save_figure(one.plot(), output)
        if hdf5 is not None:
            one.save(hdf5)
        typer.echo(f"wrote {output}")
