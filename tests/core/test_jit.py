"""Kernels that are compiled in two ways, and the folder of their compiled code."""

import errno
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.marks import slow

from skysieve.core.cpu import jit
from skysieve.core.cpu.jit import njit

SCRIPT = """
import logging, sys
import numpy as np
from skysieve.core.cpu import jit

@jit.njit(nogil=True)
def square(x):
    return x * x

@jit.njit(nogil=True)
def total(a):
    s = 0.0
    for x in a:
        s += square(x)
    return s

print(total(np.arange(4.0)), sum(total.stats.cache_hits.values()))
"""


@njit(nogil=True)
def double(x):
    return 2 * x


@njit(nogil=True)
def doubled_sum(a):
    total = 0.0
    for x in a:
        total += double(x)
    return total


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of `SCRIPT`: numba reads the source of what it compiles."""
    path = tmp_path_factory.mktemp("kernels") / "kernels.py"
    path.write_text(SCRIPT)
    return path


def run(path, folder, **environment):
    """Output of `SCRIPT` in a process of its own, which must not fail, and what it wrote to standard error."""
    env = {**os.environ, "SKYSIEVE_CACHE_DIR": str(folder), **environment}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def with_helpers(monkeypatch):
    """Processes may start others that compile for them, as they may outside of the tests."""
    monkeypatch.delenv(jit._HELPER)


def files(folder):
    return sorted(folder.rglob("*.bin"))


def test_a_function_serves_python_and_other_kernels():
    assert doubled_sum(np.arange(4.0)) == 12.0
    assert double(3) == 6
    assert double(2.5) == 5.0


def test_a_damaged_file_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))

    def hits():
        """Call a kernel without compiled code in this process; how often its code was loaded from the folder."""
        kernel = njit(nogil=True)(doubled_sum.py_func)
        assert kernel(np.arange(4.0)) == 12.0
        return sum(kernel.stats.cache_hits.values())

    assert (hits(), hits()) == (0, 1)
    (stored,) = files(tmp_path)
    whole = stored.read_bytes()
    changed = whole[:-1] + bytes([whole[-1] ^ 1])
    for content in (b"", b"short", b"x" * 5000, whole[: len(whole) // 2], changed):
        stored.write_bytes(content)
        assert (hits(), hits()) == (0, 1)


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_replaced_with_one_warning(path, tmp_path):
    obstacle = tmp_path / "file"
    obstacle.write_text("")
    other = tmp_path / "tmp"
    other.mkdir()
    out, err = run(path, obstacle / "cache", TMPDIR=str(other))
    assert out == "14.0 0\n"
    assert len(err.splitlines()) == 1
    assert "cannot be stored" in err
    assert "SKYSIEVE_CACHE_DIR" in err
    assert run(path, obstacle / "cache", TMPDIR=str(other)) == ("14.0 1\n", "")
    later = tmp_path / "later"  # a cache folder that can be written gets the code that lies in the temporary one
    assert run(path, later, TMPDIR=str(other)) == ("14.0 1\n", "")
    assert [p.name for p in files(later)] == [p.name for p in files(other)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, slow(24)])
def test_of_many_processes_one_compiles(path, tmp_path, number):
    folder = tmp_path / "cache"
    env = {**os.environ, "SKYSIEVE_CACHE_DIR": str(folder)}
    started = [
        subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        for _ in range(number)
    ]
    loaded = []
    for process in started:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert out.split()[0] == b"14.0"
        assert err == b""
        loaded.append(int(out.split()[1]))
    assert sorted(loaded) == [0] + [1] * (number - 1)
    (stored,) = files(folder)
    assert stored.name.startswith("total-")  # one file: the callee is in it
    assert run(path, folder) == ("14.0 1\n", "")


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EACCES])
def test_a_function_is_compiled_where_locks_fail_or_are_held_for_too_long(error, tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def fail(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fcntl, "lockf", fail)
    monkeypatch.setattr(jit, "WAIT_SECONDS", 0.1)
    kernel = njit(nogil=True)(doubled_sum.py_func)
    assert kernel(np.arange(4.0)) == 12.0
    assert sum(kernel.stats.cache_misses.values()) == 1
    assert len(files(tmp_path)) == 1


def test_another_source_file_means_another_folder(tmp_path, monkeypatch):
    """A changed callee in another file of the domain, or in `core`, never runs old code."""
    for name in ("core", "sphere", "fstat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(jit, "_PACKAGE", tmp_path)
    before = {d: jit._sources.__wrapped__(d) for d in ("sphere", "fstat")}
    (tmp_path / "sphere" / "a.py").write_text("x = 2\n")
    after = {d: jit._sources.__wrapped__(d) for d in ("sphere", "fstat")}
    assert before["sphere"] != after["sphere"]
    assert before["fstat"] == after["fstat"]
    (tmp_path / "core" / "a.py").write_text("x = 2\n")
    assert jit._sources.__wrapped__("fstat") != after["fstat"]


def test_folders_that_were_not_used_for_a_month_are_removed(tmp_path):
    old, recent, other = (tmp_path / name for name in ("sphere-old", "sphere-recent", "fstat-old"))
    for folder in (old, recent, other):
        folder.mkdir()
    for folder in (old, other):
        os.utime(folder, (1e9, 1e9))
    jit._make(tmp_path / "sphere-new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fstat-old", "sphere-new", "sphere-recent"]


def test_command_lines_are_no_part_of_the_key(tmp_path, monkeypatch):
    (tmp_path / "core").mkdir()
    (tmp_path / "sphere" / "command").mkdir(parents=True)
    monkeypatch.setattr(jit, "_PACKAGE", tmp_path)
    before = jit._sources.__wrapped__("sphere")
    for path in (tmp_path / "sphere" / "command" / "cli.py", tmp_path / "core" / "command.py"):
        path.write_text("help = 'text'\n")
    assert jit._sources.__wrapped__("sphere") == before


@njit(nogil=True, error_model="numpy")
def inverse_sum(a, start):
    total = start
    for x in a:
        total += double(1.0 / x)
    return total


def test_few_rows_are_interpreted_with_the_same_bits_until_it_takes_long():
    a = np.array([3.0, 0.0, 7.0, -0.3, 1e-310])
    fresh = njit(nogil=True, error_model="numpy")(inverse_sum.py_func)
    fresh._cache.disable()
    first = jit.interpreted_if_small(fresh, 100)
    assert first is not fresh
    assert fresh.overloads == {}
    values = [first(a[k:], 0.1) for k in (2, 3, 0)]
    assert jit.interpreted_if_small(fresh, 10 * jit.INTERPRETED_SECONDS / jit.STEP_SECONDS) is fresh
    for _ in range(int(jit.INTERPRETED_SECONDS / jit.STEP_SECONDS / 10_000)):
        last = jit.interpreted_if_small(fresh, 10_000)
    assert last is fresh  # the time is spent
    assert np.array_equal(values, [fresh(a[k:], 0.1) for k in (2, 3, 0)])
    assert jit.interpreted_if_small(fresh, 1) is fresh  # it is compiled


@pytest.mark.slow
@pytest.mark.usefixtures("with_helpers")
def test_functions_are_compiled_together_in_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "usable_cores", lambda: 3)
    from skysieve.periodogram.cpu import direct

    arrays = [np.linspace(0.1, 1, 8) for _ in range(4)]
    one = (direct.weighted_sums, (*arrays, 8))
    other = (direct.centred_sums, (*arrays, 8, 0.5, 0.25))
    for kernel, _ in (one, other):
        monkeypatch.setattr(kernel, "overloads", {})
    assert not jit.is_compiled(one[0], *one[1])
    jit.compile_together(one, other)
    assert sorted(path.name.split("-")[0] for path in files(tmp_path)) == ["centred_sums", "weighted_sums"]
    assert jit.is_compiled(other[0], *other[1])
    assert len(direct.centred_sums.overloads) == 0  # another process stored it


@pytest.mark.usefixtures("with_helpers")
def test_compiling_without_helper_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "usable_cores", lambda: 2)
    monkeypatch.setattr(jit.sys, "executable", str(tmp_path / "none"))
    kernels = [njit(nogil=True)(f.py_func) for f in (double, doubled_sum)]
    jit.compile_together((kernels[0], (1.5,)), (kernels[1], (np.arange(3.0),)))
    assert kernels[0](1.5) == 3.0
    assert kernels[1](np.arange(3.0)) == 6.0


@pytest.fixture
def helpers(with_helpers, tmp_path, monkeypatch):
    """Processes of `compile_beside` on two cores, with an empty cache; they are ended after the test."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "usable_cores", lambda: 2)
    yield jit._helpers
    for helper in jit._helpers:
        helper.process.kill()
        helper.process.wait()
    jit._helpers.clear()
    jit._beside.clear()


