"""NetworkX graphs and GraphML, in and out."""

import io
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.networkx_graph import from_networkx, to_networkx
from chorale.synth.topology.spec import parse_topology
from tests.strategies import MIXED, strongly_connected_topologies


@given(strongly_connected_topologies(bandwidths=MIXED, latencies_s=(Fraction(0), Fraction("1e-6")), switches=3))
def test_round_trip_keeps_the_id(topology):
    assert from_networkx(to_networkx(topology)).id == topology.id


@given(strongly_connected_topologies(bandwidths=MIXED, switches=3))
def test_round_trip_through_graphml_keeps_the_id(topology):
    graph = to_networkx(topology)
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
        (nx.complete_bipartite_graph(3, 3), "bipartite:3"),
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


def plain(edges: str, nodes: str = '<node id="a"/><node id="b"/>', direction: str = "undirected") -> str:
    graph = f'<graph edgedefault="{direction}">{nodes}{edges}</graph>'
    return f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{graph}</graphml>'


BOMB = '<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]>'
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]>'
EDGE = '<edge source="a" target="b"/>'

GOLDEN_ERRORS = {
    BOMB + plain(EDGE): "this XML file has a DOCTYPE or entities: DTDForbidden; remove the DOCTYPE",
    OUTSIDE + plain(EDGE): "this XML file has a DOCTYPE or entities: DTDForbidden; remove the DOCTYPE",
    "<graphml>": "an XML topology file is not well-formed XML: ",
    "<html/>": "an XML topology must be GraphML, this is a file of <html>; convert it to GraphML or JSON",
    plain(EDGE, '<node id="a"/>'): "the edge names b, which is not a node; add the node or correct the edge",
    plain(EDGE, '<node id="a"/><node id="b"/><node id="a"/>'): "two nodes have the id a; rename one of them",
    plain(EDGE, direction="directed"): (
        "some nodes cannot reach each other: no path from b to a in file:x.graphml; add links, or remove the nodes"
    ),
    plain('<edge source="a" target="b" directed="true"/>'): ("NetworkX cannot read this GraphML file: directed"),
    plain("<hyperedge/>" + EDGE): ("NetworkX cannot read this GraphML file: GraphML reader"),
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"/>': ("NetworkX cannot read this GraphML file: "),
}


@pytest.mark.parametrize("content", GOLDEN_ERRORS, ids=range(len(GOLDEN_ERRORS)))
def test_malformed_files_get_one_line(content):
    with pytest.raises(InvalidInput) as caught:
        from_bytes(content.encode(), "file:x.graphml")
    assert str(caught.value).startswith(GOLDEN_ERRORS[content])
    assert str(caught.value).endswith((GOLDEN_ERRORS[content], "; correct the file"))
    assert "\n" not in str(caught.value)


def edges(**attributes: object) -> nx.Graph:
    graph = nx.Graph()
    graph.add_edge("a", "b", **attributes)
    return graph


GRAPH_ERRORS = [
    (nx.grid_2d_graph(2, 2), "the nodes of a graph must be str or int, got (0, 0)"),
    (nx.Graph([(True, "b")]), "the nodes of a graph must be str or int, got True"),
    (edges(bandwidth=float("nan")), "the bandwidth of link a to b must be a rational number"),
    (edges(bandwidth=0), "the bandwidth of link a to b must be positive"),
    (edges(bandwidth=1, bidirectional="yes"), "bidirectional of edge a to b must be true or false, got 'yes'"),
    (nx.Graph([("a", "b", {"bandwidth": 1}), ("b", "c")]), "some edges have a bandwidth and others do not"),
    (
        nx.Graph([("a", "b")], bandwidth_unit="GB/s"),
        "the bandwidth_unit is GB/s, but the edges have no bandwidth",
    ),
    (nx.Graph([("a", "b")], bandwidth_unit=5), "the bandwidth_unit is 5, but the edges have no bandwidth"),
    (nx.Graph(), "a topology must have at least two compute nodes"),
]


@pytest.mark.parametrize(("graph", "message"), GRAPH_ERRORS, ids=range(len(GRAPH_ERRORS)))
def test_graphs_that_are_no_topologies(graph, message):
    with pytest.raises(InvalidInput) as caught:
        from_networkx(graph)
    assert str(caught.value).startswith(message)
