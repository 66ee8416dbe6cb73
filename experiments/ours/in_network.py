"""Switches that add and multicast: bounds, schedules and NCCL's algorithms on the fabrics that have them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.bounds.in_network import bound_of_ranks, in_network_bound
from chorale.synth.collective import ALLREDUCE
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.identity import rational_text
from chorale.synth.methods.catalog import IN_NETWORK, synthesize
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.congestion import congestion_of
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.nccl_model import PUBLISHED, NcclAlgorithm, PublishedRate, nccl_algorithms
from chorale.tuner.costs.pricing import DEFAULTS, Pricing

SIZE_BYTES = 2**30
ALPHA_US = "2"
LARGEST_GAP: Mapping[str, Fraction] = {
    "h100:1": Fraction(0), "h200:1": Fraction(0), "h100:2": Fraction(0), "h100:4": Fraction(0), "h100:5": Fraction(0),
    "h100:16": Fraction(0), "able(h100:4;switch=rail)": Fraction(0), "able(h100:16;switch=rail)": Fraction(0),
    "b200:1": Fraction(0), "b200:2": Fraction(0), "nvl72:1": Fraction(0), "nvl72:2": Fraction(1, 2000),
    "nvl72:16": Fraction(1, 2000), "able(fattree:4)": Fraction(0), "able(a100:2;switch=nvswitch)": Fraction(0),
}  # fmt: skip
"""Each fabric, and by how much of the bound its schedule may be slower."""
SLOW = ("able(h100:16;switch=rail)", "nvl72:2", "nvl72:16")
MOST_PLANNING_S = 5.0
MOST_BASELINE_RANKS = 256  # rings of more have millions of messages
_UNREACHED = "trees visit every NVSwitch of all racks, which the bound does not ask for"


def in_network_allreduce(topology: Topology) -> VerifiedSchedule:
    """Return the verified schedule of an allreduce in which switches act, or of ranks alone where these are faster."""
    return synthesize(IN_NETWORK, topology, ALLREDUCE, None, SerialExecutor())


def both_bounds(topology: Topology) -> tuple[Fraction, Fraction]:
    """Return the certified least times per byte of ranks alone, and with what switches can do."""
    alone, acting = bound_of_ranks(topology, ALLREDUCE).value, in_network_bound(topology, ALLREDUCE)
    return alone, alone if acting is None else acting.value


def _simulated(topology: Topology, verified: VerifiedSchedule) -> float:
    """Return GB/s of the vector at `SIZE_BYTES` by the model of steps."""
    model = Pricing.of({**DEFAULTS, "alpha_us": ALPHA_US}, None).network(topology)
    cost = congestion_of(traffic_of(verified.schedule.expand()))
    return SIZE_BYTES / float(cost.seconds(model, SIZE_BYTES)) / 1e9


def _best_by_name(algorithms: Sequence[NcclAlgorithm], size_bytes: int) -> dict[str, float]:
    """Return GB/s of each of NCCL's algorithms with its best protocol."""
    rates: dict[str, float] = {}
    for each in algorithms:
        rates[each.name] = max(rates.get(each.name, 0.0), size_bytes / each.seconds(size_bytes) / 1e9)
    return rates


def _fabric_rows(spec: str) -> list[Row]:
    topology = parse_topology(spec)
    begun = time.process_time()
    verified = in_network_allreduce(topology)
    planning_s = time.process_time() - begun
    alone, bound = both_bounds(topology)
    gap = verified.cost.time_per_byte / bound - 1
    small = topology.compute_count <= MOST_BASELINE_RANKS
    published = [each for each in PUBLISHED if each.spec == spec]
    row: dict[str, Any] = {
        "spec": spec,
        "ranks": topology.compute_count,
        "alone_algbw": float(1 / alone),
        "bound_algbw": float(1 / bound),
        "algbw": float(1 / verified.cost.time_per_byte),
        "gap": rational_text(gap),
        "construction": verified.schedule.parameters.get("construction") or verified.schedule.method,
        "steps": verified.cost.steps,
        "simulated_algbw": _simulated(topology, verified),
        "nccl_model_algbw": _best_by_name(nccl_algorithms(topology), SIZE_BYTES) if small else {},
        "published_algbw": {f"{each.algorithm}: {each.source}": each.algbw for each in published},
        "planning_processor_s": planning_s,
        "reason": None if gap == 0 else _UNREACHED,
    }
    return [row | {"holds": gap <= LARGEST_GAP[spec] and planning_s <= MOST_PLANNING_S}]


