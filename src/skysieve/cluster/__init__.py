"""Long commands on several processes or machines: jobs of partitions, run by Dask or SLURM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from .description import Job, Part, Prepared, Resources, job
    from .folder import Outcome
    from .launchers import run
    from .slurm import submit

__all__ = ["Job", "Outcome", "Part", "Prepared", "Resources", "job", "run", "submit"]

_HOMES = {
    "Job": "skysieve.cluster.description",
    "Outcome": "skysieve.cluster.folder",
    "Part": "skysieve.cluster.description",
    "Prepared": "skysieve.cluster.description",
    "Resources": "skysieve.cluster.description",
    "job": "skysieve.cluster.description",
    "run": "skysieve.cluster.launchers",
    "submit": "skysieve.cluster.slurm",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
