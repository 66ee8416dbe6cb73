"""Use a stack as people would: by the API of the service, and by the command with its servers."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from chorale.synth.errors import CheckFailed
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
    _require(_Api(stack.service_url, "wrong").status("/v1/jobs") == 401, "a wrong token must be refused", "accepted")
    synthesis = api.job("/v1/syntheses", {"topology": "hypercube:3", "method": "bfb", "collective": "allreduce"})
    program = api.job("/v1/programs", {"result": synthesis["key"], "target": "msccl-xml"})
    campaign = api.campaign(CAMPAIGN)
    _require(
        campaign["state"] == "ended",
        "the campaign ended without a valid trial",
        f"{campaign['state']}: {campaign['error']}",
    )
    _require(campaign["counts"] == {"complete": 4}, "every trial must complete", campaign["counts"])
    runs = _runs(stack, "first")
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


class _Api:
    """The service with one token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the document at `path`, or what it answers to `body`."""
        answer: dict[str, Any] = _ask(self._url + path, body, self._headers)
        return answer

    def status(self, path: str) -> int:
        """Return the status of the answer at `path`."""
        try:
            self.ask(path)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def job(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Order what `body` says; return the result once the job is done."""
        job = self.ask(path, body)
        deadline_s = time.monotonic() + PATIENCE_S
        while job["state"] in ("queued", "running") and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            job = self.ask(f"/v1/jobs/{job['id']}")
        _require(job["state"] == "done", f"a job of {path} must be done", f"{job['state']}: {job['error']}")
        return self.ask(f"/v1/results/{job['result']}")

    def campaign(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Launch a campaign; return it as it is in the end."""
        self.ask("/v1/campaigns", {"campaign": document})
        path = f"/v1/campaigns/{document['name']}"
        deadline_s = time.monotonic() + PATIENCE_S
        while self.status(path) == 404 and time.monotonic() < deadline_s:  # until its first lines are written
            time.sleep(POLL_S)
        while (campaign := self.ask(path))["state"] == "running" and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return campaign


def _runs(stack: Stack, experiment: str) -> list[dict[str, Any]]:
    api = f"{stack.mlflow_url}/api/2.0/mlflow"
    found = _ask(f"{api}/experiments/get-by-name?experiment_name={experiment}")
    answer = _ask(f"{api}/runs/search", {"experiment_ids": [found["experiment"]["experiment_id"]]})
    return list(answer["runs"])


def _tune(stack: Stack) -> dict[str, Any]:
    """Run `chorale tune` with MLflow and the search on these servers, in the cluster, as somebody on the head would."""
    campaign = stack.folder / "second.yaml"
    storage = stack.services["mlflow"].environment["MLFLOW_BACKEND_STORE_URI"].removesuffix("mlflow") + SEARCHES
    campaign.write_text(json.dumps({**CAMPAIGN, "name": "second", "storage": storage}))  # JSON is YAML
    service = stack.services["service"]
    address = next(word for word in service.command if word.startswith("--address="))
    command = [sys.executable, "-m", "chorale", "tune", str(campaign), address, "--json"]
    environment = {**os.environ, **service.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    _require(done.returncode == 0, "`chorale tune` must succeed", f"{done.returncode}: {done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    return {"trials": document["trials"], "registered": [row["registered_version"] for row in document["best"]]}


def _ask(url: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, dict(headers or {"Content-Type": "application/json"}))
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise CheckFailed(rule, value, "look at the logs with `python -m tests.local_stack`")
