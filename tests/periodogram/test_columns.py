"""The choice of columns and rows of a table, by the surveys' names, flags, doubled names and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.marks import slow
from typer.testing import CliRunner, Result

from skysieve.cli import app
from skysieve.core.table_files import write_table
from skysieve.periodogram.lightcurves.choose_columns import choose
from skysieve.periodogram.lightcurves.column_names import MissingColumn, Wanted
from skysieve.periodogram.lightcurves.flags import KEPLER, TESS
from skysieve.periodogram.lightcurves.io import BadFile, LightCurves, read_light_curves
from skysieve.periodogram.lightcurves.stream import open_stream

RNG = np.random.default_rng(3)
N = 240
T = np.sort(59000 + RNG.integers(0, 300, N) + 0.3 * RNG.random(N))
PERIODS = (0.56789, 1.23449)
MAG = 15 + 0.4 * np.sin(2 * np.pi * T / PERIODS[0]) + 0.02 * RNG.normal(size=N)
OTHER = 15 + 0.4 * np.sin(2 * np.pi * T / PERIODS[1]) + 0.02 * RNG.normal(size=N)
ERR = RNG.uniform(0.01, 0.03, N)
FORMATS = ("csv", "parquet", "fits", "ecsv", "vot", "tbl")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def save(folder: Path, columns: dict[str, Any], kind: str = "csv") -> Path:
    path = folder / f"table.{kind}"
    if kind in ("vot", "tbl"):
        from astropy.table import Table

        Table(columns).write(path, format="votable" if kind == "vot" else "ascii.ipac")
    else:
        write_table(columns, path)
    return path


def taken(names: str) -> dict[str, str]:
    columns = choose(names.split(), Wanted())
    return {role: names.split()[i] for role, i in columns.parts().items()}


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("MasterID Mag Magerr RA Dec MJD Blend", "id=MasterID time=MJD mag=Mag err=Magerr"),  # CRTS
        ("NAME DATE MAG MERR FILT TRANS MTYPE", "id=NAME time=DATE mag=MAG err=MERR band=FILT"),  # AAVSO's own
        ("MJD m dm uJy duJy filterType err chi/N", "time=MJD mag=uJy err=duJy band=filterType flag=err"),  # ATLAS
        ("source_id time flux flux_error", "id=source_id time=time mag=flux err=flux_error"),
        ("source_id band time mag flux flux_error",
         "id=source_id time=time mag=mag band=band flux=flux flux_err=flux_error"),
        ("JD Flux Flux_Error Mag Mag_Error Limit FWHM Filter Quality",
         "time=JD mag=Mag err=Mag_Error band=Filter flag=Quality"),
        ("HJD MAG_0 MAG_1 MER_0 MER_1 GRADE FRAME", "time=HJD mag=MAG_0 err=MER_0 flag=GRADE"),  # ASAS-3
        ("i:objectId i:jd i:magpsf i:sigmapsf i:fid", "id=i:objectId time=i:jd mag=i:magpsf err=i:sigmapsf band=i:fid"),
        ("TIME SAP_FLUX SAP_FLUX_ERR PDCSAP_FLUX PDCSAP_FLUX_ERR SAP_QUALITY",
         "time=TIME mag=PDCSAP_FLUX err=PDCSAP_FLUX_ERR flag=SAP_QUALITY"),
        ("TIME SAP_FLUX DET_FLUX DET_FLUX_ERR QUALITY", "time=TIME mag=DET_FLUX err=DET_FLUX_ERR flag=QUALITY"),
        ("oid hjd mag magerr catflags filtercode", "id=oid time=hjd mag=mag err=magerr band=filtercode flag=catflags"),
        ("jd filter forcediffimflux forcediffimfluxunc infobitssci",
         "time=jd mag=forcediffimflux err=forcediffimfluxunc band=filter flag=infobitssci"),
        ("source_id mjd w1mpro w1sigmpro qual_frame cc_flags",  # NEOWISE: source_id names one detection
         "time=mjd mag=w1mpro err=w1sigmpro flag=qual_frame+cc_flags"),
        ("source_id allwise_cntr mjd w2mpro w2sigmpro", "id=allwise_cntr time=mjd mag=w2mpro err=w2sigmpro"),
        ("source_id_mf mjd w1mpro_ep w1sigmpro_ep", "id=source_id_mf time=mjd mag=w1mpro_ep err=w1sigmpro_ep"),
        ("oid mjd fid isdiffpos magpsf sigmapsf magpsf_corr sigmapsf_corr sigmapsf_corr_ext",  # ALeRCE
         "id=oid time=mjd mag=magpsf_corr err=sigmapsf_corr band=fid"),
        ("oid mjd fid isdiffpos mag e_mag mag_corr e_mag_corr", "id=oid time=mjd mag=mag_corr err=e_mag_corr band=fid"),
        ("mjd fid dc_mag dc_sigmag magpsf isdiffpos", "time=mjd mag=dc_mag err=dc_sigmag band=fid"),  # Lasair
        ("obsmjd mag_autocorr magerr_auto oid fid goodflag",
         "id=oid time=obsmjd mag=mag_autocorr err=magerr_auto band=fid flag=goodflag"),  # PTF
        ("HIP Time Hp e_Hp", "id=HIP time=Time mag=Hp err=e_Hp"),
        ("DATEJD WHITEFLUX WHITEFLUXDEV", "time=DATEJD mag=WHITEFLUX err=WHITEFLUXDEV"),  # CoRoT
        ("date jd magcal_magdep magcal_local_rms", "time=jd mag=magcal_magdep err=magcal_local_rms"),  # DASCH
        ("TIME X Y APFLUX2", "time=TIME mag=APFLUX2"),  # places on a detector
        ("objectId band psfFlux psfFluxErr psfFlux_flag expMidptMJD pixelFlags_bad diff_PixelFlags_nodataCenter",
         "id=objectId time=expMidptMJD mag=psfFlux err=psfFluxErr band=band flag=psfFlux_flag"),
        ("objectId psfDiffFlux psfDiffFluxErr psfDiffFlux_flag expMidptMJD invalidPsfFlag diff_PixelFlags_nodataCenter",
         "id=objectId time=expMidptMJD mag=psfDiffFlux err=psfDiffFluxErr "
         "flag=psfDiffFlux_flag+invalidPsfFlag+diff_PixelFlags_nodataCenter"),
        ("source_id g_transit_time g_transit_mag variability_flag_g_reject variability_flag_bp_reject",
         "id=source_id time=g_transit_time mag=g_transit_mag flag=variability_flag_g_reject"),
        ("jdb vrad svrad", "time=jdb mag=vrad err=svrad"),
        ("permID obsTime mag rmsMag band", "id=permID time=obsTime mag=mag err=rmsMag band=band"),
        ("coadd_object_id MJD_OBS MAG_PSF MAGERR_PSF BAND",
         "id=coadd_object_id time=MJD_OBS mag=MAG_PSF err=MAGERR_PSF band=BAND"),
    ],
)  # fmt: skip
def test_names_of_surveys(header: str, expected: str) -> None:
    found = taken(header)
    flags = [found.pop(role) for role in list(found) if role.startswith("flag ")]
    if flags:
        found["flag"] = "+".join(flags)
    assert found == dict(pair.split("=") for pair in expected.split())


@pytest.mark.parametrize("kind", ["csv", *(slow(kind) for kind in FORMATS if kind != "csv")])
@pytest.mark.parametrize(
    "name",
    ["MasterID", "ObjectName", "gaia_source_id", "AsassnID", "my_star_id_objid", "VarNo", "src_idx", "OGLE_name"],
)
def test_two_stars_are_not_one(name: str, kind: str, tmp_path: Path) -> None:
    table = {
        name: np.repeat([1118060012345, 1118060099999], N),
        "mjd": np.concatenate([T, T + 0.01]),
        "mag": np.concatenate([MAG, OTHER]),
        "MERR": np.concatenate([ERR, ERR]),
    }
    found = read_light_curves(save(tmp_path, table, kind))
    assert len(found) == 2
    assert f"id = {name}" in found.taken
    assert "err = MERR" in found.taken


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["F", "filterType", "phot_filter", "obs_band"])
def test_bands_are_known(name: str, kind: str, tmp_path: Path) -> None:
    band = np.where(np.arange(N) % 2, "c", "o")
    table = {"mjd": T, "mag": MAG + (band == "c"), "magerr": ERR, name: band}
    found = read_light_curves(save(tmp_path, table, kind))
    assert f"band = {name}" in found.taken
    assert found.band is not None
    assert found.band.tolist() == band.tolist()


def test_a_flux_called_f_is_no_band(tmp_path: Path) -> None:
    found = read_light_curves(save(tmp_path, {"mjd": T, "mag": MAG, "magerr": ERR, "F": 10 ** (-0.4 * MAG)}))
    assert found.band is None


def test_errors_of_magnitudes_from_those_of_fluxes(tmp_path: Path) -> None:
    """Gaia gives magnitudes without errors, and fluxes with errors."""
    flux = 10 ** (-0.4 * (MAG - 25))
    found = read_light_curves(save(tmp_path, {"time": T, "mag": MAG, "flux": flux, "flux_error": 0.01 * flux}))
    assert "err = flux_error (as 1.0857 flux_error / flux)" in found.taken
    np.testing.assert_array_equal(found.y, MAG)
    brighter = -2.5 * np.log10(flux * 1.01) + 25
    np.testing.assert_allclose(found.dy, MAG - brighter, rtol=0.01)  # the first term of a series in 0.01


@pytest.mark.parametrize("kind", ["csv", "parquet", "fits"])
def test_numbers_of_rows_are_no_identifiers(kind: str, tmp_path: Path) -> None:
    """An ``id`` that differs in each row, as databases and SExtractor write, made N objects of one row."""
    path = save(tmp_path, {"NUMBER": np.arange(N) + 1, "mjd": T, "mag": MAG, "magerr": ERR}, kind)
    found = read_light_curves(path)
    assert len(found) == 1
    assert not found.has_ids
    assert found.notes == ["column NUMBER has another value in each row, and is not used; --id takes it"]
    assert "id = " not in found.taken
    assert len(read_light_curves(path, Wanted(id="NUMBER"))) == N
    table = {"objectId": np.arange(N) + 1, "mjd": T, "mag": MAG, "magerr": ERR}
    assert len(read_light_curves(save(tmp_path, table, kind))) == N  # a name that objects alone have


DIFFERENCE = "is the magnitude of the difference to a reference image, without its sign"


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_magnitudes_of_differences_are_reported(kind: str, tmp_path: Path) -> None:
    """Half the period of a variable star was found in them, without a word."""
    flux = 10 ** (-0.4 * (MAG - 25)) - 10**4
    table = {"jd": T, "fid": np.ones(N, int), "magpsf": 25 - 2.5 * np.log10(np.abs(flux)), "sigmapsf": ERR}
    signed = table | {"isdiffpos": np.where(flux > 0, "t", "f")}
    for columns in (table, signed):
        notes = read_light_curves(save(tmp_path, columns, kind)).notes
        assert [n for n in notes if DIFFERENCE in n] == notes[:1] != []
    star = signed | {"magpsf_corr": MAG, "sigmapsf_corr": ERR}
    found = read_light_curves(save(tmp_path, star, kind))
    assert not any(DIFFERENCE in n for n in found.notes)
    np.testing.assert_array_equal(found.y, MAG)
    plain = {"mjd": T, "MAG_PSF": MAG, "MAGERR_PSF": ERR}  # of others this name is the star's magnitude
    assert read_light_curves(save(tmp_path, plain, "csv")).notes == []


def test_lists_of_differences_are_reported(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    lists = {"objectId": ["a", "b"], "cjd": [list(T)] * 2, "cmagpsf": [list(MAG)] * 2, "csigmapsf": [list(ERR)] * 2}
    parquet.write_table(pa.table(lists), tmp_path / "a.parquet")
    assert any(DIFFERENCE in n for n in read_light_curves(tmp_path / "a.parquet").notes)


# ---------------------------------------------------------------- doubled names


def test_doubled_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("mjd,mag,magerr,Mag,id,ID\n" + "".join(f"{t},{m},0.1,3,1,2\n" for t, m in zip(T, MAG, strict=True)))
    with pytest.raises(MissingColumn, match=r"columns 2 and 4 are both named 'mag' and 'Mag'; .* as in --mag 2"):
        read_light_curves(path)
    with pytest.raises(MissingColumn, match=r"columns 5 and 6 .* --id 5"):
        read_light_curves(path, Wanted(mag="2"))
    assert read_light_curves(path, Wanted(mag="2", id="5")).y[0] == pytest.approx(MAG[0])
    assert read_light_curves(path, Wanted(mag="Mag", id="ID")).ids.tolist() == [2]
    path.write_text("mjd,mag,magerr,mag\n1,2,3,4\n2,3,4,5\n")
    for wanted in (Wanted(), Wanted(mag="mag")):
        with pytest.raises(MissingColumn, match="both named 'mag'"):
            read_light_curves(path, wanted)
    result = run("period", path)
    assert result.exit_code == 2
    assert "both named 'mag'; choose one by its number, as in --mag 2" in result.stderr


def test_doubled_names_of_binary_tables(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from astropy.io import fits
    from pyarrow import parquet

    columns = [T, MAG, ERR, OTHER]
    names = ["mjd", "mag", "magerr", "mag"]
    parquet.write_table(pa.table([pa.array(c) for c in columns], names=names), tmp_path / "a.parquet")
    with pytest.raises(BadFile, match="2 columns of the name 'mag'"):
        read_light_curves(tmp_path / "a.parquet")
    hdu = fits.BinTableHDU.from_columns(
        [fits.Column(n, "D", array=c) for n, c in zip(["mjd", "mag", "magerr", "other"], columns, strict=True)]
    )
    hdu.writeto(tmp_path / "a.fits")
    whole = (tmp_path / "a.fits").read_bytes()
    (tmp_path / "a.fits").write_bytes(whole.replace(b"'other   '", b"'mag     '"))
    with pytest.raises(BadFile, match="two columns of the name 'mag'"):
        read_light_curves(tmp_path / "a.fits")


# ---------------------------------------------------------------- flags


def flagged(found: LightCurves) -> list[int]:
    return np.flatnonzero(np.isnan(found.y)).tolist()


BITS = 2 ** np.arange(21)


def fits_file(path: Path, name: str, cards: dict[str, Any], values: np.ndarray) -> Path:
    from astropy.io import fits

    columns = [fits.Column("TIME", "D", array=T), fits.Column("PDCSAP_FLUX", "E", array=MAG)]
    columns += [fits.Column(name, "J", array=values)]
    hdu = fits.BinTableHDU.from_columns(columns)
    primary = fits.PrimaryHDU()
    primary.header.update(cards)
    fits.HDUList([primary, hdu]).writeto(path)
    return path


TESS_DEFAULT = {1, 2, 4, 8, 16, 32, 128, 512, 16384}
KEPLER_DEFAULT = {1, 2, 4, 8, 32, 256, 16384, 65536, 1048576}


@pytest.mark.parametrize(
    ("name", "cards", "bad"),
    [
        ("QUALITY", {"TELESCOP": "TESS"}, TESS_DEFAULT),
        ("QUALITY", {"OBJECT": "TIC 25155310"}, TESS_DEFAULT),
        ("QUALITY", {"TELESCOP": "Kepler", "MISSION": "K2"}, KEPLER_DEFAULT),
        ("SAP_QUALITY", {"TELESCOP": "Kepler"}, KEPLER_DEFAULT),
        ("SAP_QUALITY", {}, KEPLER_DEFAULT),
        ("QUALITY", {}, TESS_DEFAULT),  # by its other columns
    ],
)
def test_bits_of_satellites(name: str, cards: dict[str, Any], bad: set[int], tmp_path: Path) -> None:
    """Each bit that lightkurve leaves out by default, one by one."""
    values = np.zeros(N, int)
    values[: len(BITS)] = BITS
    path = fits_file(tmp_path / "a.fits", name, cards, values)
    found = read_light_curves(path)
    assert {int(values[i]) for i in flagged(found)} == bad
    assert sum(TESS_DEFAULT) == TESS
    assert sum(KEPLER_DEFAULT) == KEPLER
    assert list(found.left_out.values()) == [len(bad)]
    assert "lightkurve's default" in next(iter(found.left_out))
    assert flagged(read_light_curves(path, Wanted(flags=()))) == []
    assert flagged(read_light_curves(path, Wanted(quality_mask=64 + 1))) == [0, 6]


CASES: dict[str, tuple[dict[str, Any], int, Any, str]] = {
    # name: other columns, row, (value of good rows, value of the bad one), part of the reason
    "catflags": ({}, 7, (2, 32768 + 2), "32768"),
    "infobitssci": ({}, 7, (16, 33554432 * 3), "33554432"),
    "rejected_by_variability": ({}, 7, (False, True), "rejected_by_variability"),
    "rejected_by_photometry": ({}, 7, ("false", "true"), "rejected_by_photometry"),
    "Quality": ({}, 7, ("G", "B"), "ASAS-SN"),
    "GRADE": ({}, 7, ("A", "D"), "ASAS"),
    "Validation Flag": ({}, 7, ("V", "T"), "AAVSO"),
    "TESS_flags": ({}, 7, (64, 128), "TESS"),
    "qual_frame": ({}, 7, (10, 0), "WISE"),
    "goodflag": ({}, 7, (1, 0), "not good"),
    "cc_flags": ({"w1mpro": MAG, "w1sigmpro": ERR}, 7, ("0D00", "h000"), "WISE"),
    "mag_flag": ({}, 7, (0, 3), "not 0"),
    "flags": ({}, 7, (0, 3), "not 0"),
    "qc_flag": ({}, 7, (0, 1), "not 0"),
    "quality": ({}, 7, (0, 4), "not 0"),
}


@pytest.mark.parametrize("kind", ["csv", slow("parquet"), "fits"])
@pytest.mark.parametrize("name", CASES)
def test_flags_of_surveys(name: str, kind: str, tmp_path: Path) -> None:
    more, row, (good, bad), why = CASES[name]
    values = np.array([good] * N)
    if values.dtype.kind == "U":
        values = values.astype("U9")
    values[row] = bad
    table = {"mjd": T, **(more or {"mag": MAG, "magerr": ERR}), name: values}
    path = save(tmp_path, table, kind)
    found = read_light_curves(path)
    assert flagged(found) == [row]
    assert len(found.t) == N
    (reason,) = found.left_out
    assert name in reason
    assert why in reason
    assert f"flag = {name}" in found.taken
    assert flagged(read_light_curves(path, Wanted(flags=()))) == []


def test_the_code_of_atlas_is_a_flag_and_no_error(tmp_path: Path) -> None:
    code = np.zeros(N, int)
    code[5] = 1
    found = read_light_curves(
        save(tmp_path, {"MJD": T, "uJy": 10**MAG, "duJy": ERR, "F": np.full(N, "o"), "err": code})
    )
    assert "err = duJy" in found.taken
    assert flagged(found) == [5]


def test_general_flags_that_mark_most_rows_are_not_used(tmp_path: Path) -> None:
    path = save(tmp_path, {"mjd": T, "mag": MAG, "magerr": ERR, "flags": np.where(np.arange(N) < 200, 2, 0)})
    found = read_light_curves(path)
    assert flagged(found) == []
    assert "flag = " not in found.taken
    assert found.notes == [
        "column 'flags' looks like a flag, but 83% of its rows are not 0: not used; --flag-column takes it"
    ]
    assert len(flagged(read_light_curves(path, Wanted(flags=("flags",))))) == 200


def test_rows_left_out_are_counted_and_explained(tmp_path: Path) -> None:
    """The command counts them in its messages, and for each object in the column ``n_dropped`` of the table."""
    from astropy.table import Table

    ids = np.repeat(["a", "b"], N // 2)
    flag = np.zeros(N, int)
    flag[[3, 5, 200]] = 4
    mag = MAG.copy()
    mag[210] = np.nan
    path = save(tmp_path, {"name": ids, "mjd": T, "mag": mag, "magerr": ERR, "dq_bits": flag})
    grid = ("--fmin", "0.2", "--fmax", "4", "--device", "cpu", "--overwrite", "-o", tmp_path / "p.ecsv")
    plain = run("period", path, *grid)
    assert (
        "note: column dq_bits looks like a quality flag by its values, and is not used; --flag-column dq_bits"
        in plain.stderr
    )
    result = run("period", path, *grid, "--flag-column", "dq_bits")
    assert result.exit_code == 0, result.stderr
    assert "flag = dq_bits" in result.stderr
    assert "note: 4 of 240 rows left out: 3 flagged by dq_bits (not 0), 1 without a value" in result.stderr
    assert result.stderr.count("left out") == 1
    table = Table.read(tmp_path / "p.ecsv")
    assert table["n_dropped"].tolist() == [2, 2]
    assert table["n_used"].tolist() == [N // 2 - 2, N // 2 - 2]
    none = run("period", path, *grid, "--flag-column", "dq_bits", "--quality-mask", "0x3")
    assert "note: 1 of 240 rows left out: 1 without a value" in none.stderr
    assert none.stderr.count("left out") == 1
    several = run("period", path, path, *grid, "--flag-column", "dq_bits")  # the summary adds up what the notes say
    assert "8 rows were left out: 6 flagged by dq_bits (not 0), 2 with missing or infinite values" in several.stderr
    for options, message in (
        (("--quality-mask", "many"), "--quality-mask many: expected none, or a positive whole number such as 175"),
        (("--quality-mask", "-1"), "--quality-mask -1:"),
        (("--quality-mask", "none", "--flag-column", "dq_bits"), "contradict each other"),
        (("--quality-mask", "4"), "found no column of flags; name it with --flag-column"),
        (("--flag-column", "nothing"), "no column 'nothing' for --flag-column"),
        (("--flag-column", "name"), "--flag-column name: it holds 'a', 'b'; whole numbers, or true and false"),
    ):
        refused = run("period", path, *grid, *options)
        assert refused.exit_code == 2
        assert message in refused.stderr


def test_a_file_in_which_all_is_flagged(tmp_path: Path) -> None:
    path = save(tmp_path, {"mjd": T, "mag": MAG, "magerr": ERR, "catflags": np.full(N, 32768)})
    with pytest.raises(BadFile, match=r"no row left: all are flagged by catflags .* --quality-mask none keeps them"):
        read_light_curves(path)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("kind", ["csv", "parquet", "fits"])
@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("KeyNo", np.arange(N) % 2 + 17, "looks like an identifier"),
        ("zone", np.where(np.arange(N) % 2, 880012, 880417), "looks like an identifier"),
        ("who", np.arange(N) % 2 + 1, "looks like a band or an identifier"),
        ("wave", np.array(["J", "H", "Ks"])[np.arange(N) % 3], "looks like a band or an identifier"),
        ("colour_code", np.array([10, 20])[np.arange(N) % 2], "looks like a band"),
        ("warnings", np.where(np.arange(N) % 9, 0, 64), "looks like a quality flag"),
        ("cloudy", np.arange(N) % 9 == 0, "looks like a quality flag"),
        ("night", T.astype(int), ""),
        ("seq", np.arange(N), ""),
        ("sky", np.round(MAG), ""),
        ("airmass", np.arange(N) % 3 + 1, ""),
    ],
)
def test_what_a_column_looks_like(name: str, values: np.ndarray, what: str, kind: str, tmp_path: Path) -> None:
    found = read_light_curves(save(tmp_path, {"mjd": T, "mag": MAG, "magerr": ERR, name: values}, kind))
    lines = [note for note in found.notes if name in note]
    assert len(lines) == bool(what)
    if what:
        assert f"column {name} {what}" in lines[0]
        assert "is not used; --" in lines[0]


@pytest.mark.slow
def test_an_identifier_of_many_objects_in_a_long_file(tmp_path: Path) -> None:
    """A sample of the rows decides: stars one after the other, or mixed; values that follow the time may be nights."""
    n = 30000
    mixed, sorted_times = RNG.uniform(0, 100, n), np.sort(RNG.uniform(0, 100, n))
    one_by_one, in_turn = np.repeat(np.arange(600), 50), np.arange(n) % 60
    for t, order, expected in (
        (mixed, one_by_one, True),
        (sorted_times, in_turn, True),
        (sorted_times, one_by_one, False),
    ):
        table = {"mjd": t, "mag": RNG.normal(size=n), "magerr": np.ones(n), "chunk": 1000 + order}
        for kind in ("csv", "parquet", "fits"):
            found = read_light_curves(save(tmp_path, table, kind))
            noted = any("column chunk looks like an identifier" in note for note in found.notes)
            assert noted == expected, kind


def test_a_second_identifier_that_splits_objects(tmp_path: Path) -> None:
    table = {"id": np.full(N, 5), "mjd": T, "mag": MAG, "magerr": ERR, "starname": np.where(np.arange(N) % 2, "x", "y")}
    (note,) = read_light_curves(save(tmp_path, table)).notes
    assert "column starname looks like an identifier" in note
    assert read_light_curves(save(tmp_path, table | {"starname": np.full(N, "x")})).notes == []


def test_repeated_times_are_reported(tmp_path: Path) -> None:
    twice = {"mjd": np.concatenate([T, T]), "mag": np.concatenate([MAG, OTHER]), "magerr": np.concatenate([ERR, ERR])}
    (note,) = read_light_curves(save(tmp_path, twice)).notes
    assert note.startswith("240 rows have the time of another row: are they of several objects (--id)")
    names = {"id": np.repeat([1, 2], N)}
    assert read_light_curves(save(tmp_path, names | twice)).notes == []


# ---------------------------------------------------------------- cells


def test_limits_dates_and_sentinels(tmp_path: Path) -> None:
    dates = np.datetime_as_string(np.datetime64("1858-11-17", "ms") + np.round(T * 86400e3).astype("timedelta64[ms]"))
    cells = [f"{m:.5f}" for m in MAG]
    cells[4], cells[9], cells[11] = ">16.2", "<15.1", "99.999"
    for separator, end in (("T", "Z"), (" ", "")):
        path = tmp_path / "a.tsv"
        rows = [f"{d.replace('T', separator)}{end}\t{c}\t{e}" for d, c, e in zip(dates, cells, ERR, strict=True)]
        path.write_text("\n".join(["obsTime\tmag\trmsMag", *rows]))
        found = read_light_curves(path)
        np.testing.assert_allclose(found.t, T, rtol=0, atol=1e-8)  # a millisecond, rounded
        assert flagged(found) == [4, 9, 11]
        assert found.left_out == {"with a limit instead of a value": 2, "with 99.999 for a magnitude": 1}
        assert found.time_unit == "dates"
    path.write_text("\n".join(["obsTime\tmag\trmsMag", *rows, "59000.5\t15\t0.1"]))
    with pytest.raises(BadFile, match="'obsTime' holds dates and numbers"):
        read_light_curves(path)


@pytest.mark.parametrize(("name", "dropped"), [("y", 0), ("flux", 0), ("V", 2), ("mag", 2)])
def test_only_magnitudes_have_sentinels(tmp_path: Path, name: str, dropped: int) -> None:
    """A column ``y`` may hold anything, such as a flux of exactly 99."""
    values = 50 + 20 * (MAG - MAG.min())
    values[[3, 8]] = 99
    path = tmp_path / "a.csv"
    path.write_text("\n".join([f"t,{name}", *(f"{t},{y:.4f}" for t, y in zip(T, values, strict=True))]))
    assert len(flagged(read_light_curves(path, Wanted(mag=name)))) == dropped


def test_zeros_for_missing_values(tmp_path: Path) -> None:
    """Magnitudes of 0 and fluxes of -999 far from all others, dates of 0 or below."""
    zero = np.where(np.arange(N) % 40 == 7, 0.0, MAG)
    found = read_light_curves(save(tmp_path, {"mjd": T, "mag": zero, "magerr": ERR}))
    assert flagged(found) == list(range(7, N, 40))
    assert found.left_out == {"with 0 for a magnitude": 6}
    near = read_light_curves(save(tmp_path, {"mjd": T, "mag": np.where(zero > 0, MAG - 15, 0), "magerr": ERR}))
    assert near.left_out == {}  # differential magnitudes
    flux = np.where(zero > 0, 10 ** (-0.4 * (MAG - 22)), -999.0)
    found = read_light_curves(save(tmp_path, {"mjd": T, "flux": flux, "flux_err": ERR}))
    assert found.left_out == {"with -999 for a flux": 6}
    assert flagged(found) == list(range(7, N, 40))
    inside = read_light_curves(save(tmp_path, {"mjd": T, "flux": np.where(zero > 0, 4e3 * (MAG - 15), -999.0)}))
    assert inside.left_out == {}  # fluxes of differences
    for missing in (0, -999):
        times = np.where(np.arange(N) == 5, missing, T)
        found = read_light_curves(save(tmp_path, {"mjd": times, "mag": MAG, "magerr": ERR}))
        assert found.left_out == {f"with {missing} for a time": 1}
        assert flagged(found) == [5]
    early = read_light_curves(save(tmp_path, {"time": T - T[0], "mag": MAG, "magerr": ERR}))
    assert early.left_out == {}


def test_two_kinds_of_dates_are_refused(tmp_path: Path) -> None:
    times = np.where(np.arange(N) < N // 2, T, T + 2400000.5)
    table = {"mjd": times, "mag": MAG, "magerr": ERR}
    with pytest.raises(BadFile, match="column 'mjd' holds Julian Dates and Modified Julian Dates, such as 24591"):
        read_light_curves(save(tmp_path, table))
    star = np.where(np.arange(N) < N // 2, "a", "b")  # two stars of two surveys
    assert len(read_light_curves(save(tmp_path, {"star": star} | table))) == 2
    times[3] += 2400000.5  # of star a, whose other rows do not survive; those of star b do
    found = read_light_curves(save(tmp_path, {"star": star} | table))
    assert found.left_out == {"of objects with both Julian Dates and Modified Julian Dates": N // 2}
    assert flagged(found) == list(range(N // 2))
    magnitudes = np.where(np.arange(N) == 3, np.nan, MAG)  # a row that is left out anyway costs no other
    assert flagged(read_light_curves(save(tmp_path, {"star": star} | table | {"mag": magnitudes}))) == [3]


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_an_infinite_time_is_left_out(odd: float, tmp_path: Path) -> None:
    times = np.where(np.arange(N) == 5, odd, T)
    found = read_light_curves(save(tmp_path, {"mjd": times, "mag": MAG, "magerr": ERR}))
    assert found.missing() == {"without a time": 1}


def test_empty_columns_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{t},,{m},{e}" for t, m, e in zip(T, MAG, ERR, strict=True)]
    path.write_text("\n".join(["JD,HJD,mag,uncertainty", *rows]))
    found = read_light_curves(path)
    assert found.taken == "time = JD, mag = mag, err = uncertainty"
    np.testing.assert_array_equal(found.t, T)


def test_units_and_rules_under_a_header(tmp_path: Path) -> None:
    rows = [f"{t}\t{m}\t{e}" for t, m, e in zip(T, MAG, ERR, strict=True)]
    path = tmp_path / "a.tsv"
    for under in (["d\tmag\tmag", "------\t----\t----"], ["---\t---\t---"]):
        path.write_text("\n".join(["#", "#VizieR", "", "HJD\tmag\te_mag", *under, *rows]))
        found = read_light_curves(path)
        np.testing.assert_array_equal(found.y, MAG)
        assert "err = e_mag" in found.taken
    path.write_bytes("\n".join(["mjd\tmag\terr", *rows]).encode("utf-16"))
    np.testing.assert_array_equal(read_light_curves(path).y, MAG)


# ---------------------------------------------------------------- units


@pytest.mark.parametrize("kind", ["fits", "ecsv", "vot", "tbl", "parquet"])
def test_columns_are_brought_to_one_unit(kind: str, tmp_path: Path) -> None:
    from astropy import units as u
    from astropy.table import QTable

    table = QTable({"time": (T - T[0]) * 24 * u.h, "mag": MAG * u.mag, "mag_err": ERR * 1000 * u.mmag})
    table["r"], table["delta"] = np.full(N, 3.0) * 149597870.7 * u.km, np.full(N, 2.0) * u.au
    table["alpha"] = np.full(N, 0.1) * u.rad
    path = tmp_path / f"table.{kind}"
    table.write(path, format={"vot": "votable", "tbl": "ascii.ipac"}.get(kind))
    found = read_light_curves(path, Wanted(r="r", delta="delta", phase="alpha"))
    assert found.dy is not None
    np.testing.assert_allclose(found.t, T - T[0], atol=1e-12)
    np.testing.assert_array_equal(found.y, MAG)
    np.testing.assert_allclose(found.dy, ERR, rtol=1e-12)
    for column, expected in zip((found.r, found.delta, found.phase), (3, 2, np.degrees(0.1)), strict=True):
        assert column is not None
        np.testing.assert_allclose(column, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("header", "time", "error"),
    [
        ("time [s],flux (Jy),flux_err (mJy)", 86400, 1000),
        ("BJD (TDB),mag (V),err (1 sigma)", 1, 1),
        ("time (hours),mag,err (mmag)", 24, 1000),
        ("time,mag,err\n,h,mag,mmag", 24, 1000),
        ("TIME (ks),RATE (ct/s),ERROR", 86.4, 1),
        ("time,mag,err\n,ms,mag,mmag", 86_400_000, 1000),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_units_in_a_header(header: str, time: float, error: float, kind: str, tmp_path: Path) -> None:
    """Units stand in brackets after the names, or in a line under them (text)."""
    names, _, below = header.partition("\n")
    columns = {"id": np.ones(N, np.int64)}
    columns |= dict(zip(names.split(","), ((T - T[0]) * time, MAG, ERR * error), strict=True))
    path = save(tmp_path, columns, kind)
    if kind == "csv" and below:
        path.write_text(path.read_text().replace("\n", f"\n{below}\n", 1))
    elif below:
        return
    if kind == "parquet":  # a large file is read whole, too
        assert open_stream(path, Wanted(), fewest=0) is None
    found = read_light_curves(path)
    assert found.dy is not None
    np.testing.assert_allclose(found.t, T - T[0], atol=1e-9)
    np.testing.assert_allclose(found.dy, ERR, rtol=1e-6)
    assert bool(found.time_unit) == (time != 1)


def test_the_unit_of_times_in_a_card_of_fits(tmp_path: Path) -> None:
    """The standard's TIMEUNIT, where the column has no unit of its own."""
    from astropy.io import fits

    columns = [fits.Column("TIME", "D", array=T * 86400), fits.Column("RATE", "D", array=MAG)]
    for unit, expected in ((None, T), ("d", T * 86400)):
        columns[0].unit = unit
        table = fits.BinTableHDU.from_columns(columns, header=fits.Header([("TIMEUNIT", "s")]))
        table.writeto(tmp_path / "rate.fits", overwrite=True)
        np.testing.assert_allclose(read_light_curves(tmp_path / "rate.fits").t, expected, rtol=1e-14)


