"""Injection campaigns: pulses of the stated S/N, honest counting, and the command."""

from __future__ import annotations

import csv
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.special import ndtr

from skysieve.dedispersion import DM_CONSTANT, Completeness, Noise, completeness, fake, plan, search
from skysieve.dedispersion.injections.campaign import _already_there, _match, _Placed
from skysieve.dedispersion.injections.pulses import Pulse, record
from skysieve.dedispersion.injections.result import TRIALS

RECEIVER = Noise(nchan=64, fch1=1500, foff=-4, tsamp=1e-3, duration=20)
DMS = np.arange(0, 400, 4.0)
OBS = RECEIVER.segment(0).observation


def brute(pulse: Pulse) -> np.ndarray:
    """Samples of a pulse of unit height before smearing, by sums over a fine grid of times."""
    fine, n = 50, 3000
    t = (np.arange(n * fine) + 0.5) / fine * OBS.tsamp
    out = np.empty((OBS.nchan, n))
    sigma = pulse.width / math.sqrt(8 * math.log(2))
    for row, f in enumerate(OBS.freqs):
        total = np.zeros(n * fine)
        parts = np.linspace(f - 2, f + 2, 81)
        for g in (parts[1:] + parts[:-1]) / 2:  # the channel's frequencies arrive one after the other
            centre = pulse.time + DM_CONSTANT * pulse.dm * (g**-2 - OBS.top**-2)
            near = slice(*np.searchsorted(t, [centre - 7 * sigma, centre + 7 * sigma]))
            total[near] += np.exp(-0.5 * ((t[near] - centre) / sigma) ** 2) / 80
        if pulse.scatter:
            tau = pulse.scatter * (f / OBS.centre) ** -4
            tail = np.exp(-t[: int(12 * tau / t[0] / 2)] / tau)
            total = fftconvolve(total, tail / tail.sum())[: n * fine]
        out[row] = total.reshape(n, fine).mean(1)
    return out


@pytest.mark.parametrize(
    ("dm", "width", "scatter"), [(100.0, 8e-3, 0.0), (300.0, 2e-3, 0.0), (50.0, 4e-3, 6e-3)],
)  # fmt: skip
def test_a_pulse_has_the_stated_signal_to_noise(dm, width, scatter):
    pulse = Pulse(dm, 0.5, width, 12.0, scatter)
    made = record(OBS, pulse, np.full(OBS.nchan, 3.0), DM_CONSTANT)
    whole = np.zeros((OBS.nchan, 3000))
    for row, first in enumerate(made.first):
        whole[row, first : first + made.counts.shape[1]] = made.counts[row]
    expected = brute(pulse)
    expected *= whole.sum() / expected.sum()
    # the brute sum takes delays within a channel from its frequencies, the record evenly: second order in 4 MHz / f
    assert np.abs(whole - expected).max() < 0.02 * whole.max()
    series = sum(np.roll(row, -delay) for row, delay in zip(whole, made.delays, strict=True))
    best = max(np.convolve(series, np.ones(w), "valid").max() / math.sqrt(w) for w in range(1, 80))
    assert best / (3.0 * 8) == pytest.approx(12.0, rel=2e-3)
    window = series[made.begin : made.begin + made.length]
    assert window.sum() / math.sqrt(made.length) / (3.0 * 8) == pytest.approx(12.0, rel=1e-9)


def test_part_of_the_band_and_a_spectrum_keep_the_signal_to_noise():
    made = record(OBS, Pulse(100, 0.5, 8e-3, 10.0, index=-3.0, band=(0.5, 1.0)), np.ones(64), DM_CONSTANT)
    filled = made.counts.sum(axis=1) > 0
    assert filled.tolist() == (OBS.freqs >= (OBS.freqs.min() + OBS.freqs.max()) / 2).tolist()
    heights = made.counts[filled].sum(axis=1)
    np.testing.assert_allclose(heights[-1] / heights[0], (OBS.freqs[filled][-1] / OBS.top) ** -3, rtol=1e-6)
    with pytest.raises(ValueError, match="band"):
        record(OBS, Pulse(100, 0.5, 8e-3, 10.0, band=(0.001, 0.002)), np.ones(64), DM_CONSTANT)


@pytest.fixture(scope="module")
def found() -> Completeness:
    return completeness(RECEIVER, DMS, n=60, snr=(5, 7, 25), dm=(60, 340), width=(4e-3, 1e-2), seed=3, threads=1)


def test_recall_rises_with_the_signal_to_noise(found):
    table = found.recall()
    assert table["pulses"].tolist() == [20, 20, 20]
    assert table["recall"][2] == 1
    assert table["recall"][0] < 0.7
    assert 0.97 < table["ratio"][2] < 1.06
    assert table["time_error"][2] < 5e-3
    assert (table["low"] <= table["recall"]).all()
    assert (table["recall"] <= table["high"]).all()


def test_a_detector_that_knows_everything_sees_the_injected_signal_to_noise(found):
    known = found.trials["snr_known"] - found.trials["snr"]
    assert abs(known.mean()) < 4 / math.sqrt(len(known))
    assert 0.7 < known.std() < 1.35  # 60 draws of unit noise: 0.5% to 99.5%
    some = found.recall()
    expected = ndtr(some["snr"] - found.threshold)
    assert np.abs(some["known"] - expected).max() < 0.4  # 20 draws


