"""Delays against arithmetic with 50 digits; DM lists and plans against values from the published rules."""

from __future__ import annotations

import json
import warnings
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skysieve.dedispersion import DM_CONSTANT, DMPlan, Filterbank, Observation, dedisperse, plan
from skysieve.dedispersion.data.delays import delay_seconds, reference_frequency, sample_delays, scattering, snr_kept
from skysieve.dedispersion.dm_plan.rules import tolerance_dms

BAND_300 = Observation(308 - np.arange(1024) / 64, 64e-6)
TABLE_1 = [(0, 53.46, 0.03, 1, 0.66), (53.46, 88.26, 0.05, 2, 1.2), (88.26, 150.66, 0.10, 4, 2.4)]


def exact_delay(f, dm, ref, tsamp):
    """The delay, computed with 50 digits."""
    getcontext().prec = 50
    f, dm, ref, tsamp, k = (Decimal(float(v)) for v in (f, dm, ref, tsamp, DM_CONSTANT))
    return k * dm * (1 / f**2 - 1 / ref**2) / tsamp


@settings(max_examples=60, deadline=None)
@given(
    st.floats(50, 5000),
    st.floats(1e-4, 5),
    st.floats(0, 3000),
    st.sampled_from([64e-6, 1e-3]),
    st.integers(2, 64),
)
def test_delays_are_nearest_samples(top, foff, dm, tsamp, nchan):
    freqs = top - foff * np.arange(nchan)
    freqs = freqs[freqs > top / 2]
    found = sample_delays(freqs, np.array([dm]), tsamp)[0]
    for f, n in zip(freqs, found, strict=True):
        exact = exact_delay(f, dm, top, tsamp)
        # derived: a relative error of 8 half-ulps can tip only what lies that close to a half
        assert abs(exact - int(n)) <= Decimal("0.5") + abs(exact) * Decimal("1e-15")


def test_halves_go_to_the_even_sample():
    freqs = np.array([2.0, 1.0]) * 1024
    unit = float(delay_seconds(1024.0, 1.0, 2048.0))
    delays = sample_delays(freqs, np.array([0.5, 1.5, 2.5, 3.5, 1.0]), unit)
    assert delays[:, 1].tolist() == [0, 2, 2, 4, 1]


def test_references():
    freqs = np.array([1500.0, 1400.0, 1300.0])
    n = {
        r: sample_delays(freqs, np.array([300.0]), 1e-4, r)[0] for r in ("top", "centre", "bottom", "infinity", 1450.0)
    }
    assert n["top"][0] == n["centre"][1] == n["bottom"][2] == 0
    assert (n["bottom"] <= 0).all()
    assert n["infinity"][0] == round(DM_CONSTANT * 300 / 1500**2 / 1e-4)
    assert n[1450.0][0] < 0 < n[1450.0][1]
    for bad in ("middle", 0.0, float("nan")):
        with pytest.raises(ValueError, match="ref_freq"):
            reference_frequency(freqs, bad)
    with pytest.raises(ValueError, match=r"expected less than 2\*\*30"):
        sample_delays(freqs, np.array([1e12]), 1e-4)


def test_the_tolerance_rule_on_its_published_vector():
    found = tolerance_dms(0, 14.8, 1.26646875e-3, 40e-6, 1465.0, -1.0, 336, 1.25)
    np.testing.assert_allclose(found, [0, 2.97719, 5.95407, 8.93089, 11.9079, 14.8853], rtol=1e-5)


def test_loss_curve():
    """Values of Cordes & McLaughlin's formula at round arguments."""
    z = np.array([0.0, 0.25, 0.5, 1, 2, 5])
    np.testing.assert_allclose(snr_kept(z, 1.0, 1000.0, 6.91e-6), [1, 0.980, 0.923, 0.747, 0.441, 0.177], atol=6e-4)


