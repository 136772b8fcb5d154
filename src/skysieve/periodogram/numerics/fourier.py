"""The columns of Fourier models of one or several bands, and their normal equations in terms of sums.

The model of a light curve is a sum of columns: a constant, and cos and sin of 2 pi k f t for k = 1, 2, ...; a column
belongs to the *base* (all rows) or to one band (zero in the others).  Entries of the normal matrix are sums of
products of two columns, which are sums of w cos and w sin at the sum and the difference of their harmonics:

    cos a cos b = (cos(a - b) + cos(a + b)) / 2,    sin a sin b = (cos(a - b) - cos(a + b)) / 2,
    sin a cos b = (sin(a + b) + sin(a - b)) / 2

(Palmer 2009, ApJ 695, 496, eqs. 8-11; VanderPlas & Ivezic 2015, ApJ 812, 18, eqs. 12-17 for several bands).  So
``channels`` of sums over rows are enough: w at m f for m up to twice the number of terms, w y at k f.  Columns are
ordered bands first, so that the lower triangle is an envelope: row i begins at column ``first[i]``.

Pure NumPy on small arrays; both backends read these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_TERMS = 32
"""Largest number of terms of a series, with 65 columns and sums up to 64 f; few light curves have the points for it."""
ALL = -1
"""Band number of the columns and channels of all rows."""


@dataclass(frozen=True)
class Model:
    """Columns of the fit.

    ``terms`` and ``constant`` are those of the base, ``band_terms`` and ``band_constant`` those of each of
    ``n_bands`` bands.  ``penalty`` and ``band_penalty`` are added to the diagonal of the normal matrix, as fractions of
    its trace.  If ``free_terms`` is not 0, the base's constant and its first ``free_terms`` terms have no penalty.
    """

    terms: int
    constant: bool = False
    n_bands: int = 1
    band_terms: int = 0
    band_constant: bool = True
    penalty: float = 0.0
    band_penalty: float = 0.0
    free_terms: int = 0

    @classmethod
    def single(cls, nterms: int, fit_mean: bool) -> Model:
        """One band, as ``lombscargle(nterms=...)`` fits it."""
        return cls(nterms, band_constant=fit_mean)

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.constant + 2 * self.terms + self.n_bands * (self.band_constant + 2 * self.band_terms)

    @property
    def free_columns(self) -> int:
        """Columns of the base without a penalty: its first."""
        return self.constant + 2 * self.free_terms if self.free_terms else 0

    @property
    def regularised(self) -> bool:
        """Whether anything is added to the diagonal."""
        return self.penalty > 0 or self.band_penalty > 0


@dataclass(frozen=True)
class Tables:
    """Arrays with which a kernel computes the power from the sums.

    Attributes
    ----------
    channel : int64, shape (n_channels, 3)
        Harmonic m, band (or ``ALL``), and whether the strengths are w y rather than w.
    derived : int64, shape (n_derived, 2)
        Further sums: those of ``count`` channels, ``stride`` apart, from ``first`` on, as (first, stride).
    source : int64, shape (n_entries, 2)
        For each entry of the envelope (rows one after another, the last row is the right-hand side), the indices of two
        real values.  Value 2 c is the cosine sum of channel (or derived sum) c, 2 c + 1 its sine sum; behind them stand
        the sums of weights of each band, of all rows, and a zero.
    factor : float64, shape (n_entries, 2)
        Factors of the two values.
    first, row : int64, shape (columns + 1,)
        First column of each row of the envelope, and the number of its first entry.
    penalty : float64, shape (columns,)
        Added to the diagonal, in parts of the trace.
    """

    channel: NDArray[np.int64]
    derived: NDArray[np.int64]
    source: NDArray[np.int64]
    factor: NDArray[np.float64]
    first: NDArray[np.int64]
    row: NDArray[np.int64]
    penalty: NDArray[np.float64]
    n_bands: int

    @property
    def n_sums(self) -> int:
        """Complex sums, derived ones included."""
        return len(self.channel) + len(self.derived)

    @property
    def n_values(self) -> int:
        """Real values that entries are made of."""
        return 2 * self.n_sums + self.n_bands + 2

    @property
    def highest(self) -> int:
        """Highest harmonic of a channel."""
        return int(self.channel[:, 0].max(initial=0))


Column = tuple[int, int, bool]
"""Band, harmonic, whether it is the sine."""


def columns_of(model: Model) -> list[Column]:
    """The columns in the order of the matrix: band after band, then the base."""

    def block(band: int, constant: bool, terms: int) -> list[Column]:
        return [(band, 0, False)] * constant + [(band, k, odd) for k in range(1, terms + 1) for odd in (False, True)]

    bands = [c for b in range(model.n_bands) for c in block(b, model.band_constant, model.band_terms)]
    return bands + block(ALL, model.constant, model.terms)


@lru_cache(maxsize=32)
def tables(model: Model) -> Tables:
    """Channels and entries of a model."""
    columns = columns_of(model)
    bands = model.n_bands
    highest = {False: 2 * model.terms, True: model.terms}  # of w and of w y, of all rows
    each = {False: 2 * model.band_terms, True: model.band_terms}
    if model.terms and (model.band_constant or model.band_terms):
        each[False] = max(each[False], model.band_terms + model.terms)
    channel: list[tuple[int, int, int]] = []
    derived: list[tuple[int, int]] = []
    place: dict[tuple[int, int, bool], int] = {}
    for odd in (False, True):
        for b in range(bands):
            for m in range(1, each[odd] + 1):
                place[b, m, odd] = len(channel)
                channel.append((m, b, int(odd)))
        for m in range(each[odd] + 1, highest[odd] + 1):
            place[ALL, m, odd] = len(channel)
            channel.append((m, ALL, int(odd)))
    for odd in (False, True):
        # one term has no difference of harmonics but 0, and its sum, 2, may be a channel
        wanted = odd or model.terms > 1 or model.constant or each[odd] > 1
        for m in range(1, min(each[odd], highest[odd]) * wanted + 1):
            place[ALL, m, odd] = place[0, m, odd] if bands == 1 else len(channel) + len(derived)
            if bands > 1:
                derived.append((place[0, m, odd], each[odd]))
    weight = 2 * (len(channel) + len(derived))  # value of the first band's weights

    def value(band: int, m: int, sine: bool) -> int:
        if m == 0:
            return weight + bands + 1 if sine else weight + (bands if band == ALL else band)
        return 2 * place[band, m, False] + sine

    source: list[tuple[int, int]] = []
    factor: list[tuple[float, float]] = []
    first, row = [], []
    start = 0
    for i, (band, k, odd) in enumerate(columns):
        if i and columns[i][0] != columns[i - 1][0]:
            start = 0 if band == ALL else i
        first.append(start)
        row.append(len(source))
        for other, j, also in columns[start : i + 1]:
            shared = band if other == ALL else other
            low, sign = abs(k - j), 1.0 if k >= j else -1.0
            if odd == also:
                source.append((value(shared, low, False), value(shared, k + j, False)))
                factor.append((0.5, -0.5 if odd else 0.5))
            else:  # the sine sum at k - j counts with the sign of (harmonic of the sine) - (that of the cosine)
                source.append((value(shared, k + j, True), value(shared, low, True)))
                factor.append((0.5, 0.5 * sign if odd else -0.5 * sign))
    first.append(0)
    row.append(len(source))
    zero = weight + bands + 1
    for band, k, odd in columns:
        source.append((2 * place[band, k, True] + odd if k else zero, zero))
        factor.append((1.0, 0.0))
    base = model.columns - model.constant - 2 * model.terms  # where its columns begin
    free = range(base, base + model.free_columns)
    penalty = [
        0.0 if i in free else model.penalty if c[0] == ALL else model.band_penalty for i, c in enumerate(columns)
    ]
    return Tables(
        np.array(channel, np.int64).reshape(-1, 3),
        np.array(derived, np.int64).reshape(-1, 2),
        np.array(source, np.int64).reshape(-1, 2),
        np.array(factor, np.float64).reshape(-1, 2),
        np.array(first, np.int64),
        np.array(row, np.int64),
        np.array(penalty, np.float64),
        bands,
    )
