"""Tables of surveys: Rubin's columns, VOTable, rows that hold whole light curves; moving objects."""

from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from astropy.table import MaskedColumn

import skysieve
from skysieve.core.table_files import write_table
from skysieve.periodogram.analysis.phase_function import basis, fit_hg1g2, fit_linear
from skysieve.periodogram.analysis.solar_system import LIGHT_TIME, reduced
from skysieve.periodogram.lightcurves.arrays import group_rows, numeric, pieces
from skysieve.periodogram.lightcurves.io import BadFile, LightCurves, MissingColumn, Wanted, read_light_curves
from skysieve.periodogram.lightcurves.sources import light_curves, with_bands

N = 30
RNG = np.random.default_rng(0)
T, FLUX, ERROR = 60000 + np.sort(RNG.uniform(0, 40, N)), RNG.normal(0, 900, N), RNG.uniform(50, 90, N)


def rubin(**changes):
    """Rows of a DiaSource table: fixed objects, moving ones, both ids there; nJy, also negative."""
    star = np.arange(N) % 3 != 0
    return {
        "diaSourceId": np.arange(N) + 2**60,
        "diaObjectId": np.where(star, 2**62 + np.arange(N) % 3, 0),
        "ssObjectId": np.where(star, 0, 77),
        "midpointMjdTai": T,
        "band": np.where(np.arange(N) % 2, "g", "r"),
        "psfFlux": FLUX,
        "psfFluxErr": ERROR,
        "scienceFlux": FLUX + 1e5,
    } | changes


