"""PyFstat's own searches on skysieve, compared with LALPulsar's maps; atoms from LALPulsar's memory."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.marks import slow

from skysieve.fstat import (
    Atoms,
    Grid,
    TemplateBank,
    from_lal,
    read_sfts,
    register_pyfstat,
    search_sfts,
    synth_atoms,
    transient_map,
)
from skysieve.fstat.template_search.bsgl import BSGL

lp = pytest.importorskip("lalpulsar", reason="lalsuite is not installed")

T = 1800
T0 = 1_000_000_000
DAY2 = 2 * 86400


def multi_atoms(atoms):
    """A ``MultiFstatAtomVector`` with these values."""
    multi = lp.CreateMultiFstatAtomVector(len(atoms))
    for x, a in enumerate(atoms):
        vector = lp.CreateFstatAtomVector(len(a))
        vector.TAtom = a.tatom
        for j in range(len(a)):
            atom = vector.data[j]
            atom.timestamp = int(a.t[j])
            atom.a2_alpha, atom.b2_alpha, atom.ab_alpha = float(a.a2[j]), float(a.b2[j]), float(a.ab[j])
            atom.Fa_alpha, atom.Fb_alpha = complex(a.Fa[j]), complex(a.Fb[j])
            vector.data[j] = atom
        multi.data[x] = vector
    return multi


def window_range(grid, window):
    w = lp.transientWindowRange_t()
    w.type = {"none": lp.TRANSIENT_NONE, "rect": lp.TRANSIENT_RECTANGULAR, "exp": lp.TRANSIENT_EXPONENTIAL}[window]
    w.t0, w.t0Band, w.dt0 = int(grid.t0s[0]), grid.t0_band, grid.dt0
    w.tau, w.tauBand, w.dtau = int(grid.taus[0]), grid.tau_band, grid.dtau
    return w


ATOMS = synth_atoms(T0, 60 * T, seed=3, gaps={"L1": [(T0 + 20 * T, T0 + 30 * T)]}, offsets=[0, 700])
GRIDS = {
    "full": Grid.full(ATOMS),
    "off the bins": Grid(t0=T0 + 700, t0_band=50 * T, dt0=2500, tau=4100, tau_band=40 * T, dtau=1100),
    "one cell": Grid(t0=T0 + 5 * T, tau=9 * T),
}


def test_atoms_are_read_as_a_view_and_one_by_one():
    from skysieve.fstat import pyfstat as interop

    multi = multi_atoms(ATOMS)
    assert from_lal(multi, ["H1", "L1"]) == ATOMS
    for vector in multi.data:
        at_once = interop._records(vector)
        listed = type("Listed", (), {"data": list(vector.data), "length": vector.length})()  # no array to look into
        assert np.array_equal(interop._records(listed), at_once)


@pytest.mark.parametrize("window", ["none", "rect", "exp"])
@pytest.mark.parametrize("grid", list(GRIDS))
def test_compat_is_lalpulsar_run_now(grid, window):
    multi, w = multi_atoms(ATOMS), window_range(GRIDS[grid], window)
    theirs = lp.ComputeTransientFstatMap(multi, w, False)
    r = transient_map(ATOMS, GRIDS[grid], window=window, compat="lalpulsar")
    assert np.array_equal(r.F, theirs.F_mn.data.astype(np.float32))
    assert (r.max_F, r.t0_ml, r.tau_ml) == (theirs.maxF, theirs.t0_ML, theirs.tau_ML)
    assert r.lnBtSG == pytest.approx(lp.ComputeTransientBstat(w, theirs), abs=1e-12)
    if window != "none":
        assert r.t0_mp == pytest.approx(lp.FindModeOfPDF1D(lp.ComputeTransientPosterior_t0(w, theirs)), abs=1e-6)


@pytest.mark.parametrize("odds", [[0.5, 0.5], [0.3, 2.0], [1.0, 0.0]])
@pytest.mark.parametrize("Fstar0", [0.0, 5.0, 20.0])
def test_bsgl_is_lalpulsars(Fstar0, odds):
    setup = lp.CreateBSGLSetup(2, Fstar0, np.array(odds + [0] * 8, np.float32), True, 1)
    rng = np.random.default_rng(0)
    for twoF, *alone in rng.uniform(0, 120, (20, 3)).astype(np.float32):
        given = np.zeros(10, np.float32)
        given[:2] = alone
        # LALPulsar computes in float32
        assert BSGL(Fstar0, odds).log10(twoF, alone) == pytest.approx(
            lp.ComputeBSGL(float(twoF), given, setup), abs=2e-5
        )


# ---------------------------------------------------------------- PyFstat


@pytest.fixture(scope="module")
def pyfstat():
    module = pytest.importorskip("pyfstat", reason="pyfstat is not installed")
    logging.getLogger("pyfstat").setLevel(logging.ERROR)
    register_pyfstat(device="cpu", threads=1)
    return module


@pytest.fixture(scope="module")
def sfts(pyfstat, tmp_path_factory):
    """Two days of two detectors with a transient signal of half a day."""
    folder = tmp_path_factory.mktemp("sfts")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where LALSuite's programs are
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        yield make_sfts(pyfstat, folder)


def make_sfts(pyfstat, folder):
    writer = pyfstat.Writer(
        label="t", outdir=str(folder), tstart=T0, duration=2 * 86400, detectors="H1,L1", sqrtSX=1e-23, F0=30.0, F1=0.0,
        F2=0.0, Alpha=0.5, Delta=1.0, h0=8e-25, cosi=0.8, tref=T0, Band=1.0, Tsft=T,
        transientStartTime=T0 + 10 * T, transientTau=24 * T, transientWindowType="rect", randSeed=7,
    )  # fmt: skip
    writer.make_data()
    return writer


def test_unknown_names_and_options(pyfstat):
    for name in ("lal", "pycuda", "mycuda"):
        with pytest.raises(ValueError, match=f"name='{name}'"):
            register_pyfstat(name)
    with pytest.raises(ValueError, match="dtype='int8'"):
        register_pyfstat("other", dtype="int8")
    assert "other" not in pyfstat.tcw_fstat_map_funcs.fstatmap_versions
    features, context = pyfstat.tcw_fstat_map_funcs.init_transient_fstat_map_features("skysieve")
    assert features["skysieve"]
    assert context is None
    with pytest.raises(ValueError, match="Unknown transient"):
        pyfstat.tcw_fstat_map_funcs.init_transient_fstat_map_features("nothing")
    register_pyfstat("exact", device="cpu", dtype="float64")  # again: names are added, nothing is wrapped twice
    assert pyfstat.tcw_fstat_map_funcs.init_transient_fstat_map_features("exact")[0]["exact"]


@pytest.mark.parametrize("window", ["none", "rect", "exp"])
@pytest.mark.parametrize("grid", list(GRIDS))
def test_maps_as_pyfstat_calls_them(pyfstat, grid, window):
    maps = pyfstat.tcw_fstat_map_funcs
    multi, w = multi_atoms(ATOMS), window_range(GRIDS[grid], window)
    features, _ = maps.init_transient_fstat_map_features("skysieve")
    theirs, _ = maps.call_compute_transient_fstat_map("lal", features, multi, w, True)
    ours, _ = maps.call_compute_transient_fstat_map("skysieve", features, multi, w, True)
    assert ours.F_mn.shape == theirs.F_mn.shape
    assert ours.F_mn.dtype == np.float32
    loose = 0.03 if window == "exp" else 3e-4  # LALPulsar's table of exponentials is off by up to 1.8% in F
    assert np.abs(ours.F_mn - theirs.F_mn).max() <= loose * theirs.maxF
    assert ours.maxF == pytest.approx(theirs.maxF, rel=loose)
    assert ours.maxF == ours.F_mn[ours.get_maxF_idx()]
    if window != "exp":
        assert (ours.t0_ML, ours.tau_ML) == (theirs.t0_ML, theirs.tau_ML)
        assert ours.lnBtSG == pytest.approx(theirs.lnBtSG, abs=5e-3)
        assert (ours.t0_MP, ours.tau_MP) == (pytest.approx(theirs.t0_MP), pytest.approx(theirs.tau_MP))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight", [1e-7, 1e-9, 1e-12, 0.0])
@pytest.mark.parametrize("window", ["rect", "exp"])
def test_uneven_noise_weights_as_lalpulsar_sees_them(window, weight, dtype):
    """Noise in which 40 SFTs have little weight or none, as PyFstat calls the plug-in; LALPulsar sums every window."""
    from skysieve.fstat.pyfstat import MapMaker

    whole = synth_atoms(T0, 100 * T, detectors=["H1"], seed=2)[0]
    factor = np.ones(100, np.float32)
    factor[30:70] = weight
    root = np.sqrt(factor)
    uneven = Atoms(whole.t, whole.a2 * factor, whole.b2 * factor, whole.ab * factor, whole.Fa * root, whole.Fb * root)
    grid = Grid.full(uneven)
    multi, w = multi_atoms([uneven]), window_range(grid, window)
    theirs = lp.ComputeTransientFstatMap(multi, w, False)
    made = type("Made", (), {"__init__": lambda self, *shape: None})
    ours = MapMaker(made, "cpu", dtype, None, 1)(multi, w, BtSG=True)
    F, R = ours.F_mn, theirs.F_mn.data
    # LALPulsar's table of exponentials is off by up to 1.8% in F, and its D by more than that where the condition
    # number is several thousand
    assert np.quantile(np.abs(F - R), 0.99) <= 0.02 * theirs.maxF
    assert ours.maxF == pytest.approx(theirs.maxF, rel=0.03 if window == "exp" else 3e-4)
    assert ours.maxF < 15
    assert np.isfinite(F).all()
    assert ours.lnBtSG == pytest.approx(lp.ComputeTransientBstat(w, theirs), abs=0.05)


def test_cells_without_two_sfts_have_no_f(pyfstat):
    """LALPulsar stops at them; so did a long chain of samples."""
    maps = pyfstat.tcw_fstat_map_funcs
    features, _ = maps.init_transient_fstat_map_features("skysieve")
    w = window_range(Grid(t0=T0, tau=T), "rect")
    with pytest.raises(RuntimeError):
        maps.call_compute_transient_fstat_map("lal", features, multi_atoms(ATOMS), w)
    ours, _ = maps.call_compute_transient_fstat_map("skysieve", features, multi_atoms(ATOMS), w)
    assert ours.F_mn.tolist() == [[0.0]]
    w.dt0 = w.dtau = 0  # LALPulsar divides by it
    w.tau = 4 * T
    one, _ = maps.call_compute_transient_fstat_map("skysieve", features, multi_atoms(ATOMS), w)
    assert one.maxF > 0
    w.t0Band = 5 * T
    with pytest.raises(ValueError, match="dt0=0"):
        maps.call_compute_transient_fstat_map("skysieve", features, multi_atoms(ATOMS), w)
    w.type = 7
    with pytest.raises(ValueError, match=r"windowRange\.type=7"):
        maps.call_compute_transient_fstat_map("skysieve", features, multi_atoms(ATOMS), w)


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize(
    ("window", "statistic"), [slow("rect", {}), slow("exp", {"BtSG": True}), ("rect", {"BSGL": True})]
)
def test_transient_grid_search(pyfstat, sfts, tmp_path, window, statistic):
    found = {}
    for version in ("lal", "skysieve"):
        search = pyfstat.TransientGridSearch(
            label=version, outdir=str(tmp_path), sftfilepattern=sfts.sftfilepath, tref=T0,
            F0s=[29.99999, 30.0000101, 1e-5], F1s=[0.0], F2s=[0.0], Alphas=[0.5], Deltas=[1.0],
            transientWindowType=window, t0Band=2 * 86400 - 2 * T, tauBand=2 * 86400 - 2 * T,
            tCWFstatMapVersion=version, minStartTime=T0, maxStartTime=T0 + 2 * 86400,
            outputTransientFstatMap=True, **statistic,
        )  # fmt: skip
        search.run()
        found[version] = search
    a, b = found["lal"].data, found["skysieve"].data
    assert a.dtype == b.dtype
    assert len(a) == 3
    exp = window == "exp"
    for name in a.dtype.names:
        loose = {"t0_ML": 1800, "tau_ML": 5 * T, "t0_MP": 1800, "tau_MP": 5 * T} if exp else {}
        bound = loose.get(name, (0.02 if exp else 2e-4) * max(1, np.abs(a[name]).max()))
        if not (exp and name.startswith(("t0", "tau")) and a["maxTwoF"].max() < 40):
            assert np.abs(a[name] - b[name]).max() <= bound, name
    best = int(np.argmax(b["maxTwoF"]))
    assert b["F0"][best] == pytest.approx(30.0)
    assert b["maxTwoF"][best] > 60
    texts = [
        sorted(p.name.replace(v, "") for p in tmp_path.iterdir() if v in p.name and "tCW" in p.name) for v in found
    ]
    assert texts[0] == texts[1] != []


@pytest.mark.slow
@pytest.mark.parametrize("window", ["rect", slow("exp")])
def test_our_search_of_the_same_files_finds_the_same_candidate(pyfstat, sfts, tmp_path, window):
    """From SFTs written by lalpulsar_Makefakedata_v5: PyFstat's search with LALPulsar alone, and `search_sfts`."""
    step, grid = 1e-6, Grid(t0=T0, t0_band=DAY2 - 2 * T, dt0=T, tau=2 * T, tau_band=DAY2 - 2 * T, dtau=T)
    theirs = pyfstat.TransientGridSearch(
        label="whole", outdir=str(tmp_path), sftfilepattern=sfts.sftfilepath, tref=T0,
        F0s=[30 - 8 * step, 30 + 8 * step, step], F1s=[-1e-9, 1e-9, 1e-9], F2s=[0.0], Alphas=[0.5], Deltas=[1.0],
        transientWindowType=window, t0Band=grid.t0_band, tauBand=grid.tau_band, tCWFstatMapVersion="lal",
        minStartTime=T0, maxStartTime=T0 + DAY2, minCoverFreq=-0.035, maxCoverFreq=-0.035,
    )  # fmt: skip
    theirs.run()
    loudest = theirs.data[np.argmax(theirs.data["maxTwoF"])]
    bank = TemplateBank(np.unique(theirs.data["F0"]), np.unique(theirs.data["F1"]))
    assert len(bank) == len(theirs.data)
    found = search_sfts(
        read_sfts(sfts.sftfilepath.split(";")), 0.5, 1.0, bank, T0, grid=grid, windows=(window,), barycentre="lal",
        device="cpu", topk=len(bank),
    ).columns(window)  # fmt: skip
    best = {name: column[0] for name, column in found.items()}
    assert (best["f0"], best["f1dot"]) == (loudest["F0"], loudest["F1"])
    exp = window == "exp"  # LALPulsar's table of exponentials is off by up to 1.8% in F
    assert best["max2F"] == pytest.approx(loudest["maxTwoF"], rel=0.02 if exp else 1e-3)
    for ours, name in (("t0_ml", "t0_ML"), ("tau_ml", "tau_ML")):
        assert abs(best[ours] - loudest[name]) <= (2 * T if exp else 0)
    order = np.lexsort((found["f0"], found["f1dot"]))
    all_theirs = theirs.data[np.lexsort((theirs.data["F0"], theirs.data["F1"]))]["maxTwoF"]
    # noise floors: PyFstat loads all bins but about 60 on each side; with fewer bins 2F differs by up to 1.4%
    assert np.abs(found["max2F"][order] / all_theirs - 1).max() < (0.03 if exp else 5e-3)


