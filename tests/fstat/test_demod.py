"""Atoms from SFTs against LALPulsar's ComputeFstat; barycentred times and antenna factors; recovered signals."""

from __future__ import annotations

import gzip
from importlib.util import find_spec

import numpy as np
import pytest
from tests.marks import slow

from skysieve.fstat import search, search_sfts, transient_map
from skysieve.fstat.demod import barycentre as module
from skysieve.fstat.demod.bank import ACCELERATION, TemplateBank, long_sfts
from skysieve.fstat.demod.barycentre import SPANS, barycentre
from skysieve.fstat.demod.demodulator import Demodulator
from skysieve.fstat.demod.simulate import Signal, inject, simulate_sfts
from skysieve.fstat.inputs.detectors import DETECTORS, LEAP_SECONDS, antenna_patterns, sidereal_angle
from skysieve.fstat.inputs.grid import Grid
from skysieve.fstat.sfts.files import write_sfts
from skysieve.fstat.sfts.sfts import SFTs

START = 1_000_000_000
MARGIN = 59 / 1800  # bins that LALPulsar takes beyond the band, below; one fewer above


def signal(**changes):
    values = {"f0": 100.0, "h0": 2e-24, "ra": 2.2, "dec": -0.5, "tref": START, "f1dot": -1e-9, "phi0": 1.0}
    return Signal(**(values | changes))


@pytest.mark.few
@pytest.mark.parametrize("detector", DETECTORS)
def test_the_frequency_changes_as_fast_as_is_assumed(detector):
    """The bound exceeds the acceleration of every detector, for three positions in the sky, during a year."""
    t = START + 3600 * np.arange(0, 8760, 7)
    sky = ((2.2, -0.5), (0.1, 0.0), (4.6, 0.41))
    rates = [[barycentre(t + s, detector, *at, "builtin")[1] for s in (0, 3600)] for at in sky]
    largest = max(np.abs(b - a).max() / 3600 for a, b in rates)
    assert 0.5 * ACCELERATION < largest < ACCELERATION


def test_sfts_that_are_too_long_are_reported():
    assert long_sfts(TemplateBank([100.0, 2265.0]), 1800) == ""
    text = long_sfts(TemplateBank([100.0, 2275.0]), 1800)
    assert text.startswith("SFTs of 1800 s are long for a frequency that may change by 2.96e-07 Hz/s")
    assert text.endswith("costs up to 5% of 2F; expected at most 1797 s, for 5%")
    assert long_sfts(TemplateBank([141.0]), 7200) == ""
    assert long_sfts(TemplateBank([100.0], [-1e-6]), 1800) != ""
    several = TemplateBank([2000.0, 100.0, np.nan], [0.0, -1e-7, -1e-6], listed=True)
    assert long_sfts(several, 1800) == ""
    noise = simulate_sfts((99.9, 100.1), START, 10 * 7200, tsft=7200, ephemeris="builtin", detectors=["H1"])
    options = {"barycentre": "builtin", "device": "cpu", "windows": "none"}
    with pytest.warns(UserWarning, match="SFTs of 7200 s are long"):
        search_sfts(noise, 2.2, -0.5, TemplateBank([100.0], [1e-7]), **options)


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("detector", ["H1", "V1", "K1"])
def test_times_at_the_barycentre(detector):
    """Errors over a year and the whole sky, except for a constant: 5 us with JPL's tables, 15 us with ERFA's series."""
    pytest.importorskip("lalpulsar")
    t = START + np.arange(0, 366 * 86400, 200_000.0)
    limits = {"builtin": 15e-6} | ({"de405": 5e-6} if find_spec("solar_system_ephemerides") else {})
    for ra, dec in ((2.2486, -0.7885), (1.4596, 0.3842), (4.0, -0.4), (0.3, 1.4), (5.5, -1.2)):
        expected, rates = barycentre(t, detector, ra, dec, "lal")
        for ephemeris, limit in limits.items():
            delay, rate = barycentre(t, detector, ra, dec, ephemeris)
            off = delay - expected
            assert 0.5 * (off.max() - off.min()) < limit, (ephemeris, ra, dec)
            np.testing.assert_allclose(rate, rates, rtol=0, atol=3e-10)


