"""JSON files: exact round trips, and one-line errors that name the field."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import from_json, json_number, to_json
from chorale.synth.topology.spec import parse_topology
from tests.strategies import MIXED, strongly_connected_topologies


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


REFUSED = Path(__file__).parents[4] / "data" / "refused-topologies.txt"
LINES = [line.strip() for line in REFUSED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("content", "message"), list(zip(LINES[::2], LINES[1::2], strict=True)))
def test_malformed_files_get_one_line(content: str, message: str):
    with pytest.raises(InvalidInput) as caught:
        from_json(content.encode(), "file:x.json")
    assert str(caught.value) == message


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}"], ids=["deep", "long"])
def test_what_exhausts_a_parser_is_refused(content: str):
    with pytest.raises(InvalidInput, match="the topology file is not valid JSON"):
        from_json(content.encode())


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
    with pytest.raises(InvalidInput, match="the topology file is not valid JSON: Expecting value at"):
        from_bytes(b"nonsense", "file:x.JSON")
    with pytest.raises(InvalidInput, match="is not well-formed XML"):
        from_bytes(b"nonsense", "file:x.graphml")
    with pytest.raises(InvalidInput, match="is neither JSON, GraphML, a topology dump nor the output of a tool"):
        from_bytes(b"nonsense", "file:x.txt")