@pytest.mark.slow
def test_searches_of_pyfstat_build_no_map(pyfstat, sfts, tmp_path, monkeypatch):
    from skysieve.fstat import pyfstat as interop

    def build(self):
        raise AssertionError("a map was built")

    monkeypatch.setattr(interop.LazyMap, "values", property(build))
    for statistic in ({}, {"BtSG": True}, {"BSGL": True}):
        search = pyfstat.TransientGridSearch(
            label="no map", outdir=str(tmp_path), sftfilepattern=sfts.sftfilepath, tref=T0, F0s=[30.0], F1s=[0.0],
            F2s=[0.0], Alphas=[0.5], Deltas=[1.0], transientWindowType="rect", t0Band=DAY2 - 2 * T,
            tauBand=DAY2 - 2 * T, tCWFstatMapVersion="skysieve", minStartTime=T0, maxStartTime=T0 + DAY2, **statistic,
        )  # fmt: skip
        search.run()
        assert search.data["maxTwoF"][0] > 60
    assert np.isfinite(search.data["log10BSGL"][0])


def test_a_map_that_is_read_later_is_the_map_of_its_atoms():
    from skysieve.fstat.pyfstat import LazyMap, MapMaker

    made = type("Made", (), {"__init__": lambda self, *shape: None})
    maker = MapMaker(made, "cpu", "float32", None, 1)
    multi, w = multi_atoms(ATOMS), window_range(GRIDS["full"], "exp")
    F = maker(multi, w).F_mn
    assert isinstance(F, LazyMap)
    for vector in multi.data:  # PyFstat's memory serves the next template
        for j in range(vector.length):
            vector.data[j] = type(vector.data[j])()
    truth = transient_map(ATOMS, GRIDS["full"], window="exp", dtype="float32", device="cpu").F
    rows, columns = F.shape
    alone = [F[m, n] for m, n in ((3, 4), (rows - 1, 0), (20, columns - 1), (-1, -1))]
    assert alone == pytest.approx([truth[3, 4], truth[-1, 0], truth[20, -1], truth[-1, -1]], rel=3e-4)
    assert np.array_equal(np.asarray(F), truth)
    assert np.array_equal(F[5:9], truth[5:9])
    assert np.array_equal(2 * F, 2 * truth)
    assert (F.max(), len(F), [*F][2].tolist()) == (truth.max(), rows, truth[2].tolist())
    assert np.array_equal(pickle.loads(pickle.dumps(F)), truth)
    F[0, 0] = 7
    assert np.asarray(F, np.float64)[0, 0] == 7
    same = F
    F *= 2  # as an array: in place
    assert F is same
    assert (F[0, 0], F[5, 6]) == (14, 2 * truth[5, 6])
    target = np.empty(F.shape, np.float32)
    assert np.add(F, 1, out=target) is target
    assert target[0, 0] == 15


