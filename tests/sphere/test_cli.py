"""``skysieve smooth``: files in, files out."""

from __future__ import annotations

import gzip
import io
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from astropy.io import fits
from tests.marks import no_warnings
from typer.testing import CliRunner

import skysieve
from skysieve.cli import app
from skysieve.core.errors import MemoryBudgetError
from skysieve.sphere import MexicanHat, Needlet
from skysieve.sphere.grids.healpix import reorder
from skysieve.sphere.maps.io import SkyMaps, read_maps, write_maps

RAD = np.pi / 180


def run(*args):
    return CliRunner().invoke(app, ["smooth", *map(str, args)])


@pytest.fixture
def sky(tmp_path):
    maps = np.random.default_rng(0).normal(size=(3, 12 * 16**2)).astype(np.float32)
    maps[:, 17] = -1.6375e30
    made = SkyMaps(maps, True, ("I_STOKES", "Q_STOKES", "U_STOKES"), ("mK", "mK", "mK"), {"COORDSYS": "G"})
    write_maps(tmp_path / "in.fits", made)
    return made


def test_a_file_is_smoothed(tmp_path, sky):
    result = run(tmp_path / "in.fits", "-o", tmp_path / "out.fits", "--fwhm", "10deg")
    assert result.exit_code == 0, result.output
    assert "nside 16, NESTED" in result.output
    found = read_maps(tmp_path / "out.fits")
    assert (found.nest, found.names, found.units) == (True, sky.names, sky.units)
    assert found.header["COORDSYS"] == "G"
    assert found.maps.dtype == np.float32
    assert np.array_equal(found.maps, skysieve.smoothing(sky.maps, fwhm=10 * RAD, nest=True))
    assert (found.maps[:, 17] == np.float32(-1.6375e30)).all()
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


def test_too_little_memory_is_one_line(tmp_path, sky, monkeypatch):
    def full(*args, **options):
        raise MemoryBudgetError("the plan on the GPU", 2 << 30, 1 << 30)

    monkeypatch.setattr("skysieve.sphere.maps.smoothing.smooth_maps", full)
    result = run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "10deg")
    assert result.exit_code == 2
    assert "skysieve: the plan on the GPU needs 2.0 GiB" in result.output
    assert "; --memory sets the budget" in result.output
    assert not (tmp_path / "out.fits").exists()


def test_healpy_reads_what_is_written(tmp_path, sky):
    healpy = pytest.importorskip("healpy")
    theirs = healpy.read_map(tmp_path / "in.fits", field=(0, 1, 2), nest=True)
    assert np.array_equal(theirs.astype(np.float32), sky.maps)
    healpy.write_map(tmp_path / "theirs.fits", theirs[0], nest=True, dtype=np.float64)
    assert np.array_equal(read_maps(tmp_path / "theirs.fits").maps[0], theirs[0])


def test_the_iau_sign_of_u(tmp_path, sky):
    """U of the IAU is minus U of HEALPix, before and after."""
    flipped = sky.maps.copy()
    flipped[2] = np.where(flipped[2] > -1e29, -flipped[2], flipped[2])
    iau = SkyMaps(flipped, True, sky.names, sky.units, {"POLCCONV": "IAU"})
    write_maps(tmp_path / "iau.fits", iau)
    for name in ("in", "iau"):
        assert run(tmp_path / f"{name}.fits", "-o", tmp_path / f"{name}-out.fits", "--fwhm", "10deg").exit_code == 0
    a, b = (read_maps(tmp_path / f"{n}-out.fits").maps for n in ("in", "iau"))
    good = np.arange(a.shape[1]) != 17
    assert np.array_equal(a[:2], b[:2])
    assert np.array_equal(a[2, good], -b[2, good])


@pytest.mark.parametrize("order", ["U,I,Q", "T,Q,U", "Q,TEMPERATURE,U"])
@pytest.mark.parametrize("header", [{}, {"POLCCONV": "IAU", "BAD_DATA": 5.0}])
def test_polarised_maps_in_any_order(tmp_path, sky, order, header):
    maps = sky.maps.copy()
    maps[1, 30] = 5.0
    write_maps(tmp_path / "iqu.fits", replace(sky, maps=maps, header=header))
    write_maps(tmp_path / "uiq.fits", SkyMaps(maps[[2, 0, 1]], True, ("U", "TEMPERATURE", "Q"), ("K",) * 3, header))
    assert run(tmp_path / "iqu.fits", tmp_path / "a.fits", "--fwhm", "10deg").exit_code == 0
    expected = read_maps(tmp_path / "a.fits").maps
    for name, numbers in (("iqu", [0, 1, 2]), ("uiq", [2, 0, 1])):
        out = tmp_path / f"{name}-out.fits"
        result = run(tmp_path / f"{name}.fits", out, "--fwhm", "10deg", "--fields", order)
        assert result.exit_code == 0, result.output
        assert np.array_equal(read_maps(out).maps, expected[numbers])


