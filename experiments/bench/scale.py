"""Benchmarks in this process: schedules, programs, all-to-all rates and the method auto, each with a reference.

The references are:

- Schedules and tables: SHA-256 over the bytes of the written schedule. Any program that reads or writes such a schedule
  takes at least about that long.
- Programs: one pass of Python's XML parser over the text.
- Rates: SciPy's Dijkstra from every rank. A proof by link prices needs the cheapest paths at least once. The last
  digits of the bounds depend on floating-point rounding, so the recorded facts are only the method and whether the
  bounds are close enough.
- Auto: the method that wins. Both times are the processor time of everything that a command does after startup.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

import networkx as nx
import numpy as np

from chorale.experiments.bench.processes import Benchmark, BenchmarkOutcome
from chorale.experiments.framework.references import synthesized
from chorale.synth.bounds.lower_bound import bound_of_schedule, lower_bound
from chorale.synth.build.build import unexecuted_text
from chorale.synth.collective import ALLGATHER, parse_collective
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP, alltoall_rate
from chorale.synth.methods.auto import AUTO
from chorale.synth.schedule.schedule import ColumnBounds
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.formats.networkx_graph import from_networkx
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.reports.tables import Stopwatch

_BLOCK = bytes(2**22)
_HASHED_BLOCKS = 16
"""Number of blocks of 4 MiB that are hashed; the time for more blocks is extrapolated."""


def facts_of(verified: VerifiedSchedule) -> dict[str, Any]:
    """Return counts and the cost of a schedule, which are the same on every machine."""
    schedule = verified.schedule
    return {
        "steps": schedule.steps,
        "transfers": schedule.transfer_count,
        "chunks_per_shard": schedule.chunks_per_shard,
        "trees_per_root": schedule.trees_per_root,
        "time_per_byte": str(verified.cost.time_per_byte),
    }


def verified_schedule_at_scale(case: str) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Build a schedule; return facts about it, the time to build, verify and bound it, and the time to hash its bytes.

    `case` has the form METHOD SPEC; the collective is allgather.
    """
    method, spec = case.split()
    synthesized(method, parse_topology("hypercube:3"), ALLGATHER)  # loads machine code
    stages = Stopwatch()
    with stages.stage("ours"):
        topology = parse_topology(spec)
        verified = synthesized(method, topology, ALLGATHER)
        bound = lower_bound(topology, ALLGATHER, verified.cost.time_per_byte)
    schedule = verified.schedule
    # The bytes per row of the written schedule, with routes counted as links.
    columns = ColumnBounds(schedule.steps, len(topology.links), topology.compute_count, schedule.chunks_per_shard)
    size = sum(dtype.itemsize for dtype in columns.dtypes) * schedule.transfer_count
    with stages.stage("hashing"):
        digest = hashlib.sha256()
        for _ in range(_HASHED_BLOCKS):
            digest.update(_BLOCK)
    hashing = stages.seconds["hashing"] * size / (len(_BLOCK) * _HASHED_BLOCKS)
    gap = str(verified.cost.time_per_byte / bound.value - 1)
    facts = facts_of(verified) | {"form": schedule.form, "gap": gap, "id": schedule.id}
    return facts, {"ours": stages.seconds["ours"], "reference": hashing}


_TABLE = (("allgather", "forest"), ("reduce_scatter", "forest"), ("allreduce", "forest-phases"))
"""Collectives in a `chorale watch` table, and the method for each on many ranks."""


