"""The `runner` section: one form for each runner, keys of others refused."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.api.registry import RUNNERS
from chorale.runners.simulated.config import SimulatedConfig
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.campaign_file import parse_campaign
from chorale.tuner.config.runner import (
    SECTIONS,
    read_section,
)
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.trials.store import open_store

TEXT = """
name: small
topology: ring:4
collective: allreduce
sizes: [4KiB]
search: {methods: [ring]}
"""
EXAMPLES = Path(__file__).parents[4] / "examples"
COMMON = {"kind", "timeout_s", "needs", "at_once"}
OPTIONS: dict[str, Any] = {
    "link_mbps": 5, "alpha_us": 5, "fabric": "nowhere", "where": "loopback", "msccl": {}, "generator": "TACCL",
    "hosts": "a",
}  # fmt: skip
MISPLACED = [(kind, key) for kind in RUNNERS for key in OPTIONS if key not in SECTIONS[kind].model_fields]


@pytest.mark.parametrize(("kind", "key"), MISPLACED)
def test_keys_of_other_runners_are_refused(kind: str, key: str) -> None:
    text = TEXT + f"runner: {{kind: {kind}}}"
    with pytest.raises(InvalidInput) as caught:
        parse_campaign(text, [f"runner.{key}={OPTIONS[key]}"])
    message = str(caught.value)
    assert f"must use keys of its runner only, which is {kind}, got `runner.{key}`, a key of " in message
    assert message.endswith(f"known here: {', '.join(SECTIONS[kind].model_fields)}")


@pytest.mark.parametrize(
    ("runner", "message"),
    [
        ("{link_mbs: 5}", "unknown key `runner.link_mbs`; did you mean `link_mbps`? known here: kind, timeout_s"),
        ("{kind: msccl, msccl: {hots: 1}}", "unknown key `runner.msccl.hots`; did you mean `hosts`?"),
        ("{kind: oneccl, needs: {cpu: 1}}", "unknown key `runner.needs.cpu`; did you mean `cpus`?"),
        ("{kind: msccl, hosts: a}", "which is msccl, got `runner.hosts`, a key of mpi and nccl; known here: kind"),
        ("{kind: simulated, alpha_us: -1}", "campaign key `runner.alpha_us`: the value should be greater than or eq"),
        ("5", "campaign key `runner`: the value should be a valid dictionary"),
    ],
)
def test_faults_name_the_key_as_it_is_written(runner: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_campaign(TEXT + f"runner: {runner}")
    assert message in str(caught.value)


def test_the_schema_shows_the_keys_of_each_runner() -> None:
    schema: dict[str, Any] = Campaign.model_json_schema()
    runner = schema["properties"]["runner"]
    assert runner["discriminator"]["propertyName"] == "kind"
    keys = {kind: set(schema["$defs"][reference.rpartition("/")[2]]["properties"]) - COMMON
            for kind, reference in runner["discriminator"]["mapping"].items()}  # fmt: skip
    assert keys == {
        "local": {"where", "fabric", "link_mbps", "probe"},
        "simulated": {"link_mbps", "alpha_us", "link_latency_us", "hop_us", "buffer_bytes", "target"},
        "recorded": {"generator", "buffer_bytes", "schedule"},
        "oneccl": {"fabric", "where", "version"},
        "mpi": {"fabric", "where", "hosts", "transport", "interface"},
        "nccl": {
            *("library", "runtime", "version", "launcher", "hosts", "gpus_per_node", "address", "iterations"),
            *("in_place", "variables", "memory"),
        },
        "device": {"memory", "iterations"},
        "msccl": {"msccl"},
    }
    link = schema["$defs"]["LocalSection"]["properties"]["link_mbps"]
    assert link["anyOf"][0] == {"type": "number", "minimum": 0.001, "maximum": 10**6}
    assert link["description"]


def test_costs_of_the_simulated_runner_are_exact_and_read_back_from_json() -> None:
    campaign = parse_campaign(TEXT + "runner: {kind: simulated, alpha_us: 1/3, hop_us: 0.1, link_latency_us: '0.25'}")
    stored = json.loads(json.dumps(campaign.model_dump(by_alias=True, mode="json")))
    assert (stored["runner"]["alpha_us"], stored["runner"]["hop_us"]) == ("1/3", 0.1)
    for config in (campaign.runner.config, parse_campaign(json.dumps(stored)).runner.config):
        assert isinstance(config, SimulatedConfig)
        costs = (config.alpha_us, config.hop_us, config.link_latency_us)
        assert costs == (Fraction(1, 3), Fraction(1, 10), Fraction(1, 4))
        assert config.conditions() == {"alpha_us": "1/3", "hop_us": 0.1, "link_latency_us": 0.25}


@pytest.mark.parametrize("kind", RUNNERS)
def test_another_runner_may_replace_that_of_every_example(kind: str) -> None:
    for path in EXAMPLES.glob("*.yaml"):
        campaign = parse_campaign(path.read_text(), [f"runner.kind={kind}"])
        assert campaign.runner.kind == kind


def test_a_runner_that_replaces_another_keeps_what_both_have() -> None:
    text = TEXT + "runner: {link_mbps: 50, probe: false, timeout_s: 9}"
    campaign = parse_campaign(text, ["runner.alpha_us=3", "runner.kind=simulated"])
    assert campaign.runner == read_section({"kind": "simulated", "link_mbps": 50, "timeout_s": 9, "alpha_us": 3})
    with pytest.raises(InvalidInput, match=r"got `runner\.fabric`, a key of local, oneccl and mpi"):
        parse_campaign(text, ["runner.kind=simulated", "runner.fabric=cube"])
    with pytest.raises(InvalidInput, match=r"unknown key `runner\.prob`"):
        parse_campaign(TEXT + "runner: {prob: 1}", ["runner.kind=simulated"])


def test_a_resumed_launch_keeps_its_runner(home: Home) -> None:
    campaign, topology = parse_campaign(TEXT, ["baselines=[ring]"]), load_topology("ring:4")
    open_store(campaign, topology, home, resume=False).close()
    open_store(campaign, topology, home, resume=True).close()
    faster = parse_campaign(TEXT, ["baselines=[ring]", "runner.link_mbps=50"])
    with pytest.raises(InvalidInput, match="a resumed launch must keep its `runner`"):
        open_store(faster, topology, home, resume=True)
