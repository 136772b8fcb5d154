"""A file as a source of packets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import epoch_of
from skysieve.dedispersion.data.sigproc import pack
from skysieve.dedispersion.stream.receive.packets import POWER, Geometry, chunks_for

from .dada_file import DadaFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


def source_geometry(source: Filterbank | DadaFile, packet_bytes: int) -> Geometry:
    """The packets that a file is sent as."""
    if isinstance(source, DadaFile):
        return source.geometry(packet_bytes)
    o = source.observation
    if source.dtype.kind == "i":
        raise ValueError("signed samples cannot be sent: packets of power hold unsigned numbers or floats")
    bits = o.nbits if source.dtype == np.uint8 and o.nbits < 8 else 8 * source.dtype.itemsize
    if not o.regular:
        raise ValueError("channels that are not evenly spaced cannot be sent")
    if o.nchan * bits % 8:
        raise ValueError(f"a spectrum of {o.nchan} channels of {bits} bits does not end with a byte")
    chunks, nsamp = chunks_for(o.nchan, o.nchan * bits, packet_bytes)
    if (o.nchan // chunks) * bits % 8:
        raise ValueError(f"packet_bytes={packet_bytes}: the parts of a spectrum would not end with a byte")
    return Geometry(
        POWER, bits, 1, min(nsamp, source.nsamp), o.nchan, chunks, epoch_of(o.tstart), o.tsamp, o.top, o.foff
    )  # fmt: skip


def source_steps(
    source: Filterbank | DadaFile, g: Geometry, count: int, repeat: int
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Whole packets of a file as packed samples, ``repeat`` times over (0: for ever), with the first one's number."""
    whole = source.nsamp // g.nsamp * g.nsamp
    done = 0
    while repeat == 0 or done < repeat:
        for start in range(0, whole, count):
            n = min(count, whole - start)
            if isinstance(source, DadaFile):
                yield done * whole + start, source.steps(start, n)
                continue
            rows = np.ascontiguousarray(source.block(start, n).T)
            packed = pack(rows, g.bits).reshape(n, -1) if g.bits < 8 else rows.view(np.uint8).reshape(n, -1)
            yield done * whole + start, packed[:, None]
        done += 1


def opened_source(path: str | os.PathLike[str]) -> Filterbank | DadaFile:
    """A file to send: PSRDADA, or anything that `Filterbank.open` reads."""
    from skysieve.dedispersion.stream.receive.dada_file import is_dada

    return DadaFile(path) if is_dada(path) else Filterbank.open(path)
