"""Defines the commands `chorale tune` (run a campaign), `campaign` (list, pause, resume, check, repair), `best`
(fetch results) and `ui` (show campaigns in the browser).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.text import Text

from chorale.job.files import is_file
from chorale.runners.api.registry import is_simulated, runner_text
from chorale.runners.api.units import format_size, format_us, parse_size
from chorale.synth import CheckFailed, InvalidInput, Topology, parse_collective
from chorale.synth.lazy_modules import require
from chorale.synth.redaction import redacted
from chorale.tuner import Campaign, Home, MlflowStore, load_topology
from chorale.tuner.cli import slurm as slurm_jobs
from chorale.tuner.cli.application import AsJson, CommandLine
from chorale.tuner.cli.options import (
    Address,
    CampaignName,
    CollectiveName,
    campaigns,
    emit_json,
    notice,
    people,
    print_result,
)
from chorale.tuner.cli.slurm import job_name, stop_job
from chorale.tuner.config import campaign_file
from chorale.tuner.config.values import is_loopback
from chorale.tuner.files.home import require_new_folder, write_file
from chorale.tuner.files.job_traces import load_record
from chorale.tuner.launch.plan import (
    adopted_programs,
    campaign_on,
    campaign_plan,
    check_methods,
    check_runner,
    plan_lines,
)
from chorale.tuner.reports.hints import kind_of
from chorale.tuner.reports.tables import Columns, Result, facts_table, long_line, rows_table
from chorale.tuner.tracking.registry import RegistryEntry, find_champion, load_best, nothing_registered, roll_back
from chorale.tuner.trials.records import SizeClass
from chorale.tuner.trials.store import campaign_rows, launch_folder, launch_health, launched_campaign, repair_launch


def tune(
    *,
    campaign: Annotated[str | None, typer.Argument(metavar="CAMPAIGN")] = None,
    resume: bool = False,
    dry_run: bool = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    programs: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
    deterministic: bool = False,
    detach: bool = False,
    follow: Annotated[str | None, typer.Option(metavar="NAME", autocompletion=campaigns)] = None,
    stop: Annotated[str | None, typer.Option(metavar="NAME", autocompletion=campaigns)] = None,
    address: Address = None,
    from_record: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    network: Annotated[str | None, typer.Option("--topology", metavar="SPEC")] = None,
    schema: bool = False,
    job: slurm_jobs.SlurmArrayOptions,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest schedule per size and register it.

    Every start is a new launch with its own numbered folder, Optuna study and MLflow run. With --resume, the newest
    launch continues instead, and no finished trial is repeated. A detached launch survives the loss of its process or
    node.

    Args:
        campaign: Campaign file in YAML.
        resume: Continue the newest launch of this campaign.
        dry_run: Check the campaign and show what would be done.
        overrides: Override a key, such as budget.trials=10; may be repeated.
        programs: New folder for the winning programs, each with its range of sizes, and for NCCL settings that won.
        deterministic: Use one program with a fixed order of additions at all sizes.
        detach: Start the launch in a running Ray cluster, and return.
        follow: Watch the detached launch or Slurm job of campaign NAME.
        stop: Stop the detached launch or Slurm job of campaign NAME.
        from_record: Tune the collectives in this record of a job; CAMPAIGN adds other keys.
        network: Network of the recorded job; default: that of CAMPAIGN.
        schema: Print the JSON Schema of campaign files.

    Example: chorale tune examples/quickstart.yaml --set budget.trials=10
    """
    if follow is not None or stop is not None:
        if not (
            slurm_jobs.follow_job(slurm_jobs.job_name(follow))
            if follow is not None
            else slurm_jobs.stop_job(slurm_jobs.job_name(str(stop)), address)
        ):
            from chorale.tuner.cli.tune_launch import watch_launch  # noqa: PLC0415 - Ray and Optuna are optional

            watch_launch(follow, stop, address, as_json)
        return
    if schema:
        emit_json(Campaign.model_json_schema())
        return
    settings = [*(overrides or ()), *(["deterministic=true"] if deterministic else [])]
    if network is not None and from_record is None:
        raise InvalidInput("--topology {} works only with --from-record", network, "write --set topology=SPEC")
    if from_record is not None:
        for flag, value in (("--detach", detach), ("--programs", programs)):
            if value:
                raise InvalidInput(
                    "{} does not work with --from-record, which starts several campaigns", flag, "leave it out"
                )
        document = {} if campaign is None else campaign_file.read_document(campaign)
        document |= {} if network is None else {"topology": network}
        if "topology" not in document and not any(text.startswith("topology=") for text in settings):
            way_out = "add --topology SPEC, such as hypercube:3"
            raise InvalidInput("the network of the recorded job is missing", "", way_out)
        _tune_recorded(from_record, document, settings, resume, dry_run, address, as_json)
        return
    checked, topology = _checked_campaign(campaign, settings)
    if dry_run:
        print_result(_plan(checked, topology), as_json)
        return
    if programs is not None:
        require_new_folder(programs)
    if job.wants_job:
        slurm_jobs.run_as_job(job, slurm_jobs.job_name(checked.name), checked.runner.config, topology, resumes=True)
        return
    from chorale.tuner.cli.tune_launch import run_launch, show, start, write_programs  # noqa: PLC0415 - as above

    if detach:
        start(checked, resume, address)
        return
    report = run_launch(checked, topology, resume, address)
    if report.ranked_trials and programs is not None:
        write_programs(report, programs)
    show(report, as_json)