def test_a_folder_that_ends_in_a_slash(tmp_path, sky, monkeypatch):
    """The smoothed map keeps its name in the folder, which is made."""
    for name in ("new", "v1.2"):
        words = ["smooth", str(tmp_path / "in.fits"), "-o", f"{tmp_path}/{name}/", "--fwhm", "10deg"]
        monkeypatch.setattr(sys, "argv", ["skysieve", *words])
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert read_maps(tmp_path / name / "in.fits").nside == 16
    words = ["smooth", str(tmp_path / "in.fits"), f"{tmp_path}/other/", "--fwhm", "10deg"]
    monkeypatch.setattr(sys, "argv", ["skysieve", *words])
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "expected the name of a file to write" in result.output) == (2, True)
    assert not (tmp_path / "other").exists()


def test_kernels_and_columns(tmp_path, sky):
    np.savetxt(tmp_path / "bl.txt", np.exp(-np.arange(40) / 6.0))
    t = np.linspace(0, 0.8, 100)
    np.savetxt(tmp_path / "k.txt", np.stack([t, np.exp(-((t / 0.2) ** 2) / 2)], 1))
    for i, kernel in enumerate(
        (["--bl", tmp_path / "bl.txt"], ["--profile", tmp_path / "k.txt"], ["--tophat", "600 arcmin"])
    ):
        target = tmp_path / f"{i}.fits"
        result = run(tmp_path / "in.fits", "-o", target, "--fields", "I", *kernel, "--masked", "normalize")
        assert result.exit_code == 0, result.output
        assert read_maps(target).names == ("I_STOKES",)
        assert read_maps(target).maps[0, 100:].std() < 0.5


def test_a_picture(tmp_path, sky):
    pytest.importorskip("matplotlib")
    args = ("--fields", "0,1,2", "--fwhm", "10deg", "--plot", tmp_path / "p.png")
    assert run(tmp_path / "in.fits", "-o", tmp_path / "o.fits", *args).exit_code == 0
    assert (tmp_path / "p.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "expected one of --fwhm"),
        (["--fwhm", "1deg", "--tophat", "1deg"], "found --fwhm, --tophat"),
        (["--fwhm", "10"], "expected an angle with its unit"),
        (["--fwhm", "-1deg"], "--fwhm '-1deg'"),
        (["--tophat", "0deg"], "--tophat '0deg': expected an angle"),
        (["--mexican-hat", "0deg"], "--mexican-hat '0deg': expected an angle"),
        (["--needlet", "-1"], "--needlet '-1': expected a whole number"),
        (["--fwhm", "1deg", "--fields", "I", "--nside-out", "0", "--pixwin"], "--nside-out 0: expected"),
        (["--fwhm", "1deg", "--iter", "1", "--eps", "1e-6"], "--eps needs a sum over pixels, without --iter"),
        (["--fwhm", "1deg", "--fields", "V"], "no column 'V'"),
        (["--fwhm", "1deg", "--fields", "7"], "no column 7"),
        (["--bl", "nothing.txt"], "nothing.txt"),
        (["--bl", sys.executable], f"--bl {sys.executable}: expected a text file"),
        (["--fwhm", "10deg", "--fields", "0,0"], "named twice"),
        (["--fwhm", "10deg", "--fields", "Q,U"], "Q_STOKES and U_STOKES can be smoothed together with I alone"),
        (["--fwhm", "10deg", "--fields", "U"], "expected I, Q and U"),
        (["--fwhm", "10deg", "--plot", "p.fits"], "expected a name that ends in"),
        (["--fwhm", "10deg", "--plot", "no-such-folder/p.png"], "there is no folder"),
        (["--fwhm", "10deg", "--threads", "0"], "--threads"),
        (["--fwhm", "0.1deg", "--fields", "I"], "--fwhm 0.1deg: is narrower than the pixels"),
        (["--fwhm", "10deg", "--iter", "2147483648"], "--iter 2147483648: expected a whole number from 0 to 1000"),
        (["--tophat", "20deg"], "--tophat 20deg: has an edge"),
        (["--fwhm", "10deg", "--pixwin"], "Q and U have another one"),
        (["--tophat", "20deg", "--fields", "I", "--pixwin"], "--pixwin: --tophat 20deg is not band-limited"),
        (["--fwhm", "10deg", "--nside-out", "24"], "power of two"),
        (["--fwhm", "10deg", "--positive"], "are of either sign, expected maps of I alone (--fields I)"),
        (["--fwhm", "10deg", "--positive", "--fields", "I"], "in.fits holds -"),
        (["--fwhm", "10deg", "--iter", "1", "--quadrature", "ring"], "cannot be combined with --iter"),
    ],
)
def test_mistakes_exit_with_2_and_write_nothing(tmp_path, sky, args, message):
    result = run(tmp_path / "in.fits", "-o", tmp_path / "out.fits", *args)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out.fits").exists()


def test_a_name_that_is_too_long_is_one_line(tmp_path, sky):
    result = run(tmp_path / "in.fits", "-o", tmp_path / f"{'x' * 300}.fits", "--fwhm", "1deg")
    assert result.exit_code == 2
    assert result.stderr.endswith("xxx.fits: File name too long\n")


