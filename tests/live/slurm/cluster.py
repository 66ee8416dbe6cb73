"""A Slurm cluster of four nodes on this machine, from the packages of the distribution, for tests."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.waiting import free_ports, until

NODES = ("n1", "n2", "n3", "n4")
GPUS = CPUS = 8
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "libpmix-dev")
INSTALL = f"apt-get install {' '.join(PACKAGES)}"
WORK, URGENT = "work", "urgent"
"""A partition whose jobs are requeued when one of the other needs their nodes."""

TOPOLOGY = "SwitchName=leaf1 Nodes=n1,n3\nSwitchName=leaf2 Nodes=n2,n4\nSwitchName=spine Switches=leaf1,leaf2\n"
REQUEUE_S = 30
"""How long a job that is requeued waits at least, which is as long as credentials of steps hold."""

_START_LIMIT_S, _END_LIMIT_S = 30.0, 20.0
_NULL_DEVICE = (1, 3)
_SBIN = "/usr/sbin:/sbin"


def missing_for_slurm() -> str | None:
    """Return in one line what this machine lacks to run a Slurm cluster, None if it has everything."""
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if not _has_library("libpmix.so", path):
        missing.append("libpmix.so")  # which srun loads by this name
    if missing:
        return f"a Slurm cluster needs {', '.join(missing)}: on Debian, {INSTALL}"
    if os.geteuid() != 0:
        return "a Slurm cluster of tests needs root: slurmd starts processes of users"
    return None


def _has_library(name: str, path: str) -> bool:
    ldconfig = shutil.which("ldconfig", path=path)
    if ldconfig is None:
        return False
    listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, timeout=_END_LIMIT_S, check=False)
    return any(line.split()[:1] == [name] for line in listed.stdout.splitlines())


class SlurmCluster:
    """munged, slurmctld and a slurmd per node in `folder`, on free ports of loopback; ends with `close`.

    Each node has counted GPUs, device files that nobody opens. Nodes hang on two switches in another order than that of
    their names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._path = f"{os.environ['PATH']}:{_SBIN}"
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": self._path}

    def run(
        self, *argv: str, limit_s: float = 120, folder: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env={**os.environ, **self.environment, **(variables or {})},
            cwd=folder or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def output(self, *argv: str) -> str:
        """Return what a command of Slurm prints; AssertionError with its words where it fails."""
        done = self.run(*argv)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str, folder: Path | None = None) -> str:
        path = (folder or self.folder) / f"job-{secrets.token_hex(4)}.sh"
        path.write_text(script)
        done = self.run("sbatch", "--parsable", *options, str(path), folder=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().partition(";")[0]

    def state(self, job: str) -> str:
        return self.fact(job, "JobState")

    def fact(self, job: str, key: str) -> str:
        """Return what `scontrol show job` says of `key`; empty for a job that it knows no more."""
        done = self.run("scontrol", "--oneliner", "show", "job", job)
        words = (word.partition("=") for word in done.stdout.split())
        return next((value for name, _, value in words if name == key), "")

    def wait(self, job: str, limit_s: float = 120) -> str:
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")
        until(lambda: self.state(job) in ended, limit_s, lambda: f"job {job} is {self.state(job)}")
        return self.state(job)

    def steps(self) -> list[str]:
        """Return the names of the steps that run, but for batch scripts and allocations."""
        lines = self.output("squeue", "--steps", "--noheader", "--format=%i %j").splitlines()
        names = [(step.partition(".")[2], name) for step, name in (line.split(None, 1) for line in lines)]
        return [name for step, name in names if step not in ("batch", "extern", "interactive")]

    def clean(self) -> None:
        self.run("scancel", "--user", pwd.getpwuid(os.geteuid()).pw_name)
        for node in NODES:
            if self._node_state(node).startswith(("DOWN", "DRAIN", "UNKNOWN")):
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        until(self._is_idle, 60, lambda: self.output("sinfo", "--Node", "--noheader"))

    def set_down(self, node: str) -> None:
        """Declare a node down, as Slurm does when it answers no more: its steps die."""
        self.output("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def close(self) -> None:
        self._stack.close()

    def _is_idle(self) -> bool:
        states = self.output("sinfo", "--Node", "--noheader", "--format=%N %T").split("\n")
        return {line.split()[1] for line in states} == {"idle"} and not self.output("squeue", "--noheader")

    def _node_state(self, node: str) -> str:
        words = self.output("scontrol", "--oneliner", "show", "node", node).split()
        return next(word.partition("=")[2] for word in words if word.startswith("State="))

    def _start(self) -> None:
        for name in ("state", "log", "munge", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        self._start_munge()
        (self.folder / "slurm.conf").write_text(self._configuration())
        (self.folder / "topology.conf").write_text(TOPOLOGY)
        for gpu in range(GPUS):
            os.mknod(self.folder / f"gpu{gpu}", stat.S_IFCHR | 0o666, os.makedev(*_NULL_DEVICE))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
        (self.folder / "cgroup.conf").write_text("")
        self._daemon("slurmctld", "-D")
        self._stack.callback(self._end_jobs)
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node, log=node)
        log = lambda: (self.folder / "log/slurmctld.out").read_text()[-2000:]  # noqa: E731 - a message
        until(lambda: self.run("scontrol", "ping").returncode == 0, _START_LIMIT_S, log)
        until(self._is_idle, _START_LIMIT_S, log)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        options = {"key-file": key, "socket": folder / "socket", "pid-file": folder / "pid", "seed-file": folder / "s"}
        words = [f"--{name}={value}" for name, value in options.items()]
        self._daemon("munged", "--foreground", "--force", f"--log-file={folder}/log", *words)
        until((folder / "socket").exists, _START_LIMIT_S, lambda: "munged made no socket")

    def _daemon(self, *argv: str, log: str | None = None) -> None:
        with (self.folder / f"log/{log or argv[0]}.out").open("wb") as output:
            process = subprocess.Popen(
                argv,
                env={**os.environ, **self.environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stack.callback(_end, process)

    def _end_jobs(self) -> None:
        self.run("scancel", "--user", pwd.getpwuid(os.geteuid()).pw_name)
        with suppress(AssertionError):  # daemons end their steps, too
            until(lambda: not self.output("squeue", "--noheader"), _END_LIMIT_S, lambda: "jobs are still there")

    def _configuration(self) -> str:
        host, user, ports = socket.gethostname(), pwd.getpwuid(os.geteuid()).pw_name, free_ports(1 + len(NODES))
        folder = self.folder
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} Gres=gpu:{GPUS}"
            for node, port in zip(NODES, ports[1:], strict=True)
        ]
        return "\n".join(
            [
                f"ClusterName=chorale\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={ports[0]}\nSlurmUser={user}",
                f"SlurmdUser={user}\nAuthType=auth/munge\nCredType=cred/munge",
                f"AuthInfo=socket={folder}/munge/socket,cred_expire={REQUEUE_S}",
                f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool/%n\nTmpFS={folder}/tmp/%n",
                f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/%n.pid\nSlurmdParameters=config_overrides",
                "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres",
                "SelectTypeParameters=CR_Core\nGresTypes=gpu\nMpiDefault=none\nTopologyPlugin=topology/tree",
                "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nJobRequeue=1\nReturnToService=1\nKillWait=10",
                "OverTimeLimit=1",
                "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0\nMinJobAge=3600",
                "SlurmctldParameters=preempt_send_user_signal\nUnkillableStepTimeout=60\nWaitTime=0",
                *nodes,
                f"PartitionName={WORK} Nodes=ALL Default=YES PriorityTier=1 GraceTime=20 MaxTime=INFINITE",
                f"PartitionName={URGENT} Nodes=ALL PriorityTier=10 MaxTime=INFINITE PreemptMode=OFF\n",
            ]
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
