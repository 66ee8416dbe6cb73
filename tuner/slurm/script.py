"""The batch script of a command, from a template: requests, prologue, Ray if it is needed, stopping and going on.

And what it asks for: how many nodes, tasks and GPUs a runner needs for a network, and whether it needs Ray on them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chorale.runners.api.config import RunnerConfig
from chorale.runners.mpi.config import MpiConfig
from chorale.runners.msccl.commands import gpus_per_machine
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.oneccl.config import OneCclConfig
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.html_template import render_script
from chorale.tuner.slurm.profile import SlurmProfile, this_command
from chorale.tuner.slurm.submission import CODE_SUFFIX

TEMPLATE = Path(__file__).parent / "job.sh.jinja"
STOP_VARIABLE = "CHORALE_STOP_S"
"""How many seconds before the end of the job a command stops by itself: sooner than the signal of Slurm."""

REQUEUE_VARIABLE = "CHORALE_REQUEUES"
"""Set where a script goes on with a campaign that was stopped."""


@dataclass(frozen=True, slots=True)
class JobShape:
    """What a job asks for; `gpus` of a node, `hosts` where the nodes are named, `ray` whether Ray is to be on them."""

    nodes: int
    tasks_per_node: int
    gpus: int = 0
    hosts: tuple[str, ...] = ()
    ray: bool = False

    def requests(self) -> list[str]:
        """Return the options of sbatch."""
        gpus = [f"--gpus-per-node={self.gpus}"] if self.gpus else []
        hosts = [f"--nodelist={','.join(self.hosts)}"] if self.hosts else []
        return [f"--nodes={self.nodes}", f"--ntasks-per-node={self.tasks_per_node}", *gpus, *hosts]


def job_shape(config: RunnerConfig, topology: Topology, profile: SlurmProfile) -> JobShape:
    """Return what a job needs in which `config` measures on `topology`; the profile's numbers come first.

    InvalidInput where the nodes of the profile have no room for the ranks.
    """
    shape = _needed(config, topology)
    nodes = profile.nodes or shape.nodes
    tasks = profile.tasks_per_node or -(-shape.nodes * shape.tasks_per_node // nodes)
    if nodes * tasks < shape.nodes * shape.tasks_per_node:
        ranks = shape.nodes * shape.tasks_per_node
        way_out = "change `nodes` or `tasks_per_node` of the profile"
        raise InvalidInput(f"a job must have a task for each of {ranks} ranks", f"{nodes} nodes of {tasks}", way_out)
    gpus = shape.gpus if profile.gpus_per_node is None else profile.gpus_per_node
    return JobShape(nodes, tasks, gpus, shape.hosts, shape.ray if profile.ray is None else profile.ray)


def _needed(config: RunnerConfig, topology: Topology) -> JobShape:
    ranks = topology.compute_count
    if isinstance(config, MscclConfig):
        per_node = config.for_network(topology).gpus_per_node or ranks
        return JobShape(-(-ranks // per_node), per_node, per_node, tuple(config.hosts), config.takes_nodes_from_ray)
    if isinstance(config, MpiConfig) and config.where in (None, "cluster") and config.fabric is None:
        hosts = _distinct(config.hosts)
        per_node = -(-ranks // len(hosts)) if hosts else gpus_per_machine(topology) or 1
        return JobShape(len(hosts) or -(-ranks // per_node), per_node, hosts=hosts)
    if isinstance(config, OneCclConfig) and config.where == "cluster":
        return JobShape(ranks, 1, ray=True)
    return JobShape(1, 1)


def _distinct(hosts: str | None) -> tuple[str, ...]:
    """Return the names of a comma list; a file of hosts is read in the job."""
    if hosts is None or hosts.startswith("@"):
        return ()
    return tuple(dict.fromkeys(word.partition(":")[0] for word in hosts.split(",") if word))


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A command as a job.

    arguments: of `chorale`, without those about Slurm
    folder:    where it runs; `home` is the data folder, which all nodes must see
    resumes:   whether it is a campaign, which stops, requeues and goes on
    tasks:     of an array that work on one campaign together; 1 for no array
    """

    name: str
    arguments: tuple[str, ...]
    folder: Path
    home: Path
    shape: JobShape
    resumes: bool = False
    tasks: int = 1

    def script(self, profile: SlurmProfile) -> str:
        """Return the batch script; same job and profile, same text."""
        uses_ray = self.shape.ray or self.tasks > 1
        ray_name = "$SLURM_ARRAY_JOB_ID" if self.tasks > 1 else "$SLURM_JOB_ID"
        output = f"{self.home}/slurm/{self.name}-{ray_name}{'-0' if self.tasks > 1 else ''}"
        return render_script(
            TEMPLATE,
            requests=[*self._requests(profile), *profile.requests()],
            title=f"chorale {self.arguments[0]} --slurm",
            prologue=profile.prologue,
            bin=None if profile.command or profile.container else str(Path(this_command()).parent),
            output=f"{output}.out",
            code_file=f"{output}{CODE_SUFFIX}",
            variables=self._variables(profile),
            ray=uses_ray,
            ray_folder=str(self.home / "slurm"),
            ray_name=ray_name,
            ray_options="".join(f" {shlex.quote(option)}" for option in profile.ray_options),
            array=self.tasks > 1,
            srun_options=_words([*profile.srun, *(profile.container.srun_options if profile.container else [])]),
            prefix=_prefix(profile),
            python=self._python(profile),
            command=self._command(profile),
            resumes=self.resumes,
            requeue_at_most=profile.requeue_at_most,
        )

    def _requests(self, profile: SlurmProfile) -> list[str]:
        # On nodes of their own: tasks that shared nodes would disturb one another.
        array = [f"--array=0-{self.tasks - 1}", "--exclusive"] if self.tasks > 1 else []
        pattern = "%A-%a" if self.tasks > 1 else "%j"
        requeue = ["--requeue", "--open-mode=append"] if self.resumes else ["--no-requeue"]
        return [
            f"--job-name={self.name}",
            f"--chdir={self.folder}",
            f"--output={self.home}/slurm/{self.name}-{pattern}.out",
            f"--error={self.home}/slurm/{self.name}-{pattern}.err",
            f"--signal=B:USR1@{profile.stop_s}",
            *requeue,
            *array,
            *self.shape.requests(),
        ]

    def _variables(self, profile: SlurmProfile) -> Mapping[str, str]:
        requeues = {REQUEUE_VARIABLE: str(profile.requeue_at_most)} if self.resumes and profile.requeue_at_most else {}
        return {"CHORALE_HOME": str(self.home), STOP_VARIABLE: str(profile.stop_s), **requeues}

    def _command(self, profile: SlurmProfile) -> str:
        words = [profile.command or this_command(), *self.arguments]
        return _in_container(profile, shlex.join(words))

    def _python(self, profile: SlurmProfile) -> str:
        inside = profile.container is not None or profile.command is not None
        return _in_container(profile, "python3" if inside else shlex.quote(sys.executable))


def _in_container(profile: SlurmProfile, command: str) -> str:
    """Return the command of a shell that runs `command` on the first node, in the container if there is one."""
    container = profile.container
    if container is None or not container.srun_options:
        return _prefix(profile) + command
    step = ["srun", "--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", *profile.srun, *container.srun_options]
    return f"{shlex.join(step)} {command}"


def _prefix(profile: SlurmProfile) -> str:
    prefix: Sequence[str] = [] if profile.container is None else profile.container.prefix
    return f"{shlex.join(prefix)} " if prefix else ""


def _words(words: Sequence[str]) -> str:
    return "".join(f" {shlex.quote(word)}" for word in words)