def _checked_campaign(file: str | None, overrides: Sequence[str]) -> tuple[Campaign, Topology]:
    if file is None:
        raise InvalidInput("no campaign file is given", "", "name one, for example examples/quickstart.yaml")
    if kind_of(file) not in ("file", None):
        change = f" --set {kind_of(file)}={file}" if kind_of(file) in ("topology", "collective") else ""
        way_out = f"write, for example, `chorale tune examples/quickstart.yaml{change}`"
        raise InvalidInput("{}, not a campaign file", f"{file} is a {kind_of(file)}", way_out)
    example = Path("examples") / Path(file).with_suffix(".yaml").name
    if not Path(file).exists() and not Path(file).suffix and is_file(example):
        raise InvalidInput("cannot read the campaign file: {}", file, f"write `chorale tune {example}`")
    campaign = campaign_file.load_campaign(file, overrides)
    check_methods(campaign, files=True)
    topology = load_topology(campaign.topology)
    check_runner(campaign, topology)
    adopted_programs(campaign, topology)
    return campaign_on(campaign, topology), topology


def _plan(campaign: Campaign, topology: Topology) -> Result:
    """Return what a launch would do. This imports the search, which needs Optuna."""
    from chorale.tuner.launch.plan import learned_priors  # noqa: PLC0415 - as above
    from chorale.tuner.search.space import search_space  # noqa: PLC0415 - as above

    priors = learned_priors(campaign, topology, search_space(campaign, topology), Home.from_environment())
    plan = campaign_plan(campaign, topology, priors)
    return Result(plan, *plan_lines(plan))


def _tune_recorded(
    record: Path,
    document: dict[str, Any],
    overrides: Sequence[str],
    resume: bool,
    dry_run: bool,
    address: str | None,
    as_json: bool,
) -> None:
    """Run a campaign for each collective that a recorded job calls, or only show what it would do.

    document:  campaign keys for everything that the record does not contain
    overrides: `key=value` texts from the command line
    """
    job = campaign_file.RecordedJob.of(load_record(record))
    campaigns = campaign_file.recorded_campaigns(job, record.stem, document, overrides)
    checked: list[tuple[Campaign, Topology]] = []
    for campaign in campaigns:
        check_methods(campaign)
        topology = load_topology(campaign.topology)
        of_node, rest = divmod(job.ranks, topology.compute_count)
        if rest or not of_node:
            rule = f"the job's {job.ranks} ranks must be a multiple of the number of nodes"
            raise InvalidInput(rule, f"{campaign.topology} with {topology.compute_count}", "name another network")
        if of_node > 1 and not checked:
            notice(f"{of_node} ranks of the job share each node of {campaign.topology}; MPI jobs run such a table")
        check_runner(campaign, topology)
        checked.append((campaign_on(campaign, topology), topology))
    if not as_json:
        notice("\n".join(campaign_file.coverage_lines(job, [campaign for campaign, _ in checked])))
    documents: list[dict[str, Any] | None] = []
    for campaign, topology in checked:
        if dry_run:
            plan = _plan(campaign, topology)
            documents.append(dict(plan.document))
            if not as_json:
                print_result(plan, as_json=False)
            continue
        from chorale.tuner.cli.tune_launch import run_launch, show  # noqa: PLC0415 - as above
        from chorale.tuner.reports.tuning import tune_document  # noqa: PLC0415 - as above

        report = run_launch(campaign, topology, resume, address)
        is_whole = as_json and report.ranked_trials and not report.interrupted
        documents.append(tune_document(report) if is_whole else None)
        if not is_whole:
            show(report, as_json)
    if as_json:
        emit_json({"record": str(record), "covered": job.covered, "campaigns": documents})


campaign_app = CommandLine(help="List, pause and resume campaigns; check and repair their files.")
LaunchNumber = Annotated[int | None, typer.Option("--launch", min=1, help="Number of the launch [newest].")]


