"""The search over many templates: its table against single maps, restarts, devices, bad templates, bad arguments."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.truth import fstat as reference

from skysieve.fstat import (
    BSGL,
    Atoms,
    AtomsBatch,
    Grid,
    Injection,
    SearchResult,
    WindowSum,
    search,
    synth_atoms,
    transient_map,
)
from skysieve.fstat.inputs.bins import bin_atoms
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.ledger import Ledger

T = 1800
T0 = 1_000_000_000
SPAN = 48 * T
GRID = Grid(t0=T0, t0_band=46 * T, dt0=T, tau=2 * T, tau_band=46 * T, dtau=T)
COUNT = 24


def template(i, **options):
    signal = Injection(T0 + 10 * T, 12 * T, snr=11, window="exp") if i in (5, 17) else None
    return synth_atoms(T0, SPAN, seed=i, inject=signal, **({"gaps": [(T0 + 30 * T, T0 + 33 * T)]} | options))


TEMPLATES = [template(i) for i in range(COUNT)]


def batches(size=7, templates=TEMPLATES, start=0):
    for a in range(start, len(templates), size):
        some = templates[a : a + size]
        params = {"f0": 30 + 0.01 * np.arange(a, a + len(some)), "name": [f"x{i}" for i in range(a, a + len(some))]}
        yield [AtomsBatch.stack([t[d] for t in some], params) for d in range(2)]


def run(source=None, grid=GRID, **options):
    return search(batches() if source is None else source, grid, **({"device": "cpu", "threads": 1} | options))


def same(a, b):
    assert (a.n_templates, a.n_bad, a.faults) == (b.n_templates, b.n_bad, b.faults)
    for w in a.windows:
        for name, column in a.columns(w).items():
            assert np.array_equal(column, b.columns(w)[name], equal_nan=column.dtype.kind == "f"), name
        assert np.array_equal(a.histogram(w)[1], b.histogram(w)[1])
        assert a.ledgers[w].bands == b.ledgers[w].bands
        assert a.ledgers[w].posteriors.keys() == b.ledgers[w].posteriors.keys()
        for n, pair in a.ledgers[w].posteriors.items():
            assert all(np.array_equal(x, y) for x, y in zip(pair, b.posterior(w, n), strict=True))


@pytest.fixture(scope="module")
def whole():
    return run(topk=6, posteriors=2, band="f0", band_width=0.05)


@pytest.mark.parametrize("window", ["rect", "exp"])
def test_the_table_is_that_of_single_maps(whole, window):
    maps = [transient_map(t, GRID, window=window, dtype="float32", device="cpu") for t in TEMPLATES]
    order = sorted(range(COUNT), key=lambda i: (-maps[i].max2F, i))
    found = whole.columns(window)
    assert found["template"].tolist() == order[:6]
    for k, i in enumerate(order[:6]):
        m = maps[i]
        assert (found["max2F"][k], found["t0_ml"][k], found["tau_ml"][k]) == (m.max2F, m.t0_ml, m.tau_ml)
        assert found["lnBtSG"][k] == pytest.approx(m.lnBtSG, abs=1e-12)
        assert found["n_fallback"][k] == m.n_fallback
        assert found["f0"][k] == 30 + 0.01 * i
        assert found["name"][k] == f"x{i}"
    for i in order[:2]:
        p_t0, p_tau = whole.posterior(window, i)
        assert np.abs(p_t0 - maps[i].p_t0).max() < 1e-12
        assert np.abs(p_tau - maps[i].p_tau).max() < 1e-12
    edges, counts = whole.histogram(window)
    assert counts.sum() == COUNT
    assert np.array_equal(counts, np.histogram([m.max2F for m in maps], edges)[0])
    bands = whole.bands(window)
    of = np.floor((30 + 0.01 * np.arange(COUNT)) / 0.05)
    for band, twoF, n in zip(bands["band"], bands["max2F"], bands["template"], strict=True):
        members = [i for i in range(COUNT) if of[i] == round(band / 0.05)]
        best = max(members, key=lambda i: (maps[i].max2F, -i))
        assert (n, twoF) == (best, maps[best].max2F)
    with pytest.raises(ValueError, match="posteriors are kept only for"):
        whole.posterior(window, order[3])


def test_batches_and_devices_do_not_change_the_result(whole):
    options = {"topk": 6, "posteriors": 2, "band": "f0", "band_width": 0.05}
    same(whole, run(batches(COUNT), **options))
    same(whole, run(lambda start: batches(1, start=start), **options))
    same(whole, run(batches(5), device=["cpu", "cpu"], **options))  # two devices
    same(whole, run(batches(11), threads=2, **options))
    bare = run(iter(TEMPLATES), topk=6)  # lists of Atoms, one template each
    assert np.array_equal(bare.columns()["max2F"], whole.columns()["max2F"])
    lists = run([TEMPLATES[:10], TEMPLATES[10:]], topk=6)
    assert np.array_equal(lists.columns()["max2F"], whole.columns()["max2F"])


@pytest.mark.slow
@pytest.mark.parametrize("bsgl", [None, BSGL(5.0)])
@pytest.mark.parametrize("window", ["rect", "exp"])
def test_on_the_kernels_of_a_gpu(monkeypatch, window, bsgl):
    """The GPU's engine, on the host: the same templates, cells and numbers as the CPU's."""
    from tests.kernels.shim import shim_runtime

    from skysieve.fstat.cuda import engine as cuda
    from skysieve.fstat.template_search import search as searching

    options = {"windows": window, "topk": 6, "posteriors": 1, "bsgl": bsgl}
    a = run(**options)
    made = []

    def make(spec, device, memory, threads):
        made.append(spec)
        return cuda.Engine(spec, runtime=shim_runtime("forwards"))

    monkeypatch.setattr(searching, "make_engine", make)
    b = run(**options)  # one thread: the host's kernels run one at a time
    assert len(made) == 2
    for name, column in a.columns().items():
        if column.dtype.kind == "f":
            assert column == pytest.approx(b.columns()[name], rel=1e-4, abs=1e-3)
        else:
            assert np.array_equal(column, b.columns()[name])
    best = int(a.columns()["template"][0])
    assert np.abs(a.posterior(window, best)[0] - b.posterior(window, best)[0]).max() < 1e-5


def test_templates_of_different_sky_positions():
    """A wrong sharing of the antenna factors fails."""
    made = [template(i, ra=0.1 + 0.25 * i, dec=-0.4 + 0.05 * i) for i in range(9)]
    found = search([made], GRID, device="cpu", windows="exp", topk=9).columns()
    for n, twoF in zip(found["template"], found["max2F"], strict=True):
        assert twoF == transient_map(made[n], GRID, window="exp", dtype="float32", device="cpu").max2F


def test_another_statistic_and_a_threshold():
    by_b = run(statistic="lnBtSG", windows="rect", topk=4)
    every = run(windows="rect", topk=COUNT).columns()
    assert by_b.columns()["template"].tolist() == every["template"][np.argsort(-every["lnBtSG"])][:4].tolist()
    cut = run(windows="rect", threshold=30, topk=COUNT)
    assert cut.columns()["template"].tolist() == every["template"][every["max2F"] >= 30].tolist()
    assert cut.ledgers["rect"].n_above == np.count_nonzero(every["max2F"] >= 30)
    assert cut.histogram("rect")[1].sum() == COUNT


# ---------------------------------------------------------------- restarts


class Stopped(Exception):
    pass


@pytest.mark.few
@pytest.mark.parametrize("at", [0, 1, 9, 23])
@pytest.mark.parametrize("seekable", [True, False])
def test_an_interrupted_search_continues(whole, tmp_path, at, seekable):
    path = tmp_path / "run.npz"
    options = {"topk": 6, "posteriors": 2, "band": "f0", "band_width": 0.05, "checkpoint": path, "checkpoint_every": 0}

    def killed():
        for k, item in enumerate(batches(1)):
            if k == at:
                raise Stopped
            yield item

    with pytest.raises(Stopped):
        run(killed(), **options)
    starts = []

    def seek(start):
        starts.append(start)
        return batches(5, start=start)

    again = run(seek if seekable else batches(5), **options)
    same(whole, again)
    assert len(starts) == seekable
    assert all(max(0, at - 3) <= n <= at for n in starts)  # at most three chunks were on their way
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]
    same(whole, run(iter(()), **options))  # finished: nothing is read
    with pytest.raises(ValueError, match="belongs to a search with topk=6"):
        run(**(options | {"topk": 5, "posteriors": 1}))
    with pytest.raises(ValueError, match="belongs to a search with strict=True"):
        run(**(options | {"strict": False}))
    with pytest.raises(ValueError, match="belongs to a search with grid="):
        run(grid=Grid(t0=T0, tau=3 * T), **options)


KILLED = """
import sys, time
from tests.fstat.test_search import batches, run

