"""Frequency grids: those of astropy's rule, those of the user, and refused ones."""

from __future__ import annotations

import numpy as np
import pytest
from astropy.timeseries import LombScargle
from hypothesis import given
from hypothesis import strategies as st

from skysieve.periodogram.numerics.grid import (
    MAX_FREQUENCIES,
    FrequencyArray,
    autofrequency,
    check_count,
    grid_warnings,
    make_rule,
    nothing_to_warn_of,
    refusal,
)

NONE = np.empty(0), np.empty(0, np.int64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"samples_per_peak": 10},
        {"nyquist_factor": 2.5},
        {"fmin": 0.05},
        {"fmax": 3.0},
        {"fmin": 0.3, "fmax": 0.9, "samples_per_peak": 7},
    ],
)
def test_rule_is_that_of_astropy(options):
    rng = np.random.default_rng(3)
    for n in (5, 40, 333):
        t = rng.uniform(0, 77.7, n)
        names = {"fmin": "minimum_frequency", "fmax": "maximum_frequency"}
        expected = LombScargle(t, t).autofrequency(**{names.get(k, k): v for k, v in options.items()})
        f0, df, count = autofrequency([np.ptp(t)], [n], **options)
        assert count[0] == len(expected)
        # f0 + j df and astropy's expression differ by rounding alone: two operations of at most half an ulp each.
        np.testing.assert_allclose(f0 + df * np.arange(int(count[0])), expected, rtol=4e-16)


def test_rule_holds_for_many_objects_at_once():
    span, n = np.array([10.0, 200.0, 0.0, np.nan, 33.0]), np.array([50, 7, 12, 0, 400])
    together = autofrequency(span, n, fmin=0.02)
    for i in range(5):
        alone = autofrequency(span[i : i + 1], n[i : i + 1], fmin=0.02)
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_array_equal(a[i : i + 1], b)
    assert list(together[2][2:4]) == [0, 0]
    assert np.isnan(together[0][2:4]).all()


def test_both_ends_are_in_the_grid():
    grids = make_rule(fmin=0.16, fmax=24.0, nf=28_608).build(*NONE, shared=True)
    frequency = grids.frequency()
    assert (len(frequency), frequency[0]) == (28_608, 0.16)
    assert frequency[-1] == pytest.approx(24.0, rel=1e-15)
    assert grids.shared
    assert grids.values is None


def test_nf_with_one_end_takes_the_other_from_the_rule():
    span, n = np.array([10.0, 20.0]), np.array([100, 100])
    grids = make_rule(fmin=0.1, nf=11).build(span, n, shared=False)
    np.testing.assert_allclose(grids.f0 + grids.df * 10, 5 * n / (2 * span))
    assert list(grids.nf) == [11, 11]


def test_shared_grid_of_a_batch_fits_its_longest_span_and_median_rate():
    span, n = np.array([10.0, 100.0, np.nan, 0.001]), np.array([100, 100, 0, 4])
    grids = make_rule().build(span, n, shared=True)
    assert grids.df[0] == pytest.approx(1 / 500)
    assert grids.f0[0] + grids.df[0] * (grids.nf[0] - 1) == pytest.approx(5 * 10 / 2, rel=1e-3)


def test_objects_without_a_grid_get_no_frequency_and_leave_the_others_alone():
    rule = make_rule(fmin=2.0)
    grids = rule.build(np.array([10.0, 1000.0, np.nan]), np.array([100, 100, 0]), shared=False)
    assert grids.nf[0] > 0
    assert list(grids.nf[1:]) == [0, 0]  # nyquist 0.25 is under fmin; no span
    assert "fmin = 2" in refusal(rule, 1000.0, 100)
    assert "N = 100" in refusal(rule, 1000.0, 100)


