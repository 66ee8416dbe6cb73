"""Slurm's switches as a network: lists of names, topology.conf, what scontrol prints, and nodes with GPUs."""

from fractions import Fraction

import pytest

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import machine_of
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology
from chorale.synth.topology.formats.slurm import (
    SlurmNodes,
    expanded_names,
    parse_slurm_tree,
    slurm_gpu_topology,
    slurm_topology,
)
from chorale.synth.topology.topology import Topology
from tests.dumps import nvswitch_machine
from tests.links import rates_of

CONF = b"""\
# two leaves
SwitchName=leaf1 Nodes=n1,n3
SwitchName=leaf2 Nodes=n[2,4] LinkSpeed=1
SwitchName=spine Switches=leaf[1-2]
"""
SCONTROL = b"""\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n1,n3
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n2,n4
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf1,leaf2
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],login", ["n1", "n2", "n3", "n7", "login"]),
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("rack[1-2]-x,y.z", ["rack1-x", "rack2-x", "y.z"]),
        ("", []),
    ],
)
def test_lists_of_names(text: str, names: list[str]) -> None:
    assert expanded_names(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n[a-b]", "n[1-9999999]", "n 1", "[", "n[1--2]", f"n[1-{'9' * 5000}]", f"{'n' * 256}[1-2]"]
)
def test_lists_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        expanded_names(text)


@pytest.mark.parametrize("content", [CONF, SCONTROL])
def test_ranks_follow_switches(content: bytes) -> None:
    topology = slurm_topology(SlurmNodes(parse_slurm_tree(content)), Fraction(25), "file:topology.conf")
    assert topology.node_ids == ("n1", "n3", "n2", "n4", "leaf1", "leaf2", "spine")
    assert topology.compute_count == 4
    found = rates_of(topology)
    assert len(found) == 12
    assert (found["n1", "leaf1"], found["leaf1", "spine"], found["spine", "leaf2"]) == (25, 50, 50)
    thin = rates_of(slurm_topology(SlurmNodes(parse_slurm_tree(CONF), (), Fraction(4)), Fraction(25), "file:x"))
    assert (thin["n1", "leaf1"], thin["leaf1", "spine"]) == (25, Fraction(25, 2))


def test_a_part_has_no_switch_that_it_does_not_need() -> None:
    tree = parse_slurm_tree(CONF)
    one_leaf = slurm_topology(SlurmNodes(tree, ("n3", "n1")), Fraction(25), "file:x")
    assert one_leaf.node_ids == ("n1", "n3", "leaf1")
    two_leaves = slurm_topology(SlurmNodes(tree, ("n2", "n1")), Fraction(25), "file:x")
    assert two_leaves.node_ids == ("n1", "n2", "leaf1", "leaf2", "spine")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"SwitchName=a Switches=b\n", "the switch b is not described"),
        (b"SwitchName=a\n", "must have nodes or switches below it, got a"),
        (b"SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "this topology of Slurm has no switches with nodes"),
        (b"SwitchName=a Nodes=n[1-999999]\n" * 2, "must have at most 1048576 names"),
    ],
)
def test_trees_that_are_none_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_slurm_tree(content)


@pytest.mark.parametrize(("levels", "width"), [(40, 1), (30, 2), (4, 2000)])
def test_trees_that_would_take_the_stack_or_hours_are_refused_or_soon_ordered(levels: int, width: int) -> None:
    lines = [f"SwitchName=s{level} Switches=s{','.join([str(level + 1)] * width)}" for level in range(levels)]
    tree = parse_slurm_tree("\n".join([*lines, f"SwitchName=s{levels} Nodes=n[1-9000]"]).replace(",", ",s").encode())
    if (levels, width) == (30, 2):
        assert len(SlurmNodes(tree).ranked) == 9000
    else:
        with pytest.raises(InvalidInput, match="a tree of at most 32 levels"):
            tree.ordered_nodes()


def test_nodes_that_hang_nowhere_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the file has no switch for node n9"):
        slurm_topology(SlurmNodes(parse_slurm_tree(CONF), ("n1", "n9")), Fraction(25), "file:x")


GPUS = NICS = 4
NIC = Fraction(20)


def network(*names: str, oversubscription: int = 1, tree: bytes = CONF) -> Topology:
    machine = machine_of(nvswitch_machine(), "file:dump.xml")
    assert machine is not None
    nodes = SlurmNodes(parse_slurm_tree(tree), names, Fraction(oversubscription))
    return slurm_gpu_topology(nodes, machine, NIC, "file:switches")


def test_gpus_are_ranked_in_the_order_of_switches_and_nics_lead_to_those_of_their_node() -> None:
    topology = network()
    assert topology.node_ids[: topology.compute_count] == tuple(
        f"{host}.{gpu}" for host in ("n1", "n3", "n2", "n4") for gpu in range(GPUS)
    )
    rate = rates_of(topology)
    for host, leaf in {"n1": "leaf1", "n3": "leaf1", "n2": "leaf2", "n4": "leaf2"}.items():
        for nic in range(NICS):
            assert rate[f"nic:{host}.{nic}", leaf] == rate[leaf, f"nic:{host}.{nic}"] == NIC
    assert rate["leaf1", "spine"] == rate["spine", "leaf2"] == 2 * NICS * NIC
    assert "net:0" not in topology.node_ids
    assert rates_of(network(oversubscription=2))["leaf1", "spine"] == NICS * NIC


def test_nodes_below_one_switch_are_as_boxes_on_one_network() -> None:
    machine = machine_of(nvswitch_machine(), "file:dump.xml")
    assert machine is not None
    boxes, nodes = boxes_topology(machine, BoxNetwork(2, NIC), "file:dump.xml"), network("n1", "n3")
    assert "spine" not in nodes.node_ids
    assert sorted(rates_of(boxes).values()) == sorted(rates_of(nodes).values())
    assert lower_bound(nodes, ALLGATHER).value == lower_bound(boxes, ALLGATHER).value


def test_what_slurm_does_not_know_is_a_guess() -> None:
    """Slurm has no cables: without --oversubscription, uplinks carry what is below them."""
    for topology in (network(), slurm_topology(SlurmNodes(parse_slurm_tree(CONF)), Fraction(25), "file:x")):
        assert topology.is_guessed()
        assert [fact.source for fact in topology.assumptions if fact.what == "links between switches"] == ["guess"]
    given = network(oversubscription=2)
    assert not given.is_guessed()
    assert [fact.value for fact in given.assumptions if fact.source == "file"][-1] == "1/2 of the bandwidth below"


def test_thin_uplinks_decide_where_nodes_are_far_apart() -> None:
    near, far = (lower_bound(network(*names, oversubscription=4), ALLGATHER) for names in (("n1", "n3"), ("n1", "n2")))
    assert far.value > near.value
    assert far.value == Fraction(1, 2) / (NICS * NIC / 4)  # half of the buffer crosses a link of a quarter of the NICs


def test_a_single_node_has_no_switch() -> None:
    topology = network("n2")
    assert topology.compute_count == GPUS
    assert not {"leaf2", "spine"} & set(topology.node_ids)
    inside = {names: rate for names, rate in rates_of(topology).items() if "nic" not in str(names)}
    assert sorted(inside.values()) == [300] * 2 * GPUS


def test_a_node_on_two_switches_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a node with GPUs has several switches: n1 on "):
        network(tree=b"SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[1-2]\n")
