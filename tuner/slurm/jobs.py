"""Runs commands as Slurm jobs: reads site profiles, writes the batch script, submits and follows a job.

The script is rendered from a template. It requests the nodes, tasks and GPUs that a runner needs for a network, runs a
prologue, starts Ray if needed, and contains code that stops and requeues the job.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from chorale.job.files import read_file
from chorale.runners.api.config import RunnerConfig
from chorale.runners.api.registry import MpiConfig, OneCclConfig
from chorale.runners.nccl.config import GpuRanksConfig
from chorale.runners.process_launch.slurm import gpus_per_machine, slurm_output
from chorale.synth import InvalidInput, Topology, Unavailable
from chorale.tuner.config.values import Strict
from chorale.tuner.files.home import rendered, write_file
from chorale.tuner.files.yaml_text import load_yaml

PROFILE_VARIABLE = "CHORALE_SLURM"
"""Environment variable with the path of the site profile, used if the command line does not name one."""


def slurm_time(value: Any) -> str:
    """Convert a time limit to Slurm's format: 90min, 2h and 1d become minutes; 90, 1:30:00 and 1-00:00 stay as is."""
    text = str(value)
    if match := re.fullmatch(r"(\d+)(s|min|h|d)", text):
        unit_minutes = {"s": 1 / 60, "min": 1, "h": 60, "d": 24 * 60}[match[2]]
        return str(max(1, round(int(match[1]) * unit_minutes)))
    if not re.fullmatch(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}", text):
        raise ValueError("a time limit is written as 90min, 2h, 1d or as Slurm does, such as 1-12:00:00")
    return text


def limit_minutes(text: str) -> float:
    """Convert a time limit from Slurm's format (MIN, MIN:SEC, H:MIN:SEC, D-H, D-H:MIN or D-H:MIN:SEC) to minutes."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (60.0, 1.0, 1 / 60) if dash or len(parts) == 3 else (1.0, 1 / 60)
    return 24 * 60.0 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units, strict=False))


def _is_one_line(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError("the value should be one line of text")
    return value


def _has_no_spaces(value: str) -> str:
    if " " in value:
        raise ValueError("the value should be one word")
    return value


Line = Annotated[str, AfterValidator(_is_one_line)]
Word = Annotated[Line, AfterValidator(_has_no_spaces)]
TimeLimit = Annotated[str, BeforeValidator(slurm_time)]


class SlurmProfile(Strict):
    """A site's options for Slurm jobs. Without a value, Slurm's default applies."""

    partition: Word | None = Field(default=None, description="Partition.")
    account: Word | None = Field(default=None, description="Account.")
    time: TimeLimit | None = Field(default=None, description="Time limit: 90min, 2h, 1d, or in Slurm's format.")
    constraint: Word | None = Field(default=None, description="Features that nodes must have.")
    nodes: int | None = Field(default=None, ge=1, description="Number of nodes; default: as many as the runner needs.")
    tasks_per_node: int | None = Field(default=None, ge=1, description="Tasks per node; default: one per rank.")
    gpus_per_node: int | None = Field(
        default=None, ge=0, description="GPUs per node; default: one per rank with nccl or msccl. 0 requests none."
    )
    sbatch: list[Line] = Field(default=[], description="Additional options of sbatch, such as --qos=short.")
    srun: list[Word] = Field(default=[], description="Additional options of srun in the script, such as --cpu-bind.")
    prologue: list[Line] = Field(default=[], description="Lines at the start of the script, such as module load nccl.")
    command: Word | None = Field(
        default=None, description="Command chorale on the nodes; default: the path of this one."
    )
    ray: bool | None = Field(default=None, description="Start Ray on all nodes; default: if it is needed.")
    ray_options: list[Word] = Field(default=[], description="Additional options of `ray start`.")
    requeue_at_most: int = Field(default=20, ge=0, description="How often an unfinished campaign may be requeued.")
    stop_s: int = Field(default=120, ge=10, description="Seconds before the end of the job at which the command stops.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for option in self.sbatch:
            if not option.startswith("-"):
                raise ValueError(f"`sbatch` should contain options, which begin with `-`: {option}")
        if self.time is not None and 60 * limit_minutes(self.time) < 2 * self.stop_s:
            raise ValueError(f"`time` should be at least twice the {self.stop_s} s of `stop_s`: {self.time}")
        return self

    def requests(self) -> list[str]:
        named = {"partition": self.partition, "account": self.account, "time": self.time, "constraint": self.constraint}
        return [*(f"--{name}={value}" for name, value in named.items() if value is not None), *self.sbatch]


def load_profile(path: str | None, **changes: Any) -> SlurmProfile:
    """Return the site profile in the YAML file at `path` (default: the file that `PROFILE_VARIABLE` names, if any).

    changes: values that replace those in the file, unless they are None

    Raises InvalidInput for unknown keys and wrong values.
    """
    path = path or os.environ.get(PROFILE_VARIABLE) or None
    document: Any = {}
    if path is not None:
        text, rule = read_file(path, 2**20).decode(errors="replace"), "a profile of a site must be valid YAML"
        document = load_yaml(text, rule, f"repair {path}") or {}
    if not isinstance(document, dict):
        raise InvalidInput(
            "the site profile {} does not map keys to values", path, "write lines such as `partition: gpu`"
        )
    document |= {name: value for name, value in changes.items() if value is not None}
    try:
        return SlurmProfile.model_validate(document)
    except ValidationError as error:
        fault = error.errors()[0]
        keys = ".".join(map(str, fault["loc"])) or "profile"
        known = ", ".join(SlurmProfile.model_fields)
        rule = f"key `{keys}` of the profile of a site: {fault['msg'].removeprefix('Value error, ')}"
        raise InvalidInput(rule, fault["input"], f"known keys: {known}") from None


def this_command() -> str:
    """Return the path of this installation's `chorale`, or just `chorale` if it is not next to Python."""
    beside = Path(sys.executable).parent / "chorale"
    return str(beside) if beside.exists() else "chorale"


