"""Defines experiments, which answer a question with rows of results and may compare them with published rows.

Each quantity of a published row must equal ours within the printed digits, or a reason must explain the difference.
Printed numbers are only used for comparison, never as results.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from importlib import resources
from math import lcm
from pathlib import Path
from statistics import linear_regression
from typing import Any, Literal, TypeAlias

import numpy as np

from chorale.runners.api.units import format_size
from chorale.synth.collective import ALLGATHER, Collective, parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lazy_modules import networkx as nx
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.simulation.simulate import Congestion, NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule

Row: TypeAlias = Mapping[str, Any]
"""A result row as JSON. `holds`: whether the row is as required; `reason`: why the row differs from what was expected,
or None."""

Case: TypeAlias = Hashable
"""The configuration of one part of a result: frozen, picklable, identified by its `repr`, named by its `str`."""
DIRECT_CONNECT = "Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version"
"""The paper whose tables `published` returns."""
Verdict = Literal["match", "better", "worse", "impossible"]
"""How our number compares with a printed one. "impossible": nothing on that network can reach the printed number."""
_SOURCE = -1
_ROUNDS = 4
_MAX_ALPHA_S = Fraction(1, 1000)
_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of results: its heading, and a function that turns a row into the column's text."""

    heading: str
    text: Callable[[Row], str]


def columns(*parts: str | Column) -> tuple[Column, ...]:
    """Return the columns in `parts`. A string such as "nodes | T_L=steps | us:.4g" stands for several columns.

    Each field of the string has the form `heading=key:format`; heading and format are optional. A format is a key of
    `_FORMATS` or a Python format. A cell is empty if the row does not have the key or the value is None.
    """
    chosen: list[Column] = []
    for part in parts:
        if isinstance(part, Column):
            chosen.append(part)
            continue
        for field in part.split(" | "):
            named, _, shown = field.partition(":")
            heading, _, key = named.rpartition("=")
            chosen.append(Column(heading or key, partial(_cell, key, shown)))
    return tuple(chosen)


def short_text(value: Fraction | str) -> str:
    """Return an exact number as a string with six digits."""
    return f"{float(Fraction(value)):.6g}"


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "bytes": format_size,  # as `64KiB`
    "exact": short_text,
    "ms": lambda seconds: f"{seconds * 1e3:.4g}",
    "yes": lambda holds: "yes" if holds else "no",
}


def _cell(key: str, shown: str, row: Row) -> str:
    value = row.get(key)
    return "" if value is None else _FORMATS[shown](value) if shown in _FORMATS else format(value, shown)


