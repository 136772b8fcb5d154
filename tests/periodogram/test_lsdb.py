"""Light curves in nested columns: `skysieve.lsdb.periods` on partitions, ``data=``, HATS catalogues."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import skysieve
import skysieve.lsdb

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

GRID = {"fmin": 0.2, "fmax": 3.0}


def curves(n: int = 6, seed: int = 1):
    """Light curves of two bands, as flat arrays with offsets: t, y, dy, band, offsets."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(30, 50, n)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    t = 58000 + np.concatenate([np.sort(rng.uniform(0, 60, m)) for m in sizes])
    band = rng.choice(["g", "r"], len(t))
    period = np.repeat(0.5 + 0.17 * np.arange(n), sizes)
    y = 15 + 0.4 * (band == "r") + 0.3 * np.sin(2 * np.pi * t / period) + rng.normal(0, 0.02, len(t))
    return t, y, np.full(len(t), 0.02), band, offsets


def structs(kind: str, n: int = 6):
    """The light curves of `curves` as a column of structs of lists, or of lists of structs."""
    *columns, offsets = curves(n)
    names = ["mjd", "mag", "magerr", "band"]
    if kind == "lists of structs":
        return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([pa.array(c) for c in columns], names))
    return pa.StructArray.from_arrays([pa.ListArray.from_arrays(offsets, pa.array(c)) for c in columns], names)


def frame(kind: str = "structs of lists", n: int = 6):
    table = pa.table({"star": np.arange(n) + 100, "lc": structs(kind, n)})
    made = table.to_pandas(types_mapper=pd.ArrowDtype)
    made.index = pd.Index(np.arange(n)[::-1] * 7, name="pixel")
    return made


KINDS = ("structs of lists", "lists of structs")


# ---------------------------------------------------------------- nested columns as data=


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["array", "chunks", "series", "nested series"])
def test_a_nested_column_is_data(kind, form):
    column = structs(kind)
    if form == "chunks":
        column = pa.chunked_array([column[:2], column[2:2], column[2:]])
    elif form == "series":
        column = pd.Series(column, dtype=pd.ArrowDtype(column.type))
    elif form == "nested series":
        nested = pytest.importorskip("nested_pandas")
        column = pd.Series(column, dtype=nested.NestedDtype(column.type))
    t, y, dy, band, offsets = curves()
    flat = skysieve.lombscargle(t, y, dy, offsets=offsets, return_power=False, **GRID)
    found = skysieve.lombscargle("mjd", "mag", "magerr", data=column, return_power=False, **GRID)
    assert np.array_equal(found.period, flat.period)
    both = skysieve.lombscargle_multiband(t, y, band, dy, offsets=offsets, return_power=False, **GRID)
    found = skysieve.lombscargle_multiband("mjd", "mag", "band", "magerr", data=column, return_power=False, **GRID)
    assert np.array_equal(found.period, both.period)
    with pytest.raises(ValueError, match=r"y='flux' is not a field of data: expected one of mjd, mag, magerr, band"):
        skysieve.lombscargle("mjd", "flux", data=column)


@pytest.mark.parametrize("kind", KINDS)
def test_bands_of_a_nested_column_of_a_frame(kind):
    t, y, dy, band, offsets = curves()
    both = skysieve.lombscargle_multiband(t, y, band, dy, offsets=offsets, return_power=False, **GRID)
    found = skysieve.lombscargle_multiband(
        "lc.mjd", "lc.mag", "lc.band", "lc.magerr", data=frame(kind), return_power=False, **GRID
    )
    assert np.array_equal(found.period, both.period)


def test_bands_of_other_lengths_are_refused():
    other = pa.array([["g"]] * 6)
    column = structs("structs of lists")
    with pytest.raises(ValueError, match="bands: the lists have other lengths than those of y"):
        skysieve.lombscargle_multiband(column.field("mjd"), column.field("mag"), other, **GRID)


