"""Campaign files, their runner sections, recorded jobs and GPUs: what is read, what is refused and how it is said."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from chorale.job.record import CallCount, CallKey, Record
from chorale.runners.api.base import ResourceRequest
from chorale.runners.api.registry import RUNNERS, SimulatedConfig
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.campaign_file import (
    RecordedJob,
    coverage_lines,
    load_campaign,
    parse_campaign,
    recorded_campaigns,
)
from chorale.tuner.config.values import SECTIONS, read_section
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.plan import campaign_on, campaign_plan, check_runner
from chorale.tuner.trials.journal import conditions_of
from chorale.tuner.trials.records import Candidate, SizeResult, mean_speedup
from chorale.tuner.trials.store import open_store
from tests.campaigns import complete, small_campaign, space_of

TEXT = """
name: small
topology: hypercube:3
collective: allreduce
sizes: [1M, 64KiB, "4KiB:16KiB:x2"]
search:
  methods: [bfb, ring]
  chunks: [null, 1, 2]
  channels: {from: 1, to: 8, factor: 2}
  instances: {from: 1, to: 5, step: 2}
"""


def test_what_is_read_and_overridden():
    campaign = parse_campaign(TEXT)
    assert campaign.sizes == [4096, 8192, 16384, 65536, 2**20]
    assert campaign.search.channels == [1, 2, 4, 8]
    assert campaign.search.instances == [1, 3, 5]
    assert campaign.search.chunks == [None, 1, 2]
    assert campaign.resolved_sampler == "sizes-gp"
    assert len(space_of(campaign)) == 2 * 3 * 4 * 3
    assert Campaign.model_validate(campaign.model_dump(by_alias=True)) == campaign
    changes = ("runner.kind=simulated", "search.methods=[ring]", "budget.trials=3", "sizes=[1K]")
    campaign = parse_campaign(TEXT, [*changes, "search.buffer_bytes=[4MiB, null, 64KiB]"])
    assert (campaign.runner.kind, campaign.search.methods) == ("simulated", ["ring"])
    assert (campaign.budget.trials, campaign.sizes) == (3, [1024])
    assert campaign.search.buffer_bytes == [2**22, None, 2**16]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("serach.x=1", "campaign file: unknown key `serach`; did you mean `search`? known keys: name, topology, "),
        ("search.chunk=[1]", "unknown key `search.chunk`; did you mean `chunks`? known keys: methods, programs, k, "),
        (
            "search.channels={from: 1, too: 3}",
            "campaign file: unknown key `search.channels.too`; did you mean `to`? known keys: from, to, step, factor; "
            "also a campaign file needs the key `search.channels.to`, got no such key",
        ),
        ("search.channels={from: 3, to: 1}", "`to` must not be below `from`, got {'from': 3, 'to': 1}; see `chorale "),
        ("runner.kind=gpu", "campaign key `runner.kind`: the value should be 'local', 'simulated', 'recorded', "),
        ("sizes=[64Q]", "cannot read the size '64Q'; write a size such as 64KiB, a list (1M,4M) or a range (4KiB:"),
        ("name.x=1", "cannot set name.x=1; `name` has no keys inside"),
        ("name", "cannot read --set name; write --set budget.trials=10"),
        (f"seed=0x{'f' * 4000}", f"in YAML must have at most 3000 characters, got 0x{'f' * 38}…; write it shorter"),
        ("sizes=[&x [1], *x]", "YAML aliases such as *name are not supported; repeat the value"),
        ("search={k: 1, k: 2}", "the key k occurs more than once in one mapping; keep one of them"),
        ("storage=5", "campaign key `storage`: the value should be text, such as the address of a server, got 5; see"),
        ("runner={link_mbs: 5}", "unknown key `runner.link_mbs`; did you mean `link_mbps`? known keys: kind, timeout_"),
        ("runner={kind: msccl, msccl: {hots: 1}}", "unknown key `runner.msccl.hots`; did you mean `hosts`?"),
        ("runner={kind: oneccl, needs: {cpu: 1}}", "unknown key `runner.needs.cpu`; did you mean `cpus`?"),
        ("runner={kind: msccl, hosts: a}", "its runner, msccl, got `runner.hosts`, a key of mpi and nccl; known keys:"),
        ("runner={kind: simulated, alpha_us: -1}", "key `runner.alpha_us`: the value should be greater than or eq"),
        ("runner=5", "campaign key `runner`: the value should be a valid dictionary"),
    ],
)
def test_faults_name_key_value_and_way_out(override, message):
    with pytest.raises(InvalidInput) as caught:
        parse_campaign(TEXT, [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "sizes=[0]", "sizes=[]", "sizes=5", "search.methods=[]", "search.chunks=[0]", "search.channels=[null]",
        "name=a/b", "name=..", "budget.trials=0", "budget.minutes=-1", "repeats=0", "seed=-1", "runner.link_mbps=0",
        "runner.link_mbps=.inf", "register.alias=v3", "register.alias=latest", "register.model=a.b", "search=null",
        "collective=sort", "search.channels={from: 1, to: 1000000000}", "search.protocol=[LL256]", "parallel=1000",
    ],
)  # fmt: skip
def test_impossible_values_are_refused(override):
    with pytest.raises(InvalidInput):
        parse_campaign(TEXT, [override])


def test_what_is_no_campaign_or_too_large_is_refused(tmp_path):
    for text in ("", "[1, 2]", "a: [", "name: small", "\x00", "a: &a [*a]"):
        with pytest.raises(InvalidInput):
            parse_campaign(text)
    path = tmp_path / "long.yaml"
    path.write_text(TEXT + "#" * 2**20)
    with pytest.raises(InvalidInput, match="at most 1 MiB"):
        load_campaign(str(path))
    wide = (f"search.{name}={{from: 1, to: 1000}}" for name in ("channels", "instances"))
    with pytest.raises(InvalidInput, match="at most 100000 points"):
        space_of(parse_campaign(TEXT, list(wide)))


def test_the_schema_explains_every_key_and_shows_those_of_each_runner():
    def undescribed(model: type[BaseModel]) -> list[str]:
        return [name for name, field in model.model_fields.items() if not field.description]

    sections = [field.annotation for field in Campaign.model_fields.values()]
    models = [
        Campaign,
        *(section for section in sections if isinstance(section, type) and issubclass(section, BaseModel)),
    ]
    assert [undescribed(model) for model in models] == [[] for _ in models]
    assert {kind: undescribed(section) for kind, section in SECTIONS.items()} == {kind: [] for kind in RUNNERS}
    assert {kind: undescribed(runner) for kind, runner in RUNNERS.items()} == {kind: [] for kind in RUNNERS}
    schema: dict[str, Any] = Campaign.model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"topology"}
    schema: dict[str, Any] = Campaign.model_json_schema()
    runner = schema["properties"]["runner"]
    assert runner["discriminator"]["propertyName"] == "kind"
    keys = {kind: set(schema["$defs"][reference.rpartition("/")[2]]["properties"]) - COMMON
            for kind, reference in runner["discriminator"]["mapping"].items()}  # fmt: skip
    assert keys == {
        "local": {"where", "fabric", "link_mbps", "probe"},
        "simulated": {"link_mbps", "alpha_us", "link_latency_us", "hop_us", "buffer_bytes", "target"},
        "recorded": {"generator", "buffer_bytes", "schedule"},
        "oneccl": {"fabric", "where"},
        "mpi": {"fabric", "where", "hosts", "transport", "interface"},
        "nccl": {
            *("library", "runtime", "version", "launcher", "hosts", "gpus_per_node", "address", "iterations"),
            *("in_place", "variables", "memory", "per_call", "cuda_graph", "torch"),
        },
        "device": {"memory", "iterations", "wide_sums"},
        "msccl": {"msccl"},
    }
    link = schema["$defs"]["LocalSection"]["properties"]["link_mbps"]
    assert link["anyOf"][0] == {"type": "number", "minimum": 0.001, "maximum": 10**6}
    assert link["description"]


ALL = {
    CallKey("allreduce", "float32", None, None, 2**20): CallCount(10, 4.0),
    CallKey("allreduce", "bfloat16", None, None, 2**20): CallCount(10, 2.0),
    CallKey("allreduce", "float32", None, None, 2**12): CallCount(10, 2.0),
    CallKey("allgather", "float32", None, None, 2**16): CallCount(1, 1.0),
    CallKey("broadcast", "float32", None, 3, 2**16): CallCount(1, 0.5),
    CallKey("allreduce", "float32", (0, 1), None, 2**12): CallCount(1, 0.5),
}
JOB = RecordedJob.of(Record(8, ALL))
BASE = {"topology": "hypercube:3", "runner": {"kind": "simulated"}}


def test_each_collective_has_a_campaign_weighted_by_time_and_the_rest_is_said():
    first, second = recorded_campaigns(JOB, "my job", BASE, ["budget.trials=3"])
    assert (first.name, first.collective, first.sizes) == ("my-job-allreduce", "allreduce", [2**12, 2**20])
    assert first.size_weights == {2**12: 0.25, 2**20: 0.75}
    assert (second.name, second.sizes, second.size_weights) == ("my-job-allgather", [2**16], {2**16: 1.0})
    assert {campaign.budget.trials for campaign in (first, second)} == {3}
    lines = list(coverage_lines(JOB, recorded_campaigns(JOB, "job", BASE, [])))
    assert lines[0] == "campaigns cover 90% of the 10 s that the job spent in collectives"
    assert "  job-allreduce: 80%, by size: 4KiB 25%, 1MiB 75%" in lines
    assert "  not covered: 5%, broadcast from rank 3, and not from rank 0" in lines
    assert "  not covered: 5%, a group of 2 ranks" in lines
    with pytest.raises(InvalidInput, match="the record has no collective of all ranks that can be"):
        recorded_campaigns(RecordedJob.of(Record(8, dict([list(ALL.items())[4]]))), "job", BASE, [])


@pytest.mark.parametrize(("collective", "method"), [("broadcast", "forest"), ("alltoall", "alltoall")])
def test_collectives_with_methods_of_their_own_are_tuned_by_these(collective, method):
    root = 0 if collective == "broadcast" else None
    record = Record(8, {CallKey(collective, "float32", None, root, 2**16): CallCount(1, 0.5)})
    (campaign,) = recorded_campaigns(RecordedJob.of(record), "job", BASE, [])
    campaign = campaign_on(campaign, load_topology(campaign.topology))
    assert campaign.collective == collective
    assert method in campaign.search.methods
    assert campaign.baselines != ["ring"]


def test_weights_enter_the_objective():
    sizes = [SizeResult(1, 1, (1.0,), {"ring": (8.0,)}, weight) for weight in (3.0,)]
    sizes.append(SizeResult(2, 2, (1.0,), {"ring": (0.5,)}, 1.0))
    assert mean_speedup(sizes) == pytest.approx(math.exp((3 * math.log(8) + math.log(0.5)) / 4))
    trial = complete(Candidate("bfb"))
    assert trial.speedup == pytest.approx(math.sqrt(math.prod(size.speedup for size in trial.sizes)))
    with pytest.raises(ValueError, match="one number for each of the 2 sizes"):
        small_campaign(weights=[1.0])


EXAMPLES = Path(__file__).parents[4] / "examples"
COMMON = {"kind", "timeout_s", "needs", "at_once"}
OPTIONS: dict[str, Any] = {
    "link_mbps": 5, "alpha_us": 5, "fabric": "nowhere", "where": "loopback", "msccl": {}, "generator": "TACCL",
    "hosts": "a",
}  # fmt: skip
MISPLACED = [(kind, key) for kind in RUNNERS for key in OPTIONS if key not in SECTIONS[kind].model_fields]


@pytest.mark.parametrize(("kind", "key"), MISPLACED)
def test_keys_of_other_runners_are_refused(kind, key):
    with pytest.raises(InvalidInput) as caught:
        parse_campaign(TEXT + f"runner: {{kind: {kind}}}", [f"runner.{key}={OPTIONS[key]}"])
    message = str(caught.value)
    assert f"the section `runner` must only have keys of its runner, {kind}, got `runner.{key}`, a key of " in message
    assert message.endswith(f"known keys: {', '.join(SECTIONS[kind].model_fields)}")


def test_costs_of_the_simulated_runner_are_exact_and_read_back_from_json():
    campaign = parse_campaign(TEXT + "runner: {kind: simulated, alpha_us: 1/3, hop_us: 0.1, link_latency_us: '0.25'}")
    stored = json.loads(json.dumps(campaign.model_dump(by_alias=True, mode="json")))
    assert (stored["runner"]["alpha_us"], stored["runner"]["hop_us"]) == ("1/3", 0.1)
    for config in (campaign.runner.config, parse_campaign(json.dumps(stored)).runner.config):
        assert isinstance(config, SimulatedConfig)
        costs = (config.alpha_us, config.hop_us, config.link_latency_us)
        assert costs == (Fraction(1, 3), Fraction(1, 10), Fraction(1, 4))
        assert config.conditions() == {"alpha_us": "1/3", "hop_us": 0.1, "link_latency_us": 0.25}


@pytest.mark.parametrize("kind", RUNNERS)
def test_another_runner_may_replace_that_of_every_example(kind):
    for path in EXAMPLES.glob("*.yaml"):
        campaign = parse_campaign(path.read_text(), [f"runner.kind={kind}"])
        assert campaign.runner.kind == kind


def test_a_runner_that_replaces_another_keeps_what_both_have():
    text = TEXT + "runner: {link_mbps: 50, probe: false, timeout_s: 9}"
    campaign = parse_campaign(text, ["runner.alpha_us=3", "runner.kind=simulated"])
    assert campaign.runner == read_section({"kind": "simulated", "link_mbps": 50, "timeout_s": 9, "alpha_us": 3})
    with pytest.raises(InvalidInput, match=r"got `runner\.fabric`, a key of local, oneccl and mpi"):
        parse_campaign(text, ["runner.kind=simulated", "runner.fabric=cube"])
    with pytest.raises(InvalidInput, match=r"unknown key `runner\.prob`"):
        parse_campaign(TEXT + "runner: {prob: 1}", ["runner.kind=simulated"])


def test_a_resumed_launch_keeps_its_runner_but_for_the_address_of_this_process(home):
    campaign, topology = parse_campaign(TEXT, ["baselines=[ring]"]), load_topology("hypercube:3")
    for resume in (False, True):
        open_store(campaign, topology, home, resume=resume).close()
    faster = parse_campaign(TEXT, ["baselines=[ring]", "runner.link_mbps=50"])
    with pytest.raises(InvalidInput, match="a resumed launch must keep its `runner`"):
        open_store(faster, topology, home, resume=True)
    topology = load_topology("ring:4")
    assert "msccl" not in conditions_of(small_campaign(), topology)["runner"]
    settings = ({"iterations": 5, "address": "a"}, {"iterations": 5, "address": "b"}, {"iterations": 6})
    first, second, other = (conditions_of(on_gpus("ring:4", **each), topology) for each in settings)
    assert first == second != other


def on_gpus(topology: str, needs: dict[str, Any] | None = None, **msccl: Any) -> Campaign:
    runner = {"kind": "msccl", "needs": needs or {}, "msccl": msccl}
    return small_campaign(topology=topology, runner=runner, baselines=["library:nccl"])


def needs_of(campaign: Campaign) -> ResourceRequest:
    return campaign.runner.config.resources(campaign.runner.measurers, load_topology(campaign.topology))


@pytest.mark.parametrize(
    ("campaign", "gpus"),
    [
        (on_gpus("a100:2"), 8),  # as the boxes of the topology
        (on_gpus("ring:4"), 4),  # no boxes: one node
        (on_gpus("ring:4", hosts=["a", "b"]), 2),
        (on_gpus("ring:4", gpus_per_node=1), 1),
        (on_gpus("ring:4", needs={"gpus": 0}), 0),  # a login node
        (small_campaign(), 0),
    ],
)
def test_the_node_that_measures_lends_its_gpus(campaign, gpus):
    assert needs_of(campaign) == ResourceRequest(gpus=gpus)


def test_gpus_are_lent_by_ray_for_each_measurement_and_by_job_arrays():
    topology = load_topology("a100:2")
    needs = {"labels": {"rail": "a"}, "resources": {"fabric": 1}, "patience_s": 60}
    campaign = on_gpus("a100:2", launcher="ray", needs=needs)
    assert needs_of(campaign) == ResourceRequest(patience_s=60)
    check_runner(campaign, topology)
    runner = {"kind": "msccl", "at_once": 2, "needs": {"resources": {"chorale_task": 1}}, "msccl": {"launcher": "srun"}}
    check_runner(small_campaign(topology="a100:2", runner=runner), topology)
    plan = campaign_plan(on_gpus("a100:2"), topology)
    assert (plan["target"], plan["node_to_measure_on"]) == ("msccl-xml", "1 CPU, 8 GPU")


@pytest.mark.parametrize(
    ("campaign", "message"),
    [
        (on_gpus("ring:4", hosts=["a"]), "the launcher local chooses the nodes itself"),
        (on_gpus("h100:4"), "32 ranks need 4 hosts of 8 GPUs; set `runner.msccl.launcher` and `runner.msccl.hosts`"),
        (on_gpus("ring:4", launcher="ray", hosts=["a"]), "the launcher ray chooses the nodes itself"),
        (on_gpus("ring:4", launcher="mpich", hosts=["a", "b", "c"]), "the hosts must have exactly 4 GPUs"),
        (on_gpus("ring:4", gpus_per_node=3), "gpus_per_node must divide the 4 ranks"),
        (
            on_gpus("a100:2", launcher="ray", needs={"gpus": 4}),
            "each node that Ray lends must have a GPU for each of its ranks, got 4 GPUs for 8 ranks",
        ),
        (
            small_campaign(topology="a100:2", runner={"kind": "nccl", "at_once": 2, "launcher": "srun"}),
            "campaign key `runner.at_once`: launches over several nodes run one at a time, not 2",
        ),
    ],
)
def test_what_cannot_go_together_is_said_before_anything_runs(campaign, message):
    with pytest.raises(InvalidInput, match=message):
        check_runner(campaign, load_topology(campaign.topology))
