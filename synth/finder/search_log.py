"""What a search has found so far, as JSON: the seeds that are done and the specs that came of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorale.synth.errors import InvalidInput
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.score import bfb_score
from chorale.synth.finder.scored_bases import traits_of
from chorale.synth.finder.search import CayleySearch
from chorale.synth.topology.spec import parse_topology

FORMAT = "chorale-base-search/1"
_WAY_OUT = "start a new file"
_MAX_SEEDS = 10**6


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Seeds 0 to `seeds` - 1 are done; `found` is the frontier of what they found."""

    seeds: int
    frontier: tuple[TopologyCandidate, ...]


def write_log(log: Mapping[CayleySearch, SearchProgress]) -> bytes:
    """Return the JSON that `read_log` reads, in order of size."""
    hunts = sorted(log, key=lambda hunt: (hunt.nodes, hunt.degree, hunt.bidirectional))
    entries = [
        {
            "nodes": hunt.nodes,
            "degree": hunt.degree,
            "bidirectional": hunt.bidirectional,
            "seeds": log[hunt].seeds,
            "found": [candidate.spec for candidate in log[hunt].frontier],
        }
        for hunt in hunts
    ]
    return (json.dumps({"format": FORMAT, "hunts": entries}, indent=1) + "\n").encode()


def read_log(content: bytes, file_name: str) -> dict[CayleySearch, SearchProgress]:
    """Return what `write_log` wrote; every spec is built and scored anew, so that nothing has to be believed.

    Raises InvalidInput naming the file for anything else.
    """
    try:
        document = json.loads(content)
        if document["format"] != FORMAT:
            raise ValueError("another format")
        return dict(_entry(entry) for entry in document["hunts"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        rule = f"{file_name} must be a record of a search ({FORMAT})"
        raise InvalidInput(rule, str(error) or "something else", _WAY_OUT) from None


def _entry(entry: Mapping[str, Any]) -> tuple[CayleySearch, SearchProgress]:
    nodes, degree, seeds = entry["nodes"], entry["degree"], entry["seeds"]
    if any(type(value) is not int for value in (nodes, degree, seeds)) or not 0 <= seeds <= _MAX_SEEDS:
        raise ValueError("counts that are not whole numbers in range")
    hunt = CayleySearch(nodes, degree, bool(entry["bidirectional"]))
    return hunt, SearchProgress(seeds, _candidates(hunt, entry["found"]))


def _candidates(hunt: CayleySearch, specs: Sequence[Any]) -> tuple[TopologyCandidate, ...]:
    return tuple(_candidate(hunt, str(spec)) for spec in specs)


def _candidate(hunt: CayleySearch, spec: str) -> TopologyCandidate:
    if not spec.startswith("cayley:"):
        raise ValueError(f"a base that is not a Cayley digraph: {spec[:60]}")
    topology = parse_topology(spec)
    traits = traits_of(topology)
    if (topology.compute_count, topology.degree) != (hunt.nodes, hunt.degree):
        raise ValueError(f"a base of another size: {spec[:60]}")
    if hunt.bidirectional and not traits.bidirectional:
        raise ValueError(f"a base that is not bidirectional: {spec[:60]}")
    score = bfb_score(topology)
    return TopologyCandidate(
        spec=spec,
        method="bfb",
        nodes=hunt.nodes,
        degree=hunt.degree,
        steps=score.steps,
        bandwidth_factor=score.bandwidth_factor,
        exact=True,
        traits=traits,
        least_steps=score.steps,
        least_factor=score.bandwidth_factor,
        origin=(spec,),
    )
