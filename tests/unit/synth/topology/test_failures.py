"""Single failures, one of each orbit."""

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.failures import single_failures
from chorale.synth.topology.spec import parse_topology
from tests.links import both_directions, links_of


def failures(spec: str) -> list[tuple[str, int]]:
    return [(str(failure), failure.copies) for failure in single_failures(parse_topology(spec))]


def test_a_ring_has_one_failure_of_each_kind():
    assert failures("ring:5") == [("node=0", 5), ("link=0-1", 5)]


def test_failures_of_a_fabric_without_known_symmetries_are_all_listed():
    found = failures("mesh:2x3")
    assert [name for name, _ in found[:6]] == [f"node={rank}" for rank in range(6)]
    assert len(found) == 6 + 7
    assert {copies for _, copies in found} == {1}


@pytest.mark.parametrize("spec", ["a100:2", "mi250:2", "fattree:4", "torus:3x4", "hypercube:3", "uniring:1,4"])
def test_copies_add_up_to_all_nodes_and_links(spec):
    topology = parse_topology(spec)
    found = list(single_failures(topology))
    pairs = {tuple(sorted(pair)) for pair in links_of(topology)}
    assert sum(failure.copies for failure in found if failure.kind == "node") == topology.compute_count
    assert sum(failure.copies for failure in found if failure.kind == "link") == len(pairs)


def test_survivors_are_what_their_spec_says():
    topology = parse_topology("a100:2")
    for failure in single_failures(topology):
        assert failure.survivor(topology).id == parse_topology(failure.spec(topology)).id


def test_equal_failures_leave_equal_degrees():
    """An orbit is only an orbit if all its members leave the same number of links."""
    topology = parse_topology("a100:2")
    lost = {failure.names: len(failure.survivor(topology).links) for failure in single_failures(topology)}
    first_gpu = topology.node_ids[0]
    assert lost[(first_gpu,)] == len(parse_topology("without(a100:2;node=9)").links)


def test_a_failure_that_leaves_too_little_is_refused():
    topology = parse_topology("complete:2")
    node = next(single_failures(topology))
    assert links_of(topology) == both_directions([(0, 1)])
    with pytest.raises(InvalidInput, match="two compute nodes"):
        node.survivor(topology)


def test_a_failure_that_cuts_the_fabric_in_two_is_refused():
    topology = parse_topology("uniring:1,4")
    for failure in single_failures(topology):
        with pytest.raises(InvalidInput, match="path"):
            failure.survivor(topology)
