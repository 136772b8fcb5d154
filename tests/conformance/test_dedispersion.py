"""De-dispersed sums against a triple loop, bit for bit, for every method, type, chunking and number of threads.

Tolerances: integers have none.  float32: derived, see `close`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.marks import slow
from tests.truth import dedispersion as reference

from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.dedispersion import Filterbank, Mask, dedisperse, plan
from skysieve.dedispersion.data.delays import delay_seconds, sample_delays

EXACT = ("brute", "exact-subband", "auto")


def noise(kind, shape, rng, full=False):
    if kind == "f4":
        return rng.normal(size=shape).astype(np.float32)
    info = np.iinfo(kind)
    if full:
        return np.full(shape, info.max, kind)
    return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)


def close(found, x, truth, binned=1):
    """Whether float32 sums are within their derived rounding error.

    C terms are added in a tree of depth 4 and then in C/16 steps, with an error of at most (4 + C/16) eps sum|x|.
    Each term is itself a sum of ``binned`` samples, added one after the other in ``binned`` - 1 steps.
    """
    C = len(x)
    bound = (5 + C / 16 + binned - 1) * 2**-24 * C * binned * np.abs(x).max()
    return np.abs(found - truth).max() <= bound


def check(x, truth, result, binned=1):
    if x.dtype.kind == "f":
        assert close(result.data, x, truth, binned)
        return
    assert result.data.dtype == (np.uint32 if x.dtype.kind == "u" else np.int32)
    assert np.array_equal(result.data, truth)


@st.composite
def cases(draw, kinds):
    """A filterbank with samples of one of these kinds, its DMs, binning, and a way to run."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    C, ndm = draw(st.integers(1, 40)), draw(st.integers(1, 80))
    kind = draw(st.sampled_from(kinds))
    downsamp = draw(st.sampled_from([1, 1, 2, 3, 7]))
    freqs = np.sort(rng.uniform(300, 400, C))
    if draw(st.booleans()):
        freqs = freqs[::-1]
    elif draw(st.booleans()):
        freqs = rng.permutation(freqs)
    top = draw(st.sampled_from([0.0, 1.0, 30.0]))
    dms = np.sort(rng.uniform(0, top, ndm)) if draw(st.booleans()) else np.linspace(0, top, ndm)
    x = noise(kind, (C, draw(st.integers(1, 2600)) + 900), rng, full=draw(st.integers(0, 9)) == 0)
    return Filterbank.from_array(x, freqs=freqs.copy(), tsamp=1e-3), dms, downsamp


@pytest.mark.parametrize("kinds", [("u1", "i1", "f4"), slow(("u2", "i2"))], ids=" ".join)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), st.sampled_from(EXACT), st.sampled_from([1, 2]))
def test_any_shape_equals_the_triple_loop(kinds, data, method, threads):
    fb, dms, downsamp = data.draw(cases(kinds))
    delays = sample_delays(fb.freqs, dms, fb.tsamp * downsamp)
    truth = reference.sums(fb.read(), delays, downsamp)
    result = dedisperse(fb, dms, method=method, downsamp=downsamp, threads=threads)
    check(fb.read(), truth, result, downsamp)
    assert result.delay_error <= 0.5
    assert result.loss == 0


@pytest.mark.few
@pytest.mark.parametrize("method", ["brute", "exact-subband"])
@pytest.mark.parametrize(
    ("kind", "C", "downsamp"),
    [("u1", 4096, 1), ("u1", 5000, 16), ("u1", 700, 128), ("u2", 4096, 1), ("u2", 600, 2), ("i2", 600, 1)],
)
def test_full_scale_input_does_not_overflow(method, kind, C, downsamp):
    n = 40 * downsamp
    x = np.full((C, n), np.iinfo(kind).max, kind)
    x[::7] = np.iinfo(kind).min
    fb = Filterbank.from_array(x, fch1=1500, foff=-1e-2, tsamp=1e-3)
    dms = [0.0, 5.0, 20.0]
    truth = reference.sums(x, sample_delays(fb.freqs, np.array(dms), 1e-3 * downsamp), downsamp)
    assert np.array_equal(dedisperse(fb, dms, method=method, downsamp=downsamp, threads=1).data, truth)


