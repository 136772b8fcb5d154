"""Banks of templates, and searches from SFTs to a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from astropy import units as u
from astropy.table import Table
from tests.kernels.shim import shim_runtime

from skysieve.fstat.demod.bank import TemplateBank, spacing
from skysieve.fstat.demod.demodulator import Demodulator
from skysieve.fstat.demod.search import search_sfts
from skysieve.fstat.demod.simulate import Signal, simulate_sfts
from skysieve.fstat.template_search.bsgl import BSGL

START = 1_000_000_000


def test_a_grid_holds_every_combination_once():
    bank = TemplateBank.grid((10.0, 10.0004, 1e-4), (-2e-9, 1e-9, 1e-9), (0.0, 1e-17, 1e-17))
    assert bank.shape == (5, 4, 2)
    whole = np.stack(list(bank.part(0, len(bank)).values()), axis=1)
    assert len(np.unique(whole, axis=0)) == len(bank) == 40
    pieces = [np.stack(list(bank.part(a, a + 7).values()), axis=1) for a in range(0, 40, 7)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert np.allclose(np.unique(whole[:, 0]), 10 + 1e-4 * np.arange(5))


def test_a_list_is_what_it_lists():
    bank = TemplateBank([1.0, 2.0, 3.0], [0.0, -1e-9, 1e-9], listed=True)
    assert len(bank) == 3
    assert list(bank.part(1, 9)["f1dot"]) == [-1e-9, 1e-9]
    assert list(bank.part(1, 9)["f2dot"]) == [0, 0]


def test_wrong_banks_are_named():
    with pytest.raises(ValueError, match=r"f1dot=\(1, 0, 1\): expected first <= last"):
        TemplateBank.grid((1, 2, 0.5), (1, 0, 1))
    for wrong in (100.05, (100, 101), "100"):
        with pytest.raises(ValueError, match=r"f0=.*: expected a range \(first, last, step\)"):
            TemplateBank.grid(wrong)
    with pytest.raises(ValueError, match="f1dot has 2 values: expected 3"):
        TemplateBank([1.0, 2, 3], [0.0, 1], listed=True)
    with pytest.raises(ValueError, match=r"f0\[1\] = nan"):
        TemplateBank([1, np.nan])
    with pytest.raises(ValueError, match="f0 has shape"):
        TemplateBank([])
    with pytest.raises(ValueError, match="mismatch=2"):
        spacing(86400, 2)
    with pytest.raises(ValueError, match="span=0"):
        spacing(0)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_half_a_step_loses_the_mismatch(k):
    """The loss of power of a matched filter whose phase is wrong by half a step is about the stated mismatch."""
    span, m = 86_400.0, 0.02
    x = np.linspace(-0.5, 0.5, 20_001) * span
    wrong = 0.5 * spacing(span, m)[k] * 2 * np.pi * x ** (k + 1) / [1, 2, 6][k]
    kept = abs(np.exp(1j * wrong).mean()) ** 2
    assert 1 - kept == pytest.approx(m, rel=0.02)


@pytest.fixture(scope="module")
def made():
    wave = Signal(
        f0=100.05, h0=6e-24, ra=0.5, dec=1.0, tref=START, f1dot=-2e-10, window="rect", t0=START + 36_000, tau=43_200
    )
    return simulate_sfts((100, 100.1), START, 2 * 86_400, signals=wave, seed=8, ephemeris="builtin")


@pytest.fixture(scope="module")
def bank():
    return TemplateBank.grid((100.05 - 4e-5, 100.05 + 4e-5, 4e-6), (-6e-10, 2e-10, 2e-10))


def searched(made, bank, **options):
    return search_sfts(
        made, 0.5, 1.0, bank, START, barycentre="builtin", device="cpu", windows=("rect",), topk=20, **options
    )


def test_a_transient_is_found_from_sfts(made, bank):
    best = searched(made, bank).columns("rect")
    assert best["f0"][0] == pytest.approx(100.05, abs=4.1e-6)
    assert abs(best["t0_ml"][0] - (START + 36_000)) <= 3600
    assert abs(best["tau_ml"][0] - 43_200) <= 7200
    assert best["max2F"][0] > 60


@pytest.mark.parametrize(
    ("options", "message"), [({"posteriors": -1}, "posteriors=-1"), ({"bsgl": BSGL(5)}, "two or more detectors")]
)
def test_wrong_options_are_found_before_the_noise_is_measured(made, bank, options, message, monkeypatch):
    monkeypatch.setattr("skysieve.fstat.demod.search.Demodulator", None)
    with pytest.raises(ValueError, match=message):
        searched(made[:1], bank, **options)


def test_an_interrupted_search_continues_with_the_same_answer(made, bank, tmp_path, monkeypatch):
    import skysieve.fstat.demod.demodulator as module

    monkeypatch.setitem(module.BATCH_BYTES, "cpu", 16 * 192 * 13)
    whole = searched(made, bank)
    real = Demodulator.batch
    calls = []

    def stops(self, *spins, **options):
        calls.append(len(spins[0]))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, *spins, **options)

    monkeypatch.setattr(Demodulator, "batch", stops)
    file = tmp_path / "state.npz"
    with pytest.raises(KeyboardInterrupt):
        searched(made, bank, checkpoint=file)
    resumed = searched(made, bank, checkpoint=file)
    assert sum(calls) <= len(bank) + 5 * 13  # batches that were demodulated ahead are lost
    for name, values in whole.columns("rect").items():
        assert np.array_equal(resumed.columns("rect")[name], values), name


def test_a_gpu_has_the_atoms_of_the_cpu(made):
    f0 = 100.05 + 1e-5 * np.arange(40)
    host = Demodulator(made, 0.5, 1.0, START, barycentre="builtin")
    shim = Demodulator(made, 0.5, 1.0, START, barycentre="builtin")
    shim._on_gpu(shim_runtime())
    for mine, other in zip(shim.batch(f0, -2e-10), host.batch(f0, -2e-10), strict=True):
        for name in ("Fa", "Fb"):
            x, y = getattr(mine, name), getattr(other, name)
            assert np.abs(x - y).max() <= 2e-6 * np.abs(y).max()
        assert np.array_equal(mine.a2, other.a2)
    with pytest.raises(ValueError, match=r"template 1, H1: SFTs hold"):
        shim.batch([100.05, 100.2])
    shim.close()


def test_a_checkpoint_of_other_sfts_or_templates_is_refused(made, bank, tmp_path):
    file = tmp_path / "state.npz"
    few = TemplateBank(bank.f0[:3])
    found = searched(made, few, checkpoint=file)
    assert (found.settings["ra"], found.settings["tref"]) == (0.5, START)
    again = searched(made, TemplateBank(bank.f0[:3]), checkpoint=file)
    assert np.array_equal(again.columns("rect")["max2F"], found.columns("rect")["max2F"])
    changed = [replace(made[0], data=1.5 * made[0].data), made[1]]
    for sfts, templates in ((changed, few), (made, TemplateBank(bank.f0[:4])), (made, TemplateBank(bank.f0[1:4]))):
        with pytest.raises(ValueError, match="belongs to a search with"):
            searched(sfts, templates, checkpoint=file)


@pytest.mark.parametrize("gpu", [False, True])
def test_bad_templates_of_a_list_do_not_stop_the_others(made, gpu, monkeypatch):
    """Outside the band, not finite, or too far by their spin-down: each is named; the others have their answers."""
    f0 = 100.05 + 4e-6 * np.arange(-5, 6)
    clean = searched(made, TemplateBank(f0, -2e-10, listed=True)).columns("rect")
    f, f1 = np.insert(f0, [0, 4, 7, 11], [100.3, np.nan, 100.05, 99.9]), np.full(15, -2e-10)
    f1[9] = 1e-6
    if gpu:
        real = Demodulator.__init__

        def on_shim(self, *args, **options):
            real(self, *args, **options)
            self._on_gpu(shim_runtime())

        monkeypatch.setattr(Demodulator, "__init__", on_shim)
    found = searched(made, TemplateBank(f, f1, listed=True))
    assert found.n_templates == 15
    assert found.n_bad == 4
    assert list(found.faults) == [0, 5, 9, 14]
    assert "H1: SFTs hold 100 to 100.1 Hz, too narrow by" in found.faults[0]
    assert "f0 = nan" in found.faults[5]
    assert "Hz above" in found.faults[9] or "Hz below" in found.faults[9]
    assert "Hz below" in found.faults[14]
    table = found.columns("rect")
    assert np.array_equal(np.sort(table["f0"]), np.sort(clean["f0"]))
    for name in ("max2F", "t0_ml", "tau_ml"):
        assert table[name] == pytest.approx(clean[name], rel=1e-5 if gpu else 0)


def test_a_template_at_the_very_edge_is_an_error_of_its_own(made, monkeypatch):
    """The kernels round in another order: they may refuse what the search for reasons finds inside."""
    monkeypatch.setattr(Demodulator, "_outside", lambda self, k, inside: {})
    found = searched(made, TemplateBank([100.05, 100.3, 100.04], -2e-10, listed=True))
    assert found.n_bad == 1
    assert "needs bins outside the band" in found.faults[1]
    with pytest.raises(ValueError, match="template 1, H1: the template needs bins outside the band"):
        Demodulator(made, 0.5, 1.0, START, barycentre="builtin").batch([100.05, 100.3])


def test_frequencies_have_units_in_tables(made, bank, tmp_path):
    """Astropy reads them back from FITS and ECSV."""
    found = search_sfts(made, 0.5, 1.0, bank, windows="none", barycentre="builtin", device="cpu")
    tables = [found.to_table()]
    for ending in ("fits", "ecsv"):
        found.save(tmp_path / f"a.{ending}")
        tables.append(Table.read(tmp_path / f"a.{ending}", **({"hdu": 1} if ending == "fits" else {})))
    for table in tables:
        assert [table[name].unit for name in ("f0", "f1dot", "f2dot")] == [u.Hz, u.Hz / u.s, u.Hz / u.s**2]


@pytest.mark.parametrize("n", [2, 100, 2048, 100_000])
def test_small_steps_at_high_frequencies_lose_no_template(n):
    step = 1e-8
    bank = TemplateBank.grid((1234.5, 1234.5 + (n - 1) * step, step))
    assert len(bank) == n


@pytest.mark.parametrize("listed", [True, False])
def test_frequencies_are_within_their_bounds(listed):
    rng = np.random.default_rng(3)
    for first, last in ((-5e5, 5e5), (1e8, 1.01e8), (-3e8, -2.9e8)):
        bank = TemplateBank(*(scale * rng.uniform(-1, 1, 4) for scale in (1, 1e-9, 1e-16)), listed=listed)
        f0, f1, f2 = bank.part(0, len(bank)).values()
        t = np.linspace(first, last, 101)[:, None]
        f = f0 + f1 * t + f2 * t**2 / 2
        low, high = bank.frequencies(first, last)
        assert low <= f.min() <= f.max() <= high
        assert high - low < np.ptp(f) + 4 * (1e-9 * 1e7 + 1e-16 * 3e8 * 1e7)
    bank = TemplateBank([1.0, np.nan, 3.0], [0.0, 0.0, np.inf], listed=True)
    assert bank.frequencies(0.0, 10.0) == (1, 1)
    with pytest.raises(ValueError, match="no template has only finite values"):
        TemplateBank([np.nan], listed=True).frequencies(0.0, 1.0)


def test_lists_are_read_from_text():
    text = ["% comment", "", "f1dot, f0, Name", "-1e-9, 100, a", "2e-9,101,b"]
    bank = TemplateBank.read(text)
    assert (bank.f0.tolist(), bank.f1dot.tolist(), bank.f2dot.tolist()) == ([100, 101], [-1e-9, 2e-9], [0, 0])
    assert TemplateBank.read(["100 1e-9 1e-17\n", "nan 0 0"]).shape == (2, 2, 2)
    for lines, message in (
        (["freq f1dot", "100 x"], "list, line 2: '100 x'"), (["100 0", "101"], "line 2: '101'"),
        (["f1dot", "1"], "line 1: columns f1dot: expected one named f0"), (["# 1"], "list holds no templates"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            TemplateBank.read(lines, "list")


@pytest.mark.parametrize(
    ("names", "row"),
    [
        ("# F0 F1 F2 Alpha Delta twoF", "100 -1e-9 1e-17 0.5 1 20"),  # PyFstat
        ("%% freq alpha delta f1dot f2dot f3dot 2F", "100 0.5 1 -1e-9 1e-17 0 20"),  # lalpulsar_ComputeFstatistic_v2
        (
            "%% Freq[Hz]  Alpha[rad]  Delta[rad]  fkdot[1]  fkdot[2]  fkdot[3]  t0_ML[s]  tau_ML[s]  maxTwoF",
            "  100  0.5  1  -1e-9  1e-17  0  1000000000  7200  20",
        ),
        ("F2,F0,F1", "1e-17,100,-1e-9"),
        ("f0[Hz],f1dot[Hz/s],f2dot[Hz/s^2]", "100,-1e-9,1e-17"),
        ("# a frequency, and its derivatives", "100 -1e-9 1e-17"),
    ],
)
def test_tables_of_pyfstat_and_lalpulsar_are_lists(names, row):
    bank = TemplateBank.read(["# header", names, row, "# in between", row, "%DONE"])
    assert np.array_equal([bank.f0, bank.f1dot, bank.f2dot], [[100] * 2, [-1e-9] * 2, [1e-17] * 2])


def test_demodulators_take_turns_and_change_nothing(made, bank, monkeypatch):
    """Two devices: the batches come in order, from the one and the other, with the numbers of one device alone."""
    import skysieve.fstat.demod.demodulator as module

    monkeypatch.setitem(module.BATCH_BYTES, "cpu", 16 * 192 * 13)
    one = Demodulator(made, 0.5, 1.0, START, barycentre="builtin")
    calls = []

    class Counted(Demodulator):
        def batch(self, *spins, **options):
            calls.append(self)
            return super().batch(*spins, **options)

    pair = [Counted.__new__(Counted) for _ in range(2)]
    for each in pair:
        each.__dict__.update(one.__dict__)
    for start in (0, 26):
        alone, both = (list(module.stream(several, bank)(start)) for several in ([one], pair))
        assert len(alone) == len(both) == -(-(len(bank) - start) // 13)
        for a, b in zip(alone, both, strict=True):
            for x, y in zip(a, b, strict=True):
                assert np.array_equal(x.Fa, y.Fa)
                assert np.array_equal(x.params["f0"], y.params["f0"])
    assert [calls.count(each) for each in pair] == [9, 7]
    monkeypatch.setattr(module, "resolve", lambda device: (one.device, one.device))
    with pytest.raises(ValueError, match="takes one device"):
        Demodulator(made, 0.5, 1.0, device="cuda:all")