_ANSWER_LIMIT_S = 60.0
_POLL_S = 2.0
_SILENCE_LIMIT_S = 300.0
FORGOTTEN = ""
"""State of a job that ended so long ago (`MinJobAge`) that Slurm has no record of it."""

CODE_SUFFIX = ".code"
"""Suffix of the file, next to a job's output, in which the job's script stores the exit code."""

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A submitted Slurm job. When it starts, it creates the files `output` (stdout) and `messages` (stderr)."""

    job_id: str
    output: str
    messages: str


def submit(script: str, folder: Path, name: str) -> SubmittedJob:
    """Submit `script` as the job `name`. Its output files, and a record of the job, are written to `folder`.

    Raises Unavailable, with the message of sbatch, if Slurm refuses the job.
    """
    if shutil.which("sbatch") is None:
        way_out = "run this on a node from which jobs are submitted, or write the script with --slurm-script"
        raise Unavailable("there is no command sbatch", "", way_out)
    done = subprocess.run(
        ["sbatch", "--parsable"],  # noqa: S607
        input=script,
        capture_output=True,
        text=True,
        timeout=_ANSWER_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable("Slurm refused the job: {}", done.stderr.strip(), "change the profile of the site (--site)")
    job_id = done.stdout.strip().partition(";")[0]
    number = f"{job_id}-0" if "--array=" in script else job_id
    job = SubmittedJob(job_id, str(folder / f"{name}-{number}.out"), str(folder / f"{name}-{number}.err"))
    write_file(str(_record(folder, name)), json.dumps(asdict(job)).encode())
    return job


def submitted(folder: Path, name: str) -> SubmittedJob | None:
    """Return the latest job `name` that is recorded in `folder`, or None if there is none."""
    path = _record(folder, name)
    return SubmittedJob(**json.loads(path.read_text())) if path.is_file() else None


def _record(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def follow(job: SubmittedJob, show: Callable[[str], None]) -> int:
    """Wait until a job has ended, and pass its messages (standard error) to `show` meanwhile; return its exit code.

    A requeued job has not ended. A cancelled job has the exit code 130; any other job that left no code has 1.
    """
    shown, answered_s = 0, time.monotonic()
    while True:
        try:
            state, code = job_state(job.job_id)
        except Unavailable:  # the controller may be silent for a while
            if shutil.which("scontrol") is None or time.monotonic() > answered_s + _SILENCE_LIMIT_S:
                raise
            time.sleep(_POLL_S)
            continue
        answered_s = time.monotonic()
        text = _read(job.messages)
        show(text[shown:])
        shown = len(text)
        if not is_unfinished(state):
            if state == FORGOTTEN:  # the script writes its exit code when it ends; without that, the code is 1
                left = _read(str(Path(job.output).with_suffix(CODE_SUFFIX))).strip()
                return int(left) if left.isdigit() else 1
            return INTERRUPTED if state == "CANCELLED" else code or (0 if state == "COMPLETED" else 1)
        time.sleep(_POLL_S)


def is_unfinished(state: str) -> bool:
    waiting = ("PENDING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "PREEMPTED")
    return state in (*waiting, "RUNNING", "COMPLETING")


def job_state(job_id: str) -> tuple[str, int]:
    """Return the state and exit code of a job or of an array's first task; (`FORGOTTEN`, 0) if Slurm has no record."""
    try:
        line = slurm_output("scontrol", "--oneliner", "show", "job", job_id)
    except Unavailable as error:
        if "Invalid job id" in str(error):
            return FORGOTTEN, 0
        raise
    tasks = [dict(word.partition("=")[::2] for word in text.split()) for text in line.splitlines() if text.strip()]
    first = min(tasks, key=lambda task: int(task.get("ArrayTaskId", "0").partition("-")[0] or 0))
    return first["JobState"], int(first.get("ExitCode", "0:0").partition(":")[0])


