"""Campaigns and trials for tests."""

from typing import Any

from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.search.space import SearchSpace, search_space
from chorale.tuner.tracking.mlflow_store import load_mlflow
from chorale.tuner.tracking.tracker import TRIAL_ID
from chorale.tuner.trials.records import Candidate, CompleteTrial, SizeResult, trial_id


def small_campaign(**changes: Any) -> Campaign:
    """Return a campaign on a ring of four with twelve points; `changes` replace top-level keys."""
    document: dict[str, Any] = {
        "name": "small",
        "topology": "ring:4",
        "collective": "allreduce",
        "sizes": ["4KiB", "64KiB"],
        "runner": {"kind": "simulated"},
        "search": {"methods": ["bfb", "ring"], "chunks": [None, 1, 2], "channels": [1, 2]},
        "baselines": ["ring"],
        "budget": {"trials": 6},
        "repeats": 3,
    }
    return Campaign.model_validate({**document, **changes})


def space_of(campaign: Campaign) -> SearchSpace:
    return search_space(campaign, load_topology(campaign.topology))


def complete(
    candidate: Candidate, time_s: float = 1.0, number: int = 1, launch_id: str = "launch", **changes: Any
) -> CompleteTrial:
    """Return a complete trial with two sizes and a ring baseline of 2 s and 4 s."""
    sizes = (
        SizeResult(4096, 4096, (time_s, time_s, 2 * time_s), {"ring": (2.0, 2.0, 2.0)}),
        SizeResult(65536, 65544, (2 * time_s, 2 * time_s, time_s), {"ring": (4.0, 4.0, 5.0)}),
    )
    facts: dict[str, Any] = {
        "trial_id": trial_id(launch_id, candidate),
        "number": number,
        "candidate": candidate,
        "started_unix_s": 1e9,
        "seconds": 2.0,
        "schedule_id": f"schedule-{candidate.id[:8]}",
        "program_id": f"program-{candidate.id[:8]}",
        "sizes": sizes,
        "environment": {"cores": 2},
    }
    return CompleteTrial(**{**facts, **changes})


def tracked_runs(uri: str, experiment: str = "small") -> list[Any]:
    """Return MLflow's runs of the trials of a campaign, of all its launches."""
    client = load_mlflow().MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id], max_results=10_000)
    return [run for run in runs if TRIAL_ID in run.data.tags]