def test_files_that_do_not_fit(tmp_path, sky):
    from astropy.io import fits

    fits.PrimaryHDU(np.zeros((3, 3))).writeto(tmp_path / "image.fits")
    said = run(tmp_path / "image.fits", "-o", tmp_path / "o.fits", "--fwhm", "1deg").output
    assert "image.fits: there is no extension 1 (number of extensions: 0)" in said
    (tmp_path / "there.fits").write_text("precious")
    assert "exists" in run(tmp_path / "in.fits", "-o", tmp_path / "there.fits", "--fwhm", "1deg").output
    assert (tmp_path / "there.fits").read_text() == "precious"


def test_files_that_contradict_themselves(tmp_path):
    """NSIDE does not fit the pixels, pixels are missing, NSIDE is text, no FITS: the errors name the file."""
    from astropy.io import fits

    def write(name, size=3072, **cards):
        table = fits.BinTableHDU.from_columns([fits.Column("I", "D", array=np.ones(size))])
        table.header.update({"ORDERING": "RING", **cards})
        table.writeto(tmp_path / name)
        return run(tmp_path / name, tmp_path / "o.fits", "--fwhm", "15deg").output.replace("\n", "")

    assert "NSIDE is 32, and column I has the 3072 pixels of nside 16" in write("nside.fits", NSIDE=32)
    assert "short.fits: column I: a map of 1000 pixels" in write("short.fits", 1000)
    assert "ORDERING is 'NUNIQ' (a map of several resolutions: flatten it first)" in write("moc.fits", ORDERING="NUNIQ")
    assert "ORDERING is ''" in write("no.fits", ORDERING="")
    assert "o.fits: I, nside 16" in write("text.fits", NSIDE="16")
    assert "x: Is a directory" in run(tmp_path, tmp_path / "o2.fits", "--fwhm", "15deg").output.replace(
        str(tmp_path), "x"
    )
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04" + bytes(99))
    assert "x.npz: is not a FITS file" in run(tmp_path / "x.npz", tmp_path / "o2.fits", "--fwhm", "15deg").output
    (tmp_path / "x.fits").write_text("hello")
    said = run(tmp_path / "x.fits", tmp_path / "o2.fits", "--fwhm", "15deg").output
    assert "x.fits: is not a FITS file" in said
    assert "ignore_missing_simple" not in said


def test_q_and_u_of_different_units_are_refused(tmp_path, sky):
    """Each goes into both results."""
    write_maps(tmp_path / "mixed.fits", replace(sky, units=("K", "mK", "uK")))
    result = run(tmp_path / "mixed.fits", tmp_path / "o.fits", "--fwhm", "15deg")
    assert result.exit_code == 2
    assert "Q_STOKES is in 'mK', U_STOKES in 'uK': expected one unit" in " ".join(result.output.split())
    assert run(tmp_path / "mixed.fits", tmp_path / "o.fits", "--fwhm", "15deg", "--fields", "I").exit_code == 0


def test_another_value_of_bad_pixels(tmp_path):
    m = np.random.default_rng(3).normal(size=3072)
    seen, unseen = m.copy(), m.copy()
    seen[:200], unseen[:200] = -1e20, -1.6375e30
    for name, maps, cards in (("a", seen, {"BAD_DATA": -1e20}), ("b", unseen, {})):
        write_maps(tmp_path / f"{name}.fits", SkyMaps(maps[None], False, ("I",), ("K",), cards))
        target = tmp_path / f"{name}-out.fits"
        assert run(tmp_path / f"{name}.fits", target, "--fwhm", "15deg", "--masked", "normalize").exit_code == 0
    a, b = (read_maps(tmp_path / f"{n}-out.fits").maps[0] for n in "ab")
    assert (a[:200] == -1e20).all()
    assert np.array_equal(a[200:], b[200:])
    pytest.importorskip("ducc0")
    for name in "ab":
        args = ("--fwhm", "15deg", "--nside-out", "32", "--overwrite")
        assert run(tmp_path / f"{name}.fits", tmp_path / f"{name}-out.fits", *args).exit_code == 0
    a, b = (read_maps(tmp_path / f"{n}-out.fits").maps[0] for n in "ab")
    assert (a == -1e20).sum() == 4 * 200
    assert np.array_equal(a, np.where(b == -1.6375e30, -1e20, b))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("T_MAP", "Q_MAP", "U_MAP"), "I, Q, U, nside"),
        (("INTENSITY", "QUALITY", "UNCERTAINTY"), "INTENSITY, QUALITY, UNCERTAINTY, nside"),
        (("Q_MAP", "U_MAP"), "can be smoothed together with I alone"),
    ],
)
def test_names_of_columns(tmp_path, names, message):
    maps = np.random.default_rng(3).normal(size=(len(names), 768))
    write_maps(tmp_path / "in.fits", SkyMaps(maps, False, names, ("",) * len(names)))
    assert message in run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "30deg").output