# ---------------------------------------------------------------- partitions


@pytest.mark.parametrize("kind", KINDS)
def test_periods_are_those_of_the_command(kind, tmp_path):
    """The same rows in a file give the same columns, bit for bit."""
    import pyarrow.parquet as pq
    from typer.testing import CliRunner

    from skysieve.cli import application

    pq.write_table(pa.table({"star": np.arange(6) + 100, "lc": structs(kind)}), tmp_path / "stars.parquet")
    out = tmp_path / "out.parquet"
    run = ["period", str(tmp_path / "stars.parquet"), "--id", "star", "--fmin", "0.2", "--fmax", "3", "-o", str(out)]
    assert CliRunner().invoke(application("period"), [*run, "--peaks", "2"]).exit_code == 0
    expected = pq.read_table(out).to_pydict()
    found = skysieve.lsdb.periods(frame(kind), n_peaks=2, **GRID)
    assert list(found.columns) == ["star", *(name for name in expected if name != "id")]
    assert found.index.equals(frame(kind).index)
    for name in expected:
        assert found["star" if name == "id" else name].tolist() == expected[name], name


def test_meta_is_an_empty_answer():
    stars = frame()
    found, empty = skysieve.lsdb.periods(stars, **GRID), skysieve.lsdb.meta(stars, **GRID)
    assert len(empty) == 0
    assert list(empty.dtypes.items()) == list(found.dtypes.items())
    assert empty.index.dtype == found.index.dtype
    assert empty.index.name == "pixel"
    assert type(empty) is type(found)


def test_only_bad_rows_are_lost():
    t, y, dy, band, offsets = curves()
    names = band.astype(object)
    y[3], dy[4], t[5], names[6] = np.nan, np.nan, np.inf, None
    lists = [pa.ListArray.from_arrays(offsets, pa.array(c)) for c in (t, y, dy, names)]
    rows = pa.StructArray.from_arrays(lists, ["mjd", "mag", "magerr", "band"])
    column = pa.chunked_array([rows.slice(0, 1), pa.nulls(1, rows.type), rows.slice(1, 1), rows.slice(2, 1)])
    stars = pd.DataFrame({"lc": pd.Series(column, dtype=pd.ArrowDtype(rows.type))})
    found = skysieve.lsdb.periods(stars, **GRID)
    assert found["status"].tolist() == ["ok", "empty", "ok", "ok"]
    assert found["n_dropped"].tolist() == [4, 0, 0, 0]
    assert np.isnan(found["period"].iloc[1])
    assert np.isfinite(found["period"].iloc[[0, 2, 3]]).all()
    keep = np.setdiff1d(np.arange(offsets[1]), [3, 4, 5, 6])
    alone = skysieve.lombscargle_multiband(
        t[keep], y[keep], band[keep], dy[keep], fmin="auto", fmax=3, samples_per_peak=10, return_power=False
    )
    again = skysieve.lsdb.periods(stars, fmax=3.0)
    assert again["period"].iloc[0] == alone.period


def test_a_list_of_another_length_loses_its_object():
    t = np.linspace(0, 9, 30)
    lists = {"mjd": [t, t], "mag": [np.sin(5 * t), np.sin(5 * t)[:-1]]}
    found = skysieve.lsdb.periods(pa.table(lists).to_pandas(types_mapper=pd.ArrowDtype), fmin=0.2, fmax=3)
    assert np.isfinite(found["period"].iloc[0])
    assert np.isnan(found["period"].iloc[1])
    assert found["status"].iloc[1] == "empty"


def test_a_partition_without_a_row_of_the_band_gives_statuses():
    found = skysieve.lsdb.periods(frame(), band="Y", n_peaks=2, **GRID)
    assert set(found["status"]) == {"empty"}
    assert found["period_2"].isna().all()
    assert found.dtypes.equals(skysieve.lsdb.periods(frame(), band="g", n_peaks=2, **GRID).dtypes)