def test_ddplan_makes_the_papers_table():
    """Table 1 of the paper: 3102 DMs, 22, 24 and 24 a call (64 us, 32 subbands)."""
    made = plan(BAND_300, 150.66, rule="presto", nsub=32)
    listed = plan(BAND_300, stages=TABLE_1, nsub=32)
    for p in (made, listed):
        assert [(s.step, s.downsamp, len(s.dms), s.per_call) for s in p.stages] == [
            (0.03, 1, 1782, 22), (0.05, 2, 696, 24), (0.1, 4, 624, 24),
        ]  # fmt: skip
        assert p.ndm == 3102
    np.testing.assert_allclose(made.dms, listed.dms, atol=1e-9)
    assert [len(s.dms) // s.per_call for s in listed.stages] == [81, 29, 26]


def test_presto_rules_hold_in_every_stage():
    obs = Observation(1500 - np.arange(512) * 0.5, 64e-6)
    made = plan(obs, 2000, rule="presto", nsub=64, downsamp=(1, 2, 4, 8))
    assert [s.downsamp for s in made.stages] == [1, 2, 4, 8]
    assert made.dms[0] == 0
    assert made.dms[-1] + made.stages[-1].step >= 2000
    gaps = np.diff(made.dms)
    assert (gaps > 0).all()
    assert gaps.max() <= made.stages[-1].step + 1e-9
    for s in made.stages:
        assert len(s.dms) % s.per_call == 0
    coarse = plan(obs, 2000, rule="presto", resolution=1e-3)
    assert coarse.stages[0].downsamp == 8
    assert coarse.ndm < made.ndm


@pytest.mark.parametrize("max_loss", [0.02, 0.1, 0.3])
def test_no_dm_loses_more_than_allowed(max_loss):
    obs = Observation(1500 - np.arange(256) * 1.0, 256e-6)
    made = plan(obs, 800, max_loss=max_loss, width=1e-3)
    trial = np.random.default_rng(0).uniform(0, 800, 2000)
    left = made.snr_kept(trial, 1e-3)
    # derived: the width used for a step is that at its lower end, smaller than anywhere in it
    assert left.min() >= 1 - max_loss - 1e-3
    assert left.min() <= 1 - 0.8 * max_loss
    assert made.stages[0].downsamp < made.stages[-1].downsamp


def test_scattering_limits_the_highest_dm():
    obs = Observation(156 - np.arange(1024) * 0.005941, 165e-6)
    free = plan(obs, 500, step=0.5)
    held = plan(obs, 500, step=0.5, scattering="bhat2004", longest=0.1)
    assert free.notes == ()
    assert held.dms.max() == 143.5  # by hand: tau(143.7) = 10^(-6.46 + 0.332 + 4.98 + 3.146) ms = 100 ms
    assert "dm_max lowered" in held.notes[0]
    assert held.notes[0] in held.summary()
    assert plan(obs, 20, step=0.5, scattering="bhat2004").dms.max() == 20
    wide = plan(obs, 60, scattering="bhat2004", width=1e-3)
    assert wide.ndm < plan(obs, 60, width=1e-3).ndm


@pytest.mark.parametrize("dm_max", [0.1 * 3, np.nextafter(50.0, 51.0), 100.0000000000001])
def test_presto_plans_end_at_a_dm_that_differs_from_a_step_by_rounding(dm_max):
    obs = Observation(308 - np.arange(1024) / 64, 64e-6)
    dms = plan(obs, float(dm_max), rule="presto").dms
    assert np.array_equal(dms, plan(obs, round(float(dm_max), 9), rule="presto").dms)
    one = plan(obs, float(np.nextafter(50.0, 51.0)), dm_min=50.0, rule="presto")
    assert one.dms.tolist() == [50.0]


def test_scattering_does_not_widen_the_steps_at_the_lowest_dms():
    """The parabola of Bhat et al. (2004) in log DM would give 4.9 ms at DM 0.01 and 150 MHz."""
    obs = Observation(160 - np.arange(1024) / 50, 64e-6)
    without, scattered = (plan(obs, 3, width=1e-4, scattering=s) for s in (None, "bhat2004"))
    assert np.allclose(scattered.dms[:50], without.dms[:50], rtol=1e-3)
    assert (np.diff(scattered.dms) > 0).all()
    assert scattering(0.85, 1000.0) < 1.01 * scattering(0.01, 1000.0) < 1e-9


@pytest.mark.parametrize("rule", ["loss", "tolerance"])
def test_a_width_that_is_hardly_in_seconds_is_noted(rule):
    obs = Observation(1500 - 4 * np.arange(64.0), 1e-3)
    with pytest.warns(UserWarning, match=r"width=2 s: .* dm_max=50 is .*is the width in seconds"):
        plan(obs, 50, rule=rule, width=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dm_max, width in ((50, 2e-3), (500_000, 2), (0, 2)):
            plan(obs, dm_max, rule=rule, width=width)


def test_lists_and_steps():
    p = plan(BAND_300, dms=[0, 1, 10.5], downsamp=4)
    assert p.dms.tolist() == [0, 1, 10.5]
    assert p.stages[0].downsamp == 4
    assert plan(BAND_300, 1.0, step=0.1).ndm == 11
    assert plan(BAND_300, 100.0, step=200.0).summary().splitlines()[1].split()[:3] == ["0.000", "0.000", "200"]
    assert plan(BAND_300, 3.0, dm_min=2.0, step=0.3).dms.tolist() == [2.0, 2.3, 2.6, 2.9]


def test_binnings_may_be_numpy_integers():
    assert plan(BAND_300, dms=[0, 1], downsamp=np.int64(4)).stages[0].downsamp == 4
    for listed in ((1, 2), [1]):
        mine, plain = (plan(BAND_300, 50, downsamp=kind(listed)) for kind in (np.array, tuple))
        assert [s.downsamp for s in mine.stages] == [s.downsamp for s in plain.stages]
        np.testing.assert_array_equal(mine.dms, plain.dms)
    fb = Filterbank.from_array(np.arange(800, dtype=np.uint16).reshape(8, 100), fch1=1500, foff=-1, tsamp=1e-3)
    mine, plain = (dedisperse(fb, [0.0, 20.0], downsamp=kind(2), threads=1) for kind in (np.int64, int))
    assert mine.downsamp == 2
    np.testing.assert_array_equal(mine.data, plain.data)


def test_prediction_of_work_and_memory():
    """Equations 3 and 6 to 8 of the paper, by hand."""
    p = plan(BAND_300, stages=TABLE_1, nsub=32)
    n = 100_000
    assert p.adds(n) == 1024 * n * (1782 + 696 / 2 + 624 / 4)
    shift = round(DM_CONSTANT * 150.56 * (float(p.bottom) ** -2 - 308**-2) / 64e-6)
    assert p.maxshift() == shift
    memory = p.memory(n)
    assert memory["input"] == (n + shift) * 1024
    assert memory["binned"] == int((n + shift) * 1024 * 2 * (1 / 2 + 1 / 4))
    assert memory["subbands"] == int((n + shift) * 32 * 4 * (81 + 29 / 2 + 26 / 4))
    assert memory["output"] == int(4 * n * (1782 + 696 / 2 + 624 / 4))


def test_saved_plans_return(tmp_path):
    for p in (plan(BAND_300, stages=TABLE_1, nsub=32), plan(BAND_300, 50), plan(BAND_300, dms=[1 / 3])):
        p.save(tmp_path / "p.json")
        q = DMPlan.load(tmp_path / "p.json")
        assert np.array_equal(p.dms, q.dms)
        assert (q.rule, q.nsub, q.top, q.tsamp, q.notes) == (p.rule, p.nsub, p.top, p.tsamp, p.notes)
        assert [s.downsamp for s in q.stages] == [s.downsamp for s in p.stages]
    whole = json.loads((tmp_path / "p.json").read_text())
    del whole["stages"]
    for data, why in (
        (b"", "it is not JSON"),
        (b"\x0c\0\0\0HEADER_START", "it is not JSON"),  # as UTF-32 by its first bytes
        (b"[]", "expected JSON with format"),
        (b'{"format": "other"}', "expected JSON with format"),
        (b'{"a": 1}', "expected JSON with format"),
        (json.dumps(whole).encode(), "it lacks 'stages'"),
    ):
        (tmp_path / "bad.json").write_bytes(data)
        with pytest.raises(ValueError, match=rf"bad\.json: is not a de-dispersion plan \({why}"):
            DMPlan.load(tmp_path / "bad.json")


def test_a_plan_refuses_other_data():
    p = plan(BAND_300, 50)
    p.check(BAND_300)
    with pytest.raises(ValueError, match="made for 1024 channels"):
        p.check(BAND_300.replace(tsamp=1e-3))


def test_plot_shows_every_stage():
    pytest.importorskip("matplotlib")
    figure = plan(BAND_300, stages=TABLE_1, nsub=32).plot()
    assert [t.get_text() for t in figure.axes[1].texts] == ["x1", "x2", "x4"]


@pytest.mark.parametrize(
    "options", [{}, {"rule": "presto"}, {"rule": "presto", "nsub": 32}, {"rule": "tolerance"}, {"step": 0.5}]
)
@pytest.mark.parametrize("dm", [0.0, 60.0, 3000.0])
def test_a_range_of_one_dm_is_that_dm(options, dm):
    made = plan(BAND_300, dm, dm_min=dm, **options)
    assert made.dms.tolist() == [dm]
    assert len(made.stages) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "dm_max=None"),
        ({"dm_max": -1}, "dm_max=-1"),
        ({"dm_max": float("inf")}, "dm_max=inf"),
        ({"dm_max": 5, "dm_min": -1}, "dm_min=-1"),
        ({"dm_max": 5, "dm_min": 6}, "at least dm_min=6"),
        ({"dm_max": 5, "max_loss": 1.5}, "max_loss=1.5"),
        ({"dm_max": 5, "tol": 1.0, "rule": "tolerance"}, "tol=1.0"),
        ({"dm_max": 5, "rule": "best"}, "rule='best'"),
        ({"dm_max": 5, "rule": "list"}, "dms or step is needed"),
        ({"dm_max": 5, "rule": "presto", "dms": [1]}, "cannot be combined"),
        ({"dms": [1], "stages": TABLE_1}, "expected one of them"),
        ({"dms": []}, "at least one"),
        ({"dms": [2, 1]}, "rising"),
        ({"dms": [-1, 1]}, "at least 0"),
        ({"dms": [float("nan")]}, "finite"),
        ({"dm_max": 5, "step": 0}, "step=0"),
        ({"dm_max": 1e6, "step": 1e-3}, "step=0.001: the plan would have 1000000001 DMs; expected at most 2000000"),
        ({"dm_max": 5, "step": 1e-10}, "step=1e-10: expected a DM step of at least 1e-09"),
        ({"stages": [(0, 10, 1e-10, 1)]}, "step=1e-10: expected a DM step of at least 1e-09"),
        ({"stages": [(0, 1e9, 0.5, 1)]}, "step=0.5: the plan would have 2000000000 DMs"),
        ({"dm_max": 1e9, "rule": "presto"}, "dm_max: the plan would have more than 2000000 DMs"),
        ({"dm_max": 5, "nsub": 5000}, "nsub=5000"),
        ({"dm_max": 5, "downsamp": 0}, "downsamp=0"),
        ({"dm_max": 5, "downsamp": (4, 2)}, "downsamp=(4, 2)"),
        ({"dm_max": 5, "scattering": "cordes"}, "scattering='cordes'"),
        ({"stages": [(0, 10, 0.1)]}, "rows of low DM"),
        ({"stages": [(10, 0, 0.1, 1, 1)]}, "low DM < high DM"),
        ({"stages": [(0, 10, 0.3, 1, 1)]}, "not a multiple of the step"),
        ({"dm_max": 5, "dm_constant": 0.0}, "dm_constant=0.0"),
        ({"dm_max": 5, "rule": "tolerance", "downsamp": 4}, "downsamp=4: rule='tolerance' has no binning"),
        ({"stages": TABLE_1, "downsamp": 2}, "the binnings of its stages"),
        ({"dms": [1], "downsamp": (1, 2)}, "a list of DMs has a single binning"),
        ({"dms": [1], "scattering": "bhat2004"}, "it limits dm_max, but the DMs themselves are given"),
        ({"stages": TABLE_1, "scattering": "bhat2004"}, "it limits dm_max, but the DMs themselves are given"),
    ],
)
def test_bad_plans(options, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        plan(BAND_300, **options)


def test_a_plan_wants_an_observation():
    with pytest.raises(TypeError, match="data is a int, expected a Filterbank or the path of a file"):
        plan(3, 100)
    fb = Filterbank.from_array(np.zeros((4, 9), np.uint8), fch1=1500, foff=-1, tsamp=1e-3)
    assert plan(fb, 100).nchan == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("stages", [], "no stages"),
        ("dms", [1.0, float("nan")], "not finite"),
        ("dms", [-1.0], "at least 0"),
        ("dms", [], "the DMs of a stage"),
        ("downsamp", "x", "downsamp='x'"),
        ("downsamp", 0, "downsamp=0"),
        ("per_call", -1, "per_call=-1"),
        ("dm_constant", 0.0, "dm_constant=0"),
    ],
)
def test_a_saved_plan_that_lies_is_refused(tmp_path, key, value, message):
    obs = Observation(1500.0 - np.arange(16), 1e-3)
    plan(obs, dms=[0.0, 1.0]).save(tmp_path / "p.json")
    facts = json.loads((tmp_path / "p.json").read_text())
    (facts if key in facts else facts["stages"][0])[key] = value
    (tmp_path / "p.json").write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=rf"p\.json: is not a de-dispersion plan.*{message}"):
        DMPlan.load(tmp_path / "p.json")
