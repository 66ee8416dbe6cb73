"""The search for Cayley digraphs: exact scores, the best of small groups, seeds that add up, records that last."""

import json
from contextlib import closing
from itertools import combinations

import numpy as np
import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import ProcessExecutor
from chorale.synth.finder.candidate import bfb_score, cost_of, frontier
from chorale.synth.finder.cayley_search import (
    LOAD_UNIT,
    NO_LOAD,
    CayleySearch,
    SearchProgress,
    multiplication_table,
    read_log,
    search_cayley_graphs,
    searches_for,
    semidirect_groups,
    write_log,
)
from chorale.synth.finder.constructions import traits_of
from chorale.synth.finder.find import FinderQuery, find
from chorale.synth.kernels import native
from chorale.synth.topology.families.directed import SemidirectProduct
from chorale.synth.topology.spec import parse_topology


@pytest.mark.parametrize("order", [2, 12, 21])
def test_groups_are_groups_of_their_order(order):
    groups = list(semidirect_groups(order))
    assert len(set(groups)) == len(groups)
    for group in groups:
        assert group.order == order
        table = multiplication_table(group)
        assert table.shape == (order, order)
        assert np.array_equal(table[0], np.arange(order))
        for row in table:
            assert sorted(row) == list(range(order))
        x, y, z = order // 3, order - 1, order // 2
        assert table[z, table[y, x]] == table[table[z, y], x]  # (x y) z = x (y z)
    commutative = [np.array_equal(multiplication_table(group), multiplication_table(group).T) for group in groups]
    assert commutative[0]
    assert all(commutative) == (order == 2)


@pytest.mark.parametrize(("group", "degree"), [(SemidirectProduct(5, 2, 4), 2), (SemidirectProduct(3, 2, 2, 2), 4)])
def test_enough_trials_find_the_best_of_all_generator_sets(group, degree):
    best: dict[int, object] = {}
    for generators in combinations(range(1, group.order), degree):
        spec = f"cayley:{group.m}.{group.k}.{group.r}.{group.l},{','.join(map(str, generators))}"
        try:
            score = bfb_score(parse_topology(spec))
        except InvalidInput:
            continue  # these do not generate the group
        best[score.steps] = min(best.get(score.steps, score.bandwidth_factor), score.bandwidth_factor)
    loads, found = native.best_generators(multiplication_table(group), degree, False, 12, 40_000, 7)
    fewest = min(best)
    assert int(np.flatnonzero(loads != NO_LOAD)[0]) == fewest
    assert loads[fewest] * degree == best[fewest] * group.order * LOAD_UNIT
    assert len(set(found[fewest].tolist())) == degree


@pytest.mark.parametrize(
    "hunt", [CayleySearch(24, 3), CayleySearch(30, 5, True), CayleySearch(16, 8), CayleySearch(13, 2)]
)
def test_what_is_found_is_what_it_says(hunt):
    found = search_cayley_graphs(hunt, range(6), SerialExecutor())
    assert found
    for candidate in found:
        topology = parse_topology(candidate.spec)
        score = bfb_score(topology)
        assert (score.steps, score.bandwidth_factor) == cost_of(candidate)
        assert (topology.compute_count, topology.degree) == (hunt.nodes, hunt.degree)
        assert traits_of(topology).bidirectional >= hunt.bidirectional
    assert [group[0] for group in frontier(found)] == list(found)


def test_seeds_add_up_whoever_works_on_them_and_when():
    hunt = CayleySearch(36, 4)
    whole = search_cayley_graphs(hunt, range(12), SerialExecutor())
    first = search_cayley_graphs(hunt, range(5), SerialExecutor())
    assert search_cayley_graphs(hunt, range(5, 12), SerialExecutor(), first) == whole
    with closing(ProcessExecutor(2)) as executor:
        assert search_cayley_graphs(hunt, range(12), executor) == whole


def test_what_is_found_serves_the_finder():
    """Degree 3, 100 nodes, both ways: without a search there is little more than a ring with chords."""
    query = FinderQuery(100, 3, bidirectional=True)
    assert searches_for(query) == [CayleySearch(100, 3, True)]
    found = {(100, 3): search_cayley_graphs(CayleySearch(100, 3, True), range(16), SerialExecutor())}
    without, with_search = (find(query, SerialExecutor(), extra_bases=bases).frontier for bases in ({}, found))
    assert with_search[0].candidate.steps <= 8 < without[0].candidate.steps


def test_line_graphs_need_smaller_bases():
    assert searches_for(FinderQuery(256, 4)) == [CayleySearch(256, 4), CayleySearch(64, 4), CayleySearch(16, 4)]
    largest = [CayleySearch(nodes, 4) for nodes in (2048, 512, 128, 32, 8)]
    assert searches_for(FinderQuery(8192, 4)) == largest
    assert searches_for(FinderQuery(97, 20)) == []
    assert searches_for(FinderQuery(9, 1)) == []


@pytest.mark.parametrize("size", [(4, 4), (5, 1), (100, 9), (4096, 4)])
def test_searches_have_limits(size):
    with pytest.raises(InvalidInput, match="a search must have"):
        CayleySearch(*size)


def test_records_last():
    hunts = {
        hunt: SearchProgress(4, search_cayley_graphs(hunt, range(4), SerialExecutor()))
        for hunt in (CayleySearch(20, 3), CayleySearch(18, 4, True))
    }
    again = read_log(write_log(hunts), "record.json")
    assert {hunt: progress.seeds for hunt, progress in again.items()} == {hunt: 4 for hunt in hunts}
    for hunt, progress in hunts.items():
        assert [(c.spec, cost_of(c)) for c in again[hunt].frontier] == [(c.spec, cost_of(c)) for c in progress.frontier]
    assert write_log(again) == write_log(hunts)


def spoiled(change) -> bytes:
    hunt = CayleySearch(20, 3)
    document = json.loads(write_log({hunt: SearchProgress(2, search_cayley_graphs(hunt, range(2), SerialExecutor()))}))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"", b'{"format": "chorale-base-search/1"}', b"{" * 5000,
        spoiled(lambda d: d.update(format="other")),
        spoiled(lambda d: d["hunts"][0].update(seeds=-1)),
        spoiled(lambda d: d["hunts"][0].update(nodes=21)),
        spoiled(lambda d: d["hunts"][0].update(bidirectional=True, found=["cayley:20.1.1.1,1,3,7"])),
        spoiled(lambda d: d["hunts"][0].update(found=["torus:4x5"])),
    ],
)  # fmt: skip
def test_spoiled_records_are_refused(content):
    with pytest.raises(InvalidInput, match=r"record\.json must be a record of a search"):
        read_log(content, "record.json")