def test_another_extension_and_a_device(tmp_path, sky):
    from astropy.io import fits

    with fits.open(tmp_path / "in.fits") as hdus:
        fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(np.zeros((3, 3))), hdus[1]]).writeto(tmp_path / "two.fits")
    args = ("--fields", "I", "--fwhm", "10deg", "--device", "cpu")
    assert "extension 1 is not a table" in run(tmp_path / "two.fits", tmp_path / "o.fits", *args).output
    said = run(tmp_path / "two.fits", tmp_path / "o.fits", *args, "--hdu", "7").output
    assert "two.fits: there is no extension 7 (number of extensions: 2)" in said
    assert run(tmp_path / "two.fits", tmp_path / "o.fits", *args, "--hdu", "2").exit_code == 0
    assert "--device 'tpu'" in run(tmp_path / "in.fits", tmp_path / "p.fits", *args[:-1], "tpu").output


def test_columns_of_a_window(tmp_path):
    """A column of degrees is no window; T is found by its name."""
    from astropy.io import fits

    from skysieve.sphere import Window

    b = np.exp(-np.arange(50) / 9.0)
    for name, columns in (("ell", {"ELL": np.arange(50.0), "B_L": b}), ("last", {"E": b**2, "TEMPERATURE": b})):
        made = [fits.Column(n, "D", array=v) for n, v in columns.items()]
        fits.BinTableHDU.from_columns(made, name="BEAMWINDOW").writeto(tmp_path / f"{name}.fits")
        assert np.array_equal(Window.from_fits(tmp_path / f"{name}.fits").window(49), b)
    with pytest.raises(ValueError, match="column=7"):
        Window.from_fits(tmp_path / "ell.fits", column=7)


def test_the_output_may_be_the_input_and_compressed(tmp_path, sky):
    """Only with --overwrite; a name in .gz is a compressed file."""
    before = (tmp_path / "in.fits").read_bytes()
    assert "exists" in run(tmp_path / "in.fits", "-o", tmp_path / "in.fits", "--fwhm", "10deg").output
    assert (tmp_path / "in.fits").read_bytes() == before
    assert run(tmp_path / "in.fits", "-o", tmp_path / "z.fits.gz", "--fwhm", "10deg").exit_code == 0
    assert run(tmp_path / "in.fits", "-o", tmp_path / "in.fits", "--fwhm", "10deg", "--overwrite").exit_code == 0
    assert np.array_equal(read_maps(tmp_path / "in.fits").maps, read_maps(tmp_path / "z.fits.gz").maps)
    with gzip.open(tmp_path / "z.fits.gz") as inside:
        assert inside.read(6) == b"SIMPLE"
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--bl", "2 0.9\n3 0.8\n", "expected l = 0, 1, 2"),
        ("--bl", "0 1 1 1\n1 0.9 0.9 0.9\n", "has 4 columns"),
        ("--bl", "", "expected a table of numbers"),
        ("--bl", "hello\n", "could not convert"),
        ("--profile", "1\n2\n", "expected two columns"),
        ("--profile", "1 2\n2\n", "the same number of columns in each line"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, sky, option, text, message):
    (tmp_path / "k.txt").write_text(text)
    result = run(tmp_path / "in.fits", "-o", tmp_path / "out.fits", "--fields", "I", option, tmp_path / "k.txt")
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_a_window_with_its_degrees(tmp_path, sky):
    b = np.exp(-np.arange(40) / 6.0)
    np.savetxt(tmp_path / "one.txt", b)
    np.savetxt(tmp_path / "two.txt", np.stack([np.arange(40), b], 1))
    for name in ("one", "two"):
        args = ("--fields", "I", "--bl", tmp_path / f"{name}.txt")
        assert run(tmp_path / "in.fits", "-o", tmp_path / f"{name}.fits", *args).exit_code == 0
    assert np.array_equal(read_maps(tmp_path / "one.fits").maps, read_maps(tmp_path / "two.fits").maps)


def test_the_output_by_its_place(tmp_path, sky):
    """Either ``smooth IN OUT`` or ``smooth IN -o OUT``."""
    args = ("--fwhm", "10deg", "--fields", "I")
    assert run(tmp_path / "in.fits", tmp_path / "a.fits", *args).exit_code == 0
    assert run(tmp_path / "in.fits", "-o", tmp_path / "b.fits", *args).exit_code == 0
    assert np.array_equal(read_maps(tmp_path / "a.fits").maps, read_maps(tmp_path / "b.fits").maps)
    for both in ((), (tmp_path / "c.fits", "-o", tmp_path / "d.fits")):
        result = run(tmp_path / "in.fits", *both, *args)
        assert (result.exit_code, "expected one file to write" in result.output) == (2, True)
    spaced = run("in.fits", "e.fits", "--fwhm", "10", "deg")
    assert (spaced.exit_code, "found in.fits, e.fits, deg" in spaced.output) == (2, True)