@pytest.mark.parametrize("nbits", [1, 2, 4])
def test_narrow_samples(tmp_path, nbits):
    from skysieve.dedispersion import write_fil

    rng = np.random.default_rng(nbits)
    x = rng.integers(0, 2**nbits, (64, 3000), dtype=np.uint8)
    write_fil(tmp_path / "a.fil", Filterbank.from_array(x, fch1=1400, foff=-2, tsamp=1e-3, nbits=nbits))
    fb = Filterbank.open(tmp_path / "a.fil")
    dms = np.linspace(0, 300, 70)
    truth = reference.sums(x, sample_delays(fb.freqs, dms, 1e-3))
    for method in ("brute", "exact-subband"):
        assert np.array_equal(dedisperse(fb, dms, method=method).data, truth)


@pytest.mark.few
@pytest.mark.parametrize(("nbits", "downsamp"), [(9, 1), (10, 16), (10, 128), (11, 1), (11, 64), (12, 3)])
def test_wide_samples_of_few_bits(nbits, downsamp):
    """Samples of 9 to 12 bits, such as sums of two polarisations, with and without binning."""
    rng = np.random.default_rng(nbits)
    x = rng.integers(0, 2**nbits, (300, 9000), dtype=np.uint16)
    x[::3] = 2**nbits - 1
    fb = Filterbank.from_array(x, fch1=1400, foff=-0.5, tsamp=1e-3, nbits=nbits)
    dms = np.linspace(0, 300, 70)
    truth = reference.sums(x, sample_delays(fb.freqs, dms, 1e-3 * downsamp), downsamp)
    for method in ("brute", "exact-subband"):
        assert np.array_equal(dedisperse(fb, dms, method=method, downsamp=downsamp).data, truth)


@pytest.mark.parametrize("kind", ["u1", slow("u2"), "i1", slow("i2"), "f4"])
def test_chunks_change_no_bit(kind):
    """A maximum shift longer than a chunk, chunks that end anywhere, one thread or two."""
    rng = np.random.default_rng(3)
    x = noise(kind, (48, 60_000), rng)
    fb = Filterbank.from_array(x, fch1=400, foff=-3, tsamp=1e-4)
    dms = np.linspace(0, 40, 21)
    shift = int(sample_delays(fb.freqs, dms, 1e-4).max())
    need = (shift + 9000) * 49 * 9
    for downsamp in (1, 4):
        whole = dedisperse(fb, dms, threads=1, downsamp=downsamp)
        for memory, threads in ((need, 2), (2 * need, 1)):
            part = dedisperse(fb, dms, memory=memory, threads=threads, downsamp=downsamp)
            assert np.array_equal(part.data, whole.data)
    assert np.array_equal(dedisperse(fb, dms, method="brute", downsamp=4).data, whole.data)
    assert shift > 8192


def test_a_single_dm_has_the_bits_that_it_has_in_a_list():
    rng = np.random.default_rng(4)
    for kind in ("u1", "f4"):
        fb = Filterbank.from_array(noise(kind, (200, 5000), rng), fch1=1400, foff=-0.5, tsamp=1e-4)
        dms = np.linspace(0, 60, 130)
        many = dedisperse(fb, dms).data
        for m in (0, 63, 64, 129):
            assert np.array_equal(dedisperse(fb, dms[m]).data[0, : many.shape[1]], many[m])


