"""Jobs as arrays of SLURM, and the submit description of HTCondor: files that call ``python -m skysieve.cluster``.

SLURM's own variables (``SBATCH_PARTITION``, ``SBATCH_ACCOUNT``, ``SBATCH_TIMELIMIT`` ...) choose the rest.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from skysieve.core.files import written

from .description import Job, Resources
from .folder import Outcome, RunFolder, fail, read_manifest
from .task import in_this_process

__all__ = ["CHECKPOINT", "check_submission", "finish", "submit", "task"]

CHECKPOINT = 85
"""Exit code of a task that a signal has stopped and that is to be started again: what is done is stored."""
TASKS = 100
"""Most tasks of an array, unless a number is given."""
WARNING = 60
"""Seconds before the time limit at which SLURM sends SIGUSR2."""

SCRIPT = """\
#!/bin/bash
# Written by skysieve: a task computes the partitions of one worker.  At its time limit (SIGUSR2) a task stops and is
# queued again; when it is preempted or cancelled (SIGTERM) it stops with exit code {checkpoint}.
#SBATCH --job-name={name}
#SBATCH --array={array}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={threads}
{gpus}#SBATCH --output={logs}/slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@{warning}
again=no
signalled=no
trap 'again=yes; signalled=yes; kill -USR2 $child' USR2
trap 'signalled=yes; kill -TERM $child' TERM
{command} task {folder} "$SLURM_ARRAY_TASK_ID" {tasks} {resources} &
child=$!
wait $child
code=$?
while [ $signalled = yes ]; do  # the signal has ended bash's wait, not the task
    signalled=no
    wait $child
    last=$?
    [ $last -eq 127 ] || code=$last
