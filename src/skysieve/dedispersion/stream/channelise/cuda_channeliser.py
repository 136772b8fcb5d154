"""Channelise on a GPU: packets are copied to it as received; voltages, power and bytes stay on it.

Two lanes take turns, so that the packets of one gulp are copied while the gulp before it is processed.  The results
have the bits of `Channeliser`; the first rows, from which the level of bytes is measured, pass through the host.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime
from skysieve.core.gpu.staging import Lane, make_lane
from skysieve.dedispersion.stream.receive.packets import Geometry
from skysieve.dedispersion.stream.receive.ring import Loan, bands

from .channeliser import MIDDLE, Channeliser

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE = "skysieve.dedispersion.stream.channelise"
THREADS, MOST_PASSES = 256, 24
ELEMENTS = 2048
"""Values of transforms that a block of threads processes at a time, if the transforms are short."""
MOST_TILE = 64
SCRATCH = 2**28
"""Bytes of device memory for transforms that do not fit shared memory."""
PACKETS = np.dtype([
    ("nsamp", np.int32), ("pols", np.int32), ("chunks", np.int32), ("nchan", np.int32), ("total", np.int32),
    ("all", np.int32), ("bits", np.int32), ("by_pol", np.int32), ("offset", np.int32), ("low", np.int32),
    ("each", np.int32), ("count", np.uint32),
], align=True)  # fmt: skip
"""``struct Packets`` of ``channelise.cu``."""
SHAPE = np.dtype([
    ("spectra", np.int64), ("N", np.int32), ("taps", np.int32), ("integrate", np.int32), ("pols", np.int32),
    ("pick", np.int32), ("nsub", np.int32), ("lp", np.int32), ("lt", np.int32), ("lr", np.int32),
    ("rising", np.int32), ("bytes", np.int32), ("passes", np.int32), ("middle", np.float32),
    ("radix", np.int32, MOST_PASSES),
], align=True)  # fmt: skip
"""``struct Shape``."""


@dataclass
class _Pending:
    """A gulp whose work has been started."""

    lane: Lane
    loan: Loan
    begun: int
    count: int
    rows: Any
    missing: NDArray[np.int64]


class DeviceChanneliser:
    """A `Channeliser` on a GPU, which takes packets.

    Parameters
    ----------
    channeliser : Channeliser
        The settings; it also counts rows and measures the level of bytes.
    geometry : Geometry
        Of packets with voltages.
    runtime : Runtime
    gulp : int
        Most voltages (in time) of a gulp.
    budget : int
        Most bytes of device memory.

    Raises
    ------
    MemoryBudgetError
        It would need more than `budget`.
    """

    def __init__(
        self, channeliser: Channeliser, geometry: Geometry, runtime: Runtime, gulp: int, budget: int = 2**62
    ) -> None:
        c, g = channeliser, geometry
        self.channeliser, self.geometry, self.runtime, self.gulp = c, g, runtime, gulp
        self.module = runtime.module(PACKAGE, "channelise.cu", "f32" if g.bits == 32 else "i8")
        self.value = np.dtype(np.float32 if g.bits == 32 else np.int8)
        self.line = g.all_pols * g.total
        self._shape, self.columns, self.shared = self._layout()
        packets = -(-gulp // g.nsamp) + 2
        self.sizes = {
            "raw": packets * g.chunks * g.packet_bytes, "received": packets * g.chunks,
            "voltages": 2 * self.value.itemsize * self.line * (gulp + (c.taps + c.integrate) * c.channels),
            "rows": 4 * c.nchan * (gulp // (c.channels * c.integrate) + 2),
        }  # fmt: skip
        need = 2 * sum(self.sizes.values()) + (0 if self.shared else SCRATCH)
        if need > budget:
            raise MemoryBudgetError(f"gulps of {gulp} times of {g.total} subbands on {runtime.device}", need, budget)
        self.lanes = [make_lane(runtime) for _ in range(2)]
        for lane in self.lanes:
            with lane:
                for name, size in self.sizes.items():
                    lane.reserve(name, size)
                lane.pinned("received", self.sizes["received"], np.uint8)
        with self.lanes[0]:
            xp = runtime.xp
            cells = np.empty((c.nchan, 2), np.int32)
            k, s = np.indices(c.place.shape)
            cells[c.place.ravel()] = np.stack([k.ravel(), s.ravel()], axis=1)
            self._tables = [xp.asarray(a) for a in (c.filter.ravel(), c.turns.ravel(), cells.ravel())]
            self._levels: list[Any] = [None, None]
        runtime.synchronize()
        self._held = self._turn = 0
        self._last: Any = None
        self._waiting: deque[_Pending] = deque()

    def _layout(self) -> tuple[Any, int, int]:
        """The kernel's settings, the columns of a block, and bytes of shared memory (0 if device memory is used)."""
        c, g = self.channeliser, self.geometry
        shape = np.zeros(1, SHAPE)
        pols = 1 if c.pick is not None else g.all_pols
        lp = (pols - 1).bit_length()

        def bytes_of(lt: int, lr: int) -> int:
            return c.channels * ((16 << (lp + lt + lr)) + (4 << (lt + lr)))

        most = self.runtime.device.shared_per_block - 1024
        wanted = bytes_of(0, 0) * max(1, ELEMENTS // (c.channels << lp))
        lt = lr = 0
        while (1 << lt) < min(c.nsub, MOST_TILE) and bytes_of(lt + 1, 0) <= wanted:
            lt += 1
        while lr < 6 and bytes_of(lt, lr + 1) <= wanted:
            lr += 1
        fits = bytes_of(lt, lr) <= most
        shape["N"], shape["taps"], shape["integrate"] = c.channels, c.taps, c.integrate
        shape["pols"], shape["pick"], shape["nsub"] = g.all_pols, -1 if c.pick is None else c.pick, c.nsub
        shape["lp"], shape["lt"], shape["lr"] = lp, lt, lr
        shape["rising"], shape["passes"], shape["middle"] = c.rising, len(c.passes), MIDDLE
        shape["radix"][0, : len(c.passes)] = c.passes
        return shape, 1 << (lp + lt + lr), bytes_of(lt, lr) if fits else 0

    # ------------------------------------------------------------------ in
    def begin(self, loan: Loan) -> None:
        """Start to channelise the next voltages; `end` returns the result.

        At most two gulps may be started and not ended.
        """
        if loan.count > self.gulp:
            raise ValueError(f"{loan.count} voltages: expected at most {self.gulp}")
        if len(self._waiting) == len(self.lanes):
            raise ValueError("two gulps are started already: end one first")
        c = self.channeliser
        held = self._held
        skip, n, begun = c.advance(loan.start, loan.count, held, bands(self.geometry, loan.missing))
        lane, last = self.lanes[self._turn % 2], self.lanes[1 - self._turn % 2]
        self._turn += 1
        with lane:
            raw, received = self._send(lane, loan)
            lane.after(last)  # the rest of the voltages before lies in its memory
            voltages = lane.array("voltages", (held + loan.count) * 2 * self.line, self.value)
            if held:
                self.runtime.xp.copyto(voltages[: held * 2 * self.line], self._last)
            self._unpack(loan, raw, received, voltages[held * 2 * self.line :], lane)
            first = skip * 2 * self.line
            rows = self._channelise(lane, voltages[first:], n) if n else None
            done = skip + n * c.channels * c.integrate
            self._held = held + loan.count - done
            self._last = voltages[done * 2 * self.line : (held + loan.count) * 2 * self.line]
        rects = c.missing_rows(begun, n) if n else np.empty((0, 4), np.int64)
        self._waiting.append(_Pending(lane, loan, begun, n, rows, rects))

    def end(self) -> tuple[Loan, tuple[int, Any, NDArray[np.int64]] | None]:
        """Wait for the oldest gulp that was started.

        Returns
        -------
        loan, part
            The loan, which must be given back; what `Channeliser.feed` returns.  Once the level is known, the rows are
            bytes on the device, valid until the second `begin` after this.
        """
        work, c = self._waiting.popleft(), self.channeliser
        work.lane.synchronize()
        if work.rows is None:
            return work.loan, None
        if work.rows.dtype == np.uint8:
            return work.loan, (work.begun, work.rows.reshape(work.count, c.nchan), work.missing)
        on_host = np.empty((work.count, c.nchan), np.float32)
        with work.lane:
            pinned = work.lane.pinned("rows", on_host.size, np.float32)
            work.lane.to_host(pinned, work.rows)
            work.lane.synchronize()
        on_host.ravel()[:] = pinned
        part = c.emit(work.begun, on_host, work.missing)
        if c.level is not None and self._levels[0] is None:  # gulps that were started before also pass here
            with work.lane:
                self._levels = [self.runtime.xp.asarray(a) for a in (c.level, c.scale)]
            work.lane.synchronize()
        return work.loan, part

    @property
    def waiting(self) -> int:
        """Gulps that were started and not ended."""
        return len(self._waiting)

    def close(self) -> None:
        """Free the device memory."""
        for lane in self.lanes:
            lane.free()
        self._waiting.clear()
        self._tables.clear()
        self._levels = [None, None]
        self._last = None

    # ------------------------------------------------------------------ kernels
    def _send(self, lane: Lane, loan: Loan) -> tuple[Any, Any]:
        """Start to copy packets, and which of them arrived."""
        size = sum(p.nbytes for p in loan.pieces)
        raw, at = lane.array("raw", max(1, size), np.uint8), 0
        for piece in loan.pieces:
            if piece.nbytes:
                lane.to_device(raw[at : at + piece.nbytes], piece.reshape(-1))
                at += piece.nbytes
        pinned = lane.pinned("received", loan.received.size, np.uint8)  # its last copy has ended
        pinned[:] = loan.received.ravel()
        received = lane.array("received", loan.received.size, np.uint8)
        lane.to_device(received, pinned)
        return raw, received

    def _unpack(self, loan: Loan, raw: Any, received: Any, to: Any, lane: Lane) -> None:
        g = self.geometry
        count = loan.count * self.line
        p = np.zeros(1, PACKETS)
        p["nsamp"], p["pols"], p["chunks"], p["nchan"], p["total"] = g.nsamp, g.pols, g.chunks, g.nchan, g.total
        p["all"], p["bits"], p["by_pol"], p["offset"] = g.all_pols, g.bits, g.by_pol, g.offset_binary
        p["low"], p["count"] = loan.start - loan.first, count
        p["each"] = each = 4 if g.nchan % 4 == 0 else 1
        self.module.launch(
            "unpack", (-(-count // (THREADS * each)),), (THREADS,), (raw, received, to, p[0]), stream=lane.stream
        )

    def _channelise(self, lane: Lane, voltages: Any, n: int) -> Any:
        c, s = self.channeliser, self._shape.copy()
        real = c.nbits == 32 or self._levels[0] is None
        kind = np.dtype(np.float32 if real else np.uint8)  # powers until the levels are known, then bytes
        rows = lane.array("rows", n * c.nchan * kind.itemsize, np.uint8).view(kind)
        s["spectra"], s["bytes"] = n, not real
        tile, together = 1 << int(s["lt"][0]), 1 << int(s["lr"][0])
        blocks = -(-n // together) * -(-c.nsub // tile)
        room = None
        if not self.shared:
            each = 2 * c.channels * self.columns + c.channels * tile * together
            blocks = max(1, min(blocks, SCRATCH // (8 * each)))
            room = lane.array("scratch", 2 * blocks * each, np.float32)
        args = (voltages, *self._tables, *self._levels, room, rows, s[0])
        self.module.launch("channelise", (blocks,), (THREADS,), args, shared_mem=self.shared, stream=lane.stream)
        return rows