def slow():
    for k, item in enumerate(batches(1)):
        if k >= 6:
            time.sleep(0.05)
        yield item

run(slow(), topk=6, posteriors=2, band="f0", band_width=0.05, checkpoint=sys.argv[1], checkpoint_every=0)
"""


@pytest.mark.slow
def test_a_killed_process_continues(whole, tmp_path):
    path, root = tmp_path / "run.npz", Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], cwd=root)
    while process.poll() is None and not path.exists():
        time.sleep(0.01)
    time.sleep(0.1)
    process.kill()
    process.wait()
    assert path.exists()
    same(whole, run(batches(4), topk=6, posteriors=2, band="f0", band_width=0.05, checkpoint=path))


def test_a_file_that_is_no_checkpoint(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=1)
    with pytest.raises(ValueError, match="not the checkpoint"):
        run(checkpoint=path)
    path.write_bytes(b"PK but broken")
    with pytest.raises(ValueError, match="not the checkpoint"):
        run(checkpoint=path)
    for name, message in (("a.txt", "ends in .npz"), ("none/a.npz", "no folder")):
        with pytest.raises(ValueError, match=message):
            run(checkpoint=tmp_path / name)


# ---------------------------------------------------------------- bad templates


def test_one_bad_template_is_left_out():
    made = [[Atoms(a.t, a.a2, a.b2, a.ab, a.Fa.copy(), a.Fb, detector=a.detector) for a in t] for t in TEMPLATES]
    good = run(batches(8), topk=COUNT).columns("rect")
    items = list(batches(8, made))
    items[1][0].Fa[2, 7] = np.nan  # template 10
    items[2][1].Fb[0, 0] = np.inf  # template 16
    found = run(items, topk=COUNT)
    assert found.faults == {
        10: "H1: Fa[7] = (nan+nanj) is not finite", 16: "L1: Fb[0] = (inf+nanj) is not finite"
    } or sorted(found.faults) == [10, 16]  # fmt: skip
    assert (found.n_templates, found.n_bad) == (COUNT, 2)
    table = found.columns("rect")
    assert sorted(table["template"].tolist()) == [i for i in range(COUNT) if i not in (10, 16)]
    for n, twoF in zip(table["template"], table["max2F"], strict=True):
        assert twoF == good["max2F"][good["template"] == n][0]
    h1, l1 = next(batches(COUNT))
    a2 = h1.a2.copy()
    a2[0] = np.nan
    lost = run([[AtomsBatch(h1.t, a2, h1.b2, h1.ab, h1.Fa, h1.Fb), l1]])
    assert lost.n_bad == COUNT
    assert len(lost.columns()["template"]) == 0
    assert "none" in repr(lost)


def test_templates_of_other_times_are_left_out():
    """The grid is that of the first item: a later item whose data end too early is reported and left out."""
    short = [synth_atoms(T0, 20 * T, seed=1)]
    found = search([TEMPLATES[:2], short, TEMPLATES[2:4]], GRID, device="cpu", windows="rect")
    assert found.n_templates == 5
    assert list(found.faults) == [2]
    assert "leaves fewer than two SFTs" in found.faults[2]
    with pytest.raises(ValueError, match="leaves fewer than two SFTs"):
        search([short], GRID, device="cpu")
    free = search([short], GRID, device="cpu", windows="rect", strict=False)
    one = transient_map(short[0], GRID, dtype="float32", device="cpu", strict=False)
    assert free.columns()["lnBtSG"][0] == pytest.approx(one.lnBtSG, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"windows": "gauss"}, ValueError, "window='gauss'"),
        ({"windows": ()}, ValueError, "expected at least one window"),
        ({"windows": ("exp", "exp")}, ValueError, "is given twice"),
        ({"grid": 3}, TypeError, "grid is a int"),
        ({"topk": 0}, ValueError, "topk=0"),
        ({"topk": 2.5}, ValueError, "topk=2.5"),
        ({"posteriors": 7, "topk": 3}, ValueError, "posteriors=7"),
        ({"threshold": np.nan}, ValueError, "threshold=nan"),
        ({"statistic": "power"}, ValueError, "statistic='power'"),
        ({"statistic": "log10BSGL"}, ValueError, "needs its prior"),
        ({"bsgl": 3}, TypeError, "bsgl is a int"),
        ({"bsgl": BSGL(5, {"H1": 1.0})}, ValueError, "expected the detectors H1, L1"),
        ({"bsgl": BSGL(5, [1.0])}, ValueError, "1 entry, expected 2"),
        ({"rhohatmax": 0}, ValueError, "rhohatmax=0"),
        ({"band": "f0"}, ValueError, "needs band_width"),
        ({"band": "f9", "band_width": 1}, ValueError, "not a parameter of template 0; its parameters are f0, name"),
        ({"band_width": -1}, ValueError, "band_width=-1"),
        ({"dtype": "int8"}, ValueError, "dtype='int8'"),
        ({"device": "tpu"}, ValueError, "device='tpu'"),
        ({"device": []}, TypeError, "device="),
        ({"threads": 0}, ValueError, "threads=0"),
        ({"checkpoint_every": -1}, ValueError, "checkpoint_every=-1"),
        ({"total": -1}, ValueError, "total=-1"),
        ({"threshold": "x"}, TypeError, "threshold='x': expected a finite number"),
        ({"progress": 3}, TypeError, "progress=3"),
        ({"source": 3}, TypeError, "batches is a int"),
        ({"source": [3]}, TypeError, "item 0 is a int"),
        ({"source": [TEMPLATES[0], None]}, TypeError, "item 1 is a NoneType"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        run(**options)


@pytest.mark.parametrize(
    ("options", "error"), [({"Fstar0": "x"}, TypeError), ({"Fstar0": np.inf}, ValueError),
                           ({"Fstar0": 1, "oLGX": [-1]}, ValueError), ({"Fstar0": 1, "oLGX": "1,1"}, TypeError),
                           ({"Fstar0": 1, "oLGX": [None, 1]}, TypeError)]
)  # fmt: skip
def test_bad_priors_are_refused(options, error):
    with pytest.raises(error, match=f"{list(options)[-1]}=.*: expected"):
        BSGL(**options)


@pytest.mark.parametrize(
    ("oLGX", "twoF", "twoFX"),
    [(None, 60, 5), ([1, 1], [60, 61, 62], [[1, 2], [3, 4]]), ({"H1": 1, "L1": 1}, 60, [1, 2, 3])],
)
def test_a_prior_refuses_values_of_other_shapes(oLGX, twoF, twoFX):
    with pytest.raises(ValueError, match=r"twoFX has shape .*: expected that of twoF, .*, for each detector"):
        BSGL(5, oLGX).log10(twoF, twoFX)


# ---------------------------------------------------------------- the line-robust statistic


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("window", ["rect", "exp"])
def test_bsgl_of_every_cell(window):
    """Against maps of all detectors and of each, cell by cell; the detectors' SFTs line up, so that bins do too."""
    prior = BSGL(4.0, {"H1": 0.7, "L1": 0.2})
    found = run(windows=window, bsgl=prior, topk=COUNT)
    assert found.statistic == "log10BSGL"
    columns = found.columns()
    for k, n in enumerate(columns["template"][:8]):
        maps = [reference.transient_map(bin_atoms(a), GRID, resolve_window(window, 3)).F for a in
                (TEMPLATES[n], TEMPLATES[n][0], TEMPLATES[n][1])]  # fmt: skip
        truth = prior.log10(2 * maps[0], 2 * np.stack(maps[1:]))
        assert columns["log10BSGL"][k] == pytest.approx(truth.max(), abs=3e-4 * max(1, maps[0].max()))
        cell = (
            np.flatnonzero(GRID.t0s == columns["t0_bsgl"][k])[0],
            np.flatnonzero(GRID.taus == columns["tau_bsgl"][k])[0],
        )
        assert truth[cell] == pytest.approx(truth.max(), abs=3e-4 * max(1, maps[0].max()))
        for name, F in zip(("twoF_bsgl", "twoF_H1_bsgl", "twoF_L1_bsgl"), maps, strict=True):
            assert columns[name][k] == pytest.approx(2 * F[cell], rel=1e-5)