def begun(helper, kernel):
    """Wait until the process has begun to compile a function."""
    end = time.monotonic() + 60
    while jit._name(kernel.py_func) not in helper.begun and time.monotonic() < end:
        time.sleep(0.01)
    assert helper.compiles(kernel.py_func)


USE = "from skysieve.periodogram.cpu.direct import grid_point; grid_point(0.1, 0.2, 3.0)"


@pytest.mark.slow
def test_a_process_that_compiles_beside_is_waited_for(tmp_path, helpers):
    from skysieve.periodogram.cpu import direct

    kernel = njit(nogil=True, error_model="numpy")(direct.grid_point.py_func)
    jit.compile_beside(USE, kernel)
    jit.compile_beside(USE, kernel)  # once is enough
    (helper,) = helpers
    assert helper.given == 1
    begun(helper, kernel)
    assert kernel(0.1, 0.2, 3.0)[0] == pytest.approx(0.7)
    assert jit._beside == {}
    assert sum(kernel.stats.cache_hits.values()) == 1
    (stored,) = files(tmp_path)
    stored.unlink()
    again = njit(nogil=True, error_model="numpy")(direct.grid_point.py_func)
    jit.compile_beside("raise SystemExit(1)", again)
    assert again(0.1, 0.2, 3.0)[0] == pytest.approx(0.7)  # the process failed: compiled here
    assert sum(again.stats.cache_misses.values()) == 1


