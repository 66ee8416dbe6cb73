"""The `runner` section: one form for each runner, keys of others refused, what earlier versions stored still read."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from chorale.runners.api.base import ResourceRequest, Runner
from chorale.runners.api.config import Capabilities, MeasurerRequest, RunnerConfig
from chorale.runners.api.registry import RUNNERS
from chorale.runners.simulated.config import SimulatedConfig
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign, runner_factory
from chorale.tuner.config.campaign_file import parse_campaign
from chorale.tuner.config.runner import (
    SECTIONS,
    RunnerSection,
    read_section,
    section_model,
    section_union,
)
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.search.space import LoweringTarget, lowering_target
from chorale.tuner.trials.journal import Launch, check_same_conditions, conditions_of, space_id, stored_campaign
from chorale.tuner.trials.store import Store, open_store
from tests.campaigns import small_campaign
from tests.fakes import FakeRunner

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
    assert f"must use keys of its runner only, which is {kind}; got `runner.{key}`, a key of " in message
    assert message.endswith(f"known here: {', '.join(SECTIONS[kind].model_fields)}")


def test_what_the_flat_section_took_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_campaign(TEXT + "runner: {kind: local, alpha_us: 5, hop_us: 1}")
    assert str(caught.value) == (
        "the section `runner` must use keys of its runner only, which is local; got `runner.alpha_us`, a key of "
        "simulated; known here: kind, timeout_s, needs, at_once, where, fabric, link_mbps, probe; also the section "
        "`runner` must use keys of its runner only, which is local; got `runner.hop_us`, a key of simulated"
    )


@pytest.mark.parametrize(
    ("runner", "message"),
    [
        ("{link_mbs: 5}", "unknown key `runner.link_mbs`; did you mean `link_mbps`? known here: kind, timeout_s"),
        ("{kind: msccl, msccl: {hots: 1}}", "unknown key `runner.msccl.hots`; did you mean `hosts`?"),
        ("{kind: oneccl, needs: {cpu: 1}}", "unknown key `runner.needs.cpu`; did you mean `cpus`?"),
        ("{kind: msccl, hosts: a}", "which is msccl; got `runner.hosts`, a key of mpi and nccl; known here: kind"),
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


def test_conditions_write_numbers_as_they_did_when_options_were_floats() -> None:
    campaign = parse_campaign(TEXT + "runner: {kind: simulated, alpha_us: 3, link_mbps: 1000}")
    assert repr(campaign.runner.config.conditions()) == "{'link_mbps': 1000.0, 'alpha_us': 3.0}"


def test_the_schema_says_that_costs_may_be_fractions() -> None:
    fields = Campaign.model_json_schema()["$defs"]["SimulatedSection"]["properties"]
    number, text = fields["alpha_us"]["anyOf"]
    assert number == {"type": "number", "minimum": 0, "maximum": 10**6}
    assert (text["type"], text["examples"]) == ("string", ["1/3"])
    assert fields["alpha_us"]["default"] == 0
    assert fields["link_mbps"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0, "maximum": 10**6}


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


class ToyConfig(RunnerConfig):
    """A runner of a test."""

    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "a stand-in"
    capabilities: ClassVar[Capabilities] = Capabilities(protocols=True)
    strings: int = Field(default=1, ge=1, description="Strings of the toy.")

    def lowering(self) -> LoweringOptions:
        return LoweringOptions("msccl-xml", sm_count=self.strings)

    def resources(self, request: MeasurerRequest, topology: Topology) -> ResourceRequest:
        return ResourceRequest(request.node.cpus, gpus=self.strings)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        return FakeRunner()


def test_a_new_runner_is_one_declaration(tmp_path: Path) -> None:
    sections: TypeAdapter[RunnerSection] = TypeAdapter(section_union([*SECTIONS.values(), section_model(ToyConfig)]))
    section, ring = sections.validate_python({"kind": "toy", "strings": 3, "timeout_s": 5}), load_topology("ring:4")
    assert (section.timeout_s, section.config) == (5, ToyConfig(strings=3))
    assert sections.validate_python({}).kind == "local"
    assert lowering_target(section) == LoweringTarget("msccl-xml", 3)
    assert section.config.resources(section.measurers, ring) == ResourceRequest(gpus=3)
    assert isinstance(runner_factory(section, ring, tmp_path)(), FakeRunner)
    campaign = small_campaign().model_copy(update={"runner": section})
    assert conditions_of(campaign, ring)["runner"]["strings"] == 3
    with pytest.raises(ValidationError, match="strings"):
        sections.validate_python({"kind": "local", "strings": 3})


FLAT_MSCCL = {
    "runtime": "msccl", "launcher": "openmpi", "hosts": [], "gpus_per_node": None, "tests_folder": None,
    "library_folder": None, "shared_folder": None, "iterations": 50, "variables": {}, "in_place": True,
    "sm_count": None,
}  # fmt: skip
FLAT = {
    "kind": "local", "fabric": None, "where": None, "msccl": FLAT_MSCCL, "link_mbps": None, "alpha_us": 0.0,
    "link_latency_us": 0.0, "timeout_s": 60.0,
    "needs": {"cpus": 1.0, "gpus": None, "resources": {}, "labels": {}, "patience_s": 30.0}, "at_once": 1,
}  # fmt: skip
"""The section as earlier versions wrote it into journals, whatever the runner."""
CONDITIONS = {"kind": "local", "fabric": None, "link_mbps": None, "alpha_us": 0, "link_latency_us": 0}
EXECUTOR = {"runtime": "executor", "hosts": ["a", "b"], "variables": {"NCCL_DEBUG": "INFO"}, "sm_count": 80}
COMPARED_MSCCL = {key: value for key, value in FLAT_MSCCL.items() if key != "shared_folder"}
STORED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "5572f7055636132aaa42e623b3edd357d1b6afb80599d2daa2e165837f812c59"),
    (
        {"link_mbps": 50.0},
        {"link_mbps": 50.0},
        "f6b60c45a39058d648143ff4e3247ddd959477758db69e2021b7a0dfd71885bc",
    ),
    ({"kind": "recorded"}, {}, "c62991b81a8614d93f27749e3d72b149c6dd6df14e263faa22eb8727d06170a7"),
    (
        {"kind": "mpi", "where": "loopback"},
        {"where": "loopback"},
        "fe02a165fdab71f1ff2661d1f661d0c54b8175b6d84da4d4202ce02727b78971",
    ),
    ({"kind": "msccl"}, {"msccl": COMPARED_MSCCL}, "e9982fb328c11fbcd578f6831b91e5bdce6aeb1b0c175e8cc8721dc11066e8de"),
    (
        {"kind": "msccl", "msccl": {**FLAT_MSCCL, **EXECUTOR, "shared_folder": "/shared"}},
        {"msccl": {**COMPARED_MSCCL, **EXECUTOR}},
        "faa7547c2232d6ad87f01d93c8780fe6dfaba6888fc039658fceeca41ef52c5d",
    ),
]
"""What differs in stored sections; in the conditions stored with them; the names of studies.

