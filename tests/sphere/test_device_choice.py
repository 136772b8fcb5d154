"""Which device a plan takes, with simulated GPUs."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from skysieve.core.device import Device, resolve
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.sphere import ConvolvePlan, Gaussian, Healpix, api
from skysieve.sphere.cuda import engine as cuda
from skysieve.sphere.cuda import multi_gpu
from skysieve.sphere.maps import smoothing as smooth

GPU = Device("cuda", 0, "simulated", 2**30, (9, 0), 132, 2**17)
GPU2 = Device("cuda", 1, "simulated", 2**30, (9, 0), 132, 2**17)
BEAM = Gaussian(fwhm=0.3)


def pretend(monkeypatch, count):
    devices = {"cpu": resolve("cpu"), "auto": (GPU,), "cuda": (GPU,), "cuda:all": (GPU,) * count}
    monkeypatch.setattr(api, "resolve", lambda device: (device,) if isinstance(device, Device) else devices[device])


def full(*args, **options):
    raise MemoryBudgetError("the plan on the GPU", 2, 1)


def test_auto_logs_that_it_takes_the_cpu_if_a_gpu_lacks_memory(monkeypatch, caplog):
    pretend(monkeypatch, 1)
    monkeypatch.setattr(cuda, "Engine", full)
    with caplog.at_level(logging.INFO, "skysieve"), ConvolvePlan(BEAM, Healpix(4)) as plan:
        assert plan.device.kind == "cpu"
        found = plan.execute(np.full(plan.npix, 1e6) + np.arange(plan.npix) % 2)
    assert "device='auto' takes the CPU: the plan on the GPU" in caplog.text
    with ConvolvePlan(BEAM, Healpix(4), device="cpu") as plan:
        assert (plan.execute(np.full(plan.npix, 1e6) + np.arange(plan.npix) % 2) == found).all()
    for options in ({"device": "cuda"}, {"memory": "1 MB"}):
        with pytest.raises(MemoryBudgetError):
            ConvolvePlan(BEAM, Healpix(4), **options)


def test_harmonics_stay_on_the_cpu(monkeypatch):
    pretend(monkeypatch, 1)
    with pytest.raises(DeviceUnavailable, match="run only on the CPU"):
        ConvolvePlan(BEAM, Healpix(4), method="harmonic", device="cuda")


def test_several_gpus_share_a_plan(monkeypatch):
    pretend(monkeypatch, 2)

    class Taken(multi_gpu.MultiGpuEngine):
        def __init__(self, spec, method, devices, **options):
            self.devices, self.method = devices, method

        def close(self):
            pass

    monkeypatch.setattr(multi_gpu, "MultiGpuEngine", Taken)
    for given, expected in (("cuda:all", (GPU, GPU)), ([GPU, GPU2, GPU], (GPU, GPU2)), ((GPU2, GPU), (GPU2, GPU))):
        with ConvolvePlan(BEAM, Healpix(4), device=given) as plan:
            assert plan._engine.devices == expected
            assert plan.device == expected[0]


@pytest.mark.parametrize("devices", [[], ["cpu"], ["cuda", "cpu"]])
def test_a_list_of_devices_holds_gpus(monkeypatch, devices):
    pretend(monkeypatch, 1)
    with pytest.raises(ValueError, match="expected GPUs, such as"):
        ConvolvePlan(BEAM, Healpix(4), device=devices)


@pytest.mark.parametrize("given", ["cuda:all", [GPU, GPU2]])
def test_several_gpus_share_maps(monkeypatch, given):
    """Maps in host memory are not copied to one GPU first."""
    devices = {"cuda:all": (GPU, GPU2)}
    for module in (api, smooth):
        monkeypatch.setattr(module, "resolve", lambda d: devices[d] if isinstance(d, str) else (d,))
    monkeypatch.setattr(smooth, "_to_device", lambda *_: pytest.fail("the maps went to one GPU"))
    asked = []

    class Asked(Exception):
        pass

    def make(spec, method, devices, **options):
        asked.append(devices)
        raise Asked

    monkeypatch.setattr(multi_gpu, "MultiGpuEngine", make)
    with pytest.raises(Asked):
        smooth.smoothing(np.ones(12 * 8**2), fwhm=0.3, device=given)
    assert asked == [(GPU, GPU2)]


def test_auto_takes_the_cpu_for_small_maps(monkeypatch):
    chosen = []

    def borrowed(kernel, grid, **options):
        chosen.append(options["device"])
        raise RuntimeError("no plan")

    monkeypatch.setattr(smooth, "resolve", lambda device: resolve("cpu") if device == "cpu" else (GPU,))
    monkeypatch.setattr(smooth, "borrowed_plan", borrowed)
    monkeypatch.setattr(smooth, "SMALL_PIXELS", 12 * 16**2)
    for maps, options in (
        (np.ones(12 * 8**2), {}), (np.ones(12 * 8**2), {"device": "cuda"}), (np.ones(12 * 16**2), {}),
        (np.ones((3, 12 * 8**2)), {}), (np.ones((4, 12 * 8**2)), {"pol": False}),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="no plan"):
            smooth.smoothing(maps, fwhm=0.3, **options)
    assert chosen == ["cpu", "cuda", "auto", "cpu", "auto"]