def test_the_line_robust_statistic_needs_two_detectors():
    """The first template is refused; a later one is left out, as one that does not fit the grid."""
    one, two = synth_atoms(T0, SPAN, detectors=["H1"], seed=1), synth_atoms(T0, SPAN, seed=2)
    message = r"needs two or more detectors, found 1 \(H1\)"
    with pytest.raises(ValueError, match=message):
        run([one, two], windows="rect", bsgl=BSGL(10.0))
    with pytest.raises(ValueError, match=message):
        run([one], windows="rect", bsgl=BSGL(10.0), strict=False)
    found = run([two, one], windows="rect", bsgl=BSGL(10.0))
    assert (found.n_templates, found.n_bad) == (2, 1)
    assert "two or more detectors" in found.faults[1]


def test_a_line_is_distinguished_from_a_signal():
    """The same 2F: in one detector alone, and in both."""
    line = synth_atoms(T0, SPAN, seed=1)
    loud = synth_atoms(T0, SPAN, detectors=["H1"], seed=2, inject=Injection(T0 + 10 * T, 12 * T, snr=14))
    line = [loud[0], line[1]]
    signal = synth_atoms(T0, SPAN, seed=3, inject=Injection(T0 + 10 * T, 12 * T, snr=14))
    found = run([line, signal], windows="rect", bsgl=BSGL(10.0)).columns()
    assert found["template"].tolist() == [1, 0]
    assert found["log10BSGL"][0] > found["log10BSGL"][1] + 5
    assert np.abs(np.diff(found["max2F"])[0]) < 100


