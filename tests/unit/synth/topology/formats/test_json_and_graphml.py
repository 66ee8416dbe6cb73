"""Networks in JSON, NetworkX and GraphML: exact round trips, and one-line errors that name the field."""

import io
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import from_json, json_number, to_json
from chorale.synth.topology.formats.networkx_graph import from_networkx, to_networkx
from chorale.synth.topology.spec import parse_topology
from tests.links import topology_document
from tests.strategies import MIXED, strongly_connected_topologies


def document(**changes: Any) -> dict[str, Any]:
    return {**topology_document("ab", [("a", "b", 25)]), **changes}


def link(**changes: Any) -> str:
    return json.dumps(document(links=[{**document()["links"][0], **changes}]))


REFUSED = Path(__file__).parents[4] / "data" / "refused-topologies.txt"
LINES = [line.strip() for line in REFUSED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("content", "message"), list(zip(LINES[::2], LINES[1::2], strict=True)))
def test_malformed_files_get_one_line(content: str, message: str):
    with pytest.raises(InvalidInput, match=f"^{re.escape(message)}$"):
        from_json(content.encode(), "file:x.json")


@pytest.mark.parametrize("content", [b'{"a": ' + b"9" * 5000 + b"}", b"\xff\xfe\x00{", b'{"a": "\xff"}', b""])
def test_what_is_no_json_is_refused(content: bytes):
    for read in (from_json, lambda content: from_bytes(content, "file:x.json")):
        with pytest.raises(InvalidInput):
            read(content)


def test_numbers_are_exact():
    text = link(latency_s=0).replace("25", "0.1").replace('"latency_s": 0', '"latency_s": 1.3e-6')
    first = from_json(text.encode()).links[0]
    assert (first.bandwidth, first.latency_s) == (Fraction(1, 10), Fraction(13, 10_000_000))
    assert from_json(link(bandwidth="25/3").encode()).links.bandwidths == (Fraction(25, 3),)


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
    for name, message in (
        ("x.JSON", "the topology file is not valid JSON: Expecting value at"),
        ("x.graphml", "is not well-formed XML"),
        ("x.txt", "is not JSON, GraphML, a topology dump of NCCL or the output of a known tool"),
    ):
        with pytest.raises(InvalidInput, match=message):
            from_bytes(b"nonsense", f"file:{name}")


@given(strongly_connected_topologies(bandwidths=MIXED, latencies_s=(MIXED[4], Fraction("1e-7")), switches=3))
def test_round_trips_keep_the_id(topology):
    assert from_json(json.dumps(to_json(topology)).encode()).id == topology.id
    graph = to_networkx(topology)
    assert from_networkx(graph).id == topology.id
    for _, _, data in graph.edges(data=True):
        data.update(bandwidth=str(data["bandwidth"]), latency_s=str(data["latency_s"]))
    assert from_bytes(graphml(graph), "file:x.graphml").id == topology.id


def graphml(graph: nx.Graph) -> bytes:
    stream = io.BytesIO()
    nx.write_graphml_xml(graph, stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("graph", "spec"),
    [
        (nx.cycle_graph(5), "ring:5"),
        (nx.cycle_graph(4, create_using=nx.DiGraph), "uniring:1,4"),
        (nx.MultiGraph([(0, 1), (0, 1), (1, 2), (1, 2), (2, 0), (2, 0)]), "biring:4,3"),
    ],
)
def test_plain_graphs_have_unit_capacity(graph, spec):
    assert from_networkx(graph).id == parse_topology(spec).id
    assert from_bytes(graphml(graph), "file:x.graphml").id == parse_topology(spec).id


def test_attributes_are_read():
    graph = nx.DiGraph(bandwidth_unit="GB/s")
    graph.add_node("s", kind="switch")
    graph.add_edge("a", "s", bandwidth=np.float64(12.5), latency_s=2e-6, bidirectional=True, colour="red")
    graph.add_edge("b", "s", bandwidth=np.int64(3), bidirectional=True)
    topology = from_networkx(graph)
    assert topology.node_ids == ("a", "b", "s")
    assert topology.links.bandwidths == (3, Fraction(25, 2))
    assert from_bytes(graphml(graph), "file:x.graphml").id == topology.id


def test_defaults_of_graphml_keys_apply():
    content = b"""<?xml version="1.0" encoding="utf-8"?>
    <graphml xmlns="http://graphml.graphdrawing.org/xmlns">
      <key id="k" for="node" attr.name="kind" attr.type="string"><default>compute</default></key>
      <key id="b" for="edge" attr.name="bandwidth" attr.type="string"><default>25/3</default></key>
      <key id="u" for="graph" attr.name="bandwidth_unit" attr.type="string"/>
      <graph edgedefault="undirected"><data key="u">Gbit/s</data>
        <node id="a"/><node id="b"/><node id="s"><data key="k">switch</data></node>
        <edge source="a" target="s"/><edge source="b" target="s"><data key="b">7</data></edge>
      </graph>
    </graphml>"""
    topology = from_bytes(content, "file:x")
    assert (topology.compute_count, topology.switch_count, topology.bandwidth_unit) == (2, 1, "Gbit/s")
    assert topology.links.bandwidths == (7, Fraction(25, 3))


def plain(edges: str) -> str:
    graph = f'<graph edgedefault="undirected"><node id="a"/><node id="b"/>{edges}</graph>'
    return f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{graph}</graphml>'


OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]>'
EDGE = '<edge source="a" target="b"/>'

GOLDEN_ERRORS = {
    OUTSIDE + plain(EDGE): "this XML file has a DOCTYPE or entities: DTDForbidden; remove the DOCTYPE",
    "<graphml>": "an XML topology file is not well-formed XML: ",
    "<html/>": "an XML topology must be GraphML, this is a file of <html>; convert it to GraphML or JSON",
    plain('<edge source="a" target="b" directed="true"/>'): "NetworkX cannot read this GraphML file: directed",
    plain("<hyperedge/>" + EDGE): "NetworkX cannot read this GraphML file: GraphML reader",
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"/>': "NetworkX cannot read this GraphML file: ",
}


@pytest.mark.parametrize("content", GOLDEN_ERRORS, ids=range(len(GOLDEN_ERRORS)))
def test_malformed_graphml_gets_one_line(content):
    with pytest.raises(InvalidInput) as caught:
        from_bytes(content.encode(), "file:x.graphml")
    assert str(caught.value).startswith(GOLDEN_ERRORS[content])
    assert str(caught.value).endswith((GOLDEN_ERRORS[content], "; correct the file"))
    assert "\n" not in str(caught.value)


GRAPH_ERRORS = {
    "the nodes of a graph must be str or int, got (0, 0)": nx.grid_2d_graph(2, 2),
    "the bandwidth of link a to b must be a rational number": nx.Graph([("a", "b", {"bandwidth": float("nan")})]),
    "bidirectional of edge a to b must be true or false, got 'yes'": nx.Graph([("a", "b", {"bidirectional": "yes"})]),
    "some edges have a bandwidth and others do not": nx.Graph([("a", "b", {"bandwidth": 1}), ("b", "c")]),
    "the bandwidth_unit is 5, but the edges have no bandwidth": nx.Graph([("a", "b")], bandwidth_unit=5),
    "a topology must have at least two compute nodes": nx.Graph(),
}


@pytest.mark.parametrize("message", GRAPH_ERRORS)
def test_graphs_that_are_no_topologies(message):
    with pytest.raises(InvalidInput, match=f"^{re.escape(message)}"):
        from_networkx(GRAPH_ERRORS[message])
