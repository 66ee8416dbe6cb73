"""The Moore bound against trees that are grown node by node."""

from fractions import Fraction

import pytest

from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps


def depth_of_fullest_tree(nodes: int, degree: int, bidirectional: bool) -> int:
    """Hang nodes below the root level by level, as many as links allow."""
    level, reached, depth = [degree], 1, 0
    while reached < nodes:
        assert level
        level = [degree - bidirectional for places in level for _ in range(places)]
        reached += len(level)
        depth += 1
    return depth


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("degree", [2, 3, 4, 7])
def test_least_steps_are_the_depth_of_the_fullest_tree(degree, bidirectional):
    for nodes in range(2, 300):
        expected = depth_of_fullest_tree(nodes, degree, bidirectional)
        assert least_steps(nodes, degree, bidirectional) == expected


def test_known_moore_graphs_stand_at_the_bound():
    assert (least_steps(10, 3, True), least_steps(11, 3, True)) == (2, 3)  # Petersen
    assert (least_steps(50, 7, True), least_steps(51, 7, True)) == (2, 3)  # Hoffman-Singleton
    assert least_steps(2, 1, True) == 1


def test_degree_1_has_no_bidirectional_network_of_3_nodes():
    with pytest.raises(ValueError, match="degree 1"):
        least_steps(3, 1, True)


def test_bandwidth_bound():
    assert least_bandwidth_factor(8) == Fraction(7, 8)
