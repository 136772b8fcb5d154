"""The device that a request selects, and the reasons why a GPU cannot be used: four cases, with a fake CuPy."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import pickle
import sys
import threading
import types

import pytest

from skysieve.core import device
from skysieve.core.device import Device, cuda_problem, driver_version, resolve
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError, SkysieveError


def fake_cupy(monkeypatch, built=13000, gpus=2):
    """The part of a CuPy with ``gpus`` GPUs that `resolve` uses."""

    class Card:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            return None

    properties = {"name": b"Card", "totalGlobalMem": 80 << 30, "major": 9, "minor": 0}
    properties |= {"multiProcessorCount": 132, "sharedMemPerBlockOptin": 232448}
    runtime = types.SimpleNamespace(
        runtimeGetVersion=lambda: built,
        getDeviceCount=lambda: gpus,
        getDeviceProperties=lambda i: properties,
        deviceGetAttribute=lambda attribute, i: {87: 64}[attribute],
        memGetInfo=lambda: (70 << 30, 80 << 30),
    )
    module = types.ModuleType("cupy")
    module.cuda = types.SimpleNamespace(runtime=runtime, Device=Card)
    module.get_default_memory_pool = lambda: types.SimpleNamespace(free_bytes=lambda: 1 << 30)
    module.__spec__ = importlib.util.spec_from_loader("cupy", None)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture(autouse=True)
def fresh():
    device._log_fallback.cache_clear()
    device._cuda.cache_clear()
    device._gpus.cache_clear()
    yield
    device._cuda.cache_clear()
    device._gpus.cache_clear()


@pytest.fixture
def driver(monkeypatch):
    """Set what the driver answers: ``driver(version, gpus)``; it makes no context."""

    def answers(version, gpus):
        found = types.SimpleNamespace(cuDeviceGet=lambda number, index: 101)
        monkeypatch.setattr(device, "_load_driver", lambda: found)
        monkeypatch.setattr(device, "_ask_driver", lambda: (version, gpus))

    return answers


def test_the_cpu():
    (cpu,) = resolve("cpu")
    assert (cpu.kind, cpu.index, cpu.compute_capability, cpu.shared_per_block) == ("cpu", 0, (0, 0), 0)
    assert cpu.free_memory > 0
    assert cpu.sm_count >= 1
    assert resolve(cpu) == (cpu,)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "", 0, None])
def test_requests_that_cannot_be_read(name):
    with pytest.raises(ValueError, match=r"device=.*expected 'auto', 'cpu'"):
        resolve(name)


def test_gpus(monkeypatch, driver):
    driver(13000, 2)
    fake_cupy(monkeypatch)
    assert [d.index for d in resolve("cuda:all")] == [0, 1]
    assert resolve("auto") == resolve("cuda") == resolve("cuda:0")
    (card,) = resolve("cuda:1")
    assert (card.name, card.compute_capability, card.sm_count, card.shared_per_block) == ("Card", (9, 0), 132, 232448)
    assert card.free_memory == 71 << 30
    assert (card.double_ratio, card.fast_doubles) == (64, False)
    assert str(card) == "cuda:1 (Card)"
    assert driver_version() == "13.0"
    with pytest.raises(DeviceUnavailable, match=r"'cuda:2': no such GPU. 2 found: cuda:0 to cuda:1"):
        resolve("cuda:2")


def test_names_are_checked_without_cupy(monkeypatch, driver):
    """The GPU that the driver does not have, and a missing driver or package; `resolve` finds what else is wrong."""
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    found = types.SimpleNamespace()
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: found)
    driver(13000, 2)
    for name in ("auto", "cpu", "cuda", "cuda:1", "cuda:all"):
        device.check_name(name)
    with pytest.raises(DeviceUnavailable, match=r"'cuda:2': no such GPU. 2 found: cuda:0 to cuda:1"):
        device.check_name("cuda:2")
    with pytest.raises(ValueError, match=r"device='gpu': expected 'auto'"):
        device.check_name("gpu")
    found = None
    device.check_name("auto")
    with pytest.raises(DeviceUnavailable, match="CuPy is not installed"):
        device.check_name("cuda")
    driver(None, 0)
    monkeypatch.setattr(device, "_load_driver", lambda: None)
    with pytest.raises(DeviceUnavailable, match="libcuda is missing"):
        device.check_name("cuda:all")


def test_no_driver(driver):
    driver(None, 0)
    with pytest.raises(DeviceUnavailable, match="libcuda is missing"):
        resolve("cuda")
    assert driver_version() is None


def test_no_gpu(driver):
    driver(12080, 0)
    with pytest.raises(DeviceUnavailable, match="finds no GPU"):
        resolve("cuda:all")


@pytest.mark.parametrize(("version", "extra"), [(13000, "cuda13"), (13020, "cuda13"), (12040, "cuda12")])
def test_no_cupy(monkeypatch, driver, version, extra):
    driver(version, 1)
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeviceUnavailable, match=rf"CuPy is not installed. pip install 'skysieve\[{extra}\]'"):
        resolve("cuda")


def test_a_cupy_that_does_not_load(monkeypatch, driver):
    driver(13000, 1)
    module = fake_cupy(monkeypatch)

    def broken():
        raise ImportError("libcudart.so.13: cannot open shared object file")

    module.cuda.runtime.runtimeGetVersion = broken
    with pytest.raises(DeviceUnavailable, match=r"CuPy cannot be loaded: libcudart.so.13"):
        resolve("cuda")


def test_a_driver_too_old(monkeypatch, driver):
    driver(12040, 1)
    fake_cupy(monkeypatch, built=13000)
    with pytest.raises(DeviceUnavailable, match=r"supports CUDA 12.4, the installed CuPy needs 13.0") as caught:
        resolve("cuda")
    assert "skysieve[cuda12]" in caught.value.remedy
    driver(13000, 1)
    fake_cupy(monkeypatch, built=13020)  # minor versions of CUDA are compatible
    assert cuda_problem() is None


def test_auto_falls_back_and_says_so_once(driver, caplog):
    driver(None, 0)
    with caplog.at_level(logging.INFO, logger="skysieve"):
        assert resolve("auto") == resolve("cpu")
        assert resolve("auto") == resolve("cpu")
    assert [r.message for r in caplog.records] == [
        f"device='auto' takes the CPU: {DeviceUnavailable('no CUDA driver was found (libcuda is missing)')}. "
        "Install the driver of your NVIDIA GPU, or use device='cpu'"
    ]


def test_errors_travel_between_processes():
    for error in (DeviceUnavailable("no GPU", "buy one"), MemoryBudgetError("a map", 10, 5)):
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), vars(copy)) == (str(error), vars(error))
        assert isinstance(copy, SkysieveError)
    assert isinstance(DeviceUnavailable("x"), RuntimeError)


def test_the_driver_of_this_machine_can_be_queried():
    version, gpus = device._ask_driver()
    assert version is None or version >= 11000
    assert gpus >= 0


def test_a_device_is_a_value():
    assert Device("cuda", 0, "a", 1) == Device("cuda", 0, "a", 1)
    with pytest.raises(AttributeError):
        Device("cuda", 0, "a", 1).name = "b"


@pytest.mark.gpu
def test_the_ratio_of_known_gpus():
    for card in resolve("cuda:all"):
        if card.compute_capability in ((7, 0), (8, 0), (9, 0), (10, 0)):
            assert card.fast_doubles
        elif card.compute_capability in ((7, 5), (8, 6), (8, 9), (12, 0)):
            assert not card.fast_doubles


@pytest.mark.parametrize(
    ("gpus", "request_", "touched"), [(2, "cuda:all", 2), (2, "auto", 1), (0, "auto", 0), (2, "cuda:7", 0)]
)
def test_contexts_are_made_ahead(monkeypatch, driver, gpus, request_, touched):
    driver(13000, gpus)
    found = [Device("cuda", i, "GPU", 2**30) for i in range(gpus)]

    def resolved(name):
        if name == "cuda:7":
            raise DeviceUnavailable("no such GPU", "2 found")
        return found if name == "cuda:all" else found[:1]

    calls = []
    monkeypatch.setattr(device, "resolve", resolved)
    monkeypatch.setattr(device, "current", lambda each: contextlib.nullcontext())
    monkeypatch.setattr(device, "_touch_device", lambda: calls.append(1))
    imported = []
    monkeypatch.setattr(device.importlib, "import_module", imported.append)
    thread = device.begin(request_, "a.module")
    thread.join()
    assert len(calls) == touched
    assert imported == (["a.module"] if touched else [])
    assert device.begin("cpu") is None


def test_without_a_driver_nothing_is_made_ahead(monkeypatch):
    monkeypatch.setattr(device, "_load_driver", lambda: None)
    assert device.begin("auto") is None
    assert device.begin("cuda:all") is None


def test_a_context_that_cannot_be_made_ahead_raises_nothing_in_the_thread(monkeypatch, driver):
    """`resolve`, or the search, reports the GPU; a traceback of a thread would only confuse."""
    driver(13000, 1)
    monkeypatch.setattr(device, "resolve", lambda name: [Device("cuda", 0, "GPU", 2**30)])
    monkeypatch.setattr(device, "current", lambda each: contextlib.nullcontext())
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def full():
        raise RuntimeError("cudaErrorMemoryAllocation: out of memory")

    monkeypatch.setattr(device, "_touch_device", full)
    device.begin("auto").join()
    assert raised == []


@pytest.mark.parametrize(("request_", "made"), [("cuda:all", [0, 1]), ("cuda:1", [1]), ("auto", [0]), ("gpu", [])])
def test_the_driver_makes_contexts_before_modules_are_loaded(monkeypatch, driver, request_, made):
    driver(13000, 2)
    contexts, loaded = [], []

    class Driver:
        def cuDeviceGet(self, number, index):
            number._obj.value = index
            return 0

        def cuDevicePrimaryCtxRetain(self, context, number):
            contexts.append(number.value)
            return 0

    def resolved(name):
        loaded.append([len(contexts), *(module in sys.modules for module in ("colorsys", "chunk_of_nothing"))])
        raise DeviceUnavailable("no GPU", "none")

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(device, "_load_driver", Driver)
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(device, "resolve", resolved)
    device.begin(request_, "chunk_of_nothing", before=["colorsys"]).join()
    assert contexts == made
    assert loaded == [[len(made), True, False]]