@pytest.mark.parametrize("nsub", [2, 5, 16])
def test_subband_is_the_two_stage_sum(nsub):
    """Against sums in the two stages: the channels of a subband at the nominal DM, then the subbands at each DM."""
    rng = np.random.default_rng(nsub)
    x = rng.integers(0, 256, (64, 4000), dtype=np.uint8)
    fb = Filterbank.from_array(x, fch1=400, foff=-0.5, tsamp=1e-3)
    dms, per_call = np.arange(24) * 0.2, 6
    result = dedisperse(fb, dms, method="subband", nsub=nsub, per_call=per_call)
    edges = np.linspace(0, 64, nsub + 1).round().astype(int)
    valid = result.data.shape[1]
    for m0 in range(0, 24, per_call):
        nominal = dms[m0 : m0 + per_call].mean()
        for m in range(m0, m0 + per_call):
            total = np.zeros(valid, np.int64)
            for a, b in pairwise(edges):
                outer = int(np.rint(delay_seconds(fb.freqs[a], dms[m], fb.freqs[0]) / 1e-3))
                for c in range(a, b):
                    gap = delay_seconds(fb.freqs[c], nominal) - delay_seconds(fb.freqs[a], nominal)
                    shift = outer + int(np.rint(gap / 1e-3))
                    total += x[c, shift : shift + valid]
            assert np.array_equal(result.data[m], total)
    assert result.method == "subband"
    # derived: two roundings, and the nominal DM's error inside the widest subband
    half = dms[:per_call].mean() - dms[0]
    inside = max(float(delay_seconds(fb.freqs[b - 1], half, fb.freqs[a])) for a, b in pairwise(edges))
    assert 0.5 < result.delay_error <= 1.0 + inside / 1e-3 + 1e-9


def fdmt(x, freqs, tsamp, a, size, across):
    """A node of the tree, by recursion: the sum of channels ``a : a + size`` for one delay across them."""
    C = len(freqs)
    if size == 1:
        return x[a]
    half, end, middle = size // 2, min(a + size, C), a + size // 2
    if middle >= C:
        return fdmt(x, freqs, tsamp, a, half, across)
    law = [f**-2.0 for f in (*freqs, 2 * freqs[-1] - freqs[-2])]
    upper = int(np.rint(across * (law[middle] - law[a]) / (law[end] - law[a])))
    first = fdmt(x, freqs, tsamp, a, half, upper)
    second = fdmt(x, freqs, tsamp, middle, half, across - upper)[upper:]
    n = min(len(first), len(second))
    return first[:n] + second[:n]


@pytest.mark.parametrize("C", [2, 7, 64, 300])
def test_tree_is_a_tree(C):
    """Against a recursion over arrays; delays are within half a sample for each level, and one for the ends."""
    rng = np.random.default_rng(C)
    x = rng.integers(0, 256, (C, 3000), dtype=np.uint8)
    fb = Filterbank.from_array(x, fch1=400, foff=-60 / C, tsamp=1e-3)
    dms = np.linspace(0, 12, 90)
    result = dedisperse(fb, dms, method="tree")
    valid = result.data.shape[1]
    size = 1 << (C - 1).bit_length()
    last = 2 * fb.freqs[-1] - fb.freqs[-2]
    for m in range(0, 90, 7):
        whole = int(np.rint(delay_seconds(last, dms[m], fb.freqs[0]) / 1e-3))
        assert np.array_equal(result.data[m], fdmt(x.astype(np.int64), fb.freqs, 1e-3, 0, size, whole)[:valid])
    assert result.method == "tree"
    assert result.delay_error <= 0.5 * (size.bit_length() - 1) + 1
    assert 0 <= result.loss < 0.3
    many = dedisperse(fb, dms, method="tree", memory=(C + 1) * 12000 * 4, threads=2)
    assert np.array_equal(many.data, result.data)


def test_a_plans_octaves_are_binned_for_the_tree():
    """Binning by DM, as the plan says it: fewer delays, and the pulse is still there."""
    from skysieve.dedispersion import fake, search

    fb = fake(nchan=128, duration=6, tsamp=5e-4, fch1=1500, foff=-2, dm=300, times=[2.0], width=1e-2, snr=25, seed=4)
    p = plan(fb, 400, max_loss=0.05, width=1e-3)
    assert len(p.stages) > 1
    found = search(fb, p, method="tree")
    assert found.method == "tree"
    assert abs(found.dm[0] - 300) < 8
    assert abs(found.time[0] - 2.0) < 5e-3
    assert found.snr[0] > 0.85 * search(fb, p).snr[0]


def test_auto_stays_exact_unless_loss_is_allowed():
    rng = np.random.default_rng(5)
    fb = Filterbank.from_array(rng.integers(0, 256, (256, 9000), dtype=np.uint8), fch1=308, foff=-1 / 16, tsamp=2e-4)
    dms = np.arange(128) * 0.05
    assert dedisperse(fb, dms).method in ("brute", "exact-subband")
    allowed = dedisperse(fb, dms, max_loss=0.2)
    assert 0 < allowed.loss <= 0.2
    assert allowed.method in ("tree", "subband")
    assert dedisperse(fb, dms, max_loss=1e-6).loss == 0
    forced = dedisperse(fb, dms, method="subband", max_loss=0.05)
    assert forced.method == "subband"
    assert forced.loss <= 0.05


