"""What earlier launches and the record say to a new launch and to a resumed one."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.plan import campaign_plan, learned_priors, plan_lines
from chorale.tuner.launch.tune import TuneReport
from chorale.tuner.reports.tuning import prior_lines, tune_document
from chorale.tuner.search.size_model import Prior
from chorale.tuner.trials.records import Candidate, CompleteTrial
from chorale.tuner.trials.store import open_store
from tests.campaigns import complete, small_campaign, space_of
from tests.unit.tuner.launch.test_tuning import run

NAME = "small launch 1 (ring:4, simulated)"


def whole(**changes: Any) -> Campaign:
    """Return a campaign that measures all of its twelve points."""
    return small_campaign(**{"budget": {"trials": 12}, **changes})


def priors_of(campaign: Campaign, home: Home) -> list[Prior]:
    return learned_priors(campaign, load_topology(campaign.topology), space_of(campaign), home)


def tried(report: TuneReport) -> list[Candidate]:
    return [trial.candidate for trial in sorted(report.trials, key=lambda trial: trial.number)]


def measure(home: Home, campaign: Campaign) -> Path:
    """Write a launch whose points take the longer the later they come; return its folder."""
    store = open_store(campaign, load_topology(campaign.topology), home, resume=False)
    for number, point in enumerate(space_of(campaign).points, 1):
        store.add(complete(point, 0.5 + 0.2 * number, number))
    store.close()
    return store.folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, TuneReport]:
    """A data folder with a launch, and its report."""
    home = Home(tmp_path_factory.mktemp("measured") / "home")
    return home, run(home, whole())


def copied(home: Home, path: Path) -> Home:
    shutil.copytree(home.root, path / "home", dirs_exist_ok=True)
    return Home(path / "home")


def test_a_second_launch_begins_with_what_the_first_learned(measured, tmp_path):
    home, first = copied(measured[0], tmp_path), measured[1]
    assert tune_document(first)["prior"] == []
    second = run(home, whole())
    [prior] = tune_document(second)["prior"]
    assert (prior["name"], prior["points"]) == (NAME, 12)
    assert prior["weight"] > 0.8
    assert "used with weight" in "".join(prior_lines(second))
    speedups = {trial.candidate: trial.speedup for trial in first.trials if isinstance(trial, CompleteTrial)}
    assert max(speedups[point] for point in tried(second)[:3]) >= 0.98 * max(speedups.values())


@pytest.mark.slow
def test_a_resumed_launch_has_priors_too(measured, tmp_path):
    home = copied(measured[0], tmp_path)
    twin = copied(measured[0], tmp_path / "twin")
    begun = run(home, whole(name="next", budget={"trials": 4}))
    assert tried(begun) == tried(run(twin, whole(name="next", budget={"trials": 4})))  # by the data folder alone
    resumed = run(home, whole(name="next", budget={"trials": 8}), resume=True)
    assert resumed.folder == begun.folder
    assert [prior["name"] for prior in tune_document(resumed)["prior"]] == [NAME]


def test_a_launch_that_misleads_is_dropped(measured, tmp_path):
    """A journal says the opposite of what is true."""
    home, first = Home(tmp_path / "home"), measured[1]
    store = open_store(whole(name="liar"), load_topology("ring:4"), home, resume=False)
    for trial in first.trials:
        opposite = [replace(one, times_s=(one.baseline_median_s * one.speedup,)) for one in trial.sizes]
        store.add(replace(trial, sizes=tuple(opposite)))
    store.close()
    misled = run(home, whole(budget={"trials": 8}))
    [prior] = tune_document(misled)["prior"]
    assert (prior["name"], prior["weight"]) == ("liar launch 1 (ring:4, simulated)", 0)
    assert "dropped" in "".join(prior_lines(misled))


def test_the_nearest_circumstances_come_first(home):
    measure(home, whole(name="far", topology="ring:8"))
    measure(home, whole(name="rate", runner={"kind": "simulated", "link_mbps": 50}))
    measure(home, whole(name="near"))
    measure(home, whole(name="gather", collective="allgather"))
    assert [prior.source for prior in priors_of(whole(), home)] == ["near", "rate", "far"]
    assert [prior.source for prior in priors_of(whole(prior=["far"]), home)] == ["far"]
    assert priors_of(whole(prior="none"), home) == priors_of(whole(sampler="tpe"), home) == []
    assert priors_of(whole(search={"methods": ["biring"]}), home) == []
    with pytest.raises(InvalidInput, match="campaign key `prior`: the source"):
        priors_of(whole(prior=["near", "gather"]), home)


def test_gains_are_those_at_the_nearest_size_and_the_plan_names_them(home):
    journal = measure(home, whole()) / "trials.jsonl"
    [here] = priors_of(whole(), home)
    [there] = priors_of(whole(sizes=["1KiB", "8KiB", "1MiB"]), home)
    for point, gains in here.gains.items():
        assert there.gains[point].tolist() == [gains[0], gains[0], gains[1]]
    plan = campaign_plan(whole(), load_topology("ring:4"), [here])
    assert plan["prior"] == [{"name": NAME, "points": 12}]
    json.dumps(plan)
    assert f"prior from {NAME}, 12 points" in "\n".join(plan_lines(plan))
    for damage in (journal.read_bytes() + b"no record\n", b"\xff\n"):  # what cannot be read says nothing
        journal.write_bytes(damage)
        assert priors_of(whole(), home) == []


def test_the_record_says_nothing_to_who_replays_it(home):
    search = {"methods": ["forest"], "k": [1, 2, 4], "instances": [1, 2, 4], "buffer_bytes": [None, "1MiB"]}
    changes: dict[str, Any] = {"runner": {"kind": "recorded"}, "search": search, "sizes": ["1MiB", "64MiB"]}
    names = {"mi250:2": "recorded runs on mi250half:2", "mi250half:2": "recorded runs on mi250:2"}
    for topology, name in names.items():
        campaign = small_campaign(topology=topology, collective="allgather", **changes)
        [prior] = priors_of(campaign, home)
        assert prior.name == name
        assert len(prior.gains) >= 4
    assert priors_of(small_campaign(search=search), home) == []
