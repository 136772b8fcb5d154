"""The ring engine on a GPU: transforms of rows of rings, sums over rings mode by mode, transforms back.

Kernels: ``sp_ring.cu`` (around the transforms), ``sp_band.cu`` (sums); see there for rows and tiles.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .cuda_direct import PACKAGE, widest
from .pairs import NotBandLimited, mode_bounds, reach

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.kernels import Runtime

    from .radial import Radial
    from .workload import Spec

ROW = np.dtype(
    [("phi", "f8"), ("north", "i8"), ("south", "i8"), ("place", "i8"), ("n", "i4"), ("most", "i4"), ("m", "i4"),
     ("residues", "i4")], align=True,
)  # fmt: skip
TILE = np.dtype(
    [("place", "i8"), ("counts", "i8"), ("o0", "i4"), ("rows", "i4"), ("i0", "i4"), ("i1", "i4"), ("nphi", "i4"),
     ("terms", "i4"), ("most", "i4"), ("spare", "i4")], align=True,
)  # fmt: skip
BLOCK, BAND, LONGEST = 256, 128, 32
SHAPE = {0: (8, 2, 4), 2: (8, 1, 2)}
"""By spin: output rows of a tile, modes of a thread, rings whose samples are brought at a time."""
LIKE = 8
"""So many rows of one length are transformed as they are."""
LEAST = 64
SCRATCH = 1 << 28
"""Bytes of rows that are transformed at a time."""
MOST_ROWS = 65535
FUSED = (512, 16384)
"""Shortest and longest transform of ``sp_fft.cu``, of float32."""
NS_BYTE, NS_FUSED, NS_TERM, LAUNCH = 7e-4, 2.3e-4, 1.1e-4, 2e-5
"""Nanoseconds for a byte of the transforms (and where one kernel does all of a row) and for a multiply-add of the sums,
in float32, and seconds of a launch; measured on an H100 at nside 2048."""


@dataclass(frozen=True)
class Run:
    """Rows first .. first + count - 1 that are transformed together: ``length`` each, by chirps or as they are."""

    first: int
    count: int
    length: int
    residues: int
    chirped: bool
    fused: bool

    @property
    def size(self) -> int:
        """Elements of a row in the buffer."""
        return self.length * self.residues


def fusable(length: int, item: int) -> bool:
    """Whether ``sp_fft.cu`` transforms rows of this length."""
    return item == 4 and FUSED[0] <= length <= FUSED[1] and length & (length - 1) == 0


def make_runs(n: NDArray[np.int64], item: int) -> list[Run]:
    """How rows of lengths ``n`` are transformed: few lengths, since each is compiled."""
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(n)) + 1, [len(n)]])
    found: list[tuple[int, int, int, int]] = []
    for a, b in pairwise(cuts.tolist()):
        size = int(n[a])
        residues = 4 if size % 4 == 0 else 1
        needed = 1 << (2 * (size // residues) - 2).bit_length() if b - a < LIKE else 0
        found.append((b - a, size, residues, max(needed, LEAST) if needed else 0))
    longest = max(needed for *_, needed in found)
    allowed = [longest, longest >> 1, *(longest >> k for k in range(3, 30, 2))]
    keys: list[tuple[bool, int, int]] = []
    for count, size, residues, needed in found:
        if needed:
            keys += [(True, min(x for x in allowed if x >= needed), residues)] * count
        else:
            keys += [(False, size, 1)] * count
    runs = []
    start = 0
    for k in range(1, len(keys) + 1):
        if k < len(keys) and keys[k] == keys[start]:
            continue
        chirped, length, residues = keys[start]
        if chirped and item == 4:
            length = max(length, FUSED[0])
        step = max(1, min(SCRATCH // (2 * item * length * residues), MOST_ROWS // residues))
        fused = fusable(length, item)
        runs += [Run(r, min(step, k - r), length, residues, chirped, fused) for r in range(start, k, step)]
        start = k
    return runs


def band_shape(spin: int) -> dict[str, object]:
    """Defines of ``sp_band.cu``."""
    return dict(zip(("TILE", "EACH", "AHEAD"), SHAPE[spin], strict=True))


class Sums:
    """One kernel: its tiles and samples."""

    def __init__(
        self, runtime: Runtime, spec: Spec, radial: Radial, rows: int, most: NDArray[np.int64], theta: Any
    ) -> None:
        xp, t, item = runtime.xp, spec.table, spec.dtype.itemsize
        self.waves = 2 if spec.spin else 1
        tall, each, ahead = SHAPE[spec.spin]
        first, last = reach(t.theta, radial.radius)
        begin = np.arange(0, rows, tall)
        tiles = np.zeros(len(begin), TILE)
        end = np.minimum(begin + tall, rows)
        tiles["o0"], tiles["rows"] = begin, end - begin
        tiles["i0"], tiles["i1"] = first[begin], last[end - 1]
        tiles["most"] = np.maximum.reduceat(most[:rows], begin)
        tiles["nphi"] = 2 * tiles["most"] + 2
        reached = np.maximum.reduceat(widest(t, radial)[:rows], begin)
        terms = np.floor(reached * tiles["nphi"] / (2 * math.pi) + 1e-6).astype(np.int64) + 2
        tiles["terms"] = np.minimum(terms, tiles["nphi"] // 2 + 1)
        many = (tiles["i1"] - tiles["i0"]).astype(np.int64)
        size = many * tiles["terms"] * self.waves * tall
        tiles["place"] = np.concatenate([[0], np.cumsum(size)[:-1]])
        tiles["counts"] = np.concatenate([[0], np.cumsum(many)[:-1]])
        self.size, self.count = int(size.sum()), len(tiles)
        self.blocks = int(tiles["most"].max()) // (BAND * each) + 1
        self.longest = min(LONGEST, int(tiles["terms"].max()))
        self.shared = self.longest * self.waves * (BAND * each + ahead * tall) * item
        self.terms = float((many * tall * (tiles["most"] // BAND + 1) * BAND * (self.waves * tiles["terms"] + 4)).sum())
        self.build = ("f32" if item == 4 else "f64") + ("_spin" if spec.spin else "")
        self.module = runtime.module(PACKAGE, "sp_band.cu", self.build, band_shape(spec.spin))
        self.tiles = xp.asarray(tiles.view(np.uint8))
        self.held = xp.empty(self.size, spec.dtype)
        self.counts = xp.zeros(int(many.sum()), np.int32)
        floor = 0.0 if radial.positive else -1e300
        for a in range(0, int(many.max()), MOST_ROWS):
            self.module.launch(
                "samples", (self.count, min(MOST_ROWS, int(many.max()) - a)), (128,),
                (theta, xp.asarray(radial.cells), self.tiles, self.held, self.counts, np.float64(radial.xmax),
                 np.float64(floor), np.int32(len(radial.cells)), np.int32(a)),
            )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.tiles.nbytes + self.held.nbytes + self.counts.nbytes)


class RingEngine:
    """Transforms of rings and sums over rings for all kernels of a `Spec`.

    Parameters
    ----------
    runtime : Runtime
    spec : Spec

    Raises
    ------
    NotBandLimited
        For kernels whose modes do not end.
    """

    name = "ring"

    def __init__(self, runtime: Runtime, spec: Spec) -> None:
        self.runtime, self.spec = runtime, spec
        xp, t, item = runtime.xp, spec.table, spec.dtype.itemsize
        self.rings = len(t.n)
        mirrored = t.symmetric
        self.rows = (self.rings + 1) // 2 if mirrored else self.rings
        self.parts = 2 if spec.spin and mirrored else 1
        self.amplitudes = [1.0] * len(spec.radials)
        most = np.max([self._modes(r) for r in spec.radials], axis=0)
        if mirrored:
            most = np.maximum(most, most[::-1])
        row = np.zeros(self.rows, ROW)
        some = slice(0, self.rows)
        row["phi"], row["north"], row["n"], row["most"] = t.phi0[some] / math.pi, t.start[some], t.n[some], most[some]
        row["south"] = t.start[::-1][some] if mirrored else -1
        row["residues"] = np.where(t.n[some] % 4 == 0, 4, 1)
        row["m"] = row["n"] // row["residues"]
        place = np.concatenate([[0], np.cumsum(2 * (most[some] + 1))]).astype(np.int64)
        row["place"], self.size = place[:-1], int(place[-1])
        self.most = most
        self.runs = make_runs(t.n[some], item)
        self.complex = np.dtype(np.complex64 if item == 4 else np.complex128)
        theta = xp.asarray(t.theta)
        self._rows = xp.asarray(row.view(np.uint8))
        self._place, self._top = xp.asarray(place[:-1]), xp.asarray(most[some].astype(np.int32))
        self._compile()
        self.kernels = [Sums(runtime, spec, r, self.rows, most, theta) for r in spec.radials]
        self.scratch = max(r.count * r.size for r in self.runs)
        self._spectra: list[Any] | None = None
        self._work: tuple[Any, Any, Any] | None = None

    def _compile(self) -> None:
        """All modules at once: the compiler runs in several threads."""
        xp, wide = self.runtime.xp, "f32" if self.spec.dtype.itemsize == 4 else "f64"
        lengths = sorted({(r.length, r.chirped) for r in self.runs if r.fused})
        band = wide + ("_spin" if self.spec.spin else "")
        with ThreadPoolExecutor(2 + len(lengths)) as pool:
            fused = [
                pool.submit(self.runtime.module, PACKAGE, "sp_chirp.cu" if chirped else "sp_fft.cu", None, {"L": n})
                for n, chirped in lengths
            ]
            pool.submit(self.runtime.module, PACKAGE, "sp_band.cu", band, band_shape(self.spec.spin))
            self.module = self.runtime.module(PACKAGE, "sp_ring.cu", wide)
        self.fused = dict(zip(lengths, (f.result() for f in fused), strict=True))
        self.turns = {
            n: xp.asarray(np.exp(-2j * np.pi / n * np.arange(n)).astype(self.complex)) for n in {n for n, _ in lengths}
        }  # fmt: skip

    def _modes(self, radial: Radial) -> NDArray[np.int64]:
        spec = self.spec
        if radial.hard:
            raise NotBandLimited(
                "the kernel has an edge, so that its modes do not end: method='ring' cannot add it up on a GPU; "
                "use method='direct' or 'auto'"
            )
        bound = mode_bounds(spec.table, radial, 0.5 * spec.eps, spec.spin)
        if not np.isfinite(bound).all():
            raise NotBandLimited(
                f"the kernel's modes do not fall below eps={spec.eps:g}: method='ring' cannot add it up; "
                "use method='direct' or 'auto'"
            )
        return np.ceil(bound * 1.01).astype(np.int64) + (8 if spec.spin else 2)

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, maps apart."""
        spectra = sum(r.count * r.length for r in self.runs if r.chirped)
        work = spectra + 2 * self.scratch + 2 * self.parts * self.size
        return work * self.complex.itemsize + sum(k.nbytes for k in self.kernels) + int(self._rows.nbytes)

    def seconds(self) -> float:
        """Expected seconds of one map."""
        wide = self.spec.dtype.itemsize / 4
        total = sum(
            r.count * r.size * (9 if r.chirped else 4) * (NS_FUSED if r.fused else NS_BYTE) for r in self.runs
        )  # fmt: skip
        total = 8 * self.parts * (1 + len(self.kernels)) * total + NS_TERM * sum(k.terms for k in self.kernels)
        return 1e-9 * wide * total + LAUNCH * len(self.runs) * self.parts * (1 + len(self.kernels))

    def free(self) -> None:
        """Give back the working memory."""
        self._work, self._spectra = None, None

    def one(self, x: Any, out: Any, w_in: Any, w_out: list[Any], flags: Any, side: Any) -> None:
        """One map ([2,] npix) into ``out`` (K, [2,] npix)."""
        xp = self.runtime.xp
        if self._spectra is None:
            self._spectra = [self._spectrum(r) if r.chirped else None for r in self.runs]
        if self._work is None:
            modes = xp.empty(self.parts * self.size, self.complex)
            self._work = (xp.empty(self.scratch, self.complex), modes, xp.empty_like(modes))
        buffer, modes, sums = self._work
        for part in range(self.parts):
            for r, spectrum in zip(self.runs, self._spectra, strict=True):
                self._forward(r, spectrum, x, w_in, buffer, modes[part * self.size :], part)
        for k, kernel in enumerate(self.kernels):
            kernel.module.launch(
                "band", (kernel.count, kernel.blocks), (BAND,),
                (modes, self._place, self._top, kernel.tiles, kernel.held, kernel.counts, sums, np.int64(self.size),
                 *_ints(self.rows, self.rings, self.parts, kernel.longest)),
                shared_mem=kernel.shared,
            )  # fmt: skip
            for part in range(self.parts):
                for r, spectrum in zip(self.runs, self._spectra, strict=True):
                    self._back(r, spectrum, sums[part * self.size :], w_out[1 + k], buffer, out[k], flags[k:], part)

    def _launch(self, kernel: str, wide: int, rows: int, args: tuple[Any, ...]) -> None:
        self.module.launch(kernel, (-(-wide // BLOCK), rows), (BLOCK,), args)

    def _spectrum(self, r: Run) -> Any:
        """Transforms of the chirps of a run."""
        out = self.runtime.xp.empty((r.count, r.length), self.complex)
        self._launch("chirps", r.length, r.count, (self._rows, out, *_ints(r.length, r.first)))
        self._transform(out)
        return out

    def _transform(self, z: Any) -> None:
        """Of the last axis, in place."""
        if self.runtime.xp is np:
            z[...] = np.fft.fft(z, axis=-1)
            return
        found = import_module("cupyx.scipy.fft").fft(z, axis=-1, overwrite_x=True)
        if found.data.ptr != z.data.ptr:
            z[...] = found

    def _chirped(self, r: Run, z: Any, spectrum: Any) -> None:
        self._transform(z)
        self._launch("multiply", r.length, r.count * r.residues, (z, spectrum, *_ints(r.length, r.residues)))
        self._transform(z)

    def _launch_fused(self, kernel: str, r: Run, grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
        padded = r.length + r.length // 32
        self.fused[r.length, r.chirped].launch(
            kernel, grid, (r.length // 16,), args, shared_mem=2 * padded * self.spec.dtype.itemsize
        )  # fmt: skip

    def _forward(self, r: Run, spectrum: Any, x: Any, w: Any, buffer: Any, modes: Any, part: int) -> None:
        npix, kind = np.int64(self.spec.table.npix), _ints(self.rings, r.first, self.spec.spin, part)
        if r.fused and r.chirped:
            self._launch_fused(
                "forward_chirped", r, (r.residues, r.count),
                (x, w, self._rows, self.turns[r.length], spectrum, modes, npix, *kind),
            )  # fmt: skip
            return
        if r.fused:
            self._launch_fused(
                "forward_plain", r, (r.count,), (x, w, self._rows, self.turns[r.length], modes, npix, *kind)
            )  # fmt: skip
            return
        z = buffer[: r.count * r.size].reshape(-1, r.length)
        if r.chirped:
            self._launch(
                "load_chirped", r.length, r.count, (x, w, self._rows, z, npix, np.int32(r.length), *kind)
            )  # fmt: skip
            self._chirped(r, z, spectrum)
        else:
            self._launch("load", r.length, r.count, (x, w, self._rows, z, npix, *kind))
            self._transform(z)
        wide = 2 * (int(self.most[r.first : r.first + r.count].max()) + 1)
        length = r.length if r.chirped else 0
        self._launch("modes", wide, r.count, (z, self._rows, modes, *_ints(length, r.first)))

    def _back(self, r: Run, spectrum: Any, sums: Any, w: Any, buffer: Any, y: Any, flag: Any, part: int) -> None:
        npix, kind = np.int64(self.spec.table.npix), _ints(self.rings, r.first, self.spec.spin, part)
        if r.fused and not r.chirped:
            self._launch_fused(
                "back_plain", r, (r.count,), (sums, w, self._rows, self.turns[r.length], y, flag, npix, *kind)
            )  # fmt: skip
            return
        z = buffer[: r.count * r.size].reshape(-1, r.length)
        if r.fused:
            self._launch_fused(
                "back_chirped", r, (r.residues, r.count),
                (sums, self._rows, self.turns[r.length], spectrum, z, np.int32(r.first)),
            )  # fmt: skip
        elif r.chirped:
            self._launch("fold_chirped", r.size, r.count, (sums, self._rows, z, *_ints(r.length, r.first)))
            self._chirped(r, z, spectrum)
        else:
            self._launch("fold", r.length, r.count, (sums, self._rows, z, np.int32(r.first)))
            self._transform(z)
            self._launch("store", r.length, r.count, (z, w, self._rows, y, flag, npix, *kind))
            return
        stride = r.length // 2 if r.fused else r.length
        self._launch(
            "store_chirped", -(-r.length // 2), r.count,
            (z, w, self._rows, y, flag, npix, *_ints(stride, not r.fused), *kind),
        )  # fmt: skip


def least_seconds(spec: Spec) -> float:
    """Less than the ring engine needs for one map: its transforms alone."""
    return 1e-9 * NS_FUSED * spec.table.npix * spec.dtype.itemsize * 8 * (1 + len(spec.radials))


def _ints(*values: Any) -> tuple[np.int32, ...]:
    return tuple(np.int32(v) for v in values)
