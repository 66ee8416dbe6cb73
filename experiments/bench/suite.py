"""Our own benchmarks: cases whose counts must never change, and whose times are compared with a reference.

References: NetworkX's maximum flows for bounds, HiGHS on the paper's linear programs for BFB, and exact bandwidth
times of a plain ring for schedules. `chorale bench` imports this module by name.
"""

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from importlib import resources
from typing import Any

import networkx as nx
import numpy as np

from chorale.experiments.bench.processes import COMMANDS, START, Benchmark, BenchmarkOutcome
from chorale.experiments.bench.scale import (
    AUTOMATIC,
    EXCHANGE,
    PROGRAMS,
    RANKS,
    facts_of,
    table_after_a_loss,
    verified_schedule_at_scale,
)
from chorale.experiments.framework.references import max_flows_reach, synthesized
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER, parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lazy_modules import sparse
from chorale.synth.linear_program import minimum
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.names import unknown_name
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.reports.tables import Stopwatch

_LITTLE_LESS = Fraction(999, 1000)


def _run_bounds(spec: str) -> BenchmarkOutcome:
    topology = parse_topology(spec)
    stages = Stopwatch()
    with stages.stage("ours"):
        bound = lower_bound(topology, ALLGATHER)
    with stages.stage("reference"):
        fits = max_flows_reach(topology, bound.value)
    facts = {
        "time_per_byte": str(bound.value),
        "kind": bound.kind,
        "cut": len(bound.nodes),
        "flows_fit": fits,
        "flows_fit_in_a_little_less": max_flows_reach(topology, bound.value * _LITTLE_LESS),
    }
    return BenchmarkOutcome.of(facts, stages.seconds)


BOUNDS = Benchmark(
    name="bounds",
    reference="NetworkX maximum_flow to every rank",
    goals=dict.fromkeys(("a100:2", "mi250:2", "genkautz:4,32"), 10.0),
    run=_run_bounds,
    is_exact=False,
)


_DIGITS = 10**6
"""Largest denominator when the solver's answers are rounded; exact answers have far smaller denominators."""


def _run_bfb(spec: str) -> BenchmarkOutcome:
    topology = parse_topology(spec)
    stages = Stopwatch()
    with stages.stage("ours"):
        verified = verify(bfb_allgather(topology, SerialExecutor()))
    with stages.stage("reference"):
        optimum = _by_programs(topology)
    facts = facts_of(verified)
    del facts["trees_per_root"]
    return BenchmarkOutcome.of({**facts, "time_per_byte_of_reference": str(optimum)}, stages.seconds)


def _by_programs(topology: Topology) -> Fraction:
    """Return BFB's lowest possible bandwidth time per byte on a network with unit links, from linear programs.

    This is the sum over all steps of the worst node's smallest possible load, in shards.
    """
    graph = nx.DiGraph([(link.src, link.dst) for link in topology.links])
    hops = {source: dict(lengths) for source, lengths in nx.all_pairs_shortest_path_length(graph)}
    ranks = range(topology.compute_count)
    into = [[link.src for link in topology.links if link.dst == node] for node in ranks]
    loads = [
        max(_least_load(node, step, into[node], hops) for node in ranks)
        for step in range(1, max(max(lengths.values()) for lengths in hops.values()) + 1)
    ]
    return sum(loads, Fraction(0)) / topology.compute_count


def _least_load(node: int, step: int, into: list[int], hops: dict[int, dict[int, int]]) -> Fraction:
    """Return the lowest possible load, in shards, of the busiest link into `node` as shards `step` hops away arrive."""
    shards = [source for source, lengths in hops.items() if lengths[node] == step]
    pairs = [(job, link) for job, shard in enumerate(shards) for link, near in enumerate(into)
             if hops[shard][near] == step - 1]  # fmt: skip
    if not pairs:
        return Fraction(0)
    matrix = np.zeros((len(shards) + len(into), len(pairs) + 1))
    for column, (job, link) in enumerate(pairs):
        matrix[job, column] = -1  # all parts of a shard add up to at least 1
        matrix[len(shards) + link, column] = 1
    matrix[len(shards) :, -1] = -1
    bound = np.array([-1.0] * len(shards) + [0.0] * len(into))
    objective = np.append(np.zeros(len(pairs)), 1.0)
    solution, _ = minimum(objective, sparse.csr_array(matrix), bound, "choose a smaller network")
    return Fraction(float(solution[-1])).limit_denominator(_DIGITS)


BFB = Benchmark(
    name="bfb",
    reference="HiGHS, a linear program for each node and step",
    goals=dict.fromkeys(("torus:5x5", "hypercube:5", "genkautz:4,32"), 10.0),
    run=_run_bfb,
    is_exact=False,
)


