"""Results that are written into arrays of the caller."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from skysieve.sphere import ConvolvePlan, Gaussian, Healpix
from skysieve.sphere.arguments import check_out

BEAM = Gaussian(fwhm=0.3)


@pytest.mark.parametrize("kernels", [BEAM, [BEAM, Gaussian(fwhm=0.2)]])
def test_a_result_is_written_into_out(kernels):
    rng = np.random.default_rng(0)
    mask = rng.random(12 * 8**2) < 0.5
    mask[:20] = False  # rings that no engine writes
    with ConvolvePlan(kernels, Healpix(8), mask=mask, device="cpu") as plan:
        x = rng.normal(size=(2, 3, plan.npix))
        expected = plan.execute(x)
        out = np.full(expected.shape, np.nan)
        assert plan.execute(x, out=out) is out
        assert (out == expected).all()
        if not isinstance(kernels, list):
            back = np.full(x.shape, np.nan)
            assert plan.adjoint(x, out=back) is back
            assert (back == plan.adjoint(x)).all()


def test_an_out_that_cannot_be_written_is_refused():
    with ConvolvePlan(BEAM, Healpix(4), device="cpu") as plan:
        x = np.ones((2, plan.npix))
        read_only = np.empty_like(x)
        read_only.flags.writeable = False
        for out, error, text in (
            ([0.0], TypeError, "out is a list"),
            (np.empty((3, plan.npix)), ValueError, r"expected a contiguous array of shape \(2, 192\)"),
            (np.empty(x.shape, np.float32), ValueError, "dtype float32"),
            (np.empty(x.shape, order="F"), ValueError, "strides"),
            (read_only, ValueError, "read-only"),
            (x, ValueError, "shares its memory"),
        ):
            with pytest.raises(error, match=text):
                plan.execute(x, out=out)


def test_an_out_on_another_gpu_is_refused():
    def on_gpu(number):
        flags = SimpleNamespace(c_contiguous=True)
        kind = {
            "__cuda_array_interface__": {},
            "shape": (12,),
            "dtype": np.dtype("f4"),
            "flags": flags,
            "strides": (4,),
        }
        return SimpleNamespace(**kind, device=number)

    with pytest.raises(ValueError, match="out is on 1, the maps are on 0"):
        check_out(on_gpu(1), on_gpu(0), (12,), np.dtype("f4"))