def test_the_same_seed_gives_the_same_pulses(found):
    again = completeness(RECEIVER, DMS, n=60, snr=(5, 7, 25), dm=(60, 340), width=(4e-3, 1e-2), seed=3, threads=1)
    assert again.trials.tobytes() == found.trials.tobytes()


def test_pulses_are_two_sweeps_apart(found):
    sweep = DM_CONSTANT * 340 * (OBS.freqs.min() ** -2 - OBS.top**-2)
    gaps = np.diff(found.trials["time"])
    assert gaps[gaps > 0].min() > 2 * sweep


def test_candidates_of_the_data_themselves_are_not_false(tmp_path):
    """A file with a pulse of its own, found with every injection."""
    own = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[9.0], width=5e-3, snr=30, seed=1,
               path=tmp_path / "a.fil")  # fmt: skip
    assert len(search(own, DMS, threads=1)) == 1
    found = completeness(own, DMS, n=12, snr=(20,), dm=(60, 340), threads=1)
    assert len(found.false) == 0
    assert found.trials["found"].mean() > 0.8  # those on top of the file's own pulse may be lost in it
    np.testing.assert_array_equal(search(own, DMS, threads=1).time, [pytest.approx(9.0, abs=5e-3)])


def test_times_at_another_frequency_and_a_plan_with_its_own_constant():
    """`Candidates.time` is that at ``ref_freq``, and a `DMPlan` has its own dispersion constant."""
    common = {"n": 6, "snr": (25,), "dm": (60, 340), "width": (4e-3, 1e-2), "seed": 3, "threads": 1}
    expected = completeness(RECEIVER, DMS, **common).trials
    assert expected["found"].all()
    for ref in ("bottom", "infinity", 1400.0):
        found = completeness(RECEIVER, DMS, ref_freq=ref, **common)
        assert len(found.false) == 0
        np.testing.assert_allclose(found.trials["time_error"], expected["time_error"], atol=4 * RECEIVER.tsamp)
    other = 1.1 * DM_CONSTANT  # would move a pulse by more than its width
    stages = plan(OBS, 400, step=4.0, downsamp=1, dm_constant=other)
    found = completeness(RECEIVER, stages, **common)
    assert found.trials["found"].all()
    assert np.abs(found.trials["dm_error"]).max() < 10  # with the other constant, up to 10% of 340


def test_a_candidate_of_the_data_is_no_find():
    """A faint pulse on the place of a loud one that the data have: only a change of the S/N would be a find."""
    own = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[9.0], width=5e-3, snr=30, seed=1)
    data = search(own, DMS, threads=1)
    placed = [
        _Placed(Pulse(200, 9.0, 5e-3, 1.0), record(OBS, Pulse(200, 9.0, 5e-3, 1.0), np.ones(64), DM_CONSTANT), 0.0)
    ]
    for before, find in ((data, False), (None, True)):
        known = _already_there(data, before)
        (row,), false, _ = _match(own.observation, data, placed, DM_CONSTANT, known)
        assert row[TRIALS.names.index("found")] == find
        assert false == []


def test_intervals_are_those_of_binomial_and_poisson_counts():
    trials = np.zeros(20, TRIALS)
    trials["snr"], trials["found"] = 10, np.arange(20) < 19
    none = np.zeros(0, [("snr", "f8"), ("dm", "f8"), ("time", "f8")])
    result = Completeness(trials, none, 24.0, 6.5, "", 1.0)
    row = result.recall()[0]
    assert (row["low"], row["high"]) == (pytest.approx(0.7513, abs=1e-4), pytest.approx(0.9987, abs=1e-4))
    assert result.false_rate() == (0, 0, pytest.approx(3.689 / 24, abs=1e-3))


def test_a_result_can_be_saved_and_plotted(found, tmp_path):
    found.save(tmp_path / "c.npz")
    again = Completeness.load(tmp_path / "c.npz")
    assert again.trials.tobytes() == found.trials.tobytes()
    assert again.false_rate() == found.false_rate()
    assert len(found.plot().axes) == 4
    assert repr(found).startswith("<Completeness: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dm": (300, 100)}, "dm="),
        ({"width": (0.0, 1.0)}, "width=0.0"),
        ({"snr": ()}, "snr=0.0"),
        ({"n": 0}, "n=0"),
        ({"dm": (1e5, 1e5)}, "too short for such a pulse"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        completeness(RECEIVER, DMS, **{"n": 4, "threads": 1, **change})


def test_the_command(tmp_path):
    table, picture = tmp_path / "c.csv", tmp_path / "c.png"
    command = f"dedisp completeness --dm-max 300 --pulses 8 --snr 20 --nchan 64 --foff -4 --tsamp 1e-3 -o {table}"
    done = subprocess.run(
        [sys.executable, "-m", "skysieve", *command.split(), "--plot", str(picture)], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "false candidates" in done.stdout
    with open(table, newline="") as f:
        rows = list(csv.DictReader(f))
    assert [float(row["snr"]) for row in rows] == [20.0] * 8
    assert picture.stat().st_size > 1000
    refused = subprocess.run(
        [sys.executable, "-m", "skysieve", "dedisp", "completeness", "--dm-max", "300", "--snr", "loud"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "--snr loud: expected numbers" in refused.stderr