@campaign_app.command("list")
def list_command() -> Result:
    """List the campaigns in the data folder, each with the state of its newest launch.

    Example: chorale campaign list
    """
    rows = campaign_rows(Home.from_environment())
    columns: Columns = {
        "campaign": "campaign",
        "collective": "collective",
        "network": "topology",
        "launches": "launches",
        "trials": lambda row: f"{row['complete']} of {row['trials']}",
        "state": "state",
    }
    nothing = "no campaigns yet: `chorale tune examples/quickstart.yaml` runs one"
    return Result({"campaigns": rows}, rows_table(rows, columns) if rows else nothing)


@campaign_app.command("pause")
def pause_command(name: CampaignName, address: Address = None) -> None:
    """Stop a launch that runs in a Ray cluster or a Slurm job, so that `resume` can continue it.

    To pause a launch that runs in a terminal, press Ctrl-C there.

    Example: chorale campaign pause quickstart
    """
    cancel_command(name, address)


@campaign_app.command("cancel")
def cancel_command(name: CampaignName, address: Address = None) -> None:
    """Cancel a launch that runs in a Ray cluster or a Slurm job; finished trials are kept.

    Example: chorale campaign cancel quickstart
    """
    if stop_job(job_name(name), address):
        return
    from chorale.tuner.cli.tune_launch import watch_launch  # noqa: PLC0415 - Ray and Optuna are optional

    watch_launch(None, name, address, as_json=False)


@campaign_app.command("resume")
def resume_command(name: CampaignName, address: Address = None, as_json: AsJson = False) -> None:
    """Continue the newest launch of a campaign in this process, with the settings stored in its journal.

    Example: chorale campaign resume quickstart
    """
    from chorale.tuner.cli.tune_launch import run_launch, show  # noqa: PLC0415 - Ray and Optuna are optional

    campaign = launched_campaign(Home.from_environment(), name)
    show(run_launch(campaign, load_topology(campaign.topology), True, address), as_json)


@campaign_app.command("check")
def check_command(name: CampaignName, launch: LaunchNumber = None) -> Result:
    """Check whether the journal of a launch is intact: exit 0 if it is, 1 if not. Nothing is changed.

    Every line of the journal has a checksum.

    Example: chorale campaign check quickstart
    """
    folder = launch_folder(Home.from_environment(), name, launch)
    facts = launch_health(folder)
    whole = f"{folder}: {facts['trials']} trials, the journal is intact"
    document = {"campaign": name, **facts}
    if facts["ok"]:
        return Result(document, whole)
    way_out = f"repair them with `chorale campaign repair {name}`"
    failure = CheckFailed("the journal is damaged: {}", facts["problems"][0], way_out)
    return Result(document, *facts["problems"], failure=failure)


@campaign_app.command("repair")
def repair_command(name: CampaignName, launch: LaunchNumber = None) -> Result:
    """Repair the journal of a launch by removing its damaged lines.

    A copy of the damaged journal stays next to it. `chorale tune --resume` adds trials that Optuna and MLflow lack.

    Example: chorale campaign repair quickstart
    """
    folder = launch_folder(Home.from_environment(), name, launch)
    before, done, after = launch_health(folder), repair_launch(folder), launch_health(folder)
    document: dict[str, Any] = {"campaign": name, "before": before, "done": done, "after": after}
    failure = None
    if not after["ok"]:
        failure = CheckFailed("the launch is still damaged after the repair: {}", after["problems"][0], "report this")
    return Result(document, *(done or ["nothing to repair"]), failure=failure)


def ui(host: str = ("127.0.0.1"), port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 5000) -> None:
    """Show campaigns, trials and registered schedules in the browser until interrupted.

    The browser asks for a user and a password: `chorale`, and the content of `ui-password` in the data folder.

    Args:
        host: Address to listen on; 0.0.0.0 means all addresses of this machine.
        port: Port to listen on.

    Example: chorale ui --port 5001
    """
    home = Home.from_environment()
    uri = home.mlflow_uri
    if uri.startswith(("http://", "https://")):
        raise InvalidInput("`chorale ui` shows a database, not the server {}", uri, "open its address in the browser")
    from chorale.tuner.tracking.mlflow_pages import USER, password_file, serve_pages  # noqa: PLC0415 - MLflow is optional

    secret = password_file(home)
    address = f"http://{host}:{port}/#/experiments?workflowType=machine_learning"
    notice(f"{redacted(uri)} at {address} (ctrl-C ends)")
    notice(f"user {USER}, password in {secret}")
    if not is_loopback(host):
        people.print("warning: others can reach this page, and HTTP sends the password unencrypted: trust the network")
    serve_pages(home, host, port)


