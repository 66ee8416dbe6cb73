"""Defines the benchmarks. The `facts` of a case (counts, exact costs, digests) must not change between versions.

Costs of schedules are compared with certified bounds. The time to compute bounds is compared with the time of
NetworkX's maximum flows. The time and memory of complete commands are compared with limits. `chorale bench` imports
this module by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import networkx as nx

from chorale.experiments.framework.experiment import max_flows_reach, synthesized
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_schedule, lower_bound
from chorale.synth.collective import ALLGATHER, parse_collective
from chorale.synth.errors import CheckFailed, unknown_name
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.formats.networkx_graph import from_networkx
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class BenchmarkOutcome:
    """The outcome of one benchmark case.

    facts:   counts, costs and digests as JSON, identical on every machine
    ratio:   factor by which our code is better than the reference
    seconds: measured times by name; empty if exact costs are compared
    peak_mb: peak resident size in 10**6 bytes of the process that ran the case; None if the case ran in this process
    """

    facts: Mapping[str, Any]
    ratio: float
    seconds: Mapping[str, float]
    peak_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark with several cases. `run` runs one case; `goals` maps each case to the ratio that it should reach.

    reference: what our code is compared with
    is_exact:  whether ratios compare exact costs. If so, a missed goal is a regression and cannot be due to a busy
               machine.
    """

    name: str
    reference: str
    goals: Mapping[str, float]
    run: Callable[[str], BenchmarkOutcome]
    is_exact: bool = True


def _run_bounds(spec: str) -> BenchmarkOutcome:
    topology, begun_s = parse_topology(spec), time.perf_counter()
    bound = lower_bound(topology, ALLGATHER)
    ours_s, begun_s = time.perf_counter() - begun_s, time.perf_counter()
    fits = max_flows_reach(topology, bound.value)
    reference_s = time.perf_counter() - begun_s
    facts = {
        "time_per_byte": str(bound.value),
        "kind": bound.kind,
        "cut": len(bound.nodes),
        "flows_fit": fits,
        "flows_fit_in_a_little_less": max_flows_reach(topology, bound.value * Fraction(999, 1000)),
    }
    return BenchmarkOutcome(facts, reference_s / ours_s, {"ours": ours_s, "reference": reference_s})


BOUNDS = Benchmark(
    name="bounds",
    reference="NetworkX maximum_flow to every rank",
    goals=dict.fromkeys(("a100:2", "mi250:2", "genkautz:4,32"), 10.0),
    run=_run_bounds,
    is_exact=False,
)

RANDOM = "random-regular:"
"""Prefix of a random network's name, followed by DEGREE,NODES. Such a network is generated with seed 1."""


def _network(spec: str) -> Topology:
    if not spec.startswith(RANDOM):
        return parse_topology(spec)
    degree, nodes = map(int, spec.removeprefix(RANDOM).split(","))
    graph = nx.random_regular_graph(degree, nodes, seed=1)
    content = json.dumps(to_json(from_networkx(graph, spec))).encode()
    return check_topology(from_bytes(content, "file:random.json"))


def _run_schedule(case: str) -> BenchmarkOutcome:
    """Synthesize the schedule of `case`: `METHOD COLLECTIVE SPEC`, optionally after `k=K` for K trees per root.

    The measured processor time covers building the network, synthesis, verification, and computing the bound.
    """
    words = case.split()
    k = int(words.pop(0).removeprefix("k=")) if words[0].startswith("k=") else None
    method, collective, spec = words
    begun_s = time.process_time()
    verified = synthesized(method, _network(spec), parse_collective(collective), k=k)
    schedule, cost = verified.schedule, verified.cost
    bound = bound_of_schedule(schedule, cost.time_per_byte)
    seconds = time.process_time() - begun_s
    check_certificate(schedule.topology, schedule.collective, bound.to_json(schedule.topology))
    facts = {
        "method": schedule.method,
        "steps": schedule.steps,
        "transfers": schedule.transfer_count,
        "chunks_per_shard": schedule.chunks_per_shard,
        "trees_per_root": schedule.trees_per_root,
        "time_per_byte": str(cost.time_per_byte),
        "gap": str(cost.time_per_byte / bound.value - 1),
    }
    return BenchmarkOutcome(facts, float(bound.value / cost.time_per_byte), {"processor": seconds})