@given(
    f0=st.floats(1e-4, 10),
    df=st.floats(1e-7, 1.0),
    n=st.integers(2, 3000),
    kind=st.sampled_from(["arange", "linspace", "cumulative-free"]),
)
def test_evenly_spaced_frequencies_are_recognised(f0, df, n, kind):
    if kind == "linspace":
        frequency = np.linspace(f0, f0 + df * (n - 1), n)
    elif kind == "arange":
        frequency = f0 + df * np.arange(n)
    else:
        frequency = np.arange(n) * df + f0
    array = FrequencyArray.of(frequency)
    if array.rising.size < n:  # the step is under the spacing of the numbers
        return
    assert array.is_regular(span=1e5)


@given(
    n=st.integers(3, 200),
    j=st.integers(1, 198),
    size=st.floats(1e-9, 1e-3),
    span=st.floats(1.0, 5000.0),
)
def test_uneven_frequencies_are_recognised_by_the_phase_they_move(n, j, size, span):
    frequency = np.linspace(0.1, 0.1 + 0.01 * n, n) + 0.0
    j = 1 + j % (n - 2)
    frequency[j] += size
    array = FrequencyArray.of(frequency)
    assert array.is_regular(span) == (array.deviation * span < 1e-10)
    assert array.deviation == pytest.approx(size, rel=1e-5, abs=1e-14)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50))
def test_listed_frequencies_keep_their_order(frequency):
    array = FrequencyArray.of(frequency)
    assert np.all(np.diff(array.rising) > 0)
    if array.position is None:
        assert array.rising.tolist() == frequency
    else:
        assert array.rising[array.position].tolist() == frequency
        assert array.listed[array.first].tolist() == array.rising.tolist()


def test_evenly_spaced_array_becomes_a_regular_grid_and_others_a_list():
    even = make_rule(frequency=np.linspace(0.1, 1, 50)).build(*NONE, shared=True)
    assert even.values is None
    assert even.df[0] == pytest.approx(0.9 / 49)
    odd = make_rule(frequency=1 / np.linspace(1, 10, 50))
    assert odd.needs_spans
    grids = odd.build(np.array([30.0]), np.array([9]), shared=True)
    np.testing.assert_array_equal(grids.values, np.sort(1 / np.linspace(1, 10, 50)))
    one = make_rule(frequency=[0.5]).build(*NONE, shared=True)
    np.testing.assert_array_equal(one.frequency(), [0.5])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fmin": 0.0}, r"fmin=0; a positive"),
        ({"fmin": -1}, r"fmin=-1; a positive"),
        ({"fmax": np.nan}, r"fmax=nan"),
        ({"fmax": np.inf}, r"fmax=inf"),
        ({"fmin": 2, "fmax": 1}, r"fmin=2 must be below fmax=1"),
        ({"fmin": 2, "fmax": 2}, r"fmin=2 must be below fmax=2"),
        ({"nf": 1}, r"nf=1; .*at least 2"),
        ({"nf": 0}, r"nf=0"),
        ({"nf": -5}, r"nf=-5"),
        ({"nf": 10.5}, r"nf=10.5: expected a whole number"),
        ({"nf": True}, r"nf=True: expected a whole number"),
        ({"nf": "many"}, r"nf='many': expected a whole number"),
        ({"nf": np.inf}, r"nf=inf: expected a whole number"),
        ({"nf": 10**12, "fmin": 0.1, "fmax": 1.0}, r"1e\+12 frequencies.*7\.3 TiB"),
        ({"samples_per_peak": 0}, r"samples_per_peak=0"),
        ({"nyquist_factor": -2}, r"nyquist_factor=-2"),
        ({"layout": "mine"}, r"grid='mine': expected one of 'auto', 'shared', 'per-object'"),
        ({"frequency": [0.1, 0.0]}, r"frequency\[1\] = 0\.0; every frequency must be positive"),
        ({"frequency": [0.1, np.nan]}, r"frequency\[1\] = nan"),
        ({"frequency": []}, r"frequency has shape \(0,\)"),
        ({"frequency": np.ones((2, 2))}, r"frequency has shape \(2, 2\)"),
        ({"frequency": [1.0], "fmin": 0.1, "nf": 5}, r"frequency and fmin, nf are both given"),
        ({"frequency": [1.0], "layout": "per-object"}, r"grid='per-object' needs a rule"),
        ({"fmin": 1, "fmax": 2, "nf": 5, "layout": "per-object"}, r"leave one out"),
    ],
)
def test_what_cannot_be_a_grid_is_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        make_rule(**options)


