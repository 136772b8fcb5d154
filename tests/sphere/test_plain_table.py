"""Files of whole maps are those that astropy would write, byte for byte."""

from __future__ import annotations

import gzip
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from skysieve.sphere.kernels.base import read_angle
from skysieve.sphere.maps import io, plain_table

fits = pytest.importorskip("astropy.io.fits")
units = pytest.importorskip("astropy.units")


@pytest.fixture
def survey(tmp_path):
    """Three maps with many cards, and HDUs before and after them."""
    nside = 32
    rng = np.random.default_rng(5)
    maps = rng.normal(size=(3, 12 * nside**2)).astype(np.float32)
    columns = [
        fits.Column(f"{n}_STOKES", "512E", unit="K_CMB" if n == "I" else None, array=m.reshape(-1, 512))
        for n, m in zip("IQU", maps, strict=True)
    ]
    columns.insert(1, fits.Column("SCALED", "512I", array=(maps[0].reshape(-1, 512) * 100).astype(np.int16)))
    table = fits.BinTableHDU.from_columns(columns, name="FREQ-MAP")
    for card in (("ORDERING", "NESTED"), ("NSIDE", nside), ("BEAM", "7arcmin", "of the instrument"), ("EXTVER", 2),
                 ("HIERARCH a long key", 5), ("LONG", "a" * 100), ("GRAIN", 1), ("BAD_DATA", -1.6375e30),
                 ("TSCAL2", 0.5), ("TZERO2", 3.0)):  # fmt: skip
        table.header.set(*card)
    for keyword in ("HISTORY", "COMMENT", "COMMENT", ""):
        table.header[keyword] = "by hand"
    table.header.add_blank("after")
    picture = fits.CompImageHDU(np.arange(64 * 64, dtype=np.int16).reshape(64, 64), name="PICTURE")
    beams = fits.BinTableHDU.from_columns([fits.Column("T", "PD()", array=np.array([[1.0], [2, 3]], object))])
    primary = fits.PrimaryHDU(np.arange(30.0))
    fits.HDUList([primary, beams, table, picture]).writeto(tmp_path / "in.fits")
    return tmp_path / "in.fits"


def same_bytes(path, sky):
    """Write maps to `path`, and check its bytes against those of astropy."""
    io.write_maps(path, sky, overwrite=True)
    assert path.read_bytes() == io.fits_bytes(sky)
    with fits.open(path) as hdus:
        hdus.verify("exception")
        found = [hdus[sky.hdu].data[n].ravel() for n in sky.names]
    assert np.array_equal(found, sky.maps, equal_nan=True)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("fields", [None, ["U_STOKES", "SCALED"], ["I"]])
def test_a_file_with_cards_and_other_hdus(survey, tmp_path, fields, packed):
    source = gzip.compress(survey.read_bytes()) if packed else survey
    sky = io.read_maps(source, fields, hdu=2)
    sky = replace(sky, maps=sky.maps[:, ::-1] * 2, history=("smoothed", "x" * 90))
    same_bytes(tmp_path / "out.fits", sky)


@pytest.mark.few
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nside", [1, 8, 16, 512])
def test_maps_without_a_file(tmp_path, monkeypatch, nside, dtype):
    monkeypatch.setattr(plain_table, "PIECE", 2**18)  # several pieces
    maps = np.random.default_rng(nside).normal(size=(2, 12 * nside**2)).astype(dtype)
    maps[0, 3] = np.nan
    same_bytes(tmp_path / "out.fits", io.SkyMaps(maps, False, ("A", "B"), ("K", "")))


def test_the_file_that_was_read_is_replaced(survey):
    sky = io.read_maps(survey, hdu=2)
    expected = io.fits_bytes(sky)
    io.write_maps(survey, sky, overwrite=True)
    assert survey.read_bytes() == expected


def test_a_file_that_was_cut_short(survey, tmp_path):
    """The other HDUs are copied when the maps are written: nothing is written if they are gone."""
    sky = io.read_maps(survey, hdu=2)
    survey.write_bytes(survey.read_bytes()[:2880])
    with pytest.raises(ValueError, match="was changed after its maps were read"):
        io.write_maps(tmp_path / "out.fits", sky)
    assert list(tmp_path.iterdir()) == [survey]


@pytest.mark.parametrize(
    "text", ["10arcmin", "4.7 arcmin", "1deg", " 30arcsec ", "1e-3rad", ".5deg", "90. deg", "7mas"]
)
def test_angles_are_those_of_astropy(text):
    assert read_angle(text, "fwhm") == units.Quantity(text).to_value("rad")


@pytest.mark.slow
def test_writing_does_not_load_tables(survey, tmp_path):
    """astropy's tables take longer to load than a map takes to smooth."""
    code = (
        "import sys; from skysieve.sphere.maps import io; "
        f"sky = io.read_maps({str(survey)!r}, hdu=2); io.write_maps({str(tmp_path / 'out.fits')!r}, sky); "
        "print('astropy.table' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
