"""The functions use plans of earlier calls: the same answers, no data retained, errors as without a plan."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import skysieve
from skysieve.core.engine_cache import ENGINES
from skysieve.dedispersion import DMPlan, Filterbank, Mask, SearchPlan, dedisperse, dispatch, fake, plan, search
from skysieve.dedispersion.data.filterbank import ArrayReader

BAND = {"nchan": 32, "duration": 4, "tsamp": 1e-3, "fch1": 1500, "foff": -8}
DMS = np.arange(0, 200, 10.0)


@pytest.fixture(autouse=True)
def empty():
    skysieve.clear_cache()
    yield
    skysieve.clear_cache()


def night(seed, **options):
    made = fake(times=[1.5], dm=100, width=8e-3, snr=30, seed=seed, **{**BAND, **options})
    return Filterbank.from_array(made.read(), fch1=1500, foff=-8, tsamp=1e-3, nbits=8)


def test_a_second_call_has_the_same_plan_and_its_own_answer(monkeypatch):
    made = []
    init = SearchPlan.__init__
    monkeypatch.setattr(SearchPlan, "__init__", lambda self, *a, **k: made.append(1) or init(self, *a, **k))
    first, second = night(1), night(2)
    a, b, again = (search(fb, DMS, device="cpu", threads=2) for fb in (first, second, first))
    assert len(made) == 1
    assert np.array_equal(a.events.snr, again.events.snr)
    assert not np.array_equal(a.events.snr, b.events.snr)
    for given in ({"threshold": 8.0}, {"widths": [1, 8]}, {"noise": "moments"}, {"excess": 2.0}):
        found = search(first, DMS, device="cpu", threads=2, **given)
        with SearchPlan(first, DMS, device="cpu", threads=2, **given) as own:
            expected = own.execute(first)
        assert np.array_equal(found.events.snr, expected.events.snr)
        assert np.array_equal(found.group, expected.group)
    assert len(made) == 9
    mask = Mask.channels(32, [3])
    masked, same = (search(first, DMS, device="cpu", threads=2, mask=m) for m in (mask, None))
    assert masked.live < 1
    assert np.array_equal(same.events.snr, a.events.snr)


def test_series_of_a_second_call():
    chosen = plan(night(1), 150, step=10)
    for dms in (DMS, chosen):
        for seed in (1, 2):
            fb = night(seed)
            found = dedisperse(fb, dms, device="cpu", threads=1)
            skysieve.clear_cache()
            fresh = dedisperse(fb, dms, device="cpu", threads=1)
            pairs = zip(found, fresh, strict=True) if isinstance(found, list) else [(found, fresh)]
            assert all(np.array_equal(x.data, y.data) for x, y in pairs)


def test_arrays_of_dms_that_change_later_change_nothing():
    fb, dms = night(1), np.array([90.0, 100.0, 110.0])
    series, chosen = dedisperse(fb, dms, threads=1), plan(fb, dms=dms)
    with SearchPlan(fb, dms, threads=1) as own:
        [first] = search(fb, dms, threads=1).dm
        dms += 500
        assert search(fb, [90.0, 100.0, 110.0], threads=1).dm.tolist() == [first] == own.execute(fb).dm.tolist()
    assert series.dms.tolist() == chosen.stages[0].dms.tolist() == [90, 100, 110]
    series.dms[:] = 0
    assert dedisperse(fb, [90.0, 100.0, 110.0], threads=1).dms.tolist() == [90, 100, 110]
    [before] = dedisperse(fb, chosen, threads=1)
    text = chosen.to_json()
    chosen.stages[0].dms[:] = 7
    [after] = dedisperse(fb, DMPlan.from_json(text), threads=1)
    assert before.dms.tolist() == after.dms.tolist() == [90, 100, 110]


def test_units_of_dms_are_part_of_the_question():
    from astropy import units as u

    fb, thin = night(1), u.pc / u.m**3
    for dms, expected in (([0, 3e7] * thin, [0, 30]), ([0, 3e7], [0, 3e7]), ([0, 30], [0, 30])):
        if max(expected) > 1e3:
            with pytest.raises(ValueError, match=r"DM 3e\+07"):
                dedisperse(fb, dms, threads=1)
        else:
            np.testing.assert_allclose(dedisperse(fb, dms, threads=1).dms, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="dms has the unit m"):
        dedisperse(fb, [0, 30] * u.m, threads=1)


def test_other_data_have_other_plans():
    short, wide = night(1, duration=2), night(1).read().astype(np.float32)
    other = Filterbank.from_array(wide, fch1=1400, foff=-8, tsamp=1e-3)
    for number, fb in enumerate((night(1), short, other), start=1):
        search(fb, DMS, device="cpu", threads=1)
        assert len(ENGINES) == number


@pytest.mark.slow
def test_idle_plans_hold_no_data():
    fb = night(1)
    data = weakref.ref(fb)
    search(fb, DMS, device="cpu", threads=1)
    dedisperse(fb, DMS, device="cpu", threads=1)
    del fb
    gc.collect()
    assert data() is None
    assert len(ENGINES) == 2


def test_a_failed_search_leaves_no_plan(monkeypatch):
    fb = night(1)
    search(fb, DMS, device="cpu", threads=1)

    def broken(self, start, count):
        raise OSError("the disk is gone")

    monkeypatch.setattr(ArrayReader, "read", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        search(fb, DMS, device="cpu", threads=1)
    monkeypatch.undo()
    assert len(ENGINES) == 0
    assert len(search(fb, DMS, device="cpu", threads=1)) >= 1


@pytest.mark.parametrize(
    "given",
    [{"dms": ["x"]}, {"dms": [-1.0]}, {"dms": DMS, "widths": {}}, {"dms": DMS, "device": "gpu"},
     {"dms": DMS, "threshold": "high"}, {"dms": [1e9]}],
)  # fmt: skip
def test_wrong_arguments_are_refused_as_without_a_plan(given):
    fb = night(1)
    errors = []
    for call in (search, SearchPlan):
        with pytest.raises((ValueError, TypeError)) as caught:
            call(fb, **{"device": "cpu", **given})
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_auto_takes_the_cpu_for_small_data(monkeypatch):
    chosen = []

    def make(self, fb, dms, *, device, **options):
        chosen.append(device)
        raise RuntimeError("no plan")

    fb = night(1)
    sums = len(DMS) * fb.nsamp * 32
    monkeypatch.setattr(SearchPlan, "__init__", make)
    for most, device, expected in ((sums + 1, "auto", "cpu"), (sums, "auto", "auto"), (sums + 1, "cuda", "cuda")):
        monkeypatch.setattr(dispatch, "SMALL_SUMS", most)
        with pytest.raises(RuntimeError, match="no plan"):
            search(fb, DMS, device=device)
        assert chosen.pop() == expected
    monkeypatch.setattr(dispatch, "SMALL_SUMS", 1 + fb.nsamp * 32 * plan(fb, 150, step=10).ndm)
    for dms, expected in ((plan(fb, 150, step=10), "cpu"), ([[1, 2], [3]], "auto")):
        with pytest.raises(RuntimeError, match="no plan"):
            search(fb, dms)
        assert chosen.pop() == expected