@pytest.mark.parametrize("options", [{"fmin": "low"}, {"fmax": [1, 2]}, {"frequency": ["a"]}, {"frequency": [1j]}])
def test_what_is_no_number_is_a_type_error(options):
    with pytest.raises(TypeError, match=f"{next(iter(options))}"):
        make_rule(**options)


def test_a_whole_number_may_come_as_float_or_numpy():
    assert make_rule(nf=10.0).nf == make_rule(nf=np.int32(10)).nf == 10


def test_absurd_grid_from_the_rule_is_refused_alone_and_dropped_in_a_batch():
    span, n = np.array([1e9, 10.0]), np.array([100, 100])
    rule = make_rule(fmin=0.1, fmax=1e4)
    with pytest.raises(ValueError, match=r"5e\+13 frequencies"):
        rule.build(span[:1], n[:1], shared=True)
    grids = rule.build(span, n, shared=False)
    assert grids.nf[0] == 0
    assert 0 < grids.nf[1] < 10**6
    (message, *_) = grid_warnings(rule, grids, span)
    assert "1 of 2 objects are not searched" in message
    assert "5e+13 frequencies" in message
    with pytest.raises(ValueError, match=r"5e\+13 frequencies"):
        rule.build(span[[0, 0]], n, shared=False)
    check_count(MAX_FREQUENCIES)


def test_warning_below_one_cycle_only_where_the_user_asked_for_it():
    span, n = np.array([120.0]), np.array([100])
    rule = make_rule(fmin=24 / 4000, fmax=24.0)  # periods of 1 to 4,000 h in 120 d
    (message,) = grid_warnings(rule, rule.build(span, n, shared=True), span)
    assert "0.006, is under 1/T" in message
    automatic = make_rule()
    assert list(grid_warnings(automatic, automatic.build(span, n, shared=True), span)) == []


def test_warning_of_a_grid_that_steps_over_its_peaks():
    rule = make_rule(fmin=1.0, fmax=10.9, nf=100)
    (message,) = grid_warnings(rule, rule.build(*NONE, shared=True), np.array([50.0, np.nan, 5.0]))
    assert "too coarse for 1 of 2 objects" in message
    assert "is 5," in message
    fine = make_rule(fmin=0.1, fmax=10.0, nf=5000)
    assert list(grid_warnings(fine, fine.build(*NONE, shared=True), np.array([50.0]))) == []
    listed = make_rule(frequency=1 / np.linspace(0.1, 5, 30))
    words = grid_warnings(listed, listed.build(np.array([500.0]), np.array([9]), shared=True), np.array([500.0]))
    assert any("too coarse" in m for m in words)


def test_warnings_of_one_grid_per_object_follow_each_object():
    span, n = np.array([10.0, np.nan, 20.0]), np.array([100, 0, 100])
    rule = make_rule(fmin=0.07, fmax=2.0)
    (message,) = grid_warnings(rule, rule.build(span, n, shared=False), span)
    assert "for 1 of 2 objects" in message


def test_most_grids_have_nothing_to_warn_of():
    """The shortest and the longest span alone show whether any span needs a warning."""
    rng, quiet = np.random.default_rng(3), 0
    for _ in range(300):
        fmin = None if rng.random() < 0.2 else 10 ** rng.uniform(-3, 0)
        rule = make_rule(fmin=fmin, fmax=2.0, nf=int(rng.integers(5, 3000)))
        span = 10 ** rng.uniform(0, 3, 4)
        span[rng.random(4) < 0.05] = np.nan
        grids = rule.build(span, np.full(4, 50), shared=True)
        if nothing_to_warn_of(rule, grids, span):
            quiet += 1
            assert not grid_warnings(rule, grids, span, np.full(4, 50))
        elif np.isfinite(span).all():
            assert grid_warnings(rule, grids, span, np.full(4, 50))
    assert 30 < quiet < 270
