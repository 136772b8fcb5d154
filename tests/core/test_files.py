"""Output files, which must be complete or not exist at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from skysieve.core.command import check_output
from skysieve.core.files import (
    expand,
    hdf5_file,
    new_outputs,
    parquet_rows,
    remove_leftovers,
    save_figure,
    unused,
    write_parquet,
    written,
)
from skysieve.core.parts import PartsFolder


def test_a_file_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with written(target) as part:
        part.write_text("new")
        assert (target.read_text(), part.suffix) == ("old", ".txt")
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask


def test_a_file_that_another_process_wrote_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "a.txt"
    new_outputs.add(target)
    with written(target) as part:
        part.write_text("mine")
    with written(target) as part:  # once it is this process's own, it may be written again
        part.write_text("mine again")
    assert target.read_text() == "mine again"
    (tmp_path / "b-2.txt").write_text("older")
    new_outputs.add(tmp_path / "b.txt")

    def write():
        with written(tmp_path / "b.txt") as part:
            (tmp_path / "b.txt").write_text("theirs")
            part.write_text("mine")

    with pytest.raises(FileExistsError, match=r"written it meanwhile; this result is in b-3\.txt") as conflict:
        write()
    new_outputs.clear()
    assert conflict.value.filename == str(tmp_path / "b.txt")
    assert [(tmp_path / name).read_text() for name in ("b.txt", "b-2.txt", "b-3.txt")] == ["theirs", "older", "mine"]
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("links", [True, False])
def test_a_name_that_is_taken_in_the_last_moment_is_not_replaced(tmp_path, monkeypatch, links):
    link = os.link

    def late(part, target):
        if not target.name.endswith("-3.txt"):
            target.write_text("theirs")
        if not links:
            raise PermissionError(errno.EPERM, "this file system has no links")
        link(part, target)

    monkeypatch.setattr(os, "link", late)
    new_outputs.add(tmp_path / "a.txt")
    with (
        pytest.raises(FileExistsError, match=r"this result is in a-3\.txt"),
        written(tmp_path / "a.txt") as part,
    ):
        part.write_text("mine")
    new_outputs.clear()
    assert [(tmp_path / name).read_text() for name in ("a.txt", "a-2.txt", "a-3.txt")] == ["theirs", "theirs", "mine"]
    assert len(os.listdir(tmp_path)) == 3


def test_an_unused_name_is_not_replaced_if_it_is_used_meanwhile(tmp_path):
    path = unused(tmp_path / "a.txt")
    path.write_text("theirs")
    with pytest.raises(FileExistsError, match=r"this result is in a-2\.txt"), written(path) as part:
        part.write_text("mine")
    new_outputs.clear()
    assert path.read_text() == "theirs"


def test_parts_without_the_options_of_their_run_do_not_stay(tmp_path, monkeypatch):
    """A process may be killed while it removes them; another run must not continue from them."""
    removed = []
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **k: (removed.append(path.name), unlink(path, **k))[1])
    folder = PartsFolder(tmp_path / "a.npz", {"options": 1})
    for number in range(3):
        (folder.folder / f"{number:05}.npz").write_text("a part")
    removed.clear()
    folder.remove()
    assert [name for name in removed if not name.startswith(".")][3:] == ["run.json", "lock"]
    assert os.listdir(tmp_path) == []


def test_an_output_may_be_a_link_to_a_file_that_does_not_exist(tmp_path):
    target = tmp_path / "a.txt"
    target.symlink_to(tmp_path / "nowhere.txt")
    check_output(target, False)
    with written(target) as part:
        part.write_text("mine")
    new_outputs.clear()
    assert target.read_text() == "mine"


@pytest.mark.parametrize("named", [True, False])
def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path, named):
    def fill(part):
        part.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", *([str(part)] if named else []))

    target = tmp_path / "a.txt"
    with pytest.raises(OSError, match="No space left on device") as full, written(target) as part:
        fill(part)
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, str(target))
    assert os.listdir(tmp_path) == []


def test_an_error_of_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError) as missing, written(tmp_path / "a.txt"):
        (tmp_path / "input").read_text()
    assert str(missing.value.filename) == str(tmp_path / "input")


def test_paths_that_cannot_be_files(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"), written(tmp_path / "folder"):
        pass
    with pytest.raises(FileNotFoundError, match="nowhere"), written(tmp_path / "nowhere" / "a.txt"):
        pass


def test_files_named_in_several_ways_keep_their_order(tmp_path):
    for name in ("a.x", "b.x", "c.x"):
        (tmp_path / name).touch()
    (tmp_path / "folder.x").mkdir()
    b, a = tmp_path / "b.x", tmp_path / ".." / tmp_path.name / "a.x"
    assert expand([b, a, tmp_path, b], {".x"}) == [b, a, tmp_path / "c.x"]


def test_devices_and_pipes_are_not_replaced(tmp_path):
    """As root, ``-o /dev/null --overwrite`` made an ordinary file of the device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.csv").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "link.csv"):
        with pytest.raises(OSError, match="is a device or a pipe"), written(path) as part:
            part.write_text("x")
        with pytest.raises(OSError, match="is a device or a pipe, expected the name of a file, or - for standard"):
            check_output(path, overwrite=True)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link.csv").is_symlink()


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    with written(tmp_path / "a.txt") as part:
        part.write_text("x")
        (tmp_path / "kept").write_text("")
        remove_leftovers(tmp_path)
        assert part.exists()  # a minute old at least
        os.utime(part, (0, 0))
        remove_leftovers(tmp_path)
        assert not part.exists()
        part.write_text("x")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "kept"]


