"""`chorale tune --from-record`: one campaign for each collective that a job was recorded to call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.job.record import read_record
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.campaign_file import read_document
from chorale.tuner.config.recorded_job import RecordedJob, coverage_lines, recorded_campaigns
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.forecast import forecast
from chorale.tuner.launch.plan import campaign_plan, check_methods, check_runner, plan_lines


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """record: the file; campaign: a campaign file for all that the record does not say, None for defaults;
    topology: spec, None for that of `campaign`; overrides: of keys, as on the command line"""

    record: Path
    campaign: str | None
    topology: str | None
    overrides: Sequence[str]

    def campaigns(self, job: RecordedJob) -> list[Campaign]:
        """Return the campaigns for `job`, all on one network with as many ranks."""
        document: dict[str, Any] = {} if self.campaign is None else read_document(self.campaign)
        if self.topology is not None:
            document["topology"] = self.topology
        if "topology" not in document and not any(text.startswith("topology=") for text in self.overrides):
            way_out = "say --topology SPEC, such as hypercube:3"
            raise InvalidInput("the network of a recorded job must be given", "none", way_out)
        return recorded_campaigns(job, self.record.stem, document, self.overrides)


def tune_recorded(work: RecordedWork, resume: bool, dry_run: bool, address: str | None, as_json: bool) -> None:
    """Run the campaigns one after the other, or with `dry_run` only show what they would do."""
    job = RecordedJob.of(read_record(work.record))
    campaigns = work.campaigns(job)
    checked = [(campaign, _network(campaign, job)) for campaign in campaigns]
    if not as_json:
        people.print("\n".join(coverage_lines(job, campaigns)), highlight=False, markup=False, soft_wrap=True)
    documents = [_planned(*each, as_json) if dry_run else _tuned(*each, resume, address, as_json) for each in checked]
    if as_json:
        emit_json({"record": str(work.record), "covered": job.covered, "campaigns": documents})


def _network(campaign: Campaign, job: RecordedJob) -> Topology:
    check_methods(campaign)
    topology = load_topology(campaign.topology)
    if topology.compute_count != job.ranks:
        rule = f"the network must have as many ranks as the recorded job, {job.ranks}"
        raise InvalidInput(rule, f"{campaign.topology} with {topology.compute_count}", "name another")
    check_runner(campaign, topology)
    return topology


def _planned(campaign: Campaign, topology: Topology, as_json: bool) -> dict[str, Any]:
    plan = campaign_plan(campaign, topology) | {"estimate": forecast(campaign, topology, Home.from_environment())}
    for line in () if as_json else plan_lines(plan):
        results.print(line)
    return plan


def _tuned(
    campaign: Campaign, topology: Topology, resume: bool, address: str | None, as_json: bool
) -> dict[str, Any] | None:
    from chorale.tuner.cli.tune_launch import run_launch, show  # noqa: PLC0415 - Ray and Optuna take seconds
    from chorale.tuner.reports.tuning import tune_document  # noqa: PLC0415 - as above

    report = run_launch(campaign, topology, resume, address)
    if as_json and report.ranked_trials and not report.interrupted:
        return tune_document(report)
    show(report, as_json)
    return None