@pytest.mark.slow
def test_transient_mcmc(pyfstat, sfts, tmp_path, monkeypatch):
    """With the same random numbers the chains walk the same way, to rounding, and find the signal."""
    chains = []
    usual = np.random.mtrand.RandomState
    for version in ("lal", "skysieve"):
        prior = {
            "F0": {"type": "unif", "lower": 30 - 1e-5, "upper": 30 + 1e-5}, "F1": 0.0, "F2": 0.0, "Alpha": 0.5,
            "Delta": 1.0, "transient_tstart": {"type": "unif", "lower": T0, "upper": T0 + 86400},
            "transient_duration": {"type": "unif", "lower": 4 * T, "upper": 40 * T},
        }  # fmt: skip
        np.random.seed(42)  # noqa: NPY002  PyFstat draws from it
        monkeypatch.setattr(np.random.mtrand, "RandomState", lambda: usual(7))  # the sampler makes its own
        search = pyfstat.MCMCTransientSearch(
            label=version, outdir=str(tmp_path), sftfilepattern=sfts.sftfilepath, theta_prior=prior, tref=T0,
            nsteps=[40, 40], nwalkers=30, ntemps=1, log10beta_min=-0.5, transientWindowType="rect",
            tCWFstatMapVersion=version, minStartTime=T0, maxStartTime=T0 + 2 * 86400,
        )  # fmt: skip
        search.run(plot_walkers=False, save_loudest=False)
        chains.append(search)
    theirs, ours = (c.samples for c in chains)
    assert theirs.shape == ours.shape
    assert np.isfinite(chains[1].lnlikes).all()
    found = {name: ours[:, i] for i, name in enumerate(chains[1].theta_keys)}
    assert np.abs(np.median(found["F0"]) - 30) < 3e-6
    assert np.abs(np.median(found["transient_tstart"]) - (T0 + 10 * T)) < 3 * T
    assert np.abs(np.median(found["transient_duration"]) - 24 * T) < 4 * T
    loudest = [c.get_max_twoF() for c in chains]
    assert loudest[1][1] == pytest.approx(loudest[0][1], rel=0.05)  # walks part where a draw lies within rounding
    for key, value in loudest[0][0].items():
        assert loudest[1][0][key] == pytest.approx(value, abs=3 * T if key.startswith("transient") else 3e-6)
