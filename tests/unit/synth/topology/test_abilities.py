"""What switches can do: families, functions of specs, files, and what keeps it."""

import json
from fractions import Fraction
from io import BytesIO

import networkx as nx
import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import from_json, to_json
from chorale.synth.topology.formats.networkx_graph import to_networkx
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import isomorphism
from chorale.synth.topology.topology import NVSWITCH, SwitchAbility, is_automorphism
from tests.dumps import cpu, gpu, nvlink, system
from tests.links import topology_document


def able_ids(topology):
    return {topology.node_ids[node] for node in topology.abilities}


@pytest.mark.parametrize(
    ("spec", "able"),
    [
        ("h100:2", {"nvswitch:0", "nvswitch:1"}),
        ("b200:2", {"nvswitch:0", "nvswitch:1"}),
        ("nvl72:1", {"nvswitch:0"}),
        ("a100:2", set()),
        ("mi355x:2", set()),
        ("able(h100:2;switch=rail)", {"nvswitch:0", "nvswitch:1", *(f"rail:{i}" for i in range(8))}),
        ("able(h100:2;multicast=no;reduce=no)", set()),
        ("able(h100:2;switch=nvswitch:1;multicast=no;reduce=no)", {"nvswitch:0"}),
        ("without(h100:2;node=nvswitch:0)", {"nvswitch:1"}),
        ("scaled(h100:2;link=0-nvswitch:0;factor=1/2)", {"nvswitch:0", "nvswitch:1"}),
        ("bidirectional(h100:1)", {"nvswitch:0"}),
        ("transpose(h100:1)", {"nvswitch:0"}),
    ],
)
def test_who_is_able(spec, able):
    assert able_ids(parse_topology(spec)) == able


def test_families_state_line_rates():
    rates = {spec: parse_topology(spec).links.bandwidths for spec in ("h200:2", "b200:2", "nvl72:2", "mi355x:2")}
    assert rates["h200:2"] == (50, 450)
    assert rates["b200:2"] == rates["nvl72:2"] == (50, 900)
    assert rates["mi355x:2"] == (50, Fraction(384, 5))
    rack = parse_topology("nvl72:2")
    assert (rack.compute_count, rack.switch_count) == (144, 2 + 144 + 72)


def test_options_of_able():
    topology = parse_topology("able(h100:1;switch=nvswitch;reduce-bandwidth=309.5)")
    assert topology.abilities[8] == SwitchAbility(True, True, Fraction(619, 2))
    assert not parse_topology("able(fattree:4;multicast=no)").abilities[16].multicast


def test_ids_tell_abilities_apart_and_stay_without_them():
    plain, able = parse_topology("able(h100:2;multicast=no;reduce=no)"), parse_topology("h100:2")
    assert plain.id != able.id
    assert parse_topology("able(h100:2;reduce-bandwidth=300)").id not in (able.id, plain.id)
    assert parse_topology("a100:2").id == "bc77e2a299aa0dc5288b490f0137f0d895cfeb94a00ee6772ab11f60ea93a9f9"
    # What h100:2 was before switches could do more: the same links without abilities.
    assert plain.id == "769161839f37aa9e8ddbe2b87de2758664808b8a07246ea633a25318df003f6a"


def test_symmetries_keep_abilities():
    one = parse_topology("able(h100:2;switch=nvswitch:0;reduce=no)")
    swapped = parse_topology("h100:2").automorphisms[0]
    assert is_automorphism(parse_topology("h100:2"), swapped)
    assert not is_automorphism(one, swapped)
    assert len(one.automorphisms) == 1
    other = parse_topology("able(h100:2;switch=nvswitch:1;reduce=no)")
    renaming = isomorphism(one, other)
    assert renaming is not None
    assert renaming[16:18].tolist() == [17, 16]
    assert isomorphism(one, parse_topology("h100:2")) is None


@pytest.mark.parametrize("spec", ["able(switch:4,10;reduce-bandwidth=25/3)", "h100:1", "a100:2"])
def test_files_keep_abilities(spec):
    topology = parse_topology(spec)
    read = from_json(json.dumps(to_json(topology)).encode())
    assert read.id == topology.id
    assert read.abilities == topology.abilities
    graph = to_networkx(topology)
    for _, data in graph.nodes(data=True):
        if "reduce_bandwidth" in data:
            data["reduce_bandwidth"] = str(data["reduce_bandwidth"])
    buffer = BytesIO()
    nx.write_graphml(graph, buffer)
    assert from_bytes(buffer.getvalue(), "file:x.graphml").abilities == topology.abilities


def document(**attributes):
    return json.dumps(topology_document("ab", [(end, "s", 1) for end in "ab"], {"s": attributes})).encode()


def test_json_attributes_are_checked():
    assert from_json(document(multicast=True)).abilities == {2: SwitchAbility(multicast=True)}
    assert from_json(document(multicast=False, reduce=None)).abilities == {}
    for attributes, message in (
        ({"multicast": 1}, "true or false"),
        ({"reduce_bandwidth": 3}, "must have reduce: true"),
        ({"reduce": True, "reduce_bandwidth": -1}, "positive"),
        ({"reduce": True, "reduce_types": ["a b"]}, "names of letters"),
        ({"reduce": True, "reduce_types": 3}, "a list of names"),
        ({"kind": "compute", "reduce": True}, "must be a switch"),
    ):
        with pytest.raises(InvalidInput, match=message):
            from_json(document(**attributes))


@pytest.mark.parametrize(("sm", "able"), [(80, {}), (90, {4: NVSWITCH})])
def test_dumps_say_where_nvls_is(sm, able):
    gpus = [gpu(f"0000:{i}:00.0", i, nvlink("0000:f0:00.0", 18, "0x068000"), about=f'sm="{sm}"') for i in range(4)]
    assert from_bytes(system(cpu(0, *gpus)), "file:dump.xml").abilities == able
