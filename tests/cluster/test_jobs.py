"""Jobs in one process: folders, resume, locks, errors of arguments and of partitions."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.cluster.toy import TOY

from skysieve import cluster
from skysieve.cluster import Resources, task
from skysieve.cluster.command import launch
from skysieve.cluster.description import OutputError, folder_of
from skysieve.cluster.folder import RunFolder, store
from skysieve.cluster.launchers import launcher
from skysieve.core.command import Messages
from skysieve.core.errors import DeviceLost, DeviceUnavailable
from skysieve.core.files import new_outputs
from skysieve.core.parts import InUse

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def toy(path, **options):
    return cluster.job(TOY, path, **({"n": 6} | options))


def test_the_table_holds_all_rows_in_order_with_units(tmp_path):
    done = cluster.run(toy(tmp_path / "a.parquet", rows=5, faults=[2]))
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["x"].to_pylist() == list(range(30))
    assert table.schema.field("y").metadata == {b"unit": b"d"}
    assert b'"unit": "d"' in table.schema.metadata[b"table_meta_yaml"]  # for astropy
    assert (done.rows, done.counts) == (30, {"things": 30, "in pairs": 6})
    assert (done.faults, done.failed) == (["row 2: bad"], {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_an_output_without_an_ending_is_a_folder_of_partitions(tmp_path):
    cluster.run(toy(tmp_path / "a"))
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["manifest.json", *(f"part-{k:06d}.parquet" for k in range(6))]
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert (manifest["state"], manifest["rows"], manifest["failed"]) == ("finished", 18, {})
    assert pq.read_table(tmp_path / "a" / "part-000001.parquet")["x"].to_pylist() == [3, 4, 5]


def test_a_failed_partition_is_reported_and_resume_computes_it_alone(tmp_path):
    first = cluster.run(toy(tmp_path / "a.parquet", bad=[1, 4]))
    assert first.failed == {1: "partition 1 is bad", 4: "partition 4 is bad"}
    assert pq.read_table(tmp_path / "a.parquet")["x"].to_pylist() == [0, 1, 2, 6, 7, 8, 9, 10, 11, 15, 16, 17]
    parts = tmp_path / "a.parquet.parts"
    assert json.loads((parts / "manifest.json").read_text())["state"] == "failed"
    assert json.loads((parts / "part-000004.failed.json").read_text()) == {"error": "partition 4 is bad"}
    notes = []
    again = cluster.run(toy(tmp_path / "a.parquet", bad=[1, 4]), resume=True, note=notes.append)
    assert again.before == 4
    assert notes == ["4 of 6 partitions were done before"]
    assert again.rows == 12


def test_resume_computes_what_is_missing_or_damaged_and_gives_the_same_table(tmp_path):
    cluster.run(toy(tmp_path / "one"))
    whole = cluster.run(toy(tmp_path / "a"))
    paths = sorted((tmp_path / "a").glob("part-*"))
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-9])
    paths[2].write_bytes(b"")
    again = cluster.run(toy(tmp_path / "a"), resume=True)
    assert (again.before, again.rows) == (3, whole.rows)
    for path in paths:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()


def test_damage_of_pages_is_found_when_the_table_is_written(tmp_path):
    job = toy(tmp_path / "a.parquet", bad=[5], rows=2000)
    cluster.run(job)
    path = tmp_path / "a.parquet.parts" / "part-000002.parquet"
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"part-000002.parquet is damaged .*--resume computes it again"):
        cluster.run(job, resume=True)
    assert cluster.run(job, resume=True).before == 4


def test_another_run_is_not_continued_or_overwritten_by_chance(tmp_path):
    cluster.run(toy(tmp_path / "a"))
    with pytest.raises(FileExistsError, match="use --resume to continue it, or --overwrite"):
        cluster.run(toy(tmp_path / "a"))
    with pytest.raises(ValueError, match="partitions of a run with other rows; repeat that run's command"):
        cluster.run(toy(tmp_path / "a", rows=4), resume=True)
    assert cluster.run(toy(tmp_path / "a", rows=4, n=2), overwrite=True).rows == 8
    assert len(list((tmp_path / "a").glob("part-*"))) == 2


@pytest.mark.parametrize("facts", [None, {"skysieve": "1"}, {"pandas": "{}"}])
def test_files_of_other_programs_are_not_taken_for_partitions(facts, tmp_path):
    folder = tmp_path / "survey"
    folder.mkdir()
    for name in ("part-000000.parquet", "part-00001-4c6e.snappy.parquet"):
        pq.write_table(pa.table({"x": [1]}).replace_schema_metadata(facts), folder / name)
    for how in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(FileExistsError, match=r"survey holds files of another program \(part-000000\.parquet\)"):
            cluster.run(toy(folder), **how)
    assert sorted(path.name for path in folder.iterdir()) == ["part-000000.parquet", "part-00001-4c6e.snappy.parquet"]


def test_a_file_without_metadata_is_no_partition(tmp_path):
    cluster.run(toy(tmp_path / "a", bad=[2]))
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a" / "part-000002.parquet")
    found = RunFolder(toy(tmp_path / "a", bad=[2]), resume=True)
    assert found.outcome()[1] == [2]
    found.close()


def test_a_worker_whose_launcher_was_killed_does_not_change_the_next_run(tmp_path):
    old, new = toy(tmp_path / "a.parquet", n=3), toy(tmp_path / "a.parquet", n=3, rows=5)
    first = RunFolder(old)
    _, work = task._prepared(str(first.folder), old.key, Resources())
    task._check_owner(first.folder, old)
    first.close()
    held = RunFolder(new, overwrite=True)
    with pytest.raises(ValueError, match="the folder now holds another job"):
        task._compute(held.folder, 1, old, work)  # as if its work had ended now
    outcome, missing = held.outcome()
    for number in missing:
        outcome.enter(task.compute(str(held.folder), new.key, number, Resources()))
    store(held.folder, 1, old.key_of(1), work.compute(1))
    with pytest.raises(ValueError, match=r"part-000001\.parquet was replaced by a worker of another run; --resume"):
        held.finish(outcome)
    held.close()
    assert not (tmp_path / "a.parquet").exists()
    assert cluster.run(new, resume=True).before == 2
    assert pq.read_table(tmp_path / "a.parquet")["x"].to_pylist() == list(range(15))


def test_a_run_that_has_finished_nothing_replaces_no_table(tmp_path):
    RunFolder(toy(tmp_path / "a.parquet")).close()
    new_outputs.clear()  # as at the end of a command
    (tmp_path / "a.parquet").write_text("another table")
    with pytest.raises(FileExistsError, match=r"a\.parquet: exists; use --overwrite"):
        cluster.run(toy(tmp_path / "a.parquet", rows=4), resume=True)
    assert (tmp_path / "a.parquet").read_text() == "another table"
    assert cluster.run(toy(tmp_path / "a.parquet"), resume=True, overwrite=True).rows == 18


def test_a_run_that_continues_replaces_its_own_table_only(tmp_path):
    out = tmp_path / "a.parquet"
    cluster.run(toy(out, bad=[1]))
    assert cluster.run(toy(out, bad=[1]), resume=True).before == 5
    out.write_text("another table")
    with pytest.raises(FileExistsError, match=r"a\.parquet: exists; use --overwrite"):
        cluster.run(toy(out, bad=[1]), resume=True)
    assert out.read_text() == "another table"
    assert cluster.run(toy(out, bad=[1]), resume=True, overwrite=True).rows == 15


@pytest.mark.parametrize("name", ["part-000003.parquet", "manifest.json"])
def test_a_run_that_was_killed_while_it_removed_its_partitions_is_ended(name, tmp_path, monkeypatch):
    out, unlink = tmp_path / "a.parquet", Path.unlink

    def stop(path, **more):
        if path.name == name:
            raise KeyboardInterrupt
        unlink(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop)
        with pytest.raises(KeyboardInterrupt):
            cluster.run(toy(out))
    table = out.read_bytes()
    left = tmp_path / ".a-0123abcd.parquet"
    left.touch()
    os.utime(left, (0, 0))
    assert cluster.run(toy(out), resume=True).rows == 18
    assert out.read_bytes() == table
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_unfinished_files_of_a_killed_launcher_do_not_stay(tmp_path):
    held = RunFolder(toy(tmp_path / "a.parquet"))
    held.close()
    for name in (".manifest-0123abcd.json", ".part-000001-0123abcd.parquet", ".slurm-tasks-0123abcd.sh"):
        (held.folder / name).touch()
    cluster.run(toy(tmp_path / "a.parquet"), resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_a_finished_table_is_not_overwritten_by_chance(tmp_path):
    cluster.run(toy(tmp_path / "a.parquet"))
    for resume in (False, True):
        with pytest.raises(FileExistsError, match=r"a\.parquet: exists; use --overwrite"):
            cluster.run(toy(tmp_path / "a.parquet"), resume=resume)
    assert cluster.run(toy(tmp_path / "a.parquet", n=2), overwrite=True).rows == 6
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        cluster.run(toy(tmp_path / "none" / "a.parquet"))


def test_the_device_of_the_first_run_is_that_of_later_ones(tmp_path, monkeypatch):
    cluster.run(toy(tmp_path / "a"))
    recorded = json.loads((tmp_path / "a" / "manifest.json").read_text())["job"]["device"]
    assert recorded in ("cpu", "cuda")
    monkeypatch.setattr("skysieve.cluster.launchers._kind_of_device", lambda: "other")
    cluster.run(toy(tmp_path / "a"), resume=True)
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["job"]["device"] == recorded
    monkeypatch.setattr("skysieve.cluster.launchers._check_device", lambda device, dask: None)
    with pytest.raises(ValueError, match="partitions of a run with other "):
        cluster.run(toy(tmp_path / "a", device="cuda:1"), resume=True)


def test_a_run_does_not_continue_on_another_kind_of_device(tmp_path, monkeypatch):
    monkeypatch.setattr("skysieve.cluster.launchers._kind_of_device", lambda: "cpu")
    cluster.run(toy(tmp_path / "a", bad=[2]))
    manifest = tmp_path / "a" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"device": "cpu"', '"device": "cuda:99"'))
    with pytest.raises(DeviceUnavailable):
        cluster.run(toy(tmp_path / "a", bad=[2]), resume=True)


def test_a_run_that_has_finished_nothing_is_begun_anew(tmp_path):
    assert cluster.run(toy(tmp_path / "a", bad=list(range(6)))).tables == 0
    assert cluster.run(toy(tmp_path / "a")).rows == 18


def test_two_launchers_do_not_share_a_folder(tmp_path):
    held = RunFolder(toy(tmp_path / "a.parquet"))
    with pytest.raises(InUse, match=r"a\.parquet\.parts is in use by process \d+"):
        cluster.run(toy(tmp_path / "a.parquet"))
    held.close()
    assert cluster.run(toy(tmp_path / "a.parquet"), resume=True).rows == 18


def test_a_full_disk_ends_the_run_and_resume_continues(tmp_path):
    with pytest.raises(OutputError, match="No space left on device"):
        cluster.run(toy(tmp_path / "a.parquet", full=[3]))
    parts = tmp_path / "a.parquet.parts"
    assert len(list(parts.glob("part-*.parquet"))) == 3
    assert not (tmp_path / "a.parquet").exists()


def test_files_that_cannot_grow_end_the_run_and_resume_gives_the_same_table(tmp_path):
    """A limit of the system in place of a disk: the file of a partition, and then that of the table, end early."""
    resource = pytest.importorskip("resource")
    cluster.run(toy(tmp_path / "one.parquet", rows=3000))
    options = {"n": 6, "rows": 3000}
    whole, part = (tmp_path / "one.parquet").stat().st_size, 20_000
    assert 3 * part < whole
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit, done in ((part, 0), (whole // 2, 6)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OutputError, match=r"File too large.*a\.parquet"):
                cluster.run(toy(tmp_path / "a.parquet", **options), resume=done > 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        parts = tmp_path / "a.parquet.parts"
        assert len(list(parts.glob("part-*.parquet"))) == done
        assert not (tmp_path / "a.parquet").exists()
    cluster.run(toy(tmp_path / "a.parquet", **options), resume=True)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "one.parquet"]


def test_partitions_at_the_same_time_give_the_same_table(tmp_path):
    cluster.run(toy(tmp_path / "one.parquet", bad=[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = list(warnings.filters)
        done = cluster.run(toy(tmp_path / "a.parquet", bad=[1], at_once=3, meet=3))
        assert warnings.filters == filters
    assert done.failed == {1: "partition 1 is bad"}
    assert pq.read_table(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "one.parquet"))


def test_a_full_disk_ends_partitions_at_the_same_time(tmp_path):
    with pytest.raises(OutputError, match="No space left on device"):
        cluster.run(toy(tmp_path / "a.parquet", full=[1], at_once=2))
    assert not (tmp_path / "a.parquet").exists()
    with pytest.raises(DeviceLost):
        cluster.run(toy(tmp_path / "b.parquet", lost=[1], at_once=2))
    assert cluster.run(toy(tmp_path / "b.parquet", lost=[1], at_once=2), resume=True).rows == 18


def test_a_lost_gpu_ends_the_run_and_resume_continues(tmp_path):
    with pytest.raises(DeviceLost, match="cuda:0 failed and does not respond"):
        cluster.run(toy(tmp_path / "a.parquet", lost=[2]))
    assert len(list((tmp_path / "a.parquet.parts").glob("part-*.parquet"))) == 2
    assert cluster.run(toy(tmp_path / "a.parquet", lost=[2]), resume=True).before == 2


def test_a_job_is_plain_data(tmp_path):
    job = toy(tmp_path / "a.parquet", bad=[1])
    assert pickle.loads(pickle.dumps(job)) == job
    assert cluster.Job(**json.loads(json.dumps(job.facts()))).key == job.key
    assert toy(tmp_path / "b.parquet", bad=[1]).key == job.key
    assert toy(tmp_path / "a.parquet", bad=[2]).key != job.key
    assert repr(job).startswith(f"<Job: {TOY} in 6 partitions, to ")


def test_columns_of_numbers_and_of_text_are_joined_as_text(tmp_path):
    cluster.run(toy(tmp_path / "a.parquet", n=2, texts=[1]))
    assert pq.read_table(tmp_path / "a.parquet")["x"].to_pylist() == ["0", "1", "2", "3", "4", "5"]


def test_memory_of_the_join_does_not_grow_with_partitions(tmp_path):
    """Rows are written together until there are 30,000, and dropped then."""
    cluster.run(toy(tmp_path / "a.parquet", n=9, rows=10_000))
    groups = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert [groups.row_group(k).num_rows for k in range(groups.num_row_groups)] == [30_000] * 3


@pytest.mark.parametrize("text", ["local:0", "local:x", "dask", "serial:2", "pbs", ""])
def test_a_wrong_launcher_is_refused(text):
    with pytest.raises(ValueError, match=r"expected serial, local\[:N\], dask:ADDRESS"):
        launcher(text)


def test_wrong_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected one of period, fstat search, smooth, dedisp search"):
        cluster.job("periods", tmp_path / "a.csv")
    with pytest.raises(ValueError, match="min_periods: period has no such option"):
        cluster.job("period", tmp_path / "a.csv", files=["a.csv"], min_periods=1)
    with pytest.raises(ValueError, match=r"use skysieve\.cluster\.submit"):
        cluster.run(toy(tmp_path / "a.parquet"), "slurm")


def test_folder_of_an_output(tmp_path):
    assert folder_of(tmp_path / "a.parquet") == tmp_path / "a.parquet.parts"
    assert folder_of(tmp_path / "a") == tmp_path / "a"


def test_exit_codes_and_lines_of_the_command(tmp_path, capsys):
    options = {"output": tmp_path / "a.parquet", "resume": False, "overwrite": False, "threads": None, "memory": None}
    assert launch(TOY, "serial", options | {"n": 3}, Messages()) == 0
    assert capsys.readouterr().err.endswith(": 9 rows (9 things, 3 in pairs)\n")
    other = options | {"n": 30, "bad": list(range(25)), "overwrite": True, "faults": [27]}
    assert launch(TOY, "serial", other, Messages(quiet=True)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "skysieve: row 27: bad"
    assert lines[1] == "skysieve: partition 0: partition 0 is bad"
    assert len(lines) == 22
    assert lines[-1].startswith("skysieve: 25 of 30 partitions failed; --resume computes them again")
    none = options | {"n": 2, "bad": [0, 1], "output": tmp_path / "b.parquet"}
    assert launch(TOY, "serial", none, Messages()) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "skysieve: nothing was written"
    assert not (tmp_path / "b.parquet").exists()
    with pytest.raises(ValueError, match="memory='much': expected a share"):
        launch(TOY, "serial", options | {"n": 2, "memory": "much", "output": tmp_path / "d.parquet"}, Messages())
    assert not list(tmp_path.glob("d.*"))
    with pytest.raises(ValueError, match="--cluster needs -o"):
        launch(TOY, "serial", options | {"output": None}, Messages())
    with pytest.raises(OutputError, match="No space left"):
        launch(TOY, "serial", options | {"n": 4, "full": [3], "output": tmp_path / "c.parquet"}, Messages(quiet=True))
    assert capsys.readouterr().err == "skysieve: 3 partitions of 4 done; --resume continues from them\n"


def test_progress_counts_partitions(tmp_path):
    seen = []
    cluster.run(toy(tmp_path / "a.parquet"), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (6, 6)
    assert np.all(np.diff([done for done, _ in seen]) > 0)
