"""Compilation of the packet reader, for ``skysieve warm-up``."""

from __future__ import annotations

import json
from collections.abc import Callable

from .packets import Decoder

__all__ = ["USES"]

SOURCE = [
    {"name": name, "type": kind}
    for kind, names in {"long": ["candid", "pid"], "int": ["fid"], "double": ["jd", "magpsf", "sigmapsf"]}.items()
    for name in names
] + [{"name": "isdiffpos", "type": "string"}]
"""Fields of a source of ZTF that are read."""


def packets(device: str) -> None:
    """Read a packet of ZTF that ends at its first byte."""
    source = {"type": "record", "name": "candidate", "fields": SOURCE}
    schema = {
        "type": "record",
        "name": "alert",
        "fields": [
            {"name": "objectId", "type": "string"},
            {"name": "candidate", "type": source},
            {"name": "prv_candidates", "type": {"type": "array", "items": "candidate"}},
        ],
    }
    decoder = Decoder()
    found = decoder.block(decoder.program(json.dumps(schema).encode()), b"\x08", 1)
    assert len(found.bad) == 1


USES: dict[str, Callable[[str], None]] = {"packets": packets}
