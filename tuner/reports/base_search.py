"""A search for bases that keeps its record in a file, so that it can be stopped and taken up again."""

from __future__ import annotations

import os
from pathlib import Path

from chorale.synth.executor.base import Executor
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.cayley_search import SearchProgress, read_log, search_cayley_graphs, searches_for, write_log
from chorale.synth.finder.find import Stage
from chorale.synth.finder.query import FinderQuery
from chorale.tuner.files import read_file, write_file

_BATCH = 16
"""Seeds between two writes of the record."""

Bases = dict[tuple[int, int], tuple[TopologyCandidate, ...]]


def search_bases(query: FinderQuery, seeds: int, executor: Executor, stage: Stage, record: Path | None) -> Bases:
    """Try seeds 0 to `seeds` - 1 for every size that helps `query`; return what is Pareto-efficient by size.

    With `record`, seeds that it has are not tried again, and it is written after every few seeds: an interrupt loses
    little. The answer is that of one uninterrupted run.
    """
    known = {} if record is None or not os.path.exists(record) else read_log(read_file(str(record)), record.name)
    bases: Bases = {}
    for hunt in searches_for(query):
        report = stage(f"bases of {hunt.nodes} nodes")
        progress = known.get(hunt, SearchProgress(0, ()))
        while progress.seeds < seeds:
            batch = range(progress.seeds, min(progress.seeds + _BATCH, seeds))
            progress = SearchProgress(batch.stop, search_cayley_graphs(hunt, batch, executor, progress.frontier))
            known[hunt] = progress
            if report is not None:
                report(batch.stop, seeds)
            if record is not None:
                write_file(record, write_log(known))
        bases[hunt.nodes, hunt.degree] = progress.frontier
    return bases