def _schedules(name: str, cases: Iterable[str]) -> Benchmark:
    return Benchmark(name, "the certified bound", dict.fromkeys(cases, 0.5), _run_schedule)


_COLLECTIVES = ("allgather", "reduce_scatter", "allreduce")
_NETWORKS = (
    *("mesh:8x8", "torus:8x8", "torus:32x32", "hypercube:8", "genkautz:4,200", f"{RANDOM}4,120"),
    *("a100:2", "a100:16", "a100:512", "mi250:16", "fattree:8", "dragonfly:4,4,4"),
    *("without(torus:8x8;link=0-1)", "without(h100:16;node=0)", "scaled(mesh:6x8;link=0-1;factor=1/3)"),
)
AUTOMATIC = _schedules("auto", (f"auto {collective} {spec}" for spec in _NETWORKS for collective in _COLLECTIVES))
FOREST = _schedules("forest", (
    "forest allgather a100:2", "k=1 forest allgather a100:2", "forest allgather mi250:2", "forest allreduce torus:4x4",
))  # fmt: skip
RINGS = _schedules("rings", (
    "bfb allreduce torus:4x4", "swing allreduce torus:4x4", "bucket allreduce torus:4x4",
    "hamiltonian-ring allreduce torus:4x4", "bfb allgather torus:5x5", "bfb allgather hypercube:5",
    "bfb allgather genkautz:4,32",
))  # fmt: skip
_AFTER_A_LOSS = (
    *("a100:16", "h100:16", "without(a100:16;node=0)", "without(h100:16;node=0)"),
    *("scaled(a100:16;link=0-nic:0.0;factor=1/10)", "without(torus:8x16;link=0-1)"),
    *("a100:128", "without(a100:128;node=0)"),
)
REPLAN = _schedules("replan", (
    f"{method} {collective} {spec}"
    for spec in _AFTER_A_LOSS
    for method, collective in zip(("forest", "forest", "forest-phases"), _COLLECTIVES, strict=True)
))  # fmt: skip
"""Schedules for the tables of `chorale watch`, on networks before and after a failure."""


_UNUSED = ("ray", "mlflow", "optuna", "matplotlib")
COMMAND = (
    "import json, re, sys\nfrom chorale.__main__ import main\ntry:\n    main()\n"
    "finally:\n    peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]\n"
    f"    print(json.dumps([int(peak), sorted(set(sys.modules) & set({_UNUSED!r}))]), file=sys.stderr)"
)
"""Python code that runs `chorale`, then prints its peak memory in KiB and the large libraries that it imported. The
memory is read from /proc, because `wait4` would include the parent's."""


@dataclass(frozen=True, slots=True)
class CommandCost:
    """Resources that a command used, and its output.

    processor_s: user and system time of the command and its child processes
    passed_s:    wall-clock time from start to end
    peak_mb:     peak resident size in 10**6 bytes
    libraries:   names of the large libraries that the command imported
    """

    processor_s: float
    passed_s: float
    peak_mb: float
    libraries: Sequence[str]
    output: str