@pytest.mark.slow
def test_measured_loss_keeps_its_bound():
    """Pulses of the stated width in every subband call: S/N relative to the exact sum."""
    C, n, W = 512, 3000, 10
    fb0 = Filterbank.from_array(np.zeros((C, n), np.uint8), fch1=308, foff=-16 / C, tsamp=2e-4)
    dms = 10 + np.arange(96) * 0.05
    made = dedisperse(fb0, dms, method="subband", nsub=16, per_call=24)
    worst = 0.0
    for m in range(0, 96, 5):
        true = delay_seconds(fb0.freqs, dms[m], fb0.freqs[0]) / 2e-4
        edges = np.arange(n + 1)[None, :]
        x = np.clip(
            np.minimum(edges[:, 1:], 1000 + true[:, None] + W) - np.maximum(edges[:, :-1], 1000 + true[:, None]), 0, 1
        )
        fb = Filterbank.from_array((x * 200).astype(np.uint8), fch1=308, foff=-16 / C, tsamp=2e-4)
        best = []
        for method in ("subband", "brute"):
            y = dedisperse(fb, dms, method=method, nsub=16, per_call=24).data[m].astype(float)
            best.append(np.convolve(y, np.ones(W), "valid").max())
        worst = max(worst, 1 - best[0] / best[1])
    assert worst <= made.loss + 0.01
    assert made.loss < 0.35


@pytest.mark.parametrize("ref", ["centre", "bottom", "infinity", 350.0])
def test_reference_frequencies_move_time_only(ref):
    """An impulse that arrives at sample 500 at the reference is found there."""
    freqs = 400 - np.arange(64.0)
    dm, n = 3.0, 6000
    delays = sample_delays(freqs, np.array([dm]), 1e-3, ref)[0]
    x = np.zeros((64, n), np.uint8)
    x[np.arange(64), 500 + delays] = 9
    fb = Filterbank.from_array(x, freqs=freqs, tsamp=1e-3)
    result = dedisperse(fb, [dm, 1.0], ref_freq=ref)
    peak = int(result.data[0].argmax())
    assert result.data[0, peak] == 9 * 64
    assert result.times[peak] == pytest.approx(0.5)


def test_masked_cells_take_the_channels_mean():
    rng = np.random.default_rng(6)
    x = rng.integers(0, 100, (32, 5000), dtype=np.uint8)
    loud = x.copy()
    cells = np.zeros((32, 10), bool)
    cells[5] = cells[9, 3] = cells[9, 0] = cells[30, 9] = True
    for c, b in zip(*np.nonzero(cells), strict=True):
        loud[c, 500 * b : 500 * (b + 1)] = 255
    expected = x.astype(np.int64)
    expected[5] = 0
    expected[9, 1500:2000] = np.rint(x[9, 1000:1500].mean())
    expected[9, :500] = np.rint(x[9, 500:1000].mean())
    expected[30, 4500:] = np.rint(x[30, 4000:4500].mean())
    dms = np.linspace(0, 20, 30)
    fb = Filterbank.from_array(loud, fch1=1400, foff=-2, tsamp=1e-3)
    truth = reference.sums(expected, sample_delays(fb.freqs, dms, 1e-3))
    mask = Mask(cells, 500)
    assert np.array_equal(dedisperse(fb, dms, mask=mask).data, truth)
    assert np.array_equal(dedisperse(fb, dms, mask=mask, memory=33 * 9000 * 4).data, truth)
    assert mask.weight == 1 - 13 / 320


