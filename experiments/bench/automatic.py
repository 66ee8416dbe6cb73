"""The method auto beside the method that wins, by processor time of everything that a command does after it started."""

from __future__ import annotations

import json
import time
from typing import Any

import networkx as nx

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome
from chorale.synth.bounds.lower_bound import bound_of_schedule
from chorale.synth.collective import parse_collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.auto import AUTO
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.formats.networkx_graph import from_networkx
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

_REPEATS = 3
_LONG_S = 1.0
"""What takes as long is measured once."""
RANDOM = "random-regular:"
"""Begins a case on a network of DEGREE,NODES that only a file describes; the seed is 1."""


def _network(name: str) -> Topology:
    if not name.startswith(RANDOM):
        return parse_topology(name)
    degree, nodes = map(int, name.removeprefix(RANDOM).split(","))
    graph = nx.random_regular_graph(degree, nodes, seed=1)
    content = json.dumps(to_json(from_networkx(graph, name))).encode()
    return check_topology(from_bytes(content, "file:random.json"))


def _run_once(method: str, network: str, collective: str) -> tuple[float, dict[str, Any]]:
    """Return processor seconds of network, schedule, verification and bound, and facts of the schedule."""
    start = time.process_time()
    verified = synthesize(method, _network(network), parse_collective(collective), None, SerialExecutor())
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
    return BenchmarkOutcome(facts, seconds["reference"] / seconds["ours"], seconds)


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
