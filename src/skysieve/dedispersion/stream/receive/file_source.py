"""Files as a source of packets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import epoch_of
from skysieve.dedispersion.data.sigproc import pack
from skysieve.dedispersion.stream.receive.packets import POWER, Geometry, chunks_for

from .dada_file import DadaFile, is_dada

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .voltages import Voltages


def source_geometry(source: Filterbank | DadaFile | Voltages, packet_bytes: int) -> Geometry:
    """The geometry of the packets in which a file is sent."""
    if not isinstance(source, Filterbank):
        return source.geometry(packet_bytes)
    o = source.observation
    if source.dtype.kind == "i":
        raise ValueError(
            "signed samples cannot be sent: expected unsigned numbers or floats, which packets of power hold"
        )
    bits = o.nbits if source.dtype == np.uint8 and o.nbits < 8 else 8 * source.dtype.itemsize
    if not o.regular:
        raise ValueError("unevenly spaced channels cannot be sent in packets")
    if o.nchan * bits % 8:
        raise ValueError(f"a spectrum of {o.nchan} channels of {bits} bits does not fill whole bytes")
    chunks, nsamp = chunks_for(o.nchan, o.nchan * bits, packet_bytes)
    if (o.nchan // chunks) * bits % 8:
        raise ValueError(f"packet_bytes={packet_bytes}: the parts of a spectrum would not fill whole bytes")
    return Geometry(
        POWER, bits, 1, min(nsamp, source.nsamp), o.nchan, chunks, epoch_of(o.tstart), o.tsamp, o.top, o.foff
    )


def packet_samples(nsamp: int, most: int) -> int:
    """Samples per packet, more than half of ``most``, such that whole packets hold nearly all of ``nsamp`` samples.

    >>> packet_samples(9700, 512), packet_samples(10007, 512), packet_samples(3, 512)
    (485, 435, 3)
    """
    most = min(most, nsamp)
    return min(range(most, most // 2, -1), key=lambda n: nsamp % n)


def packed_samples(source: Filterbank | DadaFile | Voltages, g: Geometry, start: int, count: int) -> NDArray[np.uint8]:
    """Packed samples of a file, shape (samples, polarisations, bytes of a polarisation)."""
    if not isinstance(source, Filterbank):
        return source.steps(start, count)
    rows = np.ascontiguousarray(source.block(start, count).T)
    packed = pack(rows, g.bits).reshape(count, -1) if g.bits < 8 else rows.view(np.uint8).reshape(count, -1)
    return packed[:, None]


def source_steps(
    source: Filterbank | DadaFile | Voltages, g: Geometry, count: int, repeat: int
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Packed samples of whole packets of a file, ``repeat`` times (0: without end), with the number of the first."""
    whole = source.nsamp // g.nsamp * g.nsamp
    done = 0
    while repeat == 0 or done < repeat:
        for start in range(0, whole, count):
            yield done * whole + start, packed_samples(source, g, start, min(count, whole - start))
        done += 1


def open_source(path: str | os.PathLike[str]) -> Filterbank | DadaFile:
    """Open a PSRDADA file, or any file that `Filterbank.open` reads."""
    return DadaFile(path) if is_dada(path) else Filterbank.open(path)
