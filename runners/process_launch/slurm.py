"""Builds command lines (mpirun, mpiexec, srun) that start a process per GPU, and checks on which hosts ranks run.

Inside a Slurm job, it also finds the job's nodes, starts launchers, and ends the steps that launchers create.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from chorale.runners.process_launch.processes import LocalHost, LocalProcess, ProcessSpec
from chorale.synth.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from chorale.synth.topology.topology import Topology

TASK_RESOURCE = "chorale_task"
"""Name of a Ray resource of which each task of a job array provides one unit. Each task has its own nodes, and the
nodes of all tasks form one Ray cluster."""

_STEP_GRACE_S = 5.0  # time for srun to end its step after SIGTERM, before srun is killed
_ANSWER_LIMIT_S = 30.0
_STEP_END_LIMIT_S = 30.0
_POLL_S = 0.2
_NO_LIMIT_S = 364 * 86400
"""Remaining seconds from which a job counts as unlimited, because Slurm gives jobs without a limit a year."""

_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Environment variables in which srun, MPICH (and its derivatives) and Open MPI set the number of processes that they
start together."""
BUFFER_VARIABLES: Mapping[str, str] = {
    "Simple": "NCCL_BUFFSIZE",
    "LL": "NCCL_LL_BUFFSIZE",
    "LL128": "NCCL_LL128_BUFFSIZE",
}
"""Protocol -> environment variable for the size of a connection's buffer."""


def in_slurm_job() -> bool:
    return "SLURM_JOB_ID" in os.environ


def node_name() -> str:
    """Return this node's name: within a Slurm job Slurm's name for it, else the machine's host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def node_facts() -> dict[str, str]:
    """Return facts to store with results: this node's name in a Slurm job, because jobs may run on different nodes."""
    return {"nodes": node_name()} if in_slurm_job() else {}


def require_one_process() -> None:
    """Raise InvalidInput if a launcher has started several copies of this command: each copy would start all ranks.

    Ray workers do not count as copies, although they inherit the variables of the step that started their nodes.
    """
    if "RAY_RAYLET_PID" in os.environ:
        return
    for variable in _TASK_COUNTS:
        count = os.environ.get(variable, "1")
        if count.isdigit() and int(count) > 1:
            rule = "this command starts the ranks itself, but it was started {}"
            raise InvalidInput(rule, f"{count} times ({variable})", "leave the launcher out, or start it with srun -n1")