@pytest.mark.slow
def test_pixel_window_and_another_nside(tmp_path, sky):
    from skysieve.sphere import Gaussian, Window, pixel_window

    pytest.importorskip("ducc0")
    args = ("--fields", "I", "--fwhm", "10deg", "--pixwin")
    assert run(tmp_path / "in.fits", tmp_path / "same.fits", *args).exit_code == 0
    beam = Gaussian(fwhm=10 * RAD)
    top = int(beam.bandlimit(1e-9))
    kernel = Window(beam.window(top) * pixel_window(16, top))
    truth = skysieve.smoothing(sky.maps[0], kernel=kernel, nest=True)
    assert np.abs(read_maps(tmp_path / "same.fits").maps[0] - truth).max() <= 1e-6 * np.abs(truth[100:]).max()
    result = run(tmp_path / "in.fits", tmp_path / "other.fits", *args, "--nside-out", "32", "--quadrature", "none")
    assert "nside 32, NESTED" in result.output
    found = read_maps(tmp_path / "other.fits")
    assert (found.nside, found.nest, found.header["COORDSYS"]) == (32, True, "G")
    top = min(top, 48)
    kernel = Window(beam.window(top) * pixel_window(32, top) / pixel_window(16, top))
    truth = skysieve.smoothing(sky.maps[0], kernel=kernel, nest=True, nside_out=32, quadrature="none")
    assert np.abs(found.maps[0] - truth).max() <= 1e-6 * np.abs(np.delete(truth, range(68, 72))).max()


def test_cards_and_units_are_kept(tmp_path, sky):
    """nside, order, units, coordinates and the sign of U, also of a file that healpy reads."""
    from astropy.io import fits

    cards = {"COORDSYS": "C", "POLCCONV": "IAU", "TELESCOP": "PLANCK", "FREQ": 143}
    maps = np.random.default_rng(1).normal(size=(3, 12 * 12**2))
    made = SkyMaps(maps, False, ("I_STOKES", "Q_STOKES", "U_STOKES"), ("uK_CMB", "uK_CMB", "uK_CMB"), cards)
    write_maps(tmp_path / "c.fits", made)
    assert run(tmp_path / "c.fits", tmp_path / "o.fits", "--fwhm", "20deg").exit_code == 0
    with fits.open(tmp_path / "o.fits") as hdus:
        head = hdus[1].header
        assert {k: head[k] for k in cards} == cards
        assert (head["NSIDE"], head["ORDERING"], head["PIXTYPE"]) == (12, "RING", "HEALPIX")
        assert [head[f"TUNIT{i}"] for i in (1, 2, 3)] == ["uK_CMB"] * 3
        assert [head[f"TTYPE{i}"] for i in (1, 2, 3)] == list(made.names)
        found = np.array([hdus[1].data.field(i).ravel() for i in range(3)])
    assert found.dtype.newbyteorder("=") == np.float64
    sign = np.array([1, 1, -1])[:, None]
    assert found == pytest.approx(sign * skysieve.smoothing(sign * maps, fwhm=20 * RAD), abs=1e-14)


@no_warnings
def test_warnings_are_notes_of_one_line(tmp_path, sky):
    result = run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "5deg", "--fields", "I")
    assert result.exit_code == 0, result.output
    notes = [line for line in result.output.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert "is hardly wider than the pixels of nside 16" in notes[0]
    args = ("--fwhm", "5deg", "--fields", "I", "--overwrite", "--quiet")
    assert not run(tmp_path / "in.fits", tmp_path / "out.fits", *args).output


@pytest.mark.few
@pytest.mark.parametrize("row", [1, 512, 1024, 2048])
@pytest.mark.parametrize("part", [False, True])
def test_unchanged_columns_keep_their_rows(tmp_path, row, part):
    """Planck's maps have one pixel in a row, WMAP's 1,024: what is not smoothed stands beside its pixel."""
    from astropy.io import fits

    npix = 12 * 32**2
    pixels = np.arange(4096) if part else np.arange(npix)
    values = np.random.default_rng(1).normal(size=pixels.size).astype("f4")
    columns = [("PIXEL", "K", pixels)] if part else []
    columns += [("I_STOKES", "E", values), ("HITS", "J", 7 * pixels)]
    shape = (-1, row) if row > 1 else (-1,)
    table = fits.BinTableHDU.from_columns(
        [fits.Column(name, f"{row if row > 1 else ''}{letter}", array=x.reshape(shape)) for name, letter, x in columns]
    )
    table.header["ORDERING"], table.header["INDXSCHM"] = "NESTED", "EXPLICIT" if part else "IMPLICIT"
    table.header["NSIDE"] = 32
    table.writeto(tmp_path / "in.fits")
    result = run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "10deg")
    assert result.exit_code == 0, result.output
    with fits.open(tmp_path / "out.fits") as hdus:
        assert len(hdus[1].data) == pixels.size // row
        for name, _, x in columns:
            assert hdus[1].data[name].size == pixels.size
            assert np.array_equal(hdus[1].data[name].ravel(), x) == (name != "I_STOKES")
    whole = np.full(npix, np.nan, np.float32)
    whole[pixels] = values
    truth = skysieve.smoothing(whole, fwhm=10 * RAD, nest=True)
    assert read_maps(tmp_path / "out.fits").maps[0][pixels] == pytest.approx(truth[pixels], abs=1e-6)