def test_further_tables_of_a_fits_file_are_reported(tmp_path: Path) -> None:
    from astropy.io import fits

    rate = fits.BinTableHDU.from_columns([fits.Column("TIME", "D", array=T), fits.Column("RATE", "D", array=MAG)])
    intervals = fits.BinTableHDU.from_columns([fits.Column("START", "D", array=T[:3])], name="GTI")
    for hdus, notes in (([rate], []), ([rate, intervals], ["the file holds 2 tables, of which the first is read"])):
        fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(tmp_path / "rate.fits", overwrite=True)
        assert [n for n in read_light_curves(tmp_path / "rate.fits").notes if "tables" in n] == notes


def test_units_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    from astropy import units as u
    from astropy.table import QTable

    path = tmp_path / "table.ecsv"
    QTable({"time": T * u.d, "flux": MAG * u.Jy, "flux_err": ERR * u.mag}).write(path)
    found = read_light_curves(path)
    assert "flux_err is in mag, not in Jy: its numbers are used as they are" in found.notes
    np.testing.assert_array_equal(found.dy, ERR)


# ---------------------------------------------------------------- the made files

LOST = {  # rows without a value for the search, of those that say more than "missing"
    "01_ztf_irsa.csv": 10, "04_gaia_dr3.csv": 14, "06_asassn_v1.csv": 13, "15_aavso.csv": 7, "27_sentinel.txt": 10,
    "19_qlp.fits": 30, "tess2018206045859-s0001-0000000025155310-0120-s_lc.fits": 30,
}  # fmt: skip
REFUSED = {
    "12_rubin_forcedsource.parquet": "found no column of times; name it with --time",
    "40_dupcols.csv": "both named 'mag'; choose one by its number",
}


def test_files_in_the_formats_of_surveys(test_data: Path) -> None:
    """Every one gives its star's period, or one line that says what it needs."""
    from skysieve import lombscargle, lombscargle_multiband

    folder = test_data / "lightcurve_formats"
    files = sorted(p for p in folder.iterdir() if p.name != "README.md")
    assert len(files) > 25
    for path in files:
        if path.name in REFUSED:
            with pytest.raises((BadFile, MissingColumn), match=REFUSED[path.name]):
                read_light_curves(path)
            continue
        found = read_light_curves(path)
        assert sum(found.left_out.values()) == LOST.get(path.name, 0), path.name
        grid = {"fmin": 0.2, "fmax": 8, "device": "cpu", "return_power": False, "offsets": found.offsets}
        if found.band is None or len(set(found.band.tolist())) == 1:
            period = lombscargle(found.t, found.y, found.dy, **grid).period
        else:
            period = lombscargle_multiband(found.t, found.y, found.band, found.dy, model="offsets", **grid).period
        expected = PERIODS[: len(found)] if "crts" in path.name else PERIODS[0]
        np.testing.assert_allclose(period, expected, rtol=1e-3, err_msg=path.name)
