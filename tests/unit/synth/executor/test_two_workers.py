"""The virtual cluster that measures speedups gives the results of its tasks, and shares them out."""

from tests.conformance.executor_kit import add_shared
from tests.integration.two_workers import TimedMap, VirtualCluster


def test_results_and_shares():
    cluster = VirtualCluster(2)
    heard = {}
    try:
        began_s = cluster.now_s
        results = cluster.map(add_shared, range(6), 10, on_result=heard.__setitem__)
        timed = TimedMap(cluster.now_s - began_s, cluster.costs_s, "")
    finally:
        cluster.close()
    assert results == [10, 11, 12, 13, 14, 15]
    assert heard == dict(enumerate(results))
    assert {slot for slot, _ in timed.costs_s} == {0, 1}
    assert timed.seconds < timed.alone_s < 2 * timed.seconds


def test_one_worker_is_as_fast_as_itself():
    assert TimedMap(3.0, [(0, 1.0), (0, 1.5)], "").alone_s == 3.0
    assert TimedMap(3.0, [(0, 1.0), (1, 1.5), (0, 1.0)], "").alone_s == 4.5
