"""From a campaign to GPUs: what Ray must lend, what launchers are told, and what cannot go together."""

from typing import Any

import pytest

from chorale.runners.api.base import ResourceRequest
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.plan import campaign_plan, check_runner
from chorale.tuner.trials.journal import conditions_of
from tests.campaigns import small_campaign


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
def test_the_node_that_measures_lends_its_gpus(campaign: Campaign, gpus: int) -> None:
    assert needs_of(campaign) == ResourceRequest(gpus=gpus)


def test_where_ray_launches_gpus_are_lent_for_each_measurement() -> None:
    needs = {"labels": {"rail": "a"}, "resources": {"fabric": 1}, "patience_s": 60}
    campaign = on_gpus("a100:2", launcher="ray", needs=needs)
    assert needs_of(campaign) == ResourceRequest(patience_s=60)
    check_runner(campaign, load_topology("a100:2"))


@pytest.mark.parametrize(
    ("campaign", "message"),
    [
        (on_gpus("ring:4", hosts=["a"]), "the launcher local chooses the nodes itself"),
        (
            on_gpus("ring:4", launcher="ray", hosts=["a"]),
            "the launcher ray chooses the nodes itself",
        ),
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
def test_what_cannot_go_together_is_said_before_anything_runs(campaign: Campaign, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_runner(campaign, load_topology(campaign.topology))


def test_tasks_of_a_job_array_have_nodes_each() -> None:
    runner = {"kind": "msccl", "at_once": 2, "needs": {"resources": {"chorale_task": 1}}, "msccl": {"launcher": "srun"}}
    campaign = small_campaign(topology="a100:2", runner=runner)
    check_runner(campaign, load_topology(campaign.topology))
    lent = small_campaign(topology="a100:2", runner={**runner, "msccl": {"launcher": "ray"}})
    with pytest.raises(
        InvalidInput, match=r"campaign key `runner.at_once`: launches over several nodes run one at a time, not 2"
    ):
        check_runner(lent, load_topology(lent.topology))


def test_the_plan_names_dialect_and_needs() -> None:
    plan = campaign_plan(on_gpus("a100:2"), load_topology("a100:2"))
    assert plan["target"] == "msccl-xml"
    assert plan["node_to_measure_on"] == "1 CPU, 8 GPU"


def test_the_address_of_this_process_does_not_hinder_going_on() -> None:
    topology = load_topology("ring:4")
    assert "msccl" not in conditions_of(small_campaign(), topology)["runner"]
    first, second = (on_gpus("ring:4", iterations=5, address=address) for address in ("a", "b"))
    assert conditions_of(first, topology) == conditions_of(second, topology)
    assert conditions_of(first, topology) != conditions_of(on_gpus("ring:4", iterations=6), topology)
