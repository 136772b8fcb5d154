"""The live pipeline: packets in, candidates out, a file a stage.

``packets`` and ``vdif`` say what a packet is, ``receive`` takes datagrams from a socket, ``ring`` puts them in order of
time, ``channelise`` turns voltages into power, ``search`` looks for pulses block after block, ``sink`` keeps and
announces what is found, ``earlier`` reads what the run before left, ``pipeline`` joins them; ``emulate`` is a
telescope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.dedispersion.stream.search.search import Found, StreamSearch

__all__ = ["Found", "StreamSearch"]

_HOMES = {
    "Found": "skysieve.dedispersion.stream.search.search",
    "StreamSearch": "skysieve.dedispersion.stream.search.search",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