def test_part_of_the_sky(tmp_path, sky):
    """A file that healpy writes with ``partial=True`` gives a file of the same pixels, which healpy reads."""
    healpy = pytest.importorskip("healpy")
    pixels = np.arange(900, 2500, dtype=np.int64)
    maps = np.full(sky.maps.shape, healpy.UNSEEN)
    maps[:, pixels] = np.random.default_rng(1).normal(size=(3, pixels.size)) + 3
    names = list(sky.names)
    options = {"nest": True, "partial": True, "column_names": names, "extra_header": [("POLCCONV", "IAU")]}
    healpy.write_map(tmp_path / "part.fits", list(maps), dtype=np.float64, **options)
    found = read_maps(tmp_path / "part.fits", ["I", "U"])
    assert found.names == ("I_STOKES", "U_STOKES")
    assert np.array_equal(found.pixels, pixels)
    assert np.array_equal(found.maps, maps[[0, 2]])
    result = run(tmp_path / "part.fits", tmp_path / "out.fits", "--fwhm", "20deg", "--masked", "normalize")
    assert result.exit_code == 0, result.output
    out = np.array(healpy.read_map(tmp_path / "out.fits", field=(0, 1, 2), nest=True, dtype=np.float64))
    turned = maps * np.array([1, 1, -1])[:, None]
    turned[:, maps[0] == healpy.UNSEEN] = np.nan
    truth = skysieve.smoothing(turned, fwhm=20 * RAD, nest=True, masked="normalize") * np.array([1, 1, -1])[:, None]
    assert np.array_equal(out[:, pixels], truth[:, pixels])
    assert (np.delete(out, pixels, axis=1) == healpy.UNSEEN).all()
    assert read_maps(tmp_path / "out.fits").iau
    pytest.importorskip("ducc0")
    args = ("--fwhm", "20deg", "--fields", "I", "--nside-out", "8")
    assert run(tmp_path / "part.fits", tmp_path / "small.fits", *args).exit_code == 0
    small = read_maps(tmp_path / "small.fits")
    assert np.array_equal(small.pixels, np.flatnonzero(small.maps[0] != healpy.UNSEEN))
    assert 0 < small.pixels.size < 12 * 8**2


@pytest.mark.parametrize(("name", "scheme"), [("PIX", "EXPLICIT"), ("pixel", None)])
def test_other_layouts_of_part_of_the_sky(tmp_path, name, scheme):
    """Another name of the first column, as in gammapy's files, and OBJECT = PARTIAL alone: healpy reads both."""
    healpy = pytest.importorskip("healpy")
    values = np.random.default_rng(3).normal(size=100).astype("f4")
    columns = [fits.Column(name, "J", array=np.arange(500, 600)), fits.Column("CHANNEL1", "E", array=values)]
    columns.append(fits.Column("SERROR", "E", array=np.abs(values)))
    table = fits.BinTableHDU.from_columns(columns)
    table.header["ORDERING"], table.header["NSIDE"], table.header["OBJECT"] = "RING", 16, "PARTIAL"
    if scheme is not None:
        table.header["INDXSCHM"] = scheme
    table.writeto(tmp_path / "in.fits")
    result = run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "20deg")
    assert result.exit_code == 0, result.output
    given = healpy.read_map(tmp_path / "in.fits", field=(0, 1))
    found = healpy.read_map(tmp_path / "out.fits", field=(0, 1))
    assert np.array_equal(found[1], given[1])
    assert found[0] == pytest.approx(skysieve.smoothing(given[0], fwhm=20 * RAD), abs=1e-6)
    assert fits.open(tmp_path / "out.fits")[1].columns.names == [name, "CHANNEL1", "SERROR"]


def test_one_pixel_and_none_of_the_sky(tmp_path):
    from astropy.io import fits

    pixel = fits.Column("PIXEL", "K", array=np.array([5]))
    for name, columns in (("one", [pixel, fits.Column("I", "E", array=np.ones(1))]), ("none", [pixel])):
        table = fits.BinTableHDU.from_columns(columns)
        table.header["ORDERING"], table.header["INDXSCHM"], table.header["NSIDE"] = "RING", "EXPLICIT", 4
        table.writeto(tmp_path / f"{name}.fits")
    result = run(tmp_path / "one.fits", tmp_path / "out.fits", "--fwhm", "60deg", "--masked", "normalize")
    assert result.exit_code == 0, result.output
    found = read_maps(tmp_path / "out.fits")
    assert found.pixels.tolist() == [5]
    assert found.maps[0, 5] == pytest.approx(1, abs=1e-6)
    result = run(tmp_path / "none.fits", tmp_path / "other.fits", "--fwhm", "60deg")
    assert result.exit_code == 2
    assert "no column of a map" in result.output.replace("\n", " ")


def test_a_file_that_was_cut_short_is_named(tmp_path, sky):
    whole = (tmp_path / "in.fits").read_bytes()
    (tmp_path / "short.fits").write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="truncated"), pytest.raises(ValueError, match=r"short\.fits: .* cut short"):
        read_maps(tmp_path / "short.fits")


