"""Campaign files: what is read, what is refused and how it is said."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from chorale.runners.api.registry import RUNNERS
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.campaign_file import load_campaign, parse_campaign
from chorale.tuner.config.runner import SECTIONS
from tests.campaigns import space_of

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


def test_sizes_and_ranges_are_spread() -> None:
    campaign = parse_campaign(TEXT)
    assert campaign.sizes == [4096, 8192, 16384, 65536, 2**20]
    assert campaign.search.channels == [1, 2, 4, 8]
    assert campaign.search.instances == [1, 3, 5]
    assert campaign.search.chunks == [None, 1, 2]
    assert len(space_of(campaign)) == 2 * 3 * 4 * 3


def test_overrides_reach_into_sections_and_make_missing_ones() -> None:
    campaign = parse_campaign(TEXT, ["runner.kind=simulated", "search.methods=[ring]", "budget.trials=3", "sizes=[1K]"])
    assert campaign.runner.kind == "simulated"
    assert campaign.search.methods == ["ring"]
    assert campaign.budget.trials == 3
    assert campaign.sizes == [1024]


def test_what_is_read_can_be_written_and_read_again() -> None:
    campaign = parse_campaign(TEXT)
    assert Campaign.model_validate(campaign.model_dump(by_alias=True)) == campaign


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "serach.x=1",
            "campaign file: unknown key `serach`; did you mean `search`? known here: "
            "name, topology, collective, sizes, weights, runner, search, objective, deterministic, second_objective, "
            "baselines, controls, budget, stop, final, sampler, pruner, first_repeats, overlap, screening, warm_start, "
            "prior, seed, repeats, parallel, tracking, storage, register",
        ),
        (
            "search.chunk=[1]",
            "campaign file: unknown key `search.chunk`; did you mean `chunks`? "
            "known here: methods, programs, k, chunks, channels, instances, protocol, depth, buffer_bytes, reads, "
            "block_group, pipeline_bytes, ctas, chunk_bytes, threads, cta_policy",
        ),
        (
            "search.channels={from: 1, too: 3}",
            "campaign file: unknown key `search.channels.too`; "
            "did you mean `to`? known here: from, to, step, factor; "
            "also a campaign file needs the key `search.channels.to`, got no such key",
        ),
        (
            "search.channels={from: 3, to: 1}",
            "campaign key `search.channels`: `to` must not be below `from`, got {'from': 3, 'to': 1}; "
            "see `chorale tune --schema`",
        ),
        (
            "runner.kind=gpu",
            "campaign key `runner.kind`: the value should be 'local', 'simulated', 'recorded', 'oneccl', 'mpi', "
            "'nccl', 'device' or 'msccl', got 'gpu'; see `chorale tune --schema`",
        ),
        (
            "sizes=[64Q]",
            "cannot read the size '64Q'; "
            "write sizes such as 64KiB, 1M,4M or 4KiB:1GiB:x4 (1M = 1MiB = 2^20 bytes, 1MB = 10^6)",
        ),
        ("name.x=1", "cannot set name.x=1; `name` has no keys inside"),
        ("name", "cannot read --set name; write --set budget.trials=10"),
        (
            f"seed=0x{'f' * 4000}",
            f"a value in YAML must have at most 3000 characters, got 0x{'f' * 38}…; write it shorter",
        ),
        ("sizes=[&x [1], *x]", "YAML aliases such as *name are not supported; repeat the value"),
    ],
)
def test_faults_name_key_value_and_way_out(override: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_campaign(TEXT, [override])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "override",
    [
        "sizes=[0]", "sizes=[]", "sizes=5", "search.methods=[]", "search.chunks=[0]", "search.channels=[null]",
        "name=a/b", "name=..", "budget.trials=0", "budget.minutes=-1", "repeats=0", "seed=-1", "runner.link_mbps=0",
        "runner.link_mbps=.inf", "register.alias=v3", "register.alias=latest", "register.model=a.b", "search=null",
        "collective=sort", "search.channels={from: 1, to: 1000000000}", "search.protocol=[LL256]", "parallel=1000",
    ],
)  # fmt: skip
def test_impossible_values_are_refused(override: str) -> None:
    with pytest.raises(InvalidInput):
        parse_campaign(TEXT, [override])


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "name: small", "\x00", "a: &a [*a]"])
def test_what_is_no_campaign_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_campaign(text)


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(TEXT + "#" * 2**20)
    with pytest.raises(InvalidInput, match="at most 1 MiB"):
        load_campaign(str(path))


def test_a_search_space_has_a_limit() -> None:
    huge = "search.channels={from: 1, to: 1000}"
    campaign = parse_campaign(TEXT, [huge, "search.instances={from: 1, to: 1000}"])
    with pytest.raises(InvalidInput, match="at most 100000 points"):
        space_of(campaign)


def test_buffers_are_sizes_or_left_to_the_runtime_in_the_order_given() -> None:
    campaign = parse_campaign(TEXT, ["search.buffer_bytes=[4MiB, null, 64KiB]"])
    assert campaign.search.buffer_bytes == [2**22, None, 2**16]


def test_a_second_objective_needs_a_sampler_that_can_do_it() -> None:
    assert parse_campaign(TEXT).resolved_sampler == "sizes-gp"
    assert parse_campaign(TEXT, ["second_objective=blocks"]).resolved_sampler == "tpe"
    with pytest.raises(InvalidInput, match="the sampler must be tpe, nsga2 or random"):
        parse_campaign(TEXT, ["second_objective=blocks", "sampler=gp"])


def test_the_schema_explains_every_key() -> None:
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


def test_computing_beside_needs_the_local_runner() -> None:
    assert parse_campaign(TEXT, ["overlap.products=10"]).overlap.products == 10
    with pytest.raises(InvalidInput, match="needs the local runner"):
        parse_campaign(TEXT, ["overlap.products=10", "runner.kind=simulated"])