done
if [ $code -eq {checkpoint} ] && [ $again = yes ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit $code
"""

LAST = """\
#!/bin/bash
# Written by skysieve: joins the results when all tasks have ended.
#SBATCH --job-name={name}-join
#SBATCH --ntasks=1
#SBATCH --output={logs}/slurm-%j.log
exec {command} finish {folder}
"""

CONDOR = """\
# Written by skysieve for HTCondor, where it has NOT been tested.  Submit it with condor_submit; when all have ended:
# {command} finish {folder}
universe = vanilla
executable = {python}
arguments = -m skysieve.cluster task {folder} $(Process) {tasks} {resources}
request_cpus = {threads}
{gpus}should_transfer_files = NO
getenv = True
log = {folder}/condor.log
output = {folder}/condor-$(Process).out
error = {folder}/condor-$(Process).err
# A task that a signal stops keeps its finished partitions and exits with this code; HTCondor then starts it again.
checkpoint_exit_code = {checkpoint}
kill_sig = SIGTERM
queue {tasks}
"""


def _filled(template: str, folder: Path, job: Job, tasks: int, resources: Resources) -> str:
    given = [f"--threads {resources.threads or 1}"]
    given += [f"--memory {shlex.quote(resources.memory)}"] if resources.memory else []
    gpus = "" if job.device == "cpu" else "#SBATCH --gpus=1\n" if template != CONDOR else "request_gpus = 1\n"
    place = shlex.quote(str(folder.absolute()))
    return template.format(
        name=f"skysieve-{job.command.replace(' ', '-')}", array=f"0-{tasks - 1}", threads=resources.threads or 1,
        folder=place, logs=place.replace("%", "%%"), warning=WARNING, checkpoint=CHECKPOINT, tasks=tasks,
        command=f"{shlex.quote(sys.executable)} -m skysieve.cluster", python=sys.executable, resources=" ".join(given),
        gpus=gpus,
    )  # fmt: skip


def check_submission(scheduler: str, device: str) -> None:
    """Refuse, before the input is divided, what cannot be submitted; see `submit`."""
    if device == "auto":
        raise ValueError(
            f"--device auto: {scheduler} needs --device cpu or --device cuda, choose the one that its nodes have"
        )
    if scheduler == "slurm" and shutil.which("sbatch") is None:
        raise FileNotFoundError("sbatch is not on the PATH: --cluster slurm works on a machine that submits to SLURM")


def submit(
    job: Job,
    scheduler: str = "slurm",
    *,
    tasks: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    memory: str | None = None,
) -> list[str]:
    """Write the files of an array of tasks, and submit it to SLURM; for HTCondor they are only written.

    Parameters
    ----------
    job : Job
    scheduler : {"slurm", "htcondor"}
    tasks : int, optional
        Tasks of the array, which share the partitions; one for each partition by default, 100 at most.
    resume, overwrite, threads, memory : optional
        As for `skysieve.cluster.run`; a task has one thread by default.

    Returns
    -------
    list of str
        Lines for the user, such as the numbers of the jobs.

    Raises
    ------
    ValueError, OSError
        The device is "auto", which the machine that submits cannot know; the folder is in use; or sbatch fails.

    Notes
    -----
    A second job of SLURM writes the output when all tasks have ended.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skysieve import cluster
    >>> folder = Path(tempfile.mkdtemp())
    >>> for star in "ab":
    ...     rows = "".join(f"{0.37 * i} {10 + (i * 0.37 % 2.5) / 2.5}\\n" for i in range(60))
    ...     _ = (folder / f"{star}.txt").write_text(rows)
    >>> stars = cluster.job("period", folder / "periods.csv", files=sorted(folder.glob("*.txt")), device="cpu")
    >>> cluster.submit(stars, "htcondor")[0].startswith("wrote")
    True
    >>> cluster.submit(stars, tasks=2)  # doctest: +SKIP
    """
    check_submission(scheduler, job.device)
    folder = RunFolder(job, resume, overwrite)
    try:
        outcome, missing = folder.outcome()
        count = max(1, min(tasks or TASKS, len(missing)))
        resources = Resources(threads, memory)
        if scheduler == "htcondor":
            path = folder.folder / "condor.sub"
            _write(path, _filled(CONDOR, folder.folder, job, count, resources))
            folder.write_manifest("written")
            return [f"wrote {path} for HTCondor (untested); it says how to submit it and how to join the results"]
        paths = [folder.folder / name for name in ("slurm-tasks.sh", "slurm-join.sh")]
        for path, template in zip(paths, (SCRIPT, LAST), strict=True):
            _write(path, _filled(template, folder.folder, job, count, resources))
        first = _sbatch([str(paths[0])])
        try:
            last = _sbatch([f"--dependency=afterany:{first}", str(paths[1])])
        except OSError:  # for example a limit on jobs
            subprocess.run(["scancel", first], check=False)
            raise
        folder.write_manifest("submitted", slurm=[first, last], tasks=count)
    finally:
        folder.close()
    return [
        f"submitted {len(missing):,} of {outcome.partitions:,} partitions to SLURM: job {first} of {count:,} tasks, "
        f"and job {last}, which writes {job.output} when they have ended",
        f"their messages are in {folder.folder}/slurm-*.log; should it fail: "
        f"{sys.executable} -m skysieve.cluster finish {folder.folder}",
    ]


def _write(path: Path, text: str) -> None:
    with written(path) as part:
        part.write_text(text, encoding="utf-8")


def _sbatch(arguments: list[str]) -> str:
    done = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = "; ".join(line.removeprefix("sbatch: ") for line in done.stderr.strip().splitlines())
        raise OSError(f"sbatch: {said or f'exit code {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]


def task(folder: Path, number: int, tasks: int, resources: Resources) -> int:
    """Compute the partitions of a task: of those that are not done, `number`, `number` + `tasks` ...

    Returns
    -------
    int
        The exit code: 0, 1 if partitions have failed, 2 if results cannot be written or a GPU is lost.

    Notes
    -----
    After SIGTERM, SIGUSR2 or SIGINT the process ends at once with the exit code `CHECKPOINT`: partitions that are
    done are stored, and the one that it works on is computed again.
    """

    def stop(signum: int, _frame: Any) -> None:
        print(f"skysieve: {signal.Signals(signum).name}; finished partitions are stored", file=sys.stderr, flush=True)
        os._exit(CHECKPOINT)

    for one in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(one, stop)
    job = Job(**read_manifest(folder)["job"])
    failed: list[int] = []

    def step(which: int, facts: dict[str, Any] | None, error: str) -> None:
        if facts is None:
            failed.append(which)
            fail(folder, which, error)
            print(f"skysieve: partition {which}: {error}", file=sys.stderr, flush=True)
        else:
            print(f"partition {which}: {facts['rows']:,} rows", flush=True)
            for line in facts["faults"]:
                print(f"skysieve: {line}", file=sys.stderr, flush=True)

    errors: list[BaseException] = []

    def work() -> None:
        try:
            in_this_process(folder, job.key, range(number, len(job.partitions), tasks), resources, step)
        except (OSError, RuntimeError) as error:  # a full disk, a lost GPU
            errors.append(error)

    # Signals are handled in the main thread, which must not be in a long computation.
    thread = threading.Thread(target=work, name="skysieve-partitions")
    thread.start()
    thread.join()
    for error in errors:
        print(f"skysieve: {error}; --resume continues from the finished partitions", file=sys.stderr, flush=True)
    return 2 if errors else int(bool(failed))


def finish(folder: Path) -> Outcome:
    """Write the output of a job from the partitions that are done; the others have failed.

    Raises
    ------
    ValueError, OSError
        Tasks are at work still, or the output cannot be written.
    """
    held = RunFolder(Job(**read_manifest(folder)["job"]), resume=True)
    try:
        outcome, missing = held.outcome()
        reasons = held.failures(missing)
        outcome.failed = {number: reasons.get(number, "its task ended before it was computed") for number in missing}
        held.finish(outcome)
    finally:
        held.close()
    return outcome