def test_values_that_are_not_finite():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(32, 5000)).astype(np.float32)
    holed = x.copy()
    holed[3, 100:200] = np.nan
    holed[4, 4000] = np.inf
    holed[6] = np.nan
    fb = Filterbank.from_array(holed, fch1=1400, foff=-2, tsamp=1e-3)
    found = dedisperse(fb, [0.0, 10.0]).data
    assert np.isfinite(found).all()
    blocks = np.split(x, [2048, 4096], axis=1)
    want = x.copy()
    mean = np.delete(x[3, :2048], np.s_[100:200]).mean(dtype=np.float64)
    want[3, 100:200] = mean
    want[4, 4000] = np.delete(blocks[1][4], 4000 - 2048).mean(dtype=np.float64)
    want[6] = 0
    assert close(found[0], want, want.sum(axis=0, dtype=np.float64)[: found.shape[1]])


def test_presto_makes_the_same_series(test_data):
    """PRESTO writes floats without the mean of a block; required: their correlation with our sums is above 0.9999."""
    folder = test_data / "dedispersion"
    fb = Filterbank.open(folder / "tutorial.fil")
    names = {0.0: "DM0", 12.5: "DM12.5", 30.0: "DM30.00", 60.0: "DM60"}
    ours = dedisperse(fb, list(names))
    for series, name in zip(ours.data, names.values(), strict=True):
        theirs = Filterbank.open(folder / "presto" / f"tutorial_{name}.dat").read()[0].astype(float)
        n = min(len(theirs), len(series))
        assert np.corrcoef(theirs[:n], series[:n])[0, 1] > 0.9999


def test_plans_give_a_result_for_each_binning():
    rng = np.random.default_rng(8)
    fb = Filterbank.from_array(rng.integers(0, 4, (64, 20_000), dtype=np.uint8), fch1=308, foff=-0.25, tsamp=1e-3)
    p = plan(fb, stages=[(0, 2, 0.1, 1, 0.5), (2, 4, 0.2, 2, 0.8)], nsub=8)
    first, second = dedisperse(fb, p)
    assert (first.downsamp, second.downsamp, second.tsamp) == (1, 2, 2e-3)
    assert np.array_equal(second.dms, p.stages[1].dms)
    truth = reference.sums(fb.read(), sample_delays(fb.freqs, second.dms, 2e-3), 2)
    assert np.array_equal(second.data, truth)
    bands = dedisperse(fb, p, method="subband")
    assert [b.method for b in bands] == ["subband", "subband"]


def test_written_series_return(tmp_path):
    fb = Filterbank.from_array(np.eye(16, 900, dtype=np.uint8), fch1=1400, foff=-2, tsamp=1e-3, tstart=59000.0)
    result = dedisperse(fb, [0.0, 0.001, 10.0], dm_constant=4.15e3)
    for kind in ("dat", "tim"):
        paths = result.write(tmp_path / "out", format=kind)
        assert paths[1].name == f"out_DM0.001.{kind}"
        for path, series, dm in zip(paths, result.data, result.dms, strict=True):
            back = Filterbank.open(path)
            assert np.array_equal(back.read()[0], series)
            assert back.observation.dm == dm
    assert "4150.0" in (tmp_path / "out_DM10.000.inf").read_text()
    assert "4150.0" in Filterbank.open(tmp_path / "out_DM10.000.tim").observation.extra["rawdatafile"]
    with pytest.raises(ValueError, match="format='fits'"):
        result.write(tmp_path / "out", format="fits")


@pytest.mark.parametrize(
    ("ref_freq", "where"),
    [("bottom", "across the band"), ("infinity", "from ref_freq='infinity' to the bottom of the band"),
     (300.0, r"from the top of the band to ref_freq=300\.0")],
)  # fmt: skip
def test_a_delay_that_is_too_long_is_named(ref_freq, where):
    fb = Filterbank.from_array(np.zeros((2, 2000), np.uint8), fch1=1400, foff=-2, tsamp=1e-3)
    with pytest.raises(ValueError, match=rf"delay of DM 1e\+06 {where} is \d+ samples, but the data have only 2000"):
        dedisperse(fb, [1e6], ref_freq=ref_freq)


