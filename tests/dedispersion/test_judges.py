"""De-dispersed series as sigpyproc makes them (it needs Python 3.12)."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.dedispersion import Filterbank, dedisperse, write_fil

SIGPYPROC_CONSTANT = 4.148808e3


@pytest.mark.parametrize("nbits", [2, 8])
def test_every_sample_is_sigpyprocs(tmp_path, nbits):
    readers = pytest.importorskip("sigpyproc.readers")
    rng = np.random.default_rng(nbits)
    x = rng.integers(0, 2**nbits, (256, 9000), dtype=np.uint8)
    path = tmp_path / "a.fil"
    write_fil(path, Filterbank.from_array(x, fch1=430, foff=-0.1, tsamp=5e-4), nbits=nbits)
    theirs = readers.FilReader(str(path))
    with Filterbank.open(path) as fb:
        for dm in (0.0, 12.5, 60.0):
            ours = dedisperse(fb, [dm], dm_constant=SIGPYPROC_CONSTANT).data[0]
            assert np.array_equal(ours, theirs.dedisperse(dm, quiet=True).data[: len(ours)])
