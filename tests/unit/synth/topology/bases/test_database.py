"""The shipped base graphs: every claim is derived anew."""

import re
from fractions import Fraction

import pytest

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.cayley_search import CayleySearch, search_cayley_graphs
from chorale.synth.identity import content_id
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.expand import base_schedule
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.families import bases as database
from chorale.synth.topology.families.bases import BaseEntry, base_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

ENTRIES = list(database.load_bases().values())
SEARCHED = {facts["name"]: database.load_bases()[facts["name"]] for facts in database.base_documents("searched.json")}


def moore_steps(nodes: int, degree: int) -> int:
    """Return the fewest steps in which a node of a directed network of `degree` can be reached by all others."""
    steps, reached = 0, 1
    while reached < nodes:
        steps += 1
        reached += degree**steps
    return steps


def claimed_schedule(entry: BaseEntry) -> VerifiedSchedule:
    if entry.claim.method == "own":
        return verify(base_schedule(entry.name))
    assert entry.claim.method == "bfb"
    topology = check_topology(base_topology(entry, f"base:{entry.name}"))
    return synthesize("bfb", topology, ALLGATHER, None, SerialExecutor())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_claim(entry):
    cost = claimed_schedule(entry).cost
    assert (cost.steps, cost.bandwidth_factor) == (entry.claim.steps, entry.claim.bandwidth_factor)
    least = Fraction(entry.nodes - 1, entry.nodes)
    assert entry.claim.bandwidth_factor == least or (entry.claim.bandwidth_factor > least and entry.name in SEARCHED)
    assert entry.claim.steps >= moore_steps(entry.nodes, entry.degree)
    assert entry.has_stored_schedule == (entry.claim.method == "own")
    assert entry.source


def test_ids_are_those_of_the_content():
    for documents in map(database.base_documents, database.BASE_FILES):
        assert len({facts["name"] for facts in documents}) == len(documents)
        for facts in documents:
            assert facts.pop("id") == content_id(facts), facts["name"]


def test_what_is_there():
    assert list(database.load_bases())[:6] == ["diamond", "dbjmod-2-3", "dbjmod-2-4", "dbjmod-3-2", "dbjmod-4-2", "d3"]
    assert {f"cayley-{nodes}-{degree}" for nodes in range(6, 73) for degree in (2, 3, 4)} < set(database.load_bases())
    assert [entry.name for entry in ENTRIES if entry.has_stored_schedule] == list(database.load_bases())[:5]


def test_no_base_of_the_search_is_dominated():
    """A base may be there for its few steps or its little bandwidth time, never for neither."""
    for entry in SEARCHED.values():
        for other in ENTRIES:
            if other.name != entry.name and (other.nodes, other.degree) == (entry.nodes, entry.degree):
                fewer = other.claim.steps <= entry.claim.steps
                assert not (fewer and other.claim.bandwidth_factor <= entry.claim.bandwidth_factor), entry.name


@pytest.mark.parametrize("name", ["cayley-16-4-2", "cayley-93-2-8"])
def test_the_search_finds_its_bases_again(name):
    """The source of an entry names the seed."""
    entry = SEARCHED[name]
    (seed,) = re.findall(r"seed (\d+);", entry.source)
    found = search_cayley_graphs(CayleySearch(entry.nodes, entry.degree), [int(seed)], SerialExecutor())
    assert (entry.claim.steps, entry.claim.bandwidth_factor) in [(c.steps, c.bandwidth_factor) for c in found]
    (spec,) = [c.spec for c in found if c.steps == entry.claim.steps]
    assert spec == f"cayley:{'.'.join(map(str, entry.group))},{','.join(map(str, entry.generators))}"


def test_unknown_name():
    with pytest.raises(InvalidInput, match="unknown base 'cayley-32-44'; did you mean 'cayley-32-4'"):
        database.base_entry("cayley-32-44")
