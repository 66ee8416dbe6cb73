import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.api.programs import Connection, ConnectionPaths, program_connections, sent_chunks
from chorale.synth.programs.check_structure import message_counts
from chorale.synth.programs.program import Op, ThreadBlock
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology
from tests.conformance.example_programs import rank_of, ring_allreduce, step
from tests.strategies import strongly_connected_topologies


@given(strongly_connected_topologies(switches=2), st.integers(0, 5))
def test_a_path_is_a_shortest_one_and_hangs_together(topology: Topology, channel: int) -> None:
    graph = nx.MultiDiGraph()
    graph.add_edges_from(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    paths = ConnectionPaths(topology)
    for src in range(topology.compute_count):
        for dst in range(topology.compute_count):
            if src == dst:
                continue
            path = paths.path(Connection(src, dst, channel))
            assert path is not None
            nodes = [src, *(int(topology.links.dst[link]) for link in path)]
            assert [int(topology.links.src[link]) for link in path] == nodes[:-1]
            assert nodes[-1] == dst
            assert len(path) == nx.shortest_path_length(graph, src, dst)
            assert path == ConnectionPaths(topology).path(Connection(src, dst, channel))


def test_channels_take_turns_on_parallel_links() -> None:
    links = Links.build([Link(0, 1), Link(0, 1), Link(0, 1), Link(1, 0)])
    topology = Topology("", ("a", "b"), 2, links)
    paths, parallel = ConnectionPaths(topology), links.parallel_index()
    taken = [paths.path(Connection(0, 1, channel)) for channel in range(6)]
    assert [int(parallel[path[0]]) for path in taken if path] == [0, 1, 2, 0, 1, 2]


def test_both_ends_of_a_connection_are_listed() -> None:
    found = program_connections(ring_allreduce(range(3)))
    assert found == [Connection(0, 1, 0), Connection(1, 2, 0), Connection(2, 0, 0)]
    sent, received = message_counts(ring_allreduce(range(3)))
    assert sent == received == {connection: [1, 1, 1, 1] for connection in found}
    assert sent_chunks(ring_allreduce(range(3))) == {connection: 4 for connection in found}


def test_a_missing_end_is_empty() -> None:
    lonely = rank_of(ThreadBlock(1, None, 2, (step(Op.SEND, "o", 0, count=3),)))
    program = ring_allreduce(range(2))
    cut = type(program)("", "", program.collective, 3, True, "Simple", 3, (lonely, rank_of()))
    assert program_connections(cut) == [Connection(0, 1, 2)]
    assert message_counts(cut) == ({(0, 1, 2): [3]}, {})