@pytest.mark.slow
@pytest.mark.parametrize("first", [SPANS["lal"][0], START, SPANS["lal"][1] - 4e7])
def test_a_part_of_lalpulsars_tables_gives_the_bits_of_the_whole(first, monkeypatch):
    lalpulsar = pytest.importorskip("lalpulsar")
    t = first + np.linspace(0, 4e7, 200)
    part = module._lal(t, "H1", 0.5, 1.0)
    whole = lalpulsar.InitBarycenter("earth00-40-DE405.dat.gz", "sun00-40-DE405.dat.gz")
    monkeypatch.setattr(module, "_lal_ephemeris", lambda years: whole)
    np.testing.assert_array_equal(part, module._lal(t, "H1", 0.5, 1.0))


def test_rows_of_a_table_of_positions(tmp_path):
    """Those of the years in which the times lie, and of a day on both sides, as far as the table goes."""
    path, step, year = tmp_path / "earth.gz", 7200, module.YEAR
    starts = 100 + step * np.arange(int(3 * year / step))

    def write(header):
        rows = "".join(f"{t}.000000\t{t / 7}\n" for t in starts)
        with gzip.open(path, "wt") as file:
            file.write(f"# made for a test\n{header}\n{rows}")

    write(f"100\t{step}.0\t{len(starts)}")
    for t in (np.array([200.0]), np.array([year + 5.0]), np.array([2.5 * year, 1.5 * year])):
        first, each, lines = module._rows(path, module._years(t))
        read = np.array([float(line.split()[0]) for line in lines])
        np.testing.assert_array_equal(read, first + each * np.arange(len(read)))
        low, high = year * (t.min() // year) - 86_400, year * (t.max() // year + 1) + 86_400
        assert read[0] == starts[0] or low - 3 * step < read[0] <= low - step
        assert read[-1] == starts[-1] or high + step <= read[-1] < high + 4 * step
        assert len(read) < 0.8 * len(starts)
    write(f"7300\t{step}.0\t{len(starts)}")
    with pytest.raises(ValueError, match="expected rows from GPS 7300 on in steps of 7200"):
        module._rows(path, (0, 1))
    write(f"100\t{step}.0\t{len(starts) + 100}")
    with pytest.raises(ValueError, match="as its header says"):
        module._rows(path, (2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("ephemeris", ["builtin", "de405"])
def test_many_times_are_interpolated(ephemeris):
    """Against each time by itself: over a leap second (the end of June 2012), in any order, with a gap of a year."""
    if ephemeris == "de405":
        pytest.importorskip("solar_system_ephemerides")
    t = 1_025_136_015 + np.concatenate([np.arange(-400_000, 400_000, 450.0), 4e7 + np.arange(0, 2e5, 30.0)])
    t = np.random.default_rng(2).permutation(t)
    some = np.r_[np.argsort(np.abs(t - 1_025_136_015))[:5], np.arange(0, len(t), 800), np.argmax(t), np.argmin(t)]
    delay, rate = barycentre(t, "L1", 2.2, -0.5, ephemeris)
    for i in some:
        alone, turn = barycentre(t[i], "L1", 2.2, -0.5, ephemeris)
        # the clock correction is linear within an hour: w^2 A h^2 / 8 and w^2 A h / 2 for 2 us a day
        assert abs(delay[i] - alone[0]) < 3e-8
        assert abs(rate[i] - turn[0]) < 5e-11


@pytest.mark.parametrize("detector", list(DETECTORS))
def test_antenna_patterns(detector):
    lal = pytest.importorskip("lal")
    lalpulsar = pytest.importorskip("lalpulsar")
    response = lalpulsar.GetSiteInfo(detector).response
    t = START + np.linspace(0, 4e8, 40).round()
    a, b = antenna_patterns(t, detector, 0.7, 0.4)
    angles = sidereal_angle(t)
    expected = np.array([lal.ComputeDetAMResponse(response, 0.7, 0.4, 0.0, angle) for angle in angles])
    # KAGRA's published azimuths have seven digits, and LALPulsar holds them in float32
    np.testing.assert_allclose(np.stack([a, b], axis=1), expected[:, :2], rtol=0, atol=2e-7)
    theirs = [lal.GreenwichMeanSiderealTime(lal.LIGOTimeGPS(second)) for second in t]
    off = np.remainder(angles - theirs + np.pi, 2 * np.pi) - np.pi
    assert np.abs(off).max() < 1e-8


@pytest.fixture(scope="module")
def sfts():
    gaps = {"L1": [(START + 40_000, START + 70_000)]}
    noise = {"H1": 1e-23 * np.linspace(1, 3, 96), "L1": 2e-23}
    band = (99.5 - MARGIN, 100.5 + MARGIN - 1 / 1800)
    return simulate_sfts(band, START, 172_800, signals=signal(), gaps=gaps, noise=noise, seed=4, ephemeris="builtin")


def lal_atoms(lalpulsar, lal, folder, tref, ra, dec, spins, noise=None):
    import warnings

    from skysieve.fstat import from_lal

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ephemeris = lalpulsar.InitBarycenter("earth00-40-DE405.dat.gz", "sun00-40-DE405.dat.gz")
    options = lalpulsar.FstatOptionalArgs(lalpulsar.FstatOptionalArgsDefaults)
    if noise is not None:
        assumed = lalpulsar.MultiNoiseFloor()
        assumed.length = len(noise)
        assumed.sqrtSn = [*noise, *[0] * (len(assumed.sqrtSn) - len(noise))]
        options.assumeSqrtSX = assumed
    catalog = lalpulsar.SFTdataFind(str(folder / "*.sft"), None)
    given = lalpulsar.CreateFstatInput(catalog, 99.5, 100.5, 1e-5, ephemeris, options)
    point = lalpulsar.PulsarDopplerParams()
    point.Alpha, point.Delta, point.refTime = ra, dec, lal.LIGOTimeGPS(tref)
    values = np.zeros(lalpulsar.PULSAR_MAX_SPINS)
    values[: len(spins)] = spins
    point.fkdot = values
    results = lalpulsar.FstatResults()
    what = lalpulsar.FSTATQ_ATOMS_PER_DET | lalpulsar.FSTATQ_2F
    lalpulsar.ComputeFstat(results, given, point, 1, what)
    return from_lal(results.multiFatoms[0]), float(results.twoF[0]), given


@pytest.mark.few
@pytest.mark.parametrize("spins", [slow((100.0, -1e-9, 0.0)), (99.7123, 3e-9, 1e-17), slow((100.2, 0.0, 0.0))])
def test_atoms_are_those_of_lalpulsar(sfts, tmp_path, spins):
    lal, lalpulsar = pytest.importorskip("lal"), pytest.importorskip("lalpulsar")
    write_sfts(tmp_path, sfts)
    tref = START + 50_000
    theirs, two_f, given = lal_atoms(lalpulsar, lal, tmp_path, tref, 2.2, -0.5, spins)
    dem = Demodulator(sfts, 2.2, -0.5, tref, barycentre="lal")
    weights = lalpulsar.GetFstatInputNoiseWeights(given)
    for X, one in enumerate(dem._factors):
        a, _ = antenna_patterns(sfts[X].t + 900, sfts[X].detector, 2.2, -0.5)
        np.testing.assert_allclose(one[0], a * np.sqrt(weights.data[X].data), rtol=1e-6)
    assert dem._level == pytest.approx(weights.Sinv_Tsft, rel=1e-6)
    ours = dem.atoms(*spins)
    turn = np.vdot(np.concatenate([x.Fa for x in ours]), np.concatenate([x.Fa for x in theirs]))
    turn /= abs(turn)
    for mine, other, (delay, rate) in zip(ours, theirs, dem._times, strict=True):
        assert np.array_equal(mine.t, other.t)
        f, f1, f2 = spins
        since = delay + dem.middle - tref
        bins = 1800 * rate * (f + f1 * since + f2 * since**2 / 2)
        # beside a bin LALPulsar's sum in float32 is 1e-4 from the same sum in float64, ours 1e-6 (the test below)
        clear = np.abs(bins - np.rint(bins)) > 2e-3
        assert clear.mean() > 0.8
        for name in ("Fa", "Fb"):
            x, y = getattr(mine, name) * turn, getattr(other, name)
            off = np.abs(x - y) / np.abs(y).max()
            assert off[clear].max() <= 5e-5, name
            assert off.max() <= 3e-4, name
        # LALPulsar takes sines from a table: a and b are 8e-6 from its own ComputeDetAMResponse; weights are below 3.5
        for name in ("a2", "b2", "ab"):
            np.testing.assert_allclose(getattr(mine, name), getattr(other, name), rtol=0, atol=2 * 3.5 * 8e-6)
    total = transient_map(ours, window="none", dtype="float64").max2F
    assert total == pytest.approx(two_f, rel=1e-4)


@pytest.mark.few
def test_noise_may_be_known_as_in_lalpulsar(sfts, tmp_path):
    """Also for SFTs of fewer bins than a running median needs."""
    lal, lalpulsar = pytest.importorskip("lal"), pytest.importorskip("lalpulsar")
    write_sfts(tmp_path, sfts)
    levels, spins = {"H1": 1.5e-23, "L1": 2.5e-23}, (99.7123, 3e-9, 1e-17)
    theirs, two_f, given = lal_atoms(lalpulsar, lal, tmp_path, START, 2.2, -0.5, spins, levels.values())
    weights = lalpulsar.GetFstatInputNoiseWeights(given)
    narrow = [one.part(99.69, 99.735) for one in sfts]
    for some in (sfts, narrow):
        dem = Demodulator(some, 2.2, -0.5, START, barycentre="lal", noise=levels)
        assert dem._level == pytest.approx(weights.Sinv_Tsft, rel=1e-6)
        ours = dem.atoms(*spins)
        for mine, other in zip(ours, theirs, strict=True):
            for name in ("a2", "b2", "ab"):
                np.testing.assert_allclose(getattr(mine, name), getattr(other, name), rtol=0, atol=2 * 8e-6 * 2)
        assert transient_map(ours, window="none", dtype="float64").max2F == pytest.approx(two_f, rel=1e-4)
    both = {key: Demodulator(narrow, 2.2, -0.5, noise=value, barycentre="builtin").atoms(99.7)[0].Fa
            for key, value in {"one": 2e-23, "dict": {"H1": 2e-23, "L1": 2e-23}}.items()}  # fmt: skip
    assert np.array_equal(both["one"], both["dict"])
    for noise, message in ((-1, "noise=-1: expected a positive number"), ({"H1": 1e-23}, "expected a value for L1")):
        with pytest.raises(ValueError, match=message):
            Demodulator(narrow, 2.2, -0.5, noise=noise, barycentre="builtin")
    with pytest.raises(ValueError, match="has 82 bins, expected at least 101"):
        Demodulator(narrow, 2.2, -0.5, barycentre="builtin")


@pytest.mark.few
@pytest.mark.parametrize(("dtype", "tolerance"), [("complex64", 2e-6), ("complex128", 1e-12)])
@pytest.mark.parametrize(
    "near", [0.0, 1e-9, 1e-6, 1e-4, 3.0004e-4, 0.01, 0.3, 0.5, 0.7, 0.99, 0.99937, 0.9999, 1 - 1e-6]
)
def test_the_sum_over_bins_is_the_plain_one(near, dtype, tolerance):
    """Projections against the formula of Williams & Schutz in float64, on and beside a bin."""
    from skysieve.fstat.cpu.demod import DTERMS, NEAR, projections

    rng = np.random.default_rng(3)
    data = (rng.standard_normal((40, 60)) + 1j * rng.standard_normal((40, 60))).astype(dtype)
    delay, rate = np.zeros(40), np.ones(40)
    f0 = np.full(5, (1000 + 30 + near) / 1800.0)
    found, failed = projections(data, 1000, delay, rate, 1800.0, f0, np.zeros(5), np.zeros(5))
    assert failed == -1
    cycles = 1800 * f0[0]
    whole = np.floor(cycles)
    kappa = cycles - whole
    low = int(whole) - DTERMS + 1 - 1000
    x = data[:, low : low + 2 * DTERMS].astype(complex)
    if min(kappa, 1 - kappa) <= NEAR[data.real.dtype.name]:
        expected = x[:, DTERMS - 1 if kappa < 0.5 else DTERMS]
    else:
        turn = np.pi * (kappa - np.rint(kappa))  # sin(2 x) and cos(2 x) - 1
        factor = 2 * np.sin(turn) * (np.cos(turn) - 1j * np.sin(turn))
        expected = (x / (kappa + DTERMS - 1 - np.arange(2 * DTERMS))).sum(axis=1) * factor / (2 * np.pi)
    expected = expected * np.exp(2j * np.pi * 0.5 * cycles)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=0, atol=tolerance * np.abs(x).max())


def test_a_batch_is_its_templates(sfts):
    dem = Demodulator(sfts, 2.2, -0.5, START, barycentre="builtin")
    f0 = 100 + np.r_[np.linspace(-1e-4, 1e-4, 150), 0.2, -0.3]
    batches = dem.batch(f0, -1e-9)
    for i in (0, 77, 149, 150, 151):
        one = dem.atoms(f0[i], -1e-9)
        for batch, atoms in zip(batches, one, strict=True):
            np.testing.assert_allclose(batch.template(i).Fa, atoms.Fa, rtol=0, atol=1e-5)
            assert batch.params["f0"][i] == f0[i]


@pytest.mark.slow
def test_float64_atoms(sfts):
    """Atoms in single precision are the rounded ones in double precision, except beside a bin."""
    f0 = 100 + np.arange(7) * 3.3e-6
    single, double = (
        Demodulator(sfts, 2.2, -0.5, START, barycentre="builtin", dtype=d) for d in ("float32", "float64")
    )
    for one, two, (delay, rate) in zip(single.batch(f0, -1e-9), double.batch(f0, -1e-9), single._times, strict=True):
        assert {x.dtype for x in (two.Fa, two.Fb)} == {np.dtype(np.complex128)}
        assert {x.dtype for x in (two.a2, two.b2, two.ab)} == {np.dtype(np.float64)}
        since = delay + single.middle - START
        bins = 1800 * rate * (f0[:, None] - 1e-9 * since)
        clear = np.abs(bins - np.rint(bins)) > 2.1e-4
        assert clear.mean() > 0.9
        off = np.abs(one.Fa - two.Fa)
        assert 0 < off[clear].max() < 5e-6 * np.abs(two.Fa).max()
        assert off.max() < 2e-3 * np.abs(two.Fa).max()
    with pytest.raises(ValueError, match="float16"):
        Demodulator(sfts, 2.2, -0.5, START, barycentre="builtin", dtype="float16")


def test_a_signal_is_found_where_it_is(sfts):
    """The loudest template of a grid is the injected one, with the expected 2F."""
    dem = Demodulator(sfts, 2.2, -0.5, START, barycentre="builtin")
    f0, f1 = np.meshgrid(100 + np.arange(-20, 21) * 2e-6, -1e-9 + np.arange(-3, 4) * 4e-11, indexing="ij")
    table = search(dem.batch(f0.ravel(), f1.ravel()), windows=("none",), device="cpu").to_table("none")
    best = table[int(np.argmax(table["max2F"]))]
    assert best["f0"] == pytest.approx(100, abs=2e-6)
    assert best["f1dot"] == pytest.approx(-1e-9, abs=4e-11)
    clean = simulate_sfts((99.9, 100.1), START, 172_800, signals=signal(), noise=0, ephemeris="builtin")
    level = {"H1": 1e-23 * np.linspace(1, 3, 96), "L1": np.full(96, 2e-23)}
    keep = {"H1": np.ones(96, bool), "L1": np.isin(clean[1].t, sfts[1].t)}
    snr = sum(
        (4 / 1800 * (np.abs(one.data[keep[one.detector]].astype(complex)) ** 2).sum(axis=1)
         / level[one.detector][keep[one.detector]] ** 2).sum()
        for one in clean
    )  # fmt: skip
    assert best["max2F"] == pytest.approx(4 + snr, abs=4 * np.sqrt(2 * (4 + 2 * snr)))


def test_a_transient_is_found_in_time(sfts):
    t0, tau = START + 50 * 1800, 20 * 1800
    wave = signal(window="rect", t0=t0, tau=tau, h0=8e-24)
    made = simulate_sfts((99.9, 100.1), START, 172_800, signals=wave, ephemeris="builtin")
    atoms = Demodulator(made, 2.2, -0.5, START, barycentre="builtin").atoms(100.0, -1e-9)
    found = transient_map(atoms, Grid.full(atoms), window="rect", device="cpu")
    assert found.max2F > 60
    assert abs(found.t0_ml - t0) <= 2 * 1800
    assert abs(found.tau_ml - tau) <= 3 * 1800


def test_wrong_input_is_named(sfts):
    with pytest.raises(ValueError, match="barycentre='x': expected one of auto, lal, de405, builtin, or a dict"):
        Demodulator(sfts, 0.5, 1.0, barycentre="x")
    with pytest.raises(ValueError, match=r"template 1, H1: SFTs hold .* too narrow by .* Hz above"):
        Demodulator(sfts, 2.2, -0.5, barycentre="builtin").batch([100, 100.6])
    with pytest.raises(ValueError, match=r"f0\[1\] = nan"):
        Demodulator(sfts, 2.2, -0.5, barycentre="builtin").batch([100, np.nan])
    with pytest.raises(ValueError, match="several sets are of the same detector"):
        Demodulator([sfts[0], sfts[0]], 0, 0)
    with pytest.raises(ValueError, match="dec=2"):
        Demodulator(sfts, 0, 2)
    with pytest.raises(ValueError, match="barycentre has no times of L1"):
        Demodulator(sfts, 0, 0, barycentre={"H1": (np.zeros(96), np.ones(96))})
    with pytest.raises(ValueError, match="ephemeris='jpl'"):
        barycentre([START], "H1", 0, 0, "jpl")
    with pytest.raises(ValueError, match="detector='X1'"):
        barycentre([START], "X1", 0, 0, "builtin")

    def like(one, **changes):
        values = {"detector": one.detector, "t": one.t, "tsft": one.tsft, "first_bin": one.first_bin, "data": one.data}
        return SFTs(**(values | changes))

    h1, l1 = sfts
    nan = h1.data.copy()
    nan[7, 3] = np.nan
    place = {"ra": 0, "dec": 0, "barycentre": "builtin"}
    for wrong, message in (
        ([like(h1, detector="X1")], "detector='X1'"), ([h1, like(l1, tsft=900)], "sfts are 900, 1800 s long"),
        ([like(h1, t=h1.t + 10**10)], "t: GPS .* the ephemeris 'builtin' covers"), ([], "sfts is empty"),
        ([like(h1, data=nan)], "H1: the SFT at GPS 1000012600 holds NaN"),
        ([like(h1, data=0 * h1.data)], "holds zeros"),
        ([like(h1, data=h1.data[:, :50])], "H1 has 50 bins, expected at least 101"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Demodulator(wrong, **place)
    for options, message in (
        ({"window": 100}, "window=100: expected an odd"), ({"tref": np.nan}, "tref=nan"), ({"ra": np.inf}, "ra=inf"),
        ({"ra": 83.6}, "ra=83.6: expected an angle in radians, -2 pi to 2 pi"), ({"dec": 22.0}, "dec=22.0: expected"),
        ({"barycentre": {"H1": (np.zeros(3), np.ones(3))}}, r"delays of shape \(3,\), expected \(96,\)"),
        ({"device": "tpu"}, "device='tpu'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Demodulator(h1, **(place | options))
    for wrong in ({"cosi": 2}, {"ra": 90.0}, {"dec": 45.0}, {"f0": np.nan}, {"tref": np.inf}, {"psi": np.nan}):
        with pytest.raises(ValueError, match="{}={}: expected".format(*next(iter(wrong.items())))):
            signal(**wrong)
    with pytest.raises(ValueError, match="no SFT of 1800 s fits"):
        simulate_sfts((99.9, 100.1), START, 100)
    for given, message in (
        ({"detectors": ["H1", "H1"]}, "each name once"), ({"noise": {"H1": 1e-23}}, "expected a value for L1"),
        ({"tsft": 0}, "tsft=0"), ({"ephemeris": "jpl"}, "ephemeris='jpl'"), ({"t_start": np.nan}, "t_start=nan"),
        ({"gaps": [(START + 10**4, START)]}, "expected the end after the beginning"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            simulate_sfts((99.9, 100.1), **given)
    with pytest.raises(TypeError, match="signals holds a str, expected Signal"):
        simulate_sfts((99.9, 100.1), signals="x")
    with pytest.raises(TypeError, match="sfts holds a float, expected SFTs"):
        Demodulator(np.nan, **place)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"f0": 105.0}, r"signal of f0=105 Hz at tref=.*outside the band of the SFTs, 99\.9 to 100\.1 Hz"),
        ({"f0": 99.0}, "outside the band"),
        ({"window": "rect", "t0": 2_000_000_000, "tau": 7200}, "t0=2000000000, tau=7200: no SFT starts in it; .* GPS"),
        ({"window": "exp", "t0": START - 7200, "tau": 2400}, "no SFT starts in it"),
    ],
)
def test_signals_that_miss_the_sfts_are_refused(changes, message):
    missed, options = signal(**changes), {"span": 7200, "ephemeris": "builtin"}
    with pytest.raises(ValueError, match=message):
        simulate_sfts((99.9, 100.1), START, signals=[signal(f0=100.0), missed], **options)
    noise = simulate_sfts((99.9, 100.1), START, gaps={"L1": [(START, START + 3600)]}, **options)
    with pytest.raises(ValueError, match=message):
        inject(noise, missed, "builtin")
    inject(noise, signal(f0=100.0, window="rect", t0=START, tau=3600), "builtin")  # H1 alone sees it


@pytest.mark.parametrize("ephemeris", ["lal", "de405", "builtin"])
def test_times_outside_the_ephemeris_are_named(ephemeris):
    if ephemeris == "lal":
        pytest.importorskip("lalpulsar")
    if ephemeris == "de405":
        pytest.importorskip("solar_system_ephemerides")
    far = {"builtin": (-3e9, 4e9)}.get(ephemeris, (1e5, 1.9e9))
    for second in (*far, np.nan):
        with pytest.raises(ValueError, match=f"t: GPS .*; the ephemeris '{ephemeris}' covers"):
            barycentre([START, second], "H1", 0.1, 0.2, ephemeris)
    first, last = SPANS[ephemeris]
    assert np.isfinite(barycentre([first, last], "H1", 0.1, 0.2, ephemeris)).all()


def test_given_times_are_used(sfts):
    times = {one.detector: barycentre(one.t + 900.0, one.detector, 2.2, -0.5, "builtin") for one in sfts}
    given = Demodulator(sfts, 2.2, -0.5, START, barycentre=times).atoms(100.0)
    for mine, other in zip(given, Demodulator(sfts, 2.2, -0.5, START, barycentre="builtin").atoms(100.0), strict=True):
        assert np.array_equal(mine.Fa, other.Fa)


def test_sidereal_time_is_that_of_erfa():
    """Random times, and both sides of every leap second; ERFA stretches the days that end with one."""
    erfa = pytest.importorskip("erfa")
    edges = np.array(LEAP_SECONDS)
    t = np.random.default_rng(1).uniform(1e7, 1.6e9, 2000)
    t = t[[not ((second - 86_400 <= edges) & (edges <= second + 86_400)).any() for second in t]]
    t = np.concatenate([t, edges - 86_402.0, edges + 1.5])
    expected = erfa.gmst82(*erfa.taiutc(np.full(len(t), 2_444_244.5), (t + 19) / 86400))
    off = np.remainder(sidereal_angle(t) - expected + np.pi, 2 * np.pi) - np.pi
    assert np.abs(off).max() < 1e-9


def test_a_band_narrower_than_the_orbital_shift_leaves_every_template_out():
    """Over a year, the Doppler shift of a line at 1 kHz is wider than these SFTs; no template has atoms."""
    rng = np.random.default_rng(5)
    n, bins = 60, 150
    data = (rng.normal(size=(n, bins)) + 1j * rng.normal(size=(n, bins))).astype(np.complex64)
    narrow = SFTs("H1", 1_000_000_000 + np.arange(n) * 6 * 86_400, 1800.0, 1_800_000 - bins // 2, data)
    with Demodulator([narrow], 0.5, 1.0, barycentre="builtin", device="cpu") as demodulator:
        (batch,) = demodulator.batch([1000.0, 1000.001], strict=False)
        assert set(batch.errors) == set(batch.faults()) == {0, 1}
        assert "too narrow" in batch.errors[1]
        assert not batch.Fa.any()
        with pytest.raises(ValueError, match=r"template 0, H1.*too narrow"):
            demodulator.first(TemplateBank([1000.0, 1000.001]))
