"""Colour refinement: classes are equitable, as few as can be expected, and lift back."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.methods.alltoall.linear_program import (
    ColourTable,
    Commodities,
    column_colours,
    commodities_of,
    count_colours,
    reduced_problem,
    refine,
)
from chorale.synth.topology.spec import parse_topology
from tests.properties import random_cases
from tests.strategies import networks


def column_profile(problem: Commodities, columns: np.ndarray, source: int, node: int) -> tuple[Counter, Counter]:
    """Return how often columns of each colour enter and leave a node in the flow of a source."""
    usable = problem.dst != problem.sources[source]
    arriving = columns[source][(problem.dst == node) & usable]
    leaving = columns[source][(problem.src == node) & usable]
    return Counter(arriving.tolist()), Counter(leaving.tolist())


@given(networks(2, 6))
@random_cases(30)
def test_rows_of_one_colour_meet_the_same_columns(topology):
    problem = commodities_of(topology)
    rows, capacities = refine(topology, problem)
    columns = column_colours(problem, rows, capacities, slice(None))
    profiles = {}
    for source in range(len(problem.sources)):
        for node in range(problem.node_count):
            profile = column_profile(problem, columns, source, node)
            assert profiles.setdefault(rows[source, node], profile) == profile
    loads = {}
    for group in range(len(problem.class_size)):
        links = problem.link_class == group
        usable = problem.dst[links] != problem.sources[:, np.newaxis]
        profile = Counter(columns[:, links][usable].tolist())
        assert loads.setdefault(capacities[group], profile) == profile


@pytest.mark.parametrize(
    ("spec", "rows", "columns"),
    [
        ("hypercube:5", 6, 10),  # distances 0 to 5, and links up or down between them
        ("complete:6", 2, 3),
        ("bipartite:3", 3, 4),
    ],
)
def test_classes_of_distance_transitive_networks(spec, rows, columns):
    topology = parse_topology(spec)
    for symmetric in (True, False):
        reduction = reduced_problem(topology, commodities_of(topology, symmetric))
        assert len(reduction.small.sources) == 1
        assert reduction.small.weights.tolist() == [topology.compute_count]
        assert len(reduction.small.class_size) == 1
        assert (reduction.row_count, reduction.column_count) == (rows, columns)


@given(networks(2, 6))
@random_cases(20)
def test_one_value_per_class_lifts_to_every_source(topology):
    reduction = reduced_problem(topology, commodities_of(topology))
    class_flow = np.arange(reduction.column_count, dtype=np.float64)
    lifted = np.concatenate([flows for _, flows in reduction.lifted(class_flow)])
    assert lifted.shape == (topology.compute_count, reduction.full.link_count)
    chosen = [reduction.full.sources.tolist().index(source) for source in reduction.small.sources]
    assert np.array_equal(lifted[chosen], reduction.columns)
    assert np.array_equal(reduction.class_means(lifted[chosen]), class_flow)
    assert reduction.small.weights.sum() == topology.compute_count
    assert reduction.small.class_size.sum() == reduction.full.link_count


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=60), st.integers(0, 60))
def test_numbers_follow_the_order_of_first_sight(values, cut):
    table = ColourTable(1)
    colours = np.array(values, dtype=np.uint64)
    numbers = np.concatenate([table.number(colours[:cut]), table.number(colours[cut:])])
    known: dict[int, int] = {}
    assert numbers.tolist() == [known.setdefault(value, len(known)) for value in values]
    assert table.count == len(known) == count_colours(colours)
