"""Checks of arguments: what they return, and what their errors say."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import pytest

from skysieve.core.checks import flag, one_of, real_dtype, thread_count, whole


class Choice(StrEnum):
    ring = "ring"


def test_what_is_accepted():
    assert one_of("method", "ring", ("auto", "ring")) == "ring"
    assert one_of("method", Choice.ring, {"ring": 1}) == "ring"
    assert (flag("x", True), flag("x", np.False_)) == (True, False)
    assert [whole("n", value, 0, 9) for value in (0, 9, np.int8(3), np.uint64(4))] == [0, 9, 3, 4]
    assert all(type(whole("n", value, 0)) is int for value in (7, np.int64(7)))
    assert (thread_count(None), thread_count(np.int32(2))) == (None, 2)
    assert [real_dtype(x) for x in ("float32", np.float64, float, np.dtype("f4"))] == ["f4", "f8", "f8", "f4"]


@pytest.mark.parametrize(
    ("check", "error", "words"),
    [
        (lambda: one_of("method", "fft", ("auto", "ring")), ValueError, "method='fft': expected one of 'auto', 'ring'"),
        (lambda: one_of("method", None, ("auto",)), ValueError, "method=None: expected one of 'auto'"),
        (lambda: one_of("method", ["auto"], ("auto",)), ValueError, "method=['auto']: expected one of 'auto'"),
        (lambda: flag("fit_mean", 1), TypeError, "fit_mean=1: expected True or False"),
        (lambda: flag("fit_mean", "yes"), TypeError, "fit_mean='yes': expected True or False"),
        (lambda: whole("n", 0, 1), ValueError, "n=0: expected a whole number, at least 1"),
        (lambda: whole("n", 2.0, 1), ValueError, "n=2.0: expected a whole number, at least 1"),
        (lambda: whole("n", True, 1), ValueError, "n=True: expected a whole number, at least 1"),
        (lambda: whole("n", "3", 1, 4), ValueError, "n='3': expected a whole number from 1 to 4"),
        (lambda: whole("n", 5, 1, 4), ValueError, "n=5: expected a whole number from 1 to 4"),
        (lambda: thread_count(0), ValueError, "threads=0: expected a whole number, at least 1, or None for all cores"),
        (lambda: thread_count(1.5), TypeError, "threads=1.5: expected a whole number"),
        (lambda: thread_count(True), TypeError, "threads=True: expected a whole number"),
        (lambda: real_dtype("int32"), ValueError, "dtype='int32': expected 'float64' or 'float32'"),
        (lambda: real_dtype("many"), TypeError, "dtype='many': expected 'float64' or 'float32'"),
    ],
)
def test_what_is_refused(check, error, words):
    with pytest.raises(error) as refused:
        check()
    assert type(refused.value) is error
    assert str(refused.value).startswith(words)
