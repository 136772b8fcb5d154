"""A minute of data with all faults; ``make soak`` is the long form."""

from __future__ import annotations

import pytest
from benchmarks.soak import soak


@pytest.mark.slow
def test_a_minute_of_trouble(tmp_path):
    """60 s of data: every packet is accounted for, and the candidates are those of files with the same losses."""
    outcome = soak(60.0, None, tmp_path)
    assert outcome.faults == []
    assert outcome.figures["pulses"] >= 15
    assert outcome.figures["equal"] >= outcome.figures["found"]
