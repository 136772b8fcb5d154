"""Parts of a file that ``skysieve smooth`` preserves (cards, other columns, other HDUs), and its lines in HISTORY."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import skysieve
from skysieve.cli import app
from skysieve.sphere.maps.fits_cards import STRUCTURE, is_auxiliary
from skysieve.sphere.maps.io import read_maps

fits = pytest.importorskip("astropy.io.fits")
healpy = pytest.importorskip("healpy")
NSIDE = 16
NPIX = 12 * NSIDE**2
RAD = np.pi / 180


def run(*args):
    result = CliRunner().invoke(app, ["smooth", *map(str, args)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def planck(tmp_path):
    """A file as surveys publish them: three maps, hits and covariance, many cards, four HDUs."""
    rng = np.random.default_rng(5)
    maps = rng.normal(size=(3, NPIX))
    primary = fits.PrimaryHDU()
    primary.header["OBSERVER"] = "me"
    rows = {f"{n}_STOKES": m.reshape(-1, 1024) for n, m in zip("IQU", maps, strict=True)}
    columns = [fits.Column("HITS", "1024J", unit="1", array=np.arange(NPIX).reshape(-1, 1024), null=-1)]
    columns += [fits.Column(n, "1024E", unit="K_CMB", array=m) for n, m in rows.items()]
    columns += [fits.Column("II_COV", "1024D", unit="K_CMB^2", array=np.abs(maps[0]).reshape(-1, 1024))]
    table = fits.BinTableHDU.from_columns(columns, name="FREQ-MAP")
    cards = [("PIXTYPE", "HEALPIX"), ("ORDERING", "NESTED"), ("NSIDE", NSIDE), ("COORDSYS", "GALACTIC"),
             ("BEAM", "7arcmin", "of the instrument"), ("BAD_DATA", -1.6375e30), ("MYKEY", 3.5), ("EXTVER", 2),
             ("FIRSTPIX", 0), ("LASTPIX", NPIX - 1), ("INDXSCHM", "IMPLICIT")]  # fmt: skip
    for card in cards:
        table.header.set(*card)
    table.header["HISTORY"] = "made by hand"
    table.header["COMMENT"] = "first"
    table.header["COMMENT"] = "second"
    beams = fits.BinTableHDU.from_columns([fits.Column("T", "D", array=np.linspace(1, 0, 9))], name="BEAMWINDOW")
    picture = fits.CompImageHDU(np.arange(64 * 64, dtype=np.int16).reshape(64, 64), name="PICTURE")
    fits.HDUList([primary, table, beams, picture]).writeto(tmp_path / "in.fits")
    return tmp_path / "in.fits", maps.astype(np.float32)


def test_cards_columns_and_hdus_are_kept(planck, tmp_path):
    path, maps = planck
    said = run(path, tmp_path / "out.fits", "--fwhm", "20deg")
    assert "columns HITS, II_COV: not smoothed" in said
    with fits.open(path) as before, fits.open(tmp_path / "out.fits", checksum=True) as after:
        assert len(after) == 4
        assert after[0].header["OBSERVER"] == "me"
        assert np.array_equal(after["BEAMWINDOW"].data["T"], before["BEAMWINDOW"].data["T"])
        assert np.array_equal(after["PICTURE"].data, before["PICTURE"].data)
        a, b = before[1].header, after[1].header
        for card in a.cards:
            if card.keyword not in ("HISTORY", "COMMENT") and not STRUCTURE.fullmatch(card.keyword):
                assert b[card.keyword] == card.value, card
        assert b.comments["BEAM"] == "of the instrument"
        assert after[1].name == "FREQ-MAP"
        assert list(b["COMMENT"]) == ["first", "second"]
        history = list(b["HISTORY"])
        assert history[0] == "made by hand"
        assert history[1] == f"smoothed by skysieve {skysieve.__version__} smooth from in.fits"
        assert "kernel: fwhm 20deg" in history
        assert "columns: I_STOKES, Q_STOKES, U_STOKES" in history
        assert "unchanged columns: HITS, II_COV" in history
        assert after[1].columns.names == before[1].columns.names  # and in the same order
        assert [c.unit for c in after[1].columns] == [c.unit for c in before[1].columns]
        for name in ("HITS", "II_COV"):
            assert np.array_equal(after[1].data[name], before[1].data[name])
            assert after[1].columns[name].format == before[1].columns[name].format
        assert after[1].columns["HITS"].null == -1
        found = np.array([after[1].data[f"{n}_STOKES"].ravel() for n in "IQU"])
    assert np.array_equal(found, skysieve.smoothing(maps, 20 * RAD, nest=True))
    theirs = healpy.read_map(tmp_path / "out.fits", field=("I_STOKES",), nest=True)
    assert np.array_equal(theirs, found[0])


def test_auxiliary_columns_are_smoothed_when_they_are_named(planck, tmp_path):
    path, _ = planck
    run(path, tmp_path / "out.fits", "--fwhm", "20deg", "--fields", "HITS")
    table = fits.getdata(tmp_path / "out.fits", 1)
    assert table.columns.names == ["HITS"]
    assert table["HITS"].dtype.kind == "f"
    assert table["HITS"].std() < 0.95 * np.arange(NPIX).std()
    path = tmp_path / "hits.fits"
    healpy.write_map(path, np.arange(NPIX), column_names=["N_OBS"], dtype=np.int32)
    result = CliRunner().invoke(app, ["smooth", str(path), str(tmp_path / "no.fits"), "--fwhm", "20deg"])
    assert result.exit_code == 2
    assert "columns N_OBS hold no map by their names, expected fields (--fields)" in " ".join(result.output.split())


def test_a_map_with_its_number_of_observations(tmp_path):
    """Two columns of different types; the output replaces the input."""
    rng = np.random.default_rng(1)
    columns = [fits.Column("TEMPERATURE", "E", array=rng.normal(size=NPIX)),
               fits.Column("N_OBS", "J", array=rng.integers(0, 9, NPIX))]  # fmt: skip
    table = fits.BinTableHDU.from_columns(columns)
    table.header.update({"ORDERING": "RING", "NSIDE": NSIDE})
    table.writeto(tmp_path / "a.fits.gz")
    before = fits.getdata(tmp_path / "a.fits.gz", 1)
    run(tmp_path / "a.fits.gz", tmp_path / "a.fits.gz", "--fwhm", "20deg", "--overwrite")
    after = fits.getdata(tmp_path / "a.fits.gz", 1)
    assert np.array_equal(after["N_OBS"].ravel(), before["N_OBS"])
    assert after["TEMPERATURE"].std() < 0.5 * before["TEMPERATURE"].std()


@pytest.mark.parametrize("more", [(), ("--nside-out", "8")])
def test_part_of_the_sky_and_another_nside(tmp_path, more):
    """A file of some pixels keeps its columns; with another nside they are left out, and a message says so."""
    rng = np.random.default_rng(2)
    maps = rng.normal(size=(2, NPIX))
    maps[:, 900:] = healpy.UNSEEN
    maps[1, :900] = rng.integers(1, 9, 900)
    healpy.write_map(
        tmp_path / "in.fits", maps, partial=True, column_names=["TEMPERATURE", "HITS"], dtype=np.float64, coord="C",
        extra_header=[("BEAM", "1deg")],
    )  # fmt: skip
    said = run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "20deg", *more)
    with fits.open(tmp_path / "out.fits") as hdus:
        table = hdus[1]
        assert table.header["BEAM"] == "1deg"
        assert table.header["COORDSYS"] == "C"
        assert table.header["NSIDE"] == (8 if more else NSIDE)
        assert table.header["OBS_NPIX"] == len(table.data)
        if more:
            assert table.columns.names == ["PIXEL", "TEMPERATURE"]
            assert "columns HITS: left out, because nside changes" in said
        else:
            assert np.array_equal(table.data["HITS"], maps[1, :900])
            assert table.columns.names == ["PIXEL", "TEMPERATURE", "HITS"]


@pytest.mark.parametrize("scale", [None, (0.5, 10.0)])
@pytest.mark.parametrize(("form", "null"), [("I", -32768), ("J", -1), ("B", 255), ("256I", 0)])
def test_null_pixels_of_whole_numbers_are_bad(tmp_path, form, null, scale):
    """TNULL marks pixels without data, before TSCAL and TZERO; they were smoothed as numbers, such as -16,374."""
    values = np.random.default_rng(3).integers(1, 200, NPIX)
    stored = values.astype({"I": np.int16, "J": np.int32, "B": np.uint8}[form[-1]])
    stored[5:50] = null
    rows = stored.reshape(-1, 256) if form[0] == "2" else stored
    table = fits.BinTableHDU.from_columns([fits.Column("T", form, array=rows, null=null)])
    table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": NSIDE})
    expected = values.astype(np.float64)
    if scale is not None:
        table.header["TSCAL1"], table.header["TZERO1"] = scale
        expected = expected * scale[0] + scale[1]
    table.writeto(tmp_path / "in.fits")
    expected[5:50] = healpy.UNSEEN
    assert np.array_equal(read_maps(tmp_path / "in.fits").maps[0], expected)
    run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "20deg")
    found = fits.getdata(tmp_path / "out.fits", 1)["T"].ravel()
    assert np.array_equal(found, skysieve.smoothing(expected, 20 * RAD))


def test_positive_and_the_options_in_history(tmp_path):
    m = np.zeros(NPIX)
    m[100] = 1
    healpy.write_map(tmp_path / "in.fits", m, column_names=["PROB"], dtype=np.float64)
    options = ("--fwhm", "25deg", "--method", "ring", "--flux", "conserve", "--positive")
    run(tmp_path / "in.fits", tmp_path / "out.fits", *options)
    found = healpy.read_map(tmp_path / "out.fits")
    assert np.isfinite(np.log(found)).all()
    assert found.sum() == pytest.approx(1, rel=1e-11)
    history = list(fits.getheader(tmp_path / "out.fits", 1)["HISTORY"])
    assert {"positive: yes", "flux: conserve"} <= set(history)
    m[3] = -1
    healpy.write_map(tmp_path / "in.fits", m, column_names=["PROB"], dtype=np.float64, overwrite=True)
    result = CliRunner().invoke(app, ["smooth", *map(str, (tmp_path / "in.fits", tmp_path / "no.fits")), *options])
    assert result.exit_code == 2
    assert f"--positive: {tmp_path / 'in.fits'} holds -1.0" in result.output


def test_names_of_columns():
    maps = ("I", "T", "TEMPERATURE", "Q_POLARISATION", "PROB", "DISTMU", "SIGNAL", "I_STOKES", "CONVERGENCE", "NHI")
    others = ("N_OBS", "NOBS", "HITS", "nhits", "Hit-count", "II_COV", "QQ", "VARIANCE", "WEIGHT", "TMASK", "PIX_FLAG",
              "SERROR", "I_RMS", "ERR_TAU", "HPXINDEX", "RA2000", "DEC2000", "GLON", "GLAT")  # fmt: skip
    assert not any(is_auxiliary(n) for n in maps)
    assert all(is_auxiliary(n) for n in others)
