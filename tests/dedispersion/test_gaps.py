"""Rows of PSRFITS files that do not follow one another."""

from __future__ import annotations

import numpy as np
import pytest
from astropy.io import fits
from tests.dedispersion.test_formats import psrfits

from skysieve.dedispersion import Filterbank


@pytest.mark.parametrize(
    ("offsets", "gap"),
    [
        (np.array([0.008, 0.024, 5.04, 5.056]), "rows 1 and 2 are 5.016 s apart"),
        (np.array([0.008, 0.024, 0.024, 0.04]), "rows 1 and 2 are 0 s apart"),
        (np.array([0.008, np.nan, 0.04, 0.056]), "rows 0 and 1"),
        (np.zeros(4), None),  # the file does not say
        (0.016 * np.arange(4) + 1e-4, None),
    ],
)
def test_gaps_in_time_are_refused(tmp_path, offsets, gap):
    raw = np.random.default_rng(0).integers(0, 200, (64, 1, 8)).astype(np.uint8)
    path = psrfits(tmp_path / "a.fits", raw, 8)
    with fits.open(path, mode="update") as file:
        file["SUBINT"].data["OFFS_SUB"] = offsets
    if gap is None:
        assert Filterbank.open(path).nsamp == 64
        return
    with pytest.raises(ValueError, match=gap):
        Filterbank.open(path)
