"""Campaigns as jobs of a real Slurm: every kind of end, requeue and resume, Ray on the allocation, arrays."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.live.slurm.cluster import URGENT
from tests.live.slurm.conftest import JOB_LIMIT_S, Site
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(2 * JOB_LIMIT_S)]

TRIALS = 4
"""Of campaigns."""

STOP_S = 115
"""Of the two minutes, or a little more, that are left to a job whose limit is set to the next minute but one."""

RAY_GPUS = 4
"""Of each node of a Ray cluster, which finds by itself only those that have a driver."""

CAMPAIGN = """\
name: {name}
topology: ring:8
collective: allreduce
sizes: [1MiB]
runner:
  kind: msccl
  timeout_s: 300
  needs: {{gpus: {gpus}, patience_s: 300}}
  msccl: {{runtime: executor, launcher: {launcher}, gpus_per_node: 4, library_folder: {folder}, memory: host}}
search: {{methods: [ring, swing], channels: {{from: 1, to: 8}}}}
baselines: ["library:nccl"]
repeats: {repeats}
pruner: none
final: {{launches: 1, contenders: 2}}
budget: {{trials: {trials}}}
"""


def _written(
    site: Site, name: str, launcher: str = "srun", trials: int = TRIALS, fault: str = "", repeats: int = 1
) -> None:
    """Write the campaign and a profile that gives jobs the stand-ins, which misbehave by `fault`."""
    held = {"gpus": RAY_GPUS if launcher == "ray" else 0}  # by each node of a Ray cluster
    numbers = {"trials": trials, "repeats": repeats, **held}
    text = CAMPAIGN.format(name=name, folder=site.folder, launcher=launcher, **numbers)
    (site.folder / f"{name}.yaml").write_text(text)
    variables = {**site.variables, "STAND_IN_FAULT": fault}
    prologue = [f"export {key}='{value}'" for key, value in variables.items() if key != "CHORALE_HOME"]
    profile = {"partition": "work", "time": "30min", "stop_s": STOP_S, "prologue": prologue}
    (site.folder / "site.yaml").write_text(json.dumps({**profile, "ray_options": [f"--num-gpus={RAY_GPUS}"]}))


def _submitted(site: Site, name: str, *options: str) -> str:
    code, _, messages = site.chorale("tune", f"{name}.yaml", "--slurm", "--site", "site.yaml", *options)
    assert code == 0, messages
    return str(json.loads((site.folder / "home" / "slurm" / f"chorale-{name}.json").read_text())["job_id"])


def _trials(site: Site, name: str) -> list[dict[str, Any]]:
    journals = list((site.folder / "home" / "campaigns" / name).glob("*/trials.jsonl"))
    assert len(journals) <= 1, journals
    lines = [json.loads(line) for path in journals for line in path.read_text().splitlines()]
    return [line for line in lines if "trial_id" in line]


def _messages(site: Site, name: str) -> str:
    files = sorted((site.folder / "home" / "slurm").glob(f"chorale-{name}-*.err"))
    return "\n".join(path.read_text() for path in files)


def _preempt(site: Site, job: str) -> None:
    site.cluster.submit("#!/bin/sh\nsleep 5\n", f"--partition={URGENT}", "--nodes=4", "--exclusive", "--time=1")


def _requeue(site: Site, job: str) -> None:
    site.cluster.output("scontrol", "requeue", job)


def _lose_a_node(site: Site, job: str) -> None:
    lost = site.cluster.output("scontrol", "show", "hostnames", site.cluster.fact(job, "NodeList")).split()[-1]
    site.cluster.set_down(lost)


@pytest.mark.parametrize("end", [_preempt, _requeue, _lose_a_node])
def test_a_campaign_that_is_cut_off_goes_on_and_repeats_nothing(site: Site, end: Callable[[Site, str], None]) -> None:
    name = end.__name__.strip("_")
    _written(site, name)
    job = _submitted(site, name)
    until(lambda: len(_trials(site, name)) >= 1, JOB_LIMIT_S, lambda: _messages(site, name))
    end(site, job)
    until(lambda: site.cluster.fact(job, "Restarts") == "1", JOB_LIMIT_S, lambda: _messages(site, name))
    before = [trial["trial_id"] for trial in _trials(site, name)]
    assert site.cluster.wait(job, JOB_LIMIT_S) == "COMPLETED", _messages(site, name)
    trials = _trials(site, name)
    assert len(trials) == TRIALS
    assert [trial["trial_id"] for trial in trials[: len(before)]] == before
    assert set(Counter(trial["trial_id"] for trial in trials).values()) == {1}
    assert {trial["state"] for trial in trials} == {"complete"}, _messages(site, name)
    nodes = list(dict.fromkeys(trial["environment"]["nodes"] for trial in trials))
    assert all(names.count(",") == 1 for names in nodes)
    said = " ".join(_messages(site, name).split())
    for before_it, after_it in pairwise(nodes):
        assert f"measured on {after_it}, previously on {before_it}: the baselines are measured again" in said
    assert len(nodes) == 2 or end is not _lose_a_node
    code, output, messages = site.chorale("tune", "--follow", name)
    assert code == 0
    assert "1MiB" in output + messages


def test_a_campaign_at_the_time_limit_of_its_job_stops_requeues_and_goes_on(site: Site) -> None:
    """With more trials than there is time for: Slurm looks at limits every half a minute."""
    _written(site, "limited", trials=64, repeats=10)
    job = _submitted(site, "limited", "--set", "search.channels={from: 1, to: 32}")
    until(lambda: _trials(site, "limited"), JOB_LIMIT_S, lambda: _messages(site, "limited"))
    minutes = int(site.cluster.fact(job, "RunTime").split(":")[1]) + 2
    site.cluster.output("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")
    until(lambda: site.cluster.fact(job, "Restarts") == "1", JOB_LIMIT_S, lambda: site.cluster.fact(job, "RunTime"))
    site.cluster.output("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    before = [trial["trial_id"] for trial in _trials(site, "limited")]
    assert len(before) < 64
    until(lambda: len(_trials(site, "limited")) > len(before), JOB_LIMIT_S, lambda: _messages(site, "limited"))
    assert f"resuming launch 1 of limited with {len(before)} trials" in _messages(site, "limited")
    code, _, messages = site.chorale("tune", "--stop", "limited")
    assert code == 0, messages
    assert site.cluster.wait(job) == "CANCELLED"
    trials = _trials(site, "limited")
    assert [trial["trial_id"] for trial in trials[: len(before)]] == before
    assert set(Counter(trial["trial_id"] for trial in trials).values()) == {1}
    assert {trial["state"] for trial in trials} == {"complete"}, _messages(site, "limited")


def test_trials_that_move_to_another_node_of_the_job_are_told(site: Site) -> None:
    """A job that may go on without a node that it has lost, with one more than it needs."""
    _written(site, "moved")
    nodes = ("--no-kill", "--nodes=3", "--exclude=n4", "--ntasks-per-node=4", "--gpus-per-node=4")
    job = site.start("chorale tune moved.yaml\necho code $?", *nodes)
    until(lambda: len(_trials(site, "moved")) >= 2, JOB_LIMIT_S, site.said)
    site.cluster.set_down("n2")
    assert site.cluster.wait(job, JOB_LIMIT_S) == "COMPLETED", site.said()
    assert "code 0" in site.said()
    complete = [trial["environment"] for trial in _trials(site, "moved") if trial["state"] == "complete"]
    assert list(dict.fromkeys(each["nodes"] for each in complete)) == ["n1,n2", "n1,n3"], site.said()
    assert len({each["environment_id"] for each in complete}) == 2
    assert "measured on n1,n3, previously on n1,n2: the baselines are measured again" in " ".join(site.said().split())


def test_a_campaign_in_a_job_of_ones_own_ends_before_the_job(site: Site) -> None:
    _written(site, "own-job", trials=1000)
    script = 'CHORALE_STOP_S=30 chorale tune own-job.yaml --set "search.channels={from: 1, to: 32}"\necho code $?'
    job = site.start(script, "--time=2", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4")
    assert site.cluster.wait(job, JOB_LIMIT_S) == "COMPLETED", site.said()
    assert "this Slurm job ends: the launch stops in" in site.said()
    assert "code 0" in site.said()
    assert 1 <= len(_trials(site, "own-job")) < 64


@pytest.mark.parametrize("launcher", ["srun", "ray"])
def test_a_campaign_that_is_cancelled_stops_in_order_and_stays(site: Site, launcher: str) -> None:
    name = f"cancelled-{launcher}"
    _written(site, name, launcher, trials=14)
    job = _submitted(site, name)
    until(lambda: len(_trials(site, name)) >= 2, JOB_LIMIT_S, lambda: _messages(site, name) + _ray_logs(site))
    code, _, messages = site.chorale("tune", "--stop", name)
    assert code == 0, messages
    assert site.cluster.wait(job) == "CANCELLED"
    assert site.cluster.fact(job, "Restarts") == "0"
    until(lambda: not site.cluster.steps(), 60, site.cluster.steps)
    assert {trial["state"] for trial in _trials(site, name)} == {"complete"}


def _run(site: Site, launcher: str, *words: str) -> tuple[int, str, str]:
    options = ("runtime=executor", f"launcher={launcher}", "gpus_per_node=4", "memory=host")
    settings = [f"--set={option}" for option in (*options, f"library_folder={site.folder}")]
    job = ("--slurm", "--site", "site.yaml", "--wait", "--json")
    return site.chorale("run", "ring8.parquet", "--runner", "msccl", "--repeats", "1", *words, *settings, *job)


def test_a_hang_of_ranks_that_ray_started_ends_with_its_job(site: Site) -> None:
    _written(site, "unused", fault="hang")
    code, output, messages = _run(site, "ray", "--sizes", "1M,2M", "--timeout", "40")
    assert code == 1, messages + _ray_logs(site)
    failed = json.loads(output)
    assert failed["failure"]["kind"] == "timeout"
    assert failed["environment"]["nodes"] == "n1,n3"
    until(lambda: not site.cluster.steps(), 60, site.cluster.steps)


def test_tasks_of_an_array_measure_for_one_launch(site: Site) -> None:
    _written(site, "array", trials=16, repeats=10)  # so long that the nodes of the second task join meanwhile
    job = _submitted(site, "array", "--array", "2")
    until(
        lambda: not site.cluster.output("squeue", "--noheader", f"--jobs={job}"),
        JOB_LIMIT_S,
        lambda: _messages(site, "array") + _ray_logs(site),
    )
    trials = _trials(site, "array")
    assert len(trials) == 16, _messages(site, "array") + _ray_logs(site)
    assert set(Counter(trial["trial_id"] for trial in trials).values()) == {1}
    assert {trial["state"] for trial in trials} == {"complete"}
    assert len({trial["environment"]["nodes"] for trial in trials}) == 2  # each task has nodes of its own


def _ray_logs(site: Site) -> str:
    logs = sorted((site.folder / "home" / "slurm").glob("*/ray-*.log"))
    return "\n".join(path.read_text()[-3000:] for path in logs)


def test_a_run_is_a_job_whose_end_is_that_of_the_command(site: Site) -> None:
    _written(site, "unused")
    code, output, messages = _run(site, "srun", "--sizes", "1M")
    assert code == 0, messages
    assert json.loads(output)["environment"]["nodes"].count(",") == 1
