"""A PNG of each object: periodogram with its peaks, and the light curve folded at the best period."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from skysieve.periodogram.workload import Status

if TYPE_CHECKING:
    from skysieve.periodogram.io import LightCurves
    from skysieve.periodogram.search import Request


def file_name(stem: str, label: str, n_objects: int) -> str:
    """Name of an object's picture: letters, digits, dots and dashes only.

    >>> file_name("survey", "2020 AB/1", 3), file_name("star", "star", 1)
    ('survey_2020_AB_1.png', 'star.png')
    """
    name = stem if n_objects == 1 and label == stem else f"{stem}_{label}"
    return re.sub(r"[^\w.+-]+", "_", name) + ".png"


def plot_objects(curves: LightCurves, request: Request, folder: Path, limit: int) -> int:
    """Draw the first ``limit`` objects that have a period; returns how many were drawn."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    import skysieve

    drawn = 0
    for i in range(len(curves)):
        if drawn >= limit:
            break
        t, y, dy, offsets = curves.rows(i, i + 1)
        result = skysieve.lombscargle(t, y, dy, offsets=offsets, return_power=True, **request.arguments)[0]
        if result.status != Status.OK:
            continue
        label = str(curves.ids[i])
        figure = result.plot(t, y, dy)
        figure.suptitle(label)
        figure.savefig(folder / file_name(curves.path.stem, label, len(curves)), dpi=120)
        plt.close(figure)
        drawn += 1
    return drawn
