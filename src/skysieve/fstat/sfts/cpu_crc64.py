"""The checksum of SFT files, compiled."""

from __future__ import annotations

import numba
import numpy as np

from skysieve.core.cpu.jit import njit

__all__ = ["crc64"]

POLYNOMIAL = 0xD800000000000000


def _tables() -> np.ndarray:
    """Tables of the change of the checksum: table k is for a byte that is followed by k further bytes."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        for byte in range(256):
            before = int(tables[k - 1, byte])
            tables[k, byte] = int(tables[0, before & 0xFF]) ^ (before >> 8)
    return tables


TABLES = _tables()


BYTES = numba.types.Array(numba.uint8, 1, "C", readonly=True)


@njit(numba.uint64(numba.uint64, BYTES, numba.uint64[:, ::1]))
def _advance(crc, data, tables):
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        word = np.uint64(0)
        for k in range(8):
            word |= np.uint64(data[i + k]) << np.uint64(8 * k)
        crc ^= word
        word = crc
        crc = np.uint64(0)
        for k in range(8):
            crc ^= tables[7 - k, (word >> np.uint64(8 * k)) & np.uint64(0xFF)]
    for i in range(whole, len(data)):
        crc = tables[0, (crc ^ np.uint64(data[i])) & np.uint64(0xFF)] ^ (crc >> np.uint64(8))
    return crc


def crc64(*parts: np.ndarray | bytes) -> int:
    """CRC-64 of the concatenated parts: reflected polynomial 0xd8..., from all ones, not inverted at the end."""
    crc = np.uint64(0xFFFFFFFFFFFFFFFF)
    for part in parts:
        data = (
            np.frombuffer(part, np.uint8)
            if isinstance(part, bytes)
            else np.ascontiguousarray(part).view(np.uint8).ravel()
        )
        crc = _advance(crc, data, TABLES)
    return int(crc)
