"""Base classes of objects that are closed, and of the plans of all domains, which are copied by their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

__all__ = ["Closing", "Plan"]


class Closing(ABC):
    """Base of context managers that are closed at their end."""

    @abstractmethod
    def close(self) -> None:
        """Free what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Plan(Closing):
    """Base of the plans: work that is set up once and executed often.

    A plan is a context manager.  Copies (`copy.copy`, `copy.deepcopy`, `pickle`) are new plans, made from the arguments
    of the first one: they share no memory with it, and may be made in another process.  Arguments are not copied when
    the plan is made; do not change arrays that were passed to it.
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Remember the arguments."""
        self = super().__new__(cls)
        self._arguments = args, options
        return self

    @abstractmethod
    def close(self) -> None:
        """Free threads and device memory; the plan cannot be used any more."""

    def __reduce__(self) -> tuple[Any, ...]:
        args, options = self._arguments
        return _rebuild, (type(self), args, options)


def _rebuild(kind: type[Plan], args: tuple[Any, ...], options: dict[str, Any]) -> Plan:
    return kind(*args, **options)
