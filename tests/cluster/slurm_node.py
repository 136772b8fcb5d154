"""SLURM on this machine alone, for tests: its daemons run with a configuration of their own in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = [shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") for name in
           ("munged", "slurmctld", "slurmd")]  # fmt: skip
AVAILABLE = all(DAEMONS) and shutil.which("sbatch") is not None

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldAddr=127.0.0.1
SlurmctldPort={ctl}
SlurmdPort={d}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=300
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
InactiveLimit=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def slurm_node(folder: Path, cpus: int = 2) -> Iterator[Path]:
    """Start SLURM; the value is its configuration, for the environment variable ``SLURM_CONF``."""
    munged, slurmctld, slurmd = DAEMONS
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    conf.write_text(CONFIG.format(host=host, ctl=_free_port(), d=_free_port(), folder=folder, user=user, cpus=cpus))
    version = subprocess.run([str(slurmd), "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    none = "disabled" if tuple(map(int, version.split(".")[:2])) >= (23, 11) else "cgroup/v1"
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={none}\nCgroupMountpoint={folder}/cgroup\n")
    environment = os.environ | {"SLURM_CONF": str(conf)}
    commands = [
        [munged, "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key",
         f"--log-file={folder}/munged.log", f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed"],
        [slurmctld, "-D", "-i", "-f", str(conf)],
        [slurmd, "-D", "-N", host, "-f", str(conf)],
    ]  # fmt: skip
    with ExitStack() as stack:
        for command in commands:
            log = stack.enter_context(open(folder / f"{Path(str(command[0])).name}.out", "wb"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(_end, process)
            time.sleep(1)
        for _ in range(60):
            asked = subprocess.run(
                ["sinfo", "--noheader", "--format=%T"], env=environment, capture_output=True, text=True, check=False
            )
            if asked.stdout.strip() in ("idle", "mixed", "allocated"):
                break
            time.sleep(0.5)
        else:
            logs = [(folder / name).read_text()[-2000:] for name in ("slurmctld.out", "slurmd.out", "munged.out")]
            raise RuntimeError(f"SLURM does not start: {asked.stdout} {asked.stderr} {logs}")
        yield conf
        subprocess.run(["scancel", "--user", user], env=environment, check=False)
        time.sleep(1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
