"""`chorale tune`: run a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.choices import campaign_name
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.cli.slurm import (
    AsSlurmJob,
    Site,
    SlurmOptions,
    SlurmScript,
    SlurmTasks,
    SlurmTime,
    Wait,
    follow_job,
    job_name,
    run_as_job,
    stop_job,
)
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.campaign_file import load_campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import require_new_folder
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.adopted_programs import adopted_programs
from chorale.tuner.launch.forecast import forecast
from chorale.tuner.launch.plan import campaign_plan, check_methods, check_runner, plan_lines

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as budget.trials=10.")
]
NcclTunerTable = Annotated[
    str | None,
    typer.Option("--nccl-tuner-csv", metavar="FILE", help="Write the best ring or tree per size for NCCL's tuner."),
]
ProgramFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Fill a new folder with the programs of the answer, each for its sizes."),
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="One program of a fixed order of additions at all sizes.")
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Let the launch live in a Ray cluster that is running, and return.")
]
Follow = Annotated[
    str | None,
    typer.Option(
        "--follow",
        metavar="NAME",
        parser=campaign_name,
        help="Watch the launch of NAME, detached or a Slurm job.",
    ),
]
Stop = Annotated[
    str | None,
    typer.Option(
        "--stop", metavar="NAME", parser=campaign_name, help="End the launch of campaign NAME, detached or a Slurm job."
    ),
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Ray cluster to work on; else RAY_ADDRESS.")
]

FromRecord = Annotated[
    Path | None,
    typer.Option(
        "--from-record", metavar="FILE", help="Tune what a job was recorded to call; CAMPAIGN says the rest, if given."
    ),
]
Network = Annotated[
    str | None, typer.Option("--topology", metavar="SPEC", help="Network of the recorded job; else the campaign's.")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("tune")(tune_command)


def tune_command(
    context: typer.Context,
    campaign: Annotated[str | None, typer.Argument(metavar="CAMPAIGN", help="Campaign file, YAML.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest launch of this campaign.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the campaign and say what would be done.")] = False,
    overrides: Overrides = None,
    nccl_tuner: NcclTunerTable = None,
    programs: ProgramFolder = None,
    deterministic: Deterministic = False,
    detach: Detach = False,
    follow: Follow = None,
    stop: Stop = None,
    address: Address = None,
    from_record: FromRecord = None,
    network: Network = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of campaign files.")] = False,
    slurm: AsSlurmJob = False,
    site: Site = None,
    job_time: SlurmTime = None,
    slurm_script: SlurmScript = None,
    wait: Wait = False,
    array: SlurmTasks = 1,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest schedule per size and register it.

    Every start is a new launch with its own numbered folder, study and parent run; --resume goes on with the
    newest launch instead and repeats nothing that finished. A detached launch goes on by itself, also when
    its process or its node dies.

    Example: chorale tune examples/quickstart.yaml --set budget.trials=10
    """
    job = SlurmOptions(context, slurm, site, job_time, slurm_script, wait, array)
    if follow is not None or stop is not None:
        _watch(follow, stop, address, as_json)
        return
    if schema:
        emit_json(Campaign.model_json_schema())
        return
    settings = [*(overrides or ()), *(["deterministic=true"] if deterministic else [])]
    if network is not None and from_record is None:
        raise InvalidInput("--topology goes with --from-record", network, "say --set topology=SPEC")
    if from_record is not None:
        from chorale.tuner.cli.tune_recorded import RecordedWork, tune_recorded  # noqa: PLC0415 - Ray and Optuna take seconds

        _refuse(detach=detach, nccl_tuner_csv=nccl_tuner, programs=programs)
        work = RecordedWork(from_record, campaign, network, settings)
        tune_recorded(work, resume, dry_run, address, as_json)
        return
    checked, topology = _checked_campaign(campaign, settings)
    if dry_run:
        _show_plan(checked, topology, as_json)
        return
    launch = _Launch(checked, topology, resume, address, nccl_tuner, programs)
    launch.require_writable()
    if job.wants_job:
        run_as_job(job, job_name(checked.name), checked.runner.config, topology, resumes=True)
    elif detach:
        launch.detach()
    else:
        launch.run(as_json)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A checked campaign to measure, and where its answer goes besides the data folder."""

    campaign: Campaign
    topology: Topology
    resume: bool
    address: str | None
    nccl_tuner: str | None
    programs: Path | None

    def require_writable(self) -> None:
        """Raise InvalidInput, before anything is measured, if the results could not be written."""
        if self.nccl_tuner is not None and not Path(self.nccl_tuner).parent.is_dir():
            raise InvalidInput("the folder of the table must exist", self.nccl_tuner, "create it first")
        if self.programs is not None:
            require_new_folder(self.programs)

    def detach(self) -> None:
        """Hand the launch to a Ray cluster that is running."""
        from chorale.tuner.cli.tune_launch import start  # noqa: PLC0415 - Ray and Optuna take seconds

        start(self.campaign, self.resume, self.address)

    def run(self, as_json: bool) -> None:
        """Measure, write the answer, and show it."""
        from chorale.tuner.cli.tune_launch import run_launch, show, write_answer  # noqa: PLC0415 - as above

        report = run_launch(self.campaign, self.topology, self.resume, self.address)
        if report.ranked_trials:
            write_answer(report, self.nccl_tuner, self.programs, self.topology)
        show(report, as_json)


def _watch(follow: str | None, stop: str | None, address: str | None, as_json: bool) -> None:
    """Watch the launch of campaign `follow`, or end that of `stop`: a job of Slurm, or one in a Ray cluster."""
    if follow is not None and follow_job(job_name(follow)):
        return
    if stop is not None and stop_job(job_name(stop), address):
        return
    from chorale.tuner.cli.tune_launch import watch_launch  # noqa: PLC0415 - Ray and Optuna take seconds

    watch_launch(follow, stop, address, as_json)


def _checked_campaign(file: str | None, overrides: Sequence[str]) -> tuple[Campaign, Topology]:
    """Return the campaign of `file` and its network, both checked."""
    if file is None:
        raise InvalidInput("a campaign file must be given", "none", "name one, such as examples/quickstart.yaml")
    campaign = load_campaign(file, overrides)
    check_methods(campaign, files=True)
    topology = load_topology(campaign.topology)
    check_runner(campaign, topology)
    adopted_programs(campaign, topology)
    return campaign, topology


def _show_plan(campaign: Campaign, topology: Topology, as_json: bool) -> None:
    from chorale.tuner.launch.priors import learned_priors  # noqa: PLC0415 - its mathematics takes half a second
    from chorale.tuner.search.space import search_space  # noqa: PLC0415 - as above

    home = Home.from_environment()
    priors = learned_priors(campaign, topology, search_space(campaign, topology), home)
    plan = campaign_plan(campaign, topology, priors) | {"estimate": forecast(campaign, topology, home)}
    if as_json:
        emit_json(plan)
        return
    for line in plan_lines(plan):
        results.print(line)


def _refuse(**options: object) -> None:
    for name, value in options.items():
        if value:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidInput("a recorded job is tuned by several campaigns", flag, "leave it out")
