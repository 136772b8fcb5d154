"""Run a job: in this process, on workers of Dask, or as an array of SLURM."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from skysieve.core.device import resolve
from skysieve.core.errors import DeviceLost, DeviceUnavailable, install_hint
from skysieve.core.progress import Reporter, reporting
from skysieve.core.tasks import usable_cores

from .description import CODE, Job, OutputError, Resources
from .folder import Outcome, RunFolder, environment, fail
from .task import Step, compute, in_this_process, in_words

if TYPE_CHECKING:
    from distributed import Client, SpecCluster

__all__ = ["launcher", "run", "start_ahead"]

CONNECT, WORKERS = 10.0, 60.0
"""Seconds to wait for a scheduler, and for its first worker."""
AHEAD = 4
"""Tasks that the scheduler has at a time, running ones included, for each thread of a worker."""
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that are 1 in a worker, as Dask sets them: its only threads are those of the search."""
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""Environment variables with which glibc reuses the memory of large arrays; otherwise each map gets new pages."""
LOST_GPU = 75
"""Exit code of a worker whose GPU does not respond; Dask's nanny starts another."""


def launcher(text: str) -> tuple[str, str]:
    """The launcher and the rest of the option ``--cluster``.

    >>> launcher("local:4"), launcher("dask:tcp://10.0.0.1:8786"), launcher("slurm")
    (('local', '4'), ('dask', 'tcp://10.0.0.1:8786'), ('slurm', ''))

    Raises
    ------
    ValueError
        It is none of serial, local[:N], dask:ADDRESS, slurm[:N] and htcondor[:N].
    """
    name, _, rest = text.partition(":")
    number = name in ("local", "slurm", "htcondor") and (not rest or (rest.isdecimal() and int(rest) > 0))
    if number or (name == "serial" and not rest) or (name == "dask" and rest):
        return name, rest
    raise ValueError(f"cluster={text!r}: expected serial, local[:N], dask:ADDRESS, slurm[:N] or htcondor[:N]")