@pytest.mark.parametrize(
    ("pixels", "nside", "message"),
    [
        ([3, 4, 4], 4, "holds a pixel twice"),
        ([3, 4, 192], 4, "holds 192, expected 0 to 191"),
        ([-1, 4, 5], 4, "holds -1"),
        ([0.5, 4, 5], 4, "rows of float64"),
        ([3, 4, 5], None, "NSIDE is None"),
        ([3, 4, 5], 2**26, "part.fits: a map of the whole sky at NSIDE 67108864 does not fit"),
        ([3, 4, 5], 2**40, "part.fits: a map of the whole sky at NSIDE 1099511627776 does not fit"),
        (None, 4, "column I has 3 rows of float64"),
    ],
)
def test_part_of_the_sky_that_contradicts_itself(tmp_path, pixels, nside, message):
    from astropy.io import fits

    columns = [fits.Column("I", "D", array=np.ones(3))]
    if pixels is not None:
        columns.insert(0, fits.Column("PIXEL", "D" if 0.5 in pixels else "K", array=np.array(pixels)))
    table = fits.BinTableHDU.from_columns(columns)
    table.header["ORDERING"], table.header["INDXSCHM"] = "RING", "EXPLICIT"
    if nside is not None:
        table.header["NSIDE"] = nside
    table.writeto(tmp_path / "part.fits")
    result = run(tmp_path / "part.fits", tmp_path / "out.fits", "--fwhm", "30deg")
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")


# ---------------------------------------------------------------- the shape that all commands share


def test_standard_input_and_output(tmp_path, sky):
    """``smooth - -``: the cards and data that ``smooth IN OUT`` writes, except for the file's name in HISTORY."""
    args = ("--fwhm", "10deg", "--fields", "I")
    assert run(tmp_path / "in.fits", tmp_path / "out.fits", *args).exit_code == 0
    given = (tmp_path / "in.fits").read_bytes()
    for data in (given, gzip.compress(given)):
        result = CliRunner().invoke(app, ["smooth", "-", "-o", "-", *args], input=data)
        assert result.exit_code == 0, result.stderr
        assert "wrote" not in result.stderr
        (tmp_path / "piped.fits").write_bytes(result.stdout_bytes)
        a, b = (read_maps(tmp_path / name) for name in ("out.fits", "piped.fits"))
        assert np.array_equal(a.maps, b.maps)
        assert (a.names, a.units, a.nest, a.header) == (b.names, b.units, b.nest, b.header)
        content = result.stdout_bytes
        assert b"from standard input" in content
        piped = fits.HDUList.fromstring(content.replace(b"from standard input", b"from in.fits       "))
        with fits.open(tmp_path / "out.fits") as direct:
            assert fits.FITSDiff(piped, direct).identical
    result = CliRunner().invoke(app, ["smooth", "-", "-", *args], input=b"no file")
    assert (result.exit_code, result.stdout_bytes) == (2, b"")
    assert "the input: is not a FITS file" in result.stderr


def test_messages_on_standard_error(tmp_path, sky):
    """The messages name the file that was written; --quiet omits them."""
    args = ["smooth", str(tmp_path / "in.fits"), str(tmp_path / "out.fits"), "--fwhm", "10deg", "--overwrite"]
    result = CliRunner().invoke(app, args)
    assert result.stdout == ""
    assert f"wrote {tmp_path / 'out.fits'}: I, Q, U, nside 16, NESTED; --fwhm 10deg in " in result.stderr
    assert CliRunner().invoke(app, [*args, "--quiet"]).output == ""
    result = CliRunner().invoke(app, [*args, "--quiet", "--verbose"])
    assert (result.exit_code, "--quiet and --verbose" in result.stderr) == (2, True)


def test_verbose_prints_method_and_bytes(tmp_path, sky, monkeypatch, caplog):
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)  # its handler would outlive the test
    args = ("--fwhm", "10deg", "--fields", "I", "--device", "cpu", "--method", "direct", "--verbose")
    with caplog.at_level("INFO", "skysieve"):
        result = run(tmp_path / "in.fits", tmp_path / "out.fits", *args)
    assert result.exit_code == 0
    assert "wrote" in result.stderr
    assert "method='direct', dtype='float32') on cpu: " in caplog.text
    assert re.search(" KiB, (expected|times are not predicted)", caplog.text)  # as far as rates were measured here


def test_progress_counts_maps(tmp_path, sky, monkeypatch):
    from skysieve.sphere.maps import smoothing

    seen = []
    smooth = smoothing.smooth_maps

    def counted(sky, **options):
        assert options["progress"] is True
        return smooth(sky, **{**options, "progress": lambda done, total: seen.append((done, total))})

    monkeypatch.setattr(smoothing, "smooth_maps", counted)
    assert run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "10deg", "--progress").exit_code == 0
    assert seen == [(1, 2), (2, 2)]  # I, and Q with U


@pytest.mark.slow
def test_nothing_is_replaced_without_overwrite(tmp_path, sky):
    pytest.importorskip("matplotlib")
    args = (tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "10deg", "--plot", tmp_path / "p.png")
    (tmp_path / "p.png").write_text("precious")
    result = run(*args)
    assert result.exit_code == 2
    assert "p.png: exists; use --overwrite" in " ".join(result.output.split())
    assert not (tmp_path / "out.fits").exists()
    assert run(*args, "--overwrite").exit_code == 0
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_a_beam_window_is_not_replaced(tmp_path, sky):
    window = tmp_path / "bl.fits"
    pytest.importorskip("healpy").write_cl(window, np.exp(-np.arange(40) / 6.0))
    before = window.read_bytes()
    result = run(tmp_path / "in.fits", window, "--bl", window, "--overwrite")
    assert result.exit_code == 2
    assert "is one of the files to read" in " ".join(result.output.split())
    assert window.read_bytes() == before


