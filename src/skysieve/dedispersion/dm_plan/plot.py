"""The figure of a plan: smearing by cause, steps and binnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.delays import scattering, smearing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .plan import DMPlan


def plan_figure(plan: DMPlan, **options: Any) -> Figure:
    """Two panels against DM: smearing by cause; steps and binnings."""
    from matplotlib.figure import Figure

    figure = Figure(**dict[str, Any](figsize=(7, 6), layout="constrained") | options)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    dms = plan.dms
    grid = np.linspace(float(dms.min()), float(dms.max()), 500)
    channel = np.asarray(smearing(grid, plan.bandwidth / plan.nchan, plan.centre))
    upper.plot(grid, channel * 1e3, color="#1f6fb4", label="channel")
    upper.plot(grid, np.asarray(scattering(grid, plan.centre)) * 1e3, color="0.6", ls=":", label="scattering expected")
    for i, stage in enumerate(plan.stages):
        low, high = float(stage.dms[0]), float(stage.dms[-1])
        step = float(smearing(stage.step / 2, plan.bandwidth, plan.centre)) * 1e3
        sampling = plan.tsamp * stage.downsamp * 1e3
        upper.plot([low, high], [step] * 2, color="#d1495b", lw=2, label="DM step" if i == 0 else None)
        upper.plot([low, high], [sampling] * 2, color="#2a9d4a", lw=2, label="sampling" if i == 0 else None)
        if stage.per_call and plan.nsub:
            inside = float(smearing(stage.per_call * stage.step / 2, plan.bandwidth / plan.nsub, plan.centre)) * 1e3
            upper.plot([low, high], [inside] * 2, color="#e9a03b", lw=2, label="subband" if i == 0 else None)
        lower.plot([low, high], [stage.step] * 2, color="#d1495b", lw=3)
        lower.annotate(f"x{stage.downsamp}", (low, stage.step), textcoords="offset points", xytext=(2, 4), fontsize=8)
    upper.set(yscale="log", ylabel="smearing [ms]", title=f"{plan.ndm} DMs, {plan.rule}")
    upper.set_ylim(bottom=plan.tsamp * 1e3 / 30)
    lower.set(xlabel="DM [pc cm$^{-3}$]", ylabel="DM step (binning)", yscale="log")
    upper.legend(frameon=False, fontsize=8)
    return figure