def table_after_a_loss(spec: str) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Build verified schedules for all collectives of a table; return facts, our time, and the time for a plain ring.

    Times include building the network `spec`, synthesis and verification. The ring is only built for allgather. The key
    `processor` is the processor time for our schedules.
    """
    synthesized("forest", parse_topology("ring:4"), ALLGATHER)  # loads machine code
    stages = Stopwatch()
    facts: dict[str, Any] = {}
    began_s = time.process_time()
    with stages.stage("ours"):
        topology = parse_topology(spec)
        verified = {name: synthesized(method, topology, parse_collective(name)) for name, method in _TABLE}
    processor_s = time.process_time() - began_s
    for name, each in verified.items():
        bound = lower_bound(topology, parse_collective(name), each.cost.time_per_byte)
        gap = each.cost.time_per_byte / bound.value - 1
        facts[name] = {"time_per_byte": str(each.cost.time_per_byte), "gap": str(gap)}
    with stages.stage("reference"):
        topology = parse_topology(spec)
        synthesized("ring", topology, ALLGATHER)
    return facts, {**stages.seconds, "processor": processor_s}


def written_program(case: str) -> BenchmarkOutcome:
    """Write a program's text; return facts about it, and the seconds to write it and to parse it with Python's parser.

    `case` has the form TARGET METHOD COLLECTIVE SPEC.
    """
    target, method, collective, spec = case.split()
    verified = synthesized(method, parse_topology(spec), parse_collective(collective))
    stages = Stopwatch()
    with stages.stage("ours"):
        text = unexecuted_text(verified, LoweringOptions(target)).encode()
    parser = expat.ParserCreate("utf-8")
    with stages.stage("reference"):
        parser.Parse(text, True)
    facts = {"bytes": len(text), "ranks": text.count(b"<gpu "), "sha256": hashlib.sha256(text).hexdigest()}
    return BenchmarkOutcome.of(facts, stages.seconds)


PROGRAMS = Benchmark(
    name="programs",
    reference="Python's expat, which reads the text once and drops it",
    goals=dict.fromkeys(
        (
            "msccl-xml bfb allgather torus:16x16",
            "msccl-executor-xml bfb allgather hypercube:8",
            "oneccl-xml bfb allreduce hypercube:8",
        ),
        0.05,
    ),
    run=written_program,
    is_exact=False,
)


RANKS = Benchmark(
    name="ranks",
    reference="Python's expat, which reads the text once and drops it",
    goals={"oneccl-xml bfb allgather hypercube:10": 0.05},
    run=written_program,
    is_exact=False,
)


def rate_at_scale(spec: str) -> BenchmarkOutcome:
    """Bound the all-to-all rate of `spec`; return facts about the bounds, and the times of our code and the reference.

    `processor` is our code's processor time.
    """
    alltoall_rate(parse_topology("genkautz:3,20"), method="prices")  # loads machine code and the solver
    _cheapest_paths(parse_topology("ring:4"))
    stages = Stopwatch()
    began_s = time.process_time()
    with stages.stage("ours"):
        topology = parse_topology(spec)
        rate = alltoall_rate(topology)
    processor_s = time.process_time() - began_s
    with stages.stage("reference"):
        longest = _cheapest_paths(topology)
    facts = {
        "method": rate.method,
        "is_within_half_a_percent": 0 <= rate.gap <= DEFAULT_GAP,
        "is_below_equal_prices": rate.lower <= len(topology.links) / longest,
    }
    return BenchmarkOutcome.of(facts, {**stages.seconds, "processor": processor_s})


def _cheapest_paths(topology: Topology) -> float:
    """Return the sum of the distances between all pairs, with a price of 1 for every link."""
    links, nodes = topology.links, topology.node_count
    prices = sparse.csr_array((np.ones(len(links)), (links.src, links.dst)), shape=(nodes, nodes))
    return float(csgraph.dijkstra(prices).sum())


EXCHANGE = Benchmark(
    name="exchange",
    reference="SciPy dijkstra from every rank",
    goals={"genkautz:4,1024": 0.1, "mesh:24x24": 0.01, "genkautz:4,4096": 0.1},
    run=rate_at_scale,
    is_exact=False,
)


_REPEATS = 3
_LONG_S = 1.0
"""Cases that take longer than this number of seconds are measured only once."""
RANDOM = "random-regular:"
"""Prefix of a case on a random network DEGREE,NODES (seed 1), which is read from a file."""


def _run_once(method: str, network: str, collective: str) -> tuple[float, dict[str, Any]]:
    """Return (processor seconds for network, schedule, verification and bound; facts about the schedule)."""
    start = time.process_time()
    if network.startswith(RANDOM):
        degree, nodes = map(int, network.removeprefix(RANDOM).split(","))
        graph = nx.random_regular_graph(degree, nodes, seed=1)
        content = json.dumps(to_json(from_networkx(graph, network))).encode()
        topology = check_topology(from_bytes(content, "file:random.json"))
    else:
        topology = parse_topology(network)
    verified = synthesized(method, topology, parse_collective(collective))
    cost = verified.cost
    bound = bound_of_schedule(verified.schedule, cost.time_per_byte)
    seconds = time.process_time() - start
    gap = str(cost.time_per_byte / bound.value - 1)
    facts = {"method": verified.schedule.method, "time_per_byte": str(cost.time_per_byte), "steps": cost.steps}
    return seconds, facts | {"gap": gap}


def _run_auto(case: str) -> BenchmarkOutcome:
    collective, network = case.split(" ", 1)
    seconds = {"ours": float("inf"), "reference": float("inf")}
    facts: dict[str, Any] = {}
    for _ in range(_REPEATS):
        taken, facts = _run_once(AUTO, network, collective)
        seconds["ours"] = min(seconds["ours"], taken)
        seconds["reference"] = min(seconds["reference"], _run_once(facts["method"], network, collective)[0])
        if taken > _LONG_S:
            break
    return BenchmarkOutcome.of(facts, seconds)


_NETWORKS = (
    *("mesh:8x8", "torus:8x8", "torus:32x32", "hypercube:8", "genkautz:4,200", f"{RANDOM}4,120"),
    *("a100:2", "a100:16", "a100:512", "mi250:16", "fattree:8", "dragonfly:4,4,4"),
    *("without(torus:8x8;link=0-1)", "without(h100:16;node=0)", "scaled(mesh:6x8;link=0-1;factor=1/3)"),
)

AUTOMATIC = Benchmark(
    name="auto",
    reference="the method that wins, asked for by name",
    goals={
        f"{collective} {network}": 1 / 1.2
        for network in _NETWORKS
        for collective in ("allgather", "reduce_scatter", "allreduce")
    },
    run=_run_auto,
    is_exact=False,
)
