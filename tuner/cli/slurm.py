"""Implements the option `--slurm`: run a command as a Slurm job, wait for the job, or only write its script."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from chorale.runners.api.config import RunnerConfig
from chorale.runners.process_launch.slurm import TASK_RESOURCE
from chorale.synth import CheckFailed, InvalidInput, Topology
from chorale.tuner.cli.options import notice
from chorale.tuner.files.home import Home, write_file
from chorale.tuner.slurm import jobs

Site = Annotated[
    str | None, typer.Option("--site", metavar="FILE", help="YAML file with the profile of the site [$CHORALE_SLURM].")
]
SlurmTime = Annotated[str | None, typer.Option("--time", metavar="LIMIT", help="Time limit of the job, such as 2h.")]


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Options that run the current command as a Slurm job. `context` contains the command and all its options.

    Args:
        slurm: Submit this command as a Slurm job.
        slurm_script: Write the job's batch script to this file instead of submitting it.
        wait: Wait for the job, show its output, and exit with its exit code.
    """

    context: typer.Context
    slurm: bool = False
    site: Site = None
    job_time: SlurmTime = None
    slurm_script: Annotated[str | None, typer.Option(metavar="FILE")] = None
    wait: bool = False
    array: ClassVar[int] = 1

    @property
    def wants_job(self) -> bool:
        """Return whether the command is to run as a job. Raises InvalidInput if only other Slurm options are given."""
        if not (self.slurm or self.slurm_script):
            others = {"--site": self.site, "--time": self.job_time, "--wait": self.wait, "--array": self.array > 1}
            for flag, value in others.items():
                if value:
                    raise InvalidInput("{} works only for a Slurm job", flag, "add --slurm or --slurm-script")
        return self.slurm or self.slurm_script is not None


@dataclass(frozen=True, slots=True)
class SlurmArrayOptions(SlurmOptions):
    """Options of a command that can run as a Slurm job or as a job array.

    Args:
        array: Submit a job array of N tasks that share the measurements of one launch.
    """

    array: Annotated[int, typer.Option("--array", metavar="N", min=1, max=1000)] = 1  # type: ignore[misc]


def run_as_job(options: SlurmOptions, name: str, config: RunnerConfig, topology: Topology, resumes: bool) -> None:
    """Submit the command in `options` as a job, or write its script. With --wait, exit with the job's exit code."""
    profile, home = jobs.load_profile(options.site, time=options.job_time), Home.from_environment()
    arguments, shape = tuple(_arguments(options)), jobs.job_shape(config, topology, profile)
    script = jobs.SlurmJob(name, arguments, Path.cwd(), home.root, shape, resumes, options.array).script(profile)
    if options.slurm_script is not None:
        write_file(options.slurm_script, script.encode())
        notice(f"{options.slurm_script}: submit it with sbatch")
        return
    job = jobs.submit(script, home.create(home.root / "slurm"), name)
    notice(f"submitted job {job.job_id}; its messages: {job.messages}")
    if options.wait:
        follow_job(name)


def follow_job(name: str) -> bool:
    """Show the messages of the latest job `name` until it ends, then its output; exit with the job's exit code.

    Returns False if there is no such job.
    """
    job = jobs.submitted(Home.from_environment().root / "slurm", name)
    if job is None:
        return False
    code = jobs.follow(job, lambda text: typer.echo(text, nl=False, err=True))
    output = Path(job.output)
    if output.is_file():
        typer.echo(output.read_text(errors="replace"), nl=False)
    raise typer.Exit(code)


def stop_job(name: str, address: str | None) -> bool:
    """Cancel the latest job `name`, so that its command stops cleanly. Return False if no job was submitted.

    If the job has already ended, its launch may still run in the Ray cluster that `address` or RAY_ADDRESS names: the
    function then also returns False. If neither names a cluster, it raises CheckFailed.
    """
    job = jobs.submitted(Home.from_environment().root / "slurm", name)
    if job is None:
        return False
    state, _ = jobs.job_state(job.job_id)
    if not jobs.is_unfinished(state):
        if address or os.environ.get("RAY_ADDRESS"):
            return False
        ended = f"job {job.job_id} has ended" + (f" ({state})" if state else "")
        raise CheckFailed("the job has ended already: {}", ended, "see `--follow`, or continue with --slurm --resume")
    jobs.cancel(job)
    notice(f"job {job.job_id} is cancelled; continue with --slurm --resume")
    return True


def job_name(text: str) -> str:
    """Return the name of the Slurm job, and of its files, for the campaign or file `text`."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)
    return f"chorale-{name}"


def _arguments(options: SlurmOptions) -> Iterator[str]:
    """Yield the command and its arguments for the job, without the Slurm options.

    For a job array, also yield the `--set` options that let its tasks measure at the same time.
    """
    context, after = options.context, []
    about_slurm = {each.name for each in fields(options)}
    yield str(context.info_name)
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in about_slurm or value is None or value == parameter.get_default(context):
            continue
        if parameter.param_type_name == "argument":
            after.append(str(value))
        elif isinstance(value, bool):
            names = parameter.opts if value else parameter.secondary_opts
            if not names:
                raise CheckFailed("the option {} cannot be switched off for a job", parameter.name, "leave it out")
            yield names[0]
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                yield from (max(parameter.opts, key=len), str(one))
    yield from after
    if options.array > 1:
        resources = f"runner.needs.resources={{{TASK_RESOURCE}: 1}}"
        for setting in (f"runner.at_once={options.array}", resources, "controls=every-trial"):
            yield from ("--set", setting)