def test_one_band_and_flags_and_chosen_columns():
    t, y, dy, band, offsets = curves()
    one = skysieve.lsdb.periods(frame(), band="g", columns=[], prefix="g_", **GRID)
    assert list(one.columns)[:2] == ["g_status", "g_n_used"]
    counts = np.add.reduceat(band == "g", offsets[:-1])
    assert one["g_n_used"].tolist() == counts.tolist()
    flags = np.zeros(len(t), np.int64)
    flags[:4] = 32768
    parts = [pa.ListArray.from_arrays(offsets, pa.array(c)) for c in (t, y, dy, flags)]
    lists = pa.StructArray.from_arrays(parts, ["mjd", "mag", "magerr", "catflags"])
    stars = pd.DataFrame({"lc": pd.Series(lists, dtype=pd.ArrowDtype(lists.type))})
    assert skysieve.lsdb.periods(stars, **GRID)["n_dropped"].tolist() == [4, 0, 0, 0, 0, 0]
    assert skysieve.lsdb.periods(stars, flags=(), **GRID)["n_dropped"].sum() == 0


@pytest.mark.parametrize("drift", ["no errors", "float32", "text", "no objects"])
def test_partitions_of_other_schemas_give_the_columns_of_the_first(drift):
    t = np.sort(np.random.default_rng(1).uniform(0, 30, 60))
    values = [np.sin(6 * t), np.sin(3 * t)]
    lists = {"mjd": [t, t], "mag": values, "magerr": [np.full(60, 0.1)] * 2}
    first = skysieve.lsdb.periods(pa.table(lists).to_pandas(types_mapper=pd.ArrowDtype), fmin=0.1, fmax=2)
    if drift == "no errors":
        del lists["magerr"]
    elif drift == "float32":
        lists["mag"] = [v.astype("f4") for v in values]
    elif drift == "text":
        lists["mag"] = [[f"{x:.5f}" for x in v] for v in values]
    partition = pa.table(lists).to_pandas(types_mapper=pd.ArrowDtype).iloc[: 0 if drift == "no objects" else 2]
    found = skysieve.lsdb.periods(partition, fmin=0.1, fmax=2)
    assert list(found.dtypes.items()) == list(first.dtypes.items())
    np.testing.assert_allclose(found["period"], first["period"].iloc[: len(found)], rtol=1e-3)
    if drift == "no errors":
        with pytest.raises(ValueError, match="no column 'magerr' for dy=; the columns are: mjd, mag"):
            skysieve.lsdb.periods(partition, None, "mjd", "mag", "magerr", fmin=0.1, fmax=2)


def test_a_column_without_any_value_has_no_light_curves():
    stars = pd.DataFrame({"star": [1, 2], "lc": pd.Series([None, None], dtype=pd.ArrowDtype(pa.null()))})
    found = skysieve.lsdb.periods(stars, "lc", **GRID)
    assert list(found.columns)[:2] == ["star", "status"]
    assert np.isnan(found["period"]).all()


def test_a_constant_is_fitted_only_if_asked():
    found = skysieve.lsdb.periods(frame(), "lc", **GRID, model="none", nterms=0)
    np.testing.assert_allclose(found["power"].astype(float), 0, atol=1e-12)
    with pytest.raises(ValueError, match=r"nterms=0; model='offsets' needs at least 1 term"):
        skysieve.lsdb.periods(frame(), "lc", **GRID, nterms=0)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("nothing",), {}, ValueError, "nested='nothing' is not a column of light curves: expected one of lc"),
        (("lc", "time"), {}, ValueError, "time"),
        (("lc",), {"fmim": 1}, TypeError, r"no option 'fmim': expected one of fmin, fmax"),
        (("lc",), {"n_peaks": 0}, ValueError, "n_peaks"),
        (("lc",), {"nterms": -1}, ValueError, "nterms"),
        (("lc",), {"method": "fast"}, ValueError, "method"),
        (("lc",), {"model": "both"}, ValueError, "model"),
        (("lc",), {"columns": ["x"]}, ValueError, "columns='x': expected one of star, lc"),
    ],
)
def test_errors_come_with_the_graph(arguments, options, error, message):
    """LSDB calls the function with an empty frame when the graph is made: no partition is read for a wrong name."""
    with pytest.raises(error, match=message):
        skysieve.lsdb.periods(frame().iloc[:0], *arguments, **options)