@pytest.mark.parametrize("suffix", ["csv", "parquet", "fits", "ecsv", "vot"])
def test_rubin_columns(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"dia.{suffix}"
    if suffix == "vot":
        from astropy.table import Table

        Table(rubin()).write(path, format="votable")
    else:
        write_table(rubin(), path)
    fixed = read_light_curves(path)
    assert fixed.ids.tolist() == [2**62 + 1, 2**62 + 2]
    assert "id = diaObjectId, time = midpointMjdTai, mag = psfFlux, err = psfFluxErr, band = band" in fixed.taken
    assert not fixed.is_magnitude
    assert fixed.t.size == 20
    assert (fixed.y < 0).any()
    assert "10 rows were left out: no id in column 'diaObjectId'" in fixed.notes
    moving = read_light_curves(path, Wanted(moving=True))
    assert moving.ids.tolist() == [77]
    np.testing.assert_array_equal(moving.y, FLUX[::3])
    one = read_light_curves(path, band="g")
    assert one.t.size + read_light_curves(path, band="r").t.size == 20
    bare = tmp_path / "none.csv"
    write_table(rubin(ssObjectId=np.zeros(N, int)), bare)
    with pytest.raises(BadFile, match="no row with an id in column 'ssObjectId'"):
        read_light_curves(bare, Wanted(moving=True))


def test_missing_ids_lose_no_digits(tmp_path: Path) -> None:
    """64-bit ids with gaps must not pass through floating point."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    ids = [2**62 + 1, None, 2**62 + 1, 2**62 + 3]
    table = {"diaObjectId": ids, "midpointMjdTai": [1.0, 2, 3, 4], "psfFlux": [1.0, None, 3, 4]}
    parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    got = read_light_curves(tmp_path / "a.parquet")
    assert got.ids.tolist() == [2**62 + 1, 2**62 + 3]
    assert got.t.tolist() == [1, 3, 4]
    names = pa.table({"name": ["a", None], "t": [1.0, 2], "y": [1.0, 2]})
    parquet.write_table(names, tmp_path / "b.parquet")
    got = read_light_curves(tmp_path / "b.parquet")
    assert got.ids.tolist() == ["a"]
    assert got.notes == ["1 row was left out: no id in column 'name'"]


def test_votable_with_units_and_masks(tmp_path: Path) -> None:
    from astropy.table import MaskedColumn, Table
    from astropy.units import hour

    flux = MaskedColumn(FLUX[:4], mask=[0, 1, 0, 0])
    path = tmp_path / "a.xml"
    Table({"time": T[:4] * 24 * hour, "flux": flux, "source": ["p", "p", "q", "q"]}).write(path, format="votable")
    got = read_light_curves(path)
    np.testing.assert_allclose(got.t, T[:4], rtol=1e-15)
    assert np.isnan(got.y).tolist() == [False, True, False, False]
    assert got.ids.tolist() == ["p", "q"]
    path.write_text('<?xml version="1.0"?><VOTABLE></VOTABLE>')
    with pytest.raises(BadFile, match="is a VOTable without a table"):
        read_light_curves(path)


SIZES = [12, 0, 18]
EDGES = [0, 12, 12, 30]


def nested(kind: str):
    pa = pytest.importorskip("pyarrow")
    lists = {"mjd": [T[a:b] for a, b in pairwise(EDGES)]}
    lists |= {"flux": [FLUX[a:b] for a, b in pairwise(EDGES)]}
    lists |= {"flux_err": [ERROR[a:b] for a, b in pairwise(EDGES)]}
    lists |= {"band": [["g"] * n for n in SIZES]}
    ids = pa.array([2**62 + 5, 2**62 + 6, 2**62 + 7])
    columns = {name: pa.array(x) for name, x in lists.items()}
    if kind == "lists":
        return pa.table({"objectId": ids, "ra": [1.0, 2, 3], **columns})
    if kind == "struct of lists":
        return pa.table({"objectId": ids, "lc": pa.StructArray.from_arrays(list(columns.values()), list(columns))})
    rows = [
        [dict(zip(lists, row, strict=True)) for row in zip(*(x[i] for x in lists.values()), strict=True)]
        for i in range(3)
    ]
    other = pa.array([[{"z": 1.0}]] * 3)
    return pa.table({"objectId": ids, "other": other, "lc": pa.array(rows)})


@pytest.mark.parametrize("kind", ["lists", "struct of lists", "list of structs"])
def test_lists_of_observations(tmp_path: Path, kind: str) -> None:
    from pyarrow import parquet

    path = tmp_path / "lists.parquet"
    parquet.write_table(nested(kind), path)
    got = read_light_curves(path)
    assert got.ids.tolist() == [2**62 + 5, 2**62 + 7]  # an object without rows has no light curve
    assert got.offsets.tolist() == [0, 12, 30]
    for values, expected in ((got.t, T), (got.y, FLUX), (got.dy, ERROR)):
        np.testing.assert_array_equal(values, expected)
    assert got.band is not None
    prefix = "" if kind == "lists" else "lc."
    assert f"time = {prefix}mjd" in got.taken
    named = read_light_curves(path, Wanted(time=f"{prefix}mjd", mag=f"{prefix}flux_err"))
    np.testing.assert_array_equal(named.y, ERROR)
    anonymous = nested(kind).drop_columns("objectId")
    parquet.write_table(anonymous, path)
    assert read_light_curves(path).ids.tolist() == [0, 2]


def test_bad_lists(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"t": [[1.0, 2], [3.0]], "y": [[1.0, 2], [3.0, 4]]}), path)
    found = read_light_curves(path)  # only the bad object is left out
    assert found.ids.tolist() == [0]
    assert found.notes == ["row 2: 't' holds 1 values, 'y' holds 2; it was left out"]
    parquet.write_table(pa.table({"t": [[1.0, 2], [3.0]], "y": [[1.0], [3.0, 4]]}), path)
    with pytest.raises(BadFile, match="row 1: 't' holds 2 values, 'y' holds 1"):
        read_light_curves(path)
    parquet.write_table(pa.table({"a": [1.0], "z": [[1.0, 2]]}), path)
    with pytest.raises(MissingColumn, match="times"):
        read_light_curves(path)


def test_list_columns_without_rows() -> None:
    pa = pytest.importorskip("pyarrow")
    assert pieces(pa.array([], pa.list_(pa.float64()))) == []


def test_list_columns_from_python() -> None:
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    grid = {"fmin": 0.1, "fmax": 3, "nf": 500, "device": "cpu", "return_power": False}
    pieces = [(T[a:b], FLUX[a:b], ERROR[a:b]) for a, b in ((0, 12), (12, 30))]
    expected = skysieve.lombscargle(*map(list, zip(*pieces, strict=True)), **grid).period
    table = nested("lists").filter(pa.array([True, False, True]))
    frame = table.to_pandas()
    arrow = table.to_pandas(types_mapper=pd.ArrowDtype)
    for data in (table, frame, arrow):
        got = skysieve.lombscargle("mjd", "flux", "flux_err", data=data, **grid)
        np.testing.assert_array_equal(got.period, expected)


# ---------------------------------------------------------------- moving objects


def test_basis_functions() -> None:
    """Muinonen et al. 2010: the nodes of table 4, straight lines to 7.5 degrees, no step between them."""
    degrees = np.array([0.0, 0.3, 4.0, 7.5, 20.0, 30.0, 60.0, 150.0])
    first, second, third = basis(degrees)
    np.testing.assert_allclose(first[[0, 3, 5, 6, 7]], [1, 0.75, 0.33486016, 0.13410560, 0.0036396989], rtol=1e-8)
    np.testing.assert_allclose(second[[0, 3, 5, 6, 7]], [1, 0.925, 0.62884169, 0.31755495, 1.6505689e-4], rtol=1e-8)
    np.testing.assert_allclose(third, [1, 0.83381185, 0.23174230, 0.10991083, 0.016107006, 0, 0, 0], atol=2e-3)
    near = basis(np.array([7.5 - 1e-7, 7.5 + 1e-7]))
    np.testing.assert_allclose(near[:, 0], near[:, 1], atol=1e-7)


def test_phase_fits_find_what_was_put_in() -> None:
    phase = np.linspace(0.5, 25, 40)
    shape = 0.3 * basis(phase)[0] + 0.5 * basis(phase)[1] + 0.2 * basis(phase)[2]
    np.testing.assert_allclose(fit_hg1g2(5e4 * shape, np.full(40, 10.0), phase), 5e4 * shape, rtol=1e-9)
    line = 3e3 * 10 ** (-0.4 * 0.042 * phase)
    np.testing.assert_allclose(fit_linear(line, np.full(40, 10.0), phase), line, rtol=1e-9)
    assert fit_linear(-line, np.full(40, 10.0), phase) is None
    assert fit_hg1g2(-line, np.full(40, 10.0), phase) is None


def asteroid(fluxes: bool, model: str, n: int = 400) -> tuple[LightCurves, float]:
    """One asteroid through an opposition, in two bands; returns its light curve and the frequency of its rotation."""
    rng = np.random.default_rng(2)
    t = np.sort(rng.uniform(0, 300, n))
    phase = np.abs(25 * np.sin(2 * np.pi * t / 450)) + 0.2
    r, delta = 2.4 + 0.2 * np.sin(t / 90), 1.5 + 0.8 * np.sin(t / 60) ** 2
    band = np.where(rng.random(n) < 0.5, "g", "r")
    frequency = 9.4321  # of the light curve: delta changes by up to 0.8 au, 4.6e-3 d or 0.04 cycles
    if model == "linear":
        shape = 10 ** (-0.4 * 0.04 * phase)
    else:
        shape = np.array([0.3, 0.4, 0.3]) @ basis(phase)
    magnitude = 18 + np.where(band == "g", 0.5, 0.0) - 2.5 * np.log10(shape) + 5 * np.log10(r * delta)
    magnitude = magnitude + 0.1 * np.sin(2 * np.pi * frequency * (t - delta * LIGHT_TIME))
    y = 3.6e12 * 10 ** (-0.4 * magnitude) if fluxes else magnitude
    dy = 0.01 * y if fluxes else np.full(n, 0.01)
    curves = LightCurves(
        path=Path("a.csv"), ids=np.array([1]), t=t, y=y, dy=dy, offsets=np.array([0, n]), taken="",
        value_name="psfFlux" if fluxes else "mag", band=band, r=r, delta=delta, phase=phase,
    )  # fmt: skip
    return curves, frequency


@pytest.mark.parametrize("model", ["linear", "hg1g2"])
@pytest.mark.parametrize("fluxes", [False, True])
def test_rotation_is_left(model: str, fluxes: bool) -> None:
    curves, frequency = asteroid(fluxes, model)
    rest = reduced(curves, model)
    np.testing.assert_allclose(rest.t, curves.t - curves.delta * LIGHT_TIME)
    assert rest.value_name.startswith("reduced ")
    assert rest.is_magnitude != fluxes
    assert replace(rest, value_name="reduced magnitude V").is_magnitude
    grid = {"fmin": 1, "fmax": 20, "nf": 60_000, "device": "cpu"}
    raw = skysieve.lombscargle(curves.t, curves.y, curves.dy, **grid)
    found = skysieve.lombscargle(rest.t, rest.y, rest.dy, **grid)
    assert abs(found.best_frequency - frequency) < 2e-5
    assert found.best_power > 0.97  # two bands, distances and the phase function take up to 3% of the sinusoid
    assert raw.best_power < 0.2
    scatter = np.std(rest.y)
    assert scatter == pytest.approx(0.1 / np.sqrt(2) * (0.921 if fluxes else 1), rel=0.05)


def test_rows_without_geometry() -> None:
    curves, _ = asteroid(False, "linear", 60)
    bad = replace(curves, r=np.where(np.arange(60) == 3, 0.0, curves.r), phase=np.where(np.arange(60) == 5, 170.0, 8.0))
    rest = reduced(bad, "linear")
    assert np.flatnonzero(np.isnan(rest.y)).tolist() == [3, 5]
    assert "2 rows without a usable distance" in rest.notes[0]
    assert "2 light curves have too few points or under 1 degrees" in rest.notes[1]
    assert abs(np.nanmean(10 ** (-0.4 * rest.y)) - 1) < 0.01  # equal phases: the mean of each band was taken out
    plain = reduced(replace(curves, phase=None), "none")
    np.testing.assert_allclose(plain.y, curves.y - 5 * np.log10(curves.r * curves.delta))
    assert rest.notes[-1].startswith("mag is taken as magnitudes")
    with pytest.raises(ValueError, match="--r and --delta"):
        reduced(replace(curves, r=None), "none")
    with pytest.raises(ValueError, match="--phase"):
        reduced(replace(curves, phase=None), "hg1g2")
    with pytest.raises(ValueError, match="model='hg': expected one of 'hg1g2', 'linear', 'none'"):
        reduced(curves, "hg")


def test_brightness_without_a_name_is_in_magnitudes(tmp_path: Path) -> None:
    """Columns that are given by number: 5 log10(r delta) is taken off magnitudes; only fluxes are multiplied."""
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{t} {20 + t / 100} 2.0 1.5 {t}\n" for t in range(1, 13)))
    curves = read_light_curves(path, Wanted(time="1", mag="2", r="3", delta="4", phase="5"))
    assert curves.is_magnitude
    np.testing.assert_allclose(reduced(curves, "none").y, curves.y - 5 * np.log10(3.0))
    path.write_text("t V_calib r delta\n" + "".join(f"{t} {20 + t / 100} 2.0 1.5\n" for t in range(1, 13)))
    notes = reduced(read_light_curves(path, Wanted(mag="V_calib", r="r", delta="delta")), "none").notes
    assert notes[-1].startswith("V_calib is taken as fluxes")


@pytest.mark.parametrize("model", ["linear", "hg1g2"])
def test_fluxes_that_are_noise(model: str) -> None:
    """No slope fits noise: such objects keep their numbers but for a scale, and cost the others nothing."""
    rng = np.random.default_rng(0)
    n, k = 300, 20
    flux = rng.normal(0, 900, n * k)
    flux[-k:] = 0.0
    curves = LightCurves(
        path=Path("x"), ids=np.arange(n), t=np.tile(np.linspace(0.0, 30, k), n), y=flux, dy=None,
        offsets=np.arange(0, n * k + 1, k), taken="", value_name="psfFlux",
        r=np.full(n * k, 2.0), delta=np.ones(n * k), phase=np.tile(np.linspace(1.0, 25, k), n),
    )  # fmt: skip
    with np.errstate(all="raise", under="ignore"):
        rest = reduced(curves, model)
    assert np.isfinite(rest.y).all()
    assert (rest.y[-k:] == 0).all()
    assert np.array_equal(np.sign(rest.y), np.sign(flux))


@pytest.mark.parametrize(("suffix", "kind"), [("csv", None), ("ecsv", None), ("fits", None), ("vot", "votable")])
def test_a_gzipped_table_is_the_table(tmp_path: Path, suffix: str, kind: str | None) -> None:
    """The content decides, under any name."""
    from astropy.table import Table

    plain, packed = tmp_path / f"a.{suffix}", tmp_path / "packed.gz"
    Table({"mjd": T[:4] + 0.0, "mag": T[:4] * 2.0}).write(plain, format=kind)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = read_light_curves(plain), read_light_curves(packed)
    np.testing.assert_array_equal(one.t, other.t)
    np.testing.assert_array_equal(one.y, other.y)
    assert other.ids.tolist() == ["packed"]


@pytest.mark.parametrize("kind", ["ascii.csv", "ascii.ecsv", "votable"])
def test_a_damaged_gzip_file_is_reported(tmp_path: Path, kind: str) -> None:
    from astropy.table import Table

    rng = np.random.default_rng(0)
    table, path = Table({"mjd": rng.uniform(0, 9, 2000), "mag": rng.normal(size=2000)}), tmp_path / "a.gz"
    table.write(tmp_path / "a", format=kind)
    packed = gzip.compress((tmp_path / "a").read_bytes())
    half = len(packed) // 2
    for damaged in (packed[:half], packed[:half] + bytes(300) + packed[half:]):
        path.write_bytes(damaged)
        with pytest.raises(BadFile):  # as such, or for what came out of it
            read_light_curves(path)


def test_gzipped_parquet_is_refused_and_empty_lists_are_reported(tmp_path: Path) -> None:
    """Neither costs an answer in silence."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    lists = {"id": [1, 2, 3], "mjd": [[1.0, 2.0], [], [3.0]], "mag": [[5.0, 6.0], [], [7.0]]}
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(lists), path)
    got = read_light_curves(path)
    assert got.ids.tolist() == [1, 3]
    assert "1 row of empty lists left out" in got.notes
    packed = tmp_path / "a.parquet.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(BadFile, match="gzipped Parquet"):
        read_light_curves(packed)


