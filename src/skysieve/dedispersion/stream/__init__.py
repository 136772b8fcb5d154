"""Live streams: packets in, candidates out.

``receive`` takes packets from sockets, files and PSRDADA rings and sorts them by time; ``channelise`` turns voltages
into power; ``search`` looks for pulses block by block; ``beams`` joins these stages for one beam; ``intake``
distributes packets to beams; ``report`` writes and sends the candidates; ``pipeline`` runs all stages; ``web`` is the
live page; ``command`` holds the commands, including the emulator of a telescope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.dedispersion.stream.injection import LiveInjector
    from skysieve.dedispersion.stream.search.result import StreamCandidates
    from skysieve.dedispersion.stream.search.search import StreamSearch

__all__ = ["LiveInjector", "StreamCandidates", "StreamSearch"]

_HOMES = {
    "LiveInjector": "skysieve.dedispersion.stream.injection",
    "StreamCandidates": "skysieve.dedispersion.stream.search.result",
    "StreamSearch": "skysieve.dedispersion.stream.search.search",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