@dataclass(frozen=True, slots=True)
class SlurmAllocation:
    """A job's nodes in Slurm's order, and the number of tasks on each of them (1 if unknown)."""

    nodes: tuple[str, ...]
    tasks_per_node: int

    @staticmethod
    def current() -> SlurmAllocation:
        """Return the allocation of the job to which this process belongs: all its nodes, even if this process belongs
        to a step that has only some of them. Raises Unavailable if Slurm does not reply.
        """
        names = os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST", "")
        nodes = tuple(slurm_output("scontrol", "show", "hostnames", names).split())
        tasks = os.environ.get("SLURM_TASKS_PER_NODE", "") if "SLURM_STEP_NUM_TASKS" not in os.environ else ""
        first = tasks.partition(",")[0].partition("(")[0]
        return SlurmAllocation(nodes, int(first) if first.isdigit() else 1)

    def hosts_of(self, ranks: int) -> tuple[tuple[str, int], ...]:
        """Distribute `ranks` over the nodes, filling one node after the other; return (node, number of ranks) pairs."""
        per_node = max(self.tasks_per_node, -(-ranks // len(self.nodes)))
        used = -(-ranks // per_node)
        counts = [min(per_node, ranks - index * per_node) for index in range(used)]
        return tuple(zip(self.nodes, counts, strict=False))


def slurm_output(*argv: str) -> str:
    """Return the output of a Slurm command. Raises Unavailable, with the command's message, if the command fails."""
    rule, way_out = "Slurm does not answer: {}", "see `sinfo`, and whether the commands of Slurm are on the PATH"
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(rule, error, way_out) from error
    if done.returncode != 0:
        raise Unavailable(rule, f"{argv[0]}: {done.stderr.strip() or done.stdout.strip()}", way_out)
    return done.stdout


def seconds_left() -> float | None:
    """Return the seconds until this process's job reaches its time limit, or None without a limit."""
    job = os.environ["SLURM_JOB_ID"]
    text = slurm_output("squeue", "--noheader", f"--jobs={job}", "--format=%L").strip()
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts):
        return None  # UNLIMITED, NOT_SET and the like
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    left_s = seconds + 86400.0 * int(days or 0)
    return None if left_s >= _NO_LIMIT_S else left_s


def _end_steps(name: str) -> None:
    """Cancel the running steps `name` of this job. Raises Unavailable if one does not end."""
    if not in_slurm_job() or shutil.which("squeue") is None:
        return
    ask = ("squeue", "--steps", "--noheader", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%i %j")
    deadline_s = time.monotonic() + _STEP_END_LIMIT_S
    while True:
        lines = (line.split(None, 1) for line in slurm_output(*ask).splitlines())
        steps = [step for step, step_name in lines if step_name.strip() == name]
        if not steps:
            return
        if time.monotonic() > deadline_s:
            way_out = f"see `squeue --steps`, cancel the step {name}, then measure again"
            raise Unavailable("a step of the measurement did not end", "", way_out)
        subprocess.run(["scancel", "--signal=KILL", *steps], capture_output=True, timeout=_ANSWER_LIMIT_S, check=False)  # noqa: S603, S607
        time.sleep(_POLL_S)


HYDRA_SCRIPT = """\
#!/bin/sh
# Replaces srun for MPICH's mpiexec: starts MPICH's proxies in the order of the hosts, next to other steps of the job.
# A proxy uses its node's number, which srun counts in another order, so the script replaces it by the task's number.
unset SLURM_HOSTFILE
words=$#
while [ "$words" -gt 0 ]; do
  case $1 in
    hydra_*_proxy | */hydra_*_proxy)
      set -- "$@" sh -c 'SLURM_NODEID=$SLURM_PROCID; export SLURM_NODEID; exec "$@"' sh ;;
  esac
  set -- "$@" "$1"
  shift
  words=$((words - 1))
done
exec srun --overlap --mpi=none --job-name="${CHORALE_STEP:-chorale}" --distribution=arbitrary "$@"
"""
"""Script for HYDRA_LAUNCHER_EXEC in Slurm jobs. Plain srun reorders nodes and waits for the outer step's resources."""

OPEN_MPI_ARGUMENTS = "--overlap --job-name="
"""Arguments that Open MPI's mpirun passes to srun, before the step's name."""


def start_launcher(
    command: str, environment: Mapping[str, str], in_steps: bool, script: str = HYDRA_SCRIPT
) -> LocalProcess:
    """Run a shell command that starts mpiexec, mpirun or srun. The command can run `script` as "$PWD/launcher".

    in_steps: whether the launched processes are steps of this Slurm job. The steps' name is in $CHORALE_STEP. If srun
              were just killed, its step would keep running, and the next step would wait for the nodes. So `kill` first
              sends SIGTERM to srun, then cancels remaining steps. It raises Unavailable if a step does not end.
    """
    files = {"launcher": script.encode()}
    if not in_steps:
        return LocalHost().start(ProcessSpec(("/bin/sh", "-c", command), environment, files))
    name, steps = f"chorale-{uuid.uuid4().hex[:12]}", f'"{OPEN_MPI_ARGUMENTS}$CHORALE_STEP"'
    settings = 'HYDRA_LAUNCHER=slurm HYDRA_LAUNCHER_EXEC="$PWD/launcher"'
    settings += f" PRTE_MCA_plm_slurm_args={steps} OMPI_MCA_plm_slurm_args={steps}"
    argv, variables = ("/bin/sh", "-c", f"export {settings}\n{command}"), {**environment, "CHORALE_STEP": name}
    return LocalHost().start(ProcessSpec(argv, variables, files, _STEP_GRACE_S, partial(_end_steps, name)))


STEP = "$CHORALE_STEP"
"""Shell variable that contains the name of the Slurm steps that a launch starts."""

MPI_TYPE = "$CHORALE_MPI"
"""Shell variable that contains the value of srun's option --mpi for the steps of a launch."""

Launcher = Literal["openmpi", "mpich", "srun"]
"""Name of a launcher: Open MPI's mpirun, the mpiexec of MPICH and its derivatives, or Slurm's srun."""


def gpus_per_machine(topology: Topology) -> int | None:
    """Return the ranks per box if node ids have the form `BOX.GPU` and all boxes have equal sizes, or else None."""
    boxes = Counter(name.rpartition(".")[0] for name in topology.node_ids[: topology.compute_count])
    sizes = set(boxes.values())
    return sizes.pop() if len(sizes) == 1 and "" not in boxes else None


def gpus_per_node(ranks: int, hosts: Sequence[str], per_node: int | None) -> int:
    """Return the number of ranks per node: `per_node`, or if it is None, the ranks divided by the number of `hosts`.

    Raises InvalidInput unless every rank gets a GPU and every GPU of the hosts gets a rank.
    """
    per_node = per_node or -(-ranks // max(1, len(hosts)))
    if hosts and len(hosts) * per_node != ranks:
        there = f"{len(hosts)} hosts with {per_node} GPUs"
        raise InvalidInput(f"the hosts must have exactly {ranks} GPUs, one per rank", there, "name other hosts")
    if ranks % per_node:
        raise InvalidInput(f"gpus_per_node must divide the {ranks} ranks", per_node, "choose a divisor")
    return per_node


def launch_command(
    launcher: Launcher, ranks: int, hosts: Sequence[str], per_node: int | None, mpi: str = MPI_TYPE
) -> list[str]:
    """Return the launcher's command line. Append a command, and the launcher runs it once per rank, in `hosts` order.

    hosts:    empty for the current node or allocation
    per_node: ranks per node; None for the number of ranks on each of `hosts`
    mpi:      process-management interface that srun offers to MPI, see `srun --mpi=list`

    A shell must expand the variables in srun's command. srun's step may share resources with other steps of the job.
    srun only keeps the order of nodes if the node of every rank is specified. Without `hosts`, the command specifies
    the number of nodes and the distribution of ranks, because srun would otherwise use all nodes and the site's default
    distribution.
    """
    per_node = gpus_per_node(ranks, hosts, per_node)
    if launcher == "openmpi":
        slots = ["--host", ",".join(f"{host}:{per_node}" for host in hosts)] if hosts else []
        return ["mpirun", "-np", str(ranks), "--map-by", f"ppr:{per_node}:node", *slots]
    if launcher == "mpich":
        named = ["-hosts", ",".join(hosts)] if hosts else []
        return ["mpiexec", "-n", str(ranks), "-ppn", str(per_node), *named]
    command = ["srun", f"--mpi={mpi}", "--overlap", "--kill-on-bad-exit=1", f"--job-name={STEP}"]
    command += [f"--nodes={ranks // per_node}", f"--ntasks={ranks}"]
    if hosts:
        nodes = ",".join(host for host in hosts for _ in range(per_node))
        return [*command, "--distribution=arbitrary", f"--nodelist={nodes}"]
    return [*command, f"--ntasks-per-node={per_node}", "--distribution=block"]


@dataclass(frozen=True, slots=True)
class RankHost:
    """The host that a rank reports: its main name, and all its names and addresses except loopback addresses."""

    name: str
    aliases: frozenset[str]

    @staticmethod
    def of_words(words: Sequence[str]) -> RankHost:
        """Return the host with the names `words`; the first is its main name."""
        return RankHost(words[0], frozenset(words))

    def is_called(self, host: str) -> bool:
        """Return whether `host`, as a user wrote it, means this host. Domains in the names are ignored."""
        short = {name.partition(".")[0] for name in self.aliases if not name[:1].isdigit()} | self.aliases
        if host in self.aliases or host.partition(".")[0] in short or host == "localhost" or host.startswith("127."):
            return True
        try:
            return socket.gethostbyname(host) in self.aliases
        except OSError:
            return False


def this_host() -> RankHost:
    """Return this process's host. Within a Slurm job, its main name is Slurm's name for it."""
    name, addresses = socket.gethostname(), []
    with contextlib.suppress(OSError):
        addresses = socket.gethostbyname_ex(name)[2]
    return RankHost.of_words([node_name(), name, *addresses])


def placement_fault(hosts: Sequence[str], per_host: int, ranks: Mapping[int, RankHost]) -> str | None:
    """Return a line that says which rank is on the wrong host; None if all ranks are on the right hosts.

    hosts: the hosts as the user named them, each for `per_host` ranks; empty to check only the number of ranks per host
    ranks: host that each rank has reported; ranks that have not reported yet may be missing
    """
    for rank, actual in sorted(ranks.items()):
        if hosts and not actual.is_called(hosts[rank // per_host]):
            asked = f"instead of {hosts[rank // per_host]}"
            return f"rank {rank} ran on {actual.name} {asked}: the launcher chose other hosts or another order"
        first = ranks.get(rank // per_host * per_host, actual)
        if first.name != actual.name:
            begun = f"{per_host} ranks were to share a host, but ranks {rank // per_host * per_host} and {rank} ran on"
            return f"{begun} {first.name} and {actual.name}"
    return None


def host_names(ranks: Mapping[int, RankHost]) -> str | None:
    """Return the names of the ranks' hosts in rank order, without consecutive duplicates; None if no host is known."""
    names = [ranks[rank].name for rank in sorted(ranks)]
    return ",".join(name for index, name in enumerate(names) if names[index - 1 : index] != [name]) or None
