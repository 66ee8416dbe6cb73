"""The batch script of a command, from a template: requests, prologue, Ray if it is needed, stopping and going on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chorale.tuner.files.html_template import render_script
from chorale.tuner.slurm.profile import SlurmProfile, this_command
from chorale.tuner.slurm.shape import JobShape
from chorale.tuner.slurm.submission import CODE_SUFFIX

TEMPLATE = Path(__file__).parent / "job.sh.jinja"
STOP_VARIABLE = "CHORALE_STOP_S"
"""How many seconds before the end of the job a command stops by itself: sooner than the signal of Slurm."""

REQUEUE_VARIABLE = "CHORALE_REQUEUES"
"""Set where a script goes on with a campaign that was stopped."""


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