def best(
    topology: Annotated[str, typer.Option("--topology", metavar="SPEC")],
    size: Annotated[str, typer.Option("--size", metavar="BYTES")],
    collective: CollectiveName = "allreduce",
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="DIR")] = None,
    alias: str = "champion",
    rollback: bool = False,
) -> Result:
    """Fetch the best schedule that campaigns have registered, and verify it again.

    Sizes fall into classes, one per power of two. If the class of SIZE has no entry, the nearest class is used.
    If a program that was written by hand won, there is only a program and no schedule.
    If no program beat the library, the result is the library's own algorithm, and there are no files.

    --rollback moves the alias back to the version that had it before. The current version is never promoted again.

    Args:
        topology: Network, such as hypercube:3.
        size: Buffer size, such as 1MiB.
        output: Existing folder to write the files to.
        alias: Alias of the version to fetch, as in `register.alias` of the campaign.
        rollback: First move the alias back to the version that had it before.

    Example: chorale best --topology hypercube:3 --collective allreduce --size 1MiB -o .
    """
    name = parse_collective(collective).name.value
    size_bytes = parse_size(size)
    network = load_topology(topology)
    require("mlflow")
    home = Home.from_environment()
    if output is not None and not Path(output).is_dir():
        raise InvalidInput("the folder {} does not exist", output, "create it first")
    if home.mlflow_uri.endswith(str(home.database)) and not home.database.exists():
        raise nothing_registered(network, name)
    mlflow = MlflowStore(home.mlflow_uri, home.artifacts)
    former = None
    if rollback:  # move the alias back to the previous version
        champion, size_class = find_champion(mlflow, network, name, size_bytes, alias)
        if size_class != SizeClass.of(size_bytes):
            value = f"{format_size(size_bytes)}, and the nearest entry is for {size_class}"
            raise InvalidInput("there is no entry for exactly this size: {}", value, "give a size in this range")
        former, _ = roll_back(mlflow, champion.name, alias)
        people.print(f"version {former.version} is no longer {alias}", highlight=False)
    entry = load_best(mlflow, network, name, size_bytes, alias)
    folder = Path(output) if output is not None else home.best / entry.version.name / entry.version.version
    document = _save(entry, home.create(folder))
    exact = entry.size_class == SizeClass.of(size_bytes)
    if not exact:
        people.print(
            f"nothing is registered for {format_size(size_bytes)}; this is for the nearest class, {entry.size_class}"
        )
    if entry.library is not None:
        time = format_us(document["measured"]["time_us"] / 1e6)
        answer: list[Text | str] = [f"use the library's own {entry.library}: {time}, nothing was faster"]
    else:
        answer = [long_line(path) for path in (document["schedule"], document["program"]) if path]
    rolled_back = {"rolled_back": former.version} if former else {}
    title = f"{document['model']} version {document['version']}, {runner_text(entry.manifest['runner'])}"
    table = facts_table(title, _rows(document["measured"]))
    named = "" if alias == "champion" else f" --alias {quote(alias)}"
    step = f"chorale table write --topology {quote(topology)}{named} -o job.table"
    if entry.manifest["runner"] == "msccl" and document["schedule"]:  # MSCCL's runtimes read program files
        step = f"chorale export {quote(document['schedule'])} -o job"
    return Result({**document, "exact": exact, **rolled_back}, table, *answer, next_step=step)


def _rows(measured: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    ends = " to ".join(format_us(value / 1e6) for value in measured.get("time_us_interval", ()))
    interval = f" ({ends}, {measured['confidence']:.0%})" if ends else ""
    yield "size", measured["size"]
    yield "time", f"{format_us(measured['time_us'] / 1e6)}{interval}"
    yield "algbw", f"{measured['algbw_gb_per_s']:.3g} GB/s"
    if measured["baseline"]:
        beside = f"{measured['baseline']}, {format_us(measured['baseline_time_us'] / 1e6)}"
        yield "beside", f"{beside}: {measured['speedup_vs_baseline']:.3g}× as fast"


def _save(best: RegistryEntry, folder: Path) -> dict[str, Any]:
    schedule, program = folder / "schedule.parquet", folder / "program.xml"
    content = None if best.library is not None else best.program.schedule
    if best.library is None:
        write_file(program, best.program.program)
    if content is not None:
        write_file(schedule, content)
    write_file(folder / "manifest.json", json.dumps(best.manifest, indent=2, sort_keys=True).encode())
    return {
        "run": "program" if best.library is None else "library",
        "library": best.library,
        "schedule": str(schedule) if content is not None else None,
        "program": str(program) if best.library is None else None,
        "parameters": best.manifest["parameters"] if best.library is None else None,
        "measured": dict(best.measured),
        "simulated": is_simulated(best.manifest["runner"]),
        "run_id": best.version.run_id,
        "version": best.version.version,
        "model": best.version.name,
        "size_range_bytes": [best.size_class.min_bytes, best.size_class.max_bytes],
    }