def cost_of(
    words: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout_s: float = 600
) -> CommandCost:
    """Run `chorale` with the arguments `words`. Raises CheckFailed if it fails or exceeds `timeout_s`."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-P", "-c", COMMAND, *words]
    try:
        ended = subprocess.run(  # noqa: S603 - this Python
            command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        rule = "a command of the benchmark must succeed"
        raise CheckFailed(rule, " ".join(words), str(error.stderr)[-300:]) from None
    passed_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak_kb, libraries = json.loads(ended.stderr.splitlines()[-1])
    return CommandCost(processor_s, passed_s, peak_kb * 1024 / 10**6, libraries, ended.stdout)


@cache
def command_limits() -> Mapping[str, tuple[float, float | None]]:
    """Return command -> limits: seconds on two cores, and peak memory of a process in 10**6 bytes (None: no limit)."""
    text = resources.files("chorale.experiments").joinpath("data/limits.json").read_text(encoding="utf-8")
    return {case: tuple(limits) for case, limits in json.loads(text).items()}


_LOWER = "lower "
"""Prefix of a case `lower METHOD COLLECTIVE SPEC TARGET`, whose schedule is built and saved before the command runs."""


def run_command(case: str) -> BenchmarkOutcome:
    """Run `chorale` with the arguments in `case`, in a new data folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CHORALE_HOME": folder}
        output = Path(folder) / "output"
        words = case.split() if case.startswith("--") else [*case.split(), "--json"]
        if case.startswith(_LOWER):
            _, method, collective, spec, target = case.split()
            schedule = str(output.with_name("schedule.parquet"))
            cost_of(["synth", method, spec, "--collective", collective, "-o", schedule], environment=environment)
            words = ["lower", schedule, "--target", target, "-o", str(output), "--json"]
        cost = cost_of(words, environment=environment)
        facts = {"large_libraries": list(cost.libraries)} | (
            {} if words == case.split() else _facts(json.loads(cost.output))
        )
        if output.exists():
            with output.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            facts |= {"bytes": output.stat().st_size, "sha256": digest}
    limit_s, limit_mb = command_limits()[case]
    seconds = {"processor": cost.processor_s, "passed": cost.passed_s, "limit": limit_s}
    ratio = limit_s / min(cost.processor_s, cost.passed_s)
    return BenchmarkOutcome(facts, min(ratio, (limit_mb or float("inf")) / cost.peak_mb), seconds, cost.peak_mb)


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a command's output that are identical on every machine."""
    if "optimality" in document:
        names = ("steps", "transfers", "chunks_per_shard", "trees_per_root", "id")
        costs = {"time_per_byte": document["cost"]["time_per_byte"], "gap": document["optimality"]["gap"]}
        return {name: document["schedule"][name] for name in names} | costs
    if "frontier" in document:
        return {"steps_and_bandwidth": [[row["steps"], row["bandwidth_factor"]] for row in document["frontier"]]}
    if "failures" in document:
        return {"failures": len(document["failures"]), "without_plan": document["without_plan"]}
    if "upper" in document:
        return {"within_half_a_percent": document["upper"] <= document["lower"] * 1.005}
    return {}


COMMANDS = Benchmark(
    name="commands",
    reference="the limits of each, in seconds and megabytes",
    goals=dict.fromkeys(command_limits(), 1.0),
    run=run_command,
    is_exact=False,
)


BENCHMARKS = (AUTOMATIC, BOUNDS, COMMANDS, FOREST, REPLAN, RINGS)


def chosen(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """Return the benchmarks called `names`, or all if `names` is empty. Raises InvalidInput for an unknown name."""
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    for name in names:
        if name not in by_name:
            raise unknown_name("benchmark", name, by_name)
    return tuple(by_name[name] for name in dict.fromkeys(names or by_name))


def expected_facts() -> dict[str, Any]:
    """Return the expected facts of every case, indexed by benchmark and case."""
    text = resources.files("chorale.experiments").joinpath("data/bench.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def rows_of(benchmark: Benchmark) -> Iterator[dict[str, Any]]:
    """Run every case and yield its row of results; `holds` is false if facts or exact ratios are not as expected."""
    expected = expected_facts().get(benchmark.name, {})
    for case, goal in benchmark.goals.items():
        outcome = benchmark.run(case)
        expected_here = expected.get(case, {})
        goal_met = outcome.ratio >= goal
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
            "goal": goal,
            "goal_met": goal_met,
            "seconds": dict(outcome.seconds),
            "peak_mb": outcome.peak_mb,
            "holds": not differing and (goal_met or not benchmark.is_exact),
        }
