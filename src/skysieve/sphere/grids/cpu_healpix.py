"""Conversion of NESTED numbers of HEALPix pixels to RING numbers (Gorski et al. 2005, ApJ 622, 759, section 4.1)."""

from __future__ import annotations

from skysieve.core.cpu.jit import njit


@njit(nogil=True, error_model="numpy")
def _even_bits(v):
    """Bits 0, 2, 4, ... of a number, moved together."""
    v &= 0x5555555555555555
    v = (v | (v >> 1)) & 0x3333333333333333
    v = (v | (v >> 2)) & 0x0F0F0F0F0F0F0F0F
    v = (v | (v >> 4)) & 0x00FF00FF00FF00FF
    v = (v | (v >> 8)) & 0x0000FFFF0000FFFF
    return (v | (v >> 16)) & 0x00000000FFFFFFFF


@njit(nogil=True, error_model="numpy")
def ring_numbers(nside, pix, out):
    """Write the RING numbers of the NESTED pixels ``pix`` to ``out``."""
    for i in range(len(pix)):
        face = pix[i] // (nside * nside)
        inside = pix[i] % (nside * nside)
        x, y = _even_bits(inside), _even_bits(inside >> 1)
        ring = (face // 4 + 2) * nside - x - y - 1
        if ring < nside:
            quarter, shift, first = ring, 0, 2 * ring * (ring - 1)
        elif ring > 3 * nside:
            quarter, shift = 4 * nside - ring, 0
            first = 12 * nside * nside - 2 * quarter * (quarter + 1)
        else:
            quarter, shift = nside, (ring - nside) & 1
            first = 2 * nside * (nside - 1) + (ring - nside) * 4 * nside
        # longitude of the southern corner of the base face, in units of pi / 4
        corner = 2 * (face % 4) + (0 if face // 4 == 1 else 1)
        column = (corner * quarter + x - y + 1 + shift) // 2 - 1
        out[i] = first + column % (4 * quarter)
