"""``skysieve dedisp``: from filterbank files to candidates and their pictures."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Annotated

import typer

from skysieve.core.command import option, report_errors
from skysieve.core.files import save_figure

from .options import (
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
    Ifs,
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
    Rules,
    Scatter,
    Series,
    Step,
    Threads,
    Tol,
    Width,
    ZeroDm,
)
from .work import (
    bar,
    check_cutouts,
    check_places,
    cleaned,
    draw_missing,
    masked,
    opened,
    planned,
    prepared,
    show,
    speed,
)

dedisp = typer.Typer(help="Dispersed radio pulses: de-dispersion and single-pulse search.", no_args_is_help=True)


@dedisp.command()
def info(files: Files, bit_order: BitOrder = "little", ifs: Ifs = "sum") -> None:
    """What files hold: channels, sampling, time, source.

    - skysieve dedisp info a.fil
    """
    import numpy as np

    with report_errors(), opened(files, bit_order, ifs) as fb:
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
    bit_order: BitOrder = "little", ifs: Ifs = "sum",
    output: Annotated[Path | None, option("-o", "--output", help="Save it.", panel=OUTPUT, metavar="JSON")] = None,
    plot: Annotated[Path | None, option("--plot", help="Picture.", panel=OUTPUT, metavar="PNG")] = None,
) -> None:  # fmt: skip
    """Choose DMs, time binning and subbands for files.

    - skysieve dedisp plan a.fil --dm-max 500 --rule presto --nsub 32 -o a.json --plot a.png
    """
    from skysieve.core.errors import format_bytes

    with report_errors(), opened(files, bit_order, ifs) as fb:
        check_places(output, plot)
        made = planned(
            fb, None, dm_min, dm_max, dm_step, num_dms, rule, max_loss, tol, width, nsub, scattering, downsamp,
            dm_constant,
        )  # fmt: skip
        typer.echo(made.summary())
        parts = made.memory(fb.nsamp)
        typer.echo(f"{made.adds(fb.nsamp) / 1e9:.4g} G additions by brute force; all series: "
                   f"{format_bytes(parts['output'])}")  # fmt: skip
        if output is not None:
            made.save(output)
        if plot is not None:
            save_figure(made.plot(), plot, dpi=120)


@dedisp.command()
def dedisperse(
    files: Files,
    output: Annotated[Path, option("-o", "--output", help="Start of the names.", panel=OUTPUT, metavar="STEM")],
    dm_max: DmMax = None, dm_min: DmMin = 0.0, dm_step: Step = None, num_dms: Count = None, rule: Rules = None,
    max_loss: Loss = 0.1, tol: Tol = 1.25, width: Width = 40e-6, nsub: Nsub = 0, scattering: Scatter = False,
    plan_file: PlanFile = None, downsamp: Downsamp = None, zero_dm: ZeroDm = False, mask: MaskFile = None,
    rfi: Rfi = False, ignore: Ignore = None, requantise: Requantise = False, bit_order: BitOrder = "little",
    ifs: Ifs = "sum", method: Methods = Method.auto,
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

    with report_errors(), opened(files, bit_order, ifs) as fb:
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
    bit_order: BitOrder = "little", ifs: Ifs = "sum",
    threshold: Annotated[float, option("-t", "--threshold", help="S/N (6.5).", panel=SEARCH, metavar="X")] = 6.5,
    noise: Annotated[Noise, option("--noise", help="robust, moments, clipped (robust).", panel=SEARCH)] = Noise.robust,
    detector: Annotated[
        Detector, option("--detector", help="boxcar, threshold (the paper's; boxcar).", panel=SEARCH)
    ] = Detector.boxcar,
    buffer: Annotated[int | None, option("--buffer", help="Its samples.", panel=SEARCH, metavar="N")] = None,
    block: Annotated[float | None, option("--block", help="Noise blocks, s (2).", panel=SEARCH, metavar="S")] = None,
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
    from skysieve.dedispersion.single_pulse import search as searching
    from skysieve.dedispersion.single_pulse.cutouts import write_cutouts
    from skysieve.dedispersion.single_pulse.files import format_of

    with report_errors(), opened(files, bit_order, ifs) as fb:
        if output is not None:
            format_of(output)
        check_places(output, plot)
        if cutouts is not None:
            check_cutouts(cutouts)
        made = planned(
            fb, plan_file, dm_min, dm_max, dm_step, num_dms, rule, max_loss, tol, width, nsub, scattering, downsamp,
            dm_constant,
        )  # fmt: skip
        data, cut, every = prepared(fb, mask, rfi, ignore, requantise, zero_dm, quiet)
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
            save_figure(found.plot(), plot, dpi=120)
        if cutouts is not None:
            paths = write_cutouts(data, found, cutouts, most=most, mask=every, memory=memory)
            if not quiet:
                typer.echo(f"wrote {len(paths)} files into {cutouts}")


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
    from skysieve.dedispersion.data.simulate import fake as make

    with report_errors():
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
    bit_order: BitOrder = "little", ifs: Ifs = "sum",
) -> None:  # fmt: skip
    """Add a pulse of known S/N to files.

    - skysieve dedisp inject a.fil --dm 100 --time 3.2 --snr 12 --width 0.004 -o b.fil
    """
    from skysieve.dedispersion.data.simulate import inject as make
    from skysieve.dedispersion.data.write import write_fil

    with report_errors(), opened(files, bit_order, ifs) as fb:
        if any(output.resolve() == f.resolve() for f in files):
            raise ValueError(f"{output} is one of the files to read")
        write_fil(output, make(fb, dm=dm, time=time, snr=snr, width=width, scatter=scatter))
        typer.echo(f"wrote {output}")


@dedisp.command()
def plot(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...|DIR", help="Data; or the --out of a stream: what it has not drawn.")
    ],
    output: Annotated[Path | None, option("-o", "--output", help="Picture.", panel=OUTPUT, metavar="PNG")] = None,
    dm: Annotated[float | None, option("--dm", help="DM.", panel=DATA, metavar="DM")] = None,
    time: Annotated[
        float | None, option("--time", help="Arrival at the top of the band, s.", panel=DATA, metavar="S")
    ] = None,
    width: Annotated[float | None, option("--width", help="Width, s.", panel=DATA, metavar="S")] = None,
    snr: Annotated[float, option("--snr", help="S/N, for the label.", panel=DATA, metavar="X")] = float("nan"),
    hdf5: Annotated[Path | None, option("--hdf5", help="The cut-out, for FETCH.", panel=OUTPUT, metavar="H5")] = None,
    zero_dm: ZeroDm = False, mask: MaskFile = None, rfi: Rfi = False, ignore: Ignore = None,
    bit_order: BitOrder = "little", ifs: Ifs = "sum", memory: Memory = None,
) -> None:  # fmt: skip
    """Picture of one pulse: profile, dynamic spectra, bow tie; or those that a stream left undrawn.

    - skysieve dedisp plot a.fil --dm 100 --time 3.2 --width 0.004 -o pulse.png
    - skysieve dedisp plot night
    """
    from skysieve.dedispersion.single_pulse.cutouts import cutout

    if len(files) == 1 and files[0].is_dir():
        with report_errors():
            given = (output, dm, time, width, hdf5, mask, ignore, memory) != (None,) * 8
            if given or not isnan(snr) or zero_dm or rfi or (bit_order, ifs) != ("little", "sum"):
                raise ValueError(f"{files[0]} is a folder: its candidates are in its table, no options are needed")
            draw_missing(files[0])
        return
    with report_errors():
        if missing := [str(path) for path in files if not path.exists()]:
            raise ValueError(f"{missing[0]}: there is no such file or folder")
        if output is None or dm is None or time is None or width is None:
            raise ValueError("--output, --dm, --time and --width are needed: which pulse, and where its picture goes")
    with report_errors(), opened(files, bit_order, ifs) as fb:
        check_places(hdf5, output)
        data, cut = cleaned(fb, False, zero_dm, quiet=False), masked(fb, mask, rfi, ignore, quiet=False)
        one = cutout(data, dm=dm, time=time, width=width, snr=snr, mask=cut, memory=memory)
        save_figure(one.plot(), output, dpi=120)
        if hdf5 is not None:
            one.save(hdf5)
        typer.echo(f"wrote {output}")