def concatenate_rows(parts: Sequence[Sequence[Row]]) -> list[Row]:
    return [row for part in parts for row in part]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question that is answered case by case. Evaluating a case gives a part; all parts together give the rows.

    name:     name on the command line
    source:   where the question or the published answer comes from
    columns:  the columns of the table that shows the rows
    cases:    the cases in order
    evaluate: returns one case's part as JSON, usually its rows. It may run in another process, and parts are stored
              on disk. A part must therefore depend only on the case, the code and, if `alone`, the machine
    conclude: returns the result's rows, given the parts of all cases in order
    alone:    whether cases measure time or start processes; if so, they run one at a time in the calling process
    plot:     draws the rows to a .png, .svg or .pdf file; None if there is nothing to draw
    quick:    cases for a quick run, each taking at most about ten seconds; None for all `cases`
    """

    name: str
    question: str
    source: str
    columns: tuple[Column, ...]
    cases: Sequence[Any]
    evaluate: Callable[[Any], Any]
    conclude: Callable[[Sequence[Any]], Sequence[Row]] = concatenate_rows
    alone: bool = False
    plot: Callable[[Sequence[Row], Path], None] | None = None
    quick: Sequence[Any] | None = None

    def chosen(self, quick: bool) -> Sequence[Any]:
        """Return the cases for a quick or a full run."""
        return self.cases if not quick or self.quick is None else self.quick


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row of a published table.

    topology:     the paper's name for the topology; "bound" for a bound on all networks with this number of nodes
    spec, method: our spec for that topology, and the method for its schedule; empty for a bound
    printed:      quantity -> printed digits
    note:         explanation of what the paper leaves open
    """

    topology: str
    nodes: int
    printed: Mapping[str, str]
    spec: str = ""
    method: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.topology}"

    @property
    def is_bound(self) -> bool:
        return not self.spec


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table with its rows in the paper's order. `source` names the paper and the table's number."""

    source: str
    rows: tuple[PublishedRow, ...]


def published(table: str) -> PublishedTable:
    """Return the table of the direct-connect paper that has the number `table`, such as "7"."""
    document = json.loads(resources.files("chorale.experiments").joinpath("data", "direct-connect.json").read_bytes())
    content = document["tables"][table]
    return PublishedTable(
        f"{document['source']}, {content['where']}", tuple(PublishedRow(**row) for row in content["rows"])
    )


@dataclass(frozen=True, slots=True)
class Interval:
    """Exact lower and upper bounds on a number, equal if the number is known exactly."""

    low: Fraction
    high: Fraction

    @classmethod
    def exactly(cls, value: Fraction | int) -> Interval:
        return cls(Fraction(value), Fraction(value))

    def meets(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


def digits_of(text: str) -> Interval:
    """Return the interval of numbers that round to `text`, half a unit of its last digit in each direction."""
    printed = Decimal(text)
    exponent = printed.as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError(f"not a finite number: {text}")
    half = Fraction(10) ** exponent / 2
    return Interval(Fraction(printed) - half, Fraction(printed) + half)


def judge(printed: str, ours: Interval, limit: Fraction | int | None = None, smaller_is_better: bool = True) -> Verdict:
    """Compare our number, which is known as an interval, with the `printed` number; return the verdict.

    limit: bound that no schedule on the same network can beat, if known
    """
    digits = digits_of(printed)
    if ours.meets(digits):
        return "match"
    ahead = ours.high < digits.low if smaller_is_better else ours.low > digits.high
    if ahead:
        return "better"
    beyond = limit is not None and (digits.high < limit if smaller_is_better else digits.low > limit)
    return "impossible" if beyond else "worse"


@dataclass(frozen=True, slots=True)
class Quantity:
    """Our value `ours` for the quantity that the table prints in the column `key`.

    limit: bound that no schedule on the same network can beat, if known
    proof: text that says what proves the limit
    """

    key: str
    ours: Interval
    limit: Fraction | int | None = None
    proof: str = ""
    smaller_is_better: bool = True


def compare(row: PublishedRow, quantities: Sequence[Quantity], remarks: Sequence[str] = ()) -> Row:
    """Return the row that compares our values with a published row; `holds` is false if one of our values is worse.

    If a printed number is provably impossible on that network, our value may be worse; `reason` states the proof.
    """
    verdicts, ours, reasons = dict[str, Verdict](), dict[str, str | list[str]](), list[str]()
    for q in quantities:
        verdict = verdicts[q.key] = judge(row.printed[q.key], q.ours, q.limit, q.smaller_is_better)
        ends = [q.ours.low] if q.ours.low == q.ours.high else [q.ours.low, q.ours.high]
        ours[q.key] = str(ends[0]) if len(ends) == 1 else list(map(str, ends))
        if verdict in ("worse", "impossible"):
            certified = " to ".join(map(short_text, ends))
            reason = f"{q.key} {row.printed[q.key]} was printed, {certified} is certified"
            reasons.append(f"{reason}: {q.proof}" if verdict == "impossible" else reason)
    return {
        "nodes": row.nodes,
        "topology": row.topology,
        "spec": row.spec or None,
        "method": row.method or None,
        "printed": dict(row.printed),
        "ours": ours,
        "verdict": verdicts,
        "reason": "; ".join([*reasons, *filter(None, [row.note]), *remarks]) or None,
        "holds": "worse" not in verdicts.values(),
    }


def with_optimal_factor(compared: Row, factor: Fraction, minimum: Fraction) -> Row:
    """Add our bandwidth time `factor` to the row `compared`. The new row only holds if `factor` equals `minimum`."""
    optimal = factor == minimum
    return {
        **compared,
        "printed": {**compared["printed"], "bandwidth_factor": "optimal"},
        "ours": {**compared["ours"], "bandwidth_factor": str(factor)},
        "verdict": {**compared["verdict"], "bandwidth_factor": "match" if optimal else "worse"},
        "holds": compared["holds"] and optimal,
    }


def claim_row(claim: str, value: float, low: float, high: float, reason: str | None = None, **facts: Any) -> Row:
    """Return the row for a claim in a paper's text, which our `value` matches if it is between `low` and `high`.

    The row holds if the value matches or there is a `reason` why it does not. `facts` are added to the row.
    """
    reached = low <= value <= high
    return {
        "kind": "finding", "spec": "", **facts, "finding": claim, "value": value,
        "verdict": "match" if reached else "not reached", "reason": None if reached else reason,
        "holds": reached or reason is not None,
    }  # fmt: skip


def columns_of(keys: Mapping[str, str]) -> tuple[Column, ...]:
    """Return the columns of a comparison; `keys` maps the key of each quantity to its column heading."""
    quantities = (Column(heading, partial(_compared_cell, key)) for key, heading in keys.items())
    return columns("nodes | topology | spec", *quantities, "reason")


def _compared_cell(key: str, row: Row) -> str:
    if key not in row["verdict"]:
        return ""
    ours, verdict = row["ours"][key], row["verdict"][key]
    shown = " to ".join(dict.fromkeys(map(short_text, [ours] if isinstance(ours, str) else ours)))
    return f"{row['printed'][key]}: {shown}" + ("" if verdict == "match" else f" [{verdict}]")


def synthesized(
    method: str, topology: Topology | str, collective: Collective | str = ALLGATHER, **options: Any
) -> VerifiedSchedule:
    """Return the verified schedule that `method` makes in this process; `options` are fields of `Options`."""
    network = parse_topology(topology) if isinstance(topology, str) else topology
    collective = parse_collective(collective) if isinstance(collective, str) else collective
    return synthesize(method, network, collective, Options(**options), SerialExecutor())


def min_seconds(action: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Run `action` several times; return the shortest time in seconds, because other load can only add time.

    clock: use `time.process_time`, which other load hardly affects, if all work is in this process
    """
    least = float("inf")
    for _ in range(repeats):
        begun = clock()
        action()
        least = min(least, clock() - begun)
    return least


