import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.kernels import native
from chorale.synth.kernels.splitmix import splitmix
from tests.properties import random_cases

Problem = tuple[list[list[bool]], list[list[bool]], list[int], list[int]]
NODE = 7


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rows, places = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    table = st.lists(st.lists(st.booleans(), min_size=places, max_size=places), min_size=rows, max_size=rows)
    amounts = st.integers(0, 5)
    needs = draw(st.lists(amounts, min_size=rows, max_size=rows))
    return draw(table), draw(table), needs, draw(st.lists(amounts, min_size=places, max_size=places))


def _most(allowed: np.ndarray, needs: list[int], capacity: list[int]) -> int:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((("rows", f"r{row}", {"capacity": need}) for row, need in enumerate(needs)))
    graph.add_edges_from(((f"p{place}", "places", {"capacity": room}) for place, room in enumerate(capacity)))
    graph.add_edges_from((f"r{row}", f"p{place}") for row, place in np.argwhere(allowed))
    return int(nx.maximum_flow_value(graph, "rows", "places"))


@random_cases(300)
@given(problems(), st.booleans())
def test_as_much_is_placed_as_a_maximum_flow_allows(problem: Problem, beside: bool) -> None:
    few, more, wanted, room = problem
    nearer, equal = np.array(few, dtype=np.bool_), np.array(more, dtype=np.bool_)
    rows, places = nearer.shape
    beside_node = np.where(nearer, 4, np.where(equal, 5, 6)).T
    hops = np.vstack([beside_node, np.full((1, rows), 5)]).astype(np.uint16, order="C")
    tails, roots = np.arange(places, dtype=np.int32), np.arange(rows)
    needs, capacity = np.array(wanted, dtype=np.int64), np.array(room, dtype=np.int64)
    root, arc, lo, hi = native.in_arc_shares(tails, capacity, needs, hops, NODE, 0, beside)
    drawn = splitmix(tails * rows + roots[:, None]) < splitmix(NODE * rows + roots[:, None])
    table = nearer | (equal & drawn & beside)
    amounts = np.zeros((rows, places + 1), dtype=np.int64)
    amounts[root, arc] = hi - lo  # the last column is of -1
    assert amounts[:, :-1].sum() == _most(table, wanted, room)
    assert not np.any(amounts[:, :-1][~table])
    assert np.array_equal(amounts[:, -1], needs)
    assert np.array_equal(amounts.sum(axis=1), wanted)
    assert np.array_equal(amounts[:, :-1].sum(axis=0) + capacity, room)
    assert np.array_equal(lo[np.diff(root, prepend=-1) > 0], np.zeros(len(set(root.tolist()))))