FORMS_OF_BANDS = {
    "masked": lambda b, gone: MaskedColumn(b, mask=gone),
    "masked bytes": lambda b, gone: MaskedColumn(b.astype("S"), mask=gone),
    "variable width": lambda b, gone: np.where(gone, "", b).astype(np.dtypes.StringDType()),
    "arrow": lambda b, gone: pytest.importorskip("pyarrow").array(b, mask=gone),
    "dictionary": lambda b, gone: pytest.importorskip("pyarrow").array(b, mask=gone).dictionary_encode(),
    "chunks": lambda b, gone: pytest.importorskip("pyarrow").chunked_array(
        [pytest.importorskip("pyarrow").array(b, mask=gone).dictionary_encode()]
    ),
}


@pytest.mark.parametrize("form", FORMS_OF_BANDS)
def test_missing_bands_of_every_form(form: str) -> None:
    t, b = np.arange(6.0), np.array(["g", "r", "i", "r", "g", "r"])
    bands = FORMS_OF_BANDS[form](b, np.arange(6) == 2)
    names, curves = with_bands(light_curves(t, t), bands)
    assert names == ("g", "r")
    assert np.isnan(curves.source.read(0, 1)[1]).tolist() == [False, False, True, False, False, False]
    assert curves.source.bands(0, 1)[[0, 1, 3, 4, 5]].tolist() == [0, 1, 1, 0, 1]