def cancel(job: SubmittedJob) -> None:
    """Cancel a job. Its batch script then stops the command cleanly."""
    slurm_output("scancel", job.job_id)


def _read(path: str) -> str:
    file = Path(path)
    return file.read_text(errors="replace") if file.is_file() else ""


TEMPLATE = Path(__file__).parent / "job.sh.jinja"
STOP_VARIABLE = "CHORALE_STOP_S"
"""Environment variable with the number of seconds before the job's time limit at which the command stops by itself."""

REQUEUE_VARIABLE = "CHORALE_REQUEUES"
"""Environment variable with the maximum number of requeues, set by scripts that may requeue an unfinished campaign."""


@dataclass(frozen=True, slots=True)
class JobShape:
    """The resources of a Slurm job: `gpus` per node, names of the `hosts` to request, and whether to start Ray."""

    nodes: int
    tasks_per_node: int
    gpus: int = 0
    hosts: tuple[str, ...] = ()
    ray: bool = False

    def requests(self) -> list[str]:
        gpus = [f"--gpus-per-node={self.gpus}"] if self.gpus else []
        hosts = [f"--nodelist={','.join(self.hosts)}"] if self.hosts else []
        return [f"--nodes={self.nodes}", f"--ntasks-per-node={self.tasks_per_node}", *gpus, *hosts]


