"""Configuration of pytest: test data, tests that need a GPU, and the record of the last complete run on a GPU.

It imports only the standard library, pytest and `skysieve.core`, because machines with a GPU lack other packages.
"""

from __future__ import annotations

import datetime
import functools
import gc
import hashlib
import importlib
import json
import logging
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# The workers of pytest-xdist use all cores: further threads of NumPy would only wait for one another.  NumPy reads
# this variable when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# For the same reason no test starts helper processes that compile functions.  They increase the total work (measured:
# 52 s of processor time instead of 44 s for 20 tests without compiled code).  `tests/core/test_jit.py` tests them.
os.environ.setdefault("SKYSIEVE_COMPILES_FOR_ANOTHER_PROCESS", "1")

# Without this cache typer builds all commands, in some 50 ms, each time that `typer.testing.CliRunner` runs one.
with suppress(ModuleNotFoundError):  # machines with a GPU lack typer
    import typer.main

    typer.main.get_command = functools.cache(typer.main.get_command)

from skysieve.core.device import cuda_problem, driver_version, resolve

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "skysieve"
RECORD = Path(__file__).with_name("gpu_record.json")
GIVEN = pytest.StashKey[list[str]]()
"""The arguments of pytest, in a worker of pytest-xdist for which `_begin_elsewhere` has changed the order of files."""


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder of the test data: SKYSIEVE_TEST_DATA, else ``../shared/data`` beside the repository."""
    folder = Path(os.environ.get("SKYSIEVE_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data in {folder}; SKYSIEVE_TEST_DATA names the folder that has it")
    return folder


# ---------------------------------------------------------------- kernels, with and without a GPU


@pytest.fixture(params=["forwards", "backwards", pytest.param("gpu", marks=pytest.mark.gpu)])
def runtime(request: pytest.FixtureRequest) -> Any:
    """A runtime that compiles and launches kernels: the host shim in both orders of threads, or with ``-m gpu`` a GPU.

    A kernel whose result differs when its threads run backwards has a race condition.  Of the cases that run in both
    orders, ``make test`` runs every third one backwards (see `slow_cases`, and `all_but_few` for tests marked ``few``),
    ``make test-all`` runs all.  See `tests/kernels/devices.py`.
    """
    from tests.kernels.devices import make_runtime

    return make_runtime(request.param)


# ---------------------------------------------------------------- tests that need a GPU


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path)
    left_out = {item for item in items if _no_such_method(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    few = [item for item in items if item.get_closest_marker("few") and not item.get_closest_marker("slow")]
    for item in all_but_few(few):
        item.add_marker(pytest.mark.slow)
    slow = slow_cases([item.nodeid for item in items if not item.get_closest_marker("few")])
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    problem = cuda_problem() if wanted else None
    if problem is None:
        return
    if asks_for_gpu(config):
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {problem.missing}"))
    else:
        config.hook.pytest_deselected(items=wanted)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


def asks_for_gpu(config: pytest.Config) -> bool:
    """Whether the user asked for tests that need a GPU, by ``-m`` or by the name of their folder."""
    return "gpu" in config.option.markexpr or any("gpu" in arg for arg in config.stash.get(GIVEN, config.args))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say why the tests that need a GPU were left out."""
    problem = cuda_problem()
    if problem is not None and not asks_for_gpu(config):
        terminalreporter.write_line(f"tests that need a GPU were left out: {problem.missing}")