def _nccl_text(row: Row) -> str:
    return ", ".join(f"{name} {rate:.0f}" for name, rate in row["nccl_model_algbw"].items())


def _published_text(row: Row) -> str:
    return ", ".join(f"{name.split(':')[0]} {rate:.0f}" for name, rate in row["published_algbw"].items())


FABRICS = Experiment(
    name="in-network",
    question="How near do schedules come to the bounds where switches add and multicast, and what does NCCL reach?",
    source="ours; NCCL by its own latencies and the shares of line rates that are published for eight H100",
    columns=(
        Column("fabric", lambda row: str(row["spec"])),
        Column("alone, GB/s", lambda row: f"{row['alone_algbw']:.2f}"),
        Column("bound", lambda row: f"{row['bound_algbw']:.2f}"),
        Column("schedule", lambda row: f"{row['algbw']:.2f}"),
        Column("gap", lambda row: f"{float(Fraction(row['gap'])):.3%}" if row["gap"] != "0" else "0"),
        Column("how, steps", lambda row: f"{row['construction']}, {row['steps']}"),
        Column("simulated, 1 GiB", lambda row: f"{row['simulated_algbw']:.1f}"),
        Column("NCCL by model", _nccl_text),
        Column("NCCL published", _published_text),
        Column("processor s", lambda row: f"{row['planning_processor_s']:.1f}"),
    ),
    cases=lambda quick: [spec for spec in LARGEST_GAP if not (quick and spec in SLOW)],
    evaluate=_fabric_rows,
    alone=True,
)

LARGEST_ERROR = 0.06
LARGE_BYTES = 2**33


def _published_rows(number: int) -> list[Row]:
    published: PublishedRate = PUBLISHED[number]
    topology = parse_topology(published.spec)
    rates = _best_by_name(nccl_algorithms(topology), LARGE_BYTES)
    alone, bound = both_bounds(topology)
    model = rates[published.algorithm]
    error = model / published.algbw - 1
    return [{
        "spec": published.spec,
        "ranks": published.ranks,
        "algorithm": published.algorithm,
        "source": published.source,
        "published_algbw": published.algbw,
        "model_algbw": model,
        "error": error,
        "other_model_algbw": {name: rate for name, rate in rates.items() if name != published.algorithm},
        "alone_algbw": float(1 / alone),
        "bound_algbw": float(1 / bound),
        "schedule_algbw": float(1 / in_network_allreduce(topology).cost.time_per_byte),
        "reason": None,
        "holds": abs(error) <= LARGEST_ERROR and published.algbw <= float(1 / bound),
    }]  # fmt: skip


PUBLISHED_RATES = Experiment(
    name="in-network-published",
    question="How far is the model of NCCL's allreduce right, and how far is what NCCL reaches from the bounds?",
    source="NVIDIA/nccl issues 1221 and 1455, NVIDIA/nccl-tests issues 212 and 272: H100 and H200 boxes, large sizes",
    columns=(
        Column("machine", lambda row: f"{row['spec']} ({row['ranks']} GPUs)"),
        Column("algorithm", lambda row: str(row["algorithm"])),
        Column("published, GB/s", lambda row: f"{row['published_algbw']:.0f}"),
        Column("model", lambda row: f"{row['model_algbw']:.0f}"),
        Column("error", lambda row: f"{row['error']:+.1%}"),
        Column("alone", lambda row: f"{row['alone_algbw']:.0f}"),
        Column("bound", lambda row: f"{row['bound_algbw']:.0f}"),
        Column("our schedule", lambda row: f"{row['schedule_algbw']:.0f}"),
        Column("source", lambda row: str(row["source"])),
    ),
    cases=lambda _quick: range(len(PUBLISHED)),
    evaluate=_published_rows,
)