def job_shape(config: RunnerConfig, topology: Topology, profile: SlurmProfile) -> JobShape:
    """Return the resources that a runner with `config` needs for `topology`; the profile's numbers take precedence.

    Raises InvalidInput if the profile's nodes and tasks per node are too few for the ranks.
    """
    shape = _needed(config, topology)
    nodes = profile.nodes or shape.nodes
    tasks = profile.tasks_per_node or -(-shape.nodes * shape.tasks_per_node // nodes)
    if nodes * tasks < shape.nodes * shape.tasks_per_node:
        ranks = shape.nodes * shape.tasks_per_node
        way_out = "change `nodes` or `tasks_per_node` of the profile"
        raise InvalidInput(
            f"the job needs a task for each of {ranks} ranks, it has {{}}", f"{nodes} nodes of {tasks}", way_out
        )
    gpus = shape.gpus if profile.gpus_per_node is None else profile.gpus_per_node
    return JobShape(nodes, tasks, gpus, shape.hosts, shape.ray if profile.ray is None else profile.ray)


def _needed(config: RunnerConfig, topology: Topology) -> JobShape:
    ranks = topology.compute_count
    if isinstance(config, GpuRanksConfig):
        per_node = (None if config.launcher == "local" else config.for_network(topology).gpus_per_node) or ranks
        gpus = 0 if config.memory == "host" else per_node
        return JobShape(-(-ranks // per_node), per_node, gpus, tuple(config.hosts), config.uses_cluster)
    if isinstance(config, MpiConfig) and config.where in (None, "cluster") and config.fabric is None:
        named = config.hosts or ""
        named = "" if named.startswith("@") else named  # the file is read inside the job
        hosts = tuple(dict.fromkeys(word.partition(":")[0] for word in named.split(",") if word))
        per_node = -(-ranks // len(hosts)) if hosts else gpus_per_machine(topology) or 1
        return JobShape(len(hosts) or -(-ranks // per_node), per_node, hosts=hosts)
    if isinstance(config, OneCclConfig) and config.where == "cluster":
        return JobShape(ranks, 1, ray=True)
    return JobShape(1, 1)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A `chorale` command to run as a Slurm job.

    arguments: arguments of `chorale` without the Slurm options
    folder:    working directory of the command
    home:      data folder, which all nodes share
    resumes:   whether the command runs a campaign, which can be stopped, requeued and continued
    tasks:     number of array tasks that work on one campaign together; 1 without an array
    """

    name: str
    arguments: tuple[str, ...]
    folder: Path
    home: Path
    shape: JobShape
    resumes: bool = False
    tasks: int = 1

    def script(self, profile: SlurmProfile) -> str:
        """Return the batch script. The same job and profile give the same text."""
        uses_ray = self.shape.ray or self.tasks > 1
        ray_name = "$SLURM_ARRAY_JOB_ID" if self.tasks > 1 else "$SLURM_JOB_ID"
        output = f"{self.home}/slurm/{self.name}-{ray_name}{'-0' if self.tasks > 1 else ''}"
        requeues = {REQUEUE_VARIABLE: str(profile.requeue_at_most)} if self.resumes and profile.requeue_at_most else {}
        words = [profile.command or this_command(), *self.arguments]
        return rendered(
            TEMPLATE,
            is_html=False,
            requests=[*self._requests(profile), *profile.requests()],
            title=f"chorale {self.arguments[0]} --slurm",
            prologue=profile.prologue,
            bin=None if profile.command else str(Path(this_command()).parent),
            output=f"{output}.out",
            code_file=f"{output}{CODE_SUFFIX}",
            variables={"CHORALE_HOME": str(self.home), STOP_VARIABLE: str(profile.stop_s), **requeues},
            ray=uses_ray,
            ray_folder=str(self.home / "slurm"),
            ray_name=ray_name,
            ray_options=_quoted(profile.ray_options),
            array=self.tasks > 1,
            srun_options=_quoted(profile.srun),
            python="python3" if profile.command else shlex.quote(sys.executable),
            command=shlex.join(words),
            resumes=self.resumes,
            requeue_at_most=profile.requeue_at_most,
        )

    def _requests(self, profile: SlurmProfile) -> list[str]:
        # Each task gets its own nodes, because tasks on shared nodes would disturb each other.
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


def _quoted(words: Sequence[str]) -> str:
    return "".join(f" {shlex.quote(word)}" for word in words)