def run(
    job: Job,
    client: str | Client | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    memory: str | None = None,
    progress: bool | Callable[[int, int], None] = False,
    note: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Compute all partitions of a job, and write its output.

    Parameters
    ----------
    job : Job
        As `skysieve.cluster.job` makes it.
    client : str or distributed.Client, optional
        ``"local"`` or ``"local:4"`` starts workers on this machine, by default one for each core, or for each GPU.
        ``"dask:ADDRESS"`` and a Dask client use the workers of a running scheduler.  None and ``"serial"`` compute in
        this process.  Workers must see the input and output files under the same names.
    resume : bool
        Continue from the partitions that are done.
    overwrite : bool
        Replace the partitions of another run.
    threads : int, optional
        CPU threads of a worker.  By default, local workers share the cores, and other workers use the number of threads
        that Dask gives them.
    memory : str, optional
        Working memory of a worker, such as "2GiB".
    progress : bool or callable
        Show a progress bar, or call ``progress(partitions done, all)``.
    note : callable
        Called with each line for the user.

    Returns
    -------
    Outcome
        Partitions that failed are in ``failed``; the output holds the others, and `resume` computes them again.

    Raises
    ------
    ConnectionError
        The scheduler cannot be reached, has no workers, or ends during the work.
    skysieve.core.parts.InUse
        Another launcher works on the same output.
    ValueError, OSError
        The folder belongs to another run, workers have other versions, or a result cannot be written.
    skysieve.DeviceUnavailable
        This process, or a worker, does not have the device.

    Notes
    -----
    The output is the same bit for bit for all launchers where workers have the same versions and processors.  Dask
    gives a partition to another worker if its worker dies, four times at most.

    Examples
    --------
    >>> from skysieve import cluster
    >>> stars = cluster.job("period", "periods.parquet", files=["a.parquet"], device="cpu")  # doctest: +SKIP
    >>> cluster.run(stars, "local:4", resume=True).failed                                    # doctest: +SKIP
    {}
    """
    if len(job.partitions) == 1 and _local_workers(client, job):
        note("there is one partition: this process computes it")
        client = None
    with ExitStack() as stack:
        dask, workers = _connected(client, job, stack)
        if dask is not None:
            _wait_for_a_worker(dask)
            _check_workers(dask, environment())
        _check_device(job.device, dask)
        folder = RunFolder(job, resume, overwrite)
        stack.callback(folder.close)
        folder.job = _with_device(folder.job, dask)
        _check_device(folder.job.device, dask)  # it may be that of the run that continues
        folder.write_manifest("running")
        if folder.lock.note:
            note(folder.lock.note)
        outcome, missing = folder.outcome()
        if outcome.before:
            note(f"{outcome.before:,} of {outcome.partitions:,} partitions were done before")
        report = Reporter(stack.enter_context(reporting(progress, job.command)), outcome.partitions)
        report.add(outcome.before)

        def step(number: int, facts: dict[str, Any] | None, error: str) -> None:
            if facts is None:
                outcome.failed[number] = error
                fail(folder.folder, number, error)
            else:
                outcome.enter(facts)
            report.add(1)

        resources = _share(folder.job, Resources(threads, memory), workers)
        if dask is None:
            in_this_process(folder.folder, folder.job.key, missing, resources, step)
        else:
            _by_dask(dask, folder, missing, resources, step)
        outcome.failed = dict(sorted(outcome.failed.items()))
        if len(outcome.environments) > 1:
            note(
                "workers had different versions or processors: results may differ from those of one process in the "
                "last bits"
            )
        folder.finish(outcome)
        return outcome


def _local_workers(client: str | Client | None, job: Job) -> bool:
    """Whether workers of this machine would share its processor."""
    return isinstance(client, str) and launcher(client)[0] == "local" and resolve(job.device)[0].kind == "cpu"


def _connected(client: str | Client | None, job: Job, stack: ExitStack) -> tuple[Client | None, int | None]:
    """A client of Dask, or None for this process; and the number of workers that share this machine, or None."""
    name, rest = launcher(client or "serial") if client is None or isinstance(client, str) else ("client", "")
    if name == "serial":
        return None, None
    if name in ("slurm", "htcondor"):
        raise ValueError(
            f"client={client!r}: {name} jobs continue after this call returns; use skysieve.cluster.submit"
        )
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"Dask is needed: {install_hint('dask')}") from error
    if name == "client":
        assert isinstance(client, distributed.Client)
        return client, None
    if name == "local":
        cluster, workers = _local(int(rest) if rest else None, job, stack)
        stack.enter_context(cluster)
        return stack.enter_context(distributed.Client(cluster)), workers
    try:
        with ThreadPoolExecutor(1) as one:  # the caller's thread may run an event loop, as in a notebook
            one.submit(asyncio.run, _reach(rest)).result()
        return stack.enter_context(distributed.Client(rest, timeout=CONNECT)), None
    except (OSError, ValueError) as error:
        raise ConnectionError(f"the Dask scheduler at {rest} cannot be reached: {in_words(error)}") from error


async def _reach(address: str) -> None:
    """Raise OSError or ValueError if no scheduler answers at an address.

    A client that cannot connect is never closed by Dask.  The garbage collector closes it later, in any thread, and
    waits for a lock; if that thread starts another client or cluster at this moment, it holds the lock and waits for
    ever (distributed 2026.8: ``Client.__del__`` inside ``LoopRunner.start``).  So a client is made only for a
    scheduler that answers.
    """
    from distributed import Security
    from distributed.comm import connect

    comm = await connect(address, timeout=CONNECT, **Security().get_connection_args("client"))
    await comm.close()


def start_ahead(command: str) -> None:
    """Start the process from which workers on this machine are forked; it imports a command's code once for all.

    Nothing happens if such a process runs already, or on systems other than Linux, whose workers are not forked.
    """
    if not sys.platform.startswith("linux"):
        return
    multiprocessing.get_context("forkserver").set_forkserver_preload(["distributed.nanny", *CODE.get(command, ())])
    given = dict.fromkeys(ONE_THREAD, "1") | KEPT_MEMORY
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _local(workers: int | None, job: Job, stack: ExitStack) -> tuple[SpecCluster, int | None]:
    """Workers on this machine, and their number if they share its processor.

    A worker has one task at a time: Dask would count the death of a worker against every task that it has.
    """
    import dask
    import distributed.utils
    from distributed import LocalCluster, Nanny, Scheduler, SpecCluster
    from distributed.system import MEMORY_LIMIT

    quiet: dict[str, Any] = {"silence_logs": logging.CRITICAL}
    on_cpu = resolve(job.device)[0].kind == "cpu"
    environ = dict(dask.config.get("distributed.nanny.pre-spawn-environ", {}))
    environ.pop("MALLOC_TRIM_THRESHOLD_", None)  # with it, each large array gets new pages
    given = {
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.worker.profile.enabled": False,  # it samples each worker a hundred times a second
        "distributed.admin.tick.interval": "500ms",  # in each process, by default fifty times a second
        "distributed.admin.system-monitor.interval": "5s",
        # By default Dask closes a worker for good that is starting again 15 seconds after one of its deaths.
        "distributed.deploy.lost-worker-timeout": "1 day",
        "distributed.nanny.pre-spawn-environ": environ,
    }
    if on_cpu and sys.platform.startswith("linux"):
        start_ahead(job.command)
        distributed.utils._forkserver_preload_set = True  # else Dask imports all packages that it knows, such as pandas
        given["distributed.worker.multiprocessing-method"] = "forkserver"
    stack.enter_context(dask.config.set(given))
    if on_cpu:
        count = min(workers or usable_cores(), len(job.partitions))
        made = LocalCluster(
            n_workers=count, threads_per_worker=1, memory_limit=MEMORY_LIMIT // count, host="127.0.0.1",
            dashboard_address=None, scheduler_kwargs={"dashboard_address": "127.0.0.1:0"}, env=dict(os.environ),
            **quiet,
        )  # fmt: skip
        return made, count
    cards = resolve("cuda:all")[:workers]
    try:
        from dask_cuda import LocalCUDACluster
    except ModuleNotFoundError:
        options = quiet | {"nthreads": 1, "memory_limit": MEMORY_LIMIT // len(cards)}
        spec = {
            card.index: {"cls": Nanny, "options": options | {"env": {"CUDA_VISIBLE_DEVICES": str(card.index)}}}
            for card in cards
        }
        scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}}
        return SpecCluster(spec, scheduler, **quiet), None
    return LocalCUDACluster(n_workers=len(cards), threads_per_worker=1, **quiet), None


def _with_device(job: Job, dask: Client | None) -> Job:
    """The job with the device that "auto" means on a worker, so that all partitions are computed on one kind."""
    if job.device != "auto":
        return job
    return replace(job, device=dask.submit(_kind_of_device, pure=False).result() if dask else _kind_of_device())


def _check_device(device: str, dask: Client | None) -> None:
    """Refuse a device that this process, or a worker, does not have: each of its partitions would fail."""
    if dask is None:
        resolve(device)
        return
    for address, problem in dask.run(_problem, device).items():
        if problem is not None:
            raise DeviceUnavailable(f"worker {address}: {problem.missing}", problem.remedy)


def _problem(device: str) -> DeviceUnavailable | None:
    """Why this process cannot use a device."""
    try:
        resolve(device)
    except DeviceUnavailable as problem:
        return problem
    return None


def _kind_of_device() -> str:
    return resolve("auto")[0].kind


def _share(job: Job, given: Resources, workers: int | None) -> Resources:
    """Threads and memory of one of the workers on this machine, where they are not given."""
    if workers is None:
        return given
    threads = given.threads or max(1, usable_cores() // workers)
    memory = given.memory or (f"{50 / workers:.3g}%" if job.device == "cpu" else None)
    return Resources(threads, memory)


def _wait_for_a_worker(dask: Client) -> None:
    """Return as soon as the scheduler has a worker; raise ConnectionError if it has none for `WORKERS` seconds."""
    try:
        dask.wait_for_workers(1, timeout=WORKERS)
    except TimeoutError as error:
        raise ConnectionError(
            f"the Dask scheduler at {dask.scheduler.address} has no workers: none connected within {WORKERS:g} seconds"
        ) from error


def _check_workers(dask: Client, own: dict[str, str]) -> None:
    """Refuse workers with other versions than `own`."""
    for address, found in dask.run(environment).items():
        for name, version in own.items():
            if name != "processor" and found.get(name) != version:
                other = found.get(name, "none")
                raise ValueError(
                    f"worker {address} has {name} {other}, expected {version} as here: the results must not depend on "
                    "the worker"
                )


def _task(folder: str, key: str, number: int, resources: Resources) -> dict[str, Any]:
    """`compute` on a worker of Dask."""
    from distributed import get_worker

    if resources.threads is None:
        resources = replace(resources, threads=get_worker().state.nthreads)
    try:
        return compute(folder, key, number, resources)
    except DeviceLost as error:
        print(f"skysieve: {error}; this worker ends", file=sys.stderr, flush=True)
        os._exit(LOST_GPU)  # the context of a lost GPU cannot be made again in this process


def _by_dask(client: Client, folder: RunFolder, numbers: list[int], resources: Resources, step: Step) -> None:
    """Compute partitions on workers; some tasks for each thread wait at the scheduler."""
    from distributed import as_completed

    waiting = iter(numbers)
    running: dict[Any, int] = {}

    def submit(number: int) -> Any:
        name = f"skysieve-{folder.job.key[:12]}-{uuid4().hex[:8]}-{number}"
        made = client.submit(_task, str(folder.folder), folder.job.key, number, resources, key=name, pure=False)
        running[made] = number
        return made

    threads = max(1, sum(client.nthreads().values()))  # a worker that restarts is not counted
    tasks = as_completed([submit(number) for number in islice(waiting, AHEAD * threads)], timeout=WORKERS)
    try:
        while not tasks.is_empty():
            try:
                future = next(tasks)
            except TimeoutError:  # tasks may take longer, but without a worker they would wait for ever
                _wait_for_a_worker(client)
                tasks = as_completed(list(running), timeout=WORKERS)
                continue
            status = future.status
            if status in ("lost", "pending"):  # its worker died before the answer was fetched: it is computed again
                tasks.add(future)
                continue
            number = running.pop(future)
            if status == "finished":
                step(number, future.result(), "")
            elif status == "error":
                step(number, None, _reason(future.exception()))
            else:
                raise ConnectionError("the Dask scheduler has ended; --resume continues from the finished partitions")
            future.release()
            for following in islice(waiting, 1):
                tasks.add(submit(following))
    finally:
        client.cancel(list(running), force=True)


def _reason(error: BaseException) -> str:
    """Why a task failed; an output that cannot be written ends the run."""
    from distributed import KilledWorker

    if isinstance(error, OutputError):
        raise error
    if isinstance(error, KilledWorker):
        return (
            "its worker died each time, perhaps because memory ran out: use fewer workers or smaller partitions, or "
            "give --memory"
        )
    return in_words(error)
