from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.synth.methods.forest.transport import transport

Problem = tuple[list[list[bool]], list[list[bool]], list[int], list[int]]


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


@settings(max_examples=300, deadline=None)
@given(problems())
def test_as_much_is_placed_as_a_maximum_flow_allows(problem: Problem) -> None:
    few, more, wanted, room = problem
    allowed = np.array(few, dtype=np.bool_)
    needs, capacity = np.array(wanted, dtype=np.int64), np.array(room, dtype=np.int64)
    amounts = np.zeros(allowed.shape, dtype=np.int64)
    for table in (allowed, allowed | np.array(more)):
        placed = transport(table, needs, capacity, amounts)
        assert amounts.sum() == _most(table, wanted, room)
        assert placed == (not needs.any())
        assert not np.any(amounts[~table])
        assert np.array_equal(amounts.sum(axis=1) + needs, wanted)
        assert np.array_equal(amounts.sum(axis=0) + capacity, room)
        assert min(needs.min(), capacity.min(), amounts.min()) >= 0
