"""Use a stack as people would: by the API of the service, and by the command with its servers."""

import json
import time
from collections.abc import Mapping
from typing import Any

import httpx2

from chorale.synth.errors import CheckFailed
from tests.command import python
from tests.local_stack.stack import SEARCHES, Stack

PATIENCE_S = 300.0
POLL_S = 0.5

CAMPAIGN: dict[str, Any] = {
    "name": "first",
    "topology": "hypercube:3",
    "collective": "allreduce",
    "sizes": ["64KiB", "1MiB"],
    "runner": {"kind": "simulated"},
    "search": {"methods": ["bfb", "ring"], "channels": [1, 2]},
    "budget": {"trials": 4},
    "repeats": 3,
}


def check(stack: Stack) -> dict[str, Any]:
    """Ask for a schedule, a program and a campaign; return what came of it. CheckFailed if any is not as it must be."""
    api = _Api(stack.service_url, stack.token)
    refused = _Api(stack.service_url, "wrong").get("/v1/jobs").status_code == 401
    _require(refused, "a wrong token must be refused", "accepted")
    synthesis = api.job("/v1/syntheses", {"topology": "hypercube:3", "method": "bfb", "collective": "allreduce"})
    program = api.job("/v1/programs", {"result": synthesis["key"], "target": "msccl-xml"})
    campaign = api.campaign(CAMPAIGN)
    state = f"{campaign['state']}: {campaign['error']}"
    _require(campaign["state"] == "ended", "the campaign ended without a valid trial", state)
    _require(campaign["counts"] == {"complete": 4}, "every trial must complete", campaign["counts"])
    mlflow = _Api(f"{stack.mlflow_url}/api/2.0/mlflow")
    experiment = mlflow.document("/experiments/get-by-name?experiment_name=first")["experiment"]["experiment_id"]
    runs = mlflow.document("/runs/search", {"experiment_ids": [experiment]})["runs"]
    _require(len(runs) == 5, "MLflow must know a run for the launch and one for each trial", len(runs))
    schedules = len(list((stack.folder / "artifacts").rglob("schedule.parquet")))
    _require(schedules > 0, "artifacts must pass through the MLflow server", "no schedule in its folder")
    return {
        "synthesis": {"gap": synthesis["document"]["optimality"]["gap"], "files": synthesis["files"]},
        "program": {"files": program["files"]},
        "campaign": {"counts": campaign["counts"], "best": campaign["best"]},
        "mlflow": {"runs": len(runs), "schedules": schedules},
        "command": _tune(stack),
    }


class _Api(httpx2.Client):
    """The service with one token, or another server without any."""

    def __init__(self, url: str, token: str = "") -> None:
        super().__init__(base_url=url, headers={"Authorization": f"Bearer {token}"} if token else {}, timeout=60)

    def document(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the document at `path`, or what it answers to `body`."""
        answer = self.get(path) if body is None else self.post(path, json=body)
        return answer.raise_for_status().json()

    def job(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Order what `body` says; return the result once the job is done."""
        job = self.document(path, body)
        deadline_s = time.monotonic() + PATIENCE_S
        while job["state"] in ("queued", "running") and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            job = self.document(f"/v1/jobs/{job['id']}")
        _require(job["state"] == "done", f"a job of {path} must be done", f"{job['state']}: {job['error']}")
        return dict(self.document(f"/v1/results/{job['result']}"))

    def campaign(self, document: Mapping[str, Any]) -> dict[str, Any]:
        self.document("/v1/campaigns", {"campaign": document})
        path = f"/v1/campaigns/{document['name']}"
        deadline_s = time.monotonic() + PATIENCE_S
        while self.get(path).status_code == 404 and time.monotonic() < deadline_s:  # until its first lines are written
            time.sleep(POLL_S)
        while (campaign := self.document(path))["state"] == "running" and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return dict(campaign)


def _tune(stack: Stack) -> dict[str, Any]:
    """Run `chorale tune` with MLflow and the search on these servers, in the cluster, as somebody on the head would."""
    campaign = stack.folder / "second.yaml"
    storage = stack.services["mlflow"].environment["MLFLOW_BACKEND_STORE_URI"].removesuffix("mlflow") + SEARCHES
    campaign.write_text(json.dumps({**CAMPAIGN, "name": "second", "storage": storage}))  # JSON is YAML
    service = stack.services["service"]
    address = next(word for word in service.command if word.startswith("--address="))
    document = python("-m", "chorale", "tune", campaign, address, "--json", **service.environment).document
    return {"trials": document["trials"], "registered": [row["registered_version"] for row in document["best"]]}


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise CheckFailed(rule, value, "look at the logs with `python -m tests.local_stack`")
