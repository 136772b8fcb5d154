"""Light curves in several bands on one GPU: the launches of ``ls_bands*.cu`` for a chunk of objects.

As with series of several terms, everything is float64 whatever the powers are stored as, and powers of a chunk always
pass through device memory; peaks are found by the same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from skysieve.core.errors import SkysieveError
from skysieve.core.gpu.runtime import Module, Runtime
from skysieve.core.gpu.staging import Copier, Lane
from skysieve.core.gpu.structs import fill, struct
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda.fourier.layouts import Chi2Part
from skysieve.periodogram.cuda.fourier.worker import LIMIT, Chi2Worker
from skysieve.periodogram.cuda.layouts import Layout
from skysieve.periodogram.cuda.samples.samples import PAD
from skysieve.periodogram.cuda.samples.stretches import Cut
from skysieve.periodogram.cuda.worker import PACKAGE, SCALE_KIND, Job

from .layouts import RESERVED, BandsLayout, harmonics, is_offset

WARPS = 8
"""Warps of a block of ``bands_centre``."""
CENTRE_BYTES = 16
"""Bytes of shared memory of each band in ``bands_centre``."""
SPANS = 8
"""Stretches of 256 powers that a block of ``bands_exact`` looks through where few are to be fitted."""
_GRID = ("offsets*", "info*", "order*", "tasks*")
_FREQUENCIES = ("f0*", "df*", "nf*")
_ROWS = ("pick*", "first_row*", "share*", "bands")
_TABLES = ("first*", "second*", "fold*", "deconvolve*")
ROWS = struct("t*", "y*", "dy*", "code*", "offsets*", "kept*", "row*", "bands", "fewest")
CENTRE = struct(
    "y*", "code*", "offsets*", "row*", "wv*", "info*", "pick*", "first_row*", "share*", "odd*", "bands",
    "scale_kind",
)  # fmt: skip
BANDS = struct(*_ROWS)
WEIGHTS = struct("tp*", "owner*", "taps*", "df*", "limit*", "cell*", "weight*", "rows", "stride", "grid_stride")


def _with_bands(before: tuple[str, ...], after: tuple[str, ...]) -> np.dtype[Any]:
    """A struct with ``struct Bands`` between two lists of fields."""
    a, b = struct(*before), struct(*after)
    assert a.names is not None
    assert b.names is not None
    fields = [(n, a[n]) for n in a.names] + [("rows", BANDS)] + [(n, b[n]) for n in b.names]
    return np.dtype(fields, align=True)


OFFSET = _with_bands(
    ("tp*", "wv*", "cell*", "at_f*", "at_2f*"),
    (
        *_GRID, *_TABLES, *_FREQUENCIES, "start*", "power*", "odd*", "limit.", "P", "S", "blocks", "stretches",
        "circles", "grid_stride", "zero",
    ),
)  # fmt: skip
COMB = _with_bands(
    ("tp*", "wv*", "cell*", "weight*"),
    (
        *_GRID, *_TABLES, *_FREQUENCIES, "start*", "power*", "odd*", "limit.", "penalty.", "band_penalty.", "P", "G",
        "stretches", "stride", "grid_stride", "room", "slots", "regularised",
    ),
)  # fmt: skip
EXACT = _with_bands(
    ("tp*", "wv*"),
    (
        *_GRID, *_FREQUENCIES, "frequencies*", "start*", "power*", "odd*", "owner*", "tried*", "penalty.",
        "band_penalty.", "members",
        "blocks", "spans", "grid_stride", "all", "regularised",
    ),
)  # fmt: skip


class _Combs:
    """What `Worker._device_tables` asks of a layout."""

    def __init__(self, combs: int) -> None:
        self.combs, self.window = combs, 0


class BandsWorker(Chi2Worker):
    """As `Worker`, for fits of several bands."""

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
                f"band: {bands} different bands need {CENTRE_BYTES * bands} bytes of shared memory, with which "
                f"{runtime.device} does at most {most} bands; use device='cpu'"
            )

    @property
    def chi2_kernels(self) -> tuple[Any, ...]:
        """What a runtime is asked for to look for peaks: the same for any number of terms."""
        return PACKAGE, "fourier/exact.cu", "t0"

    def bands_kernels(self, name: str) -> tuple[Any, ...]:
        """What a runtime is asked for; other numbers of terms than those tested with are compiled as well."""
        m = self.model
        sizes = {"TERMS": m.terms, "BAND_TERMS": m.band_terms, "CONSTANT": int(m.constant)}
        return PACKAGE, name, None, sizes | ({"FREE": m.free_columns} if m.free_terms else {})

    def bands(self, name: str) -> Module:
        """Kernels of this model."""
        return self.runtime.module(*self.bands_kernels(name))

    def _kernels(self, layouts: Iterable[tuple[Layout | None, bool, int]]) -> list[tuple[Any, ...]]:
        return [self.chi2_kernels, self.bands_kernels("bands/exact.cu")]

    def _rows(self, job: Job) -> dict[str, Any]:
        return {**super()._rows(job), "code": job.code}

    def _cuts(self, job: Job) -> list[Cut | None]:
        return [None] * len(job.parts)

    def _small(self, i: int, part: Chi2Part, cut: Cut | None) -> dict[str, Any]:
        return {f"tasks{i}": part.tasks}

    def _prepared(
        self, lane: Lane, job: Job, data: dict[str, Any], info: Any, peaks: dict[str, Any], bins: Any
    ) -> dict[str, Any]:
        stride, work = 0 if job.shared else 1, self._grouped(lane, job, data, info, peaks, bins)
        spread: dict[str, Any] = {}
        if any(part.kind == "comb" for part in job.parts):
            spread = self._spread_bands(lane, data, work, job.n_rows, stride)
        return {"common": {k: work[k] for k in ("tp", "wv", "rows", "odd")}, "spread": spread}

    def _fit(
        self, lane: Lane, job: Job, i: int, part: Chi2Part, cut: Cut | None, data: dict[str, Any], work: dict[str, Any],
        values: Any, grids: dict[str, Any], to: dict[str, Any],
    ) -> None:  # fmt: skip
        order, common = data[f"order{i}"], work["common"]
        if part.fit is not None:
            self._sums(lane, part, order, data[f"tasks{i}"], **work["spread"], **common, **grids, **to)
        self._one_by_one(lane, part, order, data[f"exact{i}"], values, **common, **grids, **to)

    def _grouped(
        self, lane: Lane, job: Job, data: dict[str, Any], info: Any, peaks: dict[str, Any], bins: Any
    ) -> dict[str, Any]:
        """Rows in order of time, grouped by band and centred on the bands' means."""
        n, rows, bands, fewest = job.n_objects, job.n_rows, self.model.n_bands, self.spec.fewest
        row = lane.array("row", rows, np.int32)
        kept = lane.array("kept", rows, np.float64) if fewest > 1 else None
        args = fill(
            ROWS, **{k: data[k] for k in ("t", "y", "dy", "code", "offsets")}, kept=kept, row=row, bands=bands,
            fewest=fewest,
        )  # fmt: skip
        self.module("bands/rows.cu").launch(
            "bands_rows", (n,), (256,), (args,), shared_mem=4 * bands, stream=lane.stream
        )
        work = self._clean(lane, job, data if kept is None else {**data, "t": kept}, info, peaks, bins)
        odd = lane.array("odd", n, np.int32)
        by: dict[str, Any] = {
            "pick": lane.array("pick", rows, np.int32), "first_row": lane.array("first_row", n * (bands + 1), np.int32),
            "share": lane.array("share", n * bands, np.float64), "bands": bands,
        }  # fmt: skip
        args = fill(
            CENTRE, **{k: data[k] for k in ("y", "code", "offsets")}, row=row, wv=work["wv"], info=info,
            odd=odd, scale_kind=SCALE_KIND.get(self.spec.normalization, 0), **by,
        )  # fmt: skip
        self.module("bands/rows.cu").launch(
            "bands_centre", (n,), (32 * WARPS,), (args,), shared_mem=CENTRE_BYTES * bands, stream=lane.stream
        )
        return {**work, "odd": odd, "rows": fill(BANDS, **by)}

    def _spread_bands(
        self, lane: Lane, data: dict[str, Any], work: dict[str, Any], rows: int, stride: int
    ) -> dict[str, Any]:
        """Cells and weights of every point and harmonic."""
        if is_offset(self.model):
            return self._weights(lane, data, work, rows, stride)
        padded, top = rows + PAD, int(harmonics(self.model).max())
        out = {
            "cell": lane.array("bands_cell", top * padded, np.int32),
            "weight": lane.array("bands_weight", 16 * top * padded, np.float64),
        }
        args = fill(
            WEIGHTS, tp=work["tp"], owner=work["owner"], taps=self._chi2_table(lane, 1)[4], df=data["df"],
            limit=data["limit"], rows=rows, stride=padded, grid_stride=stride, **out,
        )  # fmt: skip
        self.bands("bands/comb.cu").launch("bands_weights", (-(-rows // 16),), (256,), (args,), stream=lane.stream)
        return {**out, "stride": padded}

    def _sums(self, lane: Lane, part: Chi2Part, order: Any, tasks: Any, **more: Any) -> None:
        fit: Any = part.fit
        assert isinstance(fit, BandsLayout)
        combs: Any = _Combs(fit.combs)
        offset = is_offset(self.model)
        found = self._device_tables(lane, combs) if offset else self._chi2_table(lane, fit.combs)
        tables = dict(zip(("first", "second", "fold", "deconvolve"), found[:4], strict=True))
        common = {"order": order, "tasks": tasks, "limit": LIMIT, "P": fit.combs, "stretches": part.stretches, **tables}
        if offset:
            args = fill(OFFSET, S=fit.combs, blocks=1, circles=fit.fold, zero=0, **common, **more)
            file, name, threads = "bands/bands.cu", "bands_offset", 128
        else:
            args = fill(
                COMB, penalty=self.model.penalty, band_penalty=self.model.band_penalty, G=fit.together, room=fit.room,
                slots=fit.slots, regularised=int(self.model.regularised), **common, **more,
            )  # fmt: skip
            file, name, threads = "bands/comb.cu", "bands_comb", 384
        self.bands(file).launch(
            name, (part.launches,), (threads,), (args,), shared_mem=fit.shared_bytes, stream=lane.stream
        )

    def _at_peaks(self, lane: Lane, slots: int, work: dict[str, Any], peaks: dict[str, Any]) -> None:
        part = Chi2Part("direct", np.zeros(slots, np.int32), 1, None, 0, 0, fit=None, exact=(None, 1), find=(None, 1))
        some = {k: v for k, v in peaks.items() if k != "order"}
        self._one_by_one(lane, part, peaks["order"], None, None, **work["common"], **some)

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

    def _one_by_one(self, lane: Lane, part: Chi2Part, order: Any, tasks: Any, values: Any, **more: Any) -> None:
        """Exact fits of what is not trusted, or of every frequency."""
        front = 1 + 2 * self.model.band_terms + self.model.constant + 2 * self.model.terms
        bare = part.fit is None
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