def test_what_another_process_has_not_begun_is_compiled_here(helpers):
    from skysieve.periodogram.cpu import direct

    kernel = njit(nogil=True, error_model="numpy")(direct.grid_point.py_func)
    jit.compile_beside(f"import time; time.sleep(99); {USE}", kernel)
    assert kernel(0.1, 0.2, 3.0)[0] == pytest.approx(0.7)
    assert sum(kernel.stats.cache_misses.values()) == 1
    assert helpers[0].process.poll() is None


@pytest.mark.slow
def test_uses_are_compiled_in_turn_and_each_function_is_used_as_soon_as_it_is_stored(helpers):
    from skysieve.periodogram.cpu import direct

    options = {"nogil": True, "error_model": "numpy"}
    first, second = (njit(**options)(kernel.py_func) for kernel in (direct.grid_point, direct.weighted_sums))
    jit.compile_beside(USE, first)
    jit.compile_beside("import time; time.sleep(99)", second)
    (helper,) = helpers  # one fewer than cores
    assert helper.given == 2
    begun(helper, first)
    assert first(0.1, 0.2, 3.0)[0] == pytest.approx(0.7)
    assert sum(first.stats.cache_hits.values()) == 1
    assert helper.process.poll() is None  # it still runs


@pytest.mark.slow
def test_what_another_process_compiles_comes_last(helpers):
    from numba import float64
    from numba.core.registry import cpu_target

    from skysieve.periodogram.cpu import direct

    options = {"nogil": True, "error_model": "numpy"}
    first, second = (njit(**options)(kernel.py_func) for kernel in (direct.grid_point, direct.weighted_sums))
    first._cache._claim(first._cache._file((float64,) * 3, cpu_target.target_context))
    jit.compile_beside(USE, first)
    use = "import numpy as np; from skysieve.periodogram.cpu import direct; "
    jit.compile_beside(use + "direct.weighted_sums(*[np.ones(1)] * 4, 1)", second)
    (helper,) = helpers
    begun(helper, second)
    assert jit._name(first.py_func) not in helper.begun
    helper.process.stdin.close()  # it does what is left before it ends
    first._cache.release()
    begun(helper, first)


@pytest.mark.slow
def test_a_process_that_compiles_ends_when_nothing_more_comes(helpers):
    kernel = njit(nogil=True)(double.py_func)
    jit.compile_beside("from skysieve.core.cpu import jit; jit.IDLE_SECONDS = 0.0", kernel)
    helpers[0].process.wait(60)
    assert helpers[0].process.returncode == 0
    assert not helpers[0].give("pass") or not helpers[0].compiles(kernel.py_func)
    assert kernel(2.0) == 4.0


@pytest.mark.slow
def test_another_process_runs_a_line_whatever_is_stored(tmp_path, helpers):
    assert jit.run_beside(f"open({str(tmp_path / 'made')!r}, 'w').close()")
    helpers[0].process.stdin.close()
    assert helpers[0].process.wait(60) == 0
    assert (tmp_path / "made").exists()


def test_without_other_processes_no_line_is_run(tmp_path):
    assert not jit.run_beside(f"open({str(tmp_path / 'made')!r}, 'w').close()")


@pytest.mark.usefixtures("with_helpers")
def test_warm_up_compiles_what_else_is_interpreted(monkeypatch):
    monkeypatch.setattr(jit, "INTERPRETED_SECONDS", jit.INTERPRETED_SECONDS)
    monkeypatch.setattr(jit.FirstAnswers, "allowed", True)
    fresh = njit(nogil=True)(double.py_func)
    fresh._cache.disable()
    assert jit.interpreted_if_small(fresh, 10) is not fresh
    assert jit.FirstAnswers(1.0).take(0.5)
    jit.compile_all()
    assert jit.interpreted_if_small(fresh, 10) is fresh
    assert not jit.FirstAnswers(1.0).take(0.5)
    assert not jit._may_start()


def test_first_answers_take_no_more_than_their_time():
    answers = jit.FirstAnswers(1.0)
    assert [answers.take(0.4) for _ in range(3)] == [True, True, False]
    assert answers.seconds == 0.8
    assert answers.take(0.1)  # a smaller one may still be taken


def test_the_interpreter_runs_what_stands_in_for_a_kernel():
    assert jit.interpreted(doubled_sum) is jit.interpreted(doubled_sum)
    a = np.array([1.0, 2.0, 4.0])
    before = jit.interpreted(doubled_sum)(a)
    fresh = njit(nogil=True)(doubled_sum.py_func)
    fresh._cache.disable()
    jit.in_interpreter(double)(lambda x: 10 * x)
    try:
        assert jit.interpreted(fresh)(a) == 10 * before / 2
    finally:
        del jit._replacements[id(double)]
    assert fresh.overloads == {}
    assert jit.interpreted(len) is len
