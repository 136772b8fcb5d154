"""Atoms from lalpulsar's structures."""

from __future__ import annotations

from typing import Any

import numpy as np

from skysieve.fstat.atoms import Atoms

__all__ = ["from_lal"]

FIELDS = ("timestamp", "a2_alpha", "b2_alpha", "ab_alpha", "Fa_alpha", "Fb_alpha")
TYPES = (np.int64, np.float32, np.float32, np.float32, np.complex64, np.complex64)


def from_lal(multi_atoms: Any, detectors: list[str] | None = None) -> list[Atoms]:
    """Atoms from a ``lalpulsar.MultiFstatAtomVector``.

    Parameters
    ----------
    multi_atoms : lalpulsar.MultiFstatAtomVector
        As ``ComputeFstat`` returns it in ``multiFatoms[0]``.
    detectors : list of str, optional
        Names; default ``"D0"``, ``"D1"`` ...

    Returns
    -------
    list of Atoms
        One a detector; copies.

    Raises
    ------
    TypeError
        If it is something else.
    ValueError
        If `detectors` are not as many as it holds.
    """
    if not hasattr(multi_atoms, "data") or not hasattr(multi_atoms, "length"):
        raise TypeError(f"multi_atoms is a {type(multi_atoms).__name__}, expected a lalpulsar MultiFstatAtomVector")
    n = int(multi_atoms.length)
    names = [f"D{i}" for i in range(n)] if detectors is None else list(detectors)
    if len(names) != n:
        raise ValueError(f"detectors={names} names {len(names)}, multi_atoms holds {n}")
    out = []
    for i, name in enumerate(names):
        vector = multi_atoms.data[i]
        atoms = [vector.data[j] for j in range(int(vector.length))]
        columns: list[Any] = [
            np.array([getattr(a, f) for a in atoms], kind) for f, kind in zip(FIELDS, TYPES, strict=True)
        ]
        t, a2, b2, ab, fa, fb = columns
        out.append(Atoms(t, a2, b2, ab, fa, fb, int(vector.TAtom), name))
    return out
