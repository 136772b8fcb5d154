"""Batches of templates: arguments, files, binning, and the line-robust statistic of the CPU engine."""

from __future__ import annotations

import numpy as np
import pytest
from tests.marks import slow
from tests.truth import fstat as reference

from skysieve.fstat import Atoms, AtomsBatch, Grid, Injection, WindowSum, synth_atoms
from skysieve.fstat.contract import Lines, MapJob, Spec, make_job, make_schedule
from skysieve.fstat.cpu import engine
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.files import atom_files
from skysieve.fstat.inputs.windows import resolve_window
from skysieve.fstat.template_search.batch import bin_batch, groups

T = 1800
T0 = 1_000_000_000


def templates(count=5, sky=0.0, n=48, **options):
    options = {"gaps": {"H1": [(T0 + 25 * T, T0 + 35 * T)]}, "offsets": [0, 700]} | options
    signal = Injection(T0 + 12 * T, 9 * T, snr=9, window="exp")
    return [
        synth_atoms(T0, n * T, seed=i, ra=0.5 + sky * i, inject=signal if i == 1 else None, **options)
        for i in range(count)
    ]


def values(n=3, b=2):
    one = np.ones(n, np.float32)
    return {"t": T * np.arange(n), "a2": one, "b2": one, "ab": 0 * one,
            "Fa": np.ones((b, n), np.complex64), "Fb": np.ones((b, n), np.complex64)}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"t": []}, ValueError, "t is empty"),
        ({"t": [0, 0, 1]}, ValueError, r"t\[1\] = 0 is repeated"),
        ({"Fa": np.ones(3)}, ValueError, "Fa has shape"),
        ({"Fb": np.ones((3, 3))}, ValueError, "Fb has shape"),
        ({"a2": np.ones((2, 3))}, ValueError, "differ in shape"),
        ({"ab": np.ones(4)}, ValueError, "ab has shape"),
        ({"a2": np.ones(3, complex)}, TypeError, "a2 has dtype"),
        ({"Fa": np.full((2, 3), "x")}, TypeError, "Fa has dtype"),
        ({"params": {"f0": [1.0]}}, ValueError, r"params\['f0'\]"),
        ({"tatom": -1}, ValueError, "tatom=-1"),
    ],
)
def test_batches_of_wrong_shape_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        AtomsBatch(**(values() | given))


def test_faults_are_those_of_their_template():
    v = values(b=4)
    v["Fa"][1, 2] = np.nan
    v["Fb"][3, 0] = np.inf
    assert AtomsBatch(**v).faults() == {
        1: "H1: Fa[2] = (nan+0j) is not finite",
        3: "H1: Fb[0] = (inf+0j) is not finite",
    }
    wide = {k: np.tile(v[k], (4, 1)) for k in ("a2", "b2", "ab")}
    wide["a2"][0, 1], wide["b2"][2, 2], wide["ab"][1, 0] = np.nan, -1, 5
    found = AtomsBatch(**(values(b=4) | wide)).faults()
    assert sorted(found) == [0, 1, 2]
    assert "negative" in found[2]
    assert "above a2 b2" in found[1]
    v = values()
    v["b2"] = np.array([1, -2, 1])
    assert list(AtomsBatch(**v).faults()) == [0, 1]
    huge = values() | {"Fa": np.full((2, 3), 3e38, np.complex64)}  # their sum overflows, they do not
    assert AtomsBatch(**huge).faults() == {}


@pytest.mark.parametrize("sky", [0.0, 0.3])
@pytest.mark.parametrize("duty", [1.0, 0.5])
def test_binned_as_single_templates(sky, duty):
    made = templates(sky=sky) if duty == 1 else templates(sky=sky, duty=0.5, offsets=None)
    if duty < 1:  # each template of its own times
        assert len(list(groups(made, 0))) == 5
        return
    (parts,) = groups(made, 0)
    binned = bin_batch(parts, np.float32)
    job = make_job([bin_atoms(a) for a in made], Grid(t0=T0, tau=2 * T), resolve_window("rect", 3), np.float32)
    assert np.array_equal(binned.bank.antenna, job.bank.antenna)
    assert np.array_equal(binned.bank.data, job.bank.data)
    assert np.array_equal(binned.bank.occupied, job.bank.occupied)
    assert job.shared is (sky == 0)
    assert parts[1].template(2) == made[2][1]
    assert np.array_equal(parts[0].part(slice(1, 3)).Fa, parts[0].Fa[1:3])


def test_atoms_that_share_a_bin_are_added():
    t = np.array([0, 900, 1800, 2700, 9000])
    x = np.arange(1, 6, dtype=np.float32)
    atoms = Atoms(t, x, x, 0 * x, x + 1j, x)
    binned = bin_batch((AtomsBatch.stack([atoms, atoms]),), np.float64)
    bins = bin_atoms(atoms)
    scale = binned.bank.antenna[0, 0, 0] / bins.x[0, 0]
    assert np.array_equal(binned.bank.antenna[0], scale * bins.x[:3])
    assert np.array_equal(binned.bank.data[1], np.sqrt(scale) * bins.x[3:])


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ([], TypeError, "item 7 is an empty list"),
        ("x", TypeError, "item 7 is a str"),
        ([templates(1)[0], 3], TypeError, "item 7 holds a int"),
        ([AtomsBatch(**values()), AtomsBatch(**values(b=3))], ValueError, "2 templates in H1 and 3"),
        ([AtomsBatch(**values()), AtomsBatch(**values(), tatom=900)], ValueError, "mixes SFT lengths"),
    ],
)
def test_other_items_are_refused(item, error, message):
    with pytest.raises(error, match=message):
        list(groups(item, 7))


