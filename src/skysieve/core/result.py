"""What the results of all domains share: the form that notebooks show."""

from __future__ import annotations

import html
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure

__all__ = ["Result"]

ROWS_SHOWN = 10


class Result(ABC):
    """Base of the results."""

    @abstractmethod
    def to_table(self) -> Table:
        """The result as an astropy table."""

    @abstractmethod
    def plot(self, **options: Any) -> Figure:
        """A figure of the result; needs matplotlib."""

    @abstractmethod
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a file that `load` reads."""

    @classmethod
    @abstractmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a result that `save` wrote."""

    def _repr_html_(self) -> str:
        """The short form and the first rows of the table."""
        rows = self.to_table()
        return f"<p>{html.escape(repr(self))}</p>{rows[:ROWS_SHOWN]._repr_html_()}"
