"""GPUs of a Slurm cluster: the dump of a node, once for each node, joined by the cluster's switches."""

from collections import defaultdict
from fractions import Fraction

import pytest

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes, machine_of
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology
from chorale.synth.topology.formats.slurm import SlurmNodes, parse_slurm_tree, slurm_gpu_topology
from chorale.synth.topology.topology import Topology
from tests.dumps import nvswitch_machine

TREE = b"SwitchName=leaf1 Nodes=n1,n3\nSwitchName=leaf2 Nodes=n2,n4\nSwitchName=spine Switches=leaf1,leaf2\n"
GPUS = NICS = 4
NIC = Fraction(20)


def network(*names: str, oversubscription: int = 1, tree: bytes = TREE) -> Topology:
    machine = machine_of(nvswitch_machine(), "file:dump.xml")
    assert machine is not None
    nodes = SlurmNodes(parse_slurm_tree(tree), names, Fraction(oversubscription))
    return slurm_gpu_topology(nodes, machine, NIC, "file:switches")


def rates(topology: Topology) -> dict[tuple[str, str], Fraction]:
    """Return the bandwidth between every pair of nodes, parallel links together."""
    total: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for link in topology.links:
        total[topology.node_ids[link.src], topology.node_ids[link.dst]] += link.bandwidth
    return total


def test_gpus_are_ranked_in_the_order_of_switches_and_nics_lead_to_those_of_their_node() -> None:
    topology = network()
    assert topology.node_ids[: topology.compute_count] == tuple(
        f"{host}.{gpu}" for host in ("n1", "n3", "n2", "n4") for gpu in range(GPUS)
    )
    rate = rates(topology)
    for host, leaf in {"n1": "leaf1", "n3": "leaf1", "n2": "leaf2", "n4": "leaf2"}.items():
        for nic in range(NICS):
            assert rate[f"nic:{host}.{nic}", leaf] == rate[leaf, f"nic:{host}.{nic}"] == NIC
    assert rate["leaf1", "spine"] == rate["spine", "leaf2"] == 2 * NICS * NIC
    assert "net:0" not in topology.node_ids
    assert rates(network(oversubscription=2))["leaf1", "spine"] == NICS * NIC


def test_what_is_inside_a_node_is_what_the_dump_says() -> None:
    one, cluster = from_bytes(nvswitch_machine(), "file:dump.xml"), rates(network())
    inside = {names: rate for names, rate in rates(one).items() if not any(name.startswith("nic") for name in names)}
    assert inside
    for (source, target), rate in inside.items():
        for host in ("n1", "n4"):
            names = [f"{kind}{host}{rest}" for kind, _, rest in (_split(source), _split(target))]
            assert cluster[names[0], names[1]] == rate


def _split(name: str) -> tuple[str, str, str]:
    kind, colon, rest = name.rpartition(":")
    return kind + colon, rest[0], rest[1:]


def test_nodes_below_one_switch_are_as_boxes_on_one_network() -> None:
    machine = machine_of(nvswitch_machine(), "file:dump.xml")
    assert machine is not None
    boxes, nodes = boxes_topology(machine, BoxNetwork(2, NIC), "file:dump.xml"), network("n1", "n3")
    assert "spine" not in nodes.node_ids
    assert sorted(rates(boxes).values()) == sorted(rates(nodes).values())
    assert lower_bound(nodes, ALLGATHER).value == lower_bound(boxes, ALLGATHER).value


def test_thin_uplinks_decide_where_nodes_are_far_apart() -> None:
    near, far = (lower_bound(network(*names, oversubscription=4), ALLGATHER) for names in (("n1", "n3"), ("n1", "n2")))
    assert far.value > near.value
    assert far.value == Fraction(1, 2) / (NICS * NIC / 4)  # half of the buffer crosses a link of a quarter of the NICs


def test_a_single_node_has_no_switch() -> None:
    topology = network("n2")
    assert topology.compute_count == GPUS
    assert not {"leaf2", "spine"} & set(topology.node_ids)


def test_a_node_on_two_switches_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a node with GPUs has several switches: n1 on "):
        network(tree=b"SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[1-2]\n")
