"""Trees of symmetric fabrics: optimal, right when written out, the same as JSON has them, and compact where large."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import METHODS, synthesize
from chorale.synth.methods.forest.symmetric.symmetric_forest import symmetric_forest
from chorale.synth.methods.method import Options
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import inspect, verify

PARAMETERS = {"k": None, "objective": "height", "seed": 0, "seeds": 1}
HEIGHTS = {
    "nvl72:2": 3, "a100:2": 2, "railclos:4,12,100,2": 3, "railclos:3,24,100,0": 3, "railclos:5,7,400,1": 3,
    "a100:3": 2, "a100:5": 2, "h100:6": 2, "railclos:4,4,50,2": 2, "mi250:4": 11, "mi250half:3": 5, "mi300x:6": 2,
    "fattree:4": 1, "fattree:6": 1, "dragonfly:4,2,2": 4, "dragonfly:3,2,1": 4, "switch:6,10": 1,
    "torus:4x4": 4, "torus:5x4": 4, "torus:3x3x2": 3, "hypercube:4": 4, "complete:5": 1, "uniring:1,6": 5,
    "twisted-torus:4x8,4": 4, "twisted-torus:3x8,5": 4, "twisted-torus:2x2x4": 3, "twisted-torus:2x4x4": 3,
}  # fmt: skip
"""Where trees in symmetric form are found, and how high they are at most."""


def schedule_of(spec, collective=ALLGATHER):
    return symmetric_forest(parse_topology(spec), collective, "forest", PARAMETERS)


@pytest.mark.parametrize("spec", HEIGHTS)
def test_trees_are_optimal_low_and_right_when_written_out(spec):
    schedule = schedule_of(spec)
    verified, replayed = verify(schedule), verify(schedule.expand())
    assert verified.cost == replayed.cost
    assert verified.link_loads == replayed.link_loads
    assert verified.cost.time_per_byte == optimum(schedule.topology, ALLGATHER).time_per_byte
    assert verified.cost.steps <= HEIGHTS[spec]
    assert verified.link_loads.duplicate_deliveries == 0
    assert schedule.expand().transfer_count == schedule.transfer_count
    assert schedule.trees_per_root == replayed.schedule.trees_per_root


@pytest.mark.parametrize("collective", [REDUCE_SCATTER, ALLREDUCE])
@pytest.mark.parametrize(
    "spec", ["a100:3", "nvl72:2", "mi250:4", "fattree:4", "dragonfly:4,2,2", "torus:4x4", "twisted-torus:3x8,5"]
)
def test_reductions_run_backwards(spec, collective):
    schedule = schedule_of(spec, collective)
    verified, replayed = verify(schedule), verify(schedule.expand())
    assert (verified.cost, verified.link_loads) == (replayed.cost, replayed.link_loads)
    assert schedule.kind == schedule.expand().kind == "pipelined"
    if collective == REDUCE_SCATTER:
        assert verified.cost.time_per_byte == lower_bound(schedule.topology, collective).value


def test_a_file_that_repeats_a_symmetry_is_refused():
    schedule = schedule_of("torus:4x3")
    repeated = replace(schedule, gather=replace(schedule.gather, generators=(0, 1, 1)))
    with pytest.raises(InvalidInput, match="generators"):
        from_parquet(to_parquet(repeated), parse_topology)


def test_latencies_count_as_in_the_written_out_schedule():
    topology = parse_topology("a100:3")
    links = topology.links
    slow = replace(links, latencies_s=(links.latencies_s[0], links.bandwidths[0] / 10**7), latency_class=np.where(
        links.bandwidth_class == 0, 1, 0).astype(np.int32))  # fmt: skip
    schedule = symmetric_forest(replace(topology, links=slow), ALLGATHER, "forest", PARAMETERS)
    verified = verify(schedule, 10**9)
    assert verified.cost == verify(schedule.expand(), 10**9).cost
    assert verified.cost.latency_s > 0


def test_none_where_symmetries_do_not_help():
    assert schedule_of("without(a100:3;node=0)") is None  # no symmetry is known
    assert schedule_of("mi250:2") is None  # a GPU, not a box, is the bottleneck, and it has links to other GPUs
    assert schedule_of("genkautz:3,12") is None


@pytest.mark.parametrize("spec", ["a100:64", "torus:32x32", "fattree:14", "nvl72:14", "nvl72:56"])
def test_large_fabrics_have_the_compact_form_by_themselves(spec):
    topology = parse_topology(spec)
    verified = synthesize("forest", topology, ALLGATHER, None, SerialExecutor())
    assert verified.schedule.form == "symmetric"
    assert verified.cost.time_per_byte == lower_bound(topology, ALLGATHER).value
    assert verified.schedule.parameters == PARAMETERS


def test_options_ask_for_trees_of_every_root():
    topology = parse_topology("switch:512,10")
    schedule = METHODS["forest"].schedule(topology, ALLGATHER, Options(seed=1), SerialExecutor(), None)
    assert schedule.form == "columns"


@pytest.mark.parametrize("spec", ["a100:64", "mi250:32", "torus:16x32"])
def test_bounds_with_symmetries_are_those_without(spec):
    topology = parse_topology(spec)
    known, unknown = (optimum(network, ALLGATHER) for network in (topology, replace(topology, automorphisms=())))
    assert (known.time_per_byte, known.k, known.is_fewest) == (unknown.time_per_byte, unknown.k, unknown.is_fewest)


def test_an_expanded_schedule_names_each_route_once():
    expanded = schedule_of("a100:3").expand()
    paths = [tuple(expanded.routes.path(route)) for route in range(len(expanded.routes))]
    assert len(set(paths)) == len(paths)
    assert set(expanded.transfers.route.tolist()) == set(range(len(paths)))
    assert inspect(expanded)[0] == []
