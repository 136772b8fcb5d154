"""The slow, obvious truth: loops and float64; imported by tests alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sums(x: NDArray[Any], delays: NDArray[np.int32], downsamp: int = 1) -> NDArray[Any]:
    """A triple loop: ``y[m][t] = sum_c x[c][t + n(c, m)]`` of samples binned by ``downsamp``, all channels valid.

    Integers of Python: they cannot overflow.
    """
    n = x.shape[1] // downsamp
    wide = x[:, : n * downsamp].astype(np.int64 if x.dtype.kind != "f" else np.float64)
    binned = wide.reshape(len(x), n, downsamp).sum(axis=2)
    valid = n - int(delays.max())
    out = np.zeros((len(delays), valid), binned.dtype)
    for m, row in enumerate(delays):
        for c, shift in enumerate(row):
            out[m] += binned[c, shift : shift + valid]
    return out
