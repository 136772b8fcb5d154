"""A minute of data with everything going wrong; ``make soak`` is the long form."""

from __future__ import annotations

from benchmarks.soak import soak


def test_a_minute_of_trouble(tmp_path):
    """60 s of data, as fast as they are searched: every packet accounted for, candidates those of the masked files."""
    outcome = soak(60.0, None, tmp_path)
    assert outcome.faults == []
    assert outcome.figures["pulses"] >= 15
    assert outcome.figures["equal"] >= outcome.figures["found"]
