"""What predicted times decide before a launch: the baselines that stand for the library, methods, first guesses."""

from typing import Any

import pytest

from chorale.runners.api.base import Measurement, RunRequest
from chorale.runners.simulated.library_model import library_algorithms, library_best, library_choice
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildResult
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.loop import RequestBuilder
from chorale.tuner.launch.predictions import campaign_on, first_guesses
from chorale.tuner.search.space import search_space
from chorale.tuner.trials.records import Candidate


def on_network(topology: str, kind: str, **keys: Any) -> Campaign:
    campaign = Campaign.model_validate({"topology": topology, "runner": {"kind": kind}, **keys})
    return campaign_on(campaign, load_topology(topology))


@pytest.mark.parametrize(
    ("topology", "kind", "collective", "baselines"),
    [
        ("hypercube:3", "local", "allreduce", ["rabenseifner"]),
        ("complete:6", "simulated", "allreduce", ["ring"]),  # others of MPI's need a power of two
        ("h100:1", "simulated", "allreduce", ["library:modelled", "rabenseifner"]),
        ("h100:1", "nccl", "allgather", ["library:nccl"]),
        ("a100:1", "msccl", "allreduce", ["library:nccl"]),
        ("torus:2x2", "mpi", "broadcast", ["library:mpi"]),
        ("torus:2x2", "oneccl", "allgather", ["library:ring", "library:flat"]),
        ("mi250half:1", "recorded", "allreduce", ["library:rccl"]),
        ("hypercube:3", "simulated", "alltoall", ["alltoall"]),
    ],
)
def test_the_baseline_is_what_the_library_does(topology: str, kind: str, collective: str, baselines: list[str]) -> None:
    assert on_network(topology, kind, collective=collective).baselines == baselines


def test_names_that_are_given_stay() -> None:
    campaign = on_network("ring:4", "simulated", baselines=["biring", "library"], search={"methods": ["ring", "auto"]})
    assert campaign.baselines[0] == "biring"
    assert campaign.search.methods[0] == "ring"
    assert len(set(campaign.search.methods)) == len(campaign.search.methods) > 2
    assert campaign_on(campaign, load_topology("ring:4")) == campaign


def test_what_is_tried_first_depends_on_the_size() -> None:
    runner = {"kind": "simulated", "link_latency_us": 5}
    first = {}
    for size in ("64B", "64MiB"):
        keys = {"runner": runner, "sizes": [size], "search": {"methods": ["ring", "bfb", "recursive-doubling"]}}
        campaign, topology = on_network("hypercube:4", "simulated", **keys), load_topology("hypercube:4")
        guesses = first_guesses(campaign, topology, search_space(campaign, topology))
        assert {guess.method for guess in guesses} == set(keys["search"]["methods"])
        first[size] = guesses[0].method
    assert first == {"64B": "recursive-doubling", "64MiB": "bfb"}


@pytest.mark.parametrize("alpha_us", [0, 10])
def test_the_library_is_simulated_by_its_published_model(alpha_us: int) -> None:
    topology, sizes = load_topology("h100:1"), (2**12, 2**28)
    built = build(RequestBuilder(on_network("h100:1", "simulated"), topology).build(Candidate("ring")))
    assert isinstance(built, BuildResult)
    request = RunRequest(topology, {"ring": built.program}, sizes, repeats=2, library=("modelled",))
    outcome = SimulatedRunner(NetworkModel.of(alpha_us=alpha_us)).submit(request)
    assert isinstance(outcome, Measurement)
    algorithms = library_algorithms(topology)
    for size, result in zip(sizes, outcome.results["library:modelled"], strict=True):
        # Without latencies of messages, the library's are left out, too: only rates are compared
        model_s = library_choice(algorithms, size).seconds(size)
        expected_s = model_s if alpha_us else size / library_best(algorithms).bytes_per_s
        assert result.times_s == pytest.approx([expected_s] * 2)
