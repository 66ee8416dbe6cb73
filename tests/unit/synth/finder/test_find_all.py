"""Frontiers of many sizes: tasks hold every size once, and give what a query on its own gives."""

from typing import Any

import pytest

from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.find import FinderQuery, _tasks, find_all


def largest_prime_factor(number: int) -> int:
    divisors = [one for one in range(2, number + 1) if number % one == 0]
    return max(one for one in divisors if all(one % other for other in divisors if other < one))


def test_tasks_hold_every_size_once() -> None:
    queries = [FinderQuery(nodes, 4) for nodes in range(5, 2001)]
    tasks = _tasks(queries)
    assert len(tasks) == 64
    assert sorted((query for task in tasks for query in task), key=lambda query: query.nodes) == queries
    factors = [{largest_prime_factor(query.nodes) for query in task} for task in tasks]
    assert len(set().union(*factors)) == sum(map(len, factors))
    assert len(_tasks(queries[:3])) == len({5, 3, 7})


@pytest.mark.parametrize(("degree", "bidirectional"), [(4, False), (4, True)])
def test_no_frontier_depends_on_the_sizes_beside_it(degree: int, bidirectional: bool) -> None:
    queries = [FinderQuery(nodes, degree, bidirectional) for nodes in (64, 36, 9, 18, 8, 40)]
    together = find_all(queries, SerialExecutor())
    assert list(together) == sorted(queries, key=lambda query: query.nodes)
    for query in queries:
        assert together[query] == find_all([query], SerialExecutor())[query]


class OneByOne:
    """Runs tasks backwards, one at a time, and counts them."""

    name = "one-by-one"

    def __init__(self) -> None:
        self.tasks = 0

    def map(self, function: Any, tasks: Any, shared: Any = None, *_rest: Any) -> list[Any]:
        self.tasks += len(tasks)
        return [function(shared, task) for task in reversed(tasks)][::-1]

    def close(self) -> None:
        """Nothing to release."""


def test_all_work_is_in_tasks_in_any_order() -> None:
    queries = [FinderQuery(nodes, 3) for nodes in range(5, 30)]
    executor = OneByOne()
    assert find_all(queries, executor) == find_all(queries, SerialExecutor())
    assert executor.tasks == len({largest_prime_factor(query.nodes) for query in queries})