def growth_exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent with which `seconds` grow with `sizes`: the slope of a line fitted to the logarithms."""
    return float(linear_regression(np.log(sizes), np.log(seconds)).slope)


def max_flows_reach(topology: Topology, time_per_byte: Fraction) -> bool:
    """Return whether maximum flows (NetworkX) allow an allgather in `time_per_byte`, with exact integer arithmetic."""
    ranks = topology.compute_count
    carried = [Fraction(link.bandwidth) * time_per_byte for link in topology.links]
    vector = lcm(ranks, *(amount.denominator for amount in carried))
    graph: nx.DiGraph[int] = nx.DiGraph()
    for rank in range(ranks):
        graph.add_edge(_SOURCE, rank, capacity=vector // ranks)
    for link, amount in zip(topology.links, carried, strict=True):
        before = graph.get_edge_data(link.src, link.dst, {"capacity": 0})["capacity"]
        graph.add_edge(link.src, link.dst, capacity=before + int(amount * vector))
    return all(nx.maximum_flow_value(graph, _SOURCE, rank) == vector for rank in range(ranks))


def fit_two_points(cost: Congestion, known_gbps: Mapping[int, float]) -> NetworkModel:
    """Fit a model's latency to the bandwidth at the smallest known size, and its efficiency to the one at the largest.

    known_gbps: algorithmic bandwidths in GB/s by vector size in bytes
    """
    small, large = min(known_gbps), max(known_gbps)
    small_s, large_s = (size / known_gbps[size] / 1e9 for size in (small, large))
    model = NetworkModel()
    for _ in range(_ROUNDS):
        excess = float(cost.seconds(model, large)) / large_s
        model = replace(model, efficiency=model.efficiency * Fraction(excess).limit_denominator(10**6))
        low, high = Fraction(0), _MAX_ALPHA_S
        for _ in range(_HALVINGS):
            alpha = (low + high) / 2
            slow = cost.seconds(replace(model, alpha_s=alpha), small) > small_s
            low, high = (low, alpha) if slow else (alpha, high)
        model = replace(model, alpha_s=low)
    return model


def predicted_gbps(cost: Congestion, model: NetworkModel, size_bytes: int) -> float:
    """Return the algorithmic bandwidth in GB/s that `model` predicts for a vector of `size_bytes`."""
    return size_bytes / float(cost.seconds(model, size_bytes)) / 1e9
