"""Searches over many templates on GPUs against the CPU's: atoms on either side, lines, several GPUs.

Tolerance: 2F in float32 to a relative 1e-4, a third of the error that a cell may have.  The best cells are those of
signals, far above their neighbours, so their places are equal.
"""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.device import resolve
from skysieve.fstat import (
    BSGL,
    AtomsBatch,
    Grid,
    Injection,
    SFTs,
    TemplateBank,
    search,
    search_sfts,
    synth_atoms,
)

pytestmark = pytest.mark.gpu

T = 1800
T0 = 1_000_000_000
GRID = Grid(t0=T0, t0_band=46 * T, dt0=T, tau=2 * T, tau_band=46 * T, dtau=T)
COUNT = 150
LOUD = {5: 11.0, 17: 13.0, 77: 12.0, 140: 15.0}


def atoms(i, sky):
    signal = Injection(T0 + 10 * T, 12 * T, snr=LOUD[i], window="exp") if i in LOUD else None
    return synth_atoms(T0, 48 * T, seed=i, inject=signal, gaps=[(T0 + 30 * T, T0 + 33 * T)], ra=0.5 + 0.01 * i * sky)


def batches(xp=np, sky=0.0, size=40):
    """Batches of two detectors; each template at a point of the sky of its own where ``sky`` is not 0."""
    for start in range(0, COUNT, size):
        some = [atoms(i, sky) for i in range(start, min(start + size, COUNT))]
        params = {"f0": 30 + 0.01 * np.arange(start, start + len(some))}
        host = [AtomsBatch.stack([t[d] for t in some], params) for d in range(2)]
        yield [
            AtomsBatch(
                b.t, *(xp.asarray(getattr(b, f)) for f in ("a2", "b2", "ab", "Fa", "Fb")), detector=b.detector,
                params=params,
            )
            for b in host
        ]  # fmt: skip


def compare(found, expected, lines=False):
    assert (found.n_templates, found.n_bad) == (expected.n_templates, expected.n_bad) == (COUNT, 0)
    for window in ("rect", "exp"):
        a, b = found.columns(window), expected.columns(window)
        assert a["template"].tolist() == b["template"].tolist()
        assert set(a["template"][:4]) == set(LOUD)
        for name in ("t0_ml", "tau_ml", "f0"):
            assert np.array_equal(a[name], b[name]), name
        np.testing.assert_allclose(a["max2F"], b["max2F"], rtol=1e-4)
        np.testing.assert_allclose(a["lnBtSG"], b["lnBtSG"], atol=1e-2)
        if lines:
            np.testing.assert_allclose(a["log10BSGL"], b["log10BSGL"], atol=1e-3)
        assert found.histogram(window)[1].sum() == COUNT


@pytest.mark.parametrize("sky", [0.0, 1.0])
@pytest.mark.parametrize("on_device", [False, True])
def test_search(on_device, sky):
    cupy = pytest.importorskip("cupy")
    options = {"topk": 4, "posteriors": 2}
    expected = search(batches(sky=sky), GRID, device="cpu", **options)
    found = search(batches(cupy if on_device else np, sky), GRID, device="cuda", **options)
    compare(found, expected)
    for n in found.columns("exp")["template"][:2]:
        for p, q in zip(found.posterior("exp", n), expected.posterior("exp", n), strict=True):
            np.testing.assert_allclose(p, q, atol=1e-3)


def test_search_with_lines():
    options = {"topk": 4, "bsgl": BSGL(10.0)}
    compare(search(batches(), GRID, device="cuda", **options), search(batches(), GRID, device="cpu", **options), True)


def test_all_gpus():
    """One GPU or several: the same table, also when the search continues from a checkpoint."""
    one = search(batches(size=11), GRID, device="cuda:0", topk=4)
    compare(search(batches(size=11), GRID, device="cuda:all", topk=4), one)
    if len(resolve("cuda:all")) > 1:
        compare(search(batches(size=11), GRID, device=["cuda:0", "cuda:1"], topk=4), one)


def sfts_of_noise(n=200, bins=400):
    rng = np.random.default_rng(6)
    t = 1_000_000_000 + 1800 * np.arange(n)
    values = rng.standard_normal((2, 2, n, bins)).astype(np.float32)
    sfts = [SFTs(d, t, 1800, 179_800, v[0] + 1j * v[1]) for d, v in zip(("H1", "L1"), values, strict=True)]
    delay = 490 * np.sin(2 * np.pi * np.arange(n) / 17_532)
    return sfts, {one.detector: (delay, 1 + np.gradient(delay, 1800.0)) for one in sfts}


def searched(bank, device, **options):
    sfts, times = sfts_of_noise()
    options = {"windows": ("rect", "exp"), "topk": 400} | options
    return search_sfts(sfts, 0.5, 1.0, bank, barycentre=times, device=device, **options)


def test_float64_sfts_are_searched_as_on_the_cpu():
    bank = TemplateBank.grid((100.0, 100.0001, 1e-6), (-2e-10, 0.0, 1e-10))
    ours, theirs = (searched(bank, device, dtype="float64") for device in ("cuda", "cpu"))
    for window in ("rect", "exp"):
        a, b = ours.columns(window), theirs.columns(window)
        a, b = (found["max2F"][np.argsort(found["template"])] for found in (a, b))
        assert a == pytest.approx(b, rel=1e-7)


def test_sfts_are_searched_as_on_the_cpu():
    """Templates that leave the band or are not finite are left out."""
    f0 = 100 + 1e-6 * np.arange(300)
    f0[[7, 150]] = 50, np.nan
    bank = TemplateBank(f0, -1e-10, listed=True)
    ours, theirs = searched(bank, "cuda"), searched(bank, "cpu")
    assert list(ours.faults) == list(theirs.faults) == [7, 150]
    assert (ours.n_templates, ours.n_bad) == (300, 2)
    for window in ("rect", "exp"):
        a, b = ours.columns(window), theirs.columns(window)
        a, b = (found["max2F"][np.argsort(found["template"])] for found in (a, b))
        assert a == pytest.approx(b, rel=1e-3)


def test_several_gpus_give_the_bits_of_one(monkeypatch):
    if len(resolve("cuda:all")) < 2:
        pytest.skip("one GPU only")
    import skysieve.fstat.demod.demodulator as module

    monkeypatch.setitem(module.BATCH_BYTES, "cuda", 16 * 400 * 64)
    bank = TemplateBank.grid((100.0, 100.0003, 1e-6), (-2e-10, 0.0, 1e-10))
    one, all_of_them = searched(bank, "cuda:0"), searched(bank, "cuda:all")
    for window in ("rect", "exp"):
        for name, column in one.columns(window).items():
            assert np.array_equal(column, all_of_them.columns(window)[name]), name