def _run_schedule(case: str) -> BenchmarkOutcome:
    """Run a case of the form `METHOD COLLECTIVE SPEC`, or `k=K METHOD COLLECTIVE SPEC` for K trees per root."""
    words = case.split()
    k = int(words.pop(0).removeprefix("k=")) if words[0].startswith("k=") else None
    method, name, spec = words
    topology, collective = parse_topology(spec), parse_collective(name)
    verified, ring = synthesized(method, topology, collective, k=k), synthesized("ring", topology, collective)
    achieved = verified.cost.time_per_byte
    bound = lower_bound(topology, collective, achieved)
    check_certificate(topology, collective, bound.to_json(topology))
    facts = facts_of(verified) | {"gap": str(achieved / bound.value - 1)}
    facts["time_per_byte_of_ring"] = str(ring.cost.time_per_byte)
    return BenchmarkOutcome(facts, float(ring.cost.time_per_byte / achieved), {})


RINGS = Benchmark(
    name="rings",
    reference="a ring in one direction",
    goals={
        "bfb allreduce torus:4x4": 4.0,
        "swing allreduce torus:4x4": 4.0,
        "bucket allreduce torus:4x4": 4.0,
        "hamiltonian-ring allreduce torus:4x4": 4.0,
        "bfb allgather genkautz:4,32": 2.0,
    },
    run=_run_schedule,
    is_exact=True,
)
FOREST = Benchmark(
    name="forest",
    reference="a ring in one direction",
    goals={
        "forest allgather a100:2": 1.6,
        "k=1 forest allgather a100:2": 1.6,
        "forest allgather mi250:2": 6.0,
        "forest allreduce torus:4x4": 4.0,
    },
    run=_run_schedule,
    is_exact=True,
)


SCALE = Benchmark(
    name="scale",
    reference="SHA-256 over the rows of the schedule, written out",
    goals={
        "forest a100:128": 1 / 20,  # hashing a million rows takes a hundredth of a second
        "forest torus:64x64": 1.0,
        "forest a100:512": 1 / 2,
        "forest fattree:26": 1 / 2,
        "forest dragonfly:8,8,8": 1 / 20,
        "forest a100:2048": 1.0,
        "forest mi250:1024": 1.0,
        "bfb torus:256x256": 1.0,
        "bfb hypercube:16": 1.0,
    },
    run=lambda case: BenchmarkOutcome.of(*verified_schedule_at_scale(case)),
    is_exact=False,
)


REPLAN = Benchmark(
    name="replan",
    reference="a ring for allgather, synthesized and verified",
    goals=dict.fromkeys(
        (
            "a100:16",
            "h100:16",
            "without(a100:16;node=0)",
            "without(h100:16;node=0)",
            "scaled(a100:16;link=0-nic:0.0;factor=1/10)",
            "without(torus:8x16;link=0-1)",
            "a100:128",
            "without(a100:128;node=0)",
        ),
        0.1,  # a table's collectives together, compared with one ring
    ),
    run=lambda spec: BenchmarkOutcome.of(*table_after_a_loss(spec)),
    is_exact=False,
)


BENCHMARKS = (AUTOMATIC, BFB, BOUNDS, COMMANDS, EXCHANGE, FOREST, PROGRAMS, RANKS, REPLAN, RINGS, SCALE, START)


def chosen(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """Return the benchmarks with these names, all by default. Raises InvalidInput for an unknown name."""
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    for name in names:
        if name not in by_name:
            raise unknown_name("benchmark", name, by_name)
    return tuple(by_name[name] for name in dict.fromkeys(names or by_name))


def expected_facts() -> dict[str, Any]:
    """Return every case's expected facts, by benchmark and case."""
    text = resources.files("chorale.experiments").joinpath("data/bench.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def rows_of(benchmark: Benchmark) -> Iterator[dict[str, Any]]:
    """Run every case and yield its JSON row; `holds` is false if facts or exact ratios are not as expected."""
    expected = expected_facts().get(benchmark.name, {})
    for case in benchmark.cases:
        outcome = benchmark.run(case)
        expected_here = expected.get(case, {})
        goal_met = outcome.ratio >= benchmark.goals[case]
        differing = [
            key for key in {**expected_here, **outcome.facts} if expected_here.get(key) != outcome.facts.get(key)
        ]
        yield {
            "benchmark": benchmark.name,
            "case": case,
            "facts": dict(outcome.facts),
            "differing": differing,
            "reference": benchmark.reference,
            "ratio": outcome.ratio,
            "goal": benchmark.goals[case],
            "goal_met": goal_met,
            "seconds": dict(outcome.seconds),
            "peak_mb": outcome.peak_mb,
            "holds": not differing and (goal_met or not benchmark.is_exact),
        }