def test_a_figure(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(2, 1))
    save_figure(figure, tmp_path / "a.png", dpi=50)
    figure.savefig(tmp_path / "b.png", dpi=50)
    save_figure(figure, tmp_path / "c.png")
    figure.savefig(tmp_path / "d.png")
    a, b, c, d = ((tmp_path / f"{name}.png").read_bytes() for name in "abcd")
    assert a == b
    assert c == d


def test_a_parquet_table(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"id": np.array(["a", "bc"]), "x": np.array([1.5, np.nan]), "n": np.array([1, 2], np.int32)}
    write_parquet(columns, tmp_path / "a.parquet", units={"x": "d"}, facts={"source": "a star"})
    table = parquet.read_table(tmp_path / "a.parquet")
    assert [str(t) for t in table.schema.types] == ["string", "double", "int32"]
    assert table.column("id").to_pylist() == ["a", "bc"]
    np.testing.assert_array_equal(table.column("x").to_numpy(), columns["x"])
    assert [table.field(name).metadata for name in columns] == [None, {b"unit": b"d"}, None]
    assert table.schema.metadata[b"source"] == b"a star"


def test_astropy_reads_the_units_of_a_parquet_table(tmp_path):
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    from astropy.table import Table

    units = {"x": "d", "dm": "pc / cm3"}
    parts = [{"n": np.arange(k), "x": np.ones(k), "dm": np.zeros(k)} for k in (2, 3)]
    write_parquet(parts[0], tmp_path / "whole.parquet", units=units)
    with parquet_rows(tmp_path / "rows.parquet") as add:
        for part in parts:
            add(part, units)
    for name, rows in (("whole", 2), ("rows", 5)):
        table = Table.read(tmp_path / f"{name}.parquet")
        assert len(table) == rows
        assert [str(table[one].unit) for one in table.colnames] == ["None", "d", "pc / cm3"]


def test_a_parquet_table_without_units_has_no_further_metadata(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet({"n": np.arange(2)}, tmp_path / "a.parquet")
    assert parquet.read_schema(tmp_path / "a.parquet").metadata is None


def test_a_parquet_table_without_rows_is_an_error(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="no rows were added"), parquet_rows(tmp_path / "a.parquet"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_hdf5_file_on_a_full_disk_is_an_error(tmp_path):
    """The HDF5 library ends the process when it closes a file that could not be written."""
    h5py, resource = pytest.importorskip("h5py"), pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with (
            pytest.raises(OSError, match="File too large"),
            written(tmp_path / "a.h5") as part,
            hdf5_file(part) as file,
        ):
            file["x"] = np.zeros(1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    with written(tmp_path / "a.h5") as part, hdf5_file(part) as file:
        file["x"] = np.arange(3)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["x"][:].tolist() == [0, 1, 2]
