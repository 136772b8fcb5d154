"""Light curves in several bands on one GPU: the launches for a chunk that all their methods share.

As for series of several terms, everything is float64 whatever the powers are stored as, and powers of a chunk always
pass through device memory; peaks are found by the same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from skysieve.core.errors import SkysieveError
from skysieve.core.gpu.runtime import Module, Runtime
from skysieve.core.gpu.staging import Copier, Lane
from skysieve.core.gpu.structs import fill, struct
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda.chunks import ChunkJob
from skysieve.periodogram.cuda.fourier.methods import RESERVED, SeriesPart
from skysieve.periodogram.cuda.fourier.worker import SeriesWorker
from skysieve.periodogram.cuda.methods import DeviceChunk, Method, Methods
from skysieve.periodogram.cuda.worker import PACKAGE, SCALE_KIND

from .methods import BANDS, FREQUENCIES, GRID, BandsMethods, ExactBands, is_offset, with_bands

WARPS = 8
"""Warps of a block of ``bands_centre``."""
CENTRE_BYTES = 16
"""Bytes of shared memory of each band in ``bands_centre``."""
SPANS = 8
"""Stretches of 256 powers that a block of ``bands_exact`` looks through where few are to be fitted."""
ROWS = struct("t*", "y*", "dy*", "code*", "offsets*", "kept*", "row*", "bands", "fewest")
CENTRE = struct(
    "y*", "code*", "offsets*", "row*", "wv*", "info*", "pick*", "first_row*", "share*", "odd*", "bands",
    "scale_kind",
)  # fmt: skip
EXACT = with_bands(
    ("tp*", "wv*"),
    (
        *GRID, *FREQUENCIES, "frequencies*", "start*", "power*", "odd*", "owner*", "tried*", "penalty.",
        "band_penalty.", "members", "blocks", "spans", "grid_stride", "all", "regularised",
    ),
)  # fmt: skip


class BandsWorker(SeriesWorker):
    """As `Worker`, for fits of several bands."""

    methods: ClassVar[type[Methods]] = BandsMethods

    def __init__(self, runtime: Runtime, spec: Spec, lanes: int = 3, copier: Copier | None = None) -> None:
        super().__init__(runtime, spec, lanes, copier)
        assert spec.model is not None
        self.model = spec.model
        need, have = self._exact_bytes(), runtime.device.shared_per_block
        if need > have - 1100:
            raise SkysieveError(
                f"{self.model.terms} common terms and {self.model.band_terms} of each band need {need} bytes of shared "
                f"memory, {runtime.device} has {have}; use fewer terms or device='cpu'"
            )
        if (bands := self.model.n_bands) > (most := (have - RESERVED) // CENTRE_BYTES):
            raise SkysieveError(
                f"band: {bands} different bands need {CENTRE_BYTES * bands} bytes of shared memory; "
                f"{runtime.device} can fit at most {most} bands; use device='cpu'"
            )

    @property
    def fit_kernels(self) -> tuple[Any, ...]:
        """Arguments of `Runtime.module` for the kernels that look for peaks: the same for any number of terms."""
        return PACKAGE, "fourier/exact.cu", "t0"

    def bands_kernels(self, name: str) -> tuple[Any, ...]:
        """Arguments of `Runtime.module` for a file; numbers of terms that are not tested are compiled as well."""
        m = self.model
        sizes = {"TERMS": m.terms, "BAND_TERMS": m.band_terms, "CONSTANT": int(m.constant)}
        return PACKAGE, name, None, sizes | ({"FREE": m.free_columns} if m.free_terms else {})

    def bands(self, name: str) -> Module:
        """Kernels of this model."""
        return self.runtime.module(*self.bands_kernels(name))

    def _kernels(self, wanted: Iterable[tuple[Method, bool, int]]) -> list[tuple[Any, ...]]:
        return [self.fit_kernels, self.bands_kernels("bands/exact.cu")]

    def _rows(self, job: ChunkJob) -> dict[str, Any]:
        return {**super()._rows(job), "code": job.code}

    def _prepare_rows(self, chunk: DeviceChunk) -> None:
        """Rows in order of time, grouped by band and centred on the bands' means."""
        lane, data, bands, fewest = chunk.lane, chunk.data, self.model.n_bands, self.spec.fewest
        n, rows = chunk.job.n_objects, chunk.job.n_rows
        row = lane.array("row", rows, np.int32)
        kept = lane.array("kept", rows, np.float64) if fewest > 1 else None
        args = fill(
            ROWS, **{k: data[k] for k in ("t", "y", "dy", "code", "offsets")}, kept=kept, row=row, bands=bands,
            fewest=fewest,
        )  # fmt: skip
        self.module("bands/rows.cu").launch(
            "bands_rows", (n,), (256,), (args,), shared_mem=4 * bands, stream=lane.stream
        )
        work = self._clean(chunk, {} if kept is None else {"t": kept})
        odd = lane.array("odd", n, np.int32)
        by: dict[str, Any] = {
            "pick": lane.array("pick", rows, np.int32), "first_row": lane.array("first_row", n * (bands + 1), np.int32),
            "share": lane.array("share", n * bands, np.float64), "bands": bands,
        }  # fmt: skip
        args = fill(
            CENTRE, **{k: data[k] for k in ("y", "code", "offsets")}, row=row, wv=work["wv"], info=chunk.info,
            odd=odd, scale_kind=SCALE_KIND.get(self.spec.normalization, 0), **by,
        )  # fmt: skip
        self.module("bands/rows.cu").launch(
            "bands_centre", (n,), (32 * WARPS,), (args,), shared_mem=CENTRE_BYTES * bands, stream=lane.stream
        )
        chunk.work = {**work, "odd": odd, "rows": fill(BANDS, **by)}
        for part in chunk.job.parts:
            chunk.prepare_rows(self, part.method, chunk.lane.stream)

    def arguments(self, chunk: DeviceChunk) -> dict[str, Any]:
        """Fields that the structs of all methods have."""
        return {
            **{k: chunk.work[k] for k in ("tp", "wv", "rows", "odd")}, **self.grids(chunk), "info": chunk.info,
            "nf": chunk.data["nf"], "start": chunk.data["start"], "power": chunk.power,
        }  # fmt: skip

    def _exact_bytes(self) -> int:
        """Dynamic shared memory of a block of ``bands_exact``."""
        if is_offset(self.model):
            return 0
        common = self.model.constant + 2 * self.model.terms
        front = 1 + 2 * self.model.band_terms + common
        pairs = sum((c + 1) * (c + 2) // 2 - 1 for c in (front, common))
        return self._exact_warps(front) * (16 * pairs + 8 * (32 * (front + 1) + front + common))

    @staticmethod
    def _exact_warps(front: int) -> int:
        return 4 if front <= 18 else 1

    def fit_exactly(self, chunk: DeviceChunk, i: int, doubts: dict[str, Any]) -> None:
        """Fit part ``i`` exactly: the frequencies that are not trusted, or all of them if none was fitted before."""
        part = chunk.job.parts[i]
        assert isinstance(part, SeriesPart)
        order, tasks = chunk.data[f"order{i}"], chunk.data[f"exact{i}"]
        self._one_by_one(chunk.lane, part, order, tasks, chunk.values, **self.arguments(chunk))

    def _at_peaks(self, chunk: DeviceChunk, slots: int, peaks: dict[str, Any]) -> None:
        part = SeriesPart(ExactBands(), np.zeros(slots, np.int32), 1, None, 0, 0)
        some = {k: v for k, v in peaks.items() if k != "order"} | {
            k: chunk.work[k] for k in ("tp", "wv", "rows", "odd")
        }
        self._one_by_one(chunk.lane, part, peaks["order"], None, None, **some)

    def _one_by_one(self, lane: Lane, part: SeriesPart, order: Any, tasks: Any, values: Any, **more: Any) -> None:
        front = 1 + 2 * self.model.band_terms + self.model.constant + 2 * self.model.terms
        bare = part.method.direct
        spans = SPANS if is_offset(self.model) and not bare else 1
        blocks = -(-part.exact[1] // spans)
        args = fill(
            EXACT, order=order, tasks=tasks, frequencies=values, members=len(part.order), blocks=blocks, spans=spans,
            penalty=self.model.penalty, band_penalty=self.model.band_penalty, all=int(bare),
            regularised=int(self.model.regularised), **{"owner": None, "tried": None, **more},
        )  # fmt: skip
        launches = len(part.order) * blocks if part.exact[0] is None else len(part.exact[0])
        self.bands("bands/exact.cu").launch(
            "bands_exact", (launches,), (32 * self._exact_warps(front),), (args,), shared_mem=self._exact_bytes(),
            stream=lane.stream,
        )  # fmt: skip
