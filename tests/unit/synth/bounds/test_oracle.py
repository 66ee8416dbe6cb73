import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, amounts_on, residual_graph
from chorale.synth.kernels import native
from tests.reference.crossing_cuts import Arc, violated_sink_sides


@st.composite
def states(draw: st.DrawFn) -> tuple[int, list[Arc], list[int], list[int]]:
    nodes = draw(st.integers(2, 7))
    node = st.integers(0, nodes - 1)
    arcs = draw(st.lists(st.tuples(node, node, st.integers(0, 6)).filter(lambda arc: arc[0] != arc[1]), max_size=24))
    supply = draw(st.lists(st.integers(0, 3), min_size=nodes, max_size=nodes))
    sinks = draw(st.lists(node, min_size=1, unique=True))
    return nodes, arcs, supply, sinks


def _search(
    nodes: int, arcs: list[Arc], supply: list[int], sinks: list[int], rows: int
) -> tuple[list[set[int]], list[int]]:
    src, dst, amounts = (np.array([arc[i] for arc in arcs], dtype=np.int64) for i in range(3))
    graph, half_arcs = residual_graph(nodes, src, dst)
    wanted = np.zeros(nodes, dtype=np.bool_)
    wanted[sinks] = True
    settled = np.zeros(nodes, dtype=np.bool_)
    cuts = np.zeros((rows, nodes), dtype=np.bool_)
    capacity = amounts_on(graph, half_arcs, amounts)
    found = native.violated_cuts(graph, capacity, np.array(supply, dtype=np.int64), wanted, settled, cuts)
    return [set(np.flatnonzero(cut)) for cut in cuts[:found]], list(np.flatnonzero(settled))


@given(states())
def test_a_cut_is_found_exactly_where_one_is_violated(state: tuple[int, list[Arc], list[int], list[int]]) -> None:
    nodes, arcs, supply, sinks = state
    violated = list(violated_sink_sides(nodes, arcs, supply, sinks))
    found, settled = _search(nodes, arcs, supply, sinks, nodes + 1)
    assert bool(found) == bool(violated)
    assert all(cut in violated for cut in found)
    assert settled == sorted(sinks)


def test_a_full_table_leaves_the_last_sink_open() -> None:
    found, settled = _search(3, [(0, 1, 1), (1, 2, 1)], [2, 0, 0], [1, 2], 1)
    assert found == [{1}]
    assert settled == []


def test_amounts_up_to_the_limit_stay_exact() -> None:
    large = LARGEST_AMOUNT // 4
    assert _search(2, [(0, 1, large)], [large, 0], [1], 1)[0] == []
    assert _search(2, [(0, 1, large - 1)], [large, 0], [1], 1)[0] == [{1}]
