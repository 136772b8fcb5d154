"""Measuring the costs of the GPU's methods: under load, implausible values, one set per process (no GPU needed)."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from skysieve.core.files import cache_folder
from skysieve.core.machine import measured as kept
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda import calibrate as cuda_calibrate
from skysieve.periodogram.cuda.calibrate import costs_of, measure, name_of, needed, plausible
from skysieve.periodogram.cuda.cost import DEFAULTS

SPEC = Spec(method="auto")
LAUNCH = 50e-6


def scaled(costs, factor):
    """Costs of a GPU that is slower by a factor in everything."""
    return replace(costs, **{key: factor * value for key, value in costs.as_dict().items()})


class FakeGpu:
    """A worker whose chunks take what ``costs`` says, and longer, or never the same, when others use the GPU."""

    def __init__(self, costs, busy=lambda run: 0.0, name="Fake H100"):
        self.costs, self.busy, self.runs, self.clock = costs, busy, 0, 0.0
        device = SimpleNamespace(name=name, sm_count=132, shared_per_block=232_448)
        self.runtime = SimpleNamespace(xp=np, device=device)

    def compile_ahead(self, wanted):
        assert {method.direct for method, _, _ in wanted} == {True, False}

    def begin(self, lane, job):
        points, nf = float(np.diff(job.offsets)[0]), float(job.nf[0])
        (part,) = job.parts
        base, point = part.method.line(self.costs, nf)
        self.runs += 1
        self.clock += (LAUNCH + 1e-9 * job.n_objects * (base + points * point)) * (1 + self.busy(self.runs))

    def forget(self, lane):
        lane.free()

    def perf_counter(self):
        return self.clock


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Return a function that makes a GPU; this process has not used any measured costs yet."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))

    def make(*args, **kwargs):
        monkeypatch.setattr(kept, "_used", {})
        made = FakeGpu(*args, **kwargs)
        monkeypatch.setattr(cuda_calibrate, "time", made)
        return made

    return make


def close(found, true, rel=0.01):
    """Compare measured with true costs; they differ a little, since the subtracted chunk is not quite empty."""
    return all(found.as_dict()[key] == pytest.approx(value, rel=rel) for key, value in true.as_dict().items())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_figures_are_found(gpu, dtype):
    for factor in (0.5, 1.0, 40.0):
        true = scaled(DEFAULTS[np.dtype(dtype)], factor)
        assert close(measure(gpu(true), Spec(method="auto", dtype=np.dtype(dtype))), true)


def test_others_on_the_gpu_do_not_change_them(gpu):
    """Four runs of five take up to 24 times as long: the least that several agree on counts."""
    rng = np.random.default_rng(2)
    true = DEFAULTS[SPEC.dtype]
    worker = gpu(true, busy=lambda run: 0.0 if run % 5 == 0 else 1 + 23 * rng.random())
    assert close(measure(worker, SPEC), true)


def test_a_gpu_that_is_never_free(gpu, caplog):
    """No two runs agree: the defaults are used, after some seconds at most."""
    rng = np.random.default_rng(2)
    worker = gpu(DEFAULTS[SPEC.dtype], busy=lambda run: np.exp(6 * rng.random()))
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert costs_of(worker, SPEC) == DEFAULTS[SPEC.dtype]
    assert "are implausible" in caplog.text
    assert worker.clock < 12


def test_figures_that_no_gpu_has(gpu, caplog):
    """Such figures are reported, this process uses the defaults, and nothing is stored for others."""
    wild = gpu(scaled(DEFAULTS[SPEC.dtype], 1e5))
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert costs_of(wild, SPEC) == DEFAULTS[SPEC.dtype]
    assert "are implausible" in caplog.text
    runs = wild.runs
    assert costs_of(wild, SPEC) == DEFAULTS[SPEC.dtype]
    assert wild.runs == runs
    assert not kept.path_of(name_of("Fake H100", SPEC)).exists()
    sane = gpu(scaled(DEFAULTS[SPEC.dtype], 2))
    assert close(costs_of(sane, SPEC), scaled(DEFAULTS[SPEC.dtype], 2))


@pytest.mark.parametrize("error", [MemoryError("170,000,000 bytes"), RuntimeError("cudaErrorMemoryAllocation")])
def test_a_gpu_without_room(gpu, monkeypatch, caplog, error):
    """The defaults are used, nothing is stored, and the lanes give their memory back."""
    full = gpu(DEFAULTS[SPEC.dtype])
    freed = []
    monkeypatch.setattr(full, "forget", freed.append)

    def begin(lane, job):
        raise error

    monkeypatch.setattr(full, "begin", begin)
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert costs_of(full, SPEC) == DEFAULTS[SPEC.dtype]
    assert "too little memory" in caplog.text
    assert len(freed) == 6
    assert not kept.path_of(name_of("Fake H100", SPEC)).exists()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_user_who_limits_memory(gpu, caplog, dtype):
    """Nothing is measured that takes more; what has been measured before is used all the same."""
    spec = Spec(method="auto", dtype=np.dtype(dtype))
    true = scaled(DEFAULTS[spec.dtype], 2)
    worker = gpu(true)
    need = needed(worker, spec)
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert costs_of(worker, spec, need - 1) == DEFAULTS[spec.dtype]
    assert "cannot be measured" in caplog.text
    assert worker.runs == 0
    assert not kept.path_of(name_of("Fake H100", spec)).exists()
    worker = gpu(true)
    assert close(costs_of(worker, spec, need), true)
    runs = worker.runs
    assert close(costs_of(worker, spec, 1), true)
    assert worker.runs == runs


def test_which_figures_are_plausible():
    defaults = DEFAULTS[SPEC.dtype]
    assert plausible(defaults, defaults)
    assert plausible(scaled(defaults, 150), defaults)
    assert not plausible(scaled(defaults, np.nan), defaults)
    for key in defaults.as_dict():
        for factor in (0.0, -1.0, 0.03, 31.0):
            changed = replace(defaults, **{key: factor * defaults.as_dict()[key]})
            assert not plausible(changed, defaults), (key, factor)


def test_engines_of_one_process_agree(gpu):
    """The second engine would measure other figures; it gets the first one's, each GPU name and dtype its own."""
    first = gpu(DEFAULTS[SPEC.dtype])
    found = costs_of(first, SPEC)
    first.costs = scaled(DEFAULTS[SPEC.dtype], 3)
    kept.path_of(name_of("Fake H100", SPEC)).unlink()
    assert costs_of(first, SPEC) == found
    single = Spec(method="auto", dtype=np.dtype(np.float32))
    first.costs = scaled(DEFAULTS[single.dtype], 2)
    assert close(costs_of(first, single), first.costs)
    first.runtime.device.name = "Another"
    assert close(costs_of(first, single), first.costs)
    assert len(list(cache_folder().iterdir())) == 2
