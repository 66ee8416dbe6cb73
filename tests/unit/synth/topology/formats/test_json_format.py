"""JSON files: exact round trips, and one-line errors that name the field."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import from_json, json_number, to_json
from chorale.synth.topology.spec import parse_topology
from tests.strategies import MIXED, strongly_connected_topologies

FOLLOW = "follow the format chorale-topology/1 in the guide"
ABOUT_NUMBERS = 'write a number such as 25 or 12.5, or a rational as text such as "25/3"'


def document(**changes: Any) -> dict[str, Any]:
    return {
        "format": "chorale-topology/1",
        "name": "pair",
        "bandwidth_unit": "GB/s",
        "nodes": [{"id": "a", "kind": "compute"}, {"id": "b", "kind": "compute"}],
        "links": [{"src": "a", "dst": "b", "bandwidth": 25, "bidirectional": True}],
        **changes,
    }


def link(**changes: Any) -> dict[str, Any]:
    return document(links=[{"src": "a", "dst": "b", "bandwidth": 25, "bidirectional": True, **changes}])


def nodes(*ids: str) -> dict[str, Any]:
    return document(nodes=[{"id": name, "kind": "compute"} for name in ids])


def switched(*links: dict[str, Any], pair: bool = True) -> dict[str, Any]:
    """Return nodes a and b, linked with each other if `pair`, and a switch s with `links`."""
    inner = {"src": "a", "dst": "b", "bandwidth": 25, "bidirectional": True}
    names = [{"id": "a", "kind": "compute"}, {"id": "b", "kind": "compute"}, {"id": "s", "kind": "switch"}]
    return document(nodes=names, links=[*links, *([inner] if pair else [])])


def without_key(key: str) -> dict[str, Any]:
    return {name: value for name, value in document().items() if name != key}


GOLDEN_ERRORS: list[tuple[str, str]] = [
    ("[]", f"the document must be a JSON object; got a list; {FOLLOW}"),
    ("null", f"the document must be a JSON object; got null; {FOLLOW}"),
    (
        '{"format": ',
        "a topology file must be valid JSON; got Expecting value at line 1 column 12; correct the file",
    ),
    ('{"a": 1, "a": 2}', "a key must appear once in a JSON object; got a; remove the second one"),
    ('{"a": NaN}', "a number in a topology file must be finite; got NaN; correct the file"),
    ("[" * 100_000, "a topology file must be valid JSON"),
    ('{"a": ' + "9" * 5000 + "}", "a topology file must be valid JSON"),
    (json.dumps(without_key("nodes")), "the document must have the key nodes; got the document without it; " + FOLLOW),
    (json.dumps(document(format="x/2")), f"format must be chorale-topology/1; got 'x/2'; {FOLLOW}"),
    (json.dumps(document(name=3)), f"name must be text of at most 200 characters; got 3; {FOLLOW}"),
    (
        json.dumps(document(colour="red")),
        "the document must have known keys only; got 'colour'; "
        "use format, name, bandwidth_unit, nodes, links, assumptions",
    ),
    (
        json.dumps(document(bandwidth_unit="MB/s")),
        "unknown bandwidth_unit; got 'MB/s'; choose from link, GB/s, Gbit/s",
    ),
    (json.dumps(document(nodes={})), f"nodes must be a JSON array; got a dict; {FOLLOW}"),
    (json.dumps(document(nodes=["a", "b"])), f"nodes[0] must be a JSON object; got a str; {FOLLOW}"),
    (json.dumps(document(nodes=[{"id": "a"}])), f"nodes[0] must have the key kind; got nodes[0] without it; {FOLLOW}"),
    (
        json.dumps(document(nodes=[{"id": 1.5, "kind": "compute"}])),
        f"nodes[0].id must be text of at most 200 characters; got '1.5'; {FOLLOW}",
    ),
    (
        json.dumps(document(nodes=[{"id": "a", "kind": "router"}])),
        "the kind of node a must be compute or switch; got 'router'; correct it",
    ),
    (
        json.dumps(document(nodes=[{"id": "a", "kind": ["compute"]}])),
        "the kind of node a must be compute or switch; got ['compute']; correct it",
    ),
    (json.dumps(nodes("a", "b", "a")), "node ids must be unique; got a; rename one of the nodes"),
    (
        json.dumps(nodes("a", "b", "c d")),
        'a node id must be made of letters, digits, "_", "." and ":"; got \'c d\'; rename the node',
    ),
    (
        json.dumps(document(nodes=[{"id": "a", "kind": "compute"}, {"id": "b", "kind": "switch"}])),
        "a topology must have at least two compute nodes; got 1 in file:x.json; add compute nodes",
    ),
    (
        json.dumps(nodes("a", "b", "c")),
        "every node must have a path to every other; "
        "got no path from a to c in file:x.json; add links or remove the node",
    ),
    (
        json.dumps(link(dst="z")),
        "both ends of link a to z must be nodes; got z; add the node or correct the link",
    ),
    (
        json.dumps(link(bandwidth=0)),
        "the bandwidth of link a to b must be positive; got 0; leave it out or correct it",
    ),
    (
        json.dumps(link(bandwidth="-1/2")),
        "the bandwidth of link a to b must be positive; got -1/2; leave it out or correct it",
    ),
    (
        json.dumps(link(bandwidth="fast")),
        f"the bandwidth of link a to b must be a rational number; got 'fast'; {ABOUT_NUMBERS}",
    ),
    (
        json.dumps(link(bandwidth=None)),
        f"the bandwidth of link a to b must be a rational number; got None; {ABOUT_NUMBERS}",
    ),
    (
        json.dumps(link(bandwidth=True)),
        f"the bandwidth of link a to b must be a rational number; got True; {ABOUT_NUMBERS}",
    ),
    (
        json.dumps(link(bandwidth=1e300)),
        f"the bandwidth of link a to b must have an exponent between -30 and 30; got 1e+300; {ABOUT_NUMBERS}",
    ),
    (
        json.dumps(link(bandwidth=2**53)),
        "all bandwidths must be multiples of one common unit above 2^-53, and below 2^53 such units; "
        "got a common unit of 1/1; round the bandwidths to fewer digits",
    ),
    (
        json.dumps(link(bandwidth="1/0")),
        f"the bandwidth of link a to b must be a rational number; got '1/0'; {ABOUT_NUMBERS}",
    ),
    (
        json.dumps(link(bandwidth="inf")),
        f"the bandwidth of link a to b must be a rational number; got 'inf'; {ABOUT_NUMBERS}",
    ),
    (
        json.dumps(link(bandwidth=float("inf"))),
        "a number in a topology file must be finite; got Infinity; correct the file",
    ),
    (
        json.dumps(link(bandwidth=-25)),
        "the bandwidth of link a to b must be positive; got -25; leave it out or correct it",
    ),
    (
        json.dumps(switched({"src": "a", "dst": "s", "bandwidth": 1}, {"src": "b", "dst": "s", "bandwidth": 1})),
        "every node must have a path to every other; "
        "got no path from s to a in file:x.json; add links or remove the node",
    ),
    (
        json.dumps(switched({"src": "s", "dst": "a", "bandwidth": 1}, {"src": "s", "dst": "b", "bandwidth": 1})),
        "every node must have a path to every other; "
        "got no path from a to s in file:x.json; add links or remove the node",
    ),
    (
        json.dumps(switched({"src": "a", "dst": "s", "bandwidth": 1, "bidirectional": True}, pair=False)),
        "every node must have a path to every other; "
        "got no path from a to b in file:x.json; add links or remove the node",
    ),
    (
        json.dumps(link(bandwidth=1e-20)),
        "all bandwidths must be multiples of one common unit above 2^-53, and below 2^53 such units; "
        "got a common unit of 1/100000000000000000000; round the bandwidths to fewer digits",
    ),
    (
        json.dumps(link(latency_s=-1e-6)),
        "the latency_s of link a to b must be at least 0; got -1/1000000; correct it",
    ),
    (json.dumps(link(bidirectional=1)), f"links[0].bidirectional must be true or false; got 1; {FOLLOW}"),
    (
        json.dumps(link(bandwith=3)),
        "links[0] must have known keys only; got 'bandwith'; "
        "use src, dst, bandwidth, latency_s, bidirectional, expected_bandwidth, guess",
    ),
]


@pytest.mark.parametrize(("content", "message"), GOLDEN_ERRORS, ids=range(len(GOLDEN_ERRORS)))
def test_malformed_files_get_one_line(content, message):
    with pytest.raises(InvalidInput) as caught:
        from_json(content.encode(), "file:x.json")
    assert str(caught.value).startswith(message)
    assert len(message) < 60 or str(caught.value) == message
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00{", b"\x00\x01", b'{"a": "\xff"}', b""])
def test_bytes_that_are_no_text(content):
    with pytest.raises(InvalidInput):
        from_json(content)
    with pytest.raises(InvalidInput):
        from_bytes(content, "file:x.json")


@given(st.binary(max_size=50))
def test_any_bytes_get_a_clean_error(content):
    with pytest.raises(InvalidInput):
        from_bytes(content, "file:x")


@given(
    strongly_connected_topologies(
        bandwidths=MIXED, latencies_s=(Fraction(0), Fraction(1, 3), Fraction("1e-7")), switches=3
    )
)
def test_round_trip_keeps_the_id(topology):
    assert from_json(json.dumps(to_json(topology)).encode()).id == topology.id


@pytest.mark.parametrize("spec", ["torus:4x4x2", "biring:4,6", "uniring:2,2"])
def test_round_trip_of_families(spec):
    topology = parse_topology(spec)
    assert from_json(json.dumps(to_json(topology)).encode()).id == topology.id


def test_numbers_are_exact():
    text = json.dumps(link(latency_s=0)).replace("25", "0.1").replace('"latency_s": 0', '"latency_s": 1.3e-6')
    first = from_json(text.encode()).links[0]
    assert (first.bandwidth, first.latency_s) == (Fraction(1, 10), Fraction(13, 10_000_000))
    assert from_json(json.dumps(link(bandwidth="25/3")).encode()).links.bandwidths == (Fraction(25, 3),)


@given(st.fractions(max_denominator=10**12))
def test_json_number_is_exact(value):
    number = json.loads(json.dumps(json_number(value)), parse_float=str)
    assert Fraction(number) == value


def test_compute_nodes_are_ranked_in_file_order_and_switches_follow():
    content = document(
        nodes=[{"id": "s", "kind": "switch"}, {"id": "b", "kind": "compute"}, {"id": "a", "kind": "compute"}],
        links=[{"src": x, "dst": "s", "bandwidth": 1, "bidirectional": True} for x in "ab"],
    )
    topology = from_json(json.dumps(content).encode())
    assert (topology.node_ids, topology.compute_count) == (("b", "a", "s"), 2)
    assert topology.bandwidth_unit == "GB/s"
    assert len(topology.links) == 4


def test_content_or_extension_tells_the_format():
    content = b" \n" + json.dumps(document()).encode()
    assert from_bytes(content, "file:fabric.txt").id == from_json(content).id
    with pytest.raises(InvalidInput, match="must be valid JSON"):
        from_bytes(b"nonsense", "file:x.JSON")
    with pytest.raises(InvalidInput, match="must be well-formed XML"):
        from_bytes(b"nonsense", "file:x.graphml")
    with pytest.raises(InvalidInput, match="must be JSON, GraphML, a topology dump or an output"):
        from_bytes(b"nonsense", "file:x.txt")
