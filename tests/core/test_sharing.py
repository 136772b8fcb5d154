"""The number of GPUs to use: the smallest with nearly the speed of all of them."""

import pytest

from skysieve.core.gpu import sharing as module
from skysieve.core.gpu.sharing import sharing
from skysieve.core.machine.measured import figures

RATE = 1e10


@pytest.mark.parametrize(
    ("seconds", "nbytes", "gpus", "limit"),
    [
        (0.05, 1e9, 1, "host copies"),  # one GPU is faster than the host
        (0.1, 1e9, 1, "host copies"),
        (0.16, 1e9, 2, "host copies"),
        (0.31, 1e9, 3, "host copies"),
        (10.0, 1e9, 8, "GPUs"),
        (1.0, 0.0, 8, "GPUs"),
        (0.0, 1e9, 1, "host copies"),
    ],
)
def test_the_fewest_that_are_nearly_as_fast(seconds, nbytes, gpus, limit):
    found = sharing(8, seconds, nbytes, RATE)
    assert (found.gpus, found.limit) == (gpus, limit)


def test_the_bus_of_one_gpu_can_be_the_limit():
    """A host that copies faster than one bus feeds several GPUs."""
    assert sharing(4, 0.0, 1e9, 1e12).gpus == 4
    assert sharing(4, 0.0, 1e9, 2 * module.LINK).gpus == 2


def test_no_choice_is_more_than_a_tenth_slower_than_all():
    for seconds in (1e-4, 0.01, 0.07, 0.5, 3.0):
        for nbytes in (0.0, 1e7, 1e9, 2e10):
            used = sharing(8, seconds, nbytes, RATE).gpus
            times = [max(seconds / k, nbytes / (k * module.LINK), nbytes / RATE) for k in (used, 8)]
            assert times[0] <= module.GAIN * times[1]
            fewer = max(seconds / max(1, used - 1), nbytes / (max(1, used - 1) * module.LINK), nbytes / RATE)
            assert used == 1 or fewer > module.GAIN * times[1]


def test_the_rate_is_measured_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "figures", figures)
    monkeypatch.setattr(module, "processor", lambda: f"made up {tmp_path.name}")
    monkeypatch.setattr(module, "IDLE", 0.0)  # the tests may keep other cores busy
    monkeypatch.setattr(module, "MEASURED", 2**22)
    found = module.copy_rate()
    assert found > 1e7
    monkeypatch.setattr(module, "MEASURED", 0)
    assert module.copy_rate() == found
    assert len(list(tmp_path.glob("host-copies-*.json"))) == 1


def test_nothing_is_stored_while_others_are_busy(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "figures", figures)
    monkeypatch.setattr(module, "processor", lambda: f"busy {tmp_path.name}")
    monkeypatch.setattr(module, "IDLE", 100.0)
    monkeypatch.setattr(module, "MEASURED", 2**20)
    assert module.copy_rate() == module.USUAL
    assert list(tmp_path.glob("*.json")) == []
