"""Schedules beside a plain ring on the same network: exact bandwidth times, so the ratios are the same everywhere."""

from __future__ import annotations

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import parse_collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.kernels.warm_up import warm_method
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology


def _run_schedule(case: str) -> BenchmarkOutcome:
    """Run a case, which reads METHOD COLLECTIVE SPEC, with k=K before it where K trees per root are asked for."""
    words = case.split()
    k = int(words.pop(0).removeprefix("k=")) if words[0].startswith("k=") else None
    method, name, spec = words
    topology, collective = parse_topology(spec), parse_collective(name)
    for used in (method, "ring"):
        warm_method(used)
    verified = synthesize(method, topology, collective, Options(k=k), SerialExecutor())
    ring = synthesize("ring", topology, collective, None, SerialExecutor())
    achieved = verified.cost.time_per_byte
    bound = lower_bound(topology, collective, achieved)
    check_certificate(topology, collective, bound.to_json(topology))
    schedule = verified.schedule
    facts = {
        "steps": schedule.steps,
        "transfers": schedule.transfer_count,
        "chunks_per_shard": schedule.chunks_per_shard,
        "trees_per_root": schedule.trees_per_root,
        "time_per_byte": str(achieved),
        "gap": str(achieved / bound.value - 1),
        "time_per_byte_of_ring": str(ring.cost.time_per_byte),
    }
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
