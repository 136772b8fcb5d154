"""A picture of each object: periodogram with its peaks, and the light curve folded at the best period."""

from __future__ import annotations

import errno
import itertools
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.files import save_figure
from skysieve.periodogram.contract import Status
from skysieve.periodogram.result.result import LombScargleResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.periodogram.lightcurves.io import LightCurves
    from skysieve.periodogram.survey import Request

ENDS = ("fmin", "fmax")
"""Arguments that may be numbers with a unit, "auto" or None."""
LONGEST = 200
"""Bytes of the longest name of a picture without its ending: file systems allow 255, and temporary names are longer."""


def file_name(stem: str, label: str, n_objects: int) -> str:
    """Name of an object's picture: letters, digits, dots and dashes only, and the first `LONGEST` bytes of these.

    >>> file_name("survey", "2020 AB/1", 3), file_name("star", "star", 1)
    ('survey_2020_AB_1.png', 'star.png')
    """
    name = stem if n_objects == 1 and label == stem else f"{stem}_{label}"
    return re.sub(r"[^\w.+-]+", "_", name).encode()[:LONGEST].decode(errors="ignore") + ".png"


def is_picture(path: Path) -> bool:
    """Whether the path is a picture, by its ending, rather than a folder.

    >>> is_picture(Path("star.png")), is_picture(Path("plots")), is_picture(Path("run.2"))
    (True, False, False)
    """
    from matplotlib.figure import Figure

    return path.suffix.lower().lstrip(".") in Figure().canvas.get_supported_filetypes() and not path.is_dir()


def pictures_in(folder: Path) -> list[Path]:
    """The pictures that a folder holds."""
    return sorted(folder.glob("*.png"))


def search_with_units(t: NDArray[Any], y: NDArray[Any], dy: NDArray[Any] | None, **arguments: Any) -> LombScargleResult:
    """`skysieve.lombscargle` of one light curve, its times in days and frequencies in 1/day, so that plots name units.

    A light curve that cannot be searched gives a result whose ``status`` says why.
    """
    from astropy.units import day

    import skysieve

    given = arguments | {k: arguments[k] / day for k in ENDS if not isinstance(arguments.get(k), str | None)}
    return skysieve.lombscargle(t * day, y, dy, offsets=[0, len(t)], **given)[0]


def search_bands_with_units(curves: LightCurves, request: Request) -> LombScargleResult:
    """As `search_with_units`, by `skysieve.lombscargle_multiband` for ``curves`` of one object."""
    from astropy.units import day

    import skysieve

    given = dict(request.band_arguments)
    given |= {k: given[k] / day for k in ENDS if not isinstance(given.get(k), str | None)}
    whole = [0, len(curves.t)]
    return skysieve.lombscargle_multiband(curves.t * day, curves.y, curves.band, curves.dy, offsets=whole, **given)[0]


def on_one_level(curves: LightCurves) -> NDArray[np.float64]:
    """Values of one object, shifted so that all bands have the mean of all rows.

    >>> from types import SimpleNamespace
    >>> band = np.array(["g", "r", "g", "r"])
    >>> on_one_level(SimpleNamespace(y=np.array([1.0, 5.0, 3.0, 7.0]), dy=None, band=band))
    array([3., 3., 5., 5.])
    """
    weight = np.ones_like(curves.y) if curves.dy is None else np.where(curves.dy > 0, curves.dy, np.nan) ** -2.0
    good = np.isfinite(curves.y * weight)
    out = np.array(curves.y, np.float64)
    assert curves.band is not None
    if not good.any():
        return out
    for rows in [good & (curves.band == b) for b in np.unique(curves.band)]:
        if rows.any():
            out[rows] -= np.average(curves.y[rows], weights=weight[rows])
    out[good] += np.average(curves.y[good], weights=weight[good])
    return out


def save_plot(
    result: LombScargleResult,
    t: NDArray[Any],
    y: NDArray[Any],
    dy: NDArray[Any] | None,
    path: Path,
    *,
    title: str,
    magnitudes: bool,
    value: str = "",
) -> None:
    """Periodogram above, folded light curve below; ``t`` in days.  Dollar signs are drawn as they are."""
    from astropy.units import day

    label = value.replace("$", r"\$") or ("Magnitude" if magnitudes else "Flux")
    title = title.replace("$", r"\$")
    # also for several bands, whose values have one mean now: their class refuses to fold them
    figure = LombScargleResult.plot(result, t * day, y, dy, magnitudes=magnitudes, labels=("Phase", label), title=title)
    if len(figure.axes) > 1:
        # Outliers must not set the limits: show the middle 99% and a quarter more at either end.
        low, high = np.nanpercentile(y[np.isfinite(y)], [0.5, 99.5])
        margin = 0.25 * (high - low)
        bottom, top = sorted(figure.axes[1].get_ylim())
        bottom, top = max(bottom, low - margin), min(top, high + margin)
        figure.axes[1].set_ylim((top, bottom) if magnitudes else (bottom, top))
    save_figure(figure, path, dpi=120)


def unused(name: str, used: set[str]) -> str:
    """``name``, or the first of ``name_2``, ``name_3`` ... that is not in ``used``; it is added there.

    >>> used = {"a.png"}
    >>> unused("a.png", used), unused("a.png", used), unused("b.png", used)
    ('a_2.png', 'a_3.png', 'b.png')
    """
    stem, suffix = Path(name).stem, Path(name).suffix
    candidates = (name if k == 1 else f"{stem}_{k}{suffix}" for k in itertools.count(1))
    chosen = next(c for c in candidates if c not in used)
    used.add(chosen)
    return chosen


def plot_objects(
    curves: LightCurves,
    request: Request,
    target: Path,
    limit: int,
    used: set[str],
    prepare: Callable[[LightCurves], LightCurves] | None = None,
    total: int | None = None,
    banded: bool | None = None,
) -> tuple[int, list[str]]:
    """Draw the first ``limit`` objects that have a period; returns how many were drawn, and why others could not be.

    ``target`` is a folder, or the picture of a single object; ``total`` is the number of objects of the file, where
    ``curves`` are some of them.  ``used`` holds the names of the pictures drawn before,
    which are not used again.  ``prepare`` is called with each object before it is searched.  ``banded``: whether the
    model of several bands is fitted to all objects of the file, also to those in one band.
    """
    banded = request.banded(curves) if banded is None else banded
    drawn, failed = 0, list[str]()
    for i in range(len(curves)):
        if drawn + len(failed) >= limit:
            break
        one = curves.part(i, i + 1)
        one = one if prepare is None else prepare(one)
        t, y, dy = one.t, one.y, one.dy
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the search of the file has printed them
            if banded:
                result, y = search_bands_with_units(one, request), on_one_level(one)
            else:
                result = search_with_units(t, y, dy, **request.arguments)
        if result.status != Status.OK:
            continue
        label = str(curves.ids[i])
        period = request.scale / result.best_frequency.value
        title = f"{label}: rotation period {period:.6g} {request.unit}"
        if request.both_readings:
            title = f"{label}: rotation period {period:.6g} or {2 * period:.6g} {request.unit}"
        if is_picture(target):
            path = target
        else:
            path = target / unused(file_name(curves.path.stem, label, total or len(curves)), used)
        try:
            save_plot(
                result, t, y, dy, path,
                title=title if request.asteroid else label, magnitudes=one.is_magnitude, value=one.value_name,
            )  # fmt: skip
        except OSError as e:
            failed.append(f"cannot write {path}: {e.strerror or e}")
            if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):  # no other picture can be written either
                break
        else:
            drawn += 1
    return drawn, failed
