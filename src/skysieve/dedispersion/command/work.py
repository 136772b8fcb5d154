"""What the commands of ``skysieve dedisp`` share: files opened and masked, plans made, results shown and written."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from skysieve.core.command import USER_ERROR, number_list

from .options import Rule

if TYPE_CHECKING:
    from skysieve.dedispersion.clean.masks import Mask
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.dm_plan.plan import DMPlan


@contextmanager
def noted() -> Iterator[None]:
    """Warnings of what reads files, each told in a line."""
    import warnings

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for warning in said:
        typer.echo(f"note: {warning.message}", err=True)


def opened(files: list[Path], bit_order: str = "little", ifs: str = "sum") -> Filterbank:
    """The files as one filterbank."""
    from skysieve.dedispersion.data.filterbank import Filterbank

    if ifs != "sum" and not ifs.isdecimal():
        raise ValueError(f"--ifs {ifs}: expected sum or the number of one, from 0")
    with noted():
        which = ifs if ifs == "sum" else int(ifs)
        return Filterbank.open(files[0] if len(files) == 1 else files, bit_order=bit_order, ifs=which)


def masked(fb: Filterbank, mask: Path | None, rfi: bool, ignore: str | None, quiet: bool) -> Mask | None:
    """All masks asked for, joined."""
    from skysieve.dedispersion.clean.masks import Mask
    from skysieve.dedispersion.clean.rfi import read_rfifind, rfi_mask

    parts: list[Mask] = []
    if mask is not None:
        with noted():
            parts.append(read_rfifind(mask, fb))
    if ignore:
        parts.append(Mask.channels(fb.nchan, number_list(ignore, "--ignore", fb.nchan, "channel numbers")))
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
    from skysieve.dedispersion.clean.rfi import zero_dm
    from skysieve.dedispersion.data.requantise import LOSS, requantise

    if requantised:
        fb = requantise(fb)
        if not quiet:
            typer.echo(f"requantised to 8 bits, which costs {LOSS:.2%} of the S/N", err=True)
    return zero_dm(fb) if without_mean else fb


def prepared(
    fb: Filterbank, mask: Path | None, rfi: bool, ignore: str | None, requantised: bool, without_mean: bool, quiet: bool
) -> tuple[Filterbank, Mask | None, Mask | None]:
    """The data to search, what is masked of them, and all that is masked.

    What is dropped or masked is filled before the mean over the channels is taken off, so that it is in no mean.
    """
    from skysieve.dedispersion.clean.repair import fill_dropped, repaired, split_mask
    from skysieve.dedispersion.contract import block_samples

    if rfi or requantised or without_mean:
        fb = fill_dropped(fb)
    every = cut = masked(fb, mask, rfi, ignore, quiet)
    if cut is not None and (requantised or without_mean):
        cut, cells = split_mask(cut, fb)
        if cells is not None:
            fb = repaired(fb, fb.lost, cells, block_samples(fb.tsamp))
    return cleaned(fb, requantised, without_mean, quiet), cut, every


def planned(
    fb: Filterbank, plan: Path | None, dm_min: float, dm_max: float | None, step: float | None, count: int | None,
    rule: Rule | None, max_loss: float, tol: float, width: float, nsub: int, scattering: bool, downsamp: int | None,
    constant: float | None,
) -> DMPlan:  # fmt: skip
    """The plan that the options mean."""
    from skysieve.dedispersion.data.observation import DM_CONSTANT
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.dm_plan.plan import plan as make

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
    if fb.observation.dm is not None and (dm_max, count, step) == (None,) * 3:
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
    for line in found.remarks():
        typer.echo(line)


def check_cutouts(folder: Path) -> None:
    """Refuse, before any work, a folder that cannot be one, and cut-outs whose packages are missing."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--cutouts {folder}: is a file, expected a folder")
    for package in ("h5py", "matplotlib"):
        importlib.import_module(package)


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


def draw_missing(folder: Path) -> None:
    """Draw what a stream has not drawn; a picture that fails costs itself alone."""
    from skysieve.core.files import remove_leftovers
    from skysieve.dedispersion.stream.report.drawing import draw, undrawn

    importlib.import_module("matplotlib")
    remove_leftovers(folder / "pulses")
    drawn = failed = 0
    for task in undrawn(folder):
        try:
            draw(task)
        except (OSError, ValueError, ArithmeticError, MemoryError) as error:
            failed += 1
            typer.echo(f"skysieve: {task.samples}: {error}", err=True)
        else:
            drawn += 1
    typer.echo(f"{drawn} pictures drawn in {folder / 'pulses'}")
    if failed:
        raise typer.Exit(USER_ERROR)