def test_progress_ends_at_its_total():
    fb = Filterbank.from_array(np.zeros((8, 2000), np.uint8), fch1=1400, foff=-2, tsamp=1e-3)
    seen = []
    dedisperse(fb, [0, 1, 2], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    with pytest.raises(TypeError, match="progress=3"):
        dedisperse(fb, [0], progress=3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dms": []}, ValueError, "at least one DM"),
        ({"dms": [[1, 2]]}, ValueError, "expected a list"),
        ({"dms": [1, np.nan]}, ValueError, "finite"),
        ({"dms": [-1.0]}, ValueError, "below 0"),
        ({"dms": "x"}, TypeError, "dms='x': expected real numbers"),
        ({"dms": [[1], [2, 3]]}, TypeError, "dms="),
        ({"dms": [1e5]}, ValueError, r"across the band is \d+ samples, but the data have only 2000"),
        ({"method": "fast"}, ValueError, "method='fast'"),
        ({"max_loss": 1.0}, ValueError, "max_loss=1.0"),
        ({"method": "subband", "width": float("nan")}, ValueError, "width=nan"),
        ({"downsamp": 0}, ValueError, "downsamp=0"),
        ({"downsamp": 129}, ValueError, "from 1 to 128"),
        ({"downsamp": 2.5}, ValueError, "downsamp=2.5"),
        ({"nsub": 99, "method": "subband"}, ValueError, "nsub=99"),
        ({"ref_freq": "left"}, ValueError, "ref_freq='left'"),
        ({"dm_constant": -1.0}, ValueError, "dm_constant=-1.0"),
        ({"device": "tpu"}, ValueError, "device='tpu'"),
        ({"device": "cuda:99"}, DeviceUnavailable, "GPU"),
        ({"memory": 1000}, MemoryBudgetError, "the delay of the highest DM"),
        ({"memory": "lots"}, ValueError, "memory='lots'"),
        ({"threads": 0}, ValueError, "threads=0"),
        ({"mask": Mask.channels(9, [1])}, ValueError, "mask has 9 channels"),
    ],
)
def test_bad_arguments(options, error, message):
    fb = Filterbank.from_array(np.zeros((8, 2000), np.uint8), fch1=1400, foff=-2, tsamp=1e-3)
    with pytest.raises(error, match=message):
        dedisperse(fb, **{"dms": [0.0, 1.0], **options})


@pytest.mark.slow
def test_memory_keeps_within_its_bound(tmp_path):
    """A sparse file of 100 MB in 40 MiB, the interpreter's own allocations included."""
    import tracemalloc

    from skysieve.dedispersion import search, write_fil

    path = tmp_path / "sparse.fil"
    write_fil(path, Filterbank.from_array(np.zeros((1024, 1), np.uint8), fch1=1500, foff=-0.1, tsamp=1e-3))
    with path.open("r+b") as file:
        file.truncate(100_000_000)
    with pytest.warns(UserWarning, match="part of a spectrum"):
        fb = Filterbank.open(path)
    with fb:
        search(fb, [0.0, 10.0], memory="60 MiB", threads=1)
        tracemalloc.start()
        found = search(fb, [0.0, 10.0], memory="40 MiB", threads=1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(found) == 0
    assert peak < 48 * 2**20


def test_sums_past_32_bits_are_refused():
    fb = Filterbank.from_array(np.zeros((1024, 300), np.uint16), fch1=1400, foff=-0.1, tsamp=1e-3)
    with pytest.raises(ValueError, match="exceed 32 bits"):
        dedisperse(fb, [0.0], downsamp=128)
    few = Filterbank.from_array(np.zeros((8, 9), np.uint8), fch1=1400, foff=-2, tsamp=1e-3)
    with pytest.raises(ValueError, match="downsamp=100: the data have only 9 samples"):
        dedisperse(few, [0.0], downsamp=100)
    with pytest.raises(TypeError, match="data is a ndarray"):
        dedisperse(np.zeros((4, 4)), [0.0])


def test_a_pulse_narrower_than_a_sample_is_a_sample_wide():
    """A narrower boxcar would contain no sample anywhere, and seem to have no loss."""
    fb = Filterbank.from_array(np.zeros((64, 4000), np.uint8), fch1=400, foff=-0.5, tsamp=1e-3)
    dms = np.arange(0, 20, 0.1)
    loss = [dedisperse(fb, dms, method="tree", width=w, threads=1).loss for w in (1e-9, 1e-3)]
    assert loss[0] == loss[1] > 0.1
    assert dedisperse(fb, dms, max_loss=0.01, width=1e-9, threads=1).loss <= 0.01