def test_bands_of_a_row_of_lists() -> None:
    pd = pytest.importorskip("pandas")
    t = np.arange(3.0)
    frame = pd.DataFrame({"t": [t, t], "y": [t, t], "band": [["g", None, "r"], ["r", "r", "g"]]})
    names, curves = with_bands(light_curves("t", "y", data=frame), frame["band"])
    assert names == ("g", "r")
    assert np.isnan(curves.source.read(0, 2)[1]).tolist() == [False, True, False, False, False, False]
    assert curves.source.bands(0, 2)[[0, 2, 3, 4, 5]].tolist() == [0, 1, 1, 1, 0]


def test_columns_with_a_dictionary_in_chunks() -> None:
    pa = pytest.importorskip("pyarrow")
    names, offsets, order = group_rows(pa.chunked_array([pa.array(["a", "a", "b"]).dictionary_encode()]))
    assert (names.tolist(), offsets.tolist(), order) == (["a", "b"], [0, 2, 3], None)
    mag = pa.chunked_array([pa.array([15.5, None, 15.7]).dictionary_encode()])
    np.testing.assert_array_equal(numeric(mag, "y"), [15.5, np.nan, 15.7])
    with pytest.raises(TypeError, match="id of row 1 is None"):
        group_rows(pa.chunked_array([pa.array(["a", None, "b"]).dictionary_encode()]))


def test_pandas_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    t, words = np.arange(4.0), np.array(["g", "g", "r", "r"], object)
    text = pd.Series(words, dtype=pd.StringDtype("python"))
    curves = light_curves(pd.Series(t, dtype="Float64"), pd.Series(t), id=text)
    assert curves.ids.tolist() == ["g", "r"]
    assert with_bands(curves, text)[0] == ("g", "r")
