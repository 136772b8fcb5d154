"""Amplitudes of signals against LALPulsar's estimates, injected values and the scatter of many draws."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.fstat import Demodulator, Signal, load_atoms, simulate_sfts, transient_map, write_sfts
from skysieve.fstat.demod.amplitudes import amplitudes_of

NAMES = "h0", "cosi", "psi", "phi0", "a_plus", "a_cross"
LEVEL = 1e49
START = 1_000_000_000


def sums(antenna, values):
    return np.array([*antenna, values[0].real, values[0].imag, values[1].real, values[1].imag])


def expected_sums(antenna, h0, cosi, psi, phi0):
    """Fa and Fb of a signal without noise."""
    a, b, c = antenna
    plus, cross = h0 * (1 + cosi**2) / 2, h0 * cosi
    both = np.array([plus * np.cos(2 * psi) + 1j * cross * np.sin(2 * psi),
                     plus * np.sin(2 * psi) - 1j * cross * np.cos(2 * psi)])  # fmt: skip
    return np.sqrt(LEVEL / 2) * np.array([[a, c], [c, b]]) @ both * np.exp(1j * phi0)


@pytest.mark.parametrize("seed", range(20))
def test_amplitudes_are_those_of_lalpulsar(seed):
    """Also the phase at another time than that of the sums."""
    lal, lalpulsar = pytest.importorskip("lal"), pytest.importorskip("lalpulsar")
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(5, 50, 2)
    c = rng.uniform(-0.9, 0.9) * np.sqrt(a * b)
    values = 40 * rng.normal(size=4).view(complex)
    matrix = lalpulsar.AntennaPatternMatrix()
    matrix.Ad, matrix.Bd, matrix.Cd, matrix.Ed, matrix.Dd, matrix.Sinv_Tsft = a, b, c, 0, a * b - c * c, LEVEL
    candidate, point = lalpulsar.PulsarCandidate(), lalpulsar.PulsarDopplerParams()
    spins = np.zeros(lalpulsar.PULSAR_MAX_SPINS)
    spins[:3] = 100, -1e-9, 1e-17
    point.refTime, point.fkdot = lal.LIGOTimeGPS(START), spins
    candidate.Doppler = point
    dt = 86_400
    lalpulsar.EstimatePulsarAmplitudeParams(candidate, lal.LIGOTimeGPS(START + dt), *map(complex, values), matrix)
    found = amplitudes_of(sums((a, b, c), values), LEVEL, 100 * dt - 1e-9 * dt**2 / 2 + 1e-17 * dt**3 / 6)
    theirs = candidate.Amp
    for name, value in (("a_plus", theirs.aPlus), ("a_cross", theirs.aCross), ("psi", theirs.psi)):
        assert getattr(found, name) == pytest.approx(value, rel=1e-6, abs=1e-6 * found.h0 if "_" in name else 1e-6)
    assert np.exp(1j * found.phi0) == pytest.approx(np.exp(1j * theirs.phi0), abs=1e-6)
    assert found.a_plus == pytest.approx(found.h0 * (1 + found.cosi**2) / 2, rel=1e-12)
    assert found.a_cross == pytest.approx(found.h0 * found.cosi, rel=1e-12)


@pytest.mark.parametrize("truth", [(4e-24, 0.45, 0.3, 1.2), (4e-24, -0.2, -0.6, 5.0), (4e-24, 0.0, 0.75, 3.0)])
def test_errors_are_the_scatter_of_many_draws(truth):
    """3,000 draws determine a standard deviation to 1.3%."""
    antenna = 30.0, 12.0, 11.0
    rng = np.random.default_rng(0)
    clean = expected_sums(antenna, *truth)
    a, b, c = antenna
    root = np.linalg.cholesky([[a, c], [c, b]])
    draws = clean + rng.normal(size=(3000, 4)).view(complex) / np.sqrt(2) @ root.T
    at = amplitudes_of(sums(antenna, clean), LEVEL, 0)
    assert [at.h0, at.cosi, at.psi, at.phi0] == pytest.approx(list(truth), abs=1e-12)
    found = [amplitudes_of(sums(antenna, draw), LEVEL, 0) for draw in draws]
    values = np.array([[getattr(one, name) for name in NAMES] for one in found])
    values[:, 2] -= np.round((values[:, 2] - truth[2]) / (np.pi / 2)) * np.pi / 2
    values[:, 3] -= np.round((values[:, 3] - truth[3]) / np.pi) * np.pi  # psi + pi / 2 is phi0 + pi
    for k, name in enumerate(NAMES):
        assert values[:, k].std() == pytest.approx(at.errors[name], rel=0.08), name
    assert np.mean([one.twoF for one in found]) == pytest.approx(at.twoF + 4, rel=0.01)


@pytest.fixture(scope="module")
def wave():
    return Signal(
        f0=100.05, h0=6e-24, ra=0.5, dec=1.0, tref=START - 3_000_000, f1dot=-1e-9, f2dot=1e-17, cosi=-0.4, psi=0.2,
        phi0=2.0, window="exp", t0=START + 30_000, tau=40_000,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sfts(wave):
    return simulate_sfts((100, 100.1), START, 172_800, signals=wave, noise={"H1": 1e-23, "L1": 2e-23},
                         ephemeris="builtin", seed=2)  # fmt: skip


def test_the_amplitudes_of_an_injected_transient_are_found(wave, sfts):
    """h0 is that at the start of the window, and the phase that at the reference time, a month before the data."""
    spins = wave.f0, wave.f1dot, wave.f2dot
    host = Demodulator(sfts, wave.ra, wave.dec, wave.tref, barycentre="builtin")
    found = host.amplitudes(*spins, window="exp", t0=wave.t0, tau=wave.tau)
    assert found.twoF > 500
    for name in ("h0", "cosi", "psi", "phi0"):
        assert abs(getattr(found, name) - getattr(wave, name)) < 4 * found.errors[name], name
    assert found.errors["h0"] < 0.1 * wave.h0
    best = transient_map(host.atoms(*spins), window="exp", device="cpu")
    assert host.amplitudes(*spins, window="exp", t0=best.t0_ml, tau=best.tau_ml).twoF == pytest.approx(best.max2F)
    assert host.amplitudes(*spins).twoF == pytest.approx(transient_map(host.atoms(*spins), window="none").max2F)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "rect"}, "t0=None, tau=None: expected the start time and duration of the window 'rect'"),
        ({"t0": START, "tau": 7200}, "the window 'none' covers all data"),
        ({"window": "rect", "t0": START + 10**6, "tau": 7200}, "leaves fewer than two SFTs before the end of the data"),
        ({"window": "rect", "t0": START, "tau": 1800}, "tau=1800 holds fewer than two SFTs"),
    ],
)
def test_wrong_windows_are_named(wave, sfts, options, message):
    host = Demodulator(sfts, wave.ra, wave.dec, wave.tref, barycentre="builtin")
    with pytest.raises(ValueError, match=message):
        host.amplitudes(wave.f0, wave.f1dot, wave.f2dot, **options)


def test_a_matrix_that_is_singular_is_an_error():
    with pytest.raises(ValueError, match="do not determine the amplitudes"):
        amplitudes_of(np.array([1.0, 1, 1, 1, 2, 3, 4]), LEVEL, 0)


def test_a_map_of_sft_files_is_that_of_their_atoms(wave, sfts, tmp_path):
    """The command prints the amplitudes, and writes the atoms, of which the same map can be made again."""

    def run(*args):
        return CliRunner().invoke(app, ["fstat", "map", *map(str, args), "--device", "cpu"])

    write_sfts(tmp_path, sfts)
    place = ["--ra", wave.ra, "--dec", wave.dec, "--tref", wave.tref, "--ephemeris", "builtin"]
    spins = ["--freq", wave.f0, "--f1dot", wave.f1dot, "--f2dot", wave.f2dot]
    done = run("--sfts", tmp_path, *place, *spins, "-w", "exp", "--atoms", tmp_path / "a.npz")
    assert done.exit_code == 0, done.output
    again = run(tmp_path / "a.npz", "-w", "exp")
    assert done.stdout.splitlines()[:-2] == again.stdout.splitlines()
    assert [a.detector for a in load_atoms(tmp_path / "a.npz")] == ["H1", "L1"]
    words = done.stdout.split()
    values = {name: float(words[words.index(name) + 1]) for name in ("h0", "cosi")}
    assert values["h0"] == pytest.approx(wave.h0, rel=0.3)
    assert values["cosi"] == pytest.approx(wave.cosi, abs=0.2)
    assert done.stdout.endswith(f"(at GPS {wave.tref})\n")
    for args, message in (
        (["--sfts", tmp_path, *place], "--sfts needs --ra, --dec and --freq; found --ra 0.5, --dec 1.0"),
        (["--sfts", tmp_path, *place, *spins, "--tatom", 1800], "--tatom 1800: is for files of atoms only"),
        (["--sfts", tmp_path, *place, "--freq", 105], "--freq 105: the templates need"),
        (["--sfts", tmp_path, *place, *spins, "--atoms", "x.csv"], "--atoms x.csv: expected one of npz"),
        ([tmp_path / "a.npz", "--freq", 105], "--freq needs --sfts"),
        ([tmp_path / "a.npz", tmp_path / "b.npz"], "2 files of atoms given: expected one, or --sfts"),
        ([], "0 files of atoms given: expected one, or --sfts"),
    ):
        failed = run(*args)
        assert failed.exit_code == 2
        assert message in failed.stderr
