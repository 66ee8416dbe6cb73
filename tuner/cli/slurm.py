"""`--slurm`: a command as a job of Slurm, submitted, waited for, or written as a script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.tuner.cli.output import people
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file

if TYPE_CHECKING:
    from chorale.runners.api.config import RunnerConfig
    from chorale.synth.topology.topology import Topology

AsSlurmJob = Annotated[bool, typer.Option("--slurm", help="Submit this command as a job of Slurm.")]
Site = Annotated[
    str | None, typer.Option("--site", metavar="FILE", help="Profile of the site, YAML; else $CHORALE_SLURM.")
]
SlurmTime = Annotated[str | None, typer.Option("--time", metavar="LIMIT", help="Time limit of the job, such as 2h.")]
SlurmScript = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the job's batch script instead of submitting it.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the job, show what it says, end with its exit code.")]
SlurmTasks = Annotated[
    int,
    typer.Option(
        "--array", metavar="N", min=1, max=1000, help="A job array whose N tasks measure for one launch together."
    ),
]
_ABOUT_SLURM = frozenset({"slurm", "site", "job_time", "slurm_script", "wait", "array"})


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The options of a command that are about its job, and the command with all of its options."""

    context: typer.Context
    submits: bool
    site: str | None
    time: str | None
    script: str | None
    wait: bool
    tasks: int = 1

    @property
    def wants_job(self) -> bool:
        """Whether the command is to be a job; InvalidInput for options that say nothing without one."""
        if not (self.submits or self.script):
            others = {"--site": self.site, "--time": self.time, "--wait": self.wait, "--array": self.tasks > 1}
            for flag, value in others.items():
                if value:
                    raise InvalidInput("options of a job must come with one", flag, "add --slurm or --slurm-script")
        return self.submits or self.script is not None


def run_as_job(options: SlurmOptions, name: str, config: RunnerConfig, topology: Topology, resumes: bool) -> None:
    """Write or submit the command of `options` as a job called `name`; with --wait, end with its exit code."""
    from chorale.tuner.slurm.jobs import (  # noqa: PLC0415 - as above
        SlurmJob,
        job_shape,
        load_profile,
        submit,
    )

    profile, home = load_profile(options.site, time=options.time), Home.from_environment()
    arguments = (*_arguments(options.context), *_task_settings(options.tasks))
    shape = job_shape(config, topology, profile)
    job = SlurmJob(name, arguments, Path.cwd(), home.root, shape, resumes, options.tasks)
    script = job.script(profile)
    if options.script is not None:
        write_file(options.script, script.encode())
        people.print(f"{options.script}: submit it with sbatch", highlight=False, soft_wrap=True)
        return
    submitted_job = submit(script, home.create(home.root / "slurm"), name)
    people.print(f"job {submitted_job.job_id}, which writes {submitted_job.messages}", highlight=False, soft_wrap=True)
    if options.wait:
        follow_job(name)


def follow_job(name: str) -> bool:
    """Show what the latest job called `name` says until it ends, then its results; end with its exit code.

    Returns False where there is none.
    """
    from chorale.tuner.slurm.jobs import follow, submitted  # noqa: PLC0415 - only who follows pays for it

    job = submitted(Home.from_environment().root / "slurm", name)
    if job is None:
        return False
    code = follow(job, lambda text: typer.echo(text, nl=False, err=True))
    output = Path(job.output)
    if output.is_file():
        typer.echo(output.read_text(errors="replace"), nl=False)
    raise typer.Exit(code)


def stop_job(name: str, address: str | None) -> bool:
    """Cancel the latest job called `name`, whose command then stops in order; False where none was submitted.

    False, too, for one that has ended where a Ray cluster is named, which may have a launch, by `address` or
    RAY_ADDRESS; else CheckFailed.
    """
    from chorale.tuner.slurm.jobs import cancel, is_unfinished, job_state, submitted  # noqa: PLC0415 - as above

    job = submitted(Home.from_environment().root / "slurm", name)
    if job is None:
        return False
    state, _ = job_state(job.job_id)
    if not is_unfinished(state):
        if address or os.environ.get("RAY_ADDRESS"):
            return False
        ended = f"job {job.job_id} has ended" + (f" ({state})" if state else "")
        raise CheckFailed("a job must be there to be stopped", ended, "see `--follow`, or go on with --slurm --resume")
    cancel(job)
    people.print(f"job {job.job_id} is cancelled; go on with --slurm --resume", highlight=False)
    return True


def job_name(text: str) -> str:
    """Return the name of a job, and of its files, for a campaign or a file called `text`."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)
    return f"chorale-{name}"


def _task_settings(tasks: int) -> tuple[str, ...]:
    """Return the options of a command whose measurements are shared by so many tasks of an array."""
    if tasks == 1:
        return ()
    from chorale.runners.process_launch.slurm import TASK_RESOURCE  # noqa: PLC0415 - only who submits pays for it

    shared = (f"runner.at_once={tasks}", f"runner.needs.resources={{{TASK_RESOURCE}: 1}}", "controls=every-trial")
    return tuple(word for setting in shared for word in ("--set", setting))


def _arguments(context: typer.Context) -> Iterator[str]:
    """Yield a command and its arguments, without those about Slurm."""
    yield str(context.info_name)
    after = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in _ABOUT_SLURM or value is None or value == parameter.get_default(context):
            continue
        if parameter.param_type_name == "argument":
            after.append(str(value))
        else:
            yield from _option(parameter, value)
    yield from after


def _option(parameter: Any, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        names = parameter.opts if value else parameter.secondary_opts
        if not names:
            raise CheckFailed("an option of a job must have a form that says no", parameter.name, "leave it out")
        yield names[0]
        return
    for one in value if isinstance(value, list | tuple) else [value]:
        yield from (max(parameter.opts, key=len), str(one))