def test_a_name_that_the_partition_has_already():
    stars = frame().assign(period=1.0)
    with pytest.raises(ValueError, match="has a column 'period' already: expected another prefix"):
        skysieve.lsdb.periods(stars, **GRID)
    assert "ls_period" in skysieve.lsdb.periods(stars, prefix="ls_", **GRID)


def test_the_function_can_be_pickled():
    assert pickle.loads(pickle.dumps(skysieve.lsdb.periods)) is skysieve.lsdb.periods


# ---------------------------------------------------------------- LSDB


@pytest.fixture
def catalogue(tmp_path):
    """A HATS catalogue on disk, of some partitions."""
    lsdb = pytest.importorskip("lsdb")
    nested = pytest.importorskip("nested_pandas")
    n = 40
    rng = np.random.default_rng(3)
    column = structs("lists of structs", n)
    stars = nested.NestedFrame(
        {
            "star": np.arange(n),
            "ra": rng.uniform(0, 20, n),
            "dec": rng.uniform(-5, 5, n),
            "lc": pd.Series(column, dtype=nested.NestedDtype(column.type)),
        }
    )
    lsdb.from_dataframe(stars, ra_column="ra", dec_column="dec", partition_rows=10).write_catalog(tmp_path / "stars")
    return lsdb.open_catalog(tmp_path / "stars")


@pytest.mark.slow
def test_map_partitions_of_a_hats_catalogue(catalogue, tmp_path):
    import lsdb

    found = catalogue.map_partitions(skysieve.lsdb.periods, "lc", **GRID)
    assert catalogue.npartitions > 1
    table = found.compute()
    assert (table.dtypes == found.dtypes).all()
    t, y, dy, band, offsets = curves(40)
    both = skysieve.lombscargle_multiband(t, y, band, dy, offsets=offsets, return_power=False, **GRID)
    by_star = table.sort_values("star")
    assert np.array_equal(by_star["period"], both.period)
    found.write_catalog(tmp_path / "periods")
    again = lsdb.open_catalog(tmp_path / "periods").compute().sort_values("star")
    assert np.array_equal(again["period"].to_numpy(float), by_star["period"])
    empty = catalogue.query("star < 0").map_partitions(skysieve.lsdb.periods, "lc", **GRID).compute()
    assert len(empty) == 0
    assert (empty.dtypes == table.dtypes).all()


@pytest.mark.slow
def test_map_partitions_in_other_processes(catalogue):
    """Tasks and answers pass between processes, as on a cluster."""
    distributed = pytest.importorskip("distributed")
    serial = catalogue.map_partitions(skysieve.lsdb.periods, "lc", **GRID).compute()
    alone = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with distributed.LocalCluster(**alone) as cluster, distributed.Client(cluster):
        parallel = catalogue.map_partitions(skysieve.lsdb.periods, "lc", **GRID).compute()
    pd.testing.assert_frame_equal(pd.DataFrame(serial), pd.DataFrame(parallel))


def test_single_precision_times_are_refused():
    t = (2459000 + np.linspace(0, 30, 40)).astype(np.float32).tolist()
    lists = pa.array([t], pa.list_(pa.float32()))
    stars = pa.table({"mjd": lists, "mag": [np.sin(t).tolist()]}).to_pandas(types_mapper=pd.ArrowDtype)
    with pytest.raises(ValueError, match="single precision"):
        skysieve.lsdb.periods(stars, fmin=0.1, fmax=2)