All as they were for one size of 4 KiB and the method ring on ring:4.
"""


def _stored(runner: dict[str, Any], conditions: dict[str, Any]) -> Launch:
    """Return a launch as an earlier version stored it."""
    document = {
        **parse_campaign(TEXT, ["baselines=[ring]"]).model_dump(by_alias=True, mode="json"),
        "runner": {**FLAT, **runner},
    }
    others = conditions_of(parse_campaign(TEXT, ["baselines=[ring]"]), load_topology("ring:4"))
    stated = {**CONDITIONS, "kind": runner.get("kind", "local"), **conditions}
    return Launch("launch", 1, {**others, "runner": stated}, document, 5.0)


@pytest.mark.parametrize(("runner", "conditions", "study"), STORED)
def test_launches_of_earlier_versions_go_on(runner: dict[str, Any], conditions: dict[str, Any], study: str) -> None:
    launch, topology = _stored(runner, conditions), load_topology("ring:4")
    campaign = Campaign.model_validate(stored_campaign(launch))
    today = conditions_of(campaign, topology)
    assert today == launch.conditions
    assert space_id(campaign, today) == study
    check_same_conditions(launch, today)


def test_keys_of_other_runners_that_earlier_versions_took_mean_nothing(home: Home) -> None:
    others, topology = {"alpha_us": 5.0, "fabric": "nowhere"}, load_topology("ring:4")
    launch = _stored(others, others)
    campaign = Campaign.model_validate(stored_campaign(launch))
    check_same_conditions(launch, conditions_of(campaign, topology))
    folder = home.create(home.campaigns / "small" / "1")
    Store(folder, launch).close()
    store = open_store(campaign, topology, home, resume=True)
    assert store.launch == launch
    store.close()
    faster = Campaign.model_validate({**stored_campaign(launch), "runner": {"link_mbps": 50}})
    with pytest.raises(InvalidInput, match="a resumed launch must keep its `runner`"):
        open_store(faster, topology, home, resume=True)


def test_a_campaign_file_is_read_strictly() -> None:
    with pytest.raises(ValidationError):
        Campaign.model_validate(_stored({}, {}).campaign)
