"""The polar correction in the cache folder: the same matrix, never a damaged one."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.sphere.grids import polar_correction as module


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "skysieve")
    module.polar_correction.cache_clear()
    yield tmp_path / "skysieve"
    module.polar_correction.cache_clear()


def found():
    module.polar_correction.cache_clear()
    return module.polar_correction(8).matrix


def test_the_next_process_reads_the_same_matrix(folder, monkeypatch):
    first = found()
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(module, "_matrix", lambda nside: pytest.fail("computed again"))
    second = found()
    assert second is not first
    np.testing.assert_array_equal(second, first)


@pytest.mark.parametrize("damage", [lambda b: b[:-8], lambda b: b"", lambda b: b[:-1] + bytes([b[-1] ^ 1])])
def test_a_damaged_file_is_computed_again(folder, damage):
    first = found()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    np.testing.assert_array_equal(found(), first)
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_made_is_no_error(folder):
    folder.write_text("a file")
    np.testing.assert_array_equal(found(), module._matrix(8))
