"""`chorale tune`: run a campaign."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.errors import CheckFailed, InvalidInput
from tuner.cli.output import emit_json, people, print_error, results
from tuner.cli.shared_options import AsJson

if TYPE_CHECKING:
    from synth.topology.topology import Topology
    from tuner.campaigns.campaign import Campaign
    from tuner.tuning import TuneReport

# Ray, Optuna and MLflow take seconds to import: every import below happens only when a campaign runs.
# ruff: noqa: PLC0415


INTERRUPTED_EXIT_CODE = 130

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
Detach = Annotated[
    bool, typer.Option("--detach", help="Let the launch live in a Ray cluster that is running, and return.")
]
Follow = Annotated[
    str | None, typer.Option("--follow", metavar="NAME", help="Watch the detached launch of campaign NAME.")
]
Stop = Annotated[str | None, typer.Option("--stop", metavar="NAME", help="End the detached launch of campaign NAME.")]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Ray cluster to work on; else RAY_ADDRESS.")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("tune")(tune_command)


def tune_command(
    campaign: Annotated[str | None, typer.Argument(metavar="CAMPAIGN", help="Campaign file, YAML.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest launch of this campaign.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the campaign and say what would be done.")] = False,
    overrides: Overrides = None,
    nccl_tuner: NcclTunerTable = None,
    programs: ProgramFolder = None,
    detach: Detach = False,
    follow: Follow = None,
    stop: Stop = None,
    address: Address = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of campaign files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest schedule per size and register it.

    Every start is a new launch with its own numbered folder, study and parent run; --resume goes on with the
    newest launch instead and repeats nothing that finished. A detached launch goes on by itself, also when
    its process or its node dies.

    Example: chorale tune examples/quickstart.yaml --set budget.trials=10
    """
    if follow is not None or stop is not None:
        _watch(follow, stop, address, as_json)
        return
    if schema:
        from tuner.campaigns.campaign import Campaign

        emit_json(Campaign.model_json_schema())
        return
    wanted, topology = _asked(campaign, overrides or ())
    if dry_run:
        _show_plan(wanted, topology, as_json)
        return
    _require_places(nccl_tuner, programs)
    if detach:
        from tuner.cli.detached import start

        start(wanted, resume, address)
        return
    report = _run(wanted, topology, resume, address)
    if report.standings:
        _write_answer(report, nccl_tuner, programs, topology)
    show(report, as_json)


def _asked(file: str | None, overrides: Sequence[str]) -> tuple[Campaign, Topology]:
    """Return the campaign of `file` and its network, both checked."""
    from tuner.campaigns.campaign_file import load_campaign
    from tuner.campaigns.plan import check_methods, check_runner
    from tuner.specs import load_topology

    if file is None:
        raise InvalidInput("a campaign file must be given", "none", "name one, such as examples/quickstart.yaml")
    wanted = load_campaign(file, overrides)
    check_methods(wanted)
    topology = load_topology(wanted.topology)
    check_runner(wanted, topology)
    return wanted, topology


def _show_plan(campaign: Campaign, topology: Topology, as_json: bool) -> None:
    from tuner.campaigns.plan import campaign_plan
    from tuner.forecast.forecast import forecast
    from tuner.home import Home
    from tuner.reports.plan_report import plan_lines

    plan = campaign_plan(campaign, topology) | {"estimate": forecast(campaign, topology, Home.from_environment())}
    if as_json:
        emit_json(plan)
        return
    for line in plan_lines(plan):
        results.print(line, highlight=False, markup=False, soft_wrap=True)


def _run(campaign: Campaign, topology: Topology, resume: bool, address: str | None) -> TuneReport:
    from tuner.campaigns.progress import progress_for
    from tuner.home import Home
    from tuner.tuning import tune

    home = Home.from_environment()

    def workers() -> Any:
        from tuner.campaigns.runner_choice import make_workers

        made = make_workers(campaign, topology, home.root, address)()
        # After Ray has set its own handler, which would abort the process: SIGTERM ends a campaign like ctrl-C.
        signal.signal(signal.SIGTERM, _interrupt)
        return made

    limit_s = math.inf if campaign.budget.minutes is None else 60 * campaign.budget.minutes
    return tune(campaign, topology, home, resume, workers, partial(progress_for, people, limit_s=limit_s))


def _require_places(table: str | None, programs: Path | None) -> None:
    """Raise InvalidInput, before anything is measured, where the answer could not be written."""
    from tuner.files import require_new_folder

    if table is not None and not Path(table).parent.is_dir():
        raise InvalidInput("the folder of the table must exist", table, "create it first")
    if programs is not None:
        require_new_folder(programs)


def _write_answer(report: TuneReport, table: str | None, programs: Path | None, topology: Topology) -> None:
    from tuner.campaigns.answer_programs import answer_programs
    from tuner.campaigns.nccl_tuner_csv import choices, nccl_tuner_csv
    from tuner.files import write_file, write_folder
    from tuner.reports.tune_report import answer_of

    if table is not None:
        collective = report.launch.campaign["collective"]
        write_file(table, nccl_tuner_csv(choices(report.trials), collective, topology.compute_count).encode())
    if programs is not None:
        kept = report.folder / "programs"
        files = answer_programs(answer_of(report), lambda name: (kept / f"{name}.xml").read_bytes())
        write_folder(programs, files)
        people.print(f"{programs}: {len(files)} programs; all other sizes are the runtime's own", soft_wrap=True)


def _watch(follow: str | None, stop: str | None, address: str | None, as_json: bool) -> None:
    from tuner.cli.detached import end, watch

    report = end(stop, address) if stop is not None else watch(str(follow), address)
    if report is not None:
        show(report, as_json)


def show(report: TuneReport, as_json: bool) -> None:
    """Print what came of a launch; exit with 130 if it was interrupted, raise CheckFailed if nothing was measured."""
    from tuner.reports.tune_report import overhead_line, refused_table, tune_document, tune_table

    if as_json:
        emit_json(tune_document(report))
    if report.standings:
        results.print(tune_table(report))
        if (refused := refused_table(report)) is not None:
            results.print(refused)
        people.print(overhead_line(report), soft_wrap=True, highlight=False)
        people.print(f"report.html, picture and journal: {report.folder}", soft_wrap=True, highlight=False)
    if report.interrupted:
        print_error(f"interrupted; trials that finished are kept ({len(report.trials)}), go on with --resume")
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if not report.standings:
        failed = [trial for trial in report.trials if trial.state != "complete"]
        reason = f"{len(failed)} trials, none complete"
        raise CheckFailed("a campaign must end with a valid trial", reason, "run it with --verbose or read its journal")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
