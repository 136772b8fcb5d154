"""The ring engine on a GPU: Fourier transforms of rows, sums over rings for each mode, inverse transforms.

Kernels: ``ring/fft.cu`` and ``ring/grid.cu`` (a transform in one kernel), ``ring/ring.cu`` (before and after transforms
of cuFFT), ``ring/band.cu`` (sums).
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.structs import ints
from skysieve.sphere.cuda import PACKAGE
from skysieve.sphere.ring_pairs import NotBandLimited, mode_bounds

from .rows import ROW, Run, longest_transform, make_runs
from .spreading import find_spreading_window
from .sums import Sums, band_module

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Runtime
    from skysieve.sphere.contract import Spec
    from skysieve.sphere.kernels.radial import Radial

BLOCK = 256
NS_ROW, NS_TERM, LAUNCH, HOST = 1.2e-3, 9e-5, 5e-6, 4.5e-5
"""Nanoseconds for a byte of a plain row, and for a multiply-add of the sums, in float32; seconds of a launch on the GPU
and on the host.  Measured on an H100 at nside 64 to 8192."""
STEPS = {"plain": 1, "grid": 1, "batch": 3, "chirp": 6}
"""Launches for one transform of rows, by kind of `Run`."""
COST = {"plain": 1.0, "grid": 1.3, "batch": 3.5, "chirp": 12.0}
"""Relative time to transform a row, by kind of `Run`."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Output rows first .. last - 1, and the input rows low .. high - 1 that they need.

    ``before`` and ``after`` are tables of all rows, with pixels and modes numbered as in the arrays that are read and
    written.  ``read`` and ``written`` are the ranges of a map's pixels in these rows, and ``npix_read`` and
    ``npix_written`` the numbers of pixels of the given arrays.
    """

    first: int
    last: int
    low: int
    high: int
    tiles: tuple[int, int]
    before: Any
    after: Any
    read: list[tuple[int, int]]
    written: list[tuple[int, int]]
    npix_read: int
    npix_written: int


class RingEngine:
    """Transforms of rings and sums over rings for all kernels of a `Spec`.

    Parameters
    ----------
    runtime : Runtime
    spec : Spec

    Raises
    ------
    NotBandLimited
        A kernel is not band-limited.
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
        most |= 1  # pairs of modes are read at once
        some = slice(0, self.rows)
        self.place = np.concatenate([[0], np.cumsum(2 * (most[some] + 1))]).astype(np.int64)
        self.size = int(self.place[-1])
        self.most = most
        self.complex = np.dtype(np.complex64 if item == 4 else np.complex128)
        self.window = find_spreading_window(spec.radials, int(most.max()), spec.eps, spec.spin, item)
        share = 0.0 if self.window is None else self.window.share
        longest = longest_transform(item, runtime.device.shared_per_block)
        self.runs = make_runs(t.n[some], t.phi0[some], most[some], item, share, longest)
        theta = xp.asarray(t.theta)
        self._place, self._top = xp.asarray(self.place[:-1]), xp.asarray(most[some].astype(np.int32))
        self._compile()
        self._tables()
        self.kernels = [Sums(runtime, spec, r, self.rows, most, theta) for r in spec.radials]
        self.scratch = max(r.count * r.size for r in self.runs)
        self._whole = self.table_of_rows(0, 0, 0)
        self.pieces = [self.piece(0, self.rows)]
        self._spectra: list[Any] | None = None
        self._work: tuple[Any, Any, Any] | None = None

    def table_of_rows(self, north: int, south: int, place: int) -> Any:
        """``Row`` of ``ring/rows.cuh`` for all rows, with indices of pixels and modes reduced by the arguments."""
        t, some = self.spec.table, slice(0, self.rows)
        row = np.zeros(self.rows, ROW)
        row["phi"], row["n"], row["most"] = t.phi0[some] / math.pi, t.n[some], self.most[some]
        row["north"], row["place"] = t.start[some] - north, self.place[:-1] - place
        row["south"] = t.start[::-1][some] - south if t.symmetric else -1
        row["residues"] = np.where(t.n[some] % 4 == 0, 4, 1)
        row["m"] = row["n"] // row["residues"]
        return self.runtime.xp.asarray(row.view(np.uint8))

    def piece(self, first: int, last: int, alone: bool = False) -> Piece:
        """The piece of output rows first .. last - 1; both are multiples of a tile, except at the last row.

        Parameters
        ----------
        alone : bool
            Whether the arrays hold these rows only; see `Piece`.
        """
        tall = self.kernels[0].build.tall
        tiles = (first // tall, -(-last // tall))
        low, high = self.piece_rows(first, last)
        tables = []
        for a, b in ((low, high), (first, last)):
            north, south = self._shifts(a, b) if alone else (0, 0)
            whole = not alone and int(self.place[a]) == 0
            tables.append(self._whole if whole else self.table_of_rows(north, south, int(self.place[a])))
        read, written = (self.segments(a, b) for a, b in ((low, high), (first, last)))
        npix = [sum(b - a for a, b in s) if alone else self.spec.table.npix for s in (read, written)]
        return Piece(first, last, low, high, tiles, tables[0], tables[1], read, written, npix[0], npix[1])

    def piece_rows(self, first: int, last: int) -> tuple[int, int]:
        """Input rows low .. high - 1 that output rows need."""
        tall = self.kernels[0].build.tall
        tiles = slice(first // tall, -(-last // tall))
        low = min(int(k.low[tiles].min()) for k in self.kernels)
        high = max(int(k.high[tiles].max()) for k in self.kernels)
        if high > self.rows:  # mirror images of rows
            low, high = min(low, self.rings - high), self.rows
        return low, high

    def segments(self, low: int, high: int) -> list[tuple[int, int]]:
        """Ranges of a map's pixels in some rows."""
        t = self.spec.table
        ends = t.start + t.n
        if not t.symmetric:
            return [(int(t.start[low]), int(ends[high - 1]))]
        if high == self.rows:
            return [(int(t.start[low]), int(ends[self.rings - 1 - low]))]
        south = (int(t.start[self.rings - high]), int(ends[self.rings - 1 - low]))
        return [(int(t.start[low]), int(ends[high - 1])), south]

    def _shifts(self, low: int, high: int) -> tuple[int, int]:
        """By how much the indices of northern and southern pixels decrease if arrays hold some rows only."""
        parts = self.segments(low, high)
        north = parts[0][0]
        return north, north if len(parts) == 1 else parts[1][0] - (parts[0][1] - parts[0][0])

    def fit(self, room: float) -> None:
        """Divide the sky into as few pieces as possible so that `nbytes` is at most ``room``, or into the smallest."""
        tall = self.kernels[0].build.tall
        for count in (*range(1, 9), 10, 12, 16, 24, 32, 48, 64):
            cuts = np.unique(self.cuts(count))
            if self._bytes_of(cuts) <= room or count * tall >= self.rows:
                break
        self.pieces = [self.piece(int(a), int(b)) for a, b in pairwise(cuts)]
        self._work = None

    def cuts(self, count: int) -> NDArray[np.int64]:
        """Rows at which the sky is cut into ``count`` pieces of equal cost."""
        tall = self.kernels[0].build.tall
        tiles = np.arange(0, self.rows, tall)
        sums = np.sum([k.terms for k in self.kernels], axis=0) * NS_TERM
        pixels = np.add.reduceat(self.spec.table.n[: self.rows], tiles) * (16.0 * NS_ROW * self.parts)
        cost = np.cumsum(sums + pixels * (1 + len(self.kernels)) / 2)
        ends = np.concatenate([[0], cost])
        wanted = cost[-1] * np.arange(1, count) / count
        at = np.clip(np.searchsorted(ends, wanted), 1, len(tiles))
        at -= ends[at] - wanted > wanted - ends[at - 1]
        at = np.clip(at, min(1, len(tiles) - 1), len(tiles) - 1)
        return np.concatenate([[0], at * tall, [self.rows]])

    def _bytes_of(self, cuts: NDArray[np.int64]) -> int:
        """Bytes of the plan and its working memory if the sky is cut at rows ``cuts``."""
        pieces = [self.piece_rows(int(a), int(b)) for a, b in pairwise(cuts)]
        work = max(self.place[high] - self.place[low] for low, high in pieces)
        work += max(self.place[b] - self.place[a] for a, b in pairwise(cuts))
        spectra = sum(r.count * r.length for r in self.runs if r.kind == "chirp")
        total = (int(work) * self.parts + spectra + 2 * self.scratch) * self.complex.itemsize
        tables = 1 + (2 * len(pieces) if len(pieces) > 1 else 0)
        return total + sum(k.nbytes for k in self.kernels) + tables * self.rows * ROW.itemsize

    def _compile(self) -> None:
        """Compile all modules at the same time, in several threads."""
        wide = "f32" if self.spec.dtype.itemsize == 4 else "f64"
        lengths = sorted({(r.kind, r.length) for r in self.runs if not r.size})
        first = {"plain": f"{wide}_8192", "grid": "f32_4096" if wide == "f32" else "f64_2048"}
        files = {"plain": "ring/fft.cu", "grid": "ring/grid.cu"}
        with ThreadPoolExecutor(3 + len(lengths)) as pool:
            fused = [
                pool.submit(self.runtime.module, PACKAGE, files[kind], first[kind], self._defines(kind, length))
                for kind, length in lengths
            ]
            band = pool.submit(band_module, self.runtime, self.spec)
            if any(r.size for r in self.runs):
                self.module = self.runtime.module(PACKAGE, "ring/ring.cu", wide)
            band.result()
        self.fused = dict(zip(lengths, (f.result() for f in fused), strict=True))

    def _defines(self, kind: str, length: int) -> dict[str, object]:
        if kind == "plain" or self.window is None:
            whole = all(r.residues == 1 for r in self.runs if (r.kind, r.length) == (kind, length))
            return {"LENGTH": length, "ONLY": self.spec.spin, **({"WHOLE": 1} if whole else {})}
        return {"LENGTH": length, "ONLY": self.spec.spin, "TAPS": self.window.taps, "DEGREE": self.window.degree}

    def _tables(self) -> None:
        """Upload roots of unity, factors of the spreading window, and phases of rows."""
        xp, dtype = self.runtime.xp, self.spec.dtype
        self.turns = {
            n: xp.asarray(np.exp(-2j * np.pi / n * np.arange(n)).astype(self.complex))
            for n in {length for _, length in self.fused}
        }
        self.factors: dict[int, Any] = {}
        self.phases: list[Any] = []
        for r in self.runs:
            some = slice(r.first, r.first + r.count)
            phi = self.spec.table.phi0[some]
            values = np.unique(phi[phi != 0])
            modes = np.arange(int(self.most[some].max()) + 1)
            one = r.kind == "plain" and len(values) == 1
            self.phases.append(xp.asarray(np.exp(-1j * modes * values[0]).astype(self.complex)) if one else None)
            if r.kind == "grid" and self.window is not None:
                top = max(len(modes), len(self.factors.get(r.length, ())))
                self.factors[r.length] = xp.asarray(self.window.factors(np.arange(top) / r.length).astype(dtype))
        self.struct = None if self.window is None else self.window.struct(dtype)

    def _modes(self, radial: Radial) -> NDArray[np.int64]:
        spec = self.spec
        if radial.hard:
            raise NotBandLimited(
                "the kernel has an edge, so that its modes do not end: method='ring' cannot be used on a GPU; "
                "use method='direct' or 'auto'"
            )
        bound = mode_bounds(spec.table, radial, 0.5 * spec.eps, spec.spin)
        if not np.isfinite(bound).all():
            raise NotBandLimited(
                f"the kernel's modes do not fall below eps={spec.eps:g}: method='ring' cannot be used on a GPU; "
                "use method='direct' or 'auto'"
            )
        return np.ceil(bound * 1.01).astype(np.int64) + (8 if spec.spin else 2)

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its working memory, without maps."""
        return self._bytes_of(np.array([*(p.first for p in self.pieces), self.pieces[-1].last]))

    def seconds(self) -> float:
        """Expected seconds of one map."""
        n = self.spec.table.n
        total = sum(
            float(n[r.first : r.first + r.count].sum())
            * COST[r.kind]
            * (1.3 if (r.kind, r.residues) == ("plain", 2) else 1)
            for r in self.runs
        )
        total *= self.complex.itemsize * self.parts * (1 + len(self.kernels)) * NS_ROW
        for k in self.kernels:
            total += float(k.terms.sum()) * NS_TERM * (1.0 if k.tensor else 3.5)
        launches = sum(STEPS[r.kind] for r in self.runs) * self.parts * (1 + len(self.kernels)) + len(self.kernels)
        return max(1e-9 * total + LAUNCH * launches, HOST * launches)

    def free(self) -> None:
        """Free the working memory."""
        self._work, self._spectra = None, None

    def one(self, x: Any, out: Any, w_in: Any, w_out: list[Any], flags: Any, side: Any) -> None:
        """Convolve one map ([2,] npix) into ``out`` (K, [2,] npix)."""
        for p in self.pieces:
            self.some(p, x, out, w_in, w_out, flags, side)

    def some(
        self, p: Piece, x: Any, out: Any, w_in: Any, w_out: list[Any], flags: Any, side: Any = None
    ) -> None:  # fmt: skip
        """Convolve a piece of one map ([2,] npix) into ``out`` (K, [2,] npix); see `_streams` for ``side``."""
        if self._spectra is None:
            self._spectra = [self._spectrum(r) if r.kind == "chirp" else None for r in self.runs]
        buffer, modes, sums = self._buffers(p)
        size = [int(self.place[b] - self.place[a]) for a, b in ((p.low, p.high), (p.first, p.last))]
        self._order(side, False)
        for part in range(self.parts):
            for k, r, stream in self._streams(p.low, p.high, side):
                self._forward(k, r, p, x, w_in, buffer, modes[part * size[0] :], part, stream)
        self._order(side, True)
        for k, kernel in enumerate(self.kernels):
            kernel.run(
                modes, sums, self._place, self._top, (int(self.place[p.low]), int(self.place[p.first])),
                (size[0], size[1]), (self.rows, self.rings, self.parts), p.tiles,
            )  # fmt: skip
            self._order(side, False)
            for part in range(self.parts):
                for n, r, stream in self._streams(p.first, p.last, side):
                    some = sums[part * size[1] :]
                    self._back(n, r, p, some, w_out[1 + k], buffer, out[k], flags[k:], part, stream)
            self._order(side, True)

    def _streams(self, low: int, high: int, side: Any) -> list[tuple[int, Run, Any]]:
        """Runs within some rows, and the stream of each: runs through a grid use ``side``, so that launches overlap."""
        found = [(k, some) for k, r in enumerate(self.runs) if (some := r.within(low, high)) is not None]
        found.sort(key=lambda one: -one[1].count * one[1].length)
        alone = all(r.kind == "grid" for _, r in found)
        return [
            (k, r, side if r.kind == "grid" and not (alone and at == 0) else None) for at, (k, r) in enumerate(found)
        ]

    def _order(self, side: Any, back: bool) -> None:
        """Let the second stream wait for the current one, or with ``back`` the current one for the second."""
        if side is None:
            return
        cuda = self.runtime.xp.cuda
        main, event = cuda.get_current_stream(), cuda.Event(disable_timing=True)
        event.record(side if back else main)
        (main if back else side).wait_event(event)

    def _buffers(self, p: Piece) -> tuple[Any, Any, Any]:
        """Buffers for rows, modes and sums; as large as any piece so far has needed."""
        xp = self.runtime.xp
        some = [p, *self.pieces] if p in self.pieces else [p]
        sizes = [
            self.parts * max(int(self.place[q.high] - self.place[q.low]) for q in some),
            self.parts * max(int(self.place[q.last] - self.place[q.first]) for q in some),
        ]
        if self._work is None or any(len(b) < n for b, n in zip(self._work[1:], sizes, strict=True)):
            self._work = None
            modes, sums = (xp.empty(n, self.complex) for n in sizes)
            self._work = (xp.empty(self.scratch, self.complex), modes, sums)
        return self._work

    def _launch(self, kernel: str, wide: int, rows: int, args: tuple[Any, ...]) -> None:
        self.module.launch(kernel, (-(-wide // BLOCK), rows), (BLOCK,), args)

    def _spectrum(self, r: Run) -> Any:
        """Transforms of the chirps of a run."""
        out = self.runtime.xp.empty((r.count, r.length), self.complex)
        self._launch("chirps", r.length, r.count, (self._whole, out, *ints(r.length, r.first)))
        self._transform(out)
        return out

    def _transform(self, z: Any) -> None:
        """Transform the last axis in place."""
        if self.runtime.xp is np:
            z[...] = np.fft.fft(z, axis=-1)
            return
        found = import_module("cupyx.scipy.fft").fft(z, axis=-1, overwrite_x=True)
        if found.data.ptr != z.data.ptr:
            z[...] = found

    def _chirped(self, r: Run, z: Any, spectrum: Any) -> None:
        self._transform(z)
        self._launch("multiply", r.length, r.count * r.residues, (z, spectrum, *ints(r.length, r.residues)))
        self._transform(z)

    def _fused(self, kernel: str, r: Run, args: tuple[Any, ...], stream: Any) -> None:
        """Launch a kernel that transforms rows."""
        shared = 2 * (r.length + r.length // 32) * self.spec.dtype.itemsize
        grid = (r.residues, r.count) if r.kind == "plain" else (r.count,)
        self.fused[r.kind, r.length].launch(kernel, grid, (r.length // 16,), args, shared_mem=shared, stream=stream)

    def _forward(
        self, k: int, r: Run, p: Piece, x: Any, w: Any, buffer: Any, modes: Any, part: int, stream: Any
    ) -> None:  # fmt: skip
        npix, kind, rows = np.int64(p.npix_read), ints(self.rings, r.first, self.spec.spin, part), p.before
        if r.kind == "plain":
            self._fused(
                "forward_plain", r, (x, w, rows, self.turns[r.length], self.phases[k], modes, npix, *kind),
                stream,
            )  # fmt: skip
            return
        if r.kind == "grid":
            self._fused(
                "forward_grid", r,
                (x, w, rows, self.turns[r.length], self.factors[r.length], modes, npix, *kind, self.struct),
                stream,
            )  # fmt: skip
            return
        z = buffer[: r.count * r.size].reshape(-1, r.length)
        if r.kind == "chirp":
            self._launch(
                "load_chirped", r.length, r.count, (x, w, rows, z, npix, np.int32(r.length), *kind)
            )  # fmt: skip
            self._chirped(r, z, self._spectra[k][r.first - self.runs[k].first :] if self._spectra else None)
        else:
            self._launch("load", r.length, r.count, (x, w, rows, z, npix, *kind))
            self._transform(z)
        wide = 2 * (int(self.most[r.first : r.first + r.count].max()) + 1)
        length = r.length if r.kind == "chirp" else 0
        self._launch("modes", wide, r.count, (z, rows, modes, *ints(length, r.first)))

    def _back(
        self, k: int, r: Run, p: Piece, sums: Any, w: Any, buffer: Any, y: Any, flag: Any, part: int,
        stream: Any,
    ) -> None:  # fmt: skip
        npix, kind, rows = np.int64(p.npix_written), ints(self.rings, r.first, self.spec.spin, part), p.after
        if r.kind == "plain":
            self._fused(
                "back_plain", r,
                (sums, w, rows, self.turns[r.length], self.phases[k], y, flag, npix, *kind), stream,
            )  # fmt: skip
            if r.residues == 2:
                self.fused[r.kind, r.length].launch(
                    "join", (r.length // BLOCK, r.count), (BLOCK,), (w, rows, y, flag, npix, *kind)
                )  # fmt: skip
            return
        if r.kind == "grid":
            self._fused(
                "back_grid", r,
                (sums, w, rows, self.turns[r.length], self.factors[r.length], y, flag, npix, *kind, self.struct),
                stream,
            )  # fmt: skip
            return
        z = buffer[: r.count * r.size].reshape(-1, r.length)
        if r.kind == "batch":
            self._launch("fold", r.length, r.count, (sums, rows, z, np.int32(r.first)))
            self._transform(z)
            self._launch("store", r.length, r.count, (z, w, rows, y, flag, npix, *kind))
            return
        self._launch("fold_chirped", r.size, r.count, (sums, rows, z, *ints(r.length, r.first)))
        self._chirped(r, z, self._spectra[k][r.first - self.runs[k].first :] if self._spectra else None)
        self._launch(
            "store_chirped", -(-r.length // 2), r.count,
            (z, w, rows, y, flag, npix, *ints(r.length, 1), *kind),
        )  # fmt: skip