# ---------------------------------------------------------------- sizes


def test_several_observing_runs_of_three_years():
    """52,560 bins with months between the runs; a coarse grid; the map is never built."""
    n = 52_560
    runs = [(0, 6000), (14_000, 22_000), (40_000, n)]
    gaps = [(T0 + a * T, T0 + b * T) for a, b in ((6000, 14_000), (22_000, 40_000))]
    signal = Injection(T0 + 45_000 * T, 2000 * T, snr=25, window="exp")
    atoms = synth_atoms(T0, n * T, detectors=["L1"], gaps=gaps, seed=4, inject=signal)
    taus = np.unique(np.geomspace(2, n, 12).round()).astype(int) * T
    grid = Grid.from_lists(T0 + 144 * T * np.arange(n // 144), taus)
    found = search([atoms], grid, device="cpu", threads=1, memory="64 MB")
    columns = found.columns("exp")
    assert abs(columns["t0_ml"][0] - signal.t0) <= 2 * 144 * T
    bins = bin_atoms(atoms)
    for w in ("rect", "exp"):
        c = found.columns(w)
        F, _ = reference.cell(bins, int(c["t0_ml"][0]), int(c["tau_ml"][0]), resolve_window(w, 3))
        assert c["max2F"][0] == pytest.approx(2 * F, rel=3e-4)
        assert c["n_fallback"][0] > 1000  # windows in the months between
    assert sum(b - a for a, b in runs) == len(atoms[0])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_templates():
    """A year on a coarse grid, from a seeded generator; the most that is held is the same for 16 templates and 96."""
    import tracemalloc

    n = 17_520
    t = T0 + T * np.arange(n)
    one = synth_atoms(T0, n * T, detectors=["H1"], seed=0)[0]
    grid = Grid.from_lists(t[: n - 2 : 480], np.unique(np.geomspace(2, n, 6).round()).astype(int) * T)

    def year(count):
        rng = np.random.default_rng(5)
        a, b = np.sqrt(one.a2), np.sqrt(one.b2) * np.sign(one.ab)
        for _ in range(0, count, 4):
            z = (rng.standard_normal((4, n)) + 1j * rng.standard_normal((4, n))) * np.sqrt(0.5)
            yield AtomsBatch(t, one.a2, one.b2, one.ab, (a * z).astype("c8"), (b * z).astype("c8"))

    peaks, results = [], []
    for count in (16, 96):
        tracemalloc.start()
        results.append(search(year(count), grid, device="cpu", threads=1, topk=5))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.15 * peaks[0]
    assert results[1].n_templates == 96
    assert results[1].columns("exp")["max2F"].min() >= results[0].columns("exp")["max2F"].min()


# ---------------------------------------------------------------- windows, files, figure


@pytest.mark.slow
def test_other_windows_and_names():
    rise = WindowSum([(1, 1), (-1, 6)])
    found = run(windows={"rise": rise, "all": "none"}, topk=3)
    assert found.windows == ("rise", "all")
    for name, window in (("rise", rise), ("all", "none")):
        c = found.columns(name)
        m = transient_map(TEMPLATES[c["template"][0]], None if name == "all" else GRID, window=window, dtype="float32",
                          device="cpu")  # fmt: skip
        assert c["max2F"][0] == pytest.approx(m.max2F, rel=1e-6)
    assert run(windows=[rise, np.cos], topk=1).windows == ("window0", "window1")
    assert run(windows=rise, topk=1).windows == run(windows=np.cos, topk=1).windows == ("window0",)
    only = search(TEMPLATES[:2], windows="none", device="cpu")
    assert only.grid is None
    assert len(only.columns()["max2F"]) == 2


def test_files(whole, tmp_path):
    for suffix in (".csv", ".ecsv", ".fits"):
        whole.save(tmp_path / f"a{suffix}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.ecsv", "a.fits"]
    from astropy.io import fits
    from astropy.table import Table

    for path in ("a.csv", "a.ecsv"):
        back = Table.read(tmp_path / path)
        assert back["max2F"] == pytest.approx(whole.columns()["max2F"], rel=1e-12)
    with fits.open(tmp_path / "a.fits") as file:
        assert file["BEST"].data["template"].tolist() == whole.columns()["template"].tolist()
        assert file["HISTOGRAM_EXP"].data["count"].sum() == COUNT
        assert file["POSTERIOR_RECT"].data["p_t0"].shape == (2, GRID.shape[0])
        assert len(file["BANDS_RECT"].data) == len(whole.bands("rect")["band"])
    with pytest.raises(ValueError, match="ends in one of"):
        whole.save(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match="folder does not exist"):
        whole.save(tmp_path / "none" / "a.csv")
    with pytest.raises(ValueError, match="window='sine'"):
        whole.columns("sine")
    parquet = pytest.importorskip("pyarrow.parquet")
    whole.save(tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table["max2F"].to_pylist() == whole.columns()["max2F"].tolist()
    assert json.loads(table.schema.metadata[b"skysieve"])["n_templates"] == COUNT


def test_figure(whole):
    pytest.importorskip("matplotlib")
    figure = whole.plot()
    assert [a.get_xlabel() for a in figure.axes] == ["largest 2F of a template", "f0"]
    figure.canvas.draw()


def test_progress_and_repr(whole):
    seen = []
    run(total=COUNT, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (COUNT, COUNT)
    assert "24 templates; loudest 2F: rect" in repr(whole)


def test_the_expected_loudest_of_noise():
    """Bands of 50 draws of chi^2 with four degrees of freedom: the loudest of 200 bands, with and without signals."""
    rng = np.random.default_rng(4)
    draws = rng.chisquare(4, (300, 200, 50)).max(axis=2)
    loudest = draws.max(axis=1)
    found = []
    for bands in draws:
        bands[:3] = 500  # signals
        ledger = Ledger(1, bands={i: (float(v), i) for i, v in enumerate(bands)})
        result = SearchResult({"rect": ledger}, 10_000, 0, {}, None, "max2F", None, None, 50.0, {})
        found.append(result.expected_loudest("rect"))
    mean, deviation = np.mean(found, axis=0)
    # the maximum of chi^2 comes close to a Gumbel distribution slowly: 0.5 at 50 draws
    assert mean == pytest.approx(loudest.mean(), abs=1.0)
    assert deviation == pytest.approx(loudest.std(), rel=0.25)
    few = SearchResult({"rect": Ledger(1)}, 3, 0, {}, None, "max2F", None, None, 50.0, {})
    assert few.expected_loudest("rect") is None


@pytest.mark.slow
def test_a_narrow_search_around_a_signal_does_not_tell_how_loud_noise_is():
    """Noise, signals in few bands, and a signal whose 2F falls to a half over the bands."""
    rng = np.random.default_rng(5)

    def result(values, templates, grid=None):
        ledger = Ledger(1, bands={i: (float(v), i) for i, v in enumerate(values)})
        return SearchResult({"rect": ledger}, templates, 0, {}, grid, "max2F", None, None, 50.0, {})

    for bands, most in ((16, 0.02), (200, 0.002)):  # measured with other seeds: 0.0105 and 0.0005
        noise = rng.chisquare(4, (1000, bands, 50)).max(axis=2)
        assert np.mean([result(v, 50 * bands).exceeds_noise("rect") for v in noise]) <= most
    noise[:, :5] = 1000
    assert np.mean([result(v, 10_000).exceeds_noise("rect") for v in noise]) <= 0.01
    signal = np.linspace(145, 72, 200)
    for grid in (None, GRID):
        narrow = result(signal, 200, grid)
        assert narrow.exceeds_noise("rect")
        assert narrow.expected_loudest("rect") is None
    with pytest.raises(ValueError, match="window='exp'"):
        narrow.exceeds_noise("exp")