def test_a_beam_window_in_a_file(tmp_path, sky):
    b = np.exp(-np.arange(40) / 6.0)
    np.savetxt(tmp_path / "bl.txt", b)
    found = skysieve.smoothing(sky.maps[0], beam_window=tmp_path / "bl.txt", nest=True)
    assert np.array_equal(found, skysieve.smoothing(sky.maps[0], beam_window=b, nest=True))
    with pytest.raises(FileNotFoundError, match="none"):
        skysieve.smoothing(sky.maps[0], beam_window="none.txt")


def test_type_and_memory(tmp_path, sky):
    args = ("--fwhm", "10deg", "--fields", "I", "--device", "cpu")
    assert run(tmp_path / "in.fits", tmp_path / "out.fits", *args, "--dtype", "float64").exit_code == 0
    assert read_maps(tmp_path / "out.fits").maps.dtype == np.float64
    result = run(tmp_path / "in.fits", tmp_path / "o.fits", *args, "--memory", "1kB")
    assert result.exit_code == 2
    assert "the budget is 1000 B" in result.output
    assert not (tmp_path / "o.fits").exists()


def test_wavelets(tmp_path, sky):
    for option, kernel in ((("--mexican-hat", "10deg"), MexicanHat("10deg")), (("--needlet", "2"), Needlet(2))):
        target = tmp_path / f"{option[0]}.fits"
        result = run(tmp_path / "in.fits", target, "--fields", "I", *option)
        assert result.exit_code == 0, result.output
        assert np.array_equal(read_maps(target).maps[0], skysieve.smoothing(sky.maps[0], kernel=kernel, nest=True))


# ---------------------------------------------------------------- files as maps


def test_smoothing_takes_a_file(tmp_path, sky):
    """The maps of a file, in RING order unless NESTED order is asked for; auxiliary columns are left out."""
    found = skysieve.smoothing(tmp_path / "in.fits", fwhm="10 deg")
    nested = skysieve.smoothing(str(tmp_path / "in.fits"), fwhm="10 deg", nest=True)
    assert np.array_equal(nested, skysieve.smoothing(sky.maps, fwhm=10 * RAD, nest=True))
    assert np.array_equal(found, reorder(nested, to="ring"))
    alone = skysieve.smoothing(tmp_path / "in.fits", fwhm="10 deg", nest=True, pol=False)
    assert np.array_equal(alone[0], nested[0])
    assert not np.array_equal(alone[1], nested[1])
    one = SkyMaps(sky.maps[:2], True, ("TEMPERATURE", "HITS"), ("K", ""))
    write_maps(tmp_path / "one.fits", one)
    single = skysieve.smoothing(tmp_path / "one.fits", fwhm="10 deg", nest=True)
    assert np.array_equal(single, nested[0])
    with pytest.raises(FileNotFoundError):
        skysieve.smoothing(tmp_path / "none.fits", fwhm=0.1)
    with pytest.raises(ValueError, match=r"fwhm=-1\.0"):
        skysieve.smoothing(tmp_path / "one.fits", fwhm=-1.0)


@pytest.mark.parametrize("target", ["out.fits", "out.fits.gz", "-"])
def test_names_that_are_not_ascii_are_escaped_in_the_history(tmp_path, sky, target):
    """Written by both writers: of whole maps alone, and of other files."""
    (tmp_path / "in.fits").rename(tmp_path / "carte_é.fits")
    np.savetxt(tmp_path / "strålkägla.txt", np.exp(-np.arange(40.0)))
    out = tmp_path / target if target != "-" else target
    result = run(tmp_path / "carte_é.fits", out, "--bl", tmp_path / "strålkägla.txt", "--fields", "I")
    assert result.exit_code == 0, result.stderr
    header = fits.getheader(out if target != "-" else io.BytesIO(result.stdout_bytes), 1)
    history = "".join(header["HISTORY"])
    assert r"smooth from carte_\xe9.fits" in history
    assert r"str\xe5lk\xe4gla.txt" in history


def test_a_column_of_text_is_refused_with_advice(tmp_path, sky):
    with fits.open(tmp_path / "in.fits") as hdus:
        rows = len(hdus[1].data)
        columns = [*hdus[1].columns, fits.Column("NAME", "3A", array=["abc"] * rows)]
        fits.BinTableHDU.from_columns(columns, hdus[1].header).writeto(tmp_path / "text.fits")
    result = run(tmp_path / "text.fits", tmp_path / "out.fits", "--fwhm", "10deg")
    assert result.exit_code == 2
    assert "column NAME has dtype <U3, expected numbers; fields (--fields) chooses columns" in result.stderr


def test_advice_names_the_option(tmp_path, sky):
    result = run(tmp_path / "in.fits", tmp_path / "out.fits", "--fwhm", "1arcmin")
    assert "; --quadrature healpy smooths by harmonics" in result.stderr
