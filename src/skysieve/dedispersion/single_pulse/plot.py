"""Figures of a search and of a cut-out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from .candidates import Candidates
    from .cutouts import Cutout

QUICK_PNG: dict[str, Any] = {"dpi": 100, "pil_kwargs": {"compress_level": 1}}
"""Options with which a stream saves pictures: twice as fast as the defaults, and files are 6% larger."""
MOST_POINTS = 100_000
"""Most events that are drawn; the loudest."""


def search_figure(found: Candidates, **options: Any) -> Figure:
    """Figure 5 of Magro et al. 2011: S/N against time, S/N against DM, DM against time; sizes and colours by S/N."""
    from matplotlib.figure import Figure

    figure = Figure(**dict[str, Any](figsize=(9, 7.5), layout="constrained") | options)
    cells = figure.add_gridspec(2, 3)
    top, left, plane = (figure.add_subplot(c) for c in (cells[0, :], cells[1, 0], cells[1, 1:]))
    e = found.events
    order = np.argsort(e.snr)[-MOST_POINTS:]
    snr, dm, time = e.snr[order], e.dm[order], e.time[order]
    size = 4 + 30 * np.clip((snr - found.threshold) / max(1.0, found.threshold), 0, 4)
    style = {"c": snr, "cmap": "viridis", "lw": 0, "s": size, "alpha": 0.7, "rasterized": True}
    top.scatter(time, snr, **style)
    left.scatter(dm, snr, **style)
    marks = plane.scatter(time, dm, **style)
    top.set(xlabel="time [s]", ylabel="S/N", xlim=(0, found.searched))
    left.set(xlabel="DM [pc cm$^{-3}$]", ylabel="S/N")
    plane.set(xlabel="time [s]", ylabel="DM [pc cm$^{-3}$]", xlim=(0, found.searched))
    if len(found.dms) > 1:
        left.set_xlim(found.dms[0], found.dms[-1])
        plane.set_ylim(found.dms[0], found.dms[-1])
    for i in range(min(10, len(found))):
        plane.annotate(str(i + 1), (found.time[i], found.dm[i]), textcoords="offset points", xytext=(5, 5), fontsize=8)
    if len(snr):
        figure.colorbar(marks, ax=plane, label="S/N")
    name = _plain(found.observation.source or "data")
    top.set_title(
        f"{name}: {len(found)} candidates, {len(e)} events above {found.threshold:g} sigma, {len(found.dms)} DMs",
        fontsize=10,
    )
    return figure


def _plain(text: str) -> str:
    """Text of a file's header, in which a dollar sign does not begin a formula."""
    return text.replace("$", r"\$")


def cutout_figure(c: Cutout, **options: Any) -> Figure:
    """Profile over the de-dispersed dynamic spectrum and the bow tie; the raw dynamic spectrum beside them."""
    from matplotlib.figure import Figure

    # fixed margins: to compute them takes as long as to draw
    figure = Figure(**dict[str, Any](figsize=(10, 7)) | options)
    cells = figure.add_gridspec(
        3, 2, height_ratios=(1, 2, 2), left=0.09, right=0.985, bottom=0.075, top=0.98, wspace=0.24, hspace=0.07
    )
    profile = figure.add_subplot(cells[0, 0])
    lined = figure.add_subplot(cells[1, 0], sharex=profile)
    bowtie = figure.add_subplot(cells[2, 0], sharex=profile)
    raw = figure.add_subplot(cells[1:, 1])
    words = figure.add_subplot(cells[0, 1])
    t = c.times * 1e3
    profile.step(t, c.profile, where="mid", color="#1f6fb4", lw=1)
    profile.set(ylabel="sigma")
    half = (t[1] - t[0]) / 2
    across = (t[0] - half, t[-1] + half)

    def image(axes: Axes, data: NDArray[np.float32], extent: tuple[float, float, float, float], label: str) -> None:
        low, high = np.percentile(data, [2, 99.7])
        axes.imshow(
            data, aspect="auto", extent=extent, cmap="viridis", vmin=low, vmax=max(high, low + 1e-6),
            interpolation="nearest",
        )  # fmt: skip
        axes.set_ylabel(label)

    low, high = (float(c.freqs[-1]), float(c.freqs[0])) if len(c.freqs) > 1 else (c.freqs[0] - 1, c.freqs[0] + 1)
    image(lined, c.dedispersed, (*across, low, high), "frequency [MHz]")
    image(bowtie, c.bowtie[::-1], (*across, float(c.dms[0]), float(c.dms[-1])), "DM [pc cm\u207b\u00b3]")
    image(raw, c.raw, (c.raw_times[0] * 1e3, c.raw_times[-1] * 1e3, low, high), "frequency [MHz]")
    bowtie.axhline(c.dm, color="w", lw=0.5, ls=":")
    bowtie.set_xlabel("time from the candidate [ms]")
    raw.set_xlabel("time from the candidate [ms], as observed")
    for axes in (profile, lined):
        axes.tick_params(labelbottom=False)
    words.axis("off")
    o = c.observation
    known = f"S/N {c.snr:.1f}   " if np.isfinite(c.snr) else ""
    lines = (
        _plain(f"{o.source or 'unnamed'}  ({o.telescope or 'telescope unknown'})"),
        f"{known}DM {c.dm:.3f} pc cm\u207b\u00b3   width {c.width * 1e3:.3g} ms",
        f"{c.time:.5f} s after MJD {o.tstart:.9f}",
        f"{o.nchan} channel{'s' * (o.nchan > 1)}, {o.freqs[-1]:.2f}-{o.top:.2f} MHz, {o.tsamp * 1e6:.4g} us",
    )
    words.text(0, 0.5, "\n".join(lines), va="center", fontsize=10, linespacing=1.6)
    return figure
