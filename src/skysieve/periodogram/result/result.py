"""Results of searches: powers, peaks, and the status of each object of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from skysieve.core.result import Result
from skysieve.periodogram.contract import Grids, Status
from skysieve.periodogram.lightcurves.units import Units
from skysieve.periodogram.result.peaks import Peaks, _within

if TYPE_CHECKING:
    import os

    from astropy.table import Table
    from matplotlib.figure import Figure

    from .aliases import Aliases
    from .columns import TableName


class FrequencyGrids(Sequence[Any]):
    """The frequencies of each object, computed on access: ``grids[i]`` is an array."""

    def __init__(self, grids: Grids, n_objects: int, units: Units) -> None:
        self._grids, self._n, self._units = grids, n_objects, units

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._n))]
        return self._units.with_frequency(self._grids.frequency(_within(i, self._n)))

    def __repr__(self) -> str:
        return f"<frequencies of {self._n} objects>"


@dataclass(frozen=True, repr=False, eq=False)
class LombScargleResult(Result):
    """Result of `skysieve.lombscargle` for one light curve or for a batch of n.

    Attributes
    ----------
    power : array, Quantity, Ragged or None
        Shape (nf,) for one light curve and (n, nf) for a batch on one grid; for a batch with one grid
        per object a sequence of arrays (with ``.flat`` and ``.offsets``).  None with
        ``return_power=False``.  A CuPy array where CuPy arrays were given.  NaN for failed objects.
    peaks : Peaks
        The ``max(1, n_peaks)`` best peaks.
    status : Status or numpy.ndarray, uint8, shape (n,)
        `Status` of each object; 0 means success.
    n_used, n_dropped : int or numpy.ndarray, shape (n,)
        Numbers of usable rows, and of rows left out because a value was masked or not finite.
    span : float, Quantity or array, shape (n,)
        Time span of the used rows.
    ids : numpy.ndarray or None
        Ids of the objects where an id column was given; row ``i`` belongs to ``ids[i]``.
    method : str or numpy.ndarray of str, shape (n,)
        Method that was run; an array where a batch was searched by more than one.
    device, dtype, normalization : str
        Device, precision and normalisation of the search.
    fit_mean : bool
        Whether the mean was fitted at each frequency.
    nterms : int
        Fourier terms of the fit.
    """

    _more: ClassVar[tuple[str, ...]] = ()
    """Fields that a subclass adds, with JSON values."""

    power: Any
    peaks: Peaks
    status: Any
    n_used: Any
    n_dropped: Any
    span: Any
    ids: Any
    method: Any
    device: str
    dtype: str
    normalization: str
    fit_mean: bool
    grids: Grids = field(metadata={"internal": True})
    units: Units = field(default_factory=Units)
    listed: Any = None
    power_unit: Any = None
    nterms: int = 1

    def __post_init__(self) -> None:
        """Keep a function that makes ``method`` for the first access."""
        if callable(self.method):
            self.__dict__["_method"] = self.__dict__.pop("method")

    def __getattr__(self, name: str) -> Any:
        """Make ``method`` at the first access; other attributes do not exist."""
        if name != "method" or "_method" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.__dict__["method"] = self.__dict__["_method"]()
        return self.__dict__["method"]

    @property
    def single(self) -> bool:
        """Whether this is the result of one light curve rather than of a batch."""
        return self.peaks.index.ndim == 1

    @property
    def frequency(self) -> Any:
        """Frequencies tried, cyclic, in 1/unit(t): shape (nf,), or a sequence of arrays for one grid per object."""
        if self.listed is not None:
            return self.units.with_frequency(self.listed)
        if self.grids.shared:
            return self.units.with_frequency(self.grids.frequency(0))
        return FrequencyGrids(self.grids, len(self), self.units)

    @property
    def period(self) -> Any:
        """Best period, refined: one number, or shape (n,) for a batch (NaN for failed objects)."""
        return self.peaks.period[0] if self.single else self.peaks.period[:, 0]

    @property
    def period_error(self) -> Any:
        """Standard error of the best period: one number, or shape (n,) for a batch; see `Peaks`."""
        return self.peaks.period_error[0] if self.single else self.peaks.period_error[:, 0]

    @property
    def best_frequency(self) -> Any:
        """Frequency of the highest peak, refined."""
        return self.peaks.frequency[0] if self.single else self.peaks.frequency[:, 0]

    @property
    def best_power(self) -> Any:
        """Power of the highest peak, refined."""
        return self.peaks.power[0] if self.single else self.peaks.power[:, 0]

    @property
    def ok(self) -> Any:
        """Whether the search succeeded: bool, or shape (n,) for a batch."""
        return self.status == Status.OK

    def __len__(self) -> int:
        if self.single:
            raise TypeError("the result of one light curve has no length")
        return int(self.peaks.index.shape[0])

    def __iter__(self) -> Iterator[LombScargleResult]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> LombScargleResult:
        """Result of object ``i`` of a batch alone; views, no copies."""
        i = _within(i, len(self))
        grids = self.grids
        if not grids.shared:
            grids = Grids(grids.f0[i : i + 1], grids.df[i : i + 1], grids.nf[i : i + 1], shared=True)
        return LombScargleResult(
            power=None if self.power is None else self.power[i],
            peaks=self.peaks[i],
            status=Status(int(self.status[i])),
            n_used=int(self.n_used[i]),
            n_dropped=int(self.n_dropped[i]),
            span=self.span[i],
            ids=None if self.ids is None else self.ids[i],
            method=self.method if isinstance(self.method, str) else str(self.method[i]),
            device=self.device,
            dtype=self.dtype,
            normalization=self.normalization,
            fit_mean=self.fit_mean,
            grids=grids,
            units=self.units,
            listed=self.listed,
            power_unit=self.power_unit,
            nterms=self.nterms,
        )

    def of(self, id: Any) -> LombScargleResult:
        """Result of the object with this id.

        Raises
        ------
        KeyError
            If there is no such object, or no ids were given.
        """
        if self.ids is not None and not self.single:
            for i in np.flatnonzero(np.asarray(self.ids) == id):
                return self[int(i)]
        raise KeyError(id)

    def __repr__(self) -> str:
        where = f"{self.method if isinstance(self.method, str) else 'several methods'} on {self.device}, {self.dtype}"
        if self.single:
            best = (
                f"period {self.period:.8g}, power {self.best_power:.5g}"
                if self.status == Status.OK
                else Status(int(self.status)).text
            )
            n_f = int(self.grids.nf[0]) if self.listed is None else len(self.listed)
            return f"<{type(self).__name__}: {best}; {self.n_used} points, {n_f} frequencies; {where}>"
        bad = int(np.count_nonzero(self.status))
        grid = f"{int(self.grids.nf[0])} frequencies" if self.grids.shared else "one grid per object"
        failed = f" ({bad} without a result)" if bad else ""
        return f"<{type(self).__name__}: {len(self)} objects{failed}, {grid}; {where}>"

    def plot(self, t: Any = None, y: Any = None, dy: Any = None, **options: Any) -> Figure:
        """Draw the periodogram with its peaks, and the folded light curve below it if `t` and `y` are given.

        For a batch, the highest peak of each object is drawn: power against period.

        Parameters
        ----------
        t, y, dy : array_like, optional
            The light curve, to be folded at the best period under the fitted model.
        **options
            See `skysieve.periodogram.result.plot.summary`.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            For the light curves of a batch (draw ``result[i]``), or one object without powers.
        """
        from . import plot

        return plot.summary(self, t, y, dy, **options)

    def aliases(
        self,
        t: Any = None,
        y: Any = None,
        dy: Any = None,
        *,
        offsets: Any = None,
        id: Any = None,
        data: Any = None,
    ) -> Aliases:
        """Which peaks are aliases of one another, because the times follow the day, the lunar month or the year.

        Parameters
        ----------
        t, y, dy, offsets, id, data : optional
            The light curves that were searched, as they were given to `skysieve.lombscargle`.  Times without a
            unit are days.

        Returns
        -------
        Aliases
            Of the shape of ``peaks``.

        Raises
        ------
        ValueError
            If these are not as many light curves as were searched, or `t` has a unit that is not of time.

        Examples
        --------
        >>> import numpy as np, skysieve
        >>> rng = np.random.default_rng(0)
        >>> t = np.sort(rng.integers(0, 60, 200) + 0.3 * rng.random(200))
        >>> y = np.sin(2 * np.pi * 0.31 * t)
        >>> found = skysieve.lombscargle([t, t[:120]], [y, y[:120]], fmin=0.05, fmax=0.9, nf=2000, n_peaks=2)
        >>> found.aliases([t, t[:120]], [y, y[:120]]).text[:, 1].tolist()
        ['1/d - #1', '1/d - #1']
        """
        from skysieve.periodogram.lightcurves.sources import light_curves

        from .aliases import aliases_of

        return aliases_of(self, light_curves(t, y, dy, offsets=offsets, id=id, data=data))

    def to_table(self, what: TableName | None = None) -> Table:
        """The result as an `astropy.table.Table`.

        Parameters
        ----------
        what : {"objects", "peaks", "power"}, optional
            One row per object (default for a batch), per peak (default for one light curve), or per
            frequency.

        Returns
        -------
        astropy.table.Table

        Examples
        --------
        >>> import numpy as np, skysieve
        >>> t = np.linspace(0, 30, 200) ** 1.1
        >>> r = skysieve.lombscargle(t, np.sin(2 * np.pi * t / 3), n_peaks=2)
        >>> r.to_table().colnames
        ['period', 'period_error', 'frequency', 'frequency_error', 'power']
        """
        from . import export

        return export.to_table(self, what)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to ``.npz`` (everything, see `load`), or the table to .csv, .parquet, .fits, .ecsv or .json.

        The file is written under another name in the same folder and renamed when it is complete.

        Raises
        ------
        ValueError
            For a name with another ending.
        """
        from . import export

        export.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a result that `save` wrote to an ``.npz`` file.

        Raises
        ------
        ValueError
            If the file holds something else.
        """
        from . import export

        return export.load(cls, path)