def all_but_few(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of tests marked ``few`` that only ``make test-all`` runs: all but the first of each test.

    Cases for a GPU are counted separately.
    """
    seen: set[tuple[str, bool]] = set()
    found = []
    for item in cases:
        test = item.nodeid.partition("[")[0], item.get_closest_marker("gpu") is not None
        if test in seen:
            found.append(item)
        seen.add(test)
    return found


def slow_cases(names: list[str]) -> set[str]:
    """Return the cases with the shim's threads backwards that only ``make test-all`` runs.

    Of the backwards cases of a test that also run forwards, ``make test`` runs the first and every third one after it.
    These suffice, because a race condition shows in any case of a kernel.

    >>> cases = [f"t[{i}-{order}]" for order in ("forwards", "backwards") for i in range(5)]
    >>> sorted(slow_cases([*cases, "t[9-backwards]"]))
    ['t[1-backwards]', 't[2-backwards]', 't[4-backwards]']
    """
    known, count, slow = set(names), Counter[str](), set()
    for name in names:
        if "backwards" in name and name.replace("backwards", "forwards") in known:
            test = name.partition("[")[0]
            if count[test] % 3:
                slow.add(name)
            count[test] += 1
    return slow


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Collect no garbage meanwhile: the collector would visit the new modules and tests again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exempt modules and tests from garbage collection: they are millions of objects that are never freed."""
    gc.collect()
    gc.freeze()


def _no_such_method(item: pytest.Item) -> bool:
    """Whether a case asks a GPU for "finufft", a method of the CPU (tests/kernels and tests/gpu test the refusal)."""
    call = getattr(item, "callspec", None)
    return call is not None and (call.params.get("device"), call.params.get("method")) == ("cuda", "finufft")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m gpu``, skip files without GPU tests: they may import packages that a machine with a GPU lacks.

    GPU tests are those of ``tests/kernels``, which use the fixture `runtime`, and those with the mark ``gpu``.
    """
    if config.option.markexpr != "gpu" or not collection_path.match("test_*.py"):
        return None
    if collection_path.parent.name == "kernels" or "mark.gpu" in collection_path.read_text(encoding="utf-8"):
        return None
    return True


# ---------------------------------------------------------------- the GPU record


def gpu_hashes(folder: Path = SOURCES) -> dict[str, dict[str, str]]:
    """SHA-256 of every kernel file and of every Python file that prepares or starts kernels, by path in the package."""
    found: dict[str, dict[str, str]] = {"kernels": {}, "launchers": {}}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.suffix in (".cu", ".cuh"):
            kind = "kernels"
        elif path.suffix == ".py" and (
            "cuda" in name.parts or path.name.startswith("cuda_") or name.parts[:2] == ("core", "gpu")
        ):
            kind = "launchers"
        else:
            continue
        found[kind][name.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def changed_files(hashes: dict[str, dict[str, str]], record: Path = RECORD) -> list[str]:
    """Files that have changed since the recorded run of all GPU tests; every file if a test failed in that run."""
    recorded = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {"tests": {"failed": 1}}
    passed = recorded["tests"]["failed"] == 0
    return [
        name
        for kind, files in hashes.items()
        for name, digest in files.items()
        if not passed or recorded.get(kind, {}).get(name) != digest
    ]


class GpuRecord:
    """A plugin of pytest that counts the outcomes of a ``pytest -m gpu`` run and writes the record at its end."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.hashes = gpu_hashes()  # at the start, since files may be edited during the run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
        elif report.when == "call" and report.passed:
            self.outcomes.setdefault(report.nodeid, "passed")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        tests = list(self.outcomes.values())
        if tests and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            RECORD.write_text(json.dumps(self.content(tests), indent=2) + "\n", encoding="utf-8")

    def content(self, tests: list[str]) -> dict[str, object]:
        from cupy_backends.cuda.libs import nvrtc

        return {
            "gpu": [device.name for device in resolve("cuda:all")],
            "driver": driver_version(),
            "nvrtc": ".".join(str(n) for n in nvrtc.getVersion()),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tests": {"passed": tests.count("passed"), "failed": tests.count("failed")},
            **self.hashes,
        }


def is_whole_gpu_run(config: pytest.Config) -> bool:
    """Whether this run includes every GPU test (``-m gpu`` alone); only such a run is recorded."""
    option = config.option
    return option.markexpr == "gpu" and not option.keyword and not option.deselect and not _names_a_test(config)


def _names_a_test(config: pytest.Config) -> bool:
    named = [Path(arg.split("::")[0]).resolve() for arg in config.args]
    return any("::" in arg for arg in config.args) or not all(p in (ROOT, ROOT / "tests") for p in named)


def _begin_elsewhere(config: pytest.Config, number: int, count: int) -> None:
    """Let each worker of pytest-xdist collect another file first.

    Otherwise all workers would rewrite the assertions of the same file at the same time.  Afterwards,
    `pytest_collection_modifyitems` sorts the tests into the same order in all workers.
    """
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py"))
    start = number * len(files) // count
    config.stash[GIVEN] = list(config.args)
    config.args[:] = files[start:] + files[:start]


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a background job: its children would ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = getattr(config, "workerinput", None)
    if worker is not None:  # a worker of pytest-xdist: the main process writes the record
        if all(Path(arg).resolve() in (ROOT, ROOT / "tests") for arg in config.args):
            _begin_elsewhere(config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])
        return
    if is_whole_gpu_run(config) and cuda_problem() is None:
        config.pluginmanager.register(GpuRecord(), "skysieve-gpu-record")
        return
    changed = changed_files(gpu_hashes())
    if changed:
        config.issue_config_time_warning(
            pytest.PytestWarning(f"no GPU has run these files as they are now: {', '.join(changed)}"), stacklevel=2
        )


@pytest.fixture(autouse=True)
def usual_log_level():
    """Restore the level of the package's logger, which commands with ``--verbose`` change."""
    logger = logging.getLogger("skysieve")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def usual_priority(monkeypatch):
    """Keep the priority of this process: ``dedisp stream`` would lower that of the thread that searches."""
    monkeypatch.setattr("os.setpriority", lambda *_: None, raising=False)


@pytest.fixture(autouse=True)
def no_first_answers():
    """Choose methods as if all kernels were compiled; `test_first_answers` and `test_first_sums` test other cases.

    Until `prepare` is compiled, NumPy adds its sums in another order.  Tests use the compiled function from the first
    call on, because another process may store it between two calls whose results must be equal.
    """
    for name in ("skysieve.periodogram.cpu.engine", "skysieve.sphere.cpu.direct"):
        importlib.import_module(name).first_answers.seconds = float("inf")
    importlib.import_module("skysieve.periodogram.cpu.prepare").prepare.interpreted_seconds = float("inf")


@pytest.fixture(autouse=True)
def fast_host(monkeypatch):
    """Never limit the number of GPUs by the speed of copies on the host (``tests/core/test_sharing.py`` tests that)."""
    monkeypatch.setattr("skysieve.core.gpu.sharing.figures", lambda *_: {"bytes a second": float("inf")})
