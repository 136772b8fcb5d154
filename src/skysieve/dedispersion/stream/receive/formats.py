"""The packet formats that a stream reads, listed once: the command line and the docs take them from `FORMATS`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .packets import Parser, SkysieveParser
from .vdif import VdifParser

__all__ = ["FORMATS", "PacketFormat", "make_parser"]


@dataclass(frozen=True)
class PacketFormat:
    """A packet format.

    Attributes
    ----------
    make : callable
        Returns the parser; takes the options as keyword arguments.
    help : str
    options : mapping
        Keyword arguments of `make` with values that packets do not contain, and the command-line options for them; all
        are required.
    """

    make: Callable[..., Parser]
    help: str
    options: Mapping[str, str]


FORMATS: dict[str, PacketFormat] = {
    "skysieve": PacketFormat(SkysieveParser, "the package's own format, power or voltages", {}),
    "vdif": PacketFormat(
        VdifParser, "VDIF frames of complex voltages",
        {"frames": "--vdif-frames", "threads": "--vdif-threads", "fch1": "--fch1", "foff": "--foff"},
    ),
}  # fmt: skip
"""The formats by name.  A new one needs a parser (see `Parser`), an entry here, and its row in ``docs/streaming.md``.
The command ``stream`` declares the options of all formats, and passes their values to `make_parser`."""


def make_parser(form: str, options: Mapping[str, Any] | None = None) -> Parser:
    """The parser of a packet format.

    Parameters
    ----------
    form : str
        A name of `FORMATS`, or ``MODULE:NAME`` of a parser elsewhere: an object with the methods of `Parser`, or a
        class that makes one without arguments.
    options : mapping, optional
        Values of the format's options, None for an option that is not given; options of other formats are ignored.

    Raises
    ------
    ValueError
        The format is not known, an option is missing, or the object is not a parser.

    Examples
    --------
    >>> make_parser("vdif", {"frames": 1000, "threads": 1, "fch1": 1400.0, "foff": 1.0}).name
    'vdif'
    """
    if form in FORMATS:
        known = FORMATS[form]
        given = {name: (options or {}).get(name) for name in known.options}
        missing = [known.options[name] for name, value in given.items() if value is None]
        if missing:
            raise ValueError(f"packet format {form} needs {', '.join(missing)}, which its packets do not contain")
        return known.make(**given)
    module, colon, name = form.partition(":")
    if not colon:
        raise ValueError(f"packet format {form}: expected {', '.join(FORMATS)}, or MODULE:NAME of a parser")
    found = getattr(importlib.import_module(module), name, None)
    made: Any = found() if isinstance(found, type) else found
    if not (hasattr(made, "parse") and hasattr(made, "geometry")):
        raise ValueError(f"packet format {form}: the object has no methods parse and geometry")
    parser: Parser = made
    return parser
