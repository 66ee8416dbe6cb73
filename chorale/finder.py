"""Find networks with a given number of nodes and degree."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, cast, get_args

from chorale.design import NetworkTopology, in_words_of_arguments, topology
from chorale.synth.executor.base import Executor, SerialExecutor
from chorale.synth.finder.find import FinderQuery, Goal
from chorale.synth.finder.find import find as find_topologies
from chorale.synth.names import name_among
from chorale.tuner.plots.picture import Picture
from chorale.tuner.reports.finder import find_document, search_bases

_SEEDS = 16


@in_words_of_arguments
def find(
    nodes: int,
    degree: int,
    *,
    bidirectional: bool = False,
    bases: str = "all",
    search: int = _SEEDS,
    collective: Goal = "allreduce",
    executor: Executor | None = None,
) -> NetworkFrontier:
    """Return the networks that are Pareto-optimal in steps and bandwidth time, sorted by steps.

    Args:
        nodes: Number of nodes, up to 16,384.
        degree: Number of outgoing links of each node, and of incoming links.
        bidirectional: Whether every link must have its reverse.
        bases: Small networks from which larger ones are built: `all`, or `paper` for only those in the paper.
        search: Number of seeds for the search for Cayley digraphs; 0: no search.
        collective: Criterion: allreduce (steps and bandwidth time), alltoall (the best few by rate), or both.
        executor: Executor for the computation; by default it runs in this process.

    Raises:
        InvalidInput: No network has these properties.

    >>> [row["spec"] for row in find(8, 3, bidirectional=True, search=0)][:1]
    ['circulant:8,1,4']
    """
    query = FinderQuery(nodes, degree, bidirectional, "paper" if bases == "paper" else "all")
    running = executor or SerialExecutor()
    searched = search_bases(query, search, running, lambda _: None, None) if bases == "all" else {}
    found = find_topologies(
        query, running, extra_bases=searched, goal=cast(Goal, name_among("collective", collective, get_args(Goal)))
    )
    return NetworkFrontier(find_document(found, None))


class NetworkFrontier(list[Mapping[str, Any]]):
    """Rows of `chorale find --json`, each with `spec`, `method`, `steps` and `bandwidth_factor`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(document["frontier"])
        self.document = document

    def topology(self, row: int = 0) -> NetworkTopology:
        """Return a row's network."""
        return topology(self[row]["spec"])

    def plot(self, row: int = 0) -> Picture:
        """Return a drawing of a row's network."""
        return self.topology(row).plot()

    def __repr__(self) -> str:
        rows = "; ".join(f"{row['spec']}: {row['steps']} steps, {row['bandwidth_factor']}" for row in self)
        return f"<{self.document['nodes']} nodes of degree {self.document['degree']}: {rows}>"

    def _repr_html_(self) -> str:
        names = ("spec", "method", "steps", "bandwidth_factor", "diameter")
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(str(row[name]))}</td>" for name in names) + "</tr>" for row in self
        )
        return f"<table><tr>{head}</tr>{rows}</table>"