# ---------------------------------------------------------------- the line-robust statistic

GRIDS = {
    "full": Grid(t0=T0, t0_band=46 * T, dt0=T, tau=2 * T, tau_band=46 * T, dtau=T),
    "off the bins": Grid(t0=T0 - 20 * T - 901, t0_band=65 * T, dt0=2500, tau=2 * T, tau_band=25 * T, dtau=1100),
    "lists": Grid.from_lists([T0 - 9 * T, T0, T0 + 1799, T0 + 45 * T], np.unique(np.geomspace(2, 300, 20).round()) * T),
    "before the data": Grid(t0=T0 - 40 * T, t0_band=38 * T, dt0=T, tau=2 * T, tau_band=40 * T, dtau=5 * T),
}
LINES = Lines(3.0, (-1.0, -1.3))


def ln_bsgl(F, FX, lines=LINES):
    parts = [np.full_like(F, lines.log_gauss), *(p + f for p, f in zip(lines.log_line, FX, strict=True))]
    return F - np.logaddexp.reduce(parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "glitch"), [("rect", True), ("exp", False), slow("exp", True), ("sum", True)]
)  # fmt: skip
@pytest.mark.parametrize("grid", list(GRIDS))
def test_lines_against_the_truth(grid, window, glitch):
    from skysieve.fstat.cpu import engine as cpu

    w = resolve_window(WindowSum([(1, 1), (-1, 6)]) if window == "sum" else window, 3)
    made = templates(2)
    for a in made[0] if glitch else ():
        a.Fa[10] *= np.float32(1e4)  # this template needs other sums, and the glitch is a line
    (parts,) = groups(made, 0)
    dtype = np.dtype(np.float32)
    binned = bin_batch(parts, dtype, each_detector=True)
    job = MapJob(
        binned.bank, T, GRIDS[grid].taus.astype(float), make_schedule(GRIDS[grid], w, binned), binned.detectors
    )
    engine = cpu.Engine(Spec(w, dtype, keep_map=False, marginals=False, lines=LINES), threads=2)
    out = engine.execute(job)
    engine.close()
    for i in range(2):
        maps = [
            reference.transient_map(
                Bins(binned.t_start, T, bank.template(i).astype(float), bank.occupied), GRIDS[grid], w
            )
            for bank in (binned.bank, *binned.detectors)
        ]
        truth = ln_bsgl(maps[0].F, [m.F for m in maps[1:]])
        scale = max(1, np.nanmax(maps[0].F))
        assert out.line_max[i] == pytest.approx(np.nanmax(truth), abs=3e-4 * scale)  # the bound of F in float32
        assert truth.ravel()[out.line_index[i]] >= np.nanmax(truth) - 3e-4 * scale


def test_hidden_files_of_a_folder_are_left_out(tmp_path):
    """Such as those that another process is writing at the moment."""
    for name in ("b.npz", "a.dat", ".b-0123abcd.npz", "notes.md"):
        (tmp_path / name).touch()
    assert atom_files([tmp_path]) == [tmp_path / "a.dat", tmp_path / "b.npz"]


@pytest.mark.parametrize("window", ["rect", "exp", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "grid",
    [
        Grid(t0=T0, t0_band=40 * T, dt0=T, tau=2 * T, tau_band=40 * T, dtau=T),
        Grid(t0=T0, tau=2 * T, tau_band=40 * T, dtau=T),
        Grid(t0=T0 - 7 * T, t0_band=40 * T, dt0=7 * T, tau=3 * T + 5, tau_band=60 * T, dtau=3 * T),
        slow(Grid(t0=T0 - 5000, t0_band=60_000, dt0=1801, tau=5000, tau_band=100_000, dtau=1700)),
    ],
)
def test_templates_that_are_computed_together_have_their_own_answers(window, dtype, grid, monkeypatch):
    """Bit for bit: more templates than in one call of a kernel, of which some need sums in float64."""
    atoms = templates(7)
    for a in atoms[3]:
        a.Fa[...] *= 1e6
        a.Fb[...] *= 1e6
    shape = resolve_window(window, 3)
    bins = [bin_atoms(a) for a in atoms]
    grid = Grid.whole(bins[0]) if window == "none" else grid
    job = make_job(bins, grid, shape, dtype, make_schedule(grid, shape, bins[0]))
    monkeypatch.setattr(engine, "TOGETHER", 4)
    calls = []
    template = engine.Engine._template
    monkeypatch.setattr(engine.Engine, "_template", lambda self, *a: (calls.append(a[1]), template(self, *a)))
    for marginals in (False, True):
        host = engine.Engine(Spec(shape, np.dtype(dtype), keep_map=False, marginals=marginals), threads=1)
        many = host.execute(job)
        alone = len(calls)
        ones = [host.execute(job.part(slice(i, i + 1))) for i in range(job.n_templates)]
        assert len(calls) - alone == job.n_templates
        for field in ("max_F", "index", "log_sum", "n_fallback", *(("row_log", "column_log") if marginals else ())):
            expected = np.concatenate([getattr(one, field) for one in ones])
            assert np.array_equal(getattr(many, field), expected), field
        if grid.dt0 != 1801 or window == "none":
            assert alone <= 1  # the loud template, in float64
        calls.clear()
