"""`chorale tune`: run a campaign."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.job.files import is_file
from chorale.synth import InvalidInput, Topology
from chorale.tuner import Campaign, Home, load_topology
from chorale.tuner.cli import slurm as slurm_jobs
from chorale.tuner.cli.application import AsJson
from chorale.tuner.cli.options import Address, campaigns
from chorale.tuner.cli.output import emit_json, notice, print_result
from chorale.tuner.config import campaign_file
from chorale.tuner.files.home import require_new_folder
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
from chorale.tuner.reports.tables import Result


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
        way_out = f"write for example `chorale tune examples/quickstart.yaml{change}`"
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
    """Return what a launch would do. Imports the search only here, because the search needs Optuna."""
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
    overrides: values of keys, as on the command line
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
