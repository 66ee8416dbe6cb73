"""`--shards` of `chorale synth` and `chorale bound`: allgather and reduce-scatter with sizes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.collective import CollectiveName, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.methods.forest.forest import ShardUnits, UnevenOptimum, shard_units, uneven_forest, uneven_optimum
from chorale.synth.methods.method import DEFAULT_GAP, Objective
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.schedule_files import save_schedule
from chorale.tuner.files.traffic_files import load_sizes
from chorale.tuner.reports.synthesis import OUTSIDE_TOTAL, synthesis_document, synthesis_result
from chorale.tuner.reports.tables import Result, Stopwatch, facts_table, time_per_byte_text


@dataclass(frozen=True, slots=True)
class ShardsRequest:
    """Whose shards: `shards` is a file or a skew, `seed` orders the ranks of a skew and the roots of trees.

    gap: as in `Options`
    """

    shards: str
    collective: str
    objective: Objective
    seed: int
    gap: Fraction = DEFAULT_GAP
    output: str | None = None


FOREST_ONLY = "forest"


def require_trees(method: str, options: Mapping[str, object]) -> None:
    """Refuse a method or options, by their flags, that sizes of shards do not go with."""
    if method not in ("auto", FOREST_ONLY):
        raise InvalidInput("--shards goes with the method forest, or none", method, "write forest")
    flag = next((name for name, value in options.items() if value), None)
    if flag is not None:
        raise InvalidInput("--shards goes with --collective, --objective, --seed and -o", flag, f"leave out {flag}")


def shards_synthesis(topology: Topology, request: ShardsRequest, stages: Stopwatch) -> Result:
    """Return the synthesized, verified and proved schedule; write it if a file is given."""
    name, units = _read(topology, request)
    with stages.stage("synthesis"):
        schedule = uneven_forest(topology, name, units.counts, request.objective, request.seed, request.gap)
    with stages.stage("verification"):
        verified = verify(schedule)
    with stages.stage("bound"):
        best = _checked(topology, uneven_optimum(topology, name, units.counts))
    if request.output is not None:
        with stages.stage("writing"):
            save_schedule(verified, request.output)
    document = synthesis_document(verified, best.bound, stages.report(OUTSIDE_TOTAL))
    document |= {"shards": _shards_document(units, request), "warnings": [], "cached": False}
    return synthesis_result(document, request.output, topology.bandwidth_unit)


def shards_bound(topology: Topology, request: ShardsRequest, stages: Stopwatch) -> Result:
    """Return how fast it can be at best."""
    name, units = _read(topology, request)
    with stages.stage("bound"):
        best = _checked(topology, uneven_optimum(topology, name, units.counts))
    certificate = dict(best.bound.to_json(topology))
    document: dict[str, Any] = {
        "topology": topology.spec,
        "collective": best.collective.name.value,
        "time_per_byte": rational_text(best.bound.value),
        "algbw": float(1 / best.bound.value),
        "bottleneck_cut": certificate["nodes"],
        "k_optimal": best.trees,
        "certificate": certificate,
        "in_network": None,
        "shards": _shards_document(units, request),
        "seconds": stages.report(outside_total=("topology",)),
    }
    table = facts_table(f"{document['collective']} on {topology.spec}")
    table.add_row("at best", time_per_byte_text(best.bound.value, topology.bandwidth_unit))
    table.add_row("algbw", f"{document['algbw']:.6g} {topology.bandwidth_unit}")
    table.add_row("bottleneck", f"{best.bound.kind} {', '.join(certificate['nodes'][:12])}")
    table.add_row("trees per unit of a shard", str(best.trees))
    return Result(document, table)


def _read(topology: Topology, request: ShardsRequest) -> tuple[CollectiveName, ShardUnits]:
    sizes = load_sizes(request.shards, topology.compute_count, topology.spec, request.seed)
    return parse_collective(request.collective).name, shard_units(sizes)


def _checked(topology: Topology, best: UnevenOptimum) -> UnevenOptimum:
    check_certificate(topology, best.collective, best.bound.to_json(topology))
    return best


def _shards_document(units: ShardUnits, request: ShardsRequest) -> dict[str, Any]:
    """Return the sizes in units of equal length."""
    return {"name": request.shards, "units": list(units.counts), "unit": rational_text(units.unit)}
